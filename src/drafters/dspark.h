/* drafters/dspark.h - the own DSpark checkpoints, folders with a dspark.json (drafters_kv.md section 3). */
#ifndef SIB_DRAFTERS_DSPARK_H
#define SIB_DRAFTERS_DSPARK_H

#include "drafters/drafter.h"

/* The loader's checkpoint was opened with config_file "dspark.json". */
sib_status sib_dspark_open(sib_drafter **out, sib_loader *l, sib_model *target, const sib_drafter_options *o,
                           sib_err *err);
sib_status sib_dspark_needs(sib_needs *out, int taps[SIB_MAX_TAPS], const json_t *config, sib_err *err);

#endif

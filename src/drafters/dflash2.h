/* drafters/dflash2.h - DFlash 2 and DFlash v1 block drafters (dflash2.md). */
#ifndef SIB_DRAFTERS_DFLASH2_H
#define SIB_DRAFTERS_DFLASH2_H

#include "drafters/drafter.h"

sib_status sib_dflash2_open(sib_drafter **out, sib_loader *l, sib_model *target, const sib_drafter_options *o,
                            sib_err *err);
sib_status sib_dflash2_needs(sib_needs *out, int taps[SIB_MAX_TAPS], const json_t *config, sib_err *err);

#endif

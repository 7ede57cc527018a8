/* drafters/deepspec.h - DeepSeek's DSpark checkpoints for Gemma 4 and Qwen3 (drafters_kv.md section 2). */
#ifndef SIB_DRAFTERS_DEEPSPEC_H
#define SIB_DRAFTERS_DEEPSPEC_H

#include "drafters/drafter.h"

sib_status sib_deepspec_open(sib_drafter **out, sib_loader *l, sib_model *target, const sib_drafter_options *o,
                             sib_err *err);
sib_status sib_deepspec_needs(sib_needs *out, int taps[SIB_MAX_TAPS], const json_t *config, sib_err *err);

#endif

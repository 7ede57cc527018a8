/* drafters/assistant.h - the Gemma-4 assistant (drafters_kv.md section 1). */
#ifndef SIB_DRAFTERS_ASSISTANT_H
#define SIB_DRAFTERS_ASSISTANT_H

#include "drafters/drafter.h"

sib_status sib_assistant_open(sib_drafter **out, sib_loader *l, sib_model *target, const sib_drafter_options *o, sib_err *err);
sib_status sib_assistant_needs(sib_needs *out, int taps[SIB_MAX_TAPS], const json_t *config, sib_err *err);

/* Stages of propose for traces, index = step: draft.embedding, .pre_projection, .layer.I.out, .norm, .logits, .next_hidden and,
 * for one row, .position. Logits of tokens that are no candidates of the centroid head are NaN. */
void sib_assistant_trace(sib_drafter *d, sib_trace trace);

#endif

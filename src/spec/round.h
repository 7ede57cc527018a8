/* spec/round.h - one round over several requests: draft, one forward for all, accept, keep.
 *
 *   lane A (decoding)   [ pending d1 d2 d3 ]   4 rows, 4 logits -> 1..4 tokens
 *   lane B (decoding)   [ pending ]            1 row,  1 logit  -> 1 token
 *   lane C (prompt)     [ p256 ... p511 ]      256 rows, no logits yet
 *
 * Plain decoding is the round without drafts, and a prompt is the window that has more decided
 * tokens than one, so there is one path. What a lane emits does not depend on the others, on how
 * its prompt was cut, or on the drafts (ops.h, row independence; accept.h, positional keys).
 * Facts: speculative.md sections 2, 3, 5. */
#ifndef SIB_SPEC_ROUND_H
#define SIB_SPEC_ROUND_H

#include "ports/drafter.h"
#include "sample/accept.h"
#include "spec/policy.h"

/* A picture's soft tokens in a timeline: absolute positions. */
typedef struct sib_soft_span {
    int pos, n;
    const float *features; /* device [n][hidden] */
    bool bidirectional, everywhere; /* ports/model.h, sib_soft */
} sib_soft_span;

/* One request. The caller owns everything; `tokens` has room for n_tokens + SIB_ROUND_EMIT more. */
#define SIB_ROUND_EMIT 65 /* most tokens of one round: 64 drafts and the target's own */

typedef struct sib_lane {
    sib_seq *seq;
    sib_draft_state *draft; /* NULL: never drafts */
    sib_sampler *sampler;
    const sib_grammar *grammar; /* may be NULL */
    const sib_id_set *eos;      /* may be NULL */
    sib_accept_rule rule;
    int32_t *tokens; /* timeline: prompt and everything decided */
    int n_tokens;    /* decided                                 */
    int n_done;      /* processed and committed by the target   */
    const sib_soft_span *soft;
    int n_soft;
    uint64_t emitted; /* tokens emitted since the prompt */
    uint64_t budget;  /* tokens that may still be emitted, >= 1 while the lane runs */
    sib_draft_policy policy;
    /* results of the last round */
    sib_sample samples[SIB_ROUND_EMIT];
    sib_walk walk; /* n_emitted 0: the round was prompt only */
} sib_lane;

/* Rows of a lane's next prompt chunk: the chunk size or the lane's share of the call, extended to the end of a picture that
 * would be cut, for which it may take all the room that is left; 0 when even that is too little, and the lane waits. */
int sib_lane_chunk(const sib_lane *l, int chunk, int share, int room);
/* The pictures in rows n_done .. n_done + part->n_rows - 1, into part->soft = `soft`, which has room for one a row. */
void sib_lane_soft(const sib_lane *l, sib_part *part, sib_soft *soft, int hidden);

typedef struct sib_round sib_round;

/* Workspace for up to n_lanes lanes on this model; drafter may be NULL. chunk: prompt rows a lane adds to a round. */
sib_status sib_round_new(sib_round **out, sib_model *model, sib_drafter *drafter, int n_lanes, int chunk, sib_err *err);
void sib_round_free(sib_round *r);
/* Prompt rows a lane adds from now on, 1 .. the model's max_rows; changes how long a round takes, never what it emits. */
void sib_round_set_chunk(sib_round *r, int rows);

/* Advances every lane by one round. After an error the lanes' sequences must be freed. */
sib_status sib_round_step(sib_round *r, sib_lane *const *lanes, int n, sib_err *err);

#endif

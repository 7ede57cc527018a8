/* tools/golden/block_case.h - a block drafter beside a target that exists only as tensors of the case. */
#ifndef SIB_TOOLS_GOLDEN_BLOCK_CASE_H
#define SIB_TOOLS_GOLDEN_BLOCK_CASE_H

#include "drafters/block.h"
#include "record.h"

typedef struct block_case {
    golden *g;
    sib_checkpoint *files;
    sib_model *target;
    sib_drafter *drafter;
    sib_draft_state *state;
    record record;
    float *taps; /* device [n_rows][width] */
    int64_t n_rows;
    int width;
} block_case;

/* Opens the case's drafter; target.embed_tokens and target.lm_head are lent to it when the case has them. */
sib_status block_case_open(block_case *c, golden *g, sib_drafter_needs_fn needs, sib_drafter_open_fn open,
                           sib_err *err);
void block_case_close(block_case *c);
/* A new timeline. */
sib_status block_case_restart(block_case *c, sib_err *err);
/* Rows first .. first + n - 1 of the taps become context. */
sib_status block_case_settle(block_case *c, int first, int n, sib_err *err);
/* One block after `pending` at the context's end: every stage under PREFIX, ids, tokens, positions. */
sib_status block_case_round(block_case *c, const char *prefix, int32_t pending, int max, sib_err *err);
/* context.layer.I.keys and .values: what the cache holds. */
void block_case_context(block_case *c);

#endif

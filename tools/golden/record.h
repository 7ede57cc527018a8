/* tools/golden/record.h - the stages of a drafter's round as they pass, for comparison by name.
 *
 * Stages "draft.*" belong to the round; stages "context.*" are rows of the growing context, so that both the rows of
 * the last settle and all rows so far can be asked for. Rows of one stage follow each other. */
#ifndef SIB_TOOLS_GOLDEN_RECORD_H
#define SIB_TOOLS_GOLDEN_RECORD_H

#include "golden.h"

typedef struct record {
    struct record_stage {
        char name[96];
        float *values;
        int64_t n, mark; /* mark: where the last settle began */
    } * list;
    int count, cap;
} record;

sib_trace record_trace(record *r); /* collects into r; r must stay in place */
void record_settle(record *r);     /* a settle begins                       */
void record_round(record *r);      /* a round begins: forgets "draft.*"     */
void record_deinit(record *r);
/* NULL: no such stage. `whole`: all rows, else those since the last settle began. */
const float *record_get(const record *r, int64_t *n, bool whole, const char *fmt, ...) SIB_PRINTF(4, 5);

/* Compares every tensor of the case named PREFIX + stage with what was recorded:
 *
 *   PREFIXcontext.X, PREFIXY.k_proj.0     rows of the last settle, "context.X", "context.Y.k_proj.0"
 *   PREFIXY.k_norm, .v_norm, .keys ...    all context rows, then the block's: `joined` stages
 *   PREFIXX                               the block's, "draft.X"
 *
 * Keys that are no stage are left for the caller. */
void record_compare(golden *g, const record *r, const char *prefix);

#endif

/* engine/diagnose.c - see diagnose.h. */
#include "engine/diagnose.h"

#include <stdio.h>

typedef struct finding {
    bool found;
    char stage[64];
} finding;

/* The sink of a trace: stages come in the order of computation. */
static void look(void *ctx, const char *stage, int index, const float *values, int rows, int n)
{
    finding *f = ctx;
    if (f->found || sib_first_not_finite(values, SIB_F32, (int64_t)rows * n) < 0) return;
    f->found = true;
    if (index < 0)
        (void)snprintf(f->stage, sizeof f->stage, "%s", stage);
    else
        (void)snprintf(f->stage, sizeof f->stage, "%s.%d", stage, index);
}

void sib_engine_diagnose(sib_engine *e, const int32_t *ids, int n, sib_err *err)
{
    sib_model *m = e->model;
    sib_seq *seq;
    sib_forward_out out;
    finding f = {0};
    if (m->ops->seq_new(m, &seq, NULL) != SIB_OK) return;
    sib_part part = {.seq = seq, .ids = ids, .n_rows = n < m->facts.max_rows ? n : m->facts.max_rows, .n_logits = 1};
    sib_trace before = m->trace;
    m->trace = (sib_trace){look, &f};
    (void)m->ops->forward(m, &part, 1, &out, NULL);
    m->trace = before;
    m->ops->seq_free(m, seq);
    if (f.found) (void)sib_within(err, err->status, "the first value that is not finite is in stage %s (hidden.N is what layer N reads)", f.stage);
}

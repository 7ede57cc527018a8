/* engine/bench.h - speed of a checkpoint on this machine, with the machine's ceilings measured before and after. */
#ifndef SIB_ENGINE_BENCH_H
#define SIB_ENGINE_BENCH_H

#include "base/str.h"

#define SIB_BENCH_MAX 16

typedef struct sib_bench_options {
    sib_options engine;
    int prefill[SIB_BENCH_MAX], n_prefill; /* prompt lengths           */
    int depth[SIB_BENCH_MAX], n_depth;     /* decode at these depths   */
    int rows[SIB_BENCH_MAX], n_rows;       /* rows of one sequence in a call, logits for all: verification */
    int batch[SIB_BENCH_MAX], n_batch;     /* sequences with one row each */
    int decode;                            /* tokens of one decode measurement */
    int repeats;                           /* of each measurement */
    void (*note)(void *ctx, const char *line); /* progress; may be NULL */
    void *note_ctx;
} sib_bench_options;

void sib_bench_init(sib_bench_options *o);

/* The object of product.md `bench --json`: medians, each with its best value as KEY_max; with a drafter also "drafter" and
 * "draft": its cost beside the verification's, and what must be accepted to break even (engine/doctor.h). */
sib_status sib_bench_json(sib_buf *out, const sib_bench_options *o, sib_err *err);

#endif

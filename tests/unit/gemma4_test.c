/* tests/unit/gemma4_test.c - promises of the Gemma 4 forward pass: a row's logits have the same bits
 * however its prompt was cut, on any number of threads, beside any neighbours, after any rollback. */
#include "base/rng.h"
#include "engine/registry.h"
#include "models/family.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct rig {
    sib_device *dev;
    sib_checkpoint *files;
    sib_model *m;
} rig;

static rig rig_open(const char *dir, sib_numerics numerics, int threads, int n_seqs)
{
    rig r = {0};
    sib_err err = {0};
    sib_cpu_options cpu = {.numerics = numerics, .threads = threads};
    sib_model_limits limits = {.n_ctx = 512, .n_seqs = n_seqs, .max_rows = 256, .max_logits = 256};
    if (sib_cpu_device_new(&r.dev, &cpu, &err) != SIB_OK || sib_checkpoint_open(&r.files, dir, NULL, &err) != SIB_OK) fail_msg("%s", err.message);
    sib_loader l = {.dev = r.dev, .files = r.files};
    const sib_family *f = sib_family_for(r.files, &err);
    if (!f || f->open(&r.m, &l, &limits, &err) != SIB_OK) fail_msg("%s", err.message);
    return r;
}

static void rig_close(rig *r)
{
    r->m->ops->free(r->m);
    sib_checkpoint_free(r->files);
    sib_device_free(r->dev);
}

static sib_seq *seq_new(rig *r)
{
    sib_err err = {0};
    sib_seq *s = NULL;
    if (r->m->ops->seq_new(r->m, &s, &err) != SIB_OK) fail_msg("%s", err.message);
    return s;
}

static void forward(rig *r, const sib_part *parts, int n, sib_forward_out *out)
{
    sib_err err = {0};
    if (r->m->ops->forward(r->m, parts, n, out, &err) != SIB_OK) fail_msg("%s", err.message);
}

static void keep(rig *r, sib_seq *s, int n)
{
    sib_err err = {0};
    if (r->m->offers.keep->keep(r->m, s, n, &err) != SIB_OK) fail_msg("%s", err.message);
}

/* Logits of all n rows, prompt fed in chunks. Malloc'd [n][vocab]. */
static float *logits_in_chunks(rig *r, const int32_t *ids, int n, int chunk)
{
    size_t v = (size_t)r->m->facts.n_vocab;
    float *all = malloc((size_t)n * v * sizeof *all);
    assert_non_null(all);
    sib_seq *s = seq_new(r);
    for (int at = 0; at < n; at += chunk) {
        int rows = n - at < chunk ? n - at : chunk;
        sib_forward_out out;
        forward(r, &(sib_part){.seq = s, .ids = ids + at, .n_rows = rows, .n_logits = rows}, 1, &out);
        memcpy(all + (size_t)at * v, out.logits, (size_t)rows * v * sizeof *all);
        keep(r, s, rows);
    }
    r->m->ops->seq_free(r->m, s);
    return all;
}

static void random_ids(int32_t *ids, int n, int vocab, uint64_t seed)
{
    for (int i = 0; i < n; i++) ids[i] = (int32_t)(sib_splitmix64(&seed) % (uint64_t)vocab);
}

static const char *const folders[] = {"tests/golden/cases/gemma4-e", "tests/golden/cases/q4-gemma4-e", "tests/golden/cases/q48-gemma4-moe"};

static void expect_equal(const float *a, const float *b, size_t n, size_t width, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a)) fail_msg("%s: row %zu column %zu: %.9g and %.9g", what, i / width, i % width, a[i], b[i]);
}

/* Chunk sizes 1, 7, 64 and whole, one thread and two, in every mode. */
static void chunks_and_threads_change_no_bit(void **state)
{
    (void)state;
    enum { N = 150 };
    static const int chunks[] = {1, 7, 64, N};
    for (size_t f = 0; f < SIB_COUNT(folders); f++)
        for (int mode = SIB_NUM_F32; mode <= SIB_NUM_INT8; mode++) {
            float *want = NULL;
            for (int threads = 1; threads <= 2; threads++) {
                rig r = rig_open(folders[f], (sib_numerics)mode, threads, 1);
                int32_t ids[N];
                random_ids(ids, N, r.m->facts.n_vocab, 7);
                for (size_t c = 0; c < SIB_COUNT(chunks); c++) {
                    float *got = logits_in_chunks(&r, ids, N, chunks[c]);
                    char what[160];
                    (void)snprintf(what, sizeof what, "%s mode %d threads %d chunk %d", folders[f], mode, threads, chunks[c]);
                    if (!want)
                        want = got;
                    else
                        expect_equal(want, got, (size_t)N * (size_t)r.m->facts.n_vocab, (size_t)r.m->facts.n_vocab, what);
                    if (got != want) free(got);
                }
                rig_close(&r);
            }
            free(want);
        }
}

/* Three sequences of different lengths share calls: each row as if it were alone. */
static void neighbours_change_no_bit(void **state)
{
    (void)state;
    enum { SEQS = 3, N = 90 };
    for (size_t f = 0; f < SIB_COUNT(folders); f++) {
        rig r = rig_open(folders[f], SIB_NUM_BF16, 2, SEQS);
        size_t v = (size_t)r.m->facts.n_vocab;
        int32_t ids[SEQS][N];
        float *alone[SEQS];
        sib_seq *seqs[SEQS];
        int at[SEQS] = {0};
        for (int i = 0; i < SEQS; i++) {
            random_ids(ids[i], N, (int)v, 100 + (uint64_t)i);
            alone[i] = logits_in_chunks(&r, ids[i], N, N);
        }
        for (int i = 0; i < SEQS; i++) seqs[i] = seq_new(&r);
        for (int round = 0;; round++) {
            sib_part parts[SEQS];
            int lane[SEQS], n_parts = 0;
            for (int i = 0; i < SEQS; i++) {
                int rows = 1 + (round * 5 + i * 3) % 11;
                if (rows > N - at[i]) rows = N - at[i];
                if (rows == 0) continue;
                lane[n_parts] = i;
                parts[n_parts++] = (sib_part){.seq = seqs[i], .ids = ids[i] + at[i], .n_rows = rows, .n_logits = rows};
            }
            if (n_parts == 0) break;
            sib_forward_out out;
            forward(&r, parts, n_parts, &out);
            const float *row = out.logits;
            for (int p = 0; p < n_parts; p++) {
                int i = lane[p];
                expect_equal(alone[i] + (size_t)at[i] * v, row, (size_t)parts[p].n_rows * v, v, folders[f]);
                row += (size_t)parts[p].n_rows * v;
                keep(&r, seqs[i], parts[p].n_rows);
                at[i] += parts[p].n_rows;
            }
        }
        for (int i = 0; i < SEQS; i++) {
            r.m->ops->seq_free(r.m, seqs[i]);
            free(alone[i]);
        }
        rig_close(&r);
    }
}

/* Rejected rows leave nothing behind, across page borders and beyond the window. */
static void rejected_rows_leave_nothing(void **state)
{
    (void)state;
    enum { N = 200 };
    for (size_t f = 0; f < SIB_COUNT(folders); f++) {
        rig r = rig_open(folders[f], SIB_NUM_BF16, 2, 1);
        size_t v = (size_t)r.m->facts.n_vocab;
        int32_t ids[N], block[8];
        random_ids(ids, N, (int)v, 3);
        float *want = logits_in_chunks(&r, ids, N, 1);
        sib_seq *s = seq_new(&r);
        uint64_t seed = 99;
        for (int at = 0; at < N;) {
            int rows = 1 + (int)(sib_splitmix64(&seed) % 8), good = 1 + (int)(sib_splitmix64(&seed) % (uint64_t)rows);
            if (good > N - at) good = N - at;
            if (rows < good) rows = good;
            for (int i = 0; i < rows; i++) block[i] = i < good ? ids[at + i] : (int32_t)(sib_splitmix64(&seed) % v);
            sib_forward_out out;
            forward(&r, &(sib_part){.seq = s, .ids = block, .n_rows = rows, .n_logits = rows}, 1, &out);
            expect_equal(want + (size_t)at * v, out.logits, (size_t)good * v, v, folders[f]);
            keep(&r, s, good);
            at += good;
        }
        r.m->ops->seq_free(r.m, s);
        free(want);
        rig_close(&r);
    }
}

/* Going back and on again gives the same bits; where the rings have forgotten, it is refused. */
static void truncate_then_go_on(void **state)
{
    (void)state;
    enum { N = 180 };
    rig r = rig_open(folders[0], SIB_NUM_F32, 1, 1);
    size_t v = (size_t)r.m->facts.n_vocab;
    int32_t ids[N];
    random_ids(ids, N, (int)v, 5);
    float *want = logits_in_chunks(&r, ids, N, N);
    sib_seq *s = seq_new(&r);
    sib_forward_out out;
    sib_err err;
    forward(&r, &(sib_part){.seq = s, .ids = ids, .n_rows = N}, 1, &out);
    keep(&r, s, N);
    int reach = r.m->offers.keep->reach(r.m, s);
    for (int to = N - 1; to >= reach && to > N - 60; to -= 7) {
        assert_int_equal(r.m->offers.keep->truncate(r.m, s, to, &err), SIB_OK);
        forward(&r, &(sib_part){.seq = s, .ids = ids + to, .n_rows = N - to, .n_logits = N - to}, 1, &out);
        expect_equal(want + (size_t)to * v, out.logits, (size_t)(N - to) * v, v, "truncate");
        keep(&r, s, N - to);
    }
    if (reach > 1) assert_int_equal(r.m->offers.keep->truncate(r.m, s, reach - 1, &err), SIB_ESTATE);
    assert_int_equal(r.m->offers.keep->truncate(r.m, s, 0, &err), SIB_OK);
    r.m->ops->seq_free(r.m, s);
    free(want);
    rig_close(&r);
}

static void calls_beyond_the_plan_are_refused(void **state)
{
    (void)state;
    rig r = rig_open(folders[0], SIB_NUM_F32, 1, 1);
    int32_t ids[300] = {0}, bad[1] = {r.m->facts.n_vocab};
    sib_seq *s = seq_new(&r), *more = NULL;
    sib_forward_out out;
    sib_err err;
    assert_int_equal(r.m->ops->forward(r.m, &(sib_part){.seq = s, .ids = ids, .n_rows = 257}, 1, &out, &err), SIB_ECAPACITY);
    assert_int_equal(r.m->ops->forward(r.m, &(sib_part){.seq = s, .ids = bad, .n_rows = 1}, 1, &out, &err), SIB_EARG);
    assert_int_equal(r.m->ops->seq_new(r.m, &more, &err), SIB_ECAPACITY);
    for (int i = 0; i < 2; i++) {
        forward(&r, &(sib_part){.seq = s, .ids = ids, .n_rows = 256}, 1, &out);
        keep(&r, s, 256);
    }
    assert_int_equal(r.m->ops->forward(r.m, &(sib_part){.seq = s, .ids = ids, .n_rows = 1}, 1, &out, &err), SIB_ECAPACITY);
    r.m->ops->seq_free(r.m, s);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_and_threads_change_no_bit), cmocka_unit_test(neighbours_change_no_bit),
        cmocka_unit_test(rejected_rows_leave_nothing),      cmocka_unit_test(truncate_then_go_on),
        cmocka_unit_test(calls_beyond_the_plan_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

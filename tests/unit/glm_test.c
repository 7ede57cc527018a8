/* tests/unit/glm_test.c - promises of the GLM-5.2 graph and its draft head: a row's logits have the same bits however its prompt was
 * cut, on any number of threads, beside any neighbours, after any rollback, in both layouts of a checkpoint; drafting with
 * the head changes no token; what is not built is refused with a sentence. */
#include "artifacts/quant.h"
#include "base/rng.h"
#include "drafters/native_mtp.h"
#include "engine/registry.h"
#include "models/glm_moe_dsa/family.h"
#include "models/glm_moe_dsa/glm.h"
#include "spec/round.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct rig {
    sib_device *dev;
    sib_checkpoint *files;
    sib_model *m;
} rig;

static rig rig_open_at(const char *dir, sib_numerics numerics, int threads, int n_seqs, sib_mtp_use mtp)
{
    rig r = {0};
    sib_err err = {0};
    sib_cpu_options cpu = {.numerics = numerics, .threads = threads};
    sib_model_limits limits = {.n_ctx = 512, .n_seqs = n_seqs, .max_rows = 256, .max_logits = 256, .mtp = mtp};
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

#define CASE "tests/golden/cases/glm-mtp" /* 3 layers, full shared full, index_topk 12, and its draft head */

static rig rig_open(sib_numerics numerics, int threads, int n_seqs)
{
    return rig_open_at(CASE, numerics, threads, n_seqs, SIB_MTP_NONE);
}

static void expect_equal(const float *a, const float *b, size_t n, size_t width, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a)) fail_msg("%s: row %zu column %zu: %.9g and %.9g", what, i / width, i % width, a[i], b[i]);
}

/* ---- bits ------------------------------------------------------------------------------------- */

static void chunks_and_threads_change_no_bit(void **state)
{
    (void)state;
    enum { N = 150 };
    static const int chunks[] = {1, 7, 64, N};
    for (int mode = SIB_NUM_F32; mode <= SIB_NUM_INT8; mode++) {
        float *want = NULL;
        for (int threads = 1; threads <= 2; threads++) {
            rig r = rig_open((sib_numerics)mode, threads, 1);
            size_t v = (size_t)r.m->facts.n_vocab;
            int32_t ids[N];
            random_ids(ids, N, (int)v, 7);
            for (size_t c = 0; c < SIB_COUNT(chunks); c++) {
                float *got = logits_in_chunks(&r, ids, N, chunks[c]);
                char what[96];
                (void)snprintf(what, sizeof what, "mode %d threads %d chunk %d", mode, threads, chunks[c]);
                if (!want)
                    want = got;
                else
                    expect_equal(want, got, N * v, v, what);
                if (got != want) free(got);
            }
            rig_close(&r);
        }
        free(want);
    }
}

/* Three sequences share calls; some of their rows choose keys and some see all. */
static void neighbours_change_no_bit(void **state)
{
    (void)state;
    enum { SEQS = 3, N = 90 };
    rig r = rig_open(SIB_NUM_BF16, 2, SEQS);
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
            expect_equal(alone[i] + (size_t)at[i] * v, row, (size_t)parts[p].n_rows * v, v, "neighbours");
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

/* Rejected rows leave nothing behind, in the caches of latents and in those of indexer keys. */
static void rejected_rows_leave_nothing(void **state)
{
    (void)state;
    enum { N = 160 };
    rig r = rig_open(SIB_NUM_BF16, 2, 1);
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
        expect_equal(want + (size_t)at * v, out.logits, (size_t)good * v, v, "rejected rows");
        keep(&r, s, good);
        at += good;
    }
    sib_err err;
    for (int to = N - 1; to > 0; to -= 31) {
        sib_forward_out out;
        assert_int_equal(r.m->offers.keep->truncate(r.m, s, to, &err), SIB_OK);
        forward(&r, &(sib_part){.seq = s, .ids = ids + to, .n_rows = N - to, .n_logits = N - to}, 1, &out);
        expect_equal(want + (size_t)to * v, out.logits, (size_t)(N - to) * v, v, "truncate");
        keep(&r, s, N - to);
    }
    assert_int_equal(r.m->offers.keep->reach(r.m, s), 0);
    r.m->ops->seq_free(r.m, s);
    free(want);
    rig_close(&r);
}

static void taps_are_the_residual_stream(void **state)
{
    (void)state;
    enum { N = 20 };
    rig r = rig_open(SIB_NUM_F32, 1, 1);
    const int layers[] = {-1, 1, 3};
    int h = r.m->facts.hidden, bad = 4;
    int32_t ids[N];
    sib_err err;
    sib_forward_out out;
    random_ids(ids, N, r.m->facts.n_vocab, 8);
    float *plain = logits_in_chunks(&r, ids, N, N), embedded[N * 96];
    assert_int_equal(r.m->offers.taps->select(r.m, &bad, 1, &err), SIB_EARG);
    assert_int_equal(r.m->offers.taps->select(r.m, layers, 3, &err), SIB_OK);
    sib_seq *s = seq_new(&r);
    forward(&r, &(sib_part){.seq = s, .ids = ids, .n_rows = N, .n_logits = N}, 1, &out);
    expect_equal(plain, out.logits, (size_t)N * (size_t)r.m->facts.n_vocab, (size_t)r.m->facts.n_vocab, "tapped");
    const float *taps = r.m->offers.taps->rows(r.m);
    assert_int_equal(h, 96);
    r.m->offers.vocab->embed(r.m, embedded, ids, N, true);
    for (int i = 0; i < N; i++) {
        assert_memory_equal(taps + i * 3 * h, embedded + i * h, (size_t)h * sizeof(float));
        assert_memory_equal(taps + i * 3 * h + 2 * h, out.hidden + i * h, (size_t)h * sizeof(float));
    }
    r.m->ops->seq_free(r.m, s);
    free(plain);
    rig_close(&r);
}

static void a_planned_model_has_the_same_memory(void **state)
{
    (void)state;
    for (int use = SIB_MTP_NONE; use <= SIB_MTP_INDEXED; use++) {
        rig r = rig_open_at(CASE, SIB_NUM_BF16, 1, 2, (sib_mtp_use)use);
        sib_nothing nothing;
        sib_nothing_init(&nothing, r.dev);
        sib_checkpoint *files;
        sib_model *m;
        sib_err err;
        sib_model_limits limits = {.n_ctx = 512, .n_seqs = 2, .max_rows = 256, .max_logits = 256, .mtp = (sib_mtp_use)use};
        assert_int_equal(sib_checkpoint_open(&files, CASE, NULL, &err), SIB_OK);
        sib_loader l = {.dev = &nothing.device, .files = files};
        assert_int_equal(sib_family_glm_moe_dsa.open(&m, &l, &limits, &err), SIB_OK);
        assert_memory_equal(&m->memory, &r.m->memory, sizeof m->memory);
        m->ops->free(m);
        sib_checkpoint_free(files);
        rig_close(&r);
    }
}

/* ---- the same weights under MLX names ------------------------------------------------------------ */

static const char *const projections[] = {"gate_proj", "up_proj", "down_proj"};

static void add(sib_safetensors_writer *w, const char *name, sib_dtype t, int rank, const int64_t *shape, const void *data)
{
    sib_err err;
    if (sib_safetensors_add(w, name, t, rank, shape, data, &err) != SIB_OK) fail_msg("%s", err.message);
}

/* kv_b_proj of 4 heads of 24 + 32 rows as embed_q [4, 32, 24] and unembed_out [4, 32, 32]. */
static void add_absorbed(sib_safetensors_writer *w, const char *attn, const uint16_t *kv)
{
    static uint16_t embed_q[4 * 32 * 24], unembed[4 * 32 * 32];
    char name[352];
    for (int h = 0; h < 4; h++)
        for (int i = 0; i < 32; i++) {
            for (int d = 0; d < 24; d++) embed_q[(h * 32 + i) * 24 + d] = kv[(h * 56 + d) * 32 + i];
            memcpy(unembed + (h * 32 + i) * 32, kv + (h * 56 + 24 + i) * 32, 64);
        }
    (void)snprintf(name, sizeof name, "%s.embed_q.weight", attn);
    add(w, name, SIB_BF16, 3, (const int64_t[]){4, 32, 24}, embed_q);
    (void)snprintf(name, sizeof name, "%s.unembed_out.weight", attn);
    add(w, name, SIB_BF16, 3, (const int64_t[]){4, 32, 32}, unembed);
}

static char *mlx_copy(void)
{
    static char dir[64] = "/tmp/sibyl-glm-XXXXXX";
    char path[160], name[320];
    sib_checkpoint *c;
    sib_safetensors_writer *w;
    sib_err err;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(sib_checkpoint_open(&c, CASE, NULL, &err), SIB_OK);
    assert_int_equal(sib_safetensors_create(&w, path, 65536, &err), SIB_OK);
    for (size_t i = 0; i < sib_checkpoint_count(c); i++) {
        const sib_tensor_info *t = sib_checkpoint_at(c, i);
        char *kv_b = strstr(t->name, ".kv_b_proj.weight");
        if (strstr(t->name, ".experts.") || sib_starts_with(t->name, "model.layers.3.")) continue;
        (void)snprintf(name, sizeof name, "language_model.%.*s", kv_b ? (int)(kv_b - t->name) : 200, t->name);
        if (kv_b)
            add_absorbed(w, name, t->data);
        else
            add(w, name, t->dtype, t->rank, t->shape, t->data);
    }
    for (int layer = 1; layer < 3; layer++)
        for (size_t p = 0; p < SIB_COUNT(projections); p++) {
            sib_matrix_src src;
            bool down = p == 2;
            (void)snprintf(name, sizeof name, "model.layers.%d.mlp.experts", layer);
            (void)snprintf(path, sizeof path, "%s", projections[p]);
            assert_int_equal(sib_matrix_of_experts(c, name, path, down ? 96 : 48, down ? 48 : 96, 8, &src, &err), SIB_OK);
            (void)snprintf(name, sizeof name, "language_model.model.layers.%d.mlp.switch_mlp.%s.weight", layer, projections[p]);
            add(w, name, SIB_BF16, 3, (const int64_t[]){8, src.out, src.in}, src.data);
        }
    assert_int_equal(sib_safetensors_finish(w, &err), SIB_OK);
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(json_dump_file(sib_checkpoint_config(c), path, 0), 0);
    sib_checkpoint_free(c);
    return dir;
}

static void mlx_names_give_the_same_bits(void **state)
{
    (void)state;
    enum { N = 40 };
    char *dir = mlx_copy(), path[160];
    rig a = rig_open(SIB_NUM_F32, 1, 1), b = rig_open_at(dir, SIB_NUM_F32, 1, 1, SIB_MTP_DENSE);
    size_t v = (size_t)a.m->facts.n_vocab;
    int32_t ids[N];
    random_ids(ids, N, (int)v, 21);
    float *x = logits_in_chunks(&a, ids, N, N), *y = logits_in_chunks(&b, ids, N, N);
    expect_equal(x, y, N * v, v, "MLX names");
    /* The conversion dropped the draft head, so nothing binds to it. */
    sib_drafter *d;
    sib_err err = {0};
    sib_drafter_options o = {.n_seqs = 1, .max_draft = 4};
    assert_null(b.m->offers.mtp);
    assert_int_equal(sib_native_mtp_open(&d, b.m, &o, &err), SIB_EUNSUPPORTED);
    assert_string_equal(err.message, "native GLM-5.2 MTP binds only to the GLM-5.2 graph that declares it");
    free(x);
    free(y);
    rig_close(&a);
    rig_close(&b);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(unlink(path), 0);
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

/* ---- the draft head -------------------------------------------------------------------------------- */

/* Rows one by one, together, and after guesses were dropped have the same bits; dropped rows leave no trace. */
static void head_rows_do_not_depend_on_the_call(void **state)
{
    (void)state;
    enum { N = 40 };
    for (int use = SIB_MTP_DENSE; use <= SIB_MTP_INDEXED; use++) {
        rig r = rig_open_at(CASE, SIB_NUM_BF16, 2, 2, (sib_mtp_use)use);
        const sib_mtp_port *p = r.m->offers.mtp;
        int32_t ids[N];
        sib_err err;
        sib_mtp_seq *a, *b, *c;
        sib_mtp_out out;
        size_t h = (size_t)r.m->facts.hidden;
        uint64_t seed = 5;
        float *hidden = malloc(N * h * sizeof *hidden), *want = malloc(N * h * sizeof *want);
        for (size_t i = 0; i < N * h; i++) hidden[i] = (float)((double)(sib_splitmix64(&seed) >> 11) * 0x1p-52 - 1);
        random_ids(ids, N, r.m->facts.n_vocab, 31);
        assert_int_equal(p->seq_new(r.m, &a, &err), SIB_OK);
        assert_int_equal(p->seq_new(r.m, &b, &err), SIB_OK);
        assert_int_equal(p->seq_new(r.m, &c, &err), SIB_ECAPACITY);
        assert_int_equal(p->step(r.m, &(sib_mtp_part){a, ids, hidden, N}, 1, &out, &err), SIB_OK);
        memcpy(want, out.out, N * h * sizeof *want);
        for (int i = 0; i < N; i++) {
            int32_t wrong[3] = {7, 8, 9};
            assert_int_equal(p->step(r.m, &(sib_mtp_part){b, wrong, hidden, 3}, 1, i % 2 ? &out : NULL, &err), SIB_OK);
            assert_int_equal(p->truncate(r.m, b, i, &err), SIB_OK);
            assert_int_equal(p->step(r.m, &(sib_mtp_part){b, ids + i, hidden + (size_t)i * h, 1}, 1, i == 20 ? NULL : &out, &err), SIB_OK);
            if (i != 20) assert_memory_equal(out.out, want + (size_t)i * h, h * sizeof *want);
            assert_int_equal(p->length(r.m, b), i + 1);
        }
        int32_t bad = r.m->facts.n_vocab;
        assert_int_equal(p->step(r.m, &(sib_mtp_part){b, &bad, hidden, 1}, 1, &out, &err), SIB_EARG);
        assert_int_equal(p->length(r.m, b), N);
        p->seq_free(r.m, a);
        p->seq_free(r.m, b);
        free(hidden);
        free(want);
        rig_close(&r);
    }
}

/* Text of several requests in common rounds. depth 0: no drafter. Returns accepted drafts. */
enum { LANES = 3, PROMPT = 30, ANSWER = 60 };

static int answers(rig *r, sib_drafter *d, int depth, double temperature, int chunk, int32_t out[LANES][ANSWER])
{
    sib_err err = {0};
    sib_round *round;
    sib_lane lanes[LANES], *running[LANES];
    int accepted = 0, left = LANES;
    if (sib_round_new(&round, r->m, d, LANES, chunk, &err) != SIB_OK) fail_msg("%s", err.message);
    for (int i = 0; i < LANES; i++) {
        sib_sampler_params p = sib_sampler_defaults();
        p.temperature = temperature;
        p.seed = 40 + (uint64_t)i;
        lanes[i] = (sib_lane){.seq = seq_new(r), .tokens = calloc(512 + SIB_ROUND_EMIT, sizeof(int32_t)), .n_tokens = PROMPT - 5 * i, .budget = ANSWER};
        random_ids(lanes[i].tokens, PROMPT, r->m->facts.n_vocab, 60 + (uint64_t)i);
        if (sib_sampler_new(&lanes[i].sampler, &p, r->m->facts.n_vocab, 1024, &err) != SIB_OK) fail_msg("%s", err.message);
        if (d && d->ops->state_new(d, &lanes[i].draft, &err) != SIB_OK) fail_msg("%s", err.message);
        sib_policy_init(&lanes[i].policy, SIB_POLICY_FIXED, depth);
        running[i] = &lanes[i];
    }
    while (left > 0) {
        if (sib_round_step(round, running, left, &err) != SIB_OK) fail_msg("%s", err.message);
        for (int i = 0; i < left;)
            if (running[i]->emitted == ANSWER)
                running[i] = running[--left];
            else
                i++;
    }
    for (int i = 0; i < LANES; i++) {
        memcpy(out[i], lanes[i].tokens + lanes[i].n_tokens - ANSWER, ANSWER * sizeof **out);
        accepted += (int)lanes[i].policy.kept;
        if (d) d->ops->state_free(d, lanes[i].draft);
        r->m->ops->seq_free(r->m, lanes[i].seq);
        sib_sampler_free(lanes[i].sampler);
        free(lanes[i].tokens);
    }
    sib_round_free(round);
    return accepted;
}

static void drafting_changes_no_token(void **state)
{
    (void)state;
    static const int depths[] = {1, 3, 7}, chunks[] = {4, 11, 256};
    static int32_t want[LANES][ANSWER], got[LANES][ANSWER];
    for (int sampled = 0; sampled < 2; sampled++)
        for (int mode = SIB_NUM_BF16; mode <= SIB_NUM_INT8; mode++) {
            rig plain = rig_open((sib_numerics)mode, 1, LANES);
            (void)answers(&plain, NULL, 0, sampled ? 0.9 : 0, 256, want);
            rig_close(&plain);
            for (int use = SIB_MTP_DENSE; use <= SIB_MTP_INDEXED; use++) {
                rig r = rig_open_at(CASE, (sib_numerics)mode, 2, LANES, (sib_mtp_use)use);
                for (int v = 0; v < 3; v++) {
                    sib_drafter *d;
                    sib_err err = {0};
                    sib_drafter_options o = {.n_seqs = LANES, .max_draft = 8, .mtp_decode_only = v == 1, .mtp_raw_chain = v == 2};
                    if (sib_native_drafter_open(&d, r.m, &o, &err) != SIB_OK) fail_msg("%s", err.message);
                    assert_int_equal(d->default_draft, 3);
                    (void)answers(&r, d, depths[v], sampled ? 0.9 : 0, chunks[v], got);
                    for (int i = 0; i < LANES; i++)
                        for (int t = 0; t < ANSWER; t++)
                            if (want[i][t] != got[i][t]) fail_msg("mode %d use %d variant %d request %d: token %d is %d, without drafts %d", mode, use, v, i, t, got[i][t], want[i][t]);
                    d->ops->free(d);
                }
                rig_close(&r);
            }
        }
}

/* What the drafter proposes does not depend on how its history was told, nor on proposals that were dropped. */
static void drafts_do_not_depend_on_the_telling(void **state)
{
    (void)state;
    enum { N = 50, D = 5 };
    rig r = rig_open_at(CASE, SIB_NUM_BF16, 1, 2, SIB_MTP_DENSE);
    sib_drafter *d;
    sib_err err = {0};
    sib_drafter_options o = {.n_seqs = 2, .max_draft = 8};
    int32_t ids[N + 1], want[D], got[D];
    size_t h = (size_t)r.m->facts.hidden;
    sib_forward_out out;
    sib_draft_state *whole, *pieces;
    random_ids(ids, N + 1, r.m->facts.n_vocab, 77);
    assert_int_equal(sib_native_drafter_open(&d, r.m, &o, &err), SIB_OK);
    assert_int_equal(d->ops->state_new(d, &whole, &err), SIB_OK);
    assert_int_equal(d->ops->state_new(d, &pieces, &err), SIB_OK);
    sib_seq *s = seq_new(&r);
    forward(&r, &(sib_part){.seq = s, .ids = ids, .n_rows = N}, 1, &out);
    keep(&r, s, N);
    assert_int_equal(d->ops->settle(d, &(sib_settle){.state = whole, .seq = s, .ids = ids, .n = N, .next = ids[N], .hidden = out.hidden}, 1, &err), SIB_OK);
    sib_propose p = {.state = whole, .seq = s, .pending = ids[N], .position = N, .max = D, .ids = want};
    assert_int_equal(d->ops->propose(d, &p, 1, &err), SIB_OK);
    assert_int_equal(p.n, D);
    for (int at = 0, step = 1; at < N; step = 1 + step % 4) {
        int n = step < N - at ? step : N - at;
        sib_propose q = {.state = pieces, .seq = s, .pending = ids[at], .position = at, .max = D, .ids = got};
        if (step % 2) assert_int_equal(d->ops->propose(d, &q, 1, &err), SIB_OK);
        if (at == 0) assert_int_equal(q.n, 0); /* nothing is known yet */
        assert_int_equal(d->ops->settle(d, &(sib_settle){.state = pieces, .seq = s, .ids = ids + at, .n = n, .pos0 = at, .next = ids[at + n], .hidden = out.hidden + (size_t)at * h}, 1, &err), SIB_OK);
        at += n;
    }
    for (int again = 0; again < 2; again++) {
        p = (sib_propose){.state = pieces, .seq = s, .pending = ids[N], .position = N, .max = D, .ids = got};
        assert_int_equal(d->ops->propose(d, &p, 1, &err), SIB_OK);
        assert_memory_equal(want, got, sizeof want);
    }
    /* After going back it starts over, and says so. */
    assert_int_equal(d->ops->truncate(d, pieces, N, &err), SIB_OK);
    assert_int_equal(d->ops->truncate(d, pieces, N - 3, &err), SIB_ESTATE);
    p.position = N - 3;
    assert_int_equal(d->ops->propose(d, &p, 1, &err), SIB_OK);
    assert_int_equal(p.n, 0);
    d->ops->state_free(d, whole);
    d->ops->state_free(d, pieces);
    r.m->ops->seq_free(r.m, s);
    d->ops->free(d);
    rig_close(&r);
}

/* ---- refusals -------------------------------------------------------------------------------------- */

static void configs_that_are_not_built_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *part;
    } cases[] = {
        {"scoring_func", "\"softmax\"", "scoring_func"},
        {"topk_method", "\"greedy\"", "topk_method"},
        {"hidden_act", "\"gelu\"", "hidden_act"},
        {"attention_bias", "true", "attention_bias"},
        {"mlp_bias", "true", "mlp_bias"},
        {"qk_head_dim", "41", "qk_head_dim 41"},
        {"kv_lora_rank", "36", "kv_lora_rank 36"},
        {"kv_lora_rank", "1024", "kv_lora_rank 1024"},
        {"index_head_dim", "8", "index_head_dim 8"},
        {"num_experts_per_tok", "9", "num_experts_per_tok 9"},
        {"n_group", "3", "n_group 3"},
        {"indexer_types", "[\"full\"]", "indexer_types must have 3 entries (got 1)"},
        {"indexer_types", "[\"shared\",\"full\",\"full\"]", "Shared DSA layers require top-k indices from a previous full indexer layer"},
        {"mlp_layer_types", "[\"dense\",\"dense\",\"other\"]", "mlp_layer_types[2]"},
        {"rope_parameters", "{\"rope_type\":\"yarn\",\"rope_theta\":1e6}", "yarn"},
        {"hidden_size", "null", "hidden_size"},
    };
    json_t *config = json_load_file(CASE "/config.json", 0, NULL);
    assert_non_null(config);
    for (size_t i = 0; i < SIB_COUNT(cases); i++) {
        json_t *changed = json_deep_copy(config);
        glm_config c;
        sib_err err = {0};
        json_object_set_new(changed, cases[i].key, json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        sib_status s = glm_config_read(&c, changed, &err);
        glm_config_deinit(&c);
        json_decref(changed);
        if (s == SIB_OK || !strstr(err.message, cases[i].part)) fail_msg("%s %s: %s", cases[i].key, cases[i].value, s == SIB_OK ? "accepted" : err.message);
    }
    json_decref(config);
}

/* Which layers have an indexer when no list says so (glm_moe_dsa.md 1, G2). */
static void indexers_follow_frequency_and_pattern(void **state)
{
    (void)state;
    static const struct {
        const char *extra, *want;
    } cases[] = {{"\"index_topk_freq\":4,\"index_skip_topk_offset\":3", "FFFSSSFSSS"}, {"\"index_topk_pattern\":\"FSFSFSFSFF\"", "FSFSFSFSFF"}, {"\"x\":0", "FFFFFFFFFF"}};
    for (size_t i = 0; i < SIB_COUNT(cases); i++) {
        char text[512];
        glm_config c;
        sib_err err = {0};
        (void)snprintf(text, sizeof text, "{\"hidden_size\":64,\"num_hidden_layers\":10,\"num_attention_heads\":4,\"intermediate_size\":96,%s}", cases[i].extra);
        json_t *t = json_loads(text, 0, NULL);
        if (glm_config_read(&c, t, &err) != SIB_OK) fail_msg("%s", err.message);
        for (int l = 0; l < 10; l++) {
            assert_int_equal(c.full[l], cases[i].want[l] == 'F');
            assert_int_equal(c.sparse[l], l >= 3);
        }
        glm_config_deinit(&c);
        json_decref(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_and_threads_change_no_bit),       cmocka_unit_test(neighbours_change_no_bit),
        cmocka_unit_test(rejected_rows_leave_nothing),            cmocka_unit_test(taps_are_the_residual_stream),
        cmocka_unit_test(a_planned_model_has_the_same_memory),    cmocka_unit_test(mlx_names_give_the_same_bits),
        cmocka_unit_test(head_rows_do_not_depend_on_the_call),    cmocka_unit_test(drafting_changes_no_token),
        cmocka_unit_test(drafts_do_not_depend_on_the_telling),    cmocka_unit_test(configs_that_are_not_built_are_refused),
        cmocka_unit_test(indexers_follow_frequency_and_pattern),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

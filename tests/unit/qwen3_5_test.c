/* tests/unit/qwen3_5_test.c - promises of the Qwen3.5 family and its companion: a row's logits have the same bits however its
 * prompt was cut, on any number of threads, beside any neighbours; a recurrent state goes back as if drafts had never been;
 * every naming of the same weights is the same model; drafting never changes a token. */
#include "base/rng.h"
#include "drafters/qwen_mtp.h"
#include "engine/registry.h"
#include "models/qwen3_5/qwen3_5.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tiny_qwen.h"

#define MAX_BLOCK 9

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
    sib_model_limits limits = {.n_ctx = 512, .n_seqs = n_seqs, .max_rows = 256, .max_logits = 256, .max_block = MAX_BLOCK};
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

static void feed(rig *r, sib_seq *s, const int32_t *ids, int n)
{
    sib_forward_out out;
    forward(r, &(sib_part){.seq = s, .ids = ids, .n_rows = n}, 1, &out);
    keep(r, s, n);
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

static void expect_equal(const float *a, const float *b, size_t n, size_t width, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a)) fail_msg("%s: row %zu column %zu: %.9g and %.9g", what, i / width, i % width, (double)a[i], (double)b[i]);
}

/* Two golden checkpoints and a tiny one with experts, written at setup. */
static char moe_dir[256];
static const char *const folders[] = {"tests/golden/cases/q4-qwen3_5", "tests/golden/cases/qwen3_5-mtp/target", moe_dir};

static int setup(void **state)
{
    (void)state;
    tiny_write(&(tiny_qwen){.naming = TINY_RELEASE, TINY_T3, .mtp = true}, tiny_dir(moe_dir, "moe"));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tiny_remove(moe_dir);
    return 0;
}

/* ---- bits ------------------------------------------------------------------------------------- */

static void chunks_and_threads_change_no_bit(void **state)
{
    (void)state;
    enum { N = 140 };
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
                    char what[400];
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
    enum { SEQS = 3, N = 80 };
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

/* ---- going back -------------------------------------------------------------------------------- */

/* The committed states of all linear layers, byte for byte. */
static void expect_same_state(rig *r, const sib_seq *a, const sib_seq *b, const char *what)
{
    const qwen3_5 *m = (const qwen3_5 *)(const void *)r->m;
    assert_int_equal(sib_kv_length(a->kv), sib_kv_length(b->kv));
    const qwen3_5_config *c = &m->cfg;
    size_t conv = (size_t)(c->taps - 1) * (size_t)(2 * c->n_k_heads * c->k_dim + c->n_v_heads * c->v_dim), state = (size_t)(c->n_v_heads * c->k_dim * c->v_dim);
    for (int i = 0; i < m->n_linear; i++) {
        sib_delta_span x = qwen3_5_state_span(m, a, i, a->front, 1), y = qwen3_5_state_span(m, b, i, b->front, 1);
        expect_equal(x.conv_in, y.conv_in, conv, 1, what);
        expect_equal(x.state_in, y.state_in, state, 1, what);
    }
}

/* Windows of 1 to MAX_BLOCK rows, 0 to all of them kept: the state is that of a sequence that never drafted. */
static void rejected_rows_leave_no_byte(void **state)
{
    (void)state;
    enum { PROMPT = 20 };
    for (size_t f = 0; f < SIB_COUNT(folders); f++) {
        rig r = rig_open(folders[f], SIB_NUM_BF16, 2, 2);
        int vocab = r.m->facts.n_vocab;
        size_t v = (size_t)vocab;
        int32_t ids[PROMPT + 400], wrong[MAX_BLOCK];
        random_ids(ids, (int)SIB_COUNT(ids), vocab, 3);
        random_ids(wrong, MAX_BLOCK, vocab, 4);
        sib_seq *drafted = seq_new(&r), *plain = seq_new(&r);
        int at = 0;
        for (int rows = 1; rows <= MAX_BLOCK; rows++)
            for (int kept = 0; kept <= rows; kept++) {
                char what[400];
                sib_forward_out out;
                int32_t window[MAX_BLOCK];
                for (int i = 0; i < rows; i++) window[i] = i < kept ? ids[at + i] : wrong[i];
                forward(&r, &(sib_part){.seq = drafted, .ids = window, .n_rows = rows, .n_logits = rows}, 1, &out);
                keep(&r, drafted, kept);
                for (int i = 0; i < kept; i++) feed(&r, plain, ids + at + i, 1);
                at += kept;
                (void)snprintf(what, sizeof what, "%s: %d of %d rows kept at %d", folders[f], kept, rows, at);
                if (at > 0) expect_same_state(&r, drafted, plain, what);
            }
        /* And what follows has the same bits. */
        float *a = malloc(4 * v * sizeof *a);
        sib_forward_out out;
        forward(&r, &(sib_part){.seq = drafted, .ids = ids + at, .n_rows = 4, .n_logits = 4}, 1, &out);
        memcpy(a, out.logits, 4 * v * sizeof *a);
        forward(&r, &(sib_part){.seq = plain, .ids = ids + at, .n_rows = 4, .n_logits = 4}, 1, &out);
        expect_equal(a, out.logits, 4 * v, v, folders[f]);
        free(a);
        r.m->ops->seq_free(r.m, drafted);
        r.m->ops->seq_free(r.m, plain);
        rig_close(&r);
    }
}

/* The last block can be cut later; no further back than that, except to nothing. */
static void truncate_within_the_last_block(void **state)
{
    (void)state;
    rig r = rig_open(folders[0], SIB_NUM_F32, 1, 2);
    int32_t ids[64];
    sib_err err;
    random_ids(ids, 64, r.m->facts.n_vocab, 5);
    for (int to = 20; to <= 20 + MAX_BLOCK; to++)
        for (int rows = 1; rows <= MAX_BLOCK; rows += 4) {
            sib_seq *s = seq_new(&r), *plain = seq_new(&r);
            sib_forward_out out;
            char what[64];
            if (to > 20 + rows) {
                r.m->ops->seq_free(r.m, s);
                r.m->ops->seq_free(r.m, plain);
                continue;
            }
            (void)snprintf(what, sizeof what, "block of %d cut to %d", rows, to);
            feed(&r, s, ids, 20);
            forward(&r, &(sib_part){.seq = s, .ids = ids + 20, .n_rows = MAX_BLOCK}, 1, &out);
            keep(&r, s, rows);
            assert_int_equal(r.m->offers.keep->reach(r.m, s), 20);
            assert_int_equal(r.m->offers.keep->truncate(r.m, s, to, &err), SIB_OK);
            feed(&r, plain, ids, to);
            expect_same_state(&r, s, plain, what);
            feed(&r, s, ids + to, 3);
            feed(&r, plain, ids + to, 3);
            expect_same_state(&r, s, plain, what);
            r.m->ops->seq_free(r.m, s);
            r.m->ops->seq_free(r.m, plain);
        }
    sib_seq *s = seq_new(&r), *plain = seq_new(&r);
    feed(&r, s, ids, 20); /* longer than a block: nothing to go back to */
    assert_int_equal(r.m->offers.keep->reach(r.m, s), 20);
    assert_int_equal(r.m->offers.keep->truncate(r.m, s, 19, &err), SIB_ESTATE);
    assert_int_equal(r.m->ops->seq_length(r.m, s), 20);
    assert_int_equal(r.m->offers.keep->truncate(r.m, s, 0, &err), SIB_OK);
    feed(&r, s, ids + 7, 12);
    feed(&r, plain, ids + 7, 12);
    expect_same_state(&r, s, plain, "started over");
    r.m->ops->seq_free(r.m, s);
    r.m->ops->seq_free(r.m, plain);
    rig_close(&r);
}

static void long_blocks_are_whole_or_nothing(void **state)
{
    (void)state;
    rig r = rig_open(folders[0], SIB_NUM_F32, 1, 1);
    int32_t ids[MAX_BLOCK + 1] = {0};
    sib_seq *s = seq_new(&r);
    sib_forward_out out;
    sib_err err = {0};
    forward(&r, &(sib_part){.seq = s, .ids = ids, .n_rows = MAX_BLOCK + 1}, 1, &out);
    assert_int_equal(r.m->offers.keep->keep(r.m, s, 3, &err), SIB_ESTATE);
    assert_non_null(strstr(err.message, "at most 9 rows"));
    assert_int_equal(r.m->offers.keep->keep(r.m, s, MAX_BLOCK + 2, &err), SIB_EARG);
    keep(&r, s, MAX_BLOCK + 1); /* nothing had changed */
    assert_int_equal(r.m->ops->seq_length(r.m, s), MAX_BLOCK + 1);
    r.m->ops->seq_free(r.m, s);
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
    feed(&r, s, ids, 256);
    feed(&r, s, ids, 256);
    assert_int_equal(r.m->ops->forward(r.m, &(sib_part){.seq = s, .ids = ids, .n_rows = 1}, 1, &out, &err), SIB_ECAPACITY);
    r.m->ops->seq_free(r.m, s);
    rig_close(&r);
}

/* What a planning device counts is what a real one takes, states included. */
static void memory_is_planned_exactly(void **state)
{
    (void)state;
    for (size_t f = 0; f < SIB_COUNT(folders); f++) {
        rig r = rig_open(folders[f], SIB_NUM_BF16, 1, 3);
        sib_err err = {0};
        sib_nothing nothing;
        sib_model *planned = NULL;
        sib_model_limits limits = {.n_ctx = 512, .n_seqs = 3, .max_rows = 256, .max_logits = 256, .max_block = MAX_BLOCK};
        sib_nothing_init(&nothing, r.dev);
        sib_loader l = {.dev = &nothing.device, .files = r.files};
        tiny_ok(sib_family_for(r.files, &err)->open(&planned, &l, &limits, &err), &err);
        assert_memory_equal(&planned->memory, &r.m->memory, sizeof r.m->memory);
        planned->ops->free(planned);
        limits.n_seqs = 1;
        l = (sib_loader){.dev = &nothing.device, .files = r.files};
        tiny_ok(sib_family_for(r.files, &err)->open(&planned, &l, &limits, &err), &err);
        const qwen3_5 *m = (const qwen3_5 *)(const void *)r.m;
        assert_true(r.m->memory.cache - planned->memory.cache >= 2 * m->slot_floats * sizeof(float));
        planned->ops->free(planned);
        rig_close(&r);
    }
}

/* ---- namings ----------------------------------------------------------------------------------- */

static float *logits_of(const tiny_qwen *q, const int32_t *ids, int n)
{
    char dir[256];
    tiny_write(q, tiny_dir(dir, "naming"));
    rig r = rig_open(dir, SIB_NUM_F32, 1, 1);
    float *all = logits_in_chunks(&r, ids, n, n);
    rig_close(&r);
    tiny_remove(dir);
    return all;
}

/* The same weights under every naming, expert form, with and without a companion inside: the same logits. */
static void every_naming_is_the_same_model(void **state)
{
    (void)state;
    enum { N = 70, VOCAB = 256 };
    static const tiny_qwen models[] = {{TINY_T1}, {TINY_T2}, {TINY_T3}, {TINY_T3, .ties = true}};
    int32_t ids[N];
    random_ids(ids, N, VOCAB, 1);
    for (size_t k = 0; k < SIB_COUNT(models); k++) {
        float *want = NULL;
        for (int naming = TINY_RELEASE; naming <= TINY_MLX; naming++)
            for (int form = TINY_FUSED; form <= (models[k].experts ? TINY_SWITCH : TINY_FUSED); form++)
                for (int mtp = 0; mtp < 2; mtp++) {
                    tiny_qwen q = models[k];
                    char what[96];
                    q.naming = (tiny_naming)naming;
                    q.expert_form = (tiny_experts)form;
                    q.mtp = mtp;
                    float *got = logits_of(&q, ids, N);
                    (void)snprintf(what, sizeof what, "model %zu naming %d experts %d mtp %d", k, naming, form, mtp);
                    if (want)
                        expect_equal(want, got, (size_t)N * VOCAB, VOCAB, what);
                    else
                        want = got;
                    if (got != want) free(got);
                }
        for (size_t i = 0; i < (size_t)N * VOCAB; i++) assert_true(want[i] == want[i] && want[i] < 1e6f && want[i] > -1e6f);
        free(want);
    }
}

/* Config values that no code here can serve, or that contradict each other, and tensors of another shape: a sentence that
 * names the key or tensor, no crash. */
static void bad_checkpoints_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key, *json; /* json NULL: the key goes away */
        sib_status status;
        const char *says;
    } cases[] = {
        {"hidden_size", NULL, SIB_EFORMAT, "hidden_size"},
        {"hidden_size", "65", SIB_EFORMAT, "embed_tokens"},
        {"num_hidden_layers", "100000", SIB_EFORMAT, "num_hidden_layers"},
        {"num_hidden_layers", "9", SIB_EFORMAT, "layer_types"},
        {"num_key_value_heads", "3", SIB_EFORMAT, "num_key_value_heads 3"},
        {"head_dim", "12", SIB_EUNSUPPORTED, "head_dim 12"},
        {"linear_num_value_heads", "3", SIB_EFORMAT, "linear_num_value_heads 3"},
        {"linear_conv_kernel_dim", "1", SIB_EFORMAT, "linear_conv_kernel_dim"},
        {"linear_conv_kernel_dim", "5", SIB_EFORMAT, "conv1d"},
        {"linear_key_head_dim", "1e9", SIB_EFORMAT, "linear_key_head_dim"},
        {"layer_types", "[\"linear_attention\",\"mamba\",1,2,3,4,5,6]", SIB_EUNSUPPORTED, "layer_types[1]"},
        {"layer_types", "[\"linear_attention\",\"linear_attention\",\"linear_attention\",\"linear_attention\",\"linear_attention\",\"linear_attention\","
                        "\"linear_attention\",\"linear_attention\"]", SIB_EUNSUPPORTED, "full_attention"},
        {"rope_parameters", "{\"rope_type\":\"yarn\",\"rope_theta\":1e7}", SIB_EUNSUPPORTED, "yarn"},
        {"rope_parameters", "{\"rope_type\":\"default\"}", SIB_EFORMAT, "rope_theta"},
        {"rope_parameters", "{\"rope_theta\":1e7,\"partial_rotary_factor\":0.1}", SIB_EFORMAT, "partial_rotary_factor"},
        {"num_experts", "4", SIB_EFORMAT, "mlp.gate"},
        {"num_experts_per_tok", "9", SIB_EFORMAT, "num_experts_per_tok"},
        {"moe_intermediate_size", "31", SIB_EFORMAT, "experts"},
        {"hidden_act", "\"relu\"", SIB_EUNSUPPORTED, "relu"},
        {"attention_bias", "true", SIB_EUNSUPPORTED, "attention_bias"},
        {"rms_norm_eps", "\"small\"", SIB_EFORMAT, "rms_norm_eps"},
    };
    char dir[256], path[300];
    tiny_write(&(tiny_qwen){.naming = TINY_RELEASE, TINY_T3}, tiny_dir(dir, "bad"));
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    json_t *good = NULL;
    sib_err err = {0};
    tiny_ok(sib_json_read(&good, path, 1 << 20, &err), &err);
    for (size_t i = 0; i < SIB_COUNT(cases); i++) {
        json_t *bad = json_deep_copy(good), *text = json_object_get(bad, "text_config");
        if (cases[i].json)
            assert_int_equal(json_object_set_new(text, cases[i].key, json_loads(cases[i].json, JSON_DECODE_ANY, NULL)), 0);
        else
            (void)json_object_del(text, cases[i].key);
        assert_int_equal(json_dump_file(bad, path, 0), 0);
        json_decref(bad);
        sib_checkpoint *files = NULL;
        sib_device *dev = NULL;
        sib_model *m = NULL;
        tiny_ok(sib_checkpoint_open(&files, dir, NULL, &err), &err);
        tiny_ok(sib_cpu_device_new(&dev, &(sib_cpu_options){.numerics = SIB_NUM_F32, .threads = 1}, &err), &err);
        sib_loader l = {.dev = dev, .files = files};
        sib_status s = sib_family_for(files, &err)->open(&m, &l, &(sib_model_limits){.n_ctx = 64, .n_seqs = 1, .max_rows = 16}, &err);
        if (s != cases[i].status || !strstr(err.message, cases[i].says)) fail_msg("%s %s: %d %s", cases[i].key, cases[i].json ? cases[i].json : "missing", (int)s, err.message);
        assert_null(m);
        sib_checkpoint_free(files);
        sib_device_free(dev);
    }
    json_decref(good);
    tiny_remove(dir);
}

/* Decays near 0 and near 1: finite, and independent of cuts. */
static void extreme_decay(void **state)
{
    (void)state;
    enum { N = 70, VOCAB = 256 };
    static const double shifts[] = {8, -12, 60};
    int32_t ids[N];
    random_ids(ids, N, VOCAB, 2);
    for (size_t k = 0; k < SIB_COUNT(shifts); k++) {
        char dir[256];
        tiny_write(&(tiny_qwen){.naming = TINY_TEXT_ONLY, TINY_T1, .a_log = shifts[k]}, tiny_dir(dir, "decay"));
        rig r = rig_open(dir, SIB_NUM_F32, 2, 1);
        float *a = logits_in_chunks(&r, ids, N, N), *b = logits_in_chunks(&r, ids, N, 3);
        expect_equal(a, b, (size_t)N * VOCAB, VOCAB, "decay");
        for (size_t i = 0; i < (size_t)N * VOCAB; i++) assert_true(a[i] == a[i] && a[i] < 1e6f && a[i] > -1e6f);
        free(a);
        free(b);
        rig_close(&r);
        tiny_remove(dir);
    }
}

/* ---- the companion ------------------------------------------------------------------------------ */

static sib_drafter *draft_open(rig *r, const char *dir, bool pre, sib_err *err)
{
    sib_checkpoint *files = NULL;
    sib_drafter *d = NULL;
    sib_drafter_options o = {.n_seqs = 3, .max_draft = MAX_BLOCK - 1, .mtp_hidden_pre = pre};
    if (sib_checkpoint_open(&files, dir, NULL, err) != SIB_OK) fail_msg("%s", err->message);
    sib_loader l = {.dev = r->dev, .files = files};
    sib_status s = sib_drafter_open(&d, &l, r->m, &o, err);
    sib_checkpoint_free(files);
    return s == SIB_OK ? d : NULL;
}

static int32_t argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* One timeline that decodes greedily with drafts from `d`, or scripted ones where d is NULL: right (1), wrong (2), none (0). */
typedef struct lane {
    sib_seq *seq;
    sib_draft_state *state;
    int32_t text[256];
    int n, done;         /* decided, processed                    */
    const int32_t *truth; /* the plain text, for scripted drafts  */
    int script, proposed, accepted;
} lane;

static void lane_start(rig *r, sib_drafter *d, lane *l, const int32_t *prompt, int n)
{
    sib_err err = {0};
    l->seq = seq_new(r);
    if (d && d->ops->state_new(d, &l->state, &err) != SIB_OK) fail_msg("%s", err.message);
    memcpy(l->text, prompt, (size_t)n * sizeof *prompt);
    l->n = n;
    l->done = 0;
}

static void lane_stop(rig *r, sib_drafter *d, lane *l)
{
    r->m->ops->seq_free(r->m, l->seq);
    if (d) d->ops->state_free(d, l->state);
}

/* One round over lanes: prompts whole or in chunks of 5, then windows of differing depths. */
static void round_of(rig *r, sib_drafter *d, lane *lanes, int n, int depth)
{
    sib_err err = {0};
    int32_t window[3][MAX_BLOCK];
    sib_propose ask[3];
    sib_part parts[3];
    sib_settle told[3];
    int n_ask = 0, of[3], drafts[3] = {0}, v = r->m->facts.n_vocab, row = 0, logit = 0;
    for (int i = 0; i < n; i++)
        if (d && depth > 0 && lanes[i].n - lanes[i].done == 1) {
            of[n_ask] = i;
            ask[n_ask++] = (sib_propose){.state = lanes[i].state, .seq = lanes[i].seq, .pending = lanes[i].text[lanes[i].n - 1], .position = lanes[i].done, .max = 1 + (depth + i) % depth, .ids = window[i] + 1};
        }
    if (n_ask && d->ops->propose(d, ask, n_ask, &err) != SIB_OK) fail_msg("%s", err.message);
    for (int k = 0; k < n_ask; k++) drafts[of[k]] = ask[k].n;
    for (int i = 0; i < n; i++) {
        lane *l = &lanes[i];
        int left = l->n - l->done;
        if (left > 1) {
            int rows = left < 5 ? left : 5;
            parts[i] = (sib_part){.seq = l->seq, .ids = l->text + l->done, .n_rows = rows, .n_logits = rows == left};
            continue;
        }
        if (!d && l->script)
            for (drafts[i] = 0; drafts[i] < depth; drafts[i]++) window[i][1 + drafts[i]] = l->script == 1 ? l->truth[l->n + drafts[i]] : (l->truth[l->n + drafts[i]] + 1) % v;
        window[i][0] = l->text[l->n - 1];
        parts[i] = (sib_part){.seq = l->seq, .ids = window[i], .n_rows = 1 + drafts[i], .n_logits = 1 + drafts[i]};
    }
    sib_forward_out out;
    forward(r, parts, n, &out);
    const float *taps = r->m->offers.taps->rows(r->m);
    for (int i = 0; i < n; i++) {
        lane *l = &lanes[i];
        int kept = parts[i].n_rows;
        if (parts[i].n_logits > 0) {
            int a = 0;
            for (;; a++) {
                int32_t next = argmax(out.logits + (size_t)(logit + a) * (size_t)v, v);
                l->text[l->n++] = next;
                if (a == drafts[i] || next != window[i][1 + a]) break;
            }
            kept = parts[i].n_rows - drafts[i] + a;
            l->proposed += drafts[i];
            l->accepted += a;
        }
        keep(r, l->seq, kept);
        told[i] = (sib_settle){.state = l->state, .seq = l->seq, .ids = parts[i].n_logits ? l->text + l->done : parts[i].ids, .n = kept, .pos0 = l->done, .next = l->text[l->done + kept],
                               .prompt = parts[i].n_logits == 0, .hidden = out.hidden + (size_t)row * (size_t)r->m->facts.hidden, .taps = taps ? taps + (size_t)row * (size_t)r->m->facts.hidden : NULL};
        l->done += kept;
        row += parts[i].n_rows;
        logit += parts[i].n_logits;
    }
    if (d && d->ops->settle(d, told, n, &err) != SIB_OK) fail_msg("%s", err.message);
    for (int i = 0; d && i < n; i++) assert_int_equal(sib_qwen_mtp_rows(lanes[i].state), lanes[i].done - 1);
}

enum { PROMPT = 13, LENGTH = 90 };

static void plain_text(rig *r, const int32_t *prompt, int n, int32_t *text)
{
    lane l = {0};
    lane_start(r, NULL, &l, prompt, n);
    while (l.n < LENGTH + MAX_BLOCK) round_of(r, NULL, &l, 1, 0);
    memcpy(text, l.text, (LENGTH + MAX_BLOCK) * sizeof *text);
    lane_stop(r, NULL, &l);
}

static void drafts_change_no_token(void **state)
{
    (void)state;
    static const struct {
        const char *target, *draft;
        bool pre;
    } pairs[] = {{"tests/golden/cases/qwen3_5-mtp/target", "tests/golden/cases/qwen3_5-mtp", false},
                 {"tests/golden/cases/qwen3_5-mtp/target", "tests/golden/cases/qwen3_5-mtp", true},
                 {"tests/golden/cases/qwen3_5-mtp/target", "tests/golden/cases/qwen3_5-mtp/target", false},
                 {moe_dir, moe_dir, false}};
    for (size_t k = 0; k < SIB_COUNT(pairs); k++) {
        sib_err err = {0};
        rig r = rig_open(pairs[k].target, SIB_NUM_BF16, 2, 3);
        sib_drafter *d = draft_open(&r, pairs[k].draft, pairs[k].pre, &err);
        if (!d) fail_msg("%s", err.message);
        int32_t prompt[3][PROMPT + 2], text[3][LENGTH + MAX_BLOCK];
        lane lanes[3] = {0};
        for (int i = 0; i < 3; i++) {
            random_ids(prompt[i], PROMPT + i, r.m->facts.n_vocab, 50 + (uint64_t)i);
            plain_text(&r, prompt[i], PROMPT + i, text[i]);
        }
        /* Single lanes of every depth, then three of differing depths together. */
        for (int depth = 1; depth < MAX_BLOCK; depth += 2) {
            lane l = {0};
            lane_start(&r, d, &l, prompt[0], PROMPT);
            while (l.n < LENGTH) round_of(&r, d, &l, 1, depth);
            assert_memory_equal(l.text, text[0], LENGTH * sizeof *l.text);
            assert_true(l.proposed > 0);
            lane_stop(&r, d, &l);
        }
        for (int i = 0; i < 3; i++) lane_start(&r, d, &lanes[i], prompt[i], PROMPT + i);
        while (lanes[0].n < LENGTH || lanes[1].n < LENGTH || lanes[2].n < LENGTH) round_of(&r, d, lanes, 3, 4);
        for (int i = 0; i < 3; i++) {
            assert_memory_equal(lanes[i].text, text[i], LENGTH * sizeof *text[i]);
            lane_stop(&r, d, &lanes[i]);
        }
        d->ops->free(d);
        rig_close(&r);
    }
}

/* Always right, always wrong. */
static void scripted_drafts_change_no_token(void **state)
{
    (void)state;
    for (size_t f = 0; f < SIB_COUNT(folders); f++) {
        rig r = rig_open(folders[f], SIB_NUM_INT8, 1, 2);
        int32_t prompt[PROMPT], text[LENGTH + MAX_BLOCK];
        random_ids(prompt, PROMPT, r.m->facts.n_vocab, 60);
        plain_text(&r, prompt, PROMPT, text);
        for (int script = 1; script <= 2; script++)
            for (int depth = 1; depth < MAX_BLOCK; depth += 3) {
                lane l = {.truth = text, .script = script};
                lane_start(&r, NULL, &l, prompt, PROMPT);
                while (l.n < LENGTH) round_of(&r, NULL, &l, 1, depth);
                assert_memory_equal(l.text, text, LENGTH * sizeof *text);
                assert_int_equal(l.accepted, script == 1 ? l.proposed : 0);
                lane_stop(&r, NULL, &l);
            }
        rig_close(&r);
    }
}

/* Keys and values of the companion's rows. */
static void read_rows(sib_drafter *d, const sib_draft_state *s, float *kv, int n, size_t each)
{
    sib_qwen_mtp_read(d, s, 0, n, kv, kv + (size_t)n * each);
}

/* Split, raw and MLX-kept companions are the same one, bundled or not; and drafts leave no byte in the cache. */
static void every_companion_is_the_same(void **state)
{
    (void)state;
    char raw[256], mlx[256], split[300], bundle[256];
    tiny_qwen q = {.naming = TINY_RELEASE, TINY_T1, .mtp = true}, shifted = q, bare = q;
    sib_err err = {0};
    shifted.naming = TINY_MLX;
    bare.mtp = false;
    tiny_write(&q, tiny_dir(raw, "raw"));
    tiny_write(&shifted, tiny_dir(mlx, "mlx"));
    /* A target that bundles the companion in mtp/: the split artifact, with bare names and shifted norms. */
    tiny_write(&bare, tiny_dir(bundle, "bundle"));
    (void)snprintf(split, sizeof split, "%s/mtp", bundle);
    (void)mkdir(split, 0777);
    sib_checkpoint *from = NULL;
    sib_safetensors_writer *w = tiny_create(split, true);
    tiny_ok(sib_checkpoint_open(&from, mlx, NULL, &err), &err);
    for (size_t i = 0; i < sib_checkpoint_count(from); i++) {
        const sib_tensor_info *t = sib_checkpoint_at(from, i);
        if (strncmp(t->name, "mtp.", 4) == 0) tiny_ok(sib_safetensors_add(w, t->name + 4, t->dtype, t->rank, t->shape, t->data, &err), &err);
    }
    tiny_ok(sib_safetensors_finish(w, &err), &err);
    sib_checkpoint_free(from);
    char path[400];
    (void)snprintf(path, sizeof path, "%s/config.json", split);
    FILE *config = fopen(path, "w");
    assert_non_null(config);
    fputs("{\"model_type\":\"qwen3_5_mtp\",\"block_size\":3,\"text_config\":{\"hidden_size\":64,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,\"vocab_size\":256,"
          "\"intermediate_size\":128,\"rope_parameters\":{\"rope_theta\":1e7}}}",
          config);
    fclose(config);

    rig r = rig_open(raw, SIB_NUM_F32, 1, 3);
    const char *const dirs[] = {raw, mlx, split, bundle};
    int32_t prompt[PROMPT];
    size_t each = 2 * 32;
    float *want = NULL;
    random_ids(prompt, PROMPT, 256, 9);
    for (size_t i = 0; i < SIB_COUNT(dirs); i++)
        for (int depth = 0; depth <= 3; depth += 3) {
            sib_drafter *d = draft_open(&r, dirs[i], false, &err);
            if (!d) fail_msg("%s", err.message);
            assert_int_equal(d->default_draft, i < 2 ? 3 : 2);
            lane l = {0};
            lane_start(&r, d, &l, prompt, PROMPT);
            /* With drafts, chained rows of accepted tokens stay; here a draft is next to never accepted. */
            while (l.n < 40) round_of(&r, d, &l, 1, depth);
            int n = 30;
            float *kv = malloc(2 * (size_t)n * each * sizeof *kv);
            read_rows(d, l.state, kv, n, each);
            if (!want)
                want = kv;
            else if (l.accepted == 0)
                expect_equal(want, kv, 2 * (size_t)n * each, each, dirs[i]);
            if (kv != want) free(kv);
            lane_stop(&r, d, &l);
            d->ops->free(d);
        }
    free(want);
    rig_close(&r);
    tiny_remove(split);
    tiny_remove(bundle);
    tiny_remove(raw);
    tiny_remove(mlx);
}

/* A timeline that goes back within the last block drafts on as one that never went further. */
static void companion_follows_a_truncate(void **state)
{
    (void)state;
    rig r = rig_open("tests/golden/cases/qwen3_5-mtp/target", SIB_NUM_F32, 1, 2);
    sib_err err = {0};
    sib_drafter *d = draft_open(&r, "tests/golden/cases/qwen3_5-mtp", false, &err);
    if (!d) fail_msg("%s", err.message);
    int32_t ids[64], a[MAX_BLOCK], b[MAX_BLOCK];
    random_ids(ids, 64, r.m->facts.n_vocab, 8);
    for (int back = 0; back < 4; back++) {
        sib_seq *s[2] = {seq_new(&r), seq_new(&r)};
        sib_draft_state *t[2];
        int length = 30 - back;
        for (int k = 0; k < 2; k++) {
            sib_forward_out out;
            if (d->ops->state_new(d, &t[k], &err) != SIB_OK) fail_msg("%s", err.message);
            for (int at = 0; at < (k ? length : 30);) {
                int n = at == 0 ? 26 : (k ? length : 30) - at;
                if (n > (k ? length : 30) - at) n = (k ? length : 30) - at;
                forward(&r, &(sib_part){.seq = s[k], .ids = ids + at, .n_rows = n}, 1, &out);
                keep(&r, s[k], n);
                if (d->ops->settle(d, &(sib_settle){.state = t[k], .seq = s[k], .ids = ids + at, .n = n, .pos0 = at, .next = ids[at + n], .hidden = out.hidden}, 1, &err) != SIB_OK) fail_msg("%s", err.message);
                at += n;
            }
        }
        if (r.m->offers.keep->truncate(r.m, s[0], length, &err) != SIB_OK || d->ops->truncate(d, t[0], length, &err) != SIB_OK) fail_msg("%s", err.message);
        for (int k = 0; k < 2; k++) {
            sib_propose p = {.state = t[k], .seq = s[k], .pending = ids[length], .position = length, .max = 5, .ids = k ? b : a};
            if (d->ops->propose(d, &p, 1, &err) != SIB_OK) fail_msg("%s", err.message);
            assert_int_equal(p.n, 5);
        }
        assert_memory_equal(a, b, 5 * sizeof *a);
        /* Further back than it remembers: nothing is guessed until it is told again. */
        assert_int_equal(d->ops->truncate(d, t[0], 5, &err), SIB_ESTATE);
        sib_propose p = {.state = t[0], .seq = s[0], .pending = 1, .position = 5, .max = 5, .ids = a};
        assert_int_equal(d->ops->propose(d, &p, 1, &err), SIB_OK);
        assert_int_equal(p.n, 0);
        for (int k = 0; k < 2; k++) {
            r.m->ops->seq_free(r.m, s[k]);
            d->ops->state_free(d, t[k]);
        }
    }
    d->ops->free(d);
    rig_close(&r);
}

static void foreign_companions_are_refused(void **state)
{
    (void)state;
    sib_err err = {0};
    rig r = rig_open(folders[0], SIB_NUM_F32, 1, 1); /* hidden 128 */
    assert_null(draft_open(&r, "tests/golden/cases/qwen3_5-mtp", false, &err));
    assert_non_null(strstr(err.message, "a hidden width of 96"));
    rig_close(&r);
    r = rig_open("tests/golden/cases/gemma4-e", SIB_NUM_F32, 1, 1);
    assert_null(draft_open(&r, "tests/golden/cases/qwen3_5-mtp", false, &err));
    assert_non_null(strstr(err.message, "qwen3_5"));
    rig_close(&r);
    json_t *config = NULL;
    sib_needs needs;
    int taps[SIB_MAX_TAPS];
    tiny_ok(sib_json_read(&config, "tests/golden/cases/qwen3_5-mtp/config.json", 1 << 20, &err), &err);
    tiny_ok(sib_qwen_mtp_needs(&needs, taps, config, &err), &err);
    assert_int_equal(needs.hidden_width, 96);
    assert_int_equal(needs.n_vocab, 512);
    assert_true(needs.hidden && needs.vocab && !needs.taps);
    (void)json_object_set_new(json_object_get(config, "text_config"), "mtp_use_dedicated_embeddings", json_true());
    assert_int_equal(sib_qwen_mtp_needs(&needs, taps, config, &err), SIB_EUNSUPPORTED);
    json_decref(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_and_threads_change_no_bit),
        cmocka_unit_test(neighbours_change_no_bit),
        cmocka_unit_test(rejected_rows_leave_no_byte),
        cmocka_unit_test(truncate_within_the_last_block),
        cmocka_unit_test(long_blocks_are_whole_or_nothing),
        cmocka_unit_test(calls_beyond_the_plan_are_refused),
        cmocka_unit_test(memory_is_planned_exactly),
        cmocka_unit_test(every_naming_is_the_same_model),
        cmocka_unit_test(bad_checkpoints_are_refused),
        cmocka_unit_test(extreme_decay),
        cmocka_unit_test(drafts_change_no_token),
        cmocka_unit_test(scripted_drafts_change_no_token),
        cmocka_unit_test(every_companion_is_the_same),
        cmocka_unit_test(companion_follows_a_truncate),
        cmocka_unit_test(foreign_companions_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* tests/unit/drafters_test.c - DeepSpec, DFlash 1 and 2 and the own DSpark beside tiny targets: no drafter changes a token,
 * contexts hold exactly the committed rows, requests of a batch have the bits they have alone, what does not fit is refused
 * with its sentence, what is broken is harmless; their operations; the table in docs/DRAFTERS.md; the doctor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "drafters_rig.h"

#include "engine/doctor.h"
#include "engine/report.h"

#include <math.h>

static char qwen_target[256];
#define GEMMA_TARGET CASES "dspark-own/target"
#define GEMMA_SPEC   "{\"num_target_layers\":4}"

typedef struct pair {
    const char *name, *target, *draft;
    int block; /* longest draft */
} pair;

static pair pairs[6];
static char spec_gemma[256], spec_qwen[256]; /* fixture_path's buffers take turns */

static int setup(void **state)
{
    if (fixture_setup(state)) return -1;
    tiny_write(&(tiny_qwen){.naming = TINY_RELEASE, TINY_T1}, tiny_dir(qwen_target, "target"));
    (void)snprintf(spec_gemma, sizeof spec_gemma, "%s", variant("spec-gemma", CASES "deepspec-gemma4", GEMMA_SPEC, NULL));
    (void)snprintf(spec_qwen, sizeof spec_qwen, "%s", deepspec_qwen("spec-qwen"));
    pairs[0] = (pair){"dspark", GEMMA_TARGET, CASES "dspark-own", 4};
    pairs[1] = (pair){"dspark rnn", GEMMA_TARGET, CASES "dspark-own-rnn", 4};
    pairs[2] = (pair){"deepspec gemma", GEMMA_TARGET, spec_gemma, 5};
    pairs[3] = (pair){"deepspec qwen", qwen_target, spec_qwen, 4};
    pairs[4] = (pair){"dflash", qwen_target, CASES "dflash1", 3};
    pairs[5] = (pair){"dflash2", qwen_target, CASES "dflash2-qwen3", 7};
    return 0;
}

static int teardown(void **state)
{
    tiny_remove(qwen_target);
    return fixture_teardown(state);
}

/* ---- streams --------------------------------------------------------------------------------------- */

static void plain_texts(rig *r, text *out, double temperature)
{
    for (int i = 0; i < SEQS; i++) (void)answer(r, NULL, &out[i], i, 1, 0, temperature, NULL);
}

/* The context that a whole timeline's rows give when they are settled at once must be what the rounds left. */
static void same_context(rig *r, sib_draft_state *s, const text *t, int n_done)
{
    const sib_block *b = (const sib_block *)(const void *)r->d;
    sib_err err = {0};
    sib_seq *seq = NULL;
    sib_draft_state *again = NULL;
    sib_forward_out f;
    assert_int_equal(sib_block_context(s), n_done);
    tiny_ok(r->m->ops->seq_new(r->m, &seq, &err), &err);
    tiny_ok(r->d->ops->state_new(r->d, &again, &err), &err);
    tiny_ok(r->m->ops->forward(r->m, &(sib_part){.seq = seq, .ids = t->ids, .n_rows = n_done}, 1, &f, &err), &err);
    tiny_ok(r->d->ops->settle(r->d, &(sib_settle){.state = again, .seq = seq, .ids = t->ids, .n = n_done, .next = -1, .hidden = f.hidden, .taps = r->m->offers.taps->rows(r->m)}, 1, &err), &err);
    size_t n = (size_t)n_done * (size_t)b->n_kv_heads * (size_t)b->head_dim;
    float *kv = malloc(4 * n * sizeof *kv);
    for (int i = 0; i < b->n_layers; i++) {
        sib_block_read(r->d, s, i, 0, n_done, kv, kv + n);
        sib_block_read(r->d, again, i, 0, n_done, kv + 2 * n, kv + 3 * n);
        assert_memory_equal(kv, kv + 2 * n, 2 * n * sizeof *kv);
    }
    free(kv);
    r->d->ops->state_free(r->d, again);
    r->m->ops->seq_free(r->m, seq);
}

static void check_pair(const pair *p, sib_numerics numerics, int threads)
{
    static text plain[SEQS], drafted[SEQS];
    rig r;
    rig_open(&r, p->target, p->draft, numerics, threads);
    assert_int_equal(r.d->max_draft, p->block);
    for (int t = 0; t < 2; t++) {
        double temperature = t ? 0.8 : 0;
        plain_texts(&r, plain, temperature);
        for (guesses script = AS_IT_IS; script <= MIXED; script++)
            for (int depth = 1; depth <= p->block; depth++) {
                rigged g = rigged_new(r.d, script, r.m->facts.n_vocab);
                int n = 1 + (depth * 3 + (int)script * 2 + t) % SEQS, first = SEQS - n;
                for (int i = 0; i < n; i++) {
                    g.truth[i] = plain[first + i].ids;
                    g.length[i] = plain[first + i].n;
                }
                int accepted = answer(&r, &g, drafted, first, n, depth, temperature, same_context);
                expect_texts(plain + first, drafted, n, p->name, depth);
                if (script == WRONG) assert_int_equal(accepted, 0);
                if (script == RIGHT) assert_true(accepted >= n * (ANSWER - 1 - (ANSWER - 1 + depth) / (depth + 1)));
            }
    }
    rig_close(&r);
}

static void drafts_change_no_token(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIB_COUNT(pairs); i++) check_pair(&pairs[i], SIB_NUM_BF16, 1);
}

static void drafts_change_no_token_in_f32_on_two_threads(void **state)
{
    (void)state;
    check_pair(&pairs[0], SIB_NUM_F32, 2);
    check_pair(&pairs[5], SIB_NUM_F32, 2);
}

/* A full batch, every lane of it. */
static void batch_of_eight(void **state)
{
    static text plain[SEQS], drafted[SEQS];
    (void)state;
    for (size_t i = 0; i < SIB_COUNT(pairs); i++) {
        rig r;
        rig_open(&r, pairs[i].target, pairs[i].draft, SIB_NUM_BF16, 1);
        plain_texts(&r, plain, 0.8);
        rigged g = rigged_new(r.d, AS_IT_IS, r.m->facts.n_vocab);
        (void)answer(&r, &g, drafted, 0, SEQS, pairs[i].block, 0.8, same_context);
        expect_texts(plain, drafted, SEQS, pairs[i].name, pairs[i].block);
        rig_close(&r);
    }
}

/* ---- rows of a batch, chunks of a context ------------------------------------------------------------ */

/* Random taps that stand for n rows of a target. */
static float *random_taps(const rig *r, int n, uint64_t seed)
{
    const sib_needs *needs = r->d->ops->needs(r->d);
    size_t count = (size_t)n * (size_t)needs->n_taps * (size_t)needs->hidden_width;
    float *v = malloc(count * sizeof *v);
    for (size_t i = 0; i < count; i++) v[i] = (float)((double)(sib_splitmix64(&seed) >> 40) / 8388608.0 - 1);
    return v;
}

static sib_draft_state *context_of(rig *r, const float *taps, int n, int chunk)
{
    const sib_needs *needs = r->d->ops->needs(r->d);
    sib_draft_state *s = NULL;
    sib_err err = {0};
    tiny_ok(r->d->ops->state_new(r->d, &s, &err), &err);
    for (int done = 0; done < n; done += chunk) {
        int rows = n - done < chunk ? n - done : chunk;
        tiny_ok(r->d->ops->settle(r->d, &(sib_settle){.state = s, .n = rows, .pos0 = done, .next = -1, .taps = taps + (size_t)done * (size_t)needs->n_taps * (size_t)needs->hidden_width}, 1, &err), &err);
    }
    return s;
}

/* What a round computed: the last rows of the network, in the order of its rows. */
typedef struct seen {
    float values[4096];
    int n;
} seen;

static void watch(void *ctx, const char *stage, int index, const float *values, int rows, int n)
{
    seen *s = ctx;
    (void)index;
    if (strcmp(stage, "draft.layer.1.out")) return;
    assert_true(rows * n <= (int)SIB_COUNT(s->values));
    memcpy(s->values, values, (size_t)(rows * n) * sizeof *values);
    s->n = rows * n;
}

static void batch_rows_are_the_rows_alone(void **state)
{
    enum { LANES = 4 };
    static const int lengths[LANES] = {1, 30, 9, 131};
    (void)state;
    for (size_t i = 0; i < SIB_COUNT(pairs); i++)
        for (int numerics = 0; numerics < 3; numerics++) {
            rig r;
            sib_err err = {0};
            static seen together, alone;
            int32_t ids[LANES][16], single[16];
            sib_propose ask[LANES];
            rig_open(&r, pairs[i].target, pairs[i].draft, (sib_numerics)numerics, 2);
            for (int k = 0; k < LANES; k++) {
                float *taps = random_taps(&r, lengths[k], (uint64_t)k + 3);
                ask[k] = (sib_propose){.state = context_of(&r, taps, lengths[k], 1000), .pending = 7 * k, .position = lengths[k], .max = 1 + (k + 1) % pairs[i].block, .ids = ids[k]};
                free(taps);
            }
            sib_block_trace(r.d, (sib_trace){watch, &together});
            tiny_ok(r.d->ops->propose(r.d, ask, LANES, &err), &err);
            sib_block_trace(r.d, (sib_trace){0});
            for (int k = 0, at = 0; k < LANES; k++) {
                sib_propose one = ask[k];
                one.ids = single;
                sib_block_trace(r.d, (sib_trace){watch, &alone});
                tiny_ok(r.d->ops->propose(r.d, &one, 1, &err), &err);
                sib_block_trace(r.d, (sib_trace){0});
                assert_int_equal(one.n, ask[k].n);
                assert_memory_equal(single, ids[k], (size_t)one.n * sizeof *single);
                assert_true(at + alone.n <= together.n);
                assert_memory_equal(alone.values, together.values + at, (size_t)alone.n * sizeof *alone.values);
                at += alone.n;
                r.d->ops->state_free(r.d, ask[k].state);
            }
            rig_close(&r);
        }
}

static void context_in_chunks_is_the_context_at_once(void **state)
{
    enum { N = 150 };
    static const int chunks[] = {1, 7, 64, 128};
    (void)state;
    for (size_t i = 0; i < SIB_COUNT(pairs); i++) {
        rig r;
        rig_open(&r, pairs[i].target, pairs[i].draft, SIB_NUM_BF16, 2);
        const sib_block *b = (const sib_block *)(const void *)r.d;
        float *taps = random_taps(&r, N, 5);
        size_t n = (size_t)8 * (size_t)b->n_kv_heads * (size_t)b->head_dim;
        float *kv = malloc(4 * n * sizeof *kv);
        sib_draft_state *whole = context_of(&r, taps, N, N);
        for (size_t c = 0; c < SIB_COUNT(chunks); c++) {
            sib_draft_state *s = context_of(&r, taps, N, chunks[c]);
            for (int layer = 0; layer < b->n_layers; layer++) { /* a ring holds the newest rows */
                sib_block_read(r.d, whole, layer, N - 8, 8, kv, kv + n);
                sib_block_read(r.d, s, layer, N - 8, 8, kv + 2 * n, kv + 3 * n);
                assert_memory_equal(kv, kv + 2 * n, 2 * n * sizeof *kv);
            }
            r.d->ops->state_free(r.d, s);
        }
        r.d->ops->state_free(r.d, whole);
        free(kv);
        free(taps);
        rig_close(&r);
    }
}

/* ---- harmless ----------------------------------------------------------------------------------------- */

static int propose_one(rig *r, sib_draft_state *s, int32_t pending, int position, int max, int32_t *ids)
{
    sib_err err = {0};
    sib_propose p = {.state = s, .pending = pending, .position = position, .max = max, .ids = ids, .n = -1};
    tiny_ok(r->d->ops->propose(r->d, &p, 1, &err), &err);
    return p.n;
}

static void broken_requests_draft_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIB_COUNT(pairs); i++) {
        rig r;
        sib_err err = {0};
        int32_t ids[16], want[16];
        rig_open(&r, pairs[i].target, pairs[i].draft, SIB_NUM_F32, 1);
        float *taps = random_taps(&r, 40, 9);
        const sib_needs *needs = r.d->ops->needs(r.d);
        size_t width = (size_t)needs->n_taps * (size_t)needs->hidden_width;
        sib_draft_state *s = context_of(&r, taps, 20, 20);
        int n = propose_one(&r, s, 5, 20, pairs[i].block, want);
        assert_true(n >= 1);
        assert_int_equal(propose_one(&r, s, -1, 20, 3, ids), 0);
        assert_int_equal(propose_one(&r, s, r.m->facts.n_vocab, 20, 3, ids), 0);
        assert_int_equal(propose_one(&r, s, INT32_MAX, 20, 3, ids), 0);
        assert_int_equal(propose_one(&r, s, 5, 19, 3, ids), 0); /* not where the context ends */
        assert_int_equal(propose_one(&r, s, 5, 21, 3, ids), 0);
        assert_int_equal(propose_one(&r, s, 5, 20, 0, ids), 0);
        assert_int_equal(sib_block_context(s), 20);
        assert_int_equal(propose_one(&r, s, 5, 20, pairs[i].block, ids), n); /* nothing of it is left */
        assert_memory_equal(ids, want, (size_t)n * sizeof *ids);

        /* Back and forth again: the same context, the same draft. */
        assert_int_equal(r.d->ops->truncate(r.d, s, 12, &err), SIB_OK);
        assert_int_equal(sib_block_context(s), 12);
        tiny_ok(r.d->ops->settle(r.d, &(sib_settle){.state = s, .n = 8, .pos0 = 12, .next = 5, .taps = taps + 12 * width}, 1, &err), &err);
        assert_int_equal(propose_one(&r, s, 5, 20, pairs[i].block, ids), n);
        assert_memory_equal(ids, want, (size_t)n * sizeof *ids);

        /* Forward to a length it was never told: empty, and it says so; then it goes on from what it is told. */
        assert_int_equal(r.d->ops->truncate(r.d, s, 33, &err), SIB_ESTATE);
        assert_int_equal(sib_block_context(s), 0);
        assert_int_equal(propose_one(&r, s, 5, 33, 3, ids), 0);
        tiny_ok(r.d->ops->settle(r.d, &(sib_settle){.state = s, .n = 5, .pos0 = 33, .next = 5, .taps = taps}, 1, &err), &err);
        assert_int_equal(sib_block_context(s), 5);
        assert_true(propose_one(&r, s, 5, 38, pairs[i].block, ids) >= 1);
        /* Rows without taps end the context. */
        tiny_ok(r.d->ops->settle(r.d, &(sib_settle){.state = s, .n = 2, .pos0 = 38, .next = 5}, 1, &err), &err);
        assert_int_equal(propose_one(&r, s, 5, 40, 3, ids), 0);
        assert_int_equal(r.d->ops->truncate(r.d, s, 0, &err), SIB_OK);
        assert_true(propose_one(&r, s, 5, 0, pairs[i].block, ids) >= 1); /* an empty timeline is complete */
        r.d->ops->state_free(r.d, s);
        free(taps);
        rig_close(&r);
    }
}

/* Far past the window and up to the end of the context: drafts all the way, then none, never an error. */
static void past_the_window_and_to_the_end(void **state)
{
    (void)state;
    rig r;
    sib_err err = {0};
    int32_t ids[16], fresh[16];
    rig_open(&r, qwen_target, CASES "dflash2-qwen3", SIB_NUM_F32, 1);
    float *taps = random_taps(&r, CONTEXT, 4);
    const sib_needs *needs = r.d->ops->needs(r.d);
    size_t width = (size_t)needs->n_taps * (size_t)needs->hidden_width;
    sib_draft_state *s = context_of(&r, taps, CONTEXT - 1, 3);
    assert_int_equal(propose_one(&r, s, 9, CONTEXT - 1, 7, ids), 7);
    /* A window of 8 sees the newest rows only: a context that begins there drafts the same. */
    sib_draft_state *late = NULL;
    tiny_ok(r.d->ops->state_new(r.d, &late, &err), &err);
    tiny_ok(r.d->ops->settle(r.d, &(sib_settle){.state = late, .n = 8, .pos0 = CONTEXT - 9, .next = 9, .taps = taps + (size_t)(CONTEXT - 9) * width}, 1, &err), &err);
    assert_int_equal(propose_one(&r, late, 9, CONTEXT - 1, 7, fresh), 7);
    assert_memory_equal(ids, fresh, 7 * sizeof *ids);
    tiny_ok(r.d->ops->settle(r.d, &(sib_settle){.state = s, .n = 20, .pos0 = CONTEXT - 1, .next = 9, .taps = taps}, 1, &err), &err); /* more than was planned */
    assert_true(propose_one(&r, s, 9, CONTEXT + 19, 7, ids) >= 0);
    r.d->ops->state_free(r.d, s);
    r.d->ops->state_free(r.d, late);
    free(taps);
    rig_close(&r);
}

/* ---- refused ------------------------------------------------------------------------------------------ */

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    const struct {
        const char *target, *draft, *patch, *sentence;
    } rows[] = {
        {"gemma", "deepspec-gemma4", "{}", "DeepSpec drafter was trained for a 5-layer target; this model has 4 layers — wrong (target, drafter) pairing"},
        {"gemma", "dflash2-qwen3", "{}", "DFlash 2 drafter was made for a target with a hidden width of 64; this model has 32"},
        {"qwen", "dflash2-qwen3", "{\"num_target_layers\":64}", "DFlash 2 drafter was trained for a 64-layer target; this model has 8 layers — wrong (target, drafter) pairing"},
        {"qwen", "dflash1", "{\"vocab_size\":300}", "DFlash drafter was made for a target with a vocabulary of 300; this model has 256"},
        {"qwen", "dspark-own", "{}", "DSpark drafter was made for a target with a hidden width of 32; this model has 64"},
        {"gemma", "dspark-own", "{\"config\":{\"tapLayers\":[1,3,9]}}", "DSpark drafter taps layer 9; this model has 4 layers"},
        {"qwen", "dflash2-qwen3", "{\"dflash_config\":{\"mask_token_id\":null}}", "key \"mask_token_id\" is missing"},
        {"qwen", "dflash2-qwen3", "{\"dflash_config\":{\"mask_token_id\":256}}", "\"mask_token_id\""},
        {"qwen", "dflash2-qwen3", "{\"dflash_config\":{\"mask_token_id\":-1}}", "\"mask_token_id\""},
        {"qwen", "dflash2-qwen3", "{\"dflash_config\":{\"block_size\":null}}", "key \"block_size\" is missing"},
        {"qwen", "dflash2-qwen3", "{\"dflash_config\":{\"conv_kernel_size\":3}}", "conv_kernel_size 3 not implemented (two-tap only)"},
        {"qwen", "dflash2-qwen3", "{\"dflash_config\":{\"conv_group_size\":24}}", "conv_group_size 24 does not divide hidden_size 64"},
        {"qwen", "dflash2-qwen3", "{\"dflash_config\":{\"target_layer_ids\":[]}}", "target_layer_ids must list the target layers"},
        {"qwen", "dflash2-qwen3", "{\"dflash_config\":{\"target_layer_ids\":[1,8]}}", "target_layer_ids[1] is no layer index from 0 to 7"},
        {"qwen", "dflash2-qwen3", "{\"rope_parameters\":{\"rope_type\":\"yarn\"}}", "only default RoPE is implemented"},
        {"qwen", "dflash1", "{\"rope_theta\":null}", "key \"rope_theta\" is missing"},
        {"qwen", "dflash1", "{\"rope_scaling\":{\"type\":\"linear\"}}", "only default RoPE is implemented"},
        {"qwen", "dflash1", "{\"hidden_act\":\"gelu\"}", "hidden_act \"gelu\" is not supported"},
        {"qwen", "dflash1", "{\"attention_bias\":true}", "attention_bias true is not supported"},
        {"qwen", "dflash1", "{\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", "layer 1 is sliding_attention but there is no sliding_window"},
        {"qwen", "dflash1", "{\"layer_types\":[\"full_attention\"]}", "layer_types must list 2 layers"},
        {"qwen", "dflash1", "{\"head_dim\":12}", "heads of 12 dimensions"},
        {"qwen", "dflash1", "{\"num_key_value_heads\":3}", "4 attention heads do not share 3 KV heads"},
        {"qwen", "dflash1", "{\"architectures\":[\"DFlash2DraftModel\"]}", "layers.0.attention_conv.base_kernel"},
        {"qwen", "dflash1", "{\"num_hidden_layers\":3,\"layer_types\":null}", "layers.2.input_layernorm.weight"},
        {"gemma", "deepspec-gemma4", "{\"num_target_layers\":4,\"target_layer_ids\":null}", "target_layer_ids must list the target layers"},
        {"gemma", "deepspec-gemma4", "{\"num_target_layers\":4,\"target_layer_ids\":[2,2]}", "target_layer_ids must rise, 2 is followed by 2"},
        {"gemma", "deepspec-gemma4", "{\"num_target_layers\":4,\"target_layer_ids\":[1,4]}", "target_layer_ids[1] is no layer index from -1 to 3"},
        {"gemma", "deepspec-gemma4", "{\"num_target_layers\":4,\"target_layer_ids\":[0,1,2]}", "fc.weight"},
        {"gemma", "deepspec-gemma4", "{\"num_target_layers\":4,\"attention_k_eq_v\":false}", "attention_k_eq_v false is not supported"},
        {"gemma", "deepspec-gemma4", "{\"num_target_layers\":4,\"markov_head_type\":\"gated\"}", "markov_head_type \"gated\" is not supported"},
        {"gemma", "deepspec-gemma4", "{\"num_target_layers\":4,\"hidden_activation\":\"silu\"}", "hidden_activation \"silu\" is not supported"},
        {"gemma", "deepspec-gemma4", "{\"num_target_layers\":4,\"layer_types\":[\"full_attention\"]}", "layer_types must list 2 layers"},
        {"gemma", "deepspec-gemma4", "{\"num_target_layers\":4,\"mask_token_id\":64}", "\"mask_token_id\""},
        {"gemma", "deepspec-gemma4", "{\"num_target_layers\":4,\"mask_token_id\":null}", "key \"mask_token_id\" is missing"},
        {"gemma", "deepspec-gemma4", "{\"num_target_layers\":4,\"enable_confidence_head\":false,\"confidence_threshold\":0.5}", "without a confidence head"},
        {"gemma", "deepspec-gemma4", "{\"num_target_layers\":4,\"quantization_config\":{\"quant_method\":\"awq\"}}", "quant_method \"awq\" is not supported"},
        {"gemma", "dspark-own", "{\"variant\":null}", "v1 single-vector checkpoint (variant absent), superseded, not serveable"},
        {"gemma", "dspark-own", "{\"variant\":\"v1\"}", "v1 single-vector checkpoint (variant \"v1\"), superseded, not serveable"},
        {"gemma", "dspark-own", "{\"variant\":\"dspark3\"}", "variant \"dspark3\" is not known"},
        {"gemma", "dspark-own", "{\"config\":{\"nHeads\":3}}", "dDraft 16 is not divisible by nHeads 3"},
        {"gemma", "dspark-own", "{\"config\":{\"seqHead\":\"lstm\"}}", "seqHead \"lstm\" is not known"},
        {"gemma", "dspark-own", "{\"config\":{\"seqHead\":\"rnn\"}}", "rnn.wH"},
        {"gemma", "dspark-own", "{\"config\":{\"gamma\":3,\"sts\":null}}", "block_pos"},
        {"gemma", "dspark-own", "{\"config\":{\"sts\":{\"thresholds\":[0,\"x\"]}}}", "sts.thresholds[1] is not a number"},
        {"gemma", "dspark-own", "{\"dims\":null}", "objects \"config\" and \"dims\" are needed"},
    };
    rig gemma, qwen;
    rig_target(&gemma, GEMMA_TARGET, SIB_NUM_F32, 1);
    rig_target(&qwen, qwen_target, SIB_NUM_F32, 1);
    for (size_t i = 0; i < SIB_COUNT(rows); i++) {
        char from[128];
        sib_err err = {0};
        rig *r = rows[i].target[0] == 'g' ? &gemma : &qwen;
        (void)snprintf(from, sizeof from, CASES "%s", rows[i].draft);
        sib_status s = rig_drafter(r, variant(strstr(rows[i].draft, "dspark") ? "dspark-refused" : "refused", from, rows[i].patch, NULL), &(sib_drafter_options){.n_seqs = 2, .max_draft = 8}, &err);
        if (s == SIB_OK) fail_msg("%s with %s was not refused", rows[i].draft, rows[i].patch);
        if (!strstr(err.message, rows[i].sentence)) fail_msg("%s with %s: \"%s\" lacks \"%s\"", rows[i].draft, rows[i].patch, err.message, rows[i].sentence);
        rig_drop_drafter(r);
    }
    /* A target that lacks a port. */
    sib_err err = {0};
    qwen.m->offers.vocab = NULL;
    assert_int_not_equal(rig_drafter(&qwen, CASES "dflash1", &(sib_drafter_options){.n_seqs = 1, .max_draft = 8}, &err), SIB_OK);
    assert_non_null(strstr(err.message, "target graph does not provide vocab"));
    rig_drop_drafter(&qwen);
    gemma.m->offers.taps = NULL;
    assert_int_not_equal(rig_drafter(&gemma, pairs[2].draft, &(sib_drafter_options){.n_seqs = 1, .max_draft = 8}, &err), SIB_OK);
    assert_non_null(strstr(err.message, "target graph does not provide taps"));
    rig_close(&gemma);
    rig_close(&qwen);
}

/* What published files vary in is accepted: flat keys, absent taps, legacy stamps. */
static void what_files_vary_in_is_accepted(void **state)
{
    (void)state;
    const struct {
        const char *draft, *patch;
        int max_draft;
    } rows[] = {
        {"dflash2-qwen3", "{\"dflash_config\":{\"block_size\":null},\"block_size\":5}", 4},
        {"dflash2-qwen3", "{\"dflash_config\":{\"selector_top_k\":1}}", 7},
        {"dflash2-qwen3", "{\"is_causal\":null}", 7},
        {"dflash2-qwen3", "{\"final_logit_softcapping\":5.0,\"output_multiplier\":0.5,\"input_embedding_scale\":2.0}", 7},
        {"dflash1", "{\"layer_types\":null,\"rope_theta\":null,\"rope_parameters\":{\"rope_theta\":1e4}}", 3},
        {"dflash1", "{\"is_neox_style\":false}", 3},
        {"dspark-own", "{\"variant\":\"dflash\"}", 4},
    };
    for (size_t i = 0; i < SIB_COUNT(rows); i++) {
        char from[128];
        int32_t ids[16];
        rig r;
        (void)snprintf(from, sizeof from, CASES "%s", rows[i].draft);
        bool dspark = strstr(from, "dspark") != NULL;
        rig_open(&r, dspark ? GEMMA_TARGET : qwen_target, variant(dspark ? "dspark-varied" : "varied", from, rows[i].patch, NULL), SIB_NUM_BF16, 1);
        assert_int_equal(r.d->max_draft, rows[i].max_draft);
        float *taps = random_taps(&r, 9, 1);
        sib_draft_state *s = context_of(&r, taps, 9, 9);
        assert_true(propose_one(&r, s, 3, 9, rows[i].max_draft, ids) >= 1);
        r.d->ops->state_free(r.d, s);
        free(taps);
        rig_close(&r);
    }
}

/* ---- draft length --------------------------------------------------------------------------------------- */

static void zero_confidence(const char *name, float *v, int64_t n)
{
    if (strstr(name, "confidence") || strncmp(name, "conf.", 5) == 0) memset(v, 0, (size_t)n * sizeof *v);
}

/* With a zero head every confidence is 0.5 (drafters_kv.md 2.9). */
static void confidence_ends_the_draft(void **state)
{
    static const struct {
        const char *draft, *patch;
        double min;
        int n;
    } rows[] = {
        {"deepspec-gemma4", "{\"num_target_layers\":4,\"confidence_threshold\":0.6}", 0, 0},
        {"deepspec-gemma4", "{\"num_target_layers\":4,\"confidence_threshold\":0.4}", 0, 5},
        {"deepspec-gemma4", "{\"num_target_layers\":4,\"confidence_threshold\":0.5}", 0, 5}, /* strictly below */
        {"deepspec-gemma4", "{\"num_target_layers\":4}", 0, 5},
        {"deepspec-gemma4", "{\"num_target_layers\":4}", 0.6, 0},
        {"deepspec-gemma4", "{\"num_target_layers\":4,\"confidence_threshold\":0}", 0.6, 5}, /* the checkpoint's word */
        {"dspark-own", "{\"config\":{\"sts\":null}}", 0, 4},
        {"dspark-own", "{\"config\":{\"sts\":null}}", 0.6, 1}, /* the first guess stays */
        {"dspark-own", "{\"config\":{\"sts\":{\"thresholds\":[1,0,0.4,0.6]}}}", 0, 3},
        {"dspark-own", "{\"config\":{\"sts\":{\"thresholds\":[0,null,0]}}}", 0.6, 1},
        {"dspark-own", "{\"config\":{\"sts\":{\"thresholds\":[0,0]}}}", 0.6, 2},
    };
    (void)state;
    for (size_t i = 0; i < SIB_COUNT(rows); i++) {
        char from[128];
        int32_t ids[16];
        sib_err err = {0};
        rig r;
        (void)snprintf(from, sizeof from, CASES "%s", rows[i].draft);
        const char *dir = variant(strstr(from, "dspark") ? "dspark-sure" : "sure", from, rows[i].patch, zero_confidence);
        rig_target(&r, GEMMA_TARGET, SIB_NUM_F32, 1);
        if (rig_drafter(&r, dir, &(sib_drafter_options){.n_seqs = 1, .max_draft = 8, .min_confidence = rows[i].min}, &err) != SIB_OK) fail_msg("%s", err.message);
        float *taps = random_taps(&r, 6, 2);
        sib_draft_state *s = context_of(&r, taps, 6, 6);
        int n = propose_one(&r, s, 3, 6, 8, ids);
        if (n != rows[i].n) fail_msg("row %zu: %d drafts, expected %d", i, n, rows[i].n);
        r.d->ops->state_free(r.d, s);
        free(taps);
        rig_close(&r);
    }
    static const float c[] = {0.9f, 0.2f, 0.8f, NAN};
    assert_int_equal(sib_confident_length(c, 4, 0, NULL, 0, 0.5f), 1);
    assert_int_equal(sib_confident_length(c, 4, 2, NULL, 0, 0.5f), 4);
    assert_int_equal(sib_confident_length(c, 4, 1, (const float[]){1, 0.1f}, 2, 0.85f), 2);
}

/* A drafter whose confidences shorten every round differently still changes nothing. */
static void shortened_drafts_change_no_token(void **state)
{
    static text plain[SEQS], drafted[SEQS];
    (void)state;
    rig r;
    rig_open(&r, GEMMA_TARGET, variant("short", CASES "deepspec-gemma4", "{\"num_target_layers\":4,\"confidence_threshold\":0.55}", NULL), SIB_NUM_BF16, 1);
    plain_texts(&r, plain, 0);
    rigged g = rigged_new(r.d, AS_IT_IS, r.m->facts.n_vocab);
    (void)answer(&r, &g, drafted, 0, SEQS, 5, 0, same_context);
    expect_texts(plain, drafted, SEQS, "shortened", 5);
    rig_close(&r);
}

/* ---- DFlash 2 against v1, quantized projections ------------------------------------------------------------ */

static void identity(const char *name, float *v, int64_t n)
{
    if (strstr(name, "base_kernel"))
        for (int64_t i = 0; i < n; i++) v[i] = i / (n / 4) % 2 == 0; /* tap 0 of both stages */
    if (strstr(name, "kernel_projection") || strstr(name, "successor_codebook")) memset(v, 0, (size_t)n * sizeof *v);
}

/* Untrained convolutions and selector are the identity: DFlash 2 is then v1, bit for bit. */
static void dflash2_without_its_additions_is_dflash1(void **state)
{
    (void)state;
    const char *two = variant("two", CASES "dflash2-qwen3", "{}", identity);
    const char *one = variant("one", two, "{\"architectures\":[\"DFlashDraftModel\"]}", NULL);
    static seen values[2];
    int32_t ids[2][16];
    for (int i = 0; i < 2; i++) {
        rig r;
        rig_open(&r, qwen_target, i ? one : two, SIB_NUM_BF16, 1);
        float *taps = random_taps(&r, 13, 6);
        sib_draft_state *s = context_of(&r, taps, 13, 13);
        sib_block_trace(r.d, (sib_trace){watch, &values[i]});
        assert_int_equal(propose_one(&r, s, 3, 13, 7, ids[i]), 7);
        r.d->ops->state_free(r.d, s);
        free(taps);
        rig_close(&r);
    }
    assert_memory_equal(ids[0], ids[1], 7 * sizeof(int32_t));
    assert_memory_equal(values[0].values, values[1].values, (size_t)values[0].n * sizeof(float));
}

static void projections_are_quantized_at_load(void **state)
{
    static const int bits[] = {0, 8, 4};
    static seen values[3];
    size_t bytes[3];
    (void)state;
    for (size_t i = 0; i < SIB_COUNT(bits); i++) {
        rig r;
        sib_err err = {0};
        int32_t ids[16];
        rig_target(&r, qwen_target, SIB_NUM_F32, 1);
        if (rig_drafter(&r, CASES "dflash2-qwen3", &(sib_drafter_options){.n_seqs = 1, .max_draft = 8, .bits = bits[i]}, &err) != SIB_OK) fail_msg("%s", err.message);
        bytes[i] = r.draft_bytes;
        float *taps = random_taps(&r, 13, 6);
        sib_draft_state *s = context_of(&r, taps, 13, 13);
        sib_block_trace(r.d, (sib_trace){watch, &values[i]});
        assert_int_equal(propose_one(&r, s, 3, 13, 7, ids), 7);
        r.d->ops->state_free(r.d, s);
        free(taps);
        rig_close(&r);
    }
    assert_true(bytes[0] > bytes[1] && bytes[1] > bytes[2]);
    double size = 0, error[2] = {0};
    for (int i = 0; i < values[0].n; i++) {
        size = fmax(size, fabs(values[0].values[i]));
        for (int k = 0; k < 2; k++) error[k] = fmax(error[k], fabs(values[k + 1].values[i] - values[0].values[i]));
    }
    assert_true(error[0] > 0 && error[0] < 0.1 * size && error[1] > error[0]);
    rig r;
    sib_err err = {0};
    rig_target(&r, qwen_target, SIB_NUM_F32, 1);
    assert_int_equal(rig_drafter(&r, CASES "dflash2-qwen3", &(sib_drafter_options){.n_seqs = 1, .max_draft = 8, .bits = 7}, &err), SIB_EARG);
    assert_non_null(strstr(err.message, "weights of 7 bits"));
    rig_close(&r);
}

/* ---- operations ----------------------------------------------------------------------------------------- */

static void operations_against_exact_arithmetic(void **state)
{
    enum { ROWS = 6, N = 48, GROUP = 16, K = 5 };
    static const int32_t in_block[ROWS] = {0, 1, 2, 0, 1, 0};
    float x[ROWS * N], base[2 * N], delta[ROWS * 4 * (N / GROUP)], residual[ROWS * N], y[2][ROWS * N];
    uint64_t seed = 8;
    (void)state;
    for (int i = 0; i < ROWS * N; i++) x[i] = (float)((double)(sib_splitmix64(&seed) >> 40) / 8388608.0 - 1), residual[i] = x[i] * 3;
    for (int i = 0; i < 2 * N; i++) base[i] = (float)(i % 7) * 0.25f - 0.5f;
    for (int i = 0; i < ROWS * 4 * (N / GROUP); i++) delta[i] = (float)((i * 5) % 11) * 0.125f - 0.5f;
    for (int threads = 1; threads <= 2; threads++) {
        sib_device *d;
        sib_err err = {0};
        tiny_ok(sib_cpu_device_new(&d, &(sib_cpu_options){.numerics = SIB_NUM_BF16, .threads = threads}, &err), &err);
        d->ops->two_tap(d, y[threads - 1], x, base, delta + N / GROUP, 4 * (N / GROUP), GROUP, in_block, ROWS, N, residual);
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < N; c++) {
                const float *row = delta + (r * 4 + 1) * (N / GROUP);
                double want = ((double)base[c] + row[c / GROUP]) * x[r * N + c] + residual[r * N + c];
                if (in_block[r]) want += ((double)base[N + c] + row[N / GROUP + c / GROUP]) * x[(r - 1) * N + c];
                assert_true(fabs(want - y[threads - 1][r * N + c]) < 1e-5);
            }
        /* Taps (0, 1) shift a block by a row. */
        float shift[2 * N], zero[ROWS * 2 * (N / GROUP)] = {0};
        for (int i = 0; i < 2 * N; i++) shift[i] = i >= N;
        d->ops->two_tap(d, y[0], x, shift, zero, 2 * (N / GROUP), GROUP, in_block, ROWS, N, NULL);
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < N; c++) assert_true(y[0][r * N + c] == (in_block[r] ? x[(r - 1) * N + c] : 0));

        float dots[ROWS];
        d->ops->dots(d, dots, base, x, ROWS, N);
        for (int r = 0; r < ROWS; r++) {
            float want = 0;
            for (int c = 0; c < N; c++) want += base[c] * x[r * N + c];
            assert_true(dots[r] == want);
        }
        float scores[2 * 9] = {1, 3, NAN, 3, 2, 3, -INFINITY, 0, 3, NAN, NAN, NAN, NAN, NAN, -INFINITY, 7, NAN, NAN};
        int32_t ids[2 * K];
        float best[2 * K];
        d->ops->top_k(d, ids, best, scores, 2, 9, K);
        assert_memory_equal(ids, ((const int32_t[]){1, 3, 5, 8, 4, 6, 0, 1, 2, 3}), sizeof ids - 5 * sizeof *ids);
        assert_int_equal(ids[K], 6);
        assert_int_equal(ids[K + 1], 0); /* the rest are lowest, in index order */
        assert_true(best[0] == 3 && best[4] == 2 && best[K] == 7 && best[K + 1] == -INFINITY);
        sib_device_free(d);
    }
}

/* ---- documents and reports -------------------------------------------------------------------------------- */

static void the_document_holds_the_registry(void **state)
{
    sib_buf doc = {0};
    sib_err err = {0};
    char row[512];
    (void)state;
    if (sib_read_file("docs/DRAFTERS.md", 1 << 20, &doc, &err) != SIB_OK) fail_msg("%s", err.message);
    sib_buf_addc(&doc, 0);
    int rows = 0, lines = 0;
    for (size_t i = 0; sib_drafter_at(i); i++) {
        const sib_drafter_entry *e = sib_drafter_at(i);
        if (!e->open) continue;
        (void)snprintf(row, sizeof row, "| %s | %s | %s | %s |", sib_drafter_kind_name(e->kind), e->recognised, e->ports, e->cached);
        if (!strstr(doc.p, row)) fail_msg("docs/DRAFTERS.md lacks the row: %s", row);
        rows++;
    }
    const char *at = strstr(doc.p, "| kind |");
    for (at = at ? strchr(at, '\n') : NULL; at && at[1] == '|'; at = strchr(at + 1, '\n')) lines++;
    assert_int_equal(lines - 1, rows); /* the line under the heading, then no row that the registry does not know */
    sib_buf_deinit(&doc);

    /* Their ports are what the loaders ask for. */
    static const struct {
        const char *dir;
        sib_drafter_kind kind;
    } cases[] = {{CASES "deepspec-gemma4", SIB_DRAFTER_DEEPSPEC}, {CASES "dflash2-qwen3", SIB_DRAFTER_DFLASH}, {CASES "dflash1", SIB_DRAFTER_DFLASH},
                 {CASES "dspark-own", SIB_DRAFTER_DSPARK}, {CASES "gemma4-assistant-centroid", SIB_DRAFTER_ASSISTANT}, {CASES "qwen3_5-mtp", SIB_DRAFTER_MTP}};
    for (size_t i = 0; i < SIB_COUNT(cases); i++) {
        sib_buf out = {0};
        char want[128];
        if (sib_inspect_json(&out, cases[i].dir, &err) != SIB_OK) fail_msg("%s", err.message);
        json_t *o = NULL;
        assert_int_equal(sib_json_parse(&o, sib_buf_view(&out), "report", &err), SIB_OK);
        assert_null(json_object_get(o, "error"));
        assert_string_equal(json_string_value(json_object_get(o, "kind")), "drafter");
        assert_string_equal(json_string_value(json_object_get(o, "drafter")), sib_drafter_kind_name(cases[i].kind));
        int n = 0;
        size_t k;
        json_t *port;
        json_array_foreach(json_object_get(o, "needs"), k, port) n += snprintf(want + n, sizeof want - (size_t)n, "%s%s", k ? ", " : "", json_string_value(port));
        const sib_drafter_entry *e = NULL;
        for (size_t j = 0; sib_drafter_at(j); j++)
            if (sib_drafter_at(j)->kind == cases[i].kind) e = sib_drafter_at(j);
        assert_string_equal(want, e->ports);
        json_decref(o);
        sib_buf_deinit(&out);
    }
}

static void the_doctor_measures_and_refuses(void **state)
{
    sib_options o;
    sib_buf out = {0};
    sib_err err = {0};
    json_t *report = NULL;
    (void)state;
    sib_options_init(&o);
    o.model = GEMMA_TARGET;
    o.draft = CASES "dspark-own";
    o.n_ctx = 256;
    o.threads = 1;
    if (sib_doctor_json(&out, &o, 0, 32, &err) != SIB_OK) fail_msg("%s", err.message);
    assert_int_equal(sib_json_parse(&report, sib_buf_view(&out), "report", &err), SIB_OK);
    assert_true(json_is_true(json_object_get(report, "same_text")));
    assert_string_equal(json_string_value(json_object_get(json_object_get(report, "drafter"), "kind")), "dspark");
    assert_int_equal(json_integer_value(json_object_get(report, "tokens")), 3 * 32);
    assert_int_equal(json_array_size(json_object_get(report, "accepted_by_position")), 4);
    assert_true(json_integer_value(json_object_get(report, "proposed")) > 0);
    const json_t *cost = json_object_get(report, "cost");
    double plain = json_number_value(json_object_get(cost, "plain_ms")), round = json_number_value(json_object_get(cost, "draft_ms")) + json_number_value(json_object_get(cost, "verify_ms"));
    assert_true(plain > 0 && fabs(json_number_value(json_object_get(cost, "break_even_emitted")) - round / plain) < 1e-6 * round / plain);
    json_decref(report);
    sib_buf_deinit(&out);
    /* Refused by a sentence; the weights need not even be whole. */
    variant("cut", CASES "dflash1", "{}", NULL);
    o.draft = fixture_path("cut");
    assert_int_equal(sib_doctor_json(&out, &o, 0, 32, &err), SIB_EARG);
    assert_non_null(strstr(err.message, "DFlash drafter was made for a target with a hidden width of 64; this model has 32"));
    o.draft = NULL;
    assert_int_equal(sib_doctor_json(&out, &o, 0, 32, &err), SIB_EARG);
    sib_buf_deinit(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_change_no_token),
        cmocka_unit_test(drafts_change_no_token_in_f32_on_two_threads),
        cmocka_unit_test(batch_of_eight),
        cmocka_unit_test(batch_rows_are_the_rows_alone),
        cmocka_unit_test(context_in_chunks_is_the_context_at_once),
        cmocka_unit_test(broken_requests_draft_nothing),
        cmocka_unit_test(past_the_window_and_to_the_end),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(what_files_vary_in_is_accepted),
        cmocka_unit_test(confidence_ends_the_draft),
        cmocka_unit_test(shortened_drafts_change_no_token),
        cmocka_unit_test(dflash2_without_its_additions_is_dflash1),
        cmocka_unit_test(projections_are_quantized_at_load),
        cmocka_unit_test(operations_against_exact_arithmetic),
        cmocka_unit_test(the_document_holds_the_registry),
        cmocka_unit_test(the_doctor_measures_and_refuses),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

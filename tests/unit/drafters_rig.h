/* tests/unit/drafters_rig.h - a target and a drafter beside it, folders that differ from a case by a few keys or tensors,
 * and rounds over several requests. Include after cmocka. */
#ifndef SIB_TESTS_DRAFTERS_RIG_H
#define SIB_TESTS_DRAFTERS_RIG_H

#include "base/rng.h"
#include "drafters/block.h"
#include "engine/registry.h"
#include "spec/round.h"

#include "artifacts_fixture.h"
#include "tiny_qwen.h"

#define CASES   "tests/golden/cases/"
#define SEQS    8
#define ANSWER  24
#define CONTEXT 160

/* ---- folders ------------------------------------------------------------------------------------ */

/* RFC 7396: members of `patch` replace, null removes, objects are merged. */
static inline void merge(json_t *o, const json_t *patch)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)patch, key, v)
    {
        json_t *old = json_object_get(o, key);
        if (json_is_null(v))
            (void)json_object_del(o, key);
        else if (json_is_object(v) && json_is_object(old))
            merge(old, v);
        else
            (void)json_object_set(o, key, v);
    }
}

typedef void (*tensor_fn)(const char *name, float *values, int64_t n);

/* fixture_dir/name: a case with `patch` applied to its config; with `change`, tensors go through it as F32, else the file is shared. */
static inline const char *variant(const char *name, const char *from, const char *patch, tensor_fn change)
{
    const char *dir = fixture_path(name), *file = strstr(from, "dspark") ? "dspark.json" : "config.json";
    sib_err err;
    json_t *config = NULL, *p = json_loads(patch, 0, NULL);
    char *path = sib_path_join(from, file), *weights = sib_path_join(from, "model.safetensors"), *there = realpath(weights, NULL), *to = sib_path_join(dir, "model.safetensors"),
         *config_to = sib_path_join(dir, file);
    fixture_remove(dir);
    assert_int_equal(mkdir(dir, 0777), 0);
    assert_int_equal(sib_json_read(&config, path, 1 << 20, &err), SIB_OK);
    assert_non_null(p);
    merge(config, p);
    assert_int_equal(json_dump_file(config, config_to, 0), 0);
    if (!change) {
        assert_int_equal(symlink(there, to), 0);
    } else {
        sib_safetensors *in = NULL;
        sib_safetensors_writer *w = NULL;
        tiny_ok(sib_safetensors_open(&in, there, false, &err), &err);
        tiny_ok(sib_safetensors_create(&w, to, 0, &err), &err);
        for (size_t i = 0; i < sib_safetensors_count(in); i++) {
            const sib_tensor_info *t = sib_safetensors_at(in, i);
            int64_t n = sib_tensor_elements(t);
            float *v = malloc((size_t)n * sizeof *v);
            assert_true(sib_to_f32(v, t->data, t->dtype, (size_t)n));
            change(t->name, v, n);
            tiny_ok(sib_safetensors_add(w, t->name, SIB_F32, t->rank, t->shape, v, &err), &err);
            free(v);
        }
        tiny_ok(sib_safetensors_finish(w, &err), &err);
        sib_safetensors_free(in);
    }
    json_decref(config);
    json_decref(p);
    free(path);
    free(weights);
    free(there);
    free(to);
    free(config_to);
    return dir;
}

/* A random DeepSpec drafter of the Qwen3 kind for the tiny Qwen target (hidden 64, 256 tokens, 8 layers). */
static inline const char *deepspec_qwen(const char *name)
{
    const char *dir = fixture_path(name);
    char path[64], tensor[128];
    sib_safetensors_writer *w = tiny_create(dir, false);
    sib_err err;
    const struct {
        const char *name;
        int rows, columns;
        double base, amp;
    } all[] = {{"embed_tokens.weight", 256, 64, 0, 0.5}, {"fc.weight", 64, 192, 0, 0.15}, {"hidden_norm.weight", 64, 0, 1, 0.1}, {"norm.weight", 64, 0, 1, 0.1},
               {"lm_head.weight", 256, 64, 0, 0.5}, {"markov_head.markov_w1.weight", 256, 8, 0, 0.7}, {"markov_head.markov_w2.weight", 256, 8, 0, 0.7},
               {"confidence_head.proj.weight", 1, 72, 0, 0.3}, {"confidence_head.proj.bias", 1, 0, 0, 0.1}},
      each[] = {{"self_attn.q_proj.weight", 64, 64, 0, 0.2}, {"self_attn.k_proj.weight", 32, 64, 0, 0.2}, {"self_attn.v_proj.weight", 32, 64, 0, 0.2},
                {"self_attn.o_proj.weight", 64, 64, 0, 0.2}, {"self_attn.q_norm.weight", 16, 0, 1, 0.1}, {"self_attn.k_norm.weight", 16, 0, 1, 0.1},
                {"input_layernorm.weight", 64, 0, 1, 0.1}, {"post_attention_layernorm.weight", 64, 0, 1, 0.1}, {"mlp.gate_proj.weight", 128, 64, 0, 0.2},
                {"mlp.up_proj.weight", 128, 64, 0, 0.2}, {"mlp.down_proj.weight", 64, 128, 0, 0.2}};
    for (int layer = -1; layer < 2; layer++)
        for (size_t i = 0; i < (layer < 0 ? SIB_COUNT(all) : SIB_COUNT(each)); i++) {
            int rows = layer < 0 ? all[i].rows : each[i].rows, columns = layer < 0 ? all[i].columns : each[i].columns;
            int64_t shape[] = {rows, columns ? columns : 1};
            if (layer < 0)
                (void)snprintf(tensor, sizeof tensor, "%s", all[i].name);
            else
                (void)snprintf(tensor, sizeof tensor, "layers.%d.%s", layer, each[i].name);
            float *v = tiny_values(tensor, shape[0] * shape[1], layer < 0 ? all[i].base : each[i].base, layer < 0 ? all[i].amp : each[i].amp);
            tiny_ok(sib_safetensors_add(w, tensor, SIB_F32, columns ? 2 : 1, shape, v, &err), &err);
            free(v);
        }
    tiny_ok(sib_safetensors_finish(w, &err), &err);
    (void)snprintf(path, sizeof path, "%s/config.json", name);
    fixture_text(path, "{\"architectures\":[\"Qwen3DSparkModel\"],\"model_type\":\"qwen3\",\"vocab_size\":256,\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":2,"
                       "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,\"hidden_act\":\"silu\",\"rope_parameters\":{\"rope_theta\":1000.0,\"rope_type\":\"default\"},"
                       "\"block_size\":4,\"mask_token_id\":3,\"target_layer_ids\":[-1,1,6],\"num_target_layers\":8,\"markov_rank\":8,\"markov_head_type\":\"vanilla\","
                       "\"enable_confidence_head\":true,\"confidence_head_with_markov\":true}");
    return dir;
}

/* ---- a pair --------------------------------------------------------------------------------------- */

typedef struct rig {
    sib_device *dev;
    sib_checkpoint *files, *draft_files;
    sib_model *m;
    sib_drafter *d;
    size_t draft_bytes; /* packed */
} rig;

static inline void rig_target(rig *r, const char *dir, sib_numerics numerics, int threads)
{
    sib_err err = {0};
    sib_cpu_options cpu = {.numerics = numerics, .threads = threads};
    sib_model_limits limits = {.n_ctx = CONTEXT, .n_seqs = SEQS + 2, .max_rows = 128, .max_logits = 128, .max_block = 17};
    *r = (rig){0};
    if (sib_cpu_device_new(&r->dev, &cpu, &err) != SIB_OK || sib_checkpoint_open(&r->files, dir, NULL, &err) != SIB_OK) fail_msg("%s", err.message);
    sib_loader l = {.dev = r->dev, .files = r->files};
    const sib_family *f = sib_family_for(r->files, &err);
    if (!f || f->open(&r->m, &l, &limits, &err) != SIB_OK) fail_msg("%s", err.message);
}

static inline sib_status rig_drafter(rig *r, const char *dir, const sib_drafter_options *o, sib_err *err)
{
    SIB_TRY(sib_drafter_files_open(&r->draft_files, dir, false, err));
    sib_loader l = {.dev = r->dev, .files = r->draft_files};
    SIB_TRY(sib_drafter_open(&r->d, &l, r->m, o, err));
    r->draft_bytes = l.packed_bytes;
    return SIB_OK;
}

static inline void rig_drop_drafter(rig *r)
{
    if (r->d) r->d->ops->free(r->d);
    sib_checkpoint_free(r->draft_files);
    r->d = NULL;
    r->draft_files = NULL;
}

static inline void rig_open(rig *r, const char *target, const char *draft, sib_numerics numerics, int threads)
{
    sib_err err = {0};
    rig_target(r, target, numerics, threads);
    if (rig_drafter(r, draft, &(sib_drafter_options){.n_seqs = SEQS, .max_draft = 16}, &err) != SIB_OK) fail_msg("%s", err.message);
}

static inline void rig_close(rig *r)
{
    rig_drop_drafter(r);
    r->m->ops->free(r->m);
    sib_checkpoint_free(r->files);
    sib_device_free(r->dev);
}

/* ---- a drafter that is told what to guess ----------------------------------------------------------- */

typedef enum guesses { AS_IT_IS, RIGHT, WRONG, MIXED } guesses;

/* Everything goes to the inner drafter; then the guesses are overwritten by script. Requests are known by their states. */
typedef struct rigged {
    sib_drafter base; /* first */
    sib_drafter *inner;
    guesses script;
    int n_vocab, n_known;
    sib_draft_state *state[SEQS];
    const int32_t *truth[SEQS]; /* prompt and answer without drafts */
    int length[SEQS];
} rigged;

static inline rigged *rigged_of(const sib_drafter *d)
{
    return (rigged *)(uintptr_t)d;
}

static inline const sib_needs *rigged_needs(const sib_drafter *d)
{
    return rigged_of(d)->inner->ops->needs(rigged_of(d)->inner);
}

static inline sib_status rigged_state_new(sib_drafter *d, sib_draft_state **out, sib_err *err)
{
    return rigged_of(d)->inner->ops->state_new(rigged_of(d)->inner, out, err);
}

static inline void rigged_state_free(sib_drafter *d, sib_draft_state *s)
{
    rigged_of(d)->inner->ops->state_free(rigged_of(d)->inner, s);
}

static inline sib_status rigged_truncate(sib_drafter *d, sib_draft_state *s, int length, sib_err *err)
{
    return rigged_of(d)->inner->ops->truncate(rigged_of(d)->inner, s, length, err);
}

static inline sib_status rigged_settle(sib_drafter *d, const sib_settle *lanes, int n, sib_err *err)
{
    return rigged_of(d)->inner->ops->settle(rigged_of(d)->inner, lanes, n, err);
}

static inline sib_status rigged_propose(sib_drafter *d, sib_propose *lanes, int n, sib_err *err)
{
    rigged *g = rigged_of(d);
    SIB_TRY(g->inner->ops->propose(g->inner, lanes, n, err));
    for (int i = 0; i < n && g->script != AS_IT_IS; i++) {
        int k = 0;
        while (g->state[k] != lanes[i].state) k++;
        lanes[i].n = lanes[i].max;
        for (int j = 0; j < lanes[i].n; j++) {
            int at = lanes[i].position + 1 + j;
            int32_t right = at < g->length[k] ? g->truth[k][at] : 0;
            bool wrong = g->script == WRONG || (g->script == MIXED && (at * 7 + k) % 3 == 0);
            lanes[i].ids[j] = wrong ? (right + 1) % g->n_vocab : right;
        }
    }
    return SIB_OK;
}

static inline rigged rigged_new(sib_drafter *inner, guesses script, int n_vocab)
{
    static const sib_drafter_ops ops = {"rigged", NULL, rigged_needs, rigged_state_new, rigged_state_free, rigged_truncate, rigged_propose, rigged_settle};
    return (rigged){.base = {&ops, inner->max_draft, inner->default_draft}, .inner = inner, .script = script, .n_vocab = n_vocab};
}

/* ---- rounds ----------------------------------------------------------------------------------------- */

typedef struct text {
    int32_t ids[CONTEXT + SIB_ROUND_EMIT];
    int n_prompt, n;
} text;

static inline void prompt_of(text *t, int lane, int n_vocab)
{
    uint64_t seed = (uint64_t)lane + 77;
    t->n = t->n_prompt = 1 + lane * 5 % 23;
    for (int i = 0; i < t->n; i++) t->ids[i] = (int32_t)(sib_splitmix64(&seed) % (uint64_t)n_vocab);
}

typedef void (*finish_fn)(rig *r, sib_draft_state *s, const text *t, int n_done);

/* Answers of ANSWER tokens for requests first .. first + n - 1, together, prompts in chunks of 7. g may be NULL (no drafts);
 * `finish` (or NULL) sees each state at the end. Returns the drafts accepted. */

static inline int answer(rig *r, rigged *g, text *texts, int first, int n, int depth, double temperature, finish_fn finish)
{
    sib_err err = {0};
    sib_round *round = NULL;
    sib_lane *lanes = calloc((size_t)n, sizeof *lanes), *running[SEQS];
    sib_sampler_params params = sib_sampler_defaults();
    int accepted = 0;
    params.temperature = temperature;
    tiny_ok(sib_round_new(&round, r->m, g ? &g->base : NULL, n, 7, &err), &err);
    for (int i = 0; i < n; i++) {
        text *t = &texts[i];
        prompt_of(t, first + i, r->m->facts.n_vocab);
        params.seed = (uint64_t)(first + i) + 5;
        lanes[i] = (sib_lane){.tokens = t->ids, .n_tokens = t->n, .rule = SIB_ACCEPT_MATCH, .budget = ANSWER};
        sib_policy_init(&lanes[i].policy, SIB_POLICY_FIXED, depth);
        tiny_ok(sib_sampler_new(&lanes[i].sampler, &params, r->m->facts.n_vocab, SIB_COUNT(t->ids), &err), &err);
        for (int k = 0; k < t->n; k++) tiny_ok(sib_sampler_push(lanes[i].sampler, t->ids[k], &err), &err);
        tiny_ok(r->m->ops->seq_new(r->m, &lanes[i].seq, &err), &err);
        if (g) tiny_ok(g->base.ops->state_new(&g->base, &lanes[i].draft, &err), &err);
        if (g) g->state[i] = lanes[i].draft;
    }
    for (;;) {
        int left = 0;
        for (int i = 0; i < n; i++)
            if (lanes[i].budget > 0) running[left++] = &lanes[i];
        if (left == 0) break;
        tiny_ok(sib_round_step(round, running, left, &err), &err);
    }
    for (int i = 0; i < n; i++) {
        texts[i].n = lanes[i].n_tokens;
        accepted += (int)lanes[i].policy.kept;
        if (finish) finish(r, lanes[i].draft, &texts[i], lanes[i].n_done);
        if (g) g->base.ops->state_free(&g->base, lanes[i].draft);
        r->m->ops->seq_free(r->m, lanes[i].seq);
        sib_sampler_free(lanes[i].sampler);
    }
    sib_round_free(round);
    free(lanes);
    return accepted;
}

static inline void expect_texts(const text *want, const text *got, int n, const char *what, int depth)
{
    for (int i = 0; i < n; i++) {
        assert_int_equal(want[i].n, got[i].n);
        for (int k = 0; k < want[i].n; k++)
            if (want[i].ids[k] != got[i].ids[k]) fail_msg("%s, %d drafts, request %d of %d: token %d is %d, without drafts %d", what, depth, i, n, k, got[i].ids[k], want[i].ids[k]);
    }
}

#endif

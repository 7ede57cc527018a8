/* models/glm_moe_dsa/config.c - config.json of GLM-5.2: keys, defaults, bounds, refusals (glm_moe_dsa.md section 1).
 *
 * A missing key takes the Hugging Face default. Numbers are bounded so that no later product overflows. */
#include "models/glm_moe_dsa/glm.h"

#include <stdlib.h>
#include <string.h>

#define WHERE "config.json"
#define MAX_LAYERS 512

static sib_status read_int(const json_t *t, const char *key, int64_t lo, int64_t hi, int *out, sib_err *err)
{
    int64_t v = *out;
    SIB_TRY(sib_json_int(t, WHERE, key, lo, hi, &v, err));
    *out = (int)v;
    return SIB_OK;
}

static sib_status require_int(const json_t *t, const char *key, int64_t hi, int *out, sib_err *err)
{
    if (!sib_json_get(t, key)) return sib_fail(err, SIB_EFORMAT, WHERE ": key \"%s\" is missing", key);
    return read_int(t, key, 1, hi, out, err);
}

/* A list of n_layers words, each one of two; true for the first. Absent: *found is false. */
static sib_status read_kinds(const json_t *t, const char *key, const char *yes, const char *no, int n, bool *out, bool *found, sib_err *err)
{
    const json_t *list = sib_json_get(t, key);
    *found = list != NULL;
    if (!list) return SIB_OK;
    if (!json_is_array(list)) return sib_fail(err, SIB_EFORMAT, WHERE ": %s is not a list", key);
    if (json_array_size(list) != (size_t)n) return sib_fail(err, SIB_EFORMAT, WHERE ": %s must have %d entries (got %zu)", key, n, json_array_size(list));
    for (int i = 0; i < n; i++) {
        const char *s = json_string_value(json_array_get(list, (size_t)i));
        if (!s || (strcmp(s, yes) && strcmp(s, no)))
            return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": %s[%d] is \"%.40s\"; known are %s and %s", key, i, s ? s : "(not a string)", yes, no);
        out[i] = strcmp(s, yes) == 0;
    }
    return SIB_OK;
}

/* Which layers have an indexer: the list, else a pattern of F and S, else every freq-th from the offset on. */
static sib_status read_indexers(glm_config *c, const json_t *t, sib_err *err)
{
    int freq = 1, offset = 2;
    const char *pattern = NULL;
    bool listed;
    SIB_TRY(read_int(t, "index_topk_freq", 0, MAX_LAYERS, &freq, err));
    SIB_TRY(read_int(t, "index_skip_topk_offset", 0, MAX_LAYERS, &offset, err));
    SIB_TRY(sib_json_str(t, WHERE, "index_topk_pattern", &pattern, err));
    SIB_TRY(read_kinds(t, "indexer_types", "full", "shared", c->n_layers, c->full, &listed, err));
    if (!listed && pattern) {
        if (strlen(pattern) != (size_t)c->n_layers || strspn(pattern, "FS") != (size_t)c->n_layers)
            return sib_fail(err, SIB_EFORMAT, WHERE ": index_topk_pattern must be %d letters F or S", c->n_layers);
        for (int i = 0; i < c->n_layers; i++) c->full[i] = pattern[i] == 'F';
    } else if (!listed) {
        if (freq < 1) freq = 1;
        for (int i = 0; i < c->n_layers; i++) c->full[i] = (i - offset + 1 > 0 ? i - offset + 1 : 0) % freq == 0;
    }
    if (!c->full[0]) return sib_fail(err, SIB_EFORMAT, WHERE ": Shared DSA layers require top-k indices from a previous full indexer layer, and layer 0 is shared");
    return SIB_OK;
}

static sib_status read_mlps(glm_config *c, const json_t *t, sib_err *err)
{
    int dense = 3, freq = 1;
    bool listed;
    SIB_TRY(read_int(t, "first_k_dense_replace", 0, 1 << 16, &dense, err));
    SIB_TRY(read_int(t, "moe_layer_freq", 1, MAX_LAYERS, &freq, err));
    SIB_TRY(read_kinds(t, "mlp_layer_types", "sparse", "dense", c->n_layers, c->sparse, &listed, err));
    for (int i = 0; !listed && i < c->n_layers; i++) c->sparse[i] = i >= dense && i % freq == 0;
    return SIB_OK;
}

static sib_status refuse_word(const json_t *t, const char *key, const char *only, sib_err *err)
{
    const char *s = only;
    SIB_TRY(sib_json_str(t, WHERE, key, &s, err));
    return strcmp(s, only) == 0 ? SIB_OK : sib_fail(err, SIB_EUNSUPPORTED, WHERE ": %s \"%.40s\" is not supported, only \"%s\"", key, s, only);
}

static sib_status refuse_flag(const json_t *t, const char *key, sib_err *err)
{
    bool on = false;
    SIB_TRY(sib_json_bool(t, WHERE, key, &on, err));
    return on ? sib_fail(err, SIB_EUNSUPPORTED, WHERE ": %s true is not supported", key) : SIB_OK;
}

static sib_status check(const glm_config *c, const json_t *t, sib_err *err)
{
    int qk = c->nope + c->rope;
    SIB_TRY(read_int(t, "qk_head_dim", 1, 1 << 16, &qk, err));
    if (qk != c->nope + c->rope)
        return sib_fail(err, SIB_EFORMAT, WHERE ": qk_head_dim %d is not qk_nope_head_dim %d + qk_rope_head_dim %d", qk, c->nope, c->rope);
    if (c->latent % 8 || c->rope % 8 || c->latent > 512 || c->latent + c->rope > 576)
        return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": kv_lora_rank %d with qk_rope_head_dim %d; the cache holds multiples of 8 up to 512, and 576 together", c->latent, c->rope);
    if (c->index_dim % 8 || c->index_dim < c->rope)
        return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": index_head_dim %d is not a multiple of 8 from qk_rope_head_dim %d on", c->index_dim, c->rope);
    if (c->n_experts % c->n_group || c->topk_group > c->n_group || c->top_k > c->topk_group * (c->n_experts / c->n_group))
        return sib_fail(err, SIB_EFORMAT, WHERE ": num_experts_per_tok %d of %d experts in n_group %d, topk_group %d cannot be", c->top_k, c->n_experts, c->n_group, c->topk_group);
    return SIB_OK;
}

sib_status glm_config_read(glm_config *c, const json_t *t, sib_err *err)
{
    *c = (glm_config){.n_vocab = 154880, .max_positions = 202752, .q_lora = 2048, .latent = 512, .nope = 192, .rope = 64, .v_dim = 256,
                      .index_heads = 32, .index_dim = 128, .index_topk = 2048, .n_experts = 256, .top_k = 8, .moe_ffn = 2048, .n_shared = 1,
                      .n_group = 1, .topk_group = 1, .rope_interleave = true, .index_interleave = true, .norm_topk = true, .eps = 1e-5,
                      .theta = 1e6, .routed_scale = 2.5};
    SIB_TRY(require_int(t, "hidden_size", 65536, &c->hidden, err));
    SIB_TRY(require_int(t, "num_hidden_layers", MAX_LAYERS, &c->n_layers, err));
    SIB_TRY(require_int(t, "num_attention_heads", 1024, &c->n_heads, err));
    SIB_TRY(require_int(t, "intermediate_size", 1 << 20, &c->ffn, err));
    SIB_TRY(read_int(t, "vocab_size", 1, 1 << 22, &c->n_vocab, err));
    SIB_TRY(read_int(t, "max_position_embeddings", 1, 1 << 24, &c->max_positions, err));
    SIB_TRY(read_int(t, "q_lora_rank", 1, 65536, &c->q_lora, err));
    SIB_TRY(read_int(t, "kv_lora_rank", 1, 65536, &c->latent, err));
    SIB_TRY(read_int(t, "qk_nope_head_dim", 1, 4096, &c->nope, err));
    SIB_TRY(read_int(t, "qk_rope_head_dim", 1, 4096, &c->rope, err));
    SIB_TRY(read_int(t, "v_head_dim", 1, 4096, &c->v_dim, err));
    SIB_TRY(read_int(t, "index_n_heads", 1, 1024, &c->index_heads, err));
    SIB_TRY(read_int(t, "index_head_dim", 1, 512, &c->index_dim, err));
    SIB_TRY(read_int(t, "index_topk", 1, 1 << 20, &c->index_topk, err));
    SIB_TRY(read_int(t, "num_experts", 1, 4096, &c->n_experts, err)); /* an alias */
    SIB_TRY(read_int(t, "n_routed_experts", 1, 4096, &c->n_experts, err));
    SIB_TRY(read_int(t, "num_experts_per_tok", 1, 512, &c->top_k, err));
    SIB_TRY(read_int(t, "moe_intermediate_size", 1, 1 << 20, &c->moe_ffn, err));
    SIB_TRY(read_int(t, "n_shared_experts", 0, 64, &c->n_shared, err));
    SIB_TRY(read_int(t, "n_group", 1, 4096, &c->n_group, err));
    SIB_TRY(read_int(t, "topk_group", 1, 4096, &c->topk_group, err));
    SIB_TRY(read_int(t, "num_nextn_predict_layers", 0, MAX_LAYERS, &c->n_mtp, err));
    SIB_TRY(sib_json_bool(t, WHERE, "rope_interleave", &c->rope_interleave, err));
    SIB_TRY(sib_json_bool(t, WHERE, "indexer_rope_interleave", &c->index_interleave, err));
    SIB_TRY(sib_json_bool(t, WHERE, "norm_topk_prob", &c->norm_topk, err));
    SIB_TRY(sib_json_bool(t, WHERE, "tie_word_embeddings", &c->tied, err));
    SIB_TRY(sib_json_num(t, WHERE, "rms_norm_eps", 0, 1, &c->eps, err));
    SIB_TRY(sib_json_num(t, WHERE, "routed_scaling_factor", 1e-6, 1e6, &c->routed_scale, err));

    const json_t *rope = sib_json_get(t, "rope_parameters");
    if (!rope) rope = sib_json_get(t, "rope_scaling");
    SIB_TRY(sib_json_num(t, WHERE, "rope_theta", 1, 1e12, &c->theta, err));
    if (rope) {
        SIB_TRY(refuse_word(rope, "rope_type", "default", err));
        SIB_TRY(sib_json_num(rope, WHERE, "rope_theta", 1, 1e12, &c->theta, err));
    }
    SIB_TRY(refuse_word(t, "scoring_func", "sigmoid", err));
    SIB_TRY(refuse_word(t, "topk_method", "noaux_tc", err));
    SIB_TRY(refuse_word(t, "hidden_act", "silu", err));
    SIB_TRY(refuse_flag(t, "attention_bias", err));
    SIB_TRY(refuse_flag(t, "mlp_bias", err));
    SIB_TRY(check(c, t, err));

    c->full = calloc((size_t)c->n_layers, sizeof *c->full);
    c->sparse = calloc((size_t)c->n_layers, sizeof *c->sparse);
    if (!c->full || !c->sparse) return sib_nomem(err, "layer list");
    SIB_TRY(read_indexers(c, t, err));
    return read_mlps(c, t, err);
}

void glm_config_deinit(glm_config *c)
{
    free(c->full);
    free(c->sparse);
    c->full = c->sparse = NULL;
}

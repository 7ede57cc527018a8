/* models/gemma4/config.c - config.json of Gemma 4: keys, defaults, bounds (gemma4.md section 1).
 *
 * A missing key takes the Hugging Face default, never MLX's (they disagree, gemma4.md 1.3);
 * JSON null counts as missing. Numbers are bounded so that no later product overflows. */
#include "models/gemma4/gemma4.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHERE "config.json"

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

static sib_status read_layer_types(gemma4_config *c, const json_t *t, sib_err *err)
{
    json_t *types = sib_json_get(t, "layer_types");
    if (!types) { /* every sixth layer and the last one are full */
        for (int i = 0; i < c->n_layers; i++) c->full[i] = (i + 1) % 6 == 0 || i == c->n_layers - 1;
        return SIB_OK;
    }
    if (!json_is_array(types) || json_array_size(types) != (size_t)c->n_layers)
        return sib_fail(err, SIB_EFORMAT, WHERE ": layer_types must list %d layers", c->n_layers);
    for (int i = 0; i < c->n_layers; i++) {
        const char *s = json_string_value(json_array_get(types, (size_t)i));
        if (!s || (strcmp(s, "sliding_attention") && strcmp(s, "full_attention")))
            return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": layer_types[%d] is \"%s\"; known are sliding_attention and full_attention",
                            i, s ? s : "(not a string)");
        c->full[i] = s[0] == 'f';
    }
    return SIB_OK;
}

static sib_status read_rope(gemma4_config *c, const json_t *t, sib_err *err)
{
    static const char *const kinds[2] = {"sliding_attention", "full_attention"};
    const json_t *all = sib_json_get(t, "rope_parameters");
    for (int k = 0; k < 2; k++) {
        c->rope_theta[k] = k == SIB_FULL ? 1e6 : 1e4;
        c->rope_partial[k] = k == SIB_FULL ? 0.25 : 1.0;
        c->rope_factor[k] = 1.0;
        c->rope_proportional[k] = k == SIB_FULL;
        const json_t *p = all ? sib_json_get(all, kinds[k]) : NULL;
        if (!p) continue;
        const char *type = k == SIB_FULL ? "proportional" : "default";
        SIB_TRY(sib_json_str(p, WHERE, "rope_type", &type, err));
        if (strcmp(type, "proportional") && strcmp(type, "default"))
            return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": rope_type \"%s\" of %s is not supported", type, kinds[k]);
        c->rope_proportional[k] = type[0] == 'p';
        SIB_TRY(sib_json_num(p, WHERE, "rope_theta", 1.0, 1e12, &c->rope_theta[k], err));
        if (!c->rope_proportional[k]) c->rope_partial[k] = 1.0;
        SIB_TRY(sib_json_num(p, WHERE, "partial_rotary_factor", 1e-3, 1.0, &c->rope_partial[k], err));
        SIB_TRY(sib_json_num(p, WHERE, "factor", 1e-3, 1e6, &c->rope_factor[k], err));
    }
    return SIB_OK;
}

/* Newer files give a layer's own head_dim in per_layer_config = {"5": {"head_dim": 512}}. */
static sib_status read_layer_dims(gemma4_config *c, const json_t *t, sib_err *err)
{
    const json_t *own = sib_json_get(t, "per_layer_config");
    for (int i = 0; i < c->n_layers; i++) {
        char key[16];
        (void)snprintf(key, sizeof key, "%d", i);
        c->layer_dim[i] = c->full[i] ? c->global_head_dim : c->head_dim;
        const json_t *o = own ? sib_json_get(own, key) : NULL;
        if (o) SIB_TRY(read_int(o, "head_dim", 8, 512, &c->layer_dim[i], err));
        if (c->layer_dim[i] != (c->full[i] ? c->global_head_dim : c->head_dim))
            return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": per_layer_config gives layer %d a head_dim of %d, its kind has %d", i,
                            c->layer_dim[i], c->full[i] ? c->global_head_dim : c->head_dim);
        if (c->layer_dim[i] % 8)
            return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": head_dim %d is not a multiple of 8", c->layer_dim[i]);
    }
    return SIB_OK;
}

static sib_status check(const gemma4_config *c, sib_err *err)
{
    if (c->n_heads % c->n_kv_heads || c->n_heads % c->n_global_kv_heads)
        return sib_fail(err, SIB_EFORMAT, WHERE ": num_attention_heads %d is not a multiple of the KV heads (%d, %d)", c->n_heads,
                        c->n_kv_heads, c->n_global_kv_heads);
    if (c->n_experts > 0 && (c->top_k < 1 || c->top_k > c->n_experts || c->moe_ffn < 1))
        return sib_fail(err, SIB_EFORMAT, WHERE ": top_k_experts %d of %d experts of width %d cannot be", c->top_k, c->n_experts, c->moe_ffn);
    int first = c->n_layers - c->n_shared;
    for (int i = first; i < c->n_layers; i++) {
        int j = first - 1;
        while (j >= 0 && c->full[j] != c->full[i]) j--;
        if (j < 0)
            return sib_fail(err, SIB_EFORMAT, WHERE ": layer %d shares keys and values, but no %s layer before layer %d has its own", i,
                            c->full[i] ? "full" : "sliding", first);
    }
    return SIB_OK;
}

sib_status gemma4_config_read(gemma4_config *c, const json_t *root, sib_err *err)
{
    const json_t *t = sib_json_get(root, "text_config");
    if (!t) t = root;
    const char *type = "", *act = "gelu_pytorch_tanh", *bidi = NULL;
    *c = (gemma4_config){0};
    SIB_TRY(sib_json_str(t, WHERE, "model_type", &type, err));
    c->unified = strstr(type, "unified") != NULL;

    SIB_TRY(require_int(t, "hidden_size", 65536, &c->hidden, err));
    SIB_TRY(require_int(t, "num_hidden_layers", 512, &c->n_layers, err));
    SIB_TRY(require_int(t, "num_attention_heads", 512, &c->n_heads, err));
    SIB_TRY(require_int(t, "num_key_value_heads", 512, &c->n_kv_heads, err));
    SIB_TRY(require_int(t, "intermediate_size", 1 << 20, &c->ffn, err));
    c->n_vocab = 262144;
    c->head_dim = 256;
    c->global_head_dim = 512;
    c->window = c->unified ? 1024 : 512;
    c->ple = c->unified ? 0 : 256;
    c->max_positions = 131072;
    c->eps = 1e-6;
    c->pad_id = 0;
    SIB_TRY(read_int(t, "vocab_size", 1, 1 << 22, &c->n_vocab, err));
    SIB_TRY(read_int(t, "head_dim", 8, 512, &c->head_dim, err));
    SIB_TRY(read_int(t, "global_head_dim", 8, 512, &c->global_head_dim, err));
    SIB_TRY(read_int(t, "sliding_window", 1, 1 << 24, &c->window, err));
    SIB_TRY(read_int(t, "num_kv_shared_layers", 0, c->n_layers, &c->n_shared, err));
    if (!c->unified) SIB_TRY(read_int(t, "hidden_size_per_layer_input", 0, 8192, &c->ple, err));
    c->n_vocab_ple = c->n_vocab;
    SIB_TRY(read_int(t, "vocab_size_per_layer_input", 0, 1 << 22, &c->n_vocab_ple, err));
    SIB_TRY(read_int(t, "max_position_embeddings", 1, 1 << 24, &c->max_positions, err));
    SIB_TRY(read_int(t, "pad_token_id", 0, 1 << 22, &c->pad_id, err));
    SIB_TRY(sib_json_num(t, WHERE, "rms_norm_eps", 0, 1, &c->eps, err));
    SIB_TRY(sib_json_num(t, WHERE, "final_logit_softcapping", 0, 1e6, &c->softcap, err));
    SIB_TRY(sib_json_bool(t, WHERE, "attention_k_eq_v", &c->k_eq_v, err));
    SIB_TRY(sib_json_bool(t, WHERE, "use_double_wide_mlp", &c->double_wide, err));
    c->tied = true;
    SIB_TRY(sib_json_bool(t, WHERE, "tie_word_embeddings", &c->tied, err));
    SIB_TRY(sib_json_bool(root, WHERE, "tie_word_embeddings", &c->tied, err));
    bool bias = false, moe = false;
    SIB_TRY(sib_json_bool(t, WHERE, "attention_bias", &bias, err));
    if (bias) return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": attention_bias true is not supported");
    SIB_TRY(sib_json_str(t, WHERE, "hidden_activation", &act, err));
    if (strcmp(act, "gelu_pytorch_tanh")) return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": hidden_activation \"%s\" is not supported", act);
    if (c->unified) bidi = "vision";
    SIB_TRY(sib_json_str(t, WHERE, "use_bidirectional_attention", &bidi, err));
    if (bidi && strcmp(bidi, "vision"))
        return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": use_bidirectional_attention \"%s\" is not supported", bidi);
    c->bidirectional = bidi != NULL;

    c->n_global_kv_heads = c->n_kv_heads;
    if (c->k_eq_v) SIB_TRY(read_int(t, "num_global_key_value_heads", 1, 512, &c->n_global_kv_heads, err));
    SIB_TRY(sib_json_bool(t, WHERE, "enable_moe_block", &moe, err));
    if (moe) {
        SIB_TRY(require_int(t, "num_experts", 4096, &c->n_experts, err));
        SIB_TRY(require_int(t, "top_k_experts", 4096, &c->top_k, err));
        SIB_TRY(read_int(t, "expert_intermediate_size", 1, 1 << 20, &c->moe_ffn, err)); /* legacy alias */
        SIB_TRY(read_int(t, "moe_intermediate_size", 1, 1 << 20, &c->moe_ffn, err));
    }
    c->image_id = 258880;
    c->boi_id = 255999;
    c->eoi_id = 258882;
    SIB_TRY(read_int(root, "image_token_id", 0, 1 << 22, &c->image_id, err));
    SIB_TRY(read_int(root, "boi_token_id", 0, 1 << 22, &c->boi_id, err));
    SIB_TRY(read_int(root, "eoi_token_id", 0, 1 << 22, &c->eoi_id, err));
    c->audio_id = c->video_id = -1;
    SIB_TRY(read_int(root, "audio_token_id", 0, 1 << 22, &c->audio_id, err));
    SIB_TRY(read_int(root, "video_token_id", 0, 1 << 22, &c->video_id, err));

    c->full = calloc((size_t)c->n_layers, sizeof *c->full);
    c->layer_dim = calloc((size_t)c->n_layers, sizeof *c->layer_dim);
    if (!c->full || !c->layer_dim) return sib_nomem(err, "layer list");
    SIB_TRY(read_layer_types(c, t, err));
    SIB_TRY(read_rope(c, t, err));
    SIB_TRY(read_layer_dims(c, t, err));
    return check(c, err);
}

void gemma4_config_deinit(gemma4_config *c)
{
    free(c->full);
    free(c->layer_dim);
    c->full = NULL;
    c->layer_dim = NULL;
}

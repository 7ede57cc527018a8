/* models/diffusion_gemma/config.c - config.json of DiffusionGemma: keys, defaults, bounds (diffusion_gemma.md 1.2).
 *
 * A missing key takes the value of the released model, not the class default of transformers, which describes none.
 * JSON null counts as missing. Numbers are bounded so that no later product overflows. */
#include "models/diffusion_gemma/diffusion_gemma.h"

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

/* Absent: five sliding layers, one full one, and the last is full. */
static sib_status read_layer_types(diffusion_config *c, const json_t *t, sib_err *err)
{
    const json_t *types = sib_json_get(t, "layer_types");
    for (int i = 0; i < c->n_layers; i++) c->full[i] = (i + 1) % 6 == 0 || i == c->n_layers - 1;
    if (!types) return SIB_OK;
    if (!json_is_array(types) || json_array_size(types) != (size_t)c->n_layers)
        return sib_fail(err, SIB_EFORMAT, WHERE ": layer_types must list %d layers", c->n_layers);
    for (int i = 0; i < c->n_layers; i++) {
        const char *s = json_string_value(json_array_get(types, (size_t)i));
        if (!s || (strcmp(s, "sliding_attention") && strcmp(s, "full_attention")))
            return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": layer_types[%d] is \"%.64s\"; known are sliding_attention and full_attention", i,
                            s ? s : "(not a string)");
        c->full[i] = s[0] == 'f';
    }
    return SIB_OK;
}

static sib_status read_rope(diffusion_config *c, const json_t *t, sib_err *err)
{
    static const char *const kinds[2] = {"sliding_attention", "full_attention"};
    const json_t *all = sib_json_get(t, "rope_parameters");
    for (int k = 0; k < 2; k++) {
        const char *type = k == SIB_FULL ? "proportional" : "default";
        const json_t *p = sib_json_get(all, kinds[k]);
        c->rope_theta[k] = k == SIB_FULL ? 1e6 : 1e4;
        c->rope_partial[k] = k == SIB_FULL ? 0.25 : 1.0;
        SIB_TRY(sib_json_str(p, WHERE, "rope_type", &type, err));
        if (strcmp(type, "proportional") && strcmp(type, "default"))
            return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": rope_type \"%.64s\" of %s is not supported", type, kinds[k]);
        c->rope_proportional[k] = type[0] == 'p';
        if (!c->rope_proportional[k]) c->rope_partial[k] = 1.0;
        SIB_TRY(sib_json_num(p, WHERE, "rope_theta", 1.0, 1e12, &c->rope_theta[k], err));
        SIB_TRY(sib_json_num(p, WHERE, "partial_rotary_factor", 1e-3, 1.0, &c->rope_partial[k], err));
    }
    return SIB_OK;
}

/* Newer files repeat a layer's own sizes in per_layer_config = {"5": {"head_dim": 512, "num_key_value_heads": 2}}. */
static sib_status check_layers(const diffusion_config *c, const json_t *t, sib_err *err)
{
    const json_t *own = sib_json_get(t, "per_layer_config");
    for (int i = 0; own && i < c->n_layers; i++) {
        char key[16];
        (void)snprintf(key, sizeof key, "%d", i);
        const json_t *o = sib_json_get(own, key);
        const int want[2] = {c->full[i] ? c->global_head_dim : c->head_dim, c->full[i] ? c->n_global_kv_heads : c->n_kv_heads};
        int dim = want[0], kv = want[1];
        SIB_TRY(read_int(o, "head_dim", 8, 512, &dim, err));
        SIB_TRY(read_int(o, "num_key_value_heads", 1, 512, &kv, err));
        if (dim != want[0] || kv != want[1])
            return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": per_layer_config gives layer %d %d KV heads of %d, its kind has %d of %d", i, kv, dim,
                            want[1], want[0]);
    }
    return SIB_OK;
}

static sib_status check(const diffusion_config *c, sib_err *err)
{
    if (c->head_dim % 8 || c->global_head_dim % 8)
        return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": head_dim %d and global_head_dim %d must be multiples of 8", c->head_dim, c->global_head_dim);
    if (c->n_heads % c->n_kv_heads || c->n_heads % c->n_global_kv_heads)
        return sib_fail(err, SIB_EFORMAT, WHERE ": num_attention_heads %d is not a multiple of the KV heads (%d, %d)", c->n_heads, c->n_kv_heads,
                        c->n_global_kv_heads);
    if (c->top_k > c->n_experts) return sib_fail(err, SIB_EFORMAT, WHERE ": top_k_experts %d of %d experts cannot be", c->top_k, c->n_experts);
    return SIB_OK;
}

static sib_status read_text(diffusion_config *c, const json_t *t, sib_err *err)
{
    const struct {
        const char *key;
        int *value, released;
        int64_t lo, hi;
    } ints[] = {
        {"vocab_size", &c->n_vocab, 262144, 1, 1 << 20},
        {"hidden_size", &c->hidden, 2816, 1, 65536},
        {"num_hidden_layers", &c->n_layers, 30, 1, 512},
        {"num_attention_heads", &c->n_heads, 16, 1, 512},
        {"num_key_value_heads", &c->n_kv_heads, 8, 1, 512},
        {"num_global_key_value_heads", &c->n_global_kv_heads, 2, 1, 512},
        {"head_dim", &c->head_dim, 256, 8, 512},
        {"global_head_dim", &c->global_head_dim, 512, 8, 512},
        {"intermediate_size", &c->ffn, 2112, 1, 1 << 20},
        {"moe_intermediate_size", &c->moe_ffn, 704, 1, 1 << 20},
        {"num_experts", &c->n_experts, 128, 1, 4096},
        {"top_k_experts", &c->top_k, 8, 1, 4096},
        {"sliding_window", &c->window, 1024, 1, 1 << 24},
        {"max_position_embeddings", &c->max_positions, 262144, 1, 1 << 24},
        {"pad_token_id", &c->pad_id, 0, 0, 1 << 20},
    };
    for (size_t i = 0; i < SIB_COUNT(ints); i++) {
        *ints[i].value = ints[i].released;
        SIB_TRY(read_int(t, ints[i].key, ints[i].lo, ints[i].hi, ints[i].value, err));
    }
    bool bias = false;
    const char *act = "gelu_pytorch_tanh", *bidi = NULL;
    c->eps = 1e-6;
    c->softcap = 30;
    SIB_TRY(sib_json_num(t, WHERE, "rms_norm_eps", 0, 1, &c->eps, err));
    SIB_TRY(sib_json_num(t, WHERE, "final_logit_softcapping", 1e-3, 1e6, &c->softcap, err));
    SIB_TRY(sib_json_bool(t, WHERE, "attention_bias", &bias, err));
    SIB_TRY(sib_json_str(t, WHERE, "hidden_activation", &act, err));
    SIB_TRY(sib_json_str(t, WHERE, "use_bidirectional_attention", &bidi, err));
    if (bias) return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": attention_bias true is not supported");
    if (strcmp(act, "gelu_pytorch_tanh")) return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": hidden_activation \"%.64s\" is not supported", act);
    if (bidi && strcmp(bidi, "vision"))
        return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": use_bidirectional_attention \"%.64s\" is not supported", bidi);
    c->bidirectional = bidi != NULL;
    if (c->pad_id >= c->n_vocab) return sib_fail(err, SIB_EFORMAT, WHERE ": pad_token_id %d is outside the vocabulary of %d", c->pad_id, c->n_vocab);
    return SIB_OK;
}

sib_status diffusion_config_read(diffusion_config *c, const json_t *root, sib_err *err)
{
    const json_t *t = sib_json_get(root, "text_config");
    if (!t) t = root;
    *c = (diffusion_config){.canvas = 256, .image_id = 258880, .boi_id = 255999, .eoi_id = 258882, .video_id = -1};
    SIB_TRY(read_text(c, t, err));
    SIB_TRY(read_int(root, "canvas_length", 1, 4096, &c->canvas, err));
    SIB_TRY(read_int(root, "image_token_id", 0, 1 << 22, &c->image_id, err));
    SIB_TRY(read_int(root, "boi_token_id", 0, 1 << 22, &c->boi_id, err));
    SIB_TRY(read_int(root, "eoi_token_id", 0, 1 << 22, &c->eoi_id, err));
    SIB_TRY(read_int(root, "video_token_id", 0, 1 << 22, &c->video_id, err));
    bool tied = true;
    SIB_TRY(sib_json_bool(t, WHERE, "tie_word_embeddings", &tied, err));
    SIB_TRY(sib_json_bool(root, WHERE, "tie_word_embeddings", &tied, err));
    if (!tied) return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": tie_word_embeddings false is not supported: encoder and denoiser share their weights");
    c->full = calloc((size_t)c->n_layers, sizeof *c->full);
    if (!c->full) return sib_nomem(err, "layer list");
    SIB_TRY(read_layer_types(c, t, err));
    SIB_TRY(read_rope(c, t, err));
    SIB_TRY(check_layers(c, t, err));
    return check(c, err);
}

void diffusion_config_deinit(diffusion_config *c)
{
    free(c->full);
    c->full = NULL;
}

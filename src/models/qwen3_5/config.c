/* models/qwen3_5/config.c - config.json of the Qwen3.5 family: keys, defaults, bounds (qwen3_5.md section 1).
 *
 * A missing key takes the Hugging Face default; JSON null counts as missing. The keys of attention and feed-forward are
 * read where the mtp companion reads them too (layers/qwen_layer.c). Numbers are bounded so that no later product overflows. */
#include "models/qwen3_5/qwen3_5.h"

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

static sib_status read_layer_types(qwen3_5_config *c, const json_t *t, sib_err *err)
{
    const json_t *types = sib_json_get(t, "layer_types");
    int interval = 4, n_full = 0;
    SIB_TRY(read_int(t, "full_attention_interval", 1, 512, &interval, err));
    if (types && (!json_is_array(types) || json_array_size(types) != (size_t)c->n_layers))
        return sib_fail(err, SIB_EFORMAT, WHERE ": layer_types must list %d layers", c->n_layers);
    for (int i = 0; i < c->n_layers; i++) {
        const char *s = (i + 1) % interval ? "linear_attention" : "full_attention";
        if (types) s = json_string_value(json_array_get(types, (size_t)i));
        if (!s || (strcmp(s, "linear_attention") && strcmp(s, "full_attention")))
            return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": layer_types[%d] is \"%.64s\"; known are linear_attention and full_attention", i,
                            s ? s : "(not a string)");
        c->full[i] = s[0] == 'f';
        n_full += c->full[i];
    }
    return n_full ? SIB_OK : sib_fail(err, SIB_EUNSUPPORTED, WHERE ": no layer of %d is full_attention", c->n_layers);
}

sib_status qwen3_5_config_read(qwen3_5_config *c, const json_t *root, sib_err *err)
{
    const json_t *t = sib_json_get(root, "text_config");
    if (!t) t = root;
    if (!json_is_object(t)) return sib_fail(err, SIB_EFORMAT, WHERE ": text_config is not an object");
    *c = (qwen3_5_config){.n_layers = 32, .n_k_heads = 16, .n_v_heads = 32, .k_dim = 128, .v_dim = 128, .taps = 4};
    SIB_TRY(sib_qwen_shape_read(&c->shape, t, root, WHERE, err));
    SIB_TRY(read_int(t, "num_hidden_layers", 1, 512, &c->n_layers, err));
    SIB_TRY(read_int(t, "linear_num_key_heads", 1, 512, &c->n_k_heads, err));
    SIB_TRY(read_int(t, "linear_num_value_heads", 1, 512, &c->n_v_heads, err));
    SIB_TRY(read_int(t, "linear_key_head_dim", 1, SIB_DELTA_DIM, &c->k_dim, err));
    SIB_TRY(read_int(t, "linear_value_head_dim", 1, SIB_DELTA_DIM, &c->v_dim, err));
    SIB_TRY(read_int(t, "linear_conv_kernel_dim", 2, SIB_DELTA_TAPS, &c->taps, err));
    if (c->n_v_heads % c->n_k_heads)
        return sib_fail(err, SIB_EFORMAT, WHERE ": linear_num_value_heads %d is not a multiple of linear_num_key_heads %d", c->n_v_heads, c->n_k_heads);
    c->full = calloc((size_t)c->n_layers, sizeof *c->full);
    if (!c->full) return sib_nomem(err, "layer list");
    return read_layer_types(c, t, err);
}

void qwen3_5_config_deinit(qwen3_5_config *c)
{
    free(c->full);
    c->full = NULL;
}

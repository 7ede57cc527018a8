/* drafters/block.c - see block.h. */
#include "drafters/block.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTEXT_ROWS 128 /* of one pass over committed rows */
#define LOGIT_ROWS   64  /* over the vocabulary at once     */

struct sib_draft_state {
    sib_kv_seq *kv;
    int32_t base; /* position of the first context row; -1: nothing known */
};

static sib_block *self(const sib_drafter *d)
{
    return (sib_block *)(uintptr_t)d;
}

void sib_block_stage(const sib_step *st, const float *values, int rows, int n, const char *fmt, ...)
{
    char name[96];
    if (!st->trace->fn) return;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    sib_step_trace(st, name, -1, values, rows, n);
}

/* ---- config ----------------------------------------------------------------------------------- */

sib_status sib_block_int(const json_t *o, const char *where, const char *key, int64_t lo, int64_t hi, bool must,
                         int *out, sib_err *err)
{
    int64_t v = *out;
    if (must && !sib_json_get(o, key)) return sib_fail(err, SIB_EFORMAT, "%s: key \"%s\" is missing", where, key);
    SIB_TRY(sib_json_int(o, where, key, lo, hi, &v, err));
    *out = (int)v;
    return SIB_OK;
}

sib_status sib_block_taps(sib_block *b, const json_t *list, const char *where, const char *key, int lo, int hi,
                          bool rising, sib_err *err)
{
    size_t n = json_array_size(list);
    if (n == 0) return sib_fail(err, SIB_EFORMAT, "%s: %s must list the target layers to tap", where, key);
    if (n > SIB_MAX_TAPS)
        return sib_fail(err, SIB_EUNSUPPORTED, "%s: %s lists %zu layers, at most %d are supported", where, key, n,
                        SIB_MAX_TAPS);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < lo || id > hi)
            return sib_fail(err, SIB_EFORMAT, "%s: %s[%zu] is no layer index from %d to %d", where, key, i, lo, hi);
        if (rising && i > 0 && id <= b->tap_layers[i - 1])
            return sib_fail(err, SIB_EFORMAT, "%s: %s must rise, %d is followed by %d", where, key,
                            b->tap_layers[i - 1], (int)id);
        b->tap_layers[i] = (int)id;
    }
    b->needs.taps = true;
    b->needs.tap_layers = b->tap_layers;
    b->needs.n_taps = (int)n;
    return SIB_OK;
}

sib_status sib_block_check(const sib_block *b, const char *where, sib_err *err)
{
    if (b->n_heads % b->n_kv_heads)
        return sib_fail(err, SIB_EFORMAT, "%s: %d attention heads do not share %d KV heads", where, b->n_heads,
                        b->n_kv_heads);
    if (b->head_dim % 8 || b->head_dim > 512)
        return sib_fail(err, SIB_EUNSUPPORTED, "%s: heads of %d dimensions; supported are multiples of 8 up to 512",
                        where, b->head_dim);
    if (2 * b->n_pairs > b->head_dim)
        return sib_fail(err, SIB_EFORMAT, "%s: %d rotated pairs in heads of %d dimensions", where, b->n_pairs,
                        b->head_dim);
    return SIB_OK;
}

/* ---- weights ---------------------------------------------------------------------------------- */

static sib_status load_conv(const sib_block *b, sib_loader *l, sib_block_conv *c, const char *root, int i,
                            const char *name, sib_err *err)
{
    char tensor[128];
    int h = b->hidden;
    (void)snprintf(tensor, sizeof tensor, "%slayers.%d.%s.base_kernel", root, i, name);
    float *host = malloc((size_t)h * 4 * sizeof *host);
    if (!host) return sib_nomem(err, tensor);
    sib_status s = sib_tensor_of(l->files, tensor, 3, (const int64_t[]){2, 2, h}, host, err);
    if (s == SIB_OK) s = sib_load_values(l, &c->base, host, (int64_t)h * 4, err);
    free(host);
    SIB_TRY(s);
    return sib_load_linear(l, &c->kernel, 4 * (h / b->conv_group), h, err, "%slayers.%d.%s.kernel_projection", root, i,
                           name);
}

static sib_status load_layer(const sib_block *b, sib_loader *l, sib_block_layer *w, const char *root, int i, int bits,
                             bool gemma, sib_err *err)
{
    int h = b->hidden, nd = b->n_heads * b->head_dim, kd = b->n_kv_heads * b->head_dim;
    SIB_TRY(sib_load_vector(l, &w->in_norm, h, 1, err, "%slayers.%d.input_layernorm.weight", root, i));
    SIB_TRY(sib_load_vector(l, gemma ? &w->post_attn_norm : &w->mid_norm, h, 1, err,
                            "%slayers.%d.post_attention_layernorm.weight", root, i));
    if (gemma) {
        SIB_TRY(sib_load_vector(l, &w->mid_norm, h, 1, err, "%slayers.%d.pre_feedforward_layernorm.weight", root, i));
        SIB_TRY(
            sib_load_vector(l, &w->post_ffn_norm, h, 1, err, "%slayers.%d.post_feedforward_layernorm.weight", root, i));
        SIB_TRY(sib_load_host(l, &w->scalar, 1, err, "%slayers.%d.layer_scalar", root, i));
    } else {
        SIB_TRY(sib_load_linear_bits(l, &w->v, kd, h, bits, err, "%slayers.%d.self_attn.v_proj", root, i));
    }
    SIB_TRY(sib_load_vector(l, &w->q_norm, b->head_dim, 1, err, "%slayers.%d.self_attn.q_norm.weight", root, i));
    SIB_TRY(sib_load_vector(l, &w->k_norm, b->head_dim, 1, err, "%slayers.%d.self_attn.k_norm.weight", root, i));
    SIB_TRY(sib_load_linear_bits(l, &w->q, nd, h, bits, err, "%slayers.%d.self_attn.q_proj", root, i));
    SIB_TRY(sib_load_linear_bits(l, &w->k, kd, h, bits, err, "%slayers.%d.self_attn.k_proj", root, i));
    SIB_TRY(sib_load_linear_bits(l, &w->o, h, nd, bits, err, "%slayers.%d.self_attn.o_proj", root, i));
    SIB_TRY(sib_load_linear_bits(l, &w->gate, b->ffn, h, bits, err, "%slayers.%d.mlp.gate_proj", root, i));
    SIB_TRY(sib_load_linear_bits(l, &w->up, b->ffn, h, bits, err, "%slayers.%d.mlp.up_proj", root, i));
    SIB_TRY(sib_load_linear_bits(l, &w->down, h, b->ffn, bits, err, "%slayers.%d.mlp.down_proj", root, i));
    if (b->conv_group == 0) return SIB_OK;
    SIB_TRY(load_conv(b, l, &w->attn_conv, root, i, "attention_conv", err));
    return load_conv(b, l, &w->mlp_conv, root, i, "mlp_conv", err);
}

sib_status sib_block_load_layers(sib_block *b, sib_loader *l, const char *root, int bits, bool gemma, sib_err *err)
{
    int h = b->hidden;
    SIB_TRY(sib_load_linear_bits(l, &b->fc, h, b->needs.n_taps * b->needs.hidden_width, bits, err, "%sfc", root));
    SIB_TRY(sib_load_vector(l, &b->hidden_norm, h, 1, err, "%shidden_norm.weight", root));
    SIB_TRY(sib_load_vector(l, &b->norm, h, 1, err, "%snorm.weight", root));
    for (int i = 0; i < b->n_layers; i++) SIB_TRY(load_layer(b, l, &b->layers[i], root, i, bits, gemma, err));
    return SIB_OK;
}

/* Frequencies theta^(-2i / head_dim): the exponent runs over the whole head, however many pairs rotate. */
static sib_status load_rope(sib_block *b, sib_loader *l, sib_err *err)
{
    float f[256];
    if (b->n_pairs == 0) return SIB_OK;
    for (int i = 0; i < b->n_pairs; i++) f[i] = (float)pow(b->theta, -2.0 * i / b->head_dim);
    b->rope = (sib_rope){.n_pairs = b->n_pairs, .distance = b->interleaved ? 0 : b->head_dim / 2};
    return sib_load_values(l, &b->inv_freq, f, b->n_pairs, err);
}

/* ---- the network ------------------------------------------------------------------------------ */

/* Norm, then rotation, of heads; a trace sees the heads between them. */
static void norm_and_rotate(const sib_block *b, const sib_step *st, float *x, int heads, const float *w, bool rotate,
                            const sib_block_rows *r, const char *part, int layer, const char *name)
{
    const sib_ops *op = st->dev->ops;
    int n = heads * b->head_dim;
    const float *cs = rotate && b->n_pairs ? r->cs : NULL;
    bool norm = w || !rotate; /* V without a projection of its own is normed by ones */
    if (!norm && !cs) return;
    if (!st->trace->fn) {
        op->head_norm_rope(st->dev, x, r->n, heads, b->head_dim, n, w, norm ? b->eps : 0, &b->rope, cs);
        return;
    }
    if (norm) op->head_norm_rope(st->dev, x, r->n, heads, b->head_dim, n, w, b->eps, &b->rope, NULL);
    sib_block_stage(st, x, r->n, n, "%s.layer.%d.self_attn.%s", part, layer, name);
    if (cs) op->head_norm_rope(st->dev, x, r->n, heads, b->head_dim, n, NULL, 0, &b->rope, cs);
}

/* K and V of rows from their projections into the cache. */
static void store_keys(const sib_block *b, const sib_step *st, const sib_block_rows *r, int layer, float *k, float *v,
                       const char *part, const char *which)
{
    const sib_ops *op = st->dev->ops;
    const sib_block_layer *w = &b->layers[layer];
    int kd = b->n_kv_heads * b->head_dim;
    sib_kv_geom geom = {b->n_kv_heads, b->head_dim, b->head_dim};
    sib_block_stage(st, k, r->n, kd, "%s.layer.%d.self_attn.k_proj.%s", part, layer, which);
    if (w->v.w) {
        sib_block_stage(st, v, r->n, kd, "%s.layer.%d.self_attn.v_proj.%s", part, layer, which);
    } else {
        op->copy_rows(st->dev, v, kd, k, kd, r->n, kd);
        norm_and_rotate(b, st, v, b->n_kv_heads, NULL, false, r, part, layer, "v_norm");
    }
    norm_and_rotate(b, st, k, b->n_kv_heads, w->k_norm, true, r, part, layer, "k_norm");
    sib_block_stage(st, k, r->n, kd, "%s.layer.%d.keys", part, layer);
    sib_block_stage(st, v, r->n, kd, "%s.layer.%d.values", part, layer);
    for (int i = 0; i < r->n_spans; i++) r->spans[i].kv = sib_kv_view_of(r->seqs[i], layer);
    op->kv_append(st->dev, &geom, r->spans, r->n_spans, k, v);
}

/* Which cache positions a row sees: the window moves with the row, the block is seen whole unless the layer is causal.
 * A key is inside the window when it is less than `window` away on either side (dflash2.md 8). */
static void visible(const sib_block_layer *w, const sib_block_rows *r)
{
    for (int s = 0; s < r->n_spans; s++)
        for (int i = 0; i < r->spans[s].n_rows; i++) {
            int32_t at = r->spans[s].pos0 + i, end = r->spans[s].pos0 + r->spans[s].n_rows;
            int row = r->spans[s].row0 + i;
            r->lo[row] = w->window > 0 && at >= w->window ? at - w->window + 1 : 0;
            r->hi[row] = w->causal ? at + 1 : w->window > 0 && end - at > w->window ? at + w->window : end;
        }
}

static void rotation_angles(const sib_block *b, const sib_step *st, sib_block_rows *r)
{
    if (b->n_pairs == 0) return;
    r->cs = SIB_PUSH(st->arena, float, (size_t)r->n * 2 * (size_t)b->n_pairs);
    st->dev->ops->rope_angles(st->dev, r->cs, b->inv_freq, b->n_pairs, r->pos, r->n);
}

/* Taps of committed rows become context: c = norm(fc taps), then every layer's keys and values of the same c. */
static void context_forward(sib_block *b, const sib_step *st, const float *taps, sib_block_rows *r)
{
    const sib_ops *op = st->dev->ops;
    size_t mark = st->arena->top, kd = (size_t)b->n_kv_heads * (size_t)b->head_dim;
    float *c = SIB_PUSH(st->arena, float, (size_t)r->n *(size_t)b->hidden),
          *n = SIB_PUSH(st->arena, float, (size_t)r->n *(size_t)b->hidden);
    float *k = SIB_PUSH(st->arena, float, (size_t)r->n *kd), *v = SIB_PUSH(st->arena, float, (size_t)r->n *kd);
    rotation_angles(b, st, r);
    op->linear(st->dev, 1, &c, (const sib_matrix *const[]){b->fc.w}, taps, r->n);
    sib_block_stage(st, c, r->n, b->hidden, "context.fc");
    op->rms_norm(st->dev, c, c, b->hidden_norm, r->n, b->hidden, b->eps);
    sib_block_stage(st, c, r->n, b->hidden, "context.hidden_norm");
    for (int i = 0; i < b->n_layers; i++) {
        const sib_block_layer *w = &b->layers[i];
        if (b->context_in_norm) op->rms_norm(st->dev, n, c, w->in_norm, r->n, b->hidden, b->eps);
        op->linear(st->dev, w->v.w ? 2 : 1, (float *const[]){k, v}, (const sib_matrix *const[]){w->k.w, w->v.w},
                   b->context_in_norm ? n : c, r->n);
        store_keys(b, st, r, i, k, v, "context", "0");
    }
    st->arena->top = mark;
}

/* y = [residual +] the stage's convolution of x, coefficients from delta. */
static void convolve(const sib_block *b, const sib_step *st, const sib_block_conv *c, int stage, float *y,
                     const float *x, const float *delta, const float *residual, const sib_block_rows *r)
{
    int groups = b->hidden / b->conv_group;
    st->dev->ops->two_tap(st->dev, y, x, c->base + (size_t)stage * 2 * (size_t)b->hidden,
                          delta + (size_t)stage * 2 * (size_t)groups, 4 * groups, b->conv_group, r->in_block, r->n,
                          b->hidden, residual);
}

static float *predict_conv(const sib_block *b, const sib_step *st, const sib_block_conv *c, const float *x,
                           const sib_block_rows *r, int layer, const char *name)
{
    int n = 4 * (b->hidden / b->conv_group);
    float *delta = SIB_PUSH(st->arena, float, (size_t)r->n *(size_t)n);
    st->dev->ops->linear(st->dev, 1, &delta, (const sib_matrix *const[]){c->kernel.w}, x, r->n);
    sib_block_stage(st, delta, r->n, n, "draft.layer.%d.%s.kernel_projection", layer, name);
    return delta;
}

/* h += x, through whatever the layer puts between: an output norm, a convolution, or nothing. */
static void add_output(const sib_block *b, const sib_step *st, float *h, float *x, const float *norm, float scalar,
                       const sib_block_conv *c, const float *delta, const sib_block_rows *r, int layer,
                       const char *name)
{
    const sib_ops *op = st->dev->ops;
    if (norm) {
        float *traced = SIB_PUSH(st->arena, float, (size_t)r->n *(size_t)b->hidden);
        if (st->trace->fn) {
            op->rms_norm(st->dev, traced, x, norm, r->n, b->hidden, b->eps);
            sib_block_stage(st, traced, r->n, b->hidden, "draft.layer.%d.%s", layer, name);
        }
        op->rms_norm_add(st->dev, h, x, norm, r->n, b->hidden, b->eps, scalar);
    } else if (delta) {
        convolve(b, st, c, 1, h, x, delta, h, r);
    } else {
        op->add(st->dev, h, h, x, (int64_t)r->n * b->hidden);
    }
}

static void attention(const sib_block *b, const sib_step *st, int layer, float *y, const float *x,
                      const sib_block_rows *r)
{
    const sib_ops *op = st->dev->ops;
    const sib_block_layer *w = &b->layers[layer];
    size_t nd = (size_t)b->n_heads * (size_t)b->head_dim, kd = (size_t)b->n_kv_heads * (size_t)b->head_dim;
    float *q = SIB_PUSH(st->arena, float, (size_t)r->n *nd), *a = SIB_PUSH(st->arena, float, (size_t)r->n *nd);
    float *k = SIB_PUSH(st->arena, float, (size_t)r->n *kd), *v = SIB_PUSH(st->arena, float, (size_t)r->n *kd);
    op->linear(st->dev, w->v.w ? 3 : 2, (float *const[]){q, k, v}, (const sib_matrix *const[]){w->q.w, w->k.w, w->v.w},
               x, r->n);
    sib_block_stage(st, q, r->n, (int)nd, "draft.layer.%d.self_attn.q_proj", layer);
    norm_and_rotate(b, st, q, b->n_heads, w->q_norm, true, r, "draft", layer, "q_norm");
    store_keys(b, st, r, layer, k, v, "draft", "1");
    visible(w, r);
    sib_attend at = {.spans = r->spans,
                     .n_spans = r->n_spans,
                     .n_rows = r->n,
                     .geom = {b->n_kv_heads, b->head_dim, b->head_dim},
                     .n_heads = b->n_heads,
                     .scale = b->scale,
                     .lo = r->lo,
                     .hi = r->hi};
    op->attend(st->dev, a, q, &at);
    op->linear(st->dev, 1, &y, (const sib_matrix *const[]){w->o.w}, a, r->n);
    sib_block_stage(st, y, r->n, b->hidden, "draft.layer.%d.self_attn.o_proj", layer);
}

static void layer_forward(const sib_block *b, const sib_step *st, int layer, float *h, const sib_block_rows *r)
{
    const sib_ops *op = st->dev->ops;
    const sib_block_layer *w = &b->layers[layer];
    size_t mark = st->arena->top, n = (size_t)r->n * (size_t)b->hidden;
    float *x = SIB_PUSH(st->arena, float, n), *y = SIB_PUSH(st->arena, float, n),
          *f = SIB_PUSH(st->arena, float, (size_t)r->n *(size_t)b->ffn), *delta = NULL;

    op->rms_norm(st->dev, x, h, w->in_norm, r->n, b->hidden, b->eps);
    sib_block_stage(st, x, r->n, b->hidden, "draft.layer.%d.input_layernorm", layer);
    if (w->attn_conv.base) {
        delta = predict_conv(b, st, &w->attn_conv, x, r, layer, "attention_conv");
        convolve(b, st, &w->attn_conv, 0, y, x, delta, NULL, r);
    }
    attention(b, st, layer, delta ? x : y, delta ? y : x, r);
    add_output(b, st, h, delta ? x : y, w->post_attn_norm, 1, &w->attn_conv, delta, r, layer,
               "post_attention_layernorm");
    sib_block_stage(st, h, r->n, b->hidden, "draft.layer.%d.after_attention", layer);

    op->rms_norm(st->dev, x, h, w->mid_norm, r->n, b->hidden, b->eps);
    sib_block_stage(st, x, r->n, b->hidden, "draft.layer.%d.%s", layer,
                    w->post_attn_norm ? "pre_feedforward_layernorm" : "post_attention_layernorm");
    if (w->mlp_conv.base) {
        delta = predict_conv(b, st, &w->mlp_conv, x, r, layer, "mlp_conv");
        convolve(b, st, &w->mlp_conv, 0, y, x, delta, NULL, r);
    }
    const float *in = delta ? y : x;
    if (st->trace->fn) {
        op->linear(st->dev, 1, &f, (const sib_matrix *const[]){w->gate.w}, in, r->n);
        sib_block_stage(st, f, r->n, b->ffn, "draft.layer.%d.mlp.gate_proj", layer);
    }
    op->linear_glu(st->dev, f, w->gate.w, w->up.w, b->act, in, r->n);
    op->linear(st->dev, 1, &x, (const sib_matrix *const[]){w->down.w}, f, r->n);
    sib_block_stage(st, x, r->n, b->hidden, "draft.layer.%d.mlp", layer);
    add_output(b, st, h, x, w->post_ffn_norm, w->scalar, &w->mlp_conv, delta, r, layer, "post_feedforward_layernorm");
    sib_block_stage(st, h, r->n, b->hidden, "draft.layer.%d.out", layer);
    st->arena->top = mark;
}

void sib_block_forward(sib_block *b, const sib_step *st, float *h, sib_block_rows *r)
{
    size_t mark = st->arena->top;
    rotation_angles(b, st, r);
    for (int i = 0; i < b->n_layers; i++) layer_forward(b, st, i, h, r);
    st->arena->top = mark;
}

void sib_block_stage_ids(const sib_step *st, const char *name, const int32_t *ids, int rows)
{
    float values[SIB_BLOCK_ROWS]; /* of the first request's block */
    if (!st->trace->fn) return;
    int n = rows < SIB_BLOCK_ROWS ? rows : SIB_BLOCK_ROWS;
    for (int i = 0; i < n; i++) values[i] = (float)ids[i];
    sib_step_trace(st, name, -1, values, n, 1);
}

int sib_block_group(const sib_block *b, int steps)
{
    int n = LOGIT_ROWS / steps > 1 ? LOGIT_ROWS / steps : 1;
    return n < b->n_seqs ? n : b->n_seqs;
}

int sib_confident_length(const float *confidence, int n, int first, const float *thresholds, int n_thresholds,
                         float rest)
{
    for (int i = first; i < n; i++)
        if (confidence[i] < (i < n_thresholds ? thresholds[i] : rest)) return i;
    return n;
}

/* ---- rounds ----------------------------------------------------------------------------------- */

/* n more rows of the sequence, from cache position pos0 and timeline position base + pos0. */
static void add_rows(sib_block_rows *r, sib_kv_seq *kv, int32_t base, int n)
{
    int32_t pos0 = sib_kv_length(kv);
    r->spans[r->n_spans] = (sib_span){.row0 = r->n, .n_rows = n, .pos0 = pos0};
    r->seqs[r->n_spans++] = kv;
    for (int i = 0; i < n; i++) {
        r->pos[r->n] = base + pos0 + i;
        r->in_block[r->n++] = i;
    }
}

/* The context is complete up to `position`; an empty one is when the timeline is empty too. */
static bool ready(sib_draft_state *s, int32_t position)
{
    if (s->base < 0 && position == 0) s->base = 0;
    return s->base >= 0 && s->base + sib_kv_length(s->kv) == position;
}

static sib_status propose(sib_drafter *d, sib_propose *lanes, int n, sib_err *err)
{
    sib_block *b = self(d);
    sib_block_rows *r = &b->rows;
    sib_step st = {b->dev, &b->arena, &b->trace};
    r->n = r->n_spans = b->n_lanes = 0;
    for (int i = 0; i < n; i++) {
        sib_propose *p = &lanes[i];
        int rows = b->variable_block && p->max + 1 < b->block ? p->max + 1 : b->block;
        p->n = 0;
        if (b->n_lanes == b->n_seqs || p->max < 1 || p->pending < 0 || p->pending >= b->n_vocab ||
            !ready(p->state, p->position))
            continue;
        if (sib_kv_begin(p->state->kv, rows, NULL) != SIB_OK) continue; /* no room: this request drafts nothing */
        add_rows(r, p->state->kv, p->state->base, rows);
        b->lanes[b->n_lanes++] = p;
    }
    if (r->n == 0) return SIB_OK;
    b->how->draft(b, &st, r);
    for (int i = 0; i < r->n_spans; i++) sib_kv_keep(r->seqs[i], 0);
    return b->arena.failed
               ? sib_fail(err, SIB_ECAPACITY, "%s drafter: step memory is too small for %d rows", b->how->label, r->n)
               : SIB_OK;
}

static void forget(sib_draft_state *s)
{
    (void)sib_kv_truncate(s->kv, 0, NULL);
    s->base = -1;
}

/* Makes the context end where the new rows begin; what it does not know it starts without. */
static void align(sib_draft_state *s, int32_t pos0)
{
    if (s->base >= 0 && pos0 >= s->base && pos0 <= s->base + sib_kv_length(s->kv) &&
        sib_kv_truncate(s->kv, pos0 - s->base, NULL) == SIB_OK)
        return;
    forget(s);
    s->base = pos0;
}

static sib_status settle(sib_drafter *d, const sib_settle *lanes, int n, sib_err *err)
{
    sib_block *b = self(d);
    sib_block_rows *r = &b->rows;
    sib_step st = {b->dev, &b->arena, &b->trace};
    int width = b->needs.n_taps * b->needs.hidden_width, lane = 0, done = 0;
    for (int i = 0; i < n; i++)
        if (lanes[i].n > 0) align(lanes[i].state, lanes[i].pos0);
    while (lane < n) {
        r->n = r->n_spans = 0;
        while (lane < n && r->n < CONTEXT_ROWS && r->n_spans < b->n_seqs) {
            const sib_settle *l = &lanes[lane];
            int rows = l->n - done < CONTEXT_ROWS - r->n ? l->n - done : CONTEXT_ROWS - r->n;
            if (rows > 0 && l->taps && sib_kv_begin(l->state->kv, rows, NULL) == SIB_OK) {
                b->dev->ops->copy_rows(b->dev, b->taps + (size_t)r->n * (size_t)width, width,
                                       l->taps + (size_t)done * (size_t)width, width, rows, width);
                add_rows(r, l->state->kv, l->state->base, rows);
                done += rows;
            } else if (rows > 0) { /* without taps or room the context ends; later rows start another */
                forget(l->state);
                done = l->n;
            }
            if (done >= l->n) {
                lane++;
                done = 0;
            }
        }
        if (r->n == 0) continue;
        context_forward(b, &st, b->taps, r);
        for (int i = 0; i < r->n_spans; i++) sib_kv_keep(r->seqs[i], r->spans[i].n_rows);
    }
    return b->arena.failed
               ? sib_fail(err, SIB_ECAPACITY, "%s drafter: step memory is too small for context rows", b->how->label)
               : SIB_OK;
}

static sib_status truncate_to(sib_drafter *d, sib_draft_state *s, int length, sib_err *err)
{
    if (s->base >= 0 && length > s->base && length <= s->base + sib_kv_length(s->kv) &&
        sib_kv_truncate(s->kv, length - s->base, NULL) == SIB_OK)
        return SIB_OK;
    forget(s);
    return length == 0 ? SIB_OK
                       : sib_fail(err, SIB_ESTATE, "%s drafter: the context does not reach back to position %d",
                                  self(d)->how->label, length);
}

static sib_status state_new(sib_drafter *d, sib_draft_state **out, sib_err *err)
{
    *out = NULL;
    sib_draft_state *s = calloc(1, sizeof *s);
    if (!s) return sib_nomem(err, "draft state");
    s->base = -1;
    sib_status status = sib_kv_seq_new(&s->kv, self(d)->pool, err);
    if (status != SIB_OK) {
        free(s);
        return status;
    }
    *out = s;
    return SIB_OK;
}

static void state_free(sib_drafter *d, sib_draft_state *s)
{
    (void)d;
    if (!s) return;
    sib_kv_seq_free(s->kv);
    free(s);
}

static const sib_needs *needs(const sib_drafter *d)
{
    return &self(d)->needs;
}

/* ---- open ------------------------------------------------------------------------------------- */

static void block_free(sib_drafter *d)
{
    sib_block *b = self(d);
    if (!b) return;
    sib_kv_pool_free(b->pool);
    sib_kv_layout_free(b->layout);
    if (b->dev) sib_weights_deinit(&b->weights, b->dev);
    free(b->rows.spans);
    free(b->rows.seqs);
    free(b->rows.pos);
    free(b->ids);
    free(b->confidence);
    free(b->lanes);
    free(b);
}

static sib_status plan_cache(sib_block *b, int n_ctx, sib_err *err)
{
    sib_kv_layer layers[SIB_BLOCK_LAYERS];
    int rows = b->block > CONTEXT_ROWS ? b->block : CONTEXT_ROWS;
    for (int i = 0; i < b->n_layers; i++)
        layers[i] = (sib_kv_layer){
            .geom = {b->n_kv_heads, b->head_dim, b->head_dim}, .window = b->layers[i].window, .donor = -1};
    SIB_TRY(sib_kv_layout_new(&b->layout, layers, b->n_layers, n_ctx + b->block, rows, err));
    sib_kv_budget budget = {b->n_seqs, (int64_t)b->n_seqs * (n_ctx + b->block)};
    return sib_kv_pool_new(&b->pool, b->layout, b->dev, &budget, err);
}

/* Host rows, and step memory measured on a device that does nothing. */
static sib_status plan_step(sib_block *b, sib_loader *l, sib_err *err)
{
    size_t seqs = (size_t)b->n_seqs, block_rows = seqs * (size_t)b->block,
           rows = block_rows > CONTEXT_ROWS ? block_rows : CONTEXT_ROWS;
    sib_block_rows *r = &b->rows;
    void *p;
    r->spans = calloc(seqs, sizeof *r->spans);
    r->seqs = calloc(seqs, sizeof *r->seqs);
    r->pos = calloc(4 * rows, sizeof *r->pos);
    b->ids = calloc(block_rows, sizeof *b->ids);
    b->confidence = calloc(block_rows, sizeof *b->confidence);
    b->lanes = calloc(seqs, sizeof(sib_propose *));
    sib_propose *lanes = calloc(seqs, sizeof *lanes);
    int32_t *drafts = calloc(block_rows, sizeof *drafts);
    sib_status s = r->spans && r->seqs && r->pos && b->ids && b->confidence && b->lanes && lanes && drafts
                       ? SIB_OK
                       : sib_nomem(err, "draft rows");
    if (s == SIB_OK) {
        r->in_block = r->pos + rows;
        r->lo = r->pos + 2 * rows;
        r->hi = r->pos + 3 * rows;
        sib_nothing nothing;
        sib_arena planned;
        sib_trace off = {0};
        sib_nothing_init(&nothing, b->dev);
        sib_arena_plan(&planned);
        sib_step st = {&nothing.device, &planned, &off};
        r->n = CONTEXT_ROWS;
        context_forward(b, &st, (const float *)(uintptr_t)64, r);
        r->n = (int)block_rows;
        b->n_lanes = b->n_seqs;
        for (size_t i = 0; i < seqs; i++) {
            lanes[i] = (sib_propose){.max = b->block, .ids = drafts + i * (size_t)b->block};
            b->lanes[i] = &lanes[i];
            r->spans[i] = (sib_span){.row0 = (int)i * b->block, .n_rows = b->block};
        }
        b->how->draft(b, &st, r);
        b->n_lanes = 0;
        s = sib_load_buffer(l, &p, planned.peak, err);
        if (s == SIB_OK) b->arena = (sib_arena){.base = p, .cap = planned.peak};
    }
    free(lanes);
    free(drafts);
    SIB_TRY(s);
    SIB_TRY(sib_load_buffer(
        l, &p, CONTEXT_ROWS * (size_t)b->needs.n_taps * (size_t)b->needs.hidden_width * sizeof(float), err));
    b->taps = p;
    return SIB_OK;
}

static sib_status build(sib_block *b, sib_loader *l, sib_model *target, const sib_drafter_options *o, sib_err *err)
{
    b->ops = (sib_drafter_ops){b->how->kind, block_free, needs, state_new, state_free, truncate_to, propose, settle};
    b->base.ops = &b->ops;
    b->target = target;
    b->n_seqs = o->n_seqs > 0 ? o->n_seqs : 1;
    SIB_TRY(b->how->read_config(b, sib_checkpoint_config(l->files), o, err));
    SIB_TRY(sib_needs_check(&b->needs, b->how->label, target, err));
    int longest = b->variable_block ? b->block - 1 : b->block;
    b->base.max_draft = o->max_draft > 0 && o->max_draft < longest ? o->max_draft : longest;
    b->base.default_draft = b->base.max_draft;
    SIB_TRY(b->how->load(b, l, o, err));
    SIB_TRY(load_rope(b, l, err));
    SIB_TRY(plan_cache(b, target->facts.n_ctx, err));
    SIB_TRY(plan_step(b, l, err));
    return target->offers.taps->select(target, b->tap_layers, b->needs.n_taps, err);
}

sib_status sib_block_open(sib_drafter **out, const sib_block_kind *how, sib_loader *l, sib_model *target,
                          const sib_drafter_options *o, sib_err *err)
{
    *out = NULL;
    sib_block *b = calloc(1, how->bytes);
    if (!b) return sib_nomem(err, "drafter");
    b->how = how;
    b->dev = l->dev;
    l->into = &b->weights;
    sib_status s = build(b, l, target, o, err);
    if (s != SIB_OK) {
        block_free(&b->base);
        return s;
    }
    *out = &b->base;
    return SIB_OK;
}

sib_status sib_block_needs(const sib_block_kind *how, sib_needs *out, int taps[SIB_MAX_TAPS], const json_t *config,
                           sib_err *err)
{
    sib_block *b = calloc(1, how->bytes);
    if (!b) return sib_nomem(err, "drafter");
    sib_status s = how->read_config(b, config, &(sib_drafter_options){.n_seqs = 1}, err);
    *out = b->needs;
    memcpy(taps, b->tap_layers, SIB_MAX_TAPS * sizeof *taps);
    out->tap_layers = taps;
    free(b);
    return s;
}

/* ---- for tests and tools ------------------------------------------------------------------------ */

void sib_block_trace(sib_drafter *d, sib_trace trace)
{
    self(d)->trace = trace;
}

void sib_block_read(sib_drafter *d, const sib_draft_state *s, int layer, int first, int n, float *k, float *v)
{
    const sib_block *b = self(d);
    sib_kv_geom geom = {b->n_kv_heads, b->head_dim, b->head_dim};
    sib_kv_view view = sib_kv_view_of(s->kv, layer);
    b->dev->ops->kv_read(b->dev, &geom, &view, first, n, k, v);
}

int sib_block_context(const sib_draft_state *s)
{
    return sib_kv_length(s->kv);
}

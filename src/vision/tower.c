/* vision/tower.c - see tower.h. */
#include "vision/tower.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHERE "config.json: vision_config"

typedef struct tower_config {
    int hidden, ffn, n_layers, n_heads, n_kv_heads, head_dim;
    int patch, pool, n_positions;
    double eps, theta;
    bool clipped, standardize;
} tower_config;

typedef struct tower_linear {
    sib_linear l;
    float in_min, in_max, out_min, out_max; /* with use_clipped_linears */
} tower_linear;

typedef struct tower_layer {
    const float *in_norm, *post_attn_norm, *pre_ffn_norm, *post_ffn_norm; /* [hid] */
    tower_linear q, k, v;         /* [heads*head_dim, hid], [kv_heads*head_dim, hid] x2 */
    const float *q_norm, *k_norm; /* [head_dim] */
    tower_linear o;               /* [hid, heads*head_dim] */
    tower_linear gate, up, down;  /* [ffn, hid] x2, [hid, ffn] */
} tower_layer;

typedef struct tower {
    sib_vision vision; /* first */
    tower_config cfg;
    sib_linear input;     /* patch_embedder.input_proj [hid, patch*patch*3]                          */
    bool input_quantized;
    sib_linear positions; /* patch_embedder.position_embedding_table [2 * n_positions, hid]: x, then y */
    tower_layer *layers;
    const float *inv_freq; /* device [head_dim / 4]                                     */
    const float *zeros;    /* device [8]: fills heads up to the width that caches take */
    const float *std_bias, *std_scale; /* [hid], the bias negated; NULL: not standardized */
    sib_linear embedder;   /* embed_vision.embedding_projection [hidden of the text model, hid] */
} tower;

/* ---- config ------------------------------------------------------------------------------- */

static sib_status read_int(const json_t *t, const char *key, int64_t hi, bool required, int *out, sib_err *err)
{
    int64_t v = *out;
    if (required && !sib_json_get(t, key)) return sib_fail(err, SIB_EFORMAT, WHERE ": key \"%s\" is missing", key);
    SIB_TRY(sib_json_int(t, WHERE, key, 1, hi, &v, err));
    *out = (int)v;
    return SIB_OK;
}

/* Sizes are bounded so that rows times any width fits 63 bits (at most 1120 * 16 * 16 rows). */
static sib_status config_read(tower_config *c, const json_t *t, sib_err *err)
{
    const char *act = "gelu_pytorch_tanh", *rope = "default";
    bool bias = false;
    if (!t) return sib_fail(err, SIB_EFORMAT, "config.json: key \"vision_config\" is missing, but the checkpoint has a vision tower");
    *c = (tower_config){.head_dim = 64, .patch = 16, .pool = 3, .n_positions = 10240, .eps = 1e-6, .theta = 100};
    SIB_TRY(read_int(t, "hidden_size", 16384, true, &c->hidden, err));
    SIB_TRY(read_int(t, "intermediate_size", 1 << 18, true, &c->ffn, err));
    SIB_TRY(read_int(t, "num_hidden_layers", 256, true, &c->n_layers, err));
    SIB_TRY(read_int(t, "num_attention_heads", 256, true, &c->n_heads, err));
    c->n_kv_heads = c->n_heads;
    SIB_TRY(read_int(t, "num_key_value_heads", 256, false, &c->n_kv_heads, err));
    SIB_TRY(read_int(t, "head_dim", 512, false, &c->head_dim, err));
    SIB_TRY(read_int(t, "patch_size", 256, false, &c->patch, err));
    SIB_TRY(read_int(t, "pooling_kernel_size", 16, false, &c->pool, err));
    SIB_TRY(read_int(t, "position_embedding_size", 1 << 20, false, &c->n_positions, err));
    SIB_TRY(sib_json_num(t, WHERE, "rms_norm_eps", 0, 1, &c->eps, err));
    SIB_TRY(sib_json_bool(t, WHERE, "use_clipped_linears", &c->clipped, err));
    SIB_TRY(sib_json_bool(t, WHERE, "standardize", &c->standardize, err));
    SIB_TRY(sib_json_bool(t, WHERE, "attention_bias", &bias, err));
    SIB_TRY(sib_json_str(t, WHERE, "hidden_activation", &act, err));
    const json_t *r = sib_json_get(t, "rope_parameters");
    if (r) {
        SIB_TRY(sib_json_num(r, WHERE, "rope_theta", 1, 1e12, &c->theta, err));
        SIB_TRY(sib_json_str(r, WHERE, "rope_type", &rope, err));
    }
    if (strcmp(rope, "default") && strcmp(rope, "axial")) return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": rope_type \"%s\" is not supported", rope);
    if (strcmp(act, "gelu_pytorch_tanh")) return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": hidden_activation \"%s\" is not supported", act);
    if (bias) return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": attention_bias true is not supported");
    if (c->head_dim % 4) return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": head_dim %d is not a multiple of 4", c->head_dim);
    if (c->n_heads % c->n_kv_heads)
        return sib_fail(err, SIB_EFORMAT, WHERE ": num_attention_heads %d is not a multiple of num_key_value_heads %d", c->n_heads, c->n_kv_heads);
    return SIB_OK;
}

/* ---- weights ------------------------------------------------------------------------------ */

static sib_status load_bound(sib_loader *l, float *out, const char *module, const char *which, sib_err *err)
{
    SIB_TRY(sib_load_host(l, out, 1, err, "%s.%s", module, which));
    return isnan(*out) ? sib_fail(err, SIB_EFORMAT, "%s.%s is not a number", module, which) : SIB_OK;
}

static sib_status load_linear(const tower *t, sib_loader *l, tower_linear *w, int out, int in, const char *root, int layer, const char *name,
                              sib_err *err)
{
    char module[256];
    (void)snprintf(module, sizeof module, "%svision_tower.encoder.layers.%d.%s", root, layer, name);
    SIB_TRY(sib_load_linear(l, &w->l, out, in, err, "%s.linear", module));
    if (!t->cfg.clipped) return SIB_OK;
    SIB_TRY(load_bound(l, &w->in_min, module, "input_min", err));
    SIB_TRY(load_bound(l, &w->in_max, module, "input_max", err));
    SIB_TRY(load_bound(l, &w->out_min, module, "output_min", err));
    return load_bound(l, &w->out_max, module, "output_max", err);
}

static sib_status load_layer(tower *t, sib_loader *l, const char *root, int i, sib_err *err)
{
    const tower_config *c = &t->cfg;
    tower_layer *w = &t->layers[i];
    int h = c->hidden, nd = c->n_heads * c->head_dim, kd = c->n_kv_heads * c->head_dim;
    char name[256];
    (void)snprintf(name, sizeof name, "%svision_tower.encoder.layers.%d", root, i);
    SIB_TRY(sib_load_vector(l, &w->in_norm, h, 1, err, "%s.input_layernorm.weight", name));
    SIB_TRY(sib_load_vector(l, &w->post_attn_norm, h, 1, err, "%s.post_attention_layernorm.weight", name));
    SIB_TRY(sib_load_vector(l, &w->pre_ffn_norm, h, 1, err, "%s.pre_feedforward_layernorm.weight", name));
    SIB_TRY(sib_load_vector(l, &w->post_ffn_norm, h, 1, err, "%s.post_feedforward_layernorm.weight", name));
    SIB_TRY(load_linear(t, l, &w->q, nd, h, root, i, "self_attn.q_proj", err));
    SIB_TRY(load_linear(t, l, &w->k, kd, h, root, i, "self_attn.k_proj", err));
    SIB_TRY(load_linear(t, l, &w->v, kd, h, root, i, "self_attn.v_proj", err));
    SIB_TRY(load_linear(t, l, &w->o, h, nd, root, i, "self_attn.o_proj", err));
    SIB_TRY(sib_load_vector(l, &w->q_norm, c->head_dim, 1, err, "%s.self_attn.q_norm.weight", name));
    SIB_TRY(sib_load_vector(l, &w->k_norm, c->head_dim, 1, err, "%s.self_attn.k_norm.weight", name));
    SIB_TRY(load_linear(t, l, &w->gate, c->ffn, h, root, i, "mlp.gate_proj", err));
    SIB_TRY(load_linear(t, l, &w->up, c->ffn, h, root, i, "mlp.up_proj", err));
    return load_linear(t, l, &w->down, h, c->ffn, root, i, "mlp.down_proj", err);
}

/* theta^(-2j / (head_dim / 2)): each axis has half of the head, and a quarter of it in pairs (gemma4.md 4.5). */
static sib_status load_frequencies(tower *t, sib_loader *l, sib_err *err)
{
    float f[512 / 4];
    int n = t->cfg.head_dim / 4;
    for (int j = 0; j < n; j++) f[j] = (float)pow(t->cfg.theta, -2.0 * j / (t->cfg.head_dim / 2));
    return sib_load_values(l, &t->inv_freq, f, n, err);
}

static sib_status load(tower *t, sib_loader *l, const char *root, int hidden, sib_err *err)
{
    const tower_config *c = &t->cfg;
    void *zeros;
    t->input_quantized = sib_has(l, "%svision_tower.patch_embedder.input_proj.scales", root);
    SIB_TRY(sib_load_linear(l, &t->input, c->hidden, c->patch * c->patch * 3, err, "%svision_tower.patch_embedder.input_proj", root));
    SIB_TRY(sib_load_stack(l, &t->positions, 2, c->n_positions, c->hidden, err, "%svision_tower.patch_embedder.position_embedding_table", root));
    if (c->standardize) {
        SIB_TRY(sib_load_vector(l, &t->std_bias, c->hidden, -1, err, "%svision_tower.std_bias", root));
        SIB_TRY(sib_load_vector(l, &t->std_scale, c->hidden, 1, err, "%svision_tower.std_scale", root));
    }
    SIB_TRY(sib_load_linear(l, &t->embedder, hidden, c->hidden, err, "%sembed_vision.embedding_projection", root));
    SIB_TRY(load_frequencies(t, l, err));
    SIB_TRY(sib_load_buffer(l, &zeros, 8 * sizeof(float), err));
    t->zeros = zeros;
    t->layers = calloc((size_t)c->n_layers, sizeof *t->layers);
    if (!t->layers) return sib_nomem(err, "vision layers");
    for (int i = 0; i < c->n_layers; i++) SIB_TRY(load_layer(t, l, root, i, err));
    return SIB_OK;
}

/* ---- forward ------------------------------------------------------------------------------ */

/* y = clamp(clamp(x) W^T): the bounds of E2B and E4B stand around the product. */
static void project(const tower *t, const sib_step *st, const tower_linear *w, float *y, const float *x, int rows)
{
    const sib_ops *op = st->dev->ops;
    size_t mark = st->arena->top;
    if (t->cfg.clipped) {
        float *c = SIB_PUSH(st->arena, float, (size_t)rows * w->l.in);
        op->clamp(st->dev, c, x, w->in_min, w->in_max, (int64_t)rows * w->l.in);
        x = c;
    }
    op->linear(st->dev, 1, &y, (const sib_matrix *const[]){w->l.w}, x, rows);
    if (t->cfg.clipped) op->clamp(st->dev, y, y, w->out_min, w->out_max, (int64_t)rows * w->l.out);
    st->arena->top = mark;
}

/* Heads of a width that the cache does not take are filled up with zeros, which add nothing to a score and whose
 * columns of the result are dropped. */
static int wide_dim(const tower *t)
{
    return (t->cfg.head_dim + 7) / 8 * 8;
}

static float *widen(const tower *t, const sib_step *st, float *x, int heads)
{
    int d = t->cfg.head_dim, wide = wide_dim(t);
    if (wide == d) return x;
    float *y = SIB_PUSH(st->arena, float, (size_t)heads * wide);
    st->dev->ops->copy_rows(st->dev, y, wide, x, d, heads, d);
    st->dev->ops->copy_rows(st->dev, y + d, wide, t->zeros, 0, heads, wide - d);
    return y;
}

typedef struct tower_angles {
    float *x, *y; /* device [rows][head_dim / 4][2] */
} tower_angles;

/* Norm per head, then the first half of the head turns by the column and the second by the row. */
static void norm_and_turn(const tower *t, const sib_step *st, float *x, int rows, int heads, const float *w, const tower_angles *a)
{
    int d = t->cfg.head_dim, quarter = d / 4;
    const sib_rope first = {quarter, quarter, 0}, second = {quarter, quarter, d / 2};
    st->dev->ops->head_norm_rope(st->dev, x, rows, heads, d, (int64_t)heads * d, w, (float)t->cfg.eps, &first, a->x);
    st->dev->ops->head_norm_rope(st->dev, x, rows, heads, d, (int64_t)heads * d, NULL, 0, &second, a->y);
}

/* x = o(attention(x)), every patch over every patch; `span` has the picture's pages. */
static void attention(const tower *t, const sib_step *st, const tower_layer *w, float *x, const sib_vision_rows *r, const sib_span *span,
                      const tower_angles *angles)
{
    const sib_ops *op = st->dev->ops;
    const tower_config *c = &t->cfg;
    int d = c->head_dim, wide = wide_dim(t), nd = c->n_heads * d, kd = c->n_kv_heads * d, n_spans = r->values ? 1 : 0; /* none while planning */
    size_t mark = st->arena->top;
    float *q = SIB_PUSH(st->arena, float, (size_t)r->n * nd), *k = SIB_PUSH(st->arena, float, (size_t)r->n * kd);
    float *v = SIB_PUSH(st->arena, float, (size_t)r->n * kd), *a = SIB_PUSH(st->arena, float, (size_t)r->n * c->n_heads * wide);
    project(t, st, &w->q, q, x, r->n);
    project(t, st, &w->k, k, x, r->n);
    project(t, st, &w->v, v, x, r->n);
    norm_and_turn(t, st, q, r->n, c->n_heads, w->q_norm, angles);
    norm_and_turn(t, st, k, r->n, c->n_kv_heads, w->k_norm, angles);
    op->head_norm_rope(st->dev, v, r->n, c->n_kv_heads, d, kd, NULL, (float)c->eps, NULL, NULL);

    const sib_kv_geom geom = {c->n_kv_heads, wide, wide};
    op->kv_append(st->dev, &geom, span, n_spans, widen(t, st, k, r->n * c->n_kv_heads), widen(t, st, v, r->n * c->n_kv_heads));
    sib_attend at = {.spans = span, .n_spans = n_spans, .n_rows = r->n, .geom = geom, .n_heads = c->n_heads, .scale = 1.0f, .lo = r->lo, .hi = r->hi};
    op->attend(st->dev, a, widen(t, st, q, r->n * c->n_heads), &at);
    if (wide != d) {
        op->copy_rows(st->dev, q, d, a, wide, r->n * c->n_heads, d);
        a = q;
    }
    project(t, st, &w->o, x, a, r->n);
    st->arena->top = mark;
}

static void feed_forward(const tower *t, const sib_step *st, const tower_layer *w, float *x, int rows)
{
    const sib_ops *op = st->dev->ops;
    size_t mark = st->arena->top;
    float *f = SIB_PUSH(st->arena, float, (size_t)rows * t->cfg.ffn);
    if (t->cfg.clipped) {
        float *u = SIB_PUSH(st->arena, float, (size_t)rows * t->cfg.ffn);
        project(t, st, &w->gate, f, x, rows);
        project(t, st, &w->up, u, x, rows);
        op->glu(st->dev, f, f, u, SIB_ACT_GELU_TANH, (int64_t)rows * t->cfg.ffn);
    } else {
        op->linear_glu(st->dev, f, w->gate.l.w, w->up.l.w, SIB_ACT_GELU_TANH, x, rows);
    }
    project(t, st, &w->down, x, f, rows);
    st->arena->top = mark;
}

static void layer(const tower *t, const sib_step *st, int i, float *h, const sib_vision_rows *r, const sib_span *span, const tower_angles *angles)
{
    const sib_ops *op = st->dev->ops;
    const tower_layer *w = &t->layers[i];
    int hid = t->cfg.hidden;
    float eps = (float)t->cfg.eps;
    size_t mark = st->arena->top;
    float *x = SIB_PUSH(st->arena, float, (size_t)r->n * hid);
    op->rms_norm(st->dev, x, h, w->in_norm, r->n, hid, eps);
    attention(t, st, w, x, r, span, angles);
    op->rms_norm_add(st->dev, h, x, w->post_attn_norm, r->n, hid, eps, 1.0f);
    op->rms_norm(st->dev, x, h, w->pre_ffn_norm, r->n, hid, eps);
    feed_forward(t, st, w, x, r->n);
    op->rms_norm_add(st->dev, h, x, w->post_ffn_norm, r->n, hid, eps, 1.0f);
    sib_step_trace(st, "vision.hidden", i + 1, h, r->n, hid);
    st->arena->top = mark;
}

/* h = input_proj(2 (v - 0.5)) + (table[x] + table[y]) */
static void embed(const tower *t, const sib_step *st, float *h, const sib_vision_rows *r)
{
    const sib_ops *op = st->dev->ops;
    int hid = t->cfg.hidden, width = t->cfg.patch * t->cfg.patch * 3;
    int64_t all = (int64_t)r->n * width;
    size_t mark = st->arena->top;
    float *x = SIB_PUSH(st->arena, float, all), *px = SIB_PUSH(st->arena, float, (size_t)r->n * hid), *py = SIB_PUSH(st->arena, float, (size_t)r->n * hid);
    if (r->values) {
        /* The quirk of MLX programs: pixels cast to the storage type of quantized weights are whole numbers, so that only
         * white is not zero (diffusion_gemma.md 4.4). */
        bool whole = r->whole_pixels && t->input_quantized;
        for (int64_t i = 0; i < all; i++) r->values[i] = whole ? (r->values[i] >= 1.0f ? 1.0f : 0.0f) : 2.0f * (r->values[i] - 0.5f);
        for (int i = 0; i < r->n; i++) r->ids[i] = t->cfg.n_positions + r->y[i];
    }
    op->upload(st->dev, x, r->values, (size_t)all * sizeof *x);
    op->linear(st->dev, 1, &h, (const sib_matrix *const[]){t->input.w}, x, r->n);
    op->embed(st->dev, px, t->positions.w, r->x, r->n, 1.0f, 0, 0);
    op->embed(st->dev, py, t->positions.w, r->ids, r->n, 1.0f, 0, 0);
    op->add(st->dev, px, px, py, (int64_t)r->n * hid);
    op->add(st->dev, h, h, px, (int64_t)r->n * hid);
    sib_step_trace(st, "vision.hidden", 0, h, r->n, hid);
    st->arena->top = mark;
}

/* y = sum over groups of `k` consecutive blocks of `width` values: [groups][k][width] -> [groups][width]. tmp: as y. */
static void sum_groups(const sib_step *st, float *y, float *tmp, const float *x, int groups, int k, int width)
{
    const sib_ops *op = st->dev->ops;
    op->copy_rows(st->dev, y, width, x, (int64_t)k * width, groups, width);
    for (int i = 1; i < k; i++) {
        op->copy_rows(st->dev, tmp, width, x + (size_t)i * width, (int64_t)k * width, groups, width);
        op->add(st->dev, y, y, tmp, (int64_t)groups * width);
    }
}

/* Mean of each pool x pool square times sqrt(hid). Sides are multiples of pool, so in raster order `pool` neighbours of a
 * row of patches are consecutive, and after their sum `pool` rows of sums are. y [soft tokens][hid]. */
static void pool_squares(const tower *t, const sib_step *st, float *y, const float *h, const sib_vision_rows *r)
{
    int k = t->cfg.pool, hid = t->cfg.hidden;
    size_t mark = st->arena->top;
    float *across = SIB_PUSH(st->arena, float, (size_t)(r->n / k) * hid), *tmp = SIB_PUSH(st->arena, float, (size_t)(r->n / k) * hid);
    sum_groups(st, across, tmp, h, r->n / k, k, hid);
    sum_groups(st, y, tmp, across, r->ny / k, k, r->nx / k * hid);
    st->dev->ops->scale(st->dev, y, y, sqrtf((float)hid) / (float)(k * k), (int64_t)(r->n / k / k) * hid);
    st->arena->top = mark;
}

static void forward(const sib_vision *v, const sib_step *st, const sib_vision_rows *r, float *features)
{
    const tower *t = (const tower *)v;
    const tower_config *c = &t->cfg;
    const sib_ops *op = st->dev->ops;
    int hid = c->hidden, soft = r->n / (c->pool * c->pool), n_pages = (r->n + SIB_KV_PAGE - 1) / SIB_KV_PAGE, pairs = c->head_dim / 4;
    size_t mark = st->arena->top;
    float *h = SIB_PUSH(st->arena, float, (size_t)r->n * hid), *y = SIB_PUSH(st->arena, float, (size_t)soft * hid);
    tower_angles angles = {SIB_PUSH(st->arena, float, (size_t)r->n * pairs * 2), SIB_PUSH(st->arena, float, (size_t)r->n * pairs * 2)};
    op->rope_angles(st->dev, angles.x, t->inv_freq, pairs, r->x, r->n);
    op->rope_angles(st->dev, angles.y, t->inv_freq, pairs, r->y, r->n);

    /* Keys and values of one layer at a time; the layers use the same pages in turn. */
    const sib_kv_geom geom = {c->n_kv_heads, wide_dim(t), wide_dim(t)};
    size_t page_bytes = (op->kv_page_bytes(st->dev, &geom) + SIB_ARENA_ALIGN - 1) / SIB_ARENA_ALIGN * SIB_ARENA_ALIGN;
    char *pages = sib_push_array(st->arena, (size_t)n_pages, page_bytes);
    for (int i = 0; r->pages && pages && i < n_pages; i++) r->pages[i] = pages + (size_t)i * page_bytes;
    sib_span span = {.kv = {r->pages, n_pages}, .n_rows = r->n};

    embed(t, st, h, r);
    for (int i = 0; i < c->n_layers; i++) layer(t, st, i, h, r, &span, &angles);
    pool_squares(t, st, y, h, r);
    if (t->std_scale) { /* in float32: the bias may be 5e4 and cancels (gemma4.md 4.5) */
        op->add_row(st->dev, y, y, t->std_bias, soft, hid);
        op->mul_row(st->dev, y, y, t->std_scale, soft, hid);
    }
    sib_step_trace(st, "vision.tower_output", -1, y, soft, hid);
    op->rms_norm(st->dev, y, y, NULL, soft, hid, (float)c->eps);
    op->linear(st->dev, 1, &features, (const sib_matrix *const[]){t->embedder.w}, y, soft);
    sib_step_trace(st, "vision.features", -1, features, soft, t->embedder.out);
    st->arena->top = mark;
}

/* ---- open --------------------------------------------------------------------------------- */

static void tower_free(sib_vision *v)
{
    tower *t = (tower *)v;
    free(t->layers);
    free(t);
}

bool sib_tower_present(const sib_loader *l, const char *root)
{
    return sib_has(l, "%svision_tower.patch_embedder.input_proj.weight", root);
}

sib_status sib_tower_open(sib_vision **out, sib_loader *l, const char *root, int hidden, sib_err *err)
{
    *out = NULL;
    tower *t = calloc(1, sizeof *t);
    if (!t) return sib_nomem(err, "vision tower");
    t->vision = (sib_vision){.free = tower_free, .forward = forward, .dev = l->dev};
    sib_status s = config_read(&t->cfg, sib_json_get(sib_checkpoint_config(l->files), "vision_config"), err);
    if (s == SIB_OK) s = sib_vision_read_budget(&t->vision, l->files, err);
    if (s == SIB_OK) s = load(t, l, root, hidden, err);
    if (s != SIB_OK) {
        sib_vision_free(&t->vision);
        return s;
    }
    t->vision.patch = t->vision.cut = t->cfg.patch;
    t->vision.pool = t->cfg.pool;
    t->vision.n_positions = t->cfg.n_positions;
    *out = &t->vision;
    return SIB_OK;
}

/* drafters/assistant.c - a small Q-only transformer that reads the target's keys and values.
 *
 *   x = [ scaled target embedding of the token | hidden of the row before ]     width 2 Hb
 *   h = pre_projection x;  layers with queries only, attention over the target's donor caches
 *   y = norm(h);  token = head(y);  hidden of the next step = post_projection y
 *
 * Nothing is written to any cache, so there is nothing to roll back: a timeline's state is the
 * target's hidden row at its last processed position. Facts: drafters_kv.md 1; two rule sets:
 *
 *             attention scale   position of step k   newest columns on sliding layers
 *   trained   1                 P (of pending)       window + 1
 *   seed      head_dim^-1/2     P - 1 + k            window
 *
 * Head by tensor presence: masked_embedding.centroids.weight -> centroid head, else the tied head. */
#include "drafters/assistant.h"

#include "layers/gemma_layer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHERE "assistant config.json"
#define MAX_LAYERS 64

typedef struct assistant_layer {
    bool full;
    int head_dim;
    const float *in_norm, *post_attn_norm, *pre_ffn_norm, *post_ffn_norm, *q_norm;
    sib_linear q, o, gate, up, down;
    float scalar;
} assistant_layer;

typedef struct assistant {
    sib_drafter base; /* first */
    sib_device *dev;
    sib_model *target;
    sib_needs needs;
    bool seed_scale, seed_positions, seed_window;
    int backbone, hidden, ffn, n_heads, n_layers, n_vocab, window, n_centroids, top_centroids, n_seqs;
    double eps, theta[2], partial[2];
    bool proportional[2];
    assistant_layer layers[MAX_LAYERS];
    sib_linear pre, post, centroids, embed; /* embed: tied head only */
    const float *norm;
    sib_centroid_head head; /* centroid head only */
    sib_rope rope[2];
    const float *inv_freq[2];
    sib_weights weights;
    sib_arena arena;
    float *g, *e, *y; /* [n_seqs][backbone], [n_seqs][backbone], [n_seqs][hidden] */
    int32_t *pos, *lo, *hi, *token;
    sib_seq **seqs;
    sib_trace trace;
} assistant;

struct sib_draft_state {
    float *g;      /* device [backbone]: final hidden of position `processed` - 1 */
    int processed; /* 0: nothing known */
};

static assistant *self(const sib_drafter *d)
{
    return (assistant *)(uintptr_t)d;
}

/* ---- config ------------------------------------------------------------------------------- */

static sib_status read_int(const json_t *o, const char *key, int64_t hi, bool must, int *out, sib_err *err)
{
    int64_t v = *out;
    if (must && !sib_json_get(o, key)) return sib_fail(err, SIB_EFORMAT, WHERE ": key \"%s\" is missing", key);
    SIB_TRY(sib_json_int(o, WHERE, key, 1, hi, &v, err));
    *out = (int)v;
    return SIB_OK;
}

static sib_status read_config(assistant *a, const json_t *root, sib_err *err)
{
    const json_t *t = sib_json_get(root, "text_config"), *ropes;
    if (!t) t = root;
    int head_dim = 256, global_head_dim = 512;
    a->eps = 1e-6;
    a->window = 512;
    SIB_TRY(read_int(root, "backbone_hidden_size", 65536, true, &a->backbone, err));
    SIB_TRY(read_int(t, "hidden_size", 65536, true, &a->hidden, err));
    SIB_TRY(read_int(t, "intermediate_size", 1 << 20, true, &a->ffn, err));
    SIB_TRY(read_int(t, "num_hidden_layers", MAX_LAYERS, true, &a->n_layers, err));
    SIB_TRY(read_int(t, "num_attention_heads", 512, true, &a->n_heads, err));
    SIB_TRY(read_int(t, "vocab_size", 1 << 22, true, &a->n_vocab, err));
    SIB_TRY(read_int(t, "head_dim", 512, false, &head_dim, err));
    SIB_TRY(read_int(t, "global_head_dim", 512, false, &global_head_dim, err));
    SIB_TRY(read_int(t, "sliding_window", 1 << 24, false, &a->window, err));
    SIB_TRY(sib_json_num(t, WHERE, "rms_norm_eps", 0, 1, &a->eps, err));
    a->n_centroids = 2048;
    a->top_centroids = 32;
    SIB_TRY(read_int(root, "num_centroids", 1 << 20, false, &a->n_centroids, err));
    SIB_TRY(read_int(root, "centroid_intermediate_top_k", 1 << 20, false, &a->top_centroids, err));

    const json_t *types = sib_json_get(t, "layer_types");
    if (!json_is_array(types) || json_array_size(types) != (size_t)a->n_layers) return sib_fail(err, SIB_EFORMAT, WHERE ": layer_types must list %d layers", a->n_layers);
    for (int i = 0; i < a->n_layers; i++) {
        const char *s = json_string_value(json_array_get(types, (size_t)i));
        if (!s || (strcmp(s, "sliding_attention") && strcmp(s, "full_attention"))) return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": layer_types[%d] is not known", i);
        a->layers[i].full = s[0] == 'f';
        a->layers[i].head_dim = s[0] == 'f' ? global_head_dim : head_dim;
    }
    ropes = sib_json_get(t, "rope_parameters");
    for (int k = 0; k < 2; k++) {
        const json_t *p = ropes ? sib_json_get(ropes, k == SIB_FULL ? "full_attention" : "sliding_attention") : NULL;
        const char *type = k == SIB_FULL ? "proportional" : "default";
        a->theta[k] = k == SIB_FULL ? 1e6 : 1e4;
        a->partial[k] = 1.0;
        if (p) {
            SIB_TRY(sib_json_num(p, WHERE, "rope_theta", 1, 1e12, &a->theta[k], err));
            SIB_TRY(sib_json_num(p, WHERE, "partial_rotary_factor", 1e-3, 1, &a->partial[k], err));
            SIB_TRY(sib_json_str(p, WHERE, "rope_type", &type, err));
        }
        a->proportional[k] = strcmp(type, "proportional") == 0;
    }
    a->needs = (sib_needs){.hidden = true, .donors = true, .vocab = true, .hidden_width = a->backbone, .n_vocab = a->n_vocab};
    return SIB_OK;
}

/* The donors must have the geometry that the queries were trained on. */
static sib_status check_donors(const assistant *a, sib_model *target, sib_err *err)
{
    for (int i = 0; i < a->n_layers; i++) {
        const assistant_layer *l = &a->layers[i];
        const sib_donor_info *d = target->offers.donors->info(target, l->full ? SIB_DONOR_FULL : SIB_DONOR_SLIDING);
        const char *kind = l->full ? "full" : "sliding";
        if (d->layer < 0) return sib_fail(err, SIB_EARG, "assistant drafter: the target has no %s layer to borrow from", kind);
        if (d->head_dim != l->head_dim) return sib_fail(err, SIB_EARG, "assistant drafter: layer %d has a head_dim of %d, the target's %s layers have %d", i, l->head_dim, kind, d->head_dim);
        if (a->n_heads % d->n_kv_heads) return sib_fail(err, SIB_EARG, "assistant drafter: %d heads do not share the target's %d KV heads", a->n_heads, d->n_kv_heads);
        if (!l->full && d->window != a->window) return sib_fail(err, SIB_EARG, "assistant drafter: sliding_window is %d, the target's is %d", a->window, d->window);
        if ((float)a->theta[l->full] != d->rope_theta) return sib_fail(err, SIB_EARG, "assistant drafter: rope_theta of %s layers is %g, the target's is %g", kind, a->theta[l->full], (double)d->rope_theta);
    }
    return SIB_OK;
}

/* ---- weights ------------------------------------------------------------------------------ */

static sib_status load_centroid_head(assistant *a, sib_loader *l, sib_err *err)
{
    sib_matrix_src table;
    if (a->n_vocab % a->n_centroids || a->top_centroids > a->n_centroids)
        return sib_fail(err, SIB_EFORMAT, WHERE ": %d centroids, %d of them picked, do not divide a vocabulary of %d", a->n_centroids, a->top_centroids, a->n_vocab);
    if (a->hidden > 4096 || a->n_centroids > 16384 || a->top_centroids > 1024)
        return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": a centroid head of width %d with %d centroids, %d picked; built for 4096, 16384, 1024", a->hidden, a->n_centroids, a->top_centroids);
    SIB_TRY(sib_load_linear(l, &a->centroids, a->n_centroids, a->hidden, err, "masked_embedding.centroids"));
    SIB_TRY(sib_matrix_of(l->files, "model.embed_tokens", a->n_vocab, a->hidden, 0, &table, err));
    const sib_tensor_info *order;
    SIB_TRY(sib_checkpoint_need(l->files, &order, "masked_embedding.token_ordering", err));
    if (sib_tensor_elements(order) != a->n_vocab || (order->dtype != SIB_I64 && order->dtype != SIB_I32))
        return sib_fail(err, SIB_EFORMAT, "masked_embedding.token_ordering: expected %d integers", a->n_vocab);

    size_t v = (size_t)a->n_vocab, h = (size_t)a->hidden;
    int32_t *ids = malloc(v * sizeof *ids);
    uint16_t *rows = malloc(v * h * sizeof *rows);
    float *row = malloc(h * sizeof *row);
    sib_status s = ids && rows && row ? SIB_OK : sib_nomem(err, "centroid head");
    for (size_t i = 0; s == SIB_OK && i < v; i++) {
        const unsigned char *p = order->data;
        int64_t id64 = 0;
        if (order->dtype == SIB_I64)
            memcpy(&id64, p + 8 * i, 8);
        else {
            int32_t id32;
            memcpy(&id32, p + 4 * i, 4);
            id64 = id32;
        }
        if (id64 < 0 || id64 >= a->n_vocab) s = sib_fail(err, SIB_EFORMAT, "masked_embedding.token_ordering: id %lld is outside the vocabulary of %d", (long long)id64, a->n_vocab);
        ids[i] = (int32_t)id64;
    }
    for (size_t i = 0; s == SIB_OK && i < v; i++) {
        sib_matrix_src_rows(row, &table, 0, (int64_t)i, 1);
        for (size_t j = 0; j < h; j++) rows[i * h + j] = sib_bf16_of_f32(row[j]);
    }
    void *dev_ids, *dev_rows;
    if (s == SIB_OK) s = sib_load_buffer(l, &dev_ids, v * sizeof *ids, err);
    if (s == SIB_OK) s = sib_load_buffer(l, &dev_rows, v * h * sizeof *rows, err);
    if (s == SIB_OK) {
        l->dev->ops->upload(l->dev, dev_ids, ids, v * sizeof *ids);
        l->dev->ops->upload(l->dev, dev_rows, rows, v * h * sizeof *rows);
        a->head = (sib_centroid_head){.table = dev_rows, .ordering = dev_ids, .n_vocab = a->n_vocab, .hidden = a->hidden, .n_centroids = a->n_centroids, .top = a->top_centroids};
    }
    free(ids);
    free(rows);
    free(row);
    return s;
}

static sib_status load_weights(assistant *a, sib_loader *l, sib_err *err)
{
    int h = a->hidden;
    SIB_TRY(sib_load_linear(l, &a->pre, h, 2 * a->backbone, err, "pre_projection"));
    SIB_TRY(sib_load_linear(l, &a->post, a->backbone, h, err, "post_projection"));
    SIB_TRY(sib_load_vector(l, &a->norm, h, 1, err, "model.norm.weight"));
    for (int i = 0; i < a->n_layers; i++) {
        assistant_layer *w = &a->layers[i];
        int nd = a->n_heads * w->head_dim;
        SIB_TRY(sib_load_vector(l, &w->in_norm, h, 1, err, "model.layers.%d.input_layernorm.weight", i));
        SIB_TRY(sib_load_vector(l, &w->post_attn_norm, h, 1, err, "model.layers.%d.post_attention_layernorm.weight", i));
        SIB_TRY(sib_load_vector(l, &w->pre_ffn_norm, h, 1, err, "model.layers.%d.pre_feedforward_layernorm.weight", i));
        SIB_TRY(sib_load_vector(l, &w->post_ffn_norm, h, 1, err, "model.layers.%d.post_feedforward_layernorm.weight", i));
        SIB_TRY(sib_load_vector(l, &w->q_norm, w->head_dim, 1, err, "model.layers.%d.self_attn.q_norm.weight", i));
        SIB_TRY(sib_load_linear(l, &w->q, nd, h, err, "model.layers.%d.self_attn.q_proj", i));
        SIB_TRY(sib_load_linear(l, &w->o, h, nd, err, "model.layers.%d.self_attn.o_proj", i));
        SIB_TRY(sib_load_linear(l, &w->gate, a->ffn, h, err, "model.layers.%d.mlp.gate_proj", i));
        SIB_TRY(sib_load_linear(l, &w->up, a->ffn, h, err, "model.layers.%d.mlp.up_proj", i));
        SIB_TRY(sib_load_linear(l, &w->down, h, a->ffn, err, "model.layers.%d.mlp.down_proj", i));
        w->scalar = 1.0f;
        if (sib_has(l, "model.layers.%d.layer_scalar", i)) SIB_TRY(sib_load_host(l, &w->scalar, 1, err, "model.layers.%d.layer_scalar", i));
    }
    for (int k = 0; k < 2; k++) {
        sib_gemma g = {0};
        for (int i = 0; i < a->n_layers; i++) {
            if (a->layers[i].full != (k == SIB_FULL) || a->inv_freq[k]) continue;
            SIB_TRY(sib_gemma_rope_init(&g, k, a->layers[i].head_dim, a->proportional[k], a->theta[k], a->partial[k], 1.0, l, err));
            a->rope[k] = g.rope[k];
            a->inv_freq[k] = g.inv_freq[k];
        }
    }
    /* Presence of the centroids decides about the head, never the config (drafters_kv.md 1.2). */
    if (sib_has(l, "masked_embedding.centroids.weight")) return load_centroid_head(a, l, err);
    return sib_load_linear(l, &a->embed, a->n_vocab, h, err, "model.embed_tokens");
}

/* ---- one step over B rows ------------------------------------------------------------------ */

static void layer_forward(const assistant *a, const sib_step *st, const assistant_layer *w, float *h, float *const *cs, int rows)
{
    const sib_ops *op = st->dev->ops;
    int hidden = a->hidden, nd = a->n_heads * w->head_dim;
    float eps = (float)a->eps;
    size_t mark = st->arena->top;
    float *x = SIB_PUSH(st->arena, float, (size_t)rows * hidden), *q = SIB_PUSH(st->arena, float, (size_t)rows * nd);
    float *o = SIB_PUSH(st->arena, float, (size_t)rows * nd), *f = SIB_PUSH(st->arena, float, (size_t)rows * a->ffn);
    op->rms_norm(st->dev, x, h, w->in_norm, rows, hidden, eps);
    op->linear(st->dev, 1, &q, (const sib_matrix *const[]){w->q.w}, x, rows);
    op->head_norm_rope(st->dev, q, rows, a->n_heads, w->head_dim, nd, w->q_norm, eps, &a->rope[w->full], cs[w->full]);
    if (!sib_device_is_nothing(st->dev)) {
        int extra = a->seed_window ? 0 : 1;
        for (int r = 0; r < rows; r++) a->lo[r] = !w->full && a->hi[r] > a->window + extra ? a->hi[r] - a->window - extra : 0;
        a->target->offers.donors->attend(a->target, w->full ? SIB_DONOR_FULL : SIB_DONOR_SLIDING, o, q, a->n_heads, a->seqs, a->lo, a->hi, rows,
                                         a->seed_scale ? 1.0f / sqrtf((float)w->head_dim) : 1.0f);
    }
    op->linear(st->dev, 1, &x, (const sib_matrix *const[]){w->o.w}, o, rows);
    op->rms_norm_add(st->dev, h, x, w->post_attn_norm, rows, hidden, eps, 1.0f);
    op->rms_norm(st->dev, x, h, w->pre_ffn_norm, rows, hidden, eps);
    op->linear_glu(st->dev, f, w->gate.w, w->up.w, SIB_ACT_GELU_TANH, x, rows);
    op->linear(st->dev, 1, &x, (const sib_matrix *const[]){w->down.w}, f, rows);
    op->rms_norm_add(st->dev, h, x, w->post_ffn_norm, rows, hidden, eps, w->scalar);
    st->arena->top = mark;
}

/* The stage "draft.layer.I.out" of a step, named only when somebody listens. */
static void trace_layer(const sib_step *st, int step, int layer, const float *h, int rows, int hidden)
{
    char name[48];
    if (!st->trace->fn) return;
    (void)snprintf(name, sizeof name, "draft.layer.%d.out", layer);
    sib_step_trace(st, name, step, h, rows, hidden);
}

/* From e and g (both [rows][backbone]) to tokens; g becomes the next step's hidden rows. */
static void draft_step(const assistant *a, const sib_step *st, int step, int rows)
{
    const sib_ops *op = st->dev->ops;
    int hidden = a->hidden, hb = a->backbone;
    size_t mark = st->arena->top;
    float *x = SIB_PUSH(st->arena, float, (size_t)rows * 2 * hb), *h = SIB_PUSH(st->arena, float, (size_t)rows * hidden), *cs[2];
    for (int k = 0; k < 2; k++) {
        cs[k] = SIB_PUSH(st->arena, float, (size_t)rows * 2 * (a->inv_freq[k] ? a->rope[k].n_pairs : 1));
        if (a->inv_freq[k]) op->rope_angles(st->dev, cs[k], a->inv_freq[k], a->rope[k].n_pairs, a->pos, rows);
    }
    sib_step_trace(st, "draft.embedding", step, a->e, rows, hb);
    if (st->trace->fn && rows == 1) sib_step_trace(st, "draft.position", step, &(float){(float)a->pos[0]}, 1, 1);
    op->copy_rows(st->dev, x, 2 * hb, a->e, hb, rows, hb);
    op->copy_rows(st->dev, x + hb, 2 * hb, a->g, hb, rows, hb);
    op->linear(st->dev, 1, &h, (const sib_matrix *const[]){a->pre.w}, x, rows);
    sib_step_trace(st, "draft.pre_projection", step, h, rows, hidden);
    for (int i = 0; i < a->n_layers; i++) {
        layer_forward(a, st, &a->layers[i], h, cs, rows);
        trace_layer(st, step, i, h, rows, hidden);
    }
    op->rms_norm(st->dev, a->y, h, a->norm, rows, hidden, (float)a->eps);
    sib_step_trace(st, "draft.norm", step, a->y, rows, hidden);

    bool traced = st->trace->fn && !sib_device_is_nothing(st->dev);
    float *logits = a->embed.w || traced ? SIB_PUSH(st->arena, float, (size_t)rows * a->n_vocab) : NULL;
    if (a->embed.w) {
        op->linear(st->dev, 1, &logits, (const sib_matrix *const[]){a->embed.w}, a->y, rows);
        op->argmax(st->dev, a->token, logits, rows, a->n_vocab);
    } else {
        float *scores = SIB_PUSH(st->arena, float, (size_t)rows * a->n_centroids);
        op->linear(st->dev, 1, &scores, (const sib_matrix *const[]){a->centroids.w}, a->y, rows);
        op->centroid_argmax(st->dev, a->token, &a->head, scores, a->y, rows, logits);
    }
    if (logits) sib_step_trace(st, "draft.logits", step, logits, rows, a->n_vocab);
    float *g = a->g;
    op->linear(st->dev, 1, &g, (const sib_matrix *const[]){a->post.w}, a->y, rows);
    sib_step_trace(st, "draft.next_hidden", step, a->g, rows, hb);
    st->arena->top = mark;
}

/* ---- the drafter's verbs ------------------------------------------------------------------- */

static sib_status propose(sib_drafter *d, sib_propose *lanes, int n, sib_err *err)
{
    assistant *a = self(d);
    const sib_ops *op = a->dev->ops;
    sib_step st = {a->dev, &a->arena, &a->trace};
    int rows = 0, steps = 0;
    for (int i = 0; i < n; i++) {
        lanes[i].n = 0;
        if (lanes[i].state->processed != lanes[i].position || lanes[i].position < 1) continue; /* not told the row before */
        op->copy_rows(a->dev, a->g + (size_t)rows * (size_t)a->backbone, a->backbone, lanes[i].state->g, a->backbone, 1, a->backbone);
        a->seqs[rows] = lanes[i].seq;
        a->hi[rows] = lanes[i].position;
        a->pos[rows] = lanes[i].position - (a->seed_positions ? 1 : 0);
        a->token[rows] = lanes[i].pending;
        lanes[i].n = lanes[i].max;
        if (lanes[i].max > steps) steps = lanes[i].max;
        rows++;
    }
    for (int k = 0; k < steps && rows > 0; k++) {
        a->target->offers.vocab->embed(a->target, a->e, a->token, rows, true);
        draft_step(a, &st, k, rows);
        for (int i = 0, r = 0; i < n; i++) {
            if (lanes[i].n == 0) continue;
            if (k < lanes[i].max) lanes[i].ids[k] = a->token[r];
            r++;
        }
        if (a->seed_positions)
            for (int r = 0; r < rows; r++) a->pos[r]++;
    }
    return a->arena.failed ? sib_fail(err, SIB_ECAPACITY, "assistant drafter: step memory is too small for %d rows", rows) : SIB_OK;
}

static sib_status settle(sib_drafter *d, const sib_settle *lanes, int n, sib_err *err)
{
    assistant *a = self(d);
    (void)err;
    for (int i = 0; i < n; i++) {
        if (lanes[i].n < 1) continue;
        a->dev->ops->copy_rows(a->dev, lanes[i].state->g, a->backbone, lanes[i].hidden + (size_t)(lanes[i].n - 1) * (size_t)a->backbone, a->backbone, 1, a->backbone);
        lanes[i].state->processed = lanes[i].pos0 + lanes[i].n;
    }
    return SIB_OK;
}

static sib_status truncate_to(sib_drafter *d, sib_draft_state *s, int length, sib_err *err)
{
    (void)d;
    if (s->processed == length) return SIB_OK;
    s->processed = 0; /* the row before is another one; the next settle brings it */
    return sib_fail(err, SIB_ESTATE, "assistant drafter keeps one row only");
}

static sib_status state_new(sib_drafter *d, sib_draft_state **out, sib_err *err)
{
    assistant *a = self(d);
    *out = NULL;
    sib_draft_state *s = calloc(1, sizeof *s);
    if (!s) return sib_nomem(err, "draft state");
    void *g;
    sib_status status = a->dev->ops->alloc(a->dev, (size_t)a->backbone * sizeof(float), &g, err);
    if (status != SIB_OK) {
        free(s);
        return status;
    }
    s->g = g;
    *out = s;
    return SIB_OK;
}

static void state_free(sib_drafter *d, sib_draft_state *s)
{
    assistant *a = self(d);
    if (!s) return;
    a->dev->ops->release(a->dev, s->g, (size_t)a->backbone * sizeof(float));
    free(s);
}

static const sib_needs *needs(const sib_drafter *d)
{
    return &self(d)->needs;
}

static void assistant_free(sib_drafter *d)
{
    assistant *a = self(d);
    if (!a) return;
    sib_weights_deinit(&a->weights, a->dev);
    free(a->pos);
    free(a->seqs);
    free(a);
}

static const sib_drafter_ops assistant_ops = {"assistant", assistant_free, needs, state_new, state_free, truncate_to, propose, settle};

/* Row memory, and step memory measured on a device that does nothing. */
static sib_status plan(assistant *a, sib_loader *l, sib_err *err)
{
    size_t n = (size_t)a->n_seqs;
    void *p;
    a->pos = calloc(4 * n, sizeof *a->pos);
    a->seqs = calloc(n, sizeof *a->seqs);
    if (!a->pos || !a->seqs) return sib_nomem(err, "assistant rows");
    a->lo = a->pos + n;
    a->hi = a->pos + 2 * n;
    a->token = a->pos + 3 * n;
    SIB_TRY(sib_load_buffer(l, &p, n * (size_t)a->backbone * sizeof(float), err));
    a->g = p;
    SIB_TRY(sib_load_buffer(l, &p, n * (size_t)a->backbone * sizeof(float), err));
    a->e = p;
    SIB_TRY(sib_load_buffer(l, &p, n * (size_t)a->hidden * sizeof(float), err));
    a->y = p;
    sib_nothing nothing;
    sib_arena planned;
    sib_nothing_init(&nothing, a->dev);
    sib_arena_plan(&planned);
    sib_step st = {&nothing.device, &planned, &a->trace};
    draft_step(a, &st, 0, a->n_seqs);
    /* A trace also wants the candidates' logits over the whole vocabulary. */
    size_t bytes = planned.peak + (a->embed.w ? 0 : n * (size_t)a->n_vocab * sizeof(float));
    SIB_TRY(sib_load_buffer(l, &p, bytes, err));
    a->arena = (sib_arena){.base = p, .cap = bytes};
    return SIB_OK;
}

static sib_status build(assistant *a, sib_loader *l, sib_model *target, const sib_drafter_options *o, sib_err *err)
{
    a->base = (sib_drafter){.ops = &assistant_ops, .max_draft = o->max_draft, .default_draft = 3};
    a->dev = l->dev;
    a->target = target;
    a->seed_scale = o->seed_scale;
    a->seed_positions = o->seed_positions;
    a->seed_window = o->seed_window;
    a->n_seqs = o->n_seqs;
    SIB_TRY(read_config(a, sib_checkpoint_config(l->files), err));
    SIB_TRY(sib_needs_check(&a->needs, "assistant", target, err));
    SIB_TRY(check_donors(a, target, err));
    SIB_TRY(load_weights(a, l, err));
    sib_checkpoint_ignore(l->files, "lm_head.weight", "the head is tied");
    return plan(a, l, err);
}

sib_status sib_assistant_open(sib_drafter **out, sib_loader *l, sib_model *target, const sib_drafter_options *o, sib_err *err)
{
    *out = NULL;
    assistant *a = calloc(1, sizeof *a);
    if (!a) return sib_nomem(err, "assistant drafter");
    l->into = &a->weights;
    a->dev = l->dev;
    sib_status s = build(a, l, target, o, err);
    if (s != SIB_OK) {
        assistant_free(&a->base);
        return s;
    }
    *out = &a->base;
    return SIB_OK;
}

sib_status sib_assistant_needs(sib_needs *out, int taps[SIB_MAX_TAPS], const json_t *config, sib_err *err)
{
    (void)taps;
    assistant *a = calloc(1, sizeof *a);
    if (!a) return sib_nomem(err, "assistant drafter");
    sib_status s = read_config(a, config, err);
    *out = a->needs;
    free(a);
    return s;
}

void sib_assistant_trace(sib_drafter *d, sib_trace trace)
{
    self(d)->trace = trace;
}

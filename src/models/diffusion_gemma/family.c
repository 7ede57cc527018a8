/* models/diffusion_gemma/family.c - opening a DiffusionGemma checkpoint, its sequences and what it offers. */
#include "models/diffusion_gemma/family.h"

#include "base/log.h"
#include "models/diffusion_gemma/diffusion_gemma.h"
#include "vision/tower.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static diffusion_gemma *self(sib_model *m)
{
    return (diffusion_gemma *)m;
}

/* ---- sequences ------------------------------------------------------------------------------ */

static sib_status seq_new(sib_model *model, sib_seq **out, sib_err *err)
{
    diffusion_gemma *m = self(model);
    int slot = 0;
    *out = NULL;
    while (slot < m->limits.n_seqs && m->slot_used[slot]) slot++;
    if (slot == m->limits.n_seqs) return sib_fail(err, SIB_ECAPACITY, "all %d planned sequences are in use", m->limits.n_seqs);
    sib_seq *s = calloc(1, sizeof *s);
    if (!s) return sib_nomem(err, "sequence");
    sib_status status = sib_kv_seq_new(&s->kv, m->pool, err);
    if (status != SIB_OK) {
        free(s);
        return status;
    }
    s->slot = slot;
    m->slot_used[slot] = true;
    *out = s;
    return SIB_OK;
}

static void seq_free(sib_model *model, sib_seq *s)
{
    if (!s) return;
    self(model)->slot_used[s->slot] = false;
    sib_kv_seq_free(s->kv);
    free(s);
}

static int seq_length(const sib_model *model, const sib_seq *s)
{
    (void)model;
    return sib_kv_length(s->kv);
}

static sib_status keep(sib_model *model, sib_seq *s, int n, sib_err *err)
{
    (void)model;
    if (n < 0 || n > sib_kv_pending(s->kv)) return sib_fail(err, SIB_EARG, "keep %d of %d pending rows", n, sib_kv_pending(s->kv));
    sib_kv_keep(s->kv, n);
    return SIB_OK;
}

static sib_status truncate_to(sib_model *model, sib_seq *s, int length, sib_err *err)
{
    (void)model;
    if (sib_kv_pending(s->kv)) sib_kv_keep(s->kv, 0);
    return sib_kv_truncate(s->kv, length, err);
}

static int reach(sib_model *model, const sib_seq *s)
{
    (void)model;
    return sib_kv_reach(s->kv);
}

/* ---- passes ----------------------------------------------------------------------------------- */

static sib_status check_ids(const diffusion_gemma *m, const int32_t *ids, int n, sib_err *err)
{
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= m->cfg.n_vocab)
            return sib_fail(err, SIB_EARG, "token id %d is outside the vocabulary of %d", ids[i], m->cfg.n_vocab);
    return SIB_OK;
}

static sib_status check_count(const diffusion_gemma *m, int n, sib_err *err)
{
    if (n < 1 || n > m->limits.n_seqs) return sib_fail(err, SIB_ECAPACITY, "%d sequences in one call, planned are %d", n, m->limits.n_seqs);
    return SIB_OK;
}

static sib_status check_parts(const diffusion_gemma *m, const sib_part *parts, int n_parts, sib_err *err)
{
    int rows = 0;
    SIB_TRY(check_count(m, n_parts, err));
    for (int p = 0; p < n_parts; p++) {
        const sib_part *part = &parts[p];
        if (part->n_rows < 1 || part->n_rows > m->limits.max_rows) return sib_fail(err, SIB_EARG, "a part of %d rows", part->n_rows);
        if (part->n_logits != 0) return sib_fail(err, SIB_EARG, "logits of a next token were asked for: this model denoises canvases instead");
        SIB_TRY(check_ids(m, part->ids, part->n_rows, err));
        for (int s = 0; s < part->n_soft; s++)
            if (part->soft[s].first < 0 || part->soft[s].n < 0 || part->soft[s].first > part->n_rows - part->soft[s].n)
                return sib_fail(err, SIB_EARG, "soft tokens %d to %d of a part of %d rows", part->soft[s].first, part->soft[s].first + part->soft[s].n,
                                part->n_rows);
        rows += part->n_rows;
        if (rows > m->limits.max_rows) return sib_fail(err, SIB_ECAPACITY, "%d rows in one call, planned are %d", rows, m->limits.max_rows);
    }
    return SIB_OK;
}

static sib_status forward(sib_model *model, const sib_part *parts, int n_parts, sib_forward_out *out, sib_err *err)
{
    diffusion_gemma *m = self(model);
    *out = (sib_forward_out){0};
    SIB_TRY(check_parts(m, parts, n_parts, err));
    for (int p = 0; p < n_parts; p++) SIB_TRY(sib_kv_begin(parts[p].seq->kv, parts[p].n_rows, err));
    return diffusion_encode_on(m, model->device, &m->arena, parts, n_parts, err);
}

static sib_status check_canvases(const diffusion_gemma *m, const sib_canvas *canvases, int n, sib_err *err)
{
    int rows = 0;
    SIB_TRY(check_count(m, n, err));
    for (int p = 0; p < n; p++) {
        const sib_canvas *c = &canvases[p];
        if (c->n < 1 || c->n > m->cfg.canvas) return sib_fail(err, SIB_EARG, "a canvas of %d tokens, allowed are 1 to %d", c->n, m->cfg.canvas);
        if (!(c->t > 0) || !isfinite(c->t) || !(c->second >= 0) || (c->second > 0 && !c->u))
            return sib_fail(err, SIB_EARG, "canvas temperatures %g and %g", (double)c->t, (double)c->second);
        SIB_TRY(check_ids(m, c->ids, c->n, err));
        rows += c->n;
    }
    if (rows > m->denoise.max_rows) return sib_fail(err, SIB_ECAPACITY, "%d canvas rows in one call, planned are %d", rows, m->denoise.max_rows);
    return SIB_OK;
}

/* The canvas is a pending block that is never kept. */
static sib_status step(sib_model *model, const sib_canvas *canvases, int n, const sib_denoised *out, sib_err *err)
{
    diffusion_gemma *m = self(model);
    m->n_last = 0;
    SIB_TRY(check_canvases(m, canvases, n, err));
    for (int p = 0; p < n; p++) SIB_TRY(sib_kv_begin(canvases[p].seq->kv, canvases[p].n, err));
    sib_status s = diffusion_denoise_on(m, model->device, &m->arena, canvases, n, out, err);
    for (int p = 0; p < n; p++) sib_kv_keep(canvases[p].seq->kv, 0);
    return s;
}

static sib_status condition(sib_model *model, const bool *wanted, const float *signal, sib_err *err)
{
    diffusion_gemma *m = self(model);
    if (m->n_last == 0) return sib_fail(err, SIB_ESTATE, "no denoising step to condition on");
    return diffusion_condition_on(m, model->device, &m->arena, wanted, signal ? signal : m->logits, err);
}

static const float *logits(sib_model *model)
{
    return self(model)->logits;
}

static sib_status count_soft(sib_model *m, int width, int height, int budget, int *n, sib_err *err)
{
    return sib_vision_count(self(m)->vision, width, height, budget, n, err);
}

static sib_status encode_picture(sib_model *m, const sib_rgb *picture, int budget, bool whole_pixels, float *features, sib_err *err)
{
    return sib_vision_encode(self(m)->vision, &m->trace, picture, budget, whole_pixels, features, err);
}

static const sib_keep_port keep_port = {keep, truncate_to, reach};

/* ---- open ------------------------------------------------------------------------------------- */

static void diffusion_free(sib_model *model)
{
    diffusion_gemma *m = self(model);
    if (!m) return;
    sib_vision_free(m->vision);
    sib_kv_pool_free(m->pool);
    sib_kv_layout_free(m->layout);
    sib_weights_deinit(&m->weights, model->device);
    free(m->stack.layers);
    free(m->denoise_scalar);
    diffusion_config_deinit(&m->cfg);
    free(m->slot_used);
    free(m->pos);
    free(m->last_t);
    free(m->u);
    free(m->spans);
    free(m->kv);
    free(m->seqs);
    free(m);
}

static sib_status open_vision(diffusion_gemma *m, sib_loader *l, sib_err *err)
{
    static const char root[] = "model.encoder.";
    const diffusion_config *c = &m->cfg;
    if (!sib_tower_present(l, root)) return SIB_OK; /* a text-only export, whatever vision_config says */
    SIB_TRY(sib_tower_open(&m->vision, l, root, c->hidden, err));
    m->images = (sib_image_port){.image_id = c->image_id, .boi_id = c->boi_id, .eoi_id = c->eoi_id, .bidirectional = c->bidirectional,
                                 .everywhere = true, .default_budget = m->vision->default_budget, .max_budget = m->vision->max_budget,
                                 .count = count_soft, .encode = encode_picture};
    m->model.memory.pictures = sib_vision_plan(m->vision, m->vision->default_budget);
    return SIB_OK;
}

static void ignore_rest(const diffusion_gemma *m, sib_checkpoint *files)
{
    static const struct {
        const char *pattern, *reason;
    } rules[] = {
        {"*rotary_emb*", "rotary tables are computed"},
        {"lm_head.*", "the head is tied to the embedding"},
        {"model.encoder.language_model.*", "encoder and denoiser share these weights"},
        {"*embed_vision.embedding.*", "a table that no released model uses"},
        {"*vision_tower.std_*", "the vision tower does not standardize"},
    };
    static const char *const bounds[] = {"*.input_min", "*.input_max", "*.output_min", "*.output_max"};
    for (size_t i = 0; i < SIB_COUNT(rules); i++) sib_checkpoint_ignore(files, rules[i].pattern, rules[i].reason);
    for (size_t i = 0; i < SIB_COUNT(bounds); i++)
        sib_checkpoint_ignore(files, bounds[i], "bounds are used with use_clipped_linears in the vision tower only");
    if (m->vision) return;
    sib_checkpoint_ignore(files, "*vision_tower.*", "the vision part is not complete");
    sib_checkpoint_ignore(files, "*embed_vision.*", "the vision part is not complete");
}

static sib_status plan_cache(diffusion_gemma *m, sib_err *err)
{
    const diffusion_config *c = &m->cfg;
    sib_kv_layer *layers = calloc((size_t)c->n_layers, sizeof *layers);
    if (!layers) return sib_nomem(err, "cache layout");
    for (int i = 0; i < c->n_layers; i++) {
        const sib_gemma_layer *l = &m->stack.layers[i];
        layers[i] = (sib_kv_layer){.geom = {l->n_kv_heads, l->head_dim, l->head_dim}, .window = l->full ? 0 : c->window, .donor = -1};
    }
    sib_status s = sib_kv_layout_new(&m->layout, layers, c->n_layers, m->limits.n_ctx, m->limits.max_rows, err);
    free(layers);
    SIB_TRY(s);
    sib_kv_budget budget = {m->limits.n_seqs, (int64_t)m->limits.n_seqs * m->limits.n_ctx};
    m->model.memory.cache = sib_kv_bytes(m->layout, m->model.device, &budget);
    return sib_kv_pool_new(&m->pool, m->layout, m->model.device, &budget, err);
}

static sib_status host_arrays(diffusion_gemma *m, sib_err *err)
{
    size_t rows = (size_t)m->limits.max_rows, seqs = (size_t)m->limits.n_seqs;
    m->pos = calloc(6 * rows, sizeof *m->pos);
    m->last_t = calloc(2 * rows, sizeof *m->last_t);
    m->u = calloc(rows, sizeof *m->u);
    m->spans = calloc(seqs, sizeof *m->spans);
    m->kv = calloc(seqs, sizeof(sib_kv_seq *));
    m->seqs = calloc(seqs, sizeof(sib_seq *));
    m->slot_used = calloc(seqs, sizeof *m->slot_used);
    if (!m->pos || !m->last_t || !m->u || !m->spans || !m->kv || !m->seqs || !m->slot_used) return sib_nomem(err, "row lists");
    m->ids = m->pos + rows;
    m->second = m->last_t + rows;
    for (int k = 0; k < 2; k++) {
        m->lo[k] = m->pos + (size_t)(2 + 2 * k) * rows;
        m->hi[k] = m->pos + (size_t)(3 + 2 * k) * rows;
    }
    return SIB_OK;
}

/* Step memory as the largest encoding and the largest denoising call take it, measured over a device that does nothing. */
static sib_status measure_step(diffusion_gemma *m, sib_device *dev, size_t *peak, sib_err *err)
{
    sib_nothing nothing;
    sib_arena plan;
    int32_t *ids = calloc((size_t)m->limits.max_rows, sizeof *ids);
    if (!ids) return sib_nomem(err, "row lists");
    sib_nothing_init(&nothing, dev);
    sib_arena_plan(&plan);
    sib_part part = {.ids = ids, .n_rows = m->limits.max_rows};
    sib_canvas canvas = {.ids = ids, .n = m->denoise.max_rows, .t = 1};
    sib_status s = diffusion_encode_on(m, &nothing.device, &plan, &part, 1, err);
    if (s == SIB_OK) s = diffusion_denoise_on(m, &nothing.device, &plan, &canvas, 1, NULL, err);
    m->spans[0].n_rows = m->cfg.canvas; /* soft embeddings are made one canvas at a time */
    if (s == SIB_OK) s = diffusion_condition_on(m, &nothing.device, &plan, NULL, m->logits, err);
    m->n_last = 0;
    free(ids);
    *peak = plan.peak;
    return s;
}

static sib_status plan_step(diffusion_gemma *m, sib_loader *l, sib_err *err)
{
    size_t hidden = (size_t)m->cfg.hidden, rows = (size_t)m->denoise.max_rows, n_vocab = (size_t)m->cfg.n_vocab;
    size_t soft = (size_t)m->limits.n_seqs * (size_t)m->cfg.canvas;
    void *p;
    SIB_TRY(host_arrays(m, err));
    SIB_TRY(sib_load_buffer(l, &p, rows * hidden * sizeof(float), err));
    m->hidden = p;
    SIB_TRY(sib_load_buffer(l, &p, rows * n_vocab * sizeof(float), err));
    m->logits = p;
    SIB_TRY(sib_load_buffer(l, &p, soft * hidden * sizeof(float), err));
    m->soft = p;
    size_t peak = 0;
    SIB_TRY(measure_step(m, l->dev, &peak, err));
    SIB_TRY(sib_load_buffer(l, &p, peak, err));
    m->arena = (sib_arena){.base = p, .cap = peak};
    m->model.memory.step = peak;
    m->model.memory.results = ((rows + soft) * hidden + rows * n_vocab) * sizeof(float);
    return SIB_OK;
}

static int or_default(int value, int fallback)
{
    return value > 0 ? value : fallback;
}

/* A call holds one canvas at least, and canvases of all sequences when its rows allow. */
static void set_limits(diffusion_gemma *m, const sib_model_limits *limits)
{
    const diffusion_config *c = &m->cfg;
    m->limits = *limits;
    m->limits.n_seqs = or_default(limits->n_seqs, 1);
    m->limits.max_rows = or_default(limits->max_rows, 512);
    if (m->limits.max_rows < c->canvas) m->limits.max_rows = c->canvas;
    m->limits.n_ctx = or_default(limits->n_ctx, c->max_positions < 8192 ? c->max_positions : 8192);
    int fit = m->limits.max_rows / c->canvas, canvases = fit < m->limits.n_seqs ? fit : m->limits.n_seqs;
    m->limits.max_logits = canvases * c->canvas;
    if (m->limits.n_ctx > c->max_positions)
        sib_log(SIB_LOG_WARN, "context of %d positions is more than the %d the checkpoint was made for", m->limits.n_ctx, c->max_positions);
}

static sib_status build(diffusion_gemma *m, sib_loader *l, const sib_model_limits *limits, sib_err *err)
{
    diffusion_config *c = &m->cfg;
    SIB_TRY(diffusion_config_read(c, sib_checkpoint_config(l->files), err));
    set_limits(m, limits);
    SIB_TRY(diffusion_weights_load(m, l, err));
    double active_bytes = l->active_bytes, active_macs = l->active_macs;
    SIB_TRY(open_vision(m, l, err));
    ignore_rest(m, l->files);
    m->model.memory.weights = l->packed_bytes;
    /* The factor is a bf16 tensor in the references (diffusion_gemma.md 2.3); in float32 it is not rounded. */
    m->embed_scale = sqrtf((float)c->hidden);
    if (l->dev->numerics != SIB_NUM_F32) m->embed_scale = sib_round_bf16(m->embed_scale);
    m->denoise = (sib_denoise_port){.canvas_length = c->canvas, .max_rows = m->limits.max_logits, .step = step, .condition = condition, .logits = logits};
    SIB_TRY(plan_cache(m, err));
    SIB_TRY(plan_step(m, l, err));
    m->model.facts = (sib_facts){.family = "diffusion_gemma", .n_vocab = c->n_vocab, .hidden = c->hidden, .n_layers = c->n_layers,
                                 .max_positions = c->max_positions, .window = c->window, .max_rows = m->limits.max_rows,
                                 .max_logits = m->limits.max_logits, .n_ctx = m->limits.n_ctx, .active_bytes = active_bytes,
                                 .active_macs = active_macs, .embed_scale = m->embed_scale};
    m->model.offers = (sib_offers){.keep = &keep_port, .images = m->vision ? &m->images : NULL, .denoise = &m->denoise};
    return SIB_OK;
}

static const sib_model_ops model_ops = {diffusion_free, seq_new, seq_free, seq_length, forward};

static sib_status diffusion_open(sib_model **out, sib_loader *l, const sib_model_limits *limits, sib_err *err)
{
    diffusion_gemma *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m) return sib_nomem(err, "model");
    l->into = &m->weights;
    m->model.device = l->dev;
    sib_status s = build(m, l, limits, err);
    if (s != SIB_OK) {
        diffusion_free(&m->model);
        return s;
    }
    m->model.ops = &model_ops;
    *out = &m->model;
    return SIB_OK;
}

static bool diffusion_claims(const sib_checkpoint *c)
{
    const char *type = json_string_value(json_object_get(sib_checkpoint_config(c), "model_type"));
    return type && strcmp(type, "diffusion_gemma") == 0;
}

const sib_family sib_family_diffusion_gemma = {"diffusion_gemma", diffusion_claims, diffusion_open};

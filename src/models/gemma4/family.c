/* models/gemma4/family.c - opening a Gemma 4 checkpoint, its sequences and what it offers. */
#include "models/gemma4/family.h"

#include "base/log.h"
#include "models/gemma4/gemma4.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>



static gemma4 *self(sib_model *m)
{
    return (gemma4 *)m;
}

/* ---- sequences ------------------------------------------------------------------------------ */

static sib_status seq_new(sib_model *model, sib_seq **out, sib_err *err)
{
    gemma4 *m = self(model);
    *out = NULL;
    if (m->seqs_open == m->limits.n_seqs) return sib_fail(err, SIB_ECAPACITY, "all %d planned sequences are in use", m->limits.n_seqs);
    sib_seq *s = calloc(1, sizeof *s);
    if (!s) return sib_nomem(err, "sequence");
    sib_status status = sib_kv_seq_new(&s->kv, m->pool, err);
    if (status != SIB_OK) {
        free(s);
        return status;
    }
    m->seqs_open++;
    *out = s;
    return SIB_OK;
}

static void seq_free(sib_model *model, sib_seq *s)
{
    if (!s) return;
    self(model)->seqs_open--;
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

/* ---- forward ---------------------------------------------------------------------------------- */

static sib_status check_parts(const gemma4 *m, const sib_part *parts, int n_parts, sib_err *err)
{
    int rows = 0, logits = 0;
    if (n_parts < 1 || n_parts > m->limits.n_seqs) return sib_fail(err, SIB_ECAPACITY, "%d sequences in one call, planned are %d", n_parts, m->limits.n_seqs);
    for (int p = 0; p < n_parts; p++) {
        const sib_part *part = &parts[p];
        if (part->n_rows < 1 || part->n_logits < 0 || part->n_logits > part->n_rows) return sib_fail(err, SIB_EARG, "a part of %d rows with %d logits", part->n_rows, part->n_logits);
        for (int i = 0; i < part->n_rows; i++)
            if (part->ids[i] < 0 || part->ids[i] >= m->cfg.n_vocab)
                return sib_fail(err, SIB_EARG, "token id %d is outside the vocabulary of %d", part->ids[i], m->cfg.n_vocab);
        for (int s = 0; s < part->n_soft; s++)
            if (part->soft[s].first < 0 || part->soft[s].n < 0 || part->soft[s].first > part->n_rows - part->soft[s].n)
                return sib_fail(err, SIB_EARG, "soft tokens %d to %d of a part of %d rows", part->soft[s].first, part->soft[s].first + part->soft[s].n, part->n_rows);
        rows += part->n_rows;
        logits += part->n_logits;
    }
    if (rows > m->limits.max_rows) return sib_fail(err, SIB_ECAPACITY, "%d rows in one call, planned are %d", rows, m->limits.max_rows);
    if (logits > m->limits.max_logits) return sib_fail(err, SIB_ECAPACITY, "%d logit rows in one call, planned are %d", logits, m->limits.max_logits);
    return SIB_OK;
}

static sib_status forward(sib_model *model, const sib_part *parts, int n_parts, sib_forward_out *out, sib_err *err)
{
    gemma4 *m = self(model);
    SIB_TRY(check_parts(m, parts, n_parts, err));
    for (int p = 0; p < n_parts; p++) SIB_TRY(sib_kv_begin(parts[p].seq->kv, parts[p].n_rows, err));
    return gemma4_forward_on(m, model->device, &m->arena, parts, n_parts, out, err);
}

/* ---- offers ----------------------------------------------------------------------------------- */

static sib_status select_taps(sib_model *model, const int *layers, int n, sib_err *err)
{
    gemma4 *m = self(model);
    if (n < 0 || n > (int)SIB_COUNT(m->tap_layers)) return sib_fail(err, SIB_EARG, "%d tapped layers, at most %zu", n, SIB_COUNT(m->tap_layers));
    for (int i = 0; i < n; i++)
        if (layers[i] < -1 || layers[i] > m->cfg.n_layers) return sib_fail(err, SIB_EARG, "tapped layer %d, the model has %d layers", layers[i], m->cfg.n_layers);
    sib_loader l = {.dev = model->device, .into = &m->weights};
    void *rows = NULL;
    if (n) SIB_TRY(sib_load_buffer(&l, &rows, (size_t)m->limits.max_rows * (size_t)n * (size_t)m->cfg.hidden * sizeof(float), err));
    m->taps = rows;
    m->n_taps = n;
    if (n) memcpy(m->tap_layers, layers, (size_t)n * sizeof *layers);
    return SIB_OK;
}

static const float *tap_rows(sib_model *model)
{
    return self(model)->taps;
}

static void vocab_embed(sib_model *model, float *y, const int32_t *ids, int rows, bool scaled)
{
    gemma4 *m = self(model);
    model->device->ops->embed(model->device, y, m->embed.w, ids, rows, scaled ? m->scalar_embed : 1.0f, 0, 0);
}

static void vocab_head(sib_model *model, float *logits, const float *hidden, int rows)
{
    gemma4_head(self(model), logits, hidden, rows);
}

static const sib_donor_info *donor_info(sib_model *model, sib_donor which)
{
    return &self(model)->donors[which];
}

static void donor_attend(sib_model *model, sib_donor which, float *out, const float *q, int n_heads, sib_seq *const *seqs,
                         const int32_t *lo, const int32_t *hi, int rows, float scale)
{
    gemma4 *m = self(model);
    const sib_donor_info *d = &m->donors[which];
    for (int r = 0; r < rows; r++)
        m->spans[r] = (sib_span){.kv = sib_kv_view_of(seqs[r]->kv, d->layer), .row0 = r, .n_rows = 1, .pos0 = hi[r] - 1};
    sib_attend at = {.spans = m->spans, .n_spans = rows, .n_rows = rows, .geom = {d->n_kv_heads, d->head_dim, d->head_dim},
                     .n_heads = n_heads, .scale = scale, .lo = lo, .hi = hi};
    model->device->ops->attend(model->device, out, q, &at);
}

static void donor_read(sib_model *model, sib_donor which, sib_seq *seq, int first, int n, float *k, float *v)
{
    const sib_donor_info *d = &self(model)->donors[which];
    sib_kv_geom g = {d->n_kv_heads, d->head_dim, d->head_dim};
    sib_kv_view view = sib_kv_view_of(seq->kv, d->layer);
    model->device->ops->kv_read(model->device, &g, &view, first, n, k, v);
}

/* The last layer of each kind that owns a cache (speculative.md 4.3). */
static void find_donors(gemma4 *m)
{
    const gemma4_config *c = &m->cfg;
    for (int which = 0; which < SIB_N_DONORS; which++) {
        sib_donor_info *d = &m->donors[which];
        int kind = which == SIB_DONOR_FULL ? SIB_FULL : SIB_SLIDING;
        *d = (sib_donor_info){.layer = -1};
        for (int i = 0; i < c->n_layers - c->n_shared; i++)
            if (c->full[i] == (kind == SIB_FULL)) d->layer = i;
        if (d->layer < 0) continue;
        const sib_gemma_layer *l = &m->stack.layers[d->layer];
        d->n_heads = c->n_heads;
        d->n_kv_heads = l->n_kv_heads;
        d->head_dim = l->head_dim;
        d->window = kind == SIB_FULL ? 0 : c->window;
        d->rope_pairs = m->stack.rope[kind].n_pairs;
        d->rope_theta = (float)c->rope_theta[kind];
        d->rope_factor = (float)c->rope_factor[kind];
        d->proportional = c->rope_proportional[kind];
    }
}

static const sib_keep_port keep_port = {keep, truncate_to, reach};
static const sib_tap_port tap_port = {select_taps, tap_rows};
static const sib_vocab_port vocab_port = {vocab_embed, vocab_head};
static const sib_donor_port donor_port = {donor_info, donor_attend, donor_read};

/* ---- open ------------------------------------------------------------------------------------- */

static void gemma4_free(sib_model *model)
{
    gemma4 *m = self(model);
    if (!m) return;
    sib_vision_free(m->vision);
    sib_kv_pool_free(m->pool);
    sib_kv_layout_free(m->layout);
    sib_weights_deinit(&m->weights, model->device);
    free(m->stack.layers);
    gemma4_config_deinit(&m->cfg);
    free(m->pos);
    free(m->spans);
    free(m->seqs);
    free(m);
}

static sib_status plan_cache(gemma4 *m, sib_err *err)
{
    const gemma4_config *c = &m->cfg;
    sib_kv_layer *layers = calloc((size_t)c->n_layers, sizeof *layers);
    if (!layers) return sib_nomem(err, "cache layout");
    for (int i = 0; i < c->n_layers; i++) {
        const sib_gemma_layer *l = &m->stack.layers[i];
        layers[i] = (sib_kv_layer){.geom = {l->n_kv_heads, l->head_dim, l->head_dim}, .window = l->full ? 0 : c->window, .donor = l->shared ? l->kv_layer : -1};
    }
    sib_status s = sib_kv_layout_new(&m->layout, layers, c->n_layers, m->limits.n_ctx, m->limits.max_rows, err);
    free(layers);
    SIB_TRY(s);
    sib_kv_budget budget = {m->limits.n_seqs, (int64_t)m->limits.n_seqs * m->limits.n_ctx};
    m->model.memory.cache = sib_kv_bytes(m->layout, m->model.device, &budget);
    return sib_kv_pool_new(&m->pool, m->layout, m->model.device, &budget, err);
}

/* Host arrays of a call in one block, device results, and step memory measured by a run of the forward pass
 * over a device that does nothing, at the largest call. */
static sib_status plan_step(gemma4 *m, sib_loader *l, sib_err *err)
{
    const sib_model_limits *lim = &m->limits;
    size_t rows = (size_t)lim->max_rows, seqs = (size_t)(lim->n_seqs > lim->max_rows ? lim->n_seqs : lim->max_rows);
    m->pos = calloc(8 * rows, sizeof *m->pos);
    m->spans = calloc(seqs, sizeof *m->spans);
    m->seqs = calloc(seqs, sizeof *m->seqs);
    if (!m->pos || !m->spans || !m->seqs) return sib_nomem(err, "row lists");
    m->ids = m->pos + rows;
    m->ple_ids = m->pos + 2 * rows;
    for (int k = 0; k < 2; k++) {
        m->lo[k] = m->pos + (size_t)(3 + 2 * k) * rows;
        m->hi[k] = m->pos + (size_t)(4 + 2 * k) * rows;
    }
    void *p;
    SIB_TRY(sib_load_buffer(l, &p, rows * (size_t)m->cfg.hidden * sizeof(float), err));
    m->hidden = p;
    SIB_TRY(sib_load_buffer(l, &p, (size_t)lim->max_logits * (size_t)m->cfg.n_vocab * sizeof(float), err));
    m->logits = p;

    sib_nothing nothing;
    sib_arena plan;
    sib_forward_out out;
    int32_t *ids = calloc(rows, sizeof *ids);
    if (!ids) return sib_nomem(err, "row lists");
    sib_nothing_init(&nothing, l->dev);
    sib_arena_plan(&plan);
    sib_part part = {.ids = ids, .n_rows = lim->max_rows, .n_logits = lim->max_logits < lim->max_rows ? lim->max_logits : lim->max_rows};
    sib_status s = gemma4_forward_on(m, &nothing.device, &plan, &part, 1, &out, err);
    free(ids);
    SIB_TRY(s);
    SIB_TRY(sib_load_buffer(l, &p, plan.peak, err));
    m->model.memory.step = plan.peak;
    m->model.memory.results = (rows * (size_t)m->cfg.hidden + (size_t)lim->max_logits * (size_t)m->cfg.n_vocab) * sizeof(float);
    m->arena = (sib_arena){.base = p, .cap = plan.peak};
    return SIB_OK;
}

static int clamp_default(int value, int fallback)
{
    return value > 0 ? value : fallback;
}

static sib_status build(gemma4 *m, sib_loader *l, const sib_model_limits *limits, sib_err *err)
{
    gemma4_config *c = &m->cfg;
    m->model = (sib_model){.device = l->dev};
    SIB_TRY(gemma4_config_read(c, sib_checkpoint_config(l->files), err));
    m->limits = *limits;
    m->limits.n_seqs = clamp_default(limits->n_seqs, 1);
    m->limits.max_rows = clamp_default(limits->max_rows, 512);
    m->limits.max_block = clamp_default(limits->max_block, 16);
    m->limits.n_ctx = clamp_default(limits->n_ctx, c->max_positions < 8192 ? c->max_positions : 8192);
    m->limits.max_logits = clamp_default(limits->max_logits, m->limits.n_seqs * m->limits.max_block);
    if (m->limits.n_ctx > c->max_positions)
        sib_log(SIB_LOG_WARN, "context of %d positions is more than the %d the checkpoint was made for", m->limits.n_ctx, c->max_positions);

    SIB_TRY(gemma4_weights_load(m, l, err));
    double active_bytes = l->active_bytes, active_macs = l->active_macs; /* of a token; pictures are another matter */
    SIB_TRY(gemma4_vision_open(m, l, err));
    gemma4_ignore_rest(m, l->files);
    m->model.memory.weights = l->packed_bytes;
    /* The embedding factors are rounded to bf16 as the references do with bf16 activations, and are not in
     * float32 (gemma4.md 2.2, 2.3). */
    m->scalar_embed = sqrtf((float)c->hidden);
    m->scalar_ple = sqrtf((float)c->ple);
    if (l->dev->numerics != SIB_NUM_F32) {
        m->scalar_embed = sib_round_bf16(m->scalar_embed);
        m->scalar_ple = sib_round_bf16(m->scalar_ple);
    }
    find_donors(m);
    SIB_TRY(plan_cache(m, err));
    SIB_TRY(plan_step(m, l, err));
    m->model.facts = (sib_facts){.family = "gemma4", .n_vocab = c->n_vocab, .hidden = c->hidden, .n_layers = c->n_layers,
                                 .max_positions = c->max_positions, .window = c->window, .max_rows = m->limits.max_rows,
                                 .max_logits = m->limits.max_logits, .n_ctx = m->limits.n_ctx, .active_bytes = active_bytes,
                                 .active_macs = active_macs, .embed_scale = m->scalar_embed};
    m->model.offers = (sib_offers){.keep = &keep_port, .taps = &tap_port, .vocab = &vocab_port, .donors = &donor_port,
                                   .images = m->vision ? &m->images : NULL};
    return SIB_OK;
}

static const sib_model_ops model_ops = {gemma4_free, seq_new, seq_free, seq_length, forward};

static sib_status gemma4_open(sib_model **out, sib_loader *l, const sib_model_limits *limits, sib_err *err)
{
    gemma4 *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m) return sib_nomem(err, "model");
    l->into = &m->weights;
    m->model.device = l->dev;
    sib_status s = build(m, l, limits, err);
    if (s != SIB_OK) {
        gemma4_free(&m->model);
        return s;
    }
    m->model.ops = &model_ops;
    *out = &m->model;
    return SIB_OK;
}

static bool gemma4_claims(const sib_checkpoint *c)
{
    static const char *const types[] = {"gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"};
    const char *type = json_string_value(json_object_get(sib_checkpoint_config(c), "model_type"));
    for (size_t i = 0; type && i < SIB_COUNT(types); i++)
        if (strcmp(type, types[i]) == 0) return true;
    return false;
}

const sib_family sib_family_gemma4 = {"gemma4", gemma4_claims, gemma4_open};

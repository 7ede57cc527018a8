/* models/qwen3_5/family.c - opening a Qwen3.5 checkpoint, its sequences and what it offers. */
#include "models/qwen3_5/family.h"

#include "base/log.h"
#include "models/qwen3_5/qwen3_5.h"

#include <stdlib.h>
#include <string.h>

static qwen3_5 *self(sib_model *m)
{
    return (qwen3_5 *)m;
}

/* ---- sequences ------------------------------------------------------------------------------ */

static sib_status seq_new(sib_model *model, sib_seq **out, sib_err *err)
{
    qwen3_5 *m = self(model);
    int slot = 0;
    *out = NULL;
    while (slot < m->limits.n_seqs && m->slot_used[slot]) slot++;
    if (slot == m->limits.n_seqs) return sib_fail(err, SIB_ECAPACITY, "all %d planned sequences are in use", m->limits.n_seqs);
    sib_seq *s = calloc(1, sizeof *s);
    if (!s) return sib_nomem(err, "sequence");
    s->slot = slot;
    sib_status status = sib_kv_seq_new(&s->kv, m->pool, err);
    if (status != SIB_OK) {
        free(s);
        return status;
    }
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
    return qwen3_5_keep(self(model), s, n, err);
}

static sib_status truncate_to(sib_model *model, sib_seq *s, int length, sib_err *err)
{
    return qwen3_5_truncate(self(model), s, length, err);
}

static int reach(sib_model *model, const sib_seq *s)
{
    (void)model;
    return qwen3_5_reach(s);
}

/* ---- forward -------------------------------------------------------------------------------- */

static sib_status check_parts(const qwen3_5 *m, const sib_part *parts, int n_parts, sib_err *err)
{
    int rows = 0, logits = 0, vocab = m->cfg.shape.n_vocab;
    if (n_parts < 1 || n_parts > m->limits.n_seqs) return sib_fail(err, SIB_ECAPACITY, "%d sequences in one call, planned are %d", n_parts, m->limits.n_seqs);
    for (int p = 0; p < n_parts; p++) {
        const sib_part *part = &parts[p];
        if (part->n_rows < 1 || part->n_logits < 0 || part->n_logits > part->n_rows) return sib_fail(err, SIB_EARG, "a part of %d rows with %d logits", part->n_rows, part->n_logits);
        if (part->n_soft > 0) return sib_fail(err, SIB_EUNSUPPORTED, "this model takes no pictures yet");
        if (part->n_rows > m->limits.max_rows - rows) return sib_fail(err, SIB_ECAPACITY, "more than the %d rows that a call is planned for", m->limits.max_rows);
        for (int i = 0; i < part->n_rows; i++)
            if (part->ids[i] < 0 || part->ids[i] >= vocab) return sib_fail(err, SIB_EARG, "token id %d is outside the vocabulary of %d", part->ids[i], vocab);
        rows += part->n_rows;
        logits += part->n_logits;
    }
    if (logits > m->limits.max_logits) return sib_fail(err, SIB_ECAPACITY, "%d logit rows in one call, planned are %d", logits, m->limits.max_logits);
    return SIB_OK;
}

static sib_status forward(sib_model *model, const sib_part *parts, int n_parts, sib_forward_out *out, sib_err *err)
{
    qwen3_5 *m = self(model);
    SIB_TRY(check_parts(m, parts, n_parts, err));
    for (int p = 0; p < n_parts; p++) SIB_TRY(sib_kv_begin(parts[p].seq->kv, parts[p].n_rows, err));
    return qwen3_5_forward_on(m, model->device, &m->arena, parts, n_parts, out, err);
}

/* ---- offers --------------------------------------------------------------------------------- */

static sib_status select_taps(sib_model *model, const int *layers, int n, sib_err *err)
{
    qwen3_5 *m = self(model);
    if (n < 0 || n > (int)SIB_COUNT(m->tap_layers)) return sib_fail(err, SIB_EARG, "%d tapped layers, at most %zu", n, SIB_COUNT(m->tap_layers));
    for (int i = 0; i < n; i++)
        if (layers[i] < -1 || layers[i] > m->cfg.n_layers) return sib_fail(err, SIB_EARG, "tapped layer %d, the model has %d layers", layers[i], m->cfg.n_layers);
    sib_loader l = {.dev = model->device, .into = &m->weights};
    void *rows = NULL;
    if (n) SIB_TRY(sib_load_buffer(&l, &rows, (size_t)m->limits.max_rows * (size_t)n * (size_t)m->cfg.shape.hidden * sizeof(float), err));
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
    (void)scaled; /* the factor is 1 */
    model->device->ops->embed(model->device, y, self(model)->embed.w, ids, rows, 1.0f, 0, 0);
}

static void vocab_head(sib_model *model, float *logits, const float *hidden, int rows)
{
    qwen3_5_head(self(model), model->device, logits, hidden, rows);
}

static const sib_keep_port keep_port = {keep, truncate_to, reach};
static const sib_tap_port tap_port = {select_taps, tap_rows};
static const sib_vocab_port vocab_port = {vocab_embed, vocab_head};

/* ---- open ----------------------------------------------------------------------------------- */

static void qwen3_5_free(sib_model *model)
{
    qwen3_5 *m = self(model);
    if (!m) return;
    sib_kv_pool_free(m->pool);
    sib_kv_layout_free(m->layout);
    sib_weights_deinit(&m->weights, model->device);
    free(m->layers);
    free(m->slot_used);
    qwen3_5_config_deinit(&m->cfg);
    free(m->pos);
    free(m->spans);
    free(m->delta_spans);
    free(m->seqs);
    free(m);
}

/* Pages of the full layers, and the states of the linear ones. */
static sib_status plan_cache(qwen3_5 *m, sib_loader *l, sib_err *err)
{
    const sib_qwen_shape *c = &m->cfg.shape;
    sib_kv_layer *layers = calloc((size_t)m->n_full, sizeof *layers);
    m->slot_used = calloc((size_t)m->limits.n_seqs, sizeof *m->slot_used);
    if (!layers || !m->slot_used) {
        free(layers);
        return sib_nomem(err, "cache layout");
    }
    for (int i = 0; i < m->n_full; i++) layers[i] = (sib_kv_layer){.geom = {c->n_kv_heads, c->head_dim, c->head_dim}, .donor = -1};
    sib_status s = sib_kv_layout_new(&m->layout, layers, m->n_full, m->limits.n_ctx, m->limits.max_rows, err);
    free(layers);
    SIB_TRY(s);
    sib_kv_budget budget = {m->limits.n_seqs, (int64_t)m->limits.n_seqs * m->limits.n_ctx};
    qwen3_5_states_plan(m);
    size_t bytes = (size_t)m->limits.n_seqs * m->slot_floats * sizeof(float);
    m->model.memory.cache = sib_kv_bytes(m->layout, m->model.device, &budget) + bytes;
    SIB_TRY(sib_kv_pool_new(&m->pool, m->layout, m->model.device, &budget, err));
    void *p = NULL;
    if (bytes) SIB_TRY(sib_load_buffer(l, &p, bytes, err));
    m->states = p;
    return SIB_OK;
}

/* Host arrays of a call, device results, and step memory measured by a run of the forward pass over a device that
 * does nothing, at the largest call. */
static sib_status plan_step(qwen3_5 *m, sib_loader *l, sib_err *err)
{
    const sib_model_limits *lim = &m->limits;
    size_t rows = (size_t)lim->max_rows, seqs = (size_t)lim->n_seqs, hidden = (size_t)m->cfg.shape.hidden;
    size_t logits = (size_t)lim->max_logits * (size_t)m->cfg.shape.n_vocab;
    m->pos = calloc(4 * rows, sizeof *m->pos);
    m->spans = calloc(seqs, sizeof *m->spans);
    m->delta_spans = calloc(seqs, sizeof *m->delta_spans);
    m->seqs = calloc(seqs, sizeof *m->seqs);
    if (!m->pos || !m->spans || !m->delta_spans || !m->seqs) return sib_nomem(err, "row lists");
    m->lo = m->pos + rows;
    m->hi = m->pos + 2 * rows;
    m->ids = m->pos + 3 * rows;
    void *p;
    SIB_TRY(sib_load_buffer(l, &p, rows * hidden * sizeof(float), err));
    m->hidden = p;
    SIB_TRY(sib_load_buffer(l, &p, logits * sizeof(float), err));
    m->logits = p;

    sib_nothing nothing;
    sib_arena plan;
    sib_forward_out out;
    int32_t *ids = calloc(rows, sizeof *ids);
    if (!ids) return sib_nomem(err, "row lists");
    sib_nothing_init(&nothing, l->dev);
    sib_arena_plan(&plan);
    sib_part part = {.ids = ids, .n_rows = lim->max_rows, .n_logits = lim->max_logits < lim->max_rows ? lim->max_logits : lim->max_rows};
    sib_status s = qwen3_5_forward_on(m, &nothing.device, &plan, &part, 1, &out, err);
    free(ids);
    SIB_TRY(s);
    SIB_TRY(sib_load_buffer(l, &p, plan.peak, err));
    m->model.memory.step = plan.peak;
    m->model.memory.results = (rows * hidden + logits) * sizeof(float);
    m->arena = (sib_arena){.base = p, .cap = plan.peak};
    return SIB_OK;
}

static int or_default(int value, int fallback)
{
    return value > 0 ? value : fallback;
}

static sib_status build(qwen3_5 *m, sib_loader *l, const sib_model_limits *limits, sib_err *err)
{
    const sib_qwen_shape *c = &m->cfg.shape;
    SIB_TRY(qwen3_5_config_read(&m->cfg, sib_checkpoint_config(l->files), err));
    m->limits = *limits;
    m->limits.n_seqs = or_default(limits->n_seqs, 1);
    m->limits.max_rows = or_default(limits->max_rows, 512);
    m->limits.max_block = or_default(limits->max_block, 16);
    if (m->limits.max_block > m->limits.max_rows) m->limits.max_block = m->limits.max_rows;
    m->limits.n_ctx = or_default(limits->n_ctx, c->max_positions < 8192 ? c->max_positions : 8192);
    m->limits.max_logits = or_default(limits->max_logits, m->limits.n_seqs * m->limits.max_block);
    if (m->limits.n_ctx > c->max_positions)
        sib_log(SIB_LOG_WARN, "context of %d positions is more than the %d the checkpoint was made for", m->limits.n_ctx, c->max_positions);

    SIB_TRY(qwen3_5_weights_load(m, l, err));
    m->model.memory.weights = l->packed_bytes;
    SIB_TRY(plan_cache(m, l, err));
    SIB_TRY(plan_step(m, l, err));
    m->model.facts = (sib_facts){.family = "qwen3_5", .n_vocab = c->n_vocab, .hidden = c->hidden, .n_layers = m->cfg.n_layers,
                                 .max_positions = c->max_positions, .max_rows = m->limits.max_rows, .max_logits = m->limits.max_logits,
                                 .n_ctx = m->limits.n_ctx, .active_bytes = l->active_bytes, .active_macs = l->active_macs, .embed_scale = 1.0f};
    m->model.offers = (sib_offers){.keep = &keep_port, .taps = &tap_port, .vocab = &vocab_port};
    return SIB_OK;
}

static const sib_model_ops model_ops = {qwen3_5_free, seq_new, seq_free, seq_length, forward};

static sib_status qwen3_5_open(sib_model **out, sib_loader *l, const sib_model_limits *limits, sib_err *err)
{
    *out = NULL;
    qwen3_5 *m = calloc(1, sizeof *m);
    if (!m) return sib_nomem(err, "model");
    l->into = &m->weights;
    m->model.device = l->dev;
    sib_status s = build(m, l, limits, err);
    if (s != SIB_OK) {
        qwen3_5_free(&m->model);
        return s;
    }
    m->model.ops = &model_ops;
    *out = &m->model;
    return SIB_OK;
}

static bool qwen3_5_claims(const sib_checkpoint *c)
{
    static const char *const types[] = {"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"};
    for (size_t i = 0; i < SIB_COUNT(types); i++)
        if (strcmp(sib_checkpoint_type(c), types[i]) == 0) return true;
    return false;
}

const sib_family sib_family_qwen3_5 = {"qwen3_5", qwen3_5_claims, qwen3_5_open};

/* models/glm_moe_dsa/family.c - opening a GLM-5.2 checkpoint, its sequences and what it offers. */
#include "models/glm_moe_dsa/family.h"

#include "base/log.h"
#include "models/glm_moe_dsa/glm.h"

#include <stdlib.h>
#include <string.h>

static glm *self(sib_model *m)
{
    return (glm *)m;
}

/* ---- sequences ------------------------------------------------------------------------------ */

static sib_status seq_new(sib_model *model, sib_seq **out, sib_err *err)
{
    glm *m = self(model);
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

static sib_status check_parts(const glm *m, const sib_part *parts, int n_parts, sib_err *err)
{
    int rows = 0, logits = 0;
    if (n_parts < 1 || n_parts > m->limits.n_seqs) return sib_fail(err, SIB_ECAPACITY, "%d sequences in one call, planned are %d", n_parts, m->limits.n_seqs);
    for (int p = 0; p < n_parts; p++) {
        const sib_part *part = &parts[p];
        if (part->n_soft) return sib_fail(err, SIB_EUNSUPPORTED, "GLM-5.2 takes no pictures");
        if (part->n_rows < 1 || part->n_logits < 0 || part->n_logits > part->n_rows) return sib_fail(err, SIB_EARG, "a part of %d rows with %d logits", part->n_rows, part->n_logits);
        if (part->n_rows > m->limits.max_rows - rows) return sib_fail(err, SIB_ECAPACITY, "more than the planned %d rows in one call", m->limits.max_rows);
        for (int i = 0; i < part->n_rows; i++)
            if (part->ids[i] < 0 || part->ids[i] >= m->cfg.n_vocab)
                return sib_fail(err, SIB_EARG, "token id %d is outside the vocabulary of %d", part->ids[i], m->cfg.n_vocab);
        rows += part->n_rows;
        logits += part->n_logits;
    }
    if (logits > m->limits.max_logits) return sib_fail(err, SIB_ECAPACITY, "%d logit rows in one call, planned are %d", logits, m->limits.max_logits);
    return SIB_OK;
}

static sib_status forward(sib_model *model, const sib_part *parts, int n_parts, sib_forward_out *out, sib_err *err)
{
    glm *m = self(model);
    SIB_TRY(check_parts(m, parts, n_parts, err));
    for (int p = 0; p < n_parts; p++) SIB_TRY(sib_kv_begin(parts[p].seq->kv, parts[p].n_rows, err));
    return glm_forward_on(m, model->device, &m->arena, parts, n_parts, out, err);
}

/* ---- offers ----------------------------------------------------------------------------------- */

static sib_status select_taps(sib_model *model, const int *layers, int n, sib_err *err)
{
    glm *m = self(model);
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
    (void)scaled; /* the factor is 1 */
    model->device->ops->embed(model->device, y, self(model)->embed.w, ids, rows, 1.0f, 0, 0);
}

static void vocab_head(sib_model *model, float *logits, const float *hidden, int rows)
{
    glm_head(self(model), logits, hidden, rows);
}

static const sib_keep_port keep_port = {keep, truncate_to, reach};
static const sib_tap_port tap_port = {select_taps, tap_rows};
static const sib_vocab_port vocab_port = {vocab_embed, vocab_head};

/* ---- open ------------------------------------------------------------------------------------- */

static void glm_free(sib_model *model)
{
    glm *m = self(model);
    if (!m) return;
    glm_mtp_deinit(m);
    sib_kv_pool_free(m->pool);
    sib_kv_layout_free(m->layout);
    sib_weights_deinit(&m->weights, model->device);
    free(m->layers);
    glm_config_deinit(&m->cfg);
    free(m->pos);
    free(m->spans);
    free(m->seqs);
    free(m->counts);
    free(m);
}

/* Latent and rope key of every layer, then the indexer keys of the full layers. */
static sib_status plan_cache(glm *m, sib_err *err)
{
    const glm_config *c = &m->cfg;
    int n = c->n_layers;
    sib_kv_layer *layers = calloc(2 * (size_t)n, sizeof *layers);
    if (!layers) return sib_nomem(err, "cache layout");
    for (int i = 0; i < c->n_layers; i++) {
        layers[i] = (sib_kv_layer){.geom = {1, c->latent + c->rope, c->latent}, .donor = -1};
        if (c->full[i]) layers[n++] = (sib_kv_layer){.geom = {1, c->index_dim, 0}, .donor = -1};
    }
    sib_status s = sib_kv_layout_new(&m->layout, layers, n, m->limits.n_ctx, m->limits.max_rows, err);
    free(layers);
    SIB_TRY(s);
    sib_kv_budget budget = {m->limits.n_seqs, (int64_t)m->limits.n_seqs * m->limits.n_ctx};
    m->model.memory.cache = sib_kv_bytes(m->layout, m->model.device, &budget);
    return sib_kv_pool_new(&m->pool, m->layout, m->model.device, &budget, err);
}

/* Host arrays of a call, device results, and step memory measured by runs of the passes over a device that does
 * nothing, at the largest calls. */
static sib_status plan_step(glm *m, sib_loader *l, sib_err *err)
{
    const sib_model_limits *lim = &m->limits;
    size_t rows = (size_t)lim->max_rows, seqs = (size_t)lim->n_seqs, hidden = (size_t)m->cfg.hidden;
    m->pos = calloc(4 * rows, sizeof *m->pos);
    m->spans = calloc(seqs, sizeof *m->spans);
    m->seqs = calloc(seqs, sizeof *m->seqs);
    m->counts = calloc(seqs, sizeof *m->counts);
    if (!m->pos || !m->spans || !m->seqs || !m->counts) return sib_nomem(err, "row lists");
    m->ids = m->pos + rows;
    m->lo = m->pos + 2 * rows;
    m->hi = m->pos + 3 * rows;
    void *p;
    SIB_TRY(sib_load_buffer(l, &p, rows * hidden * sizeof(float), err));
    m->hidden = p;
    SIB_TRY(sib_load_buffer(l, &p, (size_t)lim->max_logits * (size_t)m->cfg.n_vocab * sizeof(float), err));
    m->logits = p;
    m->model.memory.results = (rows * hidden + (size_t)lim->max_logits * (size_t)m->cfg.n_vocab) * sizeof(float);
    SIB_TRY(glm_mtp_plan(m, l, err));

    sib_nothing nothing;
    sib_arena plan;
    sib_forward_out out;
    int32_t *ids = calloc(rows, sizeof *ids);
    if (!ids) return sib_nomem(err, "row lists");
    sib_nothing_init(&nothing, l->dev);
    sib_arena_plan(&plan);
    sib_part part = {.ids = ids, .n_rows = lim->max_rows, .n_logits = lim->max_logits < lim->max_rows ? lim->max_logits : lim->max_rows};
    sib_status s = glm_forward_on(m, &nothing.device, &plan, &part, 1, &out, err);
    sib_mtp_part draft = {.ids = ids, .hidden = m->hidden, .n_rows = lim->max_rows};
    if (s == SIB_OK && m->mtp.use) s = glm_mtp_step_on(m, &nothing.device, &plan, &draft, 1, false, err);
    free(ids);
    SIB_TRY(s);
    SIB_TRY(sib_load_buffer(l, &p, plan.peak, err));
    m->model.memory.step = plan.peak;
    m->arena = (sib_arena){.base = p, .cap = plan.peak};
    return SIB_OK;
}

static int or_default(int value, int fallback)
{
    return value > 0 ? value : fallback;
}

static sib_status build(glm *m, sib_loader *l, const sib_model_limits *limits, sib_err *err)
{
    glm_config *c = &m->cfg;
    SIB_TRY(glm_config_read(c, sib_checkpoint_text_config(l->files), err));
    m->limits = *limits;
    m->limits.n_seqs = or_default(limits->n_seqs, 1);
    m->limits.max_rows = or_default(limits->max_rows, 512);
    m->limits.max_block = or_default(limits->max_block, 16);
    m->limits.n_ctx = or_default(limits->n_ctx, c->max_positions < 8192 ? c->max_positions : 8192);
    m->limits.max_logits = or_default(limits->max_logits, m->limits.n_seqs * m->limits.max_block);
    if (m->limits.n_ctx > c->max_positions)
        sib_log(SIB_LOG_WARN, "context of %d positions is more than the %d the checkpoint was made for", m->limits.n_ctx, c->max_positions);
    SIB_TRY(glm_weights_load(m, l, err));
    m->model.memory.weights = l->packed_bytes;
    SIB_TRY(plan_cache(m, err));
    SIB_TRY(plan_step(m, l, err));
    sib_facts *f = &m->model.facts;
    f->family = "glm_moe_dsa";
    f->n_vocab = c->n_vocab;
    f->hidden = c->hidden;
    f->n_layers = c->n_layers;
    f->max_positions = c->max_positions;
    f->max_rows = m->limits.max_rows;
    f->max_logits = m->limits.max_logits;
    f->n_ctx = m->limits.n_ctx;
    f->embed_scale = 1.0f;
    m->model.offers = (sib_offers){.keep = &keep_port, .taps = &tap_port, .vocab = &vocab_port, .mtp = m->mtp.use ? &glm_mtp_port : NULL};
    return SIB_OK;
}

static const sib_model_ops model_ops = {glm_free, seq_new, seq_free, seq_length, forward};

static sib_status glm_open(sib_model **out, sib_loader *l, const sib_model_limits *limits, sib_err *err)
{
    glm *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m) return sib_nomem(err, "model");
    l->into = &m->weights;
    m->model.device = l->dev;
    sib_status s = build(m, l, limits, err);
    if (s != SIB_OK) {
        glm_free(&m->model);
        return s;
    }
    m->model.ops = &model_ops;
    *out = &m->model;
    return SIB_OK;
}

static bool glm_claims(const sib_checkpoint *c)
{
    const char *type = json_string_value(json_object_get(sib_checkpoint_config(c), "model_type"));
    return type && strcmp(type, "glm_moe_dsa") == 0;
}

const sib_family sib_family_glm_moe_dsa = {"glm_moe_dsa", glm_claims, glm_open};

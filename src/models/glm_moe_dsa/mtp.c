/* models/glm_moe_dsa/mtp.c - the checkpoint's own draft head: layer n_layers (glm_moe_dsa.md section 7).
 *
 *   x = eh_proj [ norm(embed token, enorm) | norm(hidden, hnorm) ];  raw = layer(x);  out = norm(raw, shared_head.norm)
 *
 * Its rows have a cache of their own, counted from 0: the rotary position of a row is its index. Keys and values depend on
 * x alone, so rows of true history whose result nobody reads stop before attention.
 *
 * Stages for traces, index = row of the first: mtp.eh_input, mtp.eh_proj, mtp.attn_out, mtp.mlp_out, mtp.layer_out,
 * mtp.out, and mtp.topk (positions as floats; rows that see no more than index_topk hold nothing). */
#include "models/glm_moe_dsa/glm.h"

#include <stdlib.h>
#include <string.h>

static glm *self(const sib_model *m)
{
    return (glm *)(uintptr_t)m;
}

static void trace_picks(const glm *m, const sib_step *st, const glm_rows *r, int index)
{
    size_t n = (size_t)r->n * (size_t)m->cfg.index_topk, mark = st->arena->top;
    if (!st->trace->fn || sib_device_is_nothing(st->dev) || !r->picks || st->arena->cap - mark < n * sizeof(float) + SIB_ARENA_ALIGN) return;
    float *shown = SIB_PUSH(st->arena, float, n);
    for (size_t i = 0; i < n; i++) {
        int32_t pick;
        st->dev->ops->download(st->dev, &pick, r->picks + i, sizeof pick);
        float value = (float)pick;
        st->dev->ops->upload(st->dev, shown + i, &value, sizeof value);
    }
    sib_step_trace(st, "mtp.topk", index, shown, r->n, m->cfg.index_topk);
    st->arena->top = mark;
}

sib_status glm_mtp_step_on(glm *m, sib_device *dev, sib_arena *arena, const sib_mtp_part *parts, int n_parts, bool kv_only, sib_err *err)
{
    const sib_ops *op = dev->ops;
    const glm_config *c = &m->cfg;
    glm_mtp *t = &m->mtp;
    sib_step st = {dev, arena, &m->model.trace};
    size_t start = arena->top;
    int hidden = c->hidden, first = parts[0].seq ? sib_kv_length(parts[0].seq->kv) : 0;
    glm_rows r;
    for (int p = 0, row = 0; p < n_parts; row += parts[p++].n_rows) {
        m->counts[p] = parts[p].n_rows;
        m->seqs[p] = parts[p].seq ? parts[p].seq->kv : NULL;
        memcpy(m->ids + row, parts[p].ids, (size_t)parts[p].n_rows * sizeof *m->ids);
    }
    glm_rows_begin(m, &st, &r, n_parts, m->limits.n_ctx + m->limits.max_block, t->use == SIB_MTP_INDEXED);
    float *pair = SIB_PUSH(arena, float, (size_t)r.n * 2 * hidden), *h = SIB_PUSH(arena, float, (size_t)r.n * hidden);
    op->embed(dev, h, t->embed.w ? t->embed.w : m->embed.w, m->ids, r.n, 1.0f, 0, 0);
    op->rms_norm(dev, h, h, t->enorm, r.n, hidden, (float)c->eps);
    op->copy_rows(dev, pair, 2 * hidden, h, hidden, r.n, hidden);
    for (int p = 0, row = 0; p < n_parts; row += parts[p++].n_rows)
        op->rms_norm(dev, h + (size_t)row * hidden, parts[p].hidden, t->hnorm, parts[p].n_rows, hidden, (float)c->eps);
    op->copy_rows(dev, pair + hidden, 2 * hidden, h, hidden, r.n, hidden);
    sib_step_trace(&st, "mtp.eh_input", first, pair, r.n, 2 * hidden);
    op->linear(dev, 1, &h, (const sib_matrix *const[]){t->eh.w}, pair, r.n);
    sib_step_trace(&st, "mtp.eh_proj", first, h, r.n, hidden);
    glm_layer_forward(m, &st, &t->layer, h, &r, "mtp.", first, kv_only);
    if (!kv_only) {
        trace_picks(m, &st, &r, first);
        op->copy_rows(dev, t->raw, hidden, h, hidden, r.n, hidden);
        op->rms_norm(dev, t->out, h, t->norm, r.n, hidden, (float)c->eps);
        sib_step_trace(&st, "mtp.layer_out", first, t->raw, r.n, hidden);
        sib_step_trace(&st, "mtp.out", first, t->out, r.n, hidden);
    }
    arena->top = start;
    return arena->failed ? sib_fail(err, SIB_ECAPACITY, "step memory is too small for %d rows of the MTP head", r.n) : dev->ops->sync(dev, err);
}

/* ---- the port ------------------------------------------------------------------------------- */

static sib_status seq_new(sib_model *model, sib_mtp_seq **out, sib_err *err)
{
    glm *m = self(model);
    *out = NULL;
    if (m->mtp.seqs_open == m->limits.n_seqs) return sib_fail(err, SIB_ECAPACITY, "all %d planned draft caches are in use", m->limits.n_seqs);
    sib_mtp_seq *s = calloc(1, sizeof *s);
    if (!s) return sib_nomem(err, "draft cache");
    sib_status status = sib_kv_seq_new(&s->kv, m->mtp.pool, err);
    if (status != SIB_OK) {
        free(s);
        return status;
    }
    m->mtp.seqs_open++;
    *out = s;
    return SIB_OK;
}

static void seq_free(sib_model *model, sib_mtp_seq *s)
{
    if (!s) return;
    self(model)->mtp.seqs_open--;
    sib_kv_seq_free(s->kv);
    free(s);
}

static int length(const sib_model *model, const sib_mtp_seq *s)
{
    (void)model;
    return sib_kv_length(s->kv);
}

static sib_status step(sib_model *model, const sib_mtp_part *parts, int n_parts, sib_mtp_out *out, sib_err *err)
{
    glm *m = self(model);
    int rows = 0, begun = 0;
    sib_status s = SIB_OK;
    if (n_parts < 1 || n_parts > m->limits.n_seqs) return sib_fail(err, SIB_ECAPACITY, "%d draft caches in one call, planned are %d", n_parts, m->limits.n_seqs);
    for (int p = 0; p < n_parts; p++) {
        if (parts[p].n_rows < 1) return sib_fail(err, SIB_EARG, "a draft part of %d rows", parts[p].n_rows);
        for (int i = 0; i < parts[p].n_rows; i++)
            if (parts[p].ids[i] < 0 || parts[p].ids[i] >= m->cfg.n_vocab)
                return sib_fail(err, SIB_EARG, "token id %d is outside the vocabulary of %d", parts[p].ids[i], m->cfg.n_vocab);
        if (parts[p].n_rows > m->limits.max_rows - rows) return sib_fail(err, SIB_ECAPACITY, "more than the planned %d draft rows in one call", m->limits.max_rows);
        rows += parts[p].n_rows;
    }
    for (; s == SIB_OK && begun < n_parts; begun += s == SIB_OK) s = sib_kv_begin(parts[begun].seq->kv, parts[begun].n_rows, err);
    if (s == SIB_OK) s = glm_mtp_step_on(m, model->device, &m->arena, parts, n_parts, out == NULL, err);
    for (int p = 0; p < begun; p++) sib_kv_keep(parts[p].seq->kv, s == SIB_OK ? parts[p].n_rows : 0);
    if (s == SIB_OK && out) *out = (sib_mtp_out){m->mtp.out, m->mtp.raw};
    return s;
}

static sib_status truncate_to(sib_model *model, sib_mtp_seq *s, int rows, sib_err *err)
{
    (void)model;
    return sib_kv_truncate(s->kv, rows, err);
}

static void head(sib_model *model, float *logits, const float *out, int rows)
{
    glm *m = self(model);
    if (m->mtp.head.w)
        model->device->ops->linear(model->device, 1, &logits, (const sib_matrix *const[]){m->mtp.head.w}, out, rows);
    else
        glm_head(m, logits, out, rows);
}

static void read_rows(sib_model *model, const sib_mtp_seq *s, int first, int n, float *latent, float *rope)
{
    const glm_config *c = &self(model)->cfg;
    sib_kv_geom g = {1, c->latent + c->rope, c->latent};
    sib_kv_view view = sib_kv_view_of(s->kv, 0);
    float key[576]; /* the most that config.c lets through */
    for (int i = 0; i < n; i++) {
        model->device->ops->kv_read(model->device, &g, &view, first + i, 1, key, NULL);
        memcpy(latent + (size_t)i * (size_t)c->latent, key, (size_t)c->latent * sizeof *key);
        memcpy(rope + (size_t)i * (size_t)c->rope, key + c->latent, (size_t)c->rope * sizeof *key);
    }
}

const sib_mtp_port glm_mtp_port = {seq_new, seq_free, length, step, truncate_to, head, read_rows};

/* ---- memory --------------------------------------------------------------------------------- */

sib_status glm_mtp_plan(glm *m, sib_loader *l, sib_err *err)
{
    const glm_config *c = &m->cfg;
    glm_mtp *t = &m->mtp;
    if (t->use == SIB_MTP_NONE) return SIB_OK;
    int ctx = m->limits.n_ctx + m->limits.max_block; /* guesses beyond the last position */
    sib_kv_layer layers[2] = {{.geom = {1, c->latent + c->rope, c->latent}, .donor = -1}, {.geom = {1, c->index_dim, 0}, .donor = -1}};
    sib_kv_budget budget = {m->limits.n_seqs, (int64_t)m->limits.n_seqs * ctx};
    SIB_TRY(sib_kv_layout_new(&t->layout, layers, t->use == SIB_MTP_INDEXED ? 2 : 1, ctx, m->limits.max_rows, err));
    m->model.memory.cache += sib_kv_bytes(t->layout, l->dev, &budget);
    SIB_TRY(sib_kv_pool_new(&t->pool, t->layout, l->dev, &budget, err));
    void *p;
    size_t bytes = (size_t)m->limits.max_rows * (size_t)c->hidden * sizeof(float);
    SIB_TRY(sib_load_buffer(l, &p, bytes, err));
    t->out = p;
    SIB_TRY(sib_load_buffer(l, &p, bytes, err));
    t->raw = p;
    m->model.memory.results += 2 * bytes;
    return SIB_OK;
}

void glm_mtp_deinit(glm *m)
{
    sib_kv_pool_free(m->mtp.pool);
    sib_kv_layout_free(m->mtp.layout);
}

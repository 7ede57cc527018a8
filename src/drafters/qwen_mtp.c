/* drafters/qwen_mtp.c - one decoder layer that guesses the token after next, chained for longer drafts.
 *
 *   x = fc [ norm(embedding of token p+1) | norm(hidden of position p) ]
 *   x += attention(norm(x));  x += feed(norm(x));  out = norm(x);  logits = target's head(out)
 *
 * The layer has its own cache; its row p is made of (token p+1, hidden p). In a chain the next row's hidden is
 * `out`. Between rounds, with m positions settled, rows 0 .. m-2 exist and the hidden of position m-1 (the
 * anchor) waits for the token at m:
 *
 *   propose   row m-1: (pending, anchor) -> d1;  row m: (d1, out) -> d2;  ...
 *   settle    rows whose token was kept stay, chained ones included; the others are dropped, and what is
 *             missing is built from the target's hidden rows
 *
 * The layer is causal and its positions only matter relative to each other, so a timeline that it was not told from the
 * start (a reused prefix) begins with row 0 where it is told again. Facts: qwen3_5.md section 4. */
#include "drafters/qwen_mtp.h"

#include "layers/qwen_layer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WHERE     "mtp config.json"
#define MOST_ROWS 256 /* of one pass over settled text; longer text takes several */

typedef struct qwen_mtp {
    sib_drafter base; /* first */
    sib_device *dev;
    sib_model *target;
    sib_needs needs;
    int tap_layer; /* needs.tap_layers: the last decoder layer */
    bool pre;      /* hidden rows before the final norm        */
    sib_qwen_shape shape;
    sib_linear fc; /* [hidden, 2 hidden] */
    const float *embedding_norm, *hidden_norm, *in_norm, *post_norm, *norm; /* [hidden] */
    sib_qwen_attention attention;
    sib_qwen_ffn ffn;
    sib_weights weights;
    sib_kv_layout *layout;
    sib_kv_pool *pool;
    sib_arena arena;
    sib_trace trace;
    int n_seqs, max_rows, max_recent;
    float *hid, *out, *logits; /* device [max_rows][hidden] x2, [n_seqs][n_vocab] */
    /* host, [max_rows] and [n_seqs] */
    int32_t *ids, *pos, *lo, *hi, *row, *token;
    sib_span *spans;
    sib_kv_seq **seqs;
} qwen_mtp;

struct sib_draft_state {
    sib_kv_seq *kv;
    int processed; /* m: settled positions                                  */
    int base;      /* position of row 0                                     */
    float *recent; /* device [max_recent][hidden]: the last settled hiddens */
    int n_recent;  /* 0: the anchor is not known                            */
    int32_t *chain; /* host [max_recent] tokens of the rows that propose built   */
    int n_chain;
};

static qwen_mtp *self(const sib_drafter *d)
{
    return (qwen_mtp *)(uintptr_t)d;
}

/* ---- rows --------------------------------------------------------------------------------- */

/* Lays out `n` new rows of `s` behind those of the pass so far; begin() has made room for them. */
static void add_rows(qwen_mtp *d, sib_draft_state *s, const int32_t *ids, int n, int *rows, int *spans)
{
    int base = sib_kv_length(s->kv);
    d->spans[*spans] = (sib_span){.row0 = *rows, .n_rows = n, .pos0 = base};
    d->seqs[(*spans)++] = s->kv;
    for (int i = 0; i < n; i++, (*rows)++) {
        d->ids[*rows] = ids[i];
        d->pos[*rows] = base + i;
        d->lo[*rows] = 0;
        d->hi[*rows] = base + i + 1;
    }
}

/* d->out = the layer's normed output of `rows` rows from d->ids and d->hid. Without `outputs` only the rows' keys and values
 * are wanted; the rest is computed for a trace alone. */
static void pass(const qwen_mtp *d, const sib_step *st, int rows, int n_spans, bool outputs, int index)
{
    const sib_qwen_shape *c = &d->shape;
    const sib_ops *op = st->dev->ops;
    int h = c->hidden;
    float eps = (float)c->eps;
    int64_t all = (int64_t)rows * h;
    size_t mark = st->arena->top;
    float *e = SIB_PUSH(st->arena, float, all), *both = SIB_PUSH(st->arena, float, 2 * all), *x = SIB_PUSH(st->arena, float, all);
    float *cs = SIB_PUSH(st->arena, float, (size_t)rows * (size_t)(2 * c->rope.n_pairs));
    if (!sib_device_is_nothing(st->dev)) d->target->offers.vocab->embed(d->target, e, d->ids, rows, true);
    op->rms_norm(st->dev, e, e, d->embedding_norm, rows, h, eps);
    op->copy_rows(st->dev, both, 2 * h, e, h, rows, h);
    op->rms_norm(st->dev, e, d->hid, d->hidden_norm, rows, h, eps);
    op->copy_rows(st->dev, both + h, 2 * h, e, h, rows, h);
    sib_step_trace(st, "mtp.fc_input", index, both, rows, 2 * h);
    op->linear(st->dev, 1, &x, (const sib_matrix *const[]){d->fc.w}, both, rows);
    sib_step_trace(st, "mtp.fc", index, x, rows, h);
    op->rope_angles(st->dev, cs, c->inv_freq, c->rope.n_pairs, d->pos, rows);
    op->rms_norm(st->dev, e, x, d->in_norm, rows, h, eps);
    sib_qwen_rows info = {.n = rows, .spans = d->spans, .seqs = d->seqs, .n_spans = n_spans, .lo = d->lo, .hi = d->hi, .cs = cs};
    if (!outputs && !st->trace->fn) {
        sib_qwen_append(c, &d->attention, st, e, &info, 0);
        st->arena->top = mark;
        return;
    }
    sib_qwen_attend(c, &d->attention, st, e, &info, 0, "mtp", index);
    op->add(st->dev, x, x, e, all);
    sib_step_trace(st, "mtp.after_attention", index, x, rows, h);
    op->rms_norm(st->dev, e, x, d->post_norm, rows, h, eps);
    sib_qwen_feed(c, &d->ffn, st, e, rows);
    op->add(st->dev, x, x, e, all);
    sib_step_trace(st, "mtp.layer_out", index, x, rows, h);
    op->rms_norm(st->dev, d->out, x, d->norm, rows, h, eps);
    sib_step_trace(st, "mtp.out", index, d->out, rows, h);
    st->arena->top = mark;
}

/* ---- propose ------------------------------------------------------------------------------ */

/* Rows that a state has between rounds: all settled positions but the last. */
static int32_t settled_rows(const sib_draft_state *s)
{
    return s->n_recent > 0 ? s->processed - 1 - s->base : 0;
}

/* Forgets the chain but for its first `keep` rows, which become settled ones. */
static sib_status drop_chain(sib_draft_state *s, int keep, sib_err *err)
{
    if (s->n_chain > keep) SIB_TRY(sib_kv_truncate(s->kv, settled_rows(s) + keep, err));
    s->n_chain = 0;
    return SIB_OK;
}

/* One step over the lanes that want a guess more: a row each, then the head's best token. d->row: each lane's row of
 * the step before; rows move up as shorter lanes drop out. */
static sib_status draft_step(qwen_mtp *d, sib_propose *lanes, int n, int step, sib_err *err)
{
    const sib_ops *op = d->dev->ops;
    sib_step st = {d->dev, &d->arena, &d->trace};
    int h = d->shape.hidden, rows = 0, spans = 0;
    for (int i = 0; i < n; i++) {
        sib_draft_state *s = lanes[i].state;
        if (lanes[i].n <= step) continue;
        int32_t id = step == 0 ? lanes[i].pending : lanes[i].ids[step - 1];
        const float *from = step == 0 ? s->recent + (size_t)(s->n_recent - 1) * (size_t)h : d->out + (size_t)d->row[i] * (size_t)h;
        op->copy_rows(d->dev, d->hid + (size_t)rows * (size_t)h, h, from, h, 1, h);
        SIB_TRY(sib_kv_begin(s->kv, 1, err));
        s->chain[s->n_chain++] = id;
        d->row[i] = rows;
        add_rows(d, s, &id, 1, &rows, &spans);
    }
    pass(d, &st, rows, spans, true, step);
    d->target->offers.vocab->head(d->target, d->logits, d->out, rows);
    sib_step_trace(&st, "mtp.logits", step, d->logits, rows, d->shape.n_vocab);
    op->argmax(d->dev, d->token, d->logits, rows, d->shape.n_vocab);
    for (int i = 0; i < n; i++) {
        if (lanes[i].n <= step) continue;
        lanes[i].ids[step] = d->token[d->row[i]];
        sib_kv_keep(lanes[i].state->kv, 1);
    }
    return SIB_OK;
}

static sib_status propose(sib_drafter *base, sib_propose *lanes, int n, sib_err *err)
{
    qwen_mtp *d = self(base);
    int steps = 0;
    if (n > d->n_seqs) return sib_fail(err, SIB_ECAPACITY, "mtp drafter: %d timelines in one call, planned are %d", n, d->n_seqs);
    for (int i = 0; i < n; i++) {
        sib_draft_state *s = lanes[i].state;
        SIB_TRY(drop_chain(s, 0, err)); /* a proposal that was never verified */
        bool told = s->n_recent > 0 && s->processed == lanes[i].position;
        lanes[i].n = !told ? 0 : lanes[i].max < d->base.max_draft ? lanes[i].max : d->base.max_draft;
        if (lanes[i].n > steps) steps = lanes[i].n;
    }
    for (int k = 0; k < steps; k++) SIB_TRY(draft_step(d, lanes, n, k, err));
    if (d->arena.failed) return sib_fail(err, SIB_ECAPACITY, "mtp drafter: step memory is too small for %d rows", n);
    return d->dev->ops->sync(d->dev, err);
}

/* ---- settle ------------------------------------------------------------------------------- */

static const float *hidden_of(const qwen_mtp *d, const sib_settle *l)
{
    return d->pre ? l->taps : l->hidden;
}

/* Drops what the text did not follow. *first: the first row of the lane that has to be built; row i is made of ids[i]
 * and the hidden before it, so there is no row 0 without an anchor. */
static sib_status first_row(const sib_settle *l, int *first, sib_err *err)
{
    sib_draft_state *s = l->state;
    if (s->processed != l->pos0) { /* not told what came before: start here */
        SIB_TRY(sib_kv_truncate(s->kv, 0, err));
        s->processed = s->base = l->pos0;
        s->n_recent = s->n_chain = 0;
    }
    int kept = 0;
    while (kept < l->n && kept < s->n_chain && s->chain[kept] == l->ids[kept]) kept++;
    SIB_TRY(drop_chain(s, kept, err));
    *first = s->n_recent > 0 ? kept : 1;
    return SIB_OK;
}

/* Copies the hiddens before rows first .. first+n-1 of the lane to row `at` of d->hid. */
static void gather_hidden(qwen_mtp *d, const sib_settle *l, int first, int n, int at)
{
    const sib_ops *op = d->dev->ops;
    const sib_draft_state *s = l->state;
    int64_t h = d->shape.hidden;
    if (first == 0) {
        op->copy_rows(d->dev, d->hid + at * h, h, s->recent + (s->n_recent - 1) * h, h, 1, (int)h);
        first++, n--, at++;
    }
    if (n > 0) op->copy_rows(d->dev, d->hid + at * h, h, hidden_of(d, l) + (first - 1) * h, h, n, (int)h);
}

/* The newest hidden rows, behind the anchor before them where there is room: as far as the target can go back. */
static void remember(qwen_mtp *d, const sib_settle *l)
{
    const sib_ops *op = d->dev->ops;
    sib_draft_state *s = l->state;
    int64_t h = d->shape.hidden;
    int held = s->n_recent > 0 && l->n < d->max_recent, n = l->n < d->max_recent ? l->n : d->max_recent;
    if (held && s->n_recent > 1) op->copy_rows(d->dev, s->recent, h, s->recent + (s->n_recent - 1) * h, h, 1, (int)h);
    op->copy_rows(d->dev, s->recent + held * h, h, hidden_of(d, l) + (l->n - n) * h, h, n, (int)h);
    s->n_recent = held + n;
    s->processed = l->pos0 + l->n;
}

static sib_status settle(sib_drafter *base, const sib_settle *lanes, int n, sib_err *err)
{
    qwen_mtp *d = self(base);
    sib_step st = {d->dev, &d->arena, &d->trace};
    if (n > d->n_seqs) return sib_fail(err, SIB_ECAPACITY, "mtp drafter: %d timelines in one call, planned are %d", n, d->n_seqs);
    for (int i = 0; i < n; i++) SIB_TRY(first_row(&lanes[i], &d->row[i], err));
    for (;;) {
        int rows = 0, spans = 0;
        for (int i = 0; i < n && rows < d->max_rows; i++) {
            int left = lanes[i].n - d->row[i], take = left < d->max_rows - rows ? left : d->max_rows - rows;
            if (take <= 0) continue;
            SIB_TRY(sib_kv_begin(lanes[i].state->kv, take, err));
            gather_hidden(d, &lanes[i], d->row[i], take, rows);
            add_rows(d, lanes[i].state, lanes[i].ids + d->row[i], take, &rows, &spans);
            d->row[i] += take;
        }
        if (rows == 0) break;
        pass(d, &st, rows, spans, false, -1);
        for (int p = 0; p < spans; p++) sib_kv_keep(d->seqs[p], d->spans[p].n_rows);
    }
    for (int i = 0; i < n; i++)
        if (lanes[i].n > 0) remember(d, &lanes[i]);
    if (d->arena.failed) return sib_fail(err, SIB_ECAPACITY, "mtp drafter: step memory is too small");
    return d->dev->ops->sync(d->dev, err);
}

static sib_status truncate_to(sib_drafter *base, sib_draft_state *s, int length, sib_err *err)
{
    (void)base;
    if (length == s->processed) return drop_chain(s, 0, err);
    int back = s->processed - length;
    if (length > s->base && back > 0 && back < s->n_recent) {
        s->n_recent -= back;
        s->processed = length;
        s->n_chain = 0;
        return sib_kv_truncate(s->kv, settled_rows(s), err);
    }
    s->processed = s->base = s->n_recent = s->n_chain = 0;
    SIB_TRY(sib_kv_truncate(s->kv, 0, err));
    return length == 0 ? SIB_OK : sib_fail(err, SIB_ESTATE, "mtp drafter: the hidden row before position %d is gone", length);
}

/* ---- states ------------------------------------------------------------------------------- */

static size_t recent_bytes(const qwen_mtp *d)
{
    return (size_t)d->max_recent * (size_t)d->shape.hidden * sizeof(float);
}

static void state_free(sib_drafter *base, sib_draft_state *s)
{
    qwen_mtp *d = self(base);
    if (!s) return;
    sib_kv_seq_free(s->kv);
    if (s->recent) d->dev->ops->release(d->dev, s->recent, recent_bytes(d));
    free(s->chain);
    free(s);
}

static sib_status state_new(sib_drafter *base, sib_draft_state **out, sib_err *err)
{
    qwen_mtp *d = self(base);
    *out = NULL;
    sib_draft_state *s = calloc(1, sizeof *s);
    if (!s) return sib_nomem(err, "draft state");
    void *recent = NULL;
    s->chain = calloc((size_t)d->max_recent, sizeof *s->chain);
    sib_status status = s->chain ? sib_kv_seq_new(&s->kv, d->pool, err) : sib_nomem(err, "draft state");
    if (status == SIB_OK) status = d->dev->ops->alloc(d->dev, recent_bytes(d), &recent, err);
    s->recent = recent;
    if (status != SIB_OK) {
        state_free(base, s);
        return status;
    }
    *out = s;
    return SIB_OK;
}

static const sib_needs *needs(const sib_drafter *d)
{
    return &self(d)->needs;
}

static void qwen_mtp_free(sib_drafter *base)
{
    qwen_mtp *d = self(base);
    if (!d) return;
    sib_kv_pool_free(d->pool);
    sib_kv_layout_free(d->layout);
    sib_weights_deinit(&d->weights, d->dev);
    free(d->ids);
    free(d->row);
    free(d->spans);
    free(d->seqs);
    free(d);
}

static const sib_drafter_ops qwen_mtp_ops = {"mtp", qwen_mtp_free, needs, state_new, state_free, truncate_to, propose, settle};

/* ---- open --------------------------------------------------------------------------------- */

/* What stands before the tensors' names: nothing in a split companion. NULL: there is none. */
static const char *prefix_in(const sib_checkpoint *c)
{
    static const char *const prefixes[] = {"mtp.", "language_model.mtp.", ""};
    char name[64];
    for (size_t i = 0; i < SIB_COUNT(prefixes); i++) {
        (void)snprintf(name, sizeof name, "%sfc.weight", prefixes[i]);
        if (sib_checkpoint_has(c, name)) return prefixes[i];
    }
    return NULL;
}

/* DIR/mtp where it holds a config; malloc'd, NULL: no such folder. */
static char *bundled(const sib_checkpoint *c)
{
    char *dir = sib_checkpoint_path(c, "mtp"), *config = dir ? sib_path_join(dir, "config.json") : NULL;
    bool there = config && access(config, R_OK) == 0;
    free(config);
    if (there) return dir;
    free(dir);
    return NULL;
}

bool sib_qwen_mtp_in(const sib_checkpoint *c)
{
    if (prefix_in(c)) return true;
    char *dir = bundled(c);
    free(dir);
    return dir != NULL;
}

static sib_status read_config(sib_qwen_shape *shape, int *default_draft, const json_t *root, sib_err *err)
{
    const json_t *t = sib_json_get(root, "text_config");
    if (!t) t = root;
    int64_t layers = 1, block = 4;
    bool own = false;
    if (!json_is_object(t)) return sib_fail(err, SIB_EFORMAT, WHERE ": text_config is not an object");
    SIB_TRY(sib_qwen_shape_read(shape, t, root, WHERE, err));
    SIB_TRY(sib_json_int(t, WHERE, "mtp_num_hidden_layers", 1, 64, &layers, err));
    SIB_TRY(sib_json_bool(t, WHERE, "mtp_use_dedicated_embeddings", &own, err));
    SIB_TRY(sib_json_int(root, WHERE, "block_size", 2, 1024, &block, err));
    if (layers != 1) return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": mtp_num_hidden_layers %d is not supported, only 1", (int)layers);
    if (own) return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": mtp_use_dedicated_embeddings true is not supported");
    *default_draft = (int)block - 1;
    return SIB_OK;
}

static sib_needs needs_of(const sib_qwen_shape *c)
{
    return (sib_needs){.hidden = true, .vocab = true, .hidden_width = c->hidden, .n_vocab = c->n_vocab};
}

sib_status sib_qwen_mtp_needs(sib_needs *out, int taps[SIB_MAX_TAPS], const json_t *config, sib_err *err)
{
    sib_qwen_shape shape;
    int depth;
    (void)taps; /* only an option asks for one */
    SIB_TRY(read_config(&shape, &depth, config, err));
    *out = needs_of(&shape);
    return SIB_OK;
}

/* Only raw releases store norms zero-centred: names with mtp. in a file that MLX did not write (section 4.1). */
static sib_status load_weights(qwen_mtp *d, sib_loader *l, sib_err *err)
{
    const char *prefix = prefix_in(l->files), *format = sib_checkpoint_metadata(l->files, "format");
    int h = d->shape.hidden;
    char layer[64];
    if (!prefix) return sib_fail(err, SIB_EFORMAT, "%s: no tensor is named fc.weight or mtp.fc.weight", sib_checkpoint_dir(l->files));
    float add = prefix[0] && !(format && strcmp(format, "mlx") == 0) ? 1.0f : 0.0f;
    (void)snprintf(layer, sizeof layer, "%slayers.0", prefix);
    const struct {
        const float **to;
        const char *name;
    } norms[] = {{&d->embedding_norm, "pre_fc_norm_embedding"}, {&d->hidden_norm, "pre_fc_norm_hidden"}, {&d->norm, "norm"},
                 {&d->in_norm, "layers.0.input_layernorm"}, {&d->post_norm, "layers.0.post_attention_layernorm"}};
    for (size_t i = 0; i < SIB_COUNT(norms); i++) SIB_TRY(sib_load_norm(l, norms[i].to, h, add, err, "%s%s.weight", prefix, norms[i].name));
    SIB_TRY(sib_load_linear(l, &d->fc, h, 2 * h, err, "%sfc", prefix));
    SIB_TRY(sib_qwen_rope_load(&d->shape, l, err));
    SIB_TRY(sib_qwen_attention_load(&d->shape, &d->attention, layer, add, l, err));
    SIB_TRY(sib_qwen_ffn_load(&d->shape, &d->ffn, layer, l, err));
    if (prefix[0]) sib_checkpoint_ignore(l->files, "*", "the target's");
    return SIB_OK;
}

static sib_status plan_cache(qwen_mtp *d, sib_err *err)
{
    const sib_qwen_shape *c = &d->shape;
    int ctx = d->target->facts.n_ctx + d->base.max_draft; /* a chain runs ahead of the text */
    sib_kv_layer layer = {.geom = {c->n_kv_heads, c->head_dim, c->head_dim}, .donor = -1};
    sib_kv_budget budget = {d->n_seqs, (int64_t)d->n_seqs * ctx};
    SIB_TRY(sib_kv_layout_new(&d->layout, &layer, 1, ctx, d->max_rows, err));
    return sib_kv_pool_new(&d->pool, d->layout, d->dev, &budget, err);
}

static sib_status plan_step(qwen_mtp *d, sib_loader *l, sib_err *err)
{
    size_t rows = (size_t)d->max_rows, n = (size_t)d->n_seqs, hidden = (size_t)d->shape.hidden;
    d->ids = calloc(4 * rows, sizeof *d->ids);
    d->row = calloc(2 * n, sizeof *d->row);
    d->spans = calloc(n, sizeof *d->spans);
    d->seqs = calloc(n, sizeof *d->seqs);
    if (!d->ids || !d->row || !d->spans || !d->seqs) return sib_nomem(err, "mtp rows");
    d->pos = d->ids + rows;
    d->lo = d->ids + 2 * rows;
    d->hi = d->ids + 3 * rows;
    d->token = d->row + n;
    void *p;
    SIB_TRY(sib_load_buffer(l, &p, rows * hidden * sizeof(float), err));
    d->hid = p;
    SIB_TRY(sib_load_buffer(l, &p, rows * hidden * sizeof(float), err));
    d->out = p;
    SIB_TRY(sib_load_buffer(l, &p, n * (size_t)d->shape.n_vocab * sizeof(float), err));
    d->logits = p;
    sib_nothing nothing;
    sib_arena planned;
    sib_nothing_init(&nothing, d->dev);
    sib_arena_plan(&planned);
    pass(d, &(sib_step){&nothing.device, &planned, &d->trace}, d->max_rows, 0, true, 0);
    SIB_TRY(sib_load_buffer(l, &p, planned.peak, err));
    d->arena = (sib_arena){.base = p, .cap = planned.peak};
    return SIB_OK;
}

static sib_status build(qwen_mtp *d, sib_loader *l, sib_model *target, const sib_drafter_options *o, sib_err *err)
{
    d->base = (sib_drafter){.ops = &qwen_mtp_ops, .max_draft = o->max_draft};
    d->target = target;
    d->pre = o->mtp_hidden_pre;
    d->n_seqs = o->n_seqs;
    d->max_recent = o->max_draft + 2; /* a block and the anchor before it */
    d->max_rows = target->facts.max_rows < MOST_ROWS ? target->facts.max_rows : MOST_ROWS;
    if (d->max_rows < d->n_seqs) d->max_rows = d->n_seqs;
    if (strcmp(target->facts.family, "qwen3_5")) return sib_fail(err, SIB_EARG, "mtp drafter was made for a qwen3_5 model; this one is %s", target->facts.family);
    SIB_TRY(read_config(&d->shape, &d->base.default_draft, sib_checkpoint_config(l->files), err));
    d->tap_layer = target->facts.n_layers - 1;
    d->needs = needs_of(&d->shape);
    if (d->pre) {
        d->needs.taps = true;
        d->needs.tap_layers = &d->tap_layer;
        d->needs.n_taps = 1;
    }
    SIB_TRY(sib_needs_check(&d->needs, "mtp", target, err));
    if (d->pre) SIB_TRY(target->offers.taps->select(target, &d->tap_layer, 1, err));
    SIB_TRY(load_weights(d, l, err));
    SIB_TRY(plan_cache(d, err));
    return plan_step(d, l, err);
}

sib_status sib_qwen_mtp_open(sib_drafter **out, sib_loader *l, sib_model *target, const sib_drafter_options *o, sib_err *err)
{
    *out = NULL;
    char *dir = prefix_in(l->files) ? NULL : bundled(l->files);
    sib_checkpoint *files = NULL;
    sib_status s = dir ? sib_checkpoint_open(&files, dir, NULL, err) : SIB_OK;
    free(dir);
    SIB_TRY(s);
    sib_loader own = *l; /* the loader packs weights, so a bundled folder need not stay open */
    if (files) own.files = files;
    qwen_mtp *d = calloc(1, sizeof *d);
    if (!d) {
        sib_checkpoint_free(files);
        return sib_nomem(err, "mtp drafter");
    }
    d->dev = l->dev;
    own.into = &d->weights;
    s = build(d, &own, target, o, err);
    if (s == SIB_OK && files) s = sib_checkpoint_intact(files, err);
    l->done = own.done;
    l->packed_bytes = own.packed_bytes;
    sib_checkpoint_free(files);
    if (s != SIB_OK) {
        qwen_mtp_free(&d->base);
        return s;
    }
    *out = &d->base;
    return SIB_OK;
}

void sib_qwen_mtp_trace(sib_drafter *d, sib_trace trace)
{
    self(d)->trace = trace;
}

int sib_qwen_mtp_rows(const sib_draft_state *s)
{
    return sib_kv_length(s->kv);
}

void sib_qwen_mtp_read(sib_drafter *base, const sib_draft_state *s, int first, int n, float *k, float *v)
{
    const qwen_mtp *d = self(base);
    sib_kv_geom g = {d->shape.n_kv_heads, d->shape.head_dim, d->shape.head_dim};
    sib_kv_view view = sib_kv_view_of(s->kv, 0);
    d->dev->ops->kv_read(d->dev, &g, &view, first, n, k, v);
}

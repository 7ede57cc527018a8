/* drafters/dspark.c - the own DSpark: a small parallel backbone beside any target that offers taps and vocabulary.
 *
 *   rows    [ tok_proj e | mask_emb 0 | mask_emb 1 ... ] + block_pos; e = the target's raw embedding of pending
 *   layers  block.h without rotation and head norms; context rows pass each layer's attn_norm
 *   head    u = out_proj norm(h), then the target's own head, then the Markov or recurrent head
 *   length  up to the first confidence below its threshold, the first guess always stays
 *
 * Weights are float32 and stored [in, out]; they are turned at load. Variants are told apart by the key "variant":
 * "dspark", and "dflash" as an old stamp of the same module; a checkpoint without it is of version 1, whose
 * context is one vector, and is refused. Facts: drafters_kv.md section 3. */
#include "drafters/dspark.h"

#include "drafters/block.h"
#include "drafters/markov.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WHERE "dspark.json"

typedef struct dspark {
    sib_block block; /* first */
    bool recurrent;
    float thresholds[SIB_BLOCK_ROWS], min_confidence;
    int n_thresholds;
    sib_linear tok_proj, out_proj; /* [d, target hidden], [target hidden, d] */
    const float *rows;             /* device [gamma][d]: block_pos, and mask_emb from row 1 on */
    sib_markov markov;
} dspark;

static dspark *self(sib_block *b)
{
    return (dspark *)(void *)b;
}

static sib_status check_variant(const json_t *c, sib_err *err)
{
    const char *variant = json_string_value(json_object_get(c, "variant"));
    if (variant && (!strcmp(variant, "dspark") || !strcmp(variant, "dflash"))) return SIB_OK;
    if (!variant || !strcmp(variant, "v1"))
        return sib_fail(err, SIB_EUNSUPPORTED,
                        WHERE ": this is a v1 single-vector checkpoint (variant %s), superseded, not serveable",
                        variant ? "\"v1\"" : "absent");
    return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": variant \"%.64s\" is not known; known are dspark and dflash",
                    variant);
}

static sib_status read_thresholds(dspark *d, const json_t *config, sib_err *err)
{
    const json_t *sts = sib_json_get(config, "sts"), *list = sts ? sib_json_get(sts, "thresholds") : NULL;
    if (!list) return SIB_OK;
    if (!json_is_array(list) || json_array_size(list) > (size_t)d->block.block)
        return sib_fail(err, SIB_EFORMAT, WHERE ": sts.thresholds must list at most gamma = %d numbers",
                        d->block.block);
    d->n_thresholds = (int)json_array_size(list);
    for (int i = 0; i < d->n_thresholds; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        if (!json_is_number(v) && !json_is_null(v))
            return sib_fail(err, SIB_EFORMAT, WHERE ": sts.thresholds[%d] is not a number", i);
        d->thresholds[i] = json_is_null(v) ? d->min_confidence : (float)json_number_value(v);
    }
    return SIB_OK;
}

static sib_status read_config(sib_block *b, const json_t *root, const sib_drafter_options *o, sib_err *err)
{
    dspark *d = self(b);
    const json_t *c = sib_json_get(root, "config"), *dims = sib_json_get(root, "dims");
    const char *head = "markov";
    int hidden = 0, mult = 0;
    double eps = 1e-6;
    SIB_TRY(check_variant(root, err));
    if (!json_is_object(c) || !json_is_object(dims))
        return sib_fail(err, SIB_EFORMAT, WHERE ": objects \"config\" and \"dims\" are needed");
    SIB_TRY(sib_block_int(c, WHERE, "gamma", 1, SIB_BLOCK_ROWS, true, &b->block, err));
    SIB_TRY(sib_block_int(c, WHERE, "dDraft", 1, 65536, true, &b->hidden, err));
    SIB_TRY(sib_block_int(c, WHERE, "nLayers", 1, SIB_BLOCK_LAYERS, true, &b->n_layers, err));
    SIB_TRY(sib_block_int(c, WHERE, "nHeads", 1, 512, true, &b->n_heads, err));
    SIB_TRY(sib_block_int(c, WHERE, "markovRank", 1, 65536, true, &d->markov.rank, err));
    SIB_TRY(sib_block_int(c, WHERE, "ffMult", 1, 64, true, &mult, err));
    SIB_TRY(sib_block_int(dims, WHERE, "hiddenSize", 1, 65536, true, &hidden, err));
    SIB_TRY(sib_block_int(dims, WHERE, "vocabSize", 1, 1 << 22, true, &b->n_vocab, err));
    SIB_TRY(sib_json_num(dims, WHERE, "eps", 0, 1, &eps, err));
    SIB_TRY(sib_json_str(c, WHERE, "seqHead", &head, err));
    if (strcmp(head, "markov") && strcmp(head, "rnn"))
        return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": seqHead \"%.64s\" is not known; known are markov and rnn",
                        head);
    if (b->hidden % b->n_heads)
        return sib_fail(err, SIB_EFORMAT, WHERE ": dDraft %d is not divisible by nHeads %d", b->hidden, b->n_heads);
    d->recurrent = head[0] == 'r';
    d->min_confidence = (float)o->min_confidence;
    SIB_TRY(read_thresholds(d, c, err));
    d->markov.width = b->hidden;
    d->markov.n_vocab = b->n_vocab;
    d->markov.sees_token = true;
    b->ffn = mult * b->hidden;
    b->n_kv_heads = b->n_heads;
    b->head_dim = b->hidden / b->n_heads;
    b->eps = (float)eps;
    b->act = SIB_ACT_GELU_TANH;
    b->scale = 1.0f / sqrtf((float)b->head_dim);
    b->context_in_norm = true;
    for (int i = 0; i < b->n_layers; i++) b->layers[i].scalar = 1;
    b->needs = (sib_needs){.vocab = true, .hidden_width = hidden, .n_vocab = b->n_vocab};
    SIB_TRY(sib_block_taps(b, sib_json_get(c, "tapLayers"), WHERE, "config.tapLayers", 0, 4096, true, err));
    return sib_block_check(b, WHERE, err);
}

/* What every row begins as: block_pos, and from row 1 on mask_emb. */
static sib_status load_rows(dspark *d, sib_loader *l, sib_err *err)
{
    const sib_block *b = &d->block;
    int64_t gamma = b->block, width = b->hidden, n = gamma * width;
    float *rows = malloc((size_t)n * 2 * sizeof *rows);
    if (!rows) return sib_nomem(err, "block_pos");
    sib_status s = sib_tensor_of(l->files, "block_pos", 2, (const int64_t[]){gamma, width}, rows, err);
    if (s == SIB_OK && gamma > 1)
        s = sib_tensor_of(l->files, "mask_emb", 2, (const int64_t[]){gamma - 1, width}, rows + n, err);
    for (int64_t i = width; s == SIB_OK && i < n; i++) rows[i] = rows[n + i - width] + rows[i];
    if (s == SIB_OK) s = sib_load_values(l, &d->rows, rows, n, err);
    free(rows);
    return s;
}

static sib_status load_layer(const sib_block *b, sib_loader *l, sib_block_layer *w, int i, sib_err *err)
{
    int h = b->hidden;
    SIB_TRY(sib_load_vector(l, &w->in_norm, h, 1, err, "bb.%d.attn_norm", i));
    SIB_TRY(sib_load_transposed(l, &w->q, h, h, err, "bb.%d.q", i));
    SIB_TRY(sib_load_transposed(l, &w->k, h, h, err, "bb.%d.k", i));
    SIB_TRY(sib_load_transposed(l, &w->v, h, h, err, "bb.%d.v", i));
    SIB_TRY(sib_load_transposed(l, &w->o, h, h, err, "bb.%d.o", i));
    SIB_TRY(sib_load_vector(l, &w->mid_norm, h, 1, err, "bb.%d.ff_norm", i));
    SIB_TRY(sib_load_transposed(l, &w->gate, b->ffn, h, err, "bb.%d.gate", i));
    SIB_TRY(sib_load_transposed(l, &w->up, b->ffn, h, err, "bb.%d.up", i));
    return sib_load_transposed(l, &w->down, h, b->ffn, err, "bb.%d.down", i);
}

static sib_status load(sib_block *b, sib_loader *l, const sib_drafter_options *o, sib_err *err)
{
    dspark *d = self(b);
    sib_markov *m = &d->markov;
    int target = b->needs.hidden_width;
    (void)o;
    for (int i = 0; i < b->n_layers; i++) SIB_TRY(load_layer(b, l, &b->layers[i], i, err));
    SIB_TRY(sib_load_transposed(l, &b->fc, b->hidden, b->needs.n_taps * target, err, "W_c"));
    SIB_TRY(sib_load_vector(l, &b->hidden_norm, b->hidden, 1, err, "ctx_norm"));
    SIB_TRY(sib_load_transposed(l, &d->tok_proj, b->hidden, target, err, "tok_proj"));
    SIB_TRY(load_rows(d, l, err));
    SIB_TRY(sib_load_vector(l, &b->norm, b->hidden, 1, err, "out_norm"));
    SIB_TRY(sib_load_transposed(l, &d->out_proj, target, b->hidden, err, "out_proj"));
    SIB_TRY(sib_load_table(l, &m->w1, b->n_vocab, m->rank, err, "markov.w1"));
    SIB_TRY(sib_load_transposed(l, &m->w2, b->n_vocab, m->rank, err, "markov.w2"));
    SIB_TRY(sib_load_transposed(l, &m->confidence, 1, b->hidden + m->rank, err, "conf.w"));
    SIB_TRY(sib_load_host(l, &m->confidence_bias, 1, err, "conf.b"));
    if (d->recurrent) {
        SIB_TRY(sib_load_transposed(l, &m->wh, m->rank, m->rank, err, "rnn.wH"));
        SIB_TRY(sib_load_vector(l, &m->bh, m->rank, 1, err, "rnn.bH"));
        SIB_TRY(sib_load_transposed(l, &m->wo, b->n_vocab, m->rank, err, "rnn.wO"));
    }
    sib_checkpoint_ignore(l->files, "*", "not part of a DSpark drafter");
    return SIB_OK;
}

static void embed_rows(const dspark *d, const sib_step *st, float *h)
{
    const sib_ops *op = st->dev->ops;
    const sib_block *b = &d->block;
    int gamma = b->block, lanes = b->n_lanes, width = b->hidden;
    size_t mark = st->arena->top, row = (size_t)width;
    float *e = SIB_PUSH(st->arena, float, (size_t)lanes *(size_t)b->needs.hidden_width),
          *first = SIB_PUSH(st->arena, float, (size_t)lanes *row);
    for (int i = 0; i < lanes; i++) {
        b->ids[i] = b->lanes[i]->pending;
        op->copy_rows(st->dev, h + (size_t)(i * gamma) * row, width, d->rows, width, gamma, width);
    }
    if (!sib_device_is_nothing(st->dev)) b->target->offers.vocab->embed(b->target, e, b->ids, lanes, false);
    op->linear(st->dev, 1, &first, (const sib_matrix *const[]){d->tok_proj.w}, e, lanes);
    op->add_row(st->dev, first, first, d->rows, lanes, width);
    op->copy_rows(st->dev, h, (int64_t)gamma * width, first, width, lanes, width);
    st->arena->top = mark;
}

/* u = y out_proj of a group's rows, and the target's logits of it. */
static void head(const dspark *d, const sib_step *st, float *u, float *base, const float *y, int rows)
{
    const sib_block *b = &d->block;
    st->dev->ops->linear(st->dev, 1, &u, (const sib_matrix *const[]){d->out_proj.w}, y, rows);
    sib_block_stage(st, u, rows, b->needs.hidden_width, "draft.u");
    if (!sib_device_is_nothing(st->dev)) b->target->offers.vocab->head(b->target, base, u, rows);
    sib_block_stage(st, base, rows, b->n_vocab, "draft.base_logits");
}

static void draft(sib_block *b, const sib_step *st, sib_block_rows *r)
{
    dspark *d = self(b);
    int steps = b->block, group = sib_block_group(b, steps);
    size_t mark = st->arena->top, hidden = (size_t)b->hidden, wide = (size_t)(group * steps);
    float *h = SIB_PUSH(st->arena, float, (size_t)r->n *hidden),
          *base = SIB_PUSH(st->arena, float, wide *(size_t)b->n_vocab);
    float *u = SIB_PUSH(st->arena, float, wide *(size_t)b->needs.hidden_width);
    bool prunes = d->n_thresholds > 0 || d->min_confidence > 0;
    int32_t pending[SIB_BLOCK_ROWS];
    embed_rows(d, st, h);
    sib_block_stage(st, h, r->n, b->hidden, "draft.input");
    sib_block_forward(b, st, h, r);
    st->dev->ops->rms_norm(st->dev, h, h, b->norm, r->n, b->hidden, b->eps);
    sib_block_stage(st, h, r->n, b->hidden, "draft.y");
    for (int first = 0; first < b->n_lanes; first += group) {
        int lanes = b->n_lanes - first < group ? b->n_lanes - first : group;
        const float *y = h + (size_t)(first * steps) * hidden;
        for (int i = 0; i < lanes; i++) pending[i] = b->lanes[first + i]->pending;
        head(d, st, u, base, y, lanes * steps);
        sib_markov_walk(&d->markov, st, b->ids + first * steps,
                        prunes || st->trace->fn ? b->confidence + first * steps : NULL, base, y, pending, lanes, steps);
    }
    sib_block_stage_ids(st, "draft.chosen", b->ids, r->n);
    for (int i = 0; i < b->n_lanes; i++) {
        sib_propose *p = b->lanes[i];
        int n = prunes ? sib_confident_length(b->confidence + i * steps, steps, 1, d->thresholds, d->n_thresholds,
                                              d->min_confidence)
                       : steps;
        p->n = n < p->max ? n : p->max;
        memcpy(p->ids, b->ids + i * steps, (size_t)p->n * sizeof *p->ids);
    }
    st->arena->top = mark;
}

static const sib_block_kind how = {"dspark", "DSpark", sizeof(dspark), read_config, load, draft};

sib_status sib_dspark_open(sib_drafter **out, sib_loader *l, sib_model *target, const sib_drafter_options *o,
                           sib_err *err)
{
    return sib_block_open(out, &how, l, target, o, err);
}

sib_status sib_dspark_needs(sib_needs *out, int taps[SIB_MAX_TAPS], const json_t *config, sib_err *err)
{
    return sib_block_needs(&how, out, taps, config, err);
}

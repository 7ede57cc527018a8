/* drafters/dflash2.c - DFlash 2 (DFlash2DraftModel) and DFlash v1 (DFlashDraftModel).
 *
 *   rows    [ pending | mask x (n drafts) ], embedded by the target; the first row predicts nothing
 *   layers  block.h, with the window and the causality of each layer; version 2 convolves around both sublayers
 *   head    the target's own, on norm(rows 1 ..), without the target's final norm
 *   tokens  v1: argmax of each row
 *           v2: a walk through the top_k candidates of every row,
 *               S(b) = unary(b) + sum_j predecessor[prev][j] z[row][j] successor[b][j],  highest S, lowest id on ties
 *
 * A shorter draft is a shorter block. The window is applied exactly, row by row. Facts: dflash2.md.
 *
 * `bits` quantizes fc, q, k, v, o, gate, up and down at load (MLX affine, groups of 64); norms, convolutions, codebooks
 * and the selector's projection stay as stored (dflash2.md 12). */
#include "drafters/dflash2.h"

#include "artifacts/drafter_kind.h"
#include "drafters/block.h"

#include <math.h>
#include <string.h>

#define WHERE   "config.json"
#define MAX_TOP 64

typedef struct dflash {
    sib_block block; /* first */
    int version, rank, top;
    double embedding_scale, multiplier, softcap; /* softcap 0: none */
    sib_linear predecessor, successor, project;  /* tables [n_vocab, rank]; [rank, hidden] */
} dflash;

static dflash *self(sib_block *b)
{
    return (dflash *)(void *)b;
}

/* dflash_config first, then the top level: both layouts are in the wild. */
static const json_t *place_of(const json_t *c, const char *key)
{
    const json_t *own = sib_json_get(c, "dflash_config");
    return own && sib_json_get(own, key) ? own : c;
}

static sib_status read_rope(sib_block *b, const json_t *c, sib_err *err)
{
    const json_t *p = sib_json_get(c, "rope_parameters"), *scaling = sib_json_get(c, "rope_scaling");
    const char *type = "default";
    bool neox = true;
    if (!p) p = c;
    if (!sib_json_get(p, "rope_theta"))
        return sib_fail(err, SIB_EFORMAT, WHERE ": key \"rope_theta\" is missing"); /* no value fits all drafters */
    SIB_TRY(sib_json_num(p, WHERE, "rope_theta", 1, 1e12, &b->theta, err));
    SIB_TRY(sib_json_str(p, WHERE, "rope_type", &type, err));
    if (scaling) {
        SIB_TRY(sib_json_str(scaling, WHERE, "type", &type, err));
        SIB_TRY(sib_json_str(scaling, WHERE, "rope_type", &type, err));
    }
    if (strcmp(type, "default"))
        return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": only default RoPE is implemented, not \"%.64s\"", type);
    SIB_TRY(sib_json_bool(c, WHERE, "is_neox_style", &neox, err));
    SIB_TRY(sib_json_bool(c, WHERE, "rope_is_neox_style", &neox, err));
    b->interleaved = !neox;
    b->n_pairs = b->head_dim / 2;
    return SIB_OK;
}

/* Causality: is_causal for all layers where it is given; else sliding layers are causal inside the block (dflash2.md
 * 8). */
static sib_status read_layers(sib_block *b, const json_t *c, sib_err *err)
{
    const json_t *types = sib_json_get(c, "layer_types");
    bool has_causal = sib_json_get(c, "is_causal") != NULL, causal = false, windows = true;
    int window = 0;
    SIB_TRY(sib_json_bool(c, WHERE, "is_causal", &causal, err));
    SIB_TRY(sib_json_bool(c, WHERE, "use_sliding_window", &windows, err));
    SIB_TRY(sib_block_int(c, WHERE, "sliding_window", 1, 1 << 24, false, &window, err));
    if (types && json_array_size(types) != (size_t)b->n_layers)
        return sib_fail(err, SIB_EFORMAT, WHERE ": layer_types must list %d layers", b->n_layers);
    for (int i = 0; i < b->n_layers; i++) {
        const char *s = types ? json_string_value(json_array_get(types, (size_t)i)) : "full_attention";
        if (!s || (strcmp(s, "sliding_attention") && strcmp(s, "full_attention")))
            return sib_fail(err, SIB_EUNSUPPORTED,
                            WHERE ": layer_types[%d] is \"%.40s\"; known are sliding_attention and full_attention", i,
                            s ? s : "(not a string)");
        bool sliding = s[0] == 's';
        if (sliding && (!windows || window == 0))
            return sib_fail(err, SIB_EFORMAT, WHERE ": layer %d is sliding_attention but there is no sliding_window",
                            i);
        b->layers[i] =
            (sib_block_layer){.scalar = 1, .window = sliding ? window : 0, .causal = has_causal ? causal : sliding};
    }
    return SIB_OK;
}

/* Old files name no taps: spread over the target (dflash2.md 2), to the nearest layer and from a half to the even one.
 */
static sib_status read_taps(sib_block *b, const json_t *c, int n_target, sib_err *err)
{
    const json_t *list = sib_json_get(place_of(c, "target_layer_ids"), "target_layer_ids");
    if (list) return sib_block_taps(b, list, WHERE, "target_layer_ids", 0, n_target - 1, false, err);
    json_t *spread = json_array();
    if (!spread) return sib_nomem(err, "taps");
    for (int i = 0; i < b->n_layers; i++)
        (void)json_array_append_new(
            spread,
            json_integer(b->n_layers == 1 ? n_target / 2
                                          : (json_int_t)nearbyint(1.0 + i * (n_target - 4.0) / (b->n_layers - 1))));
    sib_status s =
        sib_block_taps(b, spread, WHERE, "target_layer_ids (absent, so spread evenly)", 0, n_target - 1, false, err);
    json_decref(spread);
    return s;
}

static sib_status read_selector(dflash *d, const json_t *c, sib_err *err)
{
    sib_block *b = &d->block;
    int taps = 2;
    b->conv_group = 16;
    d->rank = 256;
    d->top = 16;
    SIB_TRY(sib_block_int(place_of(c, "conv_kernel_size"), WHERE, "conv_kernel_size", 1, 64, false, &taps, err));
    SIB_TRY(
        sib_block_int(place_of(c, "conv_group_size"), WHERE, "conv_group_size", 1, 65536, false, &b->conv_group, err));
    SIB_TRY(sib_block_int(place_of(c, "selector_rank"), WHERE, "selector_rank", 1, 65536, false, &d->rank, err));
    SIB_TRY(sib_block_int(place_of(c, "selector_top_k"), WHERE, "selector_top_k", 1, MAX_TOP, false, &d->top, err));
    if (taps != 2)
        return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": conv_kernel_size %d not implemented (two-tap only)", taps);
    if (b->hidden % b->conv_group)
        return sib_fail(err, SIB_EFORMAT, WHERE ": conv_group_size %d does not divide hidden_size %d", b->conv_group,
                        b->hidden);
    if (d->top > b->n_vocab) d->top = b->n_vocab;
    return SIB_OK;
}

static sib_status read_config(sib_block *b, const json_t *c, const sib_drafter_options *o, sib_err *err)
{
    dflash *d = self(b);
    const char *act = "silu", *arch = json_string_value(json_array_get(json_object_get(c, "architectures"), 0));
    double eps = 1e-6;
    int n_target = 0;
    bool bias = false;
    (void)o;
    d->version = sib_dflash_version(c);
    if (d->version == 0)
        return sib_fail(err, SIB_EUNSUPPORTED,
                        WHERE ": expected architectures[0] DFlash2DraftModel or DFlashDraftModel, got \"%.64s\"",
                        arch ? arch : "(none)");
    SIB_TRY(sib_block_int(c, WHERE, "hidden_size", 1, 65536, true, &b->hidden, err));
    SIB_TRY(sib_block_int(c, WHERE, "intermediate_size", 1, 1 << 20, true, &b->ffn, err));
    SIB_TRY(sib_block_int(c, WHERE, "num_hidden_layers", 1, SIB_BLOCK_LAYERS, true, &b->n_layers, err));
    SIB_TRY(sib_block_int(c, WHERE, "num_attention_heads", 1, 512, true, &b->n_heads, err));
    SIB_TRY(sib_block_int(c, WHERE, "num_key_value_heads", 1, 512, true, &b->n_kv_heads, err));
    SIB_TRY(sib_block_int(c, WHERE, "vocab_size", 1, 1 << 22, true, &b->n_vocab, err));
    SIB_TRY(sib_block_int(c, WHERE, "num_target_layers", 1, 4096, true, &n_target, err));
    b->head_dim = b->hidden / b->n_heads;
    SIB_TRY(sib_block_int(c, WHERE, "head_dim", 8, 512, false, &b->head_dim, err));
    SIB_TRY(sib_block_int(place_of(c, "block_size"), WHERE, "block_size", 2, SIB_BLOCK_ROWS, true, &b->block, err));
    SIB_TRY(
        sib_block_int(place_of(c, "mask_token_id"), WHERE, "mask_token_id", 0, b->n_vocab - 1, true, &b->mask_id, err));
    SIB_TRY(sib_json_num(c, WHERE, "rms_norm_eps", 0, 1, &eps, err));
    SIB_TRY(sib_json_bool(c, WHERE, "attention_bias", &bias, err));
    if (bias) return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": attention_bias true is not supported");
    SIB_TRY(sib_json_str(c, WHERE, "hidden_act", &act, err));
    if (strcmp(act, "silu"))
        return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": hidden_act \"%.64s\" is not supported, only \"silu\"", act);
    d->embedding_scale = d->multiplier = 1;
    SIB_TRY(sib_json_num(place_of(c, "input_embedding_scale"), WHERE, "input_embedding_scale", -1e6, 1e6,
                         &d->embedding_scale, err));
    SIB_TRY(sib_json_num(place_of(c, "output_multiplier"), WHERE, "output_multiplier", -1e6, 1e6, &d->multiplier, err));
    SIB_TRY(sib_json_num(place_of(c, "final_logit_softcapping"), WHERE, "final_logit_softcapping", 0, 1e6, &d->softcap,
                         err));
    b->eps = (float)eps;
    b->act = SIB_ACT_SILU;
    b->scale = 1.0f / sqrtf((float)b->head_dim);
    b->variable_block = true;
    if (d->version == 2) SIB_TRY(read_selector(d, c, err));
    SIB_TRY(read_layers(b, c, err));
    SIB_TRY(read_rope(b, c, err));
    b->needs = (sib_needs){.vocab = true, .hidden_width = b->hidden, .n_layers = n_target, .n_vocab = b->n_vocab};
    SIB_TRY(read_taps(b, c, n_target, err));
    return sib_block_check(b, WHERE, err);
}

static sib_status load(sib_block *b, sib_loader *l, const sib_drafter_options *o, sib_err *err)
{
    dflash *d = self(b);
    const char *root = sib_has(l, "model.fc.weight") ? "model." : "";
    SIB_TRY(sib_quant_check(l->files, err));
    SIB_TRY(sib_block_load_layers(b, l, root, o->bits, false, err));
    if (d->version == 1) return SIB_OK;
    SIB_TRY(sib_load_table(l, &d->predecessor, b->n_vocab, d->rank, err, "%scandidate_selector.predecessor_codebook",
                           root));
    SIB_TRY(
        sib_load_table(l, &d->successor, b->n_vocab, d->rank, err, "%scandidate_selector.successor_codebook", root));
    return sib_load_linear(l, &d->project, d->rank, b->hidden, err, "%scandidate_selector.hidden_projection", root);
}

/* The selector's path through `steps` rows of one request; z: device [steps][rank]. */
static void walk(const dflash *d, const sib_step *st, int32_t *tokens, const float *logits, const float *z,
                 int32_t pending, int steps)
{
    const sib_ops *op = st->dev->ops;
    size_t mark = st->arena->top, rank = (size_t)d->rank;
    int32_t ids[SIB_BLOCK_ROWS * MAX_TOP];
    float unary[SIB_BLOCK_ROWS * MAX_TOP], scores[SIB_BLOCK_ROWS * MAX_TOP];
    float *a = SIB_PUSH(st->arena, float, rank),
          *successors = SIB_PUSH(st->arena, float, (size_t)(steps * d->top) * rank);
    op->top_k(st->dev, ids, unary, logits, steps, d->block.n_vocab, d->top);
    for (int i = 0; i < steps * d->top; i++) {
        unary[i] *= (float)d->multiplier;
        if (d->softcap > 0) unary[i] = (float)d->softcap * tanhf(unary[i] / (float)d->softcap);
    }
    op->embed(st->dev, successors, d->successor.w, ids, steps * d->top, 1, 0, 0);
    for (int r = 0; r < steps; r++) {
        float *s = scores + r * d->top;
        const int32_t *c = ids + r * d->top;
        op->embed(st->dev, a, d->predecessor.w, &pending, 1, 1, 0, 0);
        op->mul(st->dev, a, a, z + (size_t)r * rank, (int64_t)rank);
        op->dots(st->dev, s, a, successors + (size_t)(r * d->top) * rank, d->top, d->rank);
        int best = 0;
        for (int k = 0; k < d->top; k++) {
            s[k] += unary[r * d->top + k];
            if (s[k] > s[best] || (s[k] == s[best] && c[k] < c[best]) || isnan(s[best])) best = k;
        }
        pending = tokens[r] = c[best];
    }
    sib_block_stage(st, unary, steps, d->top, "draft.selector.unary");
    sib_block_stage(st, scores, steps, d->top, "draft.selector.scores");
    if (st->trace->fn) {
        for (int i = 0; i < steps * d->top; i++) scores[i] = (float)ids[i];
        sib_block_stage(st, scores, steps, d->top, "draft.selector.ids");
    }
    st->arena->top = mark;
}

/* Tokens of `lanes` requests from number `first` on. h: normed rows of the whole call; y, logits, z: room for a group.
 */
static void choose(const dflash *d, const sib_step *st, const sib_block_rows *r, int first, int lanes, const float *h,
                   float *y, float *logits, float *z)
{
    const sib_ops *op = st->dev->ops;
    const sib_block *b = &d->block;
    int rows = 0;
    for (int i = first; i < first + lanes; i++) { /* the rows that predict, next to each other */
        int n = r->spans[i].n_rows - 1;
        op->copy_rows(st->dev, y + (size_t)rows * (size_t)b->hidden, b->hidden,
                      h + (size_t)(r->spans[i].row0 + 1) * (size_t)b->hidden, b->hidden, n, b->hidden);
        rows += n;
    }
    if (!sib_device_is_nothing(st->dev)) b->target->offers.vocab->head(b->target, logits, y, rows);
    sib_block_stage(st, logits, rows, b->n_vocab, "draft.logits");
    if (d->version == 1) {
        op->argmax(st->dev, b->ids, logits, rows, b->n_vocab);
    } else {
        op->linear(st->dev, 1, &z, (const sib_matrix *const[]){d->project.w}, y, rows);
        sib_block_stage(st, z, rows, d->rank, "draft.selector.hidden_projection");
    }
    for (int i = first, row = 0; i < first + lanes; i++) {
        sib_propose *p = b->lanes[i];
        int n = r->spans[i].n_rows - 1;
        if (d->version == 2)
            walk(d, st, b->ids + row, logits + (size_t)row * (size_t)b->n_vocab, z + (size_t)row * (size_t)d->rank,
                 p->pending, n);
        memcpy(p->ids, b->ids + row, (size_t)n * sizeof *p->ids);
        p->n = n;
        row += n;
    }
}

static void draft(sib_block *b, const sib_step *st, sib_block_rows *r)
{
    const dflash *d = self(b);
    const sib_ops *op = st->dev->ops;
    int group = sib_block_group(b, b->block);
    size_t mark = st->arena->top, hidden = (size_t)b->hidden, wide = (size_t)(group * (b->block - 1));
    float *h = SIB_PUSH(st->arena, float, (size_t)r->n *hidden), *y = SIB_PUSH(st->arena, float, wide *hidden);
    float *logits = SIB_PUSH(st->arena, float, wide *(size_t)b->n_vocab),
          *z = SIB_PUSH(st->arena, float, wide *(size_t)(d->rank + 1));
    for (int i = 0; i < b->n_lanes; i++)
        for (int k = 0; k < r->spans[i].n_rows; k++)
            b->ids[r->spans[i].row0 + k] = k ? b->mask_id : b->lanes[i]->pending;
    if (!sib_device_is_nothing(st->dev)) b->target->offers.vocab->embed(b->target, h, b->ids, r->n, true);
    if (d->embedding_scale != 1) op->scale(st->dev, h, h, (float)d->embedding_scale, (int64_t)r->n * b->hidden);
    sib_block_stage_ids(st, "draft.ids", b->ids, r->n);
    sib_block_stage(st, h, r->n, b->hidden, "draft.embeddings");
    sib_block_forward(b, st, h, r);
    op->rms_norm(st->dev, h, h, b->norm, r->n, b->hidden, b->eps);
    sib_block_stage(st, h, r->n, b->hidden, "draft.hidden");
    for (int first = 0; first < b->n_lanes; first += group)
        choose(d, st, r, first, b->n_lanes - first < group ? b->n_lanes - first : group, h, y, logits, z);
    st->arena->top = mark;
}

static const sib_block_kind kinds[] = {{"dflash2", "DFlash 2", sizeof(dflash), read_config, load, draft},
                                       {"dflash", "DFlash", sizeof(dflash), read_config, load, draft}};

static const sib_block_kind *how(const json_t *config)
{
    return &kinds[sib_dflash_version(config) == 1];
}

sib_status sib_dflash2_open(sib_drafter **out, sib_loader *l, sib_model *target, const sib_drafter_options *o,
                            sib_err *err)
{
    return sib_block_open(out, how(sib_checkpoint_config(l->files)), l, target, o, err);
}

sib_status sib_dflash2_needs(sib_needs *out, int taps[SIB_MAX_TAPS], const json_t *config, sib_err *err)
{
    return sib_block_needs(how(config), out, taps, config, err);
}

/* drafters/deepspec.c - DeepSeek's DSpark checkpoints: Gemma4DSparkModel and Qwen3DSparkModel.
 *
 *   rows    [ pending | mask x (block_size - 1) ], embedded by the drafter's own table; every row drafts a token
 *   layers  block.h; the whole context and the whole block are seen
 *   head    the drafter's own lm_head, soft cap (Gemma), then the Markov head over the block
 *   length  up to the first confidence below confidence_threshold, possibly none
 *
 * Only the target's taps are needed. Facts: drafters_kv.md section 2. Quantized where ".scales" lie beside the
 * weights, whatever config.json says (artifacts/quant.h). */
#include "drafters/deepspec.h"

#include "drafters/block.h"
#include "drafters/markov.h"

#include <math.h>
#include <string.h>

#define WHERE "config.json"

typedef struct deepspec {
    sib_block block; /* first */
    bool gemma, has_confidence;
    double softcap; /* 0: none */
    double threshold;
    sib_linear embed, head;
    sib_markov markov;
} deepspec;

static deepspec *self(sib_block *b)
{
    return (deepspec *)(void *)b;
}

/* rope_parameters.full_attention, else rope_parameters, else the flat keys. */
static sib_status read_rope(sib_block *b, const json_t *c, sib_err *err)
{
    const json_t *all = sib_json_get(c, "rope_parameters"), *full = all ? sib_json_get(all, "full_attention") : NULL;
    const json_t *p = full ? full : all ? all : c;
    const char *type = "default";
    double theta = 1e6, partial = 1;
    SIB_TRY(sib_json_num(p, WHERE, "rope_theta", 1, 1e12, &theta, err));
    SIB_TRY(sib_json_num(p, WHERE, "partial_rotary_factor", 1e-3, 1, &partial, err));
    SIB_TRY(sib_json_str(p, WHERE, "rope_type", &type, err));
    if (strcmp(type, "default") && strcmp(type, "proportional"))
        return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": rope_type \"%s\" is not supported", type);
    if (!all && sib_json_get(c, "rope_scaling"))
        return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": rope_scaling is not supported");
    b->theta = theta;
    b->n_pairs = (int)(b->head_dim * partial / 2);
    return SIB_OK;
}

static sib_status read_markov(deepspec *d, const json_t *c, sib_err *err)
{
    const char *type = "vanilla";
    bool with_markov = false;
    sib_markov *m = &d->markov;
    SIB_TRY(sib_block_int(c, WHERE, "markov_rank", 0, 65536, false, &m->rank, err));
    SIB_TRY(sib_json_str(c, WHERE, "markov_head_type", &type, err));
    if (m->rank > 0 && strcmp(type, "vanilla"))
        return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": markov_head_type \"%s\" is not supported, only \"vanilla\"",
                        type);
    SIB_TRY(sib_json_bool(c, WHERE, "enable_confidence_head", &d->has_confidence, err));
    SIB_TRY(sib_json_bool(c, WHERE, "confidence_head_with_markov", &with_markov, err));
    m->sees_token = with_markov && m->rank > 0; /* a head without Markov rows cannot read them */
    m->width = d->block.hidden;
    m->n_vocab = d->block.n_vocab;
    return SIB_OK;
}

static sib_status read_layer_types(const sib_block *b, const json_t *c, sib_err *err)
{
    const json_t *types = sib_json_get(c, "layer_types");
    if (!types) return SIB_OK;
    if (json_array_size(types) != (size_t)b->n_layers)
        return sib_fail(err, SIB_EFORMAT, WHERE ": layer_types must list %d layers", b->n_layers);
    for (int i = 0; i < b->n_layers; i++) {
        const char *s = json_string_value(json_array_get(types, (size_t)i));
        if (!s || strcmp(s, "full_attention"))
            return sib_fail(err, SIB_EUNSUPPORTED,
                            WHERE ": layer_types[%d] is \"%.40s\"; DeepSpec layers are full_attention", i,
                            s ? s : "(not a string)");
    }
    return SIB_OK;
}

static sib_status read_gemma(deepspec *d, const json_t *c, sib_err *err)
{
    sib_block *b = &d->block;
    bool k_eq_v = false;
    SIB_TRY(sib_json_bool(c, WHERE, "attention_k_eq_v", &k_eq_v, err));
    if (!k_eq_v)
        return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": attention_k_eq_v false is not supported for Gemma4DSparkModel");
    b->head_dim = 512;
    SIB_TRY(sib_block_int(c, WHERE, "num_key_value_heads", 1, 512, true, &b->n_kv_heads, err));
    SIB_TRY(sib_block_int(c, WHERE, "num_global_key_value_heads", 1, 512, false, &b->n_kv_heads, err));
    SIB_TRY(sib_block_int(c, WHERE, "global_head_dim", 8, 512, false, &b->head_dim, err));
    SIB_TRY(sib_json_num(c, WHERE, "final_logit_softcapping", 0, 1e6, &d->softcap, err));
    b->act = SIB_ACT_GELU_TANH;
    b->scale = 1;
    return SIB_OK;
}

static sib_status read_qwen(deepspec *d, const json_t *c, sib_err *err)
{
    sib_block *b = &d->block;
    SIB_TRY(sib_block_int(c, WHERE, "num_key_value_heads", 1, 512, true, &b->n_kv_heads, err));
    b->head_dim = b->hidden / b->n_heads;
    SIB_TRY(sib_block_int(c, WHERE, "head_dim", 8, 512, false, &b->head_dim, err));
    b->act = SIB_ACT_SILU;
    b->scale = 1.0f / sqrtf((float)b->head_dim);
    return SIB_OK;
}

static sib_status read_config(sib_block *b, const json_t *c, const sib_drafter_options *o, sib_err *err)
{
    deepspec *d = self(b);
    const char *arch = json_string_value(json_array_get(json_object_get(c, "architectures"), 0)), *act = NULL;
    double eps = 1e-6;
    int n_target = 0;
    bool bias = false;
    if (!arch || (strcmp(arch, "Gemma4DSparkModel") && strcmp(arch, "Qwen3DSparkModel")))
        return sib_fail(err, SIB_EUNSUPPORTED,
                        WHERE ": expected architectures[0] Gemma4DSparkModel or Qwen3DSparkModel, got \"%.64s\"",
                        arch ? arch : "(none)");
    d->gemma = arch[0] == 'G';
    SIB_TRY(sib_block_int(c, WHERE, "hidden_size", 1, 65536, true, &b->hidden, err));
    SIB_TRY(sib_block_int(c, WHERE, "intermediate_size", 1, 1 << 20, true, &b->ffn, err));
    SIB_TRY(sib_block_int(c, WHERE, "num_hidden_layers", 1, SIB_BLOCK_LAYERS, true, &b->n_layers, err));
    SIB_TRY(sib_block_int(c, WHERE, "num_attention_heads", 1, 512, true, &b->n_heads, err));
    SIB_TRY(sib_block_int(c, WHERE, "vocab_size", 1, 1 << 22, true, &b->n_vocab, err));
    SIB_TRY(sib_block_int(c, WHERE, "block_size", 1, SIB_BLOCK_ROWS, true, &b->block, err));
    SIB_TRY(sib_block_int(c, WHERE, "mask_token_id", 0, b->n_vocab - 1, true, &b->mask_id, err));
    SIB_TRY(sib_block_int(c, WHERE, "num_target_layers", 1, 4096, true, &n_target, err));
    SIB_TRY(sib_json_num(c, WHERE, "rms_norm_eps", 0, 1, &eps, err));
    SIB_TRY(sib_json_bool(c, WHERE, "attention_bias", &bias, err));
    if (bias) return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": attention_bias true is not supported");
    b->eps = (float)eps;
    SIB_TRY(d->gemma ? read_gemma(d, c, err) : read_qwen(d, c, err));
    const char *key = d->gemma ? "hidden_activation" : "hidden_act", *want = d->gemma ? "gelu_pytorch_tanh" : "silu";
    SIB_TRY(sib_json_str(c, WHERE, key, &act, err));
    if (act && strcmp(act, want))
        return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": %s \"%.64s\" is not supported, only \"%s\"", key, act, want);
    SIB_TRY(read_layer_types(b, c, err));
    SIB_TRY(read_rope(b, c, err));
    SIB_TRY(read_markov(d, c, err));
    d->threshold = o->min_confidence;
    SIB_TRY(sib_json_num(c, WHERE, "confidence_threshold", -1e6, 1, &d->threshold, err));
    if (d->threshold > 0 && !d->has_confidence)
        return sib_fail(err, SIB_EFORMAT, WHERE ": confidence_threshold %g without a confidence head", d->threshold);
    b->needs = (sib_needs){.hidden_width = b->hidden, .n_layers = n_target, .n_vocab = b->n_vocab};
    SIB_TRY(
        sib_block_taps(b, sib_json_get(c, "target_layer_ids"), WHERE, "target_layer_ids", -1, n_target - 1, true, err));
    for (int i = 0; i < b->n_layers; i++) b->layers[i].scalar = 1;
    return sib_block_check(b, WHERE, err);
}

static sib_status load(sib_block *b, sib_loader *l, const sib_drafter_options *o, sib_err *err)
{
    deepspec *d = self(b);
    sib_markov *m = &d->markov;
    (void)o;
    SIB_TRY(sib_quant_check(l->files, err));
    SIB_TRY(sib_block_load_layers(b, l, "", 0, d->gemma, err));
    SIB_TRY(sib_load_table(l, &d->embed, b->n_vocab, b->hidden, err, "embed_tokens"));
    SIB_TRY(sib_load_linear(l, &d->head, b->n_vocab, b->hidden, err, "lm_head"));
    if (m->rank > 0) {
        SIB_TRY(sib_load_table(l, &m->w1, b->n_vocab, m->rank, err, "markov_head.markov_w1"));
        SIB_TRY(sib_load_linear(l, &m->w2, b->n_vocab, m->rank, err, "markov_head.markov_w2"));
    }
    if (!d->has_confidence) return SIB_OK;
    SIB_TRY(
        sib_load_linear(l, &m->confidence, 1, b->hidden + (m->sees_token ? m->rank : 0), err, "confidence_head.proj"));
    return sib_load_host(l, &m->confidence_bias, 1, err, "confidence_head.proj.bias");
}

static void draft(sib_block *b, const sib_step *st, sib_block_rows *r)
{
    deepspec *d = self(b);
    const sib_ops *op = st->dev->ops;
    size_t mark = st->arena->top, hidden = (size_t)b->hidden, v = (size_t)b->n_vocab;
    int steps = b->block, group = sib_block_group(b, steps);
    float *h = SIB_PUSH(st->arena, float, (size_t)r->n *hidden),
          *base = SIB_PUSH(st->arena, float, (size_t)(group * steps) * v);
    int32_t pending[SIB_BLOCK_ROWS];
    for (int i = 0; i < r->n; i++) b->ids[i] = i % steps == 0 ? b->lanes[i / steps]->pending : b->mask_id;
    /* The embedding factor is rounded to bf16 as the references do with bf16 activations. */
    float scale = d->gemma ? sqrtf((float)b->hidden) : 1;
    op->embed(st->dev, h, d->embed.w, b->ids, r->n, st->dev->numerics == SIB_NUM_F32 ? scale : sib_round_bf16(scale), 0,
              0);
    sib_block_stage_ids(st, "draft.ids", b->ids, r->n);
    sib_block_stage(st, h, r->n, b->hidden, "draft.embeddings");
    sib_block_forward(b, st, h, r);
    op->rms_norm(st->dev, h, h, b->norm, r->n, b->hidden, b->eps);
    sib_block_stage(st, h, r->n, b->hidden, "draft.hidden");
    for (int first = 0; first < b->n_lanes; first += group) {
        int lanes = b->n_lanes - first < group ? b->n_lanes - first : group;
        const float *y = h + (size_t)(first * steps) * hidden;
        float *confidence = d->threshold > 0 || st->trace->fn ? b->confidence + first * steps : NULL;
        for (int i = 0; i < lanes; i++) pending[i] = b->lanes[first + i]->pending;
        op->linear(st->dev, 1, &base, (const sib_matrix *const[]){d->head.w}, y, lanes * steps);
        if (d->softcap > 0) op->softcap(st->dev, base, base, (float)d->softcap, (int64_t)(lanes * steps) * b->n_vocab);
        sib_block_stage(st, base, lanes * steps, b->n_vocab, "draft.base_logits");
        sib_markov_walk(&d->markov, st, b->ids + first * steps, confidence, base, y, pending, lanes, steps);
    }
    for (int i = 0; i < b->n_lanes; i++) {
        sib_propose *p = b->lanes[i];
        int n = d->threshold > 0
                    ? sib_confident_length(b->confidence + i * steps, steps, 0, NULL, 0, (float)d->threshold)
                    : steps;
        p->n = n < p->max ? n : p->max;
        memcpy(p->ids, b->ids + i * steps, (size_t)p->n * sizeof *p->ids);
    }
    st->arena->top = mark;
}

static const sib_block_kind how = {"deepspec", "DeepSpec", sizeof(deepspec), read_config, load, draft};

sib_status sib_deepspec_open(sib_drafter **out, sib_loader *l, sib_model *target, const sib_drafter_options *o,
                             sib_err *err)
{
    return sib_block_open(out, &how, l, target, o, err);
}

sib_status sib_deepspec_needs(sib_needs *out, int taps[SIB_MAX_TAPS], const json_t *config, sib_err *err)
{
    return sib_block_needs(&how, out, taps, config, err);
}

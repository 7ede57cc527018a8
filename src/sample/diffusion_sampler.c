/* sample/diffusion_sampler.c - see diffusion_sampler.h. */
#include "sample/diffusion_sampler.h"

#include "base/rng.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- parameters ------------------------------------------------------------------------------- */

static sib_status read_sampler(sib_diffusion_params *p, const json_t *config, const char *where, sib_err *err)
{
    const json_t *s = sib_json_get(config, "sampler_config");
    const char *name = "EntropyBoundSamplerConfig";
    if (!s) return SIB_OK;
    if (!json_is_object(s)) return sib_fail(err, SIB_EFORMAT, "%s: key \"sampler_config\" must be an object", where);
    SIB_TRY(sib_json_str(s, where, "_cls_name", &name, err));
    if (strcmp(name, "EntropyBoundSamplerConfig"))
        return sib_fail(err, SIB_EUNSUPPORTED, "%s: sampler \"%.64s\" is not known; known is EntropyBoundSamplerConfig", where, name);
    return sib_json_num(s, where, "entropy_bound", DBL_MIN, 1e9, &p->entropy_bound, err);
}

sib_status sib_diffusion_params_read(sib_diffusion_params *p, sib_dialect dialect, const json_t *config, const char *where, sib_err *err)
{
    const json_t *t = sib_json_get(config, "linear_temperature_schedule_config"), *stop = sib_json_get(config, "diffusion_stopping_config");
    if (!t) t = config;
    if (!stop) stop = config;
    *p = (sib_diffusion_params){.dialect = dialect, .steps = 48, .tempered = true, .t_min = 0.4, .t_max = 0.8, .entropy_bound = 0.1,
                                .threshold = 0.9, .stability = 1, .confidence = 0.005, .temperature = dialect == SIB_DIALECT_HF};
    int64_t steps = p->steps, stability = p->stability;
    SIB_TRY(sib_json_int(config, where, "max_denoising_steps", 1, SIB_MAX_STEPS, &steps, err));
    SIB_TRY(sib_json_num(t, where, "t_min", 0, 1e6, &p->t_min, err));
    SIB_TRY(sib_json_num(t, where, "t_max", 0, 1e6, &p->t_max, err));
    SIB_TRY(sib_json_int(stop, where, "stability_threshold", 0, 1 << 20, &stability, err));
    SIB_TRY(sib_json_num(stop, where, "confidence_threshold", DBL_MIN, 1e9, &p->confidence, err));
    p->may_stop = dialect == SIB_DIALECT_HF || (sib_json_get(stop, "stability_threshold") && sib_json_get(stop, "confidence_threshold"));
    p->steps = (int)steps;
    p->stability = (int)stability;
    SIB_TRY(read_sampler(p, config, where, err));
    sib_status s = sib_diffusion_params_check(p, err);
    return s == SIB_OK ? s : sib_within(err, SIB_EFORMAT, "%s", where);
}

sib_status sib_diffusion_params_check(const sib_diffusion_params *p, sib_err *err)
{
    if (p->steps < 1 || p->steps > SIB_MAX_STEPS) return sib_fail(err, SIB_EARG, "steps is %d, allowed are 1 to %d", p->steps, SIB_MAX_STEPS);
    if (p->tempered && !(p->t_min >= 0 && p->t_max > p->t_min && isfinite(p->t_max)))
        return sib_fail(err, SIB_EARG, "t_min %g and t_max %g: needed is 0 <= t_min < t_max", p->t_min, p->t_max);
    if (!(p->entropy_bound > 0)) return sib_fail(err, SIB_EARG, "entropy_bound is %g, it must be above 0", p->entropy_bound);
    if (!(p->threshold >= 0 && p->threshold <= 1)) return sib_fail(err, SIB_EARG, "confidence sampler's threshold is %g, allowed are 0 to 1", p->threshold);
    if (p->stability < 0) return sib_fail(err, SIB_EARG, "stability_threshold is %d, it must be 0 or more", p->stability);
    if (!(p->confidence > 0)) return sib_fail(err, SIB_EARG, "confidence_threshold is %g, it must be above 0", p->confidence);
    if (!(p->temperature >= 0 && p->temperature <= 1000)) return sib_fail(err, SIB_EARG, "temperature is %g, allowed are 0 to 1000", p->temperature);
    if (p->sampler == SIB_CANVAS_CONFIDENCE && p->dialect == SIB_DIALECT_HF)
        return sib_fail(err, SIB_EARG, "sampler \"confidence\" belongs to dialect \"mlx\"; dialect \"hf\" has \"entropy\"");
    return SIB_OK;
}

float sib_diffusion_temperature(const sib_diffusion_params *p, int left)
{
    if (!p->tempered) return 1;
    if (p->dialect == SIB_DIALECT_MLX) return (float)(p->t_min + (p->t_max - p->t_min) * left / p->steps);
    return (float)p->t_min + (float)(p->t_max - p->t_min) * ((float)left / (float)p->steps);
}

/* ---- acceptance -------------------------------------------------------------------------------- */

/* Stable: merges runs of doubling length between the two halves of `order` [2 n]. */
static const int32_t *sort_rising(int32_t *order, const float *key, int n)
{
    int32_t *from = order, *to = order + n;
    for (int i = 0; i < n; i++) from[i] = i;
    for (int run = 1; run < n; run *= 2) {
        for (int at = 0; at < n; at += 2 * run) {
            int a = at, a_end = at + run < n ? at + run : n, b = a_end, b_end = at + 2 * run < n ? at + 2 * run : n;
            for (int i = at; i < b_end; i++) to[i] = b == b_end || (a < a_end && key[from[a]] <= key[from[b]]) ? from[a++] : from[b++];
        }
        int32_t *swap = from;
        from = to;
        to = swap;
    }
    return from;
}

void sib_accept_entropy(bool *accepted, int32_t *order, const float *entropy, int n, float bound)
{
    const int32_t *rising = sort_rising(order, entropy, n);
    double sum = 0; /* torch adds a cumulative sum of floats in double and rounds every partial sum */
    for (int i = 0; i < n; i++) {
        float h = entropy[rising[i]];
        sum += h;
        accepted[rising[i]] = i == 0 || (float)sum - h <= bound;
    }
}

void sib_accept_confidence(bool *accepted, const bool *revealed, const float *confidence, int n, float threshold, bool last)
{
    int surest = -1;
    bool any = false;
    for (int i = 0; i < n; i++) {
        accepted[i] = !revealed[i] && (last || confidence[i] >= threshold);
        any |= accepted[i];
        if (!revealed[i] && (surest < 0 || confidence[i] > confidence[surest])) surest = i;
    }
    if (!any && surest >= 0) accepted[surest] = true;
}

/* ---- random ids ---------------------------------------------------------------------------------- */

void sib_canvas_source_init(sib_canvas_source *s, const sib_diffusion_params *p, int n_vocab, const sib_replay *replay)
{
    *s = (sib_canvas_source){.params = p, .n_vocab = n_vocab, .replay = replay, .mlx = sib_mlx_random_seed(p->seed)};
}

static sib_status recorded(const int32_t *list, int n_list, int *next, const sib_canvas_source *s, int32_t *ids, int n, const char *what, sib_err *err)
{
    if (n > s->replay->width) return sib_fail(err, SIB_EARG, "recorded draws are %d wide, the canvas has %d positions", s->replay->width, n);
    if (*next >= n_list) return sib_fail(err, SIB_ECAPACITY, "the recorded draws hold %d %s, and more are needed", n_list, what);
    const int32_t *from = list + (size_t)(*next)++ * (size_t)s->replay->width;
    for (int i = 0; i < n; i++) {
        if (from[i] < 0 || from[i] >= s->n_vocab) return sib_fail(err, SIB_EFORMAT, "recorded id %d is outside the vocabulary of %d", from[i], s->n_vocab);
        ids[i] = from[i];
    }
    return SIB_OK;
}

static sib_status random_canvas(sib_canvas_source *s, int32_t *ids, int n, sib_err *err)
{
    if (s->replay) return recorded(s->replay->canvases, s->replay->n_canvases, &s->canvas, s, ids, n, "canvases", err);
    if (s->params->dialect == SIB_DIALECT_MLX) {
        sib_mlx_call call = sib_mlx_random_call(&s->mlx, (uint64_t)n);
        for (int i = 0; i < n; i++) ids[i] = sib_mlx_randint(&call, (uint64_t)i, s->n_vocab);
        return SIB_OK;
    }
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)sib_rng_below(s->params->seed, SIB_RNG_CANVAS, s->position + (uint64_t)i, s->drawn, (uint32_t)s->n_vocab);
    s->drawn++;
    return SIB_OK;
}

/* MLX's categorical: argmax over logits / T / temperature plus Gumbel noise, one word of the call a logit. Confidences were
 * those of the best tokens and become those of what was drawn. */
static void draw_mlx(sib_canvas_source *s, int32_t *proposal, float *confidence, const int32_t *best, const float *logits, int n, float t)
{
    sib_mlx_call call = sib_mlx_random_call(&s->mlx, (uint64_t)n * (uint64_t)s->n_vocab);
    float second = (float)s->params->temperature;
    for (int r = 0; r < n; r++) {
        float top = -INFINITY;
        for (int v = 0; v < s->n_vocab; v++) {
            uint64_t at = (uint64_t)r * (uint64_t)s->n_vocab + (uint64_t)v;
            float g = logits[at] / t / second + sib_mlx_gumbel(&call, at);
            if (g > top || v == 0) {
                top = g;
                proposal[r] = v;
            }
        }
        const float *row = logits + (size_t)r * (size_t)s->n_vocab;
        confidence[r] *= expf(row[proposal[r]] / t - row[best[r]] / t);
    }
}

/* ---- one canvas ------------------------------------------------------------------------------------- */

sib_status sib_canvas_state_init(sib_canvas_state *c, int cap, sib_err *err)
{
    size_t n = (size_t)cap;
    *c = (sib_canvas_state){.cap = cap};
    c->ids = calloc(6 * n, sizeof *c->ids);
    c->accepted = calloc(2 * n, sizeof *c->accepted);
    c->u = calloc(n, sizeof *c->u);
    if (!c->ids || !c->accepted || !c->u) {
        sib_canvas_state_deinit(c);
        return sib_nomem(err, "canvas");
    }
    c->best = c->ids + n;
    c->draft = c->ids + 2 * n;
    c->noise = c->ids + 3 * n;
    c->order = c->ids + 4 * n; /* two halves */
    c->revealed = c->accepted + n;
    return SIB_OK;
}

void sib_canvas_state_deinit(sib_canvas_state *c)
{
    free(c->ids);
    free(c->accepted);
    free(c->u);
    *c = (sib_canvas_state){0};
}

sib_status sib_canvas_begin(sib_canvas_state *c, sib_canvas_source *s, const int32_t *given, int n, sib_err *err)
{
    c->n = n;
    c->step = c->same = 0;
    c->settled = c->stable = false;
    s->drawn = 0;
    /* Drawn even where every id is given: the draws behind it must not move (diffusion_gemma.md, pitfall 24). */
    SIB_TRY(random_canvas(s, c->ids, n, err));
    for (int i = 0; given && i < n; i++)
        if (given[i] >= 0) c->ids[i] = given[i];
    memcpy(c->draft, c->ids, (size_t)n * sizeof *c->draft);
    memset(c->revealed, 0, (size_t)n * sizeof *c->revealed);
    for (int i = 0; i < n; i++) c->best[i] = -1;
    return SIB_OK;
}

float sib_canvas_temperature(const sib_canvas_state *c, const sib_diffusion_params *p)
{
    return sib_diffusion_temperature(p, p->steps - c->step);
}

/* The last step of dialect mlx ends before anything is drawn. */
static bool draws(const sib_canvas_state *c, const sib_diffusion_params *p)
{
    return p->dialect == SIB_DIALECT_HF || c->step + 1 < p->steps;
}

float sib_canvas_second(sib_canvas_state *c, const sib_canvas_source *s)
{
    const sib_diffusion_params *p = s->params;
    if (p->temperature == 0 || p->dialect == SIB_DIALECT_MLX || (s->replay && s->replay->proposals)) return 0;
    for (int i = 0; i < c->n; i++) c->u[i] = sib_rng_uniform(p->seed, SIB_RNG_DENOISE, s->position + (uint64_t)i, (uint32_t)c->step);
    return (float)p->temperature;
}

static bool stable_and_confident(sib_canvas_state *c, const sib_diffusion_params *p, const int32_t *best, const float *entropy, int32_t pad)
{
    bool equal = true, padding = pad >= 0;
    double sum = 0;
    for (int i = 0; i < c->n; i++) {
        equal &= best[i] == c->best[i];
        padding &= best[i] == pad;
        sum += entropy[i];
    }
    c->same = equal ? c->same + 1 : 0;
    return p->may_stop && c->same >= p->stability && !padding && (float)(sum / c->n) < (float)p->confidence;
}

static sib_status check_finite(const sib_canvas_state *c, const int32_t *best, sib_err *err)
{
    for (int i = 0; i < c->n; i++)
        if (best[i] < 0) return sib_fail(err, SIB_EFORMAT, "a logit at canvas position %d is not finite: the weights overflow", i);
    return SIB_OK;
}

sib_status sib_canvas_step(sib_canvas_state *c, sib_canvas_source *s, const int32_t *best, int32_t *proposal, const float *entropy,
                           float *confidence, const float *logits, int32_t pad, sib_err *err)
{
    const sib_diffusion_params *p = s->params;
    bool last = c->step + 1 == p->steps;
    SIB_TRY(check_finite(c, best, err));
    if (draws(c, p)) {
        if (s->replay && s->replay->proposals)
            SIB_TRY(recorded(s->replay->proposals, s->replay->n_proposals, &s->proposal, s, proposal, c->n, "proposals", err));
        else if (p->dialect == SIB_DIALECT_MLX && p->temperature > 0)
            draw_mlx(s, proposal, confidence, best, logits, c->n, sib_canvas_temperature(c, p));
        if (p->sampler == SIB_CANVAS_ENTROPY)
            sib_accept_entropy(c->accepted, c->order, entropy, c->n, (float)p->entropy_bound);
        else
            sib_accept_confidence(c->accepted, c->revealed, confidence, c->n, (float)p->threshold, last);
        SIB_TRY(random_canvas(s, c->noise, c->n, err));
        bool all = true;
        for (int i = 0; i < c->n; i++) {
            if (c->accepted[i]) c->draft[i] = proposal[i];
            if (p->sampler == SIB_CANVAS_CONFIDENCE && c->accepted[i]) c->revealed[i] = true;
            c->ids[i] = c->accepted[i] || c->revealed[i] ? c->draft[i] : c->noise[i];
            all &= c->revealed[i];
        }
        c->settled = all;
    }
    c->stable = stable_and_confident(c, p, best, entropy, pad);
    c->settled |= c->stable || last;
    memcpy(c->best, best, (size_t)c->n * sizeof *c->best);
    c->step++;
    return SIB_OK;
}

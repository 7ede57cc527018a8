/* engine/diffusion_request.c - see diffusion_request.h. Facts: diffusion_gemma.md 3.1, 3.9, 3.10. */
#include "engine/diffusion_request.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DRAWS (1 << 24) /* ids of a replay file */

static sib_status refuse_token_knobs(const sib_request *r, sib_err *err)
{
    const struct {
        const char *name;
        bool set;
    } knobs[] = {{"top_p", !isnan(r->top_p) && r->top_p != 1},
                 {"min_p", !isnan(r->min_p) && r->min_p != 0},
                 {"top_k", r->top_k > 0},
                 {"repetition_penalty", !isnan(r->repetition_penalty) && r->repetition_penalty != 1},
                 {"presence_penalty", !isnan(r->presence_penalty) && r->presence_penalty != 0},
                 {"frequency_penalty", !isnan(r->frequency_penalty) && r->frequency_penalty != 0},
                 {"logit_bias", r->n_bias > 0}};
    for (size_t i = 0; i < SIB_COUNT(knobs); i++)
        if (knobs[i].set) return sib_fail(err, SIB_EUNSUPPORTED, "%s has no meaning for block diffusion, which draws whole canvases", knobs[i].name);
    return SIB_OK;
}

static sib_status pick_word(const char *what, const char *word, const char *const words[2], int *out, sib_err *err)
{
    if (!word) return SIB_OK;
    for (int i = 0; i < 2; i++)
        if (strcmp(word, words[i]) == 0) {
            *out = i;
            return SIB_OK;
        }
    return sib_fail(err, SIB_EARG, "%s \"%.64s\" is not known; known are %s, %s", what, word, words[0], words[1]);
}

static sib_status read_params(sib_diffusion_params *p, const sib_engine *e, const sib_request *r, sib_err *err)
{
    static const char *const dialects[2] = {"hf", "mlx"}, *const samplers[2] = {"entropy", "confidence"};
    int dialect = SIB_DIALECT_HF, sampler = SIB_CANVAS_ENTROPY;
    SIB_TRY(pick_word("dialect", r->dialect, dialects, &dialect, err));
    SIB_TRY(pick_word("sampler", r->sampler, samplers, &sampler, err));
    SIB_TRY(sib_diffusion_params_read(p, (sib_dialect)dialect, sib_checkpoint_generation_config(e->files), "generation_config.json", err));
    p->sampler = (sib_canvas_sampler)sampler;
    if (r->steps != 0) p->steps = r->steps;
    if (!isnan(r->temperature)) p->temperature = r->temperature;
    p->seed = r->seed;
    return sib_diffusion_params_check(p, err);
}

static int64_t id_at(const sib_tensor_info *t, int64_t i)
{
    int64_t wide;
    int32_t narrow;
    if (t->dtype == SIB_I32) {
        memcpy(&narrow, (const char *)t->data + 4 * i, 4);
        return narrow;
    }
    memcpy(&wide, (const char *)t->data + 8 * i, 8);
    return wide;
}

/* Tensors PREFIX.0.NAME, PREFIX.1.NAME, ... of one width, appended to *ids. */
static sib_status read_series(const sib_safetensors *file, const char *prefix, const char *name, int32_t **ids, size_t *n_ids, int *count, int *width,
                              sib_err *err)
{
    char key[64];
    for (*count = 0;; (*count)++) {
        (void)snprintf(key, sizeof key, "%s.%d.%s", prefix, *count, name);
        const sib_tensor_info *t = sib_safetensors_find(file, key);
        if (!t) return SIB_OK;
        int64_t n = sib_tensor_elements(t);
        if (t->dtype != SIB_I64 && t->dtype != SIB_I32) return sib_fail(err, SIB_EFORMAT, "%s: dtype %s, ids are I64 or I32", key, sib_dtype_name(t->dtype));
        if (n < 1 || n > MAX_DRAWS || (size_t)n + *n_ids > MAX_DRAWS || (*width && n != *width))
            return sib_fail(err, SIB_EFORMAT, "%s: %lld ids, expected %d", key, (long long)n, *width);
        *width = (int)n;
        int32_t *more = realloc(*ids, (*n_ids + (size_t)n) * sizeof *more);
        if (!more) return sib_nomem(err, "recorded draws");
        *ids = more;
        for (int64_t i = 0; i < n; i++) {
            int64_t id = id_at(t, i);
            if (id < 0 || id > INT32_MAX) return sib_fail(err, SIB_EFORMAT, "%s: %lld is not a token id", key, (long long)id);
            more[(*n_ids)++] = (int32_t)id;
        }
    }
}

/* draw.N.random_canvas and step.N.denoiser_canvas, as the golden cases have them. */
static sib_status read_replay(sib_diffusion_setup *s, const char *path, sib_err *err)
{
    sib_safetensors *file = NULL;
    size_t n = 0;
    if (s->request.params.dialect != SIB_DIALECT_HF) return sib_fail(err, SIB_EARG, "recorded draws are replayed in dialect \"hf\" only");
    SIB_TRY(sib_safetensors_open(&file, path, true, err));
    sib_replay *r = &s->replay;
    sib_status status = read_series(file, "draw", "random_canvas", &s->draws, &n, &r->n_canvases, &r->width, err);
    if (status == SIB_OK && r->n_canvases == 0) status = sib_fail(err, SIB_EFORMAT, "no tensor draw.0.random_canvas");
    size_t first = n;
    if (status == SIB_OK) status = read_series(file, "step", "denoiser_canvas", &s->draws, &n, &r->n_proposals, &r->width, err);
    sib_safetensors_free(file);
    if (status != SIB_OK) return sib_within(err, status, "%s", path);
    r->canvases = s->draws;
    r->proposals = r->n_proposals > 0 ? s->draws + first : NULL;
    s->request.replay = r;
    return SIB_OK;
}

/* [12, null, 7, ...]: null leaves the position to chance. */
static sib_status read_canvas(sib_diffusion_setup *s, const char *path, sib_err *err)
{
    json_t *list = NULL;
    SIB_TRY(sib_json_read(&list, path, 1 << 20, err));
    size_t n = json_array_size(list);
    sib_status status = n > 0 && n <= 4096 ? SIB_OK : sib_fail(err, SIB_EFORMAT, "%s: not a list of 1 to 4096 token ids", path);
    s->canvas = calloc(n + 1, sizeof *s->canvas);
    if (status == SIB_OK && !s->canvas) status = sib_nomem(err, "canvas");
    for (size_t i = 0; i < n && status == SIB_OK; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_integer_value(v);
        if (json_is_null(v))
            s->canvas[i] = -1;
        else if (json_is_integer(v) && id >= 0 && id <= INT32_MAX)
            s->canvas[i] = (int32_t)id;
        else
            status = sib_fail(err, SIB_EFORMAT, "%s: element %zu is neither a token id nor null", path, i);
    }
    json_decref(list);
    s->request.canvas = s->canvas;
    s->request.n_canvas = (int)n;
    return status;
}

sib_status sib_diffusion_setup_read(sib_diffusion_setup *s, const sib_engine *e, const sib_request *r, sib_err *err)
{
    const sib_generation_config *c = &e->defaults;
    s->request = (sib_diffusion_request){.eos = r->ignore_eos ? NULL : c->eos, .n_eos = r->ignore_eos ? 0 : (size_t)c->n_eos,
                                         .max_tokens = r->max_tokens < 0 ? UINT64_MAX : (uint64_t)r->max_tokens, .keep_special = r->keep_special,
                                         .frames = r->frames, .pad = c->has_pad ? c->pad : -1};
    SIB_TRY(refuse_token_knobs(r, err));
    SIB_TRY(read_params(&s->request.params, e, r, err));
    if (r->replay) SIB_TRY(read_replay(s, r->replay, err));
    return r->canvas ? read_canvas(s, r->canvas, err) : SIB_OK;
}

void sib_diffusion_setup_deinit(sib_diffusion_setup *s)
{
    free(s->draws);
    free(s->canvas);
    *s = (sib_diffusion_setup){0};
}

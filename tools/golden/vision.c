/* tools/golden/vision.c - cases with a picture: patches, the vision part's stages, and prompts that hold the features. */
#include "golden.h"

#include "image/image.h"
#include "ports/images.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* References pad a picture's patches to the budget, with 0 and with position -1. */
static sib_status compare_padded(golden *g, const golden_stages *s, const char *key, float pad, bool ids, sib_err *err)
{
    const sib_tensor_info *t = golden_find(g, "%s", key);
    const golden_stage *st = golden_stage_find(s, "%s", key);
    if (!t) return SIB_OK;
    int64_t n = sib_tensor_elements(t);
    if (!st || st->n > n) {
        golden_fail(g, key, st ? "more patches than the reference has" : "the model has no such stage");
        return SIB_OK;
    }
    float *all = malloc((size_t)n * sizeof *all);
    int32_t *whole = malloc((size_t)n * sizeof *whole);
    if (!all || !whole) {
        free(all);
        free(whole);
        return sib_nomem(err, key);
    }
    for (int64_t i = 0; i < n; i++) {
        all[i] = i < st->n ? st->values[i] : pad;
        whole[i] = (int32_t)all[i];
    }
    if (ids)
        golden_compare_ids(g, key, whole, n);
    else
        golden_compare(g, key, all, n);
    free(all);
    free(whole);
    return SIB_OK;
}

static sib_status compare_vision(golden *g, const golden_stages *s, sib_err *err)
{
    SIB_TRY(compare_padded(g, s, "vision.pixel_values", 0, false, err));
    SIB_TRY(compare_padded(g, s, "vision.position_ids", -1, true, err));
    /* Whatever else the reference recorded of the vision part must be a stage of ours. */
    for (size_t i = 0; i < sib_safetensors_count(g->expected); i++) {
        const char *key = sib_safetensors_at(g->expected, i)->name;
        if (strncmp(key, "vision.", 7) || g->seen[i]) continue;
        const golden_stage *st = golden_stage_find(s, "%s", key);
        if (st)
            golden_compare(g, key, st->values, st->n);
        else
            golden_fail(g, key, "the model has no such stage");
    }
    return SIB_OK;
}

static sib_status encode(golden *g, sib_model *m, const sib_image *image, int budget, float **features, int *n, sib_err *err)
{
    const sib_image_port *port = m->offers.images;
    const sib_rgb rgb = {image->width, image->height, image->rgb};
    int64_t want = 0;
    void *rows = NULL;
    SIB_TRY(port->count(m, rgb.width, rgb.height, budget, n, err));
    SIB_TRY(sib_json_int(g->notes, "expected.json", "num_soft_tokens", 1, 1 << 20, &want, err));
    golden_line(g, "num_soft_tokens", *n, (double)want, *n == want ? "ok" : "FAIL");
    size_t bytes = (size_t)*n * (size_t)m->facts.hidden * sizeof(float);
    SIB_TRY(m->device->ops->alloc(m->device, bytes, &rows, err));
    golden_stages *stages = calloc(1, sizeof *stages);
    sib_status s = stages ? SIB_OK : sib_nomem(err, "stages");
    m->trace = (sib_trace){golden_collect, stages};
    if (s == SIB_OK) s = port->encode(m, &rgb, budget, false, rows, err);
    m->trace = (sib_trace){0};
    if (s == SIB_OK) s = compare_vision(g, stages, err);
    golden_stages_free(stages);
    if (s == SIB_OK)
        *features = rows;
    else
        m->device->ops->release(m->device, rows, bytes);
    return s;
}

sib_status golden_encode(golden *g, golden_model *gm, float **features, int *n, sib_err *err)
{
    int64_t budget = 0;
    *features = NULL;
    *n = 0;
    SIB_TRY(sib_json_int(g->notes, "expected.json", "max_soft_tokens", 1, 1 << 20, &budget, err));
    if (budget == 0) return SIB_OK;
    if (!gm->model->offers.images) return sib_fail(err, SIB_EUNSUPPORTED, "the case has a picture, the checkpoint no vision part");
    /* 280 is also what a checkpoint has that says nothing. */
    if (budget != gm->model->offers.images->default_budget && gm->model->offers.images->default_budget != 280)
        golden_fail(g, "max_soft_tokens", "the checkpoint's own budget is another one");
    char *path = sib_path_join(g->dir, "picture.png");
    if (!path) return sib_nomem(err, "path");
    sib_image image = {0};
    sib_status s = sib_image_read(&image, path, NULL, err);
    if (s == SIB_OK) s = encode(g, gm->model, &image, (int)budget, features, n, err);
    sib_image_deinit(&image);
    free(path);
    return s;
}

/* What transformers' plain forward gives: a picture's rows see each other on every layer and beyond the window. */
static sib_status plain_forward(golden *g, sib_model *m, const int32_t *ids, int n, sib_soft soft, sib_err *err)
{
    sib_seq *seq = NULL;
    sib_forward_out out;
    if (!golden_has(g, "image_hf_default.prefill.logits")) return SIB_OK;
    soft.everywhere = true;
    sib_status s = m->ops->seq_new(m, &seq, err);
    sib_part part = {.seq = seq, .ids = ids, .n_rows = n, .n_logits = n, .soft = &soft, .n_soft = 1};
    if (s == SIB_OK) s = m->ops->forward(m, &part, 1, &out, err);
    if (s == SIB_OK) golden_compare(g, "image_hf_default.prefill.logits", out.logits, (int64_t)n * m->facts.n_vocab);
    if (seq) m->ops->seq_free(m, seq);
    return s;
}

sib_status golden_pictures(golden *g, golden_model *gm, sib_err *err)
{
    sib_model *m = gm->model;
    float *features;
    int n_soft, first = 0;
    int64_t n = 0;
    SIB_TRY(golden_encode(g, gm, &features, &n_soft, err));
    if (!features) return SIB_OK;
    int32_t *ids = golden_ints(g, &n, "image.input_ids");
    while (ids && first < n && ids[first] != m->offers.images->image_id) first++;
    int run = 0;
    while (first + run < n && ids[first + run] == m->offers.images->image_id) run++;
    sib_status s = run == n_soft ? SIB_OK : sib_fail(err, SIB_EFORMAT, "image.input_ids has %d soft tokens, the picture %d", run, n_soft);
    sib_soft soft = {.first = first, .n = n_soft, .features = features, .bidirectional = m->offers.images->bidirectional};
    if (s == SIB_OK) s = golden_prompt(g, gm, "image.", &soft, 1, err);
    if (s == SIB_OK) s = plain_forward(g, m, ids, (int)n, soft, err);
    free(ids);
    m->device->ops->release(m->device, features, (size_t)n_soft * (size_t)m->facts.hidden * sizeof *features);
    return s;
}

/* vision/vision.c - see vision.h. */
#include "vision/vision.h"

#include "image/patches.h"
#include "image/resize.h"

#include <stdlib.h>
#include <unistd.h>

#define DEFAULT_BUDGET 280

/* ---- budget ------------------------------------------------------------------------------- */

/* "max_soft_tokens" of a processor file, in it or in the member `inside`. A file that is not there says nothing. */
static sib_status budget_in_file(const sib_checkpoint *files, const char *file, const char *inside, int64_t *out, sib_err *err)
{
    json_t *root = NULL;
    char *path = sib_checkpoint_path(files, file);
    if (!path) return sib_nomem(err, file);
    sib_status s = SIB_OK;
    if (access(path, F_OK) == 0) {
        s = sib_json_read(&root, path, 1 << 20, err);
        const json_t *o = s == SIB_OK && inside ? sib_json_get(root, inside) : root;
        if (s == SIB_OK && o) s = sib_json_int(o, file, "max_soft_tokens", 1, SIB_VISION_MAX_BUDGET, out, err);
    }
    json_decref(root);
    free(path);
    return s;
}

sib_status sib_vision_read_budget(sib_vision *v, const sib_checkpoint *files, sib_err *err)
{
    const json_t *root = sib_checkpoint_config(files), *own = sib_json_get(root, "vision_config");
    int64_t n = DEFAULT_BUDGET;
    /* From the least to the most telling: what the processor does decides. */
    if (own) {
        SIB_TRY(sib_json_int(own, "config.json", "num_soft_tokens", 1, SIB_VISION_MAX_BUDGET, &n, err));
        SIB_TRY(sib_json_int(own, "config.json", "default_output_length", 1, SIB_VISION_MAX_BUDGET, &n, err));
    }
    SIB_TRY(sib_json_int(root, "config.json", "vision_soft_tokens_per_image", 1, SIB_VISION_MAX_BUDGET, &n, err));
    SIB_TRY(budget_in_file(files, "processor_config.json", "image_processor", &n, err));
    SIB_TRY(budget_in_file(files, "preprocessor_config.json", NULL, &n, err));
    v->default_budget = (int)n;
    v->max_budget = SIB_VISION_MAX_BUDGET;
    return SIB_OK;
}

/* ---- size --------------------------------------------------------------------------------- */

static sib_status size_of(const sib_vision *v, int width, int height, int budget, sib_image_size *size, sib_err *err)
{
    sib_size_rule rule;
    if (budget < 1 || budget > v->max_budget)
        return sib_fail(err, SIB_EARG, "a budget of %d soft tokens is not within 1 to %d", budget, v->max_budget);
    SIB_TRY(sib_size_rule_init(&rule, v->patch, v->pool, budget, err));
    rule.one_tile = v->one_tile;
    SIB_TRY(sib_size_rule_apply(&rule, width, height, size, err));
    int longest = (size->width > size->height ? size->width : size->height) / v->cut;
    if (longest > v->n_positions)
        return sib_fail(err, SIB_EUNSUPPORTED,
                        "a picture of %d x %d pixels is seen as %d x %d: its side of %d patches has no position, the table has %d", width,
                        height, size->width, size->height, longest, v->n_positions);
    return SIB_OK;
}

sib_status sib_vision_count(const sib_vision *v, int width, int height, int budget, int *n, sib_err *err)
{
    sib_image_size size;
    SIB_TRY(size_of(v, width, height, budget, &size, err));
    *n = size.soft_tokens;
    return SIB_OK;
}

/* ---- memory ------------------------------------------------------------------------------- */

size_t sib_vision_plan(const sib_vision *v, int budget)
{
    sib_nothing nothing;
    sib_arena plan;
    int per_token = v->pool * v->patch / v->cut, n = budget * per_token * per_token;
    sib_nothing_init(&nothing, v->dev);
    sib_arena_plan(&plan);
    sib_step st = {.dev = &nothing.device, .arena = &plan};
    sib_vision_rows rows = {.n = n, .nx = n / per_token, .ny = per_token};
    v->forward(v, &st, &rows, NULL);
    return plan.peak;
}

static sib_status take_work(sib_vision *v, int budget, sib_err *err)
{
    size_t need = sib_vision_plan(v, budget);
    if (need <= v->work_bytes) return SIB_OK;
    void *p;
    sib_status s = v->dev->ops->alloc(v->dev, need, &p, err);
    if (s != SIB_OK) return sib_within(err, s, "work memory for a picture of %d soft tokens", budget);
    if (v->work) v->dev->ops->release(v->dev, v->work, v->work_bytes);
    v->work = p;
    v->work_bytes = need;
    return SIB_OK;
}

void sib_vision_free(sib_vision *v)
{
    if (!v) return;
    if (v->work) v->dev->ops->release(v->dev, v->work, v->work_bytes);
    v->free(v);
}

/* ---- encode ------------------------------------------------------------------------------- */

/* Host arrays of a picture's rows in one block, which *block owns. */
static sib_status rows_new(void **block, sib_vision_rows *r, const sib_vision *v, const sib_image *seen, sib_err *err)
{
    size_t n = (size_t)r->n, width = (size_t)v->cut * (size_t)v->cut * 3, pages = (n + SIB_KV_PAGE - 1) / SIB_KV_PAGE;
    /* cppcheck-suppress pointerSize ; the block begins with pointers */
    char *p = malloc(pages * sizeof(void *) + n * (width * sizeof(float) + 5 * sizeof(int32_t)));
    if (!p) return sib_nomem(err, "patches of a picture");
    *block = p;
    r->pages = (void **)(void *)p;
    r->values = (float *)(void *)(p + pages * sizeof(void *));
    r->x = (int32_t *)(void *)(r->values + n * width);
    r->y = r->x + n;
    r->lo = r->y + n;
    r->hi = r->lo + n;
    r->ids = r->hi + n;
    for (int i = 0; i < r->n; i++) {
        r->x[i] = i % r->nx;
        r->y[i] = i / r->nx;
        r->lo[i] = 0;
        r->hi[i] = r->n;
    }
    return sib_patches(seen, v->cut, SIB_RESCALE_DOUBLE, r->values, NULL, err);
}

static void trace_rows(const sib_trace *t, const sib_vision_rows *r, int width)
{
    if (!t || !t->fn) return;
    t->fn(t->ctx, "vision.pixel_values", -1, r->values, r->n, width);
    for (int i = 0; i < r->n; i++)
        t->fn(t->ctx, "vision.position_ids", -1, (const float[]){(float)r->x[i], (float)r->y[i]}, 1, 2);
}

sib_status sib_vision_encode(sib_vision *v, const sib_trace *trace, const sib_rgb *picture, int budget, bool whole_pixels,
                             float *features, sib_err *err)
{
    sib_image_size size;
    SIB_TRY(size_of(v, picture->width, picture->height, budget, &size, err));
    SIB_TRY(take_work(v, budget, err));

    const sib_image source = {picture->width, picture->height, (uint8_t *)(uintptr_t)picture->bytes}; /* only read */
    sib_image seen;
    SIB_TRY(sib_resize(&seen, &source, size.width, size.height, SIB_RESAMPLE_PIL, err));
    sib_vision_rows rows = {.n = sib_patch_count(&seen, v->cut), .nx = seen.width / v->cut, .ny = seen.height / v->cut, .whole_pixels = whole_pixels};
    void *block = NULL;
    sib_status s = rows_new(&block, &rows, v, &seen, err);
    sib_image_deinit(&seen);
    if (s == SIB_OK) {
        sib_arena arena = {.base = v->work, .cap = v->work_bytes};
        sib_step st = {v->dev, &arena, trace};
        trace_rows(trace, &rows, v->cut * v->cut * 3);
        v->forward(v, &st, &rows, features);
        s = arena.failed ? sib_fail(err, SIB_ECAPACITY, "work memory is too small for a picture of %d patches", rows.n)
                         : v->dev->ops->sync(v->dev, err);
    }
    free(block);
    return s;
}

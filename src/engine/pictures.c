/* engine/pictures.c - see pictures.h. Facts: gemma4.md 4.2, 4.7. */
#include "engine/pictures.h"

#include "image/image.h"
#include "ports/images.h"

#include <stdlib.h>
#include <string.h>

struct sib_picture_features {
    int refs;
    int n; /* soft tokens */
    size_t bytes;
    float *rows; /* device [n][hidden] */
    uint8_t hash[SIB_IMAGE_HASH_BYTES]; /* of the pixels and the budget */
};

static void unref(sib_picture_features *f, sib_engine *e)
{
    if (!f || --f->refs > 0) return;
    if (f->rows) e->device->ops->release(e->device, f->rows, f->bytes);
    free(f);
}

void sib_picture_set_deinit(sib_picture_set *s, sib_engine *e)
{
    for (int i = 0; i < s->n; i++) unref(s->features[i], e);
    free(s->features);
    free(s->pictures);
    free(s->ids);
    *s = (sib_picture_set){0};
}

static sib_picture_features *find(const sib_picture_set *s, const uint8_t *hash)
{
    for (int i = 0; s && i < s->n; i++)
        if (memcmp(s->features[i]->hash, hash, SIB_IMAGE_HASH_BYTES) == 0) return s->features[i];
    return NULL;
}

/* Encodes one decoded picture of n soft tokens. */
static sib_status encode(sib_picture_features **out, sib_engine *e, const sib_image *image, int budget, int n, const uint8_t *hash, sib_err *err)
{
    const sib_rgb rgb = {image->width, image->height, image->rgb};
    sib_picture_features *f = calloc(1, sizeof *f);
    void *rows = NULL;
    if (!f) return sib_nomem(err, "picture");
    *f = (sib_picture_features){.refs = 1, .n = n, .bytes = (size_t)n * (size_t)e->model->facts.hidden * sizeof(float)};
    memcpy(f->hash, hash, sizeof f->hash);
    sib_status s = e->device->ops->alloc(e->device, f->bytes, &rows, err);
    f->rows = rows;
    if (s == SIB_OK) s = e->model->offers.images->encode(e->model, &rgb, budget, e->whole_pixels, f->rows, err);
    if (s != SIB_OK) {
        unref(f, e);
        return s;
    }
    *out = f;
    return SIB_OK;
}

/* Decodes a file and appends its features to the set, unless this set or the last one has them. `room`: positions that
 * the context still has for soft tokens. */
static sib_status add(sib_picture_set *s, sib_engine *e, const sib_picture *p, int budget, size_t room, const sib_picture_set *last, sib_err *err)
{
    const sib_image_port *port = e->model->offers.images;
    sib_image image = {0};
    uint8_t hash[SIB_IMAGE_HASH_BYTES];
    int n;
    SIB_TRY(sib_image_decode(&image, p->bytes, p->n_bytes, p->name ? p->name : "picture", NULL, err));
    sib_image_hash(&image, hash);
    /* The budget is part of how a picture is seen; folding it in keeps different budgets apart. */
    for (int i = 0; i < 4; i++) hash[i] ^= (uint8_t)((unsigned)budget >> 8 * i);
    sib_picture_features *f = find(s, hash);
    if (!f) f = find(last, hash);
    sib_status status = port->count(e->model, image.width, image.height, budget, &n, err);
    if (status == SIB_OK && (size_t)n > room)
        status = sib_fail(err, SIB_ECAPACITY, "its %d soft tokens go beyond the context of %d", n, e->model->facts.n_ctx);
    if (status == SIB_OK && port->bidirectional && n > e->model->facts.max_rows)
        status = sib_fail(err, SIB_ECAPACITY, "its %d soft tokens see each other and need one call, which takes %d rows: open with a larger chunk", n,
                          e->model->facts.max_rows);
    if (status == SIB_OK && f)
        f->refs++;
    else if (status == SIB_OK)
        status = encode(&f, e, &image, budget, n, hash, err);
    sib_image_deinit(&image);
    if (status != SIB_OK) return sib_within(err, status, "%s", p->name ? p->name : "picture");
    s->features[s->n] = f;
    s->pictures[s->n].span = (sib_soft_span){.n = f->n, .features = f->rows, .bidirectional = port->bidirectional, .everywhere = e->everywhere < 0 ? port->everywhere : e->everywhere != 0};
    memcpy(s->pictures[s->n].hash, hash, sizeof hash);
    s->n++;
    return SIB_OK;
}

static size_t count_placeholders(const int32_t *ids, size_t n_ids, int32_t image_id)
{
    size_t n = 0;
    for (size_t i = 0; i < n_ids; i++) n += ids[i] == image_id;
    return n;
}

/* The ids with every placeholder expanded; fills in the spans' positions. */
static sib_status expand(sib_picture_set *s, const sib_image_port *port, const int32_t *ids, size_t n_ids, sib_err *err)
{
    size_t total = n_ids, at = 0;
    for (int i = 0; i < s->n; i++) total += (size_t)s->features[i]->n + 2;
    s->ids = malloc(total * sizeof *s->ids);
    if (!s->ids) return sib_nomem(err, "prompt with pictures");
    for (size_t i = 0, k = 0; i < n_ids; i++) {
        if (ids[i] != port->image_id) {
            s->ids[at++] = ids[i];
            continue;
        }
        sib_soft_span *span = &s->pictures[k++].span;
        if (i == 0 || ids[i - 1] != port->boi_id) s->ids[at++] = port->boi_id;
        span->pos = (int)at;
        for (int j = 0; j < span->n; j++) s->ids[at++] = port->image_id;
        if (i + 1 == n_ids || ids[i + 1] != port->eoi_id) s->ids[at++] = port->eoi_id;
    }
    s->n_ids = at;
    return SIB_OK;
}

static sib_status check(const sib_engine *e, const int32_t *ids, size_t n_ids, int n_pictures, sib_err *err)
{
    const sib_image_port *port = e->model->offers.images;
    const char *dir = sib_checkpoint_dir(e->files);
    if (!port && sib_json_get(sib_checkpoint_config(e->files), "vision_config"))
        return sib_fail(err, SIB_EUNSUPPORTED, "%s: config.json describes a vision part, but its tensors are not in the checkpoint, so it reads no pictures", dir);
    if (!port) return sib_fail(err, SIB_EUNSUPPORTED, "%s: this checkpoint reads no pictures", dir);
    size_t places = count_placeholders(ids, n_ids, port->image_id);
    if (places != (size_t)n_pictures)
        return sib_fail(err, SIB_EARG, "the prompt has places for %zu pictures (token %d), %d were given", places, port->image_id, n_pictures);
    if (n_ids >= (size_t)e->model->facts.n_ctx)
        return sib_fail(err, SIB_ECAPACITY, "the prompt has %zu tokens before its pictures, the context holds %d", n_ids, e->model->facts.n_ctx);
    return SIB_OK;
}

sib_status sib_picture_set_new(sib_picture_set *out, sib_engine *e, const int32_t *ids, size_t n_ids, const sib_picture *pictures,
                               int n_pictures, int budget, const sib_picture_set *last, sib_err *err)
{
    *out = (sib_picture_set){0};
    SIB_TRY(check(e, ids, n_ids, n_pictures, err));
    sib_picture_set s = {.pictures = calloc((size_t)n_pictures, sizeof *s.pictures), .features = calloc((size_t)n_pictures, sizeof *s.features)};
    sib_status status = s.pictures && s.features ? SIB_OK : sib_nomem(err, "pictures");
    if (budget == 0) budget = e->model->offers.images->default_budget;
    /* One picture at a time is decoded, and none that the context has no room for is encoded. */
    size_t room = (size_t)e->model->facts.n_ctx - n_ids;
    for (int i = 0; i < n_pictures && status == SIB_OK; i++) {
        status = add(&s, e, &pictures[i], budget, room, last, err);
        if (status == SIB_OK) room -= (size_t)s.features[i]->n;
    }
    if (status == SIB_OK) status = expand(&s, e->model->offers.images, ids, n_ids, err);
    if (status != SIB_OK) {
        sib_picture_set_deinit(&s, e);
        return status;
    }
    *out = s;
    return SIB_OK;
}

/* vision/unified.c - see unified.h. */
#include "vision/unified.h"

#include <stdio.h>
#include <stdlib.h>

#define WHERE "config.json: vision_config"
#define LAYER_NORM_EPS 1e-5f /* the frameworks' default; not rms_norm_eps (gemma4.md 4.9) */

typedef struct unified {
    sib_vision vision; /* first */
    int width, dim;    /* values of a square; mm_embed_dim */
    double eps;
    const float *ln1_w, *ln1_b, *ln2_w, *ln2_b, *ln3_w, *ln3_b; /* patch_ln1 [width], patch_ln2 and pos_norm [dim] */
    sib_linear dense;       /* patch_dense [dim, width] */
    const float *dense_b;   /* [dim] */
    sib_linear positions;   /* pos_embedding [n_positions * 2, dim]: x in even rows, y in odd ones */
    sib_linear embedder;    /* embedding_projection [hidden of the text model, dim] */
} unified;

static sib_status read_int(const json_t *t, const char *key, int64_t hi, bool required, int *out, sib_err *err)
{
    int64_t v = *out;
    if (required && !sib_json_get(t, key)) return sib_fail(err, SIB_EFORMAT, WHERE ": key \"%s\" is missing", key);
    SIB_TRY(sib_json_int(t, WHERE, key, 1, hi, &v, err));
    *out = (int)v;
    return SIB_OK;
}

static sib_status config_read(unified *u, const json_t *t, sib_err *err)
{
    sib_vision *v = &u->vision;
    if (!t) return sib_fail(err, SIB_EFORMAT, "config.json: key \"vision_config\" is missing, but the checkpoint has a vision embedder");
    v->patch = 16;
    v->pool = 3;
    v->n_positions = 1120;
    u->eps = 1e-6;
    SIB_TRY(read_int(t, "patch_size", 256, false, &v->patch, err));
    SIB_TRY(read_int(t, "pooling_kernel_size", 16, false, &v->pool, err));
    v->cut = v->patch * v->pool;
    SIB_TRY(read_int(t, "model_patch_size", 4096, false, &v->cut, err));
    if (v->cut != v->patch * v->pool)
        return sib_fail(err, SIB_EUNSUPPORTED, WHERE ": model_patch_size %d is not patch_size %d times pooling_kernel_size %d", v->cut, v->patch, v->pool);
    SIB_TRY(read_int(t, "mm_embed_dim", 65536, true, &u->dim, err));
    SIB_TRY(read_int(t, "mm_posemb_size", 1 << 20, false, &v->n_positions, err));
    SIB_TRY(sib_json_num(t, WHERE, "rms_norm_eps", 0, 1, &u->eps, err));
    u->width = v->cut * v->cut * 3;
    return SIB_OK;
}

/* Files say vision_embedder.NAME; transformers' own module names are embed_vision.NAME. */
static const char *const homes[] = {"vision_embedder", "embed_vision"};

static const char *home_of(const sib_loader *l, const char *root)
{
    for (size_t i = 0; i < SIB_COUNT(homes); i++)
        if (sib_has(l, "%s%s.patch_dense.weight", root, homes[i])) return homes[i];
    return NULL;
}

static sib_status load(unified *u, sib_loader *l, const char *root, int hidden, sib_err *err)
{
    char home[128];
    (void)snprintf(home, sizeof home, "%s%s", root, home_of(l, root));
    SIB_TRY(sib_load_vector(l, &u->ln1_w, u->width, 1, err, "%s.patch_ln1.weight", home));
    SIB_TRY(sib_load_vector(l, &u->ln1_b, u->width, 1, err, "%s.patch_ln1.bias", home));
    SIB_TRY(sib_load_linear(l, &u->dense, u->dim, u->width, err, "%s.patch_dense", home));
    SIB_TRY(sib_load_vector(l, &u->dense_b, u->dim, 1, err, "%s.patch_dense.bias", home));
    SIB_TRY(sib_load_vector(l, &u->ln2_w, u->dim, 1, err, "%s.patch_ln2.weight", home));
    SIB_TRY(sib_load_vector(l, &u->ln2_b, u->dim, 1, err, "%s.patch_ln2.bias", home));
    SIB_TRY(sib_load_stack(l, &u->positions, u->vision.n_positions, 2, u->dim, err, "%s.pos_embedding", home));
    SIB_TRY(sib_load_vector(l, &u->ln3_w, u->dim, 1, err, "%s.pos_norm.weight", home));
    SIB_TRY(sib_load_vector(l, &u->ln3_b, u->dim, 1, err, "%s.pos_norm.bias", home));
    const char *inner = sib_has(l, "%sembed_vision.multimodal_embedder.embedding_projection.weight", root) ? "multimodal_embedder." : "";
    return sib_load_linear(l, &u->embedder, hidden, u->dim, err, "%sembed_vision.%sembedding_projection", root, inner);
}

static void forward(const sib_vision *v, const sib_step *st, const sib_vision_rows *r, float *features)
{
    const unified *u = (const unified *)v;
    const sib_ops *op = st->dev->ops;
    int n = r->n, dim = u->dim;
    int64_t all = (int64_t)n * dim;
    size_t mark = st->arena->top;
    float *x = SIB_PUSH(st->arena, float, (size_t)n * u->width), *z = SIB_PUSH(st->arena, float, all), *p = SIB_PUSH(st->arena, float, all);

    op->upload(st->dev, x, r->values, (size_t)n * (size_t)u->width * sizeof *x);
    op->layer_norm(st->dev, x, x, u->ln1_w, u->ln1_b, n, u->width, LAYER_NORM_EPS);
    op->linear(st->dev, 1, &z, (const sib_matrix *const[]){u->dense.w}, x, n);
    op->add_row(st->dev, z, z, u->dense_b, n, dim);
    sib_step_trace(st, "vision.patch_dense", -1, z, n, dim);
    op->layer_norm(st->dev, z, z, u->ln2_w, u->ln2_b, n, dim, LAYER_NORM_EPS);
    sib_step_trace(st, "vision.patch_ln2", -1, z, n, dim);
    for (int axis = 0; axis < 2; axis++) {
        for (int i = 0; r->ids && i < n; i++) r->ids[i] = 2 * (axis ? r->y[i] : r->x[i]) + axis;
        op->embed(st->dev, p, u->positions.w, r->ids, n, 1.0f, 0, 0);
        op->add(st->dev, z, z, p, all);
    }
    op->layer_norm(st->dev, z, z, u->ln3_w, u->ln3_b, n, dim, LAYER_NORM_EPS);
    sib_step_trace(st, "vision.pos_norm", -1, z, n, dim);
    sib_step_trace(st, "vision.tower_output", -1, z, n, dim);
    op->rms_norm(st->dev, z, z, NULL, n, dim, (float)u->eps);
    sib_step_trace(st, "vision.pre_projection_norm", -1, z, n, dim);
    op->linear(st->dev, 1, &features, (const sib_matrix *const[]){u->embedder.w}, z, n);
    sib_step_trace(st, "vision.features", -1, features, n, u->embedder.out);
    st->arena->top = mark;
}

static void unified_free(sib_vision *v)
{
    free(v);
}

bool sib_unified_vision_present(const sib_loader *l, const char *root)
{
    return home_of(l, root) != NULL;
}

sib_status sib_unified_vision_open(sib_vision **out, sib_loader *l, const char *root, int hidden, sib_err *err)
{
    *out = NULL;
    unified *u = calloc(1, sizeof *u);
    if (!u) return sib_nomem(err, "vision embedder");
    u->vision = (sib_vision){.free = unified_free, .forward = forward, .dev = l->dev};
    sib_status s = config_read(u, sib_json_get(sib_checkpoint_config(l->files), "vision_config"), err);
    if (s == SIB_OK) s = sib_vision_read_budget(&u->vision, l->files, err);
    if (s == SIB_OK) s = load(u, l, root, hidden, err);
    if (s != SIB_OK) {
        sib_vision_free(&u->vision);
        return s;
    }
    *out = &u->vision;
    return SIB_OK;
}

/* artifacts/quant.c - see quant.h. */
#include "artifacts/quant.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

#define NAME_BYTES 1100 /* a tensor name and a suffix */

/* The object with MLX's settings: "quantization", else its mirror for Hugging Face; text models of
 * a larger checkpoint may keep it in text_config. NULL: none. */
static const json_t *settings_of(const sib_checkpoint *c)
{
    static const char *const keys[] = {"quantization", "quantization_config"};
    const json_t *places[] = {sib_checkpoint_config(c), sib_checkpoint_text_config(c)};
    for (size_t k = 0; k < SIB_COUNT(keys); k++)
        for (size_t p = 0; p < SIB_COUNT(places); p++) {
            const json_t *q = json_object_get(places[p], keys[k]);
            if (json_is_object(q)) return q;
        }
    return NULL;
}

sib_status sib_quant_check(const sib_checkpoint *c, sib_err *err)
{
    const json_t *q = settings_of(c);
    const char *dir = sib_checkpoint_dir(c), *method = json_string_value(json_object_get(q, "quant_method"));
    const char *mode = json_string_value(json_object_get(q, "mode"));
    bool is_mlx = json_is_integer(json_object_get(q, "group_size")) &&
                  json_is_object(json_object_get(sib_checkpoint_config(c), "quantization"));
    if (method && !is_mlx)
        return sib_fail(err, SIB_EUNSUPPORTED,
                        "%s/config.json: quantization_config.quant_method \"%s\" is not supported", dir, method);
    if (mode && strcmp(mode, "affine") != 0)
        return sib_fail(err, SIB_EUNSUPPORTED,
                        "%s/config.json: quantization.mode \"%s\" is not supported, only \"affine\"", dir, mode);
    if (json_is_true(json_object_get(q, "quantize_activations")))
        return sib_fail(err, SIB_EUNSUPPORTED, "%s/config.json: quantization.quantize_activations is not supported",
                        dir);
    return SIB_OK;
}

/* The entry of one module, whose key may have or lack the leading "model." of the tensor's name. */
static const json_t *override_of(const json_t *settings, const char *prefix)
{
    char longer[NAME_BYTES];
    const json_t *o = json_object_get(settings, prefix);
    if (!o && sib_starts_with(prefix, "model.")) o = json_object_get(settings, prefix + 6);
    if (!o && (size_t)snprintf(longer, sizeof longer, "model.%s", prefix) < sizeof longer)
        o = json_object_get(settings, longer);
    return o;
}

/* The shapes have decided; says once when config.json tells another story. */
static void compare_with_config(sib_checkpoint *c, const char *prefix, const sib_matrix_src *m)
{
    const json_t *settings = settings_of(c), *o = override_of(settings, prefix);
    const json_t *bits = json_object_get(json_is_object(o) ? o : settings, "bits");
    const json_t *group = json_object_get(json_is_object(o) ? o : settings, "group_size");
    bool differs = json_is_false(o) || (json_is_integer(bits) && json_integer_value(bits) != m->bits) ||
                   (json_is_integer(group) && json_integer_value(group) != m->group);
    if (differs && sib_checkpoint_once(c, SIB_ONCE_QUANTIZATION_DIFFERS))
        sib_log(SIB_LOG_WARN,
                "%s: %s has %d bits in groups of %d by its shapes, config.json says otherwise; shapes win here and "
                "elsewhere",
                sib_checkpoint_dir(c), prefix, m->bits, m->group);
}

static sib_status named(char out[static NAME_BYTES], const char *prefix, const char *suffix, sib_err *err)
{
    if ((size_t)snprintf(out, NAME_BYTES, "%s%s", prefix, suffix) >= NAME_BYTES)
        return sib_fail(err, SIB_EARG, "module name %.40s... is too long", prefix);
    return SIB_OK;
}

static bool has(const sib_checkpoint *c, const char *prefix, const char *suffix)
{
    char name[NAME_BYTES];
    return named(name, prefix, suffix, NULL) == SIB_OK && sib_checkpoint_has(c, name);
}

bool sib_matrix_exists(const sib_checkpoint *c, const char *prefix)
{
    return has(c, prefix, ".weight") || sib_checkpoint_has(c, prefix);
}

static sib_status need(sib_checkpoint *c, const sib_tensor_info **t, const char *prefix, const char *suffix,
                       sib_err *err)
{
    char name[NAME_BYTES];
    SIB_TRY(named(name, prefix, suffix, err));
    return sib_checkpoint_need(c, t, name, err);
}

/* [rows, cols], or [n_experts, rows, cols]; cols < 0: any number. */
static sib_status check_shape(const sib_tensor_info *t, int n_experts, int64_t rows, int64_t cols, sib_err *err)
{
    int lead = n_experts > 0;
    bool ok = t->rank == 2 + lead && (!lead || t->shape[0] == n_experts) && t->shape[lead] == rows &&
              (cols < 0 || t->shape[lead + 1] == cols);
    if (ok) return SIB_OK;
    char have[256], want[64], experts[32] = "";
    if (lead) (void)snprintf(experts, sizeof experts, "%d, ", n_experts);
    (void)snprintf(want, sizeof want, cols < 0 ? "[%s%lld, any]" : "[%s%lld, %lld]", experts, (long long)rows,
                   (long long)cols);
    return sib_fail(err, SIB_EFORMAT, "%s: tensor %s: expected %s, file has %s", t->file, t->name, want,
                    sib_tensor_describe(t, have));
}

static bool is_float(sib_dtype t)
{
    return t == SIB_BF16 || t == SIB_F16 || t == SIB_F32;
}

static sib_status plain_matrix(const sib_tensor_info *t, sib_matrix_src *m, sib_err *err)
{
    if (t->dtype == SIB_U32)
        return sib_fail(err, SIB_EFORMAT, "%s: tensor %s: packed (U32) but has no scales beside it", t->file, t->name);
    if (!is_float(t->dtype))
        return sib_fail(err, SIB_EUNSUPPORTED, "%s: tensor %s: weights of type %s are not supported", t->file, t->name,
                        sib_dtype_name(t->dtype));
    m->storage = SIB_PLAIN;
    m->dtype = t->dtype;
    m->name = t->name;
    m->data = t->data;
    return SIB_OK;
}

static sib_status affine_matrix(sib_checkpoint *c, const char *prefix, int n_experts, sib_matrix_src *m, sib_err *err)
{
    const sib_tensor_info *w, *scales, *biases;
    SIB_TRY(need(c, &w, prefix, ".weight", err));
    SIB_TRY(need(c, &scales, prefix, ".scales", err));
    if (w->dtype != SIB_U32)
        return sib_fail(err, SIB_EFORMAT, "%s: tensor %s: has scales but type %s instead of U32", w->file, w->name,
                        sib_dtype_name(w->dtype));
    SIB_TRY(check_shape(w, n_experts, m->out, -1, err));
    SIB_TRY(check_shape(scales, n_experts, m->out, -1, err));
    int64_t words = w->shape[w->rank - 1], groups = scales->shape[scales->rank - 1];
    int64_t group = groups > 0 && m->in % groups == 0 ? m->in / groups : 0;
    int64_t bits = words <= m->in && words * 32 % m->in == 0 ? words * 32 / m->in : 0;
    if (scales->dtype == SIB_U8 && !has(c, prefix, ".biases"))
        return sib_fail(err, SIB_EUNSUPPORTED, "%s: tensor %s: quantization mode %s is not supported", w->file, w->name,
                        group == 16 ? "nvfp4"
                        : bits == 8 ? "mxfp8"
                                    : "mxfp4");
    if (!is_float(scales->dtype))
        return sib_fail(err, SIB_EFORMAT, "%s: tensor %s: scales of type %s", scales->file, scales->name,
                        sib_dtype_name(scales->dtype));
    if (!sib_affine_group_ok(group))
        return sib_fail(err, SIB_EFORMAT,
                        "%s: tensor %s: %lld scales a row do not divide %lld columns into groups of 32, 64 or 128",
                        scales->file, scales->name, (long long)groups, (long long)m->in);
    if (!sib_affine_bits_ok(bits))
        return sib_fail(err, SIB_EFORMAT,
                        "%s: tensor %s: %lld words a row do not hold %lld columns of 2, 3, 4, 5, 6 or 8 bits", w->file,
                        w->name, (long long)words, (long long)m->in);
    SIB_TRY(need(c, &biases, prefix, ".biases", err));
    SIB_TRY(check_shape(biases, n_experts, m->out, groups, err));
    if (biases->dtype != scales->dtype)
        return sib_fail(err, SIB_EFORMAT, "%s: tensor %s: type %s differs from the scales' %s", biases->file,
                        biases->name, sib_dtype_name(biases->dtype), sib_dtype_name(scales->dtype));
    m->storage = SIB_AFFINE;
    m->dtype = scales->dtype;
    m->name = w->name;
    m->data = w->data;
    m->scales = scales->data;
    m->biases = biases->data;
    m->bits = (int)bits;
    m->group = (int)group;
    compare_with_config(c, prefix, m);
    return SIB_OK;
}

sib_status sib_matrix_of(sib_checkpoint *c, const char *prefix, int64_t out, int64_t in, int n_experts,
                         sib_matrix_src *m, sib_err *err)
{
    *m = (sib_matrix_src){0};
    if (out < 1 || in < 1 || n_experts < 0)
        return sib_fail(err, SIB_EARG, "%s: a matrix of [%lld, %lld]", prefix, (long long)out, (long long)in);
    m->out = out;
    m->in = in;
    m->n_experts = n_experts > 0 ? n_experts : 1;
    if (has(c, prefix, ".scales")) return affine_matrix(c, prefix, n_experts, m, err);

    const sib_tensor_info *t = has(c, prefix, ".weight") ? NULL : sib_checkpoint_use(c, prefix);
    if (!t) SIB_TRY(need(c, &t, prefix, ".weight", err));
    SIB_TRY(plain_matrix(t, m, err));
    return check_shape(t, n_experts, out, in, err);
}

/* Copies one expert's rows behind those of the experts before it. */
static void append(unsigned char **to, const void *from, size_t bytes)
{
    if (!bytes) return;
    memcpy(*to, from, bytes);
    *to += bytes;
}

sib_status sib_matrix_of_experts(sib_checkpoint *c, const char *prefix, const char *suffix, int64_t out, int64_t in,
                                 int n_experts, sib_matrix_src *m, sib_err *err)
{
    unsigned char *data = NULL, *scales = NULL, *biases = NULL;
    *m = (sib_matrix_src){0};
    for (int e = 0; e < n_experts; e++) {
        char module[NAME_BYTES];
        sib_matrix_src one;
        if ((size_t)snprintf(module, sizeof module, "%s.%d.%s", prefix, e, suffix) >= sizeof module)
            return sib_fail(err, SIB_EARG, "module name %.40s... is too long", prefix);
        SIB_TRY(sib_matrix_of(c, module, out, in, 0, &one, err));
        bool affine = one.storage == SIB_AFFINE;
        size_t group_part = affine ? (size_t)(out * (in / one.group)) * (size_t)sib_dtype_bits(one.dtype) / 8 : 0;
        size_t data_part = sib_matrix_src_bytes(&one) - 2 * group_part, total;
        if (e == 0) {
            *m = one;
            m->n_experts = n_experts;
            if (__builtin_mul_overflow(sib_matrix_src_bytes(&one), (size_t)n_experts, &total) ||
                !(data = sib_checkpoint_alloc(c, total)))
                return sib_nomem(err, one.name);
            scales = data + data_part * (size_t)n_experts;
            biases = scales + group_part * (size_t)n_experts;
            m->data = data;
            if (affine) {
                m->scales = scales;
                m->biases = biases;
            }
        } else if (one.storage != m->storage || one.dtype != m->dtype || one.bits != m->bits || one.group != m->group) {
            return sib_fail(err, SIB_EFORMAT, "%s: tensor %s: stored unlike expert 0", sib_checkpoint_dir(c), one.name);
        }
        append(&data, one.data, data_part);
        append(&scales, one.scales, group_part);
        append(&biases, one.biases, group_part);
    }
    return n_experts > 0 ? SIB_OK : sib_fail(err, SIB_EARG, "%s: no experts", prefix);
}

static sib_status to_f32(const sib_tensor_info *t, float *out, sib_err *err)
{
    if (!sib_to_f32(out, t->data, t->dtype, (size_t)sib_tensor_elements(t)))
        return sib_fail(err, SIB_EUNSUPPORTED, "%s: tensor %s: type %s is not supported here", t->file, t->name,
                        sib_dtype_name(t->dtype));
    return SIB_OK;
}

sib_status sib_vector_of(sib_checkpoint *c, const char *name, int64_t n, float *out, sib_err *err)
{
    const sib_tensor_info *t;
    char have[256];
    SIB_TRY(sib_checkpoint_need(c, &t, name, err));
    int longer = 0;
    for (int d = 0; d < t->rank; d++) longer += t->shape[d] != 1;
    if (sib_tensor_elements(t) != n || longer > 1)
        return sib_fail(err, SIB_EFORMAT, "%s: tensor %s: expected %lld elements, file has %s", t->file, name,
                        (long long)n, sib_tensor_describe(t, have));
    return to_f32(t, out, err);
}

sib_status sib_tensor_of(sib_checkpoint *c, const char *name, int rank, const int64_t *shape, float *out, sib_err *err)
{
    const sib_tensor_info *t;
    char have[256];
    SIB_TRY(sib_checkpoint_need(c, &t, name, err));
    bool same = t->rank == rank;
    for (int d = 0; same && d < rank; d++) same = t->shape[d] == shape[d];
    if (same) return to_f32(t, out, err);
    const sib_tensor_info want = {.dtype = t->dtype, .rank = rank, .shape = shape};
    char expected[256];
    return sib_fail(err, SIB_EFORMAT, "%s: tensor %s: expected %s, file has %s", t->file, name,
                    sib_tensor_describe(&want, expected), sib_tensor_describe(t, have));
}

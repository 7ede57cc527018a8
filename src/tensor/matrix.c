/* tensor/matrix.c - see matrix.h. Written for clarity: these are the values that kernels must
 * reproduce, and what quantizes small matrices at load. */
#include "tensor/matrix.h"

#include <assert.h>
#include <math.h>

bool sib_affine_bits_ok(int64_t bits)
{
    return bits >= 2 && bits <= 8 && bits != 7;
}

bool sib_affine_group_ok(int64_t group)
{
    return group == 32 || group == 64 || group == 128;
}

static size_t element_bytes(sib_dtype t)
{
    return (size_t)sib_dtype_bits(t) / 8;
}

static size_t row_bytes(const sib_matrix_src *m)
{
    return m->storage == SIB_PLAIN ? (size_t)m->in * element_bytes(m->dtype) : (size_t)m->in * (size_t)m->bits / 8;
}

static size_t group_bytes(const sib_matrix_src *m)
{
    return m->storage == SIB_PLAIN ? 0 : (size_t)(m->in / m->group) * element_bytes(m->dtype);
}

static size_t row_index(const sib_matrix_src *m, int e, int64_t row)
{
    assert(e >= 0 && e < m->n_experts && row >= 0 && row < m->out);
    return (size_t)((m->parent_out ? m->parent_out : m->out) * e + row);
}

const void *sib_matrix_src_data(const sib_matrix_src *m, int e, int64_t row)
{
    return (const char *)m->data + row_index(m, e, row) * row_bytes(m);
}

const void *sib_matrix_src_scales(const sib_matrix_src *m, int e, int64_t row)
{
    return (const char *)m->scales + row_index(m, e, row) * group_bytes(m);
}

const void *sib_matrix_src_biases(const sib_matrix_src *m, int e, int64_t row)
{
    return (const char *)m->biases + row_index(m, e, row) * group_bytes(m);
}

size_t sib_matrix_src_bytes(const sib_matrix_src *m)
{
    return (row_bytes(m) + 2 * group_bytes(m)) * (size_t)m->out * (size_t)m->n_experts;
}

static float element(const void *p, sib_dtype t, int64_t i)
{
    float v = 0;
    (void)sib_to_f32(&v, (const char *)p + (size_t)i * element_bytes(t), t, 1);
    return v;
}

/* Bits [i*bits, (i+1)*bits) of a row seen as one string of bits, lowest first. */
static unsigned quant(const unsigned char *row, int64_t i, int bits)
{
    int64_t bit = i * bits;
    const unsigned char *p = row + bit / 8;
    int shift = (int)(bit % 8);
    unsigned v = p[0];
    if (shift + bits > 8) v |= (unsigned)p[1] << 8;
    return v >> shift & ((1u << bits) - 1);
}

static void row_of(float *out, const sib_matrix_src *m, int e, int64_t row)
{
    const void *data = sib_matrix_src_data(m, e, row);
    if (m->storage == SIB_PLAIN) {
        (void)sib_to_f32(out, data, m->dtype, (size_t)m->in);
        return;
    }
    const void *scales = sib_matrix_src_scales(m, e, row), *biases = sib_matrix_src_biases(m, e, row);
    for (int64_t g = 0; g < m->in / m->group; g++) {
        float scale = element(scales, m->dtype, g), bias = element(biases, m->dtype, g);
        for (int64_t i = g * m->group; i < (g + 1) * m->group; i++)
            out[i] = scale * (float)quant(data, i, m->bits) + bias;
    }
}

void sib_matrix_src_rows(float *out, const sib_matrix_src *m, int expert, int64_t first, int64_t n)
{
    for (int64_t r = 0; r < n; r++) row_of(out + r * m->in, m, expert, first + r);
}

sib_matrix_src sib_matrix_src_slice(const sib_matrix_src *m, int64_t first, int64_t n)
{
    assert(first >= 0 && n >= 1 && first + n <= m->out);
    sib_matrix_src s = *m;
    s.data = sib_matrix_src_data(m, 0, first);
    if (m->storage == SIB_AFFINE) {
        s.scales = sib_matrix_src_scales(m, 0, first);
        s.biases = sib_matrix_src_biases(m, 0, first);
    }
    s.parent_out = m->parent_out ? m->parent_out : m->out;
    s.out = n;
    return s;
}

/* ---- the quantizer -------------------------------------------------------------------------- */

static void store(void *p, sib_dtype t, int64_t i, float v)
{
    uint16_t h = t == SIB_BF16 ? sib_bf16_of_f32(v) : sib_f16_of_f32(v);
    if (t == SIB_F32)
        memcpy((char *)p + i * 4, &v, sizeof v);
    else
        memcpy((char *)p + i * 2, &h, sizeof h);
}

void sib_affine_quantize(void *packed, void *scales, void *biases, sib_dtype dtype, const float *w, int64_t in,
                         int bits, int group)
{
    assert(sib_affine_bits_ok(bits) && in % group == 0 && (dtype == SIB_BF16 || dtype == SIB_F16 || dtype == SIB_F32));
    const float top = (float)((1 << bits) - 1);
    unsigned char *p = packed;
    memset(p, 0, (size_t)in * (size_t)bits / 8);
    for (int64_t g = 0; g < in / group; g++) {
        const float *x = w + g * group;
        float lo = x[0], hi = x[0];
        for (int i = 1; i < group; i++) {
            lo = fminf(lo, x[i]);
            hi = fmaxf(hi, x[i]);
        }
        /* The edge of larger magnitude is represented exactly; the scale's sign points away from it. */
        float scale = fmaxf((hi - lo) / top, 1e-7f), edge = lo, bias = 0;
        if (!(fabsf(lo) > fabsf(hi))) {
            edge = hi;
            scale = -scale;
        }
        float q0 = rintf(edge / scale);
        if (q0 != 0) {
            scale = edge / q0;
            bias = edge;
        }
        for (int i = 0; i < group; i++) {
            float q = fminf(fmaxf(rintf((x[i] - bias) / scale), 0), top);
            int64_t bit = (g * group + i) * bits;
            unsigned v = (unsigned)q << (bit % 8);
            p[bit / 8] |= (unsigned char)v;
            if (v > 255) p[bit / 8 + 1] |= (unsigned char)(v >> 8);
        }
        store(scales, dtype, g, scale);
        store(biases, dtype, g, bias);
    }
}

/* image/resize.c - see resize.h. Plain C that compilers turn into vector code where it pays:
 * the vertical pass runs over blocks of a fixed number of columns. */
#include "image/resize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SIDE = 1 << 20, MAX_BITS = 22 };

/* Weights of one axis. Output i is the sum over j of src[lo + j] q[j]. */
typedef struct span {
    int lo, n;
    int32_t *q;
} span;

typedef struct axis {
    int bits; /* P */
    span *spans;
    double *w; /* scratch of the weights before rounding */
    int32_t *q;
} axis;

static void axis_deinit(axis *a)
{
    free(a->spans);
    free(a->w);
    free(a->q);
}

static double bicubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
    return 0.0;
}

static sib_status axis_init(axis *a, int in, int out, sib_resampler how, sib_err *err)
{
    *a = (axis){.bits = MAX_BITS};
    double scale = (double)in / out, fs = scale < 1.0 ? 1.0 : scale;
    double support = 2.0 * fs, inverse = 1.0 / fs;
    size_t taps = (size_t)ceil(support) * 2 + 1; /* out * taps is about 4 in + 3 out at most */
    a->spans = calloc((size_t)out, sizeof *a->spans);
    a->w = malloc((size_t)out * taps * sizeof *a->w);
    a->q = malloc((size_t)out * taps * sizeof *a->q);
    if (!a->spans || !a->w || !a->q) {
        axis_deinit(a);
        return sib_fail(err, SIB_ENOMEM, "out of memory: resizing %d pixels to %d", in, out);
    }

    double largest = 0.0;
    for (int i = 0; i < out; i++) {
        double c = (i + 0.5) * scale;
        int lo = (int)(c - support + 0.5), hi = (int)(c + support + 0.5);
        if (lo < 0) lo = 0;
        if (hi > in) hi = in;
        a->spans[i] = (span){.lo = lo, .n = hi - lo, .q = a->q + (size_t)i * taps};
        double *w = a->w + (size_t)i * taps, sum = 0.0;
        for (int j = 0; j < hi - lo; j++) sum += w[j] = bicubic((j + lo - c + 0.5) * inverse);
        for (int j = 0; j < hi - lo; j++) {
            w[j] /= sum; /* > 0: the middle of the kernel is always inside */
            if (w[j] > largest) largest = w[j];
        }
    }
    if (how == SIB_RESAMPLE_TORCHVISION)
        while ((int64_t)(0.5 + largest * (double)(1 << a->bits)) >= 1 << 15) a->bits--;
    for (int i = 0; i < out; i++) {
        const double *w = a->w + (size_t)i * taps;
        for (int j = 0; j < a->spans[i].n; j++) {
            double scaled = w[j] * (double)(1 << a->bits);
            a->spans[i].q[j] = (int32_t)(scaled + (scaled < 0.0 ? -0.5 : 0.5));
        }
    }
    return SIB_OK;
}

/* The sum of |q| of an output stays below 1.3 * 2^22 (the negative lobes are small), so 255
 * times it and the rounding stay below 2^31. The shift is arithmetic on every compiler we use. */
static inline uint8_t narrow(int32_t acc, int bits)
{
    int32_t v = acc >> bits;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

static void resize_rows(uint8_t *dst, const uint8_t *src, int in_width, int out_width, int height, const axis *a)
{
    const int32_t half = 1 << (a->bits - 1);
    for (int y = 0; y < height; y++, src += (size_t)in_width * 3)
        for (int x = 0; x < out_width; x++, dst += 3) {
            const span *s = &a->spans[x];
            const uint8_t *p = src + (size_t)s->lo * 3;
            int32_t r = half, g = half, b = half;
            for (int j = 0; j < s->n; j++, p += 3) {
                int32_t q = s->q[j];
                r += p[0] * q;
                g += p[1] * q;
                b += p[2] * q;
            }
            dst[0] = narrow(r, a->bits);
            dst[1] = narrow(g, a->bits);
            dst[2] = narrow(b, a->bits);
        }
}

enum { BLOCK = 64 };

static inline void blend(uint8_t *dst, const uint8_t *src, size_t stride, const span *s, int bits, size_t n)
{
    int32_t acc[BLOCK];
    for (size_t k = 0; k < n; k++) acc[k] = 1 << (bits - 1);
    for (int j = 0; j < s->n; j++, src += stride) {
        int32_t q = s->q[j];
        for (size_t k = 0; k < n; k++) acc[k] += src[k] * q;
    }
    for (size_t k = 0; k < n; k++) dst[k] = narrow(acc[k], bits);
}

static void resize_columns(uint8_t *dst, const uint8_t *src, int width, int out_height, const axis *a)
{
    size_t stride = (size_t)width * 3;
    for (int y = 0; y < out_height; y++, dst += stride) {
        const span *s = &a->spans[y];
        const uint8_t *top = src + (size_t)s->lo * stride;
        size_t k = 0;
        for (; stride - k >= BLOCK; k += BLOCK) blend(dst + k, top + k, stride, s, a->bits, BLOCK);
        if (k < stride) blend(dst + k, top + k, stride, s, a->bits, stride - k);
    }
}

sib_status sib_resize(sib_image *out, const sib_image *in, int width, int height, sib_resampler how, sib_err *err)
{
    *out = (sib_image){0};
    if (width < 1 || height < 1 || width > MAX_SIDE || height > MAX_SIDE || in->width > MAX_SIDE || in->height > MAX_SIDE)
        return sib_fail(err, SIB_EARG, "cannot resize a picture from %d x %d to %d x %d", in->width, in->height, width, height);

    sib_image wide = {0}; /* after the horizontal pass */
    const sib_image *from = in;
    axis a;
    sib_status s;
    if (width != in->width) {
        SIB_TRY(axis_init(&a, in->width, width, how, err));
        s = sib_image_alloc(&wide, width, in->height, err);
        if (s == SIB_OK) resize_rows(wide.rgb, in->rgb, in->width, width, in->height, &a);
        axis_deinit(&a);
        if (s != SIB_OK) return s;
        if (height == in->height) {
            *out = wide;
            return SIB_OK;
        }
        from = &wide;
    }
    if (height == in->height) {
        SIB_TRY(sib_image_alloc(out, width, height, err));
        memcpy(out->rgb, in->rgb, sib_image_bytes(in));
        return SIB_OK;
    }
    s = axis_init(&a, in->height, height, how, err);
    if (s == SIB_OK) {
        s = sib_image_alloc(out, width, height, err);
        if (s == SIB_OK) resize_columns(out->rgb, from->rgb, width, height, &a);
        axis_deinit(&a);
    }
    sib_image_deinit(&wide);
    return s;
}

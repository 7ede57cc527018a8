/* tensor/dtype.c - see dtype.h. */
#include "tensor/dtype.h"

#include <math.h>

static const struct {
    const char *name;
    int bits;
} types[SIB_N_DTYPES] = {
    [SIB_BOOL] = {"BOOL", 8},       [SIB_F4] = {"F4", 4},           [SIB_F6_E2M3] = {"F6_E2M3", 6},
    [SIB_F6_E3M2] = {"F6_E3M2", 6}, [SIB_U8] = {"U8", 8},           [SIB_I8] = {"I8", 8},
    [SIB_F8_E5M2] = {"F8_E5M2", 8}, [SIB_F8_E4M3] = {"F8_E4M3", 8}, [SIB_F8_E8M0] = {"F8_E8M0", 8},
    [SIB_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8}, [SIB_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [SIB_I16] = {"I16", 16},        [SIB_U16] = {"U16", 16},        [SIB_F16] = {"F16", 16},
    [SIB_BF16] = {"BF16", 16},      [SIB_I32] = {"I32", 32},        [SIB_U32] = {"U32", 32},
    [SIB_F32] = {"F32", 32},        [SIB_I64] = {"I64", 64},        [SIB_U64] = {"U64", 64},
    [SIB_F64] = {"F64", 64},        [SIB_C64] = {"C64", 64},
};

int sib_dtype_bits(sib_dtype t)
{
    return types[t].bits;
}

const char *sib_dtype_name(sib_dtype t)
{
    return (size_t)t < SIB_N_DTYPES ? types[t].name : "?";
}

bool sib_dtype_named(sib_str name, sib_dtype *out)
{
    for (int i = 0; i < SIB_N_DTYPES; i++)
        if (sib_str_is(name, types[i].name)) {
            *out = (sib_dtype)i;
            return true;
        }
    return false;
}

float sib_f32_of_f16(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    float v = e == 0 ? ldexpf((float)m, -24) : e == 31 ? (m ? NAN : INFINITY) : ldexpf((float)(m | 1024), e - 25);
    return h >> 15 ? -v : v;
}

uint16_t sib_f16_of_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    u &= 0x7FFFFFFFu;
    if (u > 0x7F800000u) return (uint16_t)(sign | 0x7E00);
    if (u >= 0x477FF000u) return (uint16_t)(sign | 0x7C00); /* 65520 and above round to infinity */
    if (u < 0x38800000u) {                                  /* subnormal: units of 2^-24 */
        float a;
        memcpy(&a, &u, sizeof a);
        return (uint16_t)(sign | (uint16_t)rintf(ldexpf(a, 24)));
    }
    u += 0xFFFu + (u >> 13 & 1);
    return (uint16_t)(sign | (uint16_t)((u - 0x38000000u) >> 13));
}

float sib_f32_of_e4m3(uint8_t b)
{
    int e = b >> 3 & 15, m = b & 7;
    if (e == 15 && m == 7) return NAN;
    float v = e == 0 ? ldexpf((float)m, -9) : ldexpf((float)(m | 8), e - 10);
    return b >> 7 ? -v : v;
}

float sib_f32_of_e8m0(uint8_t b)
{
    return b == 255 ? NAN : ldexpf(1.0f, b - 127);
}

bool sib_to_f32(float *out, const void *in, sib_dtype t, size_t n)
{
    const unsigned char *p = in;
    uint16_t h;
    switch (t) {
    case SIB_F32: memcpy(out, in, n * sizeof *out); return true;
    case SIB_BF16:
        for (size_t i = 0; i < n; i++) {
            memcpy(&h, p + 2 * i, 2);
            out[i] = sib_f32_of_bf16(h);
        }
        return true;
    case SIB_F16:
        for (size_t i = 0; i < n; i++) {
            memcpy(&h, p + 2 * i, 2);
            out[i] = sib_f32_of_f16(h);
        }
        return true;
    case SIB_F64:
        for (size_t i = 0; i < n; i++) {
            double d;
            memcpy(&d, p + 8 * i, 8);
            out[i] = (float)d;
        }
        return true;
    case SIB_I32:
        for (size_t i = 0; i < n; i++) {
            int32_t d;
            memcpy(&d, p + 4 * i, 4);
            out[i] = (float)d;
        }
        return true;
    case SIB_U8:
    case SIB_BOOL:
        for (size_t i = 0; i < n; i++) out[i] = p[i];
        return true;
    case SIB_I8:
        for (size_t i = 0; i < n; i++) out[i] = (float)(signed char)p[i];
        return true;
    case SIB_F8_E4M3:
        for (size_t i = 0; i < n; i++) out[i] = sib_f32_of_e4m3(p[i]);
        return true;
    default: return false;
    }
}

/* Not finite is: every exponent bit is set. */
int64_t sib_first_not_finite(const void *values, sib_dtype dtype, int64_t n)
{
    const unsigned char *p = values;
    if (dtype == SIB_F32) {
        uint32_t v;
        for (int64_t i = 0; i < n; i++) {
            memcpy(&v, p + 4 * i, 4);
            if ((v & 0x7F800000u) == 0x7F800000u) return i;
        }
    } else if (dtype == SIB_BF16 || dtype == SIB_F16) {
        unsigned exponent = dtype == SIB_BF16 ? 0x7F80u : 0x7C00u;
        uint16_t v;
        for (int64_t i = 0; i < n; i++) {
            memcpy(&v, p + 2 * i, 2);
            if ((v & exponent) == exponent) return i;
        }
    }
    return -1;
}

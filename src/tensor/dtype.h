/* tensor/dtype.h - element types of safetensors files and the scalar conversions. */
#ifndef SIB_TENSOR_DTYPE_H
#define SIB_TENSOR_DTYPE_H

#include "base/str.h"

#include <string.h>

/* Names as in safetensors (formats.md A.1). */
typedef enum sib_dtype {
    SIB_BOOL, SIB_F4, SIB_F6_E2M3, SIB_F6_E3M2, SIB_U8, SIB_I8, SIB_F8_E5M2, SIB_F8_E4M3, SIB_F8_E8M0,
    SIB_F8_E4M3FNUZ, SIB_F8_E5M2FNUZ, SIB_I16, SIB_U16, SIB_F16, SIB_BF16, SIB_I32, SIB_U32, SIB_F32,
    SIB_I64, SIB_U64, SIB_F64, SIB_C64,
    SIB_N_DTYPES
} sib_dtype;

int sib_dtype_bits(sib_dtype t);
const char *sib_dtype_name(sib_dtype t);
bool sib_dtype_named(sib_str name, sib_dtype *out);

/* bf16 is the upper half of an f32; round to nearest, ties to even, NaN stays NaN. */
static inline float sib_f32_of_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint16_t sib_bf16_of_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFFu + (u >> 16 & 1)) >> 16);
}

static inline float sib_round_bf16(float f)
{
    return sib_f32_of_bf16(sib_bf16_of_f32(f));
}

float sib_f32_of_f16(uint16_t h);    /* exact, subnormals included */
uint16_t sib_f16_of_f32(float f);    /* nearest, ties to even */
float sib_f32_of_e4m3(uint8_t b);    /* OCP E4M3: 0x7F and 0xFF are NaN */
float sib_f32_of_e8m0(uint8_t b);    /* 2^(b-127); 255 is NaN */

/* Converts n elements at any alignment to f32. False when the type has no such reading
 * (integers of 64 bits, sub-byte types). */
bool sib_to_f32(float *out, const void *in, sib_dtype t, size_t n);

/* Index of the first NaN or infinity among n values of a float type at any alignment, -1 when there is none. */
int64_t sib_first_not_finite(const void *values, sib_dtype dtype, int64_t n);

#endif

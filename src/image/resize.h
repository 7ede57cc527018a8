/* image/resize.h - antialiased bicubic resampling, equal to the references byte for byte.
 *
 * The reference processors hand the model bytes that went through a fixed-point resampler;
 * a "better" one gives other soft tokens. Both references are separable, a = -0.5 (Keys,
 * 1981), horizontal pass first, 8 bits between the passes, and leave out a pass whose size
 * does not change. With `in` and `out` the sizes of an axis:
 *
 *   scale = in / out          fs = max(scale, 1)       support = 2 fs
 *   c     = (i + 0.5) scale   lo = max(0, trunc(c - support + 0.5))
 *                             hi = min(in, trunc(c + support + 0.5))
 *   w[j]  = B((j + lo - c + 0.5) / fs) / sum,   j = 0 .. hi-lo-1
 *   q[j]  = w[j] 2^P rounded to nearest, halves away from zero
 *   out   = clamp((2^(P-1) + sum of src q) >> P, 0, 255)
 *
 * They differ in P alone. Pillow (src/libImaging/Resample.c): 22. torchvision (ATen's CPU
 * kernel for uint8, antialias=True): the largest P <= 22 with which the largest weight of
 * the axis stays below 2^15. Pictures differ by one level here and there. Compared byte for
 * byte with Pillow 9.4 and 11.3 and with torch 2.6.
 *
 * Pillow 13 (python-pillow/Pillow#9549) runs the vertical pass first where the height shrinks
 * much more than the width. The size rule keeps the aspect ratio, so this matters only for
 * very narrow pictures; we stay with the order of all versions before, and of torchvision. */
#ifndef SIB_IMAGE_RESIZE_H
#define SIB_IMAGE_RESIZE_H

#include "image/image.h"

typedef enum sib_resampler {
    SIB_RESAMPLE_PIL,        /* the default everywhere: MLX programs and slow HF processors */
    SIB_RESAMPLE_TORCHVISION /* the fast HF processors                                      */
} sib_resampler;

/* *out becomes `in` at width x height (each 1 .. 2^20); a copy when that is its size.
 * EARG for another size, ENOMEM; *out is empty on failure. `in` is borrowed. */
sib_status sib_resize(sib_image *out, const sib_image *in, int width, int height, sib_resampler how, sib_err *err);

#endif

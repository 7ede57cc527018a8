/* image/patches.c - see patches.h. */
#include "image/patches.h"

int sib_patch_count(const sib_image *img, int patch)
{
    if (patch < 1 || img->width % patch || img->height % patch) return 0;
    int64_t n = (int64_t)(img->width / patch) * (img->height / patch);
    return n <= INT32_MAX ? (int)n : 0;
}

sib_status sib_patches(const sib_image *img, int patch, sib_rescale rescale, float *values, sib_patch_pos *positions, sib_err *err)
{
    int n = sib_patch_count(img, patch);
    if (n == 0)
        return sib_fail(err, SIB_EARG, "a picture of %d x %d pixels cannot be cut into patches of %d x %d", img->width, img->height,
                        patch, patch);
    float table[256];
    for (int i = 0; i < 256; i++)
        table[i] = rescale == SIB_RESCALE_FLOAT ? (float)i * (float)(1.0 / 255.0) : (float)(i * (1.0 / 255.0));

    const int columns = img->width / patch;
    const size_t run = (size_t)patch * 3, stride = (size_t)img->width * 3;
    for (int i = 0; i < n; i++) {
        sib_patch_pos at = {.x = i % columns, .y = i / columns};
        if (positions) positions[i] = at;
        if (!values) continue;
        const uint8_t *src = img->rgb + (size_t)at.y * (size_t)patch * stride + (size_t)at.x * run;
        for (int row = 0; row < patch; row++, src += stride, values += run)
            for (size_t k = 0; k < run; k++) values[k] = table[src[k]];
    }
    return SIB_OK;
}

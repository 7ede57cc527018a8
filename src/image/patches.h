/* image/patches.h - a resized picture cut into the rows that a vision tower multiplies.
 *
 *   picture             patches              one patch: [row][column][channel]
 *   +---+---+---+
 *   | 0 | 1 | 2 |       raster order,        r g b r g b ... patch * patch * 3 floats,
 *   +---+---+---+       position (x, y)      value = byte / 255, no mean, no deviation
 *   | 3 | 4 | 5 |
 *   +---+---+---+
 *
 * Towers with an encoder take patch 16 and apply 2 (v - 0.5) themselves; the unified Gemma 4
 * takes patch 48 (model_patch_size) as it is. No padding: a picture is run alone. */
#ifndef SIB_IMAGE_PATCHES_H
#define SIB_IMAGE_PATCHES_H

#include "image/image.h"

/* How byte / 255 is rounded to float32. The two differ in the last bit for some bytes. */
typedef enum sib_rescale {
    SIB_RESCALE_DOUBLE, /* (float)(byte * (1.0 / 255)): NumPy processors, beside SIB_RESAMPLE_PIL    */
    SIB_RESCALE_FLOAT   /* byte * (float)(1.0 / 255): torch processors, beside SIB_RESAMPLE_TORCHVISION */
} sib_rescale;

typedef struct sib_patch_pos {
    int32_t x, y; /* column and row in the grid of patches */
} sib_patch_pos;

/* Number of patches, 0 when patch does not divide both sides. */
int sib_patch_count(const sib_image *img, int patch);

/* Writes values[n][patch*patch*3] and positions[n] (either may be NULL) with n =
 * sib_patch_count. EARG when patch does not divide both sides. */
sib_status sib_patches(const sib_image *img, int patch, sib_rescale rescale, float *values, sib_patch_pos *positions, sib_err *err);

#endif

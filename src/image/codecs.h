/* image/codecs.h - private to image/: one decoder per file format behind one signature.
 *
 * A decoder is given bytes that begin with its format's signature. It checks the size that
 * the header promises with sib_image_check before it allocates, fills *out (empty on
 * entry) with the pixels as stored, and stores the EXIF orientation, 1 when there is none.
 * On failure it has released what it allocated except *out, which the caller releases. */
#ifndef SIB_IMAGE_CODECS_H
#define SIB_IMAGE_CODECS_H

#include "image/image.h"

typedef struct sib_image_source {
    const uint8_t *p;
    size_t n;
    const char *name;
    sib_image_limits limits;
} sib_image_source;

typedef sib_status (*sib_image_decoder)(sib_image *out, int *orientation, const sib_image_source *src, sib_err *err);

sib_status sib_png_decode(sib_image *out, int *orientation, const sib_image_source *src, sib_err *err);
sib_status sib_jpeg_decode(sib_image *out, int *orientation, const sib_image_source *src, sib_err *err);
sib_status sib_webp_decode(sib_image *out, int *orientation, const sib_image_source *src, sib_err *err);

/* ECAPACITY when width x height is above the limits, EFORMAT when a side is 0. */
sib_status sib_image_check(const sib_image_source *src, uint64_t width, uint64_t height, sib_err *err);

/* Value 1..8 of the orientation tag in an EXIF block (a TIFF header, maybe behind
 * "Exif\0\0"), 1 when the block is damaged or holds no such value. */
int sib_exif_orientation(const uint8_t *p, size_t n);

#endif

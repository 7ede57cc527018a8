/* image/image.h - encoded pictures in, rows of RGB bytes out.
 *
 * The bytes come from users and from the network, so they are hostile: the size is
 * checked from the header before anything is allocated, the decoders' errors end in a
 * sib_err, and nothing is printed. What a picture becomes is what Pillow's
 * `ImageOps.exif_transpose(image).convert("RGB")` makes of it, because that is what the
 * processors of the supported models call:
 *
 *   orientation   EXIF tag 0x0112 from JPEG APP1, PNG eXIf or the WebP EXIF chunk
 *   alpha         dropped, never blended; palette transparency likewise
 *   colour        palette, grey and 1/2/4 bits widened; gamma and profiles ignored
 *   16 bits       the high byte
 *   CMYK, YCCK    taken as Adobe stores it (inverted), no profile
 *   animation     the first frame on a black canvas
 *   not read      XMP, and the text chunks in which old programs kept EXIF
 *
 * PNG and lossless WebP are exact by definition; JPEG and lossy WebP are exact among
 * programs that use libjpeg-turbo (slow integer IDCT, smooth upsampling) and libwebp. */
#ifndef SIB_IMAGE_IMAGE_H
#define SIB_IMAGE_IMAGE_H

#include "base/status.h"

/* Rows top down, 3 bytes a pixel, no padding: (size_t)width * height * 3 bytes, owned. */
typedef struct sib_image {
    int width, height;
    uint8_t *rgb;
} sib_image;

/* What a picture may cost. Decoding holds at most about 11 bytes a pixel (progressive JPEG:
 * two for each coefficient of up to four inks, and the result), with other kinds 7. At the
 * default limit that is 725 MB, and about 5 s for the worst file known (very many scans). */
typedef struct sib_image_limits {
    int64_t max_pixels; /* width x height, as stored                         */
    int max_side;       /* pixels of one side; 65535 is the most JPEG can say */
    size_t max_bytes;   /* of the encoded file                               */
} sib_image_limits;

/* 64 Mi pixels (a 64-megapixel phone photo passes), sides to 65535, files to 64 MiB. */
#define SIB_IMAGE_LIMITS ((sib_image_limits){.max_pixels = INT64_C(64) << 20, .max_side = 65535, .max_bytes = (size_t)64 << 20})

/* Decodes a PNG, JPEG or WebP file held in memory; the kind is told by its first bytes.
 * `name` stands for the picture in error sentences; limits NULL means SIB_IMAGE_LIMITS.
 * On success *out owns its pixels (sib_image_deinit); on failure *out is empty.
 *   EFORMAT       damaged, cut short, or not a picture
 *   EUNSUPPORTED  a picture of a kind that is not decoded here (GIF, HEIC, ...)
 *   ECAPACITY     above a limit
 *   ENOMEM */
sib_status sib_image_decode(sib_image *out, const void *bytes, size_t n, const char *name, const sib_image_limits *limits,
                            sib_err *err);

/* The same for a regular file; EIO when it cannot be read. */
sib_status sib_image_read(sib_image *out, const char *path, const sib_image_limits *limits, sib_err *err);

/* Memory for width x height pixels (both >= 1), not cleared. *out is empty on failure. */
sib_status sib_image_alloc(sib_image *out, int width, int height, sib_err *err);
void sib_image_deinit(sib_image *img); /* leaves it empty; an empty one is fine */

static inline size_t sib_image_bytes(const sib_image *img)
{
    return (size_t)img->width * (size_t)img->height * 3;
}

#define SIB_IMAGE_HASH_BYTES 32

/* SHA-256 of width and height (uint32, little endian) and the pixels: two pictures with
 * the same hash are the same picture to a model, whatever file they came from. */
void sib_image_hash(const sib_image *img, uint8_t hash[SIB_IMAGE_HASH_BYTES]);

#endif

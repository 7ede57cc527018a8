/* image/image.c - see image.h: sniffing, limits, orientation, files, hashing. */
#include "image/image.h"

#include "base/str.h"
#include "image/codecs.h"

#include <sha2.h>
#include <stdlib.h>
#include <string.h>

sib_status sib_image_alloc(sib_image *out, int width, int height, sib_err *err)
{
    *out = (sib_image){0};
    size_t bytes;
    if (width < 1 || height < 1 || __builtin_mul_overflow((size_t)width * 3, (size_t)height, &bytes))
        return sib_fail(err, SIB_EARG, "a picture cannot be %d x %d pixels large", width, height);
    uint8_t *rgb = malloc(bytes);
    if (!rgb) return sib_fail(err, SIB_ENOMEM, "out of memory: a picture of %d x %d pixels", width, height);
    *out = (sib_image){.width = width, .height = height, .rgb = rgb};
    return SIB_OK;
}

void sib_image_deinit(sib_image *img)
{
    free(img->rgb);
    *img = (sib_image){0};
}

sib_status sib_image_check(const sib_image_source *src, uint64_t width, uint64_t height, sib_err *err)
{
    const sib_image_limits *lim = &src->limits;
    unsigned long long w = width, h = height;
    if (!w || !h) return sib_fail(err, SIB_EFORMAT, "%s: the picture is %llu x %llu pixels large", src->name, w, h);
    if (w > (uint64_t)lim->max_side || h > (uint64_t)lim->max_side)
        return sib_fail(err, SIB_ECAPACITY, "%s: a side of the %llu x %llu picture is above the limit of %d pixels", src->name, w, h,
                        lim->max_side);
    if (w * h > (uint64_t)lim->max_pixels) /* each factor is at most INT_MAX */
        return sib_fail(err, SIB_ECAPACITY, "%s: %llu x %llu pixels are above the limit of %lld", src->name, w, h,
                        (long long)lim->max_pixels);
    return SIB_OK;
}

/* A cache line of a stored row serves one tile of output rows when the axes are swapped. */
enum { TILE = 32 };

/* Replaces *img by the picture as it is meant to be seen. With W x H the stored size, the
 * eight orientations read output pixel (x, y) from stored column x or W-1-x and row y or
 * H-1-y (1 to 4), or from the same with x and y exchanged (5 to 8). */
static sib_status orient(sib_image *img, int orientation, sib_err *err)
{
    if (orientation == 1) return SIB_OK;
    bool swap = orientation >= 5;
    bool flip_col = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    bool flip_row = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    int w = swap ? img->height : img->width, h = swap ? img->width : img->height;
    sib_image out;
    SIB_TRY(sib_image_alloc(&out, w, h, err));

    ptrdiff_t row = (ptrdiff_t)img->width * 3;
    const uint8_t *origin = img->rgb + (flip_row ? row * (img->height - 1) : 0) + (flip_col ? row - 3 : 0);
    ptrdiff_t col_step = flip_col ? -3 : 3, row_step = flip_row ? -row : row;
    ptrdiff_t dx = swap ? row_step : col_step, dy = swap ? col_step : row_step;
    for (int y0 = 0; y0 < h; y0 += TILE) {
        int y1 = h - y0 < TILE ? h : y0 + TILE;
        for (int x = 0; x < w; x++)
            for (int y = y0; y < y1; y++)
                memcpy(out.rgb + ((ptrdiff_t)y * w + x) * 3, origin + x * dx + y * dy, 3);
    }
    sib_image_deinit(img);
    *img = out;
    return SIB_OK;
}

typedef struct signature {
    const char *kind;
    size_t at, n;
    const char *bytes;
    sib_image_decoder decode; /* NULL: known by name only */
} signature;

static const signature signatures[] = {
    {"PNG", 0, 8, "\x89PNG\r\n\x1a\n", sib_png_decode},
    {"JPEG", 0, 3, "\xff\xd8\xff", sib_jpeg_decode},
    {"WebP", 8, 4, "WEBP", sib_webp_decode},
    {"GIF", 0, 4, "GIF8", NULL},
    {"BMP", 0, 2, "BM", NULL},
    {"TIFF", 0, 4, "II*\0", NULL},
    {"TIFF", 0, 4, "MM\0*", NULL},
    {"HEIC or AVIF", 4, 4, "ftyp", NULL},
};

sib_status sib_image_decode(sib_image *out, const void *bytes, size_t n, const char *name, const sib_image_limits *limits,
                            sib_err *err)
{
    *out = (sib_image){0};
    sib_image_source src = {.p = bytes, .n = n, .name = name, .limits = limits ? *limits : SIB_IMAGE_LIMITS};
    if (n > src.limits.max_bytes)
        return sib_fail(err, SIB_ECAPACITY, "%s: %zu bytes are above the limit of %zu", name, n, src.limits.max_bytes);
    for (size_t i = 0; i < SIB_COUNT(signatures); i++) {
        const signature *sig = &signatures[i];
        if (n < sig->at + sig->n || memcmp(src.p + sig->at, sig->bytes, sig->n) != 0) continue;
        if (!sig->decode)
            return sib_fail(err, SIB_EUNSUPPORTED, "%s: %s pictures are not supported, only PNG, JPEG and WebP", name, sig->kind);
        int orientation = 1;
        sib_status s = sig->decode(out, &orientation, &src, err);
        if (s == SIB_OK) s = orient(out, orientation, err);
        if (s != SIB_OK) sib_image_deinit(out);
        return s;
    }
    return sib_fail(err, SIB_EFORMAT, "%s: not a PNG, JPEG or WebP picture", name);
}

sib_status sib_image_read(sib_image *out, const char *path, const sib_image_limits *limits, sib_err *err)
{
    *out = (sib_image){0};
    sib_buf file = {0};
    sib_status s = sib_read_file(path, limits ? limits->max_bytes : SIB_IMAGE_LIMITS.max_bytes, &file, err);
    if (s == SIB_OK) s = sib_image_decode(out, file.p, file.n, path, limits, err);
    sib_buf_deinit(&file);
    return s;
}

void sib_image_hash(const sib_image *img, uint8_t hash[SIB_IMAGE_HASH_BYTES])
{
    uint8_t size[8];
    for (int i = 0; i < 4; i++) {
        size[i] = (uint8_t)((uint32_t)img->width >> (8 * i));
        size[4 + i] = (uint8_t)((uint32_t)img->height >> (8 * i));
    }
    SHA2_CTX ctx;
    SHA256Init(&ctx);
    SHA256Update(&ctx, size, sizeof size);
    SHA256Update(&ctx, img->rgb, sib_image_bytes(img));
    SHA256Final(hash, &ctx);
}

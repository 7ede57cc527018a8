/* image/png.c - PNG through libpng: every colour type to 8-bit RGB.
 *
 * libpng reports errors by a callback that must not return; it jumps to the setjmp in
 * sib_png_decode. What has to survive the jump lives in `struct png`, not in locals. */
#include "base/log.h"
#include "image/codecs.h"

#include <png.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

struct png {
    jmp_buf jump;
    char message[160];
    const sib_image_source *src;
    size_t at; /* bytes read */
    png_structp png;
    png_infop info;
    png_bytepp rows;
};

static void on_error(png_structp png, png_const_charp text)
{
    struct png *d = png_get_error_ptr(png);
    size_t n = strnlen(text, sizeof d->message - 1);
    memcpy(d->message, text, n);
    d->message[n] = 0;
    longjmp(d->jump, 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
    const struct png *d = png_get_error_ptr(png);
    sib_log(SIB_LOG_DEBUG, "%s: PNG: %s", d->src->name, text);
}

static void read_bytes(png_structp png, png_bytep to, size_t n)
{
    struct png *d = png_get_io_ptr(png);
    if (n > d->src->n - d->at) png_error(png, "the file ends early");
    memcpy(to, d->src->p + d->at, n);
    d->at += n;
}

static sib_status decode(struct png *d, sib_image *out, sib_err *err)
{
    const sib_image_source *src = d->src;
    png_structp png = d->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, d, on_error, on_warning);
    d->info = png ? png_create_info_struct(png) : NULL;
    if (!d->info) return sib_nomem(err, src->name);
    /* The limits are ours; no chunk but IHDR, PLTE, tRNS, IDAT and IEND is looked at, so
     * that a damaged comment or profile costs nothing. */
    png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_set_read_fn(png, d, read_bytes);
    png_read_info(png, d->info);

    png_uint_32 width = png_get_image_width(png, d->info), height = png_get_image_height(png, d->info);
    SIB_TRY(sib_image_check(src, width, height, err));
    png_set_palette_to_rgb(png);
    png_set_expand_gray_1_2_4_to_8(png);
    png_set_strip_16(png);
    png_set_strip_alpha(png);
    png_set_gray_to_rgb(png);
    (void)png_set_interlace_handling(png);
    png_read_update_info(png, d->info);
    if (png_get_rowbytes(png, d->info) != (size_t)width * 3)
        return sib_fail(err, SIB_EUNSUPPORTED, "%s: PNG: colour type %d is not supported", src->name,
                        png_get_color_type(png, d->info));

    SIB_TRY(sib_image_alloc(out, (int)width, (int)height, err));
    d->rows = calloc(height, sizeof *d->rows);
    if (!d->rows) return sib_nomem(err, src->name);
    for (png_uint_32 y = 0; y < height; y++) d->rows[y] = out->rgb + (size_t)y * width * 3;
    png_read_image(png, d->rows);
    return SIB_OK; /* what follows the last row, even a missing IEND, changes no pixel */
}

/* The chunk may stand behind the pixels, where libpng has stopped reading. */
static int find_orientation(const uint8_t *p, size_t n)
{
    for (size_t at = 8; n - at >= 12;) {
        size_t len = (size_t)p[at] << 24 | (size_t)p[at + 1] << 16 | (size_t)p[at + 2] << 8 | p[at + 3];
        if (len > n - at - 12) break;
        if (memcmp(p + at + 4, "eXIf", 4) == 0) return sib_exif_orientation(p + at + 8, len);
        at += 12 + len;
    }
    return 1;
}

sib_status sib_png_decode(sib_image *out, int *orientation, const sib_image_source *src, sib_err *err)
{
    struct png *d = calloc(1, sizeof *d);
    if (!d) return sib_nomem(err, src->name);
    d->src = src;
    sib_status s;
    if (setjmp(d->jump) == 0)
        s = decode(d, out, err);
    else
        s = sib_fail(err, SIB_EFORMAT, "%s: PNG: %s", src->name, d->message);
    png_destroy_read_struct(&d->png, &d->info, NULL);
    free(d->rows);
    free(d);
    *orientation = find_orientation(src->p, src->n);
    return s;
}

/* image/jpeg.c - JPEG through libjpeg-turbo, with its default (accurate) IDCT and upsampling.
 *
 * libjpeg reports errors by a callback that must not return; it jumps to the setjmp in
 * sib_jpeg_decode. What has to survive the jump lives in `struct jpeg`, not in locals.
 *
 * A file that ends inside a scan is refused. Damage inside a scan is not: libjpeg skips to
 * the next marker and goes on with a warning, as every viewer does. */
#include "base/log.h"
#include "image/codecs.h"

#include <setjmp.h>
#include <stdio.h> /* jpeglib.h needs FILE */
#include <stdlib.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

/* Every scan of a progressive file walks over all coefficients, so a small file with very
 * many scans could keep a core busy for minutes. Encoders write about ten. */
enum { MAX_SCANS = 100 };

struct jpeg {
    struct jpeg_decompress_struct dec; /* first: the callbacks get a pointer to it */
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr bytes;
    struct jpeg_progress_mgr progress;
    jmp_buf jump;
    char message[JMSG_LENGTH_MAX];
    bool no_memory, warned;
    const sib_image_source *src;
    uint8_t *inks; /* one row of CMYK */
};

static void on_error(j_common_ptr c)
{
    struct jpeg *d = (struct jpeg *)c;
    d->no_memory = d->errors.msg_code == JERR_OUT_OF_MEMORY;
    d->errors.format_message(c, d->message);
    longjmp(d->jump, 1);
}

static void on_message(j_common_ptr c, int level)
{
    struct jpeg *d = (struct jpeg *)c;
    if (level >= 0 || d->warned) return; /* a trace, or one warning of very many */
    d->warned = true;
    d->errors.format_message(c, d->message);
    sib_log(SIB_LOG_WARN, "%s: JPEG: %s", d->src->name, d->message);
}

static void on_output(j_common_ptr c)
{
    (void)c;
}

static void on_progress(j_common_ptr c)
{
    struct jpeg *d = (struct jpeg *)c;
    if (d->dec.input_scan_number <= MAX_SCANS) return;
    (void)snprintf(d->message, sizeof d->message, "more than %d scans", MAX_SCANS);
    longjmp(d->jump, 1);
}

static void source_nothing(j_decompress_ptr dec)
{
    (void)dec;
}

/* All bytes were there from the beginning: a request for more means that the file is cut. */
static boolean source_more(j_decompress_ptr dec)
{
    ERREXIT(dec, JERR_INPUT_EOF);
    return FALSE;
}

static void source_skip(j_decompress_ptr dec, long n)
{
    if (n <= 0) return;
    if ((size_t)n > dec->src->bytes_in_buffer) ERREXIT(dec, JERR_INPUT_EOF);
    dec->src->next_input_byte += n;
    dec->src->bytes_in_buffer -= (size_t)n;
}

/* Adobe stores inks inverted, so a stored value is the light that the ink lets through; the
 * product of two such bytes is divided by 255 with rounding, as Pillow does it:
 * R = k - round(C*k / 255) with C = 255 - c the true ink, k = 255 - K. */
static void inks_to_rgb(uint8_t *rgb, const uint8_t *cmyk, size_t n)
{
    for (size_t i = 0; i < n; i++, rgb += 3, cmyk += 4) {
        int k = cmyk[3];
        for (int c = 0; c < 3; c++) {
            int t = (255 - cmyk[c]) * k + 128;
            int v = k - (((t >> 8) + t) >> 8);
            rgb[c] = (uint8_t)(v < 0 ? 0 : v);
        }
    }
}

static int find_orientation(const struct jpeg_decompress_struct *dec)
{
    for (jpeg_saved_marker_ptr m = dec->marker_list; m; m = m->next)
        if (m->data_length >= 6 && memcmp(m->data, "Exif\0", 5) == 0) return sib_exif_orientation(m->data, m->data_length);
    return 1;
}

static sib_status decode(struct jpeg *d, sib_image *out, int *orientation, sib_err *err)
{
    j_decompress_ptr dec = &d->dec;
    const sib_image_source *src = d->src;
    jpeg_create_decompress(dec);
    d->bytes = (struct jpeg_source_mgr){.next_input_byte = src->p,
                                        .bytes_in_buffer = src->n,
                                        .init_source = source_nothing,
                                        .fill_input_buffer = source_more,
                                        .skip_input_data = source_skip,
                                        .resync_to_restart = jpeg_resync_to_restart,
                                        .term_source = source_nothing};
    d->progress.progress_monitor = on_progress;
    dec->src = &d->bytes;
    dec->progress = &d->progress;
    jpeg_save_markers(dec, JPEG_APP0 + 1, 0xFFFF);
    (void)jpeg_read_header(dec, TRUE);
    SIB_TRY(sib_image_check(src, dec->image_width, dec->image_height, err));
    *orientation = find_orientation(dec);

    bool cmyk = dec->jpeg_color_space == JCS_CMYK || dec->jpeg_color_space == JCS_YCCK;
    if (dec->jpeg_color_space == JCS_UNKNOWN)
        return sib_fail(err, SIB_EUNSUPPORTED, "%s: JPEG: %d colour components are not supported", src->name, dec->num_components);
    dec->out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    (void)jpeg_start_decompress(dec);

    size_t width = dec->output_width;
    SIB_TRY(sib_image_alloc(out, (int)width, (int)dec->output_height, err));
    if (cmyk && !(d->inks = malloc(width * 4))) return sib_nomem(err, src->name);
    while (dec->output_scanline < dec->output_height) {
        uint8_t *rgb = out->rgb + dec->output_scanline * width * 3;
        JSAMPROW row = cmyk ? d->inks : rgb;
        (void)jpeg_read_scanlines(dec, &row, 1);
        if (cmyk) inks_to_rgb(rgb, row, width);
    }
    return SIB_OK; /* what follows the last row, even a missing EOI, changes no pixel */
}

sib_status sib_jpeg_decode(sib_image *out, int *orientation, const sib_image_source *src, sib_err *err)
{
    struct jpeg *d = calloc(1, sizeof *d);
    if (!d) return sib_nomem(err, src->name);
    d->src = src;
    d->dec.err = jpeg_std_error(&d->errors);
    d->errors.error_exit = on_error;
    d->errors.emit_message = on_message;
    d->errors.output_message = on_output;
    sib_status s;
    if (setjmp(d->jump) == 0)
        s = decode(d, out, orientation, err);
    else if (d->no_memory)
        s = sib_nomem(err, src->name);
    else
        s = sib_fail(err, SIB_EFORMAT, "%s: JPEG: %s", src->name, d->message);
    jpeg_destroy_decompress(&d->dec);
    free(d->inks);
    free(d);
    return s;
}

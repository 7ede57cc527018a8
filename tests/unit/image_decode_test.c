/* tests/unit/image_decode_test.c - pictures of every kind to RGB: the case files with Pillow's
 * answers, copies of one picture made here in every format, and hostile bytes. */
#include "image_cases.h"

#include <jpeglib.h>
#include <png.h>
#include <webp/encode.h>

/* ---- the case files ------------------------------------------------------------------- */

/* Another JPEG or WebP decoder may differ by a little; more means another transform. */
static void assert_close(const char *file, const sib_image *img)
{
    char name[256];
    (void)snprintf(name, sizeof name, "rgb/%s.gz", file);
    size_t n = sib_image_bytes(img), sum = 0;
    uint8_t *want = read_gz(case_path(name), n);
    assert_non_null(want);
    for (size_t i = 0; i < n; i++) {
        int diff = abs(want[i] - img->rgb[i]);
        if (diff > 4) fail_msg("%s: byte %zu is %d, not %d", file, i, img->rgb[i], want[i]);
        sum += (size_t)diff;
    }
    if ((double)sum > 0.1 * (double)n) fail_msg("%s: mean difference %g", file, (double)sum / (double)n);
    free(want);
}

static void every_kind_of_file(void **state)
{
    (void)state;
    json_t *rows = read_json(case_path("expected.json")), *row;
    size_t i, n_equal = 0;
    json_array_foreach(rows, i, row)
    {
        const char *file = str_at(row, "file"), *strip16 = str_at(row, "strip16_sha256");
        char name[256];
        (void)snprintf(name, sizeof name, "files/%s", file);
        sib_image img = decode_file(case_path(name));
        if (img.width != int_at(row, "width") || img.height != int_at(row, "height"))
            fail_msg("%s: %d x %d", file, img.width, img.height);
        bool equal = strcmp(sha256(img.rgb, sib_image_bytes(&img)), strip16 ? strip16 : str_at(row, "sha256")) == 0;
        n_equal += equal;
        if (!equal && json_is_true(json_object_get(row, "exact"))) fail_msg("%s: other pixels", file);
        if (!equal) assert_close(file, &img);
        sib_image_deinit(&img);
    }
    assert_true(json_array_size(rows) >= 50);
    print_message("%zu of %zu pictures are byte for byte Pillow's\n", n_equal, json_array_size(rows));
    json_decref(rows);
}

static void bad_files_end_in_an_error(void **state)
{
    (void)state;
    json_t *rows = read_json(case_path("bad.json")), *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        const char *file = str_at(row, "file"), *pillow = str_at(row, "pillow");
        char name[256];
        (void)snprintf(name, sizeof name, "bad/%s", file);
        sib_err err = {0};
        sib_image img;
        sib_status s = sib_image_read(&img, case_path(name), NULL, &err);
        if (s == SIB_OK && strncmp(pillow, "decodes", 7) != 0) fail_msg("%s decodes to %d x %d", file, img.width, img.height);
        if (s != SIB_OK) {
            assert_null(img.rgb);
            assert_non_null(strstr(err.message, file)); /* the sentence names the file */
            assert_true(s == SIB_EFORMAT || s == SIB_ECAPACITY || s == SIB_EUNSUPPORTED);
        }
        sib_image_deinit(&img);
    }
    assert_true(json_array_size(rows) >= 25);
    json_decref(rows);
}

/* ---- one picture in every format -------------------------------------------------------- */

static const char source_file[] = "demo/pictures/05_240x168.png";

typedef struct png_recipe {
    int color_type, bit_depth;
    bool interlaced;
    const png_color *palette;
    int n_palette;
    const uint8_t *exif;
    size_t exif_bytes;
} png_recipe;

static void png_to_buf(png_structp png, png_bytep p, size_t n)
{
    sib_buf_add(png_get_io_ptr(png), p, n);
}

static void png_flush_nothing(png_structp png)
{
    (void)png;
}

/* `rows` holds packed rows of row_bytes each. */
static sib_buf make_png(const uint8_t *rows, size_t row_bytes, int width, int height, png_recipe r)
{
    sib_buf out = {0};
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    png_bytepp at = calloc((size_t)height, sizeof *at);
    assert_non_null(at);
    for (int y = 0; y < height; y++) at[y] = (png_bytep)rows + (size_t)y * row_bytes;
    png_set_write_fn(png, &out, png_to_buf, png_flush_nothing);
    png_set_IHDR(png, info, (png_uint_32)width, (png_uint_32)height, r.bit_depth, r.color_type,
                 r.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_set_compression_level(png, 1);
    if (r.palette) png_set_PLTE(png, info, r.palette, r.n_palette);
    if (r.exif) png_set_eXIf_1(png, info, (png_uint_32)r.exif_bytes, (png_bytep)r.exif);
    png_write_info(png, info);
    png_write_image(png, at);
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
    free(at);
    assert_false(out.failed);
    return out;
}

static sib_image decode_buf(sib_buf *file)
{
    sib_err err = {0};
    sib_image img;
    if (sib_image_decode(&img, file->p, file->n, "copy", NULL, &err) != SIB_OK) fail_msg("%s", err.message);
    sib_buf_deinit(file);
    return img;
}

/* Largest difference of a byte; frees `img`. */
static int difference(sib_image *img, const uint8_t *want, int width, int height)
{
    int worst = 0;
    assert_int_equal(img->width, width);
    assert_int_equal(img->height, height);
    for (size_t i = 0; i < sib_image_bytes(img); i++) {
        int diff = abs(want[i] - img->rgb[i]);
        if (diff > worst) worst = diff;
    }
    sib_image_deinit(img);
    return worst;
}

/* Grey and colour of 8 and 16 bits, with and without alpha, in one pass and in seven. */
static void png_of_whole_bytes(void **state)
{
    (void)state;
    sib_image src = decode_file(source_file);
    const int w = src.width, h = src.height;
    const size_t n = (size_t)w * (size_t)h;
    uint8_t *rows = malloc(n * 8), *want = malloc(n * 3);
    assert_true(rows && want);
    uint64_t seed = 7;
    const int types[] = {PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGB_ALPHA, PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA};
    for (unsigned k = 0; k < 16; k++) {
        const int type = types[k & 3], bytes = k & 4 ? 2 : 1;
        const int colours = type & PNG_COLOR_MASK_COLOR ? 3 : 1, channels = colours + (type & PNG_COLOR_MASK_ALPHA ? 1 : 0);
        uint8_t *p = rows;
        for (size_t i = 0; i < n; i++) {
            const uint8_t *rgb = src.rgb + i * 3;
            for (int c = 0; c < channels; c++) {
                *p++ = c < colours ? rgb[c] : (uint8_t)next_random(&seed); /* any alpha */
                if (bytes == 2) *p++ = (uint8_t)next_random(&seed);        /* any low byte */
            }
            for (size_t c = 0; c < 3; c++) want[i * 3 + c] = rgb[colours == 3 ? c : 0];
        }
        png_recipe r = {.color_type = type, .bit_depth = 8 * bytes, .interlaced = k & 8};
        sib_buf file = make_png(rows, (size_t)(w * channels * bytes), w, h, r);
        sib_image img = decode_buf(&file);
        if (difference(&img, want, w, h)) fail_msg("colour type %d, %d bits, interlaced %d", type, 8 * bytes, r.interlaced);
    }
    free(rows);
    free(want);
    sib_image_deinit(&src);
}

/* Grey and palettes of 1, 2, 4 and 8 bits, with a width that is no multiple of a byte. */
static void png_of_packed_bits(void **state)
{
    (void)state;
    sib_image src = decode_file(source_file);
    const int w = src.width - 3, h = src.height;
    const size_t n = (size_t)w * (size_t)h;
    uint8_t *rows = malloc(n), *want = malloc(n * 3);
    assert_true(rows && want);
    uint64_t seed = 9;
    for (unsigned k = 0; k < 8; k++) {
        const int bits = 1 << (k & 3), levels = 1 << bits;
        const bool indexed = k & 4;
        png_color palette[256];
        for (int i = 0; i < levels; i++) {
            uint64_t v = next_random(&seed);
            uint8_t grey = (uint8_t)(i * 255 / (levels - 1));
            palette[i] = indexed ? (png_color){.red = (uint8_t)v, .green = (uint8_t)(v >> 8), .blue = (uint8_t)(v >> 16)}
                                 : (png_color){.red = grey, .green = grey, .blue = grey};
        }
        const size_t row_bytes = ((size_t)(w * bits) + 7) / 8;
        memset(rows, 0, n);
        uint8_t *rgb = want;
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++, rgb += 3) {
                int v = src.rgb[((size_t)y * (size_t)src.width + (size_t)x) * 3] >> (8 - bits);
                rows[(size_t)y * row_bytes + (size_t)(x * bits / 8)] |= (uint8_t)(v << (8 - bits - x * bits % 8));
                rgb[0] = palette[v].red, rgb[1] = palette[v].green, rgb[2] = palette[v].blue;
            }
        png_recipe r = {.color_type = indexed ? PNG_COLOR_TYPE_PALETTE : PNG_COLOR_TYPE_GRAY, .bit_depth = bits};
        if (indexed) r.palette = palette, r.n_palette = levels;
        sib_buf file = make_png(rows, row_bytes, w, h, r);
        sib_image img = decode_buf(&file);
        if (difference(&img, want, w, h)) fail_msg("%s of %d bits", indexed ? "palette" : "grey", bits);
    }
    free(rows);
    free(want);
    sib_image_deinit(&src);
}

/* The picture that a viewer shows for stored pixels and an orientation (EXIF 2.3, 4.6.4). */
static uint8_t *shown(const sib_image *src, int orientation, int *width, int *height)
{
    const int w = src->width, h = src->height;
    *width = orientation >= 5 ? h : w;
    *height = orientation >= 5 ? w : h;
    uint8_t *out = malloc(sib_image_bytes(src));
    assert_non_null(out);
    for (int y = 0; y < *height; y++)
        for (int x = 0; x < *width; x++) {
            int sx = x, sy = y;
            switch (orientation) {
            case 2: sx = w - 1 - x; break;                 /* mirrored                  */
            case 3: sx = w - 1 - x, sy = h - 1 - y; break; /* upside down               */
            case 4: sy = h - 1 - y; break;                 /* upside down and mirrored  */
            case 5: sx = y, sy = x; break;                 /* rows and columns swapped  */
            case 6: sx = y, sy = h - 1 - x; break;         /* needs a turn to the right */
            case 7: sx = w - 1 - y, sy = h - 1 - x; break; /* swapped from the far end  */
            case 8: sx = w - 1 - y, sy = x; break;         /* needs a turn to the left  */
            default: break;
            }
            memcpy(out + ((size_t)y * (size_t)*width + (size_t)x) * 3, src->rgb + ((size_t)sy * (size_t)w + (size_t)sx) * 3, 3);
        }
    return out;
}

enum { EXIF_BYTES = 8 + 2 + 3 * 12 + 4 };

static void put(uint8_t **p, unsigned v, int n_bytes, bool little)
{
    for (int i = 0; i < n_bytes; i++) *(*p)++ = (uint8_t)(v >> 8 * (little ? i : n_bytes - 1 - i));
}

/* An EXIF block with three entries, the second pointing outside, the orientation last. */
static void make_exif(uint8_t out[EXIF_BYTES], unsigned orientation, bool little)
{
    const unsigned entries[3][4] = {{0x10f, 2, 2, 0}, {0x110, 2, 9, 0xffffffff}, {0x112, 3, 1, 0}};
    uint8_t *p = out;
    *p++ = little ? 'I' : 'M';
    *p++ = little ? 'I' : 'M';
    put(&p, 42, 2, little);
    put(&p, 8, 4, little);
    put(&p, 3, 2, little);
    for (int i = 0; i < 3; i++) {
        put(&p, entries[i][0], 2, little);
        put(&p, entries[i][1], 2, little);
        put(&p, entries[i][2], 4, little);
        put(&p, i == 2 ? orientation : entries[i][3], i == 2 ? 2 : 4, little);
        if (i == 2) put(&p, 0, 2, little);
    }
    put(&p, 0, 4, little);
    assert_ptr_equal(p, out + EXIF_BYTES);
}

typedef enum jpeg_inks { RGB, GREY, CMYK, YCCK, TWO } jpeg_inks;

static sib_buf make_jpeg(const sib_image *src, jpeg_inks inks, int quality, const uint8_t *exif)
{
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr errors;
    unsigned char *mem = NULL;
    unsigned long n = 0;
    c.err = jpeg_std_error(&errors);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &mem, &n);
    c.image_width = (JDIMENSION)src->width;
    c.image_height = (JDIMENSION)src->height;
    static const struct {
        int channels;
        J_COLOR_SPACE space;
    } kinds[] = {{3, JCS_RGB}, {1, JCS_GRAYSCALE}, {4, JCS_CMYK}, {4, JCS_CMYK}, {2, JCS_UNKNOWN}};
    const int channels = c.input_components = kinds[inks].channels;
    c.in_color_space = kinds[inks].space;
    jpeg_set_defaults(&c);
    if (inks == YCCK) jpeg_set_colorspace(&c, JCS_YCCK);
    jpeg_set_quality(&c, quality, TRUE);
    for (int i = 0; i < c.num_components; i++) c.comp_info[i].h_samp_factor = c.comp_info[i].v_samp_factor = 1;
    jpeg_start_compress(&c, TRUE);
    if (exif) {
        uint8_t app1[6 + EXIF_BYTES] = "Exif\0";
        memcpy(app1 + 6, exif, EXIF_BYTES);
        jpeg_write_marker(&c, JPEG_APP0 + 1, app1, sizeof app1);
    }
    uint8_t *row = malloc((size_t)src->width * 4);
    assert_non_null(row);
    for (int y = 0; y < src->height; y++) {
        const uint8_t *rgb = src->rgb + (size_t)y * (size_t)src->width * 3;
        for (int x = 0; x < src->width; x++, rgb += 3) {
            memcpy(row + x * channels, rgb, (size_t)(channels < 3 ? channels : 3));
            if (channels == 4) row[x * 4 + 3] = 255; /* inverted inks: no black */
        }
        JSAMPROW rows[1] = {row};
        jpeg_write_scanlines(&c, rows, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    sib_buf out = {0};
    sib_buf_add(&out, mem, n);
    free(mem);
    free(row);
    assert_false(out.failed);
    return out;
}

static void jpeg_inks_become_rgb(void **state)
{
    (void)state;
    sib_image src = decode_file(source_file);
    uint8_t *want = malloc(sib_image_bytes(&src));
    assert_non_null(want);
    for (jpeg_inks inks = RGB; inks <= YCCK; inks++) {
        for (size_t i = 0; i < sib_image_bytes(&src); i++) want[i] = src.rgb[inks == GREY ? i - i % 3 : i];
        sib_buf file = make_jpeg(&src, inks, 100, NULL);
        sib_image img = decode_buf(&file);
        int worst = difference(&img, want, src.width, src.height);
        if (worst > 4) fail_msg("inks %d: difference %d", (int)inks, worst);
    }
    sib_buf file = make_jpeg(&src, TWO, 90, NULL);
    sib_err err = {0};
    sib_image img;
    assert_int_equal(sib_image_decode(&img, file.p, file.n, "two.jpg", NULL, &err), SIB_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "two.jpg: JPEG: 2 colour"));
    sib_buf_deinit(&file);
    free(want);
    sib_image_deinit(&src);
}

static void add_chunk(sib_buf *b, const char *tag, const void *p, size_t n)
{
    uint8_t size[4] = {(uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24)};
    sib_buf_add(b, tag, 4);
    sib_buf_add(b, size, 4);
    sib_buf_add(b, p, n);
    if (n & 1) sib_buf_addc(b, 0);
}

static sib_buf make_webp(const sib_image *src, const uint8_t *exif, size_t exif_bytes)
{
    uint8_t *simple = NULL;
    size_t n = WebPEncodeLosslessRGB(src->rgb, src->width, src->height, src->width * 3, &simple);
    assert_true(n > 20);
    sib_buf body = {0}, out = {0};
    const int w = src->width - 1, h = src->height - 1;
    const uint8_t vp8x[10] = {8, 0, 0, 0, (uint8_t)w, (uint8_t)(w >> 8), 0, (uint8_t)h, (uint8_t)(h >> 8), 0};
    sib_buf_addz(&body, "WEBP");
    add_chunk(&body, "VP8X", vp8x, sizeof vp8x);
    sib_buf_add(&body, simple + 12, n - 12); /* the VP8L chunk */
    add_chunk(&body, "EXIF", exif, exif_bytes);
    add_chunk(&out, "RIFF", body.p, body.n);
    assert_false(out.failed);
    sib_buf_deinit(&body);
    WebPFree(simple);
    return out;
}

/* The first frame of an animation may cover a part of the canvas; black is around it. */
static void first_frame_on_black(void **state)
{
    (void)state;
    enum { W = 40, H = 30, AT_X = 6, AT_Y = 4, FRAME_W = 9, FRAME_H = 7 };
    uint8_t frame[FRAME_W * FRAME_H * 4], *simple = NULL, want[W * H * 3] = {0};
    uint64_t seed = 21;
    for (size_t i = 0; i < sizeof frame; i++) frame[i] = (uint8_t)(128 + next_random(&seed) % 128); /* half transparent */
    for (int y = 0; y < FRAME_H; y++)
        for (int x = 0; x < FRAME_W; x++) memcpy(want + ((y + AT_Y) * W + x + AT_X) * 3, frame + (y * FRAME_W + x) * 4, 3);
    size_t n = WebPEncodeLosslessRGBA(frame, FRAME_W, FRAME_H, FRAME_W * 4, &simple);
    assert_true(n > 20);
    const uint8_t vp8x[10] = {0x12, 0, 0, 0, W - 1, 0, 0, H - 1, 0, 0}, anim[6] = {255, 255, 255, 255, 0, 0};
    const uint8_t anmf[16] = {AT_X / 2, 0, 0, AT_Y / 2, 0, 0, FRAME_W - 1, 0, 0, FRAME_H - 1, 0, 0, 50, 0, 0, 0};
    sib_buf body = {0}, payload = {0}, file = {0};
    sib_buf_add(&payload, anmf, sizeof anmf);
    sib_buf_add(&payload, simple + 12, n - 12);
    sib_buf_addz(&body, "WEBP");
    add_chunk(&body, "VP8X", vp8x, sizeof vp8x);
    add_chunk(&body, "ANIM", anim, sizeof anim);
    add_chunk(&body, "ANMF", payload.p, payload.n);
    add_chunk(&file, "RIFF", body.p, body.n);
    sib_image img = decode_buf(&file);
    assert_int_equal(difference(&img, want, W, H), 0);
    sib_buf_deinit(&payload);
    sib_buf_deinit(&body);
    WebPFree(simple);
}

static sib_buf make_rgb_png(const sib_image *src, const uint8_t *exif)
{
    png_recipe r = {.color_type = PNG_COLOR_TYPE_RGB, .bit_depth = 8, .exif = exif, .exif_bytes = EXIF_BYTES};
    return make_png(src->rgb, (size_t)src->width * 3, src->width, src->height, r);
}

static void every_orientation_in_every_format(void **state)
{
    (void)state;
    sib_image src = decode_file(source_file);
    sib_buf plain = make_jpeg(&src, RGB, 90, NULL);
    sib_image lossy = decode_buf(&plain);
    for (unsigned o = 0; o <= 9; o++)
        for (int format = 0; format < 3; format++) {
            uint8_t exif[EXIF_BYTES];
            make_exif(exif, o, (o + (unsigned)format) & 1);
            sib_buf file = format == 0   ? make_rgb_png(&src, exif)
                           : format == 1 ? make_webp(&src, exif, EXIF_BYTES)
                                         : make_jpeg(&src, RGB, 90, exif);
            sib_image img = decode_buf(&file);
            int w, h;
            uint8_t *want = shown(format == 2 ? &lossy : &src, o <= 8 ? (int)o : 1, &w, &h);
            assert_int_equal(difference(&img, want, w, h), 0);
            free(want);
        }
    sib_image_deinit(&lossy);
    sib_image_deinit(&src);
}

/* The tiles of the rotation meet their edges: sizes around multiples of 32. */
static void orientation_of_odd_sizes(void **state)
{
    (void)state;
    const int sizes[][2] = {{1, 1}, {1, 70}, {70, 1}, {31, 33}, {32, 32}, {33, 65}, {64, 31}};
    uint64_t seed = 3;
    for (size_t k = 0; k < SIB_COUNT(sizes); k++) {
        sib_image src;
        assert_int_equal(sib_image_alloc(&src, sizes[k][0], sizes[k][1], NULL), SIB_OK);
        for (size_t i = 0; i < sib_image_bytes(&src); i++) src.rgb[i] = (uint8_t)next_random(&seed);
        for (int o = 1; o <= 8; o++) {
            uint8_t exif[EXIF_BYTES];
            make_exif(exif, (unsigned)o, false);
            sib_buf file = make_rgb_png(&src, exif);
            sib_image img = decode_buf(&file);
            int w, h;
            uint8_t *want = shown(&src, o, &w, &h);
            assert_int_equal(difference(&img, want, w, h), 0);
            free(want);
        }
        sib_image_deinit(&src);
    }
}

/* ---- hostile bytes ---------------------------------------------------------------------- */

/* A cut file is refused, or it was cut behind the last pixel: a half picture never comes out. */
static void cut_files_never_give_other_pixels(void **state)
{
    (void)state;
    json_t *rows = read_json(case_path("expected.json")), *row;
    size_t i, n_whole = 0;
    json_array_foreach(rows, i, row)
    {
        char name[256];
        (void)snprintf(name, sizeof name, "files/%s", str_at(row, "file"));
        sib_buf file = read_bytes(case_path(name));
        sib_image whole = decode_file(case_path(name));
        for (size_t part = 0; part < 16; part++) {
            size_t n = file.n * part / 16;
            char *copy = malloc(n + !n); /* exact, so that a read outside is seen */
            assert_non_null(copy);
            memcpy(copy, file.p, n);
            sib_image img;
            sib_err err = {0};
            if (sib_image_decode(&img, copy, n, name, NULL, &err) == SIB_OK) {
                if (img.width != whole.width || memcmp(img.rgb, whole.rgb, sib_image_bytes(&whole)) != 0)
                    fail_msg("%s cut to %zu bytes gives another picture", name, n);
                n_whole++;
            } else {
                assert_true(err.message[0] && !img.rgb);
            }
            sib_image_deinit(&img);
            free(copy);
        }
        sib_image_deinit(&whole);
        sib_buf_deinit(&file);
    }
    assert_true(n_whole < json_array_size(rows)); /* most cuts are refused */
    json_decref(rows);
}

static void flipped_bits_never_crash(void **state)
{
    (void)state;
    json_t *rows = read_json(case_path("expected.json")), *row;
    const sib_image_limits small = {.max_pixels = 1 << 19, .max_side = 65535, .max_bytes = 1 << 20};
    uint64_t seed = 0x51f3;
    size_t i, n_tried = 0, n_decoded = 0;
    json_array_foreach(rows, i, row)
    {
        char name[256];
        (void)snprintf(name, sizeof name, "files/%s", str_at(row, "file"));
        sib_buf file = read_bytes(case_path(name));
        size_t tries = file.n < 8000 ? 60 : 20;
        for (size_t k = 0; k < tries; k++, n_tried++) {
            char *copy = malloc(file.n);
            assert_non_null(copy);
            memcpy(copy, file.p, file.n);
            size_t range = k & 1 && file.n > 64 ? 64 : file.n; /* half of the time in the header */
            for (int flips = 1 + (int)(next_random(&seed) % 3); flips; flips--) {
                uint64_t bit = next_random(&seed) % (range * 8);
                copy[bit / 8] ^= (char)(1u << bit % 8);
            }
            sib_image img;
            if (sib_image_decode(&img, copy, file.n, name, &small, NULL) == SIB_OK) {
                assert_true(img.width > 0 && img.height > 0 && (int64_t)img.width * img.height <= small.max_pixels);
                n_decoded++;
            } else {
                assert_null(img.rgb);
            }
            sib_image_deinit(&img);
            free(copy);
        }
        sib_buf_deinit(&file);
    }
    assert_true(n_tried > 2000 && n_decoded > 0 && n_decoded < n_tried);
    json_decref(rows);
}

static void damaged_exif_means_upright(void **state)
{
    (void)state;
    sib_image src;
    assert_int_equal(sib_image_alloc(&src, 4, 2, NULL), SIB_OK);
    memset(src.rgb, 90, sib_image_bytes(&src));
    uint64_t seed = 11;
    for (size_t k = 0; k < 1000; k++) {
        uint8_t exif[EXIF_BYTES];
        make_exif(exif, 6, k & 1);
        size_t n = k < EXIF_BYTES - 4 ? k : EXIF_BYTES; /* cut inside the last entry or before */
        if (n == EXIF_BYTES) exif[next_random(&seed) % n] = (uint8_t)next_random(&seed);
        sib_buf file = make_webp(&src, exif, n);
        sib_image img = decode_buf(&file);
        assert_true(img.width * img.height == 8 && (img.width == 4 || (img.width == 2 && n == EXIF_BYTES)));
        sib_image_deinit(&img);
    }
    sib_image_deinit(&src);
}

static void limits_are_checked_and_named(void **state)
{
    (void)state;
    const char *const files[] = {"files/jpeg-444.jpg", "files/png-rgb8.png", "files/webp-lossy.webp"};
    for (size_t i = 0; i < SIB_COUNT(files); i++) {
        sib_image whole = decode_file(case_path(files[i])), img;
        const int64_t pixels = (int64_t)whole.width * whole.height;
        sib_image_limits lim = SIB_IMAGE_LIMITS;
        sib_err err = {0};
        lim.max_pixels = pixels;
        assert_int_equal(sib_image_read(&img, case_path(files[i]), &lim, &err), SIB_OK);
        sib_image_deinit(&img);
        lim.max_pixels = pixels - 1;
        assert_int_equal(sib_image_read(&img, case_path(files[i]), &lim, &err), SIB_ECAPACITY);
        assert_non_null(strstr(err.message, "pixels are above the limit"));
        lim = SIB_IMAGE_LIMITS;
        lim.max_side = whole.width - 1;
        assert_int_equal(sib_image_read(&img, case_path(files[i]), &lim, &err), SIB_ECAPACITY);
        lim = SIB_IMAGE_LIMITS;
        lim.max_bytes = 100;
        assert_int_not_equal(sib_image_read(&img, case_path(files[i]), &lim, &err), SIB_OK);
        sib_buf file = read_bytes(case_path(files[i]));
        assert_int_equal(sib_image_decode(&img, file.p, file.n, files[i], &lim, &err), SIB_ECAPACITY);
        sib_buf_deinit(&file);
        sib_image_deinit(&whole);
    }
    sib_err err = {0};
    sib_image img;
    assert_int_equal(sib_image_decode(&img, "GIF89a, not one of ours", 23, "a.gif", NULL, &err), SIB_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "a.gif: GIF"));
    assert_int_equal(sib_image_read(&img, "tests/cases/images/nowhere.png", NULL, &err), SIB_EIO);
    assert_int_equal(sib_image_read(&img, "tests/cases/images", NULL, &err), SIB_EIO);
    sib_image_deinit(&img);
    sib_image_deinit(&img);
}

/* A progressive file of very many scans is a way to keep a core busy. */
static void very_many_scans_are_refused(void **state)
{
    (void)state;
    sib_buf file = read_bytes(case_path("files/jpeg-progressive-444.jpg"));
    size_t sos = 0, end = file.n - 2; /* the last scan, repeated */
    for (size_t i = 2; i + 1 < end; i++)
        if ((uint8_t)file.p[i] == 0xff && (uint8_t)file.p[i + 1] == 0xda) sos = i;
    assert_true(sos > 0);
    sib_buf many = {0};
    sib_buf_add(&many, file.p, end);
    for (int i = 0; i < 200; i++) sib_buf_add(&many, file.p + sos, end - sos);
    sib_buf_add(&many, file.p + end, 2);
    sib_err err = {0};
    sib_image img;
    assert_int_equal(sib_image_decode(&img, many.p, many.n, "many.jpg", NULL, &err), SIB_EFORMAT);
    assert_non_null(strstr(err.message, "scans"));
    sib_buf_deinit(&many);
    sib_buf_deinit(&file);
}

static void hash_tells_pictures_apart(void **state)
{
    (void)state;
    uint8_t a[SIB_IMAGE_HASH_BYTES], b[SIB_IMAGE_HASH_BYTES], bytes[8 + 36] = {3, 0, 0, 0, 4};
    sib_image img;
    assert_int_equal(sib_image_alloc(&img, 3, 4, NULL), SIB_OK);
    for (size_t i = 0; i < 36; i++) bytes[8 + i] = img.rgb[i] = (uint8_t)(i * 7);
    sib_image_hash(&img, a);
    SHA2_CTX ctx;
    SHA256Init(&ctx);
    SHA256Update(&ctx, bytes, sizeof bytes);
    SHA256Final(b, &ctx);
    assert_memory_equal(a, b, sizeof a);
    img.width = 4, img.height = 3; /* the same bytes in another shape */
    sib_image_hash(&img, b);
    assert_memory_not_equal(a, b, sizeof a);
    sib_image_deinit(&img);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_file),
        cmocka_unit_test(bad_files_end_in_an_error),
        cmocka_unit_test(png_of_whole_bytes),
        cmocka_unit_test(png_of_packed_bits),
        cmocka_unit_test(jpeg_inks_become_rgb),
        cmocka_unit_test(first_frame_on_black),
        cmocka_unit_test(every_orientation_in_every_format),
        cmocka_unit_test(orientation_of_odd_sizes),
        cmocka_unit_test(cut_files_never_give_other_pixels),
        cmocka_unit_test(flipped_bits_never_crash),
        cmocka_unit_test(damaged_exif_means_upright),
        cmocka_unit_test(limits_are_checked_and_named),
        cmocka_unit_test(very_many_scans_are_refused),
        cmocka_unit_test(hash_tells_pictures_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

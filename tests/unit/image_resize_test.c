/* tests/unit/image_resize_test.c - the size rule, the resampler and the patches: Pillow's and
 * transformers' answers from the case files, and properties over random sizes. */
#include "image/patches.h"
#include "image/resize.h"
#include "image/size_rule.h"
#include "image_cases.h"

#include <math.h>

static const int budgets[] = {70, 140, 280, 560, 1120};

static sib_size_rule gemma4_rule(int max_soft_tokens)
{
    sib_size_rule rule;
    sib_err err = {0};
    if (sib_size_rule_init(&rule, 16, 3, max_soft_tokens, &err) != SIB_OK) fail_msg("%s", err.message);
    return rule;
}

static sib_image resized(const sib_image *in, int width, int height, sib_resampler how)
{
    sib_image out;
    sib_err err = {0};
    if (sib_resize(&out, in, width, height, how, &err) != SIB_OK) fail_msg("%s", err.message);
    assert_int_equal(out.width, width);
    assert_int_equal(out.height, height);
    return out;
}

static sib_image resized_for(const sib_image *in, int max_soft_tokens, sib_image_size *size)
{
    sib_size_rule rule = gemma4_rule(max_soft_tokens);
    sib_err err = {0};
    if (sib_size_rule_apply(&rule, in->width, in->height, size, &err) != SIB_OK) fail_msg("%s", err.message);
    return resized(in, size->width, size->height, SIB_RESAMPLE_PIL);
}

/* ---- the size rule ------------------------------------------------------------------------ */

static void sizes_of_the_reference(void **state)
{
    (void)state;
    json_t *rows = read_json(case_path("sizes.json")), *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        int h = int_at(row, "height"), w = int_at(row, "width");
        for (size_t b = 0; b < SIB_COUNT(budgets); b++) {
            char key[16];
            (void)snprintf(key, sizeof key, "%d", budgets[b]);
            const json_t *want = json_object_get(row, key);
            sib_size_rule rule = gemma4_rule(budgets[b]);
            sib_image_size got;
            sib_status s = sib_size_rule_apply(&rule, w, h, &got, NULL);
            assert_non_null(want);
            if (json_is_null(want) != (s == SIB_EUNSUPPORTED)) fail_msg("%d x %d, budget %d: status %d", w, h, budgets[b], s);
            if (s != SIB_OK) continue;
            if (got.height != json_integer_value(json_array_get(want, 0)) || got.width != json_integer_value(json_array_get(want, 1)) ||
                got.soft_tokens != json_integer_value(json_array_get(want, 2)))
                fail_msg("%d x %d, budget %d: %d x %d, %d tokens", w, h, budgets[b], got.width, got.height, got.soft_tokens);
        }
    }
    assert_true(json_array_size(rows) >= 465);
    json_decref(rows);
}

static void sizes_at_the_corners(void **state)
{
    (void)state;
    const struct {
        int budget, h, w, th, tw, n;
    } cases[] = {
        {280, 512, 512, 768, 768, 256},   {280, 1080, 1920, 576, 1056, 264}, {280, 3000, 4000, 672, 912, 266},
        {280, 100, 10000, 48, 8016, 167}, {280, 1, 1000, 48, 13440, 280},    {280, 2000, 3, 13440, 48, 280},
        {280, 1, 280, 48, 13440, 280},    {280, 1, 281, 48, 13440, 280},     {280, 2, 601, 48, 13440, 280},
        {280, 300, 1, 13440, 48, 280},    {280, 100, 5000, 96, 5664, 236},   {280, 336, 1920, 336, 1920, 280},
        {70, 512, 512, 384, 384, 64},     {1120, 512, 512, 1584, 1584, 1089}, {1, 48, 48, 48, 48, 1},
        {1, 1, 1, 48, 48, 1},             {1, 5, 100, 48, 48, 1},            {70, 1, 65535, 48, 3360, 70},
    };
    for (size_t i = 0; i < SIB_COUNT(cases); i++) {
        sib_size_rule rule = gemma4_rule(cases[i].budget);
        sib_image_size got = {0};
        assert_int_equal(sib_size_rule_apply(&rule, cases[i].w, cases[i].h, &got, NULL), SIB_OK);
        if (got.height != cases[i].th || got.width != cases[i].tw || got.soft_tokens != cases[i].n)
            fail_msg("%d x %d, budget %d: %d x %d, %d tokens", cases[i].w, cases[i].h, cases[i].budget, got.width, got.height,
                     got.soft_tokens);
    }
}

static void too_small_is_one_error_or_one_tile(void **state)
{
    (void)state;
    sib_size_rule rule = {.patch = 16, .pool = 3, .max_patches = 1};
    sib_image_size got = {0};
    sib_err err = {0};
    assert_int_equal(sib_size_rule_apply(&rule, 10, 12, &got, &err), SIB_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "10 x 12"));
    rule.one_tile = true;
    assert_int_equal(sib_size_rule_apply(&rule, 10, 12, &got, &err), SIB_OK);
    assert_int_equal(got.width, 48);
    assert_int_equal(got.height, 48);
    assert_int_equal(got.soft_tokens, 1);
    assert_int_equal(sib_size_rule_apply(&rule, 10000, 1, &got, &err), SIB_EUNSUPPORTED); /* no soft token fits */

    const int bad[][3] = {{0, 3, 70}, {16, 0, 70}, {16, 3, 0}, {-16, 3, 70}, {16, 3, INT32_MAX}, {1024, 64, 1 << 20}, {5000, 3, 70}};
    for (size_t i = 0; i < SIB_COUNT(bad); i++)
        assert_int_equal(sib_size_rule_init(&rule, bad[i][0], bad[i][1], bad[i][2], &err), SIB_EARG);
    rule = gemma4_rule(70);
    assert_int_equal(sib_size_rule_apply(&rule, 0, 5, &got, &err), SIB_EARG);
    assert_int_equal(sib_size_rule_apply(&rule, 5, -1, &got, &err), SIB_EARG);
    for (int k = 0; k < 4; k++) { /* the largest numbers there are */
        const int w = k & 1 ? INT32_MAX : 1, h = k & 2 ? INT32_MAX : 1;
        rule = (sib_size_rule){.patch = 1, .pool = 1, .max_patches = INT32_MAX};
        assert_int_equal(sib_size_rule_apply(&rule, w, h, &got, &err), SIB_OK);
        assert_true(got.width >= 1 && got.height >= 1 && (int64_t)got.width * got.height <= INT32_MAX);
    }
}

/* Tiles along a side by whole numbers: the largest a with a^2 m^2 other <= pixels * side. */
static int64_t exact_tiles(int64_t pixels, int64_t side, int64_t other, bool *on_edge)
{
    int64_t a = (int64_t)sqrt((double)(pixels * side / (48 * 48 * other)));
    while ((a + 1) * (a + 1) * 48 * 48 * other <= pixels * side) a++;
    while (a * a * 48 * 48 * other > pixels * side) a--;
    *on_edge = a * a * 48 * 48 * other == pixels * side; /* there the rounding of f decides */
    return a;
}

static void random_sizes_follow_the_formula(void **state)
{
    (void)state;
    uint64_t seed = 42;
    for (int k = 0; k < 20000; k++)
        for (size_t b = 0; b < SIB_COUNT(budgets); b++) {
            int limit = k & 1 ? 9000 : 60, w = 1 + (int)(next_random(&seed) % (unsigned)limit);
            int h = 1 + (int)(next_random(&seed) % 9000), s = budgets[b];
            sib_size_rule rule = gemma4_rule(s);
            sib_image_size got = {0};
            sib_err err = {0};
            if (sib_size_rule_apply(&rule, w, h, &got, &err) != SIB_OK) fail_msg("%s", err.message); /* no error from 2 tokens on */
            bool edge_h, edge_w;
            int64_t th = exact_tiles((int64_t)s * 48 * 48, h, w, &edge_h), tw = exact_tiles((int64_t)s * 48 * 48, w, h, &edge_w);
            if (tw == 0) tw = 1, th = h / w < s ? h / w : s;
            if (th == 0) th = 1, tw = w / h < s ? w / h : s;
            int64_t off_h = th - got.height / 48, off_w = tw - got.width / 48;
            bool ok = (off_h == 0 || (off_h == 1 && edge_h)) && (off_w == 0 || (off_w == 1 && edge_w));
            if (!ok || got.width % 48 || got.height % 48 || got.soft_tokens != got.width / 48 * (got.height / 48) ||
                got.soft_tokens < 1 || got.soft_tokens > s)
                fail_msg("%d x %d, budget %d: %d x %d, %d tokens", w, h, s, got.width, got.height, got.soft_tokens);
        }
}

/* ---- resampling ----------------------------------------------------------------------------- */

static void resized_like_pillow(void **state)
{
    (void)state;
    json_t *rows = read_json(case_path("expected.json")), *row;
    size_t i, n = 0, n_bytes = 0;
    json_array_foreach(rows, i, row)
    {
        const json_t *want = json_object_get(row, "resized70");
        if (!want) continue;
        char name[256];
        (void)snprintf(name, sizeof name, "files/%s", str_at(row, "file"));
        sib_image img = decode_file(case_path(name));
        bool decoded = strcmp(sha256(img.rgb, sib_image_bytes(&img)), str_at(row, "sha256")) == 0;
        sib_image_size size;
        sib_image small = resized_for(&img, 70, &size);
        if (!decoded) {
            print_message("%s: another decoder, so no comparison\n", str_at(row, "file"));
            assert_false(json_is_true(json_object_get(row, "exact")));
        } else if (strcmp(sha256(small.rgb, sib_image_bytes(&small)), str_at(want, "sha256")) != 0) {
            uint8_t *bytes = read_gz(case_path(str_at(want, "file")), sib_image_bytes(&small));
            size_t at = 0;
            while (bytes && at < sib_image_bytes(&small) && bytes[at] == small.rgb[at]) at++;
            fail_msg("%s: first other byte at %zu", str_at(row, "file"), at);
        } else {
            n++;
        }
        uint8_t *bytes = decoded ? read_gz(case_path(str_at(want, "file")), sib_image_bytes(&small)) : NULL;
        if (bytes) {
            assert_memory_equal(bytes, small.rgb, sib_image_bytes(&small));
            n_bytes++;
        }
        free(bytes);
        sib_image_deinit(&small);
        sib_image_deinit(&img);
    }
    print_message("%zu resized pictures equal by hash, %zu of them by bytes too\n", n, n_bytes);
    assert_true(n >= 12 && n_bytes >= 5);
    json_decref(rows);
}

/* torch 2.6.0 on a CPU: interpolate(uint8, mode="bicubic", antialias=True) to the size of
 * budget 70. */
static void resized_like_torchvision(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"noise-37x29.png", "7f60006864636f86cd3751880cefd90efed16222edfcffdeb1cb702ae3e105bc"},
        {"noise-120x90.png", "996c172576855c2e0cd19298a06083f6b5a48f3dfe35bcdb4f5adf64633aa975"},
        {"size-301x199.png", "8e01f07a8de71e0180419ce4a80b0370fafc6fe3ea7fc0853b5a51837cd1f99f"},
        {"size-3x90.png", "e5bde6a49a1f14fcf82a85fe3b824bb2c4b6e643155a14d2fd2c5d26d69b8281"},
        {"size-800x2.png", "89d0e70d7dd05e1c5a3d0cf7e5b46d2c7d99bccf6aba312a8ceb1738c739850e"},
        {"png-palette8.png", "191c1b7052d7150a3442980e237f48470cc7a9e1cc316c58946f3bf4739181b0"},
        {"webp-lossless.webp", "557ab466ce442739a0658f2ae78a8e133c44337b50085927709c427ef8432d68"},
    };
    const sib_size_rule rule = gemma4_rule(70);
    for (size_t i = 0; i < SIB_COUNT(cases); i++) {
        char name[256];
        (void)snprintf(name, sizeof name, "files/%s", cases[i][0]);
        sib_image img = decode_file(case_path(name));
        sib_image_size size;
        assert_int_equal(sib_size_rule_apply(&rule, img.width, img.height, &size, NULL), SIB_OK);
        sib_image small = resized(&img, size.width, size.height, SIB_RESAMPLE_TORCHVISION);
        if (strcmp(sha256(small.rgb, sib_image_bytes(&small)), cases[i][1]) != 0) fail_msg("%s: other pixels", cases[i][0]);
        sib_image_deinit(&small);
        sib_image_deinit(&img);
    }
}

static void demo_pictures_like_pillow(void **state)
{
    (void)state;
    sib_buf file = read_bytes("demo/pictures/captions.jsonl");
    size_t n = 0;
    for (char *line = file.p, *end; line < file.p + file.n; line = end + 1) {
        end = strchr(line, '\n');
        assert_non_null(end);
        json_t *row = NULL;
        assert_int_equal(sib_json_parse(&row, (sib_str){line, (size_t)(end - line)}, "captions.jsonl", NULL), SIB_OK);
        char name[256];
        (void)snprintf(name, sizeof name, "demo/pictures/%s", str_at(row, "file"));
        sib_image img = decode_file(name);
        sib_image_size size;
        sib_image small = resized_for(&img, 70, &size);
        const json_t *want = json_object_get(row, "resized");
        assert_int_equal(size.width, json_integer_value(json_array_get(want, 0)));
        assert_int_equal(size.height, json_integer_value(json_array_get(want, 1)));
        assert_int_equal(size.soft_tokens, int_at(row, "soft_tokens"));
        const char *hash = str_at(row, "resized_rgb_sha256");
        if (hash && strcmp(hash, sha256(small.rgb, sib_image_bytes(&small))) != 0) fail_msg("%s: other pixels", name);
        n += hash != NULL;
        sib_image_deinit(&small);
        sib_image_deinit(&img);
        json_decref(row);
    }
    assert_true(n >= 27);
    print_message("%zu demo pictures equal by hash\n", n);
    sib_buf_deinit(&file);
}

/* The definition in double, one channel, rounded once per pass, for small pictures. */
static double keys(double x)
{
    x = fabs(x);
    return x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

static void resample_line(uint8_t *dst, const uint8_t *src, int in, int out, int step)
{
    double scale = (double)in / out, fs = scale > 1 ? scale : 1;
    for (int i = 0; i < out; i++) {
        double c = (i + 0.5) * scale, sum = 0, weights = 0;
        for (int j = 0; j < in; j++) {
            double w = fabs(j + 0.5 - c) < 2 * fs ? keys((j + 0.5 - c) / fs) : 0;
            sum += w * src[j * step];
            weights += w;
        }
        double v = floor(sum / weights + 0.5);
        dst[i * step] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
    }
}

static void random_pictures_like_the_definition(void **state)
{
    (void)state;
    uint64_t seed = 5;
    size_t n_bytes = 0, n_off[2] = {0};
    for (int k = 0; k < 300; k++) {
        int d[4];
        for (int i = 0; i < 4; i++) {
            const unsigned limit = next_random(&seed) % 4 ? 40 : 200;
            d[i] = 1 + (int)(next_random(&seed) % limit);
        }
        sib_image in, want, wide;
        assert_int_equal(sib_image_alloc(&in, d[0], d[1], NULL), SIB_OK);
        assert_int_equal(sib_image_alloc(&wide, d[2], d[1], NULL), SIB_OK);
        assert_int_equal(sib_image_alloc(&want, d[2], d[3], NULL), SIB_OK);
        const bool extreme = k & 1; /* only 0 and 255: overshoot, and the largest sums */
        for (size_t i = 0; i < sib_image_bytes(&in); i++) {
            uint64_t v = next_random(&seed);
            in.rgb[i] = extreme ? (v >> 40 & 1 ? 255 : 0) : (uint8_t)(v >> 40);
        }
        for (int c = 0; c < 3; c++) {
            for (int y = 0; y < d[1]; y++) resample_line(wide.rgb + y * d[2] * 3 + c, in.rgb + y * d[0] * 3 + c, d[0], d[2], 3);
            for (int x = 0; x < d[2]; x++) resample_line(want.rgb + x * 3 + c, wide.rgb + x * 3 + c, d[1], d[3], d[2] * 3);
        }
        for (int how = 0; how < 2; how++) {
            sib_image got = resized(&in, d[2], d[3], how ? SIB_RESAMPLE_TORCHVISION : SIB_RESAMPLE_PIL);
            for (size_t i = 0; i < sib_image_bytes(&want); i++) {
                int diff = abs(want.rgb[i] - got.rgb[i]);
                n_off[how] += diff != 0;
                if (diff > 2) fail_msg("%d x %d to %d x %d, variant %d: byte %zu is off by %d", d[0], d[1], d[2], d[3], how, i, diff);
            }
            sib_image_deinit(&got);
        }
        n_bytes += sib_image_bytes(&want);
        sib_image_deinit(&in);
        sib_image_deinit(&wide);
        sib_image_deinit(&want);
    }
    /* Fixed point of 22 bits rounds like the real numbers nearly always, 14 bits nearly so. */
    print_message("of %zu bytes %zu (22 bits) and %zu (int16) are not the definition's\n", n_bytes, n_off[0], n_off[1]);
    assert_true(n_off[0] * 1000 < n_bytes && n_off[1] * 20 < n_bytes);
}

static void flat_pictures_stay_flat(void **state)
{
    (void)state;
    const int sizes[][4] = {{1, 1, 768, 768}, {65535, 1, 48, 48}, {1, 65535, 48, 13440}, {3, 5, 3, 50}, {300, 7, 60, 7}, {9, 9, 9, 9}};
    for (size_t k = 0; k < SIB_COUNT(sizes); k++)
        for (int value = 0; value < 256; value += 51) {
            sib_image in;
            assert_int_equal(sib_image_alloc(&in, sizes[k][0], sizes[k][1], NULL), SIB_OK);
            memset(in.rgb, value, sib_image_bytes(&in));
            sib_image out = resized(&in, sizes[k][2], sizes[k][3], SIB_RESAMPLE_PIL);
            for (size_t i = 0; i < sib_image_bytes(&out); i++)
                if (out.rgb[i] != value) fail_msg("%d became %d", value, out.rgb[i]);
            sib_image_deinit(&out);
            sib_image_deinit(&in);
        }
    sib_image one, out;
    sib_err err = {0};
    assert_int_equal(sib_image_alloc(&one, 1, 1, NULL), SIB_OK);
    assert_int_equal(sib_resize(&out, &one, 0, 5, SIB_RESAMPLE_PIL, &err), SIB_EARG);
    assert_int_equal(sib_resize(&out, &one, 5, 1 << 21, SIB_RESAMPLE_PIL, &err), SIB_EARG);
    assert_null(out.rgb);
    sib_image_deinit(&one);
}

/* ---- patches ---------------------------------------------------------------------------------- */

static void patches_in_raster_order(void **state)
{
    (void)state;
    const int sides[] = {16, 48};
    for (size_t k = 0; k < SIB_COUNT(sides); k++) {
        const int p = sides[k], w = 144, h = 96;
        sib_image img;
        assert_int_equal(sib_image_alloc(&img, w, h, NULL), SIB_OK);
        uint64_t seed = 1;
        for (size_t i = 0; i < sib_image_bytes(&img); i++) img.rgb[i] = (uint8_t)(next_random(&seed) >> 30);
        const int n = sib_patch_count(&img, p);
        assert_int_equal(n, w / p * (h / p));
        float *values = malloc((size_t)(w * h * 3) * sizeof *values);
        sib_patch_pos *at = malloc((size_t)n * sizeof *at);
        assert_true(values && at);
        for (sib_rescale r = SIB_RESCALE_DOUBLE; r <= SIB_RESCALE_FLOAT; r++) {
            assert_int_equal(sib_patches(&img, p, r, values, at, NULL), SIB_OK);
            for (int y = 0; y < h; y++)
                for (int x = 0; x < w; x++)
                    for (int c = 0; c < 3; c++) {
                        int patch = y / p * (w / p) + x / p, byte = img.rgb[(y * w + x) * 3 + c];
                        float got = values[patch * p * p * 3 + ((y % p) * p + x % p) * 3 + c];
                        assert_true(at[patch].x == x / p && at[patch].y == y / p);
                        float want = r == SIB_RESCALE_DOUBLE ? (float)(byte * 0.00392156862745098) : (float)byte * 0.003921569f;
                        if (got != want) fail_msg("%d became %.9g, not %.9g", byte, (double)got, (double)want);
                    }
        }
        free(values);
        free(at);
        sib_image_deinit(&img);
    }
    sib_image img;
    sib_err err = {0};
    assert_int_equal(sib_image_alloc(&img, 48, 40, NULL), SIB_OK);
    assert_int_equal(sib_patch_count(&img, 16), 0);
    assert_int_equal(sib_patches(&img, 16, SIB_RESCALE_DOUBLE, NULL, NULL, &err), SIB_EARG);
    assert_non_null(strstr(err.message, "48 x 40"));
    assert_int_equal(sib_patches(&img, 0, SIB_RESCALE_DOUBLE, NULL, NULL, &err), SIB_EARG);
    sib_image_deinit(&img);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_of_the_reference),
        cmocka_unit_test(sizes_at_the_corners),
        cmocka_unit_test(too_small_is_one_error_or_one_tile),
        cmocka_unit_test(random_sizes_follow_the_formula),
        cmocka_unit_test(resized_like_pillow),
        cmocka_unit_test(resized_like_torchvision),
        cmocka_unit_test(demo_pictures_like_pillow),
        cmocka_unit_test(random_pictures_like_the_definition),
        cmocka_unit_test(flat_pictures_stay_flat),
        cmocka_unit_test(patches_in_raster_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

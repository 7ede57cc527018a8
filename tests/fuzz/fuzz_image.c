/* tests/fuzz/fuzz_image.c - libFuzzer target over everything that turns untrusted bytes into
 * patches: decode, orientation, size rule, resize, patches. Seeds: tests/cases/images/files.
 *
 *   clang-14 -std=c17 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined -Iinclude -Isrc \
 *       $(pkg-config --cflags libpng libmd) tests/fuzz/fuzz_image.c src/image/[a-z]*.c \
 *       src/base/{status,str,log}.c -ljpeg -lpng -lwebpdemux -lwebp -lmd -lm
 *   ./a.out -max_total_time=120 -rss_limit_mb=1000 CORPUS tests/cases/images/files */
#include "image/data_url.h"
#include "image/image.h"
#include "image/patches.h"
#include "image/resize.h"
#include "image/size_rule.h"

#include <assert.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Small pictures: the paths are the same and the rounds many. */
static const sib_image_limits limits = {.max_pixels = 1 << 16, .max_side = 4096, .max_bytes = 1 << 20};

static void cut_into_patches(const sib_image *img)
{
    sib_size_rule rule;
    sib_image_size size;
    sib_image resized;
    if (sib_size_rule_init(&rule, 16, 3, 2, NULL) != SIB_OK) abort();
    if (sib_size_rule_apply(&rule, img->width, img->height, &size, NULL) != SIB_OK) abort();
    if (sib_resize(&resized, img, size.width, size.height, SIB_RESAMPLE_PIL, NULL) != SIB_OK) return;
    float values[2 * 48 * 48 * 3];
    assert(size.soft_tokens <= 2);
    if (sib_patches(&resized, 16, SIB_RESCALE_DOUBLE, values, NULL, NULL) != SIB_OK) abort();
    sib_image_deinit(&resized);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    sib_image img;
    sib_err err;
    if (sib_image_decode(&img, data, n, "fuzz", &limits, &err) == SIB_OK) {
        assert((int64_t)img.width * img.height <= limits.max_pixels);
        uint8_t hash[SIB_IMAGE_HASH_BYTES];
        sib_image_hash(&img, hash); /* reads every pixel */
        cut_into_patches(&img);
    } else {
        assert(!img.rgb && err.message[0]);
    }
    sib_image_deinit(&img);

    sib_buf bytes = {0};
    sib_status s = sib_data_url_decode(&bytes, (sib_str){(const char *)data, n}, n / 2, NULL);
    assert(s == SIB_OK ? bytes.n <= n / 2 : bytes.n == 0);
    sib_buf_deinit(&bytes);
    return 0;
}

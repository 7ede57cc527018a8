/* tests/unit/fuzz_regressions_test.c - runs every file of tests/fuzz/corpus/NAME through the target of tests/fuzz/fuzz_NAME.c,
 * without a fuzzer: seeds, and inputs that once crashed. A target aborts when a promise is broken. The Makefile compiles
 * each target with its entry point named after it. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/str.h"

typedef int target(const uint8_t *data, size_t n);

#define TARGETS(X) X(chat) X(checkpoint) X(data_url) X(exif) X(image) X(json) X(safetensors) X(template) X(tokenizer)

#define DECLARE(name) target fuzz_##name;
TARGETS(DECLARE)

static int run_folder(target *f, const char *name)
{
    char folder[128];
    int n = 0;
    (void)snprintf(folder, sizeof folder, "tests/fuzz/corpus/%s", name);
    DIR *d = opendir(folder);
    if (!d) return 0;
    for (const struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        sib_buf bytes = {0};
        char *path = sib_path_join(folder, e->d_name);
        assert_non_null(path);
        assert_int_equal(sib_read_file(path, 1 << 20, &bytes, NULL), SIB_OK);
        /* In a block of exactly this size, where a sanitizer sees a read beyond the end. */
        uint8_t *exact = malloc(bytes.n ? bytes.n : 1);
        assert_non_null(exact);
        if (bytes.n) memcpy(exact, bytes.p, bytes.n);
        assert_int_equal(f(exact, bytes.n), 0);
        free(exact);
        free(path);
        sib_buf_deinit(&bytes);
        n++;
    }
    (void)closedir(d);
    return n;
}

#define TEST(name)                                            \
    static void corpus_of_##name(void **state)                \
    {                                                         \
        (void)state;                                          \
        assert_true(run_folder(fuzz_##name, #name) > 0);      \
    }
TARGETS(TEST)

int main(void)
{
#define ENTRY(name) cmocka_unit_test(corpus_of_##name),
    const struct CMUnitTest tests[] = {TARGETS(ENTRY)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

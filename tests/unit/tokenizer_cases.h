/* tests/unit/tokenizer_cases.h - reads the tokenizer cases for tokenizer_test.c and detokenizer_test.c.
 *
 * The files are those of tests/cases/tokenizers (SIBYL_CASES names another folder with the
 * same layout), stored plain or as .gz; what they hold is told in its README. */
#ifndef SIB_TESTS_TOKENIZER_CASES_H
#define SIB_TESTS_TOKENIZER_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/utf8.h"
#include "text/tokenizer.h"

static inline sib_str case_str(const json_t *v)
{
    assert_true(json_is_string(v));
    return (sib_str){json_string_value(v), json_string_length(v)};
}

/* The bytes of FOLDER/name or FOLDER/name.gz. */
static inline sib_buf case_bytes(const char *name)
{
    const char *root = getenv("SIBYL_CASES");
    char path[1024];
    sib_buf out = {0};
    (void)snprintf(path, sizeof path, "%s/tokenizers/%s.gz", root ? root : "tests/cases", name);
    gzFile f = gzopen(path, "rb");
    if (!f) {
        path[strlen(path) - 3] = 0;
        f = gzopen(path, "rb");
    }
    if (!f) fail_msg("%s is missing", path);
    for (;;) {
        assert_true(sib_buf_reserve(&out, 1 << 16));
        int n = gzread(f, out.p + out.n, 1 << 16);
        assert_true(n >= 0);
        if (n == 0) break;
        out.n += (size_t)n;
    }
    gzclose(f);
    out.p[out.n] = 0;
    return out;
}

static inline json_t *case_json(const char *name)
{
    sib_buf text = case_bytes(name);
    json_error_t e;
    json_t *v = json_loadb(text.p, text.n, JSON_ALLOW_NUL, &e);
    if (!v) fail_msg("%s: line %d: %s", name, e.line, e.text);
    sib_buf_deinit(&text);
    return v;
}

/* A tokenizer of the `small` folder. */
static inline sib_tokenizer *case_tokenizer(const char *name, sib_err *err)
{
    char file[256];
    sib_tokenizer *t = NULL;
    (void)snprintf(file, sizeof file, "small/tokenizer-%s.json", name);
    sib_buf text = case_bytes(file);
    (void)sib_tokenizer_parse(&t, sib_buf_view(&text), file, (sib_str){0}, err);
    sib_buf_deinit(&text);
    return t;
}

static const char *const case_small[] = {
    "bytes-qwen3", "bytes-qwen3.5",     "bytes-glm",           "bytes-o200k",       "bytes-deepseek",
    "bytes-gpt2",  "bytes-gpt2-prefix", "bytes-ignore-merges", "bytes-keep-merges", "gemma",
    "llama2",      "metaspace-always",  "metaspace-first",     "metaspace-never",   "unk-fused",
    "unk-single",  "unk-none",          "bytes-some-missing",  "added-flags",       "added-no-normalizer",
    "merge-order", "minimal",           "minimal-untyped",     "post-sequence",
};

static inline void case_ids(const json_t *list, sib_ids *out)
{
    size_t i;
    const json_t *v;
    assert_true(json_is_array(list));
    out->n = 0;
    json_array_foreach(list, i, v) sib_ids_add(out, (int32_t)json_integer_value(v));
    assert_false(out->failed);
}

static inline void case_expect_text(const char *where, size_t row, sib_str got, sib_str want)
{
    if (!sib_str_eq(got, want))
        fail_msg("%s row %zu: got \"%.*s\", expected \"%.*s\"", where, row, (int)got.n, got.p, (int)want.n, want.p);
}

/* The real tokenizers of fetch.sh, one call for each. SIBYL_TOKENIZERS names a cache that
 * fetch.sh has filled; SIBYL_NETWORK=1 lets it fill one. False when there is neither. */
static inline bool case_real(void (*each)(const char *name, const char *path))
{
    const char *cache = getenv("SIBYL_TOKENIZERS"), *network = getenv("SIBYL_NETWORK"), *root = getenv("SIBYL_CASES");
    char command[2048], name[256], path[1024];
    if (!cache && !(network && strcmp(network, "1") == 0)) return false;
    (void)snprintf(command, sizeof command, "'%s/tokenizers/fetch.sh' '%s'", root ? root : "tests/cases",
                   cache ? cache : "build/tokenizers");
    FILE *list = popen(command, "r");
    assert_non_null(list);
    int n = 0;
    while (fscanf(list, "%255s %1023[^\n]", name, path) == 2) {
        each(name, path);
        n++;
    }
    assert_int_equal(pclose(list), 0);
    assert_int_equal(n, 5);
    return true;
}

#endif

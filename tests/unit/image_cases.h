/* tests/unit/image_cases.h - what the picture tests share: the case folder, hashes, gzip files. */
#ifndef IMAGE_CASES_H
#define IMAGE_CASES_H

#include "base/json.h"
#include "image/image.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sha2.h>
#include <zlib.h>

/* "DIR/images/NAME" below SIBYL_CASES or tests/cases; one static buffer. */
static inline const char *case_path(const char *name)
{
    static char path[512];
    const char *dir = getenv("SIBYL_CASES");
    (void)snprintf(path, sizeof path, "%s/images/%s", dir ? dir : "tests/cases", name);
    return path;
}

static inline json_t *read_json(const char *path)
{
    sib_err err = {0};
    json_t *j = NULL;
    if (sib_json_read(&j, path, (size_t)8 << 20, &err) != SIB_OK) fail_msg("%s", err.message);
    return j;
}

static inline sib_buf read_bytes(const char *path)
{
    sib_err err = {0};
    sib_buf b = {0};
    if (sib_read_file(path, (size_t)64 << 20, &b, &err) != SIB_OK) fail_msg("%s", err.message);
    return b;
}

/* Unpacks a gzip file of exactly n bytes; NULL when there is no such file. */
static inline uint8_t *read_gz(const char *path, size_t n)
{
    gzFile f = gzopen(path, "rb");
    if (!f) return NULL;
    uint8_t *p = malloc(n + 1);
    assert_non_null(p);
    int got = gzread(f, p, (unsigned)(n + 1));
    gzclose(f);
    if (got != (int)n) fail_msg("%s holds %d bytes, not %zu", path, got, n);
    return p;
}

static inline const char *sha256(const void *p, size_t n)
{
    static char hex[SHA256_DIGEST_STRING_LENGTH];
    return SHA256Data(p, n, hex);
}

static inline const char *str_at(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static inline int int_at(const json_t *o, const char *key)
{
    return (int)json_integer_value(json_object_get(o, key));
}

static inline sib_image decode_file(const char *path)
{
    sib_err err = {0};
    sib_image img;
    if (sib_image_read(&img, path, NULL, &err) != SIB_OK) fail_msg("%s", err.message);
    return img;
}

/* Reproducible numbers for the tests (xorshift64*). */
static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

#endif

/* tests/fuzz/fuzz_parts.h - inputs of several files: their parts are separated by the byte 0x1E, which stands in
 * no valid JSON and no sensible text. Used by the targets in this folder. */
#ifndef FUZZ_PARTS_H
#define FUZZ_PARTS_H

#include "base/str.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Fills all parts; those that the input lacks are empty, the last one keeps further separators. */
static inline void fuzz_split(const uint8_t *data, size_t n, sib_str *parts, size_t n_parts)
{
    const char *p = n ? (const char *)data : "";
    for (size_t i = 0; i < n_parts; i++) {
        const char *cut = i + 1 < n_parts ? memchr(p, 0x1E, n) : NULL;
        size_t len = cut ? (size_t)(cut - p) : n;
        parts[i] = (sib_str){p, len};
        p += cut ? len + 1 : len;
        n -= cut ? len + 1 : len;
    }
}

#endif

/* base/utf8.h - UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, at most U+10FFFF. */
#ifndef SIB_BASE_UTF8_H
#define SIB_BASE_UTF8_H

#include "base/str.h"

#define SIB_UTF8_BAD 0xFFFFFFFFu

/* Decodes one scalar from p[0..n), n >= 1. Returns it and stores its length (1..4); a
 * malformed or cut sequence gives SIB_UTF8_BAD and the length of its longest valid prefix
 * (at least 1), so that a reader makes progress as Unicode section 3.9 recommends. */
uint32_t sib_utf8_next(const char *p, size_t n, size_t *len);

/* Writes 1..4 bytes to out and returns their number; cp must be a scalar value. */
size_t sib_utf8_put(uint32_t cp, char out[4]);

bool sib_utf8_valid(sib_str s);

/* Length of the longest prefix of s that ends at a character border: what may be printed
 * now when more bytes follow. Malformed bytes count as complete, only a sequence that later
 * bytes could still complete is held back (at most 3 bytes). */
size_t sib_utf8_complete(sib_str s);

/* Number of scalars in a valid string. */
size_t sib_utf8_count(sib_str s);

#endif

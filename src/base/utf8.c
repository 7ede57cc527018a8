/* base/utf8.c - see utf8.h. */
#include "base/utf8.h"

uint32_t sib_utf8_next(const char *p, size_t n, size_t *len)
{
    const unsigned char *u = (const unsigned char *)p;
    *len = 1;
    if (u[0] < 0x80) return u[0];
    int need;
    uint32_t cp;
    unsigned lo = 0x80, hi = 0xBF; /* allowed range of the second byte */
    if (u[0] >= 0xC2 && u[0] <= 0xDF) {
        need = 1;
        cp = u[0] & 0x1Fu;
    } else if (u[0] >= 0xE0 && u[0] <= 0xEF) {
        need = 2;
        cp = u[0] & 0x0Fu;
        if (u[0] == 0xE0) lo = 0xA0;
        if (u[0] == 0xED) hi = 0x9F;
    } else if (u[0] >= 0xF0 && u[0] <= 0xF4) {
        need = 3;
        cp = u[0] & 0x07u;
        if (u[0] == 0xF0) lo = 0x90;
        if (u[0] == 0xF4) hi = 0x8F;
    } else {
        return SIB_UTF8_BAD;
    }
    for (int i = 1; i <= need; i++) {
        if ((size_t)i >= n || u[i] < lo || u[i] > hi) return SIB_UTF8_BAD;
        cp = cp << 6 | (u[i] & 0x3Fu);
        lo = 0x80;
        hi = 0xBF;
        *len = (size_t)i + 1;
    }
    return cp;
}

size_t sib_utf8_put(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

bool sib_utf8_valid(sib_str s)
{
    for (size_t i = 0, len; i < s.n; i += len)
        if (sib_utf8_next(s.p + i, s.n - i, &len) == SIB_UTF8_BAD) return false;
    return true;
}

size_t sib_utf8_complete(sib_str s)
{
    for (size_t back = 1; back <= 3 && back <= s.n; back++) {
        unsigned char c = (unsigned char)s.p[s.n - back];
        if ((c & 0xC0) == 0x80) continue; /* a continuation byte: look further left */
        size_t want = c >= 0xF0 && c <= 0xF4 ? 4 : c >= 0xE0 && c <= 0xEF ? 3 : c >= 0xC2 && c <= 0xDF ? 2 : 1, len;
        if (want > back && sib_utf8_next(s.p + s.n - back, back, &len) == SIB_UTF8_BAD && len == back) return s.n - back;
        break;
    }
    return s.n;
}

size_t sib_utf8_count(sib_str s)
{
    size_t count = 0;
    for (size_t i = 0; i < s.n; i++) count += ((unsigned char)s.p[i] & 0xC0) != 0x80;
    return count;
}

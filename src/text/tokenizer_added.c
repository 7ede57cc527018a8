/* text/tokenizer_added.c - see tokenizer_added.h. */
#include "text/tokenizer_added.h"

#include "base/utf8.h"
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>

void sib_added_deinit(sib_added *a)
{
    for (size_t i = 0; i < a->n; i++) free(a->v[i].content);
    free(a->v);
    *a = (sib_added){0};
}

sib_status sib_added_add(sib_added *a, sib_str content, sib_added_token flags, sib_err *err)
{
    if (content.n > SIB_ADDED_MAX_BYTES)
        return sib_fail(err, SIB_EUNSUPPORTED, "added token %d is longer than %d bytes", flags.id, SIB_ADDED_MAX_BYTES);
    if (a->n == a->cap) {
        size_t cap = a->cap ? 2 * a->cap : 64;
        sib_added_token *v = realloc(a->v, cap * sizeof *v);
        if (!v) return sib_nomem(err, "added tokens");
        a->v = v;
        a->cap = cap;
    }
    flags.content = malloc(content.n);
    if (!flags.content) return sib_nomem(err, "added tokens");
    memcpy(flags.content, content.p, content.n);
    flags.n = content.n;
    a->v[a->n++] = flags;
    return SIB_OK;
}

static int by_content(const void *pa, const void *pb)
{
    const sib_added_token *a = pa, *b = pb;
    int c = memcmp(a->content, b->content, a->n < b->n ? a->n : b->n);
    if (c) return c;
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

void sib_added_seal(sib_added *a)
{
    if (a->n) qsort(a->v, a->n, sizeof *a->v, by_content);
    size_t i = 0;
    for (unsigned c = 0; c < 256; c++) {
        a->first[c] = (uint32_t)i;
        while (i < a->n && (unsigned char)a->v[i].content[0] == c) i++;
    }
    a->first[256] = (uint32_t)i;
}

const sib_added_token *sib_added_exact(const sib_added *a, sib_str content)
{
    size_t lo = 0, hi = a->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const sib_added_token *m = &a->v[mid];
        int c = memcmp(m->content, content.p, m->n < content.n ? m->n : content.n);
        if (c == 0 && m->n == content.n) return m;
        if (c < 0 || (c == 0 && m->n < content.n))
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

/* First index in [lo, hi) whose byte at `depth` is at least c; all are longer than depth. */
static size_t lower(const sib_added *a, size_t lo, size_t hi, size_t depth, unsigned c)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((unsigned char)a->v[mid].content[depth] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The longest token at text[at..]; special ones have at most `special` bytes. */
static const sib_added_token *longest(const sib_added *a, sib_str text, size_t at, size_t special)
{
    const sib_added_token *best = NULL;
    unsigned c = (unsigned char)text.p[at];
    size_t lo = a->first[c], hi = a->first[c + 1];
    for (size_t depth = 1; lo < hi; depth++) {
        for (bool taken = false; lo < hi && a->v[lo].n == depth; lo++) {
            if (taken || (a->v[lo].special && depth > special)) continue;
            best = &a->v[lo];
            taken = true;
        }
        if (at + depth >= text.n) break;
        c = (unsigned char)text.p[at + depth];
        lo = lower(a, lo, hi, depth, c);
        hi = lower(a, lo, hi, depth, c + 1);
    }
    return best;
}

static bool word_before(sib_str t, size_t at)
{
    size_t i = at, len;
    if (at == 0) return false;
    do i--;
    while (i > 0 && ((unsigned char)t.p[i] & 0xC0) == 0x80);
    return sib_unicode_is_word(sib_utf8_next(t.p + i, at - i, &len));
}

static bool word_after(sib_str t, size_t at)
{
    size_t len;
    return at < t.n && sib_unicode_is_word(sib_utf8_next(t.p + at, t.n - at, &len));
}

static size_t spaces_before(sib_str t, size_t at, size_t stop)
{
    if (at < stop) return stop;
    while (at > stop) {
        size_t i = at, len;
        do i--;
        while (i > stop && ((unsigned char)t.p[i] & 0xC0) == 0x80);
        if (!(sib_unicode_bits(sib_utf8_next(t.p + i, at - i, &len)) & SIB_U_WS)) break;
        at = i;
    }
    return at;
}

static size_t spaces_after(sib_added_walk *w, size_t at)
{
    sib_str t = w->text;
    if (at >= w->space && at < w->space_end) return w->space_end;
    w->space = at;
    for (size_t len; at < t.n && (sib_unicode_bits(sib_utf8_next(t.p + at, t.n - at, &len)) & SIB_U_WS);) at += len;
    return w->space_end = at;
}

/* Bytes from here to the next plain span; 0 inside of one. */
static size_t until_plain(sib_added_walk *w)
{
    while (w->n_plain && w->plain->at + w->plain->n <= w->from) w->plain++, w->n_plain--;
    return w->n_plain == 0 ? SIZE_MAX : w->plain->at > w->from ? w->plain->at - w->from : 0;
}

const sib_added_token *sib_added_next(const sib_added *a, sib_added_walk *w, size_t *start, size_t *end)
{
    if (a->n == 0) return NULL;
    while (w->from < w->text.n) {
        const sib_added_token *hit = longest(a, w->text, w->from, until_plain(w));
        if (!hit) {
            w->from++;
            continue;
        }
        *start = w->from;
        *end = w->from += hit->n;
        if (hit->single_word && (word_before(w->text, *start) || word_after(w->text, *end))) continue;
        if (hit->lstrip) *start = spaces_before(w->text, *start, w->done);
        if (hit->rstrip) *end = spaces_after(w, *end);
        w->done = *end;
        return hit;
    }
    return NULL;
}

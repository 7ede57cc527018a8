/* sample/stop.c - see stop.h.
 *
 * One Knuth-Morris-Pratt automaton per string: `matched` bytes of it are the end of the text so
 * far. What must be held back is the longest of these, and it is never more than was held
 * before plus the new bytes. */
#include "sample/stop.h"

#include <stdlib.h>
#include <string.h>

struct pattern {
    char *text;     /* [n], owned */
    size_t n;       /* 0: never matches */
    uint16_t *fail; /* [n] fail[i]: length of the longest proper border of text[0..i] */
    size_t matched;
};

struct sib_stop {
    size_t n;
    int hit;
    uint64_t released; /* bytes given out */
    char *held;        /* [longest string] */
    size_t n_held;
    struct pattern pattern[]; /* [n] */
};

static bool pattern_init(struct pattern *p, sib_str s)
{
    p->n = s.n;
    if (s.n == 0) return true;
    p->text = malloc(s.n);
    p->fail = calloc(s.n, sizeof *p->fail);
    if (!p->text || !p->fail) return false;
    memcpy(p->text, s.p, s.n);
    for (size_t i = 1, k = 0; i < s.n; i++) {
        while (k > 0 && s.p[i] != s.p[k]) k = p->fail[k - 1];
        if (s.p[i] == s.p[k]) k++;
        p->fail[i] = (uint16_t)k;
    }
    return true;
}

static void pattern_step(struct pattern *p, char c)
{
    if (p->n == 0) return;
    while (p->matched > 0 && p->text[p->matched] != c) p->matched = p->fail[p->matched - 1];
    if (p->text[p->matched] == c) p->matched++;
}

sib_status sib_stop_new(sib_stop **out, const sib_str *strings, size_t n, sib_err *err)
{
    size_t longest = 1;
    *out = NULL;
    if (n > SIB_MAX_STOPS) return sib_fail(err, SIB_EARG, "%zu stop strings, allowed are up to %d", n, SIB_MAX_STOPS);
    for (size_t i = 0; i < n; i++) {
        if (strings[i].n > SIB_MAX_STOP_BYTES)
            return sib_fail(err, SIB_EARG, "stop string %zu has %zu bytes, allowed are up to %d", i + 1, strings[i].n, SIB_MAX_STOP_BYTES);
        if (strings[i].n > longest) longest = strings[i].n;
    }
    sib_stop *m = calloc(1, sizeof *m + n * sizeof m->pattern[0]);
    if (!m) return sib_nomem(err, "stop strings");
    m->n = n;
    m->hit = -1;
    bool ok = (m->held = malloc(longest)) != NULL;
    for (size_t i = 0; i < n && ok; i++) ok = pattern_init(&m->pattern[i], strings[i]);
    if (!ok) {
        sib_stop_free(m);
        return sib_nomem(err, "stop strings");
    }
    *out = m;
    return SIB_OK;
}

void sib_stop_free(sib_stop *m)
{
    if (!m) return;
    for (size_t i = 0; i < m->n; i++) {
        free(m->pattern[i].text);
        free(m->pattern[i].fail);
    }
    free(m->held);
    free(m);
}

/* Releases the first n bytes of held text followed by `text`. */
static void release(sib_stop *m, sib_str text, size_t n, sib_buf *out)
{
    size_t old = n < m->n_held ? n : m->n_held;
    sib_buf_add(out, m->held, old);
    sib_buf_add(out, text.p, n - old);
    m->released += n;
}

sib_status sib_stop_feed(sib_stop *m, sib_str text, sib_buf *out, sib_err *err)
{
    if (m->hit >= 0 || text.n == 0) return SIB_OK;
    size_t hold = 0;
    for (size_t i = 0; i < text.n; i++) {
        size_t complete = 0; /* longest string that ends here: it began first */
        hold = 0;
        for (size_t j = 0; j < m->n; j++) {
            struct pattern *p = &m->pattern[j];
            pattern_step(p, text.p[i]);
            if (p->n && p->matched == p->n && p->n > complete) {
                complete = p->n;
                m->hit = (int)j;
            }
            if (p->matched > hold) hold = p->matched;
        }
        if (m->hit >= 0) {
            release(m, text, m->n_held + i + 1 - complete, out);
            m->n_held = 0;
            return out->failed ? sib_nomem(err, "text") : SIB_OK;
        }
    }
    size_t all = m->n_held + text.n, n = all - hold;
    release(m, text, n, out);
    if (n < m->n_held) { /* some held bytes stay: all of the new ones do too */
        memmove(m->held, m->held + n, m->n_held - n);
        memcpy(m->held + (m->n_held - n), text.p, text.n);
    } else {
        memcpy(m->held, text.p + (text.n - hold), hold);
    }
    m->n_held = hold;
    return out->failed ? sib_nomem(err, "text") : SIB_OK;
}

sib_status sib_stop_flush(sib_stop *m, sib_buf *out, sib_err *err)
{
    release(m, SIB_STR(""), m->n_held, out);
    m->n_held = 0;
    for (size_t i = 0; i < m->n; i++) m->pattern[i].matched = 0;
    return out->failed ? sib_nomem(err, "text") : SIB_OK;
}

int sib_stop_hit(const sib_stop *m)
{
    return m->hit;
}

uint64_t sib_stop_cut(const sib_stop *m)
{
    return m->released;
}

void sib_stop_reset(sib_stop *m)
{
    m->hit = -1;
    m->released = 0;
    m->n_held = 0;
    for (size_t i = 0; i < m->n; i++) m->pattern[i].matched = 0;
}

static int ascending(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

sib_status sib_id_set_init(sib_id_set *set, const int32_t *ids, size_t n, sib_err *err)
{
    *set = (sib_id_set){0};
    if (n == 0) return SIB_OK;
    int32_t *v = calloc(n, sizeof *v);
    if (!v) return sib_nomem(err, "token ids");
    memcpy(v, ids, n * sizeof *v);
    qsort(v, n, sizeof *v, ascending);
    size_t m = 1;
    for (size_t i = 1; i < n; i++)
        if (v[i] != v[m - 1]) v[m++] = v[i];
    *set = (sib_id_set){v, m};
    return SIB_OK;
}

void sib_id_set_deinit(sib_id_set *set)
{
    free(set->v);
    *set = (sib_id_set){0};
}

bool sib_id_set_has(const sib_id_set *set, int32_t id)
{
    return set && set->n && bsearch(&id, set->v, set->n, sizeof *set->v, ascending) != NULL;
}

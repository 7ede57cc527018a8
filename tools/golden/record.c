/* tools/golden/record.c - see record.h. */
#include "record.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct record_stage *stage_of(const record *r, const char *name)
{
    for (int i = 0; i < r->count; i++)
        if (strcmp(r->list[i].name, name) == 0) return &r->list[i];
    return NULL;
}

static void *grow(void *p, size_t bytes)
{
    void *more = realloc(p, bytes);
    if (more) return more;
    fprintf(stderr, "golden: out of memory\n");
    exit(1);
}

static void collect(void *ctx, const char *name, int index, const float *values, int rows, int n)
{
    record *r = ctx;
    (void)index;
    struct record_stage *s = stage_of(r, name);
    if (!s) {
        if (r->count == r->cap) r->list = grow(r->list, (size_t)(r->cap = r->cap ? 2 * r->cap : 64) * sizeof *r->list);
        s = &r->list[r->count++];
        *s = (struct record_stage){0};
        (void)snprintf(s->name, sizeof s->name, "%s", name);
    }
    s->values = grow(s->values, (size_t)(s->n + (int64_t)rows * n) * sizeof *values);
    memcpy(s->values + s->n, values, (size_t)rows * (size_t)n * sizeof *values);
    s->n += (int64_t)rows * n;
}

sib_trace record_trace(record *r)
{
    return (sib_trace){collect, r};
}

void record_settle(record *r)
{
    for (int i = 0; i < r->count; i++) r->list[i].mark = r->list[i].n;
}

void record_round(record *r)
{
    for (int i = 0; i < r->count; i++)
        if (strncmp(r->list[i].name, "draft.", 6) == 0) r->list[i].n = r->list[i].mark = 0;
}

void record_deinit(record *r)
{
    for (int i = 0; i < r->count; i++) free(r->list[i].values);
    free(r->list);
    *r = (record){0};
}

const float *record_get(const record *r, int64_t *n, bool whole, const char *fmt, ...)
{
    char name[128];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    const struct record_stage *s = stage_of(r, name);
    if (!s) return NULL;
    *n = whole ? s->n : s->n - s->mark;
    return s->values + (whole ? 0 : s->mark);
}

static bool ends_with_any(const char *name, const char *const *ends)
{
    for (; *ends; ends++)
        if (sib_ends_with(name, *ends)) return true;
    return false;
}

void record_compare(golden *g, const record *r, const char *prefix)
{
    static const char *const joined[] = {".k_norm", ".v_norm", ".keys", ".values", NULL}, *const context[] = {
                                                                                              ".k_proj.0", ".v_proj.0",
                                                                                              NULL};
    size_t skip = strlen(prefix);
    for (size_t i = 0; i < sib_safetensors_count(g->expected); i++) {
        const char *key = sib_safetensors_at(g->expected, i)->name, *name = key + skip;
        if (strncmp(key, prefix, skip)) continue;
        int64_t n = 0, before = 0;
        if (strncmp(name, "context.", 8) == 0 || ends_with_any(name, context)) {
            const float *v = record_get(r, &n, false, "%s%s", strncmp(name, "context.", 8) ? "context." : "", name);
            if (!v && sib_tensor_elements(sib_safetensors_at(g->expected, i)) == 0)
                v = &(float){0}; /* no row entered */
            if (v) golden_compare(g, key, v, n);
        } else if (ends_with_any(name, joined)) {
            const float *c = record_get(r, &before, true, "context.%s", name),
                        *d = record_get(r, &n, true, "draft.%s", name);
            if (!d) continue;
            float *both = grow(NULL, (size_t)(before + n) * sizeof *both);
            if (c) memcpy(both, c, (size_t)before * sizeof *both);
            memcpy(both + before, d, (size_t)n * sizeof *both);
            golden_compare(g, key, both, before + n);
            free(both);
        } else {
            const float *v = record_get(r, &n, true, "draft.%s", name);
            if (v) golden_compare(g, key, v, n);
        }
    }
}

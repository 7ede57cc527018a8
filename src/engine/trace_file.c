/* engine/trace_file.c - see trace_file.h. */
#include "engine/trace_file.h"

#include "artifacts/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct stage {
    char key[96];
    float *values;
    int64_t rows, n;
} stage;

struct sib_trace_file {
    char *path, *only;
    bool prompt, failed;
    stage *stages;
    size_t n, cap;
};

sib_status sib_trace_file_open(sib_trace_file **out, sib_err *err)
{
    const char *path = getenv("SIB_TRACE"), *only = getenv("SIB_TRACE_ONLY");
    *out = NULL;
    if (!path || !*path) return SIB_OK;
    sib_trace_file *t = calloc(1, sizeof *t);
    if (!t) return sib_nomem(err, "trace");
    t->path = strdup(path);
    t->only = only && *only ? strdup(only) : NULL;
    t->prompt = true;
    if (!t->path) {
        free(t->only);
        free(t);
        return sib_nomem(err, "trace");
    }
    *out = t;
    return SIB_OK;
}

/* Is "name" or "name.index" in the comma-separated list? */
static bool wanted(const char *only, const char *name, int index)
{
    char full[80];
    if (!only) return true;
    (void)snprintf(full, sizeof full, "%s.%d", name, index);
    for (const char *at = only; *at;) {
        size_t n = strcspn(at, ",");
        if ((strlen(name) == n && memcmp(at, name, n) == 0) || (index >= 0 && strlen(full) == n && memcmp(at, full, n) == 0)) return true;
        at += n + (at[n] == ',');
    }
    return false;
}

static stage *stage_named(sib_trace_file *t, const char *key)
{
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->stages[i].key, key) == 0) return &t->stages[i];
    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 64;
        stage *s = realloc(t->stages, cap * sizeof *s);
        if (!s) return NULL;
        t->stages = s;
        t->cap = cap;
    }
    stage *s = &t->stages[t->n++];
    *s = (stage){0};
    (void)snprintf(s->key, sizeof s->key, "%s", key);
    return s;
}

static void collect(void *ctx, const char *name, int index, const float *values, int rows, int n)
{
    sib_trace_file *t = ctx;
    char key[96];
    if (t->failed || !wanted(t->only, name, index)) return;
    const char *phase = strncmp(name, "vision.", 7) == 0 ? "" : t->prompt ? "prefill." : "greedy."; /* as golden files name them */
    if (index >= 0)
        (void)snprintf(key, sizeof key, "%s%s.%d", phase, name, index);
    else
        (void)snprintf(key, sizeof key, "%s%s", phase, name);
    stage *s = stage_named(t, key);
    float *more = s && (s->rows == 0 || s->n == n) ? realloc(s->values, (size_t)(s->rows + rows) * (size_t)n * sizeof *more) : NULL;
    if (!more) {
        t->failed = true;
        return;
    }
    memcpy(more + s->rows * n, values, (size_t)rows * (size_t)n * sizeof *more);
    s->values = more;
    s->rows += rows;
    s->n = n;
}

sib_trace sib_trace_file_sink(sib_trace_file *t)
{
    return t ? (sib_trace){collect, t} : (sib_trace){0};
}

void sib_trace_file_phase(sib_trace_file *t, bool prompt)
{
    if (t) t->prompt = prompt;
}

static sib_status write_all(const sib_trace_file *t, sib_err *err)
{
    sib_safetensors_writer *w;
    if (t->failed) return sib_fail(err, SIB_ENOMEM, "%s: the trace did not fit in memory", t->path);
    SIB_TRY(sib_safetensors_create(&w, t->path, 0, err));
    for (size_t i = 0; i < t->n; i++) {
        const stage *s = &t->stages[i];
        bool prompt = strncmp(s->key, "prefill.", 8) == 0; /* the references keep their batch dimension there */
        const int64_t shape[3] = {1, s->rows, s->n};
        sib_status status = sib_safetensors_add(w, s->key, SIB_F32, prompt ? 3 : 2, prompt ? shape : shape + 1, s->values, err);
        if (status != SIB_OK) {
            sib_safetensors_abandon(w);
            return status;
        }
    }
    return sib_safetensors_finish(w, err);
}

sib_status sib_trace_file_close(sib_trace_file *t, sib_err *err)
{
    if (!t) return SIB_OK;
    sib_status s = write_all(t, err);
    for (size_t i = 0; i < t->n; i++) free(t->stages[i].values);
    free(t->stages);
    free(t->path);
    free(t->only);
    free(t);
    return s;
}

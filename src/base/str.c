/* base/str.c - see str.h. */
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

sib_str sib_str_of(const char *z)
{
    return (sib_str){z ? z : "", z ? strlen(z) : 0};
}

bool sib_str_eq(sib_str a, sib_str b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

bool sib_str_is(sib_str a, const char *z)
{
    return sib_str_eq(a, sib_str_of(z));
}

bool sib_ends_with(const char *z, const char *suffix)
{
    size_t n = strlen(z), m = strlen(suffix);
    return n >= m && memcmp(z + n - m, suffix, m) == 0;
}

bool sib_starts_with(const char *z, const char *prefix)
{
    return strncmp(z, prefix, strlen(prefix)) == 0;
}

void sib_buf_deinit(sib_buf *b)
{
    free(b->p);
    *b = (sib_buf){0};
}

bool sib_buf_reserve(sib_buf *b, size_t extra)
{
    if (extra >= SIZE_MAX / 2 - b->n) {
        b->failed = true;
        return false;
    }
    size_t need = b->n + extra + 1;
    if (need <= b->cap) return true;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need) cap += cap / 2 + 64;
    char *p = realloc(b->p, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->p = p;
    b->cap = cap;
    return true;
}

void sib_buf_add(sib_buf *b, const void *bytes, size_t n)
{
    if (!sib_buf_reserve(b, n)) return;
    if (n) memcpy(b->p + b->n, bytes, n);
    b->n += n;
    b->p[b->n] = 0;
}

void sib_buf_addz(sib_buf *b, const char *z)
{
    sib_buf_add(b, z, strlen(z));
}

void sib_buf_addc(sib_buf *b, char c)
{
    sib_buf_add(b, &c, 1);
}

void sib_buf_addf(sib_buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n >= 0 && sib_buf_reserve(b, (size_t)n)) {
        (void)vsnprintf(b->p + b->n, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
}

sib_str sib_buf_view(const sib_buf *b)
{
    return (sib_str){b->p ? b->p : "", b->n};
}

void sib_ids_deinit(sib_ids *ids)
{
    free(ids->v);
    *ids = (sib_ids){0};
}

bool sib_ids_reserve(sib_ids *ids, size_t extra)
{
    if (extra > SIZE_MAX / (4 * sizeof *ids->v) - ids->n) {
        ids->failed = true;
        return false;
    }
    size_t need = ids->n + extra;
    if (need <= ids->cap) return true;
    size_t cap = ids->cap ? ids->cap : 32;
    while (cap < need) cap += cap / 2 + 32;
    int32_t *v = realloc(ids->v, cap * sizeof *v);
    if (!v) {
        ids->failed = true;
        return false;
    }
    ids->v = v;
    ids->cap = cap;
    return true;
}

void sib_ids_add(sib_ids *ids, int32_t id)
{
    if (sib_ids_reserve(ids, 1)) ids->v[ids->n++] = id;
}

void sib_spans_deinit(sib_spans *s)
{
    free(s->v);
    *s = (sib_spans){0};
}

void sib_spans_add(sib_spans *s, size_t at, size_t n)
{
    if (n == 0) return;
    if (s->n && s->v[s->n - 1].at + s->v[s->n - 1].n == at) {
        s->v[s->n - 1].n += n;
        return;
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 16;
        sib_text_span *v = cap <= SIZE_MAX / sizeof *v ? realloc(s->v, cap * sizeof *v) : NULL;
        if (!v) {
            s->failed = true;
            return;
        }
        s->v = v;
        s->cap = cap;
    }
    s->v[s->n++] = (sib_text_span){at, n};
}

sib_status sib_read_file(const char *path, size_t max_bytes, sib_buf *out, sib_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return sib_fail(err, SIB_EIO, "%s: %s", path, strerror(errno));
    struct stat st;
    sib_status s = SIB_OK;
    if (fstat(fd, &st) != 0) {
        s = sib_fail(err, SIB_EIO, "%s: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        s = sib_fail(err, SIB_EIO, "%s: not a regular file", path);
    } else if (st.st_size < 0 || (uintmax_t)st.st_size > max_bytes) {
        s = sib_fail(err, SIB_EFORMAT, "%s: larger than %zu bytes", path, max_bytes);
    } else if (!sib_buf_reserve(out, (size_t)st.st_size)) {
        s = sib_nomem(err, path);
    }
    size_t left = s == SIB_OK ? (size_t)st.st_size : 0;
    while (left) {
        ssize_t n = read(fd, out->p + out->n, left);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            s = sib_fail(err, SIB_EIO, "%s: %s", path, n < 0 ? strerror(errno) : "file became shorter while it was read");
            break;
        }
        out->n += (size_t)n;
        left -= (size_t)n;
    }
    if (out->p) out->p[out->n] = 0;
    close(fd);
    return s;
}

char *sib_path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir), m = strlen(name);
    bool slash = n > 0 && dir[n - 1] != '/';
    char *p = malloc(n + m + 2);
    if (!p) return NULL;
    memcpy(p, dir, n);
    if (slash) p[n++] = '/';
    memcpy(p + n, name, m + 1);
    return p;
}

char *sib_strdup(const char *z)
{
    size_t n = strlen(z) + 1;
    char *p = malloc(n);
    if (p) memcpy(p, z, n);
    return p;
}

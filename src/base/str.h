/* base/str.h - borrowed byte strings and a growable byte buffer.
 *
 * sib_str borrows: it need not end with NUL and may hold NUL bytes.
 * sib_buf owns: start from {0}, free with sib_buf_deinit. An append that cannot
 * get memory sets `failed` and drops the bytes, so a run of appends is checked once. */
#ifndef SIB_BASE_STR_H
#define SIB_BASE_STR_H

#include "base/status.h"

typedef struct sib_str {
    const char *p;
    size_t n;
} sib_str;

#define SIB_STR(lit) ((sib_str){(lit), sizeof(lit) - 1})

sib_str sib_str_of(const char *z); /* of a NUL-terminated string; NULL gives an empty one */
bool sib_str_eq(sib_str a, sib_str b);
bool sib_str_is(sib_str a, const char *z);
bool sib_ends_with(const char *z, const char *suffix);
bool sib_starts_with(const char *z, const char *prefix);

typedef struct sib_buf {
    char *p; /* NUL-terminated when not NULL */
    size_t n, cap;
    bool failed;
} sib_buf;

void sib_buf_deinit(sib_buf *b);
bool sib_buf_reserve(sib_buf *b, size_t extra); /* room for `extra` more bytes and a NUL */
void sib_buf_add(sib_buf *b, const void *bytes, size_t n);
void sib_buf_addz(sib_buf *b, const char *z);
void sib_buf_addc(sib_buf *b, char c);
void sib_buf_addf(sib_buf *b, const char *fmt, ...) SIB_PRINTF(2, 3);
sib_str sib_buf_view(const sib_buf *b);

/* Token ids, owned; same rules as sib_buf. */
typedef struct sib_ids {
    int32_t *v;
    size_t n, cap;
    bool failed;
} sib_ids;

void sib_ids_deinit(sib_ids *ids);
bool sib_ids_reserve(sib_ids *ids, size_t extra);
void sib_ids_add(sib_ids *ids, int32_t id);

/* Parts of a text: ascending, not empty, apart from each other. Same rules as sib_buf. */
typedef struct sib_text_span {
    size_t at, n;
} sib_text_span;
typedef struct sib_spans {
    sib_text_span *v;
    size_t n, cap;
    bool failed;
} sib_spans;

void sib_spans_deinit(sib_spans *s);
void sib_spans_add(sib_spans *s, size_t at, size_t n); /* at or behind the end of the last one; joined when it touches */

/* Reads a whole regular file of at most `max_bytes` into `out` (appended). The
 * error names `path`. */
sib_status sib_read_file(const char *path, size_t max_bytes, sib_buf *out, sib_err *err);

/* "dir/name" in malloc'd memory, NULL without memory. */
char *sib_path_join(const char *dir, const char *name);
char *sib_strdup(const char *z);

#endif

/* server/http_parse.h - the bytes of HTTP/1.1 requests (RFC 9112): heads and chunked bodies.
 *
 *   GET /v1/models?x=1 HTTP/1.1 CRLF      method, path, query
 *   Host: a CRLF                          header lines
 *   CRLF                                  end of the head
 *
 * Strict where leniency lets two programs read one request differently: lines end in CRLF, no folded
 * lines, no blank before a colon, one Content-Length or Transfer-Encoding and not both. Nothing here
 * allocates, reads sockets or keeps state beyond its arguments. Used by http.c. */
#ifndef SIB_SERVER_HTTP_PARSE_H
#define SIB_SERVER_HTTP_PARSE_H

#include "base/str.h"

#define SIB_HTTP_MAX_HEAD    32768 /* bytes of a request head                */
#define SIB_HTTP_MAX_HEADERS 100
#define SIB_HTTP_MAX_TRAILER 8192 /* bytes after the last chunk, all skipped */

typedef struct sib_http_header {
    sib_str name, value; /* borrowed from the head; the name in lower case, the value trimmed */
} sib_http_header;

typedef struct sib_http_head {
    sib_str method, path, query; /* path before and query after '?', both as sent */
    int minor;                   /* HTTP/1.minor, 0 or 1 */
    sib_http_header headers[SIB_HTTP_MAX_HEADERS];
    int n_headers;
    bool keep_alive, chunked, expect_continue;
    uint64_t content_length; /* 0 when chunked or when none is given */
    bool has_length;
} sib_http_head;

/* Finds the end of a head in p[0..n): its length with the blank line, 0 when more bytes are needed. *scanned remembers what
 * was looked at between calls (0 at first), so that bytes which come one at a time cost linear time. -1: a bare line feed. */
int64_t sib_http_head_end(const char *p, size_t n, size_t *scanned);

/* Parses p[0..n), a whole head; names are put into lower case in place. 0, or the HTTP status of the refusal with *why. */
int sib_http_parse_head(sib_http_head *h, char *p, size_t n, const char **why);

/* Value of a header (name in lower case), {NULL, 0} when absent; the first of several. */
sib_str sib_http_header_get(const sib_http_head *h, const char *name);

/* A chunked body in pieces; start from {0}. */
typedef struct sib_http_chunks {
    int state;
    uint64_t left; /* of the current chunk */
    size_t line;   /* bytes of the current line, or of the trailer */
    bool digits;
    bool done;
} sib_http_chunks;

/* Consumes p[0..n), appending data to *body, at most max_body in all; *used tells how much of the bytes belonged to the body.
 * 0, or the HTTP status of the refusal. Stops when c->done. */
int sib_http_chunks_feed(sib_http_chunks *c, const char *p, size_t n, size_t *used, size_t max_body, sib_buf *body);

#endif

/* server/http_parse.c - see http_parse.h. */
#include "server/http_parse.h"

#include <string.h>
#include <strings.h>

static bool is_token_char(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool equal_nocase(sib_str a, const char *z)
{
    return a.n == strlen(z) && strncasecmp(a.p, z, a.n) == 0;
}

int64_t sib_http_head_end(const char *p, size_t n, size_t *scanned)
{
    for (size_t i = *scanned; i < n; i++) {
        if (p[i] != '\n') continue;
        if (i == 0 || p[i - 1] != '\r') return -1;
        if (i >= 3 && p[i - 2] == '\n') return (int64_t)i + 1;
    }
    *scanned = n;
    return 0;
}

sib_str sib_http_header_get(const sib_http_head *h, const char *name)
{
    for (int i = 0; i < h->n_headers; i++)
        if (sib_str_is(h->headers[i].name, name)) return h->headers[i].value;
    return (sib_str){0};
}

/* "GET /path?query HTTP/1.1" */
static int parse_request_line(sib_http_head *h, const char *p, size_t n, const char **why)
{
    const char *end = p + n, *space = memchr(p, ' ', n);
    if (!space || space == p) return *why = "the request line has no method", 400;
    h->method = (sib_str){p, (size_t)(space - p)};
    for (size_t i = 0; i < h->method.n; i++)
        if (!is_token_char(h->method.p[i])) return *why = "the method has a character that is not allowed", 400;
    const char *target = space + 1, *second = memchr(target, ' ', (size_t)(end - target));
    if (!second) return *why = "the request line has no version", 400;
    if (second == target || *target != '/') {
        if (!(second == target + 1 && *target == '*')) return *why = "the request target is not a path", 400;
    }
    for (const char *c = target; c < second; c++)
        if ((unsigned char)*c <= 0x20 || (unsigned char)*c == 0x7F) return *why = "the request target has a control character", 400;
    sib_str version = {second + 1, (size_t)(end - second - 1)};
    if (version.n != 8 || memcmp(version.p, "HTTP/", 5) != 0) return *why = "the request line has no version", 400;
    if (memcmp(version.p, "HTTP/1.", 7) != 0 || version.p[7] < '0' || version.p[7] > '9') return *why = "only HTTP/1.0 and HTTP/1.1 are spoken here", 505;
    h->minor = version.p[7] == '0' ? 0 : 1;
    const char *q = memchr(target, '?', (size_t)(second - target));
    h->path = (sib_str){target, (size_t)((q ? q : second) - target)};
    h->query = q ? (sib_str){q + 1, (size_t)(second - q - 1)} : (sib_str){second, 0};
    return 0;
}

static int parse_header_line(sib_http_head *h, char *p, size_t n, const char **why)
{
    char *colon = memchr(p, ':', n);
    if (!colon || colon == p) return *why = "a header line has no name", 400; /* folded lines begin with a blank */
    for (char *c = p; c < colon; c++) {
        if (!is_token_char(*c)) return *why = "a header name has a character that is not allowed", 400;
        if (*c >= 'A' && *c <= 'Z') *c = (char)(*c - 'A' + 'a');
    }
    if (h->n_headers == SIB_HTTP_MAX_HEADERS) return *why = "too many header lines", 431;
    const char *v = colon + 1, *end = p + n;
    while (v < end && (*v == ' ' || *v == '\t')) v++;
    while (end > v && (end[-1] == ' ' || end[-1] == '\t')) end--;
    for (const char *c = v; c < end; c++)
        if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7F) return *why = "a header value has a control character", 400;
    h->headers[h->n_headers++] = (sib_http_header){{p, (size_t)(colon - p)}, {v, (size_t)(end - v)}};
    return 0;
}

static int parse_length(sib_http_head *h, sib_str v, const char **why)
{
    uint64_t n = 0;
    if (v.n == 0 || v.n > 18) return *why = "Content-Length is not a number", 400;
    for (size_t i = 0; i < v.n; i++) {
        if (v.p[i] < '0' || v.p[i] > '9') return *why = "Content-Length is not a number", 400;
        n = n * 10 + (uint64_t)(v.p[i] - '0');
    }
    if (h->has_length && n != h->content_length) return *why = "two Content-Length headers differ", 400;
    h->has_length = true;
    h->content_length = n;
    return 0;
}

/* Whether a comma-separated header value lists `word`. */
static bool lists(sib_str v, const char *word)
{
    for (size_t i = 0; i < v.n;) {
        size_t from = i;
        while (i < v.n && v.p[i] != ',') i++;
        size_t to = i++;
        while (from < to && (v.p[from] == ' ' || v.p[from] == '\t')) from++;
        while (to > from && (v.p[to - 1] == ' ' || v.p[to - 1] == '\t')) to--;
        if (equal_nocase((sib_str){v.p + from, to - from}, word)) return true;
    }
    return false;
}

/* What the headers say about the body and the connection. */
static int read_framing(sib_http_head *h, const char **why)
{
    int hosts = 0;
    h->keep_alive = h->minor >= 1;
    for (int i = 0; i < h->n_headers; i++) {
        sib_str name = h->headers[i].name, v = h->headers[i].value;
        int bad = 0;
        if (sib_str_is(name, "content-length")) {
            bad = parse_length(h, v, why);
        } else if (sib_str_is(name, "transfer-encoding")) {
            if (h->chunked || !equal_nocase(v, "chunked")) return *why = "the only Transfer-Encoding spoken here is chunked", 501;
            if (h->minor == 0) return *why = "HTTP/1.0 has no Transfer-Encoding", 400;
            h->chunked = true;
        } else if (sib_str_is(name, "connection")) {
            if (lists(v, "close")) h->keep_alive = false;
            else if (h->minor == 0 && lists(v, "keep-alive")) h->keep_alive = true;
        } else if (sib_str_is(name, "expect")) {
            if (!equal_nocase(v, "100-continue")) return *why = "the only Expect spoken here is 100-continue", 417;
            h->expect_continue = h->minor >= 1;
        } else if (sib_str_is(name, "host")) {
            hosts++;
        }
        if (bad) return bad;
    }
    if (h->chunked && h->has_length) return *why = "both Content-Length and Transfer-Encoding are given", 400;
    if (hosts > 1 || (hosts == 0 && h->minor >= 1)) return *why = "exactly one Host header is needed", 400;
    return 0;
}

int sib_http_parse_head(sib_http_head *h, char *p, size_t n, const char **why)
{
    h->n_headers = 0;
    h->chunked = h->expect_continue = h->has_length = false;
    h->content_length = 0;
    for (size_t at = 0, line = 0; at + 2 < n; line++) {
        char *cr = memmem(p + at, n - at, "\r\n", 2);
        size_t len = cr ? (size_t)(cr - (p + at)) : n - at;
        int bad = line == 0 ? parse_request_line(h, p + at, len, why) : parse_header_line(h, p + at, len, why);
        if (bad) return bad;
        at += len + 2;
    }
    return read_framing(h, why);
}

/* ---- chunked bodies ---------------------------------------------------------------------------- */

enum { SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER, TRAILER_LF, TRAILER_LINE, TRAILER_LINE_LF };

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* One byte outside chunk data; false when it is not allowed there. */
static bool step(sib_http_chunks *c, char b)
{
    if (c->state == SIZE || c->state == EXTENSION || c->state >= TRAILER) c->line++;
    switch (c->state) {
    case SIZE:
        if (hex(b) >= 0) {
            c->left = c->left << 4 | (uint64_t)hex(b);
            c->digits = true;
            return c->line <= 15;
        }
        if (!c->digits) return false;
        c->state = b == '\r' ? SIZE_LF : EXTENSION;
        return b == '\r' || b == ';' || b == ' ' || b == '\t';
    case EXTENSION:
        if (b == '\r') c->state = SIZE_LF;
        return b != '\n' && c->line <= 256;
    case SIZE_LF:
        c->state = c->left > 0 ? DATA : TRAILER;
        c->line = 0;
        c->digits = false;
        return b == '\n';
    case DATA_CR: c->state = DATA_LF; return b == '\r';
    case DATA_LF: c->state = SIZE; return b == '\n';
    case TRAILER: /* at the beginning of a line after the last chunk */
        c->state = b == '\r' ? TRAILER_LF : TRAILER_LINE;
        return b != '\n' && c->line <= SIB_HTTP_MAX_TRAILER;
    case TRAILER_LF: c->done = true; return b == '\n';
    case TRAILER_LINE:
        if (b == '\r') c->state = TRAILER_LINE_LF;
        return b != '\n' && c->line <= SIB_HTTP_MAX_TRAILER;
    default: c->state = TRAILER; return b == '\n';
    }
}

int sib_http_chunks_feed(sib_http_chunks *c, const char *p, size_t n, size_t *used, size_t max_body, sib_buf *body)
{
    size_t i = 0;
    while (i < n && !c->done) {
        if (c->state != DATA) {
            if (!step(c, p[i++])) return 400;
            if (c->state == DATA && c->left > max_body - body->n) return 413;
            continue;
        }
        size_t k = n - i < c->left ? n - i : (size_t)c->left;
        sib_buf_add(body, p + i, k);
        i += k;
        c->left -= k;
        if (c->left == 0) c->state = DATA_CR;
    }
    *used = i;
    return body->failed ? 503 : 0;
}

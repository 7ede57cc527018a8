/* tests/fuzz/fuzz_http.c - libFuzzer target over request heads and chunked bodies: no border between two reads changes what is
 * understood. */
#include "server/http_parse.h"

#include <stdlib.h>
#include <string.h>

/* A chunked body in pieces; its status, with done as 1000. */
static int feed(const char *p, size_t n, size_t piece, sib_buf *body)
{
    sib_http_chunks c = {0};
    size_t used;
    for (size_t at = 0; at < n && !c.done; at += used) {
        int status = sib_http_chunks_feed(&c, p + at, n - at < piece ? n - at : piece, &used, 4096, body);
        if (status) return status;
    }
    return c.done ? 1000 : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *p = n ? (const char *)data : "", *why = NULL;
    size_t at_once = 0, in_steps = 0;
    int64_t end = sib_http_head_end(p, n, &at_once), step = 0;
    for (size_t i = 1; i <= n && step == 0; i++) step = sib_http_head_end(p, i, &in_steps);
    if (end != step) abort();
    if (end > 0) {
        sib_http_head h;
        char *copy = malloc((size_t)end);
        if (!copy) return 0;
        memcpy(copy, p, (size_t)end);
        int status = sib_http_parse_head(&h, copy, (size_t)end, &why);
        if (status == 0 && h.chunked && h.has_length) abort();
        if (status != 0 && !why) abort();
        free(copy);
    }
    sib_buf a = {0}, b = {0};
    int whole = feed(p, n, n + 1, &a), bytes = feed(p, n, 1, &b);
    if (whole != bytes || (whole == 1000 && !sib_str_eq(sib_buf_view(&a), sib_buf_view(&b)))) abort();
    sib_buf_deinit(&a);
    sib_buf_deinit(&b);
    return 0;
}

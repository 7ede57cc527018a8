/* tests/unit/http_parse_test.c - request heads and chunked bodies (server/http_parse.h): what is taken, what is refused, and
 * that the border between two reads never matters. */
#include "server/http_parse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int parse(const char *text, sib_http_head *h)
{
    static char copy[65536]; /* the head points into it */
    const char *why = NULL;
    size_t n = strlen(text), scanned = 0;
    assert_true(n < sizeof copy);
    memcpy(copy, text, n);
    assert_int_equal(sib_http_head_end(copy, n, &scanned), n);
    int status = sib_http_parse_head(h, copy, n, &why);
    assert_true((status == 0) == (why == NULL));
    return status;
}

static void heads_are_taken(void **state)
{
    (void)state;
    sib_http_head h;
    assert_int_equal(parse("POST /v1/x?beta=true&a=%20 HTTP/1.1\r\nHost: a:1\r\nX-Api-KEY: \t k v \t\r\nContent-Length: 12\r\nconnection: Upgrade, Close\r\n\r\n", &h), 0);
    assert_true(sib_str_is(h.method, "POST") && sib_str_is(h.path, "/v1/x") && sib_str_is(h.query, "beta=true&a=%20"));
    assert_true(sib_str_is(sib_http_header_get(&h, "x-api-key"), "k v"));
    assert_null(sib_http_header_get(&h, "x-api").p);
    assert_true(h.has_length && h.content_length == 12 && !h.keep_alive && !h.chunked);
    assert_int_equal(parse("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", &h), 0);
    assert_true(h.keep_alive && h.minor == 0);
    assert_int_equal(parse("GET / HTTP/1.0\r\n\r\n", &h), 0);
    assert_false(h.keep_alive);
    assert_int_equal(parse("OPTIONS * HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nTransfer-Encoding: Chunked\r\n\r\n", &h), 0);
    assert_true(h.keep_alive && h.chunked && h.expect_continue);
    assert_int_equal(parse("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n", &h), 0);
}

static void heads_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int status;
    } bad[] = {
        {"GET /\r\n\r\n", 400}, {" / HTTP/1.1\r\n\r\n", 400}, {"G(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400}, {"GET  HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400}, {"GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n", 400}, {"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400},
        {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505}, {"GET / HTTP/1.x\r\nHost: a\r\n\r\n", 505}, {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", 400}, {"GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n", 400}, {"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", 400}, {"GET / HTTP/1.1\r\nHost: a\r\nX: \x7F\r\n\r\n", 400}, {"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1x\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\n", 400}, {"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999999999999\r\n\r\n", 400}, {"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400}, {"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
        {"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 501}, {"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nExpect: more\r\n\r\n", 417}, {"GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n", 400},
    };
    sib_http_head h;
    for (size_t i = 0; i < SIB_COUNT(bad); i++) {
        int status = parse(bad[i].text, &h);
        if (status != bad[i].status) fail_msg("%s gives %d", bad[i].text, status);
    }
    sib_buf many = {0};
    sib_buf_addz(&many, "GET / HTTP/1.1\r\nHost: a\r\n");
    for (int i = 0; i < SIB_HTTP_MAX_HEADERS; i++) sib_buf_addz(&many, "a: b\r\n");
    sib_buf_addz(&many, "\r\n");
    assert_int_equal(parse(many.p, &h), 431);
    sib_buf_deinit(&many);
}

static void the_end_of_a_head_is_found_at_any_border(void **state)
{
    (void)state;
    const char text[] = "GET / HTTP/1.1\r\nHost: a\r\n\r\nPOST";
    size_t scanned = 0, whole = sizeof text - 1 - 4;
    for (size_t n = 0; n < whole; n++) assert_int_equal(sib_http_head_end(text, n, &scanned), 0);
    assert_int_equal(sib_http_head_end(text, sizeof text - 1, &scanned), whole);
    scanned = 0;
    assert_int_equal(sib_http_head_end("GET / HTTP/1.1\n", 15, &scanned), -1);
    scanned = 0;
    assert_int_equal(sib_http_head_end("\n", 1, &scanned), -1);
}

/* Feeds a body in pieces of `piece` bytes; the status, and the rest that was not used in *left. */
static int feed(const char *p, size_t n, size_t piece, size_t max, sib_buf *body, size_t *left)
{
    sib_http_chunks c = {0};
    size_t at = 0;
    while (at < n && !c.done) {
        size_t k = n - at < piece ? n - at : piece, used;
        int status = sib_http_chunks_feed(&c, p + at, k, &used, max, body);
        if (status) return status;
        assert_true(used == k || c.done);
        at += used;
    }
    *left = n - at;
    return c.done ? 0 : -1;
}

static void chunks(void **state)
{
    (void)state;
    static const struct {
        const char *text, *body;
        int status; /* -1: not complete */
        size_t left;
    } cases[] = {
        {"3\r\nabc\r\n0\r\n\r\nNEXT", "abc", 0, 4}, {"3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: v\r\nU: w\r\n\r\n", "abc0123456789", 0, 0}, {"000\r\n\r\n", "", 0, 0},
        {"3\r\nabc\r\n0\r\n", "abc", -1, 0}, {"3\r\nab", "ab", -1, 0}, {"x\r\n", "", 400, 0}, {"\r\n", "", 400, 0}, {";\r\n", "", 400, 0}, {"3\n", "", 400, 0}, {"3\rx", "", 400, 0},
        {"3\r\nabcd", "", 400, 0}, {"3\r\nabc\r0", "", 400, 0}, {"-3\r\n", "", 400, 0}, {"0x3\r\n", "", 400, 0}, {"fffffffffffffffff\r\n", "", 400, 0}, {"ffffff\r\n", "", 413, 0},
        {"0\r\n\rx", "", 400, 0}, {"0\r\nT\n", "", 400, 0},
    };
    for (size_t i = 0; i < SIB_COUNT(cases); i++)
        for (size_t piece = 1; piece < 20; piece += 3) {
            sib_buf body = {0};
            size_t left = 0;
            int status = feed(cases[i].text, strlen(cases[i].text), piece, 64, &body, &left);
            if (status != cases[i].status) fail_msg("%s in pieces of %zu gives %d", cases[i].text, piece, status);
            if (status <= 0) assert_string_equal(body.p ? body.p : "", cases[i].body);
            if (status == 0 && piece > 16) assert_int_equal(left, cases[i].left);
            sib_buf_deinit(&body);
        }
}

static void endless_lines_are_refused(void **state)
{
    (void)state;
    static char line[20000];
    sib_buf body = {0};
    size_t left;
    memset(line, 'x', sizeof line);
    memcpy(line, "5;", 2);
    assert_int_equal(feed(line, sizeof line, 100, 64, &body, &left), 400);
    memcpy(line, "0\r\n", 3);
    assert_int_equal(feed(line, sizeof line, 100, 64, &body, &left), 400);
    for (size_t i = 3; i + 3 < sizeof line; i += 3) memcpy(line + i, "x\r\n", 3);
    assert_int_equal(feed(line, sizeof line, 100, 64, &body, &left), 400);
    sib_buf_deinit(&body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_are_taken), cmocka_unit_test(heads_are_refused), cmocka_unit_test(the_end_of_a_head_is_found_at_any_border),
        cmocka_unit_test(chunks), cmocka_unit_test(endless_lines_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

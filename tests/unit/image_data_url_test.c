/* tests/unit/image_data_url_test.c - base64 and data: URLs, well-formed and not. */
#include "image/data_url.h"
#include "image_cases.h"

static void base64_of_every_length(void **state)
{
    (void)state;
    static const char standard[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static const char url_safe[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint64_t seed = 2;
    for (size_t n = 0; n < 200; n++)
        for (int style = 0; style < 8; style++) {
            const char *alphabet = style & 1 ? url_safe : standard;
            uint8_t bytes[200];
            for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(next_random(&seed) >> 20);
            sib_buf text = {0}, out = {0};
            size_t n_chars = (n * 8 + 5) / 6;
            for (size_t i = 0; i < n_chars; i++) {
                unsigned v = 0;
                for (size_t b = i * 6; b < i * 6 + 6; b++) v = v << 1 | (b / 8 < n ? bytes[b / 8] >> (7 - b % 8) & 1u : 0u);
                sib_buf_addc(&text, alphabet[v]);
                if (style & 4 && next_random(&seed) % 5 == 0) sib_buf_addc(&text, " \t\r\n"[next_random(&seed) % 4]);
            }
            for (; style & 2 && n_chars % 4; n_chars++) sib_buf_addc(&text, '=');
            sib_buf_addz(&out, "kept");
            sib_err err = {0};
            if (sib_base64_decode(&out, sib_buf_view(&text), n, &err) != SIB_OK) fail_msg("%zu bytes, style %d: %s", n, style, err.message);
            assert_int_equal(out.n, 4 + n);
            assert_memory_equal(out.p, "kept", 4);
            assert_memory_equal(out.p + 4, bytes, n);
            if (n) {
                assert_int_equal(sib_base64_decode(&out, sib_buf_view(&text), n - 1, &err), SIB_ECAPACITY);
                assert_int_equal(out.n, 4 + n);
            }
            sib_buf_deinit(&out);
            sib_buf_deinit(&text);
        }
}

static void base64_that_is_refused(void **state)
{
    (void)state;
    const char *const bad[] = {"A",     "AAAAA", "AA=",   "AAA==", "=",      "====",   "AA==AA", "AA=A", "AAA=A", "A===",
                               "AB==",  "AB",    "AAB=",  "AA*A",  "AAAA,",  "AAA\xc3", "AAAA=",  "QQ===", "AAAA====", "%41AAA"};
    for (size_t i = 0; i < SIB_COUNT(bad); i++) {
        sib_buf out = {0};
        sib_err err = {0};
        if (sib_base64_decode(&out, sib_str_of(bad[i]), 100, &err) != SIB_EFORMAT) fail_msg("\"%s\" is accepted", bad[i]);
        assert_true(out.n == 0 && err.message[0]);
        sib_buf_deinit(&out);
    }
    sib_buf out = {0};
    assert_int_equal(sib_base64_decode(&out, (sib_str){"QU\0I", 4}, 100, NULL), SIB_EFORMAT);
    sib_buf_deinit(&out);
}

static void data_urls(void **state)
{
    (void)state;
    const struct {
        const char *url, *want; /* want NULL: refused */
    } cases[] = {
        {"data:image/png;base64,QUJD", "ABC"},
        {"data:;base64,QUJDRA==", "ABCD"},
        {"DATA:image/png;charset=x;BASE64,QUJDRA", "ABCD"},
        {"data:image/png;base64,QUJDR%41%3D%3d", "ABCD"},
        {"data:image/png;base64,", ""},
        {"data:,A%20B%2c,C", "A B,,C"},
        {"data:text/plain,", ""},
        {"data:base64,QUJD", "QUJD"},
        {"data:image/png;base64", NULL},
        {"data:image/png;base64,Q", NULL},
        {"data:,100%", NULL},
        {"data:,%4", NULL},
        {"data:,%4g", NULL},
        {"data:;base64,%", NULL},
        {"http://example.org/,", NULL},
        {"data", NULL},
        {"", NULL},
    };
    for (size_t i = 0; i < SIB_COUNT(cases); i++) {
        sib_buf out = {0};
        sib_err err = {0};
        sib_status s = sib_data_url_decode(&out, sib_str_of(cases[i].url), 100, &err);
        if ((s == SIB_OK) != (cases[i].want != NULL)) fail_msg("%s: status %d", cases[i].url, s);
        if (cases[i].want && !sib_str_is(sib_buf_view(&out), cases[i].want)) fail_msg("%s: %.*s", cases[i].url, (int)out.n, out.p);
        if (s != SIB_OK) assert_true(s == SIB_EFORMAT && out.n == 0 && err.message[0]);
        sib_buf_deinit(&out);
        if (!cases[i].want || !cases[i].want[0]) continue;
        assert_int_equal(sib_data_url_decode(&out, sib_str_of(cases[i].url), strlen(cases[i].want) - 1, &err), SIB_ECAPACITY);
        assert_int_equal(out.n, 0);
        sib_buf_deinit(&out);
    }
}

/* Each URL cut at each byte, in memory of exactly that size. */
static void cut_data_urls(void **state)
{
    (void)state;
    static const char url[] = "data:image/png;base64,QUJDR%41%3D%3d";
    for (size_t n = 0; n < sizeof url; n++) {
        char *copy = malloc(n + !n);
        assert_non_null(copy);
        memcpy(copy, url, n);
        sib_buf out = {0};
        (void)sib_data_url_decode(&out, (sib_str){copy, n}, 100, NULL);
        assert_true(out.n <= 4);
        sib_buf_deinit(&out);
        free(copy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(base64_of_every_length),
        cmocka_unit_test(base64_that_is_refused),
        cmocka_unit_test(data_urls),
        cmocka_unit_test(cut_data_urls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

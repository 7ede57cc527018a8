/* tests/unit/sample_stop_test.c - stop strings against a search of the whole text, at every way of
 * cutting it into pieces; the set of token ids. */
#include "sample/stop.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* The definition: first end, then first begin, then first listed. Returns the string, -1 if none. */
static int search(sib_str text, const sib_str *stops, size_t n, size_t *cut)
{
    for (size_t end = 1; end <= text.n; end++) {
        int best = -1;
        for (size_t j = 0; j < n; j++) {
            size_t m = stops[j].n;
            if (m == 0 || m > end || memcmp(text.p + end - m, stops[j].p, m) != 0) continue;
            if (best < 0 || m > stops[best].n) best = (int)j;
        }
        if (best >= 0) {
            *cut = end - stops[best].n;
            return best;
        }
    }
    *cut = text.n;
    return -1;
}

/* Bytes that must be held back after `text`: its longest end that begins a stop string. */
static size_t held_back(sib_str text, const sib_str *stops, size_t n)
{
    for (size_t len = text.n; len > 0; len--)
        for (size_t j = 0; j < n; j++)
            if (len < stops[j].n && memcmp(text.p + text.n - len, stops[j].p, len) == 0) return len;
    return 0;
}

static void feed(sib_stop *m, const char *p, size_t n, sib_buf *out)
{
    assert_int_equal(sib_stop_feed(m, (sib_str){p, n}, out, NULL), SIB_OK);
}

static void every_cut_of_random_texts(void **state)
{
    (void)state;
    uint64_t rnd = 3;
    int hits = 0, misses = 0;
    for (int round = 0; round < 3000; round++) {
        char text[24], words[4][6];
        sib_str stops[4];
        size_t n_stops = 1 + sib_splitmix64(&rnd) % 4;
        for (size_t i = 0; i < sizeof text; i++) text[i] = (char)('a' + sib_splitmix64(&rnd) % 2);
        for (size_t j = 0; j < n_stops; j++) {
            size_t len = sib_splitmix64(&rnd) % 7;
            if (len == 6) len = 0;
            for (size_t i = 0; i < len; i++) words[j][i] = (char)('a' + sib_splitmix64(&rnd) % (round % 2 ? 2 : 3));
            stops[j] = (sib_str){words[j], len};
        }
        size_t cut;
        int which = search((sib_str){text, sizeof text}, stops, n_stops, &cut);
        hits += which >= 0;
        misses += which < 0;

        sib_stop *m;
        assert_int_equal(sib_stop_new(&m, stops, n_stops, NULL), SIB_OK);
        for (int way = 0; way < 5; way++) {
            sib_buf out = {0};
            for (size_t at = 0; at < sizeof text;) {
                size_t len = way == 0 ? 1 : way == 1 ? sizeof text : 1 + sib_splitmix64(&rnd) % 9;
                if (len > sizeof text - at) len = sizeof text - at;
                feed(m, text + at, len, &out);
                at += len;
                if (sib_stop_hit(m) < 0) { /* exactly the ambiguous end is held */
                    size_t hold = held_back((sib_str){text, at}, stops, n_stops);
                    assert_int_equal(out.n, at - hold);
                }
            }
            assert_int_equal(sib_stop_flush(m, &out, NULL), SIB_OK);
            assert_int_equal(sib_stop_hit(m), which);
            assert_int_equal(sib_stop_cut(m), cut);
            assert_int_equal(out.n, cut);
            assert_memory_equal(out.p, text, cut);
            sib_buf_deinit(&out);
            sib_stop_reset(m);
        }
        sib_stop_free(m);
    }
    assert_true(hits > 500 && misses > 500);
}

static void text_after_the_match_is_dropped(void **state)
{
    (void)state;
    const sib_str stops[] = {SIB_STR("\n\n"), SIB_STR("</s>")};
    sib_stop *m;
    sib_buf out = {0};
    assert_int_equal(sib_stop_new(&m, stops, 2, NULL), SIB_OK);
    feed(m, "one\ntwo <", 9, &out);
    assert_string_equal(out.p, "one\ntwo ");
    feed(m, "/", 1, &out);
    feed(m, "s> and more", 11, &out);
    feed(m, " still more", 11, &out);
    assert_int_equal(sib_stop_flush(m, &out, NULL), SIB_OK);
    assert_string_equal(out.p, "one\ntwo ");
    assert_int_equal(sib_stop_hit(m), 1);
    assert_int_equal(sib_stop_cut(m), 8);
    sib_buf_deinit(&out);
    sib_stop_free(m);
}

static void a_false_start_is_given_back(void **state)
{
    (void)state;
    const sib_str stop = SIB_STR("aab");
    sib_stop *m;
    sib_buf out = {0};
    assert_int_equal(sib_stop_new(&m, &stop, 1, NULL), SIB_OK);
    for (int i = 0; i < 5; i++) feed(m, "a", 1, &out);
    assert_string_equal(out.p, "aaa"); /* the last two may begin it */
    feed(m, "", 0, &out);
    feed(m, "c", 1, &out);
    assert_string_equal(out.p, "aaaaac");
    feed(m, "aa", 2, &out);
    assert_int_equal(sib_stop_flush(m, &out, NULL), SIB_OK);
    assert_string_equal(out.p, "aaaaacaa");
    assert_int_equal(sib_stop_hit(m), -1);
    sib_buf_deinit(&out);
    sib_stop_free(m);
}

static void limits(void **state)
{
    (void)state;
    static char big[SIB_MAX_STOP_BYTES + 1];
    sib_str many[SIB_MAX_STOPS + 1], one = {big, sizeof big};
    sib_stop *m;
    sib_err err;
    memset(big, 'x', sizeof big);
    for (size_t i = 0; i < SIB_COUNT(many); i++) many[i] = SIB_STR("s");
    assert_int_equal(sib_stop_new(&m, many, SIB_MAX_STOPS + 1, &err), SIB_EARG);
    assert_int_equal(sib_stop_new(&m, &one, 1, &err), SIB_EARG);
    assert_non_null(strstr(err.message, "stop string 1 has 1025 bytes"));
    one.n--;
    sib_buf out = {0};
    assert_int_equal(sib_stop_new(&m, &one, 1, &err), SIB_OK);
    feed(m, big, SIB_MAX_STOP_BYTES - 1, &out);
    assert_int_equal(out.n, 0);
    feed(m, "x", 1, &out);
    assert_int_equal(sib_stop_hit(m), 0);
    sib_buf_deinit(&out);
    sib_stop_free(m);
    assert_int_equal(sib_stop_new(&m, NULL, 0, &err), SIB_OK); /* no strings: text passes through */
    out = (sib_buf){0};
    feed(m, "abc", 3, &out);
    assert_string_equal(out.p, "abc");
    sib_buf_deinit(&out);
    sib_stop_free(m);
    sib_stop_free(NULL);
}

static void id_sets(void **state)
{
    (void)state;
    const int32_t ids[] = {106, 1, 50, 1, -7, 106};
    sib_id_set set;
    assert_int_equal(sib_id_set_init(&set, ids, SIB_COUNT(ids), NULL), SIB_OK);
    assert_int_equal(set.n, 4);
    for (int32_t id = -10; id < 120; id++)
        assert_int_equal(sib_id_set_has(&set, id), id == 106 || id == 1 || id == 50 || id == -7);
    sib_id_set_deinit(&set);
    assert_int_equal(sib_id_set_init(&set, NULL, 0, NULL), SIB_OK);
    assert_false(sib_id_set_has(&set, 0));
    assert_false(sib_id_set_has(NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_of_random_texts),
        cmocka_unit_test(text_after_the_match_is_dropped),
        cmocka_unit_test(a_false_start_is_given_back),
        cmocka_unit_test(limits),
        cmocka_unit_test(id_sets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

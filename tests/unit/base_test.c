/* tests/unit/base_test.c - src/base and the scalar conversions of src/tensor: error sentences,
 * strings, UTF-8, JSON limits, arenas, the thread pool, keyed random numbers, number formats. */
#include "base/arena.h"
#include "base/cpu.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/threads.h"
#include "base/utf8.h"
#include "tensor/dtype.h"

#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- status, strings, log ---- */

static void errors_carry_one_sentence(void **state)
{
    (void)state;
    sib_err err = {0};
    assert_int_equal(sib_fail(&err, SIB_EFORMAT, "tensor %s: %d columns", "q", 255), SIB_EFORMAT);
    assert_int_equal(err.status, SIB_EFORMAT);
    assert_int_equal(sib_within(&err, SIB_EFORMAT, "layer %d", 7), SIB_EFORMAT);
    assert_string_equal(err.message, "layer 7: tensor q: 255 columns");
    assert_int_equal(sib_fail(NULL, SIB_EIO, "%s", "x"), SIB_EIO);
    assert_int_equal(sib_within(NULL, SIB_EIO, "x"), SIB_EIO);
    assert_int_equal(sib_nomem(&err, "weights"), SIB_ENOMEM);
    assert_string_equal(err.message, "out of memory: weights");

    char big[2000];
    memset(big, 'a', sizeof big);
    big[sizeof big - 1] = 0;
    (void)sib_fail(&err, SIB_EARG, "%s", big); /* cut, never past the end */
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    (void)sib_within(&err, SIB_EARG, "%s", big);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    assert_string_equal(sib_status_name(SIB_EDEVICE), "EDEVICE");
    assert_string_equal(sib_status_name((sib_status)99), "?");
    assert_string_equal(sib_status_name((sib_status)-1), "?");
}

static void buffers_grow_and_fail_softly(void **state)
{
    (void)state;
    sib_buf b = {0};
    assert_string_equal(sib_buf_view(&b).p, "");
    for (int i = 0; i < 1000; i++) sib_buf_addf(&b, "%03d,", i);
    sib_buf_addc(&b, 0);
    sib_buf_addz(&b, "end");
    assert_int_equal(b.n, 4004);
    assert_memory_equal(b.p + 4000, "\0end", 5); /* a NUL byte is text, one more ends the buffer */
    assert_false(b.failed);
    assert_false(sib_buf_reserve(&b, SIZE_MAX - 10));
    assert_true(b.failed);
    assert_int_equal(b.n, 4004);
    sib_buf_deinit(&b);
    assert_null(b.p);

    sib_ids ids = {0};
    for (int i = 0; i < 1000; i++) sib_ids_add(&ids, i * 3);
    assert_int_equal(ids.n, 1000);
    for (int i = 0; i < 1000; i++) assert_int_equal(ids.v[i], i * 3);
    assert_false(sib_ids_reserve(&ids, SIZE_MAX / 8));
    assert_true(ids.failed);
    sib_ids_deinit(&ids);
}

static void small_string_helpers(void **state)
{
    (void)state;
    assert_true(sib_str_is(SIB_STR("abc"), "abc"));
    assert_false(sib_str_is(SIB_STR("ab\0c"), "ab"));
    assert_true(sib_str_eq(sib_str_of(NULL), SIB_STR("")));
    assert_true(sib_ends_with("model_mtp", "_mtp"));
    assert_false(sib_ends_with("mtp", "_mtp"));
    assert_true(sib_starts_with("abc", "") && sib_starts_with("abc", "ab") && !sib_starts_with("ab", "abc"));
    const char *const joins[][3] = {{"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"/", "b", "/b"}};
    for (size_t i = 0; i < SIB_COUNT(joins); i++) {
        char *p = sib_path_join(joins[i][0], joins[i][1]);
        assert_string_equal(p, joins[i][2]);
        free(p);
    }
}

static void files_are_read_whole_or_not(void **state)
{
    (void)state;
    char path[] = "/tmp/sib_base_test_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "hello", 5), 5);
    close(fd);
    sib_err err;
    sib_buf b = {0};
    sib_buf_addz(&b, ">");
    assert_int_equal(sib_read_file(path, 5, &b, &err), SIB_OK);
    assert_string_equal(b.p, ">hello");
    assert_int_equal(sib_read_file(path, 4, &b, &err), SIB_EFORMAT);
    assert_non_null(strstr(err.message, path));
    assert_int_equal(b.n, 6);
    assert_int_equal(sib_read_file("/tmp", 100, &b, &err), SIB_EIO);
    assert_int_equal(sib_read_file("/dev/zero", 100, &b, &err), SIB_EIO);
    unlink(path);
    assert_int_equal(sib_read_file(path, 100, &b, &err), SIB_EIO);
    assert_non_null(strstr(err.message, "No such file"));
    sib_buf_deinit(&b);
}

static void keep_line(void *ctx, sib_log_level level, const char *line)
{
    (void)snprintf(ctx, 100, "%d %s", (int)level, line);
}

static void the_log_is_silent_until_asked(void **state)
{
    (void)state;
    char line[100] = "";
    sib_log(SIB_LOG_ERROR, "nobody listens");
    sib_log_set(keep_line, line, SIB_LOG_WARN);
    sib_log(SIB_LOG_INFO, "too quiet");
    assert_string_equal(line, "");
    sib_log(SIB_LOG_WARN, "%d keys ignored", 3);
    assert_string_equal(line, "1 3 keys ignored");
    sib_log_set(NULL, NULL, SIB_LOG_DEBUG);
    sib_log(SIB_LOG_ERROR, "silent again");
    assert_string_equal(line, "1 3 keys ignored");
}

/* ---- UTF-8 ---- */

/* RFC 3629 as a rule on the decoded number: right length, no surrogate, at most U+10FFFF. */
static bool valid_by_rule(const unsigned char *u, size_t n)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    static const unsigned char lead[5] = {0, 0, 0xC0, 0xE0, 0xF0}, mask[5] = {0, 0, 0xE0, 0xF0, 0xF8};
    if (n == 1) return u[0] < 0x80;
    if ((u[0] & mask[n]) != lead[n]) return false;
    uint32_t cp = u[0] & (0xFFu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((u[i] & 0xC0) != 0x80) return false;
        cp = cp << 6 | (u[i] & 0x3Fu);
    }
    return cp >= least[n] && cp <= 0x10FFFF && !(cp >= 0xD800 && cp <= 0xDFFF);
}

static void every_scalar_survives(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        if (cp >= 0xD800 && cp <= 0xDFFF) continue;
        char s[4];
        size_t n = sib_utf8_put(cp, s), len;
        assert_int_equal(sib_utf8_next(s, n, &len), cp);
        assert_int_equal(len, n);
    }
}

static void every_sequence_of_up_to_three_bytes(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 1u << 24; bits++) {
        unsigned char u[3] = {(unsigned char)(bits >> 16), (unsigned char)(bits >> 8), (unsigned char)bits};
        if (u[0] < 0xC0 && (bits & 0xFFFF)) continue; /* the first byte decides alone: once is enough */
        size_t len, want = 0;
        uint32_t cp = sib_utf8_next((char *)u, 3, &len);
        for (size_t n = 1; n <= 3; n++)
            if (valid_by_rule(u, n)) want = n;
        if (want ? cp == SIB_UTF8_BAD || len != want : cp != SIB_UTF8_BAD || len < 1)
            fail_msg("%02x %02x %02x", u[0], u[1], u[2]);
    }
}

/* Can later bytes still complete u[0..n)? By trying: each valid scalar's prefix is one that can. */
static bool is_open_prefix(const unsigned char *u, size_t n)
{
    for (size_t len = n + 1; len <= 4; len++) {
        unsigned char t[4];
        memcpy(t, u, n);
        for (size_t fill = 0; fill < 2; fill++) { /* the rest all lowest or all highest covers the ranges */
            memset(t + n, fill ? 0xBF : 0x80, len - n);
            if (valid_by_rule(t, len)) return true;
        }
    }
    return false;
}

static void complete_holds_back_open_sequences_only(void **state)
{
    (void)state;
    /* every first byte with every second, alone, after text, and followed by a continuation */
    for (unsigned a = 0; a < 256; a++)
        for (unsigned b = 0; b < 257; b++)
            for (unsigned c = 0; c < 3; c++) {
                unsigned char s[8] = {'x', (unsigned char)a, (unsigned char)b, c == 1 ? 0x80 : 0xBF};
                size_t n = b == 256 ? 2 : c == 0 ? 3 : 4, hold = 0;
                for (size_t back = 1; back <= 3 && back < n; back++)
                    if (is_open_prefix(s + n - back, back)) hold = back;
                size_t got = sib_utf8_complete((sib_str){(char *)s, n});
                if (got != n - hold) fail_msg("%02x %02x %02x of %zu bytes: %zu, expected %zu", s[1], s[2], s[3], n, got, n - hold);
            }
    /* every split of scalars of each length, at the borders of each range */
    const uint32_t borders[] = {0x24,   0x7F,   0x80,   0x7FF,   0x800,   0xFFF,   0x1000,  0xCFFF,
                                0xD000, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x3FFFF, 0x40000, 0xFFFFF, 0x100000, 0x10FFFF};
    for (size_t i = 0; i < SIB_COUNT(borders); i++) {
        char s[8] = "ab";
        size_t n = sib_utf8_put(borders[i], s + 2);
        for (size_t cut = 0; cut <= n; cut++)
            assert_int_equal(sib_utf8_complete((sib_str){s, 2 + cut}), cut == n ? 2 + n : 2);
        assert_true(sib_utf8_valid((sib_str){s, 2 + n}));
        assert_int_equal(sib_utf8_count((sib_str){s, 2 + n}), 3);
        assert_int_equal(sib_utf8_valid((sib_str){s, 2 + n - 1}), n == 1);
    }
    assert_int_equal(sib_utf8_complete(SIB_STR("")), 0);
}

/* ---- JSON ---- */

static sib_status parse(const char *text, sib_err *err)
{
    json_t *v;
    sib_status s = sib_json_parse(&v, sib_str_of(text), "config.json", err);
    assert_true((s == SIB_OK) == (v != NULL));
    json_decref(v);
    return s;
}

static void nested(char *out, int depth)
{
    memset(out, '[', (size_t)depth);
    memset(out + depth, ']', (size_t)depth);
    out[2 * depth] = 0;
}

static void json_is_strict(void **state)
{
    (void)state;
    sib_err err;
    const char *const good[] = {"{}", " [1, 2.5e3, \"\\u00e9\", null] ", "{\"a\": {\"b\": 9223372036854775807}}"};
    const char *const bad[] = {"", "{", "{\"a\":1,\"a\":2}", "[1,]", "[9223372036854775808]", "[\"\xff\"]", "{} x",
                               "[01]", "[NaN]", "{\"\\u0000\":1}", "['a']", "[1e999]", "[\"\\ud800\"]"};
    for (size_t i = 0; i < SIB_COUNT(good); i++)
        if (parse(good[i], &err) != SIB_OK) fail_msg("%s: %s", good[i], err.message);
    for (size_t i = 0; i < SIB_COUNT(bad); i++) {
        if (parse(bad[i], &err) != SIB_EFORMAT) fail_msg("accepted: %s", bad[i]);
        assert_non_null(strstr(err.message, "config.json: "));
    }
    char deep[4000];
    nested(deep, 64);
    assert_int_equal(parse(deep, &err), SIB_OK);
    nested(deep, 65);
    assert_int_equal(parse(deep, &err), SIB_EFORMAT);
    assert_non_null(strstr(err.message, "64"));
    nested(deep, 1900);
    assert_int_equal(parse(deep, &err), SIB_EFORMAT);
    assert_int_equal(sib_json_depth(SIB_STR("[\"[[[\\\"[\", {}]")), 2);
    assert_int_equal(sib_json_depth(SIB_STR("]]][")), 0);
}

static void json_members_are_typed(void **state)
{
    (void)state;
    sib_err err;
    json_t *o;
    const char *text = "{\"i\": 5, \"r\": 2.5, \"b\": true, \"s\": \"x\", \"z\": \"a\\u0000b\", \"n\": null}";
    assert_int_equal(sib_json_parse(&o, sib_str_of(text), "t", &err), SIB_OK);
    int64_t i = -1;
    double d = -1;
    bool b = false;
    const char *s = NULL;
    assert_int_equal(sib_json_int(o, "t", "i", 0, 5, &i, &err), SIB_OK);
    assert_int_equal(i, 5);
    assert_int_equal(sib_json_int(o, "t", "i", 0, 4, &i, &err), SIB_EFORMAT);
    assert_string_equal(err.message, "t: key \"i\" is 5, allowed are 0 to 4");
    assert_int_equal(sib_json_int(o, "t", "r", 0, 9, &i, &err), SIB_EFORMAT);
    assert_int_equal(sib_json_int(o, "t", "b", 0, 9, &i, &err), SIB_EFORMAT);
    assert_int_equal(sib_json_num(o, "t", "i", 0, 9, &d, &err), SIB_OK);
    assert_true(d == 5);
    assert_int_equal(sib_json_num(o, "t", "r", 3, 9, &d, &err), SIB_EFORMAT);
    assert_int_equal(sib_json_bool(o, "t", "b", &b, &err), SIB_OK);
    assert_true(b);
    assert_int_equal(sib_json_bool(o, "t", "i", &b, &err), SIB_EFORMAT);
    assert_int_equal(sib_json_str(o, "t", "s", &s, &err), SIB_OK);
    assert_string_equal(s, "x");
    assert_int_equal(sib_json_str(o, "t", "z", &s, &err), SIB_EFORMAT); /* a C string would end early */
    const char *const absent[] = {"n", "missing"};
    for (size_t k = 0; k < 2; k++) {
        i = 77;
        assert_int_equal(sib_json_int(o, "t", absent[k], 0, 1, &i, &err), SIB_OK);
        assert_int_equal(i, 77);
        assert_null(sib_json_get(o, absent[k]));
    }
    json_decref(o);
}

static void json_output_reads_back(void **state)
{
    (void)state;
    const double values[] = {0, -0.0, 1, 0.1, 1.0 / 3, 1e300, 5e-324, -123456789.125, 1e21, 0.30000000000000004};
    for (size_t i = 0; i < SIB_COUNT(values); i++) {
        sib_buf b = {0};
        sib_json_put_num(&b, values[i]);
        assert_true(strtod(b.p, NULL) == values[i]);
        sib_buf_deinit(&b);
    }
    sib_buf b = {0};
    sib_json_put_num(&b, 0.1);
    sib_json_put_num(&b, NAN);
    sib_json_put_num(&b, -INFINITY);
    assert_string_equal(b.p, "0.1nullnull");
    sib_buf_deinit(&b);

    char all[256 + 2];
    for (int i = 0; i < 128; i++) all[i] = (char)i;
    memcpy(all + 128, "\xc3\xa9</", 4);
    sib_buf text = {0};
    sib_buf_addc(&text, '[');
    sib_json_put_str(&text, (sib_str){all, 132});
    sib_buf_addc(&text, ']');
    assert_non_null(strstr(text.p, "\xc3\xa9</\"]")); /* nothing beyond what JSON demands is escaped */
    json_t *v;
    sib_err err;
    if (sib_json_parse(&v, sib_buf_view(&text), "t", &err) != SIB_OK) fail_msg("%s", err.message);
    json_t *s = json_array_get(v, 0);
    assert_int_equal(json_string_length(s), 132);
    assert_memory_equal(json_string_value(s), all, 132);
    json_decref(v);
    sib_buf_deinit(&text);
}

/* ---- arena ---- */

static size_t push_some(sib_arena *a)
{
    char *one = SIB_PUSH(a, char, 1);
    double *many = SIB_PUSH(a, double, 100);
    size_t mark = a->top;
    for (int i = 0; i < 3; i++) {
        float *f = SIB_PUSH(a, float, 1000 * (i + 1));
        if (!f) return 0;
        assert_int_equal((uintptr_t)f % SIB_ARENA_ALIGN, 0);
        a->top = mark;
    }
    return one && many ? a->peak : 0;
}

static void a_plan_fits_exactly(void **state)
{
    (void)state;
    sib_arena plan, real;
    sib_arena_plan(&plan);
    assert_true(sib_arena_planning(&plan));
    size_t need = push_some(&plan);
    assert_true(need >= 1 + 800 + 12000 && need <= 1 + 800 + 12000 + 3 * SIB_ARENA_ALIGN);
    assert_int_equal(sib_arena_init(&real, need, NULL), SIB_OK);
    assert_false(sib_arena_planning(&real));
    assert_int_equal(push_some(&real), need);
    assert_false(real.failed);
    sib_arena_deinit(&real);
    assert_int_equal(sib_arena_init(&real, need - 1, NULL), SIB_OK);
    assert_int_equal(push_some(&real), 0);
    assert_true(real.failed);
    sib_arena_deinit(&real);
}

static void arena_sizes_cannot_wrap(void **state)
{
    (void)state;
    sib_arena a;
    assert_int_equal(sib_arena_init(&a, 1000, NULL), SIB_OK);
    const size_t huge[] = {SIZE_MAX, SIZE_MAX - 62, SIZE_MAX / 2, 1001, 1025};
    for (size_t i = 0; i < SIB_COUNT(huge); i++) {
        a.failed = false;
        assert_null(sib_push(&a, huge[i]));
        assert_true(a.failed);
    }
    a.failed = false;
    assert_null(sib_push_array(&a, SIZE_MAX / 4, 8));
    assert_true(a.failed);
    assert_int_equal(a.top, 0);
    sib_arena_deinit(&a);
    assert_null(sib_aligned_alloc(SIZE_MAX));
    const size_t sizes[] = {0, 1, 64, 4097, ((size_t)2 << 20) - 1, (size_t)2 << 20, ((size_t)6 << 20) + 1};
    for (size_t i = 0; i < SIB_COUNT(sizes); i++) {
        char *p = sib_aligned_alloc(sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % SIB_ARENA_ALIGN, 0);
        for (size_t k = 0; k < sizes[i]; k += 511) assert_int_equal(p[k], 0);
        if (sizes[i]) p[sizes[i] - 1] = 1;
        sib_aligned_free(p, sizes[i]);
    }
    sib_aligned_free(NULL, 5);
}

/* ---- threads ---- */

enum { ROUNDS = 20 };

typedef struct job {
    sib_pool *pool;
    atomic_int calls;
    atomic_int seen[SIB_MAX_THREADS];
    int sum[ROUNDS]; /* plain ints: only the barrier orders them */
    int part[SIB_MAX_THREADS];
} job;

static void count_call(void *ctx, int tid, int n_threads)
{
    job *j = ctx;
    (void)n_threads;
    atomic_fetch_add(&j->calls, 1);
    atomic_fetch_add(&j->seen[tid], 1);
}

static void barrier_rounds(void *ctx, int tid, int n_threads)
{
    job *j = ctx;
    for (int r = 0; r < ROUNDS; r++) {
        j->part[tid] = r + tid;
        sib_pool_barrier(j->pool);
        if (tid == r % n_threads) {
            j->sum[r] = 0;
            for (int i = 0; i < n_threads; i++) j->sum[r] += j->part[i];
        }
        sib_pool_barrier(j->pool);
    }
}

static void pools_of_every_kind(void **state)
{
    (void)state;
    const int sizes[] = {1, 2, 3, 7, 24}; /* far more threads than this machine may have */
    cpu_set_t before;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    for (size_t k = 0; k < SIB_COUNT(sizes); k++) {
        int n = sizes[k], jobs = n > 8 ? 200 : 2000;
        static job j;
        memset(&j, 0, sizeof j);
        assert_int_equal(sib_pool_new(&j.pool, n, k == 1, NULL), SIB_OK);
        assert_int_equal(sib_pool_threads(j.pool), n);
        for (int i = 0; i < jobs; i++) {
            sib_pool_run(j.pool, count_call, &j);
            assert_int_equal(atomic_load(&j.calls), (i + 1) * n); /* all have finished on return */
            if (i % 500 == 0) usleep(3000); /* let the workers park */
        }
        for (int t = 0; t < n; t++) assert_int_equal(atomic_load(&j.seen[t]), jobs);
        for (int again = 0; again < 3; again++) {
            sib_pool_run(j.pool, barrier_rounds, &j);
            for (int r = 0; r < ROUNDS; r++) assert_int_equal(j.sum[r], n * r + n * (n - 1) / 2);
        }
        sib_pool_free(j.pool);
        assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0); /* a pinned pool pins its caller */
    }
    static job alone;
    sib_pool_run(NULL, count_call, &alone);
    assert_int_equal(atomic_load(&alone.calls), 1);
    assert_int_equal(sib_pool_threads(NULL), 1);
    sib_pool_barrier(NULL);
    sib_pool_free(NULL);

    sib_pool *p;
    sib_err err;
    assert_int_equal(sib_pool_new(&p, 0, false, &err), SIB_EARG);
    assert_int_equal(sib_pool_new(&p, SIB_MAX_THREADS + 1, false, &err), SIB_EARG);
    assert_non_null(strstr(err.message, "257"));
    for (int i = 0; i < 50; i++) { /* freed before its workers have begun */
        assert_int_equal(sib_pool_new(&p, 4, false, NULL), SIB_OK);
        sib_pool_free(p);
    }
}

static void splits_cover_once(void **state)
{
    (void)state;
    for (int64_t n = 0; n < 70; n++)
        for (int64_t grain = 1; grain < 20; grain += 3)
            for (int threads = 1; threads < 12; threads++) {
                int64_t next = 0, least = INT64_MAX, most = 0;
                for (int t = 0; t < threads; t++) {
                    int64_t b, e;
                    sib_split(n, grain, t, threads, &b, &e);
                    assert_int_equal(b, next);
                    assert_true(e >= b && (b % grain == 0 || b == n));
                    int64_t units = (e - b + grain - 1) / grain;
                    least = units < least ? units : least;
                    most = units > most ? units : most;
                    next = e;
                }
                assert_int_equal(next, n);
                assert_true(most - least <= 1);
            }
}

static void cpu_levels(void **state)
{
    (void)state;
    char *saved = getenv("SIB_ISA") ? sib_strdup(getenv("SIB_ISA")) : NULL;
    int most = sib_cpu_detect();
    for (int l = 0; l < SIB_ISA_LEVELS; l++) {
        assert_int_equal(sib_cpu_level_named(sib_cpu_level_name(l)), l);
        setenv("SIB_ISA", sib_cpu_level_name(l), 1);
        assert_int_equal(sib_cpu_level(), l < most ? l : most);
    }
    setenv("SIB_ISA", "sse9", 1);
    assert_int_equal(sib_cpu_level(), most);
    if (saved)
        setenv("SIB_ISA", saved, 1);
    else
        unsetenv("SIB_ISA");
    free(saved);
    assert_int_equal(sib_cpu_level_named("sse9"), -1);
    assert_string_equal(sib_cpu_level_name(SIB_ISA_LEVELS), "?");
    assert_in_range(sib_cpu_physical_cores(), 1, 65536);
    assert_true(strlen(sib_cpu_model()) > 0);
}

/* ---- random numbers ---- */

/* Known answers of philox4x32-10 from the Random123 distribution (kat_vectors). */
static void philox_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < SIB_COUNT(known); i++) {
        const uint32_t *c = known[i].counter, *k = known[i].key;
        uint32_t out[4];
        sib_rng_block((uint64_t)k[1] << 32 | k[0], c[3], (uint64_t)c[1] << 32 | c[0], c[2], out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
}

static void draws_are_functions_of_their_place(void **state)
{
    (void)state;
    uint64_t bins[10] = {0}, below[7] = {0};
    for (uint32_t i = 0; i < 100000; i++) {
        uint32_t r[4];
        double u = sib_rng_uniform(42, SIB_RNG_SAMPLE, 9, i);
        sib_rng_block(42, SIB_RNG_SAMPLE, 9, i / 4, r);
        assert_true(u == r[i % 4] / 4294967296.0 && u >= 0 && u < 1);
        bins[(int)(u * 10)]++;
        uint32_t b = sib_rng_below(7, SIB_RNG_CANVAS, i, 3, 7);
        assert_in_range(b, 0, 6);
        below[b]++;
    }
    for (int i = 0; i < 10; i++) assert_in_range(bins[i], 9600, 10400);
    for (int i = 0; i < 7; i++) assert_in_range(below[i], 13800, 14800);
    assert_int_equal(sib_rng_below(1, 2, 3, 4, 1), 0);
    double base = sib_rng_uniform(1, 2, 3, 4);
    assert_true(base != sib_rng_uniform(2, 2, 3, 4) && base != sib_rng_uniform(1, 3, 3, 4));
    assert_true(base != sib_rng_uniform(1, 2, 4, 4) && base != sib_rng_uniform(1, 2, 3, 5));
    uint64_t s = 0; /* SplitMix64 from state 0, as in Vigna's reference */
    assert_true(sib_splitmix64(&s) == 0xE220A8397B1DCDAFu && sib_splitmix64(&s) == 0x6E789E6AA1B965F4u);
}

/* ---- number formats ---- */

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static double half_value(uint16_t h, int exp_bits, int frac_bits)
{
    int e = h >> frac_bits & ((1 << exp_bits) - 1), bias = (1 << (exp_bits - 1)) - 1;
    double frac = h & ((1 << frac_bits) - 1), v;
    if (e == (1 << exp_bits) - 1)
        v = frac ? (double)NAN : (double)INFINITY;
    else
        v = e == 0 ? ldexp(frac, 1 - bias - frac_bits) : ldexp(frac + (1 << frac_bits), e - bias - frac_bits);
    return h >> 15 ? -v : v;
}

/* Nearest, ties to even, from neighbours: `narrow` must give lo or hi, whichever is right for x. */
static void check_rounding(uint16_t (*narrow)(float), float (*wide)(uint16_t), uint16_t lo)
{
    uint16_t hi = (uint16_t)(lo + 1);
    double a = (double)wide(lo), b = isinf(wide(hi)) ? 2 * a - (double)wide((uint16_t)(lo - 1)) : (double)wide(hi);
    float mid = (float)((a + b) / 2); /* exact: one more bit */
    uint16_t even = lo & 1 ? hi : lo;
    assert_int_equal(narrow(mid), even);
    assert_int_equal(narrow(-mid), even | 0x8000);
    assert_int_equal(narrow(nextafterf(mid, 0)), lo);
    assert_int_equal(narrow(nextafterf(mid, INFINITY)), hi);
}

static float wide_bf16(uint16_t h)
{
    return sib_f32_of_bf16(h);
}

static uint16_t narrow_bf16(float f)
{
    return sib_bf16_of_f32(f);
}

static void every_half(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        float f = sib_f32_of_f16(h), b = sib_f32_of_bf16(h);
        double vf = half_value(h, 5, 10), vb = half_value(h, 8, 7);
        if (isnan(vf)) {
            assert_true(isnan(f) && isnan(sib_f32_of_f16(sib_f16_of_f32(f))));
        } else {
            assert_true(f == vf && !signbit(f) == !signbit(vf));
            assert_int_equal(sib_f16_of_f32(f), h);
        }
        if (isnan(vb)) {
            assert_true(isnan(b) && isnan(sib_f32_of_bf16(sib_bf16_of_f32(b))));
        } else {
            assert_true(b == vb && !signbit(b) == !signbit(vb));
            assert_int_equal(sib_bf16_of_f32(b), h);
            assert_true(bits_of(sib_round_bf16(b)) == bits_of(b));
        }
        if (h < 0x7C00) check_rounding(sib_f16_of_f32, sib_f32_of_f16, h);
        if (h < 0x7F80) check_rounding(narrow_bf16, wide_bf16, h);
    }
    assert_int_equal(sib_f16_of_f32(1e30f), 0x7C00);
    assert_int_equal(sib_f16_of_f32(-INFINITY), 0xFC00);
    assert_int_equal(sib_f16_of_f32(0x1p-149f), 0);
    uint32_t quiet = 0x7F800001; /* a NaN whose upper half alone would be infinity */
    float nan_f;
    memcpy(&nan_f, &quiet, sizeof nan_f);
    assert_true(isnan(sib_f32_of_bf16(sib_bf16_of_f32(nan_f))));
}

static void every_small_float(void **state)
{
    (void)state;
    for (int i = 0; i < 256; i++) {
        uint8_t b = (uint8_t)i;
        double e4m3 = (b & 0x7F) == 0x7F ? (double)NAN
                      : (b & 0x78)       ? ldexp(8 + (b & 7), (b >> 3 & 15) - 10)
                                         : ldexp(b & 7, -9);
        if (b >> 7) e4m3 = -e4m3;
        float got = sib_f32_of_e4m3(b);
        assert_true(isnan(e4m3) ? isnan(got) : got == e4m3);
        got = sib_f32_of_e8m0(b);
        assert_true(b == 255 ? isnan(got) : got == ldexp(1, i - 127));
    }
    assert_true(sib_f32_of_e4m3(0x7E) == 448);
}

static void dtypes_and_unaligned_reads(void **state)
{
    (void)state;
    for (int t = 0; t < SIB_N_DTYPES; t++) {
        sib_dtype back;
        assert_true(sib_dtype_named(sib_str_of(sib_dtype_name((sib_dtype)t)), &back));
        assert_int_equal(back, t);
        assert_in_range(sib_dtype_bits((sib_dtype)t), 4, 64);
    }
    sib_dtype none;
    assert_false(sib_dtype_named(SIB_STR("f32"), &none));
    assert_string_equal(sib_dtype_name(SIB_N_DTYPES), "?");

    unsigned char raw[1 + 8 * 3];
    float out[3];
    const float f[3] = {1.5f, -2, 3};
    const uint16_t bf[3] = {0x3FC0, 0xC000, 0x4040}, hf[3] = {0x3E00, 0xC000, 0x4200};
    const double d[3] = {1.5, -2, 3};
    const int32_t i32[3] = {1, -2, 3};
    const int8_t i8[3] = {1, -2, 3};
    const uint8_t u8[3] = {1, 254, 3}, f8[3] = {0x3C, 0xC0, 0x44};
    const struct {
        sib_dtype t;
        const void *data;
        size_t bytes;
        float want[3];
    } rows[] = {
        {SIB_F32, f, sizeof f, {1.5f, -2, 3}},    {SIB_BF16, bf, sizeof bf, {1.5f, -2, 3}}, {SIB_F16, hf, sizeof hf, {1.5f, -2, 3}},
        {SIB_F64, d, sizeof d, {1.5f, -2, 3}},    {SIB_I32, i32, sizeof i32, {1, -2, 3}},   {SIB_I8, i8, sizeof i8, {1, -2, 3}},
        {SIB_U8, u8, sizeof u8, {1, 254, 3}},     {SIB_F8_E4M3, f8, sizeof f8, {1.5f, -2, 3}},
    };
    for (size_t r = 0; r < SIB_COUNT(rows); r++) {
        memcpy(raw + 1, rows[r].data, rows[r].bytes); /* an odd address */
        assert_true(sib_to_f32(out, raw + 1, rows[r].t, 3));
        assert_memory_equal(out, rows[r].want, sizeof out);
    }
    const sib_dtype unread[] = {SIB_I64, SIB_U64, SIB_F4, SIB_F6_E2M3};
    for (size_t i = 0; i < SIB_COUNT(unread); i++) assert_false(sib_to_f32(out, raw, unread[i], 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_carry_one_sentence),
        cmocka_unit_test(buffers_grow_and_fail_softly),
        cmocka_unit_test(small_string_helpers),
        cmocka_unit_test(files_are_read_whole_or_not),
        cmocka_unit_test(the_log_is_silent_until_asked),
        cmocka_unit_test(every_scalar_survives),
        cmocka_unit_test(every_sequence_of_up_to_three_bytes),
        cmocka_unit_test(complete_holds_back_open_sequences_only),
        cmocka_unit_test(json_is_strict),
        cmocka_unit_test(json_members_are_typed),
        cmocka_unit_test(json_output_reads_back),
        cmocka_unit_test(a_plan_fits_exactly),
        cmocka_unit_test(arena_sizes_cannot_wrap),
        cmocka_unit_test(pools_of_every_kind),
        cmocka_unit_test(splits_cover_once),
        cmocka_unit_test(cpu_levels),
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(draws_are_functions_of_their_place),
        cmocka_unit_test(every_half),
        cmocka_unit_test(every_small_float),
        cmocka_unit_test(dtypes_and_unaligned_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

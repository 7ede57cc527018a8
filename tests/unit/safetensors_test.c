/* tests/unit/safetensors_test.c - artifacts/safetensors.h and mapping.h: every check of formats.md A.2,
 * the malicious files of A.4, the writer, and a file that is cut while it is mapped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "artifacts/safetensors.h"

#include "artifacts_fixture.h"

#include <pthread.h>
#include <signal.h>

static sib_err err;

/* A file with this header (length field `n`, or its true length when n is 0) and `data` zero bytes. */
static const char *file_of(const char *header, size_t header_bytes, uint64_t n, size_t data)
{
    static unsigned char bytes[1 << 16];
    if (n == 0) n = header_bytes;
    assert_true(8 + header_bytes + data <= sizeof bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(n >> 8 * i);
    memcpy(bytes + 8, header, header_bytes);
    for (size_t i = 0; i < data; i++) bytes[8 + header_bytes + i] = (unsigned char)i;
    return fixture_write("t.safetensors", bytes, 8 + header_bytes + data);
}

static sib_status open_text(const char *header, size_t data, bool lax)
{
    sib_safetensors *f = NULL;
    err = (sib_err){0};
    sib_status s = sib_safetensors_open(&f, file_of(header, strlen(header), 0, data), lax, &err);
    assert_true((s == SIB_OK) == (f != NULL));
    sib_safetensors_free(f);
    return s;
}

#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void reads_tensors(void **state)
{
    (void)state;
    const char *h = "{\"b\": " T("U8", "[3]", "[4,7]") ", \"__metadata__\":{\"format\":\"mlx\",\"k\\n\":\"v\\u00e9\"},"
                                                       "\"a\\u00e9\\ud83d\\ude00\":{\"x\":[1,{\"y\":null}],\"data_"
                                                       "offsets\":[0,4],\"shape\":[2,1],\"dtype\":\"BF16\"},"
                                                       "\"s\":" T("F32", "[]", "[7,11]") ",\"z\":" T(
                                                           "F32", "[0,9223372036854775807]", "[7,7]") "}   ";
    sib_safetensors *f;
    assert_int_equal(sib_safetensors_open(&f, file_of(h, strlen(h), 0, 11), false, &err), SIB_OK);
    assert_int_equal(sib_safetensors_count(f), 4);
    const sib_tensor_info *a = sib_safetensors_find(f, "a\xc3\xa9\xf0\x9f\x98\x80"), *s = sib_safetensors_find(f, "s");
    assert_non_null(a);
    assert_ptr_equal(a, sib_safetensors_at(f, 0));
    assert_int_equal(a->dtype, SIB_BF16);
    assert_int_equal(a->rank, 2);
    assert_int_equal(a->shape[0], 2);
    assert_int_equal(a->shape[1], 1);
    assert_int_equal(a->bytes, 4);
    assert_int_equal(((const unsigned char *)a->data)[3], 3);
    assert_int_equal(((const unsigned char *)sib_safetensors_find(f, "b")->data)[0], 4);
    assert_int_equal(s->rank, 0);
    assert_int_equal(sib_tensor_elements(s), 1);
    assert_int_equal(sib_tensor_elements(sib_safetensors_find(f, "z")), 0);
    assert_null(sib_safetensors_find(f, "A"));
    assert_null(sib_safetensors_find(f, ""));
    assert_string_equal(sib_safetensors_metadata(f, "format"), "mlx");
    assert_string_equal(sib_safetensors_metadata(f, "k\n"), "v\xc3\xa9");
    assert_null(sib_safetensors_metadata(f, "mlx"));
    char text[256];
    assert_string_equal(sib_tensor_describe(a, text), "BF16 [2, 1]");
    sib_safetensors_free(f);

    assert_int_equal(open_text("{}", 0, false), SIB_OK);
    assert_int_equal(open_text("{\"__metadata__\":null}", 0, false), SIB_OK);
    assert_int_equal(open_text("{\"a\":" T("F4", "[4]", "[0,2]") "}", 2, false), SIB_OK);
}

/* Every row must be refused, with a sentence that holds `says`. */
static void refuses_bad_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        const char *says;
    } rows[] = {
        {"[]", 0, "begin with '{'"},
        {"null", 0, "begin with '{'"},
        {"\"x\"", 0, "begin with '{'"},
        {" {}", 0, "begin with '{'"},
        {"\xef\xbb\xbf{}", 0, "begin with '{'"},
        {"{", 0, "expected a string"},
        {"{}x", 0, "after the header"},
        {"{\"a\"", 0, "':'"},
        {"{\"a\":1}", 0, "object"},
        {"{\"a\":{}}", 0, "\"dtype\" is missing"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0, "\"data_offsets\" is missing"},
        {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,0]}}", 0, "\"shape\" is missing"},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "\"dtype\" twice"},
        {"{\"a\":" T("U9", "[1]", "[0,1]") "}", 1, "dtype"},
        {"{\"a\":" T("u8", "[1]", "[0,1]") "}", 1, "dtype"},
        {"{\"a\":" T("U8", "[-1]", "[0,1]") "}", 1, "non-negative"},
        {"{\"a\":" T("U8", "[2.0]", "[0,2]") "}", 2, "non-negative"},
        {"{\"a\":" T("U8", "[1e3]", "[0,1000]") "}", 1000, "non-negative"},
        {"{\"a\":" T("U8", "[01]", "[0,1]") "}", 1, "leading zero"},
        {"{\"a\":" T("U8", "[18446744073709551616]", "[0,1]") "}", 1, "2^64"},
        {"{\"a\":" T("U8", "[9223372036854775808]", "[0,1]") "}", 1, "2^63"},
        {"{\"a\":" T("U8", "[4294967296,4294967296]", "[0,0]") "}", 0, "overflow"},
        {"{\"a\":" T("F64", "[4611686018427387904]", "[0,0]") "}", 0, "overflow"},
        {"{\"a\":" T("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "more than 8"},
        {"{\"a\":" T("U8", "1", "[0,1]") "}", 1, "list"},
        {"{\"a\":" T("U8", "[1]", "[0]") "}", 1, "exactly two"},
        {"{\"a\":" T("U8", "[1]", "[0,1,2]") "}", 1, "exactly two"},
        {"{\"a\":" T("U8", "[1]", "[1,0]") "}", 1, "hole or overlap"},
        {"{\"a\":" T("U8", "[1]", "[0,2]") "}", 2, "need 1 bytes"},
        {"{\"a\":" T("U8", "[9]", "[0,9]") "}", 8, "incomplete"},
        {"{\"a\":" T("F4", "[3]", "[0,2]") "}", 2, "whole bytes"},
        {"{\"a\":" T("U8", "[1]", "[0,1]") ",\"a\":" T("U8", "[1]", "[1,2]") "}", 2, "twice"},
        {"{\"a\":" T("U8", "[0]", "[0,0]") ",\"\\u0061\":" T("U8", "[0]", "[0,0]") "}", 0, "twice"},
        {"{\"a\\u0000b\":" T("U8", "[1]", "[0,1]") "}", 1, "NUL"},
        {"{\"a\\u001b[2J\":" T("U8", "[1]", "[0,1]") "}", 1, "control"},
        {"{\"a\x7f\":" T("U8", "[1]", "[0,1]") "}", 1, "control"},
        {"{\"\":" T("U8", "[1]", "[0,1]") "}", 1, "empty"},
        {"{\"\\ud800\":" T("U8", "[1]", "[0,1]") "}", 1, "surrogate"},
        {"{\"\\udc00\":" T("U8", "[1]", "[0,1]") "}", 1, "surrogate"},
        {"{\"\\ud800\\u0041\":" T("U8", "[1]", "[0,1]") "}", 1, "surrogate"},
        {"{\"\\u00g0\":" T("U8", "[1]", "[0,1]") "}", 1, "hexadecimal"},
        {"{\"\\u00`0\":" T("U8", "[1]", "[0,1]") "}", 1, "hexadecimal"},
        {"{\"\\x\":" T("U8", "[1]", "[0,1]") "}", 1, "escape"},
        {"{\"a\nb\":" T("U8", "[1]", "[0,1]") "}", 1, "control"},
        {"{\"a", 0, "without an end"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "string"},
        {"{\"__metadata__\":[]}", 0, "object of strings"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice"},
        {"{\"a\":{\"x\":[[[[[[[[[1]]]]]]]]],\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         "deeper than 8"},
        {"{\"a\":{\"x\":tru,\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "expected a value"},
        {"{\"a\":{\"x\":-,\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "expected a value"},
    };
    for (size_t i = 0; i < SIB_COUNT(rows); i++) {
        sib_status s = open_text(rows[i].header, rows[i].data, false);
        if (s != SIB_EFORMAT || !strstr(err.message, rows[i].says) || !strstr(err.message, "t.safetensors"))
            fail_msg("row %zu: %s: %s", i, sib_status_name(s), err.message);
        s = open_text(rows[i].header, rows[i].data, true);
        if (s != SIB_EFORMAT) fail_msg("row %zu is accepted when lax", i);
    }
}

/* Holes, overlap and trailing bytes: exactly what `lax` lets pass. */
static void lax_drops_two_rules(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
    } rows[] = {
        {"{\"a\":" T("U8", "[1]", "[1,2]") "}", 2},
        {"{\"a\":" T("U8", "[1]", "[0,1]") ",\"b\":" T("U8", "[1]", "[2,3]") "}", 3},
        {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[0,2]") "}", 2},
        {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[1,3]") "}", 3},
        {"{\"a\":" T("U8", "[1]", "[0,1]") "}", 2},
        {"{}", 1},
    };
    for (size_t i = 0; i < SIB_COUNT(rows); i++) {
        assert_int_equal(open_text(rows[i].header, rows[i].data, false), SIB_EFORMAT);
        if (open_text(rows[i].header, rows[i].data, true) != SIB_OK) fail_msg("row %zu: %s", i, err.message);
    }
}

static void refuses_bad_lengths(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {3, 100, UINT64_C(1) << 63, UINT64_MAX, UINT64_MAX - 7, 100000001, 99999999};
    sib_safetensors *f;
    for (size_t i = 0; i < SIB_COUNT(lengths); i++)
        assert_int_equal(sib_safetensors_open(&f, file_of("{}", 2, lengths[i], 0), false, &err), SIB_EFORMAT);
    for (size_t n = 0; n < 8; n++)
        assert_int_equal(sib_safetensors_open(&f, fixture_write("t.safetensors", "\0\0\0\0\0\0\0", n), false, &err),
                         SIB_EFORMAT);
    assert_int_equal(sib_safetensors_open(&f, fixture_write("t.safetensors", "\0\0\0\0\0\0\0\0", 8), false, &err),
                     SIB_EFORMAT);
    assert_int_equal(sib_safetensors_open(&f, file_of("{\"\xff\":1}", 8, 0, 0), false, &err), SIB_EFORMAT);
    assert_non_null(strstr(err.message, "UTF-8"));
}

static void refuses_long_names_and_deep_nesting(void **state)
{
    (void)state;
    static char header[60000];
    for (size_t n = 1024; n <= 1025; n++) {
        char name[1026] = {0};
        memset(name, 'n', n);
        (void)snprintf(header, sizeof header, "{\"%s\":" T("U8", "[1]", "[0,1]") "}", name);
        assert_int_equal(open_text(header, 1, false), n == 1024 ? SIB_OK : SIB_EFORMAT);
    }
    strcpy(header, "{\"a\":{\"x\":");
    memset(header + 10, '[', 50000);
    header[50010] = 0;
    assert_int_equal(open_text(header, 0, false), SIB_EFORMAT);
    memset(header + 1, '{', 50000);
    assert_int_equal(open_text(header, 0, false), SIB_EFORMAT);
}

static void refuses_what_is_no_file(void **state)
{
    (void)state;
    sib_safetensors *f;
    assert_int_equal(sib_safetensors_open(&f, fixture_dir, false, &err), SIB_EIO);
    assert_int_equal(sib_safetensors_open(&f, fixture_path("absent"), false, &err), SIB_EIO);
    assert_int_equal(symlink("loop", fixture_path("loop")), 0);
    assert_int_equal(sib_safetensors_open(&f, fixture_path("loop"), false, &err), SIB_EIO);
    assert_int_equal(mkfifo(fixture_path("pipe"), 0600), 0);
    assert_int_equal(sib_safetensors_open(&f, fixture_path("pipe"), false, &err), SIB_EIO);
    assert_int_equal(sib_safetensors_open(&f, "/dev/zero", false, &err), SIB_EIO);
}

/* Each prefix of a good header, and each of its bytes replaced, ends in OK or in a clean error. */
static void survives_mutations(void **state)
{
    (void)state;
    const char *h = "{\"__metadata__\":{\"f\":\"\\u00e9\"},\"a\":" T("U8", "[1,2]", "[0,2]") ",\"b\":" T("BF16", "[1]",
                                                                                                         "[2,4]") "}";
    static const char bytes[] = {0, '"', '{', '}', '[', ']', ',', ':', '\\', '9', '-', (char)0xff, '`'};
    size_t n = strlen(h);
    char copy[256];
    sib_safetensors *f;
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(sib_safetensors_open(&f, file_of(h, i, 0, 4), false, &err), SIB_EFORMAT);
        for (size_t b = 0; b < sizeof bytes; b++) {
            memcpy(copy, h, n);
            copy[i] = bytes[b];
            (void)sib_safetensors_open(&f, file_of(copy, n, 0, 4), b % 2, &err);
            sib_safetensors_free(f);
        }
    }
}

static void many_tensors_are_found(void **state)
{
    (void)state;
    enum { N = 20000 };
    sib_safetensors_writer *w;
    const char *path = fixture_path("many.safetensors");
    char name[32];
    /* The reserved room is far too small: the data must move. */
    assert_int_equal(sib_safetensors_create(&w, path, 64, &err), SIB_OK);
    for (uint32_t i = 0; i < N; i++) {
        (void)snprintf(name, sizeof name, "layers.%u.weight", (unsigned)i);
        assert_int_equal(sib_safetensors_add(w, name, SIB_U32, 1, (int64_t[]){1}, &i, &err), SIB_OK);
    }
    assert_int_equal(sib_safetensors_finish(w, &err), SIB_OK);
    sib_safetensors *f;
    assert_int_equal(sib_safetensors_open(&f, path, false, &err), SIB_OK);
    assert_int_equal(sib_safetensors_count(f), N);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t v;
        (void)snprintf(name, sizeof name, "layers.%u.weight", (unsigned)i);
        const sib_tensor_info *t = sib_safetensors_find(f, name);
        assert_non_null(t);
        memcpy(&v, t->data, sizeof v);
        assert_int_equal(v, i);
    }
    assert_null(sib_safetensors_find(f, "layers.20000.weight"));
    sib_safetensors_free(f);
}

static void writes_what_it_reads(void **state)
{
    (void)state;
    const char *path = fixture_text("w.safetensors", "the old file");
    sib_safetensors_writer *w;
    sib_safetensors *f;
    const float x[6] = {1, 2, 3, 4, 5, 6};
    assert_int_equal(sib_safetensors_create(&w, path, 0, &err), SIB_OK);
    assert_int_equal(sib_safetensors_put_metadata(w, "format", "a\"b\\\n", &err), SIB_OK);
    assert_int_equal(sib_safetensors_add(w, "x", SIB_F32, 2, (int64_t[]){2, 3}, x, &err), SIB_OK);
    assert_int_equal(sib_safetensors_begin(w, "piece\xc3\xa9wise", SIB_U8, 1, (int64_t[]){5}, &err), SIB_OK);
    assert_int_equal(sib_safetensors_write(w, "ab", 2, &err), SIB_OK);
    assert_int_equal(sib_safetensors_begin(w, "early", SIB_U8, 0, NULL, &err), SIB_ESTATE);
    assert_int_equal(sib_safetensors_write(w, "cdef", 4, &err), SIB_ESTATE);
    assert_int_equal(sib_safetensors_write(w, "cde", 3, &err), SIB_OK);
    assert_int_equal(sib_safetensors_begin(w, "x", SIB_U8, 0, NULL, &err), SIB_EARG);
    assert_int_equal(sib_safetensors_begin(w, "__metadata__", SIB_U8, 0, NULL, &err), SIB_EARG);
    assert_int_equal(sib_safetensors_begin(w, "n", SIB_U8, 1, (int64_t[]){-1}, &err), SIB_EARG);
    assert_int_equal(sib_safetensors_begin(w, "o", SIB_F4, 1, (int64_t[]){3}, &err), SIB_EARG);
    assert_int_equal(sib_safetensors_finish(w, &err), SIB_OK);

    assert_int_equal(sib_safetensors_open(&f, path, false, &err), SIB_OK);
    assert_int_equal(sib_safetensors_count(f), 2);
    assert_int_equal(
        (size_t)((const unsigned char *)sib_safetensors_at(f, 0)->data - sib_mapping_data(sib_safetensors_mapping(f))) %
            8,
        0);
    assert_memory_equal(sib_safetensors_find(f, "x")->data, x, sizeof x);
    assert_memory_equal(sib_safetensors_find(f, "piece\xc3\xa9wise")->data, "abcde", 5);
    assert_string_equal(sib_safetensors_metadata(f, "format"), "a\"b\\\n");
    sib_safetensors_free(f);

    /* An incomplete file never takes the target's place, and leaves nothing behind. */
    assert_int_equal(sib_safetensors_create(&w, path, 0, &err), SIB_OK);
    assert_int_equal(sib_safetensors_begin(w, "x", SIB_U8, 1, (int64_t[]){5}, &err), SIB_OK);
    assert_int_equal(sib_safetensors_finish(w, &err), SIB_ESTATE);
    assert_int_equal(sib_safetensors_open(&f, path, false, &err), SIB_OK);
    assert_int_equal(sib_safetensors_count(f), 2);
    sib_safetensors_free(f);
    assert_int_equal(sib_safetensors_create(&w, fixture_path("no/such/folder"), 0, &err), SIB_EIO);
    DIR *d = opendir(fixture_dir);
    for (struct dirent *e; (e = readdir(d));) assert_null(strstr(e->d_name, ".tmp-"));
    closedir(d);
}

/* ---- a file that is cut while it is mapped ----------------------------------------------- */

/* cmocka puts its own handlers in place before every test. */
static struct sigaction guard;

static void restore_guard(void)
{
    assert_int_equal(sigaction(SIGBUS, &guard, NULL), 0);
}

static void *sum_bytes(void *arg)
{
    const sib_tensor_info *t = arg;
    const volatile unsigned char *p = t->data;
    size_t sum = 0;
    for (size_t i = 0; i < t->bytes; i++) sum += p[i];
    return (void *)sum;
}

static void a_cut_file_is_an_error_not_a_crash(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    restore_guard();
    const char *path = fixture_path("cut.safetensors");
    unsigned char *ones = malloc(N);
    memset(ones, 1, N);
    sib_safetensors_writer *w;
    sib_safetensors *f, *other;
    assert_int_equal(sib_safetensors_create(&w, path, 0, &err), SIB_OK);
    assert_int_equal(sib_safetensors_add(w, "x", SIB_U8, 1, (int64_t[]){N}, ones, &err), SIB_OK);
    assert_int_equal(sib_safetensors_finish(w, &err), SIB_OK);
    free(ones);
    assert_int_equal(sib_safetensors_open(&f, path, false, &err), SIB_OK);
    assert_int_equal(sib_safetensors_open(&other, file_of("{}", 2, 0, 0), false, &err), SIB_OK);
    assert_int_equal(sib_mapping_intact(sib_safetensors_mapping(f), &err), SIB_OK);
    const sib_tensor_info *t = sib_safetensors_find(f, "x");
    assert_int_equal((size_t)sum_bytes((void *)(uintptr_t)t), N);

    assert_int_equal(truncate(path, 200000), 0);
    assert_int_equal(sib_mapping_intact(sib_safetensors_mapping(f), &err), SIB_EIO); /* seen before any read */
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, sum_bytes, (void *)(uintptr_t)t), 0);
    for (int i = 0; i < 4; i++) {
        void *sum;
        assert_int_equal(pthread_join(threads[i], &sum), 0);
        assert_true((size_t)sum < N); /* zeros where the file has gone */
    }
    assert_int_equal(truncate(path, 64 + 65536 + N), 0); /* growing back does not heal it */
    assert_int_equal(sib_mapping_intact(sib_safetensors_mapping(f), &err), SIB_EIO);
    assert_non_null(strstr(err.message, "cut.safetensors"));
    assert_int_equal(sib_mapping_intact(sib_safetensors_mapping(other), &err), SIB_OK);
    sib_safetensors_free(f);
    sib_safetensors_free(other);
}

static void many_mappings_are_watched(void **state)
{
    (void)state;
    enum { N = 150 }; /* more than one block of places */
    restore_guard();
    static sib_mapping *m[N];
    static char page[8192];
    const char *keep = fixture_write("keep", page, sizeof page);
    for (int i = 0; i < N - 1; i++) assert_int_equal(sib_mapping_open(&m[i], keep, &err), SIB_OK);
    const char *path = fixture_write("last", page, sizeof page);
    assert_int_equal(sib_mapping_open(&m[N - 1], path, &err), SIB_OK);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(*(const volatile unsigned char *)(sib_mapping_data(m[N - 1]) + 5000), 0);
    assert_int_equal(truncate(path, sizeof page), 0);
    assert_int_equal(sib_mapping_intact(m[N - 1], &err), SIB_EIO);
    assert_int_equal(sib_mapping_intact(m[0], &err), SIB_OK);
    unsigned char byte;
    assert_int_equal(sib_mapping_read(m[0], sizeof page, &byte, 1, &err), SIB_EARG);
    assert_int_equal(truncate(keep, 10), 0);
    assert_int_equal(sib_mapping_read(m[0], 10, &byte, 1, &err), SIB_EIO);
    for (int i = 0; i < N; i++) sib_mapping_free(m[i]);
}

int main(void)
{
    sib_mapping *any; /* the first mapping installs the handler */
    if (sib_mapping_open(&any, "/proc/self/exe", NULL) != SIB_OK || sigaction(SIGBUS, NULL, &guard) != 0) return 1;
    sib_mapping_free(any);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_tensors),
        cmocka_unit_test(refuses_bad_headers),
        cmocka_unit_test(lax_drops_two_rules),
        cmocka_unit_test(refuses_bad_lengths),
        cmocka_unit_test(refuses_long_names_and_deep_nesting),
        cmocka_unit_test(refuses_what_is_no_file),
        cmocka_unit_test(survives_mutations),
        cmocka_unit_test(many_tensors_are_found),
        cmocka_unit_test(writes_what_it_reads),
        cmocka_unit_test(a_cut_file_is_an_error_not_a_crash),
        cmocka_unit_test(many_mappings_are_watched),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}

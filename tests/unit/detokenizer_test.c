/* tests/unit/detokenizer_test.c - ids to text, at once and streamed, against the reference's answers
 * (tests/cases/tokenizers). */
#include "tokenizer_cases.h"

#include "text/detokenizer.h"

/* ---- decoders alone ---- */

/* Chains that cannot be streamed, or that no model family here uses: refused with the name. */
static bool refused(const json_t *spec)
{
    char *text = json_dumps(spec, JSON_COMPACT);
    bool yes = strstr(text, "WordPiece") || strstr(text, "BPEDecoder") || strstr(text, "\"Regex\"") ||
               strstr(text, "\"Fuse\"},{\"type\":\"ByteLevel\"");
    free(text);
    return yes;
}

/* A run of byte tokens that is not valid UTF-8 as a whole, with a whole character in it: the
 * freedom that tokenizer.h documents. */
static bool is_free(const sib_str *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        sib_buf run = {0};
        for (; i < n && tokens[i].n == 6 && memcmp(tokens[i].p, "<0x", 3) == 0; i++) {
            char hex[3] = {tokens[i].p[3], tokens[i].p[4], 0}, *end;
            long byte = strtol(hex, &end, 16);
            if (*end || tokens[i].p[5] != '>') break;
            sib_buf_addc(&run, (char)byte);
        }
        bool whole = false;
        for (size_t k = 0, len; k < run.n; k += len)
            whole = sib_utf8_next(run.p + k, run.n - k, &len) != SIB_UTF8_BAD || whole;
        bool yes = whole && !sib_utf8_valid(sib_buf_view(&run));
        sib_buf_deinit(&run);
        if (yes) return true;
    }
    return false;
}

static void each_decoder_alone(void **state)
{
    (void)state;
    json_t *root = case_json("components.json"), *entry, *row, *token;
    size_t i, k, j, n_rows = 0, n_free = 0;
    sib_buf out = {0};
    json_array_foreach(json_object_get(root, "decoders"), i, entry) {
        json_t *spec = json_object_get(entry, "decoder");
        sib_decoder *z;
        sib_err err = {0};
        sib_status s = sib_decoder_new(&z, spec, &err);
        if (refused(spec)) {
            assert_int_equal(s, SIB_EUNSUPPORTED);
            assert_true(sib_starts_with(err.message, "decoder"));
            continue;
        }
        if (s != SIB_OK) fail_msg("decoder %zu: %s", i, err.message);
        sib_decoding d = {0};
        char *dump = json_dumps(spec, 0);
        bool has_byte_fallback = strstr(dump, "ByteFallback") != NULL;
        free(dump);
        json_array_foreach(json_object_get(entry, "cases"), k, row) {
            sib_str tokens[64];
            char where[80];
            out.n = 0;
            json_array_foreach(json_object_get(row, "tokens"), j, token) {
                assert_true(j < SIB_COUNT(tokens));
                tokens[j] = case_str(token);
                assert_int_equal(sib_decoding_push(&d, z, tokens[j], &out, &err), SIB_OK);
                assert_true(sib_utf8_valid(sib_buf_view(&out)));
            }
            assert_int_equal(sib_decoding_end(&d, z, &out, &err), SIB_OK);
            (void)snprintf(where, sizeof where, "decoders[%zu]", i);
            n_rows++;
            if (has_byte_fallback && is_free(tokens, j)) {
                n_free++;
                continue;
            }
            case_expect_text(where, k, sib_buf_view(&out), case_str(json_object_get(row, "out")));
        }
        sib_decoding_deinit(&d);
        sib_decoder_free(z);
    }
    assert_true(n_rows >= 300);
    assert_int_equal(n_free, 3); /* C3 A9 FF, in the three chains with ByteFallback */
    sib_buf_deinit(&out);
    json_decref(root);
}

/* What the freedom looks like, and what is held back when. */
static void byte_runs_step_by_step(void **state)
{
    (void)state;
    static const struct {
        const char *token, *out;
    } steps[] = {
        {"\xE2\x96\x81"
         "a",
         " a"},
        {"<0xC3>", ""},
        {"<0xA9>", "\xC3\xA9"},
        {"<0xFF>", "\xEF\xBF\xBD"},
        {"<0xF0>", ""},
        {"<0x9F>", ""},
        {"<0x98>", ""},
        {"b", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
              "b"},
        {"<0xE2>", ""},
        {"<0x41>", "\xEF\xBF\xBD"
                   "A"},
        {"<0xE2>", ""},
        {NULL, "\xEF\xBF\xBD"},
        {"c", "c"},
    };
    json_t *spec = json_loads("{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": "
                              "{\"String\": \"\xE2\x96\x81\"}, \"content\": \" \"},"
                              " {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}]}",
                              0, NULL);
    sib_decoder *z;
    sib_decoding d = {0};
    sib_buf out = {0};
    assert_int_equal(sib_decoder_new(&z, spec, NULL), SIB_OK);
    for (size_t i = 0; i < SIB_COUNT(steps); i++) {
        out.n = 0;
        if (steps[i].token)
            assert_int_equal(sib_decoding_push(&d, z, sib_str_of(steps[i].token), &out, NULL), SIB_OK);
        else
            assert_int_equal(sib_decoding_end(&d, z, &out, NULL), SIB_OK);
        case_expect_text("step", i, sib_buf_view(&out), sib_str_of(steps[i].out));
    }
    sib_buf_deinit(&out);
    sib_decoding_deinit(&d);
    sib_decoder_free(z);
    json_decref(spec);
}

/* ---- whole tokenizers ---- */

/* Fed one by one, the same text comes out, always in whole characters. */
static void check_stream(const char *where, size_t row, sib_detok *d, const sib_ids *ids, sib_str whole)
{
    sib_buf all = {0};
    for (size_t i = 0; i < ids->n; i++) {
        size_t from = all.n;
        assert_int_equal(sib_detok_feed(d, ids->v[i], &all, NULL), SIB_OK);
        if (!sib_utf8_valid((sib_str){all.p ? all.p + from : "", all.n - from}))
            fail_msg("%s row %zu: half a character after token %zu", where, row, i);
    }
    assert_int_equal(sib_detok_flush(d, &all, NULL), SIB_OK);
    case_expect_text(where, row, sib_buf_view(&all), whole);
    sib_buf_deinit(&all);
}

typedef struct counts {
    size_t rows, free;
} counts;

static void check_text(const char *where, size_t row, const sib_tokenizer *t, sib_detok *d, const sib_ids *ids,
                       unsigned flags, sib_str want, bool may_be_free, counts *n)
{
    sib_buf out = {0};
    sib_err err = {0};
    if (sib_tokenizer_decode(t, ids->v, ids->n, flags, &out, &err) != SIB_OK)
        fail_msg("%s row %zu: %s", where, row, err.message);
    check_stream(where, row, d, ids, sib_buf_view(&out));
    n->rows++;
    if (may_be_free && !sib_str_eq(sib_buf_view(&out), want)) {
        sib_str tokens[64];
        size_t n_tokens = 0;
        for (size_t i = 0; i < ids->n; i++)
            if ((flags & SIB_KEEP_SPECIAL) || !sib_tokenizer_is_special(t, ids->v[i]))
                tokens[n_tokens++] = sib_tokenizer_piece(t, ids->v[i]);
        if (is_free(tokens, n_tokens)) {
            n->free++;
            sib_buf_deinit(&out);
            return;
        }
    }
    case_expect_text(where, row, sib_buf_view(&out), want);
    sib_buf_deinit(&out);
}

static counts check_rows(const char *name, const sib_tokenizer *t, const json_t *expected, const json_t *texts)
{
    static const char *const lists[] = {"rows", "decode"};
    const json_t *row;
    size_t i;
    sib_ids ids = {0};
    sib_detok *keep, *skip_special;
    counts n = {0, 0};
    assert_int_equal(sib_detok_new(&keep, t, SIB_KEEP_SPECIAL, NULL), SIB_OK);
    assert_int_equal(sib_detok_new(&skip_special, t, 0, NULL), SIB_OK);
    for (int list = 0; list < 2; list++) {
        json_array_foreach(json_object_get(expected, lists[list]), i, row) {
            const json_t *decoded = json_object_get(row, "decoded"), *skipped = json_object_get(row, "skipped");
            if (!decoded)
                decoded = texts ? json_object_get(json_array_get(texts, i), "text") : json_object_get(row, "text");
            case_ids(json_object_get(row, "ids"), &ids);
            check_text(name, i, t, keep, &ids, SIB_KEEP_SPECIAL, case_str(decoded), list == 1, &n);
            check_text(name, i, t, skip_special, &ids, 0, case_str(skipped ? skipped : decoded), list == 1, &n);
        }
        assert_true(i > 0);
    }
    sib_detok_free(keep);
    sib_detok_free(skip_special);
    sib_ids_deinit(&ids);
    return n;
}

static void small_tokenizers_decode_like_the_reference(void **state)
{
    (void)state;
    counts all = {0, 0};
    for (size_t i = 0; i < SIB_COUNT(case_small); i++) {
        char file[256];
        sib_err err = {0};
        sib_tokenizer *t = case_tokenizer(case_small[i], &err);
        if (!t) fail_msg("%s: %s", case_small[i], err.message);
        (void)snprintf(file, sizeof file, "small/expected-%s.json", case_small[i]);
        json_t *expected = case_json(file);
        counts n = check_rows(case_small[i], t, expected, NULL);
        all.rows += n.rows;
        all.free += n.free;
        json_decref(expected);
        sib_tokenizer_free(t);
    }
    print_message("%zu texts, %zu of them in the documented freedom\n", all.rows, all.free);
    assert_true(all.free * 20 < all.rows);
}

static void ids_without_a_token(void **state)
{
    (void)state;
    static const int32_t ids[] = {3, 0, 4, 100000, 1};
    sib_err err = {0};
    sib_tokenizer *t = case_tokenizer("post-sequence", &err);
    sib_buf out = {0};
    assert_int_equal(sib_tokenizer_decode(t, ids, SIB_COUNT(ids), 0, &out, &err), SIB_OK);
    case_expect_text("gaps", 0, sib_buf_view(&out), SIB_STR("ab"));
    assert_int_equal(sib_tokenizer_decode(t, (const int32_t[]){-1}, 1, 0, &out, &err), SIB_EARG);
    assert_non_null(strstr(err.message, "-1"));
    sib_buf_deinit(&out);
    sib_tokenizer_free(t);
}

static void check_real(const char *name, const char *path)
{
    char file[256];
    sib_tokenizer *t;
    sib_err err = {0};
    if (sib_tokenizer_open(&t, path, NULL, &err) != SIB_OK) fail_msg("%s", err.message);
    (void)snprintf(file, sizeof file, "expected-%s.json", name);
    json_t *expected = case_json(file), *texts = case_json("texts.json");
    counts n = check_rows(name, t, expected, texts);
    print_message("%s: %zu texts, %zu of them in the documented freedom\n", name, n.rows, n.free);
    json_decref(expected);
    json_decref(texts);
    sib_tokenizer_free(t);
}

static void real_tokenizers_decode_like_the_reference(void **state)
{
    (void)state;
    if (!case_real(check_real)) {
        print_message("SKIP the real tokenizers are not here (SIBYL_TOKENIZERS=CACHE or SIBYL_NETWORK=1)\n");
        skip();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_decoder_alone),
        cmocka_unit_test(byte_runs_step_by_step),
        cmocka_unit_test(small_tokenizers_decode_like_the_reference),
        cmocka_unit_test(ids_without_a_token),
        cmocka_unit_test(real_tokenizers_decode_like_the_reference),
    };
    return cmocka_run_group_tests_name("detokenizer", tests, NULL, NULL);
}

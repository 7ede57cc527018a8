/* tests/unit/tokenizer_test.c - text to ids, against the reference's answers (tests/cases/tokenizers). */
#include "tokenizer_cases.h"

#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/pretokenizer_known.h"
#include "text/pretokenizer_pattern.h"
#include "text/unicode.h"

#include <time.h>

/* Of processor time, so that a busy machine does not count. */
static double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- characters ---- */

static bool in_class(const char *name, uint32_t cp)
{
    static const struct {
        const char *name;
        unsigned bits;
    } classes[] = {{"L", SIB_U_L},   {"Lu", SIB_U_LU}, {"Ll", SIB_U_LL}, {"Lt", SIB_U_LT}, {"Lm", SIB_U_LM},
                   {"Lo", SIB_U_LO}, {"M", SIB_U_M},   {"N", SIB_U_N},   {"Nd", SIB_U_ND}, {"\\d", SIB_U_ND},
                   {"P", SIB_U_P},   {"S", SIB_U_S},   {"Z", SIB_U_Z},   {"\\s", SIB_U_WS}};
    if (strcmp(name, "\\w") == 0) return sib_unicode_is_regex_word(cp);
    for (size_t i = 0; i < SIB_COUNT(classes); i++)
        if (strcmp(name, classes[i].name) == 0) return sib_unicode_bits(cp) & classes[i].bits;
    fail_msg("class %s is not known", name);
    return false;
}

static void every_code_point_is_in_its_classes(void **state)
{
    (void)state;
    json_t *all = case_json("classes.json"), *ranges;
    const char *name;
    size_t wrong = 0;
    json_object_foreach(all, name, ranges) {
        size_t k = 0, n = json_array_size(ranges);
        for (uint32_t cp = 0; cp < 0x110000; cp++) {
            if (cp >= 0xD800 && cp <= 0xDFFF) continue;
            while (k < n && cp > json_integer_value(json_array_get(json_array_get(ranges, k), 1))) k++;
            bool want = k < n && cp >= json_integer_value(json_array_get(json_array_get(ranges, k), 0));
            if (in_class(name, cp) != want && wrong++ < 10) print_error("U+%04X in %s: expected %d\n", cp, name, want);
        }
    }
    assert_int_equal(wrong, 0);
    json_decref(all);
}

/* ---- normalizers and pre-tokenizers alone ---- */

static json_t *parse(const char *text)
{
    json_t *v = json_loads(text, 0, NULL);
    assert_non_null(v);
    return v;
}

static void nfc_of_every_decomposition(void **state)
{
    (void)state;
    json_t *rows = case_json("nfc.json"), *row, *spec = parse("{\"type\": \"NFC\"}");
    sib_normalizer *z;
    sib_buf out = {0};
    size_t i;
    assert_int_equal(sib_normalizer_new(&z, spec, NULL), SIB_OK);
    json_array_foreach(rows, i, row) {
        out.n = 0;
        assert_int_equal(sib_normalizer_run(z, case_str(json_array_get(row, 0)), &out, NULL), SIB_OK);
        case_expect_text("nfc.json", i, sib_buf_view(&out), case_str(json_array_get(row, 1)));
    }
    assert_true(i > 1000);
    sib_buf_deinit(&out);
    sib_normalizer_free(z);
    json_decref(spec);
    json_decref(rows);
}

/* Marks younger than the reference's tables stay where they are and keep others apart; the
 * answers are the reference's. A long run of marks is sorted, in less than quadratic time. */
static void young_marks_and_long_runs(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"\xE1\xB7\xB7\xCC\xBB", "\xE1\xB7\xB7\xCC\xBB"},                         /* U+1DF7 U+033B */
        {"e\xE1\xB7\xB7\xCC\x81", "e\xE1\xB7\xB7\xCC\x81"},                       /* e U+1DF7 U+0301 */
        {"\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0", "\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0"}, /* U+11935 U+11930 */
        {"e\xCC\x81\xCC\xA3", "\xE1\xBA\xB9\xCC\x81"}};                           /* e U+0301 U+0323 */
    json_t *spec = parse("{\"type\": \"NFC\"}");
    sib_normalizer *z;
    sib_buf in = {0}, out = {0};
    assert_int_equal(sib_normalizer_new(&z, spec, NULL), SIB_OK);
    for (size_t i = 0; i < SIB_COUNT(rows); i++) {
        out.n = 0;
        assert_int_equal(sib_normalizer_run(z, sib_str_of(rows[i][0]), &out, NULL), SIB_OK);
        case_expect_text("young marks", i, sib_buf_view(&out), sib_str_of(rows[i][1]));
    }
    sib_buf_addc(&in, 'x');
    for (int i = 0; i < 200000; i++) sib_buf_addz(&in, "\xCC\x81\xCC\xA3");
    out.n = 0;
    double begin = seconds();
    assert_int_equal(sib_normalizer_run(z, sib_buf_view(&in), &out, NULL), SIB_OK);
    assert_true(seconds() - begin < 10);
    assert_int_equal(out.n, in.n); /* no x with a dot below exists: all dots, then all accents */
    for (size_t i = 1; i < out.n; i += 2) assert_true((unsigned char)out.p[i + 1] == (i < out.n / 2 ? 0xA3 : 0x81));
    sib_buf_deinit(&in);
    sib_buf_deinit(&out);
    sib_normalizer_free(z);
    json_decref(spec);
}

/* True when the type is one that this build refuses by design; any other must load. */
static bool refused(const json_t *spec, sib_status s, const sib_err *err)
{
    static const char *const types[] = {"Nmt", "BertNormalizer", "BertPreTokenizer", "UnicodeScripts", "StripAccents"};
    char *text = json_dumps(spec, 0);
    const char *type = NULL;
    for (size_t i = 0; i < SIB_COUNT(types) && !type; i++) type = strstr(text, types[i]) ? types[i] : NULL;
    free(text);
    if (!type && s != SIB_OK) fail_msg("%s", err->message);
    if (type) {
        assert_int_equal(s, SIB_EUNSUPPORTED);
        assert_non_null(strstr(err->message, type));
    }
    return type != NULL;
}

static void each_normalizer_alone(void **state)
{
    (void)state;
    json_t *root = case_json("components.json"), *entry, *row;
    size_t i, k, n_rows = 0;
    sib_buf out = {0};
    json_array_foreach(json_object_get(root, "normalizers"), i, entry) {
        json_t *spec = json_object_get(entry, "normalizer");
        sib_normalizer *z;
        sib_err err = {0};
        if (refused(spec, sib_normalizer_new(&z, spec, &err), &err)) continue;
        json_array_foreach(json_object_get(entry, "cases"), k, row) {
            out.n = 0;
            assert_int_equal(sib_normalizer_run(z, case_str(json_object_get(row, "text")), &out, &err), SIB_OK);
            case_expect_text(json_string_value(json_object_get(spec, "type")), k, sib_buf_view(&out),
                             case_str(json_object_get(row, "out")));
            n_rows++;
        }
        sib_normalizer_free(z);
    }
    assert_true(n_rows >= 370);
    sib_buf_deinit(&out);
    json_decref(root);
}

static void each_pretokenizer_alone(void **state)
{
    (void)state;
    json_t *root = case_json("components.json"), *entry, *row, *piece;
    size_t i, k, j, n_rows = 0;
    sib_pieces p = {0};
    json_array_foreach(json_object_get(root, "pre_tokenizers"), i, entry) {
        json_t *spec = json_object_get(entry, "pre_tokenizer");
        sib_pretokenizer *z;
        sib_err err = {0};
        if (refused(spec, sib_pretokenizer_new(&z, spec, &err), &err)) continue;
        json_array_foreach(json_object_get(entry, "cases"), k, row) {
            char where[80];
            (void)snprintf(where, sizeof where, "pre_tokenizers[%zu].cases[%zu] piece", i, k);
            sib_pieces_set(&p, case_str(json_object_get(row, "text")), true);
            assert_int_equal(sib_pretokenizer_run(z, &p, &err), SIB_OK);
            json_t *want = json_object_get(row, "pieces");
            assert_true(json_is_array(want));
            json_array_foreach(want, j, piece) {
                if (case_str(json_array_get(piece, 0)).n == 0) break; /* of an empty text: no id comes of it */
                sib_str got = j < p.n ? (sib_str){p.text.p + p.v[j].at, p.v[j].n} : SIB_STR("(no piece)");
                case_expect_text(where, j, got, case_str(json_array_get(piece, 0)));
            }
            if (p.n != j) fail_msg("%s: got %zu pieces, expected %zu", where, p.n, j);
            n_rows++;
        }
        sib_pretokenizer_free(z);
    }
    assert_true(n_rows >= 900);
    sib_pieces_deinit(&p);
    json_decref(root);
}

/* A Sequence of Splits; `wrapped` puts each expression into a group, so that it is not one
 * of the known ones and PCRE2 runs it. */
static sib_pretokenizer *splits(json_t *patterns, const char *const *names, bool wrapped)
{
    json_t *list = json_array(), *spec;
    for (; *names; names++) {
        sib_str regex = case_str(json_object_get(patterns, *names));
        assert_non_null(sib_known_pattern(regex));
        json_t *text = wrapped ? json_sprintf("(?:%s)", regex.p) : json_string(regex.p);
        assert_true(wrapped == (sib_known_pattern(case_str(text)) == NULL));
        json_array_append_new(
            list, json_pack("{s:s, s:{s:o}, s:s}", "type", "Split", "pattern", "Regex", text, "behavior", "Isolated"));
    }
    spec = json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", list);
    sib_pretokenizer *z;
    sib_err err = {0};
    if (sib_pretokenizer_new(&z, spec, &err) != SIB_OK) fail_msg("%s", err.message);
    json_decref(spec);
    return z;
}

static void known_patterns_cut_like_the_reference(void **state)
{
    (void)state;
    static const char *const chains[][4] = {{"qwen3"}, {"qwen3.5"},
                                            {"glm"},   {"gpt2"},
                                            {"o200k"}, {"deepseek_v3_digits", "deepseek_v3_cjk", "deepseek_v3_words"}};
    json_t *patterns = case_json("patterns.json"), *texts = case_json("texts.json"), *root = case_json("pieces.json"),
           *row, *length;
    sib_pieces p = {0};
    for (size_t c = 0; c < SIB_COUNT(chains); c++) {
        const char *name = chains[c][1] ? "deepseek_v3" : chains[c][0];
        for (int wrapped = 0; wrapped < 2; wrapped++) {
            sib_pretokenizer *z = splits(patterns, chains[c], wrapped);
            size_t i, k;
            json_array_foreach(json_object_get(root, "rows"), i, row) {
                json_t *text = json_array_get(texts, i);
                /* PCRE2's tables are older: new letters and emoji are known to differ. */
                const char *group = json_string_value(json_object_get(text, "group"));
                if (wrapped && (strcmp(group, "other_scripts") == 0 || strcmp(group, "emoji") == 0)) continue;
                sib_err err = {0};
                sib_pieces_set(&p, case_str(json_object_get(text, "text")), true);
                if (sib_pretokenizer_run(z, &p, &err) != SIB_OK) fail_msg("%s", err.message);
                json_t *want = json_object_get(row, name);
                assert_true(json_is_array(want));
                json_array_foreach(want, k, length) if (k >= p.n || (json_int_t)p.v[k].n != json_integer_value(length))
                    fail_msg("%s, text %zu, piece %zu: expected %lld bytes, got %zu", name, i, k,
                             json_integer_value(length), k < p.n ? p.v[k].n : 0);
                assert_int_equal(p.n, k);
            }
            assert_int_equal(i, 518);
            sib_pretokenizer_free(z);
        }
    }
    sib_pieces_deinit(&p);
    json_decref(patterns);
    json_decref(texts);
    json_decref(root);
}

static void foreign_regex_syntax_is_refused(void **state)
{
    (void)state;
    static const char *const refused_regex[] = {"\\h+",  "[a&&b]",   "[a[b]]", "a\\b",    "(?m:.)", "(*FAIL)", "x{2}+",
                                                "x{,3}", "\\p{Han}", "[^\\S]", "(?<n>a)", "\\1",    "[]a]",    "a\\"};
    for (size_t i = 0; i < SIB_COUNT(refused_regex); i++) {
        sib_pattern *z;
        sib_err err = {0};
        sib_status s = sib_pattern_of_regex(&z, sib_str_of(refused_regex[i]), "test", &err);
        if (s != SIB_EUNSUPPORTED) fail_msg("%s: status %d %s", refused_regex[i], s, err.message);
    }
}

/* A text may make a regular expression slow; it must end in an error, not hang. */
static void slow_regex_is_stopped(void **state)
{
    (void)state;
    sib_pattern *z;
    sib_matches m;
    sib_err err = {0};
    char text[64];
    size_t start, end;
    bool found;
    memset(text, 'a', sizeof text);
    assert_int_equal(sib_pattern_of_regex(&z, SIB_STR("(?:a|a)+(?:a|aa)+\\d"), "test", &err), SIB_OK);
    assert_int_equal(sib_matches_init(&m, z, (sib_str){text, sizeof text}, &err), SIB_OK);
    assert_int_equal(sib_matches_next(&m, &found, &start, &end, &err), SIB_ECAPACITY);
    sib_matches_deinit(&m);
    sib_pattern_free(z);
}

/* ---- whole tokenizers ---- */

static void expect_ids(const char *where, size_t row, const sib_ids *got, const json_t *want)
{
    size_t n = json_array_size(want), i = 0;
    while (i < n && i < got->n && got->v[i] == json_integer_value(json_array_get(want, i))) i++;
    if (i == n && i == got->n) return;
    fail_msg("%s row %zu: %zu ids instead of %zu, first difference at %zu: %d instead of %lld", where, row, got->n, n,
             i, i < got->n ? got->v[i] : -1, i < n ? json_integer_value(json_array_get(want, i)) : -1);
}

static void check_rows(const char *name, const sib_tokenizer *t, const json_t *expected, const json_t *texts)
{
    const json_t *row;
    size_t i;
    sib_ids ids = {0};
    json_array_foreach(json_object_get(expected, "rows"), i, row) {
        sib_str text =
            case_str(texts ? json_object_get(json_array_get(texts, i), "text") : json_object_get(row, "text"));
        sib_err err = {0};
        ids.n = 0;
        if (sib_tokenizer_encode(t, text, 0, &ids, &err) != SIB_OK) fail_msg("%s row %zu: %s", name, i, err.message);
        expect_ids(name, i, &ids, json_object_get(row, "ids"));
        const json_t *special = json_object_get(row, "special");
        ids.n = 0;
        assert_int_equal(sib_tokenizer_encode(t, text, SIB_ADD_SPECIAL, &ids, &err), SIB_OK);
        expect_ids(name, i, &ids, special ? special : json_object_get(row, "ids"));
    }
    assert_true(i > 0);
    sib_ids_deinit(&ids);
}

static void small_tokenizers_encode_like_the_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIB_COUNT(case_small); i++) {
        char file[256];
        sib_err err = {0};
        sib_tokenizer *t = case_tokenizer(case_small[i], &err);
        if (!t) fail_msg("%s: %s", case_small[i], err.message);
        (void)snprintf(file, sizeof file, "small/expected-%s.json", case_small[i]);
        json_t *expected = case_json(file);
        check_rows(case_small[i], t, expected, NULL);
        json_decref(expected);
        sib_tokenizer_free(t);
    }
}

static void foreign_kinds_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const names[][2] = {{"subword-prefix", "WordPiece"}, {"word-suffix", "BPEDecoder"}};
    for (size_t i = 0; i < SIB_COUNT(names); i++) {
        sib_err err = {0};
        assert_null(case_tokenizer(names[i][0], &err));
        assert_int_equal(err.status, SIB_EUNSUPPORTED);
        assert_non_null(strstr(err.message, names[i][1]));
    }
}

/* `error` and `aborts` files must be refused; one that `loads` must give the reference's ids
 * unless it is among the few where being stricter is the point. */
static void bad_files(void **state)
{
    (void)state;
    static const char *const stricter[] = {"unk-missing", "vocab-duplicate-id"};
    json_t *list = case_json("bad.json"), *row;
    size_t i;
    json_array_foreach(list, i, row) {
        const char *name = json_string_value(json_object_get(row, "name"));
        sib_str file = case_str(json_object_get(row, "file"));
        sib_tokenizer *t = NULL;
        sib_err err = {0};
        sib_ids ids = {0};
        sib_status s = sib_tokenizer_parse(&t, file, name, (sib_str){0}, &err);
        bool strict = false;
        for (size_t k = 0; k < SIB_COUNT(stricter); k++) strict = strict || strcmp(name, stricter[k]) == 0;
        bool loads = json_is_true(json_object_get(row, "loads")) && !strict;
        if (strcmp(name, "extra-key") == 0) loads = true;
        if (loads != (s == SIB_OK)) fail_msg("%s: status %d: %s", name, s, err.message);
        if (s == SIB_OK) {
            assert_int_equal(sib_tokenizer_encode(t, SIB_STR("ab?b"), SIB_ADD_SPECIAL, &ids, &err), SIB_OK);
            if (json_object_get(row, "ids")) expect_ids(name, 0, &ids, json_object_get(row, "ids"));
        } else {
            assert_null(t);
            assert_int_equal(err.status, s);
            assert_true(sib_starts_with(err.message, name));
        }
        sib_ids_deinit(&ids);
        sib_tokenizer_free(t);
        for (size_t cut = 0; cut < file.n && loads; cut += 7) { /* cut short: never a tokenizer */
            assert_int_not_equal(sib_tokenizer_parse(&t, (sib_str){file.p, cut}, name, (sib_str){0}, NULL), SIB_OK);
            assert_null(t);
        }
    }
    assert_true(i >= 30);
    json_decref(list);
}

/* Every byte of small files changed in a few ways: an error or a tokenizer, nothing else. */
static void damaged_files_never_crash(void **state)
{
    (void)state;
    static const char *const names[] = {"post-sequence", "merge-order", "minimal"};
    static const char swaps[] = "\"\\{}[],:0x\x80\xFF";
    for (size_t k = 0; k < SIB_COUNT(names); k++) {
        char file[256];
        (void)snprintf(file, sizeof file, "small/tokenizer-%s.json", names[k]);
        sib_buf text = case_bytes(file);
        for (size_t i = 0; i < text.n; i++) {
            char was = text.p[i];
            for (const char *c = swaps; *c; c++) {
                sib_tokenizer *t = NULL;
                sib_ids ids = {0};
                text.p[i] = *c;
                if (sib_tokenizer_parse(&t, sib_buf_view(&text), "damaged", (sib_str){0}, NULL) == SIB_OK)
                    assert_int_equal(sib_tokenizer_encode(t, SIB_STR("abcab ab"), SIB_ADD_SPECIAL, &ids, NULL), SIB_OK);
                sib_ids_deinit(&ids);
                sib_tokenizer_free(t);
            }
            text.p[i] = was;
        }
        sib_buf_deinit(&text);
    }
}

static json_t *good_file(void)
{
    sib_buf text = case_bytes("small/tokenizer-merge-order.json");
    json_t *v = parse(text.p);
    sib_buf_deinit(&text);
    return v;
}

static sib_status parse_with(const char *key, const char *value, const char *text, sib_err *err)
{
    json_t *file = good_file();
    sib_tokenizer *t = NULL;
    sib_ids ids = {0};
    json_object_set_new(file, key, parse(value));
    char *dump = json_dumps(file, 0);
    sib_status s = sib_tokenizer_parse(&t, sib_str_of(dump), "file", (sib_str){0}, err);
    if (s == SIB_OK && text) s = sib_tokenizer_encode(t, sib_str_of(text), 0, &ids, err);
    sib_ids_deinit(&ids);
    sib_tokenizer_free(t);
    free(dump);
    json_decref(file);
    return s;
}

/* Small files that ask for unbounded memory, and values that must be refused with their name. */
static void greedy_files_are_refused(void **state)
{
    (void)state;
    static const char grow[] = "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": "
                               "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}";
    static const char byte_level[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}";
    char text[10001], spec[1024];
    sib_err err = {0};
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    assert_int_equal(parse_with("normalizer", grow, "a", &err), SIB_OK);
    assert_int_equal(parse_with("normalizer", grow, text, &err), SIB_ECAPACITY);
    (void)snprintf(spec, sizeof spec, "{\"type\": \"Sequence\", \"normalizers\": [%s, %s, %s, %s, %s]}", grow, grow,
                   grow, grow, grow);
    assert_int_equal(parse_with("normalizer", spec, "a", &err), SIB_ECAPACITY);
    (void)snprintf(spec, sizeof spec, "{\"type\": \"Sequence\", \"pretokenizers\": [%s, %s]}", byte_level, byte_level);
    assert_int_equal(parse_with("pre_tokenizer", spec, NULL, &err), SIB_EUNSUPPORTED);
    assert_int_equal(parse_with("model", "{\"vocab\": {\"a\": 4000000}, \"merges\": []}", NULL, &err), SIB_EFORMAT);
    assert_non_null(strstr(err.message, "4000000"));
    assert_int_equal(parse_with("model", "{\"type\": \"WordPiece\", \"vocab\": {\"a\": 0}}", NULL, &err),
                     SIB_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "WordPiece"));
    assert_int_equal(parse_with("post_processor", "{\"type\": \"RobertaProcessing\"}", NULL, &err), SIB_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "RobertaProcessing"));
    assert_int_equal(
        parse_with("added_tokens", "[{\"id\": 20, \"content\": \"x\"}, {\"id\": 21, \"content\": \"x\"}]", NULL, &err),
        SIB_EFORMAT);
    assert_non_null(strstr(err.message, "twice"));
}

/* Escapes in vocabulary keys, the two parts in either order, surrogate pairs. */
static void json_strings_are_read_as_json(void **state)
{
    (void)state;
    static const char file[] =
        "{\"mod\\u0065l\": {\"merges\": [[\"\\ud83d\\ude00\", \"\\n\"], [\"\\\"\", \"\\\\\"]], \"v\\u006fcab\":\n"
        " {\"\xF0\x9F\x98\x80\" : 0 ,\"\\u000a\":1,\"\\ud83d\\ude00\\n\":2, \"\\u0022\":3,\"\\\\\":4,\"\\\"\\\\\":5}}}";
    static const char *const broken[] = {"{\"model\": {\"vocab\": {\"\\ud83d\": 0}, \"merges\": []}}",
                                         "{\"model\": {\"vocab\": {\"\\ude00\": 0}, \"merges\": []}}",
                                         "{\"model\": {\"vocab\": {\"\\x\": 0}, \"merges\": []}}",
                                         "{\"model\": {\"vocab\": {\"\xC3\": 0}, \"merges\": []}}",
                                         "{\"model\": {\"vocab\": {\"a\": 00}, \"merges\": []}}",
                                         "{\"model\": {\"vocab\": {\"a\": 0,}, \"merges\": []}}",
                                         "{\"model\": {\"vocab\": {\"a\": 0 1}, \"merges\": []}}",
                                         "{\"model\": {\"vocab\": {\"a\n\": 0}, \"merges\": []}}",
                                         "{\"model\": {\"vocab\": {\"a\": 0, \"a\": 1}, \"merges\": []}}",
                                         "{\"model\": {\"vocab\": {}, \"vocab\": {}, \"merges\": []}}",
                                         "{\"model\": {\"vocab\": {}, \"merges\": [,]}}",
                                         "{\"model\": {\"vocab\": {}, \"merges\": []}} x"};
    sib_tokenizer *t;
    sib_err err = {0};
    sib_ids ids = {0};
    if (sib_tokenizer_parse(&t, (sib_str){file, sizeof file - 1}, "file", (sib_str){0}, &err) != SIB_OK)
        fail_msg("%s", err.message);
    assert_int_equal(sib_tokenizer_encode(t, SIB_STR("\xF0\x9F\x98\x80\n\"\\\n"), 0, &ids, &err), SIB_OK);
    assert_int_equal(ids.n, 3);
    assert_true(ids.v[0] == 2 && ids.v[1] == 5 && ids.v[2] == 1);
    sib_ids_deinit(&ids);
    sib_tokenizer_free(t);
    for (size_t i = 0; i < SIB_COUNT(broken); i++)
        if (sib_tokenizer_parse(&t, sib_str_of(broken[i]), "file", (sib_str){0}, &err) != SIB_EFORMAT)
            fail_msg("%s: %s", broken[i], err.message);
}

/* ---- the contract of the calls ---- */

static void invalid_utf8_is_named_by_its_offset(void **state)
{
    (void)state;
    sib_err err = {0};
    sib_tokenizer *t = case_tokenizer("gemma", &err);
    sib_ids ids = {0};
    sib_ids_add(&ids, 7);
    assert_int_equal(sib_tokenizer_encode(t, SIB_STR("ab\xC3\xA9\xE2\x82"), 0, &ids, &err), SIB_EARG);
    assert_non_null(strstr(err.message, "byte 4"));
    assert_int_equal(ids.n, 1);
    assert_int_equal(sib_tokenizer_encode(t, SIB_STR(""), 0, &ids, &err), SIB_OK);
    assert_int_equal(sib_tokenizer_encode(t, (sib_str){NULL, 0}, 0, &ids, &err), SIB_OK);
    assert_int_equal(ids.n, 1);
    sib_ids_deinit(&ids);
    sib_tokenizer_free(t);
}

static void plain_text_never_makes_a_special_token(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIB_COUNT(case_small); i++) {
        sib_err err = {0};
        sib_tokenizer *t = case_tokenizer(case_small[i], &err);
        sib_buf text = {0}, back = {0};
        sib_ids ids = {0};
        int32_t n = sib_tokenizer_n_vocab(t), unk = sib_tokenizer_id(t, SIB_STR("<unk>")), n_special = 0;
        for (int32_t id = 0; id < n; id++) {
            if (!sib_tokenizer_is_special(t, id)) continue;
            sib_str piece = sib_tokenizer_piece(t, id);
            sib_buf_add(&text, piece.p, piece.n);
            n_special++;
        }
        assert_int_equal(sib_tokenizer_encode(t, sib_buf_view(&text), SIB_PLAIN_TEXT, &ids, &err), SIB_OK);
        for (size_t k = 0; k < ids.n; k++)
            if (ids.v[k] != unk && sib_tokenizer_is_special(t, ids.v[k]))
                fail_msg("%s: plain text gave the special token %d", case_small[i], ids.v[k]);
        if (n_special && sib_starts_with(case_small[i], "bytes-qwen")) { /* the text survives */
            assert_int_equal(sib_tokenizer_decode(t, ids.v, ids.n, 0, &back, &err), SIB_OK);
            case_expect_text(case_small[i], 0, sib_buf_view(&back), sib_buf_view(&text));
        }
        sib_buf_deinit(&text);
        sib_buf_deinit(&back);
        sib_ids_deinit(&ids);
        sib_tokenizer_free(t);
    }
}

static void texts_ids_and_pieces_agree(void **state)
{
    (void)state;
    sib_err err = {0};
    /* Vocabulary 0, 1, 2, 5, 7; two added tokens, numbered from 5; a template with 8 and 9. */
    sib_tokenizer *t = case_tokenizer("post-sequence", &err);
    assert_int_equal(sib_tokenizer_n_vocab(t), 10);
    for (int32_t id = 0; id < 10; id++) {
        sib_str piece = sib_tokenizer_piece(t, id);
        if (id == 3 || id == 4 || id >= 8)
            assert_null(piece.p);
        else
            assert_int_equal(sib_tokenizer_id(t, piece), id);
        assert_int_equal(sib_tokenizer_is_special(t, id), id == 5 || id == 6);
    }
    assert_int_equal(sib_tokenizer_id(t, SIB_STR("no such token")), -1);
    assert_int_equal(sib_tokenizer_id(t, (sib_str){NULL, 0}), -1);
    assert_null(sib_tokenizer_piece(t, -1).p);
    assert_null(sib_tokenizer_piece(t, 10).p);
    assert_false(sib_tokenizer_is_special(t, -1));
    assert_false(sib_tokenizer_is_special(t, INT32_MAX));
    sib_tokenizer_free(t);
}

static void config_gives_the_template_variables(void **state)
{
    (void)state;
    sib_buf json = case_bytes("small/tokenizer-gemma.json");
    sib_str config = SIB_STR("{\"bos_token\": {\"content\": \"<bos>\", \"lstrip\": false}, \"eos_token\": \"<turn|>\", "
                             "\"unk_token\": null, \"add_bos_token\": true,"
                             " \"extra_special_tokens\": {\"soc_token\": \"<|channel>\", \"eos_token\": \"<pad>\"}, "
                             "\"model_max_length\": 1000000000000000019884624838656}");
    static const char *const want[][2] = {
        {"bos_token", "<bos>"}, {"eos_token", "<turn|>"}, {"soc_token", "<|channel>"}};
    sib_tokenizer *t;
    sib_err err = {0};
    assert_int_equal(sib_tokenizer_parse(&t, sib_buf_view(&json), "gemma", config, &err), SIB_OK);
    const char *name;
    sib_str value;
    size_t n = 0;
    for (; sib_tokenizer_variable(t, n, &name, &value); n++) {
        assert_true(n < SIB_COUNT(want));
        assert_string_equal(name, want[n][0]);
        assert_true(sib_str_is(value, want[n][1]));
    }
    assert_int_equal(n, SIB_COUNT(want));
    assert_int_equal(sib_tokenizer_bos(t), 2);
    assert_int_equal(sib_tokenizer_eos(t), sib_tokenizer_id(t, SIB_STR("<turn|>")));
    assert_true(sib_tokenizer_add_bos(t));
    sib_tokenizer_free(t);
    assert_int_equal(sib_tokenizer_parse(&t, sib_buf_view(&json), "gemma", SIB_STR("[]"), &err), SIB_EFORMAT);
    assert_non_null(strstr(err.message, "tokenizer_config.json"));
    sib_buf_deinit(&json);
}

static void demo_tokenizer_loads(void **state)
{
    (void)state;
    sib_tokenizer *t;
    sib_err err = {0};
    sib_ids ids = {0};
    sib_buf back = {0};
    sib_str text = SIB_STR("<|turn>user\nWhat is 3 + 4?<turn|>\n<|turn>model\n");
    if (sib_tokenizer_open(&t, "demo/gemma4-demo/tokenizer.json", "demo/gemma4-demo/tokenizer_config.json", &err) !=
        SIB_OK)
        fail_msg("%s", err.message);
    assert_int_equal(sib_tokenizer_n_vocab(t), 4096);
    assert_int_equal(sib_tokenizer_bos(t), 2);
    assert_int_equal(sib_tokenizer_encode(t, text, 0, &ids, &err), SIB_OK);
    assert_int_equal(ids.v[0], sib_tokenizer_id(t, SIB_STR("<|turn>")));
    assert_int_equal(sib_tokenizer_decode(t, ids.v, ids.n, SIB_KEEP_SPECIAL, &back, &err), SIB_OK);
    case_expect_text("demo", 0, sib_buf_view(&back), text);
    sib_ids_deinit(&ids);
    sib_buf_deinit(&back);
    sib_tokenizer_free(t);
    assert_int_equal(sib_tokenizer_open(&t, "demo/no such file", NULL, &err), SIB_EIO);
}

/* The prompts that the demo's golden runs were made from: line ID of tasks.jsonl. */
static void demo_prompts_have_the_golden_ids(void **state)
{
    (void)state;
    json_t *golden = json_load_file("demo/golden.json", 0, NULL),
           *runs = json_object_get(golden, "diffusion-gemma-demo"), *run;
    sib_tokenizer *t;
    sib_err err = {0};
    sib_ids ids = {0};
    const char *key;
    int n = 0;
    assert_non_null(runs);
    if (sib_tokenizer_open(&t, "demo/diffusion-gemma-demo/tokenizer.json", NULL, &err) != SIB_OK)
        fail_msg("%s", err.message);
    FILE *tasks = fopen("demo/tasks.jsonl", "r");
    assert_non_null(tasks);
    char line[16384];
    while (fgets(line, sizeof line, tasks)) {
        json_t *task = parse(line);
        json_object_foreach(runs, key, run) {
            json_t *want = json_object_get(run, "prompt_ids");
            char *end;
            long id = strtol(key, &end, 10); /* other runs are of pictures */
            if (*end || !want || id != json_integer_value(json_object_get(task, "id"))) continue;
            ids.n = 0;
            assert_int_equal(sib_tokenizer_encode(t, case_str(json_object_get(task, "prompt")), 0, &ids, &err), SIB_OK);
            expect_ids("demo task", (size_t)id, &ids, want);
            n++;
        }
        json_decref(task);
    }
    fclose(tasks);
    assert_true(n >= 4);
    sib_ids_deinit(&ids);
    sib_tokenizer_free(t);
    json_decref(golden);
}

/* ---- cost ---- */

/* One word of a megabyte, runs of marks, spaces, newlines and added tokens: all must take
 * about linear time. The limit is far above that and far below quadratic time. */
static void long_texts_take_linear_time(void **state)
{
    (void)state;
    static const char *const names[] = {"gemma",          "bytes-qwen3.5", "bytes-o200k",
                                        "bytes-deepseek", "llama2",        "metaspace-always"};
    static const char *const units[] = {"a", "ab", " ", "\n",  "<", "\xCC\x81\xCC\xA3", "\xE4\xBD\xA0",
                                        "A", "' ", "9", "\t\n"};
    sib_buf text = {0};
    sib_ids ids = {0};
    double begin = seconds();
    for (size_t k = 0; k < SIB_COUNT(names); k++) {
        sib_err err = {0};
        sib_tokenizer *t = case_tokenizer(names[k], &err);
        assert_non_null(t);
        for (size_t u = 0; u < SIB_COUNT(units); u++) {
            text.n = ids.n = 0;
            while (text.n < (u == 0 ? 1 << 20 : 1 << 16)) sib_buf_addz(&text, units[u]);
            if (sib_tokenizer_encode(t, sib_buf_view(&text), 0, &ids, &err) != SIB_OK) fail_msg("%s", err.message);
            assert_true(ids.n > 0);
        }
        sib_tokenizer_free(t);
    }
    sib_buf_deinit(&text);
    sib_ids_deinit(&ids);
    double took = seconds() - begin;
    if (took > 60) fail_msg("took %.1f s", took);
    print_message("%.2f s\n", took);
}

/* ---- the real tokenizers ---- */

static void check_real(const char *name, const char *path)
{
    char file[256];
    sib_tokenizer *t;
    sib_err err = {0};
    double begin = seconds();
    if (sib_tokenizer_open(&t, path, NULL, &err) != SIB_OK) fail_msg("%s", err.message);
    double loaded = seconds();
    (void)snprintf(file, sizeof file, "expected-%s.json", name);
    json_t *expected = case_json(file), *texts = case_json("texts.json");
    check_rows(name, t, expected, texts);
    sib_buf text = {0};
    sib_ids ids = {0};
    size_t i;
    const json_t *v;
    while (text.n < 1 << 20)
        json_array_foreach(texts, i, v)
            sib_buf_add(&text, case_str(json_object_get(v, "text")).p, case_str(json_object_get(v, "text")).n);
    double from = seconds();
    assert_int_equal(sib_tokenizer_encode(t, sib_buf_view(&text), 0, &ids, &err), SIB_OK);
    print_message("%s: loaded in %.0f ms, %zu texts equal, %.1f MB/s\n", name, 1e3 * (loaded - begin),
                  json_array_size(texts), 1e-6 * (double)text.n / (seconds() - from));
    sib_buf_deinit(&text);
    sib_ids_deinit(&ids);
    json_decref(expected);
    json_decref(texts);
    sib_tokenizer_free(t);
}

static void real_tokenizers_encode_like_the_reference(void **state)
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
        cmocka_unit_test(every_code_point_is_in_its_classes),
        cmocka_unit_test(nfc_of_every_decomposition),
        cmocka_unit_test(young_marks_and_long_runs),
        cmocka_unit_test(each_normalizer_alone),
        cmocka_unit_test(each_pretokenizer_alone),
        cmocka_unit_test(known_patterns_cut_like_the_reference),
        cmocka_unit_test(foreign_regex_syntax_is_refused),
        cmocka_unit_test(slow_regex_is_stopped),
        cmocka_unit_test(small_tokenizers_encode_like_the_reference),
        cmocka_unit_test(foreign_kinds_are_refused_by_name),
        cmocka_unit_test(bad_files),
        cmocka_unit_test(damaged_files_never_crash),
        cmocka_unit_test(greedy_files_are_refused),
        cmocka_unit_test(json_strings_are_read_as_json),
        cmocka_unit_test(invalid_utf8_is_named_by_its_offset),
        cmocka_unit_test(plain_text_never_makes_a_special_token),
        cmocka_unit_test(texts_ids_and_pieces_agree),
        cmocka_unit_test(config_gives_the_template_variables),
        cmocka_unit_test(demo_tokenizer_loads),
        cmocka_unit_test(demo_prompts_have_the_golden_ids),
        cmocka_unit_test(long_texts_take_linear_time),
        cmocka_unit_test(real_tokenizers_encode_like_the_reference),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}

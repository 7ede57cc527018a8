/* tests/unit/grammar_test.c - masks of patterns and schemas (sample/grammar.h): what matches, what does not, what is refused, and that
 * a mask allows exactly the tokens whose bytes fit. */
#include "sample/grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A vocabulary of all bytes and some longer tokens. */
static const char *const words[] = {"{\"", "\":", "ab", "abc", "true", "12", "\", \"", "}}", "\xC3", "\xC3\xA9", "", "null"};
#define N_VOCAB (256 + (int)SIB_COUNT(words))
static sib_vocab_trie *trie;

static void token_bytes(const void *ctx, int32_t id, sib_buf *out)
{
    (void)ctx;
    if (id < 256) sib_buf_addc(out, (char)id);
    else sib_buf_addz(out, words[id - 256]);
}

static bool matches(sib_automaton *a, const char *text)
{
    return sib_automaton_bytes(a, sib_str_of(text)) && sib_automaton_accepts(a);
}

static bool program_matches(const sib_grammar_program *p, const char *text)
{
    sib_automaton *a;
    assert_int_equal(sib_automaton_new(&a, p, trie, NULL), SIB_OK);
    bool yes = matches(a, text);
    sib_automaton_free(a);
    return yes;
}

static void regex(const char *pattern, const char *const *good, const char *const *bad)
{
    sib_grammar_program *p;
    sib_err err = {0};
    if (sib_grammar_from_regex(&p, sib_str_of(pattern), &err) != SIB_OK) fail_msg("%s: %s", pattern, err.message);
    for (; *good; good++)
        if (!program_matches(p, *good)) fail_msg("%s does not match \"%s\"", pattern, *good);
    for (; *bad; bad++)
        if (program_matches(p, *bad)) fail_msg("%s matches \"%s\"", pattern, *bad);
    sib_grammar_program_free(p);
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

static void patterns(void **state)
{
    (void)state;
    regex("abc", LIST("abc"), LIST("ab", "abcd", ""));
    regex("", LIST(""), LIST("a"));
    regex("a|bc|", LIST("a", "bc", ""), LIST("b", "abc"));
    regex("^(a|b)*c+d?$", LIST("c", "abbac", "accd"), LIST("ab", "d", "cdd"));
    regex("[a-c]{2,3}x{2}y{1,}", LIST("abxxy", "abcxxyyy"), LIST("axxy", "abxy", "abcdxxy", "abxx"));
    regex("\\d+\\.\\d\\w\\S", LIST("12.3a!", "0.0__"), LIST("a.3aa", "12.3a "));
    regex("[^a\\d]\\x41\\u00e9\\n", LIST("bA\xC3\xA9\n"), LIST("aA\xC3\xA9\n", "1A\xC3\xA9\n"));
    regex(".", LIST("a", "\xC3\xA9", "\xF0\x9F\x98\x80"), LIST("", "\n", "\xC3", "ab", "\xED\xA0\x80", "\xC0\x80"));
    regex("[\xC3\xA0-\xE2\x82\xAC]", LIST("\xC3\xA9", "\xE2\x82\xAC", "\xDF\xBF"), LIST("a", "\xE2\x82\xAD", "\xC3"));
    regex("(a*)*b", LIST("b", "aaab"), LIST("a"));
    regex("(?:x(y|z)){0,2}?", LIST("", "xy", "xzxy"), LIST("x", "xyxyxy"));
    regex("\\$\\^[]a]", LIST("$^]", "$^a"), LIST("$^"));
}

static void wrong_patterns(void **state)
{
    (void)state;
    static const char *const bad[] = {"(", ")", "[", "a**b)", "*a", "a{2,1}", "a{2000}", "a{x}", "\\", "\\b", "\\1", "(?=a)", "(?<n>a)", "a++", "[z-a]", "\\xZ", "\\ud800", "a^b", "a$b", "^a|b$", "[^\\x00-\\U]", "(a{1000}){1000}"};
    sib_grammar_program *p;
    for (size_t i = 0; i < SIB_COUNT(bad); i++) {
        sib_err err = {0};
        if (sib_grammar_from_regex(&p, sib_str_of(bad[i]), &err) == SIB_OK) fail_msg("%s is taken", bad[i]);
        assert_null(p);
        assert_true(strlen(err.message) > 10);
    }
    static char deep[60001];
    memset(deep, '(', 60000);
    assert_int_not_equal(sib_grammar_from_regex(&p, sib_str_of(deep), NULL), SIB_OK);
    deep[10000] = 0;
    assert_int_not_equal(sib_grammar_from_regex(&p, sib_str_of(deep), NULL), SIB_OK);
}

static sib_grammar_program *schema_program(const char *schema)
{
    sib_grammar_program *p;
    sib_err err = {0};
    json_t *s = schema ? json_loads(schema, 0, NULL) : NULL;
    if (schema) assert_non_null(s);
    if (sib_grammar_from_schema(&p, s, &err) != SIB_OK) fail_msg("%s: %s", schema ? schema : "any object", err.message);
    json_decref(s);
    return p;
}

static void schema(const char *text, const char *const *good, const char *const *bad)
{
    sib_grammar_program *p = schema_program(text);
    for (; *good; good++)
        if (!program_matches(p, *good)) fail_msg("%s does not match %s", text, *good);
    for (; *bad; bad++)
        if (program_matches(p, *bad)) fail_msg("%s matches %s", text, *bad);
    sib_grammar_program_free(p);
}

static void schemas(void **state)
{
    (void)state;
    schema(NULL, LIST("{}", "{\"a\": [1, -2.5e3, true, null, \"x\\n\\u00e9\"], \"b\":{}}", "{\n  \"a\": 1\n}"), LIST("[]", "1", "{a:1}", "{\"a\":01}", "{\"a\":1,}", "{\"a\":\"\n\"}", "{\"a\":\"\\ud800\"}"));
    schema("{\"type\":\"string\",\"minLength\":1,\"maxLength\":3}", LIST("\"a\"", "\"\xC3\xA9\\n\xF0\x9F\x98\x80\""), LIST("\"\"", "\"abcd\"", "\"a"));
    schema("{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}\"}", LIST("\"AB\"", "\"ABc d\""), LIST("\"A\"", "\"aAB\"", "\"AB\\n\"", "\"AB\"\""));
    schema("{\"type\":\"string\",\"format\":\"date\"}", LIST("\"2024-02-28\""), LIST("\"2024-13-01\"", "\"24-01-01\""));
    schema("{\"type\":\"integer\"}", LIST("0", "-17"), LIST("1.5", "01", "\"1\"", "-"));
    schema("{\"type\":[\"null\",\"number\"]}", LIST("null", "-0.5e+10"), LIST("true"));
    schema("{\"enum\":[\"a\\\"b\",1,null]}", LIST("\"a\\\"b\"", "1", "null"), LIST("\"a\"", "2"));
    schema("{\"const\":{\"k\":[1]}}", LIST("{\"k\":[1]}"), LIST("{}"));
    schema("{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":1,\"maxItems\":3}", LIST("[true]", "[true, false,true]"), LIST("[]", "[true,true,true,true]", "[1]"));
    schema("{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":2}", LIST("[true,false]", "[true,false,true,true,true]"), LIST("[]", "[true]"));
    schema("{\"type\":\"array\",\"items\":{\"type\":\"null\"}}", LIST("[]", "[null]", "[null,null]"), LIST("[1]", "[null,]"));
    schema("{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"integer\"}],\"minItems\":1}", LIST("[\"a\"]", "[\"a\",1]"), LIST("[]", "[1]", "[\"a\",1,2]"));
    schema("{\"type\":\"array\",\"maxItems\":0}", LIST("[]"), LIST("[1]"));
    schema("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"},\"c\":{}},\"required\":[\"b\"],\"additionalProperties\":false}",
           LIST("{\"b\":\"x\"}", "{\"a\": 1, \"b\": \"\"}", "{\"a\":1,\"b\":\"\",\"c\":[{}]}"), LIST("{}", "{\"a\":1}", "{\"b\":\"\",\"a\":1}", "{\"b\":\"\",\"d\":1}", "{,\"b\":\"\"}"));
    schema("{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}", LIST("{}", "{\"x\":1,\"y\":2}"), LIST("{\"x\":\"\"}"));
    schema("{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}", LIST("{}"), LIST("{\"x\":1}"));
    schema("{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"integer\"}],\"title\":\"x\"}", LIST("null", "1"), LIST("true"));
    schema("{\"$ref\":\"#/$defs/a~1b\",\"$defs\":{\"a/b\":{\"type\":\"object\",\"properties\":{\"n\":{\"anyOf\":[{\"type\":\"null\"},{\"$ref\":\"#/$defs/a~1b\"}]}},\"required\":[\"n\"]}}}",
           LIST("{\"n\":null}", "{\"n\":{\"n\":{\"n\":null}}}"), LIST("{\"n\":1}", "{\"n\":{}}"));
}

static void wrong_schemas(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *names;
    } bad[] = {
        {"{\"type\":\"number\",\"minimum\":1}", "minimum"}, {"{\"type\":\"object\",\"patternProperties\":{}}", "patternProperties"}, {"{\"not\":{}}", "not"}, {"{\"type\":\"thing\"}", "thing"},
        {"{\"type\":\"array\",\"uniqueItems\":true}", "uniqueItems"}, {"{\"type\":\"string\",\"format\":\"ipv6\"}", "ipv6"}, {"{\"$ref\":\"http://x\"}", "$ref"}, {"{\"$ref\":\"#/nowhere\"}", "nowhere"},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "oneOf"}, {"{\"allOf\":[{},{}]}", "allOf"}, {"{\"type\":\"string\",\"maxLength\":100000}", "maxLength"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"b\"]}", "required"}, {"{\"enum\":[]}", "enum"}, {"{\"type\":\"string\",\"minLength\":5,\"maxLength\":2}", "maxLength"},
        {"{\"type\":\"string\",\"pattern\":\"(\"}", "group"}, {"{\"anyOf\":3}", "anyOf"}, {"{\"items\":{}}", "items"},
    };
    for (size_t i = 0; i < SIB_COUNT(bad); i++) {
        sib_grammar_program *p;
        sib_err err = {0};
        json_t *s = json_loads(bad[i].schema, 0, NULL);
        if (sib_grammar_from_schema(&p, s, &err) == SIB_OK) fail_msg("%s is taken", bad[i].schema);
        if (!strstr(err.message, bad[i].names)) fail_msg("%s: \"%s\" does not name %s", bad[i].schema, err.message, bad[i].names);
        json_decref(s);
    }
}

/* At each place of a text, the mask holds exactly the tokens that the automaton takes. */
static void masks_are_exact(void **state)
{
    (void)state;
    sib_grammar_program *p = schema_program("{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"object\",\"properties\":{\"abc\":{\"type\":\"integer\"}}},\"\xC3\xA9\":{}}}");
    const char *text = "{\"ab\": {\"abc\":12}, \"\xC3\xA9\":[\"ab\",true,null]}";
    sib_automaton *a, *b;
    uint32_t allowed[(N_VOCAB + 31) / 32];
    assert_int_equal(sib_automaton_new(&a, p, trie, NULL), SIB_OK);
    for (const char *z = text;; z++) {
        assert_int_equal(sib_automaton_mask(a, allowed, NULL), SIB_OK);
        for (int32_t id = 0; id < N_VOCAB; id++) {
            assert_int_equal(sib_automaton_new(&b, p, trie, NULL), SIB_OK);
            assert_true(sib_automaton_bytes(b, (sib_str){text, (size_t)(z - text)}));
            bool fits = sib_automaton_token(b, id), bit = allowed[id >> 5] >> (id & 31) & 1;
            if (fits != bit) fail_msg("after %.*s token %d: mask %d, fits %d", (int)(z - text), text, id, bit, fits);
            sib_automaton_free(b);
        }
        if (!*z) break;
        assert_true(sib_automaton_token(a, (uint8_t)*z));
    }
    assert_true(sib_automaton_exhausted(a));
    assert_false(sib_automaton_token(a, ' '));
    assert_true(sib_automaton_accepts(a)); /* a refused token changes nothing */
    sib_automaton_free(a);
    sib_grammar_program_free(p);
}

/* Deep and long texts stay within the bounds: nesting ends, memory does not grow without end. */
static void deep_and_long_texts(void **state)
{
    (void)state;
    sib_grammar_program *p = schema_program(NULL);
    sib_automaton *a;
    assert_int_equal(sib_automaton_new(&a, p, trie, NULL), SIB_OK);
    assert_true(sib_automaton_bytes(a, SIB_STR("{\"a\":")));
    int depth = 0;
    while (depth < 1000 && sib_automaton_token(a, '[')) depth++;
    assert_true(depth > 20 && depth < 200);
    while (depth-- > 0) assert_true(sib_automaton_token(a, ']'));
    for (int i = 0; i < 20000; i++) { /* many different states: the automaton begins anew on the way */
        char text[64];
        (void)snprintf(text, sizeof text, ",\"k%d\":{\"x\":[%d, {\"y\": \"z\"}]}", i, i);
        if (!sib_automaton_bytes(a, sib_str_of(text))) fail_msg("%s does not fit", text);
    }
    assert_true(matches(a, "}"));
    sib_automaton_free(a);
    sib_grammar_program_free(p);
    sib_err err = {0};
    /* A pattern whose sets of threads are large. */
    assert_int_equal(sib_grammar_from_regex(&p, SIB_STR("(.*a){20}.{900}b"), &err), SIB_OK);
    if (sib_automaton_new(&a, p, trie, NULL) == SIB_OK) {
        for (int i = 0; i < 3000 && sib_automaton_token(a, 'a'); i++) continue;
        sib_automaton_free(a);
    }
    sib_grammar_program_free(p);
}

static int setup(void **state)
{
    (void)state;
    return sib_vocab_trie_new(&trie, N_VOCAB, token_bytes, NULL, NULL);
}

static int teardown(void **state)
{
    (void)state;
    sib_vocab_trie_free(trie);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns), cmocka_unit_test(wrong_patterns), cmocka_unit_test(schemas), cmocka_unit_test(wrong_schemas), cmocka_unit_test(masks_are_exact), cmocka_unit_test(deep_and_long_texts),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

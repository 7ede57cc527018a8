/* tests/unit/tool_calls_test.c - answers taken apart (text/tool_calls.h): each family's markup, cut at every byte, and what is no call
 * although it looks like one. Texts follow server_api.md 9. */
#include "text/tool_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static sib_tokenizer *tokenizer; /* of the demo: has Gemma's markers */
static json_t *tools;

typedef struct parts {
    sib_buf all; /* "R(...)C(...)T(name {...})", neighbours of a kind joined */
    char last;
} parts;

static void add(parts *p, char kind, sib_str text)
{
    if (p->last == kind && kind != 'T') p->all.n--; /* the closing bracket */
    else sib_buf_addf(&p->all, "%c(", kind);
    sib_buf_add(&p->all, text.p, text.n);
    sib_buf_addc(&p->all, ')');
    p->last = kind;
}

static void on_content(void *ctx, sib_str text)
{
    add(ctx, 'C', text);
}

static void on_reasoning(void *ctx, sib_str text)
{
    add(ctx, 'R', text);
}

static void on_call(void *ctx, sib_str name, sib_str arguments)
{
    sib_buf text = {0};
    sib_buf_add(&text, name.p, name.n);
    sib_buf_addc(&text, ' ');
    sib_buf_add(&text, arguments.p, arguments.n);
    json_t *o = json_loadb(arguments.p, arguments.n, 0, NULL);
    if (!json_is_object(o)) fail_msg("arguments are no object: %.*s", (int)arguments.n, arguments.p);
    json_decref(o);
    add(ctx, 'T', sib_buf_view(&text));
    sib_buf_deinit(&text);
}

/* Feeds text in pieces of `piece` bytes, ids unknown (0 is <pad>, which no markup knows). */
static void expect_pieces(sib_markup markup, bool with_tools, const char *prompt, const char *text, bool whole, const char *want, size_t piece)
{
    parts p = {0};
    sib_reply *r;
    sib_reply_sink sink = {&p, on_content, on_reasoning, on_call};
    size_t n = strlen(text);
    assert_int_equal(sib_reply_new(&r, markup, tokenizer, with_tools ? tools : NULL, sib_str_of(prompt), NULL, &sink, NULL), SIB_OK);
    for (size_t at = 0; at < n; at += piece) assert_true(sib_reply_feed(r, 100, (sib_str){text + at, n - at < piece ? n - at : piece}));
    assert_true(sib_reply_end(r, whole));
    const char *got = p.all.p ? p.all.p : "";
    if (strcmp(got, want) != 0) fail_msg("%s\nin pieces of %zu gives %s\ninstead of %s", text, piece, got, want);
    sib_reply_free(r);
    sib_buf_deinit(&p.all);
}

static void expect(sib_markup markup, bool with_tools, const char *prompt, const char *text, bool whole, const char *want)
{
    for (size_t piece = 1; piece < 12; piece++) expect_pieces(markup, with_tools, prompt, text, whole, want, piece);
    expect_pieces(markup, with_tools, prompt, text, whole, want, 10000);
}

static void qwen(void **state)
{
    (void)state;
    const sib_markup m = SIB_MARKUP_QWEN;
    expect(m, true, "", "Hello <b> there", true, "C(Hello <b> there)");
    expect(m, true, "<think>\n", "\nI think\n</think>\n\nYes.", true, "R(I think\n)C(Yes.)");
    expect(m, true, "<think>\n\n</think>\n\n", "Yes.", true, "C(Yes.)");
    expect(m, true, "", "<think>a</think>b<think>c</think>d", true, "R(a)C(b)R(c)C(d)");
    expect(m, true, "<think>\n", "no end", true, "R(no end)");
    expect(m, true, "", "Let me see.\n\n<tool_call>\n<function=f>\n<parameter=s>\nx y\n</parameter>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>", true,
           "C(Let me see.)T(f {\"s\":\"x y\",\"n\":5})");
    expect(m, true, "", "<tool_call>\n<function=f>\n<parameter=s>\n5\n</parameter>\n<parameter=b>\ntrue\n</parameter>\n<parameter=o>\n{\"a\": [1]}\n</parameter>\n</function>\n</tool_call>\n"
                        "<tool_call>\n<function=g>\n</function>\n</tool_call>\n",
           true, "T(f {\"s\":\"5\",\"b\":true,\"o\":{\"a\":[1]}})T(g {})");
    expect(m, true, "", "<function=f>\n<parameter=s>\nbare\n</parameter>\n</function>", true, "T(f {\"s\":\"bare\"})");
    expect(m, true, "", "<tool_call>\n<function=f>\n<parameter=s>\nunclosed", true, "T(f {\"s\":\"unclosed\"})");
    expect(m, true, "", "text <tool_call>\n<function=f>\n<parameter=s>\nunclosed", false, "C(text)");
    expect(m, true, "", "<tool_call>\nnonsense\n</tool_call>", true, "C(<tool_call>\nnonsense\n</tool_call>)");
    expect(m, true, "", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"j\"}}\n</tool_call>", true, "T(f {\"s\":\"j\"})");
    expect(m, true, "", "a <tool_cal", true, "C(a <tool_cal)");
    expect(m, false, "", "<tool_call>\n<function=f>\n</function>\n</tool_call>", true, "C(<tool_call>\n<function=f>\n</function>\n</tool_call>)");
    expect(m, true, "<think>\n", "<tool_call>\nnot here</think>ok", true, "R(<tool_call>\nnot here)C(ok)");
}

static void json_and_glm(void **state)
{
    (void)state;
    expect(SIB_MARKUP_JSON, true, "", "<tool_call>\n{\"name\": \"f\", \"arguments\": \"{\\\"s\\\": 1}\"}\n</tool_call>", true, "T(f {\"s\": 1})");
    expect(SIB_MARKUP_JSON, true, "", "<tool_call>{\"name\": 5}</tool_call>", true, "C(<tool_call>{\"name\": 5}</tool_call>)");
    expect(SIB_MARKUP_GLM, true, "", "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value> two </arg_value>\n<arg_key>n</arg_key>\n<arg_value>7</arg_value>\n</tool_call>", true,
           "T(f {\"s\":\" two \",\"n\":7})");
    expect(SIB_MARKUP_GLM, true, "", "<tool_call>g</tool_call><tool_call>g</tool_call>", true, "T(g {})T(g {})");
    expect(SIB_MARKUP_GLM, true, "", "<tool_call><x></tool_call>", true, "C(<tool_call><x></tool_call>)");
    expect(SIB_MARKUP_GLM, true, "<think>", "hm</think>", true, "R(hm)");
    expect(SIB_MARKUP_NONE, true, "<think>", "<tool_call>x</tool_call>", true, "C(<tool_call>x</tool_call>)");
}

/* Gemma: markers are ids. Encodes the text with its special tokens and feeds token by token. */
static void expect_gemma(const char *text, bool with_tools, bool whole, const char *want)
{
    parts p = {0};
    sib_reply *r;
    sib_reply_sink sink = {&p, on_content, on_reasoning, on_call};
    sib_ids ids = {0};
    sib_detok *d;
    assert_int_equal(sib_tokenizer_encode(tokenizer, sib_str_of(text), 0, &ids, NULL), SIB_OK);
    assert_int_equal(sib_detok_new(&d, tokenizer, 0, NULL), SIB_OK);
    assert_int_equal(sib_reply_new(&r, SIB_MARKUP_GEMMA, tokenizer, with_tools ? tools : NULL, SIB_STR(""), NULL, &sink, NULL), SIB_OK);
    for (size_t i = 0; i < ids.n; i++) {
        sib_buf out = {0};
        assert_int_equal(sib_detok_feed(d, ids.v[i], &out, NULL), SIB_OK);
        assert_true(sib_reply_feed(r, ids.v[i], out.n ? sib_buf_view(&out) : SIB_STR("")));
        sib_buf_deinit(&out);
    }
    assert_true(sib_reply_end(r, whole));
    const char *got = p.all.p ? p.all.p : "";
    if (strcmp(got, want) != 0) fail_msg("%s\ngives %s\ninstead of %s", text, got, want);
    sib_reply_free(r);
    sib_detok_free(d);
    sib_ids_deinit(&ids);
    sib_buf_deinit(&p.all);
}

static void gemma(void **state)
{
    (void)state;
    expect_gemma("Plain text.", true, true, "C(Plain text.)");
    expect_gemma("<|tool_call>call:f{s:<|\"|>Boston \"x\"<|\"|>,n:1.5,b:true,z:null,l:[1,<|\"|>a<|\"|>,{k:[]}]}<tool_call|>", true, true,
                 "T(f {\"s\":\"Boston \\\"x\\\"\",\"n\":1.5,\"b\":true,\"z\":null,\"l\":[1,\"a\",{\"k\":[]}]})");
    expect_gemma("See: <|tool_call>call:f{}call:g{<|\"|>odd key<|\"|>:bare word}<tool_call|>", true, true, "C(See:)T(f {})T(g {\"odd key\":\"bare word\"})");
    expect_gemma("<|channel>thought\nHm, {}.<channel|>Yes.", true, true, "R(Hm, {}.)C(Yes.)");
    expect_gemma("<|channel>final\nYes.<channel|>", true, true, "C(Yes.)");
    expect_gemma("<|tool_call>call:f{s:<|\"|>open", true, false, "");
    expect_gemma("<|tool_call>call:f{s:<|\"|>a<|\"|>", true, true, "C(<|tool_call>call:f{s:<|\"|>a<|\"|><tool_call|>)");
    expect_gemma("<|tool_call>nonsense<tool_call|>", true, true, "C(<|tool_call>nonsense<tool_call|>)");
    expect_gemma("<|tool_call>call:f{a:[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}<tool_call|>", true, true,
                 "C(<|tool_call>call:f{a:[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}<tool_call|>)");
    expect_gemma("<|tool_call>call:f{}<tool_call|>", false, true, "C(call:f{})");
}

static void markups_are_told_apart(void **state)
{
    (void)state;
    assert_int_equal(sib_markup_of(SIB_STR("x<|tool_call>call:f{}<tool_call|>")), SIB_MARKUP_GEMMA);
    assert_int_equal(sib_markup_of(SIB_STR("<tool_call>\n<function=f>")), SIB_MARKUP_QWEN);
    assert_int_equal(sib_markup_of(SIB_STR("<tool_call>f<arg_key>k</arg_key>")), SIB_MARKUP_GLM);
    assert_int_equal(sib_markup_of(SIB_STR("<tool_call>\n{\"name\"")), SIB_MARKUP_JSON);
    assert_int_equal(sib_markup_of(SIB_STR("nothing")), SIB_MARKUP_NONE);
}

static void a_forced_call_begins_the_answer(void **state)
{
    (void)state;
    sib_buf prompt = {0}, begun = {0};
    parts p = {0};
    sib_reply *r;
    sib_reply_sink sink = {&p, on_content, on_reasoning, on_call};
    sib_buf_addz(&prompt, "assistant\n<think>\n");
    sib_reply_force_call(SIB_MARKUP_QWEN, SIB_STR("f"), &prompt, &begun);
    assert_string_equal(prompt.p, "assistant\n<think>\n\n</think>\n\n<tool_call>\n<function=f>\n");
    sib_str b = sib_buf_view(&begun);
    assert_int_equal(sib_reply_new(&r, SIB_MARKUP_QWEN, tokenizer, tools, sib_buf_view(&prompt), &b, &sink, NULL), SIB_OK);
    assert_true(sib_reply_feed(r, 100, SIB_STR("<parameter=s>\nv\n</parameter>\n</function>\n</tool_call>")));
    assert_true(sib_reply_end(r, true));
    assert_string_equal(p.all.p, "T(f {\"s\":\"v\"})");
    assert_int_equal(sib_reply_calls(r), 1);
    sib_reply_free(r);
    sib_buf_deinit(&p.all);
    sib_buf_deinit(&prompt);
    sib_buf_deinit(&begun);
}

static int setup(void **state)
{
    (void)state;
    sib_err err;
    tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"}}}}}]", 0, NULL);
    return sib_tokenizer_open(&tokenizer, "demo/gemma4-demo/tokenizer.json", "demo/gemma4-demo/tokenizer_config.json", &err);
}

static int teardown(void **state)
{
    (void)state;
    sib_tokenizer_free(tokenizer);
    json_decref(tools);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen), cmocka_unit_test(json_and_glm), cmocka_unit_test(gemma), cmocka_unit_test(markups_are_told_apart), cmocka_unit_test(a_forced_call_begins_the_answer),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* tests/unit/template_test.c - chat templates against Jinja2's own answers (tests/cases, templates part), the demo
 * checkpoint's prompts, the limits, and what the API promises. SIBYL_CASES=DIR adds the real models' templates. */
#include "text/template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include <cmocka.h>

/* ---- JSON as text: values are handed on as they stand, so that long integers stay exact -------------------- */

static const char *skip_value(const char *p)
{
    int depth = 0;
    do {
        p += strspn(p, " \n\r\t,:");
        if (*p == '"') {
            for (p++; *p != '"'; p++)
                if (*p == '\\') p++;
            p++;
        } else if (*p == '{' || *p == '[') {
            depth++;
            p++;
        } else if (*p == '}' || *p == ']') {
            depth--;
            p++;
        } else {
            p += strcspn(p, " \n\r\t,:]}");
        }
    } while (depth);
    return p;
}

/* Walks all of an array or object: *p starts at v.p + 1. */
static bool raw_next(const char **p, sib_str *out)
{
    *p += strspn(*p, " \n\r\t,:");
    if (**p == ']' || **p == '}') return false;
    const char *end = skip_value(*p);
    *out = (sib_str){*p, (size_t)(end - *p)};
    *p = end;
    return true;
}

static sib_str raw_member(sib_str object, const char *key)
{
    const char *p = object.p + 1;
    sib_str k, v;
    while (raw_next(&p, &k) && raw_next(&p, &v))
        if (k.n == strlen(key) + 2 && !memcmp(k.p + 1, key, k.n - 2)) return v;
    return (sib_str){0};
}

static json_t *text_of(sib_str raw) /* a string as jansson sees it; NULL when absent */
{
    return raw.p ? json_loadb(raw.p, raw.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL;
}

static sib_str jstr(const json_t *s)
{
    return (sib_str){json_string_value(s), json_string_length(s)};
}

static sib_buf slurp(const char *dir, const char *name) /* plain or .gz */
{
    char path[1024];
    sib_buf b = {0};
    char part[8192];
    int n;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    gzFile f = gzopen(path, "rb");
    if (!f) {
        snprintf(path, sizeof path, "%s/%s.gz", dir, name);
        f = gzopen(path, "rb");
    }
    if (!f) return b;
    while ((n = gzread(f, part, sizeof part)) > 0) sib_buf_add(&b, part, (size_t)n);
    gzclose(f);
    return b;
}

/* ---- rendering -------------------------------------------------------------------------------------------- */

static const struct tm saturday = {.tm_year = 126, .tm_mon = 2, .tm_mday = 7, .tm_hour = 9, .tm_min = 5, .tm_sec = 2, .tm_wday = 6, .tm_yday = 65};

typedef struct result {
    sib_status s;
    bool parsed;
    sib_buf out;
    sib_template_fault fault;
    sib_err err;
} result;

static void result_free(result *r)
{
    sib_buf_deinit(&r->out);
    sib_buf_deinit(&r->fault.message);
}

static result render_with(sib_str source, const sib_template_vars *vars, const sib_template_options *opt)
{
    result r = {0};
    sib_template *t = NULL;
    r.s = sib_template_parse(&t, source, "t", &r.fault, &r.err);
    r.parsed = r.s == SIB_OK;
    if (r.parsed) {
        sib_buf_addz(&r.out, "kept");
        r.s = sib_template_render(t, vars, opt, &r.out, &r.fault, &r.err);
        assert_true(r.out.n >= 4 && !memcmp(r.out.p, "kept", 4));
        if (r.s != SIB_OK) assert_int_equal(r.out.n, 4);
        memmove(r.out.p, r.out.p + 4, r.out.n - 3);
        r.out.n -= 4;
    }
    sib_template_free(t);
    assert_true((r.s == SIB_OK) == (r.fault.kind == SIB_TEMPLATE_FINE));
    if (r.s != SIB_OK) assert_true(r.err.message[0] && r.err.status == r.s);
    return r;
}

static result render(const char *source, const char *context)
{
    const sib_template_options opt = {.now = &saturday};
    sib_template_vars *v;
    assert_int_equal(sib_template_vars_new(&v, NULL), SIB_OK);
    assert_int_equal(sib_template_vars_set_all(v, sib_str_of(context), NULL), SIB_OK);
    result r = render_with(sib_str_of(source), v, &opt);
    sib_template_vars_free(v);
    return r;
}

static bool known_kind(sib_str want, const result *got)
{
    static const char *const names[] = {"fine", "raised", "syntax", "undefined", "runtime", "security", "limit", "unsupported", "nomem"};
    return sib_str_is(want, names[got->fault.kind]);
}

/* ---- the language ----------------------------------------------------------------------------------------- */

/* One answer of the reference: equal, refused (extra cases only), or wrong. */
enum { EQUAL, KIND_DIFFERS, REFUSED, WRONG };

static int judge(sib_str expected, const result *got, bool core)
{
    json_t *output = text_of(raw_member(expected, "output")), *kind = text_of(raw_member(expected, "error"));
    json_t *message = text_of(raw_member(expected, "message"));
    int verdict = WRONG;
    if (output) {
        if (got->s == SIB_OK)
            verdict = sib_str_eq(jstr(output), sib_buf_view(&got->out)) ? EQUAL : WRONG;
        else if (!core && got->fault.kind == SIB_TEMPLATE_UNSUPPORTED)
            verdict = REFUSED;
    } else if (got->s != SIB_OK) {
        verdict = known_kind(jstr(kind), got) ? EQUAL : KIND_DIFFERS;
        if (sib_str_is(jstr(kind), "raised") && (verdict != EQUAL || !sib_str_eq(jstr(message), sib_buf_view(&got->fault.message)))) verdict = WRONG;
        if (sib_str_is(jstr(kind), "syntax") && got->parsed) verdict = WRONG;
    }
    json_decref(output);
    json_decref(kind);
    json_decref(message);
    return verdict;
}

static void unit_cases(void **state)
{
    (void)state;
    sib_buf file = slurp("tests/cases/templates", "unit.json");
    assert_non_null(file.p);
    const char *p = strchr(file.p, '[') + 1;
    sib_str c;
    int count[2][4] = {{0}};
    while (raw_next(&p, &c)) {
        sib_str name = raw_member(c, "name"), context = raw_member(c, "context");
        json_t *source = text_of(raw_member(c, "template"));
        bool core = sib_str_is(raw_member(c, "need"), "\"core\"");
        sib_template_vars *v;
        assert_int_equal(sib_template_vars_new(&v, NULL), SIB_OK);
        assert_int_equal(sib_template_vars_set_all(v, context, NULL), SIB_OK);
        const sib_template_options opt = {.now = &saturday};
        result r = render_with(jstr(source), v, &opt);
        int verdict = judge(c, &r, core);
        count[core][verdict]++;
        if (verdict == WRONG || getenv("VERBOSE"))
            if (verdict != EQUAL)
                print_message("%.*s %d: %s\n   got %s %s\n", (int)name.n, name.p, verdict, json_string_value(source), r.s == SIB_OK ? r.out.p : "", r.err.message);
        result_free(&r);
        sib_template_vars_free(v);
        json_decref(source);
    }
    sib_buf_deinit(&file);
    for (int core = 1; core >= 0; core--)
        print_message("%s cases: %d equal, %d failed with another kind, %d refused, %d wrong\n", core ? "core" : "extra", count[core][EQUAL],
                      count[core][KIND_DIFFERS], count[core][REFUSED], count[core][WRONG]);
    assert_int_equal(count[0][WRONG] + count[1][WRONG], 0);
    assert_true(count[1][EQUAL] > 800 && count[0][EQUAL] > 100);
}

/* ---- real templates --------------------------------------------------------------------------------------- */

static void real_templates(void **state)
{
    (void)state;
    const char *cases = getenv("SIBYL_CASES");
    char dir[900];
    if (!cases) {
        print_message("SKIP real templates: SIBYL_CASES is not set\n");
        skip();
    }
    snprintf(dir, sizeof dir, "%s/templates", cases);
    sib_buf list = slurp(dir, "templates.json"), chats = slurp(dir, "conversations.json"), expected = slurp(dir, "expected.json");
    if (!list.p || !chats.p || !expected.p) {
        print_message("SKIP real templates: %s has none\n", dir);
        skip();
    }
    int count[4] = {0};
    sib_str t, c;
    for (const char *p = strchr(list.p, '[') + 1; raw_next(&p, &t);) {
        json_t *name = text_of(raw_member(t, "name"));
        char file[300];
        sib_str special = raw_member(t, "special"), all = raw_member(sib_buf_view(&expected), json_string_value(name));
        snprintf(file, sizeof file, "jinja/%s.jinja", json_string_value(name));
        sib_buf source = slurp(dir, file);
        assert_non_null(source.p);
        for (const char *q = strchr(chats.p, '[') + 1; raw_next(&q, &c);) {
            json_t *chat = text_of(raw_member(c, "name"));
            sib_template_vars *v;
            assert_int_equal(sib_template_vars_new(&v, NULL), SIB_OK);
            assert_int_equal(sib_template_vars_set_all(v, sib_str_of("{\"tools\":null,\"documents\":null,\"add_generation_prompt\":false}"), NULL), SIB_OK);
            assert_int_equal(sib_template_vars_set_all(v, special, NULL), SIB_OK);
            assert_int_equal(sib_template_vars_set_all(v, raw_member(c, "context"), NULL), SIB_OK);
            const sib_template_options opt = {.now = &saturday};
            result r = render_with(sib_buf_view(&source), v, &opt);
            int verdict = judge(raw_member(all, json_string_value(chat)), &r, true);
            count[verdict]++;
            if (verdict != EQUAL) print_message("%s %s %d: %s\n", json_string_value(name), json_string_value(chat), verdict, r.err.message);
            result_free(&r);
            sib_template_vars_free(v);
            json_decref(chat);
        }
        sib_buf_deinit(&source);
        json_decref(name);
    }
    sib_buf_deinit(&list);
    sib_buf_deinit(&chats);
    sib_buf_deinit(&expected);
    print_message("real templates: %d equal, %d failed with another kind, %d wrong\n", count[EQUAL], count[KIND_DIFFERS], count[WRONG]);
    assert_int_equal(count[WRONG] + count[KIND_DIFFERS], 0);
    assert_int_equal(count[EQUAL], 847);
}

/* ---- values ----------------------------------------------------------------------------------------------- */

static void check_text(const char *source, const char *context, const char *want)
{
    result r = render(source, context);
    if (r.s != SIB_OK) print_message("%s: %s\n", source, r.err.message);
    assert_int_equal(r.s, SIB_OK);
    assert_string_equal(r.out.p, want);
    result_free(&r);
}

static void check_fails(const char *source, sib_template_kind kind, sib_status status, int line, const char *words)
{
    result r = render(source, "{}");
    if (r.fault.kind != kind) print_message("%s: %s\n", source, r.err.message);
    assert_int_equal(r.fault.kind, kind);
    assert_int_equal(r.s, status);
    assert_int_equal(r.fault.line, line);
    if (!strstr(r.fault.message.p, words)) print_message("%s\n", r.fault.message.p);
    assert_non_null(strstr(r.fault.message.p, words));
    result_free(&r);
}

static void exact_numbers(void **state)
{
    (void)state;
    const char *context = "{\"a\":12345678901234567890,\"b\":-9223372036854775808,\"c\":9223372036854775807,\"d\":-0,\"f\":1.0,\"g\":1e400,\"h\":-9223372036854775809}";
    check_text("{{ a }} {{ b }} {{ c }} {{ d }} {{ f }} {{ g }} {{ h }}", context,
               "12345678901234567890 -9223372036854775808 9223372036854775807 0 1.0 inf -9223372036854775809");
    check_text("{{ [a, -a, a - a, a - c - c, b - 1, b * -1, c + 1 - 1]|tojson }}", context,
               "[12345678901234567890, -12345678901234567890, 0, -6101065172474983724, -9223372036854775809, 9223372036854775808, 9223372036854775807]");
    check_text("{{ a > c }} {{ a == a + 0 }} {{ a < 1e19 }} {{ h < b }} {{ a == 12345678901234567890.0 }} {{ {a: 1}[a] }} {{ 2 ** 63 }} {{ 2 ** 64 == 2.0 ** 64 }}", context,
               "True True False True False 1 9223372036854775808 True");
    check_text("{{ 999999999 * 999999999 * 999999999 * 999999999 }} {{ (10 ** 30 - 10 ** 30 + 7) * 3 }} {{ -(10 ** 20) + 1 }} {{ 10 ** 25 > 10 ** 24 }}", "{}",
               "999999996000000005999999996000000001 21 -99999999999999999999 True");
    check_text("{{ '99999999999999999999'|int }} {{ '-0x10'|int(0, 16) }} {{ 1e20|int }} {{ '1_0'|int }} {{ '1__0'|int(-1) }} {{ ' -7 '|int }}", "{}", "99999999999999999999 -16 100000000000000000000 10 -1 -7");
    check_text("{{ 9007199254740993 == 9007199254740992.0 }} {{ 9007199254740993 > 9007199254740992.0 }} {{ -7 // -1 }} {{ b // -1 }} {{ b % -1 }}", context, "False True 7 9223372036854775808 0");
    check_fails("{{ 10 ** 4300 }}", SIB_TEMPLATE_LIMIT, SIB_ECAPACITY, 1, "4300 digits");
    check_fails("{{ 10 ** 99999999999 }}", SIB_TEMPLATE_LIMIT, SIB_ECAPACITY, 1, "4300 digits");
}

/* Found by comparing random templates with Jinja2. */
static void differences_found(void **state)
{
    (void)state;
    check_text("{{ 'ŉ ǆ ᾲ ﬃ'.title() }}{{ 'ŉᾳ'.upper() }}", "{}", "ʼN ǅ Ὰͅ FfiʼNΑΙ");
    check_text("{{ 0|map('upper')|list }}{{ false|reject|list }}", "{}", "[][]");
    check_fails("{{ [1]|indent(2) }}", SIB_TEMPLATE_RUNTIME, SIB_EARG, 1, "wants a string");
    check_fails("{{ q|indent(2) }}", SIB_TEMPLATE_UNDEFINED, SIB_EARG, 1, "'q' is undefined");
}

static void scopes_and_sharing(void **state)
{
    (void)state;
    /* growing a string in place must not show through an older name for its beginning */
    check_text("{% set a = 'x' ~ 1 %}{% set b = a + 'y' %}{% set c = a + 'z' %}{{ a }} {{ b }} {{ c }} {{ b + c + a }}", "{}", "x1 x1y x1z x1yx1zx1");
    check_text("{% set ns = namespace(s='') %}{% for i in range(5) %}{% set ns.s = ns.s + i|string %}{% set ns.t = ns.s + '!' %}{% endfor %}{{ ns.s }}{{ ns.t }}", "{}", "0123401234!");
    check_text("{% set l = [1, 2] %}{% set m = l + [3] %}{% set n = l + [4] %}{{ l }}{{ m }}{{ n }}", "{}", "[1, 2][1, 2, 3][1, 2, 4]");
    /* each turn of a loop has its own variables, also for a macro that remembers them */
    check_text("{% for i in [1, 2, 3] %}{% if loop.first %}{% set a = i %}{% endif %}[{{ a }}]{% endfor %}", "{}", "[1][][]");
    check_text("{% set ns = namespace(m=[]) %}{% for i in [1, 2, 3] %}{% macro f() %}{{ i }}{% endmacro %}{% set ns.m = ns.m + [f] %}{% endfor %}{% for f in ns.m %}{{ f() }}{% endfor %}", "{}", "123");
    check_text("{% set g = ['a', 'b']|map('upper') %}{{ g|list }}{{ g|list }}", "{}", "['A', 'B'][]");
    check_text("{% for i in [1, 2, 3] %}{% set x %}{{ i }}{% if i == 2 %}{% continue %}{% endif %}{% endset %}{{ x }}{% endfor %}", "{}", "13");
    check_text("{{ {1: 'a', true: 'b', 1.0: 'c'} }} {% set d = dict(a=1) %}{% set e = dict(d, a=2) %}{{ d }}{{ e }}", "{}", "{1: 'c'} {'a': 1}{'a': 2}");
}

static void failures_say_where(void **state)
{
    (void)state;
    check_fails("a\nb\n{{ 1 +", SIB_TEMPLATE_SYNTAX, SIB_EFORMAT, 3, "does not end");
    check_fails("\n\n{% if x %}", SIB_TEMPLATE_SYNTAX, SIB_EFORMAT, 3, "endif");
    check_fails("\r\n\r\n{{ q.a }}", SIB_TEMPLATE_UNDEFINED, SIB_EARG, 3, "'q' is undefined");
    check_fails("x\n{{ 'a' +\n 1 }}", SIB_TEMPLATE_RUNTIME, SIB_EARG, 2, "concatenate");
    check_fails("{{ [].append(1) }}", SIB_TEMPLATE_SECURITY, SIB_EFORMAT, 1, "not allowed");
    check_fails("{{ ''.__class__.__mro__ }}", SIB_TEMPLATE_SECURITY, SIB_EFORMAT, 1, "__class__");
    check_fails("{% include 'etc' %}", SIB_TEMPLATE_UNSUPPORTED, SIB_EUNSUPPORTED, 1, "include");
    check_fails("{{ 'a'|map('upper') }}", SIB_TEMPLATE_UNSUPPORTED, SIB_EUNSUPPORTED, 1, "generator");
    check_fails("\xff", SIB_TEMPLATE_SYNTAX, SIB_EFORMAT, 0, "UTF-8");
    char source[3000] = "{{ raise_exception('";
    memset(source + strlen(source), 'x', 2000);
    strcat(source, "') }}");
    result r = render(source, "{}");
    assert_int_equal(r.s, SIB_EARG);
    assert_int_equal(r.fault.message.n, 2000); /* whole, although the sentence in err is cut */
    assert_true(strlen(r.err.message) > 400 && strspn(r.err.message, "x") == strlen(r.err.message));
    result_free(&r);
}

/* ---- limits ----------------------------------------------------------------------------------------------- */

static char *repeated(const char *before, const char *part, size_t n, const char *middle, const char *after)
{
    sib_buf b = {0};
    sib_buf_addz(&b, before);
    for (size_t i = 0; i < n; i++) sib_buf_addz(&b, part);
    sib_buf_addz(&b, middle);
    for (size_t i = 0; i < n; i++) sib_buf_addz(&b, after);
    return b.p;
}

static void hostile_nesting(void **state)
{
    (void)state;
    static const char *const deep[][4] = {{"{{ ", "(", "1", ")"}, {"{{ ", "[", "1", "]"}, {"{{ ", "{1:", "1", "}"}, {"{{ ", "- ", "1 }}", ""}, {"{{ ", "not ", "1 }}", ""},
                                          {"{{ ", "f(", "1", ")"}, {"{{ ", "a[", "1", "]"}, {"{{ ", "1 if 1 else ", "1 }}", ""}, {"", "{% if 1 %}", "x", "{% endif %}"},
                                          {"", "{% for i in x %}", "x", "{% endfor %}"}, {"", "{% macro f() %}", "x", "{% endmacro %}"}, {"{% set ", "(", "a", ")"},
                                          {"", "{% set a %}", "x", "{% endset %}"}, {"", "{% if 1 %}{% else %}", "x", "{% endif %}"}, {"{{ 1", " if 1", " }}", ""}};
    for (size_t i = 0; i < sizeof deep / sizeof deep[0]; i++) {
        char *source = repeated(deep[i][0], deep[i][1], 100000, deep[i][2], deep[i][3]);
        result r = render(source, "{}");
        if (r.fault.kind != SIB_TEMPLATE_LIMIT) print_message("%s: %s\n", deep[i][1], r.err.message);
        assert_int_equal(r.s, SIB_ECAPACITY);
        assert_int_equal(r.fault.kind, SIB_TEMPLATE_LIMIT);
        result_free(&r);
        free(source);
    }
    /* long, but not deep */
    static const char *const flat[][4] = {{"{{ 0", " + 1", " }}", ""}, {"{{ 1", " and 1", " }}", ""}, {"{{ ''", " ~ ''", " }}", ""}, {"{{ q", "|default(q)", " }}", ""},
                                          {"{{ [", "1,", "]|length }}", ""}, {"{% if q %}", "{% elif q %}", "{% endif %}", ""}, {"{{ 'x'", "[0]", " }}", ""}};
    for (size_t i = 0; i < sizeof flat / sizeof flat[0]; i++) {
        char *source = repeated(flat[i][0], flat[i][1], 50000, flat[i][2], flat[i][3]);
        result r = render(source, "{}");
        if (r.s != SIB_OK) print_message("%s: %s\n", flat[i][1], r.err.message);
        assert_int_equal(r.s, SIB_OK);
        result_free(&r);
        free(source);
    }
}

static void hostile_work(void **state)
{
    (void)state;
    static const char *const bombs[] = {
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{{ g(n) }}{% endmacro %}{% macro g(n) %}{% if 1 %}{% for i in [1] %}{{ f(n + 1) }}{% endfor %}{% endif %}{% endmacro %}{{ f(0) }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{% endfor %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10 ** 12 }}",
        "{{ 'x' * 9223372036854775807 }}",
        "{{ 'x' * 10 ** 30 }}",
        "{{ [1] * 10 ** 9 }}",
        "{% for i in range(100) %}{{ 'x' * 1000000 }}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(1000) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='x' * 100000) %}{% for i in range(1000) %}{% set ns.s = ns.s|replace('x', 'xx') %}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l == [ns.l] }}{{ ns.l|tojson }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|string|length }}",
        "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{% endfor %}{{ ns.l == ns.m }}",
        "{% set ns = namespace(l=(1,)) %}{% for i in range(150) %}{% set ns.l = (ns.l, ns.l) %}{% endfor %}{{ {ns.l: 1} }}",
        "{% set s = 'x' * 10000000 %}{% for i in range(100000) %}{{ s|length and '' }}{% endfor %}",
        "{% set s = 'x' * 10000000 %}{% for i in range(100000) %}{% if 'y' in s %}{% endif %}{% endfor %}",
        "{% set s = 'x' * 10000000 %}{% for i in range(100000) %}{% if s.find('y') %}{% endif %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = s.split(',') %}{% endfor %}",
        "{% set ns = namespace() %}{% for i in range(3000) %}{% for j in range(3000) %}{% set ns.x = i * j %}{% endfor %}{% endfor %}",
        "{{ '%999999d' % 5 }}{% for i in range(99999) %}{{ '%999999d' % 5 }}{% endfor %}",
        "{{ 'a'.center(9223372036854775807) }}",
        "{{ 'a'|indent(9223372036854775807) }}",
        "{{ [1]|batch(9223372036854775807, 0)|list }}",
        "{{ [1]|slice(9223372036854775807)|list }}",
        "{% set ns = namespace(n=3) %}{% for i in range(100) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    };
    const char *context = "{\"s\":\",,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,\"}";
    for (size_t i = 0; i < sizeof bombs / sizeof bombs[0]; i++) {
        result r = render(bombs[i], context);
        if (r.fault.kind != SIB_TEMPLATE_LIMIT) print_message("%s: %d %s\n", bombs[i], r.s, r.err.message);
        assert_int_equal(r.fault.kind, SIB_TEMPLATE_LIMIT);
        assert_int_equal(r.s, SIB_ECAPACITY);
        result_free(&r);
    }
    check_fails("{{ range(10 ** 9) }}", SIB_TEMPLATE_RUNTIME, SIB_EARG, 1, "range is too big");
    check_text("{{ range(0, 10 ** 18, 10 ** 15)|length }} {{ range(-9223372036854775807, 9223372036854775807, 9223372036854775807)|list|length }}", "{}", "1000 2");
}

static int64_t ticking(void *self)
{
    int64_t *t = self;
    return *t += 1000000000; /* a second each time it is asked */
}

static void options_are_obeyed(void **state)
{
    (void)state;
    sib_template_vars *v;
    int64_t t = 0;
    assert_int_equal(sib_template_vars_new(&v, NULL), SIB_OK);
    const sib_template_options some[] = {{.clock = ticking, .clock_self = &t}, {.max_steps = 5000}, {.max_output = 1000}, {.max_memory = 50000}};
    static const char *const says[] = {"too long", "5000 steps", "1000 bytes", "50000 bytes of memory"};
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        result r = render_with(sib_str_of("{% for i in range(50000) %}{{ i }}{{ '%s' % i }}{% endfor %}"), v, &some[i]);
        assert_int_equal(r.s, SIB_ECAPACITY);
        assert_non_null(strstr(r.err.message, says[i]));
        result_free(&r);
    }
    sib_template_vars_free(v);
}

/* A conversation of half a million characters, each message added to one string, is not an attack. */
static void long_chats_pass(void **state)
{
    (void)state;
    sib_buf b = {0};
    sib_buf_addz(&b, "{\"m\":[");
    for (int i = 0; i < 2000; i++) {
        sib_buf_addz(&b, i ? ",\"" : "\"");
        for (int k = 0; k < 25; k++) sib_buf_addz(&b, "some words ");
        sib_buf_addc(&b, '"');
    }
    sib_buf_addc(&b, ']');
    sib_buf_addz(&b, "}");
    result r = render("{% set ns = namespace(t='') %}{% for x in m %}{% set ns.t = ns.t + x + '\\n' %}{% endfor %}{{ ns.t|length }}", b.p);
    assert_string_equal(r.err.message, "");
    assert_string_equal(r.out.p, "552000");
    result_free(&r);
    sib_buf_deinit(&b);
}

static void bad_variables(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "[]", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{\"a\":01}", "{\"a\":1.}", "{\"a\":1e}", "{\"a\":-}", "{\"a\":\"\\ud800\"}",
                                      "{\"a\":\"\\u12\"}", "{\"a\":\"\n\"}", "{\"a\":\"\xff\"}", "{\"a\":tru}", "{} x", "{\"a\":NaN}", "{\"a\":\"x"};
    sib_template_vars *v;
    sib_err err;
    assert_int_equal(sib_template_vars_new(&v, NULL), SIB_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        err = (sib_err){0};
        assert_int_equal(sib_template_vars_set_all(v, sib_str_of(bad[i]), &err), SIB_EARG);
        assert_true(strlen(err.message) > 10);
    }
    char *deep = repeated("{\"a\":", "[", 100000, "", "]");
    assert_int_equal(sib_template_vars_set_all(v, sib_str_of(deep), &err), SIB_EARG);
    free(deep);
    assert_int_equal(sib_template_vars_set_str(v, "a", sib_str_of("\xff"), &err), SIB_EARG);
    json_t *j = json_pack("{s:[i,f,b,n,s]}", "k", 1, 2.0, 1, "\xc3\xa9");
    assert_int_equal(sib_template_vars_set(v, "j", j, NULL), SIB_OK);
    json_decref(j);
    assert_int_equal(sib_template_vars_set_json(v, "big", SIB_STR("123456789012345678901"), NULL), SIB_OK);
    assert_int_equal(sib_template_vars_set_str(v, "s", SIB_STR("\x01<"), NULL), SIB_OK);
    result r = render_with(SIB_STR("{{ j }}{{ big }}{{ s|tojson }}"), v, NULL);
    assert_string_equal(r.out.p, "{'k': [1, 2.0, True, None, '\xc3\xa9']}123456789012345678901\"\\u0001<\"");
    result_free(&r);
    sib_template_vars_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unit_cases),        cmocka_unit_test(real_templates), cmocka_unit_test(exact_numbers),
        cmocka_unit_test(differences_found), cmocka_unit_test(scopes_and_sharing), cmocka_unit_test(failures_say_where), cmocka_unit_test(hostile_nesting),
        cmocka_unit_test(hostile_work),      cmocka_unit_test(options_are_obeyed), cmocka_unit_test(long_chats_pass),
        cmocka_unit_test(bad_variables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

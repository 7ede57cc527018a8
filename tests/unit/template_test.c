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

/* The n-th value of an array or object, NULL at the end; an object's values are at odd numbers behind their keys. */
static sib_str raw_at(sib_str v, size_t n)
{
    const char *p = v.p + 1;
    for (;; n--) {
        p += strspn(p, " \n\r\t,:");
        if (*p == ']' || *p == '}') return (sib_str){0};
        const char *end = skip_value(p);
        if (!n) return (sib_str){p, (size_t)(end - p)};
        p = end;
    }
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unit_cases),
        cmocka_unit_test(real_templates),
    };
    (void)render;
    (void)raw_at;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

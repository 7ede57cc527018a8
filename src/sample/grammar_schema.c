/* sample/grammar_schema.c - JSON schemas to programs; see grammar.h for the keywords.
 *
 * Members of an object come in the order in which the schema lists them, optional ones or not at all. Schemas that are referred to become
 * rules that are called, so recursion costs nothing until the text nests. */
#include "sample/grammar_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NESTING 32   /* of the schema itself */
#define MAX_RULES   256  /* schemas that are referred to */
#define MAX_ITEMS   1000 /* minItems, maxItems, minLength ... */

typedef struct rule {
    const json_t *schema;
    int32_t entry; /* a CALL target that is patched when the rule has code: an unconditional SPLIT */
    bool done;
} rule;

typedef struct compiler {
    sib_grammar_program *p;
    const json_t *root;
    rule rules[MAX_RULES];
    int n_rules;
    int32_t ws, character, number, integer, string, value, object, array; /* rules of plain JSON, by entry */
} compiler;

static int32_t emit_schema(compiler *c, const json_t *schema, int depth, int32_t next);

static int32_t text(compiler *c, const char *z, int32_t next)
{
    return sib_g_text(c->p, sib_str_of(z), next);
}

static int32_t call(compiler *c, int32_t entry, int32_t next)
{
    return sib_g_emit(c->p, (sib_g_op){.op = SIB_G_CALL, .x = entry, .y = next});
}

static int32_t returns(compiler *c)
{
    return sib_g_emit(c->p, (sib_g_op){.op = SIB_G_RETURN});
}

static int32_t placeholder(compiler *c)
{
    return sib_g_split(c->p, 0, 0);
}

static void define(compiler *c, int32_t entry, int32_t pc)
{
    if (c->p->status == SIB_OK) c->p->ops[entry].x = c->p->ops[entry].y = pc;
}

static int32_t optional(compiler *c, int32_t pc, int32_t next)
{
    return sib_g_split(c->p, pc, next);
}

static int32_t regex(compiler *c, const char *z, int32_t next)
{
    return sib_g_regex(c->p, sib_str_of(z), false, false, next);
}

/* ---- plain JSON ------------------------------------------------------------------------------------------- */

/* open, then items joined by commas, then close; empty allowed. `item` emits one item. */
static int32_t emit_list(compiler *c, const char *open, const char *close, int32_t (*item)(compiler *c, int32_t next), int32_t next)
{
    int32_t end = call(c, c->ws, text(c, close, next));
    int32_t more = placeholder(c); /* after an item */
    int32_t again = text(c, ",", call(c, c->ws, item(c, more)));
    if (c->p->status == SIB_OK) c->p->ops[more].x = again, c->p->ops[more].y = end;
    int32_t first = call(c, c->ws, item(c, more));
    return text(c, open, sib_g_split(c->p, first, end));
}

static int32_t any_value(compiler *c, int32_t next)
{
    return call(c, c->value, next);
}

static int32_t any_member(compiler *c, int32_t next)
{
    return call(c, c->string, text(c, ":", call(c, c->ws, call(c, c->value, next))));
}

static void define_json(compiler *c)
{
    /* One blank, or one line break and its indentation: white space never becomes a way to write for ever. */
    c->ws = regex(c, "( |\\n[ \\t]{0,24})?", returns(c));
    c->character = regex(c, "[^\"\\\\\\x00-\\x1f]|\\\\([\"\\\\/bfnrt]|u([0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))", returns(c));
    c->integer = regex(c, "-?(0|[1-9][0-9]{0,17})", returns(c));
    c->number = regex(c, "-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?([eE][+-]?[0-9]{1,3})?", returns(c));
    int32_t end = text(c, "\"", returns(c)), loop = placeholder(c), one = call(c, c->character, loop);
    if (c->p->status == SIB_OK) c->p->ops[loop].x = one, c->p->ops[loop].y = end;
    c->string = text(c, "\"", loop);
    c->value = placeholder(c);
    c->object = emit_list(c, "{", "}", any_member, returns(c));
    c->array = emit_list(c, "[", "]", any_value, returns(c));
    int32_t r = returns(c);
    int32_t words = regex(c, "true|false|null", r);
    define(c, c->value, sib_g_split(c->p, sib_g_split(c->p, call(c, c->object, r), call(c, c->array, r)), sib_g_split(c->p, call(c, c->string, r), sib_g_split(c->p, call(c, c->number, r), words))));
}

/* ---- keywords ------------------------------------------------------------------------------------------------ */

static const char *const annotations[] = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs", "definitions", "deprecated", "readOnly", "writeOnly", "strict", NULL};

static bool in_list(const char *const *list, const char *key)
{
    for (; *list; list++)
        if (strcmp(*list, key) == 0) return true;
    return false;
}

static void refuse_others(compiler *c, const json_t *schema, const char *const *known)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)schema, key, v)
    {
        if (in_list(annotations, key) || in_list(known, key)) continue;
        sib_g_fail(c->p, SIB_EUNSUPPORTED, "schema: keyword \"%.60s\" is not supported here", key);
        return;
    }
}

static int count_of(compiler *c, const json_t *schema, const char *key, int fallback)
{
    const json_t *v = json_object_get(schema, key);
    if (!v) return fallback;
    if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= MAX_ITEMS) return (int)json_integer_value(v);
    sib_g_fail(c->p, SIB_EARG, "schema: \"%s\" must be a whole number up to %d", key, MAX_ITEMS);
    return 0;
}

/* A constant as compact JSON. */
static int32_t constant(compiler *c, const json_t *v, int32_t next)
{
    char *z = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!z) return sib_g_fail(c->p, SIB_ENOMEM, "out of memory: schema");
    int32_t pc = text(c, z, next);
    free(z);
    return pc;
}

static int32_t emit_string(compiler *c, const json_t *schema, int32_t next)
{
    static const char *const known[] = {"type", "minLength", "maxLength", "pattern", "format", NULL};
    static const char *const formats[][2] = {
        {"date", "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"}, /* every month has these days */
        {"time", "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"},
        {"date-time", "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"},
        {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"}};
    refuse_others(c, schema, known);
    const json_t *pattern = json_object_get(schema, "pattern");
    const char *format = json_string_value(json_object_get(schema, "format"));
    bool counted = json_object_get(schema, "minLength") || json_object_get(schema, "maxLength");
    if ((pattern || format) && counted) return sib_g_fail(c->p, SIB_EUNSUPPORTED, "schema: \"minLength\" and \"maxLength\" are not supported beside \"%s\"", pattern ? "pattern" : "format");
    if (pattern && format) return sib_g_fail(c->p, SIB_EUNSUPPORTED, "schema: \"format\" is not supported beside \"pattern\"");
    next = text(c, "\"", next);
    if (pattern) {
        if (!json_is_string(pattern)) return sib_g_fail(c->p, SIB_EARG, "schema: \"pattern\" must be a string");
        return text(c, "\"", sib_g_regex(c->p, (sib_str){json_string_value(pattern), json_string_length(pattern)}, true, true, next));
    }
    for (size_t i = 0; format && i < SIB_COUNT(formats); i++)
        if (strcmp(format, formats[i][0]) == 0) return text(c, "\"", regex(c, formats[i][1], next));
    if (format) return sib_g_fail(c->p, SIB_EUNSUPPORTED, "schema: \"format\": \"%.40s\" is not supported", format);
    int least = count_of(c, schema, "minLength", 0), most = count_of(c, schema, "maxLength", -1);
    if (most >= 0 && most < least) return sib_g_fail(c->p, SIB_EARG, "schema: \"maxLength\" is below \"minLength\"");
    if (most < 0) {
        int32_t loop = placeholder(c), one = call(c, c->character, loop);
        if (c->p->status == SIB_OK) c->p->ops[loop].x = one, c->p->ops[loop].y = next;
        next = loop;
    }
    for (int i = least; i < most; i++) next = optional(c, call(c, c->character, next), next);
    for (int i = 0; i < least; i++) next = call(c, c->character, next);
    return text(c, "\"", next);
}

/* What follows an item: a comma and the next, or the end. */
static int32_t emit_array(compiler *c, const json_t *schema, int depth, int32_t next)
{
    static const char *const known[] = {"type", "items", "prefixItems", "minItems", "maxItems", NULL};
    static const char *const plain[] = {"type", NULL};
    const json_t *items = json_object_get(schema, "items"), *prefix = json_object_get(schema, "prefixItems");
    refuse_others(c, schema, known);
    int n_prefix = (int)json_array_size(prefix), least = count_of(c, schema, "minItems", 0), most = count_of(c, schema, "maxItems", -1);
    bool none = json_is_false(items);
    if (!items && !prefix && least == 0 && most < 0) {
        refuse_others(c, schema, plain);
        return call(c, c->array, next);
    }
    if (prefix && !items) none = true; /* nothing said about more: none is always right */
    if (most < 0 && none) most = n_prefix;
    if (most >= 0 && most < least) return sib_g_fail(c->p, SIB_EARG, "schema: \"maxItems\" is below \"minItems\"");
    int fixed = most >= 0 ? most : least > n_prefix ? least : n_prefix;
    int32_t end = call(c, c->ws, text(c, "]", next)), after = end; /* `after`: the pc behind item number i */
    if (most < 0) { /* any number more */
        after = placeholder(c);
        int32_t again = text(c, ",", call(c, c->ws, emit_schema(c, items, depth, after)));
        if (c->p->status == SIB_OK) c->p->ops[after].x = again, c->p->ops[after].y = end;
    }
    int32_t whole = end;
    for (int i = fixed; i > 0 && c->p->status == SIB_OK; i--) {
        const json_t *one = i <= n_prefix ? json_array_get(prefix, (size_t)i - 1) : items;
        int32_t item = call(c, c->ws, emit_schema(c, one, depth, after));
        if (i == 1) {
            whole = least >= 1 ? item : sib_g_split(c->p, item, end);
        } else {
            item = text(c, ",", item);
            after = least >= i ? item : sib_g_split(c->p, item, end);
        }
    }
    if (fixed == 0 && most < 0) whole = sib_g_split(c->p, call(c, c->ws, emit_schema(c, items, depth, after)), end);
    return text(c, "[", whole);
}

static bool is_required(const json_t *required, const char *key)
{
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)required, i, v)
    {
        if (json_is_string(v) && strcmp(json_string_value(v), key) == 0) return true;
    }
    return false;
}

static int32_t emit_member(compiler *c, const char *key, const json_t *schema, int depth, int32_t next)
{
    sib_buf quoted = {0};
    sib_json_put_str(&quoted, sib_str_of(key));
    if (quoted.failed) return sib_g_fail(c->p, SIB_ENOMEM, "out of memory: schema");
    int32_t pc = sib_g_text(c->p, sib_buf_view(&quoted), text(c, ":", call(c, c->ws, emit_schema(c, schema, depth, next))));
    sib_buf_deinit(&quoted);
    return call(c, c->ws, pc);
}

/* Two ways into the members from number i on: the first member of the object, or one behind a comma. */
static int32_t emit_members(compiler *c, const json_t *properties, const json_t *required, int depth, int32_t next)
{
    size_t n = json_object_size(properties);
    const char **keys = calloc(n + 1, sizeof *keys), *key;
    json_t *v;
    size_t k = 0;
    if (!keys) return sib_g_fail(c->p, SIB_ENOMEM, "out of memory: schema");
    json_object_foreach((json_t *)properties, key, v) keys[k++] = key;
    int32_t end = call(c, c->ws, text(c, "}", next)), first = end, later = end;
    while (k > 0 && c->p->status == SIB_OK) {
        key = keys[--k];
        int32_t member = emit_member(c, key, json_object_get(properties, key), depth, later), joined = text(c, ",", member);
        bool needed = is_required(required, key);
        first = needed ? member : sib_g_split(c->p, member, first);
        later = needed ? joined : sib_g_split(c->p, joined, later);
    }
    free(keys);
    return text(c, "{", first);
}

static int32_t emit_object(compiler *c, const json_t *schema, int depth, int32_t next)
{
    static const char *const known[] = {"type", "properties", "required", "additionalProperties", NULL};
    const json_t *properties = json_object_get(schema, "properties"), *required = json_object_get(schema, "required"), *more = json_object_get(schema, "additionalProperties");
    size_t i;
    json_t *v;
    refuse_others(c, schema, known);
    json_array_foreach((json_t *)required, i, v)
    {
        if (!json_is_string(v) || !json_object_get(properties, json_string_value(v))) return sib_g_fail(c->p, SIB_EUNSUPPORTED, "schema: \"required\" names a property that \"properties\" does not have");
    }
    if (json_object_size(properties) > 0 || json_is_false(more)) return emit_members(c, properties, required, depth, next);
    if (!more || json_is_true(more) || json_object_size(more) == 0) return call(c, c->object, next);
    /* Any names, all values of one schema. */
    int32_t end = call(c, c->ws, text(c, "}", next)), after = placeholder(c);
    int32_t member = call(c, c->ws, call(c, c->string, text(c, ":", call(c, c->ws, emit_schema(c, more, depth, after)))));
    int32_t again = text(c, ",", member);
    if (c->p->status == SIB_OK) c->p->ops[after].x = again, c->p->ops[after].y = end;
    return text(c, "{", sib_g_split(c->p, member, end));
}

/* ---- schemas ---------------------------------------------------------------------------------------------------- */

/* "#", "#/$defs/name", ...: the schema, compiled once as a rule. */
static int32_t emit_ref(compiler *c, const char *ref, int32_t next)
{
    const json_t *at = c->root;
    if (ref[0] != '#') return sib_g_fail(c->p, SIB_EUNSUPPORTED, "schema: \"$ref\" can only point into the schema itself");
    for (const char *z = ref + 1; *z == '/' && at;) {
        char name[256];
        size_t n = strcspn(++z, "/"), k = 0;
        for (size_t i = 0; i < n && k + 1 < sizeof name; i++) {
            bool escape = z[i] == '~' && i + 1 < n && (z[i + 1] == '0' || z[i + 1] == '1');
            name[k++] = escape ? (z[i + 1] == '0' ? '~' : '/') : z[i];
            i += escape;
        }
        name[k] = 0;
        at = json_object_get(at, name);
        z += n;
    }
    if (!at) return sib_g_fail(c->p, SIB_EARG, "schema: \"$ref\" \"%.80s\" points to nothing", ref);
    for (int i = 0; i < c->n_rules; i++)
        if (c->rules[i].schema == at) return call(c, c->rules[i].entry, next);
    if (c->n_rules == MAX_RULES) return sib_g_fail(c->p, SIB_ECAPACITY, "schema: more than %d schemas are referred to", MAX_RULES);
    c->rules[c->n_rules] = (rule){.schema = at, .entry = placeholder(c)};
    return call(c, c->rules[c->n_rules++].entry, next);
}

static int32_t emit_type(compiler *c, const json_t *schema, const char *type, int depth, int32_t next)
{
    static const char *const plain[] = {"type", NULL};
    if (strcmp(type, "string") == 0) return emit_string(c, schema, next);
    if (strcmp(type, "array") == 0) return emit_array(c, schema, depth, next);
    if (strcmp(type, "object") == 0) return emit_object(c, schema, depth, next);
    refuse_others(c, schema, plain);
    if (strcmp(type, "integer") == 0) return call(c, c->integer, next);
    if (strcmp(type, "number") == 0) return call(c, c->number, next);
    if (strcmp(type, "boolean") == 0) return regex(c, "true|false", next);
    if (strcmp(type, "null") == 0) return text(c, "null", next);
    return sib_g_fail(c->p, SIB_EARG, "schema: type \"%.40s\" is not known", type);
}

static int32_t emit_any_of(compiler *c, const json_t *list, int depth, int32_t next)
{
    int32_t all = -1;
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)list, i, v)
    {
        if (c->p->status != SIB_OK) return 0;
        int32_t pc = emit_schema(c, v, depth, next);
        all = all < 0 ? pc : sib_g_split(c->p, all, pc);
    }
    return all < 0 ? sib_g_fail(c->p, SIB_EARG, "schema: \"anyOf\" must be a list that is not empty") : all;
}

/* Different types cannot both match, so one of them is any of them. */
static bool all_of_different_types(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *a = json_string_value(json_object_get(json_array_get(list, i), "type"));
        if (!a) return false;
        for (size_t j = 0; j < i; j++) {
            const char *b = json_string_value(json_object_get(json_array_get(list, j), "type"));
            bool numbers = (strcmp(a, "integer") == 0 || strcmp(a, "number") == 0) && (strcmp(b, "integer") == 0 || strcmp(b, "number") == 0);
            if (strcmp(a, b) == 0 || numbers) return false;
        }
    }
    return true;
}

static int32_t emit_types(compiler *c, const json_t *schema, const json_t *types, int depth, int32_t next)
{
    static const char *const known[] = {"type", "minLength", "maxLength", "pattern", "format", "items", "prefixItems", "minItems", "maxItems", "properties", "required", "additionalProperties", NULL};
    int32_t all = -1;
    size_t i;
    json_t *v;
    refuse_others(c, schema, known);
    json_array_foreach((json_t *)types, i, v)
    {
        if (!json_is_string(v)) return sib_g_fail(c->p, SIB_EARG, "schema: \"type\" must be a name or a list of names");
        /* Keywords of one type say nothing about the others. */
        json_t *only = json_object();
        static const char *const of_string[] = {"minLength", "maxLength", "pattern", "format", NULL}, *const of_array[] = {"items", "prefixItems", "minItems", "maxItems", NULL},
                                 *const of_object[] = {"properties", "required", "additionalProperties", NULL}, *const of_none[] = {NULL};
        const char *name = json_string_value(v);
        const char *const *keys = strcmp(name, "string") == 0 ? of_string : strcmp(name, "array") == 0 ? of_array : strcmp(name, "object") == 0 ? of_object : of_none;
        int failed = !only;
        for (; *keys; keys++)
            if (json_object_get(schema, *keys)) failed |= json_object_set(only, *keys, json_object_get(schema, *keys));
        int32_t pc = failed ? sib_g_fail(c->p, SIB_ENOMEM, "out of memory: schema") : emit_type(c, only, name, depth, next);
        json_decref(only);
        all = all < 0 ? pc : sib_g_split(c->p, all, pc);
    }
    return all < 0 ? sib_g_fail(c->p, SIB_EARG, "schema: \"type\" is an empty list") : all;
}

static int32_t emit_schema(compiler *c, const json_t *schema, int depth, int32_t next)
{
    static const char *const with_ref[] = {"$ref", NULL}, *const with_enum[] = {"enum", "type", NULL}, *const with_const[] = {"const", "type", NULL}, *const with_any[] = {"anyOf", NULL},
                             *const with_one[] = {"oneOf", NULL}, *const with_all[] = {"allOf", NULL}, *const nothing[] = {NULL};
    if (c->p->status != SIB_OK) return 0;
    if (depth == 0) return sib_g_fail(c->p, SIB_ECAPACITY, "schema: nested deeper than %d levels", MAX_NESTING);
    if (!schema || json_is_true(schema)) return call(c, c->value, next);
    if (!json_is_object(schema)) return sib_g_fail(c->p, SIB_EARG, "schema: an object is expected");
    const json_t *v;
    if ((v = json_object_get(schema, "$ref"))) {
        refuse_others(c, schema, with_ref);
        return json_is_string(v) ? emit_ref(c, json_string_value(v), next) : sib_g_fail(c->p, SIB_EARG, "schema: \"$ref\" must be a string");
    }
    if ((v = json_object_get(schema, "const"))) {
        refuse_others(c, schema, with_const);
        return constant(c, v, next);
    }
    if ((v = json_object_get(schema, "enum"))) {
        refuse_others(c, schema, with_enum);
        int32_t all = -1;
        for (size_t i = 0; i < json_array_size(v) && c->p->status == SIB_OK; i++) {
            int32_t pc = constant(c, json_array_get(v, i), next);
            all = all < 0 ? pc : sib_g_split(c->p, all, pc);
        }
        return all < 0 ? sib_g_fail(c->p, SIB_EARG, "schema: \"enum\" must be a list that is not empty") : all;
    }
    if ((v = json_object_get(schema, "anyOf"))) {
        refuse_others(c, schema, with_any);
        return emit_any_of(c, v, depth - 1, next);
    }
    if ((v = json_object_get(schema, "oneOf"))) {
        refuse_others(c, schema, with_one);
        if (!all_of_different_types(v)) return sib_g_fail(c->p, SIB_EUNSUPPORTED, "schema: \"oneOf\" is supported between different types only; use \"anyOf\"");
        return emit_any_of(c, v, depth - 1, next);
    }
    if ((v = json_object_get(schema, "allOf"))) {
        refuse_others(c, schema, with_all);
        if (json_array_size(v) != 1) return sib_g_fail(c->p, SIB_EUNSUPPORTED, "schema: \"allOf\" is supported with one schema only");
        return emit_schema(c, json_array_get(v, 0), depth - 1, next);
    }
    v = json_object_get(schema, "type");
    if (json_is_string(v)) return emit_type(c, schema, json_string_value(v), depth - 1, next);
    if (json_is_array(v)) return emit_types(c, schema, v, depth - 1, next);
    if (v) return sib_g_fail(c->p, SIB_EARG, "schema: \"type\" must be a name or a list of names");
    if (json_object_get(schema, "properties")) return emit_object(c, schema, depth - 1, next);
    refuse_others(c, schema, nothing);
    return call(c, c->value, next);
}

sib_status sib_grammar_from_schema(sib_grammar_program **out, const json_t *schema, sib_err *err)
{
    SIB_TRY(sib_g_new(out, err));
    sib_grammar_program *p = *out;
    compiler *c = calloc(1, sizeof *c);
    if (!c) {
        sib_grammar_program_free(p);
        *out = NULL;
        return sib_nomem(err, "schema");
    }
    c->p = p;
    c->root = schema;
    define_json(c);
    int32_t end = returns(c);
    p->start = schema ? emit_schema(c, schema, MAX_NESTING, end) : call(c, c->object, end);
    for (int i = 0; i < c->n_rules && p->status == SIB_OK; i++) /* compiling one may add others */
        define(c, c->rules[i].entry, emit_schema(c, c->rules[i].schema, MAX_NESTING, returns(c)));
    free(c);
    p->err = NULL;
    if (p->status == SIB_OK) return SIB_OK;
    sib_status s = p->status;
    sib_grammar_program_free(p);
    *out = NULL;
    return s;
}

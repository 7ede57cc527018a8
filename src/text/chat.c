/* text/chat.c - see chat.h. Messages are prepared as template values (template_internal.h), so that numbers of a
 * request stay exact on the way to the prompt. */
#include "text/chat.h"
#include "text/template_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_CONFIG ((size_t)64 << 20)
#define PROBE      "sibylprobe"

struct sib_chat {
    sib_template *plain, *tools; /* tools: for requests that have some, or NULL */
    sib_template_vars *base;     /* special tokens and defaults                 */
    /* what the template can take, found by trying */
    bool texts, parts, images, nulls;
    sib_err problem; /* a template that does not parse: what each rendering answers */
};

/* ---- preparing messages ---------------------------------------------------------------------------------- */

static sib_tv member(sib_tv object, const char *key) /* TV_ABSENT when there is none */
{
    sib_tv *v = object.type == TV_DICT ? sib_tdict_find(object.u.dict, sib_str_of(key)) : NULL;
    return v ? *v : sib_tv_of(TV_ABSENT);
}

static sib_tv object_copy(sib_tr *r, sib_tv object)
{
    sib_tdict *d = sib_tdict_new(r);
    for (size_t i = 0; i < object.u.dict->n; i++) sib_tdict_set(r, d, object.u.dict->e[i].key, object.u.dict->e[i].value);
    return sib_tv_dict(d);
}

static void put(sib_tr *r, sib_tv object, const char *key, sib_tv v)
{
    sib_tdict_set(r, object.u.dict, sib_tv_z(key), v);
}

/* {"arguments": "{...}"} gets the object; empty text is a call without arguments. */
static void parse_arguments(sib_tr *r, sib_tv call)
{
    sib_tv text = member(call, "arguments"), v;
    if (text.type != TV_STR) return;
    if (!sib_tstrip(sib_tv_text(text), 3, NULL).n)
        put(r, call, "arguments", sib_tv_dict(sib_tdict_new(r)));
    else if (sib_tjson_try(r, sib_tv_text(text), &v) && v.type == TV_DICT)
        put(r, call, "arguments", v);
}

static sib_tv prepared_calls(sib_tr *r, sib_tv calls)
{
    sib_tlist out = {0};
    for (size_t i = 0; i < calls.u.list->n; i++) {
        sib_tv call = calls.u.list->v[i];
        if (call.type == TV_DICT) {
            call = object_copy(r, call);
            sib_tv function = member(call, "function");
            parse_arguments(r, call);
            if (function.type == TV_DICT) {
                function = object_copy(r, function);
                parse_arguments(r, function);
                put(r, call, "function", function);
            }
        }
        sib_tlist_add(r, &out, call);
    }
    return sib_tv_list(r, TV_LIST, out);
}

static sib_tv part_of(sib_tr *r, const char *type, sib_tv text)
{
    sib_tv part = sib_tv_dict(sib_tdict_new(r));
    put(r, part, "type", sib_tv_z(type));
    if (text.type == TV_STR) put(r, part, "text", text);
    return part;
}

static bool is_one_of(sib_tv v, const char *const *names)
{
    for (; v.type == TV_STR && *names; names++)
        if (sib_str_is(sib_tv_text(v), *names)) return true;
    return false;
}

static sib_tv prepared_part(sib_tr *r, const sib_chat *c, sib_tv part, size_t message)
{
    static const char *const texts[] = {"text", "input_text", "output_text", NULL}, *const images[] = {"image", "image_url", "input_image", NULL};
    sib_tv type = member(part, "type"), text = member(part, "text");
    if (part.type == TV_STR) return part_of(r, "text", part);
    if (is_one_of(type, texts)) {
        if (text.type != TV_STR) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "messages[%zu] has a text part without text", message);
        return part_of(r, "text", text);
    }
    if (is_one_of(type, images)) {
        if (!c->images) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "messages[%zu] has a picture, and the chat template has no place for one", message);
        return part_of(r, "image", sib_tv_of(TV_NONE));
    }
    if (!c->parts) {
        sib_str name = type.type == TV_STR ? sib_tv_text(type) : SIB_STR("?");
        sib_tfail(r, SIB_TEMPLATE_RUNTIME, "messages[%zu] has a part of type \"%.*s\", and the chat template takes text only", message,
                  (int)(name.n > 40 ? 40 : name.n), name.p);
    }
    return part; /* the template decides */
}

static sib_tv prepared_content(sib_tr *r, const sib_chat *c, sib_tv content, size_t message)
{
    sib_tlist out = {0};
    if (content.type == TV_NONE || content.type == TV_ABSENT) return c->nulls ? content : sib_tv_bytes("", 0);
    if (content.type == TV_STR && c->texts) return content;
    if (content.type != TV_STR && content.type != TV_LIST) return content;
    if (content.type == TV_STR) {
        sib_tlist_add(r, &out, part_of(r, "text", content));
        return sib_tv_list(r, TV_LIST, out);
    }
    for (size_t i = 0; i < content.u.list->n; i++) {
        sib_tv part = prepared_part(r, c, content.u.list->v[i], message);
        sib_tlist_add(r, &out, c->parts ? part : member(part, "text"));
    }
    return c->parts ? sib_tv_list(r, TV_LIST, out) : sib_tjoin(r, SIB_STR(""), out, false);
}

static sib_tv prepared_message(sib_tr *r, const sib_chat *c, sib_tv m, size_t number)
{
    if (m.type != TV_DICT) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "messages[%zu] is not an object", number);
    m = object_copy(r, m);
    sib_tv calls = member(m, "tool_calls"), content = prepared_content(r, c, member(m, "content"), number);
    sib_tv reasoning = member(m, "reasoning"), reasoning_content = member(m, "reasoning_content");
    if (content.type != TV_ABSENT) put(r, m, "content", content);
    if (calls.type == TV_LIST) put(r, m, "tool_calls", prepared_calls(r, calls));
    if (reasoning.type == TV_STR && reasoning_content.type != TV_STR) put(r, m, "reasoning_content", reasoning);
    if (reasoning_content.type == TV_STR && reasoning.type != TV_STR) put(r, m, "reasoning", reasoning_content);
    return m;
}

static void add_all(sib_tr *r, sib_tdict *to, const sib_tdict *from)
{
    for (size_t i = 0; i < from->n; i++) sib_tdict_set(r, to, from->e[i].key, from->e[i].value);
}

/* Takes the marks of a plain word away. */
static void trust_word(sib_tr *r, sib_tv v)
{
    if (v.type != TV_STR || v.u.s.n == 0 || v.u.s.n > 64) return;
    for (size_t i = 0; i < v.u.s.n; i++) {
        char c = v.u.s.p[i];
        bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
        if (!word) return;
    }
    sib_tunmark(r, sib_tv_text(v));
}

static void trust_words(sib_tr *r, const sib_tdict *d)
{
    for (size_t i = 0; i < d->n; i++) trust_word(r, d->e[i].value);
}

/* Variables of one rendering; *tools tells whether the request has some. */
static sib_status fill(const sib_chat *c, sib_template_vars *v, sib_str context, bool *tools, sib_err *err)
{
    sib_tr *r = &v->mem;
    if (setjmp(r->jump)) return sib_tr_report(r, (sib_str){0}, "chat request", NULL, err);
    r->mark_foreign = r->mark_made = true; /* all that is read here */
    sib_tv request = sib_tjson_parse(r, context);
    if (request.type != TV_DICT) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "a JSON object with \"messages\" is expected");
    sib_tv messages = member(request, "messages"), more = member(request, "chat_template_kwargs");
    if (messages.type != TV_LIST) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "\"messages\" must be a list");
    sib_tlist out = {0};
    for (size_t i = 0; i < messages.u.list->n; i++) {
        sib_tlist_add(r, &out, prepared_message(r, c, messages.u.list->v[i], i));
        trust_word(r, member(messages.u.list->v[i], "role"));
    }
    trust_words(r, request.u.dict);
    if (more.type == TV_DICT) trust_words(r, more.u.dict);
    add_all(r, &v->dict, &c->base->dict);
    for (size_t i = 0; i < request.u.dict->n; i++)
        if (!sib_str_is(sib_tv_text(request.u.dict->e[i].key), "chat_template_kwargs"))
            sib_tdict_set(r, &v->dict, request.u.dict->e[i].key, request.u.dict->e[i].value);
    if (more.type == TV_DICT) add_all(r, &v->dict, more.u.dict);
    sib_tdict_set(r, &v->dict, sib_tv_z("messages"), sib_tv_list(r, TV_LIST, out));
    *tools = sib_tv_truth(*sib_tdict_find(&v->dict, SIB_STR("tools")));
    return SIB_OK;
}

/* `marks` may be NULL. */
static sib_status render(const sib_chat *c, sib_str context, const sib_template_options *opt, sib_template_marks *marks, sib_buf *out,
                         sib_template_fault *fault, sib_err *err)
{
    sib_template_vars *v;
    bool tools = false;
    if (c->problem.status != SIB_OK) return sib_fail(err, c->problem.status, "%s", c->problem.message);
    SIB_TRY(sib_template_vars_new(&v, err));
    v->mem.marks = marks;
    sib_status s = fill(c, v, context, &tools, err);
    if (s == SIB_OK) s = sib_template_render(tools && c->tools ? c->tools : c->plain, v, opt, out, fault, err);
    sib_template_vars_free(v);
    return s;
}

sib_status sib_chat_render_with(const sib_chat *c, sib_str context, const sib_template_options *opt, sib_buf *out, sib_template_fault *fault, sib_err *err)
{
    return render(c, context, opt, NULL, out, fault, err);
}

sib_status sib_chat_render_given(const sib_chat *c, sib_str context, sib_buf *out, sib_spans *given, sib_err *err)
{
    sib_template_marks *marks;
    size_t base = out->n;
    SIB_TRY(sib_template_marks_new(&marks, err));
    sib_status s = render(c, context, NULL, marks, out, NULL, err);
    if (s == SIB_OK) sib_template_marks_spans(marks, base, given);
    if (s == SIB_OK && given->failed) {
        out->n = base;
        s = sib_nomem(err, "parts of a prompt");
    }
    sib_template_marks_free(marks);
    return s;
}

sib_status sib_chat_render(const sib_chat *c, sib_str context, sib_buf *out, sib_err *err)
{
    return sib_chat_render_with(c, context, NULL, out, NULL, err);
}

bool sib_chat_takes_images(const sib_chat *c)
{
    return c->images;
}

/* ---- what the template can take -------------------------------------------------------------------------- */

static bool contains(const sib_buf *b, const char *z)
{
    return b->n && memmem(b->p, b->n, z, strlen(z)) != NULL;
}

static bool probe(const sib_chat *c, const char *context, sib_buf *out)
{
    out->n = 0;
    return sib_chat_render(c, sib_str_of(context), out, NULL) == SIB_OK;
}

/* A template that has no use for parts either fails on them or prints the list as it is. */
static void find_abilities(sib_chat *c)
{
    static const char text[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"" PROBE "\"}]}";
    static const char parts[] = "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"" PROBE "\"}]}]}";
    static const char image[] = "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"},{\"type\":\"text\",\"text\":\"" PROBE "\"}]}]}";
    static const char null[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"" PROBE "\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":"
                               "[{\"id\":\"abcdefghi\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]}]}";
    sib_buf a = {0}, b = {0};
    c->texts = c->parts = c->images = c->nulls = true;
    bool texts = probe(c, text, &a) && contains(&a, PROBE);
    bool nones = contains(&a, "None");
    c->nulls = probe(c, null, &b) && (nones || !contains(&b, "None"));
    c->parts = probe(c, parts, &a) && contains(&a, PROBE) && !contains(&a, "'type'") && !contains(&a, "\"type\"");
    c->images = c->parts && probe(c, image, &b) && contains(&b, PROBE) && !sib_str_eq(sib_buf_view(&a), sib_buf_view(&b));
    c->texts = texts || !c->parts;
    sib_buf_deinit(&a);
    sib_buf_deinit(&b);
}

/* ---- opening --------------------------------------------------------------------------------------------- */

static sib_status set_base(sib_chat *c, const sib_tokenizer *tokenizer, sib_err *err)
{
    static const char defaults[] = "{\"tools\":null,\"documents\":null,\"add_generation_prompt\":true}";
    const char *name;
    sib_str value;
    SIB_TRY(sib_template_vars_new(&c->base, err));
    SIB_TRY(sib_template_vars_set_all(c->base, SIB_STR(defaults), err));
    for (size_t i = 0; tokenizer && sib_tokenizer_variable(tokenizer, i, &name, &value); i++)
        SIB_TRY(sib_template_vars_set_str(c->base, name, value, err));
    return SIB_OK;
}

static sib_status finish(sib_chat **out, sib_chat *c, sib_status s, const sib_tokenizer *tokenizer, sib_err *err)
{
    if (s == SIB_OK) s = set_base(c, tokenizer, err);
    if (s != SIB_OK || !c->plain) {
        sib_chat_free(c);
        return s;
    }
    find_abilities(c);
    *out = c;
    return SIB_OK;
}

sib_status sib_chat_parse(sib_chat **out, sib_str source, const char *name, const sib_tokenizer *tokenizer, sib_err *err)
{
    *out = NULL;
    sib_chat *c = calloc(1, sizeof *c);
    if (!c) return sib_nomem(err, name);
    return finish(out, c, sib_template_parse(&c->plain, source, name, NULL, err), tokenizer, err);
}

/* The file's text, or an empty *out when there is no such file. */
static sib_status read_optional(const char *path, sib_buf *out, sib_err *err)
{
    if (access(path, F_OK) != 0 && errno == ENOENT) return SIB_OK;
    return sib_read_file(path, MAX_CONFIG, out, err);
}

static sib_status open_source(sib_template **out, const char *dir, const char *name, sib_err *err)
{
    sib_buf text = {0};
    char *path = sib_path_join(dir, name);
    sib_status s = path ? read_optional(path, &text, err) : sib_nomem(err, dir);
    if (s == SIB_OK && text.p) s = sib_template_parse(out, sib_buf_view(&text), path, NULL, err);
    sib_buf_deinit(&text);
    free(path);
    return s;
}

/* `chat_template` of a JSON file, parsed: a text, or a list of {"name", "template"}. */
static sib_status take_config(sib_chat *c, sib_tr *r, const char *path, sib_str json, sib_err *err)
{
    if (setjmp(r->jump)) return sib_tr_report(r, (sib_str){0}, path, NULL, err);
    sib_tv v = member(sib_tjson_parse(r, json), "chat_template");
    if (v.type == TV_NONE || v.type == TV_ABSENT) return SIB_OK;
    if (v.type == TV_STR) return sib_template_parse(&c->plain, sib_tv_text(v), path, NULL, err);
    if (v.type != TV_LIST) return sib_fail(err, SIB_EFORMAT, "%s: key \"chat_template\" must be a string or a list", path);
    for (size_t i = 0; i < v.u.list->n; i++) {
        sib_tv name = member(v.u.list->v[i], "name"), text = member(v.u.list->v[i], "template");
        if (name.type != TV_STR || text.type != TV_STR) return sib_fail(err, SIB_EFORMAT, "%s: chat_template[%zu] must have \"name\" and \"template\"", path, i);
        sib_template **to = sib_str_is(sib_tv_text(name), "default") ? &c->plain : sib_str_is(sib_tv_text(name), "tool_use") ? &c->tools : NULL;
        if (to && !*to) SIB_TRY(sib_template_parse(to, sib_tv_text(text), path, NULL, err));
    }
    return SIB_OK;
}

static sib_status open_config(sib_chat *c, const char *dir, const char *name, sib_err *err)
{
    sib_buf text = {0};
    sib_tr r;
    char *path = sib_path_join(dir, name);
    sib_tr_init(&r, NULL);
    sib_status s = path ? read_optional(path, &text, err) : sib_nomem(err, dir);
    if (s == SIB_OK && text.p) s = take_config(c, &r, path, sib_buf_view(&text), err);
    sib_tr_deinit(&r);
    sib_buf_deinit(&text);
    free(path);
    return s;
}

sib_status sib_chat_open(sib_chat **out, const char *dir, const sib_tokenizer *tokenizer, sib_err *err)
{
    *out = NULL;
    sib_chat *c = calloc(1, sizeof *c);
    if (!c) return sib_nomem(err, dir);
    sib_err *e = &c->problem;
    sib_status s = open_source(&c->plain, dir, "chat_template.jinja", e);
    if (s == SIB_OK) s = open_source(&c->tools, dir, "additional_chat_templates/tool_use.jinja", e);
    if (s == SIB_OK && !c->plain) s = open_config(c, dir, "tokenizer_config.json", e);
    if (s == SIB_OK && !c->plain) s = open_config(c, dir, "chat_template.json", e);
    if (s == SIB_OK) return finish(out, c, s, tokenizer, err);
    if (s != SIB_EFORMAT && s != SIB_EUNSUPPORTED && s != SIB_ECAPACITY) {
        (void)sib_fail(err, s, "%s", e->message);
        sib_chat_free(c);
        return s;
    }
    *out = c; /* the checkpoint still works without its template */
    return SIB_OK;
}

void sib_chat_free(sib_chat *c)
{
    if (!c) return;
    sib_template_free(c->plain);
    sib_template_free(c->tools);
    sib_template_vars_free(c->base);
    free(c);
}

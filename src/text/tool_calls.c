/* text/tool_calls.c - see tool_calls.h. */
#include "text/tool_calls.h"

#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH      32
#define MAX_CALL_BYTES ((size_t)1 << 20) /* a longer block is no call */

typedef enum place { CONTENT, REASONING, CHANNEL_NAME, CALL } place;

struct sib_reply {
    sib_markup markup;
    const sib_tokenizer *tokenizer;
    const json_t *tools;
    sib_reply_sink sink;
    int32_t call_open, call_close, channel_open, channel_close; /* Gemma's ids, -1: the vocabulary has none */
    place at;
    sib_buf held;     /* text that is not certain yet */
    sib_buf block;    /* inside of a call, a channel's name */
    bool bare;        /* the call has no <tool_call> around it */
    int skip_newlines; /* that may still be dropped at the beginning of a part */
    int n_calls, n_reasoning;
};

#define ESCAPE "<|\"|>" /* Gemma's quote */

/* ---- strings -------------------------------------------------------------------------------------- */

static sib_str trim(sib_str s)
{
    while (s.n && strchr(" \t\r\n", s.p[0])) s.p++, s.n--;
    while (s.n && strchr(" \t\r\n", s.p[s.n - 1])) s.n--;
    return s;
}

static bool begins(sib_str s, const char *z)
{
    size_t n = strlen(z);
    return s.n >= n && memcmp(s.p, z, n) == 0;
}

/* Offset of z in s, or s.n. */
static size_t find(sib_str s, const char *z)
{
    const char *p = s.n ? memmem(s.p, s.n, z, strlen(z)) : NULL;
    return p ? (size_t)(p - s.p) : s.n;
}

static sib_str from(sib_str s, size_t n)
{
    if (n > s.n) n = s.n;
    return (sib_str){s.p + n, s.n - n};
}

static sib_str upto(sib_str s, size_t n)
{
    return (sib_str){s.p, n < s.n ? n : s.n};
}

static bool is_name_char(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' || c == '.' || c == ':' || (c & 0x80);
}

/* Takes a name off the front of *s. */
static sib_str take_name(sib_str *s)
{
    size_t n = 0;
    while (n < s->n && is_name_char(s->p[n])) n++;
    sib_str name = upto(*s, n);
    *s = from(*s, n);
    return name;
}

/* ---- Gemma: {k:<|"|>v<|"|>,n:1,a:[true,null]} ---------------------------------------------------------- */

static bool gemma_value(sib_str *s, sib_buf *out, int depth);

static bool gemma_string(sib_str *s, sib_buf *out)
{
    *s = from(*s, strlen(ESCAPE));
    size_t n = find(*s, ESCAPE);
    if (n == s->n) return false;
    sib_json_put_str(out, upto(*s, n));
    *s = from(*s, n + strlen(ESCAPE));
    return true;
}

/* Members up to the closing bracket; `open` is already taken. */
static bool gemma_members(sib_str *s, sib_buf *out, bool object, int depth)
{
    char close = object ? '}' : ']';
    sib_buf_addc(out, object ? '{' : '[');
    for (int i = 0;; i++) {
        *s = trim(*s);
        if (s->n == 0) return false;
        if (s->p[0] == close) break;
        if (i > 0) {
            if (s->p[0] != ',') return false;
            *s = from(*s, 1);
            while (s->n && strchr(" \t\r\n", s->p[0])) *s = from(*s, 1);
            sib_buf_addc(out, ',');
        }
        if (object) {
            if (begins(*s, ESCAPE)) {
                if (!gemma_string(s, out)) return false;
            } else {
                size_t n = 0; /* a bare key ends at the colon */
                while (n < s->n && is_name_char(s->p[n]) && s->p[n] != ':') n++;
                if (n == 0) return false;
                sib_json_put_str(out, upto(*s, n));
                *s = from(*s, n);
            }
            if (!begins(*s, ":")) return false;
            *s = from(*s, 1);
            sib_buf_addc(out, ':');
        }
        if (!gemma_value(s, out, depth)) return false;
    }
    *s = from(*s, 1);
    sib_buf_addc(out, close);
    return true;
}

/* A bare word: a JSON scalar, or text that lost its quotes. */
static bool gemma_word(sib_str *s, sib_buf *out)
{
    size_t n = 0;
    while (n < s->n && !strchr(",{}[]", s->p[n])) n++;
    sib_str word = trim(upto(*s, n));
    if (word.n == 0) return false;
    json_t *v = json_loadb(word.p, word.n, JSON_DECODE_ANY, NULL);
    if (v) sib_buf_add(out, word.p, word.n);
    else sib_json_put_str(out, word);
    json_decref(v);
    *s = from(*s, n);
    return true;
}

static bool gemma_value(sib_str *s, sib_buf *out, int depth)
{
    while (s->n && strchr(" \t\r\n", s->p[0])) *s = from(*s, 1);
    if (s->n == 0 || depth == 0) return false;
    if (begins(*s, ESCAPE)) return gemma_string(s, out);
    if (s->p[0] != '{' && s->p[0] != '[') return gemma_word(s, out);
    bool object = s->p[0] == '{';
    *s = from(*s, 1);
    return gemma_members(s, out, object, depth - 1);
}

/* ---- values with a schema -------------------------------------------------------------------------------- */

static const json_t *function_of(const json_t *tool)
{
    const json_t *f = json_object_get(tool, "function");
    return f ? f : tool;
}

static const json_t *schema_of(const json_t *tools, sib_str name, sib_str key)
{
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)tools, i, tool)
    {
        const json_t *f = function_of(tool);
        const char *n = json_string_value(json_object_get(f, "name"));
        if (!n || !sib_str_is(name, n)) continue;
        const json_t *properties = json_object_get(json_object_get(f, "parameters"), "properties");
        return json_object_getn(properties, key.p, key.n);
    }
    return NULL;
}

static bool has_type(const json_t *schema, const char *type)
{
    const json_t *t = json_object_get(schema, "type");
    size_t i;
    json_t *one;
    if (json_is_string(t)) return strcmp(json_string_value(t), type) == 0;
    json_array_foreach((json_t *)t, i, one)
    {
        if (json_is_string(one) && strcmp(json_string_value(one), type) == 0) return true;
    }
    return false;
}

/* V of a parameter as JSON: text where the schema says so, else what it reads as. */
static void put_value(sib_buf *out, const json_t *schema, sib_str v)
{
    sib_str t = trim(v);
    bool text = has_type(schema, "string") || (json_object_get(schema, "enum") && !json_object_get(schema, "type"));
    json_t *json = text || sib_json_depth(t) > MAX_DEPTH ? NULL : json_loadb(t.p, t.n, JSON_DECODE_ANY, NULL);
    if (json && !json_is_string(json)) {
        char *z = json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY);
        if (z) sib_buf_addz(out, z);
        else out->failed = true;
        free(z);
    } else if (!text && (sib_str_is(t, "True") || sib_str_is(t, "False"))) {
        sib_buf_addz(out, t.p[0] == 'T' ? "true" : "false");
    } else if (!text && sib_str_is(t, "None")) {
        sib_buf_addz(out, "null");
    } else if (json) {
        sib_json_put_str(out, (sib_str){json_string_value(json), json_string_length(json)});
    } else {
        sib_json_put_str(out, v);
    }
    json_decref(json);
}

static void put_member(sib_buf *out, const json_t *tools, sib_str name, sib_str key, sib_str v, bool first)
{
    if (!first) sib_buf_addc(out, ',');
    sib_json_put_str(out, key);
    sib_buf_addc(out, ':');
    put_value(out, schema_of(tools, name, key), v);
}

/* ---- blocks --------------------------------------------------------------------------------------------- */

static void give_call(sib_reply *r, sib_str name, sib_buf *arguments)
{
    r->n_calls++;
    r->sink.call(r->sink.ctx, name, sib_buf_view(arguments));
}

static bool gemma_block(sib_reply *r, sib_str s, sib_buf *out)
{
    int n = 0;
    for (s = trim(s); begins(s, "call:"); s = trim(s), n++) {
        s = from(s, 5);
        sib_str name = take_name(&s);
        out->n = 0;
        if (name.n == 0 || !begins(s, "{")) return n > 0;
        s = from(s, 1);
        if (!gemma_members(&s, out, true, MAX_DEPTH)) return n > 0;
        give_call(r, name, out);
    }
    return n > 0;
}

/* <function=NAME> <parameter=K>\nV\n</parameter> ... </function>, closing tags optional at the end */
static bool qwen_block(sib_reply *r, sib_str s, sib_buf *out)
{
    int n = 0;
    for (size_t at; (at = find(s, "<function=")) < s.n; n++) {
        s = from(s, at + 10);
        size_t end = find(s, ">");
        sib_str name = trim(upto(s, end));
        if (end == s.n || name.n == 0) return n > 0;
        s = from(s, end + 1);
        sib_str inside = upto(s, find(s, "</function>"));
        s = from(s, inside.n);
        out->n = 0;
        sib_buf_addc(out, '{');
        bool first = true;
        for (size_t p; (p = find(inside, "<parameter=")) < inside.n; first = false) {
            inside = from(inside, p + 11);
            size_t close = find(inside, ">");
            sib_str key = trim(upto(inside, close));
            inside = from(inside, close + 1);
            size_t stop = find(inside, "</parameter>"), next = find(inside, "<parameter=");
            sib_str v = upto(inside, stop < next ? stop : next);
            inside = from(inside, v.n);
            if (v.n && v.p[0] == '\n') v = from(v, 1);
            if (v.n && v.p[v.n - 1] == '\n') v.n--;
            put_member(out, r->tools, name, key, v, first);
        }
        sib_buf_addc(out, '}');
        give_call(r, name, out);
    }
    return n > 0;
}

static bool json_block(sib_reply *r, sib_str s, sib_buf *out)
{
    json_t *o = NULL;
    if (sib_json_parse(&o, trim(s), "call", NULL) != SIB_OK) return false;
    const char *name = json_string_value(json_object_get(o, "name"));
    json_t *arguments = json_object_get(o, "arguments");
    if (!arguments) arguments = json_object_get(o, "parameters");
    out->n = 0;
    if (json_is_string(arguments)) {
        sib_buf_addz(out, json_string_value(arguments));
    } else if (json_is_object(arguments)) {
        char *z = json_dumps(arguments, JSON_COMPACT);
        if (z) sib_buf_addz(out, z);
        free(z);
    } else if (!arguments) {
        sib_buf_addz(out, "{}");
    }
    bool good = name && *name && out->n > 0;
    if (good) give_call(r, sib_str_of(name), out);
    json_decref(o);
    return good;
}

static bool glm_block(sib_reply *r, sib_str s, sib_buf *out)
{
    if (begins(trim(s), "{")) return json_block(r, s, out);
    sib_str name = trim(upto(s, find(s, "<arg_key>")));
    if (name.n == 0 || memchr(name.p, '<', name.n) || memchr(name.p, '\n', name.n)) return false;
    out->n = 0;
    sib_buf_addc(out, '{');
    bool first = true;
    for (size_t at; (at = find(s, "<arg_key>")) < s.n; first = false) {
        s = from(s, at + 9);
        sib_str key = upto(s, find(s, "</arg_key>"));
        s = from(s, key.n + 10);
        at = find(s, "<arg_value>");
        if (at == s.n) break;
        s = from(s, at + 11);
        sib_str v = upto(s, find(s, "</arg_value>"));
        s = from(s, v.n);
        put_member(out, r->tools, name, trim(key), v, first);
    }
    sib_buf_addc(out, '}');
    give_call(r, name, out);
    return true;
}

/* The block is complete (or the turn ended in it): calls, or what it was after all. */
static void end_block(sib_reply *r)
{
    sib_buf out = {0};
    sib_str s = sib_buf_view(&r->block);
    bool good = false;
    switch (r->markup) {
    case SIB_MARKUP_GEMMA: good = gemma_block(r, s, &out); break;
    case SIB_MARKUP_QWEN: good = qwen_block(r, s, &out) || json_block(r, s, &out); break;
    case SIB_MARKUP_JSON: good = json_block(r, s, &out) || qwen_block(r, s, &out); break;
    case SIB_MARKUP_GLM: good = glm_block(r, s, &out); break;
    case SIB_MARKUP_NONE: break;
    }
    if (!good) {
        bool gemma = r->markup == SIB_MARKUP_GEMMA;
        if (!r->bare) r->sink.content(r->sink.ctx, gemma ? SIB_STR("<|tool_call>") : SIB_STR("<tool_call>"));
        r->sink.content(r->sink.ctx, s);
        if (!r->bare) r->sink.content(r->sink.ctx, gemma ? SIB_STR("<tool_call|>") : SIB_STR("</tool_call>"));
    }
    sib_buf_deinit(&out);
    r->block.n = 0;
    r->at = CONTENT;
}

/* ---- text in, parts out ---------------------------------------------------------------------------------- */

static void give(sib_reply *r, sib_str s)
{
    while (r->skip_newlines > 0 && s.n && s.p[0] == '\n') s = from(s, 1), r->skip_newlines--;
    if (s.n == 0) return;
    r->skip_newlines = 0;
    if (r->at == REASONING) r->sink.reasoning(r->sink.ctx, s);
    else r->sink.content(r->sink.ctx, s);
}

static void drop_held(sib_reply *r, size_t n)
{
    if (n == 0) return;
    memmove(r->held.p, r->held.p + n, r->held.n - n);
    r->held.n -= n;
}

static void give_held(sib_reply *r, size_t n)
{
    give(r, upto(sib_buf_view(&r->held), n));
    drop_held(r, n);
}

typedef struct marker {
    const char *text;
    place to;
    bool bare;
} marker;

/* The markers that may come in the current place; ended by a row without text. */
static const marker *markers(const sib_reply *r)
{
    static const marker none[] = {{0}}, thinking[] = {{"</think>", CONTENT, false}, {0}},
                        plain[] = {{"<think>", REASONING, false}, {0}},
                        calls[] = {{"<tool_call>", CALL, false}, {"<think>", REASONING, false}, {0}},
                        bare_calls[] = {{"<tool_call>", CALL, false}, {"<function=", CALL, true}, {"<think>", REASONING, false}, {0}},
                        end[] = {{"</tool_call>", CONTENT, false}, {0}}, bare_end[] = {{"</function>", CONTENT, true}, {0}};
    if (r->markup == SIB_MARKUP_GEMMA || r->markup == SIB_MARKUP_NONE) return none;
    if (r->at == REASONING) return thinking;
    if (r->at == CALL) return r->bare ? bare_end : end;
    return !r->tools ? plain : r->markup == SIB_MARKUP_QWEN ? bare_calls : calls;
}

/* Bytes at the end of s that may be the beginning of a marker. */
static size_t uncertain(sib_str s, const marker *m)
{
    size_t most = 0;
    for (; m->text; m++)
        for (size_t n = strlen(m->text) - 1; n > most; n--)
            if (n <= s.n && memcmp(s.p + s.n - n, m->text, n) == 0) most = n;
    return most;
}

static void enter(sib_reply *r, const marker *m)
{
    place was = r->at;
    if (m->to == CALL) {
        r->bare = m->bare;
        r->block.n = 0;
        if (m->bare) sib_buf_addz(&r->block, m->text);
    }
    if (was == CALL) {
        if (r->bare) sib_buf_addz(&r->block, "</function>");
        end_block(r);
    }
    r->at = m->to;
    r->skip_newlines = m->to == REASONING ? 1 : was == REASONING ? 2 : 0;
}

/* White space in front of a call is not part of the answer, so it waits until what follows is known. */
static size_t trailing_space(const sib_reply *r, sib_str s)
{
    size_t n = 0;
    if (r->at != CONTENT || !r->tools) return 0;
    while (n < s.n && strchr(" \t\r\n", s.p[s.n - 1 - n])) n++;
    return n;
}

static void scan(sib_reply *r)
{
    for (;;) {
        const marker *list = markers(r), *first = NULL;
        sib_str s = sib_buf_view(&r->held);
        size_t at = s.n;
        for (const marker *m = list; m->text; m++) {
            size_t i = find(s, m->text);
            if (i < at) at = i, first = m;
        }
        size_t sure = first ? at : s.n - uncertain(s, list);
        if (r->at == CALL) {
            sib_buf_add(&r->block, s.n ? s.p : "", sure);
            drop_held(r, sure);
        } else {
            size_t space = first && first->to != CALL ? 0 : trailing_space(r, upto(s, sure));
            give_held(r, sure - space);
            if (first) drop_held(r, space);
        }
        if (!first) break;
        drop_held(r, strlen(first->text));
        enter(r, first);
    }
    if (r->at == CALL && r->block.n > MAX_CALL_BYTES) end_block(r);
}

/* ---- Gemma: markers by id ----------------------------------------------------------------------------------- */

static void end_channel_name(sib_reply *r)
{
    r->at = sib_str_is(trim(sib_buf_view(&r->block)), "final") ? CONTENT : REASONING;
    r->block.n = 0;
}

static void gemma_text(sib_reply *r, sib_str text)
{
    if (r->at == CHANNEL_NAME) {
        size_t n = find(text, "\n");
        sib_buf_add(&r->block, text.p, n);
        if (n == text.n && r->block.n < 64) return;
        end_channel_name(r);
        text = from(text, n + 1);
    }
    if (r->at == CALL) {
        sib_buf_add(&r->block, text.p, text.n);
        if (r->block.n > MAX_CALL_BYTES) end_block(r);
        return;
    }
    sib_buf_add(&r->held, text.p, text.n);
    scan(r);
    if (r->tools && r->at == CONTENT) {
        size_t space = trailing_space(r, sib_buf_view(&r->held));
        give_held(r, r->held.n - space);
    }
}

static void gemma_marker(sib_reply *r, int32_t id, sib_str text)
{
    if (r->at == CALL && id != r->call_close) {
        gemma_text(r, text.n ? text : sib_tokenizer_piece(r->tokenizer, id));
    } else if (id == r->call_open && r->tools && r->at == CONTENT) {
        gemma_text(r, text); /* what an earlier token still owed */
        r->held.n = 0;
        r->block.n = 0;
        r->bare = false;
        r->at = CALL;
    } else if (id == r->call_close && r->at == CALL) {
        gemma_text(r, text);
        end_block(r);
    } else if (id == r->channel_open && r->at != CALL) {
        gemma_text(r, text);
        r->block.n = 0;
        r->at = CHANNEL_NAME;
    } else if (id == r->channel_close && r->at != CALL) {
        gemma_text(r, text);
        r->block.n = 0;
        r->at = CONTENT;
    } else {
        gemma_text(r, text);
    }
}

/* ---- outside --------------------------------------------------------------------------------------------------- */

sib_markup sib_markup_of(sib_str s)
{
    if (find(s, "<|tool_call>") < s.n) return SIB_MARKUP_GEMMA;
    if (find(s, "<function=") < s.n) return SIB_MARKUP_QWEN;
    if (find(s, "<arg_key>") < s.n) return SIB_MARKUP_GLM;
    if (find(s, "<tool_call>") < s.n) return SIB_MARKUP_JSON;
    return SIB_MARKUP_NONE;
}

static size_t find_last(sib_str s, const char *z)
{
    size_t at = s.n, n;
    for (sib_str rest = s; (n = find(rest, z)) < rest.n; rest = from(rest, n + 1)) at = (size_t)(rest.p - s.p) + n;
    return at;
}

/* Whether a prompt ends inside the reasoning. Only a marker at its end counts: earlier ones may be quoted in messages. */
static bool ends_in_reasoning(sib_markup markup, sib_str prompt)
{
    bool gemma = markup == SIB_MARKUP_GEMMA;
    size_t opened = find_last(prompt, gemma ? "<|channel>" : "<think>"), closed = find_last(prompt, gemma ? "<channel|>" : "</think>");
    return markup != SIB_MARKUP_NONE && opened < prompt.n && (closed == prompt.n || closed < opened) && prompt.n - opened < 32;
}

void sib_reply_force_call(sib_markup markup, sib_str name, sib_buf *prompt, sib_buf *begun)
{
    static const char *const opens[] = {"", "<|tool_call>", "<tool_call>", "<tool_call>", "<tool_call>"};
    if (ends_in_reasoning(markup, sib_buf_view(prompt))) sib_buf_addz(prompt, markup == SIB_MARKUP_GEMMA ? "<channel|>" : "\n</think>\n\n");
    switch (markup) {
    case SIB_MARKUP_GEMMA: sib_buf_addz(begun, "call:"); break;
    case SIB_MARKUP_QWEN: sib_buf_addz(begun, "\n<function="); break;
    case SIB_MARKUP_JSON: sib_buf_addz(begun, "\n{\"name\": \""); break;
    case SIB_MARKUP_GLM:
    case SIB_MARKUP_NONE: break;
    }
    sib_buf_add(begun, name.p, name.n);
    if (name.n > 0) {
        static const char *const after[] = {"", "{", ">\n", "\", \"arguments\": ", ""};
        sib_buf_addz(begun, after[markup]);
    }
    sib_buf_addz(prompt, opens[markup]);
    sib_buf_add(prompt, begun->p ? begun->p : "", begun->n);
}

sib_status sib_reply_new(sib_reply **out, sib_markup markup, const sib_tokenizer *t, const json_t *tools, sib_str prompt, const sib_str *begun,
                         const sib_reply_sink *sink, sib_err *err)
{
    *out = NULL;
    sib_reply *r = calloc(1, sizeof *r);
    if (!r) return sib_nomem(err, "answer");
    *r = (sib_reply){.markup = markup, .tokenizer = t, .tools = json_array_size(tools) > 0 ? tools : NULL, .sink = *sink};
    r->call_open = sib_tokenizer_id(t, SIB_STR("<|tool_call>"));
    r->call_close = sib_tokenizer_id(t, SIB_STR("<tool_call|>"));
    r->channel_open = sib_tokenizer_id(t, SIB_STR("<|channel>"));
    r->channel_close = sib_tokenizer_id(t, SIB_STR("<channel|>"));
    if (begun) {
        r->at = CALL;
        sib_buf_add(&r->block, begun->p, begun->n);
    } else if (ends_in_reasoning(markup, prompt)) {
        r->at = REASONING;
        r->skip_newlines = 1;
    }
    *out = r;
    return SIB_OK;
}

void sib_reply_free(sib_reply *r)
{
    if (!r) return;
    sib_buf_deinit(&r->held);
    sib_buf_deinit(&r->block);
    free(r);
}

bool sib_reply_feed(sib_reply *r, int32_t id, sib_str text)
{
    r->n_reasoning += id >= 0 && (r->at == REASONING || r->at == CHANNEL_NAME);
    if (r->markup == SIB_MARKUP_NONE) {
        give(r, text);
    } else if (r->markup == SIB_MARKUP_GEMMA) {
        if (id >= 0 && sib_tokenizer_is_special(r->tokenizer, id)) gemma_marker(r, id, text);
        else gemma_text(r, text);
    } else {
        sib_buf_add(&r->held, text.n ? text.p : "", text.n);
        scan(r);
    }
    return !r->held.failed && !r->block.failed;
}

bool sib_reply_end(sib_reply *r, bool whole)
{
    if (r->at == CALL) {
        sib_buf_add(&r->block, r->held.n ? r->held.p : "", r->held.n);
        r->held.n = 0;
        if (whole) end_block(r);
    } else if (r->at != CHANNEL_NAME && r->held.n > 0) {
        /* White space after the last call is no answer. */
        if (r->n_calls == 0 || trim(sib_buf_view(&r->held)).n > 0) give_held(r, r->held.n);
    }
    return !r->held.failed && !r->block.failed;
}

int sib_reply_calls(const sib_reply *r)
{
    return r->n_calls;
}

int sib_reply_reasoning_tokens(const sib_reply *r)
{
    return r->n_reasoning;
}

bool sib_reply_in_content(const sib_reply *r)
{
    return r->at == CONTENT;
}

/* text/tokenizer_json.c - loads tokenizer.json and tokenizer_config.json.
 *
 * A real tokenizer.json holds tens of megabytes, nearly all of it in model.vocab and
 * model.merges. One pass finds these two spans and copies everything else into a small
 * text that goes through the JSON library; a scanner of two fixed shapes then reads
 *
 *     vocab   { "text": id, ... }
 *     merges  [ "left right", ... ]  or  [ ["left", "right"], ... ]
 *
 * straight from the file's bytes into the tables of bpe.h. Specified by formats.md C.1-C.3
 * and C.7. Every byte is untrusted. `truncation` and `padding` are settings of a training
 * batch, not of the text, and are left alone, as the reference's callers do. */
#include "text/tokenizer_internal.h"

#include "base/json.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

#define MAX_REST         (32 << 20) /* bytes that go through the JSON library */
#define MAX_CONFIG_DEPTH 64

/* ---- scanning ---- */

typedef struct cursor {
    const char *p, *end;
} cursor;

static void skip_space(cursor *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\n' || *c->p == '\r' || *c->p == '\t')) c->p++;
}

/* Takes `want` after white space. */
static bool take(cursor *c, char want)
{
    skip_space(c);
    if (c->p == c->end || *c->p != want) return false;
    c->p++;
    return true;
}

static bool peek(cursor *c, char want)
{
    skip_space(c);
    return c->p < c->end && *c->p == want;
}

/* From behind an opening quote to behind the closing one. */
static bool skip_string(cursor *c)
{
    while (c->p < c->end) {
        char ch = *c->p++;
        if (ch == '"') return true;
        if (ch == '\\' && c->p < c->end) c->p++;
    }
    return false;
}

/* Moves over one value without checking what is inside; its brackets balance and its
 * strings end. `n_commas`: those directly inside an array or object. */
static bool skip_value(cursor *c, size_t *n_commas)
{
    static const bool structural[256] = {
        ['"'] = true, ['['] = true, ['{'] = true, [']'] = true, ['}'] = true, [','] = true};
    size_t depth = 0;
    *n_commas = 0;
    skip_space(c);
    const char *start = c->p;
    while (c->p < c->end) {
        while (c->p < c->end && !structural[(unsigned char)*c->p]) c->p++;
        if (c->p == c->end) break;
        switch (*c->p) {
        case '"':
            c->p++;
            if (!skip_string(c)) return false;
            break;
        case '[':
        case '{':
            depth++;
            c->p++;
            break;
        case ']':
        case '}':
            if (depth == 0) return c->p > start;
            depth--;
            c->p++;
            break;
        case ',':
            if (depth == 0) return c->p > start;
            *n_commas += depth == 1;
            c->p++;
        }
        if (depth == 0) return true; /* a string or bracket closed */
    }
    return depth == 0 && c->p > start;
}

static int hex4(const char *p)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        if (c >= '0' && c <= '9')
            v = 16 * v + (c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            v = 16 * v + ((c | 0x20) - 'a' + 10);
        else
            return -1;
    }
    return v;
}

/* \uXXXX, or a pair of them for code points from U+10000; c->p is behind the 'u'. */
static bool scan_unicode_escape(cursor *c, sib_buf *out)
{
    char u[4];
    int high = c->end - c->p >= 4 ? hex4(c->p) : -1;
    if (high < 0 || (high >= 0xDC00 && high <= 0xDFFF)) return false;
    c->p += 4;
    uint32_t cp = (uint32_t)high;
    if (high >= 0xD800 && high <= 0xDBFF) {
        int low = c->end - c->p >= 6 && c->p[0] == '\\' && c->p[1] == 'u' ? hex4(c->p + 2) : -1;
        if (low < 0xDC00 || low > 0xDFFF) return false;
        c->p += 6;
        cp = 0x10000 + ((uint32_t)(high - 0xD800) << 10) + (uint32_t)(low - 0xDC00);
    }
    sib_buf_add(out, u, sib_utf8_put(cp, u));
    return true;
}

/* A string. *out points into the file when it has no escapes, else into `room`. */
static bool scan_string(cursor *c, sib_buf *room, sib_str *out)
{
    static const char escapes[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    if (!take(c, '"')) return false;
    const char *start = c->p;
    room->n = 0;
    bool copied = false;
    while (c->p < c->end) {
        unsigned char ch = (unsigned char)*c->p;
        if (ch == '"') {
            if (copied) sib_buf_add(room, start, (size_t)(c->p - start));
            *out = copied ? sib_buf_view(room) : (sib_str){start, (size_t)(c->p - start)};
            c->p++;
            return !room->failed;
        }
        if (ch < 0x20) return false;
        if (ch != '\\') {
            c->p++;
            continue;
        }
        sib_buf_add(room, start, (size_t)(c->p - start));
        copied = true;
        if (c->end - c->p < 2) return false;
        char kind = c->p[1];
        c->p += 2;
        if (kind == 'u') {
            if (!scan_unicode_escape(c, room)) return false;
        } else {
            const char *at = kind ? strchr(escapes, kind) : NULL;
            if (!at) return false;
            sib_buf_addc(room, meanings[at - escapes]);
        }
        start = c->p;
    }
    return false;
}

static bool scan_id(cursor *c, uint32_t *out)
{
    uint64_t v = 0;
    skip_space(c);
    const char *start = c->p;
    for (; c->p < c->end && *c->p >= '0' && *c->p <= '9' && c->p - start < 11; c->p++)
        v = 10 * v + (uint64_t)(*c->p - '0');
    bool ok = c->p > start && v < SIB_NO_ID && (*start != '0' || c->p == start + 1);
    *out = (uint32_t)v;
    return ok && (peek(c, ',') || peek(c, '}'));
}

/* ---- the two large parts ---- */

typedef struct parts {
    sib_buf rest;          /* the file with `true` in place of the two        */
    sib_str vocab, merges; /* {NULL, 0}: not there, or of another kind        */
    size_t n_merges;       /* at most                                         */
} parts;

/* Copies an object's text to `rest`. With `in_model` it is the model and gives its two
 * parts; else it is the file and the model is looked for. */
static bool split_object(cursor *c, bool in_model, parts *out)
{
    sib_buf no_room = {0};
    bool ok = take(c, '{');
    sib_buf_addc(&out->rest, '{');
    for (bool more = ok && !take(c, '}'); more;) {
        sib_str key;
        skip_space(c);
        const char *start = c->p;
        ok = scan_string(c, &no_room, &key);
        if (!ok) break;
        sib_buf_add(&out->rest, start, (size_t)(c->p - start));
        ok = take(c, ':');
        if (!ok) break;
        sib_buf_addc(&out->rest, ':');
        bool vocab = in_model && sib_str_is(key, "vocab") && peek(c, '{');
        bool merges = in_model && sib_str_is(key, "merges") && peek(c, '[');
        if (!in_model && sib_str_is(key, "model") && peek(c, '{')) {
            ok = split_object(c, true, out);
        } else {
            size_t n_commas;
            skip_space(c);
            start = c->p;
            ok = skip_value(c, &n_commas);
            sib_str value = {start, (size_t)(c->p - start)};
            if (vocab) out->vocab = value;
            if (merges) {
                out->merges = value;
                out->n_merges = n_commas + 1;
            }
            if (vocab || merges)
                sib_buf_addz(&out->rest, "true");
            else
                sib_buf_add(&out->rest, value.p, value.n);
        }
        more = ok && take(c, ',');
        if (more)
            sib_buf_addc(&out->rest, ',');
        else
            ok = ok && take(c, '}');
    }
    sib_buf_addc(&out->rest, '}');
    sib_buf_deinit(&no_room);
    return ok;
}

static sib_status split_file(sib_str json, parts *out, sib_err *err)
{
    cursor c = {json.p, json.p + json.n};
    if (!peek(&c, '{')) return sib_fail(err, SIB_EFORMAT, "not a JSON object");
    bool ok = split_object(&c, false, out);
    if (out->rest.failed) return sib_nomem(err, "tokenizer");
    if (out->rest.n > MAX_REST)
        return sib_fail(err, SIB_EFORMAT, "more than %d bytes beside vocab and merges", MAX_REST);
    skip_space(&c);
    if (!ok || c.p != c.end) return sib_fail(err, SIB_EFORMAT, "invalid JSON at byte %zu", (size_t)(c.p - json.p));
    return SIB_OK;
}

static sib_status load_vocab(sib_bpe *b, sib_str span, sib_err *err)
{
    cursor c = {span.p, span.p + span.n};
    sib_buf room = {0};
    sib_status s = SIB_OK;
    bool ok = take(&c, '{');
    for (bool more = ok && !take(&c, '}'); more && s == SIB_OK;) {
        sib_str text;
        uint32_t id;
        ok = scan_string(&c, &room, &text) && sib_utf8_valid(text) && take(&c, ':');
        if (!ok) break;
        if (!scan_id(&c, &id))
            s = sib_fail(err, SIB_EFORMAT, "token \"%.*s\" needs an integer id from 0",
                         (int)(text.n < 80 ? text.n : 80), text.p);
        else
            s = sib_bpe_add(b, text, id, err);
        more = s == SIB_OK && take(&c, ',');
        if (!more && s == SIB_OK) ok = take(&c, '}');
    }
    if (s == SIB_OK && room.failed) s = sib_nomem(err, "vocabulary");
    if (s == SIB_OK && !ok) s = sib_fail(err, SIB_EFORMAT, "invalid JSON behind %zu tokens", b->n_used);
    sib_buf_deinit(&room);
    return s != SIB_OK ? s : sib_bpe_seal(b, err);
}

/* "left right": exactly one space. */
static bool split_pair(sib_str line, sib_str *left, sib_str *right)
{
    const char *space = memchr(line.p, ' ', line.n);
    if (!space) return false;
    *left = (sib_str){line.p, (size_t)(space - line.p)};
    *right = (sib_str){space + 1, line.n - left->n - 1};
    return memchr(right->p, ' ', right->n) == NULL;
}

static sib_status load_merges(sib_bpe *b, sib_str span, size_t count, sib_err *err)
{
    cursor c = {span.p, span.p + span.n};
    sib_buf room[2] = {{0}, {0}};
    sib_str left, right;
    sib_status s = sib_bpe_reserve_merges(b, count, err);
    bool ok = take(&c, '[');
    for (bool more = ok && !take(&c, ']'); more && s == SIB_OK;) {
        bool skip = false;
        if (peek(&c, '"')) {
            sib_str line;
            ok = scan_string(&c, &room[0], &line);
            skip = ok && line.n >= 8 && memcmp(line.p, "#version", 8) == 0; /* heading of an old merges.txt */
            if (ok && !skip && !split_pair(line, &left, &right))
                s = sib_fail(err, SIB_EFORMAT, "merge %u: \"%.*s\" is not two texts with one space between",
                             b->n_merges, (int)(line.n < 80 ? line.n : 80), line.p);
        } else {
            ok = take(&c, '[') && scan_string(&c, &room[0], &left) && take(&c, ',') &&
                 scan_string(&c, &room[1], &right) && take(&c, ']');
        }
        if (!ok) break;
        if (s == SIB_OK && !skip) s = sib_bpe_add_merge(b, left, right, err);
        more = s == SIB_OK && take(&c, ',');
        if (!more && s == SIB_OK) ok = take(&c, ']');
    }
    if (s == SIB_OK && (room[0].failed || room[1].failed)) s = sib_nomem(err, "merges");
    if (s == SIB_OK && !ok)
        s = sib_fail(err, SIB_EFORMAT, "invalid JSON, or not a list of pairs, behind %u merges", b->n_merges);
    sib_buf_deinit(&room[0]);
    sib_buf_deinit(&room[1]);
    return s;
}

/* ---- the model ---- */

static sib_status check_empty(const json_t *model, const char *key, sib_err *err)
{
    const char *text = NULL;
    SIB_TRY(sib_json_str(model, "model", key, &text, err));
    if (text && *text)
        return sib_fail(err, SIB_EUNSUPPORTED, "model: key \"%s\" is \"%.80s\", which is not supported", key, text);
    return SIB_OK;
}

static sib_status load_model(sib_bpe *b, const json_t *model, const parts *p, sib_err *err)
{
    const char *type = NULL, *unk = NULL;
    double dropout = 0;
    if (!json_is_object(model)) return sib_fail(err, SIB_EFORMAT, "key \"model\" must be an object");
    SIB_TRY(sib_json_str(model, "model", "type", &type, err));
    if (type && strcmp(type, "BPE") != 0)
        return sib_fail(err, SIB_EUNSUPPORTED, "model: type \"%.80s\" is not supported (BPE is)", type);
    if (!p->vocab.p) return sib_fail(err, SIB_EFORMAT, "model: key \"vocab\" must be an object");
    if (!p->merges.p) return sib_fail(err, SIB_EFORMAT, "model: key \"merges\" must be a list");
    SIB_TRY(sib_json_num(model, "model", "dropout", 0, 1, &dropout, err));
    if (dropout != 0)
        return sib_fail(err, SIB_EUNSUPPORTED, "model: key \"dropout\" is %g, only 0 is supported", dropout);
    SIB_TRY(check_empty(model, "continuing_subword_prefix", err));
    SIB_TRY(check_empty(model, "end_of_word_suffix", err));
    SIB_TRY(sib_json_bool(model, "model", "byte_fallback", &b->byte_fallback, err));
    SIB_TRY(sib_json_bool(model, "model", "fuse_unk", &b->fuse_unk, err));
    SIB_TRY(sib_json_bool(model, "model", "ignore_merges", &b->ignore_merges, err));
    SIB_TRY(sib_json_str(model, "model", "unk_token", &unk, err));
    sib_status s = load_vocab(b, p->vocab, err);
    if (s != SIB_OK) return sib_within(err, s, "model.vocab");
    s = load_merges(b, p->merges, p->n_merges, err);
    if (s != SIB_OK) return sib_within(err, s, "model.merges");
    if (!unk) return SIB_OK;
    b->unk = sib_bpe_id(b, sib_str_of(unk));
    if (b->unk == SIB_NO_ID)
        return sib_fail(err, SIB_EFORMAT, "model: the unk_token \"%.80s\" is not in the vocabulary", unk);
    return SIB_OK;
}

/* ---- added tokens ---- */

/* Under the text that is matched: its normal form for `normalized` tokens. */
static sib_status add_pattern(sib_tokenizer *t, sib_str content, bool normalized, sib_added_token flags, sib_err *err)
{
    if (!normalized) return sib_added_add(&t->raw, content, flags, err);
    sib_buf normal = {0};
    sib_status s = sib_normalizer_run(t->normalizer, content, &normal, err);
    if (s == SIB_OK && normal.n) s = sib_added_add(&t->normalized, sib_buf_view(&normal), flags, err);
    sib_buf_deinit(&normal);
    return s;
}

/* The id of an added token is the vocabulary's, when its text is there, whatever the entry
 * says; else the one behind the ids of the vocabulary and of the added tokens so far, where
 * the vocabulary is taken to have ids without gaps. That is how the reference numbers them;
 * in the files that it writes the entries say the same. */
static int64_t added_id(const sib_tokenizer *t, sib_str content, int64_t highest)
{
    uint32_t known = sib_bpe_id(&t->bpe, content);
    int64_t n = (int64_t)t->bpe.n_used;
    if (known != SIB_NO_ID) return known;
    return highest >= n ? highest + 1 : n;
}

static sib_status load_added_token(sib_tokenizer *t, const json_t *o, uint32_t order, int64_t *highest, sib_err *err)
{
    static const char where[] = "added_tokens";
    const json_t *text = json_object_get(o, "content");
    int64_t id = -1;
    sib_added_token flags = {.order = order};
    SIB_TRY(sib_json_int(o, where, "id", 0, UINT32_MAX, &id, err));
    if (id < 0) return sib_fail(err, SIB_EFORMAT, "%s: key \"id\" is missing", where);
    if (!json_is_string(text))
        return sib_fail(err, SIB_EFORMAT, "%s: token %lld: key \"content\" must be a string", where, (long long)id);
    SIB_TRY(sib_json_bool(o, where, "single_word", &flags.single_word, err));
    SIB_TRY(sib_json_bool(o, where, "lstrip", &flags.lstrip, err));
    SIB_TRY(sib_json_bool(o, where, "rstrip", &flags.rstrip, err));
    SIB_TRY(sib_json_bool(o, where, "special", &flags.special, err));
    bool normalized = !flags.special;
    SIB_TRY(sib_json_bool(o, where, "normalized", &normalized, err));
    sib_str content = {json_string_value(text), json_string_length(text)};
    if (content.n == 0) return SIB_OK; /* the reference leaves such a token out */
    id = added_id(t, content, *highest);
    if (id >= SIB_TOKENIZER_MAX_IDS)
        return sib_fail(err, SIB_EFORMAT, "%s: more than %d ids", where, SIB_TOKENIZER_MAX_IDS);
    if (id > *highest) *highest = id;
    flags.id = (int32_t)id;
    SIB_TRY(sib_added_add(&t->by_text, content, flags, err));
    return add_pattern(t, content, normalized, flags, err);
}

static sib_status load_added(sib_tokenizer *t, const json_t *list, sib_err *err)
{
    size_t i;
    int64_t highest = -1;
    const json_t *o;
    if (list && !json_is_array(list)) return sib_fail(err, SIB_EFORMAT, "key \"added_tokens\" must be a list");
    size_t count = json_array_size(list);
    json_array_foreach(list, i, o) {
        if (!json_is_object(o)) return sib_fail(err, SIB_EFORMAT, "added_tokens: entry %zu must be an object", i);
        /* Among equal patterns special tokens come first, then the order of the file. */
        SIB_TRY(load_added_token(t, o, (uint32_t)(json_is_true(json_object_get(o, "special")) ? i : i + count),
                                 &highest, err));
    }
    sib_added_seal(&t->raw);
    sib_added_seal(&t->normalized);
    sib_added_seal(&t->by_text);
    for (i = 1; i < t->by_text.n; i++) {
        const sib_added_token *a = &t->by_text.v[i - 1], *b = a + 1;
        if (a->n == b->n && memcmp(a->content, b->content, a->n) == 0)
            return sib_fail(err, SIB_EFORMAT, "added_tokens: \"%.*s\" is listed twice", (int)a->n, a->content);
    }
    if (highest >= t->n_ids) t->n_ids = (int32_t)highest + 1;
    return SIB_OK;
}

/* The tables by id, when all ids are known. */
static sib_status index_ids(sib_tokenizer *t, sib_err *err)
{
    size_t n = t->n_ids ? (size_t)t->n_ids : 1;
    t->added_at = malloc(n * sizeof *t->added_at);
    t->barred = calloc(n, 1);
    if (!t->added_at || !t->barred) return sib_nomem(err, "added tokens");
    memset(t->added_at, 0xFF, n * sizeof *t->added_at);
    for (size_t i = 0; i < t->by_text.n; i++) {
        const sib_added_token *a = &t->by_text.v[i];
        t->added_at[a->id] = (int32_t)i;
        t->barred[a->id] = a->special && (uint32_t)a->id != t->bpe.unk;
    }
    for (size_t i = 0; i < t->normalized.n; i++)
        t->by_text.v[t->added_at[t->normalized.v[i].id]].shown = (uint32_t)i + 1;
    return SIB_OK;
}

/* ---- the post-processor ---- */

/* The ids of a SpecialToken of a template, appended. */
static sib_status template_token(sib_tokenizer *t, const json_t *processor, const json_t *item, sib_ids *out,
                                 sib_err *err)
{
    const char *name = json_string_value(json_object_get(item, "id"));
    const json_t *known = json_object_get(processor, "special_tokens"), *v;
    const json_t *ids = name ? json_object_get(json_object_get(known, name), "ids") : NULL;
    size_t i;
    if (!json_is_array(ids))
        return sib_fail(err, SIB_EFORMAT, "post_processor: \"special_tokens\" has no ids for \"%.80s\"",
                        name ? name : "");
    json_array_foreach(ids, i, v) {
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= (json_int_t)t->bpe.id_limit)
            return sib_fail(err, SIB_EFORMAT, "post_processor: token \"%.80s\" has a wrong id", name);
        sib_ids_add(out, (int32_t)id);
        if (id >= t->n_ids) t->n_ids = (int32_t)id + 1;
    }
    return out->failed ? sib_nomem(err, "post_processor") : SIB_OK;
}

/* `before` the text come the new template's ids, then those of earlier processors; behind it
 * the other way round. */
static sib_status load_template(sib_tokenizer *t, const json_t *processor, sib_err *err)
{
    const json_t *list = json_object_get(processor, "single"), *item;
    sib_ids before = {0};
    bool seen = false;
    size_t i;
    sib_status s = SIB_OK;
    json_array_foreach(list, i, item) {
        const json_t *token = json_object_get(item, "SpecialToken"), *sequence = json_object_get(item, "Sequence");
        const char *name = json_string_value(json_object_get(sequence, "id"));
        if (token)
            s = template_token(t, processor, token, seen ? &t->suffix : &before, err);
        else if (name && strcmp(name, "A") == 0 && !seen)
            seen = true;
        else
            s = sib_fail(err, SIB_EUNSUPPORTED,
                         "post_processor: a part of the template \"single\" is neither a token nor the one text A");
        if (s != SIB_OK) break;
    }
    if (s == SIB_OK && !seen)
        s = sib_fail(err, SIB_EFORMAT, "post_processor: the template \"single\" does not hold the text A");
    for (i = 0; s == SIB_OK && i < t->prefix.n; i++) sib_ids_add(&before, t->prefix.v[i]);
    if (s == SIB_OK && before.failed) s = sib_nomem(err, "post_processor");
    if (s == SIB_OK) {
        sib_ids_deinit(&t->prefix);
        t->prefix = before;
    } else {
        sib_ids_deinit(&before);
    }
    return s;
}

static sib_status load_post_processor(sib_tokenizer *t, const json_t *spec, int depth, sib_err *err)
{
    const char *type = NULL;
    if (!json_is_object(spec)) return sib_fail(err, SIB_EFORMAT, "post_processor: must be an object");
    SIB_TRY(sib_json_str(spec, "post_processor", "type", &type, err));
    if (!type) return sib_fail(err, SIB_EFORMAT, "post_processor: key \"type\" is missing");
    if (strcmp(type, "ByteLevel") == 0) return SIB_OK; /* changes offsets, not ids */
    if (strcmp(type, "TemplateProcessing") == 0) return load_template(t, spec, err);
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(spec, "processors"), *item;
        size_t i;
        if (!json_is_array(list))
            return sib_fail(err, SIB_EFORMAT, "post_processor: key \"processors\" must be a list");
        if (depth == 4) return sib_fail(err, SIB_EUNSUPPORTED, "post_processor: Sequence nested deeper than 4 levels");
        json_array_foreach(list, i, item) SIB_TRY(load_post_processor(t, item, depth + 1, err));
        return SIB_OK;
    }
    return sib_fail(err, SIB_EUNSUPPORTED, "post_processor: type \"%.80s\" is not supported", type);
}

/* ---- tokenizer.json ---- */

static sib_status load_root(sib_tokenizer *t, const json_t *root, const parts *p, sib_err *err)
{
    const char *version = NULL;
    SIB_TRY(sib_json_str(root, "file", "version", &version, err));
    if (version && strcmp(version, "1.0") != 0)
        return sib_fail(err, SIB_EUNSUPPORTED, "version \"%.80s\" is not supported (1.0 is)", version);
    SIB_TRY(sib_normalizer_new(&t->normalizer, sib_json_get(root, "normalizer"), err));
    SIB_TRY(sib_pretokenizer_new(&t->pretokenizer, sib_json_get(root, "pre_tokenizer"), err));
    SIB_TRY(sib_decoder_new(&t->decoder, sib_json_get(root, "decoder"), err));
    SIB_TRY(load_model(&t->bpe, json_object_get(root, "model"), p, err));
    t->n_ids = (int32_t)t->bpe.n_ids;
    SIB_TRY(load_added(t, sib_json_get(root, "added_tokens"), err));
    const json_t *post = sib_json_get(root, "post_processor");
    if (post) SIB_TRY(load_post_processor(t, post, 0, err));
    return index_ids(t, err);
}

sib_status sib_tokenizer_load(sib_tokenizer *t, sib_str json, sib_err *err)
{
    parts p = {0};
    json_t *root = NULL;
    if (json.n > SIB_TOKENIZER_MAX_BYTES)
        return sib_fail(err, SIB_EFORMAT, "larger than %zu bytes", SIB_TOKENIZER_MAX_BYTES);
    /* Tables are indexed by id: a small file must not ask for large ones. */
    if (json.n < SIB_TOKENIZER_MAX_IDS - 65536) t->bpe.id_limit = (uint32_t)json.n + 65536;
    sib_status s = split_file(json, &p, err);
    if (s == SIB_OK) s = sib_json_parse(&root, sib_buf_view(&p.rest), "the part beside vocab and merges", err);
    if (s == SIB_OK) s = load_root(t, root, &p, err);
    json_decref(root);
    sib_buf_deinit(&p.rest);
    return s;
}

/* ---- tokenizer_config.json ---- */

static char *copy(const char *p, size_t n)
{
    char *z = malloc(n + 1);
    if (!z) return NULL;
    memcpy(z, p, n);
    z[n] = 0;
    return z;
}

/* Keeps NAME_token entries; the first of a name counts. */
static sib_status load_variables(sib_tokenizer *t, const json_t *o, sib_err *err)
{
    void *iter = json_object_iter((json_t *)o);
    size_t room = t->n_vars + json_object_size(o);
    sib_tokenizer_var *vars = realloc(t->vars, (room ? room : 1) * sizeof *vars);
    if (!vars) return sib_nomem(err, "tokenizer_config.json");
    t->vars = vars;
    for (; iter; iter = json_object_iter_next((json_t *)o, iter)) {
        const char *name = json_object_iter_key(iter);
        const json_t *v = json_object_iter_value(iter);
        if (json_is_object(v)) v = json_object_get(v, "content");
        if (!json_is_string(v) || !sib_ends_with(name, "_token")) continue;
        bool known = false;
        for (size_t i = 0; i < t->n_vars && !known; i++) known = strcmp(t->vars[i].name, name) == 0;
        if (known) continue;
        sib_tokenizer_var *var = &vars[t->n_vars];
        var->n = json_string_length(v);
        var->name = copy(name, strlen(name));
        var->value = copy(json_string_value(v), var->n);
        t->n_vars++;
        if (!var->name || !var->value) return sib_nomem(err, "tokenizer_config.json");
    }
    return SIB_OK;
}

static int32_t id_of_variable(const sib_tokenizer *t, const char *name)
{
    for (size_t i = 0; i < t->n_vars; i++)
        if (strcmp(t->vars[i].name, name) == 0) return sib_tokenizer_id(t, (sib_str){t->vars[i].value, t->vars[i].n});
    return -1;
}

sib_status sib_tokenizer_load_config(sib_tokenizer *t, sib_str json, sib_err *err)
{
    static const char name[] = "tokenizer_config.json";
    json_error_t e;
    if (json.n > SIB_TOKENIZER_CONFIG_MAX_BYTES || sib_json_depth(json) > MAX_CONFIG_DEPTH)
        return sib_fail(err, SIB_EFORMAT, "%s: too large or nested too deep", name);
    /* Numbers are read as real ones: a common model_max_length, 10^30, fits no integer. */
    json_t *root = json_loadb(json.p, json.n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &e);
    if (!root && json_error_code(&e) == json_error_out_of_memory) return sib_nomem(err, name);
    if (!root) return sib_fail(err, SIB_EFORMAT, "%s: invalid JSON at line %d: %s", name, e.line, e.text);
    sib_status s = json_is_object(root) ? SIB_OK : sib_fail(err, SIB_EFORMAT, "%s: not a JSON object", name);
    if (s == SIB_OK) s = sib_json_bool(root, name, "add_bos_token", &t->add_bos, err);
    if (s == SIB_OK) s = load_variables(t, root, err);
    if (s == SIB_OK) s = load_variables(t, json_object_get(root, "extra_special_tokens"), err);
    if (s == SIB_OK) s = load_variables(t, json_object_get(root, "model_specific_special_tokens"), err);
    if (s == SIB_OK) {
        t->bos = id_of_variable(t, "bos_token");
        t->eos = id_of_variable(t, "eos_token");
    }
    json_decref(root);
    return s;
}

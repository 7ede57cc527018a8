/* server/structured.c - answers that must match a schema or a pattern: sample/grammar.h between reasoning and tool calls.
 *
 *   [reasoning, free] -> text by the automaton -> end
 *                    \-> tool calls, free       -> end          (when the request has tools)
 *
 * Where the parts begin and end is known by token ids, so a mask depends on emitted tokens alone and holds for drafts too. */
#include "server/server_internal.h"

#include <stdlib.h>
#include <string.h>

typedef enum phase { BEFORE, REASONING, INSIDE, CALL, AFTER_CALL } phase;

struct sib_structured {
    sib_automaton *automaton;
    const sib_task *task;
    phase at;
    bool failed;
    int32_t think_open, think_close, call_open, call_close; /* -1: none */
    size_t words; /* of the mask */
};

const char *const sib_structured_fields[] = {"response_format", "structured_outputs", "guided_json", "guided_regex", NULL};

/* ---- requests --------------------------------------------------------------------------------------------- */

static void token_bytes(const void *ctx, int32_t id, sib_buf *out)
{
    const sib_tokenizer *t = ctx;
    if (!sib_tokenizer_is_special(t, id)) sib_tokenizer_bytes(t, id, out);
}

static sib_status compiled(sib_task *t, sib_status s, const sib_err *err, const char *key)
{
    sib_server *server = t->server;
    sib_err trie_err = {0};
    if (s == SIB_ENOMEM) return sib_refuse_as(t, 503, "unavailable_error", NULL, NULL, "%s", err->message);
    if (s != SIB_OK) return sib_refuse(t, key, "`%s`: %s", key, err->message);
    if (server->trie) return SIB_OK;
    s = sib_vocab_trie_new(&server->trie, server->info.n_vocab, token_bytes, server->engine->tokenizer, &trie_err);
    return s == SIB_OK ? SIB_OK : sib_refuse_status(t, s, trie_err.message);
}

static sib_status take_schema(sib_task *t, const json_t *schema, const char *key)
{
    sib_err err = {0};
    if (schema && !json_is_object(schema)) return sib_refuse(t, key, "`%s`: the schema must be an object", key);
    sib_grammar_program_free(t->program);
    return compiled(t, sib_grammar_from_schema(&t->program, schema, &err), &err, key);
}

static sib_status take_pattern(sib_task *t, const json_t *pattern, const char *key)
{
    sib_err err = {0};
    if (!json_is_string(pattern)) return sib_refuse(t, key, "`%s`: the pattern must be a string", key);
    sib_grammar_program_free(t->program);
    return compiled(t, sib_grammar_from_regex(&t->program, (sib_str){json_string_value(pattern), json_string_length(pattern)}, &err), &err, key);
}

sib_status sib_take_format(sib_task *t, const json_t *format, const char *key)
{
    const char *type = json_string_value(json_object_get(format, "type"));
    if (!format) return SIB_OK;
    if (!type) return sib_refuse(t, key, "`%s` must be an object with a type", key);
    if (strcmp(type, "text") == 0) return SIB_OK;
    if (strcmp(type, "json_object") == 0) return take_schema(t, sib_json_get(format, "schema"), key);
    if (strcmp(type, "regex") == 0) return take_pattern(t, sib_json_get(format, "pattern"), key);
    if (strcmp(type, "json_schema") != 0) return sib_refuse(t, key, "`%s`: type \"%.40s\" is not supported", key, type);
    const json_t *named = sib_json_get(format, "json_schema"), *schema = sib_json_get(named ? named : format, "schema");
    return schema ? take_schema(t, schema, key) : sib_refuse(t, key, "`%s` has no schema", key);
}

sib_status sib_take_structure(sib_task *t, const json_t *o)
{
    static const char *const known[] = {"json", "regex", "json_object", NULL};
    const char *const *const lists[] = {known, NULL};
    const json_t *outputs = sib_json_get(o, "structured_outputs"), *v;
    int n = 0;
    for (int i = 0; sib_structured_fields[i]; i++) n += sib_json_get(o, sib_structured_fields[i]) != NULL;
    if (n > 1) return sib_refuse(t, "response_format", "`response_format`, `structured_outputs`, `guided_json` and `guided_regex` exclude each other");
    SIB_TRY(sib_take_format(t, sib_json_get(o, "response_format"), "response_format"));
    if ((v = sib_json_get(o, "guided_json"))) SIB_TRY(take_schema(t, v, "guided_json"));
    if ((v = sib_json_get(o, "guided_regex"))) SIB_TRY(take_pattern(t, v, "guided_regex"));
    if (!outputs) return SIB_OK;
    if (!json_is_object(outputs)) return sib_refuse(t, "structured_outputs", "`structured_outputs` must be an object");
    SIB_TRY(sib_check_fields(t, outputs, lists));
    if ((v = sib_json_get(outputs, "json"))) return take_schema(t, v, "structured_outputs");
    if ((v = sib_json_get(outputs, "regex"))) return take_pattern(t, v, "structured_outputs");
    return json_is_true(sib_json_get(outputs, "json_object")) ? take_schema(t, NULL, "structured_outputs") : SIB_OK;
}

/* ---- answers (engine thread) --------------------------------------------------------------------------------- */

static void allow(uint32_t *allowed, const struct sib_structured *z, int32_t id)
{
    if (id >= 0 && (size_t)id < z->words * 32) allowed[id >> 5] |= 1u << (id & 31);
}

static void allow_end(uint32_t *allowed, const struct sib_structured *z)
{
    for (size_t i = 0; i < z->task->n_eos; i++) allow(allowed, z, z->task->eos[i]);
}

/* A mask that forbids everything would fail the round of all; ending the answer fails only this one. */
static void never_empty(uint32_t *allowed, struct sib_structured *z)
{
    for (size_t i = 0; i < z->words; i++)
        if (allowed[i]) return;
    z->failed = true;
    memset(allowed, 0xFF, z->words * sizeof *allowed);
}

static sib_status mask(void *self, uint32_t *allowed, sib_err *err)
{
    struct sib_structured *z = self;
    if (z->failed) return SIB_OK;
    if (z->at == REASONING || z->at == CALL) { /* free, but it cannot be the end */
        for (size_t i = 0; i < z->task->n_eos; i++) allowed[z->task->eos[i] >> 5] &= ~(1u << (z->task->eos[i] & 31));
        return SIB_OK;
    }
    if (z->at == AFTER_CALL) {
        memset(allowed, 0, z->words * sizeof *allowed);
        allow_end(allowed, z);
        allow(allowed, z, z->call_open);
        never_empty(allowed, z);
        return SIB_OK;
    }
    if (sib_automaton_mask(z->automaton, allowed, err) != SIB_OK) memset(allowed, 0, z->words * sizeof *allowed);
    if (sib_automaton_accepts(z->automaton)) allow_end(allowed, z);
    if (z->at == BEFORE && z->task->tools) allow(allowed, z, z->call_open);
    if (z->at == BEFORE) allow(allowed, z, z->think_open);
    never_empty(allowed, z);
    return SIB_OK;
}

static sib_status advance(void *self, int32_t id, bool *done, sib_err *err)
{
    struct sib_structured *z = self;
    (void)err;
    *done = z->failed;
    switch (z->at) {
    case REASONING:
        if (id == z->think_close) z->at = BEFORE;
        return SIB_OK;
    case CALL:
        if (id == z->call_close) z->at = AFTER_CALL;
        return SIB_OK;
    case BEFORE:
    case AFTER_CALL:
        if (id == z->call_open && z->task->tools) {
            z->at = CALL;
            return SIB_OK;
        }
        if (id == z->think_open && z->at == BEFORE) {
            z->at = REASONING;
            return SIB_OK;
        }
        z->at = INSIDE;
        break;
    case INSIDE: break;
    }
    if (!sib_automaton_token(z->automaton, id)) z->failed = true;
    *done = z->failed || sib_automaton_exhausted(z->automaton);
    return SIB_OK;
}

sib_status sib_structured_new(sib_choice *c, sib_err *err)
{
    const sib_task *t = c->task;
    const sib_server *s = t->server;
    const sib_tokenizer *k = s->engine->tokenizer;
    bool raw = t->format == &sib_format_completion, gemma = s->markup == SIB_MARKUP_GEMMA;
    struct sib_structured *z = calloc(1, sizeof *z);
    if (!z) return sib_nomem(err, "grammar");
    c->structured = z;
    *z = (struct sib_structured){.task = t, .at = BEFORE, .words = ((size_t)s->info.n_vocab + 31) / 32, .think_open = -1, .think_close = -1, .call_open = -1, .call_close = -1};
    if (!raw) {
        z->think_open = sib_tokenizer_id(k, gemma ? SIB_STR("<|channel>") : SIB_STR("<think>"));
        z->think_close = sib_tokenizer_id(k, gemma ? SIB_STR("<channel|>") : SIB_STR("</think>"));
        z->call_open = sib_tokenizer_id(k, gemma ? SIB_STR("<|tool_call>") : SIB_STR("<tool_call>"));
        z->call_close = sib_tokenizer_id(k, gemma ? SIB_STR("<tool_call|>") : SIB_STR("</tool_call>"));
        if (z->think_close < 0) z->think_open = -1;
        if (z->call_close < 0) z->call_open = -1;
        if (!sib_reply_in_content(c->reply) && z->think_close >= 0) z->at = REASONING;
    }
    c->grammar = (sib_grammar){.self = z, .mask = mask, .advance = advance};
    return sib_automaton_new(&z->automaton, t->program, s->trie, err);
}

void sib_structured_free(struct sib_structured *z)
{
    if (!z) return;
    sib_automaton_free(z->automaton);
    free(z);
}

bool sib_structured_failed(const struct sib_structured *z)
{
    return z->failed;
}

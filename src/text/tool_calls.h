/* text/tool_calls.h - what a model writes, taken apart: answer, reasoning, tool calls.
 *
 *   Gemma 4      <|channel>thought\n ... <channel|>   <|tool_call>call:NAME{k:<|"|>v<|"|>,n:1}<tool_call|>
 *   Qwen3.5      <think> ... </think>   <tool_call><function=NAME><parameter=K>\nV\n</parameter></function></tool_call>
 *   Qwen3        <think> ... </think>   <tool_call>{"name": NAME, "arguments": {...}}</tool_call>
 *   GLM-4.5..5   <think> ... </think>   <tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value></tool_call>
 *
 * Tokens go in one by one and pieces come out as early as they are certain: text that may be the beginning of a
 * marker is held back, and a call comes whole, when its end has been seen. Gemma's markers are special tokens and are known by
 * their ids, so text that merely spells one stays text; the others' markers are text.
 *
 * Nothing a model writes is an error: what looks like a call and is none comes out as content. Formats: server_api.md 9. */
#ifndef SIB_TEXT_TOOL_CALLS_H
#define SIB_TEXT_TOOL_CALLS_H

#include "base/json.h"
#include "text/tokenizer.h"

typedef enum sib_markup { SIB_MARKUP_NONE, SIB_MARKUP_GEMMA, SIB_MARKUP_QWEN, SIB_MARKUP_JSON, SIB_MARKUP_GLM } sib_markup;

/* Which markup a chat template writes calls in, from a rendering of an assistant message that calls a function f. */
sib_markup sib_markup_of(sib_str rendering);

typedef struct sib_reply_sink {
    void *ctx;
    void (*content)(void *ctx, sib_str text);
    void (*reasoning)(void *ctx, sib_str text);
    void (*call)(void *ctx, sib_str name, sib_str arguments); /* arguments: a JSON object's text */
} sib_reply_sink;

typedef struct sib_reply sib_reply;

/* tools: the request's list ({"function": {"name", "parameters"}} each), borrowed; NULL: calls are not looked for. prompt: the
 * rendered prompt, whose end tells whether the answer begins inside the reasoning. begun: NULL, or what force_call gave. */
sib_status sib_reply_new(sib_reply **out, sib_markup markup, const sib_tokenizer *t, const json_t *tools, sib_str prompt, const sib_str *begun,
                         const sib_reply_sink *sink, sib_err *err);
/* Ends a rendered prompt with the beginning of a call, so that the answer can be nothing else: of the function `name`, or of any when
 * it is empty. The part of it that belongs to the call is appended to *begun too. */
void sib_reply_force_call(sib_markup markup, sib_str name, sib_buf *prompt, sib_buf *begun);
void sib_reply_free(sib_reply *r);

/* A token and the text that it released (special tokens not printed). False: no memory. */
bool sib_reply_feed(sib_reply *r, int32_t id, sib_str text);
/* The end: `whole` when the model ended its turn, false when it was cut; a call that was cut is dropped. */
bool sib_reply_end(sib_reply *r, bool whole);

int sib_reply_calls(const sib_reply *r);             /* so far */
int sib_reply_reasoning_tokens(const sib_reply *r);  /* tokens that were fed inside the reasoning */
bool sib_reply_in_content(const sib_reply *r);       /* the next token is part of the answer's text, as far as is known */

#endif

/* server/api_chat.c - /v1/chat/completions and /v1/completions: how answers are written (server_api.md 3, 4, 6). Loop thread. */
#include "server/server_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- shared with the other APIs --------------------------------------------------------------------- */

void sib_send_event(sib_task *t, const char *name, sib_str data)
{
    sib_buf e = {0};
    if (name) sib_buf_addf(&e, "event: %s\n", name);
    sib_buf_addz(&e, "data: ");
    sib_buf_add(&e, data.p, data.n);
    sib_buf_addz(&e, "\n\n");
    if (!e.failed) (void)sib_http_send(t->conn, sib_buf_view(&e)); /* a client that is gone is reported by the loop */
    sib_buf_deinit(&e);
}

void sib_put_text(sib_buf *out, const sib_buf *text)
{
    sib_json_put_str(out, text->p ? sib_buf_view(text) : SIB_STR(""));
}

void sib_problem_openai(const sib_task *t, const sib_problem *p, sib_buf *out)
{
    (void)t;
    sib_buf_addz(out, "{\"error\":{\"message\":");
    sib_json_put_str(out, sib_str_of(p->message));
    sib_buf_addf(out, ",\"type\":\"%s\",\"param\":", p->type);
    if (p->param[0]) sib_json_put_str(out, sib_str_of(p->param));
    else sib_buf_addz(out, "null");
    if (p->code) sib_buf_addf(out, ",\"code\":\"%s\"}}", p->code);
    else sib_buf_addf(out, ",\"code\":%d}}", p->status);
}

const char *sib_finish_openai(const sib_choice *c)
{
    if (c->report.finish == SIB_FINISH_LENGTH) return "length";
    return c->n_have_calls > 0 ? "tool_calls" : "stop";
}

int sib_task_completion_tokens(const sib_task *t)
{
    int n = 0;
    for (int i = 0; i < t->n; i++) n += t->choices[i].report.generated_tokens;
    return n;
}

static double rate(double n, double ms)
{
    return ms > 0 ? n * 1e3 / ms : 0;
}

static void put_number(sib_buf *out, const char *key, double v)
{
    sib_buf_addf(out, ",\"%s\":", key);
    sib_json_put_num(out, round(v * 1e3) / 1e3);
}

/* Of all choices together; llama-server's names. */
void sib_put_timings(const sib_task *t, sib_buf *out)
{
    const sib_server *s = t->server;
    double prompt_ms = 0, predicted_ms = 0;
    int prompt_n = 0, predicted_n = 0;
    uint64_t proposed = 0, accepted = 0, rounds = 0, passes = 0, proposed_at[SIB_POLICY_DEPTHS] = {0}, accepted_at[SIB_POLICY_DEPTHS] = {0};
    for (int i = 0; i < t->n; i++) {
        const sib_job_report *r = &t->choices[i].report;
        prompt_n += r->prompt_tokens - r->cached_tokens;
        predicted_n += r->generated_tokens;
        prompt_ms += r->prefill_ms;
        predicted_ms += r->decode_ms;
        proposed += r->proposed;
        accepted += r->accepted;
        rounds += r->rounds;
        passes += r->target_passes;
        for (size_t k = 0; k < SIB_POLICY_DEPTHS; k++) proposed_at[k] += r->proposed_at[k], accepted_at[k] += r->accepted_at[k];
    }
    sib_buf_addf(out, "{\"prompt_n\":%d,\"cache_n\":%d", prompt_n, t->cached_tokens);
    put_number(out, "prompt_ms", prompt_ms);
    put_number(out, "prompt_per_token_ms", prompt_n ? prompt_ms / prompt_n : 0);
    put_number(out, "prompt_per_second", rate(prompt_n, prompt_ms));
    sib_buf_addf(out, ",\"predicted_n\":%d", predicted_n);
    put_number(out, "predicted_ms", predicted_ms);
    put_number(out, "predicted_per_token_ms", predicted_n ? predicted_ms / predicted_n : 0);
    put_number(out, "predicted_per_second", rate(predicted_n, predicted_ms));
    sib_buf_addf(out, ",\"n_ctx\":%d,\"n_past\":%d,\"target_passes\":%llu", s->info.n_ctx, t->prompt_tokens + t->choices[0].report.generated_tokens, (unsigned long long)passes);
    put_number(out, "queue_ms", t->choices[0].report.queue_ms);
    if (s->info.drafter) {
        sib_buf_addf(out, ",\"draft_kind\":\"%s\",\"draft_n\":%llu,\"draft_n_accepted\":%llu,\"draft_rounds\":%llu,\"draft_by_depth\":[", s->info.drafter,
                     (unsigned long long)proposed, (unsigned long long)accepted, (unsigned long long)rounds);
        for (size_t k = 0; k < SIB_POLICY_DEPTHS && proposed_at[k] > 0; k++)
            sib_buf_addf(out, "%s{\"depth\":%zu,\"draft_n\":%llu,\"draft_n_accepted\":%llu}", k ? "," : "", k + 1, (unsigned long long)proposed_at[k], (unsigned long long)accepted_at[k]);
        sib_buf_addc(out, ']');
    }
    sib_buf_addc(out, '}');
}

static void put_usage(const sib_task *t, sib_buf *out)
{
    int completion = sib_task_completion_tokens(t), reasoning = 0;
    uint64_t accepted = 0, proposed = 0;
    for (int i = 0; i < t->n; i++) {
        const sib_choice *c = &t->choices[i];
        reasoning += c->n_reasoning;
        accepted += c->report.accepted;
        proposed += c->report.proposed;
    }
    sib_buf_addf(out, "{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":%d},"
                      "\"completion_tokens_details\":{\"reasoning_tokens\":%d,\"accepted_prediction_tokens\":%llu,\"rejected_prediction_tokens\":%llu}}",
                 t->prompt_tokens, completion, t->prompt_tokens + completion, t->cached_tokens, reasoning, (unsigned long long)accepted,
                 (unsigned long long)(proposed - accepted));
}

json_t *sib_choice_message(const sib_choice *c)
{
    json_t *m = json_pack("{s:s,s:s%}", "role", "assistant", "content", c->content.p ? c->content.p : "", c->content.n), *calls = NULL;
    int failed = !m;
    if (c->reasoning.n) failed |= json_object_set_new(m, "reasoning_content", json_stringn(c->reasoning.p, c->reasoning.n));
    if (c->n_have_calls > 0) failed |= !(calls = json_array());
    for (int i = 0; i < c->n_have_calls && !failed; i++)
        failed |= json_array_append_new(calls, json_pack("{s:s,s:s,s:{s:s,s:s}}", "id", c->calls[i].id.p, "type", "function", "function", "name", c->calls[i].name.p,
                                                         "arguments", c->calls[i].arguments.p));
    if (calls && !failed) failed |= json_object_set_new(m, "tool_calls", calls), calls = NULL;
    if (!failed) return m;
    json_decref(calls);
    json_decref(m);
    return NULL;
}

/* ---- chat -------------------------------------------------------------------------------------------- */

/* {"id","object","created","model","system_fingerprint", without the closing brace */
static void put_frame(const sib_task *t, const char *object, sib_buf *out)
{
    sib_buf_addf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", t->id, object, (long long)t->created);
    sib_json_put_str(out, sib_str_of(t->server->model_name));
    sib_buf_addf(out, ",\"system_fingerprint\":\"sibyl-%s-%s\"", sib_version(), t->server->info.numerics);
}

static void put_call(const sib_call *call, int index, bool whole, sib_buf *out)
{
    sib_buf_addc(out, '{');
    if (index >= 0) sib_buf_addf(out, "\"index\":%d,", index);
    sib_buf_addz(out, "\"id\":");
    sib_put_text(out, &call->id);
    sib_buf_addz(out, ",\"type\":\"function\",\"function\":{\"name\":");
    sib_put_text(out, &call->name);
    sib_buf_addz(out, ",\"arguments\":");
    if (whole) sib_put_text(out, &call->arguments);
    else sib_buf_addz(out, "\"\"");
    sib_buf_addz(out, "}}");
}

static void put_reasoning(sib_buf *out, sib_str text)
{
    sib_buf_addz(out, "\"reasoning_content\":");
    sib_json_put_str(out, text);
    sib_buf_addz(out, ",\"reasoning\":");
    sib_json_put_str(out, text);
}

static void put_stop_reason(const sib_choice *c, sib_buf *out)
{
    sib_buf_addz(out, ",\"stop_reason\":");
    if (c->stop_index >= 0) sib_json_put_str(out, c->task->stops[c->stop_index]);
    else sib_buf_addz(out, "null");
}

static void put_chat_choice(const sib_choice *c, sib_buf *out)
{
    bool none = c->n_have_calls > 0 && c->content.n == 0;
    sib_buf_addf(out, "{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", c->index);
    if (none) sib_buf_addz(out, "null");
    else sib_put_text(out, &c->content);
    sib_buf_addz(out, ",\"refusal\":null");
    if (c->reasoning.n) {
        sib_buf_addc(out, ',');
        put_reasoning(out, sib_buf_view(&c->reasoning));
    }
    if (c->n_have_calls > 0) {
        sib_buf_addz(out, ",\"tool_calls\":[");
        for (int i = 0; i < c->n_have_calls; i++) {
            if (i) sib_buf_addc(out, ',');
            put_call(&c->calls[i], -1, true, out);
        }
        sib_buf_addc(out, ']');
    }
    sib_buf_addz(out, "},\"logprobs\":");
    if (c->task->logprobs) sib_buf_addf(out, "{\"content\":[%s],\"refusal\":null}", c->entries.p ? c->entries.p : "");
    else sib_buf_addz(out, "null");
    sib_buf_addf(out, ",\"finish_reason\":\"%s\"", sib_finish_openai(c));
    put_stop_reason(c, out);
    sib_buf_addc(out, '}');
}

static void put_end(const sib_task *t, sib_buf *out)
{
    sib_buf_addz(out, ",\"usage\":");
    put_usage(t, out);
    sib_buf_addz(out, ",\"timings\":");
    sib_put_timings(t, out);
    sib_buf_addf(out, ",\"seed\":%llu}", (unsigned long long)t->seed);
}

static void chat_whole(sib_task *t, sib_buf *out)
{
    put_frame(t, "chat.completion", out);
    sib_buf_addz(out, ",\"choices\":[");
    for (int i = 0; i < t->n; i++) {
        if (i) sib_buf_addc(out, ',');
        put_chat_choice(&t->choices[i], out);
    }
    sib_buf_addc(out, ']');
    put_end(t, out);
}

/* One chunk with one choice. delta: members of the delta; finish: NULL while it goes on. */
static void send_chunk(sib_task *t, const sib_choice *c, const char *delta, sib_str logprobs, const char *finish)
{
    sib_buf out = {0};
    put_frame(t, "chat.completion.chunk", &out);
    sib_buf_addf(&out, ",\"choices\":[{\"index\":%d,\"delta\":{%s},\"logprobs\":", c->index, delta);
    if (logprobs.n) {
        sib_buf_addz(&out, "{\"content\":[");
        sib_buf_add(&out, logprobs.p, logprobs.n);
        sib_buf_addz(&out, "],\"refusal\":null}");
    } else {
        sib_buf_addz(&out, "null");
    }
    if (finish) {
        sib_buf_addf(&out, ",\"finish_reason\":\"%s\"", finish);
        put_stop_reason(c, &out);
        sib_buf_addz(&out, "}]");
    } else {
        sib_buf_addz(&out, ",\"finish_reason\":null}]");
    }
    /* The last data of the stream carries the timings. */
    if ((finish && t->n_ended == t->n && !t->include_usage)) {
        sib_buf_addz(&out, ",\"timings\":");
        sib_put_timings(t, &out);
        sib_buf_addf(&out, ",\"seed\":%llu", (unsigned long long)t->seed);
    }
    sib_buf_addc(&out, '}');
    if (!out.failed) sib_send_event(t, NULL, sib_buf_view(&out));
    sib_buf_deinit(&out);
}

static void chat_begin(sib_task *t)
{
    for (int i = 0; i < t->n; i++) send_chunk(t, &t->choices[i], "\"role\":\"assistant\",\"content\":\"\"", (sib_str){0}, NULL);
}

static void chat_content(sib_task *t, sib_choice *c, sib_str text, sib_str logprobs)
{
    sib_buf delta = {0};
    sib_buf_addz(&delta, "\"content\":");
    sib_json_put_str(&delta, text);
    if (!delta.failed) send_chunk(t, c, delta.p, logprobs, NULL);
    sib_buf_deinit(&delta);
}

static void chat_reasoning(sib_task *t, sib_choice *c, sib_str text)
{
    sib_buf delta = {0};
    put_reasoning(&delta, text);
    if (!delta.failed) send_chunk(t, c, delta.p, (sib_str){0}, NULL);
    sib_buf_deinit(&delta);
}

static void chat_call(sib_task *t, sib_choice *c, sib_str id, sib_str name, sib_str arguments)
{
    (void)id;
    (void)name;
    sib_buf delta = {0};
    int index = c->n_have_calls - 1;
    sib_buf_addz(&delta, "\"tool_calls\":[");
    put_call(&c->calls[index], index, false, &delta);
    sib_buf_addc(&delta, ']');
    if (!delta.failed) send_chunk(t, c, delta.p, (sib_str){0}, NULL);
    delta.n = 0;
    sib_buf_addf(&delta, "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", index);
    sib_json_put_str(&delta, arguments);
    sib_buf_addz(&delta, "}}]");
    if (!delta.failed) send_chunk(t, c, delta.p, (sib_str){0}, NULL);
    sib_buf_deinit(&delta);
}

static void chat_end_choice(sib_task *t, sib_choice *c)
{
    send_chunk(t, c, "", (sib_str){0}, sib_finish_openai(c));
}

static void send_usage(sib_task *t, const char *object)
{
    sib_buf out = {0};
    put_frame(t, object, &out);
    sib_buf_addz(&out, ",\"choices\":[]");
    put_end(t, &out);
    if (!out.failed) sib_send_event(t, NULL, sib_buf_view(&out));
    sib_buf_deinit(&out);
}

static void chat_end(sib_task *t)
{
    if (t->include_usage) send_usage(t, "chat.completion.chunk");
    sib_send_event(t, NULL, SIB_STR("[DONE]"));
}

static void chat_failed(sib_task *t, const sib_problem *p)
{
    sib_buf out = {0};
    sib_problem_openai(t, p, &out);
    if (!out.failed) sib_send_event(t, NULL, sib_buf_view(&out));
    sib_buf_deinit(&out);
}

static void send_comment(sib_task *t)
{
    char text[80];
    int done = atomic_load(&t->choices[0].job.progress);
    int n = snprintf(text, sizeof text, ": keepalive %d/%d\n\n", done, t->prompt_tokens);
    (void)sib_http_send(t->conn, (sib_str){text, (size_t)n});
}

static void chat_keepalive(sib_task *t)
{
    if (t->server->o.keepalive == SIB_KEEPALIVE_CHUNK) send_chunk(t, &t->choices[0], "", (sib_str){0}, NULL);
    else send_comment(t);
}

const sib_format sib_format_chat = {chat_whole, chat_begin, chat_content, chat_reasoning, chat_call, chat_end_choice, chat_end, chat_failed, chat_keepalive,
                                    sib_problem_openai, "chatcmpl-", "call_"};

/* ---- raw completions ---------------------------------------------------------------------------------- */

/* {"tokens","token_logprobs","top_logprobs","text_offset"} from chat-shaped entries. */
static void put_legacy_logprobs(const char *entries, int top, sib_buf *out)
{
    json_t *list, *e, *alternative;
    sib_buf text = {0}, tokens = {0}, values = {0}, tops = {0}, offsets = {0};
    size_t i, k, offset = 0;
    sib_buf_addf(&text, "[%s]", entries ? entries : "");
    list = text.failed ? NULL : json_loadb(text.p, text.n, 0, NULL);
    json_array_foreach(list, i, e)
    {
        const json_t *token = json_object_get(e, "token");
        const char *comma = i ? "," : "";
        sib_str z = {json_string_value(token), json_string_length(token)};
        sib_buf_addz(&tokens, comma);
        sib_json_put_str(&tokens, z);
        sib_buf_addz(&values, comma);
        sib_json_put_num(&values, json_number_value(json_object_get(e, "logprob")));
        sib_buf_addf(&offsets, "%s%zu", comma, offset);
        offset += z.n;
        sib_buf_addz(&tops, i ? ",{" : "{");
        json_array_foreach(json_object_get(e, "top_logprobs"), k, alternative)
        {
            const json_t *name = json_object_get(alternative, "token");
            if (k) sib_buf_addc(&tops, ',');
            sib_json_put_str(&tops, (sib_str){json_string_value(name), json_string_length(name)});
            sib_buf_addc(&tops, ':');
            sib_json_put_num(&tops, json_number_value(json_object_get(alternative, "logprob")));
        }
        sib_buf_addc(&tops, '}');
    }
    sib_buf_addf(out, "{\"tokens\":[%s],\"token_logprobs\":[%s],\"top_logprobs\":", tokens.p ? tokens.p : "", values.p ? values.p : "");
    if (top > 0) sib_buf_addf(out, "[%s]", tops.p ? tops.p : "");
    else sib_buf_addz(out, "null");
    sib_buf_addf(out, ",\"text_offset\":[%s]}", offsets.p ? offsets.p : "");
    out->failed |= text.failed || tokens.failed || values.failed || tops.failed || offsets.failed || !list;
    json_decref(list);
    sib_buf_deinit(&text);
    sib_buf_deinit(&tokens);
    sib_buf_deinit(&values);
    sib_buf_deinit(&tops);
    sib_buf_deinit(&offsets);
}

static void put_raw_choice(const sib_choice *c, sib_str text, const char *entries, const char *finish, sib_buf *out)
{
    sib_buf_addf(out, "{\"index\":%d,\"text\":", c->index);
    sib_json_put_str(out, text.n ? text : SIB_STR(""));
    sib_buf_addz(out, ",\"logprobs\":");
    if (!c->task->logprobs || (!entries && !finish)) sib_buf_addz(out, "null");
    else if (c->task->legacy_logprobs) put_legacy_logprobs(entries, c->task->top_logprobs, out);
    else sib_buf_addf(out, "{\"content\":[%s]}", entries ? entries : "");
    if (finish) {
        sib_buf_addf(out, ",\"finish_reason\":\"%s\"", finish);
        put_stop_reason(c, out);
        sib_buf_addc(out, '}');
    } else {
        sib_buf_addz(out, ",\"finish_reason\":null}");
    }
}

static void raw_whole(sib_task *t, sib_buf *out)
{
    put_frame(t, "text_completion", out);
    sib_buf_addz(out, ",\"choices\":[");
    for (int i = 0; i < t->n; i++) {
        const sib_choice *c = &t->choices[i];
        if (i) sib_buf_addc(out, ',');
        put_raw_choice(c, sib_buf_view(&c->content), c->entries.p, sib_finish_openai(c), out);
    }
    sib_buf_addc(out, ']');
    put_end(t, out);
}

static void send_raw(sib_task *t, const sib_choice *c, sib_str text, const char *entries, const char *finish)
{
    sib_buf out = {0};
    put_frame(t, "text_completion", &out);
    sib_buf_addz(&out, ",\"choices\":[");
    put_raw_choice(c, text, entries, finish, &out);
    sib_buf_addc(&out, ']');
    if (finish && t->n_ended == t->n && !t->include_usage) {
        sib_buf_addz(&out, ",\"timings\":");
        sib_put_timings(t, &out);
        sib_buf_addf(&out, ",\"seed\":%llu", (unsigned long long)t->seed);
    }
    sib_buf_addc(&out, '}');
    if (!out.failed) sib_send_event(t, NULL, sib_buf_view(&out));
    sib_buf_deinit(&out);
}

static void raw_begin(sib_task *t)
{
    (void)t;
}

static void raw_content(sib_task *t, sib_choice *c, sib_str text, sib_str logprobs)
{
    sib_buf entries = {0};
    sib_buf_add(&entries, logprobs.n ? logprobs.p : "", logprobs.n);
    if (!entries.failed) send_raw(t, c, text, logprobs.n ? entries.p : NULL, NULL);
    sib_buf_deinit(&entries);
}

static void raw_reasoning(sib_task *t, sib_choice *c, sib_str text)
{
    raw_content(t, c, text, (sib_str){0});
}

static void raw_call(sib_task *t, sib_choice *c, sib_str id, sib_str name, sib_str arguments)
{
    (void)t, (void)c, (void)id, (void)name, (void)arguments; /* raw text has no calls */
}

static void raw_end_choice(sib_task *t, sib_choice *c)
{
    send_raw(t, c, (sib_str){0}, NULL, sib_finish_openai(c));
}

static void raw_end(sib_task *t)
{
    if (t->include_usage) send_usage(t, "text_completion");
    sib_send_event(t, NULL, SIB_STR("[DONE]"));
}

static void raw_keepalive(sib_task *t)
{
    if (t->server->o.keepalive == SIB_KEEPALIVE_CHUNK) send_raw(t, &t->choices[0], (sib_str){0}, NULL, NULL);
    else send_comment(t);
}

const sib_format sib_format_completion = {raw_whole, raw_begin, raw_content, raw_reasoning, raw_call, raw_end_choice, raw_end, chat_failed, raw_keepalive,
                                          sib_problem_openai, "cmpl-", "call_"};

/* server/api_messages.c - Anthropic's /v1/messages and /v1/messages/count_tokens (server_api.md 8). */
#include "server/server_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- requests: into OpenAI's form (prepare thread) ----------------------------------------------------- */

static sib_status no_memory(sib_task *t)
{
    return sib_refuse_as(t, 503, "unavailable_error", NULL, NULL, "out of memory");
}

static const char *type_of(const json_t *block)
{
    const char *z = json_string_value(json_object_get(block, "type"));
    return z ? z : "";
}

/* {"type":"image","source":{"type":"base64","media_type","data"}|{"type":"url","url"}} as a part with a data URL. */
static json_t *picture_part(const json_t *block)
{
    const json_t *source = json_object_get(block, "source");
    const char *data = json_string_value(json_object_get(source, "data")), *url = json_string_value(json_object_get(source, "url"));
    const char *mime = json_string_value(json_object_get(source, "media_type"));
    if (!data) return json_pack("{s:s,s:{s:s}}", "type", "image_url", "image_url", "url", url ? url : "");
    sib_buf text = {0};
    sib_buf_addf(&text, "data:%.64s;base64,", mime ? mime : "");
    sib_buf_addz(&text, data);
    json_t *part = text.failed ? NULL : json_pack("{s:s,s:{s:s%}}", "type", "image_url", "image_url", "url", text.p, text.n);
    sib_buf_deinit(&text);
    return part;
}

static json_t *text_part(const json_t *block)
{
    return json_pack("{s:s,s:O}", "type", "text", "text", json_object_get(block, "text"));
}

static sib_status append(sib_task *t, json_t *list, json_t *item)
{
    return json_array_append_new(list, item) == 0 ? SIB_OK : no_memory(t); /* NULL fails too */
}

/* Text of a tool_result: a string, or its text blocks. */
static json_t *result_text(const json_t *block)
{
    const json_t *content = json_object_get(block, "content");
    size_t i;
    json_t *b;
    sib_buf text = {0};
    if (json_is_string(content)) sib_buf_add(&text, json_string_value(content), json_string_length(content));
    json_array_foreach(json_is_array(content) ? (json_t *)content : NULL, i, b)
    {
        const json_t *z = json_object_get(b, "text");
        if (json_is_string(z)) sib_buf_add(&text, json_string_value(z), json_string_length(z));
    }
    json_t *out = text.failed ? NULL : json_stringn(text.p ? text.p : "", text.n);
    sib_buf_deinit(&text);
    return out;
}

static sib_status add_call(sib_task *t, json_t *calls, const json_t *block, size_t message)
{
    const char *name = json_string_value(json_object_get(block, "name")), *id = json_string_value(json_object_get(block, "id"));
    json_t *input = json_object_get(block, "input");
    if (!name) return sib_refuse(t, "messages", "messages[%zu] has a tool_use without a name", message);
    char *arguments = input ? json_dumps(input, JSON_COMPACT) : sib_strdup("{}");
    json_t *call = arguments ? json_pack("{s:s*,s:s,s:{s:s,s:s}}", "id", id, "type", "function", "function", "name", name, "arguments", arguments) : NULL;
    free(arguments);
    return append(t, calls, call);
}

/* The blocks of one message: tool results become messages of their own, in front of the rest. */
static sib_status take_blocks(sib_task *t, const json_t *blocks, const char *role, json_t *out, json_t *parts, json_t *calls, size_t message)
{
    size_t i;
    json_t *b;
    json_array_foreach((json_t *)blocks, i, b)
    {
        const char *type = type_of(b);
        if (strcmp(type, "text") == 0) {
            if (!json_is_string(json_object_get(b, "text"))) return sib_refuse(t, "messages", "messages[%zu].content[%zu] has no text", message, i);
            SIB_TRY(append(t, parts, text_part(b)));
        } else if (strcmp(type, "image") == 0) {
            SIB_TRY(append(t, parts, picture_part(b)));
        } else if (strcmp(type, "tool_use") == 0 && strcmp(role, "assistant") == 0) {
            SIB_TRY(add_call(t, calls, b, message));
        } else if (strcmp(type, "tool_result") == 0 && strcmp(role, "user") == 0) {
            const char *id = json_string_value(json_object_get(b, "tool_use_id"));
            SIB_TRY(append(t, out, json_pack("{s:s,s:s*,s:o}", "role", "tool", "tool_call_id", id, "content", result_text(b))));
        } else if (strcmp(type, "thinking") != 0 && strcmp(type, "redacted_thinking") != 0) {
            return sib_refuse(t, "messages", "messages[%zu].content[%zu]: blocks of type \"%.40s\" are not supported in %s messages", message, i, type, role);
        }
    }
    return SIB_OK;
}

static sib_status take_message(sib_task *t, const json_t *m, json_t *out, size_t number)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    json_t *content = json_object_get(m, "content");
    if (!role || (strcmp(role, "user") && strcmp(role, "assistant") && strcmp(role, "system"))) return sib_refuse(t, "messages", "messages[%zu].role must be user or assistant", number);
    if (json_is_string(content)) return append(t, out, json_pack("{s:s,s:O}", "role", role, "content", content));
    if (!json_is_array(content)) return sib_refuse(t, "messages", "messages[%zu].content must be a string or a list of blocks", number);
    json_t *parts = json_array(), *calls = json_array();
    sib_status s = parts && calls ? take_blocks(t, content, role, out, parts, calls, number) : no_memory(t);
    if (s == SIB_OK && json_array_size(calls) > 0)
        s = append(t, out, json_pack("{s:s,s:O,s:O}", "role", role, "content", parts, "tool_calls", calls));
    else if (s == SIB_OK && json_array_size(parts) > 0)
        s = append(t, out, json_pack("{s:s,s:O}", "role", role, "content", parts));
    json_decref(parts);
    json_decref(calls);
    return s;
}

/* The system prompt: a string or text blocks. */
static sib_status take_system(sib_task *t, const json_t *system, json_t *out)
{
    sib_buf text = {0};
    size_t i;
    json_t *b;
    if (!system) return SIB_OK;
    if (json_is_string(system)) return append(t, out, json_pack("{s:s,s:O}", "role", "system", "content", system));
    if (!json_is_array(system)) return sib_refuse(t, "system", "`system` must be a string or a list of text blocks");
    json_array_foreach((json_t *)system, i, b)
    {
        const json_t *z = json_object_get(b, "text");
        if (!json_is_string(z)) {
            sib_buf_deinit(&text);
            return sib_refuse(t, "system", "`system` must be a string or a list of text blocks");
        }
        if (i) sib_buf_addc(&text, '\n');
        sib_buf_add(&text, json_string_value(z), json_string_length(z));
    }
    json_t *m = text.failed || text.n == 0 ? NULL : json_pack("{s:s,s:s%}", "role", "system", "content", text.p, text.n);
    bool failed = text.failed, empty = text.n == 0;
    sib_buf_deinit(&text);
    return failed ? no_memory(t) : empty ? SIB_OK : append(t, out, m);
}

/* {name, description, input_schema}; server tools, which have no schema, are left out. */
static sib_status take_tools(sib_task *t, const json_t *o, json_t *out)
{
    const json_t *tools = sib_json_get(o, "tools");
    size_t i;
    json_t *tool;
    if (tools && !json_is_array(tools)) return sib_refuse(t, "tools", "`tools` must be a list");
    json_array_foreach((json_t *)tools, i, tool)
    {
        const char *name = json_string_value(json_object_get(tool, "name"));
        json_t *schema = json_object_get(tool, "input_schema"), *description = json_object_get(tool, "description");
        if (!schema) continue;
        if (!name) return sib_refuse(t, "tools", "tools[%zu] has no name", i);
        SIB_TRY(append(t, out, json_pack("{s:s,s:{s:s,s:O*,s:O}}", "type", "function", "function", "name", name, "description", description, "parameters", schema)));
    }
    return SIB_OK;
}

static sib_status take_choice(sib_task *t, const json_t *o, sib_chat_input *in)
{
    const json_t *choice = sib_json_get(o, "tool_choice");
    const char *type = type_of(choice), *name = json_string_value(json_object_get(choice, "name"));
    size_t i;
    json_t *tool;
    if (!choice) return SIB_OK;
    SIB_TRY(sib_take_bool(t, choice, "disable_parallel_tool_use", &t->one_call));
    if (strcmp(type, "auto") == 0) return SIB_OK;
    if (strcmp(type, "none") == 0) {
        in->tools = NULL;
        return SIB_OK;
    }
    if (!in->tools) return sib_refuse(t, "tool_choice", "`tool_choice` asks for a call, and there are no tools");
    if (strcmp(type, "any") == 0) {
        in->force_name = "";
        return SIB_OK;
    }
    if (strcmp(type, "tool") != 0 || !name) return sib_refuse(t, "tool_choice", "`tool_choice` must be of type auto, any, tool or none");
    json_array_foreach(in->tools, i, tool)
    {
        if (strcmp(json_string_value(json_object_get(json_object_get(tool, "function"), "name")), name) == 0) in->force_name = name;
    }
    return in->force_name ? SIB_OK : sib_refuse(t, "tool_choice", "`tool_choice` names a tool that is not among the tools");
}

/* Converted messages and tools live in t->state. */
static sib_status convert(sib_task *t, sib_chat_input *in)
{
    const json_t *o = t->request, *messages = json_object_get(o, "messages"), *thinking = sib_json_get(o, "thinking");
    json_t *list = json_array(), *tools = json_array();
    size_t i;
    json_t *m;
    t->state = json_pack("{s:o,s:o}", "messages", list, "tools", tools);
    if (!t->state) return no_memory(t);
    SIB_TRY(take_system(t, sib_json_get(o, "system"), list));
    if (!json_is_array(messages)) return sib_refuse(t, "messages", "`messages` must be a list");
    if (json_array_size(messages) == 0) return sib_refuse(t, "messages", "`messages` is empty");
    json_array_foreach((json_t *)messages, i, m) SIB_TRY(take_message(t, m, list, i));
    SIB_TRY(take_tools(t, o, tools));
    in->messages = list;
    in->tools = json_array_size(tools) > 0 ? tools : NULL;
    const json_t *last = json_array_get(list, json_array_size(list) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    /* A last message of the assistant is the beginning of the answer. */
    in->continue_final = role && strcmp(role, "assistant") == 0 && json_is_string(json_object_get(last, "content"));
    if (thinking && json_object_set_new(in->kwargs, "enable_thinking", json_boolean(strcmp(type_of(thinking), "disabled") != 0)) != 0) return no_memory(t);
    return take_choice(t, o, in);
}

static sib_status prepare(sib_task *t, bool count)
{
    static const char *const own[] = {"messages", "system", "stop_sequences", "tools", "tool_choice", "thinking", "container", "mcp_servers", "context_management", "anthropic_version", "betas",
                                      "output_config", "inference_geo", NULL};
    const char *const *const lists[] = {own, sib_sampling_fields, sib_ignored_fields, NULL};
    SIB_TRY(sib_parse_body(t));
    SIB_TRY(sib_check_fields(t, t->request, lists));
    if (sib_json_get(t->request, "mcp_servers") && json_array_size(sib_json_get(t->request, "mcp_servers")) > 0) return sib_refuse(t, "mcp_servers", "`mcp_servers` is not supported by this server");
    if (sib_json_get(t->request, "output_config")) return sib_refuse(t, "output_config", "`output_config` is not supported by this server");
    SIB_TRY(sib_take_model(t, t->request));
    if (!count) SIB_TRY(sib_take_sampling(t, t->request));
    if (!count) SIB_TRY(sib_take_stops(t, sib_json_get(t->request, "stop_sequences"), "stop_sequences"));
    sib_chat_input in = {.kwargs = json_object()};
    sib_status s = in.kwargs ? convert(t, &in) : no_memory(t);
    if (s == SIB_OK) s = sib_make_prompt(t, &in);
    json_decref(in.kwargs);
    return s;
}

sib_status sib_prepare_messages(sib_task *t)
{
    SIB_TRY(prepare(t, false));
    return sib_task_submit(t);
}

sib_status sib_prepare_count(sib_task *t)
{
    char text[64];
    SIB_TRY(prepare(t, true));
    int n = snprintf(text, sizeof text, "{\"input_tokens\":%zu}", t->ids.n);
    return sib_task_post(t, SIB_EVENT_REPLY, 0, 200, 0, (sib_str){text, (size_t)n}, (sib_str){0}) ? SIB_OK : no_memory(t);
}

/* ---- answers (loop thread) ----------------------------------------------------------------------------------- */

static void put_problem(const sib_task *t, const sib_problem *p, sib_buf *out)
{
    static const struct {
        int status;
        const char *type;
    } types[] = {{400, "invalid_request_error"}, {401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"}, {405, "invalid_request_error"}, {413, "request_too_large"},
                 {429, "overloaded_error"}, {503, "overloaded_error"}};
    const char *type = "api_error";
    for (size_t i = 0; i < SIB_COUNT(types); i++)
        if (types[i].status == p->status) type = types[i].type;
    sib_buf_addf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
    sib_json_put_str(out, sib_str_of(p->message));
    sib_buf_addf(out, "},\"request_id\":\"%s\"}", t ? t->id : "req_none");
}

static const char *stop_reason(const sib_choice *c)
{
    if (c->report.finish == SIB_FINISH_LENGTH) return "max_tokens";
    if (c->n_have_calls > 0) return "tool_use";
    return c->stop_index >= 0 ? "stop_sequence" : "end_turn";
}

static void put_stop(const sib_choice *c, sib_buf *out)
{
    sib_buf_addf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason(c));
    if (c->stop_index >= 0) sib_json_put_str(out, c->task->stops[c->stop_index]);
    else sib_buf_addz(out, "null");
}

static void put_usage(const sib_task *t, int output_tokens, sib_buf *out)
{
    sib_buf_addf(out, "\"usage\":{\"input_tokens\":%d,\"output_tokens\":%d,\"cache_read_input_tokens\":%d,\"cache_creation_input_tokens\":0}", t->prompt_tokens - t->cached_tokens, output_tokens,
                 t->cached_tokens);
}

static void put_head(const sib_task *t, sib_buf *out)
{
    sib_buf_addf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", t->id);
    sib_json_put_str(out, sib_str_of(t->server->model_name));
}

static void whole(sib_task *t, sib_buf *out)
{
    const sib_choice *c = &t->choices[0];
    put_head(t, out);
    sib_buf_addz(out, ",\"content\":[");
    bool any = false;
    if (c->reasoning.n) {
        sib_buf_addz(out, "{\"type\":\"thinking\",\"thinking\":");
        sib_put_text(out, &c->reasoning);
        sib_buf_addz(out, ",\"signature\":\"\"}");
        any = true;
    }
    if (c->content.n || c->n_have_calls == 0) {
        sib_buf_addf(out, "%s{\"type\":\"text\",\"text\":", any ? "," : "");
        sib_put_text(out, &c->content);
        sib_buf_addc(out, '}');
        any = true;
    }
    for (int i = 0; i < c->n_have_calls; i++) {
        json_t *input = json_loadb(c->calls[i].arguments.p, c->calls[i].arguments.n, 0, NULL);
        sib_buf_addf(out, "%s{\"type\":\"tool_use\",\"id\":", any || i ? "," : "");
        sib_put_text(out, &c->calls[i].id);
        sib_buf_addz(out, ",\"name\":");
        sib_put_text(out, &c->calls[i].name);
        sib_buf_addf(out, ",\"input\":%s}", json_is_object(input) ? c->calls[i].arguments.p : "{}");
        json_decref(input);
    }
    sib_buf_addz(out, "],");
    put_stop(c, out);
    sib_buf_addc(out, ',');
    put_usage(t, sib_task_completion_tokens(t), out);
    sib_buf_addc(out, '}');
}

/* The open block of the stream: at most one, numbered in order. */
typedef struct stream {
    int index; /* of the open block, or of the next one */
    char open; /* 't'ext, 'r'easoning, 0: none          */
} stream;

static stream *stream_of(sib_task *t)
{
    sib_choice *c = &t->choices[0];
    if (!c->format) c->format = calloc(1, sizeof(stream));
    return c->format;
}

static void send(sib_task *t, const char *name, sib_buf *out)
{
    if (!out->failed) sib_send_event(t, name, sib_buf_view(out));
    sib_buf_deinit(out);
}

static void close_block(sib_task *t, stream *s)
{
    sib_buf out = {0};
    if (!s->open) return;
    if (s->open == 'r') {
        sib_buf_addf(&out, "{\"type\":\"content_block_delta\",\"index\":%d,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"\"}}", s->index);
        send(t, "content_block_delta", &out);
        out = (sib_buf){0};
    }
    sib_buf_addf(&out, "{\"type\":\"content_block_stop\",\"index\":%d}", s->index);
    send(t, "content_block_stop", &out);
    s->index++;
    s->open = 0;
}

static void open_block(sib_task *t, stream *s, char kind)
{
    sib_buf out = {0};
    if (s->open == kind) return;
    close_block(t, s);
    s->open = kind;
    sib_buf_addf(&out, "{\"type\":\"content_block_start\",\"index\":%d,\"content_block\":%s}", s->index,
                 kind == 'r' ? "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}" : "{\"type\":\"text\",\"text\":\"\"}");
    send(t, "content_block_start", &out);
}

static void send_delta(sib_task *t, const stream *s, const char *type, const char *key, sib_str text)
{
    sib_buf out = {0};
    sib_buf_addf(&out, "{\"type\":\"content_block_delta\",\"index\":%d,\"delta\":{\"type\":\"%s\",\"%s\":", s->index, type, key);
    sib_json_put_str(&out, text);
    sib_buf_addz(&out, "}}");
    send(t, "content_block_delta", &out);
}

static void begin(sib_task *t)
{
    sib_buf out = {0};
    sib_buf_addz(&out, "{\"type\":\"message_start\",\"message\":");
    put_head(t, &out);
    sib_buf_addz(&out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
    put_usage(t, 0, &out);
    sib_buf_addz(&out, "}}");
    send(t, "message_start", &out);
}

static void content(sib_task *t, sib_choice *c, sib_str text, sib_str logprobs)
{
    stream *s = stream_of(t);
    (void)c, (void)logprobs;
    if (!s || text.n == 0) return;
    open_block(t, s, 't');
    send_delta(t, s, "text_delta", "text", text);
}

static void reasoning(sib_task *t, sib_choice *c, sib_str text)
{
    stream *s = stream_of(t);
    (void)c;
    if (!s) return;
    open_block(t, s, 'r');
    send_delta(t, s, "thinking_delta", "thinking", text);
}

static void call(sib_task *t, sib_choice *c, sib_str id, sib_str name, sib_str arguments)
{
    stream *s = stream_of(t);
    sib_buf out = {0};
    (void)c;
    if (!s) return;
    close_block(t, s);
    sib_buf_addf(&out, "{\"type\":\"content_block_start\",\"index\":%d,\"content_block\":{\"type\":\"tool_use\",\"id\":", s->index);
    sib_json_put_str(&out, id);
    sib_buf_addz(&out, ",\"name\":");
    sib_json_put_str(&out, name);
    sib_buf_addz(&out, ",\"input\":{}}}");
    send(t, "content_block_start", &out);
    send_delta(t, s, "input_json_delta", "partial_json", arguments);
    s->open = 't';
    close_block(t, s);
}

static void end_choice(sib_task *t, sib_choice *c)
{
    stream *s = stream_of(t);
    sib_buf out = {0};
    if (!s) return;
    if (s->index == 0 && !s->open) open_block(t, s, 't'); /* an empty answer is an empty block */
    close_block(t, s);
    sib_buf_addz(&out, "{\"type\":\"message_delta\",\"delta\":{");
    put_stop(c, &out);
    sib_buf_addz(&out, "},");
    put_usage(t, sib_task_completion_tokens(t), &out);
    sib_buf_addc(&out, '}');
    send(t, "message_delta", &out);
}

static void end(sib_task *t)
{
    sib_send_event(t, "message_stop", SIB_STR("{\"type\":\"message_stop\"}"));
}

static void failed(sib_task *t, const sib_problem *p)
{
    sib_buf out = {0};
    put_problem(t, p, &out);
    send(t, "error", &out);
}

static void keepalive(sib_task *t)
{
    sib_send_event(t, "ping", SIB_STR("{\"type\":\"ping\"}"));
}

const sib_format sib_format_messages = {whole, begin, content, reasoning, call, end_choice, end, failed, keepalive, put_problem, "msg_", "toolu_"};

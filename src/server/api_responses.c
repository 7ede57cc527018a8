/* server/api_responses.c - OpenAI's /v1/responses, and the answers it keeps for previous_response_id (server_api.md 7).
 *
 * A kept answer is the whole conversation up to it, in the form of chat messages; the newest 32 MiB of them stay for an hour. */
#include "server/server_internal.h"

#include <stdlib.h>
#include <string.h>

#define KEEP_BYTES   ((size_t)32 << 20)
#define KEEP_SECONDS 3600.0

/* ---- the store ---------------------------------------------------------------------------------------------- */

struct sib_stored {
    sib_stored *next;
    char id[64];
    char *conversation, *answer; /* JSON: list of messages, the response */
    size_t bytes;
    double kept_s;
};

static void stored_free(sib_stored *e)
{
    free(e->conversation);
    free(e->answer);
    free(e);
}

void sib_stored_free_all(sib_server *s)
{
    for (sib_stored *e = s->stored, *next; e; e = next) {
        next = e->next;
        stored_free(e);
    }
    s->stored = NULL;
}

/* Drops what is too old or too much; s->lock is held. */
static void trim(sib_server *s)
{
    double now = sib_http_now();
    size_t bytes = 0;
    for (sib_stored **at = &s->stored; *at;) {
        sib_stored *e = *at;
        bytes += e->bytes;
        if (bytes <= KEEP_BYTES && now - e->kept_s < KEEP_SECONDS) {
            at = &e->next;
            continue;
        }
        bytes -= e->bytes;
        *at = e->next;
        stored_free(e);
    }
}

/* Takes both texts. */
static void keep(sib_server *s, const char *id, char *conversation, char *answer)
{
    sib_stored *e = calloc(1, sizeof *e);
    if (!e || !conversation || !answer) {
        free(e);
        free(conversation);
        free(answer);
        return;
    }
    memcpy(e->id, id, strlen(id) < sizeof e->id ? strlen(id) : sizeof e->id - 1);
    e->conversation = conversation;
    e->answer = answer;
    e->bytes = strlen(conversation) + strlen(answer) + sizeof *e;
    e->kept_s = sib_http_now();
    pthread_mutex_lock(&s->lock);
    e->next = s->stored;
    s->stored = e;
    trim(s);
    pthread_mutex_unlock(&s->lock);
}

int sib_stored_reply(sib_server *s, sib_str id, bool drop, sib_buf *out)
{
    int status = 404;
    pthread_mutex_lock(&s->lock);
    trim(s);
    for (sib_stored **at = &s->stored; *at; at = &(*at)->next) {
        sib_stored *e = *at;
        if (!sib_str_is(id, e->id)) continue;
        status = 200;
        if (drop) {
            sib_buf_addf(out, "{\"id\":\"%s\",\"object\":\"response\",\"deleted\":true}", e->id);
            *at = e->next;
            stored_free(e);
        } else {
            sib_buf_addz(out, e->answer);
        }
        break;
    }
    pthread_mutex_unlock(&s->lock);
    if (status == 404) sib_buf_addz(out, "{\"error\":{\"message\":\"there is no stored response with this id\",\"type\":\"not_found_error\",\"param\":null,\"code\":null}}");
    return status;
}

/* A copy of the conversation that ended with the answer `id`, or NULL. */
static json_t *recall(sib_server *s, const char *id)
{
    json_t *list = NULL;
    pthread_mutex_lock(&s->lock);
    trim(s);
    for (const sib_stored *e = s->stored; e && !list; e = e->next)
        if (strcmp(e->id, id) == 0) list = json_loads(e->conversation, 0, NULL);
    pthread_mutex_unlock(&s->lock);
    return list;
}

/* ---- requests: into chat messages (prepare thread) --------------------------------------------------------------- */

static sib_status no_memory(sib_task *t)
{
    return sib_refuse_as(t, 503, "unavailable_error", NULL, NULL, "out of memory");
}

static sib_status append(sib_task *t, json_t *list, json_t *item)
{
    return json_array_append_new(list, item) == 0 ? SIB_OK : no_memory(t);
}

/* Calls that follow each other belong to one message of the assistant. */
static sib_status add_call(sib_task *t, json_t *list, const json_t *item)
{
    json_t *last = json_array_get(list, json_array_size(list) - 1), *calls = json_object_get(last, "tool_calls");
    json_t *call = json_pack("{s:O*,s:s,s:{s:O*,s:O*}}", "id", json_object_get(item, "call_id"), "type", "function", "function", "name", json_object_get(item, "name"), "arguments",
                             json_object_get(item, "arguments"));
    if (!call) return no_memory(t);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (calls) return append(t, calls, call);
    if (role && strcmp(role, "assistant") == 0) return json_object_set_new(last, "tool_calls", json_pack("[o]", call)) == 0 ? SIB_OK : no_memory(t);
    return append(t, list, json_pack("{s:s,s:s,s:[o]}", "role", "assistant", "content", "", "tool_calls", call));
}

static sib_status add_output(sib_task *t, json_t *list, const json_t *item)
{
    json_t *output = json_object_get(item, "output");
    char *z = json_is_string(output) ? NULL : json_dumps(output, JSON_COMPACT | JSON_ENCODE_ANY);
    json_t *content = z ? json_string(z) : json_incref(output);
    free(z);
    return append(t, list, json_pack("{s:s,s:O*,s:o}", "role", "tool", "tool_call_id", json_object_get(item, "call_id"), "content", content));
}

static sib_status take_input(sib_task *t, const json_t *input, json_t *list)
{
    size_t i;
    json_t *item;
    if (json_is_string(input)) return append(t, list, json_pack("{s:s,s:O}", "role", "user", "content", input));
    if (!json_is_array(input)) return sib_refuse(t, "input", "`input` must be a string or a list of items");
    json_array_foreach((json_t *)input, i, item)
    {
        const char *type = json_string_value(json_object_get(item, "type"));
        if (!type || strcmp(type, "message") == 0) {
            json_t *role = json_object_get(item, "role"), *content = json_object_get(item, "content");
            if (!json_is_string(role) || !content) return sib_refuse(t, "input", "input[%zu] has no role or no content", i);
            SIB_TRY(append(t, list, json_pack("{s:O,s:O}", "role", role, "content", content)));
        } else if (strcmp(type, "function_call") == 0) {
            SIB_TRY(add_call(t, list, item));
        } else if (strcmp(type, "function_call_output") == 0) {
            SIB_TRY(add_output(t, list, item));
        } else if (strcmp(type, "reasoning") != 0) {
            return sib_refuse(t, "input", "input[%zu]: items of type \"%.40s\" are not supported", i, type);
        }
    }
    return SIB_OK;
}

/* Flat {type:"function",name,description,parameters}; tools that run on OpenAI's servers are left out. */
static sib_status take_tools(sib_task *t, json_t *out, sib_chat_input *in)
{
    const json_t *tools = sib_json_get(t->request, "tools"), *choice = sib_json_get(t->request, "tool_choice");
    bool parallel = true;
    size_t i;
    json_t *tool;
    if (tools && !json_is_array(tools)) return sib_refuse(t, "tools", "`tools` must be a list");
    json_array_foreach((json_t *)tools, i, tool)
    {
        const char *type = json_string_value(json_object_get(tool, "type"));
        json_t *name = json_object_get(tool, "name");
        if (!type || strcmp(type, "function") != 0) continue;
        if (!json_is_string(name)) return sib_refuse(t, "tools", "tools[%zu] has no name", i);
        SIB_TRY(append(t, out, json_pack("{s:s,s:{s:O,s:O*,s:O*}}", "type", "function", "function", "name", name, "description", json_object_get(tool, "description"), "parameters",
                                         sib_json_get(tool, "parameters"))));
    }
    SIB_TRY(sib_take_bool(t, t->request, "parallel_tool_calls", &parallel));
    t->one_call = !parallel;
    in->tools = json_array_size(out) > 0 ? out : NULL;
    const char *word = json_string_value(choice), *name = json_string_value(json_object_get(choice, "name"));
    if (!choice || (word && strcmp(word, "auto") == 0)) return SIB_OK;
    if (word && strcmp(word, "none") == 0) {
        in->tools = NULL;
        return SIB_OK;
    }
    if (!in->tools) return sib_refuse(t, "tool_choice", "`tool_choice` asks for a call, and there are no tools");
    if (word ? strcmp(word, "required") != 0 : !name) return sib_refuse(t, "tool_choice", "`tool_choice` must be none, auto, required or a function");
    in->force_name = word ? "" : name;
    return SIB_OK;
}

static sib_status take_text(sib_task *t)
{
    const json_t *format = sib_json_get(sib_json_get(t->request, "text"), "format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (format && !(type && strcmp(type, "text") == 0)) return sib_refuse_as(t, 400, "invalid_request_error", "not_supported", "text", "`text.format` can only be of type text");
    return SIB_OK;
}

/* t->state: {"messages", "tools", "conversation": what is kept, "previous", "store"} */
static sib_status convert(sib_task *t, sib_chat_input *in)
{
    const char *previous = NULL, *instructions = NULL, *effort = NULL;
    json_t *tools = json_array(), *list = NULL;
    bool store = true;
    SIB_TRY(sib_take_str(t, t->request, "previous_response_id", &previous));
    SIB_TRY(sib_take_str(t, t->request, "instructions", &instructions));
    SIB_TRY(sib_take_bool(t, t->request, "store", &store));
    list = previous ? recall(t->server, previous) : json_array();
    t->state = json_pack("{s:o*,s:o*,s:s*,s:b}", "conversation", list, "tools", tools, "previous", previous, "store", store);
    if (previous && !list) return sib_refuse_as(t, 404, "not_found_error", NULL, "previous_response_id", "there is no stored response with the id of `previous_response_id`");
    if (!t->state || !list || !tools) return no_memory(t);
    SIB_TRY(take_input(t, sib_json_get(t->request, "input"), list));
    SIB_TRY(take_tools(t, tools, in));
    SIB_TRY(take_text(t));
    SIB_TRY(sib_take_str(t, sib_json_get(t->request, "reasoning"), "effort", &effort));
    if (effort) SIB_TRY(sib_take_effort(t, in->kwargs, effort, "reasoning"));
    /* Instructions are of this request alone; pictures are taken out of a copy, so that the conversation keeps them. */
    json_t *messages = store || instructions ? json_deep_copy(list) : json_incref(list);
    if (json_object_set_new(t->state, "messages", messages) != 0) return no_memory(t);
    if (instructions && json_array_insert_new(messages, 0, json_pack("{s:s,s:s}", "role", "system", "content", instructions)) != 0) return no_memory(t);
    in->messages = messages;
    return SIB_OK;
}

sib_status sib_prepare_responses(sib_task *t)
{
    static const char *const own[] = {"input", "instructions", "max_output_tokens", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "previous_response_id", "text", "truncation",
                                      "include", "background", "conversation", NULL};
    const char *const *const lists[] = {own, sib_sampling_fields, sib_ignored_fields, NULL};
    bool background = false;
    SIB_TRY(sib_parse_body(t));
    SIB_TRY(sib_check_fields(t, t->request, lists));
    SIB_TRY(sib_take_model(t, t->request));
    SIB_TRY(sib_take_bool(t, t->request, "background", &background));
    if (background) return sib_refuse(t, "background", "`background` is not supported by this server");
    if (sib_json_get(t->request, "conversation")) return sib_refuse(t, "conversation", "`conversation` is not supported by this server");
    const char *truncation = NULL;
    SIB_TRY(sib_take_str(t, t->request, "truncation", &truncation));
    if (truncation && strcmp(truncation, "disabled") != 0) return sib_refuse(t, "truncation", "`truncation` can only be \"disabled\"");
    SIB_TRY(sib_take_sampling(t, t->request));
    sib_chat_input in = {.kwargs = json_object()};
    sib_status s = in.kwargs ? convert(t, &in) : no_memory(t);
    if (s == SIB_OK) s = sib_make_prompt(t, &in);
    json_decref(in.kwargs);
    return s == SIB_OK ? sib_task_submit(t) : s;
}

/* ---- answers (loop thread) -------------------------------------------------------------------------------------------- */

/* Where the stream is; item ids are made from the answer's. */
typedef struct stream {
    int index; /* of the open item, or of the next one */
    char open; /* 'm'essage, 'r'easoning, 0: none */
} stream;

static const char *suffix(const sib_task *t)
{
    return t->id + strlen("resp_");
}

static void put_message(const sib_task *t, int index, const char *status, const sib_buf *text, sib_buf *out)
{
    sib_buf_addf(out, "{\"id\":\"msg_%s%d\",\"type\":\"message\",\"status\":\"%s\",\"role\":\"assistant\",\"content\":[", suffix(t), index, status);
    if (text) {
        sib_buf_addz(out, "{\"type\":\"output_text\",\"text\":");
        sib_put_text(out, text);
        sib_buf_addz(out, ",\"annotations\":[],\"logprobs\":[]}");
    }
    sib_buf_addz(out, "]}");
}

static void put_thought(const sib_task *t, int index, const sib_buf *text, sib_buf *out)
{
    sib_buf_addf(out, "{\"id\":\"rs_%s%d\",\"type\":\"reasoning\",\"summary\":[", suffix(t), index);
    if (text) {
        sib_buf_addz(out, "{\"type\":\"summary_text\",\"text\":");
        sib_put_text(out, text);
        sib_buf_addc(out, '}');
    }
    sib_buf_addz(out, "]}");
}

static void put_call(const sib_task *t, int index, const sib_call *call, bool done, sib_buf *out)
{
    sib_buf_addf(out, "{\"id\":\"fc_%s%d\",\"type\":\"function_call\",\"call_id\":", suffix(t), index);
    sib_put_text(out, &call->id);
    sib_buf_addz(out, ",\"name\":");
    sib_put_text(out, &call->name);
    sib_buf_addz(out, ",\"arguments\":");
    if (done) sib_put_text(out, &call->arguments);
    else sib_buf_addz(out, "\"\"");
    sib_buf_addf(out, ",\"status\":\"%s\"}", done ? "completed" : "in_progress");
}

static void put_output(const sib_task *t, sib_buf *out)
{
    const sib_choice *c = &t->choices[0];
    int n = 0;
    if (c->reasoning.n) put_thought(t, n++, &c->reasoning, out);
    if (c->content.n || c->n_have_calls == 0) {
        if (n) sib_buf_addc(out, ',');
        put_message(t, n++, c->report.finish == SIB_FINISH_LENGTH ? "incomplete" : "completed", &c->content, out);
    }
    for (int i = 0; i < c->n_have_calls; i++) {
        if (n) sib_buf_addc(out, ',');
        put_call(t, n++, &c->calls[i], true, out);
    }
}

static void put_echo(const sib_task *t, const char *key, const char *fallback, sib_buf *out)
{
    json_t *v = json_object_get(t->request, key);
    char *z = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    sib_buf_addf(out, ",\"%s\":", key);
    sib_buf_addz(out, z ? z : fallback);
    free(z);
}

/* The response object; status "in_progress" has no output yet. */
static void put_response(const sib_task *t, const char *status, const sib_problem *p, sib_buf *out)
{
    bool done = strcmp(status, "in_progress") != 0;
    const char *previous = json_string_value(json_object_get(t->state, "previous"));
    sib_buf_addf(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"error\":", t->id, (long long)t->created, status);
    if (p) {
        sib_buf_addf(out, "{\"code\":\"%s\",\"message\":", p->type);
        sib_json_put_str(out, sib_str_of(p->message));
        sib_buf_addc(out, '}');
    } else {
        sib_buf_addz(out, "null");
    }
    sib_buf_addf(out, ",\"incomplete_details\":%s,\"model\":", strcmp(status, "incomplete") ? "null" : "{\"reason\":\"max_output_tokens\"}");
    sib_json_put_str(out, sib_str_of(t->server->model_name));
    sib_buf_addz(out, ",\"output\":[");
    if (done && !p) put_output(t, out);
    sib_buf_addz(out, "],\"previous_response_id\":");
    if (previous) sib_json_put_str(out, sib_str_of(previous));
    else sib_buf_addz(out, "null");
    put_echo(t, "instructions", "null", out);
    put_echo(t, "metadata", "{}", out);
    put_echo(t, "tools", "[]", out);
    put_echo(t, "tool_choice", "\"auto\"", out);
    put_echo(t, "max_output_tokens", "null", out);
    put_echo(t, "parallel_tool_calls", "true", out);
    sib_buf_addf(out, ",\"store\":%s,\"temperature\":", json_is_true(json_object_get(t->state, "store")) ? "true" : "false");
    sib_json_put_num(out, t->temperature);
    sib_buf_addz(out, ",\"top_p\":");
    sib_json_put_num(out, t->top_p);
    sib_buf_addz(out, ",\"text\":{\"format\":{\"type\":\"text\"}},\"truncation\":\"disabled\",\"usage\":");
    if (done && !p) {
        const sib_choice *c = &t->choices[0];
        sib_buf_addf(out, "{\"input_tokens\":%d,\"input_tokens_details\":{\"cached_tokens\":%d},\"output_tokens\":%d,\"output_tokens_details\":{\"reasoning_tokens\":%d},\"total_tokens\":%d}",
                     t->prompt_tokens, t->cached_tokens, c->report.generated_tokens, c->n_reasoning, t->prompt_tokens + c->report.generated_tokens);
        sib_buf_addz(out, ",\"timings\":");
        sib_put_timings(t, out);
    } else {
        sib_buf_addz(out, "null");
    }
    sib_buf_addc(out, '}');
}

static const char *final_status(const sib_task *t)
{
    return t->choices[0].report.finish == SIB_FINISH_LENGTH ? "incomplete" : "completed";
}

static void remember(sib_task *t, const sib_buf *answer)
{
    json_t *list = json_object_get(t->state, "conversation"), *m;
    if (!json_is_true(json_object_get(t->state, "store")) || answer->failed) return;
    m = sib_choice_message(&t->choices[0]);
    if (m) json_object_del(m, "reasoning_content"); /* dropped when a conversation goes on */
    if (!m || json_array_append_new(list, m) != 0) return;
    keep(t->server, t->id, json_dumps(list, JSON_COMPACT), sib_strdup(answer->p));
}

static void whole(sib_task *t, sib_buf *out)
{
    put_response(t, final_status(t), NULL, out);
    remember(t, out);
}

/* {"type":TYPE,"sequence_number":n, and what is in `rest` */
static void send(sib_task *t, const char *type, sib_buf *rest)
{
    sib_buf out = {0};
    sib_buf_addf(&out, "{\"type\":\"%s\",\"sequence_number\":%d", type, t->sequence++);
    if (rest->n) {
        sib_buf_addc(&out, ',');
        sib_buf_add(&out, rest->p, rest->n);
    }
    sib_buf_addc(&out, '}');
    if (!out.failed && !rest->failed) sib_send_event(t, type, sib_buf_view(&out));
    sib_buf_deinit(&out);
    sib_buf_deinit(rest);
    *rest = (sib_buf){0};
}

static stream *stream_of(sib_task *t)
{
    sib_choice *c = &t->choices[0];
    if (!c->format) c->format = calloc(1, sizeof(stream));
    return c->format;
}

static void begin(sib_task *t)
{
    static const char *const types[] = {"response.created", "response.in_progress"};
    for (size_t i = 0; i < SIB_COUNT(types); i++) {
        sib_buf out = {0};
        sib_buf_addz(&out, "\"response\":");
        put_response(t, "in_progress", NULL, &out);
        send(t, types[i], &out);
    }
}

static void put_place(const sib_task *t, const stream *s, sib_buf *out)
{
    sib_buf_addf(out, "\"item_id\":\"%s_%s%d\",\"output_index\":%d,\"%s\":0", s->open == 'r' ? "rs" : "msg", suffix(t), s->index, s->index, s->open == 'r' ? "summary_index" : "content_index");
}

static void put_item(const sib_task *t, const stream *s, bool done, sib_buf *out)
{
    const sib_choice *c = &t->choices[0];
    sib_buf_addf(out, "\"output_index\":%d,\"item\":", s->index);
    if (s->open == 'r') put_thought(t, s->index, done ? &c->reasoning : NULL, out);
    else put_message(t, s->index, done ? "completed" : "in_progress", done ? &c->content : NULL, out);
}

static void close_item(sib_task *t, stream *s)
{
    sib_buf out = {0};
    const sib_choice *c = &t->choices[0];
    bool thought = s->open == 'r';
    const sib_buf *text = thought ? &c->reasoning : &c->content;
    if (!s->open) return;
    put_place(t, s, &out);
    sib_buf_addz(&out, ",\"text\":");
    sib_put_text(&out, text);
    if (!thought) sib_buf_addz(&out, ",\"logprobs\":[]");
    send(t, thought ? "response.reasoning_summary_text.done" : "response.output_text.done", &out);
    put_place(t, s, &out);
    sib_buf_addf(&out, ",\"part\":{\"type\":\"%s\",\"text\":", thought ? "summary_text" : "output_text");
    sib_put_text(&out, text);
    sib_buf_addz(&out, thought ? "}" : ",\"annotations\":[],\"logprobs\":[]}");
    send(t, thought ? "response.reasoning_summary_part.done" : "response.content_part.done", &out);
    put_item(t, s, true, &out);
    send(t, "response.output_item.done", &out);
    s->index++;
    s->open = 0;
}

static void open_item(sib_task *t, stream *s, char kind)
{
    sib_buf out = {0};
    if (s->open == kind) return;
    close_item(t, s);
    s->open = kind;
    put_item(t, s, false, &out);
    send(t, "response.output_item.added", &out);
    put_place(t, s, &out);
    sib_buf_addz(&out, kind == 'r' ? ",\"part\":{\"type\":\"summary_text\",\"text\":\"\"}" : ",\"part\":{\"type\":\"output_text\",\"text\":\"\",\"annotations\":[],\"logprobs\":[]}");
    send(t, kind == 'r' ? "response.reasoning_summary_part.added" : "response.content_part.added", &out);
}

static void send_delta(sib_task *t, char kind, sib_str text)
{
    stream *s = stream_of(t);
    sib_buf out = {0};
    if (!s || text.n == 0) return;
    open_item(t, s, kind);
    put_place(t, s, &out);
    sib_buf_addz(&out, ",\"delta\":");
    sib_json_put_str(&out, text);
    if (kind != 'r') sib_buf_addz(&out, ",\"logprobs\":[]");
    send(t, kind == 'r' ? "response.reasoning_summary_text.delta" : "response.output_text.delta", &out);
}

static void content(sib_task *t, sib_choice *c, sib_str text, sib_str logprobs)
{
    (void)c, (void)logprobs;
    send_delta(t, 'm', text);
}

static void reasoning(sib_task *t, sib_choice *c, sib_str text)
{
    (void)c;
    send_delta(t, 'r', text);
}

static void call(sib_task *t, sib_choice *c, sib_str id, sib_str name, sib_str arguments)
{
    stream *s = stream_of(t);
    sib_buf out = {0};
    const sib_call *last = &c->calls[c->n_have_calls - 1];
    (void)id, (void)name;
    if (!s) return;
    close_item(t, s);
    sib_buf_addf(&out, "\"output_index\":%d,\"item\":", s->index);
    put_call(t, s->index, last, false, &out);
    send(t, "response.output_item.added", &out);
    for (int done = 0; done < 2; done++) {
        sib_buf_addf(&out, "\"item_id\":\"fc_%s%d\",\"output_index\":%d,\"%s\":", suffix(t), s->index, s->index, done ? "arguments" : "delta");
        sib_json_put_str(&out, arguments);
        send(t, done ? "response.function_call_arguments.done" : "response.function_call_arguments.delta", &out);
    }
    sib_buf_addf(&out, "\"output_index\":%d,\"item\":", s->index);
    put_call(t, s->index, last, true, &out);
    send(t, "response.output_item.done", &out);
    s->index++;
}

static void end_choice(sib_task *t, sib_choice *c)
{
    stream *s = stream_of(t);
    (void)c;
    if (!s) return;
    if (s->index == 0 && !s->open) open_item(t, s, 'm');
    close_item(t, s);
}

static void end(sib_task *t)
{
    sib_buf answer = {0}, out = {0};
    put_response(t, final_status(t), NULL, &answer);
    remember(t, &answer);
    sib_buf_addz(&out, "\"response\":");
    sib_buf_add(&out, answer.p ? answer.p : "", answer.n);
    out.failed |= answer.failed;
    sib_buf_deinit(&answer);
    send(t, strcmp(final_status(t), "incomplete") ? "response.completed" : "response.incomplete", &out);
}

static void failed(sib_task *t, const sib_problem *p)
{
    sib_buf out = {0};
    sib_buf_addz(&out, "\"response\":");
    put_response(t, "failed", p, &out);
    send(t, "response.failed", &out);
}

static void keepalive(sib_task *t)
{
    (void)sib_http_send(t->conn, SIB_STR(": keepalive\n\n"));
}

const sib_format sib_format_responses = {whole, begin, content, reasoning, call, end_choice, end, failed, keepalive, sib_problem_openai, "resp_", "call_"};

/* server/server.c - see server.h: who may ask, which route answers, and how answers travel from the engine to the client. */
#include "server/server_internal.h"

#include "base/log.h"
#include "server/page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define MAX_UNPREPARED 256 /* requests that wait for the prepare thread */

sib_server_options sib_server_defaults(void)
{
    return (sib_server_options){.http = sib_http_defaults(), .parallel = 4, .queue = 64, .queue_timeout_s = 600, .keepalive_s = 5};
}

/* ---- small answers ------------------------------------------------------------------------------------ */

static void log_request(sib_server *s, const sib_task *t, int status)
{
    double ms = (sib_http_now() - t->arrived_s) * 1e3;
    sib_metrics_request(&s->metrics, t->endpoint, status);
    if (t->n_ended > 0)
        sib_log(SIB_LOG_INFO, "%s %s %d %.0f ms, %d prompt tokens (%d reused), %d generated", t->peer, t->endpoint, status, ms, t->prompt_tokens, t->cached_tokens, sib_task_completion_tokens(t));
    else
        sib_log(SIB_LOG_INFO, "%s %s %d %.0f ms", t->peer, t->endpoint, status, ms);
}

static void reply_json(sib_server *s, sib_http_conn *c, const char *endpoint, int status, sib_str body)
{
    sib_metrics_request(&s->metrics, endpoint, status);
    sib_log(SIB_LOG_INFO, "%s %s %d", sib_http_peer(c), endpoint, status);
    sib_http_reply(c, status, "application/json", body);
}

static void reply_problem(sib_server *s, sib_http_conn *c, const char *endpoint, int status, const char *type, const char *code, const char *message)
{
    sib_buf out = {0};
    sib_problem p = {.status = status, .type = type, .code = code};
    (void)snprintf(p.message, sizeof p.message, "%s", message);
    if (sib_starts_with(endpoint, "/v1/messages")) sib_format_messages.problem(NULL, &p, &out);
    else sib_problem_openai(NULL, &p, &out);
    reply_json(s, c, endpoint, status, sib_buf_view(&out));
    sib_buf_deinit(&out);
}

/* ---- who may ask ------------------------------------------------------------------------------------------ */

/* Takes as long whatever the texts have in common. */
static bool equal_secret(sib_str a, const char *key)
{
    size_t n = strlen(key);
    unsigned differ = a.n != n;
    for (size_t i = 0; i < a.n; i++) differ |= (unsigned char)(a.p[i] ^ key[n ? i % n : 0]);
    return differ == 0;
}

static bool has_key(const sib_server *s, const sib_http_head *h)
{
    sib_str key = sib_http_header_get(h, "x-api-key"), bearer = sib_http_header_get(h, "authorization");
    if (!key.p && bearer.n > 7 && strncasecmp(bearer.p, "Bearer ", 7) == 0) key = (sib_str){bearer.p + 7, bearer.n - 7};
    bool any = s->o.n_keys == 0;
    for (int i = 0; i < s->o.n_keys; i++) any |= key.p && equal_secret(key, s->o.keys[i]);
    return any;
}

static const char *allowed_origin(const sib_server *s, sib_str origin)
{
    for (int i = 0; i < s->o.n_origins; i++)
        if (strcmp(s->o.origins[i], "*") == 0 || sib_str_is(origin, s->o.origins[i])) return s->o.origins[i];
    return NULL;
}

/* "127.0.0.1:8080", "localhost", "[::1]:8080" */
static bool is_loopback_host(sib_str host)
{
    const char *colon = host.n && host.p[0] != '[' ? memchr(host.p, ':', host.n) : NULL;
    const char *bracket = host.n && host.p[0] == '[' ? memchr(host.p, ']', host.n) : NULL;
    if (colon) host.n = (size_t)(colon - host.p);
    if (bracket) host.n = (size_t)(bracket - host.p) + 1;
    return sib_str_is(host, "localhost") || sib_str_is(host, "[::1]") || (host.n > 4 && memcmp(host.p, "127.", 4) == 0 && host.p[host.n - 1] <= '9');
}

/* The page of this server asks with its own address as the origin. */
static bool is_own_origin(sib_str origin, sib_str host)
{
    size_t scheme = origin.n > 8 && memcmp(origin.p, "https://", 8) == 0 ? 8 : 7; /* https: a proxy stands in front */
    return origin.n == host.n + scheme && memcmp(origin.p, "https://", 4) == 0 && memcmp(origin.p + scheme, host.p, host.n) == 0;
}

/* Browsers are kept out unless their origin is allowed: a server on loopback is open to every page otherwise. */
static bool check_browser(sib_server *s, sib_http_conn *c, const sib_http_head *h, const char **why)
{
    sib_str origin = sib_http_header_get(h, "origin"), host = sib_http_header_get(h, "host");
    char text[256];
    if (sib_http_is_loopback(s->http) && host.p && !is_loopback_host(host)) {
        *why = "the Host header does not name this server";
        return false;
    }
    if (!origin.p || is_own_origin(origin, host)) return true;
    const char *allowed = allowed_origin(s, origin);
    if (!allowed || origin.n >= sizeof text) {
        *why = "this origin is not allowed; --allowed-origins lists those that are";
        return false;
    }
    (void)snprintf(text, sizeof text, "%.*s", (int)origin.n, origin.p);
    sib_http_add_header(c, "Access-Control-Allow-Origin", allowed[0] == '*' ? "*" : text);
    if (allowed[0] != '*') sib_http_add_header(c, "Vary", "Origin");
    return true;
}

/* ---- answers about the server -------------------------------------------------------------------------------- */

static void put_model(const sib_server *s, sib_buf *out)
{
    sib_buf_addz(out, "{\"id\":");
    sib_json_put_str(out, sib_str_of(s->model_name));
    sib_buf_addf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"sibyl\",\"meta\":{\"n_vocab\":%d,\"n_ctx\":%d,\"n_ctx_train\":%d,\"size\":%llu}}",
                 (long long)s->started_at, s->info.n_vocab, s->info.n_ctx, s->info.max_positions, (unsigned long long)s->info.file_bytes);
}

static void get_models(sib_server *s, sib_http_conn *c, sib_str id)
{
    sib_buf out = {0};
    if (id.n > 0 && !sib_str_is(id, s->model_name)) {
        reply_problem(s, c, "/v1/models", 404, "not_found_error", "model_not_found", "this model is not served here");
        return;
    }
    if (id.n == 0) sib_buf_addz(&out, "{\"object\":\"list\",\"data\":[");
    put_model(s, &out);
    if (id.n == 0) sib_buf_addz(&out, "]}");
    reply_json(s, c, "/v1/models", 200, sib_buf_view(&out));
    sib_buf_deinit(&out);
}

static void get_metrics(sib_server *s, sib_http_conn *c)
{
    sib_buf out = {0};
    sib_sched_stats stats;
    sib_sched_stats_get(s->sched, &stats);
    sib_metrics_write(&s->metrics, &stats, s->model_name, &out);
    sib_http_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", sib_buf_view(&out));
    sib_buf_deinit(&out);
}

static void get_props(sib_server *s, sib_http_conn *c)
{
    sib_buf out = {0};
    const sib_generation_config *d = &s->engine->defaults;
    const sib_tokenizer *k = s->engine->tokenizer;
    sib_buf_addz(&out, "{\"model_alias\":");
    sib_json_put_str(&out, sib_str_of(s->model_name));
    sib_buf_addf(&out, ",\"family\":\"%s\",\"numerics\":\"%s\",\"device\":\"%s\",\"total_slots\":%d,\"n_ctx\":%d,\"drafter\":", s->info.family, s->info.numerics, s->info.device, s->o.parallel,
                 s->info.n_ctx);
    if (s->info.drafter) sib_json_put_str(&out, sib_str_of(s->info.drafter));
    else sib_buf_addz(&out, "null");
    sib_buf_addz(&out, ",\"bos_token\":");
    sib_str bos = sib_tokenizer_piece(k, sib_tokenizer_bos(k)), eos = sib_tokenizer_piece(k, sib_tokenizer_eos(k));
    sib_json_put_str(&out, bos.p ? bos : SIB_STR(""));
    sib_buf_addz(&out, ",\"eos_token\":");
    sib_json_put_str(&out, eos.p ? eos : SIB_STR(""));
    sib_buf_addf(&out, ",\"modalities\":{\"vision\":%s,\"audio\":false},\"default_generation_settings\":{\"temperature\":", s->info.pictures ? "true" : "false");
    sib_json_put_num(&out, d->has_do_sample && !d->do_sample ? 0 : d->has_temperature ? d->temperature : 1);
    sib_buf_addz(&out, ",\"top_p\":");
    sib_json_put_num(&out, d->has_top_p ? d->top_p : 1);
    sib_buf_addf(&out, ",\"top_k\":%d}}", d->has_top_k ? d->top_k : 0);
    reply_json(s, c, "/props", 200, sib_buf_view(&out));
    sib_buf_deinit(&out);
}

static void get_slots(sib_server *s, sib_http_conn *c)
{
    sib_buf out = {0};
    bool first = true;
    sib_buf_addc(&out, '[');
    for (const sib_task *t = s->tasks.next; t != &s->tasks; t = t->next)
        for (int i = 0; t->begun_answer && i < t->n; i++, first = false)
            sib_buf_addf(&out, "%s{\"id\":\"%s\",\"index\":%d,\"is_processing\":%s,\"n_past\":%d,\"n_prompt\":%d}", first ? "" : ",", t->id, i, t->choices[i].started && !t->choices[i].ended ? "true" : "false",
                         atomic_load(&t->choices[i].job.progress), t->prompt_tokens);
    sib_buf_addc(&out, ']');
    reply_json(s, c, "/slots", 200, sib_buf_view(&out));
    sib_buf_deinit(&out);
}

static void get_stats(sib_server *s, sib_http_conn *c)
{
    sib_buf out = {0};
    sib_sched_stats a;
    const sib_metrics *m = &s->metrics;
    sib_sched_stats_get(s->sched, &a);
    sib_buf_addf(&out, "{\"batch\":{\"slots\":%d,\"running\":%d,\"waiting\":%d,\"rounds\":%llu},\"kv\":{\"tokens\":%lld,\"capacity\":%lld},"
                       "\"prompt_cache\":{\"hit_tokens\":%llu,\"computed_tokens\":%llu},\"admission\":{\"queue_full\":%llu,\"context_length\":%llu},"
                       "\"speculation\":{\"rounds\":%llu,\"drafted\":%llu,\"accepted\":%llu}}",
                 a.slots, a.running, a.waiting, (unsigned long long)a.rounds, (long long)a.kv_tokens, (long long)a.kv_capacity, (unsigned long long)m->cached_tokens,
                 (unsigned long long)m->prompt_tokens, (unsigned long long)m->rejected_full, (unsigned long long)m->rejected_size, (unsigned long long)m->drafts,
                 (unsigned long long)m->draft_tokens, (unsigned long long)m->accepted);
    reply_json(s, c, "/stats", 200, sib_buf_view(&out));
    sib_buf_deinit(&out);
}

static void get_page(sib_server *s, sib_http_conn *c)
{
    (void)s;
    sib_http_add_header(c, "Content-Security-Policy",
                        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    sib_http_add_header(c, "Referrer-Policy", "no-referrer");
    sib_http_reply(c, 200, "text/html; charset=utf-8", (sib_str){sib_page, (size_t)(sib_page_end - sib_page)});
}

static void get_health(sib_server *s, sib_http_conn *c)
{
    (void)s;
    sib_http_reply(c, 200, "application/json", SIB_STR("{\"status\": \"ok\"}"));
}

static void get_version(sib_server *s, sib_http_conn *c)
{
    (void)s;
    char text[64];
    int n = snprintf(text, sizeof text, "{\"version\":\"%s\"}", sib_version());
    sib_http_reply(c, 200, "application/json", (sib_str){text, (size_t)n});
}

/* ---- routes ------------------------------------------------------------------------------------------------------- */

typedef struct route {
    const char *path, *alias, *method;
    void (*get)(sib_server *s, sib_http_conn *c);
    sib_status (*prepare)(sib_task *t);
    const sib_format *format;
    bool open; /* needs no key */
} route;

static const route routes[] = {
    {"/v1/chat/completions", "/chat/completions", "POST", NULL, sib_prepare_chat, &sib_format_chat, false},
    {"/v1/completions", "/completions", "POST", NULL, sib_prepare_completion, &sib_format_completion, false},
    {"/v1/messages", NULL, "POST", NULL, sib_prepare_messages, &sib_format_messages, false},
    {"/v1/messages/count_tokens", NULL, "POST", NULL, sib_prepare_count, &sib_format_messages, false},
    {"/v1/responses", "/responses", "POST", NULL, sib_prepare_responses, &sib_format_responses, false},
    {"/tokenize", NULL, "POST", NULL, sib_prepare_tokenize, &sib_format_chat, false},
    {"/detokenize", NULL, "POST", NULL, sib_prepare_detokenize, &sib_format_chat, false},
    {"/apply-template", NULL, "POST", NULL, sib_prepare_template, &sib_format_chat, false},
    {"/health", "/v1/health", "GET", get_health, NULL, NULL, true},
    {"/metrics", NULL, "GET", get_metrics, NULL, NULL, false},
    {"/props", "/v1/props", "GET", get_props, NULL, NULL, false},
    {"/slots", NULL, "GET", get_slots, NULL, NULL, false},
    {"/stats", NULL, "GET", get_stats, NULL, NULL, false},
    {"/version", NULL, "GET", get_version, NULL, NULL, false},
    {"/", NULL, "GET", get_page, NULL, NULL, true},
};

static void to_prepare(sib_server *s, sib_task *t)
{
    pthread_mutex_lock(&s->lock);
    t->next_prepare = NULL;
    *s->to_prepare_tail = t;
    s->to_prepare_tail = &t->next_prepare;
    s->n_unprepared++;
    atomic_fetch_add(&t->refs, 1);
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

static void start_task(sib_server *s, const route *r, sib_http_conn *c, sib_buf *body)
{
    pthread_mutex_lock(&s->lock);
    bool crowded = s->n_unprepared >= MAX_UNPREPARED;
    pthread_mutex_unlock(&s->lock);
    sib_task *t = crowded ? NULL : sib_task_new(s, r->format, r->path);
    if (!t) {
        reply_problem(s, c, r->path, 503, "unavailable_error", NULL, crowded ? "too many requests are arriving at once" : "out of memory");
        return;
    }
    t->conn = c;
    t->prepare = r->prepare;
    t->body = *body;
    *body = (sib_buf){0};
    (void)snprintf(t->peer, sizeof t->peer, "%s", sib_http_peer(c));
    sib_http_set_user(c, t);
    t->next = &s->tasks;
    t->prev = s->tasks.prev;
    t->prev->next = t->next->prev = t;
    to_prepare(s, t);
}

/* /v1/models, /v1/models/ID, /v1/responses/ID: true when it was one of them. */
static bool special_route(sib_server *s, sib_http_conn *c, const sib_http_head *h)
{
    static const char *const models[] = {"/v1/models", "/models"};
    bool get = sib_str_is(h->method, "GET") || sib_str_is(h->method, "HEAD"), drop = sib_str_is(h->method, "DELETE");
    for (size_t i = 0; get && i < SIB_COUNT(models); i++) {
        size_t n = strlen(models[i]);
        if (h->path.n < n || memcmp(h->path.p, models[i], n) != 0 || (h->path.n > n && h->path.p[n] != '/')) continue;
        get_models(s, c, h->path.n > n ? (sib_str){h->path.p + n + 1, h->path.n - n - 1} : (sib_str){0});
        return true;
    }
    static const char stored[] = "/v1/responses/";
    if ((!get && !drop) || h->path.n <= sizeof stored - 1 || memcmp(h->path.p, stored, sizeof stored - 1) != 0) return false;
    sib_buf out = {0};
    int status = sib_stored_reply(s, (sib_str){h->path.p + sizeof stored - 1, h->path.n - (sizeof stored - 1)}, drop, &out);
    reply_json(s, c, "/v1/responses", status, sib_buf_view(&out));
    sib_buf_deinit(&out);
    return true;
}

static void preflight(sib_http_conn *c)
{
    sib_http_add_header(c, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    sib_http_add_header(c, "Access-Control-Allow-Headers", "Authorization, Content-Type, X-Api-Key, Anthropic-Version, Anthropic-Beta");
    sib_http_add_header(c, "Access-Control-Max-Age", "86400");
    sib_http_reply(c, 204, NULL, (sib_str){0});
}

static void on_request(void *ctx, sib_http_conn *c, const sib_http_head *h, sib_buf *body)
{
    sib_server *s = ctx;
    const route *found = NULL;
    const char *why = NULL;
    sib_str path = h->path;
    while (path.n > 1 && path.p[path.n - 1] == '/') path.n--;
    for (size_t i = 0; i < SIB_COUNT(routes) && !found; i++)
        if (sib_str_is(path, routes[i].path) || (routes[i].alias && sib_str_is(path, routes[i].alias))) found = &routes[i];
    const char *endpoint = found ? found->path : "other";
    if (!check_browser(s, c, h, &why)) {
        reply_problem(s, c, endpoint, 403, "permission_error", NULL, why);
    } else if (sib_str_is(h->method, "OPTIONS")) {
        preflight(c);
    } else if (!(found && found->open) && !has_key(s, h)) {
        sib_http_add_header(c, "WWW-Authenticate", "Bearer");
        reply_problem(s, c, endpoint, 401, "authentication_error", "invalid_api_key", "a valid API key is needed: Authorization: Bearer KEY, or X-Api-Key: KEY");
    } else if (special_route(s, c, h)) {
        return;
    } else if (!found) {
        reply_problem(s, c, endpoint, 404, "not_found_error", NULL, "there is nothing at this path");
    } else if (!sib_str_is(h->method, found->method) && !(found->get && sib_str_is(h->method, "HEAD"))) {
        sib_http_add_header(c, "Allow", found->get ? "GET, HEAD, OPTIONS" : "POST, OPTIONS");
        reply_problem(s, c, endpoint, 405, "invalid_request_error", NULL, "this path takes another method");
    } else if (found->get) {
        found->get(s, c);
    } else if (sib_http_stopping(s->http)) {
        sib_http_add_header(c, "Retry-After", "5");
        reply_problem(s, c, endpoint, 503, "unavailable_error", NULL, "the server is shutting down");
    } else {
        start_task(s, found, c, body);
    }
}

/* ---- the prepare thread ------------------------------------------------------------------------------------------- */

static void *prepare_thread(void *ctx)
{
    sib_server *s = ctx;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (!s->to_prepare && !s->stop) pthread_cond_wait(&s->work, &s->lock);
        sib_task *t = s->to_prepare;
        bool skip = s->stop;
        if (t) {
            s->to_prepare = t->next_prepare;
            if (!s->to_prepare) s->to_prepare_tail = &s->to_prepare;
            s->n_unprepared--;
            skip |= t->cancelled;
        }
        pthread_mutex_unlock(&s->lock);
        if (!t) return NULL;
        if (!skip && t->prepare(t) != SIB_OK && !sib_task_post(t, SIB_EVENT_PROBLEM, 0, 0, 0, (sib_str){0}, (sib_str){0}))
            sib_log(SIB_LOG_ERROR, "out of memory: the refusal of request %s is lost", t->id);
        sib_task_unref(t);
    }
}

/* ---- events to the client --------------------------------------------------------------------------------------------- */

/* The client has its answer (or has left): the loop's reference goes. */
static void let_go(sib_task *t)
{
    t->conn = NULL;
    t->next->prev = t->prev;
    t->prev->next = t->next;
    sib_task_unref(t);
}

static void reply_task_problem(sib_task *t, const sib_problem *p)
{
    sib_server *s = t->server;
    sib_buf out = {0};
    sib_metrics *m = &s->metrics;
    bool full = p->status == 429, size = p->code && strcmp(p->code, "context_length_exceeded") == 0;
    if (full) m->rejected_full++;
    else if (size) m->rejected_size++;
    else if (p->status < 500) m->rejected_other++;
    int status = full && t->format == &sib_format_messages ? 529 : p->status;
    if (full || p->status == 503) sib_http_add_header(t->conn, "Retry-After", "1");
    if (p->status == 500 || size) sib_http_add_header(t->conn, "x-should-retry", "false");
    t->format->problem(t, p, &out);
    log_request(s, t, status);
    sib_http_reply(t->conn, status, "application/json", sib_buf_view(&out));
    sib_buf_deinit(&out);
    let_go(t);
}

static void fail_task(sib_task *t, const sib_problem *p)
{
    sib_task_cancel(t); /* the other choices */
    if (!t->headers_sent) {
        reply_task_problem(t, p);
        return;
    }
    t->format->failed(t, p);
    log_request(t->server, t, p->status);
    sib_http_finish(t->conn);
    let_go(t);
}

static void send_headers(sib_task *t)
{
    if (t->headers_sent) return;
    t->headers_sent = true;
    sib_http_add_header(t->conn, "Cache-Control", "no-cache");
    sib_http_add_header(t->conn, "X-Accel-Buffering", "no");
    sib_http_stream(t->conn, 200, "text/event-stream; charset=utf-8");
}

static void on_started(sib_task *t, sib_choice *c, const sib_event *e)
{
    c->started = true;
    c->started_s = sib_http_now();
    t->prompt_tokens = (int)e->a;
    if (c->index == 0 || !t->begun_answer) t->cached_tokens = (int)e->b;
    if (t->begun_answer) return;
    t->begun_answer = true;
    if (!t->stream) return;
    send_headers(t);
    t->format->begin(t);
}

static void note_token_time(sib_task *t, sib_choice *c)
{
    double now = sib_http_now();
    if (t->first_token_s == 0) {
        t->first_token_s = now;
        sib_metrics_observe(&t->server->metrics.first_token, now - t->arrived_s);
    }
    if (c->last_token_s > 0) sib_metrics_observe(&t->server->metrics.inter_token, now - c->last_token_s);
    c->last_token_s = now;
}

static bool add_call(sib_choice *c, sib_str name, sib_str arguments)
{
    sib_call *v = realloc(c->calls, ((size_t)c->n_have_calls + 1) * sizeof *v);
    char id[64];
    if (!v) return false;
    c->calls = v;
    sib_call *call = &v[c->n_have_calls++];
    *call = (sib_call){0};
    sib_new_id(id, sizeof id, c->task->format->call_prefix, 24);
    sib_buf_addz(&call->id, id);
    sib_buf_add(&call->name, name.p, name.n);
    sib_buf_add(&call->arguments, arguments.p, arguments.n);
    return !call->id.failed && !call->name.failed && !call->arguments.failed;
}

static void on_ended(sib_task *t, sib_choice *c)
{
    sib_server *s = t->server;
    c->ended = true;
    t->n_ended++;
    c->report.generated_tokens = c->n_generated;
    if (c->report.status != SIB_OK) {
        if (c->report.timed_out) (void)sib_refuse_as(t, 503, "unavailable_error", NULL, NULL, "%s", c->report_message);
        else if (c->report.status == SIB_ECANCELLED) (void)sib_refuse_as(t, 503, "unavailable_error", NULL, NULL, "the server is shutting down");
        else (void)sib_refuse_status(t, c->report.status, c->report_message);
        fail_task(t, &t->problem);
        return;
    }
    sib_metrics_job(&s->metrics, &c->report);
    if (t->stream) t->format->end_choice(t, c);
    if (t->n_ended < t->n) return;
    sib_metrics_observe(&s->metrics.whole, sib_http_now() - t->arrived_s);
    log_request(s, t, 200);
    if (t->stream) {
        t->format->end(t);
        sib_http_finish(t->conn);
    } else {
        sib_buf out = {0};
        t->format->whole(t, &out);
        if (out.failed) sib_http_reply(t->conn, 503, "application/json", SIB_STR("{\"error\":{\"message\":\"out of memory\",\"type\":\"unavailable_error\",\"param\":null,\"code\":503}}"));
        else sib_http_reply(t->conn, 200, "application/json", sib_buf_view(&out));
        sib_buf_deinit(&out);
    }
    let_go(t);
}

static void handle(sib_task *t, const sib_event *e)
{
    sib_choice *c = t->choices ? &t->choices[e->choice] : NULL;
    sib_str text = {e->text, e->n}, head = {e->text, e->a}, tail = {e->text + e->a, e->n - (e->kind == SIB_EVENT_CONTENT || e->kind == SIB_EVENT_CALL ? e->a : 0)};
    bool ok = true;
    switch (e->kind) {
    case SIB_EVENT_REPLY:
        log_request(t->server, t, (int)e->a);
        sib_http_reply(t->conn, (int)e->a, "application/json", text);
        let_go(t);
        return;
    case SIB_EVENT_PROBLEM: fail_task(t, &t->problem); return;
    case SIB_EVENT_STARTED: on_started(t, c, e); return;
    case SIB_EVENT_ENDED: on_ended(t, c); return;
    case SIB_EVENT_CONTENT:
        if (head.n) note_token_time(t, c);
        sib_buf_add(&c->content, head.p, head.n);
        if (tail.n && c->entries.n) sib_buf_addc(&c->entries, ',');
        sib_buf_add(&c->entries, tail.p, tail.n);
        ok = !c->content.failed && !c->entries.failed;
        if (ok && t->stream) t->format->content(t, c, head, tail);
        break;
    case SIB_EVENT_REASONING:
        note_token_time(t, c);
        sib_buf_add(&c->reasoning, text.p, text.n);
        ok = !c->reasoning.failed;
        if (ok && t->stream) t->format->reasoning(t, c, text);
        break;
    case SIB_EVENT_CALL:
        ok = add_call(c, head, tail);
        if (ok && t->stream) t->format->call(t, c, sib_buf_view(&c->calls[c->n_have_calls - 1].id), head, tail);
        break;
    }
    if (!ok) {
        (void)sib_refuse_as(t, 503, "unavailable_error", NULL, NULL, "out of memory for the answer");
        fail_task(t, &t->problem);
    }
}

/* Events of one task, taken under the lock. */
static void handle_all(sib_server *s, sib_task *t)
{
    pthread_mutex_lock(&s->lock);
    sib_event *e = t->events;
    t->events = NULL;
    t->events_tail = &t->events;
    pthread_mutex_unlock(&s->lock);
    for (sib_event *next; e; e = next) {
        next = e->next;
        if (t->conn) handle(t, e);
        free(e);
    }
}

static void on_woken(void *ctx)
{
    sib_server *s = ctx;
    pthread_mutex_lock(&s->lock);
    sib_task *list = s->ready;
    s->ready = NULL;
    for (sib_task *t = list; t; t = t->next_taken) { /* from here on a task may become ready again, which uses next_ready */
        t->next_taken = t->next_ready;
        t->ready = false;
    }
    pthread_mutex_unlock(&s->lock);
    while (list) {
        sib_task *t = list;
        list = t->next_taken;
        handle_all(s, t);
        sib_task_unref(t);
    }
}

static void on_gone(void *ctx, sib_http_conn *c)
{
    sib_server *s = ctx;
    sib_task *t = sib_http_user(c);
    bool running = false;
    for (int i = 0; t->begun_answer && i < t->n; i++) running |= t->choices[i].started;
    if (running) s->metrics.cancelled_running++;
    else s->metrics.cancelled_waiting++;
    sib_task_cancel(t);
    log_request(s, t, 499);
    let_go(t);
}

static void on_tick(void *ctx)
{
    sib_server *s = ctx;
    for (sib_task *t = s->tasks.next, *next; t != &s->tasks; t = next) {
        next = t->next;
        if (s->o.keepalive == SIB_KEEPALIVE_OFF || sib_http_quiet_s(t->conn) < s->o.keepalive_s) continue;
        pthread_mutex_lock(&s->lock);
        bool submitted = t->submitted;
        pthread_mutex_unlock(&s->lock);
        if (!submitted || !t->stream) continue;
        send_headers(t);
        t->format->keepalive(t);
    }
}

static void on_refusal(void *ctx, int status, const char *why, sib_buf *body)
{
    sib_server *s = ctx;
    sib_problem p = {.status = status, .type = status >= 500 ? "server_error" : "invalid_request_error"};
    (void)snprintf(p.message, sizeof p.message, "%s", why);
    sib_problem_openai(NULL, &p, body);
    sib_metrics_request(&s->metrics, "other", status);
}

/* ---- life ------------------------------------------------------------------------------------------------------------------ */

/* The id that clients see: given, or the checkpoint folder's name. */
static void name_model(sib_server *s)
{
    const char *dir = sib_checkpoint_dir(s->engine->files);
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    const char *last = dir + n;
    while (last > dir && last[-1] != '/') last--;
    if (s->o.model_name) (void)snprintf(s->model_name, sizeof s->model_name, "%s", s->o.model_name);
    else (void)snprintf(s->model_name, sizeof s->model_name, "%.*s", (int)(dir + n - last), last);
}

static void find_markup(sib_server *s)
{
    static const char probe[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"call_0000\",\"type\":\"function\","
                                "\"function\":{\"name\":\"f\",\"arguments\":{\"k\":\"v\"}}}]},{\"role\":\"tool\",\"tool_call_id\":\"call_0000\",\"name\":\"f\",\"content\":\"b\"}],"
                                "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"string\"}}}}}]}";
    sib_buf text = {0};
    if (s->engine->chat && sib_chat_render(s->engine->chat, SIB_STR(probe), &text, NULL) == SIB_OK) s->markup = sib_markup_of(sib_buf_view(&text));
    sib_buf_deinit(&text);
}

static sib_status find_text_facts(sib_server *s, sib_err *err)
{
    const sib_tokenizer *t = s->engine->tokenizer;
    const sib_generation_config *d = &s->engine->defaults;
    s->longest_piece = 1;
    for (int32_t i = 0; i < sib_tokenizer_n_vocab(t); i++) {
        size_t n = sib_tokenizer_piece(t, i).n;
        if (n > s->longest_piece) s->longest_piece = n;
    }
    find_markup(s);
    s->default_stops = calloc((size_t)d->n_stops + 1, sizeof *s->default_stops);
    if (!s->default_stops) return sib_nomem(err, "server");
    for (int i = 0; i < d->n_stops; i++) s->default_stops[s->n_default_stops++] = sib_str_of(d->stops[i]);
    return SIB_OK;
}

static sib_status start(sib_server *s, sib_err *err)
{
    sib_http_handler handler = {.ctx = s, .request = on_request, .gone = on_gone, .woken = on_woken, .tick = on_tick, .refusal = on_refusal};
    s->info.struct_bytes = sizeof s->info;
    SIB_TRY(sib_engine_info_get(s->engine, &s->info));
    if (!s->engine->tokenizer) return sib_fail(err, SIB_EIO, "%s has no tokenizer.json", sib_checkpoint_dir(s->engine->files));
    name_model(s);
    SIB_TRY(find_text_facts(s, err));
    SIB_TRY(sib_sched_new(&s->sched, s->engine, &(sib_sched_options){.parallel = s->o.parallel, .queue = s->o.queue}, err));
    SIB_TRY(sib_http_new(&s->http, &s->o.http, &handler, err));
    if (!sib_http_is_loopback(s->http) && s->o.n_keys == 0 && !s->o.no_auth)
        return sib_fail(err, SIB_EARG, "host %s can be reached from outside and there is no --api-key; give one, or --no-auth", s->o.http.host);
    if (pthread_create(&s->preparer, NULL, prepare_thread, s) != 0) return sib_fail(err, SIB_ENOMEM, "the system gives no thread");
    s->has_preparer = true;
    return SIB_OK;
}

sib_status sib_server_new(sib_server **out, sib_engine *e, const sib_server_options *o, sib_err *err)
{
    *out = NULL;
    sib_server *s = calloc(1, sizeof *s);
    if (!s) return sib_nomem(err, "server");
    s->engine = e;
    s->o = *o;
    s->started_at = (int64_t)time(NULL);
    s->tasks.next = s->tasks.prev = &s->tasks;
    s->to_prepare_tail = &s->to_prepare;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    sib_status status = start(s, err);
    if (status != SIB_OK) {
        sib_server_free(s);
        return status;
    }
    *out = s;
    return SIB_OK;
}

sib_status sib_server_run(sib_server *s, sib_err *err)
{
    return sib_http_run(s->http, err);
}

int sib_server_port(const sib_server *s)
{
    return sib_http_port(s->http);
}

void sib_server_stop(sib_server *s, int drain_s)
{
    sib_http_stop(s->http, drain_s);
}

void sib_server_free(sib_server *s)
{
    if (!s) return;
    if (s->has_preparer) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_cond_signal(&s->work);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->preparer, NULL);
    }
    sib_sched_free(s->sched);
    if (s->http) on_woken(s); /* events that nobody waits for any more */
    sib_http_free(s->http);
    sib_stored_free_all(s);
    sib_vocab_trie_free(s->trie);
    free(s->default_stops);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    free(s);
}

/* server/task.c - tasks, and what the engine thread does with each token: markup, stop strings, log-probabilities. */
#include "server/server_internal.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

void sib_new_id(char *out, size_t n, const char *prefix, int chars)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    uint8_t r[64];
    size_t k = strlen(prefix);
    if (chars > (int)sizeof r) chars = (int)sizeof r;
    if (getrandom(r, (size_t)chars, 0) != chars) memset(r, 0, sizeof r); /* never blocks after boot */
    memcpy(out, prefix, k < n ? k : n - 1);
    for (int i = 0; i < chars && k + 1 < n; i++) out[k++] = letters[r[i] % 62];
    out[k] = 0;
}

sib_task *sib_task_new(sib_server *s, const sib_format *f, const char *endpoint)
{
    sib_task *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->server = s;
    atomic_init(&t->refs, 1);
    t->events_tail = &t->events;
    t->format = f;
    t->endpoint = endpoint;
    t->arrived_s = sib_http_now();
    t->created = (int64_t)time(NULL);
    t->n = 1;
    t->max_tokens = -1;
    t->top_logprobs = -1;
    sib_new_id(t->id, sizeof t->id, f ? f->id_prefix : "", 24);
    return t;
}

static void choice_deinit(sib_choice *c)
{
    sib_reply_free(c->reply);
    sib_stop_free(c->stop);
    sib_structured_free(c->structured);
    sib_buf_deinit(&c->released);
    sib_buf_deinit(&c->logprob_text);
    free(c->logprobs);
    sib_buf_deinit(&c->content);
    sib_buf_deinit(&c->reasoning);
    sib_buf_deinit(&c->entries);
    for (int i = 0; i < c->n_have_calls; i++) {
        sib_buf_deinit(&c->calls[i].id);
        sib_buf_deinit(&c->calls[i].name);
        sib_buf_deinit(&c->calls[i].arguments);
    }
    free(c->calls);
    free(c->format);
}

void sib_task_unref(sib_task *t)
{
    if (atomic_fetch_sub(&t->refs, 1) != 1) return;
    for (sib_event *e = t->events, *next; e; e = next) {
        next = e->next;
        free(e);
    }
    for (int i = 0; t->choices && i < t->n; i++) choice_deinit(&t->choices[i]);
    free(t->choices);
    for (int i = 0; i < t->n_pictures; i++) sib_buf_deinit(&t->pictures[i]);
    free(t->pictures);
    free(t->picture_refs);
    free(t->eos);
    free(t->stops);
    free(t->bias);
    sib_ids_deinit(&t->ids);
    sib_buf_deinit(&t->prompt);
    sib_buf_deinit(&t->begun);
    sib_spans_deinit(&t->given);
    sib_buf_deinit(&t->body);
    sib_grammar_program_free(t->program);
    json_decref(t->state);
    json_decref(t->request);
    free(t);
}

bool sib_task_post(sib_task *t, sib_event_kind kind, int choice, size_t a, size_t b, sib_str x, sib_str y)
{
    sib_server *s = t->server;
    sib_event *e = malloc(sizeof *e + x.n + y.n + 1);
    if (!e) return false;
    *e = (sib_event){.kind = kind, .choice = choice, .a = a, .b = b, .n = x.n + y.n};
    if (x.n) memcpy(e->text, x.p, x.n);
    if (y.n) memcpy(e->text + x.n, y.p, y.n);
    e->text[x.n + y.n] = 0;
    pthread_mutex_lock(&s->lock);
    *t->events_tail = e;
    t->events_tail = &e->next;
    if (!t->ready) {
        t->ready = true;
        atomic_fetch_add(&t->refs, 1);
        t->next_ready = s->ready;
        s->ready = t;
    }
    pthread_mutex_unlock(&s->lock);
    sib_http_wake(s->http);
    return true;
}

/* ---- the engine thread ---------------------------------------------------------------------------- */

static sib_choice *choice_of(sib_job *j)
{
    return (sib_choice *)((char *)j - offsetof(sib_choice, job));
}

static void post(sib_choice *c, sib_event_kind kind, size_t a, size_t b, sib_str x, sib_str y)
{
    if (!sib_task_post(c->task, kind, c->index, a, b, x, y)) c->failed = true;
}

static void on_started(sib_job *j, int prompt_tokens, int cached_tokens)
{
    post(choice_of(j), SIB_EVENT_STARTED, (size_t)prompt_tokens, (size_t)cached_tokens, (sib_str){0}, (sib_str){0});
}

/* {"id","token","logprob","bytes"} without the closing brace. */
static void put_entry(sib_buf *out, const sib_tokenizer *t, int32_t id, float logprob)
{
    sib_buf text = {0}, bytes = {0};
    if (sib_tokenizer_decode(t, &id, 1, SIB_KEEP_SPECIAL, &text, NULL) != SIB_OK) out->failed = true;
    sib_tokenizer_bytes(t, id, &bytes);
    sib_buf_addf(out, "{\"id\":%d,\"token\":", id);
    sib_json_put_str(out, sib_buf_view(&text));
    sib_buf_addz(out, ",\"logprob\":");
    sib_json_put_num(out, logprob);
    sib_buf_addz(out, ",\"bytes\":[");
    for (size_t i = 0; i < bytes.n; i++) sib_buf_addf(out, "%s%d", i ? "," : "", (uint8_t)bytes.p[i]);
    sib_buf_addc(out, ']');
    out->failed |= text.failed || bytes.failed;
    sib_buf_deinit(&text);
    sib_buf_deinit(&bytes);
}

/* Remembers a content token's entry until its text is released. */
static void add_entry(sib_choice *c, const sib_sample *s)
{
    const sib_tokenizer *t = c->task->server->engine->tokenizer;
    if (c->n_logprobs == c->cap_logprobs) {
        size_t cap = c->cap_logprobs ? 2 * c->cap_logprobs : 16;
        sib_logprob_entry *v = realloc(c->logprobs, cap * sizeof *v);
        if (!v) {
            c->failed = true;
            return;
        }
        c->logprobs = v;
        c->cap_logprobs = cap;
    }
    size_t from = c->logprob_text.n;
    put_entry(&c->logprob_text, t, s->id, s->logprob);
    sib_buf_addz(&c->logprob_text, ",\"top_logprobs\":[");
    for (int i = 0; i < s->n_top; i++) {
        if (i) sib_buf_addc(&c->logprob_text, ',');
        put_entry(&c->logprob_text, t, s->top[i].id, s->top[i].logprob);
        sib_buf_addc(&c->logprob_text, '}');
    }
    sib_buf_addz(&c->logprob_text, "]}");
    c->failed |= c->logprob_text.failed;
    c->logprobs[c->n_logprobs++] = (sib_logprob_entry){c->n_fed, from, c->logprob_text.n - from};
}

/* Entries of tokens whose text begins before the end of what has been released; all, when the answer has ended by itself. */
static void take_entries(sib_choice *c, bool all, sib_buf *out)
{
    while (c->first_logprob < c->n_logprobs && (all || c->logprobs[c->first_logprob].at < c->n_released)) {
        const sib_logprob_entry *e = &c->logprobs[c->first_logprob++];
        if (out->n) sib_buf_addc(out, ',');
        sib_buf_add(out, c->logprob_text.p + e->json, e->n);
    }
    if (c->first_logprob == c->n_logprobs) c->first_logprob = c->n_logprobs = c->logprob_text.n = 0;
    c->failed |= out->failed;
}

static void release(sib_choice *c, sib_str text, bool all_entries)
{
    sib_buf entries = {0};
    c->n_released += text.n;
    if (c->task->logprobs) take_entries(c, all_entries, &entries);
    if (text.n || entries.n) post(c, SIB_EVENT_CONTENT, text.n, 0, text, sib_buf_view(&entries));
    sib_buf_deinit(&entries);
}

static void on_content(void *ctx, sib_str text)
{
    sib_choice *c = ctx;
    c->n_fed += text.n;
    if (!c->stop) {
        release(c, text, false);
        return;
    }
    c->released.n = 0;
    if (sib_stop_feed(c->stop, text, &c->released, NULL) != SIB_OK) c->failed = true;
    int hit = sib_stop_hit(c->stop);
    if (hit >= 0 && c->stop_index < 0) {
        c->stop_index = hit;
        if (c->task->include_stop) sib_buf_add(&c->released, c->task->stops[hit].p, c->task->stops[hit].n);
    }
    release(c, sib_buf_view(&c->released), false);
}

static void on_reasoning(void *ctx, sib_str text)
{
    sib_choice *c = ctx;
    post(c, SIB_EVENT_REASONING, 0, 0, text, (sib_str){0});
}

static void on_call(void *ctx, sib_str name, sib_str arguments)
{
    sib_choice *c = ctx;
    if (c->task->one_call && c->n_calls > 0) return;
    c->n_calls++;
    post(c, SIB_EVENT_CALL, name.n, 0, name, arguments);
}

static bool is_end(const sib_task *t, int32_t id)
{
    for (size_t i = 0; i < t->n_eos; i++)
        if (t->eos[i] == id) return true;
    return false;
}

static bool on_token(sib_job *j, const sib_token *token, const sib_sample *sample)
{
    sib_choice *c = choice_of(j);
    sib_task *t = c->task;
    bool last = token->finish != SIB_FINISH_NONE;
    bool end_token = token->finish == SIB_FINISH_STOP && is_end(t, token->id);
    bool entered = t->logprobs && sample && !end_token && sib_reply_in_content(c->reply);
    uint64_t at = c->n_fed;
    c->n_generated += token->id >= 0;
    if (entered) add_entry(c, sample);
    if (!sib_reply_feed(c->reply, end_token ? -1 : token->id, (sib_str){token->text, token->text_bytes})) c->failed = true;
    /* The token was a marker and no content. */
    if (entered && !sib_reply_in_content(c->reply) && c->n_logprobs > c->first_logprob && c->logprobs[c->n_logprobs - 1].at == at) c->n_logprobs--;
    if (last) {
        if (!sib_reply_end(c->reply, token->finish == SIB_FINISH_STOP)) c->failed = true;
        if (c->stop && c->stop_index < 0) {
            c->released.n = 0;
            if (sib_stop_flush(c->stop, &c->released, NULL) != SIB_OK) c->failed = true;
            release(c, sib_buf_view(&c->released), true);
        } else if (c->stop_index < 0) {
            release(c, (sib_str){0}, true);
        }
    }
    c->n_reasoning = sib_reply_reasoning_tokens(c->reply);
    return c->stop_index < 0 && !c->failed && !(t->one_call && c->n_calls > 0);
}

static void on_ended(sib_job *j, const sib_job_report *r)
{
    sib_choice *c = choice_of(j);
    sib_task *t = c->task;
    c->report = *r;
    if (r->message) (void)snprintf(c->report_message, sizeof c->report_message, "%s", r->message);
    c->report.message = c->report_message;
    if (c->failed && r->status == SIB_OK) {
        c->report.status = SIB_ENOMEM;
        (void)snprintf(c->report_message, sizeof c->report_message, "out of memory for the answer");
    }
    if (c->report.status == SIB_OK && c->structured && sib_structured_failed(c->structured)) {
        c->report.status = SIB_ESTATE;
        (void)snprintf(c->report_message, sizeof c->report_message, "the answer could not be kept within the schema or pattern");
    }
    if (!sib_task_post(t, SIB_EVENT_ENDED, c->index, 0, 0, (sib_str){0}, (sib_str){0}))
        sib_log(SIB_LOG_ERROR, "out of memory: the end of request %s is lost", t->id);
    sib_task_unref(t);
}

/* ---- submitting --------------------------------------------------------------------------------------- */

static sib_status make_choice(sib_task *t, int i, const sib_sampler_params *sampler, sib_err *err)
{
    sib_server *s = t->server;
    sib_choice *c = &t->choices[i];
    sib_reply_sink sink = {c, on_content, on_reasoning, on_call};
    c->task = t;
    c->index = i;
    c->stop_index = -1;
    c->sampler = *sampler;
    c->sampler.seed = t->seed + (uint64_t)i; /* the n answers differ, and each can be had again alone */
    c->generate = (sib_gen_request){.sampler = &c->sampler, .eos = t->eos, .n_eos = t->n_eos, .stop = s->default_stops, .n_stop = s->n_default_stops, .rule = t->rule, .policy = t->policy, .draft_n = t->draft_n,
                                    .max_tokens = t->max_tokens < 0 ? UINT64_MAX : (uint64_t)t->max_tokens};
    c->job = (sib_job){.ids = t->ids.v, .n_ids = t->ids.n, .pictures = t->picture_refs, .n_pictures = t->n_pictures, .max_soft_tokens = t->max_soft_tokens,
                       .request = &c->generate, .no_reuse = t->no_reuse, .queue_timeout_ms = s->o.queue_timeout_s * 1e3,
                       .started = on_started, .token = on_token, .ended = on_ended};
    bool raw = t->format == &sib_format_completion;
    sib_str begun = sib_buf_view(&t->begun);
    SIB_TRY(sib_reply_new(&c->reply, raw ? SIB_MARKUP_NONE : s->markup, s->engine->tokenizer, t->tools, sib_buf_view(&t->prompt), t->forced ? &begun : NULL, &sink, err));
    if (t->program) {
        SIB_TRY(sib_structured_new(c, err));
        c->generate.grammar = &c->grammar;
    }
    return t->n_stops > 0 ? sib_stop_new(&c->stop, t->stops, t->n_stops, err) : SIB_OK;
}

sib_status sib_task_submit(sib_task *t)
{
    sib_server *s = t->server;
    sib_err err = {0};
    sib_job *jobs[SIB_MAX_CHOICES];
    bool full = false;
    /* Set by sib_take_sampling for the one choice it checked. */
    sib_sampler_params sampler = t->choices[0].sampler;
    for (int i = 0; i < t->n; i++) {
        sib_status status = make_choice(t, i, &sampler, &err);
        if (status != SIB_OK) return sib_refuse_status(t, status, err.message);
        jobs[i] = &t->choices[i].job;
    }
    pthread_mutex_lock(&s->lock);
    sib_status status = SIB_OK;
    if (!t->cancelled) {
        atomic_fetch_add(&t->refs, t->n);
        status = sib_sched_submit(s->sched, jobs, t->n, &full, &err);
        t->submitted = status == SIB_OK;
        if (status != SIB_OK) atomic_fetch_sub(&t->refs, t->n);
    }
    pthread_mutex_unlock(&s->lock);
    if (full) return sib_refuse_as(t, 429, "rate_limit_error", "queue_full", NULL, "%s", err.message);
    if (status == SIB_ECAPACITY) return sib_refuse_as(t, 400, "invalid_request_error", "context_length_exceeded", "messages", "%s", err.message);
    if (status == SIB_ESTATE) return sib_refuse_as(t, 503, "unavailable_error", NULL, NULL, "the server is shutting down");
    return status == SIB_OK ? SIB_OK : sib_refuse_status(t, status, err.message);
}

void sib_task_cancel(sib_task *t)
{
    sib_server *s = t->server;
    pthread_mutex_lock(&s->lock);
    t->cancelled = true;
    for (int i = 0; t->submitted && i < t->n; i++) sib_sched_cancel(s->sched, &t->choices[i].job);
    pthread_mutex_unlock(&s->lock);
}

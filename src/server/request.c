/* server/request.c - what a request says: fields into a task, messages into a prompt. Prepare thread.
 *
 * A field that would change the answer is honoured or refused with 400 and its name; the bookkeeping fields that clients
 * send along are accepted (server_api.md 2). */
#include "server/server_internal.h"

#include "image/data_url.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- problems ---------------------------------------------------------------------------------------- */

static sib_status set_problem(sib_task *t, int status, const char *type, const char *code, const char *param, const char *fmt, va_list ap)
{
    sib_problem *p = &t->problem;
    p->status = status;
    p->type = type;
    p->code = code;
    (void)snprintf(p->param, sizeof p->param, "%s", param ? param : "");
    (void)vsnprintf(p->message, sizeof p->message, fmt, ap);
    return SIB_EARG;
}

sib_status sib_refuse_as(sib_task *t, int status, const char *type, const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)set_problem(t, status, type, code, param, fmt, ap);
    va_end(ap);
    return SIB_EARG;
}

sib_status sib_refuse(sib_task *t, const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)set_problem(t, 400, "invalid_request_error", NULL, param, fmt, ap);
    va_end(ap);
    return SIB_EARG;
}

sib_status sib_refuse_status(sib_task *t, sib_status s, const char *message)
{
    switch (s) {
    case SIB_EARG:
    case SIB_EFORMAT:
    case SIB_EUNSUPPORTED: return sib_refuse(t, NULL, "%s", message);
    case SIB_ECAPACITY: return sib_refuse_as(t, 400, "invalid_request_error", "context_length_exceeded", NULL, "%s", message);
    case SIB_ENOMEM: return sib_refuse_as(t, 503, "unavailable_error", NULL, NULL, "%s", message);
    default: return sib_refuse_as(t, 500, "server_error", NULL, NULL, "%s", message);
    }
}

static sib_status no_memory(sib_task *t)
{
    return sib_refuse_as(t, 503, "unavailable_error", NULL, NULL, "out of memory");
}

/* ---- fields ----------------------------------------------------------------------------------------------- */

const char *const sib_sampling_fields[] = {
    "model", "stream", "stream_options", "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "repeat_penalty",
    "repetition_context_size", "repeat_last_n", "presence_penalty", "presence_context_size", "frequency_penalty", "frequency_context_size", "seed",
    "logit_bias", "stop_token_ids", "ignore_eos", "min_tokens", "include_stop_str_in_output", "draft_model", "num_draft_tokens", "speculative.n_max",
    "cache_prompt", "timings_per_token", "max_soft_tokens", "skip_special_tokens", "xtc_probability", "typical_p", "top_n_sigma", "dry_multiplier",
    "mirostat", "adapters", "adapter", NULL};

/* They change nothing about the answer. */
const char *const sib_ignored_fields[] = {
    "user", "store", "metadata", "service_tier", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "audio", "modalities", "prediction",
    "web_search_options", "cache_salt", "id_slot", "return_progress", "speculative.n_min", "speculative.p_min", "dry_base", "dry_allowed_length",
    "dry_penalty_last_n", "dry_sequence_breakers", "mirostat_tau", "mirostat_eta", "xtc_threshold", "request_id", "priority", "cache_control", NULL};

static bool in_list(const char *const *list, const char *key)
{
    for (; list && *list; list++)
        if (strcmp(*list, key) == 0) return true;
    return false;
}

sib_status sib_check_fields(sib_task *t, const json_t *o, const char *const *const *lists)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)o, key, v)
    {
        bool known = json_is_null(v);
        for (int i = 0; lists[i] && !known; i++) known = in_list(lists[i], key);
        if (!known) return sib_refuse(t, key, "`%.60s` is not supported by this server", key);
    }
    return SIB_OK;
}

sib_status sib_take_num(sib_task *t, const json_t *o, const char *key, double lo, double hi, double *out)
{
    const json_t *v = sib_json_get(o, key);
    if (!v) return SIB_OK;
    if (!json_is_number(v)) return sib_refuse(t, key, "`%s` must be of type number", key);
    double d = json_number_value(v);
    if (!(d >= lo && d <= hi)) return sib_refuse(t, key, "`%s` must be between %g and %g", key, lo, hi);
    *out = d;
    return SIB_OK;
}

sib_status sib_take_int(sib_task *t, const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *out)
{
    const json_t *v = sib_json_get(o, key);
    if (!v) return SIB_OK;
    double d = json_number_value(v);
    if (json_is_integer(v)) {
        json_int_t i = json_integer_value(v);
        if (i < lo || i > hi) return sib_refuse(t, key, "`%s` must be between %lld and %lld", key, (long long)lo, (long long)hi);
        *out = i;
        return SIB_OK;
    }
    if (!json_is_real(v) || d != floor(d)) return sib_refuse(t, key, "`%s` must be of type integer", key);
    if (!(d >= (double)lo && d <= (double)hi && fabs(d) < 0x1p53)) return sib_refuse(t, key, "`%s` must be between %lld and %lld", key, (long long)lo, (long long)hi);
    *out = (int64_t)d;
    return SIB_OK;
}

sib_status sib_take_bool(sib_task *t, const json_t *o, const char *key, bool *out)
{
    const json_t *v = sib_json_get(o, key);
    if (!v) return SIB_OK;
    if (!json_is_boolean(v)) return sib_refuse(t, key, "`%s` must be of type boolean", key);
    *out = json_is_true(v);
    return SIB_OK;
}

sib_status sib_take_str(sib_task *t, const json_t *o, const char *key, const char **out)
{
    const json_t *v = sib_json_get(o, key);
    if (!v) return SIB_OK;
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v)) return sib_refuse(t, key, "`%s` must be of type string", key);
    *out = json_string_value(v);
    return SIB_OK;
}

sib_status sib_parse_body(sib_task *t)
{
    sib_str text = t->body.n ? sib_buf_view(&t->body) : SIB_STR("");
    json_error_t e;
    if (sib_json_depth(text) > 64) return sib_refuse(t, NULL, "the JSON body is nested deeper than 64 levels");
    t->request = json_loadb(text.p, text.n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!t->request && json_error_code(&e) == json_error_out_of_memory) return no_memory(t);
    /* jansson's own sentence may quote the text, which an error does not repeat */
    if (!t->request) return sib_refuse(t, NULL, "the body is not valid JSON: error at byte %d (line %d, column %d)", e.position, e.line, e.column);
    if (!json_is_object(t->request)) return sib_refuse(t, NULL, "the body must be a JSON object");
    sib_buf_deinit(&t->body);
    t->body = (sib_buf){0};
    return SIB_OK;
}

/* ---- sampling ------------------------------------------------------------------------------------------------ */

/* Features of other servers: accepted at the value that switches them off. */
static sib_status check_neutral(sib_task *t, const json_t *o)
{
    static const struct {
        const char *key;
        double off, off2;
    } numbers[] = {{"xtc_probability", 0, 0}, {"typical_p", 1, 0}, {"top_n_sigma", 0, -1}, {"dry_multiplier", 0, 0}, {"mirostat", 0, 0}};
    for (size_t i = 0; i < SIB_COUNT(numbers); i++) {
        const json_t *v = sib_json_get(o, numbers[i].key);
        if (v && !(json_is_number(v) && (json_number_value(v) == numbers[i].off || json_number_value(v) == numbers[i].off2)))
            return sib_refuse(t, numbers[i].key, "`%s` is not supported by this server", numbers[i].key);
    }
    for (int i = 0; i < 2; i++) {
        const char *key = i ? "adapter" : "adapters";
        const json_t *v = sib_json_get(o, key);
        if (v && !(json_is_string(v) && strcmp(json_string_value(v), "none") == 0)) return sib_refuse(t, key, "`%s` is not supported by this server", key);
    }
    const json_t *skip = sib_json_get(o, "skip_special_tokens");
    if (skip && !json_is_true(skip)) return sib_refuse(t, "skip_special_tokens", "`skip_special_tokens` can only be true");
    return SIB_OK;
}

static sib_status bad_bias(sib_task *t)
{
    return sib_refuse(t, "logit_bias", "logit_bias must be a dict of int to float");
}

static sib_status take_bias(sib_task *t, const json_t *o, int *n)
{
    json_t *bias = sib_json_get(o, "logit_bias"), *v;
    const char *key;
    size_t i, count = json_is_object(bias) ? json_object_size(bias) : json_array_size(bias);
    *n = 0;
    if (!bias) return SIB_OK;
    if (!json_is_object(bias) && !json_is_array(bias)) return bad_bias(t);
    if (count > 4096) return sib_refuse(t, "logit_bias", "`logit_bias` has %zu entries, allowed are 4096", count);
    t->bias = calloc(count + 1, sizeof *t->bias);
    if (!t->bias) return no_memory(t);
    json_object_foreach(bias, key, v)
    {
        char *end;
        long id = strtol(key, &end, 10);
        if (!*key || *end || key[strspn(key, "0123456789")] || !json_is_number(v) || id >= t->server->info.n_vocab) return bad_bias(t);
        t->bias[(*n)++] = (sib_logit_bias){(int32_t)id, (float)json_number_value(v)};
    }
    json_array_foreach(json_is_array(bias) ? bias : NULL, i, v)
    {
        json_t *id = json_array_get(v, 0), *b = json_array_get(v, 1);
        if (json_array_size(v) != 2 || !json_is_integer(id) || !json_is_number(b) || json_integer_value(id) < 0 || json_integer_value(id) >= t->server->info.n_vocab)
            return bad_bias(t);
        t->bias[(*n)++] = (sib_logit_bias){(int32_t)json_integer_value(id), (float)json_number_value(b)};
    }
    return SIB_OK;
}

static sib_status take_ends(sib_task *t, const json_t *o)
{
    const sib_generation_config *d = &t->server->engine->defaults;
    json_t *more = sib_json_get(o, "stop_token_ids"), *v;
    size_t i, n = json_array_size(more);
    bool ignore = false;
    SIB_TRY(sib_take_bool(t, o, "ignore_eos", &ignore));
    if (more && (!json_is_array(more) || n > 64)) return sib_refuse(t, "stop_token_ids", "`stop_token_ids` must be a list of up to 64 token ids");
    t->eos = calloc((size_t)d->n_eos + n + 1, sizeof *t->eos);
    if (!t->eos) return no_memory(t);
    for (int k = 0; k < d->n_eos && !ignore; k++) t->eos[t->n_eos++] = d->eos[k];
    json_array_foreach(more, i, v)
    {
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= t->server->info.n_vocab)
            return sib_refuse(t, "stop_token_ids", "`stop_token_ids` must be a list of up to 64 token ids");
        t->eos[t->n_eos++] = (int32_t)json_integer_value(v);
    }
    return SIB_OK;
}

sib_status sib_take_stops(sib_task *t, const json_t *stop, const char *key)
{
    size_t n = json_is_string(stop) ? 1 : json_array_size(stop);
    if (!stop) return SIB_OK;
    if (!json_is_string(stop) && !json_is_array(stop)) return sib_refuse(t, key, "`%s` must be a string or a list of strings", key);
    if (n > 16) return sib_refuse(t, key, "`%s` has %zu strings, allowed are 16", key, n);
    t->stops = calloc(n + 1, sizeof *t->stops);
    if (!t->stops) return no_memory(t);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_is_string(stop) ? stop : json_array_get(stop, i);
        if (!json_is_string(v)) return sib_refuse(t, key, "`%s` must be a string or a list of strings", key);
        if (json_string_length(v) > 256) return sib_refuse(t, key, "a string of `%s` is longer than 256 bytes", key);
        if (json_string_length(v) > 0) t->stops[t->n_stops++] = (sib_str){json_string_value(v), json_string_length(v)};
    }
    return SIB_OK;
}

static sib_status take_drafting(sib_task *t, const json_t *o)
{
    const json_t *model = json_object_get(o, "draft_model");
    int64_t n = -1;
    SIB_TRY(sib_take_int(t, o, "num_draft_tokens", 0, 1024, &n));
    SIB_TRY(sib_take_int(t, o, "speculative.n_max", 0, 1024, &n));
    if (n > SIB_MAX_DRAFT) n = SIB_MAX_DRAFT;
    if (n > 0) t->draft_n = (int)n;
    t->policy = SIB_POLICY_AUTO;
    const char *name = json_string_value(model), *own = t->server->o.draft_name;
    if (n == 0 || json_is_null(model) || (name && strcmp(name, "none") == 0)) t->policy = SIB_POLICY_OFF;
    else if (model && !(name && own && strcmp(name, own) == 0)) return sib_refuse(t, "draft_model", "`draft_model` can only be null, \"none\" or the drafter that this server has loaded");
    return SIB_OK;
}

sib_status sib_take_model(sib_task *t, const json_t *o)
{
    const char *name = NULL;
    SIB_TRY(sib_take_str(t, o, "model", &name));
    if (!name || t->server->o.any_model || strcmp(name, t->server->model_name) == 0 || strcmp(name, "default") == 0) return SIB_OK;
    return sib_refuse_as(t, 404, "not_found_error", "model_not_found", "model", "the model of the request is not served here; this server has \"%s\"", t->server->model_name);
}

static sib_status take_seed(sib_task *t, const json_t *o)
{
    int64_t seed = -1;
    SIB_TRY(sib_take_int(t, o, "seed", INT64_MIN, INT64_MAX, &seed));
    t->seed = (uint64_t)seed;
    if (seed != -1) return SIB_OK;
    if (getrandom(&t->seed, sizeof t->seed, 0) != (ssize_t)sizeof t->seed) return sib_refuse_as(t, 500, "server_error", NULL, NULL, "the system gives no random seed");
    t->seed >>= 12; /* below 2^52: every JSON reader keeps it exactly, and so are the seeds of the n answers */
    return SIB_OK;
}

static sib_status take_stream(sib_task *t, const json_t *o)
{
    static const char *const known[] = {"include_usage", "include_obfuscation", "continuous_usage_stats", NULL};
    const char *const *const lists[] = {known, NULL};
    const json_t *options = sib_json_get(o, "stream_options");
    SIB_TRY(sib_take_bool(t, o, "stream", &t->stream));
    SIB_TRY(sib_take_bool(t, o, "timings_per_token", &t->timings_per_token));
    if (!options) return SIB_OK;
    if (!json_is_object(options)) return sib_refuse(t, "stream_options", "`stream_options` must be an object");
    SIB_TRY(sib_check_fields(t, options, lists));
    return sib_take_bool(t, options, "include_usage", &t->include_usage);
}

static sib_status take_limits(sib_task *t, const json_t *o)
{
    static const char *const names[] = {"max_completion_tokens", "max_tokens", "n_predict", "max_output_tokens"};
    for (size_t i = 0; i < SIB_COUNT(names); i++) {
        if (!sib_json_get(o, names[i])) continue;
        int64_t v = 0;
        SIB_TRY(sib_take_int(t, o, names[i], INT64_MIN, INT64_MAX, &v));
        if (v < 1) return sib_refuse(t, names[i], "max_tokens must be at least 1");
        t->max_tokens = v;
        break;
    }
    int64_t n = 1;
    SIB_TRY(sib_take_int(t, o, "n", 1, SIB_MAX_CHOICES, &n));
    t->n = (int)n;
    t->choices = calloc((size_t)n, sizeof *t->choices);
    return t->choices ? SIB_OK : no_memory(t);
}

sib_status sib_take_sampling(sib_task *t, const json_t *o)
{
    sib_request r;
    sib_err err = {0};
    int64_t k = -2, repeat_n = 20, presence_n = 20, frequency_n = 20, least = 0, soft = 0;
    bool reuse = true;
    sib_request_init(&r);
    SIB_TRY(check_neutral(t, o));
    SIB_TRY(take_stream(t, o));
    SIB_TRY(take_limits(t, o));
    SIB_TRY(sib_take_num(t, o, "temperature", 0, 1000, &r.temperature));
    SIB_TRY(sib_take_num(t, o, "top_p", 0, 1, &r.top_p));
    if (r.top_p == 0) r.top_p = 1e-9; /* clients write 0 for "the best token only" */
    SIB_TRY(sib_take_int(t, o, "top_k", -1, INT32_MAX, &k));
    if (k >= -1) r.top_k = k < 0 ? 0 : (int)k;
    SIB_TRY(sib_take_num(t, o, "min_p", 0, 1, &r.min_p));
    SIB_TRY(sib_take_num(t, o, "repeat_penalty", 1e-3, 100, &r.repetition_penalty));
    SIB_TRY(sib_take_num(t, o, "repetition_penalty", 1e-3, 100, &r.repetition_penalty));
    SIB_TRY(sib_take_num(t, o, "presence_penalty", -100, 100, &r.presence_penalty));
    SIB_TRY(sib_take_num(t, o, "frequency_penalty", -100, 100, &r.frequency_penalty));
    SIB_TRY(sib_take_int(t, o, "repeat_last_n", -1, INT32_MAX, &repeat_n));
    SIB_TRY(sib_take_int(t, o, "repetition_context_size", 0, INT32_MAX, &repeat_n));
    SIB_TRY(sib_take_int(t, o, "presence_context_size", 0, INT32_MAX, &presence_n));
    SIB_TRY(sib_take_int(t, o, "frequency_context_size", 0, INT32_MAX, &frequency_n));
    SIB_TRY(sib_take_int(t, o, "min_tokens", 0, INT32_MAX, &least));
    SIB_TRY(sib_take_int(t, o, "max_soft_tokens", 1, 1 << 20, &soft));
    SIB_TRY(sib_take_bool(t, o, "include_stop_str_in_output", &t->include_stop));
    SIB_TRY(sib_take_bool(t, o, "cache_prompt", &reuse));
    t->no_reuse = !reuse;
    t->max_soft_tokens = (int)soft;
    SIB_TRY(take_seed(t, o));
    SIB_TRY(take_ends(t, o));
    SIB_TRY(take_drafting(t, o));
    int n_bias;
    SIB_TRY(take_bias(t, o, &n_bias));
    sib_sampler_params *p = &t->choices[0].sampler;
    sib_status s = sib_engine_sampler(t->server->engine, &r, p, t->bias, &err);
    p->bias = t->bias;
    p->n_bias = (size_t)n_bias;
    p->repetition_last_n = repeat_n < 0 ? 0 : (int)repeat_n;
    p->presence_last_n = (int)presence_n;
    p->frequency_last_n = (int)frequency_n;
    p->top_logprobs = t->logprobs ? (t->top_logprobs > 0 ? t->top_logprobs : 0) : -1;
    if (least > 0 && t->program) return sib_refuse(t, "min_tokens", "`min_tokens` is not supported for answers that must match a schema or pattern");
    if (t->program) p->min_new_tokens = 0;
    if (least > 0) {
        p->min_new_tokens = (uint64_t)least;
        p->eos = t->eos;
        p->n_eos = t->n_eos;
    }
    if (s == SIB_OK) s = sib_sampler_check(p, t->server->info.n_vocab, &err);
    t->temperature = p->temperature;
    t->top_p = p->top_p;
    return s == SIB_OK ? SIB_OK : sib_refuse_status(t, s, err.message);
}

/* ---- messages ------------------------------------------------------------------------------------------------ */

static sib_status add_picture(sib_task *t, sib_str url, size_t message)
{
    sib_err err = {0};
    if (t->n_pictures == SIB_MAX_PICTURES) return sib_refuse(t, "messages", "a request may have up to %d pictures", SIB_MAX_PICTURES);
    if (!sib_is_data_url(url))
        return sib_refuse(t, "messages", "messages[%zu]: pictures are taken as data: URLs only; this server fetches nothing", message);
    if (url.n > SIB_MAX_PICTURE_BYTES) return sib_refuse(t, "messages", "messages[%zu]: the picture is larger than %zu bytes", message, SIB_MAX_PICTURE_BYTES);
    size_t n = (size_t)t->n_pictures + 1;
    sib_buf *v = realloc(t->pictures, n * sizeof *v);
    if (v) t->pictures = v;
    sib_picture *refs = realloc(t->picture_refs, n * sizeof *refs);
    if (refs) t->picture_refs = refs;
    if (!v || !refs) return no_memory(t);
    sib_buf *file = &t->pictures[t->n_pictures++];
    *file = (sib_buf){0};
    sib_status s = sib_data_url_decode(file, url, SIB_MAX_PICTURE_BYTES, &err);
    if (s != SIB_OK) return sib_refuse(t, "messages", "messages[%zu]: picture: %s", message, err.message);
    for (size_t i = 0; i < n; i++) t->picture_refs[i] = (sib_picture){t->pictures[i].p ? t->pictures[i].p : "", t->pictures[i].n, "picture"};
    return SIB_OK;
}

/* The URL of {"type":"image_url","image_url":{"url"}|"..."}, {"type":"input_image",...}, {"type":"image","image"|"source"|"url"}. */
static sib_str picture_url(const json_t *part)
{
    static const char *const keys[] = {"image_url", "image", "source", "url", "data"};
    for (size_t i = 0; i < SIB_COUNT(keys); i++) {
        const json_t *v = sib_json_get(part, keys[i]);
        if (json_is_object(v)) v = sib_json_get(v, "url") ? sib_json_get(v, "url") : sib_json_get(v, "data");
        if (json_is_string(v)) return (sib_str){json_string_value(v), json_string_length(v)};
    }
    return (sib_str){0};
}

/* Takes the pictures out of a message's parts: the template needs only their places. */
static sib_status take_parts(sib_task *t, json_t *content, size_t message)
{
    static const char *const texts[] = {"text", "input_text", "output_text", "refusal", NULL}, *const images[] = {"image_url", "input_image", "image", NULL};
    size_t i;
    json_t *part;
    json_array_foreach(content, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        if (json_is_string(part)) continue;
        if (!type) return sib_refuse(t, "messages", "messages[%zu].content[%zu] has no type", message, i);
        if (in_list(texts, type)) {
            if (!json_is_string(json_object_get(part, strcmp(type, "refusal") ? "text" : "refusal")))
                return sib_refuse(t, "messages", "messages[%zu].content[%zu] has no text", message, i);
            if (!strcmp(type, "refusal") && json_object_set(part, "text", json_object_get(part, "refusal")) + json_object_set_new(part, "type", json_string("text")) != 0) return no_memory(t);
            continue;
        }
        if (!in_list(images, type)) return sib_refuse(t, "messages", "messages[%zu].content[%zu]: parts of type \"%.40s\" are not supported", message, i, type);
        if (!t->server->info.pictures) return sib_refuse(t, "messages", "messages[%zu] has a picture, and this model reads none", message);
        sib_str url = picture_url(part);
        if (!url.p) return sib_refuse(t, "messages", "messages[%zu].content[%zu] has no picture", message, i);
        SIB_TRY(add_picture(t, url, message));
        if (json_array_set_new(content, i, json_pack("{s:s}", "type", "image")) != 0) return no_memory(t);
    }
    return SIB_OK;
}

/* Ids that are null or missing are made up, so that answers can be matched by order. */
static sib_status check_calls(sib_task *t, json_t *calls, size_t message)
{
    size_t i;
    json_t *call;
    if (!json_is_array(calls)) return sib_refuse(t, "messages", "messages[%zu].tool_calls must be a list", message);
    json_array_foreach(calls, i, call)
    {
        json_t *f = json_object_get(call, "function");
        if (!json_is_string(json_object_get(f, "name"))) return sib_refuse(t, "messages", "messages[%zu].tool_calls[%zu] has no function name", message, i);
        if (sib_json_get(call, "id")) continue;
        char id[48];
        (void)snprintf(id, sizeof id, "call_%zu_%zu", message, i);
        if (json_object_set_new(call, "id", json_string(id)) != 0) return no_memory(t);
    }
    return SIB_OK;
}

static sib_status check_messages(sib_task *t, json_t *messages)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", NULL};
    size_t i;
    json_t *m;
    if (!json_is_array(messages)) return sib_refuse(t, "messages", "`messages` must be a list");
    if (json_array_size(messages) == 0) return sib_refuse(t, "messages", "`messages` is empty");
    json_array_foreach(messages, i, m)
    {
        const char *role = json_string_value(json_object_get(m, "role"));
        json_t *content = json_object_get(m, "content"), *calls = sib_json_get(m, "tool_calls");
        if (!role) return sib_refuse(t, "messages", "messages[%zu] has no role", i);
        if (!in_list(roles, role)) return sib_refuse(t, "messages", "messages[%zu].role is \"%.40s\", allowed are system, developer, user, assistant, tool", i, role);
        bool empty = !content || json_is_null(content);
        if (empty && strcmp(role, "assistant") != 0) return sib_refuse(t, "messages", "messages[%zu] has no content", i);
        if (!empty && !json_is_string(content) && !json_is_array(content)) return sib_refuse(t, "messages", "messages[%zu].content must be a string or a list of parts", i);
        if (json_is_array(content)) SIB_TRY(take_parts(t, content, i));
        if (calls) SIB_TRY(check_calls(t, calls, i));
    }
    return SIB_OK;
}

static sib_status check_tools(sib_task *t, json_t *tools)
{
    size_t i;
    json_t *tool;
    if (!tools) return SIB_OK;
    if (!json_is_array(tools)) return sib_refuse(t, "tools", "`tools` must be a list");
    if (json_array_size(tools) > 128) return sib_refuse(t, "tools", "`tools` has %zu entries, allowed are 128", json_array_size(tools));
    json_array_foreach(tools, i, tool)
    {
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (type && strcmp(type, "function") != 0) return sib_refuse(t, "tools", "tools[%zu]: type \"%.40s\" is not supported, only functions are", i, type);
        if (!json_is_string(json_object_get(json_object_get(tool, "function"), "name"))) return sib_refuse(t, "tools", "tools[%zu] has no function name", i);
    }
    return SIB_OK;
}

/* "continue_final_message": the prompt ends where the last message's text does. */
static sib_status cut_after_final(sib_task *t, const json_t *messages)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1), *content = json_object_get(last, "content");
    const char *role = json_string_value(json_object_get(last, "role")), *text = json_string_value(content);
    size_t n = json_string_length(content);
    if (!role || strcmp(role, "assistant") != 0 || !text) return sib_refuse(t, "continue_final_message", "`continue_final_message` needs a last message of the assistant with text");
    while (n > 0 && strchr(" \t\r\n", text[n - 1])) n--; /* templates trim */
    while (n > 0 && strchr(" \t\r\n", text[0])) text++, n--;
    for (size_t at = t->prompt.n; n > 0 && at >= n; at--)
        if (memcmp(t->prompt.p + at - n, text, n) == 0) {
            t->prompt.n = at;
            t->prompt.p[at] = 0;
            while (t->given.n > 0 && t->given.v[t->given.n - 1].at >= at) t->given.n--;
            if (t->given.n > 0 && t->given.v[t->given.n - 1].at + t->given.v[t->given.n - 1].n > at) t->given.v[t->given.n - 1].n = at - t->given.v[t->given.n - 1].at;
            return SIB_OK;
        }
    return sib_refuse(t, "continue_final_message", "the chat template does not print the last message's text as it is");
}

static sib_status tokenize(sib_task *t)
{
    sib_err err = {0};
    sib_server *s = t->server;
    /* Far too long a text is refused without tokenizing it. */
    if (t->prompt.n / s->longest_piece > (size_t)s->info.n_ctx)
        return sib_refuse_as(t, 400, "invalid_request_error", "context_length_exceeded", "messages",
                             "This model's maximum context length is %d tokens. However, your prompt has more than %zu tokens.", s->info.n_ctx, t->prompt.n / s->longest_piece);
    sib_status status = sib_tokenizer_encode_given(s->engine->tokenizer, sib_buf_view(&t->prompt), &t->given, 0, &t->ids, &err);
    return status == SIB_OK ? SIB_OK : sib_refuse_status(t, status, err.message);
}

static sib_status render(sib_task *t, const sib_chat_input *in)
{
    sib_err err = {0};
    json_t *context = json_pack("{s:O,s:b}", "messages", in->messages, "add_generation_prompt", !in->continue_final && !in->no_generation_prompt);
    int failed = !context;
    if (in->tools) failed |= json_object_set(context, "tools", in->tools);
    if (in->kwargs) failed |= json_object_update(context, in->kwargs);
    char *z = failed ? NULL : json_dumps(context, JSON_COMPACT);
    json_decref(context);
    if (!z) return no_memory(t);
    sib_status s = t->server->engine->chat ? sib_chat_render_given(t->server->engine->chat, sib_str_of(z), &t->prompt, &t->given, &err)
                                           : sib_fail(&err, SIB_EUNSUPPORTED, "the checkpoint has no chat template; use /v1/completions");
    free(z);
    if (s == SIB_OK && t->prompt.failed) return no_memory(t);
    if (t->server->o.trust_content) t->given.n = 0;
    return s == SIB_OK ? SIB_OK : sib_refuse_status(t, s, err.message);
}

sib_status sib_make_prompt(sib_task *t, const sib_chat_input *in)
{
    SIB_TRY(check_messages(t, in->messages));
    SIB_TRY(check_tools(t, in->tools));
    t->tools = in->tools;
    SIB_TRY(render(t, in));
    if (in->continue_final) SIB_TRY(cut_after_final(t, in->messages));
    if (in->force_name) {
        if (t->server->markup == SIB_MARKUP_NONE) return sib_refuse(t, "tool_choice", "this model's chat template has no tool calls");
        if (t->program) return sib_refuse(t, "tool_choice", "`tool_choice` cannot ask for a call in an answer that must match a schema or pattern");
        t->forced = true;
        sib_reply_force_call(t->server->markup, sib_str_of(in->force_name), &t->prompt, &t->begun);
        if (t->begun.failed || t->prompt.failed) return no_memory(t);
    }
    return tokenize(t);
}

/* ---- chat ---------------------------------------------------------------------------------------------------------- */

sib_status sib_take_effort(sib_task *t, json_t *kwargs, const char *effort, const char *param)
{
    static const char *const levels[][2] = {{"minimal", "low"}, {"low", "low"}, {"medium", "medium"}, {"high", "high"}, {"xhigh", "xhigh"}, {"max", "max"}};
    int failed = 0;
    if (strcmp(effort, "none") == 0) {
        return json_object_set_new(kwargs, "enable_thinking", json_false()) == 0 ? SIB_OK : no_memory(t);
    }
    for (size_t i = 0; i < SIB_COUNT(levels); i++) {
        if (strcmp(effort, levels[i][0]) != 0) continue;
        failed |= json_object_set_new(kwargs, "enable_thinking", json_true());
        failed |= json_object_set_new(kwargs, "reasoning_effort", json_string(levels[i][1]));
        return failed ? no_memory(t) : SIB_OK;
    }
    return sib_refuse(t, param, "`%s` must be one of none, minimal, low, medium, high, xhigh, max", param);
}

/* Every way to ask for reasoning, the later ones stronger: template variables, enable_thinking, thinking, reasoning, reasoning_effort. */
static sib_status take_reasoning(sib_task *t, const json_t *o, json_t *kwargs)
{
    json_t *given = sib_json_get(o, "chat_template_kwargs"), *thinking = sib_json_get(o, "thinking"), *reasoning = sib_json_get(o, "reasoning");
    const char *effort = NULL, *type = NULL;
    bool enable = false;
    if (given && !json_is_object(given)) return sib_refuse(t, "chat_template_kwargs", "`chat_template_kwargs` must be an object");
    if (given && (sib_json_get(given, "messages") || sib_json_get(given, "tools"))) return sib_refuse(t, "chat_template_kwargs", "`chat_template_kwargs` cannot replace messages or tools");
    if (given && json_object_update(kwargs, given) != 0) return no_memory(t);
    SIB_TRY(sib_take_bool(t, o, "enable_thinking", &enable));
    if (sib_json_get(o, "enable_thinking") && json_object_set_new(kwargs, "enable_thinking", json_boolean(enable)) != 0) return no_memory(t);
    if (thinking) {
        SIB_TRY(sib_take_str(t, thinking, "type", &type));
        if (!type) return sib_refuse(t, "thinking", "`thinking` must be an object with a type");
        if (json_object_set_new(kwargs, "enable_thinking", json_boolean(strcmp(type, "disabled") != 0)) != 0) return no_memory(t);
    }
    if (reasoning) SIB_TRY(sib_take_str(t, reasoning, "effort", &effort));
    SIB_TRY(sib_take_str(t, o, "reasoning_effort", &effort));
    return effort ? sib_take_effort(t, kwargs, effort, "reasoning_effort") : SIB_OK;
}

/* tool_choice: none, auto, required, {"type":"function","function":{"name"}} */
static sib_status take_tools(sib_task *t, const json_t *o, sib_chat_input *in)
{
    const json_t *choice = sib_json_get(o, "tool_choice");
    const char *word = json_string_value(choice);
    bool parallel = true;
    in->tools = sib_json_get(o, "tools");
    SIB_TRY(sib_take_bool(t, o, "parallel_tool_calls", &parallel));
    t->one_call = !parallel;
    if (json_array_size(in->tools) == 0 && json_is_array(in->tools)) in->tools = NULL;
    if (!choice || (word && strcmp(word, "auto") == 0)) return SIB_OK;
    if (word && strcmp(word, "none") == 0) {
        in->tools = NULL;
        return SIB_OK;
    }
    if (!in->tools) return sib_refuse(t, "tool_choice", "`tool_choice` asks for a call, and there are no tools");
    if (word && strcmp(word, "required") == 0) {
        in->force_name = "";
        return SIB_OK;
    }
    const char *name = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
    if (!name) return sib_refuse(t, "tool_choice", "`tool_choice` must be none, auto, required or a function");
    size_t i;
    json_t *tool;
    json_array_foreach(in->tools, i, tool)
    {
        const char *n = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        if (n && strcmp(n, name) == 0) in->force_name = name;
    }
    return in->force_name ? SIB_OK : sib_refuse(t, "tool_choice", "`tool_choice` names a function that is not among the tools");
}

static sib_status take_logprobs(sib_task *t, const json_t *o)
{
    int64_t top = -1;
    SIB_TRY(sib_take_bool(t, o, "logprobs", &t->logprobs));
    SIB_TRY(sib_take_int(t, o, "top_logprobs", -1, SIB_MAX_TOP_LOGPROBS, &top));
    if (top > 0 && !t->logprobs) return sib_refuse(t, "top_logprobs", "`top_logprobs` needs `logprobs`");
    t->top_logprobs = (int)top;
    return SIB_OK;
}

static sib_status chat_input(sib_task *t, sib_chat_input *in)
{
    static const char *const own[] = {"messages", "max_completion_tokens", "n_predict", "n", "stop", "logprobs", "top_logprobs", "tools", "tool_choice",
                                      "parallel_tool_calls", "chat_template_kwargs", "enable_thinking", "reasoning_effort", "reasoning",
                                      "thinking", "add_generation_prompt", "continue_final_message", NULL};
    const char *const *const lists[] = {own, sib_sampling_fields, sib_ignored_fields, sib_structured_fields, NULL};
    const json_t *o = t->request;
    bool generation_prompt = true;
    SIB_TRY(sib_check_fields(t, o, lists));
    in->messages = json_object_get(o, "messages");
    SIB_TRY(take_tools(t, o, in));
    SIB_TRY(sib_take_structure(t, o));
    SIB_TRY(sib_take_bool(t, o, "continue_final_message", &in->continue_final));
    SIB_TRY(sib_take_bool(t, o, "add_generation_prompt", &generation_prompt));
    if (in->continue_final && sib_json_get(o, "add_generation_prompt") && generation_prompt)
        return sib_refuse(t, "continue_final_message", "`continue_final_message` and `add_generation_prompt` exclude each other");
    in->no_generation_prompt = !generation_prompt;
    return take_reasoning(t, o, in->kwargs);
}

sib_status sib_prepare_chat(sib_task *t)
{
    SIB_TRY(sib_parse_body(t));
    SIB_TRY(sib_take_model(t, t->request));
    sib_chat_input in = {.kwargs = json_object()};
    sib_status s = in.kwargs ? chat_input(t, &in) : no_memory(t);
    if (s == SIB_OK) s = take_logprobs(t, t->request);
    if (s == SIB_OK) s = sib_take_sampling(t, t->request);
    if (s == SIB_OK) s = sib_take_stops(t, sib_json_get(t->request, "stop"), "stop");
    if (s == SIB_OK) s = sib_make_prompt(t, &in);
    json_decref(in.kwargs);
    return s == SIB_OK ? sib_task_submit(t) : s;
}

/* ---- raw completions --------------------------------------------------------------------------------------------- */

static sib_status take_ids(sib_task *t, const json_t *list)
{
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)list, i, v)
    {
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= t->server->info.n_vocab)
            return sib_refuse(t, "prompt", "`prompt` must be a string or a list of token ids below %d", t->server->info.n_vocab);
        sib_ids_add(&t->ids, (int32_t)json_integer_value(v));
    }
    return t->ids.failed ? no_memory(t) : SIB_OK;
}

static sib_status take_raw_prompt(sib_task *t)
{
    const json_t *p = sib_json_get(t->request, "prompt");
    sib_err err = {0};
    if (json_array_size(p) == 1 && json_is_string(json_array_get(p, 0))) p = json_array_get(p, 0);
    if (json_is_array(p) && json_array_size(p) > 0) return take_ids(t, p);
    if (!json_is_string(p)) return sib_refuse(t, "prompt", "`prompt` must be a string or a list of token ids");
    sib_buf_add(&t->prompt, json_string_value(p), json_string_length(p));
    if (t->prompt.failed) return no_memory(t);
    if (t->prompt.n / t->server->longest_piece > (size_t)t->server->info.n_ctx) return tokenize(t); /* refuses */
    int32_t *ids;
    size_t n;
    sib_status s = sib_tokenize(t->server->engine, t->prompt.p, t->prompt.n, SIB_TOKENIZE_SPECIAL | SIB_TOKENIZE_BOS, &ids, &n, &err);
    if (s != SIB_OK) return sib_refuse_status(t, s, err.message);
    t->ids = (sib_ids){.v = ids, .n = n, .cap = n};
    return SIB_OK;
}

/* "logprobs": a number asks for the legacy shape, true for that of chats. */
static sib_status take_raw_logprobs(sib_task *t)
{
    const json_t *v = sib_json_get(t->request, "logprobs");
    int64_t k = 0;
    if (!v || json_is_boolean(v)) {
        t->logprobs = json_is_true(v);
        return SIB_OK;
    }
    SIB_TRY(sib_take_int(t, t->request, "logprobs", 0, SIB_MAX_TOP_LOGPROBS, &k));
    t->logprobs = t->legacy_logprobs = true;
    t->top_logprobs = (int)k;
    return SIB_OK;
}

static sib_status raw_fields(sib_task *t)
{
    static const char *const own[] = {"prompt", "max_completion_tokens", "n_predict", "n", "stop", "logprobs", "echo", "suffix", "best_of", NULL};
    const char *const *const lists[] = {own, sib_sampling_fields, sib_ignored_fields, sib_structured_fields, NULL};
    const json_t *o = t->request;
    bool echo = false;
    int64_t best = 1;
    SIB_TRY(sib_check_fields(t, o, lists));
    SIB_TRY(sib_take_bool(t, o, "echo", &echo));
    SIB_TRY(sib_take_structure(t, o));
    SIB_TRY(sib_take_int(t, o, "best_of", 1, 1, &best));
    if (echo) return sib_refuse(t, "echo", "`echo` is not supported by this server");
    if (sib_json_get(o, "suffix") && json_string_length(sib_json_get(o, "suffix")) > 0) return sib_refuse(t, "suffix", "`suffix` is not supported by this server");
    return SIB_OK;
}

sib_status sib_prepare_completion(sib_task *t)
{
    SIB_TRY(sib_parse_body(t));
    SIB_TRY(raw_fields(t));
    SIB_TRY(sib_take_model(t, t->request));
    SIB_TRY(take_raw_logprobs(t));
    SIB_TRY(sib_take_sampling(t, t->request));
    SIB_TRY(sib_take_stops(t, sib_json_get(t->request, "stop"), "stop"));
    SIB_TRY(take_raw_prompt(t));
    return sib_task_submit(t);
}

/* ---- text tools --------------------------------------------------------------------------------------------------- */

static sib_status reply(sib_task *t, sib_buf *body)
{
    bool ok = !body->failed && sib_task_post(t, SIB_EVENT_REPLY, 0, 200, 0, sib_buf_view(body), (sib_str){0});
    sib_buf_deinit(body);
    return ok ? SIB_OK : no_memory(t);
}

sib_status sib_prepare_tokenize(sib_task *t)
{
    static const char *const own[] = {"content", "prompt", "add_special", "add_special_tokens", "with_pieces", "parse_special", "model", NULL};
    const char *const *const lists[] = {own, NULL};
    bool special = false, pieces = false, parse = true;
    const char *text = NULL;
    sib_err err = {0};
    SIB_TRY(sib_parse_body(t));
    SIB_TRY(sib_check_fields(t, t->request, lists));
    SIB_TRY(sib_take_str(t, t->request, "prompt", &text));
    SIB_TRY(sib_take_str(t, t->request, "content", &text));
    SIB_TRY(sib_take_bool(t, t->request, "add_special_tokens", &special));
    SIB_TRY(sib_take_bool(t, t->request, "add_special", &special));
    SIB_TRY(sib_take_bool(t, t->request, "parse_special", &parse));
    SIB_TRY(sib_take_bool(t, t->request, "with_pieces", &pieces));
    if (!text) return sib_refuse(t, "content", "`content` must be of type string");
    const sib_tokenizer *k = t->server->engine->tokenizer;
    sib_status s = sib_tokenizer_encode(k, sib_str_of(text), (special ? SIB_ADD_SPECIAL : 0u) | (parse ? 0u : SIB_PLAIN_TEXT), &t->ids, &err);
    if (s != SIB_OK) return sib_refuse_status(t, s, err.message);
    sib_buf out = {0};
    sib_buf_addz(&out, "{\"tokens\":[");
    for (size_t i = 0; i < t->ids.n; i++) {
        if (i) sib_buf_addc(&out, ',');
        if (!pieces) {
            sib_buf_addf(&out, "%d", t->ids.v[i]);
            continue;
        }
        sib_buf_addf(&out, "{\"id\":%d,\"piece\":", t->ids.v[i]);
        sib_json_put_str(&out, sib_tokenizer_piece(k, t->ids.v[i]));
        sib_buf_addc(&out, '}');
    }
    sib_buf_addf(&out, "],\"count\":%zu}", t->ids.n);
    return reply(t, &out);
}

sib_status sib_prepare_detokenize(sib_task *t)
{
    static const char *const own[] = {"tokens", "model", NULL};
    const char *const *const lists[] = {own, NULL};
    sib_err err = {0};
    sib_buf out = {0}, text = {0};
    SIB_TRY(sib_parse_body(t));
    SIB_TRY(sib_check_fields(t, t->request, lists));
    const json_t *tokens = sib_json_get(t->request, "tokens");
    if (!json_is_array(tokens)) return sib_refuse(t, "tokens", "`tokens` must be a list of token ids");
    SIB_TRY(take_ids(t, tokens));
    sib_status s = sib_tokenizer_decode(t->server->engine->tokenizer, t->ids.v, t->ids.n, SIB_KEEP_SPECIAL, &text, &err);
    if (s == SIB_OK) {
        sib_buf_addz(&out, "{\"content\":");
        sib_json_put_str(&out, sib_buf_view(&text));
        sib_buf_addc(&out, '}');
    }
    out.failed |= text.failed;
    sib_buf_deinit(&text);
    return s == SIB_OK ? reply(t, &out) : sib_refuse_status(t, s, err.message);
}

sib_status sib_prepare_template(sib_task *t)
{
    sib_buf out = {0};
    SIB_TRY(sib_parse_body(t));
    sib_chat_input in = {.kwargs = json_object()};
    sib_status s = in.kwargs ? chat_input(t, &in) : no_memory(t);
    if (s == SIB_OK) s = sib_make_prompt(t, &in);
    json_decref(in.kwargs);
    SIB_TRY(s);
    sib_buf_addz(&out, "{\"prompt\":");
    sib_json_put_str(&out, sib_buf_view(&t->prompt));
    sib_buf_addc(&out, '}');
    return reply(t, &out);
}

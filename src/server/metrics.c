/* server/metrics.c - see metrics.h. */
#include "server/metrics.h"

#include "base/json.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const double bounds[SIB_HISTOGRAM_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60};

void sib_metrics_request(sib_metrics *m, const char *endpoint, int status)
{
    for (int i = 0; i < m->n_requests; i++)
        if (m->requests[i].status == status && strcmp(m->requests[i].endpoint, endpoint) == 0) {
            m->requests[i].n++;
            return;
        }
    if (m->n_requests < (int)SIB_COUNT(m->requests)) m->requests[m->n_requests++] = (sib_request_count){endpoint, status, 1};
}

void sib_metrics_observe(sib_histogram *h, double seconds)
{
    int i = 0;
    while (i < SIB_HISTOGRAM_BUCKETS && seconds > bounds[i]) i++;
    h->bucket[i]++;
    h->sum += seconds;
}

void sib_metrics_job(sib_metrics *m, const sib_job_report *r)
{
    sib_metrics_observe(&m->queue, r->queue_ms * 1e-3);
    m->prompt_tokens += (uint64_t)(r->prompt_tokens - r->cached_tokens);
    m->cached_tokens += (uint64_t)r->cached_tokens;
    m->generated_tokens += (uint64_t)r->generated_tokens;
    m->prompt_s += r->prefill_ms * 1e-3;
    m->generate_s += r->decode_ms * 1e-3;
    m->drafts += r->rounds;
    m->draft_tokens += r->proposed;
    m->accepted += r->accepted;
    m->target_passes += r->target_passes;
    for (size_t i = 0; i < SIB_POLICY_DEPTHS; i++) m->accepted_at[i] += r->accepted_at[i];
}

typedef struct writer {
    sib_buf *out;
    char label[192]; /* model="..." with the escapes of the format */
} writer;

static void family(const writer *w, const char *name, const char *type, const char *help)
{
    sib_buf_addf(w->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void value(const writer *w, const char *name, const char *labels, double v)
{
    sib_buf_addf(w->out, "%s{%s%s%s} ", name, w->label, labels[0] ? "," : "", labels);
    sib_json_put_num(w->out, v);
    sib_buf_addc(w->out, '\n');
}

static void single(const writer *w, const char *name, const char *type, const char *help, double v)
{
    family(w, name, type, help);
    value(w, name, "", v);
}

static void histogram(const writer *w, const char *name, const char *help, const sib_histogram *h)
{
    char labels[40], part[80];
    uint64_t n = 0;
    family(w, name, "histogram", help);
    (void)snprintf(part, sizeof part, "%s_bucket", name);
    for (int i = 0; i < SIB_HISTOGRAM_BUCKETS; i++) {
        n += h->bucket[i];
        (void)snprintf(labels, sizeof labels, "le=\"%g\"", bounds[i]);
        value(w, part, labels, (double)n);
    }
    n += h->bucket[SIB_HISTOGRAM_BUCKETS];
    value(w, part, "le=\"+Inf\"", (double)n);
    (void)snprintf(part, sizeof part, "%s_sum", name);
    value(w, part, "", h->sum);
    (void)snprintf(part, sizeof part, "%s_count", name);
    value(w, part, "", (double)n);
}

static double resident_bytes(void)
{
    long total, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f) return 0;
    if (fscanf(f, "%ld %ld", &total, &resident) != 2) resident = 0;
    (void)fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static void set_label(writer *w, const char *model)
{
    size_t n = 0;
    char *z = w->label;
    n += (size_t)snprintf(z, sizeof w->label, "model=\"");
    for (; *model && n < sizeof w->label - 3; model++) {
        if (*model == '"' || *model == '\\' || *model == '\n') z[n++] = '\\';
        z[n++] = *model == '\n' ? 'n' : *model;
    }
    z[n++] = '"';
    z[n] = 0;
}

void sib_metrics_write(const sib_metrics *m, const sib_sched_stats *s, const char *model, sib_buf *out)
{
    writer w = {.out = out};
    char labels[128];
    set_label(&w, model);
    family(&w, "sibyl_requests_total", "counter", "Requests answered, by endpoint and HTTP status.");
    for (int i = 0; i < m->n_requests; i++) {
        (void)snprintf(labels, sizeof labels, "endpoint=\"%s\",status=\"%d\"", m->requests[i].endpoint, m->requests[i].status);
        value(&w, "sibyl_requests_total", labels, (double)m->requests[i].n);
    }
    histogram(&w, "sibyl_request_queue_seconds", "Time a request waited for a slot.", &m->queue);
    histogram(&w, "sibyl_time_to_first_token_seconds", "Time from arrival to the first text.", &m->first_token);
    histogram(&w, "sibyl_inter_token_seconds", "Time between pieces of text.", &m->inter_token);
    histogram(&w, "sibyl_e2e_seconds", "Time from arrival to the end of an answer.", &m->whole);
    single(&w, "sibyl_num_requests_running", "gauge", "Answers being computed.", s->running);
    single(&w, "sibyl_num_requests_waiting", "gauge", "Answers waiting for a slot.", s->waiting);
    single(&w, "sibyl_kv_cache_usage_perc", "gauge", "Positions held, as a part of all.", (double)s->kv_tokens / (double)s->kv_capacity);
    single(&w, "sibyl_prompt_cache_hit_tokens_total", "counter", "Prompt tokens that needed no computing.", (double)m->cached_tokens);
    family(&w, "sibyl_requests_cancelled_total", "counter", "Requests whose client left, by phase.");
    value(&w, "sibyl_requests_cancelled_total", "phase=\"waiting\"", (double)m->cancelled_waiting);
    value(&w, "sibyl_requests_cancelled_total", "phase=\"running\"", (double)m->cancelled_running);
    family(&w, "sibyl_requests_rejected_total", "counter", "Requests refused, by reason.");
    value(&w, "sibyl_requests_rejected_total", "reason=\"queue_full\"", (double)m->rejected_full);
    value(&w, "sibyl_requests_rejected_total", "reason=\"context_length\"", (double)m->rejected_size);
    value(&w, "sibyl_requests_rejected_total", "reason=\"invalid\"", (double)m->rejected_other);
    single(&w, "sibyl_spec_decode_num_drafts_total", "counter", "Rounds with a draft.", (double)m->drafts);
    single(&w, "sibyl_spec_decode_num_draft_tokens_total", "counter", "Tokens drafted.", (double)m->draft_tokens);
    single(&w, "sibyl_spec_decode_num_accepted_tokens_total", "counter", "Drafted tokens accepted.", (double)m->accepted);
    family(&w, "sibyl_spec_decode_num_accepted_tokens_per_pos_total", "counter", "Drafted tokens accepted, by position.");
    for (size_t i = 0; i < SIB_POLICY_DEPTHS && m->accepted_at[i] > 0; i++) {
        (void)snprintf(labels, sizeof labels, "position=\"%zu\"", i);
        value(&w, "sibyl_spec_decode_num_accepted_tokens_per_pos_total", labels, (double)m->accepted_at[i]);
    }
    single(&w, "sibyl_spec_decode_tokens_per_pass", "gauge", "Tokens for each forward pass of the model.",
           m->target_passes ? (double)m->generated_tokens / (double)m->target_passes : 0);
    single(&w, "sibyl_rounds_total", "counter", "Forward passes over all running requests.", (double)s->rounds);
    single(&w, "process_resident_memory_bytes", "gauge", "Resident memory.", resident_bytes());
    family(&w, "sibyl_build_info", "gauge", "Version of the program.");
    (void)snprintf(labels, sizeof labels, "version=\"%s\"", sib_version());
    value(&w, "sibyl_build_info", labels, 1);
    single(&w, "llamacpp:prompt_tokens_total", "counter", "Prompt tokens computed.", (double)m->prompt_tokens);
    single(&w, "llamacpp:prompt_seconds_total", "counter", "Time spent on prompts.", m->prompt_s);
    single(&w, "llamacpp:tokens_predicted_total", "counter", "Tokens generated.", (double)m->generated_tokens);
    single(&w, "llamacpp:tokens_predicted_seconds_total", "counter", "Time spent on generating.", m->generate_s);
    single(&w, "llamacpp:prompt_tokens_seconds", "gauge", "Prompt tokens a second.", m->prompt_s > 0 ? (double)m->prompt_tokens / m->prompt_s : 0);
    single(&w, "llamacpp:predicted_tokens_seconds", "gauge", "Generated tokens a second.", m->generate_s > 0 ? (double)m->generated_tokens / m->generate_s : 0);
    single(&w, "llamacpp:kv_cache_usage_ratio", "gauge", "Positions held, as a part of all.", (double)s->kv_tokens / (double)s->kv_capacity);
    single(&w, "llamacpp:kv_cache_tokens", "gauge", "Positions held.", (double)s->kv_tokens);
    single(&w, "llamacpp:requests_processing", "gauge", "Answers being computed.", s->running);
    single(&w, "llamacpp:requests_deferred", "gauge", "Answers waiting for a slot.", s->waiting);
}

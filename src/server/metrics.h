/* server/metrics.h - counters and histograms in Prometheus' text format 0.0.4 (server_api.md 11). Loop thread only. */
#ifndef SIB_SERVER_METRICS_H
#define SIB_SERVER_METRICS_H

#include "sched/sched.h"

#define SIB_HISTOGRAM_BUCKETS 14

typedef struct sib_histogram {
    uint64_t bucket[SIB_HISTOGRAM_BUCKETS + 1]; /* the last: +Inf; not cumulative */
    double sum;
} sib_histogram;

typedef struct sib_request_count {
    const char *endpoint;
    int status;
    uint64_t n;
} sib_request_count;

typedef struct sib_metrics {
    sib_request_count requests[96];
    int n_requests;
    sib_histogram queue, first_token, inter_token, whole; /* seconds */
    uint64_t prompt_tokens, cached_tokens, generated_tokens;
    double prompt_s, generate_s;
    uint64_t cancelled_waiting, cancelled_running, rejected_full, rejected_size, rejected_other;
    uint64_t drafts, draft_tokens, accepted, accepted_at[SIB_POLICY_DEPTHS], target_passes;
} sib_metrics;

void sib_metrics_request(sib_metrics *m, const char *endpoint, int status);
void sib_metrics_observe(sib_histogram *h, double seconds);
void sib_metrics_job(sib_metrics *m, const sib_job_report *r);
void sib_metrics_write(const sib_metrics *m, const sib_sched_stats *s, const char *model, sib_buf *out);

#endif

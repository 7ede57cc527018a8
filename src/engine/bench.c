/* engine/bench.c - see bench.h. Times whole forward calls of the model, sampling left out. */
#include "engine/bench.h"

#include "base/cpu.h"
#include "base/rng.h"
#include "engine/doctor.h"
#include "kernels/probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void sib_bench_init(sib_bench_options *o)
{
    *o = (sib_bench_options){.prefill = {128, 512}, .n_prefill = 2, .depth = {0}, .n_depth = 1, .rows = {1, 2, 4, 8, 16}, .n_rows = 5,
                             .batch = {1, 2, 4, 8}, .n_batch = 4, .decode = 32, .repeats = 5};
    sib_options_init(&o->engine);
}

typedef struct bench {
    sib_engine *e;
    const sib_bench_options *o;
    sib_ceilings before, after;
    double samples[64];
    int n;
    uint64_t seed;
    int32_t *ids; /* [max rows] scratch */
} bench;

static void note(const bench *b, const char *fmt, int value)
{
    char line[96];
    (void)snprintf(line, sizeof line, fmt, value);
    if (b->o->note) b->o->note(b->o->note_ctx, line);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median and best (smallest) of the samples. */
static void summary(bench *b, double *median, double *best)
{
    qsort(b->samples, (size_t)b->n, sizeof *b->samples, by_value);
    *median = b->n % 2 ? b->samples[b->n / 2] : 0.5 * (b->samples[b->n / 2 - 1] + b->samples[b->n / 2]);
    *best = b->samples[0];
}

static void random_ids(bench *b, int n)
{
    for (int i = 0; i < n; i++) b->ids[i] = (int32_t)(sib_splitmix64(&b->seed) % (uint64_t)b->e->model->facts.n_vocab);
}

/* n rows of one sequence in chunks, all kept; logits for the last row only. */
static sib_status feed(bench *b, sib_seq *seq, int n, int logits, sib_err *err)
{
    sib_model *m = b->e->model;
    sib_forward_out out;
    for (int done = 0; done < n;) {
        int rows = n - done < b->e->chunk ? n - done : b->e->chunk;
        random_ids(b, rows);
        SIB_TRY(m->ops->forward(m, &(sib_part){.seq = seq, .ids = b->ids, .n_rows = rows, .n_logits = done + rows == n ? logits : 0}, 1, &out, err));
        SIB_TRY(m->offers.keep->keep(m, seq, rows, err));
        done += rows;
    }
    return SIB_OK;
}

static sib_status prefill(bench *b, sib_buf *out, int n, bool first, sib_err *err)
{
    sib_model *m = b->e->model;
    double median, best;
    b->n = 0;
    note(b, "prefill %d", n);
    for (int i = -1; i < b->o->repeats; i++) { /* the first run warms up */
        sib_seq *seq;
        SIB_TRY(m->ops->seq_new(m, &seq, err));
        double t = sib_probe_now();
        sib_status s = feed(b, seq, n, 1, err);
        if (i >= 0) b->samples[b->n++] = sib_probe_now() - t;
        m->ops->seq_free(m, seq);
        SIB_TRY(s);
    }
    summary(b, &median, &best);
    sib_numerics mode = b->e->device->numerics;
    double peak = mode == SIB_NUM_INT8 ? b->before.int8_gops : mode == SIB_NUM_BF16 ? b->before.bf16_gops : b->before.f32_gops;
    double gops = 2e-9 * m->facts.active_macs;
    sib_buf_addf(out, "%s{\"n\":%d,\"tps\":%.2f,\"tps_max\":%.2f,\"gops\":%.1f,\"fraction_of_compute_probe\":%.3f}", first ? "" : ",", n, n / median, n / best,
                 gops * n / median, peak > 0 ? gops * n / median / peak : 0);
    return SIB_OK;
}

static sib_status decode(bench *b, sib_buf *out, int depth, bool first, sib_err *err)
{
    sib_model *m = b->e->model;
    sib_seq *seq;
    double median, best;
    note(b, "decode at depth %d", depth);
    SIB_TRY(m->ops->seq_new(m, &seq, err));
    sib_status s = feed(b, seq, depth + 2, 1, err);
    b->n = 0;
    for (int i = 0; i < b->o->repeats && s == SIB_OK; i++) {
        double t = sib_probe_now();
        for (int k = 0; k < b->o->decode && s == SIB_OK; k++) s = feed(b, seq, 1, 1, err);
        b->samples[b->n++] = (sib_probe_now() - t) / b->o->decode;
    }
    m->ops->seq_free(m, seq);
    SIB_TRY(s);
    summary(b, &median, &best);
    double gbps = 1e-9 * m->facts.active_bytes / median;
    sib_buf_addf(out, "%s{\"depth\":%d,\"tps\":%.2f,\"tps_max\":%.2f,\"gbps\":%.2f,\"gbps_max\":%.2f,\"fraction_of_read_probe\":%.3f}", first ? "" : ",", depth,
                 1 / median, 1 / best, gbps, 1e-9 * m->facts.active_bytes / best, b->before.read_gbps > 0 ? gbps / b->before.read_gbps : 0);
    return SIB_OK;
}

/* k rows with logits for each, dropped again: what a verification of k-1 drafts costs. */
static sib_status time_rows(bench *b, sib_seq *seq, int k, double *median, double *best, sib_err *err)
{
    sib_model *m = b->e->model;
    sib_forward_out out;
    b->n = 0;
    for (int i = -2; i < 4 * b->o->repeats && b->n < 60; i++) {
        random_ids(b, k);
        double t = sib_probe_now();
        SIB_TRY(m->ops->forward(m, &(sib_part){.seq = seq, .ids = b->ids, .n_rows = k, .n_logits = k}, 1, &out, err));
        double spent = sib_probe_now() - t;
        SIB_TRY(m->offers.keep->keep(m, seq, 0, err));
        if (i >= 0) b->samples[b->n++] = spent;
    }
    summary(b, median, best);
    return SIB_OK;
}

static sib_status rows(bench *b, sib_buf *out, sib_err *err)
{
    sib_model *m = b->e->model;
    sib_seq *seq;
    double one = 0, one_best = 0;
    SIB_TRY(m->ops->seq_new(m, &seq, err));
    sib_status s = feed(b, seq, 64, 1, err);
    if (s == SIB_OK) s = time_rows(b, seq, 1, &one, &one_best, err);
    for (int i = 0; i < b->o->n_rows && s == SIB_OK; i++) {
        double median, best;
        int k = b->o->rows[i];
        note(b, "%d rows", k);
        s = time_rows(b, seq, k, &median, &best, err);
        if (s == SIB_OK)
            sib_buf_addf(out, "%s{\"k\":%d,\"ms\":%.4f,\"ms_min\":%.4f,\"ratio\":%.3f,\"ratio_min\":%.3f}", i ? "," : "", k, median * 1e3, best * 1e3, median / one, best / one_best);
    }
    m->ops->seq_free(m, seq);
    return s;
}

static sib_status batch(bench *b, sib_buf *out, int n, bool first, sib_err *err)
{
    sib_model *m = b->e->model;
    sib_seq *seqs[64] = {0};
    sib_part parts[64];
    sib_forward_out f;
    double median, best;
    sib_status s = SIB_OK;
    note(b, "batch of %d", n);
    for (int i = 0; i < n && s == SIB_OK; i++) {
        s = m->ops->seq_new(m, &seqs[i], err);
        if (s == SIB_OK) s = feed(b, seqs[i], 32 + i, 1, err);
    }
    b->n = 0;
    for (int i = -2; i < 4 * b->o->repeats && s == SIB_OK && b->n < 60; i++) {
        random_ids(b, n);
        for (int k = 0; k < n; k++) parts[k] = (sib_part){.seq = seqs[k], .ids = b->ids + k, .n_rows = 1, .n_logits = 1};
        double t = sib_probe_now();
        s = m->ops->forward(m, parts, n, &f, err);
        if (i >= 0) b->samples[b->n++] = sib_probe_now() - t;
        for (int k = 0; k < n && s == SIB_OK; k++) s = m->offers.keep->keep(m, seqs[k], 1, err);
    }
    for (int i = 0; i < n; i++)
        if (seqs[i]) m->ops->seq_free(m, seqs[i]);
    SIB_TRY(s);
    summary(b, &median, &best);
    sib_buf_addf(out, "%s{\"b\":%d,\"tps\":%.2f,\"tps_max\":%.2f}", first ? "" : ",", n, n / median, n / best);
    return SIB_OK;
}

/* A round with a drafter, part by part, for as many drafts as make each row count of a verification. */
static sib_status drafts(bench *b, sib_buf *out, sib_err *err)
{
    bool first = true;
    sib_buf_addf(out, ",\"drafter\":\"%s\",\"draft\":[", b->e->drafter->ops->kind);
    for (int i = 0; i < b->o->n_rows; i++) {
        sib_draft_cost c;
        int depth = b->o->rows[i] - 1;
        if (depth < 1 || depth > b->e->drafter->max_draft) continue;
        note(b, "%d drafts", depth);
        SIB_TRY(sib_draft_cost_measure(b->e, depth, 2 * b->o->repeats < 60 ? 2 * b->o->repeats : 60, &c, err));
        sib_buf_addf(out, "%s{\"d\":%d,\"drafts\":%.2f,\"draft_ms\":%.4f,\"verify_ms\":%.4f,\"plain_ms\":%.4f,\"break_even_emitted\":%.3f,\"break_even_acceptance\":%.3f}", first ? "" : ",",
                     depth, c.drafts, c.draft_ms, c.verify_ms, c.plain_ms, c.break_even_emitted, c.break_even_acceptance);
        first = false;
    }
    sib_buf_addz(out, "]");
    return SIB_OK;
}

static void put_probe(sib_buf *out, const char *name, const sib_ceilings *c)
{
    sib_buf_addf(out, "\"%s\":{\"read_gbps_1t\":%.2f,\"read_gbps_nt\":%.2f,\"int8_gops\":%.1f,\"bf16_gops\":%.1f,\"f32_gops\":%.1f}", name, c->read_gbps_1t, c->read_gbps,
                 c->int8_gops, c->bf16_gops, c->f32_gops);
}

static uint64_t resident_bytes(void)
{
    unsigned long long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%llu %llu", &size, &resident) != 2) resident = 0;
    if (f) fclose(f);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static sib_status measure(bench *b, sib_buf *out, uint64_t rss, sib_err *err)
{
    const sib_bench_options *o = b->o;
    const sib_facts *f = &b->e->model->facts;
    sib_pool *pool = NULL;
    int threads = sib_cpu_device_threads(b->e->device);
    const char *dir = sib_checkpoint_dir(b->e->files), *slash = strrchr(dir, '/');
    SIB_TRY(sib_pool_new(&pool, threads, false, err));
    note(b, "probe", 0);
    sib_probe(&b->before, pool, sib_cpu_level());
    sib_pool_free(pool); /* its threads must not spin beside the engine's */
    sib_buf_addz(out, "{\"machine\":{\"cpu\":");
    sib_json_put_str(out, sib_str_of(sib_cpu_model()));
    sib_buf_addf(out, ",\"processors\":%ld},\"numerics\":\"%s\",\"threads\":%d,\"isa\":\"%s\",\"model\":{\"name\":", sysconf(_SC_NPROCESSORS_ONLN), b->e->numerics, threads,
                 sib_cpu_level_name(sib_cpu_level()));
    sib_json_put_str(out, sib_str_of(slash && slash[1] ? slash + 1 : dir));
    sib_buf_addf(out, ",\"file_bytes\":%zu,\"active_bytes_per_token\":%.0f,\"ops_per_token\":%.0f},\"load_ms\":%.2f,\"rss_bytes\":%llu,", sib_checkpoint_bytes(b->e->files),
                 f->active_bytes, 2 * f->active_macs, b->e->load_ms, (unsigned long long)rss);
    put_probe(out, "probe_before", &b->before);
    sib_buf_addz(out, ",\"prefill\":[");
    for (int i = 0; i < o->n_prefill; i++) SIB_TRY(prefill(b, out, o->prefill[i], i == 0, err));
    sib_buf_addz(out, "],\"decode\":[");
    for (int i = 0; i < o->n_depth; i++) SIB_TRY(decode(b, out, o->depth[i], i == 0, err));
    sib_buf_addz(out, "],\"rows\":[");
    if (o->n_rows) SIB_TRY(rows(b, out, err));
    sib_buf_addz(out, "],\"batch\":[");
    for (int i = 0; i < o->n_batch; i++) SIB_TRY(batch(b, out, o->batch[i], i == 0, err));
    sib_buf_addz(out, "]");
    if (b->e->drafter) SIB_TRY(drafts(b, out, err));
    sib_buf_addz(out, ",");
    SIB_TRY(sib_pool_new(&pool, threads, false, err));
    sib_probe(&b->after, pool, sib_cpu_level());
    sib_pool_free(pool);
    put_probe(out, "probe_after", &b->after);
    sib_buf_addz(out, "}");
    return out->failed ? sib_nomem(err, "report") : SIB_OK;
}

sib_status sib_bench_json(sib_buf *out, const sib_bench_options *o, sib_err *err)
{
    bench b = {.o = o, .seed = 1};
    sib_options options = o->engine;
    int longest = 64, most = 1, block = 1;
    for (int i = 0; i < o->n_prefill; i++) longest = o->prefill[i] > longest ? o->prefill[i] : longest;
    for (int i = 0; i < o->n_depth; i++) longest = o->depth[i] + 2 + o->decode * o->repeats > longest ? o->depth[i] + 2 + o->decode * o->repeats : longest;
    for (int i = 0; i < o->n_batch; i++) most = o->batch[i] > most ? o->batch[i] : most;
    for (int i = 0; i < o->n_rows; i++) block = o->rows[i] > block ? o->rows[i] : block;
    if (most > 64 || block > SIB_MAX_DRAFT + 1) return sib_fail(err, SIB_EARG, "bench takes batches up to 64 and up to %d rows", SIB_MAX_DRAFT + 1);
    if (!options.n_ctx) options.n_ctx = longest + 128 + block;
    options.n_sessions = most;
    options.max_draft = block > 1 ? block - 1 : 1;
    SIB_TRY(sib_open(&b.e, &options, err));
    sib_status s = SIB_OK;
    if (b.e->model->offers.denoise) s = sib_fail(err, SIB_EUNSUPPORTED, "bench measures autoregressive models; this one answers by diffusion");
    b.ids = calloc((size_t)b.e->model->facts.max_rows + 64, sizeof *b.ids);
    if (s == SIB_OK && !b.ids) s = sib_nomem(err, "bench");
    if (s == SIB_OK) s = measure(&b, out, resident_bytes(), err);
    free(b.ids);
    sib_close(b.e);
    return s;
}

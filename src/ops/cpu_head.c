/* ops/cpu_head.c - the centroid head of the Gemma-4 assistant on the CPU (drafters_kv.md 1.5).
 *
 * Numerics in modes bf16 and int8, as the reference's Metal kernel reduces a row: y, the centroid scores, every
 * product and every partial sum are bf16. 32 lanes; lane l adds elements 128 b + 4 l + i (i = 0..3) block after
 * block into a bf16 accumulator; the lane sums are added in f32 as a balanced tree (the hardware's order is
 * UNVERIFIED; it can change a score by one bf16 step) and rounded once. Mode f32 rounds nothing.
 * Rows are independent; candidates of a row are split over threads and each is scored whole. */
#include "ops/cpu_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 32, READS = 4, BLOCK = LANES * READS };

static float score_rounded(const uint16_t *e, const float *y, int n)
{
    float lane[LANES] = {0};
    for (int b = 0; b < n; b += BLOCK)
        for (int i = 0; i < READS; i++)
            for (int l = 0; l < LANES; l++) {
                int k = b + READS * l + i;
                if (k < n) lane[l] = sib_round_bf16(lane[l] + sib_round_bf16(sib_f32_of_bf16(e[k]) * y[k]));
            }
    for (int step = LANES / 2; step > 0; step /= 2)
        for (int l = 0; l < step; l++) lane[l] += lane[l + step];
    return sib_round_bf16(lane[0]);
}

static float score_exact(const uint16_t *e, const float *y, int n)
{
    float sum = 0;
    for (int k = 0; k < n; k++) sum += sib_f32_of_bf16(e[k]) * y[k];
    return sum;
}

typedef struct head_job {
    const sib_centroid_head *h;
    const int32_t *picked; /* [top] */
    const float *y;        /* of this row, rounded where the mode rounds */
    bool rounded;
    float *logits;
    struct {
        float score;
        int32_t id;
    } best[SIB_MAX_THREADS];
} head_job;

static void score_part(void *ctx, int tid, int n_threads)
{
    head_job *j = ctx;
    const sib_centroid_head *h = j->h;
    int each = h->n_vocab / h->n_centroids;
    int64_t begin, end;
    sib_split((int64_t)h->top * each, 16, tid, n_threads, &begin, &end);
    float best = -INFINITY;
    int32_t id = INT32_MAX;
    for (int64_t c = begin; c < end; c++) {
        int32_t candidate = h->ordering[(int64_t)j->picked[c / each] * each + c % each];
        const uint16_t *row = h->table + (size_t)candidate * (size_t)h->hidden;
        float s = j->rounded ? score_rounded(row, j->y, h->hidden) : score_exact(row, j->y, h->hidden);
        if (j->logits) j->logits[candidate] = s;
        if (s > best || (s == best && candidate < id)) {
            best = s;
            id = candidate;
        }
    }
    j->best[tid].score = best;
    j->best[tid].id = id;
}

/* The `top` best of n scores, lower index first among equals; marks what it took. */
static void pick_centroids(int32_t *picked, const float *scores, int n, int top)
{
    for (int k = 0; k < top; k++) {
        int best = -1;
        for (int i = 0; i < n; i++) {
            bool taken = false;
            for (int t = 0; t < k && !taken; t++) taken = picked[t] == i;
            if (!taken && (best < 0 || scores[i] > scores[best])) best = i;
        }
        picked[k] = best;
    }
}

static void cpu_centroid_argmax(sib_device *d, int32_t *ids, const sib_centroid_head *h, const float *scores, const float *y, int rows, float *logits)
{
    sib_cpu *c = sib_cpu_of(d);
    bool rounded = d->numerics != SIB_NUM_F32;
    float row_y[4096], row_scores[16384];
    int32_t picked[1024];
    head_job job = {.h = h, .picked = picked, .y = row_y, .rounded = rounded};
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < h->hidden; i++) row_y[i] = rounded ? sib_round_bf16(y[(size_t)r * (size_t)h->hidden + (size_t)i]) : y[(size_t)r * (size_t)h->hidden + (size_t)i];
        for (int i = 0; i < h->n_centroids; i++) {
            float s = scores[(size_t)r * (size_t)h->n_centroids + (size_t)i];
            row_scores[i] = rounded ? sib_round_bf16(s) : s;
        }
        pick_centroids(picked, row_scores, h->n_centroids, h->top);
        job.logits = logits ? logits + (size_t)r * (size_t)h->n_vocab : NULL;
        for (int i = 0; job.logits && i < h->n_vocab; i++) job.logits[i] = NAN;
        sib_pool_run(c->pool, score_part, &job);
        ids[r] = job.best[0].id;
        float best = job.best[0].score;
        for (int t = 1; t < c->threads; t++)
            if (job.best[t].score > best || (job.best[t].score == best && job.best[t].id < ids[r])) {
                best = job.best[t].score;
                ids[r] = job.best[t].id;
            }
        if (ids[r] == INT32_MAX) ids[r] = 0; /* nothing but NaN */
    }
}

void sib_cpu_head_ops(sib_ops *ops)
{
    ops->centroid_argmax = cpu_centroid_argmax;
}

/* spec/round.c - see round.h. */
#include "spec/round.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct sib_round {
    sib_model *model;
    sib_drafter *drafter;
    int n_lanes, chunk;
    sib_part *parts;      /* [n_lanes] */
    sib_propose *propose; /* [n_lanes] */
    sib_settle *settle;   /* [n_lanes] */
    int *n_drafts;        /* [n_lanes] */
    int *lane_of;         /* [n_lanes] lane of each part of the call */
    int32_t *drafts;      /* [n_lanes][SIB_ROUND_EMIT] */
    sib_soft *soft;       /* [max_rows], shared by the parts of a call: a picture has a row at least */
    int n_soft;
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

sib_status sib_round_new(sib_round **out, sib_model *model, sib_drafter *drafter, int n_lanes, int chunk, sib_err *err)
{
    *out = NULL;
    sib_round *r = calloc(1, sizeof *r);
    if (!r) return sib_nomem(err, "round");
    size_t n = (size_t)n_lanes;
    *r = (sib_round){.model = model, .drafter = drafter, .n_lanes = n_lanes,
                     .chunk = chunk > 0 && chunk < model->facts.max_rows ? chunk : model->facts.max_rows};
    r->parts = calloc(n, sizeof *r->parts);
    r->propose = calloc(n, sizeof *r->propose);
    r->settle = calloc(n, sizeof *r->settle);
    r->n_drafts = calloc(n, sizeof *r->n_drafts);
    r->lane_of = calloc(n, sizeof *r->lane_of);
    r->drafts = calloc(n * SIB_ROUND_EMIT, sizeof *r->drafts);
    r->soft = calloc((size_t)model->facts.max_rows, sizeof *r->soft);
    if (!r->parts || !r->propose || !r->settle || !r->n_drafts || !r->lane_of || !r->drafts || !r->soft) {
        sib_round_free(r);
        return sib_nomem(err, "round");
    }
    *out = r;
    return SIB_OK;
}

void sib_round_free(sib_round *r)
{
    if (!r) return;
    free(r->parts);
    free(r->propose);
    free(r->settle);
    free(r->n_drafts);
    free(r->lane_of);
    free(r->drafts);
    free(r->soft);
    free(r);
}

void sib_round_set_chunk(sib_round *r, int rows)
{
    int most = r->model->facts.max_rows;
    r->chunk = rows < 1 ? 1 : rows > most ? most : rows;
}

static bool decoding(const sib_lane *l)
{
    return l->n_tokens - l->n_done == 1;
}

/* Asks the drafter for all decoding lanes at once; n_drafts and drafts are per lane. */
static sib_status draft(sib_round *r, sib_lane *const *lanes, int n, int rows_left, double *ms, sib_err *err)
{
    int asked = 0;
    *ms = 0;
    memset(r->n_drafts, 0, (size_t)n * sizeof *r->n_drafts);
    if (!r->drafter) return SIB_OK;
    for (int i = 0; i < n; i++) {
        sib_lane *l = lanes[i];
        if (!l->draft || !decoding(l)) continue;
        int depth = sib_policy_next(&l->policy), room = r->model->facts.n_ctx - l->n_tokens;
        if (depth > r->drafter->max_draft) depth = r->drafter->max_draft;
        if (depth > SIB_ROUND_EMIT - 1) depth = SIB_ROUND_EMIT - 1;
        if ((uint64_t)depth >= l->budget) depth = (int)l->budget - 1; /* the last token needs no draft behind it */
        if (depth > room) depth = room;
        if (depth > rows_left) depth = rows_left;
        if (depth <= 0) continue;
        rows_left -= depth;
        r->propose[asked++] = (sib_propose){.state = l->draft, .seq = l->seq, .pending = l->tokens[l->n_tokens - 1],
                                            .position = l->n_tokens - 1, .max = depth, .ids = r->drafts + (size_t)i * SIB_ROUND_EMIT};
        r->n_drafts[i] = -asked; /* filled in below */
    }
    if (asked == 0) return SIB_OK;
    double t0 = now_ms();
    SIB_TRY(r->drafter->ops->propose(r->drafter, r->propose, asked, err));
    *ms = now_ms() - t0;
    for (int i = 0; i < n; i++) {
        if (r->n_drafts[i] >= 0) continue;
        const sib_propose *p = &r->propose[-r->n_drafts[i] - 1];
        if (p->n < 0 || p->n > p->max) return sib_fail(err, SIB_ESTATE, "drafter %s gave %d drafts of at most %d", r->drafter->ops->kind, p->n, p->max);
        int good = 0; /* an id outside the vocabulary ends the draft, it cannot be fed */
        while (good < p->n && p->ids[good] >= 0 && p->ids[good] < r->model->facts.n_vocab) good++;
        r->n_drafts[i] = good;
    }
    return SIB_OK;
}

int sib_lane_chunk(const sib_lane *l, int chunk, int share, int room)
{
    int left = l->n_tokens - l->n_done, rows = left < chunk ? left : chunk;
    if (rows > share) rows = share;
    for (int s = 0; s < l->n_soft; s++) {
        int end = l->n_done + rows, first = l->soft[s].pos, last = first + l->soft[s].n;
        if (!l->soft[s].bidirectional || end <= first || end >= last) continue;
        if (last - l->n_done <= room)
            rows = last - l->n_done; /* up to the picture's end */
        else
            rows = first - l->n_done; /* it goes whole into the next call */
    }
    return rows;
}

void sib_lane_soft(const sib_lane *l, sib_part *part, sib_soft *soft, int hidden)
{
    int from = l->n_done, to = l->n_done + part->n_rows;
    part->soft = soft;
    part->n_soft = 0;
    for (int s = 0; s < l->n_soft; s++) {
        const sib_soft_span *span = &l->soft[s];
        int first = span->pos > from ? span->pos : from, last = span->pos + span->n < to ? span->pos + span->n : to;
        if (first >= last) continue;
        soft[part->n_soft++] = (sib_soft){.first = first - from, .n = last - first,
                                          .features = span->features + (size_t)(first - span->pos) * hidden,
                                          .bidirectional = span->bidirectional, .everywhere = span->everywhere};
    }
}

/* Every lane's window: decided tokens that are not done, then the drafts. */
static sib_status build_parts(sib_round *r, sib_lane *const *lanes, int n, int *n_parts, sib_err *err)
{
    int rows_left = r->model->facts.max_rows, waiting = 0;
    r->n_soft = 0;
    *n_parts = 0;
    for (int i = 0; i < n; i++)
        if (decoding(lanes[i])) rows_left -= 1 + r->n_drafts[i];
        else waiting++;
    for (int i = 0; i < n; i++) {
        sib_lane *l = lanes[i];
        sib_part *part = &r->parts[i];
        *part = (sib_part){.seq = l->seq, .ids = l->tokens + l->n_done};
        if (decoding(l)) {
            memcpy(l->tokens + l->n_tokens, r->drafts + (size_t)i * SIB_ROUND_EMIT, (size_t)r->n_drafts[i] * sizeof *l->tokens);
            part->n_rows = part->n_logits = 1 + r->n_drafts[i];
        } else {
            part->n_rows = rows_left > 0 ? sib_lane_chunk(l, r->chunk, rows_left / waiting > 0 ? rows_left / waiting : 1, rows_left) : 0;
            part->n_logits = part->n_rows > 0 && l->n_done + part->n_rows == l->n_tokens;
            rows_left -= part->n_rows;
            waiting--;
        }
        sib_lane_soft(l, part, r->soft + r->n_soft, r->model->facts.hidden);
        r->n_soft += part->n_soft;
    }
    /* Lanes that got no row this time stay out of the call. */
    for (int i = 0; i < n; i++)
        if (r->parts[i].n_rows > 0) (*n_parts)++;
    return *n_parts > 0 ? SIB_OK : sib_fail(err, SIB_ECAPACITY, "no room for a row of any request");
}

static sib_status walk(sib_round *r, sib_lane *l, int lane, const float *logits, sib_err *err)
{
    int d = r->n_drafts[lane];
    sib_window w = {.logits = logits, .stride = (size_t)r->model->facts.n_vocab, .drafts = r->drafts + (size_t)lane * SIB_ROUND_EMIT,
                    .n_drafts = d, .emission = l->emitted, .budget = l->budget, .eos = l->eos, .grammar = l->grammar};
    return sib_accept(l->sampler, l->rule, &w, l->samples, &l->walk, err);
}

sib_status sib_round_step(sib_round *r, sib_lane *const *lanes, int n, sib_err *err)
{
    if (n < 1 || n > r->n_lanes) return sib_fail(err, SIB_ECAPACITY, "%d requests in one round, planned are %d", n, r->n_lanes);
    double draft_ms, t0;
    int n_parts, logit_row = 0, row = 0, n_settle = 0;
    sib_forward_out out;
    int spare = r->model->facts.max_rows - n < r->model->facts.max_logits - n ? r->model->facts.max_rows - n : r->model->facts.max_logits - n;
    SIB_TRY(draft(r, lanes, n, spare, &draft_ms, err));
    SIB_TRY(build_parts(r, lanes, n, &n_parts, err));
    /* The model takes a dense list; lanes without rows are squeezed out. */
    for (int i = 0, p = 0; i < n; i++) {
        lanes[i]->walk = (sib_walk){.pending = -1};
        if (r->parts[i].n_rows == 0) continue;
        r->lane_of[p] = i;
        r->parts[p++] = r->parts[i];
    }
    t0 = now_ms();
    SIB_TRY(r->model->ops->forward(r->model, r->parts, n_parts, &out, err));
    double verify_ms = now_ms() - t0;

    size_t hidden = (size_t)r->model->facts.hidden;
    const float *taps = r->drafter && r->model->offers.taps ? r->model->offers.taps->rows(r->model) : NULL;
    int n_taps = r->drafter ? r->drafter->ops->needs(r->drafter)->n_taps : 0;
    for (int p = 0; p < n_parts; p++) {
        sib_lane *l = lanes[r->lane_of[p]];
        const sib_part *part = &r->parts[p];
        int keep = part->n_rows, d = r->n_drafts[r->lane_of[p]];
        if (part->n_logits > 0) {
            SIB_TRY(walk(r, l, r->lane_of[p], out.logits + (size_t)logit_row * (size_t)r->model->facts.n_vocab, err));
            logit_row += part->n_logits;
            /* Rows whose input is part of the text: everything before the drafts, the pending token, and the drafts that
             * were emitted and have a row of their own. */
            int drafts_emitted = l->walk.n_emitted < l->walk.accepted ? l->walk.n_emitted : l->walk.accepted;
            keep = part->n_rows - d + drafts_emitted;
            if (decoding(l)) sib_policy_learn(&l->policy, d, l->walk.accepted, l->walk.n_emitted, draft_ms, verify_ms);
            for (int i = 0; i < l->walk.n_emitted; i++) l->tokens[l->n_tokens + i] = l->samples[i].id;
        }
        SIB_TRY(r->model->offers.keep->keep(r->model, l->seq, keep, err));
        if (l->draft)
            r->settle[n_settle++] = (sib_settle){.state = l->draft, .seq = l->seq, .ids = l->tokens + l->n_done, .n = keep, .pos0 = l->n_done,
                                                 .next = l->n_done + keep < l->n_tokens + l->walk.n_emitted ? l->tokens[l->n_done + keep] : -1,
                                                 .prompt = part->n_logits == 0,
                                                 .hidden = out.hidden + (size_t)row * hidden,
                                                 .taps = taps ? taps + (size_t)row * hidden * (size_t)n_taps : NULL};
        row += part->n_rows;
        l->n_done += keep;
        l->n_tokens += l->walk.n_emitted;
        l->emitted += (uint64_t)l->walk.n_emitted;
        l->budget -= (uint64_t)l->walk.n_emitted < l->budget ? (uint64_t)l->walk.n_emitted : l->budget;
    }
    if (n_settle > 0) SIB_TRY(r->drafter->ops->settle(r->drafter, r->settle, n_settle, err));
    return SIB_OK;
}

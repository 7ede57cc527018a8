/* tools/golden/dspark.c - the own DSpark beside its real target: taps, rounds scripted by `accepted`, plain greedy
 * text. */
#include "record.h"

#include "drafters/block.h"
#include "drafters/dspark.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct spark_case {
    golden *g;
    sib_model *model;
    sib_drafter *drafter;
    sib_seq *seq;
    sib_draft_state *state;
    record record;
    int gamma;
} spark_case;

static int argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static int32_t one(golden *g, int r, const char *name)
{
    int64_t n = 0;
    int32_t *v = golden_ints(g, &n, "round.%d.%s", r, name), x = v && n == 1 ? v[0] : -1;
    free(v);
    return x;
}

static void compare_one(golden *g, int r, const char *name, int32_t got)
{
    char key[64];
    (void)snprintf(key, sizeof key, "round.%d.%s", r, name);
    golden_compare_ids(g, key, &got, 1);
}

/* Target rows in, the first `keep` of them committed and told to the drafter; their taps are compared. */
static sib_status feed(spark_case *c, const int32_t *ids, int n, int keep, const char *taps_key, int32_t *best,
                       sib_err *err)
{
    sib_model *m = c->model;
    sib_forward_out f;
    int pos0 = m->ops->seq_length(m, c->seq);
    SIB_TRY(m->ops->forward(m, &(sib_part){.seq = c->seq, .ids = ids, .n_rows = n, .n_logits = n}, 1, &f, err));
    SIB_TRY(m->offers.keep->keep(m, c->seq, keep, err));
    for (int i = 0; best && i < n; i++)
        best[i] = argmax(f.logits + (size_t)i * (size_t)m->facts.n_vocab, m->facts.n_vocab);
    const sib_needs *needs = c->drafter->ops->needs(c->drafter);
    const float *taps = m->offers.taps->rows(m);
    golden_compare(c->g, taps_key, taps, (int64_t)keep * needs->n_taps * needs->hidden_width);
    sib_settle s = {.state = c->state,
                    .seq = c->seq,
                    .ids = ids,
                    .n = keep,
                    .pos0 = pos0,
                    .next = -1,
                    .hidden = f.hidden,
                    .taps = taps};
    record_settle(&c->record);
    sib_block_trace(c->drafter, record_trace(&c->record));
    sib_status status = c->drafter->ops->settle(c->drafter, &s, 1, err);
    sib_block_trace(c->drafter, (sib_trace){0});
    return status;
}

/* The reference also rounded u to bf16 before the head: the trace hands us the row itself. */
static void round_u(void *ctx, const char *name, int index, const float *values, int rows, int n)
{
    if (strcmp(name, "draft.u") == 0)
        for (int i = 0; i < rows * n; i++) ((float *)(uintptr_t)values)[i] = sib_round_bf16(values[i]);
    sib_trace inner = record_trace(ctx);
    inner.fn(inner.ctx, name, index, values, rows, n);
}

static void compare_rounded(golden *g, const record *r, int round, int gamma)
{
    int64_t n = 0;
    int32_t ids[SIB_BLOCK_ROWS];
    char key[64];
    const float *base = record_get(r, &n, true, "draft.base_logits");
    (void)snprintf(key, sizeof key, "round.%d.base_logits_u_bf16", round);
    golden_compare(g, key, base, n);
    const float *tokens = record_get(r, &n, true, "draft.chosen");
    for (int i = 0; i < gamma; i++) ids[i] = (int32_t)tokens[i];
    (void)snprintf(key, sizeof key, "round.%d.tokens_u_bf16", round);
    golden_compare_ids(g, key, ids, gamma);
}

/* The block after `pending`; its whole draft, before the confidences cut it, goes to tokens. */
static sib_status draft_round(spark_case *c, int round, int32_t pending, int32_t *tokens, sib_err *err)
{
    golden *g = c->g;
    int32_t plain[SIB_MAX_DRAFT], traced[SIB_MAX_DRAFT];
    char prefix[32], key[64];
    int64_t n = 0;
    sib_propose p = {.state = c->state,
                     .seq = c->seq,
                     .pending = pending,
                     .position = c->model->ops->seq_length(c->model, c->seq),
                     .max = c->gamma,
                     .ids = plain};
    SIB_TRY(c->drafter->ops->propose(c->drafter, &p, 1, err));
    int length = p.n;
    p.ids = traced;
    record_round(&c->record);
    sib_block_trace(c->drafter, record_trace(&c->record));
    sib_status s = c->drafter->ops->propose(c->drafter, &p, 1, err);
    SIB_TRY(s);
    if (p.n != length || memcmp(plain, traced, (size_t)length * sizeof *plain))
        return sib_fail(err, SIB_ESTATE, "round %d: a traced round drafts other tokens", round);
    (void)snprintf(prefix, sizeof prefix, "round.%d.", round);
    record_compare(g, &c->record, prefix);
    const float *ids = record_get(&c->record, &n, true, "draft.chosen"),
                *bias = record_get(&c->record, &n, true, "draft.markov_bias");
    (void)snprintf(key, sizeof key, "%sbias", prefix);
    golden_compare(g, key, bias, n);
    for (int i = 0; i < c->gamma; i++) tokens[i] = (int32_t)ids[i];
    if (memcmp(tokens, plain, (size_t)length * sizeof *plain))
        return sib_fail(err, SIB_ESTATE, "round %d: the draft is not the block's beginning", round);
    (void)snprintf(key, sizeof key, "%stokens", prefix);
    golden_compare_ids(g, key, tokens, c->gamma);
    compare_one(g, round, "context_rows", sib_block_context(c->state));
    compare_one(g, round, "length_thresholds", length);
    const float *confidence = record_get(&c->record, &n, true, "draft.confidence");
    compare_one(g, round, "length_min_0.5", sib_confident_length(confidence, c->gamma, 1, NULL, 0, 0.5f));
    (void)snprintf(key, sizeof key, "%smargin", prefix);
    golden_input(g, key);

    record rounded = {0};
    sib_block_trace(c->drafter, (sib_trace){round_u, &rounded});
    s = c->drafter->ops->propose(c->drafter, &p, 1, err);
    sib_block_trace(c->drafter, (sib_trace){0});
    if (s == SIB_OK) compare_rounded(g, &rounded, round, c->gamma);
    record_deinit(&rounded);
    return s;
}

static sib_status rounds(spark_case *c, int32_t pending, sib_err *err)
{
    golden *g = c->g;
    for (int r = 0; golden_has(g, "round.%d.tokens", r); r++) {
        int32_t window[SIB_MAX_DRAFT + 1], best[SIB_MAX_DRAFT + 1], accepted = one(g, r, "accepted");
        char key[64];
        compare_one(g, r, "pending", pending);
        if (accepted < 0 || accepted > c->gamma)
            return sib_fail(err, SIB_EFORMAT, "round.%d.accepted is %d", r, accepted);
        SIB_TRY(draft_round(c, r, pending, window + 1, err));
        window[0] = pending;
        (void)snprintf(key, sizeof key, "round.%d.commit.taps", r);
        SIB_TRY(feed(c, window, c->gamma + 1, accepted + 1, key, best, err));
        (void)snprintf(key, sizeof key, "round.%d.verify_tokens", r);
        golden_compare_ids(g, key, best, c->gamma + 1);
        (void)snprintf(key, sizeof key, "round.%d.accepted", r);
        golden_input(g, key);
        pending = one(g, r, "next_pending");
        (void)snprintf(key, sizeof key, "round.%d.next_pending", r);
        golden_input(g, key);
    }
    return SIB_OK;
}

static sib_status greedy(spark_case *c, const int32_t *ids, int n, sib_err *err)
{
    sib_model *m = c->model;
    sib_seq *seq = NULL;
    sib_forward_out f;
    int64_t count = 0;
    int32_t *want = golden_ints(c->g, &count, "greedy.tokens"), *got = calloc((size_t)count + 1, sizeof *got);
    sib_status s = want && got ? m->ops->seq_new(m, &seq, err) : sib_fail(err, SIB_EFORMAT, "greedy.tokens are needed");
    for (int64_t i = 0; s == SIB_OK && i < count; i++) {
        int rows = i ? 1 : n;
        s = m->ops->forward(m, &(sib_part){.seq = seq, .ids = i ? got + i - 1 : ids, .n_rows = rows, .n_logits = 1}, 1,
                            &f, err);
        if (s == SIB_OK) s = m->offers.keep->keep(m, seq, rows, err);
        if (s == SIB_OK) got[i] = argmax(f.logits, m->facts.n_vocab);
    }
    if (s == SIB_OK) golden_compare_ids(c->g, "greedy.tokens", got, count);
    if (seq) m->ops->seq_free(m, seq);
    free(want);
    free(got);
    return s;
}

static sib_status run(spark_case *c, const int32_t *ids, int n, sib_err *err)
{
    int64_t count = 0;
    SIB_TRY(c->model->ops->seq_new(c->model, &c->seq, err));
    SIB_TRY(c->drafter->ops->state_new(c->drafter, &c->state, err));
    SIB_TRY(feed(c, ids, n - 1, n - 1, "prefill.taps", NULL, err));
    golden_compare(c->g, "prefill.context", record_get(&c->record, &count, true, "context.hidden_norm"),
                   (int64_t)(n - 1) * ((sib_block *)(void *)c->drafter)->hidden);
    SIB_TRY(rounds(c, ids[n - 1], err));
    const float *context = record_get(&c->record, &count, true, "context.hidden_norm");
    golden_compare(c->g, "context", context, count);
    return greedy(c, ids, n, err);
}

sib_status golden_dspark(golden *g, sib_err *err)
{
    golden_model m;
    sib_model_limits limits = {.n_ctx = 256, .n_seqs = 2, .max_rows = 128, .max_logits = 128};
    spark_case c = {.g = g};
    sib_checkpoint *files = NULL;
    SIB_TRY(golden_open(g, &m, "target", &limits, err));
    c.model = m.model;
    sib_status s = sib_checkpoint_open(&files, g->dir, &(sib_checkpoint_options){.config_file = "dspark.json"}, err);
    sib_loader l = {.dev = g->device, .files = files};
    if (s == SIB_OK)
        s = sib_dspark_open(&c.drafter, &l, m.model, &(sib_drafter_options){.n_seqs = 2, .max_draft = SIB_MAX_DRAFT},
                            err);
    int64_t n = 0;
    int32_t *ids = golden_ints(g, &n, "input_ids");
    golden_input(g, "input_ids");
    if (s == SIB_OK && (!ids || n < 2)) s = sib_fail(err, SIB_EFORMAT, "input_ids are needed");
    if (s == SIB_OK) {
        c.gamma = c.drafter->max_draft;
        s = run(&c, ids, (int)n, err);
    }
    free(ids);
    record_deinit(&c.record);
    if (c.state) c.drafter->ops->state_free(c.drafter, c.state);
    if (c.seq) c.model->ops->seq_free(c.model, c.seq);
    if (c.drafter) c.drafter->ops->free(c.drafter);
    sib_checkpoint_free(files);
    golden_close(&m);
    return s;
}

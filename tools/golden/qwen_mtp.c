/* tools/golden/qwen_mtp.c - the Qwen3.5 companion beside target/: its rows of the prompt, scripted rounds of draft, verify and
 * commit, its cache, and the text with and without it. post.* takes the target's hidden rows after the final norm, pre.* before. */
#include "golden.h"

#include "drafters/qwen_mtp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct mtp_case {
    golden *g;
    const char *prefix; /* "post" or "pre" */
    int round;          /* -1: prompt */
    sib_model *m;
    sib_drafter *d;
    bool pre;
} mtp_case;

static int argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* Largest minus second largest value. */
static float margin_of(const float *x, int n)
{
    int best = argmax(x, n);
    float second = -INFINITY;
    for (int i = 0; i < n; i++)
        if (i != best && x[i] > second) second = x[i];
    return x[best] - second;
}

static void stage(void *ctx, const char *name, int index, const float *values, int rows, int n)
{
    const mtp_case *c = ctx;
    char key[128];
    const char *what = name + strlen("mtp.");
    if (c->round < 0)
        (void)snprintf(key, sizeof key, "%s.prefill.%s", c->prefix, what);
    else if (index >= 0)
        (void)snprintf(key, sizeof key, "%s.round.%d.step.%d.%s", c->prefix, c->round, index, what);
    else
        return; /* rows that a commit adds: seen in the cache at the end */
    if (!golden_has(c->g, "%s", key)) return;
    golden_compare(c->g, key, values, (int64_t)rows * n);
    if (strcmp(what, "logits") == 0) {
        (void)snprintf(key, sizeof key, "%s.round.%d.step.%d.margin", c->prefix, c->round, index);
        float margin = margin_of(values, n);
        golden_compare(c->g, key, &margin, 1);
    }
}

static void check_int(const mtp_case *c, const char *what, int32_t got)
{
    char key[128];
    (void)snprintf(key, sizeof key, "%s.round.%d.%s", c->prefix, c->round, what);
    golden_compare_ids(c->g, key, &got, 1);
}

static int32_t read_one(const mtp_case *c, const char *what)
{
    int64_t n = 0;
    int32_t *v = golden_ints(c->g, &n, "%s.round.%d.%s", c->prefix, c->round, what), one = v && n > 0 ? v[0] : -1;
    free(v);
    return one;
}

/* Rows of the companion's cache against PREFIX<where>K and V, stored [rows][heads][head_dim]. */
static sib_status compare_cache(const mtp_case *c, const sib_draft_state *s, const char *where, sib_err *err)
{
    char key[2][64];
    for (int i = 0; i < 2; i++) (void)snprintf(key[i], sizeof key[i], "%s.%s%c", c->prefix, where, "KV"[i]);
    const sib_tensor_info *t = golden_find(c->g, "%s", key[0]);
    int rows = sib_qwen_mtp_rows(s);
    if (!t || t->rank != 3) return sib_fail(err, SIB_EFORMAT, "%s is needed, with three dimensions", key[0]);
    int heads = (int)t->shape[1], dim = (int)t->shape[2];
    size_t n = (size_t)rows * (size_t)heads * (size_t)dim;
    float *kv[2] = {calloc(n + 1, sizeof(float)), calloc(n + 1, sizeof(float))}, *by_row = calloc(n + 1, sizeof *by_row);
    sib_status status = kv[0] && kv[1] && by_row ? SIB_OK : sib_nomem(err, key[0]);
    if (status == SIB_OK) sib_qwen_mtp_read(c->d, s, 0, rows, kv[0], kv[1]);
    for (int i = 0; status == SIB_OK && i < 2; i++) {
        for (int h = 0; h < heads; h++)
            for (int r = 0; r < rows; r++)
                memcpy(by_row + ((size_t)r * (size_t)heads + (size_t)h) * (size_t)dim, kv[i] + ((size_t)h * (size_t)rows + (size_t)r) * (size_t)dim, (size_t)dim * sizeof *by_row);
        golden_compare(c->g, key[i], by_row, (int64_t)n);
    }
    free(kv[0]);
    free(kv[1]);
    free(by_row);
    return status;
}

typedef struct timeline {
    sib_seq *seq;
    sib_draft_state *state;
    int32_t sequence[512];
    int n, processed;
} timeline;

static const float *hidden_rows(const mtp_case *c, const sib_forward_out *f)
{
    return c->pre ? c->m->offers.taps->rows(c->m) : f->hidden;
}

/* Forward of `n` tokens, the first `keep` of them committed and settled. */
static sib_status commit(const mtp_case *c, timeline *t, const int32_t *ids, int keep, int32_t next, const sib_forward_out *f, sib_err *err)
{
    SIB_TRY(c->m->offers.keep->keep(c->m, t->seq, keep, err));
    sib_settle s = {.state = t->state, .seq = t->seq, .ids = ids, .n = keep, .pos0 = t->processed, .next = next, .hidden = f->hidden,
                    .taps = c->pre ? c->m->offers.taps->rows(c->m) : NULL};
    SIB_TRY(c->d->ops->settle(c->d, &s, 1, err));
    memcpy(t->sequence + t->n, ids, (size_t)keep * sizeof *ids);
    t->n += keep;
    t->processed += keep;
    return SIB_OK;
}

static sib_status round_of(mtp_case *c, timeline *t, int32_t *pending, sib_err *err)
{
    int64_t n_drafts = 0;
    int32_t *want = golden_ints(c->g, &n_drafts, "%s.round.%d.drafts", c->prefix, c->round), window[SIB_MAX_DRAFT + 1], tokens[SIB_MAX_DRAFT + 1];
    free(want);
    if (n_drafts < 1 || n_drafts > SIB_MAX_DRAFT || t->n + n_drafts + 1 > (int64_t)SIB_COUNT(t->sequence)) return sib_fail(err, SIB_EFORMAT, "%lld drafts in a round", (long long)n_drafts);
    int d = (int)n_drafts, v = c->m->facts.n_vocab, natural = 0;
    size_t hidden = (size_t)c->m->facts.hidden;
    char key[64];
    check_int(c, "pending", *pending);
    check_int(c, "rows_before", sib_qwen_mtp_rows(t->state));

    sib_propose p = {.state = t->state, .seq = t->seq, .pending = *pending, .position = t->processed, .max = d, .ids = window + 1};
    sib_qwen_mtp_trace(c->d, (sib_trace){stage, c});
    sib_status s = c->d->ops->propose(c->d, &p, 1, err);
    sib_qwen_mtp_trace(c->d, (sib_trace){0});
    SIB_TRY(s);
    (void)snprintf(key, sizeof key, "%s.round.%d.drafts", c->prefix, c->round);
    golden_compare_ids(c->g, key, window + 1, p.n);
    if (p.n != d) return sib_fail(err, SIB_ESTATE, "%d drafts of %d", p.n, d);

    sib_forward_out f;
    window[0] = *pending;
    SIB_TRY(c->m->ops->forward(c->m, &(sib_part){.seq = t->seq, .ids = window, .n_rows = d + 1, .n_logits = d + 1}, 1, &f, err));
    for (int i = 0; i <= d; i++) tokens[i] = argmax(f.logits + (size_t)i * (size_t)v, v);
    while (natural < d && tokens[natural] == window[natural + 1]) natural++;
    (void)snprintf(key, sizeof key, "%s.round.%d.verify_tokens", c->prefix, c->round);
    golden_compare_ids(c->g, key, tokens, d + 1);
    (void)snprintf(key, sizeof key, "%s.round.%d.verify_hidden", c->prefix, c->round);
    golden_compare(c->g, key, hidden_rows(c, &f), (int64_t)(d + 1) * (int64_t)hidden);
    check_int(c, "natural_accepted", natural);

    int32_t accepted = read_one(c, "accepted");
    (void)snprintf(key, sizeof key, "%s.round.%d.accepted", c->prefix, c->round);
    golden_input(c->g, key);
    if (accepted < 0 || accepted > d) return sib_fail(err, SIB_EFORMAT, "%s is %d of %d", key, accepted, d);
    *pending = tokens[accepted];
    check_int(c, "next_pending", *pending);
    /* The row that the next round starts from. */
    (void)snprintf(key, sizeof key, "%s.round.%d.anchor_hidden", c->prefix, c->round + 1);
    if (golden_has(c->g, "%s", key)) golden_compare(c->g, key, hidden_rows(c, &f) + (size_t)accepted * hidden, (int64_t)hidden);
    SIB_TRY(commit(c, t, window, accepted + 1, *pending, &f, err));
    check_int(c, "rows_after", sib_qwen_mtp_rows(t->state));
    return SIB_OK;
}

static sib_status scripted(mtp_case *c, timeline *t, const int32_t *ids, int n, sib_err *err)
{
    sib_forward_out f;
    char key[64];
    size_t hidden = (size_t)c->m->facts.hidden;
    if (n > (int)SIB_COUNT(t->sequence) / 2) return sib_fail(err, SIB_EFORMAT, "a prompt of %d tokens", n);
    SIB_TRY(c->m->ops->seq_new(c->m, &t->seq, err));
    SIB_TRY(c->d->ops->state_new(c->d, &t->state, err));
    SIB_TRY(c->m->ops->forward(c->m, &(sib_part){.seq = t->seq, .ids = ids, .n_rows = n, .n_logits = 1}, 1, &f, err));
    (void)snprintf(key, sizeof key, "%s.round.0.anchor_hidden", c->prefix);
    golden_compare(c->g, key, hidden_rows(c, &f) + (size_t)(n - 1) * hidden, (int64_t)hidden);
    int32_t pending = argmax(f.logits, c->m->facts.n_vocab);
    c->round = -1;
    sib_qwen_mtp_trace(c->d, (sib_trace){stage, c});
    sib_status s = commit(c, t, ids, n, pending, &f, err);
    sib_qwen_mtp_trace(c->d, (sib_trace){0});
    SIB_TRY(s);
    SIB_TRY(compare_cache(c, t->state, "prefill.", err));
    for (c->round = 0; golden_has(c->g, "%s.round.%d.accepted", c->prefix, c->round); c->round++) SIB_TRY(round_of(c, t, &pending, err));
    SIB_TRY(compare_cache(c, t->state, "", err));
    (void)snprintf(key, sizeof key, "%s.sequence", c->prefix);
    golden_compare_ids(c->g, key, t->sequence, t->n);
    return SIB_OK;
}

/* Greedy text from the prompt, drafting `depth` tokens a round (0: none). */
static sib_status greedy(const mtp_case *c, const int32_t *ids, int n, int depth, int32_t *out, int n_out, sib_err *err)
{
    timeline t = {0};
    sib_forward_out f;
    int32_t window[SIB_MAX_DRAFT + 1];
    int v = c->m->facts.n_vocab, got = 0;
    sib_status s = c->m->ops->seq_new(c->m, &t.seq, err);
    if (s == SIB_OK) s = c->d->ops->state_new(c->d, &t.state, err);
    if (s == SIB_OK) s = c->m->ops->forward(c->m, &(sib_part){.seq = t.seq, .ids = ids, .n_rows = n, .n_logits = 1}, 1, &f, err);
    if (s == SIB_OK) out[got++] = argmax(f.logits, v);
    if (s == SIB_OK) s = commit(c, &t, ids, n, out[0], &f, err);
    while (s == SIB_OK && got < n_out) {
        sib_propose p = {.state = t.state, .seq = t.seq, .pending = out[got - 1], .position = t.processed, .max = depth, .ids = window + 1};
        if (depth > 0) s = c->d->ops->propose(c->d, &p, 1, err);
        window[0] = out[got - 1];
        if (s == SIB_OK) s = c->m->ops->forward(c->m, &(sib_part){.seq = t.seq, .ids = window, .n_rows = 1 + p.n, .n_logits = 1 + p.n}, 1, &f, err);
        if (s != SIB_OK) break;
        int a = 0;
        int32_t next;
        for (;; a++) {
            next = argmax(f.logits + (size_t)a * (size_t)v, v);
            if (got < n_out) out[got++] = next;
            if (a == p.n || next != window[a + 1]) break;
        }
        s = commit(c, &t, window, a + 1, next, &f, err);
    }
    if (t.state) c->d->ops->state_free(c->d, t.state);
    if (t.seq) c->m->ops->seq_free(c->m, t.seq);
    return s;
}

static sib_status texts(const mtp_case *c, const int32_t *ids, int n, sib_err *err)
{
    int64_t n_out = 0;
    int32_t *want = golden_ints(c->g, &n_out, "greedy.tokens"), *out = calloc((size_t)n_out + 1, sizeof *out);
    sib_status s = out && n_out + n < 200 ? SIB_OK : sib_fail(err, SIB_EFORMAT, "greedy.tokens has %lld tokens", (long long)n_out);
    for (int depth = 0; want && s == SIB_OK && depth <= 4; depth += 4) {
        s = greedy(c, ids, n, depth, out, (int)n_out, err);
        if (s == SIB_OK) golden_compare_ids(c->g, "greedy.tokens", out, n_out);
    }
    free(want);
    free(out);
    return s;
}

static sib_status variant(golden *g, const char *prefix, const int32_t *ids, int n, sib_err *err)
{
    mtp_case c = {.g = g, .prefix = prefix, .pre = strcmp(prefix, "pre") == 0};
    golden_model m;
    sib_model_limits limits = {.n_ctx = 256, .n_seqs = 2, .max_rows = 128, .max_logits = 128, .max_block = SIB_MAX_DRAFT + 1};
    sib_drafter_options o = {.n_seqs = 2, .max_draft = SIB_MAX_DRAFT, .mtp_hidden_pre = c.pre};
    sib_checkpoint *files = NULL;
    timeline t = {0};
    SIB_TRY(golden_open(g, &m, "target", &limits, err));
    sib_status s = sib_checkpoint_open(&files, g->dir, NULL, err);
    sib_loader l = {.dev = g->device, .files = files};
    if (s == SIB_OK) s = sib_qwen_mtp_open(&c.d, &l, m.model, &o, err);
    c.m = m.model;
    if (s == SIB_OK) s = scripted(&c, &t, ids, n, err);
    if (t.state) c.d->ops->state_free(c.d, t.state);
    if (t.seq) c.m->ops->seq_free(c.m, t.seq);
    if (s == SIB_OK) s = texts(&c, ids, n, err);
    if (c.d) c.d->ops->free(c.d);
    sib_checkpoint_free(files);
    golden_close(&m);
    return s;
}

sib_status golden_qwen_mtp(golden *g, sib_err *err)
{
    static const char *const prefixes[] = {"post", "pre"};
    int64_t n = 0;
    int32_t *ids = golden_ints(g, &n, "input_ids");
    golden_input(g, "input_ids");
    sib_status s = ids ? SIB_OK : sib_fail(err, SIB_EFORMAT, "input_ids are needed");
    for (size_t i = 0; s == SIB_OK && i < SIB_COUNT(prefixes); i++)
        if (golden_has(g, "%s.sequence", prefixes[i])) s = variant(g, prefixes[i], ids, (int)n, err);
    free(ids);
    return s;
}

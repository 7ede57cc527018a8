/* tools/golden/assistant.c - the Gemma-4 assistant: donors, draft chain, and the assisted text. */
#include "golden.h"

#include "drafters/assistant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The chain of one rule set: "" as trained, or "seed_positions." */
typedef struct chain_trace {
    golden *g;
    const char *prefix;
} chain_trace;

/* Compares PREFIXdraft.i.* as they come, then puts the reference's hidden row in the place of ours, so that each step
 * is judged from the reference's inputs (as greedy decoding is fed the reference's tokens): a chain of random weights
 * multiplies a rounding difference by about five at every step. The free chain must still give the same tokens. Logits of the centroid head are NaN where a token is no candidate. */
static void stage(void *ctx, const char *name, int index, const float *values, int rows, int n)
{
    chain_trace *t = ctx;
    golden *g = t->g;
    char key[128];
    (void)snprintf(key, sizeof key, "%sdraft.%d.%s", t->prefix, index, name + strlen("draft."));
    int64_t count;
    float *want = rows == 1 ? golden_floats(g, &count, "%s", key) : NULL;
    if (!want) return;
    float *got = malloc((size_t)n * sizeof *got);
    for (int i = 0; got && i < n; i++) got[i] = isnan(values[i]) && i < count ? want[i] : values[i];
    if (got) golden_compare(g, key, got, n);
    if (strcmp(name, "draft.next_hidden") == 0 && count == n) memcpy((float *)(uintptr_t)values, want, (size_t)n * sizeof *want);
    free(got);
    free(want);
}

static sib_status compare_donors(golden *g, sib_model *m, sib_seq *seq, int n, sib_err *err)
{
    static const char *const names[] = {"sliding_attention", "full_attention"};
    for (int k = 0; k < SIB_N_DONORS; k++) {
        const sib_donor_info *d = m->offers.donors->info(m, (sib_donor)k);
        char key[64];
        (void)snprintf(key, sizeof key, "donor.%s.keys", names[k]);
        if (!golden_has(g, "%s", key) || d->layer < 0) continue;
        int64_t count;
        float *want = golden_floats(g, &count, "%s", key);
        /* The reference holds the newest columns that its cache kept. */
        int columns = (int)(count / (d->n_kv_heads * d->head_dim));
        free(want);
        size_t bytes = (size_t)count * sizeof(float);
        float *kk = malloc(bytes), *vv = malloc(bytes);
        if (!kk || !vv || columns > n) {
            free(kk);
            free(vv);
            return columns > n ? sib_fail(err, SIB_EFORMAT, "%s has %d columns of %d", key, columns, n) : sib_nomem(err, "donors");
        }
        m->offers.donors->read(m, (sib_donor)k, seq, n - columns, columns, kk, vv);
        golden_compare(g, key, kk, count);
        (void)snprintf(key, sizeof key, "donor.%s.values", names[k]);
        golden_compare(g, key, vv, count);
        free(kk);
        free(vv);
    }
    return SIB_OK;
}

static int argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* Greedy text from the prompt, drafting `depth` tokens a round (0: none). */
static sib_status greedy(sib_model *m, sib_drafter *d, const int32_t *ids, int n, int depth, int32_t *out, int n_out, sib_err *err)
{
    sib_seq *seq = NULL;
    sib_draft_state *state = NULL;
    sib_forward_out f;
    int32_t window[SIB_MAX_DRAFT + 1];
    int v = m->facts.n_vocab, got = 0, done = n;
    sib_status s = m->ops->seq_new(m, &seq, err);
    if (s == SIB_OK && depth > 0) s = d->ops->state_new(d, &state, err);
    if (s == SIB_OK) s = m->ops->forward(m, &(sib_part){.seq = seq, .ids = ids, .n_rows = n, .n_logits = 1}, 1, &f, err);
    if (s == SIB_OK) s = m->offers.keep->keep(m, seq, n, err);
    if (s == SIB_OK) {
        out[got++] = argmax(f.logits, v);
        if (state) s = d->ops->settle(d, &(sib_settle){.state = state, .seq = seq, .ids = ids, .n = n, .next = out[0], .hidden = f.hidden}, 1, err);
    }
    while (s == SIB_OK && got < n_out) {
        sib_propose p = {.state = state, .seq = seq, .pending = out[got - 1], .position = done, .max = depth, .ids = window + 1};
        if (state) s = d->ops->propose(d, &p, 1, err);
        window[0] = out[got - 1];
        if (s == SIB_OK) s = m->ops->forward(m, &(sib_part){.seq = seq, .ids = window, .n_rows = 1 + p.n, .n_logits = 1 + p.n}, 1, &f, err);
        if (s != SIB_OK) break;
        int a = 0;
        for (;; a++) {
            int t = argmax(f.logits + (size_t)a * (size_t)v, v);
            if (got < n_out) out[got++] = t;
            if (a == p.n || t != window[a + 1]) break;
        }
        s = m->offers.keep->keep(m, seq, a + 1, err);
        if (s == SIB_OK && state) s = d->ops->settle(d, &(sib_settle){.state = state, .seq = seq, .ids = window, .n = a + 1, .pos0 = done, .next = out[got - 1], .hidden = f.hidden}, 1, err);
        done += a + 1;
    }
    if (state) d->ops->state_free(d, state);
    if (seq) m->ops->seq_free(m, seq);
    return s;
}

static sib_status chain(golden *g, sib_model *m, sib_drafter *d, const char *prefix, const int32_t *ids, int n, sib_err *err)
{
    int64_t n_draft, n_first;
    char key[64];
    (void)snprintf(key, sizeof key, "%sdraft.tokens", prefix);
    int32_t *want = golden_ints(g, &n_draft, "%s", key), *first = golden_ints(g, &n_first, "first_token"), got[SIB_MAX_DRAFT];
    if (!want || !first || n_draft > SIB_MAX_DRAFT) return sib_fail(err, SIB_EFORMAT, "draft.tokens and first_token are needed");
    sib_seq *seq = NULL;
    sib_draft_state *state = NULL;
    sib_forward_out f;
    sib_status s = m->ops->seq_new(m, &seq, err);
    if (s == SIB_OK) s = d->ops->state_new(d, &state, err);
    if (s == SIB_OK) s = m->ops->forward(m, &(sib_part){.seq = seq, .ids = ids, .n_rows = n, .n_logits = 1}, 1, &f, err);
    if (s == SIB_OK) s = m->offers.keep->keep(m, seq, n, err);
    if (s == SIB_OK && !prefix[0]) {
        if (golden_has(g, "target.hidden_last")) golden_compare(g, "target.hidden_last", f.hidden + (size_t)(n - 1) * (size_t)m->facts.hidden, m->facts.hidden);
        int32_t t0 = argmax(f.logits, m->facts.n_vocab);
        golden_compare_ids(g, "first_token", &t0, 1);
        s = compare_donors(g, m, seq, n, err);
    }
    if (s == SIB_OK) s = d->ops->settle(d, &(sib_settle){.state = state, .seq = seq, .ids = ids, .n = n, .next = first[0], .hidden = f.hidden}, 1, err);
    sib_propose p = {.state = state, .seq = seq, .pending = first[0], .position = n, .max = (int)n_draft, .ids = got};
    if (s == SIB_OK) s = d->ops->propose(d, &p, 1, err);
    if (s == SIB_OK) golden_compare_ids(g, key, got, p.n);
    chain_trace trace = {g, prefix};
    sib_assistant_trace(d, (sib_trace){stage, &trace});
    if (s == SIB_OK) s = d->ops->propose(d, &p, 1, err);
    sib_assistant_trace(d, (sib_trace){0});
    if (state) d->ops->state_free(d, state);
    if (seq) m->ops->seq_free(m, seq);
    free(want);
    free(first);
    return s;
}

/* The same chain with the positions of the "seed" rules and the trained scale and window. */
static sib_status seed_chain(golden *g, sib_model *m, const int32_t *ids, int n, sib_err *err)
{
    sib_checkpoint *files = NULL;
    sib_drafter *d = NULL;
    sib_drafter_options o = {.n_seqs = 2, .max_draft = SIB_MAX_DRAFT, .seed_positions = true};
    sib_status s = sib_checkpoint_open(&files, g->dir, NULL, err);
    sib_loader l = {.dev = g->device, .files = files};
    if (s == SIB_OK) s = sib_assistant_open(&d, &l, m, &o, err);
    if (s == SIB_OK) s = chain(g, m, d, "seed_positions.", ids, n, err);
    if (d) d->ops->free(d);
    sib_checkpoint_free(files);
    return s;
}

sib_status golden_assistant(golden *g, sib_err *err)
{
    golden_model m;
    sib_model_limits limits = {.n_ctx = 256, .n_seqs = 2, .max_rows = 128, .max_logits = 128};
    SIB_TRY(golden_open(g, &m, "target", &limits, err));
    sib_checkpoint *files = NULL;
    sib_drafter *d = NULL;
    sib_drafter_options o = {.n_seqs = 2, .max_draft = SIB_MAX_DRAFT};
    sib_status s = sib_checkpoint_open(&files, g->dir, NULL, err);
    sib_loader l = {.dev = g->device, .files = files};
    if (s == SIB_OK) s = sib_assistant_open(&d, &l, m.model, &o, err);
    int64_t n = 0, n_plain = 0;
    int32_t *ids = golden_ints(g, &n, "input_ids"), *plain = golden_ints(g, &n_plain, "plain.tokens"), *out = calloc((size_t)n_plain + 1, sizeof *out);
    golden_input(g, "input_ids");
    golden_input(g, "position_ids");
    if (s == SIB_OK && (!ids || !out)) s = sib_fail(err, SIB_EFORMAT, "input_ids are needed");
    if (s == SIB_OK) s = chain(g, m.model, d, "", ids, (int)n, err);
    if (s == SIB_OK && golden_has(g, "seed_positions.draft.tokens")) s = seed_chain(g, m.model, ids, (int)n, err);
    if (s == SIB_OK && plain) {
        s = greedy(m.model, d, ids, (int)n, 0, out, (int)n_plain, err);
        if (s == SIB_OK) golden_compare_ids(g, "plain.tokens", out, n_plain);
        if (s == SIB_OK) s = greedy(m.model, d, ids, (int)n, 4, out, (int)n_plain, err);
        if (s == SIB_OK && golden_has(g, "assisted.tokens")) golden_compare_ids(g, "assisted.tokens", out, n_plain);
    }
    free(ids);
    free(plain);
    free(out);
    if (d) d->ops->free(d);
    sib_checkpoint_free(files);
    golden_close(&m);
    return s;
}

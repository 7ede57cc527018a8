/* tools/golden/glm_mtp.c - GLM-5.2's draft head beside its trunk: replays scripted rounds of each variant.
 *
 * A variant's name says what it is: full_ or decode_ (rows of the prompt in the head's cache or not), post_ or raw_ (what is
 * chained), dense or indexer (attention of the head). Two things run side by side: the head through its port, whose
 * stages, cache and row counts are compared, and the drafter, whose guesses must be the reference's. The target verifies the
 * reference's window in every round, and `accepted` scripts how many drafts stay. */
#include "golden.h"

#include "artifacts/quant.h"
#include "drafters/native_mtp.h"
#include "ports/mtp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct replay {
    golden *g;
    golden_model gm;
    sib_model *m;
    const sib_mtp_port *port;
    sib_drafter *drafter;
    sib_seq *seq;
    sib_mtp_seq *head;
    sib_draft_state *state;
    const char *variant;
    bool full, raw;
    int latent, rope, nope, v_dim, heads;
    float *kv_b; /* [heads][nope + v_dim][latent] */
    float *anchor, *row; /* [hidden]; on the CPU device these are device rows too */
    int32_t *tokens;
    int n_tokens; /* committed */
    char prefix[128]; /* of the stages that are being run */
} replay;

static int argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* Rows that see no more keys than are picked have no choice; the others must have the reference's set. */
static void compare_picks(golden *g, const char *key, const float *got, int rows, int k, int first)
{
    int64_t n;
    int32_t *want = golden_ints(g, &n, "%s", key);
    int wrong = 0;
    for (int r = 0; want && n == (int64_t)rows * k && r < rows; r++)
        for (int i = 0; first + r + 1 > k && i < k; i++) {
            bool found = false;
            for (int j = 0; j < k; j++) found |= (int32_t)got[r * k + j] == want[r * k + i];
            wrong += !found;
        }
    golden_line(g, key, wrong, 0, want && n == (int64_t)rows * k && wrong == 0 ? "ok" : "FAIL");
    free(want);
}

static void stage(void *ctx, const char *name, int index, const float *values, int rows, int n)
{
    static const char *const names[][2] = {{"mtp.eh_input", "eh_input"}, {"mtp.eh_proj", "eh_proj"}, {"mtp.attn_out", "attention"}, {"mtp.mlp_out", "moe"}, {"mtp.layer_out", "layer_out"}, {"mtp.out", "out"}, {"mtp.topk", "topk"}};
    replay *r = ctx;
    for (size_t i = 0; i < SIB_COUNT(names); i++) {
        char key[192];
        (void)snprintf(key, sizeof key, "%s.%s", r->prefix, names[i][1]);
        if (strcmp(name, names[i][0]) || !golden_has(r->g, "%s", key)) continue;
        if (strcmp(names[i][1], "topk") == 0)
            compare_picks(r->g, key, values, rows, n, index);
        else
            golden_compare(r->g, key, values, (int64_t)rows * n);
    }
}

/* PREFIX.K and .V: the reference holds keys [nope | rope: real parts, imaginary parts] and values of every head. */
static sib_status compare_cache(replay *r, const char *prefix, sib_err *err)
{
    int rows = r->port->length(r->m, r->head), qk = r->nope + r->rope;
    char key[160];
    (void)snprintf(key, sizeof key, "%s.K", prefix);
    if (!golden_has(r->g, "%s", key)) return SIB_OK;
    size_t n = (size_t)rows;
    float *latent = malloc((n * r->latent + 1) * sizeof *latent), *rope = malloc((n * r->rope + 1) * sizeof *rope);
    float *k = malloc((n * r->heads * qk + 1) * sizeof *k), *v = malloc((n * r->heads * r->v_dim + 1) * sizeof *v);
    if (latent && rope && k && v) {
        r->port->read(r->m, r->head, 0, rows, latent, rope);
        for (int h = 0; h < r->heads; h++)
            for (int p = 0; p < rows; p++) {
                float *to = k + ((size_t)h * n + p) * qk;
                for (int o = 0; o < r->nope + r->v_dim; o++) {
                    const float *w = r->kv_b + ((size_t)h * (r->nope + r->v_dim) + o) * r->latent;
                    double sum = 0;
                    for (int i = 0; i < r->latent; i++) sum += (double)w[i] * latent[(size_t)p * r->latent + i];
                    if (o < r->nope)
                        to[o] = (float)sum;
                    else
                        v[((size_t)h * n + p) * r->v_dim + o - r->nope] = (float)sum;
                }
                for (int i = 0; i < r->rope; i++) to[r->nope + i % 2 * (r->rope / 2) + i / 2] = rope[(size_t)p * r->rope + i];
            }
        golden_compare(r->g, key, k, (int64_t)n * r->heads * qk);
        (void)snprintf(key, sizeof key, "%s.V", prefix);
        golden_compare(r->g, key, v, (int64_t)n * r->heads * r->v_dim);
    } else {
        (void)sib_nomem(err, "cache");
    }
    sib_status s = latent && rope && k && v ? SIB_OK : SIB_ENOMEM;
    free(latent);
    free(rope);
    free(k);
    free(v);
    return s;
}

static void compare_id(replay *r, int round, const char *what, int32_t got)
{
    char key[160];
    (void)snprintf(key, sizeof key, "%s.round.%d.%s", r->variant, round, what);
    golden_compare_ids(r->g, key, &got, 1);
}

/* The head's steps of a round, each fed the reference's draft before it. */
static sib_status head_steps(replay *r, int round, int32_t pending, const int32_t *drafts, int n, sib_err *err)
{
    sib_mtp_out out = {0};
    int hidden = r->m->facts.hidden, v = r->m->facts.n_vocab;
    float *logits = malloc((size_t)v * sizeof *logits);
    sib_status s = logits ? SIB_OK : sib_nomem(err, "logits");
    memcpy(r->row, r->anchor, (size_t)hidden * sizeof *r->row);
    for (int i = 0; i < n && s == SIB_OK; i++) {
        char key[192];
        sib_mtp_part part = {r->head, i == 0 ? &pending : &drafts[i - 1], r->row, 1};
        (void)snprintf(r->prefix, sizeof r->prefix, "%s.round.%d.step.%d", r->variant, round, i);
        r->m->trace = (sib_trace){stage, r};
        s = r->port->step(r->m, &part, 1, &out, err);
        r->m->trace = (sib_trace){0};
        if (s != SIB_OK) break;
        r->port->head(r->m, logits, out.out, 1);
        (void)snprintf(key, sizeof key, "%s.logits", r->prefix);
        golden_compare(r->g, key, logits, v);
        (void)snprintf(key, sizeof key, "%s.margin", r->prefix);
        golden_input(r->g, key);
        if (argmax(logits, v) != drafts[i]) golden_fail(r->g, r->prefix, "the head's best token is not the reference's draft");
        memcpy(r->row, r->raw ? out.raw : out.out, (size_t)hidden * sizeof *r->row);
    }
    free(logits);
    return s;
}

/* The window behind the committed tokens. The reference ran the whole text again in one call, whose number of columns decides
 * ties of the trunk's indexers for every row (ties.c), so this does too; that windows on a cache give the same bits
 * is what tests/unit/glm_test.c checks. */
static sib_status run_window(replay *r, const int32_t *window, int rows, sib_forward_out *f, sib_err *err)
{
    memcpy(r->tokens + r->n_tokens, window, (size_t)rows * sizeof *window);
    SIB_TRY(r->m->offers.keep->truncate(r->m, r->seq, 0, err));
    SIB_TRY(r->m->ops->forward(r->m, &(sib_part){.seq = r->seq, .ids = r->tokens, .n_rows = r->n_tokens + rows, .n_logits = rows}, 1, f, err));
    f->hidden += (size_t)r->n_tokens * (size_t)r->m->facts.hidden;
    return SIB_OK;
}

static sib_status verify(replay *r, int round, int32_t pending, const int32_t *drafts, int d, int accepted, int32_t next, sib_err *err)
{
    int32_t window[SIB_MAX_DRAFT + 1] = {pending}, chosen[SIB_MAX_DRAFT + 1];
    int hidden = r->m->facts.hidden, natural = 0;
    sib_forward_out f;
    char key[160];
    memcpy(window + 1, drafts, (size_t)d * sizeof *drafts);
    SIB_TRY(run_window(r, window, d + 1, &f, err));
    (void)snprintf(key, sizeof key, "%s.round.%d.verify_hidden", r->variant, round);
    golden_compare(r->g, key, f.hidden, (int64_t)(d + 1) * hidden);
    for (int i = 0; i <= d; i++) chosen[i] = argmax(f.logits + (size_t)i * r->m->facts.n_vocab, r->m->facts.n_vocab);
    (void)snprintf(key, sizeof key, "%s.round.%d.verify_tokens", r->variant, round);
    golden_compare_ids(r->g, key, chosen, d + 1);
    while (natural < d && chosen[natural] == drafts[natural]) natural++;
    compare_id(r, round, "natural_accepted", natural);
    compare_id(r, round, "next_pending", chosen[accepted]);

    SIB_TRY(r->m->offers.keep->keep(r->m, r->seq, r->n_tokens + accepted + 1, err));
    SIB_TRY(r->drafter->ops->settle(r->drafter, &(sib_settle){.state = r->state, .seq = r->seq, .ids = window, .n = accepted + 1, .pos0 = r->n_tokens, .next = next, .hidden = f.hidden}, 1, err));
    if (accepted > 0) SIB_TRY(r->port->step(r->m, &(sib_mtp_part){r->head, drafts, f.hidden, accepted}, 1, NULL, err));
    memcpy(r->anchor, f.hidden + (size_t)accepted * hidden, (size_t)hidden * sizeof *r->anchor);
    r->n_tokens += accepted + 1;
    return SIB_OK;
}

static sib_status one_round(replay *r, int round, sib_err *err)
{
    int64_t d, n;
    char key[160];
    int32_t *drafts = golden_ints(r->g, &d, "%s.round.%d.drafts", r->variant, round), *pending = golden_ints(r->g, &n, "%s.round.%d.pending", r->variant, round);
    int32_t *accepted = golden_ints(r->g, &n, "%s.round.%d.accepted", r->variant, round), *next = golden_ints(r->g, &n, "%s.round.%d.next_pending", r->variant, round), got[SIB_MAX_DRAFT];
    sib_status s = drafts && pending && accepted && next && d >= 1 && d <= SIB_MAX_DRAFT && accepted[0] >= 0 && accepted[0] <= d
                       ? SIB_OK
                       : sib_fail(err, SIB_EFORMAT, "%s.round.%d has no drafts, pending, accepted or next_pending", r->variant, round);
    if (s == SIB_OK) {
        (void)snprintf(key, sizeof key, "%s.round.%d.pending", r->variant, round);
        golden_input(r->g, key);
        (void)snprintf(key, sizeof key, "%s.round.%d.accepted", r->variant, round);
        golden_input(r->g, key);
        (void)snprintf(key, sizeof key, "%s.round.%d.anchor_hidden", r->variant, round);
        golden_compare(r->g, key, r->anchor, r->m->facts.hidden);
        int before = r->port->length(r->m, r->head);
        compare_id(r, round, "rows_before", before);
        sib_propose p = {.state = r->state, .seq = r->seq, .pending = pending[0], .position = r->n_tokens, .max = (int)d, .ids = got};
        s = r->drafter->ops->propose(r->drafter, &p, 1, err);
        if (s == SIB_OK) {
            (void)snprintf(key, sizeof key, "%s.round.%d.drafts", r->variant, round);
            golden_compare_ids(r->g, key, got, p.n);
            s = head_steps(r, round, pending[0], drafts, (int)d, err);
        }
        if (s == SIB_OK) s = r->port->truncate(r->m, r->head, before + 1, err);
        if (s == SIB_OK) s = verify(r, round, pending[0], drafts, (int)d, accepted[0], next[0], err);
        if (s == SIB_OK) compare_id(r, round, "rows_after", r->port->length(r->m, r->head));
    }
    free(drafts);
    free(pending);
    free(accepted);
    free(next);
    return s;
}

static sib_status run_rounds(replay *r, const int32_t *ids, int n, sib_err *err)
{
    sib_forward_out f;
    char key[160];
    int hidden = r->m->facts.hidden;
    SIB_TRY(r->m->ops->forward(r->m, &(sib_part){.seq = r->seq, .ids = ids, .n_rows = n, .n_logits = 1}, 1, &f, err));
    SIB_TRY(r->m->offers.keep->keep(r->m, r->seq, n, err));
    int32_t first = argmax(f.logits, r->m->facts.n_vocab);
    memcpy(r->anchor, f.hidden + (size_t)(n - 1) * hidden, (size_t)hidden * sizeof *r->anchor);
    memcpy(r->tokens, ids, (size_t)n * sizeof *ids);
    r->n_tokens = n;
    SIB_TRY(r->drafter->ops->settle(r->drafter, &(sib_settle){.state = r->state, .seq = r->seq, .ids = ids, .n = n, .next = first, .hidden = f.hidden}, 1, err));
    if (r->full && n > 1) {
        sib_mtp_out out;
        (void)snprintf(r->prefix, sizeof r->prefix, "%s.prefill", r->variant);
        r->m->trace = (sib_trace){stage, r};
        sib_status s = r->port->step(r->m, &(sib_mtp_part){r->head, ids + 1, f.hidden, n - 1}, 1, &out, err);
        r->m->trace = (sib_trace){0};
        SIB_TRY(s);
        SIB_TRY(compare_cache(r, r->prefix, err));
    }
    for (int round = 0; golden_has(r->g, "%s.round.%d.accepted", r->variant, round); round++) SIB_TRY(one_round(r, round, err));
    SIB_TRY(compare_cache(r, r->variant, err));
    (void)snprintf(key, sizeof key, "%s.sequence", r->variant);
    golden_compare_ids(r->g, key, r->tokens, r->n_tokens);
    return SIB_OK;
}

static int config_int(const replay *r, const char *key)
{
    return (int)json_integer_value(json_object_get(sib_checkpoint_config(r->gm.files), key));
}

static sib_status run_variant(golden *g, const char *variant, const int32_t *ids, int n, sib_err *err)
{
    replay r = {.g = g, .variant = variant, .full = strncmp(variant, "full", 4) == 0, .raw = strstr(variant, "_raw") != NULL};
    sib_model_limits limits = {.n_ctx = 512, .n_seqs = 2, .max_rows = 128, .max_logits = 128, .mtp = strstr(variant, "indexer") ? SIB_MTP_INDEXED : SIB_MTP_DENSE};
    sib_drafter_options o = {.mtp_decode_only = !r.full, .mtp_raw_chain = r.raw, .n_seqs = 1, .max_draft = SIB_MAX_DRAFT};
    sib_matrix_src kv_b;
    SIB_TRY(golden_open(g, &r.gm, NULL, &limits, err));
    r.m = r.gm.model;
    r.port = r.m->offers.mtp;
    sib_status s = sib_native_mtp_open(&r.drafter, r.m, &o, err);
    r.heads = config_int(&r, "num_attention_heads");
    r.latent = config_int(&r, "kv_lora_rank");
    r.nope = config_int(&r, "qk_nope_head_dim");
    r.rope = config_int(&r, "qk_rope_head_dim");
    r.v_dim = config_int(&r, "v_head_dim");
    int all = r.heads * (r.nope + r.v_dim);
    char name[96];
    (void)snprintf(name, sizeof name, "model.layers.%d.self_attn.kv_b_proj", r.m->facts.n_layers);
    if (s == SIB_OK) s = sib_matrix_of(r.gm.files, name, all, r.latent, 0, &kv_b, err);
    if (s == SIB_OK) {
        r.kv_b = malloc((size_t)all * r.latent * sizeof *r.kv_b);
        r.anchor = malloc((size_t)r.m->facts.hidden * sizeof *r.anchor);
        r.row = malloc((size_t)r.m->facts.hidden * sizeof *r.row);
        r.tokens = malloc((size_t)r.m->facts.n_ctx * sizeof *r.tokens);
        if (!r.kv_b || !r.anchor || !r.row || !r.tokens) s = sib_nomem(err, "replay");
    }
    if (s == SIB_OK) {
        sib_matrix_src_rows(r.kv_b, &kv_b, 0, 0, all);
        s = r.m->ops->seq_new(r.m, &r.seq, err);
    }
    if (s == SIB_OK) s = r.port->seq_new(r.m, &r.head, err);
    if (s == SIB_OK) s = r.drafter->ops->state_new(r.drafter, &r.state, err);
    if (s == SIB_OK) s = run_rounds(&r, ids, n, err);
    if (r.state) r.drafter->ops->state_free(r.drafter, r.state);
    if (r.head) r.port->seq_free(r.m, r.head);
    if (r.seq) r.m->ops->seq_free(r.m, r.seq);
    if (r.drafter) r.drafter->ops->free(r.drafter);
    free(r.kv_b);
    free(r.anchor);
    free(r.row);
    free(r.tokens);
    golden_close(&r.gm);
    return s;
}

/* Stages of the trunk, with the names of these cases. */
static void trunk_stage(void *ctx, const char *name, int index, const float *values, int rows, int n)
{
    golden *g = ctx;
    char key[64];
    if (strcmp(name, "layer_out")) return;
    (void)snprintf(key, sizeof key, "prefill.layer.%d.out", index);
    if (golden_has(g, "%s", key)) golden_compare(g, key, values, (int64_t)rows * n);
}

/* The trunk: prefill, then greedy decoding that runs free; end ids are suppressed as the reference did. */
static sib_status run_trunk(golden *g, const int32_t *ids, int n, sib_err *err)
{
    golden_model gm;
    sib_model_limits limits = {.n_ctx = 512, .n_seqs = 1, .max_rows = 128, .max_logits = 128};
    SIB_TRY(golden_open(g, &gm, NULL, &limits, err));
    sib_model *m = gm.model;
    sib_seq *seq = NULL;
    sib_forward_out f;
    int64_t n_greedy = 0;
    int32_t *greedy = golden_ints(g, &n_greedy, "greedy.tokens"), *got = calloc((size_t)n_greedy + 1, sizeof *got);
    int64_t eos = json_integer_value(json_object_get(sib_checkpoint_config(gm.files), "eos_token_id"));
    sib_status s = got ? m->ops->seq_new(m, &seq, err) : sib_nomem(err, "tokens");
    m->trace = (sib_trace){trunk_stage, g};
    if (s == SIB_OK) s = m->ops->forward(m, &(sib_part){.seq = seq, .ids = ids, .n_rows = n, .n_logits = n}, 1, &f, err);
    m->trace = (sib_trace){0};
    if (s == SIB_OK) s = m->offers.keep->keep(m, seq, n, err);
    if (s == SIB_OK) {
        golden_compare(g, "prefill.hidden_post_norm", f.hidden, (int64_t)n * m->facts.hidden);
        golden_compare(g, "prefill.logits", f.logits, (int64_t)n * m->facts.n_vocab);
    }
    const float *row = s == SIB_OK ? f.logits + (size_t)(n - 1) * m->facts.n_vocab : NULL;
    for (int64_t i = 0; s == SIB_OK && i < n_greedy; i++) {
        int best = -1;
        for (int t = 0; t < m->facts.n_vocab; t++)
            if (t != eos && (best < 0 || row[t] > row[best])) best = t;
        got[i] = best;
        s = m->ops->forward(m, &(sib_part){.seq = seq, .ids = &got[i], .n_rows = 1, .n_logits = 1}, 1, &f, err);
        if (s == SIB_OK) s = m->offers.keep->keep(m, seq, 1, err);
        row = f.logits;
    }
    if (s == SIB_OK && greedy) golden_compare_ids(g, "greedy.tokens", got, n_greedy);
    free(greedy);
    free(got);
    if (seq) m->ops->seq_free(m, seq);
    golden_close(&gm);
    return s;
}

bool golden_is_glm_mtp(const golden *g)
{
    const json_t *variants = json_object_get(g->notes, "variants"), *one;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)variants, i, one)
        if (golden_has(g, "%s.round.0.step.0.eh_proj", json_string_value(one))) return true;
    return false;
}

sib_status golden_glm_mtp(golden *g, sib_err *err)
{
    int64_t n;
    int32_t *ids = golden_ints(g, &n, "input_ids");
    if (!ids || n < 1 || n > 128) {
        free(ids);
        return sib_fail(err, SIB_EFORMAT, "input_ids are needed, 128 at most");
    }
    golden_input(g, "input_ids");
    sib_status s = run_trunk(g, ids, (int)n, err);
    const json_t *variants = json_object_get(g->notes, "variants");
    for (size_t i = 0; s == SIB_OK && i < json_array_size(variants); i++) s = run_variant(g, json_string_value(json_array_get(variants, i)), ids, (int)n, err);
    free(ids);
    return s;
}

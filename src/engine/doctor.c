/* engine/doctor.c - see doctor.h. */
#include "engine/doctor.h"

#include "base/rng.h"
#include "kernels/probe.h"
#include "ops/nothing.h"
#include "spec/round.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTEXT     64 /* rows before the timed rounds */
#define MAX_REPEATS 64
#define RANDOM_IDS  24 /* of a prompt where there is no tokenizer */

static const char *const questions[] = {
    "Explain in a few sentences why the sea is salty.",
    "Write a short function in C that counts the words of a text.",
    "List the days of the week and the months of the year.",
};

/* ---- the check ---------------------------------------------------------------------------------- */

typedef struct trial {
    sib_device *cpu;
    sib_nothing nothing;
    sib_checkpoint *files, *draft_files;
    sib_model *model;
    sib_drafter *drafter;
} trial;

static sib_status try_pair(trial *t, const sib_options *o, sib_err *err)
{
    sib_cpu_options cpu = {.threads = 1};
    sib_model_limits limits;
    SIB_TRY(sib_engine_numerics(o->numerics, &cpu.numerics, err));
    SIB_TRY(sib_drafter_files_open(&t->files, o->model, o->lax_safetensors, err));
    SIB_TRY(sib_refuse_drafter(sib_checkpoint_dir(t->files), err));
    SIB_TRY(sib_drafter_files_open(&t->draft_files, o->draft, o->lax_safetensors, err));
    const sib_family *family = sib_family_for(t->files, err);
    if (!family) return SIB_EUNSUPPORTED;
    SIB_TRY(sib_cpu_device_new(&t->cpu, &cpu, err));
    sib_nothing_init(&t->nothing, t->cpu);
    sib_engine_limits(o, 1, &limits);
    sib_loader l = {.dev = &t->nothing.device, .files = t->files};
    SIB_TRY(family->open(&t->model, &l, &limits, err));
    sib_loader d = {.dev = &t->nothing.device, .files = t->draft_files};
    return sib_drafter_open(
        &t->drafter, &d, t->model,
        &(sib_drafter_options){.bits = o->draft_bits, .n_seqs = 1, .max_draft = limits.max_block - 1}, err);
}

static sib_status check_pair(const sib_options *o, sib_err *err)
{
    trial t = {0};
    sib_status s = try_pair(&t, o, err);
    if (t.drafter) t.drafter->ops->free(t.drafter);
    if (t.model) t.model->ops->free(t.model);
    sib_device_free(t.cpu);
    sib_checkpoint_free(t.draft_files);
    sib_checkpoint_free(t.files);
    return s;
}

/* ---- costs -------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

/* A timeline of random tokens. */
typedef struct timeline {
    const sib_engine *e;
    sib_seq *seq;
    sib_draft_state *state;
    uint64_t seed;
    int n;
} timeline;

static void random_ids(timeline *t, int32_t *ids, int n)
{
    for (int i = 0; i < n; i++) ids[i] = (int32_t)(sib_splitmix64(&t->seed) % (uint64_t)t->e->model->facts.n_vocab);
}

/* n rows, of which `keep` are committed. Times in ms; a time may be NULL. */
static sib_status forward(timeline *t, const int32_t *ids, int n, int keep, double *forward_ms, double *settle_ms,
                          sib_err *err)
{
    sib_model *m = t->e->model;
    sib_drafter *d = t->e->drafter;
    sib_forward_out out;
    double t0 = sib_probe_now();
    SIB_TRY(m->ops->forward(
        m,
        &(sib_part){
            .seq = t->seq, .ids = ids, .n_rows = n, .n_logits = n < m->facts.max_logits ? n : m->facts.max_logits},
        1, &out, err));
    if (forward_ms) *forward_ms = (sib_probe_now() - t0) * 1e3;
    SIB_TRY(m->offers.keep->keep(m, t->seq, keep, err));
    if (keep == 0) return SIB_OK;
    sib_settle s = {.state = t->state,
                    .seq = t->seq,
                    .ids = ids,
                    .n = keep,
                    .pos0 = t->n,
                    .next = ids[0],
                    .hidden = out.hidden,
                    .taps = m->offers.taps ? m->offers.taps->rows(m) : NULL};
    t0 = sib_probe_now();
    SIB_TRY(d->ops->settle(d, &s, 1, err));
    if (settle_ms) *settle_ms = (sib_probe_now() - t0) * 1e3;
    t->n += keep;
    return SIB_OK;
}

static sib_status time_rounds(timeline *t, int depth, int repeats, sib_draft_cost *out, sib_err *err)
{
    double draft[MAX_REPEATS], verify[MAX_REPEATS], plain[MAX_REPEATS];
    int32_t window[SIB_MAX_DRAFT + 1], ids[CONTEXT], again[SIB_MAX_DRAFT];
    sib_drafter *d = t->e->drafter;
    random_ids(t, ids, CONTEXT);
    SIB_TRY(forward(t, ids, CONTEXT, CONTEXT, NULL, NULL, err));
    for (int i = -1; i < repeats; i++) { /* the first round warms up */
        double settle = 0, *v = &verify[i < 0 ? 0 : i], *p = &plain[i < 0 ? 0 : i];
        random_ids(t, window, SIB_MAX_DRAFT + 1);
        sib_propose ask = {
            .state = t->state, .seq = t->seq, .pending = window[0], .position = t->n, .max = depth, .ids = again};
        double t0 = sib_probe_now();
        SIB_TRY(d->ops->propose(d, &ask, 1, err));
        double spent = (sib_probe_now() - t0) * 1e3;
        if (i >= 0) out->drafts += (double)ask.n / repeats;
        SIB_TRY(forward(t, window, 1, 0, p, NULL, err));
        SIB_TRY(forward(t, window, ask.n + 1, 1, v, &settle, err));
        draft[i < 0 ? 0 : i] = spent + settle;
    }
    out->draft_ms = median(draft, repeats);
    out->verify_ms = median(verify, repeats);
    out->plain_ms = median(plain, repeats);
    out->break_even_emitted = out->plain_ms > 0 ? (out->draft_ms + out->verify_ms) / out->plain_ms : 0;
    out->break_even_acceptance = out->drafts > 0 ? (out->break_even_emitted - 1) / out->drafts : 0;
    return SIB_OK;
}

sib_status sib_draft_cost_measure(const sib_engine *e, int depth, int repeats, sib_draft_cost *out, sib_err *err)
{
    timeline t = {.e = e, .seed = 1};
    if (depth > e->drafter->max_draft) depth = e->drafter->max_draft;
    if (repeats < 1 || repeats > MAX_REPEATS - 1)
        return sib_fail(err, SIB_EARG, "%d repeats, allowed are 1 to %d", repeats, MAX_REPEATS - 1);
    if (depth < 1 || CONTEXT + repeats + depth + 2 > e->model->facts.n_ctx)
        return sib_fail(err, SIB_ECAPACITY, "a context of %d positions is too small to measure %d drafts",
                        e->model->facts.n_ctx, depth);
    *out = (sib_draft_cost){0};
    sib_status s = e->model->ops->seq_new(e->model, &t.seq, err);
    if (s == SIB_OK) s = e->drafter->ops->state_new(e->drafter, &t.state, err);
    if (s == SIB_OK) s = time_rounds(&t, depth, repeats, out, err);
    if (t.state) e->drafter->ops->state_free(e->drafter, t.state);
    if (t.seq) e->model->ops->seq_free(e->model, t.seq);
    return s;
}

/* ---- acceptance --------------------------------------------------------------------------------- */

/* One greedy answer; tokens has room for n_prompt + n + SIB_ROUND_EMIT. */
static sib_status answer(const sib_engine *e, int depth, int32_t *tokens, int n_prompt, int n, sib_lane *lane,
                         sib_err *err)
{
    sib_round *round = NULL;
    sib_id_set eos = {0};
    sib_sampler_params params = sib_sampler_defaults();
    params.temperature = 0;
    *lane = (sib_lane){
        .tokens = tokens, .n_tokens = n_prompt, .eos = &eos, .rule = SIB_ACCEPT_MATCH, .budget = (uint64_t)n};
    sib_policy_init(&lane->policy, SIB_POLICY_FIXED, depth);
    sib_status s = sib_id_set_init(&eos, e->defaults.eos, (size_t)e->defaults.n_eos, err);
    if (s == SIB_OK) s = sib_round_new(&round, e->model, depth ? e->drafter : NULL, 1, e->chunk, err);
    if (s == SIB_OK)
        s = sib_sampler_new(&lane->sampler, &params, e->model->facts.n_vocab,
                            (size_t)n_prompt + (size_t)n + SIB_ROUND_EMIT, err);
    for (int i = 0; s == SIB_OK && i < n_prompt; i++) s = sib_sampler_push(lane->sampler, tokens[i], err);
    if (s == SIB_OK) s = e->model->ops->seq_new(e->model, &lane->seq, err);
    if (s == SIB_OK && depth) s = e->drafter->ops->state_new(e->drafter, &lane->draft, err);
    while (s == SIB_OK && lane->budget > 0 && !lane->walk.saw_eos) s = sib_round_step(round, &lane, 1, err);
    if (lane->draft) e->drafter->ops->state_free(e->drafter, lane->draft);
    if (lane->seq) e->model->ops->seq_free(e->model, lane->seq);
    sib_sampler_free(lane->sampler);
    sib_round_free(round);
    sib_id_set_deinit(&eos);
    return s;
}

/* The i-th built-in prompt in new memory: through the chat template when there is one; random ids without a tokenizer.
 */
static sib_status prompt_ids(const sib_engine *e, size_t i, int32_t **ids, size_t *n, sib_err *err)
{
    if (!e->tokenizer) {
        uint64_t seed = i + 1;
        *n = RANDOM_IDS;
        if (!(*ids = malloc(*n * sizeof **ids))) return sib_nomem(err, "prompt");
        for (size_t k = 0; k < *n; k++)
            (*ids)[k] = (int32_t)(sib_splitmix64(&seed) % (uint64_t)e->model->facts.n_vocab);
        return SIB_OK;
    }
    if (!e->chat) return sib_tokenize(e, questions[i], strlen(questions[i]), SIB_TOKENIZE_BOS, ids, n, err);
    char context[256], *text = NULL;
    size_t bytes = 0;
    (void)snprintf(context, sizeof context, "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", questions[i]);
    SIB_TRY(sib_chat_prompt(e, context, strlen(context), &text, &bytes, err));
    sib_status s = sib_tokenize(e, text, bytes, 0, ids, n, err);
    sib_free(text);
    return s;
}

typedef struct verdict {
    sib_draft_policy total;
    int tokens;
    bool same;
} verdict;

static void add_policy(sib_draft_policy *t, const sib_draft_policy *p)
{
    t->rounds += p->rounds;
    t->proposed += p->proposed;
    t->kept += p->kept;
    for (int i = 0; i < SIB_POLICY_DEPTHS; i++) {
        t->proposed_at[i] += p->proposed_at[i];
        t->kept_at[i] += p->kept_at[i];
    }
}

/* The same prompt without and with drafts. */
static sib_status compare(const sib_engine *e, size_t question, int depth, int n, verdict *v, sib_err *err)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    sib_lane *plain = NULL, *drafted = NULL;
    int32_t *a = NULL, *b = NULL;
    sib_status s = prompt_ids(e, question, &ids, &n_ids, err);
    if (s == SIB_OK && (n_ids < 1 || n_ids + (size_t)n > (size_t)e->model->facts.n_ctx))
        s = sib_fail(err, SIB_ECAPACITY, "a prompt of %zu tokens and %d more do not fit a context of %d", n_ids, n,
                     e->model->facts.n_ctx);
    if (s == SIB_OK) {
        size_t room = n_ids + (size_t)n + SIB_ROUND_EMIT;
        plain = calloc(1, sizeof *plain);
        drafted = calloc(1, sizeof *drafted);
        a = calloc(room, sizeof *a);
        b = calloc(room, sizeof *b);
        if (!plain || !drafted || !a || !b) s = sib_nomem(err, "answers");
    }
    if (s == SIB_OK) {
        memcpy(a, ids, n_ids * sizeof *ids);
        memcpy(b, ids, n_ids * sizeof *ids);
        s = answer(e, 0, a, (int)n_ids, n, plain, err);
    }
    if (s == SIB_OK) s = answer(e, depth, b, (int)n_ids, n, drafted, err);
    if (s == SIB_OK) {
        v->same =
            v->same && plain->n_tokens == drafted->n_tokens && memcmp(a, b, (size_t)plain->n_tokens * sizeof *a) == 0;
        v->tokens += (int)drafted->emitted;
        add_policy(&v->total, &drafted->policy);
    }
    free(plain);
    free(drafted);
    free(a);
    free(b);
    sib_free(ids);
    return s;
}

/* ---- report ------------------------------------------------------------------------------------- */

static json_t *counts(const uint64_t *v, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++) (void)json_array_append_new(list, json_integer((json_int_t)v[i]));
    return list;
}

static json_t *cost_json(const sib_draft_cost *c)
{
    return json_pack("{s:f,s:f,s:f,s:f,s:f,s:f}", "drafts", c->drafts, "draft_ms", c->draft_ms, "verify_ms",
                     c->verify_ms, "plain_ms", c->plain_ms, "break_even_emitted", c->break_even_emitted,
                     "break_even_acceptance", c->break_even_acceptance);
}

static sib_status report(sib_buf *out, const sib_engine *e, int depth, const verdict *v, const sib_draft_cost *cost,
                         sib_err *err)
{
    const sib_draft_policy *t = &v->total;
    double rounds = (double)t->rounds, emitted = t->rounds ? 1 + (double)t->kept / rounds : 1;
    double speedup = cost->break_even_emitted > 0 ? emitted / cost->break_even_emitted : 0;
    json_t *o = json_pack(
        "{s:{s:s,s:s},s:{s:s,s:s},s:i,s:s,s:i,s:b,s:I,s:I,s:I,s:f,s:f,s:o,s:o,s:o,s:f,s:b}", "target", "path",
        sib_checkpoint_dir(e->files), "family", e->family->name, "drafter", "path", sib_checkpoint_dir(e->draft_files),
        "kind", e->drafter->ops->kind, "draft_n", depth, "text",
        !e->tokenizer ? "random ids"
        : e->chat     ? "chat"
                      : "plain",
        "tokens", v->tokens, "same_text", v->same, "rounds", (json_int_t)t->rounds, "proposed", (json_int_t)t->proposed,
        "accepted", (json_int_t)t->kept, "acceptance", t->proposed ? (double)t->kept / (double)t->proposed : 0.0,
        "mean_emitted", emitted, "proposed_by_position", counts(t->proposed_at, depth), "accepted_by_position",
        counts(t->kept_at, depth), "cost", cost_json(cost), "expected_speedup", speedup, "pays", speedup > 1);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    if (text) sib_buf_addz(out, text);
    free(text);
    json_decref(o);
    return text && !out->failed ? SIB_OK : sib_nomem(err, "report");
}

sib_status sib_doctor_json(sib_buf *out, const sib_options *o, int draft_n, int n_tokens, sib_err *err)
{
    sib_engine *e = NULL;
    sib_draft_cost cost;
    verdict v = {.same = true};
    if (!o->model || !o->draft || !strcmp(o->draft, "none"))
        return sib_fail(err, SIB_EARG, "the doctor needs a model and a drafter folder (--draft DIR)");
    if (strcmp(o->draft, "native")) SIB_TRY(check_pair(o, err));
    SIB_TRY(sib_open(&e, o, err));
    int depth = draft_n > 0 && draft_n < e->drafter->max_draft ? draft_n
                : draft_n > 0                                  ? e->drafter->max_draft
                                                               : e->drafter->default_draft;
    if (depth > SIB_POLICY_DEPTHS) depth = SIB_POLICY_DEPTHS;
    sib_status s = sib_draft_cost_measure(e, depth, 9, &cost, err);
    for (size_t i = 0; s == SIB_OK && i < SIB_COUNT(questions); i++) s = compare(e, i, depth, n_tokens, &v, err);
    if (s == SIB_OK) s = report(out, e, depth, &v, &cost, err);
    sib_close(e);
    return s;
}

/* tests/property/speculation_speed_test.c - does speculation pay what acceptance and the cost of a k-row forward predict?
 *
 * A double drafts each token right with a set chance (it knows the plain answer), for nothing. Then
 *
 *     predicted = (tokens a round) / (t(d+1) / t(1))        speed of plain decoding = 1
 *
 * with t(k) from the same run. SIBYL_MODEL=DIR names the checkpoint (build/mkmodel gemma4-d ...); without it nothing is
 * timed, since times are no test on a shared machine. The figures stand in docs/SPEED.md. */
#include "../unit/speculation_rig.h"

#include "kernels/probe.h"

typedef struct chance_drafter {
    sib_drafter base;
    const int32_t *truth;
    int n_truth, prompt, n_vocab;
    double chance;
    uint64_t seed;
} chance_drafter;

static sib_status no_state(sib_drafter *d, sib_draft_state **out, sib_err *err)
{
    (void)d, (void)err;
    *out = malloc(1);
    return *out ? SIB_OK : SIB_ENOMEM;
}

static void state_free(sib_drafter *d, sib_draft_state *s)
{
    (void)d;
    free(s);
}

static sib_status truncate_state(sib_drafter *d, sib_draft_state *s, int length, sib_err *err)
{
    (void)d, (void)s, (void)length, (void)err;
    return SIB_OK;
}

static sib_status propose(sib_drafter *d, sib_propose *lanes, int n, sib_err *err)
{
    chance_drafter *x = (chance_drafter *)d;
    (void)err;
    for (int i = 0; i < n; i++) {
        int said = lanes[i].position + 1 - x->prompt;
        lanes[i].n = lanes[i].max;
        for (int k = 0; k < lanes[i].n; k++) {
            int32_t right = said + k < x->n_truth ? x->truth[said + k] : 0;
            bool hit = (double)(sib_splitmix64(&x->seed) >> 11) * 0x1p-53 < x->chance;
            lanes[i].ids[k] = hit ? right : (right + 1) % x->n_vocab;
        }
    }
    return SIB_OK;
}

static sib_status settle(sib_drafter *d, const sib_settle *lanes, int n, sib_err *err)
{
    (void)d, (void)lanes, (void)n, (void)err;
    return SIB_OK;
}

static const sib_needs *needs(const sib_drafter *d)
{
    static const sib_needs none;
    (void)d;
    return &none;
}

static void drafter_free(sib_drafter *d)
{
    (void)d;
}

static const sib_drafter_ops ops = {"chance", drafter_free, needs, no_state, state_free, truncate_state, propose, settle};

enum { TOKENS = 64 };

/* Seconds of TOKENS greedy tokens after a short prompt; ids out. */
static double decode(sib_engine *e, int depth, int32_t *out, sib_stats *stats)
{
    static const int32_t prompt[] = {5, 17, 29, 41, 53, 65, 77, 89};
    sib_session *s;
    sib_request r;
    sib_token t = {0};
    sib_err err = {0};
    sib_request_init(&r);
    r.temperature = 0;
    r.max_tokens = TOKENS;
    r.ignore_eos = true;
    r.draft_n = depth;
    r.draft_policy = depth ? "fixed" : "off";
    if (sib_session_new(&s, e, &err) != SIB_OK || sib_session_prompt(s, prompt, SIB_COUNT(prompt), NULL, 0, &r, &err) != SIB_OK) fail_msg("%s", err.message);
    int n = 0;
    while (t.finish == SIB_FINISH_NONE) {
        if (sib_session_next(s, &t, &err) != SIB_OK) fail_msg("%s", err.message);
        if (t.id >= 0 && n < TOKENS) out[n++] = t.id;
    }
    stats->struct_bytes = sizeof *stats;
    assert_int_equal(sib_session_stats(s, stats), SIB_OK);
    sib_session_free(s);
    return stats->decode_ms * 1e-3;
}

/* Best of some k-row forwards with all logits. */
static double k_rows(sib_engine *e, int k)
{
    sib_model *m = e->model;
    int32_t ids[SIB_MAX_DRAFT + 1] = {0};
    sib_seq *s;
    sib_err err;
    sib_forward_out out;
    double best = 1e9;
    assert_int_equal(m->ops->seq_new(m, &s, &err), SIB_OK);
    for (int i = 0; i < 8; i++) {
        double t = sib_probe_now();
        assert_int_equal(m->ops->forward(m, &(sib_part){.seq = s, .ids = ids, .n_rows = k, .n_logits = k}, 1, &out, &err), SIB_OK);
        t = sib_probe_now() - t;
        assert_int_equal(m->offers.keep->keep(m, s, 0, &err), SIB_OK);
        if (t < best) best = t;
    }
    m->ops->seq_free(m, s);
    return best;
}

static void speed_follows_the_model(void **state)
{
    (void)state;
    const char *dir = getenv("SIBYL_MODEL"), *mode = getenv("SIBYL_NUMERICS");
    if (!dir) {
        printf("SKIP speed_follows_the_model: SIBYL_MODEL names no checkpoint to time\n");
        return;
    }
    sib_options o;
    sib_engine *e;
    sib_err err = {0};
    sib_options_init(&o);
    o.model = dir;
    o.numerics = mode ? mode : "int8";
    o.n_ctx = 512;
    o.n_sessions = 2;
    if (sib_open(&e, &o, &err) != SIB_OK) fail_msg("%s", err.message);
    int32_t plain[TOKENS], got[TOKENS];
    sib_stats stats;
    double plain_s = decode(e, 0, plain, &stats), again = decode(e, 0, plain, &stats);
    if (again < plain_s) plain_s = again;
    printf("chance depth tokens/round t(d+1)/t(1) predicted measured ratio\n");
    for (int depth = 2; depth <= 6; depth += 2)
        for (int c = 0; c < 3; c++) {
            static const double chances[] = {0.5, 0.8, 1.0};
            chance_drafter d = {.base = {&ops, 15, 4}, .truth = plain, .n_truth = TOKENS, .prompt = 8, .n_vocab = e->model->facts.n_vocab, .chance = chances[c], .seed = 3};
            double cost = k_rows(e, depth + 1) / k_rows(e, 1);
            e->drafter = &d.base;
            double s = decode(e, depth, got, &stats);
            e->drafter = NULL;
            for (int i = 0; i < TOKENS; i++) assert_int_equal(got[i], plain[i]);
            double per_round = (double)TOKENS / (stats.rounds > 0 ? stats.rounds : 1), predicted = per_round / cost, measured = plain_s / s;
            printf("%.1f %d %.2f %.3f %.2f %.2f %.2f\n", chances[c], depth, per_round, cost, predicted, measured, measured / predicted);
        }
    sib_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(speed_follows_the_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

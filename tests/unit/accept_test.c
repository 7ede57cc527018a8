/* tests/unit/accept_test.c - acceptance of drafts: the emitted distribution by chi-square over a
 * million walks per mode, and the record of a walk. */
#include "sample/accept.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* The sanitizers look at memory, not at statistics, and are ten times slower. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { V = 8, WALKS = 100000 };
#else
enum { V = 8, WALKS = 1000000 };
#endif

/* Upper tail of the chi-square distribution, closed forms for whole degrees of freedom. */
static double chi_tail(double x, int df)
{
    double h = x / 2, sum, term;
    if (df % 2 == 0) {
        sum = term = exp(-h);
        for (int i = 1; i < df / 2; i++) sum += term *= h / i;
        return sum;
    }
    sum = erfc(sqrt(h));
    term = sqrt(h / acos(-1)) * 2 * exp(-h);
    for (int i = 1; i <= df / 2; i++) {
        sum += term;
        term *= h / (i + 0.5);
    }
    return sum;
}

static void expect_distribution(const char *what, const uint64_t *count, const double *p)
{
    uint64_t n = 0;
    double x = 0;
    int df = -1;
    for (int i = 0; i < V; i++) n += count[i];
    for (int i = 0; i < V; i++) {
        if (p[i] == 0) {
            if (count[i]) fail_msg("%s: token %d of probability 0 was emitted %llu times", what, i, (unsigned long long)count[i]);
            continue;
        }
        double want = p[i] * (double)n, off = (double)count[i] - want;
        x += off * off / want;
        df++;
    }
    double tail = df > 0 ? chi_tail(x, df) : 1;
    print_message("%-46s n %8llu  chi2 %6.2f  df %d  p %.4f\n", what, (unsigned long long)n, x, df, tail);
    if (!(tail > 1e-4)) fail_msg("%s: chi2 %.2f with %d degrees of freedom, p %.2g", what, x, df, tail);
}

/* Rows 0 and 1 of a window, and the proposal of a drafter that is a poor copy of them. */
static const float target_rows[3][V] = {
    {1.0f, 0.2f, -0.5f, 2.0f, 0.0f, -1.0f, 1.5f, 0.7f},
    {0.0f, 0.1f, 0.3f, -2.0f, 1.2f, 1.1f, -0.4f, 0.9f},
    {0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f},
};
static const float draft_rows[2][V] = {
    {1.4f, 0.2f, 0.5f, 1.0f, 0.3f, -1.0f, 1.0f, 0.0f},
    {0.3f, 0.1f, -0.3f, -1.0f, 1.8f, 0.1f, 0.4f, 0.9f},
};

typedef enum drafting {
    ARGMAX,      /* q is a one-hot                                               */
    SAMPLED,     /* drawn from q with numbers of its own                         */
    SAME_KEY,    /* drawn from q with the request's key of that emission         */
    EQUAL,       /* q == p                                                       */
    DISJOINT,    /* q where p is 0                                               */
} drafting;

static sib_sampler *sampler_of(const sib_sampler_params *p)
{
    sib_err err;
    sib_sampler *s;
    if (sib_sampler_new(&s, p, V, 64, &err) != SIB_OK) fail_msg("%s", err.message);
    return s;
}

static const int32_t prompt[] = {3, 6, 3, 1};

/* Runs the walks and checks the first emitted token, and the second where the first was accepted. */
static double run(const char *name, sib_accept_rule rule, const sib_sampler_params *p, drafting how, uint64_t walks)
{
    sib_sampler *s = sampler_of(p);
    double want[2][V], q[2][V], accept_want = 0;
    float qf[2][V];
    char what[80];
    for (size_t i = 0; i < SIB_COUNT(prompt); i++) assert_int_equal(sib_sampler_push(s, prompt[i], NULL), SIB_OK);

    /* The drafter: plain softmax of its rows, whatever the request's filters. */
    sib_sampler_params dp = sib_sampler_defaults();
    dp.seed = how == SAME_KEY ? p->seed : ~p->seed;
    sib_sampler *drafter = sampler_of(&dp);
    for (int j = 0; j < 2; j++) {
        sib_dist d;
        assert_int_equal(sib_sampler_dist(s, target_rows[j], 0, NULL, &d, NULL), SIB_OK);
        for (int i = 0; i < V; i++) want[j][i] = sib_dist_prob(&d, i);
        sib_dist_probs(&d, qf[j]);
        if (how == DISJOINT)
            for (int i = 0; i < V; i++) qf[j][i] = want[j][i] == 0;
        if (how == SAMPLED || how == SAME_KEY || how == ARGMAX) {
            assert_int_equal(sib_sampler_dist(drafter, draft_rows[j], 0, NULL, &d, NULL), SIB_OK);
            sib_dist_probs(&d, qf[j]);
        }
        double sum = 0;
        for (int i = 0; i < V; i++) sum += qf[j][i];
        for (int i = 0; i < V; i++) {
            q[j][i] = qf[j][i] / sum;
            qf[j][i] = (float)q[j][i];
        }
        if (j == 0)
            for (int i = 0; i < V; i++) accept_want += fmin(want[0][i], q[0][i]);
    }

    uint64_t count[2][V] = {{0}}, accepted = 0, rnd = 99;
    for (uint64_t n = 0; n < walks; n++) {
        uint64_t emission = 3 * n;
        int32_t drafts[2];
        for (int j = 0; j < 2; j++) {
            sib_sample t;
            if (how == ARGMAX) {
                int best = 0;
                for (int i = 1; i < V; i++) best = q[j][i] > q[j][best] ? i : best;
                drafts[j] = best;
            } else if (how == SAME_KEY) {
                assert_int_equal(sib_sampler_sample(drafter, draft_rows[j], emission + (uint64_t)j, NULL, &t, NULL), SIB_OK);
                drafts[j] = t.id;
            } else {
                double u = (double)(sib_splitmix64(&rnd) >> 11) * 0x1p-53;
                int i = 0;
                while (i < V - 1 && (u -= q[j][i]) >= 0) i++;
                while (q[j][i] == 0) i--;
                drafts[j] = i;
            }
        }
        sib_window w = {.logits = target_rows[0], .stride = V, .drafts = drafts, .n_drafts = 2, .emission = emission, .budget = 99};
        if (how != ARGMAX) w.q = qf[0];
        sib_sample tokens[3];
        sib_walk out;
        assert_int_equal(sib_accept(s, rule, &w, tokens, &out, NULL), SIB_OK);
        count[0][tokens[0].id]++;
        if (out.n_emitted > 1) count[1][tokens[1].id]++;
        accepted += out.accepted > 0;
        sib_sampler_pop(s, (size_t)out.n_emitted);
    }
    (void)snprintf(what, sizeof what, "%s, first token", name);
    expect_distribution(what, count[0], want[0]);
    if (p->repetition_penalty == 1 && how != DISJOINT) { /* with penalties row 1 depends on the first token */
        (void)snprintf(what, sizeof what, "%s, second token", name);
        expect_distribution(what, count[1], want[1]);
    }
    double rate = (double)accepted / (double)walks;
    if (rule == SIB_ACCEPT_REJECTION && how != ARGMAX && fabs(rate - accept_want) > 4 * sqrt(0.25 / (double)walks))
        fail_msg("%s: acceptance %.5f, expected 1 - TV = %.5f", name, rate, accept_want);
    if (rule == SIB_ACCEPT_MATCH && how == SAME_KEY) {
        double tv = 1 - accept_want;
        print_message("%s: acceptance %.3f, bound (1-TV)/(1+TV) %.3f, 1-TV %.3f\n", name, rate, (1 - tv) / (1 + tv), 1 - tv);
        assert_true(rate >= (1 - tv) / (1 + tv) - 0.006);
    }
    sib_sampler_free(s);
    sib_sampler_free(drafter);
    return rate;
}

static sib_sampler_params with_filters(int kind)
{
    sib_sampler_params p = sib_sampler_defaults();
    p.seed = 1234567;
    p.temperature = 0.8;
    if (kind == 1) p.top_k = 3;
    if (kind == 2) p.top_p = 0.7;
    if (kind == 3) {
        p.repetition_penalty = 1.4;
        p.presence_penalty = 0.3;
        p.frequency_penalty = 0.25;
        p.min_p = 0.08;
    }
    return p;
}

static const char *const kinds[] = {"plain", "top-k", "top-p", "penalties"};

static void match_keeps_the_distribution(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        char name[40];
        sib_sampler_params p = with_filters(k);
        (void)snprintf(name, sizeof name, "match %s", kinds[k]);
        (void)run(name, SIB_ACCEPT_MATCH, &p, k % 2 ? SAMPLED : SAME_KEY, WALKS);
    }
}

static void rejection_keeps_the_distribution(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        char name[40];
        sib_sampler_params p = with_filters(k);
        (void)snprintf(name, sizeof name, "rejection %s", kinds[k]);
        (void)run(name, SIB_ACCEPT_REJECTION, &p, k % 2 ? SAME_KEY : SAMPLED, WALKS);
    }
}

static void rejection_with_a_one_hot_proposal(void **state)
{
    (void)state;
    sib_sampler_params p = with_filters(2);
    double one_hot = run("one-hot rejection", SIB_ACCEPT_REJECTION, &p, ARGMAX, WALKS / 4);
    double match = run("one-hot match", SIB_ACCEPT_MATCH, &p, ARGMAX, WALKS / 4);
    assert_true(fabs(one_hot - match) < 0.01); /* both accept x with probability p(x) */
}

static void rejection_at_the_edges(void **state)
{
    (void)state;
    sib_sampler_params p = with_filters(1);
    assert_true(run("q equals p", SIB_ACCEPT_REJECTION, &p, EQUAL, WALKS / 4) > 0.9999);
    assert_true(run("disjoint", SIB_ACCEPT_REJECTION, &p, DISJOINT, WALKS / 4) == 0);
}

/* ---- the record of a walk ---- */

enum { N = 5 };

/* Greedy rows that want tokens 1, 2, 3, 4, 5. */
static void greedy_rows(float rows[N][V])
{
    memset(rows, 0, N * sizeof rows[0]);
    for (int j = 0; j < N; j++) rows[j][j + 1] = 1;
}

static sib_walk walk(sib_accept_rule rule, const int32_t *drafts, int d, uint64_t budget, const sib_id_set *eos,
                     const sib_grammar *g, sib_sample *tokens)
{
    float rows[N][V];
    sib_sampler_params p = sib_sampler_defaults();
    sib_walk out;
    sib_err err;
    p.temperature = 0;
    greedy_rows(rows);
    sib_sampler *s = sampler_of(&p);
    sib_window w = {rows[0], V, drafts, d, NULL, 10, budget, eos, g};
    if (sib_accept(s, rule, &w, tokens, &out, &err) != SIB_OK) fail_msg("%s", err.message);
    assert_int_equal(sib_sampler_history(s), out.n_emitted);
    for (int j = 0; j < out.n_emitted; j++) assert_int_equal(tokens[j].id, j + 1);
    sib_sampler_free(s);
    return out;
}

static void expect_walk(sib_walk w, int accepted, int n_emitted, int32_t pending)
{
    assert_int_equal(w.accepted, accepted);
    assert_int_equal(w.n_emitted, n_emitted);
    assert_int_equal(w.pending, pending);
}

typedef struct counting {
    int left; /* tokens until the grammar is complete */
    int n_masks;
} counting;

static sib_status count_mask(void *self, uint32_t *allowed, sib_err *err)
{
    (void)allowed;
    (void)err;
    ((counting *)self)->n_masks++;
    return SIB_OK;
}

static sib_status count_advance(void *self, int32_t id, bool *done, sib_err *err)
{
    (void)id;
    (void)err;
    *done = --((counting *)self)->left == 0;
    return SIB_OK;
}

static void walks_end_where_they_should(void **state)
{
    const int32_t right[4] = {1, 2, 3, 4}, wrong[4] = {1, 2, 7, 4};
    const int32_t three[] = {3, 3}, four[] = {4}, five[] = {5};
    sib_sample t[N];
    (void)state;
    for (int r = 0; r < 2; r++) {
        sib_accept_rule rule = r ? SIB_ACCEPT_REJECTION : SIB_ACCEPT_MATCH;
        sib_id_set eos;
        expect_walk(walk(rule, right, 4, 99, NULL, NULL, t), 4, 5, 5); /* all accepted, bonus */
        expect_walk(walk(rule, wrong, 4, 99, NULL, NULL, t), 2, 3, 3); /* correction */
        expect_walk(walk(rule, wrong + 2, 2, 99, NULL, NULL, t), 0, 1, 1);
        expect_walk(walk(rule, NULL, 0, 99, NULL, NULL, t), 0, 1, 1); /* no drafts */

        sib_walk w = walk(rule, right, 4, 3, NULL, NULL, t); /* the budget cuts a burst */
        expect_walk(w, 3, 3, -1);
        assert_true(w.out_of_budget && !w.saw_eos);

        assert_int_equal(sib_id_set_init(&eos, three, 2, NULL), SIB_OK);
        w = walk(rule, right, 4, 99, &eos, NULL, t); /* an accepted draft is eos */
        expect_walk(w, 3, 3, -1);
        assert_true(w.saw_eos && !w.out_of_budget);
        w = walk(rule, wrong, 4, 99, &eos, NULL, t); /* the correction is */
        expect_walk(w, 2, 3, -1);
        assert_true(w.saw_eos);
        w = walk(rule, right, 4, 3, &eos, NULL, t); /* on the last token of the budget: both */
        assert_true(w.saw_eos && w.out_of_budget);
        sib_id_set_deinit(&eos);

        assert_int_equal(sib_id_set_init(&eos, five, 1, NULL), SIB_OK);
        w = walk(rule, right, 4, 99, &eos, NULL, t); /* the bonus is */
        expect_walk(w, 4, 5, -1);
        assert_true(w.saw_eos);
        sib_id_set_deinit(&eos);

        counting c = {.left = 2};
        sib_grammar g = {&c, count_mask, count_advance};
        w = walk(rule, right, 4, 99, NULL, &g, t); /* the grammar is complete in the burst */
        expect_walk(w, 2, 2, -1);
        assert_true(w.grammar_done);
        assert_int_equal(c.n_masks, 2);
        c = (counting){.left = 100};
        assert_int_equal(sib_id_set_init(&eos, four, 1, NULL), SIB_OK);
        w = walk(rule, right, 4, 99, &eos, &g, t);
        expect_walk(w, 4, 4, -1);
        assert_int_equal(c.left, 97); /* eos is not part of the grammar's text */
        sib_id_set_deinit(&eos);
    }
}

/* Sampled text is the same for every drafter and depth. */
static void match_text_does_not_depend_on_drafts(void **state)
{
    enum { LEN = 200 };
    (void)state;
    int32_t text[3][LEN];
    for (int run_no = 0; run_no < 3; run_no++) {
        sib_sampler_params p = with_filters(3);
        sib_sampler *s;
        uint64_t rnd = 5;
        assert_int_equal(sib_sampler_new(&s, &p, V, LEN + 8, NULL), SIB_OK);
        size_t n = 0;
        while (n < LEN) {
            int d = run_no == 0 ? 0 : (int)(sib_splitmix64(&rnd) % 4);
            float rows[4][V];
            int32_t drafts[4], last = n ? text[run_no][n - 1] : 0;
            sib_sample t[4];
            sib_walk out;
            for (int j = 0; j <= d; j++) { /* a model whose logits depend on the last token */
                for (int i = 0; i < V; i++) rows[j][i] = (float)((last * 5 + i * 3) % 7) * 0.6f;
                int best = 0;
                for (int i = 1; i < V; i++) best = rows[j][i] > rows[j][best] ? i : best;
                drafts[j] = run_no == 1 ? best : (int32_t)(sib_splitmix64(&rnd) % V);
                last = drafts[j];
            }
            sib_window w = {rows[0], V, drafts, d, NULL, n, LEN - n, NULL, NULL};
            assert_int_equal(sib_accept(s, SIB_ACCEPT_MATCH, &w, t, &out, NULL), SIB_OK);
            for (int j = 0; j < out.n_emitted; j++) text[run_no][n++] = t[j].id;
        }
        sib_sampler_free(s);
    }
    assert_memory_equal(text[0], text[1], sizeof text[0]);
    assert_memory_equal(text[0], text[2], sizeof text[0]);
}

static void bad_windows_are_refused(void **state)
{
    (void)state;
    float rows[3][V] = {{0}};
    const int32_t outside[2] = {1, 8};
    sib_sampler_params p = sib_sampler_defaults();
    sib_sampler *s = sampler_of(&p);
    sib_sample t[3];
    sib_walk out;
    sib_err err;
    sib_window w = {rows[0], V, outside, 2, NULL, 0, 9, NULL, NULL};
    assert_int_equal(sib_accept(s, SIB_ACCEPT_MATCH, &w, t, &out, &err), SIB_EARG);
    assert_non_null(strstr(err.message, "draft 2: token id 8"));
    w.n_drafts = 1;
    w.budget = 0;
    assert_int_equal(sib_accept(s, SIB_ACCEPT_MATCH, &w, t, &out, &err), SIB_EARG);
    w.budget = 1;
    w.stride = V - 1;
    assert_int_equal(sib_accept(s, SIB_ACCEPT_MATCH, &w, t, &out, &err), SIB_EARG);
    w.stride = V;
    rows[0][5] = NAN;
    assert_int_equal(sib_accept(s, SIB_ACCEPT_REJECTION, &w, t, &out, &err), SIB_EFORMAT);
    assert_int_equal(sib_sampler_history(s), 0);
    sib_sampler_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(match_keeps_the_distribution),
        cmocka_unit_test(rejection_keeps_the_distribution),
        cmocka_unit_test(rejection_with_a_one_hot_proposal),
        cmocka_unit_test(rejection_at_the_edges),
        cmocka_unit_test(walks_end_where_they_should),
        cmocka_unit_test(match_text_does_not_depend_on_drafts),
        cmocka_unit_test(bad_windows_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

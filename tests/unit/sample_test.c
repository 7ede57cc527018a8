/* tests/unit/sample_test.c - the sampler chain against a sort-based oracle in double, the draw
 * against its definition, histories, hostile parameters and rows. */
#include "sample/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_V 5000

static uint64_t rnd_state = 1;

static double rnd(void)
{
    return (double)(sib_splitmix64(&rnd_state) >> 11) * 0x1p-53;
}

static int rnd_below(int n)
{
    return (int)(rnd() * n);
}

static sib_sampler *sampler_of(const sib_sampler_params *p, int n_vocab)
{
    sib_err err;
    sib_sampler *s;
    if (sib_sampler_new(&s, p, n_vocab, 4096, &err) != SIB_OK) fail_msg("%s", err.message);
    return s;
}

static void push_all(sib_sampler *s, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) assert_int_equal(sib_sampler_push(s, ids[i], NULL), SIB_OK);
}

/* ---- oracle ---- */

static double oracle_w[MAX_V];

static int by_oracle(const void *a, const void *b)
{
    int i = *(const int *)a, j = *(const int *)b;
    if (oracle_w[i] != oracle_w[j]) return oracle_w[i] > oracle_w[j] ? -1 : 1;
    return i - j;
}

static uint32_t occurrences(const int32_t *history, size_t n, int last_n, int32_t id)
{
    uint32_t c = 0;
    for (size_t j = last_n && (size_t)last_n < n ? n - (size_t)last_n : 0; j < n; j++) c += history[j] == id;
    return c;
}

/* Probabilities after the chain, from its definition. doubtful[i]: the filters' decision on i hangs
 * on less than rounding. */
static void oracle(const sib_sampler_params *p, int v, const float *logits, const int32_t *history, size_t n_history,
                   uint64_t emission, const bool *allowed, double *probs, bool *doubtful)
{
    static int order[MAX_V];
    for (int i = 0; i < v; i++) {
        double x = logits[i];
        if (occurrences(history, n_history, p->repetition_last_n, i)) x = x > 0 ? x / p->repetition_penalty : x * p->repetition_penalty;
        if (occurrences(history, n_history, p->presence_last_n, i)) x -= p->presence_penalty;
        x -= p->frequency_penalty * occurrences(history, n_history, p->frequency_last_n, i);
        x = (float)x;
        for (size_t k = 0; k < p->n_bias; k++)
            if (p->bias[k].id == i) x = (float)(x + p->bias[k].bias);
        for (size_t k = 0; k < p->n_suppress; k++)
            if (p->suppress[k] == i) x = -INFINITY;
        for (size_t k = 0; k < p->n_eos; k++)
            if (p->eos[k] == i && emission < p->min_new_tokens) x = -INFINITY;
        if (allowed && !allowed[i]) x = -INFINITY;
        oracle_w[i] = x;
        order[i] = i;
    }
    qsort(order, (size_t)v, sizeof *order, by_oracle);
    double max = oracle_w[order[0]], total = 0, before = 0, kept = 0;
    for (int i = 0; i < v; i++) total += exp(oracle_w[i] - max);
    for (int r = 0; r < v; r++) {
        int i = order[r];
        double e = exp(oracle_w[i] - max), short_of_p = p->top_p - before / total;
        double short_of_min = oracle_w[i] - max - log(p->min_p);
        bool keep = oracle_w[i] > -INFINITY;
        if (p->top_p < 1) keep = keep && short_of_p > 0;
        if (p->min_p > 0) keep = keep && short_of_min >= 0;
        if (p->top_k > 0) keep = keep && r < p->top_k;
        if (p->temperature == 0) keep = r == 0;
        doubtful[i] = fabs(short_of_p) < 1e-6 || fabs(short_of_min) < 1e-5;
        probs[i] = !keep ? 0 : p->temperature == 0 ? 1 : exp((oracle_w[i] - max) / p->temperature);
        kept += probs[i];
        before += e;
    }
    for (int i = 0; i < v; i++) probs[i] /= kept;
}

typedef struct mask_of {
    const bool *allowed;
    int v;
} mask_of;

static sib_status mask_fn(void *self, uint32_t *allowed, sib_err *err)
{
    const mask_of *m = self;
    (void)err;
    for (int i = 0; i < m->v; i++)
        if (!m->allowed[i]) allowed[i / 32] &= ~(1u << (i % 32));
    return SIB_OK;
}

static void chain_matches_oracle(void **state)
{
    static float logits[MAX_V], got[MAX_V];
    static double want[MAX_V];
    static bool doubtful[MAX_V], allowed[MAX_V];
    (void)state;
    int doubts = 0;
    for (int round = 0; round < 600; round++) {
        int v = round % 20 == 0 ? 3000 + rnd_below(2000) : 1 + rnd_below(200);
        double scale = rnd_below(3) == 0 ? 0.01 : 1 + 10 * rnd();
        bool coarse = rnd_below(2) == 0; /* many equal logits */
        for (int i = 0; i < v; i++) {
            logits[i] = (float)((rnd() + rnd() + rnd() - 1.5) * scale);
            if (coarse) logits[i] = roundf(logits[i]);
            allowed[i] = rnd() < 0.7;
        }
        int32_t some[3] = {rnd_below(v), rnd_below(v), rnd_below(v)}, history[300];
        size_t n_history = (size_t)rnd_below(300);
        for (size_t i = 0; i < n_history; i++) history[i] = rnd_below(v < 20 ? v : 20);
        sib_logit_bias bias[3] = {{some[0], 2.5f}, {some[1], -3.25f}, {some[0], 0.5f}};
        sib_sampler_params p = sib_sampler_defaults();
        p.temperature = rnd_below(5) == 0 ? 0 : 0.2 + 2 * rnd();
        if (rnd_below(2)) p.top_p = rnd() < 0.2 ? 1e-9 : 0.05 + 0.94 * rnd();
        if (rnd_below(2)) p.top_k = 1 + rnd_below(v + 10);
        if (rnd_below(3) == 0) p.min_p = rnd();
        if (rnd_below(2)) p.repetition_penalty = 0.5 + 2 * rnd();
        if (rnd_below(2)) p.presence_penalty = 4 * rnd() - 2;
        if (rnd_below(2)) p.frequency_penalty = 2 * rnd() - 1;
        if (rnd_below(2)) p.repetition_last_n = rnd_below(100);
        if (rnd_below(2)) p.presence_last_n = 20;
        if (rnd_below(2)) p.frequency_last_n = rnd_below(320);
        if (rnd_below(2)) p.bias = bias, p.n_bias = 3;
        if (rnd_below(3) == 0 && v > 3) p.suppress = some, p.n_suppress = 2;
        if (rnd_below(3) == 0 && v > 3) p.eos = some + 2, p.n_eos = 1, p.min_new_tokens = 5;
        bool masked = rnd_below(3) == 0 && v > 40;
        uint64_t emission = (uint64_t)rnd_below(10);
        mask_of m = {allowed, v};
        sib_grammar g = {&m, mask_fn, NULL};

        sib_sampler *s = sampler_of(&p, v);
        push_all(s, history, n_history);
        sib_dist d;
        sib_err err;
        if (sib_sampler_dist(s, logits, emission, masked ? &g : NULL, &d, &err) != SIB_OK) fail_msg("%s", err.message);
        sib_dist_probs(&d, got);
        oracle(&p, v, logits, history, n_history, emission, masked ? allowed : NULL, want, doubtful);
        bool any_doubt = false;
        for (int i = 0; i < v; i++) any_doubt = any_doubt || (doubtful[i] && (got[i] > 0) != (want[i] > 0));
        doubts += any_doubt;
        for (int i = 0; i < v && !any_doubt; i++) {
            if (fabs(got[i] - want[i]) > 1e-6 + 1e-5 * want[i] || (got[i] > 0) != (want[i] > 0))
                fail_msg("round %d, vocabulary %d, token %d: %.9g, expected %.9g", round, v, i, (double)got[i], want[i]);
            assert_true(fabs(sib_dist_prob(&d, i) - want[i]) <= 1e-6 + 1e-5 * want[i]);
        }
        sib_sampler_free(s);
    }
    assert_true(doubts <= 6);
}

/* With top-k and top-p over a large vocabulary, flat and peaked: the paths that gather all tokens. */
static void large_vocabularies(void **state)
{
    enum { V = 262144 };
    (void)state;
    float *logits = malloc(V * sizeof *logits), *probs = malloc(V * sizeof *probs);
    for (int shape = 0; shape < 3; shape++) {
        for (int i = 0; i < V; i++) logits[i] = shape == 0 ? 1.5f : shape == 1 ? (float)rnd() : (float)(20 * rnd() * rnd());
        sib_sampler_params p = sib_sampler_defaults();
        p.top_p = 0.75;
        sib_sampler *s = sampler_of(&p, V);
        sib_dist d;
        assert_int_equal(sib_sampler_dist(s, logits, 0, NULL, &d, NULL), SIB_OK);
        sib_dist_probs(&d, probs);
        double lowest_kept = INFINITY, highest_dropped = -INFINITY, mass = 0, total = 0, last = 0;
        int kept = 0;
        for (int i = 0; i < V; i++) {
            double e = exp((double)logits[i] - d.max);
            total += e;
            if (probs[i] > 0) {
                kept++;
                mass += e;
                if (logits[i] < lowest_kept) lowest_kept = logits[i], last = e;
            } else if (logits[i] > highest_dropped) {
                highest_dropped = logits[i];
            }
        }
        assert_true(lowest_kept >= highest_dropped);
        assert_true(mass >= 0.75 * total * (1 - 1e-6) && mass - last < 0.75 * total * (1 + 1e-6));
        if (shape == 0) { /* all equal: the lowest ids, to the exact count */
            assert_int_equal(kept, V * 3 / 4);
            assert_true(probs[V * 3 / 4 - 1] > 0 && probs[V * 3 / 4] == 0);
        }
        sib_sampler_free(s);
    }
    free(logits);
    free(probs);
}

static void draw_is_gumbel_argmax(void **state)
{
    enum { V = 700 };
    float logits[V];
    (void)state;
    for (int round = 0; round < 300; round++) {
        for (int i = 0; i < V; i++) logits[i] = (float)(rnd() * (round % 3 == 0 ? 0.1 : 12));
        sib_sampler_params p = sib_sampler_defaults();
        p.temperature = 0.3 + rnd();
        p.seed = (uint64_t)round * 0x123456789ABCDEFu;
        if (round % 2) p.top_k = 50;
        sib_sampler *s = sampler_of(&p, V);
        uint64_t emission = (uint64_t)round << 30;
        sib_dist d;
        sib_sample got;
        assert_int_equal(sib_sampler_dist(s, logits, emission, NULL, &d, NULL), SIB_OK);
        int best = -1;
        double most = -INFINITY;
        for (int i = 0; i < V; i++) {
            if (sib_dist_prob(&d, i) == 0) continue;
            uint32_t r[4];
            sib_rng_block(p.seed, SIB_RNG_SAMPLE, emission, (uint32_t)i / 4, r);
            double x = logits[i] / p.temperature - log(-log((r[i % 4] + 0.5) / 4294967296.0));
            if (x > most) most = x, best = i;
        }
        assert_int_equal(sib_sampler_sample(s, logits, emission, NULL, &got, NULL), SIB_OK);
        assert_int_equal(got.id, best);
        assert_true(isnan(got.logprob));
        assert_int_equal(got.n_top, 0);
        sib_sampler_free(s);
    }
}

static void greedy_takes_the_lowest_id(void **state)
{
    (void)state;
    sib_sampler_params p = sib_sampler_defaults();
    p.temperature = 0;
    p.top_p = 0.5;
    p.top_k = 3;
    for (int v = 1; v < 70; v++) {
        float logits[70];
        sib_sampler *s = sampler_of(&p, v);
        for (int first = 0; first < v; first++) {
            for (int i = 0; i < v; i++) logits[i] = i >= first && (i - first) % 3 == 0 ? -0.0f : -1.0f - (float)i;
            for (int i = first + 1; i < v; i++) logits[i] = logits[i] == 0 ? 0.0f : logits[i]; /* -0 equals +0 */
            sib_sample got;
            assert_int_equal(sib_sampler_sample(s, logits, 7, NULL, &got, NULL), SIB_OK);
            assert_int_equal(got.id, first);
        }
        sib_sampler_free(s);
    }
}

static void ties_at_the_cut_keep_the_lowest_ids(void **state)
{
    (void)state;
    float logits[12] = {0, 3, 1, 1, 3, -0.0f, 1, 1, 0, 1, 1, 1}, probs[12];
    sib_sampler_params p = sib_sampler_defaults();
    p.top_k = 4;
    sib_sampler *s = sampler_of(&p, 12);
    sib_dist d;
    assert_int_equal(sib_sampler_dist(s, logits, 0, NULL, &d, NULL), SIB_OK);
    sib_dist_probs(&d, probs);
    for (int i = 0; i < 12; i++) assert_int_equal(probs[i] > 0, i == 1 || i == 4 || i == 2 || i == 3);
    sib_sampler_free(s);
    p.top_k = 9; /* past the ones, into the equal zeros */
    s = sampler_of(&p, 12);
    assert_int_equal(sib_sampler_dist(s, logits, 0, NULL, &d, NULL), SIB_OK);
    sib_dist_probs(&d, probs);
    for (int i = 0; i < 12; i++) assert_int_equal(probs[i] > 0, i != 5 && i != 8 && i != 0 ? 1 : 0);
    sib_sampler_free(s);
}

static void draws_depend_on_position_alone(void **state)
{
    enum { V = 100, N = 50 };
    float rows[N][V];
    int32_t forward[N];
    (void)state;
    for (int j = 0; j < N; j++)
        for (int i = 0; i < V; i++) rows[j][i] = (float)(5 * rnd());
    sib_sampler_params p = sib_sampler_defaults();
    p.top_p = 0.9;
    p.seed = 42;
    sib_sampler *a = sampler_of(&p, V), *b = sampler_of(&p, V);
    sib_sample t;
    for (int j = 0; j < N; j++) {
        assert_int_equal(sib_sampler_sample(a, rows[j], (uint64_t)j, NULL, &t, NULL), SIB_OK);
        forward[j] = t.id;
    }
    int equal_at_0 = 0;
    for (int j = N - 1; j >= 0; j--) {
        assert_int_equal(sib_sampler_sample(b, rows[j], (uint64_t)j, NULL, &t, NULL), SIB_OK);
        assert_int_equal(t.id, forward[j]);
        assert_int_equal(sib_sampler_sample(b, rows[j], 1000, NULL, &t, NULL), SIB_OK);
        equal_at_0 += t.id == forward[j];
    }
    assert_true(equal_at_0 < N / 2); /* another position draws anew */
    sib_sampler_free(a);
    sib_sampler_free(b);
}

static void provisional_history_equals_real_history(void **state)
{
    enum { V = 30 };
    (void)state;
    for (int round = 0; round < 100; round++) {
        sib_sampler_params p = sib_sampler_defaults();
        p.repetition_penalty = 1.3;
        p.presence_penalty = 0.5;
        p.frequency_penalty = 0.2;
        p.repetition_last_n = rnd_below(12);
        p.presence_last_n = 1 + rnd_below(12);
        p.frequency_last_n = rnd_below(3) * 5;
        sib_sampler *window = sampler_of(&p, V), *fresh;
        int32_t ids[60];
        float logits[V], got[V], want[V];
        size_t n = 20 + (size_t)rnd_below(30);
        for (size_t i = 0; i < 60; i++) ids[i] = rnd_below(V / 3);
        for (int i = 0; i < V; i++) logits[i] = (float)(6 * rnd() - 3);
        push_all(window, ids, n);
        for (int j = 0; j < 6; j++) { /* a window of drafts, each pushed on the last, then all popped */
            for (int k = 0; k < j; k++) push_all(window, ids + n + k, 1);
            sib_dist d;
            assert_int_equal(sib_sampler_dist(window, logits, 0, NULL, &d, NULL), SIB_OK);
            sib_dist_probs(&d, got);
            fresh = sampler_of(&p, V);
            push_all(fresh, ids, n + (size_t)j);
            assert_int_equal(sib_sampler_dist(fresh, logits, 0, NULL, &d, NULL), SIB_OK);
            sib_dist_probs(&d, want);
            assert_memory_equal(got, want, sizeof got);
            sib_sampler_free(fresh);
            sib_sampler_pop(window, (size_t)j);
            assert_int_equal(sib_sampler_history(window), n);
        }
        sib_sampler_free(window);
    }
}

static void logprobs_are_of_the_whole_vocabulary(void **state)
{
    float logits[6] = {1, 2, 3, 3, -1, 0};
    (void)state;
    sib_sampler_params p = sib_sampler_defaults();
    int32_t banned = 1;
    p.top_logprobs = 4;
    p.top_k = 1;
    p.temperature = 0.1;
    p.suppress = &banned;
    p.n_suppress = 1;
    sib_sampler *s = sampler_of(&p, 6);
    sib_sample t;
    assert_int_equal(sib_sampler_sample(s, logits, 0, NULL, &t, NULL), SIB_OK);
    double z = log(exp(1) + 2 * exp(3) + exp(-1) + exp(0));
    const int32_t order[4] = {2, 3, 0, 5};
    assert_int_equal(t.id, 2);
    assert_true(fabs(t.logprob - (3 - z)) < 1e-6);
    assert_int_equal(t.n_top, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(t.top[i].id, order[i]);
        assert_true(fabs(t.top[i].logprob - (logits[order[i]] - z)) < 1e-6);
    }
    sib_sampler_free(s);
    p.top_logprobs = 20; /* more than there are: the five that are not masked out */
    s = sampler_of(&p, 6);
    assert_int_equal(sib_sampler_sample(s, logits, 0, NULL, &t, NULL), SIB_OK);
    assert_int_equal(t.n_top, 5);
    sib_sampler_free(s);
}

static void bad_logits_are_errors(void **state)
{
    (void)state;
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    sib_err err;
    sib_sample t;
    for (int greedy = 0; greedy < 2; greedy++)
        for (int v = 1; v <= 40; v += 13)
            for (int at = 0; at < v; at++)
                for (size_t b = 0; b < SIB_COUNT(bad); b++) {
                    float logits[40] = {0};
                    char name[40];
                    sib_sampler_params p = sib_sampler_defaults();
                    if (greedy) p.temperature = 0;
                    sib_sampler *s = sampler_of(&p, v);
                    logits[at] = bad[b];
                    assert_int_equal(sib_sampler_sample(s, logits, 0, NULL, &t, &err), SIB_EFORMAT);
                    (void)snprintf(name, sizeof name, "logit of token %d is", at);
                    assert_non_null(strstr(err.message, name));
                    sib_sampler_free(s);
                }
}

/* The largest finite logits, temperatures and penalties stay inside float32. */
static void extreme_values_stay_defined(void **state)
{
    float logits[4] = {3.4e38f, -3.4e38f, 3.3e38f, 0};
    const double temperatures[] = {0, 1e-300, 1e-40, 1e-6, 1, 1000};
    (void)state;
    for (size_t i = 0; i < SIB_COUNT(temperatures); i++)
        for (int pen = 0; pen < 2; pen++) {
            sib_sampler_params p = sib_sampler_defaults();
            p.temperature = temperatures[i];
            p.top_p = 0.999;
            p.top_logprobs = 2;
            if (pen) p.repetition_penalty = 1e-9, p.frequency_penalty = -100;
            sib_sampler *s = sampler_of(&p, 4);
            int32_t seen[3] = {0, 1, 1};
            push_all(s, seen, 3);
            sib_sample t;
            assert_int_equal(sib_sampler_sample(s, logits, 3, NULL, &t, NULL), SIB_OK);
            assert_int_equal(t.id, 0);
            assert_true(t.logprob == 0);
            sib_sampler_free(s);
        }
    float equal[4] = {5, 5, 5, 5}; /* a tiny temperature leaves the best ones equal */
    int seen[4] = {0};
    sib_sampler_params p = sib_sampler_defaults();
    p.temperature = 1e-300;
    sib_sampler *s = sampler_of(&p, 4);
    for (uint64_t e = 0; e < 200; e++) {
        sib_sample t;
        assert_int_equal(sib_sampler_sample(s, equal, e, NULL, &t, NULL), SIB_OK);
        seen[t.id]++;
    }
    for (int i = 0; i < 4; i++) assert_in_range(seen[i], 25, 75);
    sib_sampler_free(s);
}

static sib_status refuse(void *self, uint32_t *allowed, sib_err *err)
{
    (void)allowed;
    return sib_fail(err, SIB_EARG, "%s", (const char *)self);
}

static void a_row_without_tokens_is_an_error(void **state)
{
    enum { V = 33 };
    float logits[V] = {0};
    bool allowed[V] = {false};
    (void)state;
    sib_err err;
    sib_sample t;
    mask_of m = {allowed, V};
    sib_grammar none = {&m, mask_fn, NULL}, broken = {"grammar is broken", refuse, NULL};
    sib_sampler_params p = sib_sampler_defaults();
    sib_sampler *s = sampler_of(&p, V);
    assert_int_equal(sib_sampler_sample(s, logits, 0, &none, &t, &err), SIB_ESTATE);
    assert_non_null(strstr(err.message, "all 33"));
    assert_int_equal(sib_sampler_sample(s, logits, 0, &broken, &t, &err), SIB_EARG);
    assert_string_equal(err.message, "grammar is broken");
    allowed[32] = true; /* the last bit of the mask's last word */
    assert_int_equal(sib_sampler_sample(s, logits, 0, &none, &t, &err), SIB_OK);
    assert_int_equal(t.id, 32);
    sib_sampler_free(s);
}

static void min_new_tokens_holds_eos_back(void **state)
{
    float logits[4] = {0, 9, 1, 9};
    const int32_t eos[2] = {1, 3};
    (void)state;
    sib_sampler_params p = sib_sampler_defaults();
    p.temperature = 0;
    p.eos = eos;
    p.n_eos = 2;
    p.min_new_tokens = 3;
    sib_sampler *s = sampler_of(&p, 4);
    for (uint64_t e = 0; e < 5; e++) {
        sib_sample t;
        assert_int_equal(sib_sampler_sample(s, logits, e, NULL, &t, NULL), SIB_OK);
        assert_int_equal(t.id, e < 3 ? 2 : 1);
    }
    sib_sampler_free(s);
}

static void bad_parameters_name_the_knob(void **state)
{
    (void)state;
    const sib_logit_bias outside = {8, 1}, infinite = {0, INFINITY};
    const int32_t negative = -1;
    sib_err err;
    sib_sampler *s;
    const sib_sampler_params d = sib_sampler_defaults();
#define BAD(knob, ...)                                                                              \
    do {                                                                                            \
        sib_sampler_params p = d;                                                                   \
        __VA_ARGS__;                                                                                \
        assert_int_equal(sib_sampler_new(&s, &p, 8, 16, &err), SIB_EARG);                           \
        assert_null(s);                                                                             \
        if (!strstr(err.message, knob)) fail_msg("\"%s\" does not name %s", err.message, knob);     \
    } while (0)
    BAD("temperature", p.temperature = -0.1);
    BAD("temperature", p.temperature = NAN);
    BAD("temperature", p.temperature = INFINITY);
    BAD("top_p", p.top_p = 0);
    BAD("top_p", p.top_p = 1.01);
    BAD("top_p", p.top_p = NAN);
    BAD("top_k", p.top_k = -1);
    BAD("min_p", p.min_p = -1e-9);
    BAD("min_p", p.min_p = 2);
    BAD("repetition_penalty", p.repetition_penalty = 0);
    BAD("repetition_penalty", p.repetition_penalty = NAN);
    BAD("presence_penalty", p.presence_penalty = 101);
    BAD("frequency_penalty", p.frequency_penalty = -INFINITY);
    BAD("repetition_last_n", p.repetition_last_n = -1);
    BAD("presence_last_n", p.presence_last_n = -5);
    BAD("frequency_last_n", p.frequency_last_n = INT32_MIN);
    BAD("top_logprobs", p.top_logprobs = 21);
    BAD("top_logprobs", p.top_logprobs = -2);
    BAD("logit_bias: token id 8", p.bias = &outside, p.n_bias = 1);
    BAD("logit_bias of token 0", p.bias = &infinite, p.n_bias = 1);
    BAD("suppressed", p.suppress = &negative, p.n_suppress = 1);
    BAD("end-of-sequence", p.eos = &negative, p.n_eos = 1);
    assert_int_equal(sib_sampler_check(&d, 0, &err), SIB_EARG);
    assert_int_equal(sib_sampler_check(&d, SIB_MAX_VOCAB + 1, &err), SIB_EARG);
    assert_int_equal(sib_sampler_check(&d, SIB_MAX_VOCAB, &err), SIB_OK);

    assert_int_equal(sib_sampler_new(&s, &d, 8, 2, &err), SIB_OK);
    assert_int_equal(sib_sampler_push(s, 8, &err), SIB_EARG);
    assert_int_equal(sib_sampler_push(s, -1, &err), SIB_EARG);
    assert_int_equal(sib_sampler_push(s, 7, &err), SIB_OK);
    assert_int_equal(sib_sampler_push(s, 0, &err), SIB_OK);
    assert_int_equal(sib_sampler_push(s, 0, &err), SIB_ECAPACITY);
    assert_non_null(strstr(err.message, "2 tokens"));
    sib_sampler_pop(s, 5); /* more than there are */
    assert_int_equal(sib_sampler_history(s), 0);
    sib_sampler_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chain_matches_oracle),
        cmocka_unit_test(large_vocabularies),
        cmocka_unit_test(draw_is_gumbel_argmax),
        cmocka_unit_test(greedy_takes_the_lowest_id),
        cmocka_unit_test(ties_at_the_cut_keep_the_lowest_ids),
        cmocka_unit_test(draws_depend_on_position_alone),
        cmocka_unit_test(provisional_history_equals_real_history),
        cmocka_unit_test(logprobs_are_of_the_whole_vocabulary),
        cmocka_unit_test(bad_logits_are_errors),
        cmocka_unit_test(extreme_values_stay_defined),
        cmocka_unit_test(a_row_without_tokens_is_an_error),
        cmocka_unit_test(min_new_tokens_holds_eos_back),
        cmocka_unit_test(bad_parameters_name_the_knob),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

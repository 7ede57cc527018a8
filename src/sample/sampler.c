/* sample/sampler.c - see sampler.h. */
#include "sample/sampler.h"

#include "base/arena.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MASS_ONE 0x1p43f /* mass of the best token */
#define TRY_FIRST 1024   /* top-p without top-k looks at so many tokens before it looks at all */
#define LANES 16

enum { REPETITION, PRESENCE, FREQUENCY, N_PENALTIES };

struct sib_sampler {
    sib_sampler_params p; /* its arrays are ours */
    int n_vocab;
    bool greedy;
    struct window {
        uint32_t *count; /* [n_vocab] occurrences among the last_n tokens; NULL: penalty off */
        size_t last_n;   /* 0: all */
    } seen[N_PENALTIES];
    int32_t *history; /* [max_history]; NULL when no penalty looks at it */
    size_t n_history, max_history;
    float *w;        /* [n_vocab] adjusted logits            */
    uint64_t *keys;  /* [n_vocab] scratch of the selections  */
    uint32_t *allowed; /* one bit per id */
};

sib_sampler_params sib_sampler_defaults(void)
{
    return (sib_sampler_params){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .top_logprobs = -1};
}

/* ---- parameters ---- */

static sib_status check_ids(const int32_t *ids, size_t n, const char *what, int n_vocab, sib_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return sib_fail(err, SIB_EARG, "%s: token id %d is outside the vocabulary of %d", what, (int)ids[i], n_vocab);
    return SIB_OK;
}

sib_status sib_sampler_check(const sib_sampler_params *p, int n_vocab, sib_err *err)
{
    const struct {
        const char *name;
        double value, lo, hi;
        bool open; /* lo itself is not allowed */
    } ranges[] = {
        {"temperature", p->temperature, 0, 1000, false},
        {"top_p", p->top_p, 0, 1, true},
        {"top_k", p->top_k, 0, INT32_MAX, false},
        {"min_p", p->min_p, 0, 1, false},
        {"repetition_penalty", p->repetition_penalty, 0, 100, true},
        {"presence_penalty", p->presence_penalty, -100, 100, false},
        {"frequency_penalty", p->frequency_penalty, -100, 100, false},
        {"repetition_last_n", p->repetition_last_n, 0, INT32_MAX, false},
        {"presence_last_n", p->presence_last_n, 0, INT32_MAX, false},
        {"frequency_last_n", p->frequency_last_n, 0, INT32_MAX, false},
        {"top_logprobs", p->top_logprobs, -1, SIB_MAX_TOP_LOGPROBS, false},
    };
    if (n_vocab < 1 || n_vocab > SIB_MAX_VOCAB)
        return sib_fail(err, SIB_EARG, "vocabulary of %d tokens, allowed are 1 to %d", n_vocab, SIB_MAX_VOCAB);
    for (size_t i = 0; i < SIB_COUNT(ranges); i++) {
        double v = ranges[i].value, lo = ranges[i].lo;
        if (!(ranges[i].open ? v > lo : v >= lo) || !(v <= ranges[i].hi)) /* NaN fails both */
            return sib_fail(err, SIB_EARG, "%s is %g, allowed are values %s %g up to %.10g", ranges[i].name, v,
                            ranges[i].open ? "above" : "from", lo, ranges[i].hi);
    }
    for (size_t i = 0; i < p->n_bias; i++) {
        SIB_TRY(check_ids(&p->bias[i].id, 1, "logit_bias", n_vocab, err));
        if (!(fabsf(p->bias[i].bias) <= 1e6f))
            return sib_fail(err, SIB_EARG, "logit_bias of token %d is %g, allowed are values from -1000000 up to 1000000",
                            (int)p->bias[i].id, (double)p->bias[i].bias);
    }
    SIB_TRY(check_ids(p->suppress, p->n_suppress, "suppressed tokens", n_vocab, err));
    return check_ids(p->eos, p->n_eos, "end-of-sequence tokens", n_vocab, err);
}

/* A copy of an array; NULL for an empty one, *ok false without memory. */
static void *copy_of(const void *v, size_t n, size_t each, bool *ok)
{
    if (n == 0 || !*ok) return NULL;
    void *c = calloc(n, each);
    if (c)
        memcpy(c, v, n * each);
    else
        *ok = false;
    return c;
}

sib_status sib_sampler_new(sib_sampler **out, const sib_sampler_params *p, int n_vocab, size_t max_history, sib_err *err)
{
    *out = NULL;
    SIB_TRY(sib_sampler_check(p, n_vocab, err));
    sib_sampler *s = calloc(1, sizeof *s);
    if (!s) return sib_nomem(err, "sampler");
    size_t v = (size_t)n_vocab;
    bool ok = true;
    s->p = *p;
    s->p.bias = copy_of(p->bias, p->n_bias, sizeof *p->bias, &ok);
    s->p.suppress = copy_of(p->suppress, p->n_suppress, sizeof *p->suppress, &ok);
    s->p.eos = copy_of(p->eos, p->n_eos, sizeof *p->eos, &ok);
    s->n_vocab = n_vocab;
    s->greedy = p->temperature == 0;
    s->max_history = max_history;
    const bool on[N_PENALTIES] = {p->repetition_penalty != 1, p->presence_penalty != 0, p->frequency_penalty != 0};
    const int last_n[N_PENALTIES] = {p->repetition_last_n, p->presence_last_n, p->frequency_last_n};
    for (int i = 0; i < N_PENALTIES; i++) {
        if (!on[i]) continue;
        s->seen[i].last_n = (size_t)last_n[i];
        ok = ok && (s->seen[i].count = calloc(v, sizeof *s->seen[i].count)) != NULL;
    }
    if (sib_sampler_uses_history(s)) ok = ok && (s->history = calloc(max_history ? max_history : 1, sizeof *s->history)) != NULL;
    ok = ok && (s->w = sib_aligned_alloc(v * sizeof *s->w)) != NULL;
    ok = ok && (s->keys = sib_aligned_alloc(v * sizeof *s->keys)) != NULL;
    ok = ok && (s->allowed = calloc((v + 31) / 32, sizeof *s->allowed)) != NULL;
    if (!ok) {
        sib_sampler_free(s);
        return sib_nomem(err, "sampler");
    }
    *out = s;
    return SIB_OK;
}

void sib_sampler_free(sib_sampler *s)
{
    if (!s) return;
    free((void *)s->p.bias);
    free((void *)s->p.suppress);
    free((void *)s->p.eos);
    for (int i = 0; i < N_PENALTIES; i++) free(s->seen[i].count);
    free(s->history);
    sib_aligned_free(s->w, (size_t)s->n_vocab * sizeof *s->w);
    sib_aligned_free(s->keys, (size_t)s->n_vocab * sizeof *s->keys);
    free(s->allowed);
    free(s);
}

int sib_sampler_vocab(const sib_sampler *s)
{
    return s->n_vocab;
}

uint64_t sib_sampler_seed(const sib_sampler *s)
{
    return s->p.seed;
}

bool sib_sampler_uses_history(const sib_sampler *s)
{
    return s->p.repetition_penalty != 1 || s->p.presence_penalty != 0 || s->p.frequency_penalty != 0;
}

/* ---- history ---- */

sib_status sib_sampler_push(sib_sampler *s, int32_t id, sib_err *err)
{
    if (id < 0 || id >= s->n_vocab)
        return sib_fail(err, SIB_EARG, "token id %d is outside the vocabulary of %d", (int)id, s->n_vocab);
    if (s->n_history >= s->max_history)
        return sib_fail(err, SIB_ECAPACITY, "the sampler was made for %zu tokens of prompt and output", s->max_history);
    size_t n = s->n_history++;
    if (!s->history) return SIB_OK;
    s->history[n] = id;
    for (int i = 0; i < N_PENALTIES; i++) {
        struct window *g = &s->seen[i];
        if (!g->count) continue;
        g->count[id]++;
        if (g->last_n && n >= g->last_n) g->count[s->history[n - g->last_n]]--;
    }
    return SIB_OK;
}

void sib_sampler_pop(sib_sampler *s, size_t n)
{
    while (n-- > 0 && s->n_history > 0) {
        size_t last = --s->n_history;
        if (!s->history) continue;
        for (int i = 0; i < N_PENALTIES; i++) {
            struct window *g = &s->seen[i];
            if (!g->count) continue;
            g->count[s->history[last]]--;
            if (g->last_n && last >= g->last_n) g->count[s->history[last - g->last_n]]++;
        }
    }
}

size_t sib_sampler_history(const sib_sampler *s)
{
    return s->n_history;
}

/* ---- arithmetic ---- */

/* e^-y for y >= 0 within 2 ulp; above 87, infinity included, the value of 87. -y = n ln2 + r, e^r by
 * its Taylor series. Plain float operations, so that every machine agrees. The bits of floats that are not
 * negative order like integers, which gives a clamp that compilers can make vectors of. */
static inline float exp_minus(float y)
{
    const float to_int = 0x1.8p23f; /* adding and taking away rounds to an integer */
    int32_t bits, limit = 0x42AE0000; /* 87.0f */
    memcpy(&bits, &y, sizeof bits);
    bits = bits < limit ? bits : limit;
    memcpy(&y, &bits, sizeof y);
    float n = to_int - y * 0x1.715476p0f - to_int;
    float r = -y - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f;
    float p = 0x1.6c16c2p-10f;
    p = p * r + 0x1.111112p-7f;
    p = p * r + 0x1.555556p-5f;
    p = p * r + 0x1.555556p-3f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    bits = ((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

static inline uint64_t mass_of(float w, float max)
{
    return (uint64_t)(int64_t)(exp_minus(max - w) * MASS_ONE);
}

/* Sum of the masses of all tokens. Blocks of fixed length let the compiler use vectors. */
static uint64_t total_mass(const float *w, int n, float max)
{
    uint64_t total = 0;
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        float e[LANES];
        for (int k = 0; k < LANES; k++) e[k] = exp_minus(max - w[i + k]);
        for (int k = 0; k < LANES; k++) total += (uint64_t)(int64_t)(e[k] * MASS_ONE);
    }
    for (; i < n; i++) total += mass_of(w[i], max);
    return total;
}

static float clamped(double x)
{
    return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : (float)x;
}

/* ---- selection ----
 * A key holds a token's place in the total order: a larger key is a better token. */

static inline uint64_t key_of(float w, int32_t id)
{
    uint32_t u;
    w += 0.0f; /* -0 becomes +0 */
    memcpy(&u, &w, sizeof u);
    u = u >> 31 ? ~u : u | 0x80000000u;
    return (uint64_t)u << 32 | ~(uint32_t)id;
}

static inline float key_w(uint64_t key)
{
    uint32_t u = (uint32_t)(key >> 32);
    float w;
    u = u >> 31 ? u & 0x7FFFFFFFu : ~u;
    memcpy(&w, &u, sizeof w);
    return w;
}

static inline int32_t key_id(uint64_t key)
{
    return (int32_t) ~(uint32_t)key;
}

/* The worst key that stays when a key stays while the weight of the better ones is < target;
 * 0 when all stay. A key weighs 1, or its mass below `max`. Radix selection from the top
 * byte: linear time whatever the logits are. Reorders the keys. */
static uint64_t cut_at(uint64_t *keys, size_t n, bool by_mass, float max, uint64_t target)
{
    uint64_t above = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        uint64_t weight[256] = {0};
        for (size_t i = 0; i < n; i++) weight[keys[i] >> shift & 255] += by_mass ? mass_of(key_w(keys[i]), max) : 1;
        int digit = 255;
        while (digit >= 0 && above + weight[digit] < target) above += weight[digit--];
        if (digit < 0) return 0;
        size_t m = 0;
        for (size_t i = 0; i < n; i++) {
            if ((int)(keys[i] >> shift & 255) != digit) continue;
            uint64_t k = keys[i];
            keys[i] = keys[m];
            keys[m++] = k;
        }
        n = m;
    }
    return keys[0]; /* ids differ, so one is left */
}

static size_t drop_below(uint64_t *keys, size_t n, uint64_t cut)
{
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (keys[i] >= cut) keys[m++] = keys[i];
    return m;
}

/* Collects the k best tokens that are not masked out, in any order; returns how many.
 * Once the buffer has filled, only what beats the k-th best so far enters it. */
static size_t best_k(uint64_t *keys, const float *w, int n_vocab, size_t k)
{
    size_t v = (size_t)n_vocab, cap = k > v / 4 ? v : 2 * k + TRY_FIRST, m = 0;
    float bar = -INFINITY;
    if (cap > v) cap = v;
    for (int32_t i = 0; i < n_vocab; i++) {
        if (!(w[i] > bar)) continue; /* an equal one with a higher id is worse */
        keys[m++] = key_of(w[i], i);
        if (m < cap || m <= k) continue;
        uint64_t cut = cut_at(keys, m, false, 0, k);
        m = drop_below(keys, m, cut);
        bar = key_w(cut);
    }
    return m > k ? drop_below(keys, m, cut_at(keys, m, false, 0, k)) : m;
}

static uint64_t keys_mass(const uint64_t *keys, size_t n, float max)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += mass_of(key_w(keys[i]), max);
    return sum;
}

static inline uint64_t better_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* ---- the chain ---- */

/* Largest logit and its lowest id. False when one is NaN or infinite; masked rows may hold
 * -infinity, raw ones not. */
static bool find_max(const float *w, int n, bool masked, float *max, int32_t *best)
{
    float lane[LANES];
    int32_t bad[LANES] = {0};
    int i = 0;
    for (int k = 0; k < LANES; k++) lane[k] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float x = w[i + k];
            lane[k] = x > lane[k] ? x : lane[k];
            bad[k] |= !(x >= -FLT_MAX && x <= FLT_MAX);
        }
    for (; i < n; i++) {
        lane[0] = w[i] > lane[0] ? w[i] : lane[0];
        bad[0] |= !(w[i] >= -FLT_MAX && w[i] <= FLT_MAX);
    }
    *max = lane[0];
    for (int k = 1; k < LANES; k++) {
        *max = lane[k] > *max ? lane[k] : *max;
        bad[0] |= bad[k];
    }
    *best = 0;
    while (*best < n && w[*best] != *max) ++*best;
    return masked || !bad[0];
}

static sib_status not_finite(const float *logits, int n, sib_err *err)
{
    int i = 0;
    while (i < n - 1 && isfinite(logits[i])) i++;
    return sib_fail(err, SIB_EFORMAT, "the logit of token %d is %g: the checkpoint's weights overflow", i, (double)logits[i]);
}

/* Writes the penalised logit of each token in the windows. It is computed from the raw
 * logit every time, so that a token that occurs twice is written twice, not penalised twice. */
static void penalise(const sib_sampler *s, const float *raw)
{
    size_t span = 0;
    for (int i = 0; i < N_PENALTIES; i++) {
        if (!s->seen[i].count) continue;
        size_t n = s->seen[i].last_n && s->seen[i].last_n < s->n_history ? s->seen[i].last_n : s->n_history;
        if (n > span) span = n;
    }
    const uint32_t *repetition = s->seen[REPETITION].count, *presence = s->seen[PRESENCE].count,
                   *frequency = s->seen[FREQUENCY].count;
    for (size_t j = s->n_history - span; j < s->n_history; j++) {
        int32_t id = s->history[j];
        double x = raw[id];
        if (repetition && repetition[id]) x = x > 0 ? x / s->p.repetition_penalty : x * s->p.repetition_penalty;
        if (presence && presence[id]) x -= s->p.presence_penalty;
        if (frequency) x -= s->p.frequency_penalty * frequency[id];
        s->w[id] = clamped(x);
    }
}

static sib_status adjust(sib_sampler *s, const float *raw, uint64_t emission, const sib_grammar *grammar, sib_err *err)
{
    memcpy(s->w, raw, (size_t)s->n_vocab * sizeof *raw);
    if (s->history) penalise(s, raw);
    for (size_t i = 0; i < s->p.n_bias; i++) {
        float *x = &s->w[s->p.bias[i].id];
        *x = clamped((double)*x + s->p.bias[i].bias);
    }
    for (size_t i = 0; i < s->p.n_suppress; i++) s->w[s->p.suppress[i]] = -INFINITY;
    if (emission < s->p.min_new_tokens)
        for (size_t i = 0; i < s->p.n_eos; i++) s->w[s->p.eos[i]] = -INFINITY;
    if (!grammar) return SIB_OK;
    memset(s->allowed, 0xFF, ((size_t)s->n_vocab + 31) / 32 * sizeof *s->allowed);
    SIB_TRY(grammar->mask(grammar->self, s->allowed, err));
    for (int i = 0; i < s->n_vocab; i++)
        if (!(s->allowed[i >> 5] >> (i & 31) & 1)) s->w[i] = -INFINITY;
    return SIB_OK;
}

/* The worst kept key under top-k and top-p; 0 when both keep all. */
static uint64_t filter(sib_sampler *s, const sib_dist *d, uint64_t total)
{
    size_t v = (size_t)s->n_vocab, m = 0;
    bool top_p = s->p.top_p < 1, top_k = s->p.top_k > 0 && s->p.top_k < s->n_vocab;
    uint64_t cut = 0;
    if (top_k) {
        m = best_k(s->keys, d->w, s->n_vocab, (size_t)s->p.top_k);
        cut = s->keys[0];
        for (size_t i = 1; i < m; i++)
            if (s->keys[i] < cut) cut = s->keys[i];
    }
    if (!top_p) return cut;
    /* "weight before < p * total" for integers; the product is at least the smallest double. */
    uint64_t target = (uint64_t)ceil(s->p.top_p * (double)total);
    if (!top_k) {
        m = best_k(s->keys, d->w, s->n_vocab, v < TRY_FIRST ? v : TRY_FIRST);
        if (m == TRY_FIRST && keys_mass(s->keys, m, d->max) < target) m = best_k(s->keys, d->w, s->n_vocab, v);
    }
    return better_of(cut, cut_at(s->keys, m, true, d->max, target));
}

sib_status sib_sampler_dist(sib_sampler *s, const float *logits, uint64_t emission, const sib_grammar *grammar,
                            sib_dist *d, sib_err *err)
{
    *d = (sib_dist){.s = s, .w = logits, .inv_t = 1, .log_total = NAN};
    if (!find_max(logits, s->n_vocab, false, &d->max, &d->best)) return not_finite(logits, s->n_vocab, err);
    bool short_of_min = emission < s->p.min_new_tokens && s->p.n_eos > 0;
    if (s->history || s->p.n_bias || s->p.n_suppress || short_of_min || grammar) {
        SIB_TRY(adjust(s, logits, emission, grammar, err));
        d->w = s->w;
        (void)find_max(s->w, s->n_vocab, true, &d->max, &d->best);
        if (d->max == -INFINITY)
            return sib_fail(err, SIB_ESTATE, "no token may come next: grammar and suppressed tokens exclude all %d", s->n_vocab);
    }
    uint64_t total = 0;
    if (s->p.top_logprobs >= 0 || (!s->greedy && s->p.top_p < 1)) {
        total = total_mass(d->w, s->n_vocab, d->max);
        d->log_total = log((double)total / (double)MASS_ONE);
    }
    if (s->greedy) {
        d->cut = d->max;
        d->cut_id = d->best;
        return SIB_OK;
    }
    double inv_t = 1 / s->p.temperature;
    d->inv_t = inv_t < FLT_MAX ? (float)inv_t : FLT_MAX;
    uint64_t cut = filter(s, d, total);
    if (s->p.min_p > 0) cut = better_of(cut, key_of(d->max + (float)log(s->p.min_p), INT32_MAX));
    d->cut = cut ? key_w(cut) : -INFINITY;
    d->cut_id = cut ? key_id(cut) : -1;
    return SIB_OK;
}

static inline bool kept(const sib_dist *d, int32_t id)
{
    return d->w[id] > d->cut || (d->w[id] == d->cut && id <= d->cut_id);
}

/* ---- draws ---- */

/* The uniform numbers of one emission, by token id; -log of one is the time a token arrives in a race. */
typedef struct uniforms {
    uint64_t seed, emission;
    uint32_t stream, block, r[4];
} uniforms;

static uniforms uniforms_of(const sib_dist *d, uint32_t stream, uint64_t emission)
{
    return (uniforms){.seed = d->s->p.seed, .stream = stream, .emission = emission, .block = UINT32_MAX};
}

static double uniform(uniforms *c, int32_t id)
{
    uint32_t block = (uint32_t)id >> 2;
    if (block != c->block) {
        sib_rng_block(c->seed, c->stream, c->emission, block, c->r);
        c->block = block;
    }
    return (c->r[id & 3] + 0.5) * 0x1p-32;
}

/* No arrival is earlier than this, so a token of weight e cannot beat `first` if e * first is smaller. */
#define EARLIEST 0x1p-33

static int32_t race(const sib_dist *d, uint32_t stream, uint64_t emission)
{
    uniforms c = uniforms_of(d, stream, emission);
    int32_t winner = d->best;
    double first = -log(uniform(&c, winner));
    float hopeless = (float)log(first / EARLIEST) + 1e-3f; /* slack for the rounding of exp_minus */
    for (int32_t i = 0; i < d->s->n_vocab; i++) {
        float y = (d->max - d->w[i]) * d->inv_t;
        if (y > hopeless || !kept(d, i) || i == d->best) continue;
        double e = exp_minus(y), u = uniform(&c, i);
        if (1 - u > e * first) continue; /* -log(u) >= 1 - u: spares most logarithms */
        double t = -log(u) / e;
        if (t < first || (t == first && i < winner)) {
            winner = i;
            first = t;
            hopeless = (float)log(first / EARLIEST) + 1e-3f;
        }
    }
    return winner;
}

int32_t sib_dist_draw(const sib_dist *d, uint64_t emission)
{
    return d->s->greedy ? d->best : race(d, SIB_RNG_SAMPLE, emission);
}

static double kept_exp(const sib_dist *d, int32_t id)
{
    return kept(d, id) ? exp_minus((d->max - d->w[id]) * d->inv_t) : 0;
}

static double kept_mass(sib_dist *d)
{
    if (d->kept_mass == 0)
        for (int32_t i = 0; i < d->s->n_vocab; i++) d->kept_mass += kept_exp(d, i);
    return d->kept_mass;
}

double sib_dist_prob(sib_dist *d, int32_t id)
{
    if (id < 0 || id >= d->s->n_vocab) return 0;
    return kept_exp(d, id) / kept_mass(d);
}

void sib_dist_probs(sib_dist *d, float *out)
{
    double mass = kept_mass(d);
    for (int32_t i = 0; i < d->s->n_vocab; i++) out[i] = (float)(kept_exp(d, i) / mass);
}

/* Its random numbers are those of the accept stream: a drafter that drew with the key of
 * this emission has already conditioned the sample stream. */
int32_t sib_dist_draw_residual(sib_dist *d, uint64_t emission, const float *q, int32_t drafted)
{
    double mass = kept_mass(d), residual = 0, first = INFINITY;
    uniforms c = uniforms_of(d, SIB_RNG_ACCEPT, emission);
    int32_t winner = -1;
    for (int32_t i = 0; i < d->s->n_vocab; i++) {
        double r = kept_exp(d, i) / mass - (q ? (double)q[i] : i == drafted);
        if (!(r > 0)) continue;
        residual += r;
        double t = -log(uniform(&c, i)) / r;
        if (t < first) {
            winner = i;
            first = t;
        }
    }
    return residual > 1e-12 ? winner : race(d, SIB_RNG_ACCEPT, emission);
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

void sib_dist_report(const sib_dist *d, int32_t id, sib_sample *out)
{
    *out = (sib_sample){.id = id, .logprob = NAN};
    int n = d->s->p.top_logprobs;
    if (n < 0) return;
    double log_z = d->max + d->log_total;
    out->logprob = (float)(d->w[id] - log_z);
    if (n == 0) return;
    size_t m = best_k(d->s->keys, d->w, d->s->n_vocab, (size_t)n);
    qsort(d->s->keys, m, sizeof *d->s->keys, by_key);
    out->n_top = (int)m;
    for (size_t i = 0; i < m; i++)
        out->top[i] = (sib_logprob){key_id(d->s->keys[i]), (float)(key_w(d->s->keys[i]) - log_z)};
}

sib_status sib_sampler_sample(sib_sampler *s, const float *logits, uint64_t emission, const sib_grammar *grammar,
                              sib_sample *out, sib_err *err)
{
    sib_dist d;
    SIB_TRY(sib_sampler_dist(s, logits, emission, grammar, &d, err));
    sib_dist_report(&d, sib_dist_draw(&d, emission), out);
    return SIB_OK;
}

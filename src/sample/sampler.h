/* sample/sampler.h - from one row of logits to one token.
 *
 *   logits -> repetition, presence, frequency penalty -> bias -> suppressed ids, eos before
 *   min_new_tokens, grammar mask -> log-softmax -> top-p, min-p, top-k -> times 1/T -> draw
 *
 * Used by the plain loop (gen/), by the verify walk (sample/accept.h) and by drafters
 * that draw. One chain for all of them, so a token does not depend on which of them
 * asked for it.
 *
 * The filters look at the log-probabilities before the temperature and do not
 * renormalise (the order of mlx-lm's make_sampler). Each keeps the best tokens of one
 * total order, higher logit first and lower id first among equals:
 *   top-p   a token stays while the probability of those before it is < p
 *   min-p   a token stays while its probability is >= min_p times the best one
 *   top-k   the first k stay
 * so together they come down to one last kept token, found without sorting the vocabulary.
 *
 * The draw is a Gumbel argmax, computed as the equivalent exponential race:
 *   argmin over kept i of  -log(u_i) / exp((logit_i - max) / T),  lowest id among equals,
 *   u_i = (philox(seed, SIB_RNG_SAMPLE, emission index, i) + 1/2) / 2^32.
 * Nothing is consumed: the same row, seed and emission index give the same token, however
 * many drafts, rows or threads took part. Two close distributions that share a key
 * mostly share the draw, so a drafter that samples with the request's key keeps an
 * acceptance of at least (1 - TV) / (1 + TV). Temperature 0 is argmax, lowest id first.
 *
 * Numbers: logits and their adjustment float32; probability masses are integers in units
 * of 2^-43 of the best token's, so that sums do not depend on their order; log-probabilities
 * are computed in double and stored as float32. exp is our own polynomial, the same on
 * every machine and instruction set level. */
#ifndef SIB_SAMPLE_SAMPLER_H
#define SIB_SAMPLE_SAMPLER_H

#include "base/rng.h"
#include "base/status.h"

#define SIB_MAX_VOCAB (1 << 20)  /* masses of this many tokens fit in 64 bits */
#define SIB_MAX_TOP_LOGPROBS 20

typedef struct sib_logit_bias {
    int32_t id;
    float bias;
} sib_logit_bias;

/* Every knob with its range; the neutral value in brackets switches it off. Arrays are
 * borrowed until sib_sampler_new returns. */
typedef struct sib_sampler_params {
    double temperature;         /* 0..1000; 0 is greedy                                     */
    double top_p;               /* above 0, up to 1 [1]                                     */
    int top_k;                  /* 0.. [0]                                                  */
    double min_p;               /* 0..1 [0]                                                 */
    double repetition_penalty;  /* above 0, up to 100 [1]; logit / x if positive, else * x  */
    double presence_penalty;    /* -100..100 [0]; once for a token that occurs              */
    double frequency_penalty;   /* -100..100 [0]; times the number of occurrences           */
    int repetition_last_n;      /* how many of the last tokens (prompt and output) each     */
    int presence_last_n;        /* penalty sees; 0 is all                                   */
    int frequency_last_n;
    const sib_logit_bias *bias; /* -1e6..1e6 each; biases of one id add up                  */
    size_t n_bias;
    const int32_t *suppress; /* ids that are never drawn */
    size_t n_suppress;
    const int32_t *eos; /* ids that are not drawn before min_new_tokens */
    size_t n_eos;
    uint64_t min_new_tokens;
    int top_logprobs; /* -1: no log-probabilities [-1]; 0..20: of the token and of so many best */
    uint64_t seed;
} sib_sampler_params;

/* Every filter and penalty off, temperature 1, seed 0. */
sib_sampler_params sib_sampler_defaults(void);

/* SIB_EARG with a sentence that names the knob, its value and its range. */
sib_status sib_sampler_check(const sib_sampler_params *p, int n_vocab, sib_err *err);

/* What a grammar does to one request. The mask is asked for before each row; the state
 * advances on emitted tokens only, so it never rolls back. */
typedef struct sib_grammar {
    void *self;
    /* Clears the bits of ids that may not come next; all are set on entry.
     * allowed: bit id % 32 of word id / 32. */
    sib_status (*mask)(void *self, uint32_t *allowed, sib_err *err);
    /* *done: nothing may follow. */
    sib_status (*advance)(void *self, int32_t id, bool *done, sib_err *err);
} sib_grammar;

typedef struct sib_logprob {
    int32_t id;
    float logprob;
} sib_logprob;

/* One token and, where top_logprobs >= 0, log-softmax values over the whole vocabulary after
 * penalties, bias and mask, before filters and temperature. */
typedef struct sib_sample {
    int32_t id;
    float logprob;
    int n_top;
    sib_logprob top[SIB_MAX_TOP_LOGPROBS]; /* best first, lower id first among equals */
} sib_sample;

typedef struct sib_sampler sib_sampler;

/* Everything is allocated here, for `max_history` tokens of prompt and output together. */
sib_status sib_sampler_new(sib_sampler **out, const sib_sampler_params *p, int n_vocab, size_t max_history, sib_err *err);
void sib_sampler_free(sib_sampler *s); /* NULL is fine */

int sib_sampler_vocab(const sib_sampler *s);
uint64_t sib_sampler_seed(const sib_sampler *s);
bool sib_sampler_uses_history(const sib_sampler *s); /* false: rows of a window may be sampled in any order */

/* The history: prompt, then emitted tokens. A row of a verify window is evaluated with the
 * drafts before it pushed, and popped after. Both are O(1) per token and exact inverses.
 * SIB_ECAPACITY when full, SIB_EARG for an id outside the vocabulary. */
sib_status sib_sampler_push(sib_sampler *s, int32_t id, sib_err *err);
void sib_sampler_pop(sib_sampler *s, size_t n);
size_t sib_sampler_history(const sib_sampler *s);

/* Samples the token of emission index `emission` (0 is the first after the prompt).
 * logits [n_vocab] are borrowed and not changed; grammar may be NULL. A logit that is not
 * finite is SIB_EFORMAT (the weights overflow), a row in which no token is allowed SIB_ESTATE. */
sib_status sib_sampler_sample(sib_sampler *s, const float *logits, uint64_t emission, const sib_grammar *grammar,
                              sib_sample *out, sib_err *err);

/* The same in steps, for acceptance rules: a distribution after the whole chain. It
 * borrows `logits` and the sampler's scratch until the next call on the sampler. */
typedef struct sib_dist {
    const sib_sampler *s;
    const float *w;   /* [n_vocab] logits after the adjustments                     */
    float max;        /* of w                                                       */
    int32_t best;     /* its lowest id                                              */
    float cut;        /* kept: w > cut, or w == cut and id <= cut_id                 */
    int32_t cut_id;   /* temperature 0: cut and cut_id are max and best             */
    float inv_t;
    double log_total; /* log-softmax of i is w[i] - max - log_total; NaN if not computed */
    double kept_mass; /* sum over kept of exp((w - max) / T); 0 until sib_dist_prob needs it */
} sib_dist;

sib_status sib_sampler_dist(sib_sampler *s, const float *logits, uint64_t emission, const sib_grammar *grammar,
                            sib_dist *out, sib_err *err);
double sib_dist_prob(sib_dist *d, int32_t id);      /* probability of drawing id; 0 outside the vocabulary */
void sib_dist_probs(sib_dist *d, float *out);       /* all of them, [n_vocab]: a drafter's q */
int32_t sib_dist_draw(const sib_dist *d, uint64_t emission); /* what sib_sampler_sample draws */

/* A draw from the residual max(p - q, 0) / sum, or from p where that sum is <= 1e-12.
 * q [n_vocab]; NULL stands for the one-hot of `drafted`. */
int32_t sib_dist_draw_residual(sib_dist *d, uint64_t emission, const float *q, int32_t drafted);

/* Fills id and, if the sampler was asked for them, log-probabilities. */
void sib_dist_report(const sib_dist *d, int32_t id, sib_sample *out);

#endif

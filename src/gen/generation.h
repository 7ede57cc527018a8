/* gen/generation.h - one timeline that answers prompts: tokens in, text out.
 *
 *   prompt()   makes the timeline equal to the given ids, reusing what it already has
 *   lane()     what a round advances (spec/round.h); many timelines share rounds
 *   absorb()   turns the tokens of the last round into events: detokenized, stop strings found
 *   next()     hands out one event a token
 *
 * The timeline keeps prompt and answer after the end, so that the next turn of a conversation
 * computes only what is new. Pictures count by the hash of their pixels. */
#ifndef SIB_GEN_GENERATION_H
#define SIB_GEN_GENERATION_H

#include "spec/round.h"
#include "text/tokenizer.h"

typedef struct sib_generation sib_generation;

/* A picture's rows in a prompt. The features must live until the prompt has been processed. */
typedef struct sib_gen_picture {
    sib_soft_span span;
    uint8_t hash[32]; /* of its pixels and the way they were cut into patches */
} sib_gen_picture;

/* How much of a lane's committed timeline the prompt `ids` shares, at most `limit`: equal ids, equal pictures (hash: of the
 * lane's) at equal places; never the inside of a picture. */
int sib_lane_shares(const sib_lane *l, uint8_t (*hash)[32], const int32_t *ids, int limit, const sib_gen_picture *pictures, int n_pictures);

typedef struct sib_gen_request {
    const sib_sampler_params *sampler;
    const int32_t *eos;
    size_t n_eos;
    const sib_str *stop;
    size_t n_stop;
    uint64_t max_tokens; /* >= 1; cut to what the context holds */
    bool keep_special;   /* show special tokens in the text     */
    sib_accept_rule rule;
    sib_policy_kind policy;
    int draft_n; /* 0: the drafter's default */
    const sib_grammar *grammar;
} sib_gen_request;

sib_status sib_generation_new(sib_generation **out, sib_model *model, sib_drafter *drafter, const sib_tokenizer *t, sib_err *err);
void sib_generation_free(sib_generation *g);

/* Refused without harm: SIB_EARG (empty prompt, id out of range), SIB_ECAPACITY (does not fit the context). */
sib_status sib_generation_prompt(sib_generation *g, const int32_t *ids, size_t n, const sib_gen_picture *pictures, int n_pictures,
                                 const sib_gen_request *r, sib_err *err);

/* How many positions of this prompt the timeline has computed already and would reuse. */
int sib_generation_shared(const sib_generation *g, const int32_t *ids, size_t n, const sib_gen_picture *pictures, int n_pictures);

/* The lane to put into the next round; NULL when finished or when nothing was prompted. */
sib_lane *sib_generation_lane(sib_generation *g);
/* After a round that held the lane. */
sib_status sib_generation_absorb(sib_generation *g, sib_err *err);
/* A round failed: the sequence is discarded, the timeline is empty. */
void sib_generation_broken(sib_generation *g);
/* Ends the answer now; what is held back is flushed as the last event. */
sib_status sib_generation_stop(sib_generation *g, sib_finish why, sib_err *err);
/* False: no event is waiting. Text is valid until the next call on g. */
bool sib_generation_next(sib_generation *g, sib_token *out);
/* What was sampled for the event that next() gave last; NULL when it had no token. Valid until the next round. */
const sib_sample *sib_generation_sample(const sib_generation *g);

int sib_generation_prompt_tokens(const sib_generation *g);
int sib_generation_cached_tokens(const sib_generation *g); /* of the prompt, reused */
int sib_generation_generated(const sib_generation *g);     /* end token included    */
bool sib_generation_in_prompt(const sib_generation *g);    /* prompt rows are left  */
int sib_generation_length(const sib_generation *g);        /* positions that the timeline holds */
const sib_draft_policy *sib_generation_policy(const sib_generation *g);

#endif

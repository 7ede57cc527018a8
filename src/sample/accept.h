/* sample/accept.h - which drafts the target accepts, and what is emitted.
 *
 *   window   [ pending  draft 1  draft 2  draft 3 ]        d = 3
 *   row            0        1        2        3            row j predicts draft j+1
 *
 * Match (the serving rule): row j is sampled as plain decoding would sample it, with
 * the history and the random key of its position; the sampled token is emitted, and while
 * it equals the next draft the walk goes on. The text is therefore the text without
 * drafts, for every drafter and depth.
 *
 * Rejection (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318): draft x is
 * accepted with probability min(1, p(x)/q(x)); at the first rejection one token is drawn
 * from max(p - q, 0), normalised; after d acceptances one from p. The text has the
 * distribution of plain decoding, not its bytes. q must be what x was really drawn from: for
 * a drafter that takes its best token, the one-hot of x.
 *
 * Used by spec/ and gen/. */
#ifndef SIB_SAMPLE_ACCEPT_H
#define SIB_SAMPLE_ACCEPT_H

#include "sample/sampler.h"
#include "sample/stop.h"

typedef enum sib_accept_rule { SIB_ACCEPT_MATCH, SIB_ACCEPT_REJECTION } sib_accept_rule;

typedef struct sib_window {
    const float *logits; /* [n_drafts + 1] rows of the verify forward                        */
    size_t stride;       /* floats from a row to the next, >= n_vocab                        */
    const int32_t *drafts;
    int n_drafts;
    const float *q;             /* rejection: [n_drafts][n_vocab] proposal probabilities, or NULL: one-hot */
    uint64_t emission;          /* emission index of row 0: tokens emitted before this round  */
    uint64_t budget;            /* how many tokens may still be emitted, >= 1                 */
    const sib_id_set *eos;      /* NULL: no token ends the text                               */
    const sib_grammar *grammar; /* NULL: none                                                 */
} sib_window;

/* What one walk did. The emitted tokens are in the caller's array: `accepted` drafts, then
 * the target's own token if the walk did not end on an accepted one. An end-of-sequence
 * token is the last of them; it counts as generated and is no content. */
typedef struct sib_walk {
    int accepted;     /* drafts that were accepted, 0..n_drafts                          */
    int n_emitted;    /* 1..n_drafts + 1                                                 */
    int32_t pending;  /* the token to feed next (correction or bonus); -1 when the text ended */
    bool saw_eos;
    bool out_of_budget;
    bool grammar_done;
} sib_walk;

/* tokens [n_drafts + 1]. Every emitted token is pushed on the sampler's history and given to
 * the grammar. After an error the state of both is undefined: drop the request. */
sib_status sib_accept(sib_sampler *s, sib_accept_rule rule, const sib_window *in, sib_sample *tokens, sib_walk *out,
                      sib_err *err);

#endif

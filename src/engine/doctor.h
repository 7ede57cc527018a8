/* engine/doctor.h - does a drafter fit a target, and does it pay?
 *
 * The check opens both on a device that only counts, so that a wrong pair is refused with the sentence that names what
 * does not fit before a weight is read. The measurement then decodes a built-in text greedily without and with the
 * drafter and times one round's parts:
 *
 *     plain    one row                                    1 token
 *     round    draft + verify of drafts + 1 rows          1 + accepted tokens
 *
 * A round pays when its tokens are more than (draft + verify) / plain: the break-even, also given as the share of
 * drafts that must be accepted. Users: cli/cmd_doctor.c; engine/bench.c for the costs. */
#ifndef SIB_ENGINE_DOCTOR_H
#define SIB_ENGINE_DOCTOR_H

#include "engine/engine_internal.h"

/* Medians in ms. */
typedef struct sib_draft_cost {
    double drafts;                /* mean of what the drafter gave when asked for `depth`  */
    double draft_ms;              /* propose, and settling one committed row               */
    double verify_ms;             /* forward of drafts + 1 rows with logits                */
    double plain_ms;              /* forward of one row                                    */
    double break_even_emitted;    /* tokens a round must emit                      */
    double break_even_acceptance; /* accepted / proposed that gives them; above 1: drafting cannot pay; 0: nothing was
                                     drafted */
} sib_draft_cost;

/* Costs of a round of `depth` drafts behind a context of random tokens. The engine has a drafter. */
sib_status sib_draft_cost_measure(const sib_engine *e, int depth, int repeats, sib_draft_cost *out, sib_err *err);

/* {"target":{"path","family"},"drafter":{"path","kind"},"draft_n","text","tokens","same_text","rounds","proposed","accepted",
 * "acceptance","mean_emitted","proposed_by_position":[],"accepted_by_position":[],"cost":{...},"expected_speedup","pays"}.
 * draft_n 0: the drafter's default; n_tokens: of each of the built-in answers. */
sib_status sib_doctor_json(sib_buf *out, const sib_options *o, int draft_n, int n_tokens, sib_err *err);

#endif

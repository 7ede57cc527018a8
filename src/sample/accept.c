/* sample/accept.c - see accept.h. */
#include "sample/accept.h"

/* The accept test's place in its stream; the residual draw uses the numbers of token ids. */
#define TEST_INDEX UINT32_MAX

/* One row under the rejection rule; `drafted` is -1 in the row after the last draft. */
static sib_status reject_row(sib_sampler *s, const sib_window *in, const float *logits, const float *q,
                             int32_t drafted, uint64_t emission, sib_sample *out, sib_err *err)
{
    sib_dist d;
    SIB_TRY(sib_sampler_dist(s, logits, emission, in->grammar, &d, err));
    if (drafted < 0) {
        sib_dist_report(&d, sib_dist_draw(&d, emission), out);
        return SIB_OK;
    }
    double p = sib_dist_prob(&d, drafted), u = sib_rng_uniform(sib_sampler_seed(s), SIB_RNG_ACCEPT, emission, TEST_INDEX);
    /* q(x) > 0 for a drawn x; one that underflowed to 0 gives the ratio 1. */
    double q_x = q ? (double)q[drafted] : 1;
    bool accept = p > 0 && u * q_x < p;
    sib_dist_report(&d, accept ? drafted : sib_dist_draw_residual(&d, emission, q, drafted), out);
    return SIB_OK;
}

sib_status sib_accept(sib_sampler *s, sib_accept_rule rule, const sib_window *in, sib_sample *tokens, sib_walk *out,
                      sib_err *err)
{
    int n_vocab = sib_sampler_vocab(s);
    *out = (sib_walk){.pending = -1};
    if (in->n_drafts < 0 || in->budget < 1 || in->stride < (size_t)n_vocab)
        return sib_fail(err, SIB_EARG, "verify window: %d drafts, budget %llu, rows of %zu for a vocabulary of %d", in->n_drafts,
                        (unsigned long long)in->budget, in->stride, n_vocab);
    for (int j = 0; j < in->n_drafts; j++)
        if (in->drafts[j] < 0 || in->drafts[j] >= n_vocab)
            return sib_fail(err, SIB_EARG, "draft %d: token id %d is outside the vocabulary of %d", j + 1, (int)in->drafts[j], n_vocab);

    for (int j = 0; j <= in->n_drafts; j++) {
        const float *logits = in->logits + (size_t)j * in->stride;
        const float *q = in->q && j < in->n_drafts ? in->q + (size_t)j * (size_t)n_vocab : NULL;
        int32_t drafted = j < in->n_drafts ? in->drafts[j] : -1;
        uint64_t emission = in->emission + (uint64_t)j;
        if (rule == SIB_ACCEPT_MATCH)
            SIB_TRY(sib_sampler_sample(s, logits, emission, in->grammar, &tokens[j], err));
        else
            SIB_TRY(reject_row(s, in, logits, q, drafted, emission, &tokens[j], err));

        int32_t id = tokens[j].id;
        SIB_TRY(sib_sampler_push(s, id, err));
        out->n_emitted = j + 1;
        out->accepted += id == drafted;
        out->saw_eos = sib_id_set_has(in->eos, id);
        out->out_of_budget = (uint64_t)out->n_emitted >= in->budget;
        if (in->grammar && !out->saw_eos) SIB_TRY(in->grammar->advance(in->grammar->self, id, &out->grammar_done, err));
        if (out->saw_eos || out->out_of_budget || out->grammar_done) return SIB_OK;
        if (id != drafted) {
            out->pending = id;
            return SIB_OK;
        }
    }
    return SIB_OK; /* not reached: the last row has no draft to equal */
}

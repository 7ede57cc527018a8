/* spec/policy.c - see policy.h. */
#include "spec/policy.h"

#define DECAY 0.85       /* of the acceptance counts, a round */
#define SMOOTH 0.2       /* weight of a new time             */
#define WORTH 1.03       /* drafting must beat plain decoding by this */
#define FIRST_PAUSE 16   /* rounds without drafting, doubled at every failed try */
#define LONGEST_PAUSE 512

void sib_policy_init(sib_draft_policy *p, sib_policy_kind kind, int depth)
{
    *p = (sib_draft_policy){.kind = kind, .depth = depth, .accepted = 3, .rejected = 2, .pause_length = FIRST_PAUSE};
}

/* Time of a k-row forward: measured, else from the nearest measured row counts. */
static double verify_cost(const sib_draft_policy *p, int k)
{
    if (p->verify_ms[k] > 0) return p->verify_ms[k];
    int below = k, above = k;
    while (below > 0 && p->verify_ms[below] <= 0) below--;
    while (above <= SIB_POLICY_DEPTHS && p->verify_ms[above] <= 0) above++;
    bool has_above = above <= SIB_POLICY_DEPTHS;
    if (below > 0 && has_above)
        return p->verify_ms[below] + (p->verify_ms[above] - p->verify_ms[below]) * (k - below) / (above - below);
    if (below > 0) return p->verify_ms[below]; /* optimistic: a depth never tried gets its try */
    return has_above ? p->verify_ms[above] : 0;
}

int sib_policy_next(sib_draft_policy *p)
{
    if (p->kind == SIB_POLICY_OFF || p->depth <= 0) return 0;
    if (p->kind == SIB_POLICY_FIXED) return p->depth;
    if (p->pause > 0) {
        p->pause--;
        return 0;
    }
    double plain = verify_cost(p, 1);
    if (p->verify_ms[1] <= 0 && p->rounds > 0) return 0; /* learn the price of a plain step */
    if (plain <= 0) return p->depth;
    double chance = p->accepted / (p->accepted + p->rejected), best = 1.0 / plain, tokens = 1, power = 1;
    int depth = 0;
    for (int k = 1; k <= p->depth; k++) {
        power *= chance;
        tokens += power;
        double rate = tokens / (verify_cost(p, k + 1) + k * p->draft_ms);
        if (rate > best * (depth == 0 ? WORTH : 1.0 + 1e-9)) {
            best = rate;
            depth = k;
        }
    }
    if (depth == 0) {
        p->pause = p->pause_length;
        p->pause_length = p->pause_length * 2 < LONGEST_PAUSE ? p->pause_length * 2 : LONGEST_PAUSE;
        p->accepted = 3; /* the next try starts without the old verdict */
        p->rejected = 2;
        for (int k = 2; k <= SIB_POLICY_DEPTHS; k++) p->verify_ms[k] = 0;
    }
    return depth;
}

static void smooth(double *average, double value)
{
    *average = *average > 0 ? *average + SMOOTH * (value - *average) : value;
}

void sib_policy_learn(sib_draft_policy *p, int d, int a, int e, double draft_ms, double verify_ms)
{
    p->emitted += (uint64_t)e;
    smooth(&p->verify_ms[d + 1], verify_ms);
    if (d == 0) return;
    p->rounds++;
    p->proposed += (uint64_t)d;
    p->kept += (uint64_t)a;
    for (int i = 0; i < d; i++) {
        p->proposed_at[i]++;
        p->kept_at[i] += i < a;
    }
    smooth(&p->draft_ms, draft_ms / d);
    p->accepted = DECAY * p->accepted + a;
    p->rejected = DECAY * p->rejected + (a < d); /* what follows the first miss was never judged */
    if (a == d) p->pause_length = FIRST_PAUSE;
}

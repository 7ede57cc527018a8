/* spec/policy.h - how many tokens to draft next, and the figures about it.
 *
 * Any answer is safe: the depth never changes the text. `fixed` asks for the same depth each
 * round. `auto` weighs measured acceptance against the measured cost of a k-row forward
 * (speculative.md 7.2): for depth k
 *
 *     rate(k) = (1 + p + ... + p^k) / (verify(k+1) + k * draft)      in units of one plain step
 *
 * and takes the smallest k with the best rate; when no k beats plain decoding by 3 % it stops
 * drafting and tries again after a while. */
#ifndef SIB_SPEC_POLICY_H
#define SIB_SPEC_POLICY_H

#include "base/status.h"

typedef enum sib_policy_kind { SIB_POLICY_AUTO, SIB_POLICY_FIXED, SIB_POLICY_OFF } sib_policy_kind;

#define SIB_POLICY_DEPTHS 64

typedef struct sib_draft_policy {
    sib_policy_kind kind;
    int depth; /* wanted or largest depth, 0..64 */
    double accepted, rejected; /* decayed counts */
    double verify_ms[SIB_POLICY_DEPTHS + 2]; /* [k]: smoothed time of a k-row forward, 0: unknown */
    double draft_ms;                         /* of one drafted token */
    int pause, pause_length;                 /* rounds left without drafting */
    /* totals */
    uint64_t rounds, proposed, kept, emitted;
    uint64_t proposed_at[SIB_POLICY_DEPTHS], kept_at[SIB_POLICY_DEPTHS];
} sib_draft_policy;

void sib_policy_init(sib_draft_policy *p, sib_policy_kind kind, int depth);
/* Depth of the next round, 0..depth. */
int sib_policy_next(sib_draft_policy *p);
/* What the round did: d drafts, a of them accepted, e tokens emitted; times in ms. */
void sib_policy_learn(sib_draft_policy *p, int d, int a, int e, double draft_ms, double verify_ms);

#endif

/* drafters/needs.c - does a target offer what a drafter needs? */
#include "drafters/drafter.h"

sib_status sib_needs_check(const sib_needs *n, const char *kind, const sib_model *target, sib_err *err)
{
    const struct {
        const char *name;
        bool needed;
        const void *offered;
    } ports[] = {{"taps", n->taps, target->offers.taps}, {"donors", n->donors, target->offers.donors}, {"vocab", n->vocab, target->offers.vocab}, {"mtp", n->mtp, target->offers.mtp}};
    for (size_t i = 0; i < SIB_COUNT(ports); i++)
        if (ports[i].needed && !ports[i].offered)
            return sib_fail(err, SIB_EARG, "%s drafter: target graph does not provide %s (this model is %s)", kind, ports[i].name, target->facts.family);
    const struct {
        const char *name;
        int needed, has;
    } facts[] = {{"a hidden width of", n->hidden_width, target->facts.hidden}, {"a vocabulary of", n->n_vocab, target->facts.n_vocab}};
    for (size_t i = 0; i < SIB_COUNT(facts); i++)
        if (facts[i].needed && facts[i].needed != facts[i].has)
            return sib_fail(err, SIB_EARG, "%s drafter was made for a target with %s %d; this model has %d", kind, facts[i].name, facts[i].needed, facts[i].has);
    if (n->n_layers && n->n_layers != target->facts.n_layers)
        return sib_fail(err, SIB_EARG, "%s drafter was trained for a %d-layer target; this model has %d layers — wrong (target, drafter) pairing", kind, n->n_layers, target->facts.n_layers);
    for (int i = 0; i < n->n_taps; i++)
        if (n->tap_layers[i] > target->facts.n_layers || n->tap_layers[i] < -1)
            return sib_fail(err, SIB_EARG, "%s drafter taps layer %d; this model has %d layers", kind, n->tap_layers[i], target->facts.n_layers);
    return SIB_OK;
}

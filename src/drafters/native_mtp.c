/* drafters/native_mtp.c - the target's own multi-token-prediction head as a drafter (glm_moe_dsa.md 7).
 *
 *   position   ...  p-2   p-1   P = pending
 *   head row        (token p-1, h p-2)  (pending, h p-1) -> d1   (d1, out) -> d2   (d2, out) -> d3
 *                   '---- true history ----------------'         '---- guesses, dropped ----'
 *
 * A true row holds a hidden state of the target; the first row of a draft is one, so only the rows behind it are dropped, and
 * settle appends the rows of the accepted drafts with the hidden states that verification gave.
 *
 *   history   full     rows of the prompt too, as most engines do: higher acceptance
 *             decode   the head's cache starts empty behind the prompt (option mtp_decode_only)
 *   chain     out      what the head's norm gave is the next step's hidden (the reference)
 *             raw      what came before that norm (option mtp_raw_chain) */
#include "drafters/native_mtp.h"

#include "ports/mtp.h"

#include <stdlib.h>

typedef struct native {
    sib_drafter base; /* first */
    sib_model *target;
    sib_device *dev;
    const sib_mtp_port *port;
    sib_needs needs;
    bool decode_only, raw_chain;
    int n_seqs, hidden;
    float *logits;        /* device [n_seqs][n_vocab] */
    size_t logits_bytes;
    sib_mtp_part *parts;  /* [n_seqs] */
    int32_t *tokens;      /* [n_seqs] */
} native;

struct sib_draft_state {
    sib_mtp_seq *seq;
    float *anchor;    /* device [hidden]: the target's hidden at position processed - 1 */
    int processed;    /* positions told so far; 0: nothing known, and no anchor */
    bool first_done;  /* the row (pending, anchor) is in the cache: a draft began with it */
    bool behind_prompt;
};

static native *self(const sib_drafter *d)
{
    return (native *)(uintptr_t)d;
}

/* ---- propose -------------------------------------------------------------------------------- */

static bool can_draft(const sib_propose *lane)
{
    return lane->state->processed == lane->position && lane->position > 0 && lane->max > 0;
}

/* Step `k` of every lane that still wants a draft: rows in lane order. tokens holds the inputs, then the drafts. */
static sib_status draft_step(native *d, sib_propose *lanes, int n, int k, sib_mtp_out *out, sib_err *err)
{
    int rows = 0, hidden = d->hidden;
    for (int i = 0, before = 0; i < n; i++) {
        if (!can_draft(&lanes[i])) continue;
        if (k < lanes[i].max) { /* its row of the step before lies at `before` */
            const float *chained = k == 0 ? lanes[i].state->anchor : (d->raw_chain ? out->raw : out->out) + (size_t)before * (size_t)hidden;
            d->tokens[rows] = k == 0 ? lanes[i].pending : lanes[i].ids[k - 1];
            d->parts[rows] = (sib_mtp_part){lanes[i].state->seq, &d->tokens[rows], chained, 1};
            rows++;
        }
        before += k > 0 && k - 1 < lanes[i].max;
    }
    SIB_TRY(d->port->step(d->target, d->parts, rows, out, err));
    d->port->head(d->target, d->logits, out->out, rows);
    d->dev->ops->argmax(d->dev, d->tokens, d->logits, rows, d->target->facts.n_vocab);
    for (int i = 0, r = 0; i < n; i++)
        if (can_draft(&lanes[i]) && k < lanes[i].max) {
            lanes[i].ids[k] = d->tokens[r++];
            lanes[i].n = k + 1;
        }
    return SIB_OK;
}

static sib_status propose(sib_drafter *drafter, sib_propose *lanes, int n, sib_err *err)
{
    native *d = self(drafter);
    sib_mtp_out out = {0};
    sib_status s = SIB_OK;
    int steps = 0;
    if (n > d->n_seqs) return sib_fail(err, SIB_ECAPACITY, "native-mtp drafter: %d requests, planned are %d", n, d->n_seqs);
    for (int i = 0; i < n; i++) {
        sib_draft_state *state = lanes[i].state;
        lanes[i].n = 0;
        if (!can_draft(&lanes[i])) continue;
        if (lanes[i].max > steps) steps = lanes[i].max;
        if (state->first_done) SIB_TRY(d->port->truncate(d->target, state->seq, d->port->length(d->target, state->seq) - 1, err)); /* asked again */
        state->first_done = false;
    }
    for (int k = 0; k < steps && s == SIB_OK; k++) s = draft_step(d, lanes, n, k, &out, err);
    for (int i = 0; i < n; i++) {
        sib_draft_state *state = lanes[i].state;
        if (!can_draft(&lanes[i])) continue;
        /* The rows behind the first one took guesses for hidden states. After a failure the first goes as well. */
        int rows = d->port->length(d->target, state->seq) - lanes[i].n + (s == SIB_OK);
        sib_status back = d->port->truncate(d->target, state->seq, rows, s == SIB_OK ? err : NULL);
        state->first_done = s == SIB_OK;
        if (s == SIB_OK) s = back;
    }
    return s;
}

/* ---- settle --------------------------------------------------------------------------------- */

static sib_status settle(sib_drafter *drafter, const sib_settle *lanes, int n, sib_err *err)
{
    native *d = self(drafter);
    const sib_ops *op = d->dev->ops;
    /* First the row (first token, anchor) where no draft has put it there, then the rows inside the block. */
    for (int pass = 0; pass < 2; pass++) {
        int parts = 0;
        for (int i = 0; i < n; i++) {
            const sib_settle *l = &lanes[i];
            sib_draft_state *s = l->state;
            if (l->n < 1 || (d->decode_only && !s->behind_prompt)) continue;
            bool joined = s->processed > 0 && s->processed == l->pos0;
            if (pass == 0 && joined && !s->first_done) d->parts[parts++] = (sib_mtp_part){s->seq, l->ids, s->anchor, 1};
            if (pass == 1 && l->n > 1) d->parts[parts++] = (sib_mtp_part){s->seq, l->ids + 1, l->hidden, l->n - 1};
        }
        if (parts > 0) SIB_TRY(d->port->step(d->target, d->parts, parts, NULL, err));
    }
    for (int i = 0; i < n; i++) {
        const sib_settle *l = &lanes[i];
        if (l->n < 1) continue;
        op->copy_rows(d->dev, l->state->anchor, d->hidden, l->hidden + (size_t)(l->n - 1) * (size_t)d->hidden, d->hidden, 1, d->hidden);
        l->state->processed = l->pos0 + l->n;
        l->state->first_done = false;
        l->state->behind_prompt = !l->prompt;
    }
    return SIB_OK;
}

/* ---- states --------------------------------------------------------------------------------- */

/* A true row needs the hidden state before it, and only the last one is held: going back empties the history. */
static sib_status truncate_to(sib_drafter *drafter, sib_draft_state *s, int length, sib_err *err)
{
    native *d = self(drafter);
    bool same = s->processed == length;
    s->behind_prompt = false;
    if (same && !d->decode_only) return SIB_OK;
    SIB_TRY(d->port->truncate(d->target, s->seq, 0, err));
    s->first_done = false;
    if (same) return SIB_OK;
    s->processed = 0;
    return length == 0 ? SIB_OK : sib_fail(err, SIB_ESTATE, "native-mtp drafter holds the last hidden state only");
}

static void state_free(sib_drafter *drafter, sib_draft_state *s)
{
    native *d = self(drafter);
    if (!s) return;
    if (s->anchor) d->dev->ops->release(d->dev, s->anchor, (size_t)d->hidden * sizeof(float));
    d->port->seq_free(d->target, s->seq);
    free(s);
}

static sib_status state_new(sib_drafter *drafter, sib_draft_state **out, sib_err *err)
{
    native *d = self(drafter);
    void *anchor = NULL;
    *out = NULL;
    sib_draft_state *s = calloc(1, sizeof *s);
    if (!s) return sib_nomem(err, "draft state");
    sib_status status = d->port->seq_new(d->target, &s->seq, err);
    if (status == SIB_OK) status = d->dev->ops->alloc(d->dev, (size_t)d->hidden * sizeof(float), &anchor, err);
    s->anchor = anchor;
    if (status != SIB_OK) {
        state_free(drafter, s);
        return status;
    }
    *out = s;
    return SIB_OK;
}

static const sib_needs *needs(const sib_drafter *d)
{
    return &self(d)->needs;
}

static void native_free(sib_drafter *drafter)
{
    native *d = self(drafter);
    if (!d) return;
    if (d->logits) d->dev->ops->release(d->dev, d->logits, d->logits_bytes);
    free(d->parts);
    free(d->tokens);
    free(d);
}

static const sib_drafter_ops native_ops = {"native-mtp", native_free, needs, state_new, state_free, truncate_to, propose, settle};

static sib_status build(native *d, sib_model *target, const sib_drafter_options *o, sib_err *err)
{
    void *logits;
    d->base = (sib_drafter){.ops = &native_ops, .max_draft = o->max_draft, .default_draft = 3};
    d->target = target;
    d->dev = target->device;
    d->port = target->offers.mtp;
    d->hidden = target->facts.hidden;
    d->decode_only = o->mtp_decode_only;
    d->raw_chain = o->mtp_raw_chain;
    d->n_seqs = o->n_seqs;
    d->needs = (sib_needs){.hidden = true, .mtp = true};
    d->parts = calloc((size_t)o->n_seqs, sizeof *d->parts);
    d->tokens = calloc((size_t)o->n_seqs, sizeof *d->tokens);
    if (!d->parts || !d->tokens) return sib_nomem(err, "native-mtp drafter");
    d->logits_bytes = (size_t)o->n_seqs * (size_t)target->facts.n_vocab * sizeof(float);
    SIB_TRY(d->dev->ops->alloc(d->dev, d->logits_bytes, &logits, err));
    d->logits = logits;
    return SIB_OK;
}

sib_status sib_native_mtp_open(sib_drafter **out, sib_model *target, const sib_drafter_options *o, sib_err *err)
{
    *out = NULL;
    if (!target->offers.mtp) return sib_fail(err, SIB_EUNSUPPORTED, "native GLM-5.2 MTP binds only to the GLM-5.2 graph that declares it");
    native *d = calloc(1, sizeof *d);
    if (!d) return sib_nomem(err, "native-mtp drafter");
    sib_status s = build(d, target, o, err);
    if (s != SIB_OK) {
        native_free(&d->base);
        return s;
    }
    *out = &d->base;
    return SIB_OK;
}

/* tools/golden/block_case.c - see block_case.h. */
#include "block_case.h"

#include "fake_target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sib_status open_target(block_case *c, sib_drafter_needs_fn needs_of, sib_err *err)
{
    sib_needs needs;
    int layers[SIB_MAX_TAPS];
    SIB_TRY(needs_of(&needs, layers, sib_checkpoint_config(c->files), err));
    sib_facts facts = {.family = "case",
                       .n_vocab = needs.n_vocab,
                       .hidden = needs.hidden_width,
                       .n_layers = needs.n_layers,
                       .n_ctx = 256,
                       .max_rows = 128,
                       .max_logits = 128,
                       .embed_scale = 1};
    int64_t n_embed = 0, n_head = 0;
    float *embed = golden_floats(c->g, &n_embed, "target.embed_tokens"),
          *head = golden_floats(c->g, &n_head, "target.lm_head");
    golden_input(c->g, "target.embed_tokens");
    golden_input(c->g, "target.lm_head");
    int64_t want = (int64_t)facts.n_vocab * facts.hidden;
    sib_status s = (embed && n_embed != want) || (head && n_head != want)
                       ? sib_fail(err, SIB_EFORMAT, "target.embed_tokens and target.lm_head must be [%d, %d]",
                                  facts.n_vocab, facts.hidden)
                       : SIB_OK;
    if (s == SIB_OK) s = fake_target_new(&c->target, c->g->device, &facts, embed, head, err);
    free(embed);
    free(head);
    c->width = needs.n_taps * needs.hidden_width;
    return s;
}

static sib_status load_taps(block_case *c, sib_err *err)
{
    int64_t n = 0;
    float *taps = golden_floats(c->g, &n, "taps");
    golden_input(c->g, "taps");
    void *dev = NULL;
    sib_status s = taps && n % c->width == 0 ? SIB_OK : sib_fail(err, SIB_EFORMAT, "taps must be rows of %d", c->width);
    if (s == SIB_OK) s = c->g->device->ops->alloc(c->g->device, (size_t)n * sizeof *taps, &dev, err);
    if (s == SIB_OK) c->g->device->ops->upload(c->g->device, dev, taps, (size_t)n * sizeof *taps);
    c->taps = dev;
    c->n_rows = n / c->width;
    free(taps);
    return s;
}

sib_status block_case_open(block_case *c, golden *g, sib_drafter_needs_fn needs, sib_drafter_open_fn open, sib_err *err)
{
    *c = (block_case){.g = g};
    SIB_TRY(sib_checkpoint_open(&c->files, g->dir, NULL, err));
    SIB_TRY(open_target(c, needs, err));
    SIB_TRY(load_taps(c, err));
    sib_loader l = {.dev = g->device, .files = c->files};
    SIB_TRY(open(&c->drafter, &l, c->target, &(sib_drafter_options){.n_seqs = 2, .max_draft = SIB_MAX_DRAFT}, err));
    return block_case_restart(c, err);
}

void block_case_close(block_case *c)
{
    record_deinit(&c->record);
    if (c->state) c->drafter->ops->state_free(c->drafter, c->state);
    if (c->drafter) c->drafter->ops->free(c->drafter);
    if (c->target) c->target->ops->free(c->target);
    if (c->taps)
        c->g->device->ops->release(c->g->device, c->taps, (size_t)c->n_rows * (size_t)c->width * sizeof(float));
    sib_checkpoint_free(c->files);
}

sib_status block_case_restart(block_case *c, sib_err *err)
{
    record_deinit(&c->record);
    if (c->state) c->drafter->ops->state_free(c->drafter, c->state);
    c->state = NULL;
    return c->drafter->ops->state_new(c->drafter, &c->state, err);
}

sib_status block_case_settle(block_case *c, int first, int n, sib_err *err)
{
    if (first < 0 || n < 0 || first + n > c->n_rows)
        return sib_fail(err, SIB_EFORMAT, "rows %d to %d of %lld taps", first, first + n, (long long)c->n_rows);
    sib_settle s = {
        .state = c->state, .n = n, .pos0 = first, .next = -1, .taps = c->taps + (size_t)first * (size_t)c->width};
    record_settle(&c->record);
    sib_block_trace(c->drafter, record_trace(&c->record));
    sib_status status = c->drafter->ops->settle(c->drafter, &s, 1, err);
    sib_block_trace(c->drafter, (sib_trace){0});
    return status;
}

sib_status block_case_round(block_case *c, const char *prefix, int32_t pending, int max, sib_err *err)
{
    golden *g = c->g;
    int32_t got[SIB_MAX_DRAFT], again[SIB_MAX_DRAFT], ids[SIB_BLOCK_ROWS];
    int position = sib_block_context(c->state);
    sib_propose p = {.state = c->state, .pending = pending, .position = position, .max = max, .ids = got};
    SIB_TRY(c->drafter->ops->propose(c->drafter, &p, 1, err));
    int n = p.n;
    record_round(&c->record);
    sib_block_trace(c->drafter, record_trace(&c->record));
    p.ids = again;
    sib_status s = c->drafter->ops->propose(c->drafter, &p, 1, err); /* the traced round takes other paths */
    sib_block_trace(c->drafter, (sib_trace){0});
    SIB_TRY(s);
    if (p.n != n || memcmp(got, again, (size_t)n * sizeof *got))
        return sib_fail(err, SIB_ESTATE, "%stokens: a traced round drafts other tokens", prefix);
    record_compare(g, &c->record, prefix);
    char key[128];
    (void)snprintf(key, sizeof key, "%stokens", prefix);
    golden_compare_ids(g, key, got, n);
    (void)snprintf(key, sizeof key, "%sfirst_position", prefix);
    golden_compare_ids(g, key, &position, 1);
    (void)snprintf(key, sizeof key, "%smargin", prefix);
    golden_input(g, key);
    (void)snprintf(key, sizeof key, "%scontext_rows", prefix);
    golden_input(g, key);
    int64_t n_ids = 0;
    const float *seen = record_get(&c->record, &n_ids, true, "draft.ids");
    (void)snprintf(key, sizeof key, "%sids", prefix);
    for (int i = 0; seen && i < n_ids; i++) ids[i] = (int32_t)seen[i];
    if (seen) golden_compare_ids(g, key, ids, n_ids);
    return SIB_OK;
}

void block_case_context(block_case *c)
{
    int n = sib_block_context(c->state);
    char key[64];
    for (int i = 0;; i++) {
        (void)snprintf(key, sizeof key, "context.layer.%d.keys", i);
        if (!golden_has(c->g, "%s", key)) return;
        int64_t count = 0;
        free(golden_floats(c->g, &count, "%s", key));
        float *k = malloc((size_t)count * sizeof *k), *v = malloc((size_t)count * sizeof *v);
        if (k && v && n > 0 && count % n == 0) {
            sib_block_read(c->drafter, c->state, i, 0, n, k, v);
            golden_compare(c->g, key, k, count);
            (void)snprintf(key, sizeof key, "context.layer.%d.values", i);
            golden_compare(c->g, key, v, count);
        } else {
            golden_fail(c->g, key, "another number of rows");
        }
        free(k);
        free(v);
    }
}

/* tools/golden/dflash.c - DFlash v1 and 2: single blocks after N context rows, then rounds scripted by `accepted`. */
#include "block_case.h"

#include "drafters/dflash2.h"

#include <stdio.h>
#include <stdlib.h>

/* What is not a plain stage: ids, and the best token of each row before the selector. */
static void compare_choice(golden *g, const record *r, const char *prefix, int n_vocab)
{
    int64_t n = 0;
    int32_t ids[SIB_BLOCK_ROWS * 64];
    char key[128];
    const float *logits = record_get(r, &n, true, "draft.logits");
    int64_t rows = logits ? n / n_vocab : 0;
    for (int64_t i = 0; i < rows && i < SIB_BLOCK_ROWS; i++) {
        ids[i] = 0;
        for (int j = 1; j < n_vocab; j++)
            if (logits[i * n_vocab + j] > logits[i * n_vocab + ids[i]]) ids[i] = j;
    }
    (void)snprintf(key, sizeof key, "%sargmax", prefix);
    golden_compare_ids(g, key, ids, rows);
    const float *candidates = record_get(r, &n, true, "draft.selector.ids");
    (void)snprintf(key, sizeof key, "%sselector.candidates", prefix);
    for (int64_t i = 0; candidates && i < n; i++) ids[i] = (int32_t)candidates[i];
    if (candidates) golden_compare_ids(g, key, ids, n);
    (void)snprintf(key, sizeof key, "%sselector.margin", prefix);
    golden_input(g, key);
}

static sib_status round_of(block_case *c, const char *prefix, int32_t pending, int max, sib_err *err)
{
    SIB_TRY(block_case_round(c, prefix, pending, max, err));
    compare_choice(c->g, &c->record, prefix, c->target->facts.n_vocab);
    return SIB_OK;
}

/* single.N.G.*: one block of G rows after N rows of context. */
static sib_status singles(block_case *c, int32_t pending, sib_err *err)
{
    for (int n = 0; n <= c->n_rows; n++)
        for (int rows = 2; rows <= SIB_BLOCK_ROWS; rows++) {
            char prefix[48];
            (void)snprintf(prefix, sizeof prefix, "single.%d.%d.", n, rows);
            if (!golden_has(c->g, "%stokens", prefix)) continue;
            SIB_TRY(block_case_restart(c, err));
            SIB_TRY(block_case_settle(c, 0, n, err));
            SIB_TRY(round_of(c, prefix, pending, rows - 1, err));
        }
    return SIB_OK;
}

sib_status golden_dflash(golden *g, sib_err *err)
{
    block_case c;
    sib_status s = block_case_open(&c, g, sib_dflash2_needs, sib_dflash2_open, err);
    int64_t n_rounds = 0, n_accepted = 0, n_context = 0;
    int32_t *pending = golden_ints(g, &n_rounds, "pending"), *accepted = golden_ints(g, &n_accepted, "accepted"),
            *context = golden_ints(g, &n_context, "round_context");
    golden_input(g, "pending");
    golden_input(g, "accepted");
    golden_input(g, "round_context");
    if (s == SIB_OK && (!pending || !accepted || !context || n_rounds < 1 || n_accepted < n_rounds))
        s = sib_fail(err, SIB_EFORMAT, "pending, accepted and round_context are needed");
    if (s == SIB_OK) s = singles(&c, pending[0], err);
    if (s == SIB_OK) s = block_case_restart(&c, err);
    for (int r = 0, done = 0; s == SIB_OK && r < n_rounds; r++) {
        char prefix[32];
        int rows = r == 0 ? context[0] : accepted[r - 1] + 1;
        (void)snprintf(prefix, sizeof prefix, "round.%d.", r);
        s = block_case_settle(&c, done, rows, err);
        if (s == SIB_OK) s = round_of(&c, prefix, pending[r], c.drafter->max_draft, err);
        done += rows;
    }
    if (s == SIB_OK) block_case_context(&c);
    free(pending);
    free(accepted);
    free(context);
    block_case_close(&c);
    return s;
}

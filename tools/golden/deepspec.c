/* tools/golden/deepspec.c - DeepSpec drafters: random taps, rounds scripted by `accepted`. */
#include "block_case.h"

#include "drafters/deepspec.h"

#include <stdio.h>
#include <stdlib.h>

/* The first confidence below each threshold of the notes. */
static void compare_lengths(golden *g, const record *r, const char *prefix)
{
    const json_t *list = json_object_get(g->notes, "thresholds");
    int64_t n = 0;
    const float *confidence = record_get(r, &n, true, "draft.confidence");
    int32_t lengths[64];
    size_t count = json_array_size(list);
    char key[128];
    (void)snprintf(key, sizeof key, "%slength_at_threshold", prefix);
    if (!golden_has(g, "%s", key) || !confidence || count > SIB_COUNT(lengths)) return;
    for (size_t i = 0; i < count; i++) {
        float t = (float)json_number_value(json_array_get(list, i));
        lengths[i] = t > 0 ? sib_confident_length(confidence, (int)n, 0, NULL, 0, t) : (int32_t)n;
    }
    golden_compare_ids(g, key, lengths, (int64_t)count);
}

sib_status golden_deepspec(golden *g, sib_err *err)
{
    block_case c;
    golden_input(g, "embed_scale");
    sib_status s = block_case_open(&c, g, sib_deepspec_needs, sib_deepspec_open, err);
    int64_t n_rounds = 0, n_rows = 0;
    int32_t *pending = golden_ints(g, &n_rounds, "pending");
    golden_input(g, "pending");
    golden_input(g, "accepted");
    if (s == SIB_OK && !pending) s = sib_fail(err, SIB_EFORMAT, "pending is needed");
    for (int r = 0; s == SIB_OK && r < n_rounds; r++) {
        char prefix[32];
        (void)snprintf(prefix, sizeof prefix, "round.%d.", r);
        int32_t *rows = golden_ints(g, &n_rows, "%scontext_rows", prefix);
        if (!rows || n_rows != 2) {
            s = sib_fail(err, SIB_EFORMAT, "%scontext_rows is needed", prefix);
        } else {
            s = block_case_settle(&c, rows[0], rows[1] - rows[0], err);
            if (s == SIB_OK) s = block_case_round(&c, prefix, pending[r], c.drafter->max_draft, err);
            if (s == SIB_OK) compare_lengths(g, &c.record, prefix);
        }
        free(rows);
    }
    if (s == SIB_OK) block_case_context(&c);
    free(pending);
    block_case_close(&c);
    return s;
}

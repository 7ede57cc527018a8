/* cli/json_out.c - see json_out.h. */
#include "cli/json_out.h"

#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

json_t *cli_json_text(const char *p, size_t n)
{
    sib_str s = {p ? p : "", n};
    if (sib_utf8_valid(s)) return json_stringn_nocheck(s.p, s.n);
    sib_buf fixed = {0};
    for (size_t i = 0, len; i < n; i += len) {
        if (sib_utf8_next(p + i, n - i, &len) == SIB_UTF8_BAD)
            sib_buf_addz(&fixed, "\xef\xbf\xbd");
        else
            sib_buf_add(&fixed, p + i, len);
    }
    json_t *v = fixed.failed ? NULL : json_stringn_nocheck(fixed.p, fixed.n);
    sib_buf_deinit(&fixed);
    return v;
}

json_t *cli_json_real(double v)
{
    char text[40];
    if (!isfinite(v)) return json_null();
    (void)snprintf(text, sizeof text, "%.6g", v); /* a measurement has no more digits than that */
    return json_real(strtod(text, NULL));
}

json_t *cli_json_ids(const int32_t *ids, size_t n)
{
    json_t *a = json_array();
    for (size_t i = 0; a && i < n; i++) {
        if (json_array_append_new(a, json_integer(ids[i])) == 0) continue;
        json_decref(a);
        return NULL;
    }
    return a;
}

bool cli_json_set(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new_nocheck(object, key, value) == 0;
}

sib_status cli_json_print(json_t *object, sib_err *err)
{
    char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(object);
    if (!text) return sib_nomem(err, "JSON output");
    (void)puts(text);
    free(text);
    return SIB_OK;
}

json_t *cli_json_speculation(const sib_stats *s, const char *drafter)
{
    int depth = SIB_MAX_DRAFT;
    while (depth > 0 && s->proposed_by_position[depth - 1] == 0) depth--;
    json_t *accepted = cli_json_ids(s->accepted_by_position, (size_t)depth);
    json_t *proposed = cli_json_ids(s->proposed_by_position, (size_t)depth);
    return json_pack("{s:s?,s:i,s:i,s:i,s:o,s:o,s:o}", "drafter", drafter, "rounds", s->rounds, "proposed", s->proposed,
                     "accepted", s->accepted, "accepted_by_position", accepted, "proposed_by_position", proposed,
                     "mean_emitted", cli_json_real(s->mean_emitted));
}

json_t *cli_json_diffusion(const sib_stats *s)
{
    return json_pack("{s:i,s:i,s:o}", "canvases", s->canvases, "steps", s->steps, "tokens_per_step",
                     cli_json_real(s->tokens_per_step));
}

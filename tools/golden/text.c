/* tools/golden/text.c - prefill stages, greedy decoding and matrix probes of an autoregressive model. */
#include "golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a call is fed with beside its ids: a picture's rows. */
typedef struct prompt {
    const char *prefix; /* of its keys */
    const int32_t *ids;
    int n;
    const sib_soft *soft;
    int n_soft;
} prompt;

static sib_part part_of(const prompt *p, sib_seq *seq, int n_logits)
{
    return (sib_part){.seq = seq, .ids = p->ids, .n_rows = p->n, .n_logits = n_logits, .soft = p->soft, .n_soft = p->n_soft};
}

/* PREFIXvisible.KIND [n][n]: 1 where a row sees a position, from the ranges that the model traces. */
static sib_status compare_visible(golden *g, const golden_stages *s, const prompt *p, sib_err *err)
{
    static const char *const kinds[] = {"sliding_attention", "full_attention"};
    for (int k = 0; k < 2; k++) {
        char key[128];
        (void)snprintf(key, sizeof key, "%svisible.%s", p->prefix, kinds[k]);
        const golden_stage *st = golden_stage_find(s, "visible.%d", k);
        if (!golden_has(g, "%s", key)) continue;
        if (!st || st->n != 2 * p->n) {
            golden_fail(g, key, "the model has no such stage");
            continue;
        }
        int32_t *see = calloc((size_t)p->n * (size_t)p->n, sizeof *see);
        if (!see) return sib_nomem(err, key);
        for (int r = 0; r < p->n; r++)
            for (int c = (int)st->values[2 * r]; c < (int)st->values[2 * r + 1] && c < p->n; c++) see[r * p->n + c] = 1;
        golden_compare_ids(g, key, see, (int64_t)p->n * p->n);
        free(see);
    }
    return SIB_OK;
}

/* Some cases keep the stages of the prompt's last rows only: [1, rows, width] says how many. */
static void compare_tail(golden *g, const char *key, const float *values, int64_t n)
{
    const sib_tensor_info *t = golden_find(g, "%s", key);
    int64_t held = t ? sib_tensor_elements(t) : n;
    if (held > n || held == 0) held = n;
    golden_compare(g, key, values + n - held, held);
}

static sib_status prefill(golden *g, sib_model *m, sib_seq *seq, const prompt *p, sib_err *err)
{
    golden_stages *s = calloc(1, sizeof *s);
    if (!s) return sib_nomem(err, "stages");
    sib_part part = part_of(p, seq, p->n);
    sib_forward_out out;
    m->trace = (sib_trace){golden_collect, s};
    sib_status status = m->ops->forward(m, &part, 1, &out, err);
    m->trace = (sib_trace){0};
    if (status == SIB_OK) status = m->offers.keep->keep(m, seq, p->n, err);
    for (int i = 0; status == SIB_OK && i <= m->facts.n_layers; i++) {
        char key[128];
        (void)snprintf(key, sizeof key, "%sprefill.hidden.%d", p->prefix, i);
        const golden_stage *st = golden_stage_find(s, "hidden.%d", i);
        if (!golden_has(g, "%s", key)) continue;
        if (st)
            compare_tail(g, key, st->values, st->n);
        else
            golden_fail(g, key, "the model has no such stage");
    }
    if (status == SIB_OK) {
        char key[128];
        (void)snprintf(key, sizeof key, "%sprefill.logits", p->prefix);
        compare_tail(g, key, out.logits, (int64_t)p->n * m->facts.n_vocab);
        status = compare_visible(g, s, p, err);
    }
    golden_stages_free(s);
    return status;
}

/* Feeds the reference's tokens; at each position the logits are compared and the argmax (end ids
 * masked, as the reference suppressed them) must be the token unless its margin is under 1e-3. */
static sib_status greedy(golden *g, sib_model *m, sib_seq *seq, const float *first, const char *prefix, const int32_t *eos, int n_eos, sib_err *err)
{
    int64_t n = 0;
    int32_t *tokens = golden_ints(g, &n, "%sgreedy.tokens", prefix);
    float *margin = golden_floats(g, NULL, "%sgreedy.margin", prefix);
    if (!tokens) return SIB_OK;
    int v = m->facts.n_vocab, wrong = 0, ties = 0;
    float *all = malloc((size_t)n * (size_t)v * sizeof *all), *row = malloc((size_t)v * sizeof *row);
    sib_status status = all && row ? SIB_OK : sib_nomem(err, "logits");
    double worst_margin = 0;
    for (int64_t i = 0; status == SIB_OK && i < n; i++) {
        sib_forward_out out = {.logits = first};
        if (i > 0) {
            sib_part part = {.seq = seq, .ids = tokens + i - 1, .n_rows = 1, .n_logits = 1};
            status = m->ops->forward(m, &part, 1, &out, err);
            if (status == SIB_OK) status = m->offers.keep->keep(m, seq, 1, err);
            if (status != SIB_OK) break;
        }
        memcpy(all + i * v, out.logits, (size_t)v * sizeof *all);
        memcpy(row, out.logits, (size_t)v * sizeof *row);
        for (int e = 0; e < n_eos; e++)
            if (eos[e] >= 0 && eos[e] < v) row[eos[e]] = -INFINITY;
        int best = 0;
        for (int j = 1; j < v; j++)
            if (row[j] > row[best]) best = j;
        if (best == tokens[i]) continue;
        if (margin && margin[i] < 1e-3f) {
            ties++;
        } else {
            wrong++;
            if (margin) worst_margin = fmax(worst_margin, margin[i]);
        }
    }
    if (status == SIB_OK) {
        char key[128];
        (void)snprintf(key, sizeof key, "%sgreedy.logits", prefix);
        /* The reference masks its end ids before it stores the logits of cases that have them at -inf. */
        if (golden_has(g, "%s", key)) golden_compare(g, key, all, n * v);
        (void)snprintf(key, sizeof key, "%sgreedy.tokens", prefix);
        golden_line(g, key, wrong, worst_margin, wrong ? "FAIL" : ties ? "ok (tie)" : "ok");
        (void)snprintf(key, sizeof key, "%sgreedy.margin", prefix);
        golden_input(g, key);
    }
    free(all);
    free(row);
    free(tokens);
    free(margin);
    return status;
}

static sib_status eos_of(const sib_checkpoint *c, int32_t *eos, int *n)
{
    const json_t *roots[] = {sib_checkpoint_config(c), sib_checkpoint_text_config(c), sib_checkpoint_generation_config(c)};
    *n = 0;
    for (size_t r = 0; r < SIB_COUNT(roots); r++) {
        json_t *v = roots[r] ? json_object_get(roots[r], "eos_token_id") : NULL, *one;
        size_t i;
        if (json_is_integer(v) && *n < 64) eos[(*n)++] = (int32_t)json_integer_value(v);
        if (json_is_array(v))
            json_array_foreach(v, i, one)
                if (*n < 64) eos[(*n)++] = (int32_t)json_integer_value(one);
    }
    return SIB_OK;
}

sib_status golden_prompt(golden *g, golden_model *gm, const char *prefix, const sib_soft *soft, int n_soft, sib_err *err)
{
    int64_t n = 0;
    int32_t *ids = golden_ints(g, &n, "%sinput_ids", prefix), eos[64];
    int n_eos;
    char key[128];
    if (!ids) return SIB_OK;
    (void)snprintf(key, sizeof key, "%sinput_ids", prefix);
    golden_input(g, key);
    sib_model *m = gm->model;
    sib_seq *seq = NULL;
    SIB_TRY(eos_of(gm->files, eos, &n_eos));
    sib_status s = m->ops->seq_new(m, &seq, err);
    float *first = NULL;
    prompt p = {prefix, ids, (int)n, soft, n_soft};
    if (s == SIB_OK) s = prefill(g, m, seq, &p, err);
    if (s == SIB_OK && golden_has(g, "%sprefill.logits", prefix)) {
        /* The first greedy row is the prompt's last logits: computed again as a call of one row would see them. */
        first = malloc((size_t)m->facts.n_vocab * sizeof *first);
        sib_seq *again = NULL;
        sib_forward_out out;
        s = first ? m->ops->seq_new(m, &again, err) : sib_nomem(err, "logits");
        sib_part part = part_of(&p, again, 1);
        if (s == SIB_OK) s = m->ops->forward(m, &part, 1, &out, err);
        if (s == SIB_OK) memcpy(first, out.logits, (size_t)m->facts.n_vocab * sizeof *first);
        if (again) m->ops->seq_free(m, again);
        if (s == SIB_OK) s = greedy(g, m, seq, first, prefix, eos, n_eos, err);
    }
    free(first);
    free(ids);
    if (seq) m->ops->seq_free(m, seq);
    return s;
}

/* probe.*: one quantized matrix alone: codes, dequantized values, input, output. */
static sib_status run_probe(golden *g, golden_model *gm, sib_err *err)
{
    const char *module = json_string_value(json_object_get(g->notes, "probe_module"));
    if (!module || !golden_has(g, "probe.dequantized")) return SIB_OK;
    const sib_tensor_info *want = golden_find(g, "probe.dequantized");
    bool experts = want->rank == 3; /* all experts are dequantized, expert 1 is multiplied */
    if (want->rank != 2 && want->rank != 3) return sib_fail(err, SIB_EFORMAT, "probe.dequantized has %d dimensions", want->rank);
    int n_experts = experts ? (int)want->shape[0] : 1, out = (int)want->shape[want->rank - 2], in = (int)want->shape[want->rank - 1];
    int64_t elements = (int64_t)n_experts * out * in;
    sib_matrix_src src;
    SIB_TRY(sib_matrix_of(gm->files, module, out, in, experts ? n_experts : 0, &src, err));
    float *rows = malloc((size_t)elements * sizeof *rows);
    int64_t n_q;
    int32_t *q = golden_ints(g, &n_q, "probe.q"), *codes = calloc((size_t)elements, sizeof *codes);
    if (!rows || !codes) return sib_nomem(err, "probe");
    for (int e = 0; e < n_experts; e++) sib_matrix_src_rows(rows + (int64_t)e * out * in, &src, e, 0, out);
    golden_compare(g, "probe.dequantized", rows, elements);
    const unsigned char *bits = src.data;
    for (int64_t i = 0; i < elements * src.bits; i++) codes[i / src.bits] |= (bits[i / 8] >> (i % 8) & 1) << (i % src.bits);
    if (q) golden_compare_ids(g, "probe.q", codes, elements);
    free(q);
    free(codes);
    free(rows);

    /* The packed matrix on the device: the kernel's own view of the same numbers. */
    int64_t n_x;
    float *x = golden_floats(g, &n_x, "probe.input");
    golden_input(g, "probe.input");
    if (!x || n_x % in) {
        free(x);
        return SIB_OK;
    }
    int n_rows = (int)(n_x / in);
    float *y = calloc((size_t)n_rows * (size_t)out, sizeof *y);
    sib_matrix *m = NULL;
    const sib_ops *op = g->device->ops;
    if (experts) { /* one of them as a matrix of its own */
        src.data = sib_matrix_src_data(&src, 1, 0);
        src.scales = sib_matrix_src_scales(&src, 1, 0);
        src.biases = sib_matrix_src_biases(&src, 1, 0);
        src.n_experts = 1;
    }
    sib_status s = y ? op->matrix_new(g->device, &m, &src, err) : sib_nomem(err, "probe");
    if (s == SIB_OK) {
        op->linear(g->device, 1, &y, (const sib_matrix *const[]){m}, x, n_rows);
        golden_compare(g, "probe.output", y, (int64_t)n_rows * out);
        op->matrix_free(g->device, m);
    }
    free(x);
    free(y);
    return s;
}

sib_status golden_text(golden *g, sib_err *err)
{
    golden_model m;
    sib_model_limits limits = {.n_ctx = 256, .n_seqs = 4, .max_rows = 256, .max_logits = 128};
    SIB_TRY(golden_open(g, &m, NULL, &limits, err));
    if (m.model->offers.denoise) {
        sib_status status = golden_diffusion(g, &m, err);
        golden_close(&m);
        return status;
    }
    sib_status s = golden_prompt(g, &m, "", NULL, 0, err);
    if (s == SIB_OK) s = golden_prompt(g, &m, "text.", NULL, 0, err);
    if (s == SIB_OK) s = golden_pictures(g, &m, err);
    if (s == SIB_OK) s = run_probe(g, &m, err);
    golden_close(&m);
    return s;
}

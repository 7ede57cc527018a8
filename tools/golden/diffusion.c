/* tools/golden/diffusion.c - cases of block diffusion: whole answers with recorded draws, compared step by step.
 *
 * With random weights the loop through self-conditioning multiplies a rounding error by about ten a step, so that after some
 * steps two float32 programs, or transformers in float32 and in float64, no longer agree on anything. Hence each step starts
 * from the reference's canvas, and from its logits where the case holds them (teacher forcing); what the step decides is
 * compared before it is replaced. Beside the answer runs a twin, whose signal is moved by NOISE, the difference that one step
 * of two correct programs has. Where this moves the twin's logits by more than the limit for logits, the reference's decision
 * is not determined by its inputs: ids that differ are then printed as `tie`, and count as ok. */
#include "golden.h"

#include "base/rng.h"
#include "ports/denoise.h"
#include "ports/images.h"
#include "sample/diffusion_sampler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOISE 1e-4f
#define LIMIT 2e-3 /* of logits, as in main.c: x (1 + max) */

/* One answer of the reference: keys PREFIXinput_ids, PREFIXdraw.*, PREFIXstep.*, PREFIXgenerate.*. */
typedef struct answer {
    golden *g;
    sib_model *m;
    const char *prefix;
    sib_diffusion_params params;
    sib_replay replay;
    sib_canvas_source source;
    sib_canvas_state canvas;
    sib_seq *seq, *twin;
    void *signal; /* device [2 canvases][n_vocab]: the logits that both are conditioned on */
    float *host;  /* the same on the host */
    uint64_t noise;
    bool determined; /* the last step's logits are within the limit of the twin's */
    int32_t *text; /* prompt and canvases, padded behind the first end token */
    int32_t *want;
    int n_prompt, n_text, n_want, undetermined;
    int steps, n_said; /* said by the reference: not padding */
    int32_t eos[8];
    int n_eos, pad;
    /* results of a pass over both canvases */
    int32_t *best, *proposal, *before;
    float *entropy, *confidence;
} answer;

/* All tensors PREFIX<what>.0.<name>, .1, ... one after the other; NULL when there is none. */
static int32_t *recorded(answer *a, const char *what, const char *name, int *count, int *width)
{
    golden *g = a->g;
    int32_t *all = NULL;
    for (*count = 0; golden_has(g, "%s%s.%d.%s", a->prefix, what, *count, name); (*count)++) {
        int64_t n;
        int32_t *one = golden_ints(g, &n, "%s%s.%d.%s", a->prefix, what, *count, name);
        if (*count == 0) *width = (int)n;
        int32_t *more = n == *width ? realloc(all, (size_t)(*count + 1) * (size_t)n * sizeof *more) : NULL;
        if (more) memcpy(more + (size_t)*count * (size_t)n, one, (size_t)n * sizeof *more);
        free(one);
        if (!more) {
            free(all);
            return NULL;
        }
        all = more;
        char key[64];
        (void)snprintf(key, sizeof key, "%s%s.%d.%s", a->prefix, what, *count, name);
        golden_input(g, key);
    }
    return all;
}

static sib_status read_params(answer *a, sib_err *err)
{
    const json_t *notes = a->g->notes, *config = sib_json_get(notes, "generation");
    int64_t pad = 0;
    SIB_TRY(sib_diffusion_params_read(&a->params, SIB_DIALECT_HF, config, "expected.json", err));
    SIB_TRY(sib_json_num(notes, "expected.json", "entropy_bound", 1e-9, 1e9, &a->params.entropy_bound, err));
    SIB_TRY(sib_json_int(config, "expected.json", "pad_token_id", 0, 1 << 22, &pad, err));
    a->pad = (int)pad;
    const json_t *eos = sib_json_get(config, "eos_token_id");
    for (size_t i = 0; i < json_array_size(eos) && a->n_eos < (int)SIB_COUNT(a->eos); i++)
        a->eos[a->n_eos++] = (int32_t)json_integer_value(json_array_get(eos, i));
    return SIB_OK;
}

/* Ids that the last step decided, under the rule for ids that nothing determines. */
static void compare_decided(answer *a, const char *key, const int32_t *got, int n)
{
    golden *g = a->g;
    if (!golden_has(g, "%s", key)) return;
    int64_t count;
    int32_t *want = golden_ints(g, &count, "%s", key);
    int differ = 0;
    for (int i = 0; want && i < n && count == n; i++) differ += got[i] != want[i];
    if (differ > 0 && !a->determined)
        golden_line(g, key, differ, (double)differ / n, "tie");
    else
        golden_compare_ids(g, key, got, n);
    free(want);
}

static void compare_step(answer *a, const int32_t *proposal, const float *logits)
{
    golden *g = a->g;
    const sib_canvas_state *c = &a->canvas;
    char key[64];
    (void)snprintf(key, sizeof key, "%sstep.%d.logits", a->prefix, a->steps);
    if (golden_has(g, "%s", key)) golden_compare(g, key, logits, (int64_t)c->n * a->m->facts.n_vocab);
    int32_t mask[4096], accepted[4096];
    for (int i = 0; i < c->n; i++) {
        mask[i] = c->accepted[i];
        accepted[i] = c->accepted[i] ? proposal[i] : a->before[i];
    }
    (void)snprintf(key, sizeof key, "%sstep.%d.accepted_mask", a->prefix, a->steps);
    compare_decided(a, key, mask, c->n);
    (void)snprintf(key, sizeof key, "%sstep.%d.accepted_canvas", a->prefix, a->steps);
    compare_decided(a, key, accepted, c->n);
}

/* The canvas and the flag that a step starts from; the canvas is then the reference's. */
static void compare_input(answer *a)
{
    char key[64];
    int32_t conditioned = a->canvas.step > 0;
    (void)snprintf(key, sizeof key, "%sstep.%d.canvas", a->prefix, a->steps);
    compare_decided(a, key, a->canvas.ids, a->canvas.n);
    int64_t n = 0;
    int32_t *want = golden_ints(a->g, &n, "%s", key);
    if (want && n == a->canvas.n) memcpy(a->canvas.ids, want, (size_t)n * sizeof *want);
    free(want);
    (void)snprintf(key, sizeof key, "%sstep.%d.self_conditioned", a->prefix, a->steps);
    if (golden_has(a->g, "%s", key)) golden_compare_ids(a->g, key, &conditioned, 1);
}

/* How far the twin's logits are from the answer's, against the limit. */
static void compare_twin(answer *a, const float *logits, int64_t count)
{
    double largest = 0, drift = 0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs(logits[i]));
        drift = fmax(drift, fabs((double)logits[i] - logits[count + i]));
    }
    a->determined = drift <= LIMIT * (1 + largest);
}

/* The next step is conditioned on the reference's logits of this one where the case has them. */
static sib_status give_signal(answer *a, const float *logits, int64_t count, sib_err *err)
{
    const sib_ops *op = a->m->device->ops;
    memcpy(a->host, logits, 2 * (size_t)count * sizeof *a->host);
    int64_t n = 0;
    float *want = golden_floats(a->g, &n, "%sstep.%d.logits", a->prefix, a->steps);
    if (want && n == count) {
        memcpy(a->host, want, (size_t)count * sizeof *want);
        memcpy(a->host + count, want, (size_t)count * sizeof *want);
    }
    free(want);
    for (int64_t i = count; i < 2 * count; i++) a->host[i] += NOISE * ((float)(sib_splitmix64(&a->noise) >> 40) * 0x1p-23f - 1);
    op->upload(a->m->device, a->signal, a->host, 2 * (size_t)count * sizeof *a->host);
    return a->m->offers.denoise->condition(a->m, NULL, a->signal, err);
}

static sib_status one_step(answer *a, sib_err *err)
{
    const sib_denoise_port *port = a->m->offers.denoise;
    sib_canvas_state *c = &a->canvas;
    compare_input(a);
    sib_canvas in[2] = {{.seq = a->seq, .ids = c->ids, .n = c->n, .conditioned = c->step > 0, .t = sib_canvas_temperature(c, &a->params),
                         .second = sib_canvas_second(c, &a->source), .u = c->u}};
    sib_denoised out = {a->best, a->proposal, a->entropy, a->confidence};
    int64_t count = (int64_t)c->n * a->m->facts.n_vocab;
    in[1] = in[0];
    in[1].seq = a->twin;
    memcpy(a->before, c->ids, (size_t)c->n * sizeof *a->before);
    SIB_TRY(port->step(a->m, in, 2, &out, err));
    const float *logits = port->logits(a->m);
    SIB_TRY(sib_canvas_step(c, &a->source, a->best, a->proposal, a->entropy, a->confidence, logits, -1, err));
    compare_twin(a, logits, count);
    compare_step(a, a->proposal, logits);
    if (!c->settled) SIB_TRY(give_signal(a, logits, count, err));
    a->steps++;
    return SIB_OK;
}

static bool is_end(const answer *a, int32_t id)
{
    for (int i = 0; i < a->n_eos; i++)
        if (a->eos[i] == id) return true;
    return false;
}

/* Appends a settled canvas and compares it; true when the reference's answer ends in it. */
static bool say(answer *a)
{
    const sib_canvas_state *c = &a->canvas;
    bool ended = false, reference_ended = false;
    int first = a->n_text, differ = 0;
    for (int i = 0; i < c->n && a->n_text < a->n_want; i++) {
        int32_t id = ended ? a->pad : c->best[i], want = a->want[a->n_text];
        a->text[a->n_text++] = id;
        ended |= is_end(a, id);
        differ += id != want;
        a->n_said += want != a->pad;
        reference_ended |= is_end(a, want);
    }
    if (differ > 0 && !a->determined) { /* go on from the reference's canvas */
        a->undetermined += differ;
        memcpy(a->text + first, a->want + first, (size_t)(a->n_text - first) * sizeof *a->text);
    }
    return reference_ended || a->n_text == a->n_want;
}

static sib_status encode(answer *a, const int32_t *ids, int n, const sib_soft *soft, int n_soft, sib_err *err)
{
    sib_forward_out out;
    sib_part parts[2] = {{.seq = a->seq, .ids = ids, .n_rows = n, .soft = soft, .n_soft = n_soft}};
    parts[1] = parts[0];
    parts[1].seq = a->twin;
    SIB_TRY(a->m->ops->forward(a->m, parts, 2, &out, err));
    SIB_TRY(a->m->offers.keep->keep(a->m, a->seq, n, err));
    return a->m->offers.keep->keep(a->m, a->twin, n, err);
}

static sib_status run_blocks(answer *a, sib_err *err)
{
    int width = a->m->offers.denoise->canvas_length;
    for (;;) {
        a->determined = true;
        SIB_TRY(sib_canvas_begin(&a->canvas, &a->source, NULL, width, err));
        while (!a->canvas.settled) SIB_TRY(one_step(a, err));
        if (say(a)) return SIB_OK;
        SIB_TRY(encode(a, a->text + a->n_text - width, width, NULL, 0, err));
    }
}

static void compare_answer(answer *a)
{
    char key[64];
    (void)snprintf(key, sizeof key, "%sgenerate.sequences", a->prefix);
    golden_compare_ids(a->g, key, a->text, a->n_text);
    if (a->undetermined) golden_line(a->g, key, a->undetermined, 0, "tie");
    (void)snprintf(key, sizeof key, "%sgenerate.tokens_per_forward", a->prefix);
    float rate = (float)a->n_said / (float)a->steps;
    if (golden_has(a->g, "%s", key)) golden_compare(a->g, key, &rate, 1);
    (void)snprintf(key, sizeof key, "%sdraws", a->prefix);
    bool all = a->source.canvas == a->replay.n_canvases && (!a->replay.proposals || a->source.proposal == a->replay.n_proposals);
    golden_line(a->g, key, a->source.canvas, a->source.proposal, all ? "ok" : "FAIL");
}

static sib_status run(answer *a, const sib_soft *soft, int n_soft, sib_err *err)
{
    int64_t n, n_want;
    int width = 0;
    int32_t *ids = golden_ints(a->g, &n, "%sinput_ids", a->prefix), *want = golden_ints(a->g, &n_want, "%sgenerate.sequences", a->prefix);
    if (!ids || !want || n_want < n) {
        free(ids);
        free(want);
        return sib_fail(err, SIB_EFORMAT, "%sinput_ids without generate.sequences", a->prefix);
    }
    a->n_prompt = a->n_text = (int)n;
    a->n_want = (int)n_want;
    a->want = want;
    a->text = calloc((size_t)n_want, sizeof *a->text);
    int32_t *canvases = recorded(a, "draw", "random_canvas", &a->replay.n_canvases, &a->replay.width);
    int32_t *proposals = recorded(a, "step", "denoiser_canvas", &a->replay.n_proposals, &width);
    a->replay.canvases = canvases;
    a->replay.proposals = proposals;
    size_t cap = (size_t)a->m->offers.denoise->canvas_length;
    a->best = calloc(5 * cap, sizeof *a->best);
    a->entropy = calloc(4 * cap, sizeof *a->entropy);
    size_t signal_bytes = 2 * cap * (size_t)a->m->facts.n_vocab * sizeof *a->host;
    a->host = malloc(signal_bytes);
    sib_status s = a->text && a->host && canvases && width == a->replay.width && a->best && a->entropy ? SIB_OK : sib_fail(err, SIB_EFORMAT, "%sdraw.* or %sstep.* is not complete", a->prefix, a->prefix);
    if (s == SIB_OK) {
        memcpy(a->text, ids, (size_t)n * sizeof *ids);
        a->proposal = a->best + 2 * cap;
        a->before = a->best + 4 * cap;
        a->confidence = a->entropy + 2 * cap;
        s = read_params(a, err);
    }
    sib_canvas_source_init(&a->source, &a->params, a->m->facts.n_vocab, &a->replay);
    if (s == SIB_OK) s = sib_canvas_state_init(&a->canvas, (int)cap, err);
    if (s == SIB_OK) s = a->m->ops->seq_new(a->m, &a->seq, err);
    if (s == SIB_OK) s = a->m->ops->seq_new(a->m, &a->twin, err);
    if (s == SIB_OK) s = a->m->device->ops->alloc(a->m->device, signal_bytes, &a->signal, err);
    if (s == SIB_OK) s = encode(a, ids, a->n_prompt, soft, n_soft, err);
    if (s == SIB_OK) s = run_blocks(a, err);
    if (s == SIB_OK) compare_answer(a);
    if (a->signal) a->m->device->ops->release(a->m->device, a->signal, signal_bytes);
    a->m->ops->seq_free(a->m, a->seq);
    a->m->ops->seq_free(a->m, a->twin);
    sib_canvas_state_deinit(&a->canvas);
    free(ids);
    free(canvases);
    free(proposals);
    free(a->best);
    free(a->entropy);
    free(a->text);
    free(a->want);
    free(a->host);
    return s;
}

static sib_status run_picture(golden *g, golden_model *gm, sib_err *err)
{
    sib_model *m = gm->model;
    float *features;
    int n_soft, first = 0;
    int64_t n = 0;
    SIB_TRY(golden_encode(g, gm, &features, &n_soft, err));
    if (!features) return SIB_OK;
    int32_t *ids = golden_ints(g, &n, "image.input_ids");
    while (ids && first < n && ids[first] != m->offers.images->image_id) first++;
    free(ids);
    sib_soft soft = {.first = first, .n = n_soft, .features = features, .bidirectional = m->offers.images->bidirectional,
                     .everywhere = m->offers.images->everywhere};
    answer a = {.g = g, .m = m, .prefix = "image."};
    sib_status s = first + n_soft <= n ? run(&a, &soft, 1, err) : sib_fail(err, SIB_EFORMAT, "image.input_ids has no place for %d soft tokens", n_soft);
    m->device->ops->release(m->device, features, (size_t)n_soft * (size_t)m->facts.hidden * sizeof *features);
    return s;
}

sib_status golden_diffusion(golden *g, golden_model *m, sib_err *err)
{
    answer a = {.g = g, .m = m->model, .prefix = ""};
    if (golden_has(g, "input_ids")) SIB_TRY(run(&a, NULL, 0, err));
    return run_picture(g, m, err);
}

/* tests/unit/vision_test.c - vision parts against the specification's numbers, and pictures in prompts.
 *
 * The numbers are those of gemma4.md section 8 (tests/cases/gemma4/tiny.json), for checkpoints that tiny_gemma4.h writes. */
#include "engine/pictures.h"
#include "models/gemma4/family.h"
#include "vision/tower.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "artifacts_fixture.h"
#include "tiny_gemma4.h"

#define LIMIT 1e-4 /* absolute, in float32 */

/* ---- a model, one call ------------------------------------------------------------------------ */

typedef struct stages {
    struct {
        char key[48];
        float *v;
        int n;
    } list[64];
    int count;
} stages;

static void collect(void *ctx, const char *stage, int index, const float *values, int rows, int n)
{
    stages *s = ctx;
    char key[48];
    (void)snprintf(key, sizeof key, index < 0 ? "%s" : "%s.%d", stage, index);
    int i = 0;
    while (i < s->count && strcmp(s->list[i].key, key)) i++;
    if (i == (int)SIB_COUNT(s->list)) return;
    if (i == s->count) memcpy(s->list[s->count++].key, key, sizeof key);
    size_t old = (size_t)s->list[i].n, add = (size_t)rows * (size_t)n;
    s->list[i].v = realloc(s->list[i].v, (old + add) * sizeof(float));
    assert_non_null(s->list[i].v);
    memcpy(s->list[i].v + old, values, add * sizeof(float));
    s->list[i].n = (int)(old + add);
}

static const float *stage(const stages *s, int *n, const char *key)
{
    for (int i = 0; i < s->count; i++)
        if (strcmp(s->list[i].key, key) == 0) {
            if (n) *n = s->list[i].n;
            return s->list[i].v;
        }
    fail_msg("no stage %s", key);
    return NULL;
}

static void stages_clear(stages *s)
{
    for (int i = 0; i < s->count; i++) free(s->list[i].v);
    *s = (stages){0};
}

typedef struct rig {
    sib_device *dev;
    sib_checkpoint *files;
    sib_model *m;
    stages seen;
} rig;

static rig *rig_open(const char *dir, sib_numerics numerics, int threads, int n_seqs, int max_rows)
{
    rig *r = calloc(1, sizeof *r);
    sib_err err = {0};
    sib_cpu_options cpu = {.numerics = numerics, .threads = threads};
    sib_model_limits limits = {.n_ctx = 256, .n_seqs = n_seqs, .max_rows = max_rows, .max_logits = max_rows};
    assert_non_null(r);
    tiny_ok(sib_cpu_device_new(&r->dev, &cpu, &err), &err);
    tiny_ok(sib_checkpoint_open(&r->files, dir, NULL, &err), &err);
    sib_loader l = {.dev = r->dev, .files = r->files};
    tiny_ok(sib_family_gemma4.open(&r->m, &l, &limits, &err), &err);
    r->m->trace = (sib_trace){collect, &r->seen};
    return r;
}

static void rig_close(rig *r)
{
    stages_clear(&r->seen);
    r->m->ops->free(r->m);
    sib_checkpoint_free(r->files);
    sib_device_free(r->dev);
    free(r);
}

/* Features of a picture on a CPU device, whose memory is ours. Malloc'd. */
static float *encode(rig *r, const sib_rgb *picture, int budget, bool whole_pixels, int *n)
{
    const sib_image_port *port = r->m->offers.images;
    sib_err err;
    assert_non_null(port);
    tiny_ok(port->count(r->m, picture->width, picture->height, budget, n, &err), &err);
    float *f = calloc((size_t)*n * (size_t)r->m->facts.hidden, sizeof *f);
    assert_non_null(f);
    tiny_ok(port->encode(r->m, picture, budget, whole_pixels, f, &err), &err);
    return f;
}

/* All logits of the ids in one call; malloc'd [n][vocab]. */
static float *logits(rig *r, const int32_t *ids, int n, const sib_soft *soft, int n_soft)
{
    sib_seq *seq;
    sib_err err;
    sib_forward_out out;
    size_t bytes = (size_t)n * (size_t)r->m->facts.n_vocab * sizeof(float);
    float *copy = malloc(bytes);
    assert_non_null(copy);
    tiny_ok(r->m->ops->seq_new(r->m, &seq, &err), &err);
    tiny_ok(r->m->ops->forward(r->m, &(sib_part){.seq = seq, .ids = ids, .n_rows = n, .n_logits = n, .soft = soft, .n_soft = n_soft}, 1, &out, &err), &err);
    memcpy(copy, out.logits, bytes);
    r->m->ops->seq_free(r->m, seq);
    return copy;
}

static const char *in_fixture(const char *name)
{
    static char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", fixture_dir, name);
    return path;
}

static rig *tiny_open(const char *name, const char *text, const char *vision, const tiny_options *o)
{
    tiny_write(in_fixture(name), text, vision, o);
    return rig_open(in_fixture(name), SIB_NUM_F32, 1, 1, 64);
}

/* The picture of section 8: 12 rows of 18 pixels, which the size rule leaves as they are. */
#define TINY_BUDGET 6
static uint8_t pixels[12 * 18 * 3];
static const sib_rgb picture = {18, 12, pixels};

/* ---- the specification's numbers ---------------------------------------------------------------- */

static void expect_list(const json_t *want, const float *got, const char *run, const char *what)
{
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)(uintptr_t)want, i, v)
        if (!(fabs(json_number_value(v) - got[i]) <= LIMIT)) fail_msg("%s %s[%zu]: %.7g, expected %.7g", run, what, i, got[i], json_number_value(v));
}

static void check_stages(const rig *r, const json_t *o, const char *run)
{
    const json_t *dump = json_object_get(o, "dump"), *vision = json_object_get(o, "vision");
    int n_ids = (int)json_array_size(json_object_get(o, "ids")), hidden = r->m->facts.hidden, n = 0;
    for (int i = 0; dump && i < r->m->facts.n_layers; i++) { /* the last layer's output is not a stage: the norm follows */
        char key[48], mine[48];
        (void)snprintf(key, sizeof key, i ? "h_after_layer_%d_last" : "h0_last", i - 1);
        (void)snprintf(mine, sizeof mine, "hidden.%d", i);
        expect_list(json_object_get(dump, key), stage(&r->seen, NULL, mine) + (n_ids - 1) * hidden, run, key);
    }
    if (!vision) return;
    const float *embedding = stage(&r->seen, &n, "vision.hidden.0");
    expect_list(json_object_get(vision, "embed0"), embedding, run, "embed0");
    expect_list(json_object_get(vision, "embed_last"), embedding + n - n / 54, run, "embed_last"); /* of 54 patches */
    expect_list(json_object_get(vision, "enc_after_layer_0_row0"), stage(&r->seen, NULL, "vision.hidden.1"), run, "layer 0");
    expect_list(json_object_get(vision, "enc_after_layer_1_row0"), stage(&r->seen, NULL, "vision.hidden.2"), run, "layer 1");
    expect_list(json_object_get(vision, "pooled_row0"), stage(&r->seen, NULL, "vision.tower_output"), run, "pooled");
}

static void check_logits(const float *l, int v, const json_t *o, const char *run)
{
    int n = (int)json_array_size(json_object_get(o, "ids"));
    const json_t *sum = json_object_get(o, "sum_last");
    double total = 0;
    expect_list(json_object_get(o, "first_logits_0_3"), l, run, "first logits");
    expect_list(json_object_get(o, "logits_pos3_0_3"), l + 3 * v, run, "logits at 3");
    expect_list(json_object_get(o, "logits_pos7_0_3"), l + 7 * v, run, "logits at 7");
    expect_list(json_object_get(o, "logits_pos8_0_3"), l + 8 * v, run, "logits at 8");
    expect_list(json_object_get(o, "last_logits_0_7"), l + (n - 1) * v, run, "last logits");
    for (int i = 0; i < v; i++) total += l[(n - 1) * v + i];
    if (sum && fabs(total - json_number_value(sum)) > 10 * LIMIT) fail_msg("%s sum of the last logits: %.7g", run, total);
    for (int p = 0; p < n; p++) {
        int best = 0;
        for (int i = 1; i < v; i++)
            if (l[p * v + i] > l[p * v + best]) best = i;
        if (best != json_integer_value(json_array_get(json_object_get(o, "argmax"), (size_t)p))) fail_msg("%s argmax at %d is %d", run, p, best);
    }
}

static void run_numbers(const char *run, const char *text, const char *vision, const json_t *all)
{
    const json_t *o = json_object_get(all, run), *list = json_object_get(o, "ids");
    rig *r = tiny_open(run, text, vision, NULL);
    int32_t ids[32];
    int n = (int)json_array_size(list), n_soft = 0;
    float *features = NULL;
    for (int i = 0; i < n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    if (vision) {
        features = encode(r, &picture, TINY_BUDGET, false, &n_soft);
        assert_int_equal(n_soft, 6);
        expect_list(json_object_get(o, "feature_row0_0_3"), features, run, "feature row 0");
        expect_list(json_object_get(o, "feature_row5_0_3"), features + 5 * r->m->facts.hidden, run, "feature row 5");
    }
    sib_soft soft = {.first = 3, .n = n_soft, .features = features, .bidirectional = vision && r->m->offers.images->bidirectional};
    float *l = logits(r, ids, n, &soft, vision ? 1 : 0);
    check_logits(l, r->m->facts.n_vocab, o, run);
    check_stages(r, o, run);
    free(l);
    const json_t *causal = json_object_get(o, "causal_variant_last_logits_0_3");
    if (causal) {
        soft.bidirectional = false;
        l = logits(r, ids, n, &soft, 1);
        expect_list(causal, l + (n - 1) * r->m->facts.n_vocab, run, "causal variant");
        free(l);
    }
    free(features);
    rig_close(r);
}

static void numbers_of_the_specification(void **state)
{
    (void)state;
    const struct {
        const char *run, *text, *vision;
    } runs[] = {{"T1", TINY_T1, NULL},         {"T2", TINY_T2, NULL},         {"T3", TINY_T3, NULL},         {"T4", TINY_T4, NULL},        {"T5", TINY_T5, NULL},
                {"T1+V1", TINY_T1, TINY_V1}, {"T3+V2", TINY_T3, TINY_V2}, {"T5+V2", TINY_T5, TINY_V2}, {"T4+U1", TINY_T4, TINY_U1}};
    json_t *all = json_load_file("tests/cases/gemma4/tiny.json", 0, NULL);
    assert_non_null(all);
    assert_int_equal(pixels[0], 82);
    for (size_t i = 0; i < SIB_COUNT(runs); i++) run_numbers(runs[i].run, runs[i].text, runs[i].vision, all);
    json_decref(all);
}

/* ---- files ---------------------------------------------------------------------------------------- */

static void expect_same_features(const float *want, rig *r, const char *what)
{
    int n;
    float *got = encode(r, &picture, TINY_BUDGET, false, &n);
    if (memcmp(want, got, (size_t)n * (size_t)r->m->facts.hidden * sizeof *got)) fail_msg("%s: other features", what);
    free(got);
    rig_close(r);
}

static void names_and_places_do_not_matter(void **state)
{
    (void)state;
    int n = 0;
    rig *r = tiny_open("plain", TINY_T3, TINY_V2, NULL);
    float *want = encode(r, &picture, TINY_BUDGET, false, &n);
    rig_close(r);
    expect_same_features(want, tiny_open("mlx", TINY_T3, TINY_V2, &(tiny_options){.mlx_names = true}), "MLX names");
    expect_same_features(want, tiny_open("sidecar", TINY_T3, TINY_V2, &(tiny_options){.sidecar = true}), "sidecar");
    free(want);
    r = tiny_open("unified", TINY_T4, TINY_U1, NULL);
    want = encode(r, &picture, TINY_BUDGET, false, &n);
    rig_close(r);
    expect_same_features(want, tiny_open("unified-mlx", TINY_T4, TINY_U1, &(tiny_options){.mlx_names = true}), "unified, MLX names");
    expect_same_features(want, tiny_open("unified-memory", TINY_T4, TINY_U1, &(tiny_options){.memory_names = true}), "unified, module names");
    free(want);
}

static void expect_nothing_unexpected(const rig *r)
{
    json_t *report = sib_checkpoint_report(r->files);
    json_t *unexpected = json_object_get(report, "unexpected");
    if (json_array_size(unexpected)) fail_msg("unexpected: %s", json_string_value(json_array_get(unexpected, 0)));
    assert_int_equal(json_array_size(json_object_get(report, "missing")), 0);
    json_decref(report);
}

/* Tensors that are left alone do not change a bit and are not reported as unexpected. */
static void leftovers_are_ignored(void **state)
{
    (void)state;
    int32_t ids[20];
    for (int i = 0; i < 20; i++) ids[i] = (7 * i + 3) % 60;
    rig *a = tiny_open("bare", TINY_T1, TINY_V1, NULL), *b = tiny_open("leftovers", TINY_T1, TINY_V1, &(tiny_options){.leftovers = true});
    rig *c = tiny_open("bounds", TINY_T3, TINY_V("2", "12", "true", "true"), NULL);
    expect_nothing_unexpected(a);
    expect_nothing_unexpected(b);
    expect_nothing_unexpected(c);
    float *x = logits(a, ids, 20, NULL, 0), *y = logits(b, ids, 20, NULL, 0);
    assert_memory_equal(x, y, 20 * 64 * sizeof *x);
    free(x);
    free(y);
    rig_close(a);
    rig_close(b);
    rig_close(c);
}

static void text_only_export_answers_text(void **state)
{
    (void)state;
    int32_t ids[20];
    for (int i = 0; i < 20; i++) ids[i] = (7 * i + 3) % 60;
    rig *whole = tiny_open("whole", TINY_T1, TINY_V1, NULL), *text = tiny_open("text", TINY_T1, TINY_V1, &(tiny_options){.no_vision = true});
    assert_non_null(whole->m->offers.images);
    assert_null(text->m->offers.images);
    float *x = logits(whole, ids, 20, NULL, 0), *y = logits(text, ids, 20, NULL, 0);
    assert_memory_equal(x, y, 20 * 64 * sizeof *x);
    free(x);
    free(y);
    rig_close(whole);
    rig_close(text);

    sib_options o;
    sib_engine *e;
    sib_err err = {0};
    sib_picture_set set;
    sib_options_init(&o);
    o.model = in_fixture("text");
    o.threads = 1;
    tiny_ok(sib_open(&e, &o, &err), &err);
    assert_int_equal(sib_picture_set_new(&set, e, (int32_t[]){60}, 1, &(sib_picture){"x", 1, "x.png"}, 1, 0, NULL, &err), SIB_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "its tensors are not in the checkpoint"));
    sib_close(e);
}

/* hidden 64, patches of 8 x 8 x 3 = 192 values: rows that groups of 32 divide */
#define TINY_VQ "{\"model_type\":\"gemma4_vision\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":2," \
    "\"num_key_value_heads\":1,\"head_dim\":32,\"patch_size\":8,\"pooling_kernel_size\":2,\"position_embedding_size\":16}"

/* Quantized and plain linears side by side give what their dequantized values give. */
static void linears_are_quantized_by_presence(void **state)
{
    (void)state;
    enum { W = 48, H = 32 };
    uint8_t rgb[W * H * 3];
    int n;
    tiny_bytes("quantized", rgb, sizeof rgb);
    rig *q = tiny_open("quantized", TINY_T3, TINY_VQ, &(tiny_options){.quantize = TINY_QUANTIZED});
    rig *p = tiny_open("dequantized", TINY_T3, TINY_VQ, &(tiny_options){.quantize = TINY_DEQUANTIZED});
    expect_nothing_unexpected(q);
    float *a = encode(q, &(sib_rgb){W, H, rgb}, 6, false, &n), *b = encode(p, &(sib_rgb){W, H, rgb}, 6, false, &n);
    assert_int_equal(n, 6);
    for (int i = 0; i < n * 32; i++)
        if (!(fabs(a[i] - b[i]) <= LIMIT)) fail_msg("value %d: %.7g and %.7g", i, a[i], b[i]);
    free(a);
    free(b);

    /* whole_pixels: only white is not zero, and plain weights do not know it */
    uint8_t grey[W * H * 3];
    for (size_t i = 0; i < sizeof rgb; i++) {
        rgb[i] = (uint8_t)(rgb[i] % 255);
        grey[i] = 127;
    }
    float *x = encode(q, &(sib_rgb){W, H, rgb}, 6, true, &n), *y = encode(q, &(sib_rgb){W, H, grey}, 6, true, &n);
    assert_memory_equal(x, y, (size_t)n * 32 * sizeof *x);
    rgb[100] = 255;
    float *z = encode(q, &(sib_rgb){W, H, rgb}, 6, true, &n);
    assert_memory_not_equal(x, z, (size_t)n * 32 * sizeof *x);
    float *u = encode(p, &(sib_rgb){W, H, rgb}, 6, true, &n), *v = encode(p, &(sib_rgb){W, H, rgb}, 6, false, &n);
    assert_memory_equal(u, v, (size_t)n * 32 * sizeof *u);
    free(x);
    free(y);
    free(z);
    free(u);
    free(v);
    rig_close(q);
    rig_close(p);
}

/* ---- sizes and memory ------------------------------------------------------------------------------ */

static void sizes_without_a_place_are_refused(void **state)
{
    (void)state;
    rig *r = tiny_open("sizes", TINY_T3, TINY_V2, NULL);
    const sib_image_port *port = r->m->offers.images;
    sib_err err;
    int n;
    assert_int_equal(port->default_budget, 280);
    assert_int_equal(port->count(r->m, 1000, 1, 70, &n, &err), SIB_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "has no position"));
    assert_int_equal(port->encode(r->m, &(sib_rgb){1000, 1, pixels}, 70, false, NULL, &err), SIB_EUNSUPPORTED);
    assert_int_equal(port->count(r->m, 18, 12, 0, &n, &err), SIB_EARG);
    assert_int_equal(port->count(r->m, 18, 12, port->max_budget + 1, &n, &err), SIB_EARG);
    assert_int_equal(port->count(r->m, 0, 12, 6, &n, &err), SIB_EARG);
    assert_int_equal(port->count(r->m, 64, 64, 1120, &n, &err), SIB_EUNSUPPORTED); /* 99 x 99 patches, the table has 32 */
    rig_close(r);
}

static void work_memory_comes_with_the_first_picture(void **state)
{
    (void)state;
    sib_device *dev;
    sib_checkpoint *files;
    sib_weights weights = {0};
    sib_vision *v;
    sib_err err;
    float features[70 * 32];
    tiny_write(in_fixture("memory"), TINY_T3, TINY_V2, NULL);
    tiny_ok(sib_cpu_device_new(&dev, &(sib_cpu_options){.numerics = SIB_NUM_F32, .threads = 1}, &err), &err);
    tiny_ok(sib_checkpoint_open(&files, in_fixture("memory"), NULL, &err), &err);
    sib_loader l = {.dev = dev, .files = files, .into = &weights};
    tiny_ok(sib_tower_open(&v, &l, "model.", 32, &err), &err);
    assert_null(v->work);
    for (int budget = 6; budget <= 70; budget += 64) { /* the larger one takes more, the smaller one is content afterwards */
        tiny_ok(sib_vision_encode(v, NULL, &picture, budget, false, features, &err), &err);
        assert_int_equal(v->work_bytes, sib_vision_plan(v, budget));
    }
    void *work = v->work;
    tiny_ok(sib_vision_encode(v, NULL, &picture, 6, false, features, &err), &err);
    assert_ptr_equal(work, v->work);
    sib_vision_free(v);
    sib_weights_deinit(&weights, dev);
    sib_checkpoint_free(files);
    sib_device_free(dev);
}

/* Shapes that no file of ours may have: each is an error with a sentence. */
static void hostile_configs_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *vision, *says;
    } cases[] = {
        {"{\"hidden_size\":24}", "intermediate_size"},
        {"{\"hidden_size\":99999999,\"intermediate_size\":40,\"num_hidden_layers\":2,\"num_attention_heads\":2}", "hidden_size"},
        {TINY_V("2", "10", "false", "true"), "head_dim"},
        {TINY_V("2", "16", "false", "true"), "expected"},
        {"{\"mm_embed_dim\":32,\"patch_size\":2,\"model_patch_size\":7}", "model_patch_size"},
    };
    sib_device *dev;
    sib_err err;
    tiny_ok(sib_cpu_device_new(&dev, &(sib_cpu_options){.numerics = SIB_NUM_F32, .threads = 1}, &err), &err);
    for (size_t i = 0; i < SIB_COUNT(cases); i++) {
        bool unified = strstr(cases[i].vision, "mm_embed_dim") != NULL;
        sib_checkpoint *files;
        tiny_write(in_fixture("hostile"), unified ? TINY_T4 : TINY_T3, unified ? TINY_U1 : TINY_V2, NULL);
        json_t *root = json_load_file(in_fixture("hostile/config.json"), 0, NULL);
        json_object_set_new(root, "vision_config", json_loads(cases[i].vision, 0, NULL));
        assert_int_equal(json_dump_file(root, in_fixture("hostile/config.json"), 0), 0);
        json_decref(root);
        tiny_ok(sib_checkpoint_open(&files, in_fixture("hostile"), NULL, &err), &err);
        sib_loader l = {.dev = dev, .files = files};
        sib_model *m;
        assert_int_not_equal(sib_family_gemma4.open(&m, &l, &(sib_model_limits){.n_ctx = 64, .n_seqs = 1, .max_rows = 16}, &err), SIB_OK);
        if (!strstr(err.message, cases[i].says)) fail_msg("%s", err.message);
        sib_checkpoint_free(files);
    }
    sib_device_free(dev);
}

/* ---- rounds ------------------------------------------------------------------------------------------ */

enum { PROMPT = 74, ANSWER = 8, VOCAB = 64 };

/* A prompt with two pictures of six soft tokens, next to boi and eoi. */
static void two_pictures(int32_t *ids, sib_soft_span *spans, const float *a, const float *b, bool bidirectional)
{
    for (int i = 0; i < PROMPT; i++) ids[i] = (7 * i + 3) % 59;
    spans[0] = (sib_soft_span){.pos = 30, .n = 6, .features = a, .bidirectional = bidirectional};
    spans[1] = (sib_soft_span){.pos = 52, .n = 6, .features = b, .bidirectional = bidirectional};
    for (int s = 0; s < 2; s++)
        for (int i = -1; i <= 6; i++) ids[spans[s].pos + i] = i < 0 ? 61 : i < 6 ? 60 : 62;
}

static void lane_init(sib_lane *l, rig *r, int32_t *tokens, const sib_soft_span *spans, int n_soft)
{
    sib_err err;
    sib_sampler_params p = sib_sampler_defaults();
    p.temperature = 0;
    *l = (sib_lane){.tokens = tokens, .n_tokens = PROMPT, .soft = spans, .n_soft = n_soft, .budget = ANSWER};
    sib_policy_init(&l->policy, SIB_POLICY_OFF, 0);
    tiny_ok(r->m->ops->seq_new(r->m, &l->seq, &err), &err);
    tiny_ok(sib_sampler_new(&l->sampler, &p, VOCAB, 256, &err), &err);
}

static void lane_deinit(sib_lane *l, rig *r)
{
    sib_sampler_free(l->sampler);
    r->m->ops->seq_free(r->m, l->seq);
}

/* However the prompt is cut and on any number of threads: the same bits in the logits, the same tokens. */
static void chunks_and_threads_change_no_bit(void **state)
{
    (void)state;
    static const int chunks[] = {1, 7, 64, PROMPT};
    uint8_t other[sizeof pixels];
    tiny_bytes("other", other, sizeof other);
    for (int kind = 0; kind < 4; kind++) { /* two-way and causal, f32 and bf16 */
        float *want = NULL;
        int n_want = 0;
        tiny_write(in_fixture("rounds"), TINY_T3, TINY_V2, &(tiny_options){.causal = kind & 1});
        for (int threads = 1; threads <= 2; threads++)
            for (size_t c = 0; c < SIB_COUNT(chunks); c++) {
                rig *r = rig_open(in_fixture("rounds"), kind & 2 ? SIB_NUM_BF16 : SIB_NUM_F32, threads, 1, 96);
                int32_t tokens[PROMPT + ANSWER + SIB_ROUND_EMIT + 1];
                sib_soft_span spans[2];
                sib_round *round;
                sib_lane lane, *lanes[] = {&lane};
                sib_err err;
                int n;
                float *a = encode(r, &picture, TINY_BUDGET, false, &n), *b = encode(r, &(sib_rgb){18, 12, other}, TINY_BUDGET, false, &n);
                two_pictures(tokens, spans, a, b, r->m->offers.images->bidirectional);
                assert_int_equal(r->m->offers.images->bidirectional, !(kind & 1));
                lane_init(&lane, r, tokens, spans, 2);
                tiny_ok(sib_round_new(&round, r->m, NULL, 1, chunks[c], &err), &err);
                while (lane.budget > 0) tiny_ok(sib_round_step(round, lanes, 1, &err), &err);
                const float *got = stage(&r->seen, &n, "logits");
                if (!want) {
                    want = malloc((size_t)n * sizeof *want);
                    assert_non_null(want);
                    memcpy(want, got, (size_t)n * sizeof *want);
                    n_want = n;
                }
                assert_int_equal(n, ANSWER * VOCAB);
                assert_int_equal(n, n_want);
                if (memcmp(want, got, (size_t)n * sizeof *want)) fail_msg("kind %d, %d threads, chunk %d: other logits", kind, threads, chunks[c]);
                sib_round_free(round);
                lane_deinit(&lane, r);
                free(a);
                free(b);
                rig_close(r);
            }
        free(want);
    }
}

/* Two requests whose share of a call is smaller than a picture: one waits, neither picture is cut. */
static void a_picture_is_never_cut_between_requests(void **state)
{
    (void)state;
    int32_t alone[PROMPT + ANSWER + SIB_ROUND_EMIT + 1], tokens[2][PROMPT + ANSWER + SIB_ROUND_EMIT + 1];
    sib_soft_span spans[2];
    sib_round *round;
    sib_lane lane[2], *lanes[2] = {&lane[0], &lane[1]};
    sib_err err;
    int n;
    tiny_write(in_fixture("lanes"), TINY_T3, TINY_V2, NULL);
    for (int rows = 7; rows <= 9; rows++) {
        rig *r = rig_open(in_fixture("lanes"), SIB_NUM_F32, 1, 2, rows);
        float *f = encode(r, &picture, TINY_BUDGET, false, &n);
        two_pictures(alone, spans, f, f, true);
        memcpy(tokens[0], alone, PROMPT * sizeof *alone);
        memcpy(tokens[1], alone, PROMPT * sizeof *alone);
        lane_init(&lane[0], r, alone, spans, 2);
        tiny_ok(sib_round_new(&round, r->m, NULL, 2, rows, &err), &err);
        while (lane[0].budget > 0) tiny_ok(sib_round_step(round, lanes, 1, &err), &err);
        lane_deinit(&lane[0], r);
        for (int i = 0; i < 2; i++) lane_init(&lane[i], r, tokens[i], spans, 2);
        while (lane[0].budget > 0 || lane[1].budget > 0) {
            int live = 0;
            for (int i = 0; i < 2; i++)
                if (lane[i].budget > 0) lanes[live++] = &lane[i];
            tiny_ok(sib_round_step(round, lanes, live, &err), &err);
        }
        lanes[0] = &lane[0];
        lanes[1] = &lane[1];
        for (int i = 0; i < 2; i++) {
            assert_memory_equal(alone, tokens[i], (PROMPT + ANSWER) * sizeof *alone);
            lane_deinit(&lane[i], r);
        }
        sib_round_free(round);
        free(f);
        rig_close(r);
    }
}

/* ---- prompts with pictures: the demo checkpoint -------------------------------------------------------- */

enum { BOI = 7, EOI = 8, IMAGE = 9 };

typedef struct file {
    sib_buf bytes;
    sib_picture picture;
} file;

static file read_picture(const char *path)
{
    file f = {0};
    sib_err err;
    tiny_ok(sib_read_file(path, 1 << 24, &f.bytes, &err), &err);
    f.picture = (sib_picture){f.bytes.p, f.bytes.n, path};
    return f;
}

static sib_engine *demo_open(const char *numerics)
{
    sib_options o;
    sib_engine *e;
    sib_err err = {0};
    sib_options_init(&o);
    o.model = "demo/gemma4-demo";
    o.numerics = numerics;
    o.n_ctx = 256;
    o.threads = 2;
    tiny_ok(sib_open(&e, &o, &err), &err);
    return e;
}

static void placeholders_become_rows(void **state)
{
    (void)state;
    sib_engine *e = demo_open("bf16");
    file a = read_picture("demo/pictures/07_512x512.png"), b = read_picture("demo/pictures/08_720x504.png");
    sib_picture both[] = {a.picture, b.picture}, turned[] = {b.picture, a.picture};
    sib_picture_set one, two, back;
    sib_err err;
    const int32_t ids[] = {2, 5, IMAGE, 30, BOI, IMAGE, EOI, 40};
    tiny_ok(sib_picture_set_new(&two, e, ids, 8, both, 2, 0, NULL, &err), &err);
    const int na = 64, nb = 70;
    assert_int_equal(two.n_ids, 6 + na + nb + 2); /* boi and eoi are added to the first, the second has its own */
    assert_int_equal(two.pictures[0].span.pos, 3);
    assert_int_equal(two.pictures[0].span.n, na);
    assert_int_equal(two.pictures[1].span.n, nb);
    for (int i = 0, at = 0; i < 2; i++) {
        const sib_soft_span *s = &two.pictures[i].span;
        assert_int_equal(two.ids[s->pos - 1], BOI);
        for (at = s->pos; at < s->pos + s->n; at++) assert_int_equal(two.ids[at], IMAGE);
        assert_int_equal(two.ids[at], EOI);
    }
    /* Order: what stands first in the prompt is the first picture. Encoding again gives the same; the last set is reused. */
    tiny_ok(sib_picture_set_new(&back, e, ids, 8, turned, 2, 0, &two, &err), &err);
    assert_ptr_equal(back.pictures[0].span.features, two.pictures[1].span.features);
    assert_memory_equal(back.pictures[1].hash, two.pictures[0].hash, 32);
    assert_memory_not_equal(back.pictures[0].hash, back.pictures[1].hash, 32);
    tiny_ok(sib_picture_set_new(&one, e, (int32_t[]){IMAGE}, 1, &b.picture, 1, 0, NULL, &err), &err);
    assert_memory_equal(one.pictures[0].span.features, two.pictures[1].span.features, (size_t)nb * 256 * sizeof(float));
    sib_picture_set_deinit(&one, e);
    sib_picture_set_deinit(&two, e);
    assert_int_equal(back.pictures[0].span.n, nb); /* features outlive the set they came from */
    /* Another budget is another view of the same pixels. */
    tiny_ok(sib_picture_set_new(&one, e, (int32_t[]){IMAGE}, 1, &b.picture, 1, 40, &back, &err), &err);
    assert_in_range(one.pictures[0].span.n, 1, 40);
    assert_memory_not_equal(one.pictures[0].hash, back.pictures[0].hash, 32);
    sib_picture_set_deinit(&one, e);
    sib_picture_set_deinit(&back, e);
    sib_buf_deinit(&a.bytes);
    sib_buf_deinit(&b.bytes);
    sib_close(e);
}

/* The first 8 values of the first and the last soft token, as the demo's reference computed them in float32. */
static void features_of_the_demo(void **state)
{
    (void)state;
    json_t *golden = json_load_file("demo/golden.json", 0, NULL), *first = json_object_get(json_object_get(golden, "gemma4-demo"), "first_token"), *o;
    const char *name;
    int pictures = 0;
    sib_engine *e = demo_open("f32");
    assert_non_null(first);
    json_object_foreach(first, name, o) {
        static const char *const keys[] = {"feature_0", "feature_last"};
        char path[128];
        sib_picture_set set;
        sib_err err;
        if (!json_object_get(o, keys[0])) continue;
        (void)snprintf(path, sizeof path, "demo/pictures/%s", name);
        file f = read_picture(path);
        tiny_ok(sib_picture_set_new(&set, e, (int32_t[]){IMAGE}, 1, &f.picture, 1, 0, NULL, &err), &err);
        for (int k = 0; k < 2; k++) {
            const sib_soft_span *s = &set.pictures[0].span;
            for (int i = 0; i < 8; i++) {
                double want = json_number_value(json_array_get(json_object_get(o, keys[k]), (size_t)i)), got = s->features[(k ? s->n - 1 : 0) * 256 + i];
                if (!(fabs(got - want) <= 1e-3)) fail_msg("%s %s[%d]: %.6g, expected %.6g", name, keys[k], i, got, want);
            }
        }
        sib_picture_set_deinit(&set, e);
        sib_buf_deinit(&f.bytes);
        pictures++;
    }
    assert_in_range(pictures, 3, 100);
    sib_close(e);
    json_decref(golden);
}

static void expect_refusal(sib_engine *e, const int32_t *ids, size_t n_ids, const sib_picture *p, int n, int budget, sib_status why, const char *says)
{
    sib_picture_set set;
    sib_err err;
    sib_status s = sib_picture_set_new(&set, e, ids, n_ids, p, n, budget, NULL, &err);
    if (s != why || !strstr(err.message, says)) fail_msg("%s, %s; wanted \"%s\"", sib_status_name(s), s == SIB_OK ? "" : err.message, says);
    assert_null(set.ids);
}

static void bad_pictures_get_a_sentence(void **state)
{
    (void)state;
    sib_engine *e = demo_open("bf16");
    file a = read_picture("demo/pictures/07_512x512.png"), narrow = read_picture("tests/cases/images/files/size-3x90.png");
    sib_picture many[5] = {a.picture, a.picture, a.picture, a.picture, a.picture}, cut = {a.bytes.p, a.bytes.n / 2, "cut.png"};
    const int32_t one[] = {2, IMAGE, 3}, five[] = {IMAGE, IMAGE, IMAGE, IMAGE, IMAGE};
    expect_refusal(e, one, 3, many, 2, 0, SIB_EARG, "places for 1 pictures");
    expect_refusal(e, one, 1, many, 1, 0, SIB_EARG, "places for 0 pictures");
    expect_refusal(e, one, 3, &cut, 1, 0, SIB_EFORMAT, "cut.png");
    expect_refusal(e, one, 3, &(sib_picture){"GIF89a", 6, NULL}, 1, 0, SIB_EUNSUPPORTED, "picture");
    expect_refusal(e, one, 3, &(sib_picture){"", 0, "empty"}, 1, 0, SIB_EFORMAT, "empty");
    expect_refusal(e, one, 3, &narrow.picture, 1, 0, SIB_EUNSUPPORTED, "has no position");
    expect_refusal(e, one, 3, many, 1, 5000, SIB_EARG, "budget");
    expect_refusal(e, one, 3, many, 1, -1, SIB_EARG, "budget");
    expect_refusal(e, five, 5, many, 5, 0, SIB_ECAPACITY, "context");
    sib_buf_deinit(&a.bytes);
    sib_buf_deinit(&narrow.bytes);
    sib_close(e);
}

/* Greedy ids of an answer, the stop token included. */
static int answer(sib_session *s, const int32_t *ids, size_t n_ids, const sib_picture *p, int n_pictures, int32_t *out)
{
    sib_request r;
    sib_token t;
    sib_err err;
    int n = 0;
    sib_request_init(&r);
    r.temperature = 0;
    r.max_tokens = 32;
    tiny_ok(sib_session_prompt(s, ids, n_ids, p, n_pictures, &r, &err), &err);
    do {
        tiny_ok(sib_session_next(s, &t, &err), &err);
        if (t.id >= 0) out[n++] = t.id;
    } while (t.finish == SIB_FINISH_NONE);
    return n;
}

static int expected_ids(const json_t *golden, const char *name, int32_t *out)
{
    const json_t *list = json_object_get(json_object_get(json_object_get(golden, "gemma4-demo"), "pictures"), name);
    for (size_t i = 0; i < json_array_size(list); i++) out[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return (int)json_array_size(list);
}

/* Pictures of one size under one question, in one session: each gets its own answer, the one of golden.json; the
 * prefix before the picture is reused, and the whole prompt when the picture comes again. */
static void the_prefix_is_told_apart_by_pixels(void **state)
{
    (void)state;
    static const char *const names[] = {"10_1000x700.png", "18_800x560.png", "16_960x672.png"}; /* all 480 x 336 to the model */
    static const char *const questions[] = {"How many shapes are in the picture?", "What is in the picture?", "What is in the picture?"};
    json_t *golden = json_load_file("demo/golden.json", 0, NULL);
    assert_non_null(golden);
    sib_engine *e = demo_open("f32");
    sib_session *s;
    sib_err err;
    sib_stats stats = {.struct_bytes = sizeof stats};
    tiny_ok(sib_session_new(&s, e, &err), &err);
    int32_t want[64], got[64];
    for (size_t i = 0; i < SIB_COUNT(names) + 1; i++) {
        size_t k = i < SIB_COUNT(names) ? i : SIB_COUNT(names) - 1, n_text, n_ids;
        char path[128], *text, context[256];
        int32_t *ids;
        (void)snprintf(path, sizeof path, "demo/pictures/%s", names[k]);
        (void)snprintf(context, sizeof context, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"},{\"type\":\"text\",\"text\":\"%s\"}]}]}", questions[k]);
        tiny_ok(sib_chat_prompt(e, context, strlen(context), &text, &n_text, &err), &err);
        tiny_ok(sib_tokenize(e, text, n_text, 0, &ids, &n_ids, &err), &err);
        file f = read_picture(path);
        int n = answer(s, ids, n_ids, &f.picture, 1, got), n_want = expected_ids(golden, names[k], want);
        assert_int_equal(n, n_want);
        assert_memory_equal(got, want, (size_t)n * sizeof *got);
        tiny_ok(sib_session_stats(s, &stats), &err);
        assert_int_equal(stats.prompt_tokens, (int)n_ids + 70 + 1);
        int place = 0;
        while (ids[place] != IMAGE) place++;
        assert_int_equal(stats.cached_tokens, i == 0 ? 0 : i < SIB_COUNT(names) ? place + 1 : stats.prompt_tokens - 1); /* + boi */
        sib_free(ids);
        sib_free(text);
        sib_buf_deinit(&f.bytes);
    }
    sib_session_free(s);
    sib_close(e);
    json_decref(golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_the_specification),
        cmocka_unit_test(names_and_places_do_not_matter),
        cmocka_unit_test(leftovers_are_ignored),
        cmocka_unit_test(text_only_export_answers_text),
        cmocka_unit_test(linears_are_quantized_by_presence),
        cmocka_unit_test(sizes_without_a_place_are_refused),
        cmocka_unit_test(work_memory_comes_with_the_first_picture),
        cmocka_unit_test(hostile_configs_are_refused),
        cmocka_unit_test(chunks_and_threads_change_no_bit),
        cmocka_unit_test(a_picture_is_never_cut_between_requests),
        cmocka_unit_test(placeholders_become_rows),
        cmocka_unit_test(features_of_the_demo),
        cmocka_unit_test(bad_pictures_get_a_sentence),
        cmocka_unit_test(the_prefix_is_told_apart_by_pixels),
    };
    tiny_bytes("pixels", pixels, sizeof pixels);
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}

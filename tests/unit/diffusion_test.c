/* tests/unit/diffusion_test.c - DiffusionGemma: the demo checkpoint's reference logits, promises of the denoising port, and
 * answers through the public interface. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/json.h"
#include "base/rng.h"
#include "engine/registry.h"
#include "image/image.h"
#include "ports/denoise.h"
#include "ports/images.h"
#include "sibyl/sibyl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEMO "demo/diffusion-gemma-demo"
#define CASE "tests/golden/cases/diffusion-gemma"

/* ---- a model by itself ------------------------------------------------------------------------- */

typedef struct rig {
    sib_device *device;
    sib_checkpoint *files;
    sib_model *m;
} rig;

static rig open_rig(const char *dir, sib_numerics numerics, int threads, int max_rows)
{
    rig r = {0};
    sib_err err;
    assert_int_equal(sib_cpu_device_new(&r.device, &(sib_cpu_options){.numerics = numerics, .threads = threads}, &err), SIB_OK);
    assert_int_equal(sib_checkpoint_open(&r.files, dir, NULL, &err), SIB_OK);
    sib_loader l = {.dev = r.device, .files = r.files};
    sib_model_limits limits = {.n_ctx = 256, .n_seqs = 3, .max_rows = max_rows};
    sib_status s = sib_family_for(r.files, &err)->open(&r.m, &l, &limits, &err);
    if (s != SIB_OK) fail_msg("%s", err.message);
    return r;
}

static void close_rig(rig *r)
{
    r->m->ops->free(r->m);
    sib_checkpoint_free(r->files);
    sib_device_free(r->device);
}

static sib_seq *encode(rig *r, const int32_t *ids, int n, int chunk, const sib_soft *soft)
{
    sib_seq *seq;
    sib_forward_out out;
    assert_int_equal(r->m->ops->seq_new(r->m, &seq, NULL), SIB_OK);
    for (int at = 0; at < n; at += chunk) {
        sib_part part = {.seq = seq, .ids = ids + at, .n_rows = n - at < chunk ? n - at : chunk, .soft = soft, .n_soft = soft ? 1 : 0};
        assert_int_equal(r->m->ops->forward(r->m, &part, 1, &out, NULL), SIB_OK);
        assert_int_equal(r->m->offers.keep->keep(r->m, seq, part.n_rows, NULL), SIB_OK);
    }
    return seq;
}

/* Results of a pass over up to three canvases. */
typedef struct pass {
    int32_t best[96], proposal[96];
    float entropy[96], confidence[96];
    double u[96];
} pass;

static void step(rig *r, pass *p, sib_canvas *c, int n)
{
    sib_err err;
    sib_denoised out = {p->best, p->proposal, p->entropy, p->confidence};
    sib_status s = r->m->offers.denoise->step(r->m, c, n, &out, &err);
    if (s != SIB_OK) fail_msg("%s", err.message);
}

static int ids_of(const json_t *list, int32_t *out, int cap)
{
    int n = (int)json_array_size(list);
    assert_true(n > 0 && n <= cap);
    for (int i = 0; i < n; i++) out[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return n;
}

static void compare_pass(const json_t *want, const pass *p, const float *logits, int n, int n_vocab)
{
    for (int i = 0; i < n; i++) {
        const json_t *id = json_array_get(json_object_get(want, "argmax"), (size_t)i), *value = json_array_get(json_object_get(want, "max_logit"), (size_t)i);
        assert_int_equal(p->best[i], json_integer_value(id));
        double got = logits[(size_t)i * (size_t)n_vocab + (size_t)p->best[i]], limit = 2e-3;
        if (fabs(got - json_number_value(value)) > limit) fail_msg("row %d: logit %g, expected %g", i, got, json_number_value(value));
    }
}

/* demo/golden.json: two passes over a fixed canvas, the second conditioned on the first at temperature 0.8. */
static void passes_of_the_demo_reference(void **state)
{
    (void)state;
    json_t *all;
    assert_int_equal(sib_json_read(&all, "demo/golden.json", 64 << 20, NULL), SIB_OK);
    const json_t *cases = json_object_get(all, "diffusion-gemma-demo");
    rig r = open_rig(DEMO, SIB_NUM_F32, 2, 0);
    const sib_denoise_port *port = r.m->offers.denoise;
    const char *key;
    json_t *o;
    int seen = 0;
    json_object_foreach((json_t *)(uintptr_t)cases, key, o)
    {
        int32_t ids[200], canvas[32];
        int n = ids_of(json_object_get(o, "prompt_ids"), ids, 200), width = ids_of(json_object_get(o, "canvas"), canvas, 32), n_soft;
        sib_soft soft = {.bidirectional = true, .everywhere = true};
        void *features = NULL;
        if (strchr(key, '.')) {
            char path[128];
            sib_image image;
            (void)snprintf(path, sizeof path, "demo/pictures/%s", key);
            assert_int_equal(sib_image_read(&image, path, NULL, NULL), SIB_OK);
            const sib_image_port *images = r.m->offers.images;
            assert_int_equal(images->count(r.m, image.width, image.height, images->default_budget, &n_soft, NULL), SIB_OK);
            assert_int_equal(r.device->ops->alloc(r.device, (size_t)n_soft * (size_t)r.m->facts.hidden * 4, &features, NULL), SIB_OK);
            assert_int_equal(images->encode(r.m, &(sib_rgb){image.width, image.height, image.rgb}, images->default_budget, false, features, NULL), SIB_OK);
            sib_image_deinit(&image);
            while (ids[soft.first] != images->image_id) soft.first++;
            soft.n = n_soft;
            soft.features = features;
        }
        pass p;
        sib_canvas c = {.ids = canvas, .n = width, .t = 0.8f, .seq = encode(&r, ids, n, n, features ? &soft : NULL)};
        step(&r, &p, &c, 1);
        compare_pass(json_object_get(o, "pass_1"), &p, port->logits(r.m), width, r.m->facts.n_vocab);
        assert_int_equal(port->condition(r.m, NULL, NULL, NULL), SIB_OK);
        c.conditioned = true;
        step(&r, &p, &c, 1);
        compare_pass(json_object_get(o, "pass_2"), &p, port->logits(r.m), width, r.m->facts.n_vocab);
        r.m->ops->seq_free(r.m, c.seq);
        if (features) r.device->ops->release(r.device, features, (size_t)soft.n * (size_t)r.m->facts.hidden * 4);
        seen++;
    }
    assert_int_equal(seen, 5);
    close_rig(&r);
    json_decref(all);
}

/* Two passes over the canvas of one sequence; logits of the second. */
static float *two_passes(rig *r, const int32_t *ids, int n, int chunk, const int32_t *canvas, int width, bool company)
{
    const sib_denoise_port *port = r->m->offers.denoise;
    size_t count = (size_t)width * (size_t)r->m->facts.n_vocab;
    pass p = {.u = {0.3, 0.7}};
    sib_canvas c[3] = {{.seq = encode(r, ids, n, chunk, NULL), .ids = canvas, .n = width, .t = 0.7f, .second = 1, .u = p.u}};
    sib_canvas mine = c[0];
    int n_canvases = 1, row = 0;
    if (company) { /* a shorter one before, one at another length behind */
        c[0] = (sib_canvas){.seq = encode(r, ids + 3, n - 5, n, NULL), .ids = canvas + 2, .n = width - 3, .t = 0.5f};
        c[1] = mine;
        c[2] = (sib_canvas){.seq = encode(r, ids, 2, 1, NULL), .ids = canvas, .n = width, .t = 0.9f};
        n_canvases = 3;
        row = width - 3;
    }
    for (int k = 0; k < 2; k++) {
        step(r, &p, c, n_canvases);
        if (k == 0) assert_int_equal(port->condition(r->m, NULL, NULL, NULL), SIB_OK);
        for (int i = 0; i < n_canvases; i++) c[i].conditioned = true;
    }
    float *out = malloc(count * sizeof *out);
    memcpy(out, port->logits(r->m) + (size_t)row * (size_t)r->m->facts.n_vocab, count * sizeof *out);
    for (int i = 0; i < n_canvases; i++) r->m->ops->seq_free(r->m, c[i].seq);
    return out;
}

static void chunks_threads_and_company_change_no_bit(void **state)
{
    (void)state;
    int32_t ids[150], canvas[32];
    uint64_t seed = 11;
    for (int i = 0; i < 150; i++) ids[i] = (int32_t)(sib_splitmix64(&seed) % 4000) + 20;
    for (int i = 0; i < 32; i++) canvas[i] = (int32_t)(sib_splitmix64(&seed) % 4000) + 20;
    for (int mode = SIB_NUM_F32; mode <= SIB_NUM_INT8; mode++) {
        float *want = NULL;
        for (int threads = 1; threads <= 2; threads++) {
            rig r = open_rig(DEMO, (sib_numerics)mode, threads, 160);
            size_t bytes = 32 * (size_t)r.m->facts.n_vocab * sizeof *want;
            static const int chunks[] = {150, 64, 7, 1};
            for (size_t i = 0; i < SIB_COUNT(chunks); i++) {
                float *got = two_passes(&r, ids, 150, chunks[i], canvas, 32, i % 2 == 1);
                if (want)
                    assert_memory_equal(want, got, bytes);
                else
                    want = malloc(bytes), memcpy(want, got, bytes);
                free(got);
            }
            close_rig(&r);
        }
        free(want);
    }
}

/* A canvas leaves nothing behind: what follows is as if it had never been. */
static void a_step_commits_nothing(void **state)
{
    (void)state;
    int32_t ids[70], canvas[32];
    for (int i = 0; i < 70; i++) ids[i] = 20 + i * 7;
    for (int i = 0; i < 32; i++) canvas[i] = 30 + i * 5;
    rig r = open_rig(DEMO, SIB_NUM_F32, 1, 0);
    pass a, b;
    sib_canvas c = {.seq = encode(&r, ids, 60, 60, NULL), .ids = canvas, .n = 32, .t = 0.8f};
    step(&r, &a, &c, 1);
    assert_int_equal(r.m->ops->seq_length(r.m, c.seq), 60);
    sib_forward_out out;
    sib_part part = {.seq = c.seq, .ids = ids + 60, .n_rows = 10};
    assert_int_equal(r.m->ops->forward(r.m, &part, 1, &out, NULL), SIB_OK);
    assert_int_equal(r.m->offers.keep->keep(r.m, c.seq, 10, NULL), SIB_OK);
    step(&r, &a, &c, 1);
    sib_canvas fresh = c;
    fresh.seq = encode(&r, ids, 70, 70, NULL);
    step(&r, &b, &fresh, 1);
    assert_memory_equal(a.best, b.best, 32 * sizeof *a.best);
    assert_memory_equal(a.entropy, b.entropy, 32 * sizeof *a.entropy);
    assert_int_equal(r.m->offers.keep->truncate(r.m, c.seq, 60, NULL), SIB_OK);
    r.m->ops->seq_free(r.m, c.seq);
    r.m->ops->seq_free(r.m, fresh.seq);
    close_rig(&r);
}

static void wrong_calls_are_refused(void **state)
{
    (void)state;
    rig r = open_rig(CASE, SIB_NUM_F32, 1, 0);
    const sib_denoise_port *port = r.m->offers.denoise;
    int32_t ids[20] = {3, 4, 5}, bad[16] = {512};
    pass p;
    sib_denoised out = {p.best, p.proposal, p.entropy, p.confidence};
    sib_forward_out forward;
    sib_seq *seq = encode(&r, ids, 3, 3, NULL);
    const sib_canvas wrong[] = {{.seq = seq, .ids = ids, .n = 0, .t = 1}, {.seq = seq, .ids = ids, .n = 17, .t = 1}, {.seq = seq, .ids = bad, .n = 16, .t = 1},
                                {.seq = seq, .ids = ids, .n = 16, .t = 0}, {.seq = seq, .ids = ids, .n = 16, .t = 1, .second = 1}};
    for (size_t i = 0; i < SIB_COUNT(wrong); i++) assert_int_equal(port->step(r.m, &wrong[i], 1, &out, NULL), SIB_EARG);
    assert_int_equal(port->condition(r.m, NULL, NULL, NULL), SIB_ESTATE);
    sib_part part = {.seq = seq, .ids = ids, .n_rows = 2, .n_logits = 1};
    assert_int_equal(r.m->ops->forward(r.m, &part, 1, &forward, NULL), SIB_EARG);
    r.m->ops->seq_free(r.m, seq);
    close_rig(&r);
}

/* ---- through the public interface ---------------------------------------------------------------- */

typedef struct talk {
    sib_engine *engine;
    sib_session *session;
} talk;

static talk open_talk(const char *numerics, int threads, int n_ctx)
{
    talk t;
    sib_err err;
    sib_options o;
    sib_options_init(&o);
    o.model = DEMO;
    o.numerics = numerics;
    o.threads = threads;
    o.n_ctx = n_ctx;
    if (sib_open(&t.engine, &o, &err) != SIB_OK || sib_session_new(&t.session, t.engine, &err) != SIB_OK) fail_msg("%s", err.message);
    return t;
}

static void close_talk(talk *t)
{
    sib_session_free(t->session);
    sib_close(t->engine);
}

typedef struct answer {
    int32_t ids[512];
    int n, frames;
    char text[4096];
    char last_frame[4096];
    sib_finish finish;
} answer;

static int32_t *prompt_ids(const talk *t, const char *question, size_t *n)
{
    char context[512], *text;
    size_t bytes;
    int32_t *ids;
    (void)snprintf(context, sizeof context, "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", question);
    assert_int_equal(sib_chat_prompt(t->engine, context, strlen(context), &text, &bytes, NULL), SIB_OK);
    assert_int_equal(sib_tokenize(t->engine, text, bytes, 0, &ids, n, NULL), SIB_OK);
    sib_free(text);
    return ids;
}

static sib_status ask(talk *t, const int32_t *ids, size_t n, const sib_request *r, answer *a, sib_err *err)
{
    memset(a, 0, sizeof *a);
    SIB_TRY(sib_session_prompt(t->session, ids, n, NULL, 0, r, err));
    while (a->finish == SIB_FINISH_NONE) {
        sib_token e;
        SIB_TRY(sib_session_next(t->session, &e, err));
        if (e.draft) {
            a->frames++;
            assert_true(e.id == -1 && e.text_bytes == 0 && e.step >= 1 && e.step <= e.steps);
            (void)snprintf(a->last_frame, sizeof a->last_frame, "%.*s", (int)e.draft_bytes, e.draft);
        }
        if (e.id >= 0) a->ids[a->n++] = e.id;
        strncat(a->text, e.text, e.text_bytes);
        a->finish = e.finish;
    }
    return SIB_OK;
}

static sib_request request(void)
{
    sib_request r;
    sib_request_init(&r);
    return r;
}

static sib_stats stats(const talk *t)
{
    sib_stats s = {.struct_bytes = sizeof s};
    assert_int_equal(sib_session_stats(t->session, &s), SIB_OK);
    return s;
}

static void ten_runs_are_equal(void **state)
{
    (void)state;
    answer first, a;
    size_t n;
    sib_request r = request();
    r.seed = 3;
    for (int threads = 1; threads <= 2; threads++) {
        talk t = open_talk(NULL, threads, 0);
        int32_t *ids = prompt_ids(&t, "What day comes after Monday?", &n);
        for (int i = 0; i < 5; i++) {
            assert_int_equal(ask(&t, ids, n, &r, threads == 1 && i == 0 ? &first : &a, NULL), SIB_OK);
            if (threads == 1 && i == 0) continue;
            assert_memory_equal(&first.ids, &a.ids, sizeof a.ids);
            assert_int_equal(stats(&t).cached_tokens, threads == 2 && i == 0 ? 0 : (int)n);
        }
        sib_free(ids);
        close_talk(&t);
    }
    assert_int_equal(first.finish, SIB_FINISH_STOP);
    assert_int_equal(first.ids[first.n - 1], 6);
    assert_true(strlen(first.text) > 2);
}

static void several_canvases_and_the_next_turn(void **state)
{
    (void)state;
    talk t = open_talk(NULL, 1, 512);
    answer a, again, cut;
    size_t n;
    int32_t *ids = prompt_ids(&t, "Say hello.", &n), next[600];
    sib_request r = request();
    r.ignore_eos = true;
    r.max_tokens = 75;
    assert_int_equal(ask(&t, ids, n, &r, &a, NULL), SIB_OK);
    assert_int_equal(a.n, 75);
    assert_int_equal(a.finish, SIB_FINISH_LENGTH);
    sib_stats s = stats(&t);
    assert_int_equal(s.canvases, 3);
    assert_true(s.steps >= 3 && fabs(s.tokens_per_step - 75.0 / s.steps) < 1e-9);
    /* Two settled canvases are in the cache; the third was never encoded. */
    memcpy(next, ids, n * sizeof *ids);
    memcpy(next + n, a.ids, (size_t)a.n * sizeof *ids);
    r.max_tokens = 20;
    assert_int_equal(ask(&t, next, n + (size_t)a.n, &r, &again, NULL), SIB_OK);
    assert_int_equal(stats(&t).cached_tokens, (int)n + 64);
    talk u = open_talk(NULL, 1, 512);
    assert_int_equal(ask(&u, next, n + (size_t)a.n, &r, &cut, NULL), SIB_OK);
    assert_memory_equal(again.ids, cut.ids, sizeof cut.ids);
    /* The context's end shortens the last canvas. */
    close_talk(&u);
    u = open_talk(NULL, 1, (int)n + 40);
    r.max_tokens = -1;
    assert_int_equal(ask(&u, ids, n, &r, &cut, NULL), SIB_OK);
    assert_int_equal(cut.n, 40);
    assert_int_equal(cut.finish, SIB_FINISH_LENGTH);
    assert_memory_equal(cut.ids, a.ids, 32 * sizeof *a.ids);
    close_talk(&u);
    close_talk(&t);
    sib_free(ids);
}

static void frames_show_the_canvas_settling(void **state)
{
    (void)state;
    talk t = open_talk(NULL, 1, 0);
    answer plain, shown;
    size_t n;
    int32_t *ids = prompt_ids(&t, "What day comes after Monday?", &n);
    sib_request r = request();
    assert_int_equal(ask(&t, ids, n, &r, &plain, NULL), SIB_OK);
    assert_int_equal(plain.frames, 0);
    r.frames = true;
    assert_int_equal(ask(&t, ids, n, &r, &shown, NULL), SIB_OK);
    assert_memory_equal(plain.ids, shown.ids, sizeof plain.ids);
    assert_int_equal(shown.frames, stats(&t).steps);
    assert_string_equal(shown.text, shown.last_frame);
    sib_free(ids);
    close_talk(&t);
}

static void an_answer_stops_between_steps(void **state)
{
    (void)state;
    talk t = open_talk(NULL, 1, 0);
    answer a, b;
    size_t n;
    int32_t *ids = prompt_ids(&t, "Define template.", &n);
    sib_request r = request();
    sib_token e;
    r.frames = true;
    assert_int_equal(sib_session_prompt(t.session, ids, n, NULL, 0, &r, NULL), SIB_OK);
    assert_int_equal(sib_session_next(t.session, &e, NULL), SIB_OK);
    assert_non_null(e.draft);
    sib_session_cancel(t.session);
    do assert_int_equal(sib_session_next(t.session, &e, NULL), SIB_OK);
    while (e.finish == SIB_FINISH_NONE);
    assert_int_equal(e.finish, SIB_FINISH_CANCELLED);
    assert_int_equal(stats(&t).generated_tokens, 0);
    assert_int_equal(sib_session_next(t.session, &e, NULL), SIB_ESTATE);
    r.frames = false; /* the next answer is as on a fresh session */
    assert_int_equal(ask(&t, ids, n, &r, &a, NULL), SIB_OK);
    talk u = open_talk(NULL, 1, 0);
    assert_int_equal(ask(&u, ids, n, &r, &b, NULL), SIB_OK);
    assert_memory_equal(a.ids, b.ids, sizeof a.ids);
    close_talk(&u);
    sib_free(ids);
    close_talk(&t);
}

static void write_file(char path[static 64], const char *text)
{
    (void)snprintf(path, 64, "/tmp/sibyl-canvas-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void knobs_and_canvases_are_checked(void **state)
{
    (void)state;
    talk t = open_talk(NULL, 1, 0);
    answer a, b;
    sib_err err;
    size_t n;
    int32_t *ids = prompt_ids(&t, "Say hello.", &n), bias_id = 5;
    float bias = 1;
    sib_request r[12];
    for (size_t i = 0; i < SIB_COUNT(r); i++) r[i] = request();
    r[0].top_k = 5;
    r[1].top_p = 0.5;
    r[2].repetition_penalty = 1.1;
    r[3].bias_ids = &bias_id, r[3].bias_values = &bias, r[3].n_bias = 1;
    r[4].dialect = "jax";
    r[5].sampler = "ddim";
    r[6].sampler = "confidence"; /* dialect hf has none */
    r[7].steps = 5000;
    r[8].temperature = -1;
    r[9].replay = "/nonexistent.safetensors";
    r[10].steps = -1;
    r[11].min_p = 0.1;
    for (size_t i = 0; i < SIB_COUNT(r); i++) {
        sib_status s = ask(&t, ids, n, &r[i], &a, &err);
        assert_true(s == SIB_EARG || s == SIB_EUNSUPPORTED || s == SIB_EIO);
        assert_true(strlen(err.message) > 10);
    }
    static const char *const bad[] = {"[1,2,3]", "[]", "{}", "[1.5]", "[-1]"};
    char path[64];
    sib_request q = request();
    q.canvas = path;
    for (size_t i = 0; i < SIB_COUNT(bad); i++) {
        write_file(path, bad[i]);
        sib_status s = ask(&t, ids, n, &q, &a, &err);
        assert_true(s == SIB_EARG || s == SIB_EFORMAT);
        if (i == 0) assert_non_null(strstr(err.message, "32 positions, 3 ids"));
        (void)unlink(path);
    }
    char all[512] = "[";
    for (int i = 0; i < 32; i++) (void)snprintf(all + strlen(all), sizeof all - strlen(all), i % 2 ? "null%s" : "17%s", i < 31 ? "," : "]");
    write_file(path, all);
    assert_int_equal(ask(&t, ids, n, &q, &a, &err), SIB_OK);
    assert_int_equal(ask(&t, ids, n, &q, &b, &err), SIB_OK);
    assert_memory_equal(a.ids, b.ids, sizeof a.ids);
    (void)unlink(path);
    sib_free(ids);
    close_talk(&t);
}

static void dialect_mlx_answers(void **state)
{
    (void)state;
    talk t = open_talk(NULL, 1, 0);
    answer a, b;
    size_t n;
    int32_t *ids = prompt_ids(&t, "What day comes after Monday?", &n);
    static const char *const samplers[] = {"entropy", "confidence"};
    for (int i = 0; i < 4; i++) {
        sib_request r = request();
        r.dialect = "mlx";
        r.sampler = samplers[i % 2];
        if (i >= 2) r.temperature = 0.7;
        assert_int_equal(ask(&t, ids, n, &r, &a, NULL), SIB_OK);
        assert_int_equal(ask(&t, ids, n, &r, &b, NULL), SIB_OK);
        assert_memory_equal(a.ids, b.ids, sizeof a.ids);
        assert_int_equal(a.finish, SIB_FINISH_STOP);
        assert_true(a.n > 1 && stats(&t).canvases == 1);
    }
    sib_free(ids);
    close_talk(&t);
}


static void a_drafter_is_refused(void **state)
{
    (void)state;
    sib_engine *e;
    sib_err err;
    sib_options o;
    sib_options_init(&o);
    o.model = DEMO;
    o.draft = "demo/gemma4-demo-assistant";
    assert_int_equal(sib_open(&e, &o, &err), SIB_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "no drafter"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_of_the_demo_reference),
        cmocka_unit_test(chunks_threads_and_company_change_no_bit),
        cmocka_unit_test(a_step_commits_nothing),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(ten_runs_are_equal),
        cmocka_unit_test(several_canvases_and_the_next_turn),
        cmocka_unit_test(frames_show_the_canvas_settling),
        cmocka_unit_test(an_answer_stops_between_steps),
        cmocka_unit_test(knobs_and_canvases_are_checked),
        cmocka_unit_test(dialect_mlx_answers),
        cmocka_unit_test(a_drafter_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

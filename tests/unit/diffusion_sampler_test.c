/* tests/unit/diffusion_sampler_test.c - schedule, acceptance, stopping and random ids of block diffusion against the hand
 * vectors of diffusion_gemma.md 3.9 and 8.1. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "sample/diffusion_sampler.h"

#include <math.h>
#include <string.h>

static sib_diffusion_params defaults(sib_dialect dialect)
{
    sib_diffusion_params p;
    assert_int_equal(sib_diffusion_params_read(&p, dialect, NULL, "test", NULL), SIB_OK);
    return p;
}

static sib_status read_config(sib_diffusion_params *p, sib_dialect dialect, const char *text, sib_err *err)
{
    json_t *o;
    assert_int_equal(sib_json_parse(&o, sib_str_of(text), "test", NULL), SIB_OK);
    sib_status s = sib_diffusion_params_read(p, dialect, o, "test.json", err);
    json_decref(o);
    return s;
}

static void temperatures_fall_linearly(void **state)
{
    (void)state;
    for (int dialect = SIB_DIALECT_HF; dialect <= SIB_DIALECT_MLX; dialect++) {
        sib_diffusion_params p = defaults((sib_dialect)dialect);
        assert_int_equal(p.steps, 48);
        assert_true(fabsf(sib_diffusion_temperature(&p, 48) - 0.8f) < 1e-7f);
        assert_true(fabsf(sib_diffusion_temperature(&p, 24) - 0.6f) < 1e-7f);
        assert_true(fabsf(sib_diffusion_temperature(&p, 1) - 0.4083333f) < 1e-6f);
    }
}

static void entropy_bound_accepts_by_rank(void **state)
{
    (void)state;
    const float h[] = {0.05f, 0.02f, 0.30f, 0.04f, 0.045f}, zero[5] = {0}, large[] = {5, 5, 5, 5, 5};
    const bool want[] = {0, 1, 0, 1, 1}, all[] = {1, 1, 1, 1, 1}, one[] = {1, 0, 0, 0, 0};
    bool got[5];
    int32_t order[10];
    sib_accept_entropy(got, order, h, 5, 0.1f);
    assert_memory_equal(got, want, sizeof got);
    sib_accept_entropy(got, order, zero, 5, 0.1f);
    assert_memory_equal(got, all, sizeof got);
    sib_accept_entropy(got, order, large, 5, 0.1f);
    assert_memory_equal(got, one, sizeof got); /* rank 0 always, the lower position of equals */
    const float edge[] = {0.5f, 0.25f, 0.25f};
    sib_accept_entropy(got, order, edge, 3, 0.5f); /* 0.25 + 0.25 before it: equality is accepted */
    assert_true(got[0] && got[1] && got[2]);
}

static void confidence_reveals_what_is_sure(void **state)
{
    (void)state;
    const float a[] = {0.2f, 0.95f, 0.4f}, b[] = {0.2f, 0.3f, 0.3f}, ones[] = {1, 1, 1};
    bool none[3] = {0}, first[3] = {1, 0, 0}, all[3] = {1, 1, 1}, got[3];
    sib_accept_confidence(got, none, a, 3, 0.9f, false);
    assert_true(!got[0] && got[1] && !got[2]);
    sib_accept_confidence(got, none, b, 3, 0.9f, false);
    assert_true(!got[0] && got[1] && !got[2]); /* forced, the lower of two equals */
    sib_accept_confidence(got, none, b, 3, 0.9f, true);
    assert_true(got[0] && got[1] && got[2]);
    sib_accept_confidence(got, first, a, 3, 0.0f, false);
    assert_true(!got[0] && got[1] && got[2]);
    sib_accept_confidence(got, all, a, 3, 0.0f, true);
    assert_true(!got[0] && !got[1] && !got[2]);
    sib_accept_confidence(got, none, ones, 3, 1.0f, false);
    assert_true(got[0] && got[1] && got[2]);
}

/* Runs one canvas over given best tokens (a letter each) and mean entropies; the step at which it settles. */
static int settles_at(const sib_diffusion_params *p, const char *best, const float *entropy, int32_t pad)
{
    sib_canvas_state c;
    sib_canvas_source s;
    int step = 0;
    assert_int_equal(sib_canvas_state_init(&c, 2, NULL), SIB_OK);
    sib_canvas_source_init(&s, p, 128, NULL);
    assert_int_equal(sib_canvas_begin(&c, &s, NULL, 2, NULL), SIB_OK);
    while (!c.settled && best[step]) {
        const int32_t b[2] = {best[step], 5};
        int32_t proposal[2] = {1, 2};
        const float h[2] = {entropy[step], entropy[step]};
        float conf[2] = {0.1f, 0.1f};
        if (pad >= 0) proposal[0] = 1;
        const int32_t padding[2] = {pad, pad};
        assert_int_equal(sib_canvas_step(&c, &s, pad >= 0 ? padding : b, proposal, h, conf, NULL, pad, NULL), SIB_OK);
        step++;
    }
    bool settled = c.settled;
    sib_canvas_state_deinit(&c);
    return settled ? step : -1;
}

static void canvases_stop_when_stable_and_confident(void **state)
{
    (void)state;
    const float low[8] = {0.004f, 0.004f, 0.004f, 0.004f, 0.004f, 0.004f, 0.004f, 0.004f};
    const float edge[8] = {0.005f, 0.005f, 0.005f, 0.005f, 0.005f, 0.005f, 0.005f, 0.005f};
    const float late[8] = {1, 0.004f, 1, 1, 0.004f, 1, 1, 1};
    sib_diffusion_params p = defaults(SIB_DIALECT_HF);
    assert_int_equal(settles_at(&p, "AAAA", low, -1), 2);
    assert_int_equal(settles_at(&p, "AAAAAA", edge, -1), -1); /* strictly below */
    assert_int_equal(settles_at(&p, "ABBAAA", low, -1), 3);
    p.stability = 3;
    assert_int_equal(settles_at(&p, "AAAAAA", low, -1), 4);
    assert_int_equal(settles_at(&p, "AABAAAAA", low, -1), 7);
    p.stability = 0;
    assert_int_equal(settles_at(&p, "ABCD", late, -1), 2);
    assert_int_equal(settles_at(&p, "AAAA", low, 0), -1); /* padding is no answer */
    p.may_stop = false;
    p.steps = 5;
    assert_int_equal(settles_at(&p, "AAAAAAAA", low, -1), 5);
}

static void mlx_random_numbers(void **state)
{
    (void)state;
    static const uint32_t split[] = {4146024105u, 967050713u, 2718843009u, 1272950319u};
    static const int32_t canvas[] = {185000, 41720, 189586, 58903, 148497, 10569, 138740, 40704};
    static const int32_t first[] = {237061, 160663, 261275, 184451, 156671, 36274, 178561, 204381};
    static const int32_t second[] = {253266, 234386, 54417, 57985, 32379, 17394, 181265, 8048};
    static const int32_t small[4][6] = {{9, 2, 9, 112, 21, 13}, {105, 63, 29, 9, 109, 105}, {112, 79, 36, 70, 98, 65}, {114, 112, 5, 47, 32, 112}};
    sib_mlx_random r = sib_mlx_random_seed(0);
    const sib_mlx_call whole = {{0, 0}, 4};
    for (uint64_t i = 0; i < 4; i++) assert_int_equal(sib_mlx_word(&whole, i), split[i]);
    sib_mlx_call c = sib_mlx_random_call(&r, 256);
    for (uint64_t i = 0; i < 8; i++) assert_int_equal(sib_mlx_randint(&c, i, 262144), canvas[i]);
    r = sib_mlx_random_seed(0);
    c = sib_mlx_random_call(&r, 64);
    for (uint64_t i = 0; i < 8; i++) assert_int_equal(sib_mlx_randint(&c, i, 262144), first[i]);
    c = sib_mlx_random_call(&r, 64);
    for (uint64_t i = 0; i < 8; i++) assert_int_equal(sib_mlx_randint(&c, i, 262144), second[i]);
    r = sib_mlx_random_seed(0);
    for (int k = 0; k < 4; k++) {
        c = sib_mlx_random_call(&r, 6);
        for (uint64_t i = 0; i < 6; i++) assert_int_equal(sib_mlx_randint(&c, i, 128), small[k][i]);
    }
    r = sib_mlx_random_seed(12345678901234ull); /* every word of an odd call is in range and used once */
    c = sib_mlx_random_call(&r, 7);
    for (uint64_t i = 0; i < 7; i++)
        for (uint64_t j = 0; j < i; j++) assert_true(sib_mlx_word(&c, i) != sib_mlx_word(&c, j));
}

static void draws_are_keyed_by_position(void **state)
{
    (void)state;
    sib_diffusion_params p = defaults(SIB_DIALECT_HF);
    sib_canvas_state a, b;
    sib_canvas_source s, t;
    p.seed = 7;
    assert_int_equal(sib_canvas_state_init(&a, 32, NULL), SIB_OK);
    assert_int_equal(sib_canvas_state_init(&b, 32, NULL), SIB_OK);
    sib_canvas_source_init(&s, &p, 1000, NULL);
    sib_canvas_source_init(&t, &p, 1000, NULL);
    assert_int_equal(sib_canvas_begin(&a, &s, NULL, 32, NULL), SIB_OK);
    t.position = 16;
    assert_int_equal(sib_canvas_begin(&b, &t, NULL, 16, NULL), SIB_OK);
    assert_memory_equal(a.ids + 16, b.ids, 16 * sizeof *a.ids);
    int32_t given[32];
    for (int i = 0; i < 32; i++) given[i] = i % 2 ? i : -1;
    sib_canvas_source_init(&t, &p, 1000, NULL);
    assert_int_equal(sib_canvas_begin(&b, &t, given, 32, NULL), SIB_OK);
    for (int i = 0; i < 32; i++) assert_int_equal(b.ids[i], i % 2 ? i : a.ids[i]);
    sib_canvas_state_deinit(&a);
    sib_canvas_state_deinit(&b);
}

static void recorded_draws_run_out_with_a_sentence(void **state)
{
    (void)state;
    sib_diffusion_params p = defaults(SIB_DIALECT_HF);
    const int32_t ids[] = {1, 2, 3, 4, 900, 6};
    sib_replay replay = {.canvases = ids, .n_canvases = 2, .width = 2};
    sib_canvas_state c;
    sib_canvas_source s;
    sib_err err;
    assert_int_equal(sib_canvas_state_init(&c, 4, NULL), SIB_OK);
    sib_canvas_source_init(&s, &p, 128, &replay);
    assert_int_equal(sib_canvas_begin(&c, &s, NULL, 4, &err), SIB_EARG); /* wider than what was recorded */
    assert_int_equal(sib_canvas_begin(&c, &s, NULL, 2, &err), SIB_OK);
    assert_int_equal(c.ids[1], 2);
    assert_int_equal(sib_canvas_begin(&c, &s, NULL, 2, &err), SIB_OK);
    assert_int_equal(sib_canvas_begin(&c, &s, NULL, 2, &err), SIB_ECAPACITY);
    replay.n_canvases = 3;
    assert_int_equal(sib_canvas_begin(&c, &s, NULL, 2, &err), SIB_EFORMAT); /* 900 */
    sib_canvas_state_deinit(&c);
}

static void logits_that_are_not_finite_fail(void **state)
{
    (void)state;
    sib_diffusion_params p = defaults(SIB_DIALECT_HF);
    sib_canvas_state c;
    sib_canvas_source s;
    sib_err err;
    const int32_t best[2] = {3, -1};
    int32_t proposal[2] = {3, -1};
    float h[2] = {0.1f, NAN}, conf[2] = {0};
    assert_int_equal(sib_canvas_state_init(&c, 2, NULL), SIB_OK);
    sib_canvas_source_init(&s, &p, 128, NULL);
    assert_int_equal(sib_canvas_begin(&c, &s, NULL, 2, NULL), SIB_OK);
    assert_int_equal(sib_canvas_step(&c, &s, best, proposal, h, conf, NULL, -1, &err), SIB_EFORMAT);
    assert_non_null(strstr(err.message, "position 1"));
    sib_canvas_state_deinit(&c);
}

/* Dialect mlx: no draw on the last step, a confidence canvas ends once all is revealed. */
static void mlx_reveals_and_keeps(void **state)
{
    (void)state;
    sib_diffusion_params p = defaults(SIB_DIALECT_MLX);
    sib_canvas_state c;
    sib_canvas_source s;
    assert_true(p.temperature == 0 && !p.may_stop);
    p.sampler = SIB_CANVAS_CONFIDENCE;
    assert_int_equal(sib_canvas_state_init(&c, 3, NULL), SIB_OK);
    sib_canvas_source_init(&s, &p, 128, NULL);
    assert_int_equal(sib_canvas_begin(&c, &s, NULL, 3, NULL), SIB_OK);
    assert_true(sib_canvas_second(&c, &s) == 0);
    int32_t best[3] = {10, 11, 12}, proposal[3] = {10, 11, 12};
    float h[3] = {0}, conf[3] = {0.2f, 0.95f, 0.4f};
    assert_int_equal(sib_canvas_step(&c, &s, best, proposal, h, conf, NULL, -1, NULL), SIB_OK);
    assert_true(!c.settled && c.revealed[1] && c.ids[1] == 11);
    best[1] = proposal[1] = 99; /* a revealed position keeps its first id in the canvas; the text is still the best token */
    conf[0] = conf[1] = conf[2] = 0.95f;
    assert_int_equal(sib_canvas_step(&c, &s, best, proposal, h, conf, NULL, -1, NULL), SIB_OK);
    assert_true(c.settled && c.ids[1] == 11 && c.best[1] == 99);
    p.steps = 1;
    assert_int_equal(sib_canvas_begin(&c, &s, NULL, 3, NULL), SIB_OK);
    sib_mlx_random before = s.mlx;
    assert_int_equal(sib_canvas_step(&c, &s, best, proposal, h, conf, NULL, -1, NULL), SIB_OK);
    assert_true(c.settled);
    assert_memory_equal(&before, &s.mlx, sizeof before);
    sib_canvas_state_deinit(&c);
}

static void every_knob_is_checked(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "{\"max_denoising_steps\":0}", "{\"max_denoising_steps\":2.5}", "{\"max_denoising_steps\":100000}", "{\"t_min\":-0.1}", "{\"t_min\":0.9}",
        "{\"t_min\":0.8}", "{\"stability_threshold\":-1}", "{\"confidence_threshold\":0}", "{\"sampler_config\":3}",
        "{\"sampler_config\":{\"entropy_bound\":0}}", "{\"sampler_config\":{\"_cls_name\":\"DiscreteDDIMScheduler\"}}",
        "{\"linear_temperature_schedule_config\":{\"t_min\":2}}", "{\"diffusion_stopping_config\":{\"confidence_threshold\":-1}}"};
    sib_diffusion_params p;
    sib_err err;
    for (size_t i = 0; i < SIB_COUNT(bad); i++) {
        sib_status s = read_config(&p, SIB_DIALECT_HF, bad[i], &err);
        assert_true(s == SIB_EFORMAT || s == SIB_EUNSUPPORTED);
        assert_non_null(strstr(err.message, "test.json"));
    }
    assert_int_equal(read_config(&p, SIB_DIALECT_MLX, "{\"max_denoising_steps\":24,\"linear_temperature_schedule_config\":{\"t_min\":0.1,\"t_max\":0.2},"
                                 "\"diffusion_stopping_config\":{\"stability_threshold\":2,\"confidence_threshold\":0.5}}", NULL), SIB_OK);
    assert_true(p.steps == 24 && p.t_min == 0.1 && p.t_max == 0.2 && p.stability == 2 && p.confidence == 0.5 && p.may_stop);
    assert_int_equal(read_config(&p, SIB_DIALECT_HF, "{\"t_min\":null,\"max_denoising_steps\":null,\"sampler_config\":null}", NULL), SIB_OK);
    assert_true(p.steps == 48 && p.t_min == 0.4 && p.entropy_bound == 0.1 && p.may_stop);
    sib_diffusion_params wrong[6];
    for (int i = 0; i < 6; i++) wrong[i] = defaults(SIB_DIALECT_HF);
    wrong[0].steps = 0;
    wrong[1].temperature = -1;
    wrong[2].temperature = NAN;
    wrong[3].threshold = 1.5;
    wrong[4].sampler = SIB_CANVAS_CONFIDENCE; /* dialect mlx only */
    wrong[5].entropy_bound = NAN;
    for (int i = 0; i < 6; i++) assert_int_equal(sib_diffusion_params_check(&wrong[i], &err), SIB_EARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(temperatures_fall_linearly),
        cmocka_unit_test(entropy_bound_accepts_by_rank),
        cmocka_unit_test(confidence_reveals_what_is_sure),
        cmocka_unit_test(canvases_stop_when_stable_and_confident),
        cmocka_unit_test(mlx_random_numbers),
        cmocka_unit_test(draws_are_keyed_by_position),
        cmocka_unit_test(recorded_draws_run_out_with_a_sentence),
        cmocka_unit_test(logits_that_are_not_finite_fail),
        cmocka_unit_test(mlx_reveals_and_keeps),
        cmocka_unit_test(every_knob_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

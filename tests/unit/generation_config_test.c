/* tests/unit/generation_config_test.c - artifacts/generation_config.h (formats.md E). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "artifacts/generation_config.h"

#include "artifacts_fixture.h"

static sib_err err;
static sib_generation_config g;

static sib_status parse(const char *text)
{
    static json_t *json; /* stop strings borrow from it */
    json_decref(json);
    json = text ? json_loads(text, 0, NULL) : NULL;
    assert_true(!text || json);
    fixture_reset();
    return sib_generation_config_parse(&g, json, "generation_config.json", &err);
}

static void reads_all_fields(void **state)
{
    (void)state;
    assert_int_equal(
        parse("{\"eos_token_id\":[1,106,50,1],\"bos_token_id\":2,\"pad_token_id\":0,\"do_sample\":false,"
              "\"temperature\":0.7,"
              "\"top_k\":64,\"top_p\":0.95,\"min_p\":0.05,\"repetition_penalty\":1.1,\"presence_penalty\":1.5,"
              "\"max_new_tokens\":99,\"max_length\":1000,\"min_new_tokens\":3,\"min_length\":4,\"num_assistant_"
              "tokens\":5,"
              "\"stop_strings\":[\"a\",\"b\"],\"transformers_version\":\"5.17.0\",\"t_max\":0.8}"),
        SIB_OK);
    assert_int_equal(g.n_eos, 3);
    assert_int_equal(g.eos[1], 106);
    assert_true(g.has_bos && g.bos == 2 && g.has_pad && g.pad == 0 && g.has_do_sample && !g.do_sample);
    assert_true(g.has_temperature && g.temperature == 0.7 && g.has_top_k && g.top_k == 64 && g.top_p == 0.95 &&
                g.min_p == 0.05);
    assert_true(g.has_repetition_penalty && g.repetition_penalty == 1.1 && g.has_presence_penalty &&
                g.presence_penalty == 1.5);
    assert_false(g.has_frequency_penalty);
    assert_true(g.max_new_tokens == 99 && g.max_length == 1000 && g.min_new_tokens == 3 && g.min_length == 4 &&
                g.num_assistant_tokens == 5);
    assert_int_equal(g.n_stops, 2);
    assert_string_equal(g.stops[1], "b");
    assert_int_equal(fixture_warnings, 0);
}

static void absent_and_null_are_the_built_in_values(void **state)
{
    (void)state;
    static const char *const texts[] = {
        NULL, "{}", "{\"temperature\":null,\"eos_token_id\":null,\"stop_strings\":null,\"top_k\":null}"};
    for (size_t i = 0; i < SIB_COUNT(texts); i++) {
        assert_int_equal(parse(texts[i]), SIB_OK);
        assert_true(!g.has_temperature && !g.has_top_k && !g.has_do_sample && g.n_eos == 0 && g.n_stops == 0);
        assert_true(g.temperature == 1 && g.top_p == 1 && g.repetition_penalty == 1 && g.top_k == 0 && g.do_sample);
    }
    assert_int_equal(parse("{\"eos_token_id\":7,\"top_k\":-1,\"stop_strings\":\"x\"}"), SIB_OK);
    assert_true(g.n_eos == 1 && g.eos[0] == 7 && g.top_k == 0 && g.n_stops == 1);
}

static void unsupported_keys_give_one_warning(void **state)
{
    (void)state;
    assert_int_equal(parse("{\"num_beams\":4,\"typical_p\":0.9,\"sequence_bias\":{\"a\":1},\"guidance_scale\":1.5}"),
                     SIB_OK);
    assert_int_equal(fixture_warnings, 1);
    for (const char *const *k =
             (const char *const[]){"num_beams", "typical_p", "sequence_bias", "guidance_scale", NULL};
         *k; k++)
        assert_non_null(strstr(fixture_log, *k));
    /* The values that transformers writes by default change nothing and are not worth a word. */
    assert_int_equal(parse("{\"num_beams\":1,\"typical_p\":1.0,\"guidance_scale\":null,\"renormalize_logits\":false,"
                           "\"no_repeat_ngram_size\":0}"),
                     SIB_OK);
    assert_int_equal(fixture_warnings, 0);
}

static void refuses_wrong_types(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"temperature\":\"hot\"}", "{\"temperature\":-1}",
        "{\"top_p\":1.5}",           "{\"top_k\":1.5}",
        "{\"top_k\":4294967296}",    "{\"eos_token_id\":\"x\"}",
        "{\"eos_token_id\":[1,-2]}", "{\"eos_token_id\":[1.0]}",
        "{\"do_sample\":1}",         "{\"repetition_penalty\":0}",
        "{\"max_new_tokens\":-1}",   "{\"stop_strings\":[1]}",
        "{\"stop_strings\":[\"\"]}", "{\"stop_strings\":{}}",
    };
    for (size_t i = 0; i < SIB_COUNT(texts); i++) {
        if (parse(texts[i]) != SIB_EFORMAT) fail_msg("%s", texts[i]);
        assert_non_null(strstr(err.message, "generation_config.json: key \""));
    }
    sib_buf many = {0};
    sib_buf_addz(&many, "{\"eos_token_id\":[0");
    for (int i = 1; i <= SIB_GENERATION_MAX_IDS; i++) sib_buf_addf(&many, ",%d", i);
    sib_buf_addz(&many, "]}");
    assert_int_equal(parse(many.p), SIB_EFORMAT);
    sib_buf_deinit(&many);
    parse(NULL);
}

static void suppressed_ids_are_read(void **state)
{
    (void)state;
    assert_int_equal(parse("{\"suppress_tokens\":[258883,258882]}"), SIB_OK);
    assert_int_equal(g.n_suppress, 2);
    assert_int_equal(g.suppress[1], 258882);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(suppressed_ids_are_read),
        cmocka_unit_test(reads_all_fields),
        cmocka_unit_test(absent_and_null_are_the_built_in_values),
        cmocka_unit_test(unsupported_keys_give_one_warning),
        cmocka_unit_test(refuses_wrong_types),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}

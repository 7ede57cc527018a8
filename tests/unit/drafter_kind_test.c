/* tests/unit/drafter_kind_test.c - artifacts/drafter_kind.h: the acceptance rows of speculative.md 9. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "artifacts/drafter_kind.h"

#include "artifacts_fixture.h"

static const struct {
    const char *config; /* NULL: absent */
    bool has_dspark;
    sib_drafter_kind kind;
} rows[] = {
    {"{\"architectures\":[\"Gemma4DSparkModel\"]}", false, SIB_DRAFTER_DEEPSPEC},
    {"{\"architectures\":[\"Gemma4DSparkModel\"],\"model_type\":\"gemma4_text\"}", false, SIB_DRAFTER_DEEPSPEC},
    {"{\"architectures\":[\"Qwen3DSparkModel\"],\"model_type\":\"qwen3\"}", false, SIB_DRAFTER_DEEPSPEC},
    {"{\"model_type\":\"gemma4_assistant\"}", false, SIB_DRAFTER_ASSISTANT},
    {"{\"model_type\":\"gemma4_unified_assistant\"}", false, SIB_DRAFTER_ASSISTANT},
    {"{\"model_type\":\"muse_glimmer_assistant\"}", false, SIB_DRAFTER_ASSISTANT},
    {"{\"architectures\":[\"DFlash2DraftModel\"]}", false, SIB_DRAFTER_DFLASH},
    {"{\"architectures\":[\"DFlashDraftModel\"],\"model_type\":\"qwen3\"}", false, SIB_DRAFTER_DFLASH},
    {"{\"model_type\":\"qwen3_5_mtp\"}", false, SIB_DRAFTER_MTP},
    {"{\"model_type\":\"qwen3_5_mtp2\"}", false, SIB_DRAFTER_TWO_MODEL},
    {"{\"model_type\":\"qwen3\"}", false, SIB_DRAFTER_TWO_MODEL},
    {"{\"architectures\":[\"X\",\"Gemma4DSparkModel\"]}", false, SIB_DRAFTER_TWO_MODEL},
    {"{\"architectures\":\"Gemma4DSparkModel\"}", false, SIB_DRAFTER_TWO_MODEL},
    {"{\"architectures\":[\"gemma4dsparkmodel\"]}", false, SIB_DRAFTER_TWO_MODEL},
    {"{\"architectures\":[],\"model_type\":7}", false, SIB_DRAFTER_TWO_MODEL},
    {"{\"architectures\":[\"Gemma4DSparkModel\"]}", true, SIB_DRAFTER_DSPARK},
    {"{\"model_type\":\"gemma4_assistant\"}", true, SIB_DRAFTER_DSPARK},
    {NULL, true, SIB_DRAFTER_DSPARK},
    {NULL, false, SIB_DRAFTER_TWO_MODEL},
    {"[]", false, SIB_DRAFTER_TWO_MODEL},
    /* The first test that matches decides. */
    {"{\"architectures\":[\"Gemma4DSparkModel\"],\"model_type\":\"x_assistant\"}", false, SIB_DRAFTER_DEEPSPEC},
    {"{\"architectures\":[\"DFlash2DraftModel\"],\"model_type\":\"x_assistant\"}", false, SIB_DRAFTER_DFLASH},
    {"{\"model_type\":\"assistant_mtp\"}", false, SIB_DRAFTER_ASSISTANT},
};

static void acceptance_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIB_COUNT(rows); i++) {
        json_t *config = rows[i].config ? json_loads(rows[i].config, 0, NULL) : NULL;
        if (sib_drafter_kind_of(rows[i].has_dspark, config) != rows[i].kind) fail_msg("row %zu", i);
        assert_int_equal(sib_is_drafter_config(rows[i].has_dspark, config), rows[i].kind != SIB_DRAFTER_TWO_MODEL);
        json_decref(config);
    }
}

static void the_same_rows_as_folders(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIB_COUNT(rows); i++) {
        char name[32], file[64];
        (void)snprintf(name, sizeof name, "d%zu", i);
        fixture_mkdir(name);
        (void)snprintf(file, sizeof file, "%s/config.json", name);
        if (rows[i].config) fixture_text(file, rows[i].config);
        (void)snprintf(file, sizeof file, "%s/dspark.json", name);
        if (rows[i].has_dspark) fixture_text(file, "{}");
        if (sib_drafter_kind_in(fixture_path(name)) != rows[i].kind) fail_msg("row %zu", i);
    }
    fixture_mkdir("broken");
    fixture_text("broken/config.json", "{\"model_type\":\"gemma4_assistant\"");
    assert_int_equal(sib_drafter_kind_in(fixture_path("broken")), SIB_DRAFTER_TWO_MODEL);
}

static void predicates(void **state)
{
    (void)state;
    assert_true(sib_is_assistant_type("gemma4_unified_assistant"));
    assert_false(sib_is_assistant_type("qwen3_5_mtp"));
    assert_false(sib_is_assistant_type(""));
    assert_true(sib_is_mtp_type("qwen3_5_mtp"));
    assert_false(sib_is_mtp_type("mtp_x"));
    assert_false(sib_is_deepspec_config(NULL));
    assert_int_equal(sib_dflash_version(NULL), 0);
    json_t *one = json_loads("{\"architectures\":[\"DFlashDraftModel\"]}", 0, NULL),
           *two = json_loads("{\"architectures\":[\"DFlash2DraftModel\"]}", 0, NULL);
    assert_int_equal(sib_dflash_version(one), 1);
    assert_int_equal(sib_dflash_version(two), 2);
    json_decref(one);
    json_decref(two);
    assert_string_equal(sib_drafter_kind_name(SIB_DRAFTER_TWO_MODEL), "two-model");
    assert_string_equal(sib_drafter_kind_name(SIB_DRAFTER_DFLASH), "dflash2");
}

static void golden_folders(void **state)
{
    (void)state;
    assert_int_equal(sib_drafter_kind_in("demo/gemma4-demo-assistant"), SIB_DRAFTER_ASSISTANT);
    assert_int_equal(sib_drafter_kind_in("demo/gemma4-demo"), SIB_DRAFTER_TWO_MODEL);
    assert_int_equal(sib_drafter_kind_in("tests/golden/cases/deepspec-gemma4"), SIB_DRAFTER_DEEPSPEC);
    assert_int_equal(sib_drafter_kind_in("tests/golden/cases/dflash1"), SIB_DRAFTER_DFLASH);
    assert_int_equal(sib_drafter_kind_in("tests/golden/cases/dflash2-qwen3"), SIB_DRAFTER_DFLASH);
    assert_int_equal(sib_drafter_kind_in("tests/golden/cases/dspark-own"), SIB_DRAFTER_DSPARK);
    assert_int_equal(sib_drafter_kind_in("tests/golden/cases/qwen3_5-mtp"), SIB_DRAFTER_MTP);
    assert_int_equal(sib_drafter_kind_in("tests/golden/cases/gemma4-unified-assistant"), SIB_DRAFTER_ASSISTANT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(acceptance_rows),
        cmocka_unit_test(the_same_rows_as_folders),
        cmocka_unit_test(predicates),
        cmocka_unit_test(golden_folders),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}

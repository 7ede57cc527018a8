/* tests/unit/quant_test.c - artifacts/quant.h: shapes decide, every mismatch is named, and the probes
 * of the quantized golden cases are met exactly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "artifacts/quant.h"

#include "artifacts_fixture.h"

static sib_err err;

/* ---- a checkpoint from a table -------------------------------------------------------------- */

typedef struct spec {
    const char *name;
    sib_dtype dtype;
    int rank;
    int64_t shape[3];
} spec;

/* Writes the tensors (bytes 0,1,2,...) up to one without a name and opens the folder. */
static sib_checkpoint *checkpoint_of(const char *config, const spec *t)
{
    static unsigned char bytes[1 << 16];
    sib_safetensors_writer *w;
    sib_checkpoint *c;
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i % 61);
    (void)mkdir(fixture_path("q"), 0777);
    fixture_text("q/config.json", config);
    assert_int_equal(sib_safetensors_create(&w, fixture_path("q/model.safetensors"), 0, &err), SIB_OK);
    for (; t->name; t++)
        assert_int_equal(sib_safetensors_add(w, t->name, t->dtype, t->rank, t->shape, bytes, &err), SIB_OK);
    assert_int_equal(sib_safetensors_finish(w, &err), SIB_OK);
    assert_int_equal(sib_checkpoint_open(&c, fixture_path("q"), NULL, &err), SIB_OK);
    fixture_reset();
    return c;
}

static void plain_matrices(void **state)
{
    (void)state;
    sib_matrix_src m;
    sib_checkpoint *c = checkpoint_of("{}", (spec[]){{"a.weight", SIB_BF16, 2, {3, 5}},
                                                     {"e.weight", SIB_F16, 3, {2, 3, 5}},
                                                     {"experts.gate_up_proj", SIB_F32, 3, {2, 4, 5}},
                                                     {"f8.weight", SIB_F8_E4M3, 2, {3, 5}},
                                                     {"packed.weight", SIB_U32, 2, {3, 5}},
                                                     {0}});
    assert_int_equal(sib_matrix_of(c, "a", 3, 5, 0, &m, &err), SIB_OK);
    assert_true(m.storage == SIB_PLAIN && m.dtype == SIB_BF16 && m.out == 3 && m.in == 5 && m.n_experts == 1);
    assert_string_equal(m.name, "a.weight");
    assert_int_equal(sib_matrix_of(c, "e", 3, 5, 2, &m, &err), SIB_OK);
    assert_int_equal(m.n_experts, 2);
    assert_int_equal(sib_matrix_of(c, "experts.gate_up_proj", 4, 5, 2, &m, &err), SIB_OK);
    assert_true(sib_matrix_exists(c, "a") && sib_matrix_exists(c, "experts.gate_up_proj") &&
                !sib_matrix_exists(c, "experts"));
    assert_int_equal(sib_checkpoint_fate(c, 0, NULL), SIB_TENSOR_USED);

    assert_int_equal(sib_matrix_of(c, "a", 3, 4, 0, &m, &err), SIB_EFORMAT);
    assert_non_null(strstr(err.message, "a.weight: expected [3, 4], file has BF16 [3, 5]"));
    assert_int_equal(sib_matrix_of(c, "a", 3, 5, 1, &m, &err), SIB_EFORMAT);
    assert_non_null(strstr(err.message, "expected [1, 3, 5]"));
    assert_int_equal(sib_matrix_of(c, "e", 3, 5, 3, &m, &err), SIB_EFORMAT);
    assert_int_equal(sib_matrix_of(c, "e", 3, 5, 0, &m, &err), SIB_EFORMAT);
    assert_int_equal(sib_matrix_of(c, "absent", 3, 5, 0, &m, &err), SIB_EFORMAT);
    assert_non_null(strstr(err.message, "tensor absent.weight is missing"));
    assert_string_equal(sib_checkpoint_missing(c, 0), "absent.weight");
    assert_int_equal(sib_matrix_of(c, "f8", 3, 5, 0, &m, &err), SIB_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "F8_E4M3"));
    assert_int_equal(sib_matrix_of(c, "packed", 3, 40, 0, &m, &err), SIB_EFORMAT);
    assert_non_null(strstr(err.message, "packed.weight: packed (U32) but has no scales"));
    assert_int_equal(sib_matrix_of(c, "a", 0, 5, 0, &m, &err), SIB_EARG);
    sib_checkpoint_free(c);
}

static void affine_by_shapes(void **state)
{
    (void)state;
    static const int widths[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    for (size_t b = 0; b < SIB_COUNT(widths); b++)
        for (size_t g = 0; g < SIB_COUNT(groups); g++) {
            sib_matrix_src m;
            int64_t words = 256 * widths[b] / 32, n_groups = 256 / groups[g];
            sib_checkpoint *c = checkpoint_of("{}", (spec[]){{"a.weight", SIB_U32, 2, {3, words}},
                                                             {"a.scales", SIB_BF16, 2, {3, n_groups}},
                                                             {"a.biases", SIB_BF16, 2, {3, n_groups}},
                                                             {"a.bias", SIB_BF16, 1, {3}},
                                                             {0}});
            assert_int_equal(sib_matrix_of(c, "a", 3, 256, 0, &m, &err), SIB_OK);
            assert_true(m.storage == SIB_AFFINE && m.bits == widths[b] && m.group == groups[g] && m.dtype == SIB_BF16);
            assert_ptr_equal(m.scales, sib_checkpoint_find(c, "a.scales")->data);
            assert_ptr_equal(m.biases, sib_checkpoint_find(c, "a.biases")->data);
            assert_int_equal(sib_checkpoint_fate(c, 3, NULL), SIB_TENSOR_UNEXPECTED); /* a layer's bias is not ours */
            sib_checkpoint_free(c);
        }
}

static void affine_mismatches(void **state)
{
    (void)state;
    static const struct {
        spec t[4];
        const char *says;
        sib_status status;
    } rows[] = {
        {{{"a.weight", SIB_U32, 2, {3, 8}}, {"a.scales", SIB_BF16, 2, {3, 1}}},
         "tensor a.biases is missing",
         SIB_EFORMAT},
        {{{"a.scales", SIB_BF16, 2, {3, 1}}, {"a.biases", SIB_BF16, 2, {3, 1}}},
         "tensor a.weight is missing",
         SIB_EFORMAT},
        {{{"a.weight", SIB_BF16, 2, {3, 64}}, {"a.scales", SIB_BF16, 2, {3, 1}}, {"a.biases", SIB_BF16, 2, {3, 1}}},
         "a.weight: has scales but type BF16",
         SIB_EFORMAT},
        {{{"a.weight", SIB_U32, 2, {4, 8}}, {"a.scales", SIB_BF16, 2, {3, 1}}, {"a.biases", SIB_BF16, 2, {3, 1}}},
         "a.weight: expected [3, any]",
         SIB_EFORMAT},
        {{{"a.weight", SIB_U32, 2, {3, 8}}, {"a.scales", SIB_BF16, 2, {4, 1}}, {"a.biases", SIB_BF16, 2, {3, 1}}},
         "a.scales: expected [3, any]",
         SIB_EFORMAT},
        {{{"a.weight", SIB_U32, 2, {3, 8}}, {"a.scales", SIB_BF16, 2, {3, 1}}, {"a.biases", SIB_BF16, 2, {3, 2}}},
         "a.biases: expected [3, 1]",
         SIB_EFORMAT},
        {{{"a.weight", SIB_U32, 2, {3, 8}}, {"a.scales", SIB_BF16, 2, {3, 1}}, {"a.biases", SIB_F16, 2, {3, 1}}},
         "a.biases: type F16",
         SIB_EFORMAT},
        {{{"a.weight", SIB_U32, 2, {3, 8}}, {"a.scales", SIB_BF16, 2, {3, 4}}, {"a.biases", SIB_BF16, 2, {3, 4}}},
         "groups of 32, 64 or 128",
         SIB_EFORMAT},
        {{{"a.weight", SIB_U32, 2, {3, 8}}, {"a.scales", SIB_BF16, 2, {3, 3}}, {"a.biases", SIB_BF16, 2, {3, 3}}},
         "groups of 32, 64 or 128",
         SIB_EFORMAT},
        {{{"a.weight", SIB_U32, 2, {3, 8}}, {"a.scales", SIB_BF16, 2, {3, 0}}, {"a.biases", SIB_BF16, 2, {3, 0}}},
         "groups of 32, 64 or 128",
         SIB_EFORMAT},
        {{{"a.weight", SIB_U32, 2, {3, 14}}, {"a.scales", SIB_BF16, 2, {3, 1}}, {"a.biases", SIB_BF16, 2, {3, 1}}},
         "2, 3, 4, 5, 6 or 8 bits",
         SIB_EFORMAT},
        {{{"a.weight", SIB_U32, 2, {3, 9}}, {"a.scales", SIB_BF16, 2, {3, 1}}, {"a.biases", SIB_BF16, 2, {3, 1}}},
         "2, 3, 4, 5, 6 or 8 bits",
         SIB_EFORMAT},
        {{{"a.weight", SIB_U32, 2, {3, 0}}, {"a.scales", SIB_BF16, 2, {3, 1}}, {"a.biases", SIB_BF16, 2, {3, 1}}},
         "2, 3, 4, 5, 6 or 8 bits",
         SIB_EFORMAT},
        {{{"a.weight", SIB_U32, 2, {3, 8}}, {"a.scales", SIB_U32, 2, {3, 1}}, {"a.biases", SIB_U32, 2, {3, 1}}},
         "scales of type U32",
         SIB_EFORMAT},
        {{{"a.weight", SIB_U32, 2, {3, 8}}, {"a.scales", SIB_U8, 2, {3, 4}}}, "mode nvfp4", SIB_EUNSUPPORTED},
        {{{"a.weight", SIB_U32, 2, {3, 8}}, {"a.scales", SIB_U8, 2, {3, 2}}}, "mode mxfp4", SIB_EUNSUPPORTED},
        {{{"a.weight", SIB_U32, 2, {3, 16}}, {"a.scales", SIB_U8, 2, {3, 2}}}, "mode mxfp8", SIB_EUNSUPPORTED},
    };
    for (size_t i = 0; i < SIB_COUNT(rows); i++) {
        sib_matrix_src m;
        sib_checkpoint *c = checkpoint_of("{}", rows[i].t);
        sib_status s = sib_matrix_of(c, "a", 3, 64, 0, &m, &err);
        if (s != rows[i].status || !strstr(err.message, rows[i].says))
            fail_msg("row %zu: %s: %s", i, sib_status_name(s), err.message);
        sib_checkpoint_free(c);
    }
}

static void config_that_disagrees_is_said_once(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        int warnings;
    } rows[] = {
        {"{}", 0},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64}}", 0},
        {"{\"quantization\":{\"bits\":8,\"group_size\":64}}", 1},
        {"{\"quantization\":{\"bits\":4,\"group_size\":32}}", 1},
        {"{\"quantization\":{\"bits\":8,\"group_size\":32,\"a\":{\"bits\":4,\"group_size\":64},\"b\":{\"bits\":4,"
         "\"group_size\":64}}}",
         0},
        {"{\"quantization\":{\"bits\":8,\"group_size\":32,\"model.a\":{\"bits\":4,\"group_size\":64},\"model.b\":{"
         "\"bits\":4,\"group_size\":64}}}",
         0},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"a\":false}}", 1},
        {"{\"quantization_config\":{\"bits\":5,\"group_size\":64}}", 1},
        {"{\"text_config\":{\"quantization\":{\"bits\":5,\"group_size\":64}}}", 1},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64},\"quantization_config\":{\"bits\":5,\"group_size\":64}}", 0},
    };
    for (size_t i = 0; i < SIB_COUNT(rows); i++) {
        sib_matrix_src m;
        sib_checkpoint *c = checkpoint_of(rows[i].config, (spec[]){{"a.weight", SIB_U32, 2, {3, 8}},
                                                                   {"a.scales", SIB_F16, 2, {3, 1}},
                                                                   {"a.biases", SIB_F16, 2, {3, 1}},
                                                                   {"b.weight", SIB_U32, 2, {3, 8}},
                                                                   {"b.scales", SIB_F16, 2, {3, 1}},
                                                                   {"b.biases", SIB_F16, 2, {3, 1}},
                                                                   {0}});
        assert_int_equal(sib_matrix_of(c, "a", 3, 64, 0, &m, &err), SIB_OK);
        assert_int_equal(sib_matrix_of(c, "b", 3, 64, 0, &m, &err), SIB_OK);
        if (fixture_warnings != rows[i].warnings)
            fail_msg("row %zu: %d warnings: %s", i, fixture_warnings, fixture_log);
        sib_checkpoint_free(c);
    }
}

static void schemes_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        const char *says; /* NULL: accepted */
    } rows[] = {
        {"{}", NULL},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"mode\":\"affine\"}}", NULL},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64},\"quantization_config\":{\"quant_method\":\"auto-round\"}}",
         NULL},
        {"{\"quantization_config\":{\"quant_method\":\"awq\"}}", "\"awq\""},
        {"{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128}}", "\"gptq\""},
        {"{\"quantization_config\":{\"quant_method\":\"bitnet\"}}", "\"bitnet\""},
        {"{\"text_config\":{\"quantization_config\":{\"quant_method\":\"compressed-tensors\"}}}",
         "\"compressed-tensors\""},
        {"{\"quantization_config\":{\"quant_method\":\"fp8\"}}", "\"fp8\""},
        {"{\"quantization\":{\"bits\":4,\"group_size\":32,\"mode\":\"mxfp4\"}}", "\"mxfp4\""},
        {"{\"quantization\":{\"bits\":4,\"group_size\":16,\"mode\":\"nvfp4\"}}", "\"nvfp4\""},
        {"{\"quantization\":{\"bits\":8,\"group_size\":32,\"mode\":\"mxfp8\"}}", "\"mxfp8\""},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"quantize_activations\":true}}", "quantize_activations"},
    };
    for (size_t i = 0; i < SIB_COUNT(rows); i++) {
        sib_checkpoint *c = checkpoint_of(rows[i].config, (spec[]){{"a", SIB_U8, 1, {1}}, {0}});
        sib_status s = sib_quant_check(c, &err);
        if (s != (rows[i].says ? SIB_EUNSUPPORTED : SIB_OK) || (rows[i].says && !strstr(err.message, rows[i].says)))
            fail_msg("row %zu: %s: %s", i, sib_status_name(s), err.message);
        sib_checkpoint_free(c);
    }
}

static void experts_of_separate_modules(void **state)
{
    (void)state;
    sib_matrix_src m, one;
    sib_checkpoint *c = checkpoint_of("{}", (spec[]){{"p.0.g.weight", SIB_U32, 2, {3, 8}},
                                                     {"p.0.g.scales", SIB_BF16, 2, {3, 2}},
                                                     {"p.0.g.biases", SIB_BF16, 2, {3, 2}},
                                                     {"p.1.g.weight", SIB_U32, 2, {3, 8}},
                                                     {"p.1.g.scales", SIB_BF16, 2, {3, 2}},
                                                     {"p.1.g.biases", SIB_BF16, 2, {3, 2}},
                                                     {"p.0.h.weight", SIB_BF16, 2, {3, 7}},
                                                     {"p.1.h.weight", SIB_BF16, 2, {3, 7}},
                                                     {"p.2.h.weight", SIB_F32, 2, {3, 7}},
                                                     {0}});
    float want[3 * 64], got[3 * 64];
    assert_int_equal(sib_matrix_of_experts(c, "p", "g", 3, 64, 2, &m, &err), SIB_OK);
    assert_true(m.n_experts == 2 && m.storage == SIB_AFFINE && m.bits == 4 && m.group == 32);
    for (int e = 0; e < 2; e++) {
        assert_int_equal(sib_matrix_of(c, e ? "p.1.g" : "p.0.g", 3, 64, 0, &one, &err), SIB_OK);
        sib_matrix_src_rows(want, &one, 0, 0, 3);
        sib_matrix_src_rows(got, &m, e, 0, 3);
        assert_memory_equal(want, got, sizeof want);
    }
    assert_int_equal(sib_matrix_of_experts(c, "p", "h", 3, 7, 2, &m, &err), SIB_OK);
    assert_memory_equal(sib_matrix_src_data(&m, 1, 0), sib_checkpoint_find(c, "p.1.h.weight")->data, 42);
    assert_int_equal(sib_matrix_of_experts(c, "p", "h", 3, 7, 3, &m, &err), SIB_EFORMAT);
    assert_non_null(strstr(err.message, "p.2.h.weight: stored unlike expert 0"));
    assert_int_equal(sib_matrix_of_experts(c, "p", "g", 3, 64, 3, &m, &err), SIB_EFORMAT);
    assert_non_null(strstr(err.message, "p.2.g.weight is missing"));
    sib_checkpoint_free(c);
}

static void vectors(void **state)
{
    (void)state;
    float out[8] = {0};
    sib_checkpoint *c = checkpoint_of("{}", (spec[]){{"odd", SIB_U8, 1, {1}},
                                                     {"n", SIB_U8, 1, {4}},
                                                     {"col", SIB_U8, 3, {1, 4, 1}},
                                                     {"m", SIB_U8, 2, {2, 2}},
                                                     {"s", SIB_U8, 0, {0}},
                                                     {"b", SIB_BF16, 1, {2}},
                                                     {"u64", SIB_U64, 1, {1}},
                                                     {0}});
    assert_int_equal(sib_vector_of(c, "n", 4, out, &err), SIB_OK);
    assert_true(out[0] == 0 && out[3] == 3);
    assert_int_equal(sib_vector_of(c, "col", 4, out, &err), SIB_OK);
    assert_int_equal(sib_vector_of(c, "s", 1, out, &err), SIB_OK);
    assert_int_equal(sib_vector_of(c, "b", 2, out, &err), SIB_OK);
    assert_true(out[1] == sib_f32_of_bf16(0x0302)); /* at an odd address */
    assert_int_equal(sib_vector_of(c, "n", 3, out, &err), SIB_EFORMAT);
    assert_non_null(strstr(err.message, "tensor n: expected 3 elements, file has U8 [4]"));
    assert_int_equal(sib_vector_of(c, "m", 4, out, &err), SIB_EFORMAT);
    assert_int_equal(sib_tensor_of(c, "m", 2, (int64_t[]){2, 2}, out, &err), SIB_OK);
    assert_true(out[2] == 2);
    assert_int_equal(sib_tensor_of(c, "m", 2, (int64_t[]){1, 4}, out, &err), SIB_EFORMAT);
    assert_non_null(strstr(err.message, "expected U8 [1, 4], file has U8 [2, 2]"));
    assert_int_equal(sib_vector_of(c, "u64", 1, out, &err), SIB_EUNSUPPORTED);
    assert_int_equal(sib_vector_of(c, "absent", 1, out, &err), SIB_EFORMAT);
    sib_checkpoint_free(c);
}

/* ---- golden probes ------------------------------------------------------------------------------ */

/* True when the folder holds a probe; its matrix must equal the reference's bit for bit. */
static bool check_probe(const char *dir)
{
    sib_safetensors *expected;
    sib_checkpoint *c;
    json_t *notes;
    sib_matrix_src m;
    char *path = sib_path_join(dir, "expected.safetensors");
    assert_int_equal(sib_safetensors_open(&expected, path, false, &err), SIB_OK);
    free(path);
    const sib_tensor_info *want = sib_safetensors_find(expected, "probe.dequantized");
    if (!want) {
        sib_safetensors_free(expected);
        return false;
    }
    path = sib_path_join(dir, "expected.json");
    assert_int_equal(sib_json_read(&notes, path, 1 << 20, &err), SIB_OK);
    free(path);
    assert_int_equal(sib_checkpoint_open(&c, dir, NULL, &err), SIB_OK);
    assert_int_equal(sib_quant_check(c, &err), SIB_OK);
    int lead = want->rank == 3;
    int64_t out = want->shape[lead], in = want->shape[lead + 1];
    fixture_reset();
    if (sib_matrix_of(c, json_string_value(json_object_get(notes, "probe_module")), out, in,
                      lead ? (int)want->shape[0] : 0, &m, &err) != SIB_OK)
        fail_msg("%s: %s", dir, err.message);
    assert_int_equal(m.storage, SIB_AFFINE);
    assert_int_equal(fixture_warnings, 0);
    float *rows = malloc((size_t)(out * in) * sizeof *rows);
    for (int e = 0; e < m.n_experts; e++) {
        sib_matrix_src_rows(rows, &m, e, 0, out);
        assert_memory_equal(rows, (const char *)want->data + (size_t)(e * out * in) * sizeof *rows,
                            (size_t)(out * in) * sizeof *rows);
    }
    free(rows);
    json_decref(notes);
    sib_checkpoint_free(c);
    sib_safetensors_free(expected);
    return true;
}

static void golden_probes_are_met_exactly(void **state)
{
    (void)state;
    const char *root = getenv("SIBYL_GOLDENS") ? getenv("SIBYL_GOLDENS") : "tests/golden/cases";
    int n = 0;
    DIR *d = opendir(root);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char *dir = sib_path_join(root, e->d_name), *file = sib_path_join(dir, "expected.safetensors");
        if (e->d_name[0] != '.' && access(file, F_OK) == 0) n += check_probe(dir);
        free(file);
        free(dir);
    }
    closedir(d);
    assert_true(n >= 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_matrices),
        cmocka_unit_test(affine_by_shapes),
        cmocka_unit_test(affine_mismatches),
        cmocka_unit_test(config_that_disagrees_is_said_once),
        cmocka_unit_test(schemes_that_are_refused),
        cmocka_unit_test(experts_of_separate_modules),
        cmocka_unit_test(vectors),
        cmocka_unit_test(golden_probes_are_met_exactly),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}

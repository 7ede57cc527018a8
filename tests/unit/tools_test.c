/* tests/unit/tools_test.c - the programs mkmodel and tdiff, run as a user runs them. They lie one folder
 * above this test's own; where they have not been built the tests say SKIP. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "artifacts/quant.h"

#include "artifacts_fixture.h"

#include <sys/wait.h>

static sib_err err;
static char programs[1024];  /* folder of the programs */
static char output[1 << 16]; /* of the last run: stdout and stderr */

/* True when the program is there. */
static bool built(const char *program)
{
    char path[1100];
    (void)snprintf(path, sizeof path, "%s/%s", programs, program);
    if (access(path, X_OK) == 0) return true;
    print_message("SKIP %s is not built\n", path);
    return false;
}

/* Runs "programs/LINE" and returns its exit status. */
SIB_PRINTF(1, 2) static int run(const char *fmt, ...)
{
    char command[4096];
    va_list ap;
    size_t n = (size_t)snprintf(command, sizeof command, "%s/", programs);
    va_start(ap, fmt);
    n += (size_t)vsnprintf(command + n, sizeof command - n, fmt, ap);
    va_end(ap);
    (void)snprintf(command + n, sizeof command - n, " 2>&1");
    FILE *p = popen(command, "r");
    assert_non_null(p);
    output[fread(output, 1, sizeof output - 1, p)] = 0;
    int status = pclose(p);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static bool same_bytes(const char *a, const char *b)
{
    sib_buf x = {0}, y = {0};
    assert_int_equal(sib_read_file(a, (size_t)1 << 30, &x, &err), SIB_OK);
    assert_int_equal(sib_read_file(b, (size_t)1 << 30, &y, &err), SIB_OK);
    bool same = sib_str_eq(sib_buf_view(&x), sib_buf_view(&y));
    sib_buf_deinit(&x);
    sib_buf_deinit(&y);
    return same;
}

/* ---- mkmodel ------------------------------------------------------------------------------------- */

/* Every module with scales opens as a matrix of the width that its scales say, and config.json agrees. */
static void check_quantized(const char *dir, int bits, int *n_matrices)
{
    sib_checkpoint *c;
    fixture_reset();
    if (sib_checkpoint_open(&c, dir, NULL, &err) != SIB_OK) fail_msg("%s", err.message);
    assert_int_equal(sib_quant_check(c, &err), SIB_OK);
    *n_matrices = 0;
    for (size_t i = 0; i < sib_checkpoint_count(c); i++) {
        const sib_tensor_info *t = sib_checkpoint_at(c, i);
        if (!sib_ends_with(t->name, ".weight") || t->dtype != SIB_U32) continue;
        char module[256];
        sib_matrix_src m;
        (void)snprintf(module, sizeof module, "%.*s", (int)(strlen(t->name) - 7), t->name);
        int lead = t->rank == 3;
        int64_t in = t->shape[lead + 1] * 32 / (strstr(module, "router") ? 8 : bits);
        if (sib_matrix_of(c, module, t->shape[lead], in, lead ? (int)t->shape[0] : 0, &m, &err) != SIB_OK)
            fail_msg("%s", err.message);
        ++*n_matrices;
        if (*n_matrices > 3) continue;
        /* Values of a sensible size, centred: about one over the root of the width. */
        float *row = malloc((size_t)in * sizeof *row);
        double sum = 0, squares = 0;
        sib_matrix_src_rows(row, &m, 0, 1, 1);
        for (int64_t k = 0; k < in; k++) sum += row[k], squares += row[k] * row[k];
        free(row);
        assert_true(squares > 0.7 && squares < 1.4);
        assert_true(sum * sum < 30);
    }
    if (fixture_warnings) fail_msg("%s", fixture_log);
    sib_checkpoint_free(c);
}

static void mkmodel_is_deterministic(void **state)
{
    (void)state;
    if (!built("mkmodel")) return;
    int n, more;
    assert_int_equal(run("mkmodel glm-tiny --layers 1 %s", fixture_path("a")), 0);
    assert_int_equal(run("mkmodel glm-tiny --layers 1 --seed 0 %s", fixture_path("b")), 0);
    assert_int_equal(run("mkmodel glm-tiny --layers 1 --seed 1 %s", fixture_path("c")), 0);
    assert_int_equal(run("mkmodel glm-tiny --layers 3 %s", fixture_path("d")), 0);
    assert_true(same_bytes(fixture_path("a/model.safetensors"), fixture_path("b/model.safetensors")));
    assert_false(same_bytes(fixture_path("a/model.safetensors"), fixture_path("c/model.safetensors")));
    assert_true(same_bytes(fixture_path("a/tokenizer.json"), fixture_path("d/tokenizer.json")));
    check_quantized(fixture_path("a"), 4, &n);
    check_quantized(fixture_path("d"), 4, &more);
    assert_true(n > 10 && more > n + 10);
    /* The shorter model is the beginning of the longer one. */
    assert_int_equal(
        run("tdiff --abs 0 --rel 0 %s/model.safetensors %s/model.safetensors", fixture_path("a"), fixture_path("d")),
        0);
    assert_non_null(strstr(output, " 0 differ"));
    assert_null(strstr(output, "/a/model.safetensors:"));

    json_t *tokenizer, *vocab;
    assert_int_equal(sib_json_read(&tokenizer, fixture_path("a/tokenizer.json"), 1 << 24, &err), SIB_OK);
    vocab = json_object_get(json_object_get(tokenizer, "model"), "vocab");
    assert_int_equal(json_object_size(vocab), 32768);
    assert_int_equal(json_integer_value(json_object_get(vocab, "A")), 512 + 'A');
    assert_int_equal(json_integer_value(json_object_get(vocab, "\xc4\xa0")), 512 + ' ');  /* U+0120 */
    assert_int_equal(json_integer_value(json_object_get(vocab, "\xc4\x8a")), 512 + '\n'); /* U+010A */
    json_decref(tokenizer);
}

static void mkmodel_widths(void **state)
{
    (void)state;
    if (!built("mkmodel")) return;
    static const int widths[] = {2, 3, 5, 6, 8}, groups[] = {128, 128, 32, 64, 128};
    for (size_t i = 0; i < SIB_COUNT(widths); i++) {
        char name[8];
        int n;
        (void)snprintf(name, sizeof name, "w%d", widths[i]);
        assert_int_equal(
            run("mkmodel glm-tiny --layers 1 --bits %d --group %d %s", widths[i], groups[i], fixture_path(name)), 0);
        check_quantized(fixture_path(name), widths[i], &n);
        assert_true(n > 10);
    }
    int none;
    assert_int_equal(run("mkmodel glm-tiny --layers 1 --bits 16 %s", fixture_path("w16")), 0);
    check_quantized(fixture_path("w16"), 16, &none);
    assert_int_equal(none, 0);
}

static void mkmodel_with_pictures(void **state)
{
    (void)state;
    if (!built("mkmodel")) return;
    int n;
    sib_checkpoint *c;
    assert_int_equal(run("mkmodel gemma4-d --layers 1 --vision %s", fixture_path("v")), 0);
    check_quantized(fixture_path("v"), 4, &n);
    assert_int_equal(sib_checkpoint_open(&c, fixture_path("v"), NULL, &err), SIB_OK);
    const sib_tensor_info *t = sib_checkpoint_find(c, "vision_tower.encoder.layers.15.mlp.down_proj.input_max");
    assert_true(t && t->rank == 0);
    assert_non_null(sib_checkpoint_find(c, "embed_vision.embedding_projection.weight"));
    assert_true(json_is_object(json_object_get(sib_checkpoint_config(c), "vision_config")));
    sib_checkpoint_free(c);
    assert_int_equal(access(fixture_path("v/preprocessor_config.json"), F_OK), 0);
}

static void mkmodel_refuses(void **state)
{
    (void)state;
    if (!built("mkmodel")) return;
    const char *d = fixture_path("refused");
    assert_int_equal(run("mkmodel"), 2);
    assert_int_equal(run("mkmodel no-such-shape %s", d), 2);
    assert_non_null(strstr(output, "no-such-shape"));
    assert_int_equal(run("mkmodel glm-tiny --bits 7 %s", d), 2);
    assert_int_equal(run("mkmodel glm-tiny --bits 4x %s", d), 2);
    assert_int_equal(run("mkmodel glm-tiny --group 16 %s", d), 2);
    assert_int_equal(run("mkmodel glm-tiny --layers 0 %s", d), 2);
    assert_int_equal(run("mkmodel glm-tiny --vision %s", d), 2);
    assert_int_equal(run("mkmodel glm-tiny --what %s", d), 2);
    assert_int_equal(access(d, F_OK), -1);
    assert_int_equal(run("mkmodel glm-tiny --layers 1 /proc/no/such"), 1);
    assert_int_equal(run("mkmodel glm-tiny --layers 1 demo/gemma4-demo"), 1); /* never over a checkpoint */
    assert_non_null(strstr(output, "holds a checkpoint already"));
    assert_int_equal(run("mkmodel --help"), 0);
    assert_non_null(strstr(output, "gemma4-26b"));
}

/* ---- tdiff ------------------------------------------------------------------------------------------ */

static void write_trace(const char *name, const float h[4], int64_t token, const char *extra)
{
    sib_safetensors_writer *w;
    assert_int_equal(sib_safetensors_create(&w, fixture_path(name), 0, &err), SIB_OK);
    assert_int_equal(sib_safetensors_add(w, "b.first", SIB_F32, 2, (int64_t[]){2, 2}, h, &err), SIB_OK);
    assert_int_equal(sib_safetensors_add(w, "a.second", SIB_F32, 3, (int64_t[]){1, 2, 2}, h, &err), SIB_OK);
    assert_int_equal(sib_safetensors_add(w, "tokens", SIB_I64, 1, (int64_t[]){1}, &token, &err), SIB_OK);
    if (extra) assert_int_equal(sib_safetensors_add(w, extra, SIB_U8, 0, NULL, "x", &err), SIB_OK);
    assert_int_equal(sib_safetensors_finish(w, &err), SIB_OK);
}

static void tdiff_finds_the_first_difference(void **state)
{
    (void)state;
    if (!built("tdiff")) return;
    const char *x = fixture_path("x"), *y = fixture_path("y");
    const float inf = 1.0f / 0.0f, nan = inf - inf;
    write_trace("x", (float[]){1, 2, -inf, nan}, 7, "mine");
    write_trace("y", (float[]){1, 2.001f, -inf, nan}, 7, "yours");
    assert_int_equal(run("tdiff %s %s", x, y), 0);
    assert_non_null(strstr(output, "3 keys compared, 0 differ"));
    assert_non_null(strstr(output, "/x: mine\n"));
    assert_non_null(strstr(output, "/y: yours\n"));
    assert_int_equal(run("tdiff --abs 0.0001 --rel 0 %s %s", x, y), 1);
    assert_non_null(strstr(output, "at [0, 1]: 2 became 2.00099993  <- first\n"));
    assert_non_null(strstr(output, "at [0, 0, 1]: 2 became 2.00099993\n"));
    assert_true(strstr(output, "b.first") < strstr(output, "a.second")); /* the run's order */
    assert_int_equal(run("tdiff --abs 0 --rel 0.001 %s %s", x, y), 0);
    write_trace("y", (float[]){1, 2, -inf, nan}, 8, NULL);
    assert_int_equal(run("tdiff --abs 10 --rel 10 %s %s", x, y), 1); /* integers have no slack */
    assert_non_null(strstr(output, "7 became 8"));
    write_trace("y", (float[]){1, 2, inf, nan}, 7, NULL);
    assert_int_equal(run("tdiff --abs 10 --rel 10 %s %s", x, y), 1);
    write_trace("y", (float[]){nan, 2, -inf, nan}, 7, NULL);
    assert_int_equal(run("tdiff --abs 10 --rel 10 %s %s", x, y), 1);
}

static void tdiff_shapes_and_errors(void **state)
{
    (void)state;
    if (!built("tdiff")) return;
    sib_safetensors_writer *w;
    const float h[4] = {1, 2, 3, 4};
    write_trace("x", h, 7, NULL);
    assert_int_equal(sib_safetensors_create(&w, fixture_path("z"), 0, &err), SIB_OK);
    assert_int_equal(sib_safetensors_add(w, "a.second", SIB_F32, 2, (int64_t[]){2, 2}, h, &err),
                     SIB_OK); /* [1,2,2] there */
    assert_int_equal(sib_safetensors_finish(w, &err), SIB_OK);
    assert_int_equal(run("tdiff %s %s", fixture_path("x"), fixture_path("z")), 0);
    assert_int_equal(sib_safetensors_create(&w, fixture_path("z"), 0, &err), SIB_OK);
    assert_int_equal(sib_safetensors_add(w, "a.second", SIB_F32, 1, (int64_t[]){4}, h, &err), SIB_OK);
    assert_int_equal(sib_safetensors_finish(w, &err), SIB_OK);
    assert_int_equal(run("tdiff %s %s", fixture_path("x"), fixture_path("z")), 1);
    assert_non_null(strstr(output, "shapes F32 [1, 2, 2] and F32 [4]"));
    assert_int_equal(sib_safetensors_create(&w, fixture_path("z"), 0, &err), SIB_OK);
    assert_int_equal(sib_safetensors_finish(w, &err), SIB_OK);
    assert_int_equal(run("tdiff %s %s", fixture_path("x"), fixture_path("z")), 1);
    assert_non_null(strstr(output, "no key is in both"));
    assert_int_equal(run("tdiff %s %s", fixture_path("x"), fixture_path("absent")), 2);
    assert_int_equal(run("tdiff %s", fixture_path("x")), 2);
    assert_int_equal(run("tdiff --abs -1 a b"), 2);
    assert_int_equal(run("tdiff --help"), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mkmodel_is_deterministic),
        cmocka_unit_test(mkmodel_widths),
        cmocka_unit_test(mkmodel_with_pictures),
        cmocka_unit_test(mkmodel_refuses),
        cmocka_unit_test(tdiff_finds_the_first_difference),
        cmocka_unit_test(tdiff_shapes_and_errors),
    };
    const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
    (void)snprintf(programs, sizeof programs, "%.*s/..", slash ? (int)(slash - argv[0]) : 1, slash ? argv[0] : ".");
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}

/* tests/unit/checkpoint_test.c - artifacts/checkpoint.h: shards, indexes, sidecars, the hub cache, marks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "artifacts/checkpoint.h"

#include "artifacts_fixture.h"

static sib_err err;

/* A file DIR/NAME whose tensors (names separated by spaces) are U8 [2] each. */
static void write_tensors(const char *name, const char *tensors)
{
    sib_safetensors_writer *w;
    assert_int_equal(sib_safetensors_create(&w, fixture_path(name), 0, &err), SIB_OK);
    for (const char *p = tensors; *p;) {
        char one[64];
        size_t n = strcspn(p, " ");
        (void)snprintf(one, sizeof one, "%.*s", (int)n, p);
        assert_int_equal(sib_safetensors_add(w, one, SIB_U8, 1, (int64_t[]){2}, name, &err), SIB_OK);
        p += n + (p[n] == ' ');
    }
    assert_int_equal(sib_safetensors_finish(w, &err), SIB_OK);
}

/* A new folder with a config; returns its path. */
static const char *new_dir(const char *name)
{
    char file[64];
    fixture_mkdir(name);
    (void)snprintf(file, sizeof file, "%s/config.json", name);
    fixture_text(file, "{\"model_type\":\"m\",\"text_config\":{\"hidden_size\":3}}");
    return fixture_path(name);
}

static sib_status open_and_close(const char *dir, size_t *n)
{
    sib_checkpoint *c = NULL;
    err = (sib_err){0};
    fixture_reset();
    sib_status s = sib_checkpoint_open(&c, dir, NULL, &err);
    if (n && c) *n = sib_checkpoint_count(c);
    sib_checkpoint_free(c);
    return s;
}

#define INDEX(map) "{\"metadata\":{\"total_size\":8},\"weight_map\":{" map "}}"

static void opens_the_demo(void **state)
{
    (void)state;
    sib_checkpoint *c;
    assert_int_equal(sib_checkpoint_open(&c, "demo/gemma4-demo", NULL, &err), SIB_OK);
    assert_string_equal(sib_checkpoint_type(c), "gemma4");
    assert_int_equal(json_integer_value(json_object_get(sib_checkpoint_text_config(c), "hidden_size")), 256);
    assert_non_null(sib_checkpoint_generation_config(c));
    assert_string_equal(sib_checkpoint_metadata(c, "format"), "mlx");
    const sib_tensor_info *t = sib_checkpoint_find(c, "language_model.model.embed_tokens.scales");
    assert_non_null(t);
    assert_int_equal(t->dtype, SIB_BF16);
    assert_int_equal(t->shape[0], 4096);
    char *path = sib_checkpoint_path(c, "tokenizer.json");
    assert_string_equal(path, "demo/gemma4-demo/tokenizer.json");
    free(path);
    assert_int_equal(sib_checkpoint_intact(c, &err), SIB_OK);
    sib_checkpoint_free(c);
}

static void shards_with_an_index(void **state)
{
    (void)state;
    size_t n;
    const char *dir = new_dir("shards");
    write_tensors("shards/model-00001-of-00002.safetensors", "a b extra");
    write_tensors("shards/model-00002-of-00002.safetensors", "c d");
    write_tensors("shards/unrelated.safetensors", "a");
    fixture_text("shards/model.safetensors.index.json",
                 INDEX("\"a\":\"model-00001-of-00002.safetensors\",\"c\":\"model-00002-of-00002.safetensors\","
                       "\"b\":\"model-00001-of-00002.safetensors\",\"d\":\"model-00002-of-00002.safetensors\""));
    assert_int_equal(open_and_close(dir, &n), SIB_OK);
    assert_int_equal(n, 4);
    assert_int_equal(fixture_warnings, 1);
    assert_non_null(strstr(fixture_log, "1 tensors are not in the index"));

    fixture_text("shards/model.safetensors.index.json",
                 INDEX("\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-00001-of-00002.safetensors\","
                       "\"no1\":\"model-00002-of-00002.safetensors\",\"c\":\"model-00002-of-00002.safetensors\""));
    assert_int_equal(open_and_close(dir, NULL), SIB_EFORMAT);
    assert_non_null(strstr(err.message, "no1"));
}

static void bad_indexes(void **state)
{
    (void)state;
    static const struct {
        const char *index;
        sib_status status;
        const char *says;
    } rows[] = {
        {INDEX("\"a\":\"../../etc/passwd\""), SIB_EFORMAT, "../../etc/passwd"},
        {INDEX("\"a\":\"../model.safetensors\""), SIB_EFORMAT, "plain name"},
        {INDEX("\"a\":\"/tmp/model.safetensors\""), SIB_EFORMAT, "plain name"},
        {INDEX("\"a\":\"x\\\\model.safetensors\""), SIB_EFORMAT, "plain name"},
        {INDEX("\"a\":\"m\\u0000.safetensors\""), SIB_EFORMAT, "plain name"},
        {INDEX("\"a\":\"..\""), SIB_EFORMAT, "plain name"},
        {INDEX("\"a\":\"model.bin\""), SIB_EFORMAT, "plain name"},
        {INDEX("\"a\":3"), SIB_EFORMAT, "tensor a"},
        {INDEX("\"a\":\"gone1.safetensors\",\"b\":\"model.safetensors\",\"c\":\"gone2.safetensors\",\"d\":\"gone1."
               "safetensors\""),
         SIB_EIO, "2 weight files are missing (incomplete download?): gone1.safetensors, gone2.safetensors"},
        {INDEX(""), SIB_EFORMAT, "weight_map"},
        {"{\"weight_map\":[]}", SIB_EFORMAT, "weight_map"},
        {"[]", SIB_EFORMAT, "weight_map"},
        {"{", SIB_EFORMAT, "invalid JSON"},
        {INDEX("\"a\":\"model.safetensors\",\"a\":\"model.safetensors\""), SIB_EFORMAT, "duplicate"},
        {INDEX("\"x1\":\"model.safetensors\",\"x2\":\"model.safetensors\",\"x3\":\"model.safetensors\",\"x4\":\"model."
               "safetensors\","
               "\"x5\":\"model.safetensors\",\"x6\":\"model.safetensors\",\"x7\":\"model.safetensors\""),
         SIB_EFORMAT, "7 tensors of the index are not in their files: x1, x2, x3, x4, x5, ..."},
    };
    const char *dir = new_dir("bad");
    write_tensors("bad/model.safetensors", "a b");
    for (size_t i = 0; i < SIB_COUNT(rows); i++) {
        fixture_text("bad/model.safetensors.index.json", rows[i].index);
        sib_status s = open_and_close(dir, NULL);
        if (s != rows[i].status || !strstr(err.message, rows[i].says))
            fail_msg("row %zu: %s: %s", i, sib_status_name(s), err.message);
    }
}

static void without_an_index(void **state)
{
    (void)state;
    size_t n;
    const char *dir = new_dir("plain");
    assert_int_equal(open_and_close(dir, NULL), SIB_EIO);
    assert_non_null(strstr(err.message, "model*.safetensors"));
    write_tensors("plain/model-b.safetensors", "b");
    write_tensors("plain/model-a.safetensors", "a");
    write_tensors("plain/other.safetensors", "z");
    assert_int_equal(open_and_close(dir, &n), SIB_OK);
    assert_int_equal(n, 2);
    write_tensors("plain/model-c.safetensors", "a");
    assert_int_equal(open_and_close(dir, NULL), SIB_EFORMAT);
    assert_non_null(strstr(err.message, "tensor a is in"));
    write_tensors("plain/model.safetensors", "only");
    assert_int_equal(open_and_close(dir, &n), SIB_OK); /* then the others do not count */
    assert_int_equal(n, 1);
}

static void sidecar_adds_but_does_not_replace(void **state)
{
    (void)state;
    const char *dir = new_dir("side");
    sib_checkpoint *c;
    write_tensors("side/model.safetensors", "a b");
    fixture_mkdir("side/optiq");
    write_tensors("side/optiq/optiq_vision.safetensors", "b vision");
    fixture_reset();
    assert_int_equal(sib_checkpoint_open(&c, dir, NULL, &err), SIB_OK);
    assert_int_equal(sib_checkpoint_count(c), 3);
    assert_non_null(strstr(sib_checkpoint_find(c, "vision")->file, "optiq_vision"));
    assert_null(strstr(sib_checkpoint_find(c, "b")->file, "optiq_vision"));
    assert_int_equal(fixture_warnings, 1);
    sib_checkpoint_free(c);
}

static void configs(void **state)
{
    (void)state;
    sib_checkpoint *c;
    const char *dir = new_dir("config");
    write_tensors("config/model.safetensors", "a");
    fixture_text("config/generation_config.json", "{");
    assert_int_equal(open_and_close(dir, NULL), SIB_EFORMAT);
    assert_non_null(strstr(err.message, "generation_config.json"));
    fixture_text("config/generation_config.json", "{}");
    fixture_text("config/config.json", "[1]");
    assert_int_equal(open_and_close(dir, NULL), SIB_EFORMAT);
    assert_int_equal(unlink(fixture_path("config/config.json")), 0);
    assert_int_equal(open_and_close(dir, NULL), SIB_EIO);
    fixture_text("config/dspark.json", "{\"gamma\":7}");
    assert_int_equal(sib_checkpoint_open(&c, dir, &(sib_checkpoint_options){.config_file = "dspark.json"}, &err),
                     SIB_OK);
    assert_int_equal(json_integer_value(json_object_get(sib_checkpoint_config(c), "gamma")), 7);
    assert_string_equal(sib_checkpoint_type(c), "");
    assert_ptr_equal(sib_checkpoint_text_config(c), sib_checkpoint_config(c));
    sib_checkpoint_free(c);
}

static void marks_and_report(void **state)
{
    (void)state;
    sib_checkpoint *c;
    const sib_tensor_info *t;
    const char *reason;
    const char *dir = new_dir("marks");
    write_tensors("marks/model.safetensors", "used audio.a audio.b x.rotary_emb.inv left");
    assert_int_equal(sib_checkpoint_open(&c, dir, NULL, &err), SIB_OK);
    assert_non_null(sib_checkpoint_use(c, "used"));
    assert_null(sib_checkpoint_use(c, "absent"));
    assert_int_equal(sib_checkpoint_need(c, &t, "wanted", &err), SIB_EFORMAT);
    assert_non_null(strstr(err.message, "tensor wanted is missing"));
    sib_checkpoint_ignore(c, "audio.*", "audio is not supported");
    sib_checkpoint_ignore(c, "*rotary_emb*", "computed");
    sib_checkpoint_ignore(c, "us*", "too late");
    assert_int_equal(sib_checkpoint_need(c, &t, "audio.b", &err), SIB_OK); /* a use wins over an ignore */
    assert_int_equal(sib_checkpoint_missing_count(c), 1);
    assert_string_equal(sib_checkpoint_missing(c, 0), "wanted");
    assert_int_equal(sib_checkpoint_fate(c, 0, &reason), SIB_TENSOR_USED);
    assert_null(reason);
    assert_int_equal(sib_checkpoint_fate(c, 1, &reason), SIB_TENSOR_IGNORED);
    assert_string_equal(reason, "audio is not supported");
    json_t *report = sib_checkpoint_report(c);
    char *text = json_dumps(report, JSON_COMPACT);
    assert_string_equal(
        text, "{\"used\":2,\"ignored\":[{\"reason\":\"audio is not supported\",\"count\":1,\"first\":\"audio.a\"},"
              "{\"reason\":\"computed\",\"count\":1,\"first\":\"x.rotary_emb.inv\"}],\"unexpected\":[\"left\"],"
              "\"missing\":[\"wanted\"]}");
    free(text);
    json_decref(report);
    assert_true(sib_checkpoint_once(c, SIB_ONCE_QUANTIZATION_DIFFERS));
    assert_false(sib_checkpoint_once(c, SIB_ONCE_QUANTIZATION_DIFFERS));
    assert_non_null(memset(sib_checkpoint_alloc(c, 1000), 1, 1000));
    sib_checkpoint_free(c);
}

static void patterns(void **state)
{
    (void)state;
    static const struct {
        const char *pattern;
        bool hit;
    } rows[] = {
        {"a.b.c", true}, {"a.*", true},    {"*.c", true},      {"*", true},    {"a*b*c", true},
        {"**", true},    {"a.b.c*", true}, {"*a.b.c*", true},  {"", false},    {"a.b", false},
        {"b*", false},   {"*b", false},    {"a.b.c.d", false}, {"*d*", false}, {"a*c*b", false},
    };
    const char *dir = new_dir("glob");
    write_tensors("glob/model.safetensors", "a.b.c");
    for (size_t i = 0; i < SIB_COUNT(rows); i++) {
        sib_checkpoint *c;
        assert_int_equal(sib_checkpoint_open(&c, dir, NULL, &err), SIB_OK);
        sib_checkpoint_ignore(c, rows[i].pattern, "r");
        if ((sib_checkpoint_fate(c, 0, NULL) == SIB_TENSOR_IGNORED) != rows[i].hit)
            fail_msg("pattern %s", rows[i].pattern);
        sib_checkpoint_free(c);
    }
}

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static void hub_cache(void **state)
{
    (void)state;
    char *dir;
    const char *root = fixture_path("hub");
    sib_checkpoint_options o = {.cache_root = root};
    sib_checkpoint *c;
    fixture_mkdir("hub");
    fixture_mkdir("hub/models--org--name");
    fixture_mkdir("hub/models--org--name/refs");
    fixture_mkdir("hub/models--org--name/blobs");
    fixture_mkdir("hub/models--org--name/snapshots");
    fixture_mkdir("hub/models--org--name/snapshots/" COMMIT);
    fixture_text("hub/models--org--name/refs/main", COMMIT);
    fixture_text("hub/models--org--name/refs/v1", "not a commit");
    fixture_text("hub/models--org--name/refs/gone", "ffffffffffffffffffffffffffffffffffffffff");
    fixture_text("hub/models--org--name/blobs/aa", "{\"model_type\":\"cached\"}");
    write_tensors("hub/models--org--name/blobs/bb", "a");
    assert_int_equal(symlink("../../blobs/aa", fixture_path("hub/models--org--name/snapshots/" COMMIT "/config.json")),
                     0);
    assert_int_equal(
        symlink("../../blobs/bb", fixture_path("hub/models--org--name/snapshots/" COMMIT "/model.safetensors")), 0);

    assert_int_equal(sib_checkpoint_open(&c, "org/name", &o, &err), SIB_OK);
    assert_string_equal(sib_checkpoint_type(c), "cached");
    sib_checkpoint_free(c);
    assert_int_equal(sib_checkpoint_resolve(&dir, "org/name@" COMMIT, root, &err), SIB_OK);
    assert_non_null(strstr(dir, "/hub/models--org--name/snapshots/" COMMIT));
    free(dir);
    assert_int_equal(setenv("HF_HUB_CACHE", root, 1), 0);
    assert_int_equal(sib_checkpoint_resolve(&dir, "org/name@main", NULL, &err), SIB_OK);
    free(dir);
    assert_int_equal(unsetenv("HF_HUB_CACHE"), 0);
    assert_int_equal(setenv("HF_HOME", fixture_dir, 1), 0); /* its hub/ is our folder */
    assert_int_equal(sib_checkpoint_resolve(&dir, "org/name", NULL, &err), SIB_OK);
    free(dir);
    assert_int_equal(unsetenv("HF_HOME"), 0);

    static const struct {
        const char *place;
        sib_status status;
    } rows[] = {
        {"org/other", SIB_EARG},        {"org/name@v1", SIB_EFORMAT},  {"org/name@gone", SIB_EIO},
        {"org/name@absent", SIB_EIO},   {"org/../name", SIB_EARG},     {"../hub", SIB_EARG},
        {"org/name@../main", SIB_EARG}, {"/no/such/folder", SIB_EARG}, {"", SIB_EARG},
        {"org/name@", SIB_EARG},        {"org/name/third", SIB_EARG},  {"org/na me", SIB_EARG},
    };
    for (size_t i = 0; i < SIB_COUNT(rows); i++) {
        sib_status s = sib_checkpoint_resolve(&dir, rows[i].place, root, &err);
        if (s != rows[i].status || dir) fail_msg("%s: %s: %s", rows[i].place, sib_status_name(s), err.message);
    }
    assert_int_equal(sib_checkpoint_resolve(&dir, fixture_text("file", "x"), root, &err), SIB_EARG);
    /* A dangling link: the blob has not arrived. */
    assert_int_equal(unlink(fixture_path("hub/models--org--name/blobs/bb")), 0);
    assert_int_equal(sib_checkpoint_open(&c, "org/name", &o, &err), SIB_EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_the_demo),
        cmocka_unit_test(shards_with_an_index),
        cmocka_unit_test(bad_indexes),
        cmocka_unit_test(without_an_index),
        cmocka_unit_test(sidecar_adds_but_does_not_replace),
        cmocka_unit_test(configs),
        cmocka_unit_test(marks_and_report),
        cmocka_unit_test(patterns),
        cmocka_unit_test(hub_cache),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}

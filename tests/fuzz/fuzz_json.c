/* tests/fuzz/fuzz_json.c - libFuzzer target over JSON of requests and files: what parses can be read by type, and its
 * strings written again read back as the same. Seeds: tests/fuzz/corpus/json. */
#include "fuzz_parts.h"

#include "artifacts/generation_config.h"
#include "base/json.h"

#include <stdlib.h>

static void write_again(sib_str text)
{
    sib_buf out = {0};
    json_t *v = NULL;
    sib_buf_addc(&out, '[');
    sib_json_put_str(&out, text);
    sib_buf_addc(&out, ']');
    if (sib_json_parse(&v, sib_buf_view(&out), "again", NULL) != SIB_OK) abort();
    const json_t *s = json_array_get(v, 0);
    if (!sib_str_eq((sib_str){json_string_value(s), json_string_length(s)}, text)) abort();
    json_decref(v);
    sib_buf_deinit(&out);
}

static void read_members(const json_t *o)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        int64_t i = 0;
        double d = 0;
        bool b = false;
        const char *z = NULL;
        sib_err err = {0};
        if (sib_json_int(o, "fuzz", key, -5, 1 << 20, &i, &err) == SIB_OK && (i < -5 || i > 1 << 20)) abort();
        (void)sib_json_num(o, "fuzz", key, 0, 1e9, &d, &err);
        (void)sib_json_bool(o, "fuzz", key, &b, &err);
        (void)sib_json_str(o, "fuzz", key, &z, &err);
        if (json_is_string(v)) write_again((sib_str){json_string_value(v), json_string_length(v)});
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    json_t *v = NULL;
    sib_err err = {0};
    sib_generation_config g;
    if (sib_json_parse(&v, (sib_str){n ? (const char *)data : "", n}, "fuzz", &err) == SIB_OK) {
        if (json_is_object(v)) read_members(v);
        (void)sib_generation_config_parse(&g, v, "fuzz", &err);
    } else if (v || !err.message[0]) {
        abort();
    }
    json_decref(v);
    return 0;
}

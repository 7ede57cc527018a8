/* tests/fuzz/fuzz_template.c - libFuzzer target over chat templates and their variables: parse and render under
 * small limits, and the whole way from a template and a request to prompt text. Parts: source, context.
 * Seeds: tests/fuzz/corpus/template. */
#include "fuzz_parts.h"

#include "text/chat.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const sib_template_options small = {.max_steps = 100000, .max_output = 1 << 18, .max_memory = 8 << 20, .max_ns = 1000000000};
    sib_str part[2];
    sib_template *t = NULL;
    sib_template_vars *v = NULL;
    sib_chat *c = NULL;
    sib_buf out = {0};
    sib_err err = {0};
    fuzz_split(data, n, part, 2);
    if (sib_template_parse(&t, part[0], "fuzz", NULL, &err) == SIB_OK) {
        if (sib_template_vars_new(&v, NULL) != SIB_OK) abort();
        (void)sib_template_vars_set_all(v, part[1], NULL);
        sib_template_fault fault = {0};
        if (sib_template_render(t, v, &small, &out, &fault, &err) != SIB_OK && (out.n || !fault.kind)) abort();
        sib_buf_deinit(&fault.message);
    } else if (t || !err.message[0]) {
        abort();
    }
    sib_template_vars_free(v);
    sib_template_free(t);
    if (part[0].n <= 2048 && sib_chat_parse(&c, part[0], "fuzz", NULL, &err) == SIB_OK) {
        out.n = 0;
        if (sib_chat_render_with(c, part[1], &small, &out, NULL, &err) != SIB_OK && out.n) abort();
    }
    sib_chat_free(c);
    sib_buf_deinit(&out);
    return 0;
}

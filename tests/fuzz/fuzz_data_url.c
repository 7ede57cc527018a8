/* tests/fuzz/fuzz_data_url.c - libFuzzer target over data: URLs and bare base64.
 * Seeds: tests/fuzz/corpus/data_url. */
#include "fuzz_parts.h"

#include "image/data_url.h"

#include <stdlib.h>

static void check(sib_status s, sib_buf *out, size_t most, const sib_err *err)
{
    if (s == SIB_OK ? out->n > most : out->n != 0 || !err->message[0]) abort();
    sib_buf_deinit(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    sib_str text = {n ? (const char *)data : "", n};
    for (size_t most = 0; most <= n; most += n / 2 + 1) {
        sib_buf out = {0};
        sib_err err = {0};
        check(sib_data_url_decode(&out, text, most, &err), &out, most, &err);
        check(sib_base64_decode(&out, text, most, &err), &out, most, &err);
    }
    return 0;
}

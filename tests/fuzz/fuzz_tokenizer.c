/* tests/fuzz/fuzz_tokenizer.c - libFuzzer target over tokenizer.json and tokenizer_config.json; what opens encodes a
 * text, plainly and not, and decodes the ids whole and one at a time. Parts: tokenizer, config, text.
 * Seeds: tests/fuzz/corpus/tokenizer. */
#include "fuzz_parts.h"

#include "text/tokenizer.h"

#include <stdlib.h>

static void round_trip(const sib_tokenizer *t, sib_str text, unsigned flags)
{
    sib_ids ids = {0};
    sib_buf whole = {0}, streamed = {0};
    sib_detok *d = NULL;
    sib_err err = {0};
    if (sib_tokenizer_encode(t, text, flags, &ids, &err) != SIB_OK) {
        if (ids.n || !err.message[0]) abort();
        return;
    }
    for (size_t i = 0; i < ids.n; i++) {
        if (ids.v[i] < 0 || ids.v[i] >= sib_tokenizer_n_vocab(t)) abort();
        (void)sib_tokenizer_piece(t, ids.v[i]);
    }
    if (sib_tokenizer_decode(t, ids.v, ids.n, SIB_KEEP_SPECIAL, &whole, NULL) == SIB_OK) {
        if (sib_detok_new(&d, t, SIB_KEEP_SPECIAL, NULL) != SIB_OK) abort();
        sib_status s = SIB_OK;
        for (size_t i = 0; i < ids.n && s == SIB_OK; i++) s = sib_detok_feed(d, ids.v[i], &streamed, NULL);
        if (s == SIB_OK) s = sib_detok_flush(d, &streamed, NULL);
        if (s != SIB_OK || !sib_str_eq(sib_buf_view(&whole), sib_buf_view(&streamed))) abort();
    }
    sib_detok_free(d);
    sib_buf_deinit(&whole);
    sib_buf_deinit(&streamed);
    sib_ids_deinit(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    sib_str part[3];
    sib_tokenizer *t = NULL;
    sib_err err = {0};
    fuzz_split(data, n, part, 3);
    if (sib_tokenizer_parse(&t, part[0], "fuzz", part[1], &err) == SIB_OK) {
        const char *name;
        sib_str value;
        round_trip(t, part[2], 0);
        round_trip(t, part[2], SIB_PLAIN_TEXT);
        round_trip(t, part[2], SIB_ADD_SPECIAL);
        for (size_t i = 0; sib_tokenizer_variable(t, i, &name, &value); i++) (void)sib_tokenizer_id(t, value);
    } else if (t || !err.message[0]) {
        abort();
    }
    sib_tokenizer_free(t);
    return 0;
}

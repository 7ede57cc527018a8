/* tests/fuzz/fuzz_chat.c - libFuzzer target over chat requests against the demo checkpoint's template and tokenizer:
 * marks change no byte of a prompt, and its special tokens are those of the template, none of the request.
 * Seeds: tests/fuzz/corpus/chat. */
#include "fuzz_parts.h"

#include "text/chat.h"

#include <stdlib.h>

static sib_tokenizer *tokenizer;
static sib_chat *chat;

/* As many special tokens as the prompt has once every byte of the request is replaced by a letter. */
static void check_specials(const sib_ids *ids, const sib_buf *text, const sib_spans *given)
{
    sib_buf blank = {0};
    sib_ids own = {0};
    size_t n = 0, n_own = 0;
    sib_buf_add(&blank, text->p, text->n);
    for (size_t i = 0; i < given->n; i++) memset(blank.p + given->v[i].at, 'x', given->v[i].n);
    if (sib_tokenizer_encode(tokenizer, sib_buf_view(&blank), 0, &own, NULL) == SIB_OK) {
        for (size_t i = 0; i < ids->n; i++) n += sib_tokenizer_is_special(tokenizer, ids->v[i]);
        for (size_t i = 0; i < own.n; i++) n_own += sib_tokenizer_is_special(tokenizer, own.v[i]);
        if (n != n_own) abort();
    }
    sib_buf_deinit(&blank);
    sib_ids_deinit(&own);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const sib_template_options small = {.max_steps = 200000, .max_output = 1 << 18, .max_memory = 16 << 20, .max_ns = 1000000000};
    if (!chat && (sib_tokenizer_open(&tokenizer, "demo/gemma4-demo/tokenizer.json", "demo/gemma4-demo/tokenizer_config.json", NULL) != SIB_OK ||
                  sib_chat_open(&chat, "demo/gemma4-demo", tokenizer, NULL) != SIB_OK))
        abort(); /* run from the repository root */
    sib_str context = {n ? (const char *)data : "", n};
    sib_buf plain = {0}, marked = {0};
    sib_spans given = {0};
    sib_ids ids = {0};
    sib_err err = {0};
    sib_status s = sib_chat_render_with(chat, context, &small, &plain, NULL, &err);
    if (s != SIB_OK && (plain.n || !err.message[0])) abort();
    if (s == SIB_OK && sib_chat_render_given(chat, context, &marked, &given, NULL) == SIB_OK) {
        if (!sib_str_eq(sib_buf_view(&plain), sib_buf_view(&marked))) abort();
        if (sib_tokenizer_encode_given(tokenizer, sib_buf_view(&marked), &given, 0, &ids, &err) == SIB_OK) check_specials(&ids, &marked, &given);
    }
    sib_buf_deinit(&plain);
    sib_buf_deinit(&marked);
    sib_spans_deinit(&given);
    sib_ids_deinit(&ids);
    return 0;
}

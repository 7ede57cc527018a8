/* tests/fuzz/fuzz_chat.c - libFuzzer target over chat requests against the demo checkpoint's template and tokenizer.
 * Seeds: tests/fuzz/corpus/chat. */
#include "fuzz_parts.h"

#include "text/chat.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static sib_tokenizer *tokenizer;
    static sib_chat *chat;
    static const sib_template_options small = {.max_steps = 200000, .max_output = 1 << 18, .max_memory = 16 << 20, .max_ns = 1000000000};
    if (!chat && (sib_tokenizer_open(&tokenizer, "demo/gemma4-demo/tokenizer.json", "demo/gemma4-demo/tokenizer_config.json", NULL) != SIB_OK ||
                  sib_chat_open(&chat, "demo/gemma4-demo", tokenizer, NULL) != SIB_OK))
        abort(); /* run from the repository root */
    sib_buf out = {0};
    sib_ids ids = {0};
    sib_err err = {0};
    if (sib_chat_render_with(chat, (sib_str){n ? (const char *)data : "", n}, &small, &out, NULL, &err) == SIB_OK)
        (void)sib_tokenizer_encode(tokenizer, sib_buf_view(&out), 0, &ids, &err);
    else if (out.n || !err.message[0])
        abort();
    sib_buf_deinit(&out);
    sib_ids_deinit(&ids);
    return 0;
}

/* tests/fuzz/fuzz_grammar.c - libFuzzer target over patterns and schemas: the first byte chooses, then comes the pattern or schema, and behind
 * a zero byte the text that is offered to it. A mask must allow exactly the bytes that fit. */
#include "sample/grammar.h"

#include <stdlib.h>
#include <string.h>

static sib_vocab_trie *trie; /* of the single bytes */

static void one_byte(const void *ctx, int32_t id, sib_buf *out)
{
    (void)ctx;
    sib_buf_addc(out, (char)id);
}

static void run(const sib_grammar_program *p, sib_str text)
{
    sib_automaton *a;
    uint32_t allowed[8];
    if (sib_automaton_new(&a, p, trie, NULL) != SIB_OK) return;
    for (size_t i = 0; i < text.n && i < 64; i++) {
        uint8_t c = (uint8_t)text.p[i];
        if (sib_automaton_mask(a, allowed, NULL) != SIB_OK) break;
        bool bit = allowed[c >> 5] >> (c & 31) & 1;
        if (sib_automaton_token(a, c) != bit) abort();
        if (!bit) break;
    }
    sib_automaton_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!trie && sib_vocab_trie_new(&trie, 256, one_byte, NULL, NULL) != SIB_OK) abort();
    if (n < 2) return 0;
    const char *p = (const char *)data + 1, *zero = memchr(p, 0, n - 1);
    size_t k = zero ? (size_t)(zero - p) : n - 1;
    sib_str source = {p, k}, text = {p + k + (zero != NULL), n - 1 - k - (zero != NULL)};
    sib_grammar_program *program = NULL;
    sib_err err = {0};
    if (data[0] & 1) {
        if (sib_grammar_from_regex(&program, source, &err) != SIB_OK && !err.message[0]) abort();
    } else {
        json_t *schema = NULL;
        if (sib_json_parse(&schema, source, "schema", &err) != SIB_OK) return 0;
        if (sib_grammar_from_schema(&program, schema, &err) != SIB_OK && !err.message[0]) abort();
        json_decref(schema);
    }
    if (program) run(program, text);
    sib_grammar_program_free(program);
    return 0;
}

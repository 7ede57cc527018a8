/* sample/grammar.h - which tokens may come next: regular expressions and JSON schemas as token masks.
 *
 *   pattern or schema -> program -> automaton -> mask over the vocabulary
 *
 * A program is a network of byte steps with calls, so that schemas may refer to themselves. It runs as a set of threads
 * (pc, stack of return addresses); each set that occurs is a state, built when it is first reached and remembered with its
 * transitions, so a byte costs one table look-up once the state is known. The vocabulary is a trie in one array; a mask walks it and
 * skips a subtree at its first impossible byte. Everything is bounded: instructions, threads of a set, depth of calls, states.
 *
 * An automaton only ever allows what keeps the text valid; it may forbid some valid texts (white space beyond one break,
 * members in another order than the schema lists them, escapes inside strings with a pattern).
 *
 * Regular expressions match the whole text: literals, ., classes, \d \w \s \n \t \r \f \v \xHH \uHHHH, groups, |, * + ? {m,n}; ^ and
 * $ at the ends. Schemas: type, enum, const, properties, required, additionalProperties, items, prefixItems, minItems, maxItems,
 * minLength, maxLength, pattern, format (date, time, date-time, uuid), anyOf, oneOf of different types, allOf of one, $ref into the
 * document. What is not known is refused by its name. Used by server/. */
#ifndef SIB_SAMPLE_GRAMMAR_H
#define SIB_SAMPLE_GRAMMAR_H

#include "base/json.h"
#include "sample/sampler.h"

typedef struct sib_grammar_program sib_grammar_program;
typedef struct sib_vocab_trie sib_vocab_trie;
typedef struct sib_automaton sib_automaton;

/* SIB_EARG: the pattern or schema is wrong, or uses what is not supported, with the place or keyword; SIB_ECAPACITY: too large. */
sib_status sib_grammar_from_regex(sib_grammar_program **out, sib_str pattern, sib_err *err);
/* `schema` NULL: any JSON object. */
sib_status sib_grammar_from_schema(sib_grammar_program **out, const json_t *schema, sib_err *err);
void sib_grammar_program_free(sib_grammar_program *p);

/* bytes(ctx, id, out) appends a token's bytes; nothing: the token is never allowed. Immutable once made. */
sib_status sib_vocab_trie_new(sib_vocab_trie **out, int n_vocab, void (*bytes)(const void *ctx, int32_t id, sib_buf *out), const void *ctx, sib_err *err);
void sib_vocab_trie_free(sib_vocab_trie *t);

/* Borrows both. */
sib_status sib_automaton_new(sib_automaton **out, const sib_grammar_program *p, const sib_vocab_trie *t, sib_err *err);
void sib_automaton_free(sib_automaton *a);
/* Sets the bits of tokens that may come next, clears all others (end tokens included). */
sib_status sib_automaton_mask(sib_automaton *a, uint32_t *allowed, sib_err *err);
/* False: the token's bytes do not fit, and the state is as before. */
bool sib_automaton_token(sib_automaton *a, int32_t id);
bool sib_automaton_bytes(sib_automaton *a, sib_str bytes);
bool sib_automaton_accepts(const sib_automaton *a);   /* the text may end here        */
bool sib_automaton_exhausted(sib_automaton *a);       /* it may end, and nothing else */

#endif

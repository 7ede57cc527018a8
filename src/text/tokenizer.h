/* text/tokenizer.h - text to token ids and back, from a checkpoint's tokenizer.json.
 *
 *   text -> added tokens cut out -> normalizer -> pre-tokenizer -> BPE -> post-processor -> ids
 *   ids  -> vocabulary texts -> decoder chain -> text
 *
 * Specified by formats.md section C; tested against the reference implementation
 * (huggingface/tokenizers 0.23). A component that this build has no code for is
 * refused at load with SIB_EUNSUPPORTED and its name; it never gives other ids.
 *
 * A tokenizer is read-only after it is opened and may be shared by threads; a
 * sib_detok belongs to one stream. All texts are UTF-8. */
#ifndef SIB_TEXT_TOKENIZER_H
#define SIB_TEXT_TOKENIZER_H

#include "base/str.h"

typedef struct sib_tokenizer sib_tokenizer; /* body: tokenizer_internal.h */

#define SIB_TOKENIZER_MAX_BYTES        ((size_t)256 << 20) /* largest tokenizer.json that is read    */
#define SIB_TOKENIZER_MAX_IDS          (1 << 22)           /* ids must be below                      */
#define SIB_TOKENIZER_CONFIG_MAX_BYTES ((size_t)32 << 20)
#define SIB_ENCODE_MAX_BYTES           ((size_t)64 << 20) /* longest text that encode takes         */

/* Reads tokenizer.json; `config_path` is the tokenizer_config.json beside it, or NULL. */
sib_status sib_tokenizer_open(sib_tokenizer **out, const char *path, const char *config_path, sib_err *err);

/* The same from bytes; `name` goes into error sentences, `config` may be empty ({0}). */
sib_status sib_tokenizer_parse(sib_tokenizer **out, sib_str json, const char *name, sib_str config, sib_err *err);

void sib_tokenizer_free(sib_tokenizer *t); /* NULL is fine */

enum {
    SIB_ADD_SPECIAL = 1u << 0, /* add what the post-processor adds (BOS, ...)                      */
    SIB_PLAIN_TEXT = 1u << 1   /* user content: what looks like a special token stays text, and no
                                  special token's id comes out (but unk for unknown characters)   */
};

/* Appends the ids of `text` to `out`; on failure `out` is as before. Invalid UTF-8 is SIB_EARG
 * and the sentence gives the byte offset. Chat prompts already contain their special tokens:
 * encode them without SIB_ADD_SPECIAL. */
sib_status sib_tokenizer_encode(const sib_tokenizer *t, sib_str text, unsigned flags, sib_ids *out, sib_err *err);

/* The same for a text of which some parts are user content: SIB_PLAIN_TEXT counts for every special token that overlaps
 * one of the spans, and for no other (sib_chat_render_given finds the spans of a prompt). */
sib_status sib_tokenizer_encode_given(const sib_tokenizer *t, sib_str text, const sib_spans *plain, unsigned flags, sib_ids *out, sib_err *err);

enum { SIB_KEEP_SPECIAL = 1u << 0 /* print special tokens too */ };

/* Appends the text of `ids`. An id that names no token (a gap, or padding of the model's
 * vocabulary) prints nothing; a negative one is SIB_EARG. */
sib_status sib_tokenizer_decode(const sib_tokenizer *t, const int32_t *ids, size_t n, unsigned flags, sib_buf *out,
                                sib_err *err);

/* Largest id + 1, of the vocabulary, the added tokens and the post-processor's ids. */
int32_t sib_tokenizer_n_vocab(const sib_tokenizer *t);
/* Id of the token whose vocabulary text is exactly `token`, or -1. */
int32_t sib_tokenizer_id(const sib_tokenizer *t, sib_str token);
/* Vocabulary text of an id as the file has it (byte-level tokens in their alphabet), borrowed
 * from t; {NULL, 0} when the id names no token. */
sib_str sib_tokenizer_piece(const sib_tokenizer *t, int32_t id);
/* Appends the bytes that a token adds to a text which has begun, not always whole characters: what masks of grammars and
 * log-probabilities are about. Nothing for an id that names no token. */
void sib_tokenizer_bytes(const sib_tokenizer *t, int32_t id, sib_buf *out);
bool sib_tokenizer_is_special(const sib_tokenizer *t, int32_t id);

/* From tokenizer_config.json; -1 when it names none or the vocabulary lacks it. */
int32_t sib_tokenizer_bos(const sib_tokenizer *t);
int32_t sib_tokenizer_eos(const sib_tokenizer *t);
/* What the config says about a BOS in front of raw prompts; false when it says nothing. */
bool sib_tokenizer_add_bos(const sib_tokenizer *t);

/* The config's NAME_token entries ("bos_token", "eos_token", "image_token", ...), string or
 * object form and those of extra_special_tokens: the variables of a chat template. Walk with
 * i = 0, 1, ... until false. Texts are borrowed from t, in the order of the file. */
bool sib_tokenizer_variable(const sib_tokenizer *t, size_t i, const char **name, sib_str *value);

/* Streaming detokenizer: what comes out of feed and flush, joined, is what decode gives for
 * all ids, however they are grouped. Only whole UTF-8 characters come out; up to three bytes
 * of an unfinished one are held until the next token or flush.
 *
 * The one freedom against the reference: when a run of byte-fallback tokens is not valid
 * UTF-8 as a whole, the reference replaces each byte of the run by U+FFFD, also those of
 * whole characters in front. Text that was printed cannot be taken back, so here (and in
 * decode, which is the same code) whole characters stay, and each invalid byte becomes one
 * U+FFFD. Byte-level tokenizers have no such case: one U+FFFD stands for each maximal
 * invalid part, as in the reference. */
typedef struct sib_detok sib_detok;

/* Borrows t. `flags` as for decode. */
sib_status sib_detok_new(sib_detok **out, const sib_tokenizer *t, unsigned flags, sib_err *err);
void sib_detok_free(sib_detok *d);
/* Appends the bytes that can be printed now. Allocates only for a token of more than 512
 * bytes, or when `out` must grow. */
sib_status sib_detok_feed(sib_detok *d, int32_t id, sib_buf *out, sib_err *err);
/* Ends the stream: appends what was held back; the next feed begins a new text. */
sib_status sib_detok_flush(sib_detok *d, sib_buf *out, sib_err *err);

#endif

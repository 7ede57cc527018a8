/* text/detokenizer.h - the `decoder` of tokenizer.json as a stream: token texts in, printable text out.
 *
 *   token text -> steps on the text (Replace, Metaspace, Strip)
 *              -> bytes (as they are, <0xHH> joined, or byte-level alphabet)
 *              -> whole UTF-8 characters -> Strip of the whole text -> out
 *
 * Supported: the chains that fit this picture, made of ByteLevel, ByteFallback, Fuse,
 * Replace, Strip, Metaspace, Sequence. Without a decoder, token texts are joined by spaces,
 * as in the reference. Used by tokenizer.c; the public face, sib_detok, is in tokenizer.h.
 * Specified by formats.md C.5 and C.6. */
#ifndef SIB_TEXT_DETOKENIZER_H
#define SIB_TEXT_DETOKENIZER_H

#include "base/json.h"

typedef struct sib_decoder sib_decoder;

/* `spec` NULL: no decoder. */
sib_status sib_decoder_new(sib_decoder **out, const json_t *spec, sib_err *err);
void sib_decoder_free(sib_decoder *z);

/* One text in the making; start from {0}. */
typedef struct sib_decoding {
    sib_buf text, spare; /* the current token's text, step by step          */
    char held[4];        /* bytes of an unfinished character                 */
    size_t n_held;
    size_t n_tokens;  /* pushed so far                                  */
    bool started;     /* past the part that Strip takes from the front    */
    uint32_t n_front; /* characters taken from the front                  */
    uint32_t n_back;  /* characters that Strip may take from the end, held back */
} sib_decoding;

void sib_decoding_deinit(sib_decoding *d);
/* Appends what can be printed after this token. */
sib_status sib_decoding_push(sib_decoding *d, const sib_decoder *z, sib_str token, sib_buf *out, sib_err *err);
/* Appends the rest and makes d ready for a new text. */
sib_status sib_decoding_end(sib_decoding *d, const sib_decoder *z, sib_buf *out, sib_err *err);

/* Appends the bytes that one token adds to a text which has begun: not always whole characters. */
void sib_decoder_bytes(const sib_decoder *z, sib_str token, sib_buf *out);

#endif

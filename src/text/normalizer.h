/* text/normalizer.h - the `normalizer` of tokenizer.json: rewrites the text between added tokens.
 *
 * Supported: NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace,
 * ByteLevel, Sequence. Used by tokenizer.c only. Specified by formats.md C.1. */
#ifndef SIB_TEXT_NORMALIZER_H
#define SIB_TEXT_NORMALIZER_H

#include "base/json.h"

typedef struct sib_normalizer sib_normalizer;

/* `spec` NULL: a normalizer that changes nothing. */
sib_status sib_normalizer_new(sib_normalizer **out, const json_t *spec, sib_err *err);
void sib_normalizer_free(sib_normalizer *z);
bool sib_normalizer_is_identity(const sib_normalizer *z);

/* Appends the normal form of `in`, which is valid UTF-8 and not part of `out`. A text that
 * grows beyond all measure is SIB_ECAPACITY. */
sib_status sib_normalizer_run(const sib_normalizer *z, sib_str in, sib_buf *out, sib_err *err);

#endif

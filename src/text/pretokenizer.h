/* text/pretokenizer.h - the `pre_tokenizer` of tokenizer.json: cuts text into the pieces that BPE merges within.
 *
 * Supported: Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace,
 * WhitespaceSplit, CharDelimiterSplit, Sequence. Used by tokenizer.c only.
 * Specified by formats.md C.1, C.4, C.5. */
#ifndef SIB_TEXT_PRETOKENIZER_H
#define SIB_TEXT_PRETOKENIZER_H

#include "base/json.h"

typedef struct sib_pretokenizer sib_pretokenizer;

typedef struct sib_piece {
    size_t at, n; /* bytes of sib_pieces.text */
    bool first;   /* begins where the whole text begins */
} sib_piece;

/* The text being cut and its pieces, in order, none empty; also the scratch memory of a run.
 * Start from {0}; reuse by sib_pieces_set. */
typedef struct sib_pieces {
    sib_buf text, next_text;
    sib_piece *v, *next;
    size_t n, cap, n_next, cap_next;
    bool failed; /* an append found no memory */
} sib_pieces;

/* One piece: the whole of `text`. */
void sib_pieces_set(sib_pieces *p, sib_str text, bool first);
void sib_pieces_deinit(sib_pieces *p);

/* `spec` NULL: leaves the text whole. */
sib_status sib_pretokenizer_new(sib_pretokenizer **out, const json_t *spec, sib_err *err);
void sib_pretokenizer_free(sib_pretokenizer *z);
sib_status sib_pretokenizer_run(const sib_pretokenizer *z, sib_pieces *p, sib_err *err);

#endif

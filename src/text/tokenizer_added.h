/* text/tokenizer_added.h - finds the added tokens of tokenizer.json in a text.
 *
 * Leftmost match first, the longest one at a place, no overlaps (formats.md C.2). The
 * patterns lie sorted in one array: a search narrows the range of patterns that agree with
 * the text byte by byte, so the array itself serves as the trie. Used by tokenizer.c. */
#ifndef SIB_TEXT_TOKENIZER_ADDED_H
#define SIB_TEXT_TOKENIZER_ADDED_H

#include "base/str.h"

#define SIB_ADDED_MAX_BYTES 1024 /* of one content: bounds the work at each place of a text */

typedef struct sib_added_token {
    char *content; /* what is matched: normalized for `normalized` tokens; owned */
    size_t n;
    int32_t id;
    uint32_t order; /* among equal contents the lowest wins */
    uint32_t shown; /* by_text: 1 + index in `normalized` of what decoding prints, 0: the content */
    bool single_word, lstrip, rstrip, special;
} sib_added_token;

typedef struct sib_added {
    sib_added_token *v; /* sorted by content, then order */
    size_t n, cap;
    uint32_t first[257]; /* tokens that begin with byte c: v[first[c] .. first[c + 1]) */
} sib_added;

void sib_added_deinit(sib_added *a);
/* Copies `content`, which must not be empty. */
sib_status sib_added_add(sib_added *a, sib_str content, sib_added_token flags, sib_err *err);
/* Sorts; call once after the last add. */
void sib_added_seal(sib_added *a);

/* The token with exactly this content, or NULL. */
const sib_added_token *sib_added_exact(const sib_added *a, sib_str content);

/* A walk over a text: start from {.text = ...}. */
typedef struct sib_added_walk {
    sib_str text;
    size_t from;             /* where the search goes on        */
    size_t done;             /* end of the last token reported  */
    size_t space, space_end; /* a run of white space found: not searched again */
    const sib_text_span *plain; /* [n_plain] ascending: a special token that overlaps one is not looked for */
    size_t n_plain;
} sib_added_walk;

/* The next token and its span, white space that it strips included; NULL: no more. As in the reference, white space that a token strips on
 * its right is searched for tokens all the same, so a span can begin before the end of the
 * one in front, and the text goes on behind the later one. */
const sib_added_token *sib_added_next(const sib_added *a, sib_added_walk *w, size_t *start, size_t *end);

#endif

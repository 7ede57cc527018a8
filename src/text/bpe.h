/* text/bpe.h - vocabulary and byte-pair merges: one piece of text to token ids.
 *
 * Built in three passes by the loader (vocabulary entries, seal, merges), then read-only.
 * Strings lie in one block, lookups go through open-addressing tables whose longest probe
 * is recorded and bounded, so neither a lookup nor a crafted file can take long.
 * Specified by formats.md C.3. Used by tokenizer.c and tokenizer_json.c. */
#ifndef SIB_TEXT_BPE_H
#define SIB_TEXT_BPE_H

#include "base/str.h"

#define SIB_NO_ID           UINT32_MAX
#define SIB_TOKEN_MAX_BYTES (1u << 16) /* of one vocabulary text */
#define SIB_MAX_MERGES      (1u << 23)

typedef struct sib_vocab_entry {
    uint32_t at; /* of the string in `strings`                  */
    uint32_t n;  /* its bytes; SIB_NO_ID: no token has this id  */
} sib_vocab_entry;

typedef struct sib_vocab_slot {
    uint32_t hash, id; /* id SIB_NO_ID: empty */
} sib_vocab_slot;

typedef struct sib_merge {
    uint32_t left, right; /* left SIB_NO_ID: empty */
    uint32_t rank, result;
} sib_merge;

typedef struct sib_bpe {
    sib_buf strings;
    sib_vocab_entry *entries; /* [n_ids], by id */
    uint32_t n_ids, cap_ids;
    uint32_t id_limit; /* ids must be below; the loader ties it to the size of the file */
    size_t n_used;

    sib_vocab_slot *slots; /* [slot_mask + 1] */
    uint32_t slot_mask, longest_probe;

    sib_merge *merges; /* [merge_mask + 1] */
    uint32_t merge_mask, longest_merge_probe, n_merges;

    uint32_t char_id[0x180]; /* ids of the one-character tokens that every text needs */
    uint32_t byte_id[256];   /* of <0x00>..<0xFF>                                     */
    bool byte_fallback, fuse_unk, ignore_merges;
    uint32_t unk; /* SIB_NO_ID: unknown characters vanish */
} sib_bpe;

void sib_bpe_init(sib_bpe *b);
void sib_bpe_deinit(sib_bpe *b);

/* Copies `text` as the token `id`; an id in use or not below id_limit is SIB_EFORMAT. */
sib_status sib_bpe_add(sib_bpe *b, sib_str text, uint32_t id, sib_err *err);
/* Builds the lookup table; equal texts are SIB_EFORMAT. */
sib_status sib_bpe_seal(sib_bpe *b, sib_err *err);
uint32_t sib_bpe_id(const sib_bpe *b, sib_str text);
sib_str sib_bpe_text(const sib_bpe *b, uint32_t id); /* {NULL, 0} when no token has the id */

/* The next merge in order of rank, after sib_bpe_reserve_merges(upper bound of their number).
 * SIB_EFORMAT when a side or the joined text is not in the vocabulary. */
sib_status sib_bpe_reserve_merges(sib_bpe *b, size_t count, sib_err *err);
sib_status sib_bpe_add_merge(sib_bpe *b, sib_str left, sib_str right, sib_err *err);

/* Scratch of encode; start from {0}, reuse for any number of pieces. */
typedef struct sib_bpe_scratch {
    struct sib_bpe_symbol *symbols;
    struct sib_bpe_candidate *heap;
    size_t cap_symbols, cap_heap;
} sib_bpe_scratch;

void sib_bpe_scratch_deinit(sib_bpe_scratch *s);

/* Appends the ids of one piece (valid UTF-8). `barred`, or NULL: a byte for each id; ids with
 * a non-zero byte are treated as if the vocabulary lacked them. O(n log n) in piece.n. */
sib_status sib_bpe_encode(const sib_bpe *b, sib_str piece, const uint8_t *barred, sib_bpe_scratch *s, sib_ids *out,
                          sib_err *err);

#endif

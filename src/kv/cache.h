/* kv/cache.h - keys and values of sequences, in pages, over all layers of a model.
 *
 *   layout   what the layers need: geometry, window, which layers read another one's cache
 *   pool     the pages, allocated once on the device for a stated budget; one free list for each
 *            geometry ("class"), reference counts, so that sequences can share pages
 *   seq      one sequence: a table of pages for every layer that owns a cache
 *
 * Position p of a layer lives in pages[(p / 64) % n_pages]. A layer that sees everything has a
 * table for the whole context; a layer with a window has a ring:
 *
 *   window 100, max_block 64:  ceil((101 + 64) / 64) + 1 = 4 pages
 *   length 300, pending 20:    [ 256..319 | 64..127 | 128..191 | 192..255 ]
 *                                ^ committed to 299, pending to 319
 *
 * Rows enter as a *pending* block: begin(n) makes room, the caller appends and attends, keep(m)
 * commits the first m rows and forgets the rest. The ring has room for what the first pending row sees
 * and for max_block rows, and one page more, so that a page is only taken over when no row of the
 * block, nor of the block that replaces a rejected one, can see it. It keeps two positions more than
 * the window, for drafters that look at the last window + 1 positions before the next row.
 *
 * Shared pages (fork) are never written: begin() copies the last, partly filled page when somebody
 * else holds it too. begin and keep allocate no memory. Not thread-safe: one user at a time.
 *
 * Users: models (layout, views), engine and sched (pool, sequences), `sibyl fit` (bytes). */
#ifndef SIB_KV_CACHE_H
#define SIB_KV_CACHE_H

#include "ops/ops.h"

typedef struct sib_kv_layer {
    sib_kv_geom geom;
    int window; /* 0: a row may see every position before it; W: the last W, its own included */
    int donor;  /* -1: the layer owns its cache; else it reads the cache of layer `donor`, which owns one */
} sib_kv_layer;

typedef struct sib_kv_layout sib_kv_layout;
typedef struct sib_kv_pool sib_kv_pool;
typedef struct sib_kv_seq sib_kv_seq;

/* Copies `layers`. ctx: positions a sequence may have, pending ones included; max_block: rows of
 * the largest begin(). A layer with a donor must have the donor's geometry and window. */
sib_status sib_kv_layout_new(sib_kv_layout **out, const sib_kv_layer *layers, int n_layers, int32_t ctx, int max_block,
                             sib_err *err);
void sib_kv_layout_free(sib_kv_layout *l);

/* What a pool is planned for: so many sequences at once, with so many positions in all of them
 * together. sequences = 1 and positions = ctx serves one session to its full context. */
typedef struct sib_kv_budget {
    int sequences;
    int64_t positions;
} sib_kv_budget;

/* Exactly the device memory that sib_kv_pool_new allocates; SIZE_MAX for a budget that is out of range
 * (positions 1 to 2^48, sequences 1 to 2^20) or beyond 2^62 bytes. */
size_t sib_kv_bytes(const sib_kv_layout *l, sib_device *d, const sib_kv_budget *b);

/* The layout and the device are borrowed and must outlive the pool; the pool its sequences. */
sib_status sib_kv_pool_new(sib_kv_pool **out, const sib_kv_layout *l, sib_device *d, const sib_kv_budget *b,
                           sib_err *err);
void sib_kv_pool_free(sib_kv_pool *p);
int64_t sib_kv_pool_free_pages(const sib_kv_pool *p); /* of all classes */

/* An empty sequence. */
sib_status sib_kv_seq_new(sib_kv_seq **out, sib_kv_pool *p, sib_err *err);
void sib_kv_seq_free(sib_kv_seq *s);

int32_t sib_kv_length(const sib_kv_seq *s); /* committed positions = position of the next row */
int sib_kv_pending(const sib_kv_seq *s);

/* Room for n rows at positions length .. length + n - 1. On failure nothing has changed.
 * ESTATE: a block is pending; EARG: n is not 1..max_block; ECAPACITY: beyond ctx, or no pages. */
sib_status sib_kv_begin(sib_kv_seq *s, int n, sib_err *err);
bool sib_kv_can_begin(const sib_kv_seq *s, int n);

/* Commits the first n rows of the pending block, 0 <= n <= pending; the rest is as if never drafted. */
void sib_kv_keep(sib_kv_seq *s, int n);

/* Forgets positions >= len; only between blocks. ESTATE when a layer's ring no longer holds the
 * window before len (nothing has changed then: the caller starts over from a length that
 * is held, 0 always being one). */
sib_status sib_kv_truncate(sib_kv_seq *s, int32_t len, sib_err *err);
bool sib_kv_can_truncate(const sib_kv_seq *s, int32_t len);
/* The smallest length such that truncate succeeds for it and every longer one up to now (for 0 it always does). */
int32_t sib_kv_reach(const sib_kv_seq *s);

/* Makes the empty sequence `s` equal to the first len positions of `from` (same pool), sharing its
 * pages. Errors as for truncate. No memory is copied or allocated. */
sib_status sib_kv_fork(sib_kv_seq *s, const sib_kv_seq *from, int32_t len, sib_err *err);

/* The pages of a layer (its donor's when it has one), for a span. Valid as long as the sequence;
 * begin, truncate and fork change the addresses inside. */
sib_kv_view sib_kv_view_of(const sib_kv_seq *s, int layer);

#endif

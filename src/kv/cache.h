/* kv/cache.h - keys and values of sequences over all layers of a model.
 *
 *   layout   what each layer keeps: geometry, window, whose cache it reads
 *   pool     pages of device memory for a planned number of sequences and positions
 *   seq      one timeline: a page ring per owning layer, a committed length, a pending block
 *
 *   full layer      pages [0][1][2][3] ... grow with the length, up to n_ctx
 *   sliding layer   pages [k % n] ring that holds window + max_block positions; old pages are reused in place
 *
 *   committed                     pending block
 *   |p0 p1 ... p(length-1)| p(length) ... p(length+n-1) |
 *                           begin(n) makes room, the forward pass appends, keep(k) commits the first k
 *
 * Because a ring has room for window + max_block positions, pending rows never overwrite keys that the rows of the
 * same call, or a shorter continuation after a rejection, still see. Nothing here allocates after seq_new. */
#ifndef SIB_KV_CACHE_H
#define SIB_KV_CACHE_H

#include "ops/ops.h"

typedef struct sib_kv_layer {
    sib_kv_geom geom;
    int window; /* 0: full */
    int owner;  /* layer whose cache this one reads; its own index, or a donor's (KV-shared layers) */
} sib_kv_layer;

typedef struct sib_kv_layout {
    int n_layers;
    sib_kv_layer *layers;
} sib_kv_layout;

sib_status sib_kv_layout_init(sib_kv_layout *l, int n_layers, sib_err *err); /* zeroed layers, owned */
void sib_kv_layout_deinit(sib_kv_layout *l);

typedef struct sib_kv_pool sib_kv_pool;
typedef struct sib_kv_seq sib_kv_seq;

/* Device bytes that sib_kv_pool_new takes for these sizes. */
size_t sib_kv_pool_bytes(sib_device *d, const sib_kv_layout *l, int n_ctx, int n_seqs, int max_block);

/* Pages for n_seqs sequences of n_ctx positions, blocks of at most max_block rows. The layout is copied. On a device that only
 * counts (ops/nothing.h) it counts. */
sib_status sib_kv_pool_new(sib_kv_pool **out, sib_device *d, const sib_kv_layout *l, int n_ctx, int n_seqs, int max_block, sib_err *err);
void sib_kv_pool_free(sib_kv_pool *p); /* after its sequences; NULL is fine */

/* SIB_ECAPACITY when n_seqs exist already. */
sib_status sib_kv_seq_new(sib_kv_seq **out, sib_kv_pool *p, sib_err *err);
void sib_kv_seq_free(sib_kv_seq *s);

int sib_kv_seq_length(const sib_kv_seq *s);  /* committed positions */
int sib_kv_seq_pending(const sib_kv_seq *s); /* rows begun and not kept */

/* Room for n pending rows at positions length .. length+n-1. SIB_ECAPACITY beyond n_ctx or max_block; SIB_ESTATE with a block pending. */
sib_status sib_kv_seq_begin(sib_kv_seq *s, int n, sib_err *err);
/* Commits the first n of the pending rows; the rest was never there. */
sib_status sib_kv_seq_keep(sib_kv_seq *s, int n, sib_err *err);
/* Back to `length` committed positions; SIB_ESTATE below reach, with nothing changed. Drops a pending block. */
sib_status sib_kv_seq_truncate(sib_kv_seq *s, int length, sib_err *err);
/* Smallest length that truncate accepts: sliding rings have overwritten what older lengths would see. 0 is always allowed. */
int sib_kv_seq_reach(const sib_kv_seq *s);

/* The ring of the layer that `layer` reads. Borrowed until the sequence changes. */
sib_kv_view sib_kv_seq_view(const sib_kv_seq *s, int layer);

#endif

/* kv/cache.c - see cache.h. */
#include "kv/cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct sib_kv_pool {
    sib_device *dev;
    sib_kv_layout layout;
    int n_ctx, n_seqs, max_block, in_use;
    int *n_pages;          /* [n_layers] ring length of one sequence; 0: reads a donor */
    size_t *page_bytes;    /* [n_layers] */
    void **blocks;         /* [n_seqs] one device block a sequence */
    size_t block_bytes;
    bool *taken; /* [n_seqs] */
};

struct sib_kv_seq {
    sib_kv_pool *pool;
    int slot, length, pending;
    int high;     /* one past the highest position ever written since the last emptying */
    void **pages; /* all layers' rings, one after the other */
    int *first;   /* [n_layers] index of a layer's ring in pages */
};

sib_status sib_kv_layout_init(sib_kv_layout *l, int n_layers, sib_err *err)
{
    *l = (sib_kv_layout){.n_layers = n_layers, .layers = calloc((size_t)n_layers + 1, sizeof *l->layers)};
    return l->layers ? SIB_OK : sib_nomem(err, "cache layout");
}

void sib_kv_layout_deinit(sib_kv_layout *l)
{
    free(l->layers);
    *l = (sib_kv_layout){0};
}

/* A ring must hold what a block's first row sees and the block itself, wherever the block starts in a page. */
static int ring_pages(const sib_kv_layer *l, int n_ctx, int max_block)
{
    int positions = l->window > 0 && l->window + max_block < n_ctx ? l->window + max_block : n_ctx;
    int pages = (positions + SIB_KV_PAGE - 1) / SIB_KV_PAGE;
    return positions < n_ctx ? pages + 1 : pages;
}

static size_t seq_bytes(sib_device *d, const sib_kv_layout *l, int n_ctx, int max_block)
{
    size_t bytes = 0;
    for (int i = 0; i < l->n_layers; i++)
        if (l->layers[i].owner == i)
            bytes += (size_t)ring_pages(&l->layers[i], n_ctx, max_block) * d->ops->kv_page_bytes(d, &l->layers[i].geom);
    return bytes;
}

size_t sib_kv_pool_bytes(sib_device *d, const sib_kv_layout *l, int n_ctx, int n_seqs, int max_block)
{
    return seq_bytes(d, l, n_ctx, max_block) * (size_t)n_seqs;
}

sib_status sib_kv_pool_new(sib_kv_pool **out, sib_device *d, const sib_kv_layout *l, int n_ctx, int n_seqs, int max_block, sib_err *err)
{
    *out = NULL;
    sib_kv_pool *p = calloc(1, sizeof *p);
    if (!p) return sib_nomem(err, "cache");
    *p = (sib_kv_pool){.dev = d, .n_ctx = n_ctx, .n_seqs = n_seqs, .max_block = max_block};
    sib_status s = sib_kv_layout_init(&p->layout, l->n_layers, err);
    p->n_pages = calloc((size_t)l->n_layers + 1, sizeof *p->n_pages);
    p->page_bytes = calloc((size_t)l->n_layers + 1, sizeof *p->page_bytes);
    p->blocks = calloc((size_t)n_seqs, sizeof *p->blocks);
    p->taken = calloc((size_t)n_seqs, sizeof *p->taken);
    if (s == SIB_OK && (!p->n_pages || !p->page_bytes || !p->blocks || !p->taken)) s = sib_nomem(err, "cache");
    if (s == SIB_OK) {
        memcpy(p->layout.layers, l->layers, (size_t)l->n_layers * sizeof *l->layers);
        p->block_bytes = seq_bytes(d, l, n_ctx, max_block);
        for (int i = 0; i < l->n_layers; i++) {
            if (l->layers[i].owner != i) continue;
            p->n_pages[i] = ring_pages(&l->layers[i], n_ctx, max_block);
            p->page_bytes[i] = d->ops->kv_page_bytes(d, &l->layers[i].geom);
        }
    }
    for (int i = 0; s == SIB_OK && i < n_seqs; i++) s = d->ops->alloc(d, p->block_bytes, &p->blocks[i], err);
    if (s != SIB_OK) {
        sib_kv_pool_free(p);
        return sib_within(err, s, "keys and values of %d sequences of %d positions", n_seqs, n_ctx);
    }
    *out = p;
    return SIB_OK;
}

void sib_kv_pool_free(sib_kv_pool *p)
{
    if (!p) return;
    assert(p->in_use == 0);
    for (int i = 0; p->blocks && i < p->n_seqs; i++)
        if (p->blocks[i]) p->dev->ops->release(p->dev, p->blocks[i], p->block_bytes);
    sib_kv_layout_deinit(&p->layout);
    free(p->n_pages);
    free(p->page_bytes);
    free(p->blocks);
    free(p->taken);
    free(p);
}

sib_status sib_kv_seq_new(sib_kv_seq **out, sib_kv_pool *p, sib_err *err)
{
    *out = NULL;
    int slot = 0;
    while (slot < p->n_seqs && p->taken[slot]) slot++;
    if (slot == p->n_seqs) return sib_fail(err, SIB_ECAPACITY, "all %d planned sequences are in use", p->n_seqs);
    size_t total = 0;
    for (int i = 0; i < p->layout.n_layers; i++) total += (size_t)p->n_pages[i];
    sib_kv_seq *s = calloc(1, sizeof *s);
    if (!s) return sib_nomem(err, "sequence");
    *s = (sib_kv_seq){.pool = p, .slot = slot, .pages = calloc(total + 1, sizeof *s->pages), .first = calloc((size_t)p->layout.n_layers + 1, sizeof *s->first)};
    if (!s->pages || !s->first) {
        free(s->pages);
        free(s->first);
        free(s);
        return sib_nomem(err, "sequence");
    }
    char *at = p->blocks[slot];
    for (int i = 0, n = 0; i < p->layout.n_layers; i++) {
        s->first[i] = n;
        for (int k = 0; k < p->n_pages[i]; k++, at += p->page_bytes[i]) s->pages[n++] = at;
    }
    p->taken[slot] = true;
    p->in_use++;
    *out = s;
    return SIB_OK;
}

void sib_kv_seq_free(sib_kv_seq *s)
{
    if (!s) return;
    s->pool->taken[s->slot] = false;
    s->pool->in_use--;
    free(s->pages);
    free(s->first);
    free(s);
}

int sib_kv_seq_length(const sib_kv_seq *s)
{
    return s->length;
}

int sib_kv_seq_pending(const sib_kv_seq *s)
{
    return s->pending;
}

sib_status sib_kv_seq_begin(sib_kv_seq *s, int n, sib_err *err)
{
    if (s->pending) return sib_fail(err, SIB_ESTATE, "a block of %d rows is still pending", s->pending);
    if (n < 1 || n > s->pool->max_block) return sib_fail(err, SIB_ECAPACITY, "a block of %d rows, planned are %d", n, s->pool->max_block);
    if (n > s->pool->n_ctx - s->length)
        return sib_fail(err, SIB_ECAPACITY, "context is full: %d positions and %d more, planned are %d", s->length, n, s->pool->n_ctx);
    s->pending = n;
    if (s->length + n > s->high) s->high = s->length + n;
    return SIB_OK;
}

sib_status sib_kv_seq_keep(sib_kv_seq *s, int n, sib_err *err)
{
    if (n < 0 || n > s->pending) return sib_fail(err, SIB_EARG, "keep %d of %d pending rows", n, s->pending);
    s->length += n;
    s->pending = 0;
    return SIB_OK;
}

/* A ring of r positions (whole pages) that has seen position high-1 still holds every page whose successor at distance
 * r was not begun: positions from (page of high-1) - n_pages + 1 on. A timeline of length L is usable when the window
 * of its next row, from L - window + 1, is still there. */
int sib_kv_seq_reach(const sib_kv_seq *s)
{
    int reach = 0;
    for (int i = 0; i < s->pool->layout.n_layers; i++) {
        int window = s->pool->layout.layers[i].window;
        if (s->pool->n_pages[i] == 0 || window == 0 || s->high == 0) continue;
        int oldest = ((s->high - 1) / SIB_KV_PAGE - s->pool->n_pages[i] + 1) * SIB_KV_PAGE;
        if (oldest <= 0) continue;
        int need = oldest + window - 1;
        if (need > reach) reach = need;
    }
    return reach < s->length ? reach : s->length;
}

sib_status sib_kv_seq_truncate(sib_kv_seq *s, int length, sib_err *err)
{
    if (length < 0 || length > s->length) return sib_fail(err, SIB_EARG, "cannot go back to %d from %d positions", length, s->length);
    if (length != 0 && length < sib_kv_seq_reach(s))
        return sib_fail(err, SIB_ESTATE, "positions before %d are no longer held", sib_kv_seq_reach(s));
    s->pending = 0;
    s->length = length;
    if (length == 0) s->high = 0;
    return SIB_OK;
}

sib_kv_view sib_kv_seq_view(const sib_kv_seq *s, int layer)
{
    int owner = s->pool->layout.layers[layer].owner;
    return (sib_kv_view){s->pages + s->first[owner], s->pool->n_pages[owner]};
}

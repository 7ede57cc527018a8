/* text/bpe.c - see bpe.h. */
#include "text/bpe.h"

#include "base/utf8.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A longer probe sequence than this happens in no honest file at half load. */
#define MAX_PROBE 4096

void sib_bpe_init(sib_bpe *b)
{
    *b = (sib_bpe){.unk = SIB_NO_ID, .id_limit = SIB_TOKENIZER_MAX_IDS};
    memset(b->char_id, 0xFF, sizeof b->char_id);
    memset(b->byte_id, 0xFF, sizeof b->byte_id);
}

void sib_bpe_deinit(sib_bpe *b)
{
    sib_buf_deinit(&b->strings);
    free(b->entries);
    free(b->slots);
    free(b->merges);
    sib_bpe_init(b);
}

/* ---- vocabulary ---- */

sib_status sib_bpe_add(sib_bpe *b, sib_str text, uint32_t id, sib_err *err)
{
    if (id >= b->id_limit)
        return sib_fail(err, SIB_EFORMAT, "token \"%.*s\" has id %u, in a file of this size ids must be below %u",
                        (int)(text.n < 80 ? text.n : 80), text.p, id, b->id_limit);
    if (text.n > SIB_TOKEN_MAX_BYTES)
        return sib_fail(err, SIB_EFORMAT, "token %u has %zu bytes, allowed are %u", id, text.n, SIB_TOKEN_MAX_BYTES);
    if (b->strings.n > SIB_NO_ID - SIB_TOKEN_MAX_BYTES)
        return sib_fail(err, SIB_EFORMAT, "the vocabulary's texts are longer than 4 GiB");
    if (id >= b->cap_ids) {
        uint32_t cap = b->cap_ids ? b->cap_ids : 1024;
        while (cap <= id) cap *= 2;
        sib_vocab_entry *e = realloc(b->entries, cap * sizeof *e);
        if (!e) return sib_nomem(err, "vocabulary");
        memset(e + b->cap_ids, 0xFF, (cap - b->cap_ids) * sizeof *e);
        b->entries = e;
        b->cap_ids = cap;
    }
    sib_vocab_entry *e = &b->entries[id];
    if (e->n != SIB_NO_ID) return sib_fail(err, SIB_EFORMAT, "two tokens have the id %u", id);
    *e = (sib_vocab_entry){(uint32_t)b->strings.n, (uint32_t)text.n};
    sib_buf_add(&b->strings, text.p, text.n);
    if (b->strings.failed) return sib_nomem(err, "vocabulary");
    if (id >= b->n_ids) b->n_ids = id + 1;
    b->n_used++;
    return SIB_OK;
}

/* FNV-1a, so that the hash of a joined text goes on from the hash of its head. */
#define HASH_START 0xCBF29CE484222325u

static uint64_t hash_more(uint64_t h, sib_str s)
{
    for (size_t i = 0; i < s.n; i++) h = (h ^ (unsigned char)s.p[i]) * 0x100000001B3u;
    return h;
}

static uint32_t hash_end(uint64_t h)
{
    return (uint32_t)((h ^ h >> 29) * 0x9E3779B97F4A7C15u >> 32);
}

/* Id of the token whose text is a followed by b. */
static uint32_t find_joined(const sib_bpe *v, sib_str a, sib_str b)
{
    if (!v->slots) return SIB_NO_ID;
    uint32_t hash = hash_end(hash_more(hash_more(HASH_START, a), b));
    for (uint32_t k = 0; k <= v->longest_probe; k++) {
        const sib_vocab_slot *slot = &v->slots[(hash + k) & v->slot_mask];
        if (slot->id == SIB_NO_ID) return SIB_NO_ID;
        if (slot->hash != hash) continue;
        const sib_vocab_entry *e = &v->entries[slot->id];
        const char *p = v->strings.p + e->at;
        if (e->n == a.n + b.n && memcmp(p, a.p, a.n) == 0 && memcmp(p + a.n, b.p, b.n) == 0) return slot->id;
    }
    return SIB_NO_ID;
}

uint32_t sib_bpe_id(const sib_bpe *b, sib_str text)
{
    return find_joined(b, text, SIB_STR(""));
}

sib_str sib_bpe_text(const sib_bpe *b, uint32_t id)
{
    if (id >= b->n_ids || b->entries[id].n == SIB_NO_ID) return (sib_str){NULL, 0};
    return (sib_str){b->strings.p + b->entries[id].at, b->entries[id].n};
}

/* Smallest power of two that is at least twice `count`. */
static size_t table_size(size_t count)
{
    size_t size = 16;
    while (size < 2 * count) size *= 2;
    return size;
}

sib_status sib_bpe_seal(sib_bpe *b, sib_err *err)
{
    size_t size = table_size(b->n_used);
    free(b->slots);
    b->slots = malloc(size * sizeof *b->slots);
    if (!b->slots) return sib_nomem(err, "vocabulary");
    memset(b->slots, 0xFF, size * sizeof *b->slots);
    b->slot_mask = (uint32_t)(size - 1);
    b->longest_probe = 0;
    for (uint32_t id = 0; id < b->n_ids; id++) {
        sib_str text = sib_bpe_text(b, id);
        if (!text.p) continue;
        uint32_t hash = hash_end(hash_more(HASH_START, text)), k = 0;
        sib_vocab_slot *slot;
        while ((slot = &b->slots[(hash + k) & b->slot_mask])->id != SIB_NO_ID) {
            if (slot->hash == hash && sib_str_eq(sib_bpe_text(b, slot->id), text))
                return sib_fail(err, SIB_EFORMAT, "the ids %u and %u have the same text", slot->id, id);
            if (++k > MAX_PROBE)
                return sib_fail(err, SIB_EFORMAT, "the vocabulary's texts collide in the lookup table");
        }
        *slot = (sib_vocab_slot){hash, id};
        if (k > b->longest_probe) b->longest_probe = k;
    }
    for (uint32_t cp = 0; cp < SIB_COUNT(b->char_id); cp++) {
        char u[4];
        size_t n = sib_utf8_put(cp, u);
        b->char_id[cp] = sib_bpe_id(b, (sib_str){u, n});
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        char name[8];
        (void)snprintf(name, sizeof name, "<0x%02X>", byte);
        b->byte_id[byte] = sib_bpe_id(b, sib_str_of(name));
    }
    return SIB_OK;
}

/* ---- merges ---- */

static uint32_t hash_pair(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    return (uint32_t)((h ^ h >> 32) * 0xD6E8FEB86659FD93u >> 32);
}

static const sib_merge *find_merge(const sib_bpe *b, uint32_t left, uint32_t right)
{
    if (!b->merges) return NULL;
    uint32_t hash = hash_pair(left, right);
    for (uint32_t k = 0; k <= b->longest_merge_probe; k++) {
        const sib_merge *m = &b->merges[(hash + k) & b->merge_mask];
        if (m->left == SIB_NO_ID) return NULL;
        if (m->left == left && m->right == right) return m;
    }
    return NULL;
}

sib_status sib_bpe_reserve_merges(sib_bpe *b, size_t count, sib_err *err)
{
    if (count > SIB_MAX_MERGES) return sib_fail(err, SIB_EFORMAT, "%zu entries, allowed are %u", count, SIB_MAX_MERGES);
    size_t size = table_size(count);
    b->merges = malloc(size * sizeof *b->merges);
    if (!b->merges) return sib_nomem(err, "merges");
    memset(b->merges, 0xFF, size * sizeof *b->merges);
    b->merge_mask = (uint32_t)(size - 1);
    return SIB_OK;
}

sib_status sib_bpe_add_merge(sib_bpe *b, sib_str left, sib_str right, sib_err *err)
{
    sib_merge m = {sib_bpe_id(b, left), sib_bpe_id(b, right), b->n_merges, SIB_NO_ID};
    if (m.left == SIB_NO_ID || m.right == SIB_NO_ID) {
        sib_str lost = m.left == SIB_NO_ID ? left : right;
        return sib_fail(err, SIB_EFORMAT, "merge %u: \"%.*s\" is not in the vocabulary", b->n_merges,
                        (int)(lost.n < 80 ? lost.n : 80), lost.p);
    }
    m.result = find_joined(b, left, right);
    if (m.result == SIB_NO_ID) {
        return sib_fail(err, SIB_EFORMAT, "merge %u: the result of \"%.*s\" and \"%.*s\" is not in the vocabulary",
                        b->n_merges, (int)(left.n < 80 ? left.n : 80), left.p, (int)(right.n < 80 ? right.n : 80),
                        right.p);
    }
    uint32_t hash = hash_pair(m.left, m.right), k = 0;
    sib_merge *slot;
    while ((slot = &b->merges[(hash + k) & b->merge_mask])->left != SIB_NO_ID) {
        if (slot->left == m.left && slot->right == m.right) break; /* listed twice: the later rank counts */
        if (++k > MAX_PROBE) return sib_fail(err, SIB_EFORMAT, "the merges collide in the lookup table");
    }
    *slot = m;
    if (k > b->longest_merge_probe) b->longest_merge_probe = k;
    b->n_merges++;
    return SIB_OK;
}

/* ---- encoding ---- */

/* Symbols form a doubly linked list inside one array; a merge absorbs the right one. */
typedef struct sib_bpe_symbol {
    uint32_t id; /* SIB_NO_ID: absorbed */
    uint32_t prev, next;
} symbol;

#define NONE UINT32_MAX

/* A pair that can be merged: order is by rank, then by position. It is stale when the pair
 * at `position` has changed meanwhile so that it no longer merges into `result`. */
typedef struct sib_bpe_candidate {
    uint32_t rank, position, result;
} candidate;

static bool before(candidate a, candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.position < b.position;
}

static void sift_down(candidate *heap, size_t n, size_t i)
{
    candidate c = heap[i];
    for (size_t kid; (kid = 2 * i + 1) < n; i = kid) {
        if (kid + 1 < n && before(heap[kid + 1], heap[kid])) kid++;
        if (!before(heap[kid], c)) break;
        heap[i] = heap[kid];
    }
    heap[i] = c;
}

static void heap_push(candidate *heap, size_t *n, candidate c)
{
    size_t i = (*n)++;
    for (; i > 0 && before(c, heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = c;
}

static candidate heap_pop(candidate *heap, size_t *n)
{
    candidate top = heap[0];
    heap[0] = heap[--*n];
    if (*n > 1) sift_down(heap, *n, 0);
    return top;
}

void sib_bpe_scratch_deinit(sib_bpe_scratch *s)
{
    free(s->symbols);
    free(s->heap);
    *s = (sib_bpe_scratch){0};
}

static bool reserve_symbols(sib_bpe_scratch *s, size_t n)
{
    if (n <= s->cap_symbols) return true;
    free(s->symbols);
    s->cap_symbols = n + n / 2 + 32;
    s->symbols = malloc(s->cap_symbols * sizeof *s->symbols);
    if (!s->symbols) s->cap_symbols = 0;
    return s->symbols != NULL;
}

static bool reserve_heap(sib_bpe_scratch *s, size_t n)
{
    if (n <= s->cap_heap) return true;
    free(s->heap);
    s->cap_heap = n + n / 2 + 32;
    s->heap = malloc(s->cap_heap * sizeof *s->heap);
    if (!s->heap) s->cap_heap = 0;
    return s->heap != NULL;
}

static uint32_t usable(uint32_t id, const uint8_t *barred)
{
    return id != SIB_NO_ID && barred && barred[id] ? SIB_NO_ID : id;
}

/* The piece as symbols: one for each character, or its bytes, or unk. */
static size_t first_symbols(const sib_bpe *b, sib_str piece, const uint8_t *barred, symbol *out)
{
    size_t n = 0, len;
    bool unk_waits = false; /* with fuse_unk, further unknown characters join it */
    for (size_t i = 0; i < piece.n; i += len) {
        uint32_t cp = sib_utf8_next(piece.p + i, piece.n - i, &len);
        uint32_t id =
            usable(cp < SIB_COUNT(b->char_id) ? b->char_id[cp] : sib_bpe_id(b, (sib_str){piece.p + i, len}), barred);
        if (id != SIB_NO_ID) {
            if (unk_waits) out[n++].id = b->unk;
            unk_waits = false;
            out[n++].id = id;
            continue;
        }
        bool all = b->byte_fallback;
        for (size_t k = 0; all && k < len; k++) all = b->byte_id[(unsigned char)piece.p[i + k]] != SIB_NO_ID;
        if (all) { /* a waiting unk comes behind them: the reference's order */
            for (size_t k = 0; k < len; k++) out[n++].id = b->byte_id[(unsigned char)piece.p[i + k]];
        } else if (b->unk != SIB_NO_ID) {
            if (unk_waits && !b->fuse_unk) out[n++].id = b->unk;
            unk_waits = true;
        }
    }
    if (unk_waits) out[n++].id = b->unk;
    return n;
}

/* A candidate for the pair that begins at `position`, if it merges. */
static bool propose(const sib_bpe *b, const symbol *v, uint32_t position, const uint8_t *barred, candidate *out)
{
    const sib_merge *m = find_merge(b, v[position].id, v[v[position].next].id);
    if (!m || usable(m->result, barred) == SIB_NO_ID) return false;
    *out = (candidate){m->rank, position, m->result};
    return true;
}

static void merge_all(const sib_bpe *b, symbol *v, size_t n, const uint8_t *barred, candidate *heap)
{
    size_t waiting = 0;
    candidate c;
    for (uint32_t i = 0; i < n; i++) {
        v[i].prev = i ? i - 1 : NONE;
        v[i].next = i + 1 < n ? i + 1 : NONE;
    }
    for (uint32_t i = 0; i + 1 < n; i++)
        if (propose(b, v, i, barred, &c)) heap[waiting++] = c;
    for (size_t i = waiting / 2; i-- > 0;) sift_down(heap, waiting, i);
    while (waiting) {
        candidate top = heap_pop(heap, &waiting);
        symbol *left = &v[top.position];
        if (left->id == SIB_NO_ID || left->next == NONE) continue;
        symbol *right = &v[left->next];
        const sib_merge *m = find_merge(b, left->id, right->id);
        if (!m || m->result != top.result) continue;
        left->id = top.result;
        left->next = right->next;
        right->id = SIB_NO_ID;
        if (left->next != NONE) v[left->next].prev = top.position;
        if (left->prev != NONE && propose(b, v, left->prev, barred, &c)) heap_push(heap, &waiting, c);
        if (left->next != NONE && propose(b, v, top.position, barred, &c)) heap_push(heap, &waiting, c);
    }
}

sib_status sib_bpe_encode(const sib_bpe *b, sib_str piece, const uint8_t *barred, sib_bpe_scratch *s, sib_ids *out,
                          sib_err *err)
{
    if (piece.n == 0) return SIB_OK;
    if (b->ignore_merges) {
        uint32_t whole = usable(sib_bpe_id(b, piece), barred);
        if (whole != SIB_NO_ID) {
            sib_ids_add(out, (int32_t)whole);
            return out->failed ? sib_nomem(err, "token ids") : SIB_OK;
        }
    }
    if (piece.n > UINT32_MAX / 4)
        return sib_fail(err, SIB_ECAPACITY, "a piece of %zu bytes is too long for the tokenizer", piece.n);
    if (!reserve_symbols(s, piece.n)) return sib_nomem(err, "tokenizer scratch"); /* a symbol has at least one byte */
    size_t n = first_symbols(b, piece, barred, s->symbols);
    /* n - 1 pairs at first; each of at most n - 1 merges takes one candidate and adds two. */
    if (!reserve_heap(s, 2 * n)) return sib_nomem(err, "tokenizer scratch");
    merge_all(b, s->symbols, n, barred, s->heap);
    for (size_t i = 0; i < n; i++)
        if (s->symbols[i].id != SIB_NO_ID) sib_ids_add(out, (int32_t)s->symbols[i].id);
    return out->failed ? sib_nomem(err, "token ids") : SIB_OK;
}

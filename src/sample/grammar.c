/* sample/grammar.c - running programs: states, transitions, masks; see grammar.h. */
#include "sample/grammar_internal.h"

#include <stdlib.h>
#include <string.h>

#define MAX_THREADS 2048 /* of one state                                   */
#define MAX_CALLS   128  /* depth of a thread's stack: how deep texts nest */
#define MAX_STATES  4096 /* remembered; more, and the automaton begins anew with the current one */
#define MAX_STACKS  (1 << 18)
#define MASKS       32 /* remembered */

/* ---- the vocabulary ------------------------------------------------------------------------------------ */

/* In preorder: a node's subtree ends before node `end`; its tokens are tokens[first .. first of the next node). */
typedef struct trie_node {
    uint32_t end, first;
    uint8_t byte;
} trie_node;

struct sib_vocab_trie {
    int n_vocab;
    trie_node *nodes; /* [n + 1] */
    uint32_t n;
    int32_t *tokens; /* by their bytes */
    uint32_t n_tokens;
    char *text; /* bytes of all tokens */
    uint32_t *at; /* [n_vocab + 1] into text */
};

typedef struct sorted {
    const char *p;
    uint32_t n;
    int32_t id;
} sorted;

static int by_bytes(const void *a, const void *b)
{
    const sorted *x = a, *y = b;
    int d = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
    if (d) return d;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

void sib_vocab_trie_free(sib_vocab_trie *t)
{
    if (!t) return;
    free(t->nodes);
    free(t->tokens);
    free(t->text);
    free(t->at);
    free(t);
}

#define MAX_TOKEN_BYTES 255 /* longer ones are never allowed */

static void build_nodes(sib_vocab_trie *t, const sorted *v)
{
    uint32_t path[MAX_TOKEN_BYTES + 1], depth = 0; /* open nodes; path[d] is the node of byte d */
    const char *last = "";
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        uint32_t same = 0;
        while (same < depth && same < v[i].n && v[i].p[same] == last[same]) same++;
        while (depth > same) t->nodes[path[--depth]].end = t->n;
        while (depth < v[i].n) {
            t->nodes[t->n] = (trie_node){.first = i, .byte = (uint8_t)v[i].p[depth]};
            path[depth++] = t->n++;
        }
        t->tokens[i] = v[i].id;
        last = v[i].p;
    }
    while (depth > 0) t->nodes[path[--depth]].end = t->n;
    t->nodes[t->n] = (trie_node){.first = t->n_tokens};
}

sib_status sib_vocab_trie_new(sib_vocab_trie **out, int n_vocab, void (*bytes)(const void *ctx, int32_t id, sib_buf *out), const void *ctx, sib_err *err)
{
    sib_buf text = {0};
    sib_vocab_trie *t = *out = calloc(1, sizeof *t);
    sorted *v = calloc((size_t)n_vocab + 1, sizeof *v);
    bool ok = t && v && (t->at = calloc((size_t)n_vocab + 1, sizeof *t->at)) && (t->tokens = calloc((size_t)n_vocab + 1, sizeof *t->tokens));
    for (int32_t i = 0; ok && i < n_vocab; i++) {
        t->at[i] = (uint32_t)text.n;
        bytes(ctx, i, &text);
        ok = !text.failed && text.n < UINT32_MAX;
    }
    if (ok) {
        t->n_vocab = n_vocab;
        t->at[n_vocab] = (uint32_t)text.n;
        t->text = text.p;
        for (int32_t i = 0; i < n_vocab; i++) {
            uint32_t n = t->at[i + 1] - t->at[i];
            if (n > 0 && n <= MAX_TOKEN_BYTES) v[t->n_tokens++] = (sorted){text.p + t->at[i], n, i};
        }
        qsort(v, t->n_tokens, sizeof *v, by_bytes);
        ok = (t->nodes = calloc(text.n + 1, sizeof *t->nodes)) != NULL;
    } else {
        sib_buf_deinit(&text);
    }
    if (ok) build_nodes(t, v);
    free(v);
    if (ok) return SIB_OK;
    sib_vocab_trie_free(t);
    *out = NULL;
    return sib_nomem(err, "trie of the vocabulary");
}

/* ---- automata ---------------------------------------------------------------------------------------------- */

typedef struct stack {
    int32_t pc, parent; /* where to go on; -1: the bottom */
    int32_t depth, next; /* hash chain */
} stack;

typedef struct thread {
    int32_t pc, stack; /* pc of a BYTES; -1: the end of the text has been reached */
} thread;

typedef struct state {
    uint32_t first, n; /* in threads */
    uint32_t hash;
    int32_t next; /* hash chain */
    bool accepts;
    int32_t *to; /* [256]: UNKNOWN, DEAD or a state; NULL until asked for */
} state;

enum { UNKNOWN = -1, DEAD = -2 };
#define BUCKETS 8192

struct sib_automaton {
    const sib_grammar_program *p;
    const sib_vocab_trie *trie;
    stack *stacks;
    int32_t n_stacks, cap_stacks;
    int32_t stack_heads[BUCKETS], state_heads[BUCKETS];
    state *states;
    int32_t n_states, cap_states, now;
    thread *threads;
    uint32_t n_threads, cap_threads;
    thread work[MAX_THREADS], found[MAX_THREADS];
    uint32_t n_work, n_found;
    thread *seen; /* [SEEN] what the closure has visited, an open hash table */
    uint32_t *seen_at, stamp;
    bool overflow;
    struct {
        int32_t state;
        uint32_t *bits;
    } masks[MASKS];
    int next_mask;
};

#define SEEN 8192

static uint32_t mix(uint32_t a, uint32_t b)
{
    uint64_t h = ((uint64_t)a << 32 | b) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32) ^ (uint32_t)h;
}

static bool grow(void **v, size_t n, size_t *cap, size_t each)
{
    if (n < *cap) return true;
    size_t more = *cap ? 2 * *cap : 256;
    void *w = realloc(*v, more * each);
    if (!w) return false;
    *v = w;
    *cap = more;
    return true;
}

/* The stack `parent` with pc on top; -1 when it is too deep or there are too many. */
static int32_t push(sib_automaton *a, int32_t pc, int32_t parent)
{
    int32_t depth = parent < 0 ? 1 : a->stacks[parent].depth + 1;
    uint32_t h = mix((uint32_t)pc, (uint32_t)parent) % BUCKETS;
    for (int32_t i = a->stack_heads[h]; i >= 0; i = a->stacks[i].next)
        if (a->stacks[i].pc == pc && a->stacks[i].parent == parent) return i;
    size_t cap = (size_t)a->cap_stacks;
    if (depth > MAX_CALLS || a->n_stacks >= MAX_STACKS || !grow((void **)&a->stacks, (size_t)a->n_stacks, &cap, sizeof *a->stacks)) return -1;
    a->cap_stacks = (int32_t)cap;
    a->stacks[a->n_stacks] = (stack){pc, parent, depth, a->stack_heads[h]};
    return a->stack_heads[h] = a->n_stacks++;
}

/* Adds a thread to the closure's work unless it has been there. */
static void visit(sib_automaton *a, int32_t pc, int32_t top)
{
    uint32_t h = mix((uint32_t)pc, (uint32_t)top) % SEEN;
    while (a->seen_at[h] == a->stamp) {
        if (a->seen[h].pc == pc && a->seen[h].stack == top) return;
        h = (h + 1) % SEEN;
    }
    if (a->n_work == MAX_THREADS || a->n_found == MAX_THREADS) {
        a->overflow = true;
        return;
    }
    a->seen_at[h] = a->stamp;
    a->seen[h] = (thread){pc, top};
    a->work[a->n_work++] = (thread){pc, top};
}

static int by_place(const void *x, const void *y)
{
    const thread *a = x, *b = y;
    if (a->pc != b->pc) return a->pc < b->pc ? -1 : 1;
    return (a->stack > b->stack) - (a->stack < b->stack);
}

/* Follows splits, calls and returns from the threads in `work` to those that wait for a byte; how many in all is bounded by SEEN. */
static void close_threads(sib_automaton *a)
{
    uint32_t visited = 0;
    a->n_found = 0;
    while (a->n_work > 0) {
        thread t = a->work[--a->n_work];
        if (++visited > SEEN / 2) {
            a->overflow = true;
            break;
        }
        const sib_g_op *op = &a->p->ops[t.pc];
        switch (op->op) {
        case SIB_G_BYTES: a->found[a->n_found++] = t; break;
        case SIB_G_SPLIT:
            visit(a, op->y, t.stack);
            if (op->x != op->y) visit(a, op->x, t.stack);
            break;
        case SIB_G_CALL: {
            int32_t top = push(a, op->y, t.stack);
            if (top >= 0) visit(a, op->x, top); /* too deep a text is not allowed */
            break;
        }
        default:
            if (t.stack >= 0) visit(a, a->stacks[t.stack].pc, a->stacks[t.stack].parent);
            else a->found[a->n_found++] = (thread){-1, -1};
        }
        if (a->n_found == MAX_THREADS) a->overflow = true;
        if (a->overflow) break;
    }
    a->n_work = 0;
    qsort(a->found, a->n_found, sizeof *a->found, by_place);
}

static void new_closure(sib_automaton *a)
{
    a->n_work = a->n_found = 0;
    if (++a->stamp == 0) {
        memset(a->seen_at, 0, SEEN * sizeof *a->seen_at);
        a->stamp = 1;
    }
}

/* The state of the threads in `found`. */
static int32_t intern(sib_automaton *a)
{
    uint32_t h = a->n_found;
    size_t cap_states = (size_t)a->cap_states, cap_threads = a->cap_threads;
    for (uint32_t i = 0; i < a->n_found; i++) h = mix(h ^ (uint32_t)a->found[i].pc, (uint32_t)a->found[i].stack);
    for (int32_t i = a->state_heads[h % BUCKETS]; i >= 0; i = a->states[i].next)
        if (a->states[i].hash == h && a->states[i].n == a->n_found && memcmp(a->threads + a->states[i].first, a->found, a->n_found * sizeof *a->found) == 0) return i;
    while (a->n_threads + a->n_found >= cap_threads) {
        size_t full = cap_threads;
        if (!grow((void **)&a->threads, full, &cap_threads, sizeof *a->threads)) return DEAD;
    }
    a->cap_threads = (uint32_t)cap_threads;
    if (!grow((void **)&a->states, (size_t)a->n_states, &cap_states, sizeof *a->states)) return DEAD;
    a->cap_states = (int32_t)cap_states;
    state *s = &a->states[a->n_states];
    *s = (state){.first = a->n_threads, .n = a->n_found, .hash = h, .next = a->state_heads[h % BUCKETS], .accepts = a->n_found > 0 && a->found[0].pc == -1};
    memcpy(a->threads + a->n_threads, a->found, a->n_found * sizeof *a->found);
    a->n_threads += a->n_found;
    return a->state_heads[h % BUCKETS] = a->n_states++;
}

static int32_t step(sib_automaton *a, int32_t from, uint8_t byte)
{
    if (!a->states[from].to) {
        int32_t *to = malloc(256 * sizeof *to);
        if (!to) return DEAD;
        for (int i = 0; i < 256; i++) to[i] = UNKNOWN;
        a->states[from].to = to;
    }
    int32_t known = a->states[from].to[byte];
    if (known != UNKNOWN) return known;
    new_closure(a);
    for (uint32_t i = 0; i < a->states[from].n; i++) {
        thread t = a->threads[a->states[from].first + i];
        if (t.pc < 0) continue;
        const sib_g_op *op = &a->p->ops[t.pc];
        if (byte >= op->lo && byte <= op->hi) visit(a, op->x, t.stack);
    }
    close_threads(a);
    /* What cannot be followed within the bounds is not allowed. */
    int32_t to = a->n_found == 0 || a->overflow || a->n_states >= 4 * MAX_STATES ? DEAD : intern(a);
    a->overflow = false;
    return a->states[from].to[byte] = to;
}

static void forget(sib_automaton *a)
{
    for (int32_t i = 0; i < a->n_states; i++) free(a->states[i].to);
    for (int i = 0; i < MASKS; i++) a->masks[i].state = -1;
    memset(a->stack_heads, 0xFF, sizeof a->stack_heads);
    memset(a->state_heads, 0xFF, sizeof a->state_heads);
    a->n_states = 0;
    a->n_stacks = 0;
    a->n_threads = 0;
}

/* Begins anew with the current state alone. */
static void compact(sib_automaton *a)
{
    const state now = a->states[a->now];
    if (a->n_states < MAX_STATES && a->n_stacks < MAX_STACKS / 2) return;
    stack *old = malloc(((size_t)a->n_stacks + 1) * sizeof *old);
    if (!old) return;
    memcpy(old, a->stacks, (size_t)a->n_stacks * sizeof *old);
    memcpy(a->found, a->threads + now.first, now.n * sizeof *a->found);
    forget(a);
    for (uint32_t i = 0; i < now.n; i++) {
        int32_t path[MAX_CALLS], depth = 0, top = -1;
        for (int32_t s = a->found[i].stack; s >= 0; s = old[s].parent) path[depth++] = old[s].pc;
        while (depth > 0) top = push(a, path[--depth], top);
        a->found[i].stack = top;
    }
    free(old);
    a->n_found = now.n;
    qsort(a->found, a->n_found, sizeof *a->found, by_place);
    a->now = intern(a);
}

sib_status sib_automaton_new(sib_automaton **out, const sib_grammar_program *p, const sib_vocab_trie *t, sib_err *err)
{
    sib_automaton *a = *out = calloc(1, sizeof *a);
    if (a) a->seen = calloc(SEEN, sizeof *a->seen);
    if (a) a->seen_at = calloc(SEEN, sizeof *a->seen_at);
    if (!a || !a->seen || !a->seen_at) {
        sib_automaton_free(a);
        *out = NULL;
        return sib_nomem(err, "automaton");
    }
    a->p = p;
    a->trie = t;
    forget(a);
    new_closure(a);
    visit(a, p->start, -1);
    close_threads(a);
    a->now = a->overflow || a->n_found == 0 ? DEAD : intern(a);
    if (a->now >= 0) return SIB_OK;
    sib_automaton_free(a);
    *out = NULL;
    return sib_fail(err, SIB_ECAPACITY, "the grammar has too many beginnings");
}

void sib_automaton_free(sib_automaton *a)
{
    if (!a) return;
    for (int32_t i = 0; i < a->n_states; i++) free(a->states[i].to);
    for (int i = 0; i < MASKS; i++) free(a->masks[i].bits);
    free(a->stacks);
    free(a->states);
    free(a->threads);
    free(a->seen);
    free(a->seen_at);
    free(a);
}

bool sib_automaton_bytes(sib_automaton *a, sib_str bytes)
{
    int32_t at = a->now;
    for (size_t i = 0; i < bytes.n && at >= 0; i++) at = step(a, at, (uint8_t)bytes.p[i]);
    if (at < 0) return false;
    a->now = at;
    compact(a);
    return true;
}

bool sib_automaton_token(sib_automaton *a, int32_t id)
{
    const sib_vocab_trie *t = a->trie;
    if (id < 0 || id >= t->n_vocab || t->at[id] == t->at[id + 1]) return false;
    return sib_automaton_bytes(a, (sib_str){t->text + t->at[id], t->at[id + 1] - t->at[id]});
}

bool sib_automaton_accepts(const sib_automaton *a)
{
    return a->states[a->now].accepts;
}

bool sib_automaton_exhausted(sib_automaton *a)
{
    return a->states[a->now].accepts && a->states[a->now].n == 1;
}

static void walk(sib_automaton *a, uint32_t *bits)
{
    const sib_vocab_trie *t = a->trie;
    int32_t at[MAX_TOKEN_BYTES + 1];
    uint32_t ends[MAX_TOKEN_BYTES + 1];
    int depth = 0;
    at[0] = a->now;
    ends[0] = t->n;
    for (uint32_t i = 0; i < t->n;) {
        while (i >= ends[depth]) depth--;
        const trie_node *n = &t->nodes[i];
        int32_t to = step(a, at[depth], n->byte);
        if (to < 0) {
            i = n->end;
            continue;
        }
        /* The node's own tokens come before those of its first child. */
        uint32_t last = i + 1 < n->end ? t->nodes[i + 1].first : t->nodes[n->end].first;
        for (uint32_t k = n->first; k < last; k++) bits[t->tokens[k] >> 5] |= 1u << (t->tokens[k] & 31);
        depth++;
        at[depth] = to;
        ends[depth] = n->end;
        i++;
    }
}

sib_status sib_automaton_mask(sib_automaton *a, uint32_t *allowed, sib_err *err)
{
    size_t bytes = ((size_t)a->trie->n_vocab + 31) / 32 * sizeof *allowed;
    for (int i = 0; i < MASKS; i++)
        if (a->masks[i].bits && a->masks[i].state == a->now) {
            memcpy(allowed, a->masks[i].bits, bytes);
            return SIB_OK;
        }
    int slot = a->next_mask++ % MASKS;
    if (!a->masks[slot].bits) a->masks[slot].bits = malloc(bytes);
    if (!a->masks[slot].bits) return sib_nomem(err, "token mask");
    memset(a->masks[slot].bits, 0, bytes);
    a->masks[slot].state = a->now;
    walk(a, a->masks[slot].bits);
    memcpy(allowed, a->masks[slot].bits, bytes);
    return SIB_OK;
}

/* base/arena.c - see arena.h. */
#include "base/arena.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_BYTES ((size_t)2 << 20)

/* Large blocks come from mmap (zero pages, huge pages), small ones from the C allocator. */
void *sib_aligned_alloc(size_t bytes)
{
    if (bytes == 0) bytes = 1;
    if (bytes > SIZE_MAX / 2) return NULL;
    if (bytes < HUGE_BYTES) {
        size_t padded = (bytes + SIB_ARENA_ALIGN - 1) & ~(size_t)(SIB_ARENA_ALIGN - 1);
        void *p = aligned_alloc(SIB_ARENA_ALIGN, padded);
        if (p) memset(p, 0, padded);
        return p;
    }
    /* Over-map by one huge page and trim, so that the block starts on a 2 MiB border. */
    size_t padded = (bytes + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
    char *p = mmap(NULL, padded + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    size_t head = (HUGE_BYTES - (uintptr_t)p % HUGE_BYTES) % HUGE_BYTES;
    if (head) munmap(p, head);
    if (HUGE_BYTES - head) munmap(p + head + padded, HUGE_BYTES - head);
    p += head;
#ifdef MADV_HUGEPAGE
    (void)madvise(p, padded, MADV_HUGEPAGE);
#endif
    return p;
}

void sib_aligned_free(void *p, size_t bytes)
{
    if (!p) return;
    if (bytes < HUGE_BYTES)
        free(p);
    else
        munmap(p, (bytes + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1));
}

sib_status sib_arena_init(sib_arena *a, size_t bytes, sib_err *err)
{
    *a = (sib_arena){0};
    if (bytes == 0) bytes = SIB_ARENA_ALIGN;
    a->base = sib_aligned_alloc(bytes);
    if (!a->base) return sib_fail(err, SIB_ENOMEM, "out of memory: %zu bytes for activations", bytes);
    a->cap = bytes;
    for (size_t i = 0; i < bytes; i += 4096) a->base[i] = 0;
    return SIB_OK;
}

void sib_arena_deinit(sib_arena *a)
{
    sib_aligned_free(a->base, a->cap);
    *a = (sib_arena){0};
}

void sib_arena_plan(sib_arena *a)
{
    *a = (sib_arena){.cap = SIZE_MAX / 2};
}

bool sib_arena_planning(const sib_arena *a)
{
    return a->base == NULL;
}

void *sib_push(sib_arena *a, size_t bytes)
{
    size_t padded = (bytes + SIB_ARENA_ALIGN - 1) & ~(size_t)(SIB_ARENA_ALIGN - 1);
    if (padded < bytes || padded > a->cap - a->top) {
        a->failed = true;
        return NULL;
    }
    /* A planning arena hands out small non-NULL numbers: never read, never NULL. */
    char *p = a->base ? a->base + a->top : (char *)(uintptr_t)(SIB_ARENA_ALIGN + a->top);
    a->top += padded;
    if (a->top > a->peak) a->peak = a->top;
    return p;
}

void *sib_push_array(sib_arena *a, size_t count, size_t each)
{
    if (each && count > SIZE_MAX / each) {
        a->failed = true;
        return NULL;
    }
    return sib_push(a, count * each);
}

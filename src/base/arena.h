/* base/arena.h - step memory: one block, a moving top, no frees.
 *
 *   base |#########|......................| cap
 *                  top ->                      peak = highest top seen
 *
 * Activations of a step are pushed and dropped together by putting `top` back to a
 * mark. The size is measured, not guessed: an arena with base NULL counts without
 * giving memory, and a run of the same code over operations that do nothing leaves
 * the need in `peak`. A push that does not fit sets `failed` and returns NULL. */
#ifndef SIB_BASE_ARENA_H
#define SIB_BASE_ARENA_H

#include "base/status.h"

#define SIB_ARENA_ALIGN 64u

typedef struct sib_arena {
    char *base;
    size_t cap, top, peak;
    bool failed;
} sib_arena;

/* One aligned block of `bytes`, its pages touched. */
sib_status sib_arena_init(sib_arena *a, size_t bytes, sib_err *err);
void sib_arena_deinit(sib_arena *a);

/* A planning arena: pushes return an address that must not be dereferenced. */
void sib_arena_plan(sib_arena *a);
bool sib_arena_planning(const sib_arena *a);

void *sib_push(sib_arena *a, size_t bytes);
void *sib_push_array(sib_arena *a, size_t count, size_t each); /* checks the product */

#define SIB_PUSH(arena, type, count) ((type *)sib_push_array((arena), (size_t)(count), sizeof(type)))

/* 64-byte aligned memory from the system, zeroed, with huge pages asked for when it is
 * 2 MiB or more; NULL without memory. Free with sib_aligned_free(p, bytes). */
void *sib_aligned_alloc(size_t bytes);
void sib_aligned_free(void *p, size_t bytes);

#endif

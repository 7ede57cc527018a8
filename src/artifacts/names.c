/* artifacts/names.c - see names.h. */
#include "artifacts/names.h"

#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

typedef struct sip {
    uint64_t a, b, c, d;
} sip;

static uint64_t rotate(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

static void sip_rounds(sip *s, int n)
{
    for (; n > 0; n--) {
        s->a += s->b, s->b = rotate(s->b, 13) ^ s->a, s->a = rotate(s->a, 32);
        s->c += s->d, s->d = rotate(s->d, 16) ^ s->c;
        s->a += s->d, s->d = rotate(s->d, 21) ^ s->a;
        s->c += s->b, s->b = rotate(s->b, 17) ^ s->c, s->c = rotate(s->c, 32);
    }
}

static size_t hash(const char *name)
{
    uint64_t key[2] = {0, 0};
    const void *random = (const void *)getauxval(AT_RANDOM); /* 16 bytes that the kernel gave this process */
    if (random) memcpy(key, random, sizeof key);
    sip s = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du, key[0] ^ 0x6c7967656e657261u,
             key[1] ^ 0x7465646279746573u};
    size_t n = strlen(name), i = 0;
    for (;; i += 8) {
        uint64_t word = 0;
        size_t left = n - i;
        memcpy(&word, name + i, left < 8 ? left : 8);
        if (left < 8) word |= (uint64_t)n << 56;
        s.d ^= word;
        sip_rounds(&s, 2);
        s.a ^= word;
        if (left < 8) break;
    }
    s.c ^= 0xff;
    sip_rounds(&s, 4);
    return (size_t)(s.a ^ s.b ^ s.c ^ s.d);
}

static sib_names_slot *slot_of(const sib_names *t, const char *name)
{
    for (size_t i = hash(name);; i++) {
        sib_names_slot *s = &t->slots[i & (t->n_slots - 1)];
        if (!s->name || strcmp(s->name, name) == 0) return s;
    }
}

bool sib_names_reserve(sib_names *t, size_t n)
{
    size_t want = 16;
    while (want / 2 < n) {
        if (want > SIZE_MAX / 4 / sizeof *t->slots) return false;
        want *= 2;
    }
    if (want <= t->n_slots) return true;
    sib_names bigger = {calloc(want, sizeof *t->slots), want, t->n};
    if (!bigger.slots) return false;
    for (size_t i = 0; i < t->n_slots; i++)
        if (t->slots[i].name) *slot_of(&bigger, t->slots[i].name) = t->slots[i];
    free(t->slots);
    *t = bigger;
    return true;
}

void sib_names_deinit(sib_names *t)
{
    free(t->slots);
    *t = (sib_names){0};
}

bool sib_names_add(sib_names *t, const char *name, uint32_t number, uint32_t *old)
{
    if (!sib_names_reserve(t, t->n + 1)) return false;
    sib_names_slot *s = slot_of(t, name);
    *old = s->name ? s->number : SIB_NAMES_NONE;
    if (!s->name) {
        *s = (sib_names_slot){name, number};
        t->n++;
    }
    return true;
}

uint32_t sib_names_find(const sib_names *t, const char *name)
{
    if (!t->n_slots) return SIB_NAMES_NONE;
    const sib_names_slot *s = slot_of(t, name);
    return s->name ? s->number : SIB_NAMES_NONE;
}

/* sample/mlx_random.c - see mlx_random.h. */
#include "sample/mlx_random.h"

#include <math.h>
#include <stdbool.h>

static uint32_t rotl(uint32_t x, int r)
{
    return x << r | x >> (32 - r);
}

static void threefry(const uint32_t key[2], uint32_t *a, uint32_t *b)
{
    static const int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    const uint32_t ks[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDAu};
    *a += ks[0];
    *b += ks[1];
    for (uint32_t g = 0; g < 5; g++) {
        for (int i = 0; i < 4; i++) {
            *a += *b;
            *b = rotl(*b, rotations[g % 2][i]) ^ *a;
        }
        *a += ks[(g + 1) % 3];
        *b += ks[(g + 2) % 3] + g + 1;
    }
}

/* The words of a call of n are pairs of one counter block: word j and word j + o, o = ceil(n / 2); of an odd n the middle
 * word has a block of its own. */
uint32_t sib_mlx_word(const sib_mlx_call *c, uint64_t i)
{
    uint64_t half = c->n / 2, o = half + c->n % 2, j = i < half ? i : i - o;
    bool alone = i == half && c->n % 2 == 1, second = i >= o;
    uint32_t a = (uint32_t)(alone ? half : j), b = (uint32_t)(alone ? 0 : j + o);
    threefry(c->key, &a, &b);
    return second ? b : a;
}

sib_mlx_random sib_mlx_random_seed(uint64_t seed)
{
    return (sib_mlx_random){{(uint32_t)(seed >> 32), (uint32_t)seed}};
}

sib_mlx_call sib_mlx_random_call(sib_mlx_random *r, uint64_t n)
{
    const sib_mlx_call split = {{r->key[0], r->key[1]}, 4};
    sib_mlx_call c = {{sib_mlx_word(&split, 2), sib_mlx_word(&split, 3)}, n};
    r->key[0] = sib_mlx_word(&split, 0);
    r->key[1] = sib_mlx_word(&split, 1);
    return c;
}

float sib_mlx_uniform(const sib_mlx_call *c, uint64_t i)
{
    static const float below_one = 0x1.fffffep-1f;
    float u = (float)sib_mlx_word(c, i) / 4294967296.0f;
    return u < below_one ? u : below_one;
}

int32_t sib_mlx_randint(const sib_mlx_call *c, uint64_t i, int32_t below)
{
    float v = floorf((float)below * sib_mlx_uniform(c, i));
    int32_t id = (int32_t)v;
    return id < below ? id : below - 1;
}

float sib_mlx_gumbel(const sib_mlx_call *c, uint64_t i)
{
    return -logf(-logf(sib_mlx_uniform(c, i)));
}

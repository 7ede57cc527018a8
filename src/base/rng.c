/* base/rng.c - see rng.h. */
#include "base/rng.h"

__extension__ typedef unsigned __int128 sib_u128;

void sib_rng_block(uint64_t seed, uint32_t stream, uint64_t position, uint32_t index, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)position, c1 = (uint32_t)(position >> 32), c2 = index, c3 = stream;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

double sib_rng_uniform(uint64_t seed, uint32_t stream, uint64_t position, uint32_t index)
{
    uint32_t r[4];
    sib_rng_block(seed, stream, position, index >> 2, r);
    return r[index & 3] * 0x1p-32;
}

uint32_t sib_rng_below(uint64_t seed, uint32_t stream, uint64_t position, uint32_t index, uint32_t n)
{
    uint32_t r[4];
    sib_rng_block(seed, stream, position, index, r);
    uint64_t wide = (uint64_t)r[0] << 32 | r[1];
    return (uint32_t)(((sib_u128)wide * n) >> 64);
}

uint64_t sib_splitmix64(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

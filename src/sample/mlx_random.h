/* sample/mlx_random.h - MLX's random generator, for answers that equal those of MLX programs (diffusion_gemma.md 3.9).
 *
 * A global key is split at every call; the call's own key feeds Threefry-2x32-20 (Salmon et al., SC 2011) in counter
 * mode. Words of a call can be asked for one by one, so nothing is stored. Used by sample/diffusion_sampler.c. */
#ifndef SIB_SAMPLE_MLX_RANDOM_H
#define SIB_SAMPLE_MLX_RANDOM_H

#include <stdint.h>

typedef struct sib_mlx_random {
    uint32_t key[2]; /* the global key */
} sib_mlx_random;

/* One call: `n` words from its own key. */
typedef struct sib_mlx_call {
    uint32_t key[2];
    uint64_t n;
} sib_mlx_call;

sib_mlx_random sib_mlx_random_seed(uint64_t seed);
/* Splits the global key and begins a call of n words, 1 <= n <= 2^32. */
sib_mlx_call sib_mlx_random_call(sib_mlx_random *r, uint64_t n);

uint32_t sib_mlx_word(const sib_mlx_call *c, uint64_t i);            /* i < n */
float sib_mlx_uniform(const sib_mlx_call *c, uint64_t i);            /* [0, 1) */
int32_t sib_mlx_randint(const sib_mlx_call *c, uint64_t i, int32_t below); /* 0 .. below - 1 */
float sib_mlx_gumbel(const sib_mlx_call *c, uint64_t i);

#endif

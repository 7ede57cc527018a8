/* base/rng.h - random numbers keyed by position, not by history (Philox 4x32-10,
 * Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
 *
 * A draw is a pure function of (seed, stream, position, index). Speculation, batching and
 * retries therefore consume nothing: the token at emission index e always sees the draws
 * of (seed, SIB_RNG_SAMPLE, e). */
#ifndef SIB_BASE_RNG_H
#define SIB_BASE_RNG_H

#include <stdint.h>

enum { SIB_RNG_SAMPLE = 0, SIB_RNG_ACCEPT = 1, SIB_RNG_CANVAS = 2, SIB_RNG_DENOISE = 3, SIB_RNG_WEIGHTS = 4 };

/* 128 random bits for the counter (position, index). */
void sib_rng_block(uint64_t seed, uint32_t stream, uint64_t position, uint32_t index, uint32_t out[4]);

/* Uniform in [0,1) on a grid of 2^-32 (double) for one (position, index). */
double sib_rng_uniform(uint64_t seed, uint32_t stream, uint64_t position, uint32_t index);

/* Uniform integer in [0, n), n >= 1, unbiased to 2^-32 (multiply-high of 64 bits). */
uint32_t sib_rng_below(uint64_t seed, uint32_t stream, uint64_t position, uint32_t index, uint32_t n);

/* SplitMix64: a small sequential generator for test data and random checkpoints. */
uint64_t sib_splitmix64(uint64_t *state);

#endif

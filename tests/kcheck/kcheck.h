/* kcheck.h - checks every kernel variant against the scalar reference and against exact arithmetic.
 *
 * A family is one function that runs its cases for one table of kernels (`var`, of level c->isa) beside
 * the reference table (`ref`). It announces each case with kc_begin and leaves the case out
 * when that returns false:
 *
 *     if (kc_begin(c, "dot n=%d %s", n, kc_regime_name(g))) {
 *         const float *a = kc_floats(c, n, g), *b = kc_floats(c, n, g);
 *         float got = var->dot(a, b, n);
 *         kc_order(c, "dot", 0, got, sum, sum_abs, n, 0);
 *     }
 *
 * Cases run in a child process: a crash is a failed case, and the next child goes on behind it.
 * Buffers end at an unreadable page (reads beyond them crash) and have canaries in front.
 * Every random number comes from the seed and the case's ordinal: --seed and --only repeat a failure.
 *
 * Rules (docs/NUMERICS.md): EXACT bits equal. ORDER |got - exact| <= n 2^-24 sum|terms| + n tiny, where tiny is what one
 * term may lose to underflow; above the same with 8 sqrt(n) for n it is reported, not failed.
 * ULP distance in float32 units of last place. */
#ifndef KCHECK_H
#define KCHECK_H

#include "base/cpu.h"
#include "kernels/kernels.h"

typedef enum kc_regime { KC_UNIT, KC_TINY, KC_HUGE, KC_CANCEL, KC_SPARSE, KC_REAL, KC_N_REGIMES } kc_regime;

typedef struct kc {
    int isa;       /* level of the variant */
    bool bench;    /* run the family's bench instead of its checks */
    uint64_t rng;  /* state of the case */
    struct kc_shared *shared;
    struct kc_buffer *buffers;
    uint64_t seed;
    int ordinal, skip;
    bool case_failed;
} kc;

typedef struct kc_family {
    const char *name;
    void (*check)(kc *c, const sib_kernels *ref, const sib_kernels *var);
    void (*bench)(kc *c, const sib_kernels *ref, const sib_kernels *var); /* or NULL */
} kc_family;

extern const kc_family kc_matmul;
extern const kc_family kc_attention;
extern const kc_family kc_vector;
extern const kc_family kc_delta;

/* Announces a case and frees the last one's buffers; false: leave it out. */
bool kc_begin(kc *c, const char *fmt, ...) SIB_PRINTF(2, 3);

uint64_t kc_bits(kc *c);
int kc_below(kc *c, int n);      /* 0..n-1 */
double kc_uniform(kc *c);        /* [0, 1) */
float kc_value(kc *c, kc_regime g);
const char *kc_regime_name(kc_regime g);

/* Memory until the next kc_begin. The end lies at an unreadable page, up to `align` - 1 bytes before it. */
void *kc_alloc(kc *c, size_t bytes, size_t align);
float *kc_floats(kc *c, size_t n, kc_regime g); /* filled; aligned to 4 bytes only */

/* One sentence about what is wrong; the case fails. */
void kc_fail(kc *c, const char *fmt, ...) SIB_PRINTF(2, 3);
void kc_exact(kc *c, const char *what, const void *got, const void *want, size_t n, size_t element);
void kc_order(kc *c, const char *what, size_t index, double got, double exact, double sum_abs, double n, double tiny);
void kc_ulp(kc *c, const char *what, size_t index, float got, double exact, double ulps);

/* Calls fn(arg) until 30 ms have passed, at least 3 times; prints the best time, bytes and operations a second (0: not
 * of interest). A family prints ceilings beside them (kernels/probe.h). */
void kc_time(kc *c, const char *what, void (*fn)(void *arg), void *arg, double bytes, double ops);

#endif

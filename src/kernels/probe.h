/* kernels/probe.h - what the machine can do at most, measured in a moment: the ceilings beside the figures of
 * `sibyl bench` and `kcheck --bench`. Memory here has two speeds, so a figure means something only beside a probe. */
#ifndef SIB_KERNELS_PROBE_H
#define SIB_KERNELS_PROBE_H

#include "base/threads.h"

typedef struct sib_ceilings {
    double read_gbps;                         /* sequential reading of memory by all threads of the pool */
    double read_gbps_1t;                      /* by one thread */
    double int8_gops, bf16_gops, f32_gops;    /* 2 operations a multiply-add; 0 where this level has no such instruction */
} sib_ceilings;

void sib_probe(sib_ceilings *out, sib_pool *pool, int isa);

double sib_burn_avx512vnni(long rounds, int kind); /* Gop/s of one thread */
double sib_probe_now(void);

#endif

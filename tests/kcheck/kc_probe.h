/* kc_probe.h - what the machine can do at most, measured in a moment: the ceilings beside the figures of --bench. */
#ifndef KC_PROBE_H
#define KC_PROBE_H

#include "base/threads.h"

typedef struct kc_ceilings {
    double read_gbps;                         /* sequential reading of fresh memory by all threads of the pool */
    double int8_gops, bf16_gops, f32_gops;    /* 2 operations a multiply-add; 0 where this level has no such instruction */
} kc_ceilings;

void kc_probe(kc_ceilings *out, sib_pool *pool, int isa);

double kc_burn_avx512vnni(long rounds, int kind); /* Gop/s of one thread */
double kc_now(void);

#endif

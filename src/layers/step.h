/* layers/step.h - what a forward pass carries along: device, step memory, trace. */
#ifndef SIB_LAYERS_STEP_H
#define SIB_LAYERS_STEP_H

#include "base/arena.h"
#include "base/trace.h"
#include "ops/nothing.h"

typedef struct sib_step {
    sib_device *dev;
    sib_arena *arena; /* device memory of this step; rewound by whoever pushed */
    const sib_trace *trace;
} sib_step;

/* Device values as they stand now go to the trace; free when it is off or when planning. */
static inline void sib_step_trace(const sib_step *s, const char *stage, int index, const float *values, int rows, int n)
{
    if (__builtin_expect(s->trace && s->trace->fn != NULL, 0) && !sib_device_is_nothing(s->dev))
        s->trace->fn(s->trace->ctx, stage, index, values, rows, n);
}

#endif

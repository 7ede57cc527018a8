/* base/trace.h - every stage of a forward pass has a name; a trace sees its values.
 *
 * Off, a trace point is one predicted branch. On, the sink gets host-readable float32
 * values under "stage" or "stage.index", the keys of golden files
 * ("hidden.3", "logits", "vision.features"). The sink must copy what it keeps. */
#ifndef SIB_BASE_TRACE_H
#define SIB_BASE_TRACE_H

#include "base/status.h"

typedef void (*sib_trace_fn)(void *ctx, const char *stage, int index, const float *values, int rows, int n);

typedef struct sib_trace {
    sib_trace_fn fn; /* NULL: off */
    void *ctx;
} sib_trace;

#endif

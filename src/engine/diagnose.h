/* engine/diagnose.h - which layer made the first value that is not a number.
 *
 * The sampler refuses logits that are NaN or infinite. A checkpoint whose weights are damaged or overflow is then run
 * once more with the trace on, and the sentence says where it began. */
#ifndef SIB_ENGINE_DIAGNOSE_H
#define SIB_ENGINE_DIAGNOSE_H

#include "engine/engine_internal.h"

/* Runs the first of these tokens again on a sequence of its own (one must be free) and, when some stage has a value
 * that is not finite, puts its name in front of the sentence in `err`. */
void sib_engine_diagnose(sib_engine *e, const int32_t *ids, int n, sib_err *err);

#endif

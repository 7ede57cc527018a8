/* ops/nothing.h - the planning device: no operation does anything, memory is only counted. */
#ifndef SIB_OPS_NOTHING_H
#define SIB_OPS_NOTHING_H

#include "ops/ops.h"

typedef struct sib_nothing {
    sib_device device; /* first: a sib_nothing * is a sib_device * */
    sib_device *real;  /* whose layouts are counted; borrowed      */
    size_t matrix_bytes, alloc_bytes;
} sib_nothing;

void sib_nothing_init(sib_nothing *n, sib_device *real);
bool sib_device_is_nothing(const sib_device *d);

#endif

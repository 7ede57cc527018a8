/* artifacts/names.h - a table from names to numbers, for names that strangers choose.
 *
 * Open addressing under a keyed hash (SipHash-2-4, Aumasson and Bernstein 2012) whose key this process
 * drew at its start, so that no file can be built to make look-ups slow. Names are borrowed.
 * Used by the safetensors reader and writer and by the checkpoint. */
#ifndef SIB_ARTIFACTS_NAMES_H
#define SIB_ARTIFACTS_NAMES_H

#include "base/status.h"

#define SIB_NAMES_NONE UINT32_MAX

typedef struct sib_names_slot {
    const char *name; /* NULL: empty */
    uint32_t number;
} sib_names_slot;

typedef struct sib_names {
    sib_names_slot *slots;
    size_t n_slots, n; /* n_slots is 0 or a power of two */
} sib_names;

/* Room for n names in all; false without memory. */
bool sib_names_reserve(sib_names *t, size_t n);
void sib_names_deinit(sib_names *t);

/* Adds name -> number. A name that is already there keeps its number, which *old then
 * tells; otherwise *old is SIB_NAMES_NONE. False without memory. */
bool sib_names_add(sib_names *t, const char *name, uint32_t number, uint32_t *old);
uint32_t sib_names_find(const sib_names *t, const char *name); /* SIB_NAMES_NONE: not there */

#endif

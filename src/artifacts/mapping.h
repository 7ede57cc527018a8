/* artifacts/mapping.h - a file mapped read-only that cannot crash the process.
 *
 * Reading a mapped page that the file no longer has (it was truncated, or its disk failed)
 * raises SIGBUS. Weights are read by packing code on any thread, through plain pointers,
 * so the fault is repaired where it happens instead of being jumped out of: a SIGBUS handler,
 * installed at the first mapping, puts zero pages from the faulting page to the end of that
 * mapping, marks it damaged and lets the reader go on. (libwayland treats the shared buffers
 * of its clients in the same way.) No lock stays held, nothing leaks, no thread needs a
 * wrapper; whoever read asks sib_mapping_intact before it trusts what it read.
 *
 *     SIB_TRY(pack_everything(...));
 *     SIB_TRY(sib_checkpoint_intact(c, err));      "model.safetensors: the file became shorter ..."
 *
 * A SIGBUS at any other address goes to the handler that was there before, or kills the
 * process as it would have. A program that replaces the SIGBUS handler later should chain
 * to the one it finds. */
#ifndef SIB_ARTIFACTS_MAPPING_H
#define SIB_ARTIFACTS_MAPPING_H

#include "base/status.h"

typedef struct sib_mapping sib_mapping;

/* Opens a regular file and maps it with the size it has now; the descriptor stays open.
 * Anything else (folder, pipe, device) is SIB_EIO. An empty file maps to no bytes. */
sib_status sib_mapping_open(sib_mapping **out, const char *path, sib_err *err);
void sib_mapping_free(sib_mapping *m); /* NULL is fine; nobody may read the bytes any more */

const unsigned char *sib_mapping_data(const sib_mapping *m);
size_t sib_mapping_size(const sib_mapping *m);
const char *sib_mapping_path(const sib_mapping *m);

/* Copies bytes through the descriptor, not the mapping: what is cut off is an error at once. */
sib_status sib_mapping_read(const sib_mapping *m, size_t offset, void *out, size_t bytes, sib_err *err);

/* The whole pages within [p, p + bytes) may leave this process's memory: they were read and packed. They stay readable
 * (from the page cache or the file). False when the range is not inside the mapping. */
bool sib_mapping_drop(const sib_mapping *m, const void *p, size_t bytes);

/* SIB_EIO when a read of the mapping met a page that the file no longer has, or when the
 * file is now shorter than it was when it was opened. */
sib_status sib_mapping_intact(const sib_mapping *m, sib_err *err);

#endif

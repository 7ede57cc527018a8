/* artifacts/safetensors.h - one safetensors file: read with every check, or written.
 *
 *   bytes 0..7       N, little-endian: length of the header
 *   bytes 8..8+N     {"NAME": {"dtype": "BF16", "shape": [2,3], "data_offsets": [0,12]}, ...}
 *   bytes 8+N..end   data; offsets count from here
 *
 * Strict (the default) accepts what the Rust crate accepts: no holes, no overlap, no bytes
 * after the last tensor (formats.md A.2). `lax` drops exactly these three, for files that MLX's
 * reader takes; no check of bounds is ever dropped. Beyond the crate: no duplicate names, names
 * of 1..1024 bytes without control characters, rank <= 8, dimensions below 2^63, nesting <= 8 levels.
 *
 * Memory: the header (at most 100 MB) is read once and scanned in place, without a JSON
 * tree; with SIB_SAFETENSORS_MAX tensors all tables together stay below 64 MiB.
 *
 * Data may start at any byte: never cast `data` to a wider type, use memcpy or unaligned loads. */
#ifndef SIB_ARTIFACTS_SAFETENSORS_H
#define SIB_ARTIFACTS_SAFETENSORS_H

#include "artifacts/mapping.h"
#include "tensor/dtype.h"

#define SIB_SAFETENSORS_MAX (1 << 18) /* tensors in one file */
#define SIB_TENSOR_MAX_RANK 8

/* Everything is borrowed from the open file. */
typedef struct sib_tensor_info {
    const char *name;
    const char *file;     /* path, for messages */
    const int64_t *shape; /* [rank], each >= 0 */
    const void *data;     /* `bytes` bytes at any alignment */
    size_t bytes;
    sib_dtype dtype;
    int rank; /* 0..8; 0 is one element */
} sib_tensor_info;

/* Product of the dimensions (checked at open: it fits). */
int64_t sib_tensor_elements(const sib_tensor_info *t);
/* "BF16 [2, 3]" for messages; returns `text`. */
const char *sib_tensor_describe(const sib_tensor_info *t, char text[static 256]);

typedef struct sib_safetensors sib_safetensors;

sib_status sib_safetensors_open(sib_safetensors **out, const char *path, bool lax, sib_err *err);
void sib_safetensors_free(sib_safetensors *f); /* NULL is fine */

size_t sib_safetensors_count(const sib_safetensors *f);
const sib_tensor_info *sib_safetensors_at(const sib_safetensors *f, size_t i);           /* in order of their data */
const sib_tensor_info *sib_safetensors_find(const sib_safetensors *f, const char *name); /* NULL: not there */
const char *sib_safetensors_metadata(const sib_safetensors *f, const char *key);         /* of __metadata__, or NULL */
const sib_mapping *sib_safetensors_mapping(const sib_safetensors *f);

/* ---- writing ---------------------------------------------------------------------------
 * Data is streamed to a temporary file beside `path`, which takes its place at finish. Room for the
 * header is left in front (header_reserve bytes, 0 = 64 KiB) and padded with spaces, so
 * tensors need not be known in advance; a header that outgrows it costs one copy of the file. */
typedef struct sib_safetensors_writer sib_safetensors_writer;

sib_status sib_safetensors_create(sib_safetensors_writer **out, const char *path, size_t header_reserve, sib_err *err);
sib_status sib_safetensors_put_metadata(sib_safetensors_writer *w, const char *key, const char *value, sib_err *err);
/* Starts a tensor; its bytes follow in any number of writes, exactly as many as the shape says. */
sib_status sib_safetensors_begin(sib_safetensors_writer *w, const char *name, sib_dtype dtype, int rank,
                                 const int64_t *shape, sib_err *err);
sib_status sib_safetensors_write(sib_safetensors_writer *w, const void *bytes, size_t n, sib_err *err);
/* begin and write in one. */
sib_status sib_safetensors_add(sib_safetensors_writer *w, const char *name, sib_dtype dtype, int rank,
                               const int64_t *shape, const void *data, sib_err *err);
/* Writes the header, renames, frees the writer. After an error the target is as it was before. */
sib_status sib_safetensors_finish(sib_safetensors_writer *w, sib_err *err);
void sib_safetensors_abandon(sib_safetensors_writer *w); /* drops the temporary file; NULL is fine */

#endif

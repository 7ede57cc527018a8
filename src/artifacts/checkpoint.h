/* artifacts/checkpoint.h - a checkpoint folder: its JSON files and all its tensors by name.
 *
 * What is opened (formats.md A.3, F):
 *   config.json                       must be there (or the file that the options name)
 *   generation_config.json            optional
 *   model.safetensors.index.json      names the shards; else model.safetensors; else model*.safetensors
 *   optiq_vision.safetensors          sidecar with the vision tower, also in optiq/; the shards win
 * A place is a folder, or ORG/NAME[@REVISION] of the local Hugging Face cache. No network.
 *
 * Every tensor starts as unexpected. A loader marks what it takes (need, use, and the functions
 * of quant.h), states what it leaves on purpose (ignore), and the report says what remains.
 * Finding is safe from any thread; marking is for the one thread that loads.
 * Tensor data lives in mappings: see mapping.h for what happens when a file is cut. */
#ifndef SIB_ARTIFACTS_CHECKPOINT_H
#define SIB_ARTIFACTS_CHECKPOINT_H

#include "artifacts/safetensors.h"
#include "base/json.h"

typedef struct sib_checkpoint sib_checkpoint;

typedef struct sib_checkpoint_options {
    bool lax_safetensors;    /* see safetensors.h */
    const char *config_file; /* NULL: "config.json"; a drafter may say "dspark.json" */
    const char *cache_root;  /* hub cache; NULL: from the environment */
} sib_checkpoint_options;

/* The folder that `place` means: itself when it is a folder, else the snapshot in the hub cache.
 * *out is malloc'd. SIB_EARG when it is neither, SIB_EIO when the cache entry is unusable. */
sib_status sib_checkpoint_resolve(char **out, const char *place, const char *cache_root, sib_err *err);

/* options may be NULL. Config, index and headers are read; no weights. */
sib_status sib_checkpoint_open(sib_checkpoint **out, const char *place, const sib_checkpoint_options *options,
                               sib_err *err);
void sib_checkpoint_free(sib_checkpoint *c); /* NULL is fine */

const char *sib_checkpoint_dir(const sib_checkpoint *c);
const json_t *sib_checkpoint_config(const sib_checkpoint *c);            /* an object, never NULL */
const json_t *sib_checkpoint_text_config(const sib_checkpoint *c);       /* its text_config, else itself */
const json_t *sib_checkpoint_generation_config(const sib_checkpoint *c); /* NULL: no such file */
const char *sib_checkpoint_type(const sib_checkpoint *c);                /* model_type, "" when absent */
/* Full path of a file in the folder, malloc'd; NULL without memory. It need not exist. */
char *sib_checkpoint_path(const sib_checkpoint *c, const char *file);

size_t sib_checkpoint_count(const sib_checkpoint *c);
const sib_tensor_info *sib_checkpoint_at(const sib_checkpoint *c, size_t i);
/* NULL: not there. Marks nothing. */
const sib_tensor_info *sib_checkpoint_find(const sib_checkpoint *c, const char *name);
bool sib_checkpoint_has(const sib_checkpoint *c, const char *name);
/* __metadata__ of the file that holds the first tensor ("format": "mlx"), or NULL. */
const char *sib_checkpoint_metadata(const sib_checkpoint *c, const char *key);
size_t sib_checkpoint_bytes(const sib_checkpoint *c); /* of all tensors */

/* The pages of a tensor's bytes may leave memory: they were packed (resident memory while loading stays near the packed
 * size). Bytes that are in no file are left alone. */
void sib_checkpoint_drop(const sib_checkpoint *c, const void *p, size_t bytes);

/* SIB_EIO when a file has become shorter since it was opened. Ask after reading weights. */
sib_status sib_checkpoint_intact(const sib_checkpoint *c, sib_err *err);

/* True the first time that it is asked about a topic: for warnings that a load gives once. */
typedef enum sib_once { SIB_ONCE_QUANTIZATION_DIFFERS, SIB_ONCE_TOPICS } sib_once;
bool sib_checkpoint_once(sib_checkpoint *c, sib_once topic);

/* Memory that must live as long as the checkpoint (weights put together at load). NULL without memory. */
void *sib_checkpoint_alloc(sib_checkpoint *c, size_t bytes);

/* ---- what the loader did with each tensor --------------------------------------------- */

/* Finds and marks as used; NULL when it is not there. */
const sib_tensor_info *sib_checkpoint_use(sib_checkpoint *c, const char *name);
/* The same, but absence is SIB_EFORMAT and goes into the report as missing. */
sib_status sib_checkpoint_need(sib_checkpoint *c, const sib_tensor_info **out, const char *name, sib_err *err);
/* Tensors not used whose names match the pattern (`*` stands for any run of bytes) are left on
 * purpose. `reason` must outlive the checkpoint (a literal). */
void sib_checkpoint_ignore(sib_checkpoint *c, const char *pattern, const char *reason);

typedef enum sib_tensor_fate { SIB_TENSOR_UNEXPECTED, SIB_TENSOR_USED, SIB_TENSOR_IGNORED } sib_tensor_fate;
sib_tensor_fate sib_checkpoint_fate(const sib_checkpoint *c, size_t i, const char **reason); /* reason: when ignored */
size_t sib_checkpoint_missing_count(const sib_checkpoint *c);
const char *sib_checkpoint_missing(const sib_checkpoint *c, size_t i);
/* {"used": n, "ignored": [{"reason", "count", "first"}], "unexpected": [names], "missing": [names]};
 * a new reference, NULL without memory. */
json_t *sib_checkpoint_report(const sib_checkpoint *c);

#endif

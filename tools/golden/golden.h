/* tools/golden/golden.h - runs reference cases (product.md "Golden cases").
 *
 * A case is a folder with a checkpoint, expected.safetensors and expected.json. Runners look at the
 * folder, not at its name; each compares the keys it understands and marks them. A key that nobody
 * marked is a failure, so nothing in a case goes unchecked. */
#ifndef SIB_TOOLS_GOLDEN_H
#define SIB_TOOLS_GOLDEN_H

#include "artifacts/checkpoint.h"
#include "base/json.h"
#include "engine/registry.h"
#include "models/family.h"
#include "ops/ops.h"

typedef struct golden {
    const char *dir;
    char name[128]; /* last part of dir */
    sib_safetensors *expected;
    json_t *notes;
    bool *seen; /* [tensors of expected] */
    sib_device *device;
    int passed, failed;
} golden;

/* A model opened from DIR or DIR/SUB for this case. */
typedef struct golden_model {
    sib_checkpoint *files;
    sib_model *model;
} golden_model;

sib_status golden_open(golden *g, golden_model *m, const char *sub, const sib_model_limits *limits, sib_err *err);
void golden_close(golden_model *m);

/* The tensor "KEY" formatted; NULL when the case has none. Marks it as seen. */
const sib_tensor_info *golden_find(golden *g, const char *fmt, ...) SIB_PRINTF(2, 3);
bool golden_has(const golden *g, const char *fmt, ...) SIB_PRINTF(2, 3);
/* As malloc'd f32 or int32 with its element count; exits the tool without memory. NULL: not there. */
float *golden_floats(golden *g, int64_t *n, const char *fmt, ...) SIB_PRINTF(3, 4);
int32_t *golden_ints(golden *g, int64_t *n, const char *fmt, ...) SIB_PRINTF(3, 4);

/* One output line each: `CASE KEY max_abs max_rel ok|FAIL`. n must equal the tensor's elements. */
void golden_compare(golden *g, const char *key, const float *got, int64_t n);
void golden_compare_ids(golden *g, const char *key, const int32_t *got, int64_t n);
void golden_line(golden *g, const char *key, double max_abs, double max_rel, const char *verdict);
void golden_input(golden *g, const char *key); /* an input of the case: marked, printed as `input` */
void golden_fail(golden *g, const char *key, const char *why);

/* Stages of a forward pass as a trace sees them; a stage that comes in parts is joined. ctx: golden_stages *. */
typedef struct golden_stage {
    char key[64]; /* "hidden.3" */
    float *values;
    int64_t n;
} golden_stage;

typedef struct golden_stages {
    golden_stage list[2048];
    int count;
} golden_stages;

void golden_collect(void *ctx, const char *stage, int index, const float *values, int rows, int n);
const golden_stage *golden_stage_find(const golden_stages *s, const char *fmt, ...) SIB_PRINTF(2, 3);
void golden_stages_free(golden_stages *s); /* and s itself, from malloc */

/* Keys PREFIXinput_ids, PREFIXprefill.*, PREFIXgreedy.*, PREFIXvisible.*; the prompt's picture rows in soft. */
sib_status golden_prompt(golden *g, golden_model *m, const char *prefix, const sib_soft *soft, int n_soft, sib_err *err);

/* Encodes picture.png with the budget of expected.json and compares vision.*. *features: device rows of the pictures'
 * *n soft tokens, to be released by the caller; NULL when the case has no picture. */
sib_status golden_encode(golden *g, golden_model *m, float **features, int *n, sib_err *err);

/* ties.c: index_select chooses among equal scores as torch.topk did. */
void golden_follow_ties(sib_device *d);

/* Runners. */
sib_status golden_text(golden *g, sib_err *err);
sib_status golden_pictures(golden *g, golden_model *m, sib_err *err); /* vision.*, image*.*: part of golden_text */
bool golden_is_glm_mtp(const golden *g);
sib_status golden_glm_mtp(golden *g, sib_err *err);   /* a trunk with its own draft head */
sib_status golden_diffusion(golden *g, golden_model *m, sib_err *err); /* block diffusion: part of golden_text */
sib_status golden_assistant(golden *g, sib_err *err); /* a drafter beside target/ */
sib_status golden_qwen_mtp(golden *g, sib_err *err);  /* the same */
sib_status golden_deepspec(golden *g, sib_err *err);
sib_status golden_dflash(golden *g, sib_err *err);
sib_status golden_dspark(golden *g, sib_err *err); /* beside target/ */

#endif

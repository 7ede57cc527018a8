/* engine/engine_internal.h - the loaded checkpoint, shared by the files of engine/ and by sched/ and server/. */
#ifndef SIB_ENGINE_INTERNAL_H
#define SIB_ENGINE_INTERNAL_H

#include "artifacts/generation_config.h"
#include "engine/registry.h"
#include "engine/trace_file.h"
#include "gen/generation.h"
#include "text/chat.h"

struct sib_engine {
    sib_device *device;
    sib_checkpoint *files;
    const sib_family *family;
    sib_model *model;
    sib_drafter *drafter;
    sib_checkpoint *draft_files;
    sib_tokenizer *tokenizer; /* NULL: the checkpoint has none  */
    sib_chat *chat;           /* NULL: no chat template         */
    sib_generation_config defaults;
    sib_model_limits limits;
    int chunk;
    bool whole_pixels; /* --vision-quirk mlx-trunc */
    int everywhere;    /* --vision-mask hf 1, sliding 0, the family's own -1 */
    char numerics[8];
    double load_ms;
    sib_trace_file *trace; /* NULL: off */
};

/* "f32", "bf16", "int8" or NULL (bf16). */
sib_status sib_engine_numerics(const char *name, sib_numerics *out, sib_err *err);
/* Sizes that the options plan for `n_seqs` sessions. */
void sib_engine_limits(const sib_options *o, int n_seqs, sib_model_limits *out);

/* What a request's unset values become: request over generation_config over built-in. The arrays that *p borrows live
 * in the engine and the request. */
sib_status sib_engine_sampler(const sib_engine *e, const sib_request *r, sib_sampler_params *p, sib_logit_bias *bias, sib_err *err);

#endif

/* gen/diffusion.h - one timeline that answers prompts by block diffusion: ids in, settled text out.
 *
 *   prompt()   makes the timeline equal to the given ids, reusing what it already has
 *   round      one call for every timeline that has rows to encode (prompt, settled canvases), then one
 *              denoising step for the others, canvases of several timelines in one call
 *   next()     hands out events: the tokens of a canvas once it has settled and, where asked for, its text after
 *              every step
 *
 * An answer ends at the first end id of a settled canvas, at a stop string, or with its budget. The next canvas
 * starts after the whole settled one has been encoded. What a timeline says does not depend on the others
 * (ops.h, row independence; draws are keyed by position). Facts: diffusion_gemma.md section 3.
 *
 * Used by engine/session.c and by schedulers. */
#ifndef SIB_GEN_DIFFUSION_H
#define SIB_GEN_DIFFUSION_H

#include "gen/generation.h"
#include "ports/denoise.h"
#include "sample/diffusion_sampler.h"

typedef struct sib_diffusion sib_diffusion;
typedef struct sib_diffusion_round sib_diffusion_round;

typedef struct sib_diffusion_request {
    sib_diffusion_params params;
    const sib_replay *replay; /* NULL: drawn; copied                               */
    const int32_t *canvas;    /* first canvas [n_canvas], -1 where any id may stand; NULL: random */
    int n_canvas;             /* exactly the length of the first canvas            */
    const int32_t *eos;
    size_t n_eos;
    const sib_str *stop;
    size_t n_stop;
    uint64_t max_tokens; /* >= 1; cut to what the context holds */
    bool keep_special;
    bool frames;
    int32_t pad; /* an all-padding canvas never counts as settled; -1: none */
} sib_diffusion_request;

/* The model must offer denoise. */
sib_status sib_diffusion_new(sib_diffusion **out, sib_model *model, const sib_tokenizer *t, sib_err *err);
void sib_diffusion_free(sib_diffusion *d);

/* Refused without harm: SIB_EARG (empty prompt, id out of range, canvas of a wrong length), SIB_ECAPACITY. The pictures'
 * features must live until the prompt has been encoded. */
sib_status sib_diffusion_prompt(sib_diffusion *d, const int32_t *ids, size_t n, const sib_gen_picture *pictures, int n_pictures,
                                const sib_diffusion_request *r, sib_err *err);

/* Workspace for rounds of up to n_lanes timelines; chunk: rows that a prompt adds to a round. */
sib_status sib_diffusion_round_new(sib_diffusion_round **out, sib_model *model, int n_lanes, int chunk, sib_err *err);
void sib_diffusion_round_free(sib_diffusion_round *r);
/* Advances every timeline; those that have finished are left alone. After an error call broken() on all of them. */
sib_status sib_diffusion_round_step(sib_diffusion_round *r, sib_diffusion *const *list, int n, sib_err *err);

bool sib_diffusion_running(const sib_diffusion *d);
bool sib_diffusion_in_prompt(const sib_diffusion *d); /* prompt rows are left */
/* Ends the answer now, between two steps: the unsettled canvas is dropped, held-back text is flushed. */
sib_status sib_diffusion_stop(sib_diffusion *d, sib_finish why, sib_err *err);
void sib_diffusion_broken(sib_diffusion *d);
/* False: no event is waiting. Text is valid until the next call on d. */
bool sib_diffusion_next(sib_diffusion *d, sib_token *out);
/* prompt, cached and generated tokens, canvases, steps, tokens_per_step; the rest is left alone. */
void sib_diffusion_stats(const sib_diffusion *d, sib_stats *out);

#endif

/* engine/diffusion_request.h - a request as block diffusion takes it: knobs, recorded draws, a first canvas.
 *
 * Used by session.c and by whoever drives timelines itself. */
#ifndef SIB_ENGINE_DIFFUSION_REQUEST_H
#define SIB_ENGINE_DIFFUSION_REQUEST_H

#include "engine/engine_internal.h"
#include "gen/diffusion.h"

typedef struct sib_diffusion_setup {
    sib_diffusion_request request; /* its eos lives in the engine; stops are the caller's to set */
    sib_replay replay;
    int32_t *draws, *canvas; /* owned */
} sib_diffusion_setup;

/* Everything of *r that concerns block diffusion, unset values from generation_config.json. SIB_EARG or
 * SIB_EUNSUPPORTED name the knob: what shapes one next token (top-k, penalties, bias ...) has no meaning here. Start
 * from {0}; deinit in any case. */
sib_status sib_diffusion_setup_read(sib_diffusion_setup *s, const sib_engine *e, const sib_request *r, sib_err *err);
void sib_diffusion_setup_deinit(sib_diffusion_setup *s);

#endif

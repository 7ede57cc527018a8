/* models/diffusion_gemma/family.h - the registry's handle of the DiffusionGemma family. */
#ifndef SIB_MODELS_DIFFUSION_GEMMA_FAMILY_H
#define SIB_MODELS_DIFFUSION_GEMMA_FAMILY_H

#include "models/family.h"

extern const sib_family sib_family_diffusion_gemma;

#endif

/* models/glm_moe_dsa/family.h - the registry's handle of the GLM-5.2 family. */
#ifndef SIB_MODELS_GLM_MOE_DSA_FAMILY_H
#define SIB_MODELS_GLM_MOE_DSA_FAMILY_H

#include "models/family.h"

extern const sib_family sib_family_glm_moe_dsa;

#endif

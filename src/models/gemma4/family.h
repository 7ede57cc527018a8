/* models/gemma4/family.h - the registry's handle of the Gemma 4 family. */
#ifndef SIB_MODELS_GEMMA4_FAMILY_H
#define SIB_MODELS_GEMMA4_FAMILY_H

#include "models/family.h"

extern const sib_family sib_family_gemma4;

#endif

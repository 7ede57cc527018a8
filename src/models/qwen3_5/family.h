/* models/qwen3_5/family.h - the registry's handle of the Qwen3.5 family. */
#ifndef SIB_MODELS_QWEN3_5_FAMILY_H
#define SIB_MODELS_QWEN3_5_FAMILY_H

#include "models/family.h"

extern const sib_family sib_family_qwen3_5;

#endif

/* engine/registry.h - names to constructors; registry.c is the only file that names families and drafters. */
#ifndef SIB_ENGINE_REGISTRY_H
#define SIB_ENGINE_REGISTRY_H

#include "models/family.h"

/* The family that claims the checkpoint; NULL with a sentence when none does (a drafter says so and what it is for). */
const sib_family *sib_family_for(const sib_checkpoint *c, sib_err *err);

/* i-th family, NULL past the end. */
const sib_family *sib_family_at(size_t i);

#endif

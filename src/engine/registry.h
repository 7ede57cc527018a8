/* engine/registry.h - names to constructors; registry.c is the only file that names families and drafters. */
#ifndef SIB_ENGINE_REGISTRY_H
#define SIB_ENGINE_REGISTRY_H

#include "artifacts/drafter_kind.h"
#include "drafters/drafter.h"
#include "models/family.h"

/* The family that claims the checkpoint; NULL with a sentence when none does (a drafter says so and what it is for). */
const sib_family *sib_family_for(const sib_checkpoint *c, sib_err *err);

typedef struct sib_drafter_entry {
    sib_drafter_kind kind;
    sib_drafter_open_fn open;   /* NULL: not part of this build */
    const char *serves;         /* for the sentence about a drafter that was given as a model */
    sib_drafter_needs_fn needs;
    const char *recognised, *ports, *cached; /* the columns of docs/DRAFTERS.md */
} sib_drafter_entry;

/* i-th drafter kind, NULL past the end. */
const sib_drafter_entry *sib_drafter_at(size_t i);

/* Opens a drafter's folder with the config file that its kind has; a model's folder opens as usual. */
sib_status sib_drafter_files_open(sib_checkpoint **out, const char *place, bool lax, sib_err *err);

/* What the drafter in the folder demands of a target, from its config alone. */
sib_status sib_drafter_needs_of(sib_needs *out, int taps[SIB_MAX_TAPS], const sib_checkpoint *files, sib_err *err);

/* Opens the drafter in `l`'s checkpoint for `target`, whatever its kind; what cannot draft is refused with a sentence. */
sib_status sib_drafter_open(sib_drafter **out, sib_loader *l, sib_model *target, const sib_drafter_options *o, sib_err *err);

/* Opens the draft head of the target's own checkpoint; a target that does not offer one is refused. */
sib_status sib_native_drafter_open(sib_drafter **out, sib_model *target, const sib_drafter_options *o, sib_err *err);

/* SIB_EARG when the folder holds a drafter: it says so and names what it drafts for. */
sib_status sib_refuse_drafter(const char *dir, sib_err *err);

/* i-th family, NULL past the end. */
const sib_family *sib_family_at(size_t i);

#endif

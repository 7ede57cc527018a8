/* models/family.h - what the registry knows of a model family: how to recognise and how to open it. */
#ifndef SIB_MODELS_FAMILY_H
#define SIB_MODELS_FAMILY_H

#include "layers/loader.h"
#include "ports/model.h"

typedef struct sib_family {
    const char *name;
    /* From parsed JSON and tensor names alone; reads no weights. */
    bool (*claims)(const sib_checkpoint *c);
    /* Loads the checkpoint of the loader onto its device. On a planning device only bytes are counted. The
     * model keeps the loader's device; it owns what it loaded. Frees everything on failure. */
    sib_status (*open)(sib_model **out, sib_loader *l, const sib_model_limits *limits, sib_err *err);
} sib_family;

#endif

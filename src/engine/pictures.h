/* engine/pictures.h - the pictures of a prompt: files decoded and encoded, placeholders turned into rows.
 *
 *   ids in    ... <|image|> ...                 one placeholder for each picture, in order
 *   ids out   ... boi image x n eoi ...         n from the size rule; boi and eoi not twice where the template prints them
 *
 * Used by session.c and by whoever drives generations itself. A set stays alive while its prompt is computed; handing the
 * set of the last prompt to the next one saves encoding the pictures that both have. */
#ifndef SIB_ENGINE_PICTURES_H
#define SIB_ENGINE_PICTURES_H

#include "engine/engine_internal.h"

typedef struct sib_picture_features sib_picture_features;

typedef struct sib_picture_set {
    int32_t *ids; /* the prompt with all rows */
    size_t n_ids;
    sib_gen_picture *pictures; /* [n] their spans point into features */
    sib_picture_features **features; /* [n] counted references */
    int n;
} sib_picture_set;

/* budget: soft tokens a picture, 0: the checkpoint's. `last` may be NULL. *out is empty on failure, and `last` is never
 * changed. SIB_EARG: placeholders and pictures are not the same number; SIB_EUNSUPPORTED: the checkpoint reads no pictures,
 * or not this one; SIB_ECAPACITY: beyond the context; and what sib_image_decode fails with. */
sib_status sib_picture_set_new(sib_picture_set *out, sib_engine *e, const int32_t *ids, size_t n_ids, const sib_picture *pictures,
                               int n_pictures, int budget, const sib_picture_set *last, sib_err *err);
void sib_picture_set_deinit(sib_picture_set *s, sib_engine *e); /* leaves it empty */

#endif

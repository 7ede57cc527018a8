/* ports/images.h - pictures as soft tokens: what a model with a vision part offers.
 *
 *   picture --count()--> n soft tokens      the prompt gets  boi, n x image, eoi
 *           --encode()-> features [n][hidden]   they replace the embeddings of the n rows
 *
 * The caller decodes files and places the tokens (engine/pictures.c); how large a picture is
 * seen, how it is cut and what reads the pieces is the model's business. */
#ifndef SIB_PORTS_IMAGES_H
#define SIB_PORTS_IMAGES_H

#include "ports/model.h"

#include <stdint.h>

/* A decoded picture: rows top down, 3 bytes a pixel, no padding. Borrowed. */
typedef struct sib_rgb {
    int width, height;
    const uint8_t *bytes;
} sib_rgb;

typedef struct sib_image_port {
    int32_t image_id, boi_id, eoi_id; /* the placeholder, and what stands before and after its rows */
    bool bidirectional;               /* a picture's rows see each other: they go into one call     */
    bool everywhere;                  /* with bidirectional: on every layer and beyond the window, not on sliding layers only */
    int default_budget, max_budget;   /* soft tokens a picture may take                             */
    /* Soft tokens of a picture of this size, 1 .. budget. SIB_EUNSUPPORTED, naming the size, when the model has no
     * place for it; SIB_EARG for a budget outside 1 .. max_budget. */
    sib_status (*count)(sib_model *m, int width, int height, int budget, int *n, sib_err *err);
    /* features: device [n][facts.hidden] with the n of count(). whole_pixels: "mlx-trunc" (diffusion_gemma.md 4.4).
     * Work memory is taken at the first picture: SIB_ENOMEM, and the model is as before. */
    sib_status (*encode)(sib_model *m, const sib_rgb *picture, int budget, bool whole_pixels, float *features, sib_err *err);
} sib_image_port;

#endif

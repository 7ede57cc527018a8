/* vision/vision.h - a picture becomes soft tokens: what every kind of vision part shares.
 *
 *   picture -> size rule -> resize -> patches -> [the network: tower.c, unified.c] -> features [n][hidden]
 *
 * Used by the model families, which wrap it into their image port (ports/images.h). Facts: gemma4.md section 4,
 * diffusion_gemma.md section 4. A picture is run alone and without padding; padding to a full budget, as the
 * references do, changes nothing (diffusion_gemma.md 4.3).
 *
 * Work memory is planned for the largest picture of a budget by running the network on a device that does
 * nothing, and taken when the first picture comes, so a model that reads only text does not pay for it. */
#ifndef SIB_VISION_VISION_H
#define SIB_VISION_VISION_H

#include "image/size_rule.h"
#include "layers/loader.h"
#include "layers/step.h"
#include "ports/images.h"

#define SIB_VISION_MAX_BUDGET 1120 /* the largest that the references allow (gemma4.md 4.2) */

/* The rows of one picture in raster order. Host arrays; all NULL while planning. */
typedef struct sib_vision_rows {
    int n, nx, ny;       /* rows = nx * ny                                                   */
    float *values;       /* [n][patch * patch * 3], 0 .. 1; the network may overwrite them   */
    int32_t *x, *y;      /* [n] column and row in the grid                                   */
    int32_t *lo, *hi;    /* [n] 0 and n: every row sees every row                            */
    int32_t *ids;        /* [n] scratch                                                      */
    void **pages;        /* [(n + SIB_KV_PAGE - 1) / SIB_KV_PAGE] scratch                    */
    bool whole_pixels;   /* ports/images.h */
} sib_vision_rows;

typedef struct sib_vision sib_vision;

/* First member of every kind. */
struct sib_vision {
    void (*free)(sib_vision *v); /* what the kind itself allocated, and v; weights belong to the model */
    /* Rows to features [soft tokens][hidden], on any device. */
    void (*forward)(const sib_vision *v, const sib_step *st, const sib_vision_rows *r, float *features);
    sib_device *dev;
    int patch, pool;  /* pixels along a patch, patches along a soft token   */
    int cut;          /* pixels along a row's square: patch or patch * pool */
    int n_positions;  /* that the position table has for each axis          */
    bool one_tile;    /* size_rule.h */
    int default_budget, max_budget;
    void *work;       /* device; NULL before the first picture */
    size_t work_bytes;
};

/* default_budget as the checkpoint's files say it (preprocessor_config.json, processor_config.json, config.json), else
 * 280; and max_budget. */
sib_status sib_vision_read_budget(sib_vision *v, const sib_checkpoint *files, sib_err *err);

void sib_vision_free(sib_vision *v); /* before the model's weights; NULL is fine */

/* Bytes of work memory for the largest picture of a budget. */
size_t sib_vision_plan(const sib_vision *v, int budget);

/* What the members of the image port do. */
sib_status sib_vision_count(const sib_vision *v, int width, int height, int budget, int *n, sib_err *err);
sib_status sib_vision_encode(sib_vision *v, const sib_trace *trace, const sib_rgb *picture, int budget, bool whole_pixels,
                             float *features, sib_err *err);

#endif

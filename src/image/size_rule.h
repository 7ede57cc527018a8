/* image/size_rule.h - how large Gemma 4 sees a picture, and how many soft tokens that is.
 *
 * The picture is scaled, up or down, to about as many pixels as the budget holds, with both
 * sides multiples of m = patch x pool (48), so that every soft token is one full m x m tile.
 * With h x w the picture, M = max_patches, p = patch, S = M / pool^2 the soft tokens, all
 * divisions of h and w in double (Gemma 4 image processor, `get_aspect_ratio_preserving_size`):
 *
 *   f  = sqrt(M p p / (h w))
 *   th = floor(f h / m) m,  tw = floor(f w / m) m
 *   th 0 alone:  th = m, tw = min(floor(w / h) m, S m); the same the other way round
 *   both 0:      impossible, or one tile when `one_tile` asks for it (DiffusionGemma's MLX code)
 *   th tw > M p p: impossible
 *
 * With M = S pool^2 and S >= 2 the rule always has an answer; "impossible" needs a budget of
 * about one tile or less. */
#ifndef SIB_IMAGE_SIZE_RULE_H
#define SIB_IMAGE_SIZE_RULE_H

#include "base/status.h"

typedef struct sib_size_rule {
    int patch;       /* pixels along a patch: 16                                       */
    int pool;        /* patches along a soft token: 3                                  */
    int max_patches; /* max_soft_tokens x pool x pool; budgets 70, 140, 280, 560, 1120 */
    bool one_tile;   /* a picture too small for one tile becomes m x m, never an error */
} sib_size_rule;

typedef struct sib_image_size {
    int width, height; /* multiples of patch x pool                  */
    int soft_tokens;   /* (width / m) (height / m), at least 1        */
} sib_image_size;

/* The rule for a budget in soft tokens: patch 1 to 1024, pool 1 to 64, max_soft_tokens 1 to
 * 2^20, and all pixels of the budget below 2^31. EARG names the value that is outside. */
sib_status sib_size_rule_init(sib_size_rule *rule, int patch, int pool, int max_soft_tokens, sib_err *err);

/* Size for a picture of width x height, each >= 1. EUNSUPPORTED, naming the size, when the
 * rule has no answer; EARG for a size or a rule that is not positive. */
sib_status sib_size_rule_apply(const sib_size_rule *rule, int width, int height, sib_image_size *out, sib_err *err);

#endif

/* image/size_rule.c - see size_rule.h. */
#include "image/size_rule.h"

#include <math.h>

enum { MAX_VALUE = 1 << 20 };

static int64_t pixels(const sib_size_rule *r)
{
    return (int64_t)r->max_patches * r->patch * r->patch;
}

/* With these ranges every product below fits an int64, and a result that passes the last
 * test of the rule fits an int. */
static sib_status check(const sib_size_rule *r, sib_err *err)
{
    if (r->patch < 1 || r->patch > 1024) return sib_fail(err, SIB_EARG, "patch_size %d is not within 1 to 1024", r->patch);
    if (r->pool < 1 || r->pool > 64) return sib_fail(err, SIB_EARG, "pooling_kernel_size %d is not within 1 to 64", r->pool);
    if (r->max_patches < 1 || pixels(r) > INT32_MAX)
        return sib_fail(err, SIB_EARG, "a budget of %d patches of %d x %d pixels is not within 1 pixel to 2^31", r->max_patches,
                        r->patch, r->patch);
    return SIB_OK;
}

sib_status sib_size_rule_init(sib_size_rule *rule, int patch, int pool, int max_soft_tokens, sib_err *err)
{
    if (max_soft_tokens < 1 || max_soft_tokens > MAX_VALUE)
        return sib_fail(err, SIB_EARG, "max_soft_tokens %d is not within 1 to %d", max_soft_tokens, MAX_VALUE);
    *rule = (sib_size_rule){.patch = patch, .pool = pool, .max_patches = 1};
    SIB_TRY(check(rule, err));
    int64_t patches = (int64_t)max_soft_tokens * pool * pool;
    rule->max_patches = patches > INT32_MAX ? INT32_MAX : (int)patches;
    return check(rule, err);
}

/* The short side gets one tile and the long side the whole ratio, as far as the budget goes. */
static int64_t long_side(int64_t ratio, int64_t m, int64_t soft_tokens)
{
    return (ratio < soft_tokens ? ratio : soft_tokens) * m;
}

sib_status sib_size_rule_apply(const sib_size_rule *rule, int width, int height, sib_image_size *out, sib_err *err)
{
    SIB_TRY(check(rule, err));
    if (width < 1 || height < 1) return sib_fail(err, SIB_EARG, "a picture cannot be %d x %d pixels large", width, height);
    const int64_t m = (int64_t)rule->patch * rule->pool, soft_tokens = rule->max_patches / (rule->pool * rule->pool);
    double f = sqrt((double)pixels(rule) / (double)((int64_t)width * height));
    int64_t th = (int64_t)floor(f * height / (double)m) * m;
    int64_t tw = (int64_t)floor(f * width / (double)m) * m;
    bool one_tile = rule->one_tile && th == 0 && tw == 0;
    if (one_tile) {
        th = tw = m;
    } else if (th == 0 && tw > 0) {
        th = m;
        tw = long_side(width / height, m, soft_tokens);
    } else if (tw == 0 && th > 0) {
        tw = m;
        th = long_side(height / width, m, soft_tokens);
    }
    if (th == 0 || tw == 0 || (th * tw > pixels(rule) && !one_tile))
        return sib_fail(err, SIB_EUNSUPPORTED, "a picture of %d x %d pixels does not fit a budget of %d patches of %d x %d pixels",
                        width, height, rule->max_patches, rule->patch, rule->patch);
    *out = (sib_image_size){.width = (int)tw, .height = (int)th, .soft_tokens = (int)((tw / m) * (th / m))};
    return SIB_OK;
}

/* kernels/sparse_body.h - index_scores, compiled once for each instruction set level with plain C that the compiler
 * turns into vectors over the 32 keys of half a page. The order of every sum is the one in sparse.c. */
#include "kernels/sparse.h"

typedef union word {
    uint32_t u;
    float f;
} word;

/* score += w * relu(dot * scale) of 32 keys */
static inline void add_head(float *restrict scores, const float *restrict dot, float w, float scale)
{
    for (int j = 0; j < 32; j++) {
        float s = dot[j] * scale;
        scores[j] += w * (s < 0.0f ? 0.0f : s);
    }
}

static void index_scores_f32(float *scores, const float *q, const float *weight, const void *page, int n_heads, int dim, float scale)
{
    for (int half = 0; half < 2; half++) {
        const float *keys = (const float *)page + (int64_t)half * dim * 32;
        float out[32] = {0};
        for (int h = 0; h < n_heads; h++) {
            float dot[32] = {0};
            for (int d = 0; d < dim; d++)
                for (int j = 0; j < 32; j++) dot[j] += q[h * dim + d] * keys[d * 32 + j];
            add_head(out, dot, weight[h], scale);
        }
        for (int j = 0; j < 32; j++) scores[half * 32 + j] = out[j];
    }
}

static void index_scores_bf16(float *scores, const float *q, const float *weight, const void *page, int n_heads, int dim, float scale)
{
    for (int half = 0; half < 2; half++) {
        const uint32_t *keys = (const uint32_t *)page + (int64_t)half * (dim / 2) * 32; /* two dims a word */
        float out[32] = {0};
        for (int h = 0; h < n_heads; h++) {
            float dot[32] = {0};
            for (int d = 0; d < dim; d += 2) {
                float a = q[h * dim + d], b = q[h * dim + d + 1];
                for (int j = 0; j < 32; j++) {
                    word lo = {keys[d / 2 * 32 + j] << 16}, hi = {keys[d / 2 * 32 + j] & 0xffff0000u};
                    dot[j] += a * lo.f;
                    dot[j] += b * hi.f;
                }
            }
            add_head(out, dot, weight[h], scale);
        }
        for (int j = 0; j < 32; j++) scores[half * 32 + j] = out[j];
    }
}

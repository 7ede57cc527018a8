/* kernels/x86/attention_avx2.c - the attention kernels at level avx2; the code is in attention_body.h. */
#include "kernels/x86/attention_body.h"

static void chunk_bf16(const sib_attn_tile *t, int32_t first, const void *const heads[SIB_ATTN_CHUNK_PAGES],
                       float *scores, float *part)
{
    chunk_simd(KIND_BF16, t, first, heads, scores, part);
}

static void chunk_f32(const sib_attn_tile *t, int32_t first, const void *const heads[SIB_ATTN_CHUNK_PAGES],
                      float *scores, float *part)
{
    chunk_simd(KIND_F32, t, first, heads, scores, part);
}

void sib_attention_avx2(sib_attention_kernels *k)
{
    k->chunk[0] = chunk_bf16;
    k->chunk[1] = chunk_f32;
    k->merge = merge_simd;
    k->finish = finish_simd;
}

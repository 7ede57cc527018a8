/* kernels/x86/attention_avx512vnni.c - q . k of bf16 pages by vdpbf16ps; the code is in attention_body.h.
 *
 * A packed query is bf16 [k_dim]: neighbouring dims are the pair that the instruction multiplies
 * with a pair of K. It rounds each of its two additions and takes subnormal bf16 as 0.
 *
 * Zen 4 issues one a cycle, as it does FMA, so scores cost half. Intel's cores (Sapphire Rapids) issue one
 * in two cycles but two FMA a cycle: there the avx512 kernel is 20 to 30 % faster from 8 queries
 * on, and stays. The choice follows the processor's maker, never a measurement: a machine
 * always gives the same bits. */
#include "kernels/x86/attention_body.h"

static void pack_query_pairs(void *packed, const float *q, int k_dim)
{
    uint16_t *p = packed;
    for (int d = 0; d < k_dim; d++) p[d] = sib_bf16_of_f32(q[d]);
}

static void chunk_bf16(const sib_attn_tile *t, int32_t first, const void *const heads[SIB_ATTN_CHUNK_PAGES],
                       float *scores, float *part)
{
    chunk_simd(KIND_BF16_DOT, t, first, heads, scores, part);
}

void sib_attention_bf16_dot(sib_attention_kernels *k)
{
    k->pack_query[0] = pack_query_pairs;
    k->chunk[0] = chunk_bf16;
}

void sib_attention_avx512vnni(sib_attention_kernels *k)
{
    if (!__builtin_cpu_is("intel")) sib_attention_bf16_dot(k);
}

/* kernels/matmul.c - the scalar matmul: the specification of matmul.h in code. */
#include "kernels/matmul_internal.h"

#include <math.h>
#include <string.h>

/* ---- activations ------------------------------------------------------------------------ */

static const size_t chunk_bytes[SIB_N_PREPS] = {
    [SIB_PREP_F32] = sizeof(sib_chunk_f32), [SIB_PREP_BF16] = sizeof(sib_chunk_bf16), [SIB_PREP_INT8] = sizeof(sib_chunk_int8)};

_Static_assert(sizeof(sib_chunk_f32) == 272 && sizeof(sib_chunk_bf16) == 144 && sizeof(sib_chunk_int8) == 80,
               "chunk records have no holes");

/* An odd number of cache lines, so that equal chunks of several rows fall into different sets. */
size_t sib_prep_bytes(sib_prep prep, int64_t in)
{
    size_t bytes = (size_t)((in + SIB_CHUNK - 1) / SIB_CHUNK) * chunk_bytes[prep];
    return ((bytes + 63) / 64 | 1) * 64;
}

/* Copies chunk c of x, zeros behind the end. */
static void load_chunk(float v[SIB_CHUNK], const float *x, int64_t in, int64_t c)
{
    int64_t left = in - c * SIB_CHUNK;
    size_t n = left < SIB_CHUNK ? (size_t)left : SIB_CHUNK;
    memcpy(v, x + c * SIB_CHUNK, n * sizeof *v);
    memset(v + n, 0, (SIB_CHUNK - n) * sizeof *v);
}

static void chunk_sums(float sum[4], const float v[SIB_CHUNK])
{
    sum[0] = sum[1] = 0;
    for (int k = 0; k < 32; k++) {
        sum[0] += v[k];
        sum[1] += v[k + 32];
    }
    sum[2] = sum[0] + sum[1];
}

static void prepare_f32(void *record, const float *x, int64_t in, bool round_bf16)
{
    sib_chunk_f32 *r = record;
    for (int64_t c = 0; c * SIB_CHUNK < in; c++, r++) {
        load_chunk(r->x, x, in, c);
        if (round_bf16)
            for (int k = 0; k < SIB_CHUNK; k++) r->x[k] = sib_round_bf16(r->x[k]);
        chunk_sums(r->sum, r->x);
        r->sum[3] = 0;
    }
}

static void prepare_bf16(void *record, const float *x, int64_t in, bool round_bf16)
{
    sib_chunk_bf16 *r = record;
    (void)round_bf16;
    for (int64_t c = 0; c * SIB_CHUNK < in; c++, r++) {
        float v[SIB_CHUNK];
        load_chunk(v, x, in, c);
        for (int k = 0; k < SIB_CHUNK; k++) {
            uint16_t h = sib_bf16_of_f32(v[k]);
            r->x[k / 8][k % 4][k % 8 / 4] = h;
            v[k] = sib_f32_of_bf16(h);
        }
        chunk_sums(r->sum, v);
        r->sum[3] = 0;
    }
}

static void prepare_int8(void *record, const float *x, int64_t in, bool round_bf16)
{
    sib_chunk_int8 *r = record;
    (void)round_bf16;
    for (int64_t c = 0; c * SIB_CHUNK < in; c++, r++) {
        float v[SIB_CHUNK];
        load_chunk(v, x, in, c);
        uint32_t top = 0; /* of the absolute values' bits: orders as the values do, NaN above infinity */
        for (int k = 0; k < SIB_CHUNK; k++) {
            uint32_t u;
            memcpy(&u, &v[k], sizeof u);
            u &= 0x7FFFFFFFu;
            if (u > top) top = u;
        }
        float max;
        memcpy(&max, &top, sizeof max);
        float d = top < 0x7F800000u ? max / 127.0f : NAN;
        int sum[2] = {0, 0};
        for (int k = 0; k < SIB_CHUNK; k++) {
            float q = d > 0 ? rintf(v[k] / d) : 0;
            int i = q > 127 ? 127 : q < -127 ? -127 : (int)q; /* a subnormal d may be too small by half */
            r->x[k / 8][k % 2][k % 8 / 2] = (int8_t)i;
            sum[k / 32] += i;
        }
        r->sum[0] = (float)sum[0];
        r->sum[1] = (float)sum[1];
        r->sum[2] = (float)(sum[0] + sum[1]);
        r->sum[3] = d;
    }
}

/* ---- products --------------------------------------------------------------------------- */

static void load_scales(float s[SIB_BLOCK], float b[SIB_BLOCK], const unsigned char *tile, const sib_packed *w, int unit)
{
    if (w->f32_scales) {
        memcpy(s, tile + 128 * unit, 64);
        memcpy(b, tile + 128 * unit + 64, 64);
        return;
    }
    uint16_t h[2][SIB_BLOCK];
    memcpy(h, tile + 64 * unit, sizeof h);
    for (int r = 0; r < SIB_BLOCK; r++) {
        s[r] = sib_f32_of_bf16(h[0][r]);
        b[r] = sib_f32_of_bf16(h[1][r]);
    }
}

/* The codes or values of the 16 rows at k of a chunk. */
static void load_k(float v[SIB_BLOCK], const uint32_t *lines, sib_packing packing, int k)
{
    switch (packing) {
    case SIB_PACK_Q4:
        for (int r = 0; r < SIB_BLOCK; r++) v[r] = (float)(int)(lines[16 * (k / 8) + r] >> k % 8 * 4 & 15);
        break;
    case SIB_PACK_Q8:
        for (int r = 0; r < SIB_BLOCK; r++)
            v[r] = (float)(int)(lines[16 * (k / 8 * 2 + k % 2) + r] >> k % 8 / 2 * 8 & 255);
        break;
    case SIB_PACK_BF16:
        for (int r = 0; r < SIB_BLOCK; r++)
            v[r] = sib_f32_of_bf16((uint16_t)(lines[16 * (k / 8 * 4 + k % 4) + r] >> (k % 8 / 4 * 16)));
        break;
    default: memcpy(v, lines + 16 * k, SIB_BLOCK * sizeof *v); break;
    }
}

static void run_f32(float *y, int64_t y_stride, const sib_packed *w, int64_t b0, int64_t b1, const sib_rows *x, void *panel)
{
    (void)panel;
    bool affine = w->packing <= SIB_PACK_Q8;
    int unit = SIB_CHUNK / w->units;
    for (int64_t b = b0; b < b1; b++) {
        for (int t = 0; t < x->n; t++) {
            const sib_chunk_f32 *chunk = x->row[t];
            const unsigned char *tile = sib_block_tiles(w, b);
            float f[SIB_BLOCK] = {0};
            for (int64_t g = 0; g < w->chunks; g++, chunk++, tile += w->tile_bytes) {
                const uint32_t *lines = (const uint32_t *)(const void *)(tile + sib_tile_scales(w));
                for (int u = 0; u < w->units; u++) {
                    float c[SIB_BLOCK] = {0}, v[SIB_BLOCK], s[SIB_BLOCK], bias[SIB_BLOCK];
                    for (int k = u * unit; k < (u + 1) * unit; k++) {
                        load_k(v, lines, w->packing, k);
                        for (int r = 0; r < SIB_BLOCK; r++) c[r] += v[r] * chunk->x[k];
                    }
                    if (affine) {
                        load_scales(s, bias, tile, w, u);
                        float sum = chunk->sum[w->units == 1 ? 2 : u];
                        for (int r = 0; r < SIB_BLOCK; r++) f[r] = f[r] + s[r] * c[r] + bias[r] * sum;
                    } else {
                        for (int r = 0; r < SIB_BLOCK; r++) f[r] += c[r];
                    }
                }
            }
            memcpy(y + t * y_stride + (b - b0) * SIB_BLOCK, f, (size_t)sib_block_outputs(w, b) * sizeof *f);
        }
    }
}

static void run_int8(float *y, int64_t y_stride, const sib_packed *w, int64_t b0, int64_t b1, const sib_rows *x, void *panel)
{
    (void)panel;
    int unit = SIB_CHUNK / w->units;
    for (int64_t b = b0; b < b1; b++) {
        for (int t = 0; t < x->n; t++) {
            const sib_chunk_int8 *chunk = x->row[t];
            const unsigned char *tile = sib_block_tiles(w, b);
            float f[SIB_BLOCK] = {0};
            for (int64_t g = 0; g < w->chunks; g++, chunk++, tile += w->tile_bytes) {
                const uint32_t *lines = (const uint32_t *)(const void *)(tile + sib_tile_scales(w));
                for (int u = 0; u < w->units; u++) {
                    int c[SIB_BLOCK] = {0};
                    float v[SIB_BLOCK], s[SIB_BLOCK], bias[SIB_BLOCK];
                    for (int k = u * unit; k < (u + 1) * unit; k++) {
                        load_k(v, lines, w->packing, k);
                        for (int r = 0; r < SIB_BLOCK; r++) c[r] += (int)v[r] * chunk->x[k / 8][k % 2][k % 8 / 2];
                    }
                    load_scales(s, bias, tile, w, u);
                    float sum = chunk->sum[w->units == 1 ? 2 : u];
                    for (int r = 0; r < SIB_BLOCK; r++)
                        f[r] = fmaf(chunk->sum[3], fmaf(s[r], (float)c[r], bias[r] * sum), f[r]);
                }
            }
            memcpy(y + t * y_stride + (b - b0) * SIB_BLOCK, f, (size_t)sib_block_outputs(w, b) * sizeof *f);
        }
    }
}

void sib_matmul_ref(sib_matmul_kernels *k)
{
    *k = (sib_matmul_kernels){
        .prepare = {prepare_f32, prepare_bf16, prepare_int8},
        .run[SIB_PREP_F32] = {run_f32, run_f32, run_f32, run_f32},
        .run[SIB_PREP_INT8] = {run_int8, run_int8},
    };
}

/* kernels/matmul_pack.c - from the file's layout to 16-row tiles and back to single rows.
 *
 * The layout is described in matmul.h, the source in tensor/matrix.h (formats.md B.1). Packing reads
 * the source once, block by block in ascending order, so that a caller can release the
 * mapped pages behind it. */
#include "kernels/matmul.h"

#include <math.h>
#include <string.h>

static const int packing_lines[SIB_N_PACKINGS] = {[SIB_PACK_Q4] = 8, [SIB_PACK_Q8] = 16, [SIB_PACK_BF16] = 32, [SIB_PACK_F32] = 64};

static size_t line_bytes(bool f32)
{
    return SIB_BLOCK * (f32 ? sizeof(float) : sizeof(uint16_t));
}

static size_t scale_bytes(const sib_packed *p)
{
    return p->packing <= SIB_PACK_Q8 ? (size_t)p->units * 2 * line_bytes(p->f32_scales) : 0;
}

void sib_packed_plan(sib_packed *p, const sib_matrix_src *src)
{
    *p = (sib_packed){.out = src->out, .in = src->in, .units = 1};
    if (src->storage == SIB_PLAIN) {
        p->packing = src->dtype == SIB_BF16 ? SIB_PACK_BF16 : SIB_PACK_F32;
    } else {
        p->packing = src->bits <= 4 ? SIB_PACK_Q4 : SIB_PACK_Q8;
        p->f32_scales = src->dtype != SIB_BF16;
        p->units = src->group == 32 ? 2 : 1;
    }
    p->blocks = (src->out + SIB_BLOCK - 1) / SIB_BLOCK;
    p->chunks = (src->in + SIB_CHUNK - 1) / SIB_CHUNK;
    p->tile_bytes = scale_bytes(p) + (size_t)packing_lines[p->packing] * 64;
}

size_t sib_packed_bytes(const sib_packed *p)
{
    return (size_t)p->blocks * (size_t)p->chunks * p->tile_bytes;
}

/* n codes (n a multiple of 8) of `bits` bits each from the bit string at `p`: 8 codes are `bits` bytes. */
static void read_codes(uint8_t *q, const unsigned char *p, int bits, int n)
{
    uint64_t mask = ((uint64_t)1 << bits) - 1;
    for (int i = 0; i < n; i += 8, p += bits) {
        uint64_t v = 0;
        for (int b = 0; b < bits; b++) v |= (uint64_t)p[b] << 8 * b;
        for (int j = 0; j < 8; j++) q[i + j] = (uint8_t)(v >> j * bits & mask);
    }
}

static void store_codes(uint32_t *lines, const uint8_t q[SIB_CHUNK], sib_packing packing, int r)
{
    for (int j = 0; j < 8; j++, q += 8) {
        if (packing == SIB_PACK_Q4) {
            uint32_t w = 0;
            for (int i = 0; i < 8; i++) w |= (uint32_t)q[i] << 4 * i;
            lines[16 * j + r] = w;
        } else {
            for (int odd = 0; odd < 2; odd++)
                lines[16 * (2 * j + odd) + r] =
                    q[odd] | (uint32_t)q[odd + 2] << 8 | (uint32_t)q[odd + 4] << 16 | (uint32_t)q[odd + 6] << 24;
        }
    }
}

/* Scales or biases of one row at unit u into lane r of the line at `dst`. */
static void store_scale(unsigned char *dst, const void *src, sib_dtype t, int64_t index, bool f32, int r)
{
    if (f32) {
        float v;
        (void)sib_to_f32(&v, (const char *)src + index * (sib_dtype_bits(t) / 8), t, 1);
        memcpy(dst + 4 * r, &v, sizeof v);
    } else {
        memcpy(dst + 2 * r, (const char *)src + 2 * index, 2);
    }
}

static void pack_affine_row(const sib_packed *p, unsigned char *tile, const sib_matrix_src *src, int64_t row, int64_t chunk, int r)
{
    int64_t k0 = chunk * SIB_CHUNK;
    int n = src->in - k0 < SIB_CHUNK ? (int)(src->in - k0) : SIB_CHUNK;
    const unsigned char *bits = (const unsigned char *)src->data + row * (src->in / 8 * src->bits) + k0 / 8 * src->bits;
    uint32_t *lines = (uint32_t *)(void *)(tile + scale_bytes(p));
    if (src->bits == 4) {
        for (int j = 0; j < n / 8; j++) memcpy(&lines[16 * j + r], bits + 4 * j, 4);
    } else {
        uint8_t q[SIB_CHUNK] = {0};
        read_codes(q, bits, src->bits, n);
        store_codes(lines, q, p->packing, r);
    }
    size_t line = line_bytes(p->f32_scales);
    int unit = SIB_CHUNK / p->units;
    for (int u = 0; u * unit < n; u++) {
        int64_t index = row * (src->in / src->group) + (k0 + u * unit) / src->group;
        unsigned char *dst = tile + (size_t)u * 2 * line;
        store_scale(dst, src->scales, src->dtype, index, p->f32_scales, r);
        store_scale(dst + line, src->biases, src->dtype, index, p->f32_scales, r);
    }
}

static void pack_plain_row(const sib_packed *p, unsigned char *tile, const sib_matrix_src *src, int64_t row, int64_t chunk, int r)
{
    int64_t k0 = chunk * SIB_CHUNK;
    int n = src->in - k0 < SIB_CHUNK ? (int)(src->in - k0) : SIB_CHUNK;
    size_t each = (size_t)sib_dtype_bits(src->dtype) / 8;
    const unsigned char *from = (const unsigned char *)src->data + (size_t)(row * src->in + k0) * each;
    if (p->packing == SIB_PACK_BF16) {
        uint16_t h[SIB_CHUNK] = {0};
        memcpy(h, from, (size_t)n * sizeof *h);
        uint32_t *lines = (uint32_t *)(void *)tile;
        for (int j = 0; j < 8; j++)
            for (int i = 0; i < 4; i++)
                lines[16 * (4 * j + i) + r] = h[8 * j + i] | (uint32_t)h[8 * j + i + 4] << 16;
    } else {
        float f[SIB_CHUNK] = {0};
        (void)sib_to_f32(f, from, src->dtype, (size_t)n);
        float *lines = (float *)(void *)tile;
        for (int k = 0; k < SIB_CHUNK; k++) lines[16 * k + r] = f[k];
    }
}

void sib_pack_blocks(const sib_packed *p, unsigned char *tiles, const sib_matrix_src *src, int expert, int64_t b0, int64_t b1)
{
    for (int64_t b = b0; b < b1; b++) {
        int64_t first = b * SIB_BLOCK;
        int rows = src->out - first < SIB_BLOCK ? (int)(src->out - first) : SIB_BLOCK;
        for (int64_t c = 0; c < p->chunks; c++) {
            unsigned char *tile = tiles + (size_t)(b * p->chunks + c) * p->tile_bytes;
            if (rows < SIB_BLOCK || (c + 1) * SIB_CHUNK > src->in) memset(tile, 0, p->tile_bytes);
            for (int r = 0; r < rows; r++) {
                int64_t row = expert * (src->parent_out ? src->parent_out : src->out) + first + r;
                if (src->storage == SIB_AFFINE)
                    pack_affine_row(p, tile, src, row, c, r);
                else
                    pack_plain_row(p, tile, src, row, c, r);
            }
        }
    }
}

void sib_packed_row(float *y, const sib_packed *p, int64_t o, int64_t first, int64_t n)
{
    int r = (int)(o % SIB_BLOCK);
    const unsigned char *block = p->tiles + (size_t)(o / SIB_BLOCK * p->chunks) * p->tile_bytes;
    size_t line = line_bytes(p->f32_scales);
    for (int64_t i = first; i < first + n; i++) {
        const unsigned char *tile = block + (size_t)(i / SIB_CHUNK) * p->tile_bytes;
        int k = (int)(i % SIB_CHUNK);
        const uint32_t *lines = (const uint32_t *)(const void *)(tile + scale_bytes(p));
        if (p->packing == SIB_PACK_BF16) {
            y[i - first] = sib_f32_of_bf16((uint16_t)(lines[16 * (k / 8 * 4 + k % 4) + r] >> (k % 8 / 4 * 16)));
        } else if (p->packing == SIB_PACK_F32) {
            memcpy(&y[i - first], &lines[16 * k + r], sizeof(float));
        } else {
            uint32_t q = p->packing == SIB_PACK_Q4 ? lines[16 * (k / 8) + r] >> k % 8 * 4 & 15
                                                   : lines[16 * (k / 8 * 2 + k % 2) + r] >> k % 8 / 2 * 8 & 255;
            const unsigned char *unit = tile + (size_t)(k / (SIB_CHUNK / p->units)) * 2 * line;
            float s, b;
            if (p->f32_scales) {
                memcpy(&s, unit + 4 * r, 4);
                memcpy(&b, unit + line + 4 * r, 4);
            } else {
                uint16_t h[2];
                memcpy(&h[0], unit + 2 * r, 2);
                memcpy(&h[1], unit + line + 2 * r, 2);
                s = sib_f32_of_bf16(h[0]);
                b = sib_f32_of_bf16(h[1]);
            }
            y[i - first] = fmaf(s, (float)q, b);
        }
    }
}

/* kernels/x86/matmul_amx.c - matmul on tile registers (AMX-INT8, AMX-BF16); see matmul.h for the numerics.
 *
 * A tile product takes 16 rows of activations for nearly the price of one, so from 1 to 16 rows a matrix costs the time to read
 * it. INT8 sums are exact, hence the same bits as everywhere. BF16: a unit is one chain of tdpbf16ps (subnormals are
 * zero, each of two additions a pair is rounded); a plain matrix is one chain over all of k.
 * Every call configures its tiles and releases them: no tile state outlives it. */
#include "kernels/x86/matmul_rows512.h"

#define SLICE 32 /* chunks that stay unpacked while several tiles of rows pass */
#define STEP  8  /* chunks between closings */

#define BARRIER() __asm__ volatile("" ::: "memory") /* gcc does not see that tile loads read memory */

#define TMM_C 0 /* the intrinsics paste them into register names */
#define TMM_A 1
#define TMM_B 2

typedef struct tiling {
    int n, m;           /* tiles, rows in each */
    int64_t stride[SIB_ROWS_MAX / 16]; /* bytes between the rows of a tile; -1: they differ */
} tiling;

static int tile_start(const tiling *t, int i, int rows)
{
    int at = i * t->m;
    return at + t->m <= rows ? at : rows - t->m;
}

static tiling tiles_of(const sib_rows *x)
{
    tiling t = {.n = (x->n + 15) / 16};
    t.m = (x->n + t.n - 1) / t.n;
    for (int i = 0; i < t.n; i++) {
        const char *const *row = (const char *const *)x->row + tile_start(&t, i, x->n);
        int64_t d = t.m > 1 ? row[1] - row[0] : 64;
        for (int r = 2; r < t.m && d >= 0; r++)
            if (row[r] - row[r - 1] != d) d = -1;
        t.stride[i] = d;
    }
    return t;
}

/* C: m rows of 16; A: m rows of 4 * b_rows bytes; B: b_rows lines. */
static void configure(int m, int b_rows)
{
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } c = {.palette = 1};
    c.bytes[TMM_C] = 64, c.rows[TMM_C] = (uint8_t)m;
    c.bytes[TMM_A] = (uint16_t)(4 * b_rows), c.rows[TMM_A] = (uint8_t)m;
    c.bytes[TMM_B] = 64, c.rows[TMM_B] = (uint8_t)b_rows;
    BARRIER();
    _tile_loadconfig(&c);
}

static ALWAYS_INLINE void prefetch_tile(const unsigned char *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)p + i, _MM_HINT_T0);
}

/* ---- int8 rows -------------------------------------------------------------------------- */

static ALWAYS_INLINE void product_int8(int units, int u, const char *a, int64_t stride, const unsigned char *b, void *c)
{
    (void)units;
    _tile_zero(TMM_C);
    _tile_loadd(TMM_A, a + 32 * u, stride);
    _tile_loadd(TMM_B, b + 512 * u, 64);
    _tile_dpbsud(TMM_C, TMM_A, TMM_B);
    _tile_stored(TMM_C, c, 64);
}

#define NAME(x)         x##_int8
#define CHUNK           sib_chunk_int8
#define ROW_BYTES       64
#define LINE            line_int8
#define FINISH          finish_int8
#define C_OF(c)         (c)
#define DIRECT(packing) ((packing) == SIB_PACK_Q8)
#define UNIT_ROWS(u)    (16 / (u))
#define UNIT_PRODUCT    product_int8
#include "kernels/x86/matmul_amx.inc"

/* ---- bf16 rows -------------------------------------------------------------------------- */

static ALWAYS_INLINE void product_bf16(int units, int u, const char *a, int64_t stride, const unsigned char *b, void *c)
{
    _tile_zero(TMM_C);
    _tile_loadd(TMM_A, a + 64 * u, stride);
    _tile_loadd(TMM_B, b + 1024 * u, 64);
    _tile_dpbf16ps(TMM_C, TMM_A, TMM_B);
    if (units == 1) {
        _tile_loadd(TMM_A, a + 64, stride);
        _tile_loadd(TMM_B, b + 1024, 64);
        _tile_dpbf16ps(TMM_C, TMM_A, TMM_B);
    }
    _tile_stored(TMM_C, c, 64);
}

#define NAME(x)         x##_bf16
#define CHUNK           sib_chunk_bf16
#define ROW_BYTES       128
#define LINE            line_bf16
#define FINISH          finish_bf16
#define C_OF(c)         _mm512_castsi512_ps(c)
#define DIRECT(packing) false
#define UNIT_ROWS(u)    16
#define UNIT_PRODUCT    product_bf16
#include "kernels/x86/matmul_amx.inc"

void sib_matmul_amx(sib_matmul_kernels *k)
{
    k->run[SIB_PREP_INT8][SIB_PACK_Q4] = run_q4_int8;
    k->run[SIB_PREP_INT8][SIB_PACK_Q8] = run_q8_int8;
    k->run[SIB_PREP_BF16][SIB_PACK_Q4] = run_q4_bf16;
    k->run[SIB_PREP_BF16][SIB_PACK_Q8] = run_q8_bf16;
}

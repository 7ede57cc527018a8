/* kernels/x86/matmul_amx.c - matmul on tile registers (AMX-INT8, AMX-BF16); see matmul.h for the numerics.
 *
 * A tile product takes 16 rows of activations for nearly the price of one, so from 1 to 16 rows a matrix costs the time to read
 * it. INT8 sums are exact, hence the same bits as everywhere. BF16: a unit is one chain of tdpbf16ps (subnormals are
 * zero, each of two additions a pair is rounded); a plain matrix is one chain over all of k.
 * Every call configures its tiles and releases them: no tile state outlives it. */
#include "kernels/x86/matmul_rows512.h"

#define NEAR_BYTES ((int64_t)448 << 10) /* rows that pass over a block again and again */
#define SLICE 8 /* chunks between closings: their B and C tiles stay in the nearest cache */

#define BARRIER() __asm__ volatile("" ::: "memory") /* gcc does not see that tile loads read memory */

#define TMM_C 0 /* the intrinsics paste them into register names */
#define TMM_A 1
#define TMM_B 2
#define TMM_C1 3 /* more C tiles, for plain matrices */
#define TMM_C2 4
#define TMM_C3 5

typedef struct tiling {
    int rows, n, m; /* n tiles of m rows */
} tiling;

static tiling tiles_of(int rows)
{
    int n = (rows + 15) / 16;
    return (tiling){rows, n, (rows + n - 1) / n};
}

static int tile_start(const tiling *t, int i)
{
    return (i + 1) * t->m <= t->rows ? i * t->m : t->rows - t->m;
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
    for (int i = TMM_C1; i <= TMM_C3; i++) c.bytes[i] = 64, c.rows[i] = (uint8_t)m;
    c.bytes[TMM_A] = (uint16_t)(4 * b_rows), c.rows[TMM_A] = (uint8_t)m;
    c.bytes[TMM_B] = 64, c.rows[TMM_B] = (uint8_t)b_rows;
    BARRIER();
    _tile_loadconfig(&c);
}

/* ---- int8 rows -------------------------------------------------------------------------- */

static ALWAYS_INLINE void product_int8(int units, int u, const unsigned char a[1][16][64], const unsigned char *b, void *c)
{
    (void)units;
    _tile_zero(TMM_C);
    _tile_loadd(TMM_A, a[0][0] + 32 * u, 64);
    _tile_loadd(TMM_B, b + 512 * u, 64);
    _tile_dpbsud(TMM_C, TMM_A, TMM_B);
    _tile_stored(TMM_C, c, 64);
}

#define NAME(x)         x##_int8
#define CHUNK           sib_chunk_int8
#define PARTS           1
#define LINE            line_int8
#define FINISH          finish_int8
#define C_OF(c)         (c)
#define DIRECT(packing) ((packing) == SIB_PACK_Q8)
#define UNIT_LINES(u)   (16 / (u))
#define UNIT_PRODUCT    product_int8
#include "kernels/x86/matmul_amx.inc"

/* ---- bf16 rows -------------------------------------------------------------------------- */

static ALWAYS_INLINE void product_bf16(int units, int u, const unsigned char a[2][16][64], const unsigned char *b, void *c)
{
    _tile_zero(TMM_C);
    _tile_loadd(TMM_A, a[u], 64);
    _tile_loadd(TMM_B, b + 1024 * u, 64);
    _tile_dpbf16ps(TMM_C, TMM_A, TMM_B);
    if (units == 1) {
        _tile_loadd(TMM_A, a[1], 64);
        _tile_loadd(TMM_B, b + 1024, 64);
        _tile_dpbf16ps(TMM_C, TMM_A, TMM_B);
    }
    _tile_stored(TMM_C, c, 64);
}

/* One 64-byte step of k for Q tiles of rows, `next` bytes apart, against the B tile at b. */
#define PLAIN_STEP(Q, a, next, b)                                                                                      \
    do {                                                                                                               \
        _tile_loadd(TMM_B, b, 64);                                                                                     \
        _tile_loadd(TMM_A, a, 64);                                                                                     \
        _tile_dpbf16ps(TMM_C, TMM_A, TMM_B);                                                                           \
        if (Q == 1) break;                                                                                             \
        _tile_loadd(TMM_A, (a) + (next), 64);                                                                          \
        _tile_dpbf16ps(TMM_C1, TMM_A, TMM_B);                                                                          \
        _tile_loadd(TMM_A, (a) + 2 * (next), 64);                                                                      \
        _tile_dpbf16ps(TMM_C2, TMM_A, TMM_B);                                                                          \
        _tile_loadd(TMM_A, (a) + 3 * (next), 64);                                                                      \
        _tile_dpbf16ps(TMM_C3, TMM_A, TMM_B);                                                                          \
    } while (0)

/* n chunks of 2048-byte tiles for Q (1 or 4) tiles of rows whose sums are in f; `next` bytes from one's chunks to the next's. */
static ALWAYS_INLINE void products_plain(const int Q, __m512 (*f)[16], const char *a, size_t a_step, size_t next,
                                         const unsigned char *b, int n)
{
    _tile_loadd(TMM_C, f[0], 64);
    if (Q > 1) {
        _tile_loadd(TMM_C1, f[1], 64);
        _tile_loadd(TMM_C2, f[2], 64);
        _tile_loadd(TMM_C3, f[3], 64);
    }
    for (int g = 0; g < n; g++, a += a_step, b += 2048) {
        for (int i = 0; i < 2048; i += 64) _mm_prefetch((const char *)b + SLICE * 2048 + i, _MM_HINT_T0);
        PLAIN_STEP(Q, a, next, b);
        PLAIN_STEP(Q, a + 1024, next, b + 1024);
    }
    _tile_stored(TMM_C, f[0], 64);
    if (Q > 1) {
        _tile_stored(TMM_C1, f[1], 64);
        _tile_stored(TMM_C2, f[2], 64);
        _tile_stored(TMM_C3, f[3], 64);
    }
}

#define NAME(x)         x##_bf16
#define CHUNK           sib_chunk_bf16
#define PARTS           2
#define LINE            line_bf16
#define FINISH          finish_bf16
#define C_OF(c)         _mm512_castsi512_ps(c)
#define DIRECT(packing) false
#define UNIT_LINES(u)   16
#define UNIT_PRODUCT    product_bf16
#define PLAIN_PRODUCTS(q, f, a, span, b, step, n)                                                                      \
    products_plain(q, f, (const char *)(a)->part, sizeof *(a), (size_t)(span) * sizeof *(a), b, n)
#include "kernels/x86/matmul_amx.inc"

void sib_matmul_amx(sib_matmul_kernels *k)
{
    k->run[SIB_PREP_INT8][SIB_PACK_Q4] = run_q4_int8;
    k->run[SIB_PREP_INT8][SIB_PACK_Q8] = run_q8_int8;
    k->run[SIB_PREP_BF16][SIB_PACK_Q4] = run_q4_bf16;
    k->run[SIB_PREP_BF16][SIB_PACK_Q8] = run_q8_bf16;
    k->run[SIB_PREP_BF16][SIB_PACK_BF16] = run_bf16_bf16;
}

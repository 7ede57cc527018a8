/* tests/unit/matrix_test.c - tensor/matrix.h: packing of every width, slices, MLX's quantizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "tensor/matrix.h"

#include <math.h>
#include <stdlib.h>

/* formats.md B.1: bytes in memory order and the values they hold. */
static void unpacks_the_published_bytes(void **state)
{
    (void)state;
    static const struct {
        int bits, n;
        unsigned char bytes[8];
        int values[8];
    } rows[] = {
        {2, 4, {0xE4}, {0, 1, 2, 3}},
        {3, 8, {0x88, 0xC6, 0xFA}, {0, 1, 2, 3, 4, 5, 6, 7}},
        {4, 8, {0x10, 0x32, 0x54, 0x76}, {0, 1, 2, 3, 4, 5, 6, 7}},
        {5, 8, {0x20, 0x88, 0x41, 0x8A, 0x39}, {0, 1, 2, 3, 4, 5, 6, 7}},
        {6, 4, {0x40, 0x20, 0x0C}, {0, 1, 2, 3}},
        {8, 4, {1, 2, 3, 4}, {1, 2, 3, 4}},
    };
    const float one = 1, ten = 10;
    for (size_t i = 0; i < SIB_COUNT(rows); i++) {
        /* The vector at the end of a heap block: a read past a row is found by the sanitizer. */
        size_t n = (size_t)rows[i].bits * 4;
        unsigned char *data = calloc(1, n);
        size_t used = (size_t)(rows[i].bits * rows[i].n / 8);
        memcpy(data + n - used, rows[i].bytes, used);
        sib_matrix_src m = {.storage = SIB_AFFINE,
                            .out = 1,
                            .in = 32,
                            .n_experts = 1,
                            .dtype = SIB_F32,
                            .data = data,
                            .scales = &one,
                            .biases = &ten,
                            .bits = rows[i].bits,
                            .group = 32};
        float out[32];
        sib_matrix_src_rows(out, &m, 0, 0, 1);
        for (int v = 0; v < rows[i].n; v++) assert_true(out[32 - rows[i].n + v] == 10 + (float)rows[i].values[v]);
        assert_true(out[0] == 10);
        assert_int_equal(sib_matrix_src_bytes(&m), n + 8);
        free(data);
    }
}

static float pack_one(int bits, int group, sib_dtype dtype, const float *w, float *scale, float *bias)
{
    unsigned char packed[128] = {0};
    unsigned char s[4] = {0}, b[4] = {0};
    float out[128], worst = 0;
    sib_affine_quantize(packed, s, b, dtype, w, group, bits, group);
    sib_matrix_src m = {.storage = SIB_AFFINE,
                        .out = 1,
                        .in = group,
                        .n_experts = 1,
                        .dtype = dtype,
                        .data = packed,
                        .scales = s,
                        .biases = b,
                        .bits = bits,
                        .group = group};
    sib_matrix_src_rows(out, &m, 0, 0, 1);
    for (int i = 0; i < group; i++) worst = fmaxf(worst, fabsf(out[i] - w[i]));
    (void)sib_to_f32(scale, s, dtype, 1);
    (void)sib_to_f32(bias, b, dtype, 1);
    return worst;
}

/* Worked by hand from formats.md B.2. */
static void quantizer_by_hand(void **state)
{
    (void)state;
    float w[32], scale, bias;
    for (int i = 0; i < 32; i++) w[i] = (float)(i % 16);
    assert_true(pack_one(4, 32, SIB_BF16, w, &scale, &bias) == 0);
    assert_true(scale == -1 && bias == 15); /* the larger edge is the maximum: it becomes code 0 */
    for (int i = 0; i < 32; i++) w[i] = -(float)(i % 16);
    assert_true(pack_one(4, 32, SIB_BF16, w, &scale, &bias) == 0);
    assert_true(scale == 1 && bias == -15);
    for (int i = 0; i < 32; i++) w[i] = 0;
    assert_true(pack_one(2, 32, SIB_F32, w, &scale, &bias) == 0);
    assert_true(scale == -1e-7f && bias == 0); /* the least scale */
    for (int i = 0; i < 32; i++) w[i] = 3;
    assert_true(pack_one(3, 32, SIB_BF16, w, &scale, &bias) == 0);
    for (int i = 0; i < 32; i++)
        w[i] = i % 2 ? 0.75f : -0.75f; /* equal edges: the maximum counts as the larger; 1.5 steps round to 2 */
    assert_true(pack_one(2, 32, SIB_F16, w, &scale, &bias) == 0.375f);
    assert_true(scale == -0.375f && bias == 0.75f);
    for (int i = 0; i < 32; i++) w[i] = (float)(i % 4) - 1;
    assert_true(pack_one(2, 32, SIB_F32, w, &scale, &bias) == 0);
    assert_true(scale == -1 && bias == 2);
}

static void quantizer_error_is_half_a_step(void **state)
{
    (void)state;
    static const int widths[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    uint64_t seed = 1;
    for (size_t b = 0; b < SIB_COUNT(widths); b++)
        for (size_t g = 0; g < SIB_COUNT(groups); g++)
            for (int round = 0; round < 20; round++) {
                float w[128], scale, bias, lo = INFINITY, hi = -INFINITY;
                for (int i = 0; i < groups[g]; i++) {
                    w[i] = (float)(int32_t)(sib_splitmix64(&seed) >> 32) * 0x1p-31f + (float)(round % 5 - 2) * 0.3f;
                    lo = fminf(lo, w[i]);
                    hi = fmaxf(hi, w[i]);
                }
                float worst = pack_one(widths[b], groups[g], SIB_F32, w, &scale, &bias);
                /* Moving the scale to hit the edge may stretch the far end by half a step more. */
                float step = (hi - lo) / (float)((1 << widths[b]) - 1);
                if (!(worst <= step * 1.01f))
                    fail_msg("bits %d group %d: error %g of step %g", widths[b], groups[g], (double)worst,
                             (double)step);
            }
}

static void quantizer_takes_any_floats(void **state)
{
    (void)state;
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-45f, 0};
    float w[32], scale, bias;
    for (size_t i = 0; i < SIB_COUNT(odd); i++)
        for (size_t j = 0; j < SIB_COUNT(odd); j++) {
            for (int k = 0; k < 32; k++) w[k] = odd[k % 2 ? i : j];
            (void)pack_one(5, 32, SIB_BF16, w, &scale, &bias); /* no undefined behaviour */
        }
}

static void slices_of_expert_stacks(void **state)
{
    (void)state;
    enum { E = 3, OUT = 6, IN = 64, GROUP = 32, BITS = 3 };
    static uint16_t plain[E * OUT * IN];
    static unsigned char packed[E * OUT * IN * BITS / 8];
    static uint16_t scales[E * OUT * IN / GROUP], biases[E * OUT * IN / GROUP];
    uint64_t seed = 7;
    for (int r = 0; r < E * OUT; r++) {
        float w[IN];
        for (int i = 0; i < IN; i++) {
            w[i] = (float)(sib_splitmix64(&seed) % 1000) * 0.01f - 5;
            plain[r * IN + i] = sib_bf16_of_f32(w[i]);
        }
        sib_affine_quantize(packed + r * IN * BITS / 8, scales + r * IN / GROUP, biases + r * IN / GROUP, SIB_BF16, w,
                            IN, BITS, GROUP);
    }
    sib_matrix_src all[2] = {
        {.storage = SIB_PLAIN, .out = OUT, .in = IN, .n_experts = E, .dtype = SIB_BF16, .data = plain},
        {.storage = SIB_AFFINE,
         .out = OUT,
         .in = IN,
         .n_experts = E,
         .dtype = SIB_BF16,
         .data = packed,
         .scales = scales,
         .biases = biases,
         .bits = BITS,
         .group = GROUP},
    };
    assert_int_equal(sib_matrix_src_bytes(&all[0]), sizeof plain);
    assert_int_equal(sib_matrix_src_bytes(&all[1]), sizeof packed + sizeof scales + sizeof biases);
    for (int k = 0; k < 2; k++) {
        sib_matrix_src up = sib_matrix_src_slice(&all[k], 2, 4), inner = sib_matrix_src_slice(&up, 1, 2);
        assert_int_equal(sib_matrix_src_bytes(&inner), sib_matrix_src_bytes(&all[k]) / 3);
        for (int e = 0; e < E; e++) {
            float want[2 * IN], got[2 * IN];
            sib_matrix_src_rows(want, &all[k], e, 3, 2);
            sib_matrix_src_rows(got, &up, e, 1, 2);
            assert_memory_equal(want, got, sizeof want);
            sib_matrix_src_rows(got, &inner, e, 0, 2);
            assert_memory_equal(want, got, sizeof want);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unpacks_the_published_bytes),    cmocka_unit_test(quantizer_by_hand),
        cmocka_unit_test(quantizer_error_is_half_a_step), cmocka_unit_test(quantizer_takes_any_floats),
        cmocka_unit_test(slices_of_expert_stacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* vector_math_test.c - the bounds that kernels/vector_math.h states, on every 1009th float. */
#include "kernels/vector_math.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static double ulps(float got, double exact)
{
    if (isnan(exact)) return isnan(got) ? 0 : INFINITY;
    if (isinf(got) || isinf((float)exact)) return got == (float)exact ? 0 : INFINITY;
    int e;
    (void)frexp(exact, &e);
    return fabs((double)got - exact) / ldexp(1.0, (e < -125 ? -125 : e) - 24);
}

static void bounds(void **state)
{
    (void)state;
    double worst_exp = 0, worst_tanh = 0, worst_silu = 0, worst_gelu = 0;
    for (uint64_t b = 0; b < (uint64_t)1 << 32; b += 1009) {
        float x = sib_float_of_bits((uint32_t)b);
        double d = x, u = 0.7978845608028654 * (d + 0.044715 * d * d * d);
        worst_exp = fmax(worst_exp, ulps(sib_exp(x), exp(d)));
        worst_tanh = fmax(worst_tanh, ulps(sib_tanh(x), tanh(d)));
        if (!(fabs(d) > 1e-37) || !(x > -88 && x < INFINITY)) continue;
        worst_silu = fmax(worst_silu, ulps(sib_silu(x), d / (1 + exp(-d))));
        if (x > -10) worst_gelu = fmax(worst_gelu, ulps(sib_gelu_tanh(x), d / (1 + exp(-2 * u))) / (1 + fabs(u)));
    }
    assert_true(worst_exp < 1);
    assert_true(worst_tanh < 1.5);
    assert_true(worst_silu < 2.5);
    assert_true(worst_gelu < 5.1);
}

static void ends(void **state)
{
    (void)state;
    assert_true(sib_exp(0.0f) == 1.0f); /* a single chunk of attention is merged with weight 1 */
    assert_true(sib_exp(-0.0f) == 1.0f);
    assert_true(sib_exp(INFINITY) == INFINITY && sib_exp(88.73f) == INFINITY && isfinite(sib_exp(88.72283f)));
    assert_true(sib_exp(-INFINITY) == 0 && sib_exp(-104.0f) == 0 && sib_exp(-103.5f) > 0);
    assert_true(isnan(sib_exp(NAN)) && isnan(sib_tanh(NAN)) && isnan(sib_silu(NAN)) && isnan(sib_gelu_tanh(NAN)));
    assert_true(sib_tanh(9.02f) == 1 && sib_tanh(INFINITY) == 1 && sib_tanh(-INFINITY) == -1);
    assert_true(sib_tanh(-0.0f) == 0 && signbit(sib_tanh(-0.0f)));
    assert_true(sib_silu(INFINITY) == INFINITY && sib_gelu_tanh(INFINITY) == INFINITY);
    assert_true(sib_silu(-89.0f) == 0 && signbit(sib_silu(-89.0f)) && sib_gelu_tanh(-30.0f) == 0);
    assert_true(sib_silu(1e30f) == 1e30f && sib_gelu_tanh(1e30f) == 1e30f && sib_gelu_tanh(-1e30f) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bounds), cmocka_unit_test(ends)};
    return cmocka_run_group_tests_name("vector_math", tests, NULL, NULL);
}

/* kernels/x86/delta_avx512.c - the gated delta kernels at level avx512; the code is in delta_body.h. */
#include "kernels/x86/delta_body.h"

void sib_delta_avx512(sib_delta_kernels *k)
{
    set_delta_kernels(k);
}

/* kernels/x86/denoise_avx2.c - the kernels of block diffusion at level avx2; the code is in denoise_body.h. */
#include "kernels/x86/denoise_body.h"

void sib_denoise_avx2(sib_denoise_kernels *k)
{
    set_denoise_kernels(k);
}

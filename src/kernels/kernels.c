/* kernels/kernels.c - see kernels.h. A family exports one function a level:
 * sib_FAMILY_ref fills the whole sub-structure, sib_FAMILY_LEVEL overrides parts of it. */
#include "kernels/kernels.h"

#include "base/cpu.h"

void sib_kernels_init(sib_kernels *k, int isa)
{
    k->isa = isa;
    sib_matmul_ref(&k->matmul);
    sib_delta_ref(&k->delta);
    sib_sparse_ref(&k->sparse);
    sib_denoise_ref(&k->denoise);
    sib_attention_ref(&k->attention);
    sib_vector_ref(&k->vector);
#if defined(__x86_64__)
    if (isa >= SIB_ISA_AVX2) {
        sib_matmul_avx2(&k->matmul);
        sib_delta_avx2(&k->delta);
        sib_sparse_avx2(&k->sparse);
        sib_denoise_avx2(&k->denoise);
        sib_attention_avx2(&k->attention);
        sib_vector_avx2(&k->vector);
    }
    if (isa >= SIB_ISA_AVX512) {
        sib_matmul_avx512(&k->matmul);
        sib_delta_avx512(&k->delta);
        sib_sparse_avx512(&k->sparse);
        sib_denoise_avx512(&k->denoise);
        sib_attention_avx512(&k->attention);
        sib_vector_avx512(&k->vector);
    }
    if (isa >= SIB_ISA_AVX512VNNI) {
        sib_matmul_avx512vnni(&k->matmul);
        sib_attention_avx512vnni(&k->attention);
    }
    if (isa >= SIB_ISA_AMX) sib_matmul_amx(&k->matmul);
#endif
}

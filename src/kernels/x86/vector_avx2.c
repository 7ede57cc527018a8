/* kernels/x86/vector_avx2.c - the vector kernels at level avx2; the code is in vector_body.h. */
#include "kernels/x86/vector_body.h"

void sib_vector_avx2(sib_vector_kernels *k)
{
    set_vector_kernels(k);
}

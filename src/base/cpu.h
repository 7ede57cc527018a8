/* base/cpu.h - what this processor and this system let us use.
 *
 * Found once (CPUID, and XGETBV for the state that the system saves). The levels are
 * cumulative; SIB_ISA=ref|avx2|avx512|avx512vnni|amx masks them for a whole run. */
#ifndef SIB_BASE_CPU_H
#define SIB_BASE_CPU_H

#include "base/status.h"

enum {
    SIB_ISA_REF = 0,
    SIB_ISA_AVX2 = 1,       /* AVX2 + FMA + F16C                                 */
    SIB_ISA_AVX512 = 2,     /* F BW DQ VL (and all of AVX2)                      */
    SIB_ISA_AVX512VNNI = 3, /* VNNI + BF16 + VBMI (and all of AVX512)            */
    SIB_ISA_AMX = 4,        /* AMX TILE + INT8 + BF16 (and all of AVX512VNNI); asks the kernel for the tile state */
    SIB_ISA_LEVELS = 5
};

int sib_cpu_detect(void);                /* highest level this machine supports, ignoring SIB_ISA */
int sib_cpu_level(void);                 /* the same, lowered by SIB_ISA if that is set to a known name */
const char *sib_cpu_level_name(int level);
int sib_cpu_level_named(const char *name); /* -1 when unknown */
int sib_cpu_physical_cores(void);        /* cores in this process's affinity mask, threads of one core counted once; >= 1 */
const char *sib_cpu_model(void);         /* "Intel(R) Xeon(R) ...", or "unknown" */

#endif

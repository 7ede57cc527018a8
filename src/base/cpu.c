/* base/cpu.c - see cpu.h. */
#include "base/cpu.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t saved_state(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* Linux hands out the 8 KiB of tile registers on request only, to the whole process. */
static bool tiles_granted(void)
{
    enum { ARCH_REQ_XCOMP_PERM_ = 0x1023, XFEATURE_XTILEDATA_ = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM_, XFEATURE_XTILEDATA_) == 0;
}

int sib_cpu_detect(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return SIB_ISA_REF;
    bool osxsave = c >> 27 & 1, avx = c >> 28 & 1, fma = c >> 12 & 1, f16c = c >> 29 & 1;
    if (!osxsave || !avx || !fma || !f16c) return SIB_ISA_REF;
    uint64_t state = saved_state();
    if ((state & 0x6) != 0x6) return SIB_ISA_REF;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b >> 5 & 1)) return SIB_ISA_REF;
    bool f = b >> 16 & 1, dq = b >> 17 & 1, bw = b >> 30 & 1, vl = b >> 31 & 1;
    bool vnni = c >> 11 & 1, vbmi = c >> 1 & 1;
    bool amx = (d >> 22 & 1) && (d >> 24 & 1) && (d >> 25 & 1) && (state & 0x60000) == 0x60000;
    if (!f || !dq || !bw || !vl || (state & 0xE0) != 0xE0) return SIB_ISA_AVX2;
    unsigned a1, b1, c1, d1;
    bool bf16 = __get_cpuid_count(7, 1, &a1, &b1, &c1, &d1) && (a1 >> 5 & 1);
    if (!vnni || !vbmi || !bf16) return SIB_ISA_AVX512;
    return amx && tiles_granted() ? SIB_ISA_AMX : SIB_ISA_AVX512VNNI;
}

const char *sib_cpu_model(void)
{
    static char name[49];
    unsigned r[12];
    if ((unsigned)__get_cpuid_max(0x80000000u, NULL) < 0x80000004u) return "unknown";
    for (unsigned i = 0; i < 3; i++)
        __get_cpuid(0x80000002u + i, &r[4 * i], &r[4 * i + 1], &r[4 * i + 2], &r[4 * i + 3]);
    memcpy(name, r, 48);
    const char *p = name;
    while (*p == ' ') p++;
    return p;
}
#else
int sib_cpu_detect(void)
{
    return SIB_ISA_REF;
}

const char *sib_cpu_model(void)
{
    return "unknown";
}
#endif

static const char *const level_names[SIB_ISA_LEVELS] = {"ref", "avx2", "avx512", "avx512vnni", "amx"};

const char *sib_cpu_level_name(int level)
{
    return level >= 0 && level < SIB_ISA_LEVELS ? level_names[level] : "?";
}

int sib_cpu_level_named(const char *name)
{
    for (int i = 0; i < SIB_ISA_LEVELS; i++)
        if (strcmp(name, level_names[i]) == 0) return i;
    return -1;
}

int sib_cpu_level(void)
{
    int level = sib_cpu_detect();
    const char *mask = getenv("SIB_ISA");
    int asked = mask ? sib_cpu_level_named(mask) : -1;
    return asked >= 0 && asked < level ? asked : level;
}

/* Siblings of one core share a line in topology/thread_siblings_list; the first of them counts. */
int sib_cpu_physical_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int cores = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &set)) continue;
        char path[96];
        (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
        FILE *f = fopen(path, "re");
        int first = cpu;
        if (f) {
            if (fscanf(f, "%d", &first) != 1) first = cpu;
            fclose(f);
        }
        if (first == cpu || first < 0 || first >= CPU_SETSIZE || !CPU_ISSET(first, &set)) cores++;
    }
    return cores > 0 ? cores : 1;
}

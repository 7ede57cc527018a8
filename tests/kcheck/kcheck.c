/* kcheck.c - the harness and main of build/kcheck; see kcheck.h.
 *
 *   kcheck [--only=FAMILY] [--isa=LEVEL] [--seed=S] [--bench]
 *
 * Exit status 0: no case failed. */
#include "kcheck.h"

#include "base/rng.h"
#include "kernels/probe.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define CANARY 0xA5
#define SHOWN_FAILURES 20

static const kc_family *const families[] = {
    &kc_matmul,
    &kc_attention,
    &kc_vector,
    &kc_delta,
};

/* What a child leaves for its parent, also when it dies. */
struct kc_shared {
    int ordinal; /* of the case that runs, from 1 */
    bool in_case;
    long cases, failed, reports;
    char name[160];
};

struct kc_buffer {
    struct kc_buffer *next;
    unsigned char *map, *data;
    size_t map_bytes;
};

/* ---- cases ------------------------------------------------------------------------------ */

static void end_case(kc *c)
{
    while (c->buffers) {
        struct kc_buffer *b = c->buffers;
        for (unsigned char *p = b->map; p < b->data; p++)
            if (*p != CANARY) {
                kc_fail(c, "wrote %td bytes before a buffer", b->data - p);
                break;
            }
        c->buffers = b->next;
        munmap(b->map, b->map_bytes);
        free(b);
    }
    if (c->shared->in_case) {
        c->shared->cases++;
        c->shared->failed += c->case_failed;
    }
    c->shared->in_case = false;
    c->case_failed = false;
}

bool kc_begin(kc *c, const char *fmt, ...)
{
    end_case(c);
    if (++c->ordinal <= c->skip) return false;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->shared->name, sizeof c->shared->name, fmt, ap);
    va_end(ap);
    c->shared->ordinal = c->ordinal;
    c->shared->in_case = true;
    c->rng = c->seed ^ (uint64_t)c->ordinal * 0x9E3779B97F4A7C15u;
    return true;
}

void kc_fail(kc *c, const char *fmt, ...)
{
    bool first = !c->case_failed;
    c->case_failed = true;
    if (!first || c->shared->failed >= SHOWN_FAILURES) return;
    va_list ap;
    va_start(ap, fmt);
    printf("FAIL %s [%s] ", c->shared->name, sib_cpu_level_name(c->isa));
    vprintf(fmt, ap);
    printf(" (--seed=0x%llx)\n", (unsigned long long)c->seed);
    va_end(ap);
}

/* ---- values ----------------------------------------------------------------------------- */

uint64_t kc_bits(kc *c)
{
    return sib_splitmix64(&c->rng);
}

int kc_below(kc *c, int n)
{
    return (int)(kc_bits(c) % (uint64_t)n);
}

double kc_uniform(kc *c)
{
    return (double)(kc_bits(c) >> 11) * 0x1p-53;
}

const char *kc_regime_name(kc_regime g)
{
    static const char *const names[KC_N_REGIMES] = {"unit", "tiny", "huge", "cancel", "sparse", "real"};
    return names[g];
}

float kc_value(kc *c, kc_regime g)
{
    double u = 2 * kc_uniform(c) - 1;
    switch (g) {
    case KC_TINY: return (float)(u * 0x1p-128);             /* mostly subnormal */
    case KC_HUGE: return (float)(u * 0x1p+40);              /* squares and sums stay finite */
    case KC_CANCEL: return (float)((kc_bits(c) & 1 ? 1 : -1) * (1 + u * 0x1p-12));
    case KC_SPARSE: return kc_below(c, 16) ? 0.0f : (float)u;
    case KC_REAL: return (float)(u * u * u * exp2(6 * kc_uniform(c) - 3)); /* heavy tails, as in a residual stream */
    default: return (float)u;
    }
}

void *kc_alloc(kc *c, size_t bytes, size_t align)
{
    size_t body = (bytes + align + 64 + PAGE - 1) & ~(PAGE - 1);
    struct kc_buffer *b = malloc(sizeof *b);
    unsigned char *p = mmap(NULL, body + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!b || p == MAP_FAILED || mprotect(p + body, PAGE, PROT_NONE) != 0) {
        fprintf(stderr, "kcheck: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    b->map = p;
    b->map_bytes = body + PAGE;
    b->data = p + ((body - bytes) & ~(align - 1));
    memset(p, CANARY, (size_t)(b->data - p));
    b->next = c->buffers;
    c->buffers = b;
    return b->data;
}

float *kc_floats(kc *c, size_t n, kc_regime g)
{
    float *p = kc_alloc(c, n * sizeof *p, sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = kc_value(c, g);
    return p;
}

/* ---- rules ------------------------------------------------------------------------------ */

void kc_exact(kc *c, const char *what, const void *got, const void *want, size_t n, size_t element)
{
    const unsigned char *g = got, *w = want;
    for (size_t i = 0; i < n; i++) {
        if (memcmp(g + i * element, w + i * element, element) == 0) continue;
        if (element == sizeof(float)) {
            float a, b;
            memcpy(&a, g + i * element, sizeof a);
            memcpy(&b, w + i * element, sizeof b);
            kc_fail(c, "%s: index %zu: got %.9g, want %.9g", what, i, (double)a, (double)b);
        } else {
            kc_fail(c, "%s: element %zu of %zu differs", what, i, n);
        }
        return;
    }
}

void kc_order(kc *c, const char *what, size_t index, double got, double exact, double sum_abs, double n, double tiny)
{
    double miss = fabs(got - exact), bound = n * (0x1p-24 * sum_abs + tiny);
    if (!(miss <= bound)) {
        kc_fail(c, "%s: index %zu: got %.9g, exact %.9g, off by %.3g, allowed %.3g", what, index, got, exact, miss, bound);
        return;
    }
    if (miss > 8 * sqrt(n) * 0x1p-24 * sum_abs + n * tiny && c->shared->reports++ < 3)
        printf("report %s [%s] %s: index %zu: got %.9g, exact %.9g\n", c->shared->name, sib_cpu_level_name(c->isa), what,
               index, got, exact);
}

void kc_ulp(kc *c, const char *what, size_t index, float got, double exact, double ulps)
{
    int e;
    (void)frexp(exact, &e);
    double ulp = ldexp(1.0, (e < -125 ? -125 : e) - 24);
    double miss = fabs((double)got - exact) / ulp;
    if (isnan(exact) ? !isnan(got) : isinf(exact) ? (double)got != exact : !(miss <= ulps))
        kc_fail(c, "%s: index %zu: got %.9g, exact %.9g, %.2f ulp, allowed %g", what, index, (double)got, exact, miss, ulps);
}

/* ---- time ------------------------------------------------------------------------------- */

void kc_time(kc *c, const char *what, void (*fn)(void *arg), void *arg, double bytes, double ops)
{
    double best = INFINITY, spent = 0;
    for (int i = 0; i < 3 || spent < 0.03; i++) {
        double t = sib_probe_now();
        fn(arg);
        t = sib_probe_now() - t;
        spent += t;
        if (t < best) best = t;
    }
    printf("%-44s %-10s %12.0f ns", what, sib_cpu_level_name(c->isa), best * 1e9);
    if (bytes > 0) printf("  %7.2f GB/s", bytes / best * 1e-9);
    if (ops > 0) printf("  %7.1f Gop/s", ops / best * 1e-9);
    printf("\n");
}

/* ---- main ------------------------------------------------------------------------------- */

static void child(kc *c, const kc_family *f)
{
    sib_kernels ref, var;
    sib_kernels_init(&ref, SIB_ISA_REF);
    sib_kernels_init(&var, c->isa);
    if (c->bench)
        f->bench(c, &ref, &var);
    else
        f->check(c, &ref, &var);
    end_case(c);
}

/* Runs one family at one level, in as many children as it takes. */
static void run_family(const kc_family *f, int isa, uint64_t seed, bool bench, struct kc_shared *total)
{
    struct kc_shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED) exit(1);
    for (bool again = true; again;) {
        again = false;
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            kc c = {.isa = isa, .bench = bench, .shared = s, .seed = seed, .skip = s->ordinal};
            child(&c, f);
            fflush(stdout);
            _exit(0);
        }
        int status = 0;
        if (pid < 0 || waitpid(pid, &status, 0) != pid) exit(1);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
        s->failed++;
        s->cases += s->in_case;
        printf("FAIL %s [%s] %s %d (--seed=0x%llx)\n", s->in_case ? s->name : f->name, sib_cpu_level_name(isa),
               WIFSIGNALED(status) ? "died of signal" : "exited with",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), (unsigned long long)seed);
        again = s->in_case;
        s->in_case = false;
    }
    if (!bench)
        printf("%-12s %-10s %ld cases, %ld failed, %ld reports\n", f->name, sib_cpu_level_name(isa), s->cases, s->failed,
               s->reports);
    total->cases += s->cases;
    total->failed += s->failed;
    munmap(s, sizeof *s);
}

int main(int argc, char **argv)
{
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* a dying child must not take its lines along */
    const char *only = NULL;
    int first = SIB_ISA_REF, last = sib_cpu_detect();
    uint64_t seed = 0x51B1;
    bool bench = false, known = false;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (strncmp(a, "--only=", 7) == 0) {
            only = a + 7;
        } else if (strncmp(a, "--isa=", 6) == 0 && sib_cpu_level_named(a + 6) >= 0) {
            first = sib_cpu_level_named(a + 6);
            if (first > last) {
                printf("SKIP this machine has no %s\n", a + 6);
                return 0;
            }
            last = first;
        } else if (strncmp(a, "--seed=", 7) == 0) {
            seed = strtoull(a + 7, NULL, 0);
        } else if (strcmp(a, "--bench") == 0) {
            bench = true;
        } else {
            fprintf(stderr, "usage: kcheck [--only=FAMILY] [--isa=ref|avx2|avx512|avx512vnni|amx] [--seed=S] [--bench]\n");
            return 2;
        }
    }
    struct kc_shared total = {0};
    for (size_t f = 0; f < SIB_COUNT(families); f++) {
        if (only && strcmp(only, families[f]->name) != 0) continue;
        known = true;
        if (bench && !families[f]->bench) continue;
        for (int isa = first; isa <= last; isa++) run_family(families[f], isa, seed, bench, &total);
    }
    if (!known) {
        fprintf(stderr, "kcheck: no family \"%s\"\n", only);
        return 2;
    }
    if (!bench) printf("kcheck: %ld cases, %ld failed\n", total.cases, total.failed);
    return total.failed ? 1 : 0;
}

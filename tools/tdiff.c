/* tools/tdiff.c - compares two safetensors files of stages: a golden one and the trace of a run.
 *
 *     $ build/tdiff golden.safetensors run.safetensors
 *     prefill.hidden.0  ok       max_abs 0         max_rel 0         cos 1.000000
 *     prefill.hidden.1  DIFFERS  max_abs 0.0312    max_rel 0.0041    cos 0.999710  at [0, 3, 1187]: -1.25 became
 * -1.28125  <- first only in golden.safetensors: greedy.logits 2 keys compared, 1 differ
 *
 * Keys are taken in the order in which the run wrote them, so the first line that differs is where a
 * bug entered. An element may be off by abs + rel * (largest magnitude of the golden tensor); integers
 * and booleans must be equal. max_rel is max_abs over that largest magnitude. Dimensions of size 1 are
 * not compared. Exit: 0 all within bounds, 1 a key differs or none is common, 2 usage or unreadable file. */
#include "artifacts/safetensors.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_integer(sib_dtype t)
{
    switch (t) {
    case SIB_BOOL:
    case SIB_U8:
    case SIB_I8:
    case SIB_U16:
    case SIB_I16:
    case SIB_U32:
    case SIB_I32:
    case SIB_U64:
    case SIB_I64: return true;
    default: return false;
    }
}

/* Elements first .. first+n-1 as doubles; false for a type without such a reading. */
static bool read_values(double *out, const sib_tensor_info *t, int64_t first, int n)
{
    const char *p = (const char *)t->data + first * sib_dtype_bits(t->dtype) / 8;
    float f[1024];
    for (int i = 0; i < n; i++) {
        int64_t i64;
        uint64_t u64;
        int32_t i32;
        uint32_t u32;
        switch (t->dtype) {
        case SIB_F64: memcpy(&out[i], p + i * 8, 8); break;
        case SIB_I64: memcpy(&i64, p + i * 8, 8), out[i] = (double)i64; break;
        case SIB_U64: memcpy(&u64, p + i * 8, 8), out[i] = (double)u64; break;
        case SIB_I32: memcpy(&i32, p + i * 4, 4), out[i] = i32; break;
        case SIB_U32: memcpy(&u32, p + i * 4, 4), out[i] = u32; break;
        default:
            if (!sib_to_f32(f, p, t->dtype, (size_t)n)) return false;
            for (int k = 0; k < n; k++) out[k] = f[k];
            return true;
        }
    }
    return true;
}

/* Equal but for dimensions of size 1. */
static bool same_shape(const sib_tensor_info *a, const sib_tensor_info *b)
{
    int i = 0, j = 0;
    for (;; i++, j++) {
        while (i < a->rank && a->shape[i] == 1) i++;
        while (j < b->rank && b->shape[j] == 1) j++;
        if (i == a->rank || j == b->rank) return i == a->rank && j == b->rank;
        if (a->shape[i] != b->shape[j]) return false;
    }
}

static double difference(double a, double b)
{
    if (a == b || (isnan(a) && isnan(b))) return 0; /* also equal infinities */
    double d = fabs(a - b);
    return isnan(d) ? INFINITY : d;
}

typedef struct bounds {
    double abs, rel;
} bounds;

typedef struct result {
    double max_abs, max_rel, cosine;
    int64_t first; /* first element out of bounds, -1: none */
    double golden, run;
} result;

#define CHUNK 1024

static bool compare(result *r, const sib_tensor_info *a, const sib_tensor_info *b, bounds allowed)
{
    double x[CHUNK], y[CHUNK], top = 0, xx = 0, yy = 0, xy = 0;
    int64_t n = sib_tensor_elements(a);
    *r = (result){.first = -1};
    for (int pass = 0; pass < 2; pass++) { /* the bound needs the largest magnitude first */
        double bound = is_integer(a->dtype) && is_integer(b->dtype) ? 0 : allowed.abs + allowed.rel * top;
        for (int64_t at = 0; at < n; at += CHUNK) {
            int m = n - at < CHUNK ? (int)(n - at) : CHUNK;
            if (!read_values(x, a, at, m) || !read_values(y, b, at, m)) return false;
            for (int i = 0; i < m; i++) {
                if (pass == 0) {
                    if (isfinite(x[i])) top = fmax(top, fabs(x[i]));
                    continue;
                }
                double d = difference(x[i], y[i]);
                r->max_abs = fmax(r->max_abs, d);
                if (isfinite(x[i]) && isfinite(y[i])) xx += x[i] * x[i], yy += y[i] * y[i], xy += x[i] * y[i];
                if (d <= bound || r->first >= 0) continue;
                r->first = at + i;
                r->golden = x[i];
                r->run = y[i];
            }
        }
    }
    r->max_rel = r->max_abs == 0 ? 0 : r->max_abs / top;
    r->cosine = xx == 0 && yy == 0 ? 1 : xx == 0 || yy == 0 ? 0 : xy / sqrt(xx * yy);
    return true;
}

static void print_place(const sib_tensor_info *t, int64_t element)
{
    int64_t stride = sib_tensor_elements(t);
    (void)printf("  at [");
    for (int d = 0; d < t->rank; d++) {
        stride /= t->shape[d];
        (void)printf(d ? ", %lld" : "%lld", (long long)(element / stride));
        element %= stride;
    }
    (void)printf("]: ");
}

/* Prints the line of one common key; true when it is within bounds. */
static bool report(const sib_tensor_info *a, const sib_tensor_info *b, int width, bounds allowed, bool is_first)
{
    result r;
    char left[256], right[256];
    bool shapes = same_shape(a, b), readable = shapes && compare(&r, a, b, allowed), ok = readable && r.first < 0;
    (void)printf("%-*s  %-7s", width, a->name, ok ? "ok" : "DIFFERS");
    if (!shapes)
        (void)printf("  shapes %s and %s", sib_tensor_describe(a, left), sib_tensor_describe(b, right));
    else if (!readable)
        (void)printf("  types %s and %s cannot be compared", sib_dtype_name(a->dtype), sib_dtype_name(b->dtype));
    else
        (void)printf("  max_abs %-9.3g max_rel %-9.3g cos %.6f", r.max_abs, r.max_rel, r.cosine);
    if (readable && !ok) {
        print_place(a, r.first);
        (void)printf("%.9g became %.9g", r.golden, r.run);
    }
    (void)printf(ok || !is_first ? "\n" : "  <- first\n");
    return ok;
}

static void list_lonely(const sib_safetensors *here, const sib_safetensors *there, const char *path)
{
    size_t n = 0;
    for (size_t i = 0; i < sib_safetensors_count(here); i++) {
        const char *name = sib_safetensors_at(here, i)->name;
        if (sib_safetensors_find(there, name)) continue;
        if (n == 0) (void)printf("only in %s:", path);
        (void)printf(n++ ? ", %s" : " %s", name);
    }
    if (n) (void)printf("\n");
}

SIB_PRINTF(1, 2) static int fail(const char *fmt, ...)
{
    va_list ap;
    (void)fprintf(stderr, "tdiff: ");
    va_start(ap, fmt);
    (void)vfprintf(stderr, fmt, ap);
    va_end(ap);
    (void)fputc('\n', stderr);
    return 2;
}

static int compare_files(const sib_safetensors *golden, const sib_safetensors *run, const char *const path[2],
                         bounds allowed)
{
    size_t common = 0, differing = 0;
    int width = 0;
    for (size_t i = 0; i < sib_safetensors_count(run); i++) {
        const char *name = sib_safetensors_at(run, i)->name;
        int n = (int)strlen(name);
        if (sib_safetensors_find(golden, name) && n > width) width = n;
    }
    for (size_t i = 0; i < sib_safetensors_count(run); i++) {
        const sib_tensor_info *b = sib_safetensors_at(run, i), *a = sib_safetensors_find(golden, b->name);
        if (!a) continue;
        common++;
        differing += !report(a, b, width, allowed, differing == 0);
    }
    list_lonely(golden, run, path[0]);
    list_lonely(run, golden, path[1]);
    (void)printf("%zu keys compared, %zu differ\n", common, differing);
    sib_err err = {0};
    if (sib_mapping_intact(sib_safetensors_mapping(golden), &err) != SIB_OK ||
        sib_mapping_intact(sib_safetensors_mapping(run), &err) != SIB_OK)
        return fail("%s", err.message);
    if (common == 0) (void)fprintf(stderr, "tdiff: no key is in both files\n");
    return common == 0 || differing > 0;
}

static bool bound_of(const char *z, double *out)
{
    char *end;
    *out = strtod(z, &end);
    return end != z && !*end && *out >= 0 && isfinite(*out);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"abs", required_argument, NULL, 'a'},
                                            {"rel", required_argument, NULL, 'r'},
                                            {"lax", no_argument, NULL, 'l'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    bounds allowed = {2e-3, 2e-3};
    bool lax = false;
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'a':
        case 'r':
            if (!bound_of(optarg, c == 'a' ? &allowed.abs : &allowed.rel))
                return fail("--%s %s: must be a number of 0 or more", c == 'a' ? "abs" : "rel", optarg);
            break;
        case 'l': lax = true; break;
        case 'h':
            (void)printf(
                "usage: tdiff [--abs X] [--rel X] [--lax] GOLDEN RUN\n\n"
                "Compares the tensors that two safetensors files have in common, in the order of RUN. An element may "
                "be\n"
                "off by abs + rel * (largest magnitude of the golden tensor), both 2e-3 by default; integers must be "
                "equal.\n"
                "--lax accepts holes, overlap and trailing bytes. Exit: 0 all within bounds, 1 not, 2 error.\n");
            return 0;
        default: return fail("option %s is unknown or lacks its value (tdiff --help)", argv[optind - 1]);
        }
    }
    if (argc - optind != 2) return fail("two files are needed (tdiff --help)");
    const char *const path[2] = {argv[optind], argv[optind + 1]};
    sib_safetensors *f[2] = {NULL, NULL};
    sib_err err = {0};
    int rc = 2;
    if (sib_safetensors_open(&f[0], path[0], lax, &err) != SIB_OK ||
        sib_safetensors_open(&f[1], path[1], lax, &err) != SIB_OK)
        (void)fail("%s", err.message);
    else
        rc = compare_files(f[0], f[1], path, allowed);
    sib_safetensors_free(f[0]);
    sib_safetensors_free(f[1]);
    return rc;
}

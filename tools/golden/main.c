/* tools/golden/main.c - build/golden [--numerics MODE] [--threads N] CASE...: which runner a folder gets, and the tally. */
#include "golden.h"

#include "artifacts/drafter_kind.h"

#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limit of hidden states and logits in f32: 2e-3 x (1 + max |expected|). */
#define TOLERANCE 2e-3

static double tolerance = TOLERANCE;

static const sib_tensor_info *lookup(const golden *g, size_t *index, const char *key)
{
    const sib_tensor_info *t = sib_safetensors_find(g->expected, key);
    for (size_t i = 0; t && i < sib_safetensors_count(g->expected); i++)
        if (sib_safetensors_at(g->expected, i) == t) *index = i;
    return t;
}

const sib_tensor_info *golden_find(golden *g, const char *fmt, ...)
{
    char key[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(key, sizeof key, fmt, ap);
    va_end(ap);
    size_t i = 0;
    const sib_tensor_info *t = lookup(g, &i, key);
    if (t) g->seen[i] = true;
    return t;
}

bool golden_has(const golden *g, const char *fmt, ...)
{
    char key[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(key, sizeof key, fmt, ap);
    va_end(ap);
    return sib_safetensors_find(g->expected, key) != NULL;
}

static void *need(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p) {
        fprintf(stderr, "golden: out of memory\n");
        exit(1);
    }
    return p;
}

float *golden_floats(golden *g, int64_t *n, const char *fmt, ...)
{
    char key[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(key, sizeof key, fmt, ap);
    va_end(ap);
    const sib_tensor_info *t = golden_find(g, "%s", key);
    if (!t) return NULL;
    int64_t count = sib_tensor_elements(t);
    float *out = need((size_t)count * sizeof *out);
    int64_t v;
    if (t->dtype == SIB_I64)
        for (int64_t i = 0; i < count; i++) memcpy(&v, (const char *)t->data + 8 * i, 8), out[i] = (float)v;
    else if (!sib_to_f32(out, t->data, t->dtype, (size_t)count)) golden_fail(g, key, "dtype has no float reading");
    if (n) *n = count;
    return out;
}

int32_t *golden_ints(golden *g, int64_t *n, const char *fmt, ...)
{
    char key[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(key, sizeof key, fmt, ap);
    va_end(ap);
    const sib_tensor_info *t = golden_find(g, "%s", key);
    if (!t) return NULL;
    int64_t count = sib_tensor_elements(t);
    int32_t *out = need((size_t)count * sizeof *out);
    for (int64_t i = 0; i < count; i++) {
        const unsigned char *p = t->data;
        int64_t v64;
        switch (t->dtype) {
        case SIB_I64: memcpy(&v64, p + 8 * i, 8), out[i] = (int32_t)v64; break;
        case SIB_I32: memcpy(&out[i], p + 4 * i, 4); break;
        case SIB_U8:
        case SIB_BOOL: out[i] = p[i]; break;
        default: out[i] = -1;
        }
    }
    if (n) *n = count;
    return out;
}

void golden_line(golden *g, const char *key, double max_abs, double max_rel, const char *verdict)
{
    bool bad = strncmp(verdict, "FAIL", 4) == 0;
    printf("%s %s %.3g %.3g %s\n", g->name, key, max_abs, max_rel, verdict);
    *(bad ? &g->failed : &g->passed) += 1;
}

void golden_fail(golden *g, const char *key, const char *why)
{
    (void)golden_find(g, "%s", key);
    printf("%s %s - - FAIL (%s)\n", g->name, key, why);
    g->failed++;
}

void golden_input(golden *g, const char *key)
{
    if (golden_find(g, "%s", key)) printf("%s %s - - input\n", g->name, key);
}

void golden_compare(golden *g, const char *key, const float *got, int64_t n)
{
    int64_t count;
    float *want = golden_floats(g, &count, "%s", key);
    if (!want) {
        golden_fail(g, key, "not in expected.safetensors");
        return;
    }
    if (count != n) {
        char why[96];
        (void)snprintf(why, sizeof why, "%lld values, expected %lld", (long long)n, (long long)count);
        golden_fail(g, key, why);
        free(want);
        return;
    }
    double largest = 0, worst = 0, worst_rel = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]);
        if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
        double rel = d / (fabs(want[i]) + 1e-3 * (1 + largest));
        if (!(rel <= worst_rel)) worst_rel = rel;
    }
    golden_line(g, key, worst, worst_rel, worst <= tolerance * (1 + largest) ? "ok" : "FAIL");
    free(want);
}

void golden_compare_ids(golden *g, const char *key, const int32_t *got, int64_t n)
{
    int64_t count, differ = 0, first = -1;
    int32_t *want = golden_ints(g, &count, "%s", key);
    if (!want || count != n) {
        golden_fail(g, key, want ? "another number of ids" : "not in expected.safetensors");
        free(want);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        if (got[i] != want[i] && differ++ == 0) first = i;
    if (differ) {
        printf("%s %s first at %lld: %d, expected %d\n", g->name, key, (long long)first, got[first], want[first]);
        golden_line(g, key, (double)differ, (double)differ / (double)n, "FAIL");
    } else {
        golden_line(g, key, 0, 0, "ok");
    }
    free(want);
}

void golden_collect(void *ctx, const char *stage, int index, const float *values, int rows, int n)
{
    golden_stages *s = ctx;
    char key[64];
    (void)snprintf(key, sizeof key, index >= 0 ? "%s.%d" : "%s", stage, index);
    int i = 0;
    while (i < s->count && strcmp(s->list[i].key, key)) i++;
    if (i == (int)SIB_COUNT(s->list)) return;
    golden_stage *st = &s->list[i];
    if (i == s->count) {
        s->count++;
        *st = (golden_stage){0};
        memcpy(st->key, key, sizeof key);
    }
    float *more = realloc(st->values, (size_t)(st->n + (int64_t)rows * n) * sizeof *more);
    if (!more) return;
    memcpy(more + st->n, values, (size_t)rows * (size_t)n * sizeof *more);
    st->values = more;
    st->n += (int64_t)rows * n;
}

const golden_stage *golden_stage_find(const golden_stages *s, const char *fmt, ...)
{
    char key[64];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(key, sizeof key, fmt, ap);
    va_end(ap);
    for (int i = 0; i < s->count; i++)
        if (strcmp(s->list[i].key, key) == 0) return &s->list[i];
    return NULL;
}

void golden_stages_free(golden_stages *s)
{
    for (int i = 0; s && i < s->count; i++) free(s->list[i].values);
    free(s);
}

sib_status golden_open(golden *g, golden_model *m, const char *sub, const sib_model_limits *limits, sib_err *err)
{
    *m = (golden_model){0};
    char *dir = sub ? sib_path_join(g->dir, sub) : sib_strdup(g->dir);
    if (!dir) return sib_nomem(err, "path");
    sib_status s = sib_checkpoint_open(&m->files, dir, NULL, err);
    free(dir);
    if (s != SIB_OK) return s;
    const sib_family *f = sib_family_for(m->files, err);
    if (!f) {
        golden_close(m);
        return SIB_EUNSUPPORTED;
    }
    sib_loader l = {.dev = g->device, .files = m->files};
    s = f->open(&m->model, &l, limits, err);
    if (s != SIB_OK) golden_close(m);
    return s;
}

void golden_close(golden_model *m)
{
    if (m->model) m->model->ops->free(m->model);
    sib_checkpoint_free(m->files);
    *m = (golden_model){0};
}

static sib_status run(golden *g, sib_err *err)
{
    char *path = sib_path_join(g->dir, "expected.safetensors"), *notes = sib_path_join(g->dir, "expected.json");
    sib_status s = path && notes ? SIB_OK : sib_nomem(err, "path");
    if (s == SIB_OK) s = sib_safetensors_open(&g->expected, path, true, err);
    if (s == SIB_OK) s = sib_json_read(&g->notes, notes, 1 << 20, err);
    free(path);
    free(notes);
    SIB_TRY(s);
    g->seen = calloc(sib_safetensors_count(g->expected) + 1, sizeof *g->seen);
    if (!g->seen) return sib_nomem(err, "keys");
    sib_drafter_kind kind = sib_drafter_kind_in(g->dir);
    switch (kind) {
    case SIB_DRAFTER_ASSISTANT: SIB_TRY(golden_assistant(g, err)); break;
    case SIB_DRAFTER_MTP: SIB_TRY(golden_qwen_mtp(g, err)); break;
    case SIB_DRAFTER_DEEPSPEC: SIB_TRY(golden_deepspec(g, err)); break;
    case SIB_DRAFTER_DFLASH: SIB_TRY(golden_dflash(g, err)); break;
    case SIB_DRAFTER_DSPARK: SIB_TRY(golden_dspark(g, err)); break;
    case SIB_DRAFTER_TWO_MODEL: SIB_TRY((golden_is_glm_mtp(g) ? golden_glm_mtp : golden_text)(g, err)); break;
    default: return sib_fail(err, SIB_EUNSUPPORTED, "no runner for a %s drafter", sib_drafter_kind_name(kind));
    }
    for (size_t i = 0; i < sib_safetensors_count(g->expected); i++)
        if (!g->seen[i]) golden_fail(g, sib_safetensors_at(g->expected, i)->name, "no runner knows this key");
    return SIB_OK;
}

static void usage(FILE *to)
{
    fputs("usage: golden [--numerics f32|bf16|int8] [--threads N] [--tolerance X] CASE...\n"
          "Runs reference cases and compares every tensor of expected.safetensors.\n"
          "One line a tensor: CASE KEY max_abs max_rel ok|FAIL. Exit 1 when something failed.\n",
          to);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"numerics", required_argument, NULL, 'n'}, {"threads", required_argument, NULL, 't'},
                                            {"tolerance", required_argument, NULL, 'x'}, {"help", no_argument, NULL, 'h'}, {0}};
    static const char *const modes[] = {"f32", "bf16", "int8"};
    sib_cpu_options cpu = {.numerics = SIB_NUM_F32};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'n':
            cpu.numerics = (sib_numerics)3;
            for (int i = 0; i < 3; i++)
                if (strcmp(optarg, modes[i]) == 0) cpu.numerics = (sib_numerics)i;
            if ((int)cpu.numerics == 3) {
                fprintf(stderr, "golden: --numerics %s: modes are f32, bf16, int8\n", optarg);
                return 2;
            }
            break;
        case 't': cpu.threads = atoi(optarg); break;
        case 'x': tolerance = atof(optarg); break;
        case 'h': usage(stdout); return 0;
        default: usage(stderr); return 2;
        }
    }
    if (optind == argc) {
        usage(stderr);
        return 2;
    }
    sib_err err = {0};
    sib_device *device;
    if (sib_cpu_device_new(&device, &cpu, &err) != SIB_OK) {
        fprintf(stderr, "golden: %s\n", err.message);
        return 1;
    }
    golden_follow_ties(device);
    int passed = 0, failed = 0;
    for (int i = optind; i < argc; i++) {
        golden g = {.dir = argv[i], .device = device};
        size_t n = strlen(argv[i]);
        while (n > 0 && argv[i][n - 1] == '/') n--;
        size_t from = n;
        while (from > 0 && argv[i][from - 1] != '/') from--;
        (void)snprintf(g.name, sizeof g.name, "%.*s", (int)(n - from), argv[i] + from);
        if (run(&g, &err) != SIB_OK) {
            printf("%s - - - FAIL (%s)\n", g.name, err.message);
            g.failed++;
        }
        passed += g.passed;
        failed += g.failed;
        free(g.seen);
        json_decref(g.notes);
        sib_safetensors_free(g.expected);
    }
    sib_device_free(device);
    printf("golden: %d passed, %d failed\n", passed, failed);
    return failed > 0;
}

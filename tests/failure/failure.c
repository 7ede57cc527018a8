/* tests/failure/failure.c - the machine fails at every turn: each allocation, open, read, mapping, write and thread
 * start of the library in turn reports failure, and what a program sees must be an error with a sentence (or, where
 * the call was not essential, the same result as ever), no memory left behind, and a next try that works.
 *
 *   build/failure [--all] [SCENARIO...]
 *
 * The library is linked with --wrap (FAILING in the Makefile), so only its own calls fail; those inside jansson,
 * libpng and other libraries do not: jansson 2.14 itself does not survive a failing malloc everywhere. jansson's memory
 * is counted all the same, so a reference that is not released is found. By default the first and the last call of every
 * call site fail, and an even sample of the others; --all, or SIBYL_LONG in the environment, fails every call.
 * The last line is "failure: N runs, M failed". */
#include "artifacts/safetensors.h"
#include "base/json.h"
#include "engine/report.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- the failing calls ------------------------------------------------------------------------------------- */

#define MAX_CALLS (1 << 20)
#define SAMPLE    24 /* further calls of a scenario that fail by default */

static atomic_bool armed; /* inside a scenario */
static atomic_int calls, fail_at;
static atomic_long live; /* blocks of memory, mappings and descriptors that are not given back */
static void *site_of[MAX_CALLS]; /* by call, of the counting run */
static bool recording;

/* True when this is the call that fails. */
static bool fails(void *site)
{
    if (!atomic_load(&armed)) return false;
    int n = atomic_fetch_add(&calls, 1) + 1;
    if (recording && n <= MAX_CALLS) site_of[n - 1] = site;
    return n == atomic_load(&fail_at);
}

#define SITE __builtin_extract_return_addr(__builtin_return_address(0))
#define WRAP(type, name, params) \
    type __real_##name params;   \
    type __wrap_##name params;   \
    type __wrap_##name params

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic" /* names that the linker asks for */

static void *kept(void *p)
{
    if (p) atomic_fetch_add(&live, 1);
    return p;
}

WRAP(void *, malloc, (size_t n)) { return fails(SITE) ? (errno = ENOMEM, NULL) : kept(__real_malloc(n)); }
WRAP(void *, calloc, (size_t n, size_t each)) { return fails(SITE) ? (errno = ENOMEM, NULL) : kept(__real_calloc(n, each)); }
WRAP(void *, aligned_alloc, (size_t align, size_t n)) { return fails(SITE) ? (errno = ENOMEM, NULL) : kept(__real_aligned_alloc(align, n)); }
WRAP(char *, strdup, (const char *z)) { return fails(SITE) ? (errno = ENOMEM, NULL) : kept(__real_strdup(z)); }
WRAP(void *, realloc, (void *p, size_t n))
{
    if (fails(SITE)) return errno = ENOMEM, NULL;
    bool fresh = !p;
    void *q = __real_realloc(p, n);
    return fresh ? kept(q) : q;
}
WRAP(void, free, (void *p))
{
    if (p) atomic_fetch_sub(&live, 1);
    __real_free(p);
}
WRAP(void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t offset))
{
    if (fails(SITE)) return errno = ENOMEM, MAP_FAILED;
    return __real_mmap(at, n, prot, flags, fd, offset);
}
WRAP(int, open, (const char *path, int flags, ...))
{
    if (fails(SITE)) return errno = EMFILE, -1;
    int fd = __real_open(path, flags, 0600);
    if (fd >= 0) atomic_fetch_add(&live, 1);
    return fd;
}
WRAP(int, close, (int fd))
{
    atomic_fetch_sub(&live, 1);
    return __real_close(fd);
}
WRAP(ssize_t, read, (int fd, void *p, size_t n)) { return fails(SITE) ? (errno = EIO, -1) : __real_read(fd, p, n); }
WRAP(ssize_t, pread, (int fd, void *p, size_t n, off_t at)) { return fails(SITE) ? (errno = EIO, -1) : __real_pread(fd, p, n, at); }
WRAP(FILE *, fopen, (const char *path, const char *mode)) { return fails(SITE) ? (errno = EMFILE, NULL) : kept(__real_fopen(path, mode)); }
WRAP(FILE *, fdopen, (int fd, const char *mode)) { return fails(SITE) ? (errno = ENOMEM, NULL) : __real_fdopen(fd, mode); } /* the descriptor is counted */
WRAP(int, fclose, (FILE *f))
{
    atomic_fetch_sub(&live, 1);
    if (!fails(SITE)) return __real_fclose(f);
    (void)__real_fclose(f);
    return errno = ENOSPC, EOF;
}
WRAP(size_t, fwrite, (const void *p, size_t each, size_t n, FILE *f)) { return fails(SITE) ? (errno = ENOSPC, 0) : __real_fwrite(p, each, n, f); }
WRAP(DIR *, opendir, (const char *path)) { return fails(SITE) ? (errno = EMFILE, NULL) : kept(__real_opendir(path)); }
WRAP(int, closedir, (DIR *d))
{
    atomic_fetch_sub(&live, 1);
    return __real_closedir(d);
}
WRAP(int, pthread_create, (pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg)) { return fails(SITE) ? EAGAIN : __real_pthread_create(t, a, f, arg); }

#pragma GCC diagnostic pop

/* jansson's memory: counted, never failing. */
static void *json_memory(size_t n)
{
    return kept(__real_malloc(n));
}

static void json_release(void *p)
{
    if (p) atomic_fetch_sub(&live, 1);
    __real_free(p);
}

/* ---- scenarios: a status and an outcome that can be compared --------------------------------------------------- */

typedef sib_status (*scenario_fn)(sib_buf *outcome, sib_err *err);

#define MODEL "demo/gemma4-demo"

static const char context[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"Be short.\"},{\"role\":\"user\",\"content\":\"What is 2 plus 3?\"}],"
                              "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}]}";

static void put_ids(sib_buf *out, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) sib_buf_addf(out, "%d ", ids[i]);
}

static sib_status text_only(sib_engine *e, sib_buf *out, sib_err *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    char *text = NULL;
    SIB_TRY(sib_chat_tokens(e, context, sizeof context - 1, 0, &ids, &n, err));
    put_ids(out, ids, n);
    sib_status s = sib_detokenize(e, ids, n, SIB_DETOKENIZE_SPECIAL, &text, &n, err);
    if (s == SIB_OK) sib_buf_add(out, text, n);
    sib_free(text);
    sib_free(ids);
    if (s == SIB_OK) s = sib_tokenize(e, "Grüße <|turn>", 14, SIB_TOKENIZE_SPECIAL | SIB_TOKENIZE_PLAIN | SIB_TOKENIZE_BOS, &ids, &n, err);
    if (s == SIB_OK) put_ids(out, ids, n), sib_free(ids);
    return s;
}

static sib_status tokenize(sib_buf *out, sib_err *err)
{
    sib_engine *e = NULL;
    sib_options o;
    sib_options_init(&o);
    o.model = MODEL;
    o.text_only = true;
    SIB_TRY(sib_open(&e, &o, err));
    sib_status s = text_only(e, out, err);
    sib_close(e);
    return s;
}

static sib_status answer(sib_engine *e, sib_session *s, const sib_picture *picture, sib_buf *out, sib_err *err)
{
    static const char with_picture[] = "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"},{\"type\":\"text\",\"text\":\"What is this?\"}]}]}";
    static const char *const stops[] = {"never said"};
    int32_t *ids = NULL;
    size_t n = 0;
    sib_request r;
    sib_token t = {0};
    sib_request_init(&r);
    r.temperature = 0;
    r.max_tokens = 6;
    r.stop = stops;
    r.n_stop = 1;
    r.repetition_penalty = 1.1;
    const char *json = picture ? with_picture : context;
    SIB_TRY(sib_chat_tokens(e, json, strlen(json), 0, &ids, &n, err));
    sib_status status = sib_session_prompt(s, ids, n, picture, picture != NULL, &r, err);
    sib_free(ids);
    while (status == SIB_OK && t.finish == SIB_FINISH_NONE) {
        status = sib_session_next(s, &t, err);
        if (status == SIB_OK) sib_buf_addf(out, "%d ", t.id);
    }
    return status;
}

static sib_status generate_with(const char *draft, const sib_picture *picture, sib_buf *out, sib_err *err)
{
    sib_engine *e = NULL;
    sib_session *s = NULL;
    sib_options o;
    sib_options_init(&o);
    o.model = MODEL;
    o.draft = draft;
    o.n_ctx = 256;
    o.chunk = 128;
    o.threads = 2;
    SIB_TRY(sib_open(&e, &o, err));
    sib_status status = sib_session_new(&s, e, err);
    if (status == SIB_OK) status = answer(e, s, picture, out, err);
    sib_session_free(s);
    sib_close(e);
    return status;
}

static sib_status generate(sib_buf *out, sib_err *err)
{
    return generate_with(NULL, NULL, out, err);
}

static sib_status draft(sib_buf *out, sib_err *err)
{
    return generate_with("demo/gemma4-demo-assistant", NULL, out, err);
}

static sib_status picture(sib_buf *out, sib_err *err)
{
    sib_buf file = {0};
    sib_status s = sib_read_file("demo/pictures/07_512x512.png", 1 << 20, &file, err);
    if (s == SIB_OK) s = generate_with(NULL, &(sib_picture){file.p, file.n, "picture"}, out, err);
    sib_buf_deinit(&file);
    return s;
}

/* A loaded engine stays in use while sessions fail. */
static sib_engine *standing;

static sib_status session(sib_buf *out, sib_err *err)
{
    sib_session *s = NULL;
    sib_status status = sib_session_new(&s, standing, err);
    if (status == SIB_OK) status = answer(standing, s, NULL, out, err);
    sib_session_free(s);
    return status;
}

static sib_status inspect(sib_buf *out, sib_err *err)
{
    SIB_TRY(sib_inspect_json(out, MODEL, err));
    /* A report may say that the checkpoint would not load, and why: a sentence as well. */
    return out->p && strstr(out->p, "\"error\":\"") ? sib_fail(err, SIB_EFORMAT, "%s", strstr(out->p, "\"error\":\"")) : SIB_OK;
}

static sib_status fit(sib_buf *out, sib_err *err)
{
    sib_buf report = {0};
    sib_options o;
    sib_options_init(&o);
    o.model = MODEL;
    o.n_ctx = 512;
    sib_status s = sib_fit_json(&report, &o, 1, err); /* available memory is never the same twice */
    if (s == SIB_OK) sib_buf_addz(out, report.n ? "report" : "");
    sib_buf_deinit(&report);
    return s;
}

static char temporary[64];

static sib_status write_tensors(sib_buf *out, sib_err *err)
{
    static const float values[300] = {1, 2, 3};
    sib_safetensors_writer *w = NULL;
    sib_safetensors *f = NULL;
    SIB_TRY(sib_safetensors_create(&w, temporary, 64, err)); /* a small reserve: the header moves at the end */
    sib_status s = sib_safetensors_put_metadata(w, "format", "pt", err);
    for (int i = 0; i < 5 && s == SIB_OK; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "tensor.%d", i);
        s = sib_safetensors_add(w, name, SIB_F32, 1, (const int64_t[]){300}, values, err);
    }
    if (s != SIB_OK) {
        sib_safetensors_abandon(w);
        return s;
    }
    SIB_TRY(sib_safetensors_finish(w, err));
    s = sib_safetensors_open(&f, temporary, false, err);
    if (s == SIB_OK) sib_buf_addf(out, "%zu", sib_safetensors_count(f));
    sib_safetensors_free(f);
    return s;
}

static const struct scenario {
    const char *name;
    scenario_fn run;
} scenarios[] = {
    {"tokenize", tokenize}, {"write", write_tensors}, {"inspect", inspect}, {"fit", fit},
    {"session", session},   {"generate", generate},   {"draft", draft},     {"picture", picture},
};

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

static const char *now_running = "?";
static int n_runs, n_failed;

static void complain(const char *what, const char *more)
{
    n_failed++;
    printf("FAIL %s, call %d: %s%s%s\n", now_running, atomic_load(&fail_at), what, more ? ": " : "", more ? more : "");
}

/* A crash or a hang names the call, then dies. */
static void on_signal(int sig)
{
    char line[160];
    int n = snprintf(line, sizeof line, "FAIL %s, call %d: signal %d\nfailure: %d runs, %d failed\n", now_running, atomic_load(&fail_at), sig, n_runs, n_failed + 1);
    if (n > 0 && write(STDOUT_FILENO, line, (size_t)n) < 0) _exit(3);
    _exit(2);
}

static sib_status run_once(scenario_fn run, int n, sib_buf *outcome, sib_err *err)
{
    *err = (sib_err){0};
    outcome->n = 0;
    atomic_store(&calls, 0);
    atomic_store(&fail_at, n);
    (void)alarm(120);
    long before = atomic_load(&live);
    sib_buf result = {0};
    atomic_store(&armed, true);
    sib_status s = run(&result, err);
    atomic_store(&armed, false);
    sib_status own = result.failed ? SIB_ENOMEM : s; /* the scenario's own note of the outcome may fail as well */
    if (own == SIB_OK) sib_buf_add(outcome, result.p, result.n);
    sib_buf_deinit(&result);
    (void)alarm(0);
    n_runs++;
    long left = atomic_load(&live) - before;
    if (left != 0 && n > 0) {
        char text[64];
        (void)snprintf(text, sizeof text, "%ld blocks or files left", left);
        complain(text, s == SIB_OK ? NULL : err->message);
    }
    if (s != SIB_OK && !err->message[0]) complain("an error without a sentence", sib_status_name(s));
    return own;
}

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)*(void *const *)a, y = (uintptr_t)*(void *const *)b;
    return x < y ? -1 : x > y;
}

static void run_scenario(const struct scenario *sc, bool all)
{
    sib_buf want = {0}, got = {0};
    sib_err err;
    now_running = sc->name;
    if (!sib_buf_reserve(&want, 1 << 16) || !sib_buf_reserve(&got, 1 << 16)) abort(); /* not counted as left behind */
    (void)run_once(sc->run, 0, &want, &err); /* what is made once and kept */
    recording = true;
    sib_status s = run_once(sc->run, 0, &want, &err);
    recording = false;
    int n = atomic_load(&calls);
    if (s != SIB_OK) complain("fails on a sound machine", err.message);
    if (n > MAX_CALLS) {
        complain("too many calls to record", NULL);
        n = MAX_CALLS;
    }
    bool *chosen = calloc((size_t)n + 2, sizeof *chosen);
    void **sites = calloc((size_t)n + 1, sizeof *sites);
    if (!chosen || !sites) abort();
    memcpy(sites, site_of, (size_t)n * sizeof *sites);
    qsort(sites, (size_t)n, sizeof *sites, by_address);
    int n_sites = 0, n_calls = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && sites[i] == sites[i - 1]) continue;
        int first = 0, last = n - 1;
        while (site_of[first] != sites[i]) first++;
        while (site_of[last] != sites[i]) last--;
        chosen[first + 1] = chosen[last + 1] = true;
        n_sites++;
    }
    for (int i = 0; i < SAMPLE; i++) chosen[1 + (int)((int64_t)n * i / SAMPLE)] = true;
    for (int i = 1; i <= n; i++) {
        if (!all && !chosen[i]) continue;
        s = run_once(sc->run, i, &got, &err);
        if (s == SIB_OK && !sib_str_eq(sib_buf_view(&want), sib_buf_view(&got))) complain("another result, and no error", NULL);
        if (n_calls++ % 16 == 0 && (run_once(sc->run, 0, &got, &err) != SIB_OK || !sib_str_eq(sib_buf_view(&want), sib_buf_view(&got))))
            complain("the next try does not work", err.message);
    }
    printf("%-10s %6d calls from %3d sites, %5d of them failed, every site at least once\n", sc->name, n, n_sites, n_calls);
    (void)fflush(stdout);
    free(chosen);
    free(sites);
    sib_buf_deinit(&want);
    sib_buf_deinit(&got);
}

int main(int argc, char **argv)
{
    bool all = getenv("SIBYL_LONG") != NULL, some = false;
    static const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGALRM};
    for (size_t i = 0; i < SIB_COUNT(signals); i++) (void)signal(signals[i], on_signal);
    json_set_alloc_funcs(json_memory, json_release);
    (void)snprintf(temporary, sizeof temporary, "/tmp/sibyl-failure-%d.safetensors", (int)getpid());
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--all") == 0)
            all = true;
        else
            some = true;
    }
    sib_options o;
    sib_options_init(&o);
    o.model = MODEL;
    o.n_ctx = 256;
    o.threads = 1;
    sib_err err = {0};
    if (sib_open(&standing, &o, &err) != SIB_OK) {
        printf("FAIL open: %s\nfailure: 1 runs, 1 failed\n", err.message);
        return 1;
    }
    for (size_t i = 0; i < SIB_COUNT(scenarios); i++) {
        bool wanted = !some;
        for (int k = 1; k < argc; k++) wanted = wanted || strcmp(argv[k], scenarios[i].name) == 0;
        if (wanted) run_scenario(&scenarios[i], all);
    }
    sib_close(standing);
    (void)unlink(temporary);
    printf("failure: %d runs, %d failed\n", n_runs, n_failed);
    return n_failed ? 1 : 0;
}

/* base/threads.c - see threads.h. */
#include "base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#else
#define PAUSE() ((void)0)
#endif

#define SPIN_ROUNDS 20000 /* 0.1 to 1 ms of PAUSE, depending on the processor, then park */
#define SPIN_SHARED 50    /* with more threads than processors the one waited for needs this processor */

struct sib_pool {
    int n_threads, spin;
    bool pin;
    sib_job_fn fn;
    void *ctx;
    _Alignas(64) atomic_uint generation; /* a new value starts a job  */
    _Alignas(64) atomic_int left;        /* workers still in the job  */
    _Alignas(64) atomic_int arrived;     /* barrier                   */
    atomic_uint phase;
    atomic_int parked;
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int started;
    struct worker {
        sib_pool *pool;
        int tid;
        pthread_t thread;
        _Alignas(64) atomic_uint claimed; /* last job whose part `tid` somebody took */
    } workers[]; /* n_threads - 1 */
};

static void bind_to(int index)
{
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    int n = CPU_COUNT(&allowed), want = n ? index % n : 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || want-- > 0) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        (void)pthread_setaffinity_np(pthread_self(), sizeof one, &one);
        return;
    }
}

static int processors(void)
{
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

static void wait_for_job(sib_pool *p, unsigned seen)
{
    for (int i = 0; i < p->spin; i++) {
        if (atomic_load_explicit(&p->generation, memory_order_acquire) != seen) return;
        PAUSE();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->parked, 1);
    while (atomic_load(&p->generation) == seen) pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->parked, 1);
    pthread_mutex_unlock(&p->lock);
}

/* Part `tid` of job `generation` is run by whoever claims it first: its worker, or the caller that has finished its
 * own part while the worker has not got a processor yet. A job is over only when all parts are, so a late
 * worker finds its part of an old job claimed, and fn and ctx are those of the job it did claim. */
static void run_part(sib_pool *p, struct worker *w, unsigned generation)
{
    unsigned before = generation - 1;
    if (!atomic_compare_exchange_strong(&w->claimed, &before, generation)) return;
    p->fn(p->ctx, w->tid, p->n_threads);
    atomic_fetch_sub_explicit(&p->left, 1, memory_order_release);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    sib_pool *p = w->pool;
    unsigned seen = 0;
    if (p->pin) bind_to(w->tid);
    for (;;) {
        wait_for_job(p, seen);
        seen = atomic_load_explicit(&p->generation, memory_order_acquire);
        if (atomic_load(&p->stop)) return NULL;
        run_part(p, w, seen);
    }
}

static void start_generation(sib_pool *p)
{
    atomic_fetch_add(&p->generation, 1); /* seq_cst: ordered against the parked count */
    if (atomic_load(&p->parked) > 0) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
}

sib_status sib_pool_new(sib_pool **out, int n_threads, bool pin, sib_err *err)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > SIB_MAX_THREADS)
        return sib_fail(err, SIB_EARG, "threads: %d, allowed are 1 to %d", n_threads, SIB_MAX_THREADS);
    size_t bytes = sizeof(sib_pool) + (size_t)(n_threads - 1) * sizeof(struct worker);
    sib_pool *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (!p) return sib_nomem(err, "thread pool");
    memset(p, 0, bytes);
    p->n_threads = n_threads;
    p->spin = n_threads <= processors() ? SPIN_ROUNDS : SPIN_SHARED;
    p->pin = pin;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    for (int i = 0; i < n_threads - 1; i++) {
        struct worker *w = &p->workers[i];
        w->pool = p;
        w->tid = i + 1;
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) {
            sib_pool_free(p);
            return sib_fail(err, SIB_ENOMEM, "cannot start thread %d of %d", i + 2, n_threads);
        }
        p->started++;
    }
    if (pin) bind_to(0);
    *out = p;
    return SIB_OK;
}

void sib_pool_free(sib_pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, true);
    start_generation(p);
    for (int i = 0; i < p->started; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    free(p);
}

int sib_pool_threads(const sib_pool *p)
{
    return p ? p->n_threads : 1;
}

void sib_pool_run(sib_pool *p, sib_job_fn fn, void *ctx)
{
    if (!p || p->n_threads == 1) {
        fn(ctx, 0, 1);
        return;
    }
    p->fn = fn;
    p->ctx = ctx;
    atomic_store_explicit(&p->left, p->n_threads - 1, memory_order_relaxed);
    start_generation(p);
    fn(ctx, 0, p->n_threads);
    unsigned generation = atomic_load_explicit(&p->generation, memory_order_relaxed);
    for (int i = 0; i < p->n_threads - 1; i++) run_part(p, &p->workers[i], generation);
    for (int i = 0; atomic_load_explicit(&p->left, memory_order_acquire) != 0; i++) {
        if (i < p->spin)
            PAUSE();
        else
            sched_yield();
    }
}

void sib_pool_barrier(sib_pool *p)
{
    if (!p || p->n_threads == 1) return;
    unsigned phase = atomic_load(&p->phase);
    if (atomic_fetch_add(&p->arrived, 1) == p->n_threads - 1) {
        atomic_store(&p->arrived, 0);
        atomic_fetch_add(&p->phase, 1);
        return;
    }
    for (int i = 0; atomic_load_explicit(&p->phase, memory_order_acquire) == phase; i++) {
        if (i < p->spin)
            PAUSE();
        else
            sched_yield();
    }
}

void sib_split(int64_t n, int64_t grain, int tid, int n_threads, int64_t *begin, int64_t *end)
{
    int64_t units = (n + grain - 1) / grain, each = units / n_threads, more = units % n_threads;
    int64_t first = tid * each + (tid < more ? tid : more);
    int64_t last = first + each + (tid < more);
    *begin = first * grain < n ? first * grain : n;
    *end = last * grain < n ? last * grain : n;
}

/* base/threads.h - a pool of threads that runs one job at a time.
 *
 * sib_pool_run calls fn(ctx, tid, n_threads) once on each thread, the caller being
 * thread 0, and returns when all have finished. Between jobs a worker spins for a short
 * while (a forward pass issues hundreds of jobs, each some microseconds) and then parks
 * on a futex-backed condition, so that an idle engine costs nothing. A part whose thread has
 * not got a processor by the time the caller is done with its own is run by the caller, so a busy
 * machine makes a job slower, never stuck behind a sleeping thread. `tid` therefore names a part
 * (and its scratch), not an OS thread. One job at a time: the caller serialises. */
#ifndef SIB_BASE_THREADS_H
#define SIB_BASE_THREADS_H

#include "base/status.h"

typedef struct sib_pool sib_pool;
typedef void (*sib_job_fn)(void *ctx, int tid, int n_threads);

#define SIB_MAX_THREADS 256

/* n_threads 1..SIB_MAX_THREADS; `pin` binds thread i to the i-th processor of the affinity mask. */
sib_status sib_pool_new(sib_pool **out, int n_threads, bool pin, sib_err *err);
void sib_pool_free(sib_pool *p);
int sib_pool_threads(const sib_pool *p); /* NULL counts as 1 */
void sib_pool_run(sib_pool *p, sib_job_fn fn, void *ctx); /* NULL pool: runs on the caller alone */

/* Barrier between the threads inside one running job. */
void sib_pool_barrier(sib_pool *p);

/* The part of 0..n-1 that thread tid takes: contiguous, in multiples of `grain`. */
void sib_split(int64_t n, int64_t grain, int tid, int n_threads, int64_t *begin, int64_t *end);

#endif

/* sched/sched.h - many answers at once on one model.
 *
 *   submit()  ->  queue  ->  slot (a timeline, gen/generation.h)  ->  ended()
 *                            |  started()  token() token() ...  |
 *
 * One engine thread owns the model and runs rounds (spec/round.h) over all slots that have work: one forward pass
 * takes the next rows of every running answer, prompt chunks and verify blocks side by side. What a job gets does not
 * depend on its neighbours. A prompt's share of a round is cut so that a round stays short: the others keep
 * their pace, and who has left is noticed between rounds.
 *
 * Memory is planned when the engine is opened (sib_options.n_sessions timelines of n_ctx positions), so a free slot is the
 * memory for a request: what no slot can ever hold is refused at once, what no slot can hold now waits, and what the queue
 * cannot hold is refused with SIB_ECAPACITY.
 *
 * A slot keeps its timeline after the answer. A new job goes to the free slot that shares the longest prefix with
 * it, else to the one that has been idle longest.
 *
 * The callbacks run on the engine thread, in the order of the picture, and must not block. After a successful submit ended()
 * comes exactly once, and it is the scheduler's last touch of the job. Used by server/. */
#ifndef SIB_SCHED_SCHED_H
#define SIB_SCHED_SCHED_H

#include "engine/engine_internal.h"

#include <stdatomic.h>

typedef struct sib_sched sib_sched;
typedef struct sib_job sib_job;

/* How a job went. `status` SIB_OK: the answer is complete, `finish` says why it ended. */
typedef struct sib_job_report {
    sib_status status;
    const char *message;     /* status not SIB_OK: why                                        */
    bool timed_out;          /* SIB_ECANCELLED: it waited longer than queue_timeout_ms        */
    sib_finish finish;
    int prompt_tokens, cached_tokens, generated_tokens; /* the last as the token() calls counted them */
    double queue_ms, prefill_ms, decode_ms;
    uint64_t rounds, target_passes;                     /* rounds with drafts; forwards that emitted */
    uint64_t proposed, accepted;                        /* drafts */
    uint64_t proposed_at[SIB_POLICY_DEPTHS], accepted_at[SIB_POLICY_DEPTHS];
} sib_job_report;

struct sib_job {
    /* The caller's; constant from submit until ended. */
    const int32_t *ids;
    size_t n_ids;
    const sib_picture *pictures; /* files, one for each placeholder in ids */
    int n_pictures;
    int max_soft_tokens; /* as in sib_request */
    const sib_gen_request *request;
    bool no_reuse;           /* compute the whole prompt          */
    double queue_timeout_ms; /* 0: waits as long as it takes      */
    void (*started)(sib_job *j, int prompt_tokens, int cached_tokens);
    /* False: the answer ends with this token (SIB_FINISH_STOP); none after it is delivered or counted. */
    bool (*token)(sib_job *j, const sib_token *t, const sib_sample *sample);
    void (*ended)(sib_job *j, const sib_job_report *r);
    /* The scheduler's. */
    sib_job *next;
    atomic_bool cancelled;
    atomic_int progress; /* prompt positions that are computed; for whoever shows progress */
    double submitted_ms;
};

typedef struct sib_sched_options {
    int parallel; /* slots, 1 .. the engine's n_sessions */
    int queue;    /* jobs that may wait, >= 0            */
} sib_sched_options;

/* Starts the engine thread. The engine must not be used for anything but text until _free. */
sib_status sib_sched_new(sib_sched **out, sib_engine *e, const sib_sched_options *o, sib_err *err);
/* Cancels what runs and waits, and ends the thread. */
void sib_sched_free(sib_sched *s);

/* Takes all n jobs or none. SIB_EARG, SIB_ECAPACITY with err naming the context: never fits; SIB_ECAPACITY with *full
 * set: the queue is full now; SIB_EUNSUPPORTED. From any thread. */
sib_status sib_sched_submit(sib_sched *s, sib_job *const *jobs, int n, bool *full, sib_err *err);

/* The job ends with SIB_ECANCELLED at the next step, wherever it is; harmless when it has ended but still exists. */
void sib_sched_cancel(sib_sched *s, sib_job *j);

typedef struct sib_sched_stats {
    int slots, running, waiting;
    int64_t kv_tokens, kv_capacity; /* positions held (idle slots included), and that all slots can hold */
    uint64_t rounds;
} sib_sched_stats;
void sib_sched_stats_get(sib_sched *s, sib_sched_stats *out);

#endif

/* sched/sched.c - see sched.h. */
#include "sched/sched.h"

#include "base/log.h"
#include "engine/pictures.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A round should take so long when only prompts are computed, and when somebody is waiting for the next token. */
#define PROMPT_ROUND_MS 150.0
#define SHARED_ROUND_MS 80.0
#define LEAST_CHUNK     16 /* below it the weights are read for too few rows */

/* A timeline and the job on it. Diffusion answers will be a second kind of slot: one that the round
 * loop advances by a denoising step instead of putting a lane into the round (advance()). */
typedef struct slot {
    sib_generation *gen;
    sib_job *job;             /* NULL: idle */
    sib_picture_set pictures; /* of the prompt on the timeline */
    double last_used, started_ms, first_token_ms;
    sib_job_report report;
} slot;

struct sib_sched {
    sib_engine *engine;
    sib_round *round;
    int parallel, queue;
    slot *slots;       /* [parallel], the engine thread's */
    sib_lane **lanes;  /* [parallel] */
    slot **lane_slot;  /* [parallel] whose lane it is */
    double row_ms;     /* smoothed time of a prompt row, 0: unknown */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t work;
    sib_job *head, **tail;
    int n_waiting, n_running; /* a job is counted as running from the moment it leaves the queue */
    bool stop;
    sib_sched_stats stats;
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- the end of a job ---------------------------------------------------------------------- */

static void give_up(sib_sched *s, sib_job *j, sib_job_report *r)
{
    j->ended(j, r);
    pthread_mutex_lock(&s->lock);
    s->n_running--;
    pthread_mutex_unlock(&s->lock);
}

/* Ends the job of a slot; the timeline stays. */
static void finish(sib_sched *s, slot *t, sib_status status, const char *message)
{
    sib_job *j = t->job;
    sib_job_report *r = &t->report;
    const sib_draft_policy *p = sib_generation_policy(t->gen);
    double now = now_ms(), first = t->first_token_ms > 0 ? t->first_token_ms : now;
    r->status = status;
    r->message = message;
    r->prefill_ms = first - t->started_ms;
    r->decode_ms = now - first;
    r->rounds = p->rounds;
    r->proposed = p->proposed;
    r->accepted = p->kept;
    memcpy(r->proposed_at, p->proposed_at, sizeof r->proposed_at);
    memcpy(r->accepted_at, p->kept_at, sizeof r->accepted_at);
    t->job = NULL;
    t->last_used = now;
    give_up(s, j, r);
}

static void stop_generation(slot *t, sib_finish why)
{
    sib_err ignored;
    sib_token event;
    (void)sib_generation_stop(t->gen, why, &ignored); /* fails only without memory for the flushed text, which nobody wants */
    while (sib_generation_next(t->gen, &event)) continue;
}

/* ---- admission ------------------------------------------------------------------------------- */

static slot *choose(sib_sched *s, const sib_job *j, const sib_picture_set *set)
{
    slot *best = NULL;
    int most = -1;
    const int32_t *ids = set->n > 0 ? set->ids : j->ids;
    size_t n = set->n > 0 ? set->n_ids : j->n_ids;
    for (int i = 0; i < s->parallel; i++) {
        slot *t = &s->slots[i];
        if (t->job) continue;
        int shared = j->no_reuse ? 0 : sib_generation_shared(t->gen, ids, n, set->pictures, set->n);
        if (!best || shared > most || (shared == most && t->last_used < best->last_used)) {
            best = t;
            most = shared;
        }
    }
    return best;
}

/* A set that has some of the pictures saves encoding them again: the one of the slot with most in common is not known before
 * they are encoded, so the most recent one that holds any picture is offered. */
static const sib_picture_set *recent_pictures(const sib_sched *s)
{
    const slot *best = NULL;
    for (int i = 0; i < s->parallel; i++)
        if (s->slots[i].pictures.n > 0 && (!best || s->slots[i].last_used > best->last_used)) best = &s->slots[i];
    return best ? &best->pictures : NULL;
}

static sib_status prompt(sib_sched *s, sib_job *j, sib_picture_set *set, slot **out, sib_err *err)
{
    if (j->n_pictures > 0)
        SIB_TRY(sib_picture_set_new(set, s->engine, j->ids, j->n_ids, j->pictures, j->n_pictures, j->max_soft_tokens, recent_pictures(s), err));
    slot *t = *out = choose(s, j, set);
    if (j->no_reuse) sib_generation_broken(t->gen); /* forgets the timeline */
    const int32_t *ids = set->n > 0 ? set->ids : j->ids;
    return sib_generation_prompt(t->gen, ids, set->n > 0 ? set->n_ids : j->n_ids, set->pictures, set->n, j->request, err);
}

static void admit(sib_sched *s, sib_job *j)
{
    sib_err err = {0};
    sib_picture_set set = {0};
    slot *t = NULL;
    double now = now_ms(), waited = now - j->submitted_ms;
    sib_job_report early = {.queue_ms = waited};
    if (atomic_load(&j->cancelled)) {
        early.status = SIB_ECANCELLED;
        early.message = "cancelled while waiting";
        give_up(s, j, &early);
        return;
    }
    sib_status status = prompt(s, j, &set, &t, &err);
    if (status != SIB_OK) {
        sib_picture_set_deinit(&set, s->engine);
        early.status = status;
        early.message = err.message;
        give_up(s, j, &early);
        return;
    }
    sib_picture_set_deinit(&t->pictures, s->engine);
    t->pictures = set;
    t->job = j;
    t->started_ms = now;
    t->first_token_ms = 0;
    t->report = (sib_job_report){.queue_ms = waited, .prompt_tokens = sib_generation_prompt_tokens(t->gen),
                                 .cached_tokens = sib_generation_cached_tokens(t->gen)};
    atomic_store(&j->progress, t->report.cached_tokens);
    j->started(j, t->report.prompt_tokens, t->report.cached_tokens);
}

/* Takes the queue's first job out when a slot is free for it. */
static sib_job *take(sib_sched *s)
{
    sib_job *j = NULL;
    pthread_mutex_lock(&s->lock);
    if (s->head && s->n_running < s->parallel) {
        j = s->head;
        s->head = j->next;
        if (!s->head) s->tail = &s->head;
        s->n_waiting--;
        s->n_running++;
    }
    pthread_mutex_unlock(&s->lock);
    return j;
}

/* Takes out of the queue who has left or waited too long, and returns them as a list. */
static sib_job *take_gone(sib_sched *s, double now)
{
    sib_job *gone = NULL, **last = &gone;
    pthread_mutex_lock(&s->lock);
    for (sib_job **at = &s->head; *at;) {
        sib_job *j = *at;
        bool late = j->queue_timeout_ms > 0 && now - j->submitted_ms > j->queue_timeout_ms;
        if (!s->stop && !late && !atomic_load(&j->cancelled)) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        j->next = NULL;
        *last = j;
        last = &j->next;
        s->n_waiting--;
        s->n_running++; /* until give_up() */
    }
    s->tail = &s->head;
    while (*s->tail) s->tail = &(*s->tail)->next;
    pthread_mutex_unlock(&s->lock);
    return gone;
}

static void drop_gone(sib_sched *s)
{
    double now = now_ms();
    for (sib_job *j = take_gone(s, now), *next; j; j = next) {
        next = j->next;
        sib_job_report r = {.status = SIB_ECANCELLED, .queue_ms = now - j->submitted_ms};
        r.timed_out = j->queue_timeout_ms > 0 && r.queue_ms > j->queue_timeout_ms;
        r.message = r.timed_out ? "no slot became free in time" : "ended while waiting";
        give_up(s, j, &r);
    }
}

/* ---- rounds ------------------------------------------------------------------------------------ */

/* Hands the events of the last round out. */
static void deliver(sib_sched *s, slot *t)
{
    sib_token event;
    while (t->job && sib_generation_next(t->gen, &event)) {
        if (event.id >= 0) {
            if (t->first_token_ms == 0) t->first_token_ms = now_ms();
            t->report.generated_tokens++;
        }
        t->report.finish = event.finish;
        if (!t->job->token(t->job, &event, sib_generation_sample(t->gen)) && event.finish == SIB_FINISH_NONE) {
            stop_generation(t, SIB_FINISH_STOP);
            t->report.finish = SIB_FINISH_STOP;
        }
        if (t->report.finish != SIB_FINISH_NONE) finish(s, t, SIB_OK, NULL);
    }
}

/* Prompt rows per lane for the next round. */
static void set_chunk(sib_sched *s, int n_prompts, bool shared)
{
    int most = s->engine->chunk, rows = most;
    if (s->row_ms > 0) {
        double fit = (shared ? SHARED_ROUND_MS : PROMPT_ROUND_MS) / s->row_ms / (n_prompts > 0 ? n_prompts : 1);
        rows = fit < LEAST_CHUNK ? LEAST_CHUNK : fit > most ? most : (int)fit;
    } else if (rows > 4 * LEAST_CHUNK) {
        rows = 4 * LEAST_CHUNK; /* the first round measures */
    }
    sib_round_set_chunk(s->round, rows);
}

static void learn_row_time(sib_sched *s, int rows, double ms)
{
    if (rows < LEAST_CHUNK) return;
    double each = ms / rows;
    s->row_ms = s->row_ms > 0 ? 0.75 * s->row_ms + 0.25 * each : each;
}

/* Every job of the failed round ends; the others and the server live on. */
static void fail_round(sib_sched *s, int n, sib_status status, const sib_err *err)
{
    sib_log(SIB_LOG_ERROR, "a round over %d requests failed: %s", n, err->message);
    for (int i = 0; i < n; i++) {
        slot *t = s->lane_slot[i];
        sib_generation_broken(t->gen);
        finish(s, t, status, err->message);
    }
}

static void advance(sib_sched *s)
{
    int n = 0, prompts = 0, before = 0, after = 0;
    for (int i = 0; i < s->parallel; i++) {
        slot *t = &s->slots[i];
        sib_lane *lane = t->job ? sib_generation_lane(t->gen) : NULL;
        if (!lane) continue;
        s->lane_slot[n] = t;
        s->lanes[n++] = lane;
        prompts += sib_generation_in_prompt(t->gen);
        before += lane->n_done;
    }
    if (n == 0) return;
    sib_err err = {0};
    set_chunk(s, prompts, prompts < n);
    double t0 = now_ms();
    sib_status status = sib_round_step(s->round, s->lanes, n, &err);
    double ms = now_ms() - t0;
    if (status != SIB_OK) {
        fail_round(s, n, status, &err);
        return;
    }
    for (int i = 0; i < n; i++) {
        slot *t = s->lane_slot[i];
        after += s->lanes[i]->n_done;
        atomic_store(&t->job->progress, s->lanes[i]->n_done);
        t->report.target_passes += s->lanes[i]->walk.n_emitted > 0;
        status = sib_generation_absorb(t->gen, &err);
        if (status == SIB_OK) {
            deliver(s, t);
            continue;
        }
        sib_generation_broken(t->gen);
        finish(s, t, status, err.message);
    }
    if (prompts > 0) learn_row_time(s, after - before, ms);
}

static void drop_cancelled(sib_sched *s)
{
    for (int i = 0; i < s->parallel; i++) {
        slot *t = &s->slots[i];
        if (!t->job || !atomic_load(&t->job->cancelled)) continue;
        stop_generation(t, SIB_FINISH_CANCELLED);
        finish(s, t, SIB_ECANCELLED, "cancelled");
    }
}

/* Waits for work; false when it is time to end. */
static bool wait_for_work(sib_sched *s, bool busy)
{
    int64_t held = 0;
    for (int i = 0; i < s->parallel; i++) held += sib_generation_length(s->slots[i].gen);
    pthread_mutex_lock(&s->lock);
    s->stats.kv_tokens = held;
    s->stats.rounds += busy;
    while (!busy && !s->stop && !s->head) pthread_cond_wait(&s->work, &s->lock);
    bool go_on = !s->stop;
    pthread_mutex_unlock(&s->lock);
    return go_on;
}

static void *engine_thread(void *ctx)
{
    sib_sched *s = ctx;
    bool busy = false;
    while (wait_for_work(s, busy)) {
        drop_cancelled(s);
        drop_gone(s);
        for (sib_job *j; (j = take(s));) {
            bool pictures = j->n_pictures > 0; /* encoding takes a while: the others get a round in between */
            admit(s, j);
            if (pictures) break;
        }
        advance(s);
        busy = false;
        for (int i = 0; i < s->parallel; i++) busy |= s->slots[i].job != NULL;
    }
    for (int i = 0; i < s->parallel; i++)
        if (s->slots[i].job) finish(s, &s->slots[i], SIB_ECANCELLED, "the server is shutting down");
    drop_gone(s);
    return NULL;
}

/* ---- outside ------------------------------------------------------------------------------------- */

static sib_status start(sib_sched *s, sib_err *err)
{
    size_t n = (size_t)s->parallel;
    s->slots = calloc(n, sizeof *s->slots);
    s->lanes = calloc(n, sizeof *s->lanes);
    s->lane_slot = calloc(n, sizeof *s->lane_slot);
    if (!s->slots || !s->lanes || !s->lane_slot) return sib_nomem(err, "scheduler");
    const sib_engine *e = s->engine;
    for (int i = 0; i < s->parallel; i++)
        SIB_TRY(sib_generation_new(&s->slots[i].gen, e->model, e->drafter, e->tokenizer, err));
    SIB_TRY(sib_round_new(&s->round, e->model, e->drafter, s->parallel, e->chunk, err));
    if (pthread_create(&s->thread, NULL, engine_thread, s) != 0) return sib_fail(err, SIB_ENOMEM, "the system gives no thread");
    s->has_thread = true;
    return SIB_OK;
}

sib_status sib_sched_new(sib_sched **out, sib_engine *e, const sib_sched_options *o, sib_err *err)
{
    *out = NULL;
    if (!e->model || !e->tokenizer) return sib_fail(err, SIB_ESTATE, "a checkpoint with weights and tokenizer.json is needed");
    if (e->model->offers.denoise) return sib_fail(err, SIB_EUNSUPPORTED, "%s answers by block diffusion, which the scheduler does not run yet", e->family->name);
    if (o->parallel < 1 || o->parallel > e->limits.n_seqs || o->queue < 0)
        return sib_fail(err, SIB_EARG, "%d parallel requests (the engine was opened for %d), %d waiting", o->parallel, e->limits.n_seqs, o->queue);
    sib_sched *s = calloc(1, sizeof *s);
    if (!s) return sib_nomem(err, "scheduler");
    s->engine = e;
    s->parallel = o->parallel;
    s->queue = o->queue;
    s->tail = &s->head;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    s->stats = (sib_sched_stats){.slots = o->parallel, .kv_capacity = (int64_t)o->parallel * e->model->facts.n_ctx};
    sib_status status = start(s, err);
    if (status != SIB_OK) {
        sib_sched_free(s);
        return status;
    }
    *out = s;
    return SIB_OK;
}

void sib_sched_free(sib_sched *s)
{
    if (!s) return;
    if (s->has_thread) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_cond_signal(&s->work);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    for (int i = 0; s->slots && i < s->parallel; i++) {
        sib_generation_free(s->slots[i].gen);
        sib_picture_set_deinit(&s->slots[i].pictures, s->engine);
    }
    sib_round_free(s->round);
    free(s->slots);
    free(s->lanes);
    free(s->lane_slot);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    free(s);
}

/* Whether an empty timeline could hold the prompt and one token. */
static sib_status check(const sib_sched *s, const sib_job *j, sib_err *err)
{
    const sib_facts *f = &s->engine->model->facts;
    if (j->n_ids == 0) return sib_fail(err, SIB_EARG, "the prompt is empty");
    if (j->n_ids >= (size_t)f->n_ctx)
        return sib_fail(err, SIB_ECAPACITY, "This model's maximum context length is %d tokens. However, your prompt has %zu tokens.", f->n_ctx, j->n_ids);
    return SIB_OK;
}

sib_status sib_sched_submit(sib_sched *s, sib_job *const *jobs, int n, bool *full, sib_err *err)
{
    *full = false;
    for (int i = 0; i < n; i++) SIB_TRY(check(s, jobs[i], err));
    pthread_mutex_lock(&s->lock);
    int taken = s->n_running + s->n_waiting;
    sib_status status = SIB_OK;
    if (s->stop) {
        status = sib_fail(err, SIB_ESTATE, "the scheduler is stopping");
    } else if (n > s->parallel + s->queue) {
        status = sib_fail(err, SIB_EARG, "%d answers at once, this server holds %d", n, s->parallel + s->queue);
    } else if (taken + n > s->parallel + s->queue) {
        *full = true;
        status = sib_fail(err, SIB_ECAPACITY, "%d requests are running and %d are waiting, and there is room for no more: try again later", s->n_running, s->n_waiting);
    }
    for (int i = 0; status == SIB_OK && i < n; i++) {
        sib_job *j = jobs[i];
        j->next = NULL;
        atomic_store(&j->progress, 0);
        j->submitted_ms = now_ms();
        *s->tail = j;
        s->tail = &j->next;
        s->n_waiting++;
    }
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    return status;
}

void sib_sched_cancel(sib_sched *s, sib_job *j)
{
    pthread_mutex_lock(&s->lock);
    atomic_store(&j->cancelled, true);
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

void sib_sched_stats_get(sib_sched *s, sib_sched_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->running = s->n_running;
    out->waiting = s->n_waiting;
    pthread_mutex_unlock(&s->lock);
}

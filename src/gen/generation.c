/* gen/generation.c - see generation.h. */
#include "gen/generation.h"

#include <stdlib.h>
#include <string.h>

struct event {
    int32_t id;
    size_t text, n_text; /* in g->text */
    sib_finish finish;
};

#define MAX_EVENTS (SIB_ROUND_EMIT + 2)

struct sib_generation {
    sib_model *model;
    sib_drafter *drafter;
    const sib_tokenizer *tokenizer;
    sib_lane lane;
    sib_id_set eos;
    sib_stop *stop;
    sib_detok *detok;
    sib_soft_span *soft;
    uint8_t (*soft_hash)[32];
    int n_prompt, n_cached;
    bool running;
    bool text_stops; /* stop strings are asked for */
    sib_buf text, piece;
    struct event events[MAX_EVENTS];
    int n_events, next_event;
};

sib_status sib_generation_new(sib_generation **out, sib_model *model, sib_drafter *drafter, const sib_tokenizer *t, sib_err *err)
{
    *out = NULL;
    sib_generation *g = calloc(1, sizeof *g);
    if (!g) return sib_nomem(err, "generation");
    *g = (sib_generation){.model = model, .drafter = drafter, .tokenizer = t};
    sib_status s = SIB_OK;
    g->lane.tokens = calloc((size_t)model->facts.n_ctx + SIB_ROUND_EMIT + 1, sizeof *g->lane.tokens);
    if (!g->lane.tokens) s = sib_nomem(err, "timeline");
    if (s == SIB_OK) s = model->ops->seq_new(model, &g->lane.seq, err);
    if (s == SIB_OK && drafter) s = drafter->ops->state_new(drafter, &g->lane.draft, err);
    if (s != SIB_OK) {
        sib_generation_free(g);
        return s;
    }
    *out = g;
    return SIB_OK;
}

static void free_request(sib_generation *g)
{
    sib_sampler_free(g->lane.sampler);
    sib_id_set_deinit(&g->eos);
    sib_stop_free(g->stop);
    sib_detok_free(g->detok);
    g->lane.sampler = NULL;
    g->stop = NULL;
    g->detok = NULL;
}

void sib_generation_free(sib_generation *g)
{
    if (!g) return;
    free_request(g);
    if (g->lane.draft) g->drafter->ops->state_free(g->drafter, g->lane.draft);
    if (g->lane.seq) g->model->ops->seq_free(g->model, g->lane.seq);
    free(g->lane.tokens);
    free(g->soft);
    free(g->soft_hash);
    sib_buf_deinit(&g->text);
    sib_buf_deinit(&g->piece);
    free(g);
}

int sib_generation_shared(const sib_generation *g, const int32_t *ids, size_t n, const sib_gen_picture *pictures, int n_pictures)
{
    if (!g->lane.seq || n == 0 || n > (size_t)g->model->facts.n_ctx) return 0;
    int same = sib_lane_shares(&g->lane, g->soft_hash, ids, (int)n - 1, pictures, n_pictures);
    /* rewind_to() starts again where the model has forgotten too much */
    return same < g->lane.n_done && same < g->model->offers.keep->reach(g->model, g->lane.seq) ? 0 : same;
}

static sib_status rewind_to(sib_generation *g, int length, sib_err *err)
{
    if (length < g->lane.n_done) {
        int reach = g->model->offers.keep->reach(g->model, g->lane.seq);
        if (length < reach) length = 0; /* a sliding ring has forgotten too much: start again */
        SIB_TRY(g->model->offers.keep->truncate(g->model, g->lane.seq, length, err));
    }
    if (g->lane.draft) {
        sib_status s = g->drafter->ops->truncate(g->drafter, g->lane.draft, length, err);
        if (s != SIB_OK && s != SIB_ESTATE) return s;
    }
    g->lane.n_done = length;
    return SIB_OK;
}

static sib_status set_pictures(sib_generation *g, const sib_gen_picture *pictures, int n, sib_err *err)
{
    sib_soft_span *soft = calloc((size_t)n + 1, sizeof *soft);
    uint8_t(*hash)[32] = calloc((size_t)n + 1, sizeof *hash);
    if (!soft || !hash) {
        free(soft);
        free(hash);
        return sib_nomem(err, "pictures of a prompt");
    }
    for (int i = 0; i < n; i++) {
        soft[i] = pictures[i].span;
        memcpy(hash[i], pictures[i].hash, 32);
    }
    free(g->soft);
    free(g->soft_hash);
    g->soft = soft;
    g->soft_hash = hash;
    g->lane.soft = soft;
    g->lane.n_soft = n;
    return SIB_OK;
}

static sib_status check_prompt(const sib_generation *g, const int32_t *ids, size_t n, const sib_gen_picture *pictures, int n_pictures, sib_err *err)
{
    const sib_facts *f = &g->model->facts;
    if (n == 0) return sib_fail(err, SIB_EARG, "the prompt is empty");
    if (n >= (size_t)f->n_ctx) return sib_fail(err, SIB_ECAPACITY, "the prompt has %zu tokens, the context holds %d with at least one of answer", n, f->n_ctx);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= f->n_vocab) return sib_fail(err, SIB_EARG, "token id %d is outside the vocabulary of %d", ids[i], f->n_vocab);
    for (int i = 0, end = 0; i < n_pictures; end = pictures[i].span.pos + pictures[i].span.n, i++) {
        const sib_soft_span *s = &pictures[i].span;
        if (s->pos < end || s->n < 1 || (size_t)s->pos + (size_t)s->n > n) return sib_fail(err, SIB_EARG, "picture %d does not fit its place in the prompt", i + 1);
        if (s->bidirectional && s->n > f->max_rows) return sib_fail(err, SIB_ECAPACITY, "picture %d has %d soft tokens, one call takes %d rows", i + 1, s->n, f->max_rows);
    }
    return SIB_OK;
}

static sib_status start_request(sib_generation *g, const sib_gen_request *r, sib_err *err)
{
    free_request(g);
    SIB_TRY(sib_sampler_new(&g->lane.sampler, r->sampler, g->model->facts.n_vocab, (size_t)g->model->facts.n_ctx + SIB_ROUND_EMIT + 1, err));
    SIB_TRY(sib_id_set_init(&g->eos, r->eos, r->n_eos, err));
    SIB_TRY(sib_stop_new(&g->stop, r->stop, r->n_stop, err));
    SIB_TRY(sib_detok_new(&g->detok, g->tokenizer, r->keep_special ? SIB_KEEP_SPECIAL : 0, err));
    g->text_stops = r->n_stop > 0;
    g->lane.eos = &g->eos;
    g->lane.grammar = r->grammar;
    g->lane.rule = r->rule;
    int depth = g->drafter ? (r->draft_n > 0 ? r->draft_n : g->drafter->default_draft) : 0;
    sib_policy_init(&g->lane.policy, r->policy, depth);
    return SIB_OK;
}

sib_status sib_generation_prompt(sib_generation *g, const int32_t *ids, size_t n, const sib_gen_picture *pictures, int n_pictures,
                                 const sib_gen_request *r, sib_err *err)
{
    SIB_TRY(check_prompt(g, ids, n, pictures, n_pictures, err));
    g->running = false;
    if (!g->lane.seq) SIB_TRY(g->model->ops->seq_new(g->model, &g->lane.seq, err)); /* an earlier round failed */
    SIB_TRY(start_request(g, r, err));
    SIB_TRY(rewind_to(g, sib_lane_shares(&g->lane, g->soft_hash, ids, (int)n - 1, pictures, n_pictures), err));
    SIB_TRY(set_pictures(g, pictures, n_pictures, err));
    g->n_cached = g->lane.n_done;
    memcpy(g->lane.tokens, ids, n * sizeof *ids);
    for (size_t i = 0; i < n; i++) SIB_TRY(sib_sampler_push(g->lane.sampler, ids[i], err));
    g->lane.n_tokens = g->n_prompt = (int)n;
    g->lane.emitted = 0;
    uint64_t room = (uint64_t)g->model->facts.n_ctx - n;
    g->lane.budget = r->max_tokens < room ? r->max_tokens : room;
    g->n_events = g->next_event = 0;
    g->text.n = 0;
    g->running = true;
    return SIB_OK;
}

sib_lane *sib_generation_lane(sib_generation *g)
{
    return g->running ? &g->lane : NULL;
}

/* Appends an event whose text is what `piece` released through the stop matcher. */
static sib_status push_event(sib_generation *g, int32_t id, sib_finish finish, sib_err *err)
{
    size_t from = g->text.n;
    if (g->text_stops) {
        SIB_TRY(sib_stop_feed(g->stop, sib_buf_view(&g->piece), &g->text, err));
        if (sib_stop_hit(g->stop) >= 0)
            finish = SIB_FINISH_STOP;
        else if (finish != SIB_FINISH_NONE)
            SIB_TRY(sib_stop_flush(g->stop, &g->text, err));
    } else {
        sib_buf_add(&g->text, g->piece.p ? g->piece.p : "", g->piece.n);
    }
    if (g->text.failed || g->piece.failed) return sib_nomem(err, "text of the answer");
    g->events[g->n_events++] = (struct event){id, from, g->text.n - from, finish};
    if (finish != SIB_FINISH_NONE) g->running = false;
    return SIB_OK;
}

sib_status sib_generation_absorb(sib_generation *g, sib_err *err)
{
    const sib_walk *w = &g->lane.walk;
    g->n_events = g->next_event = 0;
    g->text.n = 0;
    for (int i = 0; i < w->n_emitted && g->running; i++) {
        bool last = i == w->n_emitted - 1;
        bool eos = w->saw_eos && last, full = last && (w->out_of_budget || g->lane.budget == 0), done = last && w->grammar_done;
        sib_finish finish = eos || done ? SIB_FINISH_STOP : full ? SIB_FINISH_LENGTH : SIB_FINISH_NONE;
        g->piece.n = 0;
        if (!eos) SIB_TRY(sib_detok_feed(g->detok, g->lane.samples[i].id, &g->piece, err));
        if (finish != SIB_FINISH_NONE) SIB_TRY(sib_detok_flush(g->detok, &g->piece, err));
        SIB_TRY(push_event(g, g->lane.samples[i].id, finish, err));
        if (!g->running && !last) { /* a stop string inside a burst: what follows was never said */
            int said = g->lane.n_tokens - (w->n_emitted - 1 - i);
            if (g->lane.n_done > said) SIB_TRY(rewind_to(g, said, err));
            g->lane.n_tokens = said;
            g->lane.emitted -= (uint64_t)(w->n_emitted - 1 - i);
        }
    }
    return SIB_OK;
}

sib_status sib_generation_stop(sib_generation *g, sib_finish why, sib_err *err)
{
    if (!g->running) return SIB_OK;
    if (g->n_events == g->next_event) g->n_events = g->next_event = 0, g->text.n = 0;
    g->piece.n = 0;
    SIB_TRY(sib_detok_flush(g->detok, &g->piece, err));
    return push_event(g, -1, why, err);
}

void sib_generation_broken(sib_generation *g)
{
    if (g->lane.seq) g->model->ops->seq_free(g->model, g->lane.seq);
    g->lane.seq = NULL;
    g->lane.n_done = g->lane.n_tokens = 0;
    g->lane.n_soft = 0;
    g->running = false;
    sib_err ignored;
    if (g->lane.draft) (void)g->drafter->ops->truncate(g->drafter, g->lane.draft, 0, &ignored);
}

bool sib_generation_next(sib_generation *g, sib_token *out)
{
    if (g->next_event >= g->n_events) return false;
    const struct event *e = &g->events[g->next_event++];
    *out = (sib_token){.id = e->id, .text = g->text.p ? g->text.p + e->text : "", .text_bytes = e->n_text, .finish = e->finish};
    return true;
}

const sib_sample *sib_generation_sample(const sib_generation *g)
{
    int i = g->next_event - 1;
    return i >= 0 && g->events[i].id >= 0 ? &g->lane.samples[i] : NULL;
}

int sib_generation_prompt_tokens(const sib_generation *g)
{
    return g->n_prompt;
}

int sib_generation_cached_tokens(const sib_generation *g)
{
    return g->n_cached;
}

int sib_generation_generated(const sib_generation *g)
{
    return (int)g->lane.emitted;
}

bool sib_generation_in_prompt(const sib_generation *g)
{
    return g->running && g->lane.n_tokens - g->lane.n_done > 1;
}

int sib_generation_length(const sib_generation *g)
{
    return g->lane.n_done;
}

const sib_draft_policy *sib_generation_policy(const sib_generation *g)
{
    return &g->lane.policy;
}

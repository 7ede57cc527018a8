/* engine/session.c - one timeline for a program that embeds the library: prompt, then token by token. */
#include "engine/diagnose.h"
#include "engine/diffusion_request.h"
#include "engine/pictures.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct sib_session {
    sib_engine *engine;
    sib_generation *gen; /* these two, or */
    sib_round *round;
    sib_diffusion *diffusion; /* these, where the model denoises */
    sib_diffusion_round *diffusion_round;
    sib_picture_set pictures; /* of the prompt on the timeline */
    atomic_bool cancelled;
    bool finished;
    double prefill_ms, decode_ms;
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

void sib_request_init(sib_request *r)
{
    *r = (sib_request){.struct_bytes = sizeof *r, .max_tokens = -1, .temperature = NAN, .top_p = NAN, .min_p = NAN, .top_k = -1,
                       .repetition_penalty = NAN, .presence_penalty = NAN, .frequency_penalty = NAN};
}

sib_status sib_session_new(sib_session **out, sib_engine *e, sib_err *err)
{
    *out = NULL;
    sib_session *s = calloc(1, sizeof *s);
    if (!s) return sib_nomem(err, "session");
    s->engine = e;
    s->finished = true;
    if (!e->model) {
        free(s);
        return sib_fail(err, SIB_ESTATE, "the engine was opened for text only: it has no model");
    }
    sib_status status = e->tokenizer ? SIB_OK : sib_fail(err, SIB_EIO, "%s has no tokenizer.json", sib_checkpoint_dir(e->files));
    if (status == SIB_OK && e->model->offers.denoise) {
        status = sib_diffusion_new(&s->diffusion, e->model, e->tokenizer, err);
        if (status == SIB_OK) status = sib_diffusion_round_new(&s->diffusion_round, e->model, 1, e->chunk, err);
    } else if (status == SIB_OK) {
        status = sib_generation_new(&s->gen, e->model, e->drafter, e->tokenizer, err);
        if (status == SIB_OK) status = sib_round_new(&s->round, e->model, e->drafter, 1, e->chunk, err);
    }
    if (status != SIB_OK) {
        sib_session_free(s);
        return status;
    }
    *out = s;
    return SIB_OK;
}

void sib_session_free(sib_session *s)
{
    if (!s) return;
    sib_round_free(s->round);
    sib_generation_free(s->gen);
    sib_diffusion_round_free(s->diffusion_round);
    sib_diffusion_free(s->diffusion);
    sib_picture_set_deinit(&s->pictures, s->engine);
    free(s);
}

static sib_status parse_word(const char *word, const char *what, const char *const *words, size_t n, int fallback, int *out, sib_err *err)
{
    *out = fallback;
    if (!word) return SIB_OK;
    for (size_t i = 0; i < n; i++)
        if (strcmp(word, words[i]) == 0) {
            *out = (int)i;
            return SIB_OK;
        }
    return sib_fail(err, SIB_EARG, "%s \"%s\" is not known; known are %s, %s%s%s", what, word, words[0], words[1], n > 2 ? ", " : "", n > 2 ? words[2] : "");
}

/* A request's values in the forms that the loops take; arrays are sized for it. */
typedef struct prepared {
    sib_logit_bias *bias;
    sib_str *stops;
    size_t n_stops;
    sib_diffusion_setup diffusion;
} prepared;

static sib_status prepare(prepared *p, const sib_session *s, const sib_request *r, sib_err *err)
{
    const sib_generation_config *c = &s->engine->defaults;
    p->n_stops = (size_t)r->n_stop + (size_t)c->n_stops;
    p->bias = calloc((size_t)r->n_bias + 1, sizeof *p->bias);
    p->stops = calloc(p->n_stops + 1, sizeof *p->stops);
    if (!p->bias || !p->stops) return sib_nomem(err, "request");
    for (int i = 0; i < r->n_stop; i++) p->stops[i] = sib_str_of(r->stop[i]);
    for (int i = 0; i < c->n_stops; i++) p->stops[r->n_stop + i] = sib_str_of(c->stops[i]);
    if (r->max_tokens == 0 || r->max_tokens < -1) return sib_fail(err, SIB_EARG, "max_tokens is %d, allowed are 1 and more, or -1 for the whole context", r->max_tokens);
    return SIB_OK;
}

static void prepared_deinit(prepared *p)
{
    free(p->bias);
    free(p->stops);
    sib_diffusion_setup_deinit(&p->diffusion);
}

static sib_status prompt_diffusion(sib_session *s, prepared *p, const int32_t *ids, size_t n_ids, const sib_picture_set *pictures, const sib_request *r, sib_err *err)
{
    SIB_TRY(sib_diffusion_setup_read(&p->diffusion, s->engine, r, err));
    p->diffusion.request.stop = p->stops;
    p->diffusion.request.n_stop = p->n_stops;
    return sib_diffusion_prompt(s->diffusion, ids, n_ids, pictures->pictures, pictures->n, &p->diffusion.request, err);
}

static sib_status prompt(sib_session *s, prepared *p, const int32_t *ids, size_t n_ids, const sib_picture_set *pictures, const sib_request *r, sib_err *err)
{
    static const char *const policies[] = {"auto", "fixed", "off"}, *const rules[] = {"match", "rejection"};
    const sib_generation_config *c = &s->engine->defaults;
    int policy, rule;
    sib_sampler_params sampler;
    SIB_TRY(prepare(p, s, r, err));
    if (pictures->n > 0) {
        ids = pictures->ids;
        n_ids = pictures->n_ids;
    }
    if (s->diffusion) return prompt_diffusion(s, p, ids, n_ids, pictures, r, err);
    SIB_TRY(parse_word(r->draft_policy, "draft policy", policies, 3, SIB_POLICY_AUTO, &policy, err));
    SIB_TRY(parse_word(r->accept, "accept rule", rules, 2, SIB_ACCEPT_MATCH, &rule, err));
    SIB_TRY(sib_engine_sampler(s->engine, r, &sampler, p->bias, err));
    sib_gen_request g = {.sampler = &sampler, .eos = r->ignore_eos ? NULL : c->eos, .n_eos = r->ignore_eos ? 0 : (size_t)c->n_eos,
                         .stop = p->stops, .n_stop = p->n_stops, .max_tokens = r->max_tokens < 0 ? UINT64_MAX : (uint64_t)r->max_tokens,
                         .keep_special = r->keep_special, .rule = (sib_accept_rule)rule, .policy = (sib_policy_kind)policy, .draft_n = r->draft_n};
    return sib_generation_prompt(s->gen, ids, n_ids, pictures->pictures, pictures->n, &g, err);
}

sib_status sib_session_prompt(sib_session *s, const int32_t *ids, size_t n_ids, const sib_picture *pictures, int n_pictures, const sib_request *r, sib_err *err)
{
    if (r->struct_bytes != sizeof *r) return sib_fail(err, SIB_EARG, "sib_request has %zu bytes, this library expects %zu", r->struct_bytes, sizeof *r);
    if (r->n_bias < 0 || r->n_bias > 4096 || r->n_stop < 0 || r->n_stop > SIB_MAX_STOPS) return sib_fail(err, SIB_EARG, "%d logit biases and %d stop strings, at most 4096 and %d", r->n_bias, r->n_stop, SIB_MAX_STOPS);
    sib_picture_set set = {0};
    double t0 = now_ms();
    if (n_pictures > 0) SIB_TRY(sib_picture_set_new(&set, s->engine, ids, n_ids, pictures, n_pictures, r->max_soft_tokens, &s->pictures, err));
    prepared p = {0};
    sib_status status = prompt(s, &p, ids, n_ids, &set, r, err);
    prepared_deinit(&p);
    if (status == SIB_OK) {
        atomic_store(&s->cancelled, false);
        s->finished = false;
        s->prefill_ms = set.n > 0 ? now_ms() - t0 : 0;
        s->decode_ms = 0;
        sib_picture_set_deinit(&s->pictures, s->engine);
        s->pictures = set;
    } else {
        sib_picture_set_deinit(&set, s->engine);
    }
    return status;
}

static bool next_event(sib_session *s, sib_token *out)
{
    return s->diffusion ? sib_diffusion_next(s->diffusion, out) : sib_generation_next(s->gen, out);
}

static sib_status advance(sib_session *s, sib_err *err)
{
    if (s->diffusion) return sib_diffusion_round_step(s->diffusion_round, &s->diffusion, 1, err);
    sib_lane *lane = sib_generation_lane(s->gen);
    SIB_TRY(lane ? sib_round_step(s->round, &lane, 1, err) : sib_fail(err, SIB_ESTATE, "the answer has ended; prompt the session again"));
    return sib_generation_absorb(s->gen, err);
}

sib_status sib_session_next(sib_session *s, sib_token *out, sib_err *err)
{
    if (s->finished) return sib_fail(err, SIB_ESTATE, "the answer has ended; prompt the session again");
    while (!next_event(s, out)) {
        if (atomic_exchange(&s->cancelled, false)) {
            SIB_TRY(s->diffusion ? sib_diffusion_stop(s->diffusion, SIB_FINISH_CANCELLED, err) : sib_generation_stop(s->gen, SIB_FINISH_CANCELLED, err));
            continue;
        }
        bool prefill = s->diffusion ? sib_diffusion_in_prompt(s->diffusion) : sib_generation_in_prompt(s->gen);
        sib_trace_file_phase(s->engine->trace, prefill);
        sib_lane *lane = s->diffusion ? NULL : sib_generation_lane(s->gen);
        double t0 = now_ms();
        sib_status status = advance(s, err);
        if (status != SIB_OK) {
            int n = lane ? lane->n_tokens : 0;
            if (s->diffusion)
                sib_diffusion_broken(s->diffusion);
            else
                sib_generation_broken(s->gen); /* its sequence is free for the diagnosis, its tokens stay */
            if (status == SIB_EFORMAT && err && lane) sib_engine_diagnose(s->engine, lane->tokens, n, err);
            s->finished = true;
            return status;
        }
        *(prefill ? &s->prefill_ms : &s->decode_ms) += now_ms() - t0;
    }
    s->finished = out->finish != SIB_FINISH_NONE;
    return SIB_OK;
}

void sib_session_cancel(sib_session *s)
{
    atomic_store(&s->cancelled, true);
}

sib_status sib_session_stats(const sib_session *s, sib_stats *out)
{
    if (out->struct_bytes != sizeof *out) return SIB_EARG;
    if (s->diffusion) {
        *out = (sib_stats){.struct_bytes = sizeof *out, .prefill_ms = s->prefill_ms, .decode_ms = s->decode_ms};
        sib_diffusion_stats(s->diffusion, out);
        return SIB_OK;
    }
    const sib_draft_policy *p = sib_generation_policy(s->gen);
    *out = (sib_stats){.struct_bytes = sizeof *out, .prompt_tokens = sib_generation_prompt_tokens(s->gen), .cached_tokens = sib_generation_cached_tokens(s->gen),
                       .generated_tokens = sib_generation_generated(s->gen), .prefill_ms = s->prefill_ms, .decode_ms = s->decode_ms, .rounds = (int)p->rounds,
                       .proposed = (int)p->proposed, .accepted = (int)p->kept};
    for (int i = 0; i < SIB_MAX_DRAFT; i++) {
        out->accepted_by_position[i] = (int)p->kept_at[i];
        out->proposed_by_position[i] = (int)p->proposed_at[i];
    }
    if (p->rounds > 0) out->mean_emitted = (double)p->kept / (double)p->rounds + 1;
    return SIB_OK;
}

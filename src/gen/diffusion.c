/* gen/diffusion.c - see diffusion.h. */
#include "gen/diffusion.h"

#include <stdlib.h>
#include <string.h>

struct event {
    int32_t id;
    size_t text, n_text; /* in d->text */
    sib_finish finish;
    int step; /* of a frame; 0: not a frame */
};

struct sib_diffusion {
    sib_model *model;
    const sib_tokenizer *tokenizer;
    sib_lane lane; /* seq, tokens, n_tokens (decided), n_done (encoded), soft, emitted, budget */
    uint8_t (*soft_hash)[32];
    sib_soft_span *soft;
    sib_diffusion_params params;
    sib_replay replay;
    int32_t *replayed; /* what replay points to */
    sib_canvas_source source;
    sib_canvas_state canvas;
    int32_t *given; /* [canvas_length] of the first canvas */
    int n_given;
    bool begun; /* a canvas is being denoised */
    sib_id_set eos;
    sib_stop *stop;
    sib_detok *detok;
    unsigned text_flags;
    bool text_stops, frames, running;
    int32_t pad;
    int n_prompt, n_cached, n_canvases, n_steps;
    sib_buf text, piece;
    struct event *events; /* [canvas_length + 2] */
    int n_events, next_event;
};

sib_status sib_diffusion_new(sib_diffusion **out, sib_model *model, const sib_tokenizer *t, sib_err *err)
{
    *out = NULL;
    sib_diffusion *d = calloc(1, sizeof *d);
    if (!d) return sib_nomem(err, "generation");
    int width = model->offers.denoise->canvas_length;
    *d = (sib_diffusion){.model = model, .tokenizer = t};
    d->lane.tokens = calloc((size_t)model->facts.n_ctx, sizeof *d->lane.tokens);
    d->given = calloc((size_t)width, sizeof *d->given);
    d->events = calloc((size_t)width + 2, sizeof *d->events);
    sib_status s = d->lane.tokens && d->given && d->events ? SIB_OK : sib_nomem(err, "timeline");
    if (s == SIB_OK) s = sib_canvas_state_init(&d->canvas, width, err);
    if (s == SIB_OK) s = model->ops->seq_new(model, &d->lane.seq, err);
    if (s != SIB_OK) {
        sib_diffusion_free(d);
        return s;
    }
    *out = d;
    return SIB_OK;
}

static void free_request(sib_diffusion *d)
{
    sib_id_set_deinit(&d->eos);
    sib_stop_free(d->stop);
    sib_detok_free(d->detok);
    free(d->replayed);
    d->stop = NULL;
    d->detok = NULL;
    d->replayed = NULL;
}

void sib_diffusion_free(sib_diffusion *d)
{
    if (!d) return;
    free_request(d);
    if (d->lane.seq) d->model->ops->seq_free(d->model, d->lane.seq);
    sib_canvas_state_deinit(&d->canvas);
    free(d->lane.tokens);
    free(d->given);
    free(d->events);
    free(d->soft);
    free(d->soft_hash);
    sib_buf_deinit(&d->text);
    sib_buf_deinit(&d->piece);
    free(d);
}

/* ---- prompt ------------------------------------------------------------------------------------ */

/* Positions of the next canvas: all of the model's where there is room; dialect mlx makes the last one shorter, down to 64. */
static int length_of(const sib_model *m, sib_dialect dialect, int n_tokens, uint64_t budget)
{
    int n = m->offers.denoise->canvas_length, room = m->facts.n_ctx - n_tokens;
    if (dialect == SIB_DIALECT_MLX && budget < (uint64_t)n) n = budget > 64 ? (int)budget : n < 64 ? n : 64;
    return n < room ? n : room;
}

static int canvas_length(const sib_diffusion *d)
{
    return length_of(d->model, d->params.dialect, d->lane.n_tokens, d->lane.budget);
}

static sib_status check_prompt(const sib_diffusion *d, const int32_t *ids, size_t n, const sib_gen_picture *pictures, int n_pictures, sib_err *err)
{
    const sib_facts *f = &d->model->facts;
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

static sib_status check_canvas(const sib_diffusion *d, const sib_diffusion_request *r, int n, sib_err *err)
{
    if (!r->canvas) return SIB_OK;
    if (r->n_canvas != n) return sib_fail(err, SIB_EARG, "the first canvas has %d positions, %d ids were given for it", n, r->n_canvas);
    for (int i = 0; i < n; i++)
        if (r->canvas[i] < -1 || r->canvas[i] >= d->model->facts.n_vocab)
            return sib_fail(err, SIB_EARG, "canvas id %d is outside the vocabulary of %d", r->canvas[i], d->model->facts.n_vocab);
    return SIB_OK;
}

static sib_status copy_replay(sib_diffusion *d, const sib_replay *r, sib_err *err)
{
    d->replay = (sib_replay){0};
    if (!r) return SIB_OK;
    size_t width = (size_t)r->width, first = width * (size_t)r->n_canvases, second = r->proposals ? width * (size_t)r->n_proposals : 0;
    d->replayed = malloc((first + second + 1) * sizeof *d->replayed);
    if (!d->replayed) return sib_nomem(err, "recorded draws");
    memcpy(d->replayed, r->canvases, first * sizeof *d->replayed);
    if (second) memcpy(d->replayed + first, r->proposals, second * sizeof *d->replayed);
    d->replay = *r;
    d->replay.canvases = d->replayed;
    d->replay.proposals = second ? d->replayed + first : NULL;
    return SIB_OK;
}

static sib_status start_request(sib_diffusion *d, const sib_diffusion_request *r, sib_err *err)
{
    free_request(d);
    SIB_TRY(copy_replay(d, r->replay, err));
    SIB_TRY(sib_id_set_init(&d->eos, r->eos, r->n_eos, err));
    SIB_TRY(sib_stop_new(&d->stop, r->stop, r->n_stop, err));
    d->text_flags = r->keep_special ? SIB_KEEP_SPECIAL : 0;
    SIB_TRY(sib_detok_new(&d->detok, d->tokenizer, d->text_flags, err));
    d->text_stops = r->n_stop > 0;
    d->frames = r->frames;
    d->pad = r->pad;
    d->n_given = r->canvas ? r->n_canvas : 0;
    if (r->canvas) memcpy(d->given, r->canvas, (size_t)r->n_canvas * sizeof *d->given);
    sib_canvas_source_init(&d->source, &d->params, d->model->facts.n_vocab, r->replay ? &d->replay : NULL);
    return SIB_OK;
}

static sib_status set_pictures(sib_diffusion *d, const sib_gen_picture *pictures, int n, sib_err *err)
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
    free(d->soft);
    free(d->soft_hash);
    d->lane.soft = d->soft = soft;
    d->soft_hash = hash;
    d->lane.n_soft = n;
    return SIB_OK;
}

static sib_status rewind_to(sib_diffusion *d, int length, sib_err *err)
{
    if (length < d->lane.n_done) {
        if (length < d->model->offers.keep->reach(d->model, d->lane.seq)) length = 0; /* a sliding ring has forgotten too much */
        SIB_TRY(d->model->offers.keep->truncate(d->model, d->lane.seq, length, err));
    }
    d->lane.n_done = length;
    return SIB_OK;
}

sib_status sib_diffusion_prompt(sib_diffusion *d, const int32_t *ids, size_t n, const sib_gen_picture *pictures, int n_pictures,
                                const sib_diffusion_request *r, sib_err *err)
{
    SIB_TRY(sib_diffusion_params_check(&r->params, err));
    SIB_TRY(check_prompt(d, ids, n, pictures, n_pictures, err));
    uint64_t room = (uint64_t)d->model->facts.n_ctx - n, budget = r->max_tokens < room ? r->max_tokens : room;
    SIB_TRY(check_canvas(d, r, length_of(d->model, r->params.dialect, (int)n, budget), err));
    d->running = d->begun = false;
    d->params = r->params;
    if (!d->lane.seq) SIB_TRY(d->model->ops->seq_new(d->model, &d->lane.seq, err)); /* an earlier round failed */
    SIB_TRY(start_request(d, r, err));
    SIB_TRY(rewind_to(d, sib_lane_shares(&d->lane, d->soft_hash, ids, (int)n, pictures, n_pictures), err));
    SIB_TRY(set_pictures(d, pictures, n_pictures, err));
    memcpy(d->lane.tokens, ids, n * sizeof *ids);
    d->n_cached = d->lane.n_done;
    d->lane.n_tokens = d->n_prompt = (int)n;
    d->lane.emitted = 0;
    d->lane.budget = budget;
    d->n_canvases = d->n_steps = 0;
    d->n_events = d->next_event = 0;
    d->text.n = 0;
    d->running = true;
    return SIB_OK;
}

/* ---- events -------------------------------------------------------------------------------------- */

static sib_status push_event(sib_diffusion *d, int32_t id, sib_finish finish, sib_err *err)
{
    size_t from = d->text.n;
    if (d->text_stops) {
        SIB_TRY(sib_stop_feed(d->stop, sib_buf_view(&d->piece), &d->text, err));
        if (sib_stop_hit(d->stop) >= 0)
            finish = SIB_FINISH_STOP;
        else if (finish != SIB_FINISH_NONE)
            SIB_TRY(sib_stop_flush(d->stop, &d->text, err));
    } else {
        sib_buf_add(&d->text, d->piece.p ? d->piece.p : "", d->piece.n);
    }
    if (d->text.failed || d->piece.failed) return sib_nomem(err, "text of the answer");
    d->events[d->n_events++] = (struct event){id, from, d->text.n - from, finish, 0};
    if (finish != SIB_FINISH_NONE) d->running = false;
    return SIB_OK;
}

static void clear_events(sib_diffusion *d)
{
    d->n_events = d->next_event = 0;
    d->text.n = 0;
}

/* The canvas's best tokens as text, up to the first end id. */
static sib_status push_frame(sib_diffusion *d, sib_err *err)
{
    const sib_canvas_state *c = &d->canvas;
    size_t n = 0, from = d->text.n;
    while (n < (size_t)c->n && !sib_id_set_has(&d->eos, c->best[n])) n++;
    SIB_TRY(sib_tokenizer_decode(d->tokenizer, c->best, n, d->text_flags, &d->text, err));
    if (d->text.failed) return sib_nomem(err, "text of the canvas");
    d->events[d->n_events++] = (struct event){-1, from, d->text.n - from, SIB_FINISH_NONE, c->step};
    return SIB_OK;
}

/* A settled canvas becomes part of the text and of the timeline. */
static sib_status push_canvas(sib_diffusion *d, sib_err *err)
{
    const sib_canvas_state *c = &d->canvas;
    sib_lane *l = &d->lane;
    for (int i = 0; i < c->n && d->running; i++) {
        bool end = sib_id_set_has(&d->eos, c->best[i]), full = l->budget == 1 || (i == c->n - 1 && l->n_tokens + c->n == d->model->facts.n_ctx);
        sib_finish finish = end ? SIB_FINISH_STOP : full ? SIB_FINISH_LENGTH : SIB_FINISH_NONE;
        d->piece.n = 0;
        if (!end) SIB_TRY(sib_detok_feed(d->detok, c->best[i], &d->piece, err));
        if (finish != SIB_FINISH_NONE) SIB_TRY(sib_detok_flush(d->detok, &d->piece, err));
        SIB_TRY(push_event(d, c->best[i], finish, err));
        l->emitted++;
        l->budget--;
    }
    if (d->running) {
        memcpy(l->tokens + l->n_tokens, c->best, (size_t)c->n * sizeof *c->best);
        l->n_tokens += c->n;
        d->source.position += (uint64_t)c->n;
    }
    d->begun = false;
    return SIB_OK;
}

sib_status sib_diffusion_stop(sib_diffusion *d, sib_finish why, sib_err *err)
{
    if (!d->running) return SIB_OK;
    if (d->n_events == d->next_event) clear_events(d);
    d->piece.n = 0;
    SIB_TRY(sib_detok_flush(d->detok, &d->piece, err));
    return push_event(d, -1, why, err);
}

void sib_diffusion_broken(sib_diffusion *d)
{
    d->model->ops->seq_free(d->model, d->lane.seq);
    d->lane.seq = NULL;
    d->lane.n_done = d->lane.n_tokens = d->lane.n_soft = 0;
    d->running = d->begun = false;
}

bool sib_diffusion_next(sib_diffusion *d, sib_token *out)
{
    if (d->next_event >= d->n_events) return false;
    const struct event *e = &d->events[d->next_event++];
    const char *text = d->text.p ? d->text.p + e->text : "";
    *out = (sib_token){.id = e->id, .text = "", .finish = e->finish};
    if (e->step > 0) {
        out->draft = text;
        out->draft_bytes = e->n_text;
        out->step = e->step;
        out->steps = d->params.steps;
    } else {
        out->text = text;
        out->text_bytes = e->n_text;
    }
    return true;
}

bool sib_diffusion_running(const sib_diffusion *d)
{
    return d->running;
}

bool sib_diffusion_in_prompt(const sib_diffusion *d)
{
    return d->running && d->lane.n_done < d->n_prompt;
}

void sib_diffusion_stats(const sib_diffusion *d, sib_stats *out)
{
    out->prompt_tokens = d->n_prompt;
    out->cached_tokens = d->n_cached;
    out->generated_tokens = (int)d->lane.emitted;
    out->canvases = d->n_canvases;
    out->steps = d->n_steps;
    out->tokens_per_step = d->n_steps > 0 ? (double)d->lane.emitted / d->n_steps : 0;
}

/* ---- rounds ---------------------------------------------------------------------------------------- */

struct sib_diffusion_round {
    sib_model *model;
    int n_lanes, chunk;
    sib_part *parts;       /* [n_lanes] */
    sib_canvas *canvases;  /* [n_lanes] */
    sib_diffusion **who;   /* [n_lanes] of each part or canvas of a call */
    bool *wanted, *ready;  /* [n_lanes] goes on after the step; has nothing to encode in this round */
    sib_soft *soft;        /* [max_rows] */
    int32_t *ids;          /* [2][denoise.max_rows] best, proposal */
    float *values;         /* [2][denoise.max_rows] entropy, confidence */
};

sib_status sib_diffusion_round_new(sib_diffusion_round **out, sib_model *model, int n_lanes, int chunk, sib_err *err)
{
    *out = NULL;
    sib_diffusion_round *r = calloc(1, sizeof *r);
    if (!r) return sib_nomem(err, "round");
    size_t n = (size_t)n_lanes, rows = (size_t)model->offers.denoise->max_rows;
    *r = (sib_diffusion_round){.model = model, .n_lanes = n_lanes, .chunk = chunk > 0 && chunk < model->facts.max_rows ? chunk : model->facts.max_rows};
    r->parts = calloc(n, sizeof *r->parts);
    r->canvases = calloc(n, sizeof *r->canvases);
    r->who = calloc(n, sizeof(sib_diffusion *));
    r->wanted = calloc(2 * n, sizeof *r->wanted);
    r->soft = calloc((size_t)model->facts.max_rows, sizeof *r->soft);
    r->ids = calloc(2 * rows, sizeof *r->ids);
    r->values = calloc(2 * rows, sizeof *r->values);
    if (!r->parts || !r->canvases || !r->who || !r->wanted || !r->soft || !r->ids || !r->values) {
        sib_diffusion_round_free(r);
        return sib_nomem(err, "round");
    }
    r->ready = r->wanted + n;
    *out = r;
    return SIB_OK;
}

void sib_diffusion_round_free(sib_diffusion_round *r)
{
    if (!r) return;
    free(r->parts);
    free(r->canvases);
    free(r->who);
    free(r->wanted);
    free(r->soft);
    free(r->ids);
    free(r->values);
    free(r);
}

static bool encoding(const sib_diffusion *d)
{
    return d->lane.n_done < d->lane.n_tokens;
}

/* One call over the rows that timelines have to encode. */
static sib_status encode(sib_diffusion_round *r, sib_diffusion *const *list, int n, sib_err *err)
{
    int left = r->model->facts.max_rows, waiting = 0, n_parts = 0, n_soft = 0;
    sib_forward_out out;
    for (int i = 0; i < n; i++) waiting += list[i]->running && encoding(list[i]);
    for (int i = 0; i < n; i++) {
        sib_diffusion *d = list[i];
        if (!d->running || !encoding(d)) continue;
        int share = left / waiting > 0 ? left / waiting : 1, rows = left > 0 ? sib_lane_chunk(&d->lane, r->chunk, share, left) : 0;
        waiting--;
        if (rows == 0) continue;
        sib_part *part = &r->parts[n_parts];
        *part = (sib_part){.seq = d->lane.seq, .ids = d->lane.tokens + d->lane.n_done, .n_rows = rows};
        sib_lane_soft(&d->lane, part, r->soft + n_soft, r->model->facts.hidden);
        n_soft += part->n_soft;
        left -= rows;
        r->who[n_parts++] = d;
    }
    if (n_parts == 0) return SIB_OK;
    SIB_TRY(r->model->ops->forward(r->model, r->parts, n_parts, &out, err));
    for (int p = 0; p < n_parts; p++) {
        SIB_TRY(r->model->offers.keep->keep(r->model, r->parts[p].seq, r->parts[p].n_rows, err));
        r->who[p]->lane.n_done += r->parts[p].n_rows;
    }
    return SIB_OK;
}

static sib_status prepare(sib_diffusion *d, sib_canvas *in, sib_err *err)
{
    sib_canvas_state *c = &d->canvas;
    if (!d->begun) {
        SIB_TRY(sib_canvas_begin(c, &d->source, d->n_given > 0 ? d->given : NULL, canvas_length(d), err));
        d->begun = true;
        d->n_given = 0; /* of the first canvas only */
        d->n_canvases++;
    }
    *in = (sib_canvas){.seq = d->lane.seq, .ids = c->ids, .n = c->n, .conditioned = c->step > 0, .t = sib_canvas_temperature(c, &d->params),
                       .second = sib_canvas_second(c, &d->source), .u = c->u};
    return SIB_OK;
}

/* One pass over the canvases who[0 .. n), and what it decides for each. */
static sib_status denoise(sib_diffusion_round *r, int n, sib_err *err)
{
    const sib_denoise_port *port = r->model->offers.denoise;
    int rows = port->max_rows, row = 0;
    bool more = false;
    const sib_denoised out = {r->ids, r->ids + rows, r->values, r->values + rows};
    SIB_TRY(port->step(r->model, r->canvases, n, &out, err));
    for (int p = 0; p < n; row += r->canvases[p++].n) {
        sib_diffusion *d = r->who[p];
        const float *logits = port->logits(r->model) + (size_t)row * (size_t)r->model->facts.n_vocab;
        SIB_TRY(sib_canvas_step(&d->canvas, &d->source, out.best + row, out.proposal + row, out.entropy + row, out.confidence + row, logits, d->pad, err));
        d->n_steps++;
        r->wanted[p] = !d->canvas.settled;
        more |= r->wanted[p];
    }
    if (more) SIB_TRY(port->condition(r->model, r->wanted, NULL, err));
    for (int p = 0; p < n; p++) {
        sib_diffusion *d = r->who[p];
        clear_events(d);
        if (d->frames) SIB_TRY(push_frame(d, err));
        if (d->canvas.settled) SIB_TRY(push_canvas(d, err));
    }
    return SIB_OK;
}

sib_status sib_diffusion_round_step(sib_diffusion_round *r, sib_diffusion *const *list, int n, sib_err *err)
{
    if (n < 1 || n > r->n_lanes) return sib_fail(err, SIB_ECAPACITY, "%d requests in one round, planned are %d", n, r->n_lanes);
    const int max_rows = r->model->offers.denoise->max_rows;
    int n_canvases = 0, rows = 0;
    for (int i = 0; i < n; i++) r->ready[i] = list[i]->running && !encoding(list[i]);
    SIB_TRY(encode(r, list, n, err));
    for (int i = 0; i < n; i++) {
        sib_diffusion *d = list[i];
        if (!r->ready[i]) continue;
        if (rows + (d->begun ? d->canvas.n : canvas_length(d)) > max_rows) {
            SIB_TRY(denoise(r, n_canvases, err));
            n_canvases = rows = 0;
        }
        SIB_TRY(prepare(d, &r->canvases[n_canvases], err));
        rows += r->canvases[n_canvases].n;
        r->who[n_canvases++] = d;
    }
    return n_canvases > 0 ? denoise(r, n_canvases, err) : SIB_OK;
}

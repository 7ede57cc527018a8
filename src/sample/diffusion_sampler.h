/* sample/diffusion_sampler.h - how a canvas settles: schedule, acceptance, renoising, stopping (diffusion_gemma.md 3).
 *
 *   begin    a canvas of random (or given) ids
 *   step     cur = steps .. 1:  T(cur), one pass of the model, a proposal for every position
 *            accepted positions take their proposal, the others fresh random ids
 *   settle   when the best tokens repeat and are sure, or when the steps are over: the canvas's text is the best
 *            token of each position at the last step, never what was proposed
 *
 * Two dialects: "hf" is what transformers does, "mlx" what mlx-vlm does. Random ids come from one of three sources: the
 * position-keyed generator (base/rng.h), MLX's own (dialect mlx), or recorded draws.
 *
 * Used by gen/diffusion.c and tools/golden. Nothing here knows a model. */
#ifndef SIB_SAMPLE_DIFFUSION_SAMPLER_H
#define SIB_SAMPLE_DIFFUSION_SAMPLER_H

#include "base/json.h"
#include "sample/mlx_random.h"

typedef enum sib_dialect { SIB_DIALECT_HF, SIB_DIALECT_MLX } sib_dialect;
typedef enum sib_canvas_sampler { SIB_CANVAS_ENTROPY, SIB_CANVAS_CONFIDENCE } sib_canvas_sampler;

#define SIB_MAX_STEPS 4096

typedef struct sib_diffusion_params {
    sib_dialect dialect;
    sib_canvas_sampler sampler;
    int steps;            /* 1 .. SIB_MAX_STEPS: cap, and length of the schedule             */
    bool tempered;        /* t_min and t_max apply; else every temperature is 1               */
    double t_min, t_max;  /* 0 <= t_min < t_max                                               */
    double entropy_bound; /* above 0, in nat                                                  */
    double threshold;     /* 0 .. 1: confidence sampler                                       */
    bool may_stop;        /* a canvas that is stable and confident ends before the last step  */
    int stability;        /* >= 0: so many earlier best canvases must equal the current one   */
    double confidence;    /* above 0: mean entropy must be below it                           */
    double temperature;   /* second divisor of the proposal; 0: the best token is proposed    */
    uint64_t seed;
} sib_diffusion_params;

/* What generation_config.json (NULL: none) says for a dialect; a missing key or null takes transformers' default. The nested
 * forms linear_temperature_schedule_config and diffusion_stopping_config are read too. In dialect mlx a checkpoint
 * without thresholds does not stop early. */
sib_status sib_diffusion_params_read(sib_diffusion_params *p, sib_dialect dialect, const json_t *config, const char *where, sib_err *err);
/* SIB_EARG with a sentence that names the knob, its value and its range. */
sib_status sib_diffusion_params_check(const sib_diffusion_params *p, sib_err *err);

/* Temperature with `left` steps to go, this one included: t_min + (t_max - t_min) left / steps. */
float sib_diffusion_temperature(const sib_diffusion_params *p, int left);

/* ---- acceptance of one step ------------------------------------------------------------------- */

/* Entropy bound: positions by rising entropy (the lower position first among equals) are accepted while the entropies
 * before them add up to at most `bound`; the surest always is. order: scratch [n]. */
void sib_accept_entropy(bool *accepted, int32_t *order, const float *entropy, int n, float bound);
/* Confidence: of the positions that are not revealed, those at or above the threshold; the surest if there is none
 * (lowest position among equals); all of them on the last step. */
void sib_accept_confidence(bool *accepted, const bool *revealed, const float *confidence, int n, float threshold, bool last);

/* ---- random ids ----------------------------------------------------------------------------------- */

/* Recorded draws in the order drawn; arrays borrowed. Canvases: the first one of a canvas, then one a step. */
typedef struct sib_replay {
    const int32_t *canvases, *proposals; /* [n_canvases][width], [n_proposals][width]; proposals may be NULL: none recorded */
    int n_canvases, n_proposals, width;
} sib_replay;

typedef struct sib_canvas_source {
    const sib_diffusion_params *params;
    int n_vocab;
    const sib_replay *replay; /* NULL: drawn */
    int canvas, proposal;     /* of the replay: next ones */
    sib_mlx_random mlx;
    uint64_t position;        /* emission index of the canvas's first token */
    uint32_t drawn;           /* canvases drawn at this position            */
} sib_canvas_source;

void sib_canvas_source_init(sib_canvas_source *s, const sib_diffusion_params *p, int n_vocab, const sib_replay *replay);

/* ---- one canvas ------------------------------------------------------------------------------------ */

typedef struct sib_canvas_state {
    int n, cap;
    int step;                 /* steps done                                                    */
    bool settled;
    bool stable;              /* settled before the last step                                  */
    int same;                 /* earlier best canvases in a row that equal the current one     */
    int32_t *ids;             /* [cap] the canvas that the next step sees                      */
    int32_t *best;            /* [cap] the text: best tokens of the last step                  */
    int32_t *draft, *noise, *order;
    bool *accepted, *revealed; /* accepted: by the last step                                   */
    double *u;                /* [cap] draws for the next step's proposals                     */
} sib_canvas_state;

sib_status sib_canvas_state_init(sib_canvas_state *c, int cap, sib_err *err);
void sib_canvas_state_deinit(sib_canvas_state *c);

/* A new canvas of n <= cap positions. given: [n] ids that replace random ones where >= 0; NULL: none. SIB_ECAPACITY when the
 * recorded draws are at an end. */
sib_status sib_canvas_begin(sib_canvas_state *c, sib_canvas_source *s, const int32_t *given, int n, sib_err *err);
/* What the next pass is asked for. */
float sib_canvas_temperature(const sib_canvas_state *c, const sib_diffusion_params *p);
/* Second divisor for the device's proposal: 0 when it proposes nothing but the best (greedy, recorded or MLX's draws, no draw
 * at all on the last step of dialect mlx). Fills c->u when it does. */
float sib_canvas_second(sib_canvas_state *c, const sib_canvas_source *s);
/* Takes the pass's results, arrays [n]: proposals and their confidences may be replaced (recorded, or drawn by MLX's rule from logits
 * [n][n_vocab]); decides, renoises, and settles or goes on. pad: an all-padding canvas never counts as stable; -1: none.
 * SIB_EFORMAT: the model's numbers are not finite. */
sib_status sib_canvas_step(sib_canvas_state *c, sib_canvas_source *s, const int32_t *best, int32_t *proposal, const float *entropy,
                           float *confidence, const float *logits, int32_t pad, sib_err *err);

#endif

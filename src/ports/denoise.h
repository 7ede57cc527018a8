/* ports/denoise.h - block diffusion: a model that refines a whole canvas of tokens instead of choosing the next one.
 *
 *   committed positions 0 .. P-1  |  canvas P .. P+n-1     every canvas row sees all of the canvas and, back as far as
 *   (prompt, settled blocks)      |  x x x x x x x x       its layer looks, what is committed
 *
 * step() runs one denoising pass over the canvases of several sequences. Nothing is committed: a settled canvas is
 * committed as any other rows, with forward() and keep(). condition() turns the logits of the last step into what the
 * next step of the same sequences sees of them (self-conditioning). Facts: diffusion_gemma.md 2.5, 2.7, 3.
 *
 * Users: gen/diffusion.c, tools/golden. */
#ifndef SIB_PORTS_DENOISE_H
#define SIB_PORTS_DENOISE_H

#include "ports/model.h"

typedef struct sib_canvas {
    sib_seq *seq;
    const int32_t *ids; /* host [n], 1 <= n <= canvas_length */
    int n;
    bool conditioned;   /* the sequence's last condition() goes in; false: the first step of a canvas */
    float t;            /* divides the logits, above 0 */
    float second;       /* divides them once more for the proposal; 0: the proposal is the best token */
    const double *u;    /* host [n] in [0, 1): draws of the proposals; may be NULL when second is 0 */
} sib_canvas;

/* Of every row of the call, canvas after canvas: host arrays of the caller, [sum of n] (ops.h, sib_choose). best is -1 on a
 * row that is not finite. */
typedef struct sib_denoised {
    int32_t *best, *proposal;
    float *entropy, *confidence;
} sib_denoised;

typedef struct sib_denoise_port {
    int canvas_length;
    int max_rows; /* canvas rows of one call; at least canvas_length */
    /* One pass. A failure leaves the sequences unusable, as a failure of forward() does. */
    sib_status (*step)(sib_model *m, const sib_canvas *canvases, int n, const sib_denoised *out, sib_err *err);
    /* For the canvases i of the last step with wanted[i] (NULL: all); before any other call on the model. logits: device [sum of
     * n][n_vocab] in place of the last step's own, NULL for those. */
    sib_status (*condition)(sib_model *m, const bool *wanted, const float *logits, sib_err *err);
    /* Host [sum of n][n_vocab] of the last step: after the soft cap, before any temperature. */
    const float *(*logits)(sib_model *m);
} sib_denoise_port;

#endif

/* drafters/markov.h - the sequential head of DeepSpec and of the own DSpark: each guess biases the next one.
 *
 *   logits_i = base_i + bias(prev),  token_i = argmax (lowest id on ties),  prev = token_i
 *
 *   plain       bias = w2 w1[prev]
 *   recurrent   s = tanh(s wH + w1[prev] + bH), s_0 = 0;  bias = s wO      (own DSpark, seqHead "rnn")
 *   rank 0      no bias
 *
 * The confidence of a guess is sigmoid(w . [ y_i | w1[prev] ] + b). Base logits stand in f32 here, so the sum is
 * not rounded to bf16 as the reference's is: it can change a guess among near-equals, never a text.
 * Facts: drafters_kv.md 2.5, 2.6, 3.3. Users: deepspec.c, dspark.c. */
#ifndef SIB_DRAFTERS_MARKOV_H
#define SIB_DRAFTERS_MARKOV_H

#include "layers/loader.h"
#include "layers/step.h"

typedef struct sib_markov {
    int rank, width, n_vocab; /* width of y */
    sib_linear w1, w2;        /* table [n_vocab, rank]; [n_vocab, rank]               */
    sib_linear wh, wo;        /* recurrent only: [rank, rank], [n_vocab, rank]         */
    const float *bh;          /* [rank]; NULL: not recurrent                           */
    sib_linear confidence;    /* [1, width + rank] or [1, width]; absent: no such head */
    float confidence_bias;
    bool sees_token; /* confidence reads w1[prev] too */
} sib_markov;

/* tokens and confidence (NULL: not wanted): host [lanes][steps]; base: device [lanes][steps][n_vocab]; y: device
 * [lanes][steps][width]; pending: host [lanes]. */
void sib_markov_walk(const sib_markov *m, const sib_step *st, int32_t *tokens, float *confidence, const float *base,
                     const float *y, const int32_t *pending, int lanes, int steps);

#endif

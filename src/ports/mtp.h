/* ports/mtp.h - the checkpoint's own multi-token-prediction head, a layer beside the trunk with a cache of its own.
 *
 *    row of position p:  (token at p + 1, hidden of p)  ->  hidden that predicts the token at p + 2
 *
 * The first row of a draft takes the target's hidden state after the final norm; the next ones take the pending draft and
 * what the row before gave. The head owns weights and numerics; which rows are true history, which are guesses to be
 * dropped, and what is chained is the drafter's business (glm_moe_dsa.md section 7).
 *
 * Offered only when the checkpoint holds a complete head and the limits asked for it. */
#ifndef SIB_PORTS_MTP_H
#define SIB_PORTS_MTP_H

#include "ports/model.h"

typedef struct sib_mtp_seq sib_mtp_seq; /* the head's cache of one timeline */

/* Rows that continue a timeline: row i becomes its row length + i. */
typedef struct sib_mtp_part {
    sib_mtp_seq *seq;
    const int32_t *ids;  /* host [n_rows]: the token after each row's position */
    const float *hidden; /* device [n_rows][hidden]; may lie in the results of the last step */
    int n_rows;
} sib_mtp_part;

/* Device [all rows][hidden], valid until the port's or the model's next call. */
typedef struct sib_mtp_out {
    const float *out; /* after the head's own norm: what is scored, and chained by default */
    const float *raw; /* before that norm */
} sib_mtp_out;

typedef struct sib_mtp_port {
    sib_status (*seq_new)(sib_model *m, sib_mtp_seq **out, sib_err *err); /* as many as the model has sequences */
    void (*seq_free)(sib_model *m, sib_mtp_seq *s);
    int (*length)(const sib_model *m, const sib_mtp_seq *s);
    /* Appends the rows; parts of one call have different sequences. `out` NULL: only their keys and values are wanted. On
     * failure the sequences keep the rows they had. */
    sib_status (*step)(sib_model *m, const sib_mtp_part *parts, int n_parts, sib_mtp_out *out, sib_err *err);
    /* Drops the rows from `length` on; any length up to now can be reached. */
    sib_status (*truncate)(sib_model *m, sib_mtp_seq *s, int length, sib_err *err);
    /* logits[rows][n_vocab] device of rows of `out`. */
    void (*head)(sib_model *m, float *logits, const float *out, int rows);
    /* Rows first .. first+n-1 as host f32: latent [n][latent_dim] and rotated key [n][rope_dim]; for tests and traces. */
    void (*read)(sib_model *m, const sib_mtp_seq *s, int first, int n, float *latent, float *rope);
} sib_mtp_port;

#endif

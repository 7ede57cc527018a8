/* ports/model.h - what a loop may ask of a model, and nothing about which model it is.
 *
 * A model is weights bound to a device, its offers (NULL = not offered) and a pool of
 * sequences. A forward call takes rows of several sequences at once:
 *
 *    part 0: seq A, 1 row  |a|          rows of a part continue their sequence: row i has
 *    part 1: seq B, 3 rows |b b b|      position length(seq) + i. After the call they are
 *    part 2: seq C, 2 rows |c c|        pending; keep(seq, n) commits the first n of them
 *                                       and forgets the rest, exactly.
 *
 * Any failure of forward leaves the parts' sequences unusable: free them. */
#ifndef SIB_PORTS_MODEL_H
#define SIB_PORTS_MODEL_H

#include "base/arena.h"
#include "base/trace.h"
#include "tensor/dtype.h"

typedef struct sib_model sib_model;
typedef struct sib_seq sib_seq; /* one timeline's state: keys and values, recurrent state */

/* Soft tokens: rows whose embedding is given instead of looked up (pictures). */
typedef struct sib_soft {
    int first, n;          /* rows of the part                                            */
    const float *features; /* device [n][hidden], merged after the embedding scale         */
    bool bidirectional;    /* the rows form one block that sees itself both ways, where the model does that */
    bool everywhere;       /* with bidirectional: on every layer and beyond the window, as transformers' plain forward
                              does for Gemma 4; for comparisons with it */
} sib_soft;

typedef struct sib_part {
    sib_seq *seq;
    const int32_t *ids; /* host [n_rows] */
    int n_rows;
    int n_logits; /* logits are wanted for the last n_logits rows */
    const sib_soft *soft;
    int n_soft;
} sib_part;

typedef struct sib_forward_out {
    const float *hidden; /* device [n_rows][hidden]: after the final norm                        */
    const float *logits; /* host [sum of n_logits][n_vocab], after soft cap, masks not applied   */
} sib_forward_out; /* valid until the model's next call */

/* Facts that loops, drafters and messages need. */
typedef struct sib_facts {
    const char *family; /* "gemma4" */
    int n_vocab, hidden, n_layers;
    int max_positions; /* what the checkpoint was made for */
    int window;        /* of sliding layers; 0: none       */
    int max_rows;      /* rows a forward call takes        */
    int max_logits;    /* logit rows a forward call takes  */
    int n_ctx;         /* positions a sequence can hold    */
    double active_bytes, active_macs; /* packed weights that one decoded token reads, multiply-adds it takes; attention aside */
    float embed_scale; /* factor of the input embeddings, 1 when there is none */
} sib_facts;

/* Committing and rolling back: part of every model. */
typedef struct sib_keep_port {
    /* Commits the first n rows of the pending block, drops the rest. */
    sib_status (*keep)(sib_model *m, sib_seq *seq, int n, sib_err *err);
    /* Goes back to `length` committed positions; SIB_ESTATE when the state no longer reaches that far. */
    sib_status (*truncate)(sib_model *m, sib_seq *seq, int length, sib_err *err);
    /* Smallest length that truncate can reach now. */
    int (*reach)(sib_model *m, const sib_seq *seq);
} sib_keep_port;

/* Residual stream after chosen decoder layers, captured by forward. Index i = output of layer i
 * (0-based); n_layers = after the final norm; -1 = the scaled embeddings. */
typedef struct sib_tap_port {
    sib_status (*select)(sib_model *m, const int *layers, int n, sib_err *err); /* n = 0: none */
    /* Device [n_rows][n*hidden] of the last forward call, features in the order selected. */
    const float *(*rows)(sib_model *m);
} sib_tap_port;

/* Embedding rows and the LM head, for drafters that borrow them. */
typedef struct sib_vocab_port {
    /* y[rows][hidden] device, ids host; `scaled`: times facts.embed_scale as the model itself does. */
    void (*embed)(sib_model *m, float *y, const int32_t *ids, int rows, bool scaled);
    /* logits[rows][n_vocab] device from hidden states after the final norm, soft cap included. */
    void (*head)(sib_model *m, float *logits, const float *hidden, int rows);
} sib_vocab_port;

/* The target's own committed keys and values, for drafters that have none (drafters_kv.md 1). */
typedef enum sib_donor { SIB_DONOR_SLIDING, SIB_DONOR_FULL, SIB_N_DONORS } sib_donor;

typedef struct sib_donor_info {
    int layer; /* index of the donor layer, -1: no such layer */
    int n_heads, n_kv_heads, head_dim, window;
    int rope_pairs;    /* rotated pairs, half-split over head_dim            */
    float rope_theta;
    float rope_factor; /* divides the inverse frequencies */
    bool proportional; /* exponent over head_dim instead of the rotated size  */
} sib_donor_info;

typedef struct sib_donor_port {
    const sib_donor_info *(*info)(sib_model *m, sib_donor which);
    /* out[rows][n_heads][head_dim] = attention of q over committed keys lo <= p < hi of seqs[r]; arrays host. */
    void (*attend)(sib_model *m, sib_donor which, float *out, const float *q, int n_heads, sib_seq *const *seqs,
                   const int32_t *lo, const int32_t *hi, int rows, float scale);
    /* Committed keys and values as host f32 [kv][n][head_dim]; for tests and traces. */
    void (*read)(sib_model *m, sib_donor which, sib_seq *seq, int first, int n, float *k, float *v);
} sib_donor_port;

struct sib_image_port;   /* ports/images.h  */
struct sib_denoise_port; /* ports/denoise.h */
struct sib_mtp_port;     /* ports/mtp.h     */

typedef struct sib_offers {
    const sib_keep_port *keep;
    const sib_tap_port *taps;
    const sib_vocab_port *vocab;
    const sib_donor_port *donors;
    const struct sib_mtp_port *mtp;
    const struct sib_image_port *images;
    const struct sib_denoise_port *denoise;
} sib_offers;

typedef struct sib_model_ops {
    void (*free)(sib_model *m);
    sib_status (*seq_new)(sib_model *m, sib_seq **out, sib_err *err);
    void (*seq_free)(sib_model *m, sib_seq *seq);
    int (*seq_length)(const sib_model *m, const sib_seq *seq); /* committed positions */
    sib_status (*forward)(sib_model *m, const sib_part *parts, int n_parts, sib_forward_out *out, sib_err *err);
} sib_model_ops;

/* Device memory by use, exact; the same figures when a model was opened on a planning device. */
typedef struct sib_memory {
    size_t weights; /* matrices and vectors                     */
    size_t cache;   /* keys, values, recurrent state of all sequences */
    size_t step;    /* activations of the largest call          */
    size_t results; /* hidden states and logits handed out      */
    size_t pictures; /* work on the largest picture, taken when the first one comes */
} sib_memory;

/* First member of every family's model struct. */
struct sib_model {
    const sib_model_ops *ops;
    sib_offers offers;
    sib_facts facts;
    sib_memory memory;
    sib_trace trace;
    struct sib_device *device;
};

/* What to load of the checkpoint's own draft head, where it has one (ports/mtp.h). */
typedef enum sib_mtp_use {
    SIB_MTP_NONE,
    SIB_MTP_DENSE,  /* its attention sees all its rows                              */
    SIB_MTP_INDEXED /* rows beyond index_topk see what the head's own indexer picks */
} sib_mtp_use;

/* Sizes fixed when a model is opened; memory is planned from them. */
typedef struct sib_model_limits {
    int n_ctx;      /* positions a sequence; 0: the model's own maximum, at most 8192        */
    int n_seqs;     /* sequences at once, >= 1                                               */
    int max_rows;   /* rows of a forward call; 0: 512                                        */
    int max_logits; /* logit rows of a forward call; 0: n_seqs * max_block                   */
    int max_block;  /* largest block that may be rolled back (1 + draft length); 0: 16       */
    sib_mtp_use mtp;
} sib_model_limits;

#endif

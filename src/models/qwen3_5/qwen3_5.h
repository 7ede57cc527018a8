/* models/qwen3_5/qwen3_5.h - the Qwen3.5 family (3.5, 3.6, 3.8; dense and with experts), text side.
 *
 * Private to the folder. Facts: MODEL.md beside this file; qwen3_5.md sections 1-4.
 *
 * A layer is either gated full attention, with keys and values in pages, or a gated delta rule,
 * with a state of constant size. A sequence holds two copies of each state and the inputs of the
 * last block, so that a block can be kept in part (state.c). */
#ifndef SIB_MODELS_QWEN3_5_H
#define SIB_MODELS_QWEN3_5_H

#include "layers/qwen_layer.h"
#include "models/family.h"
#include "ports/model.h"

typedef struct qwen3_5_config {
    sib_qwen_shape shape;
    int n_layers;
    int n_k_heads, n_v_heads, k_dim, v_dim, taps; /* of linear layers */
    bool *full;                                   /* [n_layers]       */
} qwen3_5_config;

/* Reads the text part of config.json. */
sib_status qwen3_5_config_read(qwen3_5_config *c, const json_t *root, sib_err *err);
void qwen3_5_config_deinit(qwen3_5_config *c);

typedef struct qwen3_5_layer {
    bool full;
    int index; /* among the layers of its kind */
    const float *in_norm, *post_norm; /* [hidden] */
    sib_qwen_attention attention;     /* full     */
    sib_linear qkv, z, b, a;          /* linear: [conv_dim, hidden], [n_v_heads * v_dim, hidden], [n_v_heads, hidden] x2 */
    sib_linear out;                   /* [hidden, n_v_heads * v_dim] */
    sib_delta delta;
    sib_qwen_ffn ffn;
} qwen3_5_layer;

typedef struct qwen3_5 {
    sib_model model; /* first */
    qwen3_5_config cfg;
    sib_weights weights;
    char root[64];           /* prefix of text tensors: "ROOT.layers.0..." */
    float norm_add;          /* 1: the file stores norms zero-centred      */
    sib_linear embed, lm_head; /* lm_head.w NULL: tied */
    const float *final_norm;
    qwen3_5_layer *layers;
    int n_full, n_linear;

    sib_model_limits limits;
    sib_kv_layout *layout; /* of the full layers */
    sib_kv_pool *pool;
    float *states;      /* device [n_seqs][slot_floats] */
    size_t slot_floats, state_floats, conv_floats; /* state_floats: conv rows, then the recurrent state */
    bool *slot_used;    /* [n_seqs] */
    sib_arena arena;
    float *hidden, *logits, *taps; /* device results of the last call */
    int tap_layers[16], n_taps;
    /* host workspace of a call, sized by max_rows and n_seqs */
    int32_t *pos, *lo, *hi, *ids;
    sib_span *spans;
    sib_delta_span *delta_spans;
    sib_kv_seq **seqs;
} qwen3_5;

struct sib_seq {
    sib_kv_seq *kv; /* its length and pending rows are the sequence's */
    int slot;
    int32_t position_offset; /* added to a row's index for rotation; pictures move it (qwen3_5.md 5) */
    int front;               /* state copy of the committed length; the other one holds the state at `base` */
    int base, n_recorded;    /* inputs of positions base .. base + n_recorded - 1 are recorded; 0: none, and no state at base */
};

sib_status qwen3_5_weights_load(qwen3_5 *m, sib_loader *l, sib_err *err);

/* logits[rows][n_vocab] of hidden states after the final norm. */
void qwen3_5_head(const qwen3_5 *m, sib_device *dev, float *logits, const float *hidden, int rows);

/* The forward pass on any device; parts with seq NULL stand for fresh sequences (planning). */
sib_status qwen3_5_forward_on(qwen3_5 *m, sib_device *dev, sib_arena *arena, const sib_part *parts, int n_parts,
                              sib_forward_out *out, sib_err *err);

/* ---- recurrent state (state.c) ---- */

/* Sizes of a slot from the layers and limits; then the states of all sequences. */
void qwen3_5_states_plan(qwen3_5 *m);
/* State copies of linear layer `index`: from `committed` positions in copy `from` into the other one. */
sib_delta_span qwen3_5_state_span(const qwen3_5 *m, const sib_seq *s, int index, int from, int committed);
/* Records the inputs of a block that may be kept in part. */
void qwen3_5_record(const qwen3_5 *m, sib_device *dev, const sib_seq *s, int index, const float *u, const float *a, const float *b, int rows);

sib_status qwen3_5_keep(qwen3_5 *m, sib_seq *s, int n, sib_err *err);
sib_status qwen3_5_truncate(qwen3_5 *m, sib_seq *s, int length, sib_err *err);
int qwen3_5_reach(const sib_seq *s);

#endif

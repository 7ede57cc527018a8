/* drafters/block.h - what DeepSpec, DFlash and the own DSpark share: a transformer that drafts a block at once.
 *
 *   taps of committed target rows --fc, norm--> c --k, v of every layer--> context cache (grows, never drafts)
 *
 *   block     [ pending | mask | mask | mask ]    rows at positions P, P + 1, ...; P = context length
 *   layer     r = h;  x = norm(h);  x = attention over context and block;  h = r + x
 *             r = h;  x = norm(h);  x = MLP(x);                             h = r + x
 *   head      of the rows, by the drafter
 *
 * The block's own keys and values are pending rows of the cache while the round is computed and are dropped
 * with it: a rejected draft leaves nothing behind. Rows of several requests go through the network
 * together, each with the bits it has alone (ops.h).
 *
 *                      norm of outputs   q, k norm   rotation       mask                  two-tap conv
 *   DeepSpec Gemma     yes               yes         proportional   none                  no
 *   DeepSpec Qwen3     no                yes         all pairs      none                  no
 *   DFlash 1 / 2       no                yes         all pairs      per layer, window     2
 *   own DSpark         no                no          none           none                  no
 *
 * Facts: drafters_kv.md 2, 3; dflash2.md. Users: deepspec.c, dflash2.c, dspark.c; tools/golden through the trace. */
#ifndef SIB_DRAFTERS_BLOCK_H
#define SIB_DRAFTERS_BLOCK_H

#include "drafters/drafter.h"
#include "kv/cache.h"
#include "layers/step.h"

#define SIB_BLOCK_LAYERS 64 /* of a drafter */
#define SIB_BLOCK_ROWS   64 /* of a request in a round */

/* y[t] = (base[0] + d[0]) x[t] + (base[1] + d[1]) x[t - 1], coefficients d predicted per group (dflash2.md 7.1). */
typedef struct sib_block_conv {
    const float *base; /* device [2 stages][2 taps][hidden]; NULL: no convolution */
    sib_linear kernel; /* [2 * 2 * hidden / group, hidden]   */
} sib_block_conv;

typedef struct sib_block_layer {
    const float *in_norm, *mid_norm;             /* [hidden] before attention and before the MLP      */
    const float *post_attn_norm, *post_ffn_norm; /* [hidden] of their outputs; NULL: none              */
    const float *q_norm, *k_norm;                /* [head_dim]; NULL: none                             */
    sib_linear q, k, v, o;                       /* v absent: V is the raw K projection, normed without weight */
    sib_linear gate, up, down;
    sib_block_conv attn_conv, mlp_conv;
    float scalar; /* multiplies the layer's output       */
    int window;   /* newest positions a row sees; 0: all */
    bool causal;  /* inside the block                     */
} sib_block_layer;

/* Rows of one pass: the parts follow each other, one a request. */
typedef struct sib_block_rows {
    int n, n_spans;
    sib_span *spans;
    sib_kv_seq **seqs; /* [n_spans] */
    int32_t *pos;      /* [n] absolute position                 */
    int32_t *in_block; /* [n] index of the row inside its part  */
    int32_t *lo, *hi;  /* [n] workspace of attention            */
    float *cs;         /* device rotation angles, NULL: none    */
} sib_block_rows;

typedef struct sib_block sib_block;

/* What differs between the kinds. */
typedef struct sib_block_kind {
    const char *kind;  /* "deepspec"                */
    const char *label; /* "DeepSpec", for sentences */
    size_t bytes;      /* of the struct that begins with sib_block */
    /* Fills the sizes of the block and its needs. */
    sib_status (*read_config)(sib_block *b, const json_t *config, const sib_drafter_options *o, sib_err *err);
    sib_status (*load)(sib_block *b, sib_loader *l, const sib_drafter_options *o, sib_err *err);
    /* Drafts for the requests in b->lanes, whose rows are r. Runs on the planning device too. */
    void (*draft)(sib_block *b, const sib_step *st, sib_block_rows *r);
} sib_block_kind;

struct sib_block {
    sib_drafter base;    /* first */
    sib_drafter_ops ops; /* base.ops points here */
    const sib_block_kind *how;
    sib_device *dev;
    sib_model *target;
    sib_needs needs;
    int tap_layers[SIB_MAX_TAPS];

    /* sizes, from the config */
    int hidden, ffn, n_heads, n_kv_heads, head_dim, n_layers, n_vocab, mask_id;
    int block;            /* rows of a request at most                                   */
    bool variable_block;  /* the block is one row longer than the draft asked for; else always whole */
    bool context_in_norm; /* context rows pass each layer's in_norm (own DSpark)         */
    float eps, scale;
    sib_act act;
    int conv_group;
    int n_pairs;      /* rotated pairs; 0: no rotation      */
    bool interleaved; /* pairs (2i, 2i + 1) instead of halves */
    double theta;

    /* weights */
    sib_linear fc;            /* [hidden, n_taps * target hidden] */
    const float *hidden_norm; /* [hidden]                        */
    const float *norm;        /* [hidden] of the block's rows    */
    sib_block_layer layers[SIB_BLOCK_LAYERS];
    sib_rope rope;
    const float *inv_freq;
    sib_weights weights;

    /* memory, by sib_block_open */
    int n_seqs;
    sib_kv_layout *layout;
    sib_kv_pool *pool;
    sib_arena arena;
    float *taps; /* device [context rows][n_taps * target hidden] */
    sib_block_rows rows;
    int32_t *ids;        /* host [n_seqs * block] inputs or drafts of all rows */
    float *confidence;   /* host [n_seqs * block]                              */
    sib_propose **lanes; /* [n_lanes] requests of this round, one a span       */
    int n_lanes;
    sib_trace trace;
};

/* Opens any kind: config, check against the target, weights, memory, taps selected at the target. */
sib_status sib_block_open(sib_drafter **out, const sib_block_kind *how, sib_loader *l, sib_model *target,
                          const sib_drafter_options *o, sib_err *err);
/* What the config demands, without weights. */
sib_status sib_block_needs(const sib_block_kind *how, sib_needs *out, int taps[SIB_MAX_TAPS], const json_t *config,
                           sib_err *err);

/* ---- for the kinds ----------------------------------------------------------------------------- */

/* Reads an integer in [lo, hi]; `must`: absence is an error. */
sib_status sib_block_int(const json_t *o, const char *where, const char *key, int64_t lo, int64_t hi, bool must,
                         int *out, sib_err *err);
/* An array of layer indices in [lo, hi] into tap_layers and needs; `rising`: strictly increasing. */
sib_status sib_block_taps(sib_block *b, const json_t *list, const char *where, const char *key, int lo, int hi,
                          bool rising, sib_err *err);
/* Geometry that the cache can hold; call at the end of read_config. */
sib_status sib_block_check(const sib_block *b, const char *where, sib_err *err);

/* fc, norms and layers of a Hugging Face checkpoint: ROOTlayers.I.self_attn.q_proj ... `bits`: as sib_load_linear_bits.
 * `gemma`: output norms and scalar, V from K; else Qwen3 names, and convolutions when conv_group is set. */
sib_status sib_block_load_layers(sib_block *b, sib_loader *l, const char *root, int bits, bool gemma, sib_err *err);

/* h [rows][hidden] through all layers. */
void sib_block_forward(sib_block *b, const sib_step *st, float *h, sib_block_rows *r);

/* Requests whose logits fit into memory together. */
int sib_block_group(const sib_block *b, int steps);

/* First index i >= first of n confidences below its threshold, else n. Thresholds beyond n_thresholds are `rest`. */
int sib_confident_length(const float *confidence, int n, int first, const float *thresholds, int n_thresholds,
                         float rest);

/* Values go to the trace under a formatted name; formats only when somebody listens. */
void sib_block_stage(const sib_step *st, const float *values, int rows, int n, const char *fmt, ...) SIB_PRINTF(5, 6);

/* The same for ids, of the first request only. */
void sib_block_stage_ids(const sib_step *st, const char *name, const int32_t *ids, int rows);

/* ---- for tests and tools -------------------------------------------------------------------------- */

/* Stages: context.fc, context.hidden_norm, context.layer.I.* of rows that enter the context; draft.* of a round. */
void sib_block_trace(sib_drafter *d, sib_trace trace);
/* Context keys and values of a layer as host f32 [kv][n][head_dim]; first counts from the first row known. */
void sib_block_read(sib_drafter *d, const sib_draft_state *s, int layer, int first, int n, float *k, float *v);
int sib_block_context(const sib_draft_state *s); /* rows held */

#endif

/* tools/mkmodel.c - writes a random checkpoint of a known shape, for measuring speed.
 *
 *     build/mkmodel gemma4-26b --bits 4 --group 64 --layers 6 /tmp/g26
 *
 * The result is a folder in MLX's layout (names: gemma4.md 3, diffusion_gemma.md 2.2, qwen3_5.md 3,
 * glm_moe_dsa.md 6; packing: formats.md B.1) with a byte-level tokenizer of the vocabulary's size, a plain
 * chat template and a generation_config, so that every command runs on it. Values are drawn, not
 * quantized: random codes with scales near sqrt(12 / in) / 2^bits and biases that centre them, which keeps
 * activations near one. The same shape, options and seed give the same bytes; a tensor's values
 * depend on the seed and its name only, so a model cut by --layers is the beginning of the whole one. */
#include "artifacts/safetensors.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "tensor/matrix.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define SHARD_BYTES      ((uint64_t)5 << 30) /* MLX's */
#define FIRST_BYTE_TOKEN 512                 /* id of byte 0 in the tokenizer */

/* ---- shapes ----------------------------------------------------------------------------------- */

typedef enum family { GEMMA4, GEMMA4_UNIFIED, DIFFUSION, QWEN, GLM } family;

typedef struct shape {
    const char *name, *says;
    family family;
    int layers, hidden, ffn, heads, kv, kv_full, vocab, window, context;
    int experts, expert_ffn; /* 0: no mixture */
    int ple, kv_shared;      /* width of the per-layer inputs; layers at the end without keys of their own */
    bool k_is_v, small_tower, see_pictures; /* see_pictures: use_bidirectional_attention "vision" */
} shape;

static const shape shapes[] = {
    {"gemma4-d", "18 layers of 2048, vocabulary 32768", GEMMA4, 18, 2048, 8192, 8, 4, 1, 32768, 512, 131072,
     .k_is_v = true, .small_tower = true},
    {"gemma4-moe", "6 layers shaped like 26B-A4B, vocabulary 32768", GEMMA4, 6, 2816, 2112, 16, 8, 2, 32768, 1024,
     262144, .experts = 128, .expert_ffn = 704, .k_is_v = true, .see_pictures = true},
    {"gemma4-e4b", "Gemma 4 E4B", GEMMA4, 42, 2560, 10240, 8, 2, 2, 262144, 512, 131072, .ple = 256, .kv_shared = 18,
     .small_tower = true},
    {"gemma4-12b", "Gemma 4 12B unified", GEMMA4_UNIFIED, 48, 3840, 15360, 16, 8, 1, 262144, 1024, 262144,
     .k_is_v = true, .see_pictures = true},
    {"gemma4-26b", "Gemma 4 26B-A4B", GEMMA4, 30, 2816, 2112, 16, 8, 2, 262144, 1024, 262144, .experts = 128,
     .expert_ffn = 704, .k_is_v = true, .see_pictures = true},
    {"gemma4-31b", "Gemma 4 31B", GEMMA4, 60, 5376, 21504, 32, 16, 4, 262144, 1024, 262144, .k_is_v = true,
     .see_pictures = true},
    {"diffusion-gemma", "DiffusionGemma 26B-A4B", DIFFUSION, 30, 2816, 2112, 16, 8, 2, 262144, 1024, 262144,
     .experts = 128, .expert_ffn = 704, .k_is_v = true, .see_pictures = true},
    {"qwen3_5-4b", "Qwen3.5 4B, text", QWEN, 32, 2560, 9216, 16, 4, 4, 248320, 0, 262144, .experts = 0},
    {"glm-tiny", "8 layers in the manner of GLM-5.2, vocabulary 32768", GLM, 8, 1024, 3072, 16, 16, 16, 32768, 0,
     131072, .experts = 64, .expert_ffn = 512},
};

enum { HEAD = 256, FULL_HEAD = 512, TOP_K = 8 };                                     /* Gemma 4 */
enum { QWEN_KEY_HEADS = 16, QWEN_VALUE_HEADS = 32, QWEN_HEAD = 128, QWEN_CONV = 4 }; /* linear attention */
enum {
    Q_LORA = 768,
    KV_LORA = 512,
    NOPE = 192,
    ROPE = 64,
    VALUE = 256,
    INDEX_HEADS = 8,
    INDEX_HEAD = 128,
    INDEX_TOP_K = 256,
    DENSE = 2
};

typedef struct options {
    const char *out;
    int bits, group, layers;
    uint64_t seed;
    bool vision;
} options;

/* Ids of the special tokens; the last three only with pictures. */
enum { PAD, EOS, BOS, TURN, END_OF_TURN, BEGIN_IMAGE, IMAGE, END_IMAGE, N_SPECIAL };
static const char *const special_text[N_SPECIAL] = {"<pad>",   "<eos>",    "<bos>",     "<|turn>",
                                                    "<turn|>", "<|image>", "<|image|>", "<image|>"};

static void special_ids(const shape *s, int ids[N_SPECIAL])
{
    static const int small[N_SPECIAL] = {0, 1, 2, 105, 106, 110, 111, 112},
                     gemma[N_SPECIAL] = {0, 1, 2, 105, 106, 255999, 258880, 258882},
                     qwen[N_SPECIAL] = {0, 248044, 2, 248045, 248046, 248053, 248056, 248054};
    memcpy(ids, s->family == QWEN ? qwen : s->vocab == 262144 ? gemma : small, sizeof small);
}

/* ---- the plan: every tensor with its values ------------------------------------------------------ */

typedef enum fill {
    CONSTANT, /* a */
    UNIFORM,  /* in (-a, a) */
    CODES,    /* random bits */
    SCALES,   /* in (0.75 a, 1.25 a) */
    BIASES,   /* -b * the scale at the same place: the same draws as SCALES */
    LOGS      /* log of a uniform in (1, a) */
} fill;

typedef struct item {
    char *name;
    uint64_t key; /* of the draws: the module's name */
    sib_dtype dtype;
    int rank;
    int64_t shape[4];
    fill fill;
    float a, b;
    uint64_t bytes;
} item;

typedef struct plan {
    item *v;
    size_t n, cap;
    int bits, group;
    json_t *quantization; /* MLX's settings; modules that differ are added to it */
    bool failed;          /* no memory */
} plan;

static uint64_t key_of(const char *module, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)module[i]) * 0x100000001b3u;
    return h;
}

/* Adds MODULE + suffix with dimensions d (the first 0 ends them; none is a scalar). */
static void add(plan *p, const char *module, const char *suffix, sib_dtype dtype, const int64_t d[4], fill f, double a,
                double b)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 256;
        item *v = realloc(p->v, cap * sizeof *v);
        if (!v) {
            p->failed = true;
            return;
        }
        p->v = v;
        p->cap = cap;
    }
    sib_buf name = {0};
    sib_buf_addf(&name, "%s%s", module, suffix);
    if (name.failed) {
        p->failed = true;
        return;
    }
    item *t = &p->v[p->n++];
    *t = (item){
        .name = name.p, .key = key_of(module, strlen(module)), .dtype = dtype, .fill = f, .a = (float)a, .b = (float)b};
    t->bytes = (uint64_t)sib_dtype_bits(dtype) / 8;
    for (; t->rank < 4 && d[t->rank]; t->rank++) t->bytes *= (uint64_t)(t->shape[t->rank] = d[t->rank]);
}

static void vector(plan *p, const char *name, int64_t n, double value)
{
    add(p, name, "", SIB_BF16, (const int64_t[4]){n}, CONSTANT, value, 0);
}

/* [experts, out, in] in bf16; experts 0: [out, in]. */
static void plain_matrix(plan *p, const char *module, int64_t experts, int64_t out, int64_t in)
{
    const int64_t flat[4] = {out, in}, stack[4] = {experts, out, in};
    add(p, module, ".weight", SIB_BF16, experts ? stack : flat, UNIFORM, sqrt(3.0 / (double)in), 0);
}

/* The same in `bits` bits. A group that does not divide `in` gives way to the largest smaller one that
 * does; what no group divides stays bf16, as in MLX. */
static void matrix_of_bits(plan *p, const char *module, int64_t experts, int64_t out, int64_t in, int bits, int group)
{
    while (group >= 32 && in % group) group /= 2;
    if (bits == 16 || group < 32) {
        plain_matrix(p, module, experts, out, in);
        return;
    }
    const int64_t words = in * bits / 32, groups = in / group;
    const int64_t w[2][4] = {{out, words}, {experts, out, words}}, g[2][4] = {{out, groups}, {experts, out, groups}};
    double scale = sqrt(12.0 / (double)in) / (1 << bits);
    add(p, module, ".weight", SIB_U32, w[experts > 0], CODES, 0, 0);
    add(p, module, ".scales", SIB_BF16, g[experts > 0], SCALES, scale, 0);
    add(p, module, ".biases", SIB_BF16, g[experts > 0], BIASES, scale, ((1 << bits) - 1) / 2.0);
    if (bits != p->bits || group != p->group)
        p->failed |= json_object_set_new(p->quantization, module,
                                         json_pack("{s:i, s:i}", "group_size", group, "bits", bits)) != 0;
}

static void matrix(plan *p, const char *module, int64_t experts, int64_t out, int64_t in)
{
    matrix_of_bits(p, module, experts, out, in, p->bits, p->group);
}

/* prefix + suffix in one of a few buffers that take turns. */
static const char *at(const char *prefix, const char *suffix)
{
    static char ring[4][256];
    static unsigned turn;
    char *z = ring[turn++ % 4];
    (void)snprintf(z, sizeof ring[0], "%s%s", prefix, suffix);
    return z;
}

static void glu(plan *p, const char *prefix, int64_t hidden, int64_t ffn)
{
    matrix(p, at(prefix, "gate_proj"), 0, ffn, hidden);
    matrix(p, at(prefix, "up_proj"), 0, ffn, hidden);
    matrix(p, at(prefix, "down_proj"), 0, hidden, ffn);
}

static void expert_glu(plan *p, const char *prefix, int64_t experts, int64_t hidden, int64_t ffn)
{
    matrix(p, at(prefix, "gate_proj"), experts, ffn, hidden);
    matrix(p, at(prefix, "up_proj"), experts, ffn, hidden);
    matrix(p, at(prefix, "down_proj"), experts, hidden, ffn);
}

/* ---- Gemma 4 and DiffusionGemma ---------------------------------------------------------------------- */

static bool is_full(int layer, int layers)
{
    return (layer + 1) % 6 == 0 || layer == layers - 1;
}

/* Layers that borrow keys keep their share of a cut model, and a full layer to borrow from. */
static int shared_layers(const shape *s, int layers)
{
    int n = s->kv_shared * layers / s->layers;
    return layers - n >= 6 ? n : layers > 6 ? layers - 6 : 0;
}

static void gemma_attention(plan *p, const shape *s, const char *prefix, bool full, bool shared)
{
    int64_t head = full ? FULL_HEAD : HEAD, kv = (full ? s->kv_full : s->kv) * head;
    matrix(p, at(prefix, "q_proj"), 0, s->heads * head, s->hidden);
    vector(p, at(prefix, "q_norm.weight"), head, 1);
    if (!shared) {
        matrix(p, at(prefix, "k_proj"), 0, kv, s->hidden);
        vector(p, at(prefix, "k_norm.weight"), head, 1);
    }
    if (!shared && !(full && s->k_is_v)) matrix(p, at(prefix, "v_proj"), 0, kv, s->hidden);
    matrix(p, at(prefix, "o_proj"), 0, s->hidden, s->heads * head);
}

static void gemma_layer(plan *p, const shape *s, const char *prefix, bool full, bool shared)
{
    static const char *const norms[] = {"input_layernorm.weight",
                                        "post_attention_layernorm.weight",
                                        "pre_feedforward_layernorm.weight",
                                        "post_feedforward_layernorm.weight",
                                        "post_feedforward_layernorm_1.weight",
                                        "post_feedforward_layernorm_2.weight",
                                        "pre_feedforward_layernorm_2.weight"};
    for (int i = 0; i < (s->experts ? 7 : 4); i++) vector(p, at(prefix, norms[i]), s->hidden, 1);
    vector(p, at(prefix, "layer_scalar"), 1, 1);
    char inner[200];
    (void)snprintf(inner, sizeof inner, "%sself_attn.", prefix);
    gemma_attention(p, s, inner, full, shared);
    (void)snprintf(inner, sizeof inner, "%smlp.", prefix);
    glu(p, inner, s->hidden, s->ffn);
    if (s->ple) {
        matrix(p, at(prefix, "per_layer_input_gate"), 0, s->ple, s->hidden);
        matrix(p, at(prefix, "per_layer_projection"), 0, s->hidden, s->ple);
        vector(p, at(prefix, "post_per_layer_input_norm.weight"), s->hidden, 1);
    }
    if (!s->experts) return;
    matrix_of_bits(p, at(prefix, "router.proj"), 0, s->experts, s->hidden, p->bits == 16 ? 16 : 8, 64);
    vector(p, at(prefix, "router.scale"), s->hidden, 1);
    vector(p, at(prefix, "router.per_expert_scale"), s->experts, 1);
    if (s->family == DIFFUSION) {
        matrix(p, at(prefix, "experts.gate_up_proj"), s->experts, 2 * s->expert_ffn, s->hidden);
        matrix(p, at(prefix, "experts.down_proj"), s->experts, s->hidden, s->expert_ffn);
    } else {
        (void)snprintf(inner, sizeof inner, "%sexperts.switch_glu.", prefix);
        expert_glu(p, inner, s->experts, s->hidden, s->expert_ffn);
    }
}

static void gemma_text(plan *p, const shape *s, int layers, const char *root)
{
    char prefix[128];
    matrix(p, at(root, "embed_tokens"), 0, s->vocab, s->hidden);
    if (s->ple) {
        matrix(p, at(root, "embed_tokens_per_layer"), 0, s->vocab, (int64_t)layers * s->ple);
        matrix(p, at(root, "per_layer_model_projection"), 0, (int64_t)layers * s->ple, s->hidden);
        vector(p, at(root, "per_layer_projection_norm.weight"), s->ple, 1);
    }
    for (int i = 0; i < layers; i++) {
        (void)snprintf(prefix, sizeof prefix, "%slayers.%d.", root, i);
        gemma_layer(p, s, prefix, is_full(i, layers), i >= layers - shared_layers(s, layers));
    }
    vector(p, at(root, "norm.weight"), s->hidden, 1);
}

/* Vision tower of E4B (768 x 16, clipped linears) or of 26B and 31B (1152 x 27); always bf16. */
static void gemma_tower(plan *p, bool small, const char *root)
{
    static const char *const norms[] = {"input_layernorm.weight", "post_attention_layernorm.weight",
                                        "pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"};
    static const char *const linears[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                          "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                          "mlp.down_proj"};
    static const char *const bounds[] = {".input_min", ".input_max", ".output_min", ".output_max"};
    int64_t hidden = small ? 768 : 1152, ffn = small ? 3072 : 4304, head = small ? 64 : 72;
    plain_matrix(p, at(root, "patch_embedder.input_proj"), 0, hidden, 768);
    add(p, at(root, "patch_embedder.position_embedding_table"), "", SIB_BF16, (const int64_t[4]){2, 10240, hidden},
        UNIFORM, 0.05, 0);
    for (int i = 0; i < (small ? 16 : 27); i++) {
        char prefix[128], module[200];
        (void)snprintf(prefix, sizeof prefix, "%sencoder.layers.%d.", root, i);
        for (size_t k = 0; k < SIB_COUNT(norms); k++) vector(p, at(prefix, norms[k]), hidden, 1);
        vector(p, at(prefix, "self_attn.q_norm.weight"), head, 1);
        vector(p, at(prefix, "self_attn.k_norm.weight"), head, 1);
        for (size_t k = 0; k < SIB_COUNT(linears); k++) {
            (void)snprintf(module, sizeof module, "%s%s", prefix, linears[k]);
            plain_matrix(p, at(module, ".linear"), 0, k == 4 || k == 5 ? ffn : hidden, k == 6 ? ffn : hidden);
            for (int b = 0; small && b < 4; b++)
                add(p, module, bounds[b], SIB_BF16, (const int64_t[4]){0}, CONSTANT, b % 2 ? 1000 : -1000, 0);
        }
    }
    if (!small) {
        vector(p, at(root, "std_bias"), hidden, 0);
        vector(p, at(root, "std_scale"), hidden, 1);
    }
}

/* The 12B model has no tower: patches of 48 x 48 pixels go through one matrix. */
static void unified_embedder(plan *p, int64_t hidden)
{
    static const struct {
        const char *name;
        int64_t n;
    } norms[] = {
        {"vision_embedder.patch_ln1", 6912}, {"vision_embedder.patch_ln2", 0}, {"vision_embedder.pos_norm", 0}};
    for (size_t i = 0; i < SIB_COUNT(norms); i++) {
        int64_t n = norms[i].n ? norms[i].n : hidden;
        vector(p, at(norms[i].name, ".weight"), n, 1);
        vector(p, at(norms[i].name, ".bias"), n, 0);
    }
    plain_matrix(p, "vision_embedder.patch_dense", 0, hidden, 6912);
    vector(p, "vision_embedder.patch_dense.bias", hidden, 0);
    add(p, "vision_embedder.pos_embedding", "", SIB_BF16, (const int64_t[4]){1120, 2, hidden}, UNIFORM, 0.05, 0);
    plain_matrix(p, "embed_vision.embedding_projection", 0, hidden, hidden);
}

static void gemma(plan *p, const shape *s, const options *o)
{
    if (s->family != DIFFUSION) {
        gemma_text(p, s, o->layers, "language_model.model.");
        if (o->vision && s->family == GEMMA4_UNIFIED) {
            unified_embedder(p, s->hidden);
        } else if (o->vision) {
            gemma_tower(p, s->small_tower, "vision_tower.");
            plain_matrix(p, "embed_vision.embedding_projection", 0, s->hidden, s->small_tower ? 768 : 1152);
        }
        return;
    }
    gemma_text(p, s, o->layers, "model.decoder.");
    vector(p, "model.decoder.self_conditioning.pre_norm.weight", s->hidden, 1);
    glu(p, "model.decoder.self_conditioning.", s->hidden, s->ffn);
    for (int i = 0; i < o->layers; i++) {
        char name[128];
        (void)snprintf(name, sizeof name, "model.encoder.language_model.layers.%d.layer_scalar", i);
        vector(p, name, 1, 1);
    }
    if (!o->vision) return;
    gemma_tower(p, false, "model.encoder.vision_tower.");
    matrix(p, "model.encoder.embed_vision.embedding_projection", 0, s->hidden, 1152);
}

static json_t *layer_list(int layers, const char *full, const char *other, int every)
{
    json_t *list = json_array();
    for (int i = 0; i < layers; i++) {
        bool is = every == 6 ? is_full(i, layers) : (i + 1) % every == 0;
        (void)json_array_append_new(list, json_string(is ? full : other));
    }
    return list;
}

static json_t *gemma_text_config(const shape *s, int layers)
{
    static const char *const types[] = {
        [GEMMA4] = "gemma4_text", [GEMMA4_UNIFIED] = "gemma4_unified_text", [DIFFUSION] = "diffusion_gemma_text"};
    json_t *t = json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:b, s:f, s:f, s:s, s:i, s:i, s:i, s:b}",
        "model_type", types[s->family], "hidden_size", s->hidden, "intermediate_size", s->ffn, "num_hidden_layers",
        layers, "num_attention_heads", s->heads, "num_key_value_heads", s->kv, "head_dim", HEAD, "global_head_dim",
        FULL_HEAD, "vocab_size", s->vocab, "sliding_window", s->window, "max_position_embeddings", s->context,
        "layer_types", layer_list(layers, "full_attention", "sliding_attention", 6), "tie_word_embeddings", 1,
        "rms_norm_eps", 1e-6, "final_logit_softcapping", 30.0, "hidden_activation", "gelu_pytorch_tanh", "pad_token_id",
        0, "eos_token_id", 1, "bos_token_id", 2, "attention_bias", 0);
    (void)json_object_set_new(t, "rope_parameters",
                              json_pack("{s:{s:s, s:f}, s:{s:s, s:f, s:f}}", "sliding_attention", "rope_type",
                                        "default", "rope_theta", 1e4, "full_attention", "rope_type", "proportional",
                                        "rope_theta", 1e6, "partial_rotary_factor", 0.25));
    (void)json_object_set_new(t, "num_global_key_value_heads", s->k_is_v ? json_integer(s->kv_full) : json_null());
    (void)json_object_set_new(t, "use_bidirectional_attention", s->see_pictures ? json_string("vision") : json_null());
    if (s->experts)
        (void)json_object_update_new(t, json_pack("{s:i, s:i, s:i}", "num_experts", s->experts, "top_k_experts", TOP_K,
                                                  "moe_intermediate_size", s->expert_ffn));
    if (s->family != DIFFUSION)
        (void)json_object_update_new(
            t, json_pack("{s:b, s:i, s:b, s:i, s:i, s:b}", "attention_k_eq_v", s->k_is_v, "num_kv_shared_layers",
                         shared_layers(s, layers), "use_double_wide_mlp", 0, "hidden_size_per_layer_input", s->ple,
                         "vocab_size_per_layer_input", s->vocab, "enable_moe_block", s->experts > 0));
    return t;
}

static json_t *gemma_vision_config(const shape *s)
{
    if (s->family == GEMMA4_UNIFIED)
        return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f}", "model_type", "gemma4_unified_vision",
                         "patch_size", 16, "pooling_kernel_size", 3, "model_patch_size", 48, "mm_embed_dim", s->hidden,
                         "mm_posemb_size", 1120, "num_soft_tokens", 280, "output_proj_dims", s->hidden, "rms_norm_eps",
                         1e-6);
    bool small = s->small_tower;
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:s, s:b, s:b, s:{s:f, s:s}}",
                     "model_type", "gemma4_vision", "hidden_size", small ? 768 : 1152, "intermediate_size",
                     small ? 3072 : 4304, "num_hidden_layers", small ? 16 : 27, "num_attention_heads", small ? 12 : 16,
                     "num_key_value_heads", small ? 12 : 16, "head_dim", small ? 64 : 72, "patch_size", 16,
                     "pooling_kernel_size", 3, "position_embedding_size", 10240, "default_output_length", 280,
                     "rms_norm_eps", 1e-6, "hidden_activation", "gelu_pytorch_tanh", "standardize", !small,
                     "use_clipped_linears", small, "rope_parameters", "rope_theta", 100.0, "rope_type", "axial");
}

static json_t *gemma_config(const shape *s, const options *o, const int ids[N_SPECIAL])
{
    static const char *const types[] = {
        [GEMMA4] = "gemma4", [GEMMA4_UNIFIED] = "gemma4_unified", [DIFFUSION] = "diffusion_gemma"};
    static const char *const classes[] = {[GEMMA4] = "Gemma4ForConditionalGeneration",
                                          [GEMMA4_UNIFIED] = "Gemma4UnifiedForConditionalGeneration",
                                          [DIFFUSION] = "DiffusionGemmaForBlockDiffusion"};
    json_t *c = json_pack("{s:[s], s:s, s:o, s:s, s:b, s:i, s:i, s:i, s:[ii]}", "architectures", classes[s->family],
                          "model_type", types[s->family], "text_config", gemma_text_config(s, o->layers), "dtype",
                          "bfloat16", "tie_word_embeddings", 1, "boi_token_id", ids[BEGIN_IMAGE], "image_token_id",
                          ids[IMAGE], "eoi_token_id", ids[END_IMAGE], "eos_token_id", ids[EOS], ids[END_OF_TURN]);
    (void)json_object_set_new(c, "vision_config", o->vision ? gemma_vision_config(s) : json_null());
    if (o->vision) (void)json_object_set_new(c, "vision_soft_tokens_per_image", json_integer(280));
    if (s->family == DIFFUSION) (void)json_object_set_new(c, "canvas_length", json_integer(256));
    return c;
}

/* ---- Qwen3.5 -------------------------------------------------------------------------------------------- */

static void qwen(plan *p, const shape *s, const options *o)
{
    int64_t h = s->hidden, keys = QWEN_KEY_HEADS * QWEN_HEAD, values = QWEN_VALUE_HEADS * QWEN_HEAD;
    matrix(p, "language_model.model.embed_tokens", 0, s->vocab, h);
    for (int i = 0; i < o->layers; i++) {
        char prefix[100], inner[128];
        (void)snprintf(prefix, sizeof prefix, "language_model.model.layers.%d.", i);
        vector(p, at(prefix, "input_layernorm.weight"), h, 1);
        vector(p, at(prefix, "post_attention_layernorm.weight"), h, 1);
        if ((i + 1) % 4 == 0) {
            matrix(p, at(prefix, "self_attn.q_proj"), 0, (int64_t)2 * s->heads * HEAD, h);
            matrix(p, at(prefix, "self_attn.k_proj"), 0, (int64_t)s->kv * HEAD, h);
            matrix(p, at(prefix, "self_attn.v_proj"), 0, (int64_t)s->kv * HEAD, h);
            matrix(p, at(prefix, "self_attn.o_proj"), 0, h, (int64_t)s->heads * HEAD);
            vector(p, at(prefix, "self_attn.q_norm.weight"), HEAD, 1);
            vector(p, at(prefix, "self_attn.k_norm.weight"), HEAD, 1);
        } else {
            matrix(p, at(prefix, "linear_attn.in_proj_qkv"), 0, 2 * keys + values, h);
            matrix(p, at(prefix, "linear_attn.in_proj_z"), 0, values, h);
            matrix(p, at(prefix, "linear_attn.in_proj_b"), 0, QWEN_VALUE_HEADS, h);
            matrix(p, at(prefix, "linear_attn.in_proj_a"), 0, QWEN_VALUE_HEADS, h);
            matrix(p, at(prefix, "linear_attn.out_proj"), 0, h, values);
            add(p, at(prefix, "linear_attn.conv1d"), ".weight", SIB_BF16,
                (const int64_t[4]){2 * keys + values, QWEN_CONV, 1}, UNIFORM, sqrt(3.0 / QWEN_CONV), 0);
            add(p, at(prefix, "linear_attn.A_log"), "", SIB_F32, (const int64_t[4]){QWEN_VALUE_HEADS}, LOGS, 16, 0);
            vector(p, at(prefix, "linear_attn.dt_bias"), QWEN_VALUE_HEADS, 1);
            vector(p, at(prefix, "linear_attn.norm.weight"), QWEN_HEAD, 1);
        }
        (void)snprintf(inner, sizeof inner, "%smlp.", prefix);
        glu(p, inner, h, s->ffn);
    }
    vector(p, "language_model.model.norm.weight", h, 1);
}

static json_t *qwen_config(const shape *s, const options *o, const int ids[N_SPECIAL])
{
    json_t *t =
        json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:b, s:s, s:b, s:i}", "model_type",
                  "qwen3_5_text", "hidden_size", s->hidden, "intermediate_size", s->ffn, "num_hidden_layers", o->layers,
                  "num_attention_heads", s->heads, "num_key_value_heads", s->kv, "head_dim", HEAD, "vocab_size",
                  s->vocab, "max_position_embeddings", s->context, "rms_norm_eps", 1e-6, "tie_word_embeddings", 1,
                  "hidden_act", "silu", "attention_bias", 0, "eos_token_id", ids[EOS]);
    (void)json_object_update_new(
        t, json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:o}", "full_attention_interval", 4, "linear_num_key_heads",
                     QWEN_KEY_HEADS, "linear_num_value_heads", QWEN_VALUE_HEADS, "linear_key_head_dim", QWEN_HEAD,
                     "linear_value_head_dim", QWEN_HEAD, "linear_conv_kernel_dim", QWEN_CONV, "layer_types",
                     layer_list(o->layers, "full_attention", "linear_attention", 4)));
    (void)json_object_set_new(t, "rope_parameters",
                              json_pack("{s:s, s:f, s:f, s:[iii], s:b}", "rope_type", "default", "rope_theta", 1e7,
                                        "partial_rotary_factor", 0.25, "mrope_section", 11, 11, 10, "mrope_interleaved",
                                        1));
    return json_pack("{s:[s], s:s, s:o, s:s, s:b, s:[ii]}", "architectures", "Qwen3_5ForConditionalGeneration",
                     "model_type", "qwen3_5", "text_config", t, "dtype", "bfloat16", "tie_word_embeddings", 1,
                     "eos_token_id", ids[EOS], ids[END_OF_TURN]);
}

/* ---- GLM-5.2 ---------------------------------------------------------------------------------------------- */

/* Frequency 4, offset 3: layers 0, 1, 2, 6, 10, ... choose keys for those that follow. */
static bool has_indexer(int layer)
{
    return layer < 3 || (layer - 2) % 4 == 0;
}

static void glm(plan *p, const shape *s, const options *o)
{
    int64_t h = s->hidden;
    matrix(p, "model.embed_tokens", 0, s->vocab, h);
    for (int i = 0; i < o->layers; i++) {
        char prefix[100], inner[128];
        (void)snprintf(prefix, sizeof prefix, "model.layers.%d.", i);
        vector(p, at(prefix, "input_layernorm.weight"), h, 1);
        vector(p, at(prefix, "post_attention_layernorm.weight"), h, 1);
        matrix(p, at(prefix, "self_attn.q_a_proj"), 0, Q_LORA, h);
        vector(p, at(prefix, "self_attn.q_a_layernorm.weight"), Q_LORA, 1);
        matrix(p, at(prefix, "self_attn.q_b_proj"), 0, (int64_t)s->heads * (NOPE + ROPE), Q_LORA);
        matrix(p, at(prefix, "self_attn.kv_a_proj_with_mqa"), 0, KV_LORA + ROPE, h);
        vector(p, at(prefix, "self_attn.kv_a_layernorm.weight"), KV_LORA, 1);
        matrix(p, at(prefix, "self_attn.embed_q"), s->heads, KV_LORA, NOPE);
        matrix(p, at(prefix, "self_attn.unembed_out"), s->heads, VALUE, KV_LORA);
        matrix(p, at(prefix, "self_attn.o_proj"), 0, h, (int64_t)s->heads * VALUE);
        if (has_indexer(i)) {
            matrix(p, at(prefix, "self_attn.indexer.wq_b"), 0, INDEX_HEADS * INDEX_HEAD, Q_LORA);
            matrix(p, at(prefix, "self_attn.indexer.wk"), 0, INDEX_HEAD, h);
            vector(p, at(prefix, "self_attn.indexer.k_norm.weight"), INDEX_HEAD, 1);
            vector(p, at(prefix, "self_attn.indexer.k_norm.bias"), INDEX_HEAD, 0);
            plain_matrix(p, at(prefix, "self_attn.indexer.weights_proj"), 0, INDEX_HEADS, h);
        }
        if (i < DENSE) {
            (void)snprintf(inner, sizeof inner, "%smlp.", prefix);
            glu(p, inner, h, s->ffn);
            continue;
        }
        plain_matrix(p, at(prefix, "mlp.gate"), 0, s->experts, h);
        add(p, at(prefix, "mlp.gate.e_score_correction_bias"), "", SIB_F32, (const int64_t[4]){s->experts}, UNIFORM,
            0.01, 0);
        (void)snprintf(inner, sizeof inner, "%smlp.switch_mlp.", prefix);
        expert_glu(p, inner, s->experts, h, s->expert_ffn);
        (void)snprintf(inner, sizeof inner, "%smlp.shared_experts.", prefix);
        glu(p, inner, h, s->expert_ffn);
    }
    vector(p, "model.norm.weight", h, 1);
    matrix(p, "lm_head", 0, s->vocab, h);
}

static json_t *glm_config(const shape *s, const options *o, const int ids[N_SPECIAL])
{
    json_t *c = json_pack(
        "{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:b, s:s, s:s, s:b, s:b, s:i, s:[ii]}",
        "architectures", "GlmMoeDsaForCausalLM", "model_type", "glm_moe_dsa", "hidden_size", s->hidden,
        "intermediate_size", s->ffn, "num_hidden_layers", o->layers, "num_attention_heads", s->heads,
        "num_key_value_heads", s->heads, "vocab_size", s->vocab, "max_position_embeddings", s->context, "head_dim",
        NOPE, "rms_norm_eps", 1e-5, "tie_word_embeddings", 0, "hidden_act", "silu", "dtype", "bfloat16",
        "attention_bias", 0, "mlp_bias", 0, "pad_token_id", ids[PAD], "eos_token_id", ids[EOS], ids[END_OF_TURN]);
    (void)json_object_update_new(c, json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:b}",
                                              "q_lora_rank", Q_LORA, "kv_lora_rank", KV_LORA, "qk_nope_head_dim", NOPE,
                                              "qk_rope_head_dim", ROPE, "qk_head_dim", NOPE + ROPE, "v_head_dim", VALUE,
                                              "index_topk", INDEX_TOP_K, "index_n_heads", INDEX_HEADS, "index_head_dim",
                                              INDEX_HEAD, "index_topk_freq", 4, "index_skip_topk_offset", 3,
                                              "rope_interleave", 1, "indexer_rope_interleave", 1));
    (void)json_object_update_new(
        c, json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:i, s:i, s:b, s:f, s:i}", "n_routed_experts",
                     s->experts, "num_experts_per_tok", TOP_K, "n_shared_experts", 1, "moe_intermediate_size",
                     s->expert_ffn, "first_k_dense_replace", DENSE, "moe_layer_freq", 1, "scoring_func", "sigmoid",
                     "topk_method", "noaux_tc", "n_group", 1, "topk_group", 1, "norm_topk_prob", 1,
                     "routed_scaling_factor", 2.5, "num_nextn_predict_layers", 0));
    (void)json_object_set_new(c, "rope_parameters", json_pack("{s:s, s:f}", "rope_type", "default", "rope_theta", 8e6));
    json_t *indexers = json_array(), *mlps = json_array();
    for (int i = 0; i < o->layers; i++) {
        (void)json_array_append_new(indexers, json_string(has_indexer(i) ? "full" : "shared"));
        (void)json_array_append_new(mlps, json_string(i < DENSE ? "dense" : "sparse"));
    }
    (void)json_object_set_new(c, "indexer_types", indexers);
    (void)json_object_set_new(c, "mlp_layer_types", mlps);
    return c;
}

/* ---- writing the weights ------------------------------------------------------------------------------------ */

typedef struct progress {
    uint64_t done, total;
    int percent;
    bool shown;
} progress;

static void show(progress *g, uint64_t more, const char *file)
{
    g->done += more;
    int percent = (int)(g->done * 100 / g->total);
    if (!g->shown || percent == g->percent) return;
    g->percent = percent;
    (void)fprintf(stderr, "\r%s  %3d %%  %.1f of %.1f GB", file, percent, (double)g->done * 1e-9,
                  (double)g->total * 1e-9);
    if (percent == 100) (void)fputc('\n', stderr);
}

/* One value of a fill for a draw u in (0, 1). */
static float value_of(const item *t, double u)
{
    float scale = sib_round_bf16((float)(t->a * (0.75 + 0.5 * u)));
    switch (t->fill) {
    case CONSTANT: return t->a;
    case UNIFORM: return (float)(t->a * (2 * u - 1));
    case SCALES: return scale;
    case BIASES: return -t->b * scale;
    case LOGS: return (float)log(1 + (t->a - 1) * u);
    case CODES: break;
    }
    return 0;
}

#define PIECE 65536 /* 64-bit draws at a time */

/* Draws of 16 bits choose from a table of all values that they can mean. */
static sib_status write_item(sib_safetensors_writer *w, const item *t, uint64_t seed, progress *g, const char *file,
                             sib_err *err)
{
    static uint64_t draws[PIECE];
    static uint16_t table[65536];
    static unsigned char out[PIECE * 16];
    uint64_t state = seed ^ t->key;
    size_t each = (size_t)sib_dtype_bits(t->dtype) / 8;
    SIB_TRY(sib_safetensors_begin(w, t->name, t->dtype, t->rank, t->shape, err));
    if (t->fill == CONSTANT || t->dtype != SIB_BF16)
        table[0] = sib_bf16_of_f32(t->a);
    else
        for (uint32_t i = 0; i < 65536; i++) table[i] = sib_bf16_of_f32(value_of(t, (i + 0.5) / 65536));
    for (uint64_t left = t->bytes; left;) {
        size_t per_piece = t->fill == CODES ? PIECE * 8 : PIECE * 4 * each,
               n = left < per_piece ? (size_t)left : per_piece;
        size_t count = n / each, n_draws = t->fill == CODES ? (n + 7) / 8 : (count + 3) / 4;
        const void *bytes = out;
        for (size_t i = 0; t->fill != CONSTANT && i < n_draws; i++) draws[i] = sib_splitmix64(&state);
        if (t->fill == CODES) {
            bytes = draws;
        } else if (t->dtype == SIB_BF16) {
            uint16_t *to = (uint16_t *)(void *)out;
            for (size_t i = 0; i < count; i++)
                to[i] = t->fill == CONSTANT ? table[0] : table[draws[i / 4] >> i % 4 * 16 & 0xFFFF];
        } else {
            for (size_t i = 0; i < count; i++) {
                float v = value_of(t, ((double)(draws[i / 4] >> i % 4 * 16 & 0xFFFF) + 0.5) / 65536);
                memcpy(out + i * 4, &v, sizeof v);
            }
        }
        SIB_TRY(sib_safetensors_write(w, bytes, n, err));
        show(g, n, file);
        left -= n;
    }
    return SIB_OK;
}

static void shard_name(char out[64], int shard, int n_shards)
{
    if (n_shards == 1)
        (void)snprintf(out, 64, "model.safetensors");
    else
        (void)snprintf(out, 64, "model-%05d-of-%05d.safetensors", shard + 1, n_shards);
}

/* Shard of each item, in order; returns the number of shards. */
static int assign_shards(const plan *p, int *shard_of)
{
    uint64_t bytes = 0;
    int shard = 0;
    for (size_t i = 0; i < p->n; i++) {
        if (bytes && bytes + p->v[i].bytes > SHARD_BYTES) {
            shard++;
            bytes = 0;
        }
        bytes += p->v[i].bytes;
        shard_of[i] = shard;
    }
    return shard + 1;
}

static sib_status write_shard(const plan *p, const options *o, const int *shard_of, int shard, const char *file,
                              progress *g, sib_err *err)
{
    sib_safetensors_writer *w;
    size_t names = 0;
    for (size_t i = 0; i < p->n; i++) names += shard_of[i] == shard ? strlen(p->v[i].name) + 120 : 0;
    char *path = sib_path_join(o->out, file);
    sib_status s = path ? sib_safetensors_create(&w, path, names + 64, err) : sib_nomem(err, file);
    free(path);
    SIB_TRY(s);
    s = sib_safetensors_put_metadata(w, "format", "mlx", err);
    for (size_t i = 0; s == SIB_OK && i < p->n; i++)
        if (shard_of[i] == shard) s = write_item(w, &p->v[i], o->seed, g, file, err);
    if (s == SIB_OK) return sib_safetensors_finish(w, err);
    sib_safetensors_abandon(w);
    return s;
}

static sib_status write_text(const options *o, const char *file, const sib_buf *text, sib_err *err)
{
    char *path = sib_path_join(o->out, file);
    FILE *f = path && !text->failed ? fopen(path, "wb") : NULL;
    sib_status s = SIB_OK;
    if (!path || text->failed)
        s = sib_nomem(err, file);
    else if (!f || (text->n && fwrite(text->p, 1, text->n, f) != text->n))
        s = sib_fail(err, SIB_EIO, "%s: cannot write: %s", path, strerror(errno));
    if (f && fclose(f) != 0 && s == SIB_OK) s = sib_fail(err, SIB_EIO, "%s: cannot write: %s", path, strerror(errno));
    free(path);
    return s;
}

static sib_status write_weights(const plan *p, const options *o, sib_err *err)
{
    int *shard_of = calloc(p->n, sizeof *shard_of);
    if (!shard_of) return sib_nomem(err, "the list of tensors");
    progress g = {.shown = isatty(STDERR_FILENO), .percent = -1};
    for (size_t i = 0; i < p->n; i++) g.total += p->v[i].bytes;
    int n_shards = assign_shards(p, shard_of);
    char file[64];
    sib_status s = SIB_OK;
    for (int k = 0; s == SIB_OK && k < n_shards; k++) {
        shard_name(file, k, n_shards);
        s = write_shard(p, o, shard_of, k, file, &g, err);
    }
    sib_buf index = {0};
    sib_buf_addf(&index, "{\n  \"metadata\": {\"total_size\": %llu},\n  \"weight_map\": {",
                 (unsigned long long)g.total);
    for (size_t i = 0; i < p->n; i++) {
        shard_name(file, shard_of[i], n_shards);
        sib_buf_addf(&index, "%s\n    \"%s\": \"%s\"", i ? "," : "", p->v[i].name, file);
    }
    sib_buf_addz(&index, "\n  }\n}\n");
    if (s == SIB_OK) s = write_text(o, "model.safetensors.index.json", &index, err);
    sib_buf_deinit(&index);
    free(shard_of);
    return s;
}

/* ---- the other files ------------------------------------------------------------------------------------------ */

/* The printable stand-in of a byte in byte-level vocabularies: itself where it is a visible Latin-1
 * character, else the next of U+0100, U+0101, ... */
static size_t byte_char(int byte, char out[4])
{
    uint32_t next = 256, cp = 0;
    for (int b = 0; b <= byte; b++) {
        bool visible = (b > 32 && b < 127) || (b > 160 && b != 173);
        cp = visible ? (uint32_t)b : next++;
    }
    return sib_utf8_put(cp, out);
}

static sib_status write_tokenizer(const shape *s, const options *o, const int ids[N_SPECIAL], sib_err *err)
{
    sib_buf t = {0};
    sib_buf_addz(&t, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    for (int i = 0; i < N_SPECIAL; i++)
        sib_buf_addf(&t,
                     "%s\n{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                     "\"normalized\":false,\"special\":true}",
                     i ? "," : "", ids[i], special_text[i]);
    sib_buf_addz(&t, "],\n\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                     "\"trim_offsets\":true,\"use_regex\":false},"
                     "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_"
                     "offsets\":true,\"use_regex\":false},\n"
                     "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":"
                     "null,\"end_of_word_suffix\":null,"
                     "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{");
    for (int id = 0; id < s->vocab; id++) {
        char text[32];
        size_t n = 0;
        for (int k = 0; k < N_SPECIAL; k++)
            if (ids[k] == id) n = (size_t)snprintf(text, sizeof text, "%s", special_text[k]);
        if (!n && id >= FIRST_BYTE_TOKEN && id < FIRST_BYTE_TOKEN + 256) n = byte_char(id - FIRST_BYTE_TOKEN, text);
        if (!n) n = (size_t)snprintf(text, sizeof text, "<unused%d>", id);
        sib_buf_addz(&t, id ? ",\n" : "\n");
        sib_json_put_str(&t, (sib_str){text, n});
        sib_buf_addf(&t, ":%d", id);
    }
    sib_buf_addz(&t, "},\"merges\":[]}}\n");
    sib_status st = write_text(o, "tokenizer.json", &t, err);
    sib_buf_deinit(&t);
    return st;
}

static const char template[] =
    "{{ bos_token }}{% for m in messages %}<|turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% elif m['content'] %}{% for part in m['content'] %}"
    "{% if part['type'] in ['image', 'image_url', 'input_image'] %}<|image|>{% elif part['text'] is string %}{{ "
    "part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<turn|>\n{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}";

/* Takes over the reference to `json`. */
static sib_status write_json(const options *o, const char *file, json_t *json, sib_err *err)
{
    sib_buf text = {0};
    char *z = json ? json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(8)) : NULL;
    if (z)
        sib_buf_addf(&text, "%s\n", z);
    else
        text.failed = true;
    sib_status s = write_text(o, file, &text, err);
    sib_buf_deinit(&text);
    free(z);
    json_decref(json);
    return s;
}

static json_t *generation(const shape *s, const int ids[N_SPECIAL])
{
    json_t *g = json_pack("{s:i, s:i, s:[ii], s:b}", "bos_token_id", ids[BOS], "pad_token_id", ids[PAD], "eos_token_id",
                          ids[EOS], ids[END_OF_TURN], "do_sample", 0);
    if (s->family == DIFFUSION)
        (void)json_object_update_new(
            g, json_pack("{s:i, s:i, s:f, s:f, s:i, s:f, s:{s:s, s:f}}", "max_new_tokens", 256, "max_denoising_steps",
                         48, "t_min", 0.4, "t_max", 0.8, "stability_threshold", 1, "confidence_threshold", 0.005,
                         "sampler_config", "_cls_name", "EntropyBoundSamplerConfig", "entropy_bound", 0.1));
    return g;
}

static json_t *preprocessor(void)
{
    return json_pack("{s:s, s:b, s:b, s:i, s:b, s:f, s:b, s:[fff], s:[fff], s:i, s:i, s:i}", "image_processor_type",
                     "Gemma4ImageProcessor", "do_convert_rgb", 1, "do_resize", 1, "resample", 3, "do_rescale", 1,
                     "rescale_factor", 1.0 / 255, "do_normalize", 0, "image_mean", 0.0, 0.0, 0.0, "image_std", 1.0, 1.0,
                     1.0, "patch_size", 16, "pooling_kernel_size", 3, "max_soft_tokens", 280);
}

/* config.json comes last: a folder that has it is complete. */
static sib_status write_files(const shape *s, const options *o, const plan *p, sib_err *err)
{
    int ids[N_SPECIAL];
    special_ids(s, ids);
    sib_buf text = {0};
    sib_buf_addz(&text, template);
    sib_status st = write_text(o, "chat_template.jinja", &text, err);
    sib_buf_deinit(&text);
    SIB_TRY(st);
    SIB_TRY(write_tokenizer(s, o, ids, err));
    SIB_TRY(write_json(o, "tokenizer_config.json",
                       json_pack("{s:s, s:b, s:s, s:s, s:s, s:i}", "tokenizer_class", "PreTrainedTokenizerFast",
                                 "add_bos_token", 0, "bos_token", special_text[BOS], "eos_token", special_text[EOS],
                                 "pad_token", special_text[PAD], "model_max_length", s->context),
                       err));
    SIB_TRY(write_json(o, "generation_config.json", generation(s, ids), err));
    if (o->vision) {
        SIB_TRY(write_json(o, "preprocessor_config.json", preprocessor(), err));
        SIB_TRY(write_json(o, "processor_config.json",
                           json_pack("{s:s, s:i, s:o}", "processor_class", "Gemma4Processor", "image_seq_length", 280,
                                     "image_processor", preprocessor()),
                           err));
    }
    json_t *config = s->family == QWEN  ? qwen_config(s, o, ids)
                     : s->family == GLM ? glm_config(s, o, ids)
                                        : gemma_config(s, o, ids);
    if (o->bits != 16) {
        (void)json_object_set(config, "quantization", p->quantization);
        (void)json_object_set(config, "quantization_config", p->quantization);
    }
    if (s->family == DIFFUSION) (void)json_object_set_new(config, "generation_config", generation(s, ids));
    return write_json(o, "config.json", config, err);
}

/* ---- the program ------------------------------------------------------------------------------------------------ */

static sib_status prepare_folder(const options *o, uint64_t bytes, sib_err *err)
{
    if (mkdir(o->out, 0777) != 0 && errno != EEXIST) return sib_fail(err, SIB_EIO, "%s: %s", o->out, strerror(errno));
    static const char *const marks[] = {"config.json", "model.safetensors", "model.safetensors.index.json"};
    for (size_t i = 0; i < SIB_COUNT(marks); i++) {
        char *path = sib_path_join(o->out, marks[i]);
        bool there = path && access(path, F_OK) == 0;
        free(path);
        if (there)
            return sib_fail(err, SIB_EARG, "%s: holds a checkpoint already (%s); remove it first", o->out, marks[i]);
    }
    struct statvfs fs;
    if (statvfs(o->out, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize < bytes)
        return sib_fail(err, SIB_EIO, "%s: %.1f GB are needed, %.1f GB are free", o->out, (double)bytes * 1e-9,
                        (double)fs.f_bavail * (double)fs.f_frsize * 1e-9);
    return SIB_OK;
}

static sib_status make(const shape *s, const options *o, sib_err *err)
{
    plan p = {.bits = o->bits,
              .group = o->group,
              .quantization = json_pack("{s:i, s:i, s:s}", "group_size", o->group, "bits", o->bits, "mode", "affine")};
    switch (s->family) {
    case GEMMA4:
    case GEMMA4_UNIFIED:
    case DIFFUSION: gemma(&p, s, o); break;
    case QWEN: qwen(&p, s, o); break;
    case GLM: glm(&p, s, o); break;
    }
    uint64_t bytes = 0;
    for (size_t i = 0; i < p.n; i++) bytes += p.v[i].bytes;
    sib_status st = p.failed || !p.quantization ? sib_nomem(err, "the list of tensors") : prepare_folder(o, bytes, err);
    if (st == SIB_OK) st = write_weights(&p, o, err);
    if (st == SIB_OK) st = write_files(s, o, &p, err);
    if (st == SIB_OK)
        (void)printf("%s: %s, %d layers, %zu tensors, %.3f GB\n", o->out, s->name, o->layers, p.n,
                     (double)bytes * 1e-9);
    for (size_t i = 0; i < p.n; i++) free(p.v[i].name);
    free(p.v);
    json_decref(p.quantization);
    return st;
}

static void help(void)
{
    (void)printf("usage: mkmodel SHAPE [--bits B] [--group G] [--layers N] [--vision] [--seed S] OUT\n\n"
                 "Writes a random checkpoint into the folder OUT. B: 2, 3, 4 (default), 5, 6, 8, or 16 for bf16;\n"
                 "G: 32, 64 (default), 128; N: the first N layers only; --vision: with the vision tower.\n\nshapes:\n");
    for (size_t i = 0; i < SIB_COUNT(shapes); i++) (void)printf("  %-16s %s\n", shapes[i].name, shapes[i].says);
}

SIB_PRINTF(1, 2) static int usage(const char *fmt, ...)
{
    va_list ap;
    (void)fprintf(stderr, "mkmodel: ");
    va_start(ap, fmt);
    (void)vfprintf(stderr, fmt, ap);
    va_end(ap);
    (void)fprintf(stderr, " (mkmodel --help lists shapes and options)\n");
    return 2;
}

/* A whole decimal number in 0..max, else -1. */
static int64_t number(const char *z, int64_t max)
{
    char *end;
    errno = 0;
    long long v = strtoll(z, &end, 10);
    return errno || end == z || *end || v < 0 || v > max ? -1 : v;
}

int main(int argc, char **argv)
{
    static const struct option long_options[] = {{"bits", required_argument, NULL, 'b'},
                                                 {"group", required_argument, NULL, 'g'},
                                                 {"layers", required_argument, NULL, 'l'},
                                                 {"seed", required_argument, NULL, 's'},
                                                 {"vision", no_argument, NULL, 'v'},
                                                 {"help", no_argument, NULL, 'h'},
                                                 {NULL, 0, NULL, 0}};
    options o = {.bits = 4, .group = 64};
    const shape *s = NULL;
    int64_t n;
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "", long_options, NULL)) != -1;) {
        switch (c) {
        case 'b':
            n = number(optarg, 16);
            if (n != 16 && !sib_affine_bits_ok(n)) return usage("--bits %s: must be 2, 3, 4, 5, 6, 8 or 16", optarg);
            o.bits = (int)n;
            break;
        case 'g':
            n = number(optarg, 128);
            if (!sib_affine_group_ok(n)) return usage("--group %s: must be 32, 64 or 128", optarg);
            o.group = (int)n;
            break;
        case 'l':
            if ((n = number(optarg, 1000)) < 1) return usage("--layers %s: must be 1 to 1000", optarg);
            o.layers = (int)n;
            break;
        case 's':
            if ((n = number(optarg, INT64_MAX)) < 0) return usage("--seed %s: must be a number", optarg);
            o.seed = (uint64_t)n;
            break;
        case 'v': o.vision = true; break;
        case 'h': help(); return 0;
        default: return usage("option %s is unknown or lacks its value", argv[optind - 1]);
        }
    }
    if (argc - optind != 2) return usage("SHAPE and OUT are needed");
    for (size_t i = 0; i < SIB_COUNT(shapes); i++)
        if (strcmp(shapes[i].name, argv[optind]) == 0) s = &shapes[i];
    if (!s) return usage("shape \"%s\" is unknown", argv[optind]);
    if (o.vision && (s->family == QWEN || s->family == GLM)) return usage("shape %s has no vision tower", s->name);
    if (!o.layers) o.layers = s->layers;
    o.out = argv[optind + 1];

    sib_err err = {0};
    if (make(s, &o, &err) == SIB_OK) return 0;
    (void)fprintf(stderr, "mkmodel: %s\n", err.message);
    return 1;
}

/* tests/unit/tiny_gemma4.h - writes the tiny random Gemma 4 checkpoints of gemma4.md sections 7 and 8.
 *
 * Weights follow from their Hugging Face names, so that the numbers in tests/cases/gemma4/tiny.json (an independent
 * float64 evaluation of the specification, checked against the reference's own modules) hold for them. Include after cmocka. */
#ifndef TINY_GEMMA4_H
#define TINY_GEMMA4_H

#include "artifacts/safetensors.h"
#include "base/json.h"
#include "base/rng.h"
#include "tensor/matrix.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TINY_ROPE                                                                                                       \
    "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\",\"rope_theta\":1e6,\"partial_rotary_factor\":0.25}," \
    "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e4}}"
#define TINY_COMMON "\"hidden_size\":32,\"vocab_size\":64,\"vocab_size_per_layer_input\":64,\"head_dim\":8,\"global_head_dim\":16," \
    "\"sliding_window\":5,\"rms_norm_eps\":1e-6,\"final_logit_softcapping\":30.0," TINY_ROPE
#define TINY_S "\"sliding_attention\","
#define TINY_F "\"full_attention\""
#define TINY_T1 "{\"model_type\":\"gemma4_text\",\"intermediate_size\":48,\"num_hidden_layers\":7,\"num_attention_heads\":4,\"num_key_value_heads\":1," \
    "\"hidden_size_per_layer_input\":8,\"num_kv_shared_layers\":3,\"use_double_wide_mlp\":true,\"layer_types\":[" TINY_S TINY_F "," TINY_S TINY_F "," TINY_S TINY_S TINY_F "]," TINY_COMMON "}"
#define TINY_T2 "{\"model_type\":\"gemma4_text\",\"intermediate_size\":48,\"num_hidden_layers\":6,\"num_attention_heads\":4,\"num_key_value_heads\":2," \
    "\"hidden_size_per_layer_input\":8,\"num_kv_shared_layers\":2,\"layer_types\":[" TINY_S TINY_S TINY_F "," TINY_S TINY_S TINY_F "]," TINY_COMMON "}"
#define TINY_LARGE "\"num_hidden_layers\":6,\"num_attention_heads\":8,\"num_key_value_heads\":4,\"attention_k_eq_v\":true," \
    "\"hidden_size_per_layer_input\":0,\"layer_types\":[" TINY_S TINY_S TINY_S TINY_S TINY_S TINY_F "],\"use_bidirectional_attention\":\"vision\","
#define TINY_T3 "{\"model_type\":\"gemma4_text\",\"intermediate_size\":48,\"num_global_key_value_heads\":2," TINY_LARGE TINY_COMMON "}"
#define TINY_T4 "{\"model_type\":\"gemma4_unified_text\",\"intermediate_size\":48,\"num_global_key_value_heads\":1," TINY_LARGE TINY_COMMON "}"
#define TINY_T5 "{\"model_type\":\"gemma4_text\",\"intermediate_size\":20,\"num_global_key_value_heads\":2,\"enable_moe_block\":true," \
    "\"num_experts\":8,\"top_k_experts\":3,\"moe_intermediate_size\":12," TINY_LARGE TINY_COMMON "}"
#define TINY_V(heads, dim, clipped, standardize) "{\"model_type\":\"gemma4_vision\",\"hidden_size\":24,\"intermediate_size\":40,\"num_hidden_layers\":2," \
    "\"num_attention_heads\":" heads ",\"num_key_value_heads\":" heads ",\"head_dim\":" dim ",\"patch_size\":2,\"pooling_kernel_size\":3," \
    "\"position_embedding_size\":32,\"use_clipped_linears\":" clipped ",\"standardize\":" standardize ",\"rope_parameters\":{\"rope_theta\":100}}"
#define TINY_V1 TINY_V("3", "8", "true", "false")
#define TINY_V2 TINY_V("2", "12", "false", "true")
#define TINY_U1 "{\"model_type\":\"gemma4_unified_vision\",\"patch_size\":2,\"pooling_kernel_size\":3,\"model_patch_size\":6,\"mm_embed_dim\":32," \
    "\"mm_posemb_size\":16,\"output_proj_dims\":32,\"rms_norm_eps\":1e-6}"

/* How the file differs from a Hugging Face one; the values stay those of the Hugging Face names. */
typedef struct tiny_options {
    bool mlx_names;  /* language_model.model.*, vision_tower.* */
    bool sidecar;    /* vision tensors in optiq_vision.safetensors, without "model." */
    bool no_vision;  /* vision_config, but no tensors */
    bool memory_names; /* unified: transformers' module names instead of the file's */
    bool leftovers;  /* tensors that a loader leaves alone */
    bool causal;     /* use_bidirectional_attention null */
    int quantize;    /* the tower's linears, all but down_proj: 4-bit group 32 as MLX stores it, or as TINY_DEQUANTIZED */
} tiny_options;

enum { TINY_PLAIN, TINY_QUANTIZED, TINY_DEQUANTIZED };

typedef struct tiny {
    sib_safetensors_writer *text, *vision;
    tiny_options o;
} tiny;

static inline uint64_t tiny_seed(const char *name)
{
    uint64_t h = 0xCBF29CE484222325u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x100000001B3u;
    return h;
}

static inline bool tiny_ends(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* base and amplitude of the values of a tensor; the first line that fits counts */
static inline void tiny_range(const char *name, double *base, double *amp)
{
    const struct {
        bool fits;
        double base, amp;
    } rules[] = {
        {strstr(name, "layer_scalar"), 0.9, 0.2},
        {strstr(name, "per_expert_scale") || strstr(name, "router.scale"), 1, 0.5},
        {strstr(name, "std_bias"), 0, 20},
        {strstr(name, "std_scale"), 0.05, 0.02},
        {tiny_ends(name, "_min"), -0.75, 0.25},
        {tiny_ends(name, "_max"), 0.75, 0.25},
        {tiny_ends(name, ".bias"), 0, 0.1},
        {strstr(name, "norm") || strstr(name, "_ln"), 1, 0.2},
        {strstr(name, "embed_tokens"), 0, 0.2},
        {strstr(name, "position_embedding_table") || strstr(name, "pos_embedding"), 0, 0.2},
        {true, 0, 0.15},
    };
    size_t i = 0;
    while (!rules[i].fits) i++;
    *base = rules[i].base;
    *amp = rules[i].amp;
}

/* n values of the tensor with this Hugging Face name; malloc'd. */
static inline float *tiny_values(const char *name, int64_t n)
{
    double base, amp;
    uint64_t state = tiny_seed(name);
    float *v = malloc((size_t)n * sizeof *v);
    assert_non_null(v);
    tiny_range(name, &base, &amp);
    for (int64_t i = 0; i < n; i++) v[i] = (float)(base + amp * (2.0 * ((double)(sib_splitmix64(&state) >> 40) / 16777216.0) - 1.0));
    return v;
}

static inline void tiny_bytes(const char *name, uint8_t *out, size_t n)
{
    uint64_t state = tiny_seed(name);
    for (size_t i = 0; i < n; i++) out[i] = (uint8_t)(sib_splitmix64(&state) >> 56);
}

static inline void tiny_ok(sib_status s, const sib_err *err)
{
    if (s != SIB_OK) fail_msg("%s", err->message);
}

/* A linear [out, in] in 4 bits, or with the values that those stand for. Scales and biases are float32. */
static inline void tiny_add_quantized(tiny *t, const char *stored, const int64_t *shape, float *v)
{
    int64_t out = shape[0], in = shape[1];
    uint32_t *q = calloc((size_t)(out * in / 8), sizeof *q);
    float *scales = calloc((size_t)(out * in / 32), sizeof *scales), *biases = calloc((size_t)(out * in / 32), sizeof *biases);
    char stem[256];
    sib_err err;
    for (int64_t r = 0; r < out; r++) sib_affine_quantize(q + r * in / 8, scales + r * in / 32, biases + r * in / 32, SIB_F32, v + r * in, in, 4, 32);
    if (t->o.quantize == TINY_DEQUANTIZED) {
        sib_matrix_src src = {.storage = SIB_AFFINE, .out = out, .in = in, .n_experts = 1, .dtype = SIB_F32, .data = q, .scales = scales, .biases = biases,
                              .bits = 4, .group = 32};
        sib_matrix_src_rows(v, &src, 0, 0, out);
        tiny_ok(sib_safetensors_add(t->vision, stored, SIB_F32, 2, shape, v, &err), &err);
    } else {
        tiny_ok(sib_safetensors_add(t->vision, stored, SIB_U32, 2, (const int64_t[]){out, in / 8}, q, &err), &err);
        (void)snprintf(stem, sizeof stem, "%.*s.scales", (int)(strlen(stored) - strlen(".weight")), stored);
        tiny_ok(sib_safetensors_add(t->vision, stem, SIB_F32, 2, (const int64_t[]){out, in / 32}, scales, &err), &err);
        (void)snprintf(stem, sizeof stem, "%.*s.biases", (int)(strlen(stored) - strlen(".weight")), stored);
        tiny_ok(sib_safetensors_add(t->vision, stem, SIB_F32, 2, (const int64_t[]){out, in / 32}, biases, &err), &err);
    }
    free(q);
    free(scales);
    free(biases);
}

/* Adds the tensor under the name that the options give it. Shape ends with 0. */
static inline void tiny_add(tiny *t, const char *name, const int64_t *shape)
{
    char stored[256], home[256];
    sib_err err;
    int rank = 0;
    int64_t n = 1;
    bool vision = !strstr(name, "language_model") && !strstr(name, "audio");
    if (vision && t->o.no_vision) return;
    for (; shape[rank]; rank++) n *= shape[rank];
    float *v = tiny_values(name, n);
    (void)snprintf(home, sizeof home, "%s", name);
    if (t->o.memory_names && !strncmp(name, "model.vision_embedder.", 22)) (void)snprintf(home, sizeof home, "model.embed_vision.%s", name + 22);
    if (t->o.memory_names && !strcmp(name, "model.embed_vision.embedding_projection.weight"))
        (void)snprintf(home, sizeof home, "model.embed_vision.multimodal_embedder.embedding_projection.weight");
    bool bare = t->o.mlx_names || (vision && t->o.sidecar);
    if (bare && !strncmp(home, "model.language_model.", 21))
        (void)snprintf(stored, sizeof stored, "language_model.model.%s", home + 21);
    else
        (void)snprintf(stored, sizeof stored, "%s", home + (bare ? 6 : 0));
    if (vision && t->o.quantize && rank == 2 && tiny_ends(name, ".weight") && !strstr(name, "down_proj"))
        tiny_add_quantized(t, stored, shape, v);
    else
        tiny_ok(sib_safetensors_add(vision ? t->vision : t->text, stored, SIB_F32, rank, shape, v, &err), &err);
    free(v);
}

#define TINY(t, dims, ...)                                                                                              \
    do {                                                                                                                \
        char name_[256];                                                                                                \
        (void)snprintf(name_, sizeof name_, __VA_ARGS__);                                                               \
        tiny_add((t), name_, dims);                                                                                     \
    } while (0)
#define DIMS(...) ((const int64_t[]){__VA_ARGS__, 0})
#define SCALAR ((const int64_t[]){0})

static inline int tiny_int(const json_t *o, const char *key)
{
    return (int)json_integer_value(json_object_get(o, key));
}

static inline void tiny_text(tiny *t, const json_t *c)
{
    int h = tiny_int(c, "hidden_size"), layers = tiny_int(c, "num_hidden_layers"), ple = tiny_int(c, "hidden_size_per_layer_input"), v = tiny_int(c, "vocab_size");
    int shared = tiny_int(c, "num_kv_shared_layers"), heads = tiny_int(c, "num_attention_heads"), e = tiny_int(c, "num_experts");
    bool eq = json_is_true(json_object_get(c, "attention_k_eq_v")), wide = json_is_true(json_object_get(c, "use_double_wide_mlp"));
    const char *r = "model.language_model";
    TINY(t, DIMS(v, h), "%s.embed_tokens.weight", r);
    TINY(t, DIMS(h), "%s.norm.weight", r);
    if (ple) {
        TINY(t, DIMS(v, layers * ple), "%s.embed_tokens_per_layer.weight", r);
        TINY(t, DIMS(layers * ple, h), "%s.per_layer_model_projection.weight", r);
        TINY(t, DIMS(ple), "%s.per_layer_projection_norm.weight", r);
    }
    for (int i = 0; i < layers; i++) {
        static const char *const norms[] = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"};
        bool full = json_string_value(json_array_get(json_object_get(c, "layer_types"), (size_t)i))[0] == 'f', own = i < layers - shared;
        int d = tiny_int(c, full ? "global_head_dim" : "head_dim"), kv = tiny_int(c, full && eq ? "num_global_key_value_heads" : "num_key_value_heads");
        int f = tiny_int(c, "intermediate_size") * (wide && !own ? 2 : 1), m = tiny_int(c, "moe_intermediate_size");
        char l[64];
        (void)snprintf(l, sizeof l, "%s.layers.%d", r, i);
        for (int j = 0; j < 4; j++) TINY(t, DIMS(h), "%s.%s.weight", l, norms[j]);
        TINY(t, DIMS(1), "%s.layer_scalar", l);
        TINY(t, DIMS(heads * d, h), "%s.self_attn.q_proj.weight", l);
        TINY(t, DIMS(d), "%s.self_attn.q_norm.weight", l);
        TINY(t, DIMS(h, heads * d), "%s.self_attn.o_proj.weight", l);
        if (own || t->o.leftovers) {
            TINY(t, DIMS(kv * d, h), "%s.self_attn.k_proj.weight", l);
            TINY(t, DIMS(d), "%s.self_attn.k_norm.weight", l);
            if (!(eq && full)) TINY(t, DIMS(kv * d, h), "%s.self_attn.v_proj.weight", l);
        }
        TINY(t, DIMS(f, h), "%s.mlp.gate_proj.weight", l);
        TINY(t, DIMS(f, h), "%s.mlp.up_proj.weight", l);
        TINY(t, DIMS(h, f), "%s.mlp.down_proj.weight", l);
        if (ple) {
            TINY(t, DIMS(ple, h), "%s.per_layer_input_gate.weight", l);
            TINY(t, DIMS(h, ple), "%s.per_layer_projection.weight", l);
            TINY(t, DIMS(h), "%s.post_per_layer_input_norm.weight", l);
        }
        if (!e) continue;
        TINY(t, DIMS(e, h), "%s.router.proj.weight", l);
        TINY(t, DIMS(h), "%s.router.scale", l);
        TINY(t, DIMS(e), "%s.router.per_expert_scale", l);
        TINY(t, DIMS(e, 2 * m, h), "%s.experts.gate_up_proj", l);
        TINY(t, DIMS(e, h, m), "%s.experts.down_proj", l);
        TINY(t, DIMS(h), "%s.post_feedforward_layernorm_1.weight", l);
        TINY(t, DIMS(h), "%s.post_feedforward_layernorm_2.weight", l);
        TINY(t, DIMS(h), "%s.pre_feedforward_layernorm_2.weight", l);
    }
    if (!t->o.leftovers) return;
    TINY(t, DIMS(v, h), "model.language_model.lm_head.weight");
    TINY(t, DIMS(4), "%s.rotary_emb.inv_freq", r);
    TINY(t, DIMS(4, 4), "model.audio_tower.layers.0.ffw.weight");
    TINY(t, DIMS(h, 4), "model.embed_audio.embedding_projection.weight");
}

static inline void tiny_linear(tiny *t, int out, int in, bool clipped, const char *module)
{
    static const char *const bounds[] = {"input_min", "input_max", "output_min", "output_max"};
    TINY(t, DIMS(out, in), "%s.linear.weight", module);
    for (int i = 0; clipped && i < 4; i++) TINY(t, SCALAR, "%s.%s", module, bounds[i]);
}

static inline void tiny_tower(tiny *t, const json_t *c, int hidden)
{
    int h = tiny_int(c, "hidden_size"), f = tiny_int(c, "intermediate_size"), d = tiny_int(c, "head_dim"), p = tiny_int(c, "patch_size");
    int nd = tiny_int(c, "num_attention_heads") * d, kd = tiny_int(c, "num_key_value_heads") * d;
    bool clipped = json_is_true(json_object_get(c, "use_clipped_linears"));
    const char *r = "model.vision_tower";
    TINY(t, DIMS(h, p * p * 3), "%s.patch_embedder.input_proj.weight", r);
    TINY(t, DIMS(2, tiny_int(c, "position_embedding_size"), h), "%s.patch_embedder.position_embedding_table", r);
    for (int i = 0; i < tiny_int(c, "num_hidden_layers"); i++) {
        static const char *const norms[] = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"};
        const struct {
            const char *name;
            int out, in;
        } linears[] = {{"self_attn.q_proj", nd, h}, {"self_attn.k_proj", kd, h}, {"self_attn.v_proj", kd, h}, {"self_attn.o_proj", h, nd},
                       {"mlp.gate_proj", f, h}, {"mlp.up_proj", f, h}, {"mlp.down_proj", h, f}};
        char l[64], module[128];
        (void)snprintf(l, sizeof l, "%s.encoder.layers.%d", r, i);
        for (int j = 0; j < 4; j++) TINY(t, DIMS(h), "%s.%s.weight", l, norms[j]);
        TINY(t, DIMS(d), "%s.self_attn.q_norm.weight", l);
        TINY(t, DIMS(d), "%s.self_attn.k_norm.weight", l);
        for (size_t j = 0; j < SIB_COUNT(linears); j++) {
            (void)snprintf(module, sizeof module, "%s.%s", l, linears[j].name);
            tiny_linear(t, linears[j].out, linears[j].in, clipped, module);
        }
    }
    if (json_is_true(json_object_get(c, "standardize"))) {
        TINY(t, DIMS(h), "%s.std_bias", r);
        TINY(t, DIMS(h), "%s.std_scale", r);
    }
    TINY(t, DIMS(hidden, h), "model.embed_vision.embedding_projection.weight");
}

static inline void tiny_unified(tiny *t, const json_t *c, int hidden)
{
    int d = tiny_int(c, "mm_embed_dim"), w = tiny_int(c, "model_patch_size");
    const char *r = "model.vision_embedder";
    w = w * w * 3;
    TINY(t, DIMS(w), "%s.patch_ln1.weight", r);
    TINY(t, DIMS(w), "%s.patch_ln1.bias", r);
    TINY(t, DIMS(d, w), "%s.patch_dense.weight", r);
    TINY(t, DIMS(d), "%s.patch_dense.bias", r);
    TINY(t, DIMS(d), "%s.patch_ln2.weight", r);
    TINY(t, DIMS(d), "%s.patch_ln2.bias", r);
    TINY(t, DIMS(tiny_int(c, "mm_posemb_size"), 2, d), "%s.pos_embedding", r);
    TINY(t, DIMS(d), "%s.pos_norm.weight", r);
    TINY(t, DIMS(d), "%s.pos_norm.bias", r);
    TINY(t, DIMS(hidden, d), "model.embed_vision.embedding_projection.weight");
}

/* A checkpoint folder at `dir` (made when absent) from a text_config and a vision_config (NULL: none). */
static inline void tiny_write(const char *dir, const char *text, const char *vision, const tiny_options *o)
{
    tiny t = {.o = o ? *o : (tiny_options){0}};
    sib_err err;
    json_t *tc = json_loads(text, 0, NULL), *vc = vision ? json_loads(vision, 0, NULL) : NULL;
    assert_non_null(tc);
    if (t.o.causal) json_object_set_new(tc, "use_bidirectional_attention", json_null());
    bool unified = strstr(text, "unified") != NULL;
    json_t *root = json_pack("{s:s,s:b,s:[i,i],s:i,s:i,s:i,s:O}", "model_type", unified ? "gemma4_unified" : "gemma4", "tie_word_embeddings", 1, "eos_token_id", 1,
                             106, "image_token_id", 60, "boi_token_id", 61, "eoi_token_id", 62, "text_config", tc);
    if (vc) json_object_set(root, "vision_config", vc);
    char *path = sib_path_join(dir, "config.json");
    (void)mkdir(dir, 0777);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    free(path);
    path = sib_path_join(dir, "model.safetensors");
    tiny_ok(sib_safetensors_create(&t.text, path, 0, &err), &err);
    free(path);
    t.vision = t.text;
    if (t.o.sidecar) {
        path = sib_path_join(dir, "optiq_vision.safetensors");
        tiny_ok(sib_safetensors_create(&t.vision, path, 0, &err), &err);
        free(path);
    }
    tiny_text(&t, tc);
    if (vc && json_object_get(vc, "mm_embed_dim"))
        tiny_unified(&t, vc, tiny_int(tc, "hidden_size"));
    else if (vc)
        tiny_tower(&t, vc, tiny_int(tc, "hidden_size"));
    if (t.vision != t.text) tiny_ok(sib_safetensors_finish(t.vision, &err), &err);
    tiny_ok(sib_safetensors_finish(t.text, &err), &err);
    json_decref(root);
    json_decref(tc);
    json_decref(vc);
}

#endif

/* tests/unit/tiny_qwen.h - writes tiny random Qwen3.5 checkpoints (qwen3_5.md section 7) in every naming that is
 * published. A tensor's values follow from its plain name, so the same model can be written several ways. Include after cmocka. */
#ifndef TINY_QWEN_H
#define TINY_QWEN_H

#include "artifacts/safetensors.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum tiny_naming { TINY_RELEASE, TINY_TEXT_ONLY, TINY_MLX } tiny_naming;
typedef enum tiny_experts { TINY_FUSED, TINY_LISTED, TINY_SWITCH } tiny_experts;

typedef struct tiny_qwen {
    tiny_naming naming;
    tiny_experts expert_form;
    const char *layers; /* "llf": linear, linear, full */
    int hidden, heads, kv_heads, head_dim, k_heads, v_heads, k_dim, v_dim, taps, ffn, vocab;
    int experts, top_k, moe_ffn, shared_ffn; /* experts 0: dense */
    bool tied, mtp;
    double a_log; /* added to A_log: large makes the decay vanish */
    bool ties;    /* all router rows are equal */
} tiny_qwen;

#define TINY_T1 .layers = "lllflllf", .hidden = 64, .heads = 4, .kv_heads = 2, .head_dim = 32, .k_heads = 2, .v_heads = 4, .k_dim = 16, .v_dim = 16, .taps = 4, .ffn = 128, .vocab = 256
#define TINY_T2 .layers = "fllf", .hidden = 64, .heads = 4, .kv_heads = 2, .head_dim = 32, .k_heads = 2, .v_heads = 2, .k_dim = 16, .v_dim = 8, .taps = 4, .ffn = 128, .vocab = 256, .tied = true
#define TINY_T3 TINY_T1, .experts = 8, .top_k = 3, .moe_ffn = 32, .shared_ffn = 48

typedef struct tiny_file {
    const tiny_qwen *q;
    sib_safetensors_writer *w;
} tiny_file;

static inline void tiny_ok(sib_status s, const sib_err *err)
{
    if (s != SIB_OK) fail_msg("%s", err->message);
}

/* n values around base; malloc'd. */
static inline float *tiny_values(const char *name, int64_t n, double base, double amp)
{
    uint64_t state = 0xCBF29CE484222325u;
    for (; *name; name++) state = (state ^ (unsigned char)*name) * 0x100000001B3u;
    float *v = malloc((size_t)n * sizeof *v);
    assert_non_null(v);
    for (int64_t i = 0; i < n; i++) v[i] = (float)(base + amp * (2.0 * ((double)(sib_splitmix64(&state) >> 40) / 16777216.0) - 1.0));
    return v;
}

static inline void tiny_put(tiny_file *f, const char *stored, int rank, const int64_t *shape, const float *v)
{
    sib_err err;
    tiny_ok(sib_safetensors_add(f->w, stored, SIB_F32, rank, shape, v, &err), &err);
}

/* Name in the file of the tensor whose name in a text-only export, without "model.", is `name`. */
static inline void tiny_name(const tiny_file *f, char out[static 256], const char *name)
{
    static const char *const roots[] = {"model.language_model.", "model.", "language_model.model."};
    bool own = strncmp(name, "mtp.", 4) == 0 || strncmp(name, "lm_head", 7) == 0;
    (void)snprintf(out, 256, "%s%s", !own ? roots[f->q->naming] : f->q->naming == TINY_MLX && name[0] == 'l' ? "language_model." : "", name);
}

static inline void tiny_matrix(tiny_file *f, const char *layer, const char *module, int64_t out, int64_t in)
{
    char name[192], stored[256];
    (void)snprintf(name, sizeof name, "%s%s.weight", layer, module);
    tiny_name(f, stored, name);
    float *v = tiny_values(name, out * in, 0, 1.6 / sqrt((double)in));
    tiny_put(f, stored, 2, (const int64_t[]){out, in}, v);
    free(v);
}

/* A zero-centred norm; MLX files store 1 + w. `plain`: stored as it is everywhere. */
static inline void tiny_vector(tiny_file *f, const char *layer, const char *module, int64_t n, double base, double amp, bool norm)
{
    char name[192], stored[256];
    (void)snprintf(name, sizeof name, "%s%s", layer, module);
    tiny_name(f, stored, name);
    float *v = tiny_values(name, n, base, amp);
    for (int64_t i = 0; i < n && norm && f->q->naming == TINY_MLX; i++) v[i] = v[i] + 1.0f;
    tiny_put(f, stored, 1, &n, v);
    free(v);
}

static inline void tiny_stack(tiny_file *f, const char *layer)
{
    const tiny_qwen *q = f->q;
    int64_t e = q->experts, h = q->hidden, m = q->moe_ffn, each = m * h;
    char name[192], stored[256];
    float *part[3];
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    for (int i = 0; i < 3; i++) {
        (void)snprintf(name, sizeof name, "%smlp.experts.%s", layer, names[i]);
        part[i] = tiny_values(name, e * each, 0, 1.6 / sqrt(i < 2 ? (double)h : (double)m));
    }
    if (q->expert_form == TINY_FUSED) {
        float *both = malloc((size_t)(2 * e * each) * sizeof *both);
        for (int64_t x = 0; x < e; x++) {
            memcpy(both + 2 * x * each, part[0] + x * each, (size_t)each * sizeof *both);
            memcpy(both + (2 * x + 1) * each, part[1] + x * each, (size_t)each * sizeof *both);
        }
        (void)snprintf(name, sizeof name, "%smlp.experts.gate_up_proj", layer);
        tiny_name(f, stored, name);
        tiny_put(f, stored, 3, (const int64_t[]){e, 2 * m, h}, both);
        (void)snprintf(name, sizeof name, "%smlp.experts.down_proj", layer);
        tiny_name(f, stored, name);
        tiny_put(f, stored, 3, (const int64_t[]){e, h, m}, part[2]);
        free(both);
    }
    for (int i = 0; i < 3; i++) {
        const int64_t shape[3] = {e, i < 2 ? m : h, i < 2 ? h : m};
        if (q->expert_form == TINY_SWITCH) {
            (void)snprintf(name, sizeof name, "%smlp.switch_mlp.%s.weight", layer, names[i]);
            tiny_name(f, stored, name);
            tiny_put(f, stored, 3, shape, part[i]);
        }
        for (int64_t x = 0; x < e && q->expert_form == TINY_LISTED; x++) {
            (void)snprintf(name, sizeof name, "%smlp.experts.%d.%s.weight", layer, (int)x, names[i]);
            tiny_name(f, stored, name);
            tiny_put(f, stored, 2, shape + 1, part[i] + x * each);
        }
        free(part[i]);
    }
}

static inline void tiny_feed(tiny_file *f, const char *layer)
{
    const tiny_qwen *q = f->q;
    int64_t h = q->hidden, n = q->experts ? q->shared_ffn : q->ffn;
    char module[64];
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    for (int i = 0; i < 3; i++) {
        (void)snprintf(module, sizeof module, "mlp.%s%s", q->experts ? "shared_expert." : "", names[i]);
        tiny_matrix(f, layer, module, i < 2 ? n : h, i < 2 ? h : n);
    }
    if (!q->experts) return;
    if (q->ties) {
        char name[192], stored[256];
        (void)snprintf(name, sizeof name, "%smlp.gate.weight", layer);
        tiny_name(f, stored, name);
        float *v = calloc((size_t)(q->experts * h), sizeof *v);
        tiny_put(f, stored, 2, (const int64_t[]){q->experts, h}, v);
        free(v);
    } else {
        tiny_matrix(f, layer, "mlp.gate", q->experts, h);
    }
    tiny_matrix(f, layer, "mlp.shared_expert_gate", 1, h);
    tiny_stack(f, layer);
}

static inline void tiny_full(tiny_file *f, const char *layer)
{
    const tiny_qwen *q = f->q;
    int64_t nd = q->heads * q->head_dim, kd = q->kv_heads * q->head_dim, h = q->hidden;
    tiny_matrix(f, layer, "self_attn.q_proj", 2 * nd, h);
    tiny_matrix(f, layer, "self_attn.k_proj", kd, h);
    tiny_matrix(f, layer, "self_attn.v_proj", kd, h);
    tiny_matrix(f, layer, "self_attn.o_proj", h, nd);
    tiny_vector(f, layer, "self_attn.q_norm.weight", q->head_dim, 0, 0.2, true);
    tiny_vector(f, layer, "self_attn.k_norm.weight", q->head_dim, 0, 0.2, true);
}

static inline void tiny_linear(tiny_file *f, const char *layer)
{
    const tiny_qwen *q = f->q;
    int64_t wide = q->v_heads * q->v_dim, conv = 2 * q->k_heads * q->k_dim + wide, h = q->hidden;
    char name[192], stored[256];
    tiny_matrix(f, layer, "linear_attn.in_proj_qkv", conv, h);
    tiny_matrix(f, layer, "linear_attn.in_proj_z", wide, h);
    tiny_matrix(f, layer, "linear_attn.in_proj_b", q->v_heads, h);
    tiny_matrix(f, layer, "linear_attn.in_proj_a", q->v_heads, h);
    tiny_matrix(f, layer, "linear_attn.out_proj", h, wide);
    tiny_vector(f, layer, "linear_attn.norm.weight", q->v_dim, 1, 0.2, false);
    tiny_vector(f, layer, "linear_attn.A_log", q->v_heads, q->a_log, 1.5, false);
    tiny_vector(f, layer, "linear_attn.dt_bias", q->v_heads, 0, 1, false);
    (void)snprintf(name, sizeof name, "%slinear_attn.conv1d.weight", layer);
    tiny_name(f, stored, name);
    float *v = tiny_values(name, conv * q->taps, 0, 0.8);
    bool mlx = q->naming == TINY_MLX;
    tiny_put(f, stored, 3, mlx ? (const int64_t[]){conv, q->taps, 1} : (const int64_t[]){conv, 1, q->taps}, v);
    free(v);
}

static inline void tiny_layer(tiny_file *f, const char *layer, bool full)
{
    tiny_vector(f, layer, "input_layernorm.weight", f->q->hidden, 0, 0.2, true);
    tiny_vector(f, layer, "post_attention_layernorm.weight", f->q->hidden, 0, 0.2, true);
    (full ? tiny_full : tiny_linear)(f, layer);
    tiny_feed(f, layer);
}

static inline void tiny_companion(tiny_file *f)
{
    int64_t h = f->q->hidden;
    tiny_matrix(f, "mtp.", "fc", h, 2 * h);
    tiny_vector(f, "mtp.", "pre_fc_norm_embedding.weight", h, -0.6, 0.2, true);
    tiny_vector(f, "mtp.", "pre_fc_norm_hidden.weight", h, -0.6, 0.2, true);
    tiny_vector(f, "mtp.", "norm.weight", h, 0, 0.2, true);
    tiny_layer(f, "mtp.layers.0.", true);
}

static inline void tiny_config(const tiny_qwen *q, const char *dir)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    bool nested = q->naming != TINY_TEXT_ONLY;
    if (nested) fprintf(out, "{\"model_type\":\"qwen3_5%s\",\"text_config\":", q->experts ? "_moe" : "");
    fprintf(out, "{\"model_type\":\"qwen3_5%s_text\",\"hidden_size\":%d,\"num_hidden_layers\":%zu,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,", q->experts ? "_moe" : "", q->hidden,
            strlen(q->layers), q->heads, q->kv_heads);
    fprintf(out, "\"head_dim\":%d,\"vocab_size\":%d,\"linear_num_key_heads\":%d,\"linear_num_value_heads\":%d,\"linear_key_head_dim\":%d,\"linear_value_head_dim\":%d,", q->head_dim, q->vocab,
            q->k_heads, q->v_heads, q->k_dim, q->v_dim);
    if (q->experts)
        fprintf(out, "\"num_experts\":%d,\"num_experts_per_tok\":%d,\"moe_intermediate_size\":%d,\"shared_expert_intermediate_size\":%d,", q->experts, q->top_k, q->moe_ffn, q->shared_ffn);
    else
        fprintf(out, "\"intermediate_size\":%d,", q->ffn);
    fprintf(out, "\"linear_conv_kernel_dim\":%d,\"tie_word_embeddings\":%s,\"max_position_embeddings\":4096,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e7,"
                 "\"partial_rotary_factor\":0.25},\"layer_types\":[", q->taps, q->tied ? "true" : "false");
    for (const char *c = q->layers; *c; c++) fprintf(out, "%s\"%s_attention\"", c > q->layers ? "," : "", *c == 'f' ? "full" : "linear");
    fprintf(out, "]}%s", nested ? "}" : "");
    fclose(out);
}

static inline sib_safetensors_writer *tiny_create(const char *dir, bool mlx)
{
    char path[512];
    sib_err err;
    sib_safetensors_writer *w = NULL;
    (void)mkdir(dir, 0777);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
    tiny_ok(sib_safetensors_create(&w, path, 1 << 16, &err), &err);
    tiny_ok(sib_safetensors_put_metadata(w, "format", mlx ? "mlx" : "pt", &err), &err);
    return w;
}

/* A target, with its companion inside where q->mtp. */
static inline void tiny_write(const tiny_qwen *q, const char *dir)
{
    tiny_file f = {q, tiny_create(dir, q->naming == TINY_MLX)};
    sib_err err;
    tiny_matrix(&f, "", "embed_tokens", q->vocab, q->hidden);
    if (!q->tied) tiny_matrix(&f, "", "lm_head", q->vocab, q->hidden);
    tiny_vector(&f, "", "norm.weight", q->hidden, 0, 0.2, true);
    for (int i = 0; q->layers[i]; i++) {
        char layer[32];
        (void)snprintf(layer, sizeof layer, "layers.%d.", i);
        tiny_layer(&f, layer, q->layers[i] == 'f');
    }
    if (q->mtp) tiny_companion(&f);
    tiny_ok(sib_safetensors_finish(f.w, &err), &err);
    tiny_config(q, dir);
}

/* A scratch folder of this test program. */
static inline const char *tiny_dir(char out[static 256], const char *name)
{
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(out, 256, "%s/sibyl-qwen-%d-%s", tmp ? tmp : "/tmp", (int)getpid(), name);
    return out;
}

static inline void tiny_remove(const char *dir)
{
    static const char *const files[] = {"model.safetensors", "config.json"};
    char path[512];
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        (void)unlink(path);
    }
    (void)rmdir(dir);
}

#endif

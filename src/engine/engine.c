/* engine/engine.c - opens a checkpoint: files, device, model, text; and answers what it is. */
#include "engine/engine_internal.h"

#include "base/cpu.h"
#include "base/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define VERSION "0.1.0"
#define DEFAULT_CHUNK 512
#define DEFAULT_DRAFT 15

int sib_abi_version(void)
{
    return SIB_ABI_VERSION;
}

const char *sib_version(void)
{
    return VERSION;
}

void sib_free(void *p)
{
    free(p);
}

void sib_options_init(sib_options *o)
{
    *o = (sib_options){.struct_bytes = sizeof *o};
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

sib_status sib_engine_numerics(const char *name, sib_numerics *out, sib_err *err)
{
    if (!name) name = "bf16";
    static const char *const names[] = {"f32", "bf16", "int8"};
    for (size_t i = 0; i < SIB_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (sib_numerics)i;
            return SIB_OK;
        }
    return sib_fail(err, SIB_EARG, "numerics \"%s\" is not known; modes are f32, bf16, int8", name);
}

static sib_status open_device(sib_engine *e, const sib_options *o, sib_err *err)
{
    const char *numerics = o->numerics ? o->numerics : "bf16", *device = o->device ? o->device : "auto";
    sib_cpu_options cpu = {.threads = o->threads, .pin = o->pin_threads};
    SIB_TRY(sib_engine_numerics(numerics, &cpu.numerics, err));
    if (strcmp(device, "auto") && strcmp(device, "cpu"))
        return sib_fail(err, SIB_EUNSUPPORTED, "device \"%s\" is not available in this build; it has cpu", device);
    memcpy(e->numerics, numerics, strlen(numerics) + 1);
    return sib_cpu_device_new(&e->device, &cpu, err);
}

/* Every end id that any file names stops the text (formats.md E). */
static sib_status read_defaults(sib_engine *e, sib_err *err)
{
    SIB_TRY(sib_generation_config_parse(&e->defaults, sib_checkpoint_generation_config(e->files), "generation_config.json", err));
    SIB_TRY(sib_eos_ids_add(e->defaults.eos, &e->defaults.n_eos, sib_checkpoint_config(e->files), "eos_token_id", "config.json", err));
    return sib_eos_ids_add(e->defaults.eos, &e->defaults.n_eos, sib_checkpoint_text_config(e->files), "eos_token_id", "config.json", err);
}

static sib_status open_text(sib_engine *e, sib_err *err)
{
    char *path = sib_checkpoint_path(e->files, "tokenizer.json"), *config = sib_checkpoint_path(e->files, "tokenizer_config.json");
    sib_status s = path && config ? SIB_OK : sib_nomem(err, "path");
    if (s == SIB_OK && access(path, F_OK) == 0) s = sib_tokenizer_open(&e->tokenizer, path, config, err);
    if (s == SIB_OK && e->tokenizer) s = sib_chat_open(&e->chat, sib_checkpoint_dir(e->files), e->tokenizer, err);
    free(path);
    free(config);
    return s;
}

/* The checkpoint's own draft head, not a folder. */
static bool is_native(const sib_options *o)
{
    return o->draft && strcmp(o->draft, "native") == 0;
}

static sib_status open_drafter(sib_engine *e, const sib_options *o, sib_err *err)
{
    if (!o->draft || !strcmp(o->draft, "none")) return SIB_OK;
    if (!strcmp(o->draft, "ngram")) return sib_fail(err, SIB_EUNSUPPORTED, "draft \"ngram\" is not supported yet");
    if (e->model->offers.denoise) return sib_fail(err, SIB_EUNSUPPORTED, "%s answers by block diffusion, which takes no drafter", sib_checkpoint_dir(e->files));
    const char *rules = o->assistant_rules ? o->assistant_rules : "trained";
    if (strcmp(rules, "trained") && strcmp(rules, "seed")) return sib_fail(err, SIB_EARG, "assistant rules \"%s\" are not known; known are trained, seed", rules);
    bool seed = rules[0] == 's';
    sib_drafter_options d = {.seed_scale = seed, .seed_positions = seed, .seed_window = seed, .mtp_decode_only = seed, .mtp_raw_chain = seed,
                             .bits = o->draft_bits, .n_seqs = e->limits.n_seqs, .max_draft = e->limits.max_block - 1};
    if (is_native(o)) return sib_native_drafter_open(&e->drafter, e->model, &d, err);
    SIB_TRY(sib_drafter_files_open(&e->draft_files, o->draft, o->lax_safetensors, err));
    sib_loader l = {.dev = e->device, .files = e->draft_files, .progress = o->progress, .progress_ctx = o->progress_ctx, .total = sib_checkpoint_bytes(e->draft_files)};
    SIB_TRY(sib_drafter_open(&e->drafter, &l, e->model, &d, err));
    return sib_checkpoint_intact(e->draft_files, err);
}

/* A call takes a prompt chunk or a verify block of every session, whichever is more. */
void sib_engine_limits(const sib_options *o, int n_seqs, sib_model_limits *out)
{
    int chunk = o->chunk > 0 ? o->chunk : DEFAULT_CHUNK, block = 1 + (o->max_draft > 0 ? o->max_draft : DEFAULT_DRAFT);
    *out = (sib_model_limits){.n_ctx = o->n_ctx, .n_seqs = n_seqs, .max_block = block, .max_rows = chunk > n_seqs * block ? chunk : n_seqs * block,
                              .mtp = is_native(o) ? SIB_MTP_DENSE : SIB_MTP_NONE};
}

static sib_status read_quirk(sib_engine *e, const sib_options *o, sib_err *err)
{
    const char *quirk = o->vision_quirk ? o->vision_quirk : "none";
    if (strcmp(quirk, "none") && strcmp(quirk, "mlx-trunc"))
        return sib_fail(err, SIB_EARG, "vision quirk \"%s\" is not known; known are none, mlx-trunc", quirk);
    e->whole_pixels = quirk[0] == 'm';
    const char *mask = o->vision_mask;
    if (mask && strcmp(mask, "hf") && strcmp(mask, "sliding"))
        return sib_fail(err, SIB_EARG, "vision mask \"%s\" is not known; known are hf, sliding", mask);
    e->everywhere = mask ? mask[0] == 'h' : -1;
    if (e->whole_pixels) sib_log(SIB_LOG_WARN, "vision quirk mlx-trunc: where the patch projection is quantized, pixels are cut to whole numbers and pictures cannot be read");
    return SIB_OK;
}

/* Everything that needs weights. */
static sib_status open_model(sib_engine *e, const sib_options *o, sib_err *err)
{
    sib_engine_limits(o, o->n_sessions > 0 ? o->n_sessions : 1, &e->limits);
    e->chunk = o->chunk > 0 ? o->chunk : DEFAULT_CHUNK;
    sib_loader l = {.dev = e->device, .files = e->files, .progress = o->progress, .progress_ctx = o->progress_ctx, .total = sib_checkpoint_bytes(e->files)};
    SIB_TRY(e->family->open(&e->model, &l, &e->limits, err));
    SIB_TRY(sib_checkpoint_intact(e->files, err));
    SIB_TRY(sib_trace_file_open(&e->trace, err));
    e->model->trace = sib_trace_file_sink(e->trace);
    return open_drafter(e, o, err);
}

static sib_status build(sib_engine *e, const sib_options *o, sib_err *err)
{
    if (o->struct_bytes != sizeof *o) return sib_fail(err, SIB_EARG, "sib_options has %zu bytes, this library expects %zu", o->struct_bytes, sizeof *o);
    if (!o->model) return sib_fail(err, SIB_EARG, "no model was named");
    if (o->n_ctx < 0 || o->n_sessions < 0 || o->chunk < 0 || o->max_draft < 0 || o->max_draft > SIB_MAX_DRAFT || o->n_sessions > 1024 ||
        o->chunk > 65536 || o->n_ctx > 1 << 24)
        return sib_fail(err, SIB_EARG, "a size is out of range: n_ctx %d, n_sessions %d, chunk %d, max_draft %d", o->n_ctx, o->n_sessions, o->chunk, o->max_draft);
    SIB_TRY(read_quirk(e, o, err));
    double t0 = now_ms();
    SIB_TRY(sib_drafter_files_open(&e->files, o->model, o->lax_safetensors, err)); /* a drafter is refused by name below */
    SIB_TRY(sib_refuse_drafter(sib_checkpoint_dir(e->files), err));
    e->family = sib_family_for(e->files, err);
    if (!e->family) return err->status;
    SIB_TRY(sib_quant_check(e->files, err));
    SIB_TRY(read_defaults(e, err));
    SIB_TRY(open_text(e, err));
    SIB_TRY(open_device(e, o, err));
    if (!o->text_only) SIB_TRY(open_model(e, o, err));
    e->load_ms = now_ms() - t0;
    return SIB_OK;
}

sib_status sib_open(sib_engine **out, const sib_options *o, sib_err *err)
{
    sib_err local;
    if (!err) err = &local;
    *out = NULL;
    sib_engine *e = calloc(1, sizeof *e);
    if (!e) return sib_nomem(err, "engine");
    sib_status s = build(e, o, err);
    if (s != SIB_OK) {
        sib_close(e);
        return s;
    }
    *out = e;
    return SIB_OK;
}

void sib_close(sib_engine *e)
{
    if (!e) return;
    sib_err trace_err = {0};
    if (sib_trace_file_close(e->trace, &trace_err) != SIB_OK) sib_log(SIB_LOG_ERROR, "%s", trace_err.message);
    if (e->drafter) e->drafter->ops->free(e->drafter);
    if (e->model) e->model->ops->free(e->model);
    sib_chat_free(e->chat);
    sib_tokenizer_free(e->tokenizer);
    sib_checkpoint_free(e->draft_files);
    sib_checkpoint_free(e->files);
    sib_device_free(e->device);
    free(e);
}

sib_status sib_engine_info_get(const sib_engine *e, sib_engine_info *out)
{
    if (out->struct_bytes != sizeof *out) return SIB_EARG;
    const sib_model *m = e->model; /* NULL: text only */
    *out = (sib_engine_info){
        .struct_bytes = sizeof *out,
        .family = e->family->name,
        .drafter = e->drafter ? e->drafter->ops->kind : NULL,
        .numerics = e->numerics,
        .device = e->device->ops->name,
        .isa = sib_cpu_level_name(sib_cpu_level()),
        .threads = sib_cpu_device_threads(e->device),
        .n_ctx = m ? m->facts.n_ctx : 0,
        .n_vocab = m ? m->facts.n_vocab : e->tokenizer ? sib_tokenizer_n_vocab(e->tokenizer) : 0,
        .max_positions = m ? m->facts.max_positions : 0,
        .diffusion = m && m->offers.denoise,
        .pictures = m && m->offers.images,
        .file_bytes = sib_checkpoint_bytes(e->files),
        .load_ms = e->load_ms,
    };
    return SIB_OK;
}

/* ---- text ----------------------------------------------------------------------------------- */

static sib_status need_tokenizer(const sib_engine *e, sib_err *err)
{
    return e->tokenizer ? SIB_OK : sib_fail(err, SIB_EIO, "%s has no tokenizer.json", sib_checkpoint_dir(e->files));
}

/* Base models degrade badly without BOS, and most tokenizers add none to raw text (gemma4.md 5.1). The BOS of
 * tokenizer_config.json, else of generation_config.json, in front; never twice. */
static void put_bos(const sib_engine *e, sib_ids *ids)
{
    int32_t bos = sib_tokenizer_bos(e->tokenizer);
    if (bos < 0 && e->defaults.has_bos) bos = e->defaults.bos;
    if (bos < 0 || (ids->n > 0 && ids->v[0] == bos) || !sib_ids_reserve(ids, 1)) return;
    memmove(ids->v + 1, ids->v, ids->n * sizeof *ids->v);
    ids->v[0] = bos;
    ids->n++;
}

/* Hands ids over to the caller, never as NULL. */
static sib_status hand_over_ids(sib_ids *from, sib_status s, int32_t **ids, size_t *n_ids, sib_err *err)
{
    if (s == SIB_OK && (from->failed || !sib_ids_reserve(from, 1))) s = sib_nomem(err, "token ids");
    if (s != SIB_OK) {
        sib_ids_deinit(from);
        return s;
    }
    *ids = from->v;
    *n_ids = from->n;
    return SIB_OK;
}

sib_status sib_tokenize(const sib_engine *e, const char *text, size_t text_bytes, unsigned flags, int32_t **ids, size_t *n_ids, sib_err *err)
{
    sib_ids out = {0};
    *ids = NULL;
    *n_ids = 0;
    SIB_TRY(need_tokenizer(e, err));
    unsigned f = (flags & SIB_TOKENIZE_SPECIAL ? SIB_ADD_SPECIAL : 0u) | (flags & SIB_TOKENIZE_PLAIN ? SIB_PLAIN_TEXT : 0u);
    sib_status s = sib_tokenizer_encode(e->tokenizer, (sib_str){text, text_bytes}, f, &out, err);
    if (s == SIB_OK && flags & SIB_TOKENIZE_BOS) put_bos(e, &out);
    return hand_over_ids(&out, s, ids, n_ids, err);
}

/* Hands a buffer's bytes over to the caller, NUL-terminated. */
static sib_status hand_over(sib_buf *b, sib_status s, char **text, size_t *text_bytes, sib_err *err)
{
    if (s == SIB_OK && (b->failed || !sib_buf_reserve(b, 1))) s = sib_nomem(err, "text");
    if (s != SIB_OK) {
        sib_buf_deinit(b);
        return s;
    }
    b->p[b->n] = 0;
    *text = b->p;
    *text_bytes = b->n;
    return SIB_OK;
}

sib_status sib_detokenize(const sib_engine *e, const int32_t *ids, size_t n_ids, unsigned flags, char **text, size_t *text_bytes, sib_err *err)
{
    sib_buf out = {0};
    *text = NULL;
    *text_bytes = 0;
    SIB_TRY(need_tokenizer(e, err));
    sib_status s = sib_tokenizer_decode(e->tokenizer, ids, n_ids, flags & SIB_DETOKENIZE_SPECIAL ? SIB_KEEP_SPECIAL : 0u, &out, err);
    return hand_over(&out, s, text, text_bytes, err);
}

sib_status sib_chat_prompt(const sib_engine *e, const char *context_json, size_t context_bytes, char **text, size_t *text_bytes, sib_err *err)
{
    sib_buf out = {0};
    *text = NULL;
    *text_bytes = 0;
    if (!e->chat) return sib_fail(err, SIB_EIO, "%s has no chat template", sib_checkpoint_dir(e->files));
    sib_status s = sib_chat_render(e->chat, (sib_str){context_json, context_bytes}, &out, err);
    return hand_over(&out, s, text, text_bytes, err);
}

sib_status sib_chat_tokens(const sib_engine *e, const char *context_json, size_t context_bytes, unsigned flags, int32_t **ids,
                           size_t *n_ids, sib_err *err)
{
    sib_buf text = {0};
    sib_spans given = {0};
    sib_ids out = {0};
    *ids = NULL;
    *n_ids = 0;
    SIB_TRY(need_tokenizer(e, err));
    if (!e->chat) return sib_fail(err, SIB_EIO, "%s has no chat template", sib_checkpoint_dir(e->files));
    sib_str context = {context_json, context_bytes};
    sib_status s = flags & SIB_CHAT_TRUST ? sib_chat_render(e->chat, context, &text, err) : sib_chat_render_given(e->chat, context, &text, &given, err);
    if (s == SIB_OK) s = sib_tokenizer_encode_given(e->tokenizer, sib_buf_view(&text), &given, 0, &out, err);
    sib_spans_deinit(&given);
    sib_buf_deinit(&text);
    return hand_over_ids(&out, s, ids, n_ids, err);
}

/* ---- request defaults --------------------------------------------------------------------------- */

static double pick(double asked, bool has, double configured, double builtin)
{
    return !isnan(asked) ? asked : has ? configured : builtin;
}

sib_status sib_engine_sampler(const sib_engine *e, const sib_request *r, sib_sampler_params *p, sib_logit_bias *bias, sib_err *err)
{
    const sib_generation_config *c = &e->defaults;
    *p = sib_sampler_defaults();
    bool greedy = c->has_do_sample && !c->do_sample;
    p->temperature = pick(r->temperature, greedy || c->has_temperature, greedy ? 0.0 : c->temperature, 1.0);
    p->top_p = pick(r->top_p, c->has_top_p && !greedy, c->top_p, 1.0);
    p->min_p = pick(r->min_p, c->has_min_p && !greedy, c->min_p, 0.0);
    p->top_k = r->top_k >= 0 ? r->top_k : c->has_top_k && !greedy ? c->top_k : 0;
    p->repetition_penalty = pick(r->repetition_penalty, c->has_repetition_penalty, c->repetition_penalty, 1.0);
    p->presence_penalty = pick(r->presence_penalty, c->has_presence_penalty, c->presence_penalty, 0.0);
    p->frequency_penalty = pick(r->frequency_penalty, false, 0.0, 0.0);
    p->suppress = c->suppress;
    p->n_suppress = (size_t)c->n_suppress;
    /* The end ids matter to the sampler only while the answer must not end yet. */
    p->eos = c->eos;
    p->n_eos = c->min_new_tokens > 0 && !r->ignore_eos ? (size_t)c->n_eos : 0;
    p->min_new_tokens = (uint64_t)c->min_new_tokens;
    p->seed = r->seed;
    for (int i = 0; i < r->n_bias; i++) bias[i] = (sib_logit_bias){r->bias_ids[i], r->bias_values[i]};
    p->bias = bias;
    p->n_bias = (size_t)r->n_bias;
    return sib_sampler_check(p, e->model->facts.n_vocab, err);
}

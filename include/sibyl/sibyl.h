/* sibyl/sibyl.h - the one public header of libsibyl.
 *
 * Two handles do the work: an engine is a loaded checkpoint, shared and
 * read-only; a session is one mutable timeline of tokens on it. Everything a
 * call can fail at comes back as a sib_status with one sentence in sib_err;
 * the library never prints and never exits.
 *
 * Ownership: a pointer parameter that is const is borrowed for the call; what a
 * function called _new or _open returns is the caller's until the matching _free.
 */
#ifndef SIBYL_SIBYL_H
#define SIBYL_SIBYL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SIB_API __attribute__((visibility("default")))
#else
#define SIB_API
#endif

/* Why a call failed; the sentence for people is in sib_err. */
typedef enum sib_status {
    SIB_OK = 0,
    SIB_ENOMEM,        /* no memory: try with less                                */
    SIB_ECAPACITY,     /* a planned size (context, batch) is exceeded             */
    SIB_EIO,           /* a file or stream cannot be read or written              */
    SIB_EFORMAT,       /* bytes are not what their format promises                */
    SIB_EUNSUPPORTED,  /* well-formed, but this build has no code for it          */
    SIB_EARG,          /* the caller's argument is wrong                          */
    SIB_ESTATE,        /* the call is not allowed now                             */
    SIB_ECANCELLED,    /* asked to stop                                           */
    SIB_EDEVICE        /* the device failed; the session is gone                  */
} sib_status;

/* Short name of a status ("EFORMAT"), never NULL. */
SIB_API const char *sib_status_name(sib_status s);

/* One sentence that names the file, tensor, key or value. Callers may pass NULL. */
typedef struct sib_err {
    sib_status status;
    char message[512];
} sib_err;

/* Bumped when a struct grows or a meaning changes; a struct carries its size so that an
 * older caller keeps working. */
#define SIB_ABI_VERSION 1
SIB_API int sib_abi_version(void);
SIB_API const char *sib_version(void); /* "0.1.0" */

/* Frees memory that a call below handed over (sib_tokenize, sib_chat_prompt, ...). NULL is fine. */
SIB_API void sib_free(void *p);

/* ---- engine: a loaded checkpoint ------------------------------------------------------ */

typedef struct sib_engine sib_engine;
typedef struct sib_session sib_session;

/* Called while weights load: done of total bytes. Return false to stop (SIB_ECANCELLED). */
typedef bool (*sib_progress_fn)(void *ctx, const char *what, uint64_t done, uint64_t total);

typedef struct sib_options {
    size_t struct_bytes;    /* sizeof(sib_options); set by sib_options_init                      */
    const char *model;      /* checkpoint folder, or ORG/NAME in the local Hugging Face cache    */
    const char *numerics;   /* "f32", "bf16" (default), "int8"                                   */
    const char *device;     /* "auto" (default), "cpu", "cuda", "cuda:n"                         */
    const char *draft;      /* drafter folder, "native", or NULL / "none"                        */
    int draft_bits;         /* quantize a DFlash 2 drafter's projections at load; 0 = as stored  */
    const char *assistant_rules; /* "trained" (default) or "seed"                                */
    int threads;            /* 0: physical cores                                                 */
    bool pin_threads;       /* bind threads to processors                                        */
    int n_ctx;              /* positions a session can hold; 0: the model's maximum, at most 8192 */
    int n_sessions;         /* sessions that exist at once; 0: 1                                 */
    int chunk;              /* prompt rows of one forward pass; 0: 512                           */
    int max_draft;          /* longest draft a session may ask for; 0: 15                        */
    bool lax_safetensors;   /* allow holes and trailing bytes in weight files                    */
    const char *vision_quirk; /* "none" (default), "mlx-trunc": whole-number pixels for a quantized patch projection */
    bool text_only;         /* tokenizer and chat template, no weights: no sessions              */
    sib_progress_fn progress; /* may be NULL */
    void *progress_ctx;
    const char *vision_mask; /* where a picture's tokens see each other: "hf" (every layer, beyond the window), "sliding" (sliding
                              * layers, inside the window); NULL: as the family's reference does */
} sib_options;

SIB_API void sib_options_init(sib_options *o);
SIB_API sib_status sib_open(sib_engine **out, const sib_options *o, sib_err *err);
SIB_API void sib_close(sib_engine *e); /* after its sessions */

typedef struct sib_engine_info {
    size_t struct_bytes;
    const char *family;   /* "gemma4" */
    const char *drafter;  /* NULL: none */
    const char *numerics, *device, *isa;
    int threads, n_ctx, n_vocab, max_positions;
    bool diffusion;       /* answers by block diffusion           */
    bool pictures;        /* takes pictures                       */
    uint64_t file_bytes;  /* weights in the checkpoint            */
    double load_ms;
} sib_engine_info;
SIB_API sib_status sib_engine_info_get(const sib_engine *e, sib_engine_info *out);

/* ---- text ------------------------------------------------------------------------------- */

enum {
    SIB_TOKENIZE_SPECIAL = 1, /* add what the tokenizer's post-processor adds (BOS ...)          */
    SIB_TOKENIZE_PLAIN = 2,   /* text that looks like a special token stays text                 */
    SIB_DETOKENIZE_SPECIAL = 4, /* print special tokens                                          */
    SIB_TOKENIZE_BOS = 8, /* BOS in front when the checkpoint has one and the ids do not begin with it */
    SIB_CHAT_TRUST = 16   /* special tokens written in messages count: for text that you wrote yourself */
};

/* ids and text are handed over: sib_free. `text` must be valid UTF-8. */
SIB_API sib_status sib_tokenize(const sib_engine *e, const char *text, size_t text_bytes, unsigned flags,
                                int32_t **ids, size_t *n_ids, sib_err *err);
SIB_API sib_status sib_detokenize(const sib_engine *e, const int32_t *ids, size_t n_ids, unsigned flags,
                                  char **text, size_t *text_bytes, sib_err *err);

/* Renders the checkpoint's chat template. `context_json`: an object with "messages" and whatever else the
 * template reads ("tools", "enable_thinking", ...); add_generation_prompt defaults to true. */
SIB_API sib_status sib_chat_prompt(const sib_engine *e, const char *context_json, size_t context_bytes,
                                   char **text, size_t *text_bytes, sib_err *err);

/* The same as token ids, for sib_session_prompt. Text that came from the context's strings (contents, tools, arguments,
 * names) never becomes a special token, whatever it spells and however the template joins it; only the template's
 * own text does. Encoding the text of sib_chat_prompt yourself gives that up. With SIB_CHAT_TRUST it counts. */
SIB_API sib_status sib_chat_tokens(const sib_engine *e, const char *context_json, size_t context_bytes, unsigned flags,
                                   int32_t **ids, size_t *n_ids, sib_err *err);

/* ---- session: one timeline -------------------------------------------------------------- */

typedef struct sib_picture {
    const void *bytes; /* a PNG, JPEG or WebP file, borrowed for the call */
    size_t n_bytes;
    const char *name; /* for messages; may be NULL */
} sib_picture;

/* A value left at its "unset" of sib_request_init is taken from generation_config.json. */
typedef struct sib_request {
    size_t struct_bytes;
    int max_tokens;           /* -1: until the context is full                              */
    double temperature;       /* unset: NaN. 0: greedy                                      */
    double top_p, min_p;      /* unset: NaN                                                 */
    int top_k;                /* unset: -1. 0: off                                          */
    double repetition_penalty, presence_penalty, frequency_penalty; /* unset: NaN           */
    const int32_t *bias_ids;  /* logit bias: bias_values[i] is added to token bias_ids[i]   */
    const float *bias_values;
    int n_bias;
    uint64_t seed;
    const char *const *stop; /* stop strings */
    int n_stop;
    bool ignore_eos;
    bool keep_special;        /* show special tokens in the text                            */
    int draft_n;              /* draft length; 0: the drafter's default                     */
    const char *draft_policy; /* "auto" (default), "fixed", "off"                           */
    const char *accept;       /* "match" (default), "rejection"                             */
    int max_soft_tokens;      /* picture budget; 0: the checkpoint's                        */
    /* block diffusion only; unset: 0 / NULL = the checkpoint's generation_config */
    int steps;
    const char *sampler;      /* "entropy", "confidence"                                    */
    const char *dialect;      /* "hf", "mlx"                                                */
    const char *replay;       /* file of recorded draws (safetensors)                       */
    const char *canvas;       /* file with a first canvas: a JSON list of ids, null where any may stand */
    bool frames;              /* events that show the canvas settling (sib_token.draft)     */
} sib_request;

typedef enum sib_finish { SIB_FINISH_NONE, SIB_FINISH_STOP, SIB_FINISH_LENGTH, SIB_FINISH_CANCELLED } sib_finish;

typedef struct sib_token {
    int32_t id;        /* -1 in an event without a new token (text flushed at the end) */
    const char *text;  /* bytes that may be shown now, always whole characters; valid until the next call */
    size_t text_bytes;
    sib_finish finish; /* not NONE: the last event */
    const char *draft; /* not NULL (block diffusion, request.frames): no token but the canvas's text after a step, to be
                        * replaced by the next frame or by the tokens that follow; valid until the next call */
    size_t draft_bytes;
    int step, steps; /* of a draft: steps done, and their cap */
} sib_token;

#define SIB_MAX_DRAFT 64

typedef struct sib_stats {
    size_t struct_bytes;
    int prompt_tokens, cached_tokens, generated_tokens;
    double prefill_ms, decode_ms;
    int rounds, proposed, accepted;           /* speculation */
    int accepted_by_position[SIB_MAX_DRAFT];
    int proposed_by_position[SIB_MAX_DRAFT];
    double mean_emitted;                      /* tokens per target forward while drafting */
    int canvases, steps;                      /* block diffusion */
    double tokens_per_step;
} sib_stats;

SIB_API void sib_request_init(sib_request *r);
SIB_API sib_status sib_session_new(sib_session **out, sib_engine *e, sib_err *err);
SIB_API void sib_session_free(sib_session *s);

/* Makes the timeline equal to `ids` (what it shares with the last prompt and answer is reused, only the rest is
 * computed) and gets ready to generate after it. Pictures stand in `ids` as one placeholder each, in order. */
SIB_API sib_status sib_session_prompt(sib_session *s, const int32_t *ids, size_t n_ids, const sib_picture *pictures,
                                      int n_pictures, const sib_request *r, sib_err *err);
SIB_API sib_status sib_session_next(sib_session *s, sib_token *out, sib_err *err);
SIB_API void sib_session_cancel(sib_session *s); /* from any thread or signal handler: the next event ends */
SIB_API sib_status sib_session_stats(const sib_session *s, sib_stats *out);

#ifdef __cplusplus
}
#endif
#endif

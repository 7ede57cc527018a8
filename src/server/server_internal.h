/* server/server_internal.h - one request from its first byte to its last, shared by the files of server/.
 *
 *   loop: route -> task -> prepare thread: request.c -> sched -> engine thread: task.c -> events -> loop: api_*.c
 *
 * A task is referenced by the loop while its client waits, by the prepare thread while it works on it, and by every job
 * that the scheduler holds; the last one frees it. Fields say which thread uses them; between threads go only the events. */
#ifndef SIB_SERVER_SERVER_INTERNAL_H
#define SIB_SERVER_SERVER_INTERNAL_H

#include "base/json.h"
#include "engine/engine_internal.h"
#include "sample/grammar.h"
#include "sched/sched.h"
#include "server/metrics.h"
#include "server/server.h"
#include "text/tool_calls.h"

#include <pthread.h>

#define SIB_MAX_CHOICES  16
#define SIB_MAX_PICTURES 16
#define SIB_MAX_PICTURE_BYTES ((size_t)20 << 20) /* a picture's text in the request */

/* What a client did wrong, or we. */
typedef struct sib_problem {
    int status; /* HTTP; 0: none */
    const char *type, *code; /* code may be NULL */
    char param[64];          /* field, or "" */
    char message[512];
} sib_problem;

typedef struct sib_task sib_task;
typedef struct sib_choice sib_choice;

/* How an API writes its answers; all run on the loop thread. */
typedef struct sib_format {
    /* The answer as one JSON document. */
    void (*whole)(sib_task *t, sib_buf *out);
    /* The same as a stream. begin: the first choice has started. */
    void (*begin)(sib_task *t);
    void (*content)(sib_task *t, sib_choice *c, sib_str text, sib_str logprobs);
    void (*reasoning)(sib_task *t, sib_choice *c, sib_str text);
    void (*call)(sib_task *t, sib_choice *c, sib_str id, sib_str name, sib_str arguments);
    void (*end_choice)(sib_task *t, sib_choice *c);
    void (*end)(sib_task *t);
    void (*failed)(sib_task *t, const sib_problem *p);
    void (*keepalive)(sib_task *t);
    /* An error before anything else. */
    void (*problem)(const sib_task *t, const sib_problem *p, sib_buf *out);
    const char *id_prefix, *call_prefix;
} sib_format;

extern const sib_format sib_format_chat, sib_format_completion, sib_format_messages, sib_format_responses;

typedef enum sib_event_kind {
    SIB_EVENT_REPLY,   /* a = HTTP status, text = body */
    SIB_EVENT_PROBLEM, /* task->problem */
    SIB_EVENT_STARTED, /* a prompt tokens, b cached */
    SIB_EVENT_CONTENT, /* text; its first a bytes are content, the rest log-probability entries */
    SIB_EVENT_REASONING,
    SIB_EVENT_CALL, /* text; its first a bytes are the name, the rest arguments */
    SIB_EVENT_ENDED
} sib_event_kind;

typedef struct sib_event {
    struct sib_event *next;
    sib_event_kind kind;
    int choice;
    size_t a, b, n;
    char text[];
} sib_event;

typedef struct sib_logprob_entry {
    uint64_t at; /* content bytes before the token */
    size_t json, n;
} sib_logprob_entry;

typedef struct sib_call {
    sib_buf id, name, arguments;
} sib_call;

/* One of the n answers to a request. */
struct sib_choice {
    sib_job job;
    sib_task *task;
    int index;
    sib_sampler_params sampler;
    sib_gen_request generate;
    /* engine thread */
    sib_reply *reply;
    sib_stop *stop;       /* NULL: no stop strings of the request */
    sib_buf released;     /* content that has passed the stop strings in this token */
    uint64_t n_fed, n_released;
    sib_buf logprob_text; /* entries, joined by commas */
    sib_logprob_entry *logprobs;
    size_t n_logprobs, cap_logprobs, first_logprob; /* from first on they wait for their text */
    int n_generated, n_reasoning, n_calls;
    int stop_index; /* of the stop string that ended the answer, -1 */
    bool failed;    /* no memory for an event */
    struct sib_structured *structured; /* NULL: the answer may be any text */
    sib_grammar grammar;
    /* written by the engine thread before ENDED, read by the loop after it */
    sib_job_report report;
    char report_message[512];
    /* loop thread */
    sib_buf content, reasoning, entries; /* what has come so far; entries: of log-probabilities */
    sib_call *calls;
    int n_have_calls;
    bool started, ended;
    double started_s, last_token_s;
    void *format; /* what the format needs (block indexes); plain memory, freed with the task */
};

struct sib_task {
    sib_server *server;
    atomic_int refs;
    sib_task *next, *prev;  /* loop: tasks whose client waits; prepare thread: queue by next_prepare */
    sib_task *next_prepare, *next_ready, *next_taken;
    bool ready;             /* in the server's ready list; server->lock */
    sib_event *events, **events_tail; /* server->lock */
    bool cancelled, submitted;        /* server->lock */

    /* set by the loop before the prepare thread sees the task */
    sib_http_conn *conn; /* loop only; NULL when the client has left */
    const sib_format *format;
    sib_status (*prepare)(sib_task *t); /* SIB_OK: submitted or replied; else t->problem is set */
    const char *endpoint;
    sib_buf body;
    double arrived_s;
    char id[64], peer[64];
    int64_t created;

    /* prepare thread; constant after the jobs are submitted */
    json_t *request;
    sib_problem problem;
    bool stream, include_usage, timings_per_token;
    sib_buf prompt, begun;
    sib_spans given; /* parts of the prompt that the client wrote: they never become special tokens */
    bool forced;
    sib_ids ids;
    sib_buf *pictures; /* files */
    sib_picture *picture_refs;
    int n_pictures, max_soft_tokens;
    json_t *tools; /* borrowed from request or owned through it */
    bool one_call;
    uint64_t seed;
    double temperature; /* as used, for answers that tell it */
    double top_p;
    int64_t max_tokens; /* -1: what the context holds */
    int n;
    int32_t *eos;
    size_t n_eos;
    sib_str *stops;
    size_t n_stops;
    bool include_stop;
    sib_logit_bias *bias;
    bool logprobs, legacy_logprobs;
    int top_logprobs;
    bool no_reuse;
    int draft_n;
    sib_policy_kind policy;
    sib_accept_rule rule;
    sib_grammar_program *program; /* what the answer must match, or NULL */
    json_t *state; /* what the API keeps of the request for its answer */

    /* loop thread */
    sib_choice *choices; /* [n] */
    bool begun_stream, headers_sent, begun_answer;
    int prompt_tokens, cached_tokens, n_ended;
    double first_token_s;
    int sequence; /* Responses API */
};

typedef struct sib_stored sib_stored; /* answers for previous_response_id (store.c) */

struct sib_server {
    sib_engine *engine;
    sib_server_options o;
    sib_http *http;
    sib_sched *sched;
    sib_engine_info info;
    char model_name[128];
    sib_markup markup;
    sib_str *default_stops; /* of generation_config.json */
    size_t n_default_stops;
    size_t longest_piece;
    sib_vocab_trie *trie; /* prepare thread: made for the first request that needs it, then constant */
    int64_t started_at;
    sib_task tasks; /* loop: ring head */
    sib_metrics metrics; /* loop */
    sib_stored *stored;  /* newest first; server->lock */
    size_t stored_bytes;
    pthread_t preparer;
    bool has_preparer;
    pthread_mutex_t lock; /* of what follows and of fields marked so */
    pthread_cond_t work;
    sib_task *to_prepare, **to_prepare_tail;
    sib_task *ready;
    int n_unprepared;
    bool stop;
};

/* ---- task.c: tasks and the engine thread's side ----------------------------------------------------- */

sib_task *sib_task_new(sib_server *s, const sib_format *f, const char *endpoint); /* one reference; NULL without memory */
void sib_task_unref(sib_task *t);
/* From any thread; without memory the event is lost and false comes back. */
bool sib_task_post(sib_task *t, sib_event_kind kind, int choice, size_t a, size_t b, sib_str x, sib_str y);
/* Makes n choices from the task's fields and hands them to the scheduler. */
sib_status sib_task_submit(sib_task *t);
void sib_task_cancel(sib_task *t);
void sib_new_id(char *out, size_t n, const char *prefix, int chars); /* prefix and random letters and digits */

/* ---- request.c: what requests say (prepare thread) ------------------------------------------------------- */

sib_status sib_prepare_chat(sib_task *t);
sib_status sib_prepare_completion(sib_task *t);
sib_status sib_prepare_tokenize(sib_task *t);
sib_status sib_prepare_detokenize(sib_task *t);
sib_status sib_prepare_template(sib_task *t);

/* Sets t->problem: a 400 about `param` (may be NULL). Returns SIB_EARG. */
sib_status sib_refuse(sib_task *t, const char *param, const char *fmt, ...) SIB_PRINTF(3, 4);
sib_status sib_refuse_as(sib_task *t, int status, const char *type, const char *code, const char *param, const char *fmt, ...) SIB_PRINTF(6, 7);
/* A failure of the library as a problem. */
sib_status sib_refuse_status(sib_task *t, sib_status s, const char *message);

sib_status sib_parse_body(sib_task *t);
/* Every member of o must be in one of the lists (NULL-terminated; each may be NULL) or be null. */
sib_status sib_check_fields(sib_task *t, const json_t *o, const char *const *const *lists);
extern const char *const sib_sampling_fields[], *const sib_ignored_fields[];

/* Typed members: absent or null leaves *out. Whole reals count as integers. */
sib_status sib_take_num(sib_task *t, const json_t *o, const char *key, double lo, double hi, double *out);
sib_status sib_take_int(sib_task *t, const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *out);
sib_status sib_take_bool(sib_task *t, const json_t *o, const char *key, bool *out);
sib_status sib_take_str(sib_task *t, const json_t *o, const char *key, const char **out);

/* Fields of sampling, drafting, stopping and streaming into the task. */
sib_status sib_take_sampling(sib_task *t, const json_t *o);
sib_status sib_take_model(sib_task *t, const json_t *o);
sib_status sib_take_stops(sib_task *t, const json_t *stop, const char *key);
/* Messages in OpenAI's form (changed: pictures are taken out) and tools to prompt ids; `kwargs` may be NULL. */
typedef struct sib_chat_input {
    json_t *messages; /* borrowed */
    json_t *tools;    /* OpenAI's form, NULL: none */
    json_t *kwargs;   /* template variables */
    bool continue_final, no_generation_prompt;
    const char *force_name; /* NULL: the answer may be anything; "": some call; else a call of this function */
} sib_chat_input;
sib_status sib_make_prompt(sib_task *t, const sib_chat_input *in);
/* "none", a level, or a thinking object, as template variables. */
sib_status sib_take_effort(sib_task *t, json_t *kwargs, const char *effort, const char *param);

/* ---- structured.c: answers that must match a schema or a pattern -------------------------------------------- */

/* response_format, structured_outputs, guided_json, guided_regex of o (prepare thread). */
extern const char *const sib_structured_fields[];
sib_status sib_take_structure(sib_task *t, const json_t *o);
/* A format object {"type": "text" | "json_object" | "json_schema" ..., "schema" or "json_schema": {"schema"}}; `key` is its field. */
sib_status sib_take_format(sib_task *t, const json_t *format, const char *key);
sib_status sib_structured_new(sib_choice *c, sib_err *err);
void sib_structured_free(struct sib_structured *z);
bool sib_structured_failed(const struct sib_structured *z); /* the answer could not be kept valid */

/* ---- api_messages.c, api_responses.c ------------------------------------------------------------------------ */

sib_status sib_prepare_messages(sib_task *t);
sib_status sib_prepare_count(sib_task *t);
sib_status sib_prepare_responses(sib_task *t);
void sib_stored_free_all(sib_server *s);
/* GET and DELETE of /v1/responses/ID: the HTTP status and the body. */
int sib_stored_reply(sib_server *s, sib_str id, bool drop, sib_buf *out);

/* ---- writing (loop thread) ------------------------------------------------------------------------------------- */

/* One server-sent event; name NULL: data only. */
void sib_send_event(sib_task *t, const char *name, sib_str data);
void sib_problem_openai(const sib_task *t, const sib_problem *p, sib_buf *out);
const char *sib_finish_openai(const sib_choice *c); /* "stop", "length", "tool_calls" */
int sib_task_completion_tokens(const sib_task *t);
void sib_put_timings(const sib_task *t, sib_buf *out);
void sib_put_text(sib_buf *out, const sib_buf *text); /* as a JSON string */
/* The answer of one choice as stored messages for the next turn: {"role":"assistant",...}; NULL without memory. */
json_t *sib_choice_message(const sib_choice *c);

#endif

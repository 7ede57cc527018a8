/* server/server.h - the HTTP server over one engine: routes of OpenAI, Anthropic and llama-server clients.
 *
 *   loop thread     sockets, routing, replies as JSON and SSE          http.c, server.c, api_*.c
 *   prepare thread  JSON, chat template, tokenizer                     request.c
 *   engine thread   rounds; what the model wrote is taken apart here   sched/, task.c
 *
 * Nothing slow runs on the loop thread, so a client that leaves is noticed whatever the others do. Specified by
 * server_api.md. */
#ifndef SIB_SERVER_SERVER_H
#define SIB_SERVER_SERVER_H

#include "server/http.h"

typedef struct sib_server sib_server;

typedef enum sib_keepalive { SIB_KEEPALIVE_COMMENT, SIB_KEEPALIVE_CHUNK, SIB_KEEPALIVE_OFF } sib_keepalive;

typedef struct sib_server_options {
    sib_http_options http;
    int parallel, queue;          /* running and waiting answers */
    double queue_timeout_s;       /* 0: none                     */
    const char *const *keys;      /* API keys; none: open, on loopback only unless no_auth */
    int n_keys;
    bool no_auth;
    const char *const *origins;   /* browser origins that may ask; "*": any */
    int n_origins;
    const char *model_name;       /* NULL: the checkpoint folder's name */
    const char *draft_name;       /* id of the drafter, for draft_model; may be NULL */
    bool trust_content;           /* special tokens that clients write in messages count */
    bool any_model;               /* requests may name any model        */
    double keepalive_s;           /* of streams that have nothing to say */
    sib_keepalive keepalive;
} sib_server_options;

sib_server_options sib_server_defaults(void);

/* The engine must have been opened with n_sessions >= parallel, and outlives the server. Listens when it returns. */
sib_status sib_server_new(sib_server **out, sib_engine *e, const sib_server_options *o, sib_err *err);
void sib_server_free(sib_server *s);
sib_status sib_server_run(sib_server *s, sib_err *err); /* until stopped */
int sib_server_port(const sib_server *s);
/* From any thread or signal handler: as sib_http_stop. */
void sib_server_stop(sib_server *s, int drain_s);

#endif

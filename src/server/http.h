/* server/http.h - HTTP/1.1 on epoll, one thread: connections in, requests out, replies back.
 *
 *   listening socket -> connection:  HEAD -> BODY -> BUSY -> HEAD -> ...        one request at a time
 *                                                      |
 *                                     request() ...    reply()  or  stream() send() ... finish()
 *
 * While a request is BUSY nothing more is read from its connection: pipelined bytes wait in the socket. That the client has
 * left is told by the kernel all the same (EPOLLRDHUP, EPOLLHUP), whatever waits unread; then gone() comes
 * at once, and the connection is no more. A client that only closes its sending side counts as gone too, unless
 * allow_half_close.
 *
 * Limits: heads of 32 KiB and 100 lines, bodies of max_body, all bodies together max_buffered, connections, time for head,
 * body and idle keep-alive, and for a client that does not read. Everything runs on the thread of sib_http_run but
 * sib_http_wake and sib_http_stop. */
#ifndef SIB_SERVER_HTTP_H
#define SIB_SERVER_HTTP_H

#include "server/http_parse.h"

typedef struct sib_http sib_http;
typedef struct sib_http_conn sib_http_conn;

typedef struct sib_http_handler {
    void *ctx;
    /* A whole request: answer now or later. The handler may take the body (leave {0} behind); head and body are valid
     * until the answer is complete. */
    void (*request)(void *ctx, sib_http_conn *c, const sib_http_head *head, sib_buf *body);
    /* The client left before its answer was complete; c is invalid after the call. */
    void (*gone)(void *ctx, sib_http_conn *c);
    void (*woken)(void *ctx); /* after sib_http_wake */
    void (*tick)(void *ctx);  /* some times a second while there are connections */
    /* A request that was refused before it was whole: the body of the reply (JSON). */
    void (*refusal)(void *ctx, int status, const char *why, sib_buf *body);
} sib_http_handler;

typedef struct sib_http_options {
    const char *host;
    int port; /* 0: any */
    int max_connections;
    size_t max_body, max_buffered;
    bool allow_half_close;
    double head_s, body_s, idle_s, stall_s; /* timeouts */
} sib_http_options;

sib_http_options sib_http_defaults(void);

/* Binds and listens. */
sib_status sib_http_new(sib_http **out, const sib_http_options *o, const sib_http_handler *h, sib_err *err);
void sib_http_free(sib_http *h);
int sib_http_port(const sib_http *h);
bool sib_http_is_loopback(const sib_http *h);

/* Serves until sib_http_stop has been called and the last answer is sent. */
sib_status sib_http_run(sib_http *h, sib_err *err);
/* From any thread or signal handler: no new connections; run returns when all answers are sent or after drain_s seconds. A
 * second call ends at once. */
void sib_http_stop(sib_http *h, int drain_s);
bool sib_http_stopping(const sib_http *h);
/* From any thread: woken() is called soon. */
void sib_http_wake(sib_http *h);

/* ---- answering ------------------------------------------------------------------------------------ */

void sib_http_set_user(sib_http_conn *c, void *user);
void *sib_http_user(const sib_http_conn *c);
const char *sib_http_peer(const sib_http_conn *c); /* address, for logs */
/* Lines "Name: value\r\n" for the answers to this request. */
void sib_http_add_header(sib_http_conn *c, const char *name, const char *value);

/* A whole answer; type NULL: no body. c must not be used after the call: it may be gone. */
void sib_http_reply(sib_http_conn *c, int status, const char *type, sib_str body);
/* An answer in pieces. False: the client does not keep up or is gone; gone() is called before the loop goes on. */
void sib_http_stream(sib_http_conn *c, int status, const char *type);
bool sib_http_send(sib_http_conn *c, sib_str bytes);
void sib_http_finish(sib_http_conn *c); /* c must not be used after */
double sib_http_quiet_s(const sib_http_conn *c); /* seconds since bytes were last sent */

const char *sib_http_reason(int status);
double sib_http_now(void); /* monotonic seconds */

#endif

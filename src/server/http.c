/* server/http.c - see http.h. */
#include "server/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define READ_BYTES   65536
#define KEPT_BYTES   4096 /* of buffer, by an idle connection */
#define OUTPUT_LIMIT ((size_t)1 << 20) /* a stream whose client has so much unread is given up */
#define TICK_MS      200
#define LINGER_S     2.0 /* after a refusal the rest of the request is read and dropped for so long, so that the client sees the reply */

typedef enum state { HEAD, BODY, BUSY, LINGER } state;

struct sib_http_conn {
    sib_http *http;
    sib_http_conn *next, *prev;
    int fd;
    state state;
    uint32_t events; /* as epoll knows them */
    char peer[64];
    sib_buf in; /* unparsed bytes; while a request is served its head stands in `line` */
    size_t scanned;
    sib_buf line; /* the head that `head` points into */
    sib_http_head head;
    sib_http_chunks chunks;
    sib_buf body;
    size_t counted; /* bytes of this body in http->buffered */
    sib_buf out;
    size_t sent;
    sib_buf headers; /* for the current answer */
    void *user;
    double deadline, last_sent;
    bool keep, dead, half_closed;
};

struct sib_http {
    sib_http_options o;
    sib_http_handler h;
    int epoll, listener, event;
    bool listening, loopback;
    int port;
    sib_http_conn conns; /* ring head */
    int n_conns;
    size_t buffered;
    char received[READ_BYTES]; /* what the last recv() gave; a connection keeps only what it cannot use yet */
    atomic_int stops, drain_s;
    atomic_bool woken;
    double drain_until;
};

sib_http_options sib_http_defaults(void)
{
    return (sib_http_options){.host = "127.0.0.1", .port = 8080, .max_connections = 1024, .max_body = (size_t)64 << 20,
                              .max_buffered = (size_t)256 << 20, .head_s = 10, .body_s = 60, .idle_s = 75, .stall_s = 60};
}

double sib_http_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

const char *sib_http_reason(int status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {{200, "OK"}, {204, "No Content"}, {304, "Not Modified"}, {400, "Bad Request"}, {401, "Unauthorized"}, {403, "Forbidden"},
                   {404, "Not Found"}, {405, "Method Not Allowed"}, {408, "Request Timeout"}, {411, "Length Required"}, {413, "Content Too Large"},
                   {417, "Expectation Failed"}, {429, "Too Many Requests"}, {431, "Request Header Fields Too Large"}, {500, "Internal Server Error"},
                   {501, "Not Implemented"}, {503, "Service Unavailable"}, {505, "HTTP Version Not Supported"}, {529, "Overloaded"}};
    for (size_t i = 0; i < SIB_COUNT(reasons); i++)
        if (reasons[i].status == status) return reasons[i].reason;
    return "Status";
}

/* ---- connections ------------------------------------------------------------------------------- */

static void watch(sib_http_conn *c)
{
    uint32_t want = c->half_closed ? 0 : EPOLLRDHUP;
    if (c->state != BUSY && !c->half_closed) want |= EPOLLIN;
    if (c->sent < c->out.n) want |= EPOLLOUT;
    if (want == c->events) return;
    c->events = want;
    struct epoll_event e = {.events = want, .data.ptr = c};
    (void)epoll_ctl(c->http->epoll, EPOLL_CTL_MOD, c->fd, &e);
}

static void watch_listener(sib_http *h, bool on)
{
    if (h->listening == on || h->listener < 0) return;
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = &h->listener};
    if (epoll_ctl(h->epoll, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, h->listener, &e) == 0) h->listening = on;
}

static void release_body(sib_http_conn *c)
{
    c->http->buffered -= c->counted;
    c->counted = 0;
    sib_buf_deinit(&c->body);
    c->body = (sib_buf){0};
}

static void conn_free(sib_http_conn *c)
{
    sib_http *h = c->http;
    c->prev->next = c->next;
    c->next->prev = c->prev;
    h->n_conns--;
    release_body(c);
    sib_buf_deinit(&c->in);
    sib_buf_deinit(&c->line);
    sib_buf_deinit(&c->out);
    sib_buf_deinit(&c->headers);
    (void)close(c->fd);
    free(c);
    if (!atomic_load(&h->stops)) watch_listener(h, true);
}

/* The connection ends; reap() tells the handler and frees it when no event or callback can refer to it any more. */
static void die(sib_http_conn *c)
{
    if (c->dead) return;
    c->dead = true;
    (void)epoll_ctl(c->http->epoll, EPOLL_CTL_DEL, c->fd, NULL);
}

static void reap(sib_http *h)
{
    for (sib_http_conn *c = h->conns.next, *next; c != &h->conns; c = next) {
        next = c->next;
        if (!c->dead) continue;
        if (c->state == BUSY && c->user) h->h.gone(h->h.ctx, c);
        conn_free(c);
    }
}

/* Sends what is waiting; false when the connection has failed. */
static bool flush(sib_http_conn *c)
{
    while (c->sent < c->out.n) {
        ssize_t n = send(c->fd, c->out.p + c->sent, c->out.n - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
        if (n < 0) return false;
        c->sent += (size_t)n;
        c->last_sent = sib_http_now();
        c->deadline = c->last_sent + c->http->o.stall_s;
    }
    c->out.n = c->sent = 0;
    if (c->out.cap > KEPT_BYTES) {
        sib_buf_deinit(&c->out);
        c->out = (sib_buf){0};
    }
    return true;
}

/* The answer is in `out`: send it, then the next request or the end. */
static void answer_done(sib_http_conn *c)
{
    sib_http *h = c->http;
    c->user = NULL;
    c->headers.n = 0;
    release_body(c);
    double now = sib_http_now();
    if (c->out.failed || !flush(c)) {
        c->state = HEAD;
        die(c);
        return;
    }
    if (atomic_load(&h->stops)) c->keep = false;
    c->state = c->keep ? HEAD : LINGER;
    c->deadline = now + (c->keep ? h->o.idle_s : LINGER_S);
    if (c->state == LINGER && c->sent == c->out.n) (void)shutdown(c->fd, SHUT_WR);
    if (c->sent < c->out.n) c->deadline = now + h->o.stall_s;
    watch(c);
}

/* A client has stall_s from the first byte that waits, then from the last one it took. */
static void begin_output(sib_http_conn *c)
{
    if (c->sent == c->out.n) c->deadline = sib_http_now() + c->http->o.stall_s;
}

static void put_head(sib_http_conn *c, int status, const char *type)
{
    begin_output(c);
    sib_buf_addf(&c->out, "HTTP/1.1 %d %s\r\n", status, sib_http_reason(status));
    if (type) sib_buf_addf(&c->out, "Content-Type: %s\r\n", type);
    sib_buf_add(&c->out, c->headers.p ? c->headers.p : "", c->headers.n);
    sib_buf_addz(&c->out, "X-Content-Type-Options: nosniff\r\n");
}

static void refuse(sib_http_conn *c, int status, const char *why)
{
    sib_buf body = {0};
    c->keep = false;
    c->http->h.refusal(c->http->h.ctx, status, why, &body);
    put_head(c, status, "application/json");
    sib_buf_addf(&c->out, "Content-Length: %zu\r\nConnection: close\r\n\r\n", body.n);
    sib_buf_add(&c->out, body.p ? body.p : "", body.n);
    sib_buf_deinit(&body);
    answer_done(c);
}

/* ---- answering ------------------------------------------------------------------------------------ */

void sib_http_set_user(sib_http_conn *c, void *user)
{
    c->user = user;
}

void *sib_http_user(const sib_http_conn *c)
{
    return c->user;
}

const char *sib_http_peer(const sib_http_conn *c)
{
    return c->peer;
}

void sib_http_add_header(sib_http_conn *c, const char *name, const char *value)
{
    sib_buf_addf(&c->headers, "%s: %s\r\n", name, value);
}

double sib_http_quiet_s(const sib_http_conn *c)
{
    return sib_http_now() - c->last_sent;
}

void sib_http_reply(sib_http_conn *c, int status, const char *type, sib_str body)
{
    if (atomic_load(&c->http->stops)) c->keep = false;
    put_head(c, status, type);
    if (status != 204 && status != 304) sib_buf_addf(&c->out, "Content-Length: %zu\r\n", body.n);
    sib_buf_addf(&c->out, "Connection: %s\r\n\r\n", c->keep ? "keep-alive" : "close");
    if (!sib_str_is(c->head.method, "HEAD")) sib_buf_add(&c->out, body.n ? body.p : "", body.n);
    answer_done(c);
}

void sib_http_stream(sib_http_conn *c, int status, const char *type)
{
    if (c->head.minor == 0) c->keep = false; /* no chunks: the end of the connection ends the body */
    put_head(c, status, type);
    sib_buf_addf(&c->out, "%sConnection: %s\r\n\r\n", c->head.minor == 0 ? "" : "Transfer-Encoding: chunked\r\n", c->keep ? "keep-alive" : "close");
    if (c->out.failed || !flush(c)) die(c);
    else watch(c);
}

bool sib_http_send(sib_http_conn *c, sib_str bytes)
{
    if (c->dead) return false;
    if (bytes.n == 0) return true;
    begin_output(c);
    if (c->head.minor == 0) {
        sib_buf_add(&c->out, bytes.p, bytes.n);
    } else {
        sib_buf_addf(&c->out, "%zx\r\n", bytes.n);
        sib_buf_add(&c->out, bytes.p, bytes.n);
        sib_buf_addz(&c->out, "\r\n");
    }
    if (c->out.failed || !flush(c) || c->out.n - c->sent > OUTPUT_LIMIT) {
        die(c);
        return false;
    }
    watch(c);
    return true;
}

void sib_http_finish(sib_http_conn *c)
{
    if (c->dead) { /* reap() must not report an answer that its owner has let go */
        c->user = NULL;
        return;
    }
    if (c->head.minor != 0) sib_buf_addz(&c->out, "0\r\n\r\n");
    answer_done(c);
}

/* ---- reading --------------------------------------------------------------------------------------- */

static void deliver(sib_http_conn *c)
{
    c->state = BUSY;
    c->last_sent = sib_http_now();
    watch(c);
    c->http->h.request(c->http->h.ctx, c, &c->head, &c->body);
}

static void drop_input(sib_http_conn *c, size_t n)
{
    memmove(c->in.p, c->in.p + n, c->in.n - n);
    c->in.n -= n;
    c->scanned = 0;
    if (c->in.n > 0 || c->in.cap <= KEPT_BYTES) return;
    sib_buf_deinit(&c->in);
    c->in = (sib_buf){0};
}

static bool begin_body(sib_http_conn *c)
{
    sib_http *h = c->http;
    const char *why = "the request is malformed";
    int bad = sib_http_parse_head(&c->head, c->line.p, c->line.n, &why);
    if (bad) {
        c->head.minor = 1;
        c->head.method = (sib_str){0};
        refuse(c, bad, why);
        return false;
    }
    c->keep = c->head.keep_alive;
    c->chunks = (sib_http_chunks){0};
    bool has_body = c->head.chunked || c->head.content_length > 0;
    if (!c->head.chunked && !c->head.has_length && (sib_str_is(c->head.method, "POST") || sib_str_is(c->head.method, "PUT"))) {
        refuse(c, 411, "the request has neither Content-Length nor a chunked body");
        return false;
    }
    if (c->head.content_length > h->o.max_body) {
        refuse(c, 413, "the body is larger than this server takes");
        return false;
    }
    if (has_body && c->head.expect_continue && c->in.n == 0) sib_buf_addz(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
    if (!flush(c)) {
        die(c);
        return false;
    }
    c->state = BODY;
    c->deadline = sib_http_now() + h->o.body_s;
    return true;
}

/* True when the body is whole. */
static bool take_body(sib_http_conn *c)
{
    sib_http *h = c->http;
    size_t used;
    int bad = 0;
    if (c->head.chunked) {
        bad = sib_http_chunks_feed(&c->chunks, c->in.p ? c->in.p : "", c->in.n, &used, h->o.max_body, &c->body);
        if (bad) {
            refuse(c, bad, bad == 413 ? "the body is larger than this server takes" : bad == 503 ? "no memory for the body" : "the chunked body is malformed");
            return false;
        }
    } else {
        size_t left = (size_t)c->head.content_length - c->body.n;
        used = left < c->in.n ? left : c->in.n;
        if (used > 0) sib_buf_add(&c->body, c->in.p, used);
    }
    if (used > 0) drop_input(c, used);
    h->buffered += c->body.n - c->counted;
    c->counted = c->body.n;
    if (c->body.failed || h->buffered > h->o.max_buffered) {
        refuse(c, 503, "no memory for the body: too many requests are being received");
        return false;
    }
    return c->head.chunked ? c->chunks.done : c->body.n == c->head.content_length;
}

/* Parses what has arrived, one request after the other. */
static void process(sib_http_conn *c)
{
    while (!c->dead) {
        if (c->state == HEAD) {
            while (c->in.n >= 2 && c->scanned == 0 && memcmp(c->in.p, "\r\n", 2) == 0) drop_input(c, 2); /* RFC 9112 2.2 */
            if (c->in.n == 0) return;
            int64_t end = sib_http_head_end(c->in.p, c->in.n, &c->scanned);
            if (end < 0 || end > SIB_HTTP_MAX_HEAD || (end == 0 && c->in.n > SIB_HTTP_MAX_HEAD)) {
                c->head.minor = 1;
                c->head.method = (sib_str){0};
                refuse(c, end < 0 ? 400 : 431, end < 0 ? "a line of the request does not end in CRLF" : "the request head is too large");
                return;
            }
            if (end == 0) return;
            c->line.n = 0;
            sib_buf_add(&c->line, c->in.p, (size_t)end);
            drop_input(c, (size_t)end);
            if (c->line.failed) die(c);
            else if (!begin_body(c)) return;
        } else if (c->state == BODY) {
            if (!take_body(c)) return;
            deliver(c);
        } else {
            return;
        }
    }
}

/* Reads all there is, or a round's worth; returns false at the end of the stream or on an error. */
static bool read_some(sib_http_conn *c)
{
    for (int i = 0; i < 16; i++) {
        ssize_t n = recv(c->fd, c->http->received, READ_BYTES, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
        if (n == 0) return false;
        if (c->state == LINGER) continue; /* dropped */
        if (c->in.n == 0 && c->state == HEAD) c->deadline = sib_http_now() + c->http->o.head_s;
        sib_buf_add(&c->in, c->http->received, (size_t)n);
        if (c->in.failed) return false;
        process(c);
        if (c->dead || c->state == BUSY) return true;
    }
    return true;
}

static void on_event(sib_http_conn *c, uint32_t events)
{
    bool open = true;
    if (events & EPOLLIN) open = read_some(c);
    if (c->dead) return;
    if (events & EPOLLOUT) {
        if (!flush(c)) {
            die(c);
            return;
        }
        if (c->state == LINGER && c->sent == c->out.n) {
            (void)shutdown(c->fd, SHUT_WR);
            c->deadline = sib_http_now() + LINGER_S;
        }
    }
    if (events & (EPOLLERR | EPOLLHUP)) {
        die(c);
        return;
    }
    if (events & EPOLLRDHUP && c->state == BUSY && c->http->o.allow_half_close) {
        c->half_closed = true;
        c->keep = false;
    } else if ((events & EPOLLRDHUP && c->state == BUSY) || !open) {
        bool unsent = c->sent < c->out.n && c->state != BUSY; /* a whole answer may still be on its way */
        if (!unsent) {
            die(c);
            return;
        }
        c->half_closed = true;
        c->keep = false;
        c->state = LINGER;
    }
    watch(c);
}

/* ---- accepting ------------------------------------------------------------------------------------- */

static void name_peer(sib_http_conn *c, const struct sockaddr_storage *a)
{
    char text[INET6_ADDRSTRLEN] = "?";
    int port = 0;
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)a;
        (void)inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
        port = ntohs(v4->sin_port);
    } else if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)a;
        (void)inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
        port = ntohs(v6->sin6_port);
    }
    (void)snprintf(c->peer, sizeof c->peer, "%s:%d", text, port);
}

static void accept_all(sib_http *h)
{
    for (;;) {
        if (h->n_conns >= h->o.max_connections) {
            watch_listener(h, false); /* the rest waits in the backlog */
            return;
        }
        struct sockaddr_storage a;
        socklen_t n = sizeof a;
        int fd = accept4(h->listener, (struct sockaddr *)&a, &n, SOCK_NONBLOCK | SOCK_CLOEXEC), one = 1;
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (fd < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK) watch_listener(h, false); /* no descriptors: again after a connection ends, or at a tick */
            return;
        }
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        sib_http_conn *c = calloc(1, sizeof *c);
        if (!c) {
            (void)close(fd);
            return;
        }
        c->http = h;
        c->fd = fd;
        c->deadline = sib_http_now() + h->o.head_s;
        c->events = EPOLLIN | EPOLLRDHUP;
        name_peer(c, &a);
        c->next = &h->conns;
        c->prev = h->conns.prev;
        c->prev->next = c->next->prev = c;
        h->n_conns++;
        struct epoll_event e = {.events = c->events, .data.ptr = c};
        if (epoll_ctl(h->epoll, EPOLL_CTL_ADD, fd, &e) != 0) conn_free(c);
    }
}

static sib_status open_listener(sib_http *h, sib_err *err)
{
    char port[16];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list = NULL;
    (void)snprintf(port, sizeof port, "%d", h->o.port);
    int rc = getaddrinfo(h->o.host, port, &hints, &list);
    if (rc != 0) return sib_fail(err, SIB_EARG, "host \"%s\": %s", h->o.host, gai_strerror(rc));
    int problem = 0;
    for (struct addrinfo *a = list; a && h->listener < 0; a = a->ai_next) {
        int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol), one = 1;
        if (fd >= 0) (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (fd < 0 || bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
            problem = errno;
            if (fd >= 0) (void)close(fd);
            continue;
        }
        h->listener = fd;
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)a->ai_addr;
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)a->ai_addr;
        h->loopback = a->ai_family == AF_INET ? ntohl(v4->sin_addr.s_addr) >> 24 == 127 : IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
    }
    freeaddrinfo(list);
    if (h->listener < 0) return sib_fail(err, SIB_EIO, "cannot listen on %s port %d: %s", h->o.host, h->o.port, strerror(problem));
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(h->listener, (struct sockaddr *)&a, &n) == 0)
        h->port = ntohs(a.ss_family == AF_INET ? ((struct sockaddr_in *)&a)->sin_port : ((struct sockaddr_in6 *)&a)->sin6_port);
    return SIB_OK;
}

/* ---- the loop ------------------------------------------------------------------------------------------ */

static void check_deadlines(sib_http *h)
{
    double now = sib_http_now();
    for (sib_http_conn *c = h->conns.next, *next; c != &h->conns; c = next) {
        next = c->next;
        if (c->dead) continue;
        bool unsent = c->sent < c->out.n;
        if ((c->state == BUSY && !unsent) || now < c->deadline) continue; /* the handler has its own limits */
        bool begun = c->in.n > 0 || c->state == BODY;
        if (!unsent && begun && c->state != LINGER)
            refuse(c, 408, c->state == BODY ? "the body did not arrive in time" : "the request head did not arrive in time");
        else
            die(c);
    }
}

/* Nothing is being answered and nothing waits to be sent. */
static bool quiet(const sib_http *h)
{
    for (const sib_http_conn *c = h->conns.next; c != &h->conns; c = c->next)
        if (c->state == BUSY || c->sent < c->out.n) return false;
    return true;
}

static bool drained(sib_http *h)
{
    int stops = atomic_load(&h->stops);
    if (stops == 0) return false;
    if (h->listener >= 0) {
        watch_listener(h, false);
        (void)close(h->listener);
        h->listener = -1;
        h->drain_until = sib_http_now() + atomic_load(&h->drain_s);
    }
    return stops > 1 || quiet(h) || sib_http_now() > h->drain_until;
}

sib_status sib_http_run(sib_http *h, sib_err *err)
{
    struct epoll_event events[64];
    double next_tick = 0;
    while (!drained(h)) {
        bool ticking = h->n_conns > 0 || atomic_load(&h->stops) || !h->listening;
        int n = epoll_wait(h->epoll, events, (int)SIB_COUNT(events), ticking ? TICK_MS : -1);
        if (n < 0 && errno != EINTR) return sib_fail(err, SIB_EIO, "epoll: %s", strerror(errno));
        for (int i = 0; i < n; i++) {
            void *p = events[i].data.ptr;
            uint64_t count;
            if (p == &h->listener) accept_all(h);
            else if (p == &h->event) (void)!read(h->event, &count, sizeof count);
            else if (!((sib_http_conn *)p)->dead) on_event(p, events[i].events);
        }
        if (atomic_exchange(&h->woken, false)) h->h.woken(h->h.ctx);
        /* A connection that went on with pipelined bytes after its answer. */
        for (sib_http_conn *c = h->conns.next, *next; c != &h->conns; c = next) {
            next = c->next;
            if (!c->dead && c->state == HEAD && c->in.n > 0 && c->scanned < c->in.n) {
                process(c);
                if (!c->dead) watch(c);
            }
        }
        double now = sib_http_now();
        if (now >= next_tick) {
            next_tick = now + TICK_MS * 1e-3;
            check_deadlines(h);
            h->h.tick(h->h.ctx);
            if (!atomic_load(&h->stops) && h->n_conns < h->o.max_connections) watch_listener(h, true);
        }
        reap(h);
    }
    for (sib_http_conn *c = h->conns.next; c != &h->conns; c = c->next) c->dead = true;
    reap(h);
    return SIB_OK;
}

void sib_http_wake(sib_http *h)
{
    uint64_t one = 1;
    if (!atomic_exchange(&h->woken, true)) (void)!write(h->event, &one, sizeof one);
}

void sib_http_stop(sib_http *h, int drain_s)
{
    uint64_t one = 1;
    atomic_store(&h->drain_s, drain_s);
    atomic_fetch_add(&h->stops, 1);
    (void)!write(h->event, &one, sizeof one);
}

bool sib_http_stopping(const sib_http *h)
{
    return atomic_load(&h->stops) > 0;
}

int sib_http_port(const sib_http *h)
{
    return h->port;
}

bool sib_http_is_loopback(const sib_http *h)
{
    return h->loopback;
}

static sib_status start(sib_http *h, sib_err *err)
{
    SIB_TRY(open_listener(h, err));
    h->epoll = epoll_create1(EPOLL_CLOEXEC);
    h->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = &h->event};
    if (h->epoll < 0 || h->event < 0 || epoll_ctl(h->epoll, EPOLL_CTL_ADD, h->event, &e) != 0)
        return sib_fail(err, SIB_EIO, "epoll: %s", strerror(errno));
    watch_listener(h, true);
    return SIB_OK;
}

sib_status sib_http_new(sib_http **out, const sib_http_options *o, const sib_http_handler *handler, sib_err *err)
{
    *out = NULL;
    sib_http *h = calloc(1, sizeof *h);
    if (!h) return sib_nomem(err, "server");
    h->o = *o;
    h->h = *handler;
    h->epoll = h->listener = h->event = -1;
    h->conns.next = h->conns.prev = &h->conns;
    sib_status s = start(h, err);
    if (s != SIB_OK) {
        sib_http_free(h);
        return s;
    }
    *out = h;
    return SIB_OK;
}

void sib_http_free(sib_http *h)
{
    if (!h) return;
    while (h->conns.next != &h->conns) conn_free(h->conns.next);
    if (h->listener >= 0) (void)close(h->listener);
    if (h->epoll >= 0) (void)close(h->epoll);
    if (h->event >= 0) (void)close(h->event);
    free(h);
}

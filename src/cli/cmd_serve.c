/* cli/cmd_serve.c - `sibyl serve`: the server (server/server.h) from flags, signals and a log. */
#include "base/log.h"
#include "cli/answer.h"
#include "cli/cmd.h"
#include "cli/term.h"
#include "server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_DRAIN_S 30
#define DEFAULT_PARALLEL 4

/* ---- log: one line an event, reopened after SIGHUP ------------------------------------------------------ */

static struct {
    pthread_mutex_t lock;
    const char *path; /* NULL: standard error */
    int fd;
    atomic_bool reopen;
} logging = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = STDERR_FILENO};

static bool open_log(void)
{
    int fd = open(logging.path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    if (fd < 0) return false;
    if (logging.fd != STDERR_FILENO) (void)close(logging.fd);
    logging.fd = fd;
    return true;
}

static void log_line(void *ctx, sib_log_level level, const char *line)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    char stamp[32];
    struct tm tm;
    time_t now = time(NULL);
    (void)ctx;
    (void)strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    (void)pthread_mutex_lock(&logging.lock);
    if (logging.path && atomic_exchange(&logging.reopen, false)) {
        (void)open_log(); /* when it cannot be opened the old file is still there */
    }
    (void)dprintf(logging.fd, "%s %s %s\n", stamp, names[level], line);
    (void)pthread_mutex_unlock(&logging.lock);
}

static sib_status start_log(const cli_args *a, sib_err *err)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    sib_log_level level = SIB_LOG_INFO;
    for (size_t i = 0; a->log_level && i < SIB_COUNT(names); i++)
        if (strcmp(names[i], a->log_level) == 0) level = (sib_log_level)i;
    logging.path = a->log_file;
    if (logging.path && !open_log()) return sib_fail(err, SIB_EIO, "%s: %s", logging.path, strerror(errno));
    sib_log_set(log_line, NULL, level);
    return SIB_OK;
}

/* ---- signals ------------------------------------------------------------------------------------------------ */

static sib_server *serving;
static int drain_s = DEFAULT_DRAIN_S;

static void on_signal(int sig)
{
    int saved = errno;
    if (sig == SIGHUP) atomic_store(&logging.reopen, true);
    else if (serving) sib_server_stop(serving, drain_s);
    errno = saved;
}

static void catch_signals(bool on)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    struct sigaction a = {.sa_handler = on ? on_signal : SIG_DFL, .sa_flags = SA_RESTART}, ignore = {.sa_handler = SIG_IGN};
    for (size_t i = 0; i < SIB_COUNT(signals); i++) (void)sigaction(signals[i], &a, NULL);
    (void)sigaction(SIGPIPE, &ignore, NULL);
}

/* ---- keys ------------------------------------------------------------------------------------------------------ */

/* Adds the lines of --api-key-file to the keys; *text holds them. */
static sib_status read_keys(cli_args *a, sib_buf *text, sib_err *err)
{
    if (a->api_key_file) SIB_TRY(sib_read_file(a->api_key_file, (size_t)1 << 20, text, err));
    char *save = NULL;
    for (char *z = text->p ? strtok_r(text->p, "\r\n", &save) : NULL; z; z = strtok_r(NULL, "\r\n", &save))
        if (*z && !cli_list_add(&a->api_keys, z)) return sib_nomem(err, "keys");
    for (int i = 0; i < a->api_keys.n; i++)
        if (!a->api_keys.v[i][0]) return sib_fail(err, SIB_EARG, "--api-key: a key is empty");
    if (a->api_key_file && a->api_keys.n == 0) return sib_fail(err, SIB_EFORMAT, "%s holds no key", a->api_key_file);
    return SIB_OK;
}

static const char *last_part(const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash && slash[1] ? slash + 1 : path;
}

static void set_options(sib_server_options *o, const cli_args *a)
{
    *o = sib_server_defaults();
    if (a->host) o->http.host = a->host;
    if (a->port >= 0) o->http.port = a->port;
    if (a->max_body > 0) o->http.max_body = (size_t)a->max_body << 20;
    if (o->http.max_buffered < o->http.max_body) o->http.max_buffered = o->http.max_body;
    if (a->max_connections > 0) o->http.max_connections = a->max_connections;
    o->http.allow_half_close = a->half_close;
    o->parallel = a->parallel;
    if (a->queue >= 0) o->queue = a->queue;
    if (a->queue_timeout > 0) o->queue_timeout_s = a->queue_timeout;
    o->keys = a->api_keys.v;
    o->n_keys = a->api_keys.n;
    o->no_auth = a->no_auth;
    o->origins = a->origins.v;
    o->n_origins = a->origins.n;
    o->model_name = a->alias;
    o->draft_name = last_part(a->options.draft);
    o->any_model = a->any_model;
    o->trust_content = a->trust_content;
    if (a->keepalive) o->keepalive = a->keepalive[0] == 'o' ? SIB_KEEPALIVE_OFF : a->keepalive[1] == 'h' ? SIB_KEEPALIVE_CHUNK : SIB_KEEPALIVE_COMMENT;
}

static sib_status serve(cli_args *a, sib_engine **engine, sib_buf *keys, sib_err *err)
{
    sib_server_options o;
    SIB_TRY(read_keys(a, keys, err));
    if (!a->parallel) a->parallel = DEFAULT_PARALLEL;
    if (a->drain >= 0) drain_s = a->drain;
    a->options.n_sessions = a->parallel;
    set_options(&o, a);
    SIB_TRY(cli_open(engine, a, err));
    SIB_TRY(start_log(a, err));
    SIB_TRY(sib_server_new(&serving, *engine, &o, err));
    catch_signals(true);
    if (a->json) (void)printf("{\"host\":\"%s\",\"port\":%d}\n", o.http.host, sib_server_port(serving));
    else (void)printf("listening on http://%s:%d\n", o.http.host, sib_server_port(serving));
    (void)fflush(stdout);
    return sib_server_run(serving, err);
}

int cmd_serve(cli_args *a)
{
    sib_engine *engine = NULL;
    sib_buf keys = {0};
    sib_err err = {0};
    sib_status s = serve(a, &engine, &keys, &err);
    sib_server *done = serving;
    catch_signals(false);
    serving = NULL;
    sib_server_free(done);
    sib_close(engine);
    sib_buf_deinit(&keys);
    return cli_exit(s, &err, !a->library_asked);
}

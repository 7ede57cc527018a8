/* cli/term.c - see term.h. */
#include "cli/term.h"

#include "base/utf8.h"
#include "cli/options.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/* ---- sentences ---------------------------------------------------------------------------- */

/* One line whatever it quotes: names in hostile files may hold newlines or escapes. */
static void say(const char *sentence)
{
    (void)fputs("sibyl: ", stderr);
    for (const char *p = sentence; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c < 0x20 || c == 0x7f)
            (void)fprintf(stderr, "\\x%02x", c);
        else
            (void)fputc(c, stderr);
    }
    (void)fputc('\n', stderr);
}

int cli_usage(const char *fmt, ...)
{
    char text[640];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    say(text);
    return CLI_USAGE;
}

int cli_exit(sib_status s, const sib_err *err, bool usage)
{
    if (s == SIB_OK) return CLI_OK;
    if (s == SIB_ECANCELLED && cli_interrupted) return CLI_INTERRUPTED;
    say(err->message);
    return usage && s == SIB_EARG ? CLI_USAGE : CLI_FAILURE;
}

/* ---- terminal ------------------------------------------------------------------------------ */

bool cli_is_terminal(FILE *f)
{
    return isatty(fileno(f)) == 1;
}

const char *cli_style_on(FILE *f, cli_style s)
{
    static const char *const codes[] = {"\033[0m", "\033[1m", "\033[2m", "\033[32m", "\033[31m", "\033[36m"};
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    bool wanted = cli_is_terminal(f) && !(no && *no) && !(term && strcmp(term, "dumb") == 0);
    return wanted ? codes[s] : "";
}

void cli_put_text(FILE *f, const char *p, size_t n)
{
    if (!n) return;
    if (!cli_is_terminal(f)) {
        (void)fwrite(p, 1, n, f);
        return;
    }
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c = sib_utf8_next(p + i, n - i, &len);
        bool control = (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0);
        if (control || c == SIB_UTF8_BAD)
            (void)fputs("\xef\xbf\xbd", f);
        else
            (void)fwrite(p + i, 1, len, f);
    }
}

bool cli_flush(FILE *f)
{
    return fflush(f) == 0 && !ferror(f);
}

cli_size cli_size_of(double bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    cli_size s;
    size_t u = 0;
    for (; bytes >= 1024 && u + 1 < SIB_COUNT(units); u++) bytes /= 1024;
    (void)snprintf(s.text, sizeof s.text, u ? "%.*f %s" : "%.*f %s", u && bytes < 100 ? 1 : 0, bytes, units[u]);
    return s;
}

double cli_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- progress ------------------------------------------------------------------------------- */

void cli_progress_begin(cli_progress *p)
{
    p->begin = cli_now();
    p->drawn = 0;
}

/* Time to draw: half a second after the start, then ten times a second. */
static bool due(cli_progress *p)
{
    double now = cli_now();
    if (!cli_is_terminal(stderr) || now - p->begin < 0.5 || now - p->drawn < 0.1) return false;
    p->drawn = now;
    return true;
}

bool cli_progress_step(void *progress, const char *what, uint64_t done, uint64_t total)
{
    if (due(progress)) {
        struct winsize w = {0};
        int columns = ioctl(fileno(stderr), TIOCGWINSZ, &w) == 0 && w.ws_col ? w.ws_col : 80;
        int cells = columns - 44 > 40 ? 40 : columns - 44;
        double part = total ? (double)done / (double)total : 0;
        int full = cells > 0 ? (int)(part * cells + 0.5) : 0;
        (void)fprintf(stderr, "\r\033[K%.16s ", what ? what : "loading");
        for (int i = 0; i < cells; i++) (void)fputs(i < full ? "█" : "░", stderr);
        (void)fprintf(stderr, " %3.0f%% %s", 100 * part, cli_size_of((double)total).text);
        (void)fflush(stderr);
    }
    return !cli_interrupted;
}

void cli_progress_count(cli_progress *p, const char *what, int done, int total)
{
    if (!due(p)) return;
    (void)fprintf(stderr, "\r\033[K%s %d/%d", what, done, total);
    (void)fflush(stderr);
}

void cli_progress_end(cli_progress *p)
{
    if (p->drawn > 0) (void)fputs("\r\033[K", stderr);
    p->drawn = 0;
}

/* ---- Ctrl-C ---------------------------------------------------------------------------------- */

volatile sig_atomic_t cli_interrupted;
static _Atomic(sib_session *) target; /* lock-free, so a handler may read it */

static void on_interrupt(int sig)
{
    (void)sig;
    cli_interrupted = 1;
    sib_session *s = atomic_load(&target);
    if (s) sib_session_cancel(s);
}

void cli_interrupt_target(sib_session *s)
{
    atomic_store(&target, s);
}

void cli_catch_interrupts(bool die_at_second)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = die_at_second ? (int)SA_RESETHAND : 0};
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL); /* no SA_RESTART: a blocked read must return */
}

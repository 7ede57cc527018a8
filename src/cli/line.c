/* cli/line.c - see line.h. */
#include "cli/line.h"

#include "base/utf8.h"
#include "cli/term.h"

#include <errno.h>
#include <histedit.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#define HISTORY_LINES     1000
#define MAX_MESSAGE_BYTES ((size_t)16 << 20)

struct cli_line {
    EditLine *edit; /* NULL: standard input is not a terminal */
    History *history;
    char *history_path; /* NULL: nowhere to keep it */
    bool continued;     /* the prompt of a second line */
    char *line;         /* of getline */
    size_t line_cap;
};

/* ---- history file ------------------------------------------------------------------------------ */

/* "base/sibyl/history", its folders made with mode 0700; NULL when that cannot be. */
static char *history_path(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *folder = NULL, *path = NULL;
    if (state && state[0] == '/')
        folder = sib_path_join(state, "sibyl");
    else if (home && home[0] == '/')
        folder = sib_path_join(home, ".local/state/sibyl");
    for (char *p = folder ? strchr(folder + 1, '/') : NULL; p; p = strchr(p + 1, '/')) {
        *p = 0;
        (void)mkdir(folder, 0700);
        *p = '/';
    }
    if (folder && (mkdir(folder, 0700) == 0 || errno == EEXIST)) path = sib_path_join(folder, "history");
    free(folder);
    return path;
}

static void remember(cli_line *l, const char *line)
{
    HistEvent event;
    if (!l->history || !line[strspn(line, " \t\r\n")]) return;
    (void)history(l->history, &event, H_ENTER, line);
}

/* ---- terminal ------------------------------------------------------------------------------------ */

/* Between two '\1' stands what takes no room on the line (EL_PROMPT_ESC). */
static char *prompt(EditLine *edit)
{
    static char text[48];
    cli_line *l = NULL;
    (void)el_get(edit, EL_CLIENTDATA, &l);
    (void)snprintf(text, sizeof text, "\1%s\1%s\1%s\1 ", cli_style_on(stdout, CLI_CYAN), l && l->continued ? "." : ">",
                   cli_style_on(stdout, CLI_PLAIN));
    return text;
}

/* Reads one character. libedit's own reader would swallow the first Ctrl-C; this one lets it end the line. */
static int read_key(EditLine *edit, wchar_t *out)
{
    char bytes[4];
    size_t n = 0, len;
    (void)edit;
    for (;;) {
        ssize_t got = read(STDIN_FILENO, bytes + n, 1);
        if (got == 0) return 0;
        if (got < 0 && errno == EINTR && !cli_interrupted) continue;
        if (got < 0) return -1;
        n++;
        if (sib_utf8_complete((sib_str){bytes, n}) < n) continue; /* the rest of it is still to come */
        uint32_t c = sib_utf8_next(bytes, n, &len);
        *out = c == SIB_UTF8_BAD ? L'\xfffd' : (wchar_t)c;
        return 1;
    }
}

static bool open_editor(cli_line *l)
{
    HistEvent event;
    l->edit = el_init("sibyl", stdin, stdout, stderr);
    l->history = history_init();
    if (!l->edit || !l->history) return false;
    (void)history(l->history, &event, H_SETSIZE, HISTORY_LINES);
    (void)history(l->history, &event, H_SETUNIQUE, 1);
    (void)el_set(l->edit, EL_CLIENTDATA, l);
    (void)el_set(l->edit, EL_PROMPT_ESC, prompt, '\1');
    (void)el_set(l->edit, EL_EDITOR, "emacs");
    (void)el_set(l->edit, EL_HIST, history, l->history);
    (void)el_set(l->edit, EL_GETCFN, read_key);
    (void)el_set(l->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    (void)el_source(l->edit, NULL); /* the user's ~/.editrc */
    l->history_path = history_path();
    if (l->history_path) (void)history(l->history, &event, H_LOAD, l->history_path);
    return true;
}

cli_line *cli_line_open(void)
{
    cli_line *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || open_editor(l)) return l;
    cli_line_close(l);
    return NULL;
}

void cli_line_close(cli_line *l)
{
    if (!l) return;
    HistEvent event;
    if (l->history && l->history_path) {
        mode_t before = umask(077); /* what people type is theirs alone */
        (void)history(l->history, &event, H_SAVE, l->history_path);
        (void)umask(before);
        (void)chmod(l->history_path, 0600);
    }
    if (l->edit) el_end(l->edit);
    if (l->history) history_end(l->history);
    free(l->history_path);
    free(l->line);
    free(l);
}

/* ---- lines ------------------------------------------------------------------------------------------ */

/* One line without its end, appended to out. */
static cli_line_end read_line(cli_line *l, sib_buf *out)
{
    const char *p;
    ssize_t n;
    errno = 0;
    if (l->edit) {
        int count = 0;
        el_resize(l->edit);
        p = el_gets(l->edit, &count);
        n = p ? count : -1;
        if (p && count > 0) remember(l, p);
    } else {
        n = getline(&l->line, &l->line_cap, stdin);
        p = l->line;
    }
    if (n <= 0 && cli_interrupted) return CLI_LINE_INTERRUPTED;
    if (n <= 0) return CLI_LINE_EOF;
    if (p[n - 1] == '\n') n--;
    if (out->n + (size_t)n > MAX_MESSAGE_BYTES) return CLI_LINE_FAILED;
    sib_buf_add(out, p, (size_t)n);
    return out->failed ? CLI_LINE_FAILED : CLI_LINE_OK;
}

static bool ends_with(const sib_buf *b, size_t from, const char *z)
{
    return b->n >= from + strlen(z) && sib_ends_with(b->p, z);
}

static void cut(sib_buf *b, size_t n)
{
    b->n -= n;
    b->p[b->n] = 0;
}

cli_line_end cli_line_read(cli_line *l, sib_buf *out)
{
    static const char quotes[] = "\"\"\"";
    sib_buf_deinit(out);
    l->continued = false;
    cli_line_end end = read_line(l, out);
    l->continued = true;
    if (end == CLI_LINE_OK && out->n && sib_starts_with(out->p, quotes)) {
        while (end == CLI_LINE_OK && !ends_with(out, 3, quotes)) {
            sib_buf_addc(out, '\n');
            end = read_line(l, out);
        }
        /* The end of input ends the message too. */
        if (end == CLI_LINE_OK) cut(out, 3);
        if (end == CLI_LINE_EOF) end = CLI_LINE_OK;
        if (end == CLI_LINE_OK) {
            memmove(out->p, out->p + 3, out->n - 3 + 1);
            out->n -= 3;
        }
        return end;
    }
    while (end == CLI_LINE_OK && ends_with(out, 0, "\\")) {
        cut(out, 1);
        sib_buf_addc(out, '\n');
        end = read_line(l, out);
        if (end == CLI_LINE_EOF) return CLI_LINE_OK;
    }
    return end;
}

/* cli/canvas_view.c - see canvas_view.h. */
#include "cli/canvas_view.h"

#include "base/utf8.h"
#include "cli/term.h"

#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>

static void screen(int *columns, int *rows)
{
    struct winsize w = {0};
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0;
    *columns = known && w.ws_col > 1 ? w.ws_col : 80;
    *rows = known && w.ws_row > 2 ? w.ws_row : 24;
}

/* Columns that the character at p takes; *len its bytes. What cli_put_text replaces takes one. */
static int width_at(const char *p, size_t n, size_t *len)
{
    uint32_t c = sib_utf8_next(p, n, len);
    if (c == SIB_UTF8_BAD) {
        *len = 1;
        return 1;
    }
    int width = utf8proc_charwidth((utf8proc_int32_t)c);
    return c < 0x20 || width < 0 ? 1 : width;
}

void cli_canvas_view_clear(cli_canvas_view *v)
{
    if (v->lines == 0) return;
    int up = v->lines - (v->column > 0 ? 0 : 1); /* a frame behind text begins on a line of its own */
    (void)putchar('\r');
    if (up > 0) (void)printf("\033[%dA", up);
    if (v->column > 0) (void)printf("\033[%dC", v->column);
    (void)fputs("\033[J", stdout);
    v->lines = 0;
}

void cli_canvas_view_text(cli_canvas_view *v, const char *text, size_t n)
{
    int columns, rows;
    cli_canvas_view_clear(v);
    screen(&columns, &rows);
    cli_put_text(stdout, text, n);
    for (size_t i = 0, len; i < n; i += len) {
        int width = width_at(text + i, n - i, &len);
        if (text[i] == '\n')
            v->column = 0;
        else
            v->column = v->column + width > columns ? width : v->column + width;
    }
    if (v->column == columns) v->column = columns - 1; /* the cursor waits on the last column */
    (void)fflush(stdout);
}

void cli_canvas_view_draw(cli_canvas_view *v, const char *text, size_t n, int step, int steps)
{
    int columns, rows, column = 0;
    cli_canvas_view_clear(v);
    screen(&columns, &rows);
    if (v->column > 0) (void)putchar('\n');
    (void)printf("%s[%d/%d]", cli_style_on(stdout, CLI_DIM), step, steps);
    v->lines = 1;
    column = columns; /* the text begins on the next line */
    for (size_t i = 0, len; i < n; i += len) {
        int width = width_at(text + i, n - i, &len);
        bool new_line = text[i] == '\n';
        if (new_line || column + width >= columns) {
            if (v->lines + 1 >= rows) break; /* the frame must stay on the screen to be redrawn */
            (void)putchar('\n');
            v->lines++;
            column = 0;
        }
        if (new_line) continue;
        cli_put_text(stdout, text[i] == '\t' ? " " : text + i, text[i] == '\t' ? 1 : len);
        column += width;
    }
    (void)fputs(cli_style_on(stdout, CLI_PLAIN), stdout);
    (void)fflush(stdout);
}

/* cli/term.h - what the program says, and how: sentences for people, colours, sizes, the
 * loading bar, Ctrl-C.
 *
 * Colours and control sequences go to terminals only, and colours only without NO_COLOR
 * (https://no-color.org). Text from a model or a file never reaches a terminal with its
 * control characters intact. */
#ifndef SIB_CLI_TERM_H
#define SIB_CLI_TERM_H

#include "base/str.h"

#include <signal.h>
#include <stdio.h>

/* "sibyl: sentence" on stderr. The first returns CLI_USAGE. The second says nothing for SIB_OK
 * and returns the exit status of `s`: SIB_EARG with `usage` is CLI_USAGE, a stop that Ctrl-C
 * asked for CLI_INTERRUPTED, everything else CLI_FAILURE. */
int cli_usage(const char *fmt, ...) SIB_PRINTF(1, 2);
int cli_exit(sib_status s, const sib_err *err, bool usage);

bool cli_is_terminal(FILE *f);

typedef enum cli_style { CLI_PLAIN, CLI_BOLD, CLI_DIM, CLI_GREEN, CLI_RED, CLI_CYAN } cli_style;
/* The escape sequence of a style on f, "" where colours are not wanted. CLI_PLAIN ends a style. */
const char *cli_style_on(FILE *f, cli_style s);

/* Writes valid UTF-8; on a terminal, control characters but newline and tab become U+FFFD. */
void cli_put_text(FILE *f, const char *p, size_t n);
/* Flushes; false when something could not be written (full disk). */
bool cli_flush(FILE *f);

/* "9.3 MiB", "512 bytes" */
typedef struct cli_size {
    char text[24];
} cli_size;
cli_size cli_size_of(double bytes);

double cli_now(void); /* seconds, monotonic */

/* A bar on stderr while weights load: shown after half a second, on a terminal only. */
typedef struct cli_progress {
    double begin, drawn;
} cli_progress;
void cli_progress_begin(cli_progress *p);
bool cli_progress_step(void *progress, const char *what, uint64_t done, uint64_t total); /* a sib_progress_fn */
/* A count instead of bytes: "what 17/200". */
void cli_progress_count(cli_progress *p, const char *what, int done, int total);
void cli_progress_end(cli_progress *p);

/* Ctrl-C: `cli_interrupted` becomes 1 and the session named last by cli_interrupt_target is
 * cancelled. With `die_at_second`, the second one ends the program at once. */
extern volatile sig_atomic_t cli_interrupted;
void cli_catch_interrupts(bool die_at_second);
void cli_interrupt_target(sib_session *s); /* NULL: none */

#endif

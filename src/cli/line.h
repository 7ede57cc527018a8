/* cli/line.h - what a person types, message by message: line editing and history on a
 * terminal (libedit), plain lines otherwise.
 *
 * A line that ends with a backslash goes on in the next one; a line that begins with """
 * begins a message that ends with the next """ at a line's end. */
#ifndef SIB_CLI_LINE_H
#define SIB_CLI_LINE_H

#include "base/str.h"

typedef struct cli_line cli_line;

typedef enum cli_line_end { CLI_LINE_OK, CLI_LINE_EOF, CLI_LINE_INTERRUPTED, CLI_LINE_FAILED } cli_line_end;

/* History is kept in $XDG_STATE_HOME/sibyl/history (mode 0600). NULL without memory. */
cli_line *cli_line_open(void);
void cli_line_close(cli_line *l);

/* One message without its line end into `out` (emptied first). INTERRUPTED: Ctrl-C while typing. */
cli_line_end cli_line_read(cli_line *l, sib_buf *out);

#endif

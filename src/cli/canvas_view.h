/* cli/canvas_view.h - a diffusion canvas on a terminal while it settles: drawn below the text so far, redrawn in place
 * after every step, gone when the settled text comes. Used by `sibyl chat`. */
#ifndef SIB_CLI_CANVAS_VIEW_H
#define SIB_CLI_CANVAS_VIEW_H

#include "base/status.h"

/* Zero is empty: nothing is drawn, the cursor is at the left. */
typedef struct cli_canvas_view {
    int column; /* where the settled text ends */
    int lines;  /* of the frame on the screen  */
} cli_canvas_view;

/* Writes settled text to stdout in the frame's place. */
void cli_canvas_view_text(cli_canvas_view *v, const char *text, size_t n);
void cli_canvas_view_draw(cli_canvas_view *v, const char *text, size_t n, int step, int steps);
/* Takes the frame off the screen (an answer that was cut short). */
void cli_canvas_view_clear(cli_canvas_view *v);

#endif

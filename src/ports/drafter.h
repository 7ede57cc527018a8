/* ports/drafter.h - a drafter guesses tokens; the target decides. Neither knows the other's name.
 *
 *   open       checks the target's offers and facts against its needs, then reads its weights
 *   needs()    which ports and sizes it must find
 *   settle()   rows of the target's last forward that became part of a timeline: prompt
 *              chunks and kept rows of verify rounds alike, in order, each row once
 *   propose()  up to `max` guesses after the pending token
 *
 * A wrong guess costs time, never text. A drafter may read the target only through its ports.
 * After `settle` of rows up to position p (exclusive) the token decided for position p is
 * `next`; it is the pending token of the following propose. */
#ifndef SIB_PORTS_DRAFTER_H
#define SIB_PORTS_DRAFTER_H

#include "ports/model.h"

typedef struct sib_drafter sib_drafter;
typedef struct sib_draft_state sib_draft_state; /* one timeline's state, drafter-private */

typedef struct sib_needs {
    bool taps, donors, vocab, mtp, hidden; /* ports; hidden = final hidden rows in settle */
    const int *tap_layers;
    int n_taps;
    int hidden_width, n_layers, n_vocab; /* required facts; 0: any */
} sib_needs;

typedef struct sib_propose {
    sib_draft_state *state;
    sib_seq *seq;       /* the target's; its committed length is `position`     */
    int32_t pending;    /* decided, not yet processed by the target             */
    int32_t position;   /* of pending                                           */
    int max;            /* 1.. guesses wanted                                   */
    int32_t *ids;       /* out [max]                                            */
    int n;              /* out 0..max                                           */
} sib_propose;

typedef struct sib_settle {
    sib_draft_state *state;
    sib_seq *seq;
    const int32_t *ids;  /* [n] host: the rows' tokens                                */
    int n;
    int32_t pos0;        /* position of the first row                                 */
    int32_t next;        /* the token at position pos0 + n; -1: not decided (stopped) */
    bool prompt;         /* a prompt chunk that more prompt rows follow               */
    const float *hidden; /* device [n][hidden] after the final norm; valid in the call */
    const float *taps;   /* device [n][n_taps * hidden] or NULL; valid in the call     */
} sib_settle;

typedef struct sib_drafter_ops {
    const char *kind; /* "assistant" */
    void (*free)(sib_drafter *d);
    const sib_needs *(*needs)(const sib_drafter *d);
    sib_status (*state_new)(sib_drafter *d, sib_draft_state **out, sib_err *err);
    void (*state_free)(sib_drafter *d, sib_draft_state *s);
    /* The timeline goes back to `length` positions; SIB_ESTATE when the state cannot: it is then empty
     * and the drafter guesses from what it is told next. */
    sib_status (*truncate)(sib_drafter *d, sib_draft_state *s, int length, sib_err *err);
    sib_status (*propose)(sib_drafter *d, sib_propose *lanes, int n, sib_err *err);
    sib_status (*settle)(sib_drafter *d, const sib_settle *lanes, int n, sib_err *err);
} sib_drafter_ops;

/* First member of every drafter's struct. */
struct sib_drafter {
    const sib_drafter_ops *ops;
    int max_draft;     /* never ask for more */
    int default_draft;
};

#endif

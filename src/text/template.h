/* text/template.h - chat templates: the part of Jinja that checkpoints use, with Python's values and texts.
 *
 *   source --parse--> sib_template (immutable, shared between threads)
 *   JSON   --set----> sib_template_vars (immutable while a rendering reads them)
 *   both   --render-> text, or a fault: what kind, which line, one sentence
 *
 * The language is Jinja2 3.1 as transformers sets it up (formats.md D.2): sandboxed, trim_blocks, lstrip_blocks,
 * no autoescape, break and continue, {% generation %}, tojson as json.dumps, raise_exception, strftime_now. What is
 * rendered equals the reference byte for byte; the parts of Jinja that are left out (inheritance, includes, a few
 * filters) end in SIB_EUNSUPPORTED, never in another text.
 *
 * Templates come with downloaded checkpoints and variables from clients, so both are hostile: parsing and rendering
 * are bounded in nesting, steps, time, memory and output, nothing outside the values is reachable, and a failed
 * call leaves the output as it was. */
#ifndef SIB_TEXT_TEMPLATE_H
#define SIB_TEXT_TEMPLATE_H

#include "base/json.h"
#include "base/str.h"

#include <time.h>

typedef struct sib_template sib_template;
typedef struct sib_template_vars sib_template_vars;
typedef struct sib_template_marks sib_template_marks;

/* What went wrong, and the status that goes with it. */
typedef enum sib_template_kind {
    SIB_TEMPLATE_FINE = 0,
    SIB_TEMPLATE_RAISED,      /* the template called raise_exception: SIB_EARG          */
    SIB_TEMPLATE_SYNTAX,      /* it does not parse: SIB_EFORMAT                         */
    SIB_TEMPLATE_UNDEFINED,   /* use of an undefined value: SIB_EARG                    */
    SIB_TEMPLATE_RUNTIME,     /* wrong type, division by zero, bad argument: SIB_EARG   */
    SIB_TEMPLATE_SECURITY,    /* change of a list or dict, or a "__name__": SIB_EFORMAT */
    SIB_TEMPLATE_LIMIT,       /* nesting, steps, time, memory, output: SIB_ECAPACITY    */
    SIB_TEMPLATE_UNSUPPORTED, /* Jinja that this engine leaves out: SIB_EUNSUPPORTED    */
    SIB_TEMPLATE_NOMEM        /* the system has no memory: SIB_ENOMEM                   */
} sib_template_kind;

/* Filled by a failed call that is given one; the caller frees `message`. */
typedef struct sib_template_fault {
    sib_template_kind kind;
    int line;        /* of the template's source, from 1; 0 when unknown */
    sib_buf message; /* whole, without name and line; for RAISED exactly the argument of raise_exception */
} sib_template_fault;

/* Zero means the default. */
typedef struct sib_template_options {
    const struct tm *now;         /* what strftime_now sees; NULL: local time of the call             */
    uint64_t max_steps;           /* 10,000,000: expressions, loop turns, and 64 bytes of string work */
    size_t max_output;            /* 64 MiB                                                           */
    size_t max_memory;            /* 256 MiB of values                                                */
    int64_t max_ns;               /* 2 s of wall clock                                                */
    int64_t (*clock)(void *self); /* nanoseconds that never go back; NULL: CLOCK_MONOTONIC            */
    void *clock_self;
} sib_template_options;

/* `name` (a file name, copied) stands in front of every sentence of this template, with the line. */
sib_status sib_template_parse(sib_template **out, sib_str source, const char *name, sib_template_fault *fault, sib_err *err);
void sib_template_free(sib_template *t);

/* Variables by name. A later set of the same name wins. Each copies what it is given. */
sib_status sib_template_vars_new(sib_template_vars **out, sib_err *err);
void sib_template_vars_free(sib_template_vars *v);
sib_status sib_template_vars_set(sib_template_vars *v, const char *name, const json_t *value, sib_err *err);
sib_status sib_template_vars_set_str(sib_template_vars *v, const char *name, sib_str text, sib_err *err);
/* From JSON text, keeping integers of any length exact (jansson refuses those beyond int64). */
sib_status sib_template_vars_set_json(sib_template_vars *v, const char *name, sib_str json, sib_err *err);
/* Sets every member of a JSON object given as text. */
sib_status sib_template_vars_set_all(sib_template_vars *v, sib_str json, sib_err *err);

/* Which bytes of a rendering came from outside: the marks belong to one set of variables (template_internal.h says how
 * these are given theirs), and every byte that a rendering copies from a marked one, or makes from it, is marked too. */
sib_status sib_template_marks_new(sib_template_marks **out, sib_err *err);
void sib_template_marks_free(sib_template_marks *m); /* after the variables */
/* The marked parts of the last rendering, which began at offset `base` of its output. */
void sib_template_marks_spans(const sib_template_marks *m, size_t base, sib_spans *out);

/* Appends the text to `out`; on failure `out` is as before. For RAISED err->message is the message itself
 * (cut where it does not fit), else "name: line n: sentence". opt, fault and err may be NULL. */
sib_status sib_template_render(const sib_template *t, const sib_template_vars *v, const sib_template_options *opt,
                               sib_buf *out, sib_template_fault *fault, sib_err *err);

#endif

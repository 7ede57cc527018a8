/* sample/grammar_internal.h - programs, shared by what compiles them (grammar_regex.c, grammar_schema.c) and what runs them.
 *
 * Code is emitted backwards: an emitter gets the pc that follows and returns the pc to enter at. Errors are sticky: a failed
 * program emits nothing more. */
#ifndef SIB_SAMPLE_GRAMMAR_INTERNAL_H
#define SIB_SAMPLE_GRAMMAR_INTERNAL_H

#include "sample/grammar.h"

enum { SIB_G_BYTES, SIB_G_SPLIT, SIB_G_CALL, SIB_G_RETURN };

typedef struct sib_g_op {
    uint8_t op, lo, hi; /* BYTES: a byte in lo..hi, then x */
    int32_t x, y;       /* SPLIT: x or y; CALL: x, then y  */
} sib_g_op;

struct sib_grammar_program {
    sib_g_op *ops;
    int32_t n, cap, start;
    sib_status status;
    sib_err *err; /* while compiling */
};

typedef struct sib_g_range {
    uint32_t lo, hi; /* code points, inclusive */
} sib_g_range;

int32_t sib_g_emit(sib_grammar_program *p, sib_g_op op);
int32_t sib_g_split(sib_grammar_program *p, int32_t x, int32_t y);
int32_t sib_g_text(sib_grammar_program *p, sib_str text, int32_t next);
int32_t sib_g_ranges(sib_grammar_program *p, const sib_g_range *r, int n, int32_t next); /* one character */
/* Fails the program. */
int32_t sib_g_fail(sib_grammar_program *p, sib_status s, const char *fmt, ...) SIB_PRINTF(3, 4);
sib_status sib_g_new(sib_grammar_program **out, sib_err *err);
/* A pattern; in_string: inside a JSON string, where quotes, backslashes and control characters cannot stand. search: the pattern may match
 * anywhere unless it is anchored. */
int32_t sib_g_regex(sib_grammar_program *p, sib_str pattern, bool in_string, bool search, int32_t next);

#endif

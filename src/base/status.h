/* base/status.h - how a failure travels: a status for programs, a sentence for people.
 *
 * The deepest place that knows what is wrong writes the sentence with sib_fail;
 * each level that knows more puts a prefix in front with sib_within:
 *
 *     "layer 7: self_attn.q_proj.weight: expected 256 columns, file has 255"
 *
 * Every function here accepts err == NULL. */
#ifndef SIB_BASE_STATUS_H
#define SIB_BASE_STATUS_H

#include "sibyl/sibyl.h"

#define SIB_TRY(call)                                                                              \
    do {                                                                                           \
        sib_status sib_try_ = (call);                                                              \
        if (sib_try_ != SIB_OK) return sib_try_;                                                   \
    } while (0)

#define SIB_COUNT(a) (sizeof(a) / sizeof((a)[0]))

#if defined(__GNUC__)
#define SIB_PRINTF(fmt_at, args_at) __attribute__((format(printf, fmt_at, args_at)))
#else
#define SIB_PRINTF(fmt_at, args_at)
#endif

/* Writes the sentence and returns `s`. A message that does not fit is cut. */
sib_status sib_fail(sib_err *err, sib_status s, const char *fmt, ...) SIB_PRINTF(3, 4);

/* Puts "prefix: " in front of the sentence already in `err` and returns `s`. */
sib_status sib_within(sib_err *err, sib_status s, const char *fmt, ...) SIB_PRINTF(3, 4);

/* "out of memory: what" with SIB_ENOMEM. */
sib_status sib_nomem(sib_err *err, const char *what);

/* What an analyser must know to follow error paths: these return the status they are given. */
#if defined(__clang_analyzer__) && !defined(SIB_STATUS_BODY)
#define sib_fail(err, s, ...) ((void)sib_fail(err, s, __VA_ARGS__), (s))
#define sib_within(err, s, ...) ((void)sib_within(err, s, __VA_ARGS__), (s))
#define sib_nomem(err, what) ((void)sib_nomem(err, what), SIB_ENOMEM)
#endif

#endif

/* sample/stop.h - where generation ends: end-of-sequence ids and stop strings.
 *
 * A stop string is looked for in the bytes of the text, across token borders. Text that could
 * be the beginning of one is held back:
 *
 *   stop "END"    feed "the E"  -> "the "     (holds "E")
 *                 feed "ntry"   -> "Entry"
 *                 feed " E"     -> " "        (holds "E")
 *                 feed "ND."    -> hit, cut before "END"; "." and all later text is dropped
 *
 * The string that is complete first ends the text, at whatever borders the text arrives; of
 * several that are complete at the same byte the one that began first, and of equal ones
 * the first listed. Used by gen/ and server/. */
#ifndef SIB_SAMPLE_STOP_H
#define SIB_SAMPLE_STOP_H

#include "base/str.h"

#define SIB_MAX_STOPS 64
#define SIB_MAX_STOP_BYTES 1024

typedef struct sib_stop sib_stop;

/* Copies the strings; empty ones never match but keep their index. SIB_EARG beyond the limits. */
sib_status sib_stop_new(sib_stop **out, const sib_str *strings, size_t n, sib_err *err);
void sib_stop_free(sib_stop *m); /* NULL is fine */

/* Appends to `out` what may be shown now. After a hit nothing more is appended. */
sib_status sib_stop_feed(sib_stop *m, sib_str text, sib_buf *out, sib_err *err);

/* The text ended without a hit: appends what was held back. */
sib_status sib_stop_flush(sib_stop *m, sib_buf *out, sib_err *err);

int sib_stop_hit(const sib_stop *m);      /* index of the string that ended the text, -1 if none did */
uint64_t sib_stop_cut(const sib_stop *m); /* bytes of text before it; without a hit, bytes released so far */
void sib_stop_reset(sib_stop *m);         /* ready for another text */

/* A small set of token ids. */
typedef struct sib_id_set {
    int32_t *v; /* ascending, distinct; owned */
    size_t n;
} sib_id_set;

sib_status sib_id_set_init(sib_id_set *set, const int32_t *ids, size_t n, sib_err *err);
void sib_id_set_deinit(sib_id_set *set);
bool sib_id_set_has(const sib_id_set *set, int32_t id); /* a NULL set is empty */

#endif

/* text/pretokenizer_pattern.h - finds the matches of a `pattern` of tokenizer.json.
 *
 * A pattern is a literal string, a class of single characters, or a regular expression.
 * The expressions of the model families are recognised by their exact text and run by
 * hand-written matchers (linear time, Unicode 16); any other goes to PCRE2 with bounded
 * effort, after a check that both regular expression languages agree on what it uses.
 * Used by pretokenizer.c and normalizer.c. Specified by formats.md C.4 and C.8. */
#ifndef SIB_TEXT_PRETOKENIZER_PATTERN_H
#define SIB_TEXT_PRETOKENIZER_PATTERN_H

#include "base/json.h"

typedef struct sib_pattern sib_pattern;

/* From {"String": ...} or {"Regex": ...}. */
sib_status sib_pattern_new(sib_pattern **out, const json_t *spec, const char *where, sib_err *err);
sib_status sib_pattern_of_string(sib_pattern **out, sib_str literal, const char *where, sib_err *err);
sib_status sib_pattern_of_regex(sib_pattern **out, sib_str regex, const char *where, sib_err *err);
/* Matches each single character for which the test holds. */
sib_status sib_pattern_of_class(sib_pattern **out, bool (*test)(uint32_t cp), sib_err *err);
void sib_pattern_free(sib_pattern *z);

/* A walk over the matches in `text` (valid UTF-8), left to right, not overlapping. */
typedef struct sib_matches {
    const sib_pattern *pattern;
    sib_str text;
    size_t from;       /* where the search goes on                          */
    size_t last_end;   /* end of the match before, SIZE_MAX before the first */
    void *regex_state; /* PCRE2 only                                        */
} sib_matches;

sib_status sib_matches_init(sib_matches *m, const sib_pattern *z, sib_str text, sib_err *err);
/* *found false: no more. A match can be empty only for a regular expression. */
sib_status sib_matches_next(sib_matches *m, bool *found, size_t *start, size_t *end, sib_err *err);
void sib_matches_deinit(sib_matches *m);

#endif

/* text/pretokenizer_known.h - hand-written matchers for the split expressions of the model families.
 *
 * They exist because these expressions run over every prompt: linear time, no engine
 * limits, and the character classes of Unicode 16. Used by pretokenizer_pattern.c. */
#ifndef SIB_TEXT_PRETOKENIZER_KNOWN_H
#define SIB_TEXT_PRETOKENIZER_KNOWN_H

#include "base/str.h"

/* End of the match that begins exactly at byte `at` < text.n, or `at` when none does. */
typedef size_t (*sib_known_fn)(sib_str text, size_t at);

/* The matcher for this very expression text, or NULL. */
sib_known_fn sib_known_pattern(sib_str regex);

/* The expression that ByteLevel runs with use_regex. */
extern const char sib_gpt2_regex[];

#endif

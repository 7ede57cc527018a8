/* cli/json_out.h - the objects that --json prints, built with jansson.
 *
 * Their keys are a contract ("Command line" of the manual page). A helper that cannot get
 * memory yields NULL, which jansson's setters refuse: cli_json_print then fails as a whole. */
#ifndef SIB_CLI_JSON_OUT_H
#define SIB_CLI_JSON_OUT_H

#include "base/json.h"

json_t *cli_json_text(const char *p, size_t n); /* malformed UTF-8 becomes U+FFFD */
json_t *cli_json_real(double v);                /* rounded to 6 digits; null when not finite */
json_t *cli_json_ids(const int32_t *ids, size_t n);
/* Sets a new reference; false, and value dropped, without memory. */
bool cli_json_set(json_t *object, const char *key, json_t *value);

/* Takes the reference. Prints one line on stdout; SIB_ENOMEM when object is NULL or cannot be written out. */
sib_status cli_json_print(json_t *object, sib_err *err);

/* The "speculation" and "diffusion" objects of `stats`. */
json_t *cli_json_speculation(const sib_stats *s, const char *drafter);
json_t *cli_json_diffusion(const sib_stats *s);

#endif

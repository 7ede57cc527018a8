/* artifacts/generation_config.h - sampling defaults of a checkpoint (formats.md E).
 *
 * Order of precedence, applied by the callers: request, command line, this file, built in.
 * Keys that change the output and that nothing here implements are listed in one warning. */
#ifndef SIB_ARTIFACTS_GENERATION_CONFIG_H
#define SIB_ARTIFACTS_GENERATION_CONFIG_H

#include "base/json.h"

#define SIB_GENERATION_MAX_IDS   64
#define SIB_GENERATION_MAX_STOPS 16

typedef struct sib_generation_config {
    /* Which of the fields below the file has. */
    bool has_bos, has_pad, has_do_sample, has_temperature, has_top_k, has_top_p, has_min_p;
    bool has_repetition_penalty, has_presence_penalty, has_frequency_penalty;
    bool has_max_new_tokens, has_max_length, has_min_new_tokens, has_min_length, has_num_assistant_tokens;

    int32_t eos[SIB_GENERATION_MAX_IDS]; /* all of them stop; n_eos 0: the file has none */
    int n_eos;
    int32_t suppress[SIB_GENERATION_MAX_IDS]; /* ids that are never drawn */
    int n_suppress;
    int32_t bos, pad;
    bool do_sample; /* false: greedy unless a request sets a temperature */
    double temperature, top_p, min_p;
    int top_k;                 /* 0: off */
    double repetition_penalty; /* multiplicative, 1: off */
    double presence_penalty, frequency_penalty;
    int64_t max_new_tokens, max_length; /* max_length counts the prompt */
    int64_t min_new_tokens, min_length;
    int num_assistant_tokens;                    /* draft length when the drafter names none */
    const char *stops[SIB_GENERATION_MAX_STOPS]; /* borrowed from `json` */
    int n_stops;
} sib_generation_config;

/* `json` NULL (no file) gives the built-in values with every flag false. `where` names the file. */
sib_status sib_generation_config_parse(sib_generation_config *g, const json_t *json, const char *where, sib_err *err);

/* eos ids of any config object (an integer or a list under `key`) added to eos[*n], without repeats. */
sib_status sib_eos_ids_add(int32_t eos[static SIB_GENERATION_MAX_IDS], int *n, const json_t *config, const char *key,
                           const char *where, sib_err *err);

#endif

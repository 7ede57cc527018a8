/* artifacts/generation_config.c - see generation_config.h. */
#include "artifacts/generation_config.h"

#include "base/log.h"

#include <float.h>
#include <string.h>

static sib_status add_id(int32_t *ids, int *n, const json_t *v, const char *where, const char *key, sib_err *err)
{
    json_int_t id = json_integer_value(v);
    if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
        return sib_fail(err, SIB_EFORMAT, "%s: key \"%s\" must be a token id or a list of token ids", where, key);
    for (int i = 0; i < *n; i++)
        if (ids[i] == id) return SIB_OK;
    if (*n == SIB_GENERATION_MAX_IDS)
        return sib_fail(err, SIB_EFORMAT, "%s: key \"%s\" holds more than %d ids", where, key, SIB_GENERATION_MAX_IDS);
    ids[(*n)++] = (int32_t)id;
    return SIB_OK;
}

sib_status sib_eos_ids_add(int32_t eos[static SIB_GENERATION_MAX_IDS], int *n, const json_t *config, const char *key,
                           const char *where, sib_err *err)
{
    const json_t *v = sib_json_get(config, key);
    if (!v) return SIB_OK;
    if (!json_is_array(v)) return add_id(eos, n, v, where, key, err);
    for (size_t i = 0; i < json_array_size(v); i++) SIB_TRY(add_id(eos, n, json_array_get(v, i), where, key, err));
    return SIB_OK;
}

/* Keys that would change the output and that nothing here implements, with the value that does nothing. */
static const struct {
    const char *key;
    double neutral;
} unsupported[] = {
    {"num_beams", 1},
    {"num_beam_groups", 1},
    {"num_return_sequences", 1},
    {"diversity_penalty", 0},
    {"length_penalty", 1},
    {"no_repeat_ngram_size", 0},
    {"encoder_no_repeat_ngram_size", 0},
    {"encoder_repetition_penalty", 1},
    {"typical_p", 1},
    {"epsilon_cutoff", 0},
    {"eta_cutoff", 0},
    {"top_h", 1},
    {"guidance_scale", 1},
    {"penalty_alpha", 0},
    {"renormalize_logits", 0},
    {"begin_suppress_tokens", 0},
    {"bad_words_ids", 0},
    {"force_words_ids", 0},
    {"constraints", 0},
    {"forced_bos_token_id", -1},
    {"forced_eos_token_id", -1},
    {"forced_decoder_ids", 0},
    {"exponential_decay_length_penalty", 0},
    {"sequence_bias", 0},
    {"token_healing", 0},
    {"watermarking_config", 0},
    {"dola_layers", 0},
    {"max_time", 0},
};

static bool is_neutral(const json_t *v, double neutral)
{
    if (!v || json_is_false(v)) return true;
    if (json_is_array(v)) return json_array_size(v) == 0;
    if (json_is_object(v)) return json_object_size(v) == 0;
    return json_is_number(v) && json_number_value(v) == neutral;
}

static void warn_unsupported(const json_t *json, const char *where)
{
    sib_buf list = {0};
    for (size_t i = 0; i < SIB_COUNT(unsupported); i++)
        if (!is_neutral(sib_json_get(json, unsupported[i].key), unsupported[i].neutral))
            sib_buf_addf(&list, list.n ? ", %s" : "%s", unsupported[i].key);
    if (list.n) sib_log(SIB_LOG_WARN, "%s: not supported and ignored: %s", where, list.p);
    sib_buf_deinit(&list);
}

/* The typed readers leave *out alone for a missing key; `has` tells which it was. */
static sib_status num(const json_t *o, const char *where, const char *key, double lo, double hi, double *out, bool *has,
                      sib_err *err)
{
    *has = sib_json_get(o, key) != NULL;
    return sib_json_num(o, where, key, lo, hi, out, err);
}

static sib_status integer(const json_t *o, const char *where, const char *key, int64_t lo, int64_t hi, int64_t *out,
                          bool *has, sib_err *err)
{
    *has = sib_json_get(o, key) != NULL;
    return sib_json_int(o, where, key, lo, hi, out, err);
}

static sib_status int32(const json_t *o, const char *where, const char *key, int64_t lo, int32_t *out, bool *has,
                        sib_err *err)
{
    int64_t v = *out;
    SIB_TRY(integer(o, where, key, lo, INT32_MAX, &v, has, err));
    *out = (int32_t)v;
    return SIB_OK;
}

static sib_status read_stops(sib_generation_config *g, const json_t *json, const char *where, sib_err *err)
{
    const json_t *v = sib_json_get(json, "stop_strings");
    bool one = json_is_string(v);
    if (v && !one && !json_is_array(v))
        return sib_fail(err, SIB_EFORMAT, "%s: key \"stop_strings\" must be a string or a list of strings", where);
    size_t n = one ? 1 : json_array_size(v);
    if (n > SIB_GENERATION_MAX_STOPS)
        return sib_fail(err, SIB_EFORMAT, "%s: key \"stop_strings\" holds more than %d strings", where,
                        SIB_GENERATION_MAX_STOPS);
    for (size_t i = 0; i < n; i++) {
        const json_t *s = one ? v : json_array_get(v, i);
        const char *z = json_string_value(s);
        if (!z || !*z || strlen(z) != json_string_length(s))
            return sib_fail(err, SIB_EFORMAT, "%s: key \"stop_strings\" must hold non-empty strings", where);
        g->stops[g->n_stops++] = z;
    }
    return SIB_OK;
}

sib_status sib_generation_config_parse(sib_generation_config *g, const json_t *json, const char *where, sib_err *err)
{
    *g = (sib_generation_config){.do_sample = true, .temperature = 1, .top_p = 1, .repetition_penalty = 1};
    if (!json) return SIB_OK;
    SIB_TRY(sib_eos_ids_add(g->eos, &g->n_eos, json, "eos_token_id", where, err));
    /* Ids that are never drawn (Gemma 4 lists its picture and audio ends here, gemma4.md 5.5). */
    SIB_TRY(sib_eos_ids_add(g->suppress, &g->n_suppress, json, "suppress_tokens", where, err));
    SIB_TRY(int32(json, where, "bos_token_id", 0, &g->bos, &g->has_bos, err));
    SIB_TRY(int32(json, where, "pad_token_id", -1, &g->pad, &g->has_pad, err));
    g->has_do_sample = sib_json_get(json, "do_sample") != NULL;
    SIB_TRY(sib_json_bool(json, where, "do_sample", &g->do_sample, err));
    SIB_TRY(num(json, where, "temperature", 0, 1e6, &g->temperature, &g->has_temperature, err));
    SIB_TRY(num(json, where, "top_p", 0, 1, &g->top_p, &g->has_top_p, err));
    SIB_TRY(num(json, where, "min_p", 0, 1, &g->min_p, &g->has_min_p, err));
    SIB_TRY(int32(json, where, "top_k", -1, &g->top_k, &g->has_top_k, err));
    if (g->top_k < 0) g->top_k = 0; /* another way to write "off" */
    SIB_TRY(
        num(json, where, "repetition_penalty", DBL_MIN, 1e6, &g->repetition_penalty, &g->has_repetition_penalty, err));
    SIB_TRY(num(json, where, "presence_penalty", -1e6, 1e6, &g->presence_penalty, &g->has_presence_penalty, err));
    SIB_TRY(num(json, where, "frequency_penalty", -1e6, 1e6, &g->frequency_penalty, &g->has_frequency_penalty, err));
    SIB_TRY(integer(json, where, "max_new_tokens", 0, INT64_MAX, &g->max_new_tokens, &g->has_max_new_tokens, err));
    SIB_TRY(integer(json, where, "max_length", 0, INT64_MAX, &g->max_length, &g->has_max_length, err));
    SIB_TRY(integer(json, where, "min_new_tokens", 0, INT64_MAX, &g->min_new_tokens, &g->has_min_new_tokens, err));
    SIB_TRY(integer(json, where, "min_length", 0, INT64_MAX, &g->min_length, &g->has_min_length, err));
    SIB_TRY(int32(json, where, "num_assistant_tokens", 0, &g->num_assistant_tokens, &g->has_num_assistant_tokens, err));
    SIB_TRY(read_stops(g, json, where, err));
    warn_unsupported(json, where);
    return SIB_OK;
}

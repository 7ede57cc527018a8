/* text/tokenizer_internal.h - the body of sib_tokenizer.
 *
 * Shared by tokenizer.c, which runs it, and tokenizer_json.c, which fills it. */
#ifndef SIB_TEXT_TOKENIZER_INTERNAL_H
#define SIB_TEXT_TOKENIZER_INTERNAL_H

#include "text/bpe.h"
#include "text/detokenizer.h"
#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_added.h"

typedef struct sib_tokenizer_var {
    char *name, *value; /* owned; value NUL-terminated after n bytes */
    size_t n;
} sib_tokenizer_var;

struct sib_tokenizer {
    sib_bpe bpe;
    int32_t n_ids;        /* largest id + 1 of vocabulary, added tokens, post-processor       */
    int32_t *added_at;    /* [n_ids]: index of the id's token in `by_text`, or -1             */
    uint8_t *barred;      /* [n_ids]: 1 for what PLAIN_TEXT must not produce: special, not unk */
    sib_added raw;        /* added tokens matched before the normalizer             */
    sib_added normalized; /* those matched after it                                 */
    sib_added by_text;    /* all, under their own text                              */
    sib_normalizer *normalizer;
    sib_pretokenizer *pretokenizer;
    sib_decoder *decoder;
    sib_ids prefix, suffix; /* what the post-processor puts around a text           */

    sib_tokenizer_var *vars;
    size_t n_vars;
    int32_t bos, eos;
    bool add_bos;
};

/* Fills a zeroed tokenizer from the text of tokenizer.json and tokenizer_config.json. */
sib_status sib_tokenizer_load(sib_tokenizer *t, sib_str json, sib_err *err);
sib_status sib_tokenizer_load_config(sib_tokenizer *t, sib_str json, sib_err *err);

#endif

/* text/tokenizer_internal.h - the body of sib_tokenizer, shared by tokenizer.c (running) and tokenizer_json.c (loading). */
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
    uint8_t *special; /* [bpe.n_ids]: 1 for special tokens                          */
    uint8_t *barred;  /* [bpe.n_ids]: what PLAIN_TEXT must not produce: special but not unk */
    sib_added raw;        /* added tokens matched before the normalizer             */
    sib_added normalized; /* those matched after it                                 */
    sib_added by_text;    /* all, under their own text: sib_tokenizer_id            */
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

/* text/tokenizer.c - see tokenizer.h. */
#include "text/tokenizer_internal.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* ---- life ---- */

sib_status sib_tokenizer_parse(sib_tokenizer **out, sib_str json, const char *name, sib_str config, sib_err *err)
{
    *out = NULL;
    sib_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return sib_nomem(err, "tokenizer");
    sib_bpe_init(&t->bpe);
    t->bos = t->eos = -1;
    sib_status s = sib_tokenizer_load(t, json, err);
    if (s != SIB_OK)
        s = sib_within(err, s, "%s", name);
    else if (config.n)
        s = sib_tokenizer_load_config(t, config, err);
    if (s != SIB_OK) {
        sib_tokenizer_free(t);
        return s;
    }
    *out = t;
    return SIB_OK;
}

sib_status sib_tokenizer_open(sib_tokenizer **out, const char *path, const char *config_path, sib_err *err)
{
    *out = NULL;
    sib_buf json = {0}, config = {0};
    sib_status s = sib_read_file(path, SIB_TOKENIZER_MAX_BYTES, &json, err);
    if (s == SIB_OK && config_path) s = sib_read_file(config_path, SIB_TOKENIZER_CONFIG_MAX_BYTES, &config, err);
    if (s == SIB_OK) s = sib_tokenizer_parse(out, sib_buf_view(&json), path, sib_buf_view(&config), err);
    sib_buf_deinit(&json);
    sib_buf_deinit(&config);
    return s;
}

void sib_tokenizer_free(sib_tokenizer *t)
{
    if (!t) return;
    sib_bpe_deinit(&t->bpe);
    free(t->added_at);
    free(t->barred);
    sib_added_deinit(&t->raw);
    sib_added_deinit(&t->normalized);
    sib_added_deinit(&t->by_text);
    sib_normalizer_free(t->normalizer);
    sib_pretokenizer_free(t->pretokenizer);
    sib_decoder_free(t->decoder);
    sib_ids_deinit(&t->prefix);
    sib_ids_deinit(&t->suffix);
    for (size_t i = 0; i < t->n_vars; i++) {
        free(t->vars[i].name);
        free(t->vars[i].value);
    }
    free(t->vars);
    free(t);
}

/* ---- questions ---- */

int32_t sib_tokenizer_n_vocab(const sib_tokenizer *t)
{
    return t->n_ids;
}

int32_t sib_tokenizer_id(const sib_tokenizer *t, sib_str token)
{
    if (token.n == 0) token = SIB_STR(""); /* may be {NULL, 0} */
    const sib_added_token *hit = sib_added_exact(&t->by_text, token);
    uint32_t id = hit ? (uint32_t)hit->id : sib_bpe_id(&t->bpe, token);
    return id == SIB_NO_ID ? -1 : (int32_t)id;
}

/* The added token with this id, or NULL. */
static const sib_added_token *added_of(const sib_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids && t->added_at[id] >= 0 ? &t->by_text.v[t->added_at[id]] : NULL;
}

sib_str sib_tokenizer_piece(const sib_tokenizer *t, int32_t id)
{
    const sib_added_token *added = added_of(t, id);
    if (added) return (sib_str){added->content, added->n};
    return id < 0 ? (sib_str){NULL, 0} : sib_bpe_text(&t->bpe, (uint32_t)id);
}

bool sib_tokenizer_is_special(const sib_tokenizer *t, int32_t id)
{
    const sib_added_token *added = added_of(t, id);
    return added && added->special;
}

int32_t sib_tokenizer_bos(const sib_tokenizer *t)
{
    return t->bos;
}

int32_t sib_tokenizer_eos(const sib_tokenizer *t)
{
    return t->eos;
}

bool sib_tokenizer_add_bos(const sib_tokenizer *t)
{
    return t->add_bos;
}

bool sib_tokenizer_variable(const sib_tokenizer *t, size_t i, const char **name, sib_str *value)
{
    if (i >= t->n_vars) return false;
    *name = t->vars[i].name;
    *value = (sib_str){t->vars[i].value, t->vars[i].n};
    return true;
}

/* ---- encoding ---- */

typedef struct encoder {
    const sib_tokenizer *t;
    const sib_text_span *plain; /* [n_plain] of the whole text: no special tokens there */
    size_t n_plain;
    bool section_plain; /* the section at hand holds bytes of a span                  */
    sib_buf normal; /* a section's normal form */
    sib_pieces pieces;
    sib_bpe_scratch scratch;
    const char *start; /* of the whole text */
    sib_ids *out;
    sib_err *err;
} encoder;

/* Text without added tokens, normalized. */
static sib_status encode_section(encoder *e, sib_str text, bool first)
{
    if (text.n == 0) return SIB_OK;
    sib_pieces_set(&e->pieces, text, first);
    SIB_TRY(sib_pretokenizer_run(e->t->pretokenizer, &e->pieces, e->err));
    for (size_t i = 0; i < e->pieces.n; i++) {
        sib_str piece = {e->pieces.text.p + e->pieces.v[i].at, e->pieces.v[i].n};
        SIB_TRY(sib_bpe_encode(&e->t->bpe, piece, e->section_plain ? e->t->barred : NULL, &e->scratch, e->out, e->err));
    }
    return SIB_OK;
}

static sib_status between(encoder *e, const sib_added *set, sib_str text, bool first, const sib_text_span *plain, size_t n_plain,
                          sib_status (*inner)(encoder *, sib_str, bool))
{
    sib_added_walk w = {.text = text, .plain = plain, .n_plain = n_plain};
    size_t from = 0, start, end;
    const sib_added_token *hit;
    while ((hit = sib_added_next(set, &w, &start, &end)) != NULL) {
        if (start > from) SIB_TRY(inner(e, (sib_str){text.p + from, start - from}, first && from == 0));
        sib_ids_add(e->out, hit->id);
        from = end;
    }
    return inner(e, (sib_str){text.p + from, text.n - from}, first && from == 0);
}

/* Whether text[at..at + n) of the whole text overlaps a span; sections come in order, so passed spans are dropped. */
static bool is_plain(encoder *e, size_t at, size_t n)
{
    while (e->n_plain && e->plain->at + e->plain->n <= at) e->plain++, e->n_plain--;
    return e->n_plain && e->plain->at < at + n;
}

/* Text without tokens of the raw set. A normal form keeps no offsets, so a section that holds plain bytes is plain as
 * a whole: checkpoints match their special tokens before the normalizer. */
static sib_status encode_raw(encoder *e, sib_str text, bool first)
{
    if (text.n == 0) return SIB_OK;
    e->section_plain = is_plain(e, (size_t)(text.p - e->start), text.n);
    if (!sib_normalizer_is_identity(e->t->normalizer)) {
        e->normal.n = 0;
        SIB_TRY(sib_normalizer_run(e->t->normalizer, text, &e->normal, e->err));
        text = sib_buf_view(&e->normal);
    }
    sib_text_span all = {0, text.n};
    return between(e, &e->t->normalized, text, first, &all, e->section_plain ? 1 : 0, encode_section);
}

static sib_status check_utf8(sib_str text, sib_err *err)
{
    for (size_t i = 0, len; i < text.n; i += len)
        if (sib_utf8_next(text.p + i, text.n - i, &len) == SIB_UTF8_BAD)
            return sib_fail(err, SIB_EARG, "the text is not valid UTF-8 at byte %zu", i);
    return SIB_OK;
}

sib_status sib_tokenizer_encode(const sib_tokenizer *t, sib_str text, unsigned flags, sib_ids *out, sib_err *err)
{
    sib_text_span all = {0, text.n};
    sib_spans plain = {.v = &all, .n = flags & SIB_PLAIN_TEXT && text.n ? 1 : 0};
    return sib_tokenizer_encode_given(t, text, &plain, flags, out, err);
}

sib_status sib_tokenizer_encode_given(const sib_tokenizer *t, sib_str text, const sib_spans *plain, unsigned flags, sib_ids *out, sib_err *err)
{
    if (text.n > SIB_ENCODE_MAX_BYTES)
        return sib_fail(err, SIB_ECAPACITY, "a text of %zu bytes is too long to tokenize (at most %zu)", text.n,
                        SIB_ENCODE_MAX_BYTES);
    if (text.n == 0) text = SIB_STR(""); /* may be {NULL, 0} */
    SIB_TRY(check_utf8(text, err));
    size_t before = out->n;
    encoder e = {.t = t, .plain = plain->v, .n_plain = plain->n, .start = text.p, .out = out, .err = err};
    if (flags & SIB_ADD_SPECIAL)
        for (size_t i = 0; i < t->prefix.n; i++) sib_ids_add(out, t->prefix.v[i]);
    sib_status s = between(&e, &t->raw, text, true, plain->v, plain->n, encode_raw);
    if (flags & SIB_ADD_SPECIAL)
        for (size_t i = 0; i < t->suffix.n; i++) sib_ids_add(out, t->suffix.v[i]);
    if (s == SIB_OK && out->failed) s = sib_nomem(err, "token ids");
    if (s != SIB_OK) out->n = before;
    sib_buf_deinit(&e.normal);
    sib_pieces_deinit(&e.pieces);
    sib_bpe_scratch_deinit(&e.scratch);
    return s;
}

/* ---- decoding ---- */

#define USUAL_TOKEN 512 /* bytes of a token's text that a stream handles without growing its buffers */

struct sib_detok {
    const sib_tokenizer *t;
    unsigned flags;
    sib_decoding decoding;
};

/* What a token is decoded from: its piece, or the normal form of a `normalized` added token. */
static sib_str printed_text(const sib_tokenizer *t, int32_t id)
{
    const sib_added_token *added = added_of(t, id);
    if (!added || !added->shown) return sib_tokenizer_piece(t, id);
    const sib_added_token *normal = &t->normalized.v[added->shown - 1];
    return (sib_str){normal->content, normal->n};
}

void sib_tokenizer_bytes(const sib_tokenizer *t, int32_t id, sib_buf *out)
{
    sib_str token = id >= 0 ? printed_text(t, id) : (sib_str){0};
    if (token.p) sib_decoder_bytes(t->decoder, token, out);
}

sib_status sib_detok_new(sib_detok **out, const sib_tokenizer *t, unsigned flags, sib_err *err)
{
    sib_detok *d = calloc(1, sizeof *d);
    *out = NULL;
    if (!d || !sib_buf_reserve(&d->decoding.text, USUAL_TOKEN) || !sib_buf_reserve(&d->decoding.spare, USUAL_TOKEN)) {
        sib_detok_free(d);
        return sib_nomem(err, "detokenizer");
    }
    d->t = t;
    d->flags = flags;
    *out = d;
    return SIB_OK;
}

void sib_detok_free(sib_detok *d)
{
    if (!d) return;
    sib_decoding_deinit(&d->decoding);
    free(d);
}

sib_status sib_detok_feed(sib_detok *d, int32_t id, sib_buf *out, sib_err *err)
{
    if (id < 0) return sib_fail(err, SIB_EARG, "token id %d is negative", id);
    sib_str token = printed_text(d->t, id);
    if (!token.p || (!(d->flags & SIB_KEEP_SPECIAL) && sib_tokenizer_is_special(d->t, id))) return SIB_OK;
    return sib_decoding_push(&d->decoding, d->t->decoder, token, out, err);
}

sib_status sib_detok_flush(sib_detok *d, sib_buf *out, sib_err *err)
{
    return sib_decoding_end(&d->decoding, d->t->decoder, out, err);
}

sib_status sib_tokenizer_decode(const sib_tokenizer *t, const int32_t *ids, size_t n, unsigned flags, sib_buf *out,
                                sib_err *err)
{
    sib_detok d = {.t = t, .flags = flags};
    sib_status s = SIB_OK;
    for (size_t i = 0; i < n && s == SIB_OK; i++) s = sib_detok_feed(&d, ids[i], out, err);
    if (s == SIB_OK) s = sib_detok_flush(&d, out, err);
    sib_decoding_deinit(&d.decoding);
    return s;
}

/* text/detokenizer.c - see detokenizer.h. */
#include "text/detokenizer.h"

#include "base/utf8.h"
#include "text/unicode_bytes.h"

#include <stdlib.h>
#include <string.h>

#define MAX_STEPS   8
#define MAX_CONTENT 64             /* bytes that Replace may write for a match */
#define MAX_TOKEN   (1 << 20)      /* bytes of a token's text after any step   */
#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

typedef struct step {
    enum { REPLACE, METASPACE, STRIP } kind;
    sib_buf from, to;         /* REPLACE; from: METASPACE's mark, STRIP's character */
    bool drop_first;          /* METASPACE: marks of the first token vanish         */
    uint32_t n_front, n_back; /* STRIP                                            */
} step;

struct sib_decoder {
    step steps[MAX_STEPS];
    size_t n;
    enum { PLAIN, BYTE_FALLBACK, BYTE_LEVEL } bytes;
    bool spaced; /* no decoder: tokens are joined by spaces */
    bool fused;  /* what follows sees one text              */
    step strip;  /* of the whole text; from.n 0: none       */
};

/* ---- from JSON ---- */

static sib_status read_text(const json_t *spec, const char *where, const char *key, sib_buf *out, sib_err *err)
{
    const json_t *v = json_object_get(spec, key);
    if (!json_is_string(v)) return sib_fail(err, SIB_EFORMAT, "%s: key \"%s\" must be a string", where, key);
    sib_buf_add(out, json_string_value(v), json_string_length(v));
    return out->failed ? sib_nomem(err, where) : SIB_OK;
}

static sib_status read_mark(const json_t *spec, const char *where, const char *key, sib_buf *out, sib_err *err)
{
    SIB_TRY(read_text(spec, where, key, out, err));
    if (sib_utf8_count(sib_buf_view(out)) != 1)
        return sib_fail(err, SIB_EFORMAT, "%s: key \"%s\" must be one character", where, key);
    return SIB_OK;
}

/* A step on single tokens; these must come before the tokens are bytes or one text. */
static sib_status add_step(sib_decoder *z, const char *type, step **out, sib_err *err)
{
    if (z->fused || z->bytes != PLAIN)
        return sib_fail(err, SIB_EUNSUPPORTED, "decoder: %s behind ByteFallback, ByteLevel or Fuse is not supported",
                        type);
    if (z->n == MAX_STEPS) return sib_fail(err, SIB_EUNSUPPORTED, "decoder: more than %d steps", MAX_STEPS);
    *out = &z->steps[z->n++];
    return SIB_OK;
}

static sib_status read_strip(sib_decoder *z, const json_t *spec, sib_err *err)
{
    static const char where[] = "decoder Strip";
    int64_t front = 0, back = 0;
    step *st = &z->strip;
    if (!z->fused && z->bytes == PLAIN)
        SIB_TRY(add_step(z, "Strip", &st, err));
    else if (!z->fused || st->from.n)
        return sib_fail(err, SIB_EUNSUPPORTED, "%s: here it must come once, behind Fuse", where);
    st->kind = STRIP;
    SIB_TRY(read_mark(spec, where, "content", &st->from, err));
    SIB_TRY(sib_json_int(spec, where, "start", 0, 1 << 16, &front, err));
    SIB_TRY(sib_json_int(spec, where, "stop", 0, 1 << 16, &back, err));
    st->n_front = (uint32_t)front;
    st->n_back = (uint32_t)back;
    return SIB_OK;
}

static sib_status add(sib_decoder *z, const json_t *spec, int depth, sib_err *err)
{
    const char *type = NULL;
    step *st = NULL;
    if (!json_is_object(spec)) return sib_fail(err, SIB_EFORMAT, "decoder: must be an object");
    SIB_TRY(sib_json_str(spec, "decoder", "type", &type, err));
    if (!type) return sib_fail(err, SIB_EFORMAT, "decoder: key \"type\" is missing");
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(spec, "decoders"), *item;
        size_t i;
        if (!json_is_array(list)) return sib_fail(err, SIB_EFORMAT, "decoder: key \"decoders\" must be a list");
        if (depth == 4) return sib_fail(err, SIB_EUNSUPPORTED, "decoder: Sequence nested deeper than 4 levels");
        json_array_foreach(list, i, item) SIB_TRY(add(z, item, depth + 1, err));
        return SIB_OK;
    }
    if (strcmp(type, "Fuse") == 0) {
        z->fused = true;
        return SIB_OK;
    }
    if (strcmp(type, "ByteFallback") == 0 || strcmp(type, "ByteLevel") == 0) {
        if (z->fused || z->bytes != PLAIN)
            return sib_fail(err, SIB_EUNSUPPORTED,
                            "decoder: %s behind ByteFallback, ByteLevel or Fuse is not supported", type);
        z->bytes = type[4] == 'F' ? BYTE_FALLBACK : BYTE_LEVEL;
        z->fused = z->bytes == BYTE_LEVEL; /* it joins all tokens */
        return SIB_OK;
    }
    if (strcmp(type, "Strip") == 0) return read_strip(z, spec, err);
    if (strcmp(type, "Replace") == 0) {
        const json_t *pattern = json_object_get(spec, "pattern");
        if (json_object_get(pattern, "Regex"))
            return sib_fail(err, SIB_EUNSUPPORTED, "decoder Replace: a pattern of kind \"Regex\" is not supported");
        SIB_TRY(add_step(z, type, &st, err));
        st->kind = REPLACE;
        SIB_TRY(read_text(pattern, "decoder Replace", "String", &st->from, err));
        if (st->from.n == 0) return sib_fail(err, SIB_EUNSUPPORTED, "decoder Replace: the pattern is an empty string");
        SIB_TRY(read_text(spec, "decoder Replace", "content", &st->to, err));
        if (st->to.n > MAX_CONTENT)
            return sib_fail(err, SIB_EUNSUPPORTED, "decoder Replace: key \"content\" is longer than %d bytes",
                            MAX_CONTENT);
        return SIB_OK;
    }
    if (strcmp(type, "Metaspace") == 0) {
        const char *scheme = "always";
        bool old_prefix = true;
        SIB_TRY(add_step(z, type, &st, err));
        st->kind = METASPACE;
        SIB_TRY(read_mark(spec, "decoder Metaspace", "replacement", &st->from, err));
        SIB_TRY(sib_json_str(spec, "decoder Metaspace", "prepend_scheme", &scheme, err));
        SIB_TRY(sib_json_bool(spec, "decoder Metaspace", "add_prefix_space", &old_prefix, err));
        st->drop_first = old_prefix && strcmp(scheme, "never") != 0;
        return SIB_OK;
    }
    return sib_fail(err, SIB_EUNSUPPORTED, "decoder: type \"%s\" is not supported", type);
}

sib_status sib_decoder_new(sib_decoder **out, const json_t *spec, sib_err *err)
{
    *out = NULL;
    sib_decoder *z = calloc(1, sizeof *z);
    if (!z) return sib_nomem(err, "decoder");
    z->spaced = !spec;
    sib_status s = spec ? add(z, spec, 0, err) : SIB_OK;
    if (s != SIB_OK) {
        sib_decoder_free(z);
        return s;
    }
    *out = z;
    return SIB_OK;
}

void sib_decoder_free(sib_decoder *z)
{
    if (!z) return;
    for (size_t i = 0; i < MAX_STEPS; i++) {
        sib_buf_deinit(&z->steps[i].from);
        sib_buf_deinit(&z->steps[i].to);
    }
    sib_buf_deinit(&z->strip.from);
    free(z);
}

/* ---- steps on one token's text ---- */

/* Number of repetitions of `mark` at the front of s, at most `max`. */
static uint32_t count_front(sib_str s, sib_str mark, uint32_t max)
{
    uint32_t n = 0;
    for (; n < max && s.n >= mark.n && memcmp(s.p, mark.p, mark.n) == 0; n++) s = (sib_str){s.p + mark.n, s.n - mark.n};
    return n;
}

static uint32_t count_back(sib_str s, sib_str mark, uint32_t max)
{
    uint32_t n = 0;
    for (; n < max && s.n >= mark.n && memcmp(s.p + s.n - mark.n, mark.p, mark.n) == 0; n++) s.n -= mark.n;
    return n;
}

static void run_step(const step *st, bool first_token, sib_str in, sib_buf *out)
{
    sib_str from = sib_buf_view(&st->from), to = st->kind == REPLACE ? sib_buf_view(&st->to) : SIB_STR(" ");
    if (st->kind == STRIP) {
        size_t front = count_front(in, from, st->n_front) * from.n;
        in = (sib_str){in.p + front, in.n - front};
        in.n -= count_back(in, from, st->n_back) * from.n;
        sib_buf_add(out, in.p, in.n);
        return;
    }
    if (st->kind == METASPACE && st->drop_first && first_token) to.n = 0;
    while (in.n) {
        const char *hit = memmem(in.p, in.n, from.p, from.n);
        size_t n = hit ? (size_t)(hit - in.p) : in.n;
        sib_buf_add(out, in.p, n);
        if (!hit) break;
        sib_buf_add(out, to.p, to.n);
        in = (sib_str){hit + from.n, in.n - n - from.n};
    }
}

/* The byte of a token "<0xHH>", or -1. */
static int byte_of_token(sib_str s)
{
    if (s.n != 6 || memcmp(s.p, "<0x", 3) != 0 || s.p[5] != '>') return -1;
    int v = 0;
    for (int i = 3; i < 5; i++) {
        char c = s.p[i];
        if (c >= '0' && c <= '9')
            v = 16 * v + (c - '0');
        else if ((c >= 'A' && c <= 'F') || (c >= 'a' && c <= 'f'))
            v = 16 * v + ((c | 0x20) - 'a' + 10);
        else
            return -1;
    }
    return v;
}

/* ---- whole characters ---- */

/* Appends valid UTF-8, leaving out what Strip takes from the ends of the whole text: the
 * front at once, the back by holding up to n_back marks until other text follows. */
static void print(sib_decoding *d, const sib_decoder *z, sib_str s, sib_buf *out)
{
    const step *st = &z->strip;
    sib_str mark = sib_buf_view(&st->from);
    if (mark.n && s.n) {
        if (!d->started) {
            uint32_t n = count_front(s, mark, st->n_front - d->n_front);
            d->n_front += n;
            s = (sib_str){s.p + n * mark.n, s.n - n * mark.n};
            if (s.n == 0) return;
            d->started = true;
        }
        size_t n = count_back(s, mark, UINT32_MAX);
        bool only_marks = n * mark.n == s.n;
        size_t held = n + (only_marks ? d->n_back : 0), keep = held < st->n_back ? held : st->n_back;
        size_t before = only_marks ? held - keep : d->n_back; /* marks that turned out to be inside */
        for (size_t i = 0; i < before; i++) sib_buf_add(out, mark.p, mark.n);
        s.n = only_marks ? 0 : s.n - keep * mark.n;
        d->n_back = (uint32_t)keep;
    }
    sib_buf_add(out, s.p, s.n);
}

/* Prints what the held bytes are, as far as later bytes cannot change it; with `last`, all
 * of it. `each`: U+FFFD for every invalid byte, else for every maximal invalid part. */
static void settle(sib_decoding *d, const sib_decoder *z, bool each, bool last, sib_buf *out)
{
    size_t at = 0, len;
    while (at < d->n_held) {
        bool valid = sib_utf8_next(d->held + at, d->n_held - at, &len) != SIB_UTF8_BAD;
        if (!valid && !last && sib_utf8_complete((sib_str){d->held + at, d->n_held - at}) == 0) break;
        if (!valid && each) len = 1;
        print(d, z, valid ? (sib_str){d->held + at, len} : SIB_STR(REPLACEMENT), out);
        at += len;
    }
    d->n_held -= at;
    memmove(d->held, d->held + at, d->n_held);
}

static void push_byte(sib_decoding *d, const sib_decoder *z, char byte, bool each, sib_buf *out)
{
    d->held[d->n_held++] = byte; /* at most 3 were held */
    settle(d, z, each, false, out);
}

static bool in_alphabet(sib_str s)
{
    for (size_t i = 0, len; i < s.n; i += len)
        if (sib_byte_of_alphabet(sib_utf8_next(s.p + i, s.n - i, &len)) < 0) return false;
    return true;
}

/* A byte-level token is bytes if all its characters are in the alphabet, else plain text. */
static void push_byte_level(sib_decoding *d, const sib_decoder *z, sib_str s, sib_buf *out)
{
    size_t len;
    bool all = in_alphabet(s);
    for (size_t i = 0; i < s.n; i += len) {
        len = 1;
        char byte = all ? (char)sib_byte_of_alphabet(sib_utf8_next(s.p + i, s.n - i, &len)) : s.p[i];
        push_byte(d, z, byte, false, out);
    }
}

/* ---- the stream ---- */

void sib_decoding_deinit(sib_decoding *d)
{
    sib_buf_deinit(&d->text);
    sib_buf_deinit(&d->spare);
    *d = (sib_decoding){0};
}

sib_status sib_decoding_push(sib_decoding *d, const sib_decoder *z, sib_str token, sib_buf *out, sib_err *err)
{
    for (size_t i = 0; i < z->n; i++) {
        d->spare.n = 0;
        run_step(&z->steps[i], d->n_tokens == 0, token, &d->spare);
        if (d->spare.failed) return sib_nomem(err, "detokenizer");
        if (d->spare.n > MAX_TOKEN)
            return sib_fail(err, SIB_ECAPACITY, "a token's text is longer than %d bytes", MAX_TOKEN);
        sib_buf t = d->text;
        d->text = d->spare;
        d->spare = t;
        token = sib_buf_view(&d->text);
    }
    if (z->spaced && d->n_tokens) sib_buf_addc(out, ' ');
    d->n_tokens++;
    if (z->bytes == BYTE_LEVEL) {
        push_byte_level(d, z, token, out);
    } else {
        int byte = z->bytes == BYTE_FALLBACK ? byte_of_token(token) : -1;
        if (byte >= 0) {
            push_byte(d, z, (char)byte, true, out);
        } else {
            settle(d, z, true, true, out);
            print(d, z, token, out);
        }
    }
    return out->failed ? sib_nomem(err, "detokenizer") : SIB_OK;
}

void sib_decoder_bytes(const sib_decoder *z, sib_str token, sib_buf *out)
{
    sib_buf text = {0}, spare = {0};
    for (size_t i = 0; i < z->n; i++) {
        spare.n = 0;
        run_step(&z->steps[i], false, token, &spare);
        sib_buf t = text;
        text = spare;
        spare = t;
        token = sib_buf_view(&text);
    }
    int byte = z->bytes == BYTE_FALLBACK ? byte_of_token(token) : -1;
    if (byte >= 0) {
        sib_buf_addc(out, (char)byte);
    } else if (z->bytes != BYTE_LEVEL || !in_alphabet(token)) {
        sib_buf_add(out, token.p, token.n);
    } else {
        for (size_t i = 0, len; i < token.n; i += len) sib_buf_addc(out, (char)sib_byte_of_alphabet(sib_utf8_next(token.p + i, token.n - i, &len)));
    }
    out->failed |= text.failed || spare.failed;
    sib_buf_deinit(&text);
    sib_buf_deinit(&spare);
}

sib_status sib_decoding_end(sib_decoding *d, const sib_decoder *z, sib_buf *out, sib_err *err)
{
    settle(d, z, z->bytes == BYTE_FALLBACK, true, out);
    sib_buf text = d->text, spare = d->spare; /* keep the memory, forget the text */
    *d = (sib_decoding){.text = text, .spare = spare};
    return out->failed ? sib_nomem(err, "detokenizer") : SIB_OK;
}

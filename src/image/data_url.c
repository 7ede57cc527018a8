/* image/data_url.c - see data_url.h. */
#include "image/data_url.h"

#include <string.h>
#include <strings.h>

enum { SPACE = -1, PAD = -2, BAD = -3 };

static int base64_value(unsigned char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+' || c == '-') return 62;
    if (c == '/' || c == '_') return 63;
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n') return SPACE;
    return c == '=' ? PAD : BAD;
}

static sib_status too_large(size_t max_bytes, sib_err *err)
{
    return sib_fail(err, SIB_ECAPACITY, "the encoded data is above the limit of %zu bytes", max_bytes);
}

static sib_status base64_append(sib_buf *out, sib_str text, size_t max_bytes, sib_err *err)
{
    size_t most = text.n / 4 * 3 + 3, n_out = 0;
    if (!sib_buf_reserve(out, most < max_bytes ? most : max_bytes)) return sib_nomem(err, "base64");
    uint32_t bits = 0;
    int n_bits = 0;
    size_t n_chars = 0, n_pad = 0;
    for (size_t i = 0; i < text.n; i++) {
        int v = base64_value((unsigned char)text.p[i]);
        if (v == SPACE) continue;
        if (v == PAD) {
            n_pad++;
            continue;
        }
        if (v == BAD || n_pad) return sib_fail(err, SIB_EFORMAT, "base64: unexpected character at offset %zu", i);
        n_chars++;
        bits = bits << 6 | (uint32_t)v; /* older bits fall off at the top */
        n_bits += 6;
        if (n_bits < 8) continue;
        n_bits -= 8;
        if (n_out == max_bytes) return too_large(max_bytes, err);
        out->p[out->n++] = (char)(bits >> n_bits);
        n_out++;
    }
    /* 6 bits left: a lone character. 4 or 2: one or two missing characters. */
    if (n_bits == 6 || (bits & ((1u << n_bits) - 1))) return sib_fail(err, SIB_EFORMAT, "base64: the data is cut short");
    if (n_pad && (n_pad > 2 || (n_chars + n_pad) % 4))
        return sib_fail(err, SIB_EFORMAT, "base64: %zu padding characters after %zu others", n_pad, n_chars);
    return SIB_OK;
}

sib_status sib_base64_decode(sib_buf *out, sib_str text, size_t max_bytes, sib_err *err)
{
    size_t before = out->n;
    sib_status s = base64_append(out, text, max_bytes, err);
    if (s != SIB_OK) out->n = before;
    if (out->p) out->p[out->n] = 0;
    return s;
}

static int hex_value(unsigned char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static sib_status percent_decode(sib_buf *out, sib_str text, size_t max_bytes, sib_err *err)
{
    size_t before = out->n;
    sib_status s = SIB_OK;
    if (!sib_buf_reserve(out, text.n < max_bytes ? text.n : max_bytes)) return sib_nomem(err, "data URL");
    for (size_t i = 0; i < text.n && s == SIB_OK; i++) {
        int c = (unsigned char)text.p[i];
        if (c == '%') {
            int high = text.n - i > 2 ? hex_value((unsigned char)text.p[i + 1]) : -1;
            int low = high >= 0 ? hex_value((unsigned char)text.p[i + 2]) : -1;
            if (low < 0) {
                s = sib_fail(err, SIB_EFORMAT, "data URL: %% without two hexadecimal digits at offset %zu of the data", i);
                break;
            }
            c = high * 16 + low;
            i += 2;
        }
        if (out->n - before == max_bytes)
            s = too_large(max_bytes, err);
        else
            out->p[out->n++] = (char)c;
    }
    if (s != SIB_OK) out->n = before;
    if (out->p) out->p[out->n] = 0;
    return s;
}

bool sib_is_data_url(sib_str url)
{
    return url.n >= 5 && strncasecmp(url.p, "data:", 5) == 0;
}

sib_status sib_data_url_decode(sib_buf *out, sib_str url, size_t max_bytes, sib_err *err)
{
    const char *comma = sib_is_data_url(url) ? memchr(url.p, ',', url.n) : NULL;
    if (!comma) return sib_fail(err, SIB_EFORMAT, "data URL: expected \"data:...,\"");
    static const char tag[] = ";base64";
    size_t head = (size_t)(comma - url.p), n_tag = sizeof tag - 1;
    bool base64 = head >= 5 + n_tag && strncasecmp(comma - n_tag, tag, n_tag) == 0;
    sib_str data = {comma + 1, url.n - head - 1};
    if (!base64) return percent_decode(out, data, max_bytes, err);
    if (!data.n || !memchr(data.p, '%', data.n)) return sib_base64_decode(out, data, max_bytes, err);

    sib_buf plain = {0};
    sib_status s = percent_decode(&plain, data, data.n, err);
    if (s == SIB_OK) s = sib_base64_decode(out, sib_buf_view(&plain), max_bytes, err);
    sib_buf_deinit(&plain);
    return s;
}

/* text/unicode_bytes.c - see unicode_bytes.h. */
#include "text/unicode_bytes.h"

#include "base/utf8.h"

/* The 68 bytes without a printable character of their own are 0x00..0x20, 0x7F..0xA0 and
 * 0xAD; they stand at U+0100 + their rank. */
static uint32_t alphabet_of(unsigned byte)
{
    if (byte <= 0x20) return 0x100 + byte;
    if (byte >= 0x7F && byte <= 0xA0) return 0x121 + (byte - 0x7F);
    return byte == 0xAD ? 0x143 : byte;
}

int sib_byte_of_alphabet(uint32_t cp)
{
    if (cp >= 0x100 && cp <= 0x120) return (int)(cp - 0x100);
    if (cp >= 0x121 && cp <= 0x142) return (int)(cp - 0x121 + 0x7F);
    if (cp == 0x143) return 0xAD;
    return cp <= 0xFF && alphabet_of(cp) == cp ? (int)cp : -1;
}

void sib_bytes_to_alphabet(sib_str bytes, sib_buf *out)
{
    if (bytes.n > SIZE_MAX / 4 || !sib_buf_reserve(out, 2 * bytes.n)) {
        out->failed = true;
        return;
    }
    for (size_t i = 0; i < bytes.n; i++)
        out->n += sib_utf8_put(alphabet_of((unsigned char)bytes.p[i]), out->p + out->n);
    out->p[out->n] = 0;
}

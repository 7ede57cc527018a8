/* image/exif.c - the one EXIF value that changes pixels: how the camera was held.
 *
 * An EXIF block is a TIFF file (TIFF 6.0, section 2): byte order, 42, the offset of the
 * first directory; a directory is a count and entries of 12 bytes. The tag stands in the
 * first directory, so no offset but that one is followed and nothing can loop. */
#include "image/codecs.h"

#include <string.h>

enum { TAG_ORIENTATION = 0x0112, TYPE_BYTE = 1, TYPE_SHORT = 3, TYPE_LONG = 4 };

static uint32_t get(const uint8_t *p, int n_bytes, bool little)
{
    uint32_t v = 0;
    for (int i = 0; i < n_bytes; i++) v = v << 8 | p[little ? n_bytes - 1 - i : i];
    return v;
}

int sib_exif_orientation(const uint8_t *p, size_t n)
{
    if (n >= 6 && memcmp(p, "Exif\0", 5) == 0) {
        p += 6;
        n -= 6;
    }
    if (n < 8 || (memcmp(p, "II*\0", 4) != 0 && memcmp(p, "MM\0*", 4) != 0)) return 1;
    bool little = p[0] == 'I';
    size_t at = get(p + 4, 4, little);
    if (at > n || n - at < 2) return 1;
    size_t count = get(p + at, 2, little);
    at += 2;
    for (; count && n - at >= 12; count--, at += 12) {
        const uint8_t *entry = p + at;
        if (get(entry, 2, little) != TAG_ORIENTATION) continue;
        uint32_t type = get(entry + 2, 2, little);
        int size = type == TYPE_BYTE ? 1 : type == TYPE_SHORT ? 2 : type == TYPE_LONG ? 4 : 0;
        uint32_t v = size && get(entry + 4, 4, little) == 1 ? get(entry + 8, size, little) : 1;
        return v >= 1 && v <= 8 ? (int)v : 1;
    }
    return 1;
}

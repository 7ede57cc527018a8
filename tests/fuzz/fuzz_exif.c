/* tests/fuzz/fuzz_exif.c - libFuzzer target over EXIF blocks. Seeds: tests/fuzz/corpus/exif. */
#include "fuzz_parts.h"

#include "image/codecs.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    int how = sib_exif_orientation(data, n);
    if (how < 1 || how > 8) abort();
    return 0;
}

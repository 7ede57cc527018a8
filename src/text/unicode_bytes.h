/* text/unicode_bytes.h - the byte-level alphabet: 256 printable characters that stand for the bytes.
 *
 * 0x21..0x7E, 0xA1..0xAC and 0xAE..0xFF are their own code point, the other 68 bytes are
 * U+0100 and up in ascending order (formats.md C.5). Used by the ByteLevel components. */
#ifndef SIB_TEXT_UNICODE_BYTES_H
#define SIB_TEXT_UNICODE_BYTES_H

#include "base/str.h"

/* Appends the alphabet's character for each byte. */
void sib_bytes_to_alphabet(sib_str bytes, sib_buf *out);

/* The byte that a character stands for, or -1. */
int sib_byte_of_alphabet(uint32_t cp);

#endif

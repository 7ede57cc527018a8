/* text/unicode.h - character classes for the pre-tokenizers and added tokens.
 *
 * Answers are those of Unicode 16, the version of the reference tokenizers'
 * regular expression engine (formats.md C.8): libutf8proc gives the general
 * category, and a table in unicode.c adds the code points that were assigned after
 * libutf8proc's own version. classes.json in the test cases checks every code point. */
#ifndef SIB_TEXT_UNICODE_H
#define SIB_TEXT_UNICODE_H

#include "base/str.h"

enum {
    SIB_U_LU = 1u << 0,  /* uppercase letter  */
    SIB_U_LL = 1u << 1,  /* lowercase letter  */
    SIB_U_LT = 1u << 2,  /* titlecase letter  */
    SIB_U_LM = 1u << 3,  /* modifier letter   */
    SIB_U_LO = 1u << 4,  /* other letter      */
    SIB_U_M = 1u << 5,   /* mark              */
    SIB_U_ND = 1u << 6,  /* decimal digit     */
    SIB_U_NL = 1u << 7,  /* letter number     */
    SIB_U_NO = 1u << 8,  /* other number      */
    SIB_U_PC = 1u << 9,  /* connector         */
    SIB_U_PX = 1u << 10, /* other punctuation */
    SIB_U_S = 1u << 11,  /* symbol            */
    SIB_U_Z = 1u << 12,  /* separator         */
    SIB_U_WS = 1u << 13, /* White_Space, in addition to the category */
    SIB_U_L = SIB_U_LU | SIB_U_LL | SIB_U_LT | SIB_U_LM | SIB_U_LO,
    SIB_U_N = SIB_U_ND | SIB_U_NL | SIB_U_NO,
    SIB_U_P = SIB_U_PC | SIB_U_PX
};

/* The bits above of one scalar; 0 for controls, private use and unassigned ones. */
unsigned sib_unicode_bits(uint32_t cp);

/* \w of the split patterns: letters, marks, decimal digits and letter numbers, connectors,
 * the alphabetic symbols, and of the other numbers those of Latin-1. */
bool sib_unicode_is_regex_word(uint32_t cp);

/* \w of Unicode Technical Standard 18, the border test of `single_word` added tokens: as
 * above with the two join controls, without the other numbers. */
bool sib_unicode_is_word(uint32_t cp);

#endif

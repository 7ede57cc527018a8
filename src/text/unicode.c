/* text/unicode.c - see unicode.h. */
#include "text/unicode.h"

#include <utf8proc.h>

/* Code points that Unicode 15.1 and 16.0 assigned and libutf8proc 2.8 (Unicode 15.0) does
 * not know, as ranges with their category; sources: UnicodeData-16.0.0.txt,
 * DerivedGeneralCategory-16.0.0.txt. No older code point changed its category. */
typedef struct addition {
    uint32_t first, last;
    unsigned bits;
} addition;

#define LU SIB_U_LU
#define LL SIB_U_LL
#define LM SIB_U_LM
#define LO SIB_U_LO
#define M  SIB_U_M
#define ND SIB_U_ND
#define PX SIB_U_PX
#define S  SIB_U_S
static const addition additions[] = {
    {0x897, 0x897, M},      {0x1B4E, 0x1B4F, PX},   {0x1B7F, 0x1B7F, PX},   {0x1C89, 0x1C89, LU},
    {0x1C8A, 0x1C8A, LL},   {0x2427, 0x2429, S},    {0x2FFC, 0x2FFF, S},    {0x31E4, 0x31E5, S},
    {0x31EF, 0x31EF, S},    {0xA7CB, 0xA7CC, LU},   {0xA7CD, 0xA7CD, LL},   {0xA7DA, 0xA7DA, LU},
    {0xA7DB, 0xA7DB, LL},   {0xA7DC, 0xA7DC, LU},   {0x105C0, 0x105F3, LO}, {0x10D40, 0x10D49, ND},
    {0x10D4A, 0x10D4D, LO}, {0x10D4E, 0x10D4E, LM}, {0x10D4F, 0x10D4F, LO}, {0x10D50, 0x10D65, LU},
    {0x10D69, 0x10D6D, M},  {0x10D6E, 0x10D6E, PX}, {0x10D6F, 0x10D6F, LM}, {0x10D70, 0x10D85, LL},
    {0x10D8E, 0x10D8F, S},  {0x10EC2, 0x10EC4, LO}, {0x10EFC, 0x10EFC, M},  {0x11380, 0x11389, LO},
    {0x1138B, 0x1138B, LO}, {0x1138E, 0x1138E, LO}, {0x11390, 0x113B5, LO}, {0x113B7, 0x113B7, LO},
    {0x113B8, 0x113C0, M},  {0x113C2, 0x113C2, M},  {0x113C5, 0x113C5, M},  {0x113C7, 0x113CA, M},
    {0x113CC, 0x113D0, M},  {0x113D1, 0x113D1, LO}, {0x113D2, 0x113D2, M},  {0x113D3, 0x113D3, LO},
    {0x113D4, 0x113D5, PX}, {0x113D7, 0x113D8, PX}, {0x113E1, 0x113E2, M},  {0x116D0, 0x116E3, ND},
    {0x11BC0, 0x11BE0, LO}, {0x11BE1, 0x11BE1, PX}, {0x11BF0, 0x11BF9, ND}, {0x11F5A, 0x11F5A, M},
    {0x13460, 0x143FA, LO}, {0x16100, 0x1611D, LO}, {0x1611E, 0x1612F, M},  {0x16130, 0x16139, ND},
    {0x16D40, 0x16D42, LM}, {0x16D43, 0x16D6A, LO}, {0x16D6B, 0x16D6C, LM}, {0x16D6D, 0x16D6F, PX},
    {0x16D70, 0x16D79, ND}, {0x18CFF, 0x18CFF, LO}, {0x1CC00, 0x1CCEF, S},  {0x1CCF0, 0x1CCF9, ND},
    {0x1CD00, 0x1CEB3, S},  {0x1E5D0, 0x1E5ED, LO}, {0x1E5EE, 0x1E5EF, M},  {0x1E5F0, 0x1E5F0, LO},
    {0x1E5F1, 0x1E5FA, ND}, {0x1E5FF, 0x1E5FF, PX}, {0x1F8B2, 0x1F8BB, S},  {0x1F8C0, 0x1F8C1, S},
    {0x1FA89, 0x1FA89, S},  {0x1FA8F, 0x1FA8F, S},  {0x1FABE, 0x1FABE, S},  {0x1FAC6, 0x1FAC6, S},
    {0x1FADC, 0x1FADC, S},  {0x1FADF, 0x1FADF, S},  {0x1FAE9, 0x1FAE9, S},  {0x1FBCB, 0x1FBEF, S},
    {0x2EBF0, 0x2EE5D, LO},
};
#undef LU
#undef LL
#undef LM
#undef LO
#undef M
#undef ND
#undef PX
#undef S

static unsigned added_bits(uint32_t cp)
{
    size_t lo = 0, hi = SIB_COUNT(additions);
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (cp > additions[mid].last)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < SIB_COUNT(additions) && cp >= additions[lo].first ? additions[lo].bits : 0;
}

unsigned sib_unicode_bits(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU: return SIB_U_LU;
    case UTF8PROC_CATEGORY_LL: return SIB_U_LL;
    case UTF8PROC_CATEGORY_LT: return SIB_U_LT;
    case UTF8PROC_CATEGORY_LM: return SIB_U_LM;
    case UTF8PROC_CATEGORY_LO: return SIB_U_LO;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return SIB_U_M;
    case UTF8PROC_CATEGORY_ND: return SIB_U_ND;
    case UTF8PROC_CATEGORY_NL: return SIB_U_NL;
    case UTF8PROC_CATEGORY_NO: return SIB_U_NO;
    case UTF8PROC_CATEGORY_PC: return SIB_U_PC;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO: return SIB_U_PX;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO: return SIB_U_S;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return SIB_U_Z | SIB_U_WS;
    case UTF8PROC_CATEGORY_CC: return (cp >= 0x09 && cp <= 0x0D) || cp == 0x85 ? SIB_U_WS : 0;
    case UTF8PROC_CATEGORY_CN: return added_bits(cp);
    default: return 0;
    }
}

/* Other_Alphabetic among the symbols: circled, squared and negative Latin letters. */
static bool is_alphabetic_symbol(uint32_t cp)
{
    return (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) || (cp >= 0x1F150 && cp <= 0x1F169) ||
           (cp >= 0x1F170 && cp <= 0x1F189);
}

bool sib_unicode_is_regex_word(uint32_t cp)
{
    unsigned bits = sib_unicode_bits(cp);
    if (cp < 0x100 && (bits & SIB_U_N)) return true; /* superscripts and fractions: the engine's Latin-1 table */
    return (bits & (SIB_U_L | SIB_U_M | SIB_U_ND | SIB_U_NL | SIB_U_PC)) || is_alphabetic_symbol(cp);
}

bool sib_unicode_is_word(uint32_t cp)
{
    if (cp < 0x100 && (sib_unicode_bits(cp) & SIB_U_NO)) return false;
    return sib_unicode_is_regex_word(cp) || cp == 0x200C || cp == 0x200D;
}

/* text/pretokenizer_known.c - see pretokenizer_known.h.
 *
 * Each function below stands for one alternative of an expression and returns the end of
 * its match at `i`, or `i`. A family's matcher tries its alternatives in their order, as
 * a backtracking engine does; where an alternative can match in several ways, the comment
 * says which one the engine finds first. */
#include "text/pretokenizer_known.h"

#include "base/utf8.h"
#include "text/unicode.h"

#define L  SIB_U_L
#define M  SIB_U_M
#define N  SIB_U_N
#define P  SIB_U_P
#define S  SIB_U_S
#define WS SIB_U_WS

typedef struct scalar {
    uint32_t cp;
    unsigned bits;
    size_t len; /* 0 at the end of the text, where no class matches */
} scalar;

static scalar at(sib_str t, size_t i)
{
    scalar c = {0, 0, 0};
    if (i >= t.n) return c;
    c.cp = sib_utf8_next(t.p + i, t.n - i, &c.len);
    c.bits = sib_unicode_bits(c.cp);
    return c;
}

static bool is_newline(scalar c)
{
    return c.len && (c.cp == '\r' || c.cp == '\n');
}

/* [mask]* */
static size_t run(sib_str t, size_t i, unsigned mask)
{
    for (scalar c; (c = at(t, i)).len && (c.bits & mask);) i += c.len;
    return i;
}

/* [^mask]* */
static size_t run_not(sib_str t, size_t i, unsigned mask)
{
    for (scalar c; (c = at(t, i)).len && !(c.bits & mask);) i += c.len;
    return i;
}

/* [\r\n]*, with `slash` [\r\n/]* */
static size_t newlines(sib_str t, size_t i, bool slash)
{
    while (i < t.n && (t.p[i] == '\r' || t.p[i] == '\n' || (slash && t.p[i] == '/'))) i++;
    return i;
}

/* \p{N}{1,max} */
static size_t numbers(sib_str t, size_t i, int max)
{
    for (scalar c; max > 0 && ((c = at(t, i)).bits & N); max--) i += c.len;
    return i;
}

/* 's|'t|'re|'ve|'m|'ll|'d; without regard to case, U+017F (long s) is an s too. */
static size_t contraction(sib_str t, size_t i, bool any_case)
{
    static const char *const tails[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (i >= t.n || t.p[i] != '\'') return i;
    for (size_t k = 0; k < SIB_COUNT(tails); k++) {
        size_t j = i + 1;
        const char *want = tails[k];
        for (; *want; want++) {
            scalar c = at(t, j);
            bool same =
                c.len && (c.cp == (unsigned char)*want ||
                          (any_case && (c.cp == (unsigned char)*want - 32u || (*want == 's' && c.cp == 0x17F))));
            if (!same) break;
            j += c.len;
        }
        if (!*want) return j;
    }
    return i;
}

/* [^\r\n head]?[body]+ : with the optional character first, then without. */
static size_t word(sib_str t, size_t i, unsigned head, unsigned body)
{
    scalar c = at(t, i);
    if (c.len && !is_newline(c) && !(c.bits & head)) {
        size_t end = run(t, i + c.len, body);
        if (end > i + c.len) return end;
    }
    return run(t, i, body);
}

/* " ?[mask]+" */
static size_t spaced(sib_str t, size_t i, unsigned mask)
{
    size_t from = i + (i < t.n && t.p[i] == ' '), end = run(t, from, mask);
    return end > from ? end : i;
}

/* " ?[^\s mask]+" */
static size_t spaced_not(sib_str t, size_t i, unsigned mask)
{
    size_t from = i + (i < t.n && t.p[i] == ' '), end = run_not(t, from, mask | WS);
    return end > from ? end : i;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ : to the last newline of the run of white space; else the run
 * without its last character if more text follows; else all of it. Without `to_newline`
 * the first alternative is missing. */
static size_t spaces(sib_str t, size_t i, bool to_newline)
{
    size_t end = i, last = i, newline = i;
    for (scalar c; (c = at(t, end)).len && (c.bits & WS);) {
        last = end;
        end += c.len;
        if (is_newline(c)) newline = end;
    }
    if (to_newline && newline > i) return newline;
    return end == t.n || last == i ? end : last;
}

/* ---- Qwen and GLM: one expression in three variants ---- */

static size_t qwen_like(sib_str t, size_t i, unsigned letters, int max_numbers)
{
    size_t end;
    if ((end = contraction(t, i, true)) > i) return end;
    if ((end = word(t, i, L | N, letters)) > i) return end;
    if ((end = numbers(t, i, max_numbers)) > i) return end;
    if ((end = spaced_not(t, i, letters | N)) > i) return newlines(t, end, false);
    return spaces(t, i, true);
}

static size_t qwen3(sib_str t, size_t i)
{
    return qwen_like(t, i, L, 1);
}

static size_t qwen3_5(sib_str t, size_t i)
{
    return qwen_like(t, i, L | M, 1);
}

static size_t glm(sib_str t, size_t i)
{
    return qwen_like(t, i, L, 3);
}

/* ---- GPT-2, also ByteLevel's own ---- */

static size_t gpt2(sib_str t, size_t i)
{
    size_t end;
    if ((end = contraction(t, i, false)) > i) return end;
    if ((end = spaced(t, i, L)) > i) return end;
    if ((end = spaced(t, i, N)) > i) return end;
    if ((end = spaced_not(t, i, L | N)) > i) return end;
    return spaces(t, i, false);
}

/* ---- o200k ---- */

#define UPPER (SIB_U_LU | SIB_U_LT | SIB_U_LM | SIB_U_LO | SIB_U_M)
#define LOWER (SIB_U_LL | SIB_U_LM | SIB_U_LO | SIB_U_M)

/* [UPPER]*[LOWER]+ : the first part takes all it can and gives back just enough for the
 * second to begin. */
static size_t upper_lower(sib_str t, size_t i)
{
    size_t q = i, give_back = SIZE_MAX;
    for (scalar c; (c = at(t, q)).len && (c.bits & UPPER); q += c.len)
        if (c.bits & LOWER) give_back = q;
    size_t end = run(t, q, LOWER);
    if (end > q) return end;
    return give_back == SIZE_MAX ? i : run(t, give_back, LOWER);
}

/* [UPPER]+[LOWER]* */
static size_t upper_first(sib_str t, size_t i)
{
    size_t end = run(t, i, UPPER);
    return end > i ? run(t, end, LOWER) : i;
}

static size_t o200k(sib_str t, size_t i)
{
    static size_t (*const words[])(sib_str, size_t) = {upper_lower, upper_first};
    size_t end;
    scalar c = at(t, i);
    bool head = c.len && !is_newline(c) && !(c.bits & (L | N));
    for (size_t k = 0; k < SIB_COUNT(words); k++) {
        if (head && (end = words[k](t, i + c.len)) > i + c.len) return contraction(t, end, true);
        if ((end = words[k](t, i)) > i) return contraction(t, end, true);
    }
    if ((end = numbers(t, i, 3)) > i) return end;
    if ((end = spaced_not(t, i, L | N)) > i) return newlines(t, end, true);
    return spaces(t, i, true);
}

/* ---- DeepSeek-V3: three expressions in a row; these leave text unmatched ---- */

static size_t deepseek_digits(sib_str t, size_t i)
{
    return numbers(t, i, 3);
}

static size_t deepseek_cjk(sib_str t, size_t i)
{
    for (scalar c; (c = at(t, i)).len && ((c.cp >= 0x4E00 && c.cp <= 0x9FA5) || (c.cp >= 0x3040 && c.cp <= 0x30FF));)
        i += c.len;
    return i;
}

static bool is_ascii_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static size_t deepseek_words(sib_str t, size_t i)
{
    scalar c = at(t, i);
    size_t end = i + 1;
    if (c.len == 1 && (c.bits & (P | S))) { /* ASCII punctuation, then ASCII letters */
        while (end < t.n && is_ascii_letter(t.p[end])) end++;
        if (end > i + 1) return end;
    }
    if ((end = word(t, i, L | P | S, L | M)) > i) return end;
    if ((end = spaced(t, i, P | S)) > i) return newlines(t, end, false);
    return spaces(t, i, true);
}

const char sib_gpt2_regex[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER_CLASS  "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER_CLASS  "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define HEAD         "[^\\r\\n\\p{L}\\p{N}]?"

static const struct {
    const char *regex;
    sib_known_fn fn;
} known[] = {
    {CONTRACTIONS "|" HEAD "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES, qwen3},
    {CONTRACTIONS "|" HEAD "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES, qwen3_5},
    {CONTRACTIONS "|" HEAD "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES, glm},
    {sib_gpt2_regex, gpt2},
    {HEAD UPPER_CLASS "*" LOWER_CLASS "+" CONTRACTIONS "?|" HEAD UPPER_CLASS "+" LOWER_CLASS "*" CONTRACTIONS
                      "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES,
     o200k},
    {"\\p{N}{1,3}", deepseek_digits},
    {"[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+", deepseek_cjk},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
     "?[\\p{P}\\p{S}]+[\r\n]*|"
     "\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
     deepseek_words},
};

sib_known_fn sib_known_pattern(sib_str regex)
{
    for (size_t k = 0; k < SIB_COUNT(known); k++)
        if (sib_str_is(regex, known[k].regex)) return known[k].fn;
    return NULL;
}

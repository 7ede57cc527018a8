/* text/template_number.c - Python's numbers for the template engine: int of any length, float, their texts.
 *
 * Integers are int64 as long as they fit and base-1e9 digits beyond (TV_BIG), so that a number of a request is printed
 * as it came. Integers stop at 4300 digits, where Python stops printing them; division of the long ones is left out. */
#include "text/template_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define BASE       1000000000u
#define MAX_DIGITS 4300
#define MAX_LIMBS  ((MAX_DIGITS + 8) / 9)
#define TOP_LIMB   10000000u /* the first of MAX_LIMBS stays below: 4300 = 9 * 477 + 7 */

/* ---- long integers --------------------------------------------------------------------------------------- */

static sib_tbig *big_new(sib_tr *r, size_t n, bool neg)
{
    if (n > MAX_LIMBS + 1) sib_tfail(r, SIB_TEMPLATE_LIMIT, "an integer has more than %d digits", MAX_DIGITS);
    sib_tbig *b = sib_talloc(r, sizeof *b + n * sizeof b->d[0]);
    *b = (sib_tbig){.neg = neg, .n = (uint32_t)n};
    memset(b->d, 0, n * sizeof b->d[0]);
    return b;
}

static sib_tbig *big_of(sib_tr *r, sib_tv v)
{
    if (v.type == TV_BIG) return v.u.big;
    int64_t i = v.type == TV_BOOL ? v.u.b : v.u.i;
    uint64_t m = i < 0 ? -(uint64_t)i : (uint64_t)i;
    sib_tbig *b = big_new(r, 3, i < 0);
    for (b->n = 0; m; m /= BASE) b->d[b->n++] = (uint32_t)(m % BASE);
    return b;
}

/* Back to int64 where it fits, so that equal integers have one form. */
static sib_tv big_value(sib_tr *r, sib_tbig *b)
{
    while (b->n && !b->d[b->n - 1]) b->n--;
    if (b->n <= 3) {
        uint64_t m = 0;
        bool over = false;
        for (uint32_t i = b->n; i--;) over |= __builtin_mul_overflow(m, (uint64_t)BASE, &m) || __builtin_add_overflow(m, (uint64_t)b->d[i], &m);
        if (!over && m <= (uint64_t)INT64_MAX + b->neg) return sib_tv_int((int64_t)(b->neg ? -m : m));
    }
    if (b->n > MAX_LIMBS || (b->n == MAX_LIMBS && b->d[b->n - 1] >= TOP_LIMB))
        sib_tfail(r, SIB_TEMPLATE_LIMIT, "an integer has more than %d digits", MAX_DIGITS);
    return (sib_tv){.type = TV_BIG, .u.big = b};
}

static int big_order_abs(const sib_tbig *a, const sib_tbig *b)
{
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    for (uint32_t i = a->n; i--;)
        if (a->d[i] != b->d[i]) return a->d[i] < b->d[i] ? -1 : 1;
    return 0;
}

static sib_tv big_add(sib_tr *r, const sib_tbig *a, const sib_tbig *b, bool minus)
{
    bool a_neg = a->neg, b_neg = b->neg != minus;
    if (big_order_abs(a, b) < 0) { /* the longer one first: its sign is the sum's */
        const sib_tbig *t = a;
        bool t_neg = a_neg;
        a = b, a_neg = b_neg;
        b = t, b_neg = t_neg;
    }
    sib_tbig *sum = big_new(r, (size_t)a->n + 1, a_neg);
    int64_t carry = 0;
    for (uint32_t i = 0; i < sum->n; i++) {
        int64_t x = i < a->n ? a->d[i] : 0, y = i < b->n ? b->d[i] : 0;
        x += (a_neg == b_neg ? y : -y) + carry;
        carry = x < 0 ? -1 : x >= BASE;
        sum->d[i] = (uint32_t)(x - carry * BASE);
    }
    return big_value(r, sum);
}

static sib_tv big_mul(sib_tr *r, const sib_tbig *a, const sib_tbig *b)
{
    sib_tbig *p = big_new(r, (size_t)a->n + b->n, a->neg != b->neg);
    sib_twork(r, (size_t)a->n * b->n);
    for (uint32_t i = 0; i < a->n; i++) {
        uint64_t carry = 0;
        for (uint32_t k = 0; k < b->n || carry; k++) {
            uint64_t x = p->d[i + k] + carry + (k < b->n ? (uint64_t)a->d[i] * b->d[k] : 0);
            p->d[i + k] = (uint32_t)(x % BASE);
            carry = x / BASE;
        }
    }
    return big_value(r, p);
}

enum { BIG_TEXT = MAX_LIMBS * 9 + 16 };

static void big_text(const sib_tbig *b, char text[BIG_TEXT]) /* decimal, without sign */
{
    size_t n = 0;
    for (uint32_t i = b->n; i--;) n += (size_t)snprintf(text + n, BIG_TEXT - n, i + 1 == b->n ? "%u" : "%09u", (unsigned)b->d[i]);
    text[n] = 0;
}

static double big_double(const sib_tbig *b) /* correctly rounded; may be infinite */
{
    char text[BIG_TEXT];
    big_text(b, text);
    double d = strtod(text, NULL);
    return b->neg ? -d : d;
}

/* A double of such size is an integer, and printf gives all its digits. */
static int order_big_double(const sib_tbig *b, double d)
{
    char x[BIG_TEXT], y[330];
    if (isnan(d)) return 2;
    if (isinf(d) || (d < 0) != b->neg || fabs(d) < 9e18) return isinf(d) ? d > 0 ? -1 : 1 : b->neg ? -1 : 1;
    big_text(b, x);
    (void)snprintf(y, sizeof y, "%.0f", fabs(d));
    size_t n = strlen(x), m = strlen(y);
    int c = n != m ? n < m ? -1 : 1 : strcmp(x, y);
    c = (c > 0) - (c < 0);
    return b->neg ? -c : c;
}

bool sib_tnum_int(sib_tr *r, sib_str s, int base, sib_tv *out)
{
    bool neg = s.n && s.p[0] == '-';
    size_t i = s.n && (s.p[0] == '-' || s.p[0] == '+');
    if (i == s.n) return false;
    int64_t value = 0;
    sib_tbig *big = NULL;
    for (; i < s.n; i++) {
        char c = s.p[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : c >= 'A' && c <= 'Z' ? c - 'A' + 10 : 99;
        if (digit >= base) return false;
        int64_t next;
        if (!big && !__builtin_mul_overflow(value, (int64_t)base, &next) && !__builtin_sub_overflow(next, (int64_t)digit, &next)) {
            value = next; /* kept negative: INT64_MIN has no positive twin */
            continue;
        }
        if (!big) {
            sib_tbig *b = big_of(r, sib_tv_int(value));
            if (s.n - i > MAX_DIGITS) sib_tfail(r, SIB_TEMPLATE_LIMIT, "an integer has more than %d digits", MAX_DIGITS);
            big = big_new(r, b->n + (s.n - i) / 5 + 2, true); /* a digit of base 36 has 1.56 decimal ones */
            memcpy(big->d, b->d, b->n * sizeof b->d[0]);
            big->n = b->n;
        }
        uint64_t carry = (uint64_t)digit;
        sib_twork(r, big->n);
        for (uint32_t k = 0; k < big->n || carry; k++) {
            if (k == big->n) big->d[big->n++] = 0;
            uint64_t x = big->d[k] * (uint64_t)base + carry;
            big->d[k] = (uint32_t)(x % BASE);
            carry = x / BASE;
        }
    }
    if (big) {
        big->neg = neg;
        *out = big_value(r, big);
    } else if (neg || value != INT64_MIN) {
        *out = sib_tv_int(neg ? value : -value);
    } else {
        big = big_of(r, sib_tv_int(INT64_MIN));
        big->neg = false;
        *out = big_value(r, big);
    }
    return true;
}

/* ---- conversions ----------------------------------------------------------------------------------------- */

double sib_tv_double(sib_tr *r, sib_tv v)
{
    switch (v.type) {
    case TV_BOOL: return v.u.b;
    case TV_INT: return (double)v.u.i;
    case TV_FLOAT: return v.u.f;
    default: break;
    }
    double d = big_double(v.u.big);
    if (isinf(d)) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "int too large to convert to float");
    return d;
}

int64_t sib_tv_index(sib_tr *r, sib_tv v, const char *what)
{
    if (v.type == TV_BOOL) return v.u.b;
    if (v.type == TV_INT) return v.u.i;
    if (v.type == TV_UNDEF) sib_tundefined(r, v);
    if (v.type == TV_BIG) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "%s is too large", what);
    sib_tfail(r, SIB_TEMPLATE_RUNTIME, "%s must be an integer, not '%s'", what, sib_tv_type_name(v));
}

sib_tv sib_tnum_from_double(sib_tr *r, double d)
{
    if (isnan(d) || isinf(d)) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "cannot convert float %s to integer", isnan(d) ? "NaN" : "infinity");
    if (d > -9.2e18 && d < 9.2e18) return sib_tv_int((int64_t)d);
    char text[330];
    int n = snprintf(text, sizeof text, "%.0f", trunc(d));
    sib_tv v;
    (void)sib_tnum_int(r, (sib_str){text, (size_t)n}, 10, &v);
    return v;
}

/* Digits without the underscores that Python allows between two of them, ended by NUL; NULL where one stands elsewhere. */
static char *plain_digits(sib_tr *r, sib_str s, size_t *n)
{
    char *out = sib_talloc(r, s.n + 1);
    *n = 0;
    for (size_t i = 0; i < s.n; i++) {
        bool between = i && i + 1 < s.n && isxdigit((unsigned char)s.p[i - 1]) && isxdigit((unsigned char)s.p[i + 1]);
        if (!s.p[i] || (s.p[i] == '_' && !between)) return NULL;
        if (s.p[i] != '_') out[(*n)++] = s.p[i];
    }
    out[*n] = 0;
    return out;
}

static void refuse_other_digits(sib_tr *r, sib_str s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] >= 0x80) sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "numbers in other than ASCII digits are not supported");
}

bool sib_tnum_pyint(sib_tr *r, sib_str s, int base, sib_tv *out)
{
    size_t n;
    s = sib_tstrip(s, 3, NULL);
    refuse_other_digits(r, s);
    char *text = plain_digits(r, s, &n);
    if (!text) return false;
    size_t sign = n && (text[0] == '-' || text[0] == '+');
    if (n > sign + 1 && text[sign] == '0' && base != 10) {
        char c = (char)tolower((unsigned char)text[sign + 1]);
        int named = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
        if (named && (base == named || base == 0)) {
            memmove(text + sign, text + sign + 2, n - sign - 1);
            n -= 2;
            base = named;
        }
    }
    if (base == 0) {
        if (n > sign + 1 && text[sign] == '0' && strspn(text + sign, "0") != n - sign) return false;
        base = 10;
    }
    return sib_tnum_int(r, (sib_str){text, n}, base, out);
}

bool sib_tnum_pyfloat(sib_tr *r, sib_str s, double *out)
{
    char *end;
    size_t n;
    s = sib_tstrip(s, 3, NULL);
    refuse_other_digits(r, s);
    char *text = plain_digits(r, s, &n);
    if (!text || !n) return false;
    const char *p = text + (text[0] == '-' || text[0] == '+');
    if (strcasecmp(p, "inf") && strcasecmp(p, "infinity") && strcasecmp(p, "nan") && strspn(p, "0123456789.eE+-") != strlen(p)) return false;
    *out = strtod(text, &end);
    return *end == 0;
}

/* ---- order, hash ----------------------------------------------------------------------------------------- */

static int order_int_double(int64_t i, double d)
{
    if (isnan(d)) return 2;
    if (d >= 9223372036854775808.0) return -1;
    if (d < -9223372036854775808.0) return 1;
    int64_t t = (int64_t)d;
    if (i != t) return i < t ? -1 : 1;
    double rest = d - (double)t;
    return rest > 0 ? -1 : rest < 0;
}

static int64_t small_int(sib_tv v)
{
    return v.type == TV_BOOL ? v.u.b : v.u.i;
}

int sib_tnum_order(sib_tv a, sib_tv b)
{
    if (a.type == TV_FLOAT && b.type == TV_FLOAT) return isnan(a.u.f) || isnan(b.u.f) ? 2 : (a.u.f > b.u.f) - (a.u.f < b.u.f);
    if (a.type == TV_FLOAT) { /* an integer on the left from here on */
        int c = sib_tnum_order(b, a);
        return c == 2 ? 2 : -c;
    }
    if (b.type == TV_FLOAT && a.type != TV_BIG) return order_int_double(small_int(a), b.u.f);
    if (b.type == TV_FLOAT) return order_big_double(a.u.big, b.u.f);
    if (a.type == TV_BIG && b.type == TV_BIG && a.u.big->neg == b.u.big->neg) {
        int c = big_order_abs(a.u.big, b.u.big);
        return a.u.big->neg ? -c : c;
    }
    if (a.type == TV_BIG) return a.u.big->neg ? -1 : 1;
    if (b.type == TV_BIG) return b.u.big->neg ? 1 : -1;
    int64_t x = small_int(a), y = small_int(b);
    return (x > y) - (x < y);
}

uint64_t sib_tnum_hash(sib_tv v) /* equal numbers of any type hash alike */
{
    double d = v.type == TV_BIG ? big_double(v.u.big) : v.type == TV_FLOAT ? v.u.f : (double)small_int(v);
    uint64_t h = 0;
    if (d == 0) d = 0; /* -0.0 */
    memcpy(&h, &d, sizeof h);
    h *= 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

/* ---- arithmetic ------------------------------------------------------------------------------------------ */

static double float_divmod(double x, double y, double *mod) /* as CPython's float_divmod */
{
    *mod = fmod(x, y);
    double div = (x - *mod) / y;
    if (*mod != 0) {
        if ((y < 0) != (*mod < 0)) {
            *mod += y;
            div -= 1;
        }
    } else {
        *mod = copysign(0, y);
    }
    if (div == 0) return copysign(0, x / y);
    double floored = floor(div);
    return div - floored > 0.5 ? floored + 1 : floored;
}

static sib_tv float_binary(sib_tr *r, char op, double x, double y)
{
    double mod, div;
    if ((op == '/' || op == 'i' || op == '%') && y == 0)
        sib_tfail(r, SIB_TEMPLATE_RUNTIME, "float %s by zero", op == '/' ? "division" : op == 'i' ? "floor division" : "modulo");
    switch (op) {
    case '+': return sib_tv_float(x + y);
    case '-': return sib_tv_float(x - y);
    case '*': return sib_tv_float(x * y);
    case '/': return sib_tv_float(x / y);
    case 'i': return sib_tv_float(float_divmod(x, y, &mod));
    case '%': (void)float_divmod(x, y, &mod); return sib_tv_float(mod);
    default: break;
    }
    if (x == 0 && y < 0) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "0.0 cannot be raised to a negative power");
    if (x < 0 && isfinite(x) && isfinite(y) && y != floor(y)) sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "complex numbers are not supported");
    div = pow(x, y);
    if (isinf(div) && isfinite(x) && isfinite(y)) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "numerical result out of range");
    return sib_tv_float(div);
}

static sib_tv int_power(sib_tr *r, sib_tv base, sib_tv exponent)
{
    if (exponent.type == TV_BIG) sib_tfail(r, SIB_TEMPLATE_LIMIT, "an integer has more than %d digits", MAX_DIGITS);
    int64_t e = small_int(exponent);
    if (e < 0) return float_binary(r, '^', sib_tv_double(r, base), (double)e);
    sib_tv out = sib_tv_int(1);
    for (;; base = sib_tnum_binary(r, '*', base, base)) {
        if (e & 1) out = sib_tnum_binary(r, '*', out, base);
        e >>= 1;
        if (!e) return out;
    }
}

static sib_tv int_binary(sib_tr *r, char op, sib_tv a, sib_tv b)
{
    int64_t z;
    if (op == '^') return int_power(r, a, b);
    if (a.type == TV_BIG || b.type == TV_BIG) {
        switch (op) {
        case '+': return big_add(r, big_of(r, a), big_of(r, b), false);
        case '-': return big_add(r, big_of(r, a), big_of(r, b), true);
        case '*': return big_mul(r, big_of(r, a), big_of(r, b));
        default: sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "division of integers beyond 64 bits is not supported");
        }
    }
    int64_t x = small_int(a), y = small_int(b);
    switch (op) {
    case '+':
        if (__builtin_add_overflow(x, y, &z)) return big_add(r, big_of(r, a), big_of(r, b), false);
        return sib_tv_int(z);
    case '-':
        if (__builtin_sub_overflow(x, y, &z)) return big_add(r, big_of(r, a), big_of(r, b), true);
        return sib_tv_int(z);
    case '*':
        if (__builtin_mul_overflow(x, y, &z)) return big_mul(r, big_of(r, a), big_of(r, b));
        return sib_tv_int(z);
    default: break;
    }
    if (y == 0) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "%s by zero", op == '/' ? "division" : "integer division or modulo");
    if (op == '/') { /* exact operands up to 2^53; x87's 64 bits hold every other int64 */
        return sib_tv_float((double)((long double)x / (long double)y));
    }
    if (y == -1) return op == '%' ? sib_tv_int(0) : sib_tnum_neg(r, sib_tv_int(x));
    int64_t q = x / y, m = x % y;
    if (m && (m < 0) != (y < 0)) {
        m += y;
        q--;
    }
    return sib_tv_int(op == '%' ? m : q);
}

sib_tv sib_tnum_binary(sib_tr *r, char op, sib_tv a, sib_tv b)
{
    if (sib_tv_is_int(a) && sib_tv_is_int(b)) return int_binary(r, op, a, b);
    return float_binary(r, op, sib_tv_double(r, a), sib_tv_double(r, b));
}

sib_tv sib_tnum_neg(sib_tr *r, sib_tv v)
{
    if (v.type == TV_FLOAT) return sib_tv_float(-v.u.f);
    return int_binary(r, '-', sib_tv_int(0), v);
}

sib_tv sib_tnum_abs(sib_tr *r, sib_tv v)
{
    if (v.type == TV_FLOAT) return sib_tv_float(fabs(v.u.f));
    if (v.type == TV_BOOL) return sib_tv_int(v.u.b);
    return sib_tnum_order(v, sib_tv_int(0)) < 0 ? sib_tnum_neg(r, v) : v;
}

sib_tv sib_tnum_round(sib_tr *r, sib_tv v, int64_t digits)
{
    if (v.type != TV_FLOAT) {
        if (digits >= 0) return v.type == TV_BOOL ? sib_tv_int(v.u.b) : v;
        if (v.type == TV_BIG || digits < -18) sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "rounding an integer to %lld digits is not supported", (long long)digits);
        int64_t unit = 1, x = small_int(v);
        for (; digits < 0; digits++) unit *= 10;
        int64_t rest = x % unit < 0 ? x % unit + unit : x % unit; /* half to even */
        bool up = rest > unit - rest || (rest == unit - rest && (x - rest) / unit % 2 != 0);
        sib_tv low = int_binary(r, '-', v, sib_tv_int(rest));
        return up ? int_binary(r, '+', low, sib_tv_int(unit)) : low;
    }
    double d = v.u.f;
    if (!isfinite(d) || digits > 323) return v;
    if (digits < -308) return sib_tv_float(copysign(0, d));
    char text[700];
    if (digits >= 0) { /* printf rounds the exact binary value half to even, as Python does */
        (void)snprintf(text, sizeof text, "%.*f", (int)digits, d);
        return sib_tv_float(strtod(text, NULL));
    }
    double unit = pow(10, (double)-digits);
    return sib_tv_float(nearbyint(d / unit) * unit);
}

/* ---- texts ----------------------------------------------------------------------------------------------- */

void sib_tnum_put_float(sib_tb *b, double d)
{
    char text[40];
    if (isnan(d) || isinf(d)) {
        sib_tb_addz(b, isnan(d) ? "nan" : d < 0 ? "-inf" : "inf");
        return;
    }
    int precision = 0; /* the fewest digits that read back as the same double */
    do
        (void)snprintf(text, sizeof text, "%.*e", precision, d);
    while (strtod(text, NULL) != d && ++precision < 17);
    char *e = strchr(text, 'e');
    int exponent = atoi(e + 1);
    if (exponent < -4 || exponent >= 16) { /* printf writes at least two digits of exponent, so does Python */
        sib_tb_addz(b, text);
        return;
    }
    char digits[24];
    int n = 0;
    for (char *p = text; p < e; p++)
        if (isdigit((unsigned char)*p)) digits[n++] = *p;
    if (text[0] == '-') sib_tb_addc(b, '-');
    if (exponent < 0) {
        sib_tb_addz(b, "0.");
        sib_tb_fill(b, '0', (size_t)(-exponent - 1));
        sib_tb_add(b, digits, (size_t)n);
        return;
    }
    for (int i = 0; i <= exponent; i++) sib_tb_addc(b, i < n ? digits[i] : '0');
    sib_tb_addc(b, '.');
    if (n > exponent + 1)
        sib_tb_add(b, digits + exponent + 1, (size_t)(n - exponent - 1));
    else
        sib_tb_addc(b, '0');
}

void sib_tnum_put(sib_tb *b, sib_tv v)
{
    char text[32];
    if (v.type == TV_FLOAT) {
        sib_tnum_put_float(b, v.u.f);
    } else if (v.type == TV_BIG) {
        const sib_tbig *g = v.u.big;
        if (g->neg) sib_tb_addc(b, '-');
        for (uint32_t i = g->n; i--;) {
            (void)snprintf(text, sizeof text, i + 1 == g->n ? "%u" : "%09u", (unsigned)g->d[i]);
            sib_tb_addz(b, text);
        }
    } else {
        (void)snprintf(text, sizeof text, "%lld", (long long)small_int(v));
        sib_tb_addz(b, text);
    }
}

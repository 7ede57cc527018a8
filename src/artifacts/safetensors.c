/* artifacts/safetensors.c - the reader; see safetensors.h. The order of the checks is that of
 * formats.md A.2, whose numbers stand in the comments. */
#include "artifacts/safetensors.h"

#include "artifacts/names.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_MAX     100000000u
#define NAME_MAX_BYTES 1024
#define DEPTH_MAX      8

struct sib_safetensors {
    sib_mapping *mapping;
    char *strings;                      /* names, NUL-terminated, and the metadata, in the header's own buffer */
    size_t metadata_at, metadata_bytes; /* key NUL value NUL ... */
    int64_t *shapes;
    sib_tensor_info *tensors;
    size_t n;
    sib_names names;
};

/* One tensor of the header before its offsets have been checked. */
typedef struct entry {
    uint64_t begin, end;
    uint32_t name_at, shape_at;
    uint8_t dtype, rank;
} entry;

/* A walk over the header. The first one checks the syntax and counts, the second fills `entries` and
 * `shapes` and keeps decoded strings at the front of the text, which is always behind the
 * reading position: a decoded string and its NUL are shorter than its literal. */
typedef struct scan {
    char *text;
    size_t n, at;
    size_t kept;
    size_t n_entries, n_dims;
    entry *entries; /* NULL during the first walk */
    int64_t *shapes;
    bool has_metadata;
    size_t metadata_at, metadata_bytes;
    const char *path;
    sib_err *err;
} scan;

/* ---- JSON ------------------------------------------------------------------------------- */

static sib_status bad(const scan *s, const char *what)
{
    return sib_fail(s->err, SIB_EFORMAT, "%s: header byte %zu: %s", s->path, s->at, what);
}

static char peek(const scan *s)
{
    return s->at < s->n ? s->text[s->at] : '\0';
}

static void skip_space(scan *s)
{
    while (s->at < s->n &&
           (s->text[s->at] == ' ' || s->text[s->at] == '\t' || s->text[s->at] == '\n' || s->text[s->at] == '\r'))
        s->at++;
}

/* The next byte after spaces, taken when it is c. */
static bool take(scan *s, char c)
{
    skip_space(s);
    if (s->at >= s->n || s->text[s->at] != c) return false;
    s->at++;
    return true;
}

static sib_status read_hex4(scan *s, uint32_t *out)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        char c = peek(s);
        bool digit = c >= '0' && c <= '9', letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
        if (!digit && !letter) return bad(s, "\\u needs four hexadecimal digits");
        v = v << 4 | (uint32_t)(digit ? c - '0' : (c | 32) - 'a' + 10);
    }
    *out = v;
    return SIB_OK;
}

static sib_status read_escape(scan *s, char out[4], size_t *n)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = peek(s);
    const char *known = c ? strchr(from, c) : NULL;
    if (known) {
        s->at++;
        out[0] = to[known - from];
        *n = 1;
        return SIB_OK;
    }
    if (c != 'u') return bad(s, "unknown escape in a string");
    s->at++;
    uint32_t cp, low;
    SIB_TRY(read_hex4(s, &cp));
    if (cp >= 0xD800 && cp <= 0xDFFF) {
        bool paired = cp < 0xDC00 && s->n - s->at >= 2 && s->text[s->at] == '\\' && s->text[s->at + 1] == 'u';
        if (!paired) return bad(s, "unpaired surrogate in a string");
        s->at += 2;
        SIB_TRY(read_hex4(s, &low));
        if (low < 0xDC00 || low > 0xDFFF) return bad(s, "unpaired surrogate in a string");
        cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
    }
    if (cp == 0) return bad(s, "NUL in a string");
    *n = sib_utf8_put(cp, out);
    return SIB_OK;
}

/* Decodes a string literal: its first `cap` bytes go to `out`, *len is its whole length. No string
 * of a header may hold a NUL. `out` may be earlier bytes of the text itself. */
static sib_status read_string(scan *s, char *out, size_t cap, size_t *len)
{
    if (!take(s, '"')) return bad(s, "expected a string");
    *len = 0;
    for (;;) {
        if (s->at >= s->n) return bad(s, "string without an end");
        char piece[4];
        size_t n = 1;
        char c = piece[0] = s->text[s->at++];
        if (c == '"') return SIB_OK;
        if ((unsigned char)c < 0x20) return bad(s, "control character in a string");
        if (c == '\\') SIB_TRY(read_escape(s, piece, &n));
        for (size_t i = 0; i < n; i++, ++*len)
            if (*len < cap) out[*len] = piece[i];
    }
}

/* A JSON integer in 0 .. 2^64-1. */
static sib_status read_u64(scan *s, uint64_t *out)
{
    skip_space(s);
    size_t start = s->at;
    uint64_t v = 0;
    while (peek(s) >= '0' && peek(s) <= '9') {
        uint64_t digit = (uint64_t)(peek(s) - '0');
        if (v > (UINT64_MAX - digit) / 10) return bad(s, "number of 2^64 or more");
        v = v * 10 + digit;
        s->at++;
    }
    char c = peek(s);
    if (s->at == start || c == '.' || c == 'e' || c == 'E') return bad(s, "expected a non-negative integer");
    if (s->text[start] == '0' && s->at - start > 1) return bad(s, "number with a leading zero");
    *out = v;
    return SIB_OK;
}

static size_t skip_digits(scan *s)
{
    size_t start = s->at;
    while (peek(s) >= '0' && peek(s) <= '9') s->at++;
    return s->at - start;
}

static sib_status skip_number(scan *s)
{
    if (peek(s) == '-') s->at++;
    bool zero = peek(s) == '0';
    size_t digits = skip_digits(s);
    if (digits == 0 || (zero && digits > 1)) return bad(s, "expected a value");
    if (peek(s) == '.') {
        s->at++;
        if (skip_digits(s) == 0) return bad(s, "number without a fraction after its point");
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        s->at++;
        if (peek(s) == '+' || peek(s) == '-') s->at++;
        if (skip_digits(s) == 0) return bad(s, "number without an exponent after its e");
    }
    return SIB_OK;
}

/* Any value, for keys that mean nothing to us; recursion ends at DEPTH_MAX. */
static sib_status skip_value(scan *s, int depth)
{
    size_t len;
    skip_space(s);
    char c = peek(s);
    if (c == '"') return read_string(s, NULL, 0, &len);
    if (c == '{' || c == '[') {
        char close = c == '{' ? '}' : ']';
        if (depth >= DEPTH_MAX) return bad(s, "nested deeper than 8 levels");
        s->at++;
        if (take(s, close)) return SIB_OK;
        do {
            if (c == '{') {
                SIB_TRY(read_string(s, NULL, 0, &len));
                if (!take(s, ':')) return bad(s, "expected ':'");
            }
            SIB_TRY(skip_value(s, depth + 1));
        } while (take(s, ','));
        return take(s, close) ? SIB_OK : bad(s, "expected ',' or the end of the value");
    }
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < SIB_COUNT(words); i++) {
        size_t n = strlen(words[i]);
        if (s->n - s->at >= n && memcmp(s->text + s->at, words[i], n) == 0) {
            s->at += n;
            return SIB_OK;
        }
    }
    return skip_number(s);
}

/* ---- the header --------------------------------------------------------------------------- */

static sib_status read_shape(scan *s, entry *e)
{
    if (!take(s, '[')) return bad(s, "\"shape\" must be a list");
    e->shape_at = (uint32_t)s->n_dims;
    e->rank = 0;
    if (take(s, ']')) return SIB_OK;
    do {
        uint64_t dim;
        SIB_TRY(read_u64(s, &dim));
        if (dim > INT64_MAX) return bad(s, "dimension of 2^63 or more");
        if (e->rank == SIB_TENSOR_MAX_RANK) return bad(s, "more than 8 dimensions");
        if (s->shapes) s->shapes[s->n_dims] = (int64_t)dim;
        s->n_dims++;
        e->rank++;
    } while (take(s, ','));
    return take(s, ']') ? SIB_OK : bad(s, "expected ',' or ']'");
}

static sib_status read_offsets(scan *s, entry *e)
{
    if (!take(s, '[')) return bad(s, "\"data_offsets\" must be a list of two integers");
    SIB_TRY(read_u64(s, &e->begin));
    if (!take(s, ',')) return bad(s, "\"data_offsets\" must hold exactly two integers");
    SIB_TRY(read_u64(s, &e->end));
    return take(s, ']') ? SIB_OK : bad(s, "\"data_offsets\" must hold exactly two integers");
}

static sib_status read_dtype(scan *s, entry *e)
{
    char text[32];
    size_t n;
    sib_dtype t;
    SIB_TRY(read_string(s, text, sizeof text, &n));
    if (n > sizeof text || !sib_dtype_named((sib_str){text, n}, &t)) return bad(s, "unknown dtype");
    e->dtype = (uint8_t)t;
    return SIB_OK;
}

static sib_status read_entry(scan *s, const char *name)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    entry e = {0};
    unsigned seen = 0;
    if (!take(s, '{')) return bad(s, "a tensor must be an object");
    if (!take(s, '}')) {
        do {
            char key[16];
            size_t n;
            unsigned k = 0;
            SIB_TRY(read_string(s, key, sizeof key, &n));
            if (!take(s, ':')) return bad(s, "expected ':'");
            while (k < 3 && (n > sizeof key || !sib_str_is((sib_str){key, n}, keys[k]))) k++;
            if (seen & 1u << k & 7u)
                return sib_fail(s->err, SIB_EFORMAT, "%s: tensor %s: key \"%s\" twice", s->path, name, keys[k]);
            seen |= 1u << k;
            switch (k) {
            case 0: SIB_TRY(read_dtype(s, &e)); break;
            case 1: SIB_TRY(read_shape(s, &e)); break;
            case 2: SIB_TRY(read_offsets(s, &e)); break;
            default: SIB_TRY(skip_value(s, 2));
            }
        } while (take(s, ','));
        if (!take(s, '}')) return bad(s, "expected ',' or '}'");
    }
    for (unsigned k = 0; k < 3; k++)
        if (!(seen & 1u << k))
            return sib_fail(s->err, SIB_EFORMAT, "%s: tensor %s: key \"%s\" is missing", s->path, name, keys[k]);
    if (s->n_entries == SIB_SAFETENSORS_MAX)
        return sib_fail(s->err, SIB_EFORMAT, "%s: more than %d tensors", s->path, SIB_SAFETENSORS_MAX);
    if (s->entries) {
        e.name_at = (uint32_t)s->kept;
        size_t bytes = strlen(name) + 1;
        memcpy(s->text + s->kept, name, bytes);
        s->kept += bytes;
        s->entries[s->n_entries] = e;
    }
    s->n_entries++;
    return SIB_OK;
}

static sib_status read_metadata(scan *s)
{
    if (s->has_metadata) return bad(s, "__metadata__ twice");
    s->has_metadata = true;
    s->metadata_at = s->kept;
    skip_space(s);
    if (peek(s) == 'n') return skip_value(s, 2); /* null, which the crate takes for "none" */
    if (!take(s, '{')) return bad(s, "__metadata__ must be an object of strings");
    if (take(s, '}')) return SIB_OK;
    bool keep = s->entries != NULL;
    do {
        for (int part = 0; part < 2; part++) {
            size_t n;
            if (part == 1 && !take(s, ':')) return bad(s, "expected ':'");
            SIB_TRY(read_string(s, s->text + s->kept, keep ? SIZE_MAX : 0, &n));
            if (!keep) continue;
            s->kept += n;
            s->text[s->kept++] = 0;
        }
    } while (take(s, ','));
    s->metadata_bytes = s->kept - s->metadata_at;
    return take(s, '}') ? SIB_OK : bad(s, "expected ',' or '}'");
}

static sib_status read_header(scan *s)
{
    s->at = s->kept = s->n_entries = s->n_dims = 0;
    s->has_metadata = false;
    if (s->n == 0 || s->text[0] != '{') return bad(s, "the header must begin with '{'");
    s->at = 1;
    if (!take(s, '}')) {
        do {
            char name[NAME_MAX_BYTES + 1];
            size_t n;
            SIB_TRY(read_string(s, name, NAME_MAX_BYTES, &n));
            if (n == 0 || n > NAME_MAX_BYTES) return bad(s, "tensor name is empty or longer than 1024 bytes");
            name[n] = 0;
            for (size_t i = 0; i < n; i++)
                if ((unsigned char)name[i] < 0x20 || name[i] == 0x7F)
                    return bad(s, "control character in a tensor name");
            if (!take(s, ':')) return bad(s, "expected ':'");
            SIB_TRY(strcmp(name, "__metadata__") == 0 ? read_metadata(s) : read_entry(s, name));
        } while (take(s, ','));
        if (!take(s, '}')) return bad(s, "expected ',' or '}'");
    }
    skip_space(s);
    return s->at == s->n ? SIB_OK : bad(s, "bytes after the header's object");
}

/* ---- tensors ------------------------------------------------------------------------------ */

static int by_offset(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return x->name_at < y->name_at ? -1 : x->name_at > y->name_at;
}

/* Checks 6 to 10 and the making of the public records, in order of the data. */
static sib_status place_tensors(sib_safetensors *f, const scan *s, size_t data_at, bool lax, sib_err *err)
{
    const char *path = s->path;
    const unsigned char *data = sib_mapping_data(f->mapping) + data_at;
    uint64_t data_bytes = sib_mapping_size(f->mapping) - data_at, at = 0;
    for (size_t i = 0; i < s->n_entries; i++) {
        const entry *e = &s->entries[i];
        const char *name = f->strings + e->name_at;
        const int64_t *shape = f->shapes + e->shape_at;
        if (e->end < e->begin || (!lax && e->begin != at)) /* 6 */
            return sib_fail(err, SIB_EFORMAT,
                            "%s: tensor %s: offsets [%llu, %llu] leave a hole or overlap, expected to begin at %llu",
                            path, name, (unsigned long long)e->begin, (unsigned long long)e->end,
                            (unsigned long long)at);
        uint64_t bits = 1;
        bool overflow = false;
        for (int d = 0; d < e->rank; d++) overflow |= __builtin_mul_overflow(bits, (uint64_t)shape[d], &bits); /* 7 */
        overflow |= bits > INT64_MAX;
        overflow |= __builtin_mul_overflow(bits, (uint64_t)sib_dtype_bits((sib_dtype)e->dtype), &bits);
        if (overflow) return sib_fail(err, SIB_EFORMAT, "%s: tensor %s: the shape's size overflows", path, name);
        if (bits % 8)
            return sib_fail(err, SIB_EFORMAT, "%s: tensor %s: its bits do not fill whole bytes", path, name); /* 8 */
        if (e->end - e->begin != bits / 8)                                                                    /* 9 */
            return sib_fail(err, SIB_EFORMAT, "%s: tensor %s: shape and dtype need %llu bytes, offsets give %llu", path,
                            name, (unsigned long long)(bits / 8), (unsigned long long)(e->end - e->begin));
        if (e->end > data_bytes)
            return sib_fail(err, SIB_EFORMAT,
                            "%s: tensor %s: ends at byte %llu of %llu bytes of data (incomplete download?)", path, name,
                            (unsigned long long)e->end, (unsigned long long)data_bytes);
        at = e->end;
        f->tensors[f->n++] = (sib_tensor_info){.name = name,
                                               .file = sib_mapping_path(f->mapping),
                                               .shape = shape,
                                               .data = data + e->begin,
                                               .bytes = (size_t)(e->end - e->begin),
                                               .dtype = (sib_dtype)e->dtype,
                                               .rank = e->rank};
    }
    if (!lax && at != data_bytes) /* 10 */
        return sib_fail(err, SIB_EFORMAT, "%s: %llu bytes follow the last tensor", path,
                        (unsigned long long)(data_bytes - at));
    for (size_t i = 0; i < f->n; i++) {
        uint32_t old;
        if (!sib_names_add(&f->names, f->tensors[i].name, (uint32_t)i, &old)) return sib_nomem(err, path);
        if (old != SIB_NAMES_NONE)
            return sib_fail(err, SIB_EFORMAT, "%s: tensor %s appears twice", path, f->tensors[i].name);
    }
    return SIB_OK;
}

static sib_status read_file(sib_safetensors *f, bool lax, sib_err *err)
{
    const char *path = sib_mapping_path(f->mapping);
    size_t size = sib_mapping_size(f->mapping);
    unsigned char length[8];
    uint64_t n = 0;
    if (size < 8)
        return sib_fail(err, SIB_EFORMAT, "%s: %zu bytes are too few for a safetensors file", path, size); /* 1 */
    SIB_TRY(sib_mapping_read(f->mapping, 0, length, sizeof length, err));
    for (int i = 7; i >= 0; i--) n = n << 8 | length[i];
    if (n > HEADER_MAX) /* 2 */
        return sib_fail(err, SIB_EFORMAT, "%s: header of %llu bytes, at most %u are allowed", path,
                        (unsigned long long)n, HEADER_MAX);
    if (n > size - 8) /* 3 */
        return sib_fail(err, SIB_EFORMAT, "%s: header of %llu bytes does not fit the file's %zu (incomplete download?)",
                        path, (unsigned long long)n, size);
    if (!(f->strings = malloc((size_t)n + 1))) return sib_nomem(err, path);
    SIB_TRY(sib_mapping_read(f->mapping, 8, f->strings, (size_t)n, err));
    if (!sib_utf8_valid((sib_str){f->strings, (size_t)n}))
        return sib_fail(err, SIB_EFORMAT, "%s: header is not UTF-8", path); /* 4 */

    scan s = {.text = f->strings, .n = (size_t)n, .path = path, .err = err};
    SIB_TRY(read_header(&s)); /* 5 */
    f->shapes = calloc(s.n_dims + 1, sizeof *f->shapes);
    f->tensors = calloc(s.n_entries + 1, sizeof *f->tensors);
    s.shapes = f->shapes;
    s.entries = calloc(s.n_entries + 1, sizeof *s.entries);
    sib_status st = SIB_OK;
    if (!f->shapes || !f->tensors || !s.entries || !sib_names_reserve(&f->names, s.n_entries))
        st = sib_nomem(err, path);
    if (st == SIB_OK) st = read_header(&s);
    if (st == SIB_OK) {
        char *shrunk = realloc(f->strings, s.kept + 1); /* the rest of the header is no longer needed */
        if (shrunk) f->strings = shrunk;
        f->metadata_at = s.metadata_at;
        f->metadata_bytes = s.metadata_bytes;
        qsort(s.entries, s.n_entries, sizeof *s.entries, by_offset);
        st = place_tensors(f, &s, 8 + (size_t)n, lax, err);
    }
    free(s.entries);
    return st;
}

sib_status sib_safetensors_open(sib_safetensors **out, const char *path, bool lax, sib_err *err)
{
    *out = NULL;
    sib_safetensors *f = calloc(1, sizeof *f);
    if (!f) return sib_nomem(err, path);
    sib_status s = sib_mapping_open(&f->mapping, path, err);
    if (s == SIB_OK) s = read_file(f, lax, err);
    if (s == SIB_OK)
        *out = f;
    else
        sib_safetensors_free(f);
    return s;
}

void sib_safetensors_free(sib_safetensors *f)
{
    if (!f) return;
    sib_names_deinit(&f->names);
    free(f->tensors);
    free(f->shapes);
    free(f->strings);
    sib_mapping_free(f->mapping);
    free(f);
}

size_t sib_safetensors_count(const sib_safetensors *f)
{
    return f->n;
}

const sib_tensor_info *sib_safetensors_at(const sib_safetensors *f, size_t i)
{
    return &f->tensors[i];
}

const sib_tensor_info *sib_safetensors_find(const sib_safetensors *f, const char *name)
{
    uint32_t i = sib_names_find(&f->names, name);
    return i == SIB_NAMES_NONE ? NULL : &f->tensors[i];
}

const char *sib_safetensors_metadata(const sib_safetensors *f, const char *key)
{
    const char *p = f->strings + f->metadata_at, *end = p + f->metadata_bytes;
    while (p < end) {
        const char *value = p + strlen(p) + 1;
        if (strcmp(p, key) == 0) return value;
        p = value + strlen(value) + 1;
    }
    return NULL;
}

const sib_mapping *sib_safetensors_mapping(const sib_safetensors *f)
{
    return f->mapping;
}

int64_t sib_tensor_elements(const sib_tensor_info *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->rank; d++) n *= t->shape[d];
    return n;
}

const char *sib_tensor_describe(const sib_tensor_info *t, char text[static 256])
{
    int n = snprintf(text, 256, "%s [", sib_dtype_name(t->dtype));
    for (int d = 0; d < t->rank; d++)
        n += snprintf(text + n, (size_t)(256 - n), d ? ", %lld" : "%lld", (long long)t->shape[d]);
    (void)snprintf(text + n, (size_t)(256 - n), "]");
    return text;
}

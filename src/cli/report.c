/* cli/report.c - see report.h. */
#include "cli/report.h"

#include "base/str.h"
#include "base/utf8.h"
#include "cli/term.h"

#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH   8 /* deeper objects are shown as JSON */
#define MAX_COLUMNS 16
#define WIDTH       100
#define MAX_LINES   60 /* of one list; --json has the rest */

static const struct {
    const char *key, *label;
} labels[] = {
    {"path", "folder"},
    {"ctx", "context"},
    {"largest_ctx", "largest context that fits"},
    {"parallel", "sequences"},
    {"file_bytes", "weights in files"},
    {"tensor_count", "tensors in files"},
    {"offers", "ports offered"},
    {"needs", "ports needed"},
    {"memory_bytes", "memory"},
    {"available_bytes", "available now"},
    {"cache", "keys and values"},
};

/* Keys of byte counts: by their ending, and the parts of the memory table. */
static bool is_size(const char *key)
{
    static const char *const parts[] = {"bytes", "weights", "cache", "step", "results", "pictures", "total"};
    for (size_t i = 0; i < SIB_COUNT(parts); i++)
        if (strcmp(parts[i], key) == 0) return true;
    return sib_ends_with(key, "_bytes");
}

static void label_of(const char *key, char out[64])
{
    for (size_t i = 0; i < SIB_COUNT(labels); i++)
        if (strcmp(labels[i].key, key) == 0) {
            (void)snprintf(out, 64, "%s", labels[i].label);
            return;
        }
    (void)snprintf(out, 64, "%s", key);
    if (sib_ends_with(out, "_bytes")) out[strlen(out) - strlen("_bytes")] = 0;
    for (char *p = out; *p; p++)
        if (*p == '_') *p = ' ';
}

static bool is_scalar(const json_t *v)
{
    return !json_is_object(v) && !json_is_array(v);
}

/* 9747936 as "9,747,936" */
static void put_grouped(sib_buf *out, long long v)
{
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%lld", v);
    for (int i = 0; i < n; i++) {
        sib_buf_addc(out, digits[i]);
        int left = n - 1 - i;
        if (left && left % 3 == 0 && digits[i] != '-') sib_buf_addc(out, ',');
    }
}

/* A value on one line. Sizes in full when `exact`. */
static void put_value(sib_buf *out, const char *key, const json_t *v, bool exact)
{
    if (json_is_string(v)) {
        sib_buf_add(out, json_string_value(v), json_string_length(v));
    } else if (json_is_integer(v) && is_size(key)) {
        long long bytes = json_integer_value(v);
        sib_buf_addz(out, cli_size_of((double)bytes).text);
        if (!exact || bytes < 1024) return;
        sib_buf_addz(out, " (");
        put_grouped(out, bytes);
        sib_buf_addz(out, " bytes)");
    } else if (json_is_integer(v)) {
        sib_buf_addf(out, "%lld", (long long)json_integer_value(v));
    } else if (json_is_real(v)) {
        sib_buf_addf(out, "%.6g", json_real_value(v));
    } else if (json_is_boolean(v)) {
        sib_buf_addz(out, json_is_true(v) ? "yes" : "no");
    } else if (json_is_null(v) || !v) {
        sib_buf_addz(out, "-");
    } else if (json_is_array(v) && json_array_size(v) == 0) {
        sib_buf_addz(out, "none");
    } else {
        bool plain = json_is_array(v);
        for (size_t i = 0; plain && i < json_array_size(v); i++) plain = is_scalar(json_array_get(v, i));
        for (size_t i = 0; plain && i < json_array_size(v); i++) {
            if (i) sib_buf_addz(out, ", ");
            put_value(out, key, json_array_get(v, i), false);
        }
        char *text = plain ? NULL : json_dumps(v, JSON_COMPACT);
        if (text) sib_buf_addz(out, text);
        free(text);
    }
}

static size_t width_of(const sib_buf *b)
{
    size_t columns = 0, len;
    for (size_t i = 0; i < b->n; i += len, columns++) (void)sib_utf8_next(b->p + i, b->n - i, &len);
    return columns;
}

static void indent(FILE *f, int depth)
{
    (void)fprintf(f, "%*s", 2 * depth, "");
}

static void heading(FILE *f, const char *key, int depth)
{
    char label[64];
    label_of(key, label);
    if (depth == 0) (void)fputc('\n', f);
    indent(f, depth);
    (void)fprintf(f, "%s%s%s\n", cli_style_on(f, CLI_BOLD), label, cli_style_on(f, CLI_PLAIN));
}

static bool is_table(const json_t *a)
{
    for (size_t i = 0; i < json_array_size(a); i++)
        if (!json_is_object(json_array_get(a, i))) return false;
    return json_array_size(a) > 0;
}

/* Rows with the same keys under one line of column names. Numbers stand right. */
static void print_table(FILE *f, const json_t *rows, int depth)
{
    const char *keys[MAX_COLUMNS];
    char names[MAX_COLUMNS][64];
    size_t widths[MAX_COLUMNS], n = 0, i;
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        for (void *it = json_object_iter(row); it && n < MAX_COLUMNS; it = json_object_iter_next(row, it)) {
            size_t k = 0;
            while (k < n && strcmp(keys[k], json_object_iter_key(it)) != 0) k++;
            if (k == n) keys[n++] = json_object_iter_key(it);
        }
    }
    for (size_t k = 0; k < n; k++) {
        label_of(keys[k], names[k]);
        widths[k] = strlen(names[k]);
        json_array_foreach(rows, i, row)
        {
            sib_buf cell = {0};
            put_value(&cell, keys[k], json_object_get(row, keys[k]), false);
            if (width_of(&cell) > widths[k]) widths[k] = width_of(&cell);
            sib_buf_deinit(&cell);
        }
    }
    indent(f, depth);
    (void)fputs(cli_style_on(f, CLI_DIM), f);
    for (size_t k = 0; k < n; k++) {
        bool right = json_is_number(json_object_get(json_array_get(rows, 0), keys[k]));
        (void)fprintf(f, "%*s%s",
                      right       ? (int)widths[k]
                      : k + 1 < n ? -(int)widths[k]
                                  : 0,
                      names[k], k + 1 < n ? "  " : "");
    }
    (void)fprintf(f, "%s\n", cli_style_on(f, CLI_PLAIN));
    json_array_foreach(rows, i, row)
    {
        indent(f, depth);
        for (size_t k = 0; k < n; k++) {
            sib_buf cell = {0};
            const json_t *v = json_object_get(row, keys[k]);
            put_value(&cell, keys[k], v, false);
            int pad = (int)(widths[k] - width_of(&cell));
            bool last = k + 1 == n;
            if (json_is_number(v)) (void)fprintf(f, "%*s", pad, "");
            cli_put_text(f, cell.p, cell.n);
            if (!last) (void)fprintf(f, "%*s", json_is_number(v) ? 2 : pad + 2, "");
            sib_buf_deinit(&cell);
        }
        (void)fputc('\n', f);
    }
}

/* Values one a line, cut where nobody reads on. */
static void print_list(FILE *f, const json_t *a, int depth)
{
    size_t n = json_array_size(a), shown = n > MAX_LINES ? MAX_LINES : n;
    for (size_t i = 0; i < shown; i++) {
        sib_buf line = {0};
        put_value(&line, "", json_array_get(a, i), false);
        indent(f, depth);
        cli_put_text(f, line.p, line.n);
        (void)fputc('\n', f);
        sib_buf_deinit(&line);
    }
    if (shown == n) return;
    indent(f, depth);
    (void)fprintf(f, "... and %zu more (--json has all)\n", n - shown);
}

/* Whether a member goes into the block of aligned lines at the top of its object. */
static bool fits_a_line(const char *key, const json_t *v)
{
    if (is_scalar(v)) return true;
    if (json_is_object(v) || is_table(v)) return false;
    sib_buf line = {0};
    put_value(&line, key, v, true);
    bool fits = width_of(&line) <= WIDTH;
    sib_buf_deinit(&line);
    return fits;
}

static void print_object(FILE *f, json_t *object, int depth)
{
    size_t width = 0;
    const char *key;
    json_t *v;
    char label[64];
    json_object_foreach(object, key, v)
    {
        label_of(key, label);
        if (fits_a_line(key, v) && strlen(label) > width) width = strlen(label);
    }
    json_object_foreach(object, key, v)
    {
        if (!fits_a_line(key, v)) continue;
        sib_buf line = {0};
        put_value(&line, key, v, true);
        label_of(key, label);
        indent(f, depth);
        (void)fprintf(f, "%-*s  ", (int)width, label);
        cli_put_text(f, line.p, line.n);
        (void)fputc('\n', f);
        sib_buf_deinit(&line);
    }
    json_object_foreach(object, key, v)
    {
        if (fits_a_line(key, v)) continue;
        heading(f, key, depth);
        if (json_is_array(v) && is_table(v))
            print_table(f, v, depth + 1);
        else if (json_is_array(v) || depth + 1 >= MAX_DEPTH)
            print_list(f, v, depth + 1);
        else
            print_object(f, v, depth + 1);
    }
}

void cli_report_print(FILE *f, json_t *facts)
{
    print_object(f, facts, 0);
}

/* cli/cmd_bench.c - `sibyl bench`: speed of a checkpoint (engine/bench.h), as CSV or JSON. */
#include "cli/answer.h"
#include "cli/cmd.h"
#include "cli/term.h"
#include "engine/bench.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "1,2,4" into v; NULL leaves the default, "" gives none. */
static sib_status read_list(const char *z, const char *flag, int lo, int hi, int *v, int *n, sib_err *err)
{
    if (!z) return SIB_OK;
    *n = 0;
    for (const char *at = z; *at;) {
        char number[16];
        size_t len = strcspn(at, ",");
        int64_t value;
        if (len >= sizeof number || *n == SIB_BENCH_MAX) return sib_fail(err, SIB_EARG, "--%s %s: at most %d numbers", flag, z, SIB_BENCH_MAX);
        memcpy(number, at, len);
        number[len] = 0;
        SIB_TRY(cli_int(number, flag, lo, hi, &value, err));
        v[(*n)++] = (int)value;
        at += len + (at[len] == ',');
    }
    return SIB_OK;
}

static void progress(void *ctx, const char *line)
{
    (void)ctx;
    fprintf(stderr, "\r\033[K%s", line);
    fflush(stderr);
}

/* One line a figure: what,parameter,median,best. */
static void print_csv(const json_t *o)
{
    static const struct {
        const char *list, *key, *value, *best;
    } tables[] = {{"prefill", "n", "tps", "tps_max"}, {"prefill", "n", "fraction_of_compute_probe", NULL}, {"decode", "depth", "tps", "tps_max"}, {"decode", "depth", "gbps", "gbps_max"},
                  {"decode", "depth", "fraction_of_read_probe", NULL}, {"rows", "k", "ms", "ms_min"}, {"rows", "k", "ratio", "ratio_min"}, {"batch", "b", "tps", "tps_max"},
                  {"draft", "d", "draft_ms", NULL}, {"draft", "d", "verify_ms", NULL}, {"draft", "d", "break_even_emitted", NULL}, {"draft", "d", "break_even_acceptance", NULL}};
    static const char *const probes[] = {"probe_before", "probe_after"};
    printf("what,parameter,median,best\n");
    printf("load_ms,,%.2f,\nrss_mb,,%.1f,\n", json_number_value(json_object_get(o, "load_ms")), (double)json_integer_value(json_object_get(o, "rss_bytes")) / 1e6);
    for (size_t p = 0; p < SIB_COUNT(probes); p++) {
        const char *key;
        json_t *v;
        json_object_foreach(json_object_get(o, probes[p]), key, v) printf("%s.%s,,%.2f,\n", probes[p], key, json_number_value(v));
    }
    for (size_t t = 0; t < SIB_COUNT(tables); t++) {
        size_t i;
        json_t *row;
        json_array_foreach(json_object_get(o, tables[t].list), i, row)
        {
            printf("%s.%s,%d,%.4g,", tables[t].list, tables[t].value, (int)json_integer_value(json_object_get(row, tables[t].key)), json_number_value(json_object_get(row, tables[t].value)));
            if (tables[t].best) printf("%.4g", json_number_value(json_object_get(row, tables[t].best)));
            printf("\n");
        }
    }
}

int cmd_bench(cli_args *a)
{
    sib_buf facts = {0};
    sib_err err = {0};
    sib_bench_options b;
    json_t *o = NULL;
    sib_bench_init(&b);
    sib_status s = cli_use_model(a, &err);
    if (s == SIB_OK) s = read_list(a->prefill, "prefill", 1, 1 << 20, b.prefill, &b.n_prefill, &err);
    if (s == SIB_OK) s = read_list(a->depth, "depth", 0, 1 << 20, b.depth, &b.n_depth, &err);
    if (s == SIB_OK) s = read_list(a->bench_rows, "rows", 1, SIB_MAX_DRAFT + 1, b.rows, &b.n_rows, &err);
    if (s == SIB_OK) s = read_list(a->batch, "batch", 1, 64, b.batch, &b.n_batch, &err);
    if (a->decode) b.decode = a->decode;
    if (a->repeats) b.repeats = a->repeats;
    b.engine = a->options;
    b.note = isatty(STDERR_FILENO) ? progress : NULL;
    a->library_asked = s == SIB_OK;
    if (s == SIB_OK) s = sib_bench_json(&facts, &b, &err);
    if (b.note) fputs("\r\033[K", stderr);
    if (s == SIB_OK) s = sib_json_parse(&o, sib_buf_view(&facts), "report", &err);
    if (s == SIB_OK && a->json) (void)puts(facts.p);
    if (s == SIB_OK && !a->json) print_csv(o);
    json_decref(o);
    sib_buf_deinit(&facts);
    return cli_exit(s, &err, !a->library_asked);
}

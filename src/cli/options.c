/* cli/options.c - see options.h. */
#include "cli/options.h"

#include "base/str.h"
#include "base/threads.h"
#include "cli/term.h"

#include <errno.h>
#include <float.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ALL     (~0u)
#define ANSWERS (CLI_GENERATE | CLI_CHAT)
#define RUNS    (ANSWERS | CLI_EVAL | CLI_DOCTOR)        /* make tokens */
#define PLANS   (RUNS | CLI_SERVE | CLI_BENCH | CLI_FIT) /* need memory for a context */
#define LOADS   (PLANS | CLI_TOKENIZE | CLI_DETOKENIZE)

typedef enum kind {
    FLAG,   /* bool                                                    */
    INT,    /* int in [lo, hi]                                         */
    SEED,   /* uint64_t                                                */
    REAL,   /* double in [lo, hi]                                      */
    TEXT,   /* const char *                                            */
    CHOICE, /* const char *, one of the words of `arg` split at '|'    */
    LIST    /* cli_list; the flag may be repeated                      */
} kind;

typedef struct option_row {
    const char *name;
    char letter; /* 0: none */
    kind kind;
    const char *arg; /* what --help calls the value; NULL for FLAG */
    unsigned commands;
    size_t at; /* offset in cli_args */
    double lo, hi;
    const char *help;
} option_row;

#define AT(member)        offsetof(cli_args, member)
#define MANY              1000000.0
#define DEFAULT_MAX_DRAFT 15 /* sib_options.max_draft == 0 */

/* In the order in which --help prints them. */
static const option_row rows[] = {
    {"model", 'm', TEXT, "DIR", ALL, AT(options.model), 0, 0,
     "checkpoint folder, or ORG/NAME in the local Hugging Face cache (default: the demo)"},
    {"prompt", 'p', TEXT, "RAW", CLI_GENERATE, AT(prompt), 0, 0,
     "continue this text as it is, after BOS; - reads standard input"},
    {"chat", 0, TEXT, "TEXT", CLI_GENERATE, AT(chat), 0, 0,
     "answer this message, in the checkpoint's chat template; - reads standard input"},
    {"chat", 0, FLAG, NULL, CLI_TOKENIZE, AT(apply_template), 0, 0, "put the text into the chat template first"},
    {"system", 0, TEXT, "TEXT", ANSWERS | CLI_TOKENIZE, AT(system), 0, 0, "system message for --chat"},
    {"image", 0, LIST, "FILE", ANSWERS, AT(images), 0, 0,
     "a PNG, JPEG or WebP picture before the text; repeat for more"},
    {"tasks", 0, TEXT, "FILE", CLI_EVAL, AT(tasks), 0, 0, "JSONL of questions with answers"},
    {"pictures", 0, TEXT, "FILE", CLI_EVAL, AT(pictures), 0, 0,
     "JSONL of questions about pictures; files are beside it"},
    {"expect-ids", 0, TEXT, "FILE", CLI_EVAL, AT(expect_ids), 0, 0,
     "JSON with expected token ids by checkpoint folder name; counts the equal ones"},
    {"limit", 0, INT, "N", CLI_EVAL, AT(limit), 1, MANY, "only the first N of each file"},
    {"plain", 0, FLAG, NULL, CLI_TOKENIZE, AT(plain), 0, 0, "text that looks like a special token stays text"},
    {"special", 0, FLAG, NULL, CLI_TOKENIZE, AT(special), 0, 0, "add what the tokenizer adds around a text (BOS ...)"},
    {"special", 0, FLAG, NULL, CLI_DETOKENIZE, AT(special), 0, 0, "print special tokens"},
    {"trust-content", 0, FLAG, NULL, ANSWERS | CLI_TOKENIZE | CLI_EVAL | CLI_SERVE, AT(trust_content), 0, 0,
     "special tokens written in messages count (default: they stay text)"},
    {"special", 0, FLAG, NULL, ANSWERS, AT(request.keep_special), 0, 0, "print special tokens"},
    {"ids", 0, FLAG, NULL, CLI_TOKENIZE, AT(only_ids), 0, 0, "print only the ids, on one line"},
    {"max-tokens", 'n', INT, "N", RUNS, AT(request.max_tokens), 1, 1e9,
     "longest answer in tokens (default: until the context is full)"},
    {"temp", 0, REAL, "T", ANSWERS, AT(request.temperature), 0, 100, "temperature; 0 is greedy"},
    {"top-p", 0, REAL, "P", ANSWERS, AT(request.top_p), 0, 1, "keep the likeliest tokens up to this probability"},
    {"top-k", 0, INT, "K", ANSWERS, AT(request.top_k), 0, 1e9, "keep the K likeliest tokens; 0: all"},
    {"min-p", 0, REAL, "M", ANSWERS, AT(request.min_p), 0, 1, "drop tokens less likely than M times the likeliest"},
    {"seed", 0, SEED, "S", RUNS, AT(request.seed), 0, 0, "random seed (default: a random one; eval: 0)"},
    {"repeat-penalty", 0, REAL, "X", ANSWERS, AT(request.repetition_penalty), 1e-3, 100,
     "divide the scores of tokens seen before by X"},
    {"presence-penalty", 0, REAL, "X", ANSWERS, AT(request.presence_penalty), -100, 100,
     "subtract X once from tokens seen before"},
    {"frequency-penalty", 0, REAL, "X", ANSWERS, AT(request.frequency_penalty), -100, 100,
     "subtract X for each time a token was seen"},
    {"logit-bias", 0, LIST, "ID=B", ANSWERS, AT(biases), 0, 0, "add B to the score of token ID; repeat for more"},
    {"stop", 0, LIST, "TEXT", ANSWERS, AT(stops), 0, 0, "end the answer before this text; repeat for more"},
    {"ignore-eos", 0, FLAG, NULL, ANSWERS, AT(request.ignore_eos), 0, 0, "do not end at the end-of-text tokens"},
    {"max-soft-tokens", 0, INT, "N", RUNS, AT(request.max_soft_tokens), 1, MANY,
     "positions one picture may take (default: the checkpoint's)"},
    {"draft", 0, TEXT, "DIR|native|none", PLANS, AT(options.draft), 0, 0,
     "drafter folder, the checkpoint's own draft head, or none (default)"},
    {"draft-n", 0, INT, "K", RUNS, AT(request.draft_n), 1, SIB_MAX_DRAFT, "draft length (default: the drafter's)"},
    {"draft-policy", 0, CHOICE, "fixed|auto|off", RUNS, AT(request.draft_policy), 0, 0,
     "auto (default) shortens drafts or stops them when they lose time"},
    {"draft-bits", 0, INT, "B", PLANS, AT(options.draft_bits), 0, 8,
     "quantize a DFlash 2 drafter's projections to B bits at load; 0: as stored"},
    {"accept", 0, CHOICE, "match|rejection", RUNS, AT(request.accept), 0, 0,
     "match (default) keeps the bytes, rejection the distribution"},
    {"assistant-rules", 0, CHOICE, "trained|seed", PLANS, AT(options.assistant_rules), 0, 0,
     "scale and position rules of a Gemma 4 assistant drafter"},
    {"steps", 0, INT, "N", RUNS, AT(request.steps), 1, 4096, "diffusion: denoising steps of a canvas"},
    {"sampler", 0, CHOICE, "entropy|confidence", RUNS, AT(request.sampler), 0, 0, "diffusion: which positions settle"},
    {"dialect", 0, CHOICE, "hf|mlx", RUNS, AT(request.dialect), 0, 0,
     "diffusion: whose rules where the references differ"},
    {"replay", 0, TEXT, "FILE", CLI_GENERATE, AT(request.replay), 0, 0, "diffusion: recorded draws (safetensors)"},
    {"canvas", 0, TEXT, "FILE", CLI_GENERATE, AT(request.canvas), 0, 0, "diffusion: first canvas"},
    {"vision-quirk", 0, CHOICE, "none|mlx-trunc", RUNS | CLI_SERVE, AT(options.vision_quirk), 0, 0,
     "diffusion: truncate pixels as MLX does on a quantized tower"},
    {"vision-mask", 0, CHOICE, "hf|sliding", RUNS | CLI_SERVE, AT(options.vision_mask), 0, 0,
     "where a picture's tokens see each other: every layer, or sliding layers"},
    {"prefill", 0, TEXT, "P,P..", CLI_BENCH, AT(prefill), 0, 0, "prompt lengths to measure (default 128,512)"},
    {"decode", 0, INT, "N", CLI_BENCH, AT(decode), 1, 100000, "tokens of one decode measurement (default 32)"},
    {"depth", 0, TEXT, "D,D..", CLI_BENCH, AT(depth), 0, 0, "depths at which decode is measured (default 0)"},
    {"rows", 0, TEXT, "K,K..", CLI_BENCH, AT(bench_rows), 0, 0, "rows of a verification (default 1,2,4,8,16)"},
    {"batch", 0, TEXT, "B,B..", CLI_BENCH, AT(batch), 0, 0, "sequences decoded together (default 1,2,4,8)"},
    {"repeats", 0, INT, "N", CLI_BENCH, AT(repeats), 1, 50, "runs of each measurement (default 5)"},
    {"ctx", 0, INT, "N", PLANS, AT(options.n_ctx), 1, 1e9, "positions (default: the model's maximum, at most 8192)"},
    {"chunk", 0, INT, "N", PLANS, AT(options.chunk), 1, 65536, "prompt rows of one forward pass (default 512)"},
    {"parallel", 0, INT, "K", CLI_FIT | CLI_SERVE, AT(parallel), 1, 1024, "sequences at once (default: fit 1, serve 4)"},
    {"host", 0, TEXT, "H", CLI_SERVE, AT(host), 0, 0, "address to listen on (default 127.0.0.1)"},
    {"port", 0, INT, "P", CLI_SERVE, AT(port), 0, 65535, "port to listen on; 0: any free one (default 8080)"},
    {"queue", 0, INT, "N", CLI_SERVE, AT(queue), 0, 100000, "requests that may wait; more are refused with 429 (default 64)"},
    {"queue-timeout", 0, INT, "S", CLI_SERVE, AT(queue_timeout), 1, 86400, "seconds a request may wait (default 600)"},
    {"api-key", 0, LIST, "KEY", CLI_SERVE, AT(api_keys), 0, 0, "key that clients must send; repeat for more"},
    {"api-key-file", 0, TEXT, "FILE", CLI_SERVE, AT(api_key_file), 0, 0, "file with one key a line"},
    {"no-auth", 0, FLAG, NULL, CLI_SERVE, AT(no_auth), 0, 0, "listen on other addresses than loopback without a key"},
    {"allowed-origins", 0, LIST, "ORIGIN", CLI_SERVE, AT(origins), 0, 0, "browser origin that may ask, * for any; repeat for more"},
    {"alias", 0, TEXT, "ID", CLI_SERVE, AT(alias), 0, 0, "model id that clients see (default: the folder's name)"},
    {"any-model", 0, FLAG, NULL, CLI_SERVE, AT(any_model), 0, 0, "answer whatever model a request names"},
    {"max-body", 0, INT, "MIB", CLI_SERVE, AT(max_body), 1, 1024, "largest request body (default 64)"},
    {"max-connections", 0, INT, "N", CLI_SERVE, AT(max_connections), 1, 100000, "connections at once (default 1024)"},
    {"allow-half-close", 0, FLAG, NULL, CLI_SERVE, AT(half_close), 0, 0, "a client that closes its sending side still waits for its answer"},
    {"sse-keepalive", 0, CHOICE, "comment|chunk|off", CLI_SERVE, AT(keepalive), 0, 0, "what a silent stream sends every 5 seconds"},
    {"drain", 0, INT, "S", CLI_SERVE, AT(drain), 0, 86400, "seconds that running answers get after SIGTERM (default 30)"},
    {"log-file", 0, TEXT, "FILE", CLI_SERVE, AT(log_file), 0, 0, "log here instead of standard error; SIGHUP opens it again"},
    {"numerics", 0, CHOICE, "f32|bf16|int8", ALL, AT(options.numerics), 0, 0, "activations: bf16 (default), f32, int8"},
    {"device", 0, TEXT, "auto|cpu|cuda[:N]", LOADS, AT(options.device), 0, 0, "where to compute (default auto)"},
    {"threads", 0, INT, "N", ALL, AT(options.threads), 1, SIB_MAX_THREADS, "threads (default: physical cores)"},
    {"pin-threads", 0, FLAG, NULL, LOADS, AT(options.pin_threads), 0, 0, "bind threads to processors"},
    {"lax-safetensors", 0, FLAG, NULL, LOADS, AT(options.lax_safetensors), 0, 0,
     "allow holes and trailing bytes in weight files"},
    {"trace", 0, TEXT, "FILE", CLI_GENERATE, AT(trace), 0, 0,
     "write the stages of the forward pass to a safetensors file"},
    {"log", 0, CHOICE, "error|warn|info|debug", ALL, AT(log_level), 0, 0,
     "what to report on standard error (default warn)"},
    {"json", 0, FLAG, NULL, ALL, AT(json), 0, 0, "one JSON object on standard output"},
    {"help", 'h', FLAG, NULL, ALL, AT(help), 0, 0, "this text"},
};

/* ---- values ------------------------------------------------------------------------------ */

bool cli_list_add(cli_list *l, const char *z)
{
    const char **v = realloc(l->v, ((size_t)l->n + 1) * sizeof *v);
    if (!v) return false;
    v[l->n++] = z;
    l->v = v;
    return true;
}

sib_status cli_int(const char *z, const char *what, int64_t lo, int64_t hi, int64_t *out, sib_err *err)
{
    char *end;
    errno = 0;
    long long v = strtoll(z, &end, 10);
    const char *first = z + (z[0] == '-' || z[0] == '+'); /* strtoll would also take leading blanks */
    if (!*first || first[strspn(first, "0123456789")] || *end)
        return sib_fail(err, SIB_EARG, "%s: \"%s\" is not a whole number", what, z);
    if (errno == ERANGE || v < lo || v > hi)
        return sib_fail(err, SIB_EARG, "%s: %s is out of range, allowed are %lld to %lld", what, z, (long long)lo,
                        (long long)hi);
    *out = v;
    return SIB_OK;
}

sib_status cli_real(const char *z, const char *what, double lo, double hi, double *out, sib_err *err)
{
    char *end;
    double v = strtod(z, &end);
    /* Only decimal notation: strtod alone also reads hexadecimal, "inf" and leading blanks. */
    if (!z[0] || *end || strspn(z, "0123456789+-.eE") != strlen(z))
        return sib_fail(err, SIB_EARG, "%s: \"%s\" is not a number", what, z);
    if (!(v >= lo && v <= hi))
        return sib_fail(err, SIB_EARG, "%s: %s is out of range, allowed are %g to %g", what, z, lo, hi);
    *out = v;
    return SIB_OK;
}

static sib_status parse_seed(const char *z, const char *what, uint64_t *out, sib_err *err)
{
    errno = 0;
    unsigned long long v = strtoull(z, NULL, 10);
    if (!z[0] || strspn(z, "0123456789") != strlen(z))
        return sib_fail(err, SIB_EARG, "%s: \"%s\" is not a whole number", what, z);
    if (errno == ERANGE) return sib_fail(err, SIB_EARG, "%s: %s is out of range, allowed are 0 to 2^64-1", what, z);
    *out = v;
    return SIB_OK;
}

static bool is_choice(const char *choices, const char *z)
{
    size_t n = strlen(z);
    for (const char *c = choices;; c++) {
        size_t k = strcspn(c, "|");
        if (k == n && memcmp(c, z, n) == 0) return true;
        c += k;
        if (!*c) return false;
    }
}

static sib_status store(cli_args *a, const option_row *r, const char *z, sib_err *err)
{
    char what[40];
    void *at = (char *)a + r->at;
    int64_t i;
    (void)snprintf(what, sizeof what, "--%s", r->name);
    switch (r->kind) {
    case FLAG: *(bool *)at = true; break;
    case INT:
        SIB_TRY(cli_int(z, what, (int64_t)r->lo, (int64_t)r->hi, &i, err));
        *(int *)at = (int)i;
        break;
    case SEED:
        SIB_TRY(parse_seed(z, what, at, err));
        a->has_seed = true;
        break;
    case REAL: return cli_real(z, what, r->lo, r->hi, at, err);
    case CHOICE:
        if (!is_choice(r->arg, z)) return sib_fail(err, SIB_EARG, "%s: \"%s\" is not one of %s", what, z, r->arg);
        *(const char **)at = z;
        break;
    case TEXT: *(const char **)at = z; break;
    case LIST:
        if (!cli_list_add(at, z)) return sib_nomem(err, what);
        break;
    }
    return SIB_OK;
}

/* The texts of --logit-bias as arrays. */
static sib_status parse_biases(cli_args *a, sib_err *err)
{
    if (!a->biases.n) return SIB_OK;
    a->bias_ids = calloc((size_t)a->biases.n, sizeof *a->bias_ids);
    a->bias_values = calloc((size_t)a->biases.n, sizeof *a->bias_values);
    if (!a->bias_ids || !a->bias_values) return sib_nomem(err, "--logit-bias");
    for (int i = 0; i < a->biases.n; i++) {
        const char *z = a->biases.v[i], *eq = strchr(z, '=');
        char id_text[24];
        int64_t id;
        double v;
        if (!eq || (size_t)(eq - z) >= sizeof id_text)
            return sib_fail(err, SIB_EARG, "--logit-bias: \"%s\" is not of the form ID=B", z);
        (void)snprintf(id_text, sizeof id_text, "%.*s", (int)(eq - z), z);
        SIB_TRY(cli_int(id_text, "--logit-bias", 0, INT32_MAX, &id, err));
        SIB_TRY(cli_real(eq + 1, "--logit-bias", -FLT_MAX, FLT_MAX, &v, err));
        a->bias_ids[i] = (int32_t)id;
        a->bias_values[i] = (float)v;
    }
    a->request.bias_ids = a->bias_ids;
    a->request.bias_values = a->bias_values;
    a->request.n_bias = a->biases.n;
    return SIB_OK;
}

/* ---- names --------------------------------------------------------------------------------- */

static int edit_distance(const char *a, const char *b)
{
    int row[64];
    size_t n = strlen(a), m = strlen(b);
    if (n >= SIB_COUNT(row) || m >= SIB_COUNT(row)) return INT32_MAX;
    for (size_t j = 0; j <= m; j++) row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int up = row[j], best = diagonal + (a[i - 1] != b[j - 1]);
            if (up + 1 < best) best = up + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = up;
            row[j] = best;
        }
    }
    return row[m];
}

const char *cli_nearest(const char *z, const char *const *names, int n)
{
    const char *best = NULL;
    int least = (int)strlen(z) / 3 + 1; /* further away is another word */
    for (int i = 0; i < n; i++) {
        /* A name that only goes on, or stops short, is what a hurried typist means. */
        bool part = strlen(z) >= 3 && (sib_starts_with(names[i], z) || sib_starts_with(z, names[i]));
        int d = part ? 0 : edit_distance(z, names[i]);
        if (d < least) {
            least = d;
            best = names[i];
        }
    }
    return best;
}

/* ---- parsing --------------------------------------------------------------------------------- */

#define LONG_BASE 256 /* getopt values of rows; below are letters */

static int unknown_flag(const cli_command *c, const char *flag)
{
    char name[64];
    const char *names[SIB_COUNT(rows)], *others = NULL;
    int n = 0;
    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(flag + 2, "="), flag + 2);
    for (size_t i = 0; i < SIB_COUNT(rows); i++) {
        if (rows[i].commands & c->bit)
            names[n++] = rows[i].name;
        else if (strcmp(rows[i].name, name) == 0)
            for (const cli_command *k = cli_commands; k->name && !others; k++)
                if (rows[i].commands & k->bit) others = k->name;
    }
    if (others) return cli_usage("unknown flag --%s for 'sibyl %s'; 'sibyl %s' has it", name, c->name, others);
    const char *first = NULL, *second = NULL;
    for (int i = 0; i < n && !second; i++)
        if (name[0] && sib_starts_with(names[i], name)) *(first ? &second : &first) = names[i];
    if (second) return cli_usage("flag --%s of 'sibyl %s' may mean --%s or --%s", name, c->name, first, second);
    const char *near = cli_nearest(name, names, n);
    if (near) return cli_usage("unknown flag --%s for 'sibyl %s'; did you mean --%s?", name, c->name, near);
    return cli_usage("unknown flag --%s for 'sibyl %s'; 'sibyl %s --help' lists the flags", name, c->name, c->name);
}

int cli_parse(cli_args *a, const cli_command *command, int argc, char **argv)
{
    struct option longs[SIB_COUNT(rows) + 1] = {{0}};
    char letters[2 * SIB_COUNT(rows) + 2] = ":"; /* ':' tells a missing value from an unknown flag */
    size_t n = 0, n_letters = 1;
    memset(a, 0, sizeof *a);
    a->command = command;
    sib_options_init(&a->options);
    sib_request_init(&a->request);
    a->port = a->queue = a->drain = -1;
    for (size_t i = 0; i < SIB_COUNT(rows); i++) {
        const option_row *r = &rows[i];
        if (!(r->commands & command->bit)) continue;
        longs[n++] =
            (struct option){r->name, r->kind == FLAG ? no_argument : required_argument, NULL, LONG_BASE + (int)i};
        if (!r->letter) continue;
        letters[n_letters++] = r->letter;
        if (r->kind != FLAG) letters[n_letters++] = ':';
    }

    sib_err err = {0};
    opterr = 0;
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, letters, longs, NULL)) != -1;) {
        const option_row *r = NULL;
        int which = c == ':' || c == '?' ? optopt : c;
        for (size_t i = 0; i < SIB_COUNT(rows) && which && !r; i++)
            if (which == LONG_BASE + (int)i || ((rows[i].commands & command->bit) && which == rows[i].letter))
                r = &rows[i];
        if (c == '?' && r) return cli_usage("flag --%s takes no value", r->name);
        if (c == '?' && optopt)
            return cli_usage("unknown flag -%c for 'sibyl %s'; 'sibyl %s --help' lists the flags", optopt,
                             command->name, command->name);
        if (c == '?') return unknown_flag(command, argv[optind - 1]);
        if (c == ':') return cli_usage("flag --%s needs a value %s", r->name, r->arg);
        if (store(a, r, optarg, &err) != SIB_OK) return cli_usage("%s", err.message);
    }
    a->rest = argv + optind;
    a->n_rest = argc - optind;
    if (command->max_operands >= 0 && a->n_rest > command->max_operands && !a->help)
        return cli_usage("unexpected argument \"%s\" for 'sibyl %s'", a->rest[command->max_operands], command->name);
    if (parse_biases(a, &err) != SIB_OK) return cli_usage("%s", err.message);
    a->request.stop = a->stops.v;
    a->request.n_stop = a->stops.n;
    if (a->request.draft_n > DEFAULT_MAX_DRAFT) a->options.max_draft = a->request.draft_n;
    return CLI_OK;
}

void cli_args_deinit(cli_args *a)
{
    free(a->images.v);
    free(a->stops.v);
    free(a->biases.v);
    free(a->api_keys.v);
    free(a->origins.v);
    free(a->bias_ids);
    free(a->bias_values);
}

/* A row that changes only the request, so that it may change between two answers. */
static bool settable(const option_row *r)
{
    return (r->commands & CLI_CHAT) && r->at >= AT(request) && r->at < AT(request) + sizeof(sib_request);
}

sib_status cli_set(cli_args *a, const char *name, const char *value, sib_err *err)
{
    const char *names[SIB_COUNT(rows)];
    int n = 0;
    for (size_t i = 0; i < SIB_COUNT(rows); i++) {
        const option_row *r = &rows[i];
        if (!settable(r)) continue;
        names[n++] = r->name;
        if (strcmp(r->name, name) != 0) continue;
        if (r->kind != FLAG) return store(a, r, value, err);
        if (!is_choice("on|off", value)) return sib_fail(err, SIB_EARG, "%s: \"%s\" is not one of on|off", name, value);
        *(bool *)((char *)a + r->at) = strcmp(value, "on") == 0;
        return SIB_OK;
    }
    const char *near = cli_nearest(name, names, n);
    return sib_fail(err, SIB_EARG, "unknown setting \"%s\"%s%s%s", name, near ? "; did you mean \"" : "",
                    near ? near : "", near ? "\"?" : "");
}

/* ---- help ---------------------------------------------------------------------------------- */

void cli_list_settable(FILE *f)
{
    for (size_t i = 0; i < SIB_COUNT(rows); i++)
        if (settable(&rows[i]))
            (void)fprintf(f, "  %-18s %-19s %s\n", rows[i].name, rows[i].arg ? rows[i].arg : "on|off", rows[i].help);
}

void cli_print_flags(FILE *f, const cli_command *command)
{
    for (size_t i = 0; i < SIB_COUNT(rows); i++) {
        const option_row *r = &rows[i];
        char left[64], letter[8] = "    ";
        if (!(r->commands & command->bit)) continue;
        if (r->letter) (void)snprintf(letter, sizeof letter, "-%c, ", r->letter);
        (void)snprintf(left, sizeof left, "%s--%s%s%s", letter, r->name, r->arg ? " " : "", r->arg ? r->arg : "");
        (void)fprintf(f, "  %-34s %s\n", left, r->help);
    }
}

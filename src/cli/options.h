/* cli/options.h - the flags of every command, from one table.
 *
 * A row of the table says how a flag is written, what it takes, where its value goes in
 * cli_args and which commands have it. Parsing, --help, the sentences about unknown flags,
 * the `/set` of chat and (through --help) the check of the man page all read that table.
 * The flags and their meaning: "Command line" in docs/man/sibyl.1. */
#ifndef SIB_CLI_OPTIONS_H
#define SIB_CLI_OPTIONS_H

#include "sibyl/sibyl.h"

#include <stdio.h>

enum { CLI_OK = 0, CLI_FAILURE = 1, CLI_USAGE = 2, CLI_INTERRUPTED = 130 };

/* Commands as bits, so that a flag names the commands that have it. A bit whose command
 * is not in the command table of main.c belongs to nothing. */
enum {
    CLI_GENERATE = 1u << 0,
    CLI_CHAT = 1u << 1,
    CLI_INSPECT = 1u << 2,
    CLI_FIT = 1u << 3,
    CLI_TOKENIZE = 1u << 4,
    CLI_DETOKENIZE = 1u << 5,
    CLI_EVAL = 1u << 6,
    CLI_SERVE = 1u << 7,
    CLI_BENCH = 1u << 8,
    CLI_DOCTOR = 1u << 9
};

typedef struct cli_list {
    const char **v;
    int n;
} cli_list;

/* Appends z (borrowed); false without memory. */
bool cli_list_add(cli_list *l, const char *z);

/* Every value a command line can give. Pointers borrow from argv. */
typedef struct cli_args {
    const struct cli_command *command;
    sib_options options; /* as the library takes them; unset ones are the library's defaults */
    sib_request request;
    bool json, help;
    const char *log_level;
    const char *prompt, *chat, *system; /* texts; "-" reads standard input */
    cli_list images, stops, biases;
    int32_t *bias_ids; /* what request.bias_* point to */
    float *bias_values;
    bool has_seed;
    const char *trace;
    int parallel;
    const char *host, *api_key_file, *alias, *keepalive, *log_file; /* serve; unset sizes are -1 or 0: the server's defaults */
    int port, queue, queue_timeout, max_body, max_connections, drain;
    bool no_auth, any_model, half_close;
    cli_list api_keys, origins;
    bool apply_template, plain, special, only_ids; /* tokenize, detokenize */
    bool trust_content;
    const char *tasks, *pictures, *expect_ids;
    int limit;          /* 0: all */
    const char *prefill, *depth, *bench_rows, *batch; /* bench: lists "1,2,4"; "" for none */
    int decode, repeats;
    bool library_asked; /* from here on SIB_EARG speaks of a checkpoint, not of the command line */
    char **rest;        /* what stands beside the flags */
    int n_rest;
} cli_args;

typedef struct cli_command {
    const char *name;
    unsigned bit;
    int (*run)(cli_args *a); /* returns an exit status */
    const char *operands;    /* "[DIR]"; "" when it takes none */
    int max_operands;        /* -1: any number */
    const char *does;        /* one line */
    const char *more;        /* paragraphs for its --help, or NULL */
} cli_command;

/* The command table (main.c), ended by a row without a name. */
extern const cli_command cli_commands[];

/* Parses argv[1..] (argv[0] is the command's name). On a mistake prints one sentence and
 * returns CLI_USAGE. cli_args_deinit frees in either case. */
int cli_parse(cli_args *a, const cli_command *command, int argc, char **argv);
void cli_args_deinit(cli_args *a);

/* Sets one sampling flag by its name, as `--name value` would. `value` must outlive `a`.
 * Prints nothing: a mistake is SIB_EARG. */
sib_status cli_set(cli_args *a, const char *name, const char *value, sib_err *err);
/* The names that cli_set takes, with their arguments, one a line. */
void cli_list_settable(FILE *f);

/* The lines of `--help` about flags of one command. */
void cli_print_flags(FILE *f, const cli_command *command);

/* Name that is nearest to `z` in spelling among n names, NULL when none is near. */
const char *cli_nearest(const char *z, const char *const *names, int n);

/* Whole strings as numbers; SIB_EARG with a sentence that begins with `what`. */
sib_status cli_int(const char *z, const char *what, int64_t lo, int64_t hi, int64_t *out, sib_err *err);
sib_status cli_real(const char *z, const char *what, double lo, double hi, double *out, sib_err *err);

#endif

/* cli/main.c - the program `sibyl`: the command table, and what is said about it.
 *
 * A new command is one row here, its bit in options.h and its file cmd_NAME.c. */
#include "base/status.h"
#include "cli/cmd.h"
#include "cli/term.h"

#include <locale.h>
#include <string.h>

const cli_command cli_commands[] = {
    {"generate", CLI_GENERATE, cmd_generate, "", 0, "one answer, streamed",
     "The text comes from -p (as it is) or --chat (through the chat template), or, when neither is given and\n"
     "standard input is not a terminal, from there as if by --chat -. With -p, pictures stand in the text as the\n"
     "checkpoint's image placeholder, one each. Ctrl-C ends the answer; what is there is kept and the exit\n"
     "status is 130."},
    {"chat", CLI_CHAT, cmd_chat, "", 0, "a conversation",
     "Lines that begin with / are commands (/help lists them). A line that ends with \\ goes on in the next one;\n"
     "\"\"\" begins and ends a message of several lines. Ctrl-C stops the answer, Ctrl-D leaves. Without a terminal,\n"
     "each line of standard input is one message. --json prints the whole conversation at the end."},
    {"serve", CLI_SERVE, cmd_serve, "", 0, "HTTP server for OpenAI and Anthropic clients, and a web page",
     "Listens on 127.0.0.1:8080 unless told otherwise. SIGTERM and SIGINT end it when the running answers are done or\n"
     "--drain seconds have passed; a second signal ends it at once. SIGHUP opens --log-file again."},
    {"inspect", CLI_INSPECT, cmd_inspect, "[DIR]", 1, "what a checkpoint or drafter holds, without reading weights",
     NULL},
    {"fit", CLI_FIT, cmd_fit, "", 0, "bytes needed for a context, by part", NULL},
    {"bench", CLI_BENCH, cmd_bench, "", 0, "prefill, decode and verification speed beside the machine's ceilings",
     "Prints CSV (or one JSON object with --json): medians and best values of --repeats runs; the bandwidth and compute\n"
     "probes run before and after. A list may be empty: --batch \"\" measures no batch."},
    {"doctor", CLI_DOCTOR, cmd_doctor, "", 0, "whether a drafter fits the model, and whether it pays",
     "Checks the pair before a weight is read, then decodes built-in questions without and with --draft DIR and times a\n"
     "round: accepted drafts by position, cost of drafting and of verification, and the acceptance at which they break even."},
    {"tokenize", CLI_TOKENIZE, cmd_tokenize, "[TEXT]", 1, "token ids and pieces of a text",
     "Without TEXT, or when it is -, standard input is read."},
    {"detokenize", CLI_DETOKENIZE, cmd_detokenize, "[ID...]", -1, "the text of token ids",
     "Without ids, standard input is read: numbers between blanks, commas or brackets."},
    {"eval", CLI_EVAL, cmd_eval, "", 0, "questions with known answers",
     "Answers greedily (block diffusion: by its generation_config) and compares with \"answer\" byte for byte,\n"
     "special tokens kept, without the stop token. Lines of --tasks have question, answer and may have system,\n"
     "tools and prompt; a prompt that the chat template does not reproduce makes the exit status 1. Lines of\n"
     "--pictures have file, question and answer."},
    {0},
};

/* Every environment variable that the program or the library reads. */
static const struct {
    const char *name, *does;
} variables[] = {
    {"SIBYL_DEMO", "checkpoint folder to use when -m is absent"},
    {"SIB_TRACE", "write the stages of the forward pass to this safetensors file (--trace)"},
    {"SIB_TRACE_ONLY", "keep only these stages of it: hidden.3,logits"},
    {"SIB_ISA", "highest instruction set level to use: ref, avx2, avx512, avx512vnni"},
    {"HF_HUB_CACHE", "Hugging Face cache in which -m ORG/NAME is looked up"},
    {"HF_HOME", "folder whose hub/ is that cache when HF_HUB_CACHE is unset"},
    {"XDG_CACHE_HOME", "folder whose huggingface/hub/ is that cache when HF_HOME is unset too"},
    {"XDG_STATE_HOME", "folder for sibyl/history, the lines typed in chat (default ~/.local/state)"},
    {"NO_COLOR", "any value: no colours"},
};

static const cli_command *find_command(const char *name)
{
    for (const cli_command *c = cli_commands; c->name; c++)
        if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

static int unknown_command(const char *name)
{
    const char *names[32];
    int n = 0;
    for (const cli_command *c = cli_commands; c->name && n < (int)SIB_COUNT(names); c++) names[n++] = c->name;
    const char *near = cli_nearest(name, names, n);
    if (near) return cli_usage("unknown command \"%s\"; did you mean \"%s\"?", name, near);
    return cli_usage("unknown command \"%s\"; 'sibyl help' lists the commands", name);
}

static void print_help(FILE *f)
{
    (void)fprintf(f, "usage: sibyl COMMAND [FLAG]... [OPERAND]...\n\n");
    for (const cli_command *c = cli_commands; c->name; c++) (void)fprintf(f, "  %-12s %s\n", c->name, c->does);
    (void)fprintf(f, "\n"
                     "sibyl help COMMAND   flags of a command (also: sibyl COMMAND --help)\n"
                     "sibyl --help-env     environment variables\n"
                     "sibyl --version      version\n\n"
                     "Exit status: 0 success, 1 failure, 2 wrong usage, 130 interrupted.\n");
}

static void print_command_help(FILE *f, const cli_command *c)
{
    (void)fprintf(f, "usage: sibyl %s [FLAG]...%s%s\n\n%c%s.\n", c->name, c->operands[0] ? " " : "", c->operands,
                  c->does[0] - 'a' + 'A', c->does + 1);
    if (c->more) (void)fprintf(f, "%s\n", c->more);
    (void)fprintf(f, "\n");
    cli_print_flags(f, c);
}

static int help(int n, char **names)
{
    if (n > 1) return cli_usage("unexpected argument \"%s\" for 'sibyl help'", names[1]);
    if (n == 0) {
        print_help(stdout);
        return CLI_OK;
    }
    const cli_command *c = find_command(names[0]);
    if (!c) return unknown_command(names[0]);
    print_command_help(stdout, c);
    return CLI_OK;
}

static int run(const cli_command *c, int argc, char **argv)
{
    cli_args a;
    int rc = cli_parse(&a, c, argc, argv);
    if (rc == CLI_OK && a.help)
        print_command_help(stdout, c);
    else if (rc == CLI_OK)
        rc = c->run(&a);
    cli_args_deinit(&a);
    return rc;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "help") == 0) return help(argc - 2, argv + 2);
    bool is_help = strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0;
    bool is_version = strcmp(name, "--version") == 0, is_env = strcmp(name, "--help-env") == 0;
    if ((is_help || is_version || is_env) && argc > 2)
        return cli_usage("unexpected argument \"%s\" after %s", argv[2], name);
    if (is_help) return help(0, NULL);
    if (is_version) {
        (void)printf("sibyl %s\n", sib_version());
        return CLI_OK;
    }
    if (is_env) {
        for (size_t i = 0; i < SIB_COUNT(variables); i++)
            (void)printf("%-16s %s\n", variables[i].name, variables[i].does);
        return CLI_OK;
    }
    if (name[0] == '-') return cli_usage("unknown flag %s; 'sibyl help' lists the commands", name);
    const cli_command *c = find_command(name);
    return c ? run(c, argc - 1, argv + 1) : unknown_command(name);
}

int main(int argc, char **argv)
{
    (void)setlocale(LC_CTYPE, ""); /* line editing measures characters; numbers stay in the C locale */
    int rc = dispatch(argc, argv);
    if (!cli_flush(stdout)) {
        (void)cli_usage("standard output cannot be written");
        return rc == CLI_OK ? CLI_FAILURE : rc;
    }
    return rc;
}

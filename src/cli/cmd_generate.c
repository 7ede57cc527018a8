/* cli/cmd_generate.c - `sibyl generate`: one answer, streamed to stdout as it comes. */
#include "cli/answer.h"
#include "cli/cmd.h"
#include "cli/json_out.h"
#include "cli/term.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Everything one run owns; zero is empty. */
typedef struct generation {
    sib_buf text, system;
    cli_pictures pictures;
    sib_engine *engine;
    sib_session *session;
    int32_t *ids;
    size_t n_ids;
    cli_answer answer;
} generation;

static void generation_deinit(generation *g)
{
    cli_answer_deinit(&g->answer);
    sib_session_free(g->session);
    sib_free(g->ids);
    sib_close(g->engine);
    cli_pictures_deinit(&g->pictures);
    sib_buf_deinit(&g->text);
    sib_buf_deinit(&g->system);
}

static void show(void *ctx, const char *text, size_t n)
{
    (void)ctx;
    cli_put_text(stdout, text, n);
    (void)fflush(stdout);
}

/* Reads and checks all that needs no model, so that a mistake costs no loading time. */
static sib_status read_input(generation *g, cli_args *a, sib_err *err)
{
    SIB_TRY(cli_random_seed(a, err));
    if (a->system) SIB_TRY(cli_read_text(a->system, "the text of --system", &g->system, err));
    if (a->prompt)
        SIB_TRY(cli_read_text(a->prompt, "the text of --prompt", &g->text, err));
    else
        SIB_TRY(cli_read_text(a->chat, "the text of --chat", &g->text, err));
    for (int i = 0; i < a->images.n; i++) SIB_TRY(cli_picture_add(&g->pictures, a->images.v[i], err));
    return SIB_OK;
}

static sib_status make_prompt(generation *g, const cli_args *a, sib_err *err)
{
    if (a->prompt) {
        unsigned flags = SIB_TOKENIZE_SPECIAL | SIB_TOKENIZE_BOS;
        return sib_tokenize(g->engine, g->text.p ? g->text.p : "", g->text.n, flags, &g->ids, &g->n_ids, err);
    }
    json_t *messages = json_array();
    int failed = !messages;
    if (a->system) failed |= json_array_append_new(messages, cli_message("system", sib_buf_view(&g->system), NULL, 0));
    failed |= json_array_append_new(messages, cli_message("user", sib_buf_view(&g->text), a->images.v, a->images.n));
    sib_status s = failed ? sib_nomem(err, "messages")
                          : cli_render(g->engine, messages, NULL, NULL, NULL, cli_chat_flags(a), &g->ids, &g->n_ids, err);
    json_decref(messages);
    return s;
}

static sib_status print_json(const generation *g, const cli_args *a, sib_err *err)
{
    const sib_stats *s = &g->answer.stats;
    sib_engine_info info = {.struct_bytes = sizeof info};
    SIB_TRY(sib_engine_info_get(g->engine, &info));
    json_t *o = json_pack("{s:o,s:o,s:i,s:i,s:s,s:I,s:{s:o,s:o,s:o,s:o,s:o}}", "text",
                          cli_json_text(g->answer.text.p, g->answer.text.n), "tokens",
                          cli_json_ids(g->answer.ids.v, g->answer.ids.n), "prompt_tokens", s->prompt_tokens,
                          "cached_tokens", s->cached_tokens, "finish_reason", cli_finish_name(g->answer.finish), "seed",
                          (json_int_t)a->request.seed, "timings", "load_ms", cli_json_real(info.load_ms), "prefill_ms",
                          cli_json_real(s->prefill_ms), "decode_ms", cli_json_real(s->decode_ms), "prefill_tps",
                          cli_json_real(cli_per_second(s->prompt_tokens - s->cached_tokens, s->prefill_ms)),
                          "decode_tps", cli_json_real(cli_decode_rate(s)));
    bool ok = o != NULL;
    if (info.drafter) ok = ok && cli_json_set(o, "speculation", cli_json_speculation(s, info.drafter));
    if (info.diffusion) ok = ok && cli_json_set(o, "diffusion", cli_json_diffusion(s));
    if (!ok) {
        json_decref(o);
        return sib_nomem(err, "JSON output");
    }
    return cli_json_print(o, err);
}

static sib_status print_end(const generation *g, sib_err *err)
{
    const cli_answer *r = &g->answer;
    if (r->text.n == 0 || r->text.p[r->text.n - 1] != '\n') (void)putchar('\n');
    if (!cli_flush(stdout)) return sib_fail(err, SIB_EIO, "standard output cannot be written");
    if (!cli_is_terminal(stderr)) return SIB_OK;
    sib_buf line = {0};
    cli_describe(&r->stats, &line);
    if (!line.failed)
        (void)fprintf(stderr, "%s[%s]%s\n", cli_style_on(stderr, CLI_DIM), line.p, cli_style_on(stderr, CLI_PLAIN));
    sib_buf_deinit(&line);
    return SIB_OK;
}

static sib_status generate(generation *g, cli_args *a, sib_err *err)
{
    SIB_TRY(read_input(g, a, err));
    SIB_TRY(cli_open(&g->engine, a, err));
    SIB_TRY(make_prompt(g, a, err));
    SIB_TRY(sib_session_new(&g->session, g->engine, err));
    SIB_TRY(cli_answer_run(&g->answer, g->session, g->ids, g->n_ids, &g->pictures, &a->request, a->json ? NULL : show,
                           NULL, err));
    return a->json ? print_json(g, a, err) : print_end(g, err);
}

int cmd_generate(cli_args *a)
{
    generation g = {0};
    sib_err err = {0};
    if (a->prompt && a->chat) return cli_usage("--prompt and --chat exclude each other");
    if (a->prompt && a->system) return cli_usage("--system needs --chat: --prompt is taken as it is");
    if (!a->prompt && !a->chat && isatty(STDIN_FILENO))
        return cli_usage("nothing to answer: give --chat TEXT or -p RAW");
    if (a->trace && setenv("SIB_TRACE", a->trace, 1) != 0) return CLI_FAILURE;

    cli_catch_interrupts(true);
    sib_status s = generate(&g, a, &err);
    bool cut = s == SIB_OK && g.answer.finish == SIB_FINISH_CANCELLED;
    generation_deinit(&g);
    return cut ? CLI_INTERRUPTED : cli_exit(s, &err, !a->library_asked);
}

/* cli/cmd_chat.c - `sibyl chat`: a conversation.
 *
 * The conversation is a list of messages, the one thing that /save writes and /load reads.
 * Each turn renders all of it; the session computes only what it has not seen. */
#include "cli/answer.h"
#include "cli/canvas_view.h"
#include "cli/cmd.h"
#include "cli/json_out.h"
#include "cli/line.h"
#include "cli/term.h"

#include "base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_CONVERSATION_BYTES ((size_t)64 << 20)

typedef struct chat {
    cli_args *args;
    sib_engine *engine;
    sib_session *session;
    sib_engine_info info;
    json_t *messages;
    cli_pictures files; /* every picture read so far, found by path */
    cli_list pending;   /* pictures of the next message, owned */
    cli_list kept;      /* values given to /set, owned */
    sib_stats last;
    int turns, prompt_tokens, reused_tokens, generated_tokens;
    bool failed; /* some turn or command did */
    bool quit;
} chat;

static void list_clear(cli_list *l)
{
    for (int i = 0; i < l->n; i++) free((char *)(uintptr_t)l->v[i]);
    free(l->v);
    *l = (cli_list){0};
}

static sib_status list_keep(cli_list *l, const char *z, sib_err *err)
{
    char *copy = sib_strdup(z);
    if (copy && cli_list_add(l, copy)) return SIB_OK;
    free(copy);
    return sib_nomem(err, "list");
}

static bool has_role(const json_t *message, const char *role)
{
    const char *r = json_string_value(json_object_get(message, "role"));
    return r && strcmp(r, role) == 0;
}

static json_t *last_message(const chat *c)
{
    return json_array_size(c->messages) ? json_array_get(c->messages, json_array_size(c->messages) - 1) : NULL;
}

static void drop_last(chat *c)
{
    (void)json_array_remove(c->messages, json_array_size(c->messages) - 1);
}

/* ---- pictures ------------------------------------------------------------------------------------- */

static int find_picture(const chat *c, const char *path)
{
    for (int i = 0; i < c->files.n; i++)
        if (strcmp(c->files.names[i], path) == 0) return i;
    return -1;
}

static sib_status need_picture(chat *c, const char *path, sib_err *err)
{
    return find_picture(c, path) >= 0 ? SIB_OK : cli_picture_add(&c->files, path, err);
}

/* The pictures of all messages in order: views into c->files (free only ->v). */
static sib_status pictures_of(const chat *c, cli_pictures *out, sib_err *err)
{
    size_t i, j;
    json_t *message, *part;
    json_array_foreach(c->messages, i, message)
    {
        json_array_foreach(json_object_get(message, "content"), j, part)
        {
            const char *path = json_string_value(json_object_get(part, "path"));
            if (!path) continue;
            sib_picture *v = realloc(out->v, ((size_t)out->n + 1) * sizeof *v);
            if (!v) return sib_nomem(err, "pictures");
            out->v = v;
            out->v[out->n++] = c->files.v[find_picture(c, path)];
        }
    }
    return SIB_OK;
}

/* ---- a turn ----------------------------------------------------------------------------------------- */

static void show(void *ctx, const char *text, size_t n)
{
    if (cli_is_terminal(stdout)) {
        cli_canvas_view_text(ctx, text, n);
        return;
    }
    cli_put_text(stdout, text, n);
    (void)fflush(stdout);
}

static void show_frame(void *ctx, const char *text, size_t n, int step, int steps)
{
    cli_canvas_view_draw(ctx, text, n, step, steps);
}

static sib_status answer(chat *c, cli_answer *r, sib_err *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    cli_pictures pictures = {0};
    cli_canvas_view view = {0};
    if (!c->args->json && cli_is_terminal(stdout)) r->frame = show_frame;
    sib_status s = pictures_of(c, &pictures, err);
    if (s == SIB_OK) s = cli_render(c->engine, c->messages, NULL, NULL, NULL, cli_chat_flags(c->args), &ids, &n, err);
    if (s == SIB_OK)
        s = cli_answer_run(r, c->session, ids, n, &pictures, &c->args->request, c->args->json ? NULL : show, &view, err);
    cli_canvas_view_clear(&view);
    free(pictures.v);
    sib_free(ids);
    return s;
}

/* A message that got no answer leaves the conversation as it was. */
static sib_status turn(chat *c, sib_str text, sib_err *err)
{
    cli_answer r = {0};
    json_t *message = cli_message("user", text, c->pending.v, c->pending.n);
    if (json_array_append_new(c->messages, message) != 0) return sib_nomem(err, "conversation");
    sib_status s = answer(c, &r, err);
    if (!c->args->json && r.text.n && r.text.p[r.text.n - 1] != '\n') (void)putchar('\n');
    if (!c->args->json && s == SIB_OK && !r.text.n) (void)putchar('\n');
    (void)fflush(stdout);
    if (s == SIB_OK && r.text.n) {
        json_t *reply = json_pack("{s:s,s:o}", "role", "assistant", "content", cli_json_text(r.text.p, r.text.n));
        if (json_array_append_new(c->messages, reply) != 0) s = sib_nomem(err, "conversation");
    }
    if (s == SIB_OK) {
        c->last = r.stats;
        c->turns++;
        c->prompt_tokens += r.stats.prompt_tokens;
        c->reused_tokens += r.stats.cached_tokens;
        c->generated_tokens += r.stats.generated_tokens;
    }
    if (s != SIB_OK || !r.text.n)
        drop_last(c);
    else
        list_clear(&c->pending);
    cli_answer_deinit(&r);
    return s;
}

/* ---- commands ---------------------------------------------------------------------------------------- */

static sib_status do_image(chat *c, const char *file, sib_err *err)
{
    char path[PATH_MAX];
    const char *home = getenv("HOME");
    if (!*file) return sib_fail(err, SIB_EARG, "/image: name a file");
    if (sib_starts_with(file, "~/") && home)
        (void)snprintf(path, sizeof path, "%s%s", home, file + 1);
    else
        (void)snprintf(path, sizeof path, "%s", file);
    SIB_TRY(need_picture(c, path, err));
    SIB_TRY(list_keep(&c->pending, path, err));
    if (!c->args->json && cli_is_terminal(stdout))
        (void)printf("%d picture%s with the next message\n", c->pending.n, c->pending.n == 1 ? "" : "s");
    return SIB_OK;
}

static sib_status do_system(chat *c, const char *text, sib_err *err)
{
    if (has_role(json_array_get(c->messages, 0), "system")) (void)json_array_remove(c->messages, 0);
    if (!*text) return SIB_OK;
    json_t *message = cli_message("system", sib_str_of(text), NULL, 0);
    return json_array_insert_new(c->messages, 0, message) == 0 ? SIB_OK : sib_nomem(err, "conversation");
}

static sib_status do_reset(chat *c, const char *rest, sib_err *err)
{
    (void)rest;
    (void)err;
    bool system = has_role(json_array_get(c->messages, 0), "system");
    while (json_array_size(c->messages) > (system ? 1u : 0u)) drop_last(c);
    list_clear(&c->pending);
    return SIB_OK;
}

static sib_status do_undo(chat *c, const char *rest, sib_err *err)
{
    (void)rest;
    if (!has_role(last_message(c), "assistant")) return sib_fail(err, SIB_EARG, "/undo: nothing to take back");
    do drop_last(c);
    while (last_message(c) && !has_role(last_message(c), "user"));
    if (last_message(c)) drop_last(c);
    return SIB_OK;
}

static sib_status do_save(chat *c, const char *file, sib_err *err)
{
    if (!*file) return sib_fail(err, SIB_EARG, "/save: name a file");
    json_t *o = json_pack("{s:O}", "messages", c->messages);
    char *text = o ? json_dumps(o, JSON_INDENT(2)) : NULL;
    json_decref(o);
    if (!text) return sib_nomem(err, "conversation");
    int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool ok = f && fputs(text, f) >= 0 && fputc('\n', f) != EOF;
    int why = errno;
    if (f) {
        if (fclose(f) != 0) {
            ok = false;
            why = errno;
        }
    } else if (fd >= 0) {
        (void)close(fd);
    }
    free(text);
    return ok ? SIB_OK : sib_fail(err, SIB_EIO, "%s: %s", file, strerror(why));
}

/* A conversation from a file: roles and contents as this program writes them. */
static sib_status check_messages(chat *c, const json_t *messages, const char *file, sib_err *err)
{
    size_t i, j;
    json_t *message, *part;
    if (!json_is_array(messages)) return sib_fail(err, SIB_EFORMAT, "%s: key \"messages\" must be a list", file);
    json_array_foreach(messages, i, message)
    {
        json_t *content = json_object_get(message, "content");
        if (!json_is_string(json_object_get(message, "role")) || !(json_is_string(content) || json_is_array(content)))
            return sib_fail(err, SIB_EFORMAT, "%s: message %zu needs a role and a content", file, i + 1);
        json_array_foreach(content, j, part)
        {
            const char *type = NULL, *path = NULL;
            SIB_TRY(sib_json_str(part, file, "type", &type, err));
            SIB_TRY(sib_json_str(part, file, "path", &path, err));
            bool image = type && strcmp(type, "image") == 0;
            if (image != (path != NULL))
                return sib_fail(err, SIB_EFORMAT,
                                "%s: message %zu has a part that is neither text nor a picture with a path", file,
                                i + 1);
            if (path) SIB_TRY(need_picture(c, path, err));
        }
    }
    return SIB_OK;
}

static sib_status do_load(chat *c, const char *file, sib_err *err)
{
    json_t *o = NULL;
    if (!*file) return sib_fail(err, SIB_EARG, "/load: name a file");
    SIB_TRY(sib_json_read(&o, file, MAX_CONVERSATION_BYTES, err));
    json_t *messages = json_object_get(o, "messages");
    sib_status s = check_messages(c, messages, file, err);
    if (s == SIB_OK) {
        json_decref(c->messages);
        c->messages = json_incref(messages);
        list_clear(&c->pending);
    }
    json_decref(o);
    return s;
}

static sib_status do_stats(chat *c, const char *rest, sib_err *err)
{
    (void)rest;
    sib_buf line = {0};
    if (c->turns) cli_describe(&c->last, &line);
    if (line.failed) return sib_nomem(err, "/stats");
    FILE *f = c->args->json ? stderr : stdout;
    if (c->turns) (void)fprintf(f, "last turn: %s\n", line.p);
    (void)fprintf(f, "all %d turns: %d prompt tokens, %d of them reused, %d tokens answered\n", c->turns,
                  c->prompt_tokens, c->reused_tokens, c->generated_tokens);
    (void)fprintf(f, "%s, %s, %s, %d threads, context of %d\n", c->info.family, c->info.numerics, c->info.device,
                  c->info.threads, c->info.n_ctx);
    sib_buf_deinit(&line);
    return SIB_OK;
}

static sib_status do_set(chat *c, const char *rest, sib_err *err)
{
    char name[64];
    size_t n = strcspn(rest, " \t");
    const char *value = rest + n + strspn(rest + n, " \t");
    if (!*rest) {
        cli_list_settable(c->args->json ? stderr : stdout);
        return SIB_OK;
    }
    (void)snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), rest);
    if (!*value) return sib_fail(err, SIB_EARG, "/set %s: give a value", name);
    SIB_TRY(list_keep(&c->kept, value, err)); /* the request goes on pointing to it */
    return cli_set(c->args, name, c->kept.v[c->kept.n - 1], err);
}

static sib_status do_quit(chat *c, const char *rest, sib_err *err)
{
    (void)rest;
    (void)err;
    c->quit = true;
    return SIB_OK;
}

static sib_status do_help(chat *c, const char *rest, sib_err *err);

static const struct {
    const char *name, *operand, *does;
    sib_status (*run)(chat *c, const char *rest, sib_err *err);
} commands[] = {
    {"/help", "", "this list", do_help},
    {"/image", "FILE", "show a picture with the next message", do_image},
    {"/system", "TEXT", "set the system message; without TEXT, remove it", do_system},
    {"/reset", "", "forget the conversation, keep the system message", do_reset},
    {"/undo", "", "take back the last message and its answer", do_undo},
    {"/save", "FILE", "write the conversation as JSON", do_save},
    {"/load", "FILE", "go on with a saved conversation", do_load},
    {"/stats", "", "speed and reuse", do_stats},
    {"/set", "KEY VALUE", "change a sampling flag; without KEY, list them", do_set},
    {"/quit", "", "leave", do_quit},
};

static sib_status do_help(chat *c, const char *rest, sib_err *err)
{
    (void)rest;
    (void)err;
    FILE *f = c->args->json ? stderr : stdout;
    for (size_t i = 0; i < SIB_COUNT(commands); i++)
        (void)fprintf(f, "  %-8s %-10s %s\n", commands[i].name, commands[i].operand, commands[i].does);
    return SIB_OK;
}

static sib_status command(chat *c, const char *line, sib_err *err)
{
    const char *names[SIB_COUNT(commands)];
    size_t n = strcspn(line, " \t\n");
    const char *rest = line + n + strspn(line + n, " \t");
    char name[32];
    (void)snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), line);
    for (size_t i = 0; i < SIB_COUNT(commands); i++) {
        names[i] = commands[i].name;
        if (strcmp(names[i], name) != 0) continue;
        if (!commands[i].operand[0] && *rest) return sib_fail(err, SIB_EARG, "%s takes nothing after it", name);
        return commands[i].run(c, rest, err);
    }
    const char *near = cli_nearest(name, names, (int)SIB_COUNT(commands));
    return sib_fail(err, SIB_EARG, "unknown command \"%s\"; %s%s", name,
                    near ? "did you mean " : "/help lists the commands", near ? near : "");
}

/* ---- the loop ----------------------------------------------------------------------------------------- */

/* One message or command. Mistakes are said and the conversation goes on. */
static void step(chat *c, const sib_buf *line)
{
    sib_err err = {0};
    sib_str text = sib_buf_view(line);
    sib_status s;
    if (text.n == 0) return;
    if (!sib_utf8_valid(text) || memchr(text.p, 0, text.n))
        s = sib_fail(&err, SIB_EARG, "the message is not valid UTF-8 text");
    else
        s = text.p[0] == '/' ? command(c, text.p, &err) : turn(c, text, &err);
    if (s == SIB_OK) return;
    (void)cli_exit(s, &err, false);
    c->failed = true;
}

static sib_status converse(chat *c, sib_err *err)
{
    cli_line *in = cli_line_open();
    sib_buf line = {0};
    sib_status s = in ? SIB_OK : sib_nomem(err, "line editing");
    while (s == SIB_OK && !c->quit) {
        cli_line_end end = cli_line_read(in, &line);
        if (end == CLI_LINE_FAILED) s = sib_fail(err, SIB_ENOMEM, "the message is too long");
        if (end == CLI_LINE_EOF) break;
        if (end == CLI_LINE_OK) step(c, &line);
        if (end == CLI_LINE_INTERRUPTED || (end == CLI_LINE_OK && cli_interrupted)) (void)putchar('\n');
        if (!cli_flush(stdout)) s = sib_fail(err, SIB_EIO, "standard output cannot be written");
        cli_interrupted = 0;
    }
    if (s == SIB_OK && !c->quit && cli_is_terminal(stdout) && isatty(STDIN_FILENO)) (void)putchar('\n');
    sib_buf_deinit(&line);
    cli_line_close(in);
    return s;
}

static sib_status begin(chat *c, sib_err *err)
{
    cli_args *a = c->args;
    sib_buf system = {0};
    c->messages = json_array();
    if (!c->messages) return sib_nomem(err, "conversation");
    SIB_TRY(cli_random_seed(a, err));
    for (int i = 0; i < a->images.n; i++) SIB_TRY(do_image(c, a->images.v[i], err));
    sib_status s = a->system ? cli_read_text(a->system, "the text of --system", &system, err) : SIB_OK;
    if (s == SIB_OK && system.n) s = do_system(c, system.p, err);
    sib_buf_deinit(&system);
    if (s != SIB_OK) return s;
    SIB_TRY(cli_open(&c->engine, a, err));
    c->info.struct_bytes = sizeof c->info;
    SIB_TRY(sib_engine_info_get(c->engine, &c->info));
    return sib_session_new(&c->session, c->engine, err);
}

int cmd_chat(cli_args *a)
{
    chat c = {.args = a};
    sib_err err = {0};
    if (a->system && strcmp(a->system, "-") == 0) return cli_usage("--system: standard input is the conversation");
    cli_catch_interrupts(false);
    sib_status s = begin(&c, &err);
    if (s == SIB_OK && !a->json && cli_is_terminal(stdout) && isatty(STDIN_FILENO))
        (void)printf("%s%s, %s on %s. /help lists the commands, Ctrl-D leaves.%s\n", cli_style_on(stdout, CLI_DIM),
                     c.info.family, c.info.numerics, c.info.device, cli_style_on(stdout, CLI_PLAIN));
    if (s == SIB_OK) s = converse(&c, &err);
    if (s == SIB_OK && a->json)
        s = cli_json_print(json_pack("{s:O,s:i}", "messages", c.messages, "turns", c.turns), &err);
    int rc = cli_exit(s, &err, !a->library_asked);
    sib_session_free(c.session);
    sib_close(c.engine);
    cli_pictures_deinit(&c.files);
    json_decref(c.messages);
    list_clear(&c.pending);
    list_clear(&c.kept);
    /* In a script a failed turn must show; a person has seen it. */
    return rc == CLI_OK && c.failed && !isatty(STDIN_FILENO) ? CLI_FAILURE : rc;
}

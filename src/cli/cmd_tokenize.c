/* cli/cmd_tokenize.c - `sibyl tokenize`: ids and pieces of a text, one a line. */
#include "cli/answer.h"
#include "cli/cmd.h"
#include "cli/json_out.h"
#include "cli/term.h"

#include <string.h>

static sib_status ids_of(const cli_args *a, const sib_engine *e, const sib_buf *text, const sib_buf *system,
                         int32_t **ids, size_t *n, sib_err *err)
{
    if (!a->apply_template) {
        unsigned flags = (a->special ? SIB_TOKENIZE_SPECIAL : 0u) | (a->plain ? SIB_TOKENIZE_PLAIN : 0u);
        return sib_tokenize(e, sib_buf_view(text).p, text->n, flags, ids, n, err);
    }
    json_t *messages = json_array();
    int failed = !messages;
    if (a->system) failed |= json_array_append_new(messages, cli_message("system", sib_buf_view(system), NULL, 0));
    failed |= json_array_append_new(messages, cli_message("user", sib_buf_view(text), NULL, 0));
    sib_status s = failed ? sib_nomem(err, "messages") : cli_render(e, messages, NULL, NULL, NULL, cli_chat_flags(a), ids, n, err);
    json_decref(messages);
    return s;
}

/* One token as text: quoted, with bytes that are no character as \xNN. */
static void print_piece(int32_t id, const char *p, size_t n)
{
    sib_buf quoted = {0};
    sib_str piece = {p, n};
    json_t *valid = json_stringn(p, n);
    if (valid) {
        sib_json_put_str(&quoted, piece);
    } else {
        sib_buf_addc(&quoted, '"');
        for (size_t i = 0; i < n; i++) sib_buf_addf(&quoted, "\\x%02X", (unsigned char)p[i]);
        sib_buf_addc(&quoted, '"');
    }
    (void)printf("%d\t", id);
    cli_put_text(stdout, quoted.p, quoted.n);
    (void)putchar('\n');
    json_decref(valid);
    sib_buf_deinit(&quoted);
}

static sib_status print(const cli_args *a, const sib_engine *e, const int32_t *ids, size_t n, sib_err *err)
{
    json_t *pieces = a->json ? json_array() : NULL;
    for (size_t i = 0; i < n; i++) {
        char *p = NULL;
        size_t bytes = 0;
        if (a->only_ids && !a->json) {
            (void)printf("%s%d", i ? " " : "", ids[i]);
            continue;
        }
        sib_status s = sib_detokenize(e, &ids[i], 1, SIB_DETOKENIZE_SPECIAL, &p, &bytes, err);
        if (s == SIB_OK && a->json && json_array_append_new(pieces, cli_json_text(p, bytes)) != 0)
            s = sib_nomem(err, "pieces");
        if (s == SIB_OK && !a->json) print_piece(ids[i], p, bytes);
        sib_free(p);
        if (s != SIB_OK) {
            json_decref(pieces);
            return s;
        }
    }
    if (a->json) return cli_json_print(json_pack("{s:o,s:o}", "ids", cli_json_ids(ids, n), "pieces", pieces), err);
    if (a->only_ids) (void)putchar('\n');
    return SIB_OK;
}

int cmd_tokenize(cli_args *a)
{
    sib_engine *e = NULL;
    sib_buf text = {0}, system = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    sib_err err = {0};
    if (a->system && !a->apply_template) return cli_usage("--system needs --chat");
    if (a->apply_template && (a->plain || a->special))
        return cli_usage("--chat excludes --plain and --special: the template prints what it needs");

    a->options.text_only = true;
    sib_status s = cli_read_text(a->n_rest ? a->rest[0] : NULL, "the text", &text, &err);
    if (s == SIB_OK && a->system) s = cli_read_text(a->system, "the text of --system", &system, &err);
    if (s == SIB_OK) s = cli_open(&e, a, &err);
    if (s == SIB_OK) s = ids_of(a, e, &text, &system, &ids, &n, &err);
    if (s == SIB_OK) s = print(a, e, ids, n, &err);
    sib_free(ids);
    sib_close(e);
    sib_buf_deinit(&text);
    sib_buf_deinit(&system);
    return cli_exit(s, &err, !a->library_asked);
}

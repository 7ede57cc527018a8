/* cli/cmd_detokenize.c - `sibyl detokenize`: the text of token ids. */
#include "cli/answer.h"
#include "cli/cmd.h"
#include "cli/json_out.h"
#include "cli/term.h"

#include <string.h>

/* Numbers between blanks, commas or brackets, so that the ids of --json can be pasted. */
static sib_status read_ids(const char *text, sib_ids *ids, sib_err *err)
{
    static const char between[] = " \t\r\n,[]";
    for (const char *p = text + strspn(text, between); *p; p += strspn(p, between)) {
        char word[24];
        int64_t id;
        size_t n = strcspn(p, between);
        (void)snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), p);
        SIB_TRY(cli_int(word, "token id", 0, INT32_MAX, &id, err));
        sib_ids_add(ids, (int32_t)id);
        p += n;
    }
    return ids->failed ? sib_nomem(err, "token ids") : SIB_OK;
}

/* The library prints nothing for an id without a token; a person mistyped it. */
static sib_status check_range(const sib_engine *e, const sib_ids *ids, sib_err *err)
{
    sib_engine_info info = {.struct_bytes = sizeof info};
    SIB_TRY(sib_engine_info_get(e, &info));
    for (size_t i = 0; i < ids->n; i++)
        if (ids->v[i] >= info.n_vocab)
            return sib_fail(err, SIB_EARG, "token id %d is outside the vocabulary of %d", ids->v[i], info.n_vocab);
    return SIB_OK;
}

static sib_status print(const cli_args *a, const char *text, size_t n, sib_err *err)
{
    if (a->json) return cli_json_print(json_pack("{s:o}", "text", cli_json_text(text, n)), err);
    cli_put_text(stdout, text, n);
    if (n == 0 || text[n - 1] != '\n') (void)putchar('\n');
    return SIB_OK;
}

int cmd_detokenize(cli_args *a)
{
    sib_engine *e = NULL;
    sib_buf in = {0};
    sib_ids ids = {0};
    char *text = NULL;
    size_t n = 0;
    sib_err err = {0};
    sib_status s = SIB_OK;
    a->options.text_only = true;
    if (!a->n_rest) s = cli_read_text("-", "ids", &in, &err);
    if (s == SIB_OK && in.p && read_ids(in.p, &ids, &err) != SIB_OK)
        s = sib_within(&err, SIB_EFORMAT, "standard input");
    for (int i = 0; i < a->n_rest && s == SIB_OK; i++) s = read_ids(a->rest[i], &ids, &err);
    if (s == SIB_OK) s = cli_open(&e, a, &err);
    if (s == SIB_OK) s = check_range(e, &ids, &err);
    if (s == SIB_OK) s = sib_detokenize(e, ids.v, ids.n, a->special ? SIB_DETOKENIZE_SPECIAL : 0, &text, &n, &err);
    if (s == SIB_OK) s = print(a, text, n, &err);
    sib_free(text);
    sib_close(e);
    sib_ids_deinit(&ids);
    sib_buf_deinit(&in);
    return cli_exit(s, &err, !a->library_asked);
}

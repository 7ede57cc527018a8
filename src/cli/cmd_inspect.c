/* cli/cmd_inspect.c - `sibyl inspect`: what a checkpoint or drafter holds. The facts come
 * from engine/report.h, which reads headers and configuration but no weights. */
#include "cli/answer.h"
#include "cli/cmd.h"
#include "cli/report.h"
#include "cli/term.h"
#include "engine/report.h"

int cmd_inspect(cli_args *a)
{
    sib_buf facts = {0};
    sib_err err = {0};
    json_t *o = NULL;
    if (a->n_rest) a->options.model = a->rest[0];
    sib_status s = cli_use_model(a, &err);
    a->library_asked = s == SIB_OK;
    if (s == SIB_OK) s = sib_inspect_json(&facts, a->options.model, &err);
    if (s == SIB_OK) s = sib_json_parse(&o, sib_buf_view(&facts), "report", &err);
    if (s == SIB_OK && a->json) (void)puts(facts.p);
    /* A checkpoint that would not load has a report too; its reason is the command's failure. */
    json_t *why = json_incref(json_object_get(o, "error"));
    if (!a->json && json_is_object(o)) {
        (void)json_object_del(o, "error");
        cli_report_print(stdout, o);
    }
    if (json_is_string(why)) s = sib_fail(&err, SIB_EFORMAT, "%s", json_string_value(why));
    json_decref(why);
    json_decref(o);
    sib_buf_deinit(&facts);
    return cli_exit(s, &err, !a->library_asked);
}

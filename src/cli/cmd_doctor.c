/* cli/cmd_doctor.c - `sibyl doctor --draft DIR`: does the drafter fit, and does it pay (engine/doctor.h). */
#include "cli/answer.h"
#include "cli/cmd.h"
#include "cli/report.h"
#include "cli/term.h"
#include "engine/doctor.h"

#define TOKENS 64

int cmd_doctor(cli_args *a)
{
    sib_buf facts = {0};
    sib_err err = {0};
    json_t *o = NULL;
    sib_status s = cli_use_model(a, &err);
    a->library_asked = s == SIB_OK;
    if (s == SIB_OK)
        s = sib_doctor_json(&facts, &a->options, a->request.draft_n,
                            a->request.max_tokens > 0 ? a->request.max_tokens : TOKENS, &err);
    if (s == SIB_OK) s = sib_json_parse(&o, sib_buf_view(&facts), "report", &err);
    if (s == SIB_OK && a->json) (void)puts(facts.p);
    if (s == SIB_OK && !a->json) cli_report_print(stdout, o);
    json_decref(o);
    sib_buf_deinit(&facts);
    return cli_exit(s, &err, !a->library_asked);
}

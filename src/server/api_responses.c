#include "server/server_internal.h"
const sib_format sib_format_responses = {.problem = sib_problem_openai, .id_prefix = "resp_", .call_prefix = "call_"};
sib_status sib_prepare_responses(sib_task *t) { return sib_refuse(t, NULL, "soon"); }
void sib_stored_free_all(sib_server *s) { (void)s; }
int sib_stored_reply(sib_server *s, sib_str id, bool drop, sib_buf *out) { (void)s; (void)id; (void)drop; (void)out; return 404; }

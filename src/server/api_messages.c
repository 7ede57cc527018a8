#include "server/server_internal.h"
const sib_format sib_format_messages = {.problem = sib_problem_openai, .id_prefix = "msg_", .call_prefix = "toolu_"};
sib_status sib_prepare_messages(sib_task *t) { return sib_refuse(t, NULL, "soon"); }
sib_status sib_prepare_count(sib_task *t) { return sib_refuse(t, NULL, "soon"); }

/* cli/cmd.h - the commands, one file each (cmd_NAME.c). Each returns an exit status. */
#ifndef SIB_CLI_CMD_H
#define SIB_CLI_CMD_H

#include "cli/options.h"

int cmd_generate(cli_args *a);
int cmd_chat(cli_args *a);
int cmd_inspect(cli_args *a);
int cmd_fit(cli_args *a);
int cmd_bench(cli_args *a);
int cmd_doctor(cli_args *a);
int cmd_serve(cli_args *a);
int cmd_tokenize(cli_args *a);
int cmd_detokenize(cli_args *a);
int cmd_eval(cli_args *a);

#endif

/* cli/report.h - a JSON object of facts as text for people: aligned names and values,
 * sections, tables. It knows how to name some keys and how to write sizes; a key that it
 * has never seen is shown by its own name, so nothing in the object is left out. */
#ifndef SIB_CLI_REPORT_H
#define SIB_CLI_REPORT_H

#include <jansson.h>
#include <stdio.h>

void cli_report_print(FILE *f, json_t *facts);

#endif

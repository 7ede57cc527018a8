/* engine/trace_file.h - the stages of a run, written to a safetensors file under the keys of golden files.
 *
 * SIB_TRACE=FILE turns it on when an engine is opened; SIB_TRACE_ONLY=hidden.3,logits keeps only those
 * stages (a name without an index keeps all its indices). Keys: prefill.STAGE while the prompt is computed, greedy.STAGE
 * after it; rows of several calls follow each other. `tdiff` compares two such files, or one with expected.safetensors. */
#ifndef SIB_ENGINE_TRACE_FILE_H
#define SIB_ENGINE_TRACE_FILE_H

#include "base/trace.h"

typedef struct sib_trace_file sib_trace_file;

/* *out NULL: the environment asks for none. */
sib_status sib_trace_file_open(sib_trace_file **out, sib_err *err);
sib_trace sib_trace_file_sink(sib_trace_file *t); /* NULL gives an empty trace */
void sib_trace_file_phase(sib_trace_file *t, bool prompt);
/* Writes and frees; NULL is fine. */
sib_status sib_trace_file_close(sib_trace_file *t, sib_err *err);

#endif

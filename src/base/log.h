/* base/log.h - the library's only voice: a callback, silent until a program sets one. */
#ifndef SIB_BASE_LOG_H
#define SIB_BASE_LOG_H

#include "base/status.h"

typedef enum sib_log_level { SIB_LOG_ERROR, SIB_LOG_WARN, SIB_LOG_INFO, SIB_LOG_DEBUG } sib_log_level;

typedef void (*sib_log_fn)(void *ctx, sib_log_level level, const char *line);

/* Not thread-safe: set once before work begins. fn NULL silences. */
void sib_log_set(sib_log_fn fn, void *ctx, sib_log_level max_level);
void sib_log(sib_log_level level, const char *fmt, ...) SIB_PRINTF(2, 3);

#endif

/* base/log.c - see log.h. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static struct {
    sib_log_fn fn;
    void *ctx;
    sib_log_level max_level;
} sink;

void sib_log_set(sib_log_fn fn, void *ctx, sib_log_level max_level)
{
    sink.fn = fn;
    sink.ctx = ctx;
    sink.max_level = max_level;
}

void sib_log(sib_log_level level, const char *fmt, ...)
{
    if (!sink.fn || level > sink.max_level) return;
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    for (char *z = line; *z; z++) /* names from files must not steer a terminal */
        if ((unsigned char)*z < 0x20 || *z == 0x7F) *z = '?';
    sink.fn(sink.ctx, level, line);
}

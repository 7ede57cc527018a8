/* base/status.c - see status.h. */
#define SIB_STATUS_BODY
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *sib_status_name(sib_status s)
{
    static const char *const names[] = {"OK",           "ENOMEM", "ECAPACITY", "EIO",        "EFORMAT",
                                        "EUNSUPPORTED", "EARG",   "ESTATE",    "ECANCELLED", "EDEVICE"};
    return (size_t)s < SIB_COUNT(names) ? names[s] : "?";
}

/* Sentences quote names from files: no byte of them may steer a terminal or start a new line. */
static void scrub(char *z)
{
    for (; *z; z++)
        if ((unsigned char)*z < 0x20 || *z == 0x7F) *z = '?';
}

sib_status sib_fail(sib_err *err, sib_status s, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        err->status = s;
        (void)vsnprintf(err->message, sizeof err->message, fmt, ap);
        va_end(ap);
        scrub(err->message);
    }
    return s;
}

sib_status sib_within(sib_err *err, sib_status s, const char *fmt, ...)
{
    if (err) {
        char inner[sizeof err->message];
        memcpy(inner, err->message, sizeof inner);
        va_list ap;
        va_start(ap, fmt);
        int n = vsnprintf(err->message, sizeof err->message, fmt, ap);
        va_end(ap);
        if (n >= 0 && (size_t)n < sizeof err->message &&
            snprintf(err->message + n, sizeof err->message - (size_t)n, ": %s", inner) < 0)
            err->message[n] = 0;
        err->status = s;
    }
    return s;
}

sib_status sib_nomem(sib_err *err, const char *what)
{
    return sib_fail(err, SIB_ENOMEM, "out of memory: %s", what);
}

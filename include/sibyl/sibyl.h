/* sibyl/sibyl.h - the one public header of libsibyl.
 *
 * Two handles do the work: an engine is a loaded checkpoint, shared and
 * read-only; a session is one mutable timeline of tokens on it. Everything a
 * call can fail at comes back as a sib_status with one sentence in sib_err;
 * the library never prints and never exits.
 *
 * Ownership: a pointer parameter that is const is borrowed for the call; what a
 * function called _new or _open returns is the caller's until the matching _free.
 */
#ifndef SIBYL_SIBYL_H
#define SIBYL_SIBYL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SIB_API __attribute__((visibility("default")))
#else
#define SIB_API
#endif

/* Why a call failed; the sentence for people is in sib_err. */
typedef enum sib_status {
    SIB_OK = 0,
    SIB_ENOMEM,        /* no memory: try with less                                */
    SIB_ECAPACITY,     /* a planned size (context, batch) is exceeded             */
    SIB_EIO,           /* a file or stream cannot be read or written              */
    SIB_EFORMAT,       /* bytes are not what their format promises                */
    SIB_EUNSUPPORTED,  /* well-formed, but this build has no code for it          */
    SIB_EARG,          /* the caller's argument is wrong                          */
    SIB_ESTATE,        /* the call is not allowed now                             */
    SIB_ECANCELLED,    /* asked to stop                                           */
    SIB_EDEVICE        /* the device failed; the session is gone                  */
} sib_status;

/* Short name of a status ("EFORMAT"), never NULL. */
SIB_API const char *sib_status_name(sib_status s);

/* One sentence that names the file, tensor, key or value. Callers may pass NULL. */
typedef struct sib_err {
    sib_status status;
    char message[512];
} sib_err;

#ifdef __cplusplus
}
#endif
#endif

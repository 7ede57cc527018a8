/* artifacts/mapping.c - see mapping.h. */
#include "artifacts/mapping.h"

#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* What the signal handler may look at: places in blocks that are reused and never freed, so
 * that a walk needs no lock. `base` is 0 while a place stands empty. */
typedef struct place {
    atomic_uintptr_t base;
    atomic_size_t bytes;
    atomic_bool taken, damaged;
} place;

#define PLACES 64
typedef struct block {
    place places[PLACES];
    struct block *_Atomic next;
} block;

static block first_block;
static struct sigaction previous;
static uintptr_t page_size;
static pthread_once_t once = PTHREAD_ONCE_INIT;

struct sib_mapping {
    int fd;
    unsigned char *data;
    size_t size;
    char *path;
    place *place;
};

/* The mapping that holds the address, and the bytes from there to its end. */
static place *place_of(uintptr_t address, size_t *rest)
{
    for (block *b = &first_block; b; b = atomic_load(&b->next))
        for (size_t i = 0; i < PLACES; i++) {
            uintptr_t base = atomic_load(&b->places[i].base);
            size_t bytes = atomic_load(&b->places[i].bytes);
            if (!base || address < base || address - base >= bytes) continue;
            *rest = bytes - (address - base);
            return &b->places[i];
        }
    return NULL;
}

/* Only what is safe in a handler: atomics, mmap (a bare system call on Linux), sigaction. */
static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    int saved = errno;
    uintptr_t at = (uintptr_t)info->si_addr & ~(page_size - 1);
    size_t rest = 0;
    place *p = info->si_code > 0 ? place_of(at, &rest) : NULL; /* > 0: raised by the kernel, not by kill() */
    if (p) {
        atomic_store(&p->damaged, true);
        void *zero = mmap((void *)at, rest, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        errno = saved;
        if (zero != MAP_FAILED) return;
    }
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(sig, info, context);
    } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(sig);
    } else if (info->si_code > 0 || previous.sa_handler == SIG_DFL) {
        /* Takes effect when this handler returns: the access faults again, or the raise arrives. */
        struct sigaction fatal = {.sa_handler = SIG_DFL};
        (void)sigaction(SIGBUS, &fatal, NULL);
        if (info->si_code <= 0) (void)raise(sig);
    }
    errno = saved;
}

static void install(void)
{
    page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
    struct sigaction act = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    (void)sigemptyset(&act.sa_mask);
    (void)sigaction(SIGBUS, &act, &previous); /* cannot fail with these arguments */
}

static place *place_take(void)
{
    for (block *b = &first_block;;) {
        for (size_t i = 0; i < PLACES; i++)
            if (!atomic_exchange(&b->places[i].taken, true)) {
                atomic_store(&b->places[i].damaged, false);
                return &b->places[i];
            }
        block *next = atomic_load(&b->next);
        if (!next) {
            block *fresh = calloc(1, sizeof *fresh);
            if (!fresh) return NULL;
            if (atomic_compare_exchange_strong(&b->next, &next, fresh))
                next = fresh;
            else
                free(fresh); /* another thread was first: `next` now holds its block */
        }
        b = next;
    }
}

static sib_status map_file(sib_mapping *m, sib_err *err)
{
    struct stat st;
    if (fstat(m->fd, &st) != 0) return sib_fail(err, SIB_EIO, "%s: %s", m->path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return sib_fail(err, SIB_EIO, "%s: not a regular file", m->path);
    if ((uintmax_t)st.st_size > SIZE_MAX / 2) return sib_fail(err, SIB_EIO, "%s: too large to map", m->path);
    m->size = (size_t)st.st_size;
    if (m->size == 0) return SIB_OK;
    if (!(m->place = place_take())) return sib_nomem(err, m->path);
    void *p = mmap(NULL, m->size, PROT_READ, MAP_PRIVATE, m->fd, 0);
    if (p == MAP_FAILED)
        return sib_fail(err, errno == ENOMEM ? SIB_ENOMEM : SIB_EIO, "%s: cannot map %zu bytes: %s", m->path, m->size,
                        strerror(errno));
    m->data = p;
    atomic_store(&m->place->bytes, (m->size + page_size - 1) & ~(page_size - 1));
    atomic_store(&m->place->base, (uintptr_t)p);
    return SIB_OK;
}

sib_status sib_mapping_open(sib_mapping **out, const char *path, sib_err *err)
{
    *out = NULL;
    (void)pthread_once(&once, install);
    sib_mapping *m = calloc(1, sizeof *m);
    if (!m) return sib_nomem(err, path);
    m->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not make us wait */
    sib_status s = SIB_OK;
    if (m->fd < 0)
        s = sib_fail(err, SIB_EIO, "%s: %s", path, strerror(errno));
    else if (!(m->path = sib_strdup(path)))
        s = sib_nomem(err, path);
    else
        s = map_file(m, err);
    if (s == SIB_OK)
        *out = m;
    else
        sib_mapping_free(m);
    return s;
}

void sib_mapping_free(sib_mapping *m)
{
    if (!m) return;
    if (m->place) {
        atomic_store(&m->place->base, 0);
        if (m->data) (void)munmap(m->data, m->size);
        atomic_store(&m->place->taken, false);
    }
    if (m->fd >= 0) (void)close(m->fd);
    free(m->path);
    free(m);
}

const unsigned char *sib_mapping_data(const sib_mapping *m)
{
    return m->data;
}

size_t sib_mapping_size(const sib_mapping *m)
{
    return m->size;
}

const char *sib_mapping_path(const sib_mapping *m)
{
    return m->path;
}

static sib_status shorter(const sib_mapping *m, sib_err *err)
{
    return sib_fail(err, SIB_EIO, "%s: the file became shorter or unreadable while it was in use", m->path);
}

sib_status sib_mapping_read(const sib_mapping *m, size_t offset, void *out, size_t bytes, sib_err *err)
{
    if (offset > m->size || bytes > m->size - offset)
        return sib_fail(err, SIB_EARG, "%s: bytes %zu+%zu are outside the file", m->path, offset, bytes);
    for (char *p = out; bytes;) {
        ssize_t n = pread(m->fd, p, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return sib_fail(err, SIB_EIO, "%s: %s", m->path, strerror(errno));
        if (n == 0) return shorter(m, err);
        p += n;
        offset += (size_t)n;
        bytes -= (size_t)n;
    }
    return SIB_OK;
}

sib_status sib_mapping_intact(const sib_mapping *m, sib_err *err)
{
    struct stat st;
    if (m->place && atomic_load(&m->place->damaged)) return shorter(m, err);
    if (fstat(m->fd, &st) != 0) return sib_fail(err, SIB_EIO, "%s: %s", m->path, strerror(errno));
    return (uintmax_t)st.st_size < m->size ? shorter(m, err) : SIB_OK;
}

bool sib_mapping_drop(const sib_mapping *m, const void *p, size_t bytes)
{
    uintptr_t base = (uintptr_t)m->data, from = (uintptr_t)p, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (from < base || from - base > m->size || bytes > m->size - (from - base)) return false;
    uintptr_t first = (from + page - 1) / page * page, last = (from + bytes) / page * page;
    if (first < last) (void)madvise((void *)first, last - first, MADV_DONTNEED);
    return true;
}

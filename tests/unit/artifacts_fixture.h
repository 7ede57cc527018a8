/* tests/unit/artifacts_fixture.h - a folder for one test program and files in it. Used by the tests of
 * src/artifacts; include after cmocka. */
#ifndef ARTIFACTS_FIXTURE_H
#define ARTIFACTS_FIXTURE_H

#include "base/log.h"
#include "base/str.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char fixture_dir[64];
static char fixture_log[4096]; /* what the library said since the last fixture_reset */
static int fixture_warnings;

static inline void fixture_on_log(void *ctx, sib_log_level level, const char *line)
{
    (void)ctx;
    fixture_warnings += level == SIB_LOG_WARN;
    size_t n = strlen(fixture_log);
    (void)snprintf(fixture_log + n, sizeof fixture_log - n, "%s\n", line);
}

static inline void fixture_reset(void)
{
    fixture_log[0] = 0;
    fixture_warnings = 0;
}

static inline int fixture_setup(void **state)
{
    (void)state;
    strcpy(fixture_dir, "/tmp/sibyl-test-XXXXXX");
    sib_log_set(fixture_on_log, NULL, SIB_LOG_DEBUG);
    return mkdtemp(fixture_dir) ? 0 : -1;
}

static inline void fixture_remove(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0) return;
    DIR *d = S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        char *inner = sib_path_join(path, e->d_name);
        fixture_remove(inner);
        free(inner);
    }
    if (d) closedir(d);
    (void)remove(path);
}

static inline int fixture_teardown(void **state)
{
    (void)state;
    sib_log_set(NULL, NULL, SIB_LOG_ERROR);
    fixture_remove(fixture_dir);
    return 0;
}

/* fixture_dir/name in one of a few buffers that take turns. */
static inline const char *fixture_path(const char *name)
{
    static char ring[64][512];
    static unsigned turn;
    char *p = ring[turn++ % 64];
    (void)snprintf(p, sizeof ring[0], "%s/%s", fixture_dir, name);
    return p;
}

static inline const char *fixture_write(const char *name, const void *bytes, size_t n)
{
    const char *path = fixture_path(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return path;
}

static inline const char *fixture_text(const char *name, const char *text)
{
    return fixture_write(name, text, strlen(text));
}

static inline void fixture_mkdir(const char *name)
{
    assert_int_equal(mkdir(fixture_path(name), 0777), 0);
}

#endif

/* artifacts/safetensors_writer.c - the writer of safetensors.h: for traces, tests and mkmodel. */
#include "artifacts/safetensors.h"

#include "artifacts/names.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RESERVE_DEFAULT (64u << 10)
#define STREAM_BYTES    (1u << 20)
#define HEADER_MAX      100000000u

struct sib_safetensors_writer {
    FILE *out;
    char *path, *temporary;
    size_t reserved;           /* bytes of the header that the file has room for */
    sib_buf entries, metadata; /* the header's members, with a comma behind each but the last */
    uint64_t at, due;          /* bytes of data written; where the current tensor ends */
    char **keys;
    size_t n_keys, cap_keys;
    sib_names names;
};

static sib_status failed(const sib_safetensors_writer *w, sib_err *err)
{
    return sib_fail(err, SIB_EIO, "%s: cannot write: %s", w->path, strerror(errno));
}

/* A new file beside the target: PATH.tmp-PID-N. */
static sib_status open_temporary(char **name, FILE **out, const char *path, sib_err *err)
{
    static atomic_uint counter;
    size_t n = strlen(path) + 40;
    int fd;
    if (!(*name = malloc(n))) return sib_nomem(err, path);
    do {
        (void)snprintf(*name, n, "%s.tmp-%ld-%u", path, (long)getpid(), atomic_fetch_add(&counter, 1));
        fd = open(*name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EEXIST);
    if (fd < 0) {
        sib_status s = sib_fail(err, SIB_EIO, "%s: cannot create: %s", path, strerror(errno));
        free(*name);
        *name = NULL;
        return s;
    }
    if ((*out = fdopen(fd, "w+b"))) {
        (void)setvbuf(*out, NULL, _IOFBF, STREAM_BYTES);
        return SIB_OK;
    }
    (void)close(fd);
    return sib_nomem(err, path);
}

sib_status sib_safetensors_create(sib_safetensors_writer **out, const char *path, size_t header_reserve, sib_err *err)
{
    *out = NULL;
    sib_safetensors_writer *w = calloc(1, sizeof *w);
    if (!w) return sib_nomem(err, path);
    if (header_reserve > HEADER_MAX) header_reserve = HEADER_MAX;
    w->reserved = ((header_reserve ? header_reserve : RESERVE_DEFAULT) + 7) & ~(size_t)7;
    sib_status s =
        (w->path = sib_strdup(path)) ? open_temporary(&w->temporary, &w->out, path, err) : sib_nomem(err, path);
    if (s == SIB_OK && fseeko(w->out, (off_t)(8 + w->reserved), SEEK_SET) != 0) s = failed(w, err);
    if (s == SIB_OK)
        *out = w;
    else
        sib_safetensors_abandon(w);
    return s;
}

void sib_safetensors_abandon(sib_safetensors_writer *w)
{
    if (!w) return;
    if (w->out) (void)fclose(w->out);
    if (w->temporary) (void)unlink(w->temporary);
    for (size_t i = 0; i < w->n_keys; i++) free(w->keys[i]);
    free(w->keys);
    sib_names_deinit(&w->names);
    sib_buf_deinit(&w->entries);
    sib_buf_deinit(&w->metadata);
    free(w->temporary);
    free(w->path);
    free(w);
}

sib_status sib_safetensors_put_metadata(sib_safetensors_writer *w, const char *key, const char *value, sib_err *err)
{
    if (w->metadata.n) sib_buf_addc(&w->metadata, ',');
    sib_json_put_str(&w->metadata, sib_str_of(key));
    sib_buf_addc(&w->metadata, ':');
    sib_json_put_str(&w->metadata, sib_str_of(value));
    return w->metadata.failed ? sib_nomem(err, w->path) : SIB_OK;
}

/* Remembers the name; a second tensor of the same name would make a file that no reader takes. */
static sib_status add_name(sib_safetensors_writer *w, const char *name, sib_err *err)
{
    size_t n = strlen(name);
    uint32_t old;
    if (n == 0 || n > 1024 || strcmp(name, "__metadata__") == 0 || w->n_keys == SIB_SAFETENSORS_MAX)
        return sib_fail(err, SIB_EARG, "%s: tensor name \"%s\" is not allowed, or there are too many", w->path, name);
    if (w->n_keys == w->cap_keys) {
        size_t cap = w->cap_keys ? w->cap_keys * 2 : 64;
        char **keys = realloc(w->keys, cap * sizeof *keys);
        if (!keys) return sib_nomem(err, w->path);
        w->keys = keys;
        w->cap_keys = cap;
    }
    char *key = sib_strdup(name);
    if (!key) return sib_nomem(err, w->path);
    w->keys[w->n_keys++] = key;
    if (!sib_names_add(&w->names, key, (uint32_t)w->n_keys, &old)) return sib_nomem(err, w->path);
    return old == SIB_NAMES_NONE ? SIB_OK : sib_fail(err, SIB_EARG, "%s: tensor %s is written twice", w->path, name);
}

static sib_status check_complete(const sib_safetensors_writer *w, sib_err *err)
{
    if (w->at == w->due) return SIB_OK;
    return sib_fail(err, SIB_ESTATE, "%s: tensor %s lacks %llu bytes", w->path, w->keys[w->n_keys - 1],
                    (unsigned long long)(w->due - w->at));
}

sib_status sib_safetensors_begin(sib_safetensors_writer *w, const char *name, sib_dtype dtype, int rank,
                                 const int64_t *shape, sib_err *err)
{
    SIB_TRY(check_complete(w, err));
    if (rank < 0 || rank > SIB_TENSOR_MAX_RANK)
        return sib_fail(err, SIB_EARG, "%s: tensor %s: rank %d", w->path, name, rank);
    uint64_t bits = (uint64_t)sib_dtype_bits(dtype), end;
    bool wrong = false;
    for (int d = 0; d < rank; d++) wrong |= shape[d] < 0 || __builtin_mul_overflow(bits, (uint64_t)shape[d], &bits);
    wrong |= bits % 8 != 0 || __builtin_add_overflow(w->at, bits / 8, &end) || end > INT64_MAX / 2;
    if (wrong) return sib_fail(err, SIB_EARG, "%s: tensor %s: its shape has no size in bytes", w->path, name);
    SIB_TRY(add_name(w, name, err));

    if (w->entries.n) sib_buf_addc(&w->entries, ',');
    sib_json_put_str(&w->entries, sib_str_of(name));
    sib_buf_addf(&w->entries, ":{\"dtype\":\"%s\",\"shape\":[", sib_dtype_name(dtype));
    for (int d = 0; d < rank; d++) sib_buf_addf(&w->entries, d ? ",%lld" : "%lld", (long long)shape[d]);
    sib_buf_addf(&w->entries, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)w->at, (unsigned long long)end);
    if (w->entries.failed) return sib_nomem(err, w->path);
    w->due = end;
    return SIB_OK;
}

sib_status sib_safetensors_write(sib_safetensors_writer *w, const void *bytes, size_t n, sib_err *err)
{
    if (n > w->due - w->at)
        return sib_fail(err, SIB_ESTATE, "%s: %llu bytes more than the tensor's shape", w->path,
                        (unsigned long long)(n - (w->due - w->at)));
    if (n && fwrite(bytes, 1, n, w->out) != n) return failed(w, err);
    w->at += n;
    return SIB_OK;
}

sib_status sib_safetensors_add(sib_safetensors_writer *w, const char *name, sib_dtype dtype, int rank,
                               const int64_t *shape, const void *data, sib_err *err)
{
    SIB_TRY(sib_safetensors_begin(w, name, dtype, rank, shape, err));
    return sib_safetensors_write(w, data, (size_t)(w->due - w->at), err);
}

static sib_status put_header(sib_safetensors_writer *w, FILE *to, const sib_buf *header, sib_err *err)
{
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)w->reserved >> (8 * i));
    rewind(to);
    if (fwrite(length, 1, 8, to) != 8 || fwrite(header->p, 1, header->n, to) != header->n) return failed(w, err);
    return SIB_OK;
}

/* The header has outgrown its room: the data moves to a new file that has more. */
static sib_status move_data(sib_safetensors_writer *w, size_t needed, sib_err *err)
{
    char *name = NULL;
    FILE *to = NULL;
    size_t from = 8 + w->reserved, reserved = (needed + 7) & ~(size_t)7;
    char *piece = malloc(STREAM_BYTES);
    sib_status s = piece ? open_temporary(&name, &to, w->path, err) : sib_nomem(err, w->path);
    if (s == SIB_OK && (fseeko(w->out, (off_t)from, SEEK_SET) != 0 || fseeko(to, (off_t)(8 + reserved), SEEK_SET) != 0))
        s = failed(w, err);
    for (uint64_t left = w->at; s == SIB_OK && left;) {
        size_t n = left < STREAM_BYTES ? (size_t)left : STREAM_BYTES;
        if (fread(piece, 1, n, w->out) != n || fwrite(piece, 1, n, to) != n) s = failed(w, err);
        left -= n;
    }
    free(piece);
    if (s != SIB_OK) {
        if (to) (void)fclose(to);
        if (name) (void)unlink(name);
        free(name);
        return s;
    }
    (void)fclose(w->out);
    (void)unlink(w->temporary);
    free(w->temporary);
    w->temporary = name;
    w->out = to;
    w->reserved = reserved;
    return SIB_OK;
}

static sib_status finish(sib_safetensors_writer *w, sib_buf *header, sib_err *err)
{
    SIB_TRY(check_complete(w, err));
    sib_buf_addc(header, '{');
    if (w->metadata.n) sib_buf_addf(header, "\"__metadata__\":{%s}%s", w->metadata.p, w->entries.n ? "," : "");
    if (w->entries.n) sib_buf_add(header, w->entries.p, w->entries.n);
    sib_buf_addc(header, '}');
    if (header->failed || w->metadata.failed) return sib_nomem(err, w->path);
    if (header->n > HEADER_MAX)
        return sib_fail(err, SIB_ECAPACITY, "%s: header of more than %u bytes", w->path, HEADER_MAX);
    if (header->n > w->reserved) SIB_TRY(move_data(w, header->n, err));
    while (header->n < w->reserved && !header->failed) sib_buf_addc(header, ' ');
    if (header->failed) return sib_nomem(err, w->path);
    SIB_TRY(put_header(w, w->out, header, err));
    FILE *out = w->out;
    w->out = NULL;
    if (fclose(out) != 0 || rename(w->temporary, w->path) != 0) return failed(w, err);
    free(w->temporary);
    w->temporary = NULL; /* it is the target now */
    return SIB_OK;
}

sib_status sib_safetensors_finish(sib_safetensors_writer *w, sib_err *err)
{
    sib_buf header = {0};
    sib_status s = finish(w, &header, err);
    sib_buf_deinit(&header);
    sib_safetensors_abandon(w);
    return s;
}

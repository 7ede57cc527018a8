/* artifacts/checkpoint.c - see checkpoint.h. */
#include "artifacts/checkpoint.h"

#include "artifacts/names.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG_MAX_BYTES (16u << 20)
#define INDEX_MAX_BYTES  (32u << 20) /* 120 000 tensors of GLM-5.2 need about 16 MB */
#define FILES_MAX        4096

typedef struct tensor {
    const sib_tensor_info *info;
    const char *reason; /* when ignored */
    sib_tensor_fate fate;
} tensor;

typedef struct strings {
    char **v;
    size_t n, cap;
} strings;

struct sib_checkpoint {
    char *dir;
    json_t *config, *generation;
    sib_safetensors **files;
    size_t n_files, files_cap;
    tensor *tensors;
    size_t n, cap;
    sib_names names;
    strings missing;
    strings owned; /* sib_checkpoint_alloc */
    bool lax;
    bool said[SIB_ONCE_TOPICS];
};

/* ---- small helpers -------------------------------------------------------------------------- */

/* v with room for more than n elements; NULL without memory, v is then as it was. */
static void *grown(void *v, size_t *cap, size_t n, size_t each)
{
    if (n < *cap) return v;
    size_t want = *cap ? *cap * 2 : 16;
    void *bigger = want > SIZE_MAX / each ? NULL : realloc(v, want * each);
    if (bigger) *cap = want;
    return bigger;
}

/* Takes ownership of z, also when it fails; z NULL fails. */
static bool strings_add(strings *s, char *z)
{
    char **v = z ? grown(s->v, &s->cap, s->n, sizeof *v) : NULL;
    if (!v) {
        free(z);
        return false;
    }
    s->v = v;
    s->v[s->n++] = z;
    return true;
}

static void strings_deinit(strings *s)
{
    for (size_t i = 0; i < s->n; i++) free(s->v[i]);
    free(s->v);
    *s = (strings){0};
}

static bool is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool file_exists(const char *dir, const char *name)
{
    char path[PATH_MAX]; /* longer ones do not exist for the system either */
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    return n >= 0 && (size_t)n < sizeof path && access(path, F_OK) == 0;
}

/* `*` matches any run of bytes, everything else itself. Going back to the last star is enough. */
static bool matches(const char *pattern, const char *name)
{
    const char *star = NULL, *from = NULL;
    while (*name) {
        if (*pattern == '*') {
            star = ++pattern;
            from = name;
        } else if (*pattern == *name) {
            pattern++, name++;
        } else if (star) {
            pattern = star;
            name = ++from;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return *pattern == 0;
}

/* ---- places ----------------------------------------------------------------------------------- */

static bool is_commit(const char *z)
{
    return strlen(z) == 40 && strspn(z, "0123456789abcdef") == 40;
}

/* Letters, digits and . _ - in parts that slashes separate; no part is empty, "." or "..". */
static bool is_plain_path(const char *z, int max_slashes)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/";
    if (strlen(z) > 255 || strspn(z, allowed) != strlen(z)) return false;
    for (const char *part = z;; part++) {
        size_t n = strcspn(part, "/");
        if (n == 0 || strspn(part, ".") >= n) return false;
        part += n;
        if (!*part) return true;
        if (max_slashes-- == 0) return false;
    }
}

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

static void put_cache_root(sib_buf *out, const char *given)
{
    const char *v = given ? given : env("HF_HUB_CACHE");
    if (v)
        sib_buf_addz(out, v);
    else if ((v = env("HF_HOME")))
        sib_buf_addf(out, "%s/hub", v);
    else if ((v = env("XDG_CACHE_HOME")))
        sib_buf_addf(out, "%s/huggingface/hub", v);
    else
        sib_buf_addf(out, "%s/.cache/huggingface/hub", env("HOME") ? env("HOME") : "");
}

/* The commit that refs/REVISION names, or REVISION when it is one itself. */
static sib_status commit_of(char commit[41], const char *repo_dir, const char *revision, sib_err *err)
{
    sib_buf path = {0}, text = {0};
    sib_status s = SIB_OK;
    const char *found = revision;
    sib_buf_addf(&path, "%s/refs/%s", repo_dir, revision);
    if (path.failed) {
        s = sib_nomem(err, revision);
    } else if (!is_commit(revision)) {
        s = sib_read_file(path.p, 256, &text, err);
        found = text.p ? text.p : "";
        size_t n = strcspn(found, " \r\n");
        if (text.p) text.p[n] = 0;
        if (s == SIB_OK && !is_commit(found)) s = sib_fail(err, SIB_EFORMAT, "%s: does not hold a commit", path.p);
    }
    if (s == SIB_OK) memcpy(commit, found, 41);
    sib_buf_deinit(&path);
    sib_buf_deinit(&text);
    return s;
}

static sib_status resolve_repo(sib_buf *out, char *repo, const char *cache_root, sib_err *err)
{
    char commit[41];
    char *at = strchr(repo, '@');
    if (at) *at = 0;
    const char *revision = at ? at + 1 : "main";
    if (!is_plain_path(repo, 1) || !is_plain_path(revision, 4))
        return sib_fail(err, SIB_EARG, "%s: no such folder, and not of the form ORG/NAME or ORG/NAME@REVISION", repo);
    put_cache_root(out, cache_root);
    sib_buf_addz(out, "/models--");
    for (const char *p = repo; *p; p++) sib_buf_addz(out, *p == '/' ? "--" : (char[]){*p, 0});
    if (out->failed) return sib_nomem(err, repo);
    if (!is_dir(out->p))
        return sib_fail(err, SIB_EARG, "%s: no such folder, and not in the hub cache (%s)", repo, out->p);
    SIB_TRY(commit_of(commit, out->p, revision, err));
    sib_buf_addf(out, "/snapshots/%s", commit);
    if (out->failed) return sib_nomem(err, repo);
    if (!is_dir(out->p))
        return sib_fail(err, SIB_EIO, "%s: no snapshot of %s in the hub cache (incomplete download?)", out->p, repo);
    return SIB_OK;
}

sib_status sib_checkpoint_resolve(char **out, const char *place, const char *cache_root, sib_err *err)
{
    *out = NULL;
    if (is_dir(place)) return (*out = sib_strdup(place)) ? SIB_OK : sib_nomem(err, place);
    if (access(place, F_OK) == 0) return sib_fail(err, SIB_EARG, "%s: not a folder", place);
    sib_buf path = {0};
    char *repo = sib_strdup(place);
    sib_status s = repo ? resolve_repo(&path, repo, cache_root, err) : sib_nomem(err, place);
    free(repo);
    if (s == SIB_OK)
        *out = path.p;
    else
        sib_buf_deinit(&path);
    return s;
}

/* ---- opening ------------------------------------------------------------------------------------ */

static sib_status open_file(sib_checkpoint *c, const char *name, sib_safetensors **out, sib_err *err)
{
    *out = NULL;
    if (c->n_files == FILES_MAX) return sib_fail(err, SIB_EFORMAT, "%s: more than %d weight files", c->dir, FILES_MAX);
    sib_safetensors **files = grown(c->files, &c->files_cap, c->n_files, sizeof *files);
    if (!files) return sib_nomem(err, name);
    c->files = files;
    char *path = sib_path_join(c->dir, name);
    sib_status s = path ? sib_safetensors_open(out, path, c->lax, err) : sib_nomem(err, name);
    free(path);
    if (s == SIB_OK) c->files[c->n_files++] = *out;
    return s;
}

/* Adds one tensor; *old is the file that has its name already, NULL when it is new. */
static sib_status add_tensor(sib_checkpoint *c, const sib_tensor_info *t, const char **old, sib_err *err)
{
    uint32_t number;
    tensor *tensors = c->n < SIB_NAMES_NONE ? grown(c->tensors, &c->cap, c->n, sizeof *tensors) : NULL;
    if (tensors) c->tensors = tensors;
    if (!tensors || !sib_names_add(&c->names, t->name, (uint32_t)c->n, &number)) return sib_nomem(err, t->file);
    *old = number == SIB_NAMES_NONE ? NULL : c->tensors[number].info->file;
    if (!*old) c->tensors[c->n++] = (tensor){.info = t};
    return SIB_OK;
}

static sib_status add_all(sib_checkpoint *c, const char *file, bool is_sidecar, sib_err *err)
{
    sib_safetensors *f;
    size_t repeated = 0;
    SIB_TRY(open_file(c, file, &f, err));
    for (size_t i = 0; i < sib_safetensors_count(f); i++) {
        const char *old;
        SIB_TRY(add_tensor(c, sib_safetensors_at(f, i), &old, err));
        if (old && !is_sidecar)
            return sib_fail(err, SIB_EFORMAT, "tensor %s is in %s and in %s", sib_safetensors_at(f, i)->name, old,
                            sib_mapping_path(sib_safetensors_mapping(f)));
        repeated += old != NULL;
    }
    if (repeated)
        sib_log(SIB_LOG_WARN, "%s/%s: %zu tensors are in the main files too, which win", c->dir, file, repeated);
    return SIB_OK;
}

/* Appends `name` to a list that is cut after five. */
static void list_name(sib_buf *list, size_t n, const char *name)
{
    if (n < 5) sib_buf_addf(list, n ? ", %s" : "%s", name);
    if (n == 5) sib_buf_addz(list, ", ...");
}

/* A file beside the index and nowhere else. */
static bool is_shard_name(const json_t *v)
{
    const char *z = json_string_value(v);
    return z && strlen(z) == json_string_length(v) && strlen(z) <= 255 && !strpbrk(z, "/\\") &&
           sib_ends_with(z, ".safetensors");
}

/* Opens every file that the map names, once; `numbers` then knows their places in c->files. */
static sib_status open_shards(sib_checkpoint *c, json_t *map, sib_names *numbers, sib_buf *list, sib_err *err)
{
    const char *key;
    json_t *value;
    size_t n_missing = 0;
    json_object_foreach(map, key, value)
    {
        uint32_t old;
        if (!is_shard_name(value))
            return sib_fail(err, SIB_EFORMAT,
                            "%s: weight_map: tensor %s: \"%s\" is not a plain name of a .safetensors file", c->dir, key,
                            json_is_string(value) ? json_string_value(value) : "(not a string)");
        const char *file = json_string_value(value);
        if (!sib_names_add(numbers, file, (uint32_t)numbers->n, &old)) return sib_nomem(err, c->dir);
        if (old == SIB_NAMES_NONE && !file_exists(c->dir, file)) list_name(list, n_missing++, file);
    }
    if (n_missing)
        return sib_fail(err, SIB_EIO, "%s: %zu weight files are missing (incomplete download?): %s", c->dir, n_missing,
                        list->p ? list->p : "");
    json_object_foreach(map, key, value)
    {
        sib_safetensors *f;
        if (sib_names_find(numbers, json_string_value(value)) == c->n_files)
            SIB_TRY(open_file(c, json_string_value(value), &f, err));
    }
    return SIB_OK;
}

static sib_status read_map(sib_checkpoint *c, json_t *map, sib_names *numbers, sib_buf *list, sib_err *err)
{
    const char *key;
    json_t *value;
    size_t n_missing = 0, in_files = 0;
    SIB_TRY(open_shards(c, map, numbers, list, err));
    if (!sib_names_reserve(&c->names, json_object_size(map))) return sib_nomem(err, c->dir);
    json_object_foreach(map, key, value)
    {
        const char *old;
        const sib_tensor_info *t =
            sib_safetensors_find(c->files[sib_names_find(numbers, json_string_value(value))], key);
        if (t)
            SIB_TRY(add_tensor(c, t, &old, err));
        else
            list_name(list, n_missing++, key);
    }
    if (n_missing)
        return sib_fail(err, SIB_EFORMAT, "%s: %zu tensors of the index are not in their files: %s", c->dir, n_missing,
                        list->p ? list->p : "");
    for (size_t i = 0; i < c->n_files; i++) in_files += sib_safetensors_count(c->files[i]);
    if (in_files > c->n)
        sib_log(SIB_LOG_WARN, "%s: %zu tensors are not in the index and are left out", c->dir, in_files - c->n);
    return SIB_OK;
}

static sib_status read_index(sib_checkpoint *c, const char *path, sib_err *err)
{
    json_t *index, *map, *metadata;
    sib_names numbers = {0};
    sib_buf list = {0};
    SIB_TRY(sib_json_read(&index, path, INDEX_MAX_BYTES, err));
    sib_status s;
    if (!json_is_object(map = json_object_get(index, "weight_map")) || json_object_size(map) == 0)
        s = sib_fail(err, SIB_EFORMAT, "%s: key \"weight_map\" must be an object with the tensors", path);
    else
        s = read_map(c, map, &numbers, &list, err);
    metadata = json_object_get(index, "metadata");
    const json_t *total = json_object_get(metadata, "total_size");
    if (s == SIB_OK && json_is_integer(total) && (size_t)json_integer_value(total) != sib_checkpoint_bytes(c))
        sib_log(SIB_LOG_WARN, "%s: total_size says %lld bytes, the tensors have %zu", path,
                (long long)json_integer_value(total), sib_checkpoint_bytes(c));
    sib_names_deinit(&numbers);
    sib_buf_deinit(&list);
    json_decref(index);
    return s;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* model*.safetensors, sorted by name. */
static sib_status read_glob(sib_checkpoint *c, sib_err *err)
{
    strings found = {0};
    DIR *d = opendir(c->dir);
    if (!d) return sib_fail(err, SIB_EIO, "%s: %s", c->dir, strerror(errno));
    sib_status s = SIB_OK;
    for (struct dirent *e; s == SIB_OK && (e = readdir(d));) {
        if (!matches("model*.safetensors", e->d_name)) continue;
        if (found.n == FILES_MAX || !strings_add(&found, sib_strdup(e->d_name))) s = sib_nomem(err, c->dir);
    }
    (void)closedir(d);
    if (s == SIB_OK && found.n == 0)
        s = sib_fail(err, SIB_EIO, "%s: holds no model*.safetensors (incomplete download?)", c->dir);
    if (found.n) qsort(found.v, found.n, sizeof *found.v, by_name);
    for (size_t i = 0; s == SIB_OK && i < found.n; i++) s = add_all(c, found.v[i], false, err);
    strings_deinit(&found);
    return s;
}

static sib_status read_weights(sib_checkpoint *c, sib_err *err)
{
    static const char *const sidecars[] = {"optiq_vision.safetensors", "optiq/optiq_vision.safetensors"};
    if (file_exists(c->dir, "model.safetensors.index.json")) {
        char *path = sib_checkpoint_path(c, "model.safetensors.index.json");
        sib_status s = path ? read_index(c, path, err) : sib_nomem(err, c->dir);
        free(path);
        SIB_TRY(s);
    } else if (file_exists(c->dir, "model.safetensors")) {
        SIB_TRY(add_all(c, "model.safetensors", false, err));
    } else {
        SIB_TRY(read_glob(c, err));
    }
    for (size_t i = 0; i < SIB_COUNT(sidecars); i++)
        if (file_exists(c->dir, sidecars[i])) return add_all(c, sidecars[i], true, err);
    return SIB_OK;
}

static sib_status read_object(const sib_checkpoint *c, json_t **out, const char *file, sib_err *err)
{
    char *path = sib_checkpoint_path(c, file);
    sib_status s = path ? sib_json_read(out, path, CONFIG_MAX_BYTES, err) : sib_nomem(err, file);
    if (s == SIB_OK && !json_is_object(*out)) s = sib_fail(err, SIB_EFORMAT, "%s: must be a JSON object", path);
    free(path);
    return s;
}

sib_status sib_checkpoint_open(sib_checkpoint **out, const char *place, const sib_checkpoint_options *options,
                               sib_err *err)
{
    const sib_checkpoint_options none = {0}, *o = options ? options : &none;
    *out = NULL;
    sib_checkpoint *c = calloc(1, sizeof *c);
    if (!c) return sib_nomem(err, place);
    c->lax = o->lax_safetensors;
    sib_status s = sib_checkpoint_resolve(&c->dir, place, o->cache_root, err);
    if (s == SIB_OK) s = read_object(c, &c->config, o->config_file ? o->config_file : "config.json", err);
    if (s == SIB_OK && file_exists(c->dir, "generation_config.json"))
        s = read_object(c, &c->generation, "generation_config.json", err);
    if (s == SIB_OK) s = read_weights(c, err);
    if (s == SIB_OK)
        *out = c;
    else
        sib_checkpoint_free(c);
    return s;
}

void sib_checkpoint_free(sib_checkpoint *c)
{
    if (!c) return;
    for (size_t i = 0; i < c->n_files; i++) sib_safetensors_free(c->files[i]);
    free(c->files);
    free(c->tensors);
    sib_names_deinit(&c->names);
    strings_deinit(&c->missing);
    strings_deinit(&c->owned);
    json_decref(c->config);
    json_decref(c->generation);
    free(c->dir);
    free(c);
}

/* ---- reading ------------------------------------------------------------------------------------ */

const char *sib_checkpoint_dir(const sib_checkpoint *c)
{
    return c->dir;
}

const json_t *sib_checkpoint_config(const sib_checkpoint *c)
{
    return c->config;
}

const json_t *sib_checkpoint_text_config(const sib_checkpoint *c)
{
    const json_t *t = json_object_get(c->config, "text_config");
    return json_is_object(t) ? t : c->config;
}

const json_t *sib_checkpoint_generation_config(const sib_checkpoint *c)
{
    return c->generation;
}

const char *sib_checkpoint_type(const sib_checkpoint *c)
{
    const char *type = json_string_value(json_object_get(c->config, "model_type"));
    return type ? type : "";
}

char *sib_checkpoint_path(const sib_checkpoint *c, const char *file)
{
    return sib_path_join(c->dir, file);
}

size_t sib_checkpoint_count(const sib_checkpoint *c)
{
    return c->n;
}

const sib_tensor_info *sib_checkpoint_at(const sib_checkpoint *c, size_t i)
{
    return c->tensors[i].info;
}

static tensor *tensor_named(const sib_checkpoint *c, const char *name)
{
    uint32_t i = sib_names_find(&c->names, name);
    return i == SIB_NAMES_NONE ? NULL : &c->tensors[i];
}

const sib_tensor_info *sib_checkpoint_find(const sib_checkpoint *c, const char *name)
{
    const tensor *t = tensor_named(c, name);
    return t ? t->info : NULL;
}

bool sib_checkpoint_has(const sib_checkpoint *c, const char *name)
{
    return tensor_named(c, name) != NULL;
}

const char *sib_checkpoint_metadata(const sib_checkpoint *c, const char *key)
{
    return c->n_files ? sib_safetensors_metadata(c->files[0], key) : NULL;
}

size_t sib_checkpoint_bytes(const sib_checkpoint *c)
{
    size_t bytes = 0;
    for (size_t i = 0; i < c->n; i++) bytes += c->tensors[i].info->bytes;
    return bytes;
}

sib_status sib_checkpoint_intact(const sib_checkpoint *c, sib_err *err)
{
    for (size_t i = 0; i < c->n_files; i++) SIB_TRY(sib_mapping_intact(sib_safetensors_mapping(c->files[i]), err));
    return SIB_OK;
}

bool sib_checkpoint_once(sib_checkpoint *c, sib_once topic)
{
    bool first = !c->said[topic];
    c->said[topic] = true;
    return first;
}

void *sib_checkpoint_alloc(sib_checkpoint *c, size_t bytes)
{
    char *p = malloc(bytes ? bytes : 1);
    return strings_add(&c->owned, p) ? p : NULL;
}

/* ---- marks -------------------------------------------------------------------------------------- */

const sib_tensor_info *sib_checkpoint_use(sib_checkpoint *c, const char *name)
{
    tensor *t = tensor_named(c, name);
    if (!t) return NULL;
    t->fate = SIB_TENSOR_USED;
    return t->info;
}

sib_status sib_checkpoint_need(sib_checkpoint *c, const sib_tensor_info **out, const char *name, sib_err *err)
{
    if ((*out = sib_checkpoint_use(c, name))) return SIB_OK;
    if (!strings_add(&c->missing, sib_strdup(name))) return sib_nomem(err, name);
    return sib_fail(err, SIB_EFORMAT, "%s: tensor %s is missing", c->dir, name);
}

void sib_checkpoint_ignore(sib_checkpoint *c, const char *pattern, const char *reason)
{
    for (size_t i = 0; i < c->n; i++) {
        tensor *t = &c->tensors[i];
        if (t->fate != SIB_TENSOR_UNEXPECTED || !matches(pattern, t->info->name)) continue;
        t->fate = SIB_TENSOR_IGNORED;
        t->reason = reason;
    }
}

sib_tensor_fate sib_checkpoint_fate(const sib_checkpoint *c, size_t i, const char **reason)
{
    if (reason) *reason = c->tensors[i].fate == SIB_TENSOR_IGNORED ? c->tensors[i].reason : NULL;
    return c->tensors[i].fate;
}

size_t sib_checkpoint_missing_count(const sib_checkpoint *c)
{
    return c->missing.n;
}

const char *sib_checkpoint_missing(const sib_checkpoint *c, size_t i)
{
    return c->missing.v[i];
}

/* Counts one ignored tensor under its reason; reasons keep the order of their first tensor. */
static int count_ignored(json_t *list, const char *reason, const char *name)
{
    size_t i;
    json_t *row;
    json_array_foreach(list, i, row)
    {
        json_t *count = json_object_get(row, "count");
        if (strcmp(json_string_value(json_object_get(row, "reason")), reason) == 0)
            return json_integer_set(count, json_integer_value(count) + 1);
    }
    return json_array_append_new(list, json_pack("{s:s, s:i, s:s}", "reason", reason, "count", 1, "first", name));
}

json_t *sib_checkpoint_report(const sib_checkpoint *c)
{
    json_t *ignored = json_array(), *unexpected = json_array(), *missing = json_array();
    json_int_t used = 0;
    int failed = !ignored || !unexpected || !missing;
    for (size_t i = 0; i < c->n && !failed; i++) {
        const tensor *t = &c->tensors[i];
        used += t->fate == SIB_TENSOR_USED;
        if (t->fate == SIB_TENSOR_IGNORED) failed |= count_ignored(ignored, t->reason, t->info->name);
        if (t->fate == SIB_TENSOR_UNEXPECTED) failed |= json_array_append_new(unexpected, json_string(t->info->name));
    }
    for (size_t i = 0; i < c->missing.n && !failed; i++)
        failed |= json_array_append_new(missing, json_string(c->missing.v[i]));
    json_t *report = failed ? NULL
                            : json_pack("{s:I, s:O, s:O, s:O}", "used", used, "ignored", ignored, "unexpected",
                                        unexpected, "missing", missing);
    json_decref(ignored);
    json_decref(unexpected);
    json_decref(missing);
    return report;
}

void sib_checkpoint_drop(const sib_checkpoint *c, const void *p, size_t bytes)
{
    for (size_t i = 0; i < c->n_files; i++)
        if (sib_mapping_drop(sib_safetensors_mapping(c->files[i]), p, bytes)) return;
}

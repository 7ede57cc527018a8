/* cli/answer.c - see answer.h. */
#include "cli/answer.h"

#include "base/log.h"
#include "base/utf8.h"
#include "cli/term.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define MAX_TEXT_BYTES    ((size_t)64 << 20)
#define MAX_PICTURE_BYTES ((size_t)64 << 20)

/* ---- checkpoint ---------------------------------------------------------------------------- */

static bool has_config(const char *dir)
{
    char *path = sib_path_join(dir, "config.json");
    bool there = path && access(path, R_OK) == 0;
    free(path);
    return there;
}

sib_status cli_use_model(cli_args *a, sib_err *err)
{
    /* The demo of a source tree lies beside build/, that of an installed program in share/. */
    static const char *const places[] = {"../demo/gemma4-demo", "../share/sibyl/demo/gemma4-demo",
                                         "../share/sibyl/demo"};
    static char found[PATH_MAX];
    if (a->options.model) return SIB_OK;
    a->options.model = getenv("SIBYL_DEMO");
    if (a->options.model && a->options.model[0]) return SIB_OK;
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n > 0) {
        self[n] = 0;
        const char *folder = dirname(self);
        for (size_t i = 0; i < SIB_COUNT(places); i++) {
            char *place = sib_path_join(folder, places[i]);
            bool there = place && realpath(place, found) && has_config(found);
            free(place);
            a->options.model = found;
            if (there) return SIB_OK;
        }
    }
    a->options.model = NULL;
    return sib_fail(err, SIB_EARG, "no checkpoint: name one with -m DIR (the demo checkpoint is not installed)");
}

static void log_line(void *ctx, sib_log_level level, const char *line)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    (void)ctx;
    (void)fprintf(stderr, "sibyl: %s: %s\n", names[level], line);
}

static sib_log_level log_level(const char *name)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (size_t i = 0; name && i < SIB_COUNT(names); i++)
        if (strcmp(names[i], name) == 0) return (sib_log_level)i;
    return SIB_LOG_WARN;
}

sib_status cli_open(sib_engine **e, cli_args *a, sib_err *err)
{
    cli_progress progress;
    *e = NULL;
    SIB_TRY(cli_use_model(a, err));
    a->library_asked = true;
    sib_log_set(log_line, NULL, log_level(a->log_level));
    cli_progress_begin(&progress);
    a->options.progress = cli_progress_step;
    a->options.progress_ctx = &progress;
    sib_status s = sib_open(e, &a->options, err);
    cli_progress_end(&progress);
    a->options.progress = NULL;
    a->options.progress_ctx = NULL;
    return s;
}

/* ---- input ----------------------------------------------------------------------------------- */

sib_status cli_random_seed(cli_args *a, sib_err *err)
{
    uint64_t *seed = &a->request.seed;
    if (a->has_seed) return SIB_OK;
    if (getrandom(seed, sizeof *seed, 0) != (ssize_t)sizeof *seed)
        return sib_fail(err, SIB_EIO, "the system gives no random seed: use --seed");
    *seed >>= 11; /* at most 2^53: every JSON reader keeps it exactly */
    return SIB_OK;
}

static sib_status read_stdin(sib_buf *out, sib_err *err)
{
    for (;;) {
        if (!sib_buf_reserve(out, 65536)) return sib_nomem(err, "standard input");
        ssize_t n = read(STDIN_FILENO, out->p + out->n, 65536);
        if (n < 0 && cli_interrupted) return sib_fail(err, SIB_ECANCELLED, "interrupted");
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return sib_fail(err, SIB_EIO, "standard input: %s", strerror(errno));
        out->n += (size_t)n;
        out->p[out->n] = 0;
        if (n == 0) return SIB_OK;
        if (out->n > MAX_TEXT_BYTES)
            return sib_fail(err, SIB_EFORMAT, "standard input: larger than %zu bytes", MAX_TEXT_BYTES);
    }
}

sib_status cli_read_text(const char *z, const char *what, sib_buf *out, sib_err *err)
{
    bool from_stdin = !z || strcmp(z, "-") == 0;
    if (from_stdin)
        SIB_TRY(read_stdin(out, err));
    else
        sib_buf_addz(out, z);
    if (out->failed) return sib_nomem(err, what);
    for (size_t i = 0, len; i < out->n; i += len)
        if (sib_utf8_next(out->p + i, out->n - i, &len) == SIB_UTF8_BAD)
            return sib_fail(err, from_stdin ? SIB_EFORMAT : SIB_EARG, "%s is not valid UTF-8 at byte %zu",
                            from_stdin ? "standard input" : what, i);
    return SIB_OK;
}

sib_status cli_picture_add(cli_pictures *p, const char *path, sib_err *err)
{
    size_t n = (size_t)p->n + 1;
    sib_picture *v = realloc(p->v, n * sizeof *v);
    if (v) p->v = v;
    sib_buf *files = realloc(p->files, n * sizeof *files);
    if (files) p->files = files;
    char **names = realloc(p->names, n * sizeof *names);
    if (names) p->names = names;
    char *name = sib_strdup(path);
    if (!v || !files || !names || !name) {
        free(name);
        return sib_nomem(err, path);
    }
    sib_buf file = {0};
    sib_status s = sib_read_file(path, MAX_PICTURE_BYTES, &file, err);
    if (s != SIB_OK) {
        sib_buf_deinit(&file);
        free(name);
        return s;
    }
    files[p->n] = file;
    names[p->n] = name;
    v[p->n] = (sib_picture){file.p, file.n, name};
    p->n++;
    return SIB_OK;
}

void cli_pictures_deinit(cli_pictures *p)
{
    for (int i = 0; i < p->n; i++) {
        sib_buf_deinit(&p->files[i]);
        free(p->names[i]);
    }
    free(p->v);
    free(p->files);
    free(p->names);
    *p = (cli_pictures){0};
}

/* ---- messages --------------------------------------------------------------------------------- */

json_t *cli_message(const char *role, sib_str text, const char *const *images, int n_images)
{
    if (!n_images) return json_pack("{s:s,s:s%}", "role", role, "content", text.p, text.n);
    json_t *parts = json_array();
    int failed = !parts;
    for (int i = 0; i < n_images; i++)
        failed |= json_array_append_new(parts, json_pack("{s:s,s:s}", "type", "image", "path", images[i]));
    failed |= json_array_append_new(parts, json_pack("{s:s,s:s%}", "type", "text", "text", text.p, text.n));
    if (failed) {
        json_decref(parts);
        return NULL;
    }
    return json_pack("{s:s,s:o}", "role", role, "content", parts);
}

unsigned cli_chat_flags(const cli_args *a)
{
    return a->trust_content ? SIB_CHAT_TRUST : 0u;
}

sib_status cli_render(const sib_engine *e, json_t *messages, json_t *tools, char **text, size_t *text_bytes,
                      unsigned flags, int32_t **ids, size_t *n_ids, sib_err *err)
{
    json_t *context = json_pack("{s:O,s:O*}", "messages", messages, "tools", tools);
    char *dumped = context ? json_dumps(context, JSON_COMPACT) : NULL;
    json_decref(context);
    if (!dumped) return sib_nomem(err, "messages");
    sib_status s = sib_chat_tokens(e, dumped, strlen(dumped), flags, ids, n_ids, err);
    if (s == SIB_OK && text) s = sib_chat_prompt(e, dumped, strlen(dumped), text, text_bytes, err);
    free(dumped);
    return s;
}

/* ---- answer ------------------------------------------------------------------------------------ */

/* The loop that a caller of the library writes: prompt, then events until one says how it ended. */
static sib_status run(cli_answer *out, sib_session *s, const int32_t *ids, size_t n_ids, const cli_pictures *pictures,
                      const sib_request *r, cli_text_fn show, void *ctx, sib_err *err)
{
    sib_request request = *r;
    request.frames = out->frame != NULL;
    SIB_TRY(sib_session_prompt(s, ids, n_ids, pictures ? pictures->v : NULL, pictures ? pictures->n : 0, &request, err));
    while (out->finish == SIB_FINISH_NONE) {
        sib_token t = {0};
        if (cli_interrupted) sib_session_cancel(s); /* came while the prompt was computed */
        SIB_TRY(sib_session_next(s, &t, err));
        if (t.draft) out->frame(ctx, t.draft, t.draft_bytes, t.step, t.steps);
        if (t.id >= 0) sib_ids_add(&out->ids, t.id);
        sib_buf_add(&out->text, t.text ? t.text : "", t.text_bytes);
        if (out->ids.failed || out->text.failed) return sib_nomem(err, "answer");
        if (show && t.text_bytes) show(ctx, t.text, t.text_bytes);
        out->finish = t.finish;
        out->has_stop_token = t.finish == SIB_FINISH_STOP && t.id >= 0;
    }
    return SIB_OK;
}

sib_status cli_answer_run(cli_answer *out, sib_session *s, const int32_t *ids, size_t n_ids,
                          const cli_pictures *pictures, const sib_request *r, cli_text_fn show, void *ctx, sib_err *err)
{
    out->stats.struct_bytes = sizeof out->stats;
    cli_interrupt_target(s);
    sib_status status = run(out, s, ids, n_ids, pictures, r, show, ctx, err);
    cli_interrupt_target(NULL);
    if (status == SIB_ECANCELLED && cli_interrupted) {
        out->finish = SIB_FINISH_CANCELLED;
        status = SIB_OK;
    }
    if (status == SIB_OK) status = sib_session_stats(s, &out->stats);
    return status;
}

void cli_answer_deinit(cli_answer *a)
{
    sib_buf_deinit(&a->text);
    sib_ids_deinit(&a->ids);
}

const char *cli_finish_name(sib_finish f)
{
    switch (f) {
    case SIB_FINISH_STOP: return "stop";
    case SIB_FINISH_LENGTH: return "length";
    case SIB_FINISH_CANCELLED: return "cancelled";
    case SIB_FINISH_NONE: break;
    }
    return "none";
}

double cli_per_second(int tokens, double ms)
{
    return ms > 0 ? 1000.0 * tokens / ms : 0;
}

double cli_decode_rate(const sib_stats *s)
{
    /* The first token comes out of the prompt's own forward pass; a canvas has no such token. */
    int decoded = s->steps ? s->generated_tokens : s->generated_tokens - 1;
    return decoded > 0 ? cli_per_second(decoded, s->decode_ms) : 0;
}

void cli_describe(const sib_stats *s, sib_buf *out)
{
    int computed = s->prompt_tokens - s->cached_tokens;
    sib_buf_addf(out, "%d prompt tokens", s->prompt_tokens);
    if (s->cached_tokens) sib_buf_addf(out, " (%d reused)", s->cached_tokens);
    if (s->prefill_ms > 0) sib_buf_addf(out, " at %.1f/s", cli_per_second(computed, s->prefill_ms));
    sib_buf_addf(out, ", %d tokens", s->generated_tokens);
    if (s->decode_ms > 0) sib_buf_addf(out, " at %.1f/s", cli_decode_rate(s));
    if (s->proposed)
        sib_buf_addf(out, ", %d of %d drafted accepted, %.2f tokens a forward", s->accepted, s->proposed,
                     s->mean_emitted);
    if (s->steps) sib_buf_addf(out, ", %d denoising steps, %.1f tokens a step", s->steps, s->tokens_per_step);
}

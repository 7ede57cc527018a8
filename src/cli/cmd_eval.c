/* cli/cmd_eval.c - `sibyl eval`: questions with known answers, for the demo checkpoints and
 * for anyone's own.
 *
 * A line of --tasks: {"question", "answer", "system"?, "tools"?, "prompt"?, "id"?}; of
 * --pictures: {"file", "question", "answer"}, the file beside the list. Answers are greedy,
 * so that a run says the same twice; block diffusion draws by its generation_config. */
#include "cli/answer.h"
#include "cli/cmd.h"
#include "cli/json_out.h"
#include "cli/term.h"

#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILE_BYTES     ((size_t)256 << 20)
#define DEFAULT_MAX_TOKENS 1024 /* a wrong answer must not run to the end of the context */

/* Counts of one list of questions. */
typedef struct score {
    int asked, correct, compared, same_ids;
} score;

typedef struct eval {
    cli_args *args;
    sib_engine *engine;
    sib_session *session;
    sib_engine_info info;
    json_t *tasks, *pictures; /* arrays; NULL: not asked for */
    char *folder;             /* of the picture files */
    json_t *ids_root;         /* the file of --expect-ids */
    const json_t *ids;        /* its part for this checkpoint */
    score text, picture;
    json_t *wrong, *different, *mismatched;
    sib_stats total; /* sums */
    bool cut;        /* by Ctrl-C */
} eval;

/* ---- files ------------------------------------------------------------------------------------ */

static sib_status read_lines(json_t **out, const char *path, int limit, sib_err *err)
{
    sib_buf file = {0};
    json_t *lines = json_array();
    sib_status s = lines ? sib_read_file(path, MAX_FILE_BYTES, &file, err) : sib_nomem(err, path);
    int number = 0;
    for (size_t at = 0, n; s == SIB_OK && at < file.n && (!limit || (int)json_array_size(lines) < limit); at += n + 1) {
        const char *end = memchr(file.p + at, '\n', file.n - at);
        char name[PATH_MAX + 32];
        json_t *o = NULL;
        n = end ? (size_t)(end - file.p) - at : file.n - at;
        number++;
        if (strspn(file.p + at, " \t\r") >= n) continue;
        (void)snprintf(name, sizeof name, "%s line %d", path, number);
        s = sib_json_parse(&o, (sib_str){file.p + at, n}, name, err);
        if (s == SIB_OK && !json_is_object(o)) s = sib_fail(err, SIB_EFORMAT, "%s: not a JSON object", name);
        if (s == SIB_OK && json_array_append(lines, o) != 0) s = sib_nomem(err, path);
        json_decref(o);
    }
    if (s == SIB_OK && json_array_size(lines) == 0) s = sib_fail(err, SIB_EFORMAT, "%s: no questions in it", path);
    sib_buf_deinit(&file);
    if (s == SIB_OK)
        *out = lines;
    else
        json_decref(lines);
    return s;
}

static sib_status text_member(const json_t *task, const char *where, const char *key, const char **out, sib_err *err)
{
    *out = NULL;
    SIB_TRY(sib_json_str(task, where, key, out, err));
    return *out ? SIB_OK : sib_fail(err, SIB_EFORMAT, "%s: key \"%s\" is missing", where, key);
}

/* The expected ids stand under the name of the checkpoint's folder. */
static sib_status read_expected(eval *v, sib_err *err)
{
    const cli_args *a = v->args;
    char *real = realpath(a->options.model, NULL);
    char *path = real ? real : sib_strdup(a->options.model);
    if (!path) return sib_nomem(err, "--expect-ids");
    const char *name = basename(path);
    sib_status s = sib_json_read(&v->ids_root, a->expect_ids, MAX_FILE_BYTES, err);
    if (s == SIB_OK) v->ids = sib_json_get(v->ids_root, name);
    if (s == SIB_OK && !sib_json_get(v->ids, "tasks") && !sib_json_get(v->ids, "pictures"))
        s = sib_fail(err, SIB_EFORMAT, "%s: no expected token ids for \"%s\"", a->expect_ids, name);
    free(path);
    return s;
}

static sib_status read_files(eval *v, sib_err *err)
{
    cli_args *a = v->args;
    if (a->tasks) SIB_TRY(read_lines(&v->tasks, a->tasks, a->limit, err));
    if (a->pictures) {
        SIB_TRY(read_lines(&v->pictures, a->pictures, a->limit, err));
        char *path = sib_strdup(a->pictures);
        v->folder = path ? sib_strdup(dirname(path)) : NULL;
        free(path);
        if (!v->folder) return sib_nomem(err, a->pictures);
    }
    return a->expect_ids ? read_expected(v, err) : SIB_OK;
}

/* ---- one question ------------------------------------------------------------------------------ */

/* What one line of a file asks and what came of it. */
typedef struct question {
    const json_t *task;
    const char *file, *where; /* file: NULL for a text task; where: for messages */
    int index;
    const char *question, *answer;
    json_t *messages;
    cli_pictures pictures;
    int32_t *ids;
    size_t n_ids;
    cli_answer result;
    char *got;
    size_t got_bytes;
} question;

static void question_deinit(question *q)
{
    json_decref(q->messages);
    cli_pictures_deinit(&q->pictures);
    sib_free(q->ids);
    sib_free(q->got);
    cli_answer_deinit(&q->result);
}

static sib_status add(json_t *list, json_t *o, sib_err *err)
{
    return json_array_append_new(list, o) == 0 ? SIB_OK : sib_nomem(err, "results");
}

static json_t *name_of(const question *q)
{
    json_t *id = json_object_get(q->task, "id");
    if (q->file) return json_string(q->file);
    return json_is_integer(id) ? json_incref(id) : json_integer(q->index);
}

static sib_status make_prompt(eval *v, question *q, sib_err *err)
{
    const char *system = NULL, *expected = NULL;
    char *text = NULL, *path = NULL;
    size_t n = 0;
    SIB_TRY(text_member(q->task, q->where, "question", &q->question, err));
    SIB_TRY(text_member(q->task, q->where, "answer", &q->answer, err));
    SIB_TRY(sib_json_str(q->task, q->where, "system", &system, err));
    SIB_TRY(sib_json_str(q->task, q->where, "prompt", &expected, err));
    if (q->file) {
        path = q->file[0] == '/' ? sib_strdup(q->file) : sib_path_join(v->folder, q->file);
        sib_status s = path ? cli_picture_add(&q->pictures, path, err) : sib_nomem(err, q->file);
        if (s != SIB_OK) {
            free(path);
            return s;
        }
    }
    q->messages = json_array();
    int failed = !q->messages;
    if (system && *system)
        failed |= json_array_append_new(q->messages, cli_message("system", sib_str_of(system), NULL, 0));
    const char *image = path;
    failed |= json_array_append_new(q->messages, cli_message("user", sib_str_of(q->question), &image, q->file ? 1 : 0));
    sib_status s =
        failed ? sib_nomem(err, q->where)
               : cli_render(v->engine, q->messages, sib_json_get(q->task, "tools"), &text, &n, cli_chat_flags(v->args), &q->ids, &q->n_ids, err);
    if (s == SIB_OK && expected && !sib_str_is((sib_str){text, n}, expected))
        s = add(v->mismatched,
                json_pack("{s:o,s:s,s:o}", "id", name_of(q), "expected", expected, "got", cli_json_text(text, n)), err);
    sib_free(text);
    free(path);
    return s;
}

/* The tokens against --expect-ids: tasks by position in its list, pictures by file. */
static sib_status compare_ids(eval *v, const question *q, score *sc, sib_err *err)
{
    const json_t *id = json_object_get(q->task, "id");
    size_t place =
        json_is_integer(id) && json_integer_value(id) >= 0 ? (size_t)json_integer_value(id) : (size_t)q->index;
    const json_t *part = sib_json_get(v->ids, q->file ? "pictures" : "tasks");
    json_t *expected = q->file ? sib_json_get(part, q->file) : json_array_get(part, place);
    if (!json_is_array(expected)) return SIB_OK; /* nothing known about this one */
    const sib_ids *got = &q->result.ids;
    size_t n = json_array_size(expected), at = 0;
    while (at < n && at < got->n && json_integer_value(json_array_get(expected, at)) == got->v[at]) at++;
    sc->compared++;
    if (at == n && at == got->n) {
        sc->same_ids++;
        return SIB_OK;
    }
    return add(v->different,
               json_pack("{s:o,s:I,s:O,s:o}", "id", name_of(q), "first_difference", (json_int_t)at, "expected",
                         expected, "got", cli_json_ids(got->v, got->n)),
               err);
}

static void add_stats(sib_stats *total, const sib_stats *s)
{
    total->prompt_tokens += s->prompt_tokens;
    total->cached_tokens += s->cached_tokens;
    total->generated_tokens += s->generated_tokens;
    total->prefill_ms += s->prefill_ms;
    total->decode_ms += s->decode_ms;
    total->rounds += s->rounds;
    total->proposed += s->proposed;
    total->accepted += s->accepted;
    for (int i = 0; i < SIB_MAX_DRAFT; i++) {
        total->accepted_by_position[i] += s->accepted_by_position[i];
        total->proposed_by_position[i] += s->proposed_by_position[i];
    }
    total->canvases += s->canvases;
    total->steps += s->steps;
    /* A round emits what it accepts and one token more. */
    total->mean_emitted = total->rounds ? 1.0 + (double)total->accepted / total->rounds : 0;
    total->tokens_per_step = total->steps ? (double)total->generated_tokens / total->steps : 0;
}

static sib_status ask(eval *v, question *q, score *sc, sib_err *err)
{
    SIB_TRY(make_prompt(v, q, err));
    SIB_TRY(cli_answer_run(&q->result, v->session, q->ids, q->n_ids, &q->pictures, &v->args->request, NULL, NULL, err));
    if (q->result.finish == SIB_FINISH_CANCELLED) {
        v->cut = true;
        return SIB_OK;
    }
    const sib_ids *ids = &q->result.ids;
    size_t kept = ids->n - (q->result.has_stop_token ? 1 : 0);
    SIB_TRY(sib_detokenize(v->engine, ids->v, kept, SIB_DETOKENIZE_SPECIAL, &q->got, &q->got_bytes, err));
    add_stats(&v->total, &q->result.stats);
    sc->asked++;
    if (v->ids) SIB_TRY(compare_ids(v, q, sc, err));
    if (sib_str_is((sib_str){q->got, q->got_bytes}, q->answer)) {
        sc->correct++;
        return SIB_OK;
    }
    return add(v->wrong,
               json_pack("{s:o,s:s,s:s,s:o}", "id", name_of(q), "question", q->question, "expected", q->answer, "got",
                         cli_json_text(q->got, q->got_bytes)),
               err);
}

static sib_status ask_all(eval *v, const json_t *list, const char *path, bool with_pictures, score *sc, sib_err *err)
{
    cli_progress progress;
    sib_status s = SIB_OK;
    cli_progress_begin(&progress);
    for (size_t i = 0; s == SIB_OK && !v->cut && i < json_array_size(list); i++) {
        char where[PATH_MAX + 32];
        (void)snprintf(where, sizeof where, "%s: question %zu", path, i + 1);
        question q = {.task = json_array_get(list, i), .index = (int)i, .where = where};
        cli_progress_count(&progress, with_pictures ? "pictures" : "tasks", (int)i, (int)json_array_size(list));
        if (with_pictures) s = text_member(q.task, where, "file", &q.file, err);
        if (s == SIB_OK && (s = ask(v, &q, sc, err)) != SIB_OK && !sib_starts_with(err->message, path))
            s = sib_within(err, s, "%s", where);
        question_deinit(&q);
    }
    cli_progress_end(&progress);
    return s;
}

/* ---- results ------------------------------------------------------------------------------------ */

static double share(int part, int all)
{
    return all ? (double)part / all : 0;
}

static json_t *score_json(const score *s, bool with_ids)
{
    json_t *o = json_pack("{s:i,s:i,s:o}", "tasks", s->asked, "correct", s->correct, "accuracy",
                          cli_json_real(share(s->correct, s->asked)));
    if (o && with_ids &&
        !(cli_json_set(o, "ids_compared", json_integer(s->compared)) &&
          cli_json_set(o, "ids_equal", json_integer(s->same_ids)))) {
        json_decref(o);
        return NULL;
    }
    return o;
}

static sib_status print_json(const eval *v, sib_err *err)
{
    score all = {v->text.asked + v->picture.asked, v->text.correct + v->picture.correct,
                 v->text.compared + v->picture.compared, v->text.same_ids + v->picture.same_ids};
    json_t *o = score_json(&all, v->ids);
    bool ok = o != NULL;
    if (v->tasks && v->pictures)
        ok = ok && cli_json_set(o, "text", score_json(&v->text, v->ids)) &&
             cli_json_set(o, "pictures", score_json(&v->picture, v->ids));
    if (v->info.drafter)
        ok = ok && cli_json_set(o, "mean_emitted", cli_json_real(v->total.mean_emitted)) &&
             cli_json_set(o, "speculation", cli_json_speculation(&v->total, v->info.drafter));
    if (v->info.diffusion)
        ok = ok && cli_json_set(o, "tokens_per_step", cli_json_real(v->total.tokens_per_step)) &&
             cli_json_set(o, "diffusion", cli_json_diffusion(&v->total));
    ok = ok && cli_json_set(o, "wrong", json_incref(v->wrong)) &&
         cli_json_set(o, "prompt_mismatches", json_incref(v->mismatched));
    if (v->ids) ok = ok && cli_json_set(o, "ids_different", json_incref(v->different));
    if (!ok) {
        json_decref(o);
        return sib_nomem(err, "JSON output");
    }
    return cli_json_print(o, err);
}

static void print_score(const char *name, const score *s, bool with_ids)
{
    (void)printf("%-9s %d of %d correct (%.1f %%)", name, s->correct, s->asked, 100 * share(s->correct, s->asked));
    if (with_ids) (void)printf(", token ids equal in %d of %d", s->same_ids, s->compared);
    (void)putchar('\n');
}

static void print_entries(const char *title, const json_t *list)
{
    if (!json_array_size(list)) return;
    (void)printf("\n%s%s%s\n", cli_style_on(stdout, CLI_BOLD), title, cli_style_on(stdout, CLI_PLAIN));
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *o = json_array_get(list, i), *value;
        const char *key;
        json_object_foreach(o, key, value)
        {
            char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
            (void)printf("%s%s ", strcmp(key, "id") == 0 ? "  " : "    ", key);
            if (text) cli_put_text(stdout, text, strlen(text));
            (void)putchar('\n');
            free(text);
        }
    }
}

static void print_text(const eval *v)
{
    if (v->tasks) print_score("tasks", &v->text, v->ids);
    if (v->pictures) print_score("pictures", &v->picture, v->ids);
    sib_buf line = {0};
    cli_describe(&v->total, &line);
    if (!line.failed) (void)printf("%s\n", line.p);
    sib_buf_deinit(&line);
    print_entries("wrong answers", v->wrong);
    print_entries("other token ids", v->different);
    print_entries("prompts that the template does not reproduce", v->mismatched);
}

static sib_status evaluate(eval *v, sib_err *err)
{
    cli_args *a = v->args;
    v->wrong = json_array();
    v->different = json_array();
    v->mismatched = json_array();
    if (!v->wrong || !v->different || !v->mismatched) return sib_nomem(err, "results");
    SIB_TRY(cli_use_model(a, err));
    SIB_TRY(read_files(v, err));
    SIB_TRY(cli_open(&v->engine, a, err));
    v->info.struct_bytes = sizeof v->info;
    SIB_TRY(sib_engine_info_get(v->engine, &v->info));
    if (!v->info.diffusion) a->request.temperature = 0;
    if (a->request.max_tokens < 0) a->request.max_tokens = DEFAULT_MAX_TOKENS;
    a->request.keep_special = true;
    SIB_TRY(sib_session_new(&v->session, v->engine, err));
    if (v->tasks) SIB_TRY(ask_all(v, v->tasks, a->tasks, false, &v->text, err));
    if (v->pictures && !v->cut) SIB_TRY(ask_all(v, v->pictures, a->pictures, true, &v->picture, err));
    if (a->json) return print_json(v, err);
    print_text(v);
    return SIB_OK;
}

int cmd_eval(cli_args *a)
{
    eval v = {.args = a};
    sib_err err = {0};
    if (!a->tasks && !a->pictures) return cli_usage("nothing to ask: give --tasks FILE or --pictures FILE");
    cli_catch_interrupts(true);
    sib_status s = evaluate(&v, &err);
    int rc = cli_exit(s, &err, !a->library_asked);
    if (rc == CLI_OK && v.cut) rc = CLI_INTERRUPTED;
    if (rc == CLI_OK && json_array_size(v.mismatched)) rc = CLI_FAILURE;
    sib_session_free(v.session);
    sib_close(v.engine);
    json_decref(v.tasks);
    json_decref(v.pictures);
    json_decref(v.ids_root);
    json_decref(v.wrong);
    json_decref(v.different);
    json_decref(v.mismatched);
    free(v.folder);
    return rc;
}

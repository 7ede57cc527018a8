/* tests/unit/speculation_rig.h - answers of the demo checkpoint with and without drafters, for the stream-equality
 * tests here (a few tasks) and in tests/property (all of them). */
#ifndef SIB_TESTS_SPECULATION_RIG_H
#define SIB_TESTS_SPECULATION_RIG_H

#include "base/json.h"
#include "base/rng.h"
#include "engine/engine_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_ANSWER 96

typedef struct answer {
    int32_t ids[MAX_ANSWER];
    int n;
} answer;

typedef struct task_list {
    char **prompts;
    int n;
} task_list;

static inline task_list tasks_read(int every)
{
    task_list t = {0};
    sib_buf text = {0};
    sib_err err;
    if (sib_read_file("demo/tasks.jsonl", 1 << 20, &text, &err) != SIB_OK) fail_msg("%s", err.message);
    t.prompts = calloc(512, sizeof *t.prompts);
    int line = 0;
    for (char *at = strtok(text.p, "\n"); at && t.n < 512; at = strtok(NULL, "\n"), line++) {
        if (line % every) continue;
        json_t *o = json_loads(at, 0, NULL);
        t.prompts[t.n++] = strdup(json_string_value(json_object_get(o, "prompt")));
        json_decref(o);
    }
    sib_buf_deinit(&text);
    return t;
}

static inline void tasks_free(task_list *t)
{
    for (int i = 0; i < t->n; i++) free(t->prompts[i]);
    free(t->prompts);
}

static inline sib_engine *demo_open(const char *numerics, int threads, const char *draft)
{
    sib_options o;
    sib_engine *e = NULL;
    sib_err err = {0};
    sib_options_init(&o);
    o.model = "demo/gemma4-demo";
    o.numerics = numerics;
    o.threads = threads;
    o.draft = draft;
    o.n_ctx = 512;
    if (sib_open(&e, &o, &err) != SIB_OK) fail_msg("%s", err.message);
    return e;
}

/* One answer; stats may be NULL. A prompt is text with its special tokens. */
static inline answer ask(sib_engine *e, const char *prompt, double temperature, int draft_n, const char *policy, sib_stats *stats)
{
    sib_session *s;
    sib_request r;
    sib_token t = {0};
    sib_err err = {0};
    int32_t *ids;
    size_t n;
    answer a = {.n = 0};
    sib_request_init(&r);
    r.temperature = temperature;
    r.seed = 17;
    r.max_tokens = MAX_ANSWER;
    r.draft_n = draft_n;
    r.draft_policy = policy;
    if (sib_tokenize(e, prompt, strlen(prompt), 0, &ids, &n, &err) != SIB_OK || sib_session_new(&s, e, &err) != SIB_OK ||
        sib_session_prompt(s, ids, n, NULL, 0, &r, &err) != SIB_OK)
        fail_msg("%s", err.message);
    while (t.finish == SIB_FINISH_NONE) {
        if (sib_session_next(s, &t, &err) != SIB_OK) fail_msg("%s", err.message);
        if (t.id >= 0 && a.n < MAX_ANSWER) a.ids[a.n++] = t.id;
    }
    if (stats) {
        stats->struct_bytes = sizeof *stats;
        assert_int_equal(sib_session_stats(s, stats), SIB_OK);
    }
    sib_session_free(s);
    sib_free(ids);
    return a;
}

static inline void expect_same(const answer *want, const answer *got, const char *what)
{
    int n = want->n < got->n ? want->n : got->n;
    for (int i = 0; i < n; i++)
        if (want->ids[i] != got->ids[i]) fail_msg("%s: token %d is %d, without drafts %d", what, i, got->ids[i], want->ids[i]);
    if (want->n != got->n) fail_msg("%s: %d tokens, without drafts %d", what, got->n, want->n);
}

#endif

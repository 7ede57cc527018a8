/* tests/unit/sched_test.c - the scheduler (sched/sched.h) on the demo checkpoint: answers of many at once equal those alone, prefixes are
 * reused, cancelling at every step, a full queue, and a round that fails ends its requests only. */
#include "sched/sched.h"

#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_IDS 64

static sib_engine *engine;

typedef struct answer {
    sib_job job;
    sib_ids prompt;
    sib_sampler_params sampler;
    sib_gen_request request;
    int32_t ids[MAX_IDS];
    int n, stop_after; /* token() says stop at this many; 0: never */
    int cached;
    atomic_bool ended;
    sib_status status;
    sib_finish finish;
    int generated;
} answer;

static void on_started(sib_job *j, int prompt_tokens, int cached_tokens)
{
    answer *a = (answer *)j;
    assert(prompt_tokens == (int)a->prompt.n);
    a->cached = cached_tokens;
}

static bool on_token(sib_job *j, const sib_token *t, const sib_sample *s)
{
    answer *a = (answer *)j;
    if (t->id >= 0 && a->n < MAX_IDS) a->ids[a->n++] = t->id;
    if (s) assert(s->id == t->id);
    return a->stop_after == 0 || a->n < a->stop_after;
}

static void on_ended(sib_job *j, const sib_job_report *r)
{
    answer *a = (answer *)j;
    a->status = r->status;
    a->finish = r->finish;
    a->generated = r->generated_tokens;
    atomic_store(&a->ended, true);
}

static void prepare(answer *a, const char *text, double temperature, uint64_t seed, int max_tokens)
{
    sib_buf prompt = {0};
    sib_err err = {0};
    *a = (answer){.sampler = sib_sampler_defaults()};
    sib_buf_addf(&prompt, "<bos><|turn>user\n%s<turn|>\n<|turn>model\n", text);
    if (sib_tokenizer_encode(engine->tokenizer, sib_buf_view(&prompt), 0, &a->prompt, &err) != SIB_OK) fail_msg("%s", err.message);
    sib_buf_deinit(&prompt);
    a->sampler.temperature = temperature;
    a->sampler.seed = seed;
    a->sampler.top_logprobs = 0;
    a->request = (sib_gen_request){.sampler = &a->sampler, .eos = engine->defaults.eos, .n_eos = (size_t)engine->defaults.n_eos, .max_tokens = (uint64_t)max_tokens, .policy = SIB_POLICY_FIXED};
    a->job = (sib_job){.ids = a->prompt.v, .n_ids = a->prompt.n, .request = &a->request, .started = on_started, .token = on_token, .ended = on_ended};
}

static void submit(sib_sched *s, answer *a)
{
    sib_job *j = &a->job;
    bool full;
    sib_err err = {0};
    if (sib_sched_submit(s, &j, 1, &full, &err) != SIB_OK) fail_msg("%s", err.message);
}

static void wait_for(answer *a)
{
    for (int i = 0; i < 20000 && !atomic_load(&a->ended); i++) usleep(1000);
    assert_true(atomic_load(&a->ended));
}

static sib_sched *start(int parallel, int queue)
{
    sib_sched *s;
    sib_err err = {0};
    if (sib_sched_new(&s, engine, &(sib_sched_options){.parallel = parallel, .queue = queue}, &err) != SIB_OK) fail_msg("%s", err.message);
    return s;
}

static const char *const questions[] = {"What day comes before Thursday?", "Add 12 and 30.", "Hello!", "Count to five.", "Sort: pear, apple, fig.", "Say again: one two three four five six seven."};
#define N_QUESTIONS ((int)SIB_COUNT(questions))

static void prepare_nth(answer *a, int i)
{
    prepare(a, questions[i % N_QUESTIONS], i % 3 == 0 ? 0 : 1.3, (uint64_t)i, 10 + i % 20);
}

static void many_at_once_equal_each_alone(void **state)
{
    (void)state;
    enum { N = 24 };
    static answer alone[N], together[N];
    sib_sched *s = start(1, 0);
    for (int i = 0; i < N; i++) {
        prepare_nth(&alone[i], i);
        alone[i].job.no_reuse = true;
        submit(s, &alone[i]);
        wait_for(&alone[i]);
        assert_int_equal(alone[i].status, SIB_OK);
        assert_int_equal(alone[i].generated, alone[i].n);
    }
    sib_sched_free(s);
    s = start(4, N);
    for (int i = 0; i < N; i++) {
        prepare_nth(&together[i], i);
        submit(s, &together[i]);
    }
    for (int i = 0; i < N; i++) {
        wait_for(&together[i]);
        assert_int_equal(together[i].n, alone[i].n);
        assert_memory_equal(together[i].ids, alone[i].ids, (size_t)alone[i].n * sizeof *alone[i].ids);
        assert_int_equal(together[i].finish, alone[i].finish);
        sib_ids_deinit(&together[i].prompt);
        sib_ids_deinit(&alone[i].prompt);
    }
    sib_sched_stats stats;
    sib_sched_stats_get(s, &stats);
    assert_int_equal(stats.running + stats.waiting, 0);
    sib_sched_free(s);
}

static void a_slot_with_the_prefix_is_chosen(void **state)
{
    (void)state;
    static answer a[4];
    sib_sched *s = start(2, 2);
    prepare(&a[0], questions[0], 0, 0, 4);
    prepare(&a[1], questions[4], 0, 0, 4);
    prepare(&a[2], questions[0], 0, 0, 4);
    prepare(&a[3], questions[4], 0, 0, 4);
    for (int i = 0; i < 4; i++) {
        submit(s, &a[i]);
        wait_for(&a[i]);
    }
    assert_int_equal(a[2].cached, a[0].prompt.n - 1);
    assert_int_equal(a[3].cached, a[1].prompt.n - 1); /* the second question took the other slot */
    for (int i = 0; i < 4; i++) sib_ids_deinit(&a[i].prompt);
    sib_sched_free(s);
}

static void token_can_end_the_answer(void **state)
{
    (void)state;
    static answer a;
    sib_sched *s = start(1, 0);
    for (int n = 1; n < 6; n++) {
        prepare(&a, questions[0], 0, 0, 30);
        a.stop_after = n;
        submit(s, &a);
        wait_for(&a);
        assert_int_equal(a.n, n); /* nothing behind it, not even of the same round */
        assert_int_equal(a.generated, n);
        assert_int_equal(a.finish, SIB_FINISH_STOP);
        sib_ids_deinit(&a.prompt);
    }
    sib_sched_free(s);
}

static void cancelling_and_a_full_queue(void **state)
{
    (void)state;
    static answer a[3];
    sib_sched *s = start(1, 1);
    bool full;
    sib_err err = {0};
    for (int i = 0; i < 3; i++) {
        prepare(&a[i], questions[3], 1, 1, 400);
        a[i].request.n_eos = 0;
    }
    submit(s, &a[0]);
    submit(s, &a[1]);
    sib_job *j = &a[2].job;
    assert_int_equal(sib_sched_submit(s, &j, 1, &full, &err), SIB_ECAPACITY);
    assert_true(full);
    sib_sched_cancel(s, &a[1].job); /* while it waits */
    wait_for(&a[1]);
    assert_int_equal(a[1].status, SIB_ECANCELLED);
    assert_int_equal(a[1].n, 0);
    submit(s, &a[2]);
    sib_sched_cancel(s, &a[0].job); /* while it runs */
    wait_for(&a[0]);
    assert_int_equal(a[0].status, SIB_ECANCELLED);
    sib_sched_free(s); /* the third one is running or waiting */
    assert_true(atomic_load(&a[2].ended));
    assert_int_equal(a[2].status, SIB_ECANCELLED);
    for (int i = 0; i < 3; i++) sib_ids_deinit(&a[i].prompt);
}

static void what_never_fits_is_refused(void **state)
{
    (void)state;
    static answer a;
    sib_sched *s = start(1, 1);
    bool full;
    sib_err err = {0};
    prepare(&a, questions[0], 0, 0, 4);
    sib_job *j = &a.job;
    size_t n = a.prompt.n;
    while ((int)a.prompt.n < engine->model->facts.n_ctx) sib_ids_add(&a.prompt, a.prompt.v[n - 1]);
    a.job.ids = a.prompt.v;
    a.job.n_ids = a.prompt.n;
    assert_int_equal(sib_sched_submit(s, &j, 1, &full, &err), SIB_ECAPACITY);
    assert_false(full);
    assert_non_null(strstr(err.message, "512"));
    a.job.n_ids = 0;
    assert_int_equal(sib_sched_submit(s, &j, 1, &full, &err), SIB_EARG);
    sib_ids_deinit(&a.prompt);
    sib_sched_free(s);
}

/* The model's forward, made to fail. */
static sib_model_ops broken_ops;
static const sib_model_ops *real_ops;
static atomic_int fail_after;

static sib_status broken_forward(sib_model *m, const sib_part *parts, int n, sib_forward_out *out, sib_err *err)
{
    if (atomic_fetch_sub(&fail_after, 1) == 0) return sib_fail(err, SIB_EDEVICE, "the device is on fire");
    return real_ops->forward(m, parts, n, out, err);
}

static void a_failed_round_ends_its_requests_only(void **state)
{
    (void)state;
    static answer a[3], good;
    real_ops = engine->model->ops;
    broken_ops = *real_ops;
    broken_ops.forward = broken_forward;
    atomic_store(&fail_after, 2);
    engine->model->ops = &broken_ops;
    sib_sched *s = start(2, 4);
    for (int i = 0; i < 3; i++) {
        prepare(&a[i], questions[i], 0, 0, 12);
        submit(s, &a[i]);
    }
    int failed = 0;
    for (int i = 0; i < 3; i++) {
        wait_for(&a[i]);
        failed += a[i].status == SIB_EDEVICE;
        assert_true(a[i].status == SIB_OK || a[i].status == SIB_EDEVICE);
    }
    assert_true(failed >= 1 && failed <= 2);
    prepare(&good, questions[0], 0, 0, 12);
    submit(s, &good);
    wait_for(&good);
    assert_int_equal(good.status, SIB_OK);
    assert_true(good.n > 3);
    sib_sched_free(s);
    engine->model->ops = real_ops;
    for (int i = 0; i < 3; i++) sib_ids_deinit(&a[i].prompt);
    sib_ids_deinit(&good.prompt);
}

static int setup(void **state)
{
    (void)state;
    sib_options o;
    sib_err err = {0};
    sib_options_init(&o);
    o.model = "demo/gemma4-demo";
    o.draft = "demo/gemma4-demo-assistant";
    o.n_ctx = 512;
    o.n_sessions = 4;
    o.threads = 1;
    o.chunk = 64;
    if (sib_open(&engine, &o, &err) == SIB_OK) return 0;
    print_error("%s\n", err.message);
    return -1;
}

static int teardown(void **state)
{
    (void)state;
    sib_close(engine);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_at_once_equal_each_alone), cmocka_unit_test(a_slot_with_the_prefix_is_chosen), cmocka_unit_test(token_can_end_the_answer),
        cmocka_unit_test(cancelling_and_a_full_queue), cmocka_unit_test(what_never_fits_is_refused), cmocka_unit_test(a_failed_round_ends_its_requests_only),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

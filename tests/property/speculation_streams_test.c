/* tests/property/speculation_streams_test.c - all 200 demo tasks with the assistant: the same tokens as without, greedy and
 * sampled, for draft lengths 1 to 8, one and two threads, modes bf16 and int8; and the acceptance that was measured.
 * All of them when SIBYL_LONG is set (make property); else every 40th task at a few depths. */
#include "../unit/speculation_rig.h"

static bool all_of_them(void)
{
    return getenv("SIBYL_LONG") != NULL;
}

static void every_task_every_depth(void **state)
{
    (void)state;
    static const char *const modes[] = {"bf16", "int8"};
    task_list t = tasks_read(all_of_them() ? 1 : 40);
    for (size_t m = 0; m < SIB_COUNT(modes); m++)
        for (int sampled = 0; sampled < 2; sampled++) {
            answer *want = calloc((size_t)t.n, sizeof *want);
            sib_engine *plain = demo_open(modes[m], 1, NULL);
            for (int i = 0; i < t.n; i++) want[i] = ask(plain, t.prompts[i], sampled ? 0.8 : 0, 0, NULL, NULL);
            sib_close(plain);
            for (int threads = 1; threads <= 2; threads++) {
                sib_engine *e = demo_open(modes[m], threads, "demo/gemma4-demo-assistant");
                for (int depth = 1; depth <= 8; depth += all_of_them() ? 1 : 3)
                    for (int i = 0; i < t.n; i++) {
                        char what[128];
                        answer got = ask(e, t.prompts[i], sampled ? 0.8 : 0, depth, "fixed", NULL);
                        (void)snprintf(what, sizeof what, "%s threads %d depth %d sampled %d task %d", modes[m], threads, depth, sampled, i);
                        expect_same(&want[i], &got, what);
                    }
                sib_close(e);
            }
            free(want);
        }
    tasks_free(&t);
}

static void acceptance_of_the_assistant(void **state)
{
    (void)state;
    static const char *const modes[] = {"f32", "bf16"};
    if (!all_of_them()) return; /* the figure is one of all 200 tasks */
    task_list t = tasks_read(1);
    for (size_t m = 0; m < SIB_COUNT(modes); m++) {
        sib_engine *e = demo_open(modes[m], 2, "demo/gemma4-demo-assistant");
        long rounds = 0, accepted = 0;
        for (int i = 0; i < t.n; i++) {
            sib_stats s;
            (void)ask(e, t.prompts[i], 0, 4, "fixed", &s);
            rounds += s.rounds;
            accepted += s.accepted;
        }
        double rate = (double)accepted / (double)rounds;
        printf("%s: %.3f drafts accepted a round, %.3f tokens emitted\n", modes[m], rate, rate + 1);
        assert_true(rate >= 2.6 && rate <= 2.8);
        sib_close(e);
    }
    tasks_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_task_every_depth), cmocka_unit_test(acceptance_of_the_assistant)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

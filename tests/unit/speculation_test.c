/* tests/unit/speculation_test.c - drafting changes speed, never a token: with the demo's assistant, and with
 * doubles that are always right, always wrong, random, out of range, or that guess the end in the middle. */
#include "speculation_rig.h"

#include "spec/policy.h"

/* ---- the assistant ------------------------------------------------------------------------ */

static void same_stream_with_assistant(void **state)
{
    (void)state;
    static const char *const modes[] = {"bf16", "int8"};
    static const int depths[] = {1, 4, 8};
    task_list t = tasks_read(40);
    for (size_t m = 0; m < SIB_COUNT(modes); m++)
        for (int sampled = 0; sampled < 2; sampled++) {
            answer *want = calloc((size_t)t.n, sizeof *want);
            sib_engine *plain = demo_open(modes[m], 1, NULL);
            for (int i = 0; i < t.n; i++) want[i] = ask(plain, t.prompts[i], sampled ? 0.8 : 0, 0, NULL, NULL);
            sib_close(plain);
            for (int threads = 1; threads <= 2; threads++) {
                sib_engine *e = demo_open(modes[m], threads, "demo/gemma4-demo-assistant");
                for (size_t d = 0; d < SIB_COUNT(depths); d++)
                    for (int i = 0; i < t.n; i++) {
                        char what[128];
                        sib_stats stats;
                        answer got = ask(e, t.prompts[i], sampled ? 0.8 : 0, depths[d], "fixed", &stats);
                        (void)snprintf(what, sizeof what, "%s threads %d depth %d sampled %d task %d", modes[m], threads, depths[d], sampled, i * 40);
                        expect_same(&want[i], &got, what);
                        if (want[i].n > 2) assert_true(stats.proposed > 0);
                    }
                sib_close(e);
            }
            free(want);
        }
    tasks_free(&t);
}

static void assistant_is_accepted(void **state)
{
    (void)state;
    task_list t = tasks_read(10);
    sib_engine *e = demo_open("bf16", 2, "demo/gemma4-demo-assistant");
    int rounds = 0, accepted = 0;
    for (int i = 0; i < t.n; i++) {
        sib_stats s;
        (void)ask(e, t.prompts[i], 0, 4, "fixed", &s);
        rounds += s.rounds;
        accepted += s.accepted;
        for (int p = 1; p < 4; p++) assert_true(s.accepted_by_position[p] <= s.accepted_by_position[p - 1]);
    }
    sib_close(e);
    tasks_free(&t);
    /* 2.68 over all 200 tasks; this sample is 20 of them. */
    if (accepted < rounds * 2) fail_msg("%d drafts accepted in %d rounds", accepted, rounds);
}

static void auto_policy_keeps_the_stream(void **state)
{
    (void)state;
    task_list t = tasks_read(20);
    sib_engine *plain = demo_open("bf16", 1, NULL), *e = demo_open("bf16", 1, "demo/gemma4-demo-assistant");
    for (int i = 0; i < t.n; i++) {
        answer want = ask(plain, t.prompts[i], 0, 0, NULL, NULL), got = ask(e, t.prompts[i], 0, 0, "auto", NULL);
        expect_same(&want, &got, "auto");
    }
    sib_close(plain);
    sib_close(e);
    tasks_free(&t);
}

/* ---- doubles ----------------------------------------------------------------------------------- */

typedef enum script { RIGHT, WRONG, RANDOM, OUT_OF_RANGE, ENDS, SILENT, SCRIPTS } script;
static const char *const script_names[] = {"right", "wrong", "random", "out of range", "ends", "silent"};

typedef struct double_drafter {
    sib_drafter base;
    script kind;
    const answer *truth; /* of the prompt that is being answered */
    int prompt_tokens, n_vocab, settled;
    uint64_t seed;
} double_drafter;

struct sib_draft_state {
    int length; /* rows told so far */
};

static sib_status double_state_new(sib_drafter *d, sib_draft_state **out, sib_err *err)
{
    (void)d, (void)err;
    *out = calloc(1, sizeof **out);
    return *out ? SIB_OK : SIB_ENOMEM;
}

static void double_state_free(sib_drafter *d, sib_draft_state *s)
{
    (void)d;
    free(s);
}

static sib_status double_truncate(sib_drafter *d, sib_draft_state *s, int length, sib_err *err)
{
    (void)d, (void)err;
    s->length = length;
    return SIB_OK;
}

static sib_status double_propose(sib_drafter *d, sib_propose *lanes, int n, sib_err *err)
{
    double_drafter *x = (double_drafter *)d;
    (void)err;
    for (int i = 0; i < n; i++) {
        assert_int_equal(lanes[i].state->length, lanes[i].position); /* every committed row was settled, once */
        int said = lanes[i].position + 1 - x->prompt_tokens;         /* answer tokens decided, pending included */
        lanes[i].n = x->kind == SILENT ? 0 : lanes[i].max;
        if (x->kind == RIGHT && lanes[i].n > x->truth->n - said) lanes[i].n = x->truth->n - said; /* it knows the end too */
        for (int k = 0; k < lanes[i].n; k++) {
            int32_t right = said + k < x->truth->n ? x->truth->ids[said + k] : 0;
            switch (x->kind) {
            case RIGHT: lanes[i].ids[k] = right; break;
            case WRONG: lanes[i].ids[k] = (right + 1 + k) % x->n_vocab; break;
            case RANDOM: lanes[i].ids[k] = sib_splitmix64(&x->seed) % 2 ? right : (int32_t)(sib_splitmix64(&x->seed) % (uint64_t)x->n_vocab); break;
            case OUT_OF_RANGE: lanes[i].ids[k] = k % 2 ? -7 : k == 0 ? right : x->n_vocab + 5; break;
            default: lanes[i].ids[k] = k == lanes[i].n / 2 ? 6 : right; break; /* <turn|> in the middle */
            }
        }
    }
    return SIB_OK;
}

static sib_status double_settle(sib_drafter *d, const sib_settle *lanes, int n, sib_err *err)
{
    (void)err;
    for (int i = 0; i < n; i++) {
        assert_int_equal(lanes[i].pos0, lanes[i].state->length);
        assert_non_null(lanes[i].hidden);
        lanes[i].state->length += lanes[i].n;
        ((double_drafter *)d)->settled += lanes[i].n;
    }
    return SIB_OK;
}

static const sib_needs *double_needs(const sib_drafter *d)
{
    static const sib_needs none;
    (void)d;
    return &none;
}

static void double_free(sib_drafter *d)
{
    (void)d;
}

static const sib_drafter_ops double_ops = {"double", double_free, double_needs, double_state_new, double_state_free, double_truncate, double_propose, double_settle};

static void doubles_change_nothing_but_speed(void **state)
{
    (void)state;
    task_list t = tasks_read(60);
    sib_engine *e = demo_open("bf16", 1, NULL);
    for (int sampled = 0; sampled < 2; sampled++)
        for (int i = 0; i < t.n; i++) {
            answer want = ask(e, t.prompts[i], sampled ? 0.8 : 0, 0, NULL, NULL);
            int32_t *ids;
            size_t n;
            sib_err err;
            assert_int_equal(sib_tokenize(e, t.prompts[i], strlen(t.prompts[i]), 0, &ids, &n, &err), SIB_OK);
            sib_free(ids);
            for (int kind = 0; kind < SCRIPTS; kind++)
                for (int depth = 1; depth <= 8; depth += depth < 2 ? 2 : 5) {
                    double_drafter d = {.base = {&double_ops, 15, 4}, .kind = (script)kind, .truth = &want, .prompt_tokens = (int)n, .n_vocab = e->model->facts.n_vocab, .seed = 5};
                    sib_stats stats;
                    char what[96];
                    e->drafter = &d.base;
                    answer got = ask(e, t.prompts[i], sampled ? 0.8 : 0, depth, "fixed", &stats);
                    e->drafter = NULL;
                    (void)snprintf(what, sizeof what, "%s drafts, depth %d, sampled %d, task %d", script_names[kind], depth, sampled, i * 60);
                    expect_same(&want, &got, what);
                    if (kind == RIGHT) assert_int_equal(stats.accepted, stats.proposed);
                    if (kind == WRONG) assert_int_equal(stats.accepted, 0);
                    if (kind == SILENT) assert_int_equal(stats.proposed, 0);
                }
        }
    sib_close(e);
    tasks_free(&t);
}

/* ---- policy ------------------------------------------------------------------------------------ */

/* A drafter that is right with chance p, a verify row that costs c of a plain step: the chosen depth settles where
 * tokens per time are highest, and drafting stops where it loses. */
static void policy_follows_cost_and_acceptance(void **state)
{
    (void)state;
    static const struct {
        double chance, row_cost, draft_cost;
        bool worth;
    } cases[] = {{0.9, 0.02, 0.05, true}, {0.6, 0.05, 0.05, true}, {0.1, 0.9, 0.3, false}, {0.5, 1.0, 0.2, false}, {0.95, 0.3, 0.02, true}};
    for (size_t c = 0; c < SIB_COUNT(cases); c++) {
        sib_draft_policy p;
        uint64_t seed = 11;
        double spent = 0, emitted = 0;
        sib_policy_init(&p, SIB_POLICY_AUTO, 8);
        for (int round = 0; round < 2000; round++) {
            int d = sib_policy_next(&p), a = 0;
            assert_in_range(d, 0, 8);
            while (a < d && (double)(sib_splitmix64(&seed) >> 11) * 0x1p-53 < cases[c].chance) a++;
            double verify = 1 + d * cases[c].row_cost, draft = d * cases[c].draft_cost;
            sib_policy_learn(&p, d, a, a + 1, draft, verify);
            spent += verify + draft;
            emitted += a + 1;
        }
        double speed = emitted / spent; /* plain decoding is 1 */
        if (cases[c].worth && speed < 1.2) fail_msg("case %zu: speed %.3f of plain", c, speed);
        if (!cases[c].worth && speed < 0.97) fail_msg("case %zu: drafting that loses cost %.3f of plain", c, speed);
    }
}

static void off_and_fixed_are_literal(void **state)
{
    (void)state;
    sib_draft_policy p;
    sib_policy_init(&p, SIB_POLICY_OFF, 5);
    assert_int_equal(sib_policy_next(&p), 0);
    sib_policy_init(&p, SIB_POLICY_FIXED, 5);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(sib_policy_next(&p), 5);
        sib_policy_learn(&p, 5, 0, 1, 1, 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_stream_with_assistant),       cmocka_unit_test(assistant_is_accepted),
        cmocka_unit_test(auto_policy_keeps_the_stream),     cmocka_unit_test(doubles_change_nothing_but_speed),
        cmocka_unit_test(policy_follows_cost_and_acceptance), cmocka_unit_test(off_and_fixed_are_literal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

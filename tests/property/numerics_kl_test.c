/* tests/property/numerics_kl_test.c - how far modes bf16 and int8 are from f32 on the demo's tasks: mean
 * Kullback-Leibler divergence of the next-token distributions over all answer positions, teacher-forced.
 * The figures that it prints stand in docs/NUMERICS.md. */
#include "../unit/speculation_rig.h"

#include <math.h>

typedef struct texts {
    int32_t *ids[512];
    int n[512], first[512]; /* first: tokens of the prompt */
    int count;
} texts;

/* Prompt and expected answer of every task, tokenized. */
static texts texts_read(sib_engine *e)
{
    texts t = {0};
    sib_buf file = {0};
    sib_err err;
    if (sib_read_file("demo/tasks.jsonl", 1 << 20, &file, &err) != SIB_OK) fail_msg("%s", err.message);
    int line = 0, every = getenv("SIBYL_LONG") ? 1 : 8;
    for (char *at = strtok(file.p, "\n"); at && t.count < 512; at = strtok(NULL, "\n")) {
        if (line++ % every) continue;
        json_t *o = json_loads(at, 0, NULL);
        const char *prompt = json_string_value(json_object_get(o, "prompt")), *reply = json_string_value(json_object_get(o, "answer"));
        size_t n_prompt, n_answer;
        int32_t *a, *b;
        assert_int_equal(sib_tokenize(e, prompt, strlen(prompt), 0, &a, &n_prompt, &err), SIB_OK);
        assert_int_equal(sib_tokenize(e, reply, strlen(reply), 0, &b, &n_answer, &err), SIB_OK);
        a = realloc(a, (n_prompt + n_answer) * sizeof *a);
        memcpy(a + n_prompt, b, n_answer * sizeof *b);
        sib_free(b);
        t.ids[t.count] = a;
        t.first[t.count] = (int)n_prompt;
        t.n[t.count++] = (int)(n_prompt + n_answer);
        json_decref(o);
    }
    sib_buf_deinit(&file);
    return t;
}

/* Log-probabilities of the answer positions of one text, [rows][n_vocab]. */
static float *log_probs(sib_engine *e, const texts *t, int i, int *rows)
{
    sib_model *m = e->model;
    sib_seq *s;
    sib_forward_out out;
    sib_err err;
    int v = m->facts.n_vocab, n = t->n[i] - t->first[i] + 1;
    if (n > m->facts.max_logits) n = m->facts.max_logits;
    float *p = malloc((size_t)n * (size_t)v * sizeof *p);
    assert_int_equal(m->ops->seq_new(m, &s, &err), SIB_OK);
    assert_int_equal(m->ops->forward(m, &(sib_part){.seq = s, .ids = t->ids[i], .n_rows = t->first[i] + n - 1, .n_logits = n}, 1, &out, &err), SIB_OK);
    for (int r = 0; r < n; r++) {
        const float *x = out.logits + (size_t)r * (size_t)v;
        double max = x[0], sum = 0;
        for (int k = 1; k < v; k++) max = fmax(max, x[k]);
        for (int k = 0; k < v; k++) sum += exp(x[k] - max);
        for (int k = 0; k < v; k++) p[(size_t)r * (size_t)v + (size_t)k] = (float)(x[k] - max - log(sum));
    }
    m->ops->seq_free(m, s);
    *rows = n;
    return p;
}

static void divergence_is_small(void **state)
{
    (void)state;
    static const struct {
        const char *mode;
        double limit;
    } modes[] = {{"bf16", 2e-3}, {"int8", 2e-3}};
    sib_engine *f32 = demo_open("f32", 2, NULL);
    texts t = texts_read(f32);
    for (size_t m = 0; m < SIB_COUNT(modes); m++) {
        sib_engine *e = demo_open(modes[m].mode, 2, NULL);
        double total = 0, worst = 0;
        long positions = 0, agree = 0;
        for (int i = 0; i < t.count; i++) {
            int rows, v = f32->model->facts.n_vocab;
            float *p = log_probs(f32, &t, i, &rows), *q = log_probs(e, &t, i, &rows);
            for (int r = 0; r < rows; r++) {
                const float *a = p + (size_t)r * (size_t)v, *b = q + (size_t)r * (size_t)v;
                double kl = 0;
                int best_a = 0, best_b = 0;
                for (int k = 0; k < v; k++) {
                    kl += exp(a[k]) * ((double)a[k] - b[k]);
                    if (a[k] > a[best_a]) best_a = k;
                    if (b[k] > b[best_b]) best_b = k;
                }
                total += kl;
                worst = fmax(worst, kl);
                agree += best_a == best_b;
                positions++;
            }
            free(p);
            free(q);
        }
        printf("%s: mean KL %.3g, largest %.3g, same best token at %ld of %ld positions\n", modes[m].mode, total / (double)positions, worst, agree, positions);
        assert_true(total / (double)positions < modes[m].limit);
        sib_close(e);
    }
    for (int i = 0; i < t.count; i++) sib_free(t.ids[i]);
    sib_close(f32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(divergence_is_small)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

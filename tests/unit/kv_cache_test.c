/* kv_cache_test.c - the cache against a simple model: what was written last at each position.
 *
 * Every sequence writes keys and values made from a number that is different for each write;
 * after each step, everything that the next row may see is read back. */
#include "kv/cache.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CTX       700
#define MAX_BLOCK 70
#define WINDOW    100
#define SEEN      (WINDOW + 2) /* a drafter sees one position more, and the next row is not there yet */

static const sib_kv_layer layers[] = {
    {{1, 8, 8}, 0, -1},       /* sees everything */
    {{2, 16, 8}, WINDOW, -1}, /* window */
    {{1, 8, 8}, WINDOW, -1},  /* window, the shape of layer 0 */
    {{2, 16, 8}, WINDOW, 1},  /* reads layer 1 */
    {{1, 8, 8}, 0, 0},        /* reads layer 0 */
};
#define N_LAYERS ((int)SIB_COUNT(layers))

typedef struct fixture {
    sib_device *d;
    sib_kv_layout *layout;
    sib_kv_pool *pool;
} fixture;

static void open_fixture(fixture *f, int sequences, int64_t positions)
{
    sib_err err = {0};
    assert_int_equal(sib_cpu_device_new(&f->d, &(sib_cpu_options){.numerics = SIB_NUM_F32, .threads = 1}, &err),
                     SIB_OK);
    assert_int_equal(sib_kv_layout_new(&f->layout, layers, N_LAYERS, CTX, MAX_BLOCK, &err), SIB_OK);
    assert_int_equal(sib_kv_pool_new(&f->pool, f->layout, f->d, &(sib_kv_budget){sequences, positions}, &err), SIB_OK);
}

static void close_fixture(fixture *f)
{
    sib_kv_pool_free(f->pool);
    sib_kv_layout_free(f->layout);
    sib_device_free(f->d);
}

/* A sequence and the number that each of its positions was last written with. */
typedef struct twin {
    sib_kv_seq *s;
    float wrote[CTX];
} twin;

static float counter = 1;

/* The value of one element; exact in float32. */
static float element(float number, int layer, int head, int i)
{
    return number * 128 + (float)(layer * 40 + head * 17 + i);
}

static void write_block(fixture *f, twin *t, int n)
{
    int32_t pos = sib_kv_length(t->s);
    for (int r = 0; r < n; r++) t->wrote[pos + r] = counter++;
    for (int layer = 0; layer < N_LAYERS; layer++) {
        const sib_kv_geom *g = &layers[layer].geom;
        if (layers[layer].donor >= 0) continue;
        float k[MAX_BLOCK * 2 * 16], v[MAX_BLOCK * 2 * 8];
        for (int r = 0; r < n; r++)
            for (int h = 0; h < g->n_kv_heads; h++) {
                for (int i = 0; i < g->k_dim; i++)
                    k[(r * g->n_kv_heads + h) * g->k_dim + i] = element(t->wrote[pos + r], layer, h, i);
                for (int i = 0; i < g->v_dim; i++)
                    v[(r * g->n_kv_heads + h) * g->v_dim + i] = -element(t->wrote[pos + r], layer, h, i);
            }
        sib_span span = {sib_kv_view_of(t->s, layer), 0, n, pos};
        f->d->ops->kv_append(f->d, g, &span, 1, k, v);
    }
}

/* Everything that rows from the sequence's length on may see, in every layer, and pending rows. */
static void check_contents(fixture *f, const twin *t)
{
    int32_t len = sib_kv_length(t->s), end = len + sib_kv_pending(t->s);
    for (int layer = 0; layer < N_LAYERS; layer++) {
        const sib_kv_geom *g = &layers[layer].geom;
        int source = layers[layer].donor >= 0 ? layers[layer].donor : layer;
        int32_t first = layers[layer].window && len >= SEEN ? len - SEEN + 1 : 0;
        int n = end - first;
        if (n == 0) continue;
        float *k = malloc(sizeof *k * (size_t)(g->n_kv_heads * n * g->k_dim)),
              *v = malloc(sizeof *v * (size_t)(g->n_kv_heads * n * g->v_dim));
        sib_kv_view view = sib_kv_view_of(t->s, layer);
        f->d->ops->kv_read(f->d, g, &view, first, n, k, v);
        for (int h = 0; h < g->n_kv_heads; h++)
            for (int p = 0; p < n; p++) {
                for (int i = 0; i < g->k_dim; i++)
                    assert_true(k[(h * n + p) * g->k_dim + i] == element(t->wrote[first + p], source, h, i));
                for (int i = 0; i < g->v_dim; i++)
                    assert_true(v[(h * n + p) * g->v_dim + i] == -element(t->wrote[first + p], source, h, i));
            }
        free(k);
        free(v);
    }
}

static twin new_twin(fixture *f)
{
    twin t = {0};
    assert_int_equal(sib_kv_seq_new(&t.s, f->pool, NULL), SIB_OK);
    return t;
}

static void grow(fixture *f, twin *t, int n)
{
    for (; n > 0; n -= MAX_BLOCK) {
        int block = n < MAX_BLOCK ? n : MAX_BLOCK;
        assert_int_equal(sib_kv_begin(t->s, block, NULL), SIB_OK);
        write_block(f, t, block);
        sib_kv_keep(t->s, block);
    }
}

static int below(uint64_t *rng, int n)
{
    return (int)(sib_splitmix64(rng) % (uint64_t)n);
}

static void random_steps(void **state)
{
    (void)state;
    fixture f;
    uint64_t rng = 7;
    open_fixture(&f, 4, 1600);
    int64_t all = sib_kv_pool_free_pages(f.pool);
    enum { N = 4 };
    twin t[N];
    int begun = 0, refused = 0, forks = 0, backs = 0;
    for (int i = 0; i < N; i++) t[i] = new_twin(&f);
    for (int step = 0; step < 6000; step++) {
        twin *x = &t[below(&rng, N)];
        int32_t len = sib_kv_length(x->s);
        switch (below(&rng, 10)) {
        case 0: { /* back to any length, mostly a near one */
            int32_t to = below(&rng, 3) ? len - below(&rng, 40) : below(&rng, len + 1);
            int32_t reach = sib_kv_reach(x->s);
            bool can = sib_kv_can_truncate(x->s, to);
            sib_status s = sib_kv_truncate(x->s, to, NULL);
            assert_int_equal(s == SIB_OK, can);
            assert_int_equal(can, to == 0 || (to > 0 && to >= reach));
            assert_int_equal(sib_kv_length(x->s), can ? to : len);
            backs += can;
            break;
        }
        case 1: { /* a copy of another one's prefix in place of this one */
            twin *from = &t[below(&rng, N)];
            int32_t to = sib_kv_length(from->s) - below(&rng, 3) * 31;
            if (from == x || !sib_kv_can_truncate(from->s, to)) break;
            sib_kv_seq_free(x->s);
            *x = new_twin(&f);
            assert_int_equal(sib_kv_fork(x->s, from->s, to, NULL), SIB_OK);
            memcpy(x->wrote, from->wrote, sizeof x->wrote);
            forks++;
            break;
        }
        default: {
            int n = 1 + below(&rng, below(&rng, 4) ? 8 : MAX_BLOCK);
            int64_t free_before = sib_kv_pool_free_pages(f.pool);
            bool can = sib_kv_can_begin(x->s, n);
            sib_status s = sib_kv_begin(x->s, n, NULL);
            assert_int_equal(s == SIB_OK, can);
            if (s != SIB_OK) {
                assert_int_equal(s, SIB_ECAPACITY);
                assert_int_equal(sib_kv_pool_free_pages(f.pool), free_before);
                refused++;
                if (below(&rng, 2)) assert_int_equal(sib_kv_truncate(x->s, 0, NULL), SIB_OK);
                break;
            }
            begun++;
            write_block(&f, x, n);
            check_contents(&f, x);
            sib_kv_keep(x->s, below(&rng, n + 1));
        }
        }
        for (int i = 0; i < N; i++) check_contents(&f, &t[i]); /* nobody writes into another one's pages */
    }
    assert_true(begun > 1000 && refused > 10 && forks > 50 && backs > 50);
    for (int i = 0; i < N; i++) sib_kv_seq_free(t[i].s);
    assert_int_equal(sib_kv_pool_free_pages(f.pool), all);
    close_fixture(&f);
}

static void keep_zero_gives_pages_back(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 1, CTX);
    twin t = new_twin(&f);
    grow(&f, &t, 130);
    int64_t before = sib_kv_pool_free_pages(f.pool);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(sib_kv_begin(t.s, MAX_BLOCK, NULL), SIB_OK);
        assert_int_equal(sib_kv_pending(t.s), MAX_BLOCK);
        write_block(&f, &t, MAX_BLOCK);
        check_contents(&f, &t);
        sib_kv_keep(t.s, 0);
        assert_int_equal(sib_kv_length(t.s), 130);
        assert_int_equal(sib_kv_pool_free_pages(f.pool), before);
        check_contents(&f, &t);
    }
    sib_kv_seq_free(t.s);
    close_fixture(&f);
}

static void truncate_refuses_a_lost_window(void **state)
{
    (void)state;
    fixture f;
    sib_err err = {0};
    open_fixture(&f, 1, CTX);
    twin t = new_twin(&f);
    grow(&f, &t, 650);
    assert_int_equal(sib_kv_truncate(t.s, 300, &err), SIB_ESTATE);
    assert_int_equal(sib_kv_length(t.s), 650);
    check_contents(&f, &t);
    assert_int_equal(sib_kv_truncate(t.s, 640, &err), SIB_OK); /* the page of slack */
    check_contents(&f, &t);
    assert_int_equal(sib_kv_truncate(t.s, 651, &err), SIB_ESTATE);
    assert_int_equal(sib_kv_truncate(t.s, -1, &err), SIB_ESTATE);
    assert_int_equal(sib_kv_truncate(t.s, 0, &err), SIB_OK);
    grow(&f, &t, 120);
    check_contents(&f, &t);
    sib_kv_seq_free(t.s);
    close_fixture(&f);
}

static void fork_shares_until_written(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 3, 3 * CTX);
    twin a = new_twin(&f), b = new_twin(&f);
    grow(&f, &a, 200);
    int64_t before = sib_kv_pool_free_pages(f.pool);
    assert_int_equal(sib_kv_fork(b.s, a.s, 190, NULL), SIB_OK);
    memcpy(b.wrote, a.wrote, sizeof b.wrote);
    assert_int_equal(sib_kv_pool_free_pages(f.pool), before);
    check_contents(&f, &b);
    grow(&f, &b, 1); /* position 190: page 2 is copied, once for each of the three owners */
    assert_int_equal(sib_kv_pool_free_pages(f.pool), before - 3);
    grow(&f, &a, 30);
    check_contents(&f, &a);
    check_contents(&f, &b);
    assert_int_equal(sib_kv_fork(b.s, a.s, 10, NULL), SIB_ESTATE); /* not empty */
    sib_kv_seq_free(a.s);
    check_contents(&f, &b);
    grow(&f, &b, 300);
    check_contents(&f, &b);
    sib_kv_seq_free(b.s);
    close_fixture(&f);
}

static void contracts_are_checked(void **state)
{
    (void)state;
    fixture f;
    sib_err err = {0};
    sib_kv_layout *l;
    open_fixture(&f, 1, CTX);
    sib_kv_layer bad = {{1, 12, 8}, 0, -1};
    assert_int_equal(sib_kv_layout_new(&l, &bad, 1, CTX, 8, &err), SIB_EUNSUPPORTED);
    bad = (sib_kv_layer){{1, 8, 8}, 0, 0};
    assert_int_equal(sib_kv_layout_new(&l, &bad, 1, CTX, 8, &err), SIB_EARG); /* its own donor */
    sib_kv_layer two[] = {layers[0], {{1, 8, 8}, WINDOW, 0}};
    assert_int_equal(sib_kv_layout_new(&l, two, 2, CTX, 8, &err), SIB_EARG); /* another window */
    assert_int_equal(sib_kv_layout_new(&l, layers, N_LAYERS, 0, 8, &err), SIB_EARG);
    assert_true(sib_kv_bytes(f.layout, f.d, &(sib_kv_budget){1, (int64_t)1 << 60}) == SIZE_MAX);
    twin t = new_twin(&f);
    assert_int_equal(sib_kv_begin(t.s, 0, &err), SIB_EARG);
    assert_int_equal(sib_kv_begin(t.s, MAX_BLOCK + 1, &err), SIB_EARG);
    assert_int_equal(sib_kv_begin(t.s, 3, &err), SIB_OK);
    assert_int_equal(sib_kv_begin(t.s, 3, &err), SIB_ESTATE);
    assert_int_equal(sib_kv_truncate(t.s, 0, &err), SIB_ESTATE);
    write_block(&f, &t, 3);
    sib_kv_keep(t.s, 3);
    grow(&f, &t, CTX - 3);
    assert_int_equal(sib_kv_begin(t.s, 1, &err), SIB_ECAPACITY);
    check_contents(&f, &t);
    sib_kv_seq_free(t.s);
    close_fixture(&f);
}

/* What `fit` prints is what alloc is asked for. */
static size_t asked;
static sib_status (*real_alloc)(sib_device *, size_t, void **, sib_err *);

static sib_status counting_alloc(sib_device *d, size_t bytes, void **out, sib_err *err)
{
    asked += bytes;
    return real_alloc(d, bytes, out, err);
}

static void bytes_are_exact(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 1, CTX);
    sib_ops ops = *f.d->ops;
    const sib_ops *own = f.d->ops;
    real_alloc = ops.alloc;
    ops.alloc = counting_alloc;
    f.d->ops = &ops;
    for (int sequences = 1; sequences < 40; sequences += 7)
        for (int64_t positions = 1; positions < 5000; positions = positions * 3 + 5) {
            sib_kv_budget b = {sequences, positions};
            sib_kv_pool *p;
            asked = 0;
            assert_int_equal(sib_kv_pool_new(&p, f.layout, f.d, &b, NULL), SIB_OK);
            assert_int_equal(asked, sib_kv_bytes(f.layout, f.d, &b));
            sib_kv_pool_free(p);
        }
    f.d->ops = own;
    close_fixture(&f);
}

/* A budget of k sequences and n positions serves any k lengths that add up to n. */
static void budget_suffices(void **state)
{
    (void)state;
    uint64_t rng = 3;
    for (int round = 0; round < 30; round++) {
        int k = 1 + below(&rng, 5), total = 0, want[5];
        for (int i = 0; i < k; i++) total += want[i] = 1 + below(&rng, CTX);
        fixture f;
        open_fixture(&f, k, total);
        twin t[5];
        for (int i = 0; i < k; i++) {
            t[i] = new_twin(&f);
            grow(&f, &t[i], want[i]);
        }
        for (int i = 0; i < k; i++) {
            check_contents(&f, &t[i]);
            sib_kv_seq_free(t[i].s);
        }
        close_fixture(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_steps),
        cmocka_unit_test(keep_zero_gives_pages_back),
        cmocka_unit_test(truncate_refuses_a_lost_window),
        cmocka_unit_test(fork_shares_until_written),
        cmocka_unit_test(contracts_are_checked),
        cmocka_unit_test(bytes_are_exact),
        cmocka_unit_test(budget_suffices),
    };
    return cmocka_run_group_tests_name("kv_cache", tests, NULL, NULL);
}

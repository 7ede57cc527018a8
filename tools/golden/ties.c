/* tools/golden/ties.c - equal scores of a sparse indexer, chosen as the reference chose them.
 *
 * After the relu many scores are exactly 0, so the k-th largest is often one of several equal ones. The engine takes the
 * lowest positions; the reference took what torch.topk left in front, which depends on every score of the row and on how many
 * columns the call had. To compare the rest of the network, `golden` replaces index_select by one that makes the same choice among
 * equal scores, and only there: rows without such a tie keep the engine's picks.
 *
 * torch.topk on the CPU partitions (score, column) pairs by std::nth_element with "larger score first" when 64 k > n,
 * future columns being -inf. The steps below are those of the introselect in GNU's C++ library. */
#include "golden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct pair {
    float score;
    int32_t column;
} pair;

static bool before(const pair *a, const pair *b)
{
    return a->score > b->score;
}

static void swap(pair *a, pair *b)
{
    pair t = *a;
    *a = *b;
    *b = t;
}

static void median_to_first(pair *to, pair *a, pair *b, pair *c)
{
    pair *m;
    if (before(a, b))
        m = before(b, c) ? b : before(a, c) ? c : a;
    else
        m = before(a, c) ? a : before(b, c) ? c : b;
    swap(to, m);
}

static pair *partition(pair *first, pair *last)
{
    const pair *pivot = first;
    median_to_first(first, first + 1, first + (last - first) / 2, last - 1);
    for (first++;; first++) {
        while (before(first, pivot)) first++;
        last--;
        while (before(pivot, last)) last--;
        if (first >= last) return first;
        swap(first, last);
    }
}

/* False when the library would have switched to a heap: the choice is then not known. */
static bool nth_element(pair *first, pair *nth, pair *last)
{
    int depth = 0;
    for (ptrdiff_t n = last - first; n > 1; n >>= 1) depth += 2;
    while (last - first > 3) {
        if (depth-- == 0) return false;
        pair *cut = partition(first, last);
        if (cut <= nth)
            first = cut;
        else
            last = cut;
    }
    for (pair *i = first + 1; i < last; i++)
        for (pair *j = i; j > first && before(j, j - 1); j--) swap(j, j - 1);
    return true;
}

static int by_position(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void follow(int32_t *picks, const float *scores, int n, int columns, int k)
{
    float least = INFINITY;
    int equal = 0, held = 0;
    for (int i = 0; i < k; i++) least = fminf(least, scores[picks[i]]);
    for (int i = 0; i < n; i++) equal += scores[i] == least;
    for (int i = 0; i < k; i++) held += scores[picks[i]] == least;
    if (equal == held || k * 64 <= columns) return;
    pair *row = malloc((size_t)columns * sizeof *row);
    if (!row) return;
    for (int i = 0; i < columns; i++) row[i] = (pair){i < n ? scores[i] : -INFINITY, i};
    if (nth_element(row, row + k - 1, row + columns)) {
        for (int i = 0; i < k; i++) picks[i] = row[i].column;
        qsort(picks, (size_t)k, sizeof *picks, by_position);
    }
    free(row);
}

static sib_ops following;
static const sib_ops *real;

/* Row by row, so that each row's scores can be read from the scratch. */
static void index_select(sib_device *d, int32_t *picks, float *q, const float *weight, const sib_index *x)
{
    for (int s = 0; s < x->n_spans; s++)
        for (int i = 0; i < x->spans[s].n_rows; i++) {
            sib_span one = x->spans[s];
            int row = one.row0 + i, n = one.pos0 + i + 1, columns = one.pos0 + one.n_rows;
            if (n <= x->top_k) continue;
            one.row0 = 0;
            one.n_rows = 1;
            one.pos0 += i;
            sib_index alone = *x;
            alone.spans = &one;
            alone.n_spans = alone.n_rows = 1;
            int32_t *mine = picks + (int64_t)row * x->top_k;
            real->index_select(d, mine, q + (int64_t)row * x->n_heads * x->dim, weight + (int64_t)row * x->n_heads, &alone);
            follow(mine, x->scores, n, columns, x->top_k);
        }
}

void golden_follow_ties(sib_device *d)
{
    real = d->ops;
    following = *real;
    following.index_select = index_select;
    d->ops = &following;
}

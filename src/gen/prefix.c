/* gen/prefix.c - what two prompts share (gen/generation.h). */
#include "gen/generation.h"

#include <string.h>

int sib_lane_shares(const sib_lane *l, uint8_t (*hash)[32], const int32_t *ids, int limit, const sib_gen_picture *pictures, int n_pictures)
{
    int same = 0;
    if (limit > l->n_done) limit = l->n_done;
    while (same < limit && ids[same] == l->tokens[same]) same++;
    int a = 0, b = 0;
    while (a < l->n_soft || b < n_pictures) {
        const sib_soft_span *x = a < l->n_soft ? &l->soft[a] : NULL, *y = b < n_pictures ? &pictures[b].span : NULL;
        int first = x && (!y || x->pos < y->pos) ? x->pos : y->pos;
        if (first >= same) break;
        bool equal = x && y && x->pos == y->pos && x->n == y->n && memcmp(hash[a], pictures[b].hash, 32) == 0;
        if (!equal || y->pos + y->n > same) return first;
        a++;
        b++;
    }
    return same;
}

/* drafters/drafter.h - what the registry knows of a drafter kind: how to open it. */
#ifndef SIB_DRAFTERS_DRAFTER_H
#define SIB_DRAFTERS_DRAFTER_H

#include "layers/loader.h"
#include "ports/drafter.h"

#define SIB_MAX_TAPS 16 /* tapped layers of a drafter */

typedef struct sib_drafter_options {
    /* assistant: rules of drafters_kv.md 1.6 "seed" instead of "trained", each on its own */
    bool seed_scale, seed_positions, seed_window;
    bool mtp_hidden_pre; /* Qwen MTP: hidden rows before the final norm instead of after it (qwen3_5.md 4.3) */
    int bits;        /* DFlash: quantize projections at load; 0: as stored                          */
    /* native MTP head: its cache starts behind the prompt; the hidden state before its norm is chained */
    bool mtp_decode_only, mtp_raw_chain;
    int n_seqs;      /* timelines at once                                                            */
    int max_draft;   /* longest draft that will be asked for                                         */
    double min_confidence; /* DeepSpec, own DSpark: a draft ends before the first guess below it, where the
                            * checkpoint itself gives no threshold; 0: never                         */
} sib_drafter_options;

/* Opens the drafter in the loader's checkpoint on its device; weights are read after bind's checks would pass on
 * `facts` and `offers` of the target. The drafter owns what it loaded. */
typedef sib_status (*sib_drafter_open_fn)(sib_drafter **out, sib_loader *l, sib_model *target, const sib_drafter_options *o, sib_err *err);

/* What a drafter of the loader's kind demands of a target, from its config alone. tap_layers points into `taps`. */
typedef sib_status (*sib_drafter_needs_fn)(sib_needs *out, int taps[SIB_MAX_TAPS], const json_t *config, sib_err *err);

/* The generic part of a bind: every port that `needs` names is there, every fact it demands is equal; the
 * sentence names what is missing. */
sib_status sib_needs_check(const sib_needs *needs, const char *kind, const sib_model *target, sib_err *err);

#endif

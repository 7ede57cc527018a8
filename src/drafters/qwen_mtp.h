/* drafters/qwen_mtp.h - the Qwen3.5 companion (qwen3_5.md section 4). */
#ifndef SIB_DRAFTERS_QWEN_MTP_H
#define SIB_DRAFTERS_QWEN_MTP_H

#include "drafters/drafter.h"

/* From a split companion's folder, from a release that carries mtp.* tensors, or from a folder whose subfolder mtp/
 * holds a split companion. */
sib_status sib_qwen_mtp_open(sib_drafter **out, sib_loader *l, sib_model *target, const sib_drafter_options *o, sib_err *err);

sib_status sib_qwen_mtp_needs(sib_needs *out, int taps[SIB_MAX_TAPS], const json_t *config, sib_err *err);

/* The checkpoint carries or bundles a companion although its config.json is a model's. */
bool sib_qwen_mtp_in(const sib_checkpoint *c);

/* Stages for traces: mtp.fc_input, mtp.fc, mtp.query, mtp.attention_gated, mtp.after_attention, mtp.layer_out, mtp.out, and
 * mtp.logits of drafted rows. index: the step of a draft, -1 for rows of settled text. */
void sib_qwen_mtp_trace(sib_drafter *d, sib_trace trace);

/* Rows of the companion's own cache, and rows first .. first+n-1 as host f32 [n_kv_heads][n][head_dim]. */
int sib_qwen_mtp_rows(const sib_draft_state *s);
void sib_qwen_mtp_read(sib_drafter *d, const sib_draft_state *s, int first, int n, float *k, float *v);

#endif

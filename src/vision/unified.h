/* vision/unified.h - the encoder-free vision part of Gemma 4 12B: one product for each 48-pixel square.
 *
 *   z = LN1(v);  z = dense z + b;  z = LN2(z);  z += pos[x][0] + pos[y][1];  z = LN3(z);  out = proj(RMSNorm(z))
 *
 * Facts: gemma4.md 4.9. Stages for traces: vision.patch_dense, vision.patch_ln2, vision.pos_norm, vision.tower_output (the
 * same), vision.pre_projection_norm, vision.features. */
#ifndef SIB_VISION_UNIFIED_H
#define SIB_VISION_UNIFIED_H

#include "vision/vision.h"

/* True when the checkpoint has these tensors under `root` ("model." or ""): ROOTvision_embedder.*, or ROOTembed_vision.* with
 * the names that transformers has in memory (gemma4.md 3.3). */
bool sib_unified_vision_present(const sib_loader *l, const char *root);

sib_status sib_unified_vision_open(sib_vision **out, sib_loader *l, const char *root, int hidden, sib_err *err);

#endif

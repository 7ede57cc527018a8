/* vision/tower.h - the vision tower of Gemma 4 and DiffusionGemma: a small transformer over 16-pixel patches.
 *
 *   patches [n][768] -> input_proj + positions -> layers -> mean of 3x3 -> sqrt(hid) [-> standardize] -> embedder
 *
 * Facts: gemma4.md 4.1, 4.5, 4.6; diffusion_gemma.md 4.3-4.9. Stages for traces: vision.hidden.0 (patch embedding),
 * vision.hidden.i (output of layer i-1), vision.tower_output, vision.features. */
#ifndef SIB_VISION_TOWER_H
#define SIB_VISION_TOWER_H

#include "vision/vision.h"

/* True when the checkpoint has a tower under `root` ("model.", "", "model.encoder."): ROOTvision_tower.*. */
bool sib_tower_present(const sib_loader *l, const char *root);

/* Reads vision_config of the loader's checkpoint and loads ROOTvision_tower.* and ROOTembed_vision.*, each linear plain or
 * quantized as it is stored. hidden: of the text model. Free with sib_vision_free. */
sib_status sib_tower_open(sib_vision **out, sib_loader *l, const char *root, int hidden, sib_err *err);

#endif

/* tools/golden/fake_target.h - a target that offers taps and vocabulary and cannot compute.
 *
 * Cases of drafters with random taps have no target model: its hidden rows are tensors of the case, its embedding and
 * head, where the drafter borrows them, too. The facts come from the drafter's needs. */
#ifndef SIB_TOOLS_GOLDEN_FAKE_TARGET_H
#define SIB_TOOLS_GOLDEN_FAKE_TARGET_H

#include "ops/ops.h"
#include "ports/model.h"

/* embed, head: host [n_vocab][hidden], copied; NULL: no vocabulary port. Free with model->ops->free. */
sib_status fake_target_new(sib_model **out, sib_device *dev, const sib_facts *facts, const float *embed,
                           const float *head, sib_err *err);

#endif

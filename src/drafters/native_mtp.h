/* drafters/native_mtp.h - drafts with the draft head of the target's own checkpoint (glm_moe_dsa.md section 7). */
#ifndef SIB_DRAFTERS_NATIVE_MTP_H
#define SIB_DRAFTERS_NATIVE_MTP_H

#include "drafters/drafter.h"

/* SIB_EUNSUPPORTED when the target does not offer its head. Nothing is loaded: the target owns the weights. */
sib_status sib_native_mtp_open(sib_drafter **out, sib_model *target, const sib_drafter_options *o, sib_err *err);

#endif

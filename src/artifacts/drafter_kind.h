/* artifacts/drafter_kind.h - which kind of drafter a folder holds (speculative.md 9).
 *
 * A pure function of the parsed config and of one file's presence; no weights are opened, and
 * the order of the tests matters: a DeepSpec checkpoint calls itself "gemma4_text" and a DFlash
 * one "qwen3", so drafters are recognised before model families are. */
#ifndef SIB_ARTIFACTS_DRAFTER_KIND_H
#define SIB_ARTIFACTS_DRAFTER_KIND_H

#include "base/json.h"

typedef enum sib_drafter_kind {
    SIB_DRAFTER_DSPARK,    /* dspark.json is there                                        */
    SIB_DRAFTER_DEEPSPEC,  /* architectures[0] Gemma4DSparkModel or Qwen3DSparkModel      */
    SIB_DRAFTER_DFLASH,    /* architectures[0] DFlash2DraftModel (2) or DFlashDraftModel (1) */
    SIB_DRAFTER_ASSISTANT, /* model_type contains "assistant"                             */
    SIB_DRAFTER_MTP,       /* model_type ends with "_mtp"                                 */
    SIB_DRAFTER_TWO_MODEL  /* anything else: a full second model                          */
} sib_drafter_kind;

/* config may be NULL (absent or unreadable). */
sib_drafter_kind sib_drafter_kind_of(bool has_dspark_json, const json_t *config);
/* The same of a folder; an absent or broken config.json counts as NULL. */
sib_drafter_kind sib_drafter_kind_in(const char *dir);
const char *sib_drafter_kind_name(sib_drafter_kind k); /* "dspark", "deepspec", "dflash2", ... */

/* The predicates of the table, exact. */
bool sib_is_deepspec_config(const json_t *config);
bool sib_is_dflash_config(const json_t *config);
int sib_dflash_version(const json_t *config); /* 2, 1, or 0 when it is no DFlash drafter */
bool sib_is_assistant_type(const char *model_type);
bool sib_is_mtp_type(const char *model_type);
/* True for a folder that must not be offered as a model: any kind but TWO_MODEL. */
bool sib_is_drafter_config(bool has_dspark_json, const json_t *config);

#endif

/* engine/registry.c - the lists of model families and drafters. Adding one = its folder or file and one line here. */
#include "engine/registry.h"

#include "drafters/assistant.h"
#include "drafters/deepspec.h"
#include "drafters/dflash2.h"
#include "drafters/dspark.h"
#include "drafters/qwen_mtp.h"
#include "drafters/native_mtp.h"
#include "models/diffusion_gemma/family.h"
#include "models/gemma4/family.h"
#include "models/qwen3_5/family.h"

#include <stdlib.h>
#include "models/glm_moe_dsa/family.h"

static const sib_family *const families[] = {
    &sib_family_gemma4,
    &sib_family_diffusion_gemma,
    &sib_family_qwen3_5,
    &sib_family_glm_moe_dsa,
};

const sib_family *sib_family_at(size_t i)
{
    return i < SIB_COUNT(families) ? families[i] : NULL;
}

const sib_family *sib_family_for(const sib_checkpoint *c, sib_err *err)
{
    for (size_t i = 0; i < SIB_COUNT(families); i++)
        if (families[i]->claims(c)) return families[i];
    const char *type = json_string_value(json_object_get(sib_checkpoint_config(c), "model_type"));
    if (!type) {
        (void)sib_fail(err, SIB_EFORMAT, "%s/config.json: key \"model_type\" is missing", sib_checkpoint_dir(c));
        return NULL;
    }
    sib_buf known = {0};
    for (size_t i = 0; i < SIB_COUNT(families); i++) sib_buf_addf(&known, "%s%s", i ? ", " : "", families[i]->name);
    (void)sib_fail(err, SIB_EUNSUPPORTED, "%s/config.json: model_type \"%.64s\" is not known; supported are %s", sib_checkpoint_dir(c), type,
                   known.p ? known.p : "");
    sib_buf_deinit(&known);
    return NULL;
}

/* One line a drafter kind: docs/DRAFTERS.md holds the same table, a test compares them. */
static const sib_drafter_entry drafters[] = {
    {SIB_DRAFTER_ASSISTANT, sib_assistant_open, "a Gemma 4 model", sib_assistant_needs, "`model_type` contains `assistant`",
     "vocab, donors, hidden", "the last hidden row"},
    {SIB_DRAFTER_DEEPSPEC, sib_deepspec_open, "the model it was trained beside", sib_deepspec_needs,
     "`architectures[0]` is `Gemma4DSparkModel` or `Qwen3DSparkModel`", "taps", "keys and values of every committed row"},
    {SIB_DRAFTER_DFLASH, sib_dflash2_open, "the model it was trained beside", sib_dflash2_needs,
     "`architectures[0]` is `DFlash2DraftModel` or `DFlashDraftModel`", "taps, vocab", "keys and values of every committed row, of sliding layers the window"},
    {SIB_DRAFTER_DSPARK, sib_dspark_open, "the model it was trained beside", sib_dspark_needs, "the folder has `dspark.json`", "taps, vocab",
     "keys and values of every committed row"},
    {SIB_DRAFTER_MTP, sib_qwen_mtp_open, "a Qwen3.5 model", sib_qwen_mtp_needs, "`model_type` ends with `_mtp`, or a release with `mtp.*` tensors or a folder `mtp/`",
     "vocab, hidden", "keys and values of its own layer, recent hidden rows"},
};

const sib_drafter_entry *sib_drafter_at(size_t i)
{
    return i < SIB_COUNT(drafters) ? &drafters[i] : NULL;
}

static const sib_drafter_entry *entry_of(sib_drafter_kind kind)
{
    for (size_t i = 0; i < SIB_COUNT(drafters); i++)
        if (drafters[i].kind == kind) return &drafters[i];
    return NULL;
}

/* A release that carries its companion is no drafter by its config. */
static const sib_drafter_entry *entry_for(const sib_checkpoint *files)
{
    sib_drafter_kind kind = sib_drafter_kind_in(sib_checkpoint_dir(files));
    return entry_of(kind == SIB_DRAFTER_TWO_MODEL && sib_qwen_mtp_in(files) ? SIB_DRAFTER_MTP : kind);
}

sib_status sib_drafter_files_open(sib_checkpoint **out, const char *place, bool lax, sib_err *err)
{
    char *dir;
    SIB_TRY(sib_checkpoint_resolve(&dir, place, NULL, err));
    sib_checkpoint_options o = {.lax_safetensors = lax, .config_file = sib_drafter_kind_in(dir) == SIB_DRAFTER_DSPARK ? "dspark.json" : NULL};
    sib_status s = sib_checkpoint_open(out, dir, &o, err);
    free(dir);
    return s;
}

static sib_status not_built(const char *dir, sib_err *err)
{
    sib_drafter_kind kind = sib_drafter_kind_in(dir);
    if (kind == SIB_DRAFTER_TWO_MODEL) return sib_fail(err, SIB_EUNSUPPORTED, "%s: a full second model as drafter is not supported yet", dir);
    return sib_fail(err, SIB_EUNSUPPORTED, "%s: %s drafters are not part of this build", dir, sib_drafter_kind_name(kind));
}

sib_status sib_drafter_needs_of(sib_needs *out, int taps[SIB_MAX_TAPS], const sib_checkpoint *files, sib_err *err)
{
    const char *dir = sib_checkpoint_dir(files);
    const sib_drafter_entry *e = entry_for(files);
    if (!e || !e->needs) return not_built(dir, err);
    sib_status s = e->needs(out, taps, sib_checkpoint_config(files), err);
    return s == SIB_OK ? s : sib_within(err, s, "%s", dir);
}

sib_status sib_drafter_open(sib_drafter **out, sib_loader *l, sib_model *target, const sib_drafter_options *o, sib_err *err)
{
    const char *dir = sib_checkpoint_dir(l->files);
    const sib_drafter_entry *e = entry_for(l->files);
    *out = NULL;
    if (!e || !e->open) return not_built(dir, err);
    sib_status s = e->open(out, l, target, o, err);
    return s == SIB_OK ? s : sib_within(err, s, "%s", dir);
}

sib_status sib_native_drafter_open(sib_drafter **out, sib_model *target, const sib_drafter_options *o, sib_err *err)
{
    return sib_native_mtp_open(out, target, o, err);
}

sib_status sib_refuse_drafter(const char *dir, sib_err *err)
{
    const sib_drafter_entry *e = entry_of(sib_drafter_kind_in(dir));
    if (!e) return SIB_OK;
    return sib_fail(err, SIB_EARG, "%s holds a drafter (%s), which cannot answer alone; give it as --draft beside %s", dir, sib_drafter_kind_name(e->kind), e->serves);
}

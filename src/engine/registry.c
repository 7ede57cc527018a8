/* engine/registry.c - the lists of model families and drafters. Adding one = its folder or file and one line here. */
#include "engine/registry.h"

#include "artifacts/drafter_kind.h"
#include "drafters/assistant.h"
#include "drafters/qwen_mtp.h"
#include "models/diffusion_gemma/family.h"
#include "models/gemma4/family.h"
#include "models/qwen3_5/family.h"

static const sib_family *const families[] = {
    &sib_family_gemma4,
    &sib_family_diffusion_gemma,
    &sib_family_qwen3_5,
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

/* One line a drafter kind; `serves` goes into the sentence about a drafter that was given as a model. */
static const struct {
    sib_drafter_kind kind;
    sib_drafter_open_fn open;
    const char *serves;
} drafters[] = {
    {SIB_DRAFTER_ASSISTANT, sib_assistant_open, "a Gemma 4 model"},
    {SIB_DRAFTER_DEEPSPEC, NULL, "the model it was trained beside"},
    {SIB_DRAFTER_DFLASH, NULL, "the model it was trained beside"},
    {SIB_DRAFTER_DSPARK, NULL, "the model it was trained beside"},
    {SIB_DRAFTER_MTP, sib_qwen_mtp_open, "a Qwen3.5 model"},
};

sib_status sib_drafter_open(sib_drafter **out, sib_loader *l, sib_model *target, const sib_drafter_options *o, sib_err *err)
{
    const char *dir = sib_checkpoint_dir(l->files);
    sib_drafter_kind kind = sib_drafter_kind_in(dir);
    *out = NULL;
    if (kind == SIB_DRAFTER_TWO_MODEL && sib_qwen_mtp_in(l->files)) kind = SIB_DRAFTER_MTP; /* a release that carries its companion */
    if (kind == SIB_DRAFTER_TWO_MODEL) return sib_fail(err, SIB_EUNSUPPORTED, "%s: a full second model as drafter is not supported yet", dir);
    for (size_t i = 0; i < SIB_COUNT(drafters); i++)
        if (drafters[i].kind == kind && drafters[i].open) {
            sib_status s = drafters[i].open(out, l, target, o, err);
            return s == SIB_OK ? s : sib_within(err, s, "%s", dir);
        }
    return sib_fail(err, SIB_EUNSUPPORTED, "%s: %s drafters are not part of this build", dir, sib_drafter_kind_name(kind));
}

sib_status sib_refuse_drafter(const char *dir, sib_err *err)
{
    sib_drafter_kind kind = sib_drafter_kind_in(dir);
    for (size_t i = 0; i < SIB_COUNT(drafters); i++)
        if (drafters[i].kind == kind)
            return sib_fail(err, SIB_EARG, "%s holds a drafter (%s), which cannot answer alone; give it as --draft beside %s", dir, sib_drafter_kind_name(kind), drafters[i].serves);
    return SIB_OK;
}

/* engine/registry.c - the one list of model families. Adding a family = its folder and one line here. */
#include "engine/registry.h"

#include "models/gemma4/family.h"

static const sib_family *const families[] = {
    &sib_family_gemma4,
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

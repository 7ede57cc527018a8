/* artifacts/drafter_kind.c - see drafter_kind.h. */
#include "artifacts/drafter_kind.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Only position 0 counts. */
static bool first_architecture_is(const json_t *config, const char *name)
{
    const char *z = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    return z && strcmp(z, name) == 0;
}

static const char *type_of(const json_t *config)
{
    const char *z = json_string_value(json_object_get(config, "model_type"));
    return z ? z : "";
}

bool sib_is_deepspec_config(const json_t *config)
{
    return first_architecture_is(config, "Gemma4DSparkModel") || first_architecture_is(config, "Qwen3DSparkModel");
}

int sib_dflash_version(const json_t *config)
{
    return first_architecture_is(config, "DFlash2DraftModel")  ? 2
           : first_architecture_is(config, "DFlashDraftModel") ? 1
                                                               : 0;
}

bool sib_is_dflash_config(const json_t *config)
{
    return sib_dflash_version(config) != 0;
}

bool sib_is_assistant_type(const char *model_type)
{
    return strstr(model_type, "assistant") != NULL;
}

bool sib_is_mtp_type(const char *model_type)
{
    return sib_ends_with(model_type, "_mtp");
}

sib_drafter_kind sib_drafter_kind_of(bool has_dspark_json, const json_t *config)
{
    if (has_dspark_json) return SIB_DRAFTER_DSPARK;
    if (sib_is_deepspec_config(config)) return SIB_DRAFTER_DEEPSPEC;
    if (sib_is_dflash_config(config)) return SIB_DRAFTER_DFLASH;
    if (sib_is_assistant_type(type_of(config))) return SIB_DRAFTER_ASSISTANT;
    if (sib_is_mtp_type(type_of(config))) return SIB_DRAFTER_MTP;
    return SIB_DRAFTER_TWO_MODEL;
}

sib_drafter_kind sib_drafter_kind_in(const char *dir)
{
    char *dspark = sib_path_join(dir, "dspark.json"), *path = sib_path_join(dir, "config.json");
    json_t *config = NULL;
    if (path) (void)sib_json_read(&config, path, 16u << 20, NULL);
    sib_drafter_kind k = sib_drafter_kind_of(dspark && access(dspark, F_OK) == 0, config);
    json_decref(config);
    free(path);
    free(dspark);
    return k;
}

const char *sib_drafter_kind_name(sib_drafter_kind k)
{
    static const char *const names[] = {"dspark", "deepspec", "dflash2", "assistant", "mtp", "two-model"};
    return (size_t)k < SIB_COUNT(names) ? names[k] : "?";
}

bool sib_is_drafter_config(bool has_dspark_json, const json_t *config)
{
    return sib_drafter_kind_of(has_dspark_json, config) != SIB_DRAFTER_TWO_MODEL;
}

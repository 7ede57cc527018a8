/* models/gemma4/vision.c - the image port of Gemma 4: which vision part a checkpoint has, and what of a file is left alone.
 *
 * Tensors decide: the tower (E2B, E4B, 26B-A4B, 31B), the encoder-free embedder (12B), or none. vision_config without
 * tensors is a text-only export, which answers text and refuses pictures. Facts: gemma4.md 3.3, 4. */
#include "models/gemma4/gemma4.h"
#include "vision/tower.h"
#include "vision/unified.h"

#include <stdio.h>

static sib_status count(sib_model *m, int width, int height, int budget, int *n, sib_err *err)
{
    return sib_vision_count(((gemma4 *)m)->vision, width, height, budget, n, err);
}

static sib_status encode(sib_model *m, const sib_rgb *picture, int budget, bool whole_pixels, float *features, sib_err *err)
{
    return sib_vision_encode(((gemma4 *)m)->vision, &m->trace, picture, budget, whole_pixels, features, err);
}

sib_status gemma4_vision_open(gemma4 *m, sib_loader *l, sib_err *err)
{
    static const char *const roots[] = {"model.", ""};
    const gemma4_config *c = &m->cfg;
    for (size_t i = 0; i < SIB_COUNT(roots) && !m->vision; i++) {
        if (sib_tower_present(l, roots[i]))
            SIB_TRY(sib_tower_open(&m->vision, l, roots[i], c->hidden, err));
        else if (sib_unified_vision_present(l, roots[i]))
            SIB_TRY(sib_unified_vision_open(&m->vision, l, roots[i], c->hidden, err));
    }
    if (!m->vision) return SIB_OK;
    m->images = (sib_image_port){.image_id = c->image_id, .boi_id = c->boi_id, .eoi_id = c->eoi_id, .bidirectional = c->bidirectional,
                                 .default_budget = m->vision->default_budget, .max_budget = m->vision->max_budget, .count = count, .encode = encode};
    m->model.memory.pictures = sib_vision_plan(m->vision, m->vision->default_budget);
    return SIB_OK;
}

void gemma4_ignore_rest(const gemma4 *m, sib_checkpoint *files)
{
    sib_checkpoint_ignore(files, "*rotary_emb*", "rotary tables are computed");
    sib_checkpoint_ignore(files, "*audio_tower*", "audio is not read");
    sib_checkpoint_ignore(files, "*embed_audio*", "audio is not read");
    if (!m->lm_head.w) sib_checkpoint_ignore(files, "*lm_head.*", "the head is tied to the embedding");
    for (int i = m->cfg.n_layers - m->cfg.n_shared; i < m->cfg.n_layers; i++) {
        static const char *const unused[] = {"k_proj", "v_proj", "k_norm", "v_norm"};
        char pattern[128];
        for (size_t j = 0; j < SIB_COUNT(unused); j++) {
            (void)snprintf(pattern, sizeof pattern, "%s.layers.%d.self_attn.%s.*", m->root, i, unused[j]);
            sib_checkpoint_ignore(files, pattern, "the layer reads the keys and values of another one");
        }
    }
    static const char *const bounds[] = {"input_min", "input_max", "output_min", "output_max"};
    for (size_t j = 0; j < SIB_COUNT(bounds); j++) {
        char pattern[64];
        (void)snprintf(pattern, sizeof pattern, "*.%s", bounds[j]);
        sib_checkpoint_ignore(files, pattern, "bounds are used with use_clipped_linears in the vision tower only");
    }
    if (!m->vision) {
        sib_checkpoint_ignore(files, "*vision_tower.*", "the vision part is not complete");
        sib_checkpoint_ignore(files, "*embed_vision.*", "the vision part is not complete");
        sib_checkpoint_ignore(files, "*vision_embedder.*", "the vision part is not complete");
    }
    sib_checkpoint_ignore(files, "*embed_vision.embedding.*", "a table that no released model uses");
    sib_checkpoint_ignore(files, "*vision_tower.std_*", "the vision tower does not standardize");
}

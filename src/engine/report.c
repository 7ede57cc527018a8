/* engine/report.c - see report.h. */
#include "engine/report.h"

#include "artifacts/drafter_kind.h"
#include "engine/engine_internal.h"
#include "ops/nothing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- opening on the counting device ------------------------------------------------------- */

typedef struct plan {
    sib_device *cpu;
    sib_nothing nothing;
    sib_checkpoint *files;
    const sib_family *family;
} plan;

static sib_status plan_open(plan *p, const char *place, sib_numerics numerics, bool lax, sib_err *err)
{
    sib_cpu_options cpu = {.numerics = numerics, .threads = 1};
    *p = (plan){0};
    SIB_TRY(sib_drafter_files_open(&p->files, place, lax, err));
    return sib_cpu_device_new(&p->cpu, &cpu, err);
}

static void plan_close(plan *p)
{
    sib_checkpoint_free(p->files);
    sib_device_free(p->cpu);
}

/* Runs the family's open and drops the model: its memory and facts are what is wanted. */
static sib_status plan_model(plan *p, const sib_model_limits *limits, sib_memory *memory, sib_facts *facts, sib_offers *offers, sib_err *err)
{
    sib_model *m = NULL;
    sib_nothing_init(&p->nothing, p->cpu);
    sib_loader l = {.dev = &p->nothing.device, .files = p->files};
    SIB_TRY(p->family->open(&m, &l, limits, err));
    *memory = m->memory;
    if (facts) *facts = m->facts;
    if (offers) *offers = m->offers;
    m->ops->free(m);
    return SIB_OK;
}

/* ---- inspect -------------------------------------------------------------------------------- */

static void put(json_t *o, const char *key, json_t *v)
{
    (void)json_object_set_new(o, key, v);
}

static json_t *offers_of(const sib_offers *o)
{
    const struct {
        const char *name;
        const void *port;
    } ports[] = {{"keep", o->keep}, {"taps", o->taps}, {"vocab", o->vocab}, {"donors", o->donors},
                 {"mtp", o->mtp}, {"images", o->images}, {"denoise", o->denoise}};
    json_t *list = json_array();
    for (size_t i = 0; i < SIB_COUNT(ports); i++)
        if (ports[i].port) (void)json_array_append_new(list, json_string(ports[i].name));
    return list;
}

/* Ports and figures that the drafter demands of a target, from its config alone. */
static void report_drafter(const plan *p, json_t *o)
{
    sib_needs n = {0};
    sib_err e = {0};
    int taps[SIB_MAX_TAPS];
    put(o, "drafter", json_string(sib_drafter_kind_name(sib_drafter_kind_in(sib_checkpoint_dir(p->files)))));
    if (sib_drafter_needs_of(&n, taps, p->files, &e) != SIB_OK) {
        put(o, "error", json_string(e.message));
        return;
    }
    const struct {
        const char *name;
        bool needed;
    } ports[] = {{"taps", n.taps}, {"vocab", n.vocab}, {"donors", n.donors}, {"mtp", n.mtp}, {"hidden", n.hidden}};
    const struct {
        const char *name;
        int value;
    } facts[] = {{"hidden_size", n.hidden_width}, {"num_hidden_layers", n.n_layers}, {"vocab_size", n.n_vocab}};
    json_t *list = json_array(), *target = json_object(), *layers = json_array();
    for (size_t i = 0; i < SIB_COUNT(ports); i++)
        if (ports[i].needed) (void)json_array_append_new(list, json_string(ports[i].name));
    for (size_t i = 0; i < SIB_COUNT(facts); i++)
        if (facts[i].value) put(target, facts[i].name, json_integer(facts[i].value));
    for (int i = 0; i < n.n_taps; i++) (void)json_array_append_new(layers, json_integer(n.tap_layers[i]));
    put(o, "needs", list);
    if (n.n_taps)
        put(target, "tapped_layers", layers);
    else
        json_decref(layers);
    put(o, "target", target);
}

static size_t suffix_at(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0 ? n - m : 0;
}

/* The storage of one weight tensor: "4-bit group 64", "BF16"; bits and group follow from the shapes (formats.md B.5). */
static void storage_of(const sib_checkpoint *c, const sib_tensor_info *t, char out[static 32])
{
    size_t stem = suffix_at(t->name, ".weight");
    char name[1100];
    (void)snprintf(out, 32, "%s", sib_dtype_name(t->dtype));
    if (!stem || stem > 1000 || t->rank < 2) return;
    (void)snprintf(name, sizeof name, "%.*s.scales", (int)stem, t->name);
    const sib_tensor_info *s = sib_checkpoint_find(c, name);
    (void)snprintf(name, sizeof name, "%.*s.biases", (int)stem, t->name);
    const sib_tensor_info *b = sib_checkpoint_find(c, name);
    if (!s || s->rank != t->rank) return;
    int64_t words = t->shape[t->rank - 1], groups = s->shape[s->rank - 1];
    static const int widths[] = {2, 3, 4, 5, 6, 8}, sizes[] = {32, 64, 128};
    if (!b) {
        (void)snprintf(out, 32, "fp (mx/nv)");
        return;
    }
    /* words * 32 = bits * in and in = groups * group: the config breaks the tie that shapes alone leave. */
    int64_t bits = 0, group = 0;
    const json_t *q = sib_json_get(sib_checkpoint_config(c), "quantization");
    if (q) {
        (void)snprintf(name, sizeof name, "%.*s", (int)stem, t->name);
        const json_t *own = sib_json_get(q, name);
        const json_t *from = json_is_object(own) ? own : q;
        bits = json_integer_value(json_object_get(from, "bits"));
        group = json_integer_value(json_object_get(from, "group_size"));
    }
    if (bits * group * groups != words * 32)
        for (size_t i = 0; i < SIB_COUNT(widths); i++)
            for (size_t j = 0; j < SIB_COUNT(sizes); j++)
                if (widths[i] * sizes[j] * groups == words * 32) bits = widths[i], group = sizes[j];
    (void)snprintf(out, 32, "%d-bit group %d", (int)bits, (int)group);
}

/* "model.layers.12.mlp.up_proj.weight" -> "mlp.up_proj": what the same module is called in every layer. */
static void module_of(const char *name, char out[static 128])
{
    size_t stem = suffix_at(name, ".weight");
    const char *at = strstr(name, "layers.");
    size_t n = stem ? stem : strlen(name), from = 0;
    if (at) {
        at += strlen("layers.");
        while (*at >= '0' && *at <= '9') at++;
        if (*at == '.') from = (size_t)(at + 1 - name);
    }
    (void)snprintf(out, 128, "%s%.*s", from && strstr(name, "vision") ? "vision " : "", (int)(n - from), name + from);
}

/* [{"module","storage","tensors","bytes"}] over all weight tensors, in order of first appearance. */
static json_t *quantization_of(const sib_checkpoint *c)
{
    json_t *list = json_array();
    for (size_t i = 0; i < sib_checkpoint_count(c); i++) {
        const sib_tensor_info *t = sib_checkpoint_at(c, i);
        if (t->rank < 2 || suffix_at(t->name, ".scales") || suffix_at(t->name, ".biases")) continue;
        char storage[32], module[128];
        storage_of(c, t, storage);
        module_of(t->name, module);
        json_t *row = NULL, *each;
        size_t k;
        json_array_foreach(list, k, each)
            if (strcmp(json_string_value(json_object_get(each, "module")), module) == 0 && strcmp(json_string_value(json_object_get(each, "storage")), storage) == 0) row = each;
        if (!row) {
            row = json_object();
            put(row, "module", json_string(module));
            put(row, "storage", json_string(storage));
            put(row, "tensors", json_integer(0));
            put(row, "bytes", json_integer(0));
            (void)json_array_append_new(list, row);
        }
        put(row, "tensors", json_integer(json_integer_value(json_object_get(row, "tensors")) + 1));
        put(row, "bytes", json_integer(json_integer_value(json_object_get(row, "bytes")) + (json_int_t)t->bytes));
    }
    return list;
}

/* With pictures: a model that reads them must have room for one. */
static uint64_t total_of(const sib_memory *m)
{
    return (uint64_t)m->weights + m->cache + m->step + m->results + m->pictures;
}

static json_t *memory_row(int ctx, const sib_memory *m)
{
    json_t *o = json_object();
    put(o, "ctx", json_integer(ctx));
    put(o, "weights", json_integer((json_int_t)m->weights));
    put(o, "cache", json_integer((json_int_t)m->cache));
    put(o, "step", json_integer((json_int_t)m->step));
    put(o, "results", json_integer((json_int_t)m->results));
    put(o, "pictures", json_integer((json_int_t)m->pictures));
    put(o, "total", json_integer((json_int_t)total_of(m)));
    return o;
}

static json_t *config_facts(const sib_checkpoint *c)
{
    static const char *const keys[] = {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "global_head_dim",
                                       "intermediate_size", "vocab_size", "sliding_window", "max_position_embeddings", "num_experts", "num_experts_per_tok",
                                       "top_k_experts", "moe_intermediate_size", "num_kv_shared_layers", "block_size"};
    json_t *o = json_object();
    const json_t *t = sib_checkpoint_text_config(c), *own = sib_json_get(t, "config");
    const char *name;
    json_t *each;
    json_object_foreach((json_t *)(uintptr_t)own, name, each) /* dspark.json */
        if (!json_is_array(each) && !json_is_object(each)) (void)json_object_set(o, name, each);
    for (size_t i = 0; i < SIB_COUNT(keys); i++) {
        json_t *v = sib_json_get(t, keys[i]);
        if (v && !json_is_array(v) && !json_is_object(v)) (void)json_object_set(o, keys[i], v);
    }
    return o;
}

/* Why the checkpoint would not load goes into the report; that this machine has no memory now is the call's own failure. */
static sib_status report_model(plan *p, json_t *o, sib_err *err)
{
    sib_err e = {0};
    sib_memory memory = {0};
    sib_facts facts = {0};
    sib_offers offers = {0};
    p->family = sib_family_for(p->files, &e);
    if (p->family) {
        put(o, "family", json_string(p->family->name));
        static const int contexts[] = {2048, 8192, 32768, 131072};
        json_t *rows = json_array();
        sib_status s = SIB_OK;
        for (size_t i = 0; i < SIB_COUNT(contexts) && s == SIB_OK; i++) {
            sib_model_limits limits = {.n_ctx = contexts[i]};
            s = plan_model(p, &limits, &memory, &facts, &offers, &e);
            if (s != SIB_OK || (i > 0 && contexts[i] > facts.max_positions)) break;
            (void)json_array_append_new(rows, memory_row(contexts[i], &memory));
        }
        /* What it could offer, its draft head included; the memory rows are without. */
        sib_model_limits all = {.n_ctx = contexts[0], .mtp = SIB_MTP_DENSE};
        if (s == SIB_OK) s = plan_model(p, &all, &memory, &facts, &offers, &e);
        if (s == SIB_OK) {
            put(o, "offers", offers_of(&offers));
            put(o, "memory", rows);
        } else {
            json_decref(rows);
        }
    }
    if (e.status == SIB_ENOMEM) return sib_fail(err, SIB_ENOMEM, "%s", e.message);
    if (e.status != SIB_OK) put(o, "error", json_string(e.message));
    return SIB_OK;
}

sib_status sib_inspect_json(sib_buf *out, const char *place, sib_err *err)
{
    plan p;
    sib_status s = plan_open(&p, place, SIB_NUM_BF16, false, err);
    if (s != SIB_OK) {
        plan_close(&p);
        return s;
    }
    json_t *o = json_object();
    const char *dir = sib_checkpoint_dir(p.files);
    put(o, "path", json_string(dir));
    const json_t *arch = json_array_get(json_object_get(sib_checkpoint_config(p.files), "architectures"), 0);
    sib_drafter_kind kind = sib_drafter_kind_in(dir);
    bool drafter = kind != SIB_DRAFTER_TWO_MODEL;
    put(o, "kind", json_string(drafter ? "drafter" : "model"));
    put(o, "model_type", json_string(sib_checkpoint_type(p.files)));
    if (json_is_string(arch)) put(o, "architecture", json_incref((json_t *)(uintptr_t)arch));
    put(o, "tensor_count", json_integer((json_int_t)sib_checkpoint_count(p.files)));
    put(o, "file_bytes", json_integer((json_int_t)sib_checkpoint_bytes(p.files)));
    put(o, "config", config_facts(p.files));
    put(o, "quantization", quantization_of(p.files));
    if (drafter)
        report_drafter(&p, o);
    else
        s = report_model(&p, o, err);
    json_t *tensors = sib_checkpoint_report(p.files);
    if (tensors) put(o, "tensors", tensors);
    char *text = s == SIB_OK ? json_dumps(o, JSON_COMPACT) : NULL;
    if (text) sib_buf_addz(out, text);
    if (s == SIB_OK && (!text || out->failed)) s = sib_nomem(err, "report");
    free(text);
    json_decref(o);
    plan_close(&p);
    return s;
}

/* ---- fit ---------------------------------------------------------------------------------------- */

static uint64_t pages(int name)
{
    long n = sysconf(name), size = sysconf(_SC_PAGESIZE);
    return n > 0 && size > 0 ? (uint64_t)n * (uint64_t)size : 0;
}

/* MemAvailable counts page cache that can be dropped, which _SC_AVPHYS_PAGES does not. */
static uint64_t available_memory(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    unsigned long long kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1) break;
    if (f) fclose(f);
    return kib ? (uint64_t)kib * 1024 : pages(_SC_AVPHYS_PAGES);
}

static sib_status fit_of(plan *p, const sib_options *o, int parallel, int ctx, sib_memory *m, sib_facts *facts, sib_err *err)
{
    sib_model_limits limits;
    sib_engine_limits(o, parallel, &limits);
    limits.n_ctx = ctx;
    return plan_model(p, &limits, m, facts, NULL, err);
}

static sib_status fit(plan *p, sib_buf *out, const sib_options *o, int parallel, sib_err *err)
{
    sib_memory m, trial;
    sib_facts facts;
    p->family = sib_family_for(p->files, err);
    if (!p->family) return SIB_EUNSUPPORTED;
    SIB_TRY(fit_of(p, o, parallel, o->n_ctx, &m, &facts, err));
    uint64_t available = available_memory();
    /* Largest context that fits: bytes grow with it, so bisect over multiples of 64. */
    int lo = 0, hi = facts.max_positions / 64;
    while (lo < hi) {
        int mid = lo + (hi - lo + 1) / 2;
        SIB_TRY(fit_of(p, o, parallel, mid * 64, &trial, NULL, err));
        if (total_of(&trial) <= available)
            lo = mid;
        else
            hi = mid - 1;
    }
    const struct {
        const char *name;
        size_t bytes;
    } parts[] = {{"weights", m.weights}, {"cache", m.cache}, {"step", m.step}, {"results", m.results}, {"pictures", m.pictures}};
    sib_buf_addf(out, "{\"ctx\":%d,\"parallel\":%d,\"numerics\":\"%s\",\"parts\":[", facts.n_ctx, parallel, o->numerics ? o->numerics : "bf16");
    for (size_t i = 0; i < SIB_COUNT(parts); i++) sib_buf_addf(out, "%s{\"name\":\"%s\",\"bytes\":%zu}", i ? "," : "", parts[i].name, parts[i].bytes);
    sib_buf_addf(out, "],\"total_bytes\":%llu,\"machine\":{\"memory_bytes\":%llu,\"available_bytes\":%llu},\"fits\":%s,\"largest_ctx\":%d}",
                 (unsigned long long)total_of(&m), (unsigned long long)pages(_SC_PHYS_PAGES), (unsigned long long)available,
                 total_of(&m) <= available ? "true" : "false", lo * 64);
    return out->failed ? sib_nomem(err, "report") : SIB_OK;
}

sib_status sib_fit_json(sib_buf *out, const sib_options *o, int parallel, sib_err *err)
{
    plan p = {0};
    sib_numerics numerics;
    if (!o->model) return sib_fail(err, SIB_EARG, "no model was named");
    if (parallel < 1 || parallel > 1024) return sib_fail(err, SIB_EARG, "parallel is %d, allowed are 1 to 1024", parallel);
    SIB_TRY(sib_engine_numerics(o->numerics, &numerics, err));
    sib_status s = plan_open(&p, o->model, numerics, o->lax_safetensors, err);
    if (s == SIB_OK) s = fit(&p, out, o, parallel, err);
    plan_close(&p);
    return s;
}

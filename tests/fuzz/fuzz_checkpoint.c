/* tests/fuzz/fuzz_checkpoint.c - libFuzzer target over a checkpoint folder: config.json, the shard index,
 * generation_config.json, the quantization map and tensor shapes, by everything that a load checks before it reads
 * weights. Parts: config, header of model.safetensors, bytes of its data in decimal, index, generation config.
 * Seeds: tests/fuzz/corpus/checkpoint. */
#include "fuzz_parts.h"

#include "artifacts/generation_config.h"
#include "artifacts/quant.h"
#include "engine/report.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char dir[] = "/tmp/sibyl-fuzz-XXXXXX";

static void remove_folder(void)
{
    static const char *const names[] = {"config.json", "model.safetensors", "model.safetensors.index.json", "generation_config.json"};
    char path[128];
    for (size_t i = 0; i < SIB_COUNT(names); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(dir);
}

/* An empty part is a file that is not there. */
static void put_file(const char *name, sib_str head, sib_str text, size_t tail)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!text.n) {
        (void)unlink(path);
        return;
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, head.p, head.n) != (ssize_t)head.n || write(fd, text.p, text.n) != (ssize_t)text.n) abort();
    if (ftruncate(fd, (off_t)(head.n + text.n + tail)) != 0) abort();
    (void)close(fd);
}

/* Every module as a matrix of the shape its tensor seems to have, and every tensor as a vector. */
static void read_modules(sib_checkpoint *c)
{
    float *values = malloc(4096 * sizeof *values);
    for (size_t i = 0; i < sib_checkpoint_count(c) && i < 64; i++) {
        const sib_tensor_info *t = sib_checkpoint_at(c, i);
        sib_matrix_src m;
        char stem[1100];
        size_t n = strlen(t->name), cut = sib_ends_with(t->name, ".weight") ? n - 7 : n;
        (void)snprintf(stem, sizeof stem, "%.*s", (int)cut, t->name);
        int64_t out = t->rank > 1 ? t->shape[t->rank - 2] : 1, in = t->rank ? t->shape[t->rank - 1] : 1;
        for (int64_t wide = 1; wide <= 16; wide *= 2) (void)sib_matrix_of(c, stem, out, in > INT64_MAX / 16 ? in : in * wide, 0, &m, NULL);
        if (values && sib_tensor_elements(t) <= 4096) (void)sib_vector_of(c, t->name, sib_tensor_elements(t), values, NULL);
    }
    free(values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static bool made;
    if (!made) {
        if (!mkdtemp(dir) || atexit(remove_folder) != 0) abort();
        made = true;
    }
    sib_str part[5];
    fuzz_split(data, n, part, 5);
    char decimal[16] = {0}, length[8];
    memcpy(decimal, part[2].p, part[2].n < 7 ? part[2].n : 7);
    for (int i = 0; i < 8; i++) length[i] = (char)(part[1].n >> 8 * i);
    put_file("config.json", SIB_STR(""), part[0], 0);
    put_file("model.safetensors", (sib_str){length, 8}, part[1], strtoul(decimal, NULL, 10));
    put_file("model.safetensors.index.json", SIB_STR(""), part[3], 0);
    put_file("generation_config.json", SIB_STR(""), part[4], 0);

    sib_checkpoint *c = NULL;
    sib_err err = {0};
    sib_generation_config g;
    if (sib_checkpoint_open(&c, dir, NULL, &err) == SIB_OK) {
        (void)sib_quant_check(c, &err);
        (void)sib_generation_config_parse(&g, sib_checkpoint_generation_config(c), "fuzz", &err);
        read_modules(c);
        json_t *report = sib_checkpoint_report(c);
        if (!report) abort();
        json_decref(report);
    } else if (c || !err.message[0]) {
        abort();
    }
    sib_checkpoint_free(c);

    sib_buf out = {0};
    err = (sib_err){0};
    if (sib_inspect_json(&out, dir, &err) != SIB_OK && !err.message[0]) abort();
    sib_buf_deinit(&out);
    return 0;
}

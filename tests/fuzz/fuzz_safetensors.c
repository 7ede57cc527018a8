/* tests/fuzz/fuzz_safetensors.c - libFuzzer target over the safetensors reader. The first byte of the input
 * chooses strict or lax and how many of its last bytes are data rather than header; the length field is
 * written here, so that the fuzzer spends its time behind it. What opens is read to its last byte.
 *
 *   clang-14 -std=c17 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined -Iinclude -Isrc \
 *       tests/fuzz/fuzz_safetensors.c src/artifacts/{mapping,names,safetensors}.c \
 *       src/base/{str,status,utf8,log}.c src/tensor/dtype.c -lm -lpthread
 *   ./a.out -max_total_time=120 -max_len=400 CORPUS */
#include "artifacts/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_everything(const sib_safetensors *f)
{
    volatile unsigned sum = 0;
    for (size_t i = 0; i < sib_safetensors_count(f); i++) {
        const sib_tensor_info *t = sib_safetensors_at(f, i);
        char text[256];
        for (size_t k = 0; k < t->bytes; k++) sum += ((const unsigned char *)t->data)[k];
        if (sib_safetensors_find(f, t->name) != t || sib_tensor_elements(t) < 0) abort();
        (void)sib_tensor_describe(t, text);
    }
    (void)sib_safetensors_metadata(f, "format");
    (void)sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (n < 1) return 0;
    bool lax = data[0] & 1;
    size_t tail = data[0] >> 1, body = n - 1, header = body > tail ? body - tail : body;
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(header >> 8 * i);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, length, 8, 0) != 8 || pwrite(fd, data + 1, body, 8) != (ssize_t)body)
        abort();

    sib_safetensors *f;
    sib_err err = {0};
    if (sib_safetensors_open(&f, path, lax, &err) == SIB_OK)
        read_everything(f);
    else if (f || !err.message[0])
        abort();
    sib_safetensors_free(f);
    return 0;
}

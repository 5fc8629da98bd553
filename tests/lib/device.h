/* tests/lib/device.h - which backend a test drives: that of the CPU, or the one
 * that OCRFS_TEST_DEVICE names ("cuda", "cuda:1"), which tests/gpu/run sets.
 * Its plugin lies two folders above the program. */
#ifndef TEST_DEVICE_H
#define TEST_DEVICE_H
#include "kernels/backend.h"
#include "tests/lib/random_model.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline const char *device_name(void)
{
    const char *name = getenv("OCRFS_TEST_DEVICE");

    return name && *name ? name : "cpu";
}

static inline bool device_is_cpu(void)
{
    return !strcmp(device_name(), "cpu");
}

/* Two folders above the program, or what OCRFS_TEST_PLUGIN says. */
static inline void device_plugin_path(char *out, size_t size)
{
    const char *given = getenv("OCRFS_TEST_PLUGIN");
    char path[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

    path[n > 0 ? n : 0] = '\0';
    if (strrchr(path, '/'))
        *strrchr(path, '/') = '\0';
    if (given)
        snprintf(out, size, "%s", given);
    else
        snprintf(out, size, "%.4000s/../../ocrfs-cuda.so", path);
}

static inline const struct ocr_backend_ops *device_load(void)
{
    char path[PATH_MAX];
    ocr_backend_plugin_fn *plugin = NULL;
    void *handle, *symbol = NULL;

    device_plugin_path(path, sizeof path);
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle)
        symbol = dlsym(handle, OCR_BACKEND_PLUGIN_SYMBOL);
    if (!symbol) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    memcpy(&plugin, &symbol, sizeof plugin);
    return plugin();
}

static inline const struct ocr_backend_ops *device_ops(const char *name)
{
    static const struct ocr_backend_ops *gpu;

    if (!strcmp(name, "cpu"))
        return &ocr_backend_cpu;
    if (!gpu)
        gpu = device_load();
    return gpu;
}

/* The smallest shape that the GPU's kernels take. */
static const struct random_shape GPU_SHAPE = {
    .vision_layers = 2,
    .vision_hidden = 128,
    .vision_heads = 2,
    .vision_inner = 192,
    .text_layers = 2,
    .hidden = 128,
    .heads = 2,
    .kv_heads = 1,
    .head_dim = 128,
    .inner = 192,
    .vocab = 128,
    .patch = 14,
    .grid = 8,
    .max_positions = 512,
    .text_theta = 1e4f,
    .dtype = OCR_DTYPE_BF16,
};

static inline const struct random_shape *device_shape(void)
{
    return device_is_cpu() ? &ODD_SHAPE : &GPU_SHAPE;
}

#endif

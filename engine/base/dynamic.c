#include "engine/base/dynamic.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool own_folder(char *out, size_t size)
{
    const ssize_t n = readlink("/proc/self/exe", out, size - 1);

    if (n <= 0)
        return false;
    out[n] = '\0';
    *strrchr(out, '/') = '\0';
    return true;
}

static bool find_file(const char *name, char *path, size_t size,
                      struct ocr_err *err)
{
    static const char *const places[] = {".", "../../lib/ocrfs"};
    char folder[PATH_MAX];

    if (!own_folder(folder, sizeof folder)) {
        ocr_err_errno(err, "cannot read /proc/self/exe");
        return false;
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, size, "%s/%s/ocrfs-%s.so", folder, places[i], name);
        if (access(path, R_OK) == 0)
            return true;
    }
    ocr_err_set(err, -ENOENT,
                "%s is not installed: there is no ocrfs-%s.so beside "
                "ocrfs-engine",
                name, name);
    return false;
}

void *ocr_dynamic_symbol(const char *name, const char *symbol,
                         struct ocr_err *err)
{
    char path[PATH_MAX + 128];
    void *handle, *address = NULL;

    if (!find_file(name, path, sizeof path, err))
        return NULL;
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle)
        address = dlsym(handle, symbol);
    if (!address)
        ocr_err_set(err, -ENOEXEC, "cannot load %s: %s", name, dlerror());
    return address;
}

void *ocr_dynamic_system(const char *library, const char *symbol)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);

    return handle ? dlsym(handle, symbol) : NULL;
}

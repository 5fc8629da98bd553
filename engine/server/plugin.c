#include "engine/server/plugin.h"

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

static void *load_plugin(const char *name, struct ocr_err *err)
{
    static const char *const places[] = {".", "../../lib/ocrfs"};
    char folder[PATH_MAX], path[PATH_MAX + 128];

    if (!own_folder(folder, sizeof folder)) {
        ocr_err_errno(err, "cannot read /proc/self/exe");
        return NULL;
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        void *handle;

        snprintf(path, sizeof path, "%s/%s/ocrfs-%s.so", folder, places[i],
                 name);
        if (access(path, R_OK))
            continue;
        handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!handle)
            ocr_err_set(err, -ENOEXEC, "cannot load the recogniser %s: %s",
                        name, dlerror());
        return handle;
    }
    ocr_err_set(err, -ENOENT,
                "the recogniser %s is not installed: there is no ocrfs-%s.so "
                "beside ocrfs-engine",
                name, name);
    return NULL;
}

const struct ocr_recogniser_ops *ocr_recogniser_find(const char *spec,
                                                     const char **arguments,
                                                     struct ocr_err *err)
{
    const size_t len = strcspn(spec, ":");
    const struct ocr_recogniser_ops *ops;
    ocr_recogniser_plugin_fn *plugin = NULL;
    char name[32];
    void *handle, *symbol;

    *arguments = spec[len] ? spec + len + 1 : "";
    snprintf(name, sizeof name, "%.*s", (int)len, spec);
    if (!strcmp(name, ocr_recogniser_null.name))
        return &ocr_recogniser_null;
#if HAVE_MODEL
    if (!strcmp(name, ocr_recogniser_lighton.name))
        return &ocr_recogniser_lighton;
#endif
    if (!name[0] || strspn(name, "abcdefghijklmnopqrstuvwxyz") != len) {
        ocr_err_set(err, -EINVAL, "there is no recogniser named %s", name);
        return NULL;
    }
    handle = load_plugin(name, err);
    if (!handle)
        return NULL;
    symbol = dlsym(handle, OCR_RECOGNISER_PLUGIN_SYMBOL);
    memcpy(&plugin, &symbol, sizeof plugin); /* POSIX allows, C does not */
    ops = plugin ? plugin() : NULL;
    if (!ops || ops->abi != OCR_RECOGNISER_ABI) {
        ocr_err_set(err, -ENOEXEC,
                    "ocrfs-%s.so is of another version than ocrfs-engine",
                    name);
        return NULL;
    }
    return ops;
}

/* ---- the recogniser that is not there
 * ---------------------------------------- */

static struct ocr_err missing_reason;

static int missing_open(struct ocr_recogniser **out,
                        const struct ocr_recogniser_config *config,
                        struct ocr_err *err)
{
    (void)config;
    *out = NULL;
    return ocr_err_set(err, missing_reason.code, "%s", missing_reason.text);
}

const struct ocr_recogniser_ops *
ocr_recogniser_missing(const struct ocr_err *err)
{
    static const struct ocr_recogniser_ops ops = {
        .abi = OCR_RECOGNISER_ABI, .name = "missing", .open = missing_open};

    missing_reason = *err;
    return &ops;
}

#include "engine/server/plugin.h"

#include "engine/base/dynamic.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

const struct ocr_recogniser_ops *ocr_recogniser_find(const char *spec,
                                                     const char **arguments,
                                                     struct ocr_err *err)
{
    const size_t len = strcspn(spec, ":");
    const struct ocr_recogniser_ops *ops;
    ocr_recogniser_plugin_fn *plugin = NULL;
    char name[32];
    void *symbol;

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
    symbol = ocr_dynamic_symbol(name, OCR_RECOGNISER_PLUGIN_SYMBOL, err);
    if (!symbol)
        return NULL;
    memcpy(&plugin, &symbol, sizeof plugin); /* POSIX allows, C does not */
    ops = plugin();
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

/* The driver and the plugin of this machine. */
#include "engine/base/dynamic.h"
#include "engine/gpu/gpu.h"
#include "kernels/gpu_trouble.h"

#include <errno.h>
#include <string.h>

static void *system_driver(const char *symbol)
{
    return ocr_dynamic_system("libcuda.so.1", symbol);
}

static const struct ocr_backend_ops *system_plugin(struct ocr_err *err)
{
    struct ocr_err why = OCR_ERR_INIT;
    ocr_backend_plugin_fn *plugin = NULL;
    void *symbol = ocr_dynamic_symbol("cuda", OCR_BACKEND_PLUGIN_SYMBOL, &why);
    const struct ocr_backend_ops *ops;

    if (!symbol) {
        if (why.code == -ENOENT)
            ocr_gpu_err(err, OCR_GPU_NO_PLUGIN, NULL, "");
        else
            ocr_err_set(err, why.code, "%s", why.text);
        return NULL;
    }
    memcpy(&plugin, &symbol, sizeof plugin); /* POSIX allows, C does not */
    ops = plugin();
    if (ops->abi == OCR_BACKEND_ABI)
        return ops;
    ocr_err_set(err, -ENOEXEC,
                "ocrfs-cuda.so is of another version than ocrfs-engine");
    return NULL;
}

const struct ocr_gpu_source ocr_gpu_system = {system_driver, system_plugin};

#include "engine/gpu/gpu.h"

#include "kernels/gpu_trouble.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CUDA_OLDEST = 13000 /* the plugin is built with CUDA 13.0 */
};

/* ---- asking ------------------------------------------------------------- */

int ocr_gpu_number(const char *device)
{
    char *end;
    unsigned long n;

    if (!strcmp(device, "auto") || !strcmp(device, "cuda"))
        return 0;
    if (strncmp(device, "cuda:", 5) || device[5] < '0' || device[5] > '9')
        return -1;
    n = strtoul(device + 5, &end, 10);
    return *end || n > 1023 ? -1 : (int)n;
}

/* Calls driver function `symbol` for one number; NULL: without argument. */
static int ask_driver(const struct ocr_gpu_source *from, const char *symbol,
                      int *number)
{
    int (*init)(unsigned flags) = NULL;
    int (*get)(int *out) = NULL;
    void *address = from->driver(symbol);

    if (!address)
        return OCR_GPU_NO_DRIVER;
    if (!number) {
        memcpy(&init, &address, sizeof init);
        return init(0);
    }
    memcpy(&get, &address, sizeof get);
    return get(number);
}

static int find_driver(struct ocr_gpu *out, const struct ocr_gpu_source *from,
                       int number, struct ocr_err *err)
{
    int code = ask_driver(from, "cuInit", NULL);

    /* The version is known even where there is no card, or a broken driver. */
    if (code != OCR_GPU_NO_DRIVER &&
        ask_driver(from, "cuDriverGetVersion", &out->driver) == 0 &&
        out->driver < CUDA_OLDEST)
        code = OCR_GPU_OLD_DRIVER;
    if (!code)
        code = ask_driver(from, "cuDeviceGetCount", &out->count);
    if (!code && !out->count)
        code = OCR_GPU_NONE;
    if (!code && number >= out->count)
        code = OCR_GPU_NO_SUCH;
    return code ? ocr_gpu_err(err, code, NULL, "the driver does not start") : 0;
}

int ocr_gpu_find(struct ocr_gpu *out, const struct ocr_gpu_source *from,
                 const char *device, struct ocr_err *err)
{
    const int number = ocr_gpu_number(device);
    const struct ocr_backend_ops *ops;
    char name[16];
    int rc;

    *out = (struct ocr_gpu){.driver = 0};
    if (number < 0)
        return ocr_err_set(err, -EINVAL, "%s is no device", device);
    rc = find_driver(out, from, number, err);
    if (rc)
        return rc;
    ops = from->plugin(err);
    if (!ops)
        return -ENODEV;
    snprintf(name, sizeof name, "cuda:%d", number);
    rc = ops->probe(name, out->card, sizeof out->card, err);
    if (!rc)
        out->ops = ops;
    return rc;
}

/* ---- telling ------------------------------------------------------------ */

__attribute__((format(printf, 4, 5))) static void line(struct ocr_buf *out,
                                                       const char *verdict,
                                                       const char *subject,
                                                       const char *format, ...)
{
    char text[768];
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    ocr_buf_printf(out, "%s\t%s\t%s\n", verdict, subject, text);
}

bool ocr_gpu_next(const char **list, bool *rest, char *out, size_t size)
{
    const size_t len = strcspn(*list, ",");

    if (!**list)
        return false;
    snprintf(out, size, "%s%.*s", *rest ? "cuda:" : "", (int)len, *list);
    *list += len + ((*list)[len] == ',');
    *rest = true;
    return true;
}

static void report_one(const struct ocr_gpu_source *from, const char *device,
                       bool first, struct ocr_buf *out)
{
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_gpu gpu;
    const bool cpu = !strcmp(device, "cpu");
    const int rc = ocr_gpu_find(&gpu, from, cpu ? "auto" : device, &err);

    if (gpu.driver && first)
        line(out, gpu.driver < CUDA_OLDEST ? "note" : "ok", "GPU driver",
             "for CUDA %d.%d, %d GPU%s", gpu.driver / 1000,
             gpu.driver % 1000 / 10, gpu.count, gpu.count == 1 ? "" : "s");
    if (rc)
        line(out, "note", "GPU", "%s; models read on the CPU", err.text);
    else
        line(out, "ok", "GPU", "%s%s", gpu.card,
             cpu ? "; not used, since device=cpu" : "");
}

void ocr_gpu_report(const struct ocr_gpu_source *from, const char *devices,
                    struct ocr_buf *out)
{
    char device[32];
    bool rest = false;

    for (bool first = true;
         ocr_gpu_next(&devices, &rest, device, sizeof device); first = false)
        report_one(from, device, first, out);
}

/* What the model would take of GPUs, for `ocrfs doctor`: nothing is loaded, and
 * of the weights only shapes are looked at. */
#include "engine/lighton/lighton_i.h"

#include "engine/gpu/gpu.h"
#include "engine/image/resize.h"

#include <stdio.h>
#include <string.h>

enum {
    A4_WIDTH = 2480, /* at 300 dpi */
    A4_HEIGHT = 3508,
    AROUND_IMAGE = 12, /* tokens of the prompt beside the image's */
};

/* A4 pages that may run at once if each may write as much as is allowed. */
static unsigned a4_pages(const struct ocr_recogniser *r,
                         const struct ocr_backend_config *config,
                         const struct ocr_backend_plan *plan)
{
    const struct ocr_model *m = &r->folder->model;
    const uint32_t side = m->vision.patch * m->projector.merge;
    uint32_t width, height, tokens, pages;

    ocr_resize_size(A4_WIDTH, A4_HEIGHT, r->folder->config.longest_edge,
                    r->multiple, &width, &height);
    tokens =
        width / side * (height / side) + AROUND_IMAGE + config->max_tokens + 1;
    pages = plan->blocks / ((tokens + OCR_BLOCK_TOKENS - 1) / OCR_BLOCK_TOKENS);
    return pages < plan->slots ? pages : plan->slots;
}

static double gib(uint64_t bytes)
{
    return (double)bytes / 0x1p30;
}

static void say_plan(struct ocr_recogniser *r,
                     const struct lighton_arguments *a, const char *subject,
                     uint64_t bytes, struct ocr_buf *out)
{
    struct ocr_backend_plan plan = {.slots = 0};
    struct ocr_backend_config config;
    struct ocr_err err = OCR_ERR_INIT;
    unsigned pages;

    lighton_describe_config(&config, r, a);
    if (r->ops->plan(&config, &r->folder->model, bytes, &plan, &err)) {
        ocr_buf_printf(out, "note\t%s\t%s\n", subject, err.text);
        return;
    }
    pages = a4_pages(r, &config, &plan);
    ocr_buf_printf(out,
                   "ok\t%s\t%s%sweights %.2f GiB, workspace %.2f, KV %.2f: %u "
                   "A4 page%s at once, %u smaller ones\n",
                   subject, plan.device, plan.device[0] ? ": " : "",
                   gib(plan.weight_bytes), gib(plan.workspace_bytes),
                   gib(plan.kv_bytes), pages, pages == 1 ? "" : "s",
                   plan.slots);
}

/* Makers' sizes: 10^9 bytes. Of 24 GB, say, a card shows some 22 GiB. */
static void say_sizes(struct ocr_recogniser *r,
                      const struct lighton_arguments *a, struct ocr_buf *out)
{
    static const unsigned sizes_gb[] = {16, 24, 32, 40, 80, 141};
    struct ocr_err err = OCR_ERR_INIT;
    char subject[32];

    r->ops = ocr_gpu_system.plugin(&err);
    if (!r->ops || !r->ops->plan) {
        ocr_buf_printf(out, "note\tGPU sizes\t%s\n",
                       r->ops ? "the plugin cannot tell" : err.text);
        return;
    }
    for (size_t i = 0; i < sizeof sizes_gb / sizeof *sizes_gb; i++) {
        snprintf(subject, sizeof subject, "%u GB", sizes_gb[i]);
        say_plan(r, a, subject, sizes_gb[i] * (uint64_t)1000000000, out);
    }
}

static void say_devices(struct ocr_recogniser *r,
                        const struct lighton_arguments *a, const char *devices,
                        struct ocr_buf *out)
{
    char device[32], subject[32];
    struct ocr_gpu gpu;
    bool rest = false;

    while (ocr_gpu_next(&devices, &rest, device, sizeof device)) {
        /* What is wrong with one is told by ocr_gpu_report(). */
        if (ocr_gpu_find(&gpu, &ocr_gpu_system, device, NULL) || !gpu.ops->plan)
            continue;
        r->ops = gpu.ops;
        snprintf(r->device, sizeof r->device, "cuda:%d",
                 ocr_gpu_number(device));
        snprintf(subject, sizeof subject, "GPU %d memory",
                 ocr_gpu_number(device));
        say_plan(r, a, subject, 0, out);
    }
}

void lighton_plans(const struct ocr_recogniser_config *config, bool sizes,
                   struct ocr_buf *out)
{
    struct ocr_recogniser r = {.held = 0};
    struct lighton_arguments a;

    /* A folder that is no good is told by open. */
    if (!config->model[0] || lighton_arguments(&a, config->arguments, NULL) ||
        ocr_model_folder_open(&r.folder, config->model, NULL))
        return;
    lighton_take_shape(&r, &a);
    if (sizes)
        say_sizes(&r, &a, out);
    else if (strcmp(config->device, "cpu"))
        say_devices(&r, &a, config->device, out);
    ocr_model_folder_close(r.folder);
}

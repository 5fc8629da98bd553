#include "engine/lighton/lighton_i.h"

#include "engine/base/io.h"
#include "engine/base/log.h"
#include "engine/base/setting.h"
#include "engine/base/size.h"
#include "engine/gpu/gpu.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the fingerprint: raise it when a page is prepared or read differently
 * with the same weights and NUMERICS. */
enum {
    PREPARATION_VERSION = 1
};

enum {
    CPU_SLOTS = 4, /* more would only wait for each other */
    CPU_AHEAD = 2,
    GPU_FLIGHTS = 2, /* it never waits for the one that submits */
    GPU_STEPS = 1,   /* a page that ends holds its slot for two steps */
};

static const struct {
    const char *name;
    enum ocr_precision precision;
} precisions[] = {
    {"bf16", OCR_PRECISION_BF16},
    {"fp32", OCR_PRECISION_FP32},
    {"int8", OCR_PRECISION_INT8},
    {"fp16", OCR_PRECISION_FP16},
};

/* ---- arguments: "precision=int8:patch_multiple=14:slots=4"
 * ------------------- */

static int take_number(const char *text, uint32_t least, uint32_t most,
                       uint32_t *out, struct ocr_err *err)
{
    char *end;
    const unsigned long value = strtoul(text, &end, 10);

    if (end == text || *end || value < least || value > most)
        return ocr_err_set(err, -EINVAL, "%s is not a number from %u to %u",
                           text, least, most);
    *out = (uint32_t)value;
    return 0;
}

static int take_precision(const char *text, struct lighton_arguments *a,
                          struct ocr_err *err)
{
    a->any_precision = !strcmp(text, "auto");
    if (a->any_precision) {
        a->precision = OCR_PRECISION_BF16;
        return 0;
    }
    for (size_t i = 0; i < sizeof precisions / sizeof *precisions; i++) {
        if (!strcmp(text, precisions[i].name)) {
            a->precision = precisions[i].precision;
            return 0;
        }
    }
    return ocr_err_set(err, -EINVAL,
                       "precision is auto, bf16, fp16, fp32 or int8, not %s",
                       text);
}

static int take_argument(struct lighton_arguments *a, char *word,
                         struct ocr_err *err)
{
    char *value = strchr(word, '=');

    if (!value)
        return ocr_err_set(err, -EINVAL, "lighton has no argument %s", word);
    *value++ = '\0';
    if (!strcmp(word, "precision"))
        return take_precision(value, a, err);
    if (!strcmp(word, "patch_multiple"))
        return take_number(value, 14, 28, &a->multiple, err);
    if (!strcmp(word, "slots"))
        return take_number(value, 1, SLOTS_MAX, &a->slots, err);
    if (!strcmp(word, "memory"))
        return ocr_parse_size(value, &a->memory, err);
    if (!strcmp(word, "max_tokens"))
        return take_number(value, 1, 1 << 20, &a->max_tokens, err);
    if (!strcmp(word, "steps"))
        return take_number(value, 1, OCR_EVENT_IDS, &a->steps, err);
    if (!strcmp(word, "threads"))
        return take_number(value, 1, 1024, &a->threads, err);
    return ocr_err_set(err, -EINVAL, "lighton has no argument %s", word);
}

static int take_arguments(struct lighton_arguments *a, const char *text,
                          struct ocr_err *err)
{
    char copy[256], *save = NULL;

    snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok_r(copy, ":", &save); word;
         word = strtok_r(NULL, ":", &save)) {
        const int rc = take_argument(a, word, err);

        if (rc)
            return rc;
    }
    return 0;
}

/* ---- opening
 * ----------------------------------------------------------------- */

int lighton_arguments(struct lighton_arguments *a, const char *text,
                      struct ocr_err *err)
{
    *a = (struct lighton_arguments){.precision = OCR_PRECISION_BF16,
                                    .any_precision = true,
                                    .max_tokens = TOKENS_DEFAULT};
    return take_arguments(a, text, err);
}

static unsigned processors(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set))
        return 1;
    return (unsigned)CPU_COUNT(&set);
}

static void log_line(void *arg, const char *line)
{
    (void)arg;
    ocr_info("%s", line);
}

void lighton_describe_config(struct ocr_backend_config *config,
                             const struct ocr_recogniser *r,
                             const struct lighton_arguments *a)
{
    const struct ocr_model *m = &r->folder->model;
    const bool on_cpu = r->ops == &ocr_backend_cpu;
    const uint32_t edge = r->folder->config.longest_edge;
    const uint32_t across = (edge + r->multiple - 1) / r->multiple *
                            (r->multiple / m->vision.patch);

    *config = (struct ocr_backend_config){
        .device = r->device,
        .precision = a->precision,
        .threads = a->threads,
        .slots = a->slots ? a->slots
                 : on_cpu ? CPU_SLOTS
                          : SLOTS_MAX,
        .memory = on_cpu ? ocr_memory_available() : a->memory,
        .max_patches = across * across,
        .prompt_tokens =
            across * across / (m->projector.merge * m->projector.merge) + 64,
        .max_tokens = a->max_tokens,
        .log = log_line,
    };
    if (config->prompt_tokens + config->max_tokens > m->text.max_positions)
        config->max_tokens = m->text.max_positions > config->prompt_tokens
                                 ? m->text.max_positions - config->prompt_tokens
                                 : 1;
}

static int open_backend(struct ocr_recogniser *r,
                        const struct lighton_arguments *a, struct ocr_err *err)
{
    struct ocr_backend_config config;
    int rc;

    lighton_describe_config(&config, r, a);
    rc = r->ops->open(&r->backend, &config, &r->folder->model, &r->plan, err);
    if (rc)
        return rc;
    /* The weights were copied from files that somebody may have been writing:
     * only now is it sure that they were what was checked. */
    rc = ocr_model_folder_check(r->folder, err);
    ocr_model_folder_unmap(r->folder);
    if (rc)
        return rc;
    if (r->plan.slots > SLOTS_MAX)
        r->plan.slots = SLOTS_MAX;
    r->free_blocks = malloc(r->plan.blocks * sizeof *r->free_blocks);
    if (!r->free_blocks)
        return ocr_err_set(err, -ENOMEM, "no memory for the list of blocks");
    for (r->free_count = 0; r->free_count < r->plan.blocks; r->free_count++)
        r->free_blocks[r->free_count] = r->plan.blocks - 1 - r->free_count;
    r->keeps =
        r->plan.slots >= KEEP_FROM && r->plan.blocks >= 2 * r->plan.slot_blocks;
    return 0;
}

static int open_cpu(struct ocr_recogniser *r, const struct lighton_arguments *a,
                    struct ocr_err *err)
{
    r->ops = &ocr_backend_cpu;
    r->flights = 1; /* else vision would wait for them */
    r->steps = a->steps ? a->steps : 1;
    snprintf(r->device, sizeof r->device, "cpu");
    return open_backend(r, a, err);
}

static int open_gpu(struct ocr_recogniser *r, const char *device,
                    const struct lighton_arguments *a, struct ocr_err *err)
{
    struct ocr_gpu gpu;
    int rc = ocr_gpu_find(&gpu, &ocr_gpu_system, device, err);

    if (rc)
        return rc;
    r->ops = gpu.ops;
    r->flights = GPU_FLIGHTS;
    r->steps = a->steps ? a->steps : GPU_STEPS;
    snprintf(r->device, sizeof r->device, "cuda:%d", ocr_gpu_number(device));
    rc = open_backend(r, a, err);
    if (rc == -EOPNOTSUPP && a->any_precision) {
        struct lighton_arguments other = *a;

        other.precision = r->precision = OCR_PRECISION_FP16;
        rc = open_backend(r, &other, err);
    }
    if (!rc)
        ocr_info("reading on %s, up to %u pages at a time", r->plan.device,
                 r->plan.slots);
    return rc;
}

/* A GPU if there is one that this model fits on; what is wrong with it is
 * said once. */
static int open_any(struct ocr_recogniser *r, const struct lighton_arguments *a,
                    struct ocr_err *err)
{
    const bool cpu_only = a->precision == OCR_PRECISION_FP32 ||
                          a->precision == OCR_PRECISION_INT8;
    struct ocr_err why = OCR_ERR_INIT;

    if (!cpu_only && open_gpu(r, "auto", a, &why) == 0)
        return 0;
    if (r->backend) /* it opened, and the files had changed meanwhile */
        return ocr_err_set(err, why.code, "%s", why.text);
    if (!cpu_only)
        ocr_info("reading on the CPU: %s", why.text);
    r->precision = a->precision;
    return open_cpu(r, a, err);
}

void lighton_take_shape(struct ocr_recogniser *r,
                        const struct lighton_arguments *a)
{
    const struct ocr_model *m = &r->folder->model;

    r->precision = a->precision;
    r->multiple =
        a->multiple ? a->multiple : m->vision.patch * m->projector.merge;
}

static int open_model(struct ocr_recogniser *r,
                      const struct ocr_recogniser_config *config,
                      struct ocr_err *err)
{
    struct lighton_arguments a;
    int rc;

    if (!config->model[0])
        return ocr_err_set(err, -ENOENT,
                           "the recogniser lighton needs a model: give its "
                           "folder with model=DIR");
    rc = lighton_arguments(&a, config->arguments, err);
    if (!rc)
        rc = ocr_model_folder_open(&r->folder, config->model, err);
    if (rc)
        return rc;
    lighton_take_shape(r, &a);
    if (!strcmp(config->device, "auto"))
        return open_any(r, &a, err);
    if (!strcmp(config->device, "cpu"))
        return open_cpu(r, &a, err);
    return open_gpu(r, config->device, &a, err);
}

/* As many threads as keep up with a GPU; beside the threads of a CPU model,
 * one is enough. */
static int start_threads(struct ocr_recogniser *r, struct ocr_err *err)
{
    const bool on_cpu = r->ops == &ocr_backend_cpu;
    const unsigned cores = processors();
    int rc;

    atomic_store(&r->limit_ms, SILENT_MS);
    r->capacity =
        r->plan.slots + (r->plan.slots < AHEAD_MAX ? CPU_AHEAD : AHEAD_MAX);
    rc = prepare_start(r, on_cpu ? 1 : cores, err);
    if (!rc && pthread_create(&r->driver, NULL, driver_run, r))
        rc = ocr_err_set(err, -EAGAIN, "cannot start a thread");
    r->driving = rc == 0;
    return rc;
}

/* Ends the threads that were started. */
static void stop_threads(struct ocr_recogniser *r)
{
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->arrived);
    pthread_cond_signal(&r->prepared);
    pthread_mutex_unlock(&r->lock);
    prepare_join(r);
    if (!r->driving)
        return;
    r->ops->wake(r->backend);
    pthread_join(r->driver, NULL);
}

static void release_all(struct ocr_recogniser *r)
{
    stop_threads(r);
    if (r->backend)
        r->ops->close(r->backend);
    for (unsigned i = 0; i < r->held; i++) {
        free(r->pages[i]->result.text);
        page_free(r->pages[i]);
    }
    ocr_model_folder_close(r->folder);
    pthread_cond_destroy(&r->arrived);
    pthread_cond_destroy(&r->prepared);
    pthread_cond_destroy(&r->done);
    pthread_mutex_destroy(&r->lock);
    free(r->free_blocks);
    free(r);
}

static int lighton_open(struct ocr_recogniser **out,
                        const struct ocr_recogniser_config *config,
                        struct ocr_err *err)
{
    struct ocr_recogniser *r = calloc(1, sizeof *r);
    int rc;

    if (!r)
        return ocr_err_set(err, -ENOMEM, "no memory for the model");
    r->config = *config;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->arrived, NULL);
    pthread_cond_init(&r->prepared, NULL);
    pthread_cond_init(&r->done, NULL);
    rc = open_model(r, config, err);
    rc = rc ? rc : start_threads(r, err);
    if (rc) {
        release_all(r);
        return rc;
    }
    *out = r;
    return 0;
}

/* ---- the rest of the interface
 * -------------------------------------------------- */

static unsigned lighton_capacity(struct ocr_recogniser *r)
{
    return r->capacity;
}

static const char *lighton_device(struct ocr_recogniser *r)
{
    return r->device;
}

static void lighton_describe(struct ocr_recogniser *r, char *out, size_t size)
{
    const struct ocr_backend_plan *p = &r->plan;
    const unsigned long long weights = p->weight_bytes >> 20,
                             work = p->workspace_bytes >> 20,
                             kv = p->kv_bytes >> 20;

    snprintf(out, size,
             "%s, %s; %llu MiB (weights %llu, workspace %llu, KV "
             "%llu) for %u page%s at once",
             precisions[r->precision].name, p->device, weights + work + kv,
             weights, work, kv, p->slots, p->slots == 1 ? "" : "s");
}

static int lighton_fingerprint(struct ocr_recogniser *r, const char *settings,
                               char *out, size_t size, struct ocr_err *err)
{
    (void)settings, (void)err;
    snprintf(out, size, "%s %s numerics %d prepared %d multiple %u finish %d",
             r->folder->fingerprint, precisions[r->precision].name,
             OCR_NUMERICS_VERSION, PREPARATION_VERSION, r->multiple,
             OCR_FINISH_VERSION);
    return 0;
}

static int lighton_submit(struct ocr_recogniser *r, const struct ocr_page *page,
                          struct ocr_err *err)
{
    struct lighton_page *p = calloc(1, sizeof *p);
    bool room;

    if (!p)
        return ocr_err_set(err, -ENOMEM, "no memory for another page");
    p->id = p->result.id = page->id;
    p->page = *page;
    atomic_init(&p->urgent, page->urgent);
    pthread_mutex_lock(&r->lock);
    room = r->held < r->capacity;
    if (room) {
        p->turn = ++r->turns;
        r->pages[r->held++] = p;
        page_append(&r->incoming, p);
        pthread_cond_signal(&r->arrived);
    }
    pthread_mutex_unlock(&r->lock);
    if (room)
        return 0;
    page_free(p);
    return ocr_err_set(err, -EAGAIN, "all slots of the model are taken");
}

static void lighton_cancel(struct ocr_recogniser *r, uint64_t id)
{
    pthread_mutex_lock(&r->lock);
    for (unsigned i = 0; i < r->held; i++)
        if (r->pages[i]->id == id)
            atomic_store(&r->pages[i]->cancel, true);
    pthread_mutex_unlock(&r->lock);
    driver_wake(r);
}

static void lighton_urge(struct ocr_recogniser *r, uint64_t id)
{
    pthread_mutex_lock(&r->lock);
    for (unsigned i = 0; i < r->held; i++)
        if (r->pages[i]->id == id)
            atomic_store(&r->pages[i]->urgent, true);
    pthread_mutex_unlock(&r->lock);
    driver_wake(r);
}

static void lighton_beat(struct ocr_recogniser *r, struct ocr_beat *out)
{
    /* One that has nothing to do is alive. */
    if (!atomic_load(&r->works))
        atomic_fetch_add(&r->finished_work, 1);
    out->finished = atomic_load(&r->finished_work);
    out->limit_ms = r->ops == &ocr_backend_cpu ? 0 : atomic_load(&r->limit_ms);
}

/* Called with the lock held. */
static void forget(struct ocr_recogniser *r, const struct lighton_page *p)
{
    unsigned i = 0;

    while (r->pages[i] != p)
        i++;
    r->pages[i] = r->pages[--r->held];
}

static int lighton_next(struct ocr_recogniser *r, struct ocr_recognised *out)
{
    struct lighton_page *p = NULL;
    int rc = -ESHUTDOWN;

    pthread_mutex_lock(&r->lock);
    while (!r->woken && !r->finished.first && !r->seen_count)
        pthread_cond_wait(&r->done, &r->lock);
    if (!r->woken && r->seen_count) {
        *out = (struct ocr_recognised){.id = r->seen[--r->seen_count],
                                       .pixels_done = true};
        rc = 0;
    } else if (!r->woken) {
        p = page_take(&r->finished);
        forget(r, p);
        *out = p->result;
        rc = 0;
    }
    pthread_mutex_unlock(&r->lock);
    if (p)
        page_free(p);
    return rc;
}

static void lighton_wake(struct ocr_recogniser *r)
{
    pthread_mutex_lock(&r->lock);
    r->woken = true;
    pthread_cond_broadcast(&r->done);
    pthread_mutex_unlock(&r->lock);
}

static void lighton_close(struct ocr_recogniser *r)
{
    release_all(r);
}

const struct ocr_recogniser_ops ocr_recogniser_lighton = {
    .abi = OCR_RECOGNISER_ABI,
    .name = "lighton",
    .open = lighton_open,
    .capacity = lighton_capacity,
    .device = lighton_device,
    .describe = lighton_describe,
    .plans = lighton_plans,
    .fingerprint = lighton_fingerprint,
    .submit = lighton_submit,
    .cancel = lighton_cancel,
    .urge = lighton_urge,
    .beat = lighton_beat,
    .next = lighton_next,
    .wake = lighton_wake,
    .close = lighton_close,
};

/* The workers: each has a libtesseract of its own and takes the next page.
 *
 * Threads: a page is QUEUED by the main thread, RUNNING while one worker has
 * it, DONE until next() takes it away. All under `lock`; `cancel` of a page
 * is read by libtesseract while it runs, so it is atomic. */
#include "engine/base/io.h"
#include "engine/recogniser.h"
#include "engine/tesseract/tesseract_i.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tesseract/capi.h>

enum {
    WORKERS_MAX = 64,
    WORKER_MIB = 400
};

enum state {
    FREE,
    QUEUED,
    RUNNING,
    DONE
};

struct slot {
    enum state state;
    uint64_t order; /* of submission: the oldest goes first */
    atomic_bool cancel;
    struct ocr_page page;
    struct ocr_recognised result;
};

struct ocr_recogniser {
    char *datapath;
    pthread_mutex_t lock;
    pthread_cond_t queued, done;
    bool stopping; /* close: workers end */
    bool woken;    /* wake: next ends */
    uint64_t orders;
    unsigned slots, workers;
    struct slot *slot;
    pthread_t *worker;
};

/* Pages run side by side, which is faster than OpenMP within one: no region of
 * this thread may have more threads. The environment would be read too early
 * for that, and libtesseract may have been built without OpenMP. */
static void stay_alone(void)
{
    void *symbol = dlsym(RTLD_DEFAULT, "omp_set_max_active_levels");
    void (*set)(int);

    if (!symbol)
        return;
    memcpy(&set, &symbol, sizeof(set));
    set(0);
}

/* ---- how many workers ---- */

static unsigned count_workers(void)
{
    unsigned long long fit = (ocr_memory_available() >> 20) / WORKER_MIB;
    unsigned cores = 1;
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        cores = (unsigned)CPU_COUNT(&set);
    if (fit && fit < cores)
        cores = (unsigned)fit;
    return cores < 1 ? 1 : cores > WORKERS_MAX ? WORKERS_MAX : cores;
}

/* ---- workers ---- */

static struct slot *oldest(struct ocr_recogniser *r, enum state state)
{
    struct slot *best = NULL;

    for (unsigned i = 0; i < r->slots; i++) {
        struct slot *slot = &r->slot[i];

        if (slot->state == state && (!best || slot->order < best->order))
            best = slot;
    }
    return best;
}

static void page_language(const struct ocr_page *page, char *out, size_t size)
{
    ocr_setting(page->settings, "lang", "eng", out, size);
    if (!*out)
        snprintf(out, size, "eng");
}

static bool page_is_dumped(const struct ocr_page *page)
{
    char value[2];

    return *ocr_setting(page->settings, "dump", "0", value, sizeof(value)) ==
           '1';
}

static void run(struct ocr_recogniser *r, struct tess_reader *reader,
                struct slot *slot)
{
    struct ocr_recognised *result = &slot->result;
    struct ocr_err err = OCR_ERR_INIT;
    char lang[128];
    int code = 0;

    page_language(&slot->page, lang, sizeof(lang));
    if (atomic_load(&slot->cancel))
        code = ocr_err_kind(&err, OCR_KIND_CANCELLED, "cancelled");
    if (!code)
        code = tess_language_check(r->datapath, lang, &err);
    if (!code && page_is_dumped(&slot->page))
        code = tess_page_prepare(&slot->page.image, &result->text, &result->len,
                                 &err);
    else if (!code)
        code = tess_page_read(reader, &slot->page.image, lang, &slot->cancel,
                              &result->text, &result->len, &err);
    if (code) {
        result->kind = err.kind ? err.kind : OCR_KIND_FAILED;
        snprintf(result->sentence, sizeof(result->sentence), "%.*s",
                 (int)sizeof(result->sentence) - 1, err.text);
    }
}

static void *work(void *arg)
{
    struct ocr_recogniser *r = arg;
    struct tess_reader *reader = tess_reader_new(r->datapath);

    stay_alone();
    pthread_mutex_lock(&r->lock);
    while (reader && !r->stopping) {
        struct slot *slot = oldest(r, QUEUED);

        if (!slot) {
            pthread_cond_wait(&r->queued, &r->lock);
            continue;
        }
        slot->state = RUNNING;
        pthread_mutex_unlock(&r->lock);
        run(r, reader, slot);
        pthread_mutex_lock(&r->lock);
        slot->state = DONE;
        pthread_cond_signal(&r->done);
    }
    pthread_mutex_unlock(&r->lock);
    tess_reader_free(reader);
    return NULL;
}

/* ---- the table ---- */

static void tesseract_close(struct ocr_recogniser *r)
{
    pthread_mutex_lock(&r->lock);
    r->stopping = true;
    for (unsigned i = 0; i < r->slots; i++)
        atomic_store(&r->slot[i].cancel, true);
    pthread_cond_broadcast(&r->queued);
    pthread_mutex_unlock(&r->lock);
    for (unsigned i = 0; i < r->workers; i++)
        pthread_join(r->worker[i], NULL);
    for (unsigned i = 0; i < r->slots; i++)
        free(r->slot[i].result.text);
    pthread_cond_destroy(&r->queued);
    pthread_cond_destroy(&r->done);
    pthread_mutex_destroy(&r->lock);
    free(r->slot);
    free(r->worker);
    free(r->datapath);
    free(r);
}

static struct ocr_recogniser *allocate(unsigned workers, const char *datapath)
{
    struct ocr_recogniser *r = calloc(1, sizeof(*r));

    if (!r)
        return NULL;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->queued, NULL);
    pthread_cond_init(&r->done, NULL);
    /* Nothing waits in here: the engine has the next pages decoded, and gives
     * the one that somebody waits for before the others. */
    r->slots = workers;
    r->slot = calloc(r->slots, sizeof(*r->slot));
    r->worker = calloc(workers, sizeof(*r->worker));
    r->datapath = strdup(datapath);
    if (r->slot && r->worker && r->datapath)
        return r;
    r->slots = r->slot ? r->slots : 0;
    tesseract_close(r);
    return NULL;
}

static int tesseract_open(struct ocr_recogniser **out,
                          const struct ocr_recogniser_config *config,
                          struct ocr_err *err)
{
    const char *datapath = tess_datapath(config->model);
    unsigned workers = count_workers();
    struct ocr_recogniser *r;

    if (strcmp(config->device, "auto") != 0 &&
        strcmp(config->device, "cpu") != 0)
        return ocr_err_set(err, -ENODEV,
                           "tesseract reads on the CPU, there is no device %s: "
                           "leave device at auto",
                           config->device);
    setMsgSeverity(L_SEVERITY_NONE);
    if (!datapath)
        return ocr_err_set(err, -ENOENT,
                           "no language packs of tesseract found: install "
                           "the package tesseract-ocr-eng");
    if (!(r = allocate(workers, datapath)))
        return ocr_err_set(err, -ENOMEM, "no memory for tesseract");
    for (; r->workers < workers; r->workers++) {
        int code = pthread_create(&r->worker[r->workers], NULL, work, r);

        if (code == 0)
            continue;
        tesseract_close(r);
        return ocr_err_set(err, -code, "cannot start a worker: %s",
                           strerror(code));
    }
    *out = r;
    return 0;
}

static unsigned tesseract_capacity(struct ocr_recogniser *r)
{
    return r->slots;
}

static int tesseract_fingerprint(struct ocr_recogniser *r, const char *settings,
                                 char *out, size_t size, struct ocr_err *err)
{
    struct ocr_page page = {.settings = settings};
    char lang[128], *lept;
    int code;

    page_language(&page, lang, sizeof(lang));
    if ((code = tess_language_check(r->datapath, lang, err)))
        return code;
    lept = getLeptonicaVersion();
    snprintf(out, size, "tesseract %s %s layout %d %s %016" PRIx64,
             TessVersion(), lept ? lept : "", TESS_LAYOUT_VERSION, lang,
             tess_language_digest(r->datapath, lang));
    lept_free(lept);
    return 0;
}

static int tesseract_submit(struct ocr_recogniser *r,
                            const struct ocr_page *page, struct ocr_err *err)
{
    struct slot *slot;

    pthread_mutex_lock(&r->lock);
    slot = oldest(r, FREE);
    if (slot) {
        slot->page = *page;
        memset(&slot->result, 0, sizeof(slot->result));
        slot->result.id = page->id;
        atomic_store(&slot->cancel, false);
        slot->order = ++r->orders;
        slot->state = QUEUED;
        pthread_cond_signal(&r->queued);
    }
    pthread_mutex_unlock(&r->lock);
    return slot ? 0 : ocr_err_set(err, -EAGAIN, "all workers are busy");
}

static void tesseract_cancel(struct ocr_recogniser *r, uint64_t id)
{
    pthread_mutex_lock(&r->lock);
    for (unsigned i = 0; i < r->slots; i++)
        if (r->slot[i].state != FREE && r->slot[i].page.id == id)
            atomic_store(&r->slot[i].cancel, true);
    pthread_mutex_unlock(&r->lock);
}

static int tesseract_next(struct ocr_recogniser *r, struct ocr_recognised *out)
{
    struct slot *slot = NULL;

    pthread_mutex_lock(&r->lock);
    while (!r->woken && !(slot = oldest(r, DONE)))
        pthread_cond_wait(&r->done, &r->lock);
    if (slot) {
        *out = slot->result;
        slot->result.text = NULL;
        slot->state = FREE;
    }
    pthread_mutex_unlock(&r->lock);
    return slot ? 0 : -ESHUTDOWN;
}

static void tesseract_wake(struct ocr_recogniser *r)
{
    pthread_mutex_lock(&r->lock);
    r->woken = true;
    pthread_cond_broadcast(&r->done);
    pthread_mutex_unlock(&r->lock);
}

static const char *tesseract_device(struct ocr_recogniser *r)
{
    (void)r;
    return "cpu";
}

static const struct ocr_recogniser_ops ops = {
    .abi = OCR_RECOGNISER_ABI,
    .name = "tesseract",
    .limit_s = 90,
    .open = tesseract_open,
    .capacity = tesseract_capacity,
    .device = tesseract_device,
    .fingerprint = tesseract_fingerprint,
    .submit = tesseract_submit,
    .cancel = tesseract_cancel,
    .next = tesseract_next,
    .wake = tesseract_wake,
    .close = tesseract_close,
};

ocr_recogniser_plugin_fn ocr_recogniser_plugin;

const struct ocr_recogniser_ops *ocr_recogniser_plugin(void)
{
    return &ops;
}

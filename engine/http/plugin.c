/* The table of functions, and pages on their way from submit to next. */
#include "engine/http/http_i.h"

#include "engine/base/io.h"
#include "engine/base/log.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* In the fingerprint: raise it when a page is prepared or asked for in another
 * way. */
enum {
    REQUEST_VERSION = 1
};

/* ---- pages -------------------------------------------------------------- */

bool http_page_before(const struct http_page *a, const struct http_page *b)
{
    if (a->urgent != b->urgent)
        return a->urgent;
    return a->order < b->order;
}

void http_page_fail(struct http_page *p, enum ocr_kind kind,
                    const char *sentence)
{
    p->result.kind = kind;
    snprintf(p->result.sentence, sizeof p->result.sentence, "%.255s", sentence);
}

void http_page_deliver(struct ocr_recogniser *r, struct http_page *p)
{
    pthread_mutex_lock(&r->lock);
    p->state = HTTP_PAGE_DONE;
    pthread_cond_signal(&r->done);
    pthread_mutex_unlock(&r->lock);
}

static void page_free(struct http_page *p)
{
    free(p->body);
    free(p);
}

/* ---- life --------------------------------------------------------------- */

static void stop_threads(struct ocr_recogniser *r)
{
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->queued);
    pthread_mutex_unlock(&r->lock);
    if (r->multi)
        curl_multi_wakeup(r->multi);
    if (r->driving)
        pthread_join(r->driver, NULL);
    for (unsigned i = 0; i < r->encoders; i++)
        pthread_join(r->encoder[i], NULL);
}

static void http_close(struct ocr_recogniser *r)
{
    stop_threads(r);
    for (unsigned i = 0; i < r->count; i++) {
        free(r->pages[i]->result.text);
        page_free(r->pages[i]);
    }
    curl_multi_cleanup(r->multi);
    free(r->pages);
    free(r->servers);
    http_config_release(&r->config);
    pthread_cond_destroy(&r->queued);
    pthread_cond_destroy(&r->done);
    pthread_cond_destroy(&r->opened);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* "http://gpu1:8000 and 1 more" */
static void name_place(struct ocr_recogniser *r)
{
    char more[32] = "";

    if (r->config.urls > 1)
        snprintf(more, sizeof more, " and %u more", r->config.urls - 1);
    snprintf(r->place, sizeof r->place, "%.*s%s",
             (int)(sizeof r->place - sizeof more), r->config.url[0].place,
             more);
}

static int make_tables(struct ocr_recogniser *r, struct ocr_err *err)
{
    const unsigned wide = r->config.urls * WINDOW_MAX;

    r->capacity = (wide < REQUESTS_MAX ? wide : REQUESTS_MAX) + AHEAD;
    r->pages = calloc(r->capacity, sizeof(struct http_page *));
    r->servers = calloc(r->config.urls, sizeof *r->servers);
    r->multi = curl_multi_init();
    if (!r->pages || !r->servers || !r->multi)
        return ocr_err_set(err, -ENOMEM, "no memory for the recogniser http");
    curl_multi_setopt(r->multi, CURLMOPT_MAXCONNECTS, (long)r->capacity);
    for (unsigned i = 0; i < r->config.urls; i++)
        http_server_init(&r->servers[i], &r->config.url[i], (int)i);
    if (getrandom(r->seed, sizeof r->seed, 0) != sizeof r->seed)
        r->seed[0] = (unsigned short)ocr_now_ms();
    name_place(r);
    return 0;
}

static unsigned count_cores(void)
{
    cpu_set_t set;
    int count = 1;

    if (sched_getaffinity(0, sizeof set, &set) == 0)
        count = CPU_COUNT(&set);
    return count > ENCODERS_MAX ? ENCODERS_MAX : (unsigned)count;
}

static int start_threads(struct ocr_recogniser *r, struct ocr_err *err)
{
    const unsigned encoders = count_cores();
    int rc = pthread_create(&r->driver, NULL, http_driver_run, r);

    r->driving = rc == 0;
    while (!rc && r->encoders < encoders) {
        rc =
            pthread_create(&r->encoder[r->encoders], NULL, http_encoder_run, r);
        r->encoders += rc == 0;
    }
    return rc ? ocr_err_set(err, -rc, "cannot start a thread: %s", strerror(rc))
              : 0;
}

/* Until the driver knows which model reads, or that none does. */
static int wait_until_settled(struct ocr_recogniser *r, struct ocr_err *err)
{
    struct ocr_err why;

    pthread_mutex_lock(&r->lock);
    while (!r->settled)
        pthread_cond_wait(&r->opened, &r->lock);
    why = r->open_error;
    pthread_mutex_unlock(&r->lock);
    return why.code ? ocr_err_set(err, why.code, "%s", why.text) : 0;
}

static int set_up(struct ocr_recogniser *r,
                  const struct ocr_recogniser_config *config,
                  struct ocr_err *err)
{
    int rc;

    if (curl_global_init(CURL_GLOBAL_DEFAULT))
        return ocr_err_set(err, -EIO, "libcurl cannot be used");
    if (strlen(config->model) >= sizeof r->wanted)
        return ocr_err_set(err, -ENAMETOOLONG,
                           "model=%.60s...: at most %d bytes", config->model,
                           NAME_MAX_LEN - 1);
    snprintf(r->wanted, sizeof r->wanted, "%s", config->model);
    rc = http_config_init(&r->config, config->arguments,
                          config->api_key ? config->api_key : "", err);
    if (!rc)
        rc = make_tables(r, err);
    if (!rc)
        rc = start_threads(r, err);
    return rc ? rc : wait_until_settled(r, err);
}

static int http_open(struct ocr_recogniser **out,
                     const struct ocr_recogniser_config *config,
                     struct ocr_err *err)
{
    struct ocr_recogniser *r = calloc(1, sizeof *r);
    int rc;

    if (!r)
        return ocr_err_set(err, -ENOMEM, "no memory for the recogniser http");
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->queued, NULL);
    pthread_cond_init(&r->done, NULL);
    pthread_cond_init(&r->opened, NULL);
    rc = set_up(r, config, err);
    if (rc)
        http_close(r);
    else
        *out = r;
    return rc;
}

/* ---- the rest of the table ---------------------------------------------- */

static unsigned http_capacity(struct ocr_recogniser *r)
{
    return r->capacity;
}

static const char *http_device(struct ocr_recogniser *r)
{
    return r->place;
}

static void http_describe(struct ocr_recogniser *r, char *out, size_t size)
{
    pthread_mutex_lock(&r->lock);
    snprintf(out, size, "model %s; at the start: %s", r->model, r->described);
    pthread_mutex_unlock(&r->lock);
}

static int http_fingerprint(struct ocr_recogniser *r, const char *settings,
                            char *out, size_t size, struct ocr_err *err)
{
    const int rc = http_settings_check(settings, err);

    if (rc)
        return rc;
    snprintf(out, size, "http %s request %d edge %d finish %d", r->model,
             REQUEST_VERSION, LONGEST_EDGE, OCR_FINISH_VERSION);
    return 0;
}

static int http_submit(struct ocr_recogniser *r, const struct ocr_page *page,
                       struct ocr_err *err)
{
    struct http_page *p = calloc(1, sizeof *p);
    bool room;

    if (!p)
        return ocr_err_set(err, -ENOMEM, "no memory for another page");
    p->page = *page;
    p->result.id = page->id;
    p->urgent = page->urgent;
    p->avoid = -1;
    pthread_mutex_lock(&r->lock);
    /* Pixels take many times the memory of what is sent: few at a time. */
    room = r->count < r->capacity && r->unencoded < AHEAD;
    if (room) {
        p->order = ++r->orders;
        r->pages[r->count++] = p;
        r->unencoded++;
        pthread_cond_signal(&r->queued);
    }
    pthread_mutex_unlock(&r->lock);
    if (room)
        return 0;
    page_free(p);
    return ocr_err_set(err, -EAGAIN, "no page can be taken now");
}

/* Called with the lock. */
static struct http_page *find(struct ocr_recogniser *r, uint64_t id)
{
    for (unsigned i = 0; i < r->count; i++)
        if (r->pages[i]->page.id == id)
            return r->pages[i];
    return NULL;
}

static void http_cancel(struct ocr_recogniser *r, uint64_t id)
{
    struct http_page *p;

    pthread_mutex_lock(&r->lock);
    if ((p = find(r, id)))
        p->cancel = true;
    pthread_mutex_unlock(&r->lock);
    curl_multi_wakeup(r->multi);
}

static void http_urge(struct ocr_recogniser *r, uint64_t id)
{
    struct http_page *p;

    pthread_mutex_lock(&r->lock);
    if ((p = find(r, id)))
        p->urgent = true;
    pthread_mutex_unlock(&r->lock);
    curl_multi_wakeup(r->multi);
}

/* Called with the lock: index of a page with something to tell, or count. */
static unsigned find_news(const struct ocr_recogniser *r)
{
    unsigned i = 0;

    while (i < r->count && r->pages[i]->state != HTTP_PAGE_DONE &&
           (r->pages[i]->told || r->pages[i]->state < HTTP_PAGE_READY))
        i++;
    return i;
}

static int http_next(struct ocr_recogniser *r, struct ocr_recognised *out)
{
    struct http_page *p = NULL, *finished = NULL;
    unsigned i = 0;

    pthread_mutex_lock(&r->lock);
    while (!r->woken && (i = find_news(r)) == r->count)
        pthread_cond_wait(&r->done, &r->lock);
    if (!r->woken) {
        p = r->pages[i];
        if (p->state == HTTP_PAGE_DONE) {
            *out = p->result;
            finished = p;
            r->pages[i] = r->pages[--r->count];
        } else {
            *out =
                (struct ocr_recognised){.id = p->page.id, .pixels_done = true};
            p->told = true;
        }
    }
    pthread_mutex_unlock(&r->lock);
    if (finished)
        page_free(finished);
    return p ? 0 : -ESHUTDOWN;
}

static void http_wake(struct ocr_recogniser *r)
{
    pthread_mutex_lock(&r->lock);
    r->woken = true;
    pthread_cond_broadcast(&r->done);
    pthread_mutex_unlock(&r->lock);
}

static const struct ocr_recogniser_ops ops = {
    .abi = OCR_RECOGNISER_ABI,
    .name = "http",
    .network = true,
    .open = http_open,
    .capacity = http_capacity,
    .device = http_device,
    .describe = http_describe,
    .fingerprint = http_fingerprint,
    .submit = http_submit,
    .cancel = http_cancel,
    .urge = http_urge,
    .next = http_next,
    .wake = http_wake,
    .close = http_close,
};

ocr_recogniser_plugin_fn ocr_recogniser_plugin;

const struct ocr_recogniser_ops *ocr_recogniser_plugin(void)
{
    return &ops;
}

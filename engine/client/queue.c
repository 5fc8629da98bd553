#include "engine/client/queue_i.h"

#include "engine/base/io.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Descriptors kept for jobs that wait; beside OCR_QUEUE_BYTES. */
enum {
    KEPT_MAX = 128
};

/* ---- lists ----------------------------------------------------------------
 */

static void list_append(struct job_list *list, struct ocr_job *job)
{
    job->next = NULL;
    job->prev = list->last;
    if (list->last)
        list->last->next = job;
    else
        list->first = job;
    list->last = job;
    list->count++;
}

static void list_prepend(struct job_list *list, struct ocr_job *job)
{
    job->prev = NULL;
    job->next = list->first;
    if (list->first)
        list->first->prev = job;
    else
        list->last = job;
    list->first = job;
    list->count++;
}

static void list_remove(struct job_list *list, struct ocr_job *job)
{
    if (job->prev)
        job->prev->next = job->next;
    else
        list->first = job->next;
    if (job->next)
        job->next->prev = job->prev;
    else
        list->last = job->prev;
    list->count--;
}

static struct ocr_job **bucket_of(struct ocr_queue *q,
                                  const struct ocr_job_key *key)
{
    uint32_t word; /* a digest is random in every bit */

    memcpy(&word, key->digest.bytes, sizeof word);
    return &q->buckets[word % JOB_BUCKETS];
}

static bool same_key(const struct ocr_job_key *a, const struct ocr_job_key *b)
{
    return a->owner == b->owner &&
           !memcmp(a->digest.bytes, b->digest.bytes, OCR_DIGEST_BYTES);
}

static struct ocr_job *find_job(struct ocr_queue *q,
                                const struct ocr_job_key *key)
{
    struct ocr_job *job = *bucket_of(q, key);

    while (job && !same_key(&job->key, key))
        job = job->chain;
    return job;
}

static void unhash_job(struct ocr_queue *q, struct ocr_job *job)
{
    struct ocr_job **at = bucket_of(q, &job->key);

    while (*at != job)
        at = &(*at)->chain;
    *at = job->chain;
    job->hashed = false;
}

static void free_job(struct ocr_job *job)
{
    ocr_content_release(&job->content);
    pages_free(job->many);
    free(job->label);
    free(job);
}

static void wake(struct ocr_queue *q)
{
    const uint64_t one = 1;

    /* Full means that it is awake already. */
    if (write(q->wake, &one, sizeof one) < 0)
        return;
}

/* ---- bytes kept for waiting jobs ------------------------------------------
 */

static bool is_waiting(const struct ocr_job *job)
{
    return job->state == JOB_WAITING || job->state == JOB_RELOADING;
}

static uint64_t memory_of(const struct ocr_job *job)
{
    return job->content.sealed ? job->content.size : 0;
}

static void count_kept(struct ocr_queue *q, const struct ocr_job *job, int sign)
{
    if (job->content.fd < 0)
        return;
    q->kept += (unsigned)sign;
    q->stats.bytes_kept += (uint64_t)sign * memory_of(job);
}

/* A job came to wait with its bytes: keep them if there is room. */
static void keep_bytes(struct ocr_queue *q, struct ocr_job *job)
{
    if (job->content.fd >= 0 &&
        (q->kept >= KEPT_MAX ||
         q->stats.bytes_kept + memory_of(job) > OCR_QUEUE_BYTES))
        ocr_content_release(&job->content);
    count_kept(q, job, 1);
}

/* ---- moving jobs between lists --------------------------------------------
 */

void queue_wait(struct ocr_queue *q, struct ocr_job *job, bool first)
{
    job->state = JOB_WAITING;
    if (first)
        list_prepend(&q->waiting[job->priority], job);
    else
        list_append(&q->waiting[job->priority], job);
    keep_bytes(q, job);
}

void queue_unwait(struct ocr_queue *q, struct ocr_job *job)
{
    list_remove(&q->waiting[job->priority], job);
    if (job->state == JOB_RELOADING)
        q->reloading--;
    count_kept(q, job, -1);
}

void queue_run(struct engine *e, struct ocr_job *job)
{
    job->state = JOB_SENT;
    job->started = job->cancel_sent = job->raised = false;
    job->reading = job->named = false;
    job->sent_ms = ocr_now_ms();
    job->out = 1;
    e->out++;
    list_append(&e->running, job);
}

void queue_unrun(struct engine *e, struct ocr_job *job)
{
    list_remove(&e->running, job);
    e->out -= job->out;
    job->out = 0;
    pages_come_back(job);
}

unsigned queue_running(const struct ocr_queue *q)
{
    unsigned count = 0;

    for (unsigned i = 0; i < q->engines; i++)
        count += q->engine[i].running.count;
    return count;
}

static void add_waiter(struct ocr_queue *q, struct ocr_job *job,
                       struct ocr_waiter *waiter, enum ocr_priority priority)
{
    waiter->job = job;
    waiter->priority = priority;
    waiter->prev = NULL;
    waiter->next = job->waiters;
    if (job->waiters)
        job->waiters->prev = waiter;
    job->waiters = waiter;
    q->stats.waiters++;
}

static void remove_waiter(struct ocr_queue *q, struct ocr_waiter *waiter)
{
    if (waiter->prev)
        waiter->prev->next = waiter->next;
    else
        waiter->job->waiters = waiter->next;
    if (waiter->next)
        waiter->next->prev = waiter->prev;
    waiter->job = NULL;
    q->stats.waiters--;
}

/* ---- results ---------------------------------------------------------------
 */

static void count_end(struct ocr_queue *q, enum ocr_kind kind)
{
    if (kind == OCR_KIND_NONE)
        q->stats.done++;
    else if (kind == OCR_KIND_CANCELLED)
        q->stats.cancelled++;
    else
        q->stats.failed++;
}

/* From here on leave() says that it is too late. */
static struct ocr_waiter *take_waiters(struct ocr_queue *q, struct ocr_job *job)
{
    for (struct ocr_waiter *w = job->waiters; w; w = w->next) {
        w->job = NULL;
        q->stats.waiters--;
    }
    return job->waiters;
}

void queue_end(struct ocr_queue *q, struct ocr_job *job,
               const struct ocr_result *result)
{
    struct ocr_waiter *waiters;

    job->state = JOB_ENDING;
    if (job->suspect)
        q->suspects--;
    count_end(q, result->kind);
    /* The job can be found until the hook has stored its text: who joins in
     * between is answered here, not by a second OCR. */
    pthread_mutex_unlock(&q->lock);
    if (q->hooks.finished)
        q->hooks.finished(q->hooks.arg, &job->key, job->label, result);
    pthread_mutex_lock(&q->lock);
    if (job->hashed)
        unhash_job(q, job);
    waiters = take_waiters(q, job);
    pthread_mutex_unlock(&q->lock);
    while (waiters) {
        struct ocr_waiter *w = waiters;

        waiters = w->next; /* done may free w */
        w->done(w, result);
    }
    free_job(job);
    pthread_mutex_lock(&q->lock);
}

void queue_end_error(struct ocr_queue *q, struct ocr_job *job,
                     enum ocr_kind kind, const char *sentence)
{
    const struct ocr_result result = {
        .kind = kind, .text = "", .sentence = sentence};

    queue_end(q, job, &result);
}

void queue_fail_waiting(struct ocr_queue *q, enum ocr_kind kind,
                        const char *sentence)
{
    for (int p = 0; p < PRIORITIES; p++) {
        struct ocr_job *job;

        while ((job = q->waiting[p].first)) {
            queue_unwait(q, job);
            queue_end_error(q, job, kind, sentence);
        }
    }
}

void queue_report_ended(struct ocr_queue *q)
{
    struct ocr_job *job;

    while ((job = q->ended.first)) {
        list_remove(&q->ended, job);
        queue_end_error(q, job, job->end.kind, job->end.text);
    }
}

/* Leaves the end of a job that is in no list to the thread. */
static void end_later(struct ocr_queue *q, struct ocr_job *job,
                      enum ocr_kind kind, const char *sentence)
{
    if (job->hashed)
        unhash_job(q, job);
    job->state = JOB_ENDING;
    ocr_err_kind(&job->end, kind, "%s", sentence);
    list_append(&q->ended, job);
}

/* ---- the interface
 * ---------------------------------------------------------------- */

static int copy_string(const char **out, const char *in)
{
    *out = strdup(in ? in : "");
    return *out ? 0 : -ENOMEM;
}

static int copy_config(struct ocr_engine_config *to,
                       const struct ocr_engine_config *from)
{
    *to = *from;
    to->program = to->runtime = NULL;
    if (copy_string(&to->recogniser, from->recogniser) |
        copy_string(&to->device, from->device) |
        copy_string(&to->model, from->model) |
        copy_string(&to->settings, from->settings))
        return -ENOMEM;
    if (from->program && copy_string(&to->program, from->program))
        return -ENOMEM;
    if (from->runtime && copy_string(&to->runtime, from->runtime))
        return -ENOMEM;
    return 0;
}

static void free_string(const char *text)
{
    void *mine;

    memcpy(&mine, &text, sizeof mine);
    free(mine);
}

static void free_queue(struct ocr_queue *q)
{
    free_string(q->config.recogniser);
    free_string(q->config.device);
    free_string(q->config.model);
    free_string(q->config.settings);
    free_string(q->config.program);
    free_string(q->config.runtime);
    ocr_close(q->wake);
    pthread_cond_destroy(&q->connected);
    pthread_mutex_destroy(&q->lock);
    free(q->message);
    free(q);
}

/* Time-outs of ocr_queue_connect follow CLOCK_MONOTONIC. */
static void init_condition(pthread_cond_t *condition)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attr);
    pthread_condattr_destroy(&attr);
}

/* The thread must not take signals that are meant for the main thread. */
static int start_thread(struct ocr_queue *q)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&q->thread, NULL, queue_thread, q);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -rc;
}

static int add_engine(struct ocr_queue *q, const char *kind, size_t kind_len,
                      const char *number)
{
    struct engine *e = &q->engine[q->engines];

    if (q->engines == OCR_ENGINES_MAX)
        return -E2BIG;
    snprintf(e->device_name, sizeof e->device_name, "%.*s%.*s",
             (int)(kind_len < 32 ? kind_len : 32), kind,
             (int)(strcspn(number, ",") < 16 ? strcspn(number, ",") : 16),
             number);
    e->config = q->config;
    e->config.device = q->config.device;
    e->sock = e->pidfd = -1;
    q->engines++;
    return 0;
}

/* "cuda:0,1" is an engine for "cuda:0" and one for "cuda:1". */
static int make_engines(struct ocr_queue *q)
{
    const char *device = q->config.device, *number = strchr(device, ':');
    int rc = 0;

    if (!strchr(device, ',') || !number)
        return add_engine(q, device, strlen(device), "");
    for (number++; number && !rc; number = strchr(number, ',')) {
        number += *number == ',';
        rc = add_engine(q, device, strcspn(device, ":") + 1, number);
        q->engine[q->engines - 1].config.device =
            q->engine[q->engines - 1].device_name;
    }
    return rc;
}

int ocr_queue_open(struct ocr_queue **out,
                   const struct ocr_engine_config *config,
                   const struct ocr_queue_hooks *hooks, struct ocr_err *err)
{
    struct ocr_queue *q = calloc(1, sizeof *q);

    if (!q)
        return ocr_err_set(err, -ENOMEM, "no memory for the queue");
    if (hooks)
        q->hooks = *hooks;
    q->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    q->message = malloc(sizeof *q->message);
    pthread_mutex_init(&q->lock, NULL);
    init_condition(&q->connected);
    if (copy_config(&q->config, config) || !q->message || q->wake < 0 ||
        make_engines(q) || start_thread(q)) {
        free_queue(q);
        return ocr_err_set(err, -ENOMEM, "no memory for the queue");
    }
    *out = q;
    return 0;
}

/* The one that is nearest to reading. */
static const struct engine *best_engine(const struct ocr_queue *q)
{
    static const int order[] = {[OCR_ENGINE_NONE] = 1,
                                [OCR_ENGINE_STARTING] = 2,
                                [OCR_ENGINE_LOADING] = 3,
                                [OCR_ENGINE_READY] = 4,
                                [OCR_ENGINE_BACKOFF] = 0};
    const struct engine *best = q->engine;

    for (const struct engine *e = best; e < q->engine + q->engines; e++)
        if (order[e->stats.state] > order[best->stats.state])
            best = e;
    return best;
}

static bool has_settled(const struct engine *e, enum ocr_engine_state wanted)
{
    return e->stats.state == OCR_ENGINE_READY || e->stats.state == wanted;
}

/* Whether a wait for an engine is over: one is there, or there is trouble with
 * all. Called with the lock held. */
static bool settled(const struct ocr_queue *q, enum ocr_engine_state wanted)
{
    bool troubled = true;

    for (unsigned i = 0; i < q->engines; i++) {
        const struct engine *e = &q->engine[i];

        if (has_settled(e, wanted))
            return true;
        troubled = troubled && e->stats.state == OCR_ENGINE_BACKOFF &&
                   e->stats.trouble[0];
    }
    return q->stopping || troubled;
}

static int wait_for_engine(struct ocr_queue *q, enum ocr_engine_state wanted,
                           int timeout_ms, const char *what,
                           struct ocr_err *err)
{
    const int64_t until = ocr_now_ms() + timeout_ms;
    const struct timespec deadline = {until / 1000, until % 1000 * 1000000};
    int rc = 0;

    pthread_mutex_lock(&q->lock);
    q->wanted = true;
    wake(q);
    while (rc == 0 && !settled(q, wanted))
        rc = pthread_cond_timedwait(&q->connected, &q->lock, &deadline);
    q->wanted = false;
    if (rc)
        rc = ocr_err_set(err, -ETIMEDOUT, "the engine %s within %d ms", what,
                         timeout_ms);
    else if (best_engine(q)->stats.state == OCR_ENGINE_BACKOFF)
        rc = ocr_err_kind(err, OCR_KIND_GONE, "%s",
                          best_engine(q)->stats.trouble);
    pthread_mutex_unlock(&q->lock);
    return rc;
}

int ocr_queue_connect(struct ocr_queue *q, int timeout_ms, struct ocr_err *err)
{
    return wait_for_engine(q, OCR_ENGINE_LOADING, timeout_ms, "did not answer",
                           err);
}

int ocr_queue_wait_ready(struct ocr_queue *q, int timeout_ms,
                         struct ocr_err *err)
{
    return wait_for_engine(q, OCR_ENGINE_READY, timeout_ms, "was not ready",
                           err);
}

static void raise_priority(struct ocr_queue *q, struct ocr_job *job,
                           enum ocr_priority priority)
{
    if (priority <= job->priority)
        return;
    if (is_waiting(job)) {
        list_remove(&q->waiting[job->priority], job);
        list_append(&q->waiting[priority], job);
    }
    job->priority = priority;
    job->raised = job->state == JOB_SENT;
}

static void attach(struct ocr_queue *q, struct ocr_job *job,
                   enum ocr_priority priority, struct ocr_waiter *waiter)
{
    if (waiter)
        add_waiter(q, job, waiter, priority);
    else
        job->unattended = true;
    raise_priority(q, job, priority);
}

static struct ocr_job *new_job(const struct ocr_job_key *key,
                               const uint8_t *secret,
                               enum ocr_priority priority, const char *label)
{
    struct ocr_job *job = calloc(1, sizeof *job);

    if (!job)
        return NULL;
    job->label = strdup(label);
    if (!job->label) {
        free(job);
        return NULL;
    }
    job->key = *key;
    job->priority = priority;
    job->content.fd = -1;
    memcpy(job->secret, secret, sizeof job->secret);
    return job;
}

int ocr_queue_join(struct ocr_queue *q, const struct ocr_job_key *key,
                   struct ocr_content *content,
                   const uint8_t secret[OCR_SECRET_BYTES],
                   enum ocr_priority priority, const char *label,
                   struct ocr_waiter *waiter, struct ocr_err *err)
{
    struct ocr_job *job;
    int rc = 0;

    pthread_mutex_lock(&q->lock);
    job = find_job(q, key);
    if (q->stopping) {
        rc = ocr_err_kind(err, OCR_KIND_STOPPING, "the mount is being stopped");
    } else if (job) {
        ocr_content_release(content);
        attach(q, job, priority, waiter);
    } else if ((job = new_job(key, secret, priority, label))) {
        struct ocr_job **bucket = bucket_of(q, key);

        job->chain = *bucket;
        *bucket = job;
        job->hashed = true;
        job->content = *content;
        content->fd = -1;
        queue_wait(q, job, false);
        attach(q, job, priority, waiter);
    } else {
        rc = ocr_err_set(err, -ENOMEM, "no memory for another page");
    }
    pthread_mutex_unlock(&q->lock);
    wake(q);
    return rc == -ENODEV ? -ESHUTDOWN : rc;
}

bool ocr_queue_join_existing(struct ocr_queue *q, const struct ocr_job_key *key,
                             enum ocr_priority priority,
                             struct ocr_waiter *waiter)
{
    struct ocr_job *job;

    pthread_mutex_lock(&q->lock);
    job = q->stopping ? NULL : find_job(q, key);
    if (job)
        attach(q, job, priority, waiter);
    pthread_mutex_unlock(&q->lock);
    if (job)
        wake(q);
    return job != NULL;
}

/* The bytes of a job came back, or did not. */
static void take_supply(struct ocr_queue *q, struct ocr_job *job,
                        struct ocr_content *content, const struct ocr_err *why)
{
    q->reloading--;
    job->state = JOB_WAITING;
    if (content && !memcmp(content->digest.bytes, job->key.digest.bytes,
                           OCR_DIGEST_BYTES)) {
        job->content = *content;
        content->fd = -1;
        count_kept(q, job, 1); /* needed now: no matter how much is kept */
        return;
    }
    queue_unwait(q, job);
    if (content)
        end_later(q, job, OCR_KIND_CHANGING,
                  "the image changed while it waited to be read");
    else
        end_later(q, job, why->kind ? why->kind : OCR_KIND_FAILED, why->text);
}

void ocr_queue_supply(struct ocr_queue *q, const struct ocr_job_key *key,
                      struct ocr_content *content, const struct ocr_err *why)
{
    struct ocr_job *job;

    pthread_mutex_lock(&q->lock);
    job = find_job(q, key);
    if (job && job->state == JOB_RELOADING)
        take_supply(q, job, content, why);
    pthread_mutex_unlock(&q->lock);
    if (content)
        ocr_content_release(content);
    wake(q);
}

void ocr_queue_raise(struct ocr_queue *q, struct ocr_waiter *waiter,
                     enum ocr_priority priority)
{
    pthread_mutex_lock(&q->lock);
    if (waiter->job)
        raise_priority(q, waiter->job, priority);
    pthread_mutex_unlock(&q->lock);
    wake(q);
}

bool ocr_queue_leave(struct ocr_queue *q, struct ocr_waiter *waiter)
{
    struct ocr_job *job;

    pthread_mutex_lock(&q->lock);
    job = waiter->job;
    if (job) {
        remove_waiter(q, waiter);
        if (!job->waiters && !job->unattended && is_waiting(job)) {
            queue_unwait(q, job);
            end_later(q, job, OCR_KIND_CANCELLED, "nobody waited any more");
        }
    }
    pthread_mutex_unlock(&q->lock);
    if (job)
        wake(q);
    return job != NULL;
}

void ocr_queue_pause(struct ocr_queue *q, bool paused)
{
    pthread_mutex_lock(&q->lock);
    q->paused = paused;
    pthread_mutex_unlock(&q->lock);
    wake(q);
}

void ocr_queue_stop(struct ocr_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->stopping = true;
    pthread_cond_broadcast(&q->connected);
    pthread_mutex_unlock(&q->lock);
    wake(q);
}

void ocr_queue_close(struct ocr_queue *q)
{
    if (!q)
        return;
    ocr_queue_stop(q);
    pthread_join(q->thread, NULL);
    free_queue(q);
}

/* What all engines are together. */
static void add_engines(struct ocr_queue *q, struct ocr_queue_stats *out)
{
    const struct engine *best = best_engine(q);

    out->state = best->stats.state;
    out->engines = q->engines;
    out->refused = best->refused;
    memcpy(out->version, best->version, sizeof out->version);
    memcpy(out->fingerprint, best->fingerprint, sizeof out->fingerprint);
    memcpy(out->details, best->details, sizeof out->details);
    for (unsigned i = 0; i < q->engines; i++) {
        const struct engine *e = &q->engine[i];
        const size_t len = strlen(out->device);

        out->engine[i] = e->stats;
        if (!e->stats.device[0])
            memcpy(out->engine[i].device, e->device_name,
                   sizeof e->device_name);
        out->engine[i].running = e->running.count;
        out->running += e->running.count;
        out->capacity += e->stats.capacity;
        if (!out->pid)
            out->pid = e->stats.pid;
        if (!out->trouble[0])
            memcpy(out->trouble, e->stats.trouble, sizeof out->trouble);
        if (e->stats.device[0])
            snprintf(out->device + len, sizeof out->device - len, "%s%s",
                     len ? "," : "", e->stats.device);
    }
}

void ocr_queue_stats(struct ocr_queue *q, struct ocr_queue_stats *out)
{
    pthread_mutex_lock(&q->lock);
    *out = q->stats;
    for (int p = 0; p < PRIORITIES; p++)
        out->waiting[p] = q->waiting[p].count;
    add_engines(q, out);
    pthread_mutex_unlock(&q->lock);
}

void ocr_queue_visit(struct ocr_queue *q,
                     void (*visit)(void *arg,
                                   const struct ocr_queue_job *running),
                     void *arg)
{
    const int64_t now = ocr_now_ms();

    pthread_mutex_lock(&q->lock);
    for (unsigned i = 0; i < q->engines; i++)
        for (struct ocr_job *j = q->engine[i].running.first; j; j = j->next)
            visit(arg, &(struct ocr_queue_job){
                           .label = j->label,
                           .age_ms = now - j->sent_ms,
                           .priority = j->priority,
                           .pages = j->pages,
                           .pages_done = j->many ? j->many->done : 0});
    pthread_mutex_unlock(&q->lock);
}

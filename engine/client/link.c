#include "engine/client/queue_i.h"

#include "engine/base/io.h"
#include "engine/base/log.h"
#include "engine/client/connect.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    RELOADS_MAX = 4, /* asked for at once */
    HELLO_TIMEOUT_MS = 5000,
    BACKOFF_FIRST_MS = 100,
    BACKOFF_MAX_MS = 5000,
    FAILED_STARTS_MAX = 3, /* then everything that waits fails */
    KILLS_MAX = 12,        /* of the engine while one job ran alone in it */
};
#define TEXT_BYTES_MAX ((uint64_t)64 << 20)

/* ---- speaking to the engine -----------------------------------------------
 */

static int send_message(struct ocr_queue *q, struct ocr_message *m,
                        const void *payload)
{
    const int rc = ocr_message_send(q->sock, m, payload);

    if (rc == -EAGAIN)
        q->full = true;
    return rc;
}

static int send_open(struct ocr_queue *q, struct ocr_job *job)
{
    struct ocr_message m = {.type = OCR_MSG_OPEN,
                            .document = q->next_document + 1,
                            .value = job->content.size,
                            .fd = job->content.fd};
    struct ocr_open_check check;
    int rc;

    if (!job->content.sealed) {
        memcpy(check.digest, job->key.digest.bytes, sizeof check.digest);
        memcpy(check.secret, job->secret, sizeof check.secret);
        m.length = sizeof check;
    }
    rc = send_message(q, &m, &check);
    if (rc == 0)
        job->document = ++q->next_document;
    return rc;
}

static int send_read(struct ocr_queue *q, struct ocr_job *job)
{
    struct ocr_message m = {.type = OCR_MSG_READ,
                            .document = job->document,
                            .value = job->priority,
                            .flags = job->suspect ? OCR_READ_ALONE : 0,
                            .fd = -1};

    return send_message(q, &m, NULL);
}

static int send_cancel(struct ocr_queue *q, struct ocr_job *job)
{
    struct ocr_message m = {.type = OCR_MSG_CANCEL,
                            .document = job->document,
                            .page = OCR_PAGE_ALL,
                            .fd = -1};

    return send_message(q, &m, NULL);
}

/* Moves a waiting job, whose bytes are here, into the engine. */
static int send_job(struct ocr_queue *q, struct ocr_job *job)
{
    int rc = job->document ? 0 : send_open(q, job);

    if (!rc)
        rc = send_read(q, job);
    if (rc)
        return rc;
    queue_unwait(q, job);
    queue_run(q, job);
    return 0;
}

static unsigned credit(const struct ocr_queue *q)
{
    const unsigned offered = q->stats.capacity;
    const unsigned asked = q->config.jobs;

    if (q->suspects)
        return 1;
    return asked && asked < offered ? asked : offered;
}

/* Jobs that somebody waits for find one place free, wherever there are three.
 */
static bool has_room(const struct ocr_queue *q, int priority)
{
    const unsigned all = credit(q);
    const bool keep = all >= 3 && priority < OCR_PRIORITY_INTERACTIVE;

    return q->running.count + keep < all;
}

/* The next job to send; marks up to RELOADS_MAX jobs on the way whose bytes
 * are needed. Suspects go before all others, so that the rest is held up for
 * as short as possible. */
static struct ocr_job *next_job(struct ocr_queue *q)
{
    if (q->paused)
        return NULL;
    for (int p = PRIORITIES - 1; p >= 0 && has_room(q, p); p--) {
        for (struct ocr_job *j = q->waiting[p].first; j; j = j->next) {
            if (q->suspects && !j->suspect)
                continue;
            if (j->content.fd >= 0)
                return j;
            if (j->state == JOB_WAITING && q->reloading < RELOADS_MAX) {
                j->state = JOB_RELOADING;
                j->asked = false;
                q->reloading++;
            }
        }
    }
    return NULL;
}

/* ---- the engine's life ------------------------------------------------------
 */

static void set_trouble(struct ocr_queue *q, const char *text)
{
    snprintf(q->stats.trouble, sizeof q->stats.trouble, "%s", text);
}

static void set_state(struct ocr_queue *q, enum ocr_engine_state state)
{
    q->stats.state = state;
    pthread_cond_broadcast(&q->connected);
}

static void retry_later(struct ocr_queue *q, unsigned times)
{
    int64_t delay = BACKOFF_FIRST_MS;

    for (unsigned i = 1; i < times && delay < BACKOFF_MAX_MS; i++)
        delay *= 2;
    if (delay > BACKOFF_MAX_MS)
        delay = BACKOFF_MAX_MS;
    q->retry_at_ms = ocr_now_ms() + delay;
    set_state(q, OCR_ENGINE_BACKOFF);
}

static void drop_connection(struct ocr_queue *q)
{
    q->sock = ocr_close(q->sock);
    q->full = false;
    q->stats.capacity = 0;
    q->stats.pid = 0;
    for (int p = 0; p < PRIORITIES; p++)
        for (struct ocr_job *j = q->waiting[p].first; j; j = j->next)
            j->document = 0;
}

/* An engine could not be had. `hopeless`: trying again at once is of no use. */
static void start_failed(struct ocr_queue *q, const char *why, bool hopeless)
{
    if (strcmp(q->stats.trouble, why))
        ocr_error("no engine: %s", why);
    set_trouble(q, why);
    drop_connection(q);
    q->failures++;
    retry_later(q, q->failures);
    if (hopeless || q->failures >= FAILED_STARTS_MAX)
        queue_fail_waiting(q, OCR_KIND_GONE, why);
}

/* A job came back from an engine that died. `alone`: nothing ran beside it. */
static void judge_job(struct ocr_queue *q, struct ocr_job *job, bool alone)
{
    char sentence[160];

    queue_unrun(q, job);
    job->document = 0;
    if (job->started && !job->suspect) {
        job->suspect = true;
        q->suspects++;
    }
    if (alone)
        job->kills++;
    if (alone && q->crash_signal) {
        snprintf(sentence, sizeof sentence,
                 "the engine crashed on this image (%s)",
                 strsignal(q->crash_signal));
    } else if (job->kills >= KILLS_MAX) {
        snprintf(sentence, sizeof sentence,
                 "the engine was killed %u times while it read this image",
                 job->kills);
    } else if (!job->waiters && !job->unattended) {
        queue_end_error(q, job, OCR_KIND_CANCELLED, "nobody waited");
        return;
    } else {
        queue_wait(q, job, true);
        return;
    }
    queue_end_error(q, job, OCR_KIND_FAILED, sentence);
}

/* The connection ended. Jobs that were in the engine are tried again, one at a
 * time if they had been started; the only one to blame is one that was sent to
 * run alone and did. */
static void engine_died(struct ocr_queue *q)
{
    const bool idle = q->running.count == 0;
    struct ocr_job *const only =
        q->running.count == 1 ? q->running.first : NULL;
    const bool alone = only && only->suspect && only->started &&
                       (!q->crash_signal || q->crash_jobs <= 1);

    if (q->stats.state != OCR_ENGINE_READY) {
        start_failed(q, "the engine ended before it was ready", false);
        return;
    }
    drop_connection(q);
    if (idle && !q->crash_signal) {
        set_state(q, OCR_ENGINE_NONE); /* it was idle, or somebody ended it */
        return;
    }
    q->stats.engine_deaths++;
    q->deaths++;
    if (q->crash_signal)
        ocr_warning("the engine crashed (%s) with %u pages in it",
                    strsignal(q->crash_signal), q->running.count);
    else
        ocr_warning("the engine was killed with %u pages in it",
                    q->running.count);
    retry_later(q, q->deaths);
    while (q->running.last)
        judge_job(q, q->running.last, alone);
}

static int send_hello(struct ocr_queue *q)
{
    struct ocr_message m = {.type = OCR_MSG_HELLO,
                            .value = OCR_PROTOCOL_VERSION,
                            .length = (uint32_t)strlen(q->config.settings),
                            .fd = -1};

    return ocr_message_send(q->sock, &m, q->config.settings);
}

static void start_engine(struct ocr_queue *q)
{
    struct ocr_err err = OCR_ERR_INIT;
    bool started = false;
    int sock;

    set_state(q, OCR_ENGINE_STARTING);
    pthread_mutex_unlock(&q->lock);
    sock = ocr_connect(&q->config, &started, &err);
    pthread_mutex_lock(&q->lock);
    q->sock = sock;
    q->stats.engine_starts += started;
    q->crash_signal = 0;
    q->next_document = 0;
    q->hello_by_ms = ocr_now_ms() + HELLO_TIMEOUT_MS;
    if (sock < 0 || send_hello(q)) {
        if (!err.code)
            ocr_err_set(&err, -EPIPE, "the engine ended before it answered");
        start_failed(q, err.text, sock == -ENOENT || sock == -EPERM);
    }
}

/* ---- messages from the engine
 * ------------------------------------------------ */

static void got_hello(struct ocr_queue *q, const struct ocr_message *m)
{
    char why[160];

    if (m->value != OCR_PROTOCOL_VERSION) {
        snprintf(why, sizeof why,
                 "the engine that runs speaks protocol %llu, not %d: end it",
                 (unsigned long long)m->value, OCR_PROTOCOL_VERSION);
        start_failed(q, why, true);
        return;
    }
    q->stats.pid = (int64_t)m->flags;
    set_state(q, OCR_ENGINE_LOADING);
}

/* Copies one line of `text`; returns what follows it. */
static const char *take_line(const char *text, char *out, size_t size)
{
    const size_t len = strcspn(text, "\n");

    snprintf(out, size, "%.*s", (int)len, text);
    return text[len] ? text + len + 1 : text + len;
}

static void got_ready(struct ocr_queue *q, const struct ocr_message *m)
{
    struct ocr_queue_stats *s = &q->stats;
    const char *at =
        take_line(m->payload, s->fingerprint, sizeof s->fingerprint);
    char fingerprint[sizeof s->fingerprint], device[sizeof s->device];
    char version[sizeof s->version];

    at = take_line(at, s->device, sizeof s->device);
    at = take_line(at, s->version, sizeof s->version);
    take_line(at, s->details, sizeof s->details);
    s->capacity = (unsigned)(m->value ? m->value : 1);
    memcpy(fingerprint, s->fingerprint, sizeof fingerprint);
    memcpy(device, s->device, sizeof device);
    memcpy(version, s->version, sizeof version);
    q->failures = 0;
    s->refused = false;
    set_trouble(q, "");
    set_state(q, OCR_ENGINE_READY);
    if (!q->hooks.ready)
        return;
    pthread_mutex_unlock(&q->lock);
    q->hooks.ready(q->hooks.arg, fingerprint, device, version);
    pthread_mutex_lock(&q->lock);
}

static struct ocr_job *running_job(struct ocr_queue *q, uint64_t document)
{
    struct ocr_job *job = q->running.first;

    while (job && job->document != document)
        job = job->next;
    return job;
}

/* The text of a message: inline, or a copy of the memfd. malloc'd or NULL. */
static char *text_of(const struct ocr_message *m)
{
    struct stat st;
    char *text;

    if (m->value > TEXT_BYTES_MAX)
        return NULL;
    text = malloc(m->value + 1);
    if (!text)
        return NULL;
    text[m->value] = '\0';
    if (m->fd < 0 && m->value == m->length) {
        memcpy(text, m->payload, m->length);
        return text;
    }
    if (m->fd >= 0 && fstat(m->fd, &st) == 0 &&
        (uint64_t)st.st_size == m->value &&
        ocr_pread_full(m->fd, text, m->value, 0) == (ssize_t)m->value)
        return text;
    free(text);
    return NULL;
}

static void got_text(struct ocr_queue *q, struct ocr_job *job,
                     const struct ocr_message *m)
{
    char *text = text_of(m);
    const struct ocr_result result = {.text = text,
                                      .len = m->value,
                                      .flags = m->flags,
                                      .pages = job->pages ? job->pages : 1,
                                      .sentence = ""};

    q->deaths = 0;
    queue_unrun(q, job);
    if (text)
        queue_end(q, job, &result);
    else
        queue_end_error(q, job, OCR_KIND_FAILED,
                        "the text did not come through whole");
    free(text);
}

static void got_error(struct ocr_queue *q, struct ocr_job *job,
                      const struct ocr_message *m)
{
    const enum ocr_kind kind = m->value && m->value <= OCR_KIND_LAST
                                   ? (enum ocr_kind)m->value
                                   : OCR_KIND_FAILED;

    queue_unrun(q, job);
    if (kind == OCR_KIND_CANCELLED && (job->waiters || job->unattended)) {
        /* Somebody came after the cancel went out. */
        job->document = 0;
        queue_wait(q, job, true);
        return;
    }
    queue_end_error(q, job, kind, m->payload);
}

static void got_connection_error(struct ocr_queue *q,
                                 const struct ocr_message *m)
{
    char why[512];

    snprintf(why, sizeof why, "%.511s", m->payload);
    q->stats.refused = true;
    while (q->running.last) {
        struct ocr_job *job = q->running.last;

        queue_unrun(q, job);
        job->document = 0;
        queue_wait(q, job, true);
    }
    start_failed(q, why, true);
}

static void handle_message(struct ocr_queue *q, const struct ocr_message *m)
{
    struct ocr_job *job = m->document ? running_job(q, m->document) : NULL;

    switch (m->type) {
    case OCR_MSG_HELLO:
        got_hello(q, m);
        break;
    case OCR_MSG_READY:
        got_ready(q, m);
        break;
    case OCR_MSG_CAPACITY:
        q->stats.capacity = (unsigned)(m->value ? m->value : 1);
        break;
    case OCR_MSG_CRASHED:
        q->crash_signal = (int)m->value;
        q->crash_jobs = m->flags;
        break;
    case OCR_MSG_PAGES:
        if (job)
            job->pages = (unsigned)m->value;
        break;
    case OCR_MSG_PROGRESS:
        if (job)
            job->started = true;
        break;
    case OCR_MSG_TEXT:
        if (job)
            got_text(q, job, m);
        break;
    case OCR_MSG_ERROR:
        if (job)
            got_error(q, job, m);
        else if (m->document == 0)
            got_connection_error(q, m);
        break;
    default:
        break; /* of a newer version: it asked nothing of us */
    }
}

void queue_receive(struct ocr_queue *q)
{
    while (q->sock >= 0) {
        const int rc = ocr_message_receive(q->sock, q->message);

        if (rc == -EAGAIN)
            return;
        if (rc <= 0) {
            engine_died(q);
            return;
        }
        handle_message(q, q->message);
        q->message->fd = ocr_close(q->message->fd);
    }
}

/* ---- the thread
 * ---------------------------------------------------------------- */

static bool has_work(const struct ocr_queue *q)
{
    for (int p = 0; p < PRIORITIES && !q->paused; p++)
        if (q->waiting[p].count)
            return true;
    return q->wanted;
}

static void manage_engine(struct ocr_queue *q)
{
    const int64_t now = ocr_now_ms();

    if (q->stats.state == OCR_ENGINE_STARTING && q->sock >= 0 &&
        now >= q->hello_by_ms) {
        pthread_mutex_unlock(&q->lock);
        ocr_connect_forget(&q->config);
        pthread_mutex_lock(&q->lock);
        start_failed(q, "the engine did not answer within 5 seconds", false);
    }
    if (!has_work(q))
        return;
    if (q->stats.state == OCR_ENGINE_NONE ||
        (q->stats.state == OCR_ENGINE_BACKOFF && now >= q->retry_at_ms))
        start_engine(q);
}

/* What changed for jobs in the engine: nobody waits, or it is urgent now. */
static void send_changes(struct ocr_queue *q)
{
    for (struct ocr_job *j = q->running.first; j && !q->full; j = j->next) {
        if (!j->waiters && !j->unattended && !j->started && !j->cancel_sent)
            j->cancel_sent = send_cancel(q, j) == 0;
        if (j->raised)
            j->raised = send_read(q, j) != 0;
    }
}

/* Asks for the bytes of jobs that next_job marked; outside the lock. */
static void ask_reloads(struct ocr_queue *q)
{
    struct ocr_job_key keys[RELOADS_MAX];
    char *labels[RELOADS_MAX];
    unsigned count = 0;

    for (int p = 0; p < PRIORITIES; p++)
        for (struct ocr_job *j = q->waiting[p].first; j; j = j->next)
            if (j->state == JOB_RELOADING && !j->asked && count < RELOADS_MAX) {
                j->asked = true;
                keys[count] = j->key;
                labels[count++] = strdup(j->label);
            }
    pthread_mutex_unlock(&q->lock);
    for (unsigned i = 0; i < count; i++) {
        if (q->hooks.reload && labels[i])
            q->hooks.reload(q->hooks.arg, &keys[i], labels[i]);
        free(labels[i]);
    }
    pthread_mutex_lock(&q->lock);
}

static void send_jobs(struct ocr_queue *q)
{
    if (q->stats.state != OCR_ENGINE_READY || q->full)
        return;
    send_changes(q);
    while (!q->full) {
        struct ocr_job *job = next_job(q);

        if (!job || send_job(q, job))
            break;
    }
    ask_reloads(q);
}

/* How long poll may sleep, -1: until something happens. */
static int patience_ms(const struct ocr_queue *q)
{
    int64_t until = -1, left;

    if (q->stats.state == OCR_ENGINE_STARTING)
        until = q->hello_by_ms;
    else if (q->stats.state == OCR_ENGINE_BACKOFF && has_work(q))
        until = q->retry_at_ms;
    if (until < 0)
        return -1;
    left = until - ocr_now_ms();
    return left < 0 ? 0 : (int)left;
}

/* One turn: called and left with the lock held. */
static void turn(struct ocr_queue *q)
{
    struct pollfd fds[2] = {{.fd = q->wake, .events = POLLIN}};
    uint64_t count;
    int timeout;

    queue_report_ended(q);
    manage_engine(q);
    send_jobs(q);
    fds[1].fd = q->sock;
    fds[1].events = (short)(POLLIN | (q->full ? POLLOUT : 0));
    timeout = patience_ms(q);
    pthread_mutex_unlock(&q->lock);
    if (poll(fds, 2, timeout) < 0)
        fds[0].revents = fds[1].revents = 0;
    if (fds[0].revents && read(q->wake, &count, sizeof count) < 0)
        count = 0;
    pthread_mutex_lock(&q->lock);
    if (fds[1].revents & POLLOUT)
        q->full = false;
    if (fds[1].revents & (POLLIN | POLLHUP | POLLERR))
        queue_receive(q);
}

void *queue_thread(void *arg)
{
    static const char why[] = "the mount is being stopped";
    struct ocr_queue *q = arg;

    pthread_mutex_lock(&q->lock);
    while (!q->stopping)
        turn(q);
    queue_fail_waiting(q, OCR_KIND_STOPPING, why);
    while (q->running.first) {
        struct ocr_job *job = q->running.first;

        queue_unrun(q, job);
        queue_end_error(q, job, OCR_KIND_STOPPING, why);
    }
    queue_report_ended(q);
    drop_connection(q);
    set_state(q, OCR_ENGINE_NONE);
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

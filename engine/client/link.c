#include "engine/client/queue_i.h"

#include "engine/base/io.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    RELOADS_MAX = 4, /* asked for at once */
};
#define TEXT_BYTES_MAX ((uint64_t)64 << 20)

/* ---- speaking to the engine -----------------------------------------------
 */

static int send_message(struct engine *e, struct ocr_message *m,
                        const void *payload)
{
    const int rc = ocr_message_send(e->sock, m, payload);

    if (rc == -EAGAIN)
        e->full = true;
    return rc;
}

static int send_open(struct engine *e, struct ocr_job *job)
{
    struct ocr_message m = {.type = OCR_MSG_OPEN,
                            .document = e->next_document + 1,
                            .value = job->content.size,
                            .fd = job->content.fd};
    struct ocr_open_check check;
    int rc;

    memcpy(check.digest, job->key.digest.bytes, sizeof check.digest);
    memcpy(check.secret, job->secret, sizeof check.secret);
    m.length = sizeof check;
    m.flags = job->content.sealed ? 0 : OCR_OPEN_CHECK;
    rc = send_message(e, &m, &check);
    if (rc == 0)
        job->document = ++e->next_document;
    job->engine = e;
    return rc;
}

static int send_read(struct engine *e, struct ocr_job *job, unsigned page,
                     unsigned flags)
{
    struct ocr_message m = {.type = OCR_MSG_READ,
                            .document = job->document,
                            .page = page,
                            .value = job->priority,
                            .flags =
                                flags | (job->suspect ? OCR_READ_ALONE : 0),
                            .fd = -1};

    return send_message(e, &m, NULL);
}

static int send_cancel(struct engine *e, uint64_t document, unsigned page)
{
    struct ocr_message m = {
        .type = OCR_MSG_CANCEL, .document = document, .page = page, .fd = -1};

    return send_message(e, &m, NULL);
}

/* What a document of many pages leaves behind in the engine when its job ends
 * goes when there is room in the socket. Without memory it stays there until
 * the connection ends. */
static void forget(struct engine *e, const struct ocr_job *job)
{
    struct forgotten *f = malloc(sizeof *f);

    if (!f)
        return;
    *f = (struct forgotten){e->forgotten, job->document};
    e->forgotten = f;
}

static void send_forgotten(struct engine *e)
{
    struct forgotten *f;

    while ((f = e->forgotten) && !e->full &&
           send_cancel(e, f->document, OCR_PAGE_ALL) == 0) {
        e->forgotten = f->next;
        free(f);
    }
}

/* Moves a waiting job, whose bytes are here, into the engine. */
static int send_job(struct ocr_queue *q, struct engine *e, struct ocr_job *job)
{
    const unsigned page = pages_next(job);
    int rc = job->document ? 0 : send_open(e, job);

    if (!rc)
        rc = send_read(e, job, page, 0);
    if (rc)
        return rc;
    queue_unwait(q, job);
    queue_run(e, job);
    if (job->many)
        job->many->page[page].state = PAGE_SENT;
    return 0;
}

/* One more page of a document that is there. */
static int send_page(struct engine *e, struct ocr_job *job)
{
    const unsigned page = pages_next(job);
    const int rc = send_read(e, job, page, 0);

    if (rc)
        return rc;
    job->many->page[page].state = PAGE_SENT;
    job->out++;
    e->out++;
    return 0;
}

static unsigned credit(const struct ocr_queue *q, const struct engine *e)
{
    const unsigned offered = e->stats.capacity;
    const unsigned asked = q->config.jobs;

    if (q->suspects)
        return 1;
    return asked && asked < offered ? asked : offered;
}

/* Jobs that somebody waits for find one place free, wherever there are three.
 */
static bool has_room(const struct ocr_queue *q, const struct engine *e,
                     int priority)
{
    const unsigned all = credit(q, e);
    const bool keep = all >= 3 && priority < OCR_PRIORITY_INTERACTIVE;

    return e->stats.state == OCR_ENGINE_READY && !e->full &&
           e->out + keep < all;
}

/* The same for a new job: documents whose pages wait for room are there, too,
 * and must not become ever more. */
static bool takes_job(const struct ocr_queue *q, const struct engine *e,
                      int priority)
{
    return has_room(q, e, priority) && (priority == OCR_PRIORITY_INTERACTIVE ||
                                        e->running.count < credit(q, e));
}

/* The engine with the most room for a job of this priority; NULL: none. */
static struct engine *roomiest(struct ocr_queue *q, int priority)
{
    struct engine *best = NULL;

    for (struct engine *e = q->engine; e < q->engine + q->engines; e++)
        if (takes_job(q, e, priority) &&
            (!best || (uint64_t)e->out * credit(q, best) <
                          (uint64_t)best->out * credit(q, e)))
            best = e;
    return best;
}

/* The next job to send; marks up to RELOADS_MAX jobs on the way whose bytes
 * are needed. Suspects go before all others, so that the rest is held up for
 * as short as possible. */
static struct ocr_job *next_job(struct ocr_queue *q)
{
    if (q->paused)
        return NULL;
    for (int p = PRIORITIES - 1; p >= 0 && roomiest(q, p); p--) {
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

/* Someone wants it, and it has pages that were not sent. */
static bool has_page(const struct ocr_queue *q, const struct ocr_job *job)
{
    return job->many && (job->waiters || job->unattended) &&
           (!q->suspects || job->suspect) && pages_next(job) < job->many->count;
}

/* The document to send a page of: of the highest priority, and of those the
 * one with the fewest pages in work. */
static struct ocr_job *next_document(struct ocr_queue *q)
{
    struct ocr_job *best = NULL;

    if (q->paused)
        return NULL;
    for (struct engine *e = q->engine; e < q->engine + q->engines; e++)
        for (struct ocr_job *j = e->running.first; j; j = j->next)
            if (has_room(q, e, (int)j->priority) &&
                (!best || j->priority > best->priority ||
                 (j->priority == best->priority && j->out < best->out)) &&
                has_page(q, j))
                best = j;
    return best;
}

/* ---- messages from the engine
 * ------------------------------------------------ */

static void got_hello(struct ocr_queue *q, struct engine *e,
                      const struct ocr_message *m)
{
    char why[160];

    if (m->value != OCR_PROTOCOL_VERSION) {
        snprintf(why, sizeof why,
                 "the engine that runs speaks protocol %llu, not %d: end it",
                 (unsigned long long)m->value, OCR_PROTOCOL_VERSION);
        engine_start_failed(q, e, why, true);
        return;
    }
    /* What the kernel says, not the engine: it may have been taken over, and
     * this is the process that is killed when it hangs. */
    e->stats.pid = m->pid;
    ocr_close(e->pidfd);
    e->pidfd = m->pid > 0 && m->pid != getpid() ? pidfd_open(m->pid, 0) : -1;
    engine_set_state(q, e, OCR_ENGINE_LOADING);
}

/* Copies one line of `text`; returns what follows it. */
static const char *take_line(const char *text, char *out, size_t size)
{
    const size_t len = strcspn(text, "\n");

    snprintf(out, size, "%.*s", (int)len, text);
    return text[len] ? text + len + 1 : text + len;
}

static bool is_gpu(const char *device)
{
    return !strncmp(device, "cuda", 4);
}

static void got_ready(struct ocr_queue *q, struct engine *e,
                      const struct ocr_message *m)
{
    const char *at =
        take_line(m->payload, e->fingerprint, sizeof e->fingerprint);
    char fingerprint[sizeof e->fingerprint], device[sizeof e->stats.device];
    char version[sizeof e->version];

    at = take_line(at, device, sizeof device);
    if (e->on_gpu && !is_gpu(device)) {
        engine_start_failed(q, e,
                            "the GPU that texts came from is gone, and the "
                            "engine that runs reads on the processor: mount "
                            "again to go on there",
                            true);
        return;
    }
    e->on_gpu = is_gpu(device);
    at = take_line(at, e->version, sizeof e->version);
    take_line(at, e->details, sizeof e->details);
    e->stats.capacity = (unsigned)(m->value ? m->value : 1);
    memcpy(fingerprint, e->fingerprint, sizeof fingerprint);
    memcpy(e->stats.device, device, sizeof device);
    memcpy(version, e->version, sizeof version);
    e->failures = 0;
    e->away_since_ms = 0;
    e->refused = e->hopeless = false;
    e->stats.trouble[0] = '\0';
    engine_set_state(q, e, OCR_ENGINE_READY);
    if (!q->hooks.ready)
        return;
    pthread_mutex_unlock(&q->lock);
    q->hooks.ready(q->hooks.arg, fingerprint, device, version);
    pthread_mutex_lock(&q->lock);
}

static struct ocr_job *running_job(struct engine *e, uint64_t document)
{
    struct ocr_job *job = e->running.first;

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

/* All pages are there: the job ends with their text. */
static void end_document(struct ocr_queue *q, struct engine *e,
                         struct ocr_job *job)
{
    struct ocr_result result = {.pages = job->pages, .sentence = ""};
    char *text;

    forget(e, job);
    queue_unrun(e, job);
    text = pages_text(job, &result.len);
    result.text = text;
    result.flags = job->many->flags;
    if (text)
        queue_end(q, job, &result);
    else
        queue_end_error(q, job, OCR_KIND_FAILED,
                        "no memory for the text of all pages");
    free(text);
}

/* The page that a message is about; NULL if it is not in the engine. */
static struct job_page *page_of(struct ocr_job *job,
                                const struct ocr_message *m)
{
    struct job_page *page;

    if (!job->many || m->page >= job->many->count)
        return NULL;
    page = &job->many->page[m->page];
    return page->state == PAGE_SENT || page->state == PAGE_GO ? page : NULL;
}

static struct ocr_job_key page_key(const struct ocr_job *job,
                                   const struct job_page *page)
{
    return (struct ocr_job_key){page->digest, job->key.owner};
}

/* Keeps the text of these pixels. The job stays: only this thread ends it. */
static void keep_page(struct ocr_queue *q, const struct ocr_job *job,
                      const struct job_page *page, const char *text, size_t len)
{
    const struct ocr_job_key key = page_key(job, page);

    if (!q->hooks.page_read || !page->has_digest)
        return;
    pthread_mutex_unlock(&q->lock);
    q->hooks.page_read(q->hooks.arg, &key, text, len);
    pthread_mutex_lock(&q->lock);
}

static void got_page_text(struct ocr_queue *q, struct engine *e,
                          struct ocr_job *job, const struct ocr_message *m)
{
    struct job_page *page = page_of(job, m);
    char *text = page ? text_of(m) : NULL;

    e->deaths = 0;
    e->alive_ms = ocr_now_ms();
    if (!page)
        return;
    if (!text) {
        forget(e, job);
        queue_unrun(e, job);
        queue_end_error(q, job, OCR_KIND_FAILED,
                        "the text did not come through whole");
        return;
    }
    /* Of blank pages nothing is kept: they cost nothing to read. */
    job->many->flags |= m->flags & ~(unsigned)OCR_TEXT_BLANK;
    if (!(m->flags & OCR_TEXT_PARTIAL))
        keep_page(q, job, page, text, m->value);
    pages_done(q, e, job, m->page, text, m->value);
    if (pages_are_done(job))
        end_document(q, e, job);
}

static int tell_go(struct engine *e, struct ocr_job *job, unsigned index)
{
    return send_read(e, job, index, OCR_READ_GO);
}

/* The page is decoded: is there a text for such pixels? */
static void got_digest(struct ocr_queue *q, struct engine *e,
                       struct ocr_job *job, const struct ocr_message *m)
{
    struct job_page *page = page_of(job, m);
    struct ocr_job_key key;
    char *text = NULL;
    size_t len = 0;

    if (!page || m->length != sizeof page->digest.bytes)
        return;
    memcpy(page->digest.bytes, m->payload, sizeof page->digest.bytes);
    page->has_digest = true;
    key = page_key(job, page);
    if (q->hooks.page_known) {
        pthread_mutex_unlock(&q->lock);
        text = q->hooks.page_known(q->hooks.arg, &key, &len);
        pthread_mutex_lock(&q->lock);
    }
    if (text && send_cancel(e, job->document, m->page) == 0) {
        pages_done(q, e, job, m->page, text, len);
        if (pages_are_done(job))
            end_document(q, e, job);
        return;
    }
    free(text);
    if (tell_go(e, job, m->page)) {
        page->state = PAGE_GO; /* when there is room in the socket */
        job->many->go++;
    }
}

static void got_pages(struct ocr_queue *q, struct engine *e,
                      struct ocr_job *job, const struct ocr_message *m)
{
    const bool sane = m->value <= OCR_PAGES_MAX;

    job->pages = sane ? (unsigned)m->value : 0;
    if (sane && (job->pages <= 1 || job->many || !pages_begin(job, job->pages)))
        return;
    forget(e, job);
    queue_unrun(e, job);
    queue_end_error(q, job, OCR_KIND_FAILED,
                    sane ? "no memory for so many pages"
                         : "the engine found more pages than there may be");
}

static void got_text(struct ocr_queue *q, struct engine *e, struct ocr_job *job,
                     const struct ocr_message *m)
{
    struct ocr_result result = {.len = m->value,
                                .flags = m->flags,
                                .pages = job->pages ? job->pages : 1,
                                .sentence = ""};
    char *text;

    if (job->many) {
        got_page_text(q, e, job, m);
        return;
    }
    result.text = text = text_of(m);
    e->deaths = 0;
    e->alive_ms = ocr_now_ms();
    queue_unrun(e, job);
    if (text)
        queue_end(q, job, &result);
    else
        queue_end_error(q, job, OCR_KIND_FAILED,
                        "the text did not come through whole");
    free(text);
}

/* A document is read whole or not at all: its first page that fails ends it,
 * those that were read are kept. */
static void got_page_error(struct ocr_queue *q, struct engine *e,
                           struct ocr_job *job, const struct ocr_message *m,
                           enum ocr_kind kind)
{
    char sentence[300];

    if (!page_of(job, m))
        return; /* known without the engine */
    if (kind == OCR_KIND_CANCELLED) {
        pages_again(e, job, m->page);
        return;
    }
    snprintf(sentence, sizeof sentence, "page %u: %.255s", m->page + 1,
             m->payload);
    forget(e, job);
    queue_unrun(e, job);
    queue_end_error(q, job, kind, sentence);
}

static void got_error(struct ocr_queue *q, struct engine *e,
                      struct ocr_job *job, const struct ocr_message *m)
{
    const enum ocr_kind kind = m->value && m->value <= OCR_KIND_LAST
                                   ? (enum ocr_kind)m->value
                                   : OCR_KIND_FAILED;

    if (job->many) {
        got_page_error(q, e, job, m, kind);
        return;
    }
    queue_unrun(e, job);
    if (kind == OCR_KIND_CANCELLED && (job->waiters || job->unattended)) {
        /* Somebody came after the cancel went out. */
        job->document = 0;
        queue_wait(q, job, true);
        return;
    }
    queue_end_error(q, job, kind, m->payload);
}

static void got_connection_error(struct ocr_queue *q, struct engine *e,
                                 const struct ocr_message *m)
{
    char why[512];

    snprintf(why, sizeof why, "%.511s", m->payload);
    e->refused = true;
    while (e->running.last) {
        struct ocr_job *job = e->running.last;

        queue_unrun(e, job);
        job->document = 0;
        queue_wait(q, job, true);
    }
    if (m->flags & OCR_ERROR_AWAY)
        engine_away(q, e, why);
    else
        engine_start_failed(q, e, why, true);
}

static void got_progress(struct ocr_job *job, const struct ocr_message *m)
{
    struct job_page *page = page_of(job, m);

    job->started = true;
    job->reading = job->reading || m->value == OCR_STAGE_READING;
    if (page && !page->reading && m->value == OCR_STAGE_READING) {
        page->reading = true;
        job->many->reading++;
    }
    job->named = job->named || m->value == OCR_STAGE_SUSPECT;
}

static void got_beat(struct engine *e, const struct ocr_message *m)
{
    if (m->value != e->finished || !e->limit_ms)
        e->alive_ms = ocr_now_ms();
    e->finished = m->value;
    e->limit_ms = m->flags;
}

static void handle_about_job(struct ocr_queue *q, struct engine *e,
                             const struct ocr_message *m)
{
    struct ocr_job *job = m->document ? running_job(e, m->document) : NULL;

    if (!job)
        return;
    if (m->type == OCR_MSG_PAGES)
        got_pages(q, e, job, m);
    else if (m->type == OCR_MSG_DIGEST)
        got_digest(q, e, job, m);
    else if (m->type == OCR_MSG_PROGRESS)
        got_progress(job, m);
    else if (m->type == OCR_MSG_TEXT)
        got_text(q, e, job, m);
    else if (m->type == OCR_MSG_ERROR)
        got_error(q, e, job, m);
}

static void handle_message(struct ocr_queue *q, struct engine *e,
                           const struct ocr_message *m)
{
    switch (m->type) {
    case OCR_MSG_HELLO:
        got_hello(q, e, m);
        break;
    case OCR_MSG_READY:
        got_ready(q, e, m);
        break;
    case OCR_MSG_CAPACITY:
        e->stats.capacity = (unsigned)(m->value ? m->value : 1);
        break;
    case OCR_MSG_CRASHED:
        e->crash_signal = (int)m->value;
        e->crash_jobs = m->flags;
        break;
    case OCR_MSG_BEAT:
        got_beat(e, m);
        break;
    case OCR_MSG_LOST:
        engine_lost(q, e, m->value != 0, m->payload);
        break;
    case OCR_MSG_ERROR:
        if (m->document == 0) {
            got_connection_error(q, e, m);
            break;
        }
        handle_about_job(q, e, m);
        break;
    default: /* others are of a newer version: they ask nothing of us */
        handle_about_job(q, e, m);
        break;
    }
}

void queue_receive(struct ocr_queue *q, struct engine *e)
{
    while (e->sock >= 0) {
        const int rc = ocr_message_receive(e->sock, q->message);

        if (rc == -EAGAIN)
            return;
        if (rc <= 0) {
            engine_died(q, e);
            return;
        }
        handle_message(q, e, q->message);
        q->message->fd = ocr_close(q->message->fd);
    }
}

/* ---- the thread
 * ---------------------------------------------------------------- */

static void send_go(struct engine *e, struct ocr_job *job)
{
    for (unsigned i = job->many->first; i < job->many->count; i++) {
        struct job_page *page = &job->many->page[i];

        if (page->state != PAGE_GO)
            continue;
        if (tell_go(e, job, i))
            return;
        page->state = PAGE_SENT;
        job->many->go--;
    }
}

/* Somebody is in more of a hurry; pages that follow are sent so anyway. */
static bool send_raised(struct engine *e, struct ocr_job *job)
{
    if (!job->many)
        return send_read(e, job, 0, 0) == 0;
    for (unsigned i = job->many->first; i < job->many->count; i++)
        if (job->many->page[i].state == PAGE_SENT && send_read(e, job, i, 0))
            return false;
    return true;
}

/* What changed for jobs in the engine: nobody waits, or it is urgent now. */
static void send_changes(struct engine *e)
{
    send_forgotten(e);
    for (struct ocr_job *j = e->running.first; j && !e->full; j = j->next) {
        if (!j->many && !j->waiters && !j->unattended && !j->started &&
            !j->cancel_sent)
            j->cancel_sent = send_cancel(e, j->document, OCR_PAGE_ALL) == 0;
        if (j->many && j->many->go)
            send_go(e, j);
        if (j->raised)
            j->raised = !send_raised(e, j);
    }
}

/* Nobody wants the rest of a document: the pages that are in work were
 * waited for, and kept; no other is begun. */
static bool end_unwanted(struct ocr_queue *q, struct engine *e)
{
    for (struct ocr_job *j = e->running.first; j; j = j->next)
        if (j->many && !j->waiters && !j->unattended && !j->out) {
            forget(e, j);
            queue_unrun(e, j);
            queue_end_error(q, j, OCR_KIND_CANCELLED, "nobody waited any more");
            return true;
        }
    return false;
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

/* A new job, or one more page of a document: by priority, then in turn, so that
 * a long document holds nobody up and comes to its end. */
static bool send_one(struct ocr_queue *q)
{
    struct ocr_job *job = next_job(q), *document = next_document(q);
    struct engine *e;

    if (document && (!job || document->priority > job->priority ||
                     (document->priority == job->priority && q->page_turn))) {
        q->page_turn = false;
        e = document->engine;
        return !e->full && !send_page(e, document);
    }
    if (!job)
        return false;
    q->page_turn = true;
    e = job->document ? job->engine : roomiest(q, (int)job->priority);
    return e && !e->full && !send_job(q, e, job);
}

static void send_jobs(struct ocr_queue *q)
{
    for (unsigned i = 0; i < q->engines; i++) {
        struct engine *e = &q->engine[i];

        while (end_unwanted(q, e))
            continue;
        if (e->stats.state == OCR_ENGINE_READY)
            send_changes(e);
    }
    while (send_one(q))
        continue;
    ask_reloads(q);
}

/* How long poll may sleep, -1: until something happens. */
static int patience_ms(const struct ocr_queue *q)
{
    int64_t until = -1, left;

    for (unsigned i = 0; i < q->engines; i++) {
        const int64_t alarm = engine_alarm_ms(q, &q->engine[i]);

        if (alarm >= 0 && (until < 0 || alarm < until))
            until = alarm;
    }
    if (until < 0)
        return -1;
    left = until - ocr_now_ms();
    return left < 0 ? 0 : (int)left;
}

static void receive(struct ocr_queue *q, const struct pollfd *fds)
{
    for (unsigned i = 0; i < q->engines; i++) {
        struct engine *e = &q->engine[i];

        if (fds[i].fd < 0 || fds[i].fd != e->sock)
            continue;
        if (fds[i].revents & POLLOUT)
            e->full = false;
        if (fds[i].revents & (POLLIN | POLLHUP | POLLERR))
            queue_receive(q, e);
    }
}

/* One turn: called and left with the lock held. */
static void turn(struct ocr_queue *q)
{
    struct pollfd fds[1 + OCR_ENGINES_MAX] = {
        {.fd = q->wake, .events = POLLIN}};
    uint64_t count;
    int timeout;

    queue_report_ended(q);
    for (unsigned i = 0; i < q->engines; i++)
        engine_manage(q, &q->engine[i]);
    send_jobs(q);
    for (unsigned i = 0; i < q->engines; i++)
        fds[1 + i] = (struct pollfd){
            .fd = q->engine[i].sock,
            .events = (short)(POLLIN | (q->engine[i].full ? POLLOUT : 0))};
    timeout = patience_ms(q);
    pthread_mutex_unlock(&q->lock);
    if (poll(fds, 1 + q->engines, timeout) < 0)
        memset(fds, 0, sizeof fds);
    if (fds[0].revents && read(q->wake, &count, sizeof count) < 0)
        count = 0;
    pthread_mutex_lock(&q->lock);
    receive(q, fds + 1);
}

static void end_jobs(struct ocr_queue *q, struct engine *e, const char *why)
{
    while (e->running.first) {
        struct ocr_job *job = e->running.first;

        queue_unrun(e, job);
        queue_end_error(q, job, OCR_KIND_STOPPING, why);
    }
}

void *queue_thread(void *arg)
{
    static const char why[] = "the mount is being stopped";
    struct ocr_queue *q = arg;

    pthread_mutex_lock(&q->lock);
    while (!q->stopping)
        turn(q);
    queue_fail_waiting(q, OCR_KIND_STOPPING, why);
    for (unsigned i = 0; i < q->engines; i++)
        end_jobs(q, &q->engine[i], why);
    queue_report_ended(q);
    for (unsigned i = 0; i < q->engines; i++)
        engine_stop(q, &q->engine[i]);
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

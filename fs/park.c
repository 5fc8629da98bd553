#include "engine/base/io.h"
#include "fs/fs_i.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A caller whose signal was harmless is looked at again after this: the
 * kernel says only once that there was a signal (I2). */
enum {
    LOOK_AGAIN_MS = 100
};

void park_init(struct park *park)
{
    *park = (struct park){.lock = PTHREAD_MUTEX_INITIALIZER};
    sem_init(&park->wake, 0, 0);
}

void park_release(struct park *park)
{
    sem_destroy(&park->wake);
    pthread_mutex_destroy(&park->lock);
}

/* ---- one request ----------------------------------------------------- */

static void unref(struct parked *p)
{
    if (atomic_fetch_sub(&p->refs, 1) == 1)
        free(p);
}

/* Called by libfuse with its locks held, at any time until it is taken back:
 * a flag and a wake-up, nothing else (I10). */
static void interrupted(fuse_req_t req, void *arg)
{
    struct parked *p = arg;

    (void)req;
    atomic_store(&p->interrupted, true);
    sem_post(&p->fs->park.wake);
}

static struct parked *parked_new(struct ocr_fs *fs, fuse_req_t req,
                                 const struct fuse_file_info *fi)
{
    const unsigned timeout_s = fs->options->ocr_timeout_s;
    struct parked *p = calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->fs = fs;
    p->req = req;
    p->open = fi != NULL;
    if (fi)
        p->fi = *fi;
    p->tid = fuse_req_ctx(req)->pid;
    p->since_ms = ocr_now_ms();
    p->deadline_ms =
        timeout_s ? p->since_ms + (int64_t)timeout_s * 1000 : INT64_MAX;
    p->late = -ETIMEDOUT;
    if (caller_is_kthread(p->tid)) {
        p->deadline_ms = p->since_ms + KTHREAD_WAIT_MS;
        p->late = -EAGAIN;
    }
    atomic_init(&p->refs, 1);
    return p;
}

static void link_locked(struct park *park, struct reading *r, struct parked *p)
{
    p->reading = r;
    p->prev = r->last;
    *(r->last ? &r->last->next : &r->first) = p;
    r->last = p;
    park->waiting++;
}

/* From here on the request is the caller's to answer, and nobody else's. */
static void take_locked(struct park *park, struct parked *p)
{
    struct reading *r = p->reading; /* not NULL, the callers looked */

    *(p->prev ? &p->prev->next : &r->first) = p->next; /* NOLINT */
    *(p->next ? &p->next->prev : &r->last) = p->prev;
    p->reading = NULL;
    p->next = p->prev = NULL;
    park->waiting--;
}

/* ---- answers --------------------------------------------------------- */

/* Reading failed: the size is still the bound (U9), unless it is the caller or
 * the node that is gone. */
static void answer_getattr(struct ocr_fs *fs, struct parked *p, struct node *n,
                           int rc)
{
    struct stat st;
    double timeout;

    if (rc == -EINTR && atomic_load(&fs->park.paused))
        rc = 0;
    if (rc != -ESTALE && rc != -EINTR && rc != -ENODEV && rc != -EAGAIN)
        rc = attr_get(fs, n, &st, &timeout);
    if (rc)
        fuse_reply_err(p->req, -rc);
    else
        fuse_reply_attr(p->req, &st, timeout);
}

/* `p` was taken. Consumes it. */
static void answer(struct ocr_fs *fs, struct parked *p, struct node *n,
                   const struct outcome *o)
{
    /* An NFS server has no signals: its clients ask again. */
    const struct outcome again = {.rc = -EAGAIN};

    if (o->rc == -EINTR && p->late == -EAGAIN)
        o = &again;
    /* After this the callback is not running and never will (I10). */
    fuse_req_interrupt_func(p->req, NULL, NULL);
    stats_answered(&fs->stats, ocr_now_ms() - p->since_ms);
    if (!p->open)
        answer_getattr(fs, p, n, o->rc);
    else if (o->rc)
        fuse_reply_err(p->req, -o->rc);
    else
        reading_reply(fs, p->req, n, &p->fi, o->text);
    unref(p);
}

void park_answer_all(struct ocr_fs *fs, struct reading *r,
                     const struct outcome *o)
{
    struct parked *all = NULL, *p;

    pthread_mutex_lock(&fs->park.lock);
    reading_over_locked(r);
    while ((p = r->last)) {
        take_locked(&fs->park, p);
        p->next = all;
        all = p;
    }
    pthread_mutex_unlock(&fs->park.lock);
    while ((p = all)) {
        all = p->next;
        answer(fs, p, r->node, o);
    }
}

void park_request(struct ocr_fs *fs, fuse_req_t req, struct node *n,
                  const struct fuse_file_info *fi, struct warmth warmth)
{
    struct park *park = &fs->park;
    struct parked *p = parked_new(fs, req, fi);
    struct reading *r = NULL;
    bool begun = false;
    int rc = p ? 0 : -ENOMEM;

    if (!rc)
        /* May call back at once: before anybody else knows of p. */
        fuse_req_interrupt_func(req, interrupted, p);
    pthread_mutex_lock(&park->lock);
    if (!rc && atomic_load(&park->stopping))
        rc = -ENODEV;
    if (!rc) {
        r = reading_of_locked(fs, n, warmth, &begun);
        rc = r ? 0 : -ENOMEM;
    }
    if (!rc) {
        link_locked(park, r, p);
        if (atomic_load(&p->interrupted) || p->deadline_ms != INT64_MAX ||
            atomic_load(&park->paused))
            sem_post(&park->wake);
    }
    pthread_mutex_unlock(&park->lock);
    if (rc && p)
        answer(fs, p, n, &(struct outcome){.rc = rc});
    else if (rc)
        fuse_reply_err(req, -rc);
    else if (begun)
        reading_begin(r);
}

/* ---- the watching thread: interrupts and time-outs ------------------- */

/* Takes p for an answer unless somebody else did, with a reference to its
 * node; whoever waited last gives the reading up, unless it took too long: then
 * it goes on for those who come later. */
static struct node *claim(struct ocr_fs *fs, struct parked *p, int rc)
{
    struct node *n = NULL;
    struct reading *r;

    pthread_mutex_lock(&fs->park.lock);
    r = p->reading;
    if (r) {
        n = node_ref(&fs->nodes, r->node);
        take_locked(&fs->park, p);
        if (rc == -ETIMEDOUT || rc == -EAGAIN)
            r->goes_on = true;
        if (!r->first && !r->goes_on)
            reading_abandon_locked(r);
    }
    pthread_mutex_unlock(&fs->park.lock);
    return n;
}

static void end(struct ocr_fs *fs, struct parked *p, int rc)
{
    struct node *n = claim(fs, p, rc);

    if (!n)
        return;
    if (rc == -EINTR) {
        stats_interrupted(&fs->stats);
        ahead_interrupted(fs);
    } else if (rc == -ETIMEDOUT)
        reading_timed_out(fs, n);
    answer(fs, p, n, &(struct outcome){.rc = rc});
    node_unref(&fs->nodes, n);
}

/* Everybody who needs a look, each with a reference; *next: when to come
 * again. */
static struct parked *gather(struct ocr_fs *fs, int64_t now, int64_t *next)
{
    struct parked *batch = NULL;

    *next = INT64_MAX;
    pthread_mutex_lock(&fs->park.lock);
    for (struct reading *r = fs->park.readings; r; r = r->next) {
        const bool paused =
            r->stage == READING_QUEUE && atomic_load(&fs->park.paused);

        for (struct parked *p = r->first; p; p = p->next) {
            p->paused = paused;
            if (paused || atomic_load(&p->interrupted) ||
                p->deadline_ms <= now) {
                atomic_fetch_add(&p->refs, 1);
                p->batch = batch;
                batch = p;
            } else if (p->deadline_ms < *next) {
                *next = p->deadline_ms;
            }
        }
    }
    pthread_mutex_unlock(&fs->park.lock);
    return batch;
}

static int64_t look(struct ocr_fs *fs)
{
    const int64_t now = ocr_now_ms();
    int64_t next;
    struct parked *batch = gather(fs, now, &next), *p;

    while ((p = batch)) {
        batch = p->batch;
        if (p->paused || (atomic_load(&p->interrupted) &&
                          (fs->options->intr || caller_dying(p->tid))))
            end(fs, p, -EINTR);
        else if (p->deadline_ms <= now)
            end(fs, p, p->late);
        else if (next > now + LOOK_AGAIN_MS)
            next = now + LOOK_AGAIN_MS;
        unref(p); /* NOLINT: gather() took a reference */
    }
    return next;
}

static void sleep_until(struct park *park, int64_t ms)
{
    const struct timespec until = {.tv_sec = ms / 1000,
                                   .tv_nsec = ms % 1000 * 1000000};

    if (ms == INT64_MAX)
        sem_wait(&park->wake);
    else
        sem_clockwait(&park->wake, CLOCK_MONOTONIC, &until);
    /* One look serves all who woke us meanwhile. */
    while (!sem_trywait(&park->wake))
        continue;
}

static void *watch(void *arg)
{
    struct ocr_fs *fs = arg;
    int64_t next = INT64_MAX;

    while (!atomic_load(&fs->park.ending)) {
        sleep_until(&fs->park, next);
        next = look(fs);
    }
    return NULL;
}

int park_start(struct ocr_fs *fs, struct ocr_err *err)
{
    const int rc = fs_thread_start(&fs->park.thread, watch, fs);

    if (rc)
        return ocr_err_set(err, rc, "cannot start a thread: %s", strerror(-rc));
    fs->park.running = true;
    return 0;
}

void park_end(struct ocr_fs *fs)
{
    if (!fs->park.running)
        return;
    atomic_store(&fs->park.ending, true);
    sem_post(&fs->park.wake);
    pthread_join(fs->park.thread, NULL);
    fs->park.running = false;
}

/* ---- the end
 * -----------------------------------------------------------------------------------
 */

/* Any request that waits, taken, with a reference to its node. abandon: a
 * reading that nobody waits for then is given up. */
static struct parked *take_any(struct ocr_fs *fs, struct node **n, bool abandon)
{
    struct parked *p = NULL;

    pthread_mutex_lock(&fs->park.lock);
    for (struct reading *r = fs->park.readings, *next; r && !p; r = next) {
        next = r->next;
        p = r->first;
        if (p) {
            *n = node_ref(&fs->nodes, r->node);
            take_locked(&fs->park, p);
            if (abandon && !r->first && !r->goes_on)
                reading_abandon_locked(r);
        }
    }
    pthread_mutex_unlock(&fs->park.lock);
    return p;
}

void park_stop(struct ocr_fs *fs)
{
    struct parked *p;
    struct node *n;

    /* Under the lock, so that no request is parked behind our back. */
    pthread_mutex_lock(&fs->park.lock);
    atomic_store(&fs->park.stopping, true);
    pthread_mutex_unlock(&fs->park.lock);
    while ((p = take_any(fs, &n, false))) {
        answer(fs, p, n, &(struct outcome){.rc = -ENODEV});
        node_unref(&fs->nodes, n);
    }
}

void park_pause(struct ocr_fs *fs)
{
    struct parked *p;
    struct node *n;

    pthread_mutex_lock(&fs->park.lock);
    atomic_store(&fs->park.paused, true);
    pthread_mutex_unlock(&fs->park.lock);
    if (fs->queue)
        ocr_queue_pause(fs->queue, true);
    while ((p = take_any(fs, &n, true))) {
        stats_interrupted(&fs->stats);
        answer(fs, p, n, &(struct outcome){.rc = -EINTR});
        node_unref(&fs->nodes, n);
    }
    ahead_interrupted(fs);
}

void park_resume(struct ocr_fs *fs)
{
    atomic_store(&fs->park.paused, false);
    if (fs->queue)
        ocr_queue_pause(fs->queue, false);
}

void park_free_readings(struct ocr_fs *fs)
{
    for (struct reading *r = fs->park.readings, *next; r; r = next) {
        next = r->next;
        ocr_close(r->fd);
        free(r);
    }
    fs->park.readings = NULL;
}

#include "fs/newcomers.h"

#include "engine/base/io.h"
#include "engine/base/log.h"
#include "fs/fs_i.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    HEARD_MOST = 64 << 10, /* more count as lost */
    ALONE_MS = 2000,       /* a file nobody closed: then it is whole */
    AGAIN_MS = 1000,       /* one that was written meanwhile */
    LOOK_MS = 30 * 1000,   /* through folders that are not watched */
    GONE_MS = 200,         /* then what was moved away has not come back */
    NO_ENGINE = 4,         /* jobs before the engine has said what it holds */
    DOTS = 2,              /* entries of a snapshot that are none */
};

/* What clocks may differ, and what waits in queues: looked at again. */
#define SPARE_NS ((int64_t)60 * 1000000000)

struct item {
    struct item *next;
    fuse_ino_t folder;
    unsigned what; /* of enum change */
    int64_t due_ms;
    char name[]; /* of the image, or of a folder */
};

struct held {
    struct node *node; /* a reference */
    bool watched;
};

/* An image that is read: with one reference of the pool's, then also of the
 * queue's. */
struct newcomer {
    struct hash_task task;
    struct ocr_waiter waiter;
    struct ocr_fs *fs;
    struct node *node; /* its text; a reference */
    fuse_ino_t folder;
    atomic_uint refs;
    char name[NAME_BYTES + 1];
};

/* ---- items ----------------------------------------------------------- */

static struct item *item_new(fuse_ino_t folder, const char *name, unsigned what,
                             int64_t due_ms)
{
    const size_t bytes = strlen(name) + 1;
    struct item *item = malloc(sizeof *item + bytes);

    if (!item)
        return NULL;
    *item = (struct item){.folder = folder, .what = what, .due_ms = due_ms};
    memcpy(item->name, name, bytes);
    return item;
}

static void add_heard_locked(struct newcomers *c, fuse_ino_t folder,
                             const char *name, unsigned what, int64_t due_ms)
{
    struct item *item = c->heard_count < HEARD_MOST
                            ? item_new(folder, name, what, due_ms)
                            : NULL;

    if (!item) {
        if (!c->lost_ns)
            c->lost_ns = ocr_wall_ns();
        return;
    }
    item->next = NULL;
    *c->last = item;
    c->last = &item->next;
    c->heard_count++;
    pthread_cond_signal(&c->wake);
}

/* ---- jobs ------------------------------------------------------------ */

static void unref(struct newcomer *job)
{
    if (atomic_fetch_sub(&job->refs, 1) != 1)
        return;
    node_unref(&job->fs->nodes, job->node);
    free(job);
}

static void end(struct newcomer *job)
{
    struct newcomers *c = &job->fs->newcomers;

    pthread_mutex_lock(&c->lock);
    c->in_flight--;
    c->ended = true;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
    unref(job);
}

/* The log, the cache and the counters have it from reading_job_finished. */
static void job_done(struct ocr_waiter *waiter, const struct ocr_result *result)
{
    (void)result;
    end((struct newcomer *)((char *)waiter -
                            offsetof(struct newcomer, waiter)));
}

static struct newcomer *newcomer_of(struct hash_task *task)
{
    return (struct newcomer *)((char *)task - offsetof(struct newcomer, task));
}

static void drop(struct hash_task *task)
{
    end(newcomer_of(task));
}

/* In the pool. */
static void run(struct hash_task *task)
{
    struct newcomer *job = newcomer_of(task);
    struct newcomers *c = &job->fs->newcomers;
    bool written = false;

    atomic_fetch_add(&job->refs, 1); /* the queue's */
    if (reading_ahead(job->fs, job->node, OCR_PRIORITY_BACKGROUND, &job->waiter,
                      &written)) {
        pthread_mutex_lock(&c->lock);
        c->started_jobs++;
        pthread_mutex_unlock(&c->lock);
        unref(job);
        return;
    }
    if (written) {
        pthread_mutex_lock(&c->lock);
        add_heard_locked(c, job->folder, job->name, CHANGE_WHOLE,
                         ocr_now_ms() + AGAIN_MS);
        pthread_mutex_unlock(&c->lock);
    }
    unref(job);
    end(job); /* NOLINT: there were two references */
}

/* The text of an image in a folder, with a reference; NULL if there is none
 * (any more). */
static struct node *text_of(struct ocr_fs *fs, fuse_ino_t id, const char *name)
{
    struct node *folder = node_get(&fs->nodes, id), *text = NULL;
    char entry[2 * NAME_BYTES];
    struct fuse_entry_param e;
    struct object o;
    int fd = folder ? attr_open(fs, folder, false, &o) : -ESTALE, rc;

    if (fd >= 0) {
        snprintf(entry, sizeof entry, "%s%s", name, fs->suffix);
        text = attr_lookup(fs, folder, fd, entry, &e, &rc);
        close(fd);
    }
    node_unref(&fs->nodes, folder);
    if (text && text->kind != NODE_TEXT) {
        node_unref(&fs->nodes, text);
        text = NULL;
    }
    return text;
}

static void start_job(struct ocr_fs *fs, const struct item *item)
{
    struct newcomers *c = &fs->newcomers;
    struct node *text = text_of(fs, item->folder, item->name);
    struct newcomer *job = text ? calloc(1, sizeof *job) : NULL;

    if (!job) {
        node_unref(&fs->nodes, text);
        return;
    }
    job->task = (struct hash_task){.run = run, .drop = drop};
    job->waiter.done = job_done;
    job->fs = fs;
    job->node = text;
    job->folder = item->folder;
    atomic_init(&job->refs, 1);
    snprintf(job->name, sizeof job->name, "%s", item->name);
    pthread_mutex_lock(&c->lock);
    c->in_flight++;
    pthread_mutex_unlock(&c->lock);
    hashpool_submit(&fs->pool, &job->task, 0, OCR_PRIORITY_BACKGROUND);
}

/* ---- images that came ------------------------------------------------ */

static void add_ready(struct newcomers *c, struct item *item)
{
    item->next = NULL;
    *c->ready_last = item;
    c->ready_last = &item->next;
}

/* Nearly always at the end: the waits are few and of fixed length. */
static void add_later(struct newcomers *c, struct item *item)
{
    struct item **at = &c->later;

    if (c->later && c->later_last->due_ms <= item->due_ms)
        at = &c->later_last->next;
    while (*at && (*at)->due_ms <= item->due_ms)
        at = &(*at)->next;
    item->next = *at;
    *at = item;
    if (!item->next)
        c->later_last = item;
}

static void add_image(struct ocr_fs *fs, fuse_ino_t folder, const char *name)
{
    struct item *item = item_new(folder, name, CHANGE_WHOLE, 0);

    if (item)
        add_ready(&fs->newcomers, item);
}

/* ---- folders --------------------------------------------------------- */

/* Takes the reference. False if it is held, or without memory. */
static bool hold(struct ocr_fs *fs, struct node *folder)
{
    struct newcomers *c = &fs->newcomers;

    if (!folder->real.held && c->held_count == c->held_room) {
        const size_t room = c->held_room ? 2 * c->held_room : 64;
        struct held *more = realloc(c->held, room * sizeof *more);

        if (more) {
            c->held = more;
            c->held_room = room;
        }
    }
    if (folder->real.held || c->held_count == c->held_room) {
        node_unref(&fs->nodes, folder);
        return false;
    }
    folder->real.held = true;
    c->held[c->held_count++] = (struct held){.node = folder};
    return true;
}

static void let_go(struct ocr_fs *fs, struct node *folder)
{
    folder->real.held = false;
    node_unref(&fs->nodes, folder);
}

static bool is_since(int dir, const char *name, int64_t since_ns)
{
    struct object o;

    return since_ns == 0 || (!source_stat_at(dir, name, &o) &&
                             stamp_of(&o.st).ctime_ns >= since_ns);
}

/* Its images that came since then; its folders that are not held yet are from
 * now on, at the end of the list. */
static void look_through(struct ocr_fs *fs, struct node *folder, int fd,
                         const struct dir *d, int64_t since_ns)
{
    const size_t suffix = strlen(fs->suffix);
    struct fuse_entry_param e;
    char image[NAME_BYTES + 1];
    struct stat st;
    struct node *n;
    int rc;

    for (size_t i = DOTS; i < dir_count(d); i++) {
        const char *name = dir_entry(d, i, &st);

        if (S_ISDIR(st.st_mode)) {
            n = attr_lookup(fs, folder, fd, name, &e, &rc);
            if (n && S_ISDIR(n->type))
                hold(fs, n);
            else
                node_unref(&fs->nodes, n);
        } else if (ocr_is_text(st.st_ino)) {
            snprintf(image, sizeof image, "%.*s", (int)(strlen(name) - suffix),
                     name);
            if (is_since(fd, image, since_ns))
                add_image(fs, folder->id, image);
        }
    }
}

/* False if the folder is gone. The watch first: what comes later is heard. */
static bool look_into(struct ocr_fs *fs, struct held *held, int64_t since_ns)
{
    struct dir *d = dir_new();
    struct node *folder = held->node; /* the list may move */
    struct object o;
    const int fd = attr_open(fs, folder, true, &o);

    if (fd >= 0 && d) {
        watch_folder(fs, folder, fd);
        held->watched = atomic_load(&folder->real.wd) > 0;
        if (!dir_snapshot(fs, folder, d, fd))
            look_through(fs, folder, fd, d, since_ns);
    }
    ocr_close(fd);
    dir_free(d);
    return fd >= 0 || fd == -EACCES;
}

static bool is_stopping(struct newcomers *c)
{
    bool yes;

    pthread_mutex_lock(&c->lock);
    yes = c->stopping;
    pthread_mutex_unlock(&c->lock);
    return yes;
}

/* Through the folders held from number `from` on, and all below that is not
 * held yet; only_unwatched: what is watched is left out, if it was before. */
static void look_around(struct ocr_fs *fs, size_t from, bool only_unwatched,
                        int64_t since_ns)
{
    struct newcomers *c = &fs->newcomers;
    const size_t before = c->held_count;
    size_t unwatched = 0;

    for (size_t i = from; i < c->held_count && !is_stopping(c); i++) {
        if (only_unwatched && i < before && c->held[i].watched)
            continue;
        if (!look_into(fs, &c->held[i], since_ns)) {
            let_go(fs, c->held[i].node);
            c->held[i].node = NULL;
        }
    }
    for (size_t i = from = 0; i < c->held_count; i++) {
        if (!c->held[i].node)
            continue;
        unwatched += !c->held[i].watched;
        c->held[from++] = c->held[i];
    }
    c->held_count = from;
    pthread_mutex_lock(&c->lock);
    c->folders = from;
    c->unwatched = unwatched;
    pthread_mutex_unlock(&c->lock);
}

/* A folder was made, or moved in with all that is in it. */
static void enter_folder(struct ocr_fs *fs, const struct item *item)
{
    struct newcomers *c = &fs->newcomers;
    struct node *parent = node_get(&fs->nodes, item->folder), *n = NULL;
    const size_t from = c->held_count;
    struct fuse_entry_param e;
    struct object o;
    int fd = parent ? attr_open(fs, parent, false, &o) : -ESTALE, rc;

    if (fd >= 0) {
        n = attr_lookup(fs, parent, fd, item->name, &e, &rc);
        close(fd);
    }
    node_unref(&fs->nodes, parent);
    if (n && S_ISDIR(n->type)) {
        if (hold(fs, n))
            look_around(fs, from, false, 0);
    } else {
        node_unref(&fs->nodes, n);
    }
}

/* ---- what is heard --------------------------------------------------- */

void newcomers_heard(struct ocr_fs *fs, uint64_t folder, const char *name,
                     unsigned what)
{
    struct newcomers *c = &fs->newcomers;
    const int64_t now = ocr_now_ms();
    int64_t due_ms;

    if (!c->on)
        return;
    if (what & CHANGE_FOLDER) {
        if (!(what & (CHANGE_CREATED | CHANGE_WHOLE | CHANGE_AWAY)))
            return;
        due_ms = what & CHANGE_AWAY ? now + GONE_MS : now;
    } else {
        if (!(what & (CHANGE_CREATED | CHANGE_WHOLE)) || !names_is_image(name))
            return;
        due_ms = what & CHANGE_WHOLE ? now : now + ALONE_MS;
    }
    pthread_mutex_lock(&c->lock);
    add_heard_locked(c, folder, name, what, due_ms);
    pthread_mutex_unlock(&c->lock);
}

void newcomers_lost(struct ocr_fs *fs, int64_t since_ns)
{
    struct newcomers *c = &fs->newcomers;

    if (!c->on)
        return;
    pthread_mutex_lock(&c->lock);
    if (!c->lost_ns || since_ns < c->lost_ns)
        c->lost_ns = since_ns;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
}

/* ---- the thread ------------------------------------------------------ */

static void take_heard(struct ocr_fs *fs, struct item *heard)
{
    const int64_t now = ocr_now_ms();

    for (struct item *next; heard; heard = next) {
        next = heard->next;
        if (heard->due_ms > now)
            add_later(&fs->newcomers, heard);
        else
            add_ready(&fs->newcomers, heard);
    }
}

/* Lets go of what was moved away or deleted. */
static void check_folders(struct ocr_fs *fs)
{
    struct newcomers *c = &fs->newcomers;
    struct object o;

    for (size_t i = 0; i < c->held_count;) {
        const int fd = attr_open(fs, c->held[i].node, false, &o);

        ocr_close(fd);
        if (fd != -ESTALE) {
            i++;
            continue;
        }
        let_go(fs, c->held[i].node);
        c->held[i] = c->held[--c->held_count];
    }
    pthread_mutex_lock(&c->lock);
    c->folders = c->held_count;
    pthread_mutex_unlock(&c->lock);
}

static unsigned room(struct ocr_fs *fs)
{
    struct ocr_queue_stats queue;

    ocr_queue_stats(fs->queue, &queue);
    return queue.capacity ? queue.capacity : NO_ENGINE;
}

static void handle(struct ocr_fs *fs, const struct item *item)
{
    if (!(item->what & CHANGE_FOLDER)) {
        start_job(fs, item);
        return;
    }
    if (item->what & CHANGE_AWAY)
        check_folders(fs);
    if (item->what & (CHANGE_CREATED | CHANGE_WHOLE))
        enter_folder(fs, item);
}

static size_t length(const struct item *item)
{
    size_t n = 0;

    for (; item; item = item->next)
        n++;
    return n;
}

/* Those whose time has come, as far as there is room. */
static void start_ready(struct ocr_fs *fs)
{
    struct newcomers *c = &fs->newcomers;
    const unsigned most = room(fs);
    struct item *item;
    size_t waiting;
    bool full = false;

    while ((item = c->later) && item->due_ms <= ocr_now_ms()) {
        c->later = item->next;
        add_ready(c, item);
    }
    while ((item = c->ready) && !full) {
        pthread_mutex_lock(&c->lock);
        full = c->in_flight >= most || c->stopping;
        pthread_mutex_unlock(&c->lock);
        if (full)
            break;
        c->ready = item->next;
        if (!c->ready)
            c->ready_last = &c->ready;
        handle(fs, item);
        free(item);
    }
    waiting = length(c->ready) + length(c->later);
    pthread_mutex_lock(&c->lock);
    c->waiting = waiting;
    pthread_mutex_unlock(&c->lock);
}

/* Until something is heard, a job ended, or `until_ms`. */
static struct item *wait_for_news(struct newcomers *c, int64_t until_ms,
                                  int64_t *lost_ns, bool *stop)
{
    const struct timespec deadline = {until_ms / 1000,
                                      until_ms % 1000 * 1000000};
    struct item *heard;
    int rc = 0;

    pthread_mutex_lock(&c->lock);
    while (!c->heard && !c->lost_ns && !c->ended && !c->stopping && !rc)
        rc = pthread_cond_timedwait(&c->wake, &c->lock, &deadline);
    heard = c->heard;
    c->heard = NULL;
    c->last = &c->heard;
    c->heard_count = 0;
    c->ended = false;
    *lost_ns = c->lost_ns;
    c->lost_ns = 0;
    *stop = c->stopping;
    pthread_mutex_unlock(&c->lock);
    return heard;
}

static void *work(void *arg)
{
    struct ocr_fs *fs = arg;
    struct newcomers *c = &fs->newcomers;
    int64_t look_ms = ocr_now_ms() + LOOK_MS, lost_ns = 0;
    int64_t looked_ns = ocr_wall_ns();
    bool stop = false;

    hold(fs, node_ref(&fs->nodes, fs->nodes.root));
    look_around(fs, 0, false, fs->begun_ns);
    while (!stop) {
        int64_t until = look_ms;

        start_ready(fs);
        if (c->later && c->later->due_ms < until)
            until = c->later->due_ms;
        take_heard(fs, wait_for_news(c, until, &lost_ns, &stop));
        if (lost_ns)
            look_around(fs, 0, false, lost_ns - SPARE_NS);
        if (ocr_now_ms() >= look_ms) {
            const int64_t since = looked_ns - SPARE_NS;

            looked_ns = ocr_wall_ns();
            look_around(fs, 0, true, since);
            look_ms = ocr_now_ms() + LOOK_MS;
        }
    }
    pthread_mutex_lock(&c->lock);
    c->over = true;
    pthread_cond_broadcast(&c->wake);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- life ------------------------------------------------------------ */

void newcomers_init(struct newcomers *c, bool on)
{
    pthread_condattr_t attr;

    *c = (struct newcomers){.on = on, .lock = PTHREAD_MUTEX_INITIALIZER};
    c->last = &c->heard;
    c->ready_last = &c->ready;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->wake, &attr);
    pthread_condattr_destroy(&attr);
}

int newcomers_start(struct ocr_fs *fs, struct ocr_err *err)
{
    struct newcomers *c = &fs->newcomers;
    int rc;

    if (!c->on)
        return 0;
    rc = fs_thread_start(&c->thread, work, fs);
    if (rc)
        return ocr_err_set(err, rc, "cannot start a thread: %s", strerror(-rc));
    c->started = true;
    return 0;
}

void newcomers_figures(struct newcomers *c, struct newcomers_figures *out)
{
    pthread_mutex_lock(&c->lock);
    *out = (struct newcomers_figures){
        .on = c->on,
        .folders = c->folders,
        .unwatched = c->unwatched,
        .waiting = c->waiting + c->heard_count,
        .in_flight = c->in_flight,
        .started = c->started_jobs,
    };
    pthread_mutex_unlock(&c->lock);
}

void newcomers_stop(struct ocr_fs *fs)
{
    struct newcomers *c = &fs->newcomers;

    pthread_mutex_lock(&c->lock);
    c->stopping = true;
    pthread_cond_broadcast(&c->wake);
    pthread_mutex_unlock(&c->lock);
}

bool newcomers_join(struct ocr_fs *fs, int timeout_ms)
{
    struct newcomers *c = &fs->newcomers;

    if (c->started)
        c->started = !fs_thread_join(c->thread, &c->lock, &c->wake, &c->over,
                                     timeout_ms);
    return !c->started;
}

static void free_items(struct item *item)
{
    for (struct item *next; item; item = next) {
        next = item->next;
        free(item);
    }
}

void newcomers_release(struct ocr_fs *fs)
{
    struct newcomers *c = &fs->newcomers;

    for (size_t i = 0; i < c->held_count; i++)
        node_unref(&fs->nodes, c->held[i].node);
    free(c->held);
    free_items(c->ready);
    free_items(c->later);
    free_items(c->heard);
    pthread_cond_destroy(&c->wake);
    pthread_mutex_destroy(&c->lock);
}

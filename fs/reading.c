#include "engine/base/io.h"
#include "engine/base/log.h"
#include "fs/fs_i.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* W8: a file that is still being written. */
enum {
    QUIET_MS = 500,
    QUIET_AGE_MS = 2000,
    QUIET_MOST_MS = 3000,
    CLOSE_POLL_MS = 20, /* for a close that a watch will tell of */
};

/* How soon to look again at an image that readahead is loading. */
enum {
    LOADING_MS = 5
};

static struct reading *reading_of(struct hash_task *task)
{
    return (struct reading *)((char *)task - offsetof(struct reading, task));
}

static struct reading *reading_of_waiter(struct ocr_waiter *waiter)
{
    return (struct reading *)((char *)waiter -
                              offsetof(struct reading, waiter));
}

/* ---- lifetime -------------------------------------------------------- */

static void job_done(struct ocr_waiter *waiter,
                     const struct ocr_result *result);
static void run(struct hash_task *task);

/* Somebody who is in more of a hurry came. */
static void raise_locked(struct reading *r, enum ocr_priority priority)
{
    if (priority <= r->priority)
        return;
    r->priority = priority;
    if (r->stage == READING_POOL)
        hashpool_raise(&r->fs->pool, &r->task, priority);
    else if (r->stage == READING_QUEUE)
        ocr_queue_raise(r->fs->queue, &r->waiter, priority);
}

struct reading *reading_of_locked(struct ocr_fs *fs, struct node *n,
                                  struct warmth warmth, bool *begun)
{
    const enum ocr_priority priority =
        warmth.warms ? OCR_PRIORITY_BACKGROUND : OCR_PRIORITY_INTERACTIVE;
    struct reading *r = n->text.reading;

    if (r) {
        raise_locked(r, priority);
        return r;
    }
    r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->fs = fs;
    r->node = node_ref(&fs->nodes, n);
    r->task.run = run;
    r->waiter.done = job_done;
    r->fd = -1;
    r->priority = r->task.priority = priority;
    r->redo = warmth.refresh;
    r->begun_ms = ocr_now_ms();
    r->refs = 1; /* the pool's */
    r->next = fs->park.readings;
    if (r->next)
        r->next->prev = r;
    fs->park.readings = r;
    n->text.reading = r;
    *begun = true;
    return r;
}

static enum ocr_priority priority_of(struct reading *r)
{
    enum ocr_priority priority;

    pthread_mutex_lock(&r->fs->park.lock);
    priority = r->priority;
    pthread_mutex_unlock(&r->fs->park.lock);
    return priority;
}

static void submit(struct reading *r, int64_t due_ms)
{
    hashpool_submit(&r->fs->pool, &r->task, due_ms, priority_of(r));
}

void reading_begin(struct reading *r)
{
    submit(r, 0);
}

void reading_over_locked(struct reading *r)
{
    r->stage = READING_OVER;
    if (r->node->text.reading == r)
        r->node->text.reading = NULL;
}

/* Gives one reference back: the pool's or the queue's. */
static void unref_locked(struct reading *r)
{
    struct ocr_fs *fs = r->fs;

    if (--r->refs)
        return;
    *(r->prev ? &r->prev->next : &fs->park.readings) = r->next;
    if (r->next)
        r->next->prev = r->prev;
    node_unref(&fs->nodes, r->node);
    free(r);
}

static void unref(struct reading *r)
{
    pthread_mutex_t *lock = &r->fs->park.lock;

    pthread_mutex_lock(lock);
    unref_locked(r);
    pthread_mutex_unlock(lock);
}

void reading_abandon_locked(struct reading *r)
{
    /* In the pool it ends at its next step; if it is being answered, that
     * goes on. */
    if (r->stage != READING_QUEUE || !ocr_queue_leave(r->fs->queue, &r->waiter))
        return;
    reading_over_locked(r);
    unref_locked(r);
}

/* ---- answers --------------------------------------------------------- */

void reading_reply(struct ocr_fs *fs, fuse_req_t req, struct node *n,
                   struct fuse_file_info *fi, struct text *text)
{
    struct handle *h = handle_new(&fs->nodes, n, -1, text, NULL);

    if (!h) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    fi->fh = (uintptr_t)h;
    /* A node stands for one text, so what the kernel has of it is right. */
    fi->keep_cache = 1;
    if (fuse_reply_open(req, fi) == -ENOENT)
        handle_free(&fs->nodes, h);
}

static void succeed(struct ocr_fs *fs, struct node *n, struct text *text,
                    int64_t redone_ns, struct outcome *o)
{
    o->text = text;
    o->rc = text ? node_serve(&fs->nodes, n, text, redone_ns) : -ENOMEM;
}

size_t reading_reason(enum ocr_kind kind, const char *sentence, char *out)
{
    const int n = snprintf(out, REASON_BYTES, "No text: %s (%s)\n",
                           sentence && *sentence ? sentence : "not readable",
                           ocr_kind_words(kind));

    return n < REASON_BYTES ? (size_t)n : REASON_BYTES - 1;
}

/* What the open says of a failure. */
static void answer_failure(struct ocr_fs *fs, struct node *n,
                           enum ocr_kind kind, const char *sentence,
                           struct outcome *o)
{
    char reason[REASON_BYTES];
    char *bytes = NULL;
    size_t len;

    o->rc = ocr_kind_errno(kind);
    if (!ocr_kind_is_verdict(kind) || fs->errors == ERRORS_ERRNO)
        return;
    if (fs->errors == ERRORS_HIDE) {
        o->rc = -ENOENT;
        return;
    }
    len = reading_reason(kind, sentence, reason);
    bytes = strdup(reason);
    succeed(fs, n, bytes ? text_new(bytes, len) : NULL, 0, o);
}

/* The log and the counters have it from reading_job_finished. */
static void fail_quietly(struct ocr_fs *fs, struct node *n,
                         const struct ocr_result *result, struct outcome *o)
{
    answer_failure(fs, n, result->kind, result->sentence, o);
    pthread_mutex_lock(&fs->nodes.lock);
    n->text.said = true;
    pthread_mutex_unlock(&fs->nodes.lock);
}

/* Says it once for a node. */
static void fail(struct ocr_fs *fs, struct node *n, enum ocr_kind kind,
                 const char *reason, struct outcome *o)
{
    bool follow, said;
    char *path;

    answer_failure(fs, n, kind, reason, o);
    pthread_mutex_lock(&fs->nodes.lock);
    said = n->text.said;
    n->text.said = true;
    pthread_mutex_unlock(&fs->nodes.lock);
    if (said) {
        stats_fail_again(&fs->stats, kind);
        return;
    }
    path = node_path(&fs->nodes, n, 0, &follow);
    stats_fail(fs, kind, path ? path : "?", reason);
    free(path);
}

/* The kind of an error that carries none. */
static enum ocr_kind kind_of(const struct ocr_err *err)
{
    if (err->kind != OCR_KIND_NONE)
        return err->kind;
    return err->code == -EACCES || err->code == -EPERM ? OCR_KIND_DENIED
                                                       : OCR_KIND_FAILED;
}

/* An error before there was a job. */
static void fail_early(struct ocr_fs *fs, struct node *n,
                       const struct ocr_err *err, struct outcome *o)
{
    if (err->code == -ESTALE)
        o->rc = -ESTALE;
    else if (err->code == -ECANCELED || err->code == -ESHUTDOWN)
        o->rc = -ENODEV;
    else if (err->code == -EINTR)
        o->rc = -EINTR;
    else
        fail(fs, n, kind_of(err), err->text, o);
}

void reading_timed_out(struct ocr_fs *fs, struct node *n)
{
    struct ocr_job_key key = {.owner = OCR_CACHE_ANY_OWNER};
    struct outcome o;
    bool known;

    pthread_mutex_lock(&fs->nodes.lock);
    known = n->text.has_digest;
    key.digest = n->text.digest;
    key.owner = owner_of(fs, n->text.image.uid);
    pthread_mutex_unlock(&fs->nodes.lock);
    if (known)
        stats_remember(&fs->stats, &key, OCR_KIND_TIMEOUT);
    fail(fs, n, OCR_KIND_TIMEOUT, "not read within ocr_timeout", &o);
}

/* ---- what is known already ------------------------------------------- */

/* True if *o is decided by the cache, an open file, or a recent failure. */
static bool known(struct ocr_fs *fs, struct node *n,
                  const struct ocr_job_key *job, bool redo, struct outcome *o)
{
    struct ocr_maker maker = fs_maker(fs);
    struct ocr_cache_key key = {.owner = job->owner};
    struct text *text = redo ? NULL : node_open_text(&fs->nodes, n);
    struct ocr_cached cached;
    enum ocr_kind kind;

    if (text) {
        *o = (struct outcome){.text = text};
        return true;
    }
    maker.redo_stale |= redo;
    memcpy(key.digest, job->digest.bytes, sizeof key.digest);
    if (!ocr_cache_get(fs->cache, &key, &maker, &cached)) {
        if (cached.verdict == OCR_KIND_NONE)
            succeed(fs, n, text_new(cached.text, cached.size), cached.redone_ns,
                    o);
        else
            fail(fs, n, cached.verdict, cached.sentence, o);
        return true;
    }
    /* That there was no engine, or no server, says nothing of the next time. */
    kind = stats_recall(&fs->stats, job);
    if (kind == OCR_KIND_NONE || kind == OCR_KIND_GONE)
        return false;
    stats_fail_again(&fs->stats, kind);
    o->rc = ocr_kind_errno(kind);
    return true;
}

/* The image's digest as the index has it. */
static enum ocr_identity ask_index(struct ocr_fs *fs, const struct object *o,
                                   int fd, struct ocr_job_key *key)
{
    struct ocr_file_id id;

    attr_file_id(fs, &o->st, fd, &id);
    key->owner = owner_of(fs, o->st.st_uid);
    return ocr_cache_identify(fs->cache, &id, key->digest.bytes);
}

/* ---- the pool's part ------------------------------------------------- */

enum step {
    STEP_ANSWER, /* the outcome is known */
    STEP_AGAIN,  /* at task.due_ms */
    STEP_QUEUED, /* the queue answers, or nobody wants it any more */
};

/* False ends a reading for which nobody waits. */
static bool wanted(struct reading *r)
{
    bool yes;

    pthread_mutex_lock(&r->fs->park.lock);
    yes = r->first || r->goes_on;
    if (!yes)
        reading_over_locked(r);
    pthread_mutex_unlock(&r->fs->park.lock);
    return yes;
}

/* An image is never opened twice at a time: on some file systems the second
 * open waits for the reads of the first, and no signal ends that. */
static bool is_loading(struct reading *r)
{
    bool loading;

    pthread_mutex_lock(&r->fs->park.lock);
    loading = r->node->text.loading;
    pthread_mutex_unlock(&r->fs->park.lock);
    return loading;
}

/* W8: a file changed in the last two seconds has to stand still for a while
 * first. Other ages are old or nonsense, and never wait; nor does a file that
 * was replaced meanwhile, since nobody writes to it any more. */
static bool is_young(const struct object *o)
{
    const int64_t age_ms =
        (ocr_wall_ns() - stamp_of(&o->st).mtime_ns) / 1000000;

    return age_ms >= 0 && age_ms < QUIET_AGE_MS && o->st.st_nlink != 0;
}

/* In a watched folder the writer's close is heard, and until then two seconds
 * of quiet count, not half of one. */
static bool still_written(struct reading *r, const struct object *o)
{
    const struct stamp stamp = stamp_of(&o->st);
    const int64_t now = ocr_now_ms();
    enum writing writing;

    if (!is_young(o) || now - r->begun_ms >= QUIET_MOST_MS)
        return false;
    writing = watch_writing(r->fs, r->node);
    if (writing == WRITING_CLOSED)
        return false;
    if (!r->seen_ms || !stamp_equal(&r->seen, &stamp)) {
        r->seen = stamp;
        r->seen_ms = now;
    }
    r->task.due_ms =
        writing == WRITING_OPEN ? now + CLOSE_POLL_MS : r->seen_ms + QUIET_MS;
    if (r->task.due_ms > r->begun_ms + QUIET_MOST_MS)
        r->task.due_ms = r->begun_ms + QUIET_MOST_MS;
    return now < r->task.due_ms;
}

/* Hashes the image and holds the node to what was found. */
static int load(struct ocr_fs *fs, struct node *n, int fd, struct object *o,
                bool keep, struct ocr_content *content, struct ocr_job_key *key,
                struct ocr_err *err)
{
    struct ocr_file_id id;
    int rc = ocr_content_load(content, fd, ocr_cache_secret(fs->cache), keep,
                              &fs->park.stopping, err);

    if (rc)
        return rc;
    /* The mode stays: it is limited by the ACL. */
    o->st.st_size = content->stat.st_size;
    o->st.st_mtim = content->stat.st_mtim;
    o->st.st_ctim = content->stat.st_ctim;
    attr_file_id(fs, &content->stat, fd, &id);
    rc = ocr_cache_remember(fs->cache, &id, content->digest.bytes,
                            content->read_ns, err);
    if (rc) {
        stats_cache_trouble(&fs->stats, err);
        ocr_err_clear(err);
    }
    key->digest = content->digest;
    key->owner = owner_of(fs, o->st.st_uid);
    rc = node_check_version(&fs->nodes, n, o);
    if (!rc)
        rc = node_fix(&fs->nodes, n, &content->digest);
    if (rc) {
        ocr_content_release(content);
        ocr_err_set(err, rc, "another version of the image");
    }
    return rc;
}

/* Hands the reading to the queue: with the bytes, or to a job that has them. */
static bool join(struct reading *r, struct ocr_content *content,
                 struct ocr_err *err)
{
    struct ocr_fs *fs = r->fs;
    enum ocr_priority priority;
    bool follow, joined;
    char *label;

    if (atomic_load(&fs->park.paused)) {
        if (content)
            ocr_err_set(err, -EINTR, "paused");
        return false;
    }
    pthread_mutex_lock(&fs->park.lock);
    priority = r->priority;
    r->stage = READING_JOINING;
    r->refs++; /* the queue's */
    pthread_mutex_unlock(&fs->park.lock);
    joined = ocr_queue_join_existing(fs->queue, &r->key, priority, &r->waiter);
    if (!joined && content) {
        label = node_path(&fs->nodes, r->node, 0, &follow);
        joined = !ocr_queue_join(fs->queue, &r->key, content,
                                 ocr_cache_secret(fs->cache), priority,
                                 label ? label : "?", &r->waiter, err);
        free(label);
    }
    pthread_mutex_lock(&fs->park.lock);
    if (!joined) {
        r->stage = READING_POOL;
        r->refs--;
    } else if (r->stage == READING_JOINING) { /* not answered meanwhile */
        r->stage = READING_QUEUE;
        if (r->priority > priority)
            ocr_queue_raise(fs->queue, &r->waiter, r->priority);
        if (!r->first && !r->goes_on)
            reading_abandon_locked(r);
        else if (atomic_load(&fs->park.paused)) /* in between */
            sem_post(&fs->park.wake);
    }
    pthread_mutex_unlock(&fs->park.lock);
    return joined;
}

/* True if a job that runs, or the cache, has the text: in this order, since a
 * job that ended in between has stored it. */
static bool at_hand(struct reading *r, struct outcome *out, struct ocr_err *err,
                    enum step *step)
{
    if (join(r, NULL, err)) {
        *step = STEP_QUEUED;
        return true;
    }
    *step = STEP_ANSWER;
    return known(r->fs, r->node, &r->key, r->redo, out);
}

/* With the image open: its text from what is known, or a place in the queue. */
static enum step step_open(struct reading *r, int fd, struct object *o,
                           struct outcome *out, struct ocr_err *err)
{
    struct ocr_fs *fs = r->fs;
    struct ocr_content content = {.fd = -1};
    const enum ocr_identity identity = ask_index(fs, o, fd, &r->key);
    /* If the index has seen the file, its text is probably known, and a copy
     * of the bytes would be for nothing. */
    bool keep = identity == OCR_IDENTITY_NONE;
    enum step step = STEP_ANSWER;
    bool settled = false;

    if (identity == OCR_IDENTITY_EXACT && !fs->options->verify) {
        if (node_fix(&fs->nodes, r->node, &r->key.digest)) {
            ocr_err_set(err, -ESTALE, "another version of the image");
            return STEP_ANSWER;
        }
        if (at_hand(r, out, err, &step))
            return step;
        keep = true;
    }
    for (;; keep = true) {
        settled = load(fs, r->node, fd, o, keep, &content, &r->key, err) ||
                  at_hand(r, out, err, &step);
        if (settled || keep)
            break;
    }
    if (!settled && join(r, &content, err))
        step = STEP_QUEUED;
    ocr_content_release(&content);
    return step;
}

/* The image, as it was kept open or by its names. */
static int open_image(struct reading *r, struct object *o)
{
    const int fd = r->fd;
    int rc;

    if (fd < 0)
        return attr_open(r->fs, r->node, true, o);
    r->fd = -1;
    atomic_fetch_sub(&r->fs->park.kept_fds, 1);
    rc = attr_stat(r->fs, fd, o);
    if (!rc)
        return fd;
    close(fd);
    return rc;
}

/* Keeps the image open until the next step, so that one that is replaced over
 * and over can be read. A few only: descriptors are few. */
static void keep_image(struct reading *r, int fd)
{
    atomic_uint *kept = &r->fs->park.kept_fds;

    if (atomic_fetch_add(kept, 1) < QUIET_FDS) {
        r->fd = fd;
        return;
    }
    atomic_fetch_sub(kept, 1);
    close(fd);
}

static enum step step(struct reading *r, struct outcome *out)
{
    struct ocr_fs *fs = r->fs;
    struct ocr_err err = OCR_ERR_INIT;
    enum step next = STEP_ANSWER;
    struct object o;
    int fd, rc;

    if (!wanted(r))
        return STEP_QUEUED;
    if (is_loading(r)) {
        r->task.due_ms = ocr_now_ms() + LOADING_MS;
        return STEP_AGAIN;
    }
    fd = open_image(r, &o);
    if (fd < 0) {
        errno = -fd;
        ocr_err_errno(&err, "cannot open the image");
    } else if ((rc = node_check_version(&fs->nodes, r->node, &o))) {
        ocr_err_set(&err, rc, "another version of the image");
    } else if (still_written(r, &o)) {
        keep_image(r, fd);
        return STEP_AGAIN;
    } else {
        next = step_open(r, fd, &o, out, &err);
    }
    ocr_close(fd);
    if (next == STEP_ANSWER && err.code)
        fail_early(fs, r->node, &err, out);
    return next;
}

static void run(struct hash_task *task)
{
    struct reading *r = reading_of(task);
    struct outcome out = {0};
    const enum step next = step(r, &out);

    if (next == STEP_AGAIN) {
        submit(r, task->due_ms);
        return;
    }
    if (next == STEP_ANSWER)
        park_answer_all(r->fs, r, &out);
    text_unref(out.text);
    if (r->fd >= 0) { /* nobody wanted it any more */
        atomic_fetch_sub(&r->fs->park.kept_fds, 1);
        r->fd = ocr_close(r->fd);
    }
    unref(r);
}

/* ---- readahead -------------------------------------------------------- */

/* A text, or a failure that would come again. */
static bool settled(struct ocr_fs *fs, const struct ocr_job_key *job)
{
    const struct ocr_maker maker = fs_maker(fs);
    struct ocr_cache_key key = {.owner = job->owner};
    struct ocr_cached cached;

    memcpy(key.digest, job->digest.bytes, sizeof key.digest);
    return (!ocr_cache_size(fs->cache, &key, &maker, &cached) &&
            (cached.stored || cached.verdict != OCR_KIND_NONE)) ||
           stats_recall(&fs->stats, job) != OCR_KIND_NONE;
}

static bool join_ahead(struct ocr_fs *fs, struct node *n, int fd,
                       struct object *o, enum ocr_priority priority,
                       struct ocr_waiter *waiter)
{
    struct ocr_content content = {.fd = -1};
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_job_key key;
    bool follow, joined = false;
    char *label;

    if (ask_index(fs, o, fd, &key) == OCR_IDENTITY_EXACT && settled(fs, &key))
        return false;
    if (load(fs, n, fd, o, true, &content, &key, &err))
        return false;
    if (!settled(fs, &key)) {
        label = node_path(&fs->nodes, n, 0, &follow);
        joined = !ocr_queue_join(fs->queue, &key, &content,
                                 ocr_cache_secret(fs->cache), priority,
                                 label ? label : "?", waiter, &err);
        free(label);
    }
    ocr_content_release(&content);
    return joined;
}

static bool load_ahead(struct ocr_fs *fs, struct node *n,
                       enum ocr_priority priority, struct ocr_waiter *waiter,
                       bool *written)
{
    struct object o;
    const int fd = attr_open(fs, n, true, &o);
    bool joined;

    if (fd < 0)
        return false;
    *written = is_young(&o) && watch_writing(fs, n) != WRITING_CLOSED;
    joined = !node_check_version(&fs->nodes, n, &o) && !*written &&
             join_ahead(fs, n, fd, &o, priority, waiter);
    close(fd);
    return joined;
}

/* With a reading there is no need: somebody was faster. */
bool reading_ahead(struct ocr_fs *fs, struct node *n,
                   enum ocr_priority priority, struct ocr_waiter *waiter,
                   bool *written)
{
    bool joined, alone;

    pthread_mutex_lock(&fs->park.lock);
    alone = n->text.loading = !n->text.reading;
    pthread_mutex_unlock(&fs->park.lock);
    joined = alone && load_ahead(fs, n, priority, waiter, written);
    pthread_mutex_lock(&fs->park.lock);
    n->text.loading = false;
    pthread_mutex_unlock(&fs->park.lock);
    return joined;
}

/* ---- the queue's part ------------------------------------------------ */

static struct text *copy_of(const struct ocr_result *result)
{
    char *bytes = malloc(result->len + 1);

    if (!bytes)
        return NULL;
    memcpy(bytes, result->text, result->len);
    bytes[result->len] = '\0';
    return text_new(bytes, result->len);
}

/* When the text was made, if the image had another one before (U12). */
static int64_t redone_ns(struct ocr_fs *fs, const struct ocr_job_key *job)
{
    const struct ocr_maker maker = fs_maker(fs);
    struct ocr_cache_key key = {.owner = job->owner};
    struct ocr_cached cached;

    memcpy(key.digest, job->digest.bytes, sizeof key.digest);
    return ocr_cache_size(fs->cache, &key, &maker, &cached) ? 0
                                                            : cached.redone_ns;
}

static void job_done(struct ocr_waiter *waiter, const struct ocr_result *result)
{
    struct reading *r = reading_of_waiter(waiter);
    struct ocr_fs *fs = r->fs;
    struct outcome out = {0};

    if (result->kind == OCR_KIND_NONE)
        succeed(fs, r->node, copy_of(result), redone_ns(fs, &r->key), &out);
    else
        fail_quietly(fs, r->node, result, &out);
    park_answer_all(fs, r, &out);
    text_unref(out.text);
    unref(r);
}

static void store(struct ocr_fs *fs, const struct ocr_job_key *job,
                  const struct ocr_result *result)
{
    const struct ocr_maker maker = fs_maker(fs);
    struct ocr_cache_key key = {.owner = job->owner};
    struct ocr_err err = OCR_ERR_INIT;
    int rc = 0;

    memcpy(key.digest, job->digest.bytes, sizeof key.digest);
    if (result->flags & OCR_TEXT_PARTIAL)
        return;
    if (result->kind == OCR_KIND_NONE)
        rc = ocr_cache_put(fs->cache, &key, &maker, result->text, result->len,
                           &err);
    else if (ocr_kind_is_verdict(result->kind))
        rc = ocr_cache_put_verdict(fs->cache, &key, &maker, result->kind,
                                   result->sentence, &err);
    if (rc)
        stats_cache_trouble(&fs->stats, &err);
}

/* A text of another version is no help to whoever has a document read again:
 * what is stale here would stay so. */
char *reading_page_known(void *arg, const struct ocr_job_key *page, size_t *len)
{
    struct ocr_fs *fs = arg;
    struct ocr_maker maker = fs_maker(fs);
    struct ocr_cache_key key = {.owner = page->owner};
    struct ocr_cached cached;

    maker.redo_stale = true;
    memcpy(key.digest, page->digest.bytes, sizeof key.digest);
    if (ocr_cache_get(fs->cache, &key, &maker, &cached) || cached.verdict)
        return NULL;
    *len = (size_t)cached.size;
    return cached.text;
}

void reading_page_read(void *arg, const struct ocr_job_key *page,
                       const char *text, size_t len)
{
    struct ocr_fs *fs = arg;
    const struct ocr_maker maker = fs_maker(fs);
    struct ocr_cache_key key = {.owner = page->owner};
    struct ocr_err err = OCR_ERR_INIT;

    memcpy(key.digest, page->digest.bytes, sizeof key.digest);
    if (ocr_cache_put(fs->cache, &key, &maker, text, len, &err))
        stats_cache_trouble(&fs->stats, &err);
}

static void remark(struct ocr_fs *fs, const char *label, unsigned flags)
{
    char name[2 * PATH_MAX];

    if (!flags)
        return;
    snprintf(name, sizeof name, "%s/%s", fs->config.source, label);
    ocr_remarks_say(&fs->stats.remarks, name, flags);
}

void reading_job_finished(void *arg, const struct ocr_job_key *key,
                          const char *label, const struct ocr_result *result)
{
    struct ocr_fs *fs = arg;

    if (result->kind == OCR_KIND_CANCELLED || result->kind == OCR_KIND_STOPPING)
        return;
    store(fs, key, result);
    stats_page(&fs->stats, result->kind == OCR_KIND_NONE, result->pages);
    if (result->kind == OCR_KIND_NONE) {
        remark(fs, label, result->flags);
        return;
    }
    stats_fail(fs, result->kind, label,
               result->sentence ? result->sentence : "");
    if (!ocr_kind_is_verdict(result->kind))
        stats_remember(&fs->stats, key, result->kind);
}

/* ---- bytes asked for again ------------------------------------------- */

struct reload {
    struct hash_task task;
    struct ocr_fs *fs;
    struct ocr_job_key key;
    char path[]; /* the job's label */
};

static void drop_reload(struct hash_task *task)
{
    free((char *)task - offsetof(struct reload, task));
}

static void run_reload(struct hash_task *task)
{
    struct reload *reload =
        (struct reload *)((char *)task - offsetof(struct reload, task));
    struct ocr_fs *fs = reload->fs;
    struct ocr_content content = {.fd = -1};
    struct ocr_err err = OCR_ERR_INIT;
    int fd = source_open_file(&fs->source, reload->path, false);

    if (fd == -ELOOP && fs->options->follow)
        fd = source_open_file(&fs->source, reload->path, true);
    if (fd == -ENOENT) {
        ocr_err_kind(&err, OCR_KIND_VANISHED, "the image vanished");
    } else if (fd < 0) {
        errno = -fd;
        ocr_err_errno(&err, "cannot open the image again");
    } else {
        ocr_content_load(&content, fd, ocr_cache_secret(fs->cache), true,
                         &fs->park.stopping, &err);
        close(fd);
    }
    if (err.code && err.kind == OCR_KIND_NONE)
        err.kind = kind_of(&err);
    /* Other bytes than the job's: the queue compares the digests. */
    ocr_queue_supply(fs->queue, &reload->key, err.code ? NULL : &content,
                     err.code ? &err : NULL);
    free(reload);
}

void reading_job_reload(void *arg, const struct ocr_job_key *key,
                        const char *label)
{
    struct ocr_fs *fs = arg;
    const size_t bytes = strlen(label) + 1;
    struct reload *reload = malloc(sizeof *reload + bytes);
    struct ocr_err err = OCR_ERR_INIT;

    if (!reload) {
        ocr_err_kind(&err, OCR_KIND_FAILED, "out of memory");
        ocr_queue_supply(fs->queue, key, NULL, &err);
        return;
    }
    reload->task = (struct hash_task){.run = run_reload, .drop = drop_reload};
    reload->fs = fs;
    reload->key = *key;
    memcpy(reload->path, label, bytes);
    hashpool_submit(&fs->pool, &reload->task, 0, OCR_PRIORITY_INTERACTIVE);
}

/* ---- open
 * ------------------------------------------------------------------------------------------
 */

/* Known texts without a copy of the image: true if *o is decided. */
static bool quick(struct ocr_fs *fs, struct node *n, bool redo,
                  struct outcome *out)
{
    struct ocr_job_key key;
    struct object o;
    int fd = attr_open(fs, n, false, &o);
    bool decided = false;

    out->rc = fd < 0 ? fd : node_check_version(&fs->nodes, n, &o);
    if (!out->rc && !fs->options->verify &&
        ask_index(fs, &o, fd, &key) == OCR_IDENTITY_EXACT) {
        out->rc = node_fix(&fs->nodes, n, &key.digest);
        decided = !out->rc && known(fs, n, &key, redo, out);
    }
    ocr_close(fd);
    return decided || out->rc;
}

bool reading_refused(struct ocr_fs *fs, fuse_req_t req, struct node *n)
{
    bool sized;

    pthread_mutex_lock(&fs->nodes.lock);
    sized = n->text.sized;
    pthread_mutex_unlock(&fs->nodes.lock);
    return !sized && caller_listed(fuse_req_ctx(req)->pid, fs->options->noocr);
}

void reading_open(struct ocr_fs *fs, fuse_req_t req, struct node *n,
                  struct fuse_file_info *fi)
{
    const struct warmth warmth =
        node_warmth(&fs->nodes, fs->control, fuse_req_ctx(req)->pid);
    struct outcome out = {0};
    const bool decided = quick(fs, n, warmth.refresh, &out);

    stats_opened(&fs->stats, decided);
    if (decided && !out.rc) {
        ahead_opened(fs, n, true);
        reading_reply(fs, req, n, fi, out.text);
    } else if (decided) {
        fuse_reply_err(req, -out.rc);
    } else if (reading_refused(fs, req, n)) {
        stats_refused(&fs->stats);
        fuse_reply_err(req, EACCES);
    } else {
        if (!warmth.warms && !atomic_load(&fs->park.paused))
            ahead_opened(fs, n, false);
        park_request(fs, req, n, fi, warmth);
    }
    text_unref(out.text);
}

#include "engine/server/child.h"

#include "engine/base/io.h"
#include "engine/base/log.h"
#include "engine/content.h"
#include "engine/server/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    HELPERS_MAX = 64,
    HELPERS_DEFAULT = 4,
    CPU_S = 60,
    WALL_S = 600,
    IMAGES = 200,
    PRIORITIES = OCR_PRIORITY_INTERACTIVE + 1,
    /* A helper killed from outside says nothing about the image: once more. */
    TRIES = 2,
    CHANNELS_MAX = 3,
};
#define MEMORY ((uint64_t)3 << 29)

struct job {
    struct job *next;
    struct ocr_decode_task task;
};

struct worker {
    struct ocr_decode_pool *pool;
    pthread_t thread;
    int wake; /* eventfd: cancelled, or the pool closes */
    struct ocr_child children[OCR_HELPER_KINDS]; /* the thread's */
    struct ocr_child *child;                     /* in work or about to be */
    struct job *job;                             /* in work; guarded by lock */
    bool cancelled; /* the job in work; guarded by lock */
    int pixels;     /* of the image in work; the thread's */
};

struct ocr_decode_pool {
    /* Immutable after open: */
    struct ocr_decode_config config;
    char *program;
    unsigned workers_open;
    struct worker *workers; /* [config.helpers] */

    pthread_mutex_t lock; /* guards what follows; nothing slow under it */
    pthread_cond_t work;  /* a job waits, or stop */
    bool stop, told;      /* told: what the sandbox lacks */
    struct {
        struct job *first, **last;
    } waiting[PRIORITIES];
    struct ocr_decode_stats stats;
};

/* ---- jobs --------------------------------------------------------------- */

static void enqueue_locked(struct ocr_decode_pool *pool, struct job *job)
{
    const enum ocr_priority priority = job->task.priority;

    *pool->waiting[priority].last = job;
    pool->waiting[priority].last = &job->next;
    pool->stats.waiting++;
}

/* Takes job *at, which is in the list of `priority`, out of it. */
static struct job *unlink_locked(struct ocr_decode_pool *pool, int priority,
                                 struct job **at)
{
    struct job *job = *at;

    *at = job->next;
    if (pool->waiting[priority].last == &job->next)
        pool->waiting[priority].last = at;
    pool->stats.waiting--;
    return job;
}

static struct job *dequeue_locked(struct ocr_decode_pool *pool)
{
    for (int i = PRIORITIES - 1; i >= 0; i--)
        if (pool->waiting[i].first)
            return unlink_locked(pool, i, &pool->waiting[i].first);
    return NULL;
}

static struct job *find_waiting_locked(struct ocr_decode_pool *pool,
                                       uint64_t id)
{
    for (int i = 0; i < PRIORITIES; i++)
        for (struct job **at = &pool->waiting[i].first; *at; at = &(*at)->next)
            if ((*at)->task.id == id)
                return unlink_locked(pool, i, at);
    return NULL;
}

static void fail(struct ocr_decoded *result, enum ocr_kind kind,
                 const char *sentence)
{
    result->kind = kind;
    snprintf(result->sentence, sizeof result->sentence, "%.*s",
             (int)sizeof result->sentence - 1, sentence);
}

/* Ends a job that never was in work. */
static void drop(struct ocr_decode_pool *pool, struct job *job)
{
    struct ocr_decoded result = {.id = job->task.id};

    fail(&result, OCR_KIND_CANCELLED, "nobody waited any more");
    free(job);
    pool->config.done(pool->config.arg, &result);
}

/* ---- one image ---------------------------------------------------------- */

static void count(struct ocr_decode_pool *pool, uint64_t *counter)
{
    pthread_mutex_lock(&pool->lock);
    (*counter)++;
    pthread_mutex_unlock(&pool->lock);
}

/* Bytes of the pixels of the largest image that is within the limits. */
static uint64_t room_for(const struct ocr_decode_task *task)
{
    struct rlimit files = {RLIM_INFINITY, RLIM_INFINITY};
    const uint64_t most = task->limits.pixels < INT64_MAX / CHANNELS_MAX
                              ? task->limits.pixels * CHANNELS_MAX
                              : INT64_MAX;

    getrlimit(RLIMIT_FSIZE, &files);
    return most < files.rlim_cur ? most : files.rlim_cur;
}

/* Memory for the pixels, which takes none until it is written to and which
 * nobody can make larger. */
static int make_room(const struct ocr_decode_task *task)
{
    int fd = ocr_memfd("ocrfs-pixels", NULL);

    if (fd >= 0 && (ftruncate(fd, (off_t)room_for(task)) ||
                    fcntl(fd, F_ADD_SEALS, F_SEAL_GROW)))
        fd = ocr_close(fd);
    return fd;
}

/* What an honest helper says for this task. */
static bool is_sound(const struct ocr_decode_response *response,
                     const struct ocr_decode_task *task)
{
    const struct ocr_image *image = &response->image;

    if (response->id != task->id || response->kind > OCR_KIND_LAST ||
        response->pages > task->limits.pages)
        return false;
    if (response->kind)
        return true;
    if (image->text)
        return task->limits.text && image->text <= OCR_LAYER_MAX;
    return image->width > 0 && image->height > 0 &&
           (image->channels == 1 || image->channels == CHANNELS_MAX) &&
           (uint64_t)image->width * image->height <= task->limits.pixels &&
           ocr_image_bytes(image) <= room_for(task);
}

/* Exactly the pixels, and never other ones. False if the helper made them
 * smaller or still has them mapped. */
static bool seal(const struct ocr_image *image, int fd)
{
    struct stat st;

    return ocr_memfd_seal(fd, NULL) == 0 && fstat(fd, &st) == 0 &&
           (uint64_t)st.st_size == ocr_image_bytes(image);
}

static void take_pixels(struct ocr_decoded *result,
                        const struct ocr_image *image, int fd)
{
    /* Private: kernels before 6.7 refuse to share what is write-sealed. */
    void *map =
        mmap(NULL, ocr_image_bytes(image), PROT_READ, MAP_PRIVATE, fd, 0);

    if (map == MAP_FAILED) {
        fail(result, OCR_KIND_FAILED, "the engine is out of memory");
        return;
    }
    result->image = *image;
    result->image.pixels = map;
}

/* Of the pixels and of their shape. A digest of a file it is never. */
static void take_digest(struct ocr_decoded *result, const uint8_t *secret)
{
#if HAVE_XXHASH
    const struct ocr_image *image = &result->image;
    struct {
        struct ocr_digest pixels;
        uint32_t width, height, channels;
        char what[4];
    } page = {.width = image->width,
              .height = image->height,
              .channels = image->channels,
              .what = {'p', 'a', 'g', 'e'}};
    struct ocr_digest digest;

    if (!secret || !image->pixels || image->text)
        return;
    ocr_digest_of(&page.pixels, image->pixels, ocr_image_bytes(image), secret);
    ocr_digest_of(&digest, &page, sizeof page, secret);
    memcpy(result->digest, digest.bytes, sizeof result->digest);
    result->has_digest = true;
#else
    (void)result;
    (void)secret;
#endif
}

/* Why a helper is dead that was neither killed from outside nor gave up. */
static void blame(const struct worker *w, struct ocr_decoded *result, int signo,
                  int status)
{
    result->kind = signo == SIGXCPU ? OCR_KIND_TOO_LARGE : OCR_KIND_CORRUPT;
    if (signo == SIGXCPU)
        snprintf(result->sentence, sizeof result->sentence,
                 "decoding takes more than %u s of processor time",
                 w->pool->config.cpu_s);
    else if (signo == SIGSYS)
        snprintf(result->sentence, sizeof result->sentence,
                 "the decoder was stopped on this image: it asked the system "
                 "for what no image needs");
    else if (signo)
        snprintf(result->sentence, sizeof result->sentence,
                 "the decoder crashed on this image (signal %d)", signo);
    else
        snprintf(result->sentence, sizeof result->sentence,
                 "the decoder crashed on this image (status %d)",
                 WEXITSTATUS(status));
}

/* True if it was killed from outside. */
static bool bury(struct worker *w, struct ocr_decoded *result)
{
    struct ocr_decode_pool *pool = w->pool;
    const int status = ocr_child_stop(w->child);
    const int signo = WIFSIGNALED(status) ? WTERMSIG(status) : 0;

    if (signo == SIGKILL || signo == SIGTERM || signo == SIGINT ||
        signo == SIGHUP || signo == SIGQUIT) {
        count(pool, &pool->stats.killed);
        fail(result, OCR_KIND_FAILED,
             "the decode helper was killed from outside");
        return true;
    }
    if (!signo && WEXITSTATUS(status) == EXIT_FAILURE) {
        /* It says so if it cannot talk to us: no fault of the image. */
        count(pool, &pool->stats.crashed);
        fail(result, OCR_KIND_FAILED, "the decode helper could not answer");
        return false;
    }
    blame(w, result, signo, status);
    count(pool, signo == SIGXCPU ? &pool->stats.overrun : &pool->stats.crashed);
    return false;
}

/* True if the helper was killed from outside. */
static bool receive(struct worker *w, const struct ocr_decode_task *task,
                    struct ocr_decoded *result)
{
    struct ocr_decode_response response;
    int fds[OCR_PACKET_FDS];
    const int rc =
        ocr_packet_receive(w->child->sock, &response, sizeof response, fds);

    if (rc == 0)
        return bury(w, result);
    ocr_packet_close(fds); /* an honest one sends none */
    result->pages = rc > 0 && is_sound(&response, task) ? response.pages : 0;
    if (rc < 0 && rc != -EPROTO) {
        ocr_child_stop(w->child);
        fail(result, OCR_KIND_FAILED, "the engine cannot hear its helper");
        return false;
    }
    if (rc > 0 && is_sound(&response, task) && !response.kind &&
        ftruncate(w->pixels, (off_t)ocr_image_bytes(&response.image))) {
        fail(result, OCR_KIND_FAILED, "the engine is out of memory");
        return false;
    }
    if (rc < 0 || !is_sound(&response, task) ||
        (!response.kind && !seal(&response.image, w->pixels))) {
        ocr_child_stop(w->child);
        count(w->pool, &w->pool->stats.crashed);
        fail(result, OCR_KIND_CORRUPT, "the decoder went wrong on this image");
    } else if (response.kind) {
        response.sentence[sizeof response.sentence - 1] = '\0';
        fail(result, response.kind, response.sentence);
    } else {
        take_pixels(result, &response.image, w->pixels);
        if (response.pages > 1)
            take_digest(result, task->secret);
    }
    return false;
}

/* True if the helper was killed from outside. */
static bool await(struct worker *w, const struct ocr_decode_task *task,
                  struct ocr_decoded *result)
{
    const unsigned wall_s = w->pool->config.wall_s;

    switch (ocr_child_wait(w->child, w->wake, (int)wall_s * 1000)) {
    case OCR_CHILD_ANSWER:
        return receive(w, task, result);
    case OCR_CHILD_WAKE:
        ocr_child_stop(w->child);
        fail(result, OCR_KIND_CANCELLED, "nobody waited any more");
        return false;
    case OCR_CHILD_SILENT:
        break;
    }
    ocr_child_stop(w->child);
    count(w->pool, &w->pool->stats.overrun);
    result->kind = OCR_KIND_FAILED;
    snprintf(result->sentence, sizeof result->sentence,
             "the decoder did not answer for %u s", wall_s);
    return false;
}

static int send_request(struct worker *w, const struct ocr_decode_task *task)
{
    const struct ocr_decode_config *config = &w->pool->config;
    struct ocr_decode_request request = {.id = task->id,
                                         .document = task->document,
                                         .size = task->size,
                                         .room = room_for(task),
                                         .page = task->page,
                                         .checked = task->check != NULL,
                                         .limits = task->limits};
    const int fds[OCR_PACKET_FDS] = {task->fd, w->pixels};

    if (task->check)
        request.check = *task->check;
    request.limited = ocr_child_limit(w->child, config->memory, config->cpu_s);
    w->child->images++;
    return ocr_packet_send(w->child->sock, &request, sizeof request, fds,
                           OCR_PACKET_FDS);
}

/* Said once: the rest of the protection still holds. */
static void tell_what_lacks(struct ocr_decode_pool *pool, unsigned sandbox)
{
    bool first;

    pthread_mutex_lock(&pool->lock);
    first = !pool->told;
    pool->told = true;
    pool->stats.sandbox = sandbox;
    pthread_mutex_unlock(&pool->lock);
    if (first && !OCR_SANITIZED && !(sandbox & OCR_SANDBOX_SECCOMP))
        ocr_warning("images are decoded without a filter of system calls: %s",
                    HAVE_SECCOMP ? "this kernel has no seccomp"
                                 : "built without libseccomp");
}

static void start(struct worker *w, const struct ocr_decode_task *task,
                  struct ocr_decoded *result)
{
    struct ocr_err err = OCR_ERR_INIT;
    const int rc = ocr_child_start(w->child, w->pool->program, task->helper,
                                   w->wake, &err);

    if (rc == -ECANCELED)
        fail(result, OCR_KIND_CANCELLED, "nobody waited any more");
    else if (rc)
        fail(result, OCR_KIND_FAILED, err.text);
    else
        tell_what_lacks(w->pool, w->child->sandbox);
}

/* A sealed file cannot become shorter than it is now; of another one the
 * helper makes a copy. */
static bool is_there(const struct ocr_decode_task *task)
{
    struct stat st;

    return fstat(task->fd, &st) == 0 && (uint64_t)st.st_size >= task->size;
}

/* True if the helper was killed from outside: also while it had nothing to
 * do, which shows only now. */
static bool try_once(struct worker *w, const struct ocr_decode_task *task,
                     struct ocr_decoded *result)
{
    if (!w->child->pid)
        start(w, task, result);
    if (!w->child->pid)
        return false;
    if (send_request(w, task) == 0)
        return await(w, task, result);
    ocr_child_stop(w->child);
    count(w->pool, &w->pool->stats.killed);
    fail(result, OCR_KIND_FAILED, "the decode helper was killed from outside");
    return true;
}

static void recycle(struct worker *w)
{
    if (!w->child->pid || w->child->images < w->pool->config.images)
        return;
    ocr_child_stop(w->child);
    count(w->pool, &w->pool->stats.recycled);
}

static void decode(struct worker *w, const struct ocr_decode_task *task,
                   struct ocr_decoded *result)
{
    bool again = true;

    w->child = &w->children[task->helper];
    *result = (struct ocr_decoded){.id = task->id};
    if (!is_there(task)) {
        fail(result, OCR_KIND_CHANGING,
             "the image became shorter while it was read");
        return;
    }
    for (int i = 0; again && i < TRIES; i++) {
        *result = (struct ocr_decoded){.id = task->id};
        w->pixels = make_room(task);
        if (w->pixels < 0) {
            fail(result, OCR_KIND_FAILED, "the engine is out of memory");
            return;
        }
        again = try_once(w, task, result);
        w->pixels = ocr_close(w->pixels);
    }
    recycle(w);
}

/* ---- threads ------------------------------------------------------------ */

static struct job *take(struct worker *w)
{
    struct ocr_decode_pool *pool = w->pool;
    struct job *job = NULL;

    pthread_mutex_lock(&pool->lock);
    while (!pool->stop && !(job = dequeue_locked(pool)))
        pthread_cond_wait(&pool->work, &pool->lock);
    if (job) {
        w->job = job;
        w->cancelled = false;
        pool->stats.running++;
    }
    pthread_mutex_unlock(&pool->lock);
    return job;
}

static void finish(struct worker *w, struct ocr_decoded *result)
{
    struct ocr_decode_pool *pool = w->pool;
    uint64_t woken;

    pthread_mutex_lock(&pool->lock);
    free(w->job);
    w->job = NULL;
    pool->stats.running--;
    if (!result->kind)
        pool->stats.decoded++;
    else if (result->kind != OCR_KIND_CANCELLED)
        pool->stats.failed++;
    /* Whoever cancelled this job did it under the lock: drain it now, or the
     * next one would be taken for cancelled. */
    if (!pool->stop && w->cancelled)
        (void)!read(w->wake, &woken, sizeof woken);
    pthread_mutex_unlock(&pool->lock);
    pool->config.done(pool->config.arg, result);
}

static void *run(void *arg)
{
    struct worker *w = arg;
    struct ocr_decoded result;
    const struct job *job;

    while ((job = take(w))) {
        decode(w, &job->task, &result);
        finish(w, &result);
    }
    for (int i = 0; i < OCR_HELPER_KINDS; i++)
        ocr_child_stop(&w->children[i]);
    return NULL;
}

static void wake(struct worker *w)
{
    const uint64_t one = 1;

    (void)!write(w->wake, &one, sizeof one);
}

/* ---- the pool ----------------------------------------------------------- */

static unsigned default_helpers(void)
{
    cpu_set_t set;
    unsigned cores = HELPERS_DEFAULT;

    if (sched_getaffinity(0, sizeof set, &set) == 0)
        cores = (unsigned)CPU_COUNT(&set);
    return cores < HELPERS_DEFAULT ? cores : HELPERS_DEFAULT;
}

static void set_defaults(struct ocr_decode_config *config)
{
    if (!config->helpers)
        config->helpers = default_helpers();
    if (config->helpers > HELPERS_MAX)
        config->helpers = HELPERS_MAX;
    if (!config->cpu_s)
        config->cpu_s = CPU_S;
    if (!config->wall_s)
        config->wall_s = WALL_S;
    if (!config->images)
        config->images = IMAGES;
    if (!config->memory)
        config->memory = MEMORY;
}

/* Signals for the process are for its other threads, which wait for them. */
static void block_signals(sigset_t *before)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    sigset_t set;

    sigfillset(&set);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&set, own[i]);
    pthread_sigmask(SIG_SETMASK, &set, before);
}

static int worker_open(struct worker *w, struct ocr_decode_pool *pool,
                       struct ocr_err *err)
{
    sigset_t before;
    int rc;

    *w = (struct worker){.pool = pool, .child = w->children};
    for (int i = 0; i < OCR_HELPER_KINDS; i++)
        w->children[i] = (struct ocr_child)OCR_CHILD_INIT;
    w->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->wake < 0)
        return ocr_err_errno(err, "cannot make a decode thread");
    block_signals(&before);
    rc = pthread_create(&w->thread, NULL, run, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) {
        close(w->wake);
        return ocr_err_set(err, -rc, "cannot make a decode thread: %s",
                           strerror(rc));
    }
    return 0;
}

static int start_workers(struct ocr_decode_pool *pool, struct ocr_err *err)
{
    int rc = 0;

    pool->workers = calloc(pool->config.helpers, sizeof *pool->workers);
    if (!pool->program || !pool->workers) {
        ocr_err_set(err, -ENOMEM, "no memory for the decode pool");
        return -ENOMEM;
    }
    while (rc == 0 && pool->workers_open < pool->config.helpers) {
        rc = worker_open(&pool->workers[pool->workers_open], pool, err);
        pool->workers_open += rc == 0;
    }
    return rc;
}

int ocr_decode_open(struct ocr_decode_pool **out,
                    const struct ocr_decode_config *config, struct ocr_err *err)
{
    struct ocr_decode_pool *pool = calloc(1, sizeof *pool);
    int rc;

    *out = NULL;
    if (!pool)
        return ocr_err_set(err, -ENOMEM, "no memory for the decode pool");
    pool->config = *config;
    set_defaults(&pool->config);
    pool->stats.helpers = pool->config.helpers;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    for (int i = 0; i < PRIORITIES; i++)
        pool->waiting[i].last = &pool->waiting[i].first;
    pool->program =
        strdup(config->program ? config->program : "/proc/self/exe");
    rc = start_workers(pool, err);
    if (rc)
        ocr_decode_close(pool);
    else
        *out = pool;
    return rc;
}

int ocr_decode_submit(struct ocr_decode_pool *pool,
                      const struct ocr_decode_task *task, struct ocr_err *err)
{
    struct job *job;

    if (!HAVE_XXHASH && task->check)
        return ocr_err_set(err, -ENOTSUP,
                           "images above 64 MiB need an "
                           "engine built with xxhash");
    if ((unsigned)task->priority >= PRIORITIES)
        return ocr_err_set(err, -EINVAL, "no priority %u",
                           (unsigned)task->priority);
    if ((unsigned)task->helper >= OCR_HELPER_KINDS)
        return ocr_err_set(err, -EINVAL, "no kind of helper %u",
                           (unsigned)task->helper);
    job = malloc(sizeof *job);
    if (!job)
        return ocr_err_set(err, -ENOMEM, "no memory for a decode task");
    *job = (struct job){.task = *task};
    pthread_mutex_lock(&pool->lock);
    enqueue_locked(pool, job);
    pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    return 0;
}

void ocr_decode_cancel(struct ocr_decode_pool *pool, uint64_t id)
{
    struct job *job;

    pthread_mutex_lock(&pool->lock);
    job = find_waiting_locked(pool, id);
    for (unsigned i = 0; !job && i < pool->workers_open; i++) {
        struct worker *w = &pool->workers[i];

        if (w->job && w->job->task.id == id && !w->cancelled) {
            w->cancelled = true;
            wake(w);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    if (job)
        drop(pool, job);
}

void ocr_decoded_release(struct ocr_image *image)
{
    if (image->pixels)
        munmap(image->pixels, ocr_image_bytes(image));
    image->pixels = NULL;
}

void ocr_decode_stats(struct ocr_decode_pool *pool,
                      struct ocr_decode_stats *out)
{
    pthread_mutex_lock(&pool->lock);
    *out = pool->stats;
    pthread_mutex_unlock(&pool->lock);
}

void ocr_decode_close(struct ocr_decode_pool *pool)
{
    struct job *job;

    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < pool->workers_open; i++)
        wake(&pool->workers[i]);
    for (unsigned i = 0; i < pool->workers_open; i++) {
        pthread_join(pool->workers[i].thread, NULL);
        close(pool->workers[i].wake);
    }
    while ((job = dequeue_locked(pool)))
        drop(pool, job);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool->program);
    free(pool);
}

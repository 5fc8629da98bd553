/* fs/cmd_warm.c - `ocrfs warm`: opens all texts below a mounted folder, as
 * many at once as the engine takes, after having told the mount that nobody
 * waits for them (fs/warm.h). An open blocks, so there is a thread for each;
 * the first one draws, takes signals, and starts more as the engine has room.
 */
#include "engine/base/io.h"
#include "engine/base/log.h"
#include "fs/commands.h"
#include "fs/mounts.h"
#include "fs/options.h"
#include "fs/progress.h"
#include "fs/warm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    THREADS_FIRST = 8, /* until the engine has said what it takes */
    THREADS_MAX = 1024,
    STACK_BYTES = 256 << 10,
    LOOK_MS = 100,
    ASK_MS = 500,     /* how much the engine takes */
    SAY_MS = 10000,   /* where there is no terminal */
    SETTLE_MS = 30000 /* for the engine to say its version */
};

struct paths {
    char **list; /* malloc'd */
    size_t count, room;
};

struct failure {
    struct failure *next;
    const char *path; /* borrowed */
    int error;
};

struct warm {
    char point[PATH_MAX], control[PATH_MAX]; /* of the mount */
    bool refresh;
    bool paused; /* as the mount said last; the first thread's */
    struct paths texts;
    atomic_size_t next, done;
    atomic_bool stop; /* the mount is gone */
    pthread_t threads[THREADS_MAX];
    unsigned started;
    pthread_mutex_t lock;
    struct failure *failures; /* guarded by lock */
    size_t failed;            /* the same */
};

/* ---- which texts ----------------------------------------------------- */

static bool add_path(struct paths *p, const char *folder, const char *name)
{
    if (p->count == p->room) {
        const size_t room = p->room ? 2 * p->room : 256;
        char **more = realloc(p->list, room * sizeof *more);

        if (!more)
            return false;
        p->list = more;
        p->room = room;
    }
    if (asprintf(&p->list[p->count], "%s%s%s", folder, *name ? "/" : "", name) <
        0)
        return false;
    p->count++;
    return true;
}

static void free_paths(struct paths *p)
{
    for (size_t i = 0; i < p->count; i++)
        free(p->list[i]);
    free(p->list);
}

/* Adds the texts of one folder, and its folders to `folders`. */
static bool list_folder(const char *folder, dev_t dev, struct paths *texts,
                        struct paths *folders)
{
    DIR *stream = opendir(folder);
    const struct dirent *e;
    struct stat st;
    bool ok = true;

    if (!stream) {
        ocr_warning("%s: %s", folder, strerror(errno));
        return true;
    }
    /* What is mounted in there is not this mount's. */
    if (fstat(dirfd(stream), &st) || st.st_dev != dev) {
        closedir(stream);
        return true;
    }
    while (ok && (e = readdir(stream))) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        if (e->d_type == DT_DIR)
            ok = add_path(folders, folder, e->d_name);
        else if (e->d_type == DT_REG && ocr_is_text(e->d_ino))
            ok = add_path(texts, folder, e->d_name);
    }
    closedir(stream);
    return ok;
}

static int list_texts(const char *top, struct paths *texts, struct ocr_err *err)
{
    struct paths folders = {0};
    struct stat st;
    bool ok = true;

    if (stat(top, &st))
        return ocr_err_errno(err, "%s", top);
    if (!S_ISDIR(st.st_mode))
        return ocr_err_set(err, -ENOTDIR,
                           "%s is no folder: name the folder it lies in, or "
                           "open it (cat) to make one text",
                           top);
    ok = add_path(&folders, top, "");
    for (size_t i = 0; ok && i < folders.count; i++)
        ok = list_folder(folders.list[i], st.st_dev, texts, &folders);
    free_paths(&folders);
    return ok ? 0 : ocr_err_set(err, -ENOMEM, "out of memory");
}

/* ---- making them ----------------------------------------------------- */

static const char *reason_of(int error)
{
    switch (error) {
    case EBADMSG:
        return "empty, damaged, or no image";
    case EOPNOTSUPP:
        return "a kind of image that is not supported";
    case EFBIG:
        return "larger than the limits";
    case EACCES:
        return "the image may not be read";
    case EBUSY:
        return "it kept changing";
    case ETIMEDOUT:
        return "took longer than ocr_timeout";
    case EIO:
        return "the recogniser failed or is missing (see ocrfs status)";
    default:
        return strerror(error);
    }
}

static void note_failure(struct warm *w, const char *path, int error)
{
    struct failure *f = malloc(sizeof *f);

    pthread_mutex_lock(&w->lock);
    w->failed++;
    if (f) {
        *f =
            (struct failure){.next = w->failures, .path = path, .error = error};
        w->failures = f;
    }
    pthread_mutex_unlock(&w->lock);
}

/* 0, or the errno. What vanished meanwhile is no failure; while the mount is
 * paused (EINTR: this thread gets no signals) it is waited for here, where the
 * machine can go to sleep. */
static int make_text(const struct warm *w, const char *path)
{
    enum {
        TRIES = 3 /* ESTALE: the image was replaced while it was opened */
    };
    int fd = -1;

    for (int i = 0; fd < 0 && i < TRIES;) {
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 && errno == EINTR && !atomic_load(&w->stop))
            sleep(1);
        else if (fd < 0 && errno != ESTALE)
            return errno == ENOENT ? 0 : errno;
        else
            i++;
    }
    if (fd < 0)
        return errno;
    close(fd);
    return 0;
}

/* The control folder, told that this thread warms; or a negative errno. */
static int tell_mount(const struct warm *w)
{
    const uint32_t how = w->refresh ? OCR_WARM_REFRESH : 0;
    const int64_t until = ocr_now_ms() + SETTLE_MS;
    const int fd = open(w->control, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc;

    if (fd < 0)
        return -errno;
    while (ioctl(fd, OCR_WARM_IOCTL, &how)) {
        if (errno == EAGAIN && ocr_now_ms() < until)
            continue;
        rc = -errno;
        close(fd);
        return rc;
    }
    return fd;
}

static bool is_gone(int error)
{
    return error == ENODEV || error == ENOTCONN || error == ECONNABORTED;
}

static void *work(void *arg)
{
    struct warm *w = arg;
    const int control = tell_mount(w);
    size_t i;

    if (control < 0)
        atomic_store(&w->stop, true);
    while (!atomic_load(&w->stop) &&
           (i = atomic_fetch_add(&w->next, 1)) < w->texts.count) {
        const int error = make_text(w, w->texts.list[i]);

        if (is_gone(error))
            atomic_store(&w->stop, true);
        else if (error)
            note_failure(w, w->texts.list[i], error);
        if (!is_gone(error))
            atomic_fetch_add(&w->done, 1);
    }
    ocr_close(control);
    return NULL;
}

/* How many threads there should be; *paused: if the mount is. */
static unsigned threads_wanted(const struct warm *w, bool *paused)
{
    char path[PATH_MAX + 16];
    json_int_t capacity = 0;
    int is_paused = 0;
    json_t *status;

    snprintf(path, sizeof path, "%s/status.json", w->control);
    status = json_load_file(path, 0, NULL);
    if (status)
        json_unpack(status, "{s:{s:I}, s?b}", "engine", "capacity", &capacity,
                    "paused", &is_paused);
    json_decref(status);
    *paused = is_paused != 0;
    if (capacity <= 0)
        return THREADS_FIRST;
    /* A few more, so that the next are hashed by then. */
    capacity += capacity / 8 + 1;
    return capacity < THREADS_MAX ? (unsigned)capacity : THREADS_MAX;
}

static void start_threads(struct warm *w, unsigned count)
{
    pthread_attr_t attr;

    if (count > w->texts.count)
        count = (unsigned)w->texts.count;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    while (w->started < count &&
           !pthread_create(&w->threads[w->started], &attr, work, w))
        w->started++;
    pthread_attr_destroy(&attr);
}

/* ---- saying how far it is -------------------------------------------- */

/* A line for a log, every SAY_MS. */
static void say(const struct ocr_progress *p, size_t done, int64_t *said_ms)
{
    const int64_t now = ocr_now_ms();
    char text[96];

    if (p->on || now - *said_ms < SAY_MS)
        return;
    *said_ms = now;
    ocr_progress_text(p, done, text, sizeof text);
    ocr_info("%s", text);
}

/* Once for each pause, which else looks like a hang. */
static void say_pause(struct warm *w, struct ocr_progress *p, bool paused)
{
    if (paused && !w->paused) {
        ocr_progress_clear(p);
        ocr_info("%s is paused: waiting for ocrfs resume", w->point);
    }
    w->paused = paused;
}

/* Until all is done, the mount is gone, or a signal came: its number. */
static int watch(struct warm *w, const sigset_t *signals)
{
    const struct timespec look = {.tv_nsec = LOOK_MS * 1000000L};
    struct ocr_progress progress;
    int64_t asked_ms = 0, said_ms;
    bool paused = false;
    int number = 0;

    ocr_progress_init(&progress, w->texts.count);
    said_ms = progress.begun_ms;
    while (number <= 0 && !atomic_load(&w->stop) &&
           atomic_load(&w->done) < w->texts.count) {
        if (ocr_now_ms() - asked_ms >= ASK_MS) {
            asked_ms = ocr_now_ms();
            start_threads(w, threads_wanted(w, &paused));
            say_pause(w, &progress, paused);
            if (!w->started)
                break;
        }
        ocr_progress_bar(&progress, atomic_load(&w->done));
        say(&progress, atomic_load(&w->done), &said_ms);
        number = sigtimedwait(signals, NULL, &look);
    }
    ocr_progress_clear(&progress);
    return number > 0 ? number : 0;
}

static void say_failures(const struct warm *w)
{
    for (const struct failure *f = w->failures; f; f = f->next)
        ocr_error("%s: %s", f->path, reason_of(f->error));
    if (w->failed)
        ocr_error("%zu of %zu texts failed", w->failed, w->texts.count);
}

/* The threads that still wait go with the process; what they wait for and was
 * begun is finished and kept. */
static int end_by(int number, struct warm *w)
{
    pthread_mutex_lock(&w->lock);
    say_failures(w);
    ocr_info("stopped: %zu of %zu texts are made, and kept",
             atomic_load(&w->done) - w->failed, w->texts.count);
    signal(number, SIG_DFL);
    raise(number);
    return 1;
}

static int make_all(struct warm *w)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    sigset_t signals;
    int number;

    sigemptyset(&signals);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaddset(&signals, numbers[i]);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    number = watch(w, &signals);
    if (number) {
        end_by(number, w);
        pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
        _exit(1); /* it was ignored, or so */
    }
    if (atomic_load(&w->done) < w->texts.count) {
        ocr_error("the mount at %s has ended or does not take this: %zu of %zu "
                  "texts are made, and kept",
                  w->point, atomic_load(&w->done) - w->failed, w->texts.count);
        _exit(1); /* threads may hang in it */
    }
    while (w->started)
        pthread_join(w->threads[--w->started], NULL);
    say_failures(w);
    if (!w->failed)
        ocr_info("%zu texts", w->texts.count);
    return w->failed ? 1 : 0;
}

/* ---- the command ----------------------------------------------------- */

/* Finds the mount of ocrfs that `folder`, resolved, lies in. */
static int find_mount(struct warm *w, const char *folder, const char *control,
                      struct ocr_err *err)
{
    const struct ocr_mount *best;
    struct ocr_mounts mounts;
    int rc = ocr_mounts_read(&mounts, err);

    if (rc)
        return rc;
    best = ocr_mounts_over(&mounts, folder);
    if (!best || !ocr_mount_is_ours(best)) {
        rc = ocr_err_set(err, -ENOENT,
                         "%s is in no mount of ocrfs (try: ocrfs warm "
                         "MOUNTPOINT, ocrfs status)",
                         folder);
    } else {
        snprintf(w->point, sizeof w->point, "%s", best->point);
        if (snprintf(w->control, sizeof w->control, "%s/%s", best->point,
                     control) >= (int)sizeof w->control)
            rc = ocr_err_set(err, -ENAMETOOLONG, "%s", folder);
    }
    ocr_mounts_release(&mounts);
    return rc;
}

static int warm(const char *folder, bool refresh, const char *control)
{
    struct warm *w = calloc(1, sizeof *w);
    char *resolved = realpath(folder, NULL);
    struct ocr_err err = OCR_ERR_INIT;
    int status = 2;

    if (!w || !resolved) {
        ocr_error("%s: %s", folder, strerror(errno));
        free(resolved);
        free(w);
        return 2;
    }
    pthread_mutex_init(&w->lock, NULL);
    w->refresh = refresh;
    if (find_mount(w, resolved, control, &err) ||
        list_texts(resolved, &w->texts, &err))
        ocr_error("%s", err.text);
    else
        status = make_all(w);
    for (struct failure *f = w->failures, *next; f; f = next) {
        next = f->next;
        free(f);
    }
    free_paths(&w->texts);
    pthread_mutex_destroy(&w->lock);
    free(resolved);
    free(w);
    return status;
}

int cmd_warm(int argc, char **argv)
{
    const bool refresh = cmd_take("--refresh", &argc, argv);
    struct ocr_options options;
    int status = 2;

    if (cmd_options(&options, OCR_FOR_STATUS, &argc, argv))
        return 2;
    if (argc > 2)
        ocr_error("one folder at a time (try ocrfs warm --help)");
    else if (!*options.control)
        ocr_error("without a control folder the mount cannot be told");
    else
        status = warm(argc == 2 ? argv[1] : ".", refresh, options.control);
    ocr_options_release(&options);
    return status;
}

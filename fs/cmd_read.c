/* fs/cmd_read.c - `ocrfs read FILE...`: texts to standard output, through the
 * same cache and queue as a mount. Several files are in the queue at a time;
 * their texts come out in the order given. */
#include "cache/cache.h"
#include "engine/base/io.h"
#include "engine/base/log.h"
#include "engine/content.h"
#include "engine/queue.h"
#include "fs/commands.h"
#include "fs/dump.h"
#include "fs/fileid.h"
#include "fs/options.h"
#include "fs/progress.h"
#include "fs/remarks.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    IN_FLIGHT = 64,
    DUMPS_IN_FLIGHT = 8, /* they are megabytes each */
    HELLO_MS = 5000,
    READY_MS = 60 * 1000,
    TICK_MS = 200,
};

/* One file on its way. */
struct item {
    struct reader *reader;
    const char *path;
    struct ocr_waiter waiter;
    struct ocr_cache_key key;
    int copy; /* of a pipe's bytes, -1 for files that can be opened again */
    int64_t begun_ms;
    bool waiting; /* was given to the queue */

    /* Guarded by reader.lock while waiting. */
    bool done;
    struct ocr_err err; /* why there is no text */
    char *text;         /* malloc'd */
    size_t len;
    unsigned flags, pages;
};

struct reader {
    struct ocr_options options;
    struct ocr_buf settings;
    const char *recogniser; /* without arguments; of the options */
    struct ocr_cache *cache;
    struct ocr_queue *queue;
    struct ocr_err no_engine; /* why none could be started */
    bool connected;
    bool headed; /* a line with the name of a file was printed */
    int dump;    /* the folder that gets the pages as they are read, or -1 */
    struct ocr_progress progress;
    struct ocr_remarks remarks;
    size_t printed, pages, failed;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC */
    /* Guarded by lock. */
    char fingerprint[256];                 /* "" until the engine is ready */
    struct ocr_job_key dropped[IN_FLIGHT]; /* the queue wants them again */
    size_t drops;

    char **paths; /* of items */
    struct item *items;
    size_t count, begun;
};

/* ---- what the queue tells, in its thread -------------------------------- */

static void on_ready(void *arg, const char *fingerprint, const char *device,
                     const char *version)
{
    struct reader *r = arg;

    (void)device;
    (void)version;
    pthread_mutex_lock(&r->lock);
    snprintf(r->fingerprint, sizeof r->fingerprint, "%s", fingerprint);
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

/* The main thread loads the bytes again while it waits. */
static void on_reload(void *arg, const struct ocr_job_key *key,
                      const char *label)
{
    struct reader *r = arg;

    (void)label;
    pthread_mutex_lock(&r->lock);
    /* Jobs that nobody waits for any more may go without. */
    if (r->drops < IN_FLIGHT)
        r->dropped[r->drops++] = *key;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static void on_done(struct ocr_waiter *waiter, const struct ocr_result *result)
{
    struct item *item =
        (struct item *)((char *)waiter - offsetof(struct item, waiter));
    struct reader *r = item->reader;

    pthread_mutex_lock(&r->lock);
    if (result->kind == OCR_KIND_NONE) {
        item->text = malloc(result->len + 1);
        if (item->text)
            memcpy(item->text, result->text, result->len);
        else
            ocr_err_set(&item->err, -ENOMEM, "out of memory");
        item->len = result->len;
    } else {
        ocr_err_kind(&item->err, result->kind, "%s", result->sentence);
    }
    item->flags = result->flags;
    item->pages = result->pages;
    item->done = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

/* ---- a file: open, known?, join ----------------------------------------- */

/* A pipe's bytes in a file of their own. */
static int swallow(int from, struct ocr_err *err)
{
    char part[64 << 10];
    off_t size = 0;
    ssize_t n;
    int rc = 0;
    const int fd = ocr_memfd("ocrfs-input", err);

    if (fd < 0)
        return fd;
    while (rc == 0 && (n = read(from, part, sizeof part)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            rc = ocr_err_errno(err, "cannot read it");
        else if ((uint64_t)(size += n) > OCR_CONTENT_MAX)
            rc = ocr_err_kind(err, OCR_KIND_TOO_LARGE, "more than 1 GiB");
        else if (ocr_pwrite_full(fd, part, (size_t)n, size - n))
            rc = ocr_err_set(err, -ENOMEM, "out of memory");
    }
    if (rc == 0)
        return fd;
    ocr_close(fd);
    return rc;
}

/* An open regular file with the bytes of `path` (-: standard input), or a copy
 * of them. */
static int open_image(const char *path, bool *is_copy, struct ocr_err *err)
{
    struct stat st;
    int fd, copy;

    if (!strcmp(path, "-"))
        fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    else
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st)) {
        const enum ocr_kind kind = errno == EACCES   ? OCR_KIND_DENIED
                                   : errno == ENOENT ? OCR_KIND_VANISHED
                                                     : OCR_KIND_NONE;

        ocr_close(fd);
        return kind ? ocr_err_kind(err, kind, "%s", strerror(errno))
                    : ocr_err_errno(err, "cannot open it");
    }
    *is_copy = !S_ISREG(st.st_mode);
    if (!*is_copy)
        return fd;
    copy = -EISDIR;
    if (S_ISDIR(st.st_mode))
        ocr_err_set(err, copy, "it is a folder; ocrfs read takes files");
    else
        copy = swallow(fd, err);
    ocr_close(fd);
    return copy;
}

static struct ocr_maker maker_of(struct reader *r, char fingerprint[256])
{
    pthread_mutex_lock(&r->lock);
    memcpy(fingerprint, r->fingerprint, sizeof r->fingerprint);
    pthread_mutex_unlock(&r->lock);
    return (struct ocr_maker){
        .recogniser = r->recogniser,
        .settings = r->settings.data,
        .fingerprint = fingerprint,
        .redo_stale = r->options.stale_redo,
    };
}

/* True if the cache has the text, or a verdict, of item->key. */
static bool is_known(struct reader *r, struct item *item)
{
    char fingerprint[256];
    const struct ocr_maker maker = maker_of(r, fingerprint);
    struct ocr_cached found;

    if (ocr_cache_get(r->cache, &item->key, &maker, &found))
        return false;
    if (found.verdict)
        ocr_err_kind(&item->err, found.verdict, "%s", found.sentence);
    item->text = found.text;
    item->len = (size_t)found.size;
    item->pages = 1;
    item->done = true;
    return true;
}

/* By the index alone, without reading the image. */
static bool is_known_file(struct reader *r, struct item *item, int fd)
{
    struct ocr_file_id id;
    struct stat st;

    if (r->options.verify || fstat(fd, &st))
        return false;
    ocr_file_id_fill(&id, &st, fd);
    return ocr_cache_identify(r->cache, &id, item->key.digest) ==
               OCR_IDENTITY_EXACT &&
           is_known(r, item);
}

static int load(struct reader *r, struct item *item, int fd,
                struct ocr_content *content, struct ocr_err *err)
{
    struct ocr_file_id id;
    const int rc = ocr_content_load(content, fd, ocr_cache_secret(r->cache),
                                    true, NULL, err);

    if (rc)
        return rc;
    memcpy(item->key.digest, content->digest.bytes, OCR_DIGEST_BYTES);
    if (content->stat.st_nlink == 0)
        return 0; /* a copy of a pipe's: never seen again */
    ocr_file_id_fill(&id, &content->stat, fd);
    ocr_cache_remember(r->cache, &id, item->key.digest, content->read_ns, NULL);
    return 0;
}

/* The first file that is not known starts the engine. */
static int need_engine(struct reader *r, struct ocr_err *err)
{
    if (!r->connected && !r->no_engine.code)
        r->connected =
            ocr_queue_connect(r->queue, HELLO_MS, &r->no_engine) == 0;
    if (r->connected)
        return 0;
    return ocr_err_kind(err, OCR_KIND_GONE, "%s", r->no_engine.text);
}

static int join(struct reader *r, struct item *item,
                struct ocr_content *content, struct ocr_err *err)
{
    struct ocr_job_key key = {content->digest, OCR_CACHE_ANY_OWNER};
    int rc = need_engine(r, err);

    if (rc)
        return rc;
    item->waiter.done = on_done;
    item->waiting = true;
    rc = ocr_queue_join(r->queue, &key, content, ocr_cache_secret(r->cache),
                        OCR_PRIORITY_INTERACTIVE, item->path, &item->waiter,
                        err);
    if (rc)
        item->waiting = false;
    return rc;
}

static int ask(struct reader *r, struct item *item, int fd, struct ocr_err *err)
{
    struct ocr_content content = {.fd = -1};
    int rc;

    if (is_known_file(r, item, fd))
        return 0;
    rc = load(r, item, fd, &content, err);
    if (rc)
        return rc;
    if (!is_known(r, item)) {
        rc = join(r, item, &content, err);
        if (rc == 0)
            return 0;
    }
    ocr_content_release(&content);
    return rc;
}

static void begin(struct reader *r)
{
    const char *path = r->paths[r->begun];
    struct item *item = &r->items[r->begun++];
    struct ocr_err err = OCR_ERR_INIT;
    bool is_copy = false;
    const int fd = open_image(path, &is_copy, &err);

    item->reader = r;
    item->path = path;
    item->key.owner = OCR_CACHE_ANY_OWNER;
    item->begun_ms = ocr_now_ms();
    item->copy = is_copy ? fd : -1;
    if (fd < 0 || ask(r, item, fd, &err)) {
        item->err = err;
        item->done = true;
    }
    if (!is_copy)
        ocr_close(fd);
}

/* ---- waiting ------------------------------------------------------------ */

static struct item *find_item(struct reader *r, const struct ocr_job_key *key)
{
    for (size_t i = r->printed; i < r->begun; i++)
        if (!memcmp(r->items[i].key.digest, key->digest.bytes,
                    OCR_DIGEST_BYTES))
            return &r->items[i];
    return NULL;
}

/* Gives the queue bytes that it had to drop. */
static void reload(struct reader *r, const struct ocr_job_key *key)
{
    const struct item *item = find_item(r, key);
    struct ocr_content content = {.fd = -1};
    struct ocr_err err = OCR_ERR_INIT;
    bool is_copy;
    int fd, rc = -ENOENT;

    if (!item)
        ocr_err_kind(&err, OCR_KIND_CANCELLED, "nobody waits for it");
    fd = !item             ? -1
         : item->copy >= 0 ? fcntl(item->copy, F_DUPFD_CLOEXEC, 3)
                           : open_image(item->path, &is_copy, &err);
    if (fd >= 0)
        rc = ocr_content_load(&content, fd, ocr_cache_secret(r->cache), true,
                              NULL, &err);
    ocr_queue_supply(r->queue, key, rc ? NULL : &content, &err);
    ocr_close(fd);
}

static void reload_what_was_dropped(struct reader *r)
{
    for (;;) {
        struct ocr_job_key key;
        bool asked;

        pthread_mutex_lock(&r->lock);
        asked = r->drops > 0;
        if (asked)
            key = r->dropped[--r->drops];
        pthread_mutex_unlock(&r->lock);
        if (!asked)
            return;
        reload(r, &key);
    }
}

static bool is_late(const struct reader *r, const struct item *item)
{
    const int64_t limit = (int64_t)r->options.ocr_timeout_s * 1000;

    return limit && item->waiting && ocr_now_ms() - item->begun_ms >= limit;
}

static bool is_done(struct reader *r, const struct item *item)
{
    bool done;

    pthread_mutex_lock(&r->lock);
    done = item->done;
    pthread_mutex_unlock(&r->lock);
    return done;
}

/* Sleeps until something changed, a tick at most. */
static void sleep_a_tick(struct reader *r, const struct item *item)
{
    const int64_t until = ocr_now_ms() + TICK_MS;
    const struct timespec deadline = {until / 1000, until % 1000 * 1000000};

    pthread_mutex_lock(&r->lock);
    if (!item->done && !r->drops)
        pthread_cond_timedwait(&r->changed, &r->lock, &deadline);
    pthread_mutex_unlock(&r->lock);
}

/* Counts what is done already behind the one that is waited for, too. */
static void show_progress(struct reader *r)
{
    size_t done = r->printed, pages = r->pages;
    struct ocr_queue_stats stats;

    pthread_mutex_lock(&r->lock);
    for (size_t i = r->printed; i < r->begun; i++) {
        done += r->items[i].done;
        pages += r->items[i].done ? r->items[i].pages : 0;
    }
    pthread_mutex_unlock(&r->lock);
    ocr_queue_stats(r->queue, &stats);
    ocr_progress_draw(&r->progress, done, pages,
                      stats.state != OCR_ENGINE_READY);
}

static void wait_for(struct reader *r, struct item *item)
{
    while (!is_done(r, item)) {
        show_progress(r);
        sleep_a_tick(r, item);
        reload_what_was_dropped(r);
        if (is_late(r, item) && ocr_queue_leave(r->queue, &item->waiter)) {
            ocr_err_kind(&item->err, OCR_KIND_TIMEOUT, "not read within %u s",
                         r->options.ocr_timeout_s);
            item->waiting = false;
            item->done = true;
        }
    }
}

/* ---- results ------------------------------------------------------------ */

static void store(struct reader *r, const struct item *item)
{
    char fingerprint[256];
    const struct ocr_maker maker = maker_of(r, fingerprint);
    struct ocr_err err = OCR_ERR_INIT;

    if (item->flags & OCR_TEXT_PARTIAL || r->dump >= 0)
        return;
    if (item->err.code == 0)
        ocr_cache_put(r->cache, &item->key, &maker, item->text, item->len,
                      &err);
    else if (ocr_kind_is_verdict(item->err.kind))
        ocr_cache_put_verdict(r->cache, &item->key, &maker, item->err.kind,
                              item->err.text, &err);
    if (err.code)
        ocr_warning("%s: not kept: %s", item->path, err.text);
}

static void print_error(struct reader *r, const char *name,
                        const struct ocr_err *err)
{
    struct ocr_queue_stats stats;

    ocr_queue_stats(r->queue, &stats);
    /* What the queue has said once is not said again for every file. */
    if (err->kind == OCR_KIND_GONE && !strcmp(err->text, stats.trouble))
        ocr_error("%s: not read (%s)", name, ocr_kind_words(err->kind));
    else if (err->kind)
        ocr_error("%s: %s (%s)", name, err->text, ocr_kind_words(err->kind));
    else
        ocr_error("%s: %s", name, err->text);
    r->failed++;
}

/* With several files, whose text follows: a comment of HTML, which Markdown
 * shows as nothing. A name must not end it. */
static void print_heading(struct reader *r, const char *path)
{
    char name[2 * PATH_MAX];

    if (r->count < 2)
        return;
    ocr_log_escape(name, sizeof name, path, strlen(path));
    fputs(r->headed ? "\n<!-- " : "<!-- ", stdout);
    for (const char *at = name; *at; at++) {
        if (*at == '>')
            fputs("%3E", stdout);
        else
            putchar(*at);
    }
    puts(" -->");
    r->headed = true;
}

/* The pixels of a page instead of its text. */
static void dump(struct reader *r, const char *name, const struct item *item)
{
    struct ocr_err err = OCR_ERR_INIT;

    if (item->flags & OCR_TEXT_BLANK)
        ocr_info("%s: blank, nothing is read", name);
    else if (ocr_dump_page(r->dump, item->path, item->text, item->len, &err))
        print_error(r, name, &err);
}

static void print(struct reader *r, struct item *item)
{
    const bool input = !strcmp(item->path, "-");
    const char *name = input ? "standard input" : item->path;

    ocr_progress_clear(&r->progress);
    if (item->err.code) {
        print_error(r, name, &item->err);
        return;
    }
    ocr_remarks_say(&r->remarks, name, item->flags);
    if (r->dump >= 0) {
        dump(r, name, item);
        return;
    }
    print_heading(r, item->path);
    fwrite(item->text, 1, item->len, stdout);
    fflush(stdout);
}

static void finish(struct reader *r, struct item *item)
{
    if (item->waiting)
        store(r, item);
    print(r, item);
    free(item->text);
    item->text = NULL;
    item->copy = ocr_close(item->copy);
    r->printed++;
    r->pages += item->pages;
}

/* stale=redo compares versions, so the engine's must be known first. */
static void wait_for_fingerprint(struct reader *r)
{
    const int64_t until = ocr_now_ms() + READY_MS;
    const struct timespec deadline = {until / 1000, until % 1000 * 1000000};

    if (need_engine(r, NULL))
        return;
    pthread_mutex_lock(&r->lock);
    while (!r->fingerprint[0] &&
           pthread_cond_timedwait(&r->changed, &r->lock, &deadline) == 0)
        ;
    pthread_mutex_unlock(&r->lock);
}

static void read_all(struct reader *r)
{
    const size_t in_flight = r->dump < 0 ? IN_FLIGHT : DUMPS_IN_FLIGHT;

    if (r->options.stale_redo)
        wait_for_fingerprint(r);
    while (r->printed < r->count && !ferror(stdout)) {
        struct item *head = &r->items[r->printed];

        if (r->begun < r->count && r->begun - r->printed < in_flight &&
            (r->begun == r->printed || !is_done(r, head))) {
            begin(r);
            continue;
        }
        wait_for(r, head);
        finish(r, head);
    }
}

/* ---- set-up ------------------------------------------------------------- */

static int open_cache(struct reader *r, struct ocr_err *err)
{
    struct ocr_cache_options options = {
        .dir = r->dump < 0 ? r->options.cache : "memory",
        .max_bytes = r->options.cache_size,
    };
    struct ocr_err why = OCR_ERR_INIT;

    if (ocr_cache_open(&r->cache, &options, &why) == 0)
        return 0;
    ocr_warning("%s; the texts are not kept", why.text);
    options.dir = "memory";
    return ocr_cache_open(&r->cache, &options, err);
}

/* The text of a page of a document, by its pixels; never of another version. */
static char *on_page_known(void *arg, const struct ocr_job_key *page,
                           size_t *len)
{
    struct reader *r = arg;
    char fingerprint[256];
    struct ocr_maker maker = maker_of(r, fingerprint);
    struct ocr_cache_key key = {.owner = page->owner};
    struct ocr_cached found;

    maker.redo_stale = true;
    memcpy(key.digest, page->digest.bytes, sizeof key.digest);
    if (ocr_cache_get(r->cache, &key, &maker, &found) || found.verdict)
        return NULL;
    *len = (size_t)found.size;
    return found.text;
}

/* What goes wrong is said when the text of all is to be kept. */
static void on_page_read(void *arg, const struct ocr_job_key *page,
                         const char *text, size_t len)
{
    struct reader *r = arg;
    char fingerprint[256];
    const struct ocr_maker maker = maker_of(r, fingerprint);
    struct ocr_cache_key key = {.owner = page->owner};

    memcpy(key.digest, page->digest.bytes, sizeof key.digest);
    ocr_cache_put(r->cache, &key, &maker, text, len, NULL);
}

static int open_queue(struct reader *r, struct ocr_err *err)
{
    const struct ocr_options *o = &r->options;
    char recogniser[OCR_ENGINE_WORD_MAX];
    const struct ocr_engine_config config = {
        .recogniser = recogniser,
        .device = o->device,
        .model = o->model,
        .settings = r->settings.data,
        .runtime = *o->runtime ? o->runtime : NULL,
        .idle_s = o->engine_idle_s,
        .gpu_idle_s = o->gpu_idle_s,
        .jobs = o->jobs,
    };
    const struct ocr_queue_hooks hooks = {
        .arg = r,
        .ready = on_ready,
        .page_known = on_page_known,
        .page_read = on_page_read,
        .reload = on_reload,
    };

    ocr_options_engine(o, recogniser, sizeof recogniser);
    return ocr_queue_open(&r->queue, &config, &hooks, err);
}

static void init_lock(struct reader *r)
{
    pthread_condattr_t attr;

    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->changed, &attr);
    pthread_condattr_destroy(&attr);
}

static int open_reader(struct reader *r, size_t count, char **paths,
                       struct ocr_err *err)
{
    ocr_buf_init(&r->settings, 64 << 10);
    ocr_options_settings(&r->options, &r->settings);
    if (r->dump >= 0)
        ocr_buf_puts(&r->settings, "dump=1\n");
    r->recogniser = ocr_options_recogniser(&r->options);
    r->items = calloc(count, sizeof *r->items);
    if (r->settings.failed || !r->items)
        return ocr_err_set(err, -ENOMEM, "out of memory");
    r->count = count;
    r->paths = paths;
    if (open_cache(r, err) || open_queue(r, err))
        return err->code;
    ocr_progress_init(&r->progress, count);
    return 0;
}

static void close_reader(struct reader *r)
{
    if (r->queue)
        ocr_queue_stop(r->queue);
    ocr_queue_close(r->queue);
    ocr_cache_close(r->cache);
    for (size_t i = 0; i < r->count; i++)
        free(r->items[i].text);
    free(r->items);
    ocr_buf_release(&r->settings);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
}

/* 2 if no file can be read like this: a model that is none, a language that is
 * not installed. */
static int status_of(struct reader *r)
{
    struct ocr_queue_stats stats;

    ocr_queue_stats(r->queue, &stats);
    return !r->failed ? 0 : stats.refused ? 2 : 1;
}

/* Only tesseract's pages are made ready by its plugin and can be looked at. */
static int open_dump(struct reader *r, const char *folder, struct ocr_err *err)
{
    const char *recogniser = ocr_options_recogniser(&r->options);

    if (!folder)
        return 0;
    if (!*folder)
        return ocr_err_set(err, -EINVAL, "--dump-pages needs a folder");
    if (strcmp(recogniser, "tesseract"))
        return ocr_err_set(err, -EINVAL,
                           "--dump-pages shows what tesseract gets, not %s: "
                           "add --engine tesseract",
                           recogniser);
    r->dump = ocr_dump_open(folder, err);
    return r->dump < 0 ? r->dump : 0;
}

int cmd_read(int argc, char **argv)
{
    const char *folder = cmd_take_value("--dump-pages", &argc, argv);
    struct reader r = {.dump = -1};
    struct ocr_err err = OCR_ERR_INIT;
    int status = 2;

    if (cmd_options(&r.options, OCR_FOR_READ, &argc, argv))
        return status;
    init_lock(&r);
    if (argc < 2) {
        ocr_error("no file to read (try ocrfs read --help)");
    } else if (ocr_options_check_model(&r.options, &err)) {
        ocr_error("%s", err.text);
    } else if (open_dump(&r, folder, &err)) {
        ocr_error("%s", err.text);
    } else if (open_reader(&r, (size_t)argc - 1, argv + 1, &err)) {
        ocr_error("%s", err.text);
        status = 1;
    } else {
        read_all(&r);
        ocr_progress_clear(&r.progress);
        status = status_of(&r);
    }
    close_reader(&r);
    ocr_close(r.dump);
    ocr_options_release(&r.options);
    return status;
}

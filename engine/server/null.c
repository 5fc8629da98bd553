/* The recogniser `null`: a fixed text made from the pixels, after a delay. For
 * tests and measurements of everything around a recogniser. Arguments, parted
 * by ':', sizes in pixels:
 *
 *   200ms, 2s        time a page takes; pages do not wait for each other
 *   workers=N        pages at once, 64
 *   crash=WxH        dies of SIGSEGV when a page of this size is read
 *   fail=WxH         fails on it
 *   hang=WxH         never ends it, unless it is cancelled
 *   big=WxHxBYTES    a text of so many bytes
 *   probe=WxH        the text says what the engine may still do
 *
 * It only sleeps, so the thread in next() is the clock for all pages: it
 * waits for the first that is due, and reads its pixels then. */
#include "engine/recogniser.h"

#include "engine/base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

enum {
    WORKERS = 64,
    WORKERS_MAX = 4096,
    DELAY_MAX = 86400000, /* of either unit */
    BIG_MAX = 64 << 20
};

#define NEVER INT64_MAX

struct size {
    uint32_t width, height;
};

struct null_page {
    struct ocr_page page;
    int64_t due_ms; /* NEVER: hangs */
    uint64_t order; /* of submission, among pages due at once */
    bool cancelled;
};

struct ocr_recogniser {
    /* Constant after open: */
    int64_t delay_ms;
    unsigned workers;
    struct size crash, fail, hang, big, probe;
    size_t big_bytes;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t moved; /* a page came, was cancelled, or stop was set */
    bool stop;
    uint64_t submitted;
    unsigned held; /* pages from submit until next() returns them */
    unsigned count;
    struct null_page *pages; /* [workers], the first `count` are in use */
};

/* ---- arguments ---------------------------------------------------------- */

static bool parse_size(const char *s, const char *name, struct size *out)
{
    const size_t n = strlen(name);
    int end = 0;

    return strncmp(s, name, n) == 0 &&
           sscanf(s + n, "%ux%u%n", &out->width, &out->height, &end) == 2 &&
           s[n + (size_t)end] == '\0';
}

static bool parse_delay(const char *s, int64_t *ms)
{
    char *end;
    const unsigned long value = strtoul(s, &end, 10);

    if (*s < '0' || *s > '9' || value > DELAY_MAX)
        return false;
    if (strcmp(end, "ms") == 0)
        *ms = (int64_t)value;
    else if (strcmp(end, "s") == 0)
        *ms = (int64_t)value * 1000;
    else
        return false;
    return true;
}

static bool parse_big(struct ocr_recogniser *r, const char *s)
{
    int end = 0;

    return sscanf(s, "big=%ux%ux%zu%n", &r->big.width, &r->big.height,
                  &r->big_bytes, &end) == 3 &&
           s[end] == '\0' && r->big_bytes <= BIG_MAX;
}

static bool parse_workers(const char *s, unsigned *workers)
{
    int end = 0;

    return sscanf(s, "workers=%u%n", workers, &end) == 1 && s[end] == '\0' &&
           *workers >= 1 && *workers <= WORKERS_MAX;
}

static bool parse_argument(struct ocr_recogniser *r, const char *s)
{
    return parse_delay(s, &r->delay_ms) || parse_workers(s, &r->workers) ||
           parse_size(s, "crash=", &r->crash) ||
           parse_size(s, "fail=", &r->fail) ||
           parse_size(s, "hang=", &r->hang) ||
           parse_size(s, "probe=", &r->probe) || parse_big(r, s);
}

static int parse(struct ocr_recogniser *r, const char *arguments,
                 struct ocr_err *err)
{
    char *copy = strdup(arguments), *rest = copy, *argument;
    int rc = copy ? 0 : ocr_err_set(err, -ENOMEM, "No memory.");

    while (rc == 0 && (argument = strsep(&rest, ":")))
        if (*argument && !parse_argument(r, argument))
            rc = ocr_err_set(err, -EINVAL,
                             "The recogniser null does not know the argument "
                             "\"%.60s\".",
                             argument);
    free(copy);
    return rc;
}

/* ---- life --------------------------------------------------------------- */

static void null_close(struct ocr_recogniser *r)
{
    pthread_cond_destroy(&r->moved);
    pthread_mutex_destroy(&r->lock);
    free(r->pages);
    free(r);
}

static int null_open(struct ocr_recogniser **out,
                     const struct ocr_recogniser_config *config,
                     struct ocr_err *err)
{
    struct ocr_recogniser *r = calloc(1, sizeof *r);
    pthread_condattr_t monotonic;
    int rc;

    if (!r)
        return ocr_err_set(err, -ENOMEM, "No memory.");
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->moved, &monotonic);
    pthread_condattr_destroy(&monotonic);
    r->workers = WORKERS;
    rc = parse(r, config->arguments, err);
    if (rc == 0 && !(r->pages = calloc(r->workers, sizeof *r->pages)))
        rc = ocr_err_set(err, -ENOMEM, "No memory.");
    if (rc) {
        null_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

static unsigned null_capacity(struct ocr_recogniser *r)
{
    return r->workers;
}

static int null_fingerprint(struct ocr_recogniser *r, const char *settings,
                            char *out, size_t size, struct ocr_err *err)
{
    (void)r;
    (void)settings;
    (void)err;
    snprintf(out, size, "null 1");
    return 0;
}

/* ---- pages -------------------------------------------------------------- */

static bool is_size(const struct ocr_image *image, struct size size)
{
    return image->width == size.width && image->height == size.height;
}

static int null_submit(struct ocr_recogniser *r, const struct ocr_page *page,
                       struct ocr_err *err)
{
    const int64_t due =
        is_size(&page->image, r->hang) ? NEVER : ocr_now_ms() + r->delay_ms;

    pthread_mutex_lock(&r->lock);
    if (r->held == r->workers) {
        pthread_mutex_unlock(&r->lock);
        return ocr_err_set(err, -EAGAIN, "All workers are busy.");
    }
    r->held++;
    r->pages[r->count++] = (struct null_page){
        .page = *page, .due_ms = due, .order = r->submitted++};
    pthread_cond_signal(&r->moved);
    pthread_mutex_unlock(&r->lock);
    return 0;
}

static void null_cancel(struct ocr_recogniser *r, uint64_t id)
{
    pthread_mutex_lock(&r->lock);
    for (unsigned i = 0; i < r->count; i++)
        if (r->pages[i].page.id == id) {
            r->pages[i].cancelled = true;
            r->pages[i].due_ms = 0;
        }
    pthread_cond_signal(&r->moved);
    pthread_mutex_unlock(&r->lock);
}

static void null_wake(struct ocr_recogniser *r)
{
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->moved);
    pthread_mutex_unlock(&r->lock);
}

static bool sooner(const struct null_page *a, const struct null_page *b)
{
    return a->due_ms != b->due_ms ? a->due_ms < b->due_ms : a->order < b->order;
}

/* The page that is due first, NULL if none will ever be. */
static struct null_page *first_due_locked(struct ocr_recogniser *r)
{
    struct null_page *first = NULL;

    for (unsigned i = 0; i < r->count; i++)
        if (r->pages[i].due_ms != NEVER &&
            (!first || sooner(&r->pages[i], first)))
            first = &r->pages[i];
    return first;
}

static void wait_for_locked(struct ocr_recogniser *r,
                            const struct null_page *page)
{
    struct timespec until;

    if (!page) {
        pthread_cond_wait(&r->moved, &r->lock);
        return;
    }
    until.tv_sec = page->due_ms / 1000;
    until.tv_nsec = page->due_ms % 1000 * 1000000;
    pthread_cond_timedwait(&r->moved, &r->lock, &until);
}

/* Waits until a page is due and takes it out; false: stopped. */
static bool take_due(struct ocr_recogniser *r, struct null_page *out)
{
    struct null_page *first = NULL;
    bool taken = false;

    pthread_mutex_lock(&r->lock);
    while (!r->stop && !taken) {
        first = first_due_locked(r);
        taken = first && first->due_ms <= ocr_now_ms();
        if (!taken)
            wait_for_locked(r, first);
    }
    if (taken) {
        *out = *first;
        *first = r->pages[--r->count];
    }
    pthread_mutex_unlock(&r->lock);
    return taken;
}

static uint32_t checksum(const struct ocr_image *image)
{
    const uint8_t *pixels = image->pixels;
    size_t left = ocr_image_bytes(image);
    uLong sum = crc32(0, NULL, 0);

    while (left > 0) {
        const uInt n = left > 1u << 30 ? 1u << 30 : (uInt)left;
        sum = crc32(sum, pixels, n);
        pixels += n;
        left -= n;
    }
    return (uint32_t)sum;
}

/* Numbered lines, so that they are no loop to anybody. */
static void enlarge(struct ocr_recognised *out, size_t bytes)
{
    char *text = realloc(out->text, bytes + 64);
    unsigned line = 0;

    if (!text)
        return; /* then it is small */
    out->text = text;
    while (out->len < bytes)
        out->len += (size_t)snprintf(text + out->len, 64, "Line %u.\n", ++line);
    out->len = bytes;
    text[bytes] = '\0';
}

static const char *outcome(int fd)
{
    return fd < 0 ? strerror(errno) : ocr_close(fd) ? "done" : "";
}

/* One line for each attempt: "what: done" or why not. */
static int probe(char **text)
{
    char opened[64], made[64], reached[64], traced[64];

    snprintf(opened, sizeof opened, "%s",
             outcome(open("/etc/passwd", O_RDONLY | O_CLOEXEC)));
    snprintf(made, sizeof made, "%s",
             outcome(open("/var/tmp/ocrfs-probe",
                          O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600)));
    snprintf(reached, sizeof reached, "%s",
             outcome(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
    snprintf(traced, sizeof traced, "%s",
             outcome(ptrace(PTRACE_SEIZE, getppid(), NULL, NULL) ? -1 : 0));
    return asprintf(text, "open: %s\n\nmake: %s\n\nconnect: %s\n\ntrace: %s\n",
                    opened, made, reached, traced);
}

static void read_page(struct ocr_recogniser *r, const struct ocr_image *image,
                      struct ocr_recognised *out)
{
    int n;

    if (is_size(image, r->crash))
        raise(SIGSEGV);
    if (is_size(image, r->fail)) {
        out->kind = OCR_KIND_FAILED;
        snprintf(out->sentence, sizeof out->sentence,
                 "The recogniser null was told to fail on %ux%u.", image->width,
                 image->height);
        return;
    }
    n = is_size(image, r->probe)
            ? probe(&out->text)
            : asprintf(&out->text, "# null %ux%u\n\nchecksum %08x\n",
                       image->width, image->height, checksum(image));
    if (n < 0) {
        out->text = NULL;
        out->kind = OCR_KIND_FAILED;
        snprintf(out->sentence, sizeof out->sentence, "No memory.");
        return;
    }
    out->len = (size_t)n;
    if (is_size(image, r->big))
        enlarge(out, r->big_bytes);
}

static int null_next(struct ocr_recogniser *r, struct ocr_recognised *out)
{
    struct null_page page = {0};

    if (!take_due(r, &page))
        return -ESHUTDOWN;
    *out = (struct ocr_recognised){.id = page.page.id};
    if (page.cancelled) {
        out->kind = OCR_KIND_CANCELLED;
        snprintf(out->sentence, sizeof out->sentence,
                 "Nobody waited any more.");
    } else {
        read_page(r, &page.page.image, out);
    }
    pthread_mutex_lock(&r->lock);
    r->held--;
    pthread_mutex_unlock(&r->lock);
    return 0;
}

static const char *null_device(struct ocr_recogniser *r)
{
    (void)r;
    return "cpu";
}

const struct ocr_recogniser_ops ocr_recogniser_null = {
    .abi = OCR_RECOGNISER_ABI,
    .name = "null",
    .open = null_open,
    .capacity = null_capacity,
    .device = null_device,
    .fingerprint = null_fingerprint,
    .submit = null_submit,
    .cancel = null_cancel,
    .next = null_next,
    .wake = null_wake,
    .close = null_close,
};

/* The pool of decode helpers. This program is its own helper: started with
 * --decode-helper it decodes as the engine does, except for "images" that are
 * orders to misbehave. */
#include "engine/base/io.h"
#include "engine/content.h"
#include "engine/server/decode.h"
#include "engine/server/helper.h"
#include "engine/server/sandbox.h"
#include "tests/lib/skip.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FORMATS "tests/data/formats/"

/* ---- the helper's side -------------------------------------------------- */

/* Shared with the helpers, which cannot open anything once they serve. */
static struct control {
    atomic_uint gate; /* futex: 0 closed, 1 open */
    atomic_uint kill; /* 1: the next ONCE kills its helper */
} * control;

static void share_control(void)
{
    const char *path = getenv("OCR_TEST_CONTROL");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : ocr_memfd("control", NULL);
    char name[64];

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, sizeof *control), 0);
    control =
        mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(control, MAP_FAILED);
    snprintf(name, sizeof name, "/proc/%d/fd/%d", (int)getpid(), fd);
    setenv("OCR_TEST_CONTROL", name, 0);
}

static void wait_at_gate(void)
{
    while (!atomic_load(&control->gate))
        syscall(SYS_futex, &control->gate, FUTEX_WAIT, 0, NULL);
}

static void spin(void)
{
    for (volatile unsigned i = 0;; i++)
        continue;
}

/* Gives a picture of 2 x 1 with the text's first letters. */
static int succeed(struct ocr_image *out, const uint8_t *data,
                   const struct ocr_image_alloc *alloc)
{
    *out = (struct ocr_image){.width = 2, .height = 1, .channels = 1};
    out->pixels = alloc->alloc(alloc->arg, 2);
    memcpy(out->pixels, data, 2);
    return 0;
}

static long try_signal(void)
{
    return kill(getppid(), 0);
}

static long try_thread_signal(void)
{
    return syscall(SYS_tgkill, getppid(), getppid(), 0);
}

static long try_code(void)
{
    return mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED
               ? -1
               : 0;
}

static long try_limit(void)
{
    const struct rlimit more = {RLIM_INFINITY, RLIM_INFINITY};

    return setrlimit(RLIMIT_CPU, &more);
}

/* Tries what it must not be able to do: < 0 with errno if it was refused.
 * Not called in a helper that lives on in good health. */
static long try_to(const char *what)
{
    static char name[] = "sh";
    char *const none[] = {name, NULL};

    if (!strcmp(what, "open"))
        return open("/etc/hostname", O_RDONLY | O_CLOEXEC);
    if (!strcmp(what, "create"))
        return open("/tmp/ocrfs-escaped", O_CREAT | O_WRONLY, 0600);
    if (!strcmp(what, "stat"))
        return access("/", F_OK);
    if (!strcmp(what, "unlink"))
        return unlink("/tmp/ocrfs-nothing");
    if (!strcmp(what, "read"))
        return read(STDIN_FILENO, name, 0);
    if (!strcmp(what, "memfd"))
        return memfd_create("more", 0);
    if (!strcmp(what, "signal"))
        return try_signal();
    if (!strcmp(what, "thread-signal"))
        return try_thread_signal();
    if (!strcmp(what, "code"))
        return try_code();
    if (!strcmp(what, "limit"))
        return try_limit();
    if (!strcmp(what, "catch"))
        return signal(SIGXCPU, SIG_IGN) == SIG_ERR ? -1 : 0;
    if (!strcmp(what, "socket"))
        return socket(AF_INET, SOCK_STREAM, 0);
    if (!strcmp(what, "unix"))
        return socket(AF_UNIX, SOCK_STREAM, 0);
    if (!strcmp(what, "exec"))
        return execve("/bin/true", none, none);
    if (!strcmp(what, "fork"))
        return fork();
    if (!strcmp(what, "trace"))
        return ptrace(PTRACE_ATTACH, getppid(), NULL, NULL);
    return 0;
}

/* Gives a picture of 2 x 1: 1 if it was refused, and errno. */
static int tell_attempt(struct ocr_image *out, const char *what,
                        const struct ocr_image_alloc *alloc)
{
    const long rc = try_to(what);
    const uint8_t answer[2] = {rc < 0, (uint8_t)errno};

    return succeed(out, answer, alloc);
}

/* Keeps the pixels mapped behind the pool's back. */
static int keep_pixels(struct ocr_image *out, const uint8_t *data,
                       const struct ocr_image_alloc *alloc)
{
    const int rc = succeed(out, data, alloc);

    if (mremap(out->pixels, 0, 4096, MREMAP_MAYMOVE) == MAP_FAILED)
        _exit(9);
    return rc;
}

static void misbehave(const char *order)
{
    if (!strcmp(order, "SEGV")) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    } else if (!strcmp(order, "EXIT")) {
        _exit(3);
    } else if (!strcmp(order, "SPIN")) {
        spin();
    } else if (!strcmp(order, "KILL") ||
               (!strcmp(order, "ONCE") && atomic_exchange(&control->kill, 0))) {
        raise(SIGKILL);
    } else if (!strcmp(order, "WAIT")) {
        wait_at_gate();
    }
}

static int obey(struct ocr_image *out, const uint8_t *data, size_t len,
                const struct ocr_image_limits *limits,
                const struct ocr_image_alloc *alloc, struct ocr_err *err)
{
    char order[64] = "";

    if (len)
        memcpy(order, data, len < 63 ? len : 63);
    misbehave(order);
    if (!strcmp(order, "HOG")) {
        void *much = mmap(NULL, (size_t)2 << 30, PROT_READ,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        return much != MAP_FAILED ? succeed(out, data, alloc)
                                  : ocr_err_set(err, -ENOMEM, "no memory");
    }
    if (!strcmp(order, "LIE")) {
        succeed(out, data, alloc);
        out->width = 3000000000u;
        return 0;
    }
    if (!strcmp(order, "KEEP"))
        return keep_pixels(out, data, alloc);
    if (!strcmp(order, "MORE")) /* than there is room for */
        return alloc->alloc(alloc->arg, (size_t)751 * 1000 * 1000)
                   ? succeed(out, data, alloc)
                   : ocr_err_set(err, -ENOMEM, "no memory");
    if (!strncmp(order, "TRY ", 4))
        return tell_attempt(out, order + 4, alloc);
    if (!strncmp(order, "OK", 2) || !strcmp(order, "WAIT") ||
        !strcmp(order, "ONCE"))
        return succeed(out, data, alloc);
    return ocr_image_decode(out, data, len, limits, alloc, err);
}

/* ---- the pool's side ---------------------------------------------------- */

enum {
    RESULTS = 512
};

/* Collects the results in the order in which they come. */
struct fixture {
    struct ocr_decode_pool *pool;
    pthread_mutex_t lock;
    pthread_cond_t came;
    unsigned n; /* guarded by lock, as all below */
    struct ocr_decoded results[RESULTS];
    uint64_t next_id;
};

static void on_done(void *arg, const struct ocr_decoded *decoded)
{
    struct fixture *f = arg;

    pthread_mutex_lock(&f->lock);
    assert_true(f->n < RESULTS);
    f->results[f->n++] = *decoded;
    pthread_cond_broadcast(&f->came);
    pthread_mutex_unlock(&f->lock);
}

static struct fixture *open_pool(struct ocr_decode_config config)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct ocr_err err = OCR_ERR_INIT;

    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->came, NULL);
    config.done = on_done;
    config.arg = f;
    if (ocr_decode_open(&f->pool, &config, &err))
        fail_msg("%s", err.text);
    return f;
}

/* From /proc; false if there is no such process. */
static bool process(int pid, char *state, int *parent)
{
    char path[64];
    FILE *stat;
    bool known;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    stat = pid > 0 ? fopen(path, "r") : NULL;
    if (!stat)
        return false;
    known = fscanf(stat, "%*d (%*[^)]) %c %d", state, parent) == 2;
    fclose(stat);
    return known;
}

static bool is_zombie(pid_t pid)
{
    char state = 0;
    int parent;

    return process(pid, &state, &parent) && state == 'Z';
}

static unsigned children(pid_t *last)
{
    DIR *dir = opendir("/proc");
    const struct dirent *entry;
    unsigned n = 0;

    while ((entry = readdir(dir))) {
        const int pid = atoi(entry->d_name);
        char state;
        int parent;

        if (!process(pid, &state, &parent) || parent != getpid())
            continue;
        n++;
        if (last)
            *last = pid;
    }
    closedir(dir);
    return n;
}

static void close_pool(struct fixture *f)
{
    ocr_decode_close(f->pool);
    assert_int_equal(children(NULL), 0);
    for (unsigned i = 0; i < f->n; i++)
        ocr_decoded_release(&f->results[i].image);
    pthread_cond_destroy(&f->came);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static int memfd_of(const void *data, size_t len)
{
    const int fd = ocr_memfd("test", NULL);

    assert_true(fd >= 0);
    assert_int_equal(ocr_pwrite_full(fd, data, len, 0), 0);
    assert_int_equal(ocr_memfd_seal(fd, NULL), 0);
    return fd;
}

static int memfd_of_file(const char *name, size_t *len)
{
    char path[256];
    static uint8_t data[1 << 20];
    int fd;
    ssize_t n;

    snprintf(path, sizeof path, FORMATS "%s", name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    n = ocr_pread_full(fd, data, sizeof data, 0);
    close(fd);
    assert_true(n >= 0);
    *len = (size_t)n;
    return memfd_of(data, *len);
}

static uint64_t submit(struct fixture *f, int fd, size_t size,
                       enum ocr_priority priority)
{
    const struct ocr_decode_task task = {.id = ++f->next_id,
                                         .fd = fd,
                                         .size = size,
                                         .priority = priority,
                                         .limits = OCR_IMAGE_LIMITS_DEFAULT};

    assert_int_equal(ocr_decode_submit(f->pool, &task, NULL), 0);
    return task.id;
}

static void wait_for(struct fixture *f, unsigned n)
{
    pthread_mutex_lock(&f->lock);
    while (f->n < n)
        pthread_cond_wait(&f->came, &f->lock);
    pthread_mutex_unlock(&f->lock);
}

/* Has `order` carried out and returns its result. */
static const struct ocr_decoded *order(struct fixture *f, const char *text)
{
    const int fd = memfd_of(text, strlen(text));
    const unsigned n = f->n;

    submit(f, fd, strlen(text), OCR_PRIORITY_INTERACTIVE);
    wait_for(f, n + 1);
    close(fd);
    return &f->results[n];
}

static void check_ok(struct fixture *f)
{
    const struct ocr_decoded *result = order(f, "OK");

    if (result->kind)
        fail_msg("%s", result->sentence);
    assert_memory_equal(result->image.pixels, "OK", 2);
}

static struct ocr_decode_stats stats_of(struct fixture *f)
{
    struct ocr_decode_stats stats;

    ocr_decode_stats(f->pool, &stats);
    return stats;
}

/* ---- tests -------------------------------------------------------------- */

static void test_images_come_back(void **state)
{
    static const char *const names[] = {
        "png-gray8.png",          "jpeg-444.jpg",
        "png-rgb8-trns.png",      "jpeg-exif-orientation-6.jpg",
        "png-truncated-half.png", "png-bomb-real.png",
        "text-named.png",         "png-zero-length.png"};
    static const enum ocr_kind kinds[] = {
        OCR_KIND_NONE,      OCR_KIND_NONE,      OCR_KIND_NONE,
        OCR_KIND_NONE,      OCR_KIND_TRUNCATED, OCR_KIND_TOO_LARGE,
        OCR_KIND_NOT_IMAGE, OCR_KIND_EMPTY};
    enum {
        N = sizeof names / sizeof *names
    };
    struct fixture *f = open_pool((struct ocr_decode_config){.helpers = 3});
    int fds[N];

    (void)state;
    for (int i = 0; i < N; i++) {
        size_t len;

        fds[i] = memfd_of_file(names[i], &len);
        submit(f, fds[i], len, OCR_PRIORITY_INTERACTIVE);
    }
    wait_for(f, N);
    for (int i = 0; i < N; i++) {
        const struct ocr_decoded *r = &f->results[i];

        assert_int_equal(r->kind, kinds[r->id - 1]);
        if (r->kind) {
            assert_true(strlen(r->sentence) > 0);
            assert_null(r->image.pixels);
            continue;
        }
        assert_int_equal(r->image.width, 300);
        assert_int_equal(r->image.height, 80);
        assert_true(r->image.pixels[0] > 240);
        assert_true(r->image.pixels[ocr_image_bytes(&r->image) - 1] > 240);
    }
    for (int i = 0; i < N; i++)
        close(fds[i]);
    assert_int_equal(stats_of(f).decoded, 4);
    assert_int_equal(stats_of(f).failed, 4);
    assert_int_equal(stats_of(f).crashed, 0);
    close_pool(f);
}

static void test_a_crash_costs_one_error(void **state)
{
    struct fixture *f = open_pool((struct ocr_decode_config){.helpers = 1});

    (void)state;
    check_ok(f);
    assert_int_equal(order(f, "SEGV")->kind, OCR_KIND_CORRUPT);
    check_ok(f);
    assert_int_equal(order(f, "EXIT")->kind, OCR_KIND_CORRUPT);
    check_ok(f);
    assert_int_equal(stats_of(f).crashed, 2);
    assert_int_equal(stats_of(f).killed, 0);
    close_pool(f);
}

static void test_an_endless_decoder_is_ended(void **state)
{
    struct fixture *f = open_pool(
        (struct ocr_decode_config){.helpers = 1, .cpu_s = 1, .wall_s = 100});

    (void)state;
    assert_int_equal(order(f, "SPIN")->kind, OCR_KIND_TOO_LARGE);
    check_ok(f);
    assert_int_equal(stats_of(f).overrun, 1);
    close_pool(f);
}

static void test_a_hanging_decoder_is_ended(void **state)
{
    struct fixture *f =
        open_pool((struct ocr_decode_config){.helpers = 1, .wall_s = 3});

    (void)state;
    atomic_store(&control->gate, 0);
    assert_int_equal(order(f, "WAIT")->kind, OCR_KIND_FAILED);
    check_ok(f);
    assert_int_equal(stats_of(f).overrun, 1);
    close_pool(f);
}

static void test_memory_is_limited(void **state)
{
    struct fixture *f = open_pool((struct ocr_decode_config){.helpers = 1});

    (void)state;
    /* Sanitizers need terabytes of addresses, so there is no limit then. */
    assert_int_equal(order(f, "HOG")->kind,
                     OCR_SANITIZED ? OCR_KIND_NONE : OCR_KIND_TOO_LARGE);
    check_ok(f);
    close_pool(f);
}

/* Nobody's fault: once more, and the second time for good. */
static void test_killed_from_outside(void **state)
{
    struct fixture *f = open_pool((struct ocr_decode_config){.helpers = 1});

    (void)state;
    atomic_store(&control->kill, 1);
    assert_int_equal(order(f, "ONCE")->kind, OCR_KIND_NONE);
    assert_int_equal(stats_of(f).killed, 1);
    assert_int_equal(atomic_load(&control->kill), 0);
    assert_int_equal(order(f, "KILL")->kind, OCR_KIND_FAILED);
    assert_int_equal(stats_of(f).killed, 3);
    check_ok(f);
    close_pool(f);
}

static void test_killed_while_idle(void **state)
{
    struct fixture *f = open_pool((struct ocr_decode_config){.helpers = 1});
    pid_t pid = 0;

    (void)state;
    check_ok(f);
    assert_int_equal(children(&pid), 1);
    kill(pid, SIGKILL);
    check_ok(f);
    assert_int_equal(stats_of(f).killed, 1);
    assert_int_equal(stats_of(f).failed, 0);
    close_pool(f);
}

/* A helper that was taken over by an image says what it likes. */
static void test_lies_are_not_believed(void **state)
{
    struct fixture *f = open_pool((struct ocr_decode_config){.helpers = 1});

    (void)state;
    assert_int_equal(order(f, "LIE")->kind, OCR_KIND_CORRUPT);
    check_ok(f);
    assert_int_equal(order(f, "KEEP")->kind, OCR_KIND_CORRUPT);
    check_ok(f);
    assert_int_equal(order(f, "MORE")->kind, OCR_KIND_TOO_LARGE);
    check_ok(f);
    assert_int_equal(stats_of(f).crashed, 2);
    close_pool(f);
}

#define NO_SANDBOX                                                             \
    (OCR_SANITIZED   ? "a sanitizer reports by what the filter forbids"        \
     : !HAVE_SECCOMP ? "built without libseccomp"                              \
                     : NULL)

static void test_the_sandbox_is_whole(void **state)
{
    const unsigned least = OCR_SANDBOX_PRIVILEGES | OCR_SANDBOX_SECCOMP;
    struct fixture *f;

    (void)state;
    if (NO_SANDBOX)
        SKIP(NO_SANDBOX);
    f = open_pool((struct ocr_decode_config){.helpers = 1});
    check_ok(f);
    assert_int_equal(stats_of(f).sandbox & least, least);
    close_pool(f);
}

static void test_a_helper_opens_nothing(void **state)
{
    static const char *const refused[] = {
        "TRY open", "TRY create", "TRY stat",   "TRY unlink",
        "TRY read", "TRY memfd",  "TRY signal", "TRY thread-signal",
        "TRY code", "TRY limit",  "TRY catch"};
    struct fixture *f;

    (void)state;
    if (NO_SANDBOX)
        SKIP(NO_SANDBOX);
    f = open_pool((struct ocr_decode_config){.helpers = 1});
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const struct ocr_decoded *result = order(f, refused[i]);

        if (result->kind || !result->image.pixels[0] ||
            result->image.pixels[1] != EPERM)
            fail_msg("%s: %s, errno %d", refused[i],
                     result->kind ? result->sentence : "done",
                     result->kind ? 0 : result->image.pixels[1]);
    }
    assert_int_equal(stats_of(f).crashed, 0);
    close_pool(f);
}

static void test_a_helper_that_breaks_out_is_ended(void **state)
{
    static const char *const deadly[] = {"TRY socket", "TRY unix", "TRY exec",
                                         "TRY fork", "TRY trace"};
    enum {
        N = sizeof deadly / sizeof *deadly
    };
    struct fixture *f;

    (void)state;
    if (NO_SANDBOX)
        SKIP(NO_SANDBOX);
    f = open_pool((struct ocr_decode_config){.helpers = 1});
    for (int i = 0; i < N; i++) {
        const struct ocr_decoded *result = order(f, deadly[i]);

        if (result->kind != OCR_KIND_CORRUPT ||
            !strstr(result->sentence, "asked the system"))
            fail_msg("%s: %s", deadly[i],
                     result->kind ? result->sentence : "done");
        check_ok(f);
    }
    assert_int_equal(stats_of(f).crashed, N);
    close_pool(f);
}

static void test_helpers_are_recycled(void **state)
{
    struct fixture *f =
        open_pool((struct ocr_decode_config){.helpers = 1, .images = 2});

    (void)state;
    for (int i = 0; i < 5; i++)
        check_ok(f);
    assert_int_equal(stats_of(f).recycled, 2);
    close_pool(f);
}

static void test_no_helper_can_be_started(void **state)
{
    struct fixture *f = open_pool((struct ocr_decode_config){
        .helpers = 1, .program = "/nonexistent/ocrfs-engine"});
    const struct ocr_decoded *result = order(f, "OK");

    (void)state;
    assert_int_equal(result->kind, OCR_KIND_FAILED);
    assert_non_null(strstr(result->sentence, "/nonexistent/ocrfs-engine"));
    close_pool(f);
    f = open_pool(
        (struct ocr_decode_config){.helpers = 1, .program = "/bin/true"});
    assert_int_equal(order(f, "OK")->kind, OCR_KIND_FAILED);
    close_pool(f);
}

/* An image that keeps its helper busy until open_gate. */
struct gate {
    int fd;
    uint64_t id;
};

static void close_gate(struct fixture *f, struct gate *gate)
{
    atomic_store(&control->gate, 0);
    gate->fd = memfd_of("WAIT", 4);
    gate->id = submit(f, gate->fd, 4, OCR_PRIORITY_INTERACTIVE);
    while (stats_of(f).running == 0)
        usleep(1000);
}

static void open_gate(void)
{
    atomic_store(&control->gate, 1);
    syscall(SYS_futex, &control->gate, FUTEX_WAKE, INT32_MAX);
}

static void test_order_by_priority(void **state)
{
    static const enum ocr_priority priorities[] = {
        OCR_PRIORITY_BACKGROUND, OCR_PRIORITY_READAHEAD,
        OCR_PRIORITY_INTERACTIVE, OCR_PRIORITY_BACKGROUND,
        OCR_PRIORITY_INTERACTIVE};
    static const int expected[] = {3, 5, 2, 1, 4};
    struct fixture *f = open_pool((struct ocr_decode_config){.helpers = 1});
    const int fd = memfd_of("OK", 2);
    struct gate gate;
    uint64_t first;

    (void)state;
    close_gate(f, &gate);
    first = gate.id;
    for (int i = 0; i < 5; i++)
        submit(f, fd, 2, priorities[i]);
    assert_int_equal(stats_of(f).waiting, 5);
    open_gate();
    wait_for(f, 6);
    for (int i = 0; i < 5; i++)
        assert_int_equal(f->results[i + 1].id - first, expected[i]);
    close(fd);
    close(gate.fd);
    close_pool(f);
}

static void test_cancel(void **state)
{
    struct fixture *f = open_pool((struct ocr_decode_config){.helpers = 1});
    const int fd = memfd_of("OK", 2);
    struct gate gate;
    uint64_t waiting;

    (void)state;
    close_gate(f, &gate);
    waiting = submit(f, fd, 2, OCR_PRIORITY_INTERACTIVE);
    submit(f, fd, 2, OCR_PRIORITY_INTERACTIVE);
    ocr_decode_cancel(f->pool, waiting);
    assert_int_equal(f->n, 1); /* at once, though the helper is busy */
    assert_int_equal(f->results[0].id, waiting);
    assert_int_equal(f->results[0].kind, OCR_KIND_CANCELLED);
    ocr_decode_cancel(f->pool, 4711);
    ocr_decode_cancel(f->pool, gate.id); /* its gate never opens */
    wait_for(f, 3);
    assert_int_equal(f->results[1].id, gate.id);
    assert_int_equal(f->results[1].kind, OCR_KIND_CANCELLED);
    assert_int_equal(f->results[2].kind, OCR_KIND_NONE);
    assert_int_equal(stats_of(f).killed, 0);
    check_ok(f);
    close(fd);
    close(gate.fd);
    close_pool(f);
}

static void test_close_with_work_left(void **state)
{
    struct fixture *f = open_pool((struct ocr_decode_config){.helpers = 1});
    const int fd = memfd_of("OK", 2);
    struct gate gate;

    (void)state;
    close_gate(f, &gate);
    for (int i = 0; i < 20; i++)
        submit(f, fd, 2, OCR_PRIORITY_BACKGROUND);
    ocr_decode_close(f->pool);
    f->pool = NULL;
    assert_int_equal(f->n, 21);
    for (unsigned i = 0; i < f->n; i++)
        assert_int_equal(f->results[i].kind, OCR_KIND_CANCELLED);
    close(fd);
    close(gate.fd);
    close_pool(f);
}

/* Submits, cancels, kills and finishes all at once, for the sanitizers. */
static void test_everything_at_once(void **state)
{
    struct fixture *f =
        open_pool((struct ocr_decode_config){.helpers = 4, .images = 7});
    const int ok = memfd_of("OK", 2), crash = memfd_of("EXIT", 4);
    struct ocr_decode_stats stats;
    unsigned cancelled = 0;

    (void)state;
    for (int i = 0; i < 200; i++) {
        const uint64_t id =
            submit(f, i % 20 == 7 ? crash : ok, i % 20 == 7 ? 4 : 2,
                   (enum ocr_priority)(i % 3));

        if (i % 5 == 3)
            ocr_decode_cancel(f->pool, id - 2);
        if (i % 50 == 49)
            usleep(20000);
    }
    wait_for(f, 200);
    for (unsigned i = 0; i < 200; i++)
        cancelled += f->results[i].kind == OCR_KIND_CANCELLED;
    stats = stats_of(f);
    assert_int_equal(stats.decoded + stats.failed + cancelled, 200);
    assert_int_equal(stats.failed, stats.crashed);
    assert_int_equal(stats.waiting + stats.running, 0);
    close(ok);
    close(crash);
    close_pool(f);
}

/* The file's own descriptor: copied, hashed and compared. */
static void test_digest_is_checked(void **state)
{
#if HAVE_XXHASH
    struct fixture *f = open_pool((struct ocr_decode_config){.helpers = 1});
    struct ocr_open_check check = {.secret = {1, 2, 3}};
    struct ocr_digest digest;
    struct ocr_decode_task task = {.size = 4,
                                   .priority = OCR_PRIORITY_INTERACTIVE,
                                   .check = &check,
                                   .limits = OCR_IMAGE_LIMITS_DEFAULT};
    char path[] = "/tmp/ocrfs-test-XXXXXX";

    (void)state;
    for (size_t i = 0; i < sizeof check.secret; i++)
        check.secret[i] = (uint8_t)(i * 7 + 1);
    task.fd = mkstemp(path);
    assert_true(task.fd >= 0);
    unlink(path);
    assert_int_equal(ocr_pwrite_full(task.fd, "OK12", 4, 0), 0);
    ocr_digest_of(&digest, "OK12", 4, check.secret);
    memcpy(check.digest, digest.bytes, sizeof check.digest);

    task.id = 1;
    assert_int_equal(ocr_decode_submit(f->pool, &task, NULL), 0);
    wait_for(f, 1);
    assert_int_equal(f->results[0].kind, OCR_KIND_NONE);

    assert_int_equal(ocr_pwrite_full(task.fd, "OK13", 4, 0), 0);
    task.id = 2;
    assert_int_equal(ocr_decode_submit(f->pool, &task, NULL), 0);
    wait_for(f, 2);
    assert_int_equal(f->results[1].kind, OCR_KIND_CHANGING);

    assert_int_equal(ftruncate(task.fd, 3), 0);
    task.id = 3;
    assert_int_equal(ocr_decode_submit(f->pool, &task, NULL), 0);
    wait_for(f, 3);
    assert_int_equal(f->results[2].kind, OCR_KIND_CHANGING);
    close(task.fd);
    close_pool(f);
#else
    struct fixture *f = open_pool((struct ocr_decode_config){.helpers = 1});
    const struct ocr_open_check check = {.secret = {1, 2, 3}};
    const struct ocr_decode_task task = {.id = 1, .fd = -1, .check = &check};

    (void)state;
    assert_int_equal(ocr_decode_submit(f->pool, &task, NULL), -ENOTSUP);
    close_pool(f);
#endif
}

static void test_there_is_one_page(void **state)
{
    struct fixture *f = open_pool((struct ocr_decode_config){.helpers = 1});
    struct ocr_decode_task task = {.id = 9,
                                   .fd = memfd_of("OK", 2),
                                   .size = 2,
                                   .page = 1,
                                   .limits = OCR_IMAGE_LIMITS_DEFAULT};

    (void)state;
    assert_int_equal(ocr_decode_submit(f->pool, &task, NULL), 0);
    wait_for(f, 1);
    assert_int_equal(f->results[0].kind, OCR_KIND_FAILED);
    close(task.fd);
    close_pool(f);
}

/* Kills itself with a helper at work, having told its pid. */
static int be_an_engine_that_is_killed(void)
{
    struct fixture *f = open_pool((struct ocr_decode_config){.helpers = 1});
    struct gate gate;
    pid_t helper = 0;

    close_gate(f, &gate);
    while (children(&helper) == 0)
        usleep(1000);
    usleep(200000); /* past its start, into the image */
    (void)!write(STDOUT_FILENO, &helper, sizeof helper);
    return raise(SIGKILL);
}

static pid_t start_engine(int out)
{
    char name[] = "test_decode", option[] = "--engine";
    char *const argv[] = {name, option, NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    assert_int_equal(
        posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

static void test_helpers_die_with_their_engine(void **state)
{
    int ends[2];
    pid_t engine, helper;

    (void)state;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    engine = start_engine(ends[1]);
    assert_int_equal(read(ends[0], &helper, sizeof helper), sizeof helper);
    assert_true(helper > 0);
    waitpid(engine, NULL, 0);
    /* The test hangs if it does not go. A zombie is gone, too: nobody may be
     * there to wait for it. */
    while (kill(helper, 0) == 0 && !is_zombie(helper))
        usleep(1000);
    close(ends[0]);
    close(ends[1]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_images_come_back),
        cmocka_unit_test(test_a_crash_costs_one_error),
        cmocka_unit_test(test_an_endless_decoder_is_ended),
        cmocka_unit_test(test_a_hanging_decoder_is_ended),
        cmocka_unit_test(test_memory_is_limited),
        cmocka_unit_test(test_killed_from_outside),
        cmocka_unit_test(test_killed_while_idle),
        cmocka_unit_test(test_lies_are_not_believed),
        cmocka_unit_test(test_the_sandbox_is_whole),
        cmocka_unit_test(test_a_helper_opens_nothing),
        cmocka_unit_test(test_a_helper_that_breaks_out_is_ended),
        cmocka_unit_test(test_helpers_are_recycled),
        cmocka_unit_test(test_no_helper_can_be_started),
        cmocka_unit_test(test_order_by_priority),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_close_with_work_left),
        cmocka_unit_test(test_everything_at_once),
        cmocka_unit_test(test_digest_is_checked),
        cmocka_unit_test(test_there_is_one_page),
        cmocka_unit_test(test_helpers_die_with_their_engine),
    };

    share_control();
    if (argc > 1 && !strcmp(argv[1], "--decode-helper=pictures"))
        return ocr_decode_helper_serve(OCR_HELPER_SOCKET, OCR_HELPER_PICTURES,
                                       obey);
    if (argc > 1 && !strcmp(argv[1], "--engine"))
        return be_an_engine_that_is_killed();
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

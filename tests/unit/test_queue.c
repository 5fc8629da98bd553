/* The queue in front of an engine, against an engine of this test's own: the
 * program is this binary, and what it does with a page is said by the first
 * byte of the "image":
 *   t  answers with a text        e  answers with an error (corrupt)
 *   B  a text of 60,000 bytes     h  holds the page until it is cancelled
 *   c  crashes                    k  is killed, the first KILLS times
 *   s  says that it started, then holds */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/base/io.h"
#include "engine/client/connect.h"
#include "engine/queue.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    AWAY_STARTS = 6,
    BIG_TEXT = 60000,
    CAPACITY = 4
};

/* ---- the engine -------------------------------------------------------------
 */

static struct ocr_message in;

static void say(int sock, struct ocr_message m, const char *payload)
{
    m.length = payload ? (uint32_t)strlen(payload) : 0;
    if (ocr_message_send(sock, &m, payload))
        _exit(0);
}

/* Counts in files of the runtime folder, so that the test sees it. */
static int count(const char *folder, const char *what)
{
    char path[200];
    int fd, n;

    snprintf(path, sizeof path, "%s/count-%s", folder, what);
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (write(fd, "x", 1) != 1)
        _exit(1);
    n = (int)lseek(fd, 0, SEEK_END);
    close(fd);
    return n;
}

static int counted(const char *folder, const char *what)
{
    char path[200];
    int fd, n;

    snprintf(path, sizeof path, "%s/count-%s", folder, what);
    fd = open(path, O_RDONLY);
    n = fd < 0 ? 0 : (int)lseek(fd, 0, SEEK_END);
    ocr_close(fd);
    return n;
}

static void send_big(int sock, uint64_t document)
{
    static char text[BIG_TEXT];
    const int fd = ocr_memfd("big", NULL);
    struct ocr_message m = {.type = OCR_MSG_TEXT,
                            .document = document,
                            .value = sizeof text,
                            .fd = fd};

    memset(text, 'b', sizeof text);
    ocr_pwrite_full(fd, text, sizeof text, 0);
    say(sock, m, NULL);
    close(fd);
}

static void crash(int sock)
{
    say(sock,
        (struct ocr_message){
            .type = OCR_MSG_CRASHED, .value = SIGSEGV, .flags = 1, .fd = -1},
        NULL);
    _exit(1);
}

static void read_page(int sock, const char *folder, uint64_t document,
                      const char *image, unsigned flags)
{
    struct ocr_message m = {.document = document, .fd = -1};
    char text[128];

    count(folder, "reads");
    if (flags & OCR_READ_ALONE)
        count(folder, "alone");
    if (image[0] != 'h') {
        m.type = OCR_MSG_PROGRESS;
        m.value = OCR_STAGE_READING;
        say(sock, m, NULL);
    }
    switch (image[0]) {
    case 'c':
        crash(sock);
        break;
    case 'k':
        if (count(folder, "kills") <= atoi(image + 1))
            _exit(1);
        /* fall through */
    case 't':
        snprintf(text, sizeof text, "text of %s", image);
        m.type = OCR_MSG_TEXT;
        m.value = strlen(text);
        say(sock, m, text);
        break;
    case 'e':
        m.type = OCR_MSG_ERROR;
        m.value = OCR_KIND_CORRUPT;
        say(sock, m, "a bad picture");
        break;
    case 'B':
        send_big(sock, document);
        break;
    default:
        break; /* held */
    }
}

static int engine(int argc, char **argv)
{
    static char images[4096][16];
    const char *folder = "", *recogniser = "";
    int sock;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--runtime"))
            folder = argv[i + 1];
        if (!strcmp(argv[i], "--recogniser"))
            recogniser = argv[i + 1];
    }
    if (!strcmp(recogniser, "refuses"))
        return 3;
    if (fork())
        return 0;
    setsid();
    if (!strcmp(recogniser, "silent")) {
        sleep(60);
        return 0;
    }
    sock = accept4(OCR_ENGINE_LISTEN_FD, NULL, NULL, SOCK_CLOEXEC);
    say(sock,
        (struct ocr_message){
            .type = OCR_MSG_HELLO, .value = OCR_PROTOCOL_VERSION, .fd = -1},
        "test");
    for (;;) {
        struct pollfd fd = {.fd = sock, .events = POLLIN};

        poll(&fd, 1, -1);
        if (ocr_message_receive(sock, &in) <= 0)
            return 0; /* the client went */
        if (in.type == OCR_MSG_HELLO && !strcmp(recogniser, "cannot-load"))
            say(sock,
                (struct ocr_message){
                    .type = OCR_MSG_ERROR, .value = OCR_KIND_GONE, .fd = -1},
                "the language xyz is not installed");
        else if (in.type == OCR_MSG_HELLO &&
                 !strcmp(recogniser, "comes-late") &&
                 count(folder, "away") <= AWAY_STARTS)
            say(sock,
                (struct ocr_message){.type = OCR_MSG_ERROR,
                                     .value = OCR_KIND_GONE,
                                     .flags = OCR_ERROR_AWAY,
                                     .fd = -1},
                "no server answers");
        else if (in.type == OCR_MSG_HELLO)
            say(sock,
                (struct ocr_message){
                    .type = OCR_MSG_READY, .value = CAPACITY, .fd = -1},
                "fingerprint 1\ncpu\ntest engine");
        else if (in.type == OCR_MSG_OPEN)
            ocr_pread_full(in.fd, images[in.document % 4096], 15, 0);
        else if (in.type == OCR_MSG_READ)
            read_page(sock, folder, in.document, images[in.document % 4096],
                      in.flags);
        else if (in.type == OCR_MSG_CANCEL) {
            count(folder, "cancels");
            say(sock,
                (struct ocr_message){.type = OCR_MSG_ERROR,
                                     .document = in.document,
                                     .value = OCR_KIND_CANCELLED,
                                     .fd = -1},
                "cancelled");
        }
        in.fd = ocr_close(in.fd);
    }
}

/* ---- helpers
 * ------------------------------------------------------------------ */

static const uint8_t secret[OCR_SECRET_BYTES] = {1, 2, 3};

struct fixture {
    char folder[64];
    struct ocr_queue *queue;
    atomic_int finished, ready, reloads;
    char reload_image[16];
};

struct wait {
    struct ocr_waiter waiter; /* first: cast back in done */
    atomic_int done;
    enum ocr_kind kind;
    size_t len;
    char text[128];
    int order;
};

static atomic_int next_order;

static void on_done(struct ocr_waiter *waiter, const struct ocr_result *result)
{
    struct wait *w = (struct wait *)waiter;

    w->kind = result->kind;
    w->len = result->len;
    w->order = atomic_fetch_add(&next_order, 1);
    snprintf(w->text, sizeof w->text, "%.100s",
             result->kind ? result->sentence : result->text);
    atomic_store(&w->done, 1);
}

static void on_finished(void *arg, const struct ocr_job_key *key,
                        const char *label, const struct ocr_result *result)
{
    struct fixture *f = arg;

    (void)key, (void)label, (void)result;
    atomic_fetch_add(&f->finished, 1);
}

static void on_ready(void *arg, const char *fingerprint, const char *device,
                     const char *version)
{
    struct fixture *f = arg;

    assert_string_equal(fingerprint, "fingerprint 1");
    assert_string_equal(device, "cpu");
    assert_string_equal(version, "test engine");
    atomic_fetch_add(&f->ready, 1);
}

static struct ocr_content content_of(const char *image)
{
    struct ocr_content c = {
        .fd = ocr_memfd("image", NULL), .size = strlen(image), .sealed = true};

    ocr_pwrite_full(c.fd, image, strlen(image), 0);
    ocr_memfd_seal(c.fd, NULL);
    ocr_digest_of(&c.digest, image, strlen(image), secret);
    return c;
}

static void on_reload(void *arg, const struct ocr_job_key *key,
                      const char *label)
{
    struct fixture *f = arg;
    struct ocr_content c = content_of(label);

    atomic_fetch_add(&f->reloads, 1);
    ocr_queue_supply(f->queue, key, &c, NULL);
}

static void open_queue(struct fixture *f, const char *recogniser)
{
    const struct ocr_queue_hooks hooks = {.arg = f,
                                          .ready = on_ready,
                                          .finished = on_finished,
                                          .reload = on_reload};
    struct ocr_engine_config config = {.recogniser = recogniser,
                                       .device = "cpu",
                                       .model = "",
                                       .settings = "lang=eng\n",
                                       .program = "/proc/self/exe",
                                       .runtime = f->folder,
                                       .idle_s = 60};

    assert_int_equal(ocr_queue_open(&f->queue, &config, &hooks, NULL), 0);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    snprintf(f->folder, sizeof f->folder, "/tmp/ocrfs-queue-XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    char command[128];

    ocr_queue_close(f->queue);
    snprintf(command, sizeof command, "rm -r %s", f->folder);
    if (system(command))
        return -1;
    free(f);
    return 0;
}

static struct ocr_job_key key_of(const char *image)
{
    struct ocr_job_key key = {.owner = UINT32_MAX};

    ocr_digest_of(&key.digest, image, strlen(image), secret);
    return key;
}

static void join(struct fixture *f, const char *image,
                 enum ocr_priority priority, struct wait *w)
{
    const struct ocr_job_key key = key_of(image);
    struct ocr_content c = content_of(image);

    if (w) {
        memset(w, 0, sizeof *w);
        w->waiter.done = on_done;
    }
    assert_int_equal(ocr_queue_join(f->queue, &key, &c, secret, priority, image,
                                    w ? &w->waiter : NULL, NULL),
                     0);
}

static void until(atomic_int *value, int at_least)
{
    for (int i = 0; i < 3000 && atomic_load(value) < at_least; i++)
        usleep(10000);
    assert_true(atomic_load(value) >= at_least);
}

static void until_counted(struct fixture *f, const char *what, int at_least)
{
    for (int i = 0; i < 3000 && counted(f->folder, what) < at_least; i++)
        usleep(10000);
    assert_true(counted(f->folder, what) >= at_least);
}

/* ---- tests
 * ---------------------------------------------------------------------- */

static void texts_errors_and_big_texts_come_back(void **state)
{
    struct fixture *f = *state;
    struct wait text, error, big;

    open_queue(f, "plain");
    join(f, "t1", OCR_PRIORITY_INTERACTIVE, &text);
    join(f, "e1", OCR_PRIORITY_INTERACTIVE, &error);
    join(f, "B1", OCR_PRIORITY_INTERACTIVE, &big);
    until(&text.done, 1);
    until(&error.done, 1);
    until(&big.done, 1);
    assert_string_equal(text.text, "text of t1");
    assert_int_equal(error.kind, OCR_KIND_CORRUPT);
    assert_string_equal(error.text, "a bad picture");
    assert_int_equal(big.len, BIG_TEXT);
    assert_int_equal(atomic_load(&f->ready), 1);
    assert_int_equal(atomic_load(&f->finished), 3);
}

static void fifty_waiters_cost_one_read(void **state)
{
    struct fixture *f = *state;
    static struct wait waits[50];

    open_queue(f, "plain");
    for (int i = 0; i < 50; i++)
        join(f, "t-one", OCR_PRIORITY_INTERACTIVE, &waits[i]);
    for (int i = 0; i < 50; i++)
        until(&waits[i].done, 1);
    assert_int_equal(counted(f->folder, "reads"), 1);
}

static void interactive_goes_before_readahead_before_background(void **state)
{
    struct fixture *f = *state;
    static struct wait held[CAPACITY];
    struct wait low, middle, high;

    open_queue(f, "plain");
    for (int i = 0; i < CAPACITY; i++) {
        char image[8];

        snprintf(image, sizeof image, "h%d", i);
        join(f, image, OCR_PRIORITY_INTERACTIVE, &held[i]);
    }
    until_counted(f, "reads", CAPACITY); /* the engine is full */
    join(f, "t-low", OCR_PRIORITY_BACKGROUND, &low);
    join(f, "t-middle", OCR_PRIORITY_READAHEAD, &middle);
    join(f, "t-high", OCR_PRIORITY_INTERACTIVE, &high);
    /* One place for the first of them; the others leave one place free. */
    assert_true(ocr_queue_leave(f->queue, &held[0].waiter));
    until(&high.done, 1);
    assert_false(atomic_load(&middle.done) || atomic_load(&low.done));
    assert_true(ocr_queue_leave(f->queue, &held[1].waiter));
    until(&low.done, 1);
    assert_true(atomic_load(&middle.done) && atomic_load(&high.done));
    assert_true(high.order < middle.order && middle.order < low.order);
    assert_int_equal(counted(f->folder, "cancels"), 2);
}

static void while_paused_nothing_goes_to_the_engine(void **state)
{
    struct fixture *f = *state;
    struct ocr_queue_stats stats;
    struct wait held, ahead, text;

    open_queue(f, "plain");
    join(f, "h0", OCR_PRIORITY_INTERACTIVE, &held);
    until_counted(f, "reads", 1);
    ocr_queue_pause(f->queue, true);
    join(f, "t-ahead", OCR_PRIORITY_READAHEAD, &ahead);
    join(f, "t-text", OCR_PRIORITY_INTERACTIVE, &text);
    /* What is in the engine may end; by then the thread has seen the others. */
    assert_true(ocr_queue_leave(f->queue, &held.waiter));
    do {
        usleep(10000);
        ocr_queue_stats(f->queue, &stats);
    } while (stats.running);
    assert_int_equal(stats.waiting[OCR_PRIORITY_INTERACTIVE], 1);
    assert_int_equal(stats.waiting[OCR_PRIORITY_READAHEAD], 1);
    assert_true(ocr_queue_leave(f->queue, &ahead.waiter));
    ocr_queue_pause(f->queue, false);
    until(&text.done, 1);
    assert_string_equal(text.text, "text of t-text");
    assert_int_equal(counted(f->folder, "reads"), 2);
}

static void a_paused_queue_starts_no_engine(void **state)
{
    struct fixture *f = *state;
    struct ocr_queue_stats stats;
    struct wait text, other;

    open_queue(f, "plain");
    ocr_queue_pause(f->queue, true);
    join(f, "t1", OCR_PRIORITY_INTERACTIVE, &text);
    /* Two ends: in between its thread went round with a job that waits. */
    for (int i = 1; i <= 2; i++) {
        join(f, "t2", OCR_PRIORITY_INTERACTIVE, &other);
        assert_true(ocr_queue_leave(f->queue, &other.waiter));
        until(&f->finished, i);
    }
    ocr_queue_stats(f->queue, &stats);
    assert_int_equal(stats.engine_starts, 0);
    ocr_queue_pause(f->queue, false);
    until(&text.done, 1);
    ocr_queue_stats(f->queue, &stats);
    assert_int_equal(stats.engine_starts, 1);
}

static void a_job_nobody_waits_for_is_dropped_unless_it_started(void **state)
{
    struct fixture *f = *state;
    static struct wait held[CAPACITY];
    struct wait waiting, started, again;
    const struct ocr_job_key key = key_of("t-waiting");

    open_queue(f, "plain");
    join(f, "s-started", OCR_PRIORITY_INTERACTIVE, &started);
    for (int i = 1; i < CAPACITY; i++) {
        char image[8];

        snprintf(image, sizeof image, "h%d", i);
        join(f, image, OCR_PRIORITY_INTERACTIVE, &held[i]);
    }
    until_counted(f, "reads", CAPACITY);
    join(f, "t-waiting", OCR_PRIORITY_INTERACTIVE, &waiting);
    assert_true(ocr_queue_leave(f->queue, &waiting.waiter));
    assert_false(ocr_queue_leave(f->queue, &waiting.waiter));
    assert_false(ocr_queue_join_existing(
        f->queue, &key, OCR_PRIORITY_INTERACTIVE, &again.waiter));
    until(&f->finished, 1); /* said to be cancelled */
    usleep(50000);
    assert_true(ocr_queue_leave(f->queue, &started.waiter));
    usleep(100000);
    assert_int_equal(counted(f->folder, "cancels"), 0);
    assert_int_equal(counted(f->folder, "reads"), CAPACITY);
    assert_int_equal(atomic_load(&waiting.done), 0);
}

static void only_the_page_that_crashes_the_engine_fails(void **state)
{
    enum {
        PAGES = 20
    };
    struct fixture *f = *state;
    static struct wait good[PAGES];
    struct wait bad;
    struct ocr_queue_stats stats;

    open_queue(f, "plain");
    for (int i = 0; i < PAGES; i++) {
        char image[8];

        if (i == PAGES / 2)
            join(f, "c-bad", OCR_PRIORITY_INTERACTIVE, &bad);
        snprintf(image, sizeof image, "t%d", i);
        join(f, image, OCR_PRIORITY_INTERACTIVE, &good[i]);
    }
    until(&bad.done, 1);
    for (int i = 0; i < PAGES; i++) {
        until(&good[i].done, 1);
        assert_int_equal(good[i].kind, OCR_KIND_NONE);
    }
    assert_int_equal(bad.kind, OCR_KIND_FAILED);
    assert_non_null(strstr(bad.text, "crashed"));
    assert_true(counted(f->folder, "alone") >= 1);
    ocr_queue_stats(f->queue, &stats);
    assert_int_equal(stats.failed, 1);
    assert_int_equal(stats.done, PAGES);
    assert_true(stats.engine_deaths >= 2);
}

static void an_engine_killed_five_times_fails_nobody(void **state)
{
    struct fixture *f = *state;
    struct wait killed, other;

    open_queue(f, "plain");
    join(f, "k5", OCR_PRIORITY_INTERACTIVE, &killed);
    join(f, "t-other", OCR_PRIORITY_INTERACTIVE, &other);
    until(&killed.done, 1);
    until(&other.done, 1);
    assert_int_equal(killed.kind, OCR_KIND_NONE);
    assert_int_equal(other.kind, OCR_KIND_NONE);
    assert_int_equal(counted(f->folder, "kills"), 6);
}

static void a_server_that_comes_late_is_waited_for(void **state)
{
    struct fixture *f = *state;
    struct ocr_err err = OCR_ERR_INIT;
    struct wait w;

    open_queue(f, "comes-late");
    /* Who asks for an engine and nothing else is told at once. */
    assert_int_equal(ocr_queue_wait_ready(f->queue, 30000, &err), -EIO);
    assert_string_equal(err.text, "no server answers");
    join(f, "t1", OCR_PRIORITY_INTERACTIVE, &w);
    until(&w.done, 1);
    assert_int_equal(w.kind, OCR_KIND_NONE);
    assert_string_equal(w.text, "text of t1");
    assert_true(counted(f->folder, "away") > AWAY_STARTS);
}

static void no_engine_fails_what_waits_with_a_reason(void **state)
{
    struct fixture *f = *state;
    struct ocr_err err = OCR_ERR_INIT;
    struct wait w;

    open_queue(f, "cannot-load");
    join(f, "t1", OCR_PRIORITY_INTERACTIVE, &w);
    until(&w.done, 1);
    assert_int_equal(w.kind, OCR_KIND_GONE);
    assert_string_equal(w.text, "the language xyz is not installed");
    assert_int_equal(counted(f->folder, "reads"), 0);
    ocr_queue_close(f->queue);
    open_queue(f, "refuses");
    assert_int_equal(ocr_queue_connect(f->queue, 5000, &err), -EIO);
    assert_non_null(strstr(err.text, "did not start"));
}

static void connect_waits_for_hello_and_no_longer(void **state)
{
    struct fixture *f = *state;
    struct ocr_err err = OCR_ERR_INIT;

    open_queue(f, "silent");
    assert_int_equal(ocr_queue_connect(f->queue, 200, &err), -ETIMEDOUT);
    ocr_queue_close(f->queue);
    open_queue(f, "plain");
    assert_int_equal(ocr_queue_connect(f->queue, 5000, NULL), 0);
}

static void bytes_beyond_the_budget_are_loaded_again(void **state)
{
    enum {
        PAGES = 300
    };
    struct fixture *f = *state;
    static struct wait waits[PAGES];
    static struct wait held[CAPACITY];
    struct ocr_queue_stats stats;

    open_queue(f, "plain");
    for (int i = 0; i < CAPACITY; i++) {
        char image[8];

        snprintf(image, sizeof image, "h%d", i);
        join(f, image, OCR_PRIORITY_INTERACTIVE, &held[i]);
    }
    until_counted(f, "reads", CAPACITY);
    for (int i = 0; i < PAGES; i++) {
        char image[8];

        snprintf(image, sizeof image, "t%d", i);
        join(f, image, OCR_PRIORITY_INTERACTIVE, &waits[i]);
    }
    ocr_queue_stats(f->queue, &stats);
    assert_int_equal(stats.waiting[OCR_PRIORITY_INTERACTIVE], PAGES);
    assert_int_equal(stats.running, CAPACITY);
    for (int i = 0; i < CAPACITY; i++)
        ocr_queue_leave(f->queue, &held[i].waiter);
    for (int i = 0; i < PAGES; i++) {
        char text[32];

        until(&waits[i].done, 1);
        snprintf(text, sizeof text, "text of t%d", i);
        assert_string_equal(waits[i].text, text);
    }
    assert_int_equal(atomic_load(&f->reloads), PAGES - 128);
    ocr_queue_stats(f->queue, &stats);
    assert_true(stats.bytes_kept == 0 && stats.waiters == 0);
}

static void stopping_answers_everybody(void **state)
{
    struct fixture *f = *state;
    static struct wait waits[20];
    const struct ocr_job_key key = key_of("t-late");
    struct ocr_content late = content_of("t-late");

    open_queue(f, "plain");
    for (int i = 0; i < 20; i++) {
        char image[8];

        snprintf(image, sizeof image, "h%d", i);
        join(f, image, OCR_PRIORITY_INTERACTIVE, &waits[i]);
    }
    ocr_queue_stop(f->queue);
    for (int i = 0; i < 20; i++) {
        until(&waits[i].done, 1);
        assert_int_equal(waits[i].kind, OCR_KIND_STOPPING);
    }
    assert_int_equal(ocr_queue_join(f->queue, &key, &late, secret,
                                    OCR_PRIORITY_INTERACTIVE, "t-late", NULL,
                                    NULL),
                     -ESHUTDOWN);
    ocr_content_release(&late);
}

static void *join_and_leave(void *arg)
{
    struct fixture *f = arg;

    for (int i = 0; i < 200; i++) {
        struct wait w;
        char image[16];

        snprintf(image, sizeof image, "t%d", rand() % 10);
        join(f, image, OCR_PRIORITY_INTERACTIVE, &w);
        if (i & 1 && ocr_queue_leave(f->queue, &w.waiter))
            continue;
        until(&w.done, 1);
        assert_int_equal(w.kind, OCR_KIND_NONE);
    }
    return NULL;
}

static void many_threads_join_and_leave(void **state)
{
    struct fixture *f = *state;
    pthread_t threads[8];

    open_queue(f, "plain");
    for (int i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, join_and_leave, f),
                         0);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(texts_errors_and_big_texts_come_back),
        TEST(fifty_waiters_cost_one_read),
        TEST(interactive_goes_before_readahead_before_background),
        TEST(while_paused_nothing_goes_to_the_engine),
        TEST(a_paused_queue_starts_no_engine),
        TEST(a_job_nobody_waits_for_is_dropped_unless_it_started),
        TEST(only_the_page_that_crashes_the_engine_fails),
        TEST(an_engine_killed_five_times_fails_nobody),
        TEST(no_engine_fails_what_waits_with_a_reason),
        TEST(connect_waits_for_hello_and_no_longer),
        TEST(bytes_beyond_the_budget_are_loaded_again),
        TEST(a_server_that_comes_late_is_waited_for),
        TEST(stopping_answers_everybody),
        TEST(many_threads_join_and_leave),
    };

    if (argc > 1)
        return engine(argc, argv);
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

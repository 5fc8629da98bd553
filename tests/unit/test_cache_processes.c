/* Several threads and processes on one cache, and kill -9. */
#include "tests/unit/cache_help.h"

#include <signal.h>
#include <sys/wait.h>

static void expect_sound(void)
{
    assert_int_equal(help_ask("SELECT count(*) FROM pragma_integrity_check"
                              " WHERE integrity_check <> 'ok'"),
                     0);
}

/* ---- processes ------------------------------------------------------------
 */

enum {
    PROCESSES = 3,
    EACH = 150
};

/* Stores texts of its own, reads everybody's; says which were stored. */
static void work(unsigned self, int out)
{
    struct ocr_cache *c = help_open();
    uint8_t stored[EACH];

    for (unsigned i = 0; i < EACH; i++) {
        const int code = help_put(c, self * EACH + i);

        stored[i] = code == 0;
        if (code && code != -EBUSY)
            _exit(1);
        if (stored[i] && !help_has(c, self * EACH + i))
            _exit(2);
        help_has(c, i * PROCESSES % (PROCESSES * EACH));
    }
    ocr_cache_close(c);
    _exit(write(out, stored, sizeof stored) == sizeof stored ? 0 : 3);
}

static void processes_share_one_cache(void **state)
{
    int pipes[PROCESSES][2], status;
    pid_t child[PROCESSES];
    uint8_t stored[EACH];
    struct ocr_cache *c;
    int count = 0;

    (void)state;
    for (unsigned p = 0; p < PROCESSES; p++) {
        assert_int_equal(pipe(pipes[p]), 0);
        child[p] = fork();
        if (child[p] == 0)
            work(p, pipes[p][1]);
        close(pipes[p][1]);
    }
    for (unsigned p = 0; p < PROCESSES; p++) {
        assert_int_equal(waitpid(child[p], &status, 0), child[p]);
        assert_int_equal(status, 0);
    }
    c = help_open();
    for (unsigned p = 0; p < PROCESSES; p++) {
        assert_int_equal(read(pipes[p][0], stored, sizeof stored),
                         sizeof stored);
        for (unsigned i = 0; i < EACH; i++) {
            assert_int_equal(help_has(c, p * EACH + i), stored[i]);
            count += stored[i];
        }
        close(pipes[p][0]);
    }
    assert_true(count > 0);
    ocr_cache_close(c);
    expect_sound();
}

static void another_process_sees_a_text_at_once(void **state)
{
    struct ocr_cache *one = help_open(), *two = help_open();
    const struct ocr_file_id file = help_file(1);
    const uint8_t stored[16] = {9};
    uint8_t digest[16];

    (void)state;
    assert_memory_equal(ocr_cache_secret(one), ocr_cache_secret(two),
                        OCR_CACHE_SECRET_BYTES);
    for (unsigned i = 0; i < 20; i++) {
        assert_false(help_has(two, i));
        assert_int_equal(help_put(one, i), 0);
        assert_true(help_has(two, i));
    }
    assert_int_equal(ocr_cache_remember(one, &file, stored, 0, NULL), 0);
    assert_int_not_equal(ocr_cache_identify(two, &file, digest),
                         OCR_IDENTITY_NONE);
    assert_memory_equal(digest, stored, sizeof stored);
    assert_int_equal(ocr_cache_clear(one, NULL), 0);
    assert_false(help_has(two, 1));
    ocr_cache_close(one);
    ocr_cache_close(two);
}

/* Somebody holds the database for writing: reads go on, a put gives up. */
static void a_busy_database_is_not_waited_for(void **state)
{
    struct ocr_cache *c = help_open();
    struct ocr_err err = OCR_ERR_INIT;
    const struct ocr_cache_key key = help_key(2);
    sqlite3 *db;

    (void)state;
    assert_int_equal(help_put(c, 1), 0);
    assert_int_equal(sqlite3_open(help_db(), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL),
                     SQLITE_OK);
    assert_int_equal(ocr_cache_put(c, &key, &tesseract1, "x", 1, &err), -EBUSY);
    assert_non_null(strstr(err.text, "keep a text"));
    assert_true(help_has(c, 1));
    sqlite3_close(db);
    assert_int_equal(help_put(c, 2), 0);
    ocr_cache_close(c);
}

/* ---- kill -9 ----------------------------------------------------------------
 */

static void put_for_ever(int out)
{
    struct ocr_cache *c = help_open();
    unsigned n = 0;

    while (help_has(c, n))
        n++;
    for (;; n++) {
        const struct ocr_file_id file = help_file(n);
        const struct ocr_cache_key key = help_key(n);

        if (ocr_cache_remember(c, &file, key.digest, 0, NULL) ||
            help_put(c, n) || write(out, &n, sizeof n) != sizeof n)
            _exit(1);
    }
}

/* The number of the last text the child said was stored. */
static unsigned kill_while_it_puts(unsigned ms)
{
    unsigned n, last = 0;
    int out[2], status;
    pid_t child;

    assert_int_equal(pipe(out), 0);
    child = fork();
    if (child == 0)
        put_for_ever(out[1]);
    close(out[1]);
    assert_int_equal(read(out[0], &last, sizeof last), sizeof last);
    usleep(ms * 1000);
    kill(child, SIGKILL);
    while (read(out[0], &n, sizeof n) == sizeof n)
        last = n;
    close(out[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    return last;
}

static void a_killed_process_loses_nothing_it_stored(void **state)
{
    uint8_t digest[16];

    (void)state;
    for (unsigned round = 0; round < 8; round++) {
        const unsigned last = kill_while_it_puts(5 + round * 13);
        struct ocr_cache *c = help_open();

        for (unsigned i = 0; i <= last; i++) {
            const struct ocr_file_id file = help_file(i);
            const struct ocr_cache_key key = help_key(i);

            assert_true(help_has(c, i));
            assert_int_not_equal(ocr_cache_identify(c, &file, digest),
                                 OCR_IDENTITY_NONE);
            assert_memory_equal(digest, key.digest, sizeof digest);
        }
        ocr_cache_close(c);
        expect_sound();
    }
    assert_int_equal(help_count(CACHE_FILE ".broken"), 0);
}

/* ---- threads ----------------------------------------------------------------
 */

enum {
    THREADS = 4,
    PER_THREAD = 60
};

struct worker {
    struct ocr_cache *c;
    unsigned self;
    unsigned failed;
};

static void *thread_work(void *arg)
{
    struct worker *w = arg;
    uint8_t digest[16];

    for (unsigned i = 0; i < PER_THREAD; i++) {
        const unsigned n = w->self * PER_THREAD + i;
        const struct ocr_file_id file = help_file(n);
        const struct ocr_cache_key key = help_key(n);
        struct ocr_cache_stat stat;
        struct ocr_cached got;

        w->failed += ocr_cache_remember(w->c, &file, key.digest, 0, NULL) != 0;
        w->failed += help_put(w->c, n) != 0;
        w->failed += !help_has(w->c, n);
        w->failed += ocr_cache_size(w->c, &key, &tesseract1, &got) != 0;
        w->failed +=
            ocr_cache_identify(w->c, &file, digest) == OCR_IDENTITY_NONE;
        if (i % 20 == 0)
            w->failed += ocr_cache_stat(w->c, &stat, NULL) != 0;
        help_has(w->c, (n * 7) % (THREADS * PER_THREAD));
    }
    return NULL;
}

static void run_threads(struct ocr_cache *c)
{
    struct worker worker[THREADS];
    pthread_t thread[THREADS];

    for (unsigned i = 0; i < THREADS; i++) {
        worker[i] = (struct worker){.c = c, .self = i};
        assert_int_equal(
            pthread_create(&thread[i], NULL, thread_work, &worker[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(worker[i].failed, 0);
    }
}

static void threads_share_one_cache(void **state)
{
    struct ocr_cache *c = help_open();

    (void)state;
    run_threads(c);
    ocr_cache_close(c);
    expect_sound();
}

static void threads_share_memory(void **state)
{
    struct ocr_cache *c;

    (void)state;
    assert_int_equal(
        ocr_cache_open(&c, &(struct ocr_cache_options){.dir = "memory"}, NULL),
        0);
    run_threads(c);
    ocr_cache_close(c);
}

struct holder {
    struct ocr_cache *c;
    atomic_bool held, done;
};

/* A commit that does not end before it is told to, or after 20 s. */
static void *hold_the_writer(void *arg)
{
    struct holder *h = arg;
    struct cache_conn *conn = cache_enter(h->c, CACHE_WRITE);

    h->held = true;
    for (int i = 0; i < 20000 && !h->done; i++)
        usleep(1000);
    h->held = false;
    cache_leave(h->c, conn, SQLITE_OK, "wait", NULL);
    return NULL;
}

static void questions_do_not_wait_for_a_commit(void **state)
{
    struct ocr_cache *c = help_open();
    struct holder holder = {.c = c};
    const struct ocr_file_id file = help_file(1);
    const struct ocr_cache_key key = help_key(1);
    struct ocr_cached got;
    uint8_t digest[16];
    pthread_t thread;

    (void)state;
    assert_int_equal(help_put(c, 1), 0);
    assert_int_equal(ocr_cache_remember(c, &file, key.digest, 0, NULL), 0);
    assert_int_equal(pthread_create(&thread, NULL, hold_the_writer, &holder),
                     0);
    while (!holder.held)
        usleep(1000);
    for (int i = 0; i < 300; i++) {
        assert_int_not_equal(ocr_cache_identify(c, &file, digest),
                             OCR_IDENTITY_NONE);
        assert_int_equal(ocr_cache_size(c, &key, &tesseract1, &got), 0);
        assert_true(help_has(c, 1));
    }
    assert_true(holder.held);
    holder.done = true;
    pthread_join(thread, NULL);
    ocr_cache_close(c);
}

#define TEST(f)                                                                \
    cmocka_unit_test_setup_teardown(f, help_make_dir, help_remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(processes_share_one_cache),
        TEST(another_process_sees_a_text_at_once),
        TEST(a_busy_database_is_not_waited_for),
        TEST(a_killed_process_loses_nothing_it_stored),
        TEST(threads_share_one_cache),
        TEST(threads_share_memory),
        TEST(questions_do_not_wait_for_a_commit),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* How much the cache keeps, what goes first, and full disks. */
#include "tests/lib/skip.h"
#include "tests/unit/cache_help.h"

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

static struct ocr_cache *open_with(uint64_t max_bytes, uint64_t keep_free)
{
    const struct ocr_cache_options options = {
        .dir = help_dir, .max_bytes = max_bytes, .keep_free = keep_free};
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_cache *c;

    if (ocr_cache_open(&c, &options, &err))
        fail_msg("%s", err.text);
    return c;
}

static int put_bytes(struct ocr_cache *c, unsigned n, size_t len)
{
    const struct ocr_cache_key key = help_key(n);
    char *text = malloc(len);
    int code;

    memset(text, 'x', len);
    code = ocr_cache_put(c, &key, &tesseract1, text, len, NULL);
    free(text);
    return code;
}

static bool has_text(struct ocr_cache *c, unsigned n)
{
    const struct ocr_cache_key key = help_key(n);
    struct ocr_cached got;
    const int code = ocr_cache_get(c, &key, &tesseract1, &got);

    free(got.text);
    return code == 0;
}

/* Does not count as a use. */
static bool is_stored(struct ocr_cache *c, unsigned n)
{
    const struct ocr_cache_key key = help_key(n);
    struct ocr_cached got;

    assert_int_equal(ocr_cache_size(c, &key, &tesseract1, &got), 0);
    return got.stored;
}

static void the_least_recently_used_go_and_leave_their_sizes(void **state)
{
    struct ocr_cache *c = open_with(4000, 0);
    struct ocr_cache_stat stat;
    struct ocr_cached got;
    struct ocr_cache_key key = help_key(1);

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(put_bytes(c, i, 1000), 0);
    assert_true(has_text(c, 0));
    assert_true(has_text(c, 2));
    assert_int_equal(put_bytes(c, 4, 1500), 0); /* costs 1 and 3 */
    assert_true(is_stored(c, 0));
    assert_false(is_stored(c, 1));
    assert_true(is_stored(c, 2));
    assert_false(is_stored(c, 3));
    assert_true(is_stored(c, 4));
    assert_int_equal(ocr_cache_size(c, &key, &tesseract1, &got), 0);
    assert_int_equal(got.size, 1000);
    assert_int_equal(ocr_cache_get(c, &key, &tesseract1, &got), -ENOENT);
    assert_int_equal(ocr_cache_stat(c, &stat, NULL), 0);
    assert_int_equal(stat.texts, 3);
    assert_int_equal(stat.text_bytes, 3500);
    assert_int_equal(stat.sizes, 5);
    ocr_cache_close(c);
    c = open_with(4000, 0);
    assert_int_equal(ocr_cache_size(c, &key, &tesseract1, &got), 0);
    assert_int_equal(got.size, 1000);
    assert_int_equal(put_bytes(c, 1, 1000), 0); /* costs 0, the oldest use */
    assert_false(is_stored(c, 0));
    assert_true(is_stored(c, 1));
    ocr_cache_close(c);
}

static void uses_are_remembered_over_a_restart(void **state)
{
    struct ocr_cache *c = open_with(3000, 0);

    (void)state;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(put_bytes(c, i, 1000), 0);
    assert_true(has_text(c, 0));
    ocr_cache_close(c);
    c = open_with(3000, 0);
    assert_int_equal(put_bytes(c, 3, 1000), 0);
    assert_true(is_stored(c, 0));
    assert_false(is_stored(c, 1));
    ocr_cache_close(c);
}

static void many_uses_are_written_while_running(void **state)
{
    struct ocr_cache *c = open_with(0, 0);
    int64_t used = 0;
    const int64_t start = ocr_wall_ns();

    (void)state;
    for (unsigned i = 0; i < CACHE_STAMPS_BATCH; i++)
        assert_int_equal(put_bytes(c, i, 10), 0);
    for (unsigned i = 0; i < CACHE_STAMPS_BATCH; i++)
        assert_true(has_text(c, i));
    /* The keeper does it: soon, not at once. */
    for (int tries = 0; used < start && tries < 1000; tries++) {
        used = help_ask("SELECT min(used_ns) FROM results");
        used = used > start && c->keeper.stamps == 0 ? used : 0;
        usleep(10000);
    }
    assert_true(used > start);
    ocr_cache_close(c);
}

static void a_text_above_the_limit_leaves_its_size(void **state)
{
    struct ocr_cache *c = open_with(4000, 0);

    (void)state;
    assert_int_equal(put_bytes(c, 1, 1000), 0);
    assert_int_equal(put_bytes(c, 2, 4001), 0);
    assert_true(is_stored(c, 1));
    assert_false(is_stored(c, 2));
    assert_int_equal(put_bytes(c, 3, 4000), 0);
    assert_false(is_stored(c, 1));
    assert_true(is_stored(c, 3));
    ocr_cache_close(c);
}

static void the_limit_holds_for_all_processes_together(void **state)
{
    struct ocr_cache *one = open_with(10000, 0), *two = open_with(10000, 0);
    struct ocr_cache_stat stat;

    (void)state;
    for (unsigned i = 0; i < 40; i++)
        assert_int_equal(put_bytes(i % 2 ? one : two, i, 1000), 0);
    assert_int_equal(ocr_cache_stat(one, &stat, NULL), 0);
    assert_int_equal(stat.text_bytes, 10000);
    assert_int_equal(stat.sizes, 40);
    for (unsigned i = 30; i < 40; i++)
        assert_true(is_stored(one, i));
    ocr_cache_close(one);
    ocr_cache_close(two);
}

static void replacing_a_text_does_not_count_twice(void **state)
{
    struct ocr_cache *c = open_with(10000, 0);
    struct ocr_cache_stat stat;

    (void)state;
    assert_int_equal(put_bytes(c, 1, 1000), 0);
    for (unsigned i = 0; i < 50; i++)
        assert_int_equal(put_bytes(c, 2, 1000 + i), 0);
    assert_true(is_stored(c, 1));
    assert_int_equal(ocr_cache_stat(c, &stat, NULL), 0);
    assert_int_equal(stat.text_bytes, 2049);
    ocr_cache_close(c);
}

static void a_damaged_total_is_counted_again(void **state)
{
    struct ocr_cache *c = open_with(5000, 0);

    (void)state;
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(put_bytes(c, i, 1000), 0);
    help_sql("UPDATE meta SET value = 5 WHERE name = 'text_bytes'");
    assert_int_equal(put_bytes(c, 5, 1000), 0);
    assert_false(is_stored(c, 0));
    assert_true(is_stored(c, 1));
    ocr_cache_close(c);
}

static void room_on_the_disk_is_kept(void **state)
{
    struct ocr_cache *c = open_with(0, UINT64_MAX / 2);
    struct ocr_cache_stat stat;

    (void)state;
    for (unsigned i = 0; i < 50; i++) {
        assert_int_equal(put_bytes(c, i, 50000), 0);
        assert_true(is_stored(c, i));
    }
    assert_int_equal(ocr_cache_stat(c, &stat, NULL), 0);
    assert_int_equal(stat.texts, 1);
    assert_int_equal(stat.sizes, 50);
    ocr_cache_close(c);
    assert_true(help_ask("PRAGMA page_count") * 4096 < 50 * 50000);
}

static void freed_pages_are_used_again(void **state)
{
    struct ocr_cache *c = open_with(1000000, 0);
    int64_t pages;

    (void)state;
    for (unsigned i = 0; i < 40; i++)
        assert_int_equal(put_bytes(c, i, 50000), 0);
    pages = help_ask("PRAGMA page_count");
    for (unsigned i = 40; i < 200; i++)
        assert_int_equal(put_bytes(c, i, 50000), 0);
    assert_true(help_ask("PRAGMA page_count") < pages + pages / 4);
    ocr_cache_close(c);
    assert_int_equal(help_ask("PRAGMA auto_vacuum"), 2);
}

static void memory_has_a_limit_of_its_own(void **state)
{
    struct ocr_cache *c;
    struct ocr_cache_stat stat;

    (void)state;
    assert_int_equal(
        ocr_cache_open(&c, &(struct ocr_cache_options){.dir = "memory"}, NULL),
        0);
    for (unsigned i = 0; i < 80; i++)
        assert_int_equal(put_bytes(c, i, 1 << 20), 0);
    assert_int_equal(ocr_cache_stat(c, &stat, NULL), 0);
    assert_int_equal(stat.texts, 64);
    ocr_cache_close(c);
}

/* ---- full, read-only --------------------------------------------------------
 */

/* Runs f in a child; what it asserts there ends it with 1. */
static void in_a_child(void (*f)(void))
{
    const pid_t child = fork();
    int status;

    assert_true(child >= 0);
    if (child == 0) {
        f();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        SKIP("needs a mount of its own");
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void check(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "# not so: %s\n", what);
    _exit(1);
}

/* Puts until it fails; then what is there is still served. Returns how many
 * were stored. */
static unsigned fill(struct ocr_cache *c)
{
    struct ocr_err err = OCR_ERR_INIT;
    unsigned n = 0;
    char text[8192];
    int code = 0;

    for (; n < 100000; n++) {
        const struct ocr_cache_key key = help_key(n);
        const size_t len = help_text(text, sizeof text, n);

        code = ocr_cache_put(c, &key, &tesseract1, text, len, &err);
        if (code)
            break;
    }
    /* SQLite does not always keep the reason. */
    check(code == -EFBIG || code == -EIO || code == -ENOSPC, strerror(-code));
    check(strstr(err.text, help_dir) != NULL, err.text);
    for (unsigned i = 0; i < n; i++)
        check(help_has(c, i), "a text is lost");
    check(!help_has(c, n), "a text is there that was not stored");
    return n;
}

static void with_small_files(void)
{
    const struct rlimit limit = {2 << 20, 2 << 20};
    struct ocr_cache *c = open_with(0, 0);
    unsigned stored;

    signal(SIGXFSZ, SIG_IGN);
    check(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
    stored = fill(c);
    check(stored > 50, "less than 50 texts fit");
    ocr_cache_close(c);
    c = open_with(0, 0);
    check(help_has(c, stored - 1), "the last text is lost");
    ocr_cache_close(c);
}

static void a_file_that_cannot_grow_costs_no_text(void **state)
{
    (void)state;
    in_a_child(with_small_files);
    assert_int_equal(help_ask("SELECT count(*) FROM pragma_integrity_check"
                              " WHERE integrity_check <> 'ok'"),
                     0);
}

/* A file system of its own on help_dir that only this process sees. */
static void mount_tmpfs(const char *options)
{
    if (unshare(CLONE_NEWNS) ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", help_dir, "tmpfs", 0, options))
        _exit(77);
}

static void on_a_full_disk(void)
{
    struct ocr_cache *c;
    unsigned stored;
    char junk[1 << 16] = {1}, path[128];
    int fd, code;

    mount_tmpfs("size=8m,mode=700");
    c = open_with(0, 1);
    snprintf(path, sizeof path, "%s/others", help_dir);
    fd = open(path, O_WRONLY | O_CREAT, 0600);
    for (unsigned i = 0; i < 20; i++)
        check(help_put(c, i) == 0, "cannot put on an empty disk");
    while (write(fd, junk, sizeof junk) > 0)
        ;
    stored = 0;
    for (unsigned i = 20; i < 3000; i++) {
        code = help_put(c, i);
        check(code == 0 || code == -ENOSPC, strerror(-code));
        stored += code == 0;
    }
    check(stored < 2980, "a full disk took all");
    for (unsigned i = 0; i < 3000; i++)
        help_has(c, i); /* never a wrong one */
    check(ftruncate(fd, 0) == 0, "truncate");
    check(help_put(c, 5000) == 0 && help_has(c, 5000),
          "it does not go on when there is room");
    ocr_cache_close(c);
    close(fd);
    check(help_ask("SELECT count(*) FROM pragma_integrity_check"
                   " WHERE integrity_check <> 'ok'") == 0,
          "integrity_check");
}

static void a_full_disk_costs_caching_not_reading(void **state)
{
    (void)state;
    in_a_child(on_a_full_disk);
}

static void on_a_small_disk(void)
{
    struct ocr_cache *c;

    mount_tmpfs("size=24m,mode=700");
    c = open_with(0, 0); /* keeps a quarter free */
    for (unsigned i = 0; i < 9000; i++) {
        int rc = help_put(c, i);

        /* The keeper may be behind on a busy machine, but it gets there. */
        for (int tries = 0; rc && tries < 1000; tries++) {
            usleep(10000);
            rc = help_put(c, i);
        }
        check(rc == 0, "the disk is full of the cache");
    }
    check(help_has(c, 8999), "the newest went");
    check(!help_has(c, 10), "the oldest did not go");
    ocr_cache_close(c);
}

static void a_small_disk_is_not_filled(void **state)
{
    (void)state;
    in_a_child(on_a_small_disk);
}

static void on_a_full_disk_at_open(void)
{
    const struct ocr_cache_options options = {.dir = help_dir};
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_cache *c;
    char junk[4096] = {1}, path[128];
    int fd;

    mount_tmpfs("size=64k,mode=700");
    snprintf(path, sizeof path, "%s/others", help_dir);
    fd = open(path, O_WRONLY | O_CREAT, 0600);
    while (write(fd, junk, sizeof junk) > 0)
        ;
    check(ocr_cache_open(&c, &options, &err) == -ENOSPC, err.text);
    check(strstr(err.text, help_dir) != NULL, err.text);
}

static void a_full_disk_at_open_is_an_error_with_a_name(void **state)
{
    (void)state;
    in_a_child(on_a_full_disk_at_open);
}

static void on_a_disk_turned_read_only(void)
{
    struct ocr_cache *c;
    struct ocr_err err = OCR_ERR_INIT;
    const struct ocr_cache_key key = help_key(100);

    mount_tmpfs("size=8m,mode=700");
    c = open_with(0, 0);
    check(help_put(c, 1) == 0, "put");
    ocr_cache_close(c);
    check(mount("none", help_dir, NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0,
          "remount");
    check(ocr_cache_open(&c, &(struct ocr_cache_options){.dir = help_dir},
                         &err) == -EROFS,
          err.text);
    check(mount("none", help_dir, NULL, MS_REMOUNT, NULL) == 0, "remount");
    c = open_with(0, 0);
    check(help_has(c, 1), "the text is gone");
    /* As a disk with errors is: writing fails, reading goes on. */
    sqlite3_exec(c->conn[CACHE_WRITE].db, "PRAGMA query_only=1", NULL, NULL,
                 NULL);
    check(ocr_cache_put(c, &key, &tesseract1, "text", 4, &err) == -EROFS,
          err.text);
    check(help_has(c, 1), "the text is gone");
    ocr_cache_close(c);
}

static void a_read_only_disk_is_told_by_its_name(void **state)
{
    (void)state;
    in_a_child(on_a_disk_turned_read_only);
}

#define TEST(f)                                                                \
    cmocka_unit_test_setup_teardown(f, help_make_dir, help_remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_least_recently_used_go_and_leave_their_sizes),
        TEST(uses_are_remembered_over_a_restart),
        TEST(many_uses_are_written_while_running),
        TEST(a_text_above_the_limit_leaves_its_size),
        TEST(the_limit_holds_for_all_processes_together),
        TEST(replacing_a_text_does_not_count_twice),
        TEST(a_damaged_total_is_counted_again),
        TEST(room_on_the_disk_is_kept),
        TEST(freed_pages_are_used_again),
        TEST(memory_has_a_limit_of_its_own),
        TEST(a_file_that_cannot_grow_costs_no_text),
        TEST(a_full_disk_costs_caching_not_reading),
        TEST(a_small_disk_is_not_filled),
        TEST(a_full_disk_at_open_is_an_error_with_a_name),
        TEST(a_read_only_disk_is_told_by_its_name),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Whatever happens to the database, no wrong text comes out of it. */
#include "tests/unit/cache_help.h"

#include <sys/file.h>
#include <sys/wait.h>

enum {
    TEXTS = 60
};

static const uint8_t digest1[16] = {1, 2, 3};

/* A closed database with texts 0 to TEXTS - 1 and file 1. */
static void make_database(void)
{
    struct ocr_cache *c = help_open();
    const struct ocr_file_id file = help_file(1);

    for (unsigned i = 0; i < TEXTS; i++)
        assert_int_equal(help_put(c, i), 0);
    assert_int_equal(ocr_cache_remember(c, &file, digest1, 0, NULL), 0);
    ocr_cache_close(c);
}

static void write_file(const void *bytes, size_t len, off_t at, int flags)
{
    const int fd = open(help_db(), O_WRONLY | O_CREAT | flags, 0600);

    assert_true(fd >= 0);
    assert_int_equal(ocr_pwrite_full(fd, bytes, len, at), 0);
    close(fd);
}

static int count_texts(struct ocr_cache *c)
{
    int there = 0;

    for (unsigned i = 0; i < TEXTS; i++)
        there += help_has(c, i);
    return there;
}

/* ---- rows -----------------------------------------------------------------
 */

/* Runs `sql` on an open cache: then at least `lost` texts are gone, none is
 * wrong, the others stay, and the gone can be stored again. */
static void damage_rows(const char *text, int lost)
{
    struct ocr_cache *c = help_open();
    struct ocr_cache_stat stat;

    help_sql(text);
    assert_int_equal(count_texts(c), TEXTS - lost);
    assert_int_equal(ocr_cache_stat(c, &stat, NULL), 0);
    assert_int_equal(stat.bad_rows, lost);
    assert_int_equal(stat.texts, TEXTS - lost);
    for (unsigned i = 0; i < TEXTS; i++)
        if (!help_has(c, i))
            assert_int_equal(help_put(c, i), 0);
    assert_int_equal(count_texts(c), TEXTS);
    ocr_cache_close(c);
    assert_int_equal(help_ask("SELECT count(*) FROM results"), TEXTS);
    assert_int_equal(help_count(CACHE_FILE ".broken"), 0);
}

static void a_damaged_text_is_a_miss_and_goes(void **state)
{
    (void)state;
    make_database();
    damage_rows("UPDATE contents SET text = replace(text, 'b', 'x')"
                " WHERE id = 2",
                1);
    damage_rows("UPDATE contents SET text = substr(text, 2) WHERE id = 3", 1);
    damage_rows("UPDATE contents SET sum = sum + 1 WHERE id = 4", 1);
    damage_rows("DELETE FROM contents WHERE id = 5", 1);
}

static void texts_that_changed_places_are_misses(void **state)
{
    (void)state;
    make_database();
    damage_rows("UPDATE contents SET id = -1 WHERE id = 7;"
                "UPDATE contents SET id = 7 WHERE id = 8;"
                "UPDATE contents SET id = 8 WHERE id = -1",
                2);
}

static void any_damaged_field_of_a_result_is_a_miss(void **state)
{
    static const char *const fields[] = {
        "kind = 3",           "size = size + 1", "made_ns = made_ns - 1",
        "redone_ns = 5",      "used_ns = 12",    "text = text + 1",
        "sentence = 'other'", "sum = sum + 1",   "size = 'much'",
        "text = 0",
    };
    char text[128];

    (void)state;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        struct ocr_cache *c;
        struct ocr_cached got;
        const struct ocr_cache_key key = help_key(9);

        make_database();
        snprintf(text, sizeof text, "UPDATE results SET %s WHERE text = 10",
                 fields[i]);
        c = help_open();
        help_sql(text);
        assert_int_equal(ocr_cache_size(c, &key, &tesseract1, &got), -ENOENT);
        assert_false(help_has(c, 9));
        assert_true(c->bad_rows == 1);
        ocr_cache_close(c);
        unlink(help_db());
    }
}

static void a_damaged_maker_costs_its_texts(void **state)
{
    struct ocr_cache *c;

    (void)state;
    make_database();
    c = help_open();
    help_sql("UPDATE makers SET settings = 'lang=deu'");
    assert_int_equal(count_texts(c), 0);
    assert_int_equal(help_put(c, 1), 0);
    assert_int_equal(count_texts(c), 1);
    ocr_cache_close(c);
}

static void a_damaged_file_row_is_unknown(void **state)
{
    static const char *const fields[] = {
        "ctime_ns = ctime_ns + 1", "racy = NOT racy", "digest = x'01'",
        "digest = zeroblob(16)",   "sum = 0",
    };
    const struct ocr_file_id file = help_file(1);
    uint8_t digest[16];
    char text[128];

    (void)state;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        struct ocr_cache *c = help_open();

        assert_int_equal(ocr_cache_remember(c, &file, digest1, 0, NULL), 0);
        snprintf(text, sizeof text, "UPDATE files SET %s", fields[i]);
        help_sql(text);
        assert_int_equal(ocr_cache_identify(c, &file, digest),
                         OCR_IDENTITY_NONE);
        assert_true(c->bad_rows == 1);
        ocr_cache_close(c);
        assert_int_equal(help_ask("SELECT count(*) FROM files"), 0);
    }
}

static void verify_finds_and_removes_damaged_rows(void **state)
{
    struct ocr_cache *c;
    uint64_t rows, bad;

    (void)state;
    make_database();
    c = help_open();
    assert_int_equal(ocr_cache_verify(c, &rows, &bad, NULL), 0);
    assert_int_equal(rows, TEXTS + 2); /* and a file, and a maker */
    assert_int_equal(bad, 0);
    help_sql("UPDATE results SET size = 1 WHERE text = 5;"
             "UPDATE results SET digest = x'00' WHERE text = 6;"
             "UPDATE results SET owner = 'root' WHERE text = 7;"
             "UPDATE contents SET text = 'wrong' WHERE id = 8;"
             "UPDATE contents SET id = 1000 WHERE id = 9;"
             "UPDATE files SET mtime_ns = 0");
    assert_int_equal(ocr_cache_verify(c, &rows, &bad, NULL), 0);
    assert_int_equal(bad, 6);
    assert_int_equal(ocr_cache_verify(c, &rows, &bad, NULL), 0);
    assert_int_equal(rows, TEXTS + 2 - 6);
    assert_int_equal(bad, 0);
    assert_int_equal(count_texts(c), TEXTS - 5);
    ocr_cache_close(c);
    assert_int_equal(help_ask("SELECT count(*) FROM contents"), TEXTS - 5);
}

/* ---- the whole database ---------------------------------------------------
 */

static void open_and_close(void *arg)
{
    (void)arg;
    ocr_cache_close(help_open());
}

static void open_into(void *arg)
{
    *(struct ocr_cache **)arg = help_open();
}

/* The database in the folder is damaged: it is moved aside, said once, a new
 * one works and has a secret of its own. */
static void expect_begun_anew(const uint8_t *old_secret)
{
    char said[1024];
    struct ocr_cache *c;

    help_stderr(said, sizeof said, open_and_close, NULL);
    assert_int_equal(help_times(said, "moved aside"), 1);
    assert_int_equal(help_times(said, "\n"), 1);
    assert_int_equal(help_count(CACHE_FILE ".broken"), 1);
    help_stderr(said, sizeof said, open_and_close, NULL);
    assert_string_equal(said, "");
    c = help_open();
    assert_string_equal(ocr_cache_path(c), help_dir);
    assert_memory_not_equal(ocr_cache_secret(c), old_secret,
                            OCR_CACHE_SECRET_BYTES);
    assert_int_equal(count_texts(c), 0);
    assert_int_equal(help_put(c, 1), 0);
    assert_true(help_has(c, 1));
    ocr_cache_close(c);
}

static void read_secret(uint8_t *secret)
{
    struct ocr_cache *c = help_open();

    memcpy(secret, ocr_cache_secret(c), OCR_CACHE_SECRET_BYTES);
    ocr_cache_close(c);
}

static void garbage_is_moved_aside(void **state)
{
    uint8_t secret[OCR_CACHE_SECRET_BYTES] = {0};
    char garbage[10000];

    (void)state;
    memset(garbage, 'g', sizeof garbage);
    write_file(garbage, sizeof garbage, 0, O_TRUNC);
    expect_begun_anew(secret);
}

static void a_few_bytes_are_moved_aside(void **state)
{
    uint8_t secret[OCR_CACHE_SECRET_BYTES] = {0};

    (void)state;
    write_file("SQLite format 3", 16, 0, O_TRUNC);
    expect_begun_anew(secret);
}

static void a_truncated_database_is_moved_aside(void **state)
{
    uint8_t secret[OCR_CACHE_SECRET_BYTES];
    struct stat st;

    (void)state;
    make_database();
    read_secret(secret);
    assert_int_equal(stat(help_db(), &st), 0);
    assert_int_equal(truncate(help_db(), st.st_size / 2 / 4096 * 4096), 0);
    expect_begun_anew(secret);
}

static void a_lost_header_is_moved_aside(void **state)
{
    uint8_t secret[OCR_CACHE_SECRET_BYTES];
    static const char zeros[100];

    (void)state;
    make_database();
    read_secret(secret);
    write_file(zeros, sizeof zeros, 0, 0);
    expect_begun_anew(secret);
}

static void a_damaged_secret_is_moved_aside(void **state)
{
    uint8_t secret[OCR_CACHE_SECRET_BYTES];

    (void)state;
    make_database();
    read_secret(secret);
    help_sql("UPDATE meta SET value = zeroblob(192) WHERE name = 'secret'");
    expect_begun_anew(secret);
}

static void a_lost_table_is_moved_aside(void **state)
{
    uint8_t secret[OCR_CACHE_SECRET_BYTES];

    (void)state;
    make_database();
    read_secret(secret);
    help_sql("DROP TABLE contents");
    expect_begun_anew(secret);
}

static void an_empty_file_is_a_new_cache(void **state)
{
    char said[256];
    struct ocr_cache *c;

    (void)state;
    write_file("", 0, 0, O_TRUNC);
    help_stderr(said, sizeof said, open_and_close, NULL);
    assert_string_equal(said, "");
    c = help_open();
    assert_int_equal(help_put(c, 1), 0);
    assert_true(help_has(c, 1));
    ocr_cache_close(c);
}

static void a_newer_format_is_left_alone(void **state)
{
    const struct ocr_cache_options options = {.dir = help_dir};
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_cache *c;

    (void)state;
    make_database();
    help_sql("PRAGMA user_version = 99");
    assert_int_equal(ocr_cache_open(&c, &options, &err), -ENOTSUP);
    assert_non_null(strstr(err.text, "newer ocrfs"));
    assert_int_equal(help_count(CACHE_FILE ".broken"), 0);
    help_sql("PRAGMA user_version = 1");
    c = help_open();
    assert_int_equal(count_texts(c), TEXTS);
    ocr_cache_close(c);
}

static void only_the_last_damaged_database_is_kept(void **state)
{
    char said[1024];

    (void)state;
    for (int i = 0; i < 3; i++) {
        write_file("garbage garbage garbage", 24, 0, O_TRUNC);
        help_stderr(said, sizeof said, open_and_close, NULL);
        assert_int_equal(help_times(said, "moved aside"), 1);
    }
    assert_int_equal(help_count(CACHE_FILE ".broken"), 1);
}

/* ---- with others on it ----------------------------------------------------
 */

/* Overwrites all pages of `table` and its index in the closed or open file.
 * In a process of its own: closing the file would drop SQLite's locks. */
static void ruin_file(void)
{
    const pid_t child = fork();
    int status;

    if (child == 0) {
        char junk[4096];
        struct stat st;
        const int fd = open(help_db(), O_WRONLY);

        memset(junk, 0x55, sizeof junk);
        if (fd < 0 || fstat(fd, &st))
            _exit(1);
        for (off_t at = 4096; at < st.st_size; at += 4096)
            if (ocr_pwrite_full(fd, junk, sizeof junk, at))
                _exit(1);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

struct use {
    struct ocr_cache *c;
    int texts, stored;
};

static void use_it(void *arg)
{
    struct use *use = arg;

    for (int round = 0; round < 3; round++) {
        use->texts = count_texts(use->c);
        use->stored = 0;
        for (unsigned i = 0; i < 10; i++)
            use->stored += help_put(use->c, 1000 + i) == 0;
    }
}

/* A cache that is open and has nothing of its pages in memory. */
static struct ocr_cache *open_cold(void)
{
    struct ocr_cache *c = help_open();

    for (int i = 0; i < CACHE_ROLES; i++)
        sqlite3_db_release_memory(c->conn[i].db);
    return c;
}

static void damage_in_use_is_healed_when_alone(void **state)
{
    uint8_t secret[OCR_CACHE_SECRET_BYTES];
    struct use use;
    char said[2048];

    (void)state;
    make_database();
    use.c = open_cold();
    memcpy(secret, ocr_cache_secret(use.c), sizeof secret);
    ruin_file();
    help_stderr(said, sizeof said, use_it, &use);
    assert_int_equal(help_times(said, "moved aside"), 1);
    assert_int_equal(help_times(said, "\n"), 1);
    assert_int_equal(use.texts, 0);
    assert_int_equal(use.stored, 10);
    assert_memory_equal(ocr_cache_secret(use.c), secret, sizeof secret);
    assert_string_equal(ocr_cache_path(use.c), help_dir);
    ocr_cache_close(use.c);
    use.c = help_open();
    assert_true(help_has(use.c, 1005));
    assert_memory_equal(ocr_cache_secret(use.c), secret, sizeof secret);
    ocr_cache_close(use.c);
    assert_int_equal(help_count(CACHE_FILE ".broken"), 1);
}

static void damage_in_use_by_two_stops_caching_on_disk(void **state)
{
    struct use one, two;
    char said[2048];

    (void)state;
    make_database();
    one.c = open_cold();
    two.c = open_cold();
    ruin_file();
    help_stderr(said, sizeof said, use_it, &one);
    assert_int_equal(help_times(said, "in memory only"), 1);
    assert_int_equal(help_times(said, "\n"), 1);
    assert_string_equal(ocr_cache_path(one.c), "memory");
    assert_int_equal(one.texts, 0);
    assert_int_equal(one.stored, 10);
    assert_true(help_has(one.c, 1003));
    assert_int_equal(help_count(CACHE_FILE ".broken"), 0);
    /* The first one let go of it: the second is alone. */
    help_stderr(said, sizeof said, use_it, &two);
    assert_int_equal(help_times(said, "moved aside"), 1);
    assert_int_equal(help_times(said, "\n"), 1);
    assert_string_equal(ocr_cache_path(two.c), help_dir);
    assert_int_equal(two.stored, 10);
    assert_true(help_has(one.c, 1003));
    ocr_cache_close(one.c);
    ocr_cache_close(two.c);
}

static void *use_long(void *arg)
{
    struct ocr_cache *c = arg;

    for (unsigned i = 0; i < 400; i++) {
        help_has(c, i % TEXTS);
        help_put(c, (i * 7) % TEXTS);
    }
    return NULL;
}

static void use_while_ruined(void *arg)
{
    pthread_t thread[3];

    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, use_long, arg), 0);
    ruin_file();
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
}

static void threads_go_on_while_damage_is_healed(void **state)
{
    struct ocr_cache *c;
    char said[4096];

    (void)state;
    make_database();
    c = open_cold();
    help_stderr(said, sizeof said, use_while_ruined, c);
    assert_true(help_times(said, "moved aside") <= 1);
    assert_int_equal(help_put(c, 3), 0);
    assert_true(help_has(c, 3));
    ocr_cache_close(c);
}

static void damage_at_open_with_another_on_it_means_memory(void **state)
{
    const char zeros[100] = {0};
    struct ocr_cache *c, *other;
    char said[1024], path[128];
    int lock;

    (void)state;
    write_file(zeros, sizeof zeros, 0, O_TRUNC);
    snprintf(path, sizeof path, "%s/lock", help_dir);
    lock = open(path, O_RDWR | O_CREAT, 0600);
    assert_int_equal(flock(lock, LOCK_SH), 0);
    help_stderr(said, sizeof said, open_and_close, NULL);
    assert_int_equal(help_times(said, "in memory only"), 1);
    assert_int_equal(help_times(said, "\n"), 1);
    assert_int_equal(help_count(CACHE_FILE ".broken"), 0);
    help_stderr(said, sizeof said, open_into, &c);
    assert_string_equal(ocr_cache_path(c), "memory");
    close(lock);
    help_stderr(said, sizeof said, open_into, &other);
    assert_string_equal(ocr_cache_path(other), help_dir);
    ocr_cache_close(c);
    ocr_cache_close(other);
}

/* Several processes open a damaged database at once: one moves it aside, all
 * work, and all that were told a text is on disk find it there. */
static void many_open_a_damaged_database_at_once(void **state)
{
    enum {
        PROCESSES = 4
    };
    pid_t child[PROCESSES];
    char garbage[5000];
    struct ocr_cache *c;
    int status, on_disk = 0;

    (void)state;
    memset(garbage, 'g', sizeof garbage);
    write_file(garbage, sizeof garbage, 0, O_TRUNC);
    for (unsigned i = 0; i < PROCESSES; i++) {
        child[i] = fork();
        if (child[i])
            continue;
        help_stderr(garbage, sizeof garbage, open_into, &c);
        status = help_put(c, i) || !help_has(c, i) ? 2 : 0;
        if (!status && strcmp(ocr_cache_path(c), "memory") == 0)
            status = 1;
        ocr_cache_close(c);
        _exit(status);
    }
    c = NULL;
    for (unsigned i = 0; i < PROCESSES; i++) {
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
        child[i] = WEXITSTATUS(status) == 0;
        on_disk += child[i];
    }
    c = help_open();
    for (unsigned i = 0; i < PROCESSES; i++)
        assert_int_equal(help_has(c, i), child[i]);
    ocr_cache_close(c);
    assert_true(on_disk >= 1);
}

/* ---- any byte -------------------------------------------------------------
 */

static char *read_file(size_t *len)
{
    const int fd = open(help_db(), O_RDONLY);
    struct stat st;
    char *bytes;

    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    *len = (size_t)st.st_size;
    bytes = malloc(*len);
    assert_int_equal(ocr_pread_full(fd, bytes, *len, 0), st.st_size);
    close(fd);
    return bytes;
}

static void use_damaged(void *arg)
{
    const struct ocr_cache_options options = {.dir = help_dir};
    const struct ocr_file_id file = help_file(1);
    uint8_t digest[16];
    struct ocr_cache *c;
    int *texts = arg;

    *texts = -1;
    if (ocr_cache_open(&c, &options, NULL)) /* a version of the future */
        return;
    *texts = count_texts(c); /* fails on a wrong text */
    if (ocr_cache_identify(c, &file, digest) != OCR_IDENTITY_NONE)
        assert_memory_equal(digest, digest1, sizeof digest);
    for (unsigned i = 0; i < TEXTS; i += 7)
        assert_int_equal(help_put(c, i), 0);
    assert_true(help_has(c, 7));
    ocr_cache_close(c);
}

static void no_flipped_byte_gives_a_wrong_text(void **state)
{
    enum {
        ROUNDS = 400
    };
    char *good, said[4096];
    size_t len;
    int texts, lost_all = 0, lost_none = 0;
    unsigned seed = 12345;

    (void)state;
    make_database();
    good = read_file(&len);
    for (int round = 0; round < ROUNDS; round++) {
        size_t at;
        char byte;

        seed = seed * 1103515245 + 12345;
        /* Every fourth in the first page, where the structure is. */
        at = (seed >> 3) % (round % 4 ? len : 4096);
        byte = (char)(good[at] ^ (1 << (seed >> 28 & 7)));
        write_file(good, len, 0, O_TRUNC);
        write_file(&byte, 1, (off_t)at, 0);
        help_stderr(said, sizeof said, use_damaged, &texts);
        lost_all += texts <= 0;
        lost_none += texts == TEXTS;
    }
    print_message("# of %d: %d harmless, %d cost all texts\n", ROUNDS,
                  lost_none, lost_all);
    assert_true(lost_none < ROUNDS && lost_all < ROUNDS);
    free(good);
}

#define TEST(f)                                                                \
    cmocka_unit_test_setup_teardown(f, help_make_dir, help_remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_damaged_text_is_a_miss_and_goes),
        TEST(texts_that_changed_places_are_misses),
        TEST(any_damaged_field_of_a_result_is_a_miss),
        TEST(a_damaged_maker_costs_its_texts),
        TEST(a_damaged_file_row_is_unknown),
        TEST(verify_finds_and_removes_damaged_rows),
        TEST(garbage_is_moved_aside),
        TEST(a_few_bytes_are_moved_aside),
        TEST(a_truncated_database_is_moved_aside),
        TEST(a_lost_header_is_moved_aside),
        TEST(a_damaged_secret_is_moved_aside),
        TEST(a_lost_table_is_moved_aside),
        TEST(an_empty_file_is_a_new_cache),
        TEST(a_newer_format_is_left_alone),
        TEST(only_the_last_damaged_database_is_kept),
        TEST(damage_in_use_is_healed_when_alone),
        TEST(damage_in_use_by_two_stops_caching_on_disk),
        TEST(threads_go_on_while_damage_is_healed),
        TEST(damage_at_open_with_another_on_it_means_memory),
        TEST(many_open_a_damaged_database_at_once),
        TEST(no_flipped_byte_gives_a_wrong_text),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

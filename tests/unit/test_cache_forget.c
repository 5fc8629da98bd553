/* Forgetting: nothing of a text stays in the files, and nothing else goes. */
#include "tests/unit/cache_help.h"

#define MARK "Confidential-7719"

/* Long ones have pages of their own, short ones share them with others. */
static size_t secret_text(char *out, unsigned n)
{
    const size_t lines = 1 + n % 7 * 60;
    size_t len = 0;

    for (size_t i = 0; i < lines; i++)
        len += (size_t)sprintf(out + len, MARK " %u, line %zu\n", n, i);
    return len;
}

static void put_secret(struct ocr_cache *c, unsigned n,
                       const struct ocr_maker *maker)
{
    const struct ocr_cache_key key = help_key(n);
    char text[32768];
    const size_t len = secret_text(text, n);

    assert_int_equal(ocr_cache_put(c, &key, maker, text, len, NULL), 0);
}

/* Times that MARK stands in the files of the folder. */
static unsigned marks(void)
{
    DIR *dir = opendir(help_dir);
    struct dirent *entry;
    unsigned found = 0;

    while ((entry = readdir(dir))) {
        const int fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC);
        struct stat st;
        char *data;

        assert_true(fd >= 0 && fstat(fd, &st) == 0);
        if (S_ISREG(st.st_mode) && st.st_size > 0) {
            data = malloc((size_t)st.st_size);
            assert_int_equal(ocr_pread_full(fd, data, (size_t)st.st_size, 0),
                             st.st_size);
            for (char *at = data;
                 (at = memmem(at, (size_t)(data + st.st_size - at), MARK,
                              sizeof MARK - 1));
                 at++)
                found++;
            free(data);
        }
        close(fd);
    }
    closedir(dir);
    return found;
}

static int forget(struct ocr_cache *c, unsigned first, unsigned count,
                  uint64_t *texts)
{
    uint8_t digest[64][OCR_CACHE_DIGEST_BYTES];
    struct ocr_err err = OCR_ERR_INIT;
    int code;

    for (unsigned i = 0; i < count; i++) {
        const struct ocr_cache_key key = help_key(first + i);

        memcpy(digest[i], key.digest, sizeof digest[i]);
    }
    code =
        ocr_cache_forget(c, (const uint8_t(*)[16])digest, count, texts, &err);
    if (code && code != -EBUSY)
        fail_msg("%s", err.text);
    return code;
}

static void nothing_of_a_text_is_left(void **state)
{
    const struct ocr_maker better = {"lighton", "", "l 1", false};
    struct ocr_cache *c = help_open(), *other = help_open();
    uint64_t texts, rows, bad;

    (void)state;
    for (unsigned n = 0; n < 40; n++) {
        put_secret(c, n, &tesseract1);
        assert_int_equal(help_put(c, 100 + n), 0);
        if (n % 3 == 0) {
            put_secret(c, n, &better);
            put_secret(other, n, &tesseract1); /* replaced */
        }
        ocr_cache_remember(c, &(struct ocr_file_id){.ino = n + 1},
                           help_key(n).digest, 0, NULL);
    }
    assert_true(marks() > 1000);
    assert_int_equal(forget(c, 0, 40, &texts), 0);
    assert_int_equal(texts, 54);
    assert_int_equal(marks(), 0);
    assert_int_equal(help_ask("SELECT count(*) FROM files"), 0);
    for (unsigned n = 0; n < 40; n++)
        assert_true(help_has(other, 100 + n));
    assert_int_equal(ocr_cache_verify(c, &rows, &bad, NULL), 0);
    assert_int_equal(bad, 0);
    ocr_cache_close(c);
    ocr_cache_close(other);
    assert_int_equal(marks(), 0);
}

/* Evicted or replaced before: gone just so, once the journal is empty. */
static void nothing_is_left_of_older_texts_either(void **state)
{
    const struct ocr_maker second = {"tesseract", "lang=eng\n", "2", false};
    struct ocr_cache *c = help_open();
    const struct ocr_cache_key key = help_key(5);
    uint64_t texts;

    (void)state;
    put_secret(c, 5, &tesseract1);
    put_secret(c, 6, &tesseract1);
    assert_int_equal(
        ocr_cache_put(c, &key, &second, "something else\n", 15, NULL), 0);
    assert_int_equal(forget(c, 6, 1, &texts), 0);
    assert_int_equal(texts, 1);
    assert_int_equal(marks(), 0);
    ocr_cache_close(c);
}

static void all_owners_are_meant(void **state)
{
    struct ocr_cache *c = help_open();
    struct ocr_cache_key key = help_key(1);
    uint64_t texts;

    (void)state;
    for (key.owner = 1000; key.owner < 1003; key.owner++)
        assert_int_equal(
            ocr_cache_put(c, &key, &tesseract1, MARK "\n", 18, NULL), 0);
    assert_int_equal(forget(c, 1, 1, &texts), 0);
    assert_int_equal(texts, 3);
    assert_int_equal(marks(), 0);
    assert_int_equal(forget(c, 1, 1, &texts), 0);
    assert_int_equal(texts, 0);
    ocr_cache_close(c);
}

/* A reader that holds the journal: forgotten, and said that a copy is left. */
static void a_reader_in_the_way_is_said(void **state)
{
    struct ocr_cache *c = help_open();
    uint64_t texts;
    sqlite3 *db;

    (void)state;
    put_secret(c, 1, &tesseract1);
    assert_int_equal(sqlite3_open(help_db(), &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_exec(db, "BEGIN; SELECT * FROM results", NULL, NULL, NULL),
        SQLITE_OK);
    assert_int_equal(forget(c, 1, 1, &texts), -EBUSY);
    assert_int_equal(texts, 1);
    sqlite3_close(db);
    assert_int_equal(forget(c, 1, 1, &texts), 0);
    assert_int_equal(marks(), 0);
    ocr_cache_close(c);
}

static void clear_leaves_nothing(void **state)
{
    struct ocr_cache *c = help_open();

    (void)state;
    for (unsigned n = 0; n < 20; n++)
        put_secret(c, n, &tesseract1);
    assert_int_equal(ocr_cache_clear(c, NULL), 0);
    assert_int_equal(marks(), 0);
    ocr_cache_close(c);
}

static void what_a_file_was_is_known(void **state)
{
    struct ocr_cache *c = help_open();
    struct ocr_file_id file = help_file(3);
    uint8_t digest[OCR_CACHE_DIGEST_BYTES];

    (void)state;
    assert_int_equal(ocr_cache_last_digest(c, &file, digest), -ENOENT);
    assert_int_equal(ocr_cache_remember(c, &file, help_key(7).digest, 0, NULL),
                     0);
    file.size++;
    file.mtime_ns++;
    assert_int_equal(ocr_cache_last_digest(c, &file, digest), 0);
    assert_memory_equal(digest, help_key(7).digest, sizeof digest);
    ocr_cache_close(c);
}

static void what_was_not_used_since_goes(void **state)
{
    struct ocr_cache *c = help_open();
    struct ocr_cache_collected gone;
    int64_t between;

    (void)state;
    for (unsigned n = 0; n < 1200; n++) {
        assert_int_equal(help_put(c, n), 0);
        ocr_cache_remember(c, &(struct ocr_file_id){.ino = n + 1},
                           help_key(n).digest, 0, NULL);
    }
    ocr_cache_put_verdict(c, &(struct ocr_cache_key){.owner = 1}, &tesseract1,
                          OCR_KIND_CORRUPT, "broken", NULL);
    between = ocr_wall_ns() + 1;
    while (ocr_wall_ns() <= between)
        continue;
    for (unsigned n = 2000; n < 2010; n++)
        assert_int_equal(help_put(c, n), 0);
    assert_true(help_has(c, 17)); /* used now */
    ocr_cache_close(c);
    c = help_open();
    assert_int_equal(ocr_cache_collect(c, between, &gone, NULL), 0);
    assert_int_equal(gone.texts, 1199);
    assert_int_equal(gone.rows, 1200);
    assert_int_equal(gone.files, 1199);
    assert_true(help_has(c, 17));
    assert_false(help_has(c, 18));
    for (unsigned n = 2000; n < 2010; n++)
        assert_true(help_has(c, n));
    assert_int_equal(ocr_cache_collect(c, between, &gone, NULL), 0);
    assert_int_equal(gone.rows, 0);
    ocr_cache_close(c);
}

int main(void)
{
#define WITH_DIR(test)                                                         \
    cmocka_unit_test_setup_teardown(test, help_make_dir, help_remove_dir)
    const struct CMUnitTest tests[] = {
        WITH_DIR(nothing_of_a_text_is_left),
        WITH_DIR(nothing_is_left_of_older_texts_either),
        WITH_DIR(all_owners_are_meant),
        WITH_DIR(a_reader_in_the_way_is_said),
        WITH_DIR(clear_leaves_nothing),
        WITH_DIR(what_a_file_was_is_known),
        WITH_DIR(what_was_not_used_since_goes),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

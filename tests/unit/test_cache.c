#include "tests/lib/skip.h"
#include "tests/unit/cache_help.h"

static const uint8_t digest1[16] = {1, 2, 3}, digest2[16] = {4, 5, 6};

static void a_new_cache_knows_nothing(void **state)
{
    struct ocr_cache *c = help_open();
    const struct ocr_file_id file = help_file(1);
    const struct ocr_cache_key key = help_key(1);
    struct ocr_cached got;
    uint8_t digest[16];

    (void)state;
    assert_int_equal(ocr_cache_identify(c, &file, digest), OCR_IDENTITY_NONE);
    assert_int_equal(ocr_cache_size(c, &key, &tesseract1, &got), -ENOENT);
    assert_int_equal(ocr_cache_get(c, &key, &tesseract1, &got), -ENOENT);
    assert_null(got.text);
    assert_string_equal(ocr_cache_path(c), help_dir);
    ocr_cache_close(c);
}

static void texts_come_back_also_after_reopening(void **state)
{
    struct ocr_cache *c = help_open();
    const struct ocr_cache_key key = help_key(7);
    struct ocr_cached got;

    (void)state;
    assert_int_equal(help_put(c, 7), 0);
    assert_true(help_has(c, 7));
    assert_int_equal(ocr_cache_size(c, &key, &tesseract1, &got), 0);
    assert_int_equal(got.size, 27);
    assert_true(got.stored);
    assert_null(got.text);
    assert_int_equal(got.redone_ns, 0);
    ocr_cache_close(c);
    c = help_open();
    assert_true(help_has(c, 7));
    assert_false(help_has(c, 8));
    ocr_cache_close(c);
}

static void an_empty_text_is_a_text(void **state)
{
    struct ocr_cache *c = help_open();
    const struct ocr_cache_key key = help_key(1);
    struct ocr_cached got;

    (void)state;
    assert_int_equal(ocr_cache_put(c, &key, &tesseract1, NULL, 0, NULL), 0);
    assert_int_equal(ocr_cache_get(c, &key, &tesseract1, &got), 0);
    assert_int_equal(got.size, 0);
    assert_string_equal(got.text, "");
    free(got.text);
    ocr_cache_close(c);
}

static void a_long_text_comes_back_whole(void **state)
{
    struct ocr_cache *c = help_open();
    const struct ocr_cache_key key = help_key(1);
    const size_t len = 20 << 20;
    char *text = malloc(len);
    struct ocr_cached got;

    (void)state;
    for (size_t i = 0; i < len; i++)
        text[i] = (char)(i * 7 + i / 4096);
    assert_int_equal(ocr_cache_put(c, &key, &tesseract1, text, len, NULL), 0);
    assert_int_equal(ocr_cache_get(c, &key, &tesseract1, &got), 0);
    assert_int_equal(got.size, len);
    assert_memory_equal(got.text, text, len);
    free(got.text);
    free(text);
    ocr_cache_close(c);
}

/* ---- file -> digest ------------------------------------------------------ */

static enum ocr_identity identify(struct ocr_cache *c, struct ocr_file_id file)
{
    uint8_t digest[16] = {0};
    const enum ocr_identity identity = ocr_cache_identify(c, &file, digest);

    if (identity != OCR_IDENTITY_NONE)
        assert_memory_equal(digest, digest1, sizeof digest);
    return identity;
}

static void a_file_is_known_by_all_its_fields(void **state)
{
    struct ocr_cache *c = help_open();
    const struct ocr_file_id file = help_file(5);
    const int64_t later = file.ctime_ns + INT64_C(5000000000);
    struct ocr_file_id other;

    (void)state;
    assert_int_equal(ocr_cache_remember(c, &file, digest1, later, NULL), 0);
    assert_int_equal(identify(c, file), OCR_IDENTITY_EXACT);
    other = file;
    other.fs++;
    assert_int_equal(identify(c, other), OCR_IDENTITY_NONE);
    other = file;
    other.ino++;
    assert_int_equal(identify(c, other), OCR_IDENTITY_NONE);
    other = file;
    other.size++;
    assert_int_equal(identify(c, other), OCR_IDENTITY_NONE);
    other = file;
    other.mtime_ns++;
    assert_int_equal(identify(c, other), OCR_IDENTITY_NONE);
    other = file;
    other.ctime_ns++;
    assert_int_equal(identify(c, other), OCR_IDENTITY_CTIME);
    ocr_cache_close(c);
}

static void a_changed_file_replaces_its_row(void **state)
{
    struct ocr_cache *c = help_open();
    struct ocr_file_id file = help_file(5), before = file;
    const int64_t later = file.ctime_ns + INT64_C(50000000000);
    uint8_t digest[16];

    (void)state;
    assert_int_equal(ocr_cache_remember(c, &file, digest1, later, NULL), 0);
    file.mtime_ns += 10;
    assert_int_equal(ocr_cache_remember(c, &file, digest2, later, NULL), 0);
    assert_int_equal(ocr_cache_identify(c, &file, digest), OCR_IDENTITY_EXACT);
    assert_memory_equal(digest, digest2, sizeof digest);
    assert_int_equal(identify(c, before), OCR_IDENTITY_NONE);
    ocr_cache_close(c);
    assert_int_equal(help_ask("SELECT count(*) FROM files"), 1);
}

/* mtime and ctime relative to the moment of reading, in ns. */
static enum ocr_identity aged(struct ocr_cache *c, int64_t mtime, int64_t ctime)
{
    static unsigned n = 100;
    const int64_t read = INT64_C(1700000000000000000);
    struct ocr_file_id file = help_file(n++);

    file.mtime_ns = read + mtime;
    file.ctime_ns = read + ctime;
    assert_int_equal(ocr_cache_remember(c, &file, digest1, read, NULL), 0);
    return identify(c, file);
}

static void a_file_that_was_young_when_read_is_racy(void **state)
{
    struct ocr_cache *c = help_open();
    const int64_t s = 1000000000;

    (void)state;
    assert_int_equal(aged(c, -2 * s, -2 * s), OCR_IDENTITY_EXACT);
    assert_int_equal(aged(c, -2 * s + 1, -2 * s), OCR_IDENTITY_RACY);
    assert_int_equal(aged(c, -2 * s, -2 * s + 1), OCR_IDENTITY_RACY);
    assert_int_equal(aged(c, 0, 0), OCR_IDENTITY_RACY);
    assert_int_equal(aged(c, 1000 * s, -9 * s), OCR_IDENTITY_RACY);
    assert_int_equal(aged(c, -9 * s, 1000 * s), OCR_IDENTITY_RACY);
    assert_int_equal(aged(c, -1000 * s, -1000 * s), OCR_IDENTITY_EXACT);
    ocr_cache_close(c);
}

static void a_racy_file_stays_racy_when_its_ctime_moves(void **state)
{
    struct ocr_cache *c = help_open();
    struct ocr_file_id file = help_file(1);

    (void)state;
    assert_int_equal(
        ocr_cache_remember(c, &file, digest1, file.mtime_ns + 5, NULL), 0);
    file.ctime_ns++;
    assert_int_equal(identify(c, file), OCR_IDENTITY_RACY);
    ocr_cache_close(c);
}

static void extreme_times_are_kept(void **state)
{
    struct ocr_cache *c = help_open();
    struct ocr_file_id file = {
        .fs = UINT64_MAX,
        .ino = UINT64_MAX,
        .size = UINT64_MAX,
        .mtime_ns = INT64_MIN,
        .ctime_ns = INT64_MIN,
    };

    (void)state;
    assert_int_equal(ocr_cache_remember(c, &file, digest1, 0, NULL), 0);
    assert_int_equal(identify(c, file), OCR_IDENTITY_EXACT);
    file.mtime_ns = INT64_MAX;
    assert_int_equal(ocr_cache_remember(c, &file, digest1, ocr_wall_ns(), NULL),
                     0);
    assert_int_equal(identify(c, file), OCR_IDENTITY_RACY);
    ocr_cache_close(c);
}

/* ---- which row serves -----------------------------------------------------
 */

static struct ocr_maker maker(const char *recogniser, const char *settings,
                              const char *fingerprint)
{
    return (struct ocr_maker){recogniser, settings, fingerprint, false};
}

static void put_text(struct ocr_cache *c, struct ocr_maker by, const char *text)
{
    const struct ocr_cache_key key = help_key(1);

    assert_int_equal(ocr_cache_put(c, &key, &by, text, strlen(text), NULL), 0);
}

/* The text that serves `by`, "" for none; valid until the next call. */
static const char *served(struct ocr_cache *c, struct ocr_maker by)
{
    static char text[64];
    const struct ocr_cache_key key = help_key(1);
    struct ocr_cached got, size;

    text[0] = '\0';
    if (ocr_cache_get(c, &key, &by, &got))
        return text;
    assert_int_equal(ocr_cache_size(c, &key, &by, &size), 0);
    assert_int_equal(size.size, got.size);
    assert_int_equal(size.redone_ns, got.redone_ns);
    snprintf(text, sizeof text, "%s", got.text);
    free(got.text);
    return text;
}

static void another_version_serves_until_told_otherwise(void **state)
{
    struct ocr_cache *c = help_open();
    struct ocr_maker v2 = maker("tesseract", "lang=eng\n", "v2");

    (void)state;
    put_text(c, maker("tesseract", "lang=eng\n", "v1"), "one");
    assert_string_equal(served(c, v2), "one");
    v2.redo_stale = true;
    assert_string_equal(served(c, v2), "");
    assert_string_equal(served(c, maker("tesseract", "lang=eng\n", "")), "one");
    put_text(c, v2, "two!");
    assert_string_equal(served(c, v2), "two!");
    ocr_cache_close(c);
    assert_int_equal(help_ask("SELECT count(*) FROM contents"), 1);
}

static void other_settings_are_another_text(void **state)
{
    struct ocr_cache *c = help_open();

    (void)state;
    put_text(c, maker("tesseract", "lang=eng\n", "v1"), "english");
    assert_string_equal(served(c, maker("tesseract", "lang=deu\n", "v1")), "");
    assert_string_equal(served(c, maker("tesseract", "lang=deu\n", "")), "");
    put_text(c, maker("tesseract", "lang=deu\n", "v1"), "deutsch");
    assert_string_equal(served(c, maker("tesseract", "lang=eng\n", "v1")),
                        "english");
    assert_string_equal(served(c, maker("tesseract", "lang=deu\n", "v1")),
                        "deutsch");
    ocr_cache_close(c);
}

static void a_better_recogniser_serves_a_worse_never_the_other_way(void **state)
{
    struct ocr_cache *c = help_open();
    struct ocr_maker redo = maker("tesseract", "x", "v1");

    (void)state;
    put_text(c, maker("http", "url\n", "h"), "http");
    assert_string_equal(served(c, maker("tesseract", "x", "v1")), "http");
    redo.redo_stale = true;
    assert_string_equal(served(c, redo), "http");
    assert_string_equal(served(c, maker("lighton", "", "l")), "");
    put_text(c, maker("lighton", "", "l"), "lighton");
    assert_string_equal(served(c, maker("tesseract", "x", "v1")), "lighton");
    assert_string_equal(served(c, maker("http", "url\n", "h")), "http");
    put_text(c, maker("tesseract", "x", "v1"), "tess");
    assert_string_equal(served(c, maker("lighton", "", "l")), "lighton");
    assert_string_equal(served(c, maker("http", "url\n", "h")), "http");
    ocr_cache_close(c);
}

static void null_is_compared_only_with_itself(void **state)
{
    struct ocr_cache *c = help_open();

    (void)state;
    put_text(c, maker("lighton", "", "l"), "lighton");
    assert_string_equal(served(c, maker("null", "", "n")), "");
    put_text(c, maker("null", "", "n"), "null");
    assert_string_equal(served(c, maker("null", "", "n")), "null");
    assert_string_equal(served(c, maker("null", "other\n", "n")), "");
    assert_string_equal(served(c, maker("tesseract", "", "t")), "lighton");
    ocr_cache_close(c);
}

static int64_t redone(struct ocr_cache *c, struct ocr_maker by)
{
    const struct ocr_cache_key key = help_key(1);
    struct ocr_cached got;

    assert_int_equal(ocr_cache_size(c, &key, &by, &got), 0);
    return got.redone_ns;
}

static void a_text_made_again_tells_when(void **state)
{
    struct ocr_cache *c = help_open();
    const struct ocr_maker v1 = maker("tesseract", "", "v1");
    const struct ocr_maker v2 = maker("tesseract", "", "v2");
    const int64_t before = ocr_wall_ns();
    int64_t when;

    (void)state;
    put_text(c, maker("null", "", "n"), "null");
    put_text(c, v1, "one");
    assert_int_equal(redone(c, v1), 0);
    put_text(c, v1, "one");
    assert_int_equal(redone(c, v1), 0);
    put_text(c, v2, "two");
    when = redone(c, v2);
    assert_true(when >= before && when <= ocr_wall_ns());
    put_text(c, v2, "two");
    assert_int_equal(redone(c, v2), when);
    put_text(c, v2, "longer");
    assert_true(redone(c, v2) > when);
    ocr_cache_close(c);
}

static void owners_do_not_see_each_other(void **state)
{
    struct ocr_cache *c = help_open();
    struct ocr_cache_key key = help_key(3);
    struct ocr_cached got;

    (void)state;
    key.owner = 1000;
    assert_int_equal(ocr_cache_put(c, &key, &tesseract1, "mine", 4, NULL), 0);
    for (int i = 0; i < 2; i++) {
        key.owner = i ? 1001 : OCR_CACHE_ANY_OWNER;
        assert_int_equal(ocr_cache_size(c, &key, &tesseract1, &got), -ENOENT);
        assert_int_equal(ocr_cache_get(c, &key, &tesseract1, &got), -ENOENT);
    }
    key.owner = 1000;
    assert_int_equal(ocr_cache_size(c, &key, &tesseract1, &got), 0);
    ocr_cache_close(c);
}

static void verdicts_hold_for_their_maker(void **state)
{
    struct ocr_cache *c = help_open();
    const struct ocr_cache_key key = help_key(1);
    struct ocr_maker by = maker("tesseract", "", "v1");
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_cached got;

    (void)state;
    assert_int_equal(ocr_cache_put_verdict(c, &key, &by, OCR_KIND_TRUNCATED,
                                           "it ends too early", NULL),
                     0);
    assert_int_equal(ocr_cache_get(c, &key, &by, &got), 0);
    assert_int_equal(got.verdict, OCR_KIND_TRUNCATED);
    assert_string_equal(got.sentence, "it ends too early");
    assert_null(got.text);
    by.fingerprint = "v2";
    assert_int_equal(ocr_cache_get(c, &key, &by, &got), -ENOENT);
    by.fingerprint = "";
    assert_int_equal(ocr_cache_size(c, &key, &by, &got), 0);
    assert_int_equal(got.verdict, OCR_KIND_TRUNCATED);
    put_text(c, maker("tesseract", "", "v2"), "text");
    assert_string_equal(served(c, by), "text");
    assert_int_equal(redone(c, by), 0);
    assert_int_equal(
        ocr_cache_put_verdict(c, &key, &by, OCR_KIND_GONE, "no engine", &err),
        -EINVAL);
    ocr_cache_close(c);
}

/* ---- the folder -----------------------------------------------------------
 */

static void a_folder_others_may_write_to_is_refused(void **state)
{
    const struct ocr_cache_options options = {.dir = help_dir};
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_cache *c;

    (void)state;
    chmod(help_dir, 0770);
    assert_int_equal(ocr_cache_open(&c, &options, &err), -EPERM);
    assert_null(c);
    chmod(help_dir, 0702);
    assert_int_equal(ocr_cache_open(&c, &options, NULL), -EPERM);
    chmod(help_dir, 0700);
    assert_int_equal(ocr_cache_open(&c, &options, NULL), 0);
    ocr_cache_close(c);
    if (geteuid() != 0)
        return;
    assert_int_equal(chown(help_dir, 12345, 12345), 0);
    assert_int_equal(ocr_cache_open(&c, &options, NULL), -EPERM);
}

static void folder_and_database_are_private(void **state)
{
    struct ocr_cache *c;
    char dir[128];
    struct stat st;

    (void)state;
    snprintf(dir, sizeof dir, "%s/new", help_dir);
    assert_int_equal(
        ocr_cache_open(&c, &(struct ocr_cache_options){.dir = dir}, NULL), 0);
    assert_int_equal(help_put(c, 1), 0);
    assert_int_equal(stat(dir, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    snprintf(dir, sizeof dir, "%s/new/%s", help_dir, CACHE_FILE);
    assert_int_equal(stat(dir, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    snprintf(dir, sizeof dir, "%s/new/%s-wal", help_dir, CACHE_FILE);
    assert_int_equal(stat(dir, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    ocr_cache_close(c);
    snprintf(dir, sizeof dir, "rm -r %s/new", help_dir);
    assert_int_equal(system(dir), 0);
}

static void a_missing_parent_is_named(void **state)
{
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_cache *c;

    (void)state;
    assert_int_equal(
        ocr_cache_open(&c, &(struct ocr_cache_options){.dir = "/nonexistent/a"},
                       &err),
        -ENOENT);
    assert_non_null(strstr(err.text, "/nonexistent/a"));
}

static void the_default_folder_is_the_users(void **state)
{
    struct cache_place p;
    char expected[128];
    const bool root = geteuid() == 0;

    (void)state;
    if (root && seteuid(65534))
        SKIP("no other user to be");
    mkdir("/tmp/ocrfs-test-home", 0700);
    setenv("HOME", "/tmp/ocrfs-test-home", 1);
    unsetenv("XDG_CACHE_HOME");
    assert_int_equal(cache_place_open(&p, NULL, NULL), 0);
    assert_string_equal(p.dir, "/tmp/ocrfs-test-home/.cache/ocrfs");
    cache_place_release(&p);
    snprintf(expected, sizeof expected, "/tmp/ocrfs-test-home/xdg");
    setenv("XDG_CACHE_HOME", expected, 1);
    assert_int_equal(cache_place_open(&p, "", NULL), 0);
    assert_string_equal(p.dir, "/tmp/ocrfs-test-home/xdg/ocrfs");
    cache_place_release(&p);
    assert_int_equal(system("rm -r /tmp/ocrfs-test-home"), 0);
    if (root)
        assert_int_equal(seteuid(0), 0);
}

static void memory_needs_no_disk(void **state)
{
    const struct ocr_cache_options options = {.dir = "memory"};
    struct ocr_cache *c, *other;
    struct ocr_cache_stat stat;
    const struct ocr_file_id file = help_file(1);

    (void)state;
    assert_int_equal(ocr_cache_open(&c, &options, NULL), 0);
    assert_int_equal(ocr_cache_open(&other, &options, NULL), 0);
    assert_string_equal(ocr_cache_path(c), "memory");
    assert_memory_not_equal(ocr_cache_secret(c), ocr_cache_secret(other),
                            OCR_CACHE_SECRET_BYTES);
    assert_int_equal(help_put(c, 1), 0);
    assert_true(help_has(c, 1));
    assert_false(help_has(other, 1));
    assert_int_equal(ocr_cache_remember(c, &file, digest1, INT64_MAX, NULL), 0);
    assert_int_equal(identify(c, file), OCR_IDENTITY_EXACT);
    assert_int_equal(ocr_cache_stat(c, &stat, NULL), 0);
    assert_int_equal(stat.texts, 1);
    assert_int_equal(stat.disk_bytes, 0);
    ocr_cache_close(c);
    ocr_cache_close(other);
}

static void network_file_systems_get_no_wal(void **state)
{
    struct ocr_cache *c;
    char text[16];
    sqlite3_stmt *s;

    (void)state;
    assert_true(cache_place_is_network(0x6969));
    assert_true(cache_place_is_network((long)0xfe534d42));
    assert_true(cache_place_is_network((int)0xff534d42));
    assert_true(cache_place_is_network(0x65735546));
    assert_false(cache_place_is_network(0xef53));
    assert_false(cache_place_is_network(0x01021994));
    c = help_open();
    assert_int_equal(help_put(c, 1), 0);
    ocr_cache_close(c);
    assert_int_equal(cache_open(&c,
                                &(struct ocr_cache_options){.dir = help_dir},
                                CACHE_JOURNAL_DELETE, NULL),
                     0);
    assert_true(help_has(c, 1));
    assert_int_equal(help_put(c, 2), 0);
    assert_true(help_has(c, 2));
    sqlite3_prepare_v2(c->conn[CACHE_READ].db, "PRAGMA journal_mode", -1, &s,
                       NULL);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    snprintf(text, sizeof text, "%s", sqlite3_column_text(s, 0));
    sqlite3_finalize(s);
    assert_string_equal(text, "delete");
    assert_int_equal(help_count(CACHE_FILE "-wal"), 0);
    ocr_cache_close(c);
}

static void the_secret_stays_with_the_database(void **state)
{
    struct ocr_cache *c = help_open();
    uint8_t secret[OCR_CACHE_SECRET_BYTES], zero[OCR_CACHE_SECRET_BYTES] = {0};

    (void)state;
    memcpy(secret, ocr_cache_secret(c), sizeof secret);
    assert_memory_not_equal(secret, zero, sizeof zero);
    assert_int_equal(ocr_cache_clear(c, NULL), 0);
    ocr_cache_close(c);
    c = help_open();
    assert_memory_equal(ocr_cache_secret(c), secret, sizeof secret);
    ocr_cache_close(c);
    unlink(help_db());
    c = help_open();
    assert_memory_not_equal(ocr_cache_secret(c), secret, sizeof secret);
    ocr_cache_close(c);
}

/* ---- commands --------------------------------------------------------------
 */

static void stat_counts_and_clear_forgets(void **state)
{
    struct ocr_cache *c = help_open();
    const struct ocr_file_id file = help_file(1);
    struct ocr_cache_key key = help_key(99);
    struct ocr_cache_stat stat;
    uint64_t bytes = 0;

    (void)state;
    for (unsigned i = 0; i < 500; i++) {
        assert_int_equal(help_put(c, i), 0);
        bytes += 20 + i;
    }
    key.owner = 5;
    assert_int_equal(ocr_cache_put_verdict(c, &key, &tesseract1,
                                           OCR_KIND_CORRUPT, "bad", NULL),
                     0);
    assert_int_equal(ocr_cache_remember(c, &file, digest1, 0, NULL), 0);
    assert_true(help_has(c, 3));
    assert_false(help_has(c, 1000));
    assert_int_equal(ocr_cache_stat(c, &stat, NULL), 0);
    assert_int_equal(stat.texts, 500);
    assert_int_equal(stat.text_bytes, bytes);
    assert_int_equal(stat.sizes, 500);
    assert_int_equal(stat.verdicts, 1);
    assert_int_equal(stat.files, 1);
    assert_int_equal(stat.hits, 1);
    assert_int_equal(stat.misses, 1);
    assert_true(stat.disk_bytes > bytes);
    assert_true(stat.oldest_use_ns > 0);
    assert_int_equal(ocr_cache_clear(c, NULL), 0);
    assert_false(help_has(c, 3));
    assert_int_equal(identify(c, file), OCR_IDENTITY_NONE);
    assert_int_equal(ocr_cache_stat(c, &stat, NULL), 0);
    assert_int_equal(stat.sizes + stat.verdicts + stat.files, 0);
    assert_true(stat.disk_bytes < 100 << 10);
    assert_int_equal(help_put(c, 3), 0);
    assert_true(help_has(c, 3));
    ocr_cache_close(c);
}

static void many_files_are_found_fast(void **state)
{
    enum {
        FILES = 50000
    };
    struct ocr_cache *c = help_open();
    struct ocr_cache_key key = help_key(1);
    struct ocr_cached got;
    uint8_t digest[16];
    int64_t start = ocr_now_ms();

    (void)state;
    for (unsigned i = 0; i < FILES; i++) {
        const struct ocr_file_id file = help_file(i);

        key = help_key(i);
        assert_int_equal(ocr_cache_remember(c, &file, key.digest, 0, NULL), 0);
        if (i % 5 == 0)
            assert_int_equal(
                ocr_cache_put(c, &key, &tesseract1, "text", 4, NULL), 0);
    }
    print_message("# storing: %.1f us each\n",
                  (double)(ocr_now_ms() - start) * 1000 / FILES);
    for (int round = 0; round < 2; round++) {
        start = ocr_now_ms();
        for (unsigned i = 0; i < FILES; i++) {
            const struct ocr_file_id file = help_file(i);

            assert_int_not_equal(ocr_cache_identify(c, &file, digest),
                                 OCR_IDENTITY_NONE);
            memcpy(key.digest, digest, sizeof digest);
            assert_int_equal(ocr_cache_size(c, &key, &tesseract1, &got),
                             i % 5 ? -ENOENT : 0);
        }
        print_message("# identify and size: %.1f us each\n",
                      (double)(ocr_now_ms() - start) * 1000 / FILES);
    }
    ocr_cache_close(c);
}

#define TEST(f)                                                                \
    cmocka_unit_test_setup_teardown(f, help_make_dir, help_remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_new_cache_knows_nothing),
        TEST(texts_come_back_also_after_reopening),
        TEST(an_empty_text_is_a_text),
        TEST(a_long_text_comes_back_whole),
        TEST(a_file_is_known_by_all_its_fields),
        TEST(a_changed_file_replaces_its_row),
        TEST(a_file_that_was_young_when_read_is_racy),
        TEST(a_racy_file_stays_racy_when_its_ctime_moves),
        TEST(extreme_times_are_kept),
        TEST(another_version_serves_until_told_otherwise),
        TEST(other_settings_are_another_text),
        TEST(a_better_recogniser_serves_a_worse_never_the_other_way),
        TEST(null_is_compared_only_with_itself),
        TEST(a_text_made_again_tells_when),
        TEST(owners_do_not_see_each_other),
        TEST(verdicts_hold_for_their_maker),
        TEST(a_folder_others_may_write_to_is_refused),
        TEST(folder_and_database_are_private),
        TEST(a_missing_parent_is_named),
        TEST(the_default_folder_is_the_users),
        TEST(memory_needs_no_disk),
        TEST(network_file_systems_get_no_wal),
        TEST(the_secret_stays_with_the_database),
        TEST(stat_counts_and_clear_forgets),
        TEST(many_files_are_found_fast),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

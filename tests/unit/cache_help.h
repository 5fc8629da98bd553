/* What the tests of the cache share: a folder that goes away, keys, makers. */
#ifndef TEST_CACHE_HELP_H
#define TEST_CACHE_HELP_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cache/cache_i.h"
#include "engine/base/io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static char help_dir[64];

static inline int help_make_dir(void **state)
{
    (void)state;
    snprintf(help_dir, sizeof help_dir, "/tmp/ocrfs-test-cache-XXXXXX");
    return mkdtemp(help_dir) ? 0 : -1;
}

static inline int help_remove_dir(void **state)
{
    DIR *dir = opendir(help_dir);
    struct dirent *entry;

    (void)state;
    while (dir && (entry = readdir(dir)))
        unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        closedir(dir);
    return rmdir(help_dir);
}

static inline const char *help_db(void)
{
    static char path[128];

    snprintf(path, sizeof path, "%s/%s", help_dir, CACHE_FILE);
    return path;
}

static inline struct ocr_cache *help_open(void)
{
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_cache *c;

    if (ocr_cache_open(&c, &(struct ocr_cache_options){.dir = help_dir}, &err))
        fail_msg("%s", err.text);
    return c;
}

static inline struct ocr_cache_key help_key(unsigned n)
{
    struct ocr_cache_key key = {.owner = OCR_CACHE_ANY_OWNER};

    for (size_t i = 0; i < sizeof key.digest; i++)
        key.digest[i] = (uint8_t)(n >> (8 * (i % 4))) ^ (uint8_t)(17 * i);
    return key;
}

static const struct ocr_maker tesseract1 = {
    .recogniser = "tesseract",
    .settings = "lang=eng\n",
    .fingerprint = "tesseract 1",
};

/* The text for a key: its number and a tail that grows. */
static inline size_t help_text(char *out, size_t size, unsigned n)
{
    const size_t len = 20 + n % 6000;

    assert_true(len < size);
    memset(out, 'a' + (int)(n % 26), len);
    snprintf(out, 20, "%018u", n);
    out[18] = ' ';
    out[19] = '\n';
    out[len] = '\0';
    return len;
}

static inline int help_put(struct ocr_cache *c, unsigned n)
{
    const struct ocr_cache_key key = help_key(n);
    char text[8192];
    const size_t len = help_text(text, sizeof text, n);

    return ocr_cache_put(c, &key, &tesseract1, text, len, NULL);
}

/* True if the text is there and right; a wrong one fails the test. */
static inline bool help_has(struct ocr_cache *c, unsigned n)
{
    const struct ocr_cache_key key = help_key(n);
    struct ocr_cached got;
    char text[8192];
    const size_t len = help_text(text, sizeof text, n);

    if (ocr_cache_get(c, &key, &tesseract1, &got))
        return false;
    assert_int_equal(got.verdict, OCR_KIND_NONE);
    assert_int_equal(got.size, len);
    assert_memory_equal(got.text, text, len + 1);
    free(got.text);
    return true;
}

static inline struct ocr_file_id help_file(unsigned n)
{
    return (struct ocr_file_id){
        .fs = UINT64_C(0xfedcba9876543210),
        .ino = n,
        .size = 1000 + n,
        .mtime_ns = INT64_C(1700000000000000000),
        .ctime_ns = INT64_C(1700000000000000001),
    };
}

/* Files in the folder whose name begins with `prefix`. */
static inline int help_count(const char *prefix)
{
    DIR *dir = opendir(help_dir);
    struct dirent *entry;
    int count = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir)))
        count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(dir);
    return count;
}

/* Through a connection of its own, which knows nothing of checksums. */
static inline void help_sql(const char *text)
{
    sqlite3 *db;
    char *why = NULL;

    assert_int_equal(sqlite3_open(help_db(), &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 5000);
    if (sqlite3_exec(db, text, NULL, NULL, &why))
        fail_msg("%s: %s", text, why);
    sqlite3_close(db);
}

static inline int64_t help_ask(const char *text)
{
    sqlite3 *db;
    int64_t value;

    assert_int_equal(sqlite3_open(help_db(), &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 5000);
    assert_int_equal(cache_query(db, text, &value), SQLITE_OK);
    sqlite3_close(db);
    return value;
}

/* What goes to standard error while `f` runs, cut at size. */
static inline void help_stderr(char *out, size_t size, void (*f)(void *),
                               void *arg)
{
    const int file = memfd_create("stderr", MFD_CLOEXEC);
    const int before = dup(2);
    ssize_t len;

    assert_true(file >= 0 && before >= 0);
    dup2(file, 2);
    f(arg);
    dup2(before, 2);
    close(before);
    len = pread(file, out, size - 1, 0);
    out[len > 0 ? len : 0] = '\0';
    close(file);
}

static inline int help_times(const char *text, const char *word)
{
    int times = 0;

    for (const char *at = text; (at = strstr(at, word)); at++)
        times++;
    return times;
}

#endif

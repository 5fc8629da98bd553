#include "cache/cache_i.h"

#include <errno.h>
#include <string.h>

#define RACY_NS INT64_C(2000000000)

struct file_row {
    struct ocr_file_id id;
    uint8_t digest[OCR_CACHE_DIGEST_BYTES];
    int64_t racy;
};

uint64_t cache_file_sum(const struct ocr_cache *c, const struct ocr_file_id *id,
                        const uint8_t *digest, int64_t racy)
{
    uint64_t half[2];

    memcpy(half, digest, sizeof half);
    return cache_sum(
        c,
        (uint64_t[]){'f', id->fs, id->ino, id->size, (uint64_t)id->mtime_ns,
                     (uint64_t)id->ctime_ns, half[0], half[1], (uint64_t)racy},
        9);
}

/* SQLITE_ROW with *row, SQLITE_DONE, or an error. *bad: the row is damaged. */
static int find_file(struct ocr_cache *c, struct cache_conn *conn,
                     const struct ocr_file_id *file, struct file_row *row,
                     bool *bad)
{
    sqlite3_stmt *s = cache_statement(conn, CACHE_FIND_FILE);
    const void *digest;
    int rc;

    *bad = false;
    sqlite3_bind_int64(s, 1, (int64_t)file->fs);
    sqlite3_bind_int64(s, 2, (int64_t)file->ino);
    rc = sqlite3_step(s);
    if (rc == SQLITE_ROW) {
        row->id = (struct ocr_file_id){
            .fs = file->fs,
            .ino = file->ino,
            .size = (uint64_t)sqlite3_column_int64(s, 0),
            .mtime_ns = sqlite3_column_int64(s, 1),
            .ctime_ns = sqlite3_column_int64(s, 2),
        };
        row->racy = sqlite3_column_int64(s, 4);
        digest = sqlite3_column_blob(s, 3);
        *bad = !digest || sqlite3_column_bytes(s, 3) != sizeof row->digest;
        if (!*bad) {
            memcpy(row->digest, digest, sizeof row->digest);
            *bad = (uint64_t)sqlite3_column_int64(s, 5) !=
                   cache_file_sum(c, &row->id, row->digest, row->racy);
        }
    }
    cache_reset(s);
    return rc;
}

static int drop_bad_file(struct ocr_cache *c, struct cache_conn *conn,
                         void *arg)
{
    const struct ocr_file_id *file = arg;
    struct file_row row;
    sqlite3_stmt *s;
    bool bad;
    const int rc = find_file(c, conn, file, &row, &bad);

    if (rc != SQLITE_ROW || !bad)
        return rc == SQLITE_ROW || rc == SQLITE_DONE ? SQLITE_OK : rc;
    c->bad_rows++;
    s = cache_statement(conn, CACHE_DROP_FILE);
    sqlite3_bind_int64(s, 1, (int64_t)file->fs);
    sqlite3_bind_int64(s, 2, (int64_t)file->ino);
    return cache_run(s);
}

static enum ocr_identity compare(const struct file_row *row,
                                 const struct ocr_file_id *file)
{
    if (row->id.size != file->size || row->id.mtime_ns != file->mtime_ns)
        return OCR_IDENTITY_NONE;
    if (row->racy)
        return OCR_IDENTITY_RACY;
    return row->id.ctime_ns == file->ctime_ns ? OCR_IDENTITY_EXACT
                                              : OCR_IDENTITY_CTIME;
}

enum ocr_identity ocr_cache_identify(struct ocr_cache *c,
                                     const struct ocr_file_id *file,
                                     uint8_t digest[OCR_CACHE_DIGEST_BYTES])
{
    struct cache_conn *conn = cache_enter(c, CACHE_READ);
    struct ocr_file_id copy = *file;
    struct file_row row;
    enum ocr_identity identity;
    bool bad;
    int rc;

    if (!conn)
        return OCR_IDENTITY_NONE;
    rc = find_file(c, conn, file, &row, &bad);
    cache_leave(c, conn, rc, "look a file up", NULL);
    if (rc != SQLITE_ROW)
        return OCR_IDENTITY_NONE;
    if (bad) {
        cache_write(c, drop_bad_file, &copy, "remove a damaged row", NULL);
        return OCR_IDENTITY_NONE;
    }
    identity = compare(&row, file);
    if (identity != OCR_IDENTITY_NONE)
        memcpy(digest, row.digest, sizeof row.digest);
    return identity;
}

int ocr_cache_last_digest(struct ocr_cache *c, const struct ocr_file_id *file,
                          uint8_t digest[OCR_CACHE_DIGEST_BYTES])
{
    struct cache_conn *conn = cache_enter(c, CACHE_READ);
    struct file_row row;
    bool bad;
    int rc;

    if (!conn)
        return -ENOENT;
    rc = find_file(c, conn, file, &row, &bad);
    cache_leave(c, conn, rc, "look a file up", NULL);
    if (rc != SQLITE_ROW || bad)
        return -ENOENT;
    memcpy(digest, row.digest, sizeof row.digest);
    return 0;
}

static int put_file(struct ocr_cache *c, struct cache_conn *conn, void *arg)
{
    const struct file_row *row = arg;
    sqlite3_stmt *s = cache_statement(conn, CACHE_PUT_FILE);

    sqlite3_bind_int64(s, 1, (int64_t)row->id.fs);
    sqlite3_bind_int64(s, 2, (int64_t)row->id.ino);
    sqlite3_bind_int64(s, 3, (int64_t)row->id.size);
    sqlite3_bind_int64(s, 4, row->id.mtime_ns);
    sqlite3_bind_int64(s, 5, row->id.ctime_ns);
    sqlite3_bind_blob(s, 6, row->digest, sizeof row->digest, SQLITE_STATIC);
    sqlite3_bind_int64(s, 7, row->racy);
    sqlite3_bind_int64(
        s, 8, (int64_t)cache_file_sum(c, &row->id, row->digest, row->racy));
    return cache_run(s);
}

int ocr_cache_remember(struct ocr_cache *c, const struct ocr_file_id *file,
                       const uint8_t digest[OCR_CACHE_DIGEST_BYTES],
                       int64_t read_ns, struct ocr_err *err)
{
    struct file_row row = {
        .id = *file,
        .racy = file->mtime_ns > read_ns - RACY_NS ||
                file->ctime_ns > read_ns - RACY_NS,
    };

    memcpy(row.digest, digest, sizeof row.digest);
    return cache_write(c, put_file, &row, "remember a file", err);
}

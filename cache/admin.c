#include "cache/cache_i.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- stat --------------------------------------------------------------- */

static int count(struct cache_conn *conn, const char *text, uint64_t *out)
{
    int64_t value;
    const int rc = cache_query(conn->db, text, &value);

    *out = (uint64_t)value;
    return rc;
}

static int count_all(struct cache_conn *conn, struct ocr_cache_stat *out)
{
    int rc = count(conn, "SELECT count(*) FROM results WHERE text <> 0",
                   &out->texts);

    if (rc == SQLITE_OK)
        rc = count(conn, "SELECT sum(size) FROM results WHERE text <> 0",
                   &out->text_bytes);
    if (rc == SQLITE_OK)
        rc = count(conn, "SELECT count(*) FROM results WHERE kind = 0",
                   &out->sizes);
    if (rc == SQLITE_OK)
        rc = count(conn, "SELECT count(*) FROM results WHERE kind <> 0",
                   &out->verdicts);
    if (rc == SQLITE_OK)
        rc = count(conn, "SELECT count(*) FROM files", &out->files);
    if (rc == SQLITE_OK)
        rc = cache_query(conn->db,
                         "SELECT min(used_ns) FROM results WHERE text <> 0",
                         &out->oldest_use_ns);
    return rc;
}

int ocr_cache_stat(struct ocr_cache *c, struct ocr_cache_stat *out,
                   struct ocr_err *err)
{
    struct cache_conn *conn;

    *out = (struct ocr_cache_stat){
        .disk_bytes = c->memory ? 0 : cache_place_bytes(&c->place),
        .hits = c->hits,
        .misses = c->misses,
        .bad_rows = c->bad_rows,
    };
    conn = cache_enter(c, CACHE_SIDE);
    if (!conn)
        return ocr_err_set(err, -EIO, "there is no cache");
    return cache_leave(c, conn, count_all(conn, out), "count", err);
}

/* ---- verify ------------------------------------------------------------- */

enum table {
    FILES,
    MAKERS,
    RESULTS,
    TABLES
};
enum {
    KEY_MAX = 3
};

struct bad_row {
    enum table table;
    sqlite3_value *key[KEY_MAX]; /* as damaged as it is in the table */
};

struct check {
    uint64_t rows;
    struct bad_row *bad;
    size_t bad_count, bad_room;
};

static bool good_file(const struct ocr_cache *c, sqlite3_stmt *s)
{
    const struct ocr_file_id id = {
        .fs = (uint64_t)sqlite3_column_int64(s, 0),
        .ino = (uint64_t)sqlite3_column_int64(s, 1),
        .size = (uint64_t)sqlite3_column_int64(s, 2),
        .mtime_ns = sqlite3_column_int64(s, 3),
        .ctime_ns = sqlite3_column_int64(s, 4),
    };
    const void *digest = sqlite3_column_blob(s, 5);

    return digest && sqlite3_column_bytes(s, 5) == OCR_CACHE_DIGEST_BYTES &&
           (uint64_t)sqlite3_column_int64(s, 7) ==
               cache_file_sum(c, &id, digest, sqlite3_column_int64(s, 6));
}

static const char *string(sqlite3_stmt *s, int column)
{
    const void *text = sqlite3_column_text(s, column);

    return text ? text : "";
}

static bool good_maker(const struct ocr_cache *c, sqlite3_stmt *s)
{
    return (uint64_t)sqlite3_column_int64(s, 4) ==
           cache_maker_sum(c, string(s, 1), string(s, 2), string(s, 3));
}

static bool good_result(struct ocr_cache *c, struct cache_conn *conn,
                        sqlite3_stmt *s, int *rc)
{
    struct cache_result r;
    sqlite3_stmt *text;
    bool bad = false;

    if (!cache_result_load(c, s, &r))
        return false;
    if (!r.text)
        return true;
    *rc = cache_text_find(c, conn, &r, &text, &bad);
    cache_reset(text);
    return !bad;
}

static int note_bad(struct check *check, enum table table, sqlite3_stmt *s,
                    int keys)
{
    struct bad_row *row;

    if (check->bad_count == check->bad_room) {
        const size_t room = check->bad_room ? 2 * check->bad_room : 64;

        row = realloc(check->bad, room * sizeof *row);
        if (!row)
            return SQLITE_NOMEM;
        check->bad = row;
        check->bad_room = room;
    }
    row = &check->bad[check->bad_count++];
    *row = (struct bad_row){.table = table};
    for (int i = 0; i < keys; i++)
        row->key[i] = sqlite3_value_dup(sqlite3_column_value(s, i));
    return SQLITE_OK;
}

static const struct {
    const char *all, *drop;
    int keys; /* the first columns of `all` */
} scans[TABLES] = {
    [FILES] = {"SELECT fs, ino, size, mtime_ns, ctime_ns, digest, racy, sum"
               " FROM files",
               "DELETE FROM files WHERE fs IS ?1 AND ino IS ?2", 2},
    [MAKERS] = {"SELECT id, recogniser, settings, fingerprint, sum"
                " FROM makers",
                "DELETE FROM makers WHERE id IS ?1", 1},
    [RESULTS] = {CACHE_RESULT_COLUMNS,
                 "DELETE FROM results WHERE digest IS ?1 AND owner IS ?2"
                 " AND maker IS ?3",
                 3},
};

static int check_table(struct ocr_cache *c, struct cache_conn *conn,
                       enum table table, struct check *check)
{
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(conn->db, scans[table].all, -1, &s, NULL);

    while (rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        bool good;

        rc = SQLITE_OK;
        check->rows++;
        if (table == FILES)
            good = good_file(c, s);
        else if (table == MAKERS)
            good = good_maker(c, s);
        else
            good = good_result(c, conn, s, &rc);
        if (!good)
            rc = note_bad(check, table, s, scans[table].keys);
        else if (rc == SQLITE_ROW)
            rc = SQLITE_OK;
    }
    sqlite3_finalize(s);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

/* SQLITE_OK, or SQLITE_CORRUPT if SQLite finds fault with its own file. */
static int check_database(struct cache_conn *conn)
{
    sqlite3_stmt *s = NULL;
    int rc =
        sqlite3_prepare_v2(conn->db, "PRAGMA integrity_check(1)", -1, &s, NULL);

    if (rc == SQLITE_OK)
        rc = sqlite3_step(s);
    if (rc == SQLITE_ROW)
        rc = strcmp(string(s, 0), "ok") == 0 ? SQLITE_OK : SQLITE_CORRUPT;
    sqlite3_finalize(s);
    return rc;
}

static int drop_row(struct cache_conn *conn, const struct bad_row *row)
{
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(conn->db, scans[row->table].drop, -1, &s, NULL);

    for (int i = 0; rc == SQLITE_OK && i < scans[row->table].keys; i++)
        rc = sqlite3_bind_value(s, i + 1, row->key[i]);
    if (rc == SQLITE_OK)
        rc = cache_run(s);
    sqlite3_finalize(s);
    return rc;
}

static int drop_bad(struct ocr_cache *c, struct cache_conn *conn, void *arg)
{
    const struct check *check = arg;
    int rc = SQLITE_OK;

    for (size_t i = 0; rc == SQLITE_OK && i < check->bad_count; i++)
        rc = drop_row(conn, &check->bad[i]);
    if (rc == SQLITE_OK)
        rc = cache_exec(conn, "DELETE FROM contents WHERE id NOT IN"
                              " (SELECT text FROM results WHERE text <> 0)");
    if (rc == SQLITE_OK)
        rc = cache_total_recount(c, conn);
    return rc;
}

static void release_check(struct check *check)
{
    for (size_t i = 0; i < check->bad_count; i++)
        for (int k = 0; k < KEY_MAX; k++)
            sqlite3_value_free(check->bad[i].key[k]);
    free(check->bad);
    *check = (struct check){0};
}

static int check_all(struct ocr_cache *c, struct check *check, bool again,
                     struct ocr_err *err)
{
    struct cache_conn *conn = cache_enter(c, CACHE_SIDE);
    int rc;

    if (!conn)
        return ocr_err_set(err, -EIO, "there is no cache");
    rc = check_database(conn);
    for (int table = 0; rc == SQLITE_OK && table < TABLES; table++)
        rc = check_table(c, conn, table, check);
    /* Perhaps only the index: then making it again is enough. */
    if (rc == SQLITE_CORRUPT && !again)
        rc = SQLITE_CORRUPT_INDEX;
    return cache_leave(c, conn, rc, "check all rows", err);
}

int ocr_cache_verify(struct ocr_cache *c, uint64_t *rows, uint64_t *bad,
                     struct ocr_err *err)
{
    struct check check = {0};
    int code = check_all(c, &check, false, NULL);

    if (code == -EUCLEAN) {
        release_check(&check);
        code = check_all(c, &check, true, err);
    }
    *rows = check.rows;
    *bad = check.bad_count;
    if (code == 0)
        code = cache_write(c, drop_bad, &check, "remove damaged rows", err);
    c->bad_rows += check.bad_count;
    release_check(&check);
    return code;
}

/* ---- clear -------------------------------------------------------------- */

static int forget_all(struct ocr_cache *c, struct cache_conn *conn, void *arg)
{
    int rc = cache_exec(conn, "DELETE FROM files; DELETE FROM results;"
                              "DELETE FROM contents; DELETE FROM makers");

    (void)arg;
    if (rc == SQLITE_OK)
        rc = cache_total_set(c, conn, 0);
    return rc;
}

int ocr_cache_clear(struct ocr_cache *c, struct ocr_err *err)
{
    const int code = cache_write(c, forget_all, NULL, "forget all", err);

    if (code)
        return code;
    cache_place_remove_broken(&c->place);
    return cache_tidy(c, err);
}

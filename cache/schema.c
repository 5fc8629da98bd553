#include "cache/cache_i.h"

#define XXH_STATIC_LINKING_ONLY
#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

enum {
    FORMAT = 1,               /* user_version; another one is not touched */
    APPLICATION = 0x4f435246, /* "OCRF" */
};

/* used_ns of the texts that are there is the order of eviction. */
static const char tables[] =
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value, sum INTEGER)"
    " WITHOUT ROWID;"
    "CREATE TABLE files (fs INTEGER, ino INTEGER, size INTEGER,"
    " mtime_ns INTEGER, ctime_ns INTEGER, digest BLOB, racy INTEGER,"
    " sum INTEGER, PRIMARY KEY (fs, ino)) WITHOUT ROWID;"
    "CREATE TABLE makers (id INTEGER PRIMARY KEY, recogniser TEXT,"
    " settings TEXT, fingerprint TEXT, sum INTEGER);"
    "CREATE TABLE results (digest BLOB, owner INTEGER, maker INTEGER,"
    " kind INTEGER, size INTEGER, made_ns INTEGER, redone_ns INTEGER,"
    " used_ns INTEGER, text INTEGER, sentence TEXT, sum INTEGER,"
    " PRIMARY KEY (digest, owner, maker)) WITHOUT ROWID;"
    "CREATE INDEX results_used ON results (used_ns) WHERE text <> 0;"
    "CREATE TABLE contents (id INTEGER PRIMARY KEY, text BLOB, sum INTEGER);"
    "PRAGMA application_id=0x4f435246;"
    "PRAGMA user_version=1;";

_Static_assert(OCR_CACHE_SECRET_BYTES >= XXH3_SECRET_SIZE_MIN,
               "XXH3 takes the secret whole");

uint64_t cache_hash(const struct ocr_cache *c, const void *data, size_t len)
{
    return XXH3_64bits_withSecret(data, len, c->secret, sizeof c->secret);
}

uint64_t cache_sum(const struct ocr_cache *c, const uint64_t *fields,
                   size_t count)
{
    return cache_hash(c, fields, count * sizeof *fields);
}

static int put_meta(sqlite3_stmt *s, const char *name, uint64_t sum)
{
    sqlite3_bind_text(s, 1, name, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 3, (int64_t)sum);
    return cache_run(s);
}

static uint64_t total_sum(const struct ocr_cache *c, uint64_t bytes)
{
    return cache_sum(c, (uint64_t[]){'t', bytes}, 2);
}

int cache_total_set(struct ocr_cache *c, struct cache_conn *conn,
                    uint64_t bytes)
{
    sqlite3_stmt *s = cache_statement(conn, CACHE_PUT_META);

    sqlite3_bind_int64(s, 2, (int64_t)bytes);
    return put_meta(s, "text_bytes", total_sum(c, bytes));
}

int cache_total_recount(struct ocr_cache *c, struct cache_conn *conn)
{
    int64_t bytes;
    const int rc = cache_query(
        conn->db, "SELECT total(size) FROM results WHERE text <> 0", &bytes);

    return rc == SQLITE_OK ? cache_total_set(c, conn, (uint64_t)bytes) : rc;
}

int cache_total_get(struct ocr_cache *c, struct cache_conn *conn,
                    uint64_t *bytes)
{
    bool good = false;
    int rc = SQLITE_OK;

    for (int tries = 0; !good && rc == SQLITE_OK && tries < 2; tries++) {
        sqlite3_stmt *s = cache_statement(conn, CACHE_GET_META);

        sqlite3_bind_text(s, 1, "text_bytes", -1, SQLITE_STATIC);
        rc = sqlite3_step(s);
        *bytes = (uint64_t)sqlite3_column_int64(s, 0);
        good = rc == SQLITE_ROW &&
               (uint64_t)sqlite3_column_int64(s, 1) == total_sum(c, *bytes);
        cache_reset(s);
        if (!good && (rc == SQLITE_ROW || rc == SQLITE_DONE))
            rc = cache_total_recount(c, conn);
    }
    return good ? SQLITE_OK : rc;
}

/* On a full disk an existing database must open without writing. */
static int set_journal(struct ocr_cache *c, struct cache_conn *conn, bool empty)
{
    const bool wal =
        !c->memory && c->journal == CACHE_JOURNAL_BY_DISK && !c->place.network;
    int64_t ignored;
    int rc =
        empty ? cache_exec(conn, "PRAGMA auto_vacuum=INCREMENTAL") : SQLITE_OK;

    if (rc == SQLITE_OK)
        rc = cache_query(conn->db,
                         wal ? "PRAGMA journal_mode=WAL"
                             : "PRAGMA journal_mode=DELETE",
                         &ignored);
    if (rc == SQLITE_OK)
        rc = cache_exec(conn, wal ? "PRAGMA synchronous=NORMAL;"
                                    "PRAGMA journal_size_limit=8388608"
                                  : "PRAGMA synchronous=FULL");
    return rc;
}

static uint64_t secret_sum(const uint8_t *secret)
{
    return XXH3_64bits_withSecret(secret, OCR_CACHE_SECRET_BYTES, secret,
                                  OCR_CACHE_SECRET_BYTES);
}

static int store_secret(struct ocr_cache *c, struct cache_conn *conn)
{
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(conn->db,
                                "INSERT INTO meta (name, value, sum)"
                                " VALUES (?1, ?2, ?3)",
                                -1, &s, NULL);

    if (rc == SQLITE_OK) {
        sqlite3_bind_blob(s, 2, c->secret, sizeof c->secret, SQLITE_STATIC);
        rc = put_meta(s, "secret", secret_sum(c->secret));
    }
    sqlite3_finalize(s);
    return rc;
}

/* Tables and secret, all or nothing; another process may be faster. */
static int create(struct ocr_cache *c, struct cache_conn *conn)
{
    int64_t format;
    int rc = cache_exec(conn, "BEGIN IMMEDIATE");

    if (rc != SQLITE_OK)
        return rc;
    rc = cache_query(conn->db, "PRAGMA user_version", &format);
    if (rc == SQLITE_OK && format == 0) {
        if (!c->has_secret &&
            getrandom(c->secret, sizeof c->secret, 0) != sizeof c->secret)
            rc = SQLITE_ERROR;
        if (rc == SQLITE_OK)
            rc = cache_exec(conn, tables);
        if (rc == SQLITE_OK)
            rc = store_secret(c, conn);
    }
    if (rc == SQLITE_OK)
        rc = cache_exec(conn, "COMMIT");
    if (rc != SQLITE_OK && !sqlite3_get_autocommit(conn->db))
        cache_exec(conn, "ROLLBACK");
    return rc;
}

/* 0, -ESTALE (another one than the one in use), -EUCLEAN. */
static int take_secret(struct ocr_cache *c, const uint8_t *secret, int len,
                       uint64_t sum)
{
    if (!secret || len != OCR_CACHE_SECRET_BYTES || secret_sum(secret) != sum)
        return -EUCLEAN;
    if (c->has_secret && memcmp(secret, c->secret, sizeof c->secret) != 0)
        return -ESTALE;
    memcpy(c->secret, secret, sizeof c->secret);
    return 0;
}

static int load_secret(struct ocr_cache *c, struct cache_conn *conn)
{
    sqlite3_stmt *s = cache_statement(conn, CACHE_GET_META);
    int code, rc;

    sqlite3_bind_text(s, 1, "secret", -1, SQLITE_STATIC);
    rc = sqlite3_step(s);
    if (rc == SQLITE_ROW)
        code = take_secret(c, sqlite3_column_blob(s, 0),
                           sqlite3_column_bytes(s, 0),
                           (uint64_t)sqlite3_column_int64(s, 1));
    else
        code = rc == SQLITE_DONE ? -EUCLEAN : cache_errno(conn->db, rc);
    cache_reset(s);
    return code;
}

static int failed(const struct ocr_cache *c, struct cache_conn *conn, int rc,
                  struct ocr_err *err)
{
    const int code = cache_errno(conn->db, rc);

    return ocr_err_set(err, code, "cannot open the cache in %s: %s",
                       c->place.dir, sqlite3_errstr(rc));
}

static int check_format(const struct ocr_cache *c, struct cache_conn *conn,
                        bool *empty, struct ocr_err *err)
{
    int64_t format, application, objects;
    int rc = cache_query(conn->db, "PRAGMA user_version", &format);

    if (rc == SQLITE_OK)
        rc = cache_query(conn->db, "PRAGMA application_id", &application);
    if (rc == SQLITE_OK)
        rc = cache_query(conn->db, "SELECT count(*) FROM sqlite_schema",
                         &objects);
    if (rc != SQLITE_OK)
        return failed(c, conn, rc, err);
    *empty = format == 0 && objects == 0;
    if (*empty)
        return 0;
    if (application == APPLICATION && format > FORMAT)
        return ocr_err_set(err, -ENOTSUP,
                           "the cache in %s was made by a newer ocrfs (format "
                           "%lld, this one knows %d): name another folder "
                           "with cache=DIR",
                           c->place.dir, (long long)format, FORMAT);
    if (application != APPLICATION || format != FORMAT)
        return ocr_err_set(err, -EUCLEAN, "%s/%s is no cache of ocrfs",
                           c->place.dir, CACHE_FILE);
    return 0;
}

int cache_schema_open(struct ocr_cache *c, struct cache_conn *conn,
                      struct ocr_err *err)
{
    bool empty = false;
    int rc = SQLITE_OK;
    int code = check_format(c, conn, &empty, err);

    if (code)
        return code;
    rc = set_journal(c, conn, empty);
    if (rc == SQLITE_OK && empty)
        rc = create(c, conn);
    if (rc != SQLITE_OK)
        return failed(c, conn, rc, err);
    rc = cache_conn_prepare(conn);
    if (rc != SQLITE_OK) /* SQLITE_ERROR: a table or column is not there */
        return failed(c, conn, rc == SQLITE_ERROR ? SQLITE_CORRUPT : rc, err);
    code = load_secret(c, conn);
    if (code)
        ocr_err_set(err, code, "the cache in %s cannot be read: its key is %s",
                    c->place.dir, code == -ESTALE ? "another one" : "damaged");
    return code;
}

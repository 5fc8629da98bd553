#include "cache/cache_i.h"
#include "engine/base/io.h"

#include <errno.h>
#include <time.h>

/* Forgetting is more than deleting: no byte of a text may stay in the files.
 * The writer overwrites what it deletes (PRAGMA secure_delete, conn.c), so a
 * text is gone when its pages and the journal's copies of them are. */

enum {
    TIDY_MS = 10000,    /* readers hold the journal for a moment only */
    TIDY_PAUSE_MS = 20, /* between two tries */
    GC_BATCH = 500,     /* rows in one transaction, so that no mount waits */
};

/* ---- tidying ------------------------------------------------------------ */

static int give_pages_back(struct ocr_cache *c, struct cache_conn *conn,
                           void *unused)
{
    (void)c;
    (void)unused;
    return cache_exec(conn, "PRAGMA incremental_vacuum");
}

/* Moves the journal into the database and cuts it to nothing. */
static int empty_journal(struct ocr_cache *c)
{
    struct cache_conn *conn = cache_enter(c, CACHE_SIDE);
    int rc;

    if (!conn)
        return SQLITE_OK;
    rc = sqlite3_wal_checkpoint_v2(conn->db, NULL, SQLITE_CHECKPOINT_TRUNCATE,
                                   NULL, NULL);
    pthread_mutex_unlock(&conn->lock);
    return rc;
}

int cache_tidy(struct ocr_cache *c, struct ocr_err *err)
{
    const int64_t end = ocr_now_ms() + TIDY_MS;
    int code = cache_write(c, give_pages_back, NULL, "give room back", err);
    int rc;

    if (code)
        return code;
    while ((rc = empty_journal(c)) == SQLITE_BUSY && ocr_now_ms() < end)
        nanosleep(&(struct timespec){.tv_nsec = TIDY_PAUSE_MS * 1000000L},
                  NULL);
    if (rc == SQLITE_OK)
        return 0;
    return ocr_err_set(err, rc == SQLITE_BUSY ? -EBUSY : -EIO,
                       "the texts are forgotten, but the journal in %s still "
                       "has them, because others read it (%s): try again",
                       c->place.dir, sqlite3_errstr(rc));
}

/* ---- forget ------------------------------------------------------------- */

struct digests {
    const uint8_t (*digest)[OCR_CACHE_DIGEST_BYTES];
    size_t count;
    uint64_t texts;
};

/* One table in memory for all: the index has no order of digests, and is to
 * be gone through once only. */
static int name_them(struct cache_conn *conn, const struct digests *d)
{
    sqlite3_stmt *s = NULL;
    int rc = cache_exec(conn, "CREATE TEMP TABLE IF NOT EXISTS gone"
                              " (digest BLOB PRIMARY KEY) WITHOUT ROWID;"
                              "DELETE FROM temp.gone");

    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v2(conn->db,
                                "INSERT OR IGNORE INTO temp.gone VALUES (?1)",
                                -1, &s, NULL);
    for (size_t i = 0; rc == SQLITE_OK && i < d->count; i++) {
        sqlite3_bind_blob(s, 1, d->digest[i], OCR_CACHE_DIGEST_BYTES,
                          SQLITE_STATIC);
        rc = cache_run(s);
    }
    sqlite3_finalize(s);
    return rc;
}

static int forget(struct ocr_cache *c, struct cache_conn *conn, void *arg)
{
    struct digests *d = arg;
    int64_t texts = 0;
    int rc = name_them(conn, d);

    if (rc == SQLITE_OK)
        rc = cache_query(conn->db,
                         "SELECT count(*) FROM results WHERE text <> 0"
                         " AND digest IN (SELECT digest FROM temp.gone)",
                         &texts);
    if (rc == SQLITE_OK)
        rc = cache_exec(
            conn,
            "DELETE FROM contents WHERE id IN (SELECT text FROM results"
            " WHERE digest IN (SELECT digest FROM temp.gone));"
            "DELETE FROM results"
            " WHERE digest IN (SELECT digest FROM temp.gone);"
            "DELETE FROM files WHERE digest IN (SELECT digest FROM temp.gone);"
            "DELETE FROM temp.gone");
    if (rc == SQLITE_OK)
        rc = cache_total_recount(c, conn);
    d->texts = (uint64_t)texts;
    return rc;
}

int ocr_cache_forget(struct ocr_cache *c,
                     const uint8_t (*digest)[OCR_CACHE_DIGEST_BYTES],
                     size_t count, uint64_t *texts, struct ocr_err *err)
{
    struct digests d = {.digest = digest, .count = count};
    const int code = cache_write(c, forget, &d, "forget texts", err);

    *texts = d.texts;
    if (code)
        return code;
    cache_place_remove_broken(&c->place);
    return cache_tidy(c, err);
}

/* ---- what nobody needs any more ----------------------------------------- */

struct collection {
    int64_t before_ns;
    uint64_t texts, rows, files;
    bool more;
};

static int64_t changes(struct cache_conn *conn)
{
    return sqlite3_total_changes64(conn->db);
}

/* Runs `text` with the time as ?1 and adds the rows it deleted. */
static int drop_older(struct cache_conn *conn, const char *text,
                      const struct collection *g, uint64_t *count)
{
    const int64_t before = changes(conn);
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(conn->db, text, -1, &s, NULL);

    if (rc == SQLITE_OK) {
        sqlite3_bind_int64(s, 1, g->before_ns);
        sqlite3_bind_int64(s, 2, GC_BATCH);
        rc = cache_run(s);
    }
    sqlite3_finalize(s);
    *count += (uint64_t)(changes(conn) - before);
    return rc;
}

#define OLDEST(what)                                                           \
    " (SELECT " what " FROM results WHERE used_ns < ?1"                        \
    " ORDER BY used_ns, digest, owner, maker LIMIT ?2)"

static int drop_batch(struct ocr_cache *c, struct cache_conn *conn, void *arg)
{
    struct collection *g = arg;
    uint64_t dropped = 0;
    int rc = drop_older(conn, "DELETE FROM contents WHERE id IN" OLDEST("text"),
                        g, &g->texts);

    if (rc == SQLITE_OK)
        rc = drop_older(
            conn,
            "DELETE FROM results WHERE (digest, owner, maker) IN" OLDEST(
                "digest, owner, maker"),
            g, &dropped);
    if (rc == SQLITE_OK)
        rc = cache_total_recount(c, conn);
    g->rows += dropped;
    g->more = dropped == GC_BATCH;
    return rc;
}

/* Files whose content is known no more. */
static int drop_files(struct ocr_cache *c, struct cache_conn *conn, void *arg)
{
    struct collection *g = arg;
    const int64_t before = changes(conn);
    const int rc = cache_exec(conn, "DELETE FROM files WHERE digest NOT IN"
                                    " (SELECT digest FROM results)");

    (void)c;
    g->files = (uint64_t)(changes(conn) - before);
    return rc;
}

int ocr_cache_collect(struct ocr_cache *c, int64_t before_ns,
                      struct ocr_cache_collected *out, struct ocr_err *err)
{
    struct collection g = {.before_ns = before_ns, .more = true};
    int code = 0;

    *out = (struct ocr_cache_collected){0};
    while (!code && g.more)
        code = cache_write(c, drop_batch, &g, "drop old texts", err);
    if (!code && g.rows)
        code = cache_write(c, drop_files, &g, "drop old files", err);
    if (!code && g.rows)
        code = cache_tidy(c, err);
    *out = (struct ocr_cache_collected){
        .texts = g.texts, .rows = g.rows, .files = g.files};
    return code;
}

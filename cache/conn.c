#include "cache/cache_i.h"

#include <errno.h>

enum {
    BUSY_MS = 250,
    PAGES_KIB = 1024, /* of memory for pages, each connection */
};

static const char *const sql[CACHE_STATEMENTS] = {
    [CACHE_BEGIN] = "BEGIN",
    [CACHE_BEGIN_WRITE] = "BEGIN IMMEDIATE",
    [CACHE_COMMIT] = "COMMIT",
    [CACHE_ROLLBACK] = "ROLLBACK",
    [CACHE_FIND_FILE] = "SELECT size, mtime_ns, ctime_ns, digest, racy, sum"
                        " FROM files WHERE fs = ?1 AND ino = ?2",
    [CACHE_PUT_FILE] = "INSERT OR REPLACE INTO files"
                       " (fs, ino, size, mtime_ns, ctime_ns, digest, racy,"
                       " sum) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    [CACHE_DROP_FILE] = "DELETE FROM files WHERE fs = ?1 AND ino = ?2",
    [CACHE_FIND_RESULTS] = CACHE_RESULT_COLUMNS " WHERE r.digest = ?1"
                                                " AND r.owner = ?2",
    [CACHE_OLDEST_RESULT] = CACHE_RESULT_COLUMNS " WHERE r.text <> 0"
                                                 " ORDER BY r.used_ns LIMIT 1",
    [CACHE_PUT_RESULT] = "INSERT OR REPLACE INTO results"
                         " (digest, owner, maker, kind, size, made_ns,"
                         " redone_ns, used_ns, text, sentence, sum) VALUES"
                         " (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    [CACHE_MARK_RESULT] = "UPDATE results SET used_ns = ?4, text = ?5,"
                          " sum = ?6 WHERE digest = ?1 AND owner = ?2"
                          " AND maker = ?3",
    [CACHE_DROP_RESULT] = "DELETE FROM results WHERE digest = ?1"
                          " AND owner = ?2 AND maker = ?3",
    [CACHE_NEXT_TEXT] = "SELECT ifnull(max(id), 0) + 1 FROM contents",
    [CACHE_GET_TEXT] = "SELECT text, sum FROM contents WHERE id = ?1",
    [CACHE_PUT_TEXT] = "INSERT OR REPLACE INTO contents (id, text, sum)"
                       " VALUES (?1, ?2, ?3)",
    [CACHE_DROP_TEXT] = "DELETE FROM contents WHERE id = ?1",
    [CACHE_FIND_MAKER] = "SELECT id FROM makers WHERE recogniser = ?1"
                         " AND settings = ?2 AND fingerprint = ?3",
    [CACHE_PUT_MAKER] = "INSERT INTO makers (recogniser, settings,"
                        " fingerprint, sum) VALUES (?1, ?2, ?3, ?4)",
    [CACHE_GET_META] = "SELECT value, sum FROM meta WHERE name = ?1",
    [CACHE_PUT_META] = "INSERT OR REPLACE INTO meta (name, value, sum)"
                       " VALUES (?1, ?2, ?3)",
};

int cache_errno(sqlite3 *db, int rc)
{
    const int system = db ? sqlite3_system_errno(db) : 0;

    switch (rc & 0xff) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE:
        return 0;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return -EUCLEAN;
    case SQLITE_FULL:
        return -ENOSPC;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return -EBUSY;
    case SQLITE_READONLY:
        return -EROFS;
    case SQLITE_NOMEM:
        return -ENOMEM;
    case SQLITE_TOOBIG:
        return -EFBIG;
    case SQLITE_IOERR:
        return system ? -system : -EIO;
    case SQLITE_CANTOPEN:
        return system ? -system : -EACCES;
    default:
        return -EIO;
    }
}

static int set_up(struct cache_conn *conn, bool read_only)
{
    char pragmas[160];

    sqlite3_extended_result_codes(conn->db, 1);
    sqlite3_busy_timeout(conn->db, BUSY_MS);
    sqlite3_db_config(conn->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(conn->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    sqlite3_snprintf(sizeof pragmas, pragmas,
                     "PRAGMA cache_size=-%d; PRAGMA cell_size_check=1;"
                     "PRAGMA temp_store=MEMORY; PRAGMA secure_delete=ON;"
                     "PRAGMA query_only=%d",
                     PAGES_KIB, read_only);
    return cache_exec(conn, pragmas);
}

int cache_conn_open(struct cache_conn *conn, const char *path, bool read_only,
                    const char *vfs)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX;
    int rc;

    flags |= path ? SQLITE_OPEN_NOFOLLOW : SQLITE_OPEN_MEMORY;
    rc = sqlite3_open_v2(path ? path : ":memory:", &conn->db, flags, vfs);
    return rc == SQLITE_OK ? set_up(conn, read_only) : rc;
}

int cache_conn_prepare(struct cache_conn *conn)
{
    for (int i = 0; i < CACHE_STATEMENTS; i++) {
        const int rc =
            sqlite3_prepare_v3(conn->db, sql[i], -1, SQLITE_PREPARE_PERSISTENT,
                               &conn->prepared[i], NULL);
        if (rc != SQLITE_OK)
            return rc;
    }
    return SQLITE_OK;
}

void cache_conn_close(struct cache_conn *conn)
{
    for (int i = 0; i < CACHE_STATEMENTS; i++) {
        sqlite3_finalize(conn->prepared[i]);
        conn->prepared[i] = NULL;
    }
    sqlite3_close(conn->db);
    conn->db = NULL;
}

void cache_reset(sqlite3_stmt *s)
{
    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
}

sqlite3_stmt *cache_statement(struct cache_conn *conn,
                              enum cache_statement which)
{
    cache_reset(conn->prepared[which]);
    return conn->prepared[which];
}

int cache_run(sqlite3_stmt *s)
{
    int rc;

    do {
        rc = sqlite3_step(s);
    } while (rc == SQLITE_ROW);
    cache_reset(s);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

int cache_exec(struct cache_conn *conn, const char *text)
{
    return sqlite3_exec(conn->db, text, NULL, NULL, NULL);
}

int cache_query(sqlite3 *db, const char *text, int64_t *value)
{
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(db, text, -1, &s, NULL);

    *value = 0;
    if (rc == SQLITE_OK)
        rc = sqlite3_step(s);
    if (rc == SQLITE_ROW) {
        *value = sqlite3_column_int64(s, 0);
        rc = SQLITE_OK;
    }
    sqlite3_finalize(s);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

int cache_end(struct cache_conn *conn, int rc)
{
    if (rc == SQLITE_OK)
        rc = cache_run(cache_statement(conn, CACHE_COMMIT));
    if (rc != SQLITE_OK && !sqlite3_get_autocommit(conn->db))
        cache_run(cache_statement(conn, CACHE_ROLLBACK));
    return rc;
}

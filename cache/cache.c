#include "cache/cache_i.h"
#include "engine/base/io.h"
#include "engine/base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum {
    SHARED_WAIT_MS = 2000, /* while another process moves damage aside */
    ALONE_WAIT_MS = 500,   /* at open; a running mount does not wait */
    OPEN_TRIES = 15,       /* while another process makes the tables */
    OPEN_PAUSE_MS = 25,
    HEALS_MAX = 3,    /* a disk that damages it again and again is left alone */
    WAL_PAGES = 1000, /* then the keeper empties the journal */
    WAL_PAGES_MAX = 2000, /* it does not get done while others write */
    PAGE_BYTES = 4096,
    EMPTY_MS = 1000, /* on a full disk the journal is emptied so often */
};
/* So much must be free to let other processes in again. */
#define ROOM_BYTES ((uint64_t)256 << 10)

/* The journal is a good part of what the disk has left: while it still fits,
 * it goes into the database, or texts would find no room because of it. */
static bool is_tight(const struct ocr_cache *c, int pages)
{
    uint64_t free_bytes, total;

    return cache_place_room(&c->place, &free_bytes, &total) &&
           free_bytes / 4 < (uint64_t)pages * PAGE_BYTES;
}

/* After each commit of the writer. */
static int wal_grew(void *arg, sqlite3 *db, const char *name, int pages)
{
    struct ocr_cache *c = arg;

    if (pages >= WAL_PAGES_MAX || c->room.checkpoint || is_tight(c, pages)) {
        c->room.checkpoint = false;
        sqlite3_wal_checkpoint_v2(db, name, SQLITE_CHECKPOINT_PASSIVE, NULL,
                                  NULL);
    } else if (pages >= WAL_PAGES) {
        cache_keeper_checkpoint(c);
    }
    return SQLITE_OK;
}

static void disconnect(struct ocr_cache *c)
{
    for (int i = CACHE_ROLES - 1; i >= 0; i--)
        cache_conn_close(&c->conn[i]);
}

static int cannot_open(struct ocr_cache *c, sqlite3 *db, int rc,
                       struct ocr_err *err)
{
    return ocr_err_set(err, cache_errno(db, rc),
                       "cannot open the cache in %s: %s", c->place.dir,
                       sqlite3_errstr(rc));
}

/* The usual one keeps the index of the journal in a file beside it, which a
 * full disk has no room for; the other one in memory, and lets nobody else in.
 */
static const char *vfs_of(const struct ocr_cache *c)
{
    return c->alone ? "unix-excl" : NULL;
}

static int open_writer(struct ocr_cache *c, const char *path,
                       struct ocr_err *err)
{
    struct cache_conn *conn = &c->conn[CACHE_WRITE];
    const int rc = cache_conn_open(conn, path, false, vfs_of(c));

    if (rc != SQLITE_OK)
        return cannot_open(c, conn->db, rc, err);
    return cache_schema_open(c, conn, err);
}

static int open_readers(struct ocr_cache *c, const char *path,
                        struct ocr_err *err)
{
    sqlite3 *writer = c->conn[CACHE_WRITE].db;

    sqlite3_wal_hook(writer, wal_grew, c);
    for (int i = CACHE_READ; i < CACHE_ROLES; i++) {
        struct cache_conn *conn = &c->conn[i];
        int rc = cache_conn_open(conn, path, i == CACHE_READ, vfs_of(c));

        if (rc == SQLITE_OK)
            rc = cache_conn_prepare(conn);
        if (rc != SQLITE_OK)
            return cannot_open(c, conn->db, rc, err);
    }
    return 0;
}

static bool is_full(const struct ocr_cache *c)
{
    uint64_t free_bytes, total;

    return cache_place_room(&c->place, &free_bytes, &total) &&
           free_bytes < ROOM_BYTES;
}

/* Opens the database as it is, or makes it: 0, -EUCLEAN (damaged), ... */
static int connect_disk(struct ocr_cache *c, struct ocr_err *err)
{
    struct ocr_err why = OCR_ERR_INIT;
    char path[4096];
    int code;

    c->alone = false;
    if (snprintf(path, sizeof path, "%s/%s", c->place.dir, CACHE_FILE) >=
        (int)sizeof path)
        return ocr_err_set(err, -ENAMETOOLONG,
                           "the cache folder's name is "
                           "too long");
    for (int tries = 0; tries < OPEN_TRIES; tries++) {
        ocr_err_clear(&why);
        code = cache_place_touch(&c->place, &why);
        if (code == 0)
            code = open_writer(c, path, &why);
        if (code == 0)
            code = open_readers(c, path, &why);
        if (code == 0)
            return 0;
        disconnect(c);
        if (code != -EBUSY && code != -EUCLEAN && !c->alone &&
            (code == -EDQUOT || is_full(c))) {
            c->alone = true;
            continue;
        }
        if (code != -EBUSY)
            break;
        nanosleep(&(struct timespec){.tv_nsec = OPEN_PAUSE_MS * 1000000L},
                  NULL);
    }
    return ocr_err_set(err, code, "%s", why.text);
}

static int connect_memory(struct ocr_cache *c, struct ocr_err *err)
{
    c->memory = true;
    return open_writer(c, NULL, err);
}

static int move_aside(struct ocr_cache *c, struct ocr_err *err)
{
    char name[64];
    const int code = cache_place_move_aside(&c->place, name, err);

    if (code == 0)
        ocr_warning("the cache in %s was damaged: moved aside as %s and begun "
                    "anew",
                    c->place.dir, name);
    return code;
}

/* With the lock held alone: moves the database aside, unless somebody did so
 * before we got the lock. */
static int replace_damaged(struct ocr_cache *c, bool condemned,
                           struct ocr_err *err)
{
    const int code = condemned ? -EUCLEAN : connect_disk(c, NULL);

    disconnect(c);
    return code == -EUCLEAN ? move_aside(c, err) : 0;
}

/* Takes the lock and connects. `condemned`: damage was found in use, do not
 * even look. -EUCLEAN: damaged, and others have it open. */
static int attach(struct ocr_cache *c, bool condemned, struct ocr_err *err)
{
    int code;

    for (int tries = 0; tries < 3; tries++) {
        if (!condemned) {
            code = cache_place_lock(&c->place, CACHE_SHARED, SHARED_WAIT_MS);
            if (code)
                return ocr_err_set(err, code, "the cache in %s is locked",
                                   c->place.dir);
            code = connect_disk(c, err);
            if (code != -EUCLEAN)
                return code;
            ocr_err_clear(err);
        }
        code = cache_place_lock(&c->place, CACHE_ALONE,
                                condemned ? 0 : ALONE_WAIT_MS);
        if (code == 0)
            code = replace_damaged(c, condemned, err);
        else
            return -EUCLEAN;
        if (code)
            return code;
        condemned = false;
    }
    return -EUCLEAN;
}

/* `why` "": others have the damaged database open. */
static int fall_back(struct ocr_cache *c, const char *why, struct ocr_err *err)
{
    cache_place_unlock(&c->place);
    ocr_warning("the cache in %s is damaged and cannot be begun anew (%s): "
                "texts are kept in memory only",
                c->place.dir, *why ? why : "others use it");
    return connect_memory(c, err);
}

/* All connection locks held. */
static void replace_in_use(struct ocr_cache *c)
{
    struct ocr_err why = OCR_ERR_INIT, none = OCR_ERR_INIT;
    int code = -EUCLEAN;

    disconnect(c);
    if (!c->memory && c->heals++ < HEALS_MAX)
        code = attach(c, true, &why);
    if (code && fall_back(c, why.text, &none))
        ocr_warning("%s: nothing is kept", none.text);
}

static void heal(struct ocr_cache *c, uint64_t seen, int rc)
{
    struct cache_conn *writer = &c->conn[CACHE_WRITE];

    for (int i = 0; i < CACHE_ROLES; i++)
        pthread_mutex_lock(&c->conn[i].lock);
    if (c->generation == seen) {
        /* A lost entry of an index is made again from the rows. */
        if (rc != SQLITE_CORRUPT_INDEX || !writer->db ||
            cache_exec(writer, "REINDEX") != SQLITE_OK)
            replace_in_use(c);
        c->generation++;
    }
    for (int i = CACHE_ROLES - 1; i >= 0; i--)
        pthread_mutex_unlock(&c->conn[i].lock);
}

struct cache_conn *cache_enter(struct ocr_cache *c, enum cache_role role)
{
    struct cache_conn *conn = &c->conn[role];

    pthread_mutex_lock(&conn->lock);
    if (!conn->db && role != CACHE_WRITE) {
        pthread_mutex_unlock(&conn->lock);
        conn = &c->conn[CACHE_WRITE];
        pthread_mutex_lock(&conn->lock);
    }
    if (conn->db)
        return conn;
    pthread_mutex_unlock(&conn->lock);
    return NULL;
}

int cache_leave(struct ocr_cache *c, struct cache_conn *conn, int rc,
                const char *doing, struct ocr_err *err)
{
    const int code = cache_errno(conn->db, rc);
    const uint64_t seen = c->generation;

    pthread_mutex_unlock(&conn->lock);
    if (code == -EUCLEAN)
        heal(c, seen, rc);
    if (code)
        ocr_err_set(
            err, code, "cannot %s in the cache in %s: %s", doing, c->place.dir,
            (rc & 0xff) == SQLITE_IOERR ? strerror(-code) : sqlite3_errstr(rc));
    return code;
}

/* The disk is full: pages of the journal that have their place in the database
 * already can go there, and leave theirs to new ones. */
static bool empty_journal(struct ocr_cache *c)
{
    struct cache_conn *conn = cache_enter(c, CACHE_WRITE);
    bool emptied = false;

    if (!conn)
        return false;
    if (ocr_now_ms() - c->room.emptied_ms >= EMPTY_MS) {
        c->room.emptied_ms = ocr_now_ms();
        emptied =
            sqlite3_wal_checkpoint_v2(conn->db, NULL, SQLITE_CHECKPOINT_RESTART,
                                      NULL, NULL) == SQLITE_OK;
    }
    pthread_mutex_unlock(&conn->lock);
    return emptied;
}

/* There is room again: other processes may come in. */
static void let_others_in(struct ocr_cache *c)
{
    struct ocr_err why = OCR_ERR_INIT, none = OCR_ERR_INIT;

    for (int i = 0; i < CACHE_ROLES; i++)
        pthread_mutex_lock(&c->conn[i].lock);
    if (c->alone && !c->memory) {
        disconnect(c);
        if (attach(c, false, &why) && fall_back(c, why.text, &none))
            ocr_warning("%s: nothing is kept", none.text);
        c->generation++;
    }
    for (int i = CACHE_ROLES - 1; i >= 0; i--)
        pthread_mutex_unlock(&c->conn[i].lock);
}

int cache_write(struct ocr_cache *c, cache_job *job, void *arg,
                const char *doing, struct ocr_err *err)
{
    struct ocr_err why = OCR_ERR_INIT;
    bool again = true;
    int code = -EUCLEAN;

    for (int tries = 0; again && tries < 3; tries++) {
        struct cache_conn *conn = cache_enter(c, CACHE_WRITE);
        int rc;

        if (!conn)
            return ocr_err_set(err, -EIO, "cannot %s: there is no cache",
                               doing);
        ocr_err_clear(&why);
        rc = cache_run(cache_statement(conn, CACHE_BEGIN_WRITE));
        if (rc == SQLITE_OK)
            rc = cache_end(conn, job(c, conn, arg));
        code = cache_leave(c, conn, rc, doing, &why);
        again = code == -EUCLEAN ||
                ((code == -ENOSPC || code == -EDQUOT) && empty_journal(c));
    }
    if (!code && c->alone && !is_full(c))
        let_others_in(c);
    return code ? ocr_err_set(err, code, "%s", why.text) : 0;
}

static int init_locks(struct ocr_cache *c)
{
    pthread_condattr_t monotonic;

    for (int i = 0; i < CACHE_ROLES; i++)
        pthread_mutex_init(&c->conn[i].lock, NULL);
    pthread_mutex_init(&c->keeper.lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&c->keeper.wake, &monotonic);
    return pthread_condattr_destroy(&monotonic);
}

static int open_database(struct ocr_cache *c, const char *dir,
                         struct ocr_err *err)
{
    int code = cache_place_open(&c->place, dir, err);

    if (code)
        return code;
    if (c->place.dirfd < 0)
        return connect_memory(c, err);
    code = attach(c, false, err);
    return code == -EUCLEAN ? fall_back(c, "", err) : code;
}

int cache_open(struct ocr_cache **out, const struct ocr_cache_options *options,
               enum cache_journal journal, struct ocr_err *err)
{
    struct ocr_cache *c = calloc(1, sizeof *c);
    int code;

    *out = NULL;
    if (!c)
        return ocr_err_set(err, -ENOMEM, "no memory for the cache");
    c->journal = journal;
    c->max_bytes = options->max_bytes;
    c->keep_free = options->keep_free;
    init_locks(c);
    code = open_database(c, options->dir, err);
    c->has_secret = code == 0;
    if (code == 0)
        code = cache_keeper_start(c, err);
    if (code) {
        ocr_cache_close(c);
        return code;
    }
    *out = c;
    return 0;
}

int ocr_cache_open(struct ocr_cache **out,
                   const struct ocr_cache_options *options, struct ocr_err *err)
{
    return cache_open(out, options, CACHE_JOURNAL_BY_DISK, err);
}

void ocr_cache_close(struct ocr_cache *c)
{
    if (!c)
        return;
    cache_keeper_stop(c);
    disconnect(c);
    cache_place_release(&c->place);
    for (int i = 0; i < CACHE_ROLES; i++)
        pthread_mutex_destroy(&c->conn[i].lock);
    pthread_cond_destroy(&c->keeper.wake);
    pthread_mutex_destroy(&c->keeper.lock);
    explicit_bzero(c->secret, sizeof c->secret);
    free(c);
}

const uint8_t *ocr_cache_secret(const struct ocr_cache *c)
{
    return c->secret;
}

const char *ocr_cache_path(const struct ocr_cache *c)
{
    return c->memory ? "memory" : c->place.dir;
}

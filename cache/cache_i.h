/* cache/cache_i.h - what the files of the cache share.
 *
 * Three connections to one database: WRITE changes it, READ answers the
 * questions of the file system, SIDE counts, verifies and checkpoints, which
 * may take long. In memory there is only WRITE, and it serves all.
 *
 * Locks, in this order, each after those above it:
 *   conn[WRITE].lock  the connection, room, heals; held during a commit
 *   conn[READ].lock   the connection; held for microseconds
 *   conn[SIDE].lock   the connection; held as long as a count takes
 *   keeper.lock       stamps, stop; held for microseconds
 * Replacing a damaged database takes the first three, so whoever holds one of
 * them has a stable generation, secret and place.
 *
 * Layer:   cache, private. */
#ifndef OCR_CACHE_I_H
#define OCR_CACHE_I_H
#include "cache/cache.h"
#include "cache/place.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>

enum cache_role {
    CACHE_WRITE,
    CACHE_READ,
    CACHE_SIDE,
    CACHE_ROLES
};

enum cache_statement {
    CACHE_BEGIN,
    CACHE_BEGIN_WRITE,
    CACHE_COMMIT,
    CACHE_ROLLBACK,
    CACHE_FIND_FILE,
    CACHE_PUT_FILE,
    CACHE_DROP_FILE,
    CACHE_FIND_RESULTS,
    CACHE_OLDEST_RESULT,
    CACHE_PUT_RESULT,
    CACHE_MARK_RESULT,
    CACHE_DROP_RESULT,
    CACHE_NEXT_TEXT,
    CACHE_GET_TEXT,
    CACHE_PUT_TEXT,
    CACHE_DROP_TEXT,
    CACHE_FIND_MAKER,
    CACHE_PUT_MAKER,
    CACHE_GET_META,
    CACHE_PUT_META,
    CACHE_STATEMENTS,
};

struct cache_conn {
    pthread_mutex_t lock;
    sqlite3 *db; /* NULL: closed */
    sqlite3_stmt *prepared[CACHE_STATEMENTS];
};

enum {
    CACHE_STAMPS_BATCH = 128, /* written when so many have come together */
    CACHE_STAMPS_MAX = 512,   /* more are dropped */
};

/* A use of a text, not written yet. */
struct cache_stamp {
    struct ocr_cache_key key;
    int64_t maker, used_ns;
};

/* The thread that writes stamps and moves the journal into the database. */
struct cache_keeper {
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop, checkpoint;   /* guarded by lock */
    int64_t stamps_since_ms; /* of the first one; guarded by lock */
    unsigned stamps;         /* guarded by lock */
    struct cache_stamp stamp[CACHE_STAMPS_MAX]; /* guarded by lock */
};

enum cache_journal {
    CACHE_JOURNAL_BY_DISK, /* WAL but on network file systems */
    CACHE_JOURNAL_DELETE,
};

struct ocr_cache {
    struct cache_place place; /* dir: immutable after open */
    enum cache_journal journal;
    uint64_t max_bytes, keep_free;          /* as given; immutable after open */
    uint8_t secret[OCR_CACHE_SECRET_BYTES]; /* immutable after open */
    bool has_secret;
    atomic_bool memory;  /* there is no disk (any more) */
    atomic_bool alone;   /* opened on a full disk: no other process gets in */
    uint64_t generation; /* of the database; any conn lock to read */
    unsigned heals;
    struct cache_conn conn[CACHE_ROLES];
    struct cache_keeper keeper;
    /* Bytes that may still come until keep_free is touched; measured now and
     * then. Guarded by conn[WRITE].lock. */
    struct {
        int64_t left, measured_ms;
        uint64_t written;
        bool shrink;        /* give freed pages back to the disk */
        bool checkpoint;    /* behind the next commit */
        int64_t emptied_ms; /* when the journal was, for want of room */
    } room;
    atomic_uint_fast64_t hits, misses, bad_rows;
};

/* ---- cache.c ------------------------------------------------------------ */

/* ocr_cache_open with a choice of journal, for tests. */
int cache_open(struct ocr_cache **out, const struct ocr_cache_options *options,
               enum cache_journal journal, struct ocr_err *err);

/* The connection for `role`, locked; NULL if there is none any more. */
struct cache_conn *cache_enter(struct ocr_cache *c, enum cache_role role);

/* Unlocks; heals if `rc` (SQLite's) says that the database is damaged.
 * Returns 0 or a negative errno with "cannot `doing`: why" in err. */
int cache_leave(struct ocr_cache *c, struct cache_conn *conn, int rc,
                const char *doing, struct ocr_err *err);

/* Runs `job` in a write transaction; once more if it met damage that could be
 * healed. The job returns SQLite's codes. */
typedef int cache_job(struct ocr_cache *c, struct cache_conn *conn, void *arg);
int cache_write(struct ocr_cache *c, cache_job *job, void *arg,
                const char *doing, struct ocr_err *err);

/* ---- conn.c ------------------------------------------------------------- */

/* Negative errno for SQLite's `rc`; -EUCLEAN: the database is damaged. */
int cache_errno(sqlite3 *db, int rc);

/* `path` NULL: in memory. vfs: SQLite's name of one, NULL: the usual one.
 * SQLite's code; release also after a failure. */
int cache_conn_open(struct cache_conn *conn, const char *path, bool read_only,
                    const char *vfs);
int cache_conn_prepare(struct cache_conn *conn);
void cache_conn_close(struct cache_conn *conn);

/* The prepared statement, reset and without bindings. */
sqlite3_stmt *cache_statement(struct cache_conn *conn,
                              enum cache_statement which);

/* Steps to the end, then resets: SQLITE_OK or an error. */
int cache_run(sqlite3_stmt *s);

/* Resets and forgets borrowed bindings. */
void cache_reset(sqlite3_stmt *s);

int cache_exec(struct cache_conn *conn, const char *text);

/* First column of the first row of the SQL `text`. */
int cache_query(sqlite3 *db, const char *text, int64_t *value);

/* Commits if rc is OK, else rolls back; the code to go on with. */
int cache_end(struct cache_conn *conn, int rc);

/* ---- schema.c ----------------------------------------------------------- */

/* Pragmas, tables, secret: makes them in an empty database, checks them in
 * another. 0, -EUCLEAN (damaged), -ESTALE (not ours any more), ... */
int cache_schema_open(struct ocr_cache *c, struct cache_conn *conn,
                      struct ocr_err *err);

/* Keyed checksum of a row: of the fields, strings as their cache_hash. */
uint64_t cache_hash(const struct ocr_cache *c, const void *data, size_t len);
uint64_t cache_sum(const struct ocr_cache *c, const uint64_t *fields,
                   size_t count);

/* Bytes of all texts, kept in the database. */
int cache_total_get(struct ocr_cache *c, struct cache_conn *conn,
                    uint64_t *bytes);
int cache_total_set(struct ocr_cache *c, struct cache_conn *conn,
                    uint64_t bytes);
int cache_total_add(struct ocr_cache *c, struct cache_conn *conn,
                    int64_t change);
int cache_total_recount(struct ocr_cache *c, struct cache_conn *conn);

/* ---- forget.c ----------------------------------------------------------- */

/* Gives free pages back to the disk and empties the journal. */
int cache_tidy(struct ocr_cache *c, struct ocr_err *err);

/* ---- files.c ------------------------------------------------------------ */

uint64_t cache_file_sum(const struct ocr_cache *c, const struct ocr_file_id *id,
                        const uint8_t *digest, int64_t racy);

/* ---- result.c: rows of texts and verdicts -------------------------------- */

struct cache_result {
    struct ocr_cache_key key;
    int64_t maker; /* id */
    int64_t kind, made_ns, redone_ns, used_ns;
    uint64_t size;
    int64_t text; /* id in contents, 0: none */
    /* Borrowed from the statement. */
    const char *sentence, *recogniser, *settings, *fingerprint;
};

#define CACHE_RESULT_COLUMNS                                                   \
    "SELECT r.digest, r.owner, r.maker, r.kind, r.size, r.made_ns,"            \
    " r.redone_ns, r.used_ns, r.text, r.sentence, r.sum, m.recogniser,"        \
    " m.settings, m.fingerprint"                                               \
    " FROM results r LEFT JOIN makers m ON m.id = r.maker"

/* The current row of CACHE_RESULT_COLUMNS or OLDEST_RESULT; false if its
 * checksum is wrong (then only key and ids may be used, to drop it). */
bool cache_result_load(const struct ocr_cache *c, sqlite3_stmt *s,
                       struct cache_result *out);
sqlite3_stmt *cache_results_of(struct cache_conn *conn,
                               const struct ocr_cache_key *key);
int cache_result_store(struct ocr_cache *c, struct cache_conn *conn,
                       const struct cache_result *r);

/* Writes used_ns and text of a row that is there. */
int cache_result_mark(struct ocr_cache *c, struct cache_conn *conn,
                      const struct cache_result *r);

/* Row and text go; or the text alone, the size stays; or a damaged row goes
 * with the text it names. All keep the total right. */
int cache_result_drop(struct ocr_cache *c, struct cache_conn *conn,
                      const struct cache_result *r);
int cache_result_evict(struct ocr_cache *c, struct cache_conn *conn,
                       struct cache_result *r);
int cache_result_purge(struct ocr_cache *c, struct cache_conn *conn,
                       const struct cache_result *r);

/* Finds the text of r: SQLITE_ROW with *s on it, its column 0 the text;
 * SQLITE_DONE with *bad if it is missing or damaged. cache_reset(*s). */
int cache_text_find(struct ocr_cache *c, struct cache_conn *conn,
                    const struct cache_result *r, sqlite3_stmt **s, bool *bad);
uint64_t cache_maker_sum(const struct ocr_cache *c, const char *recogniser,
                         const char *settings, const char *fingerprint);
uint64_t cache_text_sum(const struct ocr_cache *c, const struct cache_result *r,
                        const void *text, size_t len);

/* Removes damaged rows of a key, and counts them. */
void cache_sweep(struct ocr_cache *c, const struct ocr_cache_key *key);

/* ---- evict.c ------------------------------------------------------------ */

/* Makes room for `len` bytes of text, within a write transaction. */
int cache_make_room(struct ocr_cache *c, struct cache_conn *conn, size_t len);

/* Behind a write that made room: gives freed pages back to a disk that is
 * short of them. */
int cache_shrink(struct ocr_cache *c, struct cache_conn *conn);

/* Above the limit all by itself. */
bool cache_too_long(const struct ocr_cache *c, size_t len);

/* ---- keeper.c ----------------------------------------------------------- */

int cache_keeper_start(struct ocr_cache *c, struct ocr_err *err);
void cache_keeper_stop(struct ocr_cache *c);
void cache_keeper_stamp(struct ocr_cache *c, const struct ocr_cache_key *key,
                        int64_t maker);

/* Asks for a checkpoint soon. */
void cache_keeper_checkpoint(struct ocr_cache *c);

/* Writes the stamps that have come together; a cache_job. */
int cache_stamps_write(struct ocr_cache *c, struct cache_conn *conn,
                       void *unused);

#endif

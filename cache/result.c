#include "cache/cache_i.h"

#include <string.h>

/* Rows of one key that are looked at in one go. */
enum {
    ROWS_MAX = 32
};

static uint64_t hash_string(const struct ocr_cache *c, const char *s)
{
    return cache_hash(c, s, strlen(s));
}

static void split_digest(const struct ocr_cache_key *key, uint64_t out[2])
{
    memcpy(out, key->digest, OCR_CACHE_DIGEST_BYTES);
}

static uint64_t result_sum(const struct ocr_cache *c,
                           const struct cache_result *r)
{
    uint64_t digest[2];

    split_digest(&r->key, digest);
    return cache_sum(c,
                     (uint64_t[]){
                         'r',
                         digest[0],
                         digest[1],
                         r->key.owner,
                         (uint64_t)r->maker,
                         (uint64_t)r->kind,
                         r->size,
                         (uint64_t)r->made_ns,
                         (uint64_t)r->redone_ns,
                         (uint64_t)r->used_ns,
                         (uint64_t)r->text,
                         hash_string(c, r->sentence),
                         hash_string(c, r->recogniser),
                         hash_string(c, r->settings),
                         hash_string(c, r->fingerprint),
                     },
                     15);
}

uint64_t cache_maker_sum(const struct ocr_cache *c, const char *recogniser,
                         const char *settings, const char *fingerprint)
{
    return cache_sum(c,
                     (uint64_t[]){'m', hash_string(c, recogniser),
                                  hash_string(c, settings),
                                  hash_string(c, fingerprint)},
                     4);
}

static const char *column_string(sqlite3_stmt *s, int column)
{
    const void *text = sqlite3_column_text(s, column);

    return text ? text : "";
}

/* The digest column into the key; false if it is none. */
static bool column_digest(sqlite3_stmt *s, int column, uint8_t *digest)
{
    const void *bytes = sqlite3_column_blob(s, column);

    if (!bytes || sqlite3_column_bytes(s, column) != OCR_CACHE_DIGEST_BYTES)
        return false;
    memcpy(digest, bytes, OCR_CACHE_DIGEST_BYTES);
    return true;
}

bool cache_result_load(const struct ocr_cache *c, sqlite3_stmt *s,
                       struct cache_result *out)
{
    const int64_t owner = sqlite3_column_int64(s, 1);

    *out = (struct cache_result){
        .key.owner = (uint32_t)owner,
        .maker = sqlite3_column_int64(s, 2),
        .kind = sqlite3_column_int64(s, 3),
        .size = (uint64_t)sqlite3_column_int64(s, 4),
        .made_ns = sqlite3_column_int64(s, 5),
        .redone_ns = sqlite3_column_int64(s, 6),
        .used_ns = sqlite3_column_int64(s, 7),
        .text = sqlite3_column_int64(s, 8),
        .sentence = column_string(s, 9),
        .recogniser = column_string(s, 11),
        .settings = column_string(s, 12),
        .fingerprint = column_string(s, 13),
    };
    return column_digest(s, 0, out->key.digest) && owner == out->key.owner &&
           (uint64_t)sqlite3_column_int64(s, 10) == result_sum(c, out);
}

static void bind_key(sqlite3_stmt *s, const struct ocr_cache_key *key)
{
    sqlite3_bind_blob(s, 1, key->digest, sizeof key->digest, SQLITE_STATIC);
    sqlite3_bind_int64(s, 2, key->owner);
}

sqlite3_stmt *cache_results_of(struct cache_conn *conn,
                               const struct ocr_cache_key *key)
{
    sqlite3_stmt *s = cache_statement(conn, CACHE_FIND_RESULTS);

    bind_key(s, key);
    return s;
}

int cache_result_store(struct ocr_cache *c, struct cache_conn *conn,
                       const struct cache_result *r)
{
    sqlite3_stmt *s = cache_statement(conn, CACHE_PUT_RESULT);

    bind_key(s, &r->key);
    sqlite3_bind_int64(s, 3, r->maker);
    sqlite3_bind_int64(s, 4, r->kind);
    sqlite3_bind_int64(s, 5, (int64_t)r->size);
    sqlite3_bind_int64(s, 6, r->made_ns);
    sqlite3_bind_int64(s, 7, r->redone_ns);
    sqlite3_bind_int64(s, 8, r->used_ns);
    sqlite3_bind_int64(s, 9, r->text);
    sqlite3_bind_text(s, 10, r->sentence, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 11, (int64_t)result_sum(c, r));
    return cache_run(s);
}

int cache_result_mark(struct ocr_cache *c, struct cache_conn *conn,
                      const struct cache_result *r)
{
    const uint64_t sum = result_sum(c, r);
    sqlite3_stmt *s = cache_statement(conn, CACHE_MARK_RESULT);

    bind_key(s, &r->key);
    sqlite3_bind_int64(s, 3, r->maker);
    sqlite3_bind_int64(s, 4, r->used_ns);
    sqlite3_bind_int64(s, 5, r->text);
    sqlite3_bind_int64(s, 6, (int64_t)sum);
    return cache_run(s);
}

uint64_t cache_text_sum(const struct ocr_cache *c, const struct cache_result *r,
                        const void *text, size_t len)
{
    uint64_t digest[2];

    split_digest(&r->key, digest);
    return cache_sum(c,
                     (uint64_t[]){'c', (uint64_t)r->text, digest[0], digest[1],
                                  r->key.owner, (uint64_t)r->maker, len,
                                  cache_hash(c, text, len)},
                     8);
}

int cache_text_find(struct ocr_cache *c, struct cache_conn *conn,
                    const struct cache_result *r, sqlite3_stmt **s, bool *bad)
{
    const void *text;
    size_t len;
    int rc;

    *s = cache_statement(conn, CACHE_GET_TEXT);
    *bad = false;
    sqlite3_bind_int64(*s, 1, r->text);
    rc = sqlite3_step(*s);
    if (rc == SQLITE_DONE)
        *bad = true;
    if (rc != SQLITE_ROW)
        return rc;
    text = sqlite3_column_blob(*s, 0);
    len = (size_t)sqlite3_column_bytes(*s, 0);
    if (len == r->size && (uint64_t)sqlite3_column_int64(*s, 1) ==
                              cache_text_sum(c, r, text ? text : "", len))
        return SQLITE_ROW;
    *bad = true;
    return SQLITE_DONE;
}

int cache_total_add(struct ocr_cache *c, struct cache_conn *conn,
                    int64_t change)
{
    uint64_t total;
    const int rc = cache_total_get(c, conn, &total);

    if (rc != SQLITE_OK)
        return rc;
    if (change < 0 && total < (uint64_t)-change)
        change = -(int64_t)total;
    return cache_total_set(c, conn, total + (uint64_t)change);
}

static int drop_text(struct cache_conn *conn, int64_t id)
{
    sqlite3_stmt *s = cache_statement(conn, CACHE_DROP_TEXT);

    sqlite3_bind_int64(s, 1, id);
    return cache_run(s);
}

static int drop_rows(struct cache_conn *conn, const struct cache_result *r)
{
    sqlite3_stmt *s = cache_statement(conn, CACHE_DROP_RESULT);
    int rc;

    bind_key(s, &r->key);
    sqlite3_bind_int64(s, 3, r->maker);
    rc = cache_run(s);
    if (rc == SQLITE_OK && r->text)
        rc = drop_text(conn, r->text);
    return rc;
}

int cache_result_drop(struct ocr_cache *c, struct cache_conn *conn,
                      const struct cache_result *r)
{
    const int rc = drop_rows(conn, r);

    if (rc != SQLITE_OK || !r->text)
        return rc;
    return cache_total_add(c, conn, -(int64_t)r->size);
}

int cache_result_evict(struct ocr_cache *c, struct cache_conn *conn,
                       struct cache_result *r)
{
    const int64_t id = r->text;
    int rc;

    r->text = 0;
    rc = cache_result_mark(c, conn, r);
    if (rc == SQLITE_OK)
        rc = drop_text(conn, id);
    if (rc == SQLITE_OK)
        rc = cache_total_add(c, conn, -(int64_t)r->size);
    return rc;
}

int cache_result_purge(struct ocr_cache *c, struct cache_conn *conn,
                       const struct cache_result *r)
{
    const int64_t before = sqlite3_total_changes64(conn->db);
    const int rc = drop_rows(conn, r);

    if (rc != SQLITE_OK)
        return rc;
    if (sqlite3_total_changes64(conn->db) == before)
        return SQLITE_CORRUPT; /* not even there under its own key */
    c->bad_rows++;
    return cache_total_recount(c, conn); /* its size may be what is wrong */
}

/* A damaged row of the key, or one with a damaged text: SQLITE_ROW. */
static int find_bad(struct ocr_cache *c, struct cache_conn *conn,
                    const struct ocr_cache_key *key, struct cache_result *r)
{
    sqlite3_stmt *rows = cache_results_of(conn, key);
    sqlite3_stmt *text;
    bool bad = false;
    int rc = SQLITE_DONE;

    while (!bad && (rc = sqlite3_step(rows)) == SQLITE_ROW) {
        bad = !cache_result_load(c, rows, r);
        if (bad || !r->text)
            continue;
        rc = cache_text_find(c, conn, r, &text, &bad);
        cache_reset(text);
        if (rc != SQLITE_ROW && rc != SQLITE_DONE)
            break;
    }
    cache_reset(rows);
    return bad ? SQLITE_ROW : rc;
}

static int sweep(struct ocr_cache *c, struct cache_conn *conn, void *arg)
{
    const struct ocr_cache_key *key = arg;
    struct cache_result r;
    int rc;

    for (;;) {
        rc = find_bad(c, conn, key, &r);
        if (rc != SQLITE_ROW)
            return rc == SQLITE_DONE ? SQLITE_OK : rc;
        r.key = *key;
        rc = cache_result_purge(c, conn, &r);
        if (rc != SQLITE_OK)
            return rc;
    }
}

void cache_sweep(struct ocr_cache *c, const struct ocr_cache_key *key)
{
    struct ocr_cache_key copy = *key;

    cache_write(c, sweep, &copy, "remove a damaged text", NULL);
}

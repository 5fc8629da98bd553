#include "cache/cache_i.h"
#include "engine/base/io.h"

enum {
    MEASURE_MS = 1000,
    /* At most so much goes for one new text, so that none waits long. */
    EVICT_TEXTS = 1024,
};
#define MEASURE_BYTES ((uint64_t)1 << 20)
#define EVICT_BYTES ((int64_t)4 << 20)
#define KEEP_FREE ((uint64_t)1 << 30)
#define MEMORY_BYTES ((uint64_t)64 << 20)

static uint64_t limit(const struct ocr_cache *c)
{
    if (!c->max_bytes && c->memory)
        return MEMORY_BYTES;
    return c->max_bytes < INT64_MAX ? c->max_bytes : INT64_MAX;
}

bool cache_too_long(const struct ocr_cache *c, size_t len)
{
    return limit(c) && len > limit(c);
}

/* How much may still come before the disk is as full as it may be. */
static void measure(struct ocr_cache *c, struct cache_conn *conn)
{
    uint64_t free_bytes, total, keep = c->keep_free;
    int64_t free_pages, page_size;

    c->room.measured_ms = ocr_now_ms();
    c->room.written = 0;
    c->room.left = INT64_MAX / 2;
    if (!cache_place_room(&c->place, &free_bytes, &total))
        return;
    if (!keep)
        keep = total / 4 < KEEP_FREE ? total / 4 : KEEP_FREE;
    if (free_bytes > INT64_MAX / 4)
        free_bytes = INT64_MAX / 4;
    if (keep > INT64_MAX / 4)
        keep = INT64_MAX / 4;
    c->room.left = (int64_t)free_bytes - (int64_t)keep;
    c->room.shrink = c->room.left < 0;
    /* What the database has free inside costs the disk nothing. */
    if (cache_query(conn->db, "PRAGMA freelist_count", &free_pages) ==
            SQLITE_OK &&
        cache_query(conn->db, "PRAGMA page_size", &page_size) == SQLITE_OK)
        c->room.left += free_pages * page_size;
}

/* Bytes of texts that must go before `len` more come. */
static int64_t disk_excess(struct ocr_cache *c, struct cache_conn *conn,
                           size_t len)
{
    int64_t excess;

    if (!c->room.measured_ms || c->room.written >= MEASURE_BYTES ||
        ocr_now_ms() - c->room.measured_ms >= MEASURE_MS)
        measure(c, conn);
    c->room.written += len;
    c->room.left -= (int64_t)len;
    excess = c->room.left < 0 ? -c->room.left : 0;
    return excess < EVICT_BYTES ? excess : EVICT_BYTES;
}

/* Evicts the oldest text: SQLITE_ROW with its bytes, SQLITE_DONE if there is
 * none. */
static int evict_one(struct ocr_cache *c, struct cache_conn *conn,
                     int64_t *bytes)
{
    sqlite3_stmt *s = cache_statement(conn, CACHE_OLDEST_RESULT);
    struct cache_result r;
    int rc = sqlite3_step(s);

    *bytes = 0;
    if (rc != SQLITE_ROW) {
        cache_reset(s);
        return rc;
    }
    if (cache_result_load(c, s, &r)) {
        *bytes = (int64_t)r.size;
        rc = cache_result_evict(c, conn, &r);
    } else {
        rc = cache_result_purge(c, conn, &r);
    }
    cache_reset(s); /* r borrows from it */
    return rc == SQLITE_OK ? SQLITE_ROW : rc;
}

int cache_make_room(struct ocr_cache *c, struct cache_conn *conn, size_t len)
{
    int64_t excess, bytes;
    uint64_t total;
    int rc = cache_total_get(c, conn, &total);

    if (rc != SQLITE_OK)
        return rc;
    if (limit(c))
        excess = (int64_t)(total + len) - (int64_t)limit(c);
    else
        excess = disk_excess(c, conn, len);
    if (excess <= 0)
        return SQLITE_OK;
    rc = cache_stamps_write(c, conn, NULL);
    for (int n = 0; rc == SQLITE_OK && excess > 0 && n < EVICT_TEXTS; n++) {
        rc = evict_one(c, conn, &bytes);
        if (rc == SQLITE_DONE)
            break;
        rc = rc == SQLITE_ROW ? SQLITE_OK : rc;
        excess -= bytes;
        if (!limit(c))
            c->room.left += bytes;
    }
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

int cache_shrink(struct ocr_cache *c, struct cache_conn *conn)
{
    if (!c->room.shrink)
        return SQLITE_OK;
    c->room.shrink = false;
    c->room.checkpoint = true;
    return cache_exec(conn, "PRAGMA incremental_vacuum(2048)");
}

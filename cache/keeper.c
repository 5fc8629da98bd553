#include "cache/cache_i.h"
#include "engine/base/io.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>

enum {
    STAMPS_MS = 30000
};

void cache_keeper_stamp(struct ocr_cache *c, const struct ocr_cache_key *key,
                        int64_t maker)
{
    struct cache_keeper *k = &c->keeper;

    pthread_mutex_lock(&k->lock);
    if (k->stamps == 0)
        k->stamps_since_ms = ocr_now_ms();
    if (k->stamps < CACHE_STAMPS_MAX)
        k->stamp[k->stamps++] = (struct cache_stamp){
            .key = *key, .maker = maker, .used_ns = ocr_wall_ns()};
    if (k->stamps == 1 || k->stamps == CACHE_STAMPS_BATCH)
        pthread_cond_signal(&k->wake);
    pthread_mutex_unlock(&k->lock);
}

void cache_keeper_checkpoint(struct ocr_cache *c)
{
    pthread_mutex_lock(&c->keeper.lock);
    c->keeper.checkpoint = true;
    pthread_cond_signal(&c->keeper.wake);
    pthread_mutex_unlock(&c->keeper.lock);
}

static int write_stamp(struct ocr_cache *c, struct cache_conn *conn,
                       const struct cache_stamp *stamp)
{
    sqlite3_stmt *s = cache_results_of(conn, &stamp->key);
    struct cache_result r;
    int rc;

    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        if (sqlite3_column_int64(s, 2) == stamp->maker)
            break;
    }
    /* Damaged rows are for the next reader to find. */
    if (rc == SQLITE_ROW && cache_result_load(c, s, &r) &&
        r.used_ns < stamp->used_ns) {
        r.used_ns = stamp->used_ns;
        rc = cache_result_mark(c, conn, &r);
    }
    cache_reset(s);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? SQLITE_OK : rc;
}

int cache_stamps_write(struct ocr_cache *c, struct cache_conn *conn,
                       void *unused)
{
    struct cache_stamp stamp[CACHE_STAMPS_MAX];
    unsigned count;
    int rc = SQLITE_OK;

    (void)unused;
    pthread_mutex_lock(&c->keeper.lock);
    count = c->keeper.stamps;
    memcpy(stamp, c->keeper.stamp, count * sizeof *stamp);
    c->keeper.stamps = 0;
    pthread_mutex_unlock(&c->keeper.lock);
    for (unsigned i = 0; rc == SQLITE_OK && i < count; i++)
        rc = write_stamp(c, conn, &stamp[i]);
    return rc;
}

static void checkpoint(struct ocr_cache *c)
{
    struct cache_conn *conn = cache_enter(c, CACHE_SIDE);
    int rc;

    if (!conn)
        return;
    rc = sqlite3_wal_checkpoint_v2(conn->db, NULL, SQLITE_CHECKPOINT_PASSIVE,
                                   NULL, NULL);
    cache_leave(c, conn, rc, "tidy up", NULL);
}

static bool stamps_due(const struct cache_keeper *k)
{
    return k->stamps >= CACHE_STAMPS_BATCH ||
           (k->stamps && ocr_now_ms() - k->stamps_since_ms >= STAMPS_MS);
}

static void wait_for_work(struct cache_keeper *k)
{
    const int64_t end = k->stamps_since_ms + STAMPS_MS;
    const struct timespec until = {.tv_sec = end / 1000,
                                   .tv_nsec = end % 1000 * 1000000};

    if (k->stamps)
        pthread_cond_timedwait(&k->wake, &k->lock, &until);
    else
        pthread_cond_wait(&k->wake, &k->lock);
}

static void *keep(void *arg)
{
    struct ocr_cache *c = arg;
    struct cache_keeper *k = &c->keeper;

    pthread_mutex_lock(&k->lock);
    while (!k->stop) {
        const bool stamps = stamps_due(k), wal = k->checkpoint;

        if (!stamps && !wal) {
            wait_for_work(k);
            continue;
        }
        k->checkpoint = false;
        pthread_mutex_unlock(&k->lock);
        if (stamps)
            cache_write(c, cache_stamps_write, NULL, "note uses", NULL);
        if (wal)
            checkpoint(c);
        pthread_mutex_lock(&k->lock);
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

int cache_keeper_start(struct ocr_cache *c, struct ocr_err *err)
{
    struct cache_keeper *k = &c->keeper;
    sigset_t all, before;
    int code;

    /* Signals are for the threads of the program. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(&k->thread, NULL, keep, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code)
        return ocr_err_set(err, -code, "cannot start the cache's thread: %s",
                           strerror(code));
    pthread_setname_np(k->thread, "ocrfs-cache");
    k->started = true;
    return 0;
}

void cache_keeper_stop(struct ocr_cache *c)
{
    struct cache_keeper *k = &c->keeper;

    if (!k->started)
        return;
    pthread_mutex_lock(&k->lock);
    k->stop = true;
    pthread_cond_signal(&k->wake);
    pthread_mutex_unlock(&k->lock);
    pthread_join(k->thread, NULL);
    k->started = false;
    cache_write(c, cache_stamps_write, NULL, "note uses", NULL);
}

/* cache/place.h - the folder a cache lives in: its rights, its lock, its disk.
 *
 * Every open cache holds the folder's lock shared; only who holds it alone may
 * move a damaged database aside, because nobody else has it open then.
 *
 * Layer:   cache, private.
 * Threads: lock and move aside from one thread at a time; the rest any. */
#ifndef OCR_CACHE_PLACE_H
#define OCR_CACHE_PLACE_H
#include "engine/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define CACHE_FILE "cache.db"

struct cache_place {
    char *dir;     /* absolute, or "memory" */
    int dirfd;     /* -1: memory */
    int lockfd;    /* -1: memory */
    bool network;  /* shared memory between hosts does not work: no WAL */
    bool no_locks; /* the file system has no flock */
};

enum cache_lock {
    CACHE_SHARED,
    CACHE_ALONE
};

/* `dir` as in struct ocr_cache_options. Release also after a failure. */
int cache_place_open(struct cache_place *p, const char *dir,
                     struct ocr_err *err);
void cache_place_release(struct cache_place *p);

/* Gives up the lock held and waits for another, at most wait_ms; -EBUSY. */
int cache_place_lock(struct cache_place *p, enum cache_lock kind, int wait_ms);
void cache_place_unlock(struct cache_place *p);

/* Creates an empty database file that only its owner may read, if missing. */
int cache_place_touch(struct cache_place *p, struct ocr_err *err);

/* Renames the database to cache.db.broken-DATE (its name in `name`) and
 * removes what was moved aside before. Only with the lock held alone. */
int cache_place_move_aside(struct cache_place *p, char name[64],
                           struct ocr_err *err);

/* Removes what was moved aside. */
void cache_place_remove_broken(const struct cache_place *p);

/* Bytes on disk of the database and its journal. */
uint64_t cache_place_bytes(const struct cache_place *p);

/* Free bytes and size of the disk; false if it does not say. */
bool cache_place_room(const struct cache_place *p, uint64_t *free_bytes,
                      uint64_t *total_bytes);

/* True for magic numbers (statfs) of file systems over a network or in user
 * space. */
bool cache_place_is_network(long magic);

#endif

/* fs/newcomers.h - `-o index=new`: images are read as they come.
 *
 * One thread walks once through all folders of SOURCE and watches them
 * (fs/watch.h); from then on it is told of what comes. An image that was closed
 * or moved in, or has been left alone for two seconds, is read with the
 * priority of background work, a few at a time. What was there before the mount
 * is not read: that is what `ocrfs warm` is for.
 *
 * Folders that cannot be watched are looked through twice a minute, all of them
 * after events were lost. What is new is then told by the time of its last
 * change, with a minute to spare; what is known already costs a look into the
 * index.
 *
 * Layer:   fs. Lock: newcomers.lock, taken alone.
 * Threads: heard, lost and gone from the threads of fs/watch.h, the rest on the
 *          main thread. */
#ifndef OCR_NEWCOMERS_H
#define OCR_NEWCOMERS_H
#include "engine/base/err.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct held;
struct item;
struct ocr_fs;

struct newcomers {
    bool on;
    pthread_t thread;
    bool started;
    /* The thread's. */
    struct held *held; /* [held_count], folders with a reference to the node */
    size_t held_count, held_room;
    struct item *ready, **ready_last; /* images that may be read */
    struct item *later, *later_last;  /* those to wait for, by time */

    pthread_mutex_t lock;
    pthread_cond_t wake; /* CLOCK_MONOTONIC */
    /* Guarded by lock. */
    struct item *heard, **last; /* what the thread has not taken yet */
    size_t heard_count;
    int64_t lost_ns; /* since when something may be missing; 0: nothing is */
    bool ended;      /* a job did */
    bool stopping, over;
    unsigned in_flight;
    /* Shown. */
    size_t folders, unwatched, waiting;
    uint64_t started_jobs;
};

struct newcomers_figures {
    bool on;
    size_t folders, unwatched, waiting;
    unsigned in_flight;
    uint64_t started;
};

void newcomers_init(struct newcomers *c, bool on);
int newcomers_start(struct ocr_fs *fs, struct ocr_err *err);

/* What happened to `name` in a folder: bits of enum change. */
void newcomers_heard(struct ocr_fs *fs, uint64_t folder, const char *name,
                     unsigned what);

/* Events since this time (wall clock, ns) may be missing. */
void newcomers_lost(struct ocr_fs *fs, int64_t since_ns);

void newcomers_figures(struct newcomers *c, struct newcomers_figures *out);

void newcomers_stop(struct ocr_fs *fs);
/* False if the thread hangs after timeout_ms. */
bool newcomers_join(struct ocr_fs *fs, int timeout_ms);
/* When no other thread is left. */
void newcomers_release(struct ocr_fs *fs);

#endif

/* fs/readahead.h - starts the texts that a program is about to open.
 *
 * One thread hears of every open of a text that is not known, or that was
 * guessed. For the first it notes which texts come next in each of four orders
 * (fs/walk.h). If one of these is opened then, that order is the reader's: a
 * stream is followed, and each text ahead of it is a guess, hashed and read
 * with the priority of readahead. So what counts is where texts lie, not who
 * opens them; listings open nothing and start nothing.
 *
 * A stream's window begins at FIRST, doubles with every guess that is opened,
 * up to what the engine holds, and is halved by each guess that the readers
 * left behind. Known texts are passed over and take no room in it. As long as
 * a stream has not been seen to go on from one folder to the next, only a few
 * guesses go there. Guesses that were not opened are wasted; those of a stream
 * that nobody follows any more are taken out of the queue if they can be.
 *
 * Layer:   fs. Lock: ahead.lock is above nodes.lock and the queue's.
 * Threads: ahead_opened from any, never blocks; the rest as said. */
#ifndef OCR_READAHEAD_H
#define OCR_READAHEAD_H
#include "engine/base/err.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct guess;
struct node;
struct ocr_fs;
struct stream;

enum {
    AHEAD_EVENTS = 256
};

struct ahead {
    unsigned most; /* of prefetch=N; 0: what the engine holds */
    bool off;
    pthread_t thread;
    bool running;
    struct stream *streams; /* these two are the thread's */
    struct guess *early;    /* before they were ready: not ended yet */

    pthread_mutex_t lock;
    pthread_cond_t wake; /* CLOCK_MONOTONIC */
    /* Guarded by lock. */
    struct node *opened[AHEAD_EVENTS]; /* a ring, with references */
    unsigned first, count;
    bool ended; /* a guess did */
    bool interrupted;
    bool stopping;
    bool over;                      /* the thread did its last */
    unsigned in_flight;             /* guesses that did not end */
    uint64_t started, used, wasted; /* guesses with a job */
};

void ahead_init(struct ahead *ahead, const char *prefetch);
int ahead_start(struct ocr_fs *fs, struct ocr_err *err);

/* A text is being opened. known: without waiting. */
void ahead_opened(struct ocr_fs *fs, struct node *text, bool known);

/* A reader went away in the middle (Ctrl-C): what was guessed is dropped if it
 * has not begun; readers that go on are found again at once. */
void ahead_interrupted(struct ocr_fs *fs);

/* Nothing is started from now on. */
void ahead_stop(struct ocr_fs *fs);

/* After stop: joins the thread; false if it hangs in SOURCE after timeout_ms.
 */
bool ahead_join(struct ocr_fs *fs, int timeout_ms);

/* When no other thread is left. */
void ahead_release(struct ocr_fs *fs);

#endif

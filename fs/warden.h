/* fs/warden.h - ends a mount in time, whatever hangs.
 *
 * One thread of its own takes all signals of the process:
 *   TERM, INT  stop the mount       HUP   nothing to read again yet
 *   USR1       statistics to the log
 * and watches the mount table, since a lazy unmount (fusermount3 -uz) tells
 * nobody while a file is open. To stop is: answer what is parked
 * (ocr_fs_stop), end the session's loop, and wake the thread it sleeps in,
 * because libfuse before 3.18 does not. If the process is still there after a
 * grace period, because a thread hangs in SOURCE, a watchdog detaches the
 * mount, closes the device, and ends the process.
 *
 * Layer:   fs.
 * Threads: all functions on the main thread, in this order: init before any
 *          other thread exists, start, loop_ended, finish. */
#ifndef OCR_WARDEN_H
#define OCR_WARDEN_H
#include "engine/base/err.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct fuse_session;
struct ocr_fs;

/* Exit status if the watchdog had to end the process. */
enum {
    OCR_WARDEN_FORCED = 7
};

struct ocr_warden {
    /* Set by the caller before start, borrowed until finish: */
    struct ocr_fs *fs;
    struct fuse_session *session;
    const char *mountpoint; /* absolute, resolved */

    /* Private. The first ones do not change after start. */
    pthread_t thread, main;
    bool tracked;          /* the mount was found in the table */
    unsigned major, minor; /* its device */
    int device;            /* descriptor of /dev/fuse */
    int signals, wake, table;
    atomic_bool ended; /* the loop has ended */
    atomic_flag armed; /* the watchdog runs */
};

/* Blocks the signals that the warden takes, in this thread and those it
 * starts; ignores SIGPIPE. */
int ocr_warden_init(struct ocr_err *err);

/* After the mount, before the loop. The calling thread is the one that will
 * run the loop. */
int ocr_warden_start(struct ocr_warden *w, struct ocr_err *err);

/* True if the mount is what is seen at its mount point; false also if it has
 * moved with a folder above. */
bool ocr_warden_is_in_place(const struct ocr_warden *w);

/* Detaches the mount wherever it is. */
void ocr_warden_detach(const struct ocr_warden *w);

/* The loop has ended: what follows must end soon as well. */
void ocr_warden_loop_ended(struct ocr_warden *w);

/* Ends and joins the thread. Before the session is destroyed. */
void ocr_warden_finish(struct ocr_warden *w);

/* True if the mount is (still) in the mount table. */
bool ocr_warden_is_mounted(const struct ocr_warden *w);

#endif

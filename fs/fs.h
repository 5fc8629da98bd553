/* fs/fs.h - a mounted file system, as the start-up code sees it.
 *
 * Layer:   fs. Below it: fs_i.h, private to the operations.
 * Threads: create and destroy on the main thread before the first and after
 *          the last request. */
#ifndef OCR_FS_H
#define OCR_FS_H
#include "cache/cache.h"
#include "engine/base/err.h"
#include "engine/queue.h"
#include "fs/options.h"

struct fuse_lowlevel_ops;
struct fuse_session;
struct ocr_fs; /* opaque; the user data of the session */

struct ocr_fs_config {
    const struct ocr_options *options; /* borrowed while mounted */
    const char *source;                /* absolute, for messages */
    int source_fd;                     /* O_PATH|O_DIRECTORY, borrowed */
    const char *mountpoint;            /* absolute, for messages */
    struct ocr_cache *cache;           /* borrowed */
    /* Called once, when the kernel's INIT was answered: the mount is there. */
    void (*ready)(void *arg);
    void *ready_arg;
};

int ocr_fs_create(struct ocr_fs **out, const struct ocr_fs_config *config,
                  struct ocr_err *err);

/* Starts the engine now and waits for HELLO (engine_required, or to say early
 * that there is none). Starts the queue's thread: after the last fork. */
int ocr_fs_connect(struct ocr_fs *fs, int timeout_ms, struct ocr_err *err);

/* After that: waits until the engine can read; -ETIMEDOUT: it still loads. */
int ocr_fs_wait_ready(struct ocr_fs *fs, int timeout_ms, struct ocr_err *err);

/* Starts the other threads: hashing pool, interrupts, and the queue's if
 * connect was not called. After the last fork. */
int ocr_fs_start(struct ocr_fs *fs, struct fuse_session *session,
                 struct ocr_err *err);

/* Refuses new jobs and answers all parked requests with ENODEV. Any thread. */
void ocr_fs_stop(struct ocr_fs *fs);

/* Writes the figures of `status` to the log, a few lines. Any thread. */
void ocr_fs_log_statistics(struct ocr_fs *fs);

/* After the session loop ended: joins threads, frees. One that hangs in SOURCE
 * for 2 s more is left behind, with the memory: the process is about to end.
 * NULL is a no-op. */
void ocr_fs_destroy(struct ocr_fs *fs);

/* The operations for fuse_session_new(), those that the options ask for; user
 * data is the struct ocr_fs. */
void ocr_fs_operations(const struct ocr_options *options,
                       struct fuse_lowlevel_ops *out);

#endif

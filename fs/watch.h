/* fs/watch.h - hears what changes in SOURCE, and tells the kernel.
 *
 * A folder is watched (inotify) from the first look into it until the kernel
 * forgets it. What lies in a watched folder the kernel may keep for long; a
 * change is then told to it at once: names that came or went, attributes, and
 * the texts of images that changed. Folders that cannot be watched (network
 * file systems, a limit of the system) have short time-outs instead, and no
 * open ever relies on a watch: it compares the image with what it stands for.
 *
 * Two threads. One reads events and never waits: changes are merged by name in
 * a list. The other takes them from there and notifies the kernel, which may
 * wait for the lock of a folder, until a request handler has answered. So it
 * holds no lock then, and no handler ever waits for it.
 *
 * When events were lost, nothing told to the kernel from then on lasts, all
 * that was told before is taken back, and then it is as before. That is done
 * while `sound` is false.
 *
 * Layer:   fs. Locks: fs_i.h.
 * Threads: init, start, stop, join, release in this order on the main thread;
 *          stop also on others; all else on any thread. */
#ifndef OCR_WATCH_H
#define OCR_WATCH_H
#include "engine/base/err.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct node;
struct ocr_fs;

/* Seconds the kernel may keep what it was told. */
#define TIMEOUT_S 1.0  /* of anything; and of what is missing, if watched */
#define LASTING_S 60.0 /* in a watched folder */

enum {
    WRITES = 1024, /* files whose last write is remembered */
};

/* What happened to a name; several may be merged. */
enum change {
    CHANGE_NAME = 1, /* it came, went, or means another file */
    CHANGE_AWAY = 2, /* it went, though it may be there again */
    CHANGE_GONE = 4, /* what had it was deleted, and nothing has it since */
    CHANGE_CONTENT = 8,
    CHANGE_ATTRIBUTES = 16,
    CHANGE_OPENED = 32,  /* perhaps for writing */
    CHANGE_WRITTEN = 64, /* and not closed since */
    CHANGE_CREATED = 128,
    CHANGE_WHOLE = 256, /* closed, or moved in from elsewhere */
    CHANGE_FOLDER = 512,
};

enum {
    CHANGES = 64 << 10, /* waiting at most: more count as lost */
    MERGED = 4096,
};

/* What happened to one name of a folder; "": to the folder itself. */
struct changed {
    struct changed *next, *chain;
    uint64_t folder, hash;
    unsigned what; /* of enum change */
    char name[];
};

struct watched;

/* The last that was heard of a file that is, or was, being written. */
struct write {
    uint64_t folder, hash; /* of the name; folder 0: none */
    int64_t at_ms;
    bool closed;
};

struct watch {
    bool off;      /* watch=off */
    unsigned most; /* of watch=N, or half of the system's limit */
    int fd;        /* inotify; -1: none */
    int wake;      /* of the reading thread */
    pthread_t reader, teller;
    unsigned started;  /* threads */
    atomic_bool sound; /* nothing was lost, or all of it was made up for */
    atomic_uint epoch; /* how often something was lost */
    atomic_llong events, overflows, told; /* counters; told: notifications */

    pthread_mutex_t lock;
    /* Guarded by lock. */
    struct watched **table; /* [size], by descriptor of the watch */
    size_t size, count;
    int64_t full_until_ms; /* no more watches could be had */
    bool said_full;

    pthread_mutex_t list_lock;
    pthread_cond_t listed; /* CLOCK_MONOTONIC */
    /* Guarded by list_lock. */
    struct changed *first, **last; /* in the order heard */
    struct changed **merged;       /* [MERGED], by name */
    size_t listed_count;
    struct watched *gone; /* watches of folders the kernel forgot */
    bool lost, stopping;
    unsigned running; /* threads */
    struct write writes[WRITES];
};

/* What may be believed of what is looked at now: taken before looking. */
struct trust {
    bool lasts;
    unsigned epoch;
};

void watch_init(struct watch *w, const char *option);

/* Starts the threads. Without inotify it is said and goes on without. */
int watch_start(struct ocr_fs *fs, struct ocr_err *err);

/* Watches the folder whose descriptor is `fd`, unless it is, or cannot be.
 * Before what lies in it is looked at. */
void watch_folder(struct ocr_fs *fs, struct node *folder, int fd);

/* Of what lies in `folder`. */
struct trust watch_trust(const struct ocr_fs *fs, const struct node *folder);

/* True if what was looked at under `trust` may last; with nodes.lock held. */
bool watch_lasts(const struct ocr_fs *fs, struct trust trust);

/* A folder is freed; with nodes.lock held. */
void watch_folder_gone(struct watch *w, struct node *folder);

/* Whether the image of a text is being written, as far as was heard. */
enum writing {
    WRITING_UNKNOWN,
    WRITING_OPEN,   /* less than 2 s ago, and not closed since */
    WRITING_CLOSED, /* closed or moved in, just now */
};
enum writing watch_writing(struct ocr_fs *fs, struct node *text);

struct watch_figures {
    bool on;
    bool full;  /* more could not be had, a moment ago */
    bool sound; /* what lies in them may be kept */
    size_t folders;
    uint64_t events, overflows, told;
};
void watch_figures(struct watch *w, struct watch_figures *out);

/* The kernel is told nothing from now on; waits until it listens to none. */
void watch_stop(struct ocr_fs *fs);
/* False if a thread hangs after timeout_ms. */
bool watch_join(struct ocr_fs *fs, int timeout_ms);
void watch_release(struct watch *w);

/* ---- between watch.c and tell.c --------------------------------------- */

/* From the reader: to the list, or lost. */
void tell_later(struct watch *w, uint64_t folder, const char *name,
                unsigned what);
void tell_lost(struct watch *w);
/* The other thread. */
void *tell_main(void *arg);
/* Ends watches of folders that the kernel forgot, and frees the list. */
void watch_remove_all(struct watch *w, struct watched *gone);

/* Reads a number in /proc/sys/fs/inotify; 0 if there is none. */
unsigned watch_limit(const char *name);

#endif

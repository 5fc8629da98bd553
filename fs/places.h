/* fs/places.h - SOURCE and MOUNTPOINT, and what must hold between them.
 *
 * SOURCE is opened before the mount and only reached through that descriptor
 * afterwards, so MOUNTPOINT may be SOURCE itself, below it, or above it.
 *
 * Layer:   fs.
 * Threads: none yet.
 * Errors:  exit statuses of the mount, with a sentence in err. */
#ifndef OCR_PLACES_H
#define OCR_PLACES_H
#include "engine/base/err.h"

/* Exit statuses of the mount: those of libfuse's own programs. */
enum ocr_exit {
    OCR_EXIT_OK = 0,
    OCR_EXIT_OPTION = 1,
    OCR_EXIT_NO_MOUNTPOINT = 2,
    OCR_EXIT_SETUP = 3,
    OCR_EXIT_MOUNT = 4,
    OCR_EXIT_DAEMONIZE = 5,
    OCR_EXIT_SIGNALS = 6,
    OCR_EXIT_LOOP = 7,
};

struct ocr_places {
    char *source;     /* absolute, resolved */
    char *name;       /* SOURCE for the mount table: as given if absolute */
    char *mountpoint; /* absolute, resolved; or /dev/fd/N as given */
    int source_fd;    /* O_PATH */
    int device;       /* N of /dev/fd/N: an open /dev/fuse, else -1 */
};

/* Looks at both and opens SOURCE; refuses a dead mount point and one where
 * this SOURCE is mounted already. */
enum ocr_exit ocr_places_open(struct ocr_places *p, const char *source,
                              const char *mountpoint, struct ocr_err *err);

void ocr_places_release(struct ocr_places *p);

/* Refuses `folder` (absolute; it may not be there yet) if it would be hidden by
 * the mount: what ocrfs itself needs (`what`: "cache") must not lie in its own
 * mount. */
enum ocr_exit ocr_places_allow(const struct ocr_places *p, const char *folder,
                               const char *what, struct ocr_err *err);

#endif

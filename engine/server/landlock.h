/* engine/server/landlock.h - which files a process may still open.
 *
 * Private to engine/server. Threads: the rules hold for the calling thread and
 * those it starts later. What the kernel lacks is left out. */
#ifndef OCR_LANDLOCK_H
#define OCR_LANDLOCK_H
#include <stdbool.h>

struct ocr_landlock {
    int set; /* -1: this kernel has no Landlock */
    unsigned long long files;
};

enum ocr_landlock_use {
    OCR_LANDLOCK_READ,
    OCR_LANDLOCK_RUN,    /* read and execute */
    OCR_LANDLOCK_CHANGE, /* read, write, make and remove files */
    OCR_LANDLOCK_DEVICE, /* read, write, ioctl */
};

/* Rules that allow nothing. `quiet`: no TCP, no signals and no abstract
 * sockets beyond this process and its children either. */
void ocr_landlock_begin(struct ocr_landlock *rules, bool quiet);

/* Allows it for `path` and all below it. A path that is not there: no-op. */
void ocr_landlock_allow(const struct ocr_landlock *rules, const char *path,
                        enum ocr_landlock_use use);

/* From here on; needs PR_SET_NO_NEW_PRIVS. False if nothing holds. */
bool ocr_landlock_end(struct ocr_landlock *rules);

#endif

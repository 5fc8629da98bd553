/* fs/trial.h - a mount of our own in a folder of our own, for a while: does it
 * work here, and how fast.
 *
 * The program mounts by starting itself, as a user would, so that whatever
 * forbids a mount on this machine is met.
 *
 * Layer:   fs.
 * Threads: one. */
#ifndef OCR_TRIAL_H
#define OCR_TRIAL_H
#include "engine/base/err.h"

#include <limits.h>
#include <stdbool.h>

struct ocr_trial {
    char base[PATH_MAX - 256]; /* "": nothing to clear away */
    char point[PATH_MAX];
    bool mounted;
};

/* Makes the folders, below $TMPDIR or /tmp. */
int ocr_trial_begin(struct ocr_trial *t, struct ocr_err *err);

/* Mounts `source`, NULL: an empty folder, with `options` as behind -o. */
int ocr_trial_mount(struct ocr_trial *t, const char *source,
                    const char *options, struct ocr_err *err);

int ocr_trial_unmount(struct ocr_trial *t, struct ocr_err *err);

/* Unmounts if need be, and takes all away. */
void ocr_trial_end(struct ocr_trial *t);

#endif

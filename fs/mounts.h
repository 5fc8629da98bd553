/* fs/mounts.h - the mount table of this process, and taking mounts away.
 *
 * Only the table is read: nothing here touches a mount point, which may hang.
 *
 * Layer:   fs.
 * Threads: no state; a struct ocr_mounts has one owner. */
#ifndef OCR_MOUNTS_H
#define OCR_MOUNTS_H
#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct ocr_mount {
    unsigned major, minor; /* of the device: minor names the connection in
                              /sys/fs/fuse/connections */
    const char *point;     /* absolute, as this process sees it */
    const char *type;      /* "fuse.ocrfs" */
    const char *source;
    const char *options; /* of the file system: "rw,user_id=1000,..." */
};

struct ocr_mounts {
    struct ocr_mount *list; /* a later one lies on an earlier one */
    size_t count;
    char *text; /* what the strings point into */
};

/* Reads /proc/self/mountinfo. */
int ocr_mounts_read(struct ocr_mounts *out, struct ocr_err *err);

/* Parses `text` (malloc'd, taken over also on failure); lines that make no
 * sense are left out. */
int ocr_mounts_parse(struct ocr_mounts *out, char *text, struct ocr_err *err);

void ocr_mounts_release(struct ocr_mounts *mounts);

/* The mount that is seen at `point`, NULL if none is mounted there. */
const struct ocr_mount *ocr_mounts_at(const struct ocr_mounts *mounts,
                                      const char *point);

/* The deepest mount that `path`, absolute and resolved, lies in. */
const struct ocr_mount *ocr_mounts_over(const struct ocr_mounts *mounts,
                                        const char *path);

/* What a mount point that was written as `text` is called in the table:
 * absolute, links resolved but for the last part, which may hang; malloc'd,
 * NULL if there is no such folder. */
char *ocr_mount_name(const char *text);

/* True for a mount of ocrfs. */
bool ocr_mount_is_ours(const struct ocr_mount *mount);

/* Who mounted it; false if the table does not say. */
bool ocr_mount_owner(const struct ocr_mount *mount, unsigned *uid,
                     unsigned *gid);

/* True if this user may look into the mount; root can become who may. */
bool ocr_mount_may_enter(const struct ocr_mount *mount);

/* The next mount of ocrfs that is seen and may be entered, behind `last` (NULL:
 * the first). */
const struct ocr_mount *ocr_mounts_next(const struct ocr_mounts *mounts,
                                        const struct ocr_mount *last);

/* True if a mount of this device is there, anywhere. */
bool ocr_mounts_have(const struct ocr_mounts *mounts, unsigned major,
                     unsigned minor);

/* Takes away every mount of this device that is seen, wherever it is by now:
 * a folder above the mount point may have been renamed. */
void ocr_mounts_detach(const struct ocr_mounts *mounts, unsigned major,
                       unsigned minor);

/* Takes away what is mounted at `point`, at once, although it may be in use;
 * through fusermount3 for users. */
int ocr_mount_detach(const char *point, struct ocr_err *err);

/* True if `path` is `folder` or below it; both absolute and resolved. */
bool ocr_path_is_below(const char *path, const char *folder);

#endif

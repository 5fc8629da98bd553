#include "fs/places.h"

#include "engine/base/io.h"
#include "fs/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

/* N of "/dev/fd/N": mount.fuse3 has mounted already and hands us the device. */
static int passed_device(const char *mountpoint)
{
    int fd, end = 0;

    if (sscanf(mountpoint, "/dev/fd/%d%n", &fd, &end) == 1 &&
        !mountpoint[end] && fd >= 0)
        return fd;
    return -1;
}

static enum ocr_exit refuse_mountpoint(const char *path, struct ocr_err *err)
{
    const enum ocr_exit status = errno == ENOENT || errno == ENOTDIR
                                     ? OCR_EXIT_NO_MOUNTPOINT
                                     : OCR_EXIT_MOUNT;

    if (errno == ENOTCONN)
        ocr_err_set(err, -ENOTCONN,
                    "%s is a dead mount, its program has ended; take it away "
                    "first: fusermount3 -u %s",
                    path, path);
    else
        ocr_err_errno(err, "mount point %s", path);
    return status;
}

static enum ocr_exit check_mountpoint(struct ocr_places *p, const char *path,
                                      struct ocr_err *err)
{
    struct statfs fs;
    struct stat st;

    p->device = passed_device(path);
    if (p->device < 0) {
        /* The kernel may know the attributes of a dead mount still; statfs
         * always asks. */
        if (stat(path, &st) || statfs(path, &fs))
            return refuse_mountpoint(path, err);
        if (!S_ISDIR(st.st_mode)) {
            errno = ENOTDIR;
            return refuse_mountpoint(path, err);
        }
    }
    p->mountpoint = p->device < 0 ? realpath(path, NULL) : strdup(path);
    return p->mountpoint ? OCR_EXIT_OK : refuse_mountpoint(path, err);
}

static int open_source(struct ocr_places *p, const char *path,
                       struct ocr_err *err)
{
    int readable;

    p->source = realpath(path, NULL);
    if (!p->source)
        return ocr_err_errno(err, "SOURCE %s", path);
    p->source_fd = open(p->source, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (p->source_fd < 0)
        return ocr_err_errno(err, "SOURCE %s", path);
    readable = openat(p->source_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (readable < 0)
        return ocr_err_errno(err, "SOURCE %s cannot be read", path);
    close(readable);
    /* As in fstab, where mount -a compares it. */
    p->name = strdup(path[0] == '/' ? path : p->source);
    return p->name ? 0 : ocr_err_set(err, -ENOMEM, "out of memory");
}

static bool same_source(const struct ocr_places *p, const char *other)
{
    return !strcmp(other, p->source) || !strcmp(other, p->name);
}

static enum ocr_exit check_not_there(const struct ocr_places *p,
                                     struct ocr_err *err)
{
    struct ocr_mounts mounts;
    const struct ocr_mount *top;
    bool there;

    if (p->device >= 0 || ocr_mounts_read(&mounts, NULL))
        return OCR_EXIT_OK;
    top = ocr_mounts_at(&mounts, p->mountpoint);
    there = top && ocr_mount_is_ours(top) && same_source(p, top->source);
    ocr_mounts_release(&mounts);
    if (!there)
        return OCR_EXIT_OK;
    ocr_err_set(err, -EBUSY,
                "%s is mounted at %s already; to mount it anew, first: "
                "fusermount3 -u %s",
                p->name, p->mountpoint, p->mountpoint);
    return OCR_EXIT_MOUNT;
}

enum ocr_exit ocr_places_open(struct ocr_places *p, const char *source,
                              const char *mountpoint, struct ocr_err *err)
{
    enum ocr_exit status;

    *p = (struct ocr_places){.source_fd = -1, .device = -1};
    status = check_mountpoint(p, mountpoint, err);
    if (status == OCR_EXIT_OK && open_source(p, source, err))
        status = OCR_EXIT_SETUP;
    if (status == OCR_EXIT_OK)
        status = check_not_there(p, err);
    if (status != OCR_EXIT_OK)
        ocr_places_release(p);
    return status;
}

void ocr_places_release(struct ocr_places *p)
{
    free(p->source);
    free(p->name);
    free(p->mountpoint);
    ocr_close(p->source_fd);
    *p = (struct ocr_places){.source_fd = -1, .device = -1};
}

/* The folder, resolved; of one that is not there yet, what is. */
static char *resolve(const char *folder)
{
    char *path = strdup(folder), *real = NULL;

    while (path && !(real = realpath(path, NULL))) {
        char *slash = strrchr(path, '/');

        if (!slash || slash == path) {
            real = strdup("/");
            break;
        }
        *slash = '\0';
    }
    free(path);
    return real;
}

enum ocr_exit ocr_places_allow(const struct ocr_places *p, const char *folder,
                               const char *what, struct ocr_err *err)
{
    char *path = p->device < 0 ? resolve(folder) : NULL;
    const bool below = path && ocr_path_is_below(path, p->mountpoint);

    free(path);
    if (!below)
        return OCR_EXIT_OK;
    ocr_err_set(err, -EBUSY,
                "the %s folder %s is below the mount point; choose another "
                "with -o %s=DIR",
                what, folder, what);
    return OCR_EXIT_MOUNT;
}

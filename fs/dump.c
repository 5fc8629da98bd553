#include "fs/dump.h"

#include "engine/base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int ocr_dump_open(const char *folder, struct ocr_err *err)
{
    int fd;

    if (mkdir(folder, 0777) && errno != EEXIST)
        return ocr_err_errno(err, "cannot make the folder %s", folder);
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? ocr_err_errno(err, "cannot open the folder %s", folder)
                  : fd;
}

int ocr_dump_page(int folder, const char *path, const char *bytes, size_t len,
                  struct ocr_err *err)
{
    const char *slash = strrchr(path, '/');
    const char *base = !strcmp(path, "-") ? "standard-input"
                       : slash            ? slash + 1
                                          : path;
    char name[NAME_MAX + 8];
    int fd, rc;

    snprintf(name, sizeof name, "%s.pgm", base);
    fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return ocr_err_errno(err, "cannot write %s", name);
    rc = ocr_pwrite_full(fd, bytes, len, 0);
    if (close(fd) && !rc)
        rc = -errno;
    if (!rc)
        return 0;
    unlinkat(folder, name, 0);
    errno = -rc;
    return ocr_err_errno(err, "cannot write %s", name);
}

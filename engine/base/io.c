#include "engine/base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

ssize_t ocr_pread_full(int fd, void *buf, size_t len, off_t at)
{
    size_t done = 0;

    while (done < len) {
        const ssize_t n =
            pread(fd, (char *)buf + done, len - done, at + (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

int ocr_pwrite_full(int fd, const void *buf, size_t len, off_t at)
{
    size_t done = 0;

    while (done < len) {
        const ssize_t n =
            pwrite(fd, (const char *)buf + done, len - done, at + (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -EIO;
        done += (size_t)n;
    }
    return 0;
}

int ocr_memfd(const char *name, struct ocr_err *err)
{
    const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return ocr_err_errno(err, "cannot get memory for %s", name);
    return fd;
}

int ocr_memfd_seal(int fd, struct ocr_err *err)
{
    if (fcntl(fd, F_ADD_SEALS,
              F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        return ocr_err_errno(err, "cannot seal a copy in memory");
    return 0;
}

int ocr_close(int fd)
{
    const int saved = errno;

    if (fd >= 0)
        close(fd);
    errno = saved;
    return -1;
}

uint64_t ocr_memory_available(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    unsigned long long kib = 0;
    char line[128];

    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return (uint64_t)kib << 10;
}

int64_t ocr_now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

int64_t ocr_wall_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

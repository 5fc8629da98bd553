#include "engine/model/file.h"
#include "engine/base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

/* What the handler may look at: a slot is free while begin is 0. */
static struct {
    atomic_uintptr_t begin;
    atomic_size_t size;
    atomic_bool torn;
} slots[OCR_MAPPINGS_MAX];

static pthread_mutex_t installing = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before; /* the handler that ours took the place of */
static uintptr_t page_bytes;

int ocr_file_open(int dir, const char *name, struct stat *stat,
                  struct ocr_err *err)
{
    /* Not blocking: a FIFO in place of the file must not hang us. */
    const int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return ocr_err_errno(err, "cannot open %s", name);
    if (fstat(fd, stat)) {
        const int rc = ocr_err_errno(err, "cannot look at %s", name);

        ocr_close(fd);
        return rc;
    }
    if (!S_ISREG(stat->st_mode)) {
        ocr_close(fd);
        return ocr_err_set(err, -EINVAL, "%s is not a regular file", name);
    }
    return fd;
}

int ocr_file_read(struct ocr_buf *out, int dir, const char *name,
                  struct ocr_err *err)
{
    char chunk[16384];
    struct stat stat;
    off_t at = 0;
    ssize_t n;
    const int fd = ocr_file_open(dir, name, &stat, err);

    if (fd < 0)
        return fd;
    while ((n = ocr_pread_full(fd, chunk, sizeof chunk, at)) > 0) {
        ocr_buf_add(out, chunk, (size_t)n);
        if (out->failed)
            break;
        at += n;
    }
    ocr_close(fd);
    if (n < 0) {
        errno = (int)-n;
        return ocr_err_errno(err, "cannot read %s", name);
    }
    if (out->failed)
        return ocr_err_set(err, -EFBIG, "%s is larger than %zu bytes", name,
                           out->limit);
    return 0;
}

/* A page of zeros takes the place of the one that is gone, and whoever reads
 * goes on. mmap() is a plain system call: safe here. */
static void on_bus_error(int signo, siginfo_t *info, void *context)
{
    const uintptr_t at = (uintptr_t)info->si_addr;
    const int saved = errno;

    (void)context;
    for (int i = 0; i < OCR_MAPPINGS_MAX; i++) {
        const uintptr_t begin = atomic_load(&slots[i].begin);
        void *page = (char *)info->si_addr - at % page_bytes;

        if (!begin || at < begin || at - begin >= atomic_load(&slots[i].size))
            continue;
        atomic_store(&slots[i].torn, true);
        if (mmap(page, page_bytes, PROT_READ,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page) {
            errno = saved;
            return;
        }
    }
    /* Not ours: the fault happens again, under the handler before us. */
    sigaction(signo, &before, NULL);
    errno = saved;
}

/* Ours may have been replaced since the last mapping. */
static void install(void)
{
    struct sigaction now, action = {.sa_sigaction = on_bus_error,
                                    .sa_flags = SA_SIGINFO | SA_ONSTACK};

    pthread_mutex_lock(&installing);
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    sigaction(SIGBUS, NULL, &now);
    if (!(now.sa_flags & SA_SIGINFO) || now.sa_sigaction != on_bus_error) {
        before = now;
        sigemptyset(&action.sa_mask);
        sigaction(SIGBUS, &action, NULL);
    }
    pthread_mutex_unlock(&installing);
}

static int watch(const void *bytes, size_t size)
{
    for (int i = 0; i < OCR_MAPPINGS_MAX; i++) {
        if (atomic_load(&slots[i].begin))
            continue;
        atomic_store(&slots[i].torn, false);
        atomic_store(&slots[i].size, size);
        atomic_store(&slots[i].begin, (uintptr_t)bytes);
        return i;
    }
    return -ENFILE;
}

int ocr_mapping_open(struct ocr_mapping *out, int fd, const struct stat *stat,
                     const char *name, struct ocr_err *err)
{
    void *bytes;
    int rc;

    *out = (struct ocr_mapping){.fd = fd, .stat = *stat};
    out->size = (size_t)stat->st_size;
    bytes = mmap(NULL, out->size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) {
        rc = ocr_err_errno(err, "cannot map %s", name);
        ocr_close(fd);
        return rc;
    }
    install();
    out->bytes = bytes;
    out->slot = watch(bytes, out->size);
    if (out->slot < 0) {
        munmap(bytes, out->size);
        out->bytes = NULL;
        ocr_close(fd);
        return ocr_err_set(err, -ENFILE, "%s: more than %d files of weights",
                           name, OCR_MAPPINGS_MAX);
    }
    return 0;
}

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

int ocr_mapping_check(const struct ocr_mapping *m, const char *name,
                      struct ocr_err *err)
{
    struct stat now;

    if (fstat(m->fd, &now))
        return ocr_err_errno(err, "cannot look at %s", name);
    if (now.st_size < m->stat.st_size)
        return ocr_err_set(err, -EBUSY,
                           "%s shrank from %lld to %lld bytes while it was "
                           "read",
                           name, (long long)m->stat.st_size,
                           (long long)now.st_size);
    if (now.st_size != m->stat.st_size ||
        !same_time(now.st_mtim, m->stat.st_mtim))
        return ocr_err_set(err, -EBUSY, "%s changed while it was read", name);
    if (atomic_load(&slots[m->slot].torn))
        return ocr_err_set(err, -EIO, "%s could not be read in whole", name);
    return 0;
}

void ocr_mapping_close(struct ocr_mapping *m)
{
    if (!m->bytes)
        return;
    atomic_store(&slots[m->slot].begin, 0);
    munmap((void *)(uintptr_t)m->bytes, m->size);
    ocr_close(m->fd);
    *m = (struct ocr_mapping){.fd = -1};
}

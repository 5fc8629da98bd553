/* A library that is loaded before the others (LD_PRELOAD) and makes one call of
 * a kind fail, or ends the process at it: the Nth of those that ocrfs or SQLite
 * make. Which, and in which program, stands in a file that the test maps, too
 * (tests/lib/inject.py), so it can change from one step to the next.
 *
 * Only calls that can fail in life: reads and writes of files, not of pipes
 * and eventfds. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Names as in tests/lib/inject.py. */
enum kind {
    ALLOC,
    READ,
    WRITE,
    SYNC,
    START, /* of a process or a thread */
    SOCKET,
    MAP,
    OPEN,
};

enum program {
    OCRFS,
    ENGINE,
    HELPER,
};

enum action {
    FAIL_ONCE,
    FAIL_FROM_HERE,
    DIE,
};

struct control {
    _Atomic uint32_t armed, kind, program, action, at, count, hits;
};

static struct control *control;
static enum program self;

/* Where the program's and SQLite's own code is. */
enum {
    RANGES = 2
};
static struct {
    uintptr_t from, to;
} ours[RANGES];
static unsigned ranges;

static int note_range(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    (void)arg;
    if (ranges == RANGES ||
        (info->dlpi_name[0] && !strstr(info->dlpi_name, "libsqlite3")))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD &&
            info->dlpi_phdr[i].p_flags & PF_X) {
            ours[ranges].from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            ours[ranges].to = ours[ranges].from + info->dlpi_phdr[i].p_memsz;
        }
    ranges++;
    return 0;
}

static enum program which_program(void)
{
    char line[256] = "", name[256] = "";
    const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
    const ssize_t m = readlink("/proc/self/exe", name, sizeof name - 1);

    close(fd);
    for (ssize_t i = 0; i < n; i++)
        if (!line[i])
            line[i] = ' ';
    if (strstr(line, "--decode-helper"))
        return HELPER;
    return m > 0 && strstr(name, "ocrfs-engine") ? ENGINE : OCRFS;
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("OCRFS_FAULTS");
    const int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map;

    if (fd < 0)
        return;
    map =
        mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    self = which_program();
    dl_iterate_phdr(note_range, NULL);
    if (map != MAP_FAILED)
        control = map;
}

static bool is_ours(const void *caller)
{
    for (unsigned i = 0; i < ranges; i++)
        if ((uintptr_t)caller >= ours[i].from && (uintptr_t)caller < ours[i].to)
            return true;
    return false;
}

/* True if this call is to fail. */
static bool strikes(enum kind kind, const void *caller)
{
    uint32_t count, at;

    if (!control || !atomic_load(&control->armed) ||
        atomic_load(&control->kind) != kind ||
        atomic_load(&control->program) != self || !is_ours(caller))
        return false;
    count = atomic_fetch_add(&control->count, 1) + 1;
    at = atomic_load(&control->at);
    if (count < at ||
        (count > at && atomic_load(&control->action) != FAIL_FROM_HERE))
        return false;
    atomic_fetch_add(&control->hits, 1);
    if (atomic_load(&control->action) == DIE)
        kill(getpid(), SIGKILL);
    return true;
}

#define CALLER __builtin_return_address(0)

static bool is_file(int fd)
{
    const int saved = errno;
    struct stat st;
    const bool file = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);

    errno = saved;
    return file;
}

/* The next library's function of this name. */
#define NEXT(name)                                                             \
    static __typeof__(name) *real;                                             \
    if (!real) {                                                               \
        void *symbol = dlsym(RTLD_NEXT, #name);                                \
        memcpy(&real, &symbol, sizeof real);                                   \
    }

#define FAILS(kind, value, result)                                             \
    if (strikes(kind, CALLER)) {                                               \
        errno = value;                                                         \
        return result;                                                         \
    }

/* ---- memory ------------------------------------------------------------- */

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);

void *malloc(size_t size)
{
    FAILS(ALLOC, ENOMEM, NULL)
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    FAILS(ALLOC, ENOMEM, NULL)
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
    FAILS(ALLOC, ENOMEM, NULL)
    return __libc_realloc(old, size);
}

char *strdup(const char *text)
{
    const size_t size = strlen(text) + 1;
    char *copy;

    FAILS(ALLOC, ENOMEM, NULL)
    copy = __libc_malloc(size);
    return copy ? memcpy(copy, text, size) : NULL;
}

void *mmap(void *at, size_t len, int protection, int flags, int fd,
           off_t offset)
{
    NEXT(mmap)
    FAILS(MAP, ENOMEM, MAP_FAILED)
    return real(at, len, protection, flags, fd, offset);
}

int memfd_create(const char *name, unsigned flags)
{
    NEXT(memfd_create)
    FAILS(MAP, EMFILE, -1)
    return real(name, flags);
}

/* ---- files -------------------------------------------------------------- */

#define PREAD(name)                                                            \
    ssize_t name(int fd, void *to, size_t len, off_t at)                       \
    {                                                                          \
        NEXT(name)                                                             \
        if (is_file(fd))                                                       \
            FAILS(READ, EIO, -1)                                               \
        return real(fd, to, len, at);                                          \
    }
PREAD(pread)
PREAD(pread64)

#define PWRITE(name)                                                           \
    ssize_t name(int fd, const void *from, size_t len, off_t at)               \
    {                                                                          \
        NEXT(name)                                                             \
        if (is_file(fd))                                                       \
            FAILS(WRITE, ENOSPC, -1)                                           \
        return real(fd, from, len, at);                                        \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define TRUNCATE(name)                                                         \
    int name(int fd, off_t len)                                                \
    {                                                                          \
        NEXT(name)                                                             \
        FAILS(WRITE, EIO, -1)                                                  \
        return real(fd, len);                                                  \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define SYNCS(name)                                                            \
    int name(int fd)                                                           \
    {                                                                          \
        NEXT(name)                                                             \
        FAILS(SYNC, EIO, -1)                                                   \
        return real(fd);                                                       \
    }
SYNCS(fsync)
SYNCS(fdatasync)

#define OPENS(name)                                                            \
    int name(const char *path, int flags, ...)                                 \
    {                                                                          \
        NEXT(name)                                                             \
        va_list args;                                                          \
        mode_t mode;                                                           \
        FAILS(OPEN, EMFILE, -1)                                                \
        va_start(args, flags);                                                 \
        mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;       \
        va_end(args);                                                          \
        return real(path, flags, mode);                                        \
    }
OPENS(open)
OPENS(open64)

#define OPENATS(name)                                                          \
    int name(int dir, const char *path, int flags, ...)                        \
    {                                                                          \
        NEXT(name)                                                             \
        va_list args;                                                          \
        mode_t mode;                                                           \
        FAILS(OPEN, EMFILE, -1)                                                \
        va_start(args, flags);                                                 \
        mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;       \
        va_end(args);                                                          \
        return real(dir, path, flags, mode);                                   \
    }
OPENATS(openat)
OPENATS(openat64)

/* ---- processes, threads, sockets ---------------------------------------- */

int posix_spawn(pid_t *pid, const char *path,
                const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attributes, char *const argv[],
                char *const env[])
{
    NEXT(posix_spawn)
    FAILS(START, EAGAIN, EAGAIN)
    return real(pid, path, actions, attributes, argv, env);
}

pid_t fork(void)
{
    NEXT(fork)
    FAILS(START, EAGAIN, -1)
    return real();
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                   void *(*run)(void *), void *arg)
{
    NEXT(pthread_create)
    FAILS(START, EAGAIN, EAGAIN)
    return real(thread, attributes, run, arg);
}

int socket(int domain, int type, int protocol)
{
    NEXT(socket)
    FAILS(SOCKET, EMFILE, -1)
    return real(domain, type, protocol);
}

int socketpair(int domain, int type, int protocol, int ends[2])
{
    NEXT(socketpair)
    FAILS(SOCKET, EMFILE, -1)
    return real(domain, type, protocol, ends);
}

int connect(int sock, const struct sockaddr *address, socklen_t size)
{
    NEXT(connect)
    FAILS(SOCKET, ECONNREFUSED, -1)
    return real(sock, address, size);
}

int accept4(int sock, struct sockaddr *address, socklen_t *size, int flags)
{
    NEXT(accept4)
    FAILS(SOCKET, EMFILE, -1)
    return real(sock, address, size, flags);
}

ssize_t sendmsg(int sock, const struct msghdr *message, int flags)
{
    NEXT(sendmsg)
    FAILS(SOCKET, ENOBUFS, -1)
    return real(sock, message, flags);
}

ssize_t recvmsg(int sock, struct msghdr *message, int flags)
{
    NEXT(recvmsg)
    FAILS(SOCKET, ENOMEM, -1)
    return real(sock, message, flags);
}

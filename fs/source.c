#include "fs/fs_i.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

enum {
    RACE_RETRIES = 16 /* of EAGAIN: a rename raced with the walk */
};

/* ---- opening ---------------------------------------------------------------
 */

static int openat2_once(int dir, const char *path, int flags, uint64_t resolve)
{
    struct open_how how = {
        .flags = (uint64_t)(unsigned)flags,
        .resolve = resolve,
    };
    const long fd = syscall(SYS_openat2, dir, path, &how, sizeof how);

    return fd < 0 ? -errno : (int)fd;
}

static int openat2_retried(struct source *s, int dir, const char *path,
                           int flags, uint64_t resolve)
{
    int fd = -ENOSYS;

    if (atomic_load(&s->no_openat2))
        return -ENOSYS;
    for (int i = 0; i < RACE_RETRIES; i++) {
        fd = openat2_once(dir, path, flags, resolve);
        if (fd != -EAGAIN && fd != -EINTR)
            break;
    }
    /* A sandbox may answer EPERM to a system call it does not know. */
    if (fd == -ENOSYS || (fd == -EPERM && !(flags & O_NOATIME))) {
        atomic_store(&s->no_openat2, true);
        return -ENOSYS;
    }
    return fd;
}

/* Without openat2: one component at a time, none of them a link. */
static int open_by_steps(int dir, const char *path, int flags)
{
    int at = dir, fd = -ENOENT;

    for (;;) {
        const size_t len = strcspn(path, "/");
        const bool last = !path[len];
        char part[NAME_BYTES + 1];

        if (len == 0 || len > NAME_BYTES) {
            fd = len ? -ENAMETOOLONG : -ENOENT;
            break;
        }
        memcpy(part, path, len);
        part[len] = '\0';
        if (!strcmp(part, "..")) {
            fd = -EXDEV;
            break;
        }
        fd = openat(at, part,
                    last ? flags
                         : O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            fd = -errno;
        if (fd < 0 || last)
            break;
        if (at != dir)
            close(at);
        at = fd;
        path += len + 1;
    }
    if (at != dir)
        close(at);
    return fd;
}

static int open_part(struct source *s, int dir, const char *path, int flags)
{
    const int fd = openat2_retried(s, dir, path, flags,
                                   RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS |
                                       RESOLVE_NO_MAGICLINKS);

    return fd == -ENOSYS ? open_by_steps(dir, path, flags) : fd;
}

/* A path longer than the kernel takes is walked in pieces of whole names. */
static int open_long(struct source *s, const char *path, int flags)
{
    int at = s->fd, fd;

    while (strlen(path) >= PATH_MAX) {
        char piece[PATH_MAX];
        size_t len = PATH_MAX - 1;

        while (len > 0 && path[len] != '/')
            len--;
        memcpy(piece, path, len);
        piece[len] = '\0';
        fd = open_part(s, at, piece,
                       O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (at != s->fd)
            close(at);
        if (fd < 0)
            return fd;
        at = fd;
        path += len + 1;
    }
    fd = open_part(s, at, path, flags);
    if (at != s->fd)
        close(at);
    return fd;
}

int source_open(struct source *s, const char *path, int flags)
{
    return open_long(s, path,
                     flags | O_NOFOLLOW | O_CLOEXEC |
                         (flags & O_PATH ? 0 : O_NONBLOCK | O_NOCTTY));
}

int source_open_follow(struct source *s, const char *path, int flags)
{
    const int fd = openat2_retried(
        s, s->fd, path,
        flags | O_CLOEXEC | (flags & O_PATH ? 0 : O_NONBLOCK | O_NOCTTY),
        RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS);

    return fd == -ENOSYS ? -ENOTSUP : fd;
}

int source_open_file(struct source *s, const char *path, bool follow)
{
    int (*const open_it)(struct source *, const char *, int) =
        follow ? source_open_follow : source_open;
    int fd = open_it(s, path, O_RDONLY | O_NOATIME);

    if (fd == -EPERM) /* not the owner */
        fd = open_it(s, path, O_RDONLY);
    if (fd >= 0)
        /* It kept a FIFO that was swapped in from blocking (S7); a file on a
         * network disk must not answer EAGAIN. */
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    return fd;
}

/* ---- what it is ------------------------------------------------------ */

static int64_t ns_of(const struct statx_timestamp *t)
{
    return t->tv_sec * 1000000000 + t->tv_nsec;
}

static struct timespec timespec_of(const struct statx_timestamp *t)
{
    return (struct timespec){.tv_sec = t->tv_sec, .tv_nsec = t->tv_nsec};
}

static int object_at(int dir, const char *name, int flags, struct object *out)
{
    struct statx x;

    if (statx(dir, name, flags | AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT,
              STATX_BASIC_STATS | STATX_BTIME, &x))
        return -errno;
    *out = (struct object){
        .st =
            {
                .st_dev = makedev(x.stx_dev_major, x.stx_dev_minor),
                .st_ino = x.stx_ino,
                .st_mode = x.stx_mode,
                .st_nlink = x.stx_nlink,
                .st_uid = x.stx_uid,
                .st_gid = x.stx_gid,
                .st_rdev = makedev(x.stx_rdev_major, x.stx_rdev_minor),
                .st_size = (off_t)x.stx_size,
                .st_blksize = TEXT_BLOCK,
                .st_blocks = (blkcnt_t)x.stx_blocks,
                .st_atim = timespec_of(&x.stx_atime),
                .st_mtim = timespec_of(&x.stx_mtime),
                .st_ctim = timespec_of(&x.stx_ctime),
            },
        .born_ns = x.stx_mask & STATX_BTIME ? ns_of(&x.stx_btime) : 0,
    };
    return 0;
}

int source_stat_fd(int fd, struct object *out)
{
    return object_at(fd, "", AT_EMPTY_PATH, out);
}

int source_stat_at(int dir, const char *name, struct object *out)
{
    return object_at(dir, name, 0, out);
}

struct stamp stamp_of(const struct stat *st)
{
    return (struct stamp){
        .size = st->st_size,
        .mtime_ns =
            (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec,
        .ctime_ns =
            (int64_t)st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec,
    };
}

bool stamp_equal(const struct stamp *a, const struct stamp *b)
{
    return a->size == b->size && a->mtime_ns == b->mtime_ns &&
           a->ctime_ns == b->ctime_ns;
}

/* ---- access control lists -------------------------------------------- */

mode_t source_acl_mode(mode_t mode, const void *acl, size_t len)
{
    enum {
        USER = 0x02,
        GROUP = 0x08,
        MASK = 0x10
    };
    struct entry {
        uint16_t tag, perm;
        uint32_t id;
    } e;
    const char *bytes = acl;
    unsigned mask = 7, named = 7;

    for (size_t at = 4; at + sizeof e <= len; at += sizeof e) {
        memcpy(&e, bytes + at, sizeof e);
        if (le16toh(e.tag) == MASK)
            mask = le16toh(e.perm) & 7;
        else if (le16toh(e.tag) == USER || le16toh(e.tag) == GROUP)
            named &= le16toh(e.perm);
    }
    /* Group bits are the mask, not the group's rights. Whoever has an entry of
     * his own must not get more through the bits of all others. */
    return mode & ~(mode_t)(S_IRWXG | (S_IRWXO & ~(named & mask)));
}

void source_apply_acl(const char *path, bool follow, struct stat *st)
{
    static const char name[] = "system.posix_acl_access";
    char acl[4096];
    ssize_t len;

    if (S_ISLNK(st->st_mode) || !(st->st_mode & (S_IRWXG | S_IRWXO)))
        return;
    len = follow ? getxattr(path, name, acl, sizeof acl)
                 : lgetxattr(path, name, acl, sizeof acl);
    if (len >= 4)
        st->st_mode = source_acl_mode(st->st_mode, acl, (size_t)len);
    else if (len >= 0 || (errno != ENODATA && errno != ENOTSUP))
        /* There is one, but it cannot be read: nobody but the owner. */
        st->st_mode &= ~(mode_t)(S_IRWXG | S_IRWXO);
}

/* ---- our own mount --------------------------------------------------- */

void source_find_own_mount(struct own_mount *own, const char *mountpoint)
{
    char *copy = strdup(mountpoint), *copy2 = strdup(mountpoint);
    struct stat st, parent;
    const char *name;

    if (copy && copy2 && *mountpoint == '/' && !stat(mountpoint, &st) &&
        !stat(dirname(copy), &parent)) {
        name = basename(copy2);
        own->below = strlen(name) <= NAME_BYTES;
        snprintf(own->name, sizeof own->name, "%s", name);
        own->parent_dev = parent.st_dev;
        own->parent_ino = parent.st_ino;
        own->covered_dev = st.st_dev;
        own->covered_ino = st.st_ino;
    }
    free(copy);
    free(copy2);
}

/* Undoes the \040 of mountinfo in place. */
static void unescape(char *s)
{
    char *to = s;

    while (*s) {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] && s[3]) {
            *to++ = (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 + (s[3] - '0'));
            s += 4;
        } else {
            *to++ = *s++;
        }
    }
    *to = '\0';
}

dev_t source_mount_dev(const char *mountinfo, const char *mountpoint)
{
    dev_t dev = 0;

    for (const char *line = mountinfo; *line;) {
        const size_t len = strcspn(line, "\n");
        unsigned major, minor;
        int from = 0, to = 0;

        /* id parent major:minor root mountpoint ...; the last one is on top */
        if (sscanf(line, "%*u %*u %u:%u %*s %n%*s%n", &major, &minor, &from,
                   &to) >= 2 &&
            to > from && (size_t)to <= len) {
            char *point = strndup(line + from, (size_t)(to - from));

            if (point) {
                unescape(point);
                if (!strcmp(point, mountpoint))
                    dev = makedev(major, minor);
            }
            free(point);
        }
        line += len + (line[len] == '\n');
    }
    return dev;
}

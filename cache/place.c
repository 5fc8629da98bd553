#include "cache/place.h"
#include "engine/base/io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define BROKEN CACHE_FILE ".broken-"

bool cache_place_is_network(long magic)
{
    static const unsigned long known[] = {
        0x6969,     /* NFS */
        0x517b,     /* SMB */
        0xff534d42, /* CIFS */
        0xfe534d42, /* SMB2 */
        0x65735546, /* FUSE: sshfs, rclone, ... */
        0x01021997, /* 9p */
        0x00c36400, /* Ceph */
        0x5346414f, /* OpenAFS */
        0x6b414653, /* kAFS */
        0x73757245, /* Coda */
        0x7461636f, /* OCFS2 */
        0x01161970, /* GFS2 */
        0x0bd00bd0, /* Lustre */
        0x47504653, /* GPFS */
        0x19830326, /* BeeGFS */
        0xbacbacbc, /* VMware shared folders */
        0x786f4256, /* VirtualBox shared folders */
        0x7c7c6673, /* Parallels shared folders */
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i] == ((unsigned long)magic & 0xffffffff))
            return true;
    return false;
}

/* Malloc'd, NULL if there is no home or no memory. */
static char *default_dir(void)
{
    const char *base = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    const struct passwd *user;
    char *dir = NULL;

    if (geteuid() == 0)
        return strdup("/var/cache/ocrfs");
    if (base && base[0] == '/')
        return asprintf(&dir, "%s/ocrfs", base) < 0 ? NULL : dir;
    if (!home || home[0] != '/') {
        user = getpwuid(geteuid());
        home = user ? user->pw_dir : NULL;
    }
    if (!home || asprintf(&dir, "%s/.cache/ocrfs", home) < 0)
        return NULL;
    return dir;
}

static void make_parents(char *dir)
{
    for (char *slash = strchr(dir + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(dir, 0700); /* what is missing then is said by who needs it */
        *slash = '/';
    }
}

static int check_rights(const struct cache_place *p, struct ocr_err *err)
{
    struct stat st;

    if (fstat(p->dirfd, &st))
        return ocr_err_errno(err, "cannot look at the cache folder %s", p->dir);
    if (st.st_uid != geteuid())
        return ocr_err_set(
            err, -EPERM, "the cache folder %s belongs to another user", p->dir);
    if (st.st_mode & (S_IWGRP | S_IWOTH))
        return ocr_err_set(err, -EPERM,
                           "other users may write to the cache folder %s "
                           "(chmod 700 it)",
                           p->dir);
    return 0;
}

static int open_folder(struct cache_place *p, struct ocr_err *err)
{
    struct statfs fs;
    char *real;

    if (mkdir(p->dir, 0700) && errno != EEXIST)
        return ocr_err_errno(err, "cannot create the cache folder %s", p->dir);
    p->dirfd = open(p->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p->dirfd < 0)
        return ocr_err_errno(err, "cannot open the cache folder %s", p->dir);
    /* A daemon changes to / later, and SQLite wants no links on the way. */
    real = realpath(p->dir, NULL);
    if (!real)
        return ocr_err_errno(err, "cannot find the cache folder %s", p->dir);
    free(p->dir);
    p->dir = real;
    p->network = fstatfs(p->dirfd, &fs) || cache_place_is_network(fs.f_type);
    return check_rights(p, err);
}

int cache_place_open(struct cache_place *p, const char *dir,
                     struct ocr_err *err)
{
    const bool given = dir && *dir;
    int code;

    *p = (struct cache_place){.dirfd = -1, .lockfd = -1};
    p->dir = given ? strdup(dir) : default_dir();
    if (!p->dir)
        return ocr_err_set(err, -ENOENT,
                           "there is no home for the cache: "
                           "name a folder with cache=DIR");
    if (given && strcmp(dir, "memory") == 0)
        return 0;
    if (!given)
        make_parents(p->dir);
    code = open_folder(p, err);
    if (code)
        return code;
    p->lockfd = openat(p->dirfd, "lock",
                       O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (p->lockfd < 0)
        return ocr_err_errno(err, "cannot write to the cache folder %s",
                             p->dir);
    return 0;
}

void cache_place_release(struct cache_place *p)
{
    p->lockfd = ocr_close(p->lockfd);
    p->dirfd = ocr_close(p->dirfd);
    free(p->dir);
    p->dir = NULL;
}

/* A file system without flock: sharing works, taking it alone never. */
static int lock_missing(struct cache_place *p, enum cache_lock kind)
{
    p->no_locks = true;
    return kind == CACHE_SHARED ? 0 : -EBUSY;
}

int cache_place_lock(struct cache_place *p, enum cache_lock kind, int wait_ms)
{
    const int how = kind == CACHE_SHARED ? LOCK_SH : LOCK_EX;
    const int64_t end = ocr_now_ms() + wait_ms;

    if (p->no_locks)
        return lock_missing(p, kind);
    /* Two who both hold it shared would wait for each other. */
    cache_place_unlock(p);
    while (flock(p->lockfd, how | LOCK_NB)) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return lock_missing(p, kind);
        if (ocr_now_ms() >= end)
            return -EBUSY;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return 0;
}

void cache_place_unlock(struct cache_place *p)
{
    if (p->lockfd >= 0)
        flock(p->lockfd, LOCK_UN);
}

int cache_place_touch(struct cache_place *p, struct ocr_err *err)
{
    /* Not open(): closing a descriptor of the file would drop the locks that
     * SQLite holds on it in this process. */
    if (mknodat(p->dirfd, CACHE_FILE, S_IFREG | 0600, 0) && errno != EEXIST)
        return ocr_err_errno(err, "cannot create the cache in %s", p->dir);
    return 0;
}

void cache_place_remove_broken(const struct cache_place *p)
{
    const int fd = openat(p->dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;

    if (!dir) {
        ocr_close(fd);
        return;
    }
    while ((entry = readdir(dir)))
        if (strncmp(entry->d_name, BROKEN, strlen(BROKEN)) == 0)
            unlinkat(p->dirfd, entry->d_name, 0);
    closedir(dir);
}

int cache_place_move_aside(struct cache_place *p, char name[64],
                           struct ocr_err *err)
{
    /* The database last: a new one must never meet the old journal. */
    static const char *const parts[] = {"-shm", "-wal", "-journal", ""};
    const time_t now = time(NULL);
    char from[64], to[96], date[32];
    struct tm tm;

    gmtime_r(&now, &tm);
    strftime(date, sizeof date, "%Y%m%d-%H%M%S", &tm);
    snprintf(name, 64, "%s%s", BROKEN, date);
    cache_place_remove_broken(p);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        snprintf(from, sizeof from, "%s%s", CACHE_FILE, parts[i]);
        snprintf(to, sizeof to, "%s%s", name, parts[i]);
        if (renameat(p->dirfd, from, p->dirfd, to) && errno != ENOENT)
            return ocr_err_errno(err,
                                 "cannot move the damaged cache in %s "
                                 "aside",
                                 p->dir);
    }
    return 0;
}

uint64_t cache_place_bytes(const struct cache_place *p)
{
    static const char *const parts[] = {"", "-wal", "-shm", "-journal"};
    uint64_t bytes = 0;
    struct stat st;
    char name[64];

    for (size_t i = 0; p->dirfd >= 0 && i < sizeof parts / sizeof *parts; i++) {
        snprintf(name, sizeof name, "%s%s", CACHE_FILE, parts[i]);
        if (fstatat(p->dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            bytes += (uint64_t)st.st_size;
    }
    return bytes;
}

bool cache_place_room(const struct cache_place *p, uint64_t *free_bytes,
                      uint64_t *total_bytes)
{
    struct statvfs fs;

    if (p->dirfd < 0 || fstatvfs(p->dirfd, &fs) || fs.f_blocks == 0)
        return false;
    *free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    *total_bytes = (uint64_t)fs.f_blocks * fs.f_frsize;
    return true;
}

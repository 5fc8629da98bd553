#include "engine/base/io.h"
#include "engine/base/log.h"
#include "fs/fs_i.h"

#include <errno.h>
#include <limits.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/statfs.h>
#include <unistd.h>
#include <xxhash.h>

/* Not ACCESS and CLOSE_NOWRITE: we would hear ourselves all the time. OPEN is
 * the only event of a file that is written through a mapping. */
#define MASK                                                                   \
    (IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_CLOSE_WRITE |    \
     IN_MODIFY | IN_ATTRIB | IN_OPEN | IN_DELETE_SELF | IN_MOVE_SELF |         \
     IN_ONLYDIR | IN_EXCL_UNLINK)

enum {
    TABLE_BEGIN = 256,
    BUFFER_BYTES = 256 << 10,
    NEVER = -1, /* in place of a descriptor: this folder is not watched */
    FULL_MS = 10 * 1000,
    QUIET_MS = 2000,  /* without a write: then nobody writes */
    CLOSED_MS = 5000, /* how long a close is remembered */
    STOP_MS = 2000,
};

struct watched {
    struct watched *next;
    int wd;
    fuse_ino_t id; /* of the folder; never used again, so it may be gone */
};

unsigned watch_limit(const char *name)
{
    char path[128], text[32] = "";
    FILE *file;

    snprintf(path, sizeof path, "/proc/sys/fs/inotify/%s", name);
    file = fopen(path, "re");
    if (!file)
        return 0;
    if (!fgets(text, sizeof text, file))
        text[0] = '\0';
    fclose(file);
    return (unsigned)strtoul(text, NULL, 10);
}

/* ---- descriptors of watches ------------------------------------------ */

static struct watched **find_locked(struct watch *w, int wd)
{
    struct watched **at = &w->table[(unsigned)wd & (w->size - 1)];

    while (*at && (*at)->wd != wd)
        at = &(*at)->next;
    return at;
}

/* Without memory the chains get longer. */
static void grow_locked(struct watch *w)
{
    const size_t size = 2 * w->size;
    struct watched **table = calloc(size, sizeof(struct watched *));

    if (!table)
        return;
    for (size_t i = 0; i < w->size; i++) {
        for (struct watched *one = w->table[i], *next; one; one = next) {
            struct watched **at = &table[(unsigned)one->wd & (size - 1)];

            next = one->next;
            one->next = *at;
            *at = one;
        }
    }
    free(w->table);
    w->table = table;
    w->size = size;
}

/* A folder that was forgotten and is looked into again has the watch it had:
 * then it is the new node's. */
static int enter_locked(struct watch *w, int wd, fuse_ino_t id)
{
    struct watched **at = find_locked(w, wd), *one = *at;

    if (!one) {
        one = malloc(sizeof *one);
        if (!one)
            return -ENOMEM;
        *one = (struct watched){.wd = wd};
        *at = one;
        if (++w->count > w->size)
            grow_locked(w);
    }
    one->id = id;
    return 0;
}

static void leave_locked(struct watch *w, struct watched **at)
{
    struct watched *one = *at;

    *at = one->next;
    free(one);
    w->count--;
}

void watch_remove_all(struct watch *w, struct watched *gone)
{
    for (struct watched *next, **at; gone; gone = next) {
        next = gone->next;
        pthread_mutex_lock(&w->lock);
        at = find_locked(w, gone->wd);
        if (*at && (*at)->id == gone->id) { /* not the next node's by now */
            inotify_rm_watch(w->fd, gone->wd);
            leave_locked(w, at);
            w->full_until_ms = 0;
        }
        pthread_mutex_unlock(&w->lock);
        free(gone);
    }
}

void watch_folder_gone(struct watch *w, struct node *folder)
{
    const int wd = atomic_load(&folder->real.wd);
    struct watched *gone;

    if (wd <= 0)
        return;
    gone = malloc(sizeof *gone);
    if (!gone)
        return; /* the watch stays, and speaks of nobody */
    *gone = (struct watched){.wd = wd, .id = folder->id};
    pthread_mutex_lock(&w->list_lock);
    gone->next = w->gone;
    w->gone = gone;
    pthread_cond_broadcast(&w->listed);
    pthread_mutex_unlock(&w->list_lock);
}

/* ---- placing --------------------------------------------------------- */

/* True on a file system that tells of every change: they are all made by this
 * machine. Not overlayfs: its layers may be changed beside it. Asked each time,
 * since the device numbers of what was unmounted are used again. */
static bool tells_changes(int fd)
{
    static const unsigned long kinds[] = {
        EXT4_SUPER_MAGIC, /* and ext2, ext3 */
        XFS_SUPER_MAGIC,   BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC,
        TMPFS_MAGIC,       RAMFS_MAGIC,       REISERFS_SUPER_MAGIC,
        MSDOS_SUPER_MAGIC, EXFAT_SUPER_MAGIC, ISOFS_SUPER_MAGIC,
        UDF_SUPER_MAGIC,   SQUASHFS_MAGIC,    EROFS_SUPER_MAGIC_V1,
        0x2fc12fc1UL, /* ZFS */
        0xca451a4eUL, /* bcachefs */
        0x3153464aUL, /* JFS */
        0x7366746eUL, /* NTFS, by the kernel's ntfs3 */
    };

    struct statfs sf;

    if (fstatfs(fd, &sf))
        return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if ((unsigned long)sf.f_type == kinds[i])
            return true;
    return false;
}

static void say_full(const struct watch *w, bool ours)
{
    const unsigned limit = watch_limit("max_user_watches");

    if (ours)
        ocr_info("%u folders are watched, which is the most (watch=N, or half "
                 "of fs.inotify.max_user_watches): changes in others show "
                 "after a second",
                 w->most);
    else
        ocr_info("no more folders can be watched (fs.inotify.max_user_watches "
                 "is %u): changes in others show after a second; to raise it, "
                 "run as root: sysctl fs.inotify.max_user_watches=%u",
                 limit, limit > UINT_MAX / 4 ? UINT_MAX : 4 * limit);
}

/* True if this is to be said. */
static bool full_locked(struct watch *w, int64_t now)
{
    const bool say = !w->said_full;

    w->full_until_ms = now + FULL_MS;
    w->said_full = true;
    return say;
}

/* The watch is on the inode, whatever path led to it, and does not follow a
 * link that was put in its place: `fd` is the folder. */
static int place_locked(struct watch *w, struct node *folder, int fd)
{
    char path[64];
    int wd, rc;

    if (w->count >= w->most)
        return -ENOSPC;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    wd = inotify_add_watch(w->fd, path, MASK);
    rc = wd < 0 ? -errno : enter_locked(w, wd, folder->id);
    if (!rc)
        atomic_store(&folder->real.wd, wd);
    else if (rc != -ENOSPC && rc != -ENOMEM)
        atomic_store(&folder->real.wd, NEVER);
    return rc;
}

void watch_folder(struct ocr_fs *fs, struct node *folder, int fd)
{
    struct watch *w = &fs->watch;
    const int64_t now = ocr_now_ms();
    bool say = false, ours = false;

    if (w->fd < 0 || folder->kind != NODE_REAL ||
        atomic_load(&folder->real.wd) != 0)
        return;
    if (!tells_changes(fd)) {
        atomic_store(&folder->real.wd, NEVER);
        return;
    }
    pthread_mutex_lock(&w->lock);
    if (atomic_load(&folder->real.wd) == 0 && now >= w->full_until_ms &&
        place_locked(w, folder, fd) == -ENOSPC) {
        ours = w->count >= w->most;
        say = full_locked(w, now);
    }
    pthread_mutex_unlock(&w->lock);
    if (say)
        say_full(w, ours);
}

struct trust watch_trust(const struct ocr_fs *fs, const struct node *folder)
{
    return (struct trust){
        .epoch = atomic_load(&fs->watch.epoch),
        .lasts = folder->kind == NODE_REAL &&
                 atomic_load(&folder->real.wd) > 0 &&
                 atomic_load(&fs->watch.sound),
    };
}

bool watch_lasts(const struct ocr_fs *fs, struct trust trust)
{
    return trust.lasts && trust.epoch == atomic_load(&fs->watch.epoch);
}

/* ---- files that are written ------------------------------------------ */

static uint64_t hash_of(const char *name)
{
    return XXH3_64bits(name, strlen(name));
}

static struct write *write_of(struct watch *w, uint64_t folder, uint64_t hash)
{
    return &w->writes[(folder ^ hash) % WRITES];
}

static void note_write(struct watch *w, uint64_t folder, const char *name,
                       bool closed)
{
    const uint64_t hash = hash_of(name);

    pthread_mutex_lock(&w->list_lock);
    *write_of(w, folder, hash) = (struct write){
        .folder = folder,
        .hash = hash,
        .at_ms = ocr_now_ms(),
        .closed = closed,
    };
    pthread_mutex_unlock(&w->list_lock);
}

static enum writing writing(struct watch *w, uint64_t folder, const char *name)
{
    const uint64_t hash = hash_of(name);
    enum writing is = WRITING_UNKNOWN;
    const struct write *write;
    int64_t age_ms;

    pthread_mutex_lock(&w->list_lock);
    write = write_of(w, folder, hash);
    age_ms = ocr_now_ms() - write->at_ms;
    if (write->folder == folder && write->hash == hash &&
        age_ms < (write->closed ? CLOSED_MS : QUIET_MS))
        is = write->closed ? WRITING_CLOSED : WRITING_OPEN;
    pthread_mutex_unlock(&w->list_lock);
    return is;
}

enum writing watch_writing(struct ocr_fs *fs, struct node *text)
{
    char name[NAME_BYTES + 1] = "";
    fuse_ino_t folder = 0;

    if (fs->watch.fd < 0)
        return WRITING_UNKNOWN;
    pthread_mutex_lock(&fs->nodes.lock);
    if (text->names && !text->names->follow) {
        folder = text->names->parent->id;
        snprintf(name, sizeof name, "%s", text->names->text);
    }
    pthread_mutex_unlock(&fs->nodes.lock);
    return folder ? writing(&fs->watch, folder, name) : WRITING_UNKNOWN;
}

/* ---- events ---------------------------------------------------------- */

/* Where something was moved away from, until the next event says whereto. */
struct move {
    uint32_t cookie; /* 0: none */
    fuse_ino_t folder;
    char name[NAME_BYTES + 1];
};

/* The watched folder, 0 if there is none (any more). */
static fuse_ino_t folder_of(struct watch *w, int wd, bool ignored)
{
    struct watched **at;
    fuse_ino_t id = 0;

    pthread_mutex_lock(&w->lock);
    at = find_locked(w, wd);
    if (*at) {
        id = (*at)->id;
        if (ignored)
            leave_locked(w, at);
    }
    pthread_mutex_unlock(&w->lock);
    return id;
}

/* The folder was deleted, or its file system unmounted. */
static void unwatched(struct ocr_fs *fs, fuse_ino_t id, int wd)
{
    struct node *folder = node_get(&fs->nodes, id);

    if (!folder)
        return;
    atomic_compare_exchange_strong(&folder->real.wd, &wd, 0);
    node_unref(&fs->nodes, folder);
}

/* True if it is new here: not an image, or folder, that only moved. */
static bool hear_move(struct ocr_fs *fs, struct move *from, fuse_ino_t folder,
                      const struct inotify_event *e)
{
    struct watch *w = &fs->watch;
    bool new = true;

    if (e->mask & IN_MOVED_FROM) {
        *from = (struct move){.cookie = e->cookie, .folder = folder};
        snprintf(from->name, sizeof from->name, "%s", e->name);
        return false;
    }
    if (from->cookie && from->cookie == e->cookie) {
        node_moved(&fs->nodes, from->folder, from->name, folder, e->name);
        note_write(w, folder, e->name,
                   writing(w, from->folder, from->name) != WRITING_OPEN);
        new = !(e->mask & IN_ISDIR) && !names_is_image(from->name);
    } else {
        note_write(w, folder, e->name, true);
    }
    from->cookie = 0;
    return new;
}

static unsigned change_of(uint32_t mask)
{
    unsigned what = 0;

    if (mask & (IN_CREATE | IN_MOVED_TO))
        what |= CHANGE_NAME;
    if (mask & (IN_DELETE | IN_MOVED_FROM))
        what |= CHANGE_NAME | CHANGE_AWAY;
    if (mask & IN_DELETE)
        what |= CHANGE_GONE;
    if (mask & IN_CLOSE_WRITE)
        what |= CHANGE_CONTENT | CHANGE_WHOLE;
    if (mask & IN_CREATE)
        what |= CHANGE_CREATED;
    if (mask & IN_ISDIR)
        what |= CHANGE_FOLDER;
    if (mask & IN_ATTRIB)
        what |= CHANGE_ATTRIBUTES;
    if (mask & IN_OPEN)
        what |= CHANGE_OPENED;
    if (mask & IN_MODIFY)
        what |= CHANGE_WRITTEN;
    return what;
}

static void hear(struct ocr_fs *fs, struct move *from,
                 const struct inotify_event *e)
{
    struct watch *w = &fs->watch;
    const bool is_folder = e->mask & IN_ISDIR;
    const char *name = e->len ? e->name : "";
    fuse_ino_t folder;
    bool new = false;

    if (e->mask & IN_Q_OVERFLOW) {
        tell_lost(w);
        return;
    }
    folder = folder_of(w, e->wd, e->mask & IN_IGNORED);
    if (!folder)
        return;
    if (e->mask & IN_IGNORED) {
        unwatched(fs, folder, e->wd);
        return;
    }
    if (!*name) {
        if (e->mask & IN_ATTRIB)
            tell_later(w, folder, "", CHANGE_ATTRIBUTES);
        return;
    }
    if (e->mask & (IN_MOVED_FROM | IN_MOVED_TO))
        new = hear_move(fs, from, folder, e);
    else if (!is_folder && e->mask & (IN_CREATE | IN_MODIFY | IN_CLOSE_WRITE))
        note_write(w, folder, name, e->mask & IN_CLOSE_WRITE);
    /* Who opens what is no image, nobody has to know. */
    if (!(e->mask & IN_OPEN) || (!is_folder && names_is_image(name)))
        tell_later(w, folder, name,
                   change_of(e->mask) | (new ? CHANGE_WHOLE : 0));
}

static void hear_all(struct ocr_fs *fs, struct move *from, const char *buffer,
                     size_t len)
{
    for (size_t at = 0; at < len;) {
        const struct inotify_event *e = (const void *)(buffer + at);

        hear(fs, from, e);
        at += sizeof *e + e->len;
        atomic_fetch_add(&fs->watch.events, 1);
    }
}

static void *read_main(void *arg)
{
    struct ocr_fs *fs = arg;
    struct watch *w = &fs->watch;
    struct pollfd polls[] = {{.fd = w->fd, .events = POLLIN},
                             {.fd = w->wake, .events = POLLIN}};
    struct move from = {.cookie = 0};
    char *buffer = malloc(BUFFER_BYTES); /* aligned for any type */

    while (buffer && !polls[1].revents) {
        const ssize_t n = read(w->fd, buffer, BUFFER_BYTES);

        if (n > 0)
            hear_all(fs, &from, buffer, (size_t)n);
        poll(polls, 2, n > 0 ? 0 : -1);
    }
    free(buffer);
    pthread_mutex_lock(&w->list_lock);
    w->running--;
    pthread_cond_broadcast(&w->listed);
    pthread_mutex_unlock(&w->list_lock);
    return NULL;
}

/* ---- life ------------------------------------------------------------ */

void watch_init(struct watch *w, const char *option)
{
    const unsigned most = (unsigned)strtoul(option, NULL, 10);
    pthread_condattr_t attr;

    *w = (struct watch){
        .off = !strcmp(option, "off"),
        .most = most ? most : watch_limit("max_user_watches") / 2,
        .fd = -1,
        .wake = -1,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .list_lock = PTHREAD_MUTEX_INITIALIZER,
    };
    w->last = &w->first;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->listed, &attr);
    pthread_condattr_destroy(&attr);
}

/* Without it all is well, only slower to show: said, and no more. */
static bool open_inotify(struct watch *w)
{
    const int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);

    if (fd >= 0) {
        w->fd = fd;
        return true;
    }
    if (errno == EMFILE)
        ocr_info("no folder can be watched (fs.inotify.max_user_instances is "
                 "%u): changes in SOURCE show after a second; to raise it, run "
                 "as root: sysctl fs.inotify.max_user_instances=%u",
                 watch_limit("max_user_instances"),
                 4 * watch_limit("max_user_instances"));
    else
        ocr_info("no folder can be watched (%s): changes in SOURCE show after "
                 "a second",
                 strerror(errno));
    return false;
}

static int start_thread(struct ocr_fs *fs, pthread_t *thread,
                        void *(*run)(void *))
{
    struct watch *w = &fs->watch;
    int rc;

    pthread_mutex_lock(&w->list_lock);
    rc = fs_thread_start(thread, run, fs);
    w->running += !rc;
    w->started += !rc;
    pthread_mutex_unlock(&w->list_lock);
    return rc;
}

int watch_start(struct ocr_fs *fs, struct ocr_err *err)
{
    struct watch *w = &fs->watch;
    int rc;

    if (w->off)
        return 0;
    w->wake = eventfd(0, EFD_CLOEXEC);
    if (w->wake < 0)
        return ocr_err_errno(err, "cannot watch folders");
    w->size = TABLE_BEGIN;
    w->table = calloc(w->size, sizeof(struct watched *));
    w->merged = calloc(MERGED, sizeof(struct changed *));
    if (!w->table || !w->merged)
        return ocr_err_set(err, -ENOMEM, "out of memory");
    if (!open_inotify(w))
        return 0;
    fs->nodes.watch = w;
    rc = start_thread(fs, &w->reader, read_main);
    if (!rc)
        rc = start_thread(fs, &w->teller, tell_main);
    if (rc)
        return ocr_err_set(err, rc, "cannot start a thread: %s", strerror(-rc));
    atomic_store(&w->sound, true);
    return 0;
}

void watch_figures(struct watch *w, struct watch_figures *out)
{
    *out = (struct watch_figures){
        .on = w->fd >= 0,
        .sound = atomic_load(&w->sound),
        .events = (uint64_t)atomic_load(&w->events),
        .overflows = (uint64_t)atomic_load(&w->overflows),
        .told = (uint64_t)atomic_load(&w->told),
    };
    pthread_mutex_lock(&w->lock);
    out->folders = w->count;
    out->full = ocr_now_ms() < w->full_until_ms;
    pthread_mutex_unlock(&w->lock);
}

/* While the session still answers, so that what the teller waits for comes:
 * the device must not be closed under it. */
void watch_stop(struct ocr_fs *fs)
{
    struct watch *w = &fs->watch;
    const int64_t until = ocr_now_ms() + STOP_MS;
    const struct timespec deadline = {until / 1000, until % 1000 * 1000000};

    atomic_store(&w->sound, false);
    if (w->wake >= 0)
        eventfd_write(w->wake, 1);
    pthread_mutex_lock(&w->list_lock);
    w->stopping = true;
    pthread_cond_broadcast(&w->listed);
    while (w->running &&
           !pthread_cond_timedwait(&w->listed, &w->list_lock, &deadline))
        continue;
    pthread_mutex_unlock(&w->list_lock);
}

bool watch_join(struct ocr_fs *fs, int timeout_ms)
{
    struct watch *w = &fs->watch;
    const int64_t until = ocr_now_ms() + timeout_ms;
    const struct timespec deadline = {until / 1000, until % 1000 * 1000000};
    bool over;

    pthread_mutex_lock(&w->list_lock);
    while (w->running &&
           !pthread_cond_timedwait(&w->listed, &w->list_lock, &deadline))
        continue;
    over = !w->running;
    pthread_mutex_unlock(&w->list_lock);
    if (!over)
        return false;
    if (w->started > 0)
        pthread_join(w->reader, NULL);
    if (w->started > 1)
        pthread_join(w->teller, NULL);
    w->started = 0;
    fs->nodes.watch = NULL;
    return true;
}

void watch_release(struct watch *w)
{
    for (size_t i = 0; w->table && i < w->size; i++)
        while (w->table[i])
            leave_locked(w, &w->table[i]);
    for (struct watched *gone; (gone = w->gone);) {
        w->gone = gone->next;
        free(gone);
    }
    for (struct changed *c; (c = w->first);) {
        w->first = c->next;
        free(c);
    }
    free(w->table);
    free(w->merged);
    ocr_close(w->fd);
    ocr_close(w->wake);
    pthread_cond_destroy(&w->listed);
    pthread_mutex_destroy(&w->list_lock);
    pthread_mutex_destroy(&w->lock);
}

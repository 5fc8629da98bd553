/* slowfs DIR MOUNTPOINT SECONDS: a read-only view of DIR whose reads take
 * SECONDS, like a network file system that is far away. SIGUSR1 makes all that
 * is asked from then on hang for good, as when the server is gone.
 *
 * It behaves as NFS does with a waiting program: only a fatal signal ends the
 * wait (with EINTR), any other changes nothing. */
#define FUSE_USE_VERSION 312
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    INODES = 65536,
    TICK_MS = 20
};

/* Paths below DIR by inode number; node 1 is DIR. Only the loop adds some. */
static char *paths[INODES];
static size_t inodes = 2;
static int root;
static int64_t delay_ms;
static atomic_bool hanging;

/* A request that is answered later, or never. */
struct late {
    fuse_req_t req;
    int fd; /* of a read, -1 for what hangs */
    off_t at;
    size_t size;
    int64_t due_ms;
    pid_t pid;
    atomic_bool interrupted;
    struct late *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct late *waiting; /* guarded by lock */

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- answers that come late ------------------------------------------------
 */

/* SIGKILL is pending for each thread of a process that is about to end. */
static bool ending(pid_t pid)
{
    char path[64], line[256];
    unsigned long long pending = 1ull << (SIGKILL - 1);
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    f = fopen(path, "re");
    if (!f)
        return true;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "SigPnd: %llx", &pending) == 1)
            break;
    fclose(f);
    return pending & 1ull << (SIGKILL - 1);
}

static void answer(struct late *late)
{
    char *bytes = NULL;
    ssize_t n = -EINTR;

    fuse_req_interrupt_func(late->req, NULL, NULL);
    if (late->due_ms <= now_ms()) {
        bytes = malloc(late->size);
        n = bytes ? pread(late->fd, bytes, late->size, late->at) : -1;
        n = n < 0 ? -EIO : n;
    }
    if (n < 0)
        fuse_reply_err(late->req, (int)-n);
    else
        fuse_reply_buf(late->req, bytes, (size_t)n);
    free(bytes);
    free(late);
}

static bool is_over(struct late *late)
{
    return late->due_ms <= now_ms() ||
           (atomic_load(&late->interrupted) && ending(late->pid));
}

static void *answer_all(void *arg)
{
    (void)arg;
    for (;;) {
        struct late *over = NULL;

        pthread_mutex_lock(&lock);
        for (struct late **at = &waiting; *at;) {
            struct late *late = *at;
            if (is_over(late)) {
                *at = late->next;
                late->next = over;
                over = late;
            } else {
                at = &late->next;
            }
        }
        pthread_mutex_unlock(&lock);
        for (struct late *next; over; over = next) {
            next = over->next;
            answer(over);
        }
        usleep(TICK_MS * 1000);
    }
    return NULL;
}

static void interrupted(fuse_req_t req, void *data)
{
    struct late *late = data;

    (void)req;
    atomic_store(&late->interrupted, true);
}

static void answer_later(fuse_req_t req, int fd, off_t at, size_t size,
                         int64_t due_ms)
{
    struct late *late = calloc(1, sizeof *late);

    if (!late) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    late->req = req;
    late->fd = fd;
    late->at = at;
    late->size = size;
    late->due_ms = due_ms;
    late->pid = fuse_req_ctx(req)->pid;
    fuse_req_interrupt_func(req, interrupted, late);
    pthread_mutex_lock(&lock);
    late->next = waiting;
    waiting = late;
    pthread_mutex_unlock(&lock);
}

/* True, and the request is taken care of, if nothing is answered any more. */
static bool hangs(fuse_req_t req)
{
    if (!atomic_load(&hanging))
        return false;
    answer_later(req, -1, 0, 0, INT64_MAX);
    return true;
}

/* ---- operations ------------------------------------------------------------
 */

static fuse_ino_t inode_of(const char *path)
{
    for (size_t i = 1; i < inodes; i++)
        if (strcmp(paths[i], path) == 0)
            return i;
    if (inodes == INODES || !(paths[inodes] = strdup(path)))
        return 0;
    return inodes++;
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fuse_entry_param e = {.attr_timeout = 1, .entry_timeout = 1};
    char path[PATH_MAX];

    if (hangs(req))
        return;
    snprintf(path, sizeof path, "%s/%s", paths[parent], name);
    if (fstatat(root, path, &e.attr, AT_SYMLINK_NOFOLLOW) ||
        !(e.ino = inode_of(path))) {
        fuse_reply_err(req, errno);
        return;
    }
    e.attr.st_ino = e.ino;
    fuse_reply_entry(req, &e);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino,
                       struct fuse_file_info *fi)
{
    struct stat st;

    (void)fi;
    if (hangs(req))
        return;
    if (fstatat(root, paths[ino], &st, AT_SYMLINK_NOFOLLOW)) {
        fuse_reply_err(req, errno);
        return;
    }
    st.st_ino = ino;
    fuse_reply_attr(req, &st, 1);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    int fd;

    if (hangs(req))
        return;
    fd = openat(root, paths[ino], fi->flags | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        fuse_reply_err(req, errno);
        return;
    }
    fi->fh = (uint64_t)fd;
    fuse_reply_open(req, fi);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t at,
                    struct fuse_file_info *fi)
{
    (void)ino;
    if (!hangs(req))
        answer_later(req, (int)fi->fh, at, size, now_ms() + delay_ms);
}

static void op_release(fuse_req_t req, fuse_ino_t ino,
                       struct fuse_file_info *fi)
{
    (void)ino;
    close((int)fi->fh);
    fuse_reply_err(req, 0);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino,
                       struct fuse_file_info *fi)
{
    DIR *dir;
    int fd;

    if (hangs(req))
        return;
    fd = openat(root, paths[ino], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        fuse_reply_err(req, errno);
        return;
    }
    fi->fh = (uint64_t)(uintptr_t)dir;
    fuse_reply_open(req, fi);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t at,
                       struct fuse_file_info *fi)
{
    DIR *dir = (DIR *)(uintptr_t)fi->fh; /* NOLINT: as FUSE hands it over */
    char buf[4096];
    size_t len = 0;
    struct dirent *entry;

    (void)ino;
    if (hangs(req))
        return;
    size = size < sizeof buf ? size : sizeof buf;
    seekdir(dir, at);
    while ((entry = readdir(dir))) {
        const struct stat st = {.st_ino = entry->d_ino,
                                .st_mode = (mode_t)entry->d_type << 12};
        const size_t n = fuse_add_direntry(req, buf + len, size - len,
                                           entry->d_name, &st, entry->d_off);
        if (n > size - len)
            break;
        len += n;
    }
    fuse_reply_buf(req, buf, len);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino,
                          struct fuse_file_info *fi)
{
    (void)ino;
    closedir((DIR *)(uintptr_t)fi->fh); /* NOLINT */
    fuse_reply_err(req, 0);
}

static const struct fuse_lowlevel_ops operations = {
    .lookup = op_lookup,
    .getattr = op_getattr,
    .open = op_open,
    .read = op_read,
    .release = op_release,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .releasedir = op_releasedir,
};

/* ---- life ------------------------------------------------------------------
 */

static void hang(int number)
{
    (void)number;
    atomic_store(&hanging, true);
}

int main(int argc, char **argv)
{
    const struct sigaction usr1 = {.sa_handler = hang, .sa_flags = SA_RESTART};
    char *name[] = {argv[0], NULL};
    struct fuse_args args = FUSE_ARGS_INIT(1, name);
    struct fuse_session *session;
    pthread_t thread;
    int rc;

    if (argc != 4) {
        fprintf(stderr, "usage: slowfs DIR MOUNTPOINT SECONDS\n");
        return 2;
    }
    root = open(argv[1], O_PATH | O_DIRECTORY | O_CLOEXEC);
    paths[1] = strdup(".");
    delay_ms = (int64_t)(atof(argv[3]) * 1000);
    session = fuse_session_new(&args, &operations, sizeof operations, NULL);
    if (root < 0 || !paths[1] || !session || sigaction(SIGUSR1, &usr1, NULL) ||
        fuse_set_signal_handlers(session) ||
        fuse_session_mount(session, argv[2]))
        return 1;
    if (pthread_create(&thread, NULL, answer_all, NULL))
        return 1;
    rc = fuse_session_loop(session);
    fuse_session_unmount(session);
    return rc != 0;
}

/* Originals that the kernel reads by itself: an open registers the file with
 * the kernel, and reads, splices and faults go to it without asking us.
 *
 * All opens of a node at a time must be of one kind, with one number of the
 * kernel (B19): so the first one decides, and the last release gives the
 * number back. The kernel reads as any reader would and notes the time of
 * access; what is registered is therefore opened through a private mount of
 * SOURCE without such times (B16). */
#include "engine/base/io.h"
#include "engine/base/log.h"
#include "fs/fs_i.h"
#include "fs/privileges.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <unistd.h>

/* Of linux/fuse.h since Linux 6.9. libfuse's functions for them need a request
 * that was not answered, and there is none when an answer failed; and they log
 * each failure. */
struct backing_map {
    int32_t fd;
    uint32_t flags;
    uint64_t padding;
};
#define BACKING_OPEN _IOW(229, 1, struct backing_map)
#define BACKING_CLOSE _IOW(229, 2, uint32_t)

/* SOURCE once more, without access times and without what is mounted below it:
 * that could be this mount, which would then never end. */
static int quiet_mount(int source)
{
    struct mount_attr attr = {
        .attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOATIME,
        .attr_clr = MOUNT_ATTR__ATIME,
        .propagation = MS_PRIVATE,
    };
    const int fd = open_tree(
        source, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);

    if (fd >= 0 && mount_setattr(fd, "", AT_EMPTY_PATH, &attr, sizeof attr))
        return ocr_close(fd);
    return fd;
}

void passthrough_init(struct ocr_fs *fs, struct fuse_conn_info *conn)
{
#ifdef FUSE_CAP_PASSTHROUGH /* libfuse 3.17 */
    if (!(conn->capable & FUSE_CAP_PASSTHROUGH))
        return;
    /* Whoever may not do this may not register files either. */
    ocr_privileges_raise();
    fs->passthrough.root.fd = quiet_mount(fs->source.fd);
    ocr_privileges_lower();
    if (fs->passthrough.root.fd >= 0)
        fuse_set_feature_flag(conn, FUSE_CAP_PASSTHROUGH);
#else
    (void)fs;
    (void)conn;
    (void)quiet_mount;
#endif
}

void passthrough_release(struct ocr_fs *fs)
{
    fs->passthrough.root.fd = ocr_close(fs->passthrough.root.fd);
}

/* ---- numbers of the kernel ----------------------------------------------- */

static int tell_kernel(struct ocr_fs *fs, unsigned long what, void *arg)
{
    int rc;

    ocr_privileges_raise();
    rc = ioctl(fuse_session_fd(fs->session), what, arg);
    if (rc < 0)
        rc = -errno;
    ocr_privileges_lower();
    return rc;
}

static void give_back(struct ocr_fs *fs, uint32_t id)
{
    if (id)
        tell_kernel(fs, BACKING_CLOSE, &id);
}

/* The file behind `fd` through the private mount; -1 if it is not there, but
 * on what is mounted below SOURCE. */
static int open_quietly(struct ocr_fs *fs, struct node *n, int fd)
{
    bool follow;
    char *path = node_path(&fs->nodes, n, 0, &follow);
    struct stat want, got;
    int again = -1;

    if (path && !follow)
        again = source_open(&fs->passthrough.root, path, O_RDONLY);
    free(path);
    if (again < 0)
        return -1;
    if (fstat(fd, &want) || fstat(again, &got) || want.st_dev != got.st_dev ||
        want.st_ino != got.st_ino)
        return ocr_close(again);
    return again;
}

static uint32_t get_number(struct ocr_fs *fs, struct node *n, int fd)
{
    struct backing_map map = {.fd = open_quietly(fs, n, fd)};
    int id;

    if (map.fd < 0)
        return 0;
    id = tell_kernel(fs, BACKING_OPEN, &map);
    if (id <= 0 && !atomic_exchange(&fs->passthrough.said, true))
        ocr_info("the kernel does not read originals by itself: %s",
                 strerror(-id));
    close(map.fd);
    return id > 0 ? (uint32_t)id : 0;
}

/* ---- opens --------------------------------------------------------------- */

/* True if the node was open already; then *id is what its opens have. */
static bool join(struct ocr_fs *fs, struct node *n, uint32_t *id)
{
    bool open;

    pthread_mutex_lock(&fs->nodes.lock);
    open = n->real.opens > 0;
    if (open) {
        n->real.opens++;
        *id = n->real.backing;
    }
    pthread_mutex_unlock(&fs->nodes.lock);
    return open;
}

/* The node is open with *id, or with what somebody else got meanwhile; the
 * number that is left over. */
static uint32_t settle(struct ocr_fs *fs, struct node *n, uint32_t *id)
{
    const uint32_t ours = *id;

    pthread_mutex_lock(&fs->nodes.lock);
    if (!n->real.opens++)
        n->real.backing = ours;
    *id = n->real.backing;
    pthread_mutex_unlock(&fs->nodes.lock);
    return *id == ours ? 0 : ours;
}

void passthrough_opened(struct ocr_fs *fs, struct node *n, int fd,
                        struct fuse_file_info *fi)
{
    uint32_t id = 0;

    if (fs->passthrough.root.fd < 0)
        return;
    if (!join(fs, n, &id)) {
        id = get_number(fs, n, fd);
        give_back(fs, settle(fs, n, &id));
    }
#ifdef FUSE_CAP_PASSTHROUGH
    fi->backing_id = (int32_t)id;
#endif
    if (id)
        fi->keep_cache = 0;
}

void passthrough_closed(struct ocr_fs *fs, struct node *n)
{
    uint32_t id = 0;

    if (fs->passthrough.root.fd < 0)
        return;
    pthread_mutex_lock(&fs->nodes.lock);
    if (!--n->real.opens) {
        id = n->real.backing;
        n->real.backing = 0;
    }
    pthread_mutex_unlock(&fs->nodes.lock);
    give_back(fs, id);
}

#include "engine/base/io.h"
#include "engine/base/log.h"
#include "fs/fs_i.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static struct ocr_fs *fs_of(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

static struct handle *handle_of(const struct fuse_file_info *fi)
{
    return (struct handle *)(uintptr_t)fi->fh;
}
_Static_assert(sizeof(uintptr_t) <= sizeof(uint64_t), "a handle fits in fh");

/* ---- start ----------------------------------------------------------- */

/* A bind mount of the mount into SOURCE is known by its device (S10). */
static void learn_own_dev(struct ocr_fs *fs)
{
    struct ocr_buf text;
    FILE *f = fopen("/proc/self/mountinfo", "re");
    char part[4096];
    size_t n;

    if (!f)
        return;
    ocr_buf_init(&text, (size_t)16 << 20);
    while ((n = fread(part, 1, sizeof part, f)) > 0)
        ocr_buf_add(&text, part, n);
    fclose(f);
    if (text.data && !text.failed)
        atomic_store(&fs->own.dev,
                     source_mount_dev(text.data, fs->config.mountpoint));
    ocr_buf_release(&text);
}

static void want(struct fuse_conn_info *conn, unsigned flags)
{
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
    fuse_set_feature_flag(conn, flags); /* never beside conn->want (V2) */
#else
    conn->want |= flags;
#endif
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
    /* SPLICE_WRITE: originals in half the processor time (B22). */
    const unsigned wanted = FUSE_CAP_SPLICE_WRITE | FUSE_CAP_EXPORT_SUPPORT |
                            FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO |
                            FUSE_CAP_ASYNC_READ | FUSE_CAP_AUTO_INVAL_DATA |
                            FUSE_CAP_PARALLEL_DIROPS;
    struct ocr_fs *fs = userdata;

    want(conn, wanted & conn->capable);
    passthrough_init(fs, conn);
    conn->max_background = 64;
    conn->congestion_threshold = 48;
    learn_own_dev(fs);
    if (fs->config.ready)
        fs->config.ready(fs->config.ready_arg);
}

/* ---- names ----------------------------------------------------------- */

static void reply_entry(struct ocr_fs *fs, fuse_req_t req, struct node *n,
                        const struct fuse_entry_param *e)
{
    node_count(&fs->nodes, n);
    if (fuse_reply_entry(req, e) == -ENOENT) /* the kernel did not take it */
        node_forget(&fs->nodes, n->id, 1);
}

/* What is missing may be kept as well, if it is heard when it comes. */
static void reply_missing(struct ocr_fs *fs, fuse_req_t req, struct trust trust)
{
    const struct fuse_entry_param none = {.entry_timeout = TIMEOUT_S};

    if (watch_lasts(fs, trust))
        fuse_reply_entry(req, &none);
    else
        fuse_reply_err(req, ENOENT);
}

/* "." and "..": the kernel has a file handle and asks what it means (F16). */
static int look_up_known(struct ocr_fs *fs, struct node *n,
                         struct fuse_entry_param *e)
{
    *e = (struct fuse_entry_param){
        .ino = n->id,
        .generation = n == fs->nodes.root ? 0 : fs->nodes.generation,
        .entry_timeout = TIMEOUT_S,
    };
    return attr_get(fs, n, &e->attr, &e->attr_timeout);
}

static struct node *look_up_control(struct ocr_fs *fs, const char *name,
                                    struct fuse_entry_param *e, int *rc)
{
    struct node *n = control_lookup(fs, name, rc);

    if (!n)
        return NULL;
    *e = (struct fuse_entry_param){
        .ino = n->id,
        .generation = fs->nodes.generation,
        .attr_timeout = TIMEOUT_S,
        /* Each lookup of a file is a new snapshot. */
        .entry_timeout = n == fs->control ? TIMEOUT_S : 0,
    };
    control_attr(fs, n, &e->attr);
    return n;
}

static struct node *look_up_real(struct ocr_fs *fs, struct node *parent,
                                 const char *name, struct fuse_entry_param *e,
                                 struct trust *trust, int *rc)
{
    struct node *n;
    struct object folder;
    int fd = attr_open(fs, parent, false, &folder);

    if (fd < 0) {
        *rc = fd;
        return NULL;
    }
    watch_folder(fs, parent, fd);
    *trust = watch_trust(fs, parent);
    if (attr_is_own_mount(fs, &folder.st, name)) {
        *rc = -ENOENT;
        n = NULL;
    } else {
        n = attr_lookup(fs, parent, fd, name, e, rc);
    }
    close(fd);
    return n;
}

static struct node *look_up(struct ocr_fs *fs, struct node *parent,
                            const char *name, struct fuse_entry_param *e,
                            struct trust *trust, int *rc)
{
    struct node *n;

    if (!strcmp(name, ".") || !strcmp(name, "..")) {
        n = name[1] ? node_parent(&fs->nodes, parent)
                    : node_ref(&fs->nodes, parent);
        *rc = n ? look_up_known(fs, n, e) : -ESTALE;
        if (*rc && n) {
            node_unref(&fs->nodes, n);
            n = NULL;
        }
        return n;
    }
    if (parent == fs->control || (parent == fs->nodes.root && fs->control &&
                                  !strcmp(name, fs->options->control)))
        return look_up_control(fs, parent == fs->control ? name : NULL, e, rc);
    return look_up_real(fs, parent, name, e, trust, rc);
}

static void op_lookup(fuse_req_t req, fuse_ino_t id, const char *name)
{
    struct ocr_fs *fs = fs_of(req);
    struct node *parent = node_get(&fs->nodes, id), *n = NULL;
    struct trust trust = {.lasts = false};
    struct fuse_entry_param e;
    int rc = -ESTALE;

    if (parent)
        n = look_up(fs, parent, name, &e, &trust, &rc);
    if (n)
        reply_entry(fs, req, n, &e);
    else if (rc == -ENOENT)
        reply_missing(fs, req, trust);
    else
        fuse_reply_err(req, -rc);
    node_unref(&fs->nodes, n);
    node_unref(&fs->nodes, parent);
}

static void op_forget(fuse_req_t req, fuse_ino_t id, uint64_t lookups)
{
    node_forget(&fs_of(req)->nodes, id, lookups);
    fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count,
                            struct fuse_forget_data *forgets)
{
    for (size_t i = 0; i < count; i++)
        node_forget(&fs_of(req)->nodes, forgets[i].ino, forgets[i].nlookup);
    fuse_reply_none(req);
}

/* ---- attributes ------------------------------------------------------ */

/* size=wait, for this program. */
static bool wants_size(const struct ocr_fs *fs, fuse_req_t req)
{
    const struct ocr_options *o = fs->options;

    return o->size == OCR_SIZE_WAIT &&
           (!*o->size_names ||
            caller_listed(fuse_req_ctx(req)->pid, o->size_names));
}

static void op_getattr(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
    struct ocr_fs *fs = fs_of(req);
    struct node *n = node_get(&fs->nodes, id);
    struct stat st;
    double timeout;
    int rc = n ? attr_get(fs, n, &st, &timeout) : -ESTALE;

    (void)fi; /* never set for stat and fstat (F2) */
    if (rc)
        fuse_reply_err(req, -rc);
    else if (n->kind == NODE_TEXT && timeout == 0 && wants_size(fs, req) &&
             !reading_refused(fs, req, n))
        park_request(fs, req, n, NULL, (struct warmth){0});
    else
        fuse_reply_attr(req, &st, timeout);
    node_unref(&fs->nodes, n);
}

static void op_readlink(fuse_req_t req, fuse_ino_t id)
{
    struct ocr_fs *fs = fs_of(req);
    struct node *n = node_get(&fs->nodes, id);
    struct object o;
    char target[PATH_MAX];
    ssize_t len = -1;
    int fd = n ? attr_open(fs, n, false, &o) : -ESTALE;

    int rc = fd < 0 ? fd : 0;

    if (!rc) {
        len = readlinkat(fd, "", target, sizeof target - 1);
        rc = len < 0 ? -errno : 0;
        close(fd);
    }
    if (rc) {
        fuse_reply_err(req, -rc);
    } else {
        target[len] = '\0';
        fuse_reply_readlink(req, target);
    }
    node_unref(&fs->nodes, n);
}

/* An error would make df fail for everybody (B12). */
static void op_statfs(fuse_req_t req, fuse_ino_t id)
{
    struct ocr_fs *fs = fs_of(req);
    struct statvfs st;

    (void)id;
    if (fstatvfs(fs->source.fd, &st))
        st = (struct statvfs){.f_bsize = TEXT_BLOCK, .f_frsize = TEXT_BLOCK};
    st.f_namemax = NAME_BYTES;
    fuse_reply_statfs(req, &st);
}

/* ---- extended attributes, with -o xattr -------------------------------- */

static void reply_xattr(fuse_req_t req, const char *value, size_t len,
                        size_t size)
{
    if (size == 0)
        fuse_reply_xattr(req, len);
    else if (len > size)
        fuse_reply_err(req, ERANGE);
    else
        fuse_reply_buf(req, value, len);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t id, const char *name,
                        size_t size)
{
    struct ocr_fs *fs = fs_of(req);
    struct node *n = node_get(&fs->nodes, id);
    char value[REASON_BYTES];
    const bool found = n && facts_attribute(fs, n, name, value, sizeof value);

    if (found)
        reply_xattr(req, value, strlen(value), size);
    else
        fuse_reply_err(req, n ? ENODATA : ESTALE);
    node_unref(&fs->nodes, n);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t id, size_t size)
{
    struct ocr_fs *fs = fs_of(req);
    struct node *n = node_get(&fs->nodes, id);
    char names[256];

    if (n)
        reply_xattr(req, names, facts_list(fs, n, names, sizeof names), size);
    else
        fuse_reply_err(req, ESTALE);
    node_unref(&fs->nodes, n);
}

/* ---- files
 * -----------------------------------------------------------------------------
 */

static void open_real(struct ocr_fs *fs, fuse_req_t req, struct node *n,
                      struct fuse_file_info *fi)
{
    struct handle *h = NULL;
    struct object o;
    int fd = S_ISREG(n->type) ? attr_open(fs, n, true, &o) : -EACCES;

    if (fd >= 0)
        h = handle_new(&fs->nodes, n, fd, NULL, NULL);
    if (!h) {
        fuse_reply_err(req, fd < 0 ? -fd : ENOMEM);
        ocr_close(fd);
        return;
    }
    fi->fh = (uintptr_t)h;
    fi->keep_cache = node_keep_cache(&fs->nodes, n, &o.st, ocr_wall_ns());
    passthrough_opened(fs, n, fd, fi);
    if (fuse_reply_open(req, fi) == -ENOENT) {
        passthrough_closed(fs, n);
        handle_free(&fs->nodes, h);
    }
}

static void op_open(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
    struct ocr_fs *fs = fs_of(req);
    struct node *n = node_get(&fs->nodes, id);

    if (!n)
        fuse_reply_err(req, ESTALE);
    else if ((fi->flags & O_ACCMODE) != O_RDONLY || (fi->flags & O_TRUNC))
        fuse_reply_err(req, EROFS);
    else if (n->kind == NODE_REAL)
        open_real(fs, req, n, fi);
    else if (n->kind == NODE_TEXT)
        reading_open(fs, req, n, fi);
    else
        reading_reply(fs, req, n, fi, n->control.snapshot);
    node_unref(&fs->nodes, n);
}

/* The file may be released as soon as the kernel has the bytes, before the
 * reply returns here: so with a reference of its own. */
static void read_text(fuse_req_t req, struct text *text, size_t size, off_t off)
{
    const size_t at = (uint64_t)off < text->len ? (size_t)off : text->len;

    if (size > text->len - at)
        size = text->len - at;
    text_ref(text);
    fuse_reply_buf(req, text->bytes + at, size);
    text_unref(text);
}

static void op_read(fuse_req_t req, fuse_ino_t id, size_t size, off_t off,
                    struct fuse_file_info *fi)
{
    const struct handle *h = handle_of(fi);
    struct fuse_bufvec buf = FUSE_BUFVEC_INIT(size);

    (void)id;
    if (h->text) {
        read_text(req, h->text, size, off);
        return;
    }
    buf.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
    buf.buf[0].fd = h->fd;
    buf.buf[0].pos = off;
    fuse_reply_data(req, &buf, 0);
}

static void op_release(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
    struct ocr_fs *fs = fs_of(req);
    struct handle *h = handle_of(fi);

    (void)id;
    if (h->node->kind == NODE_REAL && !h->dir)
        passthrough_closed(fs, h->node);
    handle_free(&fs->nodes, h);
    fuse_reply_err(req, 0);
}

/* ---- folders
 * -----------------------------------------------------------------------------
 */

static void op_opendir(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
    struct ocr_fs *fs = fs_of(req);
    struct node *n = node_get(&fs->nodes, id);

    if (!n)
        fuse_reply_err(req, ESTALE);
    else if (!S_ISDIR(n->type))
        fuse_reply_err(req, ENOTDIR);
    else
        dir_open(fs, req, n, fi);
    node_unref(&fs->nodes, n);
}

static void op_readdir(fuse_req_t req, fuse_ino_t id, size_t size, off_t off,
                       struct fuse_file_info *fi)
{
    (void)id;
    dir_read(fs_of(req), req, handle_of(fi), size, off, false);
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t id, size_t size,
                           off_t off, struct fuse_file_info *fi)
{
    (void)id;
    dir_read(fs_of(req), req, handle_of(fi), size, off, true);
}

/* True once the engine has said which version it is; else *rc. */
static bool knows_version(struct ocr_fs *fs, int *rc)
{
    enum {
        PATIENCE_MS = 100
    };
    struct ocr_err err = OCR_ERR_INIT;

    *rc = 0;
    if (!*atomic_load(&fs->stats.fingerprint))
        *rc = ocr_fs_wait_ready(fs, PATIENCE_MS, &err);
    if (*rc)
        *rc = *rc == -ETIMEDOUT ? -EAGAIN : -EIO;
    return !*rc;
}

static void op_ioctl(fuse_req_t req, fuse_ino_t id, unsigned command, void *arg,
                     struct fuse_file_info *fi, unsigned flags, const void *in,
                     size_t in_size, size_t out_size)
{
    struct ocr_fs *fs = fs_of(req);
    struct handle *h = handle_of(fi);
    uint32_t how = 0;
    int rc = 0;

    (void)id;
    (void)arg;
    (void)out_size;
    if (flags & FUSE_IOCTL_DIR && command == OCR_COUNT_IOCTL) {
        struct ocr_texts_count count;

        dir_count_texts(fs, h, &count);
        fuse_reply_ioctl(req, 0, &count, sizeof count);
        return;
    }
    if (!(flags & FUSE_IOCTL_DIR) || h->node != fs->control) {
        fuse_reply_err(req, ENOTTY);
        return;
    }
    if (command == OCR_PAUSE_IOCTL || command == OCR_RESUME_IOCTL) {
        command == OCR_PAUSE_IOCTL ? park_pause(fs) : park_resume(fs);
        fuse_reply_ioctl(req, 0, NULL, 0);
        return;
    }
    if (command != OCR_WARM_IOCTL || in_size != sizeof how) {
        fuse_reply_err(req, ENOTTY);
        return;
    }
    memcpy(&how, in, sizeof how);
    if (!(how & OCR_WARM_REFRESH) || knows_version(fs, &rc))
        handle_warm(&fs->nodes, h, fuse_req_ctx(req)->pid,
                    how & OCR_WARM_REFRESH);
    if (rc)
        fuse_reply_err(req, -rc);
    else
        fuse_reply_ioctl(req, 0, NULL, 0);
}

/* Left out on purpose: flush, access, locks, lseek (B14), and everything that
 * writes: the kernel answers EROFS. */
static const struct fuse_lowlevel_ops operations = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .forget_multi = op_forget_multi,
    .getattr = op_getattr,
    .readlink = op_readlink,
    .open = op_open,
    .read = op_read,
    .release = op_release,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .readdirplus = op_readdirplus,
    .releasedir = op_release,
    .statfs = op_statfs,
    .ioctl = op_ioctl,
};

/* Without getxattr and listxattr the kernel never asks (B13): `ls -l` would
 * cost two requests more a file. */
void ocr_fs_operations(const struct ocr_options *options,
                       struct fuse_lowlevel_ops *out)
{
    *out = operations;
    if (options->xattr) {
        out->getxattr = op_getxattr;
        out->listxattr = op_listxattr;
    }
}

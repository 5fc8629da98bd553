#include "engine/base/io.h"
#include "engine/finish.h"
#include "fs/fs_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

/* What changed less than a minute ago soon changes again. */
#define SETTLED_NS ((int64_t)60 * 1000000000)

/* ---- finding the object of a node ------------------------------------ */

static bool same_object(const struct node *n, const struct object *o)
{
    const mode_t type = o->st.st_mode & S_IFMT;

    return n->dev == o->st.st_dev && n->ino == o->st.st_ino &&
           n->born_ns == o->born_ns && n->type == type;
}

static int open_path(struct ocr_fs *fs, const struct node *n, const char *path,
                     bool follow, bool read)
{
    const int flags = S_ISDIR(n->type) ? O_DIRECTORY : 0;

    if (read && !flags)
        return source_open_file(&fs->source, path, follow);
    if (follow)
        return source_open_follow(&fs->source, path, O_PATH);
    return source_open(&fs->source, path, flags | (read ? 0 : O_PATH));
}

/* With an ACL the mode bits say more than is granted (S4); without allow_other
 * only the mounter gets in, who is the one who reads SOURCE. */
static void limit_by_acl(const struct ocr_fs *fs, int fd, const char *name,
                         struct object *o)
{
    char path[64 + NAME_BYTES];

    if (!fs->options->allow_other)
        return;
    snprintf(path, sizeof path, "/proc/self/fd/%d%s%s", fd, name ? "/" : "",
             name ? name : "");
    source_apply_acl(path, !name, &o->st);
}

int attr_stat(struct ocr_fs *fs, int fd, struct object *out)
{
    const int rc = source_stat_fd(fd, out);

    if (!rc)
        limit_by_acl(fs, fd, NULL, out);
    return rc;
}

int attr_open(struct ocr_fs *fs, struct node *n, bool read, struct object *out)
{
    int rc = -ESTALE;
    bool follow;
    char *path;

    for (unsigned i = 0; (path = node_path(&fs->nodes, n, i, &follow)); i++) {
        int fd = open_path(fs, n, path, follow, read);

        free(path);
        if (fd >= 0) {
            rc = attr_stat(fs, fd, out);
            if (!rc && same_object(n, out))
                return fd;
            close(fd);
            rc = rc ? rc : -ESTALE;
        } else {
            /* Another file stands there now, or none. */
            rc = fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP || fd == -ENXIO
                     ? -ESTALE
                     : fd;
        }
        /* A name that may not be walked any more can hide one that may. */
        if (rc != -ESTALE && rc != -EACCES)
            break;
    }
    return rc;
}

/* ---- keys ------------------------------------------------------------ */

/* statfs is asked once per file system: what it says outlives reboots and
 * replugging, which st_dev does not. */
static uint64_t file_system_id(struct ocr_fs *fs, dev_t dev, int fd)
{
    struct fsid *known;
    struct stat st;
    struct statfs sf;
    uint64_t id = 0;

    pthread_mutex_lock(&fs->nodes.lock);
    for (known = fs->fsids; known && known->dev != dev; known = known->next)
        continue;
    pthread_mutex_unlock(&fs->nodes.lock);
    if (known)
        return known->id;
    if (fstat(fd, &st) || st.st_dev != dev)
        return dev;
    if (!fstatfs(fd, &sf))
        memcpy(&id, &sf.f_fsid, sizeof id);
    known = malloc(sizeof *known);
    if (known) {
        *known = (struct fsid){.dev = dev, .id = id ? id : dev};
        pthread_mutex_lock(&fs->nodes.lock);
        known->next = fs->fsids;
        fs->fsids = known;
        pthread_mutex_unlock(&fs->nodes.lock);
    }
    return id ? id : dev;
}

void attr_file_id(struct ocr_fs *fs, const struct stat *st, int fd,
                  struct ocr_file_id *id)
{
    const struct stamp stamp = stamp_of(st);

    *id = (struct ocr_file_id){
        .fs = file_system_id(fs, st->st_dev, fd),
        .ino = st->st_ino,
        .size = (uint64_t)stamp.size,
        .mtime_ns = stamp.mtime_ns,
        .ctime_ns = stamp.ctime_ns,
    };
}

uint32_t owner_of(const struct ocr_fs *fs, uid_t uid)
{
    return fs->options->allow_other && !fs->options->share_all
               ? uid
               : OCR_CACHE_ANY_OWNER;
}

/* ---- attributes ------------------------------------------------------ */

static struct timespec timespec_ns(int64_t ns)
{
    int64_t s = ns / 1000000000;

    s -= ns < s * 1000000000; /* before 1970 */
    return (struct timespec){.tv_sec = s, .tv_nsec = ns - s * 1000000000};
}

/* That of the reason is known as well. */
static bool has_size(const struct ocr_fs *fs, struct ocr_cached *cached)
{
    char reason[REASON_BYTES];

    if (cached->verdict == OCR_KIND_NONE)
        return true;
    cached->size = reading_reason(cached->verdict, cached->sentence, reason);
    cached->stored = true;
    return fs->errors == ERRORS_TEXT;
}

/* What the index knows about the size of a text that nobody opened yet. */
static int ask_index(struct ocr_fs *fs, struct node *n, const struct object *o,
                     int fd)
{
    const struct ocr_maker maker = fs_maker(fs);
    struct ocr_cache_key key = {.owner = owner_of(fs, o->st.st_uid)};
    struct ocr_digest digest;
    struct ocr_file_id id;
    struct ocr_cached cached;
    enum ocr_identity identity;

    attr_file_id(fs, &o->st, fd, &id);
    identity = ocr_cache_identify(fs->cache, &id, key.digest);
    if (identity == OCR_IDENTITY_NONE ||
        ocr_cache_size(fs->cache, &key, &maker, &cached) ||
        !has_size(fs, &cached))
        return 0;
    memcpy(digest.bytes, key.digest, sizeof digest.bytes);
    /* If the open will hash again, the node must not stand for these bytes. */
    return node_set_size(&fs->nodes, n,
                         identity == OCR_IDENTITY_EXACT ? &digest : NULL,
                         cached.size, cached.redone_ns,
                         identity == OCR_IDENTITY_EXACT &&
                             (cached.stored || *maker.fingerprint));
}

/* Not what grows, nor what can be written by a name in another folder. */
static bool is_settled(const struct object *o)
{
    return ocr_wall_ns() - stamp_of(&o->st).mtime_ns >= SETTLED_NS &&
           o->st.st_nlink == 1;
}

/* True if the kernel may keep for long what it is told now. Folders never: what
 * is mounted on one is no event. */
static bool may_last(struct ocr_fs *fs, struct node *n, const struct object *o,
                     struct trust trust)
{
    const int64_t now = ocr_now_ms();
    bool lasts;

    if (!trust.lasts || S_ISDIR(n->type) || !is_settled(o))
        return false;
    pthread_mutex_lock(&fs->nodes.lock);
    lasts = watch_lasts(fs, trust) && n->written_ms <= now && !n->retired;
    if (lasts)
        n->lasting_ms = now + (int64_t)(1000 * LASTING_S);
    pthread_mutex_unlock(&fs->nodes.lock);
    return lasts;
}

/* Originals are written while they are looked at, and only the times tell of a
 * mapping: their attributes never last. A text is one version of its image. */
static void fill_timeouts(struct ocr_fs *fs, struct node *n,
                          const struct object *o, bool exact,
                          struct trust trust, struct timeouts *t)
{
    const bool lasts = may_last(fs, n, o, trust);

    t->entry = lasts ? LASTING_S : TIMEOUT_S;
    if (n->kind == NODE_TEXT)
        t->attr = !exact ? 0 : lasts ? LASTING_S : TIMEOUT_S;
    else
        t->attr = TIMEOUT_S;
}

/* No text is longer: of a page, or of a document whose pages nobody has counted
 * yet. */
static uint64_t bound_of(const struct node *n)
{
    const uint64_t least = OCR_PAGE_TEXT_MAX, times = 16;
    const uint64_t bytes = n->text.image.bytes;

    if (!n->text.many || bytes <= least / times)
        return least;
    return bytes < OCR_DOCUMENT_TEXT_MAX / times ? bytes * times
                                                 : OCR_DOCUMENT_TEXT_MAX;
}

/* True if the size is final. */
static bool fill_text(struct ocr_fs *fs, struct node *n, struct stat *st)
{
    const enum ocr_size_mode mode = fs->options->size;
    struct image image;
    bool exact;
    int64_t redone_ns;
    uint64_t size, bound;

    pthread_mutex_lock(&fs->nodes.lock);
    image = n->text.image;
    bound = bound_of(n);
    exact = n->text.exact;
    size = n->text.sized ? n->text.size : mode == OCR_SIZE_ZERO ? 0 : bound;
    redone_ns = n->text.redone_ns;
    pthread_mutex_unlock(&fs->nodes.lock);
    *st = (struct stat){
        .st_ino = node_st_ino(fs->root_dev, n->dev, n->ino, true),
        .st_mode = image.mode & ~(mode_t)0333,
        .st_nlink = 1,
        .st_uid = image.uid,
        .st_gid = image.gid,
        .st_size = (off_t)size,
        /* Not less than the bound: `wc -c A B` asks for the sizes before it
         * opens, trusts all of it but the last block, and reads that. */
        .st_blksize = (blksize_t)bound,
        .st_blocks = (blkcnt_t)((size + 511) / 512),
        .st_atim = timespec_ns(image.atime_ns),
        .st_mtim = timespec_ns(redone_ns ? redone_ns : image.stamp.mtime_ns),
        .st_ctim = timespec_ns(image.stamp.ctime_ns),
    };
    return exact;
}

static void fill_real(struct ocr_fs *fs, const struct object *o,
                      struct stat *st)
{
    *st = o->st;
    st->st_ino = node_st_ino(fs->root_dev, o->st.st_dev, o->st.st_ino, false);
    if (!S_ISLNK(st->st_mode)) /* those of a link say nothing */
        st->st_mode &= ~(mode_t)0222;
}

int attr_fill(struct ocr_fs *fs, struct node *n, const struct object *o, int fd,
              struct trust trust, struct stat *st, struct timeouts *timeouts)
{
    const int64_t now = ocr_now_ms();
    bool ask, exact;
    int rc = 0;

    if (n->kind == NODE_REAL) {
        fill_real(fs, o, st);
        fill_timeouts(fs, n, o, true, trust, timeouts);
        return 0;
    }
    /* A listing is followed at once by a stat of each text, since what is not
     * known has no time-out: one question is enough for both. */
    pthread_mutex_lock(&fs->nodes.lock);
    ask = !n->text.exact && now - n->text.asked_ms >= INDEX_AGE_MS;
    if (ask)
        n->text.asked_ms = now;
    pthread_mutex_unlock(&fs->nodes.lock);
    if (ask)
        rc = ask_index(fs, n, o, fd);
    exact = fill_text(fs, n, st);
    fill_timeouts(fs, n, o, exact, trust, timeouts);
    return rc;
}

/* A file that is open stays what it was: the text of its version, or the
 * unlinked file itself. */
static int attr_of_open(struct ocr_fs *fs, struct node *n, struct stat *st,
                        double *timeout)
{
    struct object o;
    struct text *text;
    int fd, rc;

    if (n->kind == NODE_TEXT) {
        text = node_open_text(&fs->nodes, n);
        if (!text)
            return -ESTALE;
        text_unref(text);
        *timeout = fill_text(fs, n, st) ? TIMEOUT_S : 0;
        return 0;
    }
    fd = node_open_fd(&fs->nodes, n);
    if (fd < 0)
        return fd;
    rc = attr_stat(fs, fd, &o);
    if (!rc)
        fill_real(fs, &o, st);
    *timeout = TIMEOUT_S;
    close(fd);
    return rc;
}

/* Of the folder that the node's newest name is in. */
static struct trust trust_of(struct ocr_fs *fs, struct node *n)
{
    struct trust trust = {.lasts = false};

    pthread_mutex_lock(&fs->nodes.lock);
    if (n->names && !n->names->follow)
        trust = watch_trust(fs, n->names->parent);
    pthread_mutex_unlock(&fs->nodes.lock);
    return trust;
}

int attr_get(struct ocr_fs *fs, struct node *n, struct stat *st,
             double *timeout)
{
    const struct trust trust = trust_of(fs, n);
    struct timeouts timeouts = {0};
    struct object o;
    int fd, rc;

    if (n->kind == NODE_CONTROL) {
        control_attr(fs, n, st);
        *timeout = TIMEOUT_S;
        return 0;
    }
    fd = attr_open(fs, n, false, &o);
    rc = fd < 0 ? fd : 0;
    if (fd >= 0) {
        if (n->kind == NODE_TEXT)
            rc = node_check_version(&fs->nodes, n, &o);
        if (!rc)
            rc = attr_fill(fs, n, &o, fd, trust, st, &timeouts);
        *timeout = timeouts.attr;
        close(fd);
    }
    return rc == -ESTALE ? attr_of_open(fs, n, st, timeout) : rc;
}

/* ---- lookup
 * ---------------------------------------------------------------------------
 */

bool attr_is_own_mount(const struct ocr_fs *fs, const struct stat *parent,
                       const char *name)
{
    return fs->own.below && parent->st_dev == fs->own.parent_dev &&
           parent->st_ino == fs->own.parent_ino && !strcmp(name, fs->own.name);
}

static int stat_name(struct ocr_fs *fs, int dir, const char *name,
                     struct object *o)
{
    const int rc = source_stat_at(dir, name, o);

    if (rc)
        return rc;
    if (atomic_load(&fs->own.dev) && o->st.st_dev == atomic_load(&fs->own.dev))
        return -ENOENT; /* a bind mount of ourselves (S10) */
    limit_by_acl(fs, dir, name, o);
    return 0;
}

/* The file that a link in SOURCE leads to, if it stays there. */
static int stat_link(struct ocr_fs *fs, struct node *parent, const char *name,
                     const struct object *link, struct object *o)
{
    bool follow;
    char *folder = node_path(&fs->nodes, parent, 0, &follow), *path = NULL;
    int fd = -ENOMEM, rc;

    if (!folder)
        return -ESTALE;
    if (asprintf(&path, "%s/%s", folder, name) >= 0) {
        fd = source_open_follow(&fs->source, path, O_PATH);
        free(path);
    }
    free(folder);
    if (fd < 0)
        return fd;
    rc = attr_stat(fs, fd, o);
    close(fd);
    /* Others' links must not lead around the modes of folders. */
    if (!rc && fs->options->allow_other && o->st.st_uid != link->st.st_uid)
        return -EACCES;
    return rc;
}

static bool is_selected(struct ocr_fs *fs, struct node *parent, int dir,
                        const char *image, bool follow, const struct stat *st)
{
    char *folder = select_folder(fs, parent);
    const bool yes = select_text(fs, folder, dir, image, follow, st);

    free(folder);
    return yes;
}

/* What `name` in `parent` is: a real object, or the image of a text. */
static int resolve(struct ocr_fs *fs, struct node *parent, int dir,
                   const char *name, struct object *o, char *image,
                   bool *follow, enum node_kind *kind)
{
    struct object link;
    size_t len;
    int rc = stat_name(fs, dir, name, o);

    *kind = NODE_REAL;
    *follow = false;
    if (!rc && !select_shown(fs, name, o->st.st_mode))
        return -ENOENT;
    if (rc != -ENOENT)
        return rc;
    len = names_image_len(name, fs->suffix);
    if (!len)
        return -ENOENT;
    *kind = NODE_TEXT;
    memcpy(image, name, len);
    image[len] = '\0';
    rc = stat_name(fs, dir, image, o);
    if (!rc && S_ISLNK(o->st.st_mode) && fs->options->follow) {
        link = *o;
        *follow = true;
        rc = stat_link(fs, parent, image, &link, o);
    }
    if (rc || !names_has_text(image, o->st.st_mode, fs->suffix, false) ||
        !is_selected(fs, parent, dir, image, *follow, &o->st))
        return -ENOENT;
    return 0;
}

/* With errors=hide a text whose size is not sure may go with the next open. */
static bool may_hide(const struct ocr_fs *fs, enum node_kind kind,
                     const struct timeouts *t)
{
    return fs->errors == ERRORS_HIDE && kind == NODE_TEXT && t->attr == 0;
}

struct node *attr_lookup(struct ocr_fs *fs, struct node *parent, int dir,
                         const char *name, struct fuse_entry_param *e, int *rc)
{
    struct trust trust = watch_trust(fs, parent);
    struct timeouts timeouts;
    char image[NAME_BYTES + 1];
    enum node_kind kind;
    struct object o;
    struct node *n;
    bool follow;

    *rc = resolve(fs, parent, dir, name, &o, image, &follow, &kind);
    if (*rc)
        return NULL;
    trust.lasts = trust.lasts && !follow; /* the target is elsewhere */
    /* Twice: the index may know that the node stands for other bytes. */
    for (int i = 0; i < 2; i++) {
        n = node_enter(&fs->nodes, parent, kind == NODE_TEXT ? image : name,
                       follow, kind, &o, rc);
        if (!n)
            return NULL;
        *e = (struct fuse_entry_param){
            .ino = n->id,
            .generation = fs->nodes.generation,
        };
        *rc = attr_fill(fs, n, &o, dir, trust, &e->attr, &timeouts);
        e->entry_timeout = may_hide(fs, kind, &timeouts) ? 0 : timeouts.entry;
        e->attr_timeout = timeouts.attr;
        if (!*rc)
            return n;
        node_unref(&fs->nodes, n);
    }
    return NULL;
}

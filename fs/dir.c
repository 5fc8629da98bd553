#include "engine/base/io.h"
#include "fs/fs_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Names of one folder; far above what any file system lists. */
#define NAMES_LIMIT ((size_t)1 << 31)

struct entry {
    uint64_t st_ino;
    size_t name; /* offset in dir.names */
    mode_t type; /* S_IFMT bits */
};

/* What one open folder lists. Offset of an entry is its index + 1. */
struct dir {
    pthread_mutex_t lock;
    struct entry *entries;
    size_t count, room;
    struct ocr_buf names;
    bool read; /* since the snapshot was taken */
};

static const char *name_of(const struct dir *d, const struct entry *e)
{
    return d->names.data + e->name;
}

static int add(struct dir *d, const char *name, mode_t type, uint64_t st_ino)
{
    if (d->count == d->room) {
        const size_t room = d->room ? 2 * d->room : 64;
        struct entry *more = realloc(d->entries, room * sizeof *more);

        if (!more)
            return -ENOMEM;
        d->entries = more;
        d->room = room;
    }
    d->entries[d->count++] = (struct entry){
        .st_ino = st_ino, .name = d->names.len, .type = type & S_IFMT};
    ocr_buf_add(&d->names, name, strlen(name) + 1);
    return d->names.failed ? -ENOMEM : 0;
}

/* ---- the snapshot ---------------------------------------------------- */

/* A folder may be the root of another mount, a file system may not tell types:
 * then lstat knows. Our own mount is never asked (S10). */
static int add_real(struct ocr_fs *fs, struct dir *d, int dir,
                    const struct stat *folder, const struct dirent *entry)
{
    mode_t type = DTTOIF(entry->d_type);
    ino_t ino = entry->d_ino;
    dev_t dev = folder->st_dev;
    struct object o;

    if (type == S_IFDIR || type == 0) {
        if (!source_stat_at(dir, entry->d_name, &o)) {
            type = o.st.st_mode;
            ino = o.st.st_ino;
            dev = o.st.st_dev;
        }
        if (atomic_load(&fs->own.dev) && dev == atomic_load(&fs->own.dev))
            return 0;
    }
    return add(d, entry->d_name, type,
               node_st_ino(fs->root_dev, dev, ino, false));
}

static bool hidden(const struct ocr_fs *fs, const struct node *n,
                   const struct stat *folder, const char *name)
{
    return !strcmp(name, ".") || !strcmp(name, "..") ||
           (n == fs->nodes.root && fs->control &&
            !strcmp(name, fs->options->control)) ||
           attr_is_own_mount(fs, folder, name);
}

static int add_reals(struct ocr_fs *fs, struct node *n, struct dir *d, int dir,
                     const struct stat *folder, DIR *stream)
{
    const struct dirent *entry;
    int rc = 0;

    while (!rc) {
        errno = 0;
        entry = readdir(stream);
        if (!entry)
            return -errno;
        if (!hidden(fs, n, folder, entry->d_name))
            rc = add_real(fs, d, dir, folder, entry);
    }
    return rc;
}

/* Names in order, to see which texts would hide real files. */
static int by_name(const void *a, const void *b, void *arg)
{
    const struct dir *d = arg;

    return strcmp(name_of(d, &d->entries[*(const size_t *)a]),
                  name_of(d, &d->entries[*(const size_t *)b]));
}

static bool taken(const struct dir *d, const size_t *order, size_t count,
                  const char *name)
{
    while (count) {
        const size_t half = count / 2;
        const int c = strcmp(name, name_of(d, &d->entries[order[half]]));

        if (c == 0)
            return true;
        if (c > 0) {
            order += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return false;
}

/* A link that leads to an image has a text with -o follow; lookup decides. */
static bool link_has_text(struct ocr_fs *fs, struct node *n, int dir,
                          const char *text, uint64_t *st_ino)
{
    struct fuse_entry_param e;
    struct node *found;
    int rc;

    found = attr_lookup(fs, n, dir, text, &e, &rc);
    if (!found)
        return false;
    *st_ino = e.attr.st_ino;
    node_unref(&fs->nodes, found);
    return true;
}

static int add_text(struct ocr_fs *fs, struct node *n, const char *folder,
                    struct dir *d, int dir, const struct entry *image,
                    const size_t *order, size_t count)
{
    const mode_t type = image->type;
    uint64_t st_ino = image->st_ino | 1;
    char text[NAME_BYTES + 1];

    if (!names_has_text(name_of(d, image), S_ISLNK(type) ? S_IFREG : type,
                        fs->suffix, false))
        return 0;
    snprintf(text, sizeof text, "%s%s", name_of(d, image), fs->suffix);
    if (taken(d, order, count, text))
        return 0;
    if (S_ISLNK(type)
            ? !(fs->options->follow && link_has_text(fs, n, dir, text, &st_ino))
            : !select_text(fs, folder, dir, name_of(d, image), false, NULL))
        return 0;
    return add(d, text, S_IFREG, st_ino);
}

static int add_texts(struct ocr_fs *fs, struct node *n, struct dir *d, int dir)
{
    const size_t count = d->count;
    size_t *order = malloc((count + 1) * sizeof *order);
    char *folder;
    int rc = 0;

    if (!order)
        return -ENOMEM;
    folder = select_folder(fs, n);
    for (size_t i = 0; i < count; i++)
        order[i] = i;
    qsort_r(order, count, sizeof *order, by_name, d);
    for (size_t i = 0; i < count && !rc; i++) {
        const struct entry image = d->entries[i]; /* the array may move */

        rc = add_text(fs, n, folder, d, dir, &image, order, count);
    }
    free(folder);
    free(order);
    return rc;
}

/* Images count until the texts are there. */
static void drop_hidden(struct ocr_fs *fs, struct dir *d)
{
    size_t kept = 0;

    for (size_t i = 0; i < d->count; i++)
        if (select_shown(fs, name_of(d, &d->entries[i]), d->entries[i].type))
            d->entries[kept++] = d->entries[i];
    d->count = kept;
}

/* The order of st_ino: programs that sort by it (grep -r above 10,000 entries)
 * open in the order listed, a text comes behind its image, and a disk is read
 * the way it was written. */
static int by_st_ino(const void *a, const void *b, void *arg)
{
    const struct entry *x = a, *y = b;
    const struct dir *d = arg;

    if (x->st_ino != y->st_ino)
        return x->st_ino < y->st_ino ? -1 : 1;
    return strcmp(name_of(d, x), name_of(d, y));
}

static int add_dots(struct ocr_fs *fs, struct node *n, struct dir *d, int dir,
                    const struct stat *folder)
{
    const uint64_t self =
        node_st_ino(fs->root_dev, folder->st_dev, folder->st_ino, false);
    struct object up = {.st = *folder};
    int rc = add(d, ".", S_IFDIR, self);

    if (n != fs->nodes.root && source_stat_at(dir, "..", &up))
        up.st = *folder;
    if (!rc)
        rc = add(d, "..", S_IFDIR,
                 node_st_ino(fs->root_dev, up.st.st_dev, up.st.st_ino, false));
    return rc;
}

static int fill(struct ocr_fs *fs, struct node *n, struct dir *d, int dir,
                DIR *stream)
{
    enum {
        DOTS = 2
    };
    struct object folder;
    int rc = source_stat_fd(dir, &folder);

    if (!rc)
        rc = add_reals(fs, n, d, dir, &folder.st, stream);
    if (!rc)
        rc = add_texts(fs, n, d, dir);
    if (rc)
        return rc;
    drop_hidden(fs, d);
    /* The dots come first, so they are made last and moved there. */
    rc = add_dots(fs, n, d, dir, &folder.st);
    if (rc)
        return rc;
    qsort_r(d->entries, d->count - DOTS, sizeof *d->entries, by_st_ino, d);
    const struct entry dots[DOTS] = {d->entries[d->count - 2],
                                     d->entries[d->count - 1]};
    memmove(d->entries + DOTS, d->entries,
            (d->count - DOTS) * sizeof *d->entries);
    memcpy(d->entries, dots, sizeof dots);
    return 0;
}

size_t dir_count(const struct dir *d)
{
    return d->count;
}

const char *dir_entry(const struct dir *d, size_t i, struct stat *st)
{
    *st = (struct stat){.st_ino = d->entries[i].st_ino,
                        .st_mode = d->entries[i].type};
    return name_of(d, &d->entries[i]);
}

static void count_text(struct ocr_fs *fs, struct handle *h, const char *name,
                       struct ocr_texts_count *out)
{
    struct fuse_entry_param e;
    struct facts facts;
    struct node *n;
    int rc;

    n = attr_lookup(fs, h->node, h->fd, name, &e, &rc);
    if (!n)
        return;
    if (n->kind == NODE_TEXT) {
        facts_of_text(fs, n, &facts);
        out->texts++;
        out->known += facts.state == TEXT_KNOWN;
        out->failed += facts.state == TEXT_FAILED;
    }
    node_unref(&fs->nodes, n);
}

void dir_count_texts(struct ocr_fs *fs, struct handle *h,
                     struct ocr_texts_count *out)
{
    struct dir *d = h->dir;

    *out = (struct ocr_texts_count){0};
    pthread_mutex_lock(&d->lock);
    for (size_t i = 0; i < d->count && h->fd >= 0; i++)
        if (S_ISREG(d->entries[i].type) && ocr_is_text(d->entries[i].st_ino))
            count_text(fs, h, name_of(d, &d->entries[i]), out);
    pthread_mutex_unlock(&d->lock);
}

static void empty(struct dir *d)
{
    free(d->entries);
    d->entries = NULL;
    d->count = d->room = 0;
    ocr_buf_release(&d->names);
    d->read = false;
}

int dir_snapshot(struct ocr_fs *fs, struct node *n, struct dir *d, int dir)
{
    /* Another open file, so that its offset and its end are its own. */
    const int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    int rc = -errno;

    if (!stream) {
        ocr_close(fd);
        return rc;
    }
    empty(d);
    rc = fill(fs, n, d, dir, stream);
    closedir(stream);
    return rc;
}

static int control_snapshot(struct ocr_fs *fs, struct dir *d)
{
    int rc = add(d, ".", S_IFDIR, control_st_ino(CONTROL_FOLDER));

    if (!rc)
        rc = add(d, "..", S_IFDIR,
                 node_st_ino(fs->root_dev, fs->root_dev, fs->nodes.root->ino,
                             false));
    for (unsigned i = CONTROL_FOLDER + 1; i < CONTROL_COUNT && !rc; i++)
        rc = add(d, control_names[i], S_IFREG, control_st_ino(i));
    return rc;
}

/* ---- open ------------------------------------------------------------ */

struct dir *dir_new(void)
{
    struct dir *d = calloc(1, sizeof *d);

    if (d) {
        pthread_mutex_init(&d->lock, NULL);
        ocr_buf_init(&d->names, NAMES_LIMIT);
    }
    return d;
}

void dir_free(struct dir *d)
{
    if (!d)
        return;
    empty(d);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

void dir_open(struct ocr_fs *fs, fuse_req_t req, struct node *n,
              struct fuse_file_info *fi)
{
    struct dir *d = dir_new();
    struct handle *h = NULL;
    struct object o;
    int fd = -1, rc = d ? 0 : -ENOMEM;

    if (!rc && n->kind == NODE_CONTROL) {
        rc = control_snapshot(fs, d);
    } else if (!rc) {
        fd = attr_open(fs, n, true, &o);
        if (fd >= 0)
            watch_folder(fs, n, fd);
        rc = fd < 0 ? fd : dir_snapshot(fs, n, d, fd);
    }
    if (!rc) {
        h = handle_new(&fs->nodes, n, fd, NULL, d);
        rc = h ? 0 : -ENOMEM;
    }
    if (rc) {
        ocr_close(fd);
        dir_free(d);
        fuse_reply_err(req, -rc);
        return;
    }
    fi->fh = (uintptr_t)h;
    if (fuse_reply_open(req, fi) == -ENOENT) /* interrupted: no release comes */
        handle_free(&fs->nodes, h);
}

/* ---- reading --------------------------------------------------------- */

struct page {
    fuse_req_t req;
    char *data;
    size_t used, size;
};

static bool put(struct page *p, const struct dir *d, size_t i)
{
    struct stat st;
    const char *name = dir_entry(d, i, &st);
    const size_t need = fuse_add_direntry(
        p->req, p->data + p->used, p->size - p->used, name, &st, (off_t)i + 1);

    if (need > p->size - p->used)
        return false;
    p->used += need;
    return true;
}

/* With attributes: a reference for the kernel, except for the dots and what
 * cannot be looked up, which go as names only (N1, N15). */
static bool put_plus(struct ocr_fs *fs, struct page *p, const struct handle *h,
                     const struct dir *d, size_t i)
{
    struct fuse_entry_param param = {0};
    struct stat st;
    const char *name = dir_entry(d, i, &st);
    struct node *n = NULL;
    size_t need;
    bool fits;
    int rc;

    if (i >= 2 && h->fd >= 0)
        n = attr_lookup(fs, h->node, h->fd, name, &param, &rc);
    if (!n)
        param = (struct fuse_entry_param){.attr = st};
    need = fuse_add_direntry_plus(p->req, p->data + p->used, p->size - p->used,
                                  name, &param, (off_t)i + 1);
    fits = need <= p->size - p->used;
    if (fits) {
        p->used += need;
        if (n)
            node_count(&fs->nodes, n);
    }
    node_unref(&fs->nodes, n);
    return fits;
}

void dir_read(struct ocr_fs *fs, fuse_req_t req, struct handle *h, size_t size,
              off_t off, bool plus)
{
    struct dir *d = h->dir;
    struct page p = {.req = req, .data = malloc(size), .size = size};
    int rc = p.data ? 0 : -ENOMEM;

    pthread_mutex_lock(&d->lock);
    /* rewinddir(3) shows what there is now. */
    if (!rc && off == 0 && d->read && h->fd >= 0)
        rc = dir_snapshot(fs, h->node, d, h->fd);
    for (size_t i = (size_t)off; !rc && i < d->count; i++) {
        d->read = true;
        if (!(plus ? put_plus(fs, &p, h, d, i) : put(&p, d, i)))
            break;
    }
    pthread_mutex_unlock(&d->lock);
    if (rc)
        fuse_reply_err(req, -rc);
    else
        fuse_reply_buf(req, p.data, p.used);
    free(p.data);
}

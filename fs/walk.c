#include "fs/walk.h"

#include "engine/base/io.h"
#include "fs/fs_i.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FRESH_MS = 2000,
    DOTS = 2,         /* entries of a snapshot that are none */
    FOLDER_COSTS = 16 /* entries */
};

struct listing {
    unsigned refs;
    struct node *folder; /* a reference */
    int fd;
    struct dir *dir;
    long count;      /* of entries, without the dots */
    size_t *by_name; /* [count], indices of dir */
    int64_t read_ms;
};

/* ---- listings -------------------------------------------------------- */

static void listing_unref(struct ocr_fs *fs, struct listing *l)
{
    if (!l || --l->refs)
        return;
    node_unref(&fs->nodes, l->folder);
    ocr_close(l->fd);
    dir_free(l->dir);
    free(l->by_name);
    free(l);
}

static const char *name_of(const struct dir *d, size_t i)
{
    struct stat st;

    return dir_entry(d, i, &st);
}

static int by_name(const void *a, const void *b, void *dir)
{
    return strcmp(name_of(dir, *(const size_t *)a),
                  name_of(dir, *(const size_t *)b));
}

static bool read_folder(struct ocr_fs *fs, struct listing *l)
{
    struct object o;

    l->fd = attr_open(fs, l->folder, true, &o);
    l->dir = l->fd < 0 ? NULL : dir_new();
    if (!l->dir || dir_snapshot(fs, l->folder, l->dir, l->fd))
        return false;
    l->count = (long)dir_count(l->dir) - DOTS;
    l->by_name = calloc((size_t)l->count + 1, sizeof *l->by_name);
    if (!l->by_name)
        return false;
    for (long i = 0; i < l->count; i++)
        l->by_name[i] = (size_t)i + DOTS;
    qsort_r(l->by_name, (size_t)l->count, sizeof *l->by_name, by_name, l->dir);
    l->read_ms = ocr_now_ms();
    return true;
}

/* With a reference; NULL if the folder cannot be read. */
static struct listing *listing_of(struct ocr_fs *fs, struct listings *ls,
                                  struct node *folder)
{
    const int64_t now = ocr_now_ms();
    struct listing **slot = &ls->kept[ls->next], *l;

    for (unsigned i = 0; i < LISTINGS; i++) {
        l = ls->kept[i];
        if (!l || l->folder != folder)
            continue;
        slot = &ls->kept[i];
        if (now - l->read_ms < FRESH_MS) {
            l->refs++;
            return l;
        }
    }
    l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->refs = 1;
    l->folder = node_ref(&fs->nodes, folder);
    if (!read_folder(fs, l)) {
        listing_unref(fs, l);
        return NULL;
    }
    if (slot == &ls->kept[ls->next])
        ls->next = (ls->next + 1) % LISTINGS;
    listing_unref(fs, *slot);
    *slot = l;
    l->refs++;
    return l;
}

void listings_clear(struct ocr_fs *fs, struct listings *ls)
{
    for (unsigned i = 0; i < LISTINGS; i++) {
        listing_unref(fs, ls->kept[i]);
        ls->kept[i] = NULL;
    }
}

/* ---- places in a listing --------------------------------------------- */

static bool is_named(enum walk_order order)
{
    return order == WALK_NAMED || order == WALK_NAMED_BACK;
}

static bool is_back(enum walk_order order)
{
    return order == WALK_LISTED_BACK || order == WALK_NAMED_BACK;
}

static const char *entry_at(const struct walk *w, struct stat *st)
{
    const struct listing *l = w->folder;

    return dir_entry(
        l->dir, is_named(w->order) ? l->by_name[w->at] : (size_t)w->at + DOTS,
        st);
}

/* Where `name` stands in the walk's order; -1: nowhere. */
static long place_of(const struct listing *l, enum walk_order order,
                     const char *name)
{
    long first = 0, end = l->count;

    while (first < end) {
        const long half = first + (end - first) / 2;
        const int c = strcmp(name, name_of(l->dir, l->by_name[half]));

        if (c == 0)
            return is_named(order) ? half : (long)l->by_name[half] - DOTS;
        if (c < 0)
            end = half;
        else
            first = half + 1;
    }
    return -1;
}

/* Stands at the entry of `n` in its folder. */
static bool stand_at(struct ocr_fs *fs, struct listings *ls, struct walk *w,
                     struct node *n, const char *suffix)
{
    struct node *parent = node_parent(&fs->nodes, n);
    bool follow;
    char *path = node_path(&fs->nodes, n, 0, &follow);
    const char *base = path ? strrchr(path, '/') : NULL;
    struct listing *l = parent ? listing_of(fs, ls, parent) : NULL;
    char name[2 * NAME_BYTES];

    node_unref(&fs->nodes, parent);
    if (l && path) {
        snprintf(name, sizeof name, "%s%s", base ? base + 1 : path, suffix);
        w->at = place_of(l, w->order, name);
    }
    free(path);
    if (!l || !path || w->at < 0) {
        listing_unref(fs, l);
        return false;
    }
    listing_unref(fs, w->folder);
    w->folder = l;
    return true;
}

/* ---- walking --------------------------------------------------------- */

void walk_begin(struct ocr_fs *fs, struct listings *ls, struct walk *w,
                struct node *text, enum walk_order order)
{
    *w = (struct walk){.order = order};
    stand_at(fs, ls, w, text, fs->suffix);
}

void walk_end(struct ocr_fs *fs, struct walk *w)
{
    listing_unref(fs, w->folder);
    w->folder = NULL;
}

static void climb(struct ocr_fs *fs, struct listings *ls, struct walk *w)
{
    struct node *folder = node_ref(&fs->nodes, w->folder->folder);

    w->folders++;
    if (folder == fs->nodes.root || !stand_at(fs, ls, w, folder, ""))
        walk_end(fs, w);
    node_unref(&fs->nodes, folder);
}

/* A folder that cannot be read is passed over. */
static void descend(struct ocr_fs *fs, struct listings *ls, struct walk *w,
                    struct node *folder)
{
    struct listing *l = listing_of(fs, ls, folder);

    if (!l)
        return;
    listing_unref(fs, w->folder);
    w->folder = l;
    w->at = is_back(w->order) ? l->count : -1;
    w->folders++;
}

/* A text, or what may lead to some. */
static bool leads_on(const struct stat *st)
{
    return S_ISDIR(st->st_mode) ||
           (S_ISREG(st->st_mode) && ocr_is_text(st->st_ino));
}

struct node *walk_next(struct ocr_fs *fs, struct listings *ls, struct walk *w,
                       unsigned *budget)
{
    struct fuse_entry_param e;
    struct stat st;
    const char *name;
    struct node *n;
    int rc;

    while (w->folder && *budget) {
        --*budget;
        w->at += is_back(w->order) ? -1 : 1;
        if (w->at < 0 || w->at >= w->folder->count) {
            *budget -= *budget < FOLDER_COSTS ? *budget : FOLDER_COSTS;
            climb(fs, ls, w);
            continue;
        }
        name = entry_at(w, &st);
        if (!leads_on(&st))
            continue;
        n = attr_lookup(fs, w->folder->folder, w->folder->fd, name, &e, &rc);
        if (n && n->kind == NODE_TEXT)
            return n;
        if (n && S_ISDIR(n->type))
            descend(fs, ls, w, n);
        node_unref(&fs->nodes, n);
    }
    return NULL;
}

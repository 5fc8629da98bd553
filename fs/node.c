#include "engine/base/io.h"
#include "fs/fs_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    TABLE_BEGIN = 1024, /* buckets, a power of two */
    NAMES_MAX = 4096,   /* of one node; then the oldest go */
};

/* Age at which a change of a file shows in its times for sure. */
#define SETTLED_NS ((int64_t)2000000000)

/* ---- texts ----------------------------------------------------------- */

struct text *text_new(char *bytes, size_t len)
{
    struct text *text = bytes ? malloc(sizeof *text) : NULL;

    if (!text) {
        free(bytes);
        return NULL;
    }
    atomic_init(&text->refs, 1);
    text->len = len;
    text->sum = XXH3_64bits(bytes, len);
    text->bytes = bytes;
    return text;
}

struct text *text_ref(struct text *text)
{
    if (text)
        atomic_fetch_add(&text->refs, 1);
    return text;
}

void text_unref(struct text *text)
{
    if (!text || atomic_fetch_sub(&text->refs, 1) != 1)
        return;
    free(text->bytes);
    free(text);
}

/* ---- numbers shown to users ------------------------------------------ */

/* 1 bit 0 | 15 bits file system | 47 bits inode | 1 bit text. Order is kept
 * within a file system whose inode numbers fit, which is all but a few. */
uint64_t node_st_ino(dev_t root_dev, dev_t dev, ino_t ino, bool text)
{
    const uint64_t pair[2] = {dev == root_dev ? 0 : dev, ino};
    uint64_t system = 0;

    if ((uint64_t)ino >> 47)
        return (XXH3_64bits(pair, sizeof pair) >> 1 & ~(uint64_t)1) | text;
    if (dev != root_dev)
        system = 1 + XXH3_64bits(pair, sizeof *pair) % 0x7ffe;
    return system << 48 | (uint64_t)ino << 1 | text;
}

uint64_t control_st_ino(unsigned which)
{
    return ((uint64_t)0x7fff << 48) + which;
}

/* ---- tables ---------------------------------------------------------- */

static size_t key_hash(dev_t dev, ino_t ino, enum node_kind kind)
{
    const uint64_t key[3] = {dev, ino, kind};

    return XXH3_64bits(key, sizeof key);
}

static struct node **id_bucket(struct nodes *t, fuse_ino_t id)
{
    return &t->by_id[id & (t->size - 1)];
}

static struct node **key_bucket(struct nodes *t, dev_t dev, ino_t ino,
                                enum node_kind kind)
{
    return &t->by_key[key_hash(dev, ino, kind) & (t->size - 1)];
}

static void link_id(struct nodes *t, struct node *n)
{
    struct node **bucket = id_bucket(t, n->id);

    n->next_id = *bucket;
    *bucket = n;
}

static struct name **name_bucket(struct nodes *t, fuse_ino_t parent,
                                 const char *text)
{
    return &t->by_name[XXH3_64bits_withSeed(text, strlen(text), parent) &
                       (t->size - 1)];
}

static void link_name(struct nodes *t, struct name *name)
{
    struct name **bucket = name_bucket(t, name->parent->id, name->text);

    name->next_key = *bucket;
    *bucket = name;
}

static void unlink_name(struct nodes *t, const struct name *name)
{
    struct name **at = name_bucket(t, name->parent->id, name->text);

    while (*at != name)
        at = &(*at)->next_key;
    *at = name->next_key;
}

static void link_key(struct nodes *t, struct node *n)
{
    struct node **bucket = key_bucket(t, n->dev, n->ino, n->kind);

    n->next_key = *bucket;
    *bucket = n;
}

/* Doubles the tables; without memory they stay as they are. */
static void grow_locked(struct nodes *t)
{
    struct nodes old = *t;
    struct node **ids = calloc(2 * t->size, sizeof(struct node *));
    struct node **keys = calloc(2 * t->size, sizeof(struct node *));
    struct name **names = calloc(2 * t->size, sizeof(struct name *));

    if (!ids || !keys || !names) {
        free(ids);
        free(keys);
        free(names);
        return;
    }
    t->by_id = ids;
    t->by_key = keys;
    t->by_name = names;
    t->size *= 2;
    for (size_t i = 0; i < old.size; i++) {
        for (struct node *n = old.by_id[i], *next; n; n = next) {
            next = n->next_id;
            link_id(t, n);
        }
        for (struct node *n = old.by_key[i], *next; n; n = next) {
            next = n->next_key;
            link_key(t, n);
        }
        for (struct name *name = old.by_name[i], *next; name; name = next) {
            next = name->next_key;
            link_name(t, name);
        }
    }
    free(old.by_id);
    free(old.by_key);
    free(old.by_name);
}

static struct node *find_id_locked(struct nodes *t, fuse_ino_t id)
{
    struct node *n = *id_bucket(t, id);

    while (n && n->id != id)
        n = n->next_id;
    return n;
}

static struct node *find_key_locked(struct nodes *t, const struct object *o,
                                    enum node_kind kind)
{
    struct node *n = *key_bucket(t, o->st.st_dev, o->st.st_ino, kind);

    while (n && (n->dev != o->st.st_dev || n->ino != o->st.st_ino ||
                 n->kind != kind))
        n = n->next_key;
    return n;
}

static void retire_locked(struct nodes *t, struct node *n)
{
    if (n->retired)
        return;
    n->retired = true;
    if (n->kind == NODE_CONTROL)
        return;
    for (struct node **at = key_bucket(t, n->dev, n->ino, n->kind); *at;
         at = &(*at)->next_key) {
        if (*at == n) {
            *at = n->next_key;
            break;
        }
    }
}

void node_retire(struct nodes *t, struct node *n)
{
    pthread_mutex_lock(&t->lock);
    retire_locked(t, n);
    pthread_mutex_unlock(&t->lock);
}

static struct node *new_locked(struct nodes *t, enum node_kind kind,
                               mode_t type)
{
    struct node *n = calloc(1, sizeof *n);

    if (!n)
        return NULL;
    if (t->count >= t->size)
        grow_locked(t);
    n->id = t->next_id++;
    n->kind = kind;
    n->type = type & S_IFMT;
    n->refs = 1;
    link_id(t, n);
    t->count++;
    return n;
}

static void handle_close(struct handle *h)
{
    ocr_close(h->fd);
    text_unref(h->text);
    dir_free(h->dir);
    free(h);
}

static void node_free(struct node *n)
{
    for (struct name *name = n->names, *next; name; name = next) {
        next = name->next;
        free(name);
    }
    for (struct handle *h = n->handles, *next; h; h = next) {
        next = h->next;
        handle_close(h);
    }
    if (n->kind == NODE_CONTROL)
        text_unref(n->control.snapshot);
    free(n);
}

/* Frees what nobody holds any more, and so on up the names. */
static void release_locked(struct nodes *t, struct node *n)
{
    struct node *todo = NULL;

    if (n->refs || n->lookups)
        return;
    retire_locked(t, n);
    n->next_key = NULL; /* from now on the link of the list */
    todo = n;
    while ((n = todo)) {
        struct node **at = id_bucket(t, n->id);

        todo = n->next_key;
        while (*at != n)
            at = &(*at)->next_id;
        *at = n->next_id;
        t->count--;
        for (struct name *name = n->names, *next; name; name = next) {
            struct node *parent = name->parent;

            next = name->next;
            unlink_name(t, name);
            free(name);
            if (--parent->refs || parent->lookups)
                continue;
            retire_locked(t, parent);
            parent->next_key = todo;
            todo = parent;
        }
        n->names = NULL;
        if (t->watch && S_ISDIR(n->type) && n->kind == NODE_REAL)
            watch_folder_gone(t->watch, n);
        node_free(n);
    }
}

int nodes_init(struct nodes *t, const struct object *root, int64_t now_ns)
{
    *t = (struct nodes){
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .by_id = calloc(TABLE_BEGIN, sizeof(struct node *)),
        .by_key = calloc(TABLE_BEGIN, sizeof(struct node *)),
        .by_name = calloc(TABLE_BEGIN, sizeof(struct name *)),
        .size = TABLE_BEGIN,
        .next_id = FUSE_ROOT_ID,
        .generation = (uint32_t)(now_ns / 1000000000),
    };
    if (t->by_id && t->by_key && t->by_name)
        t->root = new_locked(t, NODE_REAL, root->st.st_mode);
    if (!t->root) {
        nodes_release(t);
        return -ENOMEM;
    }
    t->root->dev = root->st.st_dev;
    t->root->ino = root->st.st_ino;
    t->root->born_ns = root->born_ns;
    link_key(t, t->root);
    /* From the time, so that no handle of an earlier mount means a node of
     * this one. Even a clock in 1970 must not meet the root's number. */
    t->next_id =
        now_ns > 0 ? (uint64_t)now_ns + FUSE_ROOT_ID + 1 : FUSE_ROOT_ID + 1;
    return 0;
}

/* After an unmount neither FORGET nor RELEASE need come: everything goes. */
void nodes_release(struct nodes *t)
{
    for (size_t i = 0; t->by_id && i < t->size; i++) {
        for (struct node *n = t->by_id[i], *next; n; n = next) {
            next = n->next_id;
            node_free(n);
        }
    }
    free(t->by_id);
    free(t->by_key);
    free(t->by_name);
    pthread_mutex_destroy(&t->lock);
    *t = (struct nodes){0};
}

/* ---- references ------------------------------------------------------ */

struct node *node_get(struct nodes *t, fuse_ino_t id)
{
    struct node *n;

    pthread_mutex_lock(&t->lock);
    n = find_id_locked(t, id);
    if (n)
        n->refs++;
    pthread_mutex_unlock(&t->lock);
    return n;
}

struct node *node_ref(struct nodes *t, struct node *n)
{
    pthread_mutex_lock(&t->lock);
    n->refs++;
    pthread_mutex_unlock(&t->lock);
    return n;
}

void node_unref(struct nodes *t, struct node *n)
{
    if (!n)
        return;
    pthread_mutex_lock(&t->lock);
    n->refs--;
    release_locked(t, n);
    pthread_mutex_unlock(&t->lock);
}

void node_count(struct nodes *t, struct node *n)
{
    pthread_mutex_lock(&t->lock);
    n->lookups++;
    pthread_mutex_unlock(&t->lock);
}

void node_forget(struct nodes *t, fuse_ino_t id, uint64_t lookups)
{
    struct node *n;

    pthread_mutex_lock(&t->lock);
    n = find_id_locked(t, id);
    if (n) {
        n->lookups -= lookups < n->lookups ? lookups : n->lookups;
        release_locked(t, n);
    }
    pthread_mutex_unlock(&t->lock);
}

/* ---- names ----------------------------------------------------------- */

static void drop_name_locked(struct nodes *t, struct name **at)
{
    struct name *name = *at;
    struct node *parent = name->parent;

    *at = name->next;
    unlink_name(t, name);
    free(name);
    parent->refs--;
    release_locked(t, parent);
}

/* Folders have one name; a folder inside itself (a bind mount of a folder
 * into its own tree) would have no end. */
static bool inside_itself(const struct node *n, const struct node *parent)
{
    for (; parent; parent = parent->names ? parent->names->parent : NULL)
        if (parent == n)
            return true;
    return false;
}

static int add_name_locked(struct nodes *t, struct node *n, struct node *parent,
                           const char *text, bool follow)
{
    const size_t bytes = strlen(text) + 1;
    struct name **at = &n->names, *name;
    unsigned count = 0;

    for (; (name = *at); at = &name->next, count++) {
        if (name->parent == parent && !strcmp(name->text, text)) {
            /* Newest first: it is the one to try. */
            *at = name->next;
            name->next = n->names;
            name->follow = follow;
            n->names = name;
            return 0;
        }
    }
    if (S_ISDIR(n->type) && inside_itself(n, parent))
        return -ELOOP;
    name = malloc(sizeof *name + bytes);
    if (!name)
        return -ENOMEM;
    memcpy(name->text, text, bytes);
    name->follow = follow;
    name->node = n;
    name->parent = parent;
    parent->refs++;
    name->next = n->names;
    n->names = name;
    link_name(t, name);
    if (S_ISDIR(n->type))
        while (name->next)
            drop_name_locked(t, &name->next);
    else if (count >= NAMES_MAX)
        for (at = &n->names; *at; at = &(*at)->next)
            if (!(*at)->next) {
                drop_name_locked(t, at);
                break;
            }
    return 0;
}

char *node_path(struct nodes *t, struct node *n, unsigned nth, bool *follow)
{
    const struct name *first, *name;
    char *path = NULL, *at;
    size_t len = 0;

    pthread_mutex_lock(&t->lock);
    if (n == t->root) {
        path = nth == 0 ? strdup(".") : NULL;
        *follow = false;
        goto out;
    }
    for (first = n->names; first && nth; nth--)
        first = first->next;
    if (!first)
        goto out;
    *follow = first->follow;
    for (name = first; name; name = name->parent->names)
        len += strlen(name->text) + 1;
    path = malloc(len);
    if (!path)
        goto out;
    at = path + len;
    for (name = first; name; name = name->parent->names) {
        const size_t part = strlen(name->text);

        *--at = name == first ? '\0' : '/';
        at -= part;
        memcpy(at, name->text, part);
    }
out:
    pthread_mutex_unlock(&t->lock);
    return path;
}

struct node *node_parent(struct nodes *t, struct node *n)
{
    struct node *parent;

    pthread_mutex_lock(&t->lock);
    parent = n == t->root ? n : n->names ? n->names->parent : NULL;
    if (parent)
        parent->refs++;
    pthread_mutex_unlock(&t->lock);
    return parent;
}

/* ---- by name --------------------------------------------------------- */

static bool is_named(const struct name *name, fuse_ino_t folder,
                     const char *text)
{
    return name->parent->id == folder && !strcmp(name->text, text);
}

size_t node_named(struct nodes *t, fuse_ino_t folder, const char *name,
                  int64_t written_ms, struct known *out, size_t room)
{
    const int64_t now = ocr_now_ms();
    size_t count = 0;

    pthread_mutex_lock(&t->lock);
    for (const struct name *at = *name_bucket(t, folder, name);
         at && count < room; at = at->next_key) {
        struct node *n = at->node;

        if (!is_named(at, folder, name))
            continue;
        out[count++] = (struct known){
            .id = n->id,
            .text = n->kind == NODE_TEXT,
            .folder = S_ISDIR(n->type),
            .open = n->handles != NULL,
            .lasting = n->lasting_ms != 0 && n->written_ms <= now,
        };
        if (written_ms)
            n->written_ms = written_ms;
    }
    pthread_mutex_unlock(&t->lock);
    return count;
}

void node_moved(struct nodes *t, fuse_ino_t from, const char *old,
                fuse_ino_t to, const char *new)
{
    enum {
        MOST = 8 /* file and text, and what was replaced under the name */
    };
    struct node *moved[MOST], *folder;
    bool follow[MOST];
    size_t count = 0;

    pthread_mutex_lock(&t->lock);
    folder = find_id_locked(t, to);
    for (const struct name *at = *name_bucket(t, from, old);
         at && folder && count < MOST; at = at->next_key) {
        if (!is_named(at, from, old))
            continue;
        follow[count] = at->follow;
        moved[count++] = at->node;
    }
    /* Without memory the next lookup finds the name. */
    for (size_t i = 0; i < count; i++)
        (void)add_name_locked(t, moved[i], folder, new, follow[i]);
    pthread_mutex_unlock(&t->lock);
}

size_t node_lasting(struct nodes *t, size_t *bucket, int64_t now_ms,
                    struct lasting *out, size_t room)
{
    size_t count = 0;

    pthread_mutex_lock(&t->lock);
    /* A chain is short, half the room is enough for the last one. */
    while (count <= room / 2 && *bucket < t->size) {
        for (const struct name *at = t->by_name[*bucket]; at && count < room;
             at = at->next_key) {
            if (at->node->lasting_ms <= now_ms)
                continue;
            out[count] = (struct lasting){
                .folder = at->parent->id,
                .id = at->node->id,
                .text = at->node->kind == NODE_TEXT,
            };
            memcpy(out[count++].name, at->text, strlen(at->text) + 1);
        }
        ++*bucket;
    }
    pthread_mutex_unlock(&t->lock);
    return count;
}

/* ---- versions of a text ---------------------------------------------- */

static struct image image_of(const struct object *o)
{
    return (struct image){
        .stamp = stamp_of(&o->st),
        .atime_ns =
            (int64_t)o->st.st_atim.tv_sec * 1000000000 + o->st.st_atim.tv_nsec,
        .bytes = (uint64_t)o->st.st_size,
        .mode = o->st.st_mode,
        .uid = o->st.st_uid,
        .gid = o->st.st_gid,
    };
}

/* True if the node may stand for the image as it is now. */
static bool check_locked(struct node *n, const struct object *o)
{
    const struct image now = image_of(o);

    if (n->retired)
        return false;
    if (n->text.has_digest && !stamp_equal(&n->text.image.stamp, &now.stamp))
        return false;
    if (!stamp_equal(&n->text.image.stamp, &now.stamp))
        n->text.asked_ms = 0;
    n->text.image = now; /* the access time at least */
    return true;
}

int node_check_version(struct nodes *t, struct node *n, const struct object *o)
{
    bool same;

    pthread_mutex_lock(&t->lock);
    same = check_locked(n, o);
    if (!same)
        retire_locked(t, n);
    pthread_mutex_unlock(&t->lock);
    return same ? 0 : -ESTALE;
}

static int fix_locked(struct nodes *t, struct node *n,
                      const struct ocr_digest *digest)
{
    if (n->retired)
        return -ESTALE;
    if (n->text.has_digest && memcmp(&n->text.digest, digest, sizeof *digest)) {
        retire_locked(t, n);
        return -ESTALE;
    }
    n->text.has_digest = true;
    n->text.digest = *digest;
    return 0;
}

int node_fix(struct nodes *t, struct node *n, const struct ocr_digest *digest)
{
    int rc;

    pthread_mutex_lock(&t->lock);
    rc = fix_locked(t, n, digest);
    pthread_mutex_unlock(&t->lock);
    return rc;
}

/* One inode has one size: if another was shown for good, it is another file. */
static int size_locked(struct nodes *t, struct node *n, uint64_t size,
                       int64_t redone_ns, bool exact)
{
    if (n->text.exact && n->text.size != size) {
        retire_locked(t, n);
        return -ESTALE;
    }
    n->text.size = size;
    n->text.redone_ns = redone_ns;
    n->text.sized = true;
    n->text.exact |= exact;
    return 0;
}

int node_set_size(struct nodes *t, struct node *n,
                  const struct ocr_digest *digest, uint64_t size,
                  int64_t redone_ns, bool exact)
{
    int rc;

    pthread_mutex_lock(&t->lock);
    rc = digest ? fix_locked(t, n, digest) : 0;
    if (!rc)
        rc = size_locked(t, n, size, redone_ns, exact);
    pthread_mutex_unlock(&t->lock);
    return rc;
}

/* Not refused for a retired node: its request came before it was retired. */
int node_serve(struct nodes *t, struct node *n, const struct text *text,
               int64_t redone_ns)
{
    int rc;

    pthread_mutex_lock(&t->lock);
    /* splice and mmap trust the size they were told, even if it was said not
     * to last (F6): a smaller one would hide the end of the text. */
    if (n->text.sized && !n->text.exact && n->text.size < text->len) {
        retire_locked(t, n);
        rc = -ESTALE;
    } else {
        rc = size_locked(t, n, text->len, redone_ns, true);
    }
    if (!rc && n->text.served && n->text.sum != text->sum) {
        retire_locked(t, n);
        rc = -ESTALE;
    }
    if (!rc) {
        n->text.served = true;
        n->text.sum = text->sum;
    }
    pthread_mutex_unlock(&t->lock);
    return rc;
}

/* ---- finding and making ---------------------------------------------- */

/* The node that stands for the object now, NULL if there is none. */
static struct node *current_locked(struct nodes *t, enum node_kind kind,
                                   const struct object *o)
{
    struct node *n = find_key_locked(t, o, kind);

    if (!n)
        return NULL;
    if (n->born_ns == o->born_ns &&
        (kind == NODE_TEXT ? check_locked(n, o)
                           : n->type == (o->st.st_mode & S_IFMT)))
        return n;
    if (n != t->root)
        retire_locked(t, n);
    return NULL;
}

static struct node *make_locked(struct nodes *t, enum node_kind kind,
                                const struct object *o)
{
    struct node *n =
        new_locked(t, kind, kind == NODE_TEXT ? S_IFREG : o->st.st_mode);

    if (!n)
        return NULL;
    n->dev = o->st.st_dev;
    n->ino = o->st.st_ino;
    n->born_ns = o->born_ns;
    if (kind == NODE_TEXT)
        n->text.image = image_of(o);
    link_key(t, n);
    return n;
}

struct node *node_enter(struct nodes *t, struct node *parent, const char *name,
                        bool follow, enum node_kind kind,
                        const struct object *o, int *rc)
{
    struct node *n;

    pthread_mutex_lock(&t->lock);
    n = current_locked(t, kind, o);
    if (n)
        n->refs++;
    else
        n = make_locked(t, kind, o);
    *rc = n == NULL      ? -ENOMEM
          : n == t->root ? -ELOOP
                         : add_name_locked(t, n, parent, name, follow);
    if (n && !*rc && kind == NODE_TEXT && names_has_pages(name))
        n->text.many = true;
    if (n && *rc) {
        n->refs--;
        release_locked(t, n);
        n = NULL;
    }
    pthread_mutex_unlock(&t->lock);
    return n;
}

struct node *node_enter_control(struct nodes *t, unsigned which, mode_t type,
                                struct text *snapshot)
{
    struct node *n;

    pthread_mutex_lock(&t->lock);
    n = new_locked(t, NODE_CONTROL, type);
    if (n) {
        n->control.which = which;
        n->control.snapshot = snapshot;
    }
    pthread_mutex_unlock(&t->lock);
    return n;
}

/* ---- open files
 * ----------------------------------------------------------------------------
 */

struct handle *handle_new(struct nodes *t, struct node *n, int fd,
                          struct text *text, struct dir *dir)
{
    struct handle *h = calloc(1, sizeof *h);

    if (!h)
        return NULL;
    h->node = n;
    h->fd = fd;
    h->text = text_ref(text);
    h->dir = dir;
    pthread_mutex_lock(&t->lock);
    n->refs++;
    h->next = n->handles;
    if (h->next)
        h->next->prev = h;
    n->handles = h;
    pthread_mutex_unlock(&t->lock);
    return h;
}

void handle_free(struct nodes *t, struct handle *h)
{
    pthread_mutex_lock(&t->lock);
    if (h->next)
        h->next->prev = h->prev;
    *(h->prev ? &h->prev->next : &h->node->handles) = h->next;
    h->node->refs--;
    release_locked(t, h->node);
    pthread_mutex_unlock(&t->lock);
    handle_close(h);
}

struct text *node_open_text(struct nodes *t, struct node *n)
{
    struct text *text;

    pthread_mutex_lock(&t->lock);
    text = n->handles ? text_ref(n->handles->text) : NULL;
    pthread_mutex_unlock(&t->lock);
    return text;
}

int node_open_fd(struct nodes *t, struct node *n)
{
    int fd = -ESTALE;

    pthread_mutex_lock(&t->lock);
    if (n->handles && n->handles->fd >= 0)
        fd = fcntl(n->handles->fd, F_DUPFD_CLOEXEC, 0);
    pthread_mutex_unlock(&t->lock);
    return fd < 0 ? -ESTALE : fd;
}

void handle_warm(struct nodes *t, struct handle *h, pid_t tid, bool refresh)
{
    pthread_mutex_lock(&t->lock);
    h->warmer = tid;
    h->refresh = refresh;
    pthread_mutex_unlock(&t->lock);
}

struct warmth node_warmth(struct nodes *t, const struct node *control,
                          pid_t tid)
{
    struct warmth warmth = {0};

    if (!control)
        return warmth;
    pthread_mutex_lock(&t->lock);
    for (const struct handle *h = control->handles; h; h = h->next)
        if (h->warmer && h->warmer == tid)
            warmth = (struct warmth){.warms = true, .refresh = h->refresh};
    pthread_mutex_unlock(&t->lock);
    return warmth;
}

bool node_keep_cache(struct nodes *t, struct node *n, const struct stat *st,
                     int64_t now_ns)
{
    const struct stamp now = stamp_of(st);
    const int64_t changed =
        now.ctime_ns > now.mtime_ns ? now.ctime_ns : now.mtime_ns;
    bool keep;

    pthread_mutex_lock(&t->lock);
    keep = n->real.settled && stamp_equal(&n->real.opened, &now);
    n->real.opened = now;
    /* Two changes within a tick of the clock look like one. */
    n->real.settled = now_ns - changed >= SETTLED_NS;
    pthread_mutex_unlock(&t->lock);
    return keep;
}

/* fs/tell.c - the thread that tells the kernel what changed (watch.h). */
#include "engine/base/io.h"
#include "fs/fs_i.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    KNOWN = 16,             /* things of one name */
    SLICE = 128,            /* names taken back at once */
    WRITTEN_MS = 60 * 1000, /* nothing lasts for so long after an open */
};

/* ---- the list -------------------------------------------------------- */

static struct changed **bucket_of(struct watch *w, uint64_t hash)
{
    return &w->merged[hash % MERGED];
}

static struct changed *find_locked(struct watch *w, uint64_t folder,
                                   uint64_t hash, const char *name)
{
    struct changed *c = *bucket_of(w, hash);

    while (c &&
           (c->folder != folder || c->hash != hash || strcmp(c->name, name)))
        c = c->chain;
    return c;
}

static struct changed *add_locked(struct watch *w, uint64_t folder,
                                  uint64_t hash, const char *name)
{
    const size_t bytes = strlen(name) + 1;
    struct changed *c = NULL, **bucket = bucket_of(w, hash);

    if (w->listed_count < CHANGES)
        c = malloc(sizeof *c + bytes);
    if (!c)
        return NULL;
    *c = (struct changed){.folder = folder, .hash = hash, .chain = *bucket};
    memcpy(c->name, name, bytes);
    *bucket = c;
    *w->last = c;
    w->last = &c->next;
    w->listed_count++;
    return c;
}

static void lost_locked(struct watch *w)
{
    atomic_fetch_add(&w->overflows, 1);
    /* The epoch first: who sees that it is sound again sees the new one. */
    atomic_fetch_add(&w->epoch, 1);
    atomic_store(&w->sound, false);
    w->lost = true;
}

void tell_lost(struct watch *w)
{
    pthread_mutex_lock(&w->list_lock);
    lost_locked(w);
    pthread_cond_broadcast(&w->listed);
    pthread_mutex_unlock(&w->list_lock);
}

void tell_later(struct watch *w, uint64_t folder, const char *name,
                unsigned what)
{
    const uint64_t hash = XXH3_64bits_withSeed(name, strlen(name), folder);
    struct changed *c;

    if (!what)
        return;
    pthread_mutex_lock(&w->list_lock);
    c = find_locked(w, folder, hash, name);
    if (!c)
        c = add_locked(w, folder, hash, name);
    if (c && what & CHANGE_NAME)
        c->what &= ~(unsigned)CHANGE_GONE; /* the last decides */
    if (c)
        c->what |= what;
    else if (!w->lost)
        lost_locked(w);
    pthread_cond_broadcast(&w->listed);
    pthread_mutex_unlock(&w->list_lock);
}

/* ---- the kernel ------------------------------------------------------ */

/* What it does not know any more is no error (N22). */

static void tell_inode(struct ocr_fs *fs, fuse_ino_t id, bool pages)
{
    /* With a negative offset it never waits. */
    fuse_lowlevel_notify_inval_inode(fs->session, id, pages ? 0 : -1, 0);
    atomic_fetch_add(&fs->watch.told, 1);
}

static void tell_entry(struct ocr_fs *fs, fuse_ino_t folder, const char *name)
{
    fuse_lowlevel_notify_inval_entry(fs->session, folder, name, strlen(name));
    atomic_fetch_add(&fs->watch.told, 1);
}

/* Those who watch the mount hear of it as well. */
static void tell_delete(struct ocr_fs *fs, fuse_ino_t folder, fuse_ino_t id,
                        const char *name)
{
    fuse_lowlevel_notify_delete(fs->session, folder, id, name, strlen(name));
    atomic_fetch_add(&fs->watch.told, 1);
}

/* "" if there can be none. */
static void text_name(const struct ocr_fs *fs, const char *name, char *out,
                      size_t size)
{
    *out = '\0';
    if (names_has_text(name, S_IFREG, fs->suffix, false))
        snprintf(out, size, "%s%s", name, fs->suffix);
}

/* A folder that is still there keeps its entry, which is short-lived anyway:
 * to drop it would detach what somebody mounted in it, and leave those who are
 * in it without a path. */
static void tell_name(struct ocr_fs *fs, const struct changed *c,
                      const struct known *known, size_t count)
{
    char text[NAME_BYTES + 1];
    bool stays = false;

    text_name(fs, c->name, text, sizeof text);
    for (size_t i = 0; i < count; i++) {
        if (c->what & CHANGE_GONE)
            tell_delete(fs, c->folder, known[i].id,
                        known[i].text ? text : c->name);
        stays |= known[i].folder && !(c->what & CHANGE_AWAY);
    }
    if (!stays)
        tell_entry(fs, c->folder, c->name);
    if (*text)
        tell_entry(fs, c->folder, text);
    for (size_t i = 0; i < count; i++)
        tell_inode(fs, known[i].id, false);
    tell_inode(fs, c->folder, false);
}

/* The entry of the text as well: it waits for a lookup that is being answered
 * with what was true before. */
static void tell_content(struct ocr_fs *fs, const struct changed *c,
                         const struct known *known, size_t count)
{
    char text[NAME_BYTES + 1];

    text_name(fs, c->name, text, sizeof text);
    if (*text)
        tell_entry(fs, c->folder, text);
    for (size_t i = 0; i < count; i++)
        tell_inode(fs, known[i].id,
                   c->what & CHANGE_CONTENT && known[i].open && !known[i].text);
}

/* From now on the kernel has to ask. */
static void tell_written(struct ocr_fs *fs, const struct changed *c,
                         const struct known *known, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (known[i].text ? known[i].lasting
                          : known[i].open && c->what & CHANGE_WRITTEN)
            tell_inode(fs, known[i].id, false);
}

static void tell(struct ocr_fs *fs, const struct changed *c)
{
    const bool written = c->what & (CHANGE_OPENED | CHANGE_WRITTEN);
    struct known known[KNOWN];
    size_t count;

    if (!*c->name) {
        tell_inode(fs, c->folder, false);
        return;
    }
    newcomers_heard(fs, c->folder, c->name, c->what);
    count = node_named(&fs->nodes, c->folder, c->name,
                       written ? ocr_now_ms() + WRITTEN_MS : 0, known, KNOWN);
    if (c->what & CHANGE_NAME)
        tell_name(fs, c, known, count);
    else if (c->what & (CHANGE_CONTENT | CHANGE_ATTRIBUTES))
        tell_content(fs, c, known, count);
    else
        tell_written(fs, c, known, count);
}

/* ---- after a loss ---------------------------------------------------- */

static bool stopping(struct watch *w)
{
    bool yes;

    pthread_mutex_lock(&w->list_lock);
    yes = w->stopping;
    pthread_mutex_unlock(&w->list_lock);
    return yes;
}

/* All that the kernel believes without asking. */
static void take_back(struct ocr_fs *fs, struct lasting *names)
{
    char text[NAME_BYTES + 1];
    size_t bucket = 0, count;

    while (!stopping(&fs->watch) &&
           (count = node_lasting(&fs->nodes, &bucket, ocr_now_ms(), names,
                                 SLICE))) {
        for (size_t i = 0; i < count; i++) {
            text_name(fs, names[i].name, text, sizeof text);
            tell_entry(fs, names[i].folder,
                       names[i].text ? text : names[i].name);
            tell_inode(fs, names[i].id, false);
        }
    }
}

static void make_up(struct ocr_fs *fs)
{
    struct lasting *names = malloc(SLICE * sizeof *names);
    struct watch *w = &fs->watch;

    if (!names)
        return; /* nothing lasts from now on; what was told goes in a minute */
    take_back(fs, names);
    free(names);
    pthread_mutex_lock(&w->list_lock);
    if (!w->lost && !w->stopping) /* not again meanwhile */
        atomic_store(&w->sound, true);
    pthread_mutex_unlock(&w->list_lock);
}

/* ---- the thread ------------------------------------------------------ */

struct work {
    struct changed *changes;
    struct watched *gone;
    bool lost, stop;
    int64_t quiet_ns; /* when all that was heard had been told (wall clock) */
};

static void wait_for_work(struct watch *w, struct work *work)
{
    pthread_mutex_lock(&w->list_lock);
    if (!w->first && !w->lost)
        work->quiet_ns = ocr_wall_ns();
    while (!w->first && !w->gone && !w->lost && !w->stopping)
        pthread_cond_wait(&w->listed, &w->list_lock);
    *work = (struct work){.changes = w->first,
                          .quiet_ns = work->quiet_ns,
                          .gone = w->gone,
                          .lost = w->lost,
                          .stop = w->stopping};
    w->first = NULL;
    w->last = &w->first;
    w->listed_count = 0;
    memset(w->merged, 0, MERGED * sizeof *w->merged);
    w->gone = NULL;
    w->lost = false;
    pthread_mutex_unlock(&w->list_lock);
}

void *tell_main(void *arg)
{
    struct ocr_fs *fs = arg;
    struct watch *w = &fs->watch;
    struct work work = {.quiet_ns = fs->begun_ns};

    while (!work.stop) {
        wait_for_work(w, &work);
        for (struct changed *c; (c = work.changes);) {
            work.changes = c->next;
            if (!work.lost && !stopping(w)) /* else all is told */
                tell(fs, c);
            free(c);
        }
        watch_remove_all(w, work.gone);
        if (work.lost && !work.stop) {
            newcomers_lost(fs, work.quiet_ns);
            make_up(fs);
        }
    }
    pthread_mutex_lock(&w->list_lock);
    w->running--;
    pthread_cond_broadcast(&w->listed);
    pthread_mutex_unlock(&w->list_lock);
    return NULL;
}

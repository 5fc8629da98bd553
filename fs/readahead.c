#include "engine/base/io.h"
#include "fs/fs_i.h"
#include "fs/walk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    STREAMS = 8,
    PROBES = 8, /* texts noted in each order behind a first open */
    FIRST = 4,
    UNPROVEN = 4,   /* guesses in folders that the readers may never enter */
    SPREAD = 32,    /* how far readers are apart: what is further behind the
                       first of them was not wanted */
    LISTED = 1024,  /* guesses of a stream, known texts included */
    NO_ENGINE = 16, /* guesses before the engine has said what it holds */
    STEPS = 4096,   /* of a walk at once */
    STREAM_MS = 30 * 1000, /* without an open or an end of a guess */
    PROBES_MS = 120 * 1000,
    TICK_MS = 1000,
};

enum guess_state {
    GUESS_POOL,
    GUESS_JOINING,
    GUESS_QUEUE,
    GUESS_ENDED,
};

struct guess {
    struct hash_task task;
    struct ocr_waiter waiter;
    struct ocr_fs *fs;
    struct node *node; /* a reference */
    /* The thread's, while it is in the list. */
    struct stream *stream;
    struct guess *next, *prev;
    uint64_t place;   /* in the stream */
    unsigned folders; /* as its walk counts them */
    /* Guarded by ahead.lock. */
    enum guess_state state;
    unsigned refs;  /* the list's, the pool's, the queue's */
    bool known;     /* no job was needed */
    bool cancelled; /* nobody will open it */
};

struct probe {
    struct node *node; /* a reference */
    unsigned folders;
};

/* One place in the tree where texts are opened one after the other, or may
 * be: until `followed` the four walks are open. */
struct stream {
    bool live, followed;
    int64_t active_ms;
    struct walk walks[WALKS];
    struct probe probes[WALKS][PROBES];
    /* Once followed: */
    struct walk *walk;
    unsigned noted; /* probes of that walk that are guesses now */
    struct guess *first, *last;
    unsigned listed, window;
    uint64_t next_place, front; /* front: the furthest that was opened */
    unsigned folders;           /* where that was */
    bool crossed;               /* readers went from folder to folder */
};

/* ---- guesses --------------------------------------------------------- */

static void unref_locked(struct guess *g, unsigned count)
{
    g->refs -= count;
    if (g->refs)
        return;
    node_unref(&g->fs->nodes, g->node);
    free(g);
}

static void end_locked(struct guess *g)
{
    struct ahead *a = &g->fs->ahead;

    g->state = GUESS_ENDED;
    a->in_flight--;
    a->ended = true;
    pthread_cond_signal(&a->wake);
}

static struct guess *guess_of(struct hash_task *task)
{
    return (struct guess *)((char *)task - offsetof(struct guess, task));
}

static struct guess *guess_of_waiter(struct ocr_waiter *waiter)
{
    return (struct guess *)((char *)waiter - offsetof(struct guess, waiter));
}

/* The log, the cache and the counters have it from reading_job_finished. */
static void job_done(struct ocr_waiter *waiter, const struct ocr_result *result)
{
    struct guess *g = guess_of_waiter(waiter);
    pthread_mutex_t *lock = &g->fs->ahead.lock;

    (void)result;
    pthread_mutex_lock(lock);
    end_locked(g);
    unref_locked(g, 1);
    pthread_mutex_unlock(lock);
}

/* True if it did: then the queue's reference is the caller's. */
static bool leave_locked(struct guess *g)
{
    if (g->state != GUESS_QUEUE || !ocr_queue_leave(g->fs->queue, &g->waiter))
        return false;
    end_locked(g);
    return true;
}

/* In the pool. */
static void run_guess(struct hash_task *task)
{
    struct guess *g = guess_of(task);
    struct ahead *a = &g->fs->ahead;
    unsigned done_with = 1;
    bool joined, written; /* then whoever opens it waits for the writer */

    pthread_mutex_lock(&a->lock);
    g->state = GUESS_JOINING;
    g->refs++; /* the queue's */
    joined = !g->cancelled && !a->stopping;
    pthread_mutex_unlock(&a->lock);
    if (joined)
        joined = reading_ahead(g->fs, g->node, OCR_PRIORITY_READAHEAD,
                               &g->waiter, &written);
    pthread_mutex_lock(&a->lock);
    if (joined) {
        a->started++;
        if (g->state == GUESS_JOINING) /* not answered meanwhile */
            g->state = GUESS_QUEUE;
        if (g->cancelled)
            done_with += leave_locked(g);
    } else {
        g->known = true;
        end_locked(g);
        done_with++;
    }
    unref_locked(g, done_with);
    pthread_mutex_unlock(&a->lock);
}

static void drop_guess(struct hash_task *task)
{
    struct guess *g = guess_of(task);
    pthread_mutex_t *lock = &g->fs->ahead.lock;

    pthread_mutex_lock(lock);
    end_locked(g);
    unref_locked(g, 1);
    pthread_mutex_unlock(lock);
}

/* Takes the reference to `n`. */
static void add_guess(struct ocr_fs *fs, struct stream *s, struct node *n,
                      unsigned folders)
{
    struct guess *g = calloc(1, sizeof *g);

    if (!g) {
        node_unref(&fs->nodes, n);
        return;
    }
    g->task = (struct hash_task){.run = run_guess, .drop = drop_guess};
    g->waiter.done = job_done;
    g->fs = fs;
    g->node = n;
    g->stream = s;
    g->place = s->next_place++;
    g->folders = folders;
    g->refs = 2;
    g->prev = s->last;
    *(s->last ? &s->last->next : &s->first) = g;
    s->last = g;
    s->listed++;
    atomic_store(&n->text.guess, g);
    pthread_mutex_lock(&fs->ahead.lock);
    fs->ahead.in_flight++;
    pthread_mutex_unlock(&fs->ahead.lock);
    hashpool_submit(&fs->pool, &g->task, 0, OCR_PRIORITY_READAHEAD);
}

/* Nobody will open it. Takes the list's reference. */
static void give_up_locked(struct guess *g)
{
    g->cancelled = true;
    unref_locked(g, leave_locked(g) ? 2 : 1);
}

/* Forgets opened guesses that ended; all: the others as well. */
static void clear_early(struct ahead *a, bool all)
{
    struct guess **at = &a->early, *g;

    pthread_mutex_lock(&a->lock);
    while ((g = *at)) {
        if (g->state != GUESS_ENDED && !all) {
            at = &g->next;
            continue;
        }
        *at = g->next;
        give_up_locked(g);
    }
    pthread_mutex_unlock(&a->lock);
}

/* Takes a guess out of its stream; true if it had a job. One that was opened
 * goes on, in the list of those that were opened before they were ready. */
static bool remove_guess(struct stream *s, struct guess *g, bool opened)
{
    struct ahead *a = &g->fs->ahead;
    bool job;

    *(g->prev ? &g->prev->next : &s->first) = g->next;
    *(g->next ? &g->next->prev : &s->last) = g->prev;
    s->listed--;
    atomic_store(&g->node->text.guess, NULL);
    pthread_mutex_lock(&a->lock);
    job = !g->known && g->state != GUESS_POOL;
    if (job && opened)
        a->used++;
    else if (job)
        a->wasted++;
    if (opened) {
        g->next = a->early;
        a->early = g;
    } else {
        give_up_locked(g);
    }
    pthread_mutex_unlock(&a->lock);
    return job;
}

/* ---- streams --------------------------------------------------------- */

static void forget_probes(struct ocr_fs *fs, struct stream *s)
{
    for (unsigned w = 0; w < WALKS; w++) {
        for (unsigned i = 0; i < PROBES; i++) {
            node_unref(&fs->nodes, s->probes[w][i].node);
            s->probes[w][i].node = NULL;
        }
        if (&s->walks[w] != s->walk)
            walk_end(fs, &s->walks[w]);
    }
}

static void end_stream(struct ocr_fs *fs, struct stream *s)
{
    while (s->first)
        remove_guess(s, s->first, false); /* NOLINT: it was unlinked */
    if (s->walk)
        walk_end(fs, s->walk);
    s->walk = NULL;
    forget_probes(fs, s);
    *s = (struct stream){0};
}

/* True while somebody else reads it, or is about to. */
static bool is_taken(struct ocr_fs *fs, struct node *n)
{
    bool taken = atomic_load(&n->text.guess) != NULL;

    pthread_mutex_lock(&fs->park.lock);
    taken = taken || n->text.reading;
    pthread_mutex_unlock(&fs->park.lock);
    return taken;
}

/* The next text to guess: of those that were noted, then of the walk. */
static struct node *next_text(struct ocr_fs *fs, struct listings *ls,
                              struct stream *s, unsigned *budget,
                              unsigned *folders)
{
    struct node *n = NULL;

    while (!n && s->noted < PROBES) {
        struct probe *probe = &s->probes[s->walk->order][s->noted++];

        n = probe->node;
        probe->node = NULL;
        *folders = probe->folders;
    }
    if (!n) {
        n = walk_next(fs, ls, s->walk, budget);
        *folders = s->walk->folders;
    }
    return n;
}

/* How many pages may be guessed at once, by all streams. */
static unsigned room(struct ocr_fs *fs)
{
    struct ocr_queue_stats queue;

    ocr_queue_stats(fs->queue, &queue);
    if (!queue.capacity)
        queue.capacity = NO_ENGINE;
    if (fs->ahead.most && fs->ahead.most < queue.capacity)
        return fs->ahead.most;
    return queue.capacity;
}

/* False for one that its readers have overtaken or that came to its end. */
static bool is_guessing(const struct stream *s)
{
    return s->followed && s->first;
}

static unsigned guessing(const struct ahead *a)
{
    unsigned count = 0;

    for (unsigned i = 0; i < STREAMS; i++)
        count += is_guessing(&a->streams[i]);
    return count ? count : 1;
}

/* Whether the stream may have another guess: of its window, of its share of
 * the room, and not too far into the unknown. */
static bool may_guess(struct ocr_fs *fs, struct stream *s)
{
    const unsigned all = room(fs), share = all / guessing(&fs->ahead);
    unsigned most = share > FIRST ? share : FIRST, ahead = 0, apart = 0;
    bool full;

    if (most > s->window)
        most = s->window;
    pthread_mutex_lock(&fs->ahead.lock);
    full = fs->ahead.in_flight >= all;
    for (const struct guess *g = s->first; g; g = g->next) {
        ahead += !g->known;
        apart += g->folders != s->folders;
    }
    pthread_mutex_unlock(&fs->ahead.lock);
    return !full && ahead < most && s->listed < LISTED &&
           (s->crossed || apart < UNPROVEN);
}

static void fill(struct ocr_fs *fs, struct listings *ls, struct stream *s)
{
    unsigned budget = STEPS, folders;
    struct node *n;

    while (may_guess(fs, s) && (n = next_text(fs, ls, s, &budget, &folders))) {
        if (is_taken(fs, n))
            node_unref(&fs->nodes, n);
        else
            add_guess(fs, s, n, folders);
    }
}

/* What the readers left behind. */
static void sweep(struct stream *s)
{
    while (s->first && s->front > s->first->place + SPREAD)
        if (remove_guess(s, s->first, false) && s->window > FIRST)
            s->window /= 2;
}

/* ---- opens ----------------------------------------------------------- */

static void guessed(struct ocr_fs *fs, struct listings *ls, struct guess *g)
{
    struct stream *s = g->stream;

    s->active_ms = ocr_now_ms();
    if (g->place >= s->front) {
        s->front = g->place;
        s->crossed = s->crossed || s->folders != g->folders;
        s->folders = g->folders;
    }
    remove_guess(s, g, true);
    if (s->window < room(fs))
        s->window *= 2;
    sweep(s);
    fill(fs, ls, s);
}

/* The order in which `n` comes soonest behind the stream's first open. */
static bool noted_in(const struct stream *s, const struct node *n,
                     unsigned *order, unsigned *place)
{
    for (*place = 0; *place < PROBES; ++*place)
        for (*order = 0; *order < WALKS; ++*order)
            if (s->probes[*order][*place].node == n)
                return true;
    return false;
}

static void follow(struct ocr_fs *fs, struct listings *ls, struct stream *s,
                   unsigned order, unsigned place)
{
    s->followed = true;
    s->active_ms = ocr_now_ms();
    s->walk = &s->walks[order];
    s->noted = place + 1;
    s->window = FIRST;
    s->folders = s->probes[order][place].folders;
    s->crossed = s->folders > 0;
    fill(fs, ls, s);
    if (s->noted == PROBES)
        forget_probes(fs, s);
}

/* A free one, else of those without guesses the one that was quiet for
 * longest. */
static struct stream *new_stream(struct ocr_fs *fs)
{
    struct stream *best = &fs->ahead.streams[0];

    for (unsigned i = 1; i < STREAMS && best->live; i++) {
        struct stream *s = &fs->ahead.streams[i];
        const int more = is_guessing(s) - is_guessing(best);

        if (!s->live || more < 0 ||
            (more == 0 && s->active_ms < best->active_ms))
            best = s;
    }
    end_stream(fs, best);
    return best;
}

static void note(struct ocr_fs *fs, struct listings *ls, struct node *text)
{
    struct stream *s = new_stream(fs);

    s->live = true;
    s->active_ms = ocr_now_ms();
    for (unsigned w = 0; w < WALKS; w++) {
        unsigned budget = STEPS;

        walk_begin(fs, ls, &s->walks[w], text, (enum walk_order)w);
        for (unsigned i = 0; i < PROBES; i++) {
            struct probe *probe = &s->probes[w][i];

            probe->node = walk_next(fs, ls, &s->walks[w], &budget);
            probe->folders = s->walks[w].folders;
            if (!probe->node)
                break;
        }
    }
}

static void opened(struct ocr_fs *fs, struct listings *ls, struct node *n)
{
    struct guess *g = atomic_load(&n->text.guess);
    unsigned order, place;

    if (g) {
        guessed(fs, ls, g);
        return;
    }
    for (unsigned i = 0; i < STREAMS; i++) {
        struct stream *s = &fs->ahead.streams[i];

        if (s->live && !s->followed && noted_in(s, n, &order, &place)) {
            follow(fs, ls, s, order, place);
            return;
        }
    }
    note(fs, ls, n);
}

/* ---- the thread ------------------------------------------------------ */

static bool is_busy(struct ahead *a, const struct stream *s)
{
    bool busy = false;

    pthread_mutex_lock(&a->lock);
    for (const struct guess *g = s->first; g && !busy; g = g->next)
        busy = g->state != GUESS_ENDED;
    pthread_mutex_unlock(&a->lock);
    return busy;
}

/* Guesses ended, or time went by. */
static void look_around(struct ocr_fs *fs, struct listings *ls)
{
    const int64_t now = ocr_now_ms();

    clear_early(&fs->ahead, false);
    for (unsigned i = 0; i < STREAMS; i++) {
        struct stream *s = &fs->ahead.streams[i];
        const int64_t most = s->followed ? STREAM_MS : PROBES_MS;

        if (!s->live)
            continue;
        if (now - s->active_ms >= most && !is_busy(&fs->ahead, s))
            end_stream(fs, s);
        else if (s->followed)
            fill(fs, ls, s);
    }
}

static void drop_all(struct ocr_fs *fs)
{
    for (unsigned i = 0; i < STREAMS; i++)
        end_stream(fs, &fs->ahead.streams[i]);
    clear_early(&fs->ahead, true);
}

/* The next open to look at, with a reference; NULL after a while, or if a
 * guess ended. *drop: a reader went away, or the end has come. */
static struct node *wait_for_open(struct ahead *a, bool *drop, bool *stop)
{
    const int64_t until = ocr_now_ms() + TICK_MS;
    const struct timespec deadline = {until / 1000, until % 1000 * 1000000};
    struct node *n = NULL;
    int rc = 0;

    pthread_mutex_lock(&a->lock);
    while (!a->count && !a->ended && !a->interrupted && !a->stopping && !rc)
        rc = pthread_cond_timedwait(&a->wake, &a->lock, &deadline);
    if (a->count) {
        n = a->opened[a->first];
        a->first = (a->first + 1) % AHEAD_EVENTS;
        a->count--;
    } else {
        a->ended = false;
    }
    *stop = a->stopping;
    *drop = a->interrupted || a->stopping;
    a->interrupted = false;
    pthread_mutex_unlock(&a->lock);
    return n;
}

static void *work(void *arg)
{
    struct ocr_fs *fs = arg;
    struct listings listings = {0};
    bool stop = false, drop;

    while (!stop) {
        struct node *n = wait_for_open(&fs->ahead, &drop, &stop);

        if (drop)
            drop_all(fs);
        else if (n)
            opened(fs, &listings, n);
        else
            look_around(fs, &listings);
        node_unref(&fs->nodes, n);
    }
    listings_clear(fs, &listings);
    pthread_mutex_lock(&fs->ahead.lock);
    fs->ahead.over = true;
    pthread_cond_signal(&fs->ahead.wake);
    pthread_mutex_unlock(&fs->ahead.lock);
    return NULL;
}

/* ---- life ------------------------------------------------------------ */

void ahead_init(struct ahead *a, const char *prefetch)
{
    pthread_condattr_t attr;

    *a = (struct ahead){.lock = PTHREAD_MUTEX_INITIALIZER,
                        .off = !strcmp(prefetch, "off"),
                        .most = (unsigned)strtoul(prefetch, NULL, 10)};
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&a->wake, &attr);
    pthread_condattr_destroy(&attr);
}

int ahead_start(struct ocr_fs *fs, struct ocr_err *err)
{
    struct ahead *a = &fs->ahead;
    int rc;

    if (a->off)
        return 0;
    a->streams = calloc(STREAMS, sizeof *a->streams);
    rc = a->streams ? fs_thread_start(&a->thread, work, fs) : -ENOMEM;
    if (rc)
        return ocr_err_set(err, rc, "cannot start a thread: %s", strerror(-rc));
    a->running = true;
    return 0;
}

void ahead_opened(struct ocr_fs *fs, struct node *text, bool known)
{
    struct ahead *a = &fs->ahead;

    if (!a->running || (known && !atomic_load(&text->text.guess)))
        return;
    pthread_mutex_lock(&a->lock);
    if (a->count < AHEAD_EVENTS && !a->stopping) {
        a->opened[(a->first + a->count++) % AHEAD_EVENTS] =
            node_ref(&fs->nodes, text);
        pthread_cond_signal(&a->wake);
    }
    pthread_mutex_unlock(&a->lock);
}

void ahead_interrupted(struct ocr_fs *fs)
{
    struct ahead *a = &fs->ahead;

    pthread_mutex_lock(&a->lock);
    a->interrupted = true;
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->lock);
}

void ahead_stop(struct ocr_fs *fs)
{
    struct ahead *a = &fs->ahead;

    pthread_mutex_lock(&a->lock);
    a->stopping = true;
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->lock);
}

bool ahead_join(struct ocr_fs *fs, int timeout_ms)
{
    struct ahead *a = &fs->ahead;

    if (a->running)
        a->running = !fs_thread_join(a->thread, &a->lock, &a->wake, &a->over,
                                     timeout_ms);
    return !a->running;
}

void ahead_release(struct ocr_fs *fs)
{
    struct ahead *a = &fs->ahead;

    for (; a->count; a->count--, a->first++)
        node_unref(&fs->nodes, a->opened[a->first % AHEAD_EVENTS]);
    free(a->streams);
    pthread_cond_destroy(&a->wake);
    pthread_mutex_destroy(&a->lock);
}

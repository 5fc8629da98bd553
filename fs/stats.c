#include "engine/base/io.h"
#include "engine/base/log.h"
#include "fs/fs_i.h"

#include <stdlib.h>
#include <string.h>

/* Once a minute is enough to say that nothing is kept. */
enum {
    CACHE_SAID_MS = 60 * 1000
};

struct fingerprint {
    struct fingerprint *next;
    char text[];
};

const double latency_bounds_s[LATENCY_BUCKETS - 1] = {
    0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300};

int stats_init(struct stats *s)
{
    *s = (struct stats){.lock = PTHREAD_MUTEX_INITIALIZER,
                        .cache_said_ms = -CACHE_SAID_MS};
    atomic_init(&s->fingerprint, "");
    s->device = strdup("");
    s->version = strdup("");
    return s->device && s->version ? 0 : -1;
}

void stats_release(struct stats *s)
{
    for (struct fingerprint *f = s->fingerprints, *next; f; f = next) {
        next = f->next;
        free(f);
    }
    for (size_t i = 0; i < FAILURES_LISTED; i++) {
        free(s->listed[i].path);
        free(s->listed[i].reason);
    }
    free(s->device);
    free(s->version);
    pthread_mutex_destroy(&s->lock);
}

/* ---- counters -------------------------------------------------------- */

static void count(struct stats *s, uint64_t *what)
{
    pthread_mutex_lock(&s->lock);
    ++*what;
    pthread_mutex_unlock(&s->lock);
}

void stats_opened(struct stats *s, bool quick)
{
    count(s, quick ? &s->quick : &s->opens);
}

void stats_refused(struct stats *s)
{
    count(s, &s->refused);
}

void stats_interrupted(struct stats *s)
{
    count(s, &s->interrupted);
}

void stats_answered(struct stats *s, int64_t waited_ms)
{
    unsigned i = 0;

    while (i < LATENCY_BUCKETS - 1 &&
           (double)waited_ms > 1000 * latency_bounds_s[i])
        i++;
    pthread_mutex_lock(&s->lock);
    s->latency[i]++;
    s->latency_count++;
    s->latency_sum_ms += waited_ms;
    pthread_mutex_unlock(&s->lock);
}

void stats_page(struct stats *s, bool done, unsigned pages)
{
    const int64_t second = ocr_now_ms() / 1000;
    const unsigned place = (unsigned)(second % RATE_SECONDS);

    pages = pages ? pages : 1;
    pthread_mutex_lock(&s->lock);
    *(done ? &s->pages_done : &s->pages_failed) += pages;
    if (s->rate[place].second != second) {
        s->rate[place].second = second;
        s->rate[place].pages = 0;
    }
    s->rate[place].pages += done ? pages : 0;
    pthread_mutex_unlock(&s->lock);
}

double stats_rate_locked(const struct stats *s, int64_t begun_ms)
{
    const int64_t now_ms = ocr_now_ms(), second = now_ms / 1000;
    const double lived_s = (double)(now_ms - begun_ms) / 1000;
    const double seconds = lived_s < RATE_SECONDS ? lived_s : RATE_SECONDS;
    unsigned pages = 0;

    for (unsigned i = 0; i < RATE_SECONDS; i++)
        if (s->rate[i].second > second - RATE_SECONDS)
            pages += s->rate[i].pages;
    return seconds > 0 ? pages / seconds : 0;
}

/* ---- failures -------------------------------------------------------- */

void stats_fail_again(struct stats *s, enum ocr_kind kind)
{
    count(s, &s->errors[kind <= OCR_KIND_LAST ? kind : OCR_KIND_FAILED]);
}

void stats_fail(struct ocr_fs *fs, enum ocr_kind kind, const char *path,
                const char *reason)
{
    struct stats *s = &fs->stats;
    struct listed_failure *slot, old;
    const struct listed_failure new = {
        .wall_ns = ocr_wall_ns(),
        .kind = kind,
        .path = strdup(path),
        .reason = strdup(reason),
    };

    ocr_error("%s/%s: %s (%s)", fs->config.source, path, reason,
              ocr_kind_name(kind));
    stats_fail_again(s, kind);
    pthread_mutex_lock(&s->lock);
    slot = &s->listed[s->listed_count++ % FAILURES_LISTED];
    old = *slot;
    *slot = new;
    pthread_mutex_unlock(&s->lock);
    free(old.path);
    free(old.reason);
}

void stats_remember(struct stats *s, const struct ocr_job_key *key,
                    enum ocr_kind kind)
{
    struct failure *f;

    pthread_mutex_lock(&s->lock);
    f = &s->recent[s->recent_count++ % FAILURES_RECENT];
    *f = (struct failure){
        .key = *key,
        .kind = kind,
        .until_ms = ocr_now_ms() + FAILURE_MEMORY_MS,
        .epoch = s->epoch,
    };
    pthread_mutex_unlock(&s->lock);
}

static bool same_key(const struct ocr_job_key *a, const struct ocr_job_key *b)
{
    return a->owner == b->owner &&
           !memcmp(&a->digest, &b->digest, sizeof a->digest);
}

enum ocr_kind stats_recall(struct stats *s, const struct ocr_job_key *key)
{
    const int64_t now = ocr_now_ms();
    enum ocr_kind kind = OCR_KIND_NONE;

    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < FAILURES_RECENT && i < s->recent_count; i++) {
        const struct failure *f = &s->recent[i];

        /* Once an engine answers, none is missing any more. */
        if (f->until_ms > now && same_key(&f->key, key) &&
            (f->kind != OCR_KIND_GONE || f->epoch == s->epoch))
            kind = f->kind;
    }
    pthread_mutex_unlock(&s->lock);
    return kind;
}

void stats_cache_trouble(struct stats *s, const struct ocr_err *why)
{
    const int64_t now = ocr_now_ms();
    bool say;

    pthread_mutex_lock(&s->lock);
    say = now - s->cache_said_ms >= CACHE_SAID_MS;
    if (say)
        s->cache_said_ms = now;
    pthread_mutex_unlock(&s->lock);
    if (say)
        ocr_warning("texts are not kept at the moment: %s", why->text);
}

/* ---- the engine ------------------------------------------------------ */

static void replace(char **to, const char *text)
{
    char *copy = strdup(text);

    if (!copy)
        return;
    free(*to);
    *to = copy;
}

void stats_engine_ready(void *arg, const char *fingerprint, const char *device,
                        const char *version)
{
    struct ocr_fs *fs = arg;
    struct stats *s = &fs->stats;
    const size_t bytes = strlen(fingerprint) + 1;
    struct fingerprint *f = NULL;

    if (strcmp(atomic_load(&s->fingerprint), fingerprint))
        f = malloc(sizeof *f + bytes);
    pthread_mutex_lock(&s->lock);
    s->epoch++;
    replace(&s->device, device);
    replace(&s->version, version);
    if (f) {
        memcpy(f->text, fingerprint, bytes);
        f->next = s->fingerprints;
        s->fingerprints = f;
        atomic_store(&s->fingerprint, f->text);
    }
    pthread_mutex_unlock(&s->lock);
}

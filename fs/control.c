#include "engine/base/io.h"
#include "engine/base/log.h"
#include "fs/fs_i.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    CONTROL_BYTES = 4 << 20, /* of a snapshot at most */
    JOBS_SHOWN = 16,
};

const char *const control_names[CONTROL_COUNT] = {
    [CONTROL_FOLDER] = "",
    [CONTROL_STATUS] = "status",
    [CONTROL_JSON] = "status.json",
    [CONTROL_METRICS] = "metrics",
};

static const char *const engine_states[] = {
    [OCR_ENGINE_NONE] = "none",       [OCR_ENGINE_STARTING] = "starting",
    [OCR_ENGINE_LOADING] = "loading", [OCR_ENGINE_READY] = "ready",
    [OCR_ENGINE_BACKOFF] = "backoff",
};

/* For people. */
static const char *engine_words(unsigned state)
{
    return state == OCR_ENGINE_BACKOFF
               ? "there is none; it is started again when a text is wanted"
               : engine_states[state];
}

static const char *const priorities[] = {
    [OCR_PRIORITY_BACKGROUND] = "background",
    [OCR_PRIORITY_READAHEAD] = "readahead",
    [OCR_PRIORITY_INTERACTIVE] = "interactive",
};

/* ---- what is shown --------------------------------------------------- */

struct job {
    char label[512]; /* escaped */
    int64_t age_ms;
    enum ocr_priority priority;
    unsigned pages, pages_done;
};

struct error_line {
    int64_t wall_ns;
    enum ocr_kind kind;
    char path[1024], reason[1024]; /* escaped: valid UTF-8, one line */
};

struct figures {
    struct ocr_queue_stats queue;
    struct ocr_cache_stat cache;
    unsigned parked;
    bool paused;
    size_t nodes; /* files and folders the kernel knows, and ours */
    uint64_t opens, quick, refused, interrupted, pages_done, pages_failed;
    double rate; /* pages a second */
    uint64_t ahead_started, ahead_used, ahead_wasted;
    struct watch_figures watch;
    struct newcomers_figures newcomers;
    uint64_t errors[OCR_KIND_LAST + 1];
    uint64_t latency[LATENCY_BUCKETS], latency_count;
    int64_t latency_sum_ms;
    size_t error_count, job_count;
    struct error_line error_lines[FAILURES_LISTED]; /* newest first */
    struct job jobs[JOBS_SHOWN];
};

static void escape(char *out, size_t size, const char *text)
{
    ocr_log_escape(out, size, text ? text : "", text ? strlen(text) : 0);
}

static void collect_job(void *arg, const struct ocr_queue_job *running)
{
    struct figures *f = arg;
    struct job *job = &f->jobs[f->job_count];

    if (f->job_count == JOBS_SHOWN)
        return;
    f->job_count++;
    escape(job->label, sizeof job->label, running->label);
    job->age_ms = running->age_ms;
    job->priority = running->priority;
    job->pages = running->pages;
    job->pages_done = running->pages_done;
}

static void collect_stats(struct ocr_fs *fs, struct figures *f)
{
    struct stats *s = &fs->stats;

    pthread_mutex_lock(&s->lock);
    f->rate = stats_rate_locked(s, fs->begun_ms);
    f->opens = s->opens;
    f->quick = s->quick;
    f->refused = s->refused;
    f->interrupted = s->interrupted;
    f->pages_done = s->pages_done;
    f->pages_failed = s->pages_failed;
    memcpy(f->errors, s->errors, sizeof f->errors);
    memcpy(f->latency, s->latency, sizeof f->latency);
    f->latency_count = s->latency_count;
    f->latency_sum_ms = s->latency_sum_ms;
    for (size_t i = 0; i < FAILURES_LISTED && i < s->listed_count; i++) {
        const struct listed_failure *from =
            &s->listed[(s->listed_count - 1 - i) % FAILURES_LISTED];
        struct error_line *to = &f->error_lines[f->error_count++];

        to->wall_ns = from->wall_ns;
        to->kind = from->kind;
        escape(to->path, sizeof to->path, from->path);
        escape(to->reason, sizeof to->reason, from->reason);
    }
    pthread_mutex_unlock(&s->lock);
}

static struct figures *collect(struct ocr_fs *fs)
{
    struct figures *f = calloc(1, sizeof *f);

    if (!f)
        return NULL;
    if (fs->queue) {
        ocr_queue_stats(fs->queue, &f->queue);
        ocr_queue_visit(fs->queue, collect_job, f);
    }
    ocr_cache_stat(fs->cache, &f->cache, NULL);
    pthread_mutex_lock(&fs->park.lock);
    f->parked = fs->park.waiting;
    f->paused = atomic_load(&fs->park.paused);
    pthread_mutex_unlock(&fs->park.lock);
    pthread_mutex_lock(&fs->ahead.lock);
    f->ahead_started = fs->ahead.started;
    f->ahead_used = fs->ahead.used;
    f->ahead_wasted = fs->ahead.wasted;
    pthread_mutex_unlock(&fs->ahead.lock);
    watch_figures(&fs->watch, &f->watch);
    newcomers_figures(&fs->newcomers, &f->newcomers);
    pthread_mutex_lock(&fs->nodes.lock);
    f->nodes = fs->nodes.count;
    pthread_mutex_unlock(&fs->nodes.lock);
    collect_stats(fs, f);
    return f;
}

static void time_text(int64_t wall_ns, char *out, size_t size)
{
    const time_t t = wall_ns / 1000000000;
    struct tm tm;

    if (!gmtime_r(&t, &tm) || !strftime(out, size, "%Y-%m-%dT%H:%M:%SZ", &tm))
        *out = '\0';
}

/* The middle of the waits: the bound of the bucket that holds it, as text. */
static void median_text(const struct figures *f, char *out, size_t size)
{
    uint64_t seen = 0;
    unsigned i = 0;

    for (; i < LATENCY_BUCKETS - 1; i++) {
        seen += f->latency[i];
        if (2 * seen >= f->latency_count)
            break;
    }
    if (!f->latency_count)
        snprintf(out, size, "-");
    else if (i == LATENCY_BUCKETS - 1)
        snprintf(out, size, "above %g s", latency_bounds_s[i - 1]);
    else
        snprintf(out, size, "up to %g s", latency_bounds_s[i]);
}

/* ---- for people ------------------------------------------------------ */

/* Of several. */
static void people_one_engine(const struct ocr_engine_stats *e,
                              struct ocr_buf *out)
{
    char text[512];

    escape(text, sizeof text, e->device);
    ocr_buf_printf(out, "  on %-7s %s, pid %lld, %u being read", text,
                   engine_words(e->state), (long long)e->pid, e->running);
    escape(text, sizeof text, e->trouble);
    ocr_buf_printf(out, "%s%s\n", *text ? ": " : "", text);
}

static void people_engine(const struct figures *f, struct ocr_buf *out)
{
    const struct ocr_queue_stats *q = &f->queue;
    char text[512];

    ocr_buf_printf(out, "engine      %s", engine_words(q->state));
    if (q->pid)
        ocr_buf_printf(out, ", pid %lld", (long long)q->pid);
    if (q->capacity)
        ocr_buf_printf(out, ", %u page%s at once", q->capacity,
                       q->capacity == 1 ? "" : "s");
    escape(text, sizeof text, q->version);
    if (*text)
        ocr_buf_printf(out, ", %s", text);
    escape(text, sizeof text, q->device);
    if (*text)
        ocr_buf_printf(out, " on %s", text);
    escape(text, sizeof text, q->details);
    if (*text)
        ocr_buf_printf(out, ": %s", text);
    ocr_buf_putc(out, '\n');
    for (unsigned i = 0; q->engines > 1 && i < q->engines; i++)
        people_one_engine(&q->engine[i], out);
    escape(text, sizeof text, q->trouble);
    if (*text && q->engines == 1)
        ocr_buf_printf(out, "trouble     %s\n", text);
    if (q->engine_deaths)
        ocr_buf_printf(out, "restarts    %llu (%llu ended unexpectedly)\n",
                       (unsigned long long)q->engine_starts,
                       (unsigned long long)q->engine_deaths);
}

/* "waits       3 up to 0.1 s, 12 up to 0.25 s, 1 above 300 s" */
static void people_waits(const struct figures *f, struct ocr_buf *out)
{
    const char *between = "waits       ";

    for (unsigned i = 0; i < LATENCY_BUCKETS; i++) {
        const bool last = i == LATENCY_BUCKETS - 1;

        if (!f->latency[i])
            continue;
        ocr_buf_printf(out, "%s%llu %s %g s", between,
                       (unsigned long long)f->latency[i],
                       last ? "above" : "up to", latency_bounds_s[i - last]);
        between = ", ";
    }
    if (f->latency_count)
        ocr_buf_putc(out, '\n');
}

static void people_job(const struct job *job, struct ocr_buf *out)
{
    ocr_buf_printf(out, "  reading   %s (", job->label);
    if (job->pages > 1)
        ocr_buf_printf(out, "%u of %u pages, ", job->pages_done, job->pages);
    ocr_buf_printf(out, "%.1f s, %s)\n", (double)job->age_ms / 1000,
                   priorities[job->priority]);
}

static void people_work(const struct figures *f, struct ocr_buf *out)
{
    const struct ocr_queue_stats *q = &f->queue;
    char median[32];

    ocr_buf_printf(out,
                   "queue       %u being read, %u wait (%u interactive, %u "
                   "readahead, %u background)\n",
                   q->running,
                   q->waiting[OCR_PRIORITY_BACKGROUND] +
                       q->waiting[OCR_PRIORITY_READAHEAD] +
                       q->waiting[OCR_PRIORITY_INTERACTIVE],
                   q->waiting[OCR_PRIORITY_INTERACTIVE],
                   q->waiting[OCR_PRIORITY_READAHEAD],
                   q->waiting[OCR_PRIORITY_BACKGROUND]);
    if (f->paused)
        ocr_buf_puts(out, "paused      until ocrfs resume: texts that are not "
                          "known fail with EINTR\n");
    ocr_buf_printf(out, "programs    %u wait for a text\n", f->parked);
    median_text(f, median, sizeof median);
    ocr_buf_printf(out,
                   "opens       %llu known, %llu had to wait (median %s), %llu "
                   "interrupted, %llu refused\n",
                   (unsigned long long)f->quick, (unsigned long long)f->opens,
                   median, (unsigned long long)f->interrupted,
                   (unsigned long long)f->refused);
    people_waits(f, out);
    ocr_buf_printf(out,
                   "pages       %llu read, %llu failed; %.1f a second in the "
                   "last minute\n",
                   (unsigned long long)f->pages_done,
                   (unsigned long long)f->pages_failed, f->rate);
    ocr_buf_printf(out, "readahead   %llu started, %llu used, %llu wasted\n",
                   (unsigned long long)f->ahead_started,
                   (unsigned long long)f->ahead_used,
                   (unsigned long long)f->ahead_wasted);
    for (size_t i = 0; i < f->job_count; i++)
        people_job(&f->jobs[i], out);
}

static void people_watch(const struct watch_figures *w, struct ocr_buf *out)
{
    if (!w->on)
        ocr_buf_puts(out, "watch       off: changes show after a second\n");
    else
        ocr_buf_printf(out,
                       "watch       %zu folders%s, %llu events, lost %llu "
                       "times\n",
                       w->folders, w->full ? " (no more can be)" : "",
                       (unsigned long long)w->events,
                       (unsigned long long)w->overflows);
}

static void people_newcomers(const struct newcomers_figures *n,
                             struct ocr_buf *out)
{
    if (!n->on)
        return;
    ocr_buf_printf(out,
                   "index=new   %llu started, %zu wait; %zu folders, %zu of "
                   "them looked through twice a minute\n",
                   (unsigned long long)n->started, n->waiting, n->folders,
                   n->unwatched);
}

static void people_cache(struct ocr_fs *fs, const struct figures *f,
                         struct ocr_buf *out)
{
    const struct ocr_cache_stat *c = &f->cache;
    char path[1024];

    escape(path, sizeof path, ocr_cache_path(fs->cache));
    ocr_buf_printf(out,
                   "cache       %s: %llu texts, %.1f MiB; %llu hits, %llu "
                   "misses, %llu damaged\n",
                   path, (unsigned long long)c->texts,
                   (double)c->disk_bytes / (1 << 20),
                   (unsigned long long)c->hits, (unsigned long long)c->misses,
                   (unsigned long long)c->bad_rows);
}

static void people_errors(const struct figures *f, struct ocr_buf *out)
{
    char when[32];

    for (unsigned i = 1; i <= OCR_KIND_LAST; i++)
        if (f->errors[i])
            ocr_buf_printf(out, "errors      %llu %s\n",
                           (unsigned long long)f->errors[i],
                           ocr_kind_words((enum ocr_kind)i));
    for (size_t i = 0; i < f->error_count; i++) {
        const struct error_line *e = &f->error_lines[i];

        time_text(e->wall_ns, when, sizeof when);
        ocr_buf_printf(out, "  %s  %s: %s (%s)\n", when, e->path, e->reason,
                       ocr_kind_words(e->kind));
    }
}

/* Nobody should have to guess where pictures go. */
static void people_sent(struct ocr_fs *fs, struct ocr_buf *out)
{
    struct ocr_buf sentence;

    ocr_buf_init(&sentence, OCR_ENGINE_WORD_MAX);
    ocr_options_say_sent(fs->options, &sentence);
    if (sentence.len && !sentence.failed)
        ocr_buf_printf(out, "network     %s\n", sentence.data);
    ocr_buf_release(&sentence);
}

static void write_status(struct ocr_fs *fs, const struct figures *f,
                         struct ocr_buf *out)
{
    char text[OCR_ENGINE_WORD_MAX];
    const char *recogniser = ocr_options_recogniser(fs->options);

    escape(text, sizeof text, fs->config.source);
    ocr_buf_printf(out, "source      %s\n", text);
    escape(text, sizeof text, fs->config.mountpoint);
    ocr_buf_printf(out, "mounted at  %s\n", text);
    ocr_options_engine(fs->options, text, sizeof text);
    ocr_buf_printf(out, "recogniser  %s\n",
                   strcmp(recogniser, "http") ? text : recogniser);
    escape(text, sizeof text, fs->options->model);
    if (*text && strcmp(recogniser, "tesseract"))
        ocr_buf_printf(out, "model       %s\n", text);
    people_sent(fs, out);
    people_engine(f, out);
    people_work(f, out);
    people_watch(&f->watch, out);
    people_newcomers(&f->newcomers, out);
    people_cache(fs, f, out);
    people_errors(f, out);
}

/* ---- for programs ---------------------------------------------------- */

static json_t *json_text(const char *text)
{
    char escaped[4096];

    escape(escaped, sizeof escaped, text);
    return json_string(escaped);
}

static json_t *json_engines(const struct ocr_queue_stats *q)
{
    json_t *all = json_array();

    for (unsigned i = 0; i < q->engines; i++) {
        const struct ocr_engine_stats *e = &q->engine[i];

        json_array_append_new(
            all, json_pack("{s:s, s:I, s:i, s:i, s:o, s:o}", "state",
                           engine_states[e->state], "pid", (json_int_t)e->pid,
                           "capacity", (int)e->capacity, "running",
                           (int)e->running, "device", json_text(e->device),
                           "trouble", json_text(e->trouble)));
    }
    return all;
}

static json_t *json_engine(const struct figures *f)
{
    const struct ocr_queue_stats *q = &f->queue;

    return json_pack(
        "{s:s, s:I, s:i, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o}", "state",
        engine_states[q->state], "pid", (json_int_t)q->pid, "capacity",
        (int)q->capacity, "device", json_text(q->device), "version",
        json_text(q->version), "details", json_text(q->details), "fingerprint",
        json_text(q->fingerprint), "trouble", json_text(q->trouble), "starts",
        (json_int_t)q->engine_starts, "deaths", (json_int_t)q->engine_deaths,
        "engines", json_engines(q));
}

static json_t *json_queue(const struct figures *f)
{
    const struct ocr_queue_stats *q = &f->queue;
    json_t *jobs = json_array();

    for (size_t i = 0; i < f->job_count; i++)
        json_array_append_new(
            jobs, json_pack("{s:o, s:f, s:s, s:i, s:i}", "path",
                            json_text(f->jobs[i].label), "seconds",
                            (double)f->jobs[i].age_ms / 1000, "priority",
                            priorities[f->jobs[i].priority], "pages",
                            (int)f->jobs[i].pages, "pages_done",
                            (int)f->jobs[i].pages_done));
    return json_pack(
        "{s:{s:i, s:i, s:i}, s:i, s:i, s:I, s:I, s:I, s:I, s:o}", "waiting",
        "interactive", (int)q->waiting[OCR_PRIORITY_INTERACTIVE], "readahead",
        (int)q->waiting[OCR_PRIORITY_READAHEAD], "background",
        (int)q->waiting[OCR_PRIORITY_BACKGROUND], "running", (int)q->running,
        "waiters", (int)q->waiters, "bytes_kept", (json_int_t)q->bytes_kept,
        "jobs_done", (json_int_t)q->done, "jobs_failed", (json_int_t)q->failed,
        "jobs_cancelled", (json_int_t)q->cancelled, "reading", jobs);
}

static json_t *json_cache(struct ocr_fs *fs, const struct figures *f)
{
    const struct ocr_cache_stat *c = &f->cache;

    return json_pack(
        "{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "path",
        json_text(ocr_cache_path(fs->cache)), "texts", (json_int_t)c->texts,
        "text_bytes", (json_int_t)c->text_bytes, "sizes", (json_int_t)c->sizes,
        "verdicts", (json_int_t)c->verdicts, "files", (json_int_t)c->files,
        "disk_bytes", (json_int_t)c->disk_bytes, "hits", (json_int_t)c->hits,
        "misses", (json_int_t)c->misses, "bad_rows", (json_int_t)c->bad_rows);
}

static json_t *json_watch(const struct watch_figures *w)
{
    return json_pack("{s:b, s:I, s:b, s:b, s:I, s:I, s:I}", "on", w->on,
                     "folders", (json_int_t)w->folders, "full", w->full,
                     "sound", w->sound, "events", (json_int_t)w->events, "lost",
                     (json_int_t)w->overflows, "told", (json_int_t)w->told);
}

static json_t *json_newcomers(const struct newcomers_figures *n)
{
    return json_pack("{s:b, s:I, s:I, s:I, s:I, s:i}", "on", n->on, "started",
                     (json_int_t)n->started, "waiting", (json_int_t)n->waiting,
                     "folders", (json_int_t)n->folders, "unwatched",
                     (json_int_t)n->unwatched, "running", (int)n->in_flight);
}

static json_t *json_errors(const struct figures *f)
{
    json_t *counts = json_object(), *last = json_array();
    char when[32];

    for (unsigned i = 1; i <= OCR_KIND_LAST; i++)
        json_object_set_new(counts, ocr_kind_name((enum ocr_kind)i),
                            json_integer((json_int_t)f->errors[i]));
    for (size_t i = 0; i < f->error_count; i++) {
        const struct error_line *e = &f->error_lines[i];

        time_text(e->wall_ns, when, sizeof when);
        json_array_append_new(last, json_pack("{s:s, s:s, s:s, s:s}", "time",
                                              when, "path", e->path, "kind",
                                              ocr_kind_name(e->kind), "reason",
                                              e->reason));
    }
    return json_pack("{s:o, s:o}", "count", counts, "last", last);
}

/* How long opens waited: not summed up, as people read it. */
static json_t *json_waits(const struct figures *f)
{
    json_t *buckets = json_array();

    for (unsigned i = 0; i < LATENCY_BUCKETS; i++) {
        json_t *bucket = json_pack("{s:I}", "count", (json_int_t)f->latency[i]);

        if (bucket && i < LATENCY_BUCKETS - 1)
            json_object_set_new(bucket, "up_to_seconds",
                                json_real(latency_bounds_s[i]));
        json_array_append_new(buckets, bucket);
    }
    return json_pack("{s:I, s:f, s:o}", "count", (json_int_t)f->latency_count,
                     "seconds", (double)f->latency_sum_ms / 1000, "buckets",
                     buckets);
}

static json_t *json_opens(const struct figures *f)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:f}", "known", (json_int_t)f->quick,
                     "waited", (json_int_t)f->opens, "interrupted",
                     (json_int_t)f->interrupted, "refused",
                     (json_int_t)f->refused, "seconds",
                     (double)f->latency_sum_ms / 1000);
}

static json_t *json_pages(const struct figures *f)
{
    return json_pack("{s:I, s:I, s:f}", "done", (json_int_t)f->pages_done,
                     "failed", (json_int_t)f->pages_failed, "per_second",
                     f->rate);
}

static json_t *json_ahead(const struct figures *f)
{
    return json_pack("{s:I, s:I, s:I}", "started", (json_int_t)f->ahead_started,
                     "used", (json_int_t)f->ahead_used, "wasted",
                     (json_int_t)f->ahead_wasted);
}

/* The servers that images are sent to: none with most recognisers. */
static json_t *json_sent(const struct ocr_fs *fs)
{
    json_t *list = json_array();
    char *urls = strdup(fs->options->url), *rest = urls, *url;

    if (!strcmp(ocr_options_recogniser(fs->options), "http"))
        while ((url = strsep(&rest, ";")))
            if (*url)
                json_array_append_new(list, json_text(url));
    free(urls);
    return list;
}

static void write_json(struct ocr_fs *fs, const struct figures *f,
                       struct ocr_buf *out)
{
    json_t *root =
        json_pack("{s:s, s:o, s:o, s:o, s:o, s:b, s:i, s:I}", "program",
                  OCR_VERSION, "source", json_text(fs->config.source),
                  "mountpoint", json_text(fs->config.mountpoint), "recogniser",
                  json_text(ocr_options_recogniser(fs->options)), "model",
                  json_text(fs->options->model), "paused", (int)f->paused,
                  "parked", (int)f->parked, "nodes", (json_int_t)f->nodes);
    /* NULL is refused by set_new: then the part is missing. */
    json_object_set_new(root, "sent_to", json_sent(fs));
    json_object_set_new(root, "engine", json_engine(f));
    json_object_set_new(root, "queue", json_queue(f));
    json_object_set_new(root, "cache", json_cache(fs, f));
    json_object_set_new(root, "opens", json_opens(f));
    json_object_set_new(root, "pages", json_pages(f));
    json_object_set_new(root, "readahead", json_ahead(f));
    json_object_set_new(root, "watch", json_watch(&f->watch));
    json_object_set_new(root, "newcomers", json_newcomers(&f->newcomers));
    json_object_set_new(root, "waits", json_waits(f));
    json_object_set_new(root, "errors", json_errors(f));
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;

    if (text) {
        ocr_buf_puts(out, text);
        ocr_buf_putc(out, '\n');
    }
    free(text);
    json_decref(root);
}

/* ---- for Prometheus -------------------------------------------------- */

static void metric(struct ocr_buf *out, const char *name, const char *type,
                   const char *help)
{
    ocr_buf_printf(out, "# HELP ocrfs_%s %s\n# TYPE ocrfs_%s %s\n", name, help,
                   name, type);
}

static void one(struct ocr_buf *out, const char *name, const char *type,
                const char *help, uint64_t value)
{
    metric(out, name, type, help);
    ocr_buf_printf(out, "ocrfs_%s %llu\n", name, (unsigned long long)value);
}

static void metrics_latency(const struct figures *f, struct ocr_buf *out)
{
    uint64_t sum = 0;

    metric(out, "open_wait_seconds", "histogram",
           "How long opens waited for a text that was not known.");
    for (unsigned i = 0; i < LATENCY_BUCKETS - 1; i++) {
        sum += f->latency[i];
        ocr_buf_printf(out, "ocrfs_open_wait_seconds_bucket{le=\"%g\"} %llu\n",
                       latency_bounds_s[i], (unsigned long long)sum);
    }
    ocr_buf_printf(out,
                   "ocrfs_open_wait_seconds_bucket{le=\"+Inf\"} %llu\n"
                   "ocrfs_open_wait_seconds_sum %.3f\n"
                   "ocrfs_open_wait_seconds_count %llu\n",
                   (unsigned long long)f->latency_count,
                   (double)f->latency_sum_ms / 1000,
                   (unsigned long long)f->latency_count);
}

static void metrics_queue(const struct figures *f, struct ocr_buf *out)
{
    const struct ocr_queue_stats *q = &f->queue;

    metric(out, "queue_jobs", "gauge", "Images that wait, by priority.");
    for (unsigned i = 0; i < 3; i++)
        ocr_buf_printf(out, "ocrfs_queue_jobs{priority=\"%s\"} %u\n",
                       priorities[i], q->waiting[i]);
    one(out, "queue_running", "gauge", "Images in the engine.", q->running);
    one(out, "queue_bytes", "gauge", "Bytes of images kept.", q->bytes_kept);
    one(out, "paused", "gauge", "1 between ocrfs pause and resume.", f->paused);
    one(out, "opens_parked", "gauge", "Opens that wait for a text.", f->parked);
    one(out, "nodes", "gauge", "Files and folders in memory.", f->nodes);
    metric(out, "engine_state", "gauge", "1 for the state of the engine.");
    for (unsigned i = 0; i < sizeof engine_states / sizeof *engine_states; i++)
        ocr_buf_printf(out, "ocrfs_engine_state{state=\"%s\"} %d\n",
                       engine_states[i], i == (unsigned)q->state);
    one(out, "engine_capacity", "gauge", "Pages the engine takes at once.",
        q->capacity);
    one(out, "engine_starts_total", "counter", "Engines started.",
        q->engine_starts);
    one(out, "engine_deaths_total", "counter", "Engines that died.",
        q->engine_deaths);
}

static void metrics_work(const struct figures *f, struct ocr_buf *out)
{
    one(out, "pages_done_total", "counter", "Pages read.", f->pages_done);
    one(out, "pages_failed_total", "counter", "Pages that failed.",
        f->pages_failed);
    one(out, "opens_known_total", "counter", "Opens answered at once.",
        f->quick);
    one(out, "opens_waited_total", "counter", "Opens of unknown texts.",
        f->opens);
    one(out, "opens_interrupted_total", "counter", "Opens ended by a signal.",
        f->interrupted);
    one(out, "opens_refused_total", "counter", "Opens refused by noocr.",
        f->refused);
    one(out, "readahead_started_total", "counter", "Images read ahead.",
        f->ahead_started);
    one(out, "readahead_used_total", "counter", "Of these: opened.",
        f->ahead_used);
    one(out, "readahead_wasted_total", "counter", "Of these: not opened.",
        f->ahead_wasted);
    metric(out, "errors_total", "counter", "Opens and jobs that failed.");
    for (unsigned i = 1; i <= OCR_KIND_LAST; i++)
        ocr_buf_printf(out, "ocrfs_errors_total{kind=\"%s\"} %llu\n",
                       ocr_kind_name((enum ocr_kind)i),
                       (unsigned long long)f->errors[i]);
}

static void metrics_watch(const struct watch_figures *w, struct ocr_buf *out)
{
    one(out, "watched_folders", "gauge", "Folders watched for changes.",
        w->folders);
    one(out, "watch_events_total", "counter", "Changes heard of.", w->events);
    one(out, "watch_lost_total", "counter", "Times that changes were lost.",
        w->overflows);
    one(out, "watch_told_total", "counter", "Changes told to the kernel.",
        w->told);
}

static void metrics_newcomers(const struct newcomers_figures *n,
                              struct ocr_buf *out)
{
    one(out, "newcomers_started_total", "counter",
        "New images read in the background (index=new).", n->started);
    one(out, "newcomers_waiting", "gauge", "New images that wait.", n->waiting);
}

static void metrics_cache(const struct figures *f, struct ocr_buf *out)
{
    const struct ocr_cache_stat *c = &f->cache;

    one(out, "cache_texts", "gauge", "Texts stored.", c->texts);
    one(out, "cache_text_bytes", "gauge", "Bytes of texts.", c->text_bytes);
    one(out, "cache_disk_bytes", "gauge", "Bytes on disk.", c->disk_bytes);
    one(out, "cache_hits_total", "counter", "Texts found.", c->hits);
    one(out, "cache_misses_total", "counter", "Texts not found.", c->misses);
    one(out, "cache_bad_rows_total", "counter", "Damaged rows.", c->bad_rows);
}

static void write_metrics(const struct figures *f, struct ocr_buf *out)
{
    metrics_queue(f, out);
    metrics_work(f, out);
    metrics_latency(f, out);
    metrics_watch(&f->watch, out);
    metrics_newcomers(&f->newcomers, out);
    metrics_cache(f, out);
}

/* ---- nodes
 * -----------------------------------------------------------------------------------
 */

void control_write(struct ocr_fs *fs, unsigned which, struct ocr_buf *out)
{
    struct figures *f = collect(fs);

    if (!f)
        return;
    if (which == CONTROL_STATUS)
        write_status(fs, f, out);
    else if (which == CONTROL_JSON)
        write_json(fs, f, out);
    else if (which == CONTROL_METRICS)
        write_metrics(f, out);
    free(f);
}

static unsigned which_of(const char *name)
{
    unsigned i = CONTROL_FOLDER + 1;

    while (i < CONTROL_COUNT && strcmp(name, control_names[i]))
        i++;
    return i;
}

struct node *control_lookup(struct ocr_fs *fs, const char *name, int *rc)
{
    const unsigned which = name ? which_of(name) : CONTROL_FOLDER;
    struct text *snapshot = NULL;
    struct ocr_buf out;
    struct node *n;
    char *bytes;
    size_t len = 0;

    *rc = 0;
    if (which == CONTROL_FOLDER)
        return node_ref(&fs->nodes, fs->control);
    *rc = -ENOENT;
    if (which == CONTROL_COUNT)
        return NULL;
    ocr_buf_init(&out, CONTROL_BYTES);
    control_write(fs, which, &out);
    bytes = ocr_buf_detach(&out, &len);
    snapshot = text_new(bytes, len);
    *rc = -ENOMEM;
    if (!snapshot)
        return NULL;
    n = node_enter_control(&fs->nodes, which, S_IFREG, snapshot);
    if (!n)
        text_unref(snapshot);
    return n;
}

void control_attr(struct ocr_fs *fs, const struct node *n, struct stat *st)
{
    const struct text *text = n->control.snapshot;
    const struct timespec begun = {.tv_sec = fs->begun_ns / 1000000000};

    *st = (struct stat){
        .st_ino = control_st_ino(n->control.which),
        .st_mode = text ? S_IFREG | 0400 : S_IFDIR | 0500,
        .st_nlink = text ? 1 : 2,
        .st_uid = fs->uid,
        .st_gid = fs->gid,
        .st_size = text ? (off_t)text->len : 0,
        .st_blksize = TEXT_BLOCK,
        .st_blocks = text ? (blkcnt_t)((text->len + 511) / 512) : 0,
        .st_atim = begun,
        .st_mtim = begun,
        .st_ctim = begun,
    };
}

void ocr_fs_log_statistics(struct ocr_fs *fs)
{
    struct ocr_buf out;
    char *rest = NULL;

    ocr_buf_init(&out, CONTROL_BYTES);
    control_write(fs, CONTROL_STATUS, &out);
    for (char *line = out.data ? strtok_r(out.data, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest))
        ocr_info("%s", line);
    ocr_buf_release(&out);
}

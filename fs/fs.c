#include "engine/base/io.h"
#include "fs/fs_i.h"
#include "fs/words.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A thread that hangs in SOURCE is left behind after this. */
enum {
    HUNG_MS = 2000
};

int fs_thread_start(pthread_t *out, void *(*run)(void *), void *arg)
{
    sigset_t all, old;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(out, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return -rc;
}

bool fs_thread_join(pthread_t thread, pthread_mutex_t *lock,
                    pthread_cond_t *wake, const bool *over, int timeout_ms)
{
    const int64_t until = ocr_now_ms() + timeout_ms;
    const struct timespec deadline = {until / 1000, until % 1000 * 1000000};
    bool ended;

    pthread_mutex_lock(lock);
    while (!*over && !pthread_cond_timedwait(wake, lock, &deadline))
        continue;
    ended = *over;
    pthread_mutex_unlock(lock);
    if (ended)
        pthread_join(thread, NULL);
    return ended;
}

struct ocr_maker fs_maker(struct ocr_fs *fs)
{
    return (struct ocr_maker){
        .recogniser = fs->recogniser,
        .settings = fs->settings.data ? fs->settings.data : "",
        .fingerprint = atomic_load(&fs->stats.fingerprint),
        .redo_stale = fs->options->stale_redo,
    };
}

static void release(struct ocr_fs *fs)
{
    for (struct fsid *id = fs->fsids, *next; id; id = next) {
        next = id->next;
        free(id);
    }
    ahead_release(fs); /* they hold nodes */
    newcomers_release(fs);
    if (fs->nodes.by_id)
        nodes_release(&fs->nodes);
    watch_release(&fs->watch);
    park_release(&fs->park);
    hashpool_release(&fs->pool);
    passthrough_release(fs);
    stats_release(&fs->stats);
    ocr_buf_release(&fs->settings);
    free(fs);
}

static int make_nodes(struct ocr_fs *fs, struct ocr_err *err)
{
    struct object root;
    int rc = source_stat_fd(fs->source.fd, &root);

    if (rc)
        return ocr_err_set(err, rc, "cannot look at %s: %s", fs->config.source,
                           strerror(-rc));
    fs->root_dev = root.st.st_dev;
    if (nodes_init(&fs->nodes, &root, fs->begun_ns))
        return ocr_err_set(err, -ENOMEM, "out of memory");
    if (*fs->options->control) {
        fs->control =
            node_enter_control(&fs->nodes, CONTROL_FOLDER, S_IFDIR, NULL);
        if (!fs->control)
            return ocr_err_set(err, -ENOMEM, "out of memory");
    }
    return 0;
}

int ocr_fs_create(struct ocr_fs **out, const struct ocr_fs_config *config,
                  struct ocr_err *err)
{
    struct ocr_fs *fs = calloc(1, sizeof *fs);
    int rc;

    if (!fs)
        return ocr_err_set(err, -ENOMEM, "out of memory");
    fs->config = *config;
    fs->options = config->options;
    fs->suffix = fs->options->suffix;
    fs->errors =
        (enum errors_mode)ocr_word_index(OCR_ERRORS_WORDS, fs->options->errors);
    fs->source.fd = config->source_fd;
    fs->passthrough.root.fd = -1;
    fs->cache = config->cache;
    fs->uid = geteuid();
    fs->gid = getegid();
    fs->begun_ns = ocr_wall_ns();
    fs->begun_ms = ocr_now_ms();
    fs->recogniser = ocr_options_recogniser(config->options);
    ocr_buf_init(&fs->settings, 64 << 10);
    ocr_options_settings(fs->options, &fs->settings);
    hashpool_init(&fs->pool);
    park_init(&fs->park);
    ahead_init(&fs->ahead, fs->options->prefetch);
    watch_init(&fs->watch, fs->options->watch);
    newcomers_init(&fs->newcomers, fs->options->index_new);
    rc = stats_init(&fs->stats);
    if (rc || fs->settings.failed)
        rc = ocr_err_set(err, -ENOMEM, "out of memory");
    else
        rc = make_nodes(fs, err);
    if (rc) {
        release(fs);
        return rc;
    }
    source_find_own_mount(&fs->own, config->mountpoint);
    *out = fs;
    return 0;
}

static int open_queue(struct ocr_fs *fs, struct ocr_err *err)
{
    const struct ocr_options *o = fs->options;
    char recogniser[OCR_ENGINE_WORD_MAX];
    const struct ocr_engine_config engine = {
        .recogniser = recogniser,
        .device = o->device,
        .model = o->model,
        .settings = fs->settings.data ? fs->settings.data : "",
        .runtime = *o->runtime ? o->runtime : NULL,
        .idle_s = o->engine_idle_s,
        .gpu_idle_s = o->gpu_idle_s,
        .jobs = o->jobs,
    };
    const struct ocr_queue_hooks hooks = {
        .arg = fs,
        .ready = stats_engine_ready,
        .finished = reading_job_finished,
        .page_known = reading_page_known,
        .page_read = reading_page_read,
        .reload = reading_job_reload,
    };
    sigset_t all, old;
    int rc;

    if (fs->queue)
        return 0;
    sigfillset(&all); /* its thread inherits the mask (B10) */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    ocr_options_engine(o, recogniser, sizeof recogniser);
    rc = ocr_queue_open(&fs->queue, &engine, &hooks, err);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

int ocr_fs_connect(struct ocr_fs *fs, int timeout_ms, struct ocr_err *err)
{
    const int rc = open_queue(fs, err);

    return rc ? rc : ocr_queue_connect(fs->queue, timeout_ms, err);
}

int ocr_fs_wait_ready(struct ocr_fs *fs, int timeout_ms, struct ocr_err *err)
{
    return ocr_queue_wait_ready(fs->queue, timeout_ms, err);
}

int ocr_fs_start(struct ocr_fs *fs, struct fuse_session *session,
                 struct ocr_err *err)
{
    int rc = open_queue(fs, err);

    fs->session = session;
    if (!rc)
        rc = hashpool_start(&fs->pool, err);
    if (!rc)
        rc = park_start(fs, err);
    if (!rc)
        rc = ahead_start(fs, err);
    if (!rc)
        rc = watch_start(fs, err);
    if (!rc)
        rc = newcomers_start(fs, err);
    return rc;
}

void ocr_fs_stop(struct ocr_fs *fs)
{
    ahead_stop(fs);
    newcomers_stop(fs);
    park_stop(fs);
    hashpool_stop(&fs->pool);
    if (fs->queue)
        ocr_queue_stop(fs->queue);
    watch_stop(fs);
}

void ocr_fs_destroy(struct ocr_fs *fs)
{
    bool ended;

    if (!fs)
        return;
    ocr_fs_stop(fs);
    park_end(fs);
    ended = hashpool_join(&fs->pool, HUNG_MS) && ahead_join(fs, HUNG_MS) &&
            newcomers_join(fs, HUNG_MS) && watch_join(fs, HUNG_MS);
    /* A thread that hangs may still come back to what it uses: leave it. */
    if (!ended)
        return;
    ocr_queue_close(fs->queue);
    park_free_readings(fs);
    release(fs);
}

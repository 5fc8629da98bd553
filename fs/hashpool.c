#include "fs/fs_i.h"
#include "engine/base/io.h"

#include <string.h>
#include <time.h>

void hashpool_init(struct hashpool *pool)
{
    pthread_condattr_t attr;

    *pool = (struct hashpool){.lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->wake, &attr);
    pthread_cond_init(&pool->ended, &attr);
    pthread_condattr_destroy(&attr);
}

void hashpool_release(struct hashpool *pool)
{
    pthread_cond_destroy(&pool->wake);
    pthread_cond_destroy(&pool->ended);
    pthread_mutex_destroy(&pool->lock);
}

static struct timespec timespec_ms(int64_t ms)
{
    return (struct timespec){.tv_sec = ms / 1000,
                             .tv_nsec = ms % 1000 * 1000000};
}

/* The first task that is due, of those the one with the highest priority. One
 * thread is always left for interactive ones. */
static struct hash_task *take_locked(struct hashpool *pool, int64_t now)
{
    const bool all = pool->patient + 1 < HASH_THREADS;
    struct hash_task **best = NULL, *task;

    for (struct hash_task **at = &pool->tasks; *at && (*at)->due_ms <= now;
         at = &(*at)->next) {
        if (!all && (*at)->priority < OCR_PRIORITY_INTERACTIVE)
            continue;
        if (!best || (*at)->priority > (*best)->priority)
            best = at;
        if ((*best)->priority == OCR_PRIORITY_INTERACTIVE)
            break;
    }
    if (!best)
        return NULL;
    task = *best;
    *best = task->next;
    return task;
}

static void wait_locked(struct hashpool *pool)
{
    struct timespec until;

    if (!pool->tasks) {
        pthread_cond_wait(&pool->wake, &pool->lock);
        return;
    }
    until = timespec_ms(pool->tasks->due_ms);
    pthread_cond_timedwait(&pool->wake, &pool->lock, &until);
}

static void *work(void *arg)
{
    struct hashpool *pool = arg;

    pthread_mutex_lock(&pool->lock);
    while (!pool->stop) {
        struct hash_task *task = take_locked(pool, ocr_now_ms());
        bool patient;

        if (!task) {
            wait_locked(pool);
            continue;
        }
        patient = task->priority < OCR_PRIORITY_INTERACTIVE;
        pool->patient += patient;
        pthread_mutex_unlock(&pool->lock);
        task->run(task);
        pthread_mutex_lock(&pool->lock);
        pool->patient -= patient;
    }
    pool->running--;
    pthread_cond_signal(&pool->ended);
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

int hashpool_start(struct hashpool *pool, struct ocr_err *err)
{
    while (pool->started < HASH_THREADS) {
        int rc;

        pthread_mutex_lock(&pool->lock);
        rc = fs_thread_start(&pool->threads[pool->started], work, pool);
        pool->running += !rc;
        pthread_mutex_unlock(&pool->lock);
        if (rc)
            return ocr_err_set(err, rc, "cannot start a thread: %s",
                               strerror(-rc));
        pool->started++;
    }
    return 0;
}

static void drop(struct hash_task *task)
{
    if (task->drop)
        task->drop(task);
}

void hashpool_submit(struct hashpool *pool, struct hash_task *task,
                     int64_t due_ms, enum ocr_priority priority)
{
    struct hash_task **at = &pool->tasks;
    bool stopped;

    task->due_ms = due_ms;
    task->priority = priority;
    pthread_mutex_lock(&pool->lock);
    stopped = pool->stop;
    if (!stopped) {
        while (*at && (*at)->due_ms <= due_ms)
            at = &(*at)->next;
        task->next = *at;
        *at = task;
        pthread_cond_signal(&pool->wake);
    }
    pthread_mutex_unlock(&pool->lock);
    if (stopped)
        drop(task);
}

void hashpool_raise(struct hashpool *pool, struct hash_task *task,
                    enum ocr_priority priority)
{
    pthread_mutex_lock(&pool->lock);
    task->priority = priority;
    pthread_cond_signal(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

void hashpool_stop(struct hashpool *pool)
{
    struct hash_task *tasks, *next;

    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    tasks = pool->tasks;
    pool->tasks = NULL;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (; tasks; tasks = next) {
        next = tasks->next;
        drop(tasks);
    }
}

bool hashpool_join(struct hashpool *pool, int timeout_ms)
{
    const struct timespec until = timespec_ms(ocr_now_ms() + timeout_ms);
    bool hung;

    pthread_mutex_lock(&pool->lock);
    while (pool->running &&
           !pthread_cond_timedwait(&pool->ended, &pool->lock, &until))
        continue;
    hung = pool->running > 0;
    pthread_mutex_unlock(&pool->lock);
    while (!hung && pool->started)
        pthread_join(pool->threads[--pool->started], NULL);
    return !hung;
}

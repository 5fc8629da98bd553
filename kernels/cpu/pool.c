#include "kernels/cpu/pool.h"
#include "kernels/cpu/isa.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum {
    SPIN_NS = 50000, /* before sleeping; a wake takes about as long */
    SPINS = 64       /* between two looks at the clock */
};

struct worker {
    struct cpu_pool *pool;
    unsigned number;
    pthread_t thread;
};

struct cpu_pool {
    unsigned threads, started;
    void (*job)(void *arg, unsigned thread, unsigned threads);
    void *arg;
    atomic_uint round;    /* raised for each run */
    atomic_uint busy;     /* workers that are not through */
    atomic_uint sleepers; /* workers that may be waiting for `wake` */
    atomic_bool stop, caller_sleeps;
    pthread_mutex_t lock; /* only for the two conditions */
    pthread_cond_t wake, through;
    struct worker worker[];
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Waits for *p to leave (`leave`) or reach `value`, SPIN_NS at most: whether
 * it did. */
static bool spin(atomic_uint *p, unsigned value, bool leave)
{
    const int64_t end = now_ns() + SPIN_NS;

    do {
        for (int i = 0; i < SPINS; i++) {
            if ((atomic_load(p) == value) != leave)
                return true;
            relax();
        }
    } while (now_ns() < end);
    return false;
}

static void wait_round(struct cpu_pool *p, unsigned seen)
{
    if (spin(&p->round, seen, true))
        return;
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(&p->round) == seen)
        pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct cpu_pool *p = w->pool;

    cpu_flush_denormals();
    for (unsigned seen = 0;; seen++) {
        wait_round(p, seen);
        if (atomic_load(&p->stop))
            return NULL;
        p->job(p->arg, w->number, p->threads);
        if (atomic_fetch_sub(&p->busy, 1) == 1 &&
            atomic_load(&p->caller_sleeps)) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->through);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

static void next_round(struct cpu_pool *p)
{
    atomic_fetch_add(&p->round, 1);
    if (!atomic_load(&p->sleepers))
        return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

int cpu_pool_new(struct cpu_pool **out, unsigned threads, struct ocr_err *err)
{
    struct cpu_pool *p = calloc(1, sizeof *p + threads * sizeof(struct worker));

    if (!p)
        return ocr_err_set(err, -ENOMEM, "cpu: no memory for threads");
    p->threads = threads;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->through, NULL);
    for (unsigned i = 0; i + 1 < threads; i++) {
        struct worker *w = &p->worker[i];

        *w = (struct worker){.pool = p, .number = i + 1};
        if (pthread_create(&w->thread, NULL, work, w)) {
            cpu_pool_free(p);
            return ocr_err_set(err, -EAGAIN,
                               "cpu: cannot start thread %u of %u", i + 1,
                               threads);
        }
        p->started++;
    }
    *out = p;
    return 0;
}

void cpu_pool_free(struct cpu_pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    next_round(p);
    for (unsigned i = 0; i < p->started; i++)
        pthread_join(p->worker[i].thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->through);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

unsigned cpu_pool_threads(const struct cpu_pool *p)
{
    return p->threads;
}

void cpu_pool_run(struct cpu_pool *p,
                  void (*job)(void *arg, unsigned thread, unsigned threads),
                  void *arg)
{
    if (p->threads == 1) {
        job(arg, 0, 1);
        return;
    }
    p->job = job;
    p->arg = arg;
    atomic_store(&p->busy, p->threads - 1);
    next_round(p);
    job(arg, 0, p->threads);
    if (spin(&p->busy, 0, false))
        return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_sleeps, true);
    while (atomic_load(&p->busy))
        pthread_cond_wait(&p->through, &p->lock);
    atomic_store(&p->caller_sleeps, false);
    pthread_mutex_unlock(&p->lock);
}

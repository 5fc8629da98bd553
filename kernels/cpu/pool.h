/* kernels/cpu/pool.h - the threads that share one step of the forward pass.
 *
 * The thread that calls run is number 0; the others wait: they spin for some
 * microseconds, since the next part of a step comes at once, then sleep.
 *
 * Layer:   kernels/cpu, private.
 * Threads: one caller at a time. */
#ifndef OCR_CPU_POOL_H
#define OCR_CPU_POOL_H
#include "engine/base/err.h"

struct cpu_pool; /* opaque */

/* `threads` in all, the caller among them; >= 1. */
int cpu_pool_new(struct cpu_pool **out, unsigned threads, struct ocr_err *err);

/* NULL is a no-op. */
void cpu_pool_free(struct cpu_pool *p);

unsigned cpu_pool_threads(const struct cpu_pool *p);

/* job(arg, thread, threads) on every thread; returns when all are through. */
void cpu_pool_run(struct cpu_pool *p,
                  void (*job)(void *arg, unsigned thread, unsigned threads),
                  void *arg);

#endif

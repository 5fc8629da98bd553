/* engine/queue.h - the queue in front of an engine: one job per content.
 *
 * A process (a mount, `ocrfs read`) has one queue. It starts an engine when
 * the first job comes (or with ocr_queue_connect), keeps at most as many pages
 * in it as the engine offered, sends interactive jobs before readahead before
 * background, first come first served within each (those that nobody waits
 * for leave one place of three or more free), and starts the engine
 * again when it dies: jobs that were in it go again, one at a time, and only
 * one that ran alone when the engine crashed is blamed (OCR_KIND_FAILED).
 *
 * Several devices ("cuda:0,1") are several engines, each fed from the same
 * jobs: the next one goes to the engine with the most room. Further engines are
 * started when there is work for them.
 *
 * An engine whose device hangs or is lost says so, or falls silent: it is
 * killed, and given 5 s to end before its device is given up. A fault of the
 * device itself is never a page's. Where texts came from a GPU, an engine that
 * reads on the processor instead is refused.
 *
 * Bytes: a job is joined with the bytes of its image. The queue keeps at most
 * OCR_QUEUE_BYTES of them for jobs that wait; above that it closes the
 * descriptor and asks for it again (`reload`) when the job's turn comes.
 *
 * Layer:   engine, client side. No file system, no cache.
 * Threads: all functions from any thread; none blocks but open and close.
 *          Callbacks come from the queue's one thread, with no lock held;
 *          they may call join, leave and supply, and must not block for long.
 * Errors:  a result carries a kind and a sentence. */
#ifndef OCR_QUEUE_H
#define OCR_QUEUE_H
#include "engine/base/err.h"
#include "engine/content.h"
#include "engine/protocol.h"

#include <stddef.h>
#include <stdint.h>

#define OCR_QUEUE_BYTES ((uint64_t)256 << 20)

struct ocr_queue;

struct ocr_engine_config {
    const char *recogniser; /* "tesseract", "null:200ms", ... */
    const char *device;     /* "auto", "cpu", "cuda:0", "cuda:0,1" */
    const char *start;      /* what to start one with, if that is narrower than
                               `device`; NULL: device. The queue's own */
    const char *model;      /* folder, "" if none */
    const char *settings;   /* lines name=value\n, part of the cache key */
    const char *program;    /* path of ocrfs-engine; NULL: found beside this
                               program, then in ../libexec/ocrfs */
    const char *runtime;    /* folder for sockets; NULL: the user's */
    unsigned idle_s;        /* engine_idle */
    unsigned gpu_idle_s;    /* gpu_idle: of one on a GPU, if that is less */
    unsigned jobs;          /* -o jobs=N, 0: what the engine offers */
};

/* What a job is told apart by: content and, with allow_other, the owner. */
struct ocr_job_key {
    struct ocr_digest digest;
    uint32_t owner; /* uid, or UINT32_MAX if shared by all */
};

struct ocr_result {
    enum ocr_kind kind; /* NONE: text */
    const char *text;   /* finished Markdown, borrowed during the callback */
    size_t len;
    unsigned flags; /* OCR_TEXT_* */
    unsigned pages;
    const char *sentence; /* why, if kind is set */
};

/* One who waits. Embedded in the caller's struct and the caller's, but not to
 * be touched between a join that returned 0 and done() or a leave() that
 * returned true. */
struct ocr_waiter {
    void (*done)(struct ocr_waiter *waiter, const struct ocr_result *result);
    /* Private: */
    struct ocr_waiter *next, *prev;
    struct ocr_job *job;
    enum ocr_priority priority;
};

/* Told about every job of the queue, also those nobody waits for any more. */
struct ocr_queue_hooks {
    void *arg;
    /* The engine answered: its fingerprint for these settings, its device and
     * version for people. May come again after a restart. */
    void (*ready)(void *arg, const char *fingerprint, const char *device,
                  const char *version);
    /* A job ended; runs before the waiters' done. `label` as joined. */
    void (*finished)(void *arg, const struct ocr_job_key *key,
                     const char *label, const struct ocr_result *result);
    /* A page of a document of many: the text for these pixels, malloc'd, if it
     * is known. `page` is not the key of any file. May be NULL, as the next. */
    char *(*page_known)(void *arg, const struct ocr_job_key *page, size_t *len);
    /* And what they say, to be known next time. */
    void (*page_read)(void *arg, const struct ocr_job_key *page,
                      const char *text, size_t len);
    /* The bytes of this job were dropped and are needed now: load them, not
     * here but in another thread, and call ocr_queue_supply. */
    void (*reload)(void *arg, const struct ocr_job_key *key, const char *label);
};

/* Starts the queue's thread; no engine yet. Strings of config are copied. */
int ocr_queue_open(struct ocr_queue **out,
                   const struct ocr_engine_config *config,
                   const struct ocr_queue_hooks *hooks, struct ocr_err *err);

/* Starts or finds the engine and waits for its HELLO, at most timeout_ms. */
int ocr_queue_connect(struct ocr_queue *q, int timeout_ms, struct ocr_err *err);

/* The same, until it can read: -ETIMEDOUT if it is still loading then, else
 * why it cannot (a language or a model is missing). */
int ocr_queue_wait_ready(struct ocr_queue *q, int timeout_ms,
                         struct ocr_err *err);

/* Takes the secret and waits for one content. The fd of *content becomes the
 * queue's on success (also if the job exists already). `label` (copied) is
 * for logs and status: the path. waiter may be NULL: nobody waits (readahead).
 * -ESHUTDOWN after stop. */
int ocr_queue_join(struct ocr_queue *q, const struct ocr_job_key *key,
                   struct ocr_content *content,
                   const uint8_t secret[OCR_SECRET_BYTES],
                   enum ocr_priority priority, const char *label,
                   struct ocr_waiter *waiter, struct ocr_err *err);

/* Joins the job of `key` if there is one: true. */
bool ocr_queue_join_existing(struct ocr_queue *q, const struct ocr_job_key *key,
                             enum ocr_priority priority,
                             struct ocr_waiter *waiter);

/* Answers a reload. content NULL: failed, with *why; other bytes than the
 * job's (digest differs) end the job with OCR_KIND_CHANGING. */
void ocr_queue_supply(struct ocr_queue *q, const struct ocr_job_key *key,
                      struct ocr_content *content, const struct ocr_err *why);

/* The waiter wants it sooner; nothing if it has been answered. */
void ocr_queue_raise(struct ocr_queue *q, struct ocr_waiter *waiter,
                     enum ocr_priority priority);

/* The waiter does not want it any more. True: it left and done() will not be
 * called; the job is dropped if nobody else waits and it has not started.
 * False: done() has been or is being called. */
bool ocr_queue_leave(struct ocr_queue *q, struct ocr_waiter *waiter);

/* While paused no job goes to the engine and none is started for one; those
 * that are in it end as always. */
void ocr_queue_pause(struct ocr_queue *q, bool paused);

/* Ends all jobs with OCR_KIND_STOPPING; later joins fail. */
void ocr_queue_stop(struct ocr_queue *q);

/* After stop: joins the thread, closes the connection. NULL is a no-op. */
void ocr_queue_close(struct ocr_queue *q);

enum ocr_engine_state {
    OCR_ENGINE_NONE,     /* not needed yet, or ended when idle */
    OCR_ENGINE_STARTING, /* waits for HELLO */
    OCR_ENGINE_LOADING,  /* HELLO came, READY did not */
    OCR_ENGINE_READY,
    OCR_ENGINE_BACKOFF, /* died or did not start; next try later */
};

enum {
    OCR_ENGINES_MAX = 16 /* of one queue */
};

/* One of several engines. */
struct ocr_engine_stats {
    enum ocr_engine_state state;
    int64_t pid;
    unsigned capacity, running;
    char device[64];
    char trouble[512];
};

struct ocr_queue_stats {
    /* Of all engines: the state of the best, the pid of the first that runs,
     * capacities added, devices with commas, the first trouble. */
    enum ocr_engine_state state;
    int64_t pid; /* 0: none runs */
    unsigned capacity;
    unsigned engines; /* 1, or as many as `device` names */
    struct ocr_engine_stats engine[OCR_ENGINES_MAX];
    unsigned waiting[3]; /* jobs not in the engine, by priority */
    unsigned running;    /* jobs in the engine */
    unsigned waiters;
    uint64_t bytes_kept;
    uint64_t done, failed, cancelled; /* jobs since open */
    uint64_t engine_starts, engine_deaths;
    char device[256], version[128], fingerprint[256];
    char details[256]; /* what the recogniser works with, for people */
    char trouble[512]; /* why there is no engine, "" if there is */
    bool refused;      /* the engine runs, and says that it cannot read with
                          this recogniser, model and settings */
};

void ocr_queue_stats(struct ocr_queue *q, struct ocr_queue_stats *out);

/* A job in the engine. */
struct ocr_queue_job {
    const char *label;
    int64_t age_ms;
    enum ocr_priority priority;
    unsigned pages, pages_done; /* 0: not counted yet */
};

/* Calls `visit` for every job in the engine, with its age; under the lock, so
 * visit only copies. */
void ocr_queue_visit(struct ocr_queue *q,
                     void (*visit)(void *arg,
                                   const struct ocr_queue_job *running),
                     void *arg);

#endif

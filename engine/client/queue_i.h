/* engine/client/queue_i.h - the queue's insides, shared by its two files:
 * queue.c (jobs, lists, the interface) and link.c (the thread, the engine's
 * life, the messages). Private to engine/client/. */
#ifndef OCR_QUEUE_I_H
#define OCR_QUEUE_I_H
#include "engine/queue.h"

#include <pthread.h>

enum {
    JOB_BUCKETS = 1024,
    PRIORITIES = 3
};

enum job_state {
    JOB_WAITING,   /* in a waiting list */
    JOB_RELOADING, /* in a waiting list; its bytes are needed */
    JOB_SENT,      /* in the engine, in the running list */
    JOB_ENDING,    /* its result is being handed out, or it is in `ended` */
};

struct ocr_job {
    struct ocr_job_key key;
    char *label;
    enum job_state state;
    enum ocr_priority priority; /* the highest asked for */
    bool hashed;                /* can be found and joined */
    bool unattended;            /* goes on without waiters (readahead) */
    struct ocr_waiter *waiters;
    struct ocr_content content; /* fd -1: its bytes are not here */
    uint8_t secret[OCR_SECRET_BYTES];
    bool asked;        /* its reload was asked for */
    uint64_t document; /* its number on this connection, 0: not opened */
    bool started;      /* the engine works on it */
    bool cancel_sent;
    bool raised;    /* its priority changed after it was sent */
    bool suspect;   /* was being read when the engine died */
    unsigned kills; /* of the engine while this job ran alone in it */
    unsigned pages; /* 0: not told */
    int64_t sent_ms;
    struct ocr_err end;          /* how it ends, for jobs in `ended` */
    struct ocr_job *chain;       /* same bucket */
    struct ocr_job *next, *prev; /* same list */
};

struct job_list {
    struct ocr_job *first, *last;
    unsigned count;
};

struct ocr_queue {
    struct ocr_engine_config config; /* strings owned, immutable */
    struct ocr_queue_hooks hooks;    /* immutable */
    pthread_t thread;
    int wake; /* eventfd */

    pthread_mutex_t lock;     /* guards all below; never held across a callback,
                                 a connect or a poll */
    pthread_cond_t connected; /* the state changed */
    struct ocr_job *buckets[JOB_BUCKETS];
    struct job_list waiting[PRIORITIES];
    struct job_list running;
    struct job_list ended; /* elsewhere: the thread hands out their ends */
    unsigned suspects;     /* jobs with suspect set */
    unsigned reloading;    /* jobs in JOB_RELOADING */
    unsigned kept;         /* waiting jobs with a descriptor */
    bool stopping;
    bool paused;
    bool wanted;                  /* somebody is in ocr_queue_connect */
    struct ocr_queue_stats stats; /* its counts of lists are filled on asking */

    /* The thread's own: */
    int sock;  /* -1: none */
    bool full; /* the socket takes no more for now */
    uint64_t next_document;
    int64_t hello_by_ms, retry_at_ms;
    unsigned failures; /* starts without READY, in a row */
    unsigned deaths;   /* since the last text */
    int crash_signal;  /* from CRASHED; 0: none came */
    unsigned crash_jobs;
    struct ocr_message *message; /* receive buffer */
};

/* All of these: called and left with the lock held. */

/* Puts a job that is in no list in front of, or behind, those that wait. */
void queue_wait(struct ocr_queue *q, struct ocr_job *job, bool first);

/* Takes a waiting job out of its list. */
void queue_unwait(struct ocr_queue *q, struct ocr_job *job);

/* Into and out of the list of jobs in the engine. */
void queue_run(struct ocr_queue *q, struct ocr_job *job);
void queue_unrun(struct ocr_queue *q, struct ocr_job *job);

/* Hands *result to everybody who waits for `job`, which is in no list, and
 * frees it; the lock is dropped meanwhile. The queue's thread only. */
void queue_end(struct ocr_queue *q, struct ocr_job *job,
               const struct ocr_result *result);
void queue_end_error(struct ocr_queue *q, struct ocr_job *job,
                     enum ocr_kind kind, const char *sentence);

/* Ends every job that waits. */
void queue_fail_waiting(struct ocr_queue *q, enum ocr_kind kind,
                        const char *sentence);

/* Ends the jobs in `ended`. */
void queue_report_ended(struct ocr_queue *q);

/* Takes what the engine said, and its death (link.c). */
void queue_receive(struct ocr_queue *q);

/* The queue's thread (link.c); arg is the queue. */
void *queue_thread(void *arg);

#endif

/* engine/client/queue_i.h - the queue's insides, shared by its files: queue.c
 * (jobs, lists, the interface), link.c (the thread, the messages) and life.c
 * (how engines start and end). Private to engine/client/. */
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

enum job_page_state {
    PAGE_TODO,
    PAGE_SENT, /* in the engine */
    PAGE_GO,   /* there, and to be told that its pixels are not known */
    PAGE_DONE,
};

struct job_page {
    enum job_page_state state;
    bool reading;    /* with the recogniser */
    bool risky;      /* was in an engine that died */
    bool has_digest; /* of its pixels */
    struct ocr_digest digest;
    char *text; /* of PAGE_DONE; NULL: none */
    size_t len;
};

/* Of a document of more than one page. Texts are here until all are. */
struct job_pages {
    unsigned count, done;
    unsigned first;   /* all before it are done */
    unsigned reading; /* pages with the recogniser */
    unsigned go;      /* pages in PAGE_GO */
    unsigned flags;   /* OCR_TEXT_* of any */
    uint64_t bytes;   /* of texts */
    struct job_page page[];
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
    bool asked;            /* its reload was asked for */
    uint64_t document;     /* its number on the connection, 0: not opened */
    struct engine *engine; /* whose connection, while document is set */
    bool started;          /* the engine works on it */
    bool reading;          /* with the recogniser */
    bool named;            /* by the engine, when it lost its device */
    bool cancel_sent;
    bool raised;            /* its priority changed after it was sent */
    bool suspect;           /* was being read when the engine died */
    unsigned kills;         /* of the engine while this job ran alone in it */
    unsigned pages;         /* 0: not told */
    unsigned out;           /* of them in the engine */
    struct job_pages *many; /* NULL: one page, or not told */
    int64_t sent_ms;
    struct ocr_err end;          /* how it ends, for jobs in `ended` */
    struct ocr_job *chain;       /* same bucket */
    struct ocr_job *next, *prev; /* same list */
};

struct job_list {
    struct ocr_job *first, *last;
    unsigned count;
};

struct forgotten {
    struct forgotten *next;
    uint64_t document;
};

/* An engine, and what this queue has in it. */
struct engine {
    struct ocr_engine_config config; /* the queue's, with a device of its own */
    char device_name[64];

    /* Guarded by the queue's lock: */
    struct ocr_engine_stats stats; /* running is filled on asking */
    struct job_list running;
    unsigned out; /* pages of these jobs that are there */
    char version[128], fingerprint[256], details[256];
    bool refused;
    bool hopeless; /* nothing is to be had from it for now */

    /* The queue thread's own: */
    int sock;    /* -1: none */
    int pidfd;   /* of the process, to kill it; -1: none */
    bool killed; /* by us: it must end */
    bool dying;  /* its connection ended, the process not yet */
    bool full;   /* the socket takes no more for now */
    bool on_gpu; /* texts came from a GPU, and must go on to */
    uint64_t next_document;
    struct forgotten *forgotten; /* documents that it is to forget */
    int64_t hello_by_ms, retry_at_ms, end_by_ms;
    unsigned failures; /* starts without READY, in a row */
    /* Since when jobs wait for a server that is not there; 0: none do. */
    int64_t away_since_ms;
    unsigned deaths;  /* since the last text */
    int crash_signal; /* from CRASHED; 0: none came */
    unsigned crash_jobs;
    bool lost, device_fault; /* from LOST, or because it fell silent */
    char loss[256];
    uint64_t finished; /* from BEAT */
    unsigned limit_ms; /* 0: it sends none */
    int64_t alive_ms;  /* when it last got on, or had nothing to do */
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
    struct job_list ended; /* elsewhere: the thread hands out their ends */
    unsigned suspects;     /* jobs with suspect set */
    unsigned reloading;    /* jobs in JOB_RELOADING */
    unsigned kept;         /* waiting jobs with a descriptor */
    bool stopping;
    bool paused;
    bool wanted;                  /* somebody is in ocr_queue_connect */
    bool page_turn;               /* pages of documents and new jobs in turn */
    struct ocr_queue_stats stats; /* what is of engines is filled on asking */
    struct engine engine[OCR_ENGINES_MAX]; /* see there */
    unsigned engines;                      /* immutable */

    struct ocr_message *message; /* receive buffer, the thread's own */
};

/* All of these: called and left with the lock held. */

/* Puts a job that is in no list in front of, or behind, those that wait. */
void queue_wait(struct ocr_queue *q, struct ocr_job *job, bool first);

/* Takes a waiting job out of its list. */
void queue_unwait(struct ocr_queue *q, struct ocr_job *job);

/* Into and out of the list of jobs in the engine. */
void queue_run(struct engine *e, struct ocr_job *job);
void queue_unrun(struct engine *e, struct ocr_job *job);

/* Jobs in all engines. */
unsigned queue_running(const struct ocr_queue *q);

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

/* Takes what an engine said, and its death (link.c). */
void queue_receive(struct ocr_queue *q, struct engine *e);

/* life.c, all with the lock held, by the queue's thread: */

void engine_set_state(struct ocr_queue *q, struct engine *e,
                      enum ocr_engine_state state);

/* Finds or starts the engine; what comes of it shows in its state. */
void engine_start(struct ocr_queue *q, struct engine *e);

/* It could not be had. `hopeless`: trying again at once is of no use. */
void engine_start_failed(struct ocr_queue *q, struct engine *e, const char *why,
                         bool hopeless);

/* It could not be had now, but what it lacks may come by itself: jobs wait for
 * that, for some time. */
void engine_away(struct ocr_queue *q, struct engine *e, const char *why);

/* The connection ended. */
void engine_died(struct ocr_queue *q, struct engine *e);

/* Its device is lost, by its own word or because it was silent for too long:
 * the process is killed, its jobs go elsewhere. */
void engine_lost(struct ocr_queue *q, struct engine *e, bool device_fault,
                 const char *why);

/* Lets go of it. */
void engine_stop(struct ocr_queue *q, struct engine *e);

/* Looks after time-outs and starts it if it is needed. */
void engine_manage(struct ocr_queue *q, struct engine *e);

/* When engine_manage wants to be called again; -1: no matter when. */
int64_t engine_alarm_ms(const struct ocr_queue *q, const struct engine *e);

/* True if jobs wait that may be sent, or somebody waits for an engine. */
bool queue_has_work(const struct ocr_queue *q);

/* pages.c, all with the lock held: */

/* The document has `count` pages, of which the first is in the engine. */
int pages_begin(struct ocr_job *job, unsigned count);
void pages_free(struct job_pages *many); /* NULL is a no-op */

/* The page to send next; their count if there is none. 0 if nobody counted. */
unsigned pages_next(const struct ocr_job *job);

/* Page `index` left the engine: with its text, which becomes the job's, or
 * to be sent again. */
void pages_done(struct ocr_queue *q, struct engine *e, struct ocr_job *job,
                unsigned index, char *text, size_t len);
void pages_again(struct engine *e, struct ocr_job *job, unsigned index);

/* The engine is gone: what was in it is to be sent again. */
void pages_come_back(struct ocr_job *job);

bool pages_are_done(const struct ocr_job *job);

/* The text of all, once; malloc'd or NULL. */
char *pages_text(struct ocr_job *job, size_t *len);

/* The queue's thread (link.c); arg is the queue. */
void *queue_thread(void *arg);

#endif

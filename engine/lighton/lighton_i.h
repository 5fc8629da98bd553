/* engine/lighton/lighton_i.h - the recogniser `lighton` from inside: a
 * LightOnOCR model driven page by page through a backend.
 *
 *   submit -> preparing -> WAITING -> ENCODING -> PREFILLING -> DECODING
 *             (threads)   (slot, blocks)                  -> result -> next
 *
 * Ahead: it holds more pages than slots; threads bring them to the size that
 * the model reads, urgent ones first, so that none is waited for when a slot
 * comes free.
 *
 * Admission: a page gets a slot when its worst case (prompt and all tokens it
 * may write) fits in free KV blocks, and fills its block table then: nothing
 * is taken away from a page that runs. Where there are slots enough, one, and
 * the blocks of the largest page, are kept for a page that somebody waits for.
 *
 * The way of a page up to its first token is a lane for one: the next page's
 * vision goes in behind the last piece of this one's prompt. So an urgent page
 * waits for one other at most, and no first token waits for the vision of
 * others. Decoding goes on beside it.
 *
 * Threads: submit, cancel, urge and next hand pages over under `lock`; what
 * the driver owns, driver.c alone touches. Private to engine/lighton/. */
#ifndef OCR_LIGHTON_I_H
#define OCR_LIGHTON_I_H
#include "engine/finish.h"
#include "engine/model/model.h"
#include "engine/recogniser.h"
#include "kernels/backend.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    SLOTS_MAX = 64,
    AHEAD_MAX = 8, /* pages held beside those with a slot */
    HELD_MAX = SLOTS_MAX + AHEAD_MAX,
    PREPARERS_MAX = 8,
    FLIGHTS_MAX = 2,
    PREFILL_CHUNK = 1024, /* tokens; borders count from the page's own first */
    TOKENS_DEFAULT = 4096,
    KEEP_FROM = 8, /* slots, of which one is kept for urgent pages */
    /* A device that finishes nothing for so long, or for 20 times of what its
     * longest piece of work took, is lost. */
    SILENT_MS = 5000,
};

enum page_state {
    PAGE_WAITING, /* for a slot, or before that for its pixels */
    PAGE_ENCODING,
    PAGE_PREFILLING,
    PAGE_DECODING,
    PAGE_ENDING, /* its result is decided; the backend still has it */
};

struct lighton_page {
    uint64_t id;
    struct ocr_page page; /* pixels and settings, borrowed until the result */
    uint64_t turn;        /* order among equals: smaller first */
    atomic_bool cancel;   /* set by cancel(), read by the driver */
    atomic_bool urgent;   /* set by submit() and urge() */
    enum page_state state;

    uint8_t *rgb; /* at the size the model reads, until it is encoded */
    uint32_t width, height;
    struct ocr_ids prompt;
    uint32_t max_tokens;
    uint32_t forced_length; /* go on to so many tokens; 0: no */
    bool lowered;           /* max_tokens is less than what was asked for */
    struct ocr_sampler sampler;

    unsigned slot;
    uint32_t *blocks;
    uint32_t block_count;
    uint32_t prefilled; /* tokens of the prompt that were submitted */

    struct ocr_ids ids; /* that the model wrote */
    struct ocr_repeat *repeat;
    bool cancelled; /* the backend was told */

    struct ocr_recognised result;
    struct lighton_page *next;
};

struct page_list {
    struct lighton_page *first, *last;
};

/* A decode that is in the backend. */
struct flight {
    uint64_t ticket; /* 0: none */
    uint64_t slots;  /* a bit for each that takes part */
};

/* How long a kind of work has been silent. Time is counted in the pieces that
 * the driver really waited, so that a machine that slept is not taken for a
 * device that hangs. */
struct watch {
    int64_t silent_ms, longest_ms;
};

void page_append(struct page_list *list, struct lighton_page *p);
void page_remove(struct page_list *list, struct lighton_page *p);
struct lighton_page *page_take(struct page_list *list); /* NULL: empty */

/* Whose turn it is: urgent pages before others, then by turn. NULL: empty. */
struct lighton_page *page_best(const struct page_list *list);

struct ocr_recogniser {
    struct ocr_recogniser_config config; /* its strings are not kept */
    struct ocr_model_folder *folder;
    const struct ocr_backend_ops *ops;
    struct ocr_backend *backend;
    struct ocr_backend_plan plan;
    enum ocr_precision precision;
    uint32_t multiple; /* of a page's sides, in pixels */
    char device[32];
    unsigned capacity; /* pages held */

    pthread_t driver, preparer[PREPARERS_MAX];
    bool driving;
    unsigned preparers;
    pthread_mutex_t lock;    /* guards what follows, up to `stop` */
    pthread_cond_t arrived;  /* for a preparer: incoming */
    pthread_cond_t prepared; /* for the driver: ready */
    pthread_cond_t done;     /* for next(): finished */
    struct page_list incoming, ready, finished;
    uint64_t seen[HELD_MAX]; /* pages whose pixels are needed no more, for
                                next(); at most one entry for each page held */
    unsigned seen_count;
    struct lighton_page *pages[HELD_MAX]; /* between submit and next */
    unsigned held;
    uint64_t turns;
    bool woken;
    bool stop;

    /* The driver's own: */
    struct page_list waiting;
    struct lighton_page *slot[SLOTS_MAX];
    unsigned slots_used;
    uint32_t *free_blocks; /* a stack */
    uint32_t free_count;
    bool keeps;                /* a slot and blocks for urgent pages */
    struct lighton_page *lane; /* on its way to the first token */
    struct flight flight[FLIGHTS_MAX];
    unsigned flights, steps; /* decodes at once, and steps of each */
    uint64_t ticket;
    struct watch pages_watch, steps_watch;
    int64_t looked_ms;
    bool lost;

    atomic_uint_fast64_t finished_work; /* for beat() */
    atomic_bool works;                  /* something is in the backend */
    atomic_uint limit_ms;
};

/* page.c: what a page needs before, and what becomes of it after. */

/* Size, pixels, prompt and sampler from the image and the settings. */
int page_prepare(struct ocr_recogniser *r, struct lighton_page *p,
                 struct ocr_err *err);

/* Takes new ids; true if the output only repeats itself by now. */
bool page_add_ids(struct lighton_page *p, const uint32_t *ids, uint32_t count);

/* The text of all ids that are worth keeping into the result. */
void page_finish(struct ocr_recogniser *r, struct lighton_page *p,
                 unsigned flags);
void page_fail(struct lighton_page *p, enum ocr_kind kind,
               const char *sentence);
void page_give_up(struct lighton_page *p); /* nobody wants it any more */
void page_free(struct lighton_page *p);

/* lighton.c: what is asked of a backend by the words behind "lighton:". */
struct lighton_arguments {
    enum ocr_precision precision;
    bool any_precision;             /* bf16, or what the GPU has instead */
    uint32_t multiple;              /* 0: patch * merge */
    unsigned slots, threads, steps; /* 0: the backend's */
    uint64_t memory;                /* bytes of a GPU; 0: what the slots need */
    uint32_t max_tokens;
};

int lighton_arguments(struct lighton_arguments *a, const char *text,
                      struct ocr_err *err);
/* Of the model that is open: how its pages are cut. */
void lighton_take_shape(struct ocr_recogniser *r,
                        const struct lighton_arguments *a);
void lighton_describe_config(struct ocr_backend_config *config,
                             const struct ocr_recogniser *r,
                             const struct lighton_arguments *a);

/* plans.c */
void lighton_plans(const struct ocr_recogniser_config *config, bool sizes,
                   struct ocr_buf *out);

/* prepare.c: the threads that prepare pages. */
int prepare_start(struct ocr_recogniser *r, unsigned threads,
                  struct ocr_err *err);
void prepare_join(struct ocr_recogniser *r); /* after stop */

/* driver.c */
void *driver_run(void *arg); /* the recogniser */

/* The page's result is set: next() may have it. Any thread. */
void page_deliver(struct ocr_recogniser *r, struct lighton_page *p);

/* Something came for the driver, which waits in the backend or for pages. Any
 * thread, without the lock. */
void driver_wake(struct ocr_recogniser *r);

#endif

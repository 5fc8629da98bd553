/* engine/lighton/lighton_i.h - the recogniser `lighton` from inside: a
 * LightOnOCR model driven page by page through a backend.
 *
 *   submit -> WAITING -> (slot, blocks) -> ENCODING -> PREFILLING -> DECODING
 *                                                        -> result -> next
 *
 * Admission: a page gets a slot when its worst case (prompt and all tokens it
 * may write) fits in free KV blocks, and fills its block table then: nothing
 * is taken away from a page that runs. Vision of the next page is submitted
 * while others decode.
 *
 * Threads: submit, cancel and next hand pages over under `lock`; everything
 * else belongs to the driver thread (driver.c). Private to engine/lighton/. */
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
    FLIGHTS_MAX = 2,
    PREFILL_CHUNK = 1024, /* tokens; borders count from the page's own first */
    TOKENS_DEFAULT = 4096,
};

enum page_state {
    PAGE_WAITING,
    PAGE_ENCODING,
    PAGE_PREFILLING,
    PAGE_DECODING,
    PAGE_ENDING, /* its result is decided; the backend still has it */
};

struct lighton_page {
    uint64_t id;
    struct ocr_page page; /* pixels and settings, borrowed until the result */
    atomic_bool cancel;   /* set by cancel(), read by the driver */
    enum page_state state;

    uint8_t *rgb; /* at the size the model reads, until it is encoded */
    uint32_t width, height;
    struct ocr_ids prompt;
    uint32_t max_tokens;
    bool lowered; /* max_tokens is less than what was asked for */
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

void page_append(struct page_list *list, struct lighton_page *p);
struct lighton_page *page_take(struct page_list *list); /* NULL: empty */

struct ocr_recogniser {
    struct ocr_model_folder *folder;
    const struct ocr_backend_ops *ops;
    struct ocr_backend *backend;
    struct ocr_backend_plan plan;
    enum ocr_precision precision;
    uint32_t multiple; /* of a page's sides, in pixels */
    char device[32];

    pthread_t driver;
    pthread_mutex_t lock; /* guards the five below */
    pthread_cond_t arrived, done;
    struct page_list incoming, finished;
    struct lighton_page *pages[SLOTS_MAX]; /* between submit and next */
    unsigned held;
    bool woken;

    /* The driver's own: */
    struct page_list waiting;
    struct lighton_page *slot[SLOTS_MAX];
    uint32_t *free_blocks; /* a stack */
    uint32_t free_count;
    bool encoding; /* a vision pass is in the backend */
    struct flight flight[FLIGHTS_MAX];
    unsigned flights, steps; /* decodes at once, and steps of each */
    uint64_t ticket;
    atomic_bool stop;
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
void page_free(struct lighton_page *p);

/* driver.c */
void *driver_run(void *arg); /* the recogniser */

#endif

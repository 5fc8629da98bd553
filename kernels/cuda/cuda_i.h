/* kernels/cuda/cuda_i.h - what the parts of the CUDA backend know of each
 * other.
 *
 * open.c finds the card, lays out memory and captures graphs; weights.c brings
 * the weights there; page.c encodes and prefills, a page at a time; step.c
 * decodes; backend.c is the table of functions, slots and events.
 *
 * Threads: the caller's only queues work. `pages` runs encodes and prefills on
 * a stream of low priority and waits for each. `steps` puts decode steps on a
 * stream of high priority, up to FLIGHTS submits ahead; `finisher` waits for
 * them in order and turns what they wrote into events. A decode begins when
 * all that was submitted before for its slots is through.
 *
 * Layer:   kernels/cuda, private. */
#ifndef OCR_CUDA_I_H
#define OCR_CUDA_I_H
#include "kernels/backend.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/blas.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    CUDA_FLIGHTS = 3,
    CUDA_RING = 64, /* ids a slot is ahead of the host: more than in flight */
    CUDA_AHEAD = 3, /* layers of a page on the way when it may be cancelled */
    CUDA_GRAPHS = CUDA_MAX_TILES + 1,
    CUDA_THREADS = 3,
    CUDA_PAGE_EVENTS = 2, /* at most of an encode or a prefill */
};

/* A layer of vision; text's is struct cuda_text_layer. */
struct cuda_page_layer {
    const float *attention_norm, *ffn_norm;
    const uint16_t *qkv, *o, *gate_up, *down;
};

struct cuda_weights {
    struct cuda_page_layer *vision;
    struct cuda_text_layer *text;
    const float *ln_pre, *projector_norm, *text_norm;
    const uint16_t *patch_conv, *merging, *linear_1, *linear_2;
    const uint16_t *embedding, *head;
};

struct cuda_page_slot {
    bool open;
    struct ocr_slot_config config;
    uint32_t image_tokens, submitted;
    uint32_t *table, *pushed; /* the engine's, and what the device has */
    uint32_t limit;           /* ids at most, by whatever bound */
    atomic_bool cancelled;
    /* Guarded by lock: */
    unsigned pending; /* encodes and prefills that are not through */
    bool running;     /* takes part in decodes */
    /* Of whoever works on the page: */
    bool encoded, failed;
    uint32_t image_used;
    uint32_t launched; /* steps put on the stream since the first id */
    uint32_t read;     /* entries of its ring that became events */
};

struct cuda_page_work {
    bool encode; /* else prefill */
    uint64_t ticket, page;
    unsigned slot;
    const uint8_t *rgb;
    uint32_t width, height;
    uint32_t from, count;
};

struct cuda_step_work {
    uint64_t ticket;
    unsigned steps, count;
    unsigned *slots;
};

/* Work in order: the first `launched` are on the stream, the rest waits. */
struct cuda_step_queue {
    struct cuda_step_work *work; /* ring */
    unsigned size, first, launched, count;
};

/* Of work on the stream. */
struct cuda_flight {
    cudaEvent_t done;
    uint32_t *stage; /* pinned: rows, then pieces of block tables */
};

struct ocr_backend {
    struct ocr_backend_config config;
    struct ocr_backend_plan plan;
    struct cuda_plan memory;
    struct ocr_taps taps;

    /* The model. */
    enum ocr_half half;
    struct ocr_vision vision; /* tensors are gone */
    struct ocr_text text;
    uint32_t merge, image_token;
    float projector_eps;
    struct cuda_weights weights;

    /* The card. */
    int device;
    char *arena;
    cudaStream_t page_stream, step_stream;
    struct cuda_products *products;
    struct cuda_decode step, first; /* of many rows; the first id of a page */
    cudaGraphExec_t graph[CUDA_GRAPHS];
    cudaEvent_t layer_done[CUDA_AHEAD], page_done;
    uint32_t *cancel;     /* [slots], mapped: the device looks there */
    struct cuda_out *out; /* [slots][CUDA_RING], mapped: the device writes */
    char *stage;          /* pinned: what pages send there */
    uint32_t rows[CUDA_MAX_TILES * CUDA_TILE_ROWS]; /* that the device has */

    struct cuda_page_slot *slot; /* [plan.slots] */
    uint32_t *tables;            /* of all slots, twice */

    pthread_t thread[CUDA_THREADS]; /* pages, steps, finisher */
    unsigned threads;
    pthread_mutex_t lock, tap_lock;
    pthread_cond_t wanted, launched, happened;
    bool stop, woken, lost;
    struct cuda_page_work *page_work; /* ring */
    unsigned page_size, page_first, page_count;
    struct cuda_step_queue queue;
    struct cuda_flight flight[CUDA_FLIGHTS]; /* taken in turn */
    struct ocr_event *event;                 /* ring */
    unsigned event_size, event_first, event_count;
    unsigned event_promised;
};

enum {
    CUDA_STAGE_PIXELS = 8 << 20, /* bytes of `stage` for pixels and weights */
    CUDA_STAGE_HALVES = 2,
};

static inline void *cuda_at(const struct ocr_backend *b,
                            enum cuda_region region)
{
    return b->arena + b->memory.offset[region];
}

/* ---- open.c ---- */
int cuda_plan(const struct ocr_backend_config *config,
              const struct ocr_model *model, uint64_t bytes,
              struct ocr_backend_plan *plan, struct ocr_err *err);
int cuda_probe(const char *device, char *out, size_t size, struct ocr_err *err);
/* All but queues and threads. */
int cuda_open(struct ocr_backend *b, const struct ocr_model *model,
              struct ocr_err *err);
void cuda_release(struct ocr_backend *b);
/* Again, after `hashes` changed. */
int cuda_capture(struct ocr_backend *b, struct ocr_err *err);

/* ---- weights.c ---- */
int cuda_weights_send(struct ocr_backend *b, const struct ocr_model *model,
                      struct ocr_err *err);

/* ---- page.c ----
 * One page on page_stream: ops in a row, of which those after the first that
 * fails are left out. */
struct cuda_run {
    struct ocr_backend *b;
    struct cuda_page_slot *slot; /* NULL: to warm up */
    int code;                    /* CUDA's; -1: err tells */
    bool poison; /* NaN into the residual stream of the last row */
    bool cancelled;
    struct ocr_err err;
};

#define CUDA_RUN(r, call)                                                      \
    do {                                                                       \
        if (!(r)->code)                                                        \
            (r)->code = (int)(call);                                           \
    } while (0)

/* Pixels at b's CUDA_RGB -> features [tokens][hidden]. */
void cuda_encode(struct cuda_run *r, uint32_t lines, uint32_t columns,
                 float *features);
/* Rows at b's CUDA_SOURCE -> x, and that through all layers: tokens first ..
 * first + rows - 1 of the page with this table. */
void cuda_prefill(struct cuda_run *r, const uint32_t *table, uint32_t first,
                  uint32_t rows, const float *features);
void *cuda_pages_run(void *backend);

/* ---- step.c ---- */
/* Numbers of 32 bits in the stage of a flight. */
size_t cuda_flight_words(const struct ocr_backend *b);
void *cuda_steps_run(void *backend);
void *cuda_finisher_run(void *backend);

/* ---- backend.c ---- */
void cuda_emit(struct ocr_backend *b, const struct ocr_event *e);
struct ocr_event cuda_event(const struct ocr_backend *b, uint64_t ticket,
                            const struct cuda_page_slot *s,
                            enum ocr_event_type type);
/* The page is over: event FAILED. */
__attribute__((format(printf, 4, 5))) void cuda_fail(struct ocr_backend *b,
                                                     uint64_t ticket,
                                                     struct cuda_page_slot *s,
                                                     const char *format, ...);
/* The device is gone: event LOST, once. */
void cuda_lose(struct ocr_backend *b, uint64_t ticket, int code,
               const char *sentence);
bool cuda_stopping(struct ocr_backend *b);
/* HANG and LOST; true: the device is lost now. */
bool cuda_misbehave(struct ocr_backend *b, uint64_t ticket,
                    struct cuda_page_slot *s);
/* Entries of the block table for tokens from .. to - 1, as far as the device
 * has others, to the device; *stage: pinned room for them, moved on. False: one
 * is no block. */
bool cuda_push_table(struct ocr_backend *b, struct cuda_page_slot *s,
                     uint32_t from, uint32_t to, cudaStream_t stream,
                     uint32_t **stage, int *code);
/* To who listens: a row of raw logits, and rows of the residual stream, as they
 * are when `stream` is through. */
void cuda_tap_logits(struct ocr_backend *b, const struct cuda_page_slot *s,
                     uint32_t position, const float *logits,
                     cudaStream_t stream);
void cuda_tap_layer(struct ocr_backend *b, const struct cuda_page_slot *s,
                    unsigned layer, const float *x, uint32_t first,
                    uint32_t rows, uint32_t hidden, cudaStream_t stream);
/* Numbers of the device after `stream` is through, malloc'd; NULL: that
 * failed. */
float *cuda_copy_back(const float *x, size_t count, cudaStream_t stream);
unsigned cuda_slot_number(const struct ocr_backend *b,
                          const struct cuda_page_slot *s);

#endif

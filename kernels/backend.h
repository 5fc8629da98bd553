/* kernels/backend.h - the forward pass, behind one table of functions.
 *
 * Two implementations with one meaning: kernels/cpu (portable C, the
 * reference) and kernels/cuda (a plugin that is loaded when there is a GPU).
 * They are equal at the level of steps: load weights, encode a page, prefill,
 * decode a batch by one token.
 *
 * A page's life, as the engine drives it:
 *
 *   slot_open       prompt, sampler, limits          slot = a row of the batch
 *   submit_encode   RGB8 -> features of the page     event ENCODED
 *   submit_prefill  prompt in chunks                 event PREFILLED
 *   submit_decode   some slots, `steps` tokens each  events TOKENS, DONE, STEP
 *   slot_close
 *
 * Who owns what: the backend owns the state of a slot (position, last id,
 * sampler, ids seen, stop ids); the engine owns the KV blocks. It writes the
 * slot's block table one step further than it has submitted, and gives a block
 * to another slot only after the event of the last step that can touch it.
 *
 * Independence: the bits of a page depend on the page alone: not on the other
 * slots, their order, the number of threads, or a restart. NUMERICS version 1:
 * residual stream, norms, RoPE, softmax and logits in fp32; inputs of matrix
 * products, K, V and P in bf16, rounded once each, at the same points in both
 * implementations. The sum that divides P V is that of the rounded P, so that
 * the weights of an average add up to one.
 *
 * Layer:   kernels. The plugin links nothing of the engine: it logs by
 *          callback.
 * Threads: all calls but wake from one thread, the engine's backend thread;
 *          each but open, poll and close returns at once, work goes on
 *          elsewhere, in the order of the submits. Callbacks come from any
 *          thread, one at a time.
 * Errors:  0 or negative errno and a sentence; what fails later is an event,
 *          OCR_EVENT_FAILED for that page alone, or OCR_EVENT_LOST if the
 *          device is gone for good. */
#ifndef OCR_BACKEND_H
#define OCR_BACKEND_H
#include "engine/base/err.h"
#include "kernels/model.h"

#include <stddef.h>
#include <stdint.h>

enum {
    OCR_BACKEND_ABI = 3,
    OCR_NUMERICS_VERSION = 1, /* in the cache key: raise it when bits change */
    OCR_BLOCK_TOKENS = 16,    /* of a KV block */
    OCR_SPLIT_TOKENS = 256,   /* attention over a context is cut here, from
                                 token 0 on, and merged in ascending order */
    OCR_STOP_IDS = 8,
    OCR_EVENT_IDS = 16,
    OCR_TAP_PATCHES = 900,
    OCR_TAP_TEXT = 1000,
};

enum ocr_precision {
    OCR_PRECISION_BF16, /* NUMERICS as above */
    OCR_PRECISION_FP32, /* the exact yardstick; CPU only */
    OCR_PRECISION_INT8, /* bf16 with 8-bit weights in the decoder; CPU only */
    OCR_PRECISION_FP16, /* fp16 in place of bf16; GPU only */
};

enum ocr_kv_type {
    OCR_KV_BF16,
    OCR_KV_FP32,
    OCR_KV_FP16
};

struct ocr_backend; /* opaque */

struct ocr_backend_config {
    const char *device; /* "cpu", "cuda:0" */
    enum ocr_precision precision;
    unsigned threads;       /* CPU; 0: the processors this process may use */
    uint64_t memory;        /* bytes it may use in all, its context included;
                               0: what `slots` need, on a GPU at most 90 % of
                               what is free */
    unsigned slots;         /* pages at once, at most */
    uint32_t max_patches;   /* of the largest page it must take */
    uint32_t prompt_tokens; /* of the largest prompt */
    uint32_t max_tokens;    /* generated per page, at most */
    void (*log)(void *arg, const char *line);
    void *log_arg;
};

/* What the memory is spent on and what that buys. */
struct ocr_backend_plan {
    unsigned slots;
    uint32_t blocks;      /* KV blocks of OCR_BLOCK_TOKENS, for all slots */
    uint32_t slot_blocks; /* entries of a slot's block table */
    uint32_t max_patches;
    enum ocr_kv_type kv_type;
    uint64_t weight_bytes, kv_bytes, workspace_bytes;
    char device[64]; /* what works, for people: "avx512, 2 threads" */
};

/* How ids are chosen. Temperature 0: the largest logit, the lowest id among
 * equals. Else the logits are divided by the temperature; ids less likely than
 * e^-22.18, some 2^-32, of the best are left out; of the others, ordered by
 * probability and then by id, the first whose sum reaches top_p are kept, and a
 * number drawn evenly from 0..1 chooses among them in that order. The number is
 * the first word of Philox4x32-10 with counter {position, 0, page_hash,
 * page_hash >> 32} and key {seed, seed >> 32}, without its lowest 8 bits, times
 * 2^-24. */
struct ocr_sampler {
    float temperature;
    float top_p;              /* 1: all */
    float repetition_penalty; /* 1: none; over generated ids only: a logit
                                 above 0 is divided by it, others multiplied */
    uint64_t seed;
    uint64_t page_hash;
};

/* What tests make go wrong. */
enum ocr_fault {
    OCR_FAULT_NONE,
    OCR_FAULT_NAN,  /* the residual stream of fault_page becomes NaN */
    OCR_FAULT_HANG, /* work on fault_page goes on until it is cancelled */
    OCR_FAULT_LOST, /* the device is gone when fault_page is worked on */
};

/* Taps: what tests and traces may look at; NULL for none. */
struct ocr_taps {
    void *arg;
    /* Logits of one step, fp32 [vocab], before penalty and temperature;
     * `position` is that of the id they choose. */
    void (*logits)(void *arg, uint64_t page, uint32_t position,
                   const float *logits, uint32_t vocab);
    /* Features of a page, fp32 [tokens][hidden]. */
    void (*features)(void *arg, uint64_t page, const float *features,
                     uint32_t tokens, uint32_t hidden);
    /* Residual stream behind a layer, fp32 [rows][hidden], from patch or token
     * `first` on; vision layers count from 0, text layers from OCR_TAP_TEXT;
     * OCR_TAP_PATCHES is what the first vision layer gets. */
    void (*layer)(void *arg, uint64_t page, unsigned layer,
                  const float *residual, uint32_t first, uint32_t rows,
                  uint32_t hidden);
    bool direct; /* CUDA: every kernel is launched by itself, no graphs */
    bool hashes; /* events carry ocr_logits_hash of each step's logits */
    enum ocr_fault fault;
    uint64_t fault_page;
    uint32_t fault_at; /* NAN: in the step that chooses this generated id; 0 is
                          the prefill's */
};

/* The sum over i of mix(i << 32 | bits of logits[i]), mix being the finaliser
 * of splitmix64: in any order the same, so a device can make it, too. */
uint64_t ocr_logits_hash(const float *logits, uint32_t count);

struct ocr_slot_config {
    uint64_t page;          /* unique; its features replace image tokens */
    const uint32_t *prompt; /* borrowed until slot_close */
    uint32_t prompt_len;
    uint32_t max_tokens; /* generated at most */
    uint32_t stop_ids[OCR_STOP_IDS];
    uint32_t stop_count;
    struct ocr_sampler sampler;
    /* Teacher forcing: these ids are taken instead of the sampler's, stop ids
     * among them, and the page ends with the last; borrowed until slot_close;
     * NULL: none. */
    const uint32_t *forced;
    uint32_t forced_len;
    uint32_t forced_length; /* go on to this many ids past stop ids; 0: no */
};

enum ocr_event_type {
    OCR_EVENT_ENCODED,   /* of submit_encode */
    OCR_EVENT_PREFILLED, /* of submit_prefill; with the first id if it was the
                            last chunk and that id is no stop id. DONE follows
                            with the same ticket if the page ends there */
    OCR_EVENT_TOKENS,    /* of submit_decode: new ids of one slot */
    OCR_EVENT_DONE,      /* the slot ended: its last ids, the stop id is not
                            among them */
    OCR_EVENT_STEP,      /* submit_decode is through for all its slots; always
                            the last event of its ticket */
    OCR_EVENT_FAILED,    /* this page failed alone: the sentence says why. Every
                            later encode and prefill of it gives FAILED, too;
                            decodes skip it */
    OCR_EVENT_LOST,      /* the device is gone: end this process */
};

struct ocr_event {
    enum ocr_event_type type;
    uint64_t ticket; /* of the submit it answers */
    uint64_t page;
    unsigned slot;
    bool stopped;      /* DONE: by a stop id, not by a limit */
    bool device_fault; /* LOST: by nothing that a page can cause */
    uint32_t count;
    uint32_t ids[OCR_EVENT_IDS];
    uint64_t hashes[OCR_EVENT_IDS]; /* of the logits behind each id, if asked */
    char sentence[160];
};

struct ocr_backend_ops {
    uint32_t abi; /* OCR_BACKEND_ABI */
    const char *name;

    /* Can `device` be used? 0 and what it is, for people, in out[size], or
     * why not. Takes nothing for good. NULL: always. */
    int (*probe)(const char *device, char *out, size_t size,
                 struct ocr_err *err);

    /* Packs or copies the weights of *model, which may be unmapped afterwards,
     * and reserves all memory: *plan tells what that gives. -ENOMEM with the
     * number of bytes that are missing; -EOPNOTSUPP if the device cannot do
     * this precision, but perhaps another. May take long. */
    int (*open)(struct ocr_backend **out,
                const struct ocr_backend_config *config,
                const struct ocr_model *model, struct ocr_backend_plan *plan,
                struct ocr_err *err);

    /* The plan that open would make, if nobody else used it, of a card with
     * `bytes` of memory, or, with 0, of config->device; nothing is reserved.
     * plan->device is the card's name, "" of one that is only thought of.
     * -ENOMEM with the number that is needed. NULL: it cannot tell. */
    int (*plan)(const struct ocr_backend_config *config,
                const struct ocr_model *model, uint64_t bytes,
                struct ocr_backend_plan *plan, struct ocr_err *err);

    /* Before anything is submitted; *taps is copied. */
    int (*set_taps)(struct ocr_backend *b, const struct ocr_taps *taps,
                    struct ocr_err *err);

    /* -EBUSY if the slot is open, -E2BIG if prompt and max_tokens exceed what
     * the plan holds. */
    int (*slot_open)(struct ocr_backend *b, unsigned slot,
                     const struct ocr_slot_config *config, struct ocr_err *err);
    /* After its last event; its features and state are forgotten. */
    void (*slot_close)(struct ocr_backend *b, unsigned slot);

    /* The block numbers of a slot, plan.slot_blocks entries: entry i holds
     * tokens 16 i to 16 i + 15. */
    uint32_t *(*block_table)(struct ocr_backend *b, unsigned slot);

    /* All submits: -EAGAIN when as many are under way as events can be kept
     * for (4 a slot at least); poll, then try again.
     *
     * `rgb` [height][width][3] after resizing, both sides multiples of the
     * patch; borrowed until the event. The page's slot is open and its prompt
     * has as many image tokens as this gives. The features stay until
     * slot_close. */
    int (*submit_encode)(struct ocr_backend *b, uint64_t ticket, uint64_t page,
                         const uint8_t *rgb, uint32_t width, uint32_t height,
                         struct ocr_err *err);

    /* Tokens from .. from + count - 1 of the slot's prompt. Chunks follow each
     * other without gaps; their borders are a function of the page alone. */
    int (*submit_prefill)(struct ocr_backend *b, uint64_t ticket, unsigned slot,
                          uint32_t from, uint32_t count, struct ocr_err *err);

    /* `steps` (1 to OCR_EVENT_IDS) more tokens for each of `count` slots that
     * were prefilled; one that ended is skipped. */
    int (*submit_decode)(struct ocr_backend *b, uint64_t ticket,
                         const unsigned *slots, unsigned count, unsigned steps,
                         struct ocr_err *err);

    /* What was submitted for the page ends within one layer or one token; its
     * tickets still get their events (FAILED). */
    void (*cancel)(struct ocr_backend *b, uint64_t page);

    /* Takes up to `room` events; waits at most timeout_ms (-1: until one
     * comes, or wake) if there is none. Returns the number taken. */
    int (*poll)(struct ocr_backend *b, struct ocr_event *events, int room,
                int timeout_ms);

    /* Makes the poll that waits, or else the next one, return at once. Any
     * thread. */
    void (*wake)(struct ocr_backend *b);

    /* Ends what runs, frees all. NULL is a no-op. */
    void (*close)(struct ocr_backend *b);
};

extern const struct ocr_backend_ops ocr_backend_cpu;

/* The one symbol of a backend plugin. */
typedef const struct ocr_backend_ops *ocr_backend_plugin_fn(void);
#define OCR_BACKEND_PLUGIN_SYMBOL "ocr_backend_plugin"

#endif

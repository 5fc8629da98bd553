/* Pages through a backend, as the engine drives it, with everything
 * written down: ids, logits, features, hashes. */
#ifndef TEST_PARITY_HELP_H
#define TEST_PARITY_HELP_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/device.h"

#include <math.h>

#include <stdlib.h>
#include <string.h>

enum {
    PARITY_CHUNK = 512 /* tokens of the prompt at once */
};

/* Pages are small where a sanitizer makes everything slow. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum {
    PARITY_SLOW = 1
};
#else
enum {
    PARITY_SLOW = 0
};
#endif

/* A page to read, and what came out. */
struct sheet {
    const uint8_t *rgb;
    uint32_t width, height;
    uint32_t *prompt, prompt_len;
    const uint32_t *forced; /* teacher forcing, or NULL */
    uint32_t max_tokens;    /* or length of `forced` */
    const uint32_t *stop_ids;
    uint32_t stop_count;
    struct ocr_sampler sampler; /* zeroed: the best id */
    /* Results; `logits` and `features` are the test's to free. */
    bool done, stopped, failed;
    uint32_t count, *ids;
    uint64_t *hashes;
    float *logits, *features; /* [rows][vocab], [tokens][hidden] */
    uint32_t rows, tokens;
    char sentence[160];
};

struct session {
    const struct ocr_backend_ops *ops;
    struct ocr_backend *backend;
    struct ocr_backend_plan plan;
    struct sheet *sheets; /* page number = index + 1 */
    unsigned count;
    uint64_t ticket;
    bool interleaved; /* blocks of the slots alternate */
};

static inline void *parity_alloc(size_t count, size_t size)
{
    void *p = calloc(count ? count : 1, size);

    if (!p)
        abort();
    return p;
}

static inline void parity_logits(void *arg, uint64_t page, uint32_t position,
                                 const float *logits, uint32_t vocab)
{
    struct session *s = arg;
    struct sheet *sheet = &s->sheets[page - 1];

    if (sheet->rows > sheet->max_tokens ||
        position != sheet->prompt_len + sheet->rows)
        abort();
    if (!sheet->logits)
        sheet->logits = parity_alloc((size_t)(sheet->max_tokens + 1) * vocab,
                                     sizeof *logits);
    memcpy(sheet->logits + (size_t)sheet->rows++ * vocab, logits,
           vocab * sizeof *logits);
}

static inline void parity_features(void *arg, uint64_t page,
                                   const float *features, uint32_t tokens,
                                   uint32_t hidden)
{
    struct session *s = arg;
    struct sheet *sheet = &s->sheets[page - 1];
    const size_t bytes = (size_t)tokens * hidden * sizeof *features;

    free(sheet->features);
    sheet->features = parity_alloc(1, bytes);
    sheet->tokens = tokens;
    memcpy(sheet->features, features, bytes);
}

/* Taps that write everything down. */
static inline struct ocr_taps parity_taps(struct session *s)
{
    return (struct ocr_taps){.arg = s,
                             .logits = parity_logits,
                             .features = parity_features,
                             .hashes = true};
}

/* A backend with room for the largest of `count` sheets in each of `slots`. */
static inline void session_open(struct session *s,
                                const struct ocr_model *model,
                                struct ocr_backend_config config,
                                struct sheet *sheets, unsigned count)
{
    struct ocr_err err = OCR_ERR_INIT;
    const uint32_t patch = model->vision.patch;

    *s = (struct session){
        .ops = device_ops(device_name()), .sheets = sheets, .count = count};
    config.device = device_name();
    for (unsigned i = 0; i < count; i++) {
        const struct sheet *sheet = &sheets[i];
        const uint32_t patches =
            (sheet->width / patch) * (sheet->height / patch);

        if (patches > config.max_patches)
            config.max_patches = patches;
        if (sheet->prompt_len > config.prompt_tokens)
            config.prompt_tokens = sheet->prompt_len;
        if (sheet->max_tokens > config.max_tokens)
            config.max_tokens = sheet->max_tokens;
    }
    if (s->ops->open(&s->backend, &config, model, &s->plan, &err))
        fail_msg("%s", err.text);
    assert_true(s->plan.slots >= config.slots);
}

static inline void session_taps(struct session *s, const struct ocr_taps *taps)
{
    struct ocr_err err = OCR_ERR_INIT;

    if (s->ops->set_taps(s->backend, taps, &err))
        fail_msg("%s", err.text);
}

static inline void session_close(struct session *s)
{
    s->ops->close(s->backend);
}

static inline void sheet_release(struct sheet *sheet)
{
    free(sheet->ids);
    free(sheet->hashes);
    free(sheet->logits);
    free(sheet->features);
    sheet->ids = NULL;
    sheet->hashes = NULL;
    sheet->logits = sheet->features = NULL;
}

static inline void session_take(struct session *s, const struct ocr_event *e)
{
    struct sheet *sheet;

    if (e->type == OCR_EVENT_LOST)
        fail_msg("%s", e->sentence);
    if (e->type == OCR_EVENT_STEP)
        return;
    assert_in_range(e->page, 1, s->count);
    sheet = &s->sheets[e->page - 1];
    for (uint32_t i = 0; i < e->count; i++) {
        assert_true(sheet->count < sheet->max_tokens);
        sheet->hashes[sheet->count] = e->hashes[i];
        sheet->ids[sheet->count++] = e->ids[i];
    }
    if (e->type == OCR_EVENT_DONE) {
        sheet->done = true;
        sheet->stopped = e->stopped;
    }
    if (e->type == OCR_EVENT_FAILED) {
        sheet->done = sheet->failed = true;
        memcpy(sheet->sentence, e->sentence, sizeof sheet->sentence);
    }
}

/* Until the event `last` of `ticket`, or until its page failed; a step goes on
 * without that page. */
static inline void session_wait(struct session *s, uint64_t ticket,
                                enum ocr_event_type last)
{
    for (;;) {
        struct ocr_event events[8];
        const int n = s->ops->poll(s->backend, events, 8, -1);
        bool over = false;

        assert_true(n >= 0);
        for (int i = 0; i < n; i++) {
            session_take(s, &events[i]);
            over |= events[i].ticket == ticket &&
                    (events[i].type == last ||
                     (events[i].type == OCR_EVENT_FAILED &&
                      last != OCR_EVENT_STEP));
        }
        if (over)
            return;
    }
}

static inline void session_slot(struct session *s, unsigned slot,
                                struct sheet *sheet)
{
    struct ocr_slot_config config = {
        .page = (uint64_t)(sheet - s->sheets) + 1,
        .prompt = sheet->prompt,
        .prompt_len = sheet->prompt_len,
        .max_tokens = sheet->max_tokens,
        .stop_count = sheet->stop_count,
        .sampler = sheet->sampler,
        .forced = sheet->forced,
        .forced_len = sheet->forced ? sheet->max_tokens : 0,
    };
    const unsigned slots = s->plan.slots;
    struct ocr_err err = OCR_ERR_INIT;
    uint32_t *table;

    if (config.sampler.repetition_penalty == 0)
        config.sampler.repetition_penalty = 1;
    if (config.sampler.top_p == 0)
        config.sampler.top_p = 1;
    sheet->done = sheet->stopped = sheet->failed = false;
    sheet->count = sheet->rows = 0;
    sheet->ids = parity_alloc(sheet->max_tokens, sizeof *sheet->ids);
    sheet->hashes = parity_alloc(sheet->max_tokens, sizeof *sheet->hashes);
    for (uint32_t i = 0; i < sheet->stop_count; i++)
        config.stop_ids[i] = sheet->stop_ids[i];
    if (s->ops->slot_open(s->backend, slot, &config, &err))
        fail_msg("%s", err.text);
    table = s->ops->block_table(s->backend, slot);
    assert_true(s->plan.blocks >= slots * s->plan.slot_blocks);
    for (uint32_t i = 0; i < s->plan.slot_blocks; i++)
        table[i] = s->interleaved ? i * slots + slots - 1 - slot
                                  : slot * s->plan.slot_blocks + i;
}

/* Features and prompt of a page. */
static inline void session_begin(struct session *s, unsigned slot,
                                 struct sheet *sheet)
{
    const uint64_t page = (uint64_t)(sheet - s->sheets) + 1;
    struct ocr_err err = OCR_ERR_INIT;

    session_slot(s, slot, sheet);
    if (s->ops->submit_encode(s->backend, ++s->ticket, page, sheet->rgb,
                              sheet->width, sheet->height, &err))
        fail_msg("%s", err.text);
    session_wait(s, s->ticket, OCR_EVENT_ENCODED);
    for (uint32_t at = 0; at < sheet->prompt_len; at += PARITY_CHUNK) {
        const uint32_t left = sheet->prompt_len - at;

        if (s->ops->submit_prefill(s->backend, ++s->ticket, slot, at,
                                   left < PARITY_CHUNK ? left : PARITY_CHUNK,
                                   &err))
            fail_msg("%s", err.text);
        session_wait(s, s->ticket, OCR_EVENT_PREFILLED);
    }
}

/* The slots from `first` on hold sheets: `steps` more ids of each that is not
 * done; false if none is left. */
static inline bool session_step(struct session *s, struct sheet *const *sheets,
                                unsigned count, unsigned steps)
{
    unsigned slots[16], n = 0;
    struct ocr_err err = OCR_ERR_INIT;

    for (unsigned i = 0; i < count; i++)
        if (!sheets[i]->done)
            slots[n++] = i;
    if (!n)
        return false;
    if (s->ops->submit_decode(s->backend, ++s->ticket, slots, n, steps, &err))
        fail_msg("%s", err.text);
    session_wait(s, s->ticket, OCR_EVENT_STEP);
    return true;
}

/* Reads one page alone, in slot 0. */
static inline void session_read(struct session *s, struct sheet *sheet)
{
    struct sheet *const one[] = {sheet};

    session_begin(s, 0, sheet);
    while (session_step(s, one, 1, OCR_EVENT_IDS))
        ;
    s->ops->slot_close(s->backend, 0);
}

/* 7 ids, the image tokens, 5 ids: as the prompts of the published models. */
static inline void sheet_prompt(struct sheet *sheet, const uint32_t ids[12],
                                const struct ocr_model *model)
{
    const uint32_t side = model->vision.patch * model->projector.merge;
    const uint32_t n = (sheet->width / side) * (sheet->height / side);

    sheet->prompt_len = n + 12;
    sheet->prompt = parity_alloc(n + 12, sizeof *sheet->prompt);
    for (uint32_t i = 0; i < n + 12; i++)
        sheet->prompt[i] = i < 7       ? ids[i]
                           : i < 7 + n ? model->image_token
                                       : ids[i - n];
}

#endif

/* The driver: the one thread that talks to the backend. It keeps a vision pass
 * and a decode step in the backend whenever there is work for them, and sleeps
 * when there is none. */
#include "engine/lighton/lighton_i.h"

#include "engine/base/log.h"
#include "engine/protocol.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- results
 * -------------------------------------------------------------------- */

static void deliver(struct ocr_recogniser *r, struct lighton_page *p)
{
    pthread_mutex_lock(&r->lock);
    page_append(&r->finished, p);
    pthread_cond_signal(&r->done);
    pthread_mutex_unlock(&r->lock);
}

/* ---- slots and blocks
 * ----------------------------------------------------------- */

static bool free_slot(const struct ocr_recogniser *r, unsigned *slot)
{
    for (unsigned i = 0; i < r->plan.slots; i++) {
        if (!r->slot[i]) {
            *slot = i;
            return true;
        }
    }
    return false;
}

static uint32_t blocks_needed(const struct lighton_page *p)
{
    const uint64_t tokens = (uint64_t)p->prompt.count + p->max_tokens + 1;

    return (uint32_t)((tokens + OCR_BLOCK_TOKENS - 1) / OCR_BLOCK_TOKENS);
}

/* The slot was never submitted to, or all its events have come. */
static void release(struct ocr_recogniser *r, struct lighton_page *p)
{
    r->ops->slot_close(r->backend, p->slot);
    r->slot[p->slot] = NULL;
    for (uint32_t i = 0; i < p->block_count; i++)
        r->free_blocks[r->free_count++] = p->blocks[i];
    p->block_count = 0;
    deliver(r, p);
}

static int open_slot(struct ocr_recogniser *r, struct lighton_page *p,
                     struct ocr_err *err)
{
    const struct ocr_model_config *c = &r->folder->config;
    struct ocr_slot_config config = {.page = p->id,
                                     .prompt = p->prompt.id,
                                     .prompt_len = (uint32_t)p->prompt.count,
                                     .max_tokens = p->max_tokens,
                                     .stop_count = c->stop_count,
                                     .sampler = p->sampler};
    uint32_t *table = r->ops->block_table(r->backend, p->slot);

    memcpy(config.stop_ids, c->stop_ids, sizeof config.stop_ids);
    for (uint32_t i = 0; i < p->block_count; i++)
        table[i] = p->blocks[i];
    return r->ops->slot_open(r->backend, p->slot, &config, err);
}

static int submit_encode(struct ocr_recogniser *r, struct lighton_page *p,
                         struct ocr_err *err)
{
    const int rc = r->ops->submit_encode(r->backend, ++r->ticket, p->id, p->rgb,
                                         p->width, p->height, err);

    r->encoding = rc == 0;
    p->state = PAGE_ENCODING;
    return rc;
}

/* Takes slot and blocks for a prepared page and begins with it. */
static void admit(struct ocr_recogniser *r, struct lighton_page *p,
                  unsigned slot, uint32_t need)
{
    struct ocr_err err = OCR_ERR_INIT;

    p->blocks = calloc(need, sizeof *p->blocks);
    if (!p->blocks) {
        page_fail(p, OCR_KIND_FAILED, "no memory for another page");
        deliver(r, p);
        return;
    }
    while (p->block_count < need)
        p->blocks[p->block_count++] = r->free_blocks[--r->free_count];
    p->slot = slot;
    r->slot[slot] = p;
    if (open_slot(r, p, &err) || submit_encode(r, p, &err)) {
        page_fail(p, err.kind ? err.kind : OCR_KIND_FAILED, err.text);
        release(r, p);
    }
}

/* The next page that waits, prepared; pages that cannot be are answered. */
static struct lighton_page *next_waiting(struct ocr_recogniser *r)
{
    struct lighton_page *p;

    while ((p = r->waiting.first)) {
        struct ocr_err err = OCR_ERR_INIT;

        if (atomic_load(&p->cancel))
            page_fail(p, OCR_KIND_CANCELLED, "nobody waited any more");
        else if (p->rgb || page_prepare(r, p, &err) == 0)
            return p;
        else
            page_fail(p, err.kind ? err.kind : OCR_KIND_FAILED, err.text);
        deliver(r, page_take(&r->waiting));
    }
    return NULL;
}

static void admit_waiting(struct ocr_recogniser *r)
{
    struct lighton_page *p;
    unsigned slot;

    /* One vision pass at a time: the pages behind it gain nothing from being
     * in the backend earlier. */
    while (!r->encoding && free_slot(r, &slot) && (p = next_waiting(r))) {
        const uint32_t need = blocks_needed(p);

        if (need > r->plan.blocks || need > r->plan.slot_blocks) {
            page_fail(p, OCR_KIND_FAILED,
                      "the page needs more memory than the model was given");
            deliver(r, page_take(&r->waiting));
        } else if (need > r->free_count) {
            return; /* first come first served: it waits for blocks */
        } else {
            admit(r, page_take(&r->waiting), slot, need);
        }
    }
}

/* ---- what the backend says
 * -------------------------------------------------------- */

static bool in_flight(const struct ocr_recogniser *r, unsigned slot)
{
    for (unsigned i = 0; i < r->flights; i++)
        if (r->flight[i].ticket && r->flight[i].slots >> slot & 1)
            return true;
    return false;
}

/* The page's result is decided. Decodes that have its slot are awaited before
 * slot and blocks go to somebody else. */
static void end_page(struct ocr_recogniser *r, struct lighton_page *p)
{
    if (in_flight(r, p->slot)) {
        p->state = PAGE_ENDING;
        return;
    }
    release(r, p);
}

static void submit_prefill(struct ocr_recogniser *r, struct lighton_page *p)
{
    const uint32_t left = (uint32_t)p->prompt.count - p->prefilled;
    const uint32_t count = left < PREFILL_CHUNK ? left : PREFILL_CHUNK;
    struct ocr_err err = OCR_ERR_INIT;

    p->state = PAGE_PREFILLING;
    if (r->ops->submit_prefill(r->backend, ++r->ticket, p->slot, p->prefilled,
                               count, &err)) {
        page_fail(p, OCR_KIND_FAILED, err.text);
        release(r, p);
        return;
    }
    p->prefilled += count;
}

static void on_encoded(struct ocr_recogniser *r, struct lighton_page *p)
{
    r->encoding = false;
    free(p->rgb);
    p->rgb = NULL;
    submit_prefill(r, p);
}

/* Ids that came, of a page that goes on. */
static void on_ids(struct ocr_recogniser *r, struct lighton_page *p,
                   const struct ocr_event *e)
{
    if (!page_add_ids(p, e->ids, e->count))
        return;
    page_finish(r, p, OCR_TEXT_LOOP);
    end_page(r, p);
}

static void on_prefilled(struct ocr_recogniser *r, struct lighton_page *p,
                         const struct ocr_event *e)
{
    if (p->prefilled < p->prompt.count) {
        submit_prefill(r, p);
        return;
    }
    p->state = PAGE_DECODING;
    on_ids(r, p, e);
}

static void on_done(struct ocr_recogniser *r, struct lighton_page *p,
                    const struct ocr_event *e)
{
    const bool loops = page_add_ids(p, e->ids, e->count);

    page_finish(r, p, loops ? OCR_TEXT_LOOP : e->stopped ? 0 : OCR_TEXT_CUT);
    end_page(r, p);
}

static void on_failed(struct ocr_recogniser *r, struct lighton_page *p,
                      const struct ocr_event *e)
{
    if (p->state == PAGE_ENCODING)
        r->encoding = false;
    if (p->cancelled)
        page_fail(p, OCR_KIND_CANCELLED, "nobody waited any more");
    else
        page_fail(p, OCR_KIND_FAILED, e->sentence);
    end_page(r, p);
}

static void on_step(struct ocr_recogniser *r, uint64_t ticket)
{
    for (unsigned i = 0; i < r->flights; i++)
        if (r->flight[i].ticket == ticket)
            r->flight[i].ticket = 0;
    for (unsigned i = 0; i < r->plan.slots; i++)
        if (r->slot[i] && r->slot[i]->state == PAGE_ENDING && !in_flight(r, i))
            release(r, r->slot[i]);
}

static struct lighton_page *page_of(struct ocr_recogniser *r, uint64_t id)
{
    for (unsigned i = 0; i < r->plan.slots; i++)
        if (r->slot[i] && r->slot[i]->id == id)
            return r->slot[i];
    return NULL;
}

static void on_event(struct ocr_recogniser *r, const struct ocr_event *e)
{
    struct lighton_page *p = page_of(r, e->page);

    if (e->type == OCR_EVENT_LOST) {
        ocr_error("the device is lost: %s", e->sentence);
        _Exit(1); /* the client starts another engine */
    }
    if (e->type == OCR_EVENT_STEP)
        on_step(r, e->ticket);
    else if (!p || p->state == PAGE_ENDING)
        return;
    else if (e->type == OCR_EVENT_ENCODED)
        on_encoded(r, p);
    else if (e->type == OCR_EVENT_PREFILLED)
        on_prefilled(r, p, e);
    else if (e->type == OCR_EVENT_TOKENS)
        on_ids(r, p, e);
    else if (e->type == OCR_EVENT_DONE)
        on_done(r, p, e);
    else if (e->type == OCR_EVENT_FAILED)
        on_failed(r, p, e);
}

/* ---- the loop
 * --------------------------------------------------------------------- */

/* All pages that decode take part; one that joins later waits for the next. */
static void submit_flight(struct ocr_recogniser *r, struct flight *f)
{
    unsigned slots[SLOTS_MAX], count = 0;
    struct ocr_err err = OCR_ERR_INIT;

    f->slots = 0;
    for (unsigned i = 0; i < r->plan.slots; i++) {
        if (!r->slot[i] || r->slot[i]->state != PAGE_DECODING)
            continue;
        slots[count++] = i;
        f->slots |= (uint64_t)1 << i;
    }
    if (!count)
        return;
    if (r->ops->submit_decode(r->backend, ++r->ticket, slots, count, r->steps,
                              &err) == 0) {
        f->ticket = r->ticket;
        return;
    }
    for (unsigned i = 0; i < count; i++) {
        page_fail(r->slot[slots[i]], OCR_KIND_FAILED, err.text);
        end_page(r, r->slot[slots[i]]);
    }
}

static void submit_steps(struct ocr_recogniser *r)
{
    for (unsigned i = 0; i < r->flights; i++)
        if (!r->flight[i].ticket)
            submit_flight(r, &r->flight[i]);
}

static void pass_cancels_on(struct ocr_recogniser *r)
{
    for (unsigned i = 0; i < r->plan.slots; i++) {
        struct lighton_page *p = r->slot[i];

        if (!p || p->cancelled || !atomic_load(&p->cancel) ||
            p->state == PAGE_ENDING)
            continue;
        p->cancelled = true;
        if (p->state == PAGE_DECODING && !in_flight(r, p->slot)) {
            page_fail(p, OCR_KIND_CANCELLED, "nobody waited any more");
            release(r, p);
        } else {
            r->ops->cancel(r->backend, p->id);
        }
    }
}

static bool busy(const struct ocr_recogniser *r)
{
    for (unsigned i = 0; i < r->plan.slots; i++)
        if (r->slot[i])
            return true;
    return r->waiting.first != NULL;
}

/* Takes what was submitted; sleeps while there is nothing to do at all. */
static void take_incoming(struct ocr_recogniser *r)
{
    struct lighton_page *p;
    const bool sleepy = !busy(r);

    pthread_mutex_lock(&r->lock);
    while (sleepy && !r->incoming.first && !atomic_load(&r->stop))
        pthread_cond_wait(&r->arrived, &r->lock);
    while ((p = page_take(&r->incoming)))
        page_append(&r->waiting, p);
    pthread_mutex_unlock(&r->lock);
}

void *driver_run(void *arg)
{
    enum {
        EVENTS = 32,
        PATIENCE_MS = 50
    };
    struct ocr_recogniser *r = arg;
    struct ocr_event events[EVENTS];

    while (!atomic_load(&r->stop)) {
        int count;

        take_incoming(r);
        pass_cancels_on(r);
        admit_waiting(r);
        submit_steps(r);
        if (r->encoding) /* the next page is ready when this one is through */
            next_waiting(r);
        count =
            busy(r) ? r->ops->poll(r->backend, events, EVENTS, PATIENCE_MS) : 0;
        for (int i = 0; i < count; i++)
            on_event(r, &events[i]);
    }
    return NULL;
}

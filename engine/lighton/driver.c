/* The driver: the one thread that talks to the backend. It keeps a page on its
 * way to the first token and decode steps in the backend whenever there is work
 * for them, and sleeps when there is none. */
#include "engine/lighton/lighton_i.h"

#include "engine/base/io.h"
#include "engine/protocol.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SILENT_TIMES = 20,
    LOOK_MS = 1000, /* how often a device that works is looked at, at least */
};

/* ---- results ------------------------------------------------------------ */

void page_deliver(struct ocr_recogniser *r, struct lighton_page *p)
{
    pthread_mutex_lock(&r->lock);
    page_append(&r->finished, p);
    pthread_cond_signal(&r->done);
    pthread_mutex_unlock(&r->lock);
}

void driver_wake(struct ocr_recogniser *r)
{
    pthread_mutex_lock(&r->lock);
    pthread_cond_signal(&r->prepared);
    pthread_mutex_unlock(&r->lock);
    r->ops->wake(r->backend);
}

/* ---- slots and blocks --------------------------------------------------- */

static unsigned free_slot(const struct ocr_recogniser *r)
{
    unsigned i = 0;

    while (r->slot[i])
        i++;
    return i;
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
    r->slots_used--;
    if (r->lane == p)
        r->lane = NULL;
    for (uint32_t i = 0; i < p->block_count; i++)
        r->free_blocks[r->free_count++] = p->blocks[i];
    p->block_count = 0;
    page_deliver(r, p);
}

/* ---- a device that is lost ---------------------------------------------- */

static void add_suspect(struct ocr_loss *loss, const struct lighton_page *p)
{
    for (unsigned i = 0; i < loss->count; i++)
        if (loss->suspects[i] == p->id)
            return;
    if (loss->count < OCR_SUSPECTS)
        loss->suspects[loss->count++] = p->id;
}

static bool in_flight(const struct ocr_recogniser *r, unsigned slot)
{
    for (unsigned i = 0; i < r->flights; i++)
        if (r->flight[i].ticket && r->flight[i].slots >> slot & 1)
            return true;
    return false;
}

static bool is_on_its_way(const struct lighton_page *p)
{
    return p->state == PAGE_ENCODING || p->state == PAGE_PREFILLING;
}

/* Pages that the backend was working on. */
static void suspect_pages(struct ocr_recogniser *r, struct ocr_loss *loss,
                          bool on_their_way, bool decoding)
{
    for (unsigned i = 0; i < r->plan.slots; i++) {
        const struct lighton_page *p = r->slot[i];

        if (p && ((on_their_way && is_on_its_way(p)) ||
                  (decoding && in_flight(r, i))))
            add_suspect(loss, p);
    }
}

static void lose(struct ocr_recogniser *r, struct ocr_loss *loss)
{
    if (r->lost)
        return;
    r->lost = true;
    if (loss->device_fault)
        loss->count = 0;
    if (r->config.lost)
        r->config.lost(r->config.arg, loss);
}

static struct lighton_page *page_of(struct ocr_recogniser *r, uint64_t id)
{
    for (unsigned i = 0; i < r->plan.slots; i++)
        if (r->slot[i] && r->slot[i]->id == id)
            return r->slot[i];
    return NULL;
}

static void on_lost(struct ocr_recogniser *r, const struct ocr_event *e)
{
    const struct lighton_page *p = page_of(r, e->page);
    struct ocr_loss loss = {.device_fault = e->device_fault};

    snprintf(loss.sentence, sizeof loss.sentence, "%s: %s", r->device,
             e->sentence);
    if (p)
        add_suspect(&loss, p);
    else
        suspect_pages(r, &loss, true, true);
    lose(r, &loss);
}

/* A submit was refused. True: the page fails of it; else it is tried again
 * when there is room, or the device is lost and its event comes. */
static bool is_verdict(int rc)
{
    return rc != -EAGAIN && rc != -EIO;
}

/* ---- admission ---------------------------------------------------------- */

static int open_slot(struct ocr_recogniser *r, struct lighton_page *p,
                     struct ocr_err *err)
{
    const struct ocr_model_config *c = &r->folder->config;
    struct ocr_slot_config config = {.page = p->id,
                                     .prompt = p->prompt.id,
                                     .prompt_len = (uint32_t)p->prompt.count,
                                     .max_tokens = p->max_tokens,
                                     .stop_count = c->stop_count,
                                     .sampler = p->sampler,
                                     .forced_length = p->forced_length};
    uint32_t *table = r->ops->block_table(r->backend, p->slot);

    memcpy(config.stop_ids, c->stop_ids, sizeof config.stop_ids);
    for (uint32_t i = 0; i < p->block_count; i++)
        table[i] = p->blocks[i];
    return r->ops->slot_open(r->backend, p->slot, &config, err);
}

/* Takes slot and blocks for a prepared page and begins with it. */
static void admit(struct ocr_recogniser *r, struct lighton_page *p,
                  uint32_t need)
{
    struct ocr_err err = OCR_ERR_INIT;
    int rc;

    p->blocks = calloc(need, sizeof *p->blocks);
    if (!p->blocks) {
        page_fail(p, OCR_KIND_FAILED, "no memory for another page");
        page_deliver(r, p);
        return;
    }
    while (p->block_count < need)
        p->blocks[p->block_count++] = r->free_blocks[--r->free_count];
    p->slot = free_slot(r);
    r->slot[p->slot] = p;
    r->slots_used++;
    rc = open_slot(r, p, &err);
    if (!rc)
        rc = r->ops->submit_encode(r->backend, ++r->ticket, p->id, p->rgb,
                                   p->width, p->height, &err);
    if (rc) {
        /* The lane is free, so there is room for this: even -EAGAIN is a
         * fault, unless the device is lost. */
        page_fail(p, err.kind ? err.kind : OCR_KIND_FAILED, err.text);
        if (rc != -EIO)
            release(r, p);
        return;
    }
    p->state = PAGE_ENCODING;
    r->lane = p;
    r->pages_watch.silent_ms = 0;
}

/* Pages that wait and that nobody wants any more are answered. */
static void drop_cancelled(struct ocr_recogniser *r)
{
    for (struct lighton_page *p = r->waiting.first, *next; p; p = next) {
        next = p->next;
        if (!atomic_load(&p->cancel))
            continue;
        page_remove(&r->waiting, p);
        page_give_up(p);
        page_deliver(r, p);
    }
}

static void refuse(struct ocr_recogniser *r, struct lighton_page *p,
                   uint32_t need)
{
    char sentence[160];

    snprintf(sentence, sizeof sentence,
             "the page needs %u blocks of memory of %d tokens, and the model "
             "was given %u (gpu_memory=, or max_tokens= of fewer)",
             need, OCR_BLOCK_TOKENS,
             r->plan.blocks < r->plan.slot_blocks ? r->plan.blocks
                                                  : r->plan.slot_blocks);
    page_remove(&r->waiting, p);
    page_fail(p, OCR_KIND_FAILED, sentence);
    page_deliver(r, p);
}

/* The next page waits for its turn even where one behind it would fit: else a
 * large one might wait for ever. */
static void admit_waiting(struct ocr_recogniser *r)
{
    struct lighton_page *p;

    while (!r->lane && !r->lost && (p = page_best(&r->waiting))) {
        const uint32_t need = blocks_needed(p);
        const bool keep = r->keeps && !atomic_load(&p->urgent);

        if (need > r->plan.blocks || need > r->plan.slot_blocks) {
            refuse(r, p, need);
            continue;
        }
        if (r->slots_used + keep >= r->plan.slots ||
            need + (keep ? r->plan.slot_blocks : 0) > r->free_count)
            return;
        page_remove(&r->waiting, p);
        admit(r, p, need);
    }
}

/* ---- what the backend says ---------------------------------------------- */

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
    const int rc = r->ops->submit_prefill(r->backend, ++r->ticket, p->slot,
                                          p->prefilled, count, &err);

    p->state = PAGE_PREFILLING;
    if (rc) {
        page_fail(p, OCR_KIND_FAILED, err.text);
        if (rc != -EIO)
            release(r, p);
        return;
    }
    p->prefilled += count;
    if (p->prefilled == p->prompt.count)
        r->lane = NULL;
}

static void on_encoded(struct ocr_recogniser *r, struct lighton_page *p)
{
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
    if (p->cancelled)
        page_give_up(p);
    else
        page_fail(p, OCR_KIND_FAILED, e->sentence);
    end_page(r, p);
}

static void on_step(struct ocr_recogniser *r, uint64_t ticket)
{
    for (unsigned i = 0; i < r->flights; i++)
        if (r->flight[i].ticket == ticket)
            r->flight[i].ticket = 0;
    for (unsigned i = 0; i < r->plan.slots; i++) {
        struct lighton_page *p = r->slot[i];

        if (!p || in_flight(r, i))
            continue;
        /* The cancel came too late for its last steps. */
        if (p->state == PAGE_DECODING && p->cancelled)
            page_give_up(p);
        else if (p->state != PAGE_ENDING)
            continue;
        release(r, p);
    }
}

static void on_page_event(struct ocr_recogniser *r, struct lighton_page *p,
                          const struct ocr_event *e)
{
    if (r->config.wrote && e->count)
        r->config.wrote(r->config.arg, p->id, e->count);
    if (e->type == OCR_EVENT_ENCODED)
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

/* ---- is it alive? ------------------------------------------------------- */

static int64_t limit_of(const struct watch *w)
{
    const int64_t many = SILENT_TIMES * w->longest_ms;

    return many > SILENT_MS ? many : SILENT_MS;
}

static void heard(struct ocr_recogniser *r, struct watch *w)
{
    if (w->silent_ms > w->longest_ms)
        w->longest_ms = w->silent_ms;
    w->silent_ms = 0;
    atomic_fetch_add(&r->finished_work, 1);
    if (limit_of(w) > (int64_t)atomic_load(&r->limit_ms))
        atomic_store(&r->limit_ms, (unsigned)limit_of(w));
}

static void listen_to(struct ocr_recogniser *r, const struct ocr_event *e,
                      const struct lighton_page *p)
{
    if (e->type == OCR_EVENT_STEP)
        heard(r, &r->steps_watch);
    else if (p && is_on_its_way(p))
        heard(r, &r->pages_watch);
}

static bool works_on_pages(const struct ocr_recogniser *r)
{
    for (unsigned i = 0; i < r->plan.slots; i++)
        if (r->slot[i] && is_on_its_way(r->slot[i]))
            return true;
    return false;
}

static bool works_on_steps(const struct ocr_recogniser *r)
{
    for (unsigned i = 0; i < r->flights; i++)
        if (r->flight[i].ticket)
            return true;
    return false;
}

/* True if it has been silent for too long. */
static bool look(struct watch *w, bool works, int64_t passed_ms)
{
    w->silent_ms = works ? w->silent_ms + passed_ms : 0;
    return w->silent_ms >= limit_of(w);
}

static void watch_device(struct ocr_recogniser *r)
{
    const int64_t now = ocr_now_ms(), passed = now - r->looked_ms;
    const int64_t counted = passed < LOOK_MS ? passed : LOOK_MS;
    const bool pages_work = works_on_pages(r), steps_work = works_on_steps(r);
    const bool pages = look(&r->pages_watch, pages_work, counted);
    const bool steps = look(&r->steps_watch, steps_work, counted);
    const struct watch *late = steps ? &r->steps_watch : &r->pages_watch;
    struct ocr_loss loss = {.device_fault = false};

    r->looked_ms = now;
    atomic_store(&r->works, pages_work || steps_work);
    /* Threads of a processor cannot hang by themselves, and are slow. */
    if (r->ops == &ocr_backend_cpu || !(pages || steps))
        return;
    snprintf(loss.sentence, sizeof loss.sentence,
             "%s: it hangs: nothing was finished for %lld s", r->device,
             (long long)late->silent_ms / 1000);
    suspect_pages(r, &loss, pages, steps);
    lose(r, &loss);
}

static void on_event(struct ocr_recogniser *r, const struct ocr_event *e)
{
    struct lighton_page *p = page_of(r, e->page);

    if (e->type == OCR_EVENT_LOST) {
        on_lost(r, e);
        return;
    }
    listen_to(r, e, p);
    if (e->type == OCR_EVENT_STEP)
        on_step(r, e->ticket);
    else if (p && p->state != PAGE_ENDING)
        on_page_event(r, p, e);
}

/* ---- the loop ----------------------------------------------------------- */

/* All pages that decode take part; one that joins later waits for the next. */
static void submit_flight(struct ocr_recogniser *r, struct flight *f)
{
    unsigned slots[SLOTS_MAX], count = 0;
    struct ocr_err err = OCR_ERR_INIT;
    int rc;

    f->slots = 0;
    for (unsigned i = 0; i < r->plan.slots; i++) {
        if (!r->slot[i] || r->slot[i]->state != PAGE_DECODING ||
            r->slot[i]->cancelled)
            continue;
        slots[count++] = i;
        f->slots |= (uint64_t)1 << i;
    }
    if (!count)
        return;
    rc = r->ops->submit_decode(r->backend, ++r->ticket, slots, count, r->steps,
                               &err);
    if (rc == 0)
        f->ticket = r->ticket;
    for (unsigned i = 0; i < count && rc && is_verdict(rc); i++) {
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
            page_give_up(p);
            release(r, p);
        } else {
            r->ops->cancel(r->backend, p->id);
        }
    }
}

/* Takes what is prepared; sleeps while there is nothing to do at all. */
static bool take_ready(struct ocr_recogniser *r)
{
    const bool idle = !r->slots_used && !r->waiting.first;
    struct lighton_page *p;
    bool go_on;

    pthread_mutex_lock(&r->lock);
    while (idle && !r->ready.first && !r->stop)
        pthread_cond_wait(&r->prepared, &r->lock);
    while ((p = page_take(&r->ready)))
        page_append(&r->waiting, p);
    go_on = !r->stop;
    pthread_mutex_unlock(&r->lock);
    if (idle)
        r->looked_ms = ocr_now_ms();
    return go_on;
}

void *driver_run(void *arg)
{
    enum {
        EVENTS = 32
    };
    struct ocr_recogniser *r = arg;
    struct ocr_event events[EVENTS];

    while (take_ready(r) && !r->lost) {
        int count = 0;

        drop_cancelled(r);
        pass_cancels_on(r);
        admit_waiting(r);
        submit_steps(r);
        if (r->slots_used)
            count = r->ops->poll(r->backend, events, EVENTS, LOOK_MS);
        for (int i = 0; i < count && !r->lost; i++)
            on_event(r, &events[i]);
        watch_device(r);
    }
    return NULL;
}

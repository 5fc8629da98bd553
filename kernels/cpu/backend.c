#include "kernels/cpu/cpu_i.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static unsigned slot_number(const struct ocr_backend *b,
                            const struct cpu_slot *s)
{
    return (unsigned)(s - b->slot);
}

/* Events. Room was promised when the work was taken. */

static void emit(struct ocr_backend *b, const struct ocr_event *e)
{
    pthread_mutex_lock(&b->lock);
    b->event[(b->event_first + b->event_count++) % b->event_size] = *e;
    pthread_cond_signal(&b->happened);
    pthread_mutex_unlock(&b->lock);
}

static struct ocr_event event_of(const struct ocr_backend *b,
                                 const struct cpu_work *w,
                                 const struct cpu_slot *s,
                                 enum ocr_event_type type)
{
    return (struct ocr_event){
        .type = type,
        .ticket = w->ticket,
        .page = s ? s->config.page : w->page,
        .slot = s ? slot_number(b, s) : 0,
    };
}

__attribute__((format(printf, 4, 5))) static void fail(struct ocr_backend *b,
                                                       const struct cpu_work *w,
                                                       struct cpu_slot *s,
                                                       const char *format, ...)
{
    struct ocr_event e = event_of(b, w, s, OCR_EVENT_FAILED);
    va_list ap;

    va_start(ap, format);
    vsnprintf(e.sentence, sizeof e.sentence, format, ap);
    va_end(ap);
    s->failed = true;
    s->running = false;
    emit(b, &e);
}

static bool stopping(struct ocr_backend *b)
{
    bool stop;

    pthread_mutex_lock(&b->lock);
    stop = b->stop;
    pthread_mutex_unlock(&b->lock);
    return stop;
}

/* What tests ask for. True: this work is over. */
static bool misbehave(struct ocr_backend *b, const struct cpu_work *w,
                      struct cpu_slot *s)
{
    struct ocr_event e = event_of(b, w, s, OCR_EVENT_LOST);

    if (s->config.page != b->taps.fault_page)
        return false;
    if (b->taps.fault == OCR_FAULT_HANG)
        while (!atomic_load(&s->cancelled) && !stopping(b))
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (b->taps.fault != OCR_FAULT_LOST)
        return false;
    snprintf(e.sentence, sizeof e.sentence, "the device is gone");
    pthread_mutex_lock(&b->lock);
    b->lost = true;
    pthread_mutex_unlock(&b->lock);
    emit(b, &e);
    return true;
}

/* True if the page cannot go on: its event is out. */
static bool is_over(struct ocr_backend *b, const struct cpu_work *w,
                    struct cpu_slot *s)
{
    if (misbehave(b, w, s))
        return true;
    if (atomic_load(&s->cancelled))
        fail(b, w, s, "cancelled");
    else if (s->failed)
        fail(b, w, s, "the page failed before");
    else
        return false;
    return true;
}

static void run_encode(struct ocr_backend *b, const struct cpu_work *w)
{
    struct cpu_slot *s = &b->slot[w->slot];
    struct ocr_event e = event_of(b, w, s, OCR_EVENT_ENCODED);
    int rc;

    if (is_over(b, w, s))
        return;
    rc = cpu_encode(b, s, w);
    if (rc == -ECANCELED) {
        fail(b, w, s, "cancelled");
        return;
    }
    if (rc) {
        fail(b, w, s, "the features of the page are not finite");
        return;
    }
    s->encoded = true;
    emit(b, &e);
}

enum choice {
    CHOICE_GO_ON,
    CHOICE_LAST, /* an id, and the page ends with it */
    CHOICE_STOP, /* a stop id: the page ended before it */
    CHOICE_BAD
};

static bool is_stop(const struct ocr_slot_config *c, uint32_t id)
{
    for (uint32_t i = 0; i < c->stop_count; i++)
        if (c->stop_ids[i] == id)
            return true;
    return false;
}

static bool is_last(const struct ocr_backend *b, const struct cpu_slot *s)
{
    const struct ocr_slot_config *c = &s->config;

    return s->generated >= c->max_tokens ||
           (c->forced && s->generated >= c->forced_len) ||
           (c->forced_length && s->generated >= c->forced_length) ||
           s->position >= b->plan.slot_blocks * OCR_BLOCK_TOKENS ||
           s->position >= b->max_positions;
}

/* The id that s->logits choose, added to the event. */
static enum choice choose(struct ocr_backend *b, struct cpu_slot *s,
                          struct ocr_event *e)
{
    const struct ocr_slot_config *c = &s->config;
    const uint32_t position = c->prompt_len + s->generated;
    const uint64_t hash =
        b->taps.hashes ? ocr_logits_hash(s->logits, b->vocab) : 0;
    uint32_t id;

    if (b->taps.logits)
        b->taps.logits(b->taps.arg, c->page, position, s->logits, b->vocab);
    if (!cpu_all_finite(s->logits, b->vocab))
        return CHOICE_BAD;
    id = c->forced ? c->forced[s->generated] : cpu_sample(b, s, position);
    if (!c->forced && s->generated >= c->forced_length && is_stop(c, id))
        return CHOICE_STOP;
    e->ids[e->count] = s->last = id;
    e->hashes[e->count++] = hash;
    s->generated++;
    s->seen[id / 64] |= (uint64_t)1 << id % 64;
    return is_last(b, s) ? CHOICE_LAST : CHOICE_GO_ON;
}

static bool table_is_bad(const struct ocr_backend *b, const struct cpu_slot *s,
                         uint32_t from, uint32_t to)
{
    for (uint32_t i = from / OCR_BLOCK_TOKENS; i * OCR_BLOCK_TOKENS < to; i++)
        if (s->table[i] >= b->plan.blocks)
            return true;
    return false;
}

static void embed(struct ocr_backend *b, struct cpu_slot *s, uint32_t id,
                  float *x)
{
    const uint32_t n = b->text.hidden;

    if (id == b->image_token && s->image_used < s->image_tokens)
        memcpy(x, s->features + (size_t)s->image_used++ * n, n * sizeof *x);
    else
        cpu_matrix_row(&b->embedding, b->isa, id, x, n);
}

static void poison(struct ocr_backend *b, const struct cpu_slot *s, float *x)
{
    if (b->taps.fault == OCR_FAULT_NAN &&
        b->taps.fault_page == s->config.page &&
        b->taps.fault_at == s->generated)
        x[0] = NAN;
}

static void first_id(struct ocr_backend *b, const struct cpu_work *w,
                     struct cpu_slot *s, struct ocr_event *e)
{
    struct ocr_event done = event_of(b, w, s, OCR_EVENT_DONE);
    enum choice choice;

    cpu_logits(b, &s, 1, b->x + (size_t)(w->count - 1) * b->text.hidden);
    choice = choose(b, s, e);
    if (choice == CHOICE_BAD) {
        fail(b, w, s, "the logits of the page are not finite");
        return;
    }
    s->running = choice == CHOICE_GO_ON;
    done.stopped = choice == CHOICE_STOP;
    emit(b, e);
    if (!s->running)
        emit(b, &done);
}

static void run_prefill(struct ocr_backend *b, const struct cpu_work *w)
{
    struct cpu_slot *s = &b->slot[w->slot];
    struct ocr_event e = event_of(b, w, s, OCR_EVENT_PREFILLED);
    struct cpu_pass pass = {.b = b,
                            .tower = &b->text,
                            .slot = s,
                            .first = w->from,
                            .rows = w->count};

    if (is_over(b, w, s))
        return;
    if (s->image_tokens && !s->encoded) {
        fail(b, w, s, "the page was not encoded");
        return;
    }
    if (table_is_bad(b, s, 0, w->from + w->count)) {
        fail(b, w, s, "the page's block table is wrong");
        return;
    }
    for (uint32_t i = 0; i < w->count; i++)
        embed(b, s, s->config.prompt[w->from + i],
              b->x + (size_t)i * b->text.hidden);
    poison(b, s, b->x + (size_t)(w->count - 1) * b->text.hidden);
    if (cpu_pass_run(&pass)) {
        fail(b, w, s, "cancelled");
        return;
    }
    s->position += w->count;
    if (s->position < s->config.prompt_len)
        emit(b, &e);
    else
        first_id(b, w, s, &e);
}

/* Which of the work's slots take part in the next step, their rows in b->x. */
static unsigned gather_active(struct ocr_backend *b, const struct cpu_work *w)
{
    unsigned n = 0;

    for (unsigned i = 0; i < w->slot_count; i++) {
        struct cpu_slot *s = &b->slot[w->slots[i]];
        float *x = b->x + (size_t)n * b->text.hidden;

        if (!s->running || misbehave(b, w, s))
            continue;
        if (atomic_load(&s->cancelled)) {
            fail(b, w, s, "cancelled");
        } else if (table_is_bad(b, s, s->position, s->position + 1)) {
            fail(b, w, s, "the page's block table is wrong");
        } else {
            cpu_matrix_row(&b->embedding, b->isa, s->last, x, b->text.hidden);
            poison(b, s, x);
            b->active[n++] = s;
        }
    }
    return n;
}

static void finish_step(struct ocr_backend *b, const struct cpu_work *w,
                        struct cpu_slot *s)
{
    struct ocr_event *e = &b->pending[slot_number(b, s)];
    enum choice choice;

    s->position++;
    choice = choose(b, s, e);
    if (choice == CHOICE_GO_ON)
        return;
    s->running = false;
    if (choice == CHOICE_BAD) {
        fail(b, w, s, "the logits of the page are not finite");
        return;
    }
    e->type = OCR_EVENT_DONE;
    e->stopped = choice == CHOICE_STOP;
    emit(b, e);
}

static void run_decode(struct ocr_backend *b, const struct cpu_work *w)
{
    const struct ocr_event through = event_of(b, w, NULL, OCR_EVENT_STEP);

    for (unsigned i = 0; i < w->slot_count; i++) {
        struct cpu_slot *s = &b->slot[w->slots[i]];
        b->pending[w->slots[i]] = event_of(b, w, s, OCR_EVENT_TOKENS);
    }
    for (unsigned step = 0; step < w->steps && !stopping(b); step++) {
        const unsigned n = gather_active(b, w);

        if (!n)
            break;
        cpu_decode_step(b, b->active, n);
        for (unsigned i = 0; i < n; i++)
            finish_step(b, w, b->active[i]);
    }
    for (unsigned i = 0; i < w->slot_count; i++)
        if (b->slot[w->slots[i]].running && b->pending[w->slots[i]].count)
            emit(b, &b->pending[w->slots[i]]);
    emit(b, &through);
}

/* The most events that work can give; a lost device is one more. */
static unsigned events_of(const struct cpu_work *w)
{
    return w->kind == CPU_DECODE ? 2 * w->slot_count + 1 : 2;
}

static void *drive(void *arg)
{
    struct ocr_backend *b = arg;

    cpu_flush_denormals();
    pthread_mutex_lock(&b->lock);
    while (!b->stop) {
        const struct cpu_work *w = &b->work[b->work_first];

        if (!b->work_count || b->lost) {
            pthread_cond_wait(&b->wanted, &b->lock);
            continue;
        }
        pthread_mutex_unlock(&b->lock);
        if (w->kind == CPU_ENCODE)
            run_encode(b, w);
        else if (w->kind == CPU_PREFILL)
            run_prefill(b, w);
        else
            run_decode(b, w);
        pthread_mutex_lock(&b->lock);
        b->event_promised -= events_of(w);
        b->work_first = (b->work_first + 1) % b->work_size;
        b->work_count--;
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* The caller's side. */

static int enqueue(struct ocr_backend *b, const struct cpu_work *w,
                   const unsigned *slots, struct ocr_err *err)
{
    const unsigned events = events_of(w);
    int rc = 0;

    pthread_mutex_lock(&b->lock);
    if (b->lost) {
        rc = ocr_err_set(err, -EIO, "cpu: the device is gone");
    } else if (b->work_count == b->work_size ||
               b->event_count + b->event_promised + events > b->event_size) {
        rc = ocr_err_set(err, -EAGAIN, "cpu: too much is under way");
    } else {
        struct cpu_work *to =
            &b->work[(b->work_first + b->work_count++) % b->work_size];
        unsigned *list = to->slots;

        *to = *w;
        to->slots = list;
        if (w->slot_count)
            memcpy(list, slots, w->slot_count * sizeof *slots);
        b->event_promised += events;
        pthread_cond_signal(&b->wanted);
    }
    pthread_mutex_unlock(&b->lock);
    return rc;
}

static struct cpu_slot *slot_of_page(struct ocr_backend *b, uint64_t page)
{
    for (unsigned i = 0; i < b->plan.slots; i++)
        if (b->slot[i].open && b->slot[i].config.page == page)
            return &b->slot[i];
    return NULL;
}

static int cpu_set_taps(struct ocr_backend *b, const struct ocr_taps *taps,
                        struct ocr_err *err)
{
    int rc = 0;

    pthread_mutex_lock(&b->lock);
    if (b->work_count)
        rc = ocr_err_set(err, -EBUSY, "cpu: taps come before work");
    else
        b->taps = *taps;
    pthread_mutex_unlock(&b->lock);
    return rc;
}

static int check_slot(const struct ocr_backend *b,
                      const struct ocr_slot_config *c, uint32_t *image_tokens,
                      struct ocr_err *err)
{
    const uint64_t tokens = (uint64_t)c->prompt_len + c->max_tokens;
    const uint32_t room = b->plan.slot_blocks * OCR_BLOCK_TOKENS;

    if (!c->prompt_len || !c->max_tokens || c->stop_count > OCR_STOP_IDS)
        return ocr_err_set(err, -EINVAL, "cpu: a page without prompt or room");
    if (c->prompt_len > b->config.prompt_tokens || tokens > room ||
        tokens > b->max_positions)
        return ocr_err_set(err, -E2BIG,
                           "cpu: %" PRIu32 " tokens and %" PRIu32
                           " generated are more than a slot holds, %" PRIu32,
                           c->prompt_len, c->max_tokens, room);
    for (uint32_t i = 0; i < c->prompt_len; i++) {
        if (c->prompt[i] >= b->vocab)
            return ocr_err_set(err, -EINVAL, "cpu: %" PRIu32 " is no id",
                               c->prompt[i]);
        *image_tokens += c->prompt[i] == b->image_token;
    }
    for (uint32_t i = 0; c->forced && i < c->forced_len; i++)
        if (c->forced[i] >= b->vocab)
            return ocr_err_set(err, -EINVAL, "cpu: %" PRIu32 " is no id",
                               c->forced[i]);
    if (c->forced && !c->forced_len)
        return ocr_err_set(err, -EINVAL, "cpu: no ids to force");
    return 0;
}

static int cpu_slot_open(struct ocr_backend *b, unsigned slot,
                         const struct ocr_slot_config *config,
                         struct ocr_err *err)
{
    struct cpu_slot *s = &b->slot[slot];
    uint32_t image_tokens = 0;
    int rc;

    if (slot >= b->plan.slots)
        return ocr_err_set(err, -EINVAL, "cpu: there is no slot %u", slot);
    if (s->open || slot_of_page(b, config->page))
        return ocr_err_set(err, -EBUSY, "cpu: slot %u or its page is in use",
                           slot);
    rc = check_slot(b, config, &image_tokens, err);
    if (rc)
        return rc;
    s->config = *config;
    s->image_tokens = image_tokens;
    s->submitted = s->position = s->image_used = 0;
    s->generated = s->last = 0;
    s->encoded = s->running = s->failed = false;
    atomic_store(&s->cancelled, false);
    memset(s->seen, 0, ((size_t)b->vocab + 63) / 64 * sizeof *s->seen);
    s->open = true;
    return 0;
}

static void cpu_slot_close(struct ocr_backend *b, unsigned slot)
{
    if (slot < b->plan.slots)
        b->slot[slot].open = false;
}

static uint32_t *cpu_block_table(struct ocr_backend *b, unsigned slot)
{
    return slot < b->plan.slots ? b->slot[slot].table : NULL;
}

static int cpu_submit_encode(struct ocr_backend *b, uint64_t ticket,
                             uint64_t page, const uint8_t *rgb, uint32_t width,
                             uint32_t height, struct ocr_err *err)
{
    const struct cpu_slot *s = slot_of_page(b, page);
    const uint32_t columns = width / b->patch, rows = height / b->patch;

    if (!s)
        return ocr_err_set(err, -EINVAL, "cpu: the page has no slot");
    if (!width || !height || width % b->patch || height % b->patch ||
        columns > b->grid || rows > b->grid ||
        columns * rows > b->plan.max_patches)
        return ocr_err_set(err, -EINVAL,
                           "cpu: %" PRIu32 " x %" PRIu32
                           " pixels are no page for this model",
                           width, height);
    if (columns / b->merge * (rows / b->merge) != s->image_tokens)
        return ocr_err_set(err, -EINVAL,
                           "cpu: the prompt has %" PRIu32
                           " image tokens, the page gives %" PRIu32,
                           s->image_tokens,
                           columns / b->merge * (rows / b->merge));
    return enqueue(b,
                   &(struct cpu_work){.kind = CPU_ENCODE,
                                      .ticket = ticket,
                                      .page = page,
                                      .slot = slot_number(b, s),
                                      .rgb = rgb,
                                      .width = width,
                                      .height = height},
                   NULL, err);
}

static int cpu_submit_prefill(struct ocr_backend *b, uint64_t ticket,
                              unsigned slot, uint32_t from, uint32_t count,
                              struct ocr_err *err)
{
    struct cpu_slot *s = &b->slot[slot];
    int rc;

    if (slot >= b->plan.slots || !s->open)
        return ocr_err_set(err, -EINVAL, "cpu: slot %u is not open", slot);
    if (!count || from != s->submitted || count > s->config.prompt_len - from)
        return ocr_err_set(err, -EINVAL,
                           "cpu: the prompt goes on at token %" PRIu32,
                           s->submitted);
    rc = enqueue(b,
                 &(struct cpu_work){.kind = CPU_PREFILL,
                                    .ticket = ticket,
                                    .page = s->config.page,
                                    .slot = slot,
                                    .from = from,
                                    .count = count},
                 NULL, err);
    if (!rc)
        s->submitted += count;
    return rc;
}

static int cpu_submit_decode(struct ocr_backend *b, uint64_t ticket,
                             const unsigned *slots, unsigned count,
                             unsigned steps, struct ocr_err *err)
{
    if (!count || count > b->plan.slots || !steps || steps > OCR_EVENT_IDS)
        return ocr_err_set(err, -EINVAL, "cpu: %u steps of %u slots", steps,
                           count);
    for (unsigned i = 0; i < count; i++)
        if (slots[i] >= b->plan.slots || !b->slot[slots[i]].open ||
            b->slot[slots[i]].submitted < b->slot[slots[i]].config.prompt_len)
            return ocr_err_set(err, -EINVAL, "cpu: slot %u has no prompt",
                               slots[i]);
    return enqueue(b,
                   &(struct cpu_work){.kind = CPU_DECODE,
                                      .ticket = ticket,
                                      .steps = steps,
                                      .slot_count = count},
                   slots, err);
}

static void cpu_cancel(struct ocr_backend *b, uint64_t page)
{
    struct cpu_slot *s = slot_of_page(b, page);

    if (s)
        atomic_store(&s->cancelled, true);
}

static struct timespec deadline(int timeout_ms)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += timeout_ms / 1000;
    t.tv_nsec += timeout_ms % 1000 * 1000000L;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

static int cpu_poll(struct ocr_backend *b, struct ocr_event *events, int room,
                    int timeout_ms)
{
    const struct timespec until = deadline(timeout_ms < 0 ? 0 : timeout_ms);
    int n = 0;

    pthread_mutex_lock(&b->lock);
    while (!b->event_count && !b->woken) {
        if (timeout_ms < 0)
            pthread_cond_wait(&b->happened, &b->lock);
        else if (pthread_cond_timedwait(&b->happened, &b->lock, &until))
            break;
    }
    b->woken = false;
    for (; n < room && b->event_count; b->event_count--) {
        events[n++] = b->event[b->event_first];
        b->event_first = (b->event_first + 1) % b->event_size;
    }
    pthread_mutex_unlock(&b->lock);
    return n;
}

static void cpu_wake(struct ocr_backend *b)
{
    pthread_mutex_lock(&b->lock);
    b->woken = true;
    pthread_cond_signal(&b->happened);
    pthread_mutex_unlock(&b->lock);
}

static void end_driver(struct ocr_backend *b)
{
    pthread_mutex_lock(&b->lock);
    b->stop = true;
    for (unsigned i = 0; i < b->plan.slots; i++)
        atomic_store(&b->slot[i].cancelled, true);
    pthread_cond_signal(&b->wanted);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->driver, NULL);
}

static void cpu_backend_close(struct ocr_backend *b)
{
    if (!b)
        return;
    if (b->driver_started)
        end_driver(b);
    cpu_close(b);
    for (unsigned i = 0; b->work && i < b->work_size; i++)
        free(b->work[i].slots);
    free(b->work);
    free(b->event);
    free(b->pending);
    free(b->active);
    pthread_cond_destroy(&b->wanted);
    pthread_cond_destroy(&b->happened);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static int make_queues(struct ocr_backend *b, struct ocr_err *err)
{
    const unsigned slots = b->plan.slots;
    bool complete;

    b->work_size = 4 * slots + 8;
    b->event_size = 8 * (2 * slots + 1);
    b->work = calloc(b->work_size, sizeof *b->work);
    b->event = calloc(b->event_size, sizeof *b->event);
    b->pending = calloc(slots, sizeof *b->pending);
    b->active = calloc(slots, sizeof(struct cpu_slot *));
    complete = b->work && b->event && b->pending && b->active;
    for (unsigned i = 0; complete && i < b->work_size; i++) {
        b->work[i].slots = calloc(slots, sizeof(unsigned));
        complete = b->work[i].slots != NULL;
    }
    return complete ? 0
                    : ocr_err_set(err, -ENOMEM, "cpu: no memory for queues");
}

static void init_locks(struct ocr_backend *b)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->wanted, NULL);
    pthread_cond_init(&b->happened, &attr);
    pthread_condattr_destroy(&attr);
}

static int cpu_backend_open(struct ocr_backend **out,
                            const struct ocr_backend_config *config,
                            const struct ocr_model *model,
                            struct ocr_backend_plan *plan, struct ocr_err *err)
{
    struct ocr_backend *b = calloc(1, sizeof *b);
    int rc;

    if (!b)
        return ocr_err_set(err, -ENOMEM, "cpu: no memory");
    b->config = *config;
    init_locks(b);
    rc = cpu_open(b, model, err);
    rc = rc ? rc : make_queues(b, err);
    if (!rc && pthread_create(&b->driver, NULL, drive, b))
        rc = ocr_err_set(err, -EAGAIN, "cpu: cannot start a thread");
    if (rc) {
        cpu_backend_close(b);
        return rc;
    }
    b->driver_started = true;
    *plan = b->plan;
    *out = b;
    return 0;
}

const struct ocr_backend_ops ocr_backend_cpu = {
    .abi = OCR_BACKEND_ABI,
    .name = "cpu",
    .open = cpu_backend_open,
    .set_taps = cpu_set_taps,
    .slot_open = cpu_slot_open,
    .slot_close = cpu_slot_close,
    .block_table = cpu_block_table,
    .submit_encode = cpu_submit_encode,
    .submit_prefill = cpu_submit_prefill,
    .submit_decode = cpu_submit_decode,
    .cancel = cpu_cancel,
    .poll = cpu_poll,
    .wake = cpu_wake,
    .close = cpu_backend_close,
};

#include "engine/server/server_i.h"

#include "engine/base/io.h"
#include "engine/base/log.h"
#include "engine/base/setting.h"
#include "engine/finish.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void document_release(struct document *d)
{
    if (!d->forgotten || d->users)
        return;
    ocr_close(d->fd);
    free(d);
}

/* ---- the list of pages -----------------------------------------------------
 */

static void link_page(struct server *s, struct page *p)
{
    p->prev = s->last_page;
    if (s->last_page)
        s->last_page->next = p;
    else
        s->first_page = p;
    s->last_page = p;
}

static void unlink_page(struct server *s, struct page *p)
{
    if (p->prev)
        p->prev->next = p->next;
    else
        s->first_page = p->next;
    if (p->next)
        p->next->prev = p->prev;
    else
        s->last_page = p->prev;
}

static unsigned *counter_of(struct server *s, enum page_state state)
{
    switch (state) {
    case PAGE_DECODING:
        return &s->decoding;
    case PAGE_ASKED:
    case PAGE_DECODED:
        return &s->decoded;
    case PAGE_READING:
        return &s->reading;
    case PAGE_QUEUED:
        break;
    }
    return NULL;
}

static void set_state(struct server *s, struct page *p, enum page_state state)
{
    unsigned *from = counter_of(s, p->state), *to = counter_of(s, state);

    if (from)
        (*from)--;
    if (to)
        (*to)++;
    if (p->state == PAGE_DECODED)
        s->ahead_bytes -= ocr_image_bytes(&p->image); /* NOLINT: as below */
    if (state == PAGE_DECODED)
        s->ahead_bytes += ocr_image_bytes(&p->image); /* NOLINT */
    p->state = state;
    crash_count(s->decoding + s->reading); /* NOLINT: s is never NULL */
}

static struct page *find_id(struct server *s, uint64_t id)
{
    struct page *p = s->first_page;

    while (p && p->id != id)
        p = p->next;
    return p;
}

struct page *page_find(struct server *s, const struct client *c,
                       uint64_t document, uint32_t number)
{
    for (struct page *p = s->first_page; p; p = p->next)
        if (p->client == c && !p->cancelled &&
            p->document->number == document && p->number == number)
            return p;
    return NULL;
}

/* The page is in no other thread's hands any more. */
static void free_page(struct server *s, struct page *p)
{
    set_state(s, p, PAGE_QUEUED);
    unlink_page(s, p);
    if (p->client)
        p->client->pages--;
    ocr_decoded_release(&p->image);
    p->document->users--;
    document_release(p->document);
    free(p->settings);
    free(p);
}

/* A document of one page, or one that did not open, is done with its answer;
 * others are when their client says so. */
static void forget(struct page *p)
{
    struct document **at = &p->client->documents;

    if (p->document->pages > 1)
        return;
    while (*at && *at != p->document)
        at = &(*at)->next;
    if (*at) {
        *at = p->document->next;
        p->document->forgotten = true;
    }
}

static void answer_error(struct server *s, struct page *p, enum ocr_kind kind,
                         const char *sentence)
{
    if (p->client) {
        client_error(p->client, p->document->number, p->number, kind, sentence);
        forget(p);
    }
    free_page(s, p);
}

static void answer_text(struct server *s, struct page *p, const char *text,
                        size_t len, unsigned flags)
{
    struct ocr_message m = {.type = OCR_MSG_TEXT,
                            .document = p->document->number,
                            .page = p->number,
                            .value = len,
                            .flags = flags};
    struct ocr_err err = OCR_ERR_INIT;
    int fd = -1;

    if (p->image.partial)
        m.flags |= OCR_TEXT_PARTIAL;
    if (len <= OCR_TEXT_INLINE) {
        m.length = (uint32_t)len;
    } else {
        fd = ocr_memfd("ocrfs-text", &err);
        if (fd < 0 || ocr_pwrite_full(fd, text, len, 0) ||
            ocr_memfd_seal(fd, &err)) {
            ocr_close(fd);
            answer_error(s, p, OCR_KIND_FAILED,
                         "no memory to pass the text on");
            return;
        }
    }
    if (p->client) {
        client_send(p->client, &m, text, fd);
        forget(p);
    } else {
        ocr_close(fd);
    }
    free_page(s, p);
}

static void tell_progress(struct page *p, enum ocr_stage stage)
{
    const struct ocr_message m = {.type = OCR_MSG_PROGRESS,
                                  .document = p->document->number,
                                  .page = p->number,
                                  .value = stage};

    if (p->client)
        client_send(p->client, &m, NULL, -1);
}

/* ---- pages that do not end
 * ---------------------------------------------------- */

/* Long enough for a library to look up from what it does. */
enum {
    CANCEL_LIMIT_MS = 20000
};

static int64_t cpu_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void start_clock(struct page *p)
{
    p->since_ms = ocr_now_ms();
    p->since_cpu_ms = cpu_ms();
}

/* Both clocks, so that a busy machine is not taken for a page without end. */
static bool is_overdue(const struct server *s, const struct page *p,
                       int64_t now_ms, int64_t now_cpu_ms)
{
    const int64_t limit =
        p->cancelled ? CANCEL_LIMIT_MS : (int64_t)s->ops->limit_s * 1000;

    return p->state == PAGE_READING && now_ms - p->since_ms >= limit &&
           now_cpu_ms - p->since_cpu_ms >= limit;
}

void pages_watch(struct server *s)
{
    const int64_t now_ms = ocr_now_ms(), now_cpu_ms = cpu_ms();

    if (!s->ops->limit_s)
        return;
    for (struct page *p = s->first_page; p; p = p->next) {
        if (!is_overdue(s, p, now_ms, now_cpu_ms))
            continue;
        ocr_error("%s does not end with a page: the engine starts anew",
                  s->ops->name);
        abort(); /* the clients are told, and find out which page it is */
    }
}

/* ---- a device that may hang ---------------------------------------------- */

static void send_beat(struct client *c, const struct ocr_beat *beat)
{
    const struct ocr_message m = {
        .type = OCR_MSG_BEAT, .value = beat->finished, .flags = beat->limit_ms};

    client_send(c, &m, NULL, -1);
}

void pages_beat(struct server *s)
{
    enum {
        BEAT_MS = 1000
    };
    const int64_t now = ocr_now_ms();
    struct ocr_beat beat;

    if (!s->ops->beat || !s->reading || now - s->beat_ms < BEAT_MS)
        return;
    s->beat_ms = now;
    s->ops->beat(s->recogniser, &beat);
    for (struct client *c = s->clients; c; c = c->next)
        if (c->pages && beat.limit_ms)
            send_beat(c, &beat);
}

void pages_lost(struct server *s, const struct ocr_loss *loss)
{
    const struct ocr_message m = {.type = OCR_MSG_LOST,
                                  .value = loss->device_fault,
                                  .length = (uint32_t)strlen(loss->sentence)};

    for (unsigned i = 0; i < loss->count; i++) {
        struct page *p = find_id(s, loss->suspects[i]);

        if (p)
            tell_progress(p, OCR_STAGE_SUSPECT);
    }
    for (struct client *c = s->clients; c; c = c->next)
        client_send(c, &m, loss->sentence, -1);
}

/* ---- coming and going -------------------------------------------------------
 */

void page_add(struct server *s, struct client *c, struct document *d,
              uint32_t number, enum ocr_priority priority, bool alone)
{
    struct page *p = calloc(1, sizeof *p);

    if (!p || !(p->settings = strdup(c->settings))) {
        free(p);
        client_error(c, d->number, number, OCR_KIND_FAILED,
                     "the engine is out of memory");
        return;
    }
    p->id = ++s->next_id;
    p->client = c;
    p->document = d;
    p->number = number;
    p->priority = priority;
    p->alone = alone;
    p->turn = ++s->next_turn;
    d->users++;
    c->pages++;
    link_page(s, p);
}

void page_prioritise(struct server *s, struct page *p,
                     enum ocr_priority priority)
{
    const bool urgent = priority == OCR_PRIORITY_INTERACTIVE;

    p->priority = priority;
    if (urgent && p->state == PAGE_READING && s->ops->urge)
        s->ops->urge(s->recogniser, p->id);
}

void page_cancel(struct server *s, struct page *p)
{
    if (p->cancelled)
        return;
    p->cancelled = true;
    switch (p->state) {
    case PAGE_QUEUED:
    case PAGE_ASKED:
    case PAGE_DECODED:
        answer_error(s, p, OCR_KIND_CANCELLED, "nobody waited any more");
        break;
    case PAGE_DECODING:
        ocr_decode_cancel(s->pool, p->id);
        break;
    case PAGE_READING:
        start_clock(p);
        s->ops->cancel(s->recogniser, p->id);
        break;
    }
}

void pages_orphan(struct server *s, struct client *c)
{
    for (struct page *p = s->first_page, *next; p; p = next) {
        next = p->next;
        if (p->client != c)
            continue;
        p->client = NULL;
        page_cancel(s, p);
    }
}

static enum ocr_tables tables_of(const struct page *p)
{
    char value[8];

    ocr_setting(p->settings, "tables", "pipe", value, sizeof value);
    return strcmp(value, "html") ? OCR_TABLES_PIPE : OCR_TABLES_HTML;
}

/* The page brought its text with it: nobody has to read it. */
static void answer_layer(struct server *s, struct page *p)
{
    struct ocr_err err = OCR_ERR_INIT;
    char *marked = NULL, *finished = NULL;
    unsigned flags = 0;
    size_t len = 0;
    int rc = ocr_finish_plain(&marked, &len, (const char *)p->image.pixels,
                              p->image.text, &err);

    if (rc == 0)
        rc = ocr_finish(&finished, &len, &flags, marked, len, tables_of(p),
                        &err);
    free(marked);
    if (rc)
        answer_error(s, p, OCR_KIND_FAILED, err.text);
    else
        answer_text(s, p, finished, len, flags);
    free(finished);
}

/* The first page of a document that was decoded tells how many there are. */
static void count_pages(struct page *p, uint32_t pages)
{
    struct document *d = p->document;

    if (d->pages || !pages)
        return;
    d->pages = pages;
    if (p->client)
        client_pages(p->client, d);
}

/* A page of many: perhaps the client knows one of these pixels. */
static void ask(struct server *s, struct page *p, const uint8_t digest[16])
{
    const struct ocr_message m = {.type = OCR_MSG_DIGEST,
                                  .document = p->document->number,
                                  .page = p->number,
                                  .length = 16};

    set_state(s, p, PAGE_ASKED);
    client_send(p->client, &m, digest, -1);
}

void page_go(struct server *s, struct page *p)
{
    if (p->state == PAGE_ASKED)
        set_state(s, p, PAGE_DECODED);
}

void page_decoded(struct server *s, struct ocr_decoded *decoded)
{
    struct page *p = find_id(s, decoded->id);

    if (!p) {
        ocr_decoded_release(&decoded->image);
        return;
    }
    count_pages(p, decoded->pages);
    if (decoded->kind) {
        answer_error(s, p, decoded->kind, decoded->sentence);
        return;
    }
    p->image = decoded->image;
    set_state(s, p, PAGE_DECODED);
    if (p->cancelled)
        answer_error(s, p, OCR_KIND_CANCELLED, "nobody waited any more");
    else if (p->image.text)
        answer_layer(s, p);
    else if (p->image.blank)
        answer_text(s, p, "", 0, OCR_TEXT_BLANK);
    else if (decoded->has_digest && p->client)
        ask(s, p, decoded->digest);
}

/* Pixels instead of a text (ocrfs read --dump-pages): nothing to finish. */
static bool wants_pixels(const struct page *p)
{
    char value[2];

    return *ocr_setting(p->settings, "dump", "0", value, sizeof value) == '1';
}

void page_recognised(struct server *s, struct ocr_recognised *text)
{
    struct page *p = find_id(s, text->id);
    struct ocr_err err = OCR_ERR_INIT;
    char *finished = NULL;
    unsigned flags = 0;
    size_t len = 0;

    if (!p)
        return;
    if (text->pixels_done)
        ocr_decoded_release(&p->image);
    else if (text->kind)
        answer_error(s, p, text->kind, text->sentence);
    else if (wants_pixels(p))
        answer_text(s, p, text->text, text->len, text->flags);
    else if (ocr_finish(&finished, &len, &flags, text->text, text->len,
                        tables_of(p), &err))
        answer_error(s, p, OCR_KIND_FAILED, err.text);
    else
        answer_text(s, p, finished, len, flags | text->flags);
    free(finished);
}

/* ---- handing pages on
 * ---------------------------------------------------------- */

/* The order of pages in one state: interactive before the rest, then the
 * client that was served longest ago, then first come first served. */
static bool before(const struct page *a, const struct page *b)
{
    if (a->priority != b->priority)
        return a->priority > b->priority;
    if (a->client != b->client && a->client && b->client &&
        a->client->served != b->client->served)
        return a->client->served < b->client->served;
    return a->turn < b->turn;
}

static struct page *best(struct server *s, enum page_state state)
{
    struct page *found = NULL;

    for (struct page *p = s->first_page; p; p = p->next)
        if (p->state == state && (!found || before(p, found)))
            found = p;
    return found;
}

/* True if `p` may start beside what is in work: one that must be alone waits
 * until nothing is, and nothing starts beside one. */
static bool may_start(const struct server *s, const struct page *p)
{
    if (p->alone)
        return s->decoding + s->decoded + s->reading == 0;
    for (const struct page *o = s->first_page; o; o = o->next)
        if (o->alone && o->state != PAGE_QUEUED)
            return false;
    return true;
}

static bool start_decoding(struct server *s, struct page *p)
{
    const struct document *d = p->document;
    char partial[8], pdf[8];
    struct ocr_decode_task task = {.id = p->id,
                                   .document = d->id,
                                   .fd = d->fd,
                                   .size = d->size,
                                   .page = p->number,
                                   .helper = d->helper,
                                   .priority = p->priority,
                                   .check = d->checked ? &d->check : NULL,
                                   .secret = d->keyed ? d->check.secret : NULL,
                                   .limits = OCR_IMAGE_LIMITS_DEFAULT};
    struct ocr_err err = OCR_ERR_INIT;

    task.limits.partial = !strcmp(
        ocr_setting(p->settings, "partial", "0", partial, sizeof partial), "1");
    task.limits.text = !strcmp(
        ocr_setting(p->settings, "pdf", "ocr", pdf, sizeof pdf), "text");
    set_state(s, p, PAGE_DECODING);
    tell_progress(p, OCR_STAGE_DECODING);
    if (p->client)
        p->client->served = ++s->next_turn;
    if (!ocr_decode_submit(s->pool, &task, &err))
        return true;
    answer_error(s, p, OCR_KIND_FAILED, err.text);
    return false;
}

static bool start_reading(struct server *s, struct page *p)
{
    const struct ocr_page page = {.id = p->id,
                                  .image = p->image,
                                  .settings = p->settings,
                                  .urgent =
                                      p->priority == OCR_PRIORITY_INTERACTIVE};
    struct ocr_err err = OCR_ERR_INIT;
    int rc;

    set_state(s, p, PAGE_READING);
    start_clock(p);
    rc = s->ops->submit(s->recogniser, &page, &err);
    if (rc == -EAGAIN) {
        set_state(s, p, PAGE_DECODED);
        return false;
    }
    tell_progress(p, OCR_STAGE_READING);
    if (rc)
        answer_error(s, p, err.kind ? err.kind : OCR_KIND_FAILED, err.text);
    return true;
}

/* Pixels that wait for the recogniser: many A4 pages, a few of the largest. */
#define AHEAD_BYTES_MAX ((uint64_t)1 << 30)

/* A page that somebody waits for finds a place to be decoded in; and one to be
 * read in, where one is a small part of all. */
static bool may_decode(const struct server *s, const struct page *p)
{
    const bool urgent = p->priority == OCR_PRIORITY_INTERACTIVE;

    return s->decoding + s->decoded < s->capacity + urgent &&
           (urgent || s->ahead_bytes < AHEAD_BYTES_MAX) && may_start(s, p);
}

static bool may_read(const struct server *s, const struct page *p)
{
    const bool keep =
        s->capacity >= 8 && p->priority < OCR_PRIORITY_INTERACTIVE;

    return s->reading + keep < s->capacity;
}

void pages_advance(struct server *s)
{
    struct page *p;

    if (s->load != LOAD_DONE)
        return;
    while ((p = best(s, PAGE_DECODED)) && may_read(s, p))
        if (!start_reading(s, p))
            break;
    while ((p = best(s, PAGE_QUEUED)) && may_decode(s, p))
        start_decoding(s, p);
}

#include "engine/server/server_i.h"

#include "engine/base/io.h"
#include "engine/base/log.h"
#include "engine/server/formats.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- sending ---------------------------------------------------------------
 */

static void free_outgoing(struct outgoing *o)
{
    ocr_close(o->header.fd);
    free(o);
}

static void keep_outgoing(struct client *c, const struct ocr_message *header,
                          const void *payload)
{
    struct outgoing *o = malloc(sizeof *o + header->length);

    if (!o) {
        c->gone = true; /* better no client than one that misses an answer */
        ocr_close(header->fd);
        return;
    }
    memcpy(&o->header, header, offsetof(struct ocr_message, payload));
    if (payload)
        memcpy(o->payload, payload, header->length);
    o->next = NULL;
    if (c->last_out)
        c->last_out->next = o;
    else
        c->first_out = o;
    c->last_out = o;
}

void client_send(struct client *c, const struct ocr_message *header,
                 const void *payload, int fd)
{
    struct ocr_message m;
    int rc = -EAGAIN;

    memcpy(&m, header, offsetof(struct ocr_message, payload));
    m.fd = fd;
    if (c->gone) {
        ocr_close(fd);
        return;
    }
    if (!c->first_out)
        rc = ocr_message_send(c->sock, &m, payload);
    if (rc == -EAGAIN) {
        keep_outgoing(c, &m, payload);
        return;
    }
    if (rc)
        c->gone = true;
    ocr_close(fd);
}

void client_flush(struct client *c)
{
    while (c->first_out) {
        struct outgoing *o = c->first_out;
        const int rc = ocr_message_send(c->sock, &o->header, o->payload);

        if (rc == -EAGAIN)
            return;
        if (rc)
            c->gone = true;
        c->first_out = o->next;
        if (!c->first_out)
            c->last_out = NULL;
        free_outgoing(o);
    }
}

void client_error(struct client *c, uint64_t document, uint32_t page,
                  enum ocr_kind kind, const char *sentence)
{
    const struct ocr_message m = {.type = OCR_MSG_ERROR,
                                  .document = document,
                                  .page = page,
                                  .value = kind,
                                  .length = (uint32_t)strlen(sentence)};

    client_send(c, &m, sentence, -1);
}

/* ---- greeting
 * ------------------------------------------------------------------ */

static void say_not_loaded(const struct server *s, struct client *c)
{
    const char *why = s->load_error.text;
    const struct ocr_message m = {
        .type = OCR_MSG_ERROR,
        .value = OCR_KIND_GONE,
        .flags = s->load_error.code == -EHOSTUNREACH ? OCR_ERROR_AWAY : 0,
        .length = (uint32_t)strlen(why)};

    client_send(c, &m, why, -1);
}

void client_greet(struct server *s, struct client *c)
{
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_message m = {.type = OCR_MSG_READY};
    char fingerprint[200], details[256] = "", payload[800];

    if (!c->hello || c->ready_sent || s->load == LOAD_RUNNING)
        return;
    if (s->load == LOAD_FAILED) {
        say_not_loaded(s, c);
        return;
    }
    if (s->ops->fingerprint(s->recogniser, c->settings, fingerprint,
                            sizeof fingerprint, &err)) {
        client_error(c, 0, 0, OCR_KIND_GONE, err.text);
        return;
    }
    if (s->ops->describe)
        s->ops->describe(s->recogniser, details, sizeof details);
    snprintf(payload, sizeof payload, "%s\n%s\n%s %s\n%s", fingerprint,
             s->ops->device(s->recogniser), s->ops->name, OCR_VERSION, details);
    /* Each client may fill the recogniser and have as much again decoded
     * ahead, and one more: its queue keeps a place for a page that somebody
     * waits for. Who is served first is decided page by page. */
    m.value = (uint64_t)2 * s->capacity + 1;
    m.length = (uint32_t)strlen(payload);
    client_send(c, &m, payload, -1);
    c->ready_sent = true;
}

static bool same_user(int sock)
{
    struct ucred peer;
    socklen_t size = sizeof peer;

    return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

void client_accept(struct server *s)
{
    const int sock =
        accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    const struct ocr_message hello = {.type = OCR_MSG_HELLO,
                                      .value = OCR_PROTOCOL_VERSION,
                                      .length = sizeof OCR_VERSION - 1};
    struct client *c;

    if (sock < 0)
        return;
    c = calloc(1, sizeof *c);
    if (!c || !same_user(sock) || !(c->settings = strdup(""))) {
        free(c);
        ocr_close(sock);
        return;
    }
    c->sock = sock;
    s->idle_since_ms = ocr_now_ms(); /* it came for something */
    c->next = s->clients;
    s->clients = c;
    crash_watch(sock, true);
    client_send(c, &hello, OCR_VERSION, -1);
}

void client_free(struct client *c)
{
    while (c->documents) {
        struct document *d = c->documents;

        c->documents = d->next;
        d->forgotten = true;
        document_release(d);
    }
    while (c->first_out) {
        struct outgoing *o = c->first_out;

        c->first_out = o->next;
        free_outgoing(o);
    }
    crash_watch(c->sock, false);
    ocr_close(c->sock);
    free(c->settings);
    free(c);
}

/* ---- messages
 * ------------------------------------------------------------------ */

static struct document *find_document(struct client *c, uint64_t number)
{
    struct document *d = c->documents;

    while (d && d->number != number)
        d = d->next;
    return d;
}

static void forget_document(struct client *c, struct document *d)
{
    struct document **at = &c->documents;

    while (*at != d)
        at = &(*at)->next;
    *at = d->next;
    d->forgotten = true;
    document_release(d);
}

/* A memfd must be sealed: nobody may change or shrink it under a decoder. */
static bool sound_descriptor(const struct ocr_message *m)
{
    const int seals = F_SEAL_WRITE | F_SEAL_SHRINK;
    struct stat st;

    if (m->fd < 0 || fstat(m->fd, &st) || !S_ISREG(st.st_mode) ||
        (m->length && m->length != sizeof(struct ocr_open_check)))
        return false;
    if (m->flags & OCR_OPEN_CHECK)
        return m->length != 0;
    return (uint64_t)st.st_size == m->value &&
           (fcntl(m->fd, F_GET_SEALS) & seals) == seals;
}

/* What it is by its first bytes. One that cannot be read is found out when it
 * is decoded. */
static enum ocr_format sniff(const struct document *d)
{
    uint8_t head[OCR_SNIFF_BYTES];
    const ssize_t n = ocr_pread_full(d->fd, head, sizeof head, 0);

    return n > 0 ? ocr_image_sniff(head, (size_t)n) : OCR_FORMAT_UNKNOWN;
}

/* The verdict from the first bytes. */
static int look_at(int fd, struct ocr_err *err)
{
    uint8_t head[OCR_SNIFF_BYTES];
    const ssize_t n = ocr_pread_full(fd, head, sizeof head, 0);

    if (n < 0)
        return ocr_err_set(err, (int)n, "cannot read the image: %s",
                           strerror((int)-n));
    return ocr_image_check(head, (size_t)n, err);
}

void client_pages(struct client *c, const struct document *d)
{
    const struct ocr_message pages = {
        .type = OCR_MSG_PAGES, .document = d->number, .value = d->pages};

    client_send(c, &pages, NULL, -1);
}

/* Documents of many pages are counted with the first page that is decoded. */
static void got_open(struct server *s, struct client *c, struct ocr_message *m)
{
    struct document *d;
    enum ocr_format format;

    if (!m->document || find_document(c, m->document) || !sound_descriptor(m)) {
        c->gone = true; /* not one of ours */
        return;
    }
    d = calloc(1, sizeof *d);
    if (!d) {
        c->gone = true;
        return;
    }
    d->number = m->document;
    d->id = ++s->next_document;
    d->fd = m->fd;
    m->fd = -1;
    d->size = m->value;
    d->keyed = m->length == sizeof d->check;
    d->checked = m->flags & OCR_OPEN_CHECK;
    memcpy(&d->check, m->payload, m->length);
    format = sniff(d);
    d->helper = ocr_formats_helper(format);
    d->pages = !ocr_format_has_pages(format);
    d->next = c->documents;
    c->documents = d;
    if (d->pages)
        client_pages(c, d);
}

/* READ of a page that is in work already. */
static void read_again(struct server *s, struct page *p,
                       enum ocr_priority priority, unsigned flags)
{
    page_prioritise(s, p, priority);
    if (flags & OCR_READ_GO)
        page_go(s, p);
}

static void got_read(struct server *s, struct client *c,
                     const struct ocr_message *m)
{
    struct document *d = find_document(c, m->document);
    struct page *p = page_find(s, c, m->document, m->page);
    const enum ocr_priority priority = m->value <= OCR_PRIORITY_INTERACTIVE
                                           ? (enum ocr_priority)m->value
                                           : OCR_PRIORITY_BACKGROUND;
    struct ocr_err err = OCR_ERR_INIT;

    if (p) {
        read_again(s, p, priority, m->flags);
        return;
    }
    if (!d || (d->pages && m->page >= d->pages)) {
        client_error(c, m->document, m->page, OCR_KIND_FAILED,
                     "there is no such page");
        return;
    }
    if (look_at(d->fd, &err)) {
        client_error(c, m->document, m->page,
                     err.kind ? err.kind : OCR_KIND_FAILED, err.text);
        forget_document(c, d);
        return;
    }
    page_add(s, c, d, m->page, priority, m->flags & OCR_READ_ALONE);
}

static void got_cancel(struct server *s, struct client *c,
                       const struct ocr_message *m)
{
    struct document *d;

    for (struct page *p = s->first_page, *next; p; p = next) {
        next = p->next;
        if (p->client == c && p->document->number == m->document &&
            (m->page == OCR_PAGE_ALL || m->page == p->number))
            page_cancel(s, p);
    }
    d = find_document(c, m->document); /* its last page may have freed it */
    if (d && m->page == OCR_PAGE_ALL)
        forget_document(c, d);
}

static void got_hello(struct server *s, struct client *c,
                      const struct ocr_message *m)
{
    char *settings = strdup(m->payload);

    if (m->value != OCR_PROTOCOL_VERSION || c->hello || !settings) {
        free(settings);
        client_error(c, 0, 0, OCR_KIND_GONE,
                     "the engine speaks another version of the protocol");
        c->gone = true;
        return;
    }
    free(c->settings);
    c->settings = settings;
    c->hello = true;
    client_greet(s, c);
}

static void handle(struct server *s, struct client *c, struct ocr_message *m)
{
    if (m->type == OCR_MSG_HELLO)
        got_hello(s, c, m);
    else if (m->type == OCR_MSG_OPEN && c->ready_sent)
        got_open(s, c, m);
    else if (m->type == OCR_MSG_READ && c->ready_sent)
        got_read(s, c, m);
    else if (m->type == OCR_MSG_CANCEL && c->ready_sent)
        got_cancel(s, c, m);
    else
        c->gone = true; /* nothing a client of this version says */
}

void client_receive(struct server *s, struct client *c)
{
    static struct ocr_message m; /* main thread only; too large for a stack */

    while (!c->gone) {
        const int rc = ocr_message_receive(c->sock, &m);

        if (rc == -EAGAIN)
            return;
        if (rc <= 0) {
            c->gone = true;
            return;
        }
        handle(s, c, &m);
        m.fd = ocr_close(m.fd);
    }
}

/* tests/fuzz/protocol.h - what an engine hears from a client, and a client
 * from an engine. The bytes are a script of messages:
 *
 *   type and descriptor, document, page, value, flags, length, payload... */
#ifndef FUZZ_PROTOCOL_H
#define FUZZ_PROTOCOL_H
#include "engine/base/io.h"
#include "engine/client/queue_i.h"
#include "engine/protocol.h"
#include "engine/server/server_i.h"
#include "tests/fuzz/must.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    FUZZ_RAW = 14,  /* a packet of any bytes */
    FUZZ_FULL = 15, /* a payload of the size that OPEN may have */
};

/* -1, a sealed and an open memfd, a device. */
static inline int fuzz_descriptor(unsigned kind)
{
    int fd;

    if (kind == 3)
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (kind == 0)
        return -1;
    fd = ocr_memfd("fuzz", NULL);
    must(fd >= 0 && ocr_pwrite_full(fd, "text", 4, 0) == 0);
    if (kind == 1)
        must(ocr_memfd_seal(fd, NULL) == 0);
    return fd;
}

/* False when the script is at its end. */
static inline bool fuzz_say(int sock, struct fuzz_input *in)
{
    static char payload[OCR_PAYLOAD_MAX];
    const unsigned first = fuzz_byte(in), type = first & 15;
    struct ocr_message m = {.type = type, .document = fuzz_byte(in)};
    unsigned length;

    if (!in->size)
        return false;
    m.page = fuzz_byte(in);
    m.value = fuzz_byte(in);
    m.flags = fuzz_byte(in);
    length = fuzz_byte(in);
    if (length > in->size)
        length = (unsigned)in->size;
    if (m.page == 255)
        m.page = OCR_PAGE_ALL;
    if (m.value > 250)
        m.value <<= (m.value - 250) * 11;
    memset(payload, 0, 512);
    memcpy(payload, fuzz_bytes(in, length), length);
    m.length = length;
    if (type == FUZZ_RAW)
        return send(sock, payload, length, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
    if (type == FUZZ_FULL) {
        m.type = OCR_MSG_OPEN;
        m.length = sizeof(struct ocr_open_check);
    }
    m.fd = fuzz_descriptor(first >> 4 & 3);
    must(ocr_message_send(sock, &m, payload) != -EMSGSIZE);
    ocr_close(m.fd);
    return true;
}

static inline void fuzz_listen(int sock)
{
    static struct ocr_message m;
    int rc;

    while ((rc = ocr_message_receive(sock, &m)) == 1) {
        must(m.type == OCR_MSG_PAGES || m.type == OCR_MSG_ERROR ||
             m.type == OCR_MSG_READY);
        m.fd = ocr_close(m.fd);
    }
    must(rc == 0 || rc == -EAGAIN || rc == -ECONNRESET);
}

static inline int fuzz_lowest_descriptor(void)
{
    const int fd = dup(STDIN_FILENO);

    return close(fd) ? -1 : fd;
}

/* ---- the engine hears --------------------------------------------------- */

static inline struct client *fuzz_connect(struct server *s, int sock)
{
    struct client *c = calloc(1, sizeof *c);

    must(c);
    c->sock = sock;
    c->settings = strdup("");
    c->next = s->clients;
    s->clients = c;
    return c;
}

static inline int fuzz_server(const uint8_t *data, size_t size)
{
    const struct ocr_recogniser_config config = {
        .arguments = "", .device = "cpu", .model = ""};
    struct server s = {
        .ops = &ocr_recogniser_null, .load = LOAD_DONE, .capacity = 8};
    struct fuzz_input in = {data, size};
    const int lowest = fuzz_lowest_descriptor();
    int ends[2], rounds = 0;
    struct client *c;

    must(s.ops->open(&s.recogniser, &config, NULL) == 0);
    must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    c = fuzz_connect(&s, ends[0]);
    while (!c->gone && rounds++ < 200 && fuzz_say(ends[1], &in)) {
        client_receive(&s, c);
        client_flush(c);
        fuzz_listen(ends[1]);
    }
    s.clients = NULL;
    pages_orphan(&s, c);
    client_free(c);
    must(!s.first_page && !s.decoding && !s.decoded && !s.reading);
    close(ends[1]);
    s.ops->close(s.recogniser);
    must(lowest == fuzz_lowest_descriptor());
    return 0;
}

/* ---- the client hears --------------------------------------------------- */

enum {
    FUZZ_JOBS = 3
};

struct fuzz_waiter {
    struct ocr_waiter waiter; /* first */
    unsigned done;
};

static inline void fuzz_done(struct ocr_waiter *waiter,
                             const struct ocr_result *result)
{
    struct fuzz_waiter *w = (struct fuzz_waiter *)waiter;

    must(result->kind <= OCR_KIND_LAST && result->sentence);
    must(result->kind || (result->text && result->text[result->len] == '\0'));
    must(w->done++ == 0);
}

static inline void fuzz_ready(void *arg, const char *fingerprint,
                              const char *device, const char *version)
{
    (void)arg;
    must(fingerprint && device && version);
}

/* A job in the engine, with one who waits. */
static inline void fuzz_job(struct engine *e, struct fuzz_waiter *w,
                            unsigned number)
{
    struct ocr_job *job = calloc(1, sizeof *job);

    must(job);
    job->document = number;
    job->engine = e;
    job->label = strdup("a");
    job->content.fd = -1;
    job->waiters = &w->waiter;
    *w = (struct fuzz_waiter){.waiter = {.done = fuzz_done, .job = job}};
    queue_run(e, job);
}

static inline int fuzz_client(const uint8_t *data, size_t size)
{
    static struct ocr_message message;
    struct ocr_queue q = {.message = &message,
                          .wake = -1,
                          .hooks = {.ready = fuzz_ready},
                          .lock = PTHREAD_MUTEX_INITIALIZER,
                          .connected = PTHREAD_COND_INITIALIZER,
                          .engines = 1};
    struct engine *e = &q.engine[0];
    struct fuzz_input in = {data, size};
    const int lowest = fuzz_lowest_descriptor();
    struct fuzz_waiter waiters[FUZZ_JOBS];
    int ends[2], rounds = 0;

    must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    *e = (struct engine){.sock = ends[0], .pidfd = -1};
    e->stats.state =
        fuzz_byte(&in) % 2 ? OCR_ENGINE_READY : OCR_ENGINE_STARTING;
    pthread_mutex_lock(&q.lock);
    for (unsigned i = 0; i < FUZZ_JOBS; i++)
        fuzz_job(e, &waiters[i], i + 1);
    while (e->sock >= 0 && rounds++ < 200 && fuzz_say(ends[1], &in))
        queue_receive(&q, e);
    close(ends[1]);
    queue_receive(&q, e);
    must(e->sock == -1);
    while (e->running.first) { /* it died before it was ready */
        struct ocr_job *job = e->running.first;

        queue_unrun(e, job);
        queue_wait(&q, job, true);
    }
    queue_fail_waiting(&q, OCR_KIND_STOPPING, "the end");
    pthread_mutex_unlock(&q.lock);
    for (unsigned i = 0; i < FUZZ_JOBS; i++)
        must(waiters[i].done == 1);
    must(lowest == fuzz_lowest_descriptor());
    return 0;
}

#endif

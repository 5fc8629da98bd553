#include "engine/server/server_i.h"

#include "engine/base/io.h"
#include "engine/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the mailbox ------------------------------------------------------------
 */

static void wake(struct server *s)
{
    const uint64_t one = 1;

    if (write(s->wake, &one, sizeof one) < 0)
        return; /* full: awake already */
}

static void post(struct server *s, struct letter *letter)
{
    letter->next = NULL;
    pthread_mutex_lock(&s->mailbox);
    if (s->last_letter)
        s->last_letter->next = letter;
    else
        s->first_letter = letter;
    s->last_letter = letter;
    pthread_mutex_unlock(&s->mailbox);
    wake(s);
}

static struct letter *new_letter(void)
{
    struct letter *letter = calloc(1, sizeof *letter);

    if (!letter) {
        /* A page would never be answered: let the client start another. */
        ocr_error("out of memory");
        abort();
    }
    return letter;
}

static void on_decoded(void *arg, const struct ocr_decoded *decoded)
{
    struct letter *letter = new_letter();

    letter->kind = LETTER_DECODED;
    letter->decoded = *decoded;
    post(arg, letter);
}

/* The main thread tells the clients and ends the process; if it cannot, this
 * does. */
static void on_lost(void *arg, const struct ocr_loss *loss)
{
    enum {
        PATIENCE_S = 2
    };
    struct letter *letter = new_letter();

    letter->kind = LETTER_LOST;
    letter->loss = *loss;
    post(arg, letter);
    sleep(PATIENCE_S);
    _exit(1);
}

static void *take_results(void *arg)
{
    struct server *s = arg;

    for (;;) {
        struct letter *letter = new_letter();

        letter->kind = LETTER_RECOGNISED;
        if (s->ops->next(s->recogniser, &letter->text)) {
            free(letter);
            return NULL;
        }
        post(s, letter);
    }
}

static struct letter *take_letters(struct server *s)
{
    struct letter *first;

    pthread_mutex_lock(&s->mailbox);
    first = s->first_letter;
    s->first_letter = s->last_letter = NULL;
    pthread_mutex_unlock(&s->mailbox);
    return first;
}

/* Whatever still waits in a queue of the device would be wrong: this process
 * is over. What else it held is sent again by the clients. */
__attribute__((noreturn)) static void lose(struct server *s,
                                           const struct ocr_loss *loss)
{
    ocr_error("%s", loss->sentence);
    pages_lost(s, loss);
    _exit(1);
}

static void read_letters(struct server *s)
{
    struct letter *letter = take_letters(s);

    while (letter) {
        struct letter *next = letter->next;

        if (letter->kind == LETTER_LOST) {
            lose(s, &letter->loss);
        } else if (letter->kind == LETTER_RECOGNISED) {
            page_recognised(s, &letter->text);
            free(letter->text.text);
        } else {
            page_decoded(s, &letter->decoded);
        }
        free(letter);
        letter = next;
    }
}

/* ---- loading
 * ------------------------------------------------------------------- */

/* Loading a model may take long; clients are greeted meanwhile. */
static void *load(void *arg)
{
    struct server *s = arg;

    s->ops->open(&s->recogniser, &s->config, &s->load_error);
    pthread_mutex_lock(&s->mailbox);
    s->loaded = true;
    pthread_mutex_unlock(&s->mailbox);
    wake(s);
    return NULL;
}

static bool has_loaded(struct server *s)
{
    bool loaded;

    pthread_mutex_lock(&s->mailbox);
    loaded = s->loaded;
    pthread_mutex_unlock(&s->mailbox);
    return loaded;
}

static void finish_loading(struct server *s)
{
    pthread_join(s->loader, NULL);
    s->load = s->recogniser ? LOAD_DONE : LOAD_FAILED;
    if (s->load == LOAD_DONE &&
        pthread_create(&s->reader, NULL, take_results, s)) {
        ocr_err_set(&s->load_error, -ENOMEM, "cannot start a thread");
        s->load = LOAD_FAILED;
    }
    if (s->load == LOAD_DONE) {
        s->capacity = s->ops->capacity(s->recogniser);
        /* The process goes, since what CUDA itself holds of a GPU does not go
         * before. */
        if (!strncmp(s->ops->device(s->recogniser), "cuda", 4) &&
            s->gpu_idle_s < s->idle_s)
            s->idle_s = s->gpu_idle_s;
    } else {
        ocr_error("%s", s->load_error.text);
    }
    for (struct client *c = s->clients; c; c = c->next)
        client_greet(s, c);
}

/* ---- ending when idle
 * ------------------------------------------------------------ */

/* Takes the socket away, unless somebody is connecting: true if the engine may
 * end. Starters hold the same lock, so none can find a socket that dies. */
static bool close_shop(struct server *s)
{
    char path[PATH_MAX];
    struct pollfd fd = {.fd = s->listener, .events = POLLIN};
    struct stat there;
    int lock;
    bool may;

    snprintf(path, sizeof path, "%s/%s.lock", s->runtime, s->name);
    lock = open(path, O_RDWR | O_CLOEXEC);
    if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB)) {
        ocr_close(lock);
        return false; /* somebody is starting or connecting: stay */
    }
    may = poll(&fd, 1, 0) == 0;
    snprintf(path, sizeof path, "%s/%s.sock", s->runtime, s->name);
    if (may && stat(path, &there) == 0 && there.st_ino == s->socket_ino)
        unlink(path);
    ocr_close(lock);
    return may;
}

static bool is_idle(struct server *s)
{
    if (s->first_page || s->load == LOAD_RUNNING) {
        s->idle_since_ms = ocr_now_ms();
        return false;
    }
    /* One that could not load is of no use to anybody. */
    if (s->load == LOAD_FAILED && !s->clients)
        return true;
    return ocr_now_ms() - s->idle_since_ms >= (int64_t)s->idle_s * 1000;
}

/* ---- the loop
 * --------------------------------------------------------------------- */

static void bury_clients(struct server *s)
{
    struct client **at = &s->clients;

    while (*at) {
        struct client *c = *at;

        if (!c->gone) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        pages_orphan(s, c);
        client_free(c);
    }
}

static int patience_ms(const struct server *s)
{
    const int64_t left =
        s->idle_since_ms + (int64_t)s->idle_s * 1000 - ocr_now_ms();

    if (s->reading && (s->ops->limit_s || s->ops->beat))
        return 1000;
    if (s->first_page || s->load == LOAD_RUNNING)
        return -1;
    if (s->load == LOAD_FAILED)
        return 100;
    return left < 0 ? 100 : left > 60000 ? 60000 : (int)left + 1;
}

/* Polls once; `fds` has room for `count` clients behind the first two. */
static int wait_for_something(struct server *s, struct pollfd *fds)
{
    size_t n = 2;

    fds[0] = (struct pollfd){.fd = s->wake, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = s->listener, .events = POLLIN};
    for (struct client *c = s->clients; c; c = c->next)
        fds[n++] = (struct pollfd){
            .fd = c->sock,
            .events = (short)(POLLIN | (c->first_out ? POLLOUT : 0))};
    return poll(fds, n, patience_ms(s));
}

static void serve(struct server *s, const struct pollfd *fds)
{
    struct client *c = s->clients; /* new ones come before these */
    uint64_t count;

    if (fds[0].revents && read(s->wake, &count, sizeof count) < 0)
        count = 0;
    for (size_t n = 2; c; c = c->next, n++) {
        if (fds[n].revents & POLLOUT)
            client_flush(c);
        if (fds[n].revents & (POLLIN | POLLHUP | POLLERR))
            client_receive(s, c);
    }
    if (fds[1].revents & POLLIN)
        client_accept(s);
    read_letters(s);
    if (s->load == LOAD_RUNNING && has_loaded(s))
        finish_loading(s);
    bury_clients(s);
    pages_advance(s);
    pages_watch(s);
    pages_beat(s);
}

static size_t count_clients(const struct server *s)
{
    size_t count = 0;

    for (const struct client *c = s->clients; c; c = c->next)
        count++;
    return count;
}

static void loop(struct server *s)
{
    struct pollfd *fds = NULL;
    size_t room = 0;

    for (;;) {
        const size_t need = 2 + count_clients(s);

        if (!fds || need > room) {
            struct pollfd *more = realloc(fds, (need + 8) * sizeof *fds);

            if (!more)
                break;
            fds = more;
            room = need + 8;
        }
        if (wait_for_something(s, fds) < 0 && errno != EINTR)
            break;
        serve(s, fds);
        if (is_idle(s) && close_shop(s))
            break;
    }
    free(fds);
}

int server_run(struct server *s)
{
    const struct ocr_decode_config decode = {.done = on_decoded, .arg = s};
    struct ocr_err err = OCR_ERR_INIT;

    s->config.arg = s;
    s->config.lost = on_lost;
    pthread_mutex_init(&s->mailbox, NULL);
    s->idle_since_ms = ocr_now_ms();
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake < 0 || ocr_decode_open(&s->pool, &decode, &err)) {
        ocr_error("cannot start: %s", err.code ? err.text : strerror(errno));
        return 1;
    }
    if (pthread_create(&s->loader, NULL, load, s)) {
        ocr_error("cannot start a thread");
        return 1;
    }
    loop(s);
    while (s->clients) {
        s->clients->gone = true;
        bury_clients(s);
    }
    if (s->load == LOAD_DONE) {
        s->ops->wake(s->recogniser);
        pthread_join(s->reader, NULL);
    }
    ocr_decode_close(s->pool);
    if (s->recogniser)
        s->ops->close(s->recogniser);
    return 0;
}

/* The driver: the one thread that talks to the servers. It sends what is ready
 * as long as one of them has room, puts what failed by no fault of its own
 * back for another try, looks whether servers that were lost are there again,
 * and sleeps in curl_multi_poll() when there is nothing to do. */
#include "engine/http/http_i.h"

#include "engine/base/io.h"
#include "engine/base/log.h"
#include "engine/protocol.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TRIES_MAX = 6, /* of a page, by servers that were there */
    RETRY_FIRST_MS = 250,
    RETRY_MOST_MS = 8000,
    BUSY_MAX_S = 900,    /* a page that nobody had room for */
    OTHERS_MS = 3000,    /* at the start: for servers that do not answer */
    LAST_LOOK_MS = 2000, /* of a page, at servers that are long gone */
    LINGER_MS = 500,     /* for the end of an answer that is whole */
    SLEEP_MS = 60000,
    PICTURE_WORK = 500, /* a picture costs as much as so many bytes of text */
};

static double jitter(struct ocr_recogniser *r)
{
    return erand48(r->seed);
}

/* ---- transfers ---------------------------------------------------------- */

static struct http_transfer *take_idle(struct ocr_recogniser *r)
{
    struct http_transfer *t = r->idle;

    if (!t)
        return http_transfer_new();
    r->idle = t->next;
    return t;
}

static void put_idle(struct ocr_recogniser *r, struct http_transfer *t)
{
    curl_multi_remove_handle(r->multi, t->easy);
    t->page = NULL;
    t->next = r->idle;
    r->idle = t;
}

/* Starts a request or a look; false: no memory. */
static bool set_off(struct ocr_recogniser *r, struct http_server *s,
                    struct http_page *p)
{
    struct http_transfer *t = take_idle(r);

    if (!t)
        return false;
    if (http_transfer_start(r, t, s, p)) {
        put_idle(r, t);
        return false;
    }
    t->next = r->flying;
    r->flying = t;
    return true;
}

static void land(struct ocr_recogniser *r, struct http_transfer *t)
{
    struct http_transfer **at = &r->flying;

    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    if (t->page)
        t->server->in_flight--;
    else
        t->server->probing = false;
    put_idle(r, t);
}

/* ---- servers ------------------------------------------------------------ */

static void say_state(struct http_server *s, bool was_up)
{
    if (was_up && !s->up)
        ocr_warning("%s is not used for now: %s", s->url->place, s->why);
    else if (!was_up && s->up)
        ocr_info("%s answers", s->url->place);
}

static unsigned count_up(const struct ocr_recogniser *r)
{
    unsigned up = 0;

    for (unsigned i = 0; i < r->config.urls; i++)
        up += r->servers[i].up;
    return up;
}

static void note_absence(struct ocr_recogniser *r, int64_t now)
{
    if (count_up(r))
        r->absent_since_ms = 0;
    else if (!r->absent_since_ms)
        r->absent_since_ms = now;
}

/* The least busy of those with room, not `avoid` if there is another. */
static struct http_server *choose_server(struct ocr_recogniser *r, int avoid,
                                         int64_t now)
{
    struct http_server *best = NULL;
    double load, least = 0;

    for (unsigned i = 0; i < r->config.urls; i++) {
        struct http_server *s = &r->servers[i];

        if (!http_server_has_room(s, now))
            continue;
        load = s->in_flight / s->window.size + (s->index == avoid);
        if (!best || load < least) {
            least = load;
            best = s;
        }
    }
    return best;
}

static void look_at_servers(struct ocr_recogniser *r, int64_t now)
{
    for (unsigned i = 0; i < r->config.urls; i++) {
        struct http_server *s = &r->servers[i];

        if (s->up || s->probing || now < s->probe_at_ms)
            continue;
        s->probing = set_off(r, s, NULL);
        if (!s->probing)
            http_server_missed(s, now, "no memory for a request", jitter(r));
    }
}

/* ---- which model reads -------------------------------------------------- */

static void describe_servers(struct ocr_recogniser *r, char *out, size_t size)
{
    size_t used = 0;

    *out = '\0';
    for (unsigned i = 0; i < r->config.urls && used + 4 < size; i++) {
        const struct http_server *s = &r->servers[i];

        used += (size_t)snprintf(out + used, size - used, "%s%s%s",
                                 i ? ", " : "", s->url->place,
                                 s->up       ? " answered"
                                 : s->looked ? ": "
                                             : " has not answered yet");
        if (s->looked && !s->up && used < size)
            used += (size_t)snprintf(out + used, size - used, "%.150s", s->why);
    }
}

static bool any_away(const struct ocr_recogniser *r)
{
    bool away = false;

    for (unsigned i = 0; i < r->config.urls; i++)
        away = away || r->servers[i].away;
    return away;
}

/* Ends open(): every server was asked, or one answered some time ago. */
static void settle(struct ocr_recogniser *r, int64_t now)
{
    const unsigned up = count_up(r);
    char described[SENTENCE_MAX];
    bool all = true;

    for (unsigned i = 0; i < r->config.urls; i++)
        all = all && r->servers[i].looked;
    if (r->settled || !(all || (up && now - r->begun_ms >= OTHERS_MS)))
        return;
    describe_servers(r, described, sizeof described);
    pthread_mutex_lock(&r->lock);
    r->settled = true;
    memcpy(r->described, described, sizeof described);
    if (!up)
        ocr_err_set(&r->open_error, any_away(r) ? -EHOSTUNREACH : -EIO, "%s",
                    described);
    pthread_cond_broadcast(&r->opened);
    pthread_mutex_unlock(&r->lock);
}

static void keep_model(struct ocr_recogniser *r, const char *name)
{
    if (r->model[0])
        return;
    pthread_mutex_lock(&r->lock);
    snprintf(r->model, sizeof r->model, "%s", name);
    pthread_mutex_unlock(&r->lock);
}

/* The model is chosen once, by the first that answers, so that all texts are of
 * one; a server without it is not used. */
static int choose_model(struct ocr_recogniser *r, const struct http_transfer *t,
                        struct ocr_err *err)
{
    const struct ocr_buf *body = &t->answer.input;
    char name[NAME_MAX_LEN];
    const char *wanted = r->model[0] ? r->model : r->wanted;
    const int rc = http_models_choose(body->len ? body->data : "", body->len,
                                      wanted, name, err);

    if (!rc)
        keep_model(r, name);
    return rc;
}

/* Servers that have no list of models are taken at the user's word. */
static bool has_no_list(const struct ocr_recogniser *r, CURL *easy)
{
    long status = 0;

    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    return r->wanted[0] && (status == 404 || status == 405 || status == 501);
}

/* 0 if the server is there and has the model. */
static int judge_look(struct ocr_recogniser *r, struct http_transfer *t,
                      CURLcode code, struct ocr_err *err)
{
    char why[SENTENCE_MAX];
    int64_t retry;
    long status = 0;

    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    if (code == CURLE_OK && status == 200)
        return choose_model(r, t, err);
    if (code == CURLE_OK && has_no_list(r, t->easy)) {
        keep_model(r, r->wanted);
        return 0;
    }
    t->server->away = code == CURLE_COULDNT_CONNECT ||
                      code == CURLE_OPERATION_TIMEDOUT || status == 503;
    http_transfer_judge(t, code, &retry, why, sizeof why);
    if (status == 404)
        return ocr_err_set(err, -ENOENT,
                           "%s (is the address right, does it end with /v1?)",
                           why);
    if (status == 401 || status == 403)
        return ocr_err_set(err, -EACCES,
                           "%s (the key comes from api_key_file= or "
                           "OPENAI_API_KEY)",
                           why);
    return ocr_err_set(err, -EHOSTUNREACH, "%s", why);
}

static void looked(struct ocr_recogniser *r, struct http_transfer *t,
                   CURLcode code, const char *refused)
{
    struct http_server *s = t->server;
    const int64_t now = ocr_now_ms();
    struct ocr_err err = OCR_ERR_INIT;
    const bool was_looked = s->looked;

    if (refused)
        ocr_err_set(&err, -EPERM, "%s", refused);
    if (err.code == 0 && judge_look(r, t, code, &err) == 0) {
        http_server_found(s);
        say_state(s, false);
    } else {
        http_scrub(err.text, r->config.key);
        http_server_missed(s, now, err.text, jitter(r));
        say_state(s, !was_looked);
        http_config_renew_key(&r->config);
    }
}

/* ---- pages -------------------------------------------------------------- */

static void end_page(struct ocr_recogniser *r, struct http_page *p,
                     enum ocr_kind kind, const char *sentence)
{
    http_page_fail(p, kind, sentence);
    http_page_deliver(r, p);
}

static void end_blamed(struct ocr_recogniser *r, struct http_page *p,
                       const struct http_server *s, const char *why)
{
    char sentence[SENTENCE_MAX];

    snprintf(sentence, sizeof sentence, "%.80s: %.170s", s->url->place, why);
    end_page(r, p, OCR_KIND_FAILED, sentence);
}

static void end_text(struct ocr_recogniser *r, struct http_page *p,
                     struct http_answer *a)
{
    if (a->loops)
        ocr_buf_truncate(&a->text, ocr_repeat_keep(a->repeat));
    p->result.text = ocr_buf_detach(&a->text, &p->result.len);
    p->result.flags =
        (a->cut ? OCR_TEXT_CUT : 0u) | (a->loops ? OCR_TEXT_LOOP : 0u);
    if (p->result.text)
        http_page_deliver(r, p);
    else
        end_page(r, p, OCR_KIND_FAILED, "no memory for the text");
}

/* Back to those that wait for a server. */
static void put_back(struct ocr_recogniser *r, struct http_page *p,
                     int64_t due_ms)
{
    pthread_mutex_lock(&r->lock);
    p->due_ms = due_ms;
    p->state = HTTP_PAGE_READY;
    pthread_mutex_unlock(&r->lock);
}

static void try_again(struct ocr_recogniser *r, struct http_page *p,
                      const struct http_server *s, const char *why)
{
    char sentence[SENTENCE_MAX];

    if (++p->tries < TRIES_MAX) {
        put_back(r, p,
                 ocr_now_ms() + http_backoff_ms(RETRY_FIRST_MS, RETRY_MOST_MS,
                                                p->tries, jitter(r)));
        return;
    }
    snprintf(sentence, sizeof sentence, "%.170s (after %u tries)", why,
             p->tries);
    end_blamed(r, p, s, sentence);
}

static void got_text(struct ocr_recogniser *r, struct http_transfer *t)
{
    const double work = (double)t->answer.text.len + PICTURE_WORK;

    http_server_answered(t->server, ocr_now_ms() - t->since_ms, work, t->full);
    end_text(r, t->page, &t->answer);
}

static void got_refusal(struct ocr_recogniser *r, struct http_transfer *t,
                        const char *why)
{
    long status = 0;

    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    t->server->failures = 0;
    if (status == 401 && http_config_renew_key(&r->config))
        put_back(r, t->page, 0); /* the key was changed meanwhile */
    else
        end_blamed(r, t->page, t->server, why);
}

static void got_busy(struct ocr_recogniser *r, struct http_transfer *t,
                     int64_t retry_after_s, const char *why)
{
    const int64_t now = ocr_now_ms();
    struct http_page *p = t->page;

    http_server_refused(t->server, now, retry_after_s, jitter(r));
    if (now - p->first_ms > (int64_t)BUSY_MAX_S * 1000)
        end_blamed(r, p, t->server, why);
    else
        put_back(r, p, 0); /* the server's pause counts */
}

static void got_failure(struct ocr_recogniser *r, struct http_transfer *t,
                        bool absent, const char *why)
{
    struct http_server *s = t->server;
    const bool was_up = s->up;

    http_server_failed(s, ocr_now_ms(), absent, why, jitter(r));
    say_state(s, was_up);
    t->page->avoid = s->index;
    if (absent)
        put_back(r, t->page, 0);
    else
        try_again(r, t->page, s, why);
}

static void answered(struct ocr_recogniser *r, struct http_transfer *t,
                     CURLcode code, const char *refused)
{
    char why[SENTENCE_MAX] = "";
    int64_t retry_after_s = 0;
    enum http_outcome outcome = HTTP_REFUSED;

    if (refused)
        snprintf(why, sizeof why, "%.255s", refused);
    else
        outcome = http_transfer_judge(t, code, &retry_after_s, why, sizeof why);
    http_scrub(why, r->config.key);
    switch (outcome) {
    case HTTP_TEXT:
        got_text(r, t);
        break;
    case HTTP_REFUSED:
        got_refusal(r, t, why);
        break;
    case HTTP_BUSY:
        got_busy(r, t, retry_after_s, why);
        break;
    case HTTP_TROUBLE:
    case HTTP_ABSENT:
        got_failure(r, t, outcome == HTTP_ABSENT, why);
        break;
    }
}

/* ---- one transfer at its end -------------------------------------------- */

static void finish(struct ocr_recogniser *r, struct http_transfer *t,
                   CURLcode code)
{
    char why[SENTENCE_MAX] = "";
    const int followed =
        code == CURLE_OK ? http_transfer_follow(r, t, why, sizeof why) : 0;

    if (followed > 0)
        return;
    curl_multi_remove_handle(r->multi, t->easy); /* it has the page's body */
    if (t->page)
        answered(r, t, code, followed ? why : NULL);
    else
        looked(r, t, code, followed ? why : NULL);
    land(r, t);
    note_absence(r, ocr_now_ms());
}

static void finish_all(struct ocr_recogniser *r)
{
    struct http_transfer *t;
    CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(r->multi, &left))) {
        if (message->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&t);
        finish(r, t, message->data.result);
    }
}

/* Answers that are whole, but whose connection stays open; pages that nobody
 * waits for. */
static void hang_up(struct ocr_recogniser *r, int64_t now)
{
    for (struct http_transfer *t = r->flying, *next; t; t = next) {
        next = t->next;
        if (!t->page)
            continue;
        if (t->page->cancelled) {
            curl_multi_remove_handle(r->multi, t->easy);
            end_page(r, t->page, OCR_KIND_CANCELLED, "nobody waited any more");
            land(r, t);
        } else if (t->ended_ms && now - t->ended_ms >= LINGER_MS) {
            finish(r, t, CURLE_OK);
        }
    }
}

/* ---- sending ------------------------------------------------------------ */

/* The page that goes first among those that are due; NULL: none. Pages that
 * were cancelled are marked on the way. */
static struct http_page *first_ready(struct ocr_recogniser *r, int64_t now)
{
    struct http_page *best = NULL;

    pthread_mutex_lock(&r->lock);
    for (unsigned i = 0; i < r->count; i++) {
        struct http_page *p = r->pages[i];

        if (p->state == HTTP_PAGE_SENT)
            p->cancelled = p->cancel;
        if (p->state != HTTP_PAGE_READY)
            continue;
        if (p->cancel)
            p->due_ms = 0; /* its end waits for nothing */
        if (p->due_ms <= now && (!best || p->cancel ||
                                 (!best->cancel && http_page_before(p, best))))
            best = p;
    }
    if (best) {
        best->cancelled = best->cancel;
        best->state = HTTP_PAGE_SENT;
    }
    pthread_mutex_unlock(&r->lock);
    return best;
}

/* No server was there for so long that waiting is of no use. */
static bool is_hopeless(const struct ocr_recogniser *r, int64_t now)
{
    return r->absent_since_ms &&
           now - r->absent_since_ms >= (int64_t)r->config.patience_s * 1000;
}

/* But one may have come since the last look: each page is worth another. True
 * as long as that is not over. */
static bool awaits_look(struct ocr_recogniser *r, struct http_page *p,
                        int64_t now)
{
    bool over = true;

    if (!p->asked_ms) {
        p->asked_ms = now;
        for (unsigned i = 0; i < r->config.urls; i++)
            r->servers[i].probe_at_ms = now;
    }
    for (unsigned i = 0; i < r->config.urls; i++) {
        const struct http_server *s = &r->servers[i];

        /* A look that is over has put off the next. */
        over = over && !s->probing && s->probe_at_ms > p->asked_ms;
    }
    return !over && now - p->asked_ms < LAST_LOOK_MS;
}

static void end_hopeless(struct ocr_recogniser *r, struct http_page *p)
{
    char described[SENTENCE_MAX], sentence[SENTENCE_MAX + 32];

    describe_servers(r, described, sizeof described);
    snprintf(sentence, sizeof sentence, "no server answers: %s", described);
    end_page(r, p, OCR_KIND_GONE, sentence);
}

/* False: this page cannot be sent now. */
static bool send_page(struct ocr_recogniser *r, struct http_page *p,
                      int64_t now)
{
    struct http_server *s = choose_server(r, p->avoid, now);

    if (!s)
        return false;
    if (!p->first_ms)
        p->first_ms = now;
    if (!set_off(r, s, p)) {
        end_page(r, p, OCR_KIND_FAILED, "no memory for a request");
        return true;
    }
    s->in_flight++;
    return true;
}

/* Requests that were out together with as many as there may be tell what that
 * number is worth. */
static void note_full(struct ocr_recogniser *r)
{
    for (struct http_transfer *t = r->flying; t; t = t->next)
        t->full = t->full ||
                  t->server->in_flight >= http_window_size(&t->server->window);
}

static void send_pages(struct ocr_recogniser *r, int64_t now)
{
    struct http_page *p;

    while ((p = first_ready(r, now))) {
        if (p->cancelled)
            end_page(r, p, OCR_KIND_CANCELLED, "nobody waited any more");
        else if (is_hopeless(r, now) && !awaits_look(r, p, now))
            end_hopeless(r, p);
        else if (is_hopeless(r, now) || !send_page(r, p, now)) {
            put_back(r, p, p->due_ms);
            break;
        }
    }
    note_full(r);
}

/* ---- the loop ----------------------------------------------------------- */

static void sooner(int64_t *at, int64_t when)
{
    if (when > 0 && when < *at)
        *at = when;
}

static bool has_ready(struct ocr_recogniser *r, int64_t now, int64_t *due)
{
    bool any = false;

    pthread_mutex_lock(&r->lock);
    for (unsigned i = 0; i < r->count; i++) {
        if (r->pages[i]->state != HTTP_PAGE_READY)
            continue;
        any = true;
        if (r->pages[i]->due_ms > now) /* the others wait for a server */
            sooner(due, r->pages[i]->due_ms);
    }
    pthread_mutex_unlock(&r->lock);
    return any;
}

/* Milliseconds until something is due that no socket tells. */
static int patience_ms(struct ocr_recogniser *r, int64_t now)
{
    int64_t at = now + SLEEP_MS;
    const bool waiting = has_ready(r, now, &at);

    for (unsigned i = 0; i < r->config.urls; i++) {
        const struct http_server *s = &r->servers[i];

        if (!s->up && !s->probing)
            sooner(&at, s->probe_at_ms);
        if (s->up && waiting && s->pause_until_ms > now)
            sooner(&at, s->pause_until_ms);
    }
    if (waiting && is_hopeless(r, now))
        sooner(&at, now + LAST_LOOK_MS / 20);
    else if (waiting && r->absent_since_ms)
        sooner(&at, r->absent_since_ms + (int64_t)r->config.patience_s * 1000);
    if (!r->settled)
        sooner(&at, r->begun_ms + OTHERS_MS);
    for (const struct http_transfer *t = r->flying; t; t = t->next)
        if (t->ended_ms)
            sooner(&at, t->ended_ms + LINGER_MS);
    return at <= now ? 1 : (int)(at - now);
}

static bool is_stopping(struct ocr_recogniser *r)
{
    bool stop;

    pthread_mutex_lock(&r->lock);
    stop = r->stop;
    pthread_mutex_unlock(&r->lock);
    return stop;
}

static void drive(struct ocr_recogniser *r)
{
    int running = 0;

    while (!is_stopping(r)) {
        int64_t now = ocr_now_ms();

        look_at_servers(r, now);
        send_pages(r, now);
        hang_up(r, now);
        curl_multi_perform(r->multi, &running);
        finish_all(r);
        now = ocr_now_ms();
        settle(r, now);
        send_pages(r, now);
        curl_multi_poll(r->multi, NULL, 0, patience_ms(r, now), NULL);
    }
}

void *http_driver_run(void *arg)
{
    struct ocr_recogniser *r = arg;

    r->begun_ms = ocr_now_ms();
    drive(r);
    while (r->flying)
        land(r, r->flying);
    while (r->idle) {
        struct http_transfer *t = r->idle;

        r->idle = t->next;
        http_transfer_free(t);
    }
    return NULL;
}

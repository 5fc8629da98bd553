/* How engines start and end, and who is blamed for it. */
#include "engine/client/queue_i.h"

#include "engine/base/io.h"
#include "engine/base/log.h"
#include "engine/client/connect.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

enum {
    HELLO_TIMEOUT_MS = 5000,
    END_TIMEOUT_MS = 5000, /* from the kill to the end of a process */
    GRACE_MS = 5000,       /* for the engine's own word that it is lost */
    BACKOFF_FIRST_MS = 100,
    BACKOFF_MAX_MS = 5000,
    FAILED_STARTS_MAX = 3, /* then everything that waits fails */
    AWAY_MS = 30000,       /* that jobs wait for a server to come */
    KILLS_MAX = 12,        /* of the engine while one job ran alone in it */
};

void engine_set_state(struct ocr_queue *q, struct engine *e,
                      enum ocr_engine_state state)
{
    e->stats.state = state;
    pthread_cond_broadcast(&q->connected);
}

static void retry_later(struct ocr_queue *q, struct engine *e, unsigned times)
{
    int64_t delay = BACKOFF_FIRST_MS;

    for (unsigned i = 1; i < times && delay < BACKOFF_MAX_MS; i++)
        delay *= 2;
    if (delay > BACKOFF_MAX_MS)
        delay = BACKOFF_MAX_MS;
    e->retry_at_ms = ocr_now_ms() + delay;
    engine_set_state(q, e, OCR_ENGINE_BACKOFF);
}

/* ---- trouble ------------------------------------------------------------ */

/* What can be known of its name: several engines are told apart. */
static const char *name_of(const struct ocr_queue *q, const struct engine *e)
{
    return q->engines > 1 ? e->device_name : "";
}

static void set_trouble(struct ocr_queue *q, struct engine *e, const char *why)
{
    const char *name = name_of(q, e);

    if (strcmp(e->stats.trouble, why) && *why)
        ocr_error("no engine%s%s: %s", *name ? " on " : "", name, why);
    snprintf(e->stats.trouble, sizeof e->stats.trouble, "%s", why);
}

/* Nothing is to be had from it now: if that holds for all, nobody waits on. */
static void give_up(struct ocr_queue *q, struct engine *e)
{
    char why[sizeof e->stats.trouble];

    e->hopeless = true;
    for (unsigned i = 0; i < q->engines; i++)
        if (!q->engine[i].hopeless)
            return;
    snprintf(why, sizeof why, "%s", e->stats.trouble);
    queue_fail_waiting(q, OCR_KIND_GONE, why);
}

static void forget_process(struct engine *e)
{
    e->pidfd = ocr_close(e->pidfd);
    e->dying = e->killed = false;
}

static void drop_connection(struct ocr_queue *q, struct engine *e)
{
    e->sock = ocr_close(e->sock);
    e->full = false;
    e->stats.capacity = 0;
    e->stats.pid = 0;
    e->limit_ms = 0;
    while (e->forgotten) {
        struct forgotten *f = e->forgotten;

        e->forgotten = f->next;
        free(f);
    }
    for (int p = 0; p < PRIORITIES; p++)
        for (struct ocr_job *j = q->waiting[p].first; j; j = j->next)
            if (j->engine == e)
                j->document = 0;
}

void engine_start_failed(struct ocr_queue *q, struct engine *e, const char *why,
                         bool hopeless)
{
    set_trouble(q, e, why);
    drop_connection(q, e);
    e->failures++;
    retry_later(q, e, e->failures);
    if (hopeless || e->failures >= FAILED_STARTS_MAX)
        give_up(q, e);
}

static bool has_waiting(const struct ocr_queue *q)
{
    for (int p = 0; p < PRIORITIES; p++)
        if (q->waiting[p].count)
            return true;
    return false;
}

void engine_away(struct ocr_queue *q, struct engine *e, const char *why)
{
    const int64_t now = ocr_now_ms();

    set_trouble(q, e, why);
    drop_connection(q, e);
    e->failures++;
    retry_later(q, e, e->failures);
    if (!e->away_since_ms && has_waiting(q))
        e->away_since_ms = now;
    if (e->away_since_ms && now - e->away_since_ms >= AWAY_MS)
        give_up(q, e);
}

void engine_stop(struct ocr_queue *q, struct engine *e)
{
    forget_process(e);
    drop_connection(q, e);
    engine_set_state(q, e, OCR_ENGINE_NONE);
}

/* ---- the end ------------------------------------------------------------ */

static void make_suspect(struct ocr_queue *q, struct ocr_job *job)
{
    if (job->suspect)
        return;
    job->suspect = true;
    q->suspects++;
}

/* True if the sentence says what the job did to the engine. */
static bool is_guilty(const struct engine *e, const struct ocr_job *job,
                      bool alone, char *sentence, size_t size)
{
    if (alone && e->crash_signal)
        snprintf(sentence, size, "the engine crashed on this image (%s)",
                 strsignal(e->crash_signal));
    else if (alone && e->lost && !e->device_fault && job->named)
        snprintf(sentence, size, "the GPU failed on this image (%.200s)",
                 e->loss);
    else if (job->kills >= KILLS_MAX)
        snprintf(sentence, size,
                 "the engine was killed %u times while it read this image",
                 job->kills);
    else
        return false;
    return true;
}

/* A job came back from an engine that died. `alone`: nothing ran beside it.
 * `names`: the engine said which jobs it worked on. */
static void judge_job(struct ocr_queue *q, struct engine *e,
                      struct ocr_job *job, bool alone, bool names)
{
    char sentence[280];

    queue_unrun(e, job);
    job->document = 0;
    if (!e->device_fault) {
        if (names ? job->named : job->started)
            make_suspect(q, job);
        job->kills += alone;
    }
    if (is_guilty(e, job, alone, sentence, sizeof sentence))
        queue_end_error(q, job, OCR_KIND_FAILED, sentence);
    else if (!job->waiters && !job->unattended)
        queue_end_error(q, job, OCR_KIND_CANCELLED, "nobody waited");
    else
        queue_wait(q, job, true);
}

static void say_death(struct ocr_queue *q, const struct engine *e)
{
    const unsigned pages = e->running.count;
    const char *name = name_of(q, e), *on = *name ? " on " : "";

    if (e->lost)
        ocr_warning("the engine%s%s lost its device with %u pages in it: %s",
                    on, name, pages, e->loss);
    else if (e->crash_signal)
        ocr_warning("the engine%s%s crashed (%s) with %u pages in it", on, name,
                    strsignal(e->crash_signal), pages);
    else
        ocr_warning("the engine%s%s was killed with %u pages in it", on, name,
                    pages);
}

/* Jobs that were in the engine are tried again, one at a time if they may be
 * to blame; the only one that is, was sent to run alone and did. */
static void judge_jobs(struct ocr_queue *q, struct engine *e)
{
    struct ocr_job *const only =
        e->running.count == 1 ? e->running.first : NULL;
    const bool alone = only && only->suspect && only->started &&
                       (!e->crash_signal || e->crash_jobs <= 1);
    bool names = false;

    for (struct ocr_job *j = e->running.first; j; j = j->next)
        names = names || j->named;
    while (e->running.last)
        judge_job(q, e, e->running.last, alone, names);
}

void engine_died(struct ocr_queue *q, struct engine *e)
{
    const bool idle = e->running.count == 0;

    /* What it holds of a GPU is free only when the process is gone. */
    e->dying = e->pidfd >= 0;
    e->end_by_ms = ocr_now_ms() + END_TIMEOUT_MS;
    if (e->stats.state != OCR_ENGINE_READY) {
        engine_start_failed(q, e, "the engine ended before it was ready",
                            false);
        return;
    }
    drop_connection(q, e);
    if (idle && !e->crash_signal && !e->lost) {
        engine_set_state(q, e, OCR_ENGINE_NONE); /* it was idle, or somebody
                                                    ended it */
        return;
    }
    q->stats.engine_deaths++;
    e->deaths++;
    say_death(q, e);
    retry_later(q, e, e->deaths);
    judge_jobs(q, e);
    if (e->device_fault && e->deaths >= FAILED_STARTS_MAX) {
        set_trouble(q, e, e->loss);
        give_up(q, e);
    }
}

void engine_lost(struct ocr_queue *q, struct engine *e, bool device_fault,
                 const char *why)
{
    e->lost = true;
    e->device_fault = device_fault;
    snprintf(e->loss, sizeof e->loss, "%.255s", why);
    e->killed =
        e->pidfd >= 0 && pidfd_send_signal(e->pidfd, SIGKILL, NULL, 0) == 0;
    engine_died(q, e);
}

/* True while a killed engine still holds its device. */
static bool is_dying(struct ocr_queue *q, struct engine *e)
{
    struct pollfd end = {.fd = e->pidfd, .events = POLLIN};
    char why[400];

    if (!e->dying)
        return false;
    if (poll(&end, 1, 0) == 1 || (!e->killed && ocr_now_ms() >= e->end_by_ms)) {
        forget_process(e);
        return false;
    }
    if (ocr_now_ms() >= e->end_by_ms && !e->hopeless) {
        snprintf(why, sizeof why,
                 "%.250s; its engine does not end: reset the GPU "
                 "(nvidia-smi -r) or restart the machine",
                 e->loss);
        set_trouble(q, e, why);
        give_up(q, e);
    }
    return true;
}

/* ---- the start ---------------------------------------------------------- */

static int send_hello(struct ocr_queue *q, struct engine *e)
{
    struct ocr_message m = {.type = OCR_MSG_HELLO,
                            .value = OCR_PROTOCOL_VERSION,
                            .length = (uint32_t)strlen(q->config.settings),
                            .fd = -1};

    return ocr_message_send(e->sock, &m, q->config.settings);
}

void engine_start(struct ocr_queue *q, struct engine *e)
{
    struct ocr_err err = OCR_ERR_INIT;
    bool started = false;
    int sock;

    engine_set_state(q, e, OCR_ENGINE_STARTING);
    e->config.start =
        e->on_gpu && !strcmp(e->config.device, "auto") ? "cuda" : NULL;
    pthread_mutex_unlock(&q->lock);
    sock = ocr_connect(&e->config, &started, &err);
    pthread_mutex_lock(&q->lock);
    forget_process(e);
    e->sock = sock;
    q->stats.engine_starts += started;
    e->crash_signal = 0;
    e->lost = e->device_fault = false;
    e->next_document = 0;
    e->hello_by_ms = ocr_now_ms() + HELLO_TIMEOUT_MS;
    if (sock < 0 || send_hello(q, e)) {
        if (!err.code)
            ocr_err_set(&err, -EPIPE, "the engine ended before it answered");
        engine_start_failed(q, e, err.text, sock == -ENOENT || sock == -EPERM);
    }
}

bool queue_has_work(const struct ocr_queue *q)
{
    for (int p = 0; p < PRIORITIES && !q->paused; p++)
        if (q->waiting[p].count)
            return true;
    return q->wanted;
}

/* The first is started for any work, one behind it if those before have none
 * of their room left. */
static bool is_needed(const struct ocr_queue *q, const struct engine *e)
{
    unsigned work = q->wanted + queue_running(q), room = 0;

    for (int p = 0; p < PRIORITIES; p++)
        work += q->waiting[p].count;
    for (const struct engine *o = q->engine; o < e; o++)
        if (!o->hopeless)
            /* Half of it is for pages that only wait there. */
            room += o->stats.capacity > 2 ? o->stats.capacity / 2 : 1;
    return queue_has_work(q) && work > room;
}

/* ---- time-outs ---------------------------------------------------------- */

static bool is_reading(const struct engine *e)
{
    for (const struct ocr_job *j = e->running.first; j; j = j->next)
        if (j->reading)
            return true;
    return false;
}

/* By when it must have got on with something; -1: no matter when. */
static int64_t silent_until(const struct engine *e)
{
    if (e->stats.state != OCR_ENGINE_READY || !e->limit_ms || !is_reading(e))
        return -1;
    return e->alive_ms + e->limit_ms + GRACE_MS;
}

static void check_silence(struct ocr_queue *q, struct engine *e)
{
    const int64_t now = ocr_now_ms(), until = silent_until(e);
    char why[120];

    if (until < 0) {
        e->alive_ms = now;
        return;
    }
    if (now < until)
        return;
    snprintf(why, sizeof why, "it finished nothing for %u s",
             (e->limit_ms + GRACE_MS) / 1000);
    for (struct ocr_job *j = e->running.first; j; j = j->next)
        j->named = j->reading;
    engine_lost(q, e, false, why);
}

void engine_manage(struct ocr_queue *q, struct engine *e)
{
    const int64_t now = ocr_now_ms();

    if (e->stats.state == OCR_ENGINE_STARTING && e->sock >= 0 &&
        now >= e->hello_by_ms) {
        pthread_mutex_unlock(&q->lock);
        ocr_connect_forget(&e->config);
        pthread_mutex_lock(&q->lock);
        engine_start_failed(q, e, "the engine did not answer within 5 seconds",
                            false);
    }
    check_silence(q, e);
    if (is_dying(q, e) || !is_needed(q, e))
        return;
    if (e->stats.state == OCR_ENGINE_NONE ||
        (e->stats.state == OCR_ENGINE_BACKOFF && now >= e->retry_at_ms))
        engine_start(q, e);
}

int64_t engine_alarm_ms(const struct ocr_queue *q, const struct engine *e)
{
    enum {
        DYING_MS = 50
    };

    if (e->dying && !e->hopeless)
        return ocr_now_ms() + DYING_MS;
    if (e->stats.state == OCR_ENGINE_STARTING)
        return e->hello_by_ms;
    if (e->stats.state == OCR_ENGINE_BACKOFF && is_needed(q, e))
        return e->dying ? ocr_now_ms() + BACKOFF_MAX_MS : e->retry_at_ms;
    return silent_until(e);
}

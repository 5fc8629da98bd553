/* One server: is it there, may it get more, and when to look again. */
#include "engine/http/http_i.h"

#include <stdio.h>
#include <string.h>

enum {
    FAILURES_MAX = 3, /* in a row: then it is looked at before it gets more */
    LOOK_FIRST_MS = 500,
    LOOK_MOST_MS = 10000, /* for one that is not there */
    LOOK_SICK_MS = 2000,  /* for one that is, and fails */
    PAUSE_FIRST_MS = 100,
    PAUSE_MOST_MS = 5000,
    RETRY_AFTER_MAX_S = 300,
};

int64_t http_backoff_ms(int64_t first, int64_t most, unsigned times,
                        double jitter)
{
    int64_t delay = first;

    for (unsigned i = 1; i < times && delay < most; i++)
        delay *= 2;
    if (delay > most)
        delay = most;
    return (int64_t)((double)delay * (0.5 + jitter / 2));
}

void http_server_init(struct http_server *s, const struct http_url *url,
                      int index)
{
    *s = (struct http_server){.url = url, .index = index};
    http_window_init(&s->window);
}

bool http_server_has_room(const struct http_server *s, int64_t now_ms)
{
    return s->up && now_ms >= s->pause_until_ms &&
           s->in_flight < http_window_size(&s->window);
}

void http_server_answered(struct http_server *s, int64_t took_ms, double work,
                          bool full)
{
    s->failures = s->refusals = 0;
    http_window_ended(&s->window, took_ms, work, full);
}

void http_server_refused(struct http_server *s, int64_t now_ms,
                         int64_t retry_after_s, double jitter)
{
    int64_t pause;

    if (now_ms >= s->pause_until_ms)
        s->refusals++; /* else it is one more of the same moment */
    pause = http_backoff_ms(PAUSE_FIRST_MS, PAUSE_MOST_MS, s->refusals, jitter);
    if (retry_after_s > RETRY_AFTER_MAX_S)
        retry_after_s = RETRY_AFTER_MAX_S;
    if (pause < retry_after_s * 1000)
        pause = retry_after_s * 1000;
    if (s->pause_until_ms < now_ms + pause)
        s->pause_until_ms = now_ms + pause;
    http_window_refused(&s->window, now_ms);
}

static void look_later(struct http_server *s, int64_t now_ms, int64_t most_ms,
                       const char *why, double jitter)
{
    s->failures++;
    s->up = false;
    s->looked = true;
    s->probe_at_ms =
        now_ms + http_backoff_ms(LOOK_FIRST_MS, most_ms, s->failures, jitter);
    snprintf(s->why, sizeof s->why, "%s", why);
}

void http_server_missed(struct http_server *s, int64_t now_ms, const char *why,
                        double jitter)
{
    look_later(s, now_ms, LOOK_MOST_MS, why, jitter);
}

void http_server_failed(struct http_server *s, int64_t now_ms, bool absent,
                        const char *why, double jitter)
{
    /* Of those that were out together the first one told. */
    if (!s->up)
        return;
    if (absent || s->failures + 1 >= FAILURES_MAX)
        look_later(s, now_ms, absent ? LOOK_MOST_MS : LOOK_SICK_MS, why,
                   jitter);
    else
        s->failures++;
}

void http_server_found(struct http_server *s)
{
    s->up = s->looked = true;
    s->why[0] = '\0';
    s->refusals = 0;
    http_window_init(&s->window);
}

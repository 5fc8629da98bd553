#include "engine/http/http_i.h"

enum {
    ENDS_LEAST = 4, /* of an epoch: fewer say nothing */
    REST = 6,       /* epochs between two tries */
    CUT_MS = 500,   /* refusals so close together are one */
};
/* What a doubled window, and one that grew by an eighth, must bring. */
#define GAIN_DOUBLED 1.25
#define GAIN_TRIED 1.03
/* What a smaller one must keep: then the rest only waited at the server. */
#define KEPT_TRIED 0.98
/* Of the best rate: below this the server has got slower. */
#define SLOWER 0.7

static void begin_epoch(struct http_window *w, unsigned skip)
{
    w->skip = skip;
    w->ends = w->full = 0;
    w->work = 0;
    w->took_ms = 0;
}

static void resize(struct http_window *w, double size)
{
    w->size = size < 1 ? 1 : size > WINDOW_MAX ? WINDOW_MAX : size;
}

void http_window_init(struct http_window *w)
{
    *w = (struct http_window){.size = WINDOW_FIRST, .doubling = true};
    begin_epoch(w, 0);
}

unsigned http_window_size(const struct http_window *w)
{
    return (unsigned)w->size;
}

static void keep_best(struct http_window *w, double rate)
{
    w->best_size = w->size;
    w->best_rate = rate;
}

static void back_to_best(struct http_window *w)
{
    resize(w, w->best_size);
    w->doubling = false;
    w->rests = REST;
}

static void go_up(struct http_window *w)
{
    const double step = w->size / 8;

    resize(w, w->doubling ? 2 * w->size : w->size + (step < 1 ? 1 : step));
}

static void go_down(struct http_window *w)
{
    const double step = w->size / 8;

    resize(w, w->size - (step < 1 ? 1 : step));
}

/* At the best size: go along with the server, and try for more, or with less,
 * sometimes. */
static void stay(struct http_window *w, double rate)
{
    if (rate < SLOWER * w->best_rate) {
        resize(w, w->size * 3 / 4);
        keep_best(w, rate);
        w->rests = REST;
        return;
    }
    w->best_rate = w->best_rate ? (3 * w->best_rate + rate) / 4 : rate;
    if (w->rests) {
        w->rests--;
        return;
    }
    w->down = !w->down;
    if (w->down)
        go_down(w);
    else
        go_up(w);
}

/* A try that was worth it goes on in its direction. */
static void judge_try(struct http_window *w, double rate)
{
    const bool up = w->doubling || w->size > w->best_size;
    const double least = w->doubling ? GAIN_DOUBLED
                         : up        ? GAIN_TRIED
                                     : KEPT_TRIED;

    if (rate < least * w->best_rate) {
        back_to_best(w);
        return;
    }
    keep_best(w, rate);
    if (up)
        go_up(w);
    else
        go_down(w);
}

static void end_epoch(struct http_window *w)
{
    /* Little: work in flight over the time it takes. */
    const double took = w->took_ms ? (double)w->took_ms : 1;
    const double rate = w->size * w->work / took, size = w->size;

    if (2 * w->full < w->ends) {
        begin_epoch(w, 0); /* not asked for as much as it may get */
        return;
    }
    if (!w->doubling && w->size == w->best_size)
        stay(w, rate);
    else
        judge_try(w, rate);
    /* What was sent before is not told by the new size. While it doubles, a
     * step too far is found out by the next. */
    begin_epoch(w, w->doubling || w->size == size ? 0 : (unsigned)size);
}

void http_window_ended(struct http_window *w, int64_t took_ms, double work,
                       bool full)
{
    if (w->skip) {
        w->skip--;
        return;
    }
    w->ends++;
    w->full += full;
    w->work += work;
    w->took_ms += took_ms;
    if (w->ends >= ENDS_LEAST && w->ends >= w->size)
        end_epoch(w);
}

void http_window_refused(struct http_window *w, int64_t now_ms)
{
    if (w->cut_ms && now_ms - w->cut_ms < CUT_MS)
        return;
    w->cut_ms = now_ms;
    resize(w, w->size / 2);
    keep_best(w, 0);
    w->doubling = false;
    w->rests = REST;
    begin_epoch(w, 0);
}

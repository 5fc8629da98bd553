#include "fs/progress.h"

#include "engine/base/io.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    EVERY_MS = 100,
    ALONE_MS = 2000 /* before a single file shows anything */
};

static const char clear_line[] = "\r\033[K";

static void print(const char *text, size_t len)
{
    /* A terminal that went away has nobody to tell. */
    if (write(STDERR_FILENO, text, len) < 0)
        return;
}

static void end_tidily(int signal_number)
{
    print(clear_line, sizeof clear_line - 1);
    raise(signal_number); /* SA_RESETHAND: the default action now */
}

/* What nohup and the like asked for stays. */
static void catch_unless_ignored(int signal_number,
                                 const struct sigaction *action)
{
    struct sigaction before;

    if (sigaction(signal_number, NULL, &before) == 0 &&
        before.sa_handler != SIG_IGN)
        sigaction(signal_number, action, NULL);
}

void ocr_progress_init(struct ocr_progress *p, size_t total)
{
    const struct sigaction tidy = {.sa_handler = end_tidily,
                                   .sa_flags = (int)SA_RESETHAND};

    /* In the background the terminal is somebody else's. */
    *p = (struct ocr_progress){
        .on = isatty(STDERR_FILENO) && tcgetpgrp(STDERR_FILENO) == getpgrp(),
        .total = total,
        .begun_ms = ocr_now_ms(),
    };
    if (!p->on)
        return;
    catch_unless_ignored(SIGINT, &tidy);
    catch_unless_ignored(SIGTERM, &tidy);
    catch_unless_ignored(SIGHUP, &tidy);
}

/* How fast it goes, or how long it has taken if nothing is there yet. */
static void rate(char *out, size_t size, size_t pages, double seconds)
{
    if (seconds < 0.5)
        out[0] = '\0';
    else if (pages == 0)
        snprintf(out, size, ", %.0f s", seconds);
    else if ((double)pages < seconds)
        snprintf(out, size, ", %.1f s a page", seconds / (double)pages);
    else
        snprintf(out, size, ", %.1f pages/s", (double)pages / seconds);
}

void ocr_progress_draw(struct ocr_progress *p, size_t done, size_t pages,
                       bool loading)
{
    const int64_t now = ocr_now_ms();
    const char *state = loading ? "loading" : "reading";
    char line[128], speed[48];
    int len;

    if (!p->on || (p->shown && now - p->drawn_ms < EVERY_MS) ||
        (p->total == 1 && now - p->begun_ms < ALONE_MS))
        return;
    p->drawn_ms = now;
    p->shown = true;
    rate(speed, sizeof speed, pages, (double)(now - p->begun_ms) / 1000);
    if (p->total == 1)
        len = snprintf(line, sizeof line, "%s%s%s", clear_line, state, speed);
    else
        len = snprintf(line, sizeof line, "%s%zu/%zu%s%s%s", clear_line, done,
                       p->total, loading ? ", " : "", loading ? state : "",
                       speed);
    /* The cursor goes back, so that a line from another thread hides it. */
    line[len++] = '\r';
    print(line, (size_t)len);
}

/* What is left at the speed since the beginning. */
static void time_left(const struct ocr_progress *p, double done, double total,
                      char *out, size_t size)
{
    const double seconds = (double)(ocr_now_ms() - p->begun_ms) / 1000;
    const double until = done > 0 ? (total - done) * seconds / done : 0;

    out[0] = '\0';
    if (done <= 0 || seconds < 0.5)
        return;
    if (until < 120)
        snprintf(out, size, ", %.0f s left", until);
    else if (until < 7200)
        snprintf(out, size, ", %.0f min left", until / 60);
    else
        snprintf(out, size, ", %.0f h left", until / 3600);
}

void ocr_progress_text(const struct ocr_progress *p, size_t done, char *out,
                       size_t size)
{
    const double seconds = (double)(ocr_now_ms() - p->begun_ms) / 1000;
    char speed[48], time[32];

    rate(speed, sizeof speed, done, seconds);
    time_left(p, (double)done, (double)p->total, time, sizeof time);
    snprintf(out, size, "%zu/%zu texts%s%s", done, p->total, speed, time);
}

/* False if nothing is to be drawn now. */
static bool time_to_draw(struct ocr_progress *p)
{
    const int64_t now = ocr_now_ms();

    if (!p->on || (p->shown && now - p->drawn_ms < EVERY_MS))
        return false;
    p->drawn_ms = now;
    p->shown = true;
    return true;
}

static void draw_bar(double share, const char *text)
{
    enum {
        CELLS = 24
    };
    const size_t full = (size_t)(share * CELLS);
    char line[256], bar[CELLS + 1];
    int len;

    memset(bar, '-', CELLS);
    memset(bar, '#', full < CELLS ? full : CELLS);
    bar[CELLS] = '\0';
    len = snprintf(line, sizeof line, "%s[%s] %s\r", clear_line, bar, text);
    print(line, (size_t)len);
}

void ocr_progress_bar(struct ocr_progress *p, size_t done)
{
    char text[128];

    if (!time_to_draw(p))
        return;
    ocr_progress_text(p, done, text, sizeof text);
    draw_bar(p->total ? (double)done / (double)p->total : 1, text);
}

void ocr_progress_bytes(struct ocr_progress *p, uint64_t done)
{
    const double seconds = (double)(ocr_now_ms() - p->begun_ms) / 1000;
    char text[128], time[32];

    /* The speed is that of what comes now, not of what was there before. */
    if (!p->first)
        p->first = done;
    if (!time_to_draw(p))
        return;
    time_left(p, (double)(done - p->first), (double)(p->total - p->first), time,
              sizeof time);
    snprintf(text, sizeof text, "%.0f of %.0f MB, %.1f MB/s%s",
             (double)done / 1e6, (double)p->total / 1e6,
             seconds > 0 ? (double)(done - p->first) / seconds / 1e6 : 0, time);
    draw_bar(p->total ? (double)done / (double)p->total : 1, text);
}

void ocr_progress_clear(struct ocr_progress *p)
{
    if (p->shown)
        print(clear_line, sizeof clear_line - 1);
    p->shown = false;
}

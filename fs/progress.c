#include "fs/progress.h"

#include "engine/base/io.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    EVERY_MS = 100
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
        .on = total > 1 && isatty(STDERR_FILENO) &&
              tcgetpgrp(STDERR_FILENO) == getpgrp(),
        .total = total,
        .begun_ms = ocr_now_ms(),
    };
    if (!p->on)
        return;
    catch_unless_ignored(SIGINT, &tidy);
    catch_unless_ignored(SIGTERM, &tidy);
    catch_unless_ignored(SIGHUP, &tidy);
}

void ocr_progress_draw(struct ocr_progress *p, size_t done, size_t pages)
{
    const int64_t now = ocr_now_ms();
    const double seconds = (double)(now - p->begun_ms) / 1000;
    char line[128];
    int len;

    if (!p->on || (p->shown && now - p->drawn_ms < EVERY_MS))
        return;
    p->drawn_ms = now;
    p->shown = true;
    len = snprintf(line, sizeof line, "%s%zu/%zu", clear_line, done, p->total);
    if (seconds > 0.5)
        len += snprintf(line + len, sizeof line - (size_t)len, ", %.1f pages/s",
                        (double)pages / seconds);
    /* The cursor goes back, so that a line from another thread hides it. */
    line[len++] = '\r';
    print(line, (size_t)len);
}

void ocr_progress_clear(struct ocr_progress *p)
{
    if (p->shown)
        print(clear_line, sizeof clear_line - 1);
    p->shown = false;
}

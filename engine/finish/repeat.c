/* The tail of an output loops if it is one phrase again and again, and so
 * often that no page can look like that:
 *
 *   at least 1,024 symbols  longer than two lines of leader dots or of
 *                           underscores to write on;
 *   at least 40 turns       more than the equal rows of a wide table;
 *   and 256 turns or 8,192 symbols: 256 lines are more than a page has room
 *                           for, 8,192 bytes are 200 lines of 40, or half of
 *                           what a model writes until its limit of tokens.
 *
 * How the phrase is found: if the tail has a period p <= PERIOD, so has its
 * last WINDOW = 2 PERIOD symbols, and the least period of these is the least
 * of the tail (Fine and Wilf). So every PERIOD symbols the window is measured
 * with the failure function of Knuth, Morris and Pratt, and from then on each
 * symbol is compared with the one p before. The history is long enough to
 * count back to where the tail began when it is first noticed. */
#include "engine/finish.h"

#include <stdlib.h>

enum {
    PERIOD = 512,
    WINDOW = 2 * PERIOD,
    HISTORY = 4 * WINDOW, /* a power of two */
    LEAST_SYMBOLS = 1024,
    LEAST_TURNS = 40,
    MANY_TURNS = 256,
    MANY_SYMBOLS = 8192,
    KEPT_TURNS = 3, /* enough to see what it did */
};

struct ocr_repeat {
    uint32_t
        history[HISTORY]; /* of the last symbols; symbol n at n % HISTORY */
    uint16_t fail[WINDOW + 1]; /* scratch of least_period() */
    size_t count;              /* symbols so far */
    size_t period;             /* of the tail, 0 if none is known */
    size_t run; /* last symbols that are equal to the one `period` before */
};

struct ocr_repeat *ocr_repeat_new(void)
{
    return calloc(1, sizeof(struct ocr_repeat));
}

void ocr_repeat_free(struct ocr_repeat *r)
{
    free(r);
}

static uint32_t symbol_at(const struct ocr_repeat *r, size_t n)
{
    return r->history[n % HISTORY];
}

static size_t least_period(struct ocr_repeat *r)
{
    const size_t first = r->count - WINDOW;
    size_t k = 0;

    r->fail[0] = r->fail[1] = 0;
    for (size_t i = 1; i < WINDOW; i++) {
        const uint32_t symbol = symbol_at(r, first + i);
        while (k && symbol_at(r, first + k) != symbol)
            k = r->fail[k];
        if (symbol_at(r, first + k) == symbol)
            k++;
        r->fail[i + 1] = (uint16_t)k;
    }
    return WINDOW - k;
}

/* Looks for a period unless one is known. */
static void measure(struct ocr_repeat *r)
{
    size_t oldest, at = r->count;

    if (r->period || r->count < WINDOW)
        return;
    r->period = least_period(r);
    if (r->period > PERIOD) {
        r->period = 0;
        return;
    }
    oldest = r->count > HISTORY ? r->count - HISTORY : 0;
    while (at > oldest + r->period &&
           symbol_at(r, at - 1) == symbol_at(r, at - 1 - r->period))
        at--;
    r->run = r->count - at;
}

static bool looping(const struct ocr_repeat *r)
{
    const size_t symbols = r->run + r->period;

    if (!r->period || symbols < LEAST_SYMBOLS ||
        symbols < LEAST_TURNS * r->period)
        return false;
    return symbols >= MANY_TURNS * r->period || symbols >= MANY_SYMBOLS;
}

bool ocr_repeat_add(struct ocr_repeat *r, uint32_t symbol)
{
    if (r->period && symbol_at(r, r->count - r->period) == symbol)
        r->run++;
    else
        r->period = r->run = 0;
    r->history[r->count++ % HISTORY] = symbol;
    if (r->count % PERIOD == 0)
        measure(r);
    return looping(r);
}

size_t ocr_repeat_keep(struct ocr_repeat *r)
{
    measure(r);
    if (!looping(r))
        return r->count;
    return r->count - r->run - r->period + KEPT_TURNS * r->period;
}

size_t ocr_repeat_period(const struct ocr_repeat *r)
{
    return r->period;
}

/* engine/finish.h - from what a recogniser wrote to the text that is served.
 *
 * UTF-8 only, no control characters but tab and newline, one newline at the
 * end, tables as pipe tables with columns of numbers aligned right (or as the
 * recogniser wrote them), looping output ended, at most OCR_PAGE_TEXT_MAX
 * bytes. Input is hostile: a model can write anything.
 *
 * Layer:   engine.
 * Threads: no state. */
#ifndef OCR_FINISH_H
#define OCR_FINISH_H
#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the finished text of one page at most: the size that stat shows
 * before a text is known (rule U2). */
enum {
    OCR_PAGE_TEXT_MAX = 65536
};
/* The same of a whole document. */
#define OCR_DOCUMENT_TEXT_MAX ((uint64_t)64 << 20)

/* In the cache key; raise it with every change of what finishing gives. */
enum {
    OCR_FINISH_VERSION = 1
};

enum ocr_tables {
    OCR_TABLES_PIPE,
    OCR_TABLES_HTML
};

/* Finishes `text`. *out is malloc'd, NUL-terminated, the caller's; *flags
 * gets OCR_TEXT_CUT and OCR_TEXT_LOOP of engine/protocol.h. -ENOMEM only. */
int ocr_finish(char **out, size_t *out_len, unsigned *flags, const char *text,
               size_t len, enum ocr_tables tables, struct ocr_err *err);

/* Markdown that shows the plain UTF-8 `text` as it is: what would be read as a
 * mark is escaped. *out as above, to be finished. */
int ocr_finish_plain(char **out, size_t *out_len, const char *text, size_t len,
                     struct ocr_err *err);

/* ---- repetition guard ---------------------------------------------------
 * Watches an output grow, in bytes or tokens, and says when its tail only
 * repeats itself. Real repetition (thirty equal rows of a table) passes; what
 * counts is said in engine/finish/repeat.c. Used by ocr_finish over bytes and
 * by decoders over token ids. Constant time and memory per symbol. */

struct ocr_repeat; /* opaque */

struct ocr_repeat *ocr_repeat_new(void); /* NULL: no memory */
void ocr_repeat_free(struct ocr_repeat *r);

/* Adds one symbol. True while the output loops, noticed at most 512 symbols
 * late; false again if it goes on with something else. */
bool ocr_repeat_add(struct ocr_repeat *r, uint32_t symbol);

/* Symbols worth keeping if the output ends here: all of them, or up to the
 * end of the first turns of the loop it is in. Exact, not late. */
size_t ocr_repeat_keep(struct ocr_repeat *r);

/* Symbols of one turn of what the tail repeats, 0 if it repeats nothing. */
size_t ocr_repeat_period(const struct ocr_repeat *r);

#endif

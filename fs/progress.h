/* fs/progress.h - one line on a terminal that says how far things are.
 *
 * Drawn over itself on standard error, only if that is a terminal, and taken
 * away before anything else is printed, at the end, and when a signal ends
 * the process.
 *
 * Layer:   fs.
 * Threads: one. */
#ifndef OCR_PROGRESS_H
#define OCR_PROGRESS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ocr_progress {
    bool on, shown;
    size_t total;
    uint64_t first; /* bytes that were there at the beginning */
    int64_t begun_ms, drawn_ms;
};

/* Does nothing, ever, without a terminal. Installs handlers for INT, TERM and
 * HUP that clean up and end the process. */
void ocr_progress_init(struct ocr_progress *p, size_t total);

/* "3/10, 1.2 pages/s", or "reading, 4 s" for a single file that takes longer
 * than two seconds; `loading`: the recogniser is not ready yet. Not more often
 * than every 100 ms. */
void ocr_progress_draw(struct ocr_progress *p, size_t done, size_t pages,
                       bool loading);

/* A bar with what ocr_progress_text says. Not more often than every 100 ms. */
void ocr_progress_bar(struct ocr_progress *p, size_t done);

/* A bar of bytes of p->total: "350 of 2040 MB, 11.2 MB/s, 151 s left". */
void ocr_progress_bytes(struct ocr_progress *p, uint64_t done);

/* "3/10 texts, 1.2 pages/s, 6 s left", by the speed since the beginning. */
void ocr_progress_text(const struct ocr_progress *p, size_t done, char *out,
                       size_t size);

/* Before other output, and at the end. */
void ocr_progress_clear(struct ocr_progress *p);

#endif

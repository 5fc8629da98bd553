/* engine/base/buf.h - a growing byte buffer with a ceiling.
 *
 * Invariant: data[len] is always NUL once data is set; len <= limit. A buffer
 * that failed (no memory, above its limit) stays failed, keeps what it had,
 * and ignores further appends, so a sequence of appends is checked once, at
 * the end.
 *
 * Layer:   base.
 * Threads: one owner. */
#ifndef OCR_BUF_H
#define OCR_BUF_H
#include <stdbool.h>
#include <stddef.h>

struct ocr_buf {
    char *data; /* NULL while empty */
    size_t len;
    size_t size;
    size_t limit; /* most bytes ever held, the NUL not counted */
    bool failed;
};

void ocr_buf_init(struct ocr_buf *buf, size_t limit);
void ocr_buf_release(struct ocr_buf *buf);

/* Empty, not failed, memory kept. */
void ocr_buf_reset(struct ocr_buf *buf);

void ocr_buf_add(struct ocr_buf *buf, const void *bytes, size_t len);
void ocr_buf_puts(struct ocr_buf *buf, const char *text);
void ocr_buf_putc(struct ocr_buf *buf, char c);
__attribute__((format(printf, 2, 3))) void
ocr_buf_printf(struct ocr_buf *buf, const char *format, ...);

/* Shortens to `len` bytes; no-op if it is shorter already. */
void ocr_buf_truncate(struct ocr_buf *buf, size_t len);

/* The bytes become the caller's (free them), NUL-terminated, never NULL on
 * success; the buffer is empty afterwards. NULL if the buffer failed: then
 * the memory is released. */
char *ocr_buf_detach(struct ocr_buf *buf, size_t *len);

#endif

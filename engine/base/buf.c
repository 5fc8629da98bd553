#include "engine/base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ocr_buf_init(struct ocr_buf *buf, size_t limit)
{
    *buf = (struct ocr_buf){.limit = limit};
}

void ocr_buf_release(struct ocr_buf *buf)
{
    free(buf->data);
    ocr_buf_init(buf, buf->limit);
}

void ocr_buf_reset(struct ocr_buf *buf)
{
    buf->len = 0;
    buf->failed = false;
    if (buf->data)
        buf->data[0] = '\0';
}

/* Room for `more` bytes and the NUL. */
static bool reserve(struct ocr_buf *buf, size_t more)
{
    size_t want = buf->size ? buf->size : 64;
    char *grown;

    if (buf->failed || more > buf->limit - buf->len) {
        buf->failed = true;
        return false;
    }
    if (buf->len + more < buf->size)
        return true;
    while (want <= buf->len + more)
        want += want / 2;
    grown = realloc(buf->data, want);
    if (!grown) {
        buf->failed = true;
        return false;
    }
    buf->data = grown;
    buf->size = want;
    return true;
}

void ocr_buf_add(struct ocr_buf *buf, const void *bytes, size_t len)
{
    if (!reserve(buf, len))
        return;
    if (len)
        memcpy(buf->data + buf->len, bytes, len);
    buf->len += len;
    buf->data[buf->len] = '\0';
}

void ocr_buf_puts(struct ocr_buf *buf, const char *text)
{
    ocr_buf_add(buf, text, strlen(text));
}

void ocr_buf_putc(struct ocr_buf *buf, char c)
{
    ocr_buf_add(buf, &c, 1);
}

void ocr_buf_printf(struct ocr_buf *buf, const char *format, ...)
{
    va_list args, again;
    int n;

    va_start(args, format);
    va_copy(again, args);
    n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n >= 0 && reserve(buf, (size_t)n)) {
        vsnprintf(buf->data + buf->len, (size_t)n + 1, format, again);
        buf->len += (size_t)n;
    } else {
        buf->failed = true;
    }
    va_end(again);
}

void ocr_buf_truncate(struct ocr_buf *buf, size_t len)
{
    if (len >= buf->len)
        return;
    buf->len = len;
    buf->data[len] = '\0';
}

char *ocr_buf_detach(struct ocr_buf *buf, size_t *len)
{
    char *data;

    if (!reserve(buf, 0)) {
        ocr_buf_release(buf);
        return NULL;
    }
    data = buf->data;
    data[buf->len] = '\0';
    if (len)
        *len = buf->len;
    ocr_buf_init(buf, buf->limit);
    return data;
}

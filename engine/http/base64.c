#include "engine/http/http_i.h"

#include <string.h>

static const char letters[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static void put_three(char out[4], const uint8_t *in)
{
    out[0] = letters[in[0] >> 2];
    out[1] = letters[(in[0] & 3) << 4 | in[1] >> 4];
    out[2] = letters[(in[1] & 15) << 2 | in[2] >> 6];
    out[3] = letters[in[2] & 63];
}

void http_base64_add(void *base64, const uint8_t *in, size_t len)
{
    struct http_base64 *b = base64;
    char part[4096];
    size_t used = 0;

    while (len && b->count && b->count < 3) {
        b->waiting[b->count++] = *in++;
        len--;
    }
    if (b->count == 3) {
        put_three(part, b->waiting);
        ocr_buf_add(b->out, part, 4);
        b->count = 0;
    }
    for (; len >= 3; in += 3, len -= 3) {
        put_three(part + used, in);
        used += 4;
        if (used == sizeof part) {
            ocr_buf_add(b->out, part, used);
            used = 0;
        }
    }
    if (used)
        ocr_buf_add(b->out, part, used);
    while (len) {
        b->waiting[b->count++] = *in++;
        len--;
    }
}

void http_base64_end(struct http_base64 *b)
{
    char part[4];

    if (!b->count)
        return;
    memset(b->waiting + b->count, 0, sizeof b->waiting - b->count);
    put_three(part, b->waiting);
    memset(part + b->count + 1, '=', 3 - b->count);
    ocr_buf_add(b->out, part, sizeof part);
    b->count = 0;
}

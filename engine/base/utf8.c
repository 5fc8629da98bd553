#include "engine/base/utf8.h"

size_t ocr_utf8_next(const char *s, size_t len, uint32_t *cp)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *b = (const unsigned char *)s;
    uint32_t c;
    size_t need;

    if (len == 0)
        return 0;
    if (b[0] < 0x80) {
        need = 1;
        c = b[0];
    } else if (b[0] >= 0xc2 && b[0] < 0xe0) {
        need = 2;
        c = b[0] & 0x1fu;
    } else if (b[0] >= 0xe0 && b[0] < 0xf0) {
        need = 3;
        c = b[0] & 0x0fu;
    } else if (b[0] >= 0xf0 && b[0] < 0xf5) {
        need = 4;
        c = b[0] & 0x07u;
    } else {
        return 0;
    }
    if (need > len)
        return 0;
    for (size_t i = 1; i < need; i++) {
        if ((b[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (b[i] & 0x3fu);
    }
    if (c < least[need] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return 0;
    if (cp)
        *cp = c;
    return need;
}

size_t ocr_utf8_put(char out[4], uint32_t cp)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
        return 0;
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

size_t ocr_utf8_valid(const char *s, size_t len)
{
    size_t at = 0;

    while (at < len) {
        const size_t n = ocr_utf8_next(s + at, len - at, NULL);
        if (n == 0)
            break;
        at += n;
    }
    return at;
}

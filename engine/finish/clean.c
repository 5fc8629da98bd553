#include "engine/finish/finish_i.h"

#include "engine/base/utf8.h"

enum {
    NEL = 0x85,
    LINE_SEPARATOR = 0x2028,
    PARAGRAPH_SEPARATOR = 0x2029
};
enum {
    BOM = 0xfeff
};

enum ocr_cleaned ocr_clean_class(uint32_t cp)
{
    if (cp == '\t')
        return OCR_CLEAN_KEEP;
    if ((cp >= '\n' && cp <= '\r') || cp == NEL || cp == LINE_SEPARATOR ||
        cp == PARAGRAPH_SEPARATOR)
        return OCR_CLEAN_NEWLINE;
    if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || cp == BOM)
        return OCR_CLEAN_DROP;
    return OCR_CLEAN_KEEP;
}

/* Bytes of the broken sequence at `s`: one U+FFFD stands for a character that
 * was cut off, not for each of its bytes. */
static size_t broken(const char *s, size_t len)
{
    size_t n = 1;

    while (n < len && ((unsigned char)s[n] & 0xc0) == 0x80)
        n++;
    return n;
}

void ocr_clean(struct ocr_buf *out, const char *text, size_t len)
{
    size_t at = 0;

    while (at < len) {
        uint32_t cp;
        const size_t n = ocr_utf8_next(text + at, len - at, &cp);
        if (n == 0) {
            ocr_buf_puts(out, "\xef\xbf\xbd");
            at += broken(text + at, len - at);
            continue;
        }
        switch (ocr_clean_class(cp)) {
        case OCR_CLEAN_KEEP:
            ocr_buf_add(out, text + at, n);
            break;
        case OCR_CLEAN_NEWLINE:
            if (cp != '\n' || at == 0 || text[at - 1] != '\r')
                ocr_buf_putc(out, '\n');
            break;
        case OCR_CLEAN_DROP:
            break;
        }
        at += n;
    }
}

#include "engine/model/unicode.h"

#include <errno.h>
#include <stdbool.h>
#include <utf8proc.h>

/* The property White_Space. */
static bool is_space(uint32_t cp)
{
    return (cp >= 0x09 && cp <= 0x0D) || cp == 0x20 || cp == 0x85 ||
           cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
           cp == 0x3000;
}

enum ocr_unicode_class ocr_unicode_class(uint32_t cp)
{
    if (cp == '\r' || cp == '\n')
        return OCR_UNICODE_NEWLINE;
    if (is_space(cp))
        return OCR_UNICODE_SPACE;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return OCR_UNICODE_LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return OCR_UNICODE_NUMBER;
    default:
        return OCR_UNICODE_OTHER;
    }
}

char *ocr_unicode_nfc(const char *text, size_t len, size_t *out_len,
                      struct ocr_err *err)
{
    utf8proc_uint8_t *out = NULL;
    const utf8proc_ssize_t n =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)len,
                     &out, UTF8PROC_STABLE | UTF8PROC_COMPOSE);

    if (n < 0) {
        ocr_err_set(err, n == UTF8PROC_ERROR_NOMEM ? -ENOMEM : -EILSEQ,
                    "cannot normalise a text: %s", utf8proc_errmsg(n));
        return NULL;
    }
    *out_len = (size_t)n;
    return (char *)out;
}

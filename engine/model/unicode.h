/* engine/model/unicode.h - what splitting a text into words asks of Unicode.
 *
 * Classes and forms are those of libutf8proc's version of Unicode (15.0 in
 * Debian 12); a tokenizer library with a newer one splits differently only at
 * characters that are new there.
 *
 * Layer:   engine, inside engine/model.
 * Threads: no state. */
#ifndef OCR_MODEL_UNICODE_H
#define OCR_MODEL_UNICODE_H
#include "engine/base/err.h"

#include <stddef.h>
#include <stdint.h>

enum ocr_unicode_class {
    OCR_UNICODE_OTHER,
    OCR_UNICODE_LETTER,  /* L* */
    OCR_UNICODE_NUMBER,  /* N* */
    OCR_UNICODE_NEWLINE, /* CR, LF */
    OCR_UNICODE_SPACE,   /* other white space */
};

enum ocr_unicode_class ocr_unicode_class(uint32_t cp);

/* `text` (valid UTF-8) in normal form C, malloc'd, its length in *out_len;
 * NULL without memory. */
char *ocr_unicode_nfc(const char *text, size_t len, size_t *out_len,
                      struct ocr_err *err);

#endif

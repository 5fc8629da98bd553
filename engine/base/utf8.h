/* engine/base/utf8.h - UTF-8 as RFC 3629 defines it: no overlong forms, no
 * surrogates, nothing above U+10FFFF.
 *
 * Layer:   base.
 * Threads: no state. */
#ifndef OCR_UTF8_H
#define OCR_UTF8_H
#include <stddef.h>
#include <stdint.h>

/* Bytes of the valid character at `s` (1 to 4), its code point in *cp (may be
 * NULL); 0 if the bytes there are not a whole valid character or len is 0. */
size_t ocr_utf8_next(const char *s, size_t len, uint32_t *cp);

/* Writes `cp` into `out` (4 bytes); returns its length, 0 if cp is not a
 * Unicode scalar value. */
size_t ocr_utf8_put(char out[4], uint32_t cp);

/* Length of the longest valid prefix of `s`: == len if all is valid. */
size_t ocr_utf8_valid(const char *s, size_t len);

#endif

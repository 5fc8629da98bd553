/* fs/dump.h - `ocrfs read --dump-pages DIR`: pages as the recogniser gets them.
 *
 * Layer:   fs.
 * Threads: no state. */
#ifndef OCR_DUMP_H
#define OCR_DUMP_H
#include "engine/base/err.h"

#include <stddef.h>

/* Makes the folder if it is not there, and opens it: a descriptor. */
int ocr_dump_open(const char *folder, struct ocr_err *err);

/* Writes `len` bytes to NAME.pgm in it, NAME being the last part of `path`
 * ("-": standard-input). Never over a file that is there. */
int ocr_dump_page(int folder, const char *path, const char *bytes, size_t len,
                  struct ocr_err *err);

#endif

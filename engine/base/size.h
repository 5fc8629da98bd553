/* engine/base/size.h - sizes as people write them.
 *
 * Layer:   base.
 * Threads: no state. */
#ifndef OCR_SIZE_H
#define OCR_SIZE_H
#include "engine/base/err.h"

#include <stdint.h>

/* "64K", "10G": whole numbers of bytes, or with K, M, G or T (in any
 * case, also KiB, KB) of powers of 1024. Negative, with another unit, or above
 * 64 bits: -EINVAL, *bytes untouched. */
int ocr_parse_size(const char *text, uint64_t *bytes, struct ocr_err *err);

#endif

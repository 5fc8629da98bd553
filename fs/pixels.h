/* fs/pixels.h - how large a picture is, by the beginning of its file.
 *
 * For -o min_pixels only: what decodes pictures is the engine. Files are
 * hostile; what is not understood has no size.
 *
 * Layer:   fs.
 * Threads: no state; reads the file with pread, blocks as that does. */
#ifndef OCR_PIXELS_H
#define OCR_PIXELS_H
#include <stdint.h>

/* Width x height of a PNG, JPEG, GIF, BMP or WebP; 0: not known. */
uint64_t pixels_of(int fd);

#endif

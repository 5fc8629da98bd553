/* engine/base/io.h - whole reads and writes, descriptors, clocks.
 *
 * Layer:   base.
 * Threads: no state. Functions that touch descriptors may block on them. */
#ifndef OCR_IO_H
#define OCR_IO_H
#include "engine/base/err.h"

#include <stdint.h>
#include <sys/types.h>

/* Reads until `len` bytes or end of file; EINTR is retried. Returns the bytes
 * read, which is less than `len` only at the end, or a negative errno. */
ssize_t ocr_pread_full(int fd, void *buf, size_t len, off_t at);

/* Writes all `len` bytes or fails: 0 or a negative errno. */
int ocr_pwrite_full(int fd, const void *buf, size_t len, off_t at);

/* An anonymous file in memory, close-on-exec, that can be sealed. `name`
 * shows in /proc. The descriptor is the caller's. */
int ocr_memfd(const char *name, struct ocr_err *err);

/* Forbids any further change of `fd` (F_SEAL_WRITE, SHRINK, GROW, SEAL). */
int ocr_memfd_seal(int fd, struct ocr_err *err);

/* Closes if >= 0; errno is kept; always -1, so: fd = ocr_close(fd). */
int ocr_close(int fd);

/* Bytes of memory that programs can get now without swapping, 0 if that is
 * not known. */
uint64_t ocr_memory_available(void);

/* CLOCK_MONOTONIC, for all time-outs. */
int64_t ocr_now_ms(void);

/* CLOCK_REALTIME in ns, only to compare with file times and to store. */
int64_t ocr_wall_ns(void);

#endif

/* engine/content.h - the bytes of an image and their digest, read together.
 *
 * Up to OCR_CONTENT_MEMFD_MAX bytes go into a sealed memfd while they are
 * hashed, so that digest and pixels are of the same bytes. A larger file
 * stays where it is: the digest is made by reading, the descriptor is passed
 * on, and the engine computes the digest again over what it decodes.
 *
 * The digest is XXH3-128 keyed with a random secret, so that nobody can make
 * two images with one digest, or learn from a digest what an image is.
 *
 * Layer:   engine (both sides of the socket).
 * Threads: no state. ocr_content_load() blocks on the file: run it in the
 *          hashing pool, never in a FUSE worker. */
#ifndef OCR_CONTENT_H
#define OCR_CONTENT_H
#include "engine/base/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

enum {
    OCR_SECRET_BYTES = 192,
    OCR_DIGEST_BYTES = 16
};
#define OCR_CONTENT_MEMFD_MAX ((uint64_t)64 << 20)
#define OCR_CONTENT_MAX ((uint64_t)1 << 30) /* larger files: too-large */

struct ocr_digest {
    uint8_t bytes[OCR_DIGEST_BYTES];
};

struct ocr_content {
    int fd;        /* sealed memfd, or a dup of the file; -1: hash only */
    uint64_t size; /* bytes */
    bool sealed;   /* fd is a sealed memfd */
    struct ocr_digest digest;
    struct stat stat; /* of the file, the same before and after reading */
    int64_t read_ns;  /* CLOCK_REALTIME when reading began */
};

/* Reads the regular file `file` (borrowed, offset not used) and fills *out,
 * whose fd the caller owns (ocr_content_release). With keep false no bytes are
 * kept (fd -1). Reads again, at most three times, if size, mtime or ctime
 * moved meanwhile, then OCR_KIND_CHANGING. *stop, if given and set by another
 * thread, ends it early with -ECANCELED. */
int ocr_content_load(struct ocr_content *out, int file,
                     const uint8_t secret[OCR_SECRET_BYTES], bool keep,
                     const atomic_bool *stop, struct ocr_err *err);

void ocr_content_release(struct ocr_content *content);

/* Digest of a buffer; for the engine's check and for tests. */
void ocr_digest_of(struct ocr_digest *out, const void *data, size_t len,
                   const uint8_t secret[OCR_SECRET_BYTES]);

#endif

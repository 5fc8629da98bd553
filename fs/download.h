/* fs/download.h - files from the web, by the program curl.
 *
 * What is there already is kept, and a transfer that is cut goes on where it
 * stopped. Nothing is believed: a file that is not as long as was announced, or
 * has another digest, is no success.
 *
 * Layer:   fs.
 * Threads: one; curl runs beside it and ends with the process group. */
#ifndef OCR_DOWNLOAD_H
#define OCR_DOWNLOAD_H
#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <stdint.h>

enum {
    OCR_SHA256_SIZE = 65 /* 64 hex digits and a NUL */
};

struct ocr_download {
    const char *url;
    const char *path;   /* of the file, in a folder that exists */
    uint64_t size;      /* that it will have */
    const char *sha256; /* 64 hex digits, "" if not known */
    /* Called some times a second with the bytes that are there. */
    void (*progress)(void *arg, uint64_t bytes);
    void *arg;
};

/* 0 once the file is there and whole. -ENOPKG without curl; -EBADMSG if it is
 * not what was announced, and then it is deleted; after other failures what
 * came is kept for the next time. */
int ocr_download(const struct ocr_download *d, struct ocr_err *err);

/* Appends a short answer, as long as *out may get. */
int ocr_download_text(const char *url, struct ocr_buf *out,
                      struct ocr_err *err);

/* By the program sha256sum. */
int ocr_sha256(const char *path, char out[OCR_SHA256_SIZE],
               struct ocr_err *err);

#endif

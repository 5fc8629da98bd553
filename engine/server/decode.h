/* engine/server/decode.h - a pool of processes that decode images.
 *
 * Each helper is `ocrfs-engine --decode-helper`, served by one thread of the
 * pool: it gets the descriptor of an image and returns upright pixels in
 * shared memory. Limits on memory, pixels and time; a helper that crashes or
 * runs over them costs one error and is replaced.
 *
 * Layer:   engine, the server's.
 * Threads: submit, cancel and stats from any thread, none blocks; done is
 *          called from the pool's threads, once for each task.
 * Errors:  a verdict (engine/image/image.h) in the result. */
#ifndef OCR_DECODE_H
#define OCR_DECODE_H
#include "engine/base/err.h"
#include "engine/image/image.h"
#include "engine/protocol.h"

#include <stdint.h>

struct ocr_decode_pool; /* opaque */

struct ocr_decode_task {
    uint64_t id; /* the caller's, unique among tasks in the pool */
    int fd;      /* of the image: memfd or plain file; borrowed until done */
    uint64_t size;
    uint32_t page; /* 0 for PNG and JPEG */
    enum ocr_priority priority;
    const struct ocr_open_check *check; /* NULL: none; borrowed until done */
    struct ocr_image_limits limits;
};

struct ocr_decoded {
    uint64_t id;
    enum ocr_kind kind;     /* OCR_KIND_NONE: image is set */
    struct ocr_image image; /* release with ocr_decoded_release */
    char sentence[256];     /* why, if kind is set */
};

struct ocr_decode_config {
    unsigned helpers;    /* 0: min(cores, 4) */
    const char *program; /* NULL: /proc/self/exe */
    void (*done)(void *arg, const struct ocr_decoded *decoded);
    void *arg;
};

struct ocr_decode_stats {
    unsigned helpers;
    uint64_t decoded, failed;
    uint64_t crashed, overrun, recycled; /* helpers replaced, and why */
};

int ocr_decode_open(struct ocr_decode_pool **out,
                    const struct ocr_decode_config *config,
                    struct ocr_err *err);

/* Copies the task. Higher priority first, then first come first served. */
int ocr_decode_submit(struct ocr_decode_pool *pool,
                      const struct ocr_decode_task *task, struct ocr_err *err);

/* Ends the task soon if it is still in the pool: done is called with
 * OCR_KIND_CANCELLED (or with its result, if it was just ready). */
void ocr_decode_cancel(struct ocr_decode_pool *pool, uint64_t id);

/* Unmaps the pixels; any thread; no-op on an image without pixels. */
void ocr_decoded_release(struct ocr_image *image);

void ocr_decode_stats(struct ocr_decode_pool *pool,
                      struct ocr_decode_stats *out);

/* Drops what waits (done with OCR_KIND_CANCELLED), ends the helpers, joins the
 * threads. NULL is a no-op. */
void ocr_decode_close(struct ocr_decode_pool *pool);

/* The helper's side: serves requests on `sock` until it closes. Returns the
 * exit status. */
int ocr_decode_helper_main(int sock);

#endif

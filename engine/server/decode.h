/* engine/server/decode.h - a pool of processes that decode images.
 *
 * Each helper is `ocrfs-engine --decode-helper`, served by one thread of the
 * pool: it gets the descriptor of an image and fills shared memory, whose size
 * is fixed before, with upright pixels. It can do nothing else (sandbox.h).
 * Limits on memory, pixels and time; a helper that crashes or runs over them
 * costs one error and is replaced.
 *
 * A helper dies with the engine: the kernel kills it when its thread ends. No
 * other code of the process may wait for children it did not start.
 *
 * Layer:   engine, the server's.
 * Threads: submit, cancel and stats from any thread, none blocks. done is
 *          called once for each task, with no lock held, from a thread of the
 *          pool or from within cancel or close.
 * Errors:  in the result: a verdict on the image; CORRUPT if the decoder
 *          crashed on it, TOO_LARGE if it went over the limits, CHANGING if
 *          the bytes are not those of `check`; FAILED if no helper could be
 *          started, or it was killed from outside twice, or did not answer. */
#ifndef OCR_DECODE_H
#define OCR_DECODE_H
#include "engine/base/err.h"
#include "engine/image/image.h"
#include "engine/protocol.h"

#include <stdint.h>

struct ocr_decode_pool; /* opaque */

/* Helpers differ in what they decode and in what that needs of the system.
 * Most need nothing; only those that do get it. */
enum ocr_helper_kind {
    OCR_HELPER_PICTURES,
    OCR_HELPER_THREADS, /* HEIC, AVIF: their libraries start threads */
    OCR_HELPER_FONTS,   /* PDF: reads the system's fonts */
    OCR_HELPER_KINDS,
};

struct ocr_decode_task {
    uint64_t id; /* the caller's, unique among tasks in the pool */
    /* The caller's for this descriptor, so that a helper can keep a document
     * of many pages open; 0: it does not. */
    uint64_t document;
    int fd; /* of the image: memfd or plain file; borrowed until done */
    uint64_t size;
    uint32_t page; /* 0 is the first */
    enum ocr_helper_kind helper;
    enum ocr_priority priority;
    const struct ocr_open_check *check; /* NULL: none; borrowed until done */
    const uint8_t *secret; /* the same: keys the digest; NULL: there is none */
    struct ocr_image_limits limits;
};

struct ocr_decoded {
    uint64_t id;
    enum ocr_kind kind;     /* OCR_KIND_NONE: image is set */
    uint32_t pages;         /* of the document; 0 if it did not open */
    struct ocr_image image; /* release with ocr_decoded_release */
    bool has_digest;        /* of the pixels, made here and not by the helper */
    uint8_t digest[16];
    char sentence[256]; /* why, if kind is set */
};

struct ocr_decode_config {
    unsigned helpers;    /* 0: min(cores, 4) */
    const char *program; /* started with --decode-helper and the socket as
                            descriptor 3, copied; NULL: /proc/self/exe */
    void (*done)(void *arg, const struct ocr_decoded *decoded);
    void *arg;
    /* Limits of a helper; 0 takes the default. */
    unsigned cpu_s;  /* processor time per image, 60 s */
    unsigned wall_s; /* until a helper counts as hanging, 600 s */
    unsigned images; /* until it is replaced by a fresh one, 200 */
    uint64_t memory; /* address space, 1.5 GiB */
};

struct ocr_decode_stats {
    unsigned helpers; /* at most, as configured */
    unsigned waiting, running;
    uint64_t decoded, failed; /* tasks; a cancelled one is neither */
    /* Helpers replaced, and why: by the image's fault, for time or memory or
     * hanging, killed from outside, after so many images. */
    uint64_t crashed, overrun, killed, recycled;
    unsigned sandbox; /* of the latest helper: OCR_SANDBOX_* that hold */
};

int ocr_decode_open(struct ocr_decode_pool **out,
                    const struct ocr_decode_config *config,
                    struct ocr_err *err);

/* Copies the task. Higher priority first, then first come first served. */
int ocr_decode_submit(struct ocr_decode_pool *pool,
                      const struct ocr_decode_task *task, struct ocr_err *err);

/* Ends the task soon if it is still in the pool: done is called with
 * OCR_KIND_CANCELLED (or with its result, if it was just ready). A task that
 * waits is done before this returns. */
void ocr_decode_cancel(struct ocr_decode_pool *pool, uint64_t id);

/* Unmaps the pixels; any thread; no-op on an image without pixels. */
void ocr_decoded_release(struct ocr_image *image);

void ocr_decode_stats(struct ocr_decode_pool *pool,
                      struct ocr_decode_stats *out);

/* Drops what waits (done with OCR_KIND_CANCELLED), ends the helpers, joins the
 * threads. NULL is a no-op. */
void ocr_decode_close(struct ocr_decode_pool *pool);

/* The helper's side: serves requests on `sock` until it closes. `kind` is the
 * option's value, NULL for pictures. Returns the exit status. */
int ocr_decode_helper_main(int sock, const char *kind);

/* The word for a kind of helper, as on its command line. */
const char *ocr_helper_kind_name(enum ocr_helper_kind kind);

#endif

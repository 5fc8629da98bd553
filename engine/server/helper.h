/* engine/server/helper.h - what the pool (decode.c, child.c) and a decode
 * helper (helper.c) say to each other, and the helper's loop.
 *
 * Both are the same program, so structs travel as they are, one a packet:
 *
 *   helper --> ocr_decode_response, id 0: ready
 *   pool   --> ocr_decode_request + descriptors of the image and of an empty
 *              memfd for the pixels, which cannot grow
 *   helper --> ocr_decode_response                                  ... again
 *
 * The pool believes nothing of what a helper says: it may have been taken over
 * by an image.
 *
 * Layer:   engine/server, private to these three files.
 * Threads: one sender and one receiver per socket. */
#ifndef OCR_HELPER_H
#define OCR_HELPER_H
#include "engine/server/decode.h"

enum {
    OCR_HELPER_SOCKET = 3, /* the descriptor a helper is started with */
    OCR_PACKET_FDS = 2,    /* at most */
};

struct ocr_decode_request {
    uint64_t id; /* not 0 */
    uint64_t document;
    uint64_t size;
    uint64_t room; /* bytes for pixels */
    uint32_t page;
    bool limited; /* too little memory is the image's fault, not the system's */
    bool checked; /* check is set */
    struct ocr_image_limits limits;
    struct ocr_open_check check;
};

struct ocr_decode_response {
    uint64_t id;
    uint32_t kind;          /* enum ocr_kind; NONE: pixels in the memfd */
    uint32_t pages;         /* of the document, 0 if it did not open */
    uint32_t sandbox;       /* ready: OCR_SANDBOX_* that hold */
    struct ocr_image image; /* without pixels */
    char sentence[256];
};

/* Sends one packet with `count` descriptors, at most OCR_PACKET_FDS: 0 or a
 * negative errno. Blocks. */
int ocr_packet_send(int sock, const void *packet, size_t len, const int *fds,
                    unsigned count);

/* Takes one packet of exactly `len` bytes: 1, and each of fds is -1 or the
 * caller's; 0 if the peer is gone; -EPROTO for anything else it sent; another
 * negative errno if the system failed. */
int ocr_packet_receive(int sock, void *packet, size_t len,
                       int fds[OCR_PACKET_FDS]);
void ocr_packet_close(int fds[OCR_PACKET_FDS]);

/* ocr_decode_helper_main with another decoder of single pictures, for tests. */
int ocr_decode_helper_serve(int sock, enum ocr_helper_kind kind,
                            int (*decode)(struct ocr_image *out,
                                          const uint8_t *data, size_t len,
                                          const struct ocr_image_limits *limits,
                                          const struct ocr_image_alloc *alloc,
                                          struct ocr_err *err));

#endif

/* engine/protocol.h - what ocrfs and ocrfs-engine say to each other.
 *
 * A Unix socket of type SOCK_SEQPACKET; one message is one packet: a fixed
 * header, `length` bytes of payload, and for some types one descriptor. Both
 * ends are of one machine, so numbers are in its byte order.
 *
 *   client                                engine
 *   HELLO  version, settings         -->
 *                                    <--  HELLO  version
 *                                    <--  READY  capacity, fingerprint, device
 *                                    <--  CAPACITY  n            (at any time)
 *   OPEN   document, descriptor      -->
 *                                    <--  PAGES  document, n   | ERROR
 *   READ   document, page, priority  -->
 *                                    <--  PROGRESS, TEXT       | ERROR
 *                                    <--  DIGEST document, page, digest
 *   READ   document, page, GO        -->
 *   CANCEL document, page            -->
 *                                    <--  BEAT  finished     (while it works)
 *                                    <--  LOST  why, sentence
 *                                    <--  CRASHED  signal, jobs
 *
 * `document` is chosen by the client, never 0 and never used twice on one
 * connection; ERROR with document 0 is about the connection and its last
 * message. CAPACITY is this client's credit: pages it may have outstanding
 * between READ and TEXT or ERROR. READ of an outstanding page changes its
 * priority. A document of one page is forgotten with its answer, others with
 * CANCEL of OCR_PAGE_ALL; how many pages it has is told before its first text.
 * A page of many waits, once it is decoded, for the client to look up whether
 * it knows its pixels: READ with OCR_READ_GO has it read, CANCEL drops it.
 * CRASHED is sent from a signal handler just before the engine dies; a kill
 * from outside sends nothing. LOST is the last message of an engine whose
 * device works no more; pages that may be to blame got PROGRESS with
 * OCR_STAGE_SUSPECT before. BEAT comes every second while this client's pages
 * are read by a device that can hang.
 *
 * Layer:   engine.
 * Threads: no state; one sender and one receiver per socket at a time.
 * Errors:  -EPROTO for anything that is not a well-formed message. */
#ifndef OCR_PROTOCOL_H
#define OCR_PROTOCOL_H
#include "engine/base/err.h"

#include <stddef.h>
#include <stdint.h>

enum {
    OCR_PROTOCOL_VERSION = 1,
    OCR_PAYLOAD_MAX = 32 << 10, /* bytes */
    OCR_TEXT_INLINE = 16 << 10, /* longer texts travel as a sealed memfd */
    OCR_PAGES_MAX = 10000,      /* of a document: as OCR_IMAGE_LIMITS_DEFAULT */
};
#define OCR_PAGE_ALL UINT32_MAX

/* The descriptor of the listening socket that an engine is started with. */
enum {
    OCR_ENGINE_LISTEN_FD = 3
};

enum ocr_message_type {
    OCR_MSG_HELLO = 1,    /* value: version; engine: payload:
                             program version; client: payload: settings */
    OCR_MSG_READY = 2,    /* value: credit; payload: fingerprint \n device \n
                             recogniser version \n what it works with, both
                             for people */
    OCR_MSG_CAPACITY = 3, /* value: credit */
    OCR_MSG_OPEN = 4,     /* document; fd; value: bytes; payload: struct
                             ocr_open_check, or empty; flags: OCR_OPEN_CHECK */
    OCR_MSG_PAGES = 5,    /* document; value: pages */
    OCR_MSG_READ = 6,     /* document, page; value: enum ocr_priority; flags */
    OCR_MSG_PROGRESS = 7, /* document, page; value: enum ocr_stage */
    OCR_MSG_TEXT = 8,     /* document, page; value: bytes; payload or fd;
                             flags: OCR_TEXT_* */
    OCR_MSG_ERROR = 9,    /* document, page; value: enum ocr_kind; payload:
                             sentence; flags: OCR_ERROR_* */
    OCR_MSG_CANCEL = 10,  /* document, page or OCR_PAGE_ALL */
    OCR_MSG_CRASHED = 11, /* value: signal; flags: pages being read */
    OCR_MSG_LOST = 12,    /* value: 1: the device's own fault, 0: perhaps a
                             page's; payload: sentence */
    OCR_MSG_BEAT = 13,    /* value: pieces of work finished; flags: ms after
                             which an engine that finishes none is lost */
    OCR_MSG_DIGEST = 14,  /* document, page; payload: digest of its pixels,
                             keyed with the secret of OPEN */
};

enum ocr_priority {
    OCR_PRIORITY_BACKGROUND = 0, /* warm, indexing */
    OCR_PRIORITY_READAHEAD = 1,
    OCR_PRIORITY_INTERACTIVE = 2, /* somebody waits */
};

enum ocr_stage {
    OCR_STAGE_DECODING = 1,
    OCR_STAGE_READING = 2,
    OCR_STAGE_SUSPECT = 3, /* was worked on when the device was lost */
};

enum {
    OCR_OPEN_CHECK = 1, /* OPEN: no sealed memfd; its bytes may have changed */
};

enum {
    OCR_READ_ALONE = 1, /* READ: run with nothing beside it, so that a crash has
                           one suspect */
    OCR_READ_GO = 2,    /* its pixels are not known: go on */
};

enum {
    OCR_ERROR_AWAY = 1, /* ERROR of a connection: what the recogniser lacks may
                           come by itself, like a server that starts */
};

/* TEXT: what the finishing did to it, for the client's log. */
enum {
    OCR_TEXT_CUT = 1,      /* longer than the bound of a page, or than
                              max_tokens */
    OCR_TEXT_LOOP = 2,     /* a looping output was ended */
    OCR_TEXT_BLANK = 4,    /* blank page, nobody was asked */
    OCR_TEXT_PARTIAL = 8,  /* of a truncated image: never to be kept */
    OCR_TEXT_LOWERED = 16, /* max_tokens was more than the model has
                              positions for */
};

/* With OCR_OPEN_CHECK, for a file's own descriptor (above
 * OCR_CONTENT_MEMFD_MAX), the engine hashes what it reads and refuses other
 * bytes as OCR_KIND_CHANGING. */
struct ocr_open_check {
    uint8_t digest[16];  /* engine/content.h */
    uint8_t secret[192]; /* of the cache that keyed it */
};

struct ocr_message {
    uint32_t type;
    uint32_t page;
    uint64_t document;
    uint64_t value;
    uint32_t flags;
    uint32_t length; /* of payload */
    /* Not sent: */
    int fd;  /* -1, or the descriptor: borrowed on send, owned after receive */
    int pid; /* of the sender, from the kernel; 0 without SO_PASSCRED */
    char payload[OCR_PAYLOAD_MAX + 1]; /* NUL behind the last byte */
};

/* Sends header, `payload` (length bytes) and fd if >= 0. Does not block:
 * -EAGAIN if the socket is full; -EPIPE or -ECONNRESET if the peer is gone. */
int ocr_message_send(int sock, const struct ocr_message *header,
                     const void *payload);

/* Takes one message if there is one: 1; 0 if the peer closed; -EAGAIN if there
 * is none now; -EPROTO for garbage, with all descriptors closed. */
int ocr_message_receive(int sock, struct ocr_message *out);

#endif

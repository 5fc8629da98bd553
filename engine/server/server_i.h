/* engine/server/server_i.h - the engine process's insides.
 *
 * One thread, the main one, owns clients, documents and pages; it polls the
 * sockets. Pixels come from the decode pool's threads and texts from the
 * recogniser's, both through the mailbox (the only lock here).
 *
 *   READ -> QUEUED -> DECODING -> DECODED -> READING -> TEXT | ERROR
 *                              -> ASKED -> DECODED (a page of many)
 *
 * Decoding runs ahead of the recogniser by as many pages as it has slots, so
 * that none of them waits for a decoder. Interactive pages first, then the
 * clients in turn. Private to engine/server/. */
#ifndef OCR_SERVER_I_H
#define OCR_SERVER_I_H
#include "engine/protocol.h"
#include "engine/recogniser.h"
#include "engine/server/decode.h"

#include <pthread.h>
#include <signal.h>
#include <sys/types.h>
#include <stdatomic.h>

enum page_state {
    PAGE_QUEUED,   /* waits for a decoder */
    PAGE_DECODING, /* in the decode pool */
    PAGE_ASKED,    /* the client looks up whether it knows the pixels */
    PAGE_DECODED,  /* waits for the recogniser */
    PAGE_READING,  /* in the recogniser */
};

struct document {
    uint64_t number; /* the client's name for it */
    uint64_t id;     /* the decode pool's */
    uint32_t pages;  /* 0: not counted yet */
    bool keyed;      /* check.secret is set */
    int fd;
    uint64_t size;
    enum ocr_helper_kind helper; /* that decodes it */
    bool checked;                /* check is set: the file's own descriptor */
    struct ocr_open_check check;
    unsigned users;        /* pages that refer to it */
    bool forgotten;        /* by the client; freed with its last page */
    struct document *next; /* of the same client */
};

struct page {
    uint64_t id;           /* in the pool and the recogniser */
    struct client *client; /* NULL: it went away */
    struct document *document;
    uint32_t number;
    enum ocr_priority priority;
    enum page_state state;
    bool alone;                     /* nothing may run beside it */
    bool cancelled;                 /* its result is of no interest */
    int64_t since_ms, since_cpu_ms; /* READING, or cancelled while READING */
    uint64_t turn;                  /* order among equals: smaller first */
    char *settings; /* the client's, a copy: it may go before the page */
    struct ocr_image image; /* while DECODED and READING */
    struct page *next, *prev;
};

/* A message that did not fit into the socket. */
struct outgoing {
    struct outgoing *next;
    struct ocr_message header;
    char payload[];
};

struct client {
    int sock;
    bool hello, ready_sent, gone;
    char *settings;  /* "" until HELLO */
    unsigned pages;  /* outstanding */
    uint64_t served; /* its place in the turn */
    struct document *documents;
    struct outgoing *first_out, *last_out;
    struct client *next;
};

/* What other threads bring to the main one. */
struct letter {
    struct letter *next;
    enum {
        LETTER_DECODED,
        LETTER_RECOGNISED,
        LETTER_LOST
    } kind;
    union {
        struct ocr_decoded decoded;
        struct ocr_recognised text;
        struct ocr_loss loss;
    };
};

enum load_state {
    LOAD_RUNNING,
    LOAD_DONE,
    LOAD_FAILED
};

struct server {
    const struct ocr_recogniser_ops *ops;
    struct ocr_recogniser_config config;
    struct ocr_recogniser *recogniser; /* after LOAD_DONE */
    struct ocr_decode_pool *pool;
    unsigned capacity; /* pages in the recogniser */

    int listener, wake;
    struct client *clients;
    struct page *first_page, *last_page; /* in order of arrival */
    uint64_t next_id, next_turn, next_document;
    unsigned decoding, decoded, reading; /* pages by state */
    uint64_t ahead_bytes;                /* of the pixels of DECODED pages */
    int64_t idle_since_ms, beat_ms;
    unsigned idle_s, gpu_idle_s;
    const char *runtime, *name; /* the folder and the name of the socket */

    ino_t socket_ino; /* of the socket's name, to know it as ours */
    enum load_state load;
    struct ocr_err load_error; /* set by the loader before it sets loaded */

    pthread_t loader, reader;
    pthread_mutex_t mailbox; /* guards the three below */
    struct letter *first_letter, *last_letter;
    bool loaded; /* the loader has ended */
};

/* main loop (server.c): returns the exit status. */
int server_run(struct server *s);

/* client.c */
void client_accept(struct server *s);
void client_receive(struct server *s, struct client *c);
void client_flush(struct client *c); /* after POLLOUT */
void client_free(struct client *c);  /* its pages are gone or cancelled */
/* `fd` >= 0 is passed on and closed. Never blocks: what does not fit waits. */
void client_send(struct client *c, const struct ocr_message *header,
                 const void *payload, int fd);
void client_error(struct client *c, uint64_t document, uint32_t page,
                  enum ocr_kind kind, const char *sentence);
/* Tells how many pages the document has. */
void client_pages(struct client *c, const struct document *d);
/* READY, or why there is none, to a client that said HELLO. */
void client_greet(struct server *s, struct client *c);

/* pages.c */
void page_add(struct server *s, struct client *c, struct document *d,
              uint32_t number, enum ocr_priority priority, bool alone);
struct page *page_find(struct server *s, const struct client *c,
                       uint64_t document, uint32_t number);
void page_cancel(struct server *s, struct page *p);
void page_go(struct server *s, struct page *p);        /* if it was ASKED */
void pages_orphan(struct server *s, struct client *c); /* it goes away */
void page_decoded(struct server *s, struct ocr_decoded *decoded);
void page_recognised(struct server *s, struct ocr_recognised *text);
void pages_advance(struct server *s); /* hands pages on as there is room */
void pages_watch(struct server *s);   /* ends the engine if one never ends */
void pages_beat(struct server *s);    /* tells clients that it works */
/* The recogniser's device is lost: tells clients who may be to blame. */
void pages_lost(struct server *s, const struct ocr_loss *loss);
/* A message changed the priority of a page. */
void page_prioritise(struct server *s, struct page *p,
                     enum ocr_priority priority);
void document_release(struct document *d);

/* crash.c: handlers that tell clients why the engine dies. */
void crash_install(void);
void crash_watch(int sock, bool watch); /* a client came or went */
void crash_count(unsigned pages);       /* pages being decoded or read now */

#endif

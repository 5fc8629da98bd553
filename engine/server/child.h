/* engine/server/child.h - one decode helper, as the thread that serves it
 * sees it.
 *
 * Layer:   engine/server, private to decode.c.
 * Threads: a struct ocr_child belongs to one thread, which must live as long
 *          as the helper: the kernel kills the helper with that thread. */
#ifndef OCR_CHILD_H
#define OCR_CHILD_H
#include "engine/server/helper.h"

#include <sys/types.h>

struct ocr_child {
    pid_t pid; /* 0: none */
    int sock;
    unsigned images;  /* sent to it */
    unsigned sandbox; /* OCR_SANDBOX_* that hold in it */
};

#define OCR_CHILD_INIT                                                         \
    {                                                                          \
        0, -1, 0, 0                                                            \
    }

enum ocr_child_event {
    OCR_CHILD_ANSWER, /* a packet or the end is there to be received */
    OCR_CHILD_WAKE,   /* `wake` became readable */
    OCR_CHILD_SILENT, /* the time is up */
};

/* Starts `program` and waits until it is ready. After an error there is no
 * child. -ECANCELED if `wake` became readable meanwhile. */
int ocr_child_start(struct ocr_child *child, const char *program,
                    enum ocr_helper_kind kind, int wake, struct ocr_err *err);

/* Allows it `memory` bytes of addresses from now on, and `cpu_s` seconds of
 * processor time beside what it used. False if whoever started the engine
 * allowed less memory. */
bool ocr_child_limit(const struct ocr_child *child, uint64_t memory,
                     unsigned cpu_s);

/* Waits for an answer, at most timeout_ms. */
enum ocr_child_event ocr_child_wait(const struct ocr_child *child, int wake,
                                    int timeout_ms);

/* Ends the child, if there is one, and returns its wait status: that of its
 * own death if it was dead already. */
int ocr_child_stop(struct ocr_child *child);

#endif

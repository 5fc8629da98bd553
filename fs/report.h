/* fs/report.h - how whoever started a mount learns how the start went.
 *
 * In the background: the process forks before anything else; the child does
 * all the work and reports through a pipe, one byte of exit status, then, if
 * it failed, the reason. The parent prints that and exits with the status. A
 * service manager is told through NOTIFY_SOCKET (foreground only).
 *
 * Layer:   fs.
 * Threads: ready and notify from any thread, the others before threads. */
#ifndef OCR_REPORT_H
#define OCR_REPORT_H
#include <stdbool.h>

struct ocr_report {
    int pipe;     /* to the parent, -1 in the foreground */
    char *notify; /* NOTIFY_SOCKET, NULL if there is none */
};

void ocr_report_init(struct ocr_report *r);
void ocr_report_release(struct ocr_report *r);

/* Forks. False in the child; true in the parent, after the child reported (or
 * died), with the exit status, the reason printed. */
bool ocr_report_fork(struct ocr_report *r, int *status);

/* Takes NOTIFY_SOCKET out of the environment: for the foreground. */
void ocr_report_use_notify(struct ocr_report *r);

/* The mount is there. In the background the process leaves the terminal and
 * its session first and logs to syslog from now on; if nobody waits for the
 * report any more, the start was called off: the process gets SIGTERM. */
void ocr_report_ready(struct ocr_report *r);

/* The start failed: prints `text` or sends it to the parent. */
void ocr_report_failed(struct ocr_report *r, int status, const char *text);

/* "STOPPING=1" and the like; nothing without a socket. */
void ocr_report_notify(const struct ocr_report *r, const char *state);

#endif

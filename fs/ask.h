/* fs/ask.h - looking into a mount that may hang: a child does it.
 *
 * Layer:   fs.
 * Threads: one; forks, so call it before threads are started. */
#ifndef OCR_ASK_H
#define OCR_ASK_H
#include "engine/base/buf.h"
#include "engine/base/err.h"

struct ocr_mount;

enum {
    OCR_ASK_MS = 2000
};

/* In the child: may write to the descriptor `out`; 0 or an errno. */
typedef int ocr_ask_job(const void *arg, int out);

/* Runs `job` in a child and appends what it wrote to *text. -ETIMEDOUT after
 * patience_ms without an end (0: no limit); then the child is left to the mount
 * it hangs in. Else 0 or the job's errno, negative, said as "`what`: why". */
int ocr_ask(ocr_ask_job *job, const void *arg, int patience_ms,
            const char *what, struct ocr_buf *text, struct ocr_err *err);

/* In the child: root takes the mounter's ids, whom alone the kernel lets into
 * a mount without allow_other. */
int ocr_ask_become(const struct ocr_mount *mount);

/* Says what to do about a mount that did not answer in so long. */
void ocr_ask_say_hung(const char *point, int patience_ms);

#endif

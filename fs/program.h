/* fs/program.h - other programs, run for their output: curl, sha256sum, the
 * engine when it is asked something.
 *
 * Layer:   fs.
 * Threads: no state. They get no descriptor of ours but standard error, which
 *          goes into the same pipe as standard output, and /dev/null. */
#ifndef OCR_PROGRAM_H
#define OCR_PROGRAM_H
#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <sys/types.h>

struct ocr_program {
    pid_t pid;
    int out; /* non-blocking; what it printed and nobody read */
};

/* Starts argv[0], a path or a name on the PATH; argv ends with NULL. -ENOENT,
 * without a sentence, if there is no such program. */
int ocr_program_start(struct ocr_program *p, const char *const argv[],
                      struct ocr_err *err);

/* Appends what it has printed. True once it has ended and all is read; then
 * *status is its exit status, 128 and the signal's number if one killed it,
 * and p is released. Else waits up to `wait_ms`. */
bool ocr_program_poll(struct ocr_program *p, int wait_ms, struct ocr_buf *out,
                      int *status);

/* Kills it, waits for it, and releases p. */
void ocr_program_kill(struct ocr_program *p);

/* Start and poll until the end: the exit status, or a negative errno. */
int ocr_program_run(const char *const argv[], struct ocr_buf *out,
                    struct ocr_err *err);

#endif

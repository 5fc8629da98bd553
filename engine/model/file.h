/* engine/model/file.h - the files of a model folder, before anyone trusts
 * them.
 *
 * A weights file is mapped, and may be cut or replaced by another program
 * while we read. That must be a message, not a crash: a page that is gone
 * reads as zeros (a handler of SIGBUS puts them there), the mapping remembers
 * it, and ocr_mapping_check() tells afterwards.
 *
 * Layer:   engine, inside engine/model.
 * Threads: a mapping may be read from any number; open and close on one thread
 *          at a time. The handler is put in, unless it is, whenever a file is
 *          mapped, and leaves faults elsewhere to the one before it. */
#ifndef OCR_MODEL_FILE_H
#define OCR_MODEL_FILE_H
#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <stddef.h>
#include <sys/stat.h>

enum {
    OCR_MAPPINGS_MAX = 256 /* at once, in this process */
};

struct ocr_mapping {
    const unsigned char *bytes; /* NULL: closed */
    size_t size;
    int fd, slot;
    struct stat stat; /* when it was mapped */
};

/* Opens the regular file `name` of the folder `dir` for reading: its
 * descriptor (the caller's) or a negative errno, -ENOENT if there is none. */
int ocr_file_open(int dir, const char *name, struct stat *stat,
                  struct ocr_err *err);

/* Appends the whole file to `out`, whose limit is the largest size taken. */
int ocr_file_read(struct ocr_buf *out, int dir, const char *name,
                  struct ocr_err *err);

/* Maps `fd`, which becomes the mapping's, also on failure. `name` is for
 * messages. */
int ocr_mapping_open(struct ocr_mapping *out, int fd, const struct stat *stat,
                     const char *name, struct ocr_err *err);

/* 0 if all that was read so far were the bytes of the file that was opened:
 * nothing was missing, size and times are what they were. */
int ocr_mapping_check(const struct ocr_mapping *m, const char *name,
                      struct ocr_err *err);

/* Unmaps and closes; a closed or zeroed one is a no-op. */
void ocr_mapping_close(struct ocr_mapping *m);

#endif

/* fs/fileid.h - the key under which the cache's index remembers a file.
 *
 * Layer:   fs.
 * Threads: no state. */
#ifndef OCR_FILEID_H
#define OCR_FILEID_H
#include "cache/cache.h"

#include <sys/stat.h>

/* Fills *out for a file with these attributes; `fd` is any descriptor on its
 * file system, asked for that one's id. */
void ocr_file_id_fill(struct ocr_file_id *out, const struct stat *st, int fd);

/* Id of the file system of `fd`: what statfs says, since device numbers are
 * given anew at each boot; `dev` where it says nothing. */
uint64_t ocr_file_system_id(int fd, dev_t dev);

#endif

/* fs/warm.h - how `ocrfs warm` tells a mount that nobody waits for its opens.
 *
 * A thread that opened the control folder gives this ioctl on it; from then on
 * its opens of texts have the lowest priority and start no readahead, until it
 * closes the folder.
 *
 * Layer:   fs: the mount's side and the command's. */
#ifndef OCR_WARM_H
#define OCR_WARM_H
#include <stdbool.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/types.h>

enum {
    OCR_WARM_REFRESH = 1, /* texts of another version are made again; EAGAIN
                             until the engine has said which version it is */
};
#define OCR_WARM_IOCTL _IOW('o', 1, uint32_t)

/* Numbers of texts, and of nothing else that is listed, are odd. */
static inline bool ocr_is_text(ino_t st_ino)
{
    return st_ino & 1;
}

#endif

/* fs/pause.h - how `ocrfs pause` and `ocrfs resume` tell a mount.
 *
 * An ioctl on the control folder. After PAUSE has returned no program waits
 * for a text any more (their opens failed with EINTR), nothing new goes to the
 * engine, and opens of texts that are not known fail with EINTR at once: a
 * program that waits in a file system cannot be frozen, so that a machine with
 * one could not go to sleep. Known texts and originals are served as always.
 *
 * Layer:   fs: the mount's side and the command's. */
#ifndef OCR_PAUSE_H
#define OCR_PAUSE_H
#include <sys/ioctl.h>

#define OCR_PAUSE_IOCTL _IO('o', 2)
#define OCR_RESUME_IOCTL _IO('o', 3)

#endif

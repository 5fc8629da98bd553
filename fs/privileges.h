/* fs/privileges.h - what root's mount keeps of root's rights.
 *
 * Reading all of SOURCE (CAP_DAC_READ_SEARCH) and opening it without changing
 * its access times (CAP_FOWNER). The right to mount and unmount is laid down
 * and taken up again for those calls only. The program has no set-uid helper
 * then, nor has the engine. A user's mount has nothing to give up, and needs
 * fusermount3's set-uid bit.
 *
 * Layer:   fs.
 * Threads: drop before the first thread; raise and lower in any, which alone
 *          they are for. */
#ifndef OCR_PRIVILEGES_H
#define OCR_PRIVILEGES_H

/* No-op for anybody but root. */
void ocr_privileges_drop(void);

/* Around a mount or umount, and what else asks for that right (the kernel
 * taking a file to read by itself). No-ops unless dropped. */
void ocr_privileges_raise(void);
void ocr_privileges_lower(void);

#endif

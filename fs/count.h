/* fs/count.h - how `ocrfs status DIR` asks a mount about the texts of a folder.
 *
 * An ioctl on the folder: what it holds itself, not what is below it. Nothing
 * is read or begun for it; a text counts by what the index knows.
 *
 * Layer:   fs: the mount's side and the command's. */
#ifndef OCR_COUNT_H
#define OCR_COUNT_H
#include <stdint.h>
#include <sys/ioctl.h>

struct ocr_texts_count {
    uint32_t texts;  /* all: one for each image */
    uint32_t known;  /* of these: open at once */
    uint32_t failed; /* of these: are known to fail */
};
#define OCR_COUNT_IOCTL _IOR('o', 4, struct ocr_texts_count)

#endif

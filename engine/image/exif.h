/* engine/image/exif.h - the two facts of EXIF that matter for reading: which
 * way is up, and how many dots make an inch.
 *
 * Layer:   engine, inside engine/image.
 * Threads: no state. Safe on any bytes; nothing is read outside `tiff`. */
#ifndef OCR_EXIF_H
#define OCR_EXIF_H
#include <stddef.h>
#include <stdint.h>

struct ocr_exif {
    unsigned orientation; /* 1 to 8; 1 if missing or nonsense */
    uint32_t dpi;         /* 0 if missing or nonsense */
};

/* Reads the first directory of the TIFF structure `tiff` (what follows
 * "Exif\0\0" in JPEG, the whole chunk eXIf in PNG). Always fills *out. */
void ocr_exif_read(struct ocr_exif *out, const uint8_t *tiff, size_t len);

/* Dots per inch if the number can be true for a scan or a screen, else 0. */
uint32_t ocr_plausible_dpi(double dpi);

#endif

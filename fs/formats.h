/* fs/formats.h - what ocrfs-engine can tell about this machine, and which
 * names are those of images because of that.
 *
 * ocrfs loads no image library, not even to see whether it is there: the
 * engine does, in a process of its own, and prints what it found.
 *
 * Layer:   fs.
 * Threads: one, before others are there. */
#ifndef OCR_FS_FORMATS_H
#define OCR_FS_FORMATS_H

/* Runs ocrfs-engine with the words up to NULL, at most 8, and gives each line
 * that it prints to `take`, which may change it. Nothing if there is no engine.
 */
void ocr_engine_ask(const char *const words[],
                    void (*take)(void *arg, char *line), void *arg);

/* From now on names with the endings of all formats that the engine reads are
 * names of images (names_is_image). */
void ocr_formats_learn(void);

#endif

/* engine/server/formats.h - the formats beyond PNG and JPEG, and the plugins
 * that decode them.
 *
 * Layer:   engine/server.
 * Threads: before others are there: a plugin stays loaded for good. */
#ifndef OCR_FORMATS_H
#define OCR_FORMATS_H
#include "engine/image/image.h"
#include "engine/server/helper.h"

/* The helper that decodes files of `format`. */
enum ocr_helper_kind ocr_formats_helper(enum ocr_format format);

/* Loads the plugins that this kind of helper decodes with, those that are
 * there. */
void ocr_formats_load(enum ocr_helper_kind kind);

/* Tries all plugins; for each format prints one line "ok TAB format TAB
 * endings: library", or with "note" what to install. ocrfs asks for it. */
int ocr_formats_say(void);

#endif

/* engine/server/plugin.h - finds a recogniser by its name.
 *
 * `null` is built in, and `lighton` where the libraries that read a model were
 * there; the others are plugins, ocrfs-NAME.so beside the engine or in
 * ../../lib/ocrfs, loaded when they are wanted.
 *
 * Layer:   engine, the server's.
 * Threads: main thread, at the start. */
#ifndef OCR_PLUGIN_H
#define OCR_PLUGIN_H
#include "engine/recogniser.h"

/* The recogniser `spec` names ("tesseract", "null:200ms"); *arguments points
 * behind the colon, or at "". NULL: there is none, with a sentence that says
 * what to install. A plugin stays loaded until the process ends. */
const struct ocr_recogniser_ops *ocr_recogniser_find(const char *spec,
                                                     const char **arguments,
                                                     struct ocr_err *err);

/* A recogniser whose open fails with *err: the engine runs and tells its
 * clients why it cannot read. */
const struct ocr_recogniser_ops *
ocr_recogniser_missing(const struct ocr_err *err);

#endif

/* engine/model/json.h - JSON of unknown origin, parsed within bounds.
 *
 * Depth and number of values are counted before the parser allocates
 * anything, so that 100 MB of brackets cost a scan and a message. Names given
 * twice are errors.
 *
 * Layer:   engine, inside engine/model.
 * Threads: no state. */
#ifndef OCR_MODEL_JSON_H
#define OCR_MODEL_JSON_H
#include "engine/base/err.h"

#include <jansson.h>
#include <stddef.h>

enum {
    OCR_JSON_DEPTH_MAX = 32,
    OCR_JSON_VALUES_MAX = 2 * 1000 * 1000,
};

/* The object in `text`, the caller's (json_decref), or NULL with a sentence
 * that begins with `name`. */
json_t *ocr_json_parse(const char *text, size_t len, const char *name,
                       struct ocr_err *err);

#endif

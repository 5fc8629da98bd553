/* engine/model/weights.h - the files of weights of a folder as one set of
 * tensors: model.safetensors alone, or the files that
 * model.safetensors.index.json names.
 *
 * Layer:   engine, inside engine/model.
 * Threads: immutable once open. */
#ifndef OCR_WEIGHTS_H
#define OCR_WEIGHTS_H
#include "engine/model/safetensors.h"

struct ocr_weights; /* opaque */

/* A tensor and where it was found, borrowed from the weights. */
struct ocr_found {
    const char *file;
    const struct ocr_safetensor *tensor; /* NULL: there is none */
    const unsigned char *data;
};

int ocr_weights_open(struct ocr_weights **out, int dir, struct ocr_err *err);

/* The tensor `name`. */
struct ocr_found ocr_weights_find(const struct ocr_weights *weights,
                                  const char *name);

/* The file a tensor was looked for in, for messages. */
const char *ocr_weights_file(const struct ocr_weights *weights);

/* 0 if all files are what they were when they were opened. */
int ocr_weights_check(const struct ocr_weights *weights, struct ocr_err *err);

/* NULL is a no-op. */
void ocr_weights_close(struct ocr_weights *weights);

#endif

/* engine/model/model.h - a model folder in its published form: config.json and
 * its companions, tokenizer.json, one or several safetensors files.
 *
 * Opening maps the weights and checks everything; nothing is copied. A backend
 * then packs them (struct ocr_model), after which the caller asks whether the
 * files held still, and unmaps them:
 *
 *   ocr_model_folder_open, backend open, ocr_model_folder_check,
 *   ocr_model_folder_unmap, ..., ocr_model_folder_close
 *
 * Layer:   engine, inside engine/model.
 * Threads: immutable while open; open, unmap and close on one thread.
 * Errors:  the sentence names folder, file and tensor. */
#ifndef OCR_MODEL_FOLDER_H
#define OCR_MODEL_FOLDER_H
#include "engine/model/config.h"
#include "engine/model/tokenizer.h"

enum {
    OCR_FINGERPRINT_SIZE = 33 /* 32 hex digits and a NUL */
};

struct ocr_weights; /* opaque */

struct ocr_model_folder {
    struct ocr_model model;
    struct ocr_model_config config;
    struct ocr_tokenizer *tokenizer; /* can build the prompt of a page */
    /* Names the folder's content: all bytes of its JSON files, type and shape
     * of every tensor that is used, small tensors whole and of large ones
     * four samples. The same weights in other files have the same. */
    char fingerprint[OCR_FINGERPRINT_SIZE];
    struct ocr_weights *weights; /* NULL once unmapped */
};

int ocr_model_folder_open(struct ocr_model_folder **out, const char *path,
                          struct ocr_err *err);

/* 0 if the files of weights are still what they were when they were opened,
 * so that what was read from them can be trusted. */
int ocr_model_folder_check(const struct ocr_model_folder *folder,
                           struct ocr_err *err);

/* Gives the mappings back: the tensors of the model lose their data. */
void ocr_model_folder_unmap(struct ocr_model_folder *folder);

/* NULL is a no-op. */
void ocr_model_folder_close(struct ocr_model_folder *folder);

#endif

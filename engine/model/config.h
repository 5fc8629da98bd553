/* engine/model/config.h - the numbers of a model folder: config.json in all
 * spellings that are met, generation_config.json, and what the processor's
 * files say about images.
 *
 * Every number has limits, so that no folder can ask for absurd memory. What
 * this engine does not compute (other activations, biases, sliding windows,
 * scaled RoPE) is an error by name, not a wrong text.
 *
 * Layer:   engine, inside engine/model.
 * Threads: no state. */
#ifndef OCR_MODEL_CONFIG_H
#define OCR_MODEL_CONFIG_H
#include "engine/base/err.h"
#include "kernels/model.h"

#include <jansson.h>

enum {
    OCR_STOP_IDS_MAX = 8
};

/* Whether logits are made with the embedding. */
enum ocr_tied {
    OCR_TIED_UNSAID, /* unless the weights have a head of their own */
    OCR_TIED_YES,
    OCR_TIED_NO,
};

struct ocr_model_config {
    enum ocr_tied tied;
    uint32_t longest_edge; /* of a resized page, in pixels: 1540 */
    uint32_t stop_ids[OCR_STOP_IDS_MAX];
    uint32_t stop_count;
};

/* The files that were found, parsed; NULL for those that were not. */
struct ocr_config_files {
    const json_t *config;       /* config.json; must be there */
    const json_t *generation;   /* generation_config.json */
    const json_t *processor;    /* processor_config.json */
    const json_t *preprocessor; /* preprocessor_config.json */
};

/* Fills *out and the numbers of *model; its tensors are left alone. */
int ocr_model_config_read(struct ocr_model_config *out, struct ocr_model *model,
                          const struct ocr_config_files *files,
                          struct ocr_err *err);

#endif

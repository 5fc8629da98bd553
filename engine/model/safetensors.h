/* engine/model/safetensors.h - one file of weights: 8 bytes with the length of
 * a JSON header, the header, the data.
 *
 * Everything is checked before a byte of data is used, in 64 bits: the
 * header's length and depth, names, types, shapes, and that the tensors fill
 * the rest of the file exactly, without holes and without overlapping. Data
 * may begin at any address, an odd one too.
 *
 * Layer:   engine, inside engine/model.
 * Threads: immutable once open.
 * Errors:  the sentence names the file and the tensor. */
#ifndef OCR_SAFETENSORS_H
#define OCR_SAFETENSORS_H
#include "engine/model/file.h"

#include <stdint.h>

enum {
    OCR_SAFETENSORS_RANK = 8,
};
#define OCR_SAFETENSORS_HEADER_MAX ((uint64_t)100 * 1000 * 1000)

struct ocr_safetensor {
    char *name;
    char dtype[12]; /* as the file spells it: "BF16" */
    unsigned rank;  /* 0: one value */
    uint64_t shape[OCR_SAFETENSORS_RANK];
    uint64_t offset, bytes; /* in the data */
};

struct ocr_safetensors {
    struct ocr_safetensor *tensor; /* by name */
    size_t count;
    uint64_t header_bytes, data_bytes;
    char *header; /* as it stands in the file */
    struct ocr_mapping mapping;
};

/* Opens `name` of the folder `dir`. On failure there is nothing to release. */
int ocr_safetensors_open(struct ocr_safetensors *out, int dir, const char *name,
                         struct ocr_err *err);

/* The two steps of it without a file. Length of the header from the first 8
 * bytes of a file of `size` bytes: */
int ocr_safetensors_header(const unsigned char first[8], uint64_t size,
                           const char *name, uint64_t *length,
                           struct ocr_err *err);
/* Tensors of a header before `data_bytes` of data; copies what it needs. */
int ocr_safetensors_parse(struct ocr_safetensors *out, const char *header,
                          size_t length, uint64_t data_bytes, const char *name,
                          struct ocr_err *err);

/* NULL if there is none of this name. */
const struct ocr_safetensor *
ocr_safetensors_find(const struct ocr_safetensors *file, const char *tensor);

/* Where its data is mapped. */
const unsigned char *ocr_safetensors_data(const struct ocr_safetensors *file,
                                          const struct ocr_safetensor *tensor);

/* Unmaps and frees; a zeroed one is a no-op. */
void ocr_safetensors_release(struct ocr_safetensors *file);

#endif

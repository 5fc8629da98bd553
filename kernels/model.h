/* kernels/model.h - a LightOnOCR model as numbers and tensors: what a backend
 * gets to see of a model folder.
 *
 * A Pixtral vision encoder, a norm with 2 x 2 merging and a two-layer
 * projector, and a Qwen3 decoder. Matrices are row-major [out][in], y = W x,
 * no biases. Everything was checked by the loader: shapes fit the numbers,
 * data lies within its file.
 *
 * Layer:   kernels.
 * Threads: immutable once made. */
#ifndef OCR_MODEL_H
#define OCR_MODEL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ocr_dtype {
    OCR_DTYPE_BF16,
    OCR_DTYPE_FP16,
    OCR_DTYPE_FP32
};

/* A matrix [rows][cols], or a vector with rows 1, in a mapped file. The data
 * may begin at an odd address (the published file's does): copy it out, never
 * cast the pointer. */
struct ocr_tensor {
    const unsigned char *data; /* little-endian, borrowed from the mapping */
    enum ocr_dtype dtype;
    uint32_t rows, cols;
};

struct ocr_vision_layer {
    struct ocr_tensor attention_norm; /* [hidden] */
    struct ocr_tensor q, k, v;        /* [heads * head_dim][hidden] */
    struct ocr_tensor o;              /* [hidden][heads * head_dim] */
    struct ocr_tensor ffn_norm;       /* [hidden] */
    struct ocr_tensor gate, up;       /* [intermediate][hidden] */
    struct ocr_tensor down;           /* [hidden][intermediate] */
};

struct ocr_vision {
    uint32_t layers, hidden, heads, head_dim, intermediate;
    uint32_t patch;                 /* pixels a side: 14 */
    uint32_t grid;                  /* patches a side at most: 110 */
    float rope_theta;               /* 1e4 */
    float norm_eps;                 /* 1e-5, fixed by the architecture */
    struct ocr_tensor patch_conv;   /* [hidden][3 * patch * patch], channel
                                       outermost, then row, then column */
    struct ocr_tensor ln_pre;       /* [hidden] */
    struct ocr_vision_layer *layer; /* [layers] */
};

struct ocr_projector {
    uint32_t merge;             /* patches a side of one token: 2 */
    float norm_eps;             /* that of the decoder: 1e-6 */
    struct ocr_tensor norm;     /* [vision.hidden] */
    struct ocr_tensor merging;  /* [vision.hidden][merge^2 * vision.hidden];
                                   column channel * merge^2 + dy * merge + dx */
    struct ocr_tensor linear_1; /* [text.hidden][vision.hidden] */
    struct ocr_tensor linear_2; /* [text.hidden][text.hidden] */
};

struct ocr_text_layer {
    struct ocr_tensor input_norm;     /* [hidden] */
    struct ocr_tensor q;              /* [heads * head_dim][hidden] */
    struct ocr_tensor k, v;           /* [kv_heads * head_dim][hidden] */
    struct ocr_tensor o;              /* [hidden][heads * head_dim] */
    struct ocr_tensor q_norm, k_norm; /* [head_dim] */
    struct ocr_tensor post_norm;      /* [hidden] */
    struct ocr_tensor gate, up;       /* [intermediate][hidden] */
    struct ocr_tensor down;           /* [hidden][intermediate] */
};

struct ocr_text {
    uint32_t layers, hidden, heads, kv_heads, head_dim, intermediate;
    uint32_t vocab;               /* rows of the embedding */
    uint32_t max_positions;       /* 16384 */
    float rope_theta;             /* 1e6 */
    float norm_eps;               /* 1e-6 */
    struct ocr_tensor embedding;  /* [vocab][hidden] */
    struct ocr_tensor norm;       /* [hidden] */
    struct ocr_tensor head;       /* [vocab][hidden]; the embedding if tied */
    struct ocr_text_layer *layer; /* [layers] */
};

struct ocr_model {
    struct ocr_vision vision;
    struct ocr_projector projector;
    struct ocr_text text;
    uint32_t image_token; /* its rows are replaced by image features */
    float image_mean[3], image_std[3]; /* of RGB in 0..1 */
    /* Tells the owner that the data of a tensor was copied, so that its pages
     * may leave memory; reading it again is allowed, only slower. NULL:
     * nothing to tell. */
    void (*forget)(const struct ocr_tensor *t);
};

/* Row `row` of `t` as fp32 into out[cols]; exact for every dtype. */
void ocr_tensor_row(const struct ocr_tensor *t, uint32_t row, float *out);

/* The same for columns first .. first + count - 1. */
void ocr_tensor_part(const struct ocr_tensor *t, uint32_t row, uint32_t first,
                     uint32_t count, float *out);

#endif

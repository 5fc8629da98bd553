/* kernels/cpu/ops.h - the single operations of the forward pass, as the CPU
 * backend computes them: the yardstick for kernels of other devices.
 *
 * All arrays are dense, row-major, fp32; `bf16` says that the inputs of
 * products are rounded to bf16 first, as in OCR_PRECISION_BF16.
 *
 * Layer:   kernels/cpu.
 * Threads: no state. */
#ifndef OCR_CPU_OPS_H
#define OCR_CPU_OPS_H
#include "engine/base/err.h"
#include "kernels/model.h"

#include <stddef.h>
#include <stdint.h>

/* y = g x / sqrt(mean(x^2) + eps), for each row; y may be x. */
void ocr_op_rmsnorm(float *y, const float *x, const float *g, uint32_t rows,
                    uint32_t n, float eps);

/* out[i] = 1 / theta^(2 i / n), i < n / 2, rounded as the reference does. */
void ocr_op_frequencies(float *out, uint32_t n, float theta);

/* Rotates the pairs (i, i + n / 2) of x [n] by angle[i]. */
void ocr_op_rope(float *x, const float *angle, uint32_t n);

/* y [rows][w.rows] = x [rows][w.cols] times w. -ENOMEM. */
int ocr_op_linear(float *y, const float *x, uint32_t rows,
                  const struct ocr_tensor *w, bool bf16, struct ocr_err *err);

/* out [rows][n] of q [rows][n], k and v [keys][n], in splits of
 * OCR_SPLIT_TOKENS merged in ascending order; row r sees the keys 0 to
 * keys - rows + r if causal. -ENOMEM. */
int ocr_op_attention(float *out, const float *q, const float *k, const float *v,
                     uint32_t rows, uint32_t keys, uint32_t n, bool causal,
                     bool bf16, struct ocr_err *err);

/* y = SiLU(gate) up. */
void ocr_op_swiglu(float *y, const float *gate, const float *up, uint32_t n);

/* x / 2 (1 + erf(x / sqrt(2))), in place. */
void ocr_op_gelu(float *x, size_t n);

/* See struct ocr_sampler. `scratch`: ocr_op_sample_scratch(count) bytes;
 * `word`: of ocr_op_philox; `seen`: a bit for each id. */
uint32_t ocr_op_argmax(const float *logits, uint32_t count);
uint32_t ocr_op_philox(uint64_t seed, uint64_t page_hash, uint32_t position);
void ocr_op_penalty(float *logits, uint32_t count, const uint64_t *seen,
                    float penalty);
size_t ocr_op_sample_scratch(uint32_t count);
uint32_t ocr_op_sample(const float *logits, uint32_t count, float temperature,
                       float top_p, uint32_t word, void *scratch);

#endif

/* kernels/tables.h - tables that all backends look things up in, made as the
 * reference makes them: frequencies and positions times frequencies rounded to
 * fp32.
 *
 * Layer:   kernels.
 * Threads: any. */
#ifndef OCR_TABLES_H
#define OCR_TABLES_H
#include "kernels/model.h"

/* out[i] = 1 / theta^(2 i / n), i < n / 2. */
void ocr_frequencies(float *out, uint32_t n, float theta);

/* Cosines and sines of a token's angles, [positions][head_dim / 2] each. */
void ocr_table_text(float *cosine, float *sine, const struct ocr_text *t,
                    uint32_t positions);

/* Of a patch's line, then of its column, [2][grid][head_dim / 4] each: lines
 * turn by the even frequencies, columns by the odd ones. */
void ocr_table_page(float *cosine, float *sine, const struct ocr_vision *v);

/* Normalised values of a byte. */
void ocr_table_pixels(float out[3][256], const struct ocr_model *m);

#endif

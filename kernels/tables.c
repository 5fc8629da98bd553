#include "kernels/tables.h"

#include <math.h>

static float frequency(uint32_t i, uint32_t n, float theta)
{
    return 1.0f / (float)pow(theta, (float)(2 * i) / (float)n);
}

void ocr_frequencies(float *out, uint32_t n, float theta)
{
    for (uint32_t i = 0; i < n / 2; i++)
        out[i] = frequency(i, n, theta);
}

static void turn(float *cosine, float *sine, uint32_t position, float frequency)
{
    const float angle = (float)position * frequency;

    *cosine = (float)cos(angle);
    *sine = (float)sin(angle);
}

void ocr_table_text(float *cosine, float *sine, const struct ocr_text *t,
                    uint32_t positions)
{
    const uint32_t n = t->head_dim / 2;

    for (uint32_t i = 0; i < n; i++) {
        const float f = frequency(i, t->head_dim, t->rope_theta);

        for (uint32_t p = 0; p < positions; p++)
            turn(cosine + (size_t)p * n + i, sine + (size_t)p * n + i, p, f);
    }
}

void ocr_table_page(float *cosine, float *sine, const struct ocr_vision *v)
{
    const uint32_t n = v->head_dim / 4;

    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t p = 0; p < v->grid; p++)
            for (uint32_t i = 0; i < n; i++) {
                const size_t at = ((size_t)side * v->grid + p) * n + i;

                turn(cosine + at, sine + at, p,
                     frequency(2 * i + side, v->head_dim, v->rope_theta));
            }
}

void ocr_table_pixels(float out[3][256], const struct ocr_model *m)
{
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < 256; i++)
            out[c][i] =
                ((float)(i * (1.0 / 255)) - m->image_mean[c]) / m->image_std[c];
}

#include "kernels/model.h"

#include <string.h>

static float from_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

static float from_fp16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    const uint32_t exponent = h >> 10 & 31, fraction = h & 0x3ff;

    if (exponent == 31)
        return from_bits(sign | 0x7f800000 | fraction << 13);
    if (!exponent) {
        const float x = (float)fraction * 0x1p-24f;
        return sign ? -x : x;
    }
    return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

void ocr_tensor_part(const struct ocr_tensor *t, uint32_t row, uint32_t first,
                     uint32_t count, float *out)
{
    const size_t size = t->dtype == OCR_DTYPE_FP32 ? 4 : 2;
    const unsigned char *from =
        t->data + ((size_t)row * t->cols + first) * size;

    for (uint32_t i = 0; i < count; i++, from += size) {
        uint16_t h;

        if (t->dtype == OCR_DTYPE_FP32) {
            memcpy(out + i, from, sizeof *out);
            continue;
        }
        memcpy(&h, from, sizeof h);
        out[i] = t->dtype == OCR_DTYPE_BF16 ? from_bits((uint32_t)h << 16)
                                            : from_fp16(h);
    }
}

void ocr_tensor_row(const struct ocr_tensor *t, uint32_t row, float *out)
{
    ocr_tensor_part(t, row, 0, t->cols, out);
}

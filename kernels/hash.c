#include "kernels/backend.h"

#include <string.h>

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t ocr_logits_hash(const float *logits, uint32_t count)
{
    uint64_t hash = 0;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits;

        memcpy(&bits, logits + i, sizeof bits);
        hash += mix((uint64_t)i << 32 | bits);
    }
    return hash;
}

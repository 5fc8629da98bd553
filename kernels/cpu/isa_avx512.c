/* kernels/cpu/isa_avx512.c - AVX-512: 16 floats at once. */
#if defined(__x86_64__)
#define V16_AVX512
#include "kernels/cpu/v16.h"
#define BODY_ROWS 4
#define BODY_PAIR_ROWS 4
#include "kernels/cpu/body.h"

const struct cpu_isa cpu_isa_avx512 = {
    .name = "avx512",
    .order = cpu_order_plain,
    .block = 96,
    BODY_ISA,
};
#endif

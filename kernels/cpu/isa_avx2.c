/* kernels/cpu/isa_avx2.c - AVX2 and FMA: 8 floats at once. */
#if defined(__x86_64__)
#define V16_AVX2
#include "kernels/cpu/v16.h"
#define BODY_ROWS 4
#define BODY_PAIR_ROWS 2
#include "kernels/cpu/body.h"

const struct cpu_isa cpu_isa_avx2 = {
    .name = "avx2",
    .order = cpu_order_plain,
    .block = 96,
    BODY_ISA,
};
#endif

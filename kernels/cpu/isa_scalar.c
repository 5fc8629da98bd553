/* kernels/cpu/isa_scalar.c - plain C, for any processor: the yardstick. */
#define V16_SCALAR
#include "kernels/cpu/v16.h"
#define BODY_ROWS 2
#define BODY_PAIR_ROWS 1
#include "kernels/cpu/body.h"

const struct cpu_isa cpu_isa_scalar = {
    .name = "scalar",
    .order = cpu_order_plain,
    .block = 96,
    BODY_ISA,
};

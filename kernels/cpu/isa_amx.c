/* kernels/cpu/isa_amx.c - tiles (AMX-BF16) for large products, AVX-512 for the
 * rest. TDPBF16PS sums as isa.h says: the order was taken from it. */
#if defined(__x86_64__)
#define V16_AVX512
#include "kernels/cpu/v16.h"
#define BODY_ROWS 4
#define BODY_PAIR_ROWS 4
#include "kernels/cpu/body.h"

#define TILES static __attribute__((target("amx-tile,amx-bf16")))

/* Eight tiles of 16 rows by 64 bytes. */
static const struct {
    uint8_t palette, start, zero[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} shape = {
    .palette = 1,
    .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

/* 32 rows by two panels: tiles 0 to 3 are sums, 4 and 5 rows, 6 and 7 panels.
 */
TILES void rows_32(float *c, size_t ldc, const char *a, size_t stride,
                   const char *p, const char *q, unsigned tiles)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (unsigned t = 0; t < tiles; t++, a += 64, p += 1024, q += 1024) {
        _tile_loadd(6, p, 64);
        _tile_loadd(4, a, stride);
        _tile_loadd(7, q, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, a + 16 * stride, stride);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, 4 * ldc);
    _tile_stored(1, c + 16, 4 * ldc);
    _tile_stored(2, c + 16 * ldc, 4 * ldc);
    _tile_stored(3, c + 16 * ldc + 16, 4 * ldc);
}

TILES void mul_half(float *c, size_t ldc, const void *a, size_t stride,
                    unsigned rows, const void *p, const void *q, unsigned tiles)
{
    _tile_loadconfig(&shape);
    for (unsigned r = 0; r < rows; r += 32)
        rows_32(c + r * ldc, ldc, (const char *)a + r * stride, stride, p,
                q ? q : p, tiles);
    _tile_release();
}

V16_OUT void widen(uint16_t *to, const int8_t *panel, unsigned tiles)
{
    widen_panel(to, panel, tiles, cpu_order_plain);
}

const struct cpu_isa cpu_isa_amx = {
    .name = "amx",
    .order = cpu_order_plain,
    .half = true,
    .block = 256,
    .mul_half = mul_half,
    .widen = widen,
    BODY_ISA,
};
#endif

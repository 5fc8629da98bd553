/* kernels/cpu/matrix.h - weights, packed once, and products with them.
 *
 * Layer:   kernels/cpu, private.
 * Threads: immutable once packed. */
#ifndef OCR_CPU_MATRIX_H
#define OCR_CPU_MATRIX_H
#include "kernels/cpu/isa.h"
#include "kernels/model.h"

#include <string.h>

struct cpu_matrix {
    enum cpu_format format;
    uint32_t columns; /* outputs, those that fill up panels included */
    uint32_t tiles;   /* of inputs */
    char *data;       /* [columns / 16][tiles] tiles, see isa.h */
    float *scale;     /* CPU_INT8: [columns] */
};

/* What a matrix is made of: the rows of up to three tensors under each other,
 * or of two with panels taking turns (SwiGLU). */
struct cpu_source {
    const struct ocr_tensor *part[3];
    bool alternate;
    uint32_t unfold; /* > 1: input c * unfold + j of the tensor is input
                        j * (inputs / unfold) + c of the matrix */
};

/* Bytes that m.data needs, m.format, columns and tiles set by the shape of the
 * source. */
size_t cpu_matrix_shape(struct cpu_matrix *m, const struct cpu_source *s,
                        enum cpu_format format);

/* Packs thread's share of the panels. */
void cpu_matrix_pack(struct cpu_matrix *m, const struct cpu_source *s,
                     const struct cpu_isa *isa, unsigned thread,
                     unsigned threads);

/* Row `row` of the source as floats: an embedding. */
void cpu_matrix_row(const struct cpu_matrix *m, const struct cpu_isa *isa,
                    uint32_t row, float *out, uint32_t n);

/* What a product with m takes on its left: `large` for many rows. */
enum cpu_rows cpu_matrix_rows(const struct cpu_matrix *m,
                              const struct cpu_isa *isa, bool large);

/* Bytes from one such row of n numbers to the next: whole tiles, and a line
 * more, so that rows do not fall on the same places of the cache. */
size_t cpu_row_stride(enum cpu_rows kind, uint32_t n);

/* f(a[rows] m) for the panels first to last - 1; `first` is even. `c` has room
 * for [rows, up to a multiple of 32][32]; `spare` for 2 panels in bf16 if m is
 * CPU_INT8 and the rows are CPU_ROWS_BF16. */
void cpu_matrix_mul(const struct cpu_matrix *m, const struct cpu_isa *isa,
                    const void *a, size_t stride, enum cpu_rows kind,
                    unsigned rows, uint32_t first, uint32_t last,
                    const struct cpu_finish *f, float *c, char *spare);

static inline uint16_t cpu_to_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

#endif

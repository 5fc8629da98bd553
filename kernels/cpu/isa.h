/* kernels/cpu/isa.h - the inner loops, once per instruction set.
 *
 * All sums that decide about bits are made here, and every instruction set
 * makes them in the same order, which is the one of Intel's tile multiply:
 * the inputs of an output are taken in tiles of 32; within a tile those with
 * even index are summed by one chain of fused multiply-adds from zero, those
 * with odd index by another; the two are added, and the result is added to
 * what the tiles before gave. So bits depend neither on the processor nor on
 * how the work is cut. Denormals count as zero (cpu_flush_denormals).
 *
 * Weights, K and V are packed in panels: 16 outputs by 32 inputs are a tile of
 * [16 pairs of inputs][16 outputs][2] bf16, or [32 inputs][16 outputs] fp32 or
 * int8; the tiles of a panel follow each other. Where the processor sums pairs
 * (VDPBF16PS), the inputs within each 16 stand in another order
 * (cpu_isa.order), so that the pairs make the two chains.
 *
 * Layer:   kernels/cpu, private.
 * Threads: no state. */
#ifndef OCR_CPU_ISA_H
#define OCR_CPU_ISA_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CPU_LANES = 16,
    CPU_TILE = 32,
};

enum cpu_format {
    CPU_BF16,
    CPU_FP32,
    CPU_INT8
};

/* How the rows on the left of a product are stored: rows of whole tiles, zero
 * behind the end. */
enum cpu_rows {
    CPU_ROWS_FP32,    /* as they are */
    CPU_ROWS_ROUNDED, /* floats that are bf16 values */
    CPU_ROWS_BF16,    /* bf16, in the order of the instruction set */
};

/* Where the results of a product go; see the finish functions. */
struct cpu_finish {
    enum {
        CPU_STORE, /* out[row][column] = c */
        CPU_ADD,   /* out[row][column] += c */
        CPU_SWIGLU /* panels are gate, up, gate, up: rows of SiLU(gate) up */
    } kind;
    void *out;
    size_t stride; /* of a row of out, in bytes */
    enum cpu_rows rows;
    const float *scale; /* of each output, or NULL */
};

/* One or two panels, and those that will be read after them. */
struct cpu_panels {
    const void *p, *q;           /* q: or NULL */
    const void *next_p, *next_q; /* or NULL; only fetched ahead */
};

struct cpu_isa {
    const char *name;
    const uint8_t *order; /* which input stands at each place of 16 */
    bool half;            /* large bf16 products take CPU_ROWS_BF16 */
    bool half_decode;     /* those of decoding, too */
    unsigned block;       /* rows that large products take at once */

    /* c[rows][32] = a[rows] * the panels, over `tiles` tiles; [rows][16] if
     * there is no q. A row of c has `ldc` numbers, a row of `a` `stride`
     * bytes. */
    void (*mul)(float *c, size_t ldc, const void *a, size_t stride,
                unsigned rows, const struct cpu_panels *panels, unsigned tiles,
                enum cpu_format format);
    /* c[rows][panels * 16, up to a multiple of 32] = a[rows] * panels in
     * blocks: block i holds the upper or lower half of tile i / 2 of each
     * panel, one behind the other. Not for CPU_ROWS_BF16. */
    void (*mul_blocks)(float *c, size_t ldc, const void *a, size_t stride,
                       unsigned rows, const char *const *block, unsigned blocks,
                       unsigned panels, enum cpu_format format);
    /* The same for CPU_ROWS_BF16 and CPU_BF16; NULL if !half. Reads and writes
     * rows up to the next multiple of 32, and 32 columns in any case. */
    void (*mul_half)(float *c, size_t ldc, const void *a, size_t stride,
                     unsigned rows, const void *p, const void *q,
                     unsigned tiles);
    /* A CPU_INT8 panel as CPU_BF16, exactly: the scale comes behind the
     * product. NULL if !half. */
    void (*widen)(uint16_t *to, const int8_t *panel, unsigned tiles);
    /* Sends c (columns `at` to at + 31 of a product with `columns` in all) to
     * its place. c is changed. */
    void (*finish)(const struct cpu_finish *f, float *c, unsigned rows,
                   unsigned at, unsigned columns);

    /* dst = src as a row of `kind`, zero from n to the end of the tile. */
    void (*to_row)(void *dst, enum cpu_rows kind, const float *src, unsigned n);
    /* y = g x / sqrt(mean(x^2) + eps); y may be x. */
    void (*rmsnorm)(float *y, const float *x, const float *g, unsigned n,
                    float eps);
    /* Rotates the pairs (i, i + n/2) by the angles of cosines and sines. */
    void (*rope)(float *x, const float *cosine, const float *sine, unsigned n);
    /* One row of scores, the first `n` of a split, becomes a row of
     * probabilities e^(scale score - max), zero up to `end`; returns the sum
     * of what is stored, and the max. `s` must hold n rounded up to 16 numbers.
     */
    float (*softmax)(void *p, enum cpu_rows kind, float *s, unsigned n,
                     unsigned end, float scale, float *max);
    /* acc = acc * alpha + add * beta over n numbers. */
    void (*merge)(float *acc, const float *add, unsigned n, float alpha,
                  float beta);
    float (*exp)(float x);
    void (*silu_mul)(float *y, const float *gate, const float *up, unsigned n);
};

extern const struct cpu_isa cpu_isa_scalar;
#if defined(__x86_64__)
extern const struct cpu_isa cpu_isa_avx2, cpu_isa_avx512, cpu_isa_bf16,
    cpu_isa_amx;
#endif

extern const uint8_t cpu_order_plain[16], cpu_order_pairs[16];

/* The best of this processor, at most what OCRFS_ISA names (scalar, avx2,
 * avx512, bf16, amx); one that does not give the bits of the others is left
 * out. `why`, NULL allowed: a constant sentence if the processor has a better
 * one that cannot be used, else untouched. */
const struct cpu_isa *cpu_isa_choose(const char **why);

/* By name, NULL if the processor lacks it. */
const struct cpu_isa *cpu_isa_find(const char *name);

/* Denormals as zero, for this thread: what the tile and pair instructions do
 * anyway. */
void cpu_flush_denormals(void);

#endif

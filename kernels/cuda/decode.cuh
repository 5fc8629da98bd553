/* kernels/cuda/decode.cuh - what the parts of a decode step know of each
 * other: decode.cu the order of launches, product.cu matrices times a few
 * rows, attend.cu one token against its page, sample.cu the next id.
 *
 * Layer:   kernels/cuda, private. */
#ifndef OCR_CUDA_DECODE_CUH
#define OCR_CUDA_DECODE_CUH
#include "kernels/cuda/ops.h"

enum {
    NO_SLOT = 0xffffffffu,
    SAMPLE_PARTS = 32, /* of a row of logits */
};

/* Which slot a row stands for and where its token goes. */
struct step_row {
    uint32_t slot; /* NO_SLOT: skip the row */
    uint32_t position;
};

/* A split of a row: work of decode attention. */
struct __align__(16) step_item
{
    uint32_t row, split, position, slot;
};

/* One part of a row of logits. */
struct part_choice {
    uint64_t hash;
    float best;
    uint32_t id;
    uint32_t bad, reserved;
};

/* An id that may be drawn. */
struct candidate {
    float logit;
    uint32_t id;
};

/* d->scratch, cut up. */
struct step_memory {
    struct step_row *row;         /* [rows] */
    uint32_t *items;              /* [1]: how many of these */
    struct step_item *item;       /* [rows * splits]: those of all live rows */
    uint32_t *parts_done;         /* [rows], 0 between launches */
    struct part_choice *parts;    /* [rows][SAMPLE_PARTS] */
    struct candidate *candidates; /* [rows][vocab] */
    float *qkv;                   /* [rows][(heads + 2 kv heads) 128] */
    uint16_t *normed;             /* [rows][hidden] */
    uint16_t *attended;           /* [rows][heads 128] */
    uint16_t *inner;              /* [rows][inner] */
    float *split;                 /* [rows][heads][splits][128] */
    float2 *split_sum;            /* [rows][heads][splits]: most, sum */
    uint32_t splits;              /* of the longest page */
    size_t bytes;
};

struct step_memory step_memory(const struct cuda_decode *d, unsigned tiles);

/* How rows are found: `row` is what begin left behind, or NULL if only the
 * lists are there. */
struct row_source {
    const struct step_row *row;
    const uint32_t *rows;
    const struct cuda_slot *slot;
    uint32_t slots, count; /* rows */
    bool early; /* what is behind these was there before the step's first
                   product: it may be read before await_previous */
};

__device__ __forceinline__ struct step_row
find_row(const uint32_t *rows, const struct cuda_slot *slot, uint32_t slots,
         uint32_t r)
{
    const uint32_t s = __ldcg(rows + r);

    if (s >= slots || __ldcg(&slot[s].status) != CUDA_RUNNING)
        return {NO_SLOT, 0};
    return {s, __ldcg(&slot[s].position)};
}

__device__ __forceinline__ bool is_live(const struct row_source &from,
                                        uint32_t r)
{
    if (r >= from.count)
        return false;
    if (from.row)
        return __ldcg(&from.row[r].slot) != NO_SLOT;
    return find_row(from.rows, from.slot, from.slots, r).slot != NO_SLOT;
}

enum product_kind {
    PRODUCT_STORE,  /* out fp32 [rows][n] = */
    PRODUCT_ADD,    /* out fp32 [rows][n] += */
    PRODUCT_SWIGLU, /* out 16 bit [rows][n / 2] = SiLU(gate) up */
};

/* out = rows times w [n][k]: of x [rows][k] (fp32, normalised with g first)
 * or of `in` [rows][k] (16 bit). `normed` [rows][k]: room for what x becomes.
 * n: a multiple of 16 (ADD), else of 8; k: of 64. */
struct product {
    const uint16_t *w;
    uint32_t n, k;
    const float *x, *g;
    float eps;
    const uint16_t *in;
    uint16_t *normed;
    void *out;
    struct row_source rows;
    uint32_t ring_bytes; /* private to product.cu */
};

cudaError_t product_start(cudaStream_t stream, ocr_half half,
                          enum product_kind kind, const struct product *p,
                          unsigned tiles);

/* The same as STORE for a large n, always of x. */
cudaError_t logits_start(cudaStream_t stream, ocr_half half,
                         const struct product *p, unsigned tiles);

/* m->qkv -> m->attended; K and V of the token into the cache. */
cudaError_t attend_start(cudaStream_t stream, const struct cuda_decode *d,
                         const struct step_memory *m, unsigned tiles,
                         uint32_t layer);

/* d->logits -> ids; slots are advanced. */
cudaError_t sample_start(cudaStream_t stream, const struct cuda_decode *d,
                         const struct step_memory *m, unsigned tiles);

#endif

/* kernels/cuda/plan.h - what the memory of a GPU is spent on.
 *
 * A pure function from the shape of a model and a budget to the size and place
 * of every buffer: all of one arena, which is allocated before the backend is
 * ready and not grown afterwards. What is left when everything else has its
 * place becomes KV blocks.
 *
 * Layer:   kernels/cuda, but plain C without CUDA: it is tested everywhere.
 * Threads: any. */
#ifndef OCR_CUDA_PLAN_H
#define OCR_CUDA_PLAN_H
#include "kernels/backend.h"

enum {
    CUDA_ALIGN = 256,      /* bytes; of every buffer */
    CUDA_SLOT_BYTES = 256, /* at least sizeof (struct cuda_slot) */
    CUDA_TILE = 8,         /* rows of a decode step come in so many */
    CUDA_MOST_SLOTS = 128,
};

/* Buffers of the arena. Rows: patches of the largest page, or tokens of the
 * longest prompt: vision and prefill take turns. */
enum cuda_region {
    CUDA_WEIGHTS,
    CUDA_KV_POOL,
    CUDA_FEATURES,  /* [slots][image tokens][hidden] fp32 */
    CUDA_TEXT_ROPE, /* cosines, then sines, [positions][64] fp32 each */
    CUDA_PAGE_ROPE, /* cosines, then sines, [2][grid][16] fp32 each */
    CUDA_PIXELS,    /* [3][256] fp32: normalised values of a byte */
    CUDA_RGB,       /* bytes of the page */
    CUDA_X,         /* residual stream, fp32 */
    CUDA_ROWS_A,    /* inputs of products, 16 bit */
    CUDA_ROWS_H,    /* q, k, v of a layer, then its inner rows, 16 bit */
    CUDA_WIDE,      /* outputs of products, fp32 */
    CUDA_SOURCE,    /* [prompt] where rows of x come from */
    CUDA_FLAG,
    CUDA_LT, /* workspace of cuBLASLt */
    CUDA_BLOCK_TABLES,
    CUDA_SLOTS,
    CUDA_SEEN,   /* [slots] a bit an id */
    CUDA_FORCED, /* [slots][tokens of slot_blocks] ids */
    CUDA_STEP_ROWS,
    CUDA_STEP_X,
    CUDA_STEP_LOGITS,
    CUDA_STEP_SCRATCH,
    CUDA_FIRST_ROWS, /* the same for the first id of a page */
    CUDA_FIRST_X,
    CUDA_FIRST_LOGITS,
    CUDA_FIRST_SCRATCH,
    CUDA_REGIONS
};

struct cuda_want {
    uint64_t bytes; /* for the arena, at most; 0: what `slots` need */
    unsigned slots; /* at most; 0: 64 */
    uint32_t max_patches, prompt_tokens, max_tokens; /* 0: the model's most */
    uint64_t step_scratch, first_scratch, lt;        /* bytes */
};

struct cuda_plan {
    unsigned slots;
    uint32_t blocks, slot_blocks;
    uint32_t max_patches, prompt_tokens, max_tokens;
    uint64_t offset[CUDA_REGIONS], bytes[CUDA_REGIONS];
    uint64_t total;
    uint64_t needed; /* the least total with which a page fits */
};

/* Completes what *want leaves open: the largest page, slots. */
void cuda_want_complete(struct cuda_want *want, const struct ocr_model *m);

/* KV blocks that a slot may have. */
uint32_t cuda_want_slot_blocks(const struct cuda_want *want,
                               const struct ocr_model *m);

/* As many blocks as fit, at most what all slots can use; fewer slots if there
 * are not blocks enough for their shortest pages. *want is complete. -ENOMEM
 * if not one page of the largest kind fits; plan->needed tells what does. */
int cuda_plan_make(struct cuda_plan *plan, const struct ocr_model *m,
                   const struct cuda_want *want);

/* Bytes of all matrices and vectors as they are laid out. */
uint64_t cuda_plan_weights(const struct ocr_model *m);

static inline uint64_t cuda_align(uint64_t bytes)
{
    return (bytes + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
}

#endif

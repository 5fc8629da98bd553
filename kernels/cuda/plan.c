#include "kernels/cuda/plan.h"

#include <errno.h>
#include <string.h>

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint32_t divide_up(uint64_t n, uint32_t by)
{
    return (uint32_t)((n + by - 1) / by);
}

/* ---- weights ------------------------------------------------------------ */

static uint64_t matrix(uint64_t rows, uint64_t cols)
{
    return cuda_align(rows * cols * sizeof(uint16_t));
}

static uint64_t vector(uint64_t n)
{
    return cuda_align(n * sizeof(float));
}

static uint64_t vision_layer(const struct ocr_vision *v)
{
    const uint64_t width = (uint64_t)v->heads * v->head_dim;

    return 2 * vector(v->hidden) + matrix(3 * width, v->hidden) +
           matrix(v->hidden, width) +
           matrix(2 * (uint64_t)v->intermediate, v->hidden) +
           matrix(v->hidden, v->intermediate);
}

static uint64_t text_layer(const struct ocr_text *t)
{
    const uint64_t d = t->head_dim;

    return 2 * vector(t->hidden) + 2 * vector(d) +
           matrix((t->heads + 2 * t->kv_heads) * d, t->hidden) +
           matrix(t->hidden, t->heads * d) +
           matrix(2 * (uint64_t)t->intermediate, t->hidden) +
           matrix(t->hidden, t->intermediate);
}

uint64_t cuda_plan_weights(const struct ocr_model *m)
{
    const struct ocr_vision *v = &m->vision;
    const struct ocr_text *t = &m->text;
    const uint64_t merged =
        (uint64_t)m->projector.merge * m->projector.merge * v->hidden;
    const bool tied = t->head.data == t->embedding.data;

    return v->layers * vision_layer(v) + t->layers * text_layer(t) +
           matrix(v->hidden, (3 * v->patch * v->patch + 15) / 16 * 16) +
           vector(v->hidden) * 2 + matrix(v->hidden, merged) +
           matrix(t->hidden, v->hidden) + matrix(t->hidden, t->hidden) +
           vector(t->hidden) + (tied ? 1 : 2) * matrix(t->vocab, t->hidden);
}

/* ---- what is wanted ----------------------------------------------------- */

void cuda_want_complete(struct cuda_want *want, const struct ocr_model *m)
{
    const uint32_t merged = m->projector.merge * m->projector.merge;

    want->slots = want->slots ? want->slots : 64;
    if (want->slots > CUDA_MOST_SLOTS)
        want->slots = CUDA_MOST_SLOTS;
    if (!want->max_patches)
        want->max_patches = m->vision.grid * m->vision.grid;
    if (!want->prompt_tokens)
        want->prompt_tokens = want->max_patches / merged + 64;
    if (!want->max_tokens)
        want->max_tokens = 4096;
}

uint32_t cuda_want_slot_blocks(const struct cuda_want *want,
                               const struct ocr_model *m)
{
    const uint64_t tokens =
        (uint64_t)want->prompt_tokens + want->max_tokens + 1;

    return divide_up(tokens < m->text.max_positions ? tokens
                                                    : m->text.max_positions,
                     OCR_BLOCK_TOKENS);
}

/* ---- sizes -------------------------------------------------------------- */

static void size_pages(struct cuda_plan *p, const struct ocr_model *m)
{
    const struct ocr_vision *v = &m->vision;
    const struct ocr_text *t = &m->text;
    const uint64_t patches = p->max_patches, prompt = p->prompt_tokens;
    const uint64_t tokens = patches / m->projector.merge / m->projector.merge;
    const uint64_t vision = (uint64_t)v->heads * v->head_dim;
    const uint64_t text = (uint64_t)t->heads * t->head_dim;
    const uint64_t kv = (uint64_t)t->kv_heads * t->head_dim;
    const uint64_t pixels = (uint64_t)v->patch * v->patch * 3;
    uint64_t *b = p->bytes;

    b[CUDA_FEATURES] = p->slots * cuda_align(tokens * t->hidden * 4);
    b[CUDA_RGB] = patches * pixels;
    b[CUDA_X] = 4 * larger(patches * v->hidden, prompt * t->hidden);
    b[CUDA_ROWS_A] =
        2 * larger(patches * larger(larger(pixels + 8, v->hidden), vision),
                   larger(tokens, prompt) * larger(t->hidden, text));
    b[CUDA_ROWS_H] = 2 * larger(patches * larger(3 * vision, v->intermediate),
                                larger(tokens * larger(v->hidden, t->hidden),
                                       prompt * larger(text, t->intermediate)));
    b[CUDA_WIDE] =
        4 * larger(patches * larger(3 * vision, 2 * (uint64_t)v->intermediate),
                   larger(tokens * larger(v->hidden, t->hidden),
                          prompt * larger(text + 2 * kv,
                                          2 * (uint64_t)t->intermediate)));
    b[CUDA_SOURCE] = 4 * prompt;
}

static void size_steps(struct cuda_plan *p, const struct ocr_model *m,
                       const struct cuda_want *w)
{
    const uint64_t rows = (uint64_t)divide_up(p->slots, CUDA_TILE) * CUDA_TILE;
    const uint64_t vocab = m->text.vocab;
    uint64_t *b = p->bytes;

    b[CUDA_BLOCK_TABLES] = (uint64_t)p->slots * p->slot_blocks * 4;
    b[CUDA_SLOTS] = (uint64_t)p->slots * CUDA_SLOT_BYTES;
    b[CUDA_SEEN] = p->slots * ((vocab + 31) / 32) * 4;
    b[CUDA_FORCED] = (uint64_t)p->slots * p->slot_blocks * OCR_BLOCK_TOKENS * 4;
    b[CUDA_STEP_ROWS] = rows * 4;
    b[CUDA_STEP_X] = rows * m->text.hidden * 4;
    b[CUDA_STEP_LOGITS] = rows * vocab * 4;
    b[CUDA_STEP_SCRATCH] = w->step_scratch;
    b[CUDA_FIRST_ROWS] = CUDA_TILE * 4;
    b[CUDA_FIRST_X] = (uint64_t)CUDA_TILE * m->text.hidden * 4;
    b[CUDA_FIRST_LOGITS] = CUDA_TILE * vocab * 4;
    b[CUDA_FIRST_SCRATCH] = w->first_scratch;
}

static uint64_t block_bytes(const struct ocr_model *m)
{
    const struct ocr_text *t = &m->text;

    return 2ull * t->layers * t->kv_heads * OCR_BLOCK_TOKENS * t->head_dim *
           sizeof(uint16_t);
}

/* Everything but the KV blocks, whose number is given. */
static void size_all(struct cuda_plan *p, const struct ocr_model *m,
                     const struct cuda_want *w)
{
    const struct ocr_vision *v = &m->vision;

    p->bytes[CUDA_WEIGHTS] = cuda_plan_weights(m);
    p->bytes[CUDA_KV_POOL] = p->blocks * block_bytes(m);
    p->bytes[CUDA_TEXT_ROPE] = (uint64_t)p->slot_blocks * OCR_BLOCK_TOKENS *
                               m->text.head_dim * sizeof(float);
    p->bytes[CUDA_PAGE_ROPE] = 2ull * v->grid * v->head_dim / 2 * sizeof(float);
    p->bytes[CUDA_PIXELS] = 3 * 256 * sizeof(float);
    p->bytes[CUDA_FLAG] = CUDA_ALIGN;
    p->bytes[CUDA_LT] = w->lt;
    size_pages(p, m);
    size_steps(p, m, w);
    p->total = 0;
    for (int i = 0; i < CUDA_REGIONS; i++) {
        p->offset[i] = p->total;
        p->total += cuda_align(p->bytes[i]);
    }
}

/* ---- the plan ----------------------------------------------------------- */

int cuda_plan_make(struct cuda_plan *plan, const struct ocr_model *m,
                   const struct cuda_want *want)
{
    const uint64_t limit = want->bytes ? want->bytes : UINT64_MAX;
    const uint32_t shortest =
        divide_up((uint64_t)want->max_tokens + 1, OCR_BLOCK_TOKENS);

    memset(plan, 0, sizeof *plan);
    plan->max_patches = want->max_patches;
    plan->prompt_tokens = want->prompt_tokens;
    plan->max_tokens = want->max_tokens;
    plan->slot_blocks = cuda_want_slot_blocks(want, m);
    plan->slots = 1;
    plan->blocks = plan->slot_blocks;
    size_all(plan, m, want);
    plan->needed = plan->total;
    if (plan->needed > limit)
        return -ENOMEM;
    for (plan->slots = want->slots;; plan->slots--) {
        const uint64_t most = (uint64_t)plan->slots * plan->slot_blocks;
        uint64_t room;

        plan->blocks = 0;
        size_all(plan, m, want);
        room = limit > plan->total ? (limit - plan->total) / block_bytes(m) : 0;
        plan->blocks = (uint32_t)(room < most ? room : most);
        size_all(plan, m, want);
        if (plan->slots == 1 || (plan->blocks >= plan->slot_blocks &&
                                 plan->blocks >= plan->slots * shortest))
            return 0;
    }
}

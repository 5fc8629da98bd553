/* kernels/cpu/cpu_i.h - what the parts of the CPU backend know of each other.
 *
 * open.c packs weights and lays out memory, backend.c queues and events,
 * encode.c the page, tower.c layers over many rows (vision and prefill),
 * decode.c one row of each of several slots, attention.c both kinds of
 * attention, sample.c the next id.
 *
 * Layer:   kernels/cpu, private.
 * Threads: the backend's driver thread runs all work and shares it out to the
 *          pool; the caller's thread only touches what `lock` guards, and the
 *          configuration of slots without work. */
#ifndef OCR_CPU_I_H
#define OCR_CPU_I_H
#include "kernels/backend.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/pool.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    CPU_ATTEND_ROWS = 128, /* queries that attention takes at once */
    CPU_SPLIT_BLOCKS = OCR_SPLIT_TOKENS / OCR_BLOCK_TOKENS,
    CPU_SPLIT_TILES = OCR_SPLIT_TOKENS / CPU_TILE,
    CPU_SCORE_STRIDE = OCR_SPLIT_TOKENS + 16,
};

/* K and V of one head for a block of tokens: K is a panel (a token is an
 * output), V is half a tile of each of its panels (a token is an input). */
struct cpu_heads {
    enum cpu_format format;
    uint32_t head_dim;
    uint32_t k_tiles, v_panels;
    size_t k_bytes; /* K of a block */
    size_t v_half;  /* V of a block in one panel */
};

struct cpu_layer {
    float *norm1, *norm2, *q_norm, *k_norm; /* the last two NULL in vision */
    struct cpu_matrix qkv, o, gate_up, down;
};

/* The vision encoder or the decoder: they differ in shape, in the norms of q
 * and k, in how positions become angles, and in who sees whom. */
struct cpu_tower {
    uint32_t layers, hidden, heads, kv_heads, inner;
    float eps;
    bool causal;
    unsigned tap; /* number of layer 0 for the taps */
    struct cpu_heads kv;
    struct cpu_layer *layer;
};

/* Buffers of one thread. */
struct cpu_scratch {
    char *a, *h, *p, *spare, *v;
    float *wide, *c, *row, *scores, *acc, *angles;
    float most[CPU_ATTEND_ROWS], sum[CPU_ATTEND_ROWS];
    float alpha[CPU_ATTEND_ROWS], beta[CPU_ATTEND_ROWS];
};

struct cpu_slot {
    bool open;
    struct ocr_slot_config config;
    uint32_t image_tokens; /* in the prompt */
    uint32_t submitted;    /* tokens of the prompt, by submit_prefill */
    uint32_t *table;       /* [plan.slot_blocks] */
    float *features;       /* [tokens][hidden] */
    uint64_t *seen;        /* a bit for each generated id */
    atomic_bool cancelled;
    /* Of the driver from here on. */
    bool encoded, running, failed;
    uint32_t position;   /* tokens whose K and V are in the cache */
    uint32_t image_used; /* features that the prompt has consumed */
    uint32_t generated, last;
    float *logits;
};

/* Work of one submit. */
struct cpu_work {
    enum {
        CPU_ENCODE,
        CPU_PREFILL,
        CPU_DECODE
    } kind;
    uint64_t ticket, page;
    unsigned slot;
    const uint8_t *rgb;
    uint32_t width, height;
    uint32_t from, count;
    unsigned steps, slot_count;
    unsigned *slots; /* CPU_DECODE */
};

struct cpu_candidate {
    float logit;
    uint32_t id;
};

struct ocr_backend {
    struct ocr_backend_config config;
    struct ocr_backend_plan plan;
    struct ocr_taps taps;
    const struct cpu_isa *isa;
    struct cpu_pool *pool;

    struct cpu_tower vision, text;
    struct cpu_matrix patch_conv, merging, linear_1, linear_2;
    struct cpu_matrix embedding, head;
    bool tied;
    float *ln_pre, *projector_norm, *text_norm;
    float projector_eps;
    uint32_t patch, grid, merge, vocab, max_positions, image_token;
    float pixel[3][256];                /* normalised values of a byte */
    float *text_cosine, *text_sine;     /* [positions][head_dim / 2] */
    float *vision_cosine, *vision_sine; /* [2][grid][head_dim / 4]: by row, by
                                           column */

    char *memory; /* all of it: weights, then KV blocks, then the rest */
    size_t memory_bytes;
    uint32_t max_rows; /* of a pass: patches or tokens of a prompt */
    char *kv;
    struct cpu_scratch *scratch; /* [threads] */
    float *x;                    /* residual stream of a pass or of a step */
    char *q;
    float *attended;
    char *vision_k, *split_v;
    char *rows_a, *rows_h; /* of a decode step */
    float *wide;           /* products of a decode step, logits last */
    struct cpu_candidate *candidates;
    struct cpu_slot *slot; /* [plan.slots] */

    pthread_t driver;
    pthread_mutex_t lock;
    pthread_cond_t wanted, happened;
    bool driver_started, stop, woken, lost;
    struct cpu_work *work; /* ring [work_size] */
    unsigned work_size, work_first, work_count;
    struct ocr_event *event; /* ring [event_size] */
    unsigned event_size, event_first, event_count;
    unsigned event_promised;   /* room kept for what is queued or running */
    struct ocr_event *pending; /* [slots] of the running decode */
    struct cpu_slot **active;  /* [slots] of its step */
};

/* A run of a tower over many rows. */
struct cpu_pass {
    struct ocr_backend *b;
    const struct cpu_tower *tower;
    const struct cpu_layer *layer;
    uint32_t number; /* of the layer */
    struct cpu_slot *slot;
    uint32_t first, rows;  /* positions */
    uint32_t grid_columns; /* vision: patches a row */
    atomic_uint unit;
};

/* open.c: everything but queue and driver. */
int cpu_open(struct ocr_backend *b, const struct ocr_model *model,
             struct ocr_err *err);
void cpu_close(struct ocr_backend *b);

/* tower.c: b->x [rows][hidden] through all layers. -ECANCELED. */
int cpu_pass_run(struct cpu_pass *p);

/* encode.c: pixels to features of the slot. -ECANCELED, -EDOM for NaN. */
int cpu_encode(struct ocr_backend *b, struct cpu_slot *s,
               const struct cpu_work *w);

/* decode.c: b->x of `count` slots, one row each, through all layers, and
 * logits of each slot. */
void cpu_decode_step(struct ocr_backend *b, struct cpu_slot *const *slots,
                     unsigned count);
/* Logits of the row `x` [hidden] for each of `count` slots. */
void cpu_logits(struct ocr_backend *b, struct cpu_slot *const *slots,
                unsigned count, float *x);

/* sample.c */
uint32_t cpu_sample(struct ocr_backend *b, const struct cpu_slot *s,
                    uint32_t position);
bool cpu_all_finite(const float *x, size_t n);

/* attention.c */
void cpu_heads_init(struct cpu_heads *kv, uint32_t head_dim,
                    enum cpu_format format);

struct cpu_attend {
    const struct cpu_isa *isa;
    const struct cpu_heads *kv;
    enum cpu_rows kind; /* of q */
};

void cpu_attend_begin(struct cpu_scratch *s, unsigned rows, uint32_t width);
/* One split: rows of q against `keys` tokens, of which row r sees the first
 * visible + r * step (0 to keys). k: a panel for each block; v: panels of
 * CPU_SPLIT_TILES tiles. Merges into s->acc, most, sum. */
void cpu_attend_split(const struct cpu_attend *a, struct cpu_scratch *s,
                      const void *q, size_t stride, unsigned rows,
                      const char *const *k, const char *v, unsigned keys,
                      int64_t visible, int64_t step);
/* The same for few rows that see all keys; V stays in its blocks. Not for
 * CPU_ROWS_BF16. */
void cpu_attend_blocks(const struct cpu_attend *a, struct cpu_scratch *s,
                       const void *q, size_t stride, unsigned rows,
                       const char *const *k, const char *const *v,
                       unsigned keys);
/* Row r of the result into out [head_dim]. */
void cpu_attend_end(const struct cpu_attend *a, struct cpu_scratch *s,
                    unsigned r, float *out);
/* Panels of a split out of the V of up to CPU_SPLIT_BLOCKS blocks. */
void cpu_gather_v(char *to, const struct cpu_heads *kv, const char *const *v,
                  unsigned blocks);
void cpu_put_k(char *panel, const struct cpu_heads *kv,
               const struct cpu_isa *isa, unsigned token, const float *x);
/* `half`: of panel 0; the next panel's is `next` bytes on. */
void cpu_put_v(char *half, size_t next, const struct cpu_heads *kv,
               const struct cpu_isa *isa, unsigned token, const float *x);

/* K of `head` of a block; V follows. Neighbouring blocks of a head are
 * neighbours: that is how memory is read fastest. */
static inline char *cpu_kv_block(const struct ocr_backend *b, uint32_t block,
                                 uint32_t layer, uint32_t head)
{
    const struct cpu_heads *kv = &b->text.kv;
    const size_t bytes = kv->k_bytes + kv->v_panels * kv->v_half;

    return b->kv + (((size_t)layer * b->text.kv_heads + head) * b->plan.blocks +
                    block) *
                       bytes;
}

static inline enum cpu_rows cpu_attend_rows(const struct ocr_backend *b,
                                            bool large)
{
    if (b->text.kv.format == CPU_FP32)
        return CPU_ROWS_FP32;
    return (large ? b->isa->half : b->isa->half_decode) ? CPU_ROWS_BF16
                                                        : CPU_ROWS_ROUNDED;
}

#endif

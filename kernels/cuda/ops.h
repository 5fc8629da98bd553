/* kernels/cuda/ops.h - the operations of the forward pass as CUDA launches:
 * the border between the backend (host code) and its kernels.
 *
 * Each call puts its kernels on `stream` and returns: no allocation, no
 * synchronisation, so all of them can be captured in a graph. All pointers are
 * device addresses, 16-byte aligned, unless said otherwise; outputs never
 * alias inputs unless said. 16-bit values are uint16_t, bf16 or fp16 as `half`
 * says; arrays are dense and row-major. Launches over zero rows do nothing.
 *
 * Numerics (see kernels/backend.h): residual stream, norms, RoPE, softmax and
 * logits fp32; inputs of matrix products, K, V and P 16 bit, rounded once; the
 * sum of softmax is that of the rounded P.
 *
 * Weights: 16 bit, row-major [out][in], one copy for cuBLASLt and for decode.
 *   qkv      q rows, then k rows, then v rows
 *   gate_up  groups of 8 rows: 8 of gate, their 8 of up, 8 of gate, ...
 *   patch    [hidden][CUDA_PATCH_COLUMNS], columns beyond 588 zero
 *   merging  columns permuted to (dy * 2 + dx) * hidden + channel
 * Gains of norms: fp32.
 *
 * Layer:   kernels/cuda.
 * Threads: any, for different streams; cuda_ops_prepare once before.
 * Errors:  what the launch returned; shapes are checked by cuda_ops_refusal
 *          only. */
#ifndef OCR_CUDA_OPS_H
#define OCR_CUDA_OPS_H
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ocr_half {
    OCR_HALF_BF16,
    OCR_HALF_FP16
};

enum {
    CUDA_VISION_DIM = 64, /* head_dim of vision */
    CUDA_TEXT_DIM = 128,  /* head_dim of text */
    CUDA_PATCH = 14,
    CUDA_PATCH_COLUMNS = 592, /* 3 * 14 * 14, padded for 16-byte rows */
    CUDA_KV_TOKENS = 16,      /* of a KV block */
    CUDA_SPLIT = 256,         /* tokens of a split of decode attention */
    CUDA_TILE_ROWS = 8,       /* rows of a decode tile */
    CUDA_MAX_TILES = 16,
    CUDA_STOP_IDS = 8,
};

/* What decides whether the kernels can do a model. */
struct cuda_shape {
    uint32_t patch, merge;
    uint32_t vision_hidden, vision_head_dim, vision_inner, projector_hidden;
    uint32_t text_hidden, text_heads, text_kv_heads, text_head_dim;
    uint32_t text_inner, vocab;
};

/* NULL, or a sentence that says which number cannot be done. */
const char *cuda_ops_refusal(const struct cuda_shape *s);

/* Loads every kernel of the current device and sets its attributes: before
 * READY, once a device. Waits for the device. */
cudaError_t cuda_ops_prepare(enum ocr_half half);

/* ---- the KV cache ----
 * [layer][block][kv head][K, V][CUDA_KV_TOKENS][CUDA_TEXT_DIM], 16 bit; the
 * 16-byte piece c of token t lies at piece c ^ (t & 7), so that a block can be
 * copied as it is and read without bank conflicts. Nothing needs to be cleared:
 * what is behind a page's last token is never used. */
struct cuda_kv {
    uint16_t *data;
    uint32_t blocks, layers, kv_heads;
};

static inline uint64_t cuda_kv_bytes(const struct cuda_kv *kv)
{
    return (uint64_t)kv->layers * kv->blocks * kv->kv_heads * 2 *
           CUDA_KV_TOKENS * CUDA_TEXT_DIM * sizeof(uint16_t);
}

/* ---- both towers ---- */

/* Each row: g x / sqrt(mean(x^2) + eps). n: a multiple of 64. */
cudaError_t cuda_rmsnorm(cudaStream_t stream, enum ocr_half half, uint16_t *out,
                         const float *x, const float *g, uint32_t rows,
                         uint32_t n, float eps);
/* The same to fp32; out may be x. */
cudaError_t cuda_rmsnorm32(cudaStream_t stream, float *out, const float *x,
                           const float *g, uint32_t rows, uint32_t n,
                           float eps);

/* out [rows][inner] = SiLU(gate) up of gate_up [rows][2 inner], whose columns
 * are interleaved as the weights' rows are. */
cudaError_t cuda_swiglu(cudaStream_t stream, enum ocr_half half, uint16_t *out,
                        const float *gate_up, uint32_t rows, uint32_t inner);

/* out = x rounded; n: a multiple of 4. */
cudaError_t cuda_round(cudaStream_t stream, enum ocr_half half, uint16_t *out,
                       const float *x, uint64_t n);

/* *flag |= 1 if a value is NaN or infinite. n: a multiple of 4. */
cudaError_t cuda_finite(cudaStream_t stream, uint32_t *flag, const float *x,
                        uint64_t n);

/* ---- vision ---- */

/* rgb [14 lines][14 columns][3] bytes -> out [lines * columns]
 * [CUDA_PATCH_COLUMNS], one row a patch: channel, row, column, then zeros.
 * table [3][256]: the normalised value of a byte. */
cudaError_t cuda_patches(cudaStream_t stream, enum ocr_half half, uint16_t *out,
                         const uint8_t *rgb, const float *table, uint32_t lines,
                         uint32_t columns);

/* qkv [patches][3 heads 64] -> rotated q, k and v, each [heads][patches][64].
 * cosine, sine [2][grid][16]: of a patch's line, then of its column. */
cudaError_t cuda_vision_split(cudaStream_t stream, enum ocr_half half,
                              uint16_t *q, uint16_t *k, uint16_t *v,
                              const float *qkv, const float *cosine,
                              const float *sine, uint32_t grid,
                              uint32_t patches, uint32_t columns,
                              uint32_t heads);

/* out [patches][heads 64] of q, k, v [heads][patches][64]: every patch sees
 * every patch. */
cudaError_t cuda_vision_attention(cudaStream_t stream, enum ocr_half half,
                                  uint16_t *out, const uint16_t *q,
                                  const uint16_t *k, const uint16_t *v,
                                  uint32_t patches, uint32_t heads);

/* x [lines * columns][hidden], normed, 2 x 2 patches a row: out
 * [lines/2 * columns/2][4 hidden], (dy * 2 + dx) * hidden + channel. An odd
 * last line or column is left out. */
cudaError_t cuda_merge(cudaStream_t stream, enum ocr_half half, uint16_t *out,
                       const float *x, const float *g, uint32_t lines,
                       uint32_t columns, uint32_t hidden, float eps);

/* out = x / 2 (1 + erf(x / sqrt(2))). n: a multiple of 4. */
cudaError_t cuda_gelu(cudaStream_t stream, enum ocr_half half, uint16_t *out,
                      const float *x, uint64_t n);

/* ---- prefill: tokens first .. first + rows - 1 of one page ---- */

#define CUDA_FEATURE 0x80000000u

/* x [rows][hidden]; source [rows]: an id, or CUDA_FEATURE | row of features
 * [..][hidden] (fp32). */
cudaError_t cuda_embed(cudaStream_t stream, enum ocr_half half, float *x,
                       const uint32_t *source, const uint16_t *embedding,
                       const float *features, uint32_t rows, uint32_t hidden);

/* What q, k, v of a layer meet. */
struct cuda_prefill {
    struct cuda_kv kv;
    uint32_t layer, heads;
    uint32_t first, rows;
    const uint32_t *table; /* device: the page's blocks, from token 0 on */
    const float *q_norm, *k_norm; /* [128] */
    const float *cosine, *sine;   /* [positions][64] */
    float eps;
};

/* qkv [rows][(heads + 2 kv heads) 128] -> norms, rotation; q [rows][heads]
 * [128], k and v into the cache. */
cudaError_t cuda_text_split(cudaStream_t stream, enum ocr_half half,
                            const struct cuda_prefill *p, uint16_t *q,
                            const float *qkv);

/* out [rows][heads 128]: token t sees tokens 0 .. t of the cache. heads /
 * kv_heads: 1, 2 or 4. */
cudaError_t cuda_prefill_attention(cudaStream_t stream, enum ocr_half half,
                                   const struct cuda_prefill *p, uint16_t *out,
                                   const uint16_t *q);

/* ---- decode ----
 * All state of a page lies in device memory, so that a captured step goes on
 * by itself. The host fills a slot in stream order, before its first id is
 * chosen; from then on the kernels own it. */

enum cuda_status {
    CUDA_ENDED,   /* or never begun: its rows are skipped */
    CUDA_RUNNING, /* also: an id that goes on */
    CUDA_LAST,    /* an id, and the page ends with it */
    CUDA_STOPPED, /* a stop id, not counted: the page ended before it */
    CUDA_BAD,     /* logits were not finite: no id */
    CUDA_CANCELLED
};

struct cuda_slot {
    uint32_t status;    /* CUDA_RUNNING to begin with; else CUDA_ENDED */
    uint32_t position;  /* tokens in the cache: where `last` goes. To begin
                           with prompt_len - 1: choosing an id adds 1 */
    uint32_t last;      /* id to embed next */
    uint32_t generated; /* ids so far */
    uint32_t limit;     /* the page ends with this many ids: the least of
                           max_tokens, forced_len, forced_length, and what
                           positions and blocks allow */
    uint32_t keep;      /* stop ids are taken as ids before this many
                           (forced_length) */
    uint32_t poison_at; /* fault: x[0] = NaN in the step that chooses this id,
                           but not of id 0 (the host's); UINT32_MAX: none */
    uint32_t stop_count;
    uint32_t stop_ids[CUDA_STOP_IDS];
    const uint32_t *forced; /* device: ids to take instead; NULL: none */
    uint64_t seed, page_hash;
    float temperature, top_p, penalty; /* penalty 1: none */
    uint32_t reserved;
};

/* What a step says of a slot: out[slot * ring + generated % ring], generated
 * being the count before the step. */
struct cuda_out {
    uint64_t hash; /* ocr_logits_hash of the raw logits, if asked, else 0 */
    uint32_t id;
    uint32_t status; /* RUNNING, LAST, STOPPED, BAD or CANCELLED */
};

struct cuda_text_layer {
    const float *input_norm, *post_norm; /* [hidden] */
    const float *q_norm, *k_norm;        /* [128] */
    const uint16_t *qkv, *o, *gate_up, *down;
};

/* One step of up to CUDA_MAX_TILES * 8 rows. Host memory, read at launch; what
 * it points to is device memory, `layer` excepted. Two of these may share all
 * but x, logits and scratch (the first id of a prefill: see
 * cuda_decode_end). */
struct cuda_decode {
    enum ocr_half half;
    uint32_t layers, hidden, heads, inner, vocab;
    float eps;
    const struct cuda_text_layer *layer; /* host: [layers] */
    const float *norm;                   /* [hidden] */
    const uint16_t *embedding, *head;    /* [vocab][hidden] */
    const float *cosine, *sine;          /* [positions][64] */
    struct cuda_kv kv;
    const uint32_t *tables; /* [slots][slot_blocks] */
    uint32_t slots, slot_blocks;
    const uint32_t *rows;   /* [8 tiles]: slot of each row; any number from
                               `slots` on: none. A slot at most once */
    struct cuda_slot *slot; /* [slots] */
    uint32_t *seen;         /* [slots][cuda_seen_words]: a bit an id */
    struct cuda_out *out;   /* [slots][ring]; device or mapped host memory */
    uint32_t ring;          /* a power of two */
    const uint32_t *cancel; /* [slots], mapped host memory: not 0: end before
                               the next step; NULL: none */
    uint32_t hashes;        /* 1: fill cuda_out.hash */
    float *x;               /* [8 tiles][hidden]: the residual stream */
    float *logits;          /* [8 tiles][vocab] */
    void *scratch; /* cuda_decode_scratch bytes, zero before the first step;
                      256-byte aligned */
};

static inline uint32_t cuda_seen_words(uint32_t vocab)
{
    return (vocab + 31) / 32;
}

/* Bytes of scratch for steps of up to `tiles` tiles; reads the shape of *d. */
size_t cuda_decode_scratch(const struct cuda_decode *d, unsigned tiles);

/* A whole step: begin, every layer, end. Rows whose slot is not RUNNING are
 * skipped and leave everything as it is. */
cudaError_t cuda_decode_step(cudaStream_t stream, const struct cuda_decode *d,
                             unsigned tiles);

/* Its parts, for taps between layers. begin: cancelled slots end; x = rows of
 * the embedding. layer: x through one layer, K and V of its token into the
 * cache. */
cudaError_t cuda_decode_begin(cudaStream_t stream, const struct cuda_decode *d,
                              unsigned tiles);
cudaError_t cuda_decode_layer(cudaStream_t stream, const struct cuda_decode *d,
                              unsigned tiles, uint32_t layer);
/* x -> logits -> hash, check, penalty, choice; then the slot is advanced. Also
 * behind a prefill: x row 0 = the last token's residual stream, rows[0] = the
 * slot. */
cudaError_t cuda_decode_end(cudaStream_t stream, const struct cuda_decode *d,
                            unsigned tiles);

#ifdef __cplusplus
}
#endif
#endif

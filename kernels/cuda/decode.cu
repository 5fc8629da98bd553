/* A decode step as launches, and its first kernel. */
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"

namespace
{
enum {
    THREADS = CUDA_MAX_TILES * CUDA_TILE_ROWS, /* a thread for each row */
    DIM = CUDA_TEXT_DIM,
};

struct begin {
    const uint32_t *rows;
    struct cuda_slot *slot;
    const uint32_t *cancel;
    struct cuda_out *out;
    uint32_t slots, ring, count, hidden;
    const uint16_t *embedding;
    float *x;
    struct step_row *row;
    uint32_t *items;
    struct step_item *item;
};

__device__ void end_cancelled(const struct begin &p, uint32_t index)
{
    struct cuda_slot *slot = p.slot + index;
    const uint32_t at = __ldcg(&slot->generated) & (p.ring - 1);

    slot->status = CUDA_ENDED;
    p.out[(uint64_t)index * p.ring + at] = {0, 0, CUDA_CANCELLED};
}

/* The row of this thread; one block alone decides, for the host may cancel at
 * any moment. */
__device__ struct step_row decide(const struct begin &p)
{
    struct step_row r = {NO_SLOT, 0};

    if (threadIdx.x >= p.count)
        return r;
    r = find_row(p.rows, p.slot, p.slots, threadIdx.x);
    if (r.slot != NO_SLOT && p.cancel &&
        *(const volatile uint32_t *)(p.cancel + r.slot)) {
        end_cancelled(p, r.slot);
        r.slot = NO_SLOT;
    }
    p.row[threadIdx.x] = r;
    return r;
}

/* Where this thread's `n` items begin among those of all; *all: how many. */
__device__ uint32_t scan(uint32_t n, uint32_t *all)
{
    __shared__ uint32_t of_warp[THREADS / WARP];
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint32_t sum = n, before = 0;

    for (uint32_t i = 1; i < WARP; i *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, sum, i);
        sum += lane >= i ? other : 0;
    }
    if (lane == WARP - 1)
        of_warp[warp] = sum;
    __syncthreads();
    *all = 0;
    for (uint32_t i = 0; i < THREADS / WARP; i++) {
        before += i < warp ? of_warp[i] : 0;
        *all += of_warp[i];
    }
    return before + sum - n;
}

/* The work of attention: see attend.cu. */
__device__ void list_items(const struct begin &p, struct step_row r)
{
    const uint32_t n = r.slot == NO_SLOT ? 0 : r.position / CUDA_SPLIT + 1;
    uint32_t all;
    struct step_item *to = p.item + scan(n, &all);

    for (uint32_t i = 0; i < n; i++)
        to[i] = {threadIdx.x, i, r.position, r.slot};
    if (!threadIdx.x)
        *p.items = all;
}

template <ocr_half H>
__device__ void embed_row(const struct begin &p, uint32_t row)
{
    const uint32_t index = __ldcg(p.rows + row);
    float *to = p.x + (uint64_t)row * p.hidden;

    if (index >= p.slots)
        return;
    const struct cuda_slot *slot = p.slot + index;
    const uint16_t *from =
        p.embedding + (uint64_t)__ldcg(&slot->last) * p.hidden;
    for (uint32_t i = threadIdx.x * 2; i < p.hidden; i += THREADS * 2) {
        float2 v =
            unpack<H>(__ldg(reinterpret_cast<const uint32_t *>(from + i)));

        if (!i && __ldcg(&slot->generated) == slot->poison_at)
            v.x = NAN;
        *reinterpret_cast<float2 *>(to + i) = v;
    }
}

/* Block 0: rows and items; block 1 + r: the residual stream of row r. */
template <ocr_half H>
__global__ void __launch_bounds__(THREADS) begin_step(struct begin p)
{
    await_previous();
    allow_next();
    if (blockIdx.x)
        embed_row<H>(p, blockIdx.x - 1);
    else
        list_items(p, decide(p));
}

struct row_source source_of(const struct cuda_decode *d,
                            const struct step_row *row, unsigned tiles,
                            bool early)
{
    return {row, d->rows, d->slot, d->slots, tiles * CUDA_TILE_ROWS, early};
}

/* The next `bytes` of the memory at *at, aligned. */
void *take(char *base, size_t *at, size_t bytes)
{
    char *p = base + *at;

    *at += (bytes + 255) / 256 * 256;
    return p;
}

template <typename T> void cut(T **to, char *base, size_t *at, uint64_t count)
{
    *to = static_cast<T *>(take(base, at, count * sizeof(T)));
}
} // namespace

struct step_memory step_memory(const struct cuda_decode *d, unsigned tiles)
{
    const uint64_t rows = (uint64_t)tiles * CUDA_TILE_ROWS;
    const uint32_t longest = d->slot_blocks * CUDA_KV_TOKENS;
    char *base = static_cast<char *>(d->scratch);
    struct step_memory m = {};

    m.splits = (longest + CUDA_SPLIT - 1) / CUDA_SPLIT;
    /* What must be zero between steps lies in the same place for any tiles. */
    cut(&m.parts_done, base, &m.bytes, THREADS);
    cut(&m.row, base, &m.bytes, rows);
    cut(&m.items, base, &m.bytes, 1);
    cut(&m.item, base, &m.bytes, rows * m.splits);
    cut(&m.parts, base, &m.bytes, rows * SAMPLE_PARTS);
    cut(&m.candidates, base, &m.bytes, rows * d->vocab);
    cut(&m.qkv, base, &m.bytes, rows * (d->heads + 2 * d->kv.kv_heads) * DIM);
    cut(&m.normed, base, &m.bytes, rows * d->hidden);
    cut(&m.attended, base, &m.bytes, rows * d->heads * DIM);
    cut(&m.inner, base, &m.bytes, rows * d->inner);
    cut(&m.split, base, &m.bytes, rows * d->heads * m.splits * DIM);
    cut(&m.split_sum, base, &m.bytes, rows * d->heads * m.splits);
    return m;
}

size_t cuda_decode_scratch(const struct cuda_decode *d, unsigned tiles)
{
    struct cuda_decode no_memory = *d;

    no_memory.scratch = nullptr;
    return step_memory(&no_memory, tiles).bytes;
}

cudaError_t cuda_decode_begin(cudaStream_t stream, const struct cuda_decode *d,
                              unsigned tiles)
{
    const struct step_memory m = step_memory(d, tiles);
    struct begin p = {};

    p.rows = d->rows;
    p.slot = d->slot;
    p.cancel = d->cancel;
    p.out = d->out;
    p.slots = d->slots;
    p.ring = d->ring;
    p.count = tiles * CUDA_TILE_ROWS;
    p.hidden = d->hidden;
    p.embedding = d->embedding;
    p.x = d->x;
    p.row = m.row;
    p.items = m.items;
    p.item = m.item;
    return d->half == OCR_HALF_BF16
               ? start(begin_step<OCR_HALF_BF16>, dim3(1 + p.count), THREADS, 0,
                       stream, true, p)
               : start(begin_step<OCR_HALF_FP16>, dim3(1 + p.count), THREADS, 0,
                       stream, true, p);
}

cudaError_t cuda_decode_layer(cudaStream_t stream, const struct cuda_decode *d,
                              unsigned tiles, uint32_t layer)
{
    const struct cuda_text_layer *l = &d->layer[layer];
    const struct step_memory m = step_memory(d, tiles);
    struct product p = {};
    cudaError_t rc;

    p.rows = source_of(d, m.row, tiles, layer > 0);
    p.eps = d->eps;
    p.x = d->x;
    p.normed = m.normed;

    p.w = l->qkv;
    p.n = (d->heads + 2 * d->kv.kv_heads) * DIM;
    p.k = d->hidden;
    p.g = l->input_norm;
    p.out = m.qkv;
    rc = product_start(stream, d->half, PRODUCT_STORE, &p, tiles);
    if (!rc)
        rc = attend_start(stream, d, &m, tiles, layer);

    p.w = l->o;
    p.n = d->hidden;
    p.k = d->heads * DIM;
    p.in = m.attended;
    p.out = d->x;
    if (!rc)
        rc = product_start(stream, d->half, PRODUCT_ADD, &p, tiles);

    p.w = l->gate_up;
    p.n = d->inner * 2;
    p.k = d->hidden;
    p.g = l->post_norm;
    p.out = m.inner;
    if (!rc)
        rc = product_start(stream, d->half, PRODUCT_SWIGLU, &p, tiles);

    p.w = l->down;
    p.n = d->hidden;
    p.k = d->inner;
    p.in = m.inner;
    p.out = d->x;
    return rc ? rc : product_start(stream, d->half, PRODUCT_ADD, &p, tiles);
}

cudaError_t cuda_decode_end(cudaStream_t stream, const struct cuda_decode *d,
                            unsigned tiles)
{
    const struct step_memory m = step_memory(d, tiles);
    struct product p = {};
    cudaError_t rc;

    p.rows = source_of(d, nullptr, tiles, true);
    p.w = d->head;
    p.n = d->vocab;
    p.k = d->hidden;
    p.x = d->x;
    p.g = d->norm;
    p.eps = d->eps;
    p.normed = m.normed;
    p.out = d->logits;
    rc = logits_start(stream, d->half, &p, tiles);
    return rc ? rc : sample_start(stream, d, &m, tiles);
}

cudaError_t cuda_decode_step(cudaStream_t stream, const struct cuda_decode *d,
                             unsigned tiles)
{
    cudaError_t rc = cuda_decode_begin(stream, d, tiles);

    for (uint32_t i = 0; !rc && i < d->layers; i++)
        rc = cuda_decode_layer(stream, d, tiles, i);
    return rc ? rc : cuda_decode_end(stream, d, tiles);
}

cudaError_t prepare_decode(ocr_half half)
{
    return half == OCR_HALF_BF16 ? prepare(begin_step<OCR_HALF_BF16>, 0)
                                 : prepare(begin_step<OCR_HALF_FP16>, 0);
}

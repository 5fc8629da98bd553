/* What lies between a page and its attention: pixels to patches, rows of
 * products to q, k and v. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"

namespace
{
enum {
    THREADS = 128,
    WARPS = THREADS / WARP,
    PIXELS = CUDA_PATCH * CUDA_PATCH, /* of a patch and channel */
    QUARTER = CUDA_VISION_DIM / 4,
};

/* A block each patch. Column c of its row: channel, row, column of pixels. */
template <ocr_half H>
__global__ void __launch_bounds__(THREADS)
    patches(uint16_t *out, const uint8_t *rgb, const float *table,
            uint32_t columns)
{
    const uint32_t line = blockIdx.x / columns, column = blockIdx.x % columns;
    const uint8_t *from =
        rgb + ((uint64_t)line * CUDA_PATCH * columns + column) * CUDA_PATCH * 3;
    uint16_t *to = out + (uint64_t)blockIdx.x * CUDA_PATCH_COLUMNS;

    for (uint32_t i = threadIdx.x; i < CUDA_PATCH_COLUMNS; i += THREADS) {
        const uint32_t channel = i / PIXELS, y = i % PIXELS / CUDA_PATCH;
        const uint32_t x = i % CUDA_PATCH;
        float v = 0;

        if (channel < 3)
            v = table[channel * 256 +
                      from[((uint64_t)y * columns * CUDA_PATCH + x) * 3 +
                           channel]];
        to[i] = round16<H>(v);
    }
}

struct vision_split {
    uint16_t *q, *k, *v;
    const float *qkv, *cosine, *sine;
    uint32_t grid, patches, columns, heads;
};

/* Half a warp each patch, head and one of q, k, v; lane i: values 2 i, 2 i + 1
 * and those + 32, with which they turn: by the line below 16, by the column
 * above. */
template <ocr_half H>
__global__ void __launch_bounds__(THREADS) split_vision(struct vision_split p)
{
    const uint32_t lane = threadIdx.x % 16, patch = blockIdx.y;
    const uint32_t part = blockIdx.x * (THREADS / 16) + threadIdx.x / 16;
    const uint32_t head = part % p.heads, kind = part / p.heads;
    const float2 *x = reinterpret_cast<const float2 *>(
        p.qkv + ((uint64_t)patch * p.heads * 3 + part) * CUDA_VISION_DIM);
    const uint32_t at =
        lane < 8 ? patch / p.columns * QUARTER + 2 * lane
                 : (p.grid + patch % p.columns) * QUARTER + 2 * lane - QUARTER;
    float2 c = make_float2(1, 1), s = make_float2(0, 0);

    if (kind > 2)
        return;
    const float2 low = __ldcs(x + lane), high = __ldcs(x + lane + 16);
    if (kind < 2) {
        c = *reinterpret_cast<const float2 *>(p.cosine + at);
        s = *reinterpret_cast<const float2 *>(p.sine + at);
    }
    uint32_t *to = reinterpret_cast<uint32_t *>(
        (kind == 0   ? p.q
         : kind == 1 ? p.k
                     : p.v) +
        ((uint64_t)head * p.patches + patch) * CUDA_VISION_DIM);
    to[lane] = pack<H>(low.x * c.x - high.x * s.x, low.y * c.y - high.y * s.y);
    to[lane + 16] =
        pack<H>(high.x * c.x + low.x * s.x, high.y * c.y + low.y * s.y);
}

/* A warp each token and head of q, k or v, four values a lane. */
template <ocr_half H> struct text_splitter {
    const struct cuda_prefill &p;
    uint16_t *q;
    const float *qkv;
    uint32_t lane;

    __device__ float4 load(const float *x) const
    {
        const float2 *from = reinterpret_cast<const float2 *>(x) + lane;
        const float2 low = __ldcg(from), high = __ldcg(from + 32);

        return make_float4(low.x, low.y, high.x, high.y);
    }

    __device__ float4 prepare(const float *x, const float *norm,
                              uint32_t token) const
    {
        const uint64_t at = (uint64_t)token * (CUDA_TEXT_DIM / 4) + lane;
        const float2 c = reinterpret_cast<const float2 *>(p.cosine)[at];
        const float2 s = reinterpret_cast<const float2 *>(p.sine)[at];

        return norm_rotate(load(x), load(norm), c, s, p.eps);
    }

    __device__ uint16_t *cached(uint32_t token, uint32_t head,
                                uint32_t value) const
    {
        const uint64_t block =
            (uint64_t)p.layer * p.kv.blocks + p.table[token / CUDA_KV_TOKENS];

        return p.kv.data +
               (((block * p.kv.kv_heads + head) * 2 + value) * CUDA_KV_TOKENS +
                token % CUDA_KV_TOKENS) *
                   CUDA_TEXT_DIM;
    }

    /* Values 2 lane, 2 lane + 1 and those + 64; pieces of 8 in the order of
     * the cache if `swap`. */
    __device__ void put(uint16_t *to, float4 v, uint32_t swap) const
    {
        uint32_t *low = reinterpret_cast<uint32_t *>(to);

        low[(lane / 4 ^ swap) * 4 + lane % 4] = pack<H>(v.x, v.y);
        low[(lane / 4 + 8 ^ swap) * 4 + lane % 4] = pack<H>(v.z, v.w);
    }

    __device__ void run(uint32_t row, uint32_t part) const
    {
        const uint32_t token = p.first + row;
        const float *x =
            qkv + ((uint64_t)row * (p.heads + 2 * p.kv.kv_heads) + part) *
                      CUDA_TEXT_DIM;

        if (part < p.heads) {
            put(q + ((uint64_t)row * p.heads + part) * CUDA_TEXT_DIM,
                prepare(x, p.q_norm, token), 0);
            return;
        }
        part -= p.heads;
        if (part < p.kv.kv_heads)
            put(cached(token, part, 0), prepare(x, p.k_norm, token), token & 7);
        else if (part < 2 * p.kv.kv_heads)
            put(cached(token, part - p.kv.kv_heads, 1), load(x), token & 7);
    }
};

template <ocr_half H>
__global__ void __launch_bounds__(THREADS)
    split_text(struct cuda_prefill p, uint16_t *q, const float *qkv)
{
    const struct text_splitter<H> s = {
        p, q, qkv, threadIdx.x % WARP
    };

    s.run(blockIdx.y, blockIdx.x * WARPS + threadIdx.x / WARP);
}

template <ocr_half H> cudaError_t prepare_half(void)
{
    cudaError_t rc = prepare(patches<H>, 0);

    rc = rc ? rc : prepare(split_vision<H>, 0);
    return rc ? rc : prepare(split_text<H>, 0);
}
} // namespace

cudaError_t cuda_patches(cudaStream_t stream, enum ocr_half half, uint16_t *out,
                         const uint8_t *rgb, const float *table, uint32_t lines,
                         uint32_t columns)
{
    return half == OCR_HALF_BF16
               ? start(patches<OCR_HALF_BF16>, dim3(lines * columns), THREADS,
                       0, stream, false, out, rgb, table, columns)
               : start(patches<OCR_HALF_FP16>, dim3(lines * columns), THREADS,
                       0, stream, false, out, rgb, table, columns);
}

cudaError_t cuda_vision_split(cudaStream_t stream, enum ocr_half half,
                              uint16_t *q, uint16_t *k, uint16_t *v,
                              const float *qkv, const float *cosine,
                              const float *sine, uint32_t grid,
                              uint32_t patches, uint32_t columns,
                              uint32_t heads)
{
    const struct vision_split p = {q,    k,    v,       qkv,     cosine,
                                   sine, grid, patches, columns, heads};
    const dim3 blocks((3 * heads + THREADS / 16 - 1) / (THREADS / 16), patches);

    return half == OCR_HALF_BF16 ? start(split_vision<OCR_HALF_BF16>, blocks,
                                         THREADS, 0, stream, false, p)
                                 : start(split_vision<OCR_HALF_FP16>, blocks,
                                         THREADS, 0, stream, false, p);
}

cudaError_t cuda_text_split(cudaStream_t stream, enum ocr_half half,
                            const struct cuda_prefill *p, uint16_t *q,
                            const float *qkv)
{
    const dim3 blocks((p->heads + 2 * p->kv.kv_heads + WARPS - 1) / WARPS,
                      p->rows);

    return half == OCR_HALF_BF16 ? start(split_text<OCR_HALF_BF16>, blocks,
                                         THREADS, 0, stream, false, *p, q, qkv)
                                 : start(split_text<OCR_HALF_FP16>, blocks,
                                         THREADS, 0, stream, false, *p, q, qkv);
}

cudaError_t prepare_split(ocr_half half)
{
    return half == OCR_HALF_BF16 ? prepare_half<OCR_HALF_BF16>()
                                 : prepare_half<OCR_HALF_FP16>();
}

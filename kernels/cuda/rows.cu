/* Operations on rows and on single values: bound by memory, 16 bytes a
 * thread. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"

namespace
{
enum {
    THREADS = 256,
    WARPS = THREADS / WARP,
};

/* A warp each row. */
template <ocr_half H>
__global__ void __launch_bounds__(THREADS)
    norm_to16(uint16_t *out, const float *x, const float *g, uint32_t rows,
              uint32_t n, float eps)
{
    const uint64_t row = blockIdx.x * WARPS + threadIdx.x / WARP;
    uint16_t *to = out + row * n;

    if (row < rows)
        norm_row(x + row * n, g, n, threadIdx.x % WARP, eps,
                 [to](uint32_t at, float4 v) {
                     *reinterpret_cast<uint2 *>(to + at) = pack4<H>(v);
                 });
}

__global__ void __launch_bounds__(THREADS)
    norm_to32(float *out, const float *x, const float *g, uint32_t rows,
              uint32_t n, float eps)
{
    const uint64_t row = blockIdx.x * WARPS + threadIdx.x / WARP;
    float *to = out + row * n;

    if (row < rows)
        norm_row(x + row * n, g, n, threadIdx.x % WARP, eps,
                 [to](uint32_t at, float4 v) {
                     *reinterpret_cast<float4 *>(to + at) = v;
                 });
}

/* The merged row of a patch, or NULL if it is left out. */
__device__ uint16_t *merged_place(uint16_t *out, uint64_t patch, uint32_t lines,
                                  uint32_t columns, uint32_t hidden)
{
    const uint32_t line = patch / columns, column = patch % columns;
    const uint64_t token = (uint64_t)(line / 2) * (columns / 2) + column / 2;

    if (line / 2 >= lines / 2 || column / 2 >= columns / 2)
        return nullptr;
    return out + (token * 4 + line % 2 * 2 + column % 2) * hidden;
}

template <ocr_half H>
__global__ void __launch_bounds__(THREADS)
    norm_merged(uint16_t *out, const float *x, const float *g, uint32_t lines,
                uint32_t columns, uint32_t hidden, float eps)
{
    const uint64_t patch = blockIdx.x * WARPS + threadIdx.x / WARP;
    uint16_t *to = merged_place(out, patch, lines, columns, hidden);

    if (to)
        norm_row(x + patch * hidden, g, hidden, threadIdx.x % WARP, eps,
                 [to](uint32_t at, float4 v) {
                     *reinterpret_cast<uint2 *>(to + at) = pack4<H>(v);
                 });
}

/* Four outputs a thread: gate and up lie 8 apart. */
template <ocr_half H>
__global__ void __launch_bounds__(THREADS)
    swiglu(uint16_t *out, const float *gate_up, uint64_t count)
{
    const uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    const float *gate = gate_up + i / 2 * 16 + i % 2 * 4;

    if (i >= count)
        return;
    const float4 a = load4(gate), b = load4(gate + 8);
    reinterpret_cast<uint2 *>(out)[i] =
        pack4<H>(make_float4(silu_mul(a.x, b.x), silu_mul(a.y, b.y),
                             silu_mul(a.z, b.z), silu_mul(a.w, b.w)));
}

template <ocr_half H>
__global__ void __launch_bounds__(THREADS)
    round_all(uint16_t *out, const float *x, uint64_t count)
{
    const uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < count)
        reinterpret_cast<uint2 *>(out)[i] = pack4<H>(load4(x + i * 4));
}

__device__ float gelu_of(float x)
{
    return 0.5f * x * (1 + erff(x * 0.70710678118654752f));
}

template <ocr_half H>
__global__ void __launch_bounds__(THREADS)
    gelu(uint16_t *out, const float *x, uint64_t count)
{
    const uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i >= count)
        return;
    const float4 v = load4(x + i * 4);
    reinterpret_cast<uint2 *>(out)[i] = pack4<H>(
        make_float4(gelu_of(v.x), gelu_of(v.y), gelu_of(v.z), gelu_of(v.w)));
}

__device__ bool is_bad(float x)
{
    return (__float_as_uint(x) & 0x7f800000) == 0x7f800000;
}

__global__ void __launch_bounds__(THREADS)
    find_bad(uint32_t *flag, const float *x, uint64_t count)
{
    const uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    float4 v = make_float4(0, 0, 0, 0);

    if (i < count)
        v = load4(x + i * 4);
    if (is_bad(v.x) || is_bad(v.y) || is_bad(v.z) || is_bad(v.w))
        atomicOr(flag, 1);
}

/* A block each row. */
template <ocr_half H>
__global__ void __launch_bounds__(128)
    embed(float *x, const uint32_t *source, const uint16_t *embedding,
          const float *features, uint32_t hidden)
{
    const uint32_t from = source[blockIdx.x];
    float *to = x + (uint64_t)blockIdx.x * hidden;

    if (from & CUDA_FEATURE) {
        const float *f = features + (uint64_t)(from & ~CUDA_FEATURE) * hidden;
        for (uint32_t i = threadIdx.x * 4; i < hidden; i += 512)
            *reinterpret_cast<float4 *>(to + i) = load4(f + i);
        return;
    }
    const uint16_t *e = embedding + (uint64_t)from * hidden;
    for (uint32_t i = threadIdx.x * 4; i < hidden; i += 512) {
        const uint2 v = *reinterpret_cast<const uint2 *>(e + i);
        const float2 a = unpack<H>(v.x), b = unpack<H>(v.y);
        *reinterpret_cast<float4 *>(to + i) = make_float4(a.x, a.y, b.x, b.y);
    }
}

dim3 blocks_for(uint64_t count, uint32_t each)
{
    return dim3((unsigned)((count + each - 1) / each));
}

template <ocr_half H> cudaError_t prepare_half(void)
{
    cudaError_t rc = prepare(norm_to16<H>, 0);

    rc = rc ? rc : prepare(norm_merged<H>, 0);
    rc = rc ? rc : prepare(swiglu<H>, 0);
    rc = rc ? rc : prepare(round_all<H>, 0);
    rc = rc ? rc : prepare(gelu<H>, 0);
    return rc ? rc : prepare(embed<H>, 0);
}
} // namespace

/* A kernel for either kind of 16-bit values. */
#define START(half, kernel, grid, threads, stream, ...)                        \
    ((half) == OCR_HALF_BF16 ? start(kernel<OCR_HALF_BF16>, grid, threads, 0,  \
                                     stream, false, __VA_ARGS__)               \
                             : start(kernel<OCR_HALF_FP16>, grid, threads, 0,  \
                                     stream, false, __VA_ARGS__))

cudaError_t cuda_rmsnorm(cudaStream_t stream, enum ocr_half half, uint16_t *out,
                         const float *x, const float *g, uint32_t rows,
                         uint32_t n, float eps)
{
    return START(half, norm_to16, blocks_for(rows, WARPS), THREADS, stream, out,
                 x, g, rows, n, eps);
}

cudaError_t cuda_rmsnorm32(cudaStream_t stream, float *out, const float *x,
                           const float *g, uint32_t rows, uint32_t n, float eps)
{
    return start(norm_to32, blocks_for(rows, WARPS), THREADS, 0, stream, false,
                 out, x, g, rows, n, eps);
}

cudaError_t cuda_merge(cudaStream_t stream, enum ocr_half half, uint16_t *out,
                       const float *x, const float *g, uint32_t lines,
                       uint32_t columns, uint32_t hidden, float eps)
{
    return START(half, norm_merged,
                 blocks_for((uint64_t)lines * columns, WARPS), THREADS, stream,
                 out, x, g, lines, columns, hidden, eps);
}

cudaError_t cuda_swiglu(cudaStream_t stream, enum ocr_half half, uint16_t *out,
                        const float *gate_up, uint32_t rows, uint32_t inner)
{
    const uint64_t count = (uint64_t)rows * inner / 4;

    return START(half, swiglu, blocks_for(count, THREADS), THREADS, stream, out,
                 gate_up, count);
}

cudaError_t cuda_round(cudaStream_t stream, enum ocr_half half, uint16_t *out,
                       const float *x, uint64_t n)
{
    const uint64_t count = n / 4;

    return START(half, round_all, blocks_for(count, THREADS), THREADS, stream,
                 out, x, count);
}

cudaError_t cuda_gelu(cudaStream_t stream, enum ocr_half half, uint16_t *out,
                      const float *x, uint64_t n)
{
    const uint64_t count = n / 4;

    return START(half, gelu, blocks_for(count, THREADS), THREADS, stream, out,
                 x, count);
}

cudaError_t cuda_finite(cudaStream_t stream, uint32_t *flag, const float *x,
                        uint64_t n)
{
    const uint64_t count = n / 4;

    return start(find_bad, blocks_for(count, THREADS), THREADS, 0, stream,
                 false, flag, x, count);
}

cudaError_t cuda_embed(cudaStream_t stream, enum ocr_half half, float *x,
                       const uint32_t *source, const uint16_t *embedding,
                       const float *features, uint32_t rows, uint32_t hidden)
{
    return START(half, embed, dim3(rows), 128, stream, x, source, embedding,
                 features, hidden);
}

cudaError_t prepare_rows(ocr_half half)
{
    cudaError_t rc = prepare(norm_to32, 0);

    rc = rc ? rc : prepare(find_bad, 0);
    return rc                      ? rc
           : half == OCR_HALF_BF16 ? prepare_half<OCR_HALF_BF16>()
                                   : prepare_half<OCR_HALF_FP16>();
}

/* kernels/cuda/device.cuh - what kernels share: 16-bit values, matrix
 * instructions, asynchronous copies, sums over a warp.
 *
 * Fragments of mma m16n8k16, lane = 4 g + t: of A, rows g and g + 8, columns
 * 2 t, 2 t + 1 and those + 8; of B (columns of n) column g, the same k; of C,
 * rows g and g + 8, columns 2 t and 2 t + 1.
 *
 * Layer:   kernels/cuda, private.
 * Threads: device code. */
#ifndef OCR_CUDA_DEVICE_CUH
#define OCR_CUDA_DEVICE_CUH
#include "kernels/cuda/ops.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

enum {
    WARP = 32
};

/* sm_75: no bf16, no asynchronous copies, half as deep an mma. The backend
 * refuses bf16 there, so what would need it is never reached. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define OCR_TURING 1
#else
#define OCR_TURING 0
#endif

/* Two values as 16-bit ones, `low` in the low half. fp16 stops at its largest
 * number, since a bf16 model may pass it; NaN stays NaN. */
template <ocr_half H>
__device__ __forceinline__ uint32_t pack(float low, float high)
{
    uint32_t r;

    if (H == OCR_HALF_BF16) {
#if OCR_TURING
        r = 0;
        __trap();
#else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
#endif
    } else {
        low = low > 65504 ? 65504 : low < -65504 ? -65504 : low;
        high = high > 65504 ? 65504 : high < -65504 ? -65504 : high;
#if OCR_TURING
        const __half2 pair = __floats2half2_rn(low, high);
        r = *reinterpret_cast<const uint32_t *>(&pair);
#else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
#endif
    }
    return r;
}

template <ocr_half H> __device__ __forceinline__ float2 unpack(uint32_t pair)
{
    if (H == OCR_HALF_BF16)
        return make_float2(__uint_as_float(pair << 16),
                           __uint_as_float(pair & 0xffff0000));
    return __half22float2(*reinterpret_cast<__half2 *>(&pair));
}

template <ocr_half H> __device__ __forceinline__ uint16_t round16(float x)
{
    return static_cast<uint16_t>(pack<H>(x, 0));
}

template <ocr_half H> __device__ __forceinline__ uint2 pack4(float4 v)
{
    return make_uint2(pack<H>(v.x, v.y), pack<H>(v.z, v.w));
}

#if OCR_TURING
/* c += a b over 8 columns of a, fp16. */
__device__ __forceinline__ void mma8(float (&c)[4], uint32_t a0, uint32_t a1,
                                     uint32_t b)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(b));
}
#endif

/* c += a b */
template <ocr_half H>
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1,
                                    uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1)
{
#if OCR_TURING
    if (H == OCR_HALF_BF16)
        __trap();
    mma8(c, a0, a1, b0);
    mma8(c, a2, a3, b1);
#else
    if (H == OCR_HALF_BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* Four 8 x 8 matrices of 16-bit values; lane i gives row i % 8 of matrix
 * i / 8. */
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], uint32_t from)
{
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
        : "r"(from)
        : "memory");
}

/* 16 bytes to shared memory; zeros, and `from` is not read, unless valid. */
__device__ __forceinline__ void copy16(uint32_t to, const void *from,
                                       bool valid)
{
#if OCR_TURING
    const uint4 v = valid ? __ldcg(static_cast<const uint4 *>(from))
                          : make_uint4(0, 0, 0, 0);

    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};"
                 :
                 : "r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
#else
    const uint32_t bytes = valid ? 16 : 0;

    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"(to), "l"(from), "r"(bytes)
                 : "memory");
#endif
}

__device__ __forceinline__ void copies_end_group(void)
{
#if !OCR_TURING
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Until at most N groups are under way. */
template <int N> __device__ __forceinline__ void copies_wait(void)
{
#if !OCR_TURING
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

/* Programmatic dependent launch: a kernel starts, as far as there is room,
 * when all blocks of the one before have called allow_next; what earlier
 * kernels wrote is there after await_previous, which at least one block of
 * each kernel calls before it ends.
 *
 * Within a decode step every kernel lets the next one start at once, so that
 * copies of weights are always under way. What is read before await_previous
 * must then be older than the step's kernels: the first of a step
 * (begin_step), and the first after it, allow the next one only after their
 * own await_previous, so that the others may read, early, all that is older
 * than the step and what begin_step wrote. */
__device__ __forceinline__ void await_previous(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void allow_next(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int i = WARP / 2; i; i /= 2)
        x += __shfl_xor_sync(~0u, x, i);
    return x;
}

__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int i = WARP / 2; i; i /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    return x;
}

__device__ __forceinline__ float silu_mul(float gate, float up)
{
    return gate / (1 + __expf(-gate)) * up;
}

/* A head of 128 as a warp holds it: x, y = 2 lane, 2 lane + 1; z, w those
 * + 64. Norm with gains w, then rotation by the angles of x and y. */
__device__ __forceinline__ float4 norm_rotate(float4 v, float4 w, float2 cosine,
                                              float2 sine, float eps)
{
    float sum = __fmul_rn(v.x, v.x);

    sum = __fmaf_rn(v.y, v.y, sum);
    sum = __fmaf_rn(v.z, v.z, sum);
    sum = __fmaf_rn(v.w, v.w, sum);
    const float scale = 1 / sqrtf(warp_sum(sum) / CUDA_TEXT_DIM + eps);
    v = make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z,
                    v.w * scale * w.w);
    return make_float4(
        v.x * cosine.x - v.z * sine.x, v.y * cosine.y - v.w * sine.y,
        v.z * cosine.x + v.x * sine.x, v.w * cosine.y + v.y * sine.y);
}

/* From L2: what another kernel of the same step wrote. */
__device__ __forceinline__ float4 load4(const float *p)
{
    return __ldcg(reinterpret_cast<const float4 *>(p));
}

/* A row of n numbers as a warp holds it: lane's four at 128 i + 4 lane. What
 * is beyond ROW_HELD * 128 is read again. */
enum {
    ROW_HELD = 8
};

/* Explicit, so that no caller's code is contracted in another way. */
__device__ __forceinline__ float add_squares(float sum, float4 v)
{
    sum = __fmaf_rn(v.x, v.x, sum);
    sum = __fmaf_rn(v.y, v.y, sum);
    sum = __fmaf_rn(v.z, v.z, sum);
    return __fmaf_rn(v.w, v.w, sum);
}

/* 1 / sqrt(mean(x^2) + eps), in the same order for every caller. */
__device__ __forceinline__ float row_scale(const float *x,
                                           float4 (&held)[ROW_HELD], uint32_t n,
                                           uint32_t lane, float eps)
{
    float sum = 0;

#pragma unroll
    for (int i = 0; i < ROW_HELD; i++) {
        const uint32_t at = i * 128 + lane * 4;
        held[i] = at < n ? load4(x + at) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < ROW_HELD; i++)
        sum = add_squares(sum, held[i]);
    for (uint32_t at = ROW_HELD * 128 + lane * 4; at < n; at += 128) {
        sum = add_squares(sum, load4(x + at));
    }
    return 1 / sqrtf(warp_sum(sum) / n + eps);
}

__device__ __forceinline__ float4 gain_at(const float *g)
{
    return __ldg(reinterpret_cast<const float4 *>(g));
}

__device__ __forceinline__ float4 scaled(float4 v, float scale, float4 gain)
{
    return make_float4(v.x * scale * gain.x, v.y * scale * gain.y,
                       v.z * scale * gain.z, v.w * scale * gain.w);
}

/* put(at, four normalised numbers) for all of the lane; `gains`: the lane's of
 * what is held. */
template <typename Put>
__device__ __forceinline__ void
norm_row(const float *x, const float4 (&gains)[ROW_HELD], const float *g,
         uint32_t n, uint32_t lane, float eps, Put put)
{
    float4 held[ROW_HELD];
    const float scale = row_scale(x, held, n, lane, eps);

#pragma unroll
    for (int i = 0; i < ROW_HELD; i++) {
        const uint32_t at = i * 128 + lane * 4;
        if (at < n)
            put(at, scaled(held[i], scale, gains[i]));
    }
    for (uint32_t at = ROW_HELD * 128 + lane * 4; at < n; at += 128)
        put(at, scaled(load4(x + at), scale, gain_at(g + at)));
}

/* Gains of the norm for norm_row, before there is anything to norm. */
__device__ __forceinline__ void
load_gains(float4 (&gains)[ROW_HELD], const float *g, uint32_t n, uint32_t lane)
{
#pragma unroll
    for (int i = 0; i < ROW_HELD; i++) {
        const uint32_t at = i * 128 + lane * 4;
        gains[i] = at < n ? gain_at(g + at) : make_float4(0, 0, 0, 0);
    }
}

template <typename Put>
__device__ __forceinline__ void norm_row(const float *x, const float *g,
                                         uint32_t n, uint32_t lane, float eps,
                                         Put put)
{
    float4 gains[ROW_HELD];

    load_gains(gains, g, n, lane);
    norm_row(x, gains, g, n, lane, eps, put);
}

/* 64 mod 128, so that two rows lie in different banks. */
__host__ __device__ inline uint32_t shared_row_bytes(uint32_t n)
{
    return (n * 2 + 127) / 128 * 128 + 64;
}

/* Row x, normalised and rounded, as a row in shared memory. */
template <ocr_half H>
__device__ __forceinline__ void
norm_to_shared(char *to, const float *x, const float4 (&gains)[ROW_HELD],
               const float *g, uint32_t n, uint32_t lane, float eps)
{
    norm_row(x, gains, g, n, lane, eps, [to](uint32_t at, float4 v) {
        *reinterpret_cast<uint2 *>(to + at * 2) = pack4<H>(v);
    });
}

#endif

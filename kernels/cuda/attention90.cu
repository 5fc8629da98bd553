/* Vision attention on Hopper: as attention.cu, but the matrix instructions are
 * those of a warpgroup (wgmma), which take K and V from shared memory as they
 * lie there. Three warpgroups of 64 queries; while one weighs scores, the
 * matrix unit works for another.
 *
 * Tiles are rows of 128 bytes, their 16-byte pieces swapped by row % 8: the
 * 128-byte swizzle that the instruction knows, in groups of 8 rows. Built for
 * sm_90a only; elsewhere the kernel is empty and never started. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"

namespace
{
enum {
    GROUPS = 3,
    THREADS = GROUPS * 4 * WARP,
    DIM = CUDA_VISION_DIM,
    ROW = DIM * 2, /* bytes */
    PIECES = ROW / 16,
    QUERIES = GROUPS * 64,
    KEYS = 128,
    STAGES = 3,
    TILE = KEYS * ROW, /* of K or of V */
    SHARED = QUERIES * ROW + STAGES * 2 * TILE,
};

struct page {
    uint16_t *out;
    const uint16_t *q, *k, *v; /* [heads][rows][64] */
    uint32_t rows, heads;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* Rows of 128 bytes at a shared address, swizzled; groups of 8 follow each
 * other. */
__device__ __forceinline__ uint64_t descriptor(uint32_t at)
{
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 |
           (at & 0x3ffff) >> 4;
}

__device__ __forceinline__ void matrix_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void matrix_end(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

/* Accumulators as operands of one instruction. */
#define C4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define C16(c, i) C4(c, i), C4(c, i + 4), C4(c, i + 8), C4(c, i + 12)
#define C32(c, i) C16(c, i), C16(c, i + 16)

#define SCORES(type)                                                           \
    "{.reg .pred p; setp.ne.b32 p, %66, 0; "                                   \
    "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " "           \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "                      \
    "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "                       \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                       \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "                       \
    "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "                       \
    "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "                       \
    "%62, %63}, "                                                              \
    "%64, %65, p, 1, 1, 0, 0;}"

#define VALUES(type)                                                           \
    "{.reg .pred p; setp.ne.b32 p, %37, 0; "                                   \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " "            \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "                      \
    "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "                       \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                      \
    "{%32, %33, %34, %35}, %36, p, 1, 1, 1;}"

/* c [64][128] (+)= a [64][16] b [128][16], both by rows of k. */
template <ocr_half H>
__device__ __forceinline__ void multiply_scores(float (&c)[64], uint64_t a,
                                                uint64_t b, int more)
{
    if (H == OCR_HALF_BF16)
        asm volatile(SCORES("bf16")
                     : C32(c, 0), C32(c, 32)
                     : "l"(a), "l"(b), "r"(more));
    else
        asm volatile(SCORES("f16")
                     : C32(c, 0), C32(c, 32)
                     : "l"(a), "l"(b), "r"(more));
}

/* c [64][64] (+)= a [64][16] (fragments) b [16][64], by rows of k. */
template <ocr_half H>
__device__ __forceinline__ void
multiply_values(float (&c)[32], const uint32_t (&a)[4], uint64_t b, int more)
{
    if (H == OCR_HALF_BF16)
        asm volatile(VALUES("bf16")
                     : C32(c, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
                       "r"(more));
    else
        asm volatile(VALUES("f16")
                     : C32(c, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
                       "r"(more));
}

template <ocr_half H> struct attention {
    static constexpr uint32_t ONES =
        H == OCR_HALF_BF16 ? 0x3f803f80 : 0x3c003c00;

    const struct page &p;
    uint32_t memory, lane, warp, head, first;
    float most[2], sum[4];
    float o[DIM / 2]; /* fragments of 8 dimensions, 4 each */

    __device__ attention(const struct page &p, uint32_t memory)
        : p(p), memory(memory), lane(threadIdx.x % WARP),
          warp(threadIdx.x / WARP), head(blockIdx.y),
          first(blockIdx.x * QUERIES)
    {
        most[0] = most[1] = -INFINITY;
        sum[0] = sum[1] = sum[2] = sum[3] = 0;
    }

    __device__ uint32_t k_at(uint32_t tile) const
    {
        return memory + QUERIES * ROW + tile % STAGES * (2 * TILE);
    }

    /* Rows from `row` on; zeros behind the page's last. */
    __device__ void copy_rows(uint32_t to, const uint16_t *from, uint32_t row,
                              uint32_t count) const
    {
#pragma unroll 4
        for (uint32_t n = threadIdx.x; n < count * PIECES; n += THREADS) {
            const uint32_t r = n / PIECES, piece = n % PIECES;
            const bool valid = row + r < p.rows;
            const uint64_t at =
                ((uint64_t)head * p.rows + (valid ? row + r : 0)) * DIM;

            copy16(to + r * ROW + (piece ^ (r & 7)) * 16, from + at + piece * 8,
                   valid);
        }
    }

    __device__ void copy_tile(uint32_t tile) const
    {
        if (tile * KEYS < p.rows) {
            copy_rows(k_at(tile), p.k, tile * KEYS, KEYS);
            copy_rows(k_at(tile) + TILE, p.v, tile * KEYS, KEYS);
        }
        copies_end_group();
    }

    __device__ void scores(float (&s)[KEYS / 2], uint32_t tile) const
    {
        const uint32_t q = memory + warp / 4 * (64 * ROW);

        matrix_begin();
#pragma unroll
        for (int i = 0; i < DIM / 16; i++)
            multiply_scores<H>(s, descriptor(q + i * 32),
                               descriptor(k_at(tile) + i * 32), i);
        matrix_end();
    }

    __device__ void hide(float (&s)[KEYS / 2], uint32_t tile) const
    {
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (tile * KEYS + n * 8 + lane % 4 * 2 + j % 2 >= p.rows)
                    s[n * 4 + j] = -INFINITY;
    }

    /* As in attention.cu. */
    __device__ void weigh(float (&s)[KEYS / 2], int half)
    {
        const float scale = 0.125f * 1.4426950408889634f;
        float high = most[half], shift, old;

#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            high = fmaxf(high,
                         fmaxf(s[n * 4 + half * 2], s[n * 4 + half * 2 + 1]));
        high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
        high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
        shift = high * scale;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float *x = &s[n * 4 + half * 2 + j];
                *x = exp2_fast(*x * scale - shift);
            }
        old = exp2_fast((most[half] - high) * scale);
        most[half] = high;
        if (!__any_sync(~0u, old != 1))
            return;
        sum[half * 2] *= old;
        sum[half * 2 + 1] *= old;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            o[n * 4 + half * 2] *= old;
            o[n * 4 + half * 2 + 1] *= old;
        }
    }

    __device__ void add_values(const float (&s)[KEYS / 2], uint32_t tile)
    {
        uint32_t a[KEYS / 16][4];

#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float *of = s + (n * 2 + j / 2) * 4 + j % 2 * 2;
                a[n][j] = pack<H>(of[0], of[1]);
            }
            mma<H>(sum, a[n][0], a[n][1], a[n][2], a[n][3], ONES, ONES);
        }
        matrix_begin();
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++)
            multiply_values<H>(o, a[n],
                               descriptor(k_at(tile) + TILE + n * (16 * ROW)),
                               tile + n);
        matrix_end();
    }

    __device__ void store(void) const
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t row = first + warp * 16 + lane / 4 + half * 8;
            const float scale = 1 / sum[half * 2];
            uint32_t *to = reinterpret_cast<uint32_t *>(
                p.out + ((uint64_t)row * p.heads + head) * DIM);

            if (row >= p.rows)
                continue;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++)
                to[n * 4 + lane % 4] = pack<H>(o[n * 4 + half * 2] * scale,
                                               o[n * 4 + half * 2 + 1] * scale);
        }
    }

    __device__ void run(void)
    {
        const uint32_t tiles = (p.rows + KEYS - 1) / KEYS;

#pragma unroll
        for (int i = 0; i < DIM / 2; i++)
            o[i] = 0;
        copy_rows(memory, p.q, first, QUERIES);
        for (uint32_t i = 0; i < STAGES - 1; i++)
            copy_tile(i);
        for (uint32_t tile = 0; tile < tiles; tile++) {
            float s[KEYS / 2];

            copies_wait<STAGES - 2>();
            /* What copies wrote, for instructions that read by themselves. */
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncthreads();
            copy_tile(tile + STAGES - 1);
            scores(s, tile);
            if ((tile + 1) * KEYS > p.rows)
                hide(s, tile);
            weigh(s, 0);
            weigh(s, 1);
            add_values(s, tile);
        }
        copies_wait<0>();
        store();
    }
};
#endif

template <ocr_half H>
__global__ void __launch_bounds__(THREADS, 1) attend_page(struct page p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) char memory[];
    attention<H> a(p, shared_address(memory));

    a.run();
#endif
}
} // namespace

cudaError_t page_attention_start(cudaStream_t stream, ocr_half half,
                                 uint16_t *out, const uint16_t *q,
                                 const uint16_t *k, const uint16_t *v,
                                 uint32_t patches, uint32_t heads)
{
    const struct page p = {out, q, k, v, patches, heads};
    const dim3 grid((patches + QUERIES - 1) / QUERIES, heads);

    return half == OCR_HALF_BF16 ? start(attend_page<OCR_HALF_BF16>, grid,
                                         THREADS, SHARED, stream, false, p)
                                 : start(attend_page<OCR_HALF_FP16>, grid,
                                         THREADS, SHARED, stream, false, p);
}

cudaError_t prepare_page_attention(ocr_half half)
{
    if (!device_facts()->warpgroups)
        return cudaSuccess;
    return half == OCR_HALF_BF16 ? prepare(attend_page<OCR_HALF_BF16>, SHARED)
                                 : prepare(attend_page<OCR_HALF_FP16>, SHARED);
}

/* Matrices of a layer times the few rows of a decode step: weights are read
 * once, as the 16-row side of mma m16n8k16, rows of the batch are its 8
 * columns.
 *
 * A block has 8 warps and MT row tiles of weights; warp w takes the groups of
 * 32 columns w, w + 8, ... in ascending order, and the warps' sums are added
 * in the order of the warps: the bits of a row depend on n and k alone. A lane
 * takes 16 contiguous bytes of a weight row and of a batch row, so k runs in
 * another order than stored, but alike in both.
 *
 * Weights do not depend on the kernels before, so their copies to shared
 * memory start while those still run. Each lane reads only what it copied
 * itself: no barrier. */
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"

namespace
{
enum {
    WARPS = 8,
    THREADS = WARPS * WARP,
    GROUP = 32,           /* columns of a warp at once: two mma */
    SPAN = GROUP * WARPS, /* columns of a block at once */
    PIECE = THREADS * 16, /* bytes: 16 of each lane */
};

/* Row tiles of weights of a block: so that the matrices of the full-size model
 * make 128 blocks. */
__host__ __device__ constexpr int row_tiles(product_kind kind)
{
    return kind == PRODUCT_ADD ? 1 : kind == PRODUCT_SWIGLU ? 3 : 2;
}

/* Batch tiles of a block, at most; more are more blocks. What is added to is
 * narrow: it needs blocks rather than few reads of weights. */
__host__ __device__ constexpr int most_tiles(product_kind kind)
{
    return kind == PRODUCT_ADD ? 4 : 8;
}

/* Copies under way, each MT * 2 pieces: all of the full-size model's, where
 * there is room. */
__host__ __device__ constexpr int stages(product_kind kind, bool large)
{
    return (kind == PRODUCT_ADD ? 12 : 4) / (large ? 1 : 2);
}

/* Whether the batch rows go through shared memory, where the kernel normalises
 * them itself. With more rows, a kernel of its own does that once for all
 * blocks, and lanes take what they need from the second cache. */
__host__ __device__ constexpr bool shares(int nt)
{
    return nt <= 2;
}

template <ocr_half H, product_kind KIND, int NT, bool LARGE> struct kernel {
    static constexpr int MT = row_tiles(KIND);
    static constexpr int STAGES = stages(KIND, LARGE);
    static constexpr bool SHARES = shares(NT);
    static constexpr int AHEAD = NT == 4 ? 4 : 2; /* spans, unless SHARES */
    static constexpr size_t STAGE = MT * 2 * PIECE;
    static constexpr uint32_t SUMS = MT * NT * WARP; /* of four */

    /* Stages, and in their place at the end the sums of the warps. */
    static size_t ring_bytes(uint32_t k)
    {
        const size_t steps = (k + SPAN - 1) / SPAN;
        const size_t ring = (steps < STAGES ? steps : STAGES) * STAGE;
        const size_t sums = SUMS * WARPS * 16;

        return ring > sums ? ring : sums;
    }

    static size_t shared(uint32_t k)
    {
        return ring_bytes(k) + (SHARES ? NT * 8 * shared_row_bytes(k) : 0);
    }

    const struct product &p;
    char *memory;        /* ring, rows */
    uint32_t *live_rows; /* shared: bits of each tile's rows */
    uint32_t warp, lane, g, t;
    uint32_t spans; /* of k */
    uint32_t n0;    /* the block's first row of weights */
    uint32_t first; /* of this block's batch rows: they are counted from it */
    uint32_t live;  /* bit i: row g of tile i takes part */

    __device__ kernel(const struct product &p, char *memory,
                      uint32_t *live_rows)
        : p(p), memory(memory), live_rows(live_rows), warp(threadIdx.x / WARP),
          lane(threadIdx.x % WARP), g(lane / 4), t(lane % 4),
          spans((p.k + SPAN - 1) / SPAN), n0(blockIdx.x * MT * 16),
          first(blockIdx.y * NT * 8), live(0)
    {
    }

    __device__ uint32_t column(uint32_t span) const
    {
        return span * SPAN + warp * GROUP + t * 8;
    }

    __device__ void copy_weights(uint32_t span) const
    {
        const uint32_t k = column(span), row = n0 + g;
        const uint32_t to =
            shared_address(memory) + threadIdx.x * 16 + span % STAGES * STAGE;
        const uint16_t *from = p.w + (uint64_t)row * p.k + k;

        if (span < spans) {
#pragma unroll
            for (int i = 0; i < MT * 2; i++) {
                const bool valid = k < p.k && row + i * 8 < p.n;
                copy16(to + i * PIECE,
                       valid ? from + (uint64_t)i * 8 * p.k : p.w, valid);
            }
        }
        copies_end_group();
    }

    __device__ void find_live(void)
    {
#pragma unroll
        for (int i = 0; i < NT; i++)
            live |= is_live(p.rows, first + i * 8 + g) << i;
#pragma unroll
        for (int i = 0; i < NT; i++) {
            const uint32_t lanes = __ballot_sync(~0u, live >> i & 1);

            if (!threadIdx.x)
                live_rows[i] = lanes;
        }
        __syncthreads();
    }

    __device__ bool row_is_live(uint32_t row) const
    {
        return live_rows[row / 8] >> row % 8 * 4 & 1;
    }

    __device__ char *shared_row(uint32_t row) const
    {
        return memory + p.ring_bytes + row * shared_row_bytes(p.k);
    }

    /* The batch rows to shared memory, but for those that nobody looks at: a
     * column of an mma does not touch the others. */
    __device__ void share_rows(const float4 (&gains)[ROW_HELD]) const
    {
        for (uint32_t r = warp; r < NT * 8; r += WARPS) {
            if (!row_is_live(r))
                continue;
            if (KIND == PRODUCT_ADD)
                copy_row(r);
            else
                norm_to_shared<H>(shared_row(r),
                                  p.x + (uint64_t)(first + r) * p.k, gains, p.g,
                                  p.k, lane, p.eps);
        }
        if (KIND == PRODUCT_ADD) {
            copies_end_group();
            copies_wait<0>();
        }
        __syncthreads();
    }

    __device__ void copy_row(uint32_t row) const
    {
        const uint32_t to = shared_address(shared_row(row));
        const uint16_t *from = p.in + (uint64_t)(first + row) * p.k;

#pragma unroll 1
        for (uint32_t at = lane * 8; at < p.k; at += WARP * 8)
            copy16(to + at * 2, from + at, true);
    }

    __device__ uint4 batch(int tile, uint32_t span) const
    {
        const uint32_t k = column(span), row = tile * 8 + g;

        if (k >= p.k || !(live >> tile & 1))
            return make_uint4(0, 0, 0, 0);
        if (SHARES)
            return *reinterpret_cast<const uint4 *>(shared_row(row) + k * 2);
        return __ldcg(reinterpret_cast<const uint4 *>(
            p.in + (uint64_t)(first + row) * p.k + k));
    }

    __device__ void multiply(float (&c)[MT][NT][4], uint32_t span,
                             const uint4 (&b)[NT]) const
    {
        const char *from = memory + threadIdx.x * 16 + span % STAGES * STAGE;

#pragma unroll
        for (int m = 0; m < MT; m++) {
            const uint4 a =
                *reinterpret_cast<const uint4 *>(from + 2 * m * PIECE);
            const uint4 a8 =
                *reinterpret_cast<const uint4 *>(from + (2 * m + 1) * PIECE);
#pragma unroll
            for (int i = 0; i < NT; i++)
                mma<H>(c[m][i], a.x, a8.x, a.y, a8.y, b[i].x, b[i].y);
#pragma unroll
            for (int i = 0; i < NT; i++)
                mma<H>(c[m][i], a.z, a8.z, a.w, a8.w, b[i].z, b[i].w);
        }
    }

    /* Where the values of sum `sum` go: batch rows row and row + 1, n and
     * n + 8, of which SWIGLU makes one. */
    struct place {
        uint32_t row, n;
    };

    __device__ struct place place_of(uint32_t sum) const
    {
        return {sum / WARP % NT * 8 + sum % 4 * 2,
                n0 + sum / WARP / NT * 16 + sum % WARP / 4};
    }

    __device__ float *out_at(struct place at) const
    {
        return static_cast<float *>(p.out) + (uint64_t)(first + at.row) * p.n +
               at.n;
    }

    /* ADD: what is there already, read early; a thread has one sum. */
    __device__ float4 old_values(void) const
    {
        const struct place at = place_of(threadIdx.x);
        float4 v = make_float4(0, 0, 0, 0);

        if (KIND != PRODUCT_ADD || threadIdx.x >= SUMS || at.n >= p.n)
            return v;
        if (row_is_live(at.row)) {
            v.x = __ldcg(out_at(at));
            v.z = __ldcg(out_at(at) + 8);
        }
        if (row_is_live(at.row + 1)) {
            v.y = __ldcg(out_at(at) + p.n);
            v.w = __ldcg(out_at(at) + p.n + 8);
        }
        return v;
    }

    __device__ void put(struct place at, float low, float high) const
    {
        if (!row_is_live(at.row) || at.n >= p.n)
            return;
        if (KIND == PRODUCT_SWIGLU) {
            static_cast<uint16_t *>(
                p.out)[(uint64_t)(first + at.row) * (p.n / 2) + at.n / 16 * 8 +
                       at.n % 16] = round16<H>(silu_mul(low, high));
            return;
        }
        out_at(at)[0] = low;
        if (at.n + 8 < p.n)
            out_at(at)[8] = high;
    }

    /* The sums of the warps, in their order. */
    __device__ void finish(const float4 *sums, uint32_t sum, float4 old) const
    {
        const struct place at = place_of(sum);
        float4 v = sums[sum];

#pragma unroll
        for (int w = 1; w < WARPS; w++) {
            const float4 s = sums[w * SUMS + sum];
            v = make_float4(v.x + s.x, v.y + s.y, v.z + s.z, v.w + s.w);
        }
        if (KIND == PRODUCT_ADD)
            v = make_float4(v.x + old.x, v.y + old.y, v.z + old.z, v.w + old.w);
        put(at, v.x, v.z);
        put({at.row + 1, at.n}, v.y, v.w);
    }

    __device__ void sum_up(float (&c)[MT][NT][4], float4 old) const
    {
        float4 *sums = reinterpret_cast<float4 *>(memory);

        __syncthreads(); /* the ring is used no more */
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < NT; i++)
                sums[warp * SUMS + (m * NT + i) * WARP + lane] =
                    make_float4(c[m][i][0], c[m][i][1], c[m][i][2], c[m][i][3]);
        __syncthreads();
        for (uint32_t sum = threadIdx.x; sum < SUMS; sum += THREADS)
            finish(sums, sum, old);
    }

    /* Short code: it is not there yet when the rows are. */
    __device__ void run_shared(float (&c)[MT][NT][4]) const
    {
#pragma unroll 1
        for (uint32_t span = 0; span < spans; span++) {
            uint4 b[NT];

            copies_wait<STAGES - 1>();
#pragma unroll
            for (int j = 0; j < NT; j++)
                b[j] = batch(j, span);
            multiply(c, span, b);
            copy_weights(span + STAGES);
        }
    }

    __device__ void run_ahead(float (&c)[MT][NT][4]) const
    {
        uint4 b[AHEAD][NT];

#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int j = 0; j < NT; j++)
                b[i][j] = batch(j, i);
        for (uint32_t span = 0; span < spans; span += AHEAD)
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (span + i < spans) {
                    copies_wait<STAGES - 1>();
                    multiply(c, span + i, b[i]);
                    copy_weights(span + i + STAGES);
#pragma unroll
                    for (int j = 0; j < NT; j++)
                        b[i][j] = batch(j, span + i + AHEAD);
                }
    }

    __device__ void run(void)
    {
        float c[MT][NT][4] = {};
        float4 gains[ROW_HELD], old;

        if (p.rows.early)
            allow_next();
#pragma unroll 1
        for (uint32_t i = 0; i < STAGES; i++)
            copy_weights(i);
        if (SHARES && KIND != PRODUCT_ADD)
            load_gains(gains, p.g, p.k, lane);
        if (p.rows.early)
            find_live();
        await_previous();
        if (!p.rows.early) {
            allow_next();
            find_live();
        }
        old = old_values();
        if (SHARES) {
            share_rows(gains);
            run_shared(c);
        } else {
            run_ahead(c);
        }
        copies_wait<0>();
        sum_up(c, old);
    }
};

template <ocr_half H, product_kind KIND, int NT, bool LARGE>
__global__ void __launch_bounds__(THREADS, 1) multiply(struct product p)
{
    extern __shared__ __align__(128) char memory[];
    __shared__ uint32_t live_rows[NT];
    kernel<H, KIND, NT, LARGE> k(p, memory, live_rows);

    k.run();
}

/* normed = rows of x, normalised: a warp each. */
template <ocr_half H>
__global__ void __launch_bounds__(4 * WARP) norm_batch(struct product p)
{
    const uint32_t row = blockIdx.x * 4 + threadIdx.x / WARP;
    uint16_t *to = p.normed + (uint64_t)row * p.k;

    if (p.rows.early)
        allow_next();
    await_previous();
    if (!p.rows.early)
        allow_next();
    if (!is_live(p.rows, row))
        return;
    norm_row(p.x + (uint64_t)row * p.k, p.g, p.k, threadIdx.x % WARP, p.eps,
             [to](uint32_t at, float4 v) {
                 *reinterpret_cast<uint2 *>(to + at) = pack4<H>(v);
             });
}

template <ocr_half H, product_kind KIND, int NT, bool LARGE>
cudaError_t start_sized(cudaStream_t stream, struct product *p, unsigned tiles)
{
    using k = kernel<H, KIND, NT, LARGE>;
    const dim3 grid((p->n + k::MT * 16 - 1) / (k::MT * 16),
                    (tiles + NT - 1) / NT);

    p->ring_bytes = (uint32_t)k::ring_bytes(p->k);
    return start(multiply<H, KIND, NT, LARGE>, grid, THREADS, k::shared(p->k),
                 stream, true, *p);
}

/* With the static shared memory and what the driver takes. */
template <ocr_half H, product_kind KIND, int NT, bool LARGE>
bool fits(uint32_t k)
{
    return kernel<H, KIND, NT, LARGE>::shared(k) + 1024 <=
           device_facts()->shared;
}

/* Rows that do not go through shared memory; four tiles have room on every
 * card. */
template <ocr_half H, product_kind KIND, int NT>
cudaError_t start_wide(cudaStream_t stream, struct product *p, unsigned tiles)
{
    using least = kernel<H, KIND, 4, false>;
    static_assert(least::STAGES * least::STAGE + 1024 <= CUDA_LEAST_SHARED &&
                      least::SUMS * WARPS * 16 + 1024 <= CUDA_LEAST_SHARED,
                  "what every card has");
    if (KIND != PRODUCT_ADD) {
        const cudaError_t rc = start(norm_batch<H>, dim3(tiles * 2), 4 * WARP,
                                     0, stream, true, *p);
        if (rc)
            return rc;
        p->in = p->normed;
        p->rows.early = true;
    }
    if (fits<H, KIND, NT, true>(p->k))
        return start_sized<H, KIND, NT, true>(stream, p, tiles);
    if (fits<H, KIND, NT, false>(p->k))
        return start_sized<H, KIND, NT, false>(stream, p, tiles);
    return start_sized<H, KIND, 4, false>(stream, p, tiles);
}

template <ocr_half H, product_kind KIND, int NT>
cudaError_t start_narrow(cudaStream_t stream, struct product *p, unsigned tiles)
{
    if (fits<H, KIND, NT, true>(p->k))
        return start_sized<H, KIND, NT, true>(stream, p, tiles);
    if (fits<H, KIND, NT, false>(p->k))
        return start_sized<H, KIND, NT, false>(stream, p, tiles);
    if (fits<H, KIND, 1, false>(p->k))
        return start_sized<H, KIND, 1, false>(stream, p, tiles);
    return start_wide<H, KIND, 4>(stream, p, tiles);
}

template <ocr_half H, product_kind KIND>
cudaError_t start_kind(cudaStream_t stream, struct product p, unsigned tiles)
{
    return tiles <= 1   ? start_narrow<H, KIND, 1>(stream, &p, tiles)
           : tiles <= 2 ? start_narrow<H, KIND, 2>(stream, &p, tiles)
           : tiles <= 4
               ? start_wide<H, KIND, 4>(stream, &p, tiles)
               : start_wide<H, KIND, most_tiles(KIND)>(stream, &p, tiles);
}

template <ocr_half H>
cudaError_t start_half(cudaStream_t stream, enum product_kind kind,
                       const struct product *p, unsigned tiles)
{
    switch (kind) {
    case PRODUCT_STORE:
        return start_kind<H, PRODUCT_STORE>(stream, *p, tiles);
    case PRODUCT_ADD:
        return start_kind<H, PRODUCT_ADD>(stream, *p, tiles);
    case PRODUCT_SWIGLU:
        return start_kind<H, PRODUCT_SWIGLU>(stream, *p, tiles);
    }
    return cudaErrorInvalidValue;
}

template <ocr_half H, product_kind KIND, int NT> cudaError_t prepare_tiles(void)
{
    const size_t most = 1 << 20;
    const cudaError_t rc = prepare(multiply<H, KIND, NT, true>, most);

    return rc ? rc : prepare(multiply<H, KIND, NT, false>, most);
}

template <ocr_half H, product_kind KIND> cudaError_t prepare_kind(void)
{
    cudaError_t rc = prepare_tiles<H, KIND, 1>();

    rc = rc ? rc : prepare_tiles<H, KIND, 2>();
    rc = rc ? rc : prepare_tiles<H, KIND, 4>();
    return rc ? rc : prepare_tiles<H, KIND, most_tiles(KIND)>();
}

template <ocr_half H> cudaError_t prepare_all(void)
{
    cudaError_t rc = prepare(norm_batch<H>, 0);

    rc = rc ? rc : prepare_kind<H, PRODUCT_STORE>();
    rc = rc ? rc : prepare_kind<H, PRODUCT_ADD>();
    return rc ? rc : prepare_kind<H, PRODUCT_SWIGLU>();
}
} // namespace

cudaError_t product_start(cudaStream_t stream, ocr_half half,
                          enum product_kind kind, const struct product *p,
                          unsigned tiles)
{
    return half == OCR_HALF_BF16
               ? start_half<OCR_HALF_BF16>(stream, kind, p, tiles)
               : start_half<OCR_HALF_FP16>(stream, kind, p, tiles);
}

cudaError_t prepare_product(ocr_half half)
{
    return half == OCR_HALF_BF16 ? prepare_all<OCR_HALF_BF16>()
                                 : prepare_all<OCR_HALF_FP16>();
}

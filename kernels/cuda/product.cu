/* Matrices times the few rows of a decode step: weights are read once, as the
 * 16-row side of mma m16n8k16, rows of the batch are its 8 columns.
 *
 * A block has 8 warps and MT row tiles of weights; warp w takes the groups of
 * 32 columns w, w + 8, ... in ascending order, and the warps' sums are added
 * in the order of the warps: the bits of a row depend on n and k alone. A lane
 * takes 16 contiguous bytes of a weight row and of a batch row, so k runs in
 * another order than stored, but alike in both.
 *
 * Weights do not depend on the kernel before, so their copies to shared memory
 * start while that one still runs. Each lane reads only what it copied itself:
 * no barrier. */
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

/* Copies under way, each MT * 2 pieces. */
__host__ __device__ constexpr int stages(product_kind kind, int nt, bool large)
{
    return (kind == PRODUCT_ADD                 ? 12
            : kind == PRODUCT_SWIGLU            ? 4
            : kind == PRODUCT_LOGITS && nt == 8 ? 4
                                                : 8) /
           (large ? 1 : 2);
}

/* Whether the kernel normalises its rows itself; with more rows, a kernel of
 * its own does it once for all blocks, unless each block has much to do. */
__host__ __device__ constexpr bool norms(product_kind kind, int nt)
{
    return kind == PRODUCT_LOGITS || (kind != PRODUCT_ADD && nt <= 2);
}

/* Batch tiles whose sums are added at once. */
__host__ __device__ constexpr int round_tiles(product_kind kind, int nt)
{
    return nt == 1 || kind == PRODUCT_ADD     ? nt
           : nt == 4 && kind == PRODUCT_STORE ? 4
                                              : 2;
}

/* Iterations of batch fragments that are loaded ahead. */
__host__ __device__ constexpr int ahead(int nt)
{
    return nt == 1 ? 12 : nt == 2 ? 6 : nt == 4 ? 4 : 2;
}

__host__ __device__ size_t row_bytes(uint32_t k)
{
    /* 64 mod 128, so that two rows lie in different banks. */
    return (k * 2 + 127) / 128 * 128 + 64;
}

template <ocr_half H, product_kind KIND, int NT, bool LARGE> struct kernel {
    static constexpr int MT = row_tiles(KIND);
    static constexpr int STAGES = stages(KIND, NT, LARGE);
    static constexpr int ROUND = round_tiles(KIND, NT);
    static constexpr bool NORM = norms(KIND, NT);
    static constexpr int AHEAD = NORM ? 4 : ahead(NT);
    static constexpr size_t STAGE = MT * 2 * PIECE;
    static constexpr uint32_t COUNT = MT * ROUND * WARP; /* sums of a round */
    static constexpr size_t SUMS = COUNT * WARPS * 16;

    /* Stages of blocks that have `steps` to do: with fewer than STAGES, the
     * remaining copies are empty. */
    static uint32_t stages_used(uint32_t steps)
    {
        return steps < STAGES ? steps : STAGES;
    }

    static size_t shared(uint32_t k, uint32_t stages_used)
    {
        return stages_used * STAGE + SUMS + (NORM ? NT * 8 * row_bytes(k) : 0);
    }

    const struct product &p;
    char *memory;        /* stages, sums, rows */
    uint32_t *live_rows; /* shared: bits of each tile's rows */
    uint32_t warp, lane, g, t;
    uint32_t spans, blocks; /* spans of k; blocks of n of this thread block */
    uint32_t first; /* of this block's batch rows: they are counted from it */
    uint32_t live;  /* bit i: row g of tile i takes part */

    __device__ kernel(const struct product &p, char *memory,
                      uint32_t *live_rows)
        : p(p), memory(memory), live_rows(live_rows), warp(threadIdx.x / WARP),
          lane(threadIdx.x % WARP), g(lane / 4), t(lane % 4),
          spans((p.k + SPAN - 1) / SPAN), first(blockIdx.y * NT * 8), live(0)
    {
        const uint32_t all = (p.n + MT * 16 - 1) / (MT * 16);
        blocks = (all - blockIdx.x + gridDim.x - 1) / gridDim.x;
    }

    __device__ uint32_t first_row(uint32_t block) const
    {
        return (blockIdx.x + block * gridDim.x) * MT * 16;
    }

    __device__ uint32_t column(uint32_t span) const
    {
        return span * SPAN + warp * GROUP + t * 8;
    }

    __device__ void copy_weights(uint32_t step) const
    {
        if (step < blocks * spans) {
            const uint32_t k = column(step % spans);
            const uint32_t row = first_row(step / spans) + g;
            const uint32_t to = shared_address(memory) + threadIdx.x * 16 +
                                step % STAGES * STAGE;
#pragma unroll
            for (int i = 0; i < MT * 2; i++) {
                const bool valid = k < p.k && row + i * 8 < p.n;
                copy16(to + i * PIECE,
                       p.w + (valid ? (uint64_t)(row + i * 8) * p.k + k : 0),
                       valid);
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
        return memory + p.stages * STAGE + SUMS + row * row_bytes(p.k);
    }

    /* Gains of the norm, before there is anything to norm. */
    __device__ void load_gains(float4 (&gains)[ROW_HELD]) const
    {
#pragma unroll
        for (int i = 0; i < ROW_HELD; i++) {
            const uint32_t at = i * 128 + lane * 4;
            gains[i] =
                NORM && at < p.k ? gain_at(p.g + at) : make_float4(0, 0, 0, 0);
        }
    }

    /* Rows of x, normalised, to shared memory; zeros for rows without slot. */
    __device__ void norm_rows(const float4 (&gains)[ROW_HELD]) const
    {
        for (uint32_t r = warp; r < NT * 8; r += WARPS) {
            char *to = shared_row(r);

            if (row_is_live(r))
                norm_row(p.x + (uint64_t)(first + r) * p.k, gains, p.g, p.k,
                         lane, p.eps, [to](uint32_t at, float4 v) {
                             *reinterpret_cast<uint2 *>(to + at * 2) =
                                 pack4<H>(v);
                         });
            else
                for (uint32_t at = lane * 4; at < p.k; at += 128)
                    *reinterpret_cast<uint2 *>(to + at * 2) = make_uint2(0, 0);
        }
        __syncthreads();
    }

    __device__ uint4 batch(int tile, uint32_t span) const
    {
        const uint32_t k = column(span), row = tile * 8 + g;

        if (k >= p.k || (!NORM && !(live >> tile & 1)))
            return make_uint4(0, 0, 0, 0);
        if (NORM)
            return *reinterpret_cast<const uint4 *>(shared_row(row) + k * 2);
        return __ldcg(reinterpret_cast<const uint4 *>(
            p.in + (uint64_t)(first + row) * p.k + k));
    }

    __device__ void multiply(float (&c)[MT][NT][4], uint32_t step,
                             const uint4 (&b)[NT]) const
    {
        const char *from = memory + threadIdx.x * 16 + step % STAGES * STAGE;

#pragma unroll
        for (int m = 0; m < MT; m++) {
            const uint4 a =
                *reinterpret_cast<const uint4 *>(from + 2 * m * PIECE);
            const uint4 a8 =
                *reinterpret_cast<const uint4 *>(from + (2 * m + 1) * PIECE);
#pragma unroll
            for (int i = 0; i < NT; i++) {
                mma<H>(c[m][i], a.x, a8.x, a.y, a8.y, b[i].x, b[i].y);
                mma<H>(c[m][i], a.z, a8.z, a.w, a8.w, b[i].z, b[i].w);
            }
        }
    }

    /* Where a fragment's values go: batch rows row and row + 1, n and n + 8,
     * of which SWIGLU makes one. */
    struct place {
        uint32_t row, n;
    };

    __device__ struct place place_of(uint32_t sum, int first_tile,
                                     uint32_t block) const
    {
        const uint32_t tile = first_tile + sum / WARP % ROUND;

        return {tile * 8 + sum % 4 * 2,
                first_row(block) + sum / WARP / ROUND * 16 + sum % WARP / 4};
    }

    __device__ float *out_at(struct place at) const
    {
        return static_cast<float *>(p.out) + (uint64_t)(first + at.row) * p.n +
               at.n;
    }

    /* ADD: what is there already, read early. */
    __device__ float4 old_values(int first_tile, uint32_t block) const
    {
        const struct place at = place_of(threadIdx.x, first_tile, block);
        float4 v = make_float4(0, 0, 0, 0);

        if (KIND != PRODUCT_ADD || threadIdx.x >= COUNT)
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

    /* Sum `sum` of the round over the warps, in their order. */
    __device__ void finish(const float4 *sums, int first_tile, uint32_t block,
                           float4 old) const
    {
        const uint32_t sum = threadIdx.x;
        const struct place at = place_of(sum, first_tile, block);
        float4 v = sums[sum];

#pragma unroll
        for (int w = 1; w < WARPS; w++) {
            const float4 s = sums[w * COUNT + sum];
            v = make_float4(v.x + s.x, v.y + s.y, v.z + s.z, v.w + s.w);
        }
        v = make_float4(v.x + old.x, v.y + old.y, v.z + old.z, v.w + old.w);
        put(at, v.x, v.z);
        put({at.row + 1, at.n}, v.y, v.w);
    }

    __device__ void sum_up(float (&c)[MT][NT][4], uint32_t block,
                           float4 old) const
    {
        float4 *sums = reinterpret_cast<float4 *>(memory + p.stages * STAGE);

#pragma unroll
        for (int first = 0; first < NT; first += ROUND) {
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = 0; i < ROUND; i++) {
                    const float *v = c[m][first + i];
                    sums[warp * COUNT + (m * ROUND + i) * WARP + lane] =
                        make_float4(v[0], v[1], v[2], v[3]);
                }
            if (first)
                old = old_values(first, block);
            __syncthreads();
            if (threadIdx.x < COUNT)
                finish(sums, first, block, old);
            __syncthreads();
        }
    }

    __device__ void run_block(uint32_t block) const
    {
        float c[MT][NT][4] = {};
        uint4 b[AHEAD][NT];
        const float4 old = old_values(0, block);

#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int j = 0; j < NT; j++)
                b[i][j] = batch(j, i);
        for (uint32_t span = 0; span < spans; span += AHEAD)
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (span + i < spans) {
                    const uint32_t step = block * spans + span + i;
                    copies_wait<STAGES - 1>();
                    multiply(c, step, b[i]);
                    copy_weights(step + STAGES);
#pragma unroll
                    for (int j = 0; j < NT; j++)
                        b[i][j] = batch(j, span + i + AHEAD);
                }
        sum_up(c, block, old);
    }

    __device__ void run(void)
    {
        float4 gains[ROW_HELD];

        for (uint32_t i = 0; i < STAGES; i++)
            copy_weights(i);
        load_gains(gains);
        if (p.rows.early)
            find_live();
        await_previous();
        allow_next();
        if (!p.rows.early)
            find_live();
        if (NORM)
            norm_rows(gains);
        for (uint32_t block = 0; block < blocks; block++)
            run_block(block);
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

    await_previous();
    allow_next();
    if (!is_live(p.rows, row))
        return;
    norm_row(p.x + (uint64_t)row * p.k, p.g, p.k, threadIdx.x % WARP, p.eps,
             [to](uint32_t at, float4 v) {
                 *reinterpret_cast<uint2 *>(to + at) = pack4<H>(v);
             });
}

/* Whether the kernel fits the device; *grid and p->stages are set. */
template <ocr_half H, product_kind KIND, int NT, bool LARGE>
bool fits(struct product *p, unsigned tiles, dim3 *grid)
{
    using k = kernel<H, KIND, NT, LARGE>;
    const unsigned processors = device_facts()->processors;
    const unsigned blocks = (p->n + k::MT * 16 - 1) / (k::MT * 16);

    /* One wave of blocks that go on to the next, if there are many. */
    *grid = dim3(blocks < processors * 2 ? blocks : processors,
                 (tiles + NT - 1) / NT);
    p->stages = k::stages_used((p->k + SPAN - 1) / SPAN *
                               ((blocks + grid->x - 1) / grid->x));
    return k::shared(p->k, p->stages) + 1024 <= device_facts()->shared;
}

template <ocr_half H, product_kind KIND, int NT, bool LARGE>
cudaError_t start_sized(cudaStream_t stream, const struct product *p, dim3 grid)
{
    return start(multiply<H, KIND, NT, LARGE>, grid, THREADS,
                 kernel<H, KIND, NT, LARGE>::shared(p->k, p->stages), stream,
                 true, *p);
}

template <ocr_half H, product_kind KIND, int NT>
cudaError_t start_tiles(cudaStream_t stream, struct product *p, unsigned tiles)
{
    dim3 grid;

    if (KIND != PRODUCT_ADD && !norms(KIND, NT)) {
        const cudaError_t rc = start(norm_batch<H>, dim3(tiles * 2), 4 * WARP,
                                     0, stream, true, *p);
        if (rc)
            return rc;
        p->in = p->normed;
        p->rows.early = true;
    }
    if (fits<H, KIND, NT, true>(p, tiles, &grid))
        return start_sized<H, KIND, NT, true>(stream, p, grid);
    if constexpr (KIND == PRODUCT_LOGITS) {
        return start_tiles<H, PRODUCT_STORE, NT>(stream, p, tiles);
    } else {
        fits<H, KIND, NT, false>(p, tiles, &grid);
        return start_sized<H, KIND, NT, false>(stream, p, grid);
    }
}

template <ocr_half H, product_kind KIND>
cudaError_t start_kind(cudaStream_t stream, struct product p, unsigned tiles)
{
    return tiles <= 1   ? start_tiles<H, KIND, 1>(stream, &p, tiles)
           : tiles <= 2 ? start_tiles<H, KIND, 2>(stream, &p, tiles)
           : tiles <= 4
               ? start_tiles<H, KIND, 4>(stream, &p, tiles)
               : start_tiles<H, KIND, most_tiles(KIND)>(stream, &p, tiles);
}

template <ocr_half H>
cudaError_t start_half(cudaStream_t stream, enum product_kind kind,
                       const struct product *p, unsigned tiles)
{
    switch (kind) {
    case PRODUCT_STORE:
        return start_kind<H, PRODUCT_STORE>(stream, *p, tiles);
    case PRODUCT_LOGITS:
        return start_kind<H, PRODUCT_LOGITS>(stream, *p, tiles);
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
    cudaError_t rc = prepare(multiply<H, KIND, NT, true>, most);

    if constexpr (KIND != PRODUCT_LOGITS)
        rc = rc ? rc : prepare(multiply<H, KIND, NT, false>, most);
    return rc;
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
    rc = rc ? rc : prepare_kind<H, PRODUCT_LOGITS>();
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

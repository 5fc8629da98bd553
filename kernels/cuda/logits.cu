/* The head times the rows of a decode step: as product.cu, but with so many
 * rows of weights that each warp takes 32 of them over all of k, in ascending
 * order, and needs no other. The batch rows are normalised once into shared
 * memory; then warps stream weights, without a barrier, until there are none
 * left. */
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"

namespace
{
enum {
    WARPS = 8,
    THREADS = WARPS * WARP,
    MT = 2,            /* row tiles of a warp */
    GROUP = 32,        /* columns at once: two mma */
    PIECE = WARP * 16, /* bytes: 16 of each lane */
    STAGE = MT * 2 * PIECE,
};

/* STAGES: groups under way. */
template <ocr_half H, int NT, int STAGES> struct streamer {
    static constexpr int RING = STAGES * STAGE; /* of a warp */

    static size_t shared(uint32_t k)
    {
        return WARPS * RING + NT * 8 * shared_row_bytes(k);
    }

    const struct product &p;
    char *rows;             /* shared: of the batch */
    uint32_t ring;          /* of the lane, shared address */
    const char *mine;       /* the same, generic */
    uint32_t live_rows[NT]; /* bits of each tile's rows, 4 apart */
    uint32_t warp, lane, g, t, first;
    uint32_t groups;      /* of k */
    uint32_t unit, units; /* of 32 rows of weights: of this warp, of all */

    __device__ streamer(const struct product &p, char *memory)
        : p(p), rows(memory + WARPS * RING), warp(threadIdx.x / WARP),
          lane(threadIdx.x % WARP), g(lane / 4), t(lane % 4),
          first(blockIdx.y * NT * 8), groups(p.k / GROUP),
          unit(blockIdx.x + warp * gridDim.x),
          units((p.n + MT * 16 - 1) / (MT * 16))
    {
        mine = memory + warp * RING + lane * 16;
        ring = shared_address(mine);
    }

    __device__ uint32_t next(uint32_t unit) const
    {
        return unit + gridDim.x * WARPS;
    }

    /* The next group of the walk over (unit, group). */
    struct place {
        uint32_t unit, group;
    };

    __device__ void step(struct place *at) const
    {
        if (++at->group == groups) {
            at->group = 0;
            at->unit = next(at->unit);
        }
    }

    __device__ void copy(struct place at, uint32_t stage) const
    {
        const uint32_t row = at.unit * MT * 16 + g;
        const uint16_t *from =
            p.w + (uint64_t)row * p.k + at.group * GROUP + t * 8;

        if (at.unit < units) {
#pragma unroll
            for (int i = 0; i < MT * 2; i++) {
                const bool valid = row + i * 8 < p.n;
                copy16(ring + stage * STAGE + i * PIECE,
                       valid ? from + (uint64_t)i * 8 * p.k : p.w, valid);
            }
        }
        copies_end_group();
    }

    __device__ void find_live(void)
    {
#pragma unroll
        for (int i = 0; i < NT; i++)
            live_rows[i] =
                __ballot_sync(~0u, is_live(p.rows, first + i * 8 + g));
    }

    __device__ void norm_rows(const float4 (&gains)[ROW_HELD]) const
    {
#pragma unroll
        for (uint32_t i = 0; i < NT; i++)
            if (live_rows[i] >> warp * 4 & 1)
                norm_to_shared<H>(rows + (i * 8 + warp) * shared_row_bytes(p.k),
                                  p.x + (uint64_t)(first + i * 8 + warp) * p.k,
                                  gains, p.g, p.k, lane, p.eps);
        __syncthreads();
    }

    __device__ void multiply(float (&c)[MT][NT][4], uint32_t group,
                             uint32_t stage) const
    {
        uint4 a[MT * 2];

#pragma unroll
        for (int i = 0; i < MT * 2; i++)
            a[i] = *reinterpret_cast<const uint4 *>(mine + stage * STAGE +
                                                    i * PIECE);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            const uint4 b = *reinterpret_cast<const uint4 *>(
                rows + (i * 8 + g) * shared_row_bytes(p.k) + group * 64 +
                t * 16);
#pragma unroll
            for (int m = 0; m < MT; m++)
                mma<H>(c[m][i], a[2 * m].x, a[2 * m + 1].x, a[2 * m].y,
                       a[2 * m + 1].y, b.x, b.y);
#pragma unroll
            for (int m = 0; m < MT; m++)
                mma<H>(c[m][i], a[2 * m].z, a[2 * m + 1].z, a[2 * m].w,
                       a[2 * m + 1].w, b.z, b.w);
        }
    }

    __device__ void put(const float (&c)[MT][NT][4]) const
    {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const uint32_t row = t * 2 + j % 2;
                    const uint32_t n = (unit * MT + m) * 16 + g + j / 2 * 8;

                    if (n < p.n && live_rows[i] >> row * 4 & 1)
                        __stcs(static_cast<float *>(p.out) +
                                   (uint64_t)(first + i * 8 + row) * p.n + n,
                               c[m][i][j]);
                }
    }

    __device__ void run(void)
    {
        float4 gains[ROW_HELD];
        struct place ahead = {unit, 0};

        allow_next();
        for (uint32_t i = 0; i < STAGES; i++, step(&ahead))
            copy(ahead, i);
        load_gains(gains, p.g, p.k, lane);
        find_live();
        await_previous();
        norm_rows(gains);
        for (uint32_t stage = 0; unit < units; unit = next(unit)) {
            float c[MT][NT][4] = {};

            for (uint32_t group = 0; group < groups; group++) {
                copies_wait<STAGES - 1>();
                multiply(c, group, stage);
                copy(ahead, stage);
                step(&ahead);
                stage = (stage + 1) % STAGES;
            }
            put(c);
        }
        copies_wait<0>();
    }
};

template <ocr_half H, int NT, int STAGES>
__global__ void __launch_bounds__(THREADS, 1) stream_head(struct product p)
{
    extern __shared__ __align__(128) char memory[];
    streamer<H, NT, STAGES> s(p, memory);

    s.run();
}

template <ocr_half H, int NT, int STAGES = 4>
cudaError_t start_tiles(cudaStream_t stream, const struct product *p,
                        unsigned tiles)
{
    const unsigned units = (p->n + MT * 16 - 1) / (MT * 16);
    const unsigned blocks = (units + WARPS - 1) / WARPS;
    const unsigned most = device_facts()->processors;

    return start(stream_head<H, NT, STAGES>,
                 dim3(blocks < most ? blocks : most, (tiles + NT - 1) / NT),
                 THREADS, streamer<H, NT, STAGES>::shared(p->k), stream, true,
                 *p);
}

template <ocr_half H, int NT> bool fits(uint32_t k)
{
    return streamer<H, NT, 4>::shared(k) + 1024 <= device_facts()->shared;
}

/* As many rows as there is room for; the rest are more blocks. On sm_75 half of
 * the weights, too. */
template <ocr_half H>
cudaError_t start_half(cudaStream_t stream, const struct product *p,
                       unsigned tiles)
{
    if (tiles > 4 && fits<H, 8>(p->k))
        return start_tiles<H, 8>(stream, p, tiles);
    if (tiles > 2 && fits<H, 4>(p->k))
        return start_tiles<H, 4>(stream, p, tiles);
    if (tiles > 1 && fits<H, 2>(p->k))
        return start_tiles<H, 2>(stream, p, tiles);
    if (fits<H, 1>(p->k))
        return start_tiles<H, 1>(stream, p, tiles);
    return start_tiles<H, 1, 2>(stream, p, tiles);
}

template <ocr_half H> cudaError_t prepare_all(void)
{
    const size_t most = 1 << 20;
    cudaError_t rc = prepare(stream_head<H, 1, 2>, most);

    rc = rc ? rc : prepare(stream_head<H, 1, 4>, most);
    rc = rc ? rc : prepare(stream_head<H, 2, 4>, most);
    rc = rc ? rc : prepare(stream_head<H, 4, 4>, most);
    return rc ? rc : prepare(stream_head<H, 8, 4>, most);
}
} // namespace

cudaError_t logits_start(cudaStream_t stream, ocr_half half,
                         const struct product *p, unsigned tiles)
{
    return half == OCR_HALF_BF16 ? start_half<OCR_HALF_BF16>(stream, p, tiles)
                                 : start_half<OCR_HALF_FP16>(stream, p, tiles);
}

cudaError_t prepare_logits(ocr_half half)
{
    return half == OCR_HALF_BF16 ? prepare_all<OCR_HALF_BF16>()
                                 : prepare_all<OCR_HALF_FP16>();
}

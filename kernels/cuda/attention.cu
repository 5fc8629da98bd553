/* Attention over many rows, without a matrix of scores: a block takes a tile
 * of queries of one head and walks over the keys in tiles of 64, from key 0
 * on, with a running maximum and sum for each row. Keys that a row must not
 * see change nothing, so its bits do not depend on the rows beside it.
 *
 * A warp holds MT times 16 queries; scores and P stay in registers: what an
 * mma leaves behind is what the next one takes. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"

namespace
{
enum {
    WARPS = 4,
    THREADS = WARPS * WARP,
    KEYS = 64,
};

/* Vision: q, k, v [heads][patches][64]; everyone sees everyone. TILES: of keys
 * under way; with one, the next is copied when it is done with (sm_75, where
 * copies are not asynchronous anyway). */
template <int TILES> struct page_view {
    static constexpr int DIM = CUDA_VISION_DIM;
    static constexpr int MT = 2;
    static constexpr int STAGES = TILES;
    static constexpr bool CAUSAL = false;
    uint16_t *out_rows;
    const uint16_t *q_rows, *k_rows, *v_rows;
    uint32_t rows, heads;

    __device__ const uint16_t *q(uint32_t row, uint32_t head) const
    {
        return q_rows + ((uint64_t)head * rows + row) * DIM;
    }

    /* Piece `piece` of a key, or of its value. */
    __device__ const void *key(uint32_t head, uint32_t key, uint32_t piece,
                               bool value) const
    {
        return (value ? v_rows : k_rows) + ((uint64_t)head * rows + key) * DIM +
               piece * 8;
    }

    __device__ uint32_t keys(uint32_t) const
    {
        return rows;
    }

    __device__ uint16_t *out(uint32_t row, uint32_t head) const
    {
        return out_rows + ((uint64_t)row * heads + head) * DIM;
    }
};

/* Prefill: q [rows][heads][128], keys in the blocks of the page; row r sees
 * keys 0 to first + r. */
template <int TILES> struct text_view {
    static constexpr int DIM = CUDA_TEXT_DIM;
    static constexpr int MT = 1;
    static constexpr int STAGES = TILES;
    static constexpr bool CAUSAL = true;
    uint16_t *out_rows;
    const uint16_t *q_rows;
    struct cuda_prefill p;
    uint32_t rows, heads;

    __device__ const uint16_t *q(uint32_t row, uint32_t head) const
    {
        return q_rows + ((uint64_t)row * heads + head) * DIM;
    }

    __device__ const void *key(uint32_t head, uint32_t key, uint32_t piece,
                               bool value) const
    {
        const uint64_t block =
            (uint64_t)p.layer * p.kv.blocks + __ldg(p.table + key / 16);
        const uint32_t kv_head = head / (heads / p.kv.kv_heads);

        return p.kv.data +
               ((block * p.kv.kv_heads + kv_head) * 2 + value) * 16 * DIM +
               key % 16 * DIM + (piece ^ (key & 7)) * 8;
    }

    /* Of all that some row below `end` sees. */
    __device__ uint32_t keys(uint32_t end) const
    {
        return p.first + (end < rows ? end : rows);
    }

    __device__ uint16_t *out(uint32_t row, uint32_t head) const
    {
        return out_rows + ((uint64_t)row * heads + head) * DIM;
    }
};

template <ocr_half H, typename View> struct attention {
    static constexpr int DIM = View::DIM, MT = View::MT;
    static constexpr int STAGES = View::STAGES;
    static constexpr uint32_t ONES =
        H == OCR_HALF_BF16 ? 0x3f803f80 : 0x3c003c00;
    static constexpr int QUERIES = WARPS * MT * 16;
    static constexpr int PIECES = DIM / 8;           /* of a row */
    static constexpr int KEY_BYTES = KEYS * DIM * 2; /* of a tile of K or V */
    static constexpr int STAGE = 2 * KEY_BYTES;
    static constexpr size_t SHARED = STAGES * STAGE + QUERIES * DIM * 2;

    const View &view;
    uint32_t memory, warp, lane, head, first, keys;
    float most[MT][2]; /* of rows g and g + 8 of each 16 */
    float sum[MT][4];  /* of P: as one more eight of dimensions, all ones */
    float o[MT][DIM / 8][4];
    uint32_t q[MT][DIM / 16][4];

    __device__ attention(const View &view, uint32_t memory)
        : view(view), memory(memory), warp(threadIdx.x / WARP),
          lane(threadIdx.x % WARP), head(blockIdx.y),
          /* The longest first. */
          first((gridDim.x - 1 - blockIdx.x) * QUERIES),
          keys(view.keys(first + QUERIES))
    {
#pragma unroll
        for (int m = 0; m < MT; m++) {
            most[m][0] = most[m][1] = -INFINITY;
            sum[m][0] = sum[m][1] = sum[m][2] = sum[m][3] = 0;
#pragma unroll
            for (int i = 0; i < DIM / 8; i++)
                o[m][i][0] = o[m][i][1] = o[m][i][2] = o[m][i][3] = 0;
        }
    }

    /* Where piece `piece` of row `row` of a tile lies. */
    __device__ uint32_t place(uint32_t tile, uint32_t row, uint32_t piece) const
    {
        return tile + row * (DIM * 2) + (piece ^ (row & 7)) * 16;
    }

    __device__ uint32_t stage(uint32_t tile) const
    {
        return memory + tile % STAGES * STAGE;
    }

    __device__ void copy_tile(uint32_t tile) const
    {
        if (tile * KEYS < keys) {
#pragma unroll
            for (int i = 0; i < KEYS * PIECES / THREADS; i++) {
                const uint32_t n = i * THREADS + threadIdx.x;
                const uint32_t row = n / PIECES, key = tile * KEYS + row;
                const uint32_t to = place(stage(tile), row, n % PIECES);
                const bool valid = key < keys;
                const uint32_t from = valid ? key : 0;

                copy16(to, view.key(head, from, n % PIECES, false), valid);
                copy16(to + KEY_BYTES, view.key(head, from, n % PIECES, true),
                       valid);
            }
        }
        copies_end_group();
    }

    __device__ void copy_queries(void) const
    {
#pragma unroll
        for (int i = 0; i < QUERIES * PIECES / THREADS; i++) {
            const uint32_t n = i * THREADS + threadIdx.x;
            const uint32_t row = n / PIECES;
            const bool valid = first + row < view.rows;

            copy16(place(memory + STAGES * STAGE, row, n % PIECES),
                   view.q(valid ? first + row : 0, head) + n % PIECES * 8,
                   valid);
        }
    }

    __device__ void load_queries(void)
    {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < DIM / 16; i++)
                load_matrices(q[m][i], place(memory + STAGES * STAGE,
                                             (warp * MT + m) * 16 + lane % 16,
                                             i * 2 + lane / 16));
    }

    __device__ void scores(float (&s)[MT][KEYS / 8][4], uint32_t tile) const
    {
        const uint32_t row = lane / 16 * 8 + lane % 8;

#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    s[m][n * 2][j] = s[m][n * 2 + 1][j] = 0;
#pragma unroll
            for (int i = 0; i < DIM / 16; i++) {
                uint32_t k[4];

                load_matrices(
                    k, place(stage(tile), n * 16 + row, i * 2 + lane / 8 % 2));
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    mma<H>(s[m][n * 2], q[m][i][0], q[m][i][1], q[m][i][2],
                           q[m][i][3], k[0], k[1]);
                    mma<H>(s[m][n * 2 + 1], q[m][i][0], q[m][i][1], q[m][i][2],
                           q[m][i][3], k[2], k[3]);
                }
            }
        }
    }

    /* Scores of keys that a row must not see. */
    __device__ void hide(float (&s)[MT][KEYS / 8][4], uint32_t tile) const
    {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const uint32_t key =
                        tile * KEYS + n * 8 + lane % 4 * 2 + j % 2;
                    const uint32_t row =
                        first + (warp * MT + m) * 16 + lane / 4 + j / 2 * 8;

                    if (key >= (View::CAUSAL ? view.keys(row + 1) : keys))
                        s[m][n][j] = -INFINITY;
                }
    }

    /* Rows g (half 0) or g + 8 (half 1) of m: scores become p, before they
     * are rounded; what is there is scaled to the new maximum. */
    __device__ void weigh(float (&s)[KEYS / 8][4], int m, int half)
    {
        const float scale =
            (DIM == 64 ? 0.125f : 0.08838834764831845f) * 1.4426950408889634f;
        float high = most[m][half], shift, old;

#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            high = fmaxf(high, fmaxf(s[n][half * 2], s[n][half * 2 + 1]));
        high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
        high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
        shift = high * scale;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            s[n][half * 2] = exp2_fast(s[n][half * 2] * scale - shift);
            s[n][half * 2 + 1] = exp2_fast(s[n][half * 2 + 1] * scale - shift);
        }
        /* Exactly one if nothing has grown, which changes no bit: mostly so
         * for the whole warp after some tiles. */
        old = exp2_fast((most[m][half] - high) * scale);
        most[m][half] = high;
        if (!__any_sync(~0u, old != 1))
            return;
        sum[m][half * 2] *= old;
        sum[m][half * 2 + 1] *= old;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            o[m][n][half * 2] *= old;
            o[m][n][half * 2 + 1] *= old;
        }
    }

    __device__ void add_values(const float (&s)[MT][KEYS / 8][4], uint32_t tile)
    {
        const uint32_t row = lane / 8 % 2 * 8 + lane % 8;

#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            uint32_t p[MT][4];

#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float *of = s[m][n * 2 + j / 2] + j % 2 * 2;
                    p[m][j] = pack<H>(of[0], of[1]);
                }
#pragma unroll
            for (int m = 0; m < MT; m++)
                mma<H>(sum[m], p[m][0], p[m][1], p[m][2], p[m][3], ONES, ONES);
#pragma unroll
            for (int i = 0; i < DIM / 16; i++) {
                uint32_t v[4];

                load_transposed(v, place(stage(tile) + KEY_BYTES, n * 16 + row,
                                         i * 2 + lane / 16));
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    mma<H>(o[m][i * 2], p[m][0], p[m][1], p[m][2], p[m][3],
                           v[0], v[1]);
                    mma<H>(o[m][i * 2 + 1], p[m][0], p[m][1], p[m][2], p[m][3],
                           v[2], v[3]);
                }
            }
        }
    }

    __device__ void run_tile(uint32_t tile)
    {
        float s[MT][KEYS / 8][4];

        scores(s, tile);
        if ((tile + 1) * KEYS > (View::CAUSAL ? view.keys(first + 1) : keys))
            hide(s, tile);
#pragma unroll
        for (int m = 0; m < MT; m++) {
            weigh(s[m], m, 0);
            weigh(s[m], m, 1);
        }
        add_values(s, tile);
    }

    __device__ void store(void)
    {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t row =
                    first + (warp * MT + m) * 16 + lane / 4 + half * 8;
                const float all = 1 / sum[m][half * 2];
                if (row >= view.rows)
                    continue;
                uint32_t *to =
                    reinterpret_cast<uint32_t *>(view.out(row, head));
#pragma unroll
                for (int n = 0; n < DIM / 8; n++)
                    to[n * 4 + lane % 4] = pack<H>(o[m][n][half * 2] * all,
                                                   o[m][n][half * 2 + 1] * all);
            }
    }

    __device__ void run(void)
    {
        const uint32_t tiles = (keys + KEYS - 1) / KEYS;

        copy_queries();
        for (int i = 0; i < STAGES - 1; i++)
            copy_tile(i);
        for (uint32_t tile = 0; tile < tiles; tile++) {
            if (STAGES == 1) {
                __syncthreads(); /* done with the one before */
                copy_tile(tile);
            }
            copies_wait<STAGES == 1 ? 0 : STAGES - 2>();
            __syncthreads();
            if (!tile)
                load_queries();
            if (STAGES > 1)
                copy_tile(tile + STAGES - 1);
            run_tile(tile);
        }
        copies_wait<0>();
        store();
    }
};

template <ocr_half H, typename View>
__global__ void __launch_bounds__(THREADS, 2) attend_tiles(View view)
{
    extern __shared__ __align__(128) char memory[];
    attention<H, View> a(view, shared_address(memory));

    a.run();
}

template <ocr_half H, typename View>
cudaError_t start_view(cudaStream_t stream, const View &view)
{
    using a = attention<H, View>;

    const dim3 grid((view.rows + a::QUERIES - 1) / a::QUERIES, view.heads);

    return start(attend_tiles<H, View>, grid, THREADS, a::SHARED, stream, false,
                 view);
}

template <ocr_half H, typename View> bool fits(void)
{
    return attention<H, View>::SHARED + 1024 <= device_facts()->shared;
}

/* As many tiles under way as there is room for: 99 KiB on sm_86 and sm_120,
 * 64 on sm_75. */
template <ocr_half H>
cudaError_t start_page(cudaStream_t stream, uint16_t *out, const uint16_t *q,
                       const uint16_t *k, const uint16_t *v, uint32_t patches,
                       uint32_t heads)
{
    if (fits<H, page_view<3>>())
        return start_view<H>(stream,
                             page_view<3>{out, q, k, v, patches, heads});
    return start_view<H>(stream, page_view<1>{out, q, k, v, patches, heads});
}

template <ocr_half H>
cudaError_t start_text(cudaStream_t stream, const struct cuda_prefill *p,
                       uint16_t *out, const uint16_t *q)
{
    static_assert(attention<H, text_view<2>>::SHARED <= 98 * 1024 &&
                      attention<H, page_view<3>>::SHARED <= 98 * 1024,
                  "what sm_86 and sm_120 have");
    static_assert(attention<H, text_view<1>>::SHARED <= CUDA_LEAST_SHARED &&
                      attention<H, page_view<1>>::SHARED <= CUDA_LEAST_SHARED,
                  "what every card has");
    if (fits<H, text_view<3>>())
        return start_view<H>(stream,
                             text_view<3>{out, q, *p, p->rows, p->heads});
    if (fits<H, text_view<2>>())
        return start_view<H>(stream,
                             text_view<2>{out, q, *p, p->rows, p->heads});
    return start_view<H>(stream, text_view<1>{out, q, *p, p->rows, p->heads});
}

template <ocr_half H, typename View> cudaError_t prepare_view(void)
{
    return prepare(attend_tiles<H, View>, attention<H, View>::SHARED);
}

template <ocr_half H> cudaError_t prepare_half(void)
{
    cudaError_t rc = prepare_view<H, page_view<3>>();

    rc = rc ? rc : prepare_view<H, page_view<1>>();
    rc = rc ? rc : prepare_view<H, text_view<3>>();
    rc = rc ? rc : prepare_view<H, text_view<2>>();
    return rc ? rc : prepare_view<H, text_view<1>>();
}
} // namespace

cudaError_t cuda_vision_attention(cudaStream_t stream, enum ocr_half half,
                                  uint16_t *out, const uint16_t *q,
                                  const uint16_t *k, const uint16_t *v,
                                  uint32_t patches, uint32_t heads)
{
    if (device_facts()->warpgroups)
        return page_attention_start(stream, half, out, q, k, v, patches, heads);
    return half == OCR_HALF_BF16
               ? start_page<OCR_HALF_BF16>(stream, out, q, k, v, patches, heads)
               : start_page<OCR_HALF_FP16>(stream, out, q, k, v, patches,
                                           heads);
}

cudaError_t cuda_prefill_attention(cudaStream_t stream, enum ocr_half half,
                                   const struct cuda_prefill *p, uint16_t *out,
                                   const uint16_t *q)
{
    return half == OCR_HALF_BF16 ? start_text<OCR_HALF_BF16>(stream, p, out, q)
                                 : start_text<OCR_HALF_FP16>(stream, p, out, q);
}

cudaError_t prepare_attention(ocr_half half)
{
    return half == OCR_HALF_BF16 ? prepare_half<OCR_HALF_BF16>()
                                 : prepare_half<OCR_HALF_FP16>();
}

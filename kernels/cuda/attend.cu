/* Decode attention: the new token of each row against its page, in splits of
 * 256 tokens from token 0, merged in ascending order by the block that ends
 * last: a row's bits depend on its page alone.
 *
 * Work is a list of (row, split) times kv heads, walked by a fixed number of
 * blocks. A block has 4 warps; each copies for itself: first K of its 64
 * tokens (a tile is a block of 16 tokens, 4 KiB), then V of its 32 dimensions
 * (a tile is 64 tokens, 4 KiB), through a ring that goes on into the next
 * item, so that no copy waits for a barrier. Scores are K (16 tokens) times q
 * (8 columns, one for each head of the group), the result is V^T (16
 * dimensions) times P.
 *
 * Tokens before the new one were there long ago: their copies start before the
 * kernel with q, k, v has ended. */
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"

namespace
{
enum {
    WARPS = 4,
    THREADS = WARPS * WARP,
    DIM = CUDA_TEXT_DIM,
    TILE = 4096,                          /* bytes of a warp's copy */
    STEPS = 8,                            /* of an item: 4 of K, 4 of V */
    BLOCKS = CUDA_SPLIT / CUDA_KV_TOKENS, /* of a split */
    BLOCK_BYTES = CUDA_KV_TOKENS * DIM * 2,
    AT_ONCE = 8, /* splits that a merge reads ahead */
};

struct attend {
    const float *qkv, *q_norm, *k_norm, *cosine, *sine;
    float eps;
    char *kv; /* of the layer */
    const uint32_t *tables;
    uint32_t slot_blocks, heads, kv_heads, splits;
    const struct step_row *row;
    const uint32_t *item;
    uint32_t *done;
    float *split;
    float2 *split_sum;
    uint16_t *out;
};

/* Shared memory beside the ring. */
template <int G> struct board {
    __align__(16) uint16_t k[DIM], v[DIM]; /* of the new token */
    uint16_t q[G][DIM + 8];
    uint16_t p[G][CUDA_SPLIT + 8];
    float score[G][CUDA_SPLIT];
    uint32_t last;
};

struct item {
    uint32_t row, head, split, position;
    uint32_t block; /* lane i: number of block i % 16 of the split */

    /* Tokens of the split, the new one included. */
    __device__ uint32_t count(void) const
    {
        const uint32_t left = position + 1 - split * CUDA_SPLIT;
        return left < CUDA_SPLIT ? left : CUDA_SPLIT;
    }

    __device__ bool has_new(void) const
    {
        return position / CUDA_SPLIT == split;
    }

    __device__ uint32_t new_token(void) const
    {
        return position % CUDA_SPLIT;
    }
};

template <ocr_half H, int G, int RING> struct attender {
    const struct attend &a;
    char *ring; /* of the warp */
    struct board<G> &s;
    uint32_t warp, lane, g, t, items;

    __device__ attender(const struct attend &a, char *memory,
                        struct board<G> &s)
        : a(a), s(s), warp(threadIdx.x / WARP), lane(threadIdx.x % WARP),
          g(lane / 4), t(lane % 4), items(__ldcg(a.item) * a.kv_heads)
    {
        ring = memory + warp * RING * TILE;
    }

    __device__ struct item find(uint32_t number) const
    {
        struct item i = {};

        if (number >= items)
            return i;
        const uint32_t entry = __ldcg(a.item + 1 + number / a.kv_heads);
        i.row = entry >> 16;
        i.split = entry & 0xffff;
        i.head = number % a.kv_heads;
        i.position = __ldcg(&a.row[i.row].position);
        const uint64_t first =
            (uint64_t)__ldcg(&a.row[i.row].slot) * a.slot_blocks;
        const uint32_t block = i.split * BLOCKS + lane % BLOCKS;
        if (block * CUDA_KV_TOKENS <= i.position)
            i.block = __ldcg(a.tables + first + block);
        return i;
    }

    /* K of the item's head in block `number`; V follows. */
    __device__ char *block_at(const struct item &i, uint32_t number) const
    {
        return a.kv +
               ((uint64_t)number * a.kv_heads + i.head) * 2 * BLOCK_BYTES;
    }

    /* The warp's 16 tokens `tile` of K, as they are; the new one is not there
     * yet. */
    __device__ void copy_k(const struct item &i, int tile, uint32_t to) const
    {
        const uint32_t block = warp * 4 + tile;
        const char *from =
            block_at(i, __shfl_sync(~0u, i.block, block)) + lane * 16;
        const int old =
            (int)i.position - (int)(i.split * CUDA_SPLIT + block * 16);

        if (old <= 0)
            return;
#pragma unroll
        for (int j = 0; j < 8; j++)
            copy16(to + lane * 16 + j * 512, from + j * 512,
                   (int)(j * 2 + lane / 16) < old);
    }

    /* The warp's 32 dimensions of 64 tokens of V: [64][4 pieces], piece c of
     * token n at c ^ n / 2 % 4. */
    __device__ void copy_v(const struct item &i, int tile, uint32_t to) const
    {
        const int old =
            (int)i.position - (int)(i.split * CUDA_SPLIT + tile * 64);

        if (old < 0)
            return;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t n = j * 8 + lane / 4, piece = warp * 4 + lane % 4;
            const uint32_t block = __shfl_sync(~0u, i.block, tile * 4 + j / 2);
            const char *from = block_at(i, block) + BLOCK_BYTES +
                               n % 16 * (DIM * 2) + (piece ^ (n & 7)) * 16;
            copy16(to + n * 64 + (lane % 4 ^ n / 2 % 4) * 16, from,
                   (int)n < old);
        }
    }

    __device__ void copy(const struct item &i, bool there, int step) const
    {
        const uint32_t to = shared_address(ring) + step % RING * TILE;

        if (there && step < 4)
            copy_k(i, step, to);
        else if (there)
            copy_v(i, step - 4, to);
        copies_end_group();
    }

    /* Of the item's step + RING. */
    __device__ void copy_ahead(const struct item &i, const struct item &next,
                               bool more, int step) const
    {
        if (step + RING < STEPS)
            copy(i, true, step + RING);
        else
            copy(next, more, step + RING - STEPS);
    }

    /* A row of 128 as a warp holds it: x, y = 2 lane, 2 lane + 1, and z, w
     * those + 64: norm, rotation. */
    __device__ float4 prepare(const float *from, const float *norm,
                              uint32_t position) const
    {
        const float2 *x = reinterpret_cast<const float2 *>(from) + lane;
        const float2 low = __ldcg(x), high = __ldcg(x + 32);
        const float2 *w = reinterpret_cast<const float2 *>(norm) + lane;
        const float2 wl = __ldg(w), wh = __ldg(w + 32);
        const uint64_t at = (uint64_t)position * (DIM / 4) + lane;
        const float2 c = __ldg(reinterpret_cast<const float2 *>(a.cosine) + at);
        const float2 n = __ldg(reinterpret_cast<const float2 *>(a.sine) + at);

        return norm_rotate(make_float4(low.x, low.y, high.x, high.y),
                           make_float4(wl.x, wl.y, wh.x, wh.y), c, n, a.eps);
    }

    __device__ void put_row(uint16_t *to, float4 v) const
    {
        reinterpret_cast<uint32_t *>(to)[lane] = pack<H>(v.x, v.y);
        reinterpret_cast<uint32_t *>(to + DIM / 2)[lane] = pack<H>(v.z, v.w);
    }

    /* q of the group; k and v of the new token if it is in this split. */
    __device__ void prologue(const struct item &i) const
    {
        const uint32_t width = (a.heads + 2 * a.kv_heads) * DIM;
        const float *row = a.qkv + (uint64_t)i.row * width;
        const float *k = row + (a.heads + i.head) * DIM;

        for (uint32_t j = warp; j < G + 2 * i.has_new(); j += WARPS) {
            if (j < G)
                put_row(s.q[j], prepare(row + (i.head * G + j) * DIM, a.q_norm,
                                        i.position));
            else if (j == G)
                put_row(s.k, prepare(k, a.k_norm, i.position));
            else
                put_row(s.v, plain(k + a.kv_heads * DIM));
        }
        __syncthreads();
    }

    __device__ float4 plain(const float *from) const
    {
        const float2 *x = reinterpret_cast<const float2 *>(from) + lane;
        const float2 low = __ldcg(x), high = __ldcg(x + 32);

        return make_float4(low.x, low.y, high.x, high.y);
    }

    /* k and v of the new token to the cache: 16 pieces each. */
    __device__ void store_new(const struct item &i) const
    {
        const uint32_t n = i.new_token(), piece = lane % 16;
        const uint32_t number = __shfl_sync(~0u, i.block, n / CUDA_KV_TOKENS);
        char *to = block_at(i, number) + n % CUDA_KV_TOKENS * (DIM * 2) +
                   (piece ^ (n & 7)) * 16;

        if (warp)
            return;
        *reinterpret_cast<uint4 *>(to + lane / 16 * BLOCK_BYTES) =
            reinterpret_cast<const uint4 *>(lane < 16 ? s.k : s.v)[piece];
    }

    /* The new token's k into the tile that has just come. */
    __device__ void patch_k(const struct item &i, int tile) const
    {
        const uint32_t n = i.new_token();

        if (i.has_new() && n / 16 == warp * 4 + tile) {
            if (lane < 16)
                reinterpret_cast<uint4 *>(
                    ring + tile % RING * TILE)[n % 16 * 16 + (lane ^ (n & 7))] =
                    reinterpret_cast<const uint4 *>(s.k)[lane];
            __syncwarp();
        }
    }

    __device__ void patch_v(const struct item &i, int tile) const
    {
        const uint32_t n = i.new_token();

        if (i.has_new() && n / 64 == tile) {
            if (lane < 4)
                reinterpret_cast<uint4 *>(
                    ring +
                    (tile + 4) % RING * TILE)[n % 64 * 4 + (lane ^ n / 2 % 4)] =
                    reinterpret_cast<const uint4 *>(s.v)[warp * 4 + lane];
            __syncwarp();
        }
    }

    /* Fragments of q: column g is head g of the group. */
    __device__ void load_q(uint32_t (&b)[8][2]) const
    {
        const uint32_t *q = reinterpret_cast<const uint32_t *>(s.q[g % G]);

#pragma unroll
        for (int i = 0; i < 8; i++) {
            b[i][0] = g < G ? q[i * 8 + t] : 0;
            b[i][1] = g < G ? q[i * 8 + t + 4] : 0;
        }
    }

    __device__ void scores(int tile, const uint32_t (&b)[8][2]) const
    {
        const uint32_t from =
            shared_address(ring) + tile % RING * TILE + lane % 16 * (DIM * 2);
        const uint32_t n = (warp * 4 + tile) * 16 + g;
        /* 1 / sqrt(128), for powers of two. */
        const float scale = 0.08838834764831845f * 1.4426950408889634f;
        float c[4] = {};

#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t k[4];

            load_matrices(k, from + ((i * 2 + lane / 16) ^ (lane & 7)) * 16);
            mma<H>(c, k[0], k[1], k[2], k[3], b[i][0], b[i][1]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (t * 2 + i % 2 < G)
                s.score[t * 2 + i % 2][n + i / 2 * 8] = c[i] * scale;
    }

    /* Scores become P; a warp for each head. */
    __device__ void weigh(const struct item &i) const
    {
        const uint32_t count = i.count();
        float x[8], most = -INFINITY, sum = 0;

        if (warp >= G)
            return;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t n = j * WARP + lane;
            x[j] = n < count ? s.score[warp][n] : -INFINITY;
            most = fmaxf(most, x[j]);
        }
        most = warp_max(most);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t p = pack<H>(exp2_fast(x[j] - most), 0);
            s.p[warp][j * WARP + lane] = (uint16_t)p;
            sum += unpack<H>(p).x;
        }
        sum = warp_sum(sum);
        if (!lane)
            a.split_sum[part(i, warp)] = make_float2(most, sum);
    }

    /* Number of a partial result. */
    __device__ uint64_t part(const struct item &i, uint32_t head) const
    {
        return ((uint64_t)i.row * a.heads + i.head * G + head) * a.splits +
               i.split;
    }

    __device__ void values(const struct item &i, int tile,
                           float (&c)[2][4]) const
    {
        const uint32_t from = shared_address(ring) + (tile + 4) % RING * TILE;
        const uint32_t *p = reinterpret_cast<const uint32_t *>(s.p[g % G]);
        const uint32_t row = lane / 16 * 8 + lane % 8, count = i.count();

#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t n = j * 16 + row, first = tile * 64 + j * 16;

            if (first >= count)
                return;
            const uint32_t b0 = g < G ? p[first / 2 + t] : 0;
            const uint32_t b1 = g < G ? p[first / 2 + t + 4] : 0;
#pragma unroll
            for (int m = 0; m < 2; m++) {
                uint32_t v[4];

                load_transposed(v,
                                from + n * 64 +
                                    ((m * 2 + lane / 8 % 2) ^ n / 2 % 4) * 16);
                mma<H>(c[m], v[0], v[1], v[2], v[3], b0, b1);
            }
        }
    }

    __device__ void store_part(const struct item &i,
                               const float (&c)[2][4]) const
    {
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (t * 2 + j % 2 < G)
                    a.split[part(i, t * 2 + j % 2) * DIM + warp * 32 + m * 16 +
                            j / 2 * 8 + g] = c[m][j];
    }

    /* Whether this block is the last of its row and head. */
    __device__ bool is_last(const struct item &i)
    {
        uint32_t *done = a.done + i.row * a.kv_heads + i.head;

        __threadfence();
        __syncthreads();
        if (!threadIdx.x) {
            s.last = atomicAdd(done, 1) == i.position / CUDA_SPLIT;
            if (s.last)
                *done = 0;
        }
        __syncthreads();
        return s.last;
    }

    /* All splits of a head, ascending; a thread a dimension. */
    __device__ void merge(const struct item &i, uint32_t head) const
    {
        const uint32_t splits = i.position / CUDA_SPLIT + 1;
        const uint64_t first = part(i, head) - i.split;
        float most = -INFINITY, sum = 0, acc = 0;

        for (uint32_t j = 0; j < splits; j += AT_ONCE) {
            float2 of[AT_ONCE];
            float v[AT_ONCE];

#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                if (j + k < splits) {
                    of[k] = __ldcg(a.split_sum + first + j + k);
                    v[k] =
                        __ldcg(a.split + (first + j + k) * DIM + threadIdx.x);
                }
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                if (j + k < splits) {
                    const float all = fmaxf(most, of[k].x);
                    const float old = exp2_fast(most - all);
                    const float now = exp2_fast(of[k].x - all);

                    sum = sum * old + of[k].y * now;
                    acc = acc * old + v[k] * now;
                    most = all;
                }
        }
        a.out[((uint64_t)i.row * a.heads + i.head * G + head) * DIM +
              threadIdx.x] = round16<H>(acc * (1 / sum));
    }

    __device__ void run_item(const struct item &i, const struct item &next,
                             bool more)
    {
        uint32_t b[8][2];
        float c[2][4] = {};

        prologue(i);
        load_q(b);
        if (i.has_new())
            store_new(i);
#pragma unroll
        for (int step = 0; step < 4; step++) {
            copies_wait<RING - 1>();
            __syncwarp();
            patch_k(i, step);
            if ((warp * 4 + step) * 16 < i.count())
                scores(step, b);
            __syncwarp();
            copy_ahead(i, next, more, step);
        }
        __syncthreads();
        weigh(i);
        __syncthreads();
#pragma unroll
        for (int step = 4; step < STEPS; step++) {
            copies_wait<RING - 1>();
            __syncwarp();
            patch_v(i, step - 4);
            values(i, step - 4, c);
            __syncwarp();
            copy_ahead(i, next, more, step);
        }
        store_part(i, c);
        if (is_last(i)) {
            __threadfence();
            for (uint32_t head = 0; head < G; head++)
                merge(i, head);
        }
    }

    __device__ void run(void)
    {
        uint32_t number = blockIdx.x;
        struct item i = find(number);

#pragma unroll
        for (int step = 0; step < RING; step++)
            copy(i, number < items, step);
        await_previous();
        allow_next();
        while (number < items) {
            number += gridDim.x;
            const struct item next = find(number);
            run_item(i, next, number < items);
            i = next;
        }
        copies_wait<0>();
    }
};

template <ocr_half H, int G, int RING>
__global__ void __launch_bounds__(THREADS, RING == 4 ? 3 : 1)
    attend_splits(struct attend a)
{
    extern __shared__ __align__(128) char memory[];
    __shared__ struct board<G> s;
    attender<H, G, RING> worker(a, memory, s);

    worker.run();
}

template <ocr_half H, int G>
cudaError_t start_group(cudaStream_t stream, const struct attend *a,
                        unsigned tiles)
{
    const unsigned n = device_facts()->processors;
    const size_t large = WARPS * 8 * TILE + sizeof(struct board<G>);

    /* Few pages: all of an item at once. Many: three blocks a processor. */
    if (tiles <= 1 && large + 1024 <= device_facts()->shared)
        return start(attend_splits<H, G, 8>, dim3(n), THREADS, WARPS * 8 * TILE,
                     stream, true, *a);
    return start(attend_splits<H, G, 4>, dim3(n * 3), THREADS, WARPS * 4 * TILE,
                 stream, true, *a);
}

template <ocr_half H>
cudaError_t start_half(cudaStream_t stream, const struct attend *a,
                       unsigned tiles)
{
    switch (a->heads / a->kv_heads) {
    case 1:
        return start_group<H, 1>(stream, a, tiles);
    case 2:
        return start_group<H, 2>(stream, a, tiles);
    case 4:
        return start_group<H, 4>(stream, a, tiles);
    default:
        return cudaErrorInvalidValue;
    }
}

template <ocr_half H, int G> cudaError_t prepare_group(void)
{
    const cudaError_t rc = prepare(attend_splits<H, G, 8>, WARPS * 8 * TILE);

    return rc ? rc : prepare(attend_splits<H, G, 4>, WARPS * 4 * TILE);
}

template <ocr_half H> cudaError_t prepare_half(void)
{
    cudaError_t rc = prepare_group<H, 1>();

    rc = rc ? rc : prepare_group<H, 2>();
    return rc ? rc : prepare_group<H, 4>();
}
} // namespace

cudaError_t attend_start(cudaStream_t stream, const struct cuda_decode *d,
                         const struct step_memory *m, unsigned tiles,
                         uint32_t layer)
{
    const struct cuda_text_layer *l = &d->layer[layer];
    const uint64_t layer_values =
        (uint64_t)d->kv.blocks * d->kv.kv_heads * 2 * CUDA_KV_TOKENS * DIM;
    struct attend a = {};

    a.qkv = m->qkv;
    a.q_norm = l->q_norm;
    a.k_norm = l->k_norm;
    a.cosine = d->cosine;
    a.sine = d->sine;
    a.eps = d->eps;
    a.kv = reinterpret_cast<char *>(d->kv.data + layer * layer_values);
    a.tables = d->tables;
    a.slot_blocks = d->slot_blocks;
    a.heads = d->heads;
    a.kv_heads = d->kv.kv_heads;
    a.splits = m->splits;
    a.row = m->row;
    a.item = m->item;
    a.done = m->splits_done;
    a.split = m->split;
    a.split_sum = m->split_sum;
    a.out = m->attended;
    return d->half == OCR_HALF_BF16
               ? start_half<OCR_HALF_BF16>(stream, &a, tiles)
               : start_half<OCR_HALF_FP16>(stream, &a, tiles);
}

cudaError_t prepare_attend(ocr_half half)
{
    return half == OCR_HALF_BF16 ? prepare_half<OCR_HALF_BF16>()
                                 : prepare_half<OCR_HALF_FP16>();
}

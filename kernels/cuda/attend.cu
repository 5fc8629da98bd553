/* Decode attention: the new token of each row against its page, in splits of
 * 256 tokens from token 0, merged in ascending order by a kernel of its own: a
 * row's bits depend on its page alone.
 *
 * Work is a list of (row, split) times kv heads, walked by a fixed number of
 * blocks. Each of a block's 4 warps takes 64 tokens of a split for itself:
 * copies of K and V (tiles of 16 tokens, 4 KiB, as they lie in the cache)
 * through a ring that goes on into the next item, scores, P against the
 * maximum of its tokens, and P V; only at the end, where the warps' results
 * are added in their order, they meet. Scores are K (16 tokens) times q (8
 * columns, one for each head of the group), the result is V^T (16 dimensions)
 * times P.
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
    TILE = CUDA_KV_TOKENS * DIM * 2,      /* bytes of K, or of V, of a block */
    TOKENS = 64,                          /* of a warp's item */
    TILES = 4,                            /* of K, and of V, of a warp's item */
    BLOCKS = CUDA_SPLIT / CUDA_KV_TOKENS, /* of a split */
    AT_ONCE = WARP, /* splits that are merged at once: a lane each */
};

struct attend {
    const float *qkv, *q_norm, *k_norm, *cosine, *sine;
    float eps;
    char *kv; /* of the layer */
    const uint32_t *tables;
    uint32_t slot_blocks, heads, kv_heads, splits;
    const struct step_row *row;
    const uint32_t *items; /* how many */
    const struct step_item *item;
    float *split;
    float2 *split_sum;
    uint16_t *out;
};

/* What the warps say of an item; two, so that no warp waits for the one that
 * still reads. */
template <int G> struct board {
    float value[WARPS][G][DIM];
    float most[WARPS][G], sum[WARPS][G];
};

/* A warp's own: scores, then P (16 bit) in the first half of each row. */
template <int G> struct notes {
    float score[G][TOKENS];
};

struct item {
    struct step_item of;
    uint32_t head;
    uint32_t block; /* lane i: number of the warp's block i % 4 */
    int old;        /* of the warp's tokens, those before the new one: may be
                       negative, or more than 64 */
};

template <ocr_half H, int G, int RING> struct attender {
    const struct attend &a;
    char *ring;         /* of the warp */
    uint32_t slot;      /* of the ring: the next tile */
    struct board<G> *s; /* of the item */
    struct notes<G> &pad;
    uint32_t warp, lane, g, t, items;

    __device__ attender(const struct attend &a, char *memory,
                        struct board<G> *s, struct notes<G> &pad)
        : a(a), slot(0), s(s), pad(pad), warp(threadIdx.x / WARP),
          lane(threadIdx.x % WARP), g(lane / 4), t(lane % 4),
          items(__ldcg(a.items) * a.kv_heads)
    {
        ring = memory + warp * RING * TILE;
    }

    /* What the list says; wanted an item earlier than the rest of it, so that
     * nothing waits for it. */
    __device__ struct step_item look_up(uint32_t number) const
    {
        if (number >= items)
            return {};
        const uint4 v = __ldcg(
            reinterpret_cast<const uint4 *>(a.item + number / a.kv_heads));
        return {v.x, v.y, v.z, v.w};
    }

    __device__ struct item find(uint32_t number, struct step_item of) const
    {
        struct item i = {of, number % a.kv_heads, 0, 0};
        const uint32_t block = of.split * BLOCKS + warp * TILES + lane % TILES;

        if (number < items && block * CUDA_KV_TOKENS <= of.position)
            i.block =
                __ldcg(a.tables + (uint64_t)of.slot * a.slot_blocks + block);
        i.old = (int)of.position - (int)(of.split * CUDA_SPLIT + warp * 64);
        return i;
    }

    /* K (0) or V (1) of the item's head in the warp's block `tile`. */
    __device__ char *tile_at(const struct item &i, int tile, int value) const
    {
        const uint32_t number = __shfl_sync(~0u, i.block, tile);

        return a.kv +
               (((uint64_t)number * a.kv_heads + i.head) * 2 + value) * TILE;
    }

    /* Tile `step` of an item, 0 to 3 of K, then of V, into the next slot; the
     * new token is not there yet. */
    __device__ void copy(const struct item &i, bool there, int step,
                         uint32_t into) const
    {
        const int tile = step % TILES, old = i.old - tile * 16;

        if (there && old >= 0) {
            const char *from = tile_at(i, tile, step / TILES) + lane * 16;
            const uint32_t to = shared_address(ring) + into * TILE + lane * 16;
#pragma unroll
            for (int j = 0; j < 8; j++)
                copy16(to + j * 512, from + j * 512,
                       j * 2 + (int)lane / 16 < old);
        }
        copies_end_group();
    }

    /* The tile that has just been used makes room for the item's step + RING,
     * which may be of the next item. */
    __device__ void go_on(const struct item &i, const struct item &next,
                          bool more, int step)
    {
        __syncwarp();
        if (step + RING < 2 * TILES)
            copy(i, true, step + RING, slot);
        else
            copy(next, more, step + RING - 2 * TILES, slot);
        slot = slot + 1 < RING ? slot + 1 : 0;
    }

    /* A row of 128 as a warp holds it: see norm_rotate. */
    __device__ float4 load_row(const float *from) const
    {
        const float2 *x = reinterpret_cast<const float2 *>(from) + lane;
        const float2 low = __ldcg(x), high = __ldcg(x + 32);

        return make_float4(low.x, low.y, high.x, high.y);
    }

    __device__ const float *qkv_row(const struct item &i, uint32_t head) const
    {
        return a.qkv +
               ((uint64_t)i.of.row * (a.heads + 2 * a.kv_heads) + head) * DIM;
    }

    /* k (0) or v (1) of the new token into its tile, which has come, and into
     * the cache. */
    __device__ void add_new(const struct item &i, int tile, int value) const
    {
        const uint32_t n = i.of.position % CUDA_KV_TOKENS;
        float4 x;

        if (i.old / CUDA_KV_TOKENS != tile || i.old < 0)
            return;
        x = load_row(qkv_row(i, a.heads + value * a.kv_heads + i.head));
        if (!value) {
            const uint64_t at = (uint64_t)i.of.position * (DIM / 4) + lane;
            x = norm_rotate(x, load_row(a.k_norm),
                            __ldg((const float2 *)a.cosine + at),
                            __ldg((const float2 *)a.sine + at), a.eps);
        }
        const uint32_t low = pack<H>(x.x, x.y), high = pack<H>(x.z, x.w);
        const uint32_t at = (lane / 4 ^ (n & 7)) * 4 + lane % 4;
        uint32_t *here = (uint32_t *)(ring + slot * TILE + n * (DIM * 2));
        uint32_t *there = (uint32_t *)(tile_at(i, tile, value) + n * (DIM * 2));
        here[at] = there[at] = low;
        here[at ^ 32] = there[at ^ 32] = high;
        __syncwarp();
    }

    /* Fragments of q, normalised and rotated: column g is head g of the group.
     * Values 16 i + 2 t, + 1, + 8, + 9 of a head are in one lane, and so is
     * what they turn with, 64 further. */
    __device__ void load_q(const struct item &i, uint32_t (&b)[8][2]) const
    {
        const float2 *x = (const float2 *)qkv_row(i, i.head * G + g % G) + t;
        const float2 *w = (const float2 *)a.q_norm + t;
        const uint64_t at = (uint64_t)i.of.position * (DIM / 4) + t;
        const float2 *c = (const float2 *)a.cosine + at;
        const float2 *s = (const float2 *)a.sine + at;
        float2 v[16];
        float sum = 0;

#pragma unroll
        for (int j = 0; j < 16; j++)
            v[j] = __ldcg(x + j * 4);
#pragma unroll
        for (int j = 0; j < 16; j++)
            sum = __fmaf_rn(v[j].y, v[j].y, __fmaf_rn(v[j].x, v[j].x, sum));
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const float scale = 1 / sqrtf(sum / DIM + a.eps);
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const float2 gain = __ldg(w + j * 4);
            v[j] =
                make_float2(v[j].x * scale * gain.x, v[j].y * scale * gain.y);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float2 cs = __ldg(c + j * 4), sn = __ldg(s + j * 4);
            const float2 p = v[j], q = v[j + 8];
            const uint32_t low =
                pack<H>(p.x * cs.x - q.x * sn.x, p.y * cs.y - q.y * sn.y);
            const uint32_t high =
                pack<H>(q.x * cs.x + p.x * sn.x, q.y * cs.y + p.y * sn.y);
            b[j / 2][j % 2] = g < G ? low : 0;
            b[j / 2 + 4][j % 2] = g < G ? high : 0;
        }
    }

    /* Of the tile's 16 tokens, of which `old` come before the new one. */
    __device__ void scores(int tile, int old, const uint32_t (&b)[8][2]) const
    {
        const uint32_t from =
            shared_address(ring) + slot * TILE + lane % 16 * (DIM * 2);
        /* 1 / sqrt(128), for powers of two. */
        const float scale = 0.08838834764831845f * 1.4426950408889634f;
        float even[4] = {}, odd[4] = {};

#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t k[4];

            load_matrices(k, from + ((i * 2 + lane / 16) ^ (lane & 7)) * 16);
            mma<H>(i % 2 ? odd : even, k[0], k[1], k[2], k[3], b[i][0],
                   b[i][1]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int token = (int)g + i / 2 * 8;

            if (t * 2 + i % 2 < G)
                pad.score[t * 2 + i % 2][tile * 16 + token] =
                    token <= old ? (even[i] + odd[i]) * scale : -INFINITY;
        }
    }

    /* Scores become P; maximum and sum go to the board. Two tokens a lane. */
    __device__ void weigh(void)
    {
#pragma unroll
        for (int head = 0; head < G; head++) {
            const float2 x =
                reinterpret_cast<const float2 *>(pad.score[head])[lane];
            const float most = warp_max(fmaxf(x.x, x.y));
            /* No token at all: no weight, not NaN. */
            const float shift = most == -INFINITY ? 0 : most;
            const uint32_t p =
                pack<H>(exp2_fast(x.x - shift), exp2_fast(x.y - shift));
            const float2 rounded = unpack<H>(p);
            const float sum = warp_sum(rounded.x + rounded.y);

            /* All lanes have read: warp_max needed what they read. */
            __syncwarp();
            reinterpret_cast<uint32_t *>(pad.score[head])[lane] = p;
            if (!lane) {
                s->most[warp][head] = most;
                s->sum[warp][head] = sum;
            }
        }
        __syncwarp();
    }

    /* Fragments of V^T, 16 dimensions each, times P of the tile. */
    __device__ void values(float (&c)[DIM / 16][4], int tile) const
    {
        const uint32_t row = lane / 16 * 8 + lane % 8;
        const uint32_t from =
            shared_address(ring) + slot * TILE + row * (DIM * 2);
        const uint32_t *p =
            reinterpret_cast<const uint32_t *>(pad.score[g % G]) + tile * 8 + t;
        const uint32_t p0 = g < G ? p[0] : 0, p1 = g < G ? p[4] : 0;

#pragma unroll
        for (int m = 0; m < DIM / 16; m++) {
            uint32_t v[4];

            load_transposed(v,
                            from + ((m * 2 + lane / 8 % 2) ^ (lane & 7)) * 16);
            mma<H>(c[m], v[0], v[1], v[2], v[3], p0, p1);
        }
    }

    __device__ void put_values(const float (&c)[DIM / 16][4])
    {
#pragma unroll
        for (int m = 0; m < DIM / 16; m++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (t * 2 + j % 2 < G)
                    s->value[warp][t * 2 + j % 2][m * 16 + j / 2 * 8 + g] =
                        c[m][j];
    }

    /* Number of a partial result. */
    __device__ uint64_t part(const struct item &i, uint32_t head) const
    {
        return ((uint64_t)i.of.row * a.heads + i.head * G + head) * a.splits +
               i.of.split;
    }

    /* The warps' results together, in their order; a thread a dimension. */
    __device__ void add_warps(const struct item &i, uint32_t head) const
    {
        float most = s->most[0][head], sum = 0, acc = 0;

#pragma unroll
        for (int w = 1; w < WARPS; w++)
            most = fmaxf(most, s->most[w][head]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float weight = exp2_fast(s->most[w][head] - most);

            sum = __fmaf_rn(s->sum[w][head], weight, sum);
            acc = __fmaf_rn(s->value[w][head][threadIdx.x], weight, acc);
        }
        a.split[part(i, head) * DIM + threadIdx.x] = acc;
        if (!threadIdx.x)
            a.split_sum[part(i, head)] = make_float2(most, sum);
    }

    __device__ void run_item(const struct item &i, const struct item &next,
                             bool more)
    {
        uint32_t b[8][2];
        float value[DIM / 16][4] = {};

        load_q(i, b);
        /* Not unrolled: of few pages, code comes later than data. */
#pragma unroll 1
        for (int tile = 0; tile < TILES; tile++) {
            copies_wait<RING - 1>();
            __syncwarp();
            add_new(i, tile, 0);
            scores(tile, i.old - tile * 16, b);
            go_on(i, next, more, tile);
        }
        weigh();
#pragma unroll 1
        for (int tile = 0; tile < TILES; tile++) {
            copies_wait<RING - 1>();
            __syncwarp();
            add_new(i, tile, 1);
            if (tile * 16 <= i.old)
                values(value, tile);
            go_on(i, next, more, TILES + tile);
        }
        put_values(value);
        __syncthreads();
#pragma unroll
        for (uint32_t head = 0; head < G; head++)
            add_warps(i, head);
    }

    __device__ void run(void)
    {
        uint32_t number = blockIdx.x;
        struct item i = find(number, look_up(number));
        struct step_item ahead = look_up(number + gridDim.x);

        allow_next();
#pragma unroll 1
        for (int step = 0; step < RING; step++)
            copy(i, number < items, step, step);
        await_previous();
        for (uint32_t done = 0; number < items; done++) {
            number += gridDim.x;
            const struct item next = find(number, ahead);
            ahead = look_up(number + gridDim.x);
            run_item(i, next, number < items);
            s += done % 2 ? -1 : 1;
            i = next;
        }
        copies_wait<0>();
    }
};

/* Blocks of a processor: as many as have room with a ring of so many. */
__host__ __device__ constexpr int residents(int ring)
{
    return ring == 2 ? 1 : 12 / ring;
}

template <ocr_half H, int G, int RING>
__global__ void __launch_bounds__(THREADS, residents(RING))
    attend_splits(struct attend a)
{
    extern __shared__ __align__(128) char memory[];
    __shared__ __align__(16) struct board<G> boards[2];
    __shared__ __align__(16) struct notes<G> pads[WARPS];
    attender<H, G, RING> worker(a, memory, boards, pads[threadIdx.x / WARP]);

    worker.run();
}

/* The splits of a head of a row, ascending: a block each, a thread a
 * dimension. Loops are not unrolled: a kernel this short waits for its code
 * rather than for its data. */
template <ocr_half H>
__global__ void __launch_bounds__(DIM) merge_splits(struct attend a)
{
    __shared__ __align__(16) float value[AT_ONCE][DIM];
    const struct step_row row = a.row[blockIdx.y];
    const uint32_t lane = threadIdx.x % WARP,
                   splits = row.position / CUDA_SPLIT + 1;
    const uint64_t head = (uint64_t)blockIdx.y * a.heads + blockIdx.x;
    const float *from = a.split + head * a.splits * DIM;
    float most = -INFINITY, sum = 0, acc = 0;

    allow_next();
    await_previous();
    if (row.slot == NO_SLOT)
        return;
    for (uint32_t first = 0; first < splits; first += AT_ONCE) {
        const uint32_t n = min(splits - first, (uint32_t)AT_ONCE);
        float2 of = make_float2(-INFINITY, 0);

#pragma unroll 1
        for (uint32_t j = threadIdx.x / WARP; j < n; j += DIM / WARP)
            copy16(shared_address(&value[j][lane * 4]),
                   from + (first + j) * DIM + lane * 4, true);
        copies_end_group();
        if (lane < n)
            of = __ldcg(a.split_sum + head * a.splits + first + lane);
        const float high = fmaxf(most, warp_max(of.x));
        const float weight = exp2_fast(of.x - high);
        const float old = exp2_fast(most - high);
        sum = __fmaf_rn(sum, old, warp_sum(of.y * weight));
        acc *= old;
        most = high;
        copies_wait<0>();
        __syncthreads();
#pragma unroll 4
        for (uint32_t j = 0; j < n; j++)
            acc = __fmaf_rn(value[j][threadIdx.x], __shfl_sync(~0u, weight, j),
                            acc);
        __syncthreads();
    }
    a.out[head * DIM + threadIdx.x] = round16<H>(acc * (1 / sum));
}

template <int G> constexpr size_t attend_shared(int ring)
{
    return WARPS * ring * TILE + 2 * sizeof(struct board<G>) +
           WARPS * sizeof(struct notes<G>);
}

template <ocr_half H, int G, int RING>
cudaError_t start_ring(cudaStream_t stream, const struct attend *a)
{
    return start(attend_splits<H, G, RING>,
                 dim3(device_facts()->processors * residents(RING)), THREADS,
                 WARPS * RING * TILE, stream, true, *a);
}

template <ocr_half H, int G>
cudaError_t start_group(cudaStream_t stream, const struct attend *a,
                        unsigned tiles)
{
    static_assert(attend_shared<G>(4) <= 98 * 1024,
                  "what sm_86 and sm_120 have");
    static_assert(attend_shared<G>(2) <= CUDA_LEAST_SHARED,
                  "what every card has");
    const size_t shared = device_facts()->shared;

    /* Few pages: most of an item at once. */
    if (tiles <= 1 && attend_shared<G>(6) + 1024 <= shared)
        return start_ring<H, G, 6>(stream, a);
    if (attend_shared<G>(4) + 1024 <= shared)
        return start_ring<H, G, 4>(stream, a);
    return start_ring<H, G, 2>(stream, a);
}

template <ocr_half H>
cudaError_t start_half(cudaStream_t stream, const struct attend *a,
                       unsigned tiles)
{
    cudaError_t rc = cudaErrorInvalidValue;

    switch (a->heads / a->kv_heads) {
    case 1:
        rc = start_group<H, 1>(stream, a, tiles);
        break;
    case 2:
        rc = start_group<H, 2>(stream, a, tiles);
        break;
    case 4:
        rc = start_group<H, 4>(stream, a, tiles);
        break;
    }
    return rc ? rc
              : start(merge_splits<H>, dim3(a->heads, tiles * CUDA_TILE_ROWS),
                      DIM, 0, stream, true, *a);
}

template <ocr_half H, int G> cudaError_t prepare_group(void)
{
    cudaError_t rc = prepare(attend_splits<H, G, 6>, WARPS * 6 * TILE);

    rc = rc ? rc : prepare(attend_splits<H, G, 4>, WARPS * 4 * TILE);
    return rc ? rc : prepare(attend_splits<H, G, 2>, WARPS * 2 * TILE);
}

template <ocr_half H> cudaError_t prepare_half(void)
{
    cudaError_t rc = prepare(merge_splits<H>, 0);

    rc = rc ? rc : prepare_group<H, 1>();
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
    a.items = m->items;
    a.item = m->item;
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

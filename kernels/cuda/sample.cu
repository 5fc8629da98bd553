/* The next id of each row: hash and check of the logits, penalty, argmax or a
 * draw, stop ids and limits. Rule: struct ocr_sampler in kernels/backend.h.
 *
 * Blocks look at parts of a row; the one that ends last chooses and advances
 * the slot. Sums of probabilities are made in an order that depends on the
 * row alone. */
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"

namespace
{
enum {
    THREADS = 256,
    WARPS = THREADS / WARP,
};

struct sample {
    const float *logits;
    uint32_t vocab, seen_words, slots, ring, hashes;
    const uint32_t *rows;
    struct cuda_slot *slot;
    uint32_t *seen;
    struct cuda_out *out;
    struct part_choice *parts;
    uint32_t *parts_done;
    struct candidate *candidates;
};

__device__ uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

__device__ uint32_t philox(uint64_t seed, uint64_t page_hash, uint32_t position)
{
    uint32_t c0 = position, c1 = 0;
    uint32_t c2 = (uint32_t)page_hash, c3 = (uint32_t)(page_hash >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53 * c0;
        const uint64_t b = (uint64_t)0xcd9e8d57 * c2;

        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9;
        k1 += 0xbb67ae85;
    }
    return c0;
}

/* A row's logits as the sampler sees them. */
struct view {
    const float *logits;
    const uint32_t *seen; /* NULL: no penalty */
    float penalty;

    __device__ float at(uint32_t id, float x) const
    {
        if (seen && __ldcg(seen + id / 32) >> id % 32 & 1)
            return x > 0 ? __fdiv_rn(x, penalty) : __fmul_rn(x, penalty);
        return x;
    }

    __device__ float at(uint32_t id) const
    {
        return at(id, __ldcg(logits + id));
    }
};

__device__ bool is_better(float x, uint32_t i, float y, uint32_t j)
{
    return x > y || (x == y && i < j);
}

__device__ void take_better(struct part_choice *c, const struct part_choice &o)
{
    if (is_better(o.best, o.id, c->best, c->id)) {
        c->best = o.best;
        c->id = o.id;
    }
    c->hash += o.hash;
    c->bad |= o.bad;
}

__device__ struct part_choice warp_choice(struct part_choice c)
{
    for (int i = WARP / 2; i; i /= 2) {
        struct part_choice o = {};

        o.hash = __shfl_xor_sync(~0u, c.hash, i);
        o.best = __shfl_xor_sync(~0u, c.best, i);
        o.id = __shfl_xor_sync(~0u, c.id, i);
        o.bad = __shfl_xor_sync(~0u, c.bad, i);
        take_better(&c, o);
    }
    return c;
}

__device__ struct part_choice no_choice(void)
{
    struct part_choice c = {};

    c.best = -INFINITY;
    c.id = NO_SLOT;
    return c;
}

struct chooser {
    const struct sample &p;
    uint32_t row, index; /* index: of the slot */
    struct cuda_slot *slot;
    struct view view;

    __device__ chooser(const struct sample &p, uint32_t row, uint32_t index)
        : p(p), row(row), index(index), slot(p.slot + index)
    {
        const bool penal = slot->penalty > 0 && slot->penalty != 1;

        view.logits = p.logits + (uint64_t)row * p.vocab;
        view.seen = penal ? p.seen + (uint64_t)index * p.seen_words : nullptr;
        view.penalty = slot->penalty;
    }

    __device__ void look(struct part_choice *c, uint32_t id, float x) const
    {
        const uint32_t bits = __float_as_uint(x);
        const float y = view.at(id, x);

        c->bad |= (bits & 0x7f800000) == 0x7f800000;
        if (p.hashes)
            c->hash += mix((uint64_t)id << 32 | bits);
        if (is_better(y, id, c->best, c->id)) {
            c->best = y;
            c->id = id;
        }
    }

    /* The block's part, in every thread. */
    __device__ struct part_choice
    look_at_part(struct part_choice *of_warp) const
    {
        const uint32_t step = (p.vocab / 4 + SAMPLE_PARTS - 1) / SAMPLE_PARTS;
        const uint32_t end = min(p.vocab / 4, (blockIdx.x + 1) * step);
        struct part_choice c = no_choice();

        for (uint32_t i = blockIdx.x * step + threadIdx.x; i < end;
             i += THREADS) {
            const float4 v = load4(view.logits + i * 4);
            look(&c, i * 4, v.x);
            look(&c, i * 4 + 1, v.y);
            look(&c, i * 4 + 2, v.z);
            look(&c, i * 4 + 3, v.w);
        }
        c = warp_choice(c);
        if (threadIdx.x % WARP == 0)
            of_warp[threadIdx.x / WARP] = c;
        __syncthreads();
        c = threadIdx.x % WARP < WARPS ? of_warp[threadIdx.x % WARP]
                                       : no_choice();
        return warp_choice(c);
    }

    /* Whether this block is the row's last; parts are then complete. */
    __device__ bool is_last(const struct part_choice &c, uint32_t *last) const
    {
        if (!threadIdx.x) {
            p.parts[row * SAMPLE_PARTS + blockIdx.x] = c;
            __threadfence();
            *last = atomicAdd(p.parts_done + row, 1) == SAMPLE_PARTS - 1;
            if (*last)
                p.parts_done[row] = 0;
            __threadfence();
        }
        __syncthreads();
        return *last;
    }

    /* All parts together, in every thread. */
    __device__ struct part_choice whole(void) const
    {
        const struct part_choice *from =
            p.parts + row * SAMPLE_PARTS + threadIdx.x % WARP;
        struct part_choice c = {};

        c.hash = __ldcg(&from->hash);
        c.best = __ldcg(&from->best);
        c.id = __ldcg(&from->id);
        c.bad = __ldcg(&from->bad);
        return warp_choice(c);
    }

    __device__ bool is_stop(uint32_t id) const
    {
        for (uint32_t i = 0; i < slot->stop_count; i++)
            if (slot->stop_ids[i] == id)
                return true;
        return false;
    }

    /* By one thread. */
    __device__ void finish(const struct part_choice &c, uint32_t id)
    {
        const uint32_t at = __ldcg(&slot->generated);
        uint32_t status = CUDA_RUNNING;

        slot->position = __ldcg(&slot->position) + 1;
        if (c.bad) {
            status = CUDA_BAD;
        } else if (!slot->forced && at >= slot->keep && is_stop(id)) {
            status = CUDA_STOPPED;
        } else {
            slot->last = id;
            slot->generated = at + 1;
            p.seen[(uint64_t)index * p.seen_words + id / 32] |= 1u << id % 32;
            if (at + 1 >= slot->limit)
                status = CUDA_LAST;
        }
        if (status != CUDA_RUNNING)
            slot->status = CUDA_ENDED;
        p.out[(uint64_t)index * p.ring + (at & (p.ring - 1))] = {c.hash, id,
                                                                 status};
    }
};

/* A draw among the candidates of a row, by the whole block. Candidates are
 * ordered by a key: the larger, the likelier, then the lower the id. */
struct draw {
    const struct view &view;
    uint32_t vocab, count, id_bits;
    float best, temperature;
    struct candidate *candidates;
    double *of_warp;  /* shared [WARPS] */
    uint32_t *counts; /* shared [THREADS] */
    uint64_t my_key;  /* of candidate threadIdx.x */
    double my_weight;

    __device__ uint64_t key(float logit, uint32_t id) const
    {
        const uint32_t bits = __float_as_uint(logit + 0.0f); /* no -0 */
        const uint32_t order = bits >> 31 ? ~bits : bits | 0x80000000;

        return (uint64_t)order << id_bits | ((1u << id_bits) - 1 - id);
    }

    __device__ double weight(float logit) const
    {
        return (float)exp(
            (double)__fdiv_rn(__fsub_rn(logit, best), temperature));
    }

    __device__ float least(void) const
    {
        return __fsub_rn(best, __fmul_rn(22.18f, temperature)); /* 2^-32 */
    }

    /* This thread's ids from `threadIdx.x` on, in steps of THREADS. */
    __device__ uint32_t count_mine(void) const
    {
        uint32_t n = 0;

        for (uint32_t id = threadIdx.x; id < vocab; id += THREADS)
            n += view.at(id) >= least();
        return n;
    }

    __device__ void collect(void)
    {
        uint32_t at = 0;

        counts[threadIdx.x] = count_mine();
        __syncthreads();
        count = 0;
        for (uint32_t i = 0; i < THREADS; i++) {
            at += i < threadIdx.x ? counts[i] : 0;
            count += counts[i];
        }
        for (uint32_t id = threadIdx.x; id < vocab; id += THREADS) {
            const float logit = view.at(id);
            if (logit >= least())
                candidates[at++] = {logit, id};
        }
        __syncthreads();
        my_key = 0;
        my_weight = 0;
        if (threadIdx.x < count) {
            my_weight = weight(candidates[threadIdx.x].logit);
            my_key =
                key(candidates[threadIdx.x].logit, candidates[threadIdx.x].id);
        }
    }

    /* Sum of the weights of keys from `from` on, in every thread. */
    __device__ double mass(uint64_t from) const
    {
        double sum = my_key >= from ? my_weight : 0;

        for (uint32_t i = threadIdx.x + THREADS; i < count; i += THREADS)
            if (key(candidates[i].logit, candidates[i].id) >= from)
                sum += weight(candidates[i].logit);
        for (int i = WARP / 2; i; i /= 2)
            sum += __shfl_xor_sync(~0u, sum, i);
        __syncthreads();
        if (threadIdx.x % WARP == 0)
            of_warp[threadIdx.x / WARP] = sum;
        __syncthreads();
        sum = 0;
        for (int i = 0; i < WARPS; i++)
            sum += of_warp[i];
        return sum;
    }

    /* The largest key with at least (or more than) `least_mass` from it on,
     * which is that of a candidate; below all keys if there is none. */
    __device__ uint64_t find(double least_mass, bool more) const
    {
        const uint64_t top = key(best, 0), bottom = key(least(), vocab - 1);
        const int bits = 64 - __clzll((top ^ bottom) | 1);
        /* What all keys have in common, then bit by bit. */
        uint64_t found = bits < 64 ? top >> bits << bits : 0;

        for (int bit = bits - 1; bit >= 0; bit--) {
            const uint64_t with = found | (uint64_t)1 << bit;
            const double m = mass(with);

            if (more ? m > least_mass : m >= least_mass)
                found = with;
        }
        return found;
    }

    __device__ uint32_t run(float top_p, uint32_t word)
    {
        collect();
        const double number = (word >> 8) * 0x1p-24;
        const double all = mass(0);
        const double kept = mass(find(top_p * all, false));
        const uint64_t chosen = find(number * kept, true);

        return (1u << id_bits) - 1 - (uint32_t)(chosen & ((1u << id_bits) - 1));
    }
};

__device__ uint32_t draw_id(const struct chooser &c, float best,
                            double *of_warp, uint32_t *counts)
{
    const struct cuda_slot *slot = c.slot;
    struct draw d = {c.view,
                     c.p.vocab,
                     0,
                     32u - __clz(c.p.vocab),
                     best,
                     slot->temperature,
                     c.p.candidates + (uint64_t)c.row * c.p.vocab,
                     of_warp,
                     counts,
                     0,
                     0};

    return d.run(slot->top_p, philox(slot->seed, slot->page_hash,
                                     __ldcg(&slot->position) + 1));
}

__global__ void __launch_bounds__(THREADS) choose(struct sample p)
{
    __shared__ struct part_choice of_warp[WARPS];
    __shared__ double sums[WARPS];
    __shared__ uint32_t counts[THREADS], last;
    const struct step_row r = find_row(p.rows, p.slot, p.slots, blockIdx.y);

    allow_next();
    await_previous();
    if (r.slot == NO_SLOT)
        return;
    struct chooser c(p, blockIdx.y, r.slot);
    if (!c.is_last(c.look_at_part(of_warp), &last))
        return;
    const struct part_choice all = c.whole();
    uint32_t id = all.id;
    if (c.slot->forced)
        id = c.slot->forced[__ldcg(&c.slot->generated)];
    else if (!all.bad && c.slot->temperature > 0)
        id = draw_id(c, all.best, sums, counts);
    if (!threadIdx.x)
        c.finish(all, id);
}
} // namespace

cudaError_t sample_start(cudaStream_t stream, const struct cuda_decode *d,
                         const struct step_memory *m, unsigned tiles)
{
    struct sample p = {};

    p.logits = d->logits;
    p.vocab = d->vocab;
    p.seen_words = cuda_seen_words(d->vocab);
    p.slots = d->slots;
    p.ring = d->ring;
    p.hashes = d->hashes;
    p.rows = d->rows;
    p.slot = d->slot;
    p.seen = d->seen;
    p.out = d->out;
    p.parts = m->parts;
    p.parts_done = m->parts_done;
    p.candidates = m->candidates;
    return start(choose, dim3(SAMPLE_PARTS, tiles * CUDA_TILE_ROWS), THREADS, 0,
                 stream, true, p);
}

cudaError_t prepare_sample(void)
{
    return prepare(choose, 0);
}

#include "kernels/cpu/cpu_i.h"
#include "kernels/cpu/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool cpu_all_finite(const float *x, size_t n)
{
    uint32_t bad = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, x + i, sizeof bits);
        bad |= (bits & 0x7f800000) == 0x7f800000;
    }
    return !bad;
}

uint32_t ocr_op_philox(uint64_t seed, uint64_t page_hash, uint32_t position)
{
    uint32_t c[4] = {position, 0, (uint32_t)page_hash,
                     (uint32_t)(page_hash >> 32)};
    uint32_t k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};

    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53 * c[0];
        const uint64_t b = (uint64_t)0xcd9e8d57 * c[2];
        const uint32_t next[4] = {
            (uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b,
            (uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a};

        memcpy(c, next, sizeof c);
        k[0] += 0x9e3779b9;
        k[1] += 0xbb67ae85;
    }
    return c[0];
}

void ocr_op_penalty(float *logits, uint32_t count, const uint64_t *seen,
                    float penalty)
{
    for (uint32_t word = 0; word <= (count - 1) / 64; word++)
        for (uint64_t bits = seen[word]; bits; bits &= bits - 1) {
            float *x = &logits[word * 64 + (uint32_t)__builtin_ctzll(bits)];
            *x = *x > 0 ? *x / penalty : *x * penalty;
        }
}

uint32_t ocr_op_argmax(const float *logits, uint32_t count)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < count; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

static int by_probability(const void *a, const void *b)
{
    const struct cpu_candidate *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Candidates, the likeliest first, their logits replaced by weights. */
static uint32_t weigh(const float *logits, uint32_t count, float temperature,
                      struct cpu_candidate *c)
{
    const float best = logits[ocr_op_argmax(logits, count)];
    const float least = best - 22.18f * temperature; /* 2^-32 */
    uint32_t n = 0;

    for (uint32_t i = 0; i < count; i++)
        if (logits[i] >= least)
            c[n++] = (struct cpu_candidate){logits[i], i};
    qsort(c, n, sizeof *c, by_probability);
    for (uint32_t i = 0; i < n; i++)
        c[i].logit = (float)exp((c[i].logit - best) / temperature);
    return n;
}

uint32_t ocr_op_sample(const float *logits, uint32_t count, float temperature,
                       float top_p, uint32_t word, void *scratch)
{
    struct cpu_candidate *c = scratch;
    const uint32_t n = weigh(logits, count, temperature, c);
    const double number = (word >> 8) * 0x1p-24;
    double all = 0, kept = 0, sum = 0;
    uint32_t last = 0;

    for (uint32_t i = 0; i < n; i++)
        all += c[i].logit;
    for (last = 0; last < n; last++) {
        kept += c[last].logit;
        if (kept >= top_p * all)
            break;
    }
    for (uint32_t i = 0; i < n && i < last; i++) {
        sum += c[i].logit;
        if (sum > number * kept)
            return c[i].id;
    }
    return c[last < n ? last : n - 1].id;
}

size_t ocr_op_sample_scratch(uint32_t count)
{
    return count * sizeof(struct cpu_candidate);
}

uint32_t cpu_sample(struct ocr_backend *b, const struct cpu_slot *s,
                    uint32_t position)
{
    const struct ocr_sampler *how = &s->config.sampler;

    if (how->repetition_penalty > 0 && how->repetition_penalty != 1)
        ocr_op_penalty(s->logits, b->vocab, s->seen, how->repetition_penalty);
    if (!(how->temperature > 0))
        return ocr_op_argmax(s->logits, b->vocab);
    return ocr_op_sample(s->logits, b->vocab, how->temperature, how->top_p,
                         ocr_op_philox(how->seed, how->page_hash, position),
                         b->candidates);
}

/* Expected values of tests/data/golden, and how far from them a result is.
 *
 * tests/reference/README.md says how they are made and what is kept of a row:
 * a norm and 32 sums with random signs; of a few rows everything. */
#ifndef TEST_GOLDEN_H
#define TEST_GOLDEN_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/model/safetensors.h"
#include "tests/unit/counter.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

enum {
    GOLDEN_SUMS = 32
};

/* Rows of logits or of features. */
struct golden_rows {
    uint32_t count, width;
    const float *norms, *sums; /* [count], [count][32] */
    uint32_t whole;
    const float *whole_values; /* [whole][width] */
    const int32_t *whole_rows; /* [whole] */
};

struct golden {
    struct ocr_safetensors file;
    struct golden_rows logits, features;
    uint32_t likeliest; /* ids that are kept of each row of logits */
    const int32_t *likeliest_ids;
    const float *log_p; /* [rows][likeliest + 1]: and of all others as one */
    /* Of pages; NULL for models from a counter. */
    const int32_t *ids, *prompt, *size;
    uint32_t prompt_len;
    const float *bf16; /* of transformers: worst gap error, logits, KL */
};

/* Data of a tensor, NULL if there is none. */
static inline const void *golden_find(const struct golden *g, const char *name,
                                      uint32_t *rows, uint32_t *cols)
{
    const struct ocr_safetensor *t = ocr_safetensors_find(&g->file, name);
    const unsigned char *data;

    if (!t)
        return NULL;
    if (rows)
        *rows = (uint32_t)t->shape[0];
    if (cols)
        *cols = (uint32_t)t->shape[1];
    data = ocr_safetensors_data(&g->file, t);
    assert_int_equal((uintptr_t)data % sizeof(float), 0);
    return data;
}

static inline struct golden_rows golden_rows(const struct golden *g,
                                             const char *prefix)
{
    struct golden_rows r = {0};
    char name[64];

#define FIND(suffix, rows, cols)                                               \
    (snprintf(name, sizeof name, "%s%s", prefix, suffix),                      \
     golden_find(g, name, rows, cols))
    r.norms = FIND("norms", &r.count, NULL);
    r.sums = FIND("sums", NULL, NULL);
    r.whole_values = FIND("whole", &r.whole, &r.width);
    r.whole_rows = FIND("whole_rows", NULL, NULL);
#undef FIND
    assert_non_null(r.norms);
    assert_non_null(r.sums);
    assert_non_null(r.whole_values);
    assert_non_null(r.whole_rows);
    return r;
}

static inline void golden_open(struct golden *g, const char *name)
{
    const int dir = open("tests/data/golden", O_RDONLY | O_DIRECTORY);
    struct ocr_err err = OCR_ERR_INIT;
    char file[128];

    *g = (struct golden){0};
    snprintf(file, sizeof file, "%s.safetensors", name);
    if (ocr_safetensors_open(&g->file, dir, file, &err))
        fail_msg("%s", err.text);
    close(dir);
    g->logits = golden_rows(g, "logits_");
    g->features = golden_rows(g, "features_");
    g->likeliest_ids = golden_find(g, "likeliest", NULL, &g->likeliest);
    g->log_p = golden_find(g, "likeliest_log_p", NULL, NULL);
    g->ids = golden_find(g, "ids", NULL, NULL);
    g->prompt = golden_find(g, "prompt", &g->prompt_len, NULL);
    g->size = golden_find(g, "size", NULL, NULL);
    g->bf16 = golden_find(g, "bf16", NULL, NULL);
}

static inline void golden_close(struct golden *g)
{
    ocr_safetensors_release(&g->file);
}

/* Relative L2: of all rows together, and of the worst. */
struct golden_distance {
    double all, worst;
    uint32_t worst_row;
};

/* The sums with random signs of a row: bit i of mix(seed of "signs" + column)
 * is the sign of sum i. */
static inline void golden_sums(const float *row, uint32_t width, double *sums)
{
    const uint64_t seed = counter_seed("signs");

    memset(sums, 0, GOLDEN_SUMS * sizeof *sums);
    for (uint32_t c = 0; c < width; c++) {
        const uint64_t signs = counter_mix(seed + c);
        const double value = row[c];

        for (unsigned i = 0; i < GOLDEN_SUMS; i++)
            sums[i] += signs >> i & 1 ? value : -value;
    }
}

/* Square of the distance of `row` to row `r`. */
static inline double golden_off(const struct golden_rows *g, uint32_t r,
                                const float *row)
{
    double sums[GOLDEN_SUMS], off = 0;

    for (uint32_t i = 0; i < g->whole; i++) {
        const float *whole = g->whole_values + (size_t)i * g->width;

        if ((uint32_t)g->whole_rows[i] != r)
            continue;
        for (uint32_t c = 0; c < g->width; c++)
            off += pow((double)row[c] - whole[c], 2);
        return off;
    }
    golden_sums(row, g->width, sums);
    for (unsigned i = 0; i < GOLDEN_SUMS; i++)
        off += pow(sums[i] - g->sums[(size_t)r * GOLDEN_SUMS + i], 2);
    return off / GOLDEN_SUMS;
}

/* Of rows [count][width]; anything that is no number is infinitely far. */
static inline struct golden_distance
golden_distance(const struct golden_rows *g, const float *rows)
{
    struct golden_distance d = {0};
    double off = 0, norm = 0;

    for (uint32_t r = 0; r < g->count; r++) {
        const double square = pow(g->norms[r], 2);
        double one = golden_off(g, r, rows + (size_t)r * g->width);

        if (!isfinite(one))
            one = INFINITY;
        off += one;
        norm += square;
        if (sqrt(one / square) > d.worst) {
            d.worst = sqrt(one / square);
            d.worst_row = r;
        }
    }
    d.all = sqrt(off / norm);
    return d;
}

static inline uint32_t golden_best(const float *row, uint32_t width)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < width; i++)
        if (row[i] > row[best])
            best = i;
    return best;
}

/* By how much the logit of `id` in row `r` is below the best: the true ones;
 * infinite if it is not among the likeliest. */
static inline double golden_below_best(const struct golden *g, uint32_t r,
                                       uint32_t id)
{
    const int32_t *ids = g->likeliest_ids + (size_t)r * g->likeliest;
    const float *log_p = g->log_p + (size_t)r * (g->likeliest + 1);

    for (uint32_t i = 0; i < g->likeliest; i++)
        if ((uint32_t)ids[i] == id)
            return (double)log_p[0] - log_p[i];
    return INFINITY;
}

/* Between best and second, the true one. */
static inline double golden_gap(const struct golden *g, uint32_t r)
{
    return golden_below_best(
        g, r, (uint32_t)g->likeliest_ids[(size_t)r * g->likeliest + 1]);
}

/* KL divergence of row `r`, over the likeliest ids and all others as one. */
static inline double golden_divergence(const struct golden *g, uint32_t r,
                                       const float *row)
{
    const int32_t *ids = g->likeliest_ids + (size_t)r * g->likeliest;
    const float *log_p = g->log_p + (size_t)r * (g->likeliest + 1);
    const double most = row[golden_best(row, g->logits.width)];
    double sum = 0, others, kl = 0;

    for (uint32_t i = 0; i < g->logits.width; i++)
        sum += exp(row[i] - most);
    others = sum;
    for (uint32_t i = 0; i < g->likeliest; i++) {
        const double log_q = row[ids[i]] - most - log(sum);

        kl += exp(log_p[i]) * (log_p[i] - log_q);
        others -= exp(row[ids[i]] - most);
    }
    if (others > 1e-12 * sum)
        kl += exp(log_p[g->likeliest]) *
              (log_p[g->likeliest] - log(others / sum));
    return kl;
}

#endif

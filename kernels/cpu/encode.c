#include "kernels/cpu/cpu_i.h"
#include "kernels/cpu/ops.h"

#include <errno.h>
#include <string.h>

struct encode {
    struct cpu_pass pass; /* first: jobs get a pointer to it */
    const uint8_t *rgb;
    uint32_t width; /* pixels */
    uint32_t merged_columns, tokens;
    float *features;
};

static uint32_t take(struct encode *e, uint32_t size, uint32_t all,
                     uint32_t *first)
{
    *first = atomic_fetch_add(&e->pass.unit, size);
    if (*first >= all)
        return 0;
    return all - *first < size ? all - *first : size;
}

/* The pixels of a patch: channel, row, column. */
static void patch_pixels(const struct encode *e, uint32_t patch, float *out)
{
    const struct ocr_backend *b = e->pass.b;
    const uint32_t n = b->patch;
    const uint32_t top = patch / e->pass.grid_columns * n;
    const uint32_t left = patch % e->pass.grid_columns * n;

    for (uint32_t y = 0; y < n; y++) {
        const uint8_t *p = e->rgb + ((size_t)(top + y) * e->width + left) * 3;

        for (uint32_t x = 0; x < n; x++)
            for (uint32_t c = 0; c < 3; c++)
                out[(c * n + y) * n + x] = b->pixel[c][p[3 * x + c]];
    }
}

static void embed_patches(void *arg, unsigned thread, unsigned threads)
{
    struct encode *e = arg;
    struct ocr_backend *b = e->pass.b;
    struct cpu_scratch *s = &b->scratch[thread];
    const struct cpu_matrix *m = &b->patch_conv;
    const uint32_t inputs = 3 * b->patch * b->patch, n = b->vision.hidden;
    const enum cpu_rows kind = cpu_matrix_rows(m, b->isa, true);
    const size_t stride = cpu_row_stride(kind, inputs);
    uint32_t first, rows;

    (void)threads;
    while ((rows = take(e, b->isa->block, e->pass.rows, &first))) {
        float *x = b->x + (size_t)first * n;

        for (uint32_t r = 0; r < rows; r++) {
            patch_pixels(e, first + r, s->row);
            b->isa->to_row(s->a + r * stride, kind, s->row, inputs);
        }
        /* Not into x itself: panels may be wider than a row. */
        cpu_matrix_mul(m, b->isa, s->a, stride, kind, rows, 0,
                       m->columns / CPU_LANES,
                       &(struct cpu_finish){.kind = CPU_STORE,
                                            .out = s->wide,
                                            .stride = m->columns * sizeof *x},
                       s->c, s->spare);
        for (uint32_t r = 0; r < rows; r++)
            b->isa->rmsnorm(x + (size_t)r * n, s->wide + (size_t)r * m->columns,
                            b->ln_pre, n, b->vision.eps);
    }
}

/* The patches of a merged token, each normalised: sub-row, sub-column,
 * channel. The merging matrix was packed for this order. */
static void merge_patches(const struct encode *e, uint32_t token, float *out)
{
    const struct ocr_backend *b = e->pass.b;
    const uint32_t n = b->vision.hidden, k = b->merge;
    const uint32_t row = token / e->merged_columns * k;
    const uint32_t column = token % e->merged_columns * k;

    for (uint32_t y = 0; y < k; y++)
        for (uint32_t x = 0; x < k; x++, out += n) {
            const size_t patch =
                (size_t)(row + y) * e->pass.grid_columns + column + x;
            b->isa->rmsnorm(out, b->x + patch * n, b->projector_norm, n,
                            b->projector_eps);
        }
}

/* s->wide [rows][columns] = rows of s->a times m. */
static void project(const struct encode *e, struct cpu_scratch *s,
                    const struct cpu_matrix *m, uint32_t inputs, uint32_t rows)
{
    const struct ocr_backend *b = e->pass.b;
    const enum cpu_rows kind = cpu_matrix_rows(m, b->isa, true);

    cpu_matrix_mul(m, b->isa, s->a, cpu_row_stride(kind, inputs), kind, rows, 0,
                   m->columns / CPU_LANES,
                   &(struct cpu_finish){.kind = CPU_STORE,
                                        .out = s->wide,
                                        .stride = m->columns * sizeof(float)},
                   s->c, s->spare);
}

/* s->a = rows of s->wide, which have `columns` numbers, as inputs of m. */
static void rows_again(const struct encode *e, struct cpu_scratch *s,
                       const struct cpu_matrix *m, uint32_t inputs,
                       uint32_t columns, uint32_t rows)
{
    const struct cpu_isa *isa = e->pass.b->isa;
    const enum cpu_rows kind = cpu_matrix_rows(m, isa, true);

    for (uint32_t r = 0; r < rows; r++)
        isa->to_row(s->a + r * cpu_row_stride(kind, inputs), kind,
                    s->wide + (size_t)r * columns, inputs);
}

static void project_tokens(void *arg, unsigned thread, unsigned threads)
{
    enum {
        AT_ONCE = 32
    };
    struct encode *e = arg;
    struct ocr_backend *b = e->pass.b;
    struct cpu_scratch *s = &b->scratch[thread];
    const uint32_t n = b->vision.hidden, out = b->text.hidden;
    const uint32_t inputs = n * b->merge * b->merge;
    const enum cpu_rows kind = cpu_matrix_rows(&b->merging, b->isa, true);
    uint32_t first, rows;

    (void)threads;
    while ((rows = take(e, AT_ONCE, e->tokens, &first))) {
        for (uint32_t r = 0; r < rows; r++) {
            merge_patches(e, first + r, s->row);
            b->isa->to_row(s->a + r * cpu_row_stride(kind, inputs), kind,
                           s->row, inputs);
        }
        project(e, s, &b->merging, inputs, rows);
        rows_again(e, s, &b->linear_1, n, b->merging.columns, rows);
        project(e, s, &b->linear_1, n, rows);
        ocr_op_gelu(s->wide, (size_t)rows * b->linear_1.columns);
        rows_again(e, s, &b->linear_2, out, b->linear_1.columns, rows);
        project(e, s, &b->linear_2, out, rows);
        for (uint32_t r = 0; r < rows; r++)
            memcpy(e->features + (size_t)(first + r) * out,
                   s->wide + (size_t)r * b->linear_2.columns,
                   out * sizeof *e->features);
    }
}

static void run(struct encode *e,
                void (*job)(void *arg, unsigned thread, unsigned threads))
{
    atomic_store(&e->pass.unit, 0);
    cpu_pool_run(e->pass.b->pool, job, e);
}

int cpu_encode(struct ocr_backend *b, struct cpu_slot *s,
               const struct cpu_work *w)
{
    const uint32_t columns = w->width / b->patch, lines = w->height / b->patch;
    struct encode e = {
        .pass = {.b = b,
                 .tower = &b->vision,
                 .slot = s,
                 .rows = columns * lines,
                 .grid_columns = columns},
        .rgb = w->rgb,
        .width = w->width,
        .merged_columns = columns / b->merge,
        .tokens = columns / b->merge * (lines / b->merge),
        .features = s->features,
    };
    int rc;

    run(&e, embed_patches);
    if (b->taps.layer)
        b->taps.layer(b->taps.arg, s->config.page, OCR_TAP_PATCHES, b->x, 0,
                      e.pass.rows, b->vision.hidden);
    rc = cpu_pass_run(&e.pass);
    if (rc)
        return rc;
    run(&e, project_tokens);
    if (b->taps.features)
        b->taps.features(b->taps.arg, s->config.page, s->features, e.tokens,
                         b->text.hidden);
    return cpu_all_finite(s->features, (size_t)e.tokens * b->text.hidden)
               ? 0
               : -EDOM;
}

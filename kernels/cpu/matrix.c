#include "kernels/cpu/matrix.h"

#include <math.h>
#include <string.h>

static const uint32_t format_bytes[] = {
    [CPU_BF16] = 2, [CPU_FP32] = 4, [CPU_INT8] = 1};

static uint32_t up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

static size_t panel_bytes(const struct cpu_matrix *m)
{
    return (size_t)m->tiles * CPU_TILE * CPU_LANES * format_bytes[m->format];
}

static float from_bf16(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

size_t cpu_matrix_shape(struct cpu_matrix *m, const struct cpu_source *s,
                        enum cpu_format format)
{
    uint32_t rows = 0;

    for (int i = 0; i < 3 && s->part[i]; i++)
        rows +=
            s->alternate ? up(s->part[i]->rows, CPU_LANES) : s->part[i]->rows;
    *m = (struct cpu_matrix){
        .format = format,
        .columns = up(rows, CPU_LANES),
        /* One part at least. NOLINTNEXTLINE */
        .tiles = up(s->part[0]->cols, CPU_TILE) / CPU_TILE, /* NOLINT */
    };
    return m->columns / CPU_LANES * panel_bytes(m);
}

/* The tensor and its row behind output `column`; false: a filled-up one. */
static bool source_row(const struct cpu_source *s, uint32_t column,
                       const struct ocr_tensor **t, uint32_t *row)
{
    if (s->alternate) {
        const uint32_t panel = column / CPU_LANES;

        *t = s->part[panel % 2];
        *row = panel / 2 * CPU_LANES + column % CPU_LANES;
        return *row < (*t)->rows;
    }
    for (int i = 0; i < 3 && s->part[i]; i++) {
        if (column < s->part[i]->rows) {
            *t = s->part[i];
            *row = column;
            return true;
        }
        column -= s->part[i]->rows;
    }
    return false;
}

/* 32 inputs of one output, from input k on; zero behind the end. */
static void source_inputs(const struct cpu_source *s,
                          const struct ocr_tensor *t, uint32_t row, uint32_t k,
                          float out[CPU_TILE])
{
    const uint32_t n = t->cols;

    if (s->unfold <= 1) {
        ocr_tensor_part(t, row, k, k + CPU_TILE < n ? CPU_TILE : n - k, out);
        for (uint32_t i = n - k; i < CPU_TILE; i++)
            out[i] = 0;
        return;
    }
    for (uint32_t i = 0; i < CPU_TILE; i++, k++) {
        const uint32_t wide = n / s->unfold;

        out[i] = 0;
        if (k < n)
            ocr_tensor_part(t, row, k % wide * s->unfold + k / wide, 1,
                            out + i);
    }
}

static void put_inputs(const struct cpu_matrix *m, const struct cpu_isa *isa,
                       char *tile, unsigned lane, const float in[CPU_TILE],
                       float inverse)
{
    for (unsigned k = 0; k < CPU_TILE; k++) {
        const float x = m->format == CPU_BF16
                            ? in[k / 16 * 16 + isa->order[k % 16]]
                            : in[k];

        if (m->format == CPU_BF16) {
            const uint16_t h = cpu_to_bf16(x);
            memcpy(tile + 64 * (k / 2) + 4 * lane + 2 * (k % 2), &h, sizeof h);
        } else if (m->format == CPU_FP32) {
            memcpy(tile + 64 * k + 4 * lane, &x, sizeof x);
        } else {
            tile[16 * k + lane] = (char)(int8_t)lrintf(x * inverse);
        }
    }
}

/* 8-bit weights of an output: the largest becomes 127. */
static float row_scale(const struct cpu_source *s, const struct ocr_tensor *t,
                       uint32_t row)
{
    float in[CPU_TILE], most = 0;

    for (uint32_t k = 0; k < t->cols; k += CPU_TILE) {
        source_inputs(s, t, row, k, in);
        for (unsigned i = 0; i < CPU_TILE; i++)
            most = fmaxf(most, fabsf(in[i]));
    }
    return most / 127;
}

static void pack_output(struct cpu_matrix *m, const struct cpu_source *s,
                        const struct cpu_isa *isa, uint32_t column)
{
    const size_t tile_bytes = panel_bytes(m) / m->tiles;
    char *tile = m->data + column / CPU_LANES * panel_bytes(m);
    float in[CPU_TILE] = {0}, scale = 0;
    const struct ocr_tensor *t = NULL;
    uint32_t row = 0;
    const bool real = source_row(s, column, &t, &row);

    if (m->format == CPU_INT8) {
        scale = real ? row_scale(s, t, row) : 0;
        m->scale[column] = scale;
    }
    for (uint32_t k = 0; k < m->tiles; k++, tile += tile_bytes) {
        if (real)
            source_inputs(s, t, row, k * CPU_TILE, in);
        put_inputs(m, isa, tile, column % CPU_LANES, in,
                   scale > 0 ? 1 / scale : 0);
    }
}

void cpu_matrix_pack(struct cpu_matrix *m, const struct cpu_source *s,
                     const struct cpu_isa *isa, unsigned thread,
                     unsigned threads)
{
    const uint32_t panels = m->columns / CPU_LANES;
    const uint32_t first = (uint32_t)((uint64_t)panels * thread / threads);
    const uint32_t last = (uint32_t)((uint64_t)panels * (thread + 1) / threads);

    for (uint32_t column = first * CPU_LANES; column < last * CPU_LANES;
         column++)
        pack_output(m, s, isa, column);
}

void cpu_matrix_row(const struct cpu_matrix *m, const struct cpu_isa *isa,
                    uint32_t row, float *out, uint32_t n)
{
    const char *panel = m->data + row / CPU_LANES * panel_bytes(m);
    const unsigned lane = row % CPU_LANES;

    for (uint32_t k = 0; k < n; k++) {
        if (m->format == CPU_FP32) {
            memcpy(out + k, panel + 64 * (size_t)k + 4 * lane, sizeof *out);
        } else if (m->format == CPU_INT8) {
            out[k] =
                (float)(int8_t)panel[16 * (size_t)k + lane] * m->scale[row];
        }
    }
    if (m->format != CPU_BF16)
        return;
    for (uint32_t k = 0; k < m->tiles * CPU_TILE; k++) {
        const uint32_t input = k / 16 * 16 + isa->order[k % 16];
        uint16_t h;

        memcpy(&h, panel + 64 * (size_t)(k / 2) + 4 * lane + 2 * (k % 2),
               sizeof h);
        if (input < n)
            out[input] = from_bf16(h);
    }
}

enum cpu_rows cpu_matrix_rows(const struct cpu_matrix *m,
                              const struct cpu_isa *isa, bool large)
{
    if (m->format == CPU_FP32)
        return CPU_ROWS_FP32;
    if (large ? isa->half : isa->half_decode && m->format == CPU_BF16)
        return CPU_ROWS_BF16;
    return CPU_ROWS_ROUNDED;
}

size_t cpu_row_stride(enum cpu_rows kind, uint32_t n)
{
    return (size_t)up(n, CPU_TILE) * (kind == CPU_ROWS_BF16 ? 2 : 4) + 64;
}

void cpu_matrix_mul(const struct cpu_matrix *m, const struct cpu_isa *isa,
                    const void *a, size_t stride, enum cpu_rows kind,
                    unsigned rows, uint32_t first, uint32_t last,
                    const struct cpu_finish *f, float *c, char *spare)
{
    const size_t bytes = panel_bytes(m);
    const size_t spare_bytes = (size_t)m->tiles * 1024;
    struct cpu_finish end = *f;

    end.scale = m->scale;
    for (uint32_t panel = first; panel < last; panel += 2) {
        const char *p = m->data + panel * bytes;
        const char *q = panel + 1 < last ? p + bytes : NULL;

        if (kind != CPU_ROWS_BF16) {
            /* After the last ones nothing is known to come. */
            const struct cpu_panels both = {
                p, q, panel + 2 < last ? p + 2 * bytes : p,
                panel + 3 < last ? p + 3 * bytes : q};

            isa->mul(c, 32, a, stride, rows, &both, m->tiles, m->format);
        } else if (m->format == CPU_INT8) {
            uint16_t *wide = (uint16_t *)(void *)spare;
            uint16_t *next = (uint16_t *)(void *)(spare + spare_bytes);

            isa->widen(wide, (const int8_t *)p, m->tiles);
            if (q)
                isa->widen(next, (const int8_t *)q, m->tiles);
            isa->mul_half(c, 32, a, stride, rows, wide, q ? next : NULL,
                          m->tiles);
        } else {
            isa->mul_half(c, 32, a, stride, rows, p, q, m->tiles);
        }
        isa->finish(&end, c, rows, panel * CPU_LANES, m->columns);
    }
}

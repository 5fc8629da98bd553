#include "kernels/cpu/cpu_i.h"
#include "kernels/tables.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Memory is laid out twice: without a base to learn the size, then for good. */
struct arena {
    char *base;
    size_t used;
};

static void *take(struct arena *a, size_t bytes)
{
    void *p = a->base ? a->base + a->used : NULL;

    a->used += (bytes + 63) / 64 * 64;
    return p;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static uint32_t divide_up(uint32_t n, uint32_t by)
{
    return n / by + (n % by > 0);
}

/* A layer's tensors, of either tower. */
struct tensors {
    const struct ocr_tensor *norm1, *norm2, *q_norm, *k_norm;
    struct cpu_source qkv, o, gate_up, down;
};

static struct tensors vision_tensors(const struct ocr_model *m, uint32_t i)
{
    const struct ocr_vision_layer *l = &m->vision.layer[i];

    return (struct tensors){
        .norm1 = &l->attention_norm,
        .norm2 = &l->ffn_norm,
        .qkv = {.part = {&l->q, &l->k, &l->v}},
        .o = {.part = {&l->o}},
        .gate_up = {.part = {&l->gate, &l->up}, .alternate = true},
        .down = {.part = {&l->down}},
    };
}

static struct tensors text_tensors(const struct ocr_model *m, uint32_t i)
{
    const struct ocr_text_layer *l = &m->text.layer[i];

    return (struct tensors){
        .norm1 = &l->input_norm,
        .norm2 = &l->post_norm,
        .q_norm = &l->q_norm,
        .k_norm = &l->k_norm,
        .qkv = {.part = {&l->q, &l->k, &l->v}},
        .o = {.part = {&l->o}},
        .gate_up = {.part = {&l->gate, &l->up}, .alternate = true},
        .down = {.part = {&l->down}},
    };
}

static struct tensors tensors_of(const struct ocr_backend *b,
                                 const struct cpu_tower *t,
                                 const struct ocr_model *m, uint32_t i)
{
    return t == &b->text ? text_tensors(m, i) : vision_tensors(m, i);
}

/* Floats that `n` matrices need as they are laid out. */
static void lay_matrix(struct arena *a, struct cpu_matrix *m,
                       const struct cpu_source *s, enum cpu_format format)
{
    const size_t bytes = cpu_matrix_shape(m, s, format);

    m->data = take(a, bytes);
    if (format == CPU_INT8)
        m->scale = take(a, m->columns * sizeof *m->scale);
}

static float *lay_vector(struct arena *a, const struct ocr_tensor *t)
{
    return t ? take(a, t->cols * sizeof(float)) : NULL;
}

static void lay_tower(struct ocr_backend *b, struct arena *a,
                      struct cpu_tower *t, const struct ocr_model *model,
                      enum cpu_format format)
{
    for (uint32_t i = 0; i < t->layers; i++) {
        const struct tensors from = tensors_of(b, t, model, i);
        struct cpu_layer *l = &t->layer[i];

        l->norm1 = lay_vector(a, from.norm1);
        l->norm2 = lay_vector(a, from.norm2);
        l->q_norm = lay_vector(a, from.q_norm);
        l->k_norm = lay_vector(a, from.k_norm);
        lay_matrix(a, &l->qkv, &from.qkv, format);
        lay_matrix(a, &l->o, &from.o, format);
        lay_matrix(a, &l->gate_up, &from.gate_up, format);
        lay_matrix(a, &l->down, &from.down, format);
    }
}

static enum cpu_format exact_format(const struct ocr_backend *b)
{
    return b->config.precision == OCR_PRECISION_FP32 ? CPU_FP32 : CPU_BF16;
}

static enum cpu_format text_format(const struct ocr_backend *b)
{
    return b->config.precision == OCR_PRECISION_INT8 ? CPU_INT8
                                                     : exact_format(b);
}

static struct cpu_source merging_source(const struct ocr_model *m)
{
    return (struct cpu_source){
        .part = {&m->projector.merging},
        .unfold = m->projector.merge * m->projector.merge,
    };
}

static void lay_weights(struct ocr_backend *b, struct arena *a,
                        const struct ocr_model *m)
{
    const enum cpu_format format = exact_format(b);
    const struct cpu_source merging = merging_source(m);

    lay_tower(b, a, &b->vision, m, format);
    lay_tower(b, a, &b->text, m, text_format(b));
    b->ln_pre = lay_vector(a, &m->vision.ln_pre);
    b->projector_norm = lay_vector(a, &m->projector.norm);
    b->text_norm = lay_vector(a, &m->text.norm);
    lay_matrix(a, &b->patch_conv,
               &(struct cpu_source){.part = {&m->vision.patch_conv}}, format);
    lay_matrix(a, &b->merging, &merging, format);
    lay_matrix(a, &b->linear_1,
               &(struct cpu_source){.part = {&m->projector.linear_1}}, format);
    lay_matrix(a, &b->linear_2,
               &(struct cpu_source){.part = {&m->projector.linear_2}}, format);
    lay_matrix(a, &b->embedding,
               &(struct cpu_source){.part = {&m->text.embedding}}, format);
    if (!b->tied)
        lay_matrix(a, &b->head, &(struct cpu_source){.part = {&m->text.head}},
                   text_format(b));
}

static void lay_tables(struct ocr_backend *b, struct arena *a)
{
    const uint32_t positions = b->plan.slot_blocks * OCR_BLOCK_TOKENS;
    const size_t text = positions * (b->text.kv.head_dim / 2) * sizeof(float);
    const size_t vision =
        2 * b->grid * (b->vision.kv.head_dim / 4) * sizeof(float);

    b->text_cosine = take(a, text);
    b->text_sine = take(a, text);
    b->vision_cosine = take(a, vision);
    b->vision_sine = take(a, vision);
}

/* The largest of what either tower needs per row. */
struct widths {
    size_t hidden, attended, a, h, wide, acc, row, tiles;
};

static size_t fp32_stride(uint32_t n)
{
    return cpu_row_stride(CPU_ROWS_FP32, n);
}

static void widen(struct widths *w, const struct cpu_tower *t)
{
    const uint32_t attended = t->heads * t->kv.head_dim;

    w->hidden = larger(w->hidden, t->hidden);
    w->attended = larger(w->attended, attended);
    w->a =
        larger(w->a, fp32_stride(attended > t->hidden ? attended : t->hidden));
    w->h = larger(w->h, fp32_stride(t->inner));
    w->wide = larger(w->wide, t->layer[0].qkv.columns);
    w->acc = larger(w->acc, t->kv.v_panels * CPU_LANES);
    w->row = larger(w->row, t->hidden);
    w->tiles = larger(w->tiles, larger(divide_up(attended, CPU_TILE),
                                       divide_up(t->inner, CPU_TILE)));
    w->tiles = larger(w->tiles, divide_up(t->hidden, CPU_TILE));
}

static struct widths widths_of(const struct ocr_backend *b)
{
    const uint32_t pixels = 3 * b->patch * b->patch;
    struct widths w = {0};

    widen(&w, &b->vision);
    widen(&w, &b->text);
    w.a = larger(w.a, fp32_stride(pixels));
    w.a = larger(w.a, fp32_stride(b->merging.tiles * CPU_TILE));
    w.wide = larger(w.wide, b->patch_conv.columns);
    w.wide = larger(w.wide, larger(b->merging.columns, b->linear_1.columns));
    w.row = larger(w.row, larger(pixels, b->merging.tiles * CPU_TILE));
    return w;
}

static size_t full(size_t rows)
{
    return (rows + 31) / 32 * 32;
}

static void lay_scratch(struct ocr_backend *b, struct arena *a,
                        struct cpu_scratch *s, const struct widths *w)
{
    const size_t rows = full(b->isa->block);

    s->a = take(a, rows * w->a);
    s->h = take(a, rows * w->h);
    s->p = take(a, CPU_ATTEND_ROWS *
                       cpu_row_stride(CPU_ROWS_FP32, OCR_SPLIT_TOKENS));
    s->spare = take(
        a, b->config.precision == OCR_PRECISION_INT8 ? w->tiles * 2048 : 0);
    s->v = take(a, b->text.kv.v_panels * b->text.kv.v_half * CPU_SPLIT_BLOCKS);
    s->wide = take(a, rows * w->wide * sizeof(float));
    s->c = take(a, full(larger(larger(rows, CPU_ATTEND_ROWS), b->plan.slots)) *
                       32 * sizeof(float));
    s->row = take(a, w->row * sizeof(float));
    s->scores = take(a, CPU_ATTEND_ROWS * CPU_SCORE_STRIDE * sizeof(float));
    s->acc = take(a, CPU_ATTEND_ROWS * w->acc * sizeof(float));
    s->angles = take(a, larger(b->vision.kv.head_dim, b->text.kv.head_dim) *
                            sizeof(float));
}

static size_t q_bytes(const struct ocr_backend *b, const struct cpu_tower *t,
                      uint32_t rows)
{
    const size_t head =
        cpu_row_stride(cpu_attend_rows(b, true), t->kv.head_dim) - 64;

    return (rows + 32) * (head * t->heads + 64);
}

static size_t split_bytes(const struct cpu_tower *t, uint32_t tokens)
{
    return (size_t)t->kv_heads * divide_up(tokens, OCR_SPLIT_TOKENS) *
           CPU_SPLIT_BLOCKS * t->kv.v_panels * t->kv.v_half;
}

static void lay_pass(struct ocr_backend *b, struct arena *a,
                     const struct widths *w)
{
    const uint32_t patches = b->plan.max_patches;
    const uint32_t prompt = b->config.prompt_tokens;
    const size_t rows = larger(larger(patches, prompt), b->plan.slots);

    b->x = take(a, rows * w->hidden * sizeof(float));
    b->q = take(a, larger(q_bytes(b, &b->vision, patches),
                          q_bytes(b, &b->text, prompt)));
    b->attended = take(a, rows * w->attended * sizeof(float));
    b->vision_k =
        take(a, (size_t)b->vision.heads * divide_up(patches, OCR_BLOCK_TOKENS) *
                    b->vision.kv.k_bytes);
    b->split_v = take(a, larger(split_bytes(&b->vision, patches),
                                split_bytes(&b->text, prompt)));
}

static void lay_step(struct ocr_backend *b, struct arena *a,
                     const struct widths *w)
{
    const struct cpu_matrix *head = b->tied ? &b->embedding : &b->head;
    const size_t rows = full(b->plan.slots);

    b->rows_a = take(a, rows * w->a);
    b->rows_h = take(a, rows * w->h);
    b->wide = take(a, rows * larger(head->columns, w->wide) * sizeof(float));
    b->candidates = take(a, b->vocab * sizeof *b->candidates);
}

static void lay_slot(struct ocr_backend *b, struct arena *a, struct cpu_slot *s)
{
    const size_t tokens = b->plan.max_patches / (b->merge * b->merge);

    s->table = take(a, b->plan.slot_blocks * sizeof *s->table);
    s->features = take(a, tokens * b->text.hidden * sizeof *s->features);
    s->seen = take(a, divide_up(b->vocab, 64) * sizeof *s->seen);
    s->logits = take(a, b->vocab * sizeof *s->logits);
}

static void lay_out(struct ocr_backend *b, struct arena *a,
                    const struct ocr_model *m)
{
    const struct cpu_heads *kv = &b->text.kv;
    struct widths w;

    lay_weights(b, a, m);
    b->plan.weight_bytes = a->used;
    b->plan.kv_bytes = (uint64_t)b->plan.blocks * b->text.layers *
                       b->text.kv_heads *
                       (kv->k_bytes + kv->v_panels * kv->v_half);
    b->kv = take(a, b->plan.kv_bytes);
    w = widths_of(b);
    lay_tables(b, a);
    lay_pass(b, a, &w);
    lay_step(b, a, &w);
    for (unsigned i = 0; i < b->config.threads; i++)
        lay_scratch(b, a, &b->scratch[i], &w);
    for (unsigned i = 0; i < b->plan.slots; i++)
        lay_slot(b, a, &b->slot[i]);
    b->plan.workspace_bytes = a->used - b->plan.weight_bytes - b->plan.kv_bytes;
}

static void vector(float *out, const struct ocr_tensor *t)
{
    if (t)
        ocr_tensor_row(t, 0, out);
}

struct pack {
    struct cpu_matrix *m;
    const struct cpu_source *s;
    const struct cpu_isa *isa;
};

static void pack_share(void *arg, unsigned thread, unsigned threads)
{
    const struct pack *p = arg;

    cpu_matrix_pack(p->m, p->s, p->isa, thread, threads);
}

static void pack(struct ocr_backend *b, const struct ocr_model *model,
                 struct cpu_matrix *m, struct cpu_source s)
{
    cpu_pool_run(b->pool, pack_share,
                 &(struct pack){.m = m, .s = &s, .isa = b->isa});
    for (int i = 0; model->forget && i < 3 && s.part[i]; i++)
        model->forget(s.part[i]);
}

static void pack_tower(struct ocr_backend *b, const struct cpu_tower *t,
                       const struct ocr_model *model)
{
    for (uint32_t i = 0; i < t->layers; i++) {
        const struct tensors from = tensors_of(b, t, model, i);
        struct cpu_layer *l = &t->layer[i];

        vector(l->norm1, from.norm1);
        vector(l->norm2, from.norm2);
        vector(l->q_norm, from.q_norm);
        vector(l->k_norm, from.k_norm);
        pack(b, model, &l->qkv, from.qkv);
        pack(b, model, &l->o, from.o);
        pack(b, model, &l->gate_up, from.gate_up);
        pack(b, model, &l->down, from.down);
    }
}

static void pack_weights(struct ocr_backend *b, const struct ocr_model *m)
{
    pack_tower(b, &b->vision, m);
    pack_tower(b, &b->text, m);
    vector(b->ln_pre, &m->vision.ln_pre);
    vector(b->projector_norm, &m->projector.norm);
    vector(b->text_norm, &m->text.norm);
    pack(b, m, &b->patch_conv,
         (struct cpu_source){.part = {&m->vision.patch_conv}});
    pack(b, m, &b->merging, merging_source(m));
    pack(b, m, &b->linear_1,
         (struct cpu_source){.part = {&m->projector.linear_1}});
    pack(b, m, &b->linear_2,
         (struct cpu_source){.part = {&m->projector.linear_2}});
    if (!b->tied)
        pack(b, m, &b->head, (struct cpu_source){.part = {&m->text.head}});
    pack(b, m, &b->embedding,
         (struct cpu_source){.part = {&m->text.embedding}});
}

static void fill_tables(struct ocr_backend *b, const struct ocr_model *m)
{
    ocr_table_text(b->text_cosine, b->text_sine, &m->text,
                   b->plan.slot_blocks * OCR_BLOCK_TOKENS);
    ocr_table_page(b->vision_cosine, b->vision_sine, &m->vision);
    ocr_table_pixels(b->pixel, m);
}

static int check_shape(const struct cpu_tower *t, const char *name,
                       uint32_t even, struct ocr_err *err)
{
    if (!t->layers || !t->heads || !t->kv_heads || t->heads % t->kv_heads ||
        t->heads / t->kv_heads > CPU_ATTEND_ROWS || !t->kv.head_dim ||
        t->kv.head_dim % even || !t->hidden)
        return ocr_err_set(err, -EINVAL,
                           "cpu: %s with %" PRIu32 " heads of %" PRIu32
                           " on %" PRIu32 " is not possible",
                           name, t->heads, t->kv.head_dim, t->kv_heads);
    return 0;
}

static int take_shapes(struct ocr_backend *b, const struct ocr_model *m,
                       struct ocr_err *err)
{
    const struct ocr_vision *v = &m->vision;
    const struct ocr_text *t = &m->text;
    int rc;

    b->vision = (struct cpu_tower){.layers = v->layers,
                                   .hidden = v->hidden,
                                   .heads = v->heads,
                                   .kv_heads = v->heads,
                                   .inner = v->intermediate,
                                   .eps = v->norm_eps};
    b->text = (struct cpu_tower){.layers = t->layers,
                                 .hidden = t->hidden,
                                 .heads = t->heads,
                                 .kv_heads = t->kv_heads,
                                 .inner = t->intermediate,
                                 .eps = t->norm_eps,
                                 .causal = true,
                                 .tap = OCR_TAP_TEXT};
    cpu_heads_init(&b->vision.kv, v->head_dim, exact_format(b));
    cpu_heads_init(&b->text.kv, t->head_dim, exact_format(b));
    b->patch = v->patch;
    b->grid = v->grid;
    b->merge = m->projector.merge;
    b->projector_eps = m->projector.norm_eps;
    b->vocab = t->vocab;
    b->max_positions = t->max_positions;
    b->image_token = m->image_token;
    b->tied = b->config.precision != OCR_PRECISION_INT8 &&
              t->head.data == t->embedding.data;
    rc = check_shape(&b->vision, "vision encoder", 4, err);
    return rc ? rc : check_shape(&b->text, "decoder", 2, err);
}

static unsigned usable_processors(void)
{
    cpu_set_t set;
    const int n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);

    return n > 0 ? (unsigned)n : 1;
}

static void complete_config(struct ocr_backend *b)
{
    struct ocr_backend_config *c = &b->config;
    const uint32_t merged = b->merge * b->merge;

    c->threads = c->threads ? c->threads : usable_processors();
    c->slots = c->slots ? c->slots : 1;
    c->max_patches = c->max_patches ? c->max_patches : b->grid * b->grid;
    c->prompt_tokens =
        c->prompt_tokens ? c->prompt_tokens : c->max_patches / merged + 64;
    c->max_tokens = c->max_tokens ? c->max_tokens : 4096;
}

static void set_plan(struct ocr_backend *b, unsigned slots)
{
    const uint64_t tokens =
        (uint64_t)b->config.prompt_tokens + b->config.max_tokens + 1;
    const uint32_t most =
        tokens < b->max_positions ? (uint32_t)tokens : b->max_positions;

    b->plan.slots = slots;
    b->plan.slot_blocks = divide_up(most, OCR_BLOCK_TOKENS);
    b->plan.blocks = slots * b->plan.slot_blocks;
    b->plan.max_patches = b->config.max_patches;
    b->plan.kv_type = exact_format(b) == CPU_FP32 ? OCR_KV_FP32 : OCR_KV_BF16;
}

static size_t bytes_for(struct ocr_backend *b, const struct ocr_model *m,
                        unsigned slots)
{
    struct arena a = {0};

    set_plan(b, slots);
    lay_out(b, &a, m);
    return a.used;
}

/* As many slots as the memory allows, at most those asked for. */
static int plan_memory(struct ocr_backend *b, const struct ocr_model *m,
                       struct ocr_err *err)
{
    const uint64_t limit = b->config.memory;
    unsigned slots = b->config.slots;
    size_t bytes = bytes_for(b, m, slots);

    while (limit && bytes > limit && slots > 1)
        bytes = bytes_for(b, m, --slots);
    if (limit && bytes > limit)
        return ocr_err_set(err, -ENOMEM,
                           "cpu: one page needs %zu bytes of memory, "
                           "%" PRIu64 " more than allowed",
                           bytes, bytes - limit);
    b->memory_bytes = bytes;
    return 0;
}

static int allocate(struct ocr_backend *b, const struct ocr_model *m,
                    struct ocr_err *err)
{
    struct arena a = {0};

    b->memory = mmap(NULL, b->memory_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->memory == MAP_FAILED) {
        b->memory = NULL;
        return ocr_err_errno(err, "cpu: cannot get %zu bytes of memory",
                             b->memory_bytes);
    }
    madvise(b->memory, b->memory_bytes, MADV_HUGEPAGE);
    a.base = b->memory;
    lay_out(b, &a, m);
    return 0;
}

/* Lists whose lengths the shapes give. */
static int allocate_lists(struct ocr_backend *b, struct ocr_err *err)
{
    b->vision.layer = calloc(b->vision.layers, sizeof *b->vision.layer);
    b->text.layer = calloc(b->text.layers, sizeof *b->text.layer);
    b->scratch = calloc(b->config.threads, sizeof *b->scratch);
    b->slot = calloc(b->config.slots, sizeof *b->slot);
    if (!b->vision.layer || !b->text.layer || !b->scratch || !b->slot)
        return ocr_err_set(err, -ENOMEM, "cpu: no memory for lists");
    return 0;
}

static void choose_isa(struct ocr_backend *b)
{
    const char *why = NULL;
    char line[160];

    b->isa = cpu_isa_choose(&why);
    if (!why || !b->config.log)
        return;
    snprintf(line, sizeof line,
             "cpu: the model works with %s; this processor has more, but %s",
             b->isa->name, why);
    b->config.log(b->config.log_arg, line);
}

int cpu_open(struct ocr_backend *b, const struct ocr_model *model,
             struct ocr_err *err)
{
    int rc;

    if (b->config.precision == OCR_PRECISION_FP16)
        return ocr_err_set(err, -EINVAL,
                           "precision=fp16 is for GPUs; on the CPU it is bf16, "
                           "int8 or fp32");
    rc = take_shapes(b, model, err);
    if (rc)
        return rc;
    complete_config(b);
    choose_isa(b);
    rc = allocate_lists(b, err);
    rc = rc ? rc : plan_memory(b, model, err);
    rc = rc ? rc : allocate(b, model, err);
    rc = rc ? rc : cpu_pool_new(&b->pool, b->config.threads, err);
    if (rc)
        return rc;
    fill_tables(b, model);
    pack_weights(b, model);
    snprintf(b->plan.device, sizeof b->plan.device, "%s, %u thread%s",
             b->isa->name, b->config.threads,
             b->config.threads == 1 ? "" : "s");
    return 0;
}

void cpu_close(struct ocr_backend *b)
{
    cpu_pool_free(b->pool);
    if (b->memory)
        munmap(b->memory, b->memory_bytes);
    free(b->vision.layer);
    free(b->text.layer);
    free(b->scratch);
    free(b->slot);
}

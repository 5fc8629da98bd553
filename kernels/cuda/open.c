#include "kernels/cuda/cuda_i.h"
#include "kernels/gpu_trouble.h"
#include "kernels/tables.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OLDEST = 75, /* compute capability */
    BF16 = 80,   /* the first with bf16 */
    MIB = 1 << 20,
    RETRIES = 4,
};

/* What the driver, our kernels, graphs, and those of cuBLASLt take beside the
 * arena: about 0.6 GiB on an H200. */
static const uint64_t context_bytes = 768 * (uint64_t)MIB;
/* What of it may still grow after the context was made. */
static const uint64_t growth_bytes = 256 * (uint64_t)MIB;

static int complain(struct ocr_err *err, int code, const char *what)
{
    cudaGetLastError(); /* or the next innocent call would report it */
    return ocr_gpu_err(err, code, what, cudaGetErrorString((cudaError_t)code));
}

/* ---- the card ----------------------------------------------------------- */

static int device_number(const char *device)
{
    return strncmp(device, "cuda:", 5) ? 0 : atoi(device + 5);
}

static int capability(const struct cudaDeviceProp *card)
{
    return card->major * 10 + card->minor;
}

static int find_card(const char *device, struct cudaDeviceProp *card,
                     struct ocr_err *err)
{
    const int number = device_number(device);
    int count = 0, code = (int)cudaGetDeviceCount(&count);

    if (!code && !count)
        code = OCR_GPU_NONE;
    if (!code && number >= count)
        code = OCR_GPU_NO_SUCH;
    if (!code)
        code = (int)cudaGetDeviceProperties(card, number);
    if (!code && capability(card) < OLDEST)
        code = OCR_GPU_TOO_OLD;
    if (!code)
        code = (int)cudaSetDevice(number);
    return code ? complain(err, code, device) : 0;
}

int cuda_probe(const char *device, char *out, size_t size, struct ocr_err *err)
{
    struct cudaDeviceProp card = {.major = 0};
    size_t available, total;
    int rc = find_card(device, &card, err), code;

    rc = rc ? rc : cuda_products_check(err);
    if (rc)
        return rc;
    code = (int)cudaMemGetInfo(&available, &total);
    if (!code)
        code = (int)cuda_ops_prepare(capability(&card) < BF16 ? OCR_HALF_FP16
                                                              : OCR_HALF_BF16);
    if (code)
        return complain(err, code, card.name);
    snprintf(out, size,
             "%s, %.1f GiB, %.1f free, %d multiprocessors, compute %d.%d",
             card.name, (double)total / 0x1p30, (double)available / 0x1p30,
             card.multiProcessorCount, card.major, card.minor);
    return 0;
}

static struct cuda_shape shape_of(const struct ocr_model *m)
{
    return (struct cuda_shape){
        .patch = m->vision.patch,
        .merge = m->projector.merge,
        .vision_hidden = m->vision.hidden,
        .vision_head_dim = m->vision.head_dim,
        .vision_inner = m->vision.intermediate,
        .projector_hidden = m->text.hidden,
        .text_hidden = m->text.hidden,
        .text_heads = m->text.heads,
        .text_kv_heads = m->text.kv_heads,
        .text_head_dim = m->text.head_dim,
        .text_inner = m->text.intermediate,
        .vocab = m->text.vocab,
    };
}

static int take_model(struct ocr_backend *b, const struct ocr_model *m,
                      const struct cudaDeviceProp *card, struct ocr_err *err)
{
    const struct cuda_shape shape = shape_of(m);
    const char *refusal = cuda_ops_refusal(&shape);

    if (b->config.precision != OCR_PRECISION_BF16 &&
        b->config.precision != OCR_PRECISION_FP16)
        return ocr_err_set(err, -EINVAL,
                           "a GPU reads with precision=bf16 or fp16; fp32 and "
                           "int8 are for the CPU");
    if (b->config.precision == OCR_PRECISION_BF16 && capability(card) < BF16)
        return ocr_err_set(
            err, -EOPNOTSUPP,
            "%s cannot compute in bf16 (compute capability %d.%d "
            "is below 8.0); give precision=fp16",
            card->name, card->major, card->minor);
    if (refusal)
        return ocr_err_set(err, -EINVAL,
                           "the GPU cannot read with this model: %s", refusal);
    b->half = b->config.precision == OCR_PRECISION_FP16 ? OCR_HALF_FP16
                                                        : OCR_HALF_BF16;
    b->vision = m->vision;
    b->text = m->text;
    b->vision.layer = NULL;
    b->text.layer = NULL;
    b->merge = m->projector.merge;
    b->projector_eps = m->projector.norm_eps;
    b->image_token = m->image_token;
    return 0;
}

/* ---- memory ------------------------------------------------------------- */

/* The shape of a step, as far as its scratch depends on it. */
static struct cuda_decode step_shape(const struct ocr_backend *b,
                                     uint32_t slot_blocks)
{
    return (struct cuda_decode){
        .half = b->half,
        .layers = b->text.layers,
        .hidden = b->text.hidden,
        .heads = b->text.heads,
        .inner = b->text.intermediate,
        .vocab = b->text.vocab,
        .eps = b->text.norm_eps,
        .kv = {.layers = b->text.layers, .kv_heads = b->text.kv_heads},
        .slot_blocks = slot_blocks,
    };
}

static unsigned tiles_of(unsigned rows)
{
    return (rows + CUDA_TILE_ROWS - 1) / CUDA_TILE_ROWS;
}

static struct cuda_want want_of(const struct ocr_backend *b,
                                const struct ocr_model *m)
{
    struct cuda_want want = {
        .slots = b->config.slots,
        .max_patches = b->config.max_patches,
        .prompt_tokens = b->config.prompt_tokens,
        .max_tokens = b->config.max_tokens,
        .lt = CUDA_PRODUCT_WORKSPACE,
    };
    struct cuda_decode d;

    cuda_want_complete(&want, m);
    d = step_shape(b, cuda_want_slot_blocks(&want, m));
    want.step_scratch = cuda_decode_scratch(&d, tiles_of(want.slots));
    want.first_scratch = cuda_decode_scratch(&d, 1);
    return want;
}

/* Of `available` bytes, which are free beside the context. */
static int plan_within(struct ocr_backend *b, const struct ocr_model *m,
                       const char *card, uint64_t available, double share,
                       struct ocr_err *err)
{
    struct cuda_want want = want_of(b, m);
    const uint64_t allowed = b->config.memory;

    if (!allowed)
        want.bytes = (uint64_t)((double)available * share);
    else if (allowed > context_bytes)
        want.bytes = allowed - context_bytes;
    if (available < growth_bytes)
        want.bytes = 0;
    else if (want.bytes > available - growth_bytes)
        want.bytes = available - growth_bytes;
    want.bytes = want.bytes ? want.bytes : 1;
    if (cuda_plan_make(&b->memory, m, &want))
        return ocr_gpu_err_small(
            err, card, allowed && allowed < available ? allowed : available,
            b->memory.needed + (allowed ? context_bytes : growth_bytes));
    return 0;
}

static int make_plan(struct ocr_backend *b, const struct ocr_model *m,
                     const struct cudaDeviceProp *card, double share,
                     struct ocr_err *err)
{
    size_t available, total;
    const int code = (int)cudaMemGetInfo(&available, &total);

    if (code)
        return complain(err, code, card->name);
    return plan_within(b, m, card->name, available, share, err);
}

static int take_arena(struct ocr_backend *b, const struct ocr_model *m,
                      const struct cudaDeviceProp *card, struct ocr_err *err)
{
    int code = 0;

    /* Another process may take memory in between. */
    for (int i = 0; i < RETRIES; i++) {
        void *arena = NULL;
        const int rc = make_plan(b, m, card, 0.9 - 0.05 * i, err);

        if (rc)
            return rc;
        code = (int)cudaMalloc(&arena, b->memory.total);
        if (!code) {
            b->arena = arena;
            return 0;
        }
        cudaGetLastError();
    }
    return complain(err, code, card->name);
}

static int take_host(struct ocr_backend *b, struct ocr_err *err)
{
    const size_t slots = b->memory.slots;
    void *stage = NULL, *cancel = NULL, *out = NULL;
    int code = (int)cudaHostAlloc(&stage, CUDA_STAGE_PIXELS + CUDA_ALIGN,
                                  cudaHostAllocDefault);

    if (!code)
        code = (int)cudaHostAlloc(&cancel, slots * sizeof *b->cancel,
                                  cudaHostAllocMapped);
    b->stage = stage;
    b->cancel = cancel;
    if (!code)
        code = (int)cudaHostAlloc(&out, slots * CUDA_RING * sizeof *b->out,
                                  cudaHostAllocMapped);
    b->out = out;
    if (code)
        return complain(err, code, "cuda: pinned memory");
    memset(b->cancel, 0, slots * sizeof *b->cancel);
    memset(b->out, 0, slots * CUDA_RING * sizeof *b->out);
    return 0;
}

static int make_streams(struct ocr_backend *b, struct ocr_err *err)
{
    const unsigned flags = cudaEventBlockingSync | cudaEventDisableTiming;
    int least, most;
    int code = (int)cudaDeviceGetStreamPriorityRange(&least, &most);

    if (!code)
        code = (int)cudaStreamCreateWithPriority(&b->page_stream,
                                                 cudaStreamNonBlocking, least);
    if (!code)
        code = (int)cudaStreamCreateWithPriority(&b->step_stream,
                                                 cudaStreamNonBlocking, most);
    if (!code)
        code = (int)cudaEventCreateWithFlags(&b->page_done, flags);
    for (int i = 0; i < CUDA_AHEAD && !code; i++)
        code = (int)cudaEventCreateWithFlags(&b->layer_done[i], flags);
    for (int i = 0; i < CUDA_FLIGHTS && !code; i++)
        code = (int)cudaEventCreateWithFlags(&b->flight[i].done, flags);
    for (int i = 0; i < CUDA_FLIGHTS && !code; i++)
        code = (int)cudaHostAlloc((void **)&b->flight[i].stage,
                                  cuda_flight_words(b) * sizeof(uint32_t),
                                  cudaHostAllocDefault);
    return code ? complain(err, code, "cuda: streams") : 0;
}

/* ---- what lies there ---------------------------------------------------- */

static int send_table(struct ocr_backend *b, enum cuda_region region,
                      const void *table)
{
    return (int)cudaMemcpyAsync(cuda_at(b, region), table,
                                b->memory.bytes[region], cudaMemcpyHostToDevice,
                                b->page_stream);
}

static int send_tables(struct ocr_backend *b, const struct ocr_model *m,
                       struct ocr_err *err)
{
    float *text = malloc(b->memory.bytes[CUDA_TEXT_ROPE]);
    float *page = malloc(b->memory.bytes[CUDA_PAGE_ROPE]);
    float pixels[3][256];
    int code = 0;

    if (text && page) {
        ocr_table_text(text, text + b->memory.bytes[CUDA_TEXT_ROPE] / 8,
                       &m->text, b->memory.slot_blocks * OCR_BLOCK_TOKENS);
        ocr_table_page(page, page + b->memory.bytes[CUDA_PAGE_ROPE] / 8,
                       &m->vision);
        ocr_table_pixels(pixels, m);
        code = send_table(b, CUDA_TEXT_ROPE, text);
        code = code ? code : send_table(b, CUDA_PAGE_ROPE, page);
        code = code ? code : send_table(b, CUDA_PIXELS, pixels);
        code = code ? code : (int)cudaStreamSynchronize(b->page_stream);
    } else {
        code = OCR_GPU_NO_MEMORY;
    }
    free(text);
    free(page);
    return code ? complain(err, code, "cuda: tables") : 0;
}

/* All but weights and tables: nothing a page left is ever read, and what is
 * read before it is written is zero. */
static int clear(struct ocr_backend *b, struct ocr_err *err)
{
    int code = 0;

    for (int i = CUDA_KV_POOL; i < CUDA_REGIONS && !code; i++)
        if (i != CUDA_TEXT_ROPE && i != CUDA_PAGE_ROPE && i != CUDA_PIXELS)
            code = (int)cudaMemsetAsync(
                cuda_at(b, (enum cuda_region)i),
                i == CUDA_STEP_ROWS || i == CUDA_FIRST_ROWS ? 0xff : 0,
                b->memory.bytes[i], b->page_stream);
    code = code ? code : (int)cudaStreamSynchronize(b->page_stream);
    memset(b->rows, 0xff, sizeof b->rows);
    return code ? complain(err, code, "cuda: memory") : 0;
}

static void describe_steps(struct ocr_backend *b)
{
    const float *rope = cuda_at(b, CUDA_TEXT_ROPE);
    struct cuda_decode d = step_shape(b, b->memory.slot_blocks);

    d.layer = b->weights.text;
    d.norm = b->weights.text_norm;
    d.embedding = b->weights.embedding;
    d.head = b->weights.head;
    d.cosine = rope;
    d.sine = rope + b->memory.bytes[CUDA_TEXT_ROPE] / 8;
    d.kv.data = cuda_at(b, CUDA_KV_POOL);
    d.kv.blocks = b->memory.blocks;
    d.tables = cuda_at(b, CUDA_BLOCK_TABLES);
    d.slots = b->memory.slots;
    d.slot = cuda_at(b, CUDA_SLOTS);
    d.seen = cuda_at(b, CUDA_SEEN);
    d.out = b->out;
    d.ring = CUDA_RING;
    d.cancel = b->cancel;
    b->step = b->first = d;
    b->step.rows = cuda_at(b, CUDA_STEP_ROWS);
    b->step.x = cuda_at(b, CUDA_STEP_X);
    b->step.logits = cuda_at(b, CUDA_STEP_LOGITS);
    b->step.scratch = cuda_at(b, CUDA_STEP_SCRATCH);
    b->first.rows = cuda_at(b, CUDA_FIRST_ROWS);
    b->first.x = cuda_at(b, CUDA_FIRST_X);
    b->first.logits = cuda_at(b, CUDA_FIRST_LOGITS);
    b->first.scratch = cuda_at(b, CUDA_FIRST_SCRATCH);
}

/* ---- graphs ------------------------------------------------------------- */

static int capture(struct ocr_backend *b, unsigned tiles)
{
    cudaGraph_t graph = NULL;
    int code = (int)cudaStreamBeginCapture(b->step_stream,
                                           cudaStreamCaptureModeThreadLocal);
    int end;

    if (code)
        return code;
    code = (int)cuda_decode_step(b->step_stream, &b->step, tiles);
    end = (int)cudaStreamEndCapture(b->step_stream, &graph);
    code = code ? code : end;
    if (!code)
        code = (int)cudaGraphInstantiate(&b->graph[tiles], graph, 0);
    if (!code)
        code = (int)cudaGraphUpload(b->graph[tiles], b->step_stream);
    if (graph)
        cudaGraphDestroy(graph);
    return code;
}

static void drop_graphs(struct ocr_backend *b)
{
    for (unsigned i = 0; i < CUDA_GRAPHS; i++)
        if (b->graph[i])
            cudaGraphExecDestroy(b->graph[i]);
    memset(b->graph, 0, sizeof b->graph);
}

int cuda_capture(struct ocr_backend *b, struct ocr_err *err)
{
    int code = 0;

    drop_graphs(b);
    for (unsigned i = 1; i <= tiles_of(b->memory.slots) && !code; i++)
        code = capture(b, i);
    code = code ? code : (int)cudaStreamSynchronize(b->step_stream);
    return code ? complain(err, code, "cuda: graphs") : 0;
}

/* ---- once, before anybody waits ----------------------------------------- */

static void warm_page(struct cuda_run *r, uint32_t lines, uint32_t columns)
{
    if (lines * columns <= r->b->memory.max_patches)
        cuda_encode(r, lines, columns, cuda_at(r->b, CUDA_FEATURES));
}

static void warm_prompt(struct cuda_run *r, uint32_t rows)
{
    struct ocr_backend *b = r->b;

    if (rows <= b->memory.prompt_tokens &&
        rows <= b->memory.slot_blocks * OCR_BLOCK_TOKENS)
        cuda_prefill(r, b->step.tables, 0, rows, cuda_at(b, CUDA_FEATURES));
}

/* cuBLASLt loads the code of a product when it is first used, and takes memory
 * for it: the sizes of common pages, and some beside them. */
static int warm_up(struct ocr_backend *b, struct ocr_err *err)
{
    static const uint32_t pages[][2] = {{110, 78},  {78, 110}, {110, 86},
                                        {110, 110}, {56, 40},  {20, 32},
                                        {2, 2}};
    static const uint32_t prompts[] = {1024, 109, 12, 301, 567, 2157, 3037};
    struct cuda_run r = {.b = b};

    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        warm_page(&r, pages[i][0], pages[i][1]);
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++)
        warm_prompt(&r, prompts[i]);
    CUDA_RUN(&r, cuda_decode_end(b->page_stream, &b->first, 1));
    CUDA_RUN(&r, cudaStreamSynchronize(b->page_stream));
    for (unsigned i = 1; i <= tiles_of(b->memory.slots); i++)
        CUDA_RUN(&r, cudaGraphLaunch(b->graph[i], b->step_stream));
    CUDA_RUN(&r, cudaStreamSynchronize(b->step_stream));
    if (r.code < 0)
        return ocr_err_set(err, r.err.code, "%s", r.err.text);
    return r.code ? complain(err, r.code, "cuda: a first page") : 0;
}

/* ---- open and close ----------------------------------------------------- */

static void fill_plan(struct ocr_backend *b, const struct cudaDeviceProp *card)
{
    const struct cuda_plan *m = &b->memory;

    b->plan = (struct ocr_backend_plan){
        .slots = m->slots,
        .blocks = m->blocks,
        .slot_blocks = m->slot_blocks,
        .max_patches = m->max_patches,
        .kv_type = b->half == OCR_HALF_FP16 ? OCR_KV_FP16 : OCR_KV_BF16,
        .weight_bytes = m->bytes[CUDA_WEIGHTS],
        .kv_bytes = m->bytes[CUDA_KV_POOL],
        .workspace_bytes =
            m->total - m->bytes[CUDA_WEIGHTS] - m->bytes[CUDA_KV_POOL],
    };
    snprintf(b->plan.device, sizeof b->plan.device, "%.60s", card->name);
}

/* The card with the model on it. */
static int start(struct ocr_backend *b, const struct ocr_model *model,
                 const struct cudaDeviceProp *card, struct ocr_err *err)
{
    int code = (int)cuda_ops_prepare(b->half), rc;

    if (code)
        return complain(err, code, card->name);
    rc = cuda_products_check(err);
    rc = rc ? rc : take_arena(b, model, card, err);
    rc = rc ? rc : take_host(b, err);
    rc = rc ? rc : make_streams(b, err);
    rc = rc ? rc
            : cuda_products_open(&b->products, cuda_at(b, CUDA_LT),
                                 b->half == OCR_HALF_FP16, err);
    rc = rc ? rc : cuda_weights_send(b, model, err);
    rc = rc ? rc : send_tables(b, model, err);
    if (rc)
        return rc;
    describe_steps(b);
    rc = clear(b, err);
    rc = rc ? rc : cuda_capture(b, err);
    rc = rc ? rc : warm_up(b, err);
    return rc ? rc : clear(b, err);
}

int cuda_open(struct ocr_backend *b, const struct ocr_model *model,
              struct ocr_err *err)
{
    struct cudaDeviceProp card = {.major = 0};
    int rc = find_card(b->config.device, &card, err);

    b->device = device_number(b->config.device);
    rc = rc ? rc : take_model(b, model, &card, err);
    rc = rc ? rc : start(b, model, &card, err);
    if (!rc)
        fill_plan(b, &card);
    return rc;
}

int cuda_plan(const struct ocr_backend_config *config,
              const struct ocr_model *model, uint64_t bytes,
              struct ocr_backend_plan *plan, struct ocr_err *err)
{
    struct ocr_backend *b = calloc(1, sizeof *b);
    struct cudaDeviceProp card = {.major = BF16 / 10};
    int rc = 0;

    if (!b)
        return ocr_err_set(err, -ENOMEM, "cuda: no memory");
    b->config = *config;
    if (!bytes)
        rc = find_card(config->device, &card, err);
    bytes = bytes ? bytes : card.totalGlobalMem;
    rc = rc ? rc : take_model(b, model, &card, err);
    rc = rc ? rc
            : plan_within(b, model, card.name,
                          bytes > context_bytes ? bytes - context_bytes : 0,
                          0.9, err);
    if (!rc)
        fill_plan(b, &card);
    *plan = b->plan;
    free(b);
    return rc;
}

void cuda_release(struct ocr_backend *b)
{
    if (b->page_stream)
        cudaStreamSynchronize(b->page_stream);
    if (b->step_stream)
        cudaStreamSynchronize(b->step_stream);
    drop_graphs(b);
    cuda_products_close(b->products);
    for (int i = 0; i < CUDA_AHEAD; i++)
        if (b->layer_done[i])
            cudaEventDestroy(b->layer_done[i]);
    if (b->page_done)
        cudaEventDestroy(b->page_done);
    for (int i = 0; i < CUDA_FLIGHTS; i++) {
        if (b->flight[i].done)
            cudaEventDestroy(b->flight[i].done);
        cudaFreeHost(b->flight[i].stage);
    }
    if (b->page_stream)
        cudaStreamDestroy(b->page_stream);
    if (b->step_stream)
        cudaStreamDestroy(b->step_stream);
    cudaFree(b->arena);
    cudaFreeHost(b->stage);
    cudaFreeHost(b->cancel);
    cudaFreeHost(b->out);
    free(b->weights.vision);
    free(b->weights.text);
}

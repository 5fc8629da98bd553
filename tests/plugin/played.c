#include "tests/plugin/played.h"

#include "kernels/cuda/plan.h"
#include "kernels/gpu_trouble.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SLOTS_MOST = 64,
    TICKETS = 4096,
    MIB_SHIFT = 20,
};
#define GUILTY ((uint64_t)1 << 62) /* its page's number, for the backend */
#define NOBODY UINT32_MAX

struct played played;

struct slot {
    bool open;
    uint64_t page;
    unsigned under_way; /* tickets whose last event was not taken yet */
    uint32_t blocks;    /* of its table */
};

/* What a ticket was for: its last event ends it. */
struct ticket {
    uint64_t number; /* 0: free */
    bool steps;
    uint64_t slots; /* a bit each */
};

struct ocr_backend {
    const struct ocr_backend_ops *ops;
    struct ocr_backend *inner;
    struct ocr_backend_plan plan;
    uint32_t image_token;
    uint64_t guilty; /* the engine's number of that page, 0: none */
    bool muted;
    struct slot slot[SLOTS_MOST];
    struct ticket ticket[TICKETS];
    uint32_t *owner; /* [inner blocks] slot that has it, or NOBODY */
    uint32_t owners;
};

/* ---- what it is told ---------------------------------------------------- */

static void take_word(const char *word)
{
    static const struct {
        const char *name;
        unsigned *value;
    } words[] = {
        {"slow", &played.slow_us},
        {"fault", &played.fault},
        {"fault_tokens", &played.fault_tokens},
        {"fault_at", &played.fault_at},
        {"device_fault", &played.device_fault},
        {"gone", &played.gone},
        {"mute", &played.mute},
        {"slots", &played.slots},
        {"blocks", &played.blocks},
        {"memory", &played.memory_mib},
        {"stolen", &played.stolen_mib},
    };
    const size_t len = strcspn(word, "=");

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i].name) == len && !strncmp(word, words[i].name, len))
            *words[i].value = (unsigned)strtoul(word + len + 1, NULL, 10);
}

static void listen_up(void)
{
    const char *path = getenv("OCRFS_PLAYED");
    FILE *file = path ? fopen(path, "re") : NULL;
    char word[64];

    if (!file)
        return;
    memset(&played, 0, offsetof(struct played, opened));
    while (fscanf(file, "%63s", word) == 1)
        take_word(word);
    fclose(file);
}

__attribute__((noreturn, format(printf, 1, 2))) static void
accuse(const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    fputs("played GPU: the engine ", stderr);
    vfprintf(stderr, format, ap);
    fputc('\n', stderr);
    va_end(ap);
    abort();
}

static const struct ocr_backend_ops *inner_ops(void)
{
    const char *path = getenv("OCRFS_PLAYED_OVER");
    ocr_backend_plugin_fn *plugin = NULL;
    void *handle, *symbol = NULL;

    if (!path)
        return &ocr_backend_cpu;
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle)
        symbol = dlsym(handle, OCR_BACKEND_PLUGIN_SYMBOL);
    if (!symbol)
        accuse("cannot be served: %s", dlerror());
    memcpy(&plugin, &symbol, sizeof plugin);
    return plugin();
}

/* ---- the card and its memory -------------------------------------------- */

static int play_probe(const char *device, char *out, size_t size,
                      struct ocr_err *err)
{
    listen_up();
    if (played.gone)
        return ocr_gpu_err(err, OCR_GPU_NONE, device, "");
    snprintf(out, size, "played GPU, %s", device);
    return 0;
}

static int shape_plan(struct ocr_backend_plan *out, uint64_t bytes,
                      const struct ocr_backend_config *config,
                      const struct ocr_model *model, struct ocr_err *err)
{
    struct cuda_want want = {.bytes = bytes,
                             .slots = config->slots,
                             .max_patches = config->max_patches,
                             .prompt_tokens = config->prompt_tokens,
                             .max_tokens = config->max_tokens};
    struct cuda_plan plan;

    if (played.slots && played.slots < want.slots)
        want.slots = played.slots;
    cuda_want_complete(&want, model);
    if (cuda_plan_make(&plan, model, &want))
        return ocr_gpu_err_small(err, "played", bytes, plan.needed);
    *out = (struct ocr_backend_plan){.slots = plan.slots,
                                     .blocks = plan.blocks,
                                     .slot_blocks = plan.slot_blocks,
                                     .max_patches = plan.max_patches,
                                     .weight_bytes = plan.bytes[CUDA_WEIGHTS],
                                     .kv_bytes = plan.bytes[CUDA_KV_POOL],
                                     .workspace_bytes =
                                         plan.total - plan.bytes[CUDA_WEIGHTS] -
                                         plan.bytes[CUDA_KV_POOL],
                                     .device = "played GPU"};
    return 0;
}

static int made_plan(struct ocr_backend_plan *out,
                     const struct ocr_backend_config *config,
                     const struct ocr_model *model, struct ocr_err *err)
{
    uint64_t bytes = played.memory_mib
                         ? (uint64_t)played.memory_mib << MIB_SHIFT
                         : (uint64_t)1 << 40;
    const uint64_t stolen = (uint64_t)played.stolen_mib << MIB_SHIFT;
    int rc;

    if (config->memory && config->memory < bytes)
        bytes = config->memory;
    rc = shape_plan(out, bytes, config, model, err);
    /* It was free when it was asked, and is not any more. */
    if (!rc && stolen &&
        out->weight_bytes + out->kv_bytes + out->workspace_bytes + stolen >
            bytes)
        rc = shape_plan(out, bytes > stolen ? bytes - stolen : 1, config, model,
                        err);
    if (!rc && played.blocks && played.blocks < out->blocks)
        out->blocks = played.blocks;
    return rc;
}

static int play_plan(const struct ocr_backend_config *config,
                     const struct ocr_model *model, uint64_t bytes,
                     struct ocr_backend_plan *plan, struct ocr_err *err)
{
    listen_up();
    if (!bytes)
        bytes = (uint64_t)(played.memory_mib ? played.memory_mib : 1 << 20)
                << MIB_SHIFT;
    return shape_plan(plan, bytes, config, model, err);
}

static int open_inner(struct ocr_backend *b,
                      const struct ocr_backend_config *config,
                      const struct ocr_model *model, struct ocr_err *err)
{
    const struct ocr_taps taps = {.fault = (enum ocr_fault)played.fault,
                                  .fault_page = GUILTY,
                                  .fault_at = played.fault_at};
    struct ocr_backend_config inner = *config;
    struct ocr_backend_plan plan;
    int rc;

    inner.slots = b->plan.slots;
    if (b->ops == &ocr_backend_cpu)
        inner.memory = 0;
    rc = b->ops->open(&b->inner, &inner, model, &plan, err);
    if (rc)
        return rc;
    if (plan.slots < b->plan.slots)
        b->plan.slots = plan.slots;
    if (plan.blocks < b->plan.blocks)
        b->plan.blocks = plan.blocks;
    b->plan.slot_blocks = plan.slot_blocks;
    b->owners = plan.blocks;
    b->owner = malloc(plan.blocks * sizeof *b->owner);
    for (uint32_t i = 0; b->owner && i < plan.blocks; i++)
        b->owner[i] = NOBODY;
    return b->owner ? b->ops->set_taps(b->inner, &taps, err)
                    : ocr_err_set(err, -ENOMEM, "played: no memory");
}

static void play_close(struct ocr_backend *b)
{
    if (!b)
        return;
    b->ops->close(b->inner);
    free(b->owner);
    free(b);
}

static int play_open(struct ocr_backend **out,
                     const struct ocr_backend_config *config,
                     const struct ocr_model *model,
                     struct ocr_backend_plan *plan, struct ocr_err *err)
{
    struct ocr_backend *b = calloc(1, sizeof *b);
    int rc;

    if (!b)
        return ocr_err_set(err, -ENOMEM, "played: no memory");
    listen_up();
    b->ops = inner_ops();
    b->image_token = model->image_token;
    rc = made_plan(&b->plan, config, model, err);
    rc = rc ? rc : open_inner(b, config, model, err);
    if (rc) {
        play_close(b);
        return rc;
    }
    played.opened++;
    *plan = b->plan;
    *out = b;
    return 0;
}

/* ---- what the engine owes ----------------------------------------------- */

static unsigned slot_of(struct ocr_backend *b, uint64_t page)
{
    for (unsigned i = 0; i < b->plan.slots; i++)
        if (b->slot[i].open && b->slot[i].page == page)
            return i;
    accuse("speaks of page %llu, which has no slot", (unsigned long long)page);
}

static void begin(struct ocr_backend *b, uint64_t number, uint64_t slots,
                  bool steps)
{
    struct ticket *t = &b->ticket[number % TICKETS];

    if (t->number)
        accuse("uses a ticket again");
    *t = (struct ticket){number, steps, slots};
    for (unsigned i = 0; i < b->plan.slots; i++)
        b->slot[i].under_way += slots >> i & 1;
}

static void end(struct ocr_backend *b, const struct ocr_event *e)
{
    struct ticket *t = &b->ticket[e->ticket % TICKETS];
    const bool last = t->steps ? e->type == OCR_EVENT_STEP
                               : e->type == OCR_EVENT_ENCODED ||
                                     e->type == OCR_EVENT_PREFILLED ||
                                     e->type == OCR_EVENT_FAILED;

    if (t->number != e->ticket || !last)
        return;
    for (unsigned i = 0; i < b->plan.slots; i++)
        b->slot[i].under_way -= t->slots >> i & 1;
    t->number = 0;
}

static void own_blocks(struct ocr_backend *b, unsigned slot)
{
    const uint32_t *table = b->ops->block_table(b->inner, slot);

    for (uint32_t i = 0; i < b->slot[slot].blocks; i++) {
        if (table[i] >= b->plan.blocks)
            accuse("uses block %u of %u", table[i], b->plan.blocks);
        if (b->owner[table[i]] != NOBODY)
            accuse("gives block %u to slot %u while slot %u has it", table[i],
                   slot, b->owner[table[i]]);
        b->owner[table[i]] = slot;
    }
}

static uint32_t image_tokens(const struct ocr_backend *b,
                             const struct ocr_slot_config *config)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < config->prompt_len; i++)
        count += config->prompt[i] == b->image_token;
    return count;
}

static int play_slot_open(struct ocr_backend *b, unsigned slot,
                          const struct ocr_slot_config *config,
                          struct ocr_err *err)
{
    const uint32_t tokens = config->prompt_len + config->max_tokens + 1;
    struct ocr_slot_config inner = *config;
    bool guilty;
    int rc;

    listen_up();
    guilty = image_tokens(b, config) == played.fault_tokens;
    b->muted = b->muted || (guilty && played.mute);
    if (played.fault && guilty && !b->guilty) {
        b->guilty = config->page;
        inner.page = GUILTY;
    }
    rc = b->ops->slot_open(b->inner, slot, &inner, err);
    if (rc) {
        b->guilty = b->guilty == config->page ? 0 : b->guilty;
        return rc;
    }
    b->slot[slot] = (struct slot){.open = true,
                                  .page = config->page,
                                  .blocks = (tokens + OCR_BLOCK_TOKENS - 1) /
                                            OCR_BLOCK_TOKENS};
    own_blocks(b, slot);
    if (__atomic_add_fetch(&played.pages, 1, __ATOMIC_ACQ_REL) >
        played.most_pages)
        played.most_pages = played.pages;
    return 0;
}

static void play_slot_close(struct ocr_backend *b, unsigned slot)
{
    struct slot *s = &b->slot[slot];

    if (s->under_way)
        accuse("closes slot %u with %u tickets under way", slot, s->under_way);
    if (b->guilty == s->page)
        b->guilty = 0;
    for (uint32_t i = 0; i < b->owners; i++)
        if (b->owner[i] == slot)
            b->owner[i] = NOBODY;
    s->open = false;
    __atomic_sub_fetch(&played.pages, 1, __ATOMIC_ACQ_REL);
    b->ops->slot_close(b->inner, slot);
}

static uint64_t inner_page(const struct ocr_backend *b, uint64_t page)
{
    return page == b->guilty ? GUILTY : page;
}

/* ---- the rest ----------------------------------------------------------- */

static uint32_t *play_block_table(struct ocr_backend *b, unsigned slot)
{
    return b->ops->block_table(b->inner, slot);
}

static int play_submit_encode(struct ocr_backend *b, uint64_t ticket,
                              uint64_t page, const uint8_t *rgb, uint32_t width,
                              uint32_t height, struct ocr_err *err)
{
    const unsigned slot = slot_of(b, page);
    const int rc = b->ops->submit_encode(b->inner, ticket, inner_page(b, page),
                                         rgb, width, height, err);

    if (!rc)
        begin(b, ticket, (uint64_t)1 << slot, false);
    return rc;
}

static int play_submit_prefill(struct ocr_backend *b, uint64_t ticket,
                               unsigned slot, uint32_t from, uint32_t count,
                               struct ocr_err *err)
{
    const int rc =
        b->ops->submit_prefill(b->inner, ticket, slot, from, count, err);

    if (!rc)
        begin(b, ticket, (uint64_t)1 << slot, false);
    return rc;
}

static int play_submit_decode(struct ocr_backend *b, uint64_t ticket,
                              const unsigned *slots, unsigned count,
                              unsigned steps, struct ocr_err *err)
{
    const int rc =
        b->ops->submit_decode(b->inner, ticket, slots, count, steps, err);
    uint64_t bits = 0;

    for (unsigned i = 0; i < count; i++)
        bits |= (uint64_t)1 << slots[i];
    if (!rc)
        begin(b, ticket, bits, true);
    return rc;
}

static void play_cancel(struct ocr_backend *b, uint64_t page)
{
    b->ops->cancel(b->inner, inner_page(b, page));
}

static void nap(unsigned us)
{
    const struct timespec t = {us / 1000000, us % 1000000 * 1000L};

    if (us)
        nanosleep(&t, NULL);
}

static int play_poll(struct ocr_backend *b, struct ocr_event *events, int room,
                     int timeout_ms)
{
    int count;

    while (b->muted)
        pause();
    count = b->ops->poll(b->inner, events, room, timeout_ms);

    for (int i = 0; i < count; i++) {
        struct ocr_event *e = &events[i];

        if (e->page == GUILTY)
            e->page = b->guilty;
        if (e->type == OCR_EVENT_LOST && played.device_fault) {
            e->device_fault = true;
            snprintf(e->sentence, sizeof e->sentence,
                     "its memory has an "
                     "error that cannot be corrected");
        }
        if (e->type == OCR_EVENT_STEP) {
            __atomic_add_fetch(&played.steps, 1, __ATOMIC_ACQ_REL);
            nap(played.slow_us);
        }
        end(b, e);
    }
    return count;
}

static void play_wake(struct ocr_backend *b)
{
    b->ops->wake(b->inner);
}

static const struct ocr_backend_ops ops = {
    .abi = OCR_BACKEND_ABI,
    .name = "played",
    .probe = play_probe,
    .open = play_open,
    .plan = play_plan,
    .slot_open = play_slot_open,
    .slot_close = play_slot_close,
    .block_table = play_block_table,
    .submit_encode = play_submit_encode,
    .submit_prefill = play_submit_prefill,
    .submit_decode = play_submit_decode,
    .cancel = play_cancel,
    .poll = play_poll,
    .wake = play_wake,
    .close = play_close,
};

const struct ocr_backend_ops *played_backend(void)
{
    return &ops;
}

const struct ocr_backend_ops *ocr_backend_plugin(void);

const struct ocr_backend_ops *ocr_backend_plugin(void)
{
    return &ops;
}

/* ocr-model [OPTIONS] MODEL IMAGE... - pages read by a model, without mount or
 * engine: decodes, resizes, reads in groups, and writes texts to standard
 * output and times to standard error.
 *
 * MODEL is a folder, or random:full or random:odd for a model whose weights a
 * counter makes. IMAGE is a file, or noise:WxH.
 *
 *   -p fp32|bf16|int8|fp16  precision      -t N  threads (all processors)
 *   -j N  pages at once (1)                -n N  room for N ids (-l, or 4096)
 *   -i    ids instead of text              -q    no text at all
 *   -m N  patch multiple in pixels (28)    -l N  go on to exactly N ids
 *   -f FILE  ids to force, by spaces       -s N  steps per submit (16)
 *   -d DEVICE  cpu, cuda, cuda:N           -M N  MiB of memory (what it needs)
 *   -x    says a hash of each page's features and logits
 *   -g    no graphs: every kernel is launched by itself
 *   -o PREFIX  writes PREFIX.N.logits, fp32 [steps][vocab], and
 *              PREFIX.N.features, fp32 [tokens][hidden], for page N from 0 on
 *   -L N,N...  and PREFIX.N.layerL, fp32 [rows][hidden], behind these layers:
 *              of vision from 0, of text from 1000
 *   -r PENALTY, -T TEMPERATURE, -P TOP_P, -S SEED
 *   -w    reads IMAGE's truth (NAME.gt.md beside NAME.png) by force and says
 *         its loss in nats per id */
#include "engine/image/image.h"
#include "engine/image/resize.h"
#include "engine/model/model.h"
#include "kernels/backend.h"
#include "tests/lib/device.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const struct ocr_backend_ops *ops;

enum {
    LAYERS = 16 /* that are written, at most */
};

struct options {
    enum ocr_precision precision;
    unsigned threads, slots, steps;
    uint32_t max_tokens, multiple, length;
    bool ids, quiet, loss, hashes, direct;
    const char *device;
    uint64_t memory;
    unsigned layers[LAYERS], layer_count;
    struct ocr_ids forced;
    const char *dump;
    struct ocr_sampler sampler;
};

struct page {
    const char *name;
    uint8_t *rgb;
    uint32_t width, height;
    struct ocr_ids prompt, ids, forced;
    double encode, prefill;
    double loss;
    FILE *logits, *features, *layers[LAYERS];
    uint64_t hash;
    bool done, failed;
};

struct program {
    struct options o;
    struct ocr_model_folder *folder;
    struct ocr_model *model;
    struct ocr_backend *backend;
    struct ocr_backend_plan plan;
    struct page *pages;
    unsigned count;
};

__attribute__((noreturn, format(printf, 1, 2))) static void
die(const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    fputs("ocr-model: ", stderr);
    vfprintf(stderr, format, ap);
    fputc('\n', stderr);
    va_end(ap);
    exit(2);
}

#define MUST(call)                                                             \
    do {                                                                       \
        struct ocr_err e_ = OCR_ERR_INIT, *err = &e_;                          \
        if (call)                                                              \
            die("%s", e_.text);                                                \
    } while (0)

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void append(struct ocr_ids *list, uint32_t id)
{
    if (list->count == list->size) {
        list->size = list->size ? 2 * list->size : 64;
        list->id = realloc(list->id, list->size * sizeof *list->id);
        if (!list->id)
            die("no memory");
    }
    list->id[list->count++] = id;
}

static void *zeroed(void *arg, size_t bytes)
{
    (void)arg;
    return calloc(1, bytes);
}

static void decode_file(struct ocr_image *image, const char *path)
{
    const struct ocr_image_limits limits = OCR_IMAGE_LIMITS_DEFAULT;
    const struct ocr_image_alloc alloc = {zeroed, NULL};
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    void *data;

    if (fd < 0 || fstat(fd, &st))
        die("%s: %s", path, strerror(errno));
    data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (data == MAP_FAILED)
        die("%s: %s", path, strerror(errno));
    MUST(ocr_image_decode(image, data, (size_t)st.st_size, &limits, &alloc,
                          err));
    munmap(data, (size_t)st.st_size);
}

static void noise(struct ocr_image *image)
{
    image->channels = 3;
    image->pixels = malloc(ocr_image_bytes(image));
    for (size_t i = 0; image->pixels && i < ocr_image_bytes(image); i++)
        image->pixels[i] = (uint8_t)random_word(i);
}

static void load_page(const struct program *p, struct page *page)
{
    const uint32_t edge = p->folder ? p->folder->config.longest_edge
                                    : p->model->vision.grid * 14; /* NOLINT */
    struct ocr_image image = {0};

    if (sscanf(page->name, "noise:%" SCNu32 "x%" SCNu32, &image.width,
               &image.height) == 2)
        noise(&image);
    else
        decode_file(&image, page->name);
    ocr_resize_size(image.width, image.height, edge, p->o.multiple,
                    &page->width, &page->height);
    page->rgb = malloc((size_t)page->width * page->height * 3);
    MUST(ocr_resize_page(&image, page->width, page->height, page->rgb, err));
    free(image.pixels);
}

static uint32_t image_tokens(const struct program *p, const struct page *page)
{
    const uint32_t side = p->model->vision.patch * p->model->projector.merge;

    return page->width / side * (page->height / side);
}

static void make_prompt(const struct program *p, struct page *page)
{
    const uint32_t n = image_tokens(p, page), token = p->model->image_token;

    if (p->folder) {
        MUST(ocr_prompt_build(p->folder->tokenizer, token, n, &page->prompt,
                              err));
        return;
    }
    for (uint32_t i = 0; i < n + 12; i++)
        append(&page->prompt, i >= 7 && i < n + 7 ? token : 11 + i % 7);
}

/* What a page is made to read: its truth and a stop id, or what -f says. */
static void make_forced(const struct program *p, struct page *page)
{
    char path[4096], text[65536];
    const char *dot = strrchr(page->name, '.');
    size_t len;
    FILE *f;

    if (!p->o.loss || !p->folder) {
        for (size_t i = 0; i < p->o.forced.count; i++)
            append(&page->forced, p->o.forced.id[i]);
        return;
    }
    snprintf(path, sizeof path, "%.*s.gt.md", dot ? (int)(dot - page->name) : 0,
             page->name);
    f = fopen(path, "r");
    if (!f)
        die("%s: %s", path, strerror(errno));
    len = fread(text, 1, sizeof text, f);
    fclose(f);
    while (len && text[len - 1] == '\n')
        len--;
    MUST(ocr_tokenizer_encode(p->folder->tokenizer, text, len, &page->forced,
                              err));
    append(&page->forced, p->folder->config.stop_ids[0]);
}

static void open_model(struct program *p, const char *name)
{
    if (!strncmp(name, "random:", 7)) {
        p->model = random_model_new(strcmp(name, "random:odd") ? &FULL_SHAPE
                                                               : &ODD_SHAPE);
        p->model->forget = random_forget;
        return;
    }
    MUST(ocr_model_folder_open(&p->folder, name, err));
    p->model = &p->folder->model;
}

static struct page *page_of(const struct program *p, uint64_t id)
{
    return &p->pages[id];
}

static void dump_logits(void *arg, uint64_t id, uint32_t position,
                        const float *logits, uint32_t vocab)
{
    const struct program *p = arg;
    struct page *page = page_of(p, id);
    double most = -INFINITY, sum = 0;

    if (page->logits)
        fwrite(logits, sizeof *logits, vocab, page->logits);
    if (!p->o.loss)
        return;
    for (uint32_t i = 0; i < vocab; i++)
        most = fmax(most, (double)logits[i]);
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - most);
    page->loss +=
        most + log(sum) -
        (double)logits[page->forced.id[position - page->prompt.count]];
}

static void dump_features(void *arg, uint64_t id, const float *features,
                          uint32_t tokens, uint32_t hidden)
{
    struct page *page = page_of(arg, id);

    page->hash += ocr_logits_hash(features, tokens * hidden);
    if (page->features)
        fwrite(features, sizeof *features, (size_t)tokens * hidden,
               page->features);
}

static void dump_layer(void *arg, uint64_t id, unsigned layer,
                       const float *residual, uint32_t first, uint32_t rows,
                       uint32_t hidden)
{
    const struct program *p = arg;

    (void)first;
    for (unsigned i = 0; i < p->o.layer_count; i++)
        if (p->o.layers[i] == layer)
            fwrite(residual, sizeof *residual, (size_t)rows * hidden,
                   page_of(p, id)->layers[i]);
}

static struct ocr_taps taps_of(struct program *p)
{
    const struct options *o = &p->o;

    return (struct ocr_taps){.arg = p,
                             .logits = o->dump || o->loss ? dump_logits : NULL,
                             .features =
                                 o->dump || o->hashes ? dump_features : NULL,
                             .layer = o->layer_count ? dump_layer : NULL,
                             .hashes = o->hashes,
                             .direct = o->direct};
}

static void open_backend(struct program *p)
{
    const double start = now();
    struct ocr_taps taps;
    struct ocr_backend_config c = {.device = p->o.device,
                                   .memory = p->o.memory,
                                   .precision = p->o.precision,
                                   .threads = p->o.threads,
                                   .slots = p->o.slots,
                                   .max_tokens = p->o.max_tokens};

    for (unsigned i = 0; i < p->count; i++) {
        const struct page *page = &p->pages[i];
        const uint32_t patches = page->width / p->model->vision.patch *
                                 (page->height / p->model->vision.patch);
        if (patches > c.max_patches)
            c.max_patches = patches;
        if (page->prompt.count > c.prompt_tokens)
            c.prompt_tokens = (uint32_t)page->prompt.count;
    }
    MUST(ops->open(&p->backend, &c, p->model, &p->plan, err));
    fprintf(stderr,
            "open: %.2f s, %s, weights %.0f MiB, KV %.0f MiB, work %.0f MiB\n",
            now() - start, p->plan.device,
            (double)p->plan.weight_bytes / 0x1p20,
            (double)p->plan.kv_bytes / 0x1p20,
            (double)p->plan.workspace_bytes / 0x1p20);
    taps = taps_of(p);
    MUST(ops->set_taps(p->backend, &taps, err));
    if (p->folder) {
        MUST(ocr_model_folder_check(p->folder, err));
        ocr_model_folder_unmap(p->folder);
    }
}

static void take(struct program *p, const struct ocr_event *e)
{
    struct page *page = page_of(p, e->page);

    if (e->type == OCR_EVENT_STEP)
        return;
    for (uint32_t i = 0; i < e->count; i++) {
        append(&page->ids, e->ids[i]);
        page->hash = page->hash * 31 + e->hashes[i];
    }
    page->done =
        page->done || e->type == OCR_EVENT_DONE || e->type == OCR_EVENT_FAILED;
    if (e->type == OCR_EVENT_FAILED) {
        fprintf(stderr, "%s: %s\n", page->name, e->sentence);
        page->failed = true;
    }
    if (e->type == OCR_EVENT_LOST)
        die("%s", e->sentence);
}

/* Until the event of `type`, or a failure, came for the ticket. */
static void await(struct program *p, uint64_t ticket, enum ocr_event_type type)
{
    struct ocr_event e;

    do {
        if (ops->poll(p->backend, &e, 1, -1) == 1)
            take(p, &e);
    } while (e.ticket != ticket ||
             (e.type != type && e.type != OCR_EVENT_FAILED));
}

static FILE *dump_file(const struct options *o, unsigned page, const char *what)
{
    char path[4096];
    FILE *f;

    snprintf(path, sizeof path, "%s.%u.%s", o->dump, page, what);
    f = fopen(path, "wb");
    if (!f)
        die("%s: %s", path, strerror(errno));
    return f;
}

static void start_page(struct program *p, unsigned number, unsigned slot)
{
    struct page *page = &p->pages[number];
    const struct ocr_model_config *config =
        p->folder ? &p->folder->config : NULL;
    struct ocr_slot_config c = {
        .page = number,
        .prompt = page->prompt.id,
        .prompt_len = (uint32_t)page->prompt.count,
        .max_tokens = p->o.max_tokens,
        .stop_count = config ? config->stop_count : 0,
        .sampler = p->o.sampler,
        .forced = page->forced.id,
        .forced_len = (uint32_t)page->forced.count,
        .forced_length = p->o.length,
    };
    const double start = now();
    uint32_t *table = ops->block_table(p->backend, slot);

    if (config)
        memcpy(c.stop_ids, config->stop_ids, sizeof c.stop_ids);
    if (p->o.dump) {
        page->logits = dump_file(&p->o, number, "logits");
        page->features = dump_file(&p->o, number, "features");
    }
    for (unsigned i = 0; i < p->o.layer_count; i++) {
        char what[32];

        snprintf(what, sizeof what, "layer%u", p->o.layers[i]);
        page->layers[i] = dump_file(&p->o, number, what);
    }
    MUST(ops->slot_open(p->backend, slot, &c, err));
    for (uint32_t i = 0; i < p->plan.slot_blocks; i++)
        table[i] = slot * p->plan.slot_blocks + i;
    MUST(ops->submit_encode(p->backend, 1, number, page->rgb, page->width,
                            page->height, err));
    await(p, 1, OCR_EVENT_ENCODED);
    page->encode = now() - start;
    MUST(ops->submit_prefill(p->backend, 2, slot, 0, c.prompt_len, err));
    await(p, 2, OCR_EVENT_PREFILLED);
    page->prefill = now() - start - page->encode;
}

static void print_page(const struct program *p, const struct page *page)
{
    struct ocr_detokenizer d;
    struct ocr_buf text;

    if (p->o.ids || !p->folder) {
        for (size_t i = 0; i < page->ids.count; i++)
            printf("%s%" PRIu32, i ? " " : "", page->ids.id[i]);
        putchar('\n');
        return;
    }
    ocr_buf_init(&text, 1 << 20);
    ocr_detokenizer_init(&d, p->folder->tokenizer);
    for (size_t i = 0; i < page->ids.count; i++)
        ocr_detokenizer_add(&d, page->ids.id[i], &text);
    ocr_detokenizer_finish(&d, &text);
    fwrite(text.data, 1, text.len, stdout);
    putchar('\n');
    ocr_buf_release(&text);
}

static void end_page(struct program *p, struct page *page, unsigned slot)
{
    ops->slot_close(p->backend, slot);
    if (page->logits)
        fclose(page->logits);
    if (page->features)
        fclose(page->features);
    for (unsigned i = 0; i < p->o.layer_count; i++)
        fclose(page->layers[i]);
    if (!p->o.quiet)
        print_page(p, page);
    fprintf(stderr,
            "%s: %" PRIu32 "x%" PRIu32 ", %zu tokens, encode %.4f s, prefill "
            "%.4f s, %zu ids",
            page->name, page->width, page->height, page->prompt.count,
            page->encode, page->prefill, page->ids.count);
    if (p->o.hashes)
        fprintf(stderr, ", hash %016" PRIx64, page->hash);
    if (p->o.loss && page->ids.count)
        fprintf(stderr, ", loss %.6f", page->loss / (double)page->ids.count);
    fputc('\n', stderr);
}

static bool all_done(const struct page *pages, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (!pages[i].done)
            return false;
    return true;
}

static void run_group(struct program *p, unsigned first, unsigned count)
{
    unsigned slots[64];
    size_t ids = 0, longest = 0;
    double start;

    for (unsigned i = 0; i < count; i++) {
        slots[i] = i;
        start_page(p, first + i, i);
    }
    start = now();
    while (!all_done(p->pages + first, count)) {
        MUST(ops->submit_decode(p->backend, 3, slots, count, p->o.steps, err));
        await(p, 3, OCR_EVENT_STEP);
    }
    for (unsigned i = 0; i < count; i++) {
        const struct page *page = &p->pages[first + i];
        ids += page->ids.count;
        if (page->ids.count > longest)
            longest = page->ids.count;
        end_page(p, &p->pages[first + i], i);
    }
    if (longest > 1)
        fprintf(stderr,
                "decode: %u at once, %.2f s, %.3f ms a step, %.1f ids/s\n",
                count, now() - start,
                1000 * (now() - start) / (double)(longest - 1),
                (double)(ids - count) / (now() - start));
}

static void read_forced(struct ocr_ids *ids, const char *path)
{
    FILE *f = fopen(path, "r");
    uint32_t id;

    if (!f)
        die("%s: %s", path, strerror(errno));
    while (fscanf(f, "%" SCNu32, &id) == 1)
        append(ids, id);
    fclose(f);
}

static enum ocr_precision precision_of(const char *name)
{
    if (!strcmp(name, "fp32"))
        return OCR_PRECISION_FP32;
    if (!strcmp(name, "int8"))
        return OCR_PRECISION_INT8;
    if (!strcmp(name, "fp16"))
        return OCR_PRECISION_FP16;
    if (strcmp(name, "bf16"))
        die("%s is no precision", name);
    return OCR_PRECISION_BF16;
}

static unsigned number(const char *text, unsigned least, unsigned most)
{
    char *end;
    const unsigned long n = strtoul(text, &end, 10);

    if (*end || n < least || n > most)
        die("%s is not a number from %u to %u", text, least, most);
    return (unsigned)n;
}

static void read_layers(struct options *o, char *list)
{
    char *save = NULL;

    for (char *word = strtok_r(list, ",", &save); word;
         word = strtok_r(NULL, ",", &save)) {
        if (o->layer_count == LAYERS)
            die("more than %d layers", LAYERS);
        o->layers[o->layer_count++] = number(word, 0, 9999);
    }
}

static void parse(struct options *o, int argc, char **argv)
{
    *o = (struct options){.precision = OCR_PRECISION_BF16,
                          .device = "cpu",
                          .slots = 1,
                          .steps = OCR_EVENT_IDS,
                          .multiple = 28,
                          .sampler = {.top_p = 1, .repetition_penalty = 1}};
    for (int c; (c = getopt(argc, argv,
                            "p:t:j:n:iqm:l:f:s:d:o:L:M:r:T:P:S:wxg")) != -1;)
        switch (c) {
        case 'p':
            o->precision = precision_of(optarg);
            break;
        case 't':
            o->threads = number(optarg, 1, 1024);
            break;
        case 'j':
            o->slots = number(optarg, 1, 64);
            break;
        case 'n':
            o->max_tokens = number(optarg, 1, 100000);
            break;
        case 'i':
            o->ids = true;
            break;
        case 'q':
            o->quiet = true;
            break;
        case 'w':
            o->loss = true;
            break;
        case 'm':
            o->multiple = number(optarg, 1, 1000);
            break;
        case 'l':
            o->length = number(optarg, 1, 100000);
            break;
        case 'f':
            read_forced(&o->forced, optarg);
            break;
        case 's':
            o->steps = number(optarg, 1, OCR_EVENT_IDS);
            break;
        case 'd':
            o->device = optarg;
            break;
        case 'o':
            o->dump = optarg;
            break;
        case 'L':
            read_layers(o, optarg);
            break;
        case 'M':
            o->memory = (uint64_t)number(optarg, 1, 1 << 30) << 20;
            break;
        case 'x':
            o->hashes = true;
            break;
        case 'g':
            o->direct = true;
            break;
        case 'r':
            o->sampler.repetition_penalty = strtof(optarg, NULL);
            break;
        case 'T':
            o->sampler.temperature = strtof(optarg, NULL);
            break;
        case 'P':
            o->sampler.top_p = strtof(optarg, NULL);
            break;
        case 'S':
            o->sampler.seed = strtoull(optarg, NULL, 10);
            break;
        default:
            exit(2);
        }
    if (!o->max_tokens)
        o->max_tokens = o->length ? o->length : 4096;
    if (o->max_tokens < o->length)
        o->max_tokens = o->length;
    if (o->layer_count && !o->dump)
        die("-L needs -o");
}

int main(int argc, char **argv)
{
    struct program p = {0};
    struct rusage usage;
    size_t ids = 0;
    double loss = 0;
    int failed = 0;

    parse(&p.o, argc, argv);
    if (argc - optind < 2)
        die("MODEL IMAGE... are missing");
    ops = device_ops(p.o.device);
    p.count = (unsigned)(argc - optind - 1);
    p.pages = calloc(p.count, sizeof *p.pages);
    open_model(&p, argv[optind]);
    for (unsigned i = 0; i < p.count; i++) {
        p.pages[i].name = argv[optind + 1 + (int)i];
        load_page(&p, &p.pages[i]);
        make_prompt(&p, &p.pages[i]);
        make_forced(&p, &p.pages[i]);
        if (p.pages[i].forced.count > p.o.max_tokens)
            p.o.max_tokens = (uint32_t)p.pages[i].forced.count;
    }
    open_backend(&p);
    for (unsigned i = 0; i < p.count; i += p.o.slots)
        run_group(&p, i, p.count - i < p.o.slots ? p.count - i : p.o.slots);
    ops->close(p.backend);
    getrusage(RUSAGE_SELF, &usage);
    fprintf(stderr, "peak %.0f MiB\n", (double)usage.ru_maxrss / 1024);
    for (unsigned i = 0; i < p.count; i++) {
        failed |= p.pages[i].failed;
        loss += p.pages[i].loss;
        ids += p.pages[i].ids.count;
        free(p.pages[i].rgb);
        free(p.pages[i].prompt.id);
        free(p.pages[i].ids.id);
        free(p.pages[i].forced.id);
    }
    if (p.o.loss)
        fprintf(stderr, "loss of all %.6f nats per id, %zu ids\n",
                loss / (double)ids, ids);
    free(p.pages);
    free(p.o.forced.id);
    if (p.folder)
        ocr_model_folder_close(p.folder);
    else
        random_model_free(p.model);
    return failed;
}

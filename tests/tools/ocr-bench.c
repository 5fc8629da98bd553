/* ocr-bench [OPTIONS] MODEL [FILE...] - how fast a model serves pages: the
 * recogniser as the engine drives it, N pages in flight, each of a length that
 * a seed draws. Without files the pages are noise; with files they come through
 * decode helpers, as in the engine, again and again.
 *
 *   -d DEVICE  cpu, cuda, cuda:N (cpu)      -a ARGS  "memory=16G:slots=64"
 *   -c N    pages in flight (64)            -n N     pages in all (512)
 *   -l A-B  tokens of a page (500-1500)     -S N     seed (1)
 *   -s WxH  size of noise in pixels (1092x1540), or mixed: 4 to 12,100 patches
 *   -m A-B  pages that count, by completion (65 to 448 of 512)
 *   -L N    seconds of the same load before
 *   -u N    so many urgent pages beside them: their first token
 *   -k N    of 100 pages are given up somewhere in their text
 *   -o FILE a line for each page: number, how it ended, CRC of its text
 *   -e PATH ocrfs-engine (two folders above this program), -H N helpers (4)
 *
 * The plugin of a GPU lies two folders above the program, or is what
 * OCRFS_TEST_PLUGIN names. Prints lines NAME VALUE... to standard output. Ends
 * with 1 if a page failed that was not given up, or if a block is missing at
 * the end. */
#include "engine/base/dynamic.h"
#include "engine/gpu/gpu.h"
#include "engine/lighton/lighton_i.h"
#include "engine/protocol.h"
#include "engine/server/decode.h"
#include "tests/lib/device.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

enum {
    SIZES = 64,      /* of mixed noise */
    LOAD = 1000000,  /* pages of the load before have numbers from here */
    URGENT = 900000, /* and urgent ones */
    TOKENS_MOST = 1 << 22,
};

struct options {
    const char *device, *arguments, *model, *out, *engine;
    char **files;
    unsigned file_count, helpers;
    unsigned flying, pages, least, most, seed, load_s, urgent, given_up;
    unsigned from, to;
    uint32_t width, height;
    bool mixed;
};

struct page {
    bool used, urgent, cancelled, measured;
    double sent, first, last, dropped, done;
    uint32_t tokens, drop_at; /* given up behind so many; 0: not */
    enum ocr_kind kind;
    uint32_t crc;
    struct ocr_image image;
};

struct sample {
    double *value;
    size_t count, size;
};

static struct {
    struct options o;
    struct ocr_recogniser *r;
    struct ocr_decode_pool *pool;
    struct ocr_image noise[SIZES];
    unsigned noises;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    struct page *page; /* by place, see at() */
    size_t places;
    struct ocr_image *decoded; /* a ring */
    unsigned decoded_first, decoded_count, decoding;
    struct sample gaps;
    bool measuring;
} b = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static const struct ocr_recogniser_ops *const ops = &ocr_recogniser_lighton;

__attribute__((noreturn, format(printf, 1, 2))) static void
die(const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    fputs("ocr-bench: ", stderr);
    vfprintf(stderr, format, ap);
    fputc('\n', stderr);
    exit(2);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- the GPU ------------------------------------------------------------ */

static void *driver(const char *symbol)
{
    return ocr_dynamic_system("libcuda.so.1", symbol);
}

/* Two folders above, or what OCRFS_TEST_PLUGIN names. */
static const struct ocr_backend_ops *plugin(struct ocr_err *err)
{
    (void)err;
    return device_load();
}

const struct ocr_gpu_source ocr_gpu_system = {driver, plugin};

/* ---- figures ------------------------------------------------------------ */

static void add(struct sample *s, double value)
{
    if (s->count == s->size) {
        s->size = s->size ? 2 * s->size : 1024;
        s->value = realloc(s->value, s->size * sizeof *s->value);
        if (!s->value)
            die("no memory");
    }
    s->value[s->count++] = value;
}

static int compare(const void *a, const void *c)
{
    const double x = *(const double *)a, y = *(const double *)c;

    return (x > y) - (x < y);
}

static double at_share(const struct sample *s, double share)
{
    return s->value[(size_t)(share * (double)(s->count - 1) + 0.5)];
}

static void print(const char *name, struct sample *s, double scale)
{
    if (!s->count)
        return;
    qsort(s->value, s->count, sizeof *s->value, compare);
    printf("%s p50 %.3f p95 %.3f p99 %.3f max %.3f of %zu\n", name,
           scale * at_share(s, 0.5), scale * at_share(s, 0.95),
           scale * at_share(s, 0.99), scale * at_share(s, 1), s->count);
}

/* ---- pages -------------------------------------------------------------- */

/* With the lock held: the place of a page, by its number. */
static struct page *at(uint64_t id)
{
    const size_t place = id >= LOAD     ? id - LOAD + b.o.pages + b.o.urgent + 1
                         : id >= URGENT ? id - URGENT + b.o.pages + 1
                                        : id;

    while (place >= b.places) {
        const size_t more = b.places ? 2 * b.places : 4096;

        b.page = realloc(b.page, more * sizeof *b.page);
        if (!b.page)
            die("no memory");
        memset(b.page + b.places, 0, (more - b.places) * sizeof *b.page);
        b.places = more;
    }
    return &b.page[place];
}

static void on_wrote(void *arg, uint64_t id, uint32_t count)
{
    const double t = now();
    bool drop = false;
    struct page *p;

    (void)arg;
    pthread_mutex_lock(&b.lock);
    p = at(id);
    if (!p->tokens)
        p->first = t;
    else if (b.measuring && b.gaps.count < TOKENS_MOST)
        add(&b.gaps, t - p->last);
    p->last = t;
    p->tokens += count;
    if (p->drop_at && p->tokens >= p->drop_at && !p->cancelled) {
        p->cancelled = drop = true;
        p->dropped = t;
    }
    pthread_mutex_unlock(&b.lock);
    if (drop)
        ops->cancel(b.r, id);
}

static void on_lost(void *arg, const struct ocr_loss *loss)
{
    (void)arg;
    die("%s", loss->sentence);
}

/* ---- where pixels come from --------------------------------------------- */

static void make_noise(struct ocr_image *image, uint32_t width, uint32_t height)
{
    image->width = width;
    image->height = height;
    image->channels = 1;
    image->pixels = malloc(ocr_image_bytes(image));
    for (size_t i = 0; image->pixels && i < ocr_image_bytes(image); i++)
        image->pixels[i] = (uint8_t)random_word(i + width);
}

/* From one token to the largest page, in all shapes. */
static void make_all_noise(void)
{
    const double least = 28, most = 1540;

    b.noises = b.o.mixed ? SIZES : 1;
    if (!b.o.mixed) {
        make_noise(b.noise, b.o.width, b.o.height);
        return;
    }
    for (unsigned i = 0; i < SIZES; i++) {
        const double w = (double)(i % 8) / 7, h = (double)(i * 5 / 8 % 8) / 7;

        make_noise(&b.noise[i], (uint32_t)(least + w * (most - least)),
                   (uint32_t)(least + h * (most - least)));
    }
}

static void on_decoded(void *arg, const struct ocr_decoded *decoded)
{
    (void)arg;
    if (decoded->kind)
        die("%s", decoded->sentence);
    pthread_mutex_lock(&b.lock);
    b.decoded[(b.decoded_first + b.decoded_count++) % (2 * b.o.flying)] =
        decoded->image;
    b.decoding--;
    pthread_cond_broadcast(&b.changed);
    pthread_mutex_unlock(&b.lock);
}

static void decode_next(unsigned number)
{
    const char *path = b.o.files[number % b.o.file_count];
    struct ocr_decode_task task = {.id = number + 1,
                                   .fd = open(path, O_RDONLY | O_CLOEXEC),
                                   .limits = OCR_IMAGE_LIMITS_DEFAULT};
    struct ocr_err err = OCR_ERR_INIT;
    struct stat st;

    if (task.fd < 0 || fstat(task.fd, &st))
        die("%s: %s", path, strerror(errno));
    task.size = (uint64_t)st.st_size;
    if (ocr_decode_submit(b.pool, &task, &err))
        die("%s", err.text);
}

/* Decoding runs ahead by as many pages as fly, as in the engine. The
 * descriptors stay open: the program is short. */
static struct ocr_image next_image(unsigned number)
{
    static unsigned asked;
    struct ocr_image image;

    if (!b.pool)
        return b.noise[number % b.noises];
    pthread_mutex_lock(&b.lock);
    while (b.decoding + b.decoded_count < b.o.flying) {
        b.decoding++;
        pthread_mutex_unlock(&b.lock);
        decode_next(asked++);
        pthread_mutex_lock(&b.lock);
    }
    while (!b.decoded_count)
        pthread_cond_wait(&b.changed, &b.lock);
    image = b.decoded[b.decoded_first];
    b.decoded_first = (b.decoded_first + 1) % (2 * b.o.flying);
    b.decoded_count--;
    pthread_mutex_unlock(&b.lock);
    return image;
}

static void open_pool(void)
{
    struct ocr_decode_config config = {
        .helpers = b.o.helpers, .program = b.o.engine, .done = on_decoded};
    struct ocr_err err = OCR_ERR_INIT;

    b.decoded = calloc((size_t)2 * b.o.flying, sizeof *b.decoded);
    if (!b.decoded || ocr_decode_open(&b.pool, &config, &err))
        die("%s", err.text);
}

/* ---- the loop ----------------------------------------------------------- */

static void send(uint64_t id, unsigned number, const char *settings,
                 bool urgent)
{
    struct ocr_page page = {
        .id = id, .image = next_image(number), .settings = settings};
    struct ocr_err err = OCR_ERR_INIT;
    const uint64_t draw = random_word(id * 31 + b.o.seed);
    struct page *p;

    page.urgent = urgent;
    pthread_mutex_lock(&b.lock);
    p = at(id);
    *p = (struct page){.used = true, .urgent = urgent, .image = page.image};
    if (!urgent && draw % 100 < b.o.given_up)
        p->drop_at = 1 + (uint32_t)(draw / 100 % b.o.most);
    p->sent = now();
    pthread_mutex_unlock(&b.lock);
    if (ops->submit(b.r, &page, &err))
        die("%s", err.text);
}

/* The number of the page that ended. */
static uint64_t take(void)
{
    struct ocr_recognised out;
    struct page *p;

    for (;;) {
        if (ops->next(b.r, &out))
            die("the recogniser ended");
        pthread_mutex_lock(&b.lock);
        p = at(out.id);
        if (b.pool)
            ocr_decoded_release(&p->image);
        if (!out.pixels_done)
            break;
        pthread_mutex_unlock(&b.lock);
    }
    p->done = now();
    p->kind = out.kind;
    p->crc = out.text
                 ? (uint32_t)crc32(0, (const Bytef *)out.text, (uInt)out.len)
                 : 0;
    if (out.kind && !p->cancelled)
        fprintf(stderr, "page %llu: %s\n", (unsigned long long)out.id,
                out.sentence);
    pthread_mutex_unlock(&b.lock);
    free(out.text);
    return out.id;
}

static void set_measuring(bool measuring)
{
    pthread_mutex_lock(&b.lock);
    b.measuring = measuring;
    pthread_mutex_unlock(&b.lock);
}

/* Keeps `flying` pages in work until `seconds` are over; they go on flying. */
static unsigned load_before(const char *settings)
{
    const double until = now() + b.o.load_s;
    unsigned sent = 0, flying = 0;

    while (b.o.load_s && now() < until) {
        while (flying < b.o.flying) {
            send(LOAD + sent, sent, settings, false);
            sent++;
            flying++;
        }
        take();
        flying--;
    }
    return flying;
}

struct result {
    double begin, end; /* of the pages that count */
    unsigned done;     /* of the pages that are measured, in all */
    unsigned urgent;   /* that were sent */
};

static void measure(struct result *x, unsigned flying, const char *settings)
{
    static const char brief[] = "forced_length=4-4:1\n";
    const unsigned every =
        b.o.urgent ? (b.o.to - b.o.from) / (b.o.urgent + 1) + 1 : 0;
    unsigned sent = 0, urgent_flying = 0;

    x->begin = b.o.from <= 1 ? now() : 0;
    set_measuring(x->begin > 0);
    while (x->done < b.o.pages || flying || urgent_flying) {
        uint64_t id;

        while (flying < b.o.flying && sent < b.o.pages) {
            sent++;
            send(sent, sent, settings, false);
            flying++;
        }
        id = take();
        if (id >= URGENT && id < LOAD) {
            urgent_flying--;
            continue;
        }
        flying--;
        if (id >= LOAD)
            continue;
        x->done++;
        if (x->done + 1 == b.o.from) {
            x->begin = now();
            set_measuring(true);
        }
        if (x->done == b.o.to) {
            x->end = now();
            set_measuring(false);
        }
        if (every && x->urgent < b.o.urgent && x->done >= b.o.from &&
            x->done % every == 0) {
            send(URGENT + x->urgent, x->urgent, brief, true);
            x->urgent++;
            urgent_flying++;
        }
    }
}

/* ---- the report --------------------------------------------------------- */

static void write_pages(void)
{
    FILE *file = fopen(b.o.out, "we");

    if (!file)
        die("%s: %s", b.o.out, strerror(errno));
    for (unsigned id = 1; id <= b.o.pages; id++)
        fprintf(file, "%u %d %08x\n", id, (int)at(id)->kind, at(id)->crc);
    fclose(file);
}

static unsigned report(const struct result *x)
{
    struct sample first = {0}, page = {0}, urgent = {0}, given_up = {0};
    unsigned failed = 0;

    for (size_t i = 0; i < b.places; i++) {
        const struct page *p = &b.page[i];
        const bool measured = p->used && i <= b.o.pages;

        failed += p->used && p->kind && !p->cancelled;
        if (p->urgent && p->tokens)
            add(&urgent, p->first - p->sent);
        if (p->cancelled && p->kind)
            add(&given_up, p->done - p->dropped);
        if (measured && p->tokens)
            add(&first, p->first - p->sent);
        if (measured && !p->kind)
            add(&page, p->done - p->sent);
    }
    printf("pages/s %.3f of %u pages in %.2f s\n",
           (b.o.to - b.o.from + 1) / (x->end - x->begin), b.o.to - b.o.from + 1,
           x->end - x->begin);
    print("first_token_ms", &first, 1000);
    print("urgent_first_token_ms", &urgent, 1000);
    print("gap_ms", &b.gaps, 1000);
    print("page_s", &page, 1);
    print("given_up_ms", &given_up, 1000);
    printf("failed %u\n", failed);
    printf("blocks_free %u of %u\n", b.r->free_count, b.r->plan.blocks);
    return failed + (b.r->free_count != b.r->plan.blocks);
}

/* ---- the command line --------------------------------------------------- */

static unsigned number(const char *text)
{
    char *end;
    const unsigned long n = strtoul(text, &end, 10);

    if (end == text || *end || n > 100000)
        die("%s is no number", text);
    return (unsigned)n;
}

static void range(const char *text, unsigned *from, unsigned *to)
{
    if (sscanf(text, "%u-%u", from, to) != 2 || *from > *to)
        die("%s is no range A-B", text);
}

static void take_size(struct options *o, const char *text)
{
    o->mixed = !strcmp(text, "mixed");
    if (!o->mixed && sscanf(text, "%ux%u", &o->width, &o->height) != 2)
        die("%s is no size WxH", text);
}

static void set_option(struct options *o, int option)
{
    switch (option) {
    case 'd':
        o->device = optarg;
        break;
    case 'a':
        o->arguments = optarg;
        break;
    case 'c':
        o->flying = number(optarg);
        break;
    case 'n':
        o->pages = number(optarg);
        break;
    case 'l':
        range(optarg, &o->least, &o->most);
        break;
    case 'S':
        o->seed = number(optarg);
        break;
    case 's':
        take_size(o, optarg);
        break;
    case 'm':
        range(optarg, &o->from, &o->to);
        break;
    case 'L':
        o->load_s = number(optarg);
        break;
    case 'u':
        o->urgent = number(optarg);
        break;
    case 'k':
        o->given_up = number(optarg);
        break;
    case 'o':
        o->out = optarg;
        break;
    case 'e':
        o->engine = optarg;
        break;
    case 'H':
        o->helpers = number(optarg);
        break;
    default:
        exit(2);
    }
}

static void parse(struct options *o, int argc, char **argv)
{
    static char engine[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", engine, sizeof engine - 64);

    engine[n > 0 ? n : 0] = '\0';
    if (strrchr(engine, '/'))
        strcpy(strrchr(engine, '/'), "/../../ocrfs-engine");
    *o = (struct options){.device = "cpu",
                          .arguments = "",
                          .engine = engine,
                          .helpers = 4,
                          .flying = 64,
                          .pages = 512,
                          .least = 500,
                          .most = 1500,
                          .seed = 1,
                          .width = 1092,
                          .height = 1540};
    for (int c; (c = getopt(argc, argv, "d:a:c:n:l:S:s:m:L:u:k:o:e:H:")) != -1;)
        set_option(o, c);
    if (optind >= argc)
        die("MODEL is missing");
    if (!o->to) {
        o->from = o->pages / 8 + 1;
        o->to = o->pages - o->pages / 8;
    }
    if (!o->from || o->to > o->pages || !o->flying)
        die("pages that count must be among all of them");
    o->model = argv[optind];
    o->files = argv + optind + 1;
    o->file_count = (unsigned)(argc - optind - 1);
}

static void open_recogniser(void)
{
    const struct ocr_recogniser_config config = {.arguments = b.o.arguments,
                                                 .device = b.o.device,
                                                 .model = b.o.model,
                                                 .lost = on_lost,
                                                 .wrote = on_wrote};
    struct ocr_err err = OCR_ERR_INIT;
    const double start = now();
    char text[256];

    if (ops->open(&b.r, &config, &err))
        die("%s", err.text);
    ops->describe(b.r, text, sizeof text);
    printf("open_s %.2f\nworks_with %s\n", now() - start, text);
    if (b.o.flying + (b.o.urgent > 0) > ops->capacity(b.r))
        b.o.flying = ops->capacity(b.r) - (b.o.urgent > 0);
    printf("in_flight %u\n", b.o.flying);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct result x = {.done = 0};
    char settings[96];
    unsigned bad;

    parse(&b.o, argc, argv);
    snprintf(settings, sizeof settings,
             "forced_length=%u-%u:%u\nmax_tokens=%u\n", b.o.least, b.o.most,
             b.o.seed, b.o.most);
    open_recogniser();
    if (b.o.file_count)
        open_pool();
    else
        make_all_noise();
    measure(&x, load_before(settings), settings);
    bad = report(&x);
    if (b.o.out)
        write_pages();
    ocr_decode_close(b.pool);
    ops->wake(b.r);
    while (ops->next(b.r, &(struct ocr_recognised){0}) == 0)
        continue;
    ops->close(b.r);
    for (unsigned i = 0; i < b.noises; i++)
        free(b.noise[i].pixels);
    free(b.gaps.value);
    free(b.decoded);
    free(b.page);
    return bad ? 1 : 0;
}

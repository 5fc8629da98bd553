/* ocr-rates [THREADS] - what this machine can do, to judge the model's times
 * by: how fast memory is read, and how fast the large products of each
 * instruction set are, on THREADS threads (all processors) at once. */
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    READ_BYTES = 1 << 30,
    ROWS = 192,
    INPUTS = 1024,
    OUTPUTS = 1024,
    TIMES = 5
};

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        exit(2);
    madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 1, bytes);
    return p;
}

static uint64_t *data;
static uint64_t sums[1024];

/* Four streams a thread, since one does not keep the memory busy. */
static void read_share(void *arg, unsigned thread, unsigned threads)
{
    const size_t words = READ_BYTES / sizeof *data / threads / 32 * 8;
    const uint64_t *p = data + thread * words * 4;
    uint64_t s[8] = {0};

    (void)arg;
    for (size_t i = 0; i < words; i += 8)
        for (int stream = 0; stream < 4; stream++) {
            const uint64_t *from = p + stream * words + i;

            __builtin_prefetch(from + 128);
            for (int j = 0; j < 8; j++)
                s[j] += from[j];
        }
    for (int j = 0; j < 8; j++)
        sums[thread] += s[j];
}

struct product {
    const struct cpu_isa *isa;
    struct cpu_matrix m;
    enum cpu_rows kind;
    char *rows;
};

static void multiply(void *arg, unsigned thread, unsigned threads)
{
    const struct product *p = arg;
    float *c = malloc(ROWS * 32 * sizeof *c);
    float *out = malloc((size_t)ROWS * OUTPUTS * sizeof *out);

    (void)thread;
    (void)threads;
    cpu_flush_denormals();
    for (int i = 0; i < 4; i++)
        cpu_matrix_mul(&p->m, p->isa, p->rows, cpu_row_stride(p->kind, INPUTS),
                       p->kind, ROWS, 0, OUTPUTS / CPU_LANES,
                       &(struct cpu_finish){.kind = CPU_STORE,
                                            .out = out,
                                            .stride = OUTPUTS * sizeof *out},
                       c, NULL);
    free(c);
    free(out);
}

/* The best of some runs, in seconds. */
static double best(struct cpu_pool *pool,
                   void (*job)(void *arg, unsigned thread, unsigned threads),
                   void *arg)
{
    double least = 1e9;

    for (int i = 0; i < TIMES; i++) {
        const double start = now();

        cpu_pool_run(pool, job, arg);
        if (now() - start < least)
            least = now() - start;
    }
    return least;
}

static double product_rate(struct cpu_pool *pool, const struct cpu_isa *isa,
                           enum cpu_format format)
{
    const struct ocr_tensor t = {.data = memory((size_t)INPUTS * OUTPUTS * 2),
                                 .dtype = OCR_DTYPE_BF16,
                                 .rows = OUTPUTS,
                                 .cols = INPUTS};
    const struct cpu_source source = {.part = {&t}};
    struct product p = {.isa = isa};
    const size_t bytes = cpu_matrix_shape(&p.m, &source, format);
    size_t row_bytes;
    double seconds;

    p.m.data = memory(bytes);
    cpu_matrix_pack(&p.m, &source, isa, 0, 1);
    p.kind = cpu_matrix_rows(&p.m, isa, true);
    row_bytes = ROWS * cpu_row_stride(p.kind, INPUTS);
    p.rows = memory(row_bytes);
    memset(p.rows, 0, row_bytes);
    seconds = best(pool, multiply, &p);
    munmap((void *)(uintptr_t)t.data, (size_t)INPUTS * OUTPUTS * 2);
    munmap(p.m.data, bytes);
    munmap(p.rows, row_bytes);
    return 4.0 * cpu_pool_threads(pool) * 2.0 * ROWS * INPUTS * OUTPUTS /
           seconds / 1e9;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"amx", "bf16", "avx512", "avx2"};
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    const int threads = argc > 1 ? atoi(argv[1]) : (int)processors;
    struct cpu_pool *pool;

    if (threads < 1 || threads > 1024 ||
        cpu_pool_new(&pool, (unsigned)threads, NULL))
        return 2;
    data = memory(READ_BYTES);
    printf("threads %d\n", threads);
    printf("read %.1f GB/s\n", READ_BYTES / best(pool, read_share, NULL) / 1e9);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct cpu_isa *isa = cpu_isa_find(names[i]);

        if (isa)
            printf("%s %.0f GFLOP/s bf16, %.0f GFLOP/s fp32\n", isa->name,
                   product_rate(pool, isa, CPU_BF16),
                   product_rate(pool, isa, CPU_FP32));
    }
    cpu_pool_free(pool);
    return 0;
}

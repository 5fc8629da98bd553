/* kernels/cpu/isa_amx.c on processors without tiles: the instructions are done
 * in C as Intel's manual describes them, and products and attention must have
 * the bits of the portable loops. So must the real ones where there are some,
 * and those with pairs. */
#include "tests/unit/cpu_help.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static uint8_t registers[8][16][64];

static void tile_load(int t, const void *from, size_t stride)
{
    for (int r = 0; r < 16; r++)
        memcpy(registers[t][r], (const char *)from + r * stride, 64);
}

static void tile_store(int t, void *to, size_t stride)
{
    for (int r = 0; r < 16; r++)
        memcpy((char *)to + r * stride, registers[t][r], 64);
}

static float pair_half(int t, int row, int pair, int half)
{
    uint32_t u = 0;
    float x;

    memcpy((char *)&u + 2, registers[t][row] + 4 * pair + 2 * half, 2);
    memcpy(&x, &u, sizeof x);
    return x;
}

/* TDPBF16PS: two sums from zero for each result, added, and added to it. */
static void tile_multiply(int c, int a, int b)
{
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++) {
            float even = 0, odd = 0, sum;

            for (int k = 0; k < 16; k++) {
                even = fmaf(pair_half(a, m, k, 0), pair_half(b, k, n, 0), even);
                odd = fmaf(pair_half(a, m, k, 1), pair_half(b, k, n, 1), odd);
            }
            memcpy(&sum, registers[c][m] + 4 * n, sizeof sum);
            sum += even + odd;
            memcpy(registers[c][m] + 4 * n, &sum, sizeof sum);
        }
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_loadconfig
#undef _tile_release
#define _tile_loadd(t, from, stride) tile_load(t, from, stride)
#define _tile_stored(t, to, stride) tile_store(t, to, stride)
#define _tile_zero(t) memset(registers[t], 0, sizeof registers[t])
#define _tile_dpbf16ps(c, a, b) tile_multiply(c, a, b)
#define _tile_loadconfig(shape) assert_int_equal((shape)->palette, 1)
#define _tile_release()
#define cpu_isa_amx cpu_isa_emulated
#include "kernels/cpu/cpu_i.h"
/* Its instructions are replaced. NOLINTNEXTLINE */
#include "kernels/cpu/isa_amx.c"

static float *floats(size_t n, uint64_t seed)
{
    float *x = malloc(n * sizeof *x);

    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = 2 * random_float(seed * 1000003 + i);
    return x;
}

/* x [rows][w.cols] times w. */
static float *product(const struct cpu_isa *isa, const float *x, uint32_t rows,
                      const struct ocr_tensor *w, enum cpu_format format)
{
    const struct cpu_source source = {.part = {w}};
    const uint32_t all = (rows + 31) / 32 * 32;
    struct cpu_matrix m;
    const size_t bytes = cpu_matrix_shape(&m, &source, format);
    const enum cpu_rows kind = cpu_matrix_rows(&m, isa, true);
    const size_t stride = cpu_row_stride(kind, w->cols);
    char *a = calloc(all, stride), *spare = malloc((size_t)m.tiles * 2048);
    float *c = malloc(all * 32 * sizeof *c);
    float *out = malloc((size_t)rows * m.columns * sizeof *out);

    assert_int_equal(kind == CPU_ROWS_BF16, isa->half);
    m.data = malloc(bytes);
    m.scale = malloc(m.columns * sizeof *m.scale);
    cpu_matrix_pack(&m, &source, isa, 0, 1);
    if (format != CPU_INT8) {
        free(m.scale);
        m.scale = NULL;
    }
    for (uint32_t r = 0; r < rows; r++)
        isa->to_row(a + r * stride, kind, x + (size_t)r * w->cols, w->cols);
    cpu_matrix_mul(&m, isa, a, stride, kind, rows, 0, m.columns / CPU_LANES,
                   &(struct cpu_finish){.kind = CPU_STORE,
                                        .out = out,
                                        .stride = m.columns * sizeof *out},
                   c, spare);
    free(a);
    free(c);
    free(spare);
    free(m.data);
    free(m.scale);
    return out;
}

/* Rows are made by AVX-512. (cmocka's skip() is a failure to prove.) */
static bool can_emulate(void)
{
    if (cpu_isa_find("avx512"))
        return true;
    print_message("# no AVX-512 here\n");
    return false;
}

enum {
    HALVES = 3
};

/* What takes rows of bf16; NULL where the processor lacks it. */
static const struct cpu_isa *half_isa(int i)
{
    return i == 0 ? &cpu_isa_emulated : cpu_isa_find(i == 1 ? "amx" : "bf16");
}

static void compare_products(const uint32_t size[3], enum cpu_format format,
                             uint64_t seed)
{
    const size_t n = (size[1] + 15) / 16 * 16 * (size_t)size[0];
    const struct ocr_tensor w =
        random_tensor(size[1], size[2], OCR_DTYPE_BF16, 0, 1, &seed);
    float *x = floats((size_t)size[0] * size[2], seed);
    float *right = product(&cpu_isa_scalar, x, size[0], &w, format);

    for (int i = 0; i < HALVES; i++) {
        const struct cpu_isa *isa = half_isa(i);
        float *found = isa ? product(isa, x, size[0], &w, format) : NULL;

        if (isa)
            assert_memory_equal(found, right, n * sizeof *right);
        free(found);
    }
    random_free_tensor(&w);
    free(x);
    free(right);
}

static void products_have_the_same_bits(void **state)
{
    static const uint32_t sizes[][3] = {
        {1, 16, 32}, {31, 48, 64}, {32, 32, 37}, {33, 99, 1024}, {70, 17, 96}};
    static const enum cpu_format formats[] = {CPU_BF16, CPU_INT8};

    (void)state;
    if (!can_emulate())
        return;
    for (size_t i = 0; i < 2 * COUNT(sizes); i++)
        compare_products(sizes[i / 2], formats[i % 2], i);
}

/* `rows` queries of 40 against `keys` tokens, all seen. */
static float *attended(const struct cpu_isa *isa, const float *q,
                       const float *kv, unsigned rows, unsigned keys)
{
    enum {
        D = 40
    };
    struct cpu_heads heads;
    struct cpu_attend a = {.isa = isa,
                           .kv = &heads,
                           .kind =
                               isa->half ? CPU_ROWS_BF16 : CPU_ROWS_ROUNDED};
    const size_t stride = cpu_row_stride(a.kind, D);
    static struct cpu_scratch s;
    char *k = calloc(CPU_SPLIT_BLOCKS, 65536), *v = calloc(1, 1 << 20);
    char *rows_q = calloc(CPU_ATTEND_ROWS, stride);
    const char *panels[CPU_SPLIT_BLOCKS];
    float *out = calloc((size_t)rows * D, sizeof *out);

    cpu_heads_init(&heads, D, CPU_BF16);
    s.scores = calloc(CPU_ATTEND_ROWS, CPU_SCORE_STRIDE * sizeof(float));
    s.p = calloc(CPU_ATTEND_ROWS, cpu_row_stride(a.kind, OCR_SPLIT_TOKENS));
    s.acc = calloc(CPU_ATTEND_ROWS, 64 * sizeof(float));
    s.c = calloc(CPU_ATTEND_ROWS, 32 * sizeof(float));
    for (unsigned i = 0; i < CPU_SPLIT_BLOCKS; i++)
        panels[i] = k + (size_t)i * 65536;
    for (unsigned i = 0; i < keys; i++) {
        cpu_put_k(k + (size_t)(i / 16) * 65536, &heads, isa, i % 16,
                  kv + (size_t)i * D);
        cpu_put_v(v + i / 16 * heads.v_half, heads.v_half * CPU_SPLIT_BLOCKS,
                  &heads, isa, i % 16, kv + (size_t)(keys - 1 - i) * D);
    }
    for (unsigned r = 0; r < rows; r++)
        isa->to_row(rows_q + r * stride, a.kind, q + (size_t)r * D, D);
    cpu_attend_begin(&s, rows, heads.v_panels * CPU_LANES);
    cpu_attend_split(&a, &s, rows_q, stride, rows, panels, v, keys, keys, 0);
    for (unsigned r = 0; r < rows; r++)
        cpu_attend_end(&a, &s, r, out + (size_t)r * D);
    free(k);
    free(v);
    free(rows_q);
    free(s.scores);
    free(s.p);
    free(s.acc);
    free(s.c);
    return out;
}

static void attention_has_the_same_bits(void **state)
{
    static const unsigned sizes[][2] = {{1, 1},    {5, 16},    {32, 33},
                                        {100, 80}, {128, 256}, {3, 250}};
    float *q = floats(CPU_ATTEND_ROWS * 40, 1), *kv = floats(256 * 40, 2);

    (void)state;
    if (!can_emulate())
        return;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        const unsigned rows = sizes[i][0], keys = sizes[i][1];
        float *right = attended(&cpu_isa_scalar, q, kv, rows, keys);

        for (int j = 0; j < HALVES; j++) {
            const struct cpu_isa *isa = half_isa(j);
            float *found = isa ? attended(isa, q, kv, rows, keys) : NULL;

            if (isa)
                assert_memory_equal(found, right, rows * 40 * sizeof *right);
            free(found);
        }
        free(right);
    }
    free(q);
    free(kv);
}

/* From here on the kernel refuses this process the state of tiles. */
static bool refuse_tiles(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                 offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x1023, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {COUNT(code), code};

    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
           !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static char said[256];

static void hear(void *arg, const char *line)
{
    (void)arg;
    snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", line);
}

/* In a child: what is said, and by which status it ends. */
static int open_without_tiles(const struct ocr_model *m)
{
    const struct ocr_backend_config config = {
        .device = "cpu", .threads = 1, .slots = 1, .log = hear};
    struct ocr_backend_plan plan;
    struct ocr_backend *b = NULL;

    if (!refuse_tiles())
        return 1;
    if (ocr_backend_cpu.open(&b, &config, m, &plan, NULL))
        return 2;
    ocr_backend_cpu.close(b);
    if (!strncmp(plan.device, "amx", 3))
        return 3;
    return strcmp(strchr(said, ';') ? strchr(said, ';') : "",
                  "; this processor has more, but the kernel does not allow "
                  "its tiles\n") != 0;
}

static void tiles_that_are_refused_are_said_once(void **state)
{
    struct ocr_model *m;
    int status;
    pid_t child;

    (void)state;
    if (!cpu_isa_find("amx") || getenv("OCRFS_ISA")) {
        print_message("# no tiles here to refuse\n");
        return;
    }
    m = random_model_new(&ODD_SHAPE);
    child = fork();
    if (!child)
        _exit(open_without_tiles(m));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    random_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_have_the_same_bits),
        cmocka_unit_test(attention_has_the_same_bits),
        cmocka_unit_test(tiles_that_are_refused_are_said_once),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    puts("1..0 # skip other processors have no tiles");
    return 0;
}

#endif

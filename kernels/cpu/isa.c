#include "kernels/cpu/isa.h"
#include "kernels/cpu/matrix.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif

const uint8_t cpu_order_plain[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                     8, 9, 10, 11, 12, 13, 14, 15};
const uint8_t cpu_order_pairs[16] = {2, 0, 6, 4, 10, 8, 14, 12,
                                     3, 1, 7, 5, 11, 9, 15, 13};

void cpu_flush_denormals(void)
{
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040); /* flush to zero, denormals are zero */
#endif
}

#if defined(__x86_64__)

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

static bool has_pairs(void)
{
    unsigned a, b, c, d;

    return has_avx512() && __get_cpuid_count(7, 1, &a, &b, &c, &d) &&
           (a & 1u << 5);
}

static bool has_tiles(void)
{
    unsigned a, b, c, d;

    return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           (d & 1u << 22) && (d & 1u << 24);
}

/* The kernel hands out the state of tiles on request only. */
static bool tiles_allowed(void)
{
    enum {
        REQUEST = 0x1023, /* ARCH_REQ_XCOMP_PERM */
        XTILEDATA = 18
    };

    return !syscall(SYS_arch_prctl, REQUEST, XTILEDATA);
}

/* Signs and fractions from a counter; sums of them round at every step. */
static float noise(uint32_t *seed)
{
    float x;

    *seed = *seed * 1664525 + 1013904223;
    const uint32_t u = (*seed & 0x807f0000u) | 0x3f000000u;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Whether `isa` gives the bits of the portable loops. */
static bool same_bits(const struct cpu_isa *isa)
{
    enum {
        ROWS = 32,
        TILES = 2,
        K = TILES * CPU_TILE
    };
    _Alignas(64) uint16_t panel[2][2][K * CPU_LANES], half[ROWS][K];
    float rows[ROWS][K], c[2][ROWS][32];
    uint32_t seed = 1;

    for (int i = 0; i < 2 * K * CPU_LANES; i++) {
        const int p = i / (K * CPU_LANES), k = i / CPU_LANES % K;
        const int n = i % CPU_LANES;
        int place = 0;

        while (isa->order[place] != k % 16)
            place++;
        place += k / 16 * 16;
        panel[0][p][k / 2 * 32 + n * 2 + k % 2] =
            panel[1][p][place / 2 * 32 + n * 2 + place % 2] =
                cpu_to_bf16(noise(&seed));
    }
    for (int r = 0; r < ROWS; r++) {
        for (int k = 0; k < K; k++)
            rows[r][k] = noise(&seed);
        isa->to_row(half[r], CPU_ROWS_BF16, rows[r], K);
    }
    cpu_isa_scalar.mul(c[0][0], 32, rows, sizeof rows[0], ROWS,
                       &(struct cpu_panels){panel[0][0], panel[0][1], 0, 0},
                       TILES, CPU_BF16);
    isa->mul_half(c[1][0], 32, half, sizeof half[0], ROWS, panel[1][0],
                  panel[1][1], TILES);
    /* Of bits: that is what is asked. NOLINTNEXTLINE */
    return !memcmp(c[0], c[1], sizeof c[0]);
}

static const char *same_or_not(const struct cpu_isa *isa)
{
    return same_bits(isa) ? NULL
                          : "its sums differ from those of other processors";
}

/* Why an instruction set is not used; empty: the processor lacks it; NULL: it
 * can be used. */
static const char *trouble(const struct cpu_isa *isa)
{
    static const char lacking[] = "";

    if (isa == &cpu_isa_amx) {
        if (!has_tiles())
            return lacking;
        return tiles_allowed() ? same_or_not(isa)
                               : "the kernel does not allow its tiles";
    }
    if (isa == &cpu_isa_bf16)
        return has_pairs() ? same_or_not(isa) : lacking;
    if (isa == &cpu_isa_avx512)
        return has_avx512() ? NULL : lacking;
    if (isa == &cpu_isa_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
                   ? NULL
                   : lacking;
    return NULL;
}

static const struct cpu_isa *const all[] = {&cpu_isa_amx, &cpu_isa_bf16,
                                            &cpu_isa_avx512, &cpu_isa_avx2,
                                            &cpu_isa_scalar};

#else

static const char *trouble(const struct cpu_isa *isa)
{
    (void)isa;
    return NULL;
}

static const struct cpu_isa *const all[] = {&cpu_isa_scalar};

#endif

enum {
    COUNT = sizeof all / sizeof all[0]
};

static int place(const char *name)
{
    for (int i = 0; name && i < COUNT; i++)
        if (!strcmp(all[i]->name, name))
            return i;
    return -1;
}

const struct cpu_isa *cpu_isa_find(const char *name)
{
    const int i = place(name);

    return i < 0 || trouble(all[i]) ? NULL : all[i];
}

const struct cpu_isa *cpu_isa_choose(const char **why)
{
    const int cap = place(getenv("OCRFS_ISA"));

    for (int i = cap < 0 ? 0 : cap; i < COUNT; i++) {
        const char *reason = trouble(all[i]);

        if (!reason)
            return all[i];
        if (*reason && why)
            *why = reason;
    }
    return &cpu_isa_scalar;
}

/* Which instruction sets this machine has. */
#include "runtime/common.h"
#include "runtime/isa.h"

static int always(void) { return 1; }

#if defined(__aarch64__)

#if defined(__linux__)
#include <sys/auxv.h>
static int has_dot(void) { return (getauxval(AT_HWCAP) >> 20) & 1; /* ASIMDDP */ }
static int has_half(void) { return has_dot() && (getauxval(AT_HWCAP) >> 10) & 1; /* ASIMDHP */ }
#else
#ifdef __ARM_FEATURE_DOTPROD
static int has_dot(void) { return 1; }
#else
static int has_dot(void) { return 0; }
#endif
#ifdef __ARM_FEATURE_FP16_VECTOR_ARITHMETIC
static int has_half(void) { return has_dot(); }
#else
static int has_half(void) { return 0; }
#endif
#endif

const Isa isas[] = {
    {"portable", &packed_portable, always},
    {"neon", &packed_neon, always},
    {"neon-dot", &packed_neon_dot, has_dot},
    {"neon-half", &packed_neon_half, has_half, .half = 1},
    {0}};

#elif defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Bits of a register of CPUID. */
enum { EAX, EBX, ECX, EDX };
static int cpu_has(unsigned leaf, unsigned part, int reg, unsigned bit) {
    unsigned r[4];
    return __get_cpuid_count(leaf, part, &r[EAX], &r[EBX], &r[ECX], &r[EDX]) && (r[reg] >> bit & 1);
}

/* Whether the operating system keeps these registers. */
static int os_keeps(unsigned mask) {
    unsigned low, high;
    if (!cpu_has(1, 0, ECX, 27)) return 0; /* OSXSAVE */
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & mask) == mask;
}

static int has_avx2(void) {
    return os_keeps(0x6) && cpu_has(7, 0, EBX, 5) && cpu_has(1, 0, ECX, 12) && cpu_has(1, 0, ECX, 29); /* FMA, F16C */
}
static int has_avx512(void) { /* F, BW, VL */
    return has_avx2() && os_keeps(0xe6) && cpu_has(7, 0, EBX, 16) && cpu_has(7, 0, EBX, 30) && cpu_has(7, 0, EBX, 31);
}
static int has_vnni(void) { return has_avx512() && cpu_has(7, 0, ECX, 11); }
static int has_bf16(void) { return has_vnni() && cpu_has(7, 1, EAX, 5); }

/* The tile registers are the process's once the operating system has been asked for them. */
static int has_amx(void) {
#if defined(__linux__)
    enum { ASK_FOR_FEATURE = 0x1023 /* ARCH_REQ_XCOMP_PERM */, TILE_DATA = 18 };
    int present = cpu_has(7, 0, EDX, 22) && cpu_has(7, 0, EDX, 24) && cpu_has(7, 0, EDX, 25); /* bf16, tiles, int8 */
    return has_bf16() && present && syscall(SYS_arch_prctl, ASK_FOR_FEATURE, TILE_DATA) == 0;
#else
    return 0;
#endif
}

const Isa isas[] = {
    {"portable", &packed_portable, always},
    {"avx2", &packed_avx2, has_avx2},
    {"avx512", &packed_avx512, has_avx512},
    {"avx512-vnni", &packed_vnni, has_vnni},
    {"avx512-bf16", &packed_avx512_bf16, has_bf16},
    {"amx", &packed_amx, has_amx, .tiles = 1},
    {0}};

#else

const Isa isas[] = {{"portable", &packed_portable, always}, {0}};

#endif

int64_t count_isas(void) {
    int64_t count = 0;
    while (isas[count].name) count++;
    return count;
}

/* Name of instruction set `index`, "" where this machine lacks it, NULL past the last. */
EXPORT const char *cadence_packed_isa(int64_t index) {
    if (index < 0 || index >= count_isas()) return NULL;
    return isas[index].usable() ? isas[index].name : "";
}

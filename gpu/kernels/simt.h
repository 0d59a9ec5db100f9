// A warp of 32 lanes, for the compiler of the GPU and for a C++ compiler of the CPU.
//
// On the GPU a `word` is a register of a thread. On the CPU it is a vector of 32 words, and one host thread is a warp.
// Kernels are written so that both mean the same: control flow depends on values that all lanes share (plain
// uint32_t, uint64_t, bool), never on a lane's own; a lane's own condition is a `pred` and goes through sel(). No
// block barriers, no shared memory. Nothing here branches or addresses by data.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define WL_GPU 1
typedef unsigned char uint8_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int int32_t;
#include "wattlock_gpu.h"
#define FN static __device__ __forceinline__
#define PART FN
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")

typedef uint32_t word;
typedef uint64_t word64;
typedef bool pred;

FN word splat(uint32_t x) { return x; }
FN word64 splat64(uint64_t x) { return x; }
FN word lane() { return threadIdx.x & 31u; }
FN word64 wide(word x) { return x; }
FN word low(word64 x) { return (word)x; }
FN word sel(pred p, word a, word b) { return p ? a : b; }
FN word64 sel64(pred p, word64 a, word64 b) { return p ? a : b; }
FN pred both(pred a, pred b) { return a & b; }
FN pred lt(word a, word b) { return a < b; }
FN pred lt64(word64 a, word64 b) { return a < b; }
FN pred le64(word64 a, word64 b) { return a <= b; }
FN pred eq(word a, word b) { return a == b; }
FN pred eq64(word64 a, word64 b) { return a == b; }
// a / b; `small`: both are below 2^32.
FN word64 divide(word64 a, uint64_t b, bool small) { return small ? (uint32_t)a / (uint32_t)b : a / b; }
FN void sync() { __syncwarp(); }
FN uint32_t ballot(pred p) { return __ballot_sync(0xffffffffu, p); }
FN bool any(pred p) { return __any_sync(0xffffffffu, p); }
FN uint32_t pick(word x, uint32_t from) { return __shfl_sync(0xffffffffu, x, from); }
FN uint64_t pick64(word64 x, uint32_t from) { return __shfl_sync(0xffffffffu, x, from); }
FN word swap_lanes(word x, uint32_t mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }

// Any function of three bits: bit 4a+2b+c of LUT.
template <int LUT> FN word lop3(word a, word b, word c) {
    word r;
    asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(r) : "r"(a), "r"(b), "r"(c), "n"(LUT));
    return r;
}
// Bytes of b:a, selected by nibbles, the lowest first.
template <int SEL> FN word prmt(word a, word b) { return __byte_perm(a, b, SEL); }
FN word rotl(word x, int n) { return __funnelshift_l(x, x, n); }
// The 32 bits of high:low from bit n on; n below 32.
FN word funnel_right(word low, word high, int n) { return __funnelshift_r(low, high, n); }
// high:low shifted left by n below 32, its high half.
FN word funnel_left(word low, word high, word n) { return __funnelshift_l(low, high, n); }
// In PTX: of the C++ product, with its operands' upper halves zero, the compiler keeps additions of zeros.
FN word64 mul_wide(word a, word b) {
    word64 r;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(r) : "r"(a), "r"(b));
    return r;
}
// By halves with a carry: of mad.wide the assembler makes a product and a part of an addition of three numbers, on the
// pipe that has too much to do already.
FN void mul_add(word64 &sum, word a, word b) {
    asm("{ .reg .u32 l, h; mov.b64 {l, h}, %0;"
        " mad.lo.cc.u32 l, %1, %2, l; madc.hi.u32 h, %1, %2, h; mov.b64 %0, {l, h}; }"
        : "+l"(sum) : "r"(a), "r"(b));
}

// Addresses are of global memory. Volatile: in the order in which the source has them.
struct Four { uint32_t x, y, z, w; };
FN Four load_four_at(uint64_t at) {
    Four v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}
// Four words at an address that all lanes share, a multiple of 16.
FN Four load_four(uint64_t address) { return load_four_at(address); }
FN uint64_t load_u64(uint64_t at) {
    uint64_t v;
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(v) : "l"(at));
    return v;
}

// Loads and stores of lanes. A lane that is not `on` touches nothing and gets zeros.
FN word load8(word64 at, pred on) {
    word v = 0;
    if (on) asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(at));
    return v;
}
FN word load32(word64 at, pred on) {
    word v = 0;
    if (on) asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(at));
    return v;
}
FN word64 load64(word64 at, pred on) {
    word64 v = 0;
    if (on) v = load_u64(at);
    return v;
}
FN void store8(word64 at, word v, pred on) {
    if (on) asm volatile("st.global.u8 [%0], %1;" : : "l"(at), "r"(v) : "memory");
}
FN void store32(word64 at, word v, pred on) {
    if (on) asm volatile("st.global.u32 [%0], %1;" : : "l"(at), "r"(v) : "memory");
}
FN void store64(word64 at, word64 v, pred on) {
    if (on) asm volatile("st.global.u64 [%0], %1;" : : "l"(at), "l"(v) : "memory");
}
FN void load16(word v[4], word64 at, pred on) {
    Four f = {0, 0, 0, 0};
    if (on) f = load_four_at(at);
    v[0] = f.x; v[1] = f.y; v[2] = f.z; v[3] = f.w;
}
FN void store16(word64 at, const word v[4], pred on) {
    if (on)
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                     : : "l"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}
// Carry-less products, 64 by 64 bits.
FN void clmul_add(word64 &lo, word64 &hi, word64 a, word64 b) {
    asm("clmad.lo.u64 %0, %1, %2, %0;" : "+l"(lo) : "l"(a), "l"(b));
    asm("clmad.hi.u64 %0, %1, %2, %0;" : "+l"(hi) : "l"(a), "l"(b));
}

// The same number, of which the compiler does not know that: what is made of it is made again, not kept in registers.
FN uint64_t again(uint64_t x) {
    asm volatile("" : "+l"(x));
    return x;
}

// A place in a lane's own memory: what is put there takes no register meanwhile.
typedef volatile word parked;

struct Warp { uint64_t index, count; };
FN Warp this_warp() {
    // Through lane 0, so that the compiler knows that all lanes share it.
    uint32_t in_block = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
    return {(uint64_t)blockIdx.x * (WL_BLOCK / 32) + in_block, (uint64_t)gridDim.x * (WL_BLOCK / 32)};
}

// A kernel's entry. `blocks`: of 128 threads, that fit on a multiprocessor at once, so 65,536 / 128 / blocks registers.
#define WL_KERNEL(name, blocks, body)                                                                                  \
    extern "C" __global__ void __launch_bounds__(WL_BLOCK, blocks) name(const __grid_constant__ wl_run run) {          \
        body(this_warp(), run);                                                                                        \
    }

#else  // a C++ compiler of the CPU

#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__) || defined(__PCLMUL__)
#include <immintrin.h>
#endif
#include "wattlock_gpu.h"
#define FN static inline __attribute__((always_inline))
// What the GPU inlines and the CPU calls: states are in memory here, and a compiler takes minutes over a kernel in one.
#define PART static __attribute__((noinline))
#define UNROLL
#define ROLLED

typedef uint32_t word __attribute__((vector_size(128)));
typedef uint64_t word64 __attribute__((vector_size(256)));
typedef int32_t pred __attribute__((vector_size(128)));
typedef int64_t pred64 __attribute__((vector_size(256)));

FN word splat(uint32_t x) { return word{} + x; }
FN word64 splat64(uint64_t x) { return word64{} + x; }
FN word lane() {
    return word{0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
}
FN word64 wide(word x) { return __builtin_convertvector(x, word64); }
FN word low(word64 x) { return __builtin_convertvector(x, word); }
FN word sel(pred p, word a, word b) { return ((word)p & a) | (~(word)p & b); }
FN word64 sel64(pred p, word64 a, word64 b) {
    word64 m = (word64)__builtin_convertvector(p, pred64);
    return (m & a) | (~m & b);
}
FN pred both(pred a, pred b) { return a & b; }
FN pred lt(word a, word b) { return a < b; }
FN pred lt64(word64 a, word64 b) { return __builtin_convertvector(a < b, pred); }
FN pred le64(word64 a, word64 b) { return __builtin_convertvector(a <= b, pred); }
FN pred eq(word a, word b) { return a == b; }
FN pred eq64(word64 a, word64 b) { return __builtin_convertvector(a == b, pred); }
FN word64 divide(word64 a, uint64_t b, bool) { return a / splat64(b); }
FN void sync() {}
PART uint32_t ballot(pred p) {
    uint32_t r = 0;
    for (int i = 0; i < 32; i++) r |= ((uint32_t)p[i] & 1u) << i;
    return r;
}
FN bool any(pred p) { return ballot(p) != 0; }
FN uint32_t pick(word x, uint32_t from) { return x[from]; }
FN uint64_t pick64(word64 x, uint32_t from) { return x[from]; }
PART word swap_lanes(word x, uint32_t mask) {
    word r;
    for (int i = 0; i < 32; i++) r[i] = x[i ^ mask];
    return r;
}
template <int LUT> FN word lop3(word a, word b, word c) {
#if defined(__AVX512F__)
    word r;
    for (int h = 0; h < 2; h++)
        ((__m512i *)&r)[h] = _mm512_ternarylogic_epi32(((__m512i *)&a)[h], ((__m512i *)&b)[h], ((__m512i *)&c)[h], LUT);
    return r;
#else
    // The three that are most of all; the rest by Shannon's expansion in a.
    if (LUT == 0x96) return a ^ b ^ c;
    if (LUT == 0x6a) return (a & b) ^ c;
    if (LUT == 0xe4) return (c & a) | (~c & b);
    word zero = {}, f[2];
    for (int i = 0; i < 2; i++) {
        int t = (LUT >> (4 * i)) & 15;
        word r = zero;
        if (t & 1) r |= ~b & ~c;
        if (t & 2) r |= ~b & c;
        if (t & 4) r |= b & ~c;
        if (t & 8) r |= b & c;
        f[i] = r;
    }
    return f[0] ^ (a & (f[0] ^ f[1]));
#endif
}
template <int SEL> FN word prmt(word a, word b) {
    word r = {};
    for (int i = 0; i < 4; i++) {
        int s = (SEL >> (4 * i)) & 7;
        r |= (((s < 4 ? a : b) >> (8 * (s & 3))) & 0xffu) << (8 * i);
    }
    return r;
}
FN word rotl(word x, int n) { return (x << n) | (x >> (32 - n)); }
FN word funnel_right(word low, word high, int n) { return n ? (low >> n) | (high << (32 - n)) : low; }
FN word funnel_left(word low, word high, word n) { return (high << n) | ((low >> 1) >> (31 - n)); }
FN word64 mul_wide(word a, word b) { return wide(a) * wide(b); }
FN void mul_add(word64 &sum, word a, word b) { sum += mul_wide(a, b); }

struct Four { uint32_t x, y, z, w; };
FN Four load_four(uint64_t address) {
    Four v;
    memcpy(&v, (const void *)address, 16);
    return v;
}
FN uint64_t load_u64(uint64_t address) {
    uint64_t v;
    memcpy(&v, (const void *)address, 8);
    return v;
}
template <class T, class V> PART V gather(word64 address, pred on) {
    V r = {};
    for (int i = 0; i < 32; i++) {
        T v = 0;
        if (on[i]) memcpy(&v, (const void *)address[i], sizeof v);
        r[i] = v;
    }
    return r;
}
template <class T, class V> PART void scatter(word64 address, V value, pred on) {
    for (int i = 0; i < 32; i++) {
        T v = (T)value[i];
        if (on[i]) memcpy((void *)address[i], &v, sizeof v);
    }
}
FN word load8(word64 address, pred on) { return gather<uint8_t, word>(address, on); }
FN word load32(word64 address, pred on) { return gather<uint32_t, word>(address, on); }
FN word64 load64(word64 address, pred on) { return gather<uint64_t, word64>(address, on); }
FN void store8(word64 address, word value, pred on) { scatter<uint8_t>(address, value, on); }
FN void store32(word64 address, word value, pred on) { scatter<uint32_t>(address, value, on); }
FN void store64(word64 address, word64 value, pred on) { scatter<uint64_t>(address, value, on); }
// Alignment is the GPU's rule; the host keeps it, so that a test here finds what would be a fault there.
FN void aligned16(uint64_t address) {
    if (address & 15) __builtin_trap();
}
PART void load16(word v[4], word64 address, pred on) {
    for (int i = 0; i < 32; i++) {
        uint32_t q[4] = {0, 0, 0, 0};
        if (on[i]) {
            aligned16(address[i]);
            memcpy(q, (const void *)address[i], 16);
        }
        for (int j = 0; j < 4; j++) v[j][i] = q[j];
    }
}
PART void store16(word64 address, const word v[4], pred on) {
    for (int i = 0; i < 32; i++) {
        uint32_t q[4] = {v[0][i], v[1][i], v[2][i], v[3][i]};
        if (on[i]) {
            aligned16(address[i]);
            memcpy((void *)address[i], q, 16);
        }
    }
}
PART void clmul_add(word64 &lo, word64 &hi, word64 a, word64 b) {
    for (int i = 0; i < 32; i++) {
#if defined(__PCLMUL__)
        __m128i p = _mm_clmulepi64_si128(_mm_cvtsi64_si128(a[i]), _mm_cvtsi64_si128(b[i]), 0);
        lo[i] ^= _mm_cvtsi128_si64(p);
        hi[i] ^= _mm_cvtsi128_si64(_mm_unpackhi_epi64(p, p));
#else
        uint64_t l = 0, h = 0;
        for (int j = 0; j < 64; j++) {
            uint64_t m = 0 - ((b[i] >> j) & 1);
            l ^= (a[i] << j) & m;
            h ^= (j ? a[i] >> (64 - j) : 0) & m;
        }
        lo[i] ^= l;
        hi[i] ^= h;
#endif
    }
}

FN uint64_t again(uint64_t x) { return x; }
typedef word parked;

struct Warp { uint64_t index, count; };

typedef void (*wl_body)(Warp, const wl_run &);
struct wl_entry { const char *name; wl_body body; };
#define WL_KERNEL(name, blocks, body)                                                                                  \
    static void name(Warp warp, const wl_run &run) { body(warp, run); }

#endif

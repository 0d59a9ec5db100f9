// GHASH (SP 800-38D section 6.4) in POLYVAL's form (RFC 8452 appendix A): a block is a 128-bit number, most significant
// byte first; products are reduced by x^128 + x^127 + x^126 + x^121 + 1 and lose a factor of x^128, which the stored
// powers of H make up for. Two ways to multiply: by clmad, or by integers with holes between their bits.
#pragma once

struct Block { word64 lo, hi; };

// A product of 32 by 32 bits without carries: each operand is taken apart into four with a bit in four, so that the
// carries of a multiplication (at most 8 to a place) end in the holes (T. Pornin, BearSSL, ctmul).
PART word64 clmul32(word a, word b) {
    word x[4], y[4];
    word64 r = splat64(0);
    UNROLL for (int i = 0; i < 4; i++) {
        x[i] = a & (0x11111111u << i);
        y[i] = b & (0x11111111u << i);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        word64 z = mul_wide(x[0], y[i]) ^ mul_wide(x[1], y[(i + 3) & 3]) ^ mul_wide(x[2], y[(i + 2) & 3]) ^
                   mul_wide(x[3], y[(i + 1) & 3]);
        r |= z & (0x1111111111111111ull << i);
    }
    return r;
}

template <bool INTEGER> PART void multiply_add(word64 &lo, word64 &hi, word64 a, word64 b) {
    if (INTEGER) {
        word al = low(a), ah = low(a >> 32), bl = low(b), bh = low(b >> 32);
        word64 l = clmul32(al, bl), h = clmul32(ah, bh), m = clmul32(al ^ ah, bl ^ bh) ^ l ^ h;
        lo ^= l ^ (m << 32);
        hi ^= h ^ (m >> 32);
    } else {
        clmul_add(lo, hi, a, b);
    }
}

// Sums of unreduced products, by Karatsuba's three multiplications.
struct Sum { word64 ll, lh, hl, hh, ml, mh; };
FN Sum no_sum() { word64 z = splat64(0); return {z, z, z, z, z, z}; }
template <bool INTEGER> PART void add_product(Sum &s, Block a, word64 lo, word64 hi, word64 mixed) {
    multiply_add<INTEGER>(s.ll, s.lh, a.lo, lo);
    multiply_add<INTEGER>(s.hl, s.hh, a.hi, hi);
    multiply_add<INTEGER>(s.ml, s.mh, a.lo ^ a.hi, mixed);
}
// Adds t * (x^63 + x^62 + x^57) to hi:lo, and t to hi.
PART void fold(word64 &lo, word64 &hi, word64 t) {
    lo ^= (t << 63) ^ (t << 62) ^ (t << 57);
    hi ^= t ^ (t >> 1) ^ (t >> 2) ^ (t >> 7);
}
PART Block reduce(const Sum &s) {
    word64 t0 = s.ll, t1 = s.lh ^ s.ml ^ s.ll ^ s.hl, t2 = s.hl ^ s.mh ^ s.lh ^ s.hh, t3 = s.hh;
    fold(t1, t2, t0);
    fold(t2, t3, t1);
    return {t2, t3};
}
template <bool INTEGER> PART Block times(Block a, Block b) {
    Sum s = no_sum();
    add_product<INTEGER>(s, a, b.lo, b.hi, b.lo ^ b.hi);
    return reduce(s);
}
FN Block one() { return {splat64(1), splat64(0xc200000000000000ull)}; }

FN word byte_swap(word x) { return prmt<0x0123>(x, x); }
PART Block to_block(const word v[4]) {
    word64 lo = wide(byte_swap(v[3])) | (wide(byte_swap(v[2])) << 32);
    word64 hi = wide(byte_swap(v[1])) | (wide(byte_swap(v[0])) << 32);
    return {lo, hi};
}
PART void from_block(word v[4], Block b) {
    v[0] = byte_swap(low(b.hi >> 32));
    v[1] = byte_swap(low(b.hi));
    v[2] = byte_swap(low(b.lo >> 32));
    v[3] = byte_swap(low(b.lo));
}

// The table: entry k below 32 is H^(32k), entry 31 + j is H^j for j from 1 to 32; each its halves and their sum.
FN uint64_t power_at(uint64_t key, uint32_t entry) { return key + WL_KEY_POWERS + 24 * entry; }
PART Block load_power(uint64_t key, word entry) {
    word64 at = splat64(key + WL_KEY_POWERS) + wide(entry * 24u);
    pred on = eq(entry, entry);
    return {load64(at, on), load64(at + 8u, on)};
}

// ChaCha20-Poly1305 (RFC 8439). A lane does a ChaCha20 block of 64 bytes; its four blocks of Poly1305 are multiplied by
// powers of r, and the lanes' sums are brought together at a segment's end.
#pragma once

FN void quarter(word &a, word &b, word &c, word &d) {
    a += b; d = rotl(d ^ a, 16);
    c += d; b = rotl(b ^ c, 12);
    a += b; d = rotl(d ^ a, 8);
    c += d; b = rotl(b ^ c, 7);
}
PART void chacha_block(word x[16], const word s[16]) {
    UNROLL for (int i = 0; i < 16; i++) x[i] = s[i];
    UNROLL for (int i = 0; i < 10; i++) {
        UNROLL for (int j = 0; j < 4; j++) quarter(x[j], x[4 + j], x[8 + j], x[12 + j]);
        UNROLL for (int j = 0; j < 4; j++)
            quarter(x[j], x[4 + (j + 1) % 4], x[8 + (j + 2) % 4], x[12 + (j + 3) % 4]);
    }
    UNROLL for (int i = 0; i < 16; i++) x[i] += s[i];
}
PART void chacha_state(word s[16], uint64_t key) {
    Four a = load_four(key), b = load_four(key + 16);
    const uint32_t k[12] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574, a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    UNROLL for (int i = 0; i < 12; i++) s[i] = splat(k[i]);
}

// ---- Poly1305: numbers modulo 2^130 - 5 in five limbs of 26 bits, the second up to 2^11 more ----

#define LIMB 0x3ffffffu
struct Poly { word l[5]; };
FN Poly zero() { return {{splat(0), splat(0), splat(0), splat(0), splat(0)}}; }
// d += a * r.
PART void poly_product(word64 d[5], const Poly &a, const Poly &r) {
    UNROLL for (int i = 0; i < 5; i++)
        UNROLL for (int j = 0; j < 5; j++)
            mul_add(d[(i + j) % 5], a.l[i], i + j < 5 ? r.l[j] : r.l[j] * 5u);
}
PART Poly poly_carry(word64 d[5]) {
    Poly r;
    UNROLL for (int i = 0; i < 4; i++) {
        r.l[i] = low(d[i]) & LIMB;
        d[i + 1] += d[i] >> 26;
    }
    r.l[4] = low(d[4]) & LIMB;
    word64 t = wide(r.l[0]) + (d[4] >> 26) * 5u;
    r.l[0] = low(t) & LIMB;
    r.l[1] += low(t >> 26);
    return r;
}
FN void no_product(word64 d[5]) {
    UNROLL for (int i = 0; i < 5; i++) d[i] = splat64(0);
}
PART Poly poly_times(const Poly &a, const Poly &b) {
    word64 d[5];
    no_product(d);
    poly_product(d, a, b);
    return poly_carry(d);
}
PART Poly poly_sel(pred p, const Poly &a, const Poly &b) {
    Poly r;
    UNROLL for (int i = 0; i < 5; i++) r.l[i] = sel(p, a.l[i], b.l[i]);
    return r;
}
PART Poly poly_limbs(const word w[4], uint32_t high) {
    return {{w[0] & LIMB, funnel_right(w[0], w[1], 26) & LIMB, funnel_right(w[1], w[2], 20) & LIMB,
             funnel_right(w[2], w[3], 14) & LIMB, (w[3] >> 8) | high}};
}
FN Poly poly_block(const word w[4]) { return poly_limbs(w, 1u << 24); }
PART Poly poly_sum(const Poly &a, const Poly &b) {
    Poly r;
    UNROLL for (int i = 0; i < 5; i++) r.l[i] = a.l[i] + b.l[i];
    return r;
}

// Scratch, 256 bytes a message: nine powers of r (1 to 4, 8, 16, 32, 64, 128), five words each; then s, four words.
// Behind all messages' the segments' shares of the hash, 32 bytes each.
#define POWERS 9u
PART Poly load_poly(word64 at, pred on) {
    Poly r;
    UNROLL for (uint32_t i = 0; i < 5; i++) r.l[i] = load32(at + 4 * i, on);
    return r;
}
PART void store_poly(word64 at, const Poly &p, pred on) {
    UNROLL for (uint32_t i = 0; i < 5; i++) store32(at + 4 * i, p.l[i], on);
}
FN uint64_t segments_at(const wl_run &run) { return run.scratch + WL_SCRATCH_MESSAGE_CHACHA * (uint64_t)run.messages; }

// Every message's one-time key and the powers of its r; a lane a message.
PART void chacha_keys(Warp warp, const wl_run &run) {
    uint64_t groups = wl_units(run.messages, 32);
    ROLLED for (uint64_t group = warp.index; group < groups; group += warp.count) {
        word m = splat((uint32_t)group * 32) + lane(), s[16], x[16], n[4];
        pred on = lt(m, splat(run.messages));
        chacha_state(s, run.key);
        load_nonces(n, run, m, on, 12);
        s[12] = splat(0);
        UNROLL for (int i = 0; i < 3; i++) s[13 + i] = n[i];
        chacha_block(x, s);
        x[0] &= 0x0fffffffu;
        UNROLL for (int i = 1; i < 4; i++) x[i] &= 0x0ffffffcu;
        word64 at = splat64(run.scratch) + wide(m) * WL_SCRATCH_MESSAGE_CHACHA;
        Poly r = poly_limbs(x, 0), p = r;
        store_poly(at, p, on);
        ROLLED for (uint32_t i = 1; i < POWERS; i++) {
            // 2, 3, 4 by r; then squares.
            p = poly_times(p, i < 4 ? r : p);
            store_poly(at + 20 * i, p, on);
        }
        UNROLL for (int i = 0; i < 4; i++) store32(at + (20 * POWERS + 4 * i), x[4 + i], on);
    }
}

// A lane's 64 bytes of a step of 2,048.
PART void load_step(word w[16], uint64_t at, uint32_t bytes) {
    word64 a = splat64(at) + wide(lane() * 64u);
    if ((at & 15) == 0 && bytes == 2048) {
        UNROLL for (uint32_t i = 0; i < 4; i++) load16(w + 4 * i, a + 16 * i, eq(lane(), lane()));
    } else {
        word n = splat(bytes), from = lane() * 64u;
        UNROLL for (uint32_t i = 0; i < 4; i++) {
            word begin = from + 16 * i, left = sel(lt(begin, n), n - begin, splat(0));
            load_bytes(w + 4 * i, a + 16 * i, sel(lt(left, splat(16)), left, splat(16)));
        }
    }
}
PART void store_step(uint64_t at, const word w[16], uint32_t bytes) {
    word64 a = splat64(at) + wide(lane() * 64u);
    if ((at & 15) == 0 && bytes == 2048) {
        UNROLL for (uint32_t i = 0; i < 4; i++) store16(a + 16 * i, w + 4 * i, eq(lane(), lane()));
    } else {
        word n = splat(bytes), from = lane() * 64u;
        UNROLL for (uint32_t i = 0; i < 4; i++) {
            word begin = from + 16 * i, left = sel(lt(begin, n), n - begin, splat(0));
            store_bytes(a + 16 * i, w + 4 * i, sel(lt(left, splat(16)), left, splat(16)));
        }
    }
}

// CIPHER: encrypts or decrypts. HASH: hashes the ciphertext: what it wrote, or without CIPHER the input.
// CIPHER without HASH does verified messages only.
template <bool CIPHER, bool HASH> PART void chacha_segments(Warp warp, const wl_run &run) {
    ROLLED for (uint64_t unit = warp.index; unit < run.units; unit += warp.count) {
        // The message, by all lanes alike.
        uint32_t message = 0;
        uint64_t in = run.input, out = run.output, length, segment;
        if (run.table) {
            uint32_t step = 1;
            ROLLED while (step < run.messages) step <<= 1;
            ROLLED for (; step; step >>= 1) {
                uint32_t next = message + step;
                if (next < run.messages && load_u64(run.table + next * sizeof(wl_message) + 24) <= unit) message = next;
            }
            uint64_t at = run.table + message * sizeof(wl_message);
            in += load_u64(at);
            out += load_u64(at + 8);
            length = load_u64(at + 16);
            segment = unit - load_u64(at + 24);
        } else {
            uint64_t each = wl_units(run.length, WL_SEGMENT), m = unit / (each ? each : 1);
            message = (uint32_t)(m < run.messages - 1 ? m : run.messages - 1);
            in += message * run.input_stride;
            out += message * run.output_stride;
            length = message == run.messages - 1 ? run.last_length : run.length;
            segment = unit - message * each;
        }
        in += segment * WL_SEGMENT;
        out += segment * WL_SEGMENT;
        uint64_t rest = length - segment * WL_SEGMENT;
        uint32_t left = (uint32_t)(rest < WL_SEGMENT ? rest : WL_SEGMENT);
        pred all = eq(lane(), lane());
        if (CIPHER && !HASH) {
            if (pick(load32(splat64(run.results + 4 * (uint64_t)message), all), 0) != 1) continue;
        }
        word s[16];
        if (CIPHER) {
            word n[4];
            chacha_state(s, run.key);
            load_nonces(n, run, splat(message), all, 12);
            UNROLL for (int i = 0; i < 3; i++) s[13 + i] = n[i];
            s[12] = lane() + ((uint32_t)segment * (WL_SEGMENT / 64) + 1u);
        }
        word64 powers = splat64(run.scratch + WL_SCRATCH_MESSAGE_CHACHA * (uint64_t)message);
        Poly sum = zero(), r[5];
        if (HASH) {
            UNROLL for (uint32_t i = 0; i < 4; i++) r[i] = load_poly(powers + 20 * i, all);
            r[4] = load_poly(powers + 20 * 8, all);
        }
        ROLLED while (left) {
            uint32_t bytes = left < 2048 ? left : 2048;
            word w[16], x[16];
            load_step(w, in, bytes);
            if (CIPHER) {
                chacha_block(x, s);
                UNROLL for (int i = 0; i < 16; i++) w[i] ^= x[i];
                store_step(out, w, bytes);
                s[12] += 32u;
            }
            if (HASH) {
                word64 d[5];
                no_product(d);
                poly_product(d, sum, r[4]);
                UNROLL for (int i = 0; i < 4; i++) poly_product(d, poly_block(w + 4 * i), r[3 - i]);
                Poly next = poly_carry(d);
                sum = poly_sel(lt(lane(), splat(bytes / 64)), next, sum);
                if (left <= 2048) {
                    // Each lane's sum to where its last block of 64 bytes stands, counted from the last whole one.
                    word back = (splat(bytes / 64) - 1u - lane()) & 31u;
                    ROLLED for (uint32_t k = 0; k < 5; k++) {
                        Poly by = poly_times(sum, load_poly(powers + 20 * (k + 3), all));
                        sum = poly_sel(eq(back >> k & 1u, splat(1)), by, sum);
                    }
                    UNROLL for (uint32_t k = 0; k < 5; k++)
                        UNROLL for (int i = 0; i < 5; i++) sum.l[i] += swap_lanes(sum.l[i], 1u << k);
                    word64 carry[5];
                    UNROLL for (int i = 0; i < 5; i++) carry[i] = wide(sum.l[i]);
                    sum = poly_carry(carry);
                    // The blocks of a lane that has less than 64 bytes.
                    uint32_t from = bytes / 64, rest_bytes = bytes & 63;
                    UNROLL for (uint32_t i = 0; i < 4; i++) {
                        if (16 * i < rest_bytes) {
                            word b[4];
                            UNROLL for (uint32_t j = 0; j < 4; j++)
                                b[j] = splat(pick(w[4 * i + j] & byte_mask(splat(rest_bytes - 16 * i), j), from));
                            sum = poly_times(poly_sum(sum, poly_block(b)), r[0]);
                        }
                    }
                    store_poly(splat64(segments_at(run) + 32 * unit), sum, eq(lane(), splat(0)));
                }
            }
            in += bytes;
            out += bytes;
            left -= bytes;
        }
    }
}

// The tag of every message; a lane a message.
template <bool SEAL> PART void chacha_tags(Warp warp, const wl_run &run) {
    uint64_t groups = wl_units(run.messages, 32);
    ROLLED for (uint64_t group = warp.index; group < groups; group += warp.count) {
        word m = splat((uint32_t)group * 32) + lane();
        pred on = lt(m, splat(run.messages));
        Message msg = find_message(run, m, on, WL_SEGMENT);
        word64 at = splat64(run.scratch) + wide(m) * WL_SCRATCH_MESSAGE_CHACHA;
        Poly r = load_poly(at, on), sum = zero();
        word64 done = splat64(0);
        ROLLED while (any(lt64(done, msg.aad_length))) {
            pred more = lt64(done, msg.aad_length);
            word v[4];
            load_bytes(v, msg.aad + done, min_word(sel64(more, msg.aad_length - done, splat64(0)), 16));
            sum = poly_sel(more, poly_times(poly_sum(sum, poly_block(v)), r), sum);
            done += 16u;
        }
        // r^4096 for whole segments, if there are any before a last one.
        Poly whole = load_poly(at + 20 * 8, on);
        ROLLED for (int i = 0; i < 5; i++) whole = poly_times(whole, whole);
        word64 segment = splat64(0), segments = (msg.length + (WL_SEGMENT - 1)) / WL_SEGMENT;
        ROLLED while (any(lt64(segment, segments))) {
            pred more = lt64(segment, segments);
            word64 left = msg.length - segment * WL_SEGMENT;
            word blocks = min_word((left + 15u) / 16u, WL_SEGMENT / 16);
            pred full = eq(blocks, splat(WL_SEGMENT / 16));
            Poly moved = poly_times(sum, whole);
            if (any(both(more, lt(blocks, splat(WL_SEGMENT / 16))))) {
                // sum * r^blocks, by squaring.
                Poly by = sum, square = r;
                ROLLED for (uint32_t k = 0; k < 12; k++) {
                    by = poly_sel(eq(blocks >> k & 1u, splat(1)), poly_times(by, square), by);
                    square = poly_times(square, square);
                }
                moved = poly_sel(full, moved, by);
            }
            Poly piece = load_poly(splat64(segments_at(run)) + (msg.before + segment) * 32u, more);
            word64 d[5];
            UNROLL for (int i = 0; i < 5; i++) d[i] = wide(moved.l[i]) + wide(piece.l[i]);
            sum = poly_sel(more, poly_carry(d), sum);
            segment += 1u;
        }
        word lengths[4] = {low(msg.aad_length), low(msg.aad_length >> 32), low(msg.length), low(msg.length >> 32)};
        sum = poly_times(poly_sum(sum, poly_block(lengths)), r);
        // Two more passes leave limbs of 26 bits; then 2^130 - 5 is taken off, if it can be.
        UNROLL for (int pass = 0; pass < 2; pass++) {
            word64 d[5];
            UNROLL for (int i = 0; i < 5; i++) d[i] = wide(sum.l[i]);
            sum = poly_carry(d);
        }
        word less[5], carry = splat(5);
        UNROLL for (int i = 0; i < 5; i++) {
            carry += sum.l[i];
            less[i] = carry & LIMB;
            carry = carry >> 26;
        }
        word keep = carry - 1u;  // ~0: the sum was below 2^130 - 5
        UNROLL for (int i = 0; i < 5; i++) sum.l[i] = (sum.l[i] & keep) | (less[i] & ~keep);
        word h[4] = {sum.l[0] | (sum.l[1] << 26), (sum.l[1] >> 6) | (sum.l[2] << 20),
                     (sum.l[2] >> 12) | (sum.l[3] << 14), (sum.l[3] >> 18) | (sum.l[4] << 8)};
        word tag[4];
        word64 c = splat64(0);
        UNROLL for (uint32_t i = 0; i < 4; i++) {
            c = c + wide(h[i]) + wide(load32(at + (20 * POWERS + 4 * i), on));
            tag[i] = low(c);
            c = c >> 32;
        }
        finish_tag<SEAL>(run, m, on, msg.tag, tag);
    }
}

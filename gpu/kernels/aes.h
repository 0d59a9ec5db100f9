// AES (FIPS 197), bitsliced: a lane does 32 blocks at once. Word 8*byte+bit of a state holds that bit of 32 blocks;
// since blocks are read as little-endian words, that is word 32*word+bit as well.
#pragma once

FN word xor3(word a, word b, word c) { return lop3<0x96>(a, b, c); }

template <int S> FN void exchange(word *w, uint32_t mask) {
    word m = splat(mask);
    UNROLL for (int i = 0; i < 32; i++) {
        if (i & S) continue;
        word a = w[i], b = w[i + S];
        w[i] = lop3<0xe4>(a, b << S, m);
        w[i + S] = lop3<0xe4>(a >> S, b, m);
    }
}
// Bit j of word i becomes bit i of word j.
PART void transpose32(word *w) {
    UNROLL for (int i = 0; i < 16; i++) {
        word a = w[i], b = w[i + 16];
        w[i] = prmt<0x5410>(a, b);
        w[i + 16] = prmt<0x7632>(a, b);
    }
    UNROLL for (int i = 0; i < 32; i++) {
        if (i & 8) continue;
        word a = w[i], b = w[i + 8];
        w[i] = prmt<0x6240>(a, b);
        w[i + 8] = prmt<0x7351>(a, b);
    }
    exchange<4>(w, 0x0f0f0f0fu);
    exchange<2>(w, 0x33333333u);
    exchange<1>(w, 0x55555555u);
}
PART void transpose(word s[128]) {
    UNROLL for (int j = 0; j < 4; j++) transpose32(s + 32 * j);
}

// One column of MixColumns with its round key. out_i = 2 (a_i + a_i+1) + a_i+1 + (a_i+2 + a_i+3) + k_i.
PART void mix_column(word *out, const word *a0, const word *a1, const word *a2, const word *a3, uint64_t key) {
    const word *a[4] = {a0, a1, a2, a3};
    word d[4][8];
    UNROLL for (int i = 0; i < 4; i++) UNROLL for (int b = 0; b < 8; b++) d[i][b] = a[i][b] ^ a[(i + 1) & 3][b];
    UNROLL for (int i = 0; i < 4; i++) {
        UNROLL for (int h = 0; h < 2; h++) {
            Four f = load_four(key + 32 * i + 16 * h);
            uint32_t k[4] = {f.x, f.y, f.z, f.w};
            UNROLL for (int l = 0; l < 4; l++) {
                int b = 4 * h + l;
                word next = a[(i + 1) & 3][b], far = d[(i + 2) & 3][b], key_bit = splat(k[l]);
                if (b == 1 || b == 3 || b == 4)
                    out[8 * i + b] = xor3(xor3(d[i][b - 1], d[i][7], next), far, key_bit);
                else
                    out[8 * i + b] = xor3(d[i][(b + 7) & 7], next, far) ^ key_bit;
            }
        }
    }
}

// The last round of either direction, which mixes no columns. Row i comes from STEP * i bytes on.
template <int STEP, void (*SUB)(word *)> PART void last_round(word s[128]) {
    word t[128];
    UNROLL for (int i = 0; i < 16; i++) {
        int from = (4 * (i / 4) + STEP * (i & 3)) & 15;
        SUB(s + 8 * from);
        UNROLL for (int b = 0; b < 8; b++) t[8 * i + b] = s[8 * from + b];
    }
    UNROLL for (int i = 0; i < 128; i++) s[i] = t[i];
}

// All rounds but the additions of the first and last round keys: those are made where states are blocks, by raw_xor.
PART void encrypt_rounds(word s[128], uint64_t keys, uint32_t rounds) {
    ROLLED for (uint32_t r = 1; r < rounds; r++) {
        keys += 512;
        word t[128];
        UNROLL for (int c = 0; c < 4; c++) {
            UNROLL for (int i = 0; i < 4; i++) sub_byte(s + 8 * ((4 * c + 5 * i) & 15));
            mix_column(t + 32 * c, s + 8 * (4 * c), s + 8 * ((4 * c + 5) & 15), s + 8 * ((4 * c + 10) & 15),
                       s + 8 * ((4 * c + 15) & 15), keys + 128 * c);
        }
        UNROLL for (int i = 0; i < 128; i++) s[i] = t[i];
    }
    last_round<5, sub_byte>(s);
}

// The inverse of mix_column with the round key of the equivalent inverse cipher (FIPS 197 section 5.3.5): what
// multiplies by 4 is added first, then it is mix_column (FIPS 197's matrix is that product).
PART void inverse_mix_column(word *out, const word *a0, const word *a1, const word *a2, const word *a3, uint64_t key) {
    const word *a[4] = {a0, a1, a2, a3};
    word b[4][8];
    UNROLL for (int h = 0; h < 2; h++) {
        word c[8];
        UNROLL for (int i = 0; i < 8; i++) c[i] = a[h][i] ^ a[h + 2][i];
        word four[8] = {c[6], c[6] ^ c[7], c[0] ^ c[7], c[1] ^ c[6], xor3(c[2], c[6], c[7]), c[3] ^ c[7], c[4], c[5]};
        UNROLL for (int i = 0; i < 8; i++) {
            b[h][i] = a[h][i] ^ four[i];
            b[h + 2][i] = a[h + 2][i] ^ four[i];
        }
    }
    mix_column(out, b[0], b[1], b[2], b[3], key);
}
PART void decrypt_rounds(word s[128], uint64_t keys, uint32_t rounds) {
    keys += 512 * (uint64_t)rounds;
    ROLLED for (uint32_t r = 1; r < rounds; r++) {
        keys -= 512;
        word t[128];
        UNROLL for (int c = 0; c < 4; c++) {
            UNROLL for (int i = 0; i < 4; i++) inverse_sub_byte(s + 8 * ((4 * c + 13 * i) & 15));
            inverse_mix_column(t + 32 * c, s + 8 * (4 * c), s + 8 * ((4 * c + 13) & 15), s + 8 * ((4 * c + 10) & 15),
                               s + 8 * ((4 * c + 7) & 15), keys + 128 * c);
        }
        UNROLL for (int i = 0; i < 128; i++) s[i] = t[i];
    }
    last_round<13, inverse_sub_byte>(s);
}

FN uint32_t rounds_of(const wl_run &run) { return run.key_bytes / 4 + 6; }

// The first and the last round key as words, of the data key and of the tweak key.
#define RAW_FIRST 64u
#define RAW_LAST 80u
#define RAW_TWEAK 32u
struct Raw { uint32_t k[4]; };
FN Raw raw_key(uint64_t address) {
    Four f = load_four(address);
    return {{f.x, f.y, f.z, f.w}};
}

// ---- Rows ----

// What a lane knows of a row: 512 bytes of a message, or what is left of it. In a tile, lane b has row b.
struct Rows {
    word message;
    word64 in, out;  // addresses
    word64 index;    // of the row in its message
    word64 left;     // bytes from here to the message's end; 0 in rows past the run's end
    word bytes;      // of them in this row
};
PART Rows find_rows(const wl_run &run, word64 id) {
    pred on = lt64(id, splat64(run.units));
    Rows r;
    word64 length;
    if (run.table) {
        // The last message with `before` at most id.
        word m = splat(0);
        uint32_t step = 1;
        ROLLED while (step < run.messages) step <<= 1;
        ROLLED for (; step; step >>= 1) {
            word next = m + step;
            pred in = lt(next, splat(run.messages));
            word64 before = load64(splat64(run.table + 24) + wide(next) * sizeof(wl_message), in);
            m = sel(both(in, le64(before, id)), next, m);
        }
        word64 at = splat64(run.table) + wide(m) * sizeof(wl_message);
        r.message = m;
        r.index = id - load64(at + 24u, on);
        r.in = splat64(run.input) + load64(at, on);
        r.out = splat64(run.output) + load64(at + 8u, on);
        length = load64(at + 16u, on);
    } else {
        uint64_t each = wl_units(run.length, WL_ROW);
        each = each ? each : 1;
        word64 m = divide(id, each, (run.units >> 31) == 0);
        word64 last = splat64(run.messages - 1);
        m = sel64(lt64(m, last), m, last);
        r.message = low(m);
        r.index = id - m * each;
        r.in = splat64(run.input) + m * run.input_stride;
        r.out = splat64(run.output) + m * run.output_stride;
        length = sel64(eq64(m, last), splat64(run.last_length), splat64(run.length));
    }
    r.in += r.index * WL_ROW;
    r.out += r.index * WL_ROW;
    r.left = sel64(on, length - r.index * WL_ROW, splat64(0));
    r.bytes = low(sel64(lt64(r.left, splat64(WL_ROW)), r.left, splat64(WL_ROW)));
    return r;
}
FN Rows tile_rows(const wl_run &run, uint64_t tile) {
    return find_rows(run, splat64(tile * WL_TILE_ROWS) + wide(lane()));
}
// All rows are whole, aligned, and follow each other in memory.
PART bool one_piece(const Rows &r) {
    uint64_t in = pick64(r.in, 0), out = pick64(r.out, 0);
    word64 by = wide(lane() * WL_ROW);
    pred fine = both(eq(r.bytes, splat(WL_ROW)), both(eq64(r.in, splat64(in) + by), eq64(r.out, splat64(out) + by)));
    return ballot(fine) == 0xffffffffu && ((in | out) & 15) == 0;
}
FN bool one_message(const Rows &r) { return ballot(eq(r.message, splat(pick(r.message, 0)))) == 0xffffffffu; }

// How many of `bytes` are a lane's block: 0 to 16.
PART word block_bytes(uint32_t bytes) {
    word n = splat(bytes), at = lane() * 16u;
    word left = sel(lt(at, n), n - at, splat(0));
    return sel(lt(left, splat(16)), left, splat(16));
}
// ~0 in the bytes of word j of a block that are among its first n.
PART word byte_mask(word n, uint32_t j) {
    word k = sel(lt(splat(4 * j), n), n - 4 * j, splat(0));
    return sel(lt(k, splat(4)), (splat(1) << (k * 8u & 31u)) - 1u, splat(0xffffffffu));
}
PART void load_bytes(word v[4], word64 at, word n) {
    UNROLL for (int j = 0; j < 4; j++) v[j] = splat(0);
    ROLLED for (uint32_t k = 0; k < 4; k++)
        UNROLL for (uint32_t j = 0; j < 4; j++)
            v[j] |= load8(at + (4 * j + k), lt(splat(4 * j + k), n)) << (8 * k);
}
PART void store_bytes(word64 at, const word v[4], word n) {
    ROLLED for (uint32_t k = 0; k < 4; k++)
        UNROLL for (uint32_t j = 0; j < 4; j++) store8(at + (4 * j + k), v[j] >> (8 * k), lt(splat(4 * j + k), n));
}
// A row's blocks, one a lane; bytes past `bytes` read as zero.
PART void load_row(word v[4], uint64_t at, uint32_t bytes) {
    word64 a = splat64(at) + wide(lane() * 16u);
    word n = block_bytes(bytes);
    if ((at & 15) == 0 && (bytes & 15) == 0)
        load16(v, a, lt(splat(15), n));
    else
        load_bytes(v, a, n);
}
PART void store_row(uint64_t at, const word v[4], uint32_t bytes) {
    word64 a = splat64(at) + wide(lane() * 16u);
    word n = block_bytes(bytes);
    if ((at & 15) == 0 && (bytes & 15) == 0)
        store16(a, v, lt(splat(15), n));
    else
        store_bytes(a, v, n);
}

// ---- Counter mode ----

// The nonces of the rows: lane b has row b's, as little-endian words.
PART void load_nonces(word n[4], const wl_run &run, word message, pred on, uint32_t bytes) {
    word64 at = splat64(run.nonces) + wide(message) * run.nonce_stride;
    load_bytes(n, at, sel(on, splat(bytes), splat(0)));
}

// Counter blocks with the first round key added. n: lane b has row b's first counter block, its last word as a number.
// The number grows by one a lane; past 32 bits it carries on if WIDE (CTR), else it wraps (GCM).
template <bool WIDE> PART void counter_state(word s[128], const word n[4], uint64_t key) {
    Raw raw = raw_key(key + RAW_FIRST);
    UNROLL for (int j = 0; j < 3; j++) {
        word x = n[j] ^ raw.k[j];
        UNROLL for (int p = 0; p < 32; p++) s[32 * j + p] = splat(ballot(eq(x >> p & 1u, splat(1))));
    }
    word carry = splat(0);
    UNROLL for (int i = 0; i < 32; i++) {
        int at = 8 * (15 - i / 8) + (i & 7);
        Four f = load_four(key + WL_KEY_ROUNDS + 4 * (at & ~3));
        uint32_t k[4] = {f.x, f.y, f.z, f.w};
        word base = splat(ballot(eq(n[3] >> i & 1u, splat(1)))), mask = splat(k[at & 3]);
        if (i < 5) {
            word own = 0u - (lane() >> i & 1u);
            s[at] = xor3(base, own, carry) ^ mask;
            carry = lop3<0xe8>(base, own, carry);
        } else {
            s[at] = xor3(base, carry, mask);
            carry = base & carry;
        }
    }
    if (WIDE && any(lt(splat(0), carry))) {
        UNROLL for (int i = 32; i < 128; i++) {
            int at = 8 * (15 - i / 8) + (i & 7);
            Four f = load_four(key + WL_KEY_ROUNDS + 4 * (at & ~3));
            uint32_t k[4] = {f.x, f.y, f.z, f.w};
            word old = s[at];
            s[at] = old ^ carry;
            carry = lop3<0x28>(splat(k[at & 3]), old, carry);  // (k ^ old) & carry
        }
    }
}
template <bool GCM> PART void row_counters(word n[4], const wl_run &run, const Rows &r) {
    load_nonces(n, run, r.message, lt(splat(0), r.bytes), GCM ? 12 : 16);
    if (GCM) {
        n[3] = low(r.index) * 32u + 2u;
    } else {
        // 128-bit addition of the first block's number.
        word64 last = (wide(byte_swap(n[2])) << 32) | wide(byte_swap(n[3]));
        word64 sum = last + r.index * 32u;
        word64 first = (wide(byte_swap(n[0])) << 32) | wide(byte_swap(n[1]));
        first = sel64(lt64(sum, last), first + 1u, first);
        n[0] = byte_swap(low(first >> 32));
        n[1] = byte_swap(low(first));
        n[2] = byte_swap(low(sum >> 32));
        n[3] = low(sum);
    }
}
template <bool GCM> PART void keystream(word s[128], const wl_run &run, const Rows &r) {
    word n[4];
    row_counters<GCM>(n, run, r);
    counter_state<!GCM>(s, n, run.key);
    encrypt_rounds(s, run.key + WL_KEY_ROUNDS, rounds_of(run));
    transpose(s);
}

// CTR, and GCM's opening of verified messages.
template <bool GCM> PART void aes_counter(Warp warp, const wl_run &run) {
    uint64_t tiles = wl_units(run.units, WL_TILE_ROWS);
    ROLLED for (uint64_t tile = warp.index; tile < tiles; tile += warp.count) {
        Rows r = tile_rows(run, tile);
        if (GCM) {
            word good = load32(splat64(run.results) + wide(r.message) * 4u, lt(splat(0), r.bytes));
            r.bytes = sel(eq(good, splat(1)), r.bytes, splat(0));
        }
        word s[128];
        keystream<GCM>(s, run, r);
        Raw raw = raw_key(run.key + RAW_LAST);
        if (one_piece(r)) {
            word64 in = splat64(pick64(r.in, 0)) + wide(lane() * 16u);
            word64 out = splat64(pick64(r.out, 0)) + wide(lane() * 16u);
            UNROLL for (uint32_t b = 0; b < 32; b++) {
                word v[4];
                load16(v, in + b * WL_ROW, eq(lane(), lane()));
                UNROLL for (int j = 0; j < 4; j++) v[j] = xor3(v[j], s[32 * j + b], splat(raw.k[j]));
                store16(out + b * WL_ROW, v, eq(lane(), lane()));
            }
        } else {
            word stage[128];
            UNROLL for (int i = 0; i < 128; i++) stage[(i & 31) * 4 + i / 32] = s[i];
            ROLLED for (uint32_t b = 0; b < 32; b++) {
                uint32_t bytes = pick(r.bytes, b);
                uint64_t in = pick64(r.in, b), out = pick64(r.out, b);
                word v[4];
                load_row(v, in, bytes);
                UNROLL for (int j = 0; j < 4; j++) v[j] = xor3(v[j], stage[4 * b + j], splat(raw.k[j]));
                store_row(out, v, bytes);
            }
        }
    }
}

// ---- One block a message ----

// 32 blocks of each lane, block b of lane t being number 32b+t of the warp's: in place.
template <bool ENCRYPT>
PART void crypt_staged(word stage[128], uint64_t key, uint64_t masks, uint64_t raw_at, uint32_t rounds) {
    Raw first = raw_key(key + raw_at + (ENCRYPT ? RAW_FIRST : RAW_LAST));
    Raw last = raw_key(key + raw_at + (ENCRYPT ? RAW_LAST : RAW_FIRST));
    word s[128];
    UNROLL for (int i = 0; i < 128; i++) s[i] = stage[(i & 31) * 4 + i / 32] ^ first.k[i / 32];
    transpose(s);
    if (ENCRYPT)
        encrypt_rounds(s, key + masks, rounds);
    else
        decrypt_rounds(s, key + masks, rounds);
    transpose(s);
    UNROLL for (int i = 0; i < 128; i++) stage[(i & 31) * 4 + i / 32] = s[i] ^ last.k[i / 32];
}

// GCM: the block that a message's tag is masked with. XTS: a message's first tweak. To scratch, 16 bytes a message.
template <bool XTS> PART void aes_per_message(Warp warp, const wl_run &run) {
    uint64_t groups = wl_units(run.messages, WL_WARP_MESSAGES);
    ROLLED for (uint64_t group = warp.index; group < groups; group += warp.count) {
        word stage[128];
        ROLLED for (uint32_t b = 0; b < 32; b++) {
            word m = splat((uint32_t)group * WL_WARP_MESSAGES + 32 * b) + lane();
            word n[4];
            load_nonces(n, run, m, lt(m, splat(run.messages)), XTS ? 16 : 12);
            if (!XTS) n[3] = splat(0x01000000u);
            UNROLL for (int j = 0; j < 4; j++) stage[4 * b + j] = n[j];
        }
        if (XTS)
            crypt_staged<true>(stage, run.key, WL_KEY_TWEAK, RAW_TWEAK, rounds_of(run));
        else
            crypt_staged<true>(stage, run.key, WL_KEY_ROUNDS, 0, rounds_of(run));
        ROLLED for (uint32_t b = 0; b < 32; b++) {
            word m = splat((uint32_t)group * WL_WARP_MESSAGES + 32 * b) + lane();
            store16(splat64(run.scratch) + wide(m) * 16u, stage + 4 * b, lt(m, splat(run.messages)));
        }
    }
}

// ---- GCM ----

// A tile's share of a message's hash has a place of its own: number tile + message, behind the masks.
FN uint64_t pieces_at(const wl_run &run) { return run.scratch + 16 * (uint64_t)run.messages; }

template <bool INTEGER> PART void hash_row(Sum &sum, const word c[4], uint64_t at) {
    word64 lo = splat64(load_u64(at)), hi = splat64(load_u64(at + 8)), mixed = splat64(load_u64(at + 16));
    add_product<INTEGER>(sum, to_block(c), lo, hi, mixed);
}
// Ends a piece: every lane's sum to the right power, all added up. `blocks`: of the piece's last row.
template <bool INTEGER> PART void store_piece(const wl_run &run, const Sum &sum, uint32_t blocks, uint64_t place) {
    word entry = ((splat(blocks) - 1u - lane()) & 31u) + 32u;
    Block y = times<INTEGER>(reduce(sum), load_power(run.key, entry));
    word w[4] = {low(y.lo), low(y.lo >> 32), low(y.hi), low(y.hi >> 32)};
    UNROLL for (uint32_t k = 0; k < 5; k++) UNROLL for (int j = 0; j < 4; j++) w[j] ^= swap_lanes(w[j], 1u << k);
    store16(splat64(pieces_at(run) + 16 * place), w, eq(lane(), splat(0)));
}

// SEAL: encrypts and hashes what it wrote. Else: hashes the input, writes nothing but pieces.
template <bool SEAL, bool INTEGER> PART void aes_gcm(Warp warp, const wl_run &run) {
    uint64_t tiles = wl_units(run.units, WL_TILE_ROWS);
    ROLLED for (uint64_t tile = warp.index; tile < tiles; tile += warp.count) {
        Rows r = tile_rows(run, tile);
        if (!SEAL) r.out = r.in;
        word s[128];
        if (SEAL) keystream<true>(s, run, r);
        Raw raw = raw_key(run.key + RAW_LAST);
        Sum sum = no_sum();
        if (SEAL && one_piece(r) && one_message(r)) {
            word64 in = splat64(pick64(r.in, 0)) + wide(lane() * 16u);
            word64 out = splat64(pick64(r.out, 0)) + wide(lane() * 16u);
            UNROLL for (uint32_t b = 0; b < 32; b++) {
                word v[4];
                load16(v, in + b * WL_ROW, eq(lane(), lane()));
                UNROLL for (int j = 0; j < 4; j++) v[j] = xor3(v[j], s[32 * j + b], splat(raw.k[j]));
                store16(out + b * WL_ROW, v, eq(lane(), lane()));
                hash_row<INTEGER>(sum, v, power_at(run.key, 31 - b));
            }
            store_piece<INTEGER>(run, sum, 32, tile + pick(r.message, 0));
            continue;
        }
        if (!SEAL && one_piece(r) && one_message(r)) {
            // Eight rows are on their way at a time.
            word64 in = splat64(pick64(r.in, 0)) + wide(lane() * 16u);
            ROLLED for (uint32_t b = 0; b < 32; b += 8) {
                word v[8][4];
                UNROLL for (uint32_t k = 0; k < 8; k++) load16(v[k], in + (b + k) * WL_ROW, eq(lane(), lane()));
                UNROLL for (uint32_t k = 0; k < 8; k++) hash_row<INTEGER>(sum, v[k], power_at(run.key, 31 - b - k));
            }
            store_piece<INTEGER>(run, sum, 32, tile + pick(r.message, 0));
            continue;
        }
        // Where the message of a row ends in this tile, and how many blocks its last row has.
        word64 last_row = (r.left - 1u) / WL_ROW + wide(lane());
        pred ends = lt64(last_row, splat64(32));
        word end = sel(ends, low(last_row), splat(31));
        word blocks = sel(ends, ((low(r.left) - 1u) & (WL_ROW - 1)) / 16u + 1u, splat(32));
        word stage[128];
        if (SEAL) UNROLL for (int i = 0; i < 128; i++) stage[(i & 31) * 4 + i / 32] = s[i];
        ROLLED for (uint32_t b = 0; b < 32; b++) {
            uint32_t bytes = pick(r.bytes, b);
            if (bytes == 0) break;
            uint64_t in = pick64(r.in, b), out = pick64(r.out, b);
            word v[4];
            load_row(v, in, bytes);
            if (SEAL) {
                word n = block_bytes(bytes);
                UNROLL for (int j = 0; j < 4; j++)
                    v[j] = xor3(v[j], stage[4 * b + j], splat(raw.k[j])) & byte_mask(n, j);
                store_row(out, v, bytes);
            }
            // A lane's own last block is in the piece's last row, or in the one before.
            uint32_t last = pick(end, b), count = pick(blocks, b);
            word back = splat(last - b) - sel(lt(lane(), splat(count)), splat(0), splat(1));
            back = sel(lt(back, splat(32)), back, splat(0));  // no block here: zeros, any power
            Block p = load_power(run.key, back);
            add_product<INTEGER>(sum, to_block(v), p.lo, p.hi, p.lo ^ p.hi);
            if (b == last) {
                store_piece<INTEGER>(run, sum, count, tile + pick(r.message, b));
                sum = no_sum();
            }
        }
    }
}

// A message of a run, one a lane.
struct Message {
    word64 in, out, length, before, aad, aad_length, tag;
};
PART Message find_message(const wl_run &run, word m, pred on, uint64_t unit) {
    Message x;
    word64 i = wide(m);
    pred last = eq(m, splat(run.messages - 1));
    if (run.table) {
        word64 at = splat64(run.table) + i * sizeof(wl_message);
        x.in = splat64(run.input) + load64(at, on);
        x.out = splat64(run.output) + load64(at + 8u, on);
        x.length = load64(at + 16u, on);
        x.before = load64(at + 24u, on);
        x.aad = splat64(run.aad) + load64(at + 32u, on);
        x.aad_length = load64(at + 40u, on);
    } else {
        x.in = splat64(run.input) + i * run.input_stride;
        x.out = splat64(run.output) + i * run.output_stride;
        x.length = sel64(on, sel64(last, splat64(run.last_length), splat64(run.length)), splat64(0));
        x.before = i * wl_units(run.length, unit);
        x.aad = splat64(run.aad) + i * run.aad_stride;
        x.aad_length = sel64(on, splat64(run.aad_length), splat64(0));
    }
    x.tag = sel64(last, splat64(run.last_tag), splat64(run.tags) + i * run.tag_stride);
    return x;
}
FN word min_word(word64 a, uint32_t b) { return low(sel64(lt64(a, splat64(b)), a, splat64(b))); }

// A seal writes its tag; an open compares and writes the result.
template <bool SEAL> PART void finish_tag(const wl_run &run, word m, pred on, word64 at, const word tag[4]) {
    word n = sel(on, splat(16), splat(0));
    if (SEAL) {
        store_bytes(at, tag, n);
    } else {
        word given[4], differ = splat(0);
        load_bytes(given, at, n);
        UNROLL for (int j = 0; j < 4; j++) differ |= given[j] ^ tag[j];
        store32(splat64(run.results) + wide(m) * 4u, sel(eq(differ, splat(0)), splat(1), splat(0)), on);
    }
}

// A message's hash from its associated data, its pieces and the lengths; a lane a message.
template <bool SEAL> PART void aes_gcm_tags(Warp warp, const wl_run &run) {
    uint64_t groups = wl_units(run.messages, 32);
    ROLLED for (uint64_t group = warp.index; group < groups; group += warp.count) {
        word m = splat((uint32_t)group * 32) + lane();
        pred on = lt(m, splat(run.messages));
        Message x = find_message(run, m, on, WL_ROW);
        Block h = load_power(run.key, splat(32)), y = {splat64(0), splat64(0)};
        word64 done = splat64(0);
        ROLLED while (any(lt64(done, x.aad_length))) {
            pred more = lt64(done, x.aad_length);
            word v[4];
            load_bytes(v, x.aad + done, min_word(sel64(more, x.aad_length - done, splat64(0)), 16));
            Block a = to_block(v);
            Block next = times<true>({y.lo ^ a.lo, y.hi ^ a.hi}, h);
            y = {sel64(more, next.lo, y.lo), sel64(more, next.hi, y.hi)};
            done += 16u;
        }
        word64 row = x.before, end = x.before + (x.length + (WL_ROW - 1)) / WL_ROW, left = (x.length + 15u) / 16u;
        ROLLED while (any(lt64(row, end))) {
            pred more = lt64(row, end);
            word64 tile = row / WL_TILE_ROWS;
            // Blocks in this tile: what its rows hold, or what is left.
            word64 rows = (tile + 1u) * WL_TILE_ROWS - row;
            word blocks = min_word(sel64(lt64(left, rows * 32u), left, rows * 32u), 1024);
            blocks = sel(more, blocks, splat(1));
            word a = (blocks - 1u) / 32u, j = (blocks - 1u) & 31u;
            Block next = times<true>(times<true>(y, load_power(run.key, a)), load_power(run.key, j + 32u));
            word v[4];
            load16(v, splat64(pieces_at(run)) + (tile + wide(m)) * 16u, more);
            next.lo ^= wide(v[0]) | (wide(v[1]) << 32);
            next.hi ^= wide(v[2]) | (wide(v[3]) << 32);
            y = {sel64(more, next.lo, y.lo), sel64(more, next.hi, y.hi)};
            left -= wide(blocks);
            row += rows;
        }
        y = times<true>({y.lo ^ (x.length << 3), y.hi ^ (x.aad_length << 3)}, h);
        word tag[4], mask[4];
        from_block(tag, y);
        load16(mask, splat64(run.scratch) + wide(m) * 16u, on);
        UNROLL for (int j = 0; j < 4; j++) tag[j] ^= mask[j];
        finish_tag<SEAL>(run, m, on, x.tag, tag);
    }
}

// ---- Modes that read blocks into the state: XTS and CBC decryption ----

// While rounds need all registers, what comes after them waits in memory.
FN void park(const Rows &r, parked p[5]) {
    p[0] = low(r.in);
    p[1] = low(r.in >> 32);
    p[2] = low(r.out);
    p[3] = low(r.out >> 32);
    p[4] = r.bytes;
}
FN void take(Rows &r, const parked p[5]) {
    word in = p[0], in_high = p[1], out = p[2], out_high = p[3];
    r.in = wide(in) | (wide(in_high) << 32);
    r.out = wide(out) | (wide(out_high) << 32);
    r.bytes = p[4];
}

// Rows of a tile into a state, a key's words (and in XTS tweaks) added. `tweak(v, row)` adds to a row's blocks.
template <class Add> PART void load_state(word s[128], const Rows &r, bool whole, const Add &add) {
    if (whole) {
        word64 in = splat64(pick64(r.in, 0)) + wide(lane() * 16u);
        UNROLL for (uint32_t b = 0; b < 32; b++) {
            word v[4];
            load16(v, in + b * WL_ROW, eq(lane(), lane()));
            add(v, b);
            UNROLL for (int j = 0; j < 4; j++) s[32 * j + b] = v[j];
        }
    } else {
        word stage[128];
        ROLLED for (uint32_t b = 0; b < 32; b++) {
            word v[4];
            load_row(v, pick64(r.in, b), pick(r.bytes, b));
            add(v, b);
            UNROLL for (int j = 0; j < 4; j++) stage[4 * b + j] = v[j];
        }
        UNROLL for (int i = 0; i < 128; i++) s[i] = stage[(i & 31) * 4 + i / 32];
    }
}
// The other way, from the last row to the first. `add` may read what is at the rows' input addresses and before them:
// with output in place of input, nothing of that has been overwritten yet.
template <class Add> PART void store_state(const word s[128], const Rows &r, bool whole, const Add &add) {
    if (whole) {
        word64 out = splat64(pick64(r.out, 0)) + wide(lane() * 16u);
        UNROLL for (int b = 31; b >= 0; b--) {
            word v[4] = {s[b], s[32 + b], s[64 + b], s[96 + b]};
            add(v, b);
            store16(out + (uint32_t)b * WL_ROW, v, eq(lane(), lane()));
        }
    } else {
        word stage[128];
        UNROLL for (int i = 0; i < 128; i++) stage[(i & 31) * 4 + i / 32] = s[i];
        ROLLED for (int b = 31; b >= 0; b--) {
            word v[4];
            UNROLL for (int j = 0; j < 4; j++) v[j] = stage[4 * b + j];
            add(v, b);
            store_row(pick64(r.out, b), v, pick(r.bytes, b));
        }
    }
}

// XTS (IEEE 1619). A tweak is four little-endian words; x^128 = x^7 + x^2 + x + 1.
struct Tweak { word w[4]; };
// t shifted by a number of words or bits, and what left at the top brought back.
PART Tweak brought_back(word w0, word w1, word w2, word w3, word over) {
    w0 ^= over ^ (over << 1) ^ (over << 2) ^ (over << 7);
    w1 ^= (over >> 31) ^ (over >> 30) ^ (over >> 25);
    return {{w0, w1, w2, w3}};
}
// Times x^n, n below 32, a lane's own.
PART Tweak times_x_to(const Tweak &t, word n) {
    return brought_back(t.w[0] << n, funnel_left(t.w[0], t.w[1], n), funnel_left(t.w[1], t.w[2], n),
                        funnel_left(t.w[2], t.w[3], n), funnel_left(t.w[3], splat(0), n));
}
PART Tweak times_x32(const Tweak &t) { return brought_back(splat(0), t.w[0], t.w[1], t.w[2], t.w[3]); }
PART Tweak tweak_product(const Tweak &a, const Tweak &b) {
    Block y = {wide(b.w[0]) | (wide(b.w[1]) << 32), wide(b.w[2]) | (wide(b.w[3]) << 32)};
    Sum s = no_sum();
    add_product<true>(s, {wide(a.w[0]) | (wide(a.w[1]) << 32), wide(a.w[2]) | (wide(a.w[3]) << 32)}, y.lo, y.hi,
                      y.lo ^ y.hi);
    word64 t0 = s.ll, t1 = s.lh ^ s.ml ^ s.ll ^ s.hl, t2 = s.hl ^ s.mh ^ s.lh ^ s.hh, t3 = s.hh;
    t1 ^= t3 ^ (t3 << 1) ^ (t3 << 2) ^ (t3 << 7);
    t2 ^= (t3 >> 63) ^ (t3 >> 62) ^ (t3 >> 57);
    t0 ^= t2 ^ (t2 << 1) ^ (t2 << 2) ^ (t2 << 7);
    t1 ^= (t2 >> 63) ^ (t2 >> 62) ^ (t2 >> 57);
    return {{low(t0), low(t0 >> 32), low(t1), low(t1 >> 32)}};
}
// t * x^(32 n), n a lane's own: n's low five bits step by step, the others by the powers x^1024, x^2048, ...
PART Tweak row_tweak(Tweak t, word n) {
    word few = n & 31u, many = n >> 5;
    ROLLED for (uint32_t k = 0; any(lt(splat(k), few)); k++) {
        Tweak u = times_x32(t);
        UNROLL for (int j = 0; j < 4; j++) t.w[j] = sel(lt(splat(k), few), u.w[j], t.w[j]);
    }
    if (any(lt(splat(0), many))) {
        Tweak p = {{splat(1), splat(0), splat(0), splat(0)}};
        ROLLED for (int k = 0; k < 32; k++) p = times_x32(p);
        ROLLED while (any(lt(splat(0), many))) {
            Tweak u = tweak_product(t, p);
            UNROLL for (int j = 0; j < 4; j++) t.w[j] = sel(eq(many & 1u, splat(1)), u.w[j], t.w[j]);
            p = tweak_product(p, p);
            many = many >> 1;
        }
    }
    return t;
}
PART Tweak load_tweak(const wl_run &run, word message, pred on) {
    Tweak t;
    load16(t.w, splat64(run.scratch) + wide(message) * 16u, on);
    return t;
}
// A message whose length is no multiple of 16 leaves its last whole block, and what follows, to the _end kernel.
FN word64 without_end(word64 left) {
    word64 whole = left & splat64(~15ull);
    word64 less = sel64(lt64(splat64(15), whole), whole - 16u, splat64(0));
    return sel64(eq64(whole, left), whole, less);
}

FN void leave_end(Rows &r) {
    word64 left = without_end(r.left);
    r.bytes = low(sel64(lt64(left, splat64(WL_ROW)), left, splat64(WL_ROW)));
}

template <bool ENCRYPT> PART void aes_xts(Warp warp, const wl_run &run) {
    uint64_t tiles = wl_units(run.units, WL_TILE_ROWS);
    ROLLED for (uint64_t tile = warp.index; tile < tiles; tile += warp.count) {
        Rows r = tile_rows(run, tile);
        pred on = lt(splat(0), r.bytes);
        Tweak t = row_tweak(load_tweak(run, r.message, on), sel(on, low(r.index), splat(0)));
        leave_end(r);
        bool whole = one_piece(r);
        auto block_tweak = [&](uint32_t b) {
            Tweak u;
            UNROLL for (int j = 0; j < 4; j++) u.w[j] = splat(pick(t.w[j], b));
            return times_x_to(u, lane());
        };
        word s[128];
        Raw first = raw_key(run.key + (ENCRYPT ? RAW_FIRST : RAW_LAST));
        load_state(s, r, whole, [&](word v[4], uint32_t b) {
            Tweak u = block_tweak(b);
            UNROLL for (int j = 0; j < 4; j++) v[j] = xor3(v[j], u.w[j], splat(first.k[j]));
        });
        // Decryption spills in its loop without this, encryption does with it.
        parked parking[9];
        if (!ENCRYPT) {
            park(r, parking);
            UNROLL for (int j = 0; j < 4; j++) parking[5 + j] = t.w[j];
        }
        transpose(s);
        if (ENCRYPT)
            encrypt_rounds(s, run.key + WL_KEY_ROUNDS, rounds_of(run));
        else
            decrypt_rounds(s, run.key + WL_KEY_DECRYPT, rounds_of(run));
        if (!ENCRYPT) {
            take(r, parking);
            UNROLL for (int j = 0; j < 4; j++) t.w[j] = parking[5 + j];
            whole = one_piece(r);
        }
        transpose(s);
        Raw last = raw_key(run.key + (ENCRYPT ? RAW_LAST : RAW_FIRST));
        store_state(s, r, whole, [&](word v[4], uint32_t b) {
            Tweak u = block_tweak(b);
            UNROLL for (int j = 0; j < 4; j++) v[j] = xor3(v[j], u.w[j], splat(last.k[j]));
        });
    }
}

// Ciphertext stealing: the last whole block and what follows it, for messages that have such an end. The block is done
// with one tweak; its first bytes are the message's end; the rest of it fills up the input's end, which is done with
// the other tweak and becomes the last whole block.
struct End {
    word64 in, out;    // of the last whole block
    word bytes;        // after it; 0: nothing to do
    Tweak one, other;
};
template <bool ENCRYPT> PART End find_end(const wl_run &run, uint64_t group, uint32_t b) {
    word m = splat((uint32_t)group * WL_WARP_MESSAGES + 32 * b) + lane();
    pred on = lt(m, splat(run.messages));
    Message x = find_message(run, m, on, WL_ROW);
    End e;
    e.bytes = sel(on, low(x.length) & 15u, splat(0));
    on = lt(splat(0), e.bytes);
    word block = sel(on, low(x.length >> 4) - 1u, splat(0));
    e.in = x.in + wide(block) * 16u;
    e.out = x.out + wide(block) * 16u;
    Tweak t = times_x_to(row_tweak(load_tweak(run, m, on), block >> 5), block & 31u), next = times_x_to(t, splat(1));
    e.one = ENCRYPT ? t : next;
    e.other = ENCRYPT ? next : t;
    return e;
}
template <bool ENCRYPT> PART void aes_xts_end(Warp warp, const wl_run &run) {
    uint64_t groups = wl_units(run.messages, WL_WARP_MESSAGES);
    ROLLED for (uint64_t group = warp.index; group < groups; group += warp.count) {
        word stage[128];
        ROLLED for (uint32_t b = 0; b < 32; b++) {
            End e = find_end<ENCRYPT>(run, group, b);
            word v[4];
            load_bytes(v, e.in, sel(eq(e.bytes, splat(0)), splat(0), splat(16)));
            UNROLL for (int j = 0; j < 4; j++) stage[4 * b + j] = v[j] ^ e.one.w[j];
        }
        crypt_staged<ENCRYPT>(stage, run.key, ENCRYPT ? WL_KEY_ROUNDS : WL_KEY_DECRYPT, 0, rounds_of(run));
        ROLLED for (uint32_t b = 0; b < 32; b++) {
            End e = find_end<ENCRYPT>(run, group, b);
            word v[4], rest[4];
            load_bytes(rest, e.in + 16u, e.bytes);
            UNROLL for (int j = 0; j < 4; j++) v[j] = stage[4 * b + j] ^ e.one.w[j];
            store_bytes(e.out + 16u, v, e.bytes);
            UNROLL for (int j = 0; j < 4; j++) {
                word mask = byte_mask(e.bytes, j);
                stage[4 * b + j] = ((v[j] & ~mask) | rest[j]) ^ e.other.w[j];
            }
        }
        crypt_staged<ENCRYPT>(stage, run.key, ENCRYPT ? WL_KEY_ROUNDS : WL_KEY_DECRYPT, 0, rounds_of(run));
        ROLLED for (uint32_t b = 0; b < 32; b++) {
            End e = find_end<ENCRYPT>(run, group, b);
            word v[4];
            UNROLL for (int j = 0; j < 4; j++) v[j] = stage[4 * b + j] ^ e.other.w[j];
            store_bytes(e.out, v, sel(eq(e.bytes, splat(0)), splat(0), splat(16)));
        }
    }
}

// CBC decryption: a plaintext block needs the ciphertext block before. In place, the block before a tile may be gone
// when the tile is written; so they are all copied first, 16 bytes a tile, a lane a tile.
PART void aes_cbc_edges(Warp warp, const wl_run &run) {
    uint64_t tiles = wl_units(run.units, WL_TILE_ROWS), groups = wl_units(tiles, 32);
    ROLLED for (uint64_t group = warp.index; group < groups; group += warp.count) {
        word64 tile = splat64(group * 32) + wide(lane());
        Rows r = find_rows(run, tile * WL_TILE_ROWS);
        pred on = both(lt(splat(0), r.bytes), lt64(splat64(0), r.index));
        word v[4];
        load_bytes(v, r.in - 16u, sel(on, splat(16), splat(0)));
        store16(splat64(run.scratch) + tile * 16u, v, on);
    }
}
PART void aes_cbc_decrypt(Warp warp, const wl_run &run) {
    uint64_t tiles = wl_units(run.units, WL_TILE_ROWS);
    ROLLED for (uint64_t tile = warp.index; tile < tiles; tile += warp.count) {
        Rows r = tile_rows(run, tile);
        bool whole = one_piece(r) && one_message(r);
        word s[128];
        Raw last = raw_key(run.key + RAW_LAST);
        load_state(s, r, whole, [&](word v[4], uint32_t) {
            UNROLL for (int j = 0; j < 4; j++) v[j] ^= last.k[j];
        });
        transpose(s);
        decrypt_rounds(s, run.key + WL_KEY_DECRYPT, rounds_of(run));
        r = tile_rows(run, again(tile));
        transpose(s);
        Raw first = raw_key(run.key + RAW_FIRST);
        store_state(s, r, whole, [&](word v[4], uint32_t b) {
            // Lane 0's block before is in the row before, the nonce, or among the edges.
            bool edge = (!whole || b == 0) && (b == 0 || pick64(r.index, b) == 0);
            word64 before = splat64(pick64(r.in, b)) + wide(lane() * 16u) - 16u;
            pred mine = lt(lane() * 16u, splat(pick(r.bytes, b)));
            if (edge) mine = both(mine, lt(splat(0), lane()));
            word p[4];
            if (whole)
                load16(p, before, mine);
            else
                load_bytes(p, before, sel(mine, splat(16), splat(0)));
            if (edge) {
                word q[4];
                uint64_t at = pick64(r.index, b) ? run.scratch + 16 * tile
                                                 : run.nonces + pick(r.message, b) * run.nonce_stride;
                pred used = both(eq(lane(), splat(0)), lt(splat(0), splat(pick(r.bytes, b))));
                load_bytes(q, splat64(at), sel(used, splat(16), splat(0)));
                UNROLL for (int j = 0; j < 4; j++) p[j] |= q[j];
            }
            UNROLL for (int j = 0; j < 4; j++) v[j] = xor3(v[j], p[j], splat(first.k[j]));
        });
    }
}

// ---- Keys ----

PART word sub_word(word w) {
    word s[8], r = splat(0);
    UNROLL for (int i = 0; i < 8; i++) s[i] = w >> i & 0x01010101u;
    sub_byte(s);
    UNROLL for (int i = 0; i < 8; i++) r |= (s[i] & 0x01010101u) << i;
    return r;
}
// A round key's bits as masks; lane p writes that of bit p.
PART void store_masks(uint64_t at, word w) {
    store32(splat64(at) + wide(lane() * 4u), 0u - (w >> lane() & 1u), eq(lane(), lane()));
}
PART word times_x(word w) { return ((w & 0x7f7f7f7fu) << 1) ^ ((w >> 7 & 0x01010101u) * 0x1bu); }
PART word inverse_mix(word w) {
    word w2 = times_x(w), w4 = times_x(w2), w8 = times_x(w4);
    word w9 = w8 ^ w, wb = w9 ^ w2, wd = w9 ^ w4, we = w8 ^ w4 ^ w2;
    return we ^ rotl(wb, 24) ^ rotl(wd, 16) ^ rotl(w9, 8);
}
// FIPS 197 section 5.2. All lanes do the same.
template <int N> PART void expand_key(uint64_t raw, uint64_t masks, uint64_t decrypt, uint64_t first, uint64_t last) {
    word w[N];
    UNROLL for (int i = 0; i < N; i++) w[i] = load32(splat64(raw + 4 * i), eq(lane(), lane()));
    uint32_t rcon = 1;
    const uint32_t total = 4 * (N + 7);
    ROLLED for (uint32_t i = 0; i < total; i++) {
        word own = w[0];
        pred all = eq(lane(), lane());
        if (i < 4) store32(splat64(first + 4 * i), own, all);
        if (i + 4 >= total) store32(splat64(last + 4 * (i + 4 - total)), own, all);
        store_masks(masks + 128 * i, own);
        if (decrypt && i >= 4 && i + 4 < total) store_masks(decrypt + 128 * i, inverse_mix(own));
        word t = w[N - 1];
        // w[0] is word i; the one to make is word i + N.
        if (i % N == 0) {
            t = sub_word(rotl(t, 24)) ^ rcon;
            rcon = (rcon << 1) ^ (rcon >> 7) * 0x11bu;
        } else if (N == 8 && i % N == 4) {
            t = sub_word(t);
        }
        UNROLL for (int j = 0; j + 1 < N; j++) w[j] = w[j + 1];
        w[N - 1] = own ^ t;
    }
}
PART void expand_any(uint32_t bytes, uint64_t raw, uint64_t masks, uint64_t decrypt, uint64_t first, uint64_t last) {
    if (bytes == 16) expand_key<4>(raw, masks, decrypt, first, last);
    if (bytes == 24) expand_key<6>(raw, masks, decrypt, first, last);
    if (bytes == 32) expand_key<8>(raw, masks, decrypt, first, last);
}
PART void store_power(uint64_t key, word entry, Block b) {
    word64 at = splat64(key + WL_KEY_POWERS) + wide(entry * 24u);
    pred all = eq(entry, entry);
    store64(at, b.lo, all);
    store64(at + 8u, b.hi, all);
    store64(at + 16u, b.lo ^ b.hi, all);
}
PART void aes_key(Warp warp, const wl_run &run) {
    if (warp.index != 0) return;
    uint64_t key = run.key;
    expand_any(run.key_bytes, key, key + WL_KEY_ROUNDS, key + WL_KEY_DECRYPT, key + RAW_FIRST, key + RAW_LAST);
    if (run.flags & WL_KEY_TWO)
        expand_any(run.key_bytes, key + run.key_bytes, key + WL_KEY_TWEAK, 0, key + RAW_TWEAK + RAW_FIRST,
                   key + RAW_TWEAK + RAW_LAST);
    sync();
    // H, the encryption of zeros: every lane's every block.
    word s[128], v[4];
    UNROLL for (int i = 0; i < 32; i++) {
        Four f = load_four(key + WL_KEY_ROUNDS + 16 * i);
        s[4 * i] = splat(f.x);
        s[4 * i + 1] = splat(f.y);
        s[4 * i + 2] = splat(f.z);
        s[4 * i + 3] = splat(f.w);
    }
    encrypt_rounds(s, key + WL_KEY_ROUNDS, rounds_of(run));
    Raw raw = raw_key(key + RAW_LAST);
    UNROLL for (int j = 0; j < 4; j++) {
        v[j] = splat(raw.k[j]);
        UNROLL for (int p = 0; p < 32; p++) v[j] ^= (s[32 * j + p] & 1u) << p;
    }
    // H times x, once: POLYVAL's H.
    Block h = to_block(v);
    word64 top = splat64(0) - (h.hi >> 63);
    h = {(h.lo << 1) ^ (top & 1u), (h.hi << 1) ^ (h.lo >> 63) ^ (top & 0xc200000000000000ull)};
    // Lane t makes H^(t+1), then H^(32t), by squaring.
    Block power = h, mine = one();
    UNROLL for (int round = 0; round < 2; round++) {
        word e = round ? lane() : lane() + 1u;
        ROLLED for (uint32_t k = 0; k < 5; k++) {
            pred odd = eq(e >> k & 1u, splat(1));
            Block with = times<true>(mine, power);
            mine = {sel64(odd, with.lo, mine.lo), sel64(odd, with.hi, mine.hi)};
            power = times<true>(power, power);
        }
        if (round == 0) {
            pred top_lane = eq(lane(), splat(31));  // H^32 is the square itself
            mine = {sel64(top_lane, power.lo, mine.lo), sel64(top_lane, power.hi, mine.hi)};
        }
        store_power(key, round ? lane() : lane() + 32u, mine);
        mine = one();
    }
}

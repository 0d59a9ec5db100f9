// The kernels once around, for tools that watch a program: the address and undefined-behaviour sanitizers, memcheck.
//
//   check            every plan over lengths around all borders; buffers are exact, each an allocation of its own
//   check overrun    reads one byte too many: the address sanitizer must stop it
//   check branch     branches on a byte of a key: memcheck must report it
//
// Under memcheck keys, messages and what is made of them are undefined: a branch or an address that depends on one is
// reported. The outcome of a verification is public and marked so. Whether results are right is for test.py; here it is
// checked that opening gives back what was sealed.
#include "host.cpp"

#include <stdio.h>
#include <stdlib.h>
#include <vector>

#if __has_include(<valgrind/memcheck.h>)
#include <valgrind/memcheck.h>
#else
#define VALGRIND_MAKE_MEM_UNDEFINED(at, size) (void)(at)
#define VALGRIND_MAKE_MEM_DEFINED(at, size) (void)(at)
#define RUNNING_ON_VALGRIND 0
#endif

static uint64_t state = 1;
static uint8_t next_byte() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint8_t)(state >> 56);
}

struct Bytes {
    uint8_t *at;
    size_t size;
    Bytes(size_t n, bool random = false) : at((uint8_t *)aligned_alloc(256, (n + 255) / 256 * 256)), size(n) {
        for (size_t i = 0; i < n; i++) at[i] = random ? next_byte() : 0;
    }
    ~Bytes() { free(at); }
    uint64_t address() const { return (uint64_t)at; }
    Bytes(const Bytes &) = delete;
};
// Without room behind it: an overrun of a byte leaves the allocation.
struct Exact {
    uint8_t *base, *at;
    size_t size;
    Exact(size_t n, size_t offset, bool random) : base((uint8_t *)malloc(n + offset)), at(base + offset), size(n) {
        for (size_t i = 0; i < n; i++) at[i] = random ? next_byte() : 0xa5;
    }
    ~Exact() { free(base); }
    uint64_t address() const { return (uint64_t)at; }
    Exact(const Exact &) = delete;
};

enum Counts { TILES, SEGMENTS, EACH, GROUPS, TILE_LANES };
struct Step { const char *kernel; Counts counts; };
struct Plan {
    const char *name;
    bool aes, tagged, xts;
    std::vector<Step> there, back;  // back: undoes it, or empty
    uint64_t multiple, least;
};
static const Plan plans[] = {
    {"ctr", true, false, false, {{"wl_aes_ctr", TILES}}, {{"wl_aes_ctr", TILES}}, 1, 0},
    {"gcm", true, true, false,
     {{"wl_aes_gcm_masks", GROUPS}, {"wl_aes_gcm_seal", TILES}, {"wl_aes_gcm_tags", EACH}},
     {{"wl_aes_gcm_masks", GROUPS}, {"wl_aes_ghash", TILES}, {"wl_aes_gcm_verify", EACH}, {"wl_aes_gcm_open", TILES}},
     1, 0},
    {"gcm by integers", true, true, false,
     {{"wl_aes_gcm_masks", GROUPS}, {"wl_aes_gcm_seal_i", TILES}, {"wl_aes_gcm_tags", EACH}},
     {{"wl_aes_gcm_masks", GROUPS}, {"wl_aes_ghash_i", TILES}, {"wl_aes_gcm_verify", EACH}, {"wl_aes_gcm_open", TILES}},
     1, 0},
    {"xts", true, false, true,
     {{"wl_aes_xts_tweaks", GROUPS}, {"wl_aes_xts_encrypt", TILES}, {"wl_aes_xts_encrypt_end", GROUPS}},
     {{"wl_aes_xts_tweaks", GROUPS}, {"wl_aes_xts_decrypt", TILES}, {"wl_aes_xts_decrypt_end", GROUPS}}, 1, 16},
    {"cbc", true, false, false, {{"wl_aes_cbc_edges", TILE_LANES}, {"wl_aes_cbc_decrypt", TILES}}, {}, 16, 0},
    {"chacha", false, true, false,
     {{"wl_chacha_keys", EACH}, {"wl_chacha_seal", SEGMENTS}, {"wl_chacha_tags", EACH}},
     {{"wl_chacha_keys", EACH}, {"wl_chacha_poly", SEGMENTS}, {"wl_chacha_verify", EACH}, {"wl_chacha_open", SEGMENTS}},
     1, 0},
};

static void fail(const char *what, uint64_t length) {
    fprintf(stderr, "%s: %llu bytes\n", what, (unsigned long long)length);
    exit(1);
}

static void launch(const std::vector<Step> &steps, const wl_run &run, uint64_t tiles, Exact *results) {
    for (const Step &s : steps) {
        uint64_t blocks = s.counts == EACH ? wl_units(run.messages, 128) : s.counts == GROUPS ? 1
                        : s.counts == TILE_LANES ? wl_units(tiles, 128) : wl_units(tiles, 4);
        if (!blocks) blocks = 1;
        if (wl_host_launch(s.kernel, (uint32_t)blocks, 0, (uint32_t)blocks, WL_BLOCK, &run)) fail(s.kernel, 0);
        if (strstr(s.kernel, "verify")) VALGRIND_MAKE_MEM_DEFINED(results->at, results->size);
    }
}

// `count` messages, the last one a little shorter; with a table of their own or at a stride.
static void once(const Plan &plan, uint64_t length, uint32_t count, uint32_t key_bytes, uint64_t offset, bool table,
                 uint64_t overrun) {
    uint64_t last = length, unit = plan.aes ? WL_ROW : WL_SEGMENT, gap = offset;
    if (count > 1 && length >= plan.least + plan.multiple) last = length - plan.multiple;
    uint64_t stride = length + gap, total = stride * (count - 1) + last;
    Bytes key(WL_KEY_AREA);
    for (uint32_t i = 0; i < key_bytes * (plan.xts ? 2 : 1); i++) key.at[i] = next_byte();
    Exact input(total, offset, true), sealed(total, offset, false), opened(total, offset, false);
    Exact nonces(16 * count, 0, true), aad(21 * count, 0, true);
    Exact tags(16 * count, 0, false), results(4 * count, 0, false);
    VALGRIND_MAKE_MEM_UNDEFINED(key.at, 64);
    VALGRIND_MAKE_MEM_UNDEFINED(input.at, input.size);
    wl_run run = {};
    run.version = WL_GPU_VERSION;
    run.messages = count;
    run.key_bytes = key_bytes;
    run.units = wl_units(length, unit) * (count - 1) + wl_units(last, unit);
    run.key = key.address();
    if (plan.aes) {
        wl_run setup = run;
        setup.flags = plan.xts ? WL_KEY_TWO : 0;
        if (wl_host_launch("wl_aes_key", 1, 0, 1, WL_BLOCK, &setup)) fail("wl_aes_key", 0);
    }
    uint64_t tiles = plan.aes ? wl_units(run.units, WL_TILE_ROWS) : run.units;
    Bytes scratch(wl_scratch(count, tiles, plan.aes ? WL_SCRATCH_MESSAGE_AES : WL_SCRATCH_MESSAGE_CHACHA));
    run.input = input.address();
    run.output = sealed.address();
    run.input_stride = run.output_stride = stride;
    run.length = length;
    run.last_length = last + overrun;
    run.nonces = nonces.address();
    run.nonce_stride = 16;
    run.aad = aad.address();
    run.aad_stride = run.aad_length = 21;
    run.tags = tags.address();
    run.tag_stride = 16;
    run.last_tag = tags.address() + 16 * (count - 1);
    run.results = results.address();
    run.scratch = scratch.address();
    std::vector<wl_message> entries;
    if (table) {
        uint64_t before = 0;
        for (uint32_t i = 0; i < count; i++) {
            uint64_t n = i + 1 == count ? last : length;
            entries.push_back({i * stride, i * stride, n, before, 21 * i, 21});
            before += wl_units(n, unit);
        }
        run.table = (uint64_t)entries.data();
    }
    launch(plan.there, run, tiles, &results);
    if (plan.back.empty()) return;
    VALGRIND_MAKE_MEM_UNDEFINED(sealed.at, sealed.size);
    run.input = sealed.address();
    run.output = opened.address();
    launch(plan.back, run, tiles, &results);
    VALGRIND_MAKE_MEM_DEFINED(opened.at, opened.size);
    VALGRIND_MAKE_MEM_DEFINED(input.at, input.size);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t n = i + 1 == count ? last : length;
        if (memcmp(opened.at + i * stride, input.at + i * stride, n)) fail(plan.name, length);
        if (plan.tagged && results.at[4 * i] != 1) fail(plan.name, length);
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "overrun")) {
        once(plans[0], 4097, 1, 16, 0, false, 1);
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "branch")) {
        Bytes key(64, true);
        VALGRIND_MAKE_MEM_UNDEFINED(key.at, 64);
        if (key.at[0] & 1) puts("odd");
        return 0;
    }
    bool slow = RUNNING_ON_VALGRIND;
    uint64_t rounds = 0;
    for (const Plan &plan : plans) {
        std::vector<uint64_t> lengths;
        for (uint64_t n = 0; n < 50; n += slow ? 13 : 1) lengths.push_back(n);
        for (uint64_t border : {512u, 2048u, 16384u, 65536u})
            for (int d : {-16, -1, 0, 1, 17})
                if (!slow || (border < 16384 && d) || (border == 16384 && d == 17)) lengths.push_back(border + d);
        for (uint64_t length : lengths) {
            length = length / plan.multiple * plan.multiple;
            if (length < plan.least) continue;
            uint32_t key_bytes = !plan.aes ? 32 : rounds % 3 == 0 ? 16 : rounds % 3 == 1 ? 32 : 24;
            if (plan.xts && key_bytes == 24) key_bytes = 32;
            once(plan, length, 1 + (uint32_t)(rounds % 3), key_bytes, rounds % 2 ? 0 : rounds % 16, rounds % 4 == 3, 0);
            rounds++;
        }
    }
    printf("%llu runs\n", (unsigned long long)rounds);
}

/* What the kernels and the program that launches them agree on: names, structures, sizes, launches.
 *
 * One launch works on one run: many messages under one key. Plain C, fixed layout, little-endian. Every address is a
 * device address. No structure holds a secret: keys are in the key area, one-time keys in the scratch area, and both
 * belong to the launching program, which wipes them (zeros) before it gives them back.
 *
 * Launches of one run go to one stream in the order of its plan (below); nothing else orders them. Every kernel takes
 * one parameter, `wl_run` by value, 1-dimensional grid and block, block = WL_BLOCK threads, no dynamic shared memory.
 * A grid is a matter of speed only: every kernel strides over its units, so any grid of at least one block gives the
 * same result. wl_blocks() gives the grid that has one unit a warp (or a thread).
 */
#ifndef WATTLOCK_GPU_H
#define WATTLOCK_GPU_H

#if !defined(__CUDACC_RTC__)
#include <stdint.h>
#endif

#define WL_GPU_VERSION 1u

#define WL_BLOCK 128u            /* threads a block: four warps */
#define WL_ROW 512u              /* AES: bytes a row, 32 blocks of 16 bytes, one for each lane */
#define WL_TILE_ROWS 32u         /* AES: rows that a warp does at once */
#define WL_SEGMENT 65536u        /* ChaCha20: bytes that a warp does at once, of one message */
#define WL_WARP_MESSAGES 1024u   /* kernels that do one AES block a message: messages that a warp does at once */

#define WL_KEY_AREA 28672u       /* bytes of a key area; its address is a multiple of 256 */
#define WL_TAG 16u

/* One message of a run whose messages differ in length, or lie anywhere. `before`: units of the messages before this
 * one, where a message has wl_units() of them. Addresses are relative to wl_run.input, .output and .aad. */
typedef struct wl_message {
    uint64_t input;
    uint64_t output;
    uint64_t length;
    uint64_t before;
    uint64_t aad;
    uint64_t aad_length;
} wl_message;

/* A run. Message i is at input + i * input_stride, its length is `length`, the last one's `last_length`, which is at
 * most `length`. With a table the fields marked T are taken from it.
 *
 * `output` may equal `input` with equal strides (in place); any other overlap gives wrong bytes. Any alignment works;
 * rows whose input and output are multiples of 16 are read and written in one piece, others byte by byte.
 * Nothing past a message's length is read or written. */
typedef struct wl_run {
    uint32_t version;        /* WL_GPU_VERSION */
    uint32_t messages;
    uint32_t key_bytes;      /* AES: 16, 24 or 32, of one key (XTS: of each of its two); ChaCha20: 32 */
    uint32_t flags;          /* 0 */
    uint64_t units;          /* sum of wl_units() of all messages */
    uint64_t input;
    uint64_t input_stride;   /* T */
    uint64_t output;
    uint64_t output_stride;  /* T */
    uint64_t length;         /* T */
    uint64_t last_length;    /* T */
    uint64_t table;          /* wl_message[messages], or 0 */
    uint64_t key;            /* the key area */
    uint64_t nonces;         /* message i's is at nonces + i * nonce_stride: CTR, XTS, CBC 16 bytes; GCM, ChaCha20 12 */
    uint64_t nonce_stride;
    uint64_t aad;            /* message i's is at aad + i * aad_stride; the stride may be 0 */
    uint64_t aad_stride;     /* T */
    uint64_t aad_length;     /* T */
    uint64_t tags;           /* message i's is at tags + i * tag_stride, written by seal, read by open */
    uint64_t tag_stride;
    uint64_t last_tag;       /* the last message's: where tags lie behind messages it may be nearer */
    uint64_t results;        /* open: uint32_t[messages], 1 verified, 0 not; others: unused */
    uint64_t scratch;        /* wl_scratch() bytes, a multiple of 256; secret; need not be cleared before */
} wl_run;

/* Key area: the launching program writes the raw key at offset 0 and launches wl_aes_key (one block) once; every run
 * under this key may then use it. XTS: first the data key, then the tweak key, and `flags` WL_KEY_TWO in that launch.
 * ChaCha20: the 32 bytes of the key, and no launch.
 *   0      raw key, at most 64 bytes
 *   256    15 round keys, 128 words each, word 8*byte+bit is 0 or ~0, bit 0 the lowest
 *   8192   the same for the tweak key
 *   16128  powers of H for GCM, 64 times three 64-bit words
 *   17920  the data key's round keys for decryption
 * Everything but the raw key is the kernels' own affair. */
#define WL_KEY_TWO 1u
#define WL_KEY_ROUNDS 256u
#define WL_KEY_TWEAK 8192u
#define WL_KEY_POWERS 16128u
#define WL_KEY_DECRYPT 17920u

/* Units of a message: rows for AES, segments for ChaCha20. An empty message has none. */
static inline uint64_t wl_units(uint64_t length, uint64_t unit) { return (length + unit - 1) / unit; }

/* Bytes of scratch for a run: one formula for all kinds. */
#define WL_SCRATCH_MESSAGE_AES 32u
#define WL_SCRATCH_MESSAGE_CHACHA 256u
#define WL_SCRATCH_UNIT 32u      /* for each tile or segment */
static inline uint64_t wl_scratch(uint64_t messages, uint64_t tiles_or_segments, uint64_t each_message) {
    return messages * each_message + (tiles_or_segments + 1) * WL_SCRATCH_UNIT;
}

/* Plans: the kernels of a kind in order, each with what its grid counts.
 *   T  tiles: wl_units(run.units, WL_TILE_ROWS), a warp each           blocks = ceil(tiles / 4)
 *   S  segments: run.units, a warp each                                blocks = ceil(units / 4)
 *   E  messages, a thread each                                         blocks = ceil(messages / 128)
 *   M  messages, WL_WARP_MESSAGES a warp                               blocks = ceil(messages / 4096)
 *   K  one block
 * A plan's kernel whose count is 0 need not be launched, except as stated.
 *
 *   AES key                       wl_aes_key K
 *   AES-CTR                       wl_aes_ctr T
 *   AES-GCM seal                  wl_aes_gcm_masks M, wl_aes_gcm_seal T, wl_aes_gcm_tags E
 *   AES-GCM open                  wl_aes_gcm_masks M, wl_aes_ghash T, wl_aes_gcm_verify E, wl_aes_gcm_open T
 *   AES-XTS encryption            wl_aes_xts_tweaks M, wl_aes_xts_encrypt T, wl_aes_xts_encrypt_end M
 *   AES-XTS decryption            wl_aes_xts_tweaks M, wl_aes_xts_decrypt T, wl_aes_xts_decrypt_end M
 *                                 (..._end only if some length is no multiple of 16)
 *   AES-CBC decryption            wl_aes_cbc_edges T (a thread each: blocks = ceil(tiles / 128)), wl_aes_cbc_decrypt T
 *   ChaCha20-Poly1305 seal        wl_chacha_keys E, wl_chacha_seal S, wl_chacha_tags E
 *   ChaCha20-Poly1305 open        wl_chacha_keys E, wl_chacha_poly S, wl_chacha_verify E, wl_chacha_open S
 *
 * GHASH is computed with clmad in wl_aes_gcm_seal and wl_aes_ghash. wl_aes_gcm_seal_i and wl_aes_ghash_i do the same by
 * integer multiplication: for a chip, driver or compiler on which the first two fail their known answers. They are in
 * an image of their own (wattlock_i.*), so that a driver that refuses clmad still loads the rest.
 *
 * Opening writes a message's plaintext only after wl_aes_gcm_verify or wl_chacha_verify has set its result to 1. The
 * output of a message whose result is 0 is left as it was.
 *
 * Limits, checked by the launching program: messages < 2^31, units < 2^37; GCM's message at most 2^36 - 32 bytes,
 * ChaCha20's 2^38 - 64; CBC lengths are multiples of 16, XTS lengths 16 or more and at most 2^24 bytes (2^20 blocks,
 * IEEE 1619). */

/* The kernels on a CPU, in the library made of the same source (gpu/host). Addresses in `run` are then this process's.
 * Blocks first .. first + blocks - 1 of a grid of `grid` blocks; threads may run parts of one grid at the same time.
 * 0: done. -1: no such kernel. -2: bad version or block size. */
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#ifdef __cplusplus
extern "C" {
#endif
int wl_host_launch(const char *kernel, uint32_t grid, uint32_t first, uint32_t blocks, uint32_t block,
                   const wl_run *run);
/* The kernels' names, null-terminated; for a stand-in's cuModuleGetFunction. */
const char *const *wl_host_kernels(void);
#ifdef __cplusplus
}
#endif
#endif

#endif

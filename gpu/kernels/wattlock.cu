// The kernels of Wattlock's GPU engine: what is launched is at the end. wattlock_gpu.h says how.
//
// One source for every chip, and for the CPU on which it is tested. No branch and no address depends on a key or on
// data; lengths, nonces, positions and the outcome of a verification are public.
//
// WL_INTEGER: only the kernels that do GHASH, by integer multiplication. Without it: all, GHASH by clmad.
#include "simt.h"

#include "sbox.h"
#include "ghash.h"
#include "aes.h"
#include "chacha.h"

// Two blocks, 255 registers: a state of 128 words and its successor. Three blocks (168 registers) spill.
#if !defined(WL_INTEGER) || !defined(WL_GPU)
WL_KERNEL(wl_aes_key, 1, aes_key)
WL_KERNEL(wl_aes_ctr, 2, aes_counter<false>)
WL_KERNEL(wl_aes_gcm_masks, 2, aes_per_message<false>)
WL_KERNEL(wl_aes_gcm_open, 2, aes_counter<true>)
WL_KERNEL(wl_aes_gcm_tags, 2, aes_gcm_tags<true>)
WL_KERNEL(wl_aes_gcm_verify, 2, aes_gcm_tags<false>)
template <bool SEAL> FN void gcm(Warp w, const wl_run &r) { aes_gcm<SEAL, false>(w, r); }
WL_KERNEL(wl_aes_gcm_seal, 2, gcm<true>)
WL_KERNEL(wl_aes_ghash, 4, gcm<false>)
WL_KERNEL(wl_aes_xts_tweaks, 2, aes_per_message<true>)
WL_KERNEL(wl_aes_xts_encrypt, 2, aes_xts<true>)
WL_KERNEL(wl_aes_xts_decrypt, 2, aes_xts<false>)
WL_KERNEL(wl_aes_xts_encrypt_end, 2, aes_xts_end<true>)
WL_KERNEL(wl_aes_xts_decrypt_end, 2, aes_xts_end<false>)
WL_KERNEL(wl_aes_cbc_edges, 4, aes_cbc_edges)
WL_KERNEL(wl_aes_cbc_decrypt, 2, aes_cbc_decrypt)
WL_KERNEL(wl_chacha_keys, 4, chacha_keys)
FN void chacha_seal(Warp w, const wl_run &r) { chacha_segments<true, true>(w, r); }
FN void chacha_poly(Warp w, const wl_run &r) { chacha_segments<false, true>(w, r); }
FN void chacha_open(Warp w, const wl_run &r) { chacha_segments<true, false>(w, r); }
WL_KERNEL(wl_chacha_seal, 4, chacha_seal)
WL_KERNEL(wl_chacha_poly, 4, chacha_poly)
WL_KERNEL(wl_chacha_open, 4, chacha_open)
WL_KERNEL(wl_chacha_tags, 4, chacha_tags<true>)
WL_KERNEL(wl_chacha_verify, 4, chacha_tags<false>)
#endif
#if defined(WL_INTEGER) || !defined(WL_GPU)
template <bool SEAL> FN void gcm_i(Warp w, const wl_run &r) { aes_gcm<SEAL, true>(w, r); }
WL_KERNEL(wl_aes_gcm_seal_i, 2, gcm_i<true>)
WL_KERNEL(wl_aes_ghash_i, 4, gcm_i<false>)
#endif

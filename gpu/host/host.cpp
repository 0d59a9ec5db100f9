// The kernels as a library for the CPU: wl_host_launch() of wattlock_gpu.h. One host thread does a warp's work, warps
// one after the other; a caller that wants threads launches parts of a grid from each.
#include "../kernels/wattlock.cu"

static const wl_entry entries[] = {
#define WL_ENTRY(name) {#name, name},
    WL_ENTRY(wl_aes_key)
    WL_ENTRY(wl_aes_ctr)
    WL_ENTRY(wl_aes_gcm_masks)
    WL_ENTRY(wl_aes_gcm_seal)
    WL_ENTRY(wl_aes_gcm_tags)
    WL_ENTRY(wl_aes_ghash)
    WL_ENTRY(wl_aes_gcm_verify)
    WL_ENTRY(wl_aes_gcm_open)
    WL_ENTRY(wl_aes_gcm_seal_i)
    WL_ENTRY(wl_aes_ghash_i)
    WL_ENTRY(wl_aes_xts_tweaks)
    WL_ENTRY(wl_aes_xts_encrypt)
    WL_ENTRY(wl_aes_xts_encrypt_end)
    WL_ENTRY(wl_aes_xts_decrypt)
    WL_ENTRY(wl_aes_xts_decrypt_end)
    WL_ENTRY(wl_aes_cbc_edges)
    WL_ENTRY(wl_aes_cbc_decrypt)
    WL_ENTRY(wl_chacha_keys)
    WL_ENTRY(wl_chacha_seal)
    WL_ENTRY(wl_chacha_tags)
    WL_ENTRY(wl_chacha_poly)
    WL_ENTRY(wl_chacha_verify)
    WL_ENTRY(wl_chacha_open)
#undef WL_ENTRY
};
static const uint32_t count = sizeof entries / sizeof entries[0];

extern "C" int wl_host_launch(const char *kernel, uint32_t grid, uint32_t first, uint32_t blocks, uint32_t block,
                              const wl_run *run) {
    if (run->version != WL_GPU_VERSION || block != WL_BLOCK || first > grid || blocks > grid - first) return -2;
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(entries[i].name, kernel)) continue;
        uint64_t warps = WL_BLOCK / 32;
        for (uint64_t w = first * warps; w < (first + blocks) * warps; w++) entries[i].body({w, grid * warps}, *run);
        return 0;
    }
    return -1;
}

extern "C" const char *const *wl_host_kernels(void) {
    static const char *names[count + 1];
    for (uint32_t i = 0; i < count; i++) names[i] = entries[i].name;
    return names;
}

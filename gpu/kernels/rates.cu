// What bounds the kernels of this chip: instructions of one sort, and copies within memory. For gpu/check.py alone; a
// program never loads it, and it knows no keys. Each thread of a rate keeps eight chains busy, more than the pipe's
// latency, and stores their sum, so that nothing is left out.
typedef unsigned int u32;
typedef unsigned long long u64;

struct wl_rate {
    u64 from, to;
    u32 rounds, units;
};

extern "C" __global__ void __launch_bounds__(256) wl_rate_lop3(const wl_rate r) {
    u32 word[8], seed = threadIdx.x * 2654435761u + blockIdx.x;
    for (int i = 0; i < 8; i++) word[i] = seed + (u32)i;
    for (u32 round = 0; round < r.rounds; round++)
#pragma unroll
        for (int step = 0; step < 8; step++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                asm volatile("lop3.b32 %0, %0, %1, %2, 0x96;" : "+r"(word[i]) : "r"(word[(i + 1) & 7]), "r"(seed));
    for (int i = 1; i < 8; i++) word[0] ^= word[i];
    ((u32 *)r.to)[blockIdx.x * blockDim.x + threadIdx.x] = word[0];
}

extern "C" __global__ void __launch_bounds__(256) wl_rate_clmad(const wl_rate r) {
    u64 word[8], seed = (u64)threadIdx.x * 0x9e3779b97f4a7c15u + blockIdx.x;
    for (int i = 0; i < 8; i++) word[i] = seed + (u64)i;
    for (u32 round = 0; round < r.rounds; round++)
#pragma unroll
        for (int step = 0; step < 8; step++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                asm volatile("clmad.lo.u64 %0, %1, %2, %0;" : "+l"(word[i]) : "l"(word[(i + 1) & 7]), "l"(seed));
    for (int i = 1; i < 8; i++) word[0] ^= word[i];
    ((u64 *)r.to)[blockIdx.x * blockDim.x + threadIdx.x] = word[0];
}

// `units` pieces of 16 bytes.
extern "C" __global__ void __launch_bounds__(256) wl_rate_copy(const wl_rate r) {
    const uint4 *from = (const uint4 *)r.from;
    uint4 *to = (uint4 *)r.to;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < r.units; i += (u64)gridDim.x * blockDim.x) to[i] = from[i];
}

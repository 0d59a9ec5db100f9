/*
 * Wattlock for programs that have their data in a GPU's memory: link with -lwattlock_gpu, or load it at run time.
 *
 * Nothing of CUDA is needed to build or to link; NVIDIA's driver (libcuda.so.1, CUDA 13 or later) is loaded by
 * wattlock_gpu_open.
 *
 * - Addresses are device addresses (CUdeviceptr, what cudaMalloc returns, what tensor.data_ptr() returns), streams are
 *   CUstream or cudaStream_t, NULL the default stream. Both belong to the device's primary context, which is the one
 *   that CUDA's runtime and PyTorch use. A call leaves the calling thread's current context as it was.
 * - Functions return 0, or one of the codes below; wattlock_gpu_error() then has one line for people.
 * - All functions may be called from any thread, also at the same time, except that what is freed is not in use.
 *   A forked child may not use what was opened before.
 */
#ifndef WATTLOCK_GPU_LIBRARY_H
#define WATTLOCK_GPU_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WATTLOCK_GPU_ABI 1

#define WATTLOCK_GPU_OK      0
#define WATTLOCK_GPU_ABSENT  1 /* no driver, no device, or one that is too old: the reason is in the text */
#define WATTLOCK_GPU_REFUSED 2 /* an argument: the text begins with the field's name; nothing was touched */
#define WATTLOCK_GPU_FORGED  3 /* a message is not authentic */
#define WATTLOCK_GPU_FILE    4 /* a file does not open: altered, cut, extended, no key for it; wattlock_gpu_exit_code() */
#define WATTLOCK_GPU_MEMORY  5 /* the device has not enough memory */
#define WATTLOCK_GPU_LOST    6 /* the device failed or does not answer; what its memory holds is not known */
#define WATTLOCK_GPU_BUG     7 /* a fault in this library */

typedef struct wattlock_gpu wattlock_gpu;               /* a device */
typedef struct wattlock_gpu_key wattlock_gpu_key;       /* a key on it */
typedef struct wattlock_gpu_memory wattlock_gpu_memory; /* memory on it */
typedef struct wattlock_file wattlock_file;             /* an unlocked file; needs no device */

/* The version of this interface that the library has: WATTLOCK_GPU_ABI of its header. */
int wattlock_gpu_abi(void);

/* Why the last call on this thread returned what it did: one line, valid until the next call on this thread. */
const char *wattlock_gpu_error(void);

/* After WATTLOCK_GPU_FILE: the exit code of `wattlock open` for the same reason (docs/formats/file.md); else 0. */
int wattlock_gpu_exit_code(void);

/* A device, by its number as the driver counts. WATTLOCK_CUDA_DRIVER names another driver, WATTLOCK_GPU_IMAGES the
 * folder of the kernels, which is otherwise `gpu` beside this library, or lib/wattlock/gpu beside the program's folder.
 * Takes some tenths of a second if the program has not used the device before. */
int wattlock_gpu_open(unsigned device, wattlock_gpu **out);
/* What was made on the device must be freed before. */
void wattlock_gpu_close(wattlock_gpu *gpu);
/* Its name, capability, memory and driver as a string of at most `room` bytes with its end. Returns the bytes that the
 * whole string takes. */
size_t wattlock_gpu_about(const wattlock_gpu *gpu, char *out, size_t room);

/* A key: "aes-128-ctr", "aes-256-gcm", "aes-256-xts", "aes-256-cbc", "chacha20-poly1305" and so on. The first of each
 * algorithm gives known answers on the device first. Blocks for some microseconds. */
int wattlock_gpu_key_new(wattlock_gpu *gpu, const char *algorithm, const void *key, size_t bytes, wattlock_gpu_key **out);
/* Waits for the runs under it, and wipes it. */
void wattlock_gpu_key_free(wattlock_gpu_key *key);

/* Device memory that the caller names: from an address on, so many bytes may be used. */
struct wattlock_gpu_area {
    uint64_t at;
    uint64_t bytes;
};

/* Many messages under one key. Message i begins i strides behind the area's address; the last may be shorter.
 *
 * An output may be the input, with the same stride; any other overlap of a field that is written with another field is
 * refused. Tags may lie between the messages, if they have the messages' stride. Addresses and strides that are
 * multiples of 16 are fastest; any other works, except that `results` is a multiple of 4. */
struct wattlock_gpu_messages {
    uint32_t size;         /* sizeof(struct wattlock_gpu_messages) */
    uint32_t count;
    uint64_t length;       /* of each message but the last; not read if count is 1 */
    uint64_t last_length;  /* of the last one, at most `length` */
    struct wattlock_gpu_area input;
    uint64_t input_stride;
    struct wattlock_gpu_area output;
    uint64_t output_stride;
    struct wattlock_gpu_area nonces; /* 12 bytes each for GCM and ChaCha20-Poly1305, 16 for CTR, XTS and CBC */
    uint64_t nonce_stride; /* 0: side by side */
    struct wattlock_gpu_area aad;    /* associated data */
    uint64_t aad_stride;   /* 0: the same for all */
    uint64_t aad_length;   /* of each message */
    struct wattlock_gpu_area tags;   /* 16 bytes each: written by seal, read by open */
    uint64_t tag_stride;   /* 0: side by side */
    uint64_t last_tag;     /* address of the last one, where it lies nearer than a stride; else 0 */
    struct wattlock_gpu_area results; /* open: uint32_t each, 1 verified, 0 not */
};

/* Seals (or encrypts), opens (or decrypts) messages on the caller's stream, and returns when that is enqueued: the areas
 * and the key must stay until the stream is done. An open writes a message only if its tag is right; what the output had
 * for any other message stays, and its result is 0. Who uses the plaintext must wait for the stream and look at the
 * results, with wattlock_gpu_check or on the device.
 *
 * If the device declines (no memory for scratch, a refused launch, CBC encryption), the messages are fetched, done on
 * the CPU and put back, and the call returns when that is done. */
int wattlock_gpu_seal_messages(wattlock_gpu_key *key, const struct wattlock_gpu_messages *messages, void *stream);
int wattlock_gpu_open_messages(wattlock_gpu_key *key, const struct wattlock_gpu_messages *messages, void *stream);

/* Waits for the stream and reads the results of an open: WATTLOCK_GPU_OK, or WATTLOCK_GPU_FORGED and the number of the
 * first message that is not authentic in *first (which may be NULL). */
int wattlock_gpu_check(wattlock_gpu *gpu, struct wattlock_gpu_area results, uint32_t count, void *stream,
                       uint32_t *first);

/* Device memory of the library's own. It holds anything at first, and is wiped when it is freed. */
int wattlock_gpu_memory_new(wattlock_gpu *gpu, uint64_t bytes, wattlock_gpu_memory **out);
uint64_t wattlock_gpu_memory_at(const wattlock_gpu_memory *memory);
/* Waits for all streams of the device's context. Tensors that were made of the memory keep it. */
void wattlock_gpu_memory_free(wattlock_gpu_memory *memory);
/* Copies; return when it is done. */
int wattlock_gpu_read(wattlock_gpu *gpu, uint64_t from, void *to, uint64_t bytes);
int wattlock_gpu_write(wattlock_gpu *gpu, uint64_t to, const void *from, uint64_t bytes);
int wattlock_gpu_copy(wattlock_gpu *gpu, uint64_t to, uint64_t from, uint64_t bytes);

/* Unlocks a file of `wattlock seal` (either format, not in ASCII armor) with the identities of an identity file. The last
 * chunk is verified: a file that was cut or extended is refused here. */
int wattlock_file_open(const char *path, const char *identity, wattlock_file **out);
void wattlock_file_close(wattlock_file *file);
/* Bytes of content. */
uint64_t wattlock_file_length(const wattlock_file *file);
/* Reads content on the CPU from position `at` on, verified. `to` is zero after a failure. All of a file at once is read
 * on all cores. */
int wattlock_file_read(wattlock_file *file, uint64_t at, void *to, uint64_t bytes);
/* Opens all of the content into device memory at `to`, of which `room` bytes may be used, behind what the stream does
 * already; returns when it is there. Each chunk is verified before any of its plaintext is written. After any failure the
 * first wattlock_file_length() bytes are zero, unless the device is lost. One chunk in each piece is compared with the
 * CPU's; if they differ, the CPU opens the file. */
int wattlock_file_load(wattlock_file *file, wattlock_gpu *gpu, uint64_t to, uint64_t room, void *stream);

/* A tensor in `memory` from byte `offset` on, as a DLManagedTensor (DLPack 0.x, dlpack.h): C-contiguous, with `type` a
 * DLDataTypeCode. The memory lives until its handle and all its tensors are gone. Its deleter may be called from any
 * thread. */
struct DLManagedTensor;
int wattlock_gpu_tensor(wattlock_gpu_memory *memory, uint64_t offset, uint8_t type, uint8_t bits, const int64_t *shape,
                        int32_t dimensions, struct DLManagedTensor **out);

#ifdef __cplusplus
}
#endif

#endif

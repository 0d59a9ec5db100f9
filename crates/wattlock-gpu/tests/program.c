/* A program with data on a GPU, as a user would write it: it has the driver and memory of its own, and calls the library.
 *
 *   program messages             seals and opens with every algorithm, in place and apart, and finds a forged message
 *   program refused              hands over everything that makes no sense, and prints each refusal
 *   program load FILE KEY PLAIN  opens a sealed file into device memory; compares it with PLAIN, or finds zeros
 *
 * It ends with 0 and "clean" if all was as it must be. The stand-in driver also says whether anything is left on the
 * device; with WATTLOCK_CUDA_DRIVER=libcuda.so.1 the program runs on a GPU, which does not. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wattlock/gpu.h"

#define MUST(condition) do { if (!(condition)) { \
    fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, wattlock_gpu_error()); exit(1); } } while (0)
#define CU(call) MUST((call) == 0)

typedef unsigned long long device_at; /* CUdeviceptr */
static int (*cu_init)(unsigned), (*cu_retain)(void **, int), (*cu_release)(int), (*cu_push)(void *), (*cu_pop)(void **);
static int (*cu_current)(void **), (*cu_alloc)(device_at *, size_t), (*cu_free)(device_at), (*cu_pin)(void **, size_t, unsigned);
static int (*cu_unpin)(void *), (*cu_stream)(void **, unsigned), (*cu_stream_end)(void *), (*cu_wait)(void);
static int (*cu_in)(device_at, const void *, size_t, void *), (*cu_out)(void *, device_at, size_t, void *);
static int (*cu_set)(device_at, unsigned char, size_t, void *);
static long long (*seen)(const char *);
static void (*tell)(const char *);

#define ROOM (1u << 20)
static void *stream, *pinned;

/* What only the stand-in has. */
static long long nothing_seen(const char *name) {
    (void)name;
    return 0;
}

static void nobody_told(const char *faults) {
    (void)faults;
}

static void driver(void) {
    void *library = dlopen(getenv("WATTLOCK_CUDA_DRIVER"), RTLD_NOW);
    MUST(library);
#define FIND(at, name) MUST(*(void **)&at = dlsym(library, name))
    FIND(cu_init, "cuInit"); FIND(cu_retain, "cuDevicePrimaryCtxRetain"); FIND(cu_push, "cuCtxPushCurrent_v2");
    FIND(cu_release, "cuDevicePrimaryCtxRelease_v2"); FIND(cu_pop, "cuCtxPopCurrent_v2");
    FIND(cu_current, "cuCtxGetCurrent"); FIND(cu_alloc, "cuMemAlloc_v2"); FIND(cu_free, "cuMemFree_v2");
    FIND(cu_pin, "cuMemHostAlloc"); FIND(cu_unpin, "cuMemFreeHost"); FIND(cu_stream, "cuStreamCreate");
    FIND(cu_stream_end, "cuStreamDestroy_v2"); FIND(cu_wait, "cuCtxSynchronize");
    FIND(cu_in, "cuMemcpyHtoDAsync_v2"); FIND(cu_out, "cuMemcpyDtoHAsync_v2"); FIND(cu_set, "cuMemsetD8Async");
    if (!dlsym(library, "wl_standin_count")) {
        seen = nothing_seen;
        tell = nobody_told;
    } else {
        FIND(seen, "wl_standin_count");
        FIND(tell, "wl_standin_set");
    }
    CU(cu_init(0));
}

static void set(device_at to, unsigned char value, size_t bytes) {
    CU(cu_set(to, value, bytes, stream));
    CU(cu_wait());
}

static void put(device_at to, const void *from, size_t bytes) {
    MUST(bytes <= ROOM);
    memcpy(pinned, from, bytes);
    CU(cu_in(to, pinned, bytes, stream));
    CU(cu_wait());
}

static void get(void *to, device_at from, size_t bytes) {
    MUST(bytes <= ROOM);
    CU(cu_out(pinned, from, bytes, stream));
    CU(cu_wait());
    memcpy(to, pinned, bytes);
}

static device_at base;

/* Five messages of 1000 bytes at a stride of 1024, the last of 600; nonces, tags and results behind them. */
static struct wattlock_gpu_messages some(void) {
    struct wattlock_gpu_messages m;
    memset(&m, 0, sizeof m);
    m.size = sizeof m;
    m.count = 5;
    m.length = 1008;
    m.last_length = 608;
    m.input.at = base;
    m.output.at = base + 8192;
    m.input.bytes = m.output.bytes = 4 * 1024 + 608;
    m.input_stride = m.output_stride = 1024;
    m.nonces.at = base + 16384;
    m.nonces.bytes = 5 * 16;
    m.nonce_stride = 16;
    m.tags.at = base + 17408;
    m.tags.bytes = 5 * 16;
    m.results.at = base + 18432;
    m.results.bytes = 5 * 4;
    return m;
}

static void fill(unsigned char *to, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++) to[i] = (unsigned char)((i * 2654435761u + seed) >> 13);
}

static void known_answer(wattlock_gpu *gpu) {
    /* GCM's specification (McGrew and Viega), test case 14. */
    static const unsigned char text[16] = {0xce, 0xa7, 0x40, 0x3d, 0x4d, 0x60, 0x6b, 0x6e,
                                           0x07, 0x4e, 0xc5, 0xd3, 0xba, 0xf3, 0x9d, 0x18};
    static const unsigned char tag[16] = {0xd0, 0xd1, 0xc8, 0xa7, 0x99, 0x99, 0x6b, 0xf0,
                                          0x26, 0x5b, 0x98, 0xb5, 0xd4, 0x8a, 0xb9, 0x19};
    unsigned char zero[32] = {0}, found[16];
    wattlock_gpu_key *key;
    MUST(wattlock_gpu_key_new(gpu, "aes-256-gcm", zero, 32, &key) == 0);
    struct wattlock_gpu_messages m = some();
    m.count = 1;
    m.last_length = 16;
    put(m.input.at, zero, 16);
    put(m.nonces.at, zero, 12);
    MUST(wattlock_gpu_seal_messages(key, &m, NULL) == 0);
    CU(cu_wait());
    get(found, m.output.at, 16);
    MUST(!memcmp(found, text, 16));
    get(found, m.tags.at, 16);
    MUST(!memcmp(found, tag, 16));
    wattlock_gpu_key_free(key);
}

static void messages(wattlock_gpu *gpu) {
    static const struct { const char *name; size_t key; int aead; } all[] = {
        {"aes-128-ctr", 16, 0}, {"aes-256-ctr", 32, 0}, {"aes-128-gcm", 16, 1}, {"aes-192-gcm", 24, 1},
        {"aes-256-gcm", 32, 1}, {"chacha20-poly1305", 32, 1}, {"aes-128-xts", 32, 0}, {"aes-256-xts", 64, 0},
        {"aes-256-cbc", 32, 0}};
    unsigned char raw[64], plain[4704], found[4704], secret[64], nonces[80];
    known_answer(gpu);
    fill(raw, sizeof raw, 1);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        wattlock_gpu_key *key;
        MUST(wattlock_gpu_key_new(gpu, all[i].name, raw, all[i].key, &key) == 0);
        for (int in_place = 0; in_place < 2; in_place++) {
            struct wattlock_gpu_messages m = some();
            fill(plain, sizeof plain, 7);
            fill(nonces, sizeof nonces, 9);
            fill(secret, sizeof secret, 11);
            set(base, 0xee, 32768);
            put(m.input.at, plain, sizeof plain);
            put(m.nonces.at, nonces, sizeof nonces);
            if (all[i].aead) {
                m.aad.at = base + 20480;
                m.aad.bytes = m.aad_length = 13;
                put(m.aad.at, secret, 13);
            }
            if (in_place) m.output = m.input;
            MUST(wattlock_gpu_seal_messages(key, &m, stream) == 0);
            CU(cu_wait());
            get(found, m.output.at, sizeof found);
            for (int message = 0; message < 5; message++) {
                size_t at = 1024 * (size_t)message, length = message == 4 ? 608 : 1008;
                MUST(memcmp(found + at, plain + at, length));
                /* What lies between the messages is as it was. */
                if (message < 4)
                    for (size_t gap = at + length; gap < at + 1024; gap++)
                        MUST(found[gap] == (in_place ? plain[gap] : 0xee));
            }
            /* Back, into the place that had the plaintext. */
            struct wattlock_gpu_messages back = m;
            back.input = m.output;
            if (!in_place) {
                back.output = m.input;
                set(m.input.at, 0xdd, sizeof plain);
            }
            unsigned first = 99;
            if (all[i].aead) {
                unsigned char tag[16];
                get(tag, m.tags.at + 32, 16);
                tag[3] ^= 1;
                put(m.tags.at + 32, tag, 16);
                unsigned char before[1008], after[1008];
                get(before, back.output.at + 2048, sizeof before);
                MUST(wattlock_gpu_open_messages(key, &back, stream) == 0);
                MUST(wattlock_gpu_check(gpu, back.results, 5, stream, &first) == WATTLOCK_GPU_FORGED && first == 2);
                get(after, back.output.at + 2048, sizeof after);
                MUST(!memcmp(before, after, sizeof before));
                get(found, back.output.at, sizeof found);
                MUST(!memcmp(found, plain, 1008) && !memcmp(found + 4096, plain + 4096, 608));
            } else {
                MUST(wattlock_gpu_open_messages(key, &back, stream) == 0);
                CU(cu_wait());
                get(found, back.output.at, sizeof found);
                for (int message = 0; message < 5; message++)
                    MUST(!memcmp(found + 1024 * message, plain + 1024 * message, message == 4 ? 608 : 1008));
            }
        }
        wattlock_gpu_key_free(key);
        printf("%s\n", all[i].name);
    }
}

static void say(int code, const char *field) {
    const char *text = wattlock_gpu_error();
    if (code != WATTLOCK_GPU_REFUSED || strncmp(text, field, strlen(field)) || text[strlen(field)] != ' ') {
        fprintf(stderr, "%s: code %d, %s\n", field, code, text);
        exit(1);
    }
    printf("%s\n", text);
}

static void refused(wattlock_gpu *gpu) {
    unsigned char raw[32] = {1};
    wattlock_gpu_key *key, *none;
    static unsigned char host[8192];
    MUST(wattlock_gpu_key_new(gpu, "aes-256-gcm", raw, 32, &key) == 0);
    void *other = NULL, *popped, *registered;
    device_at elsewhere, small;
    int two = !cu_retain(&other, 1);
    if (two) {
        CU(cu_push(other));
        CU(cu_alloc(&elsewhere, 8192));
        CU(cu_pop(&popped));
    }
    CU(cu_alloc(&small, 512));
    CU(cu_pin(&registered, 8192, 0));
#define TRY(field, change) do { struct wattlock_gpu_messages m = some(); change; \
    say(wattlock_gpu_open_messages(key, &m, stream), field); } while (0)
    long long launches = seen("launches");
    TRY("input", m.input.at = 0);
    TRY("output", m.output.at = (uint64_t)(uintptr_t)host);
    TRY("input", m.input.at = (uint64_t)(uintptr_t)registered);
    if (two) TRY("nonces", m.nonces.at = elsewhere);
    TRY("results", m.results.at += 2);
    TRY("input", m.input.at = small);
    TRY("output", m.output.bytes = 100);
    TRY("output", m.output.at = m.input.at + 16);
    TRY("results", m.results.at = m.tags.at);
    TRY("input_stride", m.input_stride = 1007);
    TRY("output_stride", m.output_stride = 16);
    TRY("nonces", m.nonces.bytes = 4 * 16);
    TRY("tags", m.tags.bytes = 5 * 16 - 1);
    TRY("results", m.results.bytes = 19);
    TRY("last_length", m.last_length = 2000);
    TRY("aad", (m.aad_length = 13, m.aad.at = 0));
    TRY("size", m.size = 8);
    say(wattlock_gpu_open_messages(key, NULL, stream), "messages");
    say(wattlock_gpu_open_messages(NULL, &(struct wattlock_gpu_messages){0}, stream), "key");
    say(wattlock_gpu_key_new(gpu, "aes-256-gcm", raw, 32, NULL), "out");
    say(wattlock_gpu_key_new(gpu, NULL, raw, 32, &none), "algorithm");
    MUST(wattlock_gpu_key_new(gpu, "rot13", raw, 32, &none) == WATTLOCK_GPU_REFUSED && !none);
    MUST(wattlock_gpu_key_new(gpu, "aes-256-gcm", raw, 31, &none) == WATTLOCK_GPU_REFUSED && !none);
    say(wattlock_gpu_write(gpu, small, host, 513), "destination");
    say(wattlock_gpu_read(gpu, (uint64_t)(uintptr_t)host, host, 16), "source");
    MUST(wattlock_gpu_open(7, (wattlock_gpu **)&none) == WATTLOCK_GPU_ABSENT);
    wattlock_gpu_memory *memory;
    struct DLManagedTensor *tensor;
    int64_t shape[2] = {4, 4};
    MUST(wattlock_gpu_memory_new(gpu, 64, &memory) == 0);
    say(wattlock_gpu_tensor(memory, 1, 2, 32, shape, 2, &tensor), "memory");
    say(wattlock_gpu_tensor(memory, 2, 2, 32, shape, 1, &tensor), "offset");
    say(wattlock_gpu_tensor(memory, 0, 2, 4, shape, 2, &tensor), "bits");
    say(wattlock_gpu_tensor(memory, 0, 2, 32, NULL, 2, &tensor), "shape");
    wattlock_gpu_memory_free(memory);
    /* Nothing was touched: no kernel ran. */
    MUST(seen("launches") == launches);
    wattlock_gpu_key_free(key);
    set(small, 0, 512);
    memset(registered, 0, 8192);
    CU(cu_free(small));
    CU(cu_unpin(registered));
    if (two) {
        CU(cu_push(other));
        CU(cu_free(elsewhere));
        CU(cu_pop(&popped));
        CU(cu_release(1));
    }
}

static void load(wattlock_gpu *gpu, const char *path, const char *identity, const char *expected) {
    wattlock_file *file;
    int code = wattlock_file_open(path, identity, &file);
    if (code) {
        printf("open: code %d, exit %d, %s\n", code, wattlock_gpu_exit_code(), wattlock_gpu_error());
        return;
    }
    uint64_t length = wattlock_file_length(file), room = length ? length : 1;
    wattlock_gpu_memory *memory;
    unsigned char *plain = malloc(room + 1), *found = malloc(room);
    MUST(wattlock_gpu_memory_new(gpu, room, &memory) == 0);
    uint64_t at = wattlock_gpu_memory_at(memory);
    if (length) {
        say(wattlock_file_load(file, gpu, at, length - 1, stream), "room");
        say(wattlock_file_load(file, gpu, (uint64_t)(uintptr_t)plain, length, stream), "to");
        /* Work of the program's own that is still under way. */
        CU(cu_set(at, 0x77, room, stream));
    }
    code = wattlock_file_load(file, gpu, at, room, stream);
    if (code)
        printf("load: code %d, exit %d, %s\n", code, wattlock_gpu_exit_code(), wattlock_gpu_error());
    else
        printf("loaded %llu\n", (unsigned long long)length);
    tell("flip=0,launch_error=0");
    /* A device that is lost is asked nothing more. */
    if (code == WATTLOCK_GPU_LOST) exit(0);
    for (uint64_t done = 0; done < length; done += ROOM)
        get(found + done, at + done, length - done < ROOM ? length - done : ROOM);
    FILE *stored = fopen(expected, "rb");
    MUST(stored && fread(plain, 1, room + 1, stored) == length);
    fclose(stored);
    if (code) memset(plain, 0, room);
    for (uint64_t i = 0; i < length; i++)
        if (plain[i] != found[i]) {
            fprintf(stderr, "byte %llu is %02x, not %02x\n", (unsigned long long)i, found[i], plain[i]);
            exit(1);
        }
    free(plain);
    free(found);
    wattlock_gpu_memory_free(memory);
    wattlock_file_close(file);
}

int main(int count, char **arguments) {
    MUST(count > 1 && wattlock_gpu_abi() == WATTLOCK_GPU_ABI);
    driver();
    void *context, *current;
    CU(cu_retain(&context, 0));
    CU(cu_push(context));
    CU(cu_stream(&stream, 1));
    CU(cu_pin(&pinned, ROOM, 0));
    CU(cu_alloc(&base, 32768));
    wattlock_gpu *gpu;
    char about[200];
    if (wattlock_gpu_open(0, &gpu)) {
        printf("absent: %s\n", wattlock_gpu_error());
        return 0;
    }
    MUST(wattlock_gpu_about(gpu, about, sizeof about) < sizeof about);
    fprintf(stderr, "%s\n", about);
    if (!strcmp(arguments[1], "messages")) messages(gpu);
    else if (!strcmp(arguments[1], "refused")) refused(gpu);
    else if (!strcmp(arguments[1], "load") && count == 5) load(gpu, arguments[2], arguments[3], arguments[4]);
    else MUST(!"a known mode");
    /* The thread's context is the program's still. */
    CU(cu_current(&current));
    MUST(current == context);
    wattlock_gpu_close(gpu);
    set(base, 0, 32768);
    memset(pinned, 0, ROOM);
    CU(cu_free(base));
    CU(cu_unpin(pinned));
    CU(cu_stream_end(stream));
    CU(cu_pop(&current));
    CU(cu_release(0));
    if (seen("live") || seen("unwiped") || seen("wrong")) {
        fprintf(stderr, "left: live %lld, unwiped %lld, wrong %lld\n", seen("live"), seen("unwiped"), seen("wrong"));
        return 1;
    }
    if (seen("integers")) puts("without clmad");
    puts("clean");
    return 0;
}

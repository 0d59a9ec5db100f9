// A stand-in for NVIDIA's driver: the functions of its C interface that the engine calls, over host threads and memory.
// Linked with the kernels' host library (gpu/host). It is no hardware, and says so in the device's name.
//
// A stream is a thread with a queue; device memory is memory of this process, filled with 0xa5 when it is given out, as
// a GPU does not clear it either. It can be told to misbehave, by the environment variable WATTLOCK_STANDIN or by
// wl_standin_set(): "name=number" pairs, separated by commas.
//
//   init version devices capability clock   what these calls return (capability: 90 is 9.0; the clock is in kHz)
//   memory                            bytes of device memory there are
//   launch_error                      the error that each launch from launch number `after` on returns
//   lost                              from launch number `after` on every call returns 719, and nothing is done
//   hang                              from launch number `after` on no stream does anything
//   flip                              each copy back from launch number `after` on has a bit flipped
//   after                             see above; launches count from 0
//   clmad                             the two kernels that use clmad give wrong tags
//   idle                              kernels and copies are not done: for the engine's own time
//
// wl_standin_count() says what it has seen: "live" (allocations, streams, events, modules and context shares that were
// not given back), "unwiped" (bytes of memory given back that were neither zero nor as they were given out), "launches",
// "integers" (launches of kernels that do without clmad),
// "wrong" (copies, memsets and handles outside of what there is), "dirty" (bytes of host memory not given back that are
// neither zero nor as they were given out), "released" (context shares given back).
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../../../../gpu/kernels/wattlock_gpu.h"

namespace {

constexpr unsigned char POISON = 0xa5;

struct Allocation {
    size_t bytes;
    int device;  // -1: pinned host memory
};

struct Stream {
    std::mutex lock;
    std::condition_variable more;
    std::deque<std::function<void()>> queue;
    bool ended = false;
    std::thread thread;
};

struct Event {
    std::mutex lock;
    uint64_t recorded = 0, done = 0;
};

// A handle is a pointer to one of these: an event may be destroyed while a stream still has to record it.
using SharedEvent = std::shared_ptr<Event>;

struct Driver {
    std::mutex lock;
    std::map<std::string, long long> told{{"version", 13000}, {"devices", 1}, {"capability", 90}, {"clock", 1980000}, {"memory", 1ll << 34}};
    std::map<std::string, long long> seen;
    std::map<uintptr_t, Allocation> memory;
    size_t used = 0;
    std::set<void *> alive;
    std::set<Stream *> streams;
};

Driver &driver() {
    static Driver *one = new Driver;  // never destroyed: threads may outlive main
    return *one;
}

void tell(const char *text) {
    Driver &d = driver();
    std::lock_guard<std::mutex> held(d.lock);
    std::string all(text);
    for (size_t at = 0; at < all.size();) {
        size_t end = std::min(all.find(',', at), all.size());
        std::string pair = all.substr(at, end - at);
        size_t equals = pair.find('=');
        if (equals != std::string::npos) d.told[pair.substr(0, equals)] = atoll(pair.c_str() + equals + 1);
        at = end + 1;
    }
}

long long told(const char *name) {
    Driver &d = driver();
    std::lock_guard<std::mutex> held(d.lock);
    auto found = d.told.find(name);
    return found == d.told.end() ? 0 : found->second;
}

void count(const char *name, long long by = 1) {
    Driver &d = driver();
    std::lock_guard<std::mutex> held(d.lock);
    d.seen[name] += by;
}

long long seen(const char *name) {
    Driver &d = driver();
    std::lock_guard<std::mutex> held(d.lock);
    return d.seen[name];
}

// Whether a fault that begins with a launch has begun.
bool struck(const char *fault) { return told(fault) && seen("launches") > told("after"); }
bool lost() { return struck("lost"); }

#define CALL                   \
    do {                       \
        if (lost()) return 719; \
    } while (0)

// Whether all of these bytes are within one allocation.
bool within(uintptr_t at, size_t bytes) {
    Driver &d = driver();
    std::lock_guard<std::mutex> held(d.lock);
    auto after = d.memory.upper_bound(at);
    if (after == d.memory.begin()) return false;
    auto found = std::prev(after);
    return at + bytes <= found->first + found->second.bytes;
}

int wrong() {
    count("wrong");
    return 1;
}

bool is_alive(void *handle) {
    Driver &d = driver();
    std::lock_guard<std::mutex> held(d.lock);
    return d.alive.count(handle) > 0;
}

void born(void *handle) {
    Driver &d = driver();
    std::lock_guard<std::mutex> held(d.lock);
    d.alive.insert(handle);
    d.seen["live"]++;
}

bool died(void *handle) {
    Driver &d = driver();
    std::lock_guard<std::mutex> held(d.lock);
    if (!d.alive.erase(handle)) return false;
    d.seen["live"]--;
    return true;
}

// Contexts: one a device, and a stack of them for each thread.
char contexts[8];
thread_local std::vector<void *> current;

int device_of(void *context) { return (int)((char *)context - contexts); }

bool is_context(void *context) { return context >= (void *)contexts && context < (void *)(contexts + sizeof contexts); }

int give(void **to, size_t bytes, bool on_device) {
    Driver &d = driver();
    std::lock_guard<std::mutex> held(d.lock);
    if (current.empty()) return 201;
    if (on_device && d.used + bytes > (size_t)d.told["memory"]) return 2;
    void *at = aligned_alloc(512, (bytes + 511) / 512 * 512);
    if (!at) return 2;
    memset(at, POISON, bytes);
    d.memory[(uintptr_t)at] = {bytes, on_device ? device_of(current.back()) : -1};
    if (on_device) d.used += bytes;
    d.seen["live"]++;
    *to = at;
    return 0;
}

int take(void *at, bool on_device) {
    Driver &d = driver();
    std::lock_guard<std::mutex> held(d.lock);
    auto found = d.memory.find((uintptr_t)at);
    if (found == d.memory.end()) {
        d.seen["wrong"]++;
        return 1;
    }
    const unsigned char *bytes = (const unsigned char *)at;
    size_t size = found->second.bytes;
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != 0 && bytes[i] != POISON && d.seen["unwiped"]++ < 4)
            fprintf(stderr, "unwiped: byte %zu of %zu, %s\n", i, size, on_device ? "device" : "host");
    if (on_device) d.used -= size;
    d.memory.erase(found);
    d.seen["live"]--;
    free(at);
    return 0;
}

long long dirty() {
    Driver &d = driver();
    std::lock_guard<std::mutex> held(d.lock);
    long long bytes = 0;
    for (const auto &[at, allocation] : d.memory)
        for (size_t i = 0; allocation.device < 0 && i < allocation.bytes; i++) {
            unsigned char byte = ((const unsigned char *)at)[i];
            bytes += byte != 0 && byte != POISON;
        }
    return bytes;
}

void work(Stream *stream) {
    for (;;) {
        std::function<void()> next;
        {
            std::unique_lock<std::mutex> held(stream->lock);
            stream->more.wait(held, [&] { return stream->ended || !stream->queue.empty(); });
            if (stream->queue.empty()) return;
            next = std::move(stream->queue.front());
            stream->queue.pop_front();
        }
        if (struck("hang") || lost()) continue;
        next();
    }
}

// The default stream, which is there without being created, and never ends.
Stream *default_stream() {
    static Stream *one = [] {
        Stream *stream = new Stream;
        stream->thread = std::thread(work, stream);
        return stream;
    }();
    return one;
}

int push(void *handle, std::function<void()> what) {
    if (handle && !is_alive(handle)) return wrong();
    Stream *stream = handle ? (Stream *)handle : default_stream();
    std::lock_guard<std::mutex> held(stream->lock);
    stream->queue.push_back(std::move(what));
    stream->more.notify_one();
    return 0;
}

}  // namespace

extern "C" {

void wl_standin_set(const char *text) { tell(text); }
long long wl_standin_count(const char *name) { return strcmp(name, "dirty") ? seen(name) : dirty(); }

int cuInit(unsigned) {
    if (const char *text = getenv("WATTLOCK_STANDIN")) tell(text);
    return (int)told("init");
}
int cuDriverGetVersion(int *version) {
    *version = (int)told("version");
    return 0;
}
int cuDeviceGetCount(int *number) {
    *number = (int)told("devices");
    return 0;
}
int cuDeviceGet(int *device, int ordinal) {
    if (ordinal < 0 || ordinal >= told("devices")) return 101;
    *device = ordinal;
    return 0;
}
int cuDeviceGetName(char *name, int len, int) {
    strncpy(name, "stand-in, not hardware", (size_t)len);
    return 0;
}
int cuDeviceGetPCIBusId(char *bus, int len, int device) {
    return snprintf(bus, (size_t)len, "0000:1%x:00.0", device) < len ? 0 : 1;
}
int cuDeviceGetAttribute(int *value, int attribute, int) {
    int capability = (int)told("capability");
    switch (attribute) {
    case 10: *value = 32; break;                  /* threads of a warp */
    case 13: *value = (int)told("clock"); break;  /* kHz */
    case 16: *value = 4; break;                   /* multiprocessors */
    case 75: *value = capability / 10; break;
    case 76: *value = capability % 10; break;
    default: return 1;
    }
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int) {
    *bytes = (size_t)told("memory");
    return 0;
}
int cuDevicePrimaryCtxRetain(void **to, int device) {
    CALL;
    *to = contexts + device;
    count("live");
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) {
    count("live", -1);
    count("released");
    return lost() ? 719 : 0;
}
int cuCtxSetCurrent(void *to) {
    CALL;
    if (!is_context(to)) return wrong();
    if (current.empty()) current.push_back(to);
    current.back() = to;
    return 0;
}
int cuCtxGetCurrent(void **to) {
    *to = current.empty() ? nullptr : current.back();
    return 0;
}
int cuCtxPushCurrent_v2(void *to) {
    CALL;
    if (!is_context(to)) return wrong();
    current.push_back(to);
    return 0;
}
int cuCtxPopCurrent_v2(void **to) {
    if (current.empty()) return wrong();
    *to = current.back();
    current.pop_back();
    return 0;
}
int cuCtxSynchronize() {
    CALL;
    std::vector<Stream *> streams;
    {
        Driver &d = driver();
        std::lock_guard<std::mutex> held(d.lock);
        streams.assign(d.streams.begin(), d.streams.end());
    }
    streams.push_back(default_stream());
    for (Stream *stream : streams) {
        auto done = std::make_shared<std::promise<void>>();
        {
            std::lock_guard<std::mutex> held(stream->lock);
            stream->queue.push_back([done] { done->set_value(); });
            stream->more.notify_one();
        }
        // A stream that hangs is not waited for: this is no hardware.
        done->get_future().wait_for(std::chrono::seconds(5));
    }
    return 0;
}
int cuPointerGetAttribute(void *to, int attribute, uint64_t at) {
    CALL;
    Driver &d = driver();
    std::lock_guard<std::mutex> held(d.lock);
    auto after = d.memory.upper_bound(at);
    if (after == d.memory.begin()) return 1;
    auto found = std::prev(after);
    if (at >= found->first + found->second.bytes) return 1;
    switch (attribute) {
        case 2: *(unsigned *)to = found->second.device < 0 ? 1 : 2; return 0;
        case 9: *(int *)to = std::max(found->second.device, 0); return 0;
        case 11: *(uint64_t *)to = found->first; return 0;
        case 12: *(size_t *)to = found->second.bytes; return 0;
    }
    return 1;
}
int cuModuleLoadData(void **to, const void *image) {
    CALL;
    if (strcmp((const char *)image, "stand-in") != 0) return 209;
    *to = new char;
    born(*to);
    return 0;
}
int cuModuleUnload(void *module) {
    CALL;
    if (!died(module)) return wrong();
    delete (char *)module;
    return 0;
}
int cuModuleGetFunction(void **to, void *module, const char *name) {
    CALL;
    if (!is_alive(module)) return wrong();
    for (const char *const *known = wl_host_kernels(); *known; known++)
        if (!strcmp(*known, name)) {
            *to = (void *)*known;
            return 0;
        }
    return 500;
}
int cuMemAlloc_v2(uint64_t *to, size_t bytes) {
    CALL;
    void *at = nullptr;
    int code = give(&at, bytes, true);
    *to = (uintptr_t)at;
    return code;
}
int cuMemFree_v2(uint64_t at) {
    CALL;
    return take((void *)at, true);
}
int cuMemHostAlloc(void **to, size_t bytes, unsigned) {
    CALL;
    return give(to, bytes, false);
}
int cuMemFreeHost(void *at) {
    CALL;
    return take(at, false);
}
int cuStreamCreate(void **to, unsigned) {
    CALL;
    Stream *stream = new Stream;
    stream->thread = std::thread(work, stream);
    born(stream);
    {
        Driver &d = driver();
        std::lock_guard<std::mutex> held(d.lock);
        d.streams.insert(stream);
    }
    *to = stream;
    count("streams");
    return 0;
}
int cuStreamDestroy_v2(void *handle) {
    CALL;
    if (!died(handle)) return wrong();
    Stream *stream = (Stream *)handle;
    {
        Driver &d = driver();
        std::lock_guard<std::mutex> held(d.lock);
        d.streams.erase(stream);
    }
    {
        std::lock_guard<std::mutex> held(stream->lock);
        stream->ended = true;
        stream->more.notify_one();
    }
    stream->thread.join();
    delete stream;
    return 0;
}
int cuEventCreate(void **to, unsigned) {
    CALL;
    *to = new SharedEvent(std::make_shared<Event>());
    born(*to);
    return 0;
}
int cuEventDestroy_v2(void *handle) {
    CALL;
    if (!died(handle)) return wrong();
    delete (SharedEvent *)handle;
    return 0;
}
int cuEventRecord(void *handle, void *stream) {
    CALL;
    if (!is_alive(handle)) return wrong();
    SharedEvent event = *(SharedEvent *)handle;
    uint64_t number;
    {
        std::lock_guard<std::mutex> held(event->lock);
        number = ++event->recorded;
    }
    return push(stream, [event, number] {
        std::lock_guard<std::mutex> held(event->lock);
        event->done = number;
    });
}
int cuEventQuery(void *handle) {
    CALL;
    if (!is_alive(handle)) return wrong();
    SharedEvent event = *(SharedEvent *)handle;
    std::lock_guard<std::mutex> held(event->lock);
    return event->done == event->recorded ? 0 : 600;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    CALL;
    if (!within(to, bytes) || !within((uintptr_t)from, bytes)) return wrong();
    if (told("idle")) return push(stream, [] {});
    return push(stream, [=] { memcpy((void *)to, from, bytes); });
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    CALL;
    if (!within(from, bytes) || !within((uintptr_t)to, bytes)) return wrong();
    if (told("idle")) return push(stream, [] {});
    bool flip = struck("flip");
    return push(stream, [=] {
        memcpy(to, (const void *)from, bytes);
        // Past tags and results, in the messages. Every kibibyte, so that whichever message is checked has one.
        if (flip)
            for (size_t at = bytes > 2048 ? 1024 : bytes / 2; at < bytes; at += 1024) ((unsigned char *)to)[at] ^= 4;
    });
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    CALL;
    if (!within(to, bytes) || !within(from, bytes)) return wrong();
    if (told("idle")) return push(stream, [] {});
    return push(stream, [=] { memmove((void *)to, (const void *)from, bytes); });
}
#ifndef WITHOUT_MEMSET
int cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, void *stream) {
    CALL;
    if (!within(at, bytes)) return wrong();
    if (told("idle")) return push(stream, [] {});
    return push(stream, [=] { memset((void *)at, value, bytes); });
}
#endif
int cuLaunchKernel(void *function, unsigned grid, unsigned y, unsigned z, unsigned block, unsigned by, unsigned bz,
                   unsigned, void *stream, void **parameters, void **) {
    CALL;
    if (y != 1 || z != 1 || by != 1 || bz != 1) return wrong();
    count("launches");
    CALL;
    if (struck("launch_error")) return (int)told("launch_error");
    wl_run run;
    memcpy(&run, parameters[0], sizeof run);
    const char *name = (const char *)function;
    if (!strcmp(name + strlen(name) - 2, "_i")) count("integers");
    if (told("idle")) return push(stream, [] {});
    return push(stream, [=] {
        if (wl_host_launch(name, grid, 0, grid, block, &run)) count("wrong");
        bool of_clmad = !strcmp(name, "wl_aes_gcm_seal") || !strcmp(name, "wl_aes_ghash");
        // What each message's tag is masked with lies at the beginning of scratch.
        for (unsigned m = 0; of_clmad && told("clmad") && m < run.messages; m++)
            *(unsigned char *)(run.scratch + 16 * (uint64_t)m) ^= 1;
    });
}

}  // extern "C"

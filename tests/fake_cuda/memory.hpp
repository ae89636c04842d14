// Device memory: host memory behind addresses that the host cannot read.
//
// A device pointer lies in a range that is never mapped; what it points to lies at the same place of another range (its
// shadow), which only kernels, copies and the libraries' doubles reach (but see FAKE_CUDA_READABLE). Allocations end at
// pages that are not mapped either, addresses are never given out again, and what is new is filled with NaN: a wild,
// late or early access ends the process or shows in a result.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

namespace memory {

constexpr size_t SPACE = size_t(1) << 38;
constexpr size_t PAGE = 4096;
// As cuMemAlloc's addresses are aligned.
constexpr size_t ALIGNMENT = 256;
constexpr size_t POISONED = size_t(1) << 28;
constexpr unsigned char POISON = 0xff;
constexpr unsigned char RED = 0xcb;

struct Allocation {
    size_t bytes;
    // Of another process: opened, not to be freed.
    void *opened;
};

struct Space {
    char *device, *shadow;
    int file;
    // Where the next allocation begins.
    size_t next = PAGE;
    size_t used = 0, peak = 0;
    std::map<char *, Allocation> live;
    // Pinned host memory.
    std::map<char *, size_t> pinned;
};

inline Space &space() {
    static Space *it = [] {
        Space *made = new Space;
        made->file = memfd_create("device memory", MFD_CLOEXEC);
        const bool sized = made->file >= 0 && ftruncate(made->file, SPACE) == 0;
        const int flags = MAP_NORESERVE;
        const char *text = getenv("FAKE_CUDA_READABLE");
        const char readable = text ? *text : '0';
        const int device = readable == '2' ? PROT_READ | PROT_WRITE : PROT_NONE;
        made->device = (char *)mmap(nullptr, SPACE, device, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
        made->shadow = (char *)mmap(nullptr, SPACE, PROT_NONE, MAP_SHARED | flags, made->file, 0);
        if (!sized || made->device == MAP_FAILED || made->shadow == MAP_FAILED) {
            perror("fake CUDA: no room for device memory");
            abort();
        }
        if (readable == '1') made->device = made->shadow;
        return made;
    }();
    return *it;
}

inline size_t up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

inline bool is_device(const void *address) {
    const Space &s = space();
    return address >= s.device && address < s.device + SPACE;
}

inline char *shadow_of(const void *device) { return space().shadow + ((const char *)device - space().device); }

// A new range, its end at the end of a page (but for what the alignment leaves); null: the space is used up.
inline char *allocate(size_t bytes) {
    Space &s = space();
    const size_t room = up(bytes, ALIGNMENT), pages = up(room, PAGE);
    if (s.next + pages + PAGE > SPACE) return nullptr;
    char *device = s.device + s.next + pages - room;
    if (mprotect(s.shadow + s.next, pages, PROT_READ | PROT_WRITE) != 0) return nullptr;
    s.next += pages + PAGE;
    char *at = shadow_of(device);
    if (bytes <= POISONED) memset(at, POISON, bytes);
    memset(at + bytes, RED, room - bytes);
    s.live[device] = {bytes, nullptr};
    s.used += bytes;
    if (s.used > s.peak) s.peak = s.used;
    return device;
}

// Ends the process where somebody has written behind an allocation.
inline void check(const char *device, size_t bytes) {
    const char *at = shadow_of(device);
    for (size_t i = bytes; i < up(bytes, ALIGNMENT); ++i)
        if ((unsigned char)at[i] != RED) {
            fprintf(stderr, "fake CUDA: byte %zu of an allocation of %zu bytes was written\n", i, bytes);
            abort();
        }
}

inline bool release(char *device) {
    Space &s = space();
    const auto found = s.live.find(device);
    if (found == s.live.end()) return false;
    const size_t bytes = found->second.bytes, pages = up(up(bytes, ALIGNMENT), PAGE);
    char *end = device + up(bytes, ALIGNMENT), *first = end - pages;
    check(device, bytes);
    char *at = shadow_of(first);
    madvise(at, pages, MADV_REMOVE);
    mprotect(at, pages, PROT_NONE);
    s.used -= bytes;
    s.live.erase(found);
    return true;
}

// See `fake_address`.
inline void *address(const void *pointer, size_t bytes) {
    Space &s = space();
    char *at = (char *)pointer;
    if (is_device(pointer)) {
        auto after = s.live.upper_bound(at);
        if (after == s.live.begin()) return nullptr;
        --after;
        const Allocation &own = after->second;
        if (at + bytes > after->first + own.bytes) return nullptr;
        return own.opened ? (char *)own.opened + (at - after->first) : shadow_of(at);
    }
    auto after = s.pinned.upper_bound(at);
    if (after == s.pinned.begin()) return nullptr;
    --after;
    return at + bytes <= after->first + after->second ? at : nullptr;
}

} // namespace memory

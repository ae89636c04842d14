// libcuda.so.1, as far as dltrain calls it. README.md says what can be asked of it.
#include <cstdio>
#include <ctime>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <string>

#include "fake.hpp"
#include "memory.hpp"
#include "stream.hpp"

extern "C" const char *kernel_arguments(const char *name);
extern "C" bool kernel_run(const char *name, const unsigned *grid, const unsigned *block, void **arguments,
                           bool descending);

namespace {

enum Code {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901,
    STREAM_CAPTURE_UNJOINED = 904,
    UNKNOWN = 999,
};

struct Name {
    int code;
    const char *name, *words;
};

const Name NAMES[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain."},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {STREAM_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
     "capturing stream has unjoined work"},
    {UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

long number(const char *variable, long otherwise) {
    const char *text = getenv(variable);
    return text && *text ? atol(text) : otherwise;
}

size_t total_memory() { return size_t(number("FAKE_CUDA_MEMORY", 8L << 30)); }

int driver_version() { return int(number("FAKE_CUDA_DRIVER", 13000)); }

// The device numbers that CUDA_VISIBLE_DEVICES leaves: up to the first one that does not exist.
std::vector<int> visible() {
    const int there = int(number("FAKE_CUDA_DEVICES", 1));
    std::vector<int> devices;
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    for (int i = 0; !text && i < there; ++i) devices.push_back(i);
    while (text && *text) {
        char *end;
        const long device = strtol(text, &end, 10);
        if (end == text || device < 0 || device >= there) break;
        devices.push_back(int(device));
        text = *end == ',' ? end + 1 : end;
    }
    return devices;
}

std::recursive_mutex &one_at_a_time() {
    static std::recursive_mutex *it = new std::recursive_mutex;
    return *it;
}

bool initialised = false;
thread_local int current_device = -1;
// After an illegal access a context is of no more use.
int poisoned = SUCCESS;

struct Module {
    std::string text;
};

struct Function {
    std::string name, arguments;
    // Whether it waits for what is in front of it before anything else.
    bool waits;
};

// CUlaunchAttribute and CUlaunchConfig.
struct Attribute {
    int id;
    char padding[4];
    union {
        char bytes[64];
        int flag;
    } value;
};
const int PROGRAMMATIC_STREAM_SERIALIZATION = 6;

struct Configuration {
    unsigned grid[3], block[3], shared;
    void *stream;
    const Attribute *attributes;
    unsigned count;
};

struct Executable {
    std::vector<stream::Node> nodes;
    // Where all but the first branch run.
    std::vector<stream::Stream *> branches;
};

// A handle that a call gave out, and that another one has not taken back.
std::set<void *> &handles() {
    static std::set<void *> *it = new std::set<void *>;
    return *it;
}

template <class T> T *made(T *object) {
    handles().insert(object);
    return object;
}

bool is(void *handle) { return handles().count(handle) != 0; }

// Reads or writes of a copy: null where the range is not all device memory, or pinned.
bool ranges(const void *address, size_t bytes) { return bytes == 0 || memory::address(address, bytes) != nullptr; }

bool pageable(const void *host, size_t bytes) { return memory::address(host, bytes) == nullptr; }

// What a kernel moves, by a rule of thumb: a number of four bytes for each pointer and each element, of which it has as
// many as its longest count says, or as there are threads.
double kernel_bytes(const std::string &arguments, const std::vector<uint64_t> &values, double threads) {
    double elements = threads, pointers = 0;
    for (size_t i = 0; i < arguments.size(); ++i) {
        if (arguments[i] == 'p' && values[i] != 0) ++pointers;
        if (arguments[i] == 'l' && values[i] < (uint64_t(1) << 40)) elements = std::max(elements, double(values[i]));
    }
    return 4 * pointers * elements;
}

// A name that stays.
const char *kernel_name_of(const std::string &name) {
    static std::set<std::string> *names = new std::set<std::string>;
    return names->insert(name).first->c_str();
}

// The host's own time, in ns.
int64_t host_time() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// The point behind all that is in a stream.
std::shared_ptr<stream::Point> marked(stream::Stream *in) {
    const auto point = std::make_shared<stream::Point>();
    point->of = in;
    stream::put(in, [point, in] {
        point->reached = true;
        point->time = in->time;
        point->real = host_time();
        clock_stops_at(point->time);
    });
    return point;
}

// What is put into a stream from now on waits for a point.
void await(stream::Stream *in, const std::shared_ptr<stream::Point> &point) {
    stream::put(in, [point, in] {
        const bool reached = stream::reach(point);
        if (reached) in->time = std::max(in->time, point->time);
        return reached;
    });
}

// Copies in the order of the stream. To pageable memory of the host it is done before the call returns. From there it
// need not be: a GPU may read it when the copy's turn has come. With FAKE_CUDA_DELAYED it does so, and what was changed
// or freed by then ends the process.
int copy(void *to, const void *from, size_t bytes, void *handle, const void *host) {
    stream::Stream *in = stream::of(handle);
    if (!in) return INVALID_HANDLE;
    const int64_t takes = host ? clock_copy(bytes) : clock_kernel(2.0 * bytes, 0);
    const bool waits = host && pageable(host, bytes);
    const char *what = !host ? "copy" : waits ? "pageable" : memory::is_device(to) ? "upload" : "download";
    const bool late = stream::delayed() && host && memory::is_device(to) && !in->capture;
    const auto given = late ? std::make_shared<std::string>((const char *)from, bytes) : nullptr;
    const stream::Work work([=] {
        void *target = memory::is_device(to) ? memory::address(to, bytes) : to;
        const void *source = memory::is_device(from) ? memory::address(from, bytes) : from;
        if (target == nullptr || source == nullptr) {
            poisoned = ILLEGAL_ADDRESS;
            return;
        }
        if (given && memcmp(given->data(), source, bytes) != 0) {
            fprintf(stderr, "fake CUDA: %zu bytes were changed or freed before they were copied to the GPU\n", bytes);
            abort();
        }
        memmove(target, source, bytes);
    });
    stream::put(in, work.called(what, takes, bytes));
    if (waits && !late && !in->capture) stream::drain(in);
    return poisoned;
}

} // namespace

#define DRIVER(name)                                                                                                   \
    CALL(#name, UNKNOWN);                                                                                              \
    const std::lock_guard<std::recursive_mutex> held(one_at_a_time());                                                 \
    if (poisoned) return poisoned

// A call that needs a context.
#define IN_CONTEXT(name)                                                                                               \
    DRIVER(name);                                                                                                      \
    if (!initialised) return NOT_INITIALIZED;                                                                          \
    if (current_device < 0) return INVALID_CONTEXT

// A call that waits or allocates, which spoils a capture.
#define OUTSIDE_CAPTURE(name)                                                                                          \
    IN_CONTEXT(name);                                                                                                  \
    if (stream::spoiled()) return STREAM_CAPTURE_UNSUPPORTED

extern "C" {

void *fake_address(const void *device, size_t bytes) {
    const std::lock_guard<std::recursive_mutex> held(one_at_a_time());
    return memory::address(device, bytes);
}

int fake_enqueue(void *handle, const char *what, double bytes, double operations, std::function<void()> *work) {
    const std::lock_guard<std::recursive_mutex> held(one_at_a_time());
    stream::Stream *in = stream::of(handle);
    if (!in) return INVALID_HANDLE;
    stream::put(in, stream::Work(*work).called(what, clock_kernel(bytes, operations), size_t(bytes)));
    return poisoned;
}

int fake_enqueue_waiting(void *handle, std::function<bool()> *work) {
    const std::lock_guard<std::recursive_mutex> held(one_at_a_time());
    stream::Stream *in = stream::of(handle);
    if (!in) return INVALID_HANDLE;
    if (in->capture) return in->broken = true, STREAM_CAPTURE_UNSUPPORTED;
    stream::put(in, *work);
    return poisoned;
}

void fake_fault(const char *what) {
    fprintf(stderr, "fake CUDA: %s reaches beyond device memory\n", what);
    poisoned = ILLEGAL_ADDRESS;
}

int64_t fake_time(void *handle, int64_t until) {
    const std::lock_guard<std::recursive_mutex> held(one_at_a_time());
    stream::Stream *in = stream::of(handle);
    return in ? in->time = std::max(in->time, until) : 0;
}

bool fake_is_stream(void *handle) {
    const std::lock_guard<std::recursive_mutex> held(one_at_a_time());
    return stream::of(handle) != nullptr;
}

// ---- devices ----

int cuInit(unsigned flags) {
    DRIVER(cuInit);
    if (flags != 0) return INVALID_VALUE;
    if (visible().empty()) return NO_DEVICE;
    initialised = true;
    return SUCCESS;
}

int cuDriverGetVersion(int *version) {
    DRIVER(cuDriverGetVersion);
    *version = driver_version();
    return SUCCESS;
}

int cuGetErrorName(int code, const char **text) {
    for (const Name &known : NAMES)
        if (known.code == code) return *text = known.name, SUCCESS;
    return *text = nullptr, INVALID_VALUE;
}

int cuGetErrorString(int code, const char **text) {
    for (const Name &known : NAMES)
        if (known.code == code) return *text = known.words, SUCCESS;
    return *text = nullptr, INVALID_VALUE;
}

int cuDeviceGetCount(int *count) {
    DRIVER(cuDeviceGetCount);
    if (!initialised) return NOT_INITIALIZED;
    *count = int(visible().size());
    return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal) {
    DRIVER(cuDeviceGet);
    if (!initialised) return NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= int(visible().size())) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

int cuDeviceGetName(char *name, int bytes, int device) {
    DRIVER(cuDeviceGetName);
    if (device < 0 || device >= int(visible().size())) return INVALID_DEVICE;
    snprintf(name, bytes, "Fake GPU %d", visible()[device]);
    return SUCCESS;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    DRIVER(cuDeviceTotalMem_v2);
    if (device < 0 || device >= int(visible().size())) return INVALID_DEVICE;
    *bytes = total_memory();
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    DRIVER(cuDeviceGetAttribute);
    if (device < 0 || device >= int(visible().size())) return INVALID_DEVICE;
    switch (attribute) {
    case 1: *value = 1024; break;                  // threads a block
    case 8: *value = 48 << 10; break;              // shared memory a block
    case 10: *value = 32; break;                   // warp
    case 13: *value = 1000000; break;              // clock, kHz
    case 16: *value = 2; break;                    // multiprocessors
    case 33: *value = 1 + visible()[device]; break; // PCI bus
    case 34: case 50: *value = 0; break;           // PCI device, domain
    case 39: *value = 2048; break;                 // threads a multiprocessor
    case 41: *value = 1; break;                    // unified addressing
    case 75: *value = int(number("FAKE_CUDA_CAPABILITY", 90)) / 10; break;
    case 76: *value = int(number("FAKE_CUDA_CAPABILITY", 90)) % 10; break;
    default: *value = 0;
    }
    return SUCCESS;
}

int cuDeviceGetPCIBusId(char *text, int bytes, int device) {
    DRIVER(cuDeviceGetPCIBusId);
    if (device < 0 || device >= int(visible().size())) return INVALID_DEVICE;
    snprintf(text, bytes, "0000:%02x:00.0", 1 + visible()[device]);
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    DRIVER(cuDevicePrimaryCtxRetain);
    if (!initialised) return NOT_INITIALIZED;
    if (device < 0 || device >= int(visible().size())) return INVALID_DEVICE;
    *context = (void *)(uintptr_t)(0x1000 + device);
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int) {
    DRIVER(cuDevicePrimaryCtxRelease_v2);
    return SUCCESS;
}

int cuCtxSetCurrent(void *context) {
    DRIVER(cuCtxSetCurrent);
    current_device = context ? int((uintptr_t)context - 0x1000) : -1;
    return SUCCESS;
}

int cuCtxGetDevice(int *device) {
    IN_CONTEXT(cuCtxGetDevice);
    *device = current_device;
    return SUCCESS;
}

int cuCtxSynchronize() {
    OUTSIDE_CAPTURE(cuCtxSynchronize);
    stream::drain_all();
    return poisoned;
}

// ---- memory ----

int cuMemGetInfo_v2(size_t *left, size_t *total) {
    IN_CONTEXT(cuMemGetInfo_v2);
    *total = total_memory();
    *left = *total > memory::space().used ? *total - memory::space().used : 0;
    return SUCCESS;
}

int cuMemAlloc_v2(char **device, size_t bytes) {
    OUTSIDE_CAPTURE(cuMemAlloc_v2);
    if (bytes == 0) return INVALID_VALUE;
    const size_t used = memory::space().used, total = total_memory();
    if (used > total || bytes > total - used) return OUT_OF_MEMORY;
    *device = memory::allocate(bytes);
    return *device ? SUCCESS : OUT_OF_MEMORY;
}

int cuMemFree_v2(char *device) {
    OUTSIDE_CAPTURE(cuMemFree_v2);
    if (device == nullptr) return SUCCESS;
    stream::drain_all();
    return memory::release(device) ? SUCCESS : INVALID_VALUE;
}

int cuMemHostAlloc(void **host, size_t bytes, unsigned) {
    OUTSIDE_CAPTURE(cuMemHostAlloc);
    if (bytes == 0) return INVALID_VALUE;
    *host = aligned_alloc(memory::PAGE, memory::up(bytes, memory::PAGE));
    if (!*host) return OUT_OF_MEMORY;
    memset(*host, memory::POISON, bytes);
    memory::space().pinned[(char *)*host] = bytes;
    return SUCCESS;
}

int cuMemFreeHost(void *host) {
    OUTSIDE_CAPTURE(cuMemFreeHost);
    stream::drain_all();
    if (!memory::space().pinned.erase((char *)host)) return INVALID_VALUE;
    free(host);
    return SUCCESS;
}

int cuMemHostRegister_v2(void *host, size_t bytes, unsigned) {
    OUTSIDE_CAPTURE(cuMemHostRegister_v2);
    if (bytes == 0) return INVALID_VALUE;
    if (!memory::space().pinned.emplace((char *)host, bytes).second) return HOST_MEMORY_ALREADY_REGISTERED;
    return SUCCESS;
}

int cuMemHostUnregister(void *host) {
    OUTSIDE_CAPTURE(cuMemHostUnregister);
    clock_leave();
    stream::drain_all();
    return memory::space().pinned.erase((char *)host) ? SUCCESS : HOST_MEMORY_NOT_REGISTERED;
}

int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t bytes, void *in) {
    IN_CONTEXT(cuMemcpyHtoDAsync_v2);
    if (!memory::is_device(to) || memory::is_device(from) || !ranges(to, bytes)) return INVALID_VALUE;
    return copy(to, from, bytes, in, from);
}

int cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t bytes, void *in) {
    IN_CONTEXT(cuMemcpyDtoHAsync_v2);
    if (memory::is_device(to) || !memory::is_device(from) || !ranges(from, bytes)) return INVALID_VALUE;
    return copy(to, from, bytes, in, to);
}

int cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t bytes, void *in) {
    IN_CONTEXT(cuMemcpyDtoDAsync_v2);
    if (!memory::is_device(to) || !memory::is_device(from) || !ranges(to, bytes) || !ranges(from, bytes))
        return INVALID_VALUE;
    return copy(to, from, bytes, in, nullptr);
}

int cuMemcpyHtoD_v2(void *to, const void *from, size_t bytes) {
    OUTSIDE_CAPTURE(cuMemcpyHtoD_v2);
    if (!memory::is_device(to) || memory::is_device(from) || !ranges(to, bytes)) return INVALID_VALUE;
    const int code = copy(to, from, bytes, nullptr, from);
    stream::drain_all();
    return code ? code : poisoned;
}

int cuMemcpyDtoH_v2(void *to, const void *from, size_t bytes) {
    OUTSIDE_CAPTURE(cuMemcpyDtoH_v2);
    if (memory::is_device(to) || !memory::is_device(from) || !ranges(from, bytes)) return INVALID_VALUE;
    const int code = copy(to, from, bytes, nullptr, to);
    stream::drain_all();
    return code ? code : poisoned;
}

static int set(void *to, size_t bytes, size_t width, unsigned value, void *handle) {
    stream::Stream *in = stream::of(handle);
    if (!in) return INVALID_HANDLE;
    if (!memory::is_device(to) || !ranges(to, bytes)) return INVALID_VALUE;
    const stream::Work work([=] {
        char *at = (char *)memory::address(to, bytes);
        if (at && width == 1) memset(at, value, bytes);
        for (size_t i = 0; at && width > 1 && i < bytes; i += width) memcpy(at + i, &value, width);
    });
    stream::put(in, work.called("set", clock_kernel(bytes, 0), bytes));
    return poisoned;
}

int cuMemsetD8Async(void *to, unsigned char value, size_t count, void *in) {
    IN_CONTEXT(cuMemsetD8Async);
    return set(to, count, 1, value, in);
}

int cuMemsetD32Async(void *to, unsigned value, size_t count, void *in) {
    IN_CONTEXT(cuMemsetD32Async);
    return set(to, 4 * count, 4, value, in);
}

// ---- memory of other processes ----

struct IpcHandle {
    long process;
    int file;
    size_t offset, bytes;
    char unused[64 - sizeof(long) - 2 * sizeof(size_t) - sizeof(long)];
};
static_assert(sizeof(IpcHandle) == 64, "CU_IPC_HANDLE_SIZE");

int cuIpcGetMemHandle(IpcHandle *handle, char *device) {
    OUTSIDE_CAPTURE(cuIpcGetMemHandle);
    const auto found = memory::space().live.find(device);
    if (found == memory::space().live.end() || found->second.opened) return INVALID_VALUE;
    // The driver would let others reach what lies beside it.
    if (found->second.bytes % (2 << 20) != 0) return INVALID_VALUE;
    *handle = IpcHandle();
    handle->process = getpid();
    handle->file = memory::space().file;
    handle->offset = device - memory::space().device;
    handle->bytes = found->second.bytes;
    return SUCCESS;
}

int cuIpcOpenMemHandle_v2(char **device, IpcHandle handle, unsigned) {
    OUTSIDE_CAPTURE(cuIpcOpenMemHandle_v2);
    // As with the real one, a process cannot open its own memory.
    if (handle.process == getpid()) return INVALID_CONTEXT;
    const std::string path =
        "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return INVALID_HANDLE;
    const size_t before = handle.offset % memory::PAGE, bytes = before + handle.bytes;
    char *there = (char *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, handle.offset - before);
    close(file);
    if (there == MAP_FAILED) return OUT_OF_MEMORY;
    memory::Space &space = memory::space();
    *device = space.device + space.next;
    space.next += memory::up(handle.bytes, memory::PAGE) + memory::PAGE;
    space.live[*device] = {handle.bytes, there + before};
    return SUCCESS;
}

int cuIpcCloseMemHandle(char *device) {
    OUTSIDE_CAPTURE(cuIpcCloseMemHandle);
    stream::drain_all();
    const auto found = memory::space().live.find(device);
    if (found == memory::space().live.end() || !found->second.opened) return INVALID_VALUE;
    const uintptr_t at = (uintptr_t)found->second.opened, first = at / memory::PAGE * memory::PAGE;
    munmap((void *)first, at - first + found->second.bytes);
    memory::space().live.erase(found);
    return SUCCESS;
}

// ---- streams and events ----

int cuStreamCreate(void **handle, unsigned) {
    OUTSIDE_CAPTURE(cuStreamCreate);
    *handle = stream::created();
    return SUCCESS;
}

int cuStreamCreateWithPriority(void **handle, unsigned flags, int) { return cuStreamCreate(handle, flags); }

int cuStreamDestroy_v2(void *handle) {
    OUTSIDE_CAPTURE(cuStreamDestroy_v2);
    stream::Stream *in = stream::of(handle);
    if (!in || handle == nullptr) return INVALID_HANDLE;
    clock_leave();
    stream::destroy(in);
    return SUCCESS;
}

int cuStreamSynchronize(void *handle) {
    OUTSIDE_CAPTURE(cuStreamSynchronize);
    stream::Stream *in = stream::of(handle);
    if (!in) return INVALID_HANDLE;
    stream::drain(in);
    return poisoned;
}

int cuStreamQuery(void *handle) {
    OUTSIDE_CAPTURE(cuStreamQuery);
    stream::Stream *in = stream::of(handle);
    if (!in) return INVALID_HANDLE;
    stream::step(in);
    if (poisoned) return poisoned;
    if (in->waiting.empty() && in->time <= clock_now()) return SUCCESS;
    clock_stops_at(in->time);
    clock_asked();
    return NOT_READY;
}

int cuEventCreate(void **event, unsigned) {
    IN_CONTEXT(cuEventCreate);
    *event = made(new stream::Event);
    return SUCCESS;
}

int cuEventDestroy_v2(void *event) {
    IN_CONTEXT(cuEventDestroy_v2);
    if (!handles().erase(event)) return INVALID_HANDLE;
    delete (stream::Event *)event;
    return SUCCESS;
}

int cuEventRecord(void *event, void *handle) {
    IN_CONTEXT(cuEventRecord);
    stream::Stream *in = stream::of(handle);
    if (!in || !is(event)) return INVALID_HANDLE;
    if (in->capture) {
        const auto point = std::make_shared<stream::Point>();
        point->captured = in->capture;
        point->mark = in->capture->mark(in);
        ((stream::Event *)event)->point = point;
    } else ((stream::Event *)event)->point = marked(in);
    return poisoned;
}

int cuEventRecordWithFlags(void *event, void *handle, unsigned flags) {
    const unsigned EXTERNAL = 1;
    IN_CONTEXT(cuEventRecordWithFlags);
    stream::Stream *in = stream::of(handle);
    if (!in || !is(event)) return INVALID_HANDLE;
    // Such a node is for captures alone, and none that a stream can wait for in the same one.
    if (flags != EXTERNAL || !in->capture) return INVALID_VALUE;
    ((stream::Event *)event)->point = nullptr;
    in->capture->add(in, [] {}, (stream::Event *)event);
    return poisoned;
}

int cuStreamWaitEvent(void *handle, void *event, unsigned) {
    IN_CONTEXT(cuStreamWaitEvent);
    stream::Stream *in = stream::of(handle);
    if (!in || !is(event)) return INVALID_HANDLE;
    const auto point = ((stream::Event *)event)->point;
    if (!point) return SUCCESS;
    if (point->captured) {
        // Who waits for what is captured is captured too.
        if (in->capture == nullptr) in->capture = point->captured;
        if (in->capture != point->captured) return STREAM_CAPTURE_INVALIDATED;
        in->capture->wait(in, point->mark);
        return SUCCESS;
    }
    if (in->capture) return in->broken = true, STREAM_CAPTURE_UNSUPPORTED;
    await(in, point);
    return poisoned;
}

int cuEventQuery(void *event) {
    IN_CONTEXT(cuEventQuery);
    if (!is(event)) return INVALID_HANDLE;
    const auto point = ((stream::Event *)event)->point;
    if (!point) return SUCCESS;
    if (point->captured) return stream::spoiled(), STREAM_CAPTURE_UNSUPPORTED;
    // Who asks again and again gets there.
    if (!point->reached && stream::all().count(point->of)) stream::step(point->of);
    if (poisoned) return poisoned;
    if (point->reached && point->time <= clock_now()) {
        if (!point->seen) clock_changed();
        return point->seen = true, SUCCESS;
    }
    clock_asked();
    return NOT_READY;
}

int cuEventSynchronize(void *event) {
    OUTSIDE_CAPTURE(cuEventSynchronize);
    if (!is(event)) return INVALID_HANDLE;
    if (const auto point = ((stream::Event *)event)->point) {
        while (!stream::reach(point)) usleep(100);
        clock_wait(point->time);
    }
    return poisoned;
}

int cuEventElapsedTime(float *milliseconds, void *first, void *second) {
    IN_CONTEXT(cuEventElapsedTime);
    if (!is(first) || !is(second)) return INVALID_HANDLE;
    const auto from = ((stream::Event *)first)->point, to = ((stream::Event *)second)->point;
    if (!from || !to) return INVALID_HANDLE;
    if (!from->reached || !to->reached || std::max(from->time, to->time) > clock_now()) return NOT_READY;
    const int64_t apart = clock_is_on() ? to->time - from->time : to->real - from->real;
    *milliseconds = float(double(apart) / 1e6);
    return SUCCESS;
}

// ---- modules ----

static int load(void **module, const char *image) {
    OUTSIDE_CAPTURE(cuModuleLoadDataEx);
    const unsigned FATBIN = 0xba55ed50;
    if (memcmp(image, &FATBIN, 4) == 0) return NO_BINARY_FOR_GPU;
    const char *version = strstr(image, ".version "), *target = strstr(image, ".target sm_");
    if (!version || !target) return INVALID_IMAGE;
    // PTX 7.0 came with CUDA 11.0, 8.0 with 12.0, 9.0 with 13.0.
    const int major = atoi(version + strlen(".version "));
    if (major + 4 > driver_version() / 1000) return UNSUPPORTED_PTX_VERSION;
    if (atoi(target + strlen(".target sm_")) > number("FAKE_CUDA_CAPABILITY", 90)) return NO_BINARY_FOR_GPU;
    *module = made(new Module{image});
    return SUCCESS;
}

int cuModuleLoadDataEx(void **module, const char *image, unsigned count, const int *options, void **values) {
    const int code = load(module, image);
    // CU_JIT_ERROR_LOG_BUFFER and its length; also where the call was told to fail.
    if (code != SUCCESS && count == 2 && options[0] == 5 && options[1] == 6)
        snprintf(static_cast<char *>(values[0]), size_t(values[1]), "ptxas fatal: code %d\n", code);
    return code;
}

int cuModuleUnload(void *module) {
    OUTSIDE_CAPTURE(cuModuleUnload);
    if (!handles().erase(module)) return INVALID_HANDLE;
    stream::drain_all();
    delete (Module *)module;
    return SUCCESS;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    IN_CONTEXT(cuModuleGetFunction);
    if (!is(module)) return INVALID_HANDLE;
    const char *arguments = kernel_arguments(name);
    // It must be in the text that was loaded, too: what is committed may be older than the sources.
    const std::string &text = ((Module *)module)->text;
    const size_t entry = text.find(std::string(".entry ") + name + "(");
    if (!arguments || entry == std::string::npos) return NOT_FOUND;
    const std::string body = "\n{\n", wait = "\tgriddepcontrol.wait;\n";
    const size_t begin = text.find(body, entry);
    const bool waits = begin != std::string::npos && text.compare(begin + body.size(), wait.size(), wait) == 0;
    *function = made(new Function{name, arguments, waits});
    return SUCCESS;
}

static int launch(void *handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                  unsigned block_z, unsigned shared, void *stream_handle, void **arguments, void **extra) {
    stream::Stream *in = stream::of(stream_handle);
    if (!in || !is(handle)) return INVALID_HANDLE;
    if (shared != 0 || extra != nullptr || arguments == nullptr) return INVALID_VALUE;
    if (grid_x == 0 || grid_y == 0 || grid_z == 0 || grid_y > 65535 || grid_z > 65535) return INVALID_VALUE;
    if (block_x == 0 || block_y == 0 || block_z == 0 || uint64_t(block_x) * block_y * block_z > 1024)
        return INVALID_VALUE;
    const Function function = *(Function *)handle;
    // Arguments are taken now, pointers followed when the kernel runs.
    std::vector<uint64_t> values;
    for (size_t i = 0; i < function.arguments.size(); ++i) {
        uint64_t value = 0;
        const char letter = function.arguments[i];
        memcpy(&value, arguments[i], letter == 'p' || letter == 'l' ? 8 : 4);
        values.push_back(value);
    }
    const double bytes = kernel_bytes(function.arguments, values, double(grid_x) * grid_y * grid_z * block_x * block_y);
    const stream::Work work([=] {
        std::vector<uint64_t> own = values;
        std::vector<void *> pointers;
        for (size_t i = 0; i < own.size(); ++i) {
            if (function.arguments[i] == 'p' && own[i] != 0) {
                void *there = memory::address((void *)own[i], 0);
                if (!there) {
                    fprintf(stderr, "fake CUDA: argument %zu of %s, %#lx, is no device memory\n", i,
                            function.name.c_str(), (unsigned long)own[i]);
                    poisoned = ILLEGAL_ADDRESS;
                    return;
                }
                own[i] = (uint64_t)there;
            }
            pointers.push_back(&own[i]);
        }
        const unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
        const char *order = getenv("FAKE_CUDA_DESCENDING");
        if (!kernel_run(function.name.c_str(), grid, block, pointers.data(), order && *order == '1')) poisoned = 719;
    });
    stream::put(in, work.called(kernel_name_of(function.name), clock_kernel(bytes, 0), size_t(bytes)));
    return poisoned;
}

int cuLaunchKernel(void *handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, void *stream_handle, void **arguments,
                   void **extra) {
    IN_CONTEXT(cuLaunchKernel);
    return launch(handle, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream_handle, arguments, extra);
}

// With one attribute alone: a kernel may begin before what is in front of it has ended. One that does not wait for that
// itself would read what is not there yet.
int cuLaunchKernelEx(const Configuration *of, void *handle, void **arguments, void **extra) {
    IN_CONTEXT(cuLaunchKernelEx);
    if (of->count != 1 || of->attributes->id != PROGRAMMATIC_STREAM_SERIALIZATION || of->attributes->value.flag != 1)
        return INVALID_VALUE;
    if (!is(handle)) return INVALID_HANDLE;
    if (!((Function *)handle)->waits) {
        fprintf(stderr, "fake CUDA: %s begins early and waits for nothing\n", ((Function *)handle)->name.c_str());
        return poisoned = ILLEGAL_ADDRESS;
    }
    return launch(handle, of->grid[0], of->grid[1], of->grid[2], of->block[0], of->block[1], of->block[2], of->shared,
                  of->stream, arguments, extra);
}

// ---- graphs ----

int cuStreamBeginCapture_v2(void *handle, int) {
    IN_CONTEXT(cuStreamBeginCapture_v2);
    stream::Stream *in = stream::of(handle);
    if (!in) return INVALID_HANDLE;
    if (handle == nullptr || in->capture) return STREAM_CAPTURE_UNSUPPORTED;
    in->capture = made(new stream::Graph);
    in->capture->branch(in);
    in->origin = true;
    return SUCCESS;
}

int cuStreamEndCapture(void *handle, void **graph) {
    IN_CONTEXT(cuStreamEndCapture);
    stream::Stream *in = stream::of(handle);
    if (!in) return INVALID_HANDLE;
    if (!in->capture || !in->origin) return INVALID_VALUE;
    stream::Graph *captured = in->capture;
    bool broken = false;
    for (stream::Stream *other : stream::all())
        if (other->capture == captured) {
            broken |= other->broken;
            other->capture = nullptr;
            other->origin = other->broken = false;
        }
    *graph = broken || !captured->is_joined() ? nullptr : captured;
    return broken ? STREAM_CAPTURE_INVALIDATED : *graph ? SUCCESS : STREAM_CAPTURE_UNJOINED;
}

int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long) {
    OUTSIDE_CAPTURE(cuGraphInstantiateWithFlags);
    if (!is(graph)) return INVALID_HANDLE;
    const stream::Graph *of = (stream::Graph *)graph;
    Executable *made_of = new Executable{of->nodes, {nullptr}};
    for (size_t i = 1; i < of->branches.size(); ++i) made_of->branches.push_back(stream::created());
    *executable = made(made_of);
    return SUCCESS;
}

int cuGraphLaunch(void *executable, void *handle) {
    IN_CONTEXT(cuGraphLaunch);
    stream::Stream *in = stream::of(handle);
    if (!in || !is(executable)) return INVALID_HANDLE;
    if (in->capture) return STREAM_CAPTURE_UNSUPPORTED;
    clock_join();
    clock_trace(in->number, "launch", clock_now(), clock_now(), 0);
    const Executable *graph = (Executable *)executable;
    std::map<int, std::shared_ptr<stream::Point>> points;
    for (const stream::Node &node : graph->nodes) {
        stream::Stream *branch = node.branch == 0 ? in : graph->branches[node.branch];
        if (node.event && !is(node.event)) return INVALID_HANDLE;
        if (node.event) node.event->point = marked(branch);
        else if (node.marks >= 0) points[node.marks] = marked(branch);
        else if (node.waits >= 0) await(branch, points[node.waits]);
        else stream::put(branch, node.work);
    }
    return poisoned;
}

int cuGraphExecDestroy(void *executable) {
    IN_CONTEXT(cuGraphExecDestroy);
    clock_leave();
    if (!handles().erase(executable)) return INVALID_HANDLE;
    for (stream::Stream *branch : ((Executable *)executable)->branches)
        if (branch) stream::destroy(branch);
    delete (Executable *)executable;
    return SUCCESS;
}

int cuGraphDestroy(void *graph) {
    IN_CONTEXT(cuGraphDestroy);
    if (!handles().erase(graph)) return INVALID_HANDLE;
    delete (stream::Graph *)graph;
    return SUCCESS;
}

} // extern "C"

// libnccl.so.2, as far as dltrain calls it: communicators that do not block, and sums of f32 over processes of one
// machine.
//
// The rank that makes the id makes the memory too, in which the others find what each has to add.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <set>
#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.hpp"
#include "fake.hpp"

extern "C" int cuCtxGetDevice(int *device);
extern "C" int cuDeviceGetPCIBusId(char *text, int bytes, int device);

namespace {

enum Code {
    SUCCESS = 0,
    UNHANDLED_CUDA_ERROR = 1,
    SYSTEM_ERROR = 2,
    INTERNAL_ERROR = 3,
    INVALID_ARGUMENT = 4,
    INVALID_USAGE = 5,
    REMOTE_ERROR = 6,
    IN_PROGRESS = 7,
};

constexpr int RANKS = 16;
// Bytes of a rank's part of a sum; pages that nobody touches take no memory.
constexpr size_t ROOM = size_t(256) << 20;

struct Place {
    char gpu[32];
    std::atomic<int> process;
    // Sums that this rank has brought its part of, and that it has taken the result of.
    std::atomic<long> brought, taken;
    // Elements of the one brought last, and when it was.
    std::atomic<size_t> count;
    std::atomic<int64_t> when;
    std::atomic<bool> finalized;
};

struct Shared {
    int ranks;
    std::atomic<bool> broken;
    Place places[RANKS];
};

constexpr size_t HEAD = (sizeof(Shared) + 4095) / 4096 * 4096;

struct Id {
    char mark[16];
    int process, file;
    char unused[104];
};
static_assert(sizeof(Id) == 128, "NCCL_UNIQUE_ID_BYTES");

struct Config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

struct Comm {
    Shared *shared;
    int rank, ranks;
    // What was asked for last is under way so many questions more; what is done then.
    int questions = 0;
    std::function<bool()> then;
    int error = SUCCESS;
    long sums = 0;
    bool aborted = false, finalized = false;

    Place &place(int of) { return shared->places[of]; }
    char *part(int of) { return (char *)shared + HEAD + of * ROOM; }
};

thread_local std::string last_error;

int fails(int code, const char *what) {
    last_error = what;
    return code;
}

std::set<Comm *> &all() {
    static std::set<Comm *> *it = new std::set<Comm *>;
    return *it;
}

bool alive(int process) { return process == 0 || kill(process, 0) == 0; }

// Whether somebody has gone before all were through.
bool lost(Comm *comm) {
    bool gone = comm->shared->broken;
    for (int rank = 0; rank < comm->ranks; ++rank) gone |= !alive(comm->place(rank).process);
    return gone;
}

template <class F> bool every(Comm *comm, F is) {
    for (int rank = 0; rank < comm->ranks; ++rank)
        if (!is(comm->place(rank))) return false;
    return true;
}

void map(Comm *comm, const Id &id) {
    const std::string path = "/proc/" + std::to_string(id.process) + "/fd/" + std::to_string(id.file);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    void *at = MAP_FAILED;
    if (file >= 0) at = mmap(nullptr, HEAD + RANKS * ROOM, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (file >= 0) close(file);
    comm->shared = at == MAP_FAILED ? nullptr : (Shared *)at;
}

// A sum in its stream: brings this rank's part as soon as nobody reads the one before, and takes the result when all
// have.
bool add_up(Comm *comm, void *device, size_t count, long number, void *stream) {
    if (comm->aborted || comm->error) return true;
    if (lost(comm)) return comm->error = fails(REMOTE_ERROR, "a rank has gone"), true;
    Place &own = comm->place(comm->rank);
    static const char *hang = getenv("FAKE_NCCL_HANG");
    if (hang && number == atol(hang)) return false;
    float *at = (float *)fake_address(device, 4 * count);
    if (!at) return fake_fault("ncclAllReduce"), true;
    if (own.brought < number) {
        if (!every(comm, [=](Place &place) { return place.taken >= number - 1; })) return false;
        memcpy(comm->part(comm->rank), at, 4 * count);
        own.count = count;
        own.when = fake_time(stream, 0);
        own.brought = number;
    }
    if (!every(comm, [=](Place &place) { return place.brought >= number; })) return false;
    if (!every(comm, [=](Place &place) { return place.count == count; })) {
        comm->shared->broken = true;
        return comm->error = fails(INVALID_USAGE, "ranks add up unequal lengths"), true;
    }
    for (size_t i = 0; i < count; ++i) {
        float sum = ((float *)comm->part(0))[i];
        for (int rank = 1; rank < comm->ranks; ++rank) sum += ((float *)comm->part(rank))[i];
        at[i] = sum;
    }
    int64_t last = 0;
    for (int rank = 0; rank < comm->ranks; ++rank) last = std::max(last, comm->place(rank).when.load());
    fake_time(stream, last + clock_message(8 * count * (comm->ranks - 1) / comm->ranks));
    own.taken = number;
    return true;
}

// A call that begins something: nothing else may be under way.
int begin(Comm *comm, std::function<bool()> then) {
    if (!all().count(comm)) return fails(INVALID_ARGUMENT, "no communicator");
    if (comm->error) return comm->error;
    if (comm->then || comm->finalized) return fails(INVALID_USAGE, "the call before is still under way");
    comm->questions = 2;
    comm->then = then;
    return IN_PROGRESS;
}

} // namespace

#define NCCL(name) CALL(#name, INTERNAL_ERROR)

extern "C" {

int ncclGetVersion(int *version) {
    NCCL(ncclGetVersion);
    const char *text = getenv("FAKE_NCCL_VERSION");
    *version = text ? atoi(text) : 22304;
    return SUCCESS;
}

const char *ncclGetErrorString(int code) {
    static const char *const words[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage", "remote process exited or there was a network error",
        "NCCL operation in progress"};
    return code >= 0 && code <= IN_PROGRESS ? words[code] : "unknown result code";
}

const char *ncclGetLastError(Comm *) { return last_error.c_str(); }

int ncclGetUniqueId(Id *id) {
    NCCL(ncclGetUniqueId);
    *id = Id{"fake nccl", getpid(), memfd_create("NCCL", MFD_CLOEXEC), {}};
    return id->file >= 0 && ftruncate(id->file, HEAD + RANKS * ROOM) == 0 ? SUCCESS : SYSTEM_ERROR;
}

int ncclCommInitRankConfig(Comm **comm, int ranks, Id id, int rank, Config *config) {
    NCCL(ncclCommInitRankConfig);
    int device;
    if (cuCtxGetDevice(&device) != 0) return fails(UNHANDLED_CUDA_ERROR, "no context is current");
    if (strcmp(id.mark, "fake nccl") != 0 || ranks < 1 || ranks > RANKS || rank < 0 || rank >= ranks)
        return fails(INVALID_ARGUMENT, "not an id, or not a rank");
    const bool known = config->size >= sizeof(Config) && config->magic == 0xcafebeef && config->version >= 21400;
    if (!known || config->blocking != 0)
        return fails(INVALID_ARGUMENT, "not a configuration, or one that blocks");
    Comm *made = new Comm{};
    map(made, id);
    if (!made->shared) return fails(SYSTEM_ERROR, "the id is another machine's");
    made->rank = rank;
    made->ranks = ranks;
    Place &own = made->place(rank);
    cuDeviceGetPCIBusId(own.gpu, sizeof own.gpu, device);
    all().insert(made);
    // Written when all have joined, too.
    *comm = made;
    own.process = getpid();
    return begin(made, [=] {
        if (!every(made, [](Place &place) { return place.process != 0; })) return false;
        for (int other = 0; other < ranks; ++other)
            if (other != rank && strcmp(made->place(other).gpu, made->place(rank).gpu) == 0)
                made->error = fails(INVALID_USAGE, "Duplicate GPU detected");
        *comm = made;
        return true;
    });
}

int ncclCommGetAsyncError(Comm *comm, int *code) {
    NCCL(ncclCommGetAsyncError);
    if (!all().count(comm)) return fails(INVALID_ARGUMENT, "no communicator");
    if (!comm->error && comm->shared->broken) comm->error = fails(REMOTE_ERROR, "a rank has gone");
    if (!comm->error && comm->then && --comm->questions <= 0 && comm->then()) comm->then = nullptr;
    *code = comm->error ? comm->error : comm->then ? IN_PROGRESS : SUCCESS;
    return SUCCESS;
}

int ncclAllReduce(void *from, void *to, size_t count, int type, int operation, Comm *comm, void *stream) {
    NCCL(ncclAllReduce);
    if (from != to || type != 7 || operation != 0) return fails(INVALID_ARGUMENT, "only sums of f32 in place");
    if (4 * count > ROOM || !fake_address(to, 4 * count) || !fake_is_stream(stream) || stream == nullptr)
        return fails(INVALID_ARGUMENT, "not device memory, or not a stream of its own");
    // What is enqueued before it is, is before it.
    return begin(comm, [=] {
        const long number = ++comm->sums;
        std::function<bool()> work = [=] { return add_up(comm, to, count, number, stream); };
        if (fake_enqueue_waiting(stream, &work) != 0) comm->error = fails(UNHANDLED_CUDA_ERROR, "not enqueued");
        return true;
    });
}

int ncclCommFinalize(Comm *comm) {
    NCCL(ncclCommFinalize);
    const int begun = begin(comm, [=] {
        if (comm->place(comm->rank).taken != comm->sums) return false;
        comm->place(comm->rank).finalized = true;
        return every(comm, [](Place &place) { return place.finalized.load(); });
    });
    if (begun == IN_PROGRESS) comm->finalized = true;
    return begun;
}

int ncclCommDestroy(Comm *comm) {
    NCCL(ncclCommDestroy);
    if (!all().count(comm)) return fails(INVALID_ARGUMENT, "no communicator");
    if (!comm->finalized || comm->then) {
        fprintf(stderr, "fake NCCL: a communicator is destroyed before all have left\n");
        abort();
    }
    all().erase(comm);
    return SUCCESS;
}

int ncclCommAbort(Comm *comm) {
    NCCL(ncclCommAbort);
    if (!all().count(comm)) return fails(INVALID_ARGUMENT, "no communicator");
    // What waits in a stream ends.
    comm->aborted = comm->shared->broken = true;
    all().erase(comm);
    return SUCCESS;
}

} // extern "C"

// libclock.so: the virtual clock, one for all ranks of a job (clock.hpp), and the price of messages.
//
// One rank runs at a time. It runs until it has nothing to do and says so (sched_yield, as every loop that waits does);
// then it is the next one's turn. When all have said so several times, and none has done anything that another one may
// see, time goes on to the next event. So what happens when does not depend on how fast this machine is. For that the
// library is loaded first (LD_PRELOAD), where it stands before sched_yield, clock_nanosleep and before the calls of MPI
// that send. Without that a process has a clock of its own.
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <map>
#include <sched.h>
#include <set>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#include "clock.hpp"

namespace {

constexpr int RANKS = 16;
constexpr int64_t NEVER = INT64_MAX;
// Rounds in which nobody did anything: more than the steps of any protocol below (a handshake of MPI's, counters in
// shared memory) that are not seen here.
constexpr int ROUNDS = 24;
// Nanoseconds that everything takes at least.
constexpr int64_t KERNEL = 2000, COPY = 2000, MESSAGE = 5000;

enum State { ABSENT, RUNS, LEFT };

struct Page {
    std::atomic<int> turn, still;
    std::atomic<int64_t> now;
    std::atomic<int64_t> next[RANKS];
    std::atomic<int> state[RANKS];
};

struct Rates {
    // GB/s of a device's memory, TFLOP/s, GB/s between host and device, GB/s between ranks.
    double memory = 4000, operations = 400, copies = 50, messages = 10;

    Rates() {
        if (const char *text = getenv("FAKE_CUDA_RATES"))
            sscanf(text, "%lf,%lf,%lf,%lf", &memory, &operations, &copies, &messages);
    }
};

// A message, or the library's sum, that is given to MPI when it would have arrived.
struct Message {
    int64_t due;
    uintptr_t arguments[7];
    bool sum;
    uint64_t request;
};

int number(const char *first, const char *second, int otherwise) {
    const char *text = getenv(first);
    if (!text) text = getenv(second);
    return text ? atoi(text) : otherwise;
}

struct Clock {
    bool on = false, hooked = false, joined = false, left = false, changed = false;
    int rank = number("OMPI_COMM_WORLD_RANK", "PMI_RANK", 0), ranks = number("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", 1);
    Rates rates;
    Page *page = nullptr;
    int64_t own = 0, link = 0;
    std::set<int64_t> stops;
    std::vector<Message> waiting;
    std::map<uint64_t, uint64_t> given;
    uint64_t messages = 0;
    FILE *trace = nullptr;

    Clock() {
        const char *where = getenv("FAKE_CUDA_CLOCK");
        on = where && *where;
        hooked = on && dlsym(RTLD_DEFAULT, "sched_yield") == (void *)sched_yield && ranks <= RANKS;
        int file = -1;
        if (hooked && *where == '/') {
            file = open(where, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
            if (file < 0 || ftruncate(file, sizeof(Page)) != 0) hooked = false;
        }
        if (ranks > 1 && file < 0) hooked = false;
        const int flags = file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
        if (hooked) page = (Page *)mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, flags, file, 0);
        if (file >= 0) close(file);
    }
    ~Clock() { leave(); }

    static bool main_thread() { return syscall(SYS_gettid) == getpid(); }

    int64_t now() const { return joined ? page->now.load() : own; }

    int64_t next() {
        stops.erase(stops.begin(), stops.upper_bound(now()));
        return stops.empty() ? NEVER : *stops.begin();
    }

    static void futex(std::atomic<int> &word, int what, int value) {
        const timespec second = {1, 0};
        syscall(SYS_futex, (int *)&word, what, value, what == FUTEX_WAIT ? &second : nullptr, nullptr, 0);
    }

    void pass() {
        int to = rank;
        do to = (to + 1) % ranks;
        while (to != rank && page->state[to] == LEFT);
        page->turn = to;
        futex(page->turn, FUTEX_WAKE, INT_MAX);
    }

    // Whoever has the turn and does not pass it on for seconds is in a call that waits for others.
    void take() {
        for (int vain = 0, turn; (turn = page->turn) != rank; ++vain) {
            futex(page->turn, FUTEX_WAIT, turn);
            if (vain > 0 && vain % 8 == 0) page->turn.compare_exchange_strong(turn, rank);
        }
    }

    void join() {
        if (!hooked || joined || left) return;
        for (int64_t at = page->now; at < own && !page->now.compare_exchange_weak(at, own);) {}
        page->next[rank] = NEVER;
        page->state[rank] = RUNS;
        const auto absent = [this] {
            for (int i = 0; i < ranks; ++i)
                if (page->state[i] == ABSENT) return true;
            return false;
        };
        while (absent()) usleep(200);
        joined = true;
        take();
    }

    void leave() {
        if (!joined) return;
        own = page->now;
        page->state[rank] = LEFT;
        joined = false;
        left = true;
        for (Message &message : waiting) send(message);
        waiting.clear();
        pass();
    }

    void idle() {
        page->next[rank] = next();
        page->still = changed ? 0 : page->still + 1;
        changed = false;
        int present = 0;
        int64_t earliest = NEVER;
        for (int i = 0; i < ranks; ++i)
            if (page->state[i] == RUNS) {
                ++present;
                earliest = earliest < page->next[i] ? earliest : page->next[i].load();
            }
        if (page->still > ROUNDS * present && earliest != NEVER) {
            page->now = earliest;
            page->still = 0;
        }
        pass();
        take();
        send_due();
    }

    void wait(int64_t until) {
        if (!joined) {
            own = own > until ? own : until;
            return;
        }
        if (until <= now()) return;
        stops.insert(until);
        changed = true;
        while (joined && now() < until) idle();
    }

    // ---- messages ----

    void send_due() {
        size_t kept = 0;
        for (Message &message : waiting) {
            if (message.due <= now()) send(message);
            else waiting[kept++] = message;
        }
        waiting.resize(kept);
    }

    void send(Message &message);
    int later(const uintptr_t *arguments, bool sum, size_t bytes, void *request);
};

Clock &at() {
    static Clock *it = new Clock;
    return *it;
}

struct Ending {
    ~Ending() {
        at().leave();
        if (at().trace) fclose(at().trace);
    }
} ending;

int64_t takes(int64_t least, double bytes, double rate) { return at().on ? least + int64_t(bytes / rate) : 0; }

template <class F> F real(const char *name) { return (F)dlsym(RTLD_NEXT, name); }

// A request is a pointer of Open MPI's, or a number of MPICH's.
size_t width() {
    static const size_t is = dlsym(RTLD_DEFAULT, "ompi_mpi_comm_world") ? 8 : 4;
    return is;
}

void Clock::send(Message &message) {
    const uintptr_t *a = message.arguments;
    uint64_t request = 0;
    using Call = int (*)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, void *);
    static const Call isend = real<Call>("PMPI_Isend"), sum = real<Call>("PMPI_Iallreduce");
    if ((message.sum ? sum : isend)(a[0], a[1], a[2], a[3], a[4], a[5], &request) != 0) abort();
    given[message.request] = request;
    changed = true;
}

int Clock::later(const uintptr_t *arguments, bool sum, size_t bytes, void *request) {
    const int64_t start = now() > link ? now() : link;
    link = start + takes(0, double(bytes), rates.messages);
    // Numbers that neither library gives.
    Message message = {link + MESSAGE, {}, sum, 0x7d000000 + ++messages};
    memcpy(message.arguments, arguments, sizeof message.arguments);
    memcpy(request, &message.request, width());
    waiting.push_back(message);
    stops.insert(message.due);
    changed = true;
    clock_trace(-1, sum ? "sum" : "message", start, message.due, bytes);
    return 0;
}

size_t bytes_of(uintptr_t count, uintptr_t type) {
    using Size = int (*)(uintptr_t, int *);
    static const Size of = real<Size>("PMPI_Type_size");
    int bytes = 0;
    of(type, &bytes);
    return size_t(int(count)) * size_t(bytes);
}

// How long the device must work until it is as fast as it can be: at first, and from now on.
int64_t wakes() {
    const char *text = getenv("FAKE_CUDA_WAKES");
    return text ? atol(text) : 0;
}
int64_t asleep = wakes();

} // namespace

extern "C" {

bool clock_is_on() { return at().on; }
int64_t clock_now() { return at().now(); }
int64_t clock_kernel(double bytes, double operations) {
    const double memory = bytes / at().rates.memory, arithmetic = operations / at().rates.operations / 1000;
    return takes(KERNEL, memory > arithmetic ? memory : arithmetic, 1);
}
int64_t clock_copy(size_t bytes) { return takes(COPY, double(bytes), at().rates.copies); }
int64_t clock_message(size_t bytes) { return takes(MESSAGE, double(bytes), at().rates.messages); }
int64_t clock_at_its_rate(int64_t price) {
    const int64_t takes = asleep > 0 ? 10 * price : price;
    asleep -= takes;
    return takes;
}
void clock_falls_asleep() { asleep = wakes(); }
void clock_stops_at(int64_t time) {
    if (at().on && time > at().now()) at().stops.insert(time);
}
void clock_wait(int64_t time) {
    if (at().on) at().wait(time);
}
void clock_asked() {
    if (!at().on || at().joined) return;
    const int64_t next = at().next();
    if (next != NEVER) at().own = next;
}
void clock_changed() { at().changed = true; }
void clock_join() {
    if (at().on) at().join();
}
void clock_leave() { at().leave(); }
void clock_trace(int stream, const char *what, int64_t from, int64_t to, size_t bytes) {
    static const char *path = getenv("FAKE_CUDA_TRACE");
    if (!path || !at().on) return;
    // Opened by who has something to write: the launcher loads this library too. Several threads may be the first.
    static FILE *const file = fopen((std::string(path) + "." + std::to_string(at().rank)).c_str(), "w");
    at().trace = file;
    if (file) fprintf(file, "%d %s %ld %ld %zu\n", stream, what, long(from), long(to), bytes);
}

// ---- what stands before other libraries' calls ----

int sched_yield() noexcept {
    if (at().joined && Clock::main_thread()) return at().idle(), 0;
    return int(syscall(SYS_sched_yield));
}

// In a long wait a rank sleeps between two polls: no time at all goes by in this clock.
int clock_nanosleep(clockid_t clock, int flags, const timespec *time, timespec *left) {
    if (at().joined && Clock::main_thread()) return at().idle(), 0;
    return syscall(SYS_clock_nanosleep, clock, flags, time, left) == 0 ? 0 : errno;
}

int MPI_Isend(uintptr_t buffer, uintptr_t count, uintptr_t type, uintptr_t to, uintptr_t tag, uintptr_t comm,
              void *request) {
    using Call = int (*)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, void *);
    static const Call isend = real<Call>("PMPI_Isend");
    if (!at().joined) return isend(buffer, count, type, to, tag, comm, request);
    const uintptr_t arguments[7] = {buffer, count, type, to, tag, comm};
    return at().later(arguments, false, bytes_of(count, type), request);
}

// When it arrives is when it is received, which in this clock is no later.
int MPI_Issend(uintptr_t buffer, uintptr_t count, uintptr_t type, uintptr_t to, uintptr_t tag, uintptr_t comm,
               void *request) {
    return MPI_Isend(buffer, count, type, to, tag, comm, request);
}

int MPI_Iallreduce(uintptr_t from, uintptr_t into, uintptr_t count, uintptr_t type, uintptr_t op, uintptr_t comm,
                   void *request) {
    using Call = int (*)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, void *);
    static const Call sum = real<Call>("PMPI_Iallreduce");
    if (!at().joined) return sum(from, into, count, type, op, comm, request);
    const uintptr_t arguments[7] = {from, into, count, type, op, comm};
    // What a ring sends.
    const size_t bytes = bytes_of(count, type) * 2 * (at().ranks - 1) / at().ranks;
    return at().later(arguments, true, bytes, request);
}

int MPI_Test(void *request, int *done, void *status) {
    static const auto test = real<int (*)(void *, int *, void *)>("PMPI_Test");
    uint64_t value = 0;
    memcpy(&value, request, width());
    for (const Message &message : at().waiting)
        if (message.request == value) return *done = 0;
    const auto given = at().given.find(value);
    if (given != at().given.end()) {
        memcpy(request, &given->second, width());
        at().given.erase(given);
    }
    const int code = test(request, done, status);
    if (*done) at().changed = true;
    return code;
}

// Calls in which ranks wait for each other inside the library: the job is at its end.
#define LEAVING(name)                                                                                                  \
    int name(void *argument) {                                                                                         \
        static const auto call = real<int (*)(void *)>("P" #name);                                                     \
        clock_leave();                                                                                                 \
        return call(argument);                                                                                         \
    }
LEAVING(MPI_Win_free)
LEAVING(MPI_Comm_free)

int MPI_Finalize() {
    static const auto call = real<int (*)()>("PMPI_Finalize");
    clock_leave();
    return call();
}

} // extern "C"

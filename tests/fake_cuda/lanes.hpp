// Runs CUDA kernels on the host: one block at a time, each of its threads a lane. A lane runs until it ends or reaches
// a barrier, where it keeps its stack; when all have reached it they go on. Lanes run in ascending or in descending
// order: what depends on the order, because a barrier is missing, shows in one of them.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <math.h>
#include <mutex>
#include <utility>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define __global__
#define __device__
#define __launch_bounds__(...)
// One block runs at a time: what is static belongs to it.
#define __shared__ static

struct dim3 {
    unsigned x, y, z;
};

namespace lanes {

#if defined(__x86_64__)
// Stores the registers that a call must keep and the stack, and takes up those of another. (swapcontext would also ask
// the system for the signal mask, at a hundred times the price.)
extern "C" void lanes_switch(void **from, void *to);
__asm__(R"(
.text
.weak lanes_switch
.type lanes_switch,@function
lanes_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

class Context {
    void *at = nullptr;

  public:
    void prepare(char *stack, size_t bytes, void (*entry)()) {
        void **top = (void **)((uintptr_t)(stack + bytes) & ~(uintptr_t)15);
        *--top = nullptr; // where `entry` would return to
        *--top = (void *)entry;
        at = top - 6;
        memset(at, 0, 6 * sizeof(void *));
    }
    void go(Context &to) { lanes_switch(&at, to.at); }
};
#else
class Context {
    ucontext_t at;

  public:
    void prepare(char *stack, size_t bytes, void (*entry)()) {
        getcontext(&at);
        at.uc_stack.ss_sp = stack;
        at.uc_stack.ss_size = bytes;
        at.uc_link = nullptr;
        makecontext(&at, entry, 0);
    }
    void go(Context &to) { swapcontext(&at, &to.at); }
};
#endif

constexpr size_t STACK = 64 << 10;

struct Lane {
    Context context;
    dim3 index;
};

// The block that runs now.
struct Block {
    std::vector<Lane *> lanes;
    // Those that lanes of this block hold come first.
    std::vector<char *> stacks;
    size_t held = 0;
    Context scheduler;
    // Whose turn it is in this round, in which every lane goes from one barrier to the next; the first starts them.
    Lane *running = nullptr;
    size_t threads = 0, turn = 0, ended = 0;
    bool first = true, descending = false;
    dim3 index, shape, grid;
    const char *kernel = "";
    void (*invoke)(void **) = nullptr;
    void **arguments = nullptr;

    bool is_last() const { return turn + 1 == threads; }
    void take_turn(size_t number) {
        turn = number;
        running = lanes[descending ? threads - 1 - turn : turn];
    }
    void start();
};

// Each library has its own: kernels find it without asking the loader.
inline Block the_block __attribute__((visibility("hidden")));
inline Block &block() { return the_block; }
inline Lane &lane() { return *block().running; }

// Lets the others run, and comes back in the next round.
inline void leave() {
    Block &now = block();
    Context &own = now.running->context;
    if (now.is_last()) {
        own.go(now.scheduler);
    } else {
        now.take_turn(now.turn + 1);
        if (now.first) now.start();
        own.go(now.running->context);
    }
}

// A lane, and on the same stack, which is still in the cache, the next ones until one stops at a barrier.
inline void entry() {
    Block &now = block();
    for (;; now.take_turn(now.turn + 1)) {
        now.invoke(now.arguments);
        ++now.ended;
        if (!now.first || now.is_last()) break;
    }
    leave();
    abort();
}

inline void Block::start() { running->context.prepare(stacks[held++], STACK, entry); }

[[noreturn]] inline void complain(const char *what) {
    const Block &now = block();
    fprintf(stderr, "kernel %s, block (%u,%u,%u) of (%u,%u,%u) threads: %s\n", now.kernel, now.index.x, now.index.y,
            now.index.z, now.shape.x, now.shape.y, now.shape.z, what);
    abort();
}

inline void run_block() {
    Block &now = block();
    now.held = now.ended = 0;
    for (now.first = true; now.ended < now.threads; now.first = false) {
        if (now.ended > 0) complain("some threads wait at a barrier and others have ended");
        now.take_turn(0);
        if (now.first) now.start();
        now.scheduler.go(now.running->context);
    }
}

// Runs a kernel, whose arguments are pointed to as cuLaunchKernel has it.
inline void launch(const char *kernel, void (*invoke)(void **), dim3 grid, dim3 shape, void **arguments,
                   bool descending) {
    static std::mutex alone;
    const std::lock_guard<std::mutex> held(alone);
    Block &now = block();
    now.kernel = kernel;
    now.invoke = invoke;
    now.grid = grid;
    now.shape = shape;
    now.arguments = arguments;
    now.descending = descending;
    now.threads = size_t(shape.x) * shape.y * shape.z;
    while (now.lanes.size() < now.threads) {
        now.lanes.push_back(new Lane);
        now.stacks.push_back(new char[STACK]);
    }
    for (size_t i = 0; i < now.threads; ++i)
        now.lanes[i]->index = {unsigned(i % shape.x), unsigned(i / shape.x % shape.y), unsigned(i / shape.x / shape.y)};
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x; ++x) {
                now.index = {x, y, z};
                run_block();
            }
}

// ---- the table of kernels ----

struct Kernel {
    const char *name;
    void (*invoke)(void **);
    // One letter an argument: p pointer, l 64-bit integer, i 32-bit integer, f float.
    const char *arguments;
    Kernel *next;
};

inline Kernel *&kernels() {
    static Kernel *first = nullptr;
    return first;
}

template <class T> constexpr char letter() {
    if (std::is_pointer<T>::value) return 'p';
    if (std::is_same<T, float>::value) return 'f';
    static_assert(std::is_pointer<T>::value || std::is_same<T, float>::value || std::is_integral<T>::value,
                  "an argument of a kind that no kernel has");
    return sizeof(T) == 8 ? 'l' : 'i';
}

template <class... A> struct Letters {
    static constexpr char text[] = {letter<A>()..., 0};
};

template <auto kernel> struct Call;
template <class... A, void (*kernel)(A...)> struct Call<kernel> {
    template <size_t... I> static void with(void **arguments, std::index_sequence<I...>) {
        kernel(*(A *)arguments[I]...);
    }
    static void invoke(void **arguments) { with(arguments, std::index_sequence_for<A...>()); }
    static const char *letters() { return Letters<A...>::text; }
};

struct Register {
    Kernel kernel;
    template <class C> Register(const char *name, C) : kernel{name, C::invoke, C::letters(), kernels()} {
        kernels() = &kernel;
    }
};

} // namespace lanes

#define ENTRY(name) static lanes::Register register_##name(#name, lanes::Call<name>());

#define threadIdx (lanes::lane().index)
#define blockIdx (lanes::block().index)
#define blockDim (lanes::block().shape)
#define gridDim (lanes::block().grid)

inline void __syncthreads() { lanes::leave(); }
inline void __trap() { lanes::complain("it is not made for such a launch"); }

template <class T> inline T atomicAdd(T *at, T value) {
    const T before = *at;
    *at = before + value;
    return before;
}

inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

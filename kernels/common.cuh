// What all kernels share: number types, how elements are read and written, how threads share them out.
//
// No CUDA header is included: NVRTC alone makes the PTX, and a host compiler runs the same text in tests.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef double f64;
// Counts of elements.
typedef long long Long;

// On the host a kernel enters itself into a table; on a GPU its name in the module is enough.
#ifndef ENTRY
#define ENTRY(name)
#endif

// In front of a loop that need not be written out several times: many threads hide its latency, and the module stays small.
#define ROLLED _Pragma("unroll 1")

// ---- numbers ----

// The upper half of an f32.
struct Bf16 {
    u16 bits;
};

// IEEE 754 binary16.
struct F16 {
    u16 bits;
};

static __device__ inline float number(float x) { return x; }

static __device__ inline float number(Bf16 x) { return __uint_as_float((u32)x.bits << 16); }

static __device__ inline float number(F16 x) {
    const u32 magnitude = x.bits & 0x7fffu, sign = (u32)(x.bits & 0x8000u) << 16;
    // Its bits where an f32 has them are the number times 2^-112, subnormal ones included; infinity and NaN are set apart.
    const u32 bits = magnitude >= 0x7c00u ? (magnitude << 13) | 0x7f800000u
                                          : __float_as_uint(__uint_as_float(magnitude << 13) * 5.192296858534828e33f);
    return __uint_as_float(bits | sign);
}

static __device__ inline bool is_nan(float x) { return (__float_as_uint(x) & 0x7fffffffu) > 0x7f800000u; }

static __device__ inline bool is_finite(float x) { return (__float_as_uint(x) & 0x7fffffffu) < 0x7f800000u; }

static __device__ inline float infinity() { return __uint_as_float(0x7f800000u); }

template <class T> struct Rounded;

template <> struct Rounded<float> {
    static __device__ inline float of(float x) { return x; }
};

template <> struct Rounded<Bf16> {
    static __device__ inline Bf16 of(float x) {
        const u32 bits = __float_as_uint(x);
        // A NaN keeps its upper bits and is made quiet.
        if (is_nan(x)) return {(u16)((bits >> 16) | 0x40u)};
        return {(u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
    }
};

template <> struct Rounded<F16> {
    static __device__ inline F16 of(float x) {
        const u32 bits = __float_as_uint(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
        u32 half;
        if (magnitude > 0x7f800000u) {
            half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
        } else if (magnitude >= 0x47800000u) { // 65536 and more
            half = 0x7c00u;
        } else if (magnitude < 0x38800000u) { // below 2^-14: the last bit of 0.5 + x is that of a subnormal half
            half = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
        } else {
            half = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
        }
        return {(u16)(half | sign)};
    }
};

// Makes an entry point for each type of number: `of(C++ type, suffix)`.
#define FOR_NUMBERS(of) of(float, f32) of(Bf16, bf16) of(F16, f16)
#define FOR_HALVES(of) of(Bf16, bf16) of(F16, f16)
// … for each pair but the two halves: `of(from, suffix, to, suffix)`.
#define FOR_PAIRS(of)                                                                                                  \
    of(float, f32, float, f32) of(float, f32, Bf16, bf16) of(float, f32, F16, f16) of(Bf16, bf16, float, f32)          \
        of(Bf16, bf16, Bf16, bf16) of(F16, f16, float, f32) of(F16, f16, F16, f16)

// ---- runs of elements ----

// Four neighbours, read or written at once.
template <class T> struct alignas(4 * sizeof(T)) Four {
    T at[4];
};

template <class T> static __device__ inline bool aligned(const T *p) { return (u64)p % sizeof(Four<T>) == 0; }

template <int N, class T> static __device__ inline void load(const T *from, float (&to)[N]) {
    static_assert(N == 1 || N == 4, "one element or four");
    if constexpr (N == 4) {
        const Four<T> all = *(const Four<T> *)from;
        for (int i = 0; i < 4; ++i) to[i] = number(all.at[i]);
    } else {
        to[0] = number(*from);
    }
}

template <int N, class T> static __device__ inline void store(T *to, const float (&from)[N]) {
    if constexpr (N == 4) {
        Four<T> all;
        for (int i = 0; i < 4; ++i) all.at[i] = Rounded<T>::of(from[i]);
        *(Four<T> *)to = all;
    } else {
        *to = Rounded<T>::of(from[0]);
    }
}

// How many elements one call of a loop's body has, as a type, so that its arrays are of that size.
template <int N> struct Count {
    static constexpr int value = N;
};

// Calls f(first element, Count) for all of n elements, those of `first`, `first` + `stride`, … by this thread.
template <class F> static __device__ inline void each_from(Long first, Long stride, Long n, bool wide, F f) {
    const Long fours = wide ? n / 4 : 0;
    ROLLED for (Long i = first; i < fours; i += stride) f(4 * i, Count<4>());
    ROLLED for (Long i = 4 * fours + first; i < n; i += stride) f(i, Count<1>());
}

// All threads of the grid share n elements.
template <class F> static __device__ inline void each(Long n, bool wide, F f) {
    each_from(blockIdx.x * (Long)blockDim.x + threadIdx.x, (Long)gridDim.x * blockDim.x, n, wide, f);
}

// ---- sums over a block ----

constexpr int BLOCK = 256;

// A launch of another shape than the sums below are written for must not pass for a result.
static __device__ inline void require_block(u32 x, u32 y) {
    if (blockDim.x != x || blockDim.y != y || blockDim.z != 1) __trap();
}

struct Add {
    template <class T> static __device__ inline T join(T a, T b) { return a + b; }
};

struct Larger {
    template <class T> static __device__ inline T join(T a, T b) { return a > b ? a : b; }
};

// What the `BLOCK` threads' values come to, in every thread, in one order.
template <class How, class T> static __device__ inline T over_block(T value) {
    __shared__ T all[BLOCK];
    __syncthreads();
    all[threadIdx.x] = value;
    ROLLED for (int half = BLOCK / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) all[threadIdx.x] = How::join(all[threadIdx.x], all[threadIdx.x + half]);
    }
    __syncthreads();
    return all[0];
}

// ---- what changes from step to step ----

// Read from device memory, so that a captured graph runs with new numbers.
struct Scalars {
    u64 seed, step, first_sample, update;
    float gradient_scale, learning_rate;
    // One over the loss scale.
    float unscale;
    // Not 0: the step's gradients are of no use.
    u32 skip;
    // 1 − β₁ᵗ and 1 − β₂ᵗ.
    f64 correction1, correction2;
};

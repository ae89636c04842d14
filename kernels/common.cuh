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

// In front of a loop that need not be written out several times: many threads hide its latency, and the module stays
// small.
#define ROLLED _Pragma("unroll 1")
#define UNROLLED _Pragma("unroll")

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

// A GPU converts by instructions: halves of IEEE on all that are served, bf16 and two at a time from sm_80 on. Of a NaN
// they do not keep the bits; all else is the same.
#if defined(__CUDA_ARCH__)
#define HAS_F16_CONVERSIONS 1
#define HAS_BF16_CONVERSIONS (__CUDA_ARCH__ >= 800)
#else
#define HAS_F16_CONVERSIONS 0
#define HAS_BF16_CONVERSIONS 0
#endif

static __device__ inline float number(F16 x) {
#if HAS_F16_CONVERSIONS
    float to;
    asm("cvt.f32.f16 %0, %1;" : "=f"(to) : "h"(x.bits));
    return to;
#else
    const u32 magnitude = x.bits & 0x7fffu, sign = (u32)(x.bits & 0x8000u) << 16;
    // Its bits where an f32 has them are the number times 2^-112, subnormal ones included; infinity and NaN are set
    // apart.
    const u32 bits = magnitude >= 0x7c00u ? (magnitude << 13) | 0x7f800000u
                                          : __float_as_uint(__uint_as_float(magnitude << 13) * 5.192296858534828e33f);
    return __uint_as_float(bits | sign);
#endif
}

static __device__ inline bool is_nan(float x) { return (__float_as_uint(x) & 0x7fffffffu) > 0x7f800000u; }

static __device__ inline bool is_finite(float x) { return (__float_as_uint(x) & 0x7fffffffu) < 0x7f800000u; }

static __device__ inline float infinity() { return __uint_as_float(0x7f800000u); }

// A number as type T, to the nearest even; of halves also `two` as a word, the first in its lower half, and the way
// back.
template <class T> struct Rounded;

template <> struct Rounded<float> {
    static __device__ inline float of(float x) { return x; }
};

template <> struct Rounded<Bf16> {
    static __device__ inline Bf16 of(float x) {
#if HAS_BF16_CONVERSIONS
        Bf16 to;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
        return to;
#else
        const u32 bits = __float_as_uint(x);
        // A NaN keeps its upper bits and is made quiet.
        const u32 quiet = (bits >> 16) | 0x40u, nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        return {(u16)(is_nan(x) ? quiet : nearest)};
#endif
    }
    static __device__ inline u32 two(float first, float second) {
#if HAS_BF16_CONVERSIONS
        u32 to;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(to) : "f"(second), "f"(first));
        return to;
#else
        return of(first).bits | (u32)of(second).bits << 16;
#endif
    }
    // The half of a word: the lower one, or the upper.
    static __device__ inline float half_of(u32 word, bool upper) {
        return __uint_as_float(upper ? word & 0xffff0000u : word << 16);
    }
};

template <> struct Rounded<F16> {
    static __device__ inline F16 of(float x) {
#if HAS_F16_CONVERSIONS
        F16 to;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
        return to;
#else
        const u32 bits = __float_as_uint(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
        // All four are computed and one is taken: that is cheaper than to have threads part.
        const u32 nearest = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
        // Below 2^-14 the last bit of 0.5 + x is that of a subnormal half.
        const u32 subnormal = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
        const u32 quiet = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
        u32 half = magnitude < 0x38800000u ? subnormal : nearest;
        half = magnitude >= 0x47800000u ? 0x7c00u : half; // 65536 and more
        half = magnitude > 0x7f800000u ? quiet : half;
        return {(u16)(half | sign)};
#endif
    }
    static __device__ inline u32 two(float first, float second) {
#if HAS_BF16_CONVERSIONS
        u32 to;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(to) : "f"(second), "f"(first));
        return to;
#else
        return of(first).bits | (u32)of(second).bits << 16;
#endif
    }
    static __device__ inline float half_of(u32 word, bool upper) {
        return number(F16{(u16)(upper ? word >> 16 : word)});
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

// N neighbours, read or written at once; halves as words of two.
template <class T, int N, bool WORDS = sizeof(T) == 2 && N % 2 == 0> struct alignas(N * sizeof(T)) Pack {
    T at[N];

    __device__ inline float number_at(int k) const { return number(at[k]); }
    __device__ inline void round(int k, float first, float) { at[k] = Rounded<T>::of(first); }
    // +0 in place of element k.
    __device__ inline void clear(int k) { at[k] = {}; }
};

template <class T, int N> struct alignas(N * sizeof(T)) Pack<T, N, true> {
    u32 words[N / 2];

    __device__ inline float number_at(int k) const { return Rounded<T>::half_of(words[k / 2], k % 2); }
    __device__ inline void round(int k, float first, float second) {
        if (k % 2 == 0) words[k / 2] = Rounded<T>::two(first, second);
    }
    __device__ inline void clear(int k) { words[k / 2] &= k % 2 ? 0xffffu : 0xffff0000u; }
};

// As many as one access can have: 16 bytes.
template <class T> constexpr int WIDEST = 16 / (int)sizeof(T);

template <class T, int N = 4> static __device__ inline bool aligned(const T *p) {
    return (u64)p % sizeof(Pack<T, N>) == 0;
}

// Whether rows of so many numbers, which begin at `p`, can be read 16 bytes at a time.
template <class T> static __device__ inline bool widest(const T *p, int width) {
    return width % WIDEST<T> == 0 && aligned<T, WIDEST<T>>(p);
}

template <int N, class T> static __device__ inline Pack<T, N> packed(const float (&from)[N]) {
    Pack<T, N> all;
    for (int k = 0; k < N; ++k) all.round(k, from[k], from[k + 1 < N ? k + 1 : k]);
    return all;
}

template <class T, int N> static __device__ inline void unpack(const Pack<T, N> &all, float (&to)[N]) {
    for (int k = 0; k < N; ++k) to[k] = all.number_at(k);
}

template <int N, class T> static __device__ inline void load(const T *from, float (&to)[N]) {
    // A copy: read in place, each number would be read by itself.
    const Pack<T, N> all = *(const Pack<T, N> *)from;
    unpack(all, to);
}

template <int N, class T> static __device__ inline void store(T *to, const float (&from)[N]) {
    *(Pack<T, N> *)to = packed<N, T>(from);
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

// What the values of `LANES` neighbouring threads come to, in each of them, in one order. Every thread of the block
// calls it.
template <int LANES, class How, class T> static __device__ inline T over_lanes(T value) {
    __shared__ T all[BLOCK];
    __syncthreads();
    all[threadIdx.x] = value;
    ROLLED for (int half = LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x % LANES < half) all[threadIdx.x] = How::join(all[threadIdx.x], all[threadIdx.x + half]);
    }
    __syncthreads();
    return all[threadIdx.x / LANES * LANES];
}

template <class How, class T> static __device__ inline T over_block(T value) { return over_lanes<BLOCK, How>(value); }

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

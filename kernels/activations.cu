// Activations: y = f(x), and dx = dy·f′(x), from y where that tells it and from x elsewhere.
#include "elements.cuh"

#define RELU(T, t)                                                                                                     \
    extern "C" __global__ void relu_##t(const T *x, T *y, Long n, float max) {                                         \
        map(x, y, n, [=](float v) { return fminf(fmaxf(v, 0.0f), max); });                                             \
    }                                                                                                                  \
    ENTRY(relu_##t)                                                                                                    \
    extern "C" __global__ void relu_backward_##t(const T *dy, const T *y, T *dx, Long n, float max) {                  \
        zip(dy, y, dx, n, [=](float d, float v) { return v > 0.0f && v < max ? d : 0.0f; });                           \
    }                                                                                                                  \
    ENTRY(relu_backward_##t)

FOR_NUMBERS(RELU)

// The others have no number. A kind is a function, its slope at what the way back reads, and a line below.
#define ACTIVATION(F, f, T, t)                                                                                         \
    extern "C" __global__ void f##_##t(const T *x, T *y, Long n) { map(x, y, n, [](float v) { return F::of(v); }); }   \
    ENTRY(f##_##t)                                                                                                     \
    extern "C" __global__ void f##_backward_##t(const T *dy, const T *from, T *dx, Long n) {                           \
        zip(dy, from, dx, n, [](float d, float v) { return d * F::slope(v); });                                        \
    }                                                                                                                  \
    ENTRY(f##_backward_##t)

struct Sigmoid {
    static __device__ inline float of(float x) { return 1.0f / (1.0f + expf(-x)); }
    static __device__ inline float slope(float y) { return y * (1.0f - y); }
};

#define SIGMOID(T, t) ACTIVATION(Sigmoid, sigmoid, T, t)
FOR_NUMBERS(SIGMOID)

struct Silu {
    static __device__ inline float of(float x) { return x / (1.0f + expf(-x)); }
    static __device__ inline float slope(float x) {
        const float y = Sigmoid::of(x);
        return y * (1.0f + x * (1.0f - y));
    }
};

#define SILU(T, t) ACTIVATION(Silu, silu, T, t)
FOR_NUMBERS(SILU)

// x·Φ(x), with Φ by the complementary error function: it keeps its digits below zero.
struct Gelu {
    static __device__ inline float normal(float x) { return 0.5f * erfcf(x * -0.70710678f); }
    static __device__ inline float of(float x) { return x * normal(x); }
    static __device__ inline float slope(float x) {
        return normal(x) + x * (0.39894228f * expf(-0.5f * x * x));
    }
};

#define GELU(T, t) ACTIVATION(Gelu, gelu, T, t)
FOR_NUMBERS(GELU)

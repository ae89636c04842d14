// Activations: y = f(x), and dx = dy·f′(x), from y where that tells it and from x elsewhere.
#include "elements.cuh"

// With a number: a kind is its value at x, what becomes of dy where y was v, and a line below.
#define WITH_NUMBER(F, f, T, t)                                                                                        \
    extern "C" __global__ void f##_##t(const T *x, T *y, Long n, float number) {                                       \
        map(x, y, n, [=](float v) { return F::of(v, number); });                                                       \
    }                                                                                                                  \
    ENTRY(f##_##t)                                                                                                     \
    extern "C" __global__ void f##_backward_##t(const T *dy, const T *y, T *dx, Long n, float number) {                \
        zip(dy, y, dx, n, [=](float d, float v) { return F::back(d, v, number); });                                    \
    }                                                                                                                  \
    ENTRY(f##_backward_##t)

struct Relu {
    static __device__ inline float of(float x, float max) { return fminf(fmaxf(x, 0.0f), max); }
    static __device__ inline float back(float d, float y, float max) { return y > 0.0f && y < max ? d : 0.0f; }
};

#define RELU(T, t) WITH_NUMBER(Relu, relu, T, t)
FOR_NUMBERS(RELU)

struct LeakyRelu {
    static __device__ inline float of(float x, float slope) { return x > 0.0f ? x : slope * x; }
    static __device__ inline float back(float d, float y, float slope) { return y > 0.0f ? d : slope * d; }
};

#define LEAKY_RELU(T, t) WITH_NUMBER(LeakyRelu, leaky_relu, T, t)
FOR_NUMBERS(LEAKY_RELU)

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

struct HardSigmoid {
    static __device__ inline float of(float x) { return fminf(fmaxf(x * (1.0f / 6.0f) + 0.5f, 0.0f), 1.0f); }
    static __device__ inline float slope(float x) { return x > -3.0f && x < 3.0f ? 1.0f / 6.0f : 0.0f; }
};

#define HARD_SIGMOID(T, t) ACTIVATION(HardSigmoid, hardsigmoid, T, t)
FOR_NUMBERS(HARD_SIGMOID)

struct HardSwish {
    static __device__ inline float of(float x) { return x * HardSigmoid::of(x); }
    static __device__ inline float slope(float x) {
        return x <= -3.0f ? 0.0f : x < 3.0f ? x * (1.0f / 3.0f) + 0.5f : 1.0f;
    }
};

#define HARD_SWISH(T, t) ACTIVATION(HardSwish, hardswish, T, t)
FOR_NUMBERS(HARD_SWISH)

struct Tanh {
    static __device__ inline float of(float x) { return tanhf(x); }
    static __device__ inline float slope(float y) { return (1.0f - y) * (1.0f + y); }
};

#define TANH(T, t) ACTIVATION(Tanh, tanh, T, t)
FOR_NUMBERS(TANH)

struct Exp {
    static __device__ inline float of(float x) { return expf(x); }
    static __device__ inline float slope(float y) { return y; }
};

#define EXP(T, t) ACTIVATION(Exp, exp, T, t)
FOR_NUMBERS(EXP)

struct Sqrt {
    static __device__ inline float of(float x) { return sqrtf(x); }
    static __device__ inline float slope(float y) { return 0.5f / y; }
};

#define SQRT(T, t) ACTIVATION(Sqrt, sqrt, T, t)
FOR_NUMBERS(SQRT)

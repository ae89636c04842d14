// Arithmetic of tensors of which either may be stretched over the other, stretching, and sums over axes.
#include "elements.cuh"

// How a tensor of four axes is read: its strides, 0 where it is stretched.
struct Strides {
    int at[4];
    __device__ inline Long of(Long i, int e1, int e2, int e3) const {
        const Long i3 = i % e3, rest = i / e3, i2 = rest % e2, upper = rest / e2;
        return upper / e1 * at[0] + upper % e1 * at[1] + i2 * at[2] + i3 * at[3];
    }
};

// N neighbours along the last axis, or one for all of them.
template <int N, class T> static __device__ inline void read(const T *x, bool stretched, float (&v)[N]) {
    if (stretched)
        for (int k = 0; k < N; ++k) v[k] = number(*x);
    else load(x, v);
}

static __device__ inline float joined(int kind, float a, float b) {
    return kind == 0 ? a + b : kind == 1 ? a - b : kind == 2 ? a * b : a / b;
}

// Whether fours of the last axis are neighbours, or one number, in a tensor that is read through these.
template <class T> static __device__ inline bool in_fours(const T *x, const Strides &of) {
    return of.at[3] == 0 || (of.at[3] == 1 && aligned(x));
}

template <class T>
static __device__ inline void binary(const T *a, const T *b, T *y, int kind, Long n, int e1, int e2, int e3,
                                     const Strides &of_a, const Strides &of_b) {
    const bool wide = e3 % 4 == 0 && aligned(y) && in_fours(a, of_a) && in_fours(b, of_b);
    each(n, wide, [&](Long i, auto count) {
        float v[count.value], w[count.value];
        read(a + of_a.of(i, e1, e2, e3), of_a.at[3] == 0, v);
        read(b + of_b.of(i, e1, e2, e3), of_b.at[3] == 0, w);
        for (int k = 0; k < count.value; ++k) v[k] = joined(kind, v[k], w[k]);
        store(y + i, v);
    });
}

template <class T>
static __device__ inline void expand(const T *x, T *y, Long n, int e1, int e2, int e3, const Strides &of, float scale) {
    each(n, e3 % 4 == 0 && aligned(y) && in_fours(x, of), [&](Long i, auto count) {
        float v[count.value];
        read(x + of.of(i, e1, e2, e3), of.at[3] == 0, v);
        for (int k = 0; k < count.value; ++k) v[k] *= scale;
        store(y + i, v);
    });
}

#define STRETCHED(T, t)                                                                                                \
    extern "C" __global__ void binary_##t(const T *a, const T *b, T *y, int kind, Long n, int e1, int e2, int e3,      \
                                          int a0, int a1, int a2, int a3, int b0, int b1, int b2, int b3) {            \
        binary(a, b, y, kind, n, e1, e2, e3, {{a0, a1, a2, a3}}, {{b0, b1, b2, b3}});                                  \
    }                                                                                                                  \
    ENTRY(binary_##t)                                                                                                  \
    extern "C" __global__ void expand_##t(const T *x, T *y, Long n, int e1, int e2, int e3, int x0, int x1, int x2,    \
                                          int x3, float scale) {                                                       \
        expand(x, y, n, e1, e2, e3, {{x0, x1, x2, x3}}, scale);                                                        \
    }                                                                                                                  \
    ENTRY(expand_##t)

FOR_NUMBERS(STRETCHED)

// Sums that lie side by side, and threads that share each.
constexpr int SUMS = 32, SHARERS = 8;

template <class F, class T>
static __device__ inline void sum_axes(const F *x, T *y, Long n, int e1, int k0, int k1, int count, int r1, int s0,
                                       int s1, float scale) {
    require_block(SUMS, SHARERS);
    __shared__ float parts[SHARERS][SUMS];
    ROLLED for (Long first = blockIdx.x * (Long)SUMS; first < n; first += (Long)gridDim.x * SUMS) {
        const Long i = first + threadIdx.x;
        float own = 0.0f;
        if (i < n) {
            const F *from = x + i / e1 * k0 + i % e1 * k1;
            for (int r = threadIdx.y; r < count; r += SHARERS)
                own += number(from[r / r1 * (Long)s0 + r % r1 * (Long)s1]);
        }
        __syncthreads();
        parts[threadIdx.y][threadIdx.x] = own;
        __syncthreads();
        if (threadIdx.y != 0 || i >= n) continue;
        float sum = 0.0f;
        for (int part = 0; part < SHARERS; ++part) sum += parts[part][threadIdx.x];
        y[i] = Rounded<T>::of(scale * sum);
    }
}

#define SUM_AXES(F, f, T, t)                                                                                           \
    extern "C" __global__ void sum_axes_##f##_##t(const F *x, T *y, Long n, int e1, int k0, int k1, int count, int r1, \
                                                  int s0, int s1, float scale) {                                       \
        sum_axes(x, y, n, e1, k0, k1, count, r1, s0, s1, scale);                                                       \
    }                                                                                                                  \
    ENTRY(sum_axes_##f##_##t)

FOR_PAIRS(SUM_AXES)

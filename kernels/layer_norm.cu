// Layer normalisation: of rows, a block a row; and the gradients of weight and bias, sums over the rows.
#include "common.cuh"

// Calls f(place) for each number of a row that is this thread's.
template <class F> static __device__ inline void in_row(int width, F f) {
    for (int k = threadIdx.x; k < width; k += BLOCK) f(k);
}

static __device__ inline float given(const float *of, int k, float missing) { return of ? of[k] : missing; }

static __device__ inline float one_over_deviation(float variance, float epsilon) {
    return 1.0f / sqrtf(variance + epsilon);
}

template <class T>
static __device__ inline void layer_norm(const T *x, T *y, const float *w, const float *b, float *means,
                                         float *variances, Long rows, int width, float epsilon) {
    require_block(BLOCK, 1);
    ROLLED for (Long row = blockIdx.x; row < rows; row += gridDim.x) {
        const T *from = x + row * width;
        T *to = y + row * width;
        float sum = 0.0f, squares = 0.0f;
        in_row(width, [&](int k) { sum += number(from[k]); });
        const float mean = over_block<Add>(sum) / width;
        in_row(width, [&](int k) {
            const float off = number(from[k]) - mean;
            squares += off * off;
        });
        const float variance = over_block<Add>(squares) / width, scale = one_over_deviation(variance, epsilon);
        in_row(width, [&](int k) {
            to[k] = Rounded<T>::of((number(from[k]) - mean) * scale * given(w, k, 1.0f) + given(b, k, 0.0f));
        });
        if (threadIdx.x != 0) continue;
        means[row] = mean;
        variances[row] = variance;
    }
}

template <class T>
static __device__ inline void layer_norm_backward(const T *dy, const T *x, const float *w, const float *means,
                                                  const float *variances, T *dx, Long rows, int width, float epsilon) {
    require_block(BLOCK, 1);
    ROLLED for (Long row = blockIdx.x; row < rows; row += gridDim.x) {
        const T *of_y = dy + row * width, *from = x + row * width;
        const float mean = means[row], scale = one_over_deviation(variances[row], epsilon);
        float sum = 0.0f, along = 0.0f;
        in_row(width, [&](int k) {
            const float g = number(of_y[k]) * given(w, k, 1.0f);
            sum += g;
            along += g * ((number(from[k]) - mean) * scale);
        });
        sum = over_block<Add>(sum) / width;
        along = over_block<Add>(along) / width;
        in_row(width, [&](int k) {
            const float g = number(of_y[k]) * given(w, k, 1.0f), normal = (number(from[k]) - mean) * scale;
            dx[row * width + k] = Rounded<T>::of(scale * (g - sum - normal * along));
        });
    }
}

// Columns side by side, and threads that share the rows of each.
constexpr int COLUMNS = 32, ROWS_OF_THREADS = 8;

template <class T>
static __device__ inline void layer_norm_sums(const T *dy, const T *x, const float *means, const float *variances,
                                              float *of_w, float *of_b, Long rows, int width, int parts,
                                              float epsilon) {
    require_block(COLUMNS, ROWS_OF_THREADS);
    __shared__ float all[2][ROWS_OF_THREADS][COLUMNS];
    const int k = blockIdx.x * COLUMNS + threadIdx.x;
    ROLLED for (int part = blockIdx.y; part < parts; part += gridDim.y) {
        float dw = 0.0f, db = 0.0f;
        if (k < width) {
            for (Long row = part * (Long)ROWS_OF_THREADS + threadIdx.y; row < rows;
                 row += parts * (Long)ROWS_OF_THREADS) {
                const float g = number(dy[row * width + k]);
                db += g;
                dw += g * ((number(x[row * width + k]) - means[row]) * one_over_deviation(variances[row], epsilon));
            }
        }
        __syncthreads();
        all[0][threadIdx.y][threadIdx.x] = dw;
        all[1][threadIdx.y][threadIdx.x] = db;
        __syncthreads();
        if (threadIdx.y != 0 || k >= width) continue;
        float sums[2] = {};
        for (int which = 0; which < 2; ++which)
            for (int r = 0; r < ROWS_OF_THREADS; ++r) sums[which] += all[which][r][threadIdx.x];
        of_w[part * (Long)width + k] = sums[0];
        of_b[part * (Long)width + k] = sums[1];
    }
}

#define LAYER_NORM(T, t)                                                                                               \
    extern "C" __global__ void layer_norm_##t(const T *x, T *y, const float *w, const float *b, float *mean,           \
                                              float *variance, Long rows, int width, float epsilon) {                  \
        layer_norm(x, y, w, b, mean, variance, rows, width, epsilon);                                                  \
    }                                                                                                                  \
    ENTRY(layer_norm_##t)                                                                                              \
    extern "C" __global__ void layer_norm_backward_##t(const T *dy, const T *x, const float *w, const float *mean,     \
                                                       const float *variance, T *dx, Long rows, int width,             \
                                                       float epsilon) {                                                \
        layer_norm_backward(dy, x, w, mean, variance, dx, rows, width, epsilon);                                       \
    }                                                                                                                  \
    ENTRY(layer_norm_backward_##t)                                                                                     \
    extern "C" __global__ void layer_norm_sums_##t(const T *dy, const T *x, const float *mean, const float *variance,  \
                                                   float *of_w, float *of_b, Long rows, int width, int parts,          \
                                                   float epsilon) {                                                    \
        layer_norm_sums(dy, x, mean, variance, of_w, of_b, rows, width, parts, epsilon);                               \
    }                                                                                                                  \
    ENTRY(layer_norm_sums_##t)

FOR_NUMBERS(LAYER_NORM)

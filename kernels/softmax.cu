// Softmax of rows, a block a row.
#include "common.cuh"

template <class T> static __device__ inline void softmax(const T *x, T *y, Long rows, int width) {
    require_block(BLOCK, 1);
    ROLLED for (Long row = blockIdx.x; row < rows; row += gridDim.x) {
        const T *from = x + row * width;
        float largest = -infinity(), sum = 0.0f;
        for (int k = threadIdx.x; k < width; k += BLOCK) largest = fmaxf(largest, number(from[k]));
        largest = over_block<Larger>(largest);
        for (int k = threadIdx.x; k < width; k += BLOCK) sum += expf(number(from[k]) - largest);
        const float scale = 1.0f / over_block<Add>(sum);
        for (int k = threadIdx.x; k < width; k += BLOCK)
            y[row * width + k] = Rounded<T>::of(expf(number(from[k]) - largest) * scale);
    }
}

template <class T>
static __device__ inline void softmax_backward(const T *dy, const T *y, T *dx, Long rows, int width) {
    require_block(BLOCK, 1);
    ROLLED for (Long row = blockIdx.x; row < rows; row += gridDim.x) {
        const Long first = row * width;
        float sum = 0.0f;
        for (int k = threadIdx.x; k < width; k += BLOCK) sum += number(dy[first + k]) * number(y[first + k]);
        sum = over_block<Add>(sum);
        for (int k = threadIdx.x; k < width; k += BLOCK)
            dx[first + k] = Rounded<T>::of(number(y[first + k]) * (number(dy[first + k]) - sum));
    }
}

#define SOFTMAX(T, t)                                                                                                  \
    extern "C" __global__ void softmax_##t(const T *x, T *y, Long rows, int width) { softmax(x, y, rows, width); }     \
    ENTRY(softmax_##t)                                                                                                 \
    extern "C" __global__ void softmax_backward_##t(const T *dy, const T *y, T *dx, Long rows, int width) {            \
        softmax_backward(dy, y, dx, rows, width);                                                                      \
    }                                                                                                                  \
    ENTRY(softmax_backward_##t)

FOR_NUMBERS(SOFTMAX)

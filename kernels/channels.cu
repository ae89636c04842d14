// A range of channels from one tensor into a range of another: concatenation and its way back.
#include "common.cuh"

// Any block and grid: threads side by side share the channels, the others the rows, and nothing is divided.
template <class T>
__device__ inline void copy_channels(const T *x, T *y, Long rows, int channels, int x_width, int x_from, int y_width,
                                     int y_from) {
    x += x_from;
    y += y_from;
    const auto copy = [&](auto count) {
        constexpr int N = count.value;
        ROLLED for (Long r = blockIdx.x * (Long)blockDim.y + threadIdx.y; r < rows; r += gridDim.x * (Long)blockDim.y) {
            // Bits, not numbers: nothing is computed.
            ROLLED for (int c = threadIdx.x * N; c < channels; c += blockDim.x * N)
                *(Pack<T, N> *)(y + r * y_width + c) = *(const Pack<T, N> *)(x + r * x_width + c);
        }
    };
    if (channels % WIDEST<T> == 0 && widest(x, x_width) && widest(y, y_width)) copy(Count<WIDEST<T>>());
    else copy(Count<1>());
}

#define CHANNELS(T, t)                                                                                                 \
    extern "C" __global__ void copy_channels_##t(const T *x, T *y, Long rows, int channels, int x_width, int x_from,   \
                                                 int y_width, int y_from) {                                            \
        copy_channels(x, y, rows, channels, x_width, x_from, y_width, y_from);                                         \
    }                                                                                                                  \
    ENTRY(copy_channels_##t)

FOR_NUMBERS(CHANNELS)

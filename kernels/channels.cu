// A range of channels from one tensor into a range of another: concatenation and its way back.
#include "common.cuh"

template <class T>
__device__ inline void copy_channels(const T *x, T *y, Long rows, int channels, int x_width, int x_from, int y_width,
                                     int y_from) {
    x += x_from;
    y += y_from;
    const bool wide = channels % 4 == 0 && x_width % 4 == 0 && y_width % 4 == 0 && aligned(x) && aligned(y);
    each(rows * channels, wide, [&](Long i, auto count) {
        const Long row = i / channels, c = i % channels;
        // Bits, not numbers: nothing is computed.
        if constexpr (count.value == 4) *(Four<T> *)(y + row * y_width + c) = *(const Four<T> *)(x + row * x_width + c);
        else y[row * y_width + c] = x[row * x_width + c];
    });
}

#define CHANNELS(T, t)                                                                                                 \
    extern "C" __global__ void copy_channels_##t(const T *x, T *y, Long rows, int channels, int x_width, int x_from,   \
                                                 int y_width, int y_from) {                                            \
        copy_channels(x, y, rows, channels, x_width, x_from, y_width, y_from);                                         \
    }                                                                                                                  \
    ENTRY(copy_channels_##t)

FOR_NUMBERS(CHANNELS)

// Images of few channels, a thread a pixel.
#pragma once
#include "common.cuh"

// So many channels at the most are read together: colours, with or without a fourth.
constexpr int COLOURS = 4;

// Calls f(sample, number of the pixel among those of all samples). Any grid: y stands for samples, x for a sample's
// pixels.
template <class F> static __device__ inline void each_pixel_of(int samples, int plane, F f) {
    ROLLED for (int sample = blockIdx.y; sample < samples; sample += gridDim.y)
        ROLLED for (int p = blockIdx.x * blockDim.x + threadIdx.x; p < plane; p += gridDim.x * blockDim.x)
            f(sample, (Long)sample * plane + p);
}

// Writes the pixels of images with their channels last: value(sample, pixel, c) for c < channels, 0 from there to
// `padded`.
template <class T, class Value>
static __device__ inline void put_pixels(T *y, int samples, int plane, int channels, int padded, Value value) {
    const auto wide = [&](auto count) {
        constexpr int N = count.value;
        each_pixel_of(samples, plane, [&](int sample, Long i) {
            float v[N] = {};
            for (int c = 0; c < COLOURS; ++c)
                if (c < channels) v[c] = value(sample, i, c);
            store(y + N * i, v);
        });
    };
    constexpr int EIGHT = sizeof(T) == 2 ? 8 : 4;
    if (padded == 4 && channels <= COLOURS && aligned<T, 4>(y)) return wide(Count<4>());
    if (padded == EIGHT && channels <= COLOURS && aligned<T, EIGHT>(y)) return wide(Count<EIGHT>());
    each_pixel_of(samples, plane, [&](int sample, Long i) {
        ROLLED for (int c = 0; c < padded; ++c)
            y[i * padded + c] = Rounded<T>::of(c < channels ? value(sample, i, c) : 0.0f);
    });
}

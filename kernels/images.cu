// Pictures as bytes become what a network reads: normalised, channels innermost, padded.
#include "pixels.cuh"

template <class T>
__device__ inline void images(const u8 *x, const int *labels, T *y, int n, int channels, int plane, int padded,
                              const float *scale, const float *shift) {
    put_pixels(y, n, plane, channels, padded, [&](int sample, Long i, int c) {
        const bool is_image = labels == nullptr || labels[sample] >= 0;
        return is_image ? (float)x[i * channels + c] * scale[c] + shift[c] : 0.0f;
    });
}

#define IMAGES(T, t)                                                                                                   \
    extern "C" __global__ void images_##t(const u8 *x, const int *labels, T *y, int n, int channels, int plane,        \
                                          int padded, const float *scale, const float *shift) {                        \
        images(x, labels, y, n, channels, plane, padded, scale, shift);                                                \
    }                                                                                                                  \
    ENTRY(images_##t)

FOR_NUMBERS(IMAGES)

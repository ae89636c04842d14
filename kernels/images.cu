// Pictures as bytes become what a network reads: normalised, channels innermost, padded.
#include "common.cuh"

template <class T>
__device__ inline void images(const u8 *x, const int *labels, T *y, int n, int channels, int plane, int padded,
                              const float *scale, const float *shift) {
    const bool wide = padded == 4 && aligned(y);
    each((Long)n * plane, false, [&](Long i, auto) {
        const bool is_image = labels == nullptr || labels[i / plane] >= 0;
        // Number c of pixel i.
        const auto value = [&](int c) {
            return is_image && c < channels ? (float)x[i * channels + c] * scale[c] + shift[c] : 0.0f;
        };
        if (wide) {
            float v[4];
            for (int c = 0; c < 4; ++c) v[c] = value(c);
            store(y + 4 * i, v);
        } else {
            ROLLED for (int c = 0; c < padded; ++c) y[i * padded + c] = Rounded<T>::of(value(c));
        }
    });
}

#define IMAGES(T, t)                                                                                                   \
    extern "C" __global__ void images_##t(const u8 *x, const int *labels, T *y, int n, int channels, int plane,        \
                                          int padded, const float *scale, const float *shift) {                        \
        images(x, labels, y, n, channels, plane, padded, scale, shift);                                                \
    }                                                                                                                  \
    ENTRY(images_##t)

FOR_NUMBERS(IMAGES)

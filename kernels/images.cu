// Pictures as bytes become what a network reads: normalised, channels innermost, padded.
#include "common.cuh"

template <class T>
__device__ inline void images(const u8 *x, T *y, int n, int channels, int plane, int padded, bool channels_last,
                              const float *scale, const float *shift) {
    // Number c of pixel i, which is place p of its sample.
    const auto value = [=](Long i, Long sample, Long p, int c) {
        if (c >= channels) return 0.0f;
        const Long at = channels_last ? i * channels + c : (sample * channels + c) * plane + p;
        return (float)x[at] * scale[c] + shift[c];
    };
    const bool wide = padded == 4 && aligned(y);
    each((Long)n * plane, false, [&](Long i, auto) {
        const Long sample = i / plane, p = i % plane;
        if (wide) {
            float v[4];
            for (int c = 0; c < 4; ++c) v[c] = value(i, sample, p, c);
            store(y + 4 * i, v);
        } else {
            ROLLED for (int c = 0; c < padded; ++c) y[i * padded + c] = Rounded<T>::of(value(i, sample, p, c));
        }
    });
}

#define IMAGES(T, t)                                                                                                   \
    extern "C" __global__ void images_##t(const u8 *x, T *y, int n, int channels, int plane, int padded,               \
                                          int channels_last, const float *scale, const float *shift) {                 \
        images(x, y, n, channels, plane, padded, channels_last, scale, shift);                                         \
    }                                                                                                                  \
    ENTRY(images_##t)

FOR_NUMBERS(IMAGES)

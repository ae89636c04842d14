// Element by element: fill, scale, cast, accumulate, add, bias.
#include "elements.cuh"

template <class T> __device__ inline void fill(T *y, Long n, float value) {
    each(n, aligned(y), [&](Long i, auto count) {
        float out[count.value];
        for (int k = 0; k < count.value; ++k) out[k] = value;
        store(y + i, out);
    });
}

#define ELEMENTS(T, t)                                                                                                 \
    extern "C" __global__ void fill_##t(T *y, Long n, float value) { fill(y, n, value); }                              \
    ENTRY(fill_##t)                                                                                                    \
    extern "C" __global__ void scale_##t(T *y, Long n, float factor) {                                                 \
        map(y, y, n, [=](float v) { return v * factor; });                                                             \
    }                                                                                                                  \
    ENTRY(scale_##t)                                                                                                   \
    extern "C" __global__ void accumulate_##t(const T *from, float *into, Long n) {                                    \
        zip(into, from, into, n, [](float a, float b) { return a + b; });                                              \
    }                                                                                                                  \
    ENTRY(accumulate_##t)                                                                                              \
    extern "C" __global__ void add_##t(const T *a, const T *b, T *y, Long n, int relu) {                               \
        if (relu) zip(a, b, y, n, [](float v, float w) { return fmaxf(v + w, 0.0f); });                                \
        else zip(a, b, y, n, [](float v, float w) { return v + w; });                                                  \
    }                                                                                                                  \
    ENTRY(add_##t)

FOR_NUMBERS(ELEMENTS)

#define CAST(F, f, T, t)                                                                                               \
    extern "C" __global__ void cast_##f##_##t(const F *x, T *y, Long n, float factor) {                                \
        map(x, y, n, [=](float v) { return v * factor; });                                                             \
    }                                                                                                                  \
    ENTRY(cast_##f##_##t)

FOR_PAIRS(CAST)

// A part of a gradient: where its halves lie and where its f32 numbers go, in elements from two places.
struct Narrow {
    Long from, to, n;
};

// Many casts at once, of which a block does a piece at a time.
#define WIDEN(H, h)                                                                                                    \
    extern "C" __global__ void widen_##h(const H *from, float *to, const Narrow *pieces, int count) {                  \
        ROLLED for (int p = blockIdx.x; p < count; p += gridDim.x) {                                                   \
            const Narrow piece = pieces[p];                                                                            \
            const H *x = from + piece.from;                                                                            \
            float *y = to + piece.to;                                                                                  \
            each_from(threadIdx.x, blockDim.x, piece.n, aligned(x) && aligned(y), [&](Long i, auto of) {               \
                float v[of.value];                                                                                     \
                load(x + i, v);                                                                                        \
                store(y + i, v);                                                                                       \
            });                                                                                                        \
        }                                                                                                              \
    }                                                                                                                  \
    ENTRY(widen_##h)

FOR_HALVES(WIDEN)

// What travels between ranks: a sum is rounded to what travels next.
#define WIRE(H, h)                                                                                                     \
    extern "C" __global__ void accumulate_rounded_##h(const H *from, float *into, Long n) {                            \
        zip(into, from, into, n, [](float a, float b) { return number(Rounded<H>::of(a + b)); });                      \
    }                                                                                                                  \
    ENTRY(accumulate_rounded_##h)                                                                                      \
    extern "C" __global__ void round_##h(float *values, H *wire, Long n) {                                             \
        each(n, aligned(values) && aligned(wire), [&](Long i, auto count) {                                            \
            float v[count.value];                                                                                      \
            load(values + i, v);                                                                                       \
            store(wire + i, v);                                                                                        \
            for (int k = 0; k < count.value; ++k) v[k] = number(Rounded<H>::of(v[k]));                                 \
            store(values + i, v);                                                                                      \
        });                                                                                                            \
    }                                                                                                                  \
    ENTRY(round_##h)

FOR_HALVES(WIRE)

// b is one number a channel.
template <class T> __device__ inline void bias(T *y, const float *b, Long rows, int channels, float max) {
    const bool wide = channels % 4 == 0 && aligned(y) && aligned(b);
    each(rows * channels, wide, [&](Long i, auto count) {
        const int c = (int)(i % channels);
        float v[count.value], add[count.value];
        load(y + i, v);
        load(b + c, add);
        for (int k = 0; k < count.value; ++k) {
            v[k] += add[k];
            if (max > 0.0f) v[k] = fminf(fmaxf(v[k], 0.0f), max);
        }
        store(y + i, v);
    });
}

#define ROWS(T, t)                                                                                                     \
    extern "C" __global__ void bias_##t(T *y, const float *b, Long rows, int channels, float max) {                    \
        bias(y, b, rows, channels, max);                                                                               \
    }                                                                                                                  \
    ENTRY(bias_##t)

FOR_NUMBERS(ROWS)

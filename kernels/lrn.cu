// Local response normalisation across channels (Krizhevsky, Sutskever, Hinton 2012).
#include "common.cuh"

// The channels around c: c − size/2 … c + size/2, as far as they exist.
struct Around {
    int first, end;
};

static __device__ inline Around around(int c, int size, int channels) {
    const int first = c - size / 2, end = c + size / 2 + 1;
    return {first < 0 ? 0 : first, end > channels ? channels : end};
}

template <class T>
__device__ inline void lrn(const T *x, T *y, float *response, Long rows, int channels, int size, float alpha,
                           float beta, float k) {
    each(rows * channels, false, [&](Long i, auto) {
        const int c = (int)(i % channels);
        const T *row = x + (i - c);
        const Around near = around(c, size, channels);
        float squares = 0.0f;
        ROLLED for (int d = near.first; d < near.end; ++d) squares += number(row[d]) * number(row[d]);
        const float r = k + alpha / size * squares;
        y[i] = Rounded<T>::of(number(x[i]) * powf(r, -beta));
        if (response != nullptr) response[i] = r;
    });
}

// dx_c = dy_c·r_c^−β − 2β·alpha/size·x_c·Σ dy_d·x_d·r_d^(−β−1) over the channels d around c.
template <class T>
__device__ inline void lrn_backward(const T *dy, const T *x, const float *response, T *dx, Long rows, int channels,
                                    int size, float alpha, float beta) {
    each(rows * channels, false, [&](Long i, auto) {
        const int c = (int)(i % channels);
        const Long row = i - c;
        const Around near = around(c, size, channels);
        float shared = 0.0f;
        ROLLED for (int d = near.first; d < near.end; ++d)
            shared += number(dy[row + d]) * number(x[row + d]) * powf(response[row + d], -beta - 1.0f);
        const float share = 2.0f * beta * alpha / size;
        dx[i] = Rounded<T>::of(number(dy[i]) * powf(response[i], -beta) - share * number(x[i]) * shared);
    });
}

#define LRN(T, t)                                                                                                      \
    extern "C" __global__ void lrn_##t(const T *x, T *y, float *response, Long rows, int channels, int size,           \
                                       float alpha, float beta, float k) {                                             \
        lrn(x, y, response, rows, channels, size, alpha, beta, k);                                                     \
    }                                                                                                                  \
    ENTRY(lrn_##t)                                                                                                     \
    extern "C" __global__ void lrn_backward_##t(const T *dy, const T *x, const float *response, T *dx, Long rows,      \
                                                int channels, int size, float alpha, float beta) {                     \
        lrn_backward(dy, x, response, dx, rows, channels, size, alpha, beta);                                          \
    }                                                                                                                  \
    ENTRY(lrn_backward_##t)

FOR_NUMBERS(LRN)

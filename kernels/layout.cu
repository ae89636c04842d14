// N,C,H,W to N,H,W,C and back, through a tile in shared memory, so that reads and writes both are of neighbours. With
// channels added that hold 0 (convolutions on tensor cores want a multiple of 4 or 8), and other types.
#include "pixels.cuh"

constexpr int TILE = 32;
constexpr int TILE_ROWS = 8;

// `rows` × `columns` numbers of each sample become columns × rows; `block_row` and `block_column` say which tile is
// this block's, `read(sample, row, column)` and `write(sample, row, column, value)` know
// where numbers lie.
template <class Read, class Write>
__device__ inline void turn(int samples, int rows, int columns, u32 block_row, u32 block_column, Read read,
                            Write write) {
    require_block(TILE, TILE_ROWS);
    // One more column: else all of a column would lie in one bank.
    __shared__ float tile[TILE][TILE + 1];
    const int row = block_row * TILE, column = block_column * TILE;
    ROLLED for (int sample = blockIdx.z; sample < samples; sample += gridDim.z) {
        for (int k = threadIdx.y; k < TILE; k += TILE_ROWS) {
            const int r = row + k, c = column + threadIdx.x;
            if (r < rows && c < columns) tile[k][threadIdx.x] = read(sample, r, c);
        }
        __syncthreads();
        for (int k = threadIdx.y; k < TILE; k += TILE_ROWS) {
            const int r = row + threadIdx.x, c = column + k;
            if (r < rows && c < columns) write(sample, r, c, tile[threadIdx.x][k]);
        }
        __syncthreads();
    }
}

template <class F, class T>
__device__ inline void to_channels_last(const F *x, T *y, int n, int channels, int plane, int padded) {
    turn(
        n, padded, plane, blockIdx.y, blockIdx.x,
        [=](int s, int c, int p) { return c < channels ? number(x[((Long)s * channels + c) * plane + p]) : 0.0f; },
        [=](int s, int c, int p, float v) { y[((Long)s * plane + p) * padded + c] = Rounded<T>::of(v); });
}

// The same for images of few channels: a tile of those would be empty but for a few of its rows.
template <class F, class T>
__device__ inline void colours_to_channels_last(const F *x, T *y, int n, int channels, int plane, int padded) {
    if (channels > COLOURS) __trap();
    // Planes lie one after the other: of sample s, channel c, pixel p at (s·channels + c)·plane + p.
    put_pixels(y, n, plane, channels, padded, [&](int sample, Long i, int c) {
        return number(x[i + ((Long)sample * (channels - 1) + c) * plane]);
    });
}

template <class F, class T>
__device__ inline void to_channels_first(const F *x, T *y, int n, int channels, int plane, int padded) {
    turn(
        n, plane, channels, blockIdx.x, blockIdx.y,
        [=](int s, int p, int c) { return number(x[((Long)s * plane + p) * padded + c]); },
        [=](int s, int p, int c, float v) { y[((Long)s * channels + c) * plane + p] = Rounded<T>::of(v); });
}

template <class F, class T> __device__ inline void repad(const F *x, T *y, Long rows, int from, int to) {
    each(rows * to, false, [&](Long i, auto) {
        const Long row = i / to;
        const int c = (int)(i % to);
        y[i] = Rounded<T>::of(c < from ? number(x[row * from + c]) : 0.0f);
    });
}

#define LAYOUT(F, f, T, t)                                                                                             \
    extern "C" __global__ void to_channels_last_##f##_##t(const F *x, T *y, int n, int channels, int plane,            \
                                                          int padded) {                                                \
        to_channels_last(x, y, n, channels, plane, padded);                                                            \
    }                                                                                                                  \
    ENTRY(to_channels_last_##f##_##t)                                                                                  \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                                \
        colours_to_channels_last_##f##_##t(const F *x, T *y, int n, int channels, int plane, int padded) {             \
        colours_to_channels_last(x, y, n, channels, plane, padded);                                                    \
    }                                                                                                                  \
    ENTRY(colours_to_channels_last_##f##_##t)                                                                          \
    extern "C" __global__ void to_channels_first_##f##_##t(const F *x, T *y, int n, int channels, int plane,           \
                                                           int padded) {                                               \
        to_channels_first(x, y, n, channels, plane, padded);                                                           \
    }                                                                                                                  \
    ENTRY(to_channels_first_##f##_##t)                                                                                 \
    extern "C" __global__ void repad_##f##_##t(const F *x, T *y, Long rows, int from, int to) {                        \
        repad(x, y, rows, from, to);                                                                                   \
    }                                                                                                                  \
    ENTRY(repad_##f##_##t)

FOR_PAIRS(LAYOUT)

// Tensors as rows × channels, channels innermost: who works on which, and sums over the rows of each channel.
//
// A block is 16 × 16 threads: x stands for four neighbouring channels, y for every sixteenth row. What depends on the channel
// alone is read once and stays in registers.
#pragma once
#include "common.cuh"

constexpr int SIDE = 16;
constexpr int CHANNELS = 4 * SIDE;

// Four channels of a thread, of which `count` exist (none where the grid reaches beyond the last).
struct Column {
    int first, count;
};

static __device__ inline Column own_column(int channels) {
    require_block(SIDE, SIDE);
    const int first = blockIdx.x * CHANNELS + threadIdx.x * 4;
    const int left = channels - first;
    return {first, left < 0 ? 0 : left > 4 ? 4 : left};
}

// Reads a column's four numbers; those that do not exist are 0.
template <class T> static __device__ inline void load_column(const T *row, Column own, bool wide, float (&to)[4]) {
    if (wide && own.count == 4) return load(row + own.first, to);
    for (int k = 0; k < 4; ++k) to[k] = k < own.count ? number(row[own.first + k]) : 0.0f;
}

template <class T> static __device__ inline void store_column(T *row, Column own, bool wide, const float (&from)[4]) {
    if (wide && own.count == 4) return store(row + own.first, from);
    for (int k = 0; k < own.count; ++k) row[own.first + k] = Rounded<T>::of(from[k]);
}

// Whether rows may be read four numbers at a time.
template <class T> static __device__ inline bool wide_rows(const T *x, int channels) {
    return channels % 4 == 0 && aligned(x);
}

// The rows of one part.
struct Rows {
    Long first, end;
};

static __device__ inline Rows part_rows(Long rows, int part, int parts) {
    return {rows * part / parts, rows * (part + 1) / parts};
}

// Adds up two numbers of each of the block's channels over its sixteen rows of threads, in their order, and writes them
// to partials (2,parts,channels); with `second` null only the first, to (1,parts,channels).
static __device__ inline void write_sums(const float (&first)[4], const float (&second)[4], bool both, Column own,
                                         float *partials, int channels, int part, int parts) {
    __shared__ float all[2][SIDE][CHANNELS];
    for (int k = 0; k < 4; ++k) {
        all[0][threadIdx.y][threadIdx.x * 4 + k] = first[k];
        all[1][threadIdx.y][threadIdx.x * 4 + k] = second[k];
    }
    __syncthreads();
    if (threadIdx.y > (both ? 1 : 0)) return;
    // The first row of threads adds the first number, the second row the second.
    const int which = threadIdx.y;
    for (int k = 0; k < own.count; ++k) {
        float sum = 0.0f;
        ROLLED for (int y = 0; y < SIDE; ++y) sum += all[which][y][threadIdx.x * 4 + k];
        partials[((Long)which * parts + part) * channels + own.first + k] = sum;
    }
}

// ---- joining parts: a block has 4 channels × 64 threads ----

constexpr int JOIN_CHANNELS = 4;
constexpr int JOIN_ROWS = 64;

// Σ over parts of values (parts,channels) of this thread's channel; every thread of the block calls it.
static __device__ inline f64 sum_of_parts(const float *values, int channel, int channels, int parts) {
    require_block(JOIN_CHANNELS, JOIN_ROWS);
    __shared__ f64 all[JOIN_ROWS][JOIN_CHANNELS];
    f64 sum = 0.0;
    if (channel < channels)
        ROLLED for (int part = threadIdx.y; part < parts; part += JOIN_ROWS) sum += values[(Long)part * channels + channel];
    __syncthreads();
    all[threadIdx.y][threadIdx.x] = sum;
    ROLLED for (int half = JOIN_ROWS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.y < half) all[threadIdx.y][threadIdx.x] += all[threadIdx.y + half][threadIdx.x];
    }
    __syncthreads();
    return all[0][threadIdx.x];
}

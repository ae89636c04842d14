// Tensors as rows × channels, channels innermost: who works on which, and sums over the rows of each channel.
//
// A block of 256 threads has 64 channels. A thread has as many neighbouring ones as 16 bytes hold (8 halves, 4 f32), so
// that 8 or 16 threads lie side by side, and every 32nd or 16th row. What depends on the channel alone is read once and
// stays in registers.
#pragma once
#include "common.cuh"

constexpr int CHANNELS = 64;
template <class T> constexpr int LANES = CHANNELS / WIDEST<T>;
// Rows of threads in a block.
template <class T> constexpr int DEEP = BLOCK / LANES<T>;

// A condition that is known when a loop is compiled: nothing is asked in it.
template <bool IS> struct Known {
    __device__ inline constexpr operator bool() const { return IS; }
};
using Yes = Known<true>;
using No = Known<false>;
template <class Is> constexpr bool WITHOUT = false;
template <> constexpr bool WITHOUT<No> = true;

// The channels of a thread of which `count` exist (none where the grid reaches beyond the last), and its row of
// threads. Loops go over all N and ask: with as many rounds as there are channels, arrays could not be registers.
template <class T> struct Column {
    static constexpr int N = WIDEST<T>;
    int first, count, row;
    int channels;

    __device__ inline explicit Column(int channels)
        : first(blockIdx.x * CHANNELS + threadIdx.x % LANES<T> * N), row(threadIdx.x / LANES<T>), channels(channels) {
        require_block(BLOCK, 1);
        const int left = channels - first;
        count = left < 0 ? 0 : left > N ? N : left;
    }

    // Row `r` of this column, of `x` with as many channels. Where rows are `wide` they are read 16 bytes at a time.
    template <class Wide> __device__ inline Pack<T, N> get(const T *x, int r, Wide wide) const {
        const T *at = x + ((Long)r * channels + first);
        if constexpr (bool(Wide())) {
            return *(const Pack<T, N> *)at;
        } else {
            float all[N];
            for (int k = 0; k < N; ++k) all[k] = k < count ? number(at[k]) : 0.0f;
            return packed<N, T>(all);
        }
    }

    template <class Wide> __device__ inline void put(T *y, int r, const Pack<T, N> &all, Wide wide) const {
        T *at = y + ((Long)r * channels + first);
        if constexpr (bool(Wide())) *(Pack<T, N> *)at = all;
        else
            for (int k = 0; k < N; ++k)
                if (k < count) at[k] = Rounded<T>::of(all.number_at(k));
    }

    // One number a channel; 0 where there is no such channel.
    __device__ inline void numbers(const float *of, float (&to)[N]) const {
        for (int k = 0; k < N; ++k) to[k] = k < count ? of[first + k] : 0.0f;
    }
};

// Calls use(row, get(row)) for `first`, `first` + `step`, … below `end`. `AHEAD` rows are read before the first of them
// is used. (There are fewer than 2^31 rows, and counting them in 32 bits takes fewer registers.)
template <int AHEAD, class Get, class Use>
static __device__ inline void sweep(int first, int end, int step, Get get, Use use) {
    int r = first;
    if constexpr (AHEAD > 1) {
        ROLLED for (; r < end - (AHEAD - 1) * step; r += AHEAD * step) {
            decltype(get(r)) all[AHEAD];
            for (int k = 0; k < AHEAD; ++k) all[k] = get(r + k * step);
            for (int k = 0; k < AHEAD; ++k) use(r + k * step, all[k]);
        }
    }
    ROLLED for (; r < end; r += step) use(r, get(r));
}

// All rows, shared out by the grid, the last ones first: what the kernel before this one wrote or read last is still in
// the GPU's cache, and what this one writes last is what comes first in the next.
template <int AHEAD, class T, class Get, class Use>
static __device__ inline void sweep_back(const Column<T> &own, int rows, Get get, Use use) {
    const auto from_end = [=](int r) { return rows - 1 - r; };
    sweep<AHEAD>(
        blockIdx.y * DEEP<T> + own.row, rows, gridDim.y * DEEP<T>, [&](int r) { return get(from_end(r)); },
        [&](int r, const auto &item) { use(from_end(r), item); });
}

// The rows of one part.
struct Rows {
    int first, end;
};

static __device__ inline Rows part_rows(Long rows, int part, int parts) {
    return {(int)(rows * part / parts), (int)(rows * (part + 1) / parts)};
}

// Adds up COUNT numbers of each of the block's channels over its rows of threads, in their order, and calls
// take(number, channel, sum) for each.
template <int COUNT, class T, class Take>
static __device__ inline void sum_rows(const float (&values)[COUNT][WIDEST<T>], const Column<T> &own, Take take) {
    __shared__ float all[COUNT][DEEP<T>][CHANNELS];
    const int lane = threadIdx.x % LANES<T>;
    for (int which = 0; which < COUNT; ++which)
        for (int k = 0; k < own.N; ++k) all[which][own.row][lane * own.N + k] = values[which][k];
    __syncthreads();
    const int which = threadIdx.x / CHANNELS, c = threadIdx.x % CHANNELS;
    if (which >= COUNT || blockIdx.x * CHANNELS + c >= own.channels) return;
    float sum = 0.0f;
    for (int row = 0; row < DEEP<T>; ++row) sum += all[which][row][c];
    take(which, blockIdx.x * CHANNELS + c, sum);
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
        ROLLED for (int part = threadIdx.y; part < parts; part += JOIN_ROWS)
            sum += values[(Long)part * channels + channel];
    __syncthreads();
    all[threadIdx.y][threadIdx.x] = sum;
    ROLLED for (int half = JOIN_ROWS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.y < half) all[threadIdx.y][threadIdx.x] += all[threadIdx.y + half][threadIdx.x];
    }
    __syncthreads();
    return all[0][threadIdx.x];
}
